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
 * answer stays allocated until it lets go: the kernel's grant table sees to it, and such a back
 * gets no more of them. All is under the netdev queue's lock, or while the queue is paused.
 */
#include <linux/etherdevice.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <xen/grant_table.h>
#include <xen/page.h>

#include "driver.h"

/*
 * Pages that a device may leave to the kernel when rings are over: a back that keeps them gets no
 * more.
 */
#define KEPT_MAX 256

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
	return queue->pieces ? 0 : -ENOMEM;
}

static void give_numbers_back(struct pregrant_queue *queue)
{
	if (queue->spare)
		gnttab_free_grant_references(queue->numbers);
	queue->spare = 0;
}

void pregrant_pieces_free(struct pregrant_queue *queue)
{
	give_numbers_back(queue);
	kvfree(queue->pieces);
}

/* It has just been lent. Where its ring is another one, the one of before is over. */
void pregrant_pieces_begin(struct pregrant_queue *queue)
{
	u32 ids = pregrant_tx_piece_ids(queue->tx);

	if (!pregrant_tx_pieces_out(queue->tx))
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

	if (queue->spare >= n)
		return true;
	n -= queue->spare;
	if (gnttab_alloc_grant_references(n, &more))
		return false;
	if (!queue->spare) {
		queue->numbers = more;
		queue->spare = n;
		return true;
	}
	for (; n; n--, queue->spare++)
		gnttab_release_grant_reference(&queue->numbers, gnttab_claim_grant_reference(&more));
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

/*
 * False: the back has the page still. Where it was to have let go, the kernel complains: once,
 * since such a back gets no more.
 */
static bool end_grant(struct pregrant_queue *queue, grant_ref_t gref, bool has_let_go)
{
	if (has_let_go) {
		if (!READ_ONCE(queue->dev->lends_none) && likely(has_ended(gref))) {
			gnttab_release_grant_reference(&queue->numbers, gref);
			queue->spare++;
			atomic64_inc(&pregrant_grants_ended);
			return true;
		}
		/* Perhaps another queue saw it first: each stops itself. */
		WRITE_ONCE(queue->dev->lends_none, true);
		WRITE_ONCE(queue->lends, false);
	}
	if (gnttab_try_end_foreign_access(gref)) {
		atomic64_inc(&pregrant_grants_ended);
		return true;
	}
	atomic64_inc(&pregrant_grants_deferred);
	/* It takes a reference to the page until the grant has ended. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 19, 0)
	gnttab_end_foreign_access(gref, NULL);
#else
	gnttab_end_foreign_access(gref, 1, 0);
#endif
	return false;
}

/* As pregrant_tx_send. Not 1: nothing is lent. */
int pregrant_send_in_pieces(struct pregrant_queue *queue, struct sk_buff *skb, u32 csum, u32 gso_type, u32 gso_size)
{
	struct pregrant_granted_piece granted[PREGRANT_PIECES_MAX];
	struct pregrant_page_piece at[PREGRANT_PIECES_MAX];
	unsigned int n = pregrant_skb_pieces(skb, at), k;
	domid_t back = queue->dev->xbdev->otherend_id;
	u16 ids[PREGRANT_PIECES_MAX];
	int sent;

	if (!n)
		return -EMSGSIZE;
	if (!have_numbers(queue, n))
		return -ENOSPC;
	queue->spare -= n;
	for (k = 0; k < n; k++) {
		int gref = gnttab_claim_grant_reference(&queue->numbers);

		gnttab_grant_foreign_access_ref(gref, back, xen_page_to_gfn(at[k].page), 1);
		granted[k] = (struct pregrant_granted_piece) { .gref = gref, .offset = at[k].offset, .len = at[k].len };
	}
	atomic64_add(n, &pregrant_grants);
	sent = pregrant_tx_send_pieces(queue->tx, skb, skb->len, csum, gso_type, gso_size, granted, n, ids);
	if (sent != 1) {
		for (k = 0; k < n; k++)
			end_grant(queue, granted[k].gref, true);
		return sent;
	}
	*tx_cb(skb) = (struct pregrant_tx_cb) { .left = n, .counts = true };
	for (k = 0; k < n; k++)
		queue->pieces[ids[k]] = (struct pregrant_piece) { .skb = skb, .gref = granted[k].gref };
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
	int id;

	while ((id = pregrant_tx_answered_piece(queue->tx)) >= 0) {
		struct pregrant_piece *piece = &queue->pieces[id & queue->kept_mask];
		struct sk_buff *skb;

		if (WARN_ON_ONCE(!piece->skb))
			continue;
		/* A back that has answered has let go. */
		end_grant(queue, piece->gref, true);
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
	struct pregrant_device *dev = queue->dev;
	u32 id;

	for (id = 0; queue->pieces_out && id <= queue->kept_mask; id++) {
		struct pregrant_piece *piece = &queue->pieces[id];
		struct sk_buff *skb;

		if (!piece->skb)
			continue;
		if (!end_grant(queue, piece->gref, false) && ++dev->pieces_kept >= KEPT_MAX)
			WRITE_ONCE(dev->lends_none, true);
		skb = take_piece(queue, piece);
		if (skb)
			dev_kfree_skb_any(skb);
	}
	give_numbers_back(queue);
}
