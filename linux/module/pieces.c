// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Frames whose payload stays where it is: the pages of an skb's fragments are granted for the
 * frame, for reading.
 *
 *   skb: headers    --copied--------------------------> the back
 *        fragments  --a grant and a request a page----> the back
 *        answers    --> the grants end --> with the last one the skb is freed
 *
 * A grant ends when its request is answered, or when its ring is over: earlier its number could be
 * another page's while the request is still on the ring. Its number stays the queue's for the next
 * one, since to give it back takes the kernel's lock. A page that the back has in spite of its
 * answer stays allocated until it lets go: the kernel's grant table sees to it, and the device is
 * closed, as after any breach of the protocol. All is under the netdev queue's lock, or while the
 * queue is paused.
 *
 * Whole pages are granted, whatever else is in them: other sockets' bytes, a file's. So it is for a
 * back that is trusted, which the core decides at each connect (net/front/trust.rs): to another it
 * takes no pieces, and all is copied to pages of its own.
 */
#include <linux/etherdevice.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <xen/grant_table.h>
#include <xen/page.h>

#include "driver.h"

/*
 * Pages that a device's back may have at a time, of frames that are under way, and of those before
 * that it keeps: it decides how long. Where there are more, frames are copied. As many as four
 * queues of one page have slots.
 */
#ifndef KEPT_MAX
#define KEPT_MAX 1024
#endif

/* Shorter frames are copied: one or two slots by themselves. */
#define LEND_FROM 4096

/* In the control buffer of an skb that is on its way. */
struct pregrant_tx_cb {
	unsigned int left; /* pieces without an answer */
	bool counts; /* in the queue's limit of bytes */
};

static struct pregrant_tx_cb *tx_cb(struct sk_buff *skb)
{
	return (struct pregrant_tx_cb *)skb->cb;
}

int pregrant_pieces_init(struct pregrant_queue *queue, u32 ids)
{
	queue->pieces = kvcalloc(ids, sizeof(*queue->pieces), GFP_KERNEL);
	/* Of all pieces on their way, and of a frame more. */
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

/* It has just been lent. Where its ring is another one, the one of before is over. */
void pregrant_pieces_begin(struct pregrant_queue *queue)
{
	u32 ids = pregrant_tx_piece_ids(queue->tx);

	if (queue->pieces_out && !pregrant_tx_pieces_out(queue->tx))
		pregrant_pieces_drop(queue);
	queue->may_lend = ids && ids <= queue->kept_mask + 1;
	pregrant_pieces_allow(queue);
}

/*
 * Unless it is asked for, not where the back has our pages mapped, or may soon: it would copy by
 * grants what it can read.
 */
void pregrant_pieces_allow(struct pregrant_queue *queue)
{
	const struct pregrant_device *dev = queue->dev;
	bool maps = READ_ONCE(dev->takes) & PREGRANT_TAKES_MAPPINGS;

	WRITE_ONCE(queue->lends, queue->may_lend && !READ_ONCE(dev->lends_none) && (dev->lend_from || !maps));
}

/* An skb that others send, too, has one control buffer for all of them. */
bool pregrant_goes_in_pieces(const struct pregrant_queue *queue, const struct sk_buff *skb)
{
	return READ_ONCE(queue->lends) && !READ_ONCE(queue->dev->lends_none) && skb->len >= (queue->dev->lend_from ?: LEND_FROM) &&
	       skb_is_nonlinear(skb) && !skb_shared(skb) && skb_headlen(skb) >= ETH_HLEN && skb_headlen(skb) <= PAGE_SIZE;
}

/* So many spare numbers. The queue keeps as many as it has had on their way at a time. */
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

/* Where the back may have the page still. False: it has, and the kernel waits for it. */
static bool end_or_leave(grant_ref_t gref)
{
	if (gnttab_try_end_foreign_access(gref))
		return true;
	atomic64_inc(&pregrant_grants_deferred);
	/* It takes a reference to the page until the grant has ended. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 19, 0)
	gnttab_end_foreign_access(gref, NULL);
#else
	gnttab_end_foreign_access(gref, 1, 0);
#endif
	return false;
}

static const char keeps[] = "a page of the guest's is still mapped after its answer";

/*
 * Where the back is to have let go; the number stays the queue's. If it has not the kernel
 * complains, once, and nothing more is lent; if it still has not the device is closed.
 */
static bool end_grant(struct pregrant_queue *queue, grant_ref_t gref)
{
	if (likely(!READ_ONCE(queue->dev->lends_none) && has_ended(gref))) {
		queue->numbers[queue->spare++] = gref;
		return true;
	}
	/* Perhaps another queue saw it first: each stops itself. */
	WRITE_ONCE(queue->dev->lends_none, true);
	WRITE_ONCE(queue->lends, false);
	if (end_or_leave(gref))
		return true;
	pk_fault(queue->dev, keeps, sizeof(keeps) - 1);
	pregrant_fail(queue->dev);
	return false;
}

/* Pages that the back has no more. */
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

/* So many pages more may be the back's. */
static bool count_lent(struct pregrant_device *dev, unsigned int pages)
{
	if (atomic_add_return(pages, &dev->pieces_kept) <= KEPT_MAX)
		return true;
	atomic_sub(pages, &dev->pieces_kept);
	return false;
}

/* As pregrant_tx_send. Not 1: nothing is lent. */
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
	/* At least as many as are lent: see pregrant_skb_pages. */
	if (!count_lent(queue->dev, pages))
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

/* Its skb, where it was the last piece of it. */
static struct sk_buff *take_piece(struct pregrant_queue *queue, struct pregrant_piece *piece)
{
	struct sk_buff *skb = piece->skb;

	piece->skb = NULL;
	queue->pieces_out--;
	return --tx_cb(skb)->left ? NULL : skb;
}

/* After answers were taken. */
void pregrant_pieces_answered(struct pregrant_queue *queue, int budget, unsigned int *packets, unsigned int *bytes)
{
	unsigned int n, k, ended = 0;

	while ((n = pregrant_tx_answered_pieces(queue->tx, queue->ids, ARRAY_SIZE(queue->ids)))) {
		for (k = 0; k < n; k++) {
			struct pregrant_piece *piece = &queue->pieces[queue->ids[k] & queue->kept_mask];
			struct sk_buff *skb;

			if (WARN_ON_ONCE(!piece->skb))
				continue;
			/* A back that has answered has let go. */
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

/* They may be on their way for long: no socket waits for them, and no limit counts them. */
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

/* Their ring is over. */
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
