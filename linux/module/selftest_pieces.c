// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Tests pieces.c with a grant table and a ring of the test's own. A back that responds to a request
 * and keeps its page mapped gets no more pages, from any queue, and the device is closed; the
 * kernel warns of that once. A back that the core does not trust gets no page.
 *
 *   queue 0, queue 1 --pieces--> the test's table <--keeps some pages-- the test's back
 */
#include <linux/slab.h>
#include <xen/grant_table.h>
#include <xen/page.h>

#include "driver.h"

#define NUMBERS 64
#define IDS 32
#define LEN 6000
#define KEPT_MAX 12
#define NONE 0

atomic64_t pregrant_grants = ATOMIC64_INIT(0);
atomic64_t pregrant_grants_ended = ATOMIC64_INIT(0);
atomic64_t pregrant_grants_deferred = ATOMIC64_INIT(0);

/* Grants by reference; reference 0 is not used. */
static struct {
	grant_ref_t next;
	bool granted, kept;
} table[NUMBERS];
static grant_ref_t unused;
static unsigned int complaints, faults, fails;
static u32 ids_of_ring = IDS;

/* Requests that a queue's back has not answered, and how many it answers. */
static struct {
	u16 ids[IDS];
	unsigned int sent, answered, to_answer;
} rings[2];

static int claim(grant_ref_t *list)
{
	grant_ref_t gref = *list;

	*list = table[gref].next;
	return gref;
}

static void put_back(grant_ref_t *list, grant_ref_t gref)
{
	table[gref].next = *list;
	*list = gref;
}

static int take_numbers(u16 n, grant_ref_t *list)
{
	for (*list = NONE; n; n--) {
		if (!unused)
			return -ENOSPC;
		put_back(list, claim(&unused));
	}
	return 0;
}

/* Ends a grant; the reference stays with the caller. */
static bool end_of(grant_ref_t gref, bool complains)
{
	complaints += complains && table[gref].kept;
	if (table[gref].kept)
		return false;
	table[gref].granted = false;
	return true;
}

static bool end_for_good(grant_ref_t gref)
{
	if (!end_of(gref, false))
		return false;
	put_back(&unused, gref);
	return true;
}

static unsigned int ring_of(const void *tx)
{
	return tx != &rings[0];
}

static bool is_full;

static int send_pieces(const void *tx, u32 n, u16 *ids)
{
	unsigned int ring = ring_of(tx);

	if (is_full)
		return 0;
	for (; n; n--, ids++) {
		*ids = rings[ring].sent;
		rings[ring].ids[rings[ring].sent++] = *ids;
	}
	return 1;
}

static u32 answered_pieces(const void *tx, u16 *ids, u32 room)
{
	unsigned int ring = ring_of(tx);
	u32 n = 0;

	while (n < room && rings[ring].answered < rings[ring].to_answer)
		ids[n++] = rings[ring].ids[rings[ring].answered++];
	return n;
}

#define xen_page_to_gfn(page) page_to_pfn(page)
#define gnttab_alloc_grant_references(n, list) take_numbers(n, list)
#define gnttab_free_grant_reference(gref) put_back(&unused, gref)
#define gnttab_claim_grant_reference(list) claim(list)
#define gnttab_grant_foreign_access_ref(gref, domid, frame, readonly) \
	((void)(domid), table[gref].granted = true)
#define gnttab_end_foreign_access_ref(gref, ...) end_of(gref, true)
#define gnttab_try_end_foreign_access(gref) end_for_good(gref)
#define gnttab_end_foreign_access(gref, ...) do { } while (0)
#define pregrant_tx_piece_ids(tx) ids_of_ring
#define pregrant_tx_pieces_out(tx) 0
#define pregrant_tx_send_pieces(tx, skb, len, csum, type, size, granted, n, ids) send_pieces(tx, n, ids)
#define pregrant_tx_answered_pieces(tx, ids, room) answered_pieces(tx, ids, room)

