// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Frames whose payload stays where it is: the pages of an skb's fragments are granted for the
 * frame, for reading.
 *
 *   skb: headers    --copied--------------------------> the back
 *        fragments  --a grant and a request a page----> the back
 *        answers    --> the grants end --> with the last one the skb is freed
 *
 * A page that the back still has then stays allocated until its grant ends: the kernel's grant table
 * sees to it. Such a back gets no more of them while it is connected. All is under the netdev
 * queue's lock, or while the queue is paused.
 */
#include <linux/etherdevice.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <xen/grant_table.h>
#include <xen/page.h>

#include "driver.h"

/* In the control buffer of an skb that is on its way. */
struct pregrant_tx_cb {
	unsigned int left; /* pieces without an answer */
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

void pregrant_pieces_free(struct pregrant_queue *queue)
{
	kvfree(queue->pieces);
}

/* It has just been lent. */
void pregrant_pieces_begin(struct pregrant_queue *queue)
{
	u32 ids = pregrant_tx_piece_ids(queue->tx);

	queue->lends = ids && ids <= queue->kept_mask + 1;
}

/* An skb that others send, too, has one control buffer for all of them. */
bool pregrant_goes_in_pieces(const struct pregrant_queue *queue, const struct sk_buff *skb)
{
	return queue->lends && skb->len >= queue->dev->lend_from && skb_is_nonlinear(skb) && !skb_shared(skb) &&
	       skb_headlen(skb) >= ETH_HLEN && skb_headlen(skb) <= PAGE_SIZE;
}

static void end_grant(struct pregrant_queue *queue, grant_ref_t gref)
{
	if (likely(gnttab_try_end_foreign_access(gref))) {
		atomic64_inc(&pregrant_grants_ended);
		return;
	}
	atomic64_inc(&pregrant_grants_deferred);
	queue->lends = false;
	/* It takes a reference to the page until the grant has ended. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 19, 0)
	gnttab_end_foreign_access(gref, NULL);
#else
	gnttab_end_foreign_access(gref, 1, 0);
#endif
}

/* As pregrant_tx_send. Not 1: nothing is lent. */
int pregrant_send_in_pieces(struct pregrant_queue *queue, struct sk_buff *skb, u32 csum, u32 gso_type, u32 gso_size)
{
	struct pregrant_granted_piece granted[PREGRANT_PIECES_MAX];
	struct pregrant_page_piece at[PREGRANT_PIECES_MAX];
	unsigned int n = pregrant_skb_pieces(skb, at), k;
	domid_t back = queue->dev->xbdev->otherend_id;
	u16 ids[PREGRANT_PIECES_MAX];
	grant_ref_t head;
	int sent;

	if (!n)
		return -EMSGSIZE;
	if (gnttab_alloc_grant_references(n, &head))
		return -ENOSPC;
	for (k = 0; k < n; k++) {
		int gref = gnttab_claim_grant_reference(&head);

		gnttab_grant_foreign_access_ref(gref, back, xen_page_to_gfn(at[k].page), 1);
		granted[k] = (struct pregrant_granted_piece) { .gref = gref, .offset = at[k].offset, .len = at[k].len };
	}
	atomic64_add(n, &pregrant_grants);
	sent = pregrant_tx_send_pieces(queue->tx, skb, skb->len, csum, gso_type, gso_size, granted, n, ids);
	if (sent != 1) {
		for (k = 0; k < n; k++)
			end_grant(queue, granted[k].gref);
		return sent;
	}
	tx_cb(skb)->left = n;
	for (k = 0; k < n; k++)
		queue->pieces[ids[k]] = (struct pregrant_piece) { .skb = skb, .gref = granted[k].gref };
	queue->pieces_out += n;
	queue->tx_in_pieces++;
	return 1;
}

/* Its skb, where it was the last piece of it. */
static struct sk_buff *end_piece(struct pregrant_queue *queue, struct pregrant_piece *piece)
{
	struct sk_buff *skb = piece->skb;

	end_grant(queue, piece->gref);
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
		/* Dropped meanwhile, it has none. */
		struct sk_buff *skb = piece->skb ? end_piece(queue, piece) : NULL;

		if (!skb)
			continue;
		++*packets;
		*bytes += skb->len;
		napi_consume_skb(skb, budget);
	}
}

/* Of what is on its way: a back that goes on finds no grant, and answers that it does not. */
void pregrant_pieces_drop(struct pregrant_queue *queue)
{
	u32 id;

	for (id = 0; queue->pieces_out && id <= queue->kept_mask; id++) {
		struct pregrant_piece *piece = &queue->pieces[id];

		if (piece->skb)
			dev_kfree_skb_any(end_piece(queue, piece));
	}
}
