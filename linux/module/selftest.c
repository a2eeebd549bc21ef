// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Both ends of a vif within this kernel, without Xen: frames each way by each path, every byte of
 * them compared; then set-ups in which memory, a grant or a channel is not to be had. Loading it
 * plays it; a failure is that of loading.
 */
#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "pregrant.h"

/* What is not to be had: the from-th to the to-th of what is asked for of these kinds. */
static u32 fail_kinds;
static u64 asked, fail_from, fail_to;
static atomic64_t memory = ATOMIC64_INIT(0);

#define pregrant_may_allocate(kind) pk_may_allocate(kind)
#define pregrant_note_memory(n) atomic64_add(n, &memory)

/* kbuild gives an object to one module; this one needs the core's heap and log as the driver does. */
#include "heap.c"
#include "log.c"
#include "reserve.c"

/* The test is one thread. */
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

/* Pieces and ranges that are not freed. */
s64 pk_memory(void)
{
	return atomic64_read(&memory);
}

u32 pk_memory_waits(void)
{
	return atomic_read(&pregrant_memory_waits);
}

size_t pk_reserve_size(u32 queues, u32 slots)
{
	return pregrant_reserve_size(queues, slots);
}

void *pk_reserve_begin(u32 queues, u32 slots)
{
	return pregrant_reserve_begin(queues, slots);
}

size_t pk_reserve_end(void *reserve)
{
	return pregrant_reserve_end(reserve);
}

static unsigned long frames = 1000000;
module_param(frames, ulong, 0444);
MODULE_PARM_DESC(frames, "frames each way by each path");

static int __init selftest_init(void)
{
	int result = pregrant_selftest(frames);

	if (!result && !list_empty(&reserves)) {
		pr_warn("pregrant: selftest: a reserve is left\n");
		result = -EBUSY;
	}
	pr_info("pregrant: selftest %s, %d atomic allocations, %d waits for memory\n",
		result ? "failed" : "passed", atomic_read(&pregrant_atomic_allocations),
		atomic_read(&pregrant_memory_waits));
	return result;
}

static void __exit selftest_exit(void)
{
}

module_init(selftest_init);
module_exit(selftest_exit);
MODULE_DESCRIPTION("Self-test of pregrant: both ends of a vif in the kernel");
MODULE_LICENSE("Dual MIT/GPL");
