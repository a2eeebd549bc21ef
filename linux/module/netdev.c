// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* net_device_ops. */
#include <linux/etherdevice.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <linux/version.h>
#if __has_include(<linux/hex.h>)
#include <linux/hex.h> /* for mac_pton, which <linux/kernel.h> declared before */
#endif

#include "driver.h"

#define FEATURES (NETIF_F_SG | NETIF_F_IP_CSUM | NETIF_F_IPV6_CSUM | NETIF_F_TSO | NETIF_F_TSO6 | NETIF_F_RXCSUM)

static int pregrant_open(struct net_device *netdev)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	mutex_lock(&dev->queues_lock);
	dev->open = true;
	netif_tx_stop_all_queues(netdev); /* stopped until connected */
	pregrant_resume(dev);
	mutex_unlock(&dev->queues_lock);
	return 0;
}

static int pregrant_stop(struct net_device *netdev)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	mutex_lock(&dev->queues_lock);
	pregrant_pause_and_drop(dev);
	dev->open = false;
	mutex_unlock(&dev->queues_lock);
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

/* Keeps only offloads that the backend accepts; the stack does the others in software. */
static netdev_features_t pregrant_fix_features(struct net_device *netdev, netdev_features_t features)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	u32 takes = READ_ONCE(dev->queues_up) ? READ_ONCE(dev->takes) : 0;

	if (!(takes & PREGRANT_TAKES_IPV6_CSUM))
		features &= ~(NETIF_F_IPV6_CSUM | NETIF_F_TSO6);
	if (!(takes & PREGRANT_TAKES_GSO))
		features &= ~(NETIF_F_TSO | NETIF_F_TSO6);
	return features;
}

/* Multicast requests go over queue 0. */
static bool ask_multicast(struct net_device *netdev, const unsigned char *mac, bool wanted)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	return pregrant_queue_multicast(&dev->queues[0], mac, wanted);
}

static int add_multicast(struct net_device *netdev, const unsigned char *mac)
{
	return ask_multicast(netdev, mac, true) ? 0 : -EAGAIN;
}

static int remove_multicast(struct net_device *netdev, const unsigned char *mac)
{
	ask_multicast(netdev, mac, false);
	return 0;
}

static int forget_multicast(struct net_device *netdev, const unsigned char *mac)
{
	return 0;
}

/* Asks only a backend that offered to filter: to others a request may look like a fault. */
static void pregrant_set_rx_mode(struct net_device *netdev)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	if (READ_ONCE(dev->takes) & PREGRANT_TAKES_MULTICAST)
		__dev_mc_sync(netdev, add_multicast, remove_multicast);
}

/*
 * Asks the backend for multicast addresses. `all`: it is a new backend, which knows none; else only
 * those addresses are asked for that it had no room for.
 */
void pregrant_multicast(struct pregrant_device *dev, bool all)
{
	if (!dev->settings.multicast)
		return;
	netif_addr_lock_bh(dev->netdev);
	if (all)
		__dev_mc_unsync(dev->netdev, forget_multicast);
	pregrant_set_rx_mode(dev->netdev);
	netif_addr_unlock_bh(dev->netdev);
}

/* Not every backend accepts frames of several slots, and XDP only sees frames within a page. */
static int pregrant_change_mtu(struct net_device *netdev, int mtu)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	if (mtu > ETH_DATA_LEN && READ_ONCE(dev->queues_up) && !(READ_ONCE(dev->takes) & PREGRANT_TAKES_SG))
		return -EINVAL;
	if (mtu > PREGRANT_XDP_MTU_MAX && rtnl_dereference(dev->program))
		return -EINVAL;
	netdev->mtu = mtu;
	return 0;
}

static const struct net_device_ops pregrant_ops = {
	.ndo_open = pregrant_open,
	.ndo_stop = pregrant_stop,
	.ndo_start_xmit = pregrant_xmit,
	.ndo_get_stats64 = pregrant_stats,
	.ndo_features_check = pregrant_features_check,
	.ndo_fix_features = pregrant_fix_features,
	.ndo_set_rx_mode = pregrant_set_rx_mode,
	.ndo_change_mtu = pregrant_change_mtu,
	.ndo_bpf = pregrant_bpf,
	.ndo_xdp_xmit = pregrant_xdp_xmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

int pregrant_read_mac(struct xenbus_device *xbdev, u8 mac[ETH_ALEN])
{
	char *text = xenbus_read(XBT_NIL, xbdev->nodename, "mac", NULL);
	bool good;

	if (IS_ERR(text))
		return PTR_ERR(text);
	good = mac_pton(text, mac) && is_valid_ether_addr(mac);
	kfree(text);
	return good ? 0 : -EINVAL;
}

static void set_address(struct net_device *netdev, const u8 mac[ETH_ALEN])
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 15, 0)
	eth_hw_addr_set(netdev, mac);
#else
	ether_addr_copy(netdev->dev_addr, mac);
#endif
}

struct net_device *pregrant_netdev_new(struct xenbus_device *xbdev, const u8 mac[ETH_ALEN], unsigned int max_queues)
{
	struct net_device *netdev = alloc_etherdev_mq(sizeof(struct pregrant_device), max_queues);

	if (!netdev)
		return NULL;
	set_address(netdev, mac);
	netdev->netdev_ops = &pregrant_ops;
	netdev->ethtool_ops = &pregrant_ethtool;
	/* Without RXCSUM, which users cannot switch off: the backend flags each frame. */
	netdev->hw_features = FEATURES & ~NETIF_F_RXCSUM;
	netdev->features = FEATURES;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	netdev->xdp_features = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT | NETDEV_XDP_ACT_NDO_XMIT;
#endif
	netdev->min_mtu = ETH_MIN_MTU;
	netdev->max_mtu = PREGRANT_MTU_MAX;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 19, 0)
	netif_set_tso_max_size(netdev, PREGRANT_FRAME_MAX);
#else
	netif_set_gso_max_size(netdev, PREGRANT_FRAME_MAX);
#endif
	SET_NETDEV_DEV(netdev, &xbdev->dev);
	netif_carrier_off(netdev);
	return netdev;
}

void pregrant_netdev_free(struct pregrant_device *dev)
{
	unsigned int k;

	pregrant_shrinker_end(dev);
	pregrant_backend_leave(dev);
	/* An event may have queued it again. */
	cancel_delayed_work_sync(&dev->work);
	for (k = 0; k < dev->max_queues; k++)
		pregrant_queue_free(&dev->queues[k]);
	kvfree(dev->queues);
	free_netdev(dev->netdev);
}
