// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Pages of a guest: mapped one by one, and copied by GNTTABOP_copy. All of it in process context:
 * Xen may ask to try again (GNTST_eagain), which the kernel's functions do, and sleep.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <xen/grant_table.h>
#include <xen/page.h>

#include "driver.h"

atomic64_t pregrant_maps = ATOMIC64_INIT(0), pregrant_maps_lost = ATOMIC64_INIT(0);

struct pregrant_map {
	struct page *page;
	grant_handle_t handle;
	bool readonly;
};

static u32 flags_of(bool readonly)
{
	return GNTMAP_host_map | (readonly ? GNTMAP_readonly : 0);
}

struct pregrant_map *pk_map(struct pregrant_device *dev, u16 of, u32 gref, bool readonly, int *status)
{
	struct pregrant_map *map = kmalloc(sizeof(*map), GFP_KERNEL);
	struct gnttab_map_grant_ref op;

	*status = GNTST_general_error;
	if (!map)
		return NULL;
	if (gnttab_alloc_pages(1, &map->page)) {
		*status = GNTST_no_device_space;
		goto no_page;
	}
	gnttab_set_map_op(&op, (unsigned long)page_address(map->page), flags_of(readonly), gref, of);
	if (gnttab_map_refs(&op, NULL, &map->page, 1) || op.status != GNTST_okay) {
		*status = op.status;
		goto not_mapped;
	}
	map->handle = op.handle;
	map->readonly = readonly;
	atomic64_inc(&pregrant_maps);
	return map;
not_mapped:
	gnttab_free_pages(1, &map->page);
no_page:
	kfree(map);
	return NULL;
}

void *pk_map_at(struct pregrant_map *map)
{
	return page_address(map->page);
}

/* A page that Xen does not unmap is never used again: it may still show the guest's memory. */
void pk_unmap(struct pregrant_map *map)
{
	struct gnttab_unmap_grant_ref op;

	gnttab_set_unmap_op(&op, (unsigned long)page_address(map->page), flags_of(map->readonly), map->handle);
	if (WARN_ON_ONCE(gnttab_unmap_refs(&op, NULL, &map->page, 1) || op.status != GNTST_okay))
		atomic64_inc(&pregrant_maps_lost);
	else
		gnttab_free_pages(1, &map->page);
	atomic64_dec(&pregrant_maps);
	kfree(map);
}

/* A copy whose memory here crosses a page is two operations: the pages need not be neighbours. */
#define OPS (2 * PREGRANT_COPIES)

/* The operations of a hypercall, for one thread. */
struct pregrant_copies {
	struct gnttab_copy ops[OPS];
	u8 copy[OPS]; /* the copy that each is of */
};

struct pregrant_copies *pk_copies_new(void)
{
	return kvmalloc(sizeof(struct pregrant_copies), GFP_KERNEL | __GFP_NOFAIL);
}

void pk_copies_free(struct pregrant_copies *copies)
{
	kvfree(copies);
}

static struct page *page_of(const void *at)
{
	return is_vmalloc_addr(at) ? vmalloc_to_page(at) : virt_to_page(at);
}

static void set_op(struct gnttab_copy *op, u16 of, u32 gref, u16 offset, const void *at, u16 len, bool to_peer)
{
	struct gnttab_copy_ptr *theirs = to_peer ? &op->dest : &op->source;
	struct gnttab_copy_ptr *own = to_peer ? &op->source : &op->dest;

	memset(op, 0, sizeof(*op));
	theirs->u.ref = gref;
	theirs->domid = of;
	theirs->offset = offset;
	own->u.gmfn = xen_page_to_gfn(page_of(at));
	own->domid = DOMID_SELF;
	own->offset = offset_in_page(at);
	op->len = len;
	op->flags = to_peer ? GNTCOPY_dest_gref : GNTCOPY_source_gref;
}

/* Makes at most PREGRANT_COPIES of the copies. */
static void copy_some(struct pregrant_copies *list, u16 of, void *base, bool to_peer, struct pregrant_copy *copies,
		      unsigned int n)
{
	unsigned int k, nr = 0;

	for (k = 0; k < n; k++) {
		u16 offset = copies[k].offset, left = copies[k].len;
		void *at = base + copies[k].at;

		/* One that the core refuses has a status, and is not made. */
		if (copies[k].status != GNTST_okay)
			continue;
		do {
			u16 len = min_t(size_t, left, PAGE_SIZE - offset_in_page(at));

			list->copy[nr] = k;
			set_op(&list->ops[nr++], of, copies[k].gref, offset, at, len, to_peer);
			offset += len;
			at += len;
			left -= len;
		} while (left);
	}
	if (nr)
		gnttab_batch_copy(list->ops, nr);
	for (k = 0; k < nr; k++) {
		struct pregrant_copy *copy = &copies[list->copy[k]];

		if (list->ops[k].status != GNTST_okay && copy->status == GNTST_okay)
			copy->status = list->ops[k].status;
	}
}

void pk_copy(struct pregrant_copies *list, u16 of, void *base, bool to_peer, struct pregrant_copy *copies, size_t n)
{
	size_t done, some;

	for (done = 0; done < n; done += some) {
		some = min_t(size_t, n - done, PREGRANT_COPIES);
		copy_some(list, of, base, to_peer, copies + done, some);
	}
}

/* Pages of the kernel's own addresses if possible, since the frame of each is looked up. */
void *pk_burst(size_t bytes)
{
	return kvzalloc(bytes, GFP_KERNEL | __GFP_NOFAIL);
}

void pk_burst_free(void *at)
{
	kvfree(at);
}
