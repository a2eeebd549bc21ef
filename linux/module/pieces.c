// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Zero-copy TX: the pages of an skb's fragments are granted read-only for the frame.
 *
 *   skb: headers    --copied-------------------------------> backend
 *        fragments  --a grant and a request for each page--> backend
 *        responses  --> the grants end --> with the last one the skb is freed
 *
 * A grant ends with the response to its request, or with the ring: earlier, its reference could
 * name another page while the request is still on the ring. The reference stays with the queue for
 * the next page, since freeing it takes the grant table's lock. If the backend still maps the page
 * after the response, the kernel keeps the page allocated until it is unmapped, and the device is
 * closed, as after any breach of the protocol. All of this runs under the netdev_queue lock, or
 * while the queue is paused.
 *
 * Whole pages are granted, with whatever else is in them: bytes of other sockets, of files. So this
 * is for trusted backends only, which the core decides at each connect (net/front/trust.rs). With
 * others it accepts no granted pages, and everything is copied.
 */
#include <linux/etherdevice.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <xen/grant_table.h>
#include <xen/page.h>

#include "driver.h"

/*
 * Largest number of skb pages that one device grants at a time, those included that an earlier
 * connection left mapped, for as long as the backend wants. Above it skbs are copied. Four queues
 * with one-page rings have as many slots.
 */
#ifndef KEPT_MAX
#define KEPT_MAX 1024
#endif

/* Shorter skbs are copied: a grant each for one or two slots does not pay. */
#define LEND_FROM 4096

/* The control buffer (skb->cb) of an skb in flight. */
struct pregrant_tx_cb {
	unsigned int left; /* number of granted pages without a response */
	bool counts; /* BQL counts the skb */
};

static struct pregrant_tx_cb *tx_cb(struct sk_buff *skb)
{
	return (struct pregrant_tx_cb *)skb->cb;
}

int pregrant_pieces_init(struct pregrant_queue *queue, u32 ids)
{
	queue->pieces = kvcalloc(ids, sizeof(*queue->pieces), GFP_KERNEL);
	/* Room for all pages in flight and one more skb. */
	queue->numbers = kvcalloc(ids + PREGRANT_PIECES_MAX, sizeof(*queue->numbers), GFP_KERNEL);
	return queue->pieces && queue->numbers ? 0 : -ENOMEM;
}

static void give_numbers_back(struct pregrant_queue *queue)
{
	while (queue->spare)
		gnttab_free_grant_reference(queue->numbers[--queue->spare]);
}

void pregrant_pieces_free(struct pregrant_queue *queue)
{
	give_numbers_back(queue);
	kvfree(queue->numbers);
	kvfree(queue->pieces);
}

/* Called when the queue was just started. If its ring is new, grants of the old one end. */
void pregrant_pieces_begin(struct pregrant_queue *queue)
{
	u32 ids = pregrant_tx_piece_ids(queue->tx);

	if (queue->pieces_out && !pregrant_tx_pieces_out(queue->tx))
		pregrant_pieces_drop(queue);
	queue->may_grant = ids && ids <= queue->kept_mask + 1;
	pregrant_pieces_allow(queue);
}

/*
 * By default no pages are granted if the backend maps pages of the front or its data ring, or is
 * being asked to: it would grant-copy from skb pages, but reads mapped ones directly.
 */
void pregrant_pieces_allow(struct pregrant_queue *queue)
{
	const struct pregrant_device *dev = queue->dev;
	bool maps = READ_ONCE(dev->takes) & PREGRANT_TAKES_MAPPINGS;

	WRITE_ONCE(queue->grants, queue->may_grant && !READ_ONCE(dev->grants_stopped) && (dev->lend_from || !maps));
}

/* Shared skbs are copied: skb->cb belongs to all of their owners. */
bool pregrant_goes_in_pieces(const struct pregrant_queue *queue, const struct sk_buff *skb)
{
	return READ_ONCE(queue->grants) && !READ_ONCE(queue->dev->grants_stopped) && skb->len >= (queue->dev->lend_from ?: LEND_FROM) &&
	       skb_is_nonlinear(skb) && !skb_shared(skb) && skb_headlen(skb) >= ETH_HLEN && skb_headlen(skb) <= PAGE_SIZE;
}

/* Whether there are `n` unused grant references. The queue never returns any while it is up. */
static bool have_numbers(struct pregrant_queue *queue, unsigned int n)
{
	grant_ref_t more;

	if (likely(queue->spare >= n))
		return true;
	n -= queue->spare;
	if (gnttab_alloc_grant_references(n, &more))
		return false;
	while (n--)
		queue->numbers[queue->spare++] = gnttab_claim_grant_reference(&more);
	return true;
}

static bool has_ended(grant_ref_t gref)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 19, 0)
	return gnttab_end_foreign_access_ref(gref);
#else
	return gnttab_end_foreign_access_ref(gref, 1);
#endif
}

