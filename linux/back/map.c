// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Pages of guests that are mapped: one page, or several as one range of addresses.
 *
 *   one page    at the address of a page without memory of its own, which is kept with its
 *               structure for the next map (`spares`)
 *   a range     PVH, HVM: such pages for each, and vmap() of them
 *               PV: vmap() of an ordinary page, n times, gives page table entries, whose places
 *               Xen is given (GNTMAP_contains_pte), for Linux may not write such entries itself
 *
 * Control maps; a queue maps one page at a time, of what is spare, and never waits. Any context
 * unmaps, at once: what may sleep is left to a work item.
 *
 * The pages are in no list of the kernel's of foreign pages (its p2m): they may not become part of
 * an skb, nor go to a device.
 *
 * A page that Xen does not unmap is never used again: it may still show the guest's memory.
 */
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/vmalloc.h>
#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>
#include <xen/grant_table.h>
#include <xen/xen.h>

#include "driver.h"

/* Operations of one hypercall that maps. */
#define MAPS 16
/* Pages kept for the next maps of one page: at most, and how few are too few for queues. */
#define SPARES_MOST 1024
#define SPARES_LEAST 128

atomic64_t pregrant_maps = ATOMIC64_INIT(0), pregrant_maps_lost = ATOMIC64_INIT(0);

struct pregrant_map {
	struct pregrant_guest *guest;
	void *at;
	struct page **pages; /* `n`; of a PV range one, n times */
	unsigned int n;
	bool readonly;
	union {
		struct list_head list; /* in `spares` */
		struct work_struct work; /* frees a range */
	};
	unsigned int mapped; /* the operations that unmap these: ready since they were mapped */
	struct gnttab_unmap_grant_ref ops[];
};

static LIST_HEAD(spares);
static unsigned int nr_spares; /* under `spares_lock`, and read without it */
static DEFINE_SPINLOCK(spares_lock);
static void refill(struct work_struct *work);
static DECLARE_WORK(refill_work, refill);

/* A range's page table entries are Xen's. */
static bool has_entries(const struct pregrant_map *map)
{
	return map->n > 1 && xen_pv_domain();
}

static u32 flags_of(const struct pregrant_map *map)
{
	return GNTMAP_host_map | (map->readonly ? GNTMAP_readonly : 0) | (has_entries(map) ? GNTMAP_contains_pte : 0);
}

/* Where Xen maps a page: 0 if there is no such place. */
static phys_addr_t place_of(const struct pregrant_map *map, unsigned int page)
{
#ifdef CONFIG_XEN_PV
	unsigned int level;
	pte_t *entry;

	if (has_entries(map)) {
		entry = lookup_address((unsigned long)map->at + page * PAGE_SIZE, &level);
		return entry && level == PG_LEVEL_4K ? arbitrary_virt_to_machine(entry).maddr : 0;
	}
#endif
	return (unsigned long)page_address(map->pages[page]);
}

/* Maps pages from `from` on, at most MAPS. False: not all; `status`, `failed` say why and which. */
static bool map_some(struct pregrant_map *map, const u32 *grefs, unsigned int from, unsigned int n, bool may_wait,
		     s32 *status, u32 *failed)
{
	struct gnttab_map_grant_ref ops[MAPS];
	u32 flags = flags_of(map);
	bool is_well = true;
	unsigned int k;

	for (k = 0; k < n; k++) {
		phys_addr_t place = place_of(map, from + k);

		if (!place)
			return false;
		gnttab_set_map_op(&ops[k], place, flags, grefs[from + k], map->guest->of);
	}
	if (may_wait)
		gnttab_batch_map(ops, n);
	else if (HYPERVISOR_grant_table_op(GNTTABOP_map_grant_ref, ops, n))
		return false;
	for (k = 0; k < n; k++) {
		if (ops[k].status == GNTST_okay) {
			gnttab_set_unmap_op(&map->ops[map->mapped++], place_of(map, from + k), flags, ops[k].handle);
		} else if (is_well) {
			*status = ops[k].status;
			*failed = from + k;
			is_well = false;
		}
	}
	return is_well;
}

