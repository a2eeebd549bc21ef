// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Memory for the core, which allocates on set-up, on each step and on close: from control, probe or
 * remove, which may sleep. It allocates nothing for a frame: an allocation in atomic context is a
 * bug, which the kernel's log and `atomic_allocations` of ethtool -S show.
 *
 *   at most a page   the core's boxes, keys and texts: kmalloc() with __GFP_NOFAIL waits
 *   more             tables and lists whose length has no bound but the rings': kmalloc() or
 *                    vmalloc() may fail. The core tries again later, or does with less
 *   pages to grant   may fail, like tables and lists
 *
 * __GFP_NOFAIL is for allocations of order 0 or 1 that may sleep, as these are. Reclaim must not
 * wait for this interface, over which the guest may swap, nor for xenwatch, in which probe and
 * remove run: so control, probe and remove allocate with memalloc_noio_save(). They hold no lock
 * that reclaim takes: the shrinker (shrinker.c) asks control to free pages, and does not wait for
 * it.
 */
#include <linux/bug.h>
#include <linux/gfp.h>
#include <linux/kernel.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/preempt.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "pregrant.h"

atomic_t pregrant_atomic_allocations = ATOMIC_INIT(0);
atomic_t pregrant_memory_refused = ATOMIC_INIT(0);

/* Up to this many pages are allocated contiguously if possible, which saves TLB entries. */
#define CONTIGUOUS_MAX 64

/*
 * Allocates more than a page. A failed set-up is tried again, so no process is killed for it.
 * kvmalloc() with __GFP_RETRY_MAYFAIL would try as hard for contiguous pages.
 */
static void *allocate_pages(size_t size, gfp_t gfp)
{
	void *at = kmalloc(size, gfp | __GFP_NORETRY | __GFP_NOWARN);

#ifdef PREGRANT_WAITS_FOR_MEMORY
	/* The module's core does not expect that memory is refused: a refusal would be a BUG. */
	return at ? at : __vmalloc(size, gfp | __GFP_NOFAIL);
#else
	return at ? at : __vmalloc(size, gfp | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
#endif
}

/*
 * Whether the caller may be one that must not sleep: an interrupt, NAPI, a sender, or a task that
 * holds a spin lock. Without CONFIG_PREEMPT_COUNT a spin lock alone is not seen. With
 * CONFIG_PREEMPT_RT only in_softirq() sees NAPI and senders.
 */
static bool is_atomic(void)
{
	return in_atomic() || irqs_disabled() || in_softirq();
}

static void *allocate(size_t size, gfp_t zero)
{
	if (WARN_ON_ONCE(is_atomic())) {
		atomic_inc(&pregrant_atomic_allocations);
		return kmalloc(size, GFP_ATOMIC | zero);
	}
	might_sleep();
	if (size <= PAGE_SIZE)
		return kmalloc(size, GFP_KERNEL | __GFP_NOFAIL | zero);
	if (!pregrant_may_allocate(PREGRANT_HEAP))
		return NULL;
	return allocate_pages(PAGE_ALIGN(size), GFP_KERNEL | zero);
}

void *pk_alloc(size_t size, size_t align, bool zeroed)
{
	void *at;

	if (align > PAGE_SIZE)
		return NULL;
	/* kmalloc aligns sizes that are a power of two, and above a page to pages. */
	if (size <= PAGE_SIZE && align > ARCH_KMALLOC_MINALIGN)
		size = roundup_pow_of_two(max(size, align));
	at = allocate(size, zeroed ? __GFP_ZERO : 0);
	if (!at)
		atomic_inc(&pregrant_memory_refused);
	else
		pregrant_note_memory(1);
	return at;
}

void pk_free(void *at)
{
	pregrant_note_memory(-1);
	kvfree(at);
}

void *pk_pages(size_t n)
{
	void *at = NULL;

	if (!pregrant_may_allocate(PREGRANT_PAGES))
		return NULL;
	if (n <= CONTIGUOUS_MAX)
		at = alloc_pages_exact(n << PAGE_SHIFT, GFP_KERNEL | __GFP_ZERO | __GFP_NORETRY | __GFP_NOWARN);
	if (!at)
		at = __vmalloc(n << PAGE_SHIFT, GFP_KERNEL | __GFP_ZERO | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
	if (at)
		pregrant_note_memory(1);
	return at;
}

void pk_free_pages(void *at, size_t n)
{
	pregrant_note_memory(-1);
	if (is_vmalloc_addr(at))
		vfree(at);
	else
		free_pages_exact(at, n << PAGE_SHIFT);
}
