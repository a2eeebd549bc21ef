// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Memory for the core.
 *
 * Where one may sleep, memory is waited for: the core asks for little, when a device is set up, and
 * an allocation of Rust's cannot fail. Pages that are granted may be refused; the front goes on
 * with less.
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

/* Pages that are one range for the hardware too cost fewer entries of its tables. Not at any price. */
#define CONTIGUOUS_MAX 64

void *pk_alloc(size_t size, size_t align, bool zeroed)
{
	gfp_t gfp = GFP_KERNEL | __GFP_NOFAIL | (zeroed ? __GFP_ZERO : 0);
	void *at;

	if (align > PAGE_SIZE)
		return NULL;
	/* kmalloc aligns what is a power of two by itself. */
	if (align > ARCH_KMALLOC_MINALIGN && size <= PAGE_SIZE)
		size = roundup_pow_of_two(max(size, align));
	if (in_atomic() || irqs_disabled()) {
		atomic_inc(&pregrant_atomic_allocations);
		return kmalloc(size, GFP_ATOMIC | (zeroed ? __GFP_ZERO : 0));
	}
	if (size <= PAGE_SIZE)
		return kmalloc(size, gfp);
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 17, 0)
	gfp &= ~__GFP_NOFAIL; /* vmalloc does not know it yet */
#endif
	while (!(at = kvmalloc(PAGE_ALIGN(size), gfp)))
		msleep(10);
	return at;
}

void pk_free(void *at)
{
	kvfree(at);
}

void *pk_pages(size_t n)
{
	void *at = NULL;

	if (n <= CONTIGUOUS_MAX)
		at = alloc_pages_exact(n << PAGE_SHIFT, GFP_KERNEL | __GFP_ZERO | __GFP_NORETRY | __GFP_NOWARN);
	return at ? at : vzalloc(n << PAGE_SHIFT);
}

void pk_free_pages(void *at, size_t n)
{
	if (is_vmalloc_addr(at))
		vfree(at);
	else
		free_pages_exact(at, n << PAGE_SHIFT);
}
