// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Grant copies, by GNTTABOP_copy, in any context. Xen may ask to try again (GNTST_eagain): such a
 * copy has failed, and its frame is lost.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <xen/grant_table.h>
#include <xen/page.h>

#include <asm/xen/hypercall.h>

#include "driver.h"

/* The operations of a hypercall, and the copy that each is of: a copy may need several. */
#define OPS 128
struct pregrant_copies {
	struct gnttab_copy ops[OPS];
	u16 copy[OPS];
	unsigned int nr;
	/* A page of ours, and its frame number: copies that follow are often of the same. */
	unsigned long page;
	u64 gfn;
};

struct pregrant_copies *pk_copies_new(void)
{
	return kvzalloc(sizeof(struct pregrant_copies), GFP_KERNEL | __GFP_NOFAIL);
}

void pk_copies_free(struct pregrant_copies *copies)
{
	kvfree(copies);
}

static __always_inline u64 gfn_of(struct pregrant_copies *list, const void *at, bool is_direct)
{
	unsigned long page = (unsigned long)at & PAGE_MASK;

	if (page != list->page) {
		list->page = page;
		list->gfn = pfn_to_gfn(is_direct ? PFN_DOWN(__pa(at)) : vmalloc_to_pfn(at));
	}
	return list->gfn;
}

static __always_inline void set_op(struct gnttab_copy *op, u16 of, u32 gref, u16 offset, u64 gfn, u16 at, u16 len,
				   bool to_peer)
{
	struct gnttab_copy_ptr *theirs = to_peer ? &op->dest : &op->source;
	struct gnttab_copy_ptr *own = to_peer ? &op->source : &op->dest;

	/* The reference is less long than the frame number. */
	theirs->u.gmfn = 0;
	theirs->u.ref = gref;
	theirs->domid = of;
	theirs->offset = offset;
	own->u.gmfn = gfn;
	own->domid = DOMID_SELF;
	own->offset = at;
	op->len = len;
	op->flags = to_peer ? GNTCOPY_dest_gref : GNTCOPY_source_gref;
	op->status = GNTST_okay;
}

static void run(struct pregrant_copies *list, struct pregrant_copy *copies)
{
	bool failed = list->nr && HYPERVISOR_grant_table_op(GNTTABOP_copy, list->ops, list->nr);
	unsigned int k;

	for (k = 0; k < list->nr; k++) {
		struct pregrant_copy *copy = &copies[list->copy[k]];

		if (unlikely(failed))
			copy->status = GNTST_general_error;
		else if (list->ops[k].status != GNTST_okay && copy->status == GNTST_okay)
			copy->status = list->ops[k].status;
	}
	list->nr = 0;
}

/* Adds an operation of copy `k`. */
static __always_inline void add(struct pregrant_copies *list, struct pregrant_copy *copies, size_t k, u16 of,
				const void *here, bool is_direct, u16 offset, u16 len, bool to_peer)
{
	if (list->nr == OPS)
		run(list, copies);
	list->copy[list->nr] = k;
	set_op(&list->ops[list->nr++], of, copies[k].gref, offset, gfn_of(list, here, is_direct),
	       offset_in_page(here), len, to_peer);
}

size_t pk_copy(struct pregrant_copies *list, u16 of, void *base, bool to_peer, struct pregrant_copy *copies, size_t n,
	       const struct pregrant_lent_piece *lent, size_t nr_lent)
{
	const struct pregrant_lent_piece *end = lent + nr_lent;
	bool is_base_direct = !is_vmalloc_addr(base);
	size_t k, made = 0;

	/* A page that skbs had may be another frame by now. */
	list->page = 0;
	for (k = 0; k < n; k++) {
		u32 at = copies[k].at, left = copies[k].len;
		u16 offset = copies[k].offset;

		/* One that the core refuses has a status, and is not made. */
		if (copies[k].status != GNTST_okay)
			continue;
		if (lent == end && offset_in_page(base + at) + left <= PAGE_SIZE) {
			add(list, copies, k, of, base + at, is_base_direct, offset, left, to_peer);
			made++;
			continue;
		}
		do {
			bool is_direct = is_base_direct;
			void *here = base + at;
			u32 len = left;

			while (lent != end && lent->at + lent->len <= at)
				lent++;
			if (lent != end && lent->at <= at) {
				here = lent->bytes + (at - lent->at);
				is_direct = true;
				len = min_t(size_t, len, lent->at + lent->len - at);
			} else if (lent != end) {
				len = min_t(u32, len, lent->at - at);
			}
			/* Pages need not be neighbours. */
			len = min_t(u32, len, PAGE_SIZE - offset_in_page(here));
			add(list, copies, k, of, here, is_direct, offset, len, to_peer);
			made++;
			offset += len;
			at += len;
			left -= len;
		} while (left);
	}
	run(list, copies);
	return made;
}
