/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* The end of each driver's driver.h: what they have in common, over structures of their own. */
#ifndef PREGRANT_BOTH_H
#define PREGRANT_BOTH_H

static inline struct netdev_queue *txq_of(struct pregrant_queue *queue)
{
	return netdev_get_tx_queue(queue->dev->netdev, queue->index);
}

static inline struct xenbus_transaction pregrant_transaction(u32 id)
{
	return (struct xenbus_transaction) { .id = id };
}

/* checksum.c */
netdev_features_t pregrant_features_check(struct sk_buff *skb, struct net_device *netdev,
					  netdev_features_t features);
bool pregrant_set_gso(struct sk_buff *skb, u32 type, u32 size);

#endif