#define pk_fault(dev, text, len) ((void)(dev), (void)(text), faults++)
#define pregrant_fail(dev) ((void)(dev), fails++)

#include "pieces.c"

static unsigned int granted(bool kept)
{
	unsigned int k, n = 0;

	for (k = 1; k < NUMBERS; k++)
		n += table[k].granted && table[k].kept == kept;
	return n;
}

/* Sends a frame by granted pages. Returns their number; 0: not allowed, or no room. */
static unsigned int lend_one(struct pregrant_queue *queue, const void *bytes)
{
	struct sk_buff *skb = pk_test_skb(bytes, LEN);
	u32 before = queue->pieces_out;

	if (skb && pregrant_goes_in_pieces(queue, skb) && pregrant_send_in_pieces(queue, skb, 0, 0, 0) == 1)
		return queue->pieces_out - before;
	kfree_skb(skb);
	return 0;
}

/* The back answers all requests. Of their pages it keeps the last one mapped, or none. */
static unsigned int answer(struct pregrant_queue *queue, bool keeps)
{
	unsigned int packets = 0, bytes = 0, last = rings[queue->index].sent - 1;

	table[queue->pieces[last].gref].kept = keeps;
	rings[queue->index].to_answer = last + 1;
	pregrant_pieces_answered(queue, 0, &packets, &bytes);
	return bytes;
}

/*
 * Walks over an empty fragment, and over one in several pages of a compound page that starts in the
 * second.
 */
static const char *walk(void)
{
	static const u16 offsets[] = { 904, 0, 0 }, lens[] = { 3192, 4096, 1712 };
	struct page *page = alloc_pages(GFP_KERNEL | __GFP_COMP, 2);
	struct sk_buff *skb = alloc_skb(ETH_HLEN, GFP_KERNEL);
	struct pregrant_page_piece piece;
	const char *wrong = NULL;
	unsigned int n = 0;

	if (page && skb) {
		struct pregrant_walk walk = { .info = skb_shinfo(skb) };

		get_page(page);
		skb_add_rx_frag(skb, 0, page, 100, 0, 0);
		skb_add_rx_frag(skb, 1, page, 5000, 9000, 9000);
		for (; pregrant_walk_next(&walk, &piece); n++) {
			if (n == ARRAY_SIZE(lens) || piece.page != page + 1 + n || piece.offset != offsets[n] || piece.len != lens[n])
				wrong = "a fragment is not walked";
		}
		if (n != ARRAY_SIZE(lens) || pregrant_skb_pages(skb) < n)
			wrong = "pages of fragments are not counted";
		page = NULL;
	}
	kfree_skb(skb);
	if (page)
		__free_pages(page, 2);
	return wrong;
}

/*
 * A back that answers nothing gets a limited number of pages, over all queues; pages that it keeps
 * mapped count.
 */
static const char *bound(struct pregrant_device *dev, const void *bytes)
{
	struct pregrant_queue *one = &dev->queues[0], *two = &dev->queues[1];
	unsigned int n = 0, k;
	grant_ref_t kept;

	for (k = 0; k < IDS / 2; k++)
		n += lend_one(k % 2 ? one : two, bytes);
	if (n != KEPT_MAX || granted(false) != KEPT_MAX)
		return "a back that answers nothing gets more pages than it may keep";
	/* The ring of one queue ends, and the back still maps one of its pages. */
	kept = one->pieces[0].gref;
	table[kept].kept = true;
	pregrant_pieces_drop(one);
	rings[0].answered = rings[0].sent;
	for (n = 0, k = 0; k < IDS / 4; k++)
		n += lend_one(one, bytes);
	/* A frame has two pages. */
	if (n != KEPT_MAX / 2 - 2)
		return "a page that is kept does not count";
	if (answer(one, false) != n / 2 * LEN || answer(two, false) != KEPT_MAX / 4 * LEN)
		return "frames beside a page that is kept are not answered";
	if (atomic_read(&dev->pieces_kept) != 1 || granted(false))
		return "pages are not counted back";
	/* Restore the initial state. */
	for (k = 0; k < 2; k++)
		pregrant_pieces_drop(&dev->queues[k]);
	memset(rings, 0, sizeof(rings));
	table[kept].kept = table[kept].granted = false;
	put_back(&unused, kept);
	atomic64_set(&pregrant_grants_deferred, 0);
	atomic_set(&dev->pieces_kept, 0);
	return NULL;
}