/* Lists are mapped for a moment, beyond what vifs count as theirs. */
#define LIST_PAGES 128

/* Counts the pages as the guest's. False: it may not have so many. */
static bool count_in(struct pregrant_guest *guest, unsigned int n)
{
	if (atomic_add_return(n, &guest->pages) <= pregrant_guest_pages + LIST_PAGES) {
		atomic64_add(n, &pregrant_maps);
		return true;
	}
	atomic_sub(n, &guest->pages);
	return false;
}

static void count_out(struct pregrant_guest *guest, unsigned int n)
{
	atomic64_sub(n, &pregrant_maps);
	atomic_sub(n, &guest->pages);
}

/* In any context: by one hypercall, and a flush for each 32. Returns how many stay mapped. */
static unsigned int unmap_pages(struct gnttab_unmap_grant_ref *ops, unsigned int n)
{
	unsigned int k, lost = 0;

	if (n && HYPERVISOR_grant_table_op(GNTTABOP_unmap_grant_ref, ops, n))
		for (k = 0; k < n; k++)
			ops[k].status = GNTST_general_error;
	for (k = 0; k < n; k++)
		lost += ops[k].status != GNTST_okay;
	WARN_ON_ONCE(lost);
	atomic64_add(lost, &pregrant_maps_lost);
	return lost;
}

static struct pregrant_map *map_new(unsigned int n)
{
	struct pregrant_map *map;

	map = kvzalloc(struct_size(map, ops, n) + n * sizeof(*map->pages), GFP_KERNEL | __GFP_NOWARN);
	if (!map)
		return NULL;
	map->n = n;
	map->pages = (struct page **)&map->ops[n];
	return map;
}

static void free_single(struct pregrant_map *map)
{
	gnttab_free_pages(1, map->pages);
	kvfree(map);
}

static struct pregrant_map *new_single(void)
{
	struct pregrant_map *map = map_new(1);

	if (map && !gnttab_alloc_pages(1, map->pages)) {
		map->at = page_address(map->pages[0]);
		return map;
	}
	kvfree(map);
	return NULL;
}

/* In any context. NULL: there is none. */
static struct pregrant_map *take_spare(void)
{
	struct pregrant_map *map;
	unsigned long flags;

	spin_lock_irqsave(&spares_lock, flags);
	map = list_first_entry_or_null(&spares, struct pregrant_map, list);
	if (map) {
		list_del(&map->list);
		nr_spares--;
	}
	spin_unlock_irqrestore(&spares_lock, flags);
	return map;
}

/* In any context. */
static void keep_spare(struct pregrant_map *map)
{
	unsigned long flags;

	spin_lock_irqsave(&spares_lock, flags);
	list_add(&map->list, &spares);
	nr_spares++;
	spin_unlock_irqrestore(&spares_lock, flags);
}

static void refill(struct work_struct *work)
{
	struct pregrant_map *map;

	while (READ_ONCE(nr_spares) < 2 * SPARES_LEAST) {
		map = new_single();
		if (!map)
			break;
		keep_spare(map);
	}
}

/* May sleep: frees spare pages beyond `most`. */
static void free_spares(unsigned int most)
{
	struct pregrant_map *map;

	while (READ_ONCE(nr_spares) > most) {
		map = take_spare();
		if (!map)
			break;
		free_single(map);
	}
}

void pregrant_maps_tidy(void)
{
	free_spares(SPARES_MOST);
}

/* Called at unload, after the work queue's end. */
void pregrant_maps_end(void)
{
	cancel_work_sync(&refill_work);
	free_spares(0);
}

static void free_range(struct pregrant_map *map)
{
	vunmap(map->at);
	if (!xen_pv_domain())
		gnttab_free_pages(map->n, map->pages);
	else
		__free_page(map->pages[0]);
	kvfree(map);
}

