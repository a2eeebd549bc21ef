// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* The interface of a vif: it receives what the guest sends. */
#include <linux/etherdevice.h>
#include <linux/version.h>

#include "driver.h"

#define FEATURES (NETIF_F_SG | NETIF_F_IP_CSUM | NETIF_F_IPV6_CSUM | NETIF_F_TSO | NETIF_F_TSO6)

static int pregrant_open(struct net_device *netdev)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	netif_tx_start_all_queues(netdev);
	/* A bridge forwards once this has returned: until then the guest's frames wait. */
	set_bit(PREGRANT_EV_UP, &dev->events);
	pregrant_wake_control(dev);
	return 0;
}

static int pregrant_stop(struct net_device *netdev)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	WRITE_ONCE(dev->is_up, false);
	netif_tx_disable(netdev);
	return 0;
}

static void pregrant_stats(struct net_device *netdev, struct rtnl_link_stats64 *to)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	unsigned int k;

	for (k = 0; k < dev->max_queues; k++) {
		const struct pregrant_queue *queue = &dev->queues[k];

		to->tx_packets += READ_ONCE(queue->tx_packets);
		to->tx_bytes += READ_ONCE(queue->tx_bytes);
		to->tx_dropped += READ_ONCE(queue->tx_dropped);
		to->rx_packets += READ_ONCE(queue->rx_packets);
		to->rx_bytes += READ_ONCE(queue->rx_bytes);
		to->rx_dropped += READ_ONCE(queue->rx_dropped);
	}
}

/* Keeps only offloads that the guest accepts; the stack does the others in software. */
static netdev_features_t pregrant_fix_features(struct net_device *netdev, netdev_features_t features)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	u32 takes = READ_ONCE(dev->takes);

	if (!(takes & PREGRANT_GUEST_SG))
		features &= ~NETIF_F_SG;
	if (!(takes & PREGRANT_GUEST_CSUM))
		features &= ~NETIF_F_IP_CSUM;
	if (!(takes & PREGRANT_GUEST_IPV6_CSUM))
		features &= ~NETIF_F_IPV6_CSUM;
	if (!(takes & PREGRANT_GUEST_GSO_TCPV4))
		features &= ~NETIF_F_TSO;
	if (!(takes & PREGRANT_GUEST_GSO_TCPV6))
		features &= ~NETIF_F_TSO6;
	return features;
}

/* A guest without feature-sg takes frames of one slot only. */
static int pregrant_change_mtu(struct net_device *netdev, int mtu)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	u32 limit = READ_ONCE(dev->mtu_limit);

	if (limit && mtu > limit)
		return -EINVAL;
	WRITE_ONCE(netdev->mtu, mtu);
	return 0;
}

/* The guest may have said, on its control ring, which frame goes by which queue. */
static u16 pregrant_select_queue(struct net_device *netdev, struct sk_buff *skb, struct net_device *sb_dev)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	const struct pregrant_steer *by;
	u32 queue;

	rcu_read_lock();
	by = rcu_dereference(dev->steering);
	queue = by ? pregrant_back_queue_of(by, skb->data, skb_headlen(skb)) : netdev_pick_tx(netdev, skb, sb_dev);
	rcu_read_unlock();
	return queue < netdev->real_num_tx_queues ? queue : 0;
}

static const struct net_device_ops pregrant_ops = {
	.ndo_open = pregrant_open,
	.ndo_stop = pregrant_stop,
	.ndo_start_xmit = pregrant_xmit,
	.ndo_select_queue = pregrant_select_queue,
	.ndo_get_stats64 = pregrant_stats,
	.ndo_features_check = pregrant_features_check,
	.ndo_fix_features = pregrant_fix_features,
	.ndo_change_mtu = pregrant_change_mtu,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

struct net_device *pregrant_netdev_new(struct xenbus_device *xbdev, unsigned int handle, unsigned int max_queues)
{
	/* The highest address, so that a bridge does not take it for its own. */
	static const u8 mac[ETH_ALEN] = { 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff };
	struct net_device *netdev;
	char name[IFNAMSIZ];

	snprintf(name, sizeof(name), "vif%u.%u", xbdev->otherend_id, handle);
	netdev = alloc_netdev_mqs(sizeof(struct pregrant_device), name, NET_NAME_UNKNOWN, ether_setup, max_queues,
				  max_queues);
	if (!netdev)
		return NULL;
	eth_hw_addr_set(netdev, mac);
	netdev->netdev_ops = &pregrant_ops;
	netdev->ethtool_ops = &pregrant_ethtool;
	netdev->hw_features = FEATURES;
	netdev->features = FEATURES | NETIF_F_RXCSUM;
	netdev->min_mtu = ETH_MIN_MTU;
	netdev->max_mtu = PREGRANT_MTU_MAX;
	/* Not the 1000 of ether_setup(): each has up to 64 KiB, and waits as the guest likes. */
	netdev->tx_queue_len = PREGRANT_QDISC_FRAMES;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 19, 0)
	netif_set_tso_max_size(netdev, PREGRANT_FRAME_MAX);
#else
	netif_set_gso_max_size(netdev, PREGRANT_FRAME_MAX);
#endif
	/* Each skb waits, and is changed: pktgen may not send one several times at once. */
	netdev->priv_flags &= ~IFF_TX_SKB_SHARING;
	SET_NETDEV_DEV(netdev, &xbdev->dev);
	netif_carrier_off(netdev);
	return netdev;
}