/* Ends a grant that the backend may still map. False: it does, and the kernel ends it later. */
static bool end_or_leave(grant_ref_t gref)
{
	if (gnttab_try_end_foreign_access(gref))
		return true;
	atomic64_inc(&pregrant_grants_deferred);
	/* The kernel holds a reference to the page until the grant has ended. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 19, 0)
	gnttab_end_foreign_access(gref, NULL);
#else
	gnttab_end_foreign_access(gref, 1, 0);
#endif
	return false;
}

static const char keeps[] = "a page of the guest's is still mapped after its answer";

/*
 * Ends a grant that the backend must have unmapped; its reference stays with the queue. If it has
 * not, the kernel warns once, and no more pages are granted; if it still has not, the device is
 * closed.
 */
static bool end_grant(struct pregrant_queue *queue, grant_ref_t gref)
{
	if (likely(!READ_ONCE(queue->dev->grants_stopped) && has_ended(gref))) {
		queue->numbers[queue->spare++] = gref;
		return true;
	}
	/* Another queue may have set this first: each queue stops itself. */
	WRITE_ONCE(queue->dev->grants_stopped, true);
	WRITE_ONCE(queue->grants, false);
	if (end_or_leave(gref))
		return true;
	pk_fault(queue->dev, keeps, sizeof(keeps) - 1);
	pregrant_fail(queue->dev);
	return false;
}

/* Counts pages whose grants have ended. */
static void note_ended(struct pregrant_device *dev, unsigned int n)
{
	atomic64_add(n, &pregrant_grants_ended);
	atomic_sub(n, &dev->pieces_kept);
}

static void end_grants(struct pregrant_queue *queue, unsigned int n)
{
	unsigned int k, ended = 0;

	for (k = 0; k < n; k++)
		ended += end_grant(queue, queue->granted[k].gref);
	note_ended(queue->dev, ended);
}

/* Counts `pages` more granted pages. False: above the limit. */
static bool count_granted(struct pregrant_device *dev, unsigned int pages)
{
	if (atomic_add_return(pages, &dev->pieces_kept) <= KEPT_MAX)
		return true;
	atomic_sub(pages, &dev->pieces_kept);
	return false;
}

/* Returns what pregrant_tx_send() returns. Unless that is 1, nothing is granted. */
int pregrant_send_in_pieces(struct pregrant_queue *queue, struct sk_buff *skb, u32 csum, u32 gso_type, u32 gso_size)
{
	struct pregrant_walk walk = { .info = skb_shinfo(skb) };
	unsigned int pages = pregrant_skb_pages(skb), n, k;
	domid_t back = queue->dev->back_id;
	struct pregrant_page_piece piece;
	int sent;

	if (!pages)
		return -EMSGSIZE;
	if (!have_numbers(queue, pages))
		return -ENOSPC;
	/* An upper bound: see pregrant_skb_pages(). */
	if (!count_granted(queue->dev, pages))
		return -ENOSPC;
	for (n = 0; n < pages && pregrant_walk_next(&walk, &piece); n++) {
		grant_ref_t gref = queue->numbers[--queue->spare];

		gnttab_grant_foreign_access_ref(gref, back, xen_page_to_gfn(piece.page), 1);
		queue->granted[n] = (struct pregrant_granted_piece) {
			.gref = gref, .offset = piece.offset, .len = piece.len,
		};
	}
	atomic64_add(n, &pregrant_grants);
	atomic_sub(pages - n, &queue->dev->pieces_kept);
	sent = pregrant_tx_send_pieces(queue->tx, skb, skb->len, csum, gso_type, gso_size, queue->granted, n, queue->ids);
	if (sent != 1) {
		end_grants(queue, n);
		return sent;
	}
	*tx_cb(skb) = (struct pregrant_tx_cb) { .left = n, .counts = true };
	for (k = 0; k < n; k++)
		queue->pieces[queue->ids[k]] = (struct pregrant_piece) { .skb = skb, .gref = queue->granted[k].gref };
	queue->pieces_out += n;
	queue->tx_in_pieces++;
	return 1;
}

/* Frees an id. Returns its skb if that was the last of its pages. */
static struct sk_buff *take_piece(struct pregrant_queue *queue, struct pregrant_piece *piece)
{
	struct sk_buff *skb = piece->skb;

	piece->skb = NULL;
	queue->pieces_out--;
	return --tx_cb(skb)->left ? NULL : skb;
}

/* Called after pregrant_tx_reclaim(): ends the grants of fragments with a response. */
void pregrant_pieces_answered(struct pregrant_queue *queue, int budget, unsigned int *packets, unsigned int *bytes)
{
	unsigned int n, k, ended = 0;

	while ((n = pregrant_tx_answered_pieces(queue->tx, queue->ids, ARRAY_SIZE(queue->ids)))) {
		for (k = 0; k < n; k++) {
			struct pregrant_piece *piece = &queue->pieces[queue->ids[k] & queue->kept_mask];
			struct sk_buff *skb;

			if (WARN_ON_ONCE(!piece->skb))
				continue;
			/* The response means that the backend has unmapped the page. */
			ended += end_grant(queue, piece->gref);
			skb = take_piece(queue, piece);
			if (!skb)
				continue;
			if (tx_cb(skb)->counts) {
				++*packets;
				*bytes += skb->len;
			}
			napi_consume_skb(skb, budget);
		}
	}
	note_ended(queue->dev, ended);
}

/* The backend may never respond: uncharges the sockets and BQL. */
void pregrant_pieces_orphan(struct pregrant_queue *queue)
{
	u32 id;

	for (id = 0; queue->pieces_out && id <= queue->kept_mask; id++) {
		struct sk_buff *skb = queue->pieces[id].skb;

		if (skb) {
			skb_orphan(skb);
			tx_cb(skb)->counts = false;
		}
	}
}

/* Called when the ring is gone: ends all grants. */
void pregrant_pieces_drop(struct pregrant_queue *queue)
{
	unsigned int ended = 0;
	u32 id;

	for (id = 0; queue->pieces_out && id <= queue->kept_mask; id++) {
		struct pregrant_piece *piece = &queue->pieces[id];
		struct sk_buff *skb;

		if (!piece->skb)
			continue;
		ended += end_or_leave(piece->gref);
		skb = take_piece(queue, piece);
		if (skb)
			dev_kfree_skb_any(skb);
	}
	note_ended(queue->dev, ended);
	give_numbers_back(queue);
}
