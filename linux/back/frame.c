// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * skbs: of frames that the guest sent, and for it. Each frame is copied between the skb and the
 * core's burst.
 */
#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <linux/tcp.h>
#include <linux/version.h>

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
	skb_put(skb, linear);
	skb->data_len = len - linear;
	skb->len = len;
	if (!skb_store_bits(skb, 0, bytes, len))
		return skb;
	kfree_skb(skb);
	return NULL;
}

/*
 * The guest wrote the headers, so the rules are those of <linux/virtio_net.h> for such frames: a
 * large segment is TCP of the type that it claims, GSO_BY_FRAGS is no size, and what fits one
 * segment is not large. False: the frame must be dropped.
 */
static bool set_gso(struct sk_buff *skb, u32 type, u32 size)
{
	bool v6 = type == PREGRANT_GSO_TCPV6;
	struct skb_shared_info *info = skb_shinfo(skb);

	if (skb->protocol != (v6 ? htons(ETH_P_IPV6) : htons(ETH_P_IP)) ||
	    skb->csum_offset != offsetof(struct tcphdr, check) || size == GSO_BY_FRAGS)
		return false;
	if (skb->len <= skb_transport_offset(skb) + sizeof(struct tcphdr) + size)
		return true;
	info->gso_size = size;
	/* Let the stack validate the headers, and count segments. */
	info->gso_type = (v6 ? SKB_GSO_TCPV6 : SKB_GSO_TCPV4) | SKB_GSO_DODGY;
	info->gso_segs = 0;
	return true;
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
	skb->dev = queue->dev->netdev;
	skb_record_rx_queue(skb, queue->index);
	skb->protocol = eth_type_trans(skb, skb->dev);
	skb_reset_network_header(skb);
	/* Sets csum_start and csum_offset, for a device that forwards the frame. */
	if (skb->ip_summed == CHECKSUM_PARTIAL && skb_checksum_setup(skb, false))
		goto drop;
	if (gso_type && !set_gso(skb, gso_type, gso_size))
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

struct sk_buff *pk_frame_next(struct pregrant_queue *queue, struct pregrant_frame *frame)
{
	struct sk_buff *skb;
	unsigned long flags;

	spin_lock_irqsave(&queue->skbs.lock, flags);
	skb = __skb_dequeue(&queue->skbs);
	if (skb)
		queue->bytes -= skb->len;
	spin_unlock_irqrestore(&queue->skbs.lock, flags);
	if (!skb) {
		pregrant_queue_wake_sender(queue);
		return NULL;
	}
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

void pk_skb_read(struct sk_buff *skb, size_t at, void *to, size_t len)
{
	/* Cannot fail: the core reads no more than skb->len. Stale bytes must not go out. */
	if (WARN_ON_ONCE(skb_copy_bits(skb, at, to, len)))
		memset(to, 0, len);
}

void pk_frame_done(struct pregrant_queue *queue, struct sk_buff *skb, bool sent)
{
	if (sent) {
		queue->tx_packets++;
		queue->tx_bytes += skb->len;
		consume_skb(skb);
	} else {
		queue->tx_dropped++;
		kfree_skb(skb);
	}
	pregrant_queue_wake_sender(queue);
}

u32 pk_frames_waiting(struct pregrant_queue *queue)
{
	return skb_queue_len_lockless(&queue->skbs);
}
