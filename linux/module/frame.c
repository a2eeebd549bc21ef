// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* Bytes of skbs: the core copies a frame once, between an skb and what is granted. */
#include <linux/etherdevice.h>
#include <linux/if_ether.h>

#include "driver.h"

void pk_skb_read(struct sk_buff *skb, size_t at, void *to, size_t len)
{
	/* It cannot fail: the core asks for no more than the skb said it has. */
	if (skb_copy_bits(skb, at, to, len))
		memset(to, 0, len);
}

void *pk_skb_new(void *to, size_t len, u32 csum, u32 gso_type, u32 gso_size)
{
	struct pregrant_received *received = to;
	struct sk_buff *skb = NULL;

	if (len >= ETH_HLEN)
		skb = __napi_alloc_skb(received->napi, len, GFP_ATOMIC | __GFP_NOWARN);
	if (!skb) {
		received->dropped++;
		return NULL;
	}
	if (csum & PREGRANT_CSUM_BLANK)
		skb->ip_summed = CHECKSUM_PARTIAL;
	else if (csum & PREGRANT_CSUM_OK)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	if (gso_type) {
		struct skb_shared_info *info = skb_shinfo(skb);

		info->gso_size = gso_size;
		info->gso_type = gso_type == PREGRANT_GSO_TCPV6 ? SKB_GSO_TCPV6 : SKB_GSO_TCPV4;
		/* Its headers are whatever the back wrote: the stack looks, and counts its segments. */
		info->gso_type |= SKB_GSO_DODGY;
		info->gso_segs = 0;
	}
	__skb_queue_tail(&received->skbs, skb);
	return __skb_put(skb, len);
}

/* Outside of any lock: the stack may answer a frame by sending one. */
void pregrant_deliver(struct pregrant_queue *queue, struct pregrant_received *received)
{
	struct sk_buff *skb;

	queue->rx_dropped += received->dropped;
	while ((skb = __skb_dequeue(&received->skbs))) {
		queue->rx_packets++;
		queue->rx_bytes += skb->len;
		skb_record_rx_queue(skb, queue->index);
		skb->protocol = eth_type_trans(skb, queue->dev->netdev);
		skb_reset_network_header(skb);
		/* Where the sum is to be, for whoever sends the frame on. */
		if (skb->ip_summed == CHECKSUM_PARTIAL && skb_checksum_setup(skb, false)) {
			queue->rx_dropped++;
			dev_kfree_skb_any(skb);
			continue;
		}
		napi_gro_receive(&queue->napi, skb);
	}
}