static const char *play(struct pregrant_device *dev, const void *bytes)
{
	struct pregrant_queue *one = &dev->queues[0], *two = &dev->queues[1];
	const char *wrong = walk() ?: bound(dev, bytes);
	unsigned int n, k;

	if (wrong)
		return wrong;
	/* The core gives out no ids for fragments if the back is not trusted at this connect. */
	ids_of_ring = 0;
	pregrant_pieces_begin(one);
	if (lend_one(one, bytes) || granted(false))
		return "a back that is not trusted is lent pages";
	ids_of_ring = IDS;
	pregrant_pieces_begin(one);
	n = lend_one(one, bytes);
	/* The ring is full: nothing new stays granted, and the queue keeps its references. */
	is_full = true;
	if (lend_one(two, bytes) || granted(false) != n || !two->spare)
		return "what is not sent stays granted";
	is_full = false;
	/* The back unmaps everything: the queue keeps its references. */
	if (!n || granted(false) != n || answer(one, false) != LEN || granted(false) || one->spare != n)
		return "a frame in pieces is not answered";
	if (lend_one(one, bytes) != n || lend_one(two, bytes) != n || lend_one(two, bytes) != n)
		return "no frame in pieces";
	if (fails || faults)
		return "a back that lets go is said to break the protocol";
	if (answer(one, true) != LEN || complaints != 1 || granted(true) != 1)
		return "a page that is kept is not seen once";
	if (fails != 1 || faults != 1)
		return "a back that keeps a page does not lose the device";
	if (lend_one(one, bytes) || lend_one(two, bytes))
		return "a back that keeps a page is lent others";
	/* Frames in flight complete; the kernel has logged its warning. */
	if (answer(two, true) != 2 * LEN || complaints != 1 || granted(true) != 2)
		return "what is on its way is not answered";
	if (one->grants || two->grants || atomic64_read(&pregrant_grants_deferred) != 2)
		return "a queue goes on";
	for (k = 0; k < 2; k++)
		pregrant_pieces_drop(&dev->queues[k]);
	for (k = 0; unused; k++)
		claim(&unused);
	/* The queue has all references except 0 and those that the kernel still holds. */
	return granted(false) || k != NUMBERS - 1 - 2 ? "numbers of grants are lost" : NULL;
}

int pregrant_selftest_pieces(void)
{
	struct pregrant_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	struct pregrant_queue *queues = kcalloc(2, sizeof(*queues), GFP_KERNEL);
	void *bytes = kzalloc(LEN, GFP_KERNEL);
	const char *wrong = "no memory";
	unsigned int k;

	if (!dev || !queues || !bytes)
		goto out;
	for (k = 1; k < NUMBERS; k++)
		put_back(&unused, k);
	dev->queues = queues;
	dev->lend_from = LEN;
	wrong = NULL;
	for (k = 0; k < 2; k++) {
		queues[k].dev = dev;
		queues[k].index = k;
		queues[k].kept_mask = IDS - 1;
		queues[k].tx = (struct pregrant_tx *)&rings[k];
		if (pregrant_pieces_init(&queues[k], IDS))
			wrong = "no memory";
		else
			pregrant_pieces_begin(&queues[k]);
	}
	if (!wrong)
		wrong = play(dev, bytes);
	for (k = 0; k < 2; k++)
		pregrant_pieces_free(&queues[k]);
out:
	if (wrong)
		pr_warn("pregrant: selftest of pieces failed: %s\n", wrong);
	kfree(bytes);
	kfree(queues);
	kfree(dev);
	return wrong ? -EINVAL : 0;
}
