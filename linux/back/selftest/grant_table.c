// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Grants of the test's guests, whose pages are this kernel's.
 *
 *   copy   memory to memory, with Xen's checks
 *   map    Xen shows the guest's page at an address of the back's. Here the page's bytes go to that
 *          address and the guest uses them there, until they are unmapped: it is one page for both
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/spinlock.h>
#include <linux/string.h>

#include "front.h"

/* The lower references are Xen's. */
#define FIRST 8

static struct grant {
	u8 *own; /* NULL: not granted */
	u8 *at; /* where the bytes are: `own`, or where the back has mapped them */
	u16 of; /* whose */
	bool readonly;
	bool is_mapped;
} grants[GRANTS];
static DEFINE_SPINLOCK(lock);

unsigned int table_mapped, table_granted;
u64 table_ops;
void (*table_meanwhile)(void);

grant_ref_t table_grant(u16 of, bool readonly)
{
	u8 *page = (u8 *)get_zeroed_page(GFP_KERNEL);
	grant_ref_t gref = 0;
	unsigned int k;

	spin_lock_bh(&lock);
	for (k = FIRST; page && !gref && k < GRANTS; k++) {
		if (grants[k].own)
			continue;
		grants[k] = (struct grant) { .own = page, .at = page, .of = of, .readonly = readonly };
		table_granted++;
		gref = k;
	}
	spin_unlock_bh(&lock);
	if (!gref)
		free_page((unsigned long)page);
	return gref;
}

bool table_end(grant_ref_t gref)
{
	u8 *page = NULL;

	spin_lock_bh(&lock);
	if (!grants[gref].is_mapped) {
		page = grants[gref].own;
		grants[gref].own = NULL;
		table_granted--;
	}
	spin_unlock_bh(&lock);
	free_page((unsigned long)page);
	return page;
}

void *table_page(grant_ref_t gref)
{
	return READ_ONCE(grants[gref].at);
}

void table_fill(grant_ref_t gref, u8 seed, u8 step)
{
	unsigned int i;
	u8 *at;

	spin_lock_bh(&lock);
	at = grants[gref].at;
	for (i = 0; i < PAGE_SIZE; i++)
		at[i] = seed + step * i;
	spin_unlock_bh(&lock);
}

/* The grant, if the guest has given it. */
static struct grant *granted(u16 of, grant_ref_t gref, bool writes, s16 *status)
{
	if (gref >= GRANTS || !grants[gref].own || grants[gref].of != of)
		*status = GNTST_bad_gntref;
	else if (writes && grants[gref].readonly)
		*status = GNTST_permission_denied;
	else
		return &grants[gref];
	return NULL;
}

static void copy(struct gnttab_copy *op)
{
	bool to_guest = op->flags & GNTCOPY_dest_gref;
	struct gnttab_copy_ptr *theirs = to_guest ? &op->dest : &op->source;
	struct gnttab_copy_ptr *own = to_guest ? &op->source : &op->dest;
	struct grant *grant;
	u8 *here;

	op->status = GNTST_okay;
	grant = granted(theirs->domid, theirs->u.ref, to_guest, &op->status);
	if (grant && (theirs->offset + op->len > PAGE_SIZE || own->offset + op->len > PAGE_SIZE))
		op->status = GNTST_bad_copy_arg;
	if (op->status != GNTST_okay)
		return;
	here = page_address(pfn_to_page(own->u.gmfn)) + own->offset;
	if (to_guest)
		memcpy(grant->at + theirs->offset, here, op->len);
	else
		memcpy(here, grant->at + theirs->offset, op->len);
}

static void map(struct gnttab_map_grant_ref *op)
{
	struct grant *grant = granted(op->dom, op->ref, !(op->flags & GNTMAP_readonly), &op->status);
	u8 *at;

	if (!grant)
		return;
	op->status = GNTST_general_error;
	if (grant->is_mapped)
		return;
	/* Newer kernels give a physical address wherever they are no PV domain. */
	at = op->host_addr >= PAGE_OFFSET ? (void *)op->host_addr : __va(op->host_addr);
	memcpy(at, grant->at, PAGE_SIZE);
	WRITE_ONCE(grant->at, at);
	grant->is_mapped = true;
	table_mapped++;
	op->handle = op->ref;
	op->status = GNTST_okay;
}

static void unmap(struct gnttab_unmap_grant_ref *op)
{
	struct grant *grant = &grants[op->handle];

	op->status = GNTST_bad_handle;
	if (op->handle >= GRANTS || !grant->is_mapped)
		return;
	memcpy(grant->own, grant->at, PAGE_SIZE);
	WRITE_ONCE(grant->at, grant->own);
	grant->is_mapped = false;
	table_mapped--;
	op->status = GNTST_okay;
}

int table_op(unsigned int cmd, void *ops, unsigned int n)
{
	void (*meanwhile)(void) = READ_ONCE(table_meanwhile);
	unsigned long flags;
	unsigned int k;

	/* What the guest does on another processor. */
	if (cmd == GNTTABOP_copy && meanwhile)
		meanwhile();
	spin_lock_irqsave(&lock, flags);
	table_ops += n;
	for (k = 0; k < n; k++) {
		if (cmd == GNTTABOP_copy)
			copy((struct gnttab_copy *)ops + k);
		else if (cmd == GNTTABOP_map_grant_ref)
			map((struct gnttab_map_grant_ref *)ops + k);
		else
			unmap((struct gnttab_unmap_grant_ref *)ops + k);
	}
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

int table_alloc_pages(int n, struct page **pages)
{
	int k;

	for (k = 0; k < n; k++) {
		pages[k] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!pages[k]) {
			table_free_pages(k, pages);
			return -ENOMEM;
		}
	}
	return 0;
}

void table_free_pages(int n, struct page **pages)
{
	while (n--)
		__free_page(pages[n]);
}
