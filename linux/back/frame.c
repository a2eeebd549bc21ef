// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * skbs: of frames that the guest sent, and for it. Each frame is copied between the skb and the
 * core's burst.
 */
#include <linux/etherdevice.h>

#include "driver.h"

/* Of longer frames HEAD bytes, with all headers, are in the linear part, the rest is in pages. */
#define LINEAR_MAX 2048
#define HEAD 256
/* The largest order of these pages, if the kernel has some. */
#define ORDER 3

static struct sk_buff *skb_with(const void *bytes, size_t len)
{
	size_t linear = len <= LINEAR_MAX ? len : HEAD;
	struct sk_buff *skb;
	int err;

	/* Without RETRY_MAYFAIL the thread would wait here for ever, and remove for the thread. */
	skb = alloc_skb_with_frags(NET_SKB_PAD + NET_IP_ALIGN + linear, len - linear, ORDER, &err,
				   GFP_KERNEL | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
	if (!skb)
		return NULL;
	skb_reserve(skb, NET_SKB_PAD + NET_IP_ALIGN);
	if (linear == len) {
		skb_put_data(skb, bytes, len);
		return skb;
	}
	skb_put(skb, linear);
	skb->data_len = len - linear;
	skb->len = len;
	if (!skb_store_bits(skb, 0, bytes, len))
		return skb;
	kfree_skb(skb);
	return NULL;
}

void pk_frame_from_guest(struct pregrant_queue *queue, const void *bytes, size_t len, u32 csum, u32 gso_type,
			 u32 gso_size)
{
	struct sk_buff *skb = len >= ETH_HLEN ? skb_with(bytes, len) : NULL;

	if (!skb) {
		queue->rx_dropped++;
		return;
	}
	/* The core makes the checksum of a large segment blank. */
	if (csum & PREGRANT_CSUM_BLANK || gso_type)
		skb->ip_summed = CHECKSUM_PARTIAL;
	else if (csum & PREGRANT_CSUM_OK)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	skb_record_rx_queue(skb, queue->index);
	skb->protocol = eth_type_trans(skb, queue->dev->netdev);
	skb_reset_network_header(skb);
	/* Sets csum_start and csum_offset, for a device that forwards the frame. */
	if (skb->ip_summed == CHECKSUM_PARTIAL && skb_checksum_setup(skb, false))
		goto drop;
	if (gso_type && !pregrant_set_gso(skb, gso_type, gso_size))
		goto drop;
	queue->rx_packets++;
	queue->rx_bytes += len;
	list_add_tail(&skb->list, &queue->received);
	return;
drop:
	queue->rx_dropped++;
	kfree_skb(skb);
}

/* Called by the thread, between polls: the stack may send frames to any vif in response. */
void pregrant_deliver(struct pregrant_queue *queue)
{
	if (list_empty(&queue->received))
		return;
	local_bh_disable();
	netif_receive_skb_list(&queue->received);
	local_bh_enable();
	INIT_LIST_HEAD(&queue->received);
}

/* Takes what a burst may need: so the lock, and the look at the sender, are not for each skb. */
static void take_some(struct pregrant_queue *queue)
{
	struct sk_buff *skb;
	unsigned long flags;
	size_t bytes = 0;

	/* What comes now wakes the thread. */
	if (skb_queue_empty_lockless(&queue->skbs))
		goto out;
	spin_lock_irqsave(&queue->skbs.lock, flags);
	while (skb_queue_len(&queue->taken) < PREGRANT_TAKE_FRAMES && bytes < PREGRANT_TAKE_BYTES) {
		skb = __skb_dequeue(&queue->skbs);
		if (!skb)
			break;
		bytes += skb->len;
		__skb_queue_tail(&queue->taken, skb);
	}
	queue->bytes -= bytes;
	spin_unlock_irqrestore(&queue->skbs.lock, flags);
out:
	pregrant_queue_wake_sender(queue);
}

struct sk_buff *pk_frame_next(struct pregrant_queue *queue, struct pregrant_frame *frame)
{
	struct sk_buff *skb;

	if (skb_queue_empty(&queue->taken))
		take_some(queue);
	skb = __skb_dequeue(&queue->taken);
	if (!skb)
		return NULL;
	frame->len = skb->len;
	if (skb->ip_summed == CHECKSUM_PARTIAL)
		frame->csum = PREGRANT_CSUM_BLANK;
	else if (skb->ip_summed == CHECKSUM_UNNECESSARY)
		frame->csum = PREGRANT_CSUM_OK;
	if (skb_is_gso(skb)) {
		frame->gso_size = skb_shinfo(skb)->gso_size;
		frame->gso_type = skb_shinfo(skb)->gso_type & SKB_GSO_TCPV6 ? PREGRANT_GSO_TCPV6 : PREGRANT_GSO_TCPV4;
	}
	return skb;
}

void pk_frame_done(struct pregrant_queue *queue, struct sk_buff *skb, void *to)
{
	if (!to) {
		queue->tx_dropped++;
		kfree_skb(skb);
		return;
	}
	/* Cannot fail: the skb has these bytes. Stale ones must not go out. */
	if (WARN_ON_ONCE(skb_copy_bits(skb, 0, to, skb->len)))
		memset(to, 0, skb->len);
	queue->tx_packets++;
	queue->tx_bytes += skb->len;
	consume_skb(skb);
}

u32 pk_frames_waiting(struct pregrant_queue *queue)
{
	return skb_queue_len_lockless(&queue->skbs) + skb_queue_len(&queue->taken);
}
