// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Interfaces whose vif was removed after its backend had died: the driver domain was destroyed, and
 * may be restarted.
 *
 *   remove --> this list, without xenbus device and front --> probe of a vif with the same MAC: adopted
 *                                                        '-> keep_orphans seconds, or rmmod: freed
 *
 * An orphan keeps its ifindex, name, netns, addresses, routes and sockets. It has no queues and no
 * grants. Of several with the same MAC the first is adopted. Who unlinks an orphan owns it.
 *
 * A backend cannot cause this: it has no access to the frontend directory.
 */
#include <linux/device.h>
#include <linux/etherdevice.h>
#include <linux/rtnetlink.h>

#include "driver.h"

static LIST_HEAD(orphans);
static DEFINE_MUTEX(orphans_lock);

/* Called for a device without a front. */
void pregrant_let_go(struct pregrant_device *dev)
{
	unregister_netdev(dev->netdev);
	pregrant_netdev_free(dev);
}

/* Unlinks an orphan. False: it was not in the list. */
static bool take(struct pregrant_device *dev)
{
	bool was_there;

	mutex_lock(&orphans_lock);
	was_there = !list_empty(&dev->orphan);
	list_del_init(&dev->orphan);
	mutex_unlock(&orphans_lock);
	return was_there;
}

void pregrant_orphan_expired(struct work_struct *work)
{
	struct pregrant_device *dev = container_of(to_delayed_work(work), struct pregrant_device, expiry);

	if (!take(dev))
		return;
	netdev_info(dev->netdev, "its vif does not come again: the interface goes\n");
	pregrant_let_go(dev);
}

/* Changes the parent device, NULL for none. Under RTNL, against renames and netns moves. */
static int move(struct pregrant_device *dev, struct xenbus_device *xbdev)
{
	int ret;

	rtnl_lock();
	ret = device_move(&dev->netdev->dev, xbdev ? &xbdev->dev : NULL,
			  xbdev ? DPM_ORDER_DEV_AFTER_PARENT : DPM_ORDER_NONE);
	if (!ret)
		dev->xbdev = xbdev;
	rtnl_unlock();
	return ret;
}

static void put(struct pregrant_device *dev, unsigned int seconds)
{
	mutex_lock(&orphans_lock);
	list_add_tail(&dev->orphan, &orphans);
	queue_delayed_work(pregrant_control, &dev->expiry, (unsigned long)seconds * HZ);
	mutex_unlock(&orphans_lock);
}

/* Called after remove: the device is not bound and has no front. */
void pregrant_orphan(struct pregrant_device *dev, unsigned int seconds)
{
	if (move(dev, NULL)) {
		pregrant_let_go(dev);
		return;
	}
	netdev_info(dev->netdev, "its vif was taken away: the interface waits %u s for another\n", seconds);
	put(dev, seconds);
}

static struct pregrant_device *find(const u8 mac[ETH_ALEN])
{
	struct pregrant_device *dev, *found = NULL;

	mutex_lock(&orphans_lock);
	list_for_each_entry(dev, &orphans, orphan) {
		if (!ether_addr_equal(dev->mac, mac))
			continue;
		found = dev;
		list_del_init(&dev->orphan);
		break;
	}
	mutex_unlock(&orphans_lock);
	if (found)
		cancel_delayed_work_sync(&found->expiry);
	return found;
}

/* Finds an orphan with this MAC, which becomes the interface of this vif. NULL: there is none. */
struct pregrant_device *pregrant_adopt(struct xenbus_device *xbdev, const u8 mac[ETH_ALEN])
{
	struct pregrant_device *dev = find(mac);

	if (!dev)
		return NULL;
	if (move(dev, xbdev)) {
		pregrant_let_go(dev);
		return NULL;
	}
	netdev_info(dev->netdev, "its vif came again\n");
	mutex_lock(&dev->control);
	dev->offline = false;
	set_bit(PREGRANT_EV_RESET, &dev->events);
	mutex_unlock(&dev->control);
	return dev;
}

/* Called on module_exit: frees all orphans. */
void pregrant_orphans_end(void)
{
	struct pregrant_device *dev;

	do {
		mutex_lock(&orphans_lock);
		dev = list_first_entry_or_null(&orphans, struct pregrant_device, orphan);
		if (dev)
			list_del_init(&dev->orphan);
		mutex_unlock(&orphans_lock);
		if (dev) {
			cancel_delayed_work_sync(&dev->expiry);
			pregrant_let_go(dev);
		}
	} while (dev);
}
