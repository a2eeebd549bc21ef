// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Memory for the core, which allocates on set-up, on each step and on close: from control, probe or
 * remove, which may sleep. It allocates nothing for a frame.
 *
 *   at most a page   the core's boxes, keys and texts: kmalloc() with __GFP_NOFAIL waits
 *   more             tables and lists whose length has no bound but the rings': may fail, which the
 *                    core handles as -ENOMEM, and tries again later or does with less
 *   pages to grant   may fail, the same
 *
 * __GFP_NOFAIL is for what has order 0 or 1 and may sleep, which these are. Reclaim must not wait
 * for this interface, over which the guest may swap, nor for xenwatch, in which probe and remove
 * run: so control, probe and remove allocate with memalloc_noio_save(). They hold no lock that
 * reclaim takes: the shrinker (shrinker.c) asks control to free pages, and does not wait for it.
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

atomic_t pregrant_memory_refused = ATOMIC_INIT(0);

/* Up to this many pages are allocated contiguously if possible, which saves TLB entries. */
#define CONTIGUOUS_MAX 64

/*
 * More than a page: a failed set-up is tried again, so no process is killed for it. kvmalloc() with
 * __GFP_RETRY_MAYFAIL would try as hard for contiguous pages.
 */
static void *allocate_pages(size_t size, gfp_t gfp)
{
	void *at = kmalloc(size, gfp | __GFP_NORETRY | __GFP_NOWARN);

	return at ? at : __vmalloc(size, gfp | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
}

void *pk_alloc(size_t size, size_t align, bool zeroed)
{
	gfp_t gfp = GFP_KERNEL | (zeroed ? __GFP_ZERO : 0);
	void *at = NULL;

	might_sleep();
	/* Senders have softirqs disabled, NAPI is one: frames allocate nothing. */
	WARN_ON_ONCE(in_softirq() || !in_task());
	if (align > PAGE_SIZE)
		return NULL;
	/* kmalloc aligns sizes that are a power of two, and above a page to pages. */
	if (size <= PAGE_SIZE && align > ARCH_KMALLOC_MINALIGN)
		size = roundup_pow_of_two(max(size, align));
	if (size <= PAGE_SIZE)
		at = kmalloc(size, gfp | __GFP_NOFAIL);
	else if (pregrant_may_allocate(PREGRANT_HEAP))
		at = allocate_pages(PAGE_ALIGN(size), gfp);
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
