// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* ethtool -i, -S and -l. In names of counters tx is what the guest sends, rx what it receives. */
#include <linux/ethtool.h>
#include <linux/string.h>

#include "driver.h"

/* Counters of a queue, in the order of of_direction() in linux/core/src/back/queue.rs. */
const char *const pregrant_queue_counters[PREGRANT_BACK_COUNTERS] = {
	"frames", "bytes", "grant_copies", "grant_maps", "errors", "dropped", "too_long", "expired", "batches",
	"events_sent", "by_staging", "by_data_ring", "by_gref_mapping", "by_persistent", "by_copy",
};
/*
 * In the order of pregrant_count_vif(). own_pages: those that the vif has mapped or may ask for;
 * guest_pages: that its guest has mapped; mapped_pages: all guests.
 */
const char *const pregrant_vif_counters[PREGRANT_VIF_COUNTERS] = {
	"connects", "own_pages", "guest_pages", "mapped_pages", "maps_lost", "atomic_allocations", "memory_refused",
	"spurious_events",
};

/* All but the first two are its guest's or the module's. */
void pregrant_count_vif(struct pregrant_device *dev, u64 *to)
{
	*to++ = READ_ONCE(dev->connects);
	*to++ = READ_ONCE(dev->reserved);
	*to++ = atomic_read(&dev->guest->pages);
	*to++ = atomic64_read(&pregrant_maps);
	*to++ = atomic64_read(&pregrant_maps_lost);
	*to++ = atomic_read(&pregrant_atomic_allocations);
	*to++ = atomic_read(&pregrant_memory_refused);
	*to++ = atomic_read(&pregrant_spurious_events);
}

/* Called with `queues_lock` held: TX, then RX. */
void pregrant_count_queue(struct pregrant_queue *queue, u64 *to)
{
	if (queue->counters)
		pregrant_back_counters(queue->counters, to);
	else
		memset(to, 0, 2 * PREGRANT_BACK_COUNTERS * sizeof(*to));
}

static void drvinfo(struct net_device *netdev, struct ethtool_drvinfo *info)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	strscpy(info->driver, "pregrant_back", sizeof(info->driver));
	pregrant_note_paths(dev);
	mutex_lock(&dev->queues_lock);
	strscpy(info->fw_version, dev->queues_up ? dev->paths : "none: not connected", sizeof(info->fw_version));
	mutex_unlock(&dev->queues_lock);
	strscpy(info->bus_info, dev_name(&dev->xbdev->dev), sizeof(info->bus_info));
}

static int sset_count(struct net_device *netdev, int set)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	return set == ETH_SS_STATS ? PREGRANT_VIF_COUNTERS + dev->max_queues * 2 * PREGRANT_BACK_COUNTERS : -EOPNOTSUPP;
}

static void strings(struct net_device *netdev, u32 set, u8 *to)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	unsigned int k, dir, i;

	if (set != ETH_SS_STATS)
		return;
	for (i = 0; i < PREGRANT_VIF_COUNTERS; i++, to += ETH_GSTRING_LEN)
		strscpy(to, pregrant_vif_counters[i], ETH_GSTRING_LEN);
	for (k = 0; k < dev->max_queues; k++)
		for (dir = 0; dir < 2; dir++)
			for (i = 0; i < PREGRANT_BACK_COUNTERS; i++, to += ETH_GSTRING_LEN)
				snprintf(to, ETH_GSTRING_LEN, "%s%u_%s", dir ? "rx" : "tx", k,
					 pregrant_queue_counters[i]);
}

static void get_stats(struct net_device *netdev, struct ethtool_stats *stats, u64 *to)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	unsigned int k;

	pregrant_count_vif(dev, to);
	to += PREGRANT_VIF_COUNTERS;
	mutex_lock(&dev->queues_lock);
	for (k = 0; k < dev->max_queues; k++, to += 2 * PREGRANT_BACK_COUNTERS)
		pregrant_count_queue(&dev->queues[k], to);
	mutex_unlock(&dev->queues_lock);
}

static void get_channels(struct net_device *netdev, struct ethtool_channels *channels)
{
	struct pregrant_device *dev = netdev_priv(netdev);

	channels->max_combined = dev->max_queues;
	channels->combined_count = READ_ONCE(dev->queues_up);
}

const struct ethtool_ops pregrant_ethtool = {
	.get_drvinfo = drvinfo,
	.get_link = ethtool_op_get_link,
	.get_sset_count = sset_count,
	.get_strings = strings,
	.get_ethtool_stats = get_stats,
	.get_channels = get_channels,
};
