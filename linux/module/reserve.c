// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Memory for calls of the core, in which an allocation cannot fail.
 *
 *   new, which may fail --> use --> the core: kmalloc, or where that fails a piece of it --> rest
 *                            ^------------------------- the next call -----------------------'
 *
 * So -ENOMEM is known before a step of the core, and the step is put off. A device keeps its
 * reserve: a step that frees memory needs none first. Pieces are allocated one behind the other,
 * for the thread that uses the reserve. A reserve that is freed while pieces are in use goes with
 * the last of them.
 */
#include <linux/gfp.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include "pregrant.h"

/*
 * Bytes that one step of the core can allocate: a constant, and terms by queue, slot, staging
 * buffer, page. These are measured, not derived: more than twice what the self-test sees with each
 * path.
 */
#define OF_STEP (64 << 10)
#define OF_QUEUE (48 << 10)
#define OF_SLOT 192
#define OF_PAGE 192
#define OF_BUFFER 80

struct pregrant_reserve {
	struct list_head list;
	struct task_struct *user; /* NULL: not in use */
	bool given_up; /* freed once no piece is in use */
	size_t size, top, last, most;
	u8 bytes[] __aligned(16);
};

/* The header of each allocation from the reserve. */
struct piece {
	u32 before; /* offset of the previous piece */
	bool freed;
} __aligned(16);

#define NO_PIECE U32_MAX

static LIST_HEAD(reserves);
static DEFINE_SPINLOCK(reserves_lock);
static atomic_t pieces = ATOMIC_INIT(0);

size_t pregrant_reserve_size(u32 queues, u32 slots, struct pregrant_more more)
{
	size_t bytes = max((size_t)more.buffers * OF_BUFFER, (size_t)more.pages * OF_PAGE);

	return OF_STEP + queues * (OF_QUEUE + (size_t)slots * OF_SLOT + bytes);
}

struct pregrant_reserve *pregrant_reserve_new(u32 queues, u32 slots, struct pregrant_more more)
{
	size_t size = pregrant_reserve_size(queues, slots, more);
	struct pregrant_reserve *reserve = NULL;

	if (pregrant_may_allocate(PREGRANT_HEAP))
		reserve = __vmalloc(sizeof(*reserve) + size, GFP_KERNEL | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
	if (!reserve)
		return NULL;
	*reserve = (struct pregrant_reserve) { .size = size, .last = NO_PIECE };
	spin_lock_irq(&reserves_lock);
	list_add(&reserve->list, &reserves);
	spin_unlock_irq(&reserves_lock);
	return reserve;
}

bool pregrant_reserve_is_enough(struct pregrant_reserve *reserve)
{
	bool is_enough;

	spin_lock_irq(&reserves_lock);
	/* Half is enough for a step: see OF_STEP. */
	is_enough = reserve->top <= reserve->size / 2;
	spin_unlock_irq(&reserves_lock);
	return is_enough;
}

void pregrant_reserve_use(struct pregrant_reserve *reserve)
{
	spin_lock_irq(&reserves_lock);
	reserve->user = current;
	spin_unlock_irq(&reserves_lock);
}

size_t pregrant_reserve_rest(struct pregrant_reserve *reserve)
{
	size_t most;

	spin_lock_irq(&reserves_lock);
	reserve->user = NULL;
	most = reserve->most;
	spin_unlock_irq(&reserves_lock);
	return most;
}

void pregrant_reserve_free(struct pregrant_reserve *reserve)
{
	bool is_whole;

	if (!reserve)
		return;
	spin_lock_irq(&reserves_lock);
	reserve->given_up = true;
	is_whole = !reserve->top;
	if (is_whole)
		list_del(&reserve->list);
	spin_unlock_irq(&reserves_lock);
	if (is_whole)
		vfree(reserve);
}

static void *cut(struct pregrant_reserve *reserve, size_t size, size_t align)
{
	u8 *at = PTR_ALIGN(reserve->bytes + reserve->top + sizeof(struct piece), max_t(size_t, align, 16));
	struct piece *piece = (struct piece *)at - 1;
	size_t end = at - reserve->bytes + size;

	if (size > reserve->size || end > reserve->size)
		return NULL;
	*piece = (struct piece) { .before = reserve->last };
	reserve->last = (u8 *)piece - reserve->bytes;
	reserve->top = end;
	reserve->most = max(reserve->most, end);
	atomic_inc(&pieces);
	return at;
}

void *pregrant_reserve_cut(size_t size, size_t align, bool zeroed)
{
	struct pregrant_reserve *reserve;
	unsigned long flags;
	void *at = NULL;

	spin_lock_irqsave(&reserves_lock, flags);
	list_for_each_entry(reserve, &reserves, list) {
		if (reserve->user == current)
			at = cut(reserve, size, align);
		if (at)
			break;
	}
	spin_unlock_irqrestore(&reserves_lock, flags);
	if (at && zeroed)
		memset(at, 0, size);
	return at;
}

/* Frees the room behind the last piece in use. */
static void join(struct pregrant_reserve *reserve)
{
	while (reserve->last != NO_PIECE) {
		struct piece *piece = (struct piece *)(reserve->bytes + reserve->last);

		if (!piece->freed)
			return;
		reserve->top = reserve->last;
		reserve->last = piece->before;
	}
	reserve->top = 0;
}

bool pregrant_reserve_put(void *at)
{
	struct pregrant_reserve *reserve;
	bool found = false, is_over = false;
	unsigned long flags;

	if (!atomic_read(&pieces))
		return false;
	spin_lock_irqsave(&reserves_lock, flags);
	list_for_each_entry(reserve, &reserves, list) {
		if ((u8 *)at < reserve->bytes || (u8 *)at >= reserve->bytes + reserve->size)
			continue;
		((struct piece *)at - 1)->freed = true;
		atomic_dec(&pieces);
		join(reserve);
		found = true;
		is_over = reserve->given_up && !reserve->top;
		if (is_over)
			list_del(&reserve->list);
		break;
	}
	spin_unlock_irqrestore(&reserves_lock, flags);
	if (is_over)
		vfree(reserve);
	return found;
}
