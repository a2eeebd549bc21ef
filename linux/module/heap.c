// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Memory for the core.
 *
 * Allocations of the core cannot fail: if kvmalloc() does, they come from the reserve of the caller
 * (reserve.c). On remove there may be none, and they wait for memory. Pages to grant may fail: the
 * front goes on with fewer, or tries again.
 */
#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/preempt.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/vmalloc.h>

#include "pregrant.h"

atomic_t pregrant_atomic_allocations = ATOMIC_INIT(0);
atomic_t pregrant_memory_waits = ATOMIC_INIT(0);

/* Up to this many pages are allocated contiguously if possible, which saves TLB entries. */
#define CONTIGUOUS_MAX 64

static void *wait_for(size_t size, gfp_t zero)
{
	gfp_t gfp = GFP_KERNEL | __GFP_NOFAIL | zero;
	void *at;

	atomic_inc(&pregrant_memory_waits);
	if (size <= PAGE_SIZE)
		return kmalloc(size, gfp);
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 17, 0)
	gfp &= ~__GFP_NOFAIL; /* vmalloc does not support this flag yet */
#endif
	while (!(at = kvmalloc(size, gfp)))
		msleep(10);
	return at;
}

static void *allocate(size_t size, size_t align, bool zeroed)
{
	gfp_t zero = zeroed ? __GFP_ZERO : 0;
	void *at = NULL;

	/* kmalloc aligns sizes that are a power of two. */
	if (size > PAGE_SIZE)
		size = PAGE_ALIGN(size);
	else if (align > ARCH_KMALLOC_MINALIGN)
		size = roundup_pow_of_two(max(size, align));
	if (in_atomic() || irqs_disabled()) {
		atomic_inc(&pregrant_atomic_allocations);
		return kmalloc(size, GFP_ATOMIC | zero);
	}
	if (pregrant_may_allocate(PREGRANT_HEAP))
		at = kvmalloc(size, GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN | zero);
	if (!at)
		at = pregrant_reserve_cut(size, align, zeroed);
	return at ? at : wait_for(size, zero);
}

void *pk_alloc(size_t size, size_t align, bool zeroed)
{
	void *at = align <= PAGE_SIZE ? allocate(size, align, zeroed) : NULL;

	if (at)
		pregrant_note_memory(1);
	return at;
}

void pk_free(void *at)
{
	pregrant_note_memory(-1);
	if (!pregrant_reserve_put(at))
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
