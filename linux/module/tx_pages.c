// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * How few pages a guest sends from (parameter count_tx_pages, off by default): whether a back that
 * keeps pages mapped would meet the same ones again.
 *
 *   a page of a frame -> seen before?        one bit a page of memory
 *                     -> in a table of 64?   of 256? .. 16384?   hits of each
 *
 * A table is what a back might keep: the pages that were sent last. It has sets of WAYS pages, each
 * with its last used page first, which is near to one list of all.
 */
#include <linux/hash.h>
#include <linux/mm.h>
#include <linux/sizes.h>
#include <linux/skbuff.h>
#include <linux/slab.h>

#include "driver.h"

#define WAYS 8
/* Pages of the first table; each later one has four times as many (names in ethtool.c). */
#define SMALLEST 64

struct pregrant_tx_pages {
	u64 figures[PREGRANT_TX_PAGES_FIGURES];
	unsigned long *tables[PREGRANT_TX_PAGES_TABLES]; /* page frame numbers + 1; 0: none */
	unsigned long frames; /* as many bits has `seen` */
	unsigned long *seen;
};

static unsigned int size_of(unsigned int table)
{
	return SMALLEST << (2 * table);
}

/* The page is the set's first afterwards. */
static bool was_there(unsigned long *set, unsigned long page)
{
	unsigned long before = page;
	unsigned int k;

	for (k = 0; k < WAYS; k++) {
		swap(before, set[k]);
		if (before == page)
			return true;
	}
	return false;
}

static void count_page(struct pregrant_tx_pages *to, unsigned long pfn)
{
	unsigned int k;

	to->figures[PREGRANT_TX_PAGES_ALL]++;
	if (pfn >= to->frames || !__test_and_set_bit(pfn, to->seen))
		to->figures[PREGRANT_TX_PAGES_NEW]++;
	for (k = 0; k < PREGRANT_TX_PAGES_TABLES; k++) {
		unsigned int sets = size_of(k) / WAYS;
		unsigned long *set = to->tables[k] + WAYS * hash_long(pfn, ilog2(sets));

		if (was_there(set, pfn + 1))
			to->figures[PREGRANT_TX_PAGES_HITS + k]++;
	}
}

static void count_bytes(struct pregrant_tx_pages *to, struct page *page, unsigned int offset, unsigned int len)
{
	unsigned long pfn = page_to_pfn(page) + (offset >> PAGE_SHIFT);
	unsigned long last = page_to_pfn(page) + ((offset + len - 1) >> PAGE_SHIFT);

	for (; len && pfn <= last; pfn++)
		count_page(to, pfn);
}

/*
 * Called with the netdev_queue lock held, for each frame of the stack that was sent. It has no
 * frag_list: the interface takes none.
 */
void pregrant_tx_pages_count(struct pregrant_tx_pages *to, const struct sk_buff *skb)
{
	unsigned int k;

	count_bytes(to, virt_to_page(skb->data), offset_in_page(skb->data), skb_headlen(skb));
	for (k = 0; k < skb_shinfo(skb)->nr_frags; k++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[k];

		if (skb_frag_page(frag))
			count_bytes(to, skb_frag_page(frag), skb_frag_off(frag), skb_frag_size(frag));
	}
}

u64 pregrant_tx_pages_figure(const struct pregrant_tx_pages *of, unsigned int k)
{
	return of ? READ_ONCE(of->figures[k]) : 0;
}

void pregrant_tx_pages_free(struct pregrant_tx_pages *of)
{
	unsigned int k;

	if (!of)
		return;
	for (k = 0; k < PREGRANT_TX_PAGES_TABLES; k++)
		kvfree(of->tables[k]);
	kvfree(of->seen);
	kfree(of);
}

/* NULL: no memory. */
struct pregrant_tx_pages *pregrant_tx_pages_new(void)
{
	struct pregrant_tx_pages *new = kzalloc(sizeof(*new), GFP_KERNEL);
	unsigned int k;
	bool whole;

	if (!new)
		return NULL;
	/* A machine has holes below 4 GiB. */
	new->frames = get_num_physpages() + (SZ_4G >> PAGE_SHIFT);
	new->seen = kvcalloc(BITS_TO_LONGS(new->frames), sizeof(long), GFP_KERNEL);
	whole = new->seen;
	for (k = 0; k < PREGRANT_TX_PAGES_TABLES; k++) {
		new->tables[k] = kvcalloc(size_of(k), sizeof(long), GFP_KERNEL);
		whole = whole && new->tables[k];
	}
	if (whole)
		return new;
	pregrant_tx_pages_free(new);
	return NULL;
}
