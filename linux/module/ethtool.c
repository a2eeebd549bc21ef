// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* ethtool -i, -S, -l, -L and -g. */
#include <linux/ethtool.h>
#include <linux/string.h>
#include <linux/version.h>

#include "driver.h"

/* Counters of a queue, in the order of counters() in linux/core/src/halves.rs. */
static const char *const counters[PREGRANT_COUNTERS] = {
	"frames", "bytes", "staged", "data_ring", "granted", "persistent", "errors", "dropped", "events_sent",
};
static const char *const of_all[] = {
	"connects", "grants", "grants_ended", "grants_deferred", "atomic_allocations", "memory_refused",
	"spurious_events", "kept_pages", "tx_in_pieces",
	"tx_pages", "tx_pages_new", "tx_pages_in_64", "tx_pages_in_256", "tx_pages_in_1024", "tx_pages_in_4096", "tx_pages_in_16384",
	"rx_in_place", "rx_pool", "rx_pool_grown", "rx_pool_shrunk", "rx_pool_adds", "rx_pool_dels",
};
/* Sums over all queues, in the order of enum pregrant_verdict. */
static const char *const verdicts[PREGRANT_VERDICTS] = {
	"xdp_pass", "xdp_drop", "xdp_tx", "xdp_tx_buffers", "xdp_tx_full", "xdp_redirect", "xdp_aborted", "xdp_xmit",
};

static void drvinfo(struct net_device *netdev, struct ethtool_drvinfo *info)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	strscpy(info->driver, "pregrant", sizeof(info->driver));
	BUILD_BUG_ON(sizeof(info->fw_version) != sizeof(dev->used_path));
	mutex_lock(&dev->queues_lock);
	strscpy(info->fw_version,
		READ_ONCE(dev->state) == PREGRANT_BROKEN ? "none: the back broke protocol" :
		dev->queues_up ? dev->used_path : "none: not connected",
		sizeof(info->fw_version));
	mutex_unlock(&dev->queues_lock);
	if (dev->xbdev)
		strscpy(info->bus_info, dev_name(&dev->xbdev->dev), sizeof(info->bus_info));
}

static int sset_count(struct net_device *netdev, int set)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	return set == ETH_SS_STATS ? ARRAY_SIZE(of_all) + PREGRANT_VERDICTS + dev->max_queues * 2 * PREGRANT_COUNTERS : -EOPNOTSUPP;
}

static void strings(struct net_device *netdev, u32 set, u8 *to)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	unsigned int k, dir, i;

	if (set != ETH_SS_STATS)
		return;
	for (i = 0; i < ARRAY_SIZE(of_all); i++, to += ETH_GSTRING_LEN)
		strscpy(to, of_all[i], ETH_GSTRING_LEN);
	for (i = 0; i < PREGRANT_VERDICTS; i++, to += ETH_GSTRING_LEN)
		strscpy(to, verdicts[i], ETH_GSTRING_LEN);
	for (k = 0; k < dev->max_queues; k++)
		for (dir = 0; dir < 2; dir++)
			for (i = 0; i < PREGRANT_COUNTERS; i++, to += ETH_GSTRING_LEN)
				snprintf(to, ETH_GSTRING_LEN, "%s%u_%s", dir ? "rx" : "tx", k, counters[i]);
}

static void get_stats(struct net_device *netdev, struct ethtool_stats *stats, u64 *to)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	unsigned int k, i;

	*to++ = READ_ONCE(dev->connects);
	*to++ = atomic64_read(&pregrant_grants);
	*to++ = atomic64_read(&pregrant_grants_ended);
	*to++ = atomic64_read(&pregrant_grants_deferred);
	*to++ = atomic_read(&pregrant_atomic_allocations);
	*to++ = atomic_read(&pregrant_memory_refused);
	*to++ = atomic_read(&pregrant_spurious_events);
	*to++ = READ_ONCE(dev->kept_pages);
	for (k = 0, *to = 0; k < dev->max_queues; k++)
		*to += READ_ONCE(dev->queues[k].tx_in_pieces);
	to++;
	for (i = 0; i < PREGRANT_TX_PAGES_FIGURES; i++, to++)
		for (k = 0, *to = 0; k < dev->max_queues; k++)
			*to += pregrant_tx_pages_figure(dev->queues[k].tx_pages, i);
	for (k = 0, *to = 0; k < dev->max_queues; k++)
		*to += READ_ONCE(dev->queues[k].rx_in_place);
	to++;
	for (k = 0; k < PREGRANT_POOL_FIGURES; k++)
		*to++ = READ_ONCE(dev->pool[k]);
	for (i = 0; i < PREGRANT_VERDICTS; i++, to++)
		for (k = 0, *to = 0; k < dev->max_queues; k++)
			*to += READ_ONCE(dev->queues[k].xdp[i]);
	mutex_lock(&dev->queues_lock);
	for (k = 0; k < dev->max_queues; k++, to += 2 * PREGRANT_COUNTERS) {
		memset(to, 0, 2 * PREGRANT_COUNTERS * sizeof(*to));
		if (k >= dev->queues_up)
			continue;
		pregrant_queue_tx_counters(&dev->queues[k], to);
		for (i = 0; i < PREGRANT_COUNTERS; i++)
			to[PREGRANT_COUNTERS + i] = READ_ONCE(dev->queues[k].rx_counters[i]);
	}
	mutex_unlock(&dev->queues_lock);
}

static void get_channels(struct net_device *netdev, struct ethtool_channels *channels)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	channels->max_combined = dev->max_queues;
	channels->combined_count = READ_ONCE(dev->queues_up) ?: READ_ONCE(dev->settings.queues);
}

/* ethtool -L: the front reconnects with this many queues, unless it is BROKEN. */
static int set_channels(struct net_device *netdev, struct ethtool_channels *channels)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	if (!channels->combined_count || channels->rx_count || channels->tx_count || channels->other_count)
		return -EINVAL;
	if (READ_ONCE(dev->state) == PREGRANT_BROKEN)
		return -EIO;
	WRITE_ONCE(dev->restart_queues, channels->combined_count);
	pregrant_wake_control(dev);
	return 0;
}

/* ethtool -g: sizes of the connection's rings, or before that by the module parameter. */
static void ringparam(struct net_device *netdev, struct ethtool_ringparam *ring)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	ring->rx_max_pending = ring->tx_max_pending = PREGRANT_SLOTS << PREGRANT_ORDER_MAX;
	ring->rx_pending = ring->tx_pending = PREGRANT_SLOTS << dev->settings.ring_order;
	mutex_lock(&dev->queues_lock);
	if (dev->queues_up) {
		ring->tx_pending = dev->slots[0];
		ring->rx_pending = dev->slots[1];
	}
	mutex_unlock(&dev->queues_lock);
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 17, 0)
static void get_ringparam(struct net_device *netdev, struct ethtool_ringparam *ring,
			  struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *extack)
{
	ringparam(netdev, ring);
}
#else
static void get_ringparam(struct net_device *netdev, struct ethtool_ringparam *ring)
{
	ringparam(netdev, ring);
}
#endif

const struct ethtool_ops pregrant_ethtool = {
	.get_drvinfo = drvinfo,
	.get_link = ethtool_op_get_link,
	.get_sset_count = sset_count,
	.get_strings = strings,
	.get_ethtool_stats = get_stats,
	.get_channels = get_channels,
	.set_channels = set_channels,
	.get_ringparam = get_ringparam,
	.get_ts_info = ethtool_op_get_ts_info,
};