static void free_range_work(struct work_struct *work)
{
	free_range(container_of(work, struct pregrant_map, work));
}

/*
 * Removes the ordinary page from the entries of a PV range: what is read there later may not come
 * of it, out of a TLB. False: Xen refuses.
 */
static bool clear_entries(const struct pregrant_map *map)
{
#ifdef CONFIG_XEN_PV
	unsigned int k;

	for (k = 0; k < map->n; k++)
		if (HYPERVISOR_update_va_mapping((unsigned long)map->at + k * PAGE_SIZE, native_make_pte(0),
						 k + 1 < map->n ? 0 : UVMF_TLB_FLUSH | UVMF_ALL))
			return false;
#endif
	return true;
}

static struct pregrant_map *new_range(unsigned int n)
{
	struct pregrant_map *map = map_new(n);
	unsigned int k;

	if (!map)
		return NULL;
	INIT_WORK(&map->work, free_range_work);
	if (!xen_pv_domain()) {
		if (gnttab_alloc_pages(n, map->pages))
			goto no_pages;
	} else {
		map->pages[0] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!map->pages[0])
			goto no_pages;
		for (k = 1; k < n; k++)
			map->pages[k] = map->pages[0];
	}
	map->at = vmap(map->pages, n, VM_MAP, PAGE_KERNEL);
	if (map->at && (!has_entries(map) || clear_entries(map)))
		return map;
	free_range(map);
	return NULL;
no_pages:
	kvfree(map);
	return NULL;
}

struct pregrant_map *pk_map(struct pregrant_device *dev, u16 of, const u32 *grefs, size_t n, bool readonly,
			    bool may_wait, s32 *status, u32 *failed)
{
	struct pregrant_map *map;
	unsigned int from, some;
	bool is_well = true;

	*status = GNTST_no_device_space;
	*failed = 0;
	if (!n || n > pregrant_guest_pages || (n > 1 && !may_wait) || !count_in(dev->guest, n))
		return NULL;
	if (!may_wait && READ_ONCE(nr_spares) < SPARES_LEAST)
		queue_work(pregrant_control, &refill_work);
	map = n == 1 ? take_spare() : NULL;
	if (!map && may_wait)
		map = n == 1 ? new_single() : new_range(n);
	if (!map) {
		count_out(dev->guest, n);
		return NULL;
	}
	map->guest = dev->guest;
	map->readonly = readonly;
	*status = GNTST_general_error;
	for (from = 0; is_well && from < n; from += some) {
		some = min_t(size_t, n - from, MAPS);
		is_well = map_some(map, grefs, from, some, may_wait, status, failed);
	}
	if (is_well)
		return map;
	pk_unmap(map);
	return NULL;
}

void *pk_map_at(struct pregrant_map *map)
{
	return map->at;
}

void pk_unmap(struct pregrant_map *map)
{
	unsigned int lost = unmap_pages(map->ops, map->mapped);

	map->mapped = 0;
	count_out(map->guest, map->n);
	if (lost)
		return;
	if (map->n == 1)
		keep_spare(map);
	else
		queue_work(pregrant_control, &map->work);
}

void pk_unmap_several(struct pregrant_map **maps, size_t n)
{
	struct gnttab_unmap_grant_ref ops[PREGRANT_UNMAPS];
	unsigned int k, nr = 0;

	for (k = 0; k < n; k++)
		if (maps[k]->n == 1)
			ops[nr++] = maps[k]->ops[0];
	unmap_pages(ops, nr);
	for (k = nr = 0; k < n; k++) {
		struct pregrant_map *map = maps[k];

		if (map->n > 1) {
			pk_unmap(map);
			continue;
		}
		map->mapped = 0;
		count_out(map->guest, 1);
		if (ops[nr++].status == GNTST_okay)
			keep_spare(map);
	}
}
