// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Runs both ends of a vif within this kernel, without Xen: sends skbs in both directions by each
 * path, and compares every byte; then sets devices up while allocations, grants or event channels
 * fail. The test runs when the module is loaded; if it fails, loading fails.
 */
#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched/task_stack.h>

#define pregrant_may_allocate(kind) pk_may_allocate(kind)
#define pregrant_note_memory(n) atomic64_add(n, &memory)
#include "pregrant.h"

/* Requests of these kinds fail, from number fail_from to before fail_to. */
static u32 fail_kinds;
static u64 asked, fail_from, fail_to;
static atomic64_t memory = ATOMIC64_INIT(0);

/*
 * kbuild gives an object to one module; this one needs the core's heap, log and skbs as the driver
 * does.
 */
#include "cache.c"
#include "checksum.c"
#include "frame.c"
#include "heap.c"
#include "log.c"

bool pk_trusted(void)
{
	return true;
}

/* Needs no lock: the test has one thread. */
void pk_fail(u32 kinds, u64 from, u64 to)
{
	fail_kinds = kinds;
	asked = 0;
	fail_from = from;
	fail_to = to;
}

u64 pk_asked(void)
{
	return asked;
}

bool pk_may_allocate(u32 kind)
{
	u64 k;

	if (!(fail_kinds & kind))
		return true;
	k = asked++;
	return k < fail_from || k >= fail_to;
}

/* Returns the number of allocations and page ranges that are not freed. */
s64 pk_memory(void)
{
	return atomic64_read(&memory);
}

/* Number of bytes in the linear part; the others are in pages, as in what the stack sends. */
#define TEST_HEAD 128

/* A million frames may take longer than the kernel's watchdog waits. */
void pk_test_resched(void)
{
	cond_resched();
}

struct sk_buff *pk_test_skb(const void *from, size_t len)
{
	size_t head = min_t(size_t, len, TEST_HEAD);
	int err;
	struct sk_buff *skb = alloc_skb_with_frags(head, len - head, 0, &err, GFP_KERNEL);

	if (!skb)
		return NULL;
	skb_put(skb, head);
	skb->data_len = len - head;
	skb->len += len - head;
	if (!skb_store_bits(skb, 0, from, len))
		return skb;
	kfree_skb(skb);
	return NULL;
}

u32 pk_test_pieces(struct sk_buff *skb, void **pages, u16 *offsets, u16 *lens)
{
	struct pregrant_walk walk = { .info = skb_shinfo(skb) };
	struct pregrant_page_piece piece;
	u32 n = 0;

	if (!pregrant_skb_pages(skb))
		return 0;
	for (; pregrant_walk_next(&walk, &piece); n++) {
		pages[n] = page_address(piece.page);
		offsets[n] = piece.offset;
		lens[n] = piece.len;
	}
	return n;
}

void pk_test_free(struct sk_buff *skb)
{
	consume_skb(skb);
}

void *pk_test_received(void)
{
	static struct napi_struct napi;
	static struct pregrant_received received = { .napi = &napi };

	__skb_queue_head_init(&received.skbs);
	received.dropped = 0;
	return &received;
}

u32 pk_test_dropped(void *received)
{
	return ((struct pregrant_received *)received)->dropped;
}

int pk_test_next(void *received, void *to, size_t room)
{
	struct sk_buff *skb = __skb_dequeue(&((struct pregrant_received *)received)->skbs);
	bool whole;
	int len;

	if (!skb)
		return -ENOENT;
	len = skb->len;
	whole = len == pregrant_cb(skb)->len && len <= room && !skb_copy_bits(skb, 0, to, len);
	consume_skb(skb);
	return whole ? len : 0;
}

void pk_test_softirq(bool on)
{
	if (on)
		local_bh_disable();
	else
		local_bh_enable();
}

/* A value that no code writes to its stack. */
#define STACK_PATTERN 0x5afe57ac5afe57acUL

/*
 * An interrupt that comes meanwhile writes to the stack below this function's frame, too, and has
 * returned when the next word is filled. A call would write there: there is none.
 */
noinline void pk_test_stack_fill(void)
{
	volatile unsigned long *at = end_of_stack(current) + 1;

	while ((unsigned long)at < current_stack_pointer - 64)
		*at++ = STACK_PATTERN;
}

noinline size_t pk_test_stack_used(void)
{
	volatile unsigned long *at = end_of_stack(current) + 1;

	while ((unsigned long)at < current_stack_pointer && *at == STACK_PATTERN)
		at++;
	return current_stack_pointer - (unsigned long)at;
}

static unsigned long frames = 1000000;
module_param(frames, ulong, 0444);
MODULE_PARM_DESC(frames, "frames each way by each path");

static int __init selftest_init(void)
{
	int result = pregrant_selftest_backend() ?: pregrant_selftest_pieces() ?: pregrant_selftest_control() ?:
		     pregrant_selftest_xdp() ?: pregrant_selftest(frames);

	/* Frames travel with softirqs disabled, as in NAPI. */
	if (!result && atomic_read(&pregrant_atomic_allocations)) {
		pr_warn("pregrant: selftest: a frame allocates memory\n");
		result = -EINVAL;
	}
	pr_info("pregrant: selftest %s, %d atomic allocations\n", result ? "failed" : "passed",
		atomic_read(&pregrant_atomic_allocations));
	return result;
}

static void __exit selftest_exit(void)
{
}

module_init(selftest_init);
module_exit(selftest_exit);
MODULE_DESCRIPTION("Self-test of pregrant: both ends of a vif in the kernel");
MODULE_LICENSE("Dual MIT/GPL");
