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

/*
 * A copy whose memory here crosses a page needs two operations: the pages need not be neighbours.
 */
#define OPS (2 * PREGRANT_COPIES)

struct pregrant_copies {
	struct gnttab_copy ops[OPS];
	u8 first[PREGRANT_COPIES]; /* the first operation of each copy */
	unsigned int nr_ops, nr_copies;
	bool made; /* the next copy begins a new list */
};

struct pregrant_copies *pk_copies_new(void)
{
	struct pregrant_copies *copies = kvmalloc(sizeof(*copies), GFP_KERNEL | __GFP_NOFAIL);

	copies->nr_ops = copies->nr_copies = 0;
	copies->made = false;
	return copies;
}

void pk_copies_free(struct pregrant_copies *copies)
{
	kvfree(copies);
}

static struct page *page_of(const void *at)
{
	return is_vmalloc_addr(at) ? vmalloc_to_page(at) : virt_to_page(at);
}

void pk_copies_add(struct pregrant_copies *copies, u16 of, u32 gref, u16 offset, u16 len, void *at, bool to_peer)
{
	if (copies->made) {
		copies->nr_ops = copies->nr_copies = 0;
		copies->made = false;
	}
	if (WARN_ON_ONCE(copies->nr_copies == PREGRANT_COPIES))
		return;
	copies->first[copies->nr_copies++] = copies->nr_ops;
	do {
		u16 n = min_t(size_t, len, PAGE_SIZE - offset_in_page(at));
		struct gnttab_copy *op = &copies->ops[copies->nr_ops++];
		typeof(op->source) theirs = { .u.ref = gref, .domid = of, .offset = offset };
		typeof(op->dest) own;

		memset(op, 0, sizeof(*op));
		own.u.gmfn = xen_page_to_gfn(page_of(at));
		own.domid = DOMID_SELF;
		own.offset = offset_in_page(at);
		op->len = n;
		if (to_peer) {
			op->source.u.gmfn = own.u.gmfn;
			op->source.domid = own.domid;
			op->source.offset = own.offset;
			op->dest.u.ref = theirs.u.ref;
			op->dest.domid = theirs.domid;
			op->dest.offset = theirs.offset;
			op->flags = GNTCOPY_dest_gref;
		} else {
			op->source = theirs;
			op->dest.u.gmfn = own.u.gmfn;
			op->dest.domid = own.domid;
			op->dest.offset = own.offset;
			op->flags = GNTCOPY_source_gref;
		}
		offset += n;
		at += n;
		len -= n;
	} while (len);
}

void pk_copies_run(struct pregrant_copies *copies)
{
	if (copies->made) /* nothing was added */
		copies->nr_ops = copies->nr_copies = 0;
	copies->made = true;
	if (copies->nr_ops)
		gnttab_batch_copy(copies->ops, copies->nr_ops);
}

int pk_copies_status(struct pregrant_copies *copies, u32 k)
{
	unsigned int op, end;

	if (WARN_ON_ONCE(k >= copies->nr_copies))
		return GNTST_general_error;
	end = k + 1 < copies->nr_copies ? copies->first[k + 1] : copies->nr_ops;
	for (op = copies->first[k]; op < end; op++)
		if (copies->ops[op].status != GNTST_okay)
			return copies->ops[op].status;
	return GNTST_okay;
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
