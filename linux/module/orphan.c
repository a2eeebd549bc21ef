// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Interfaces whose vif the toolstack took away after their back had gone: a driver domain that is
 * destroyed, and perhaps made again.
 *
 *   remove --> the list, without a device or a front --> probe of a vif of the same address: adopted
 *                                                   '-> keep_orphans seconds later, or rmmod: gone
 *
 * The stack keeps all that it has of one: index, name, namespace, addresses, routes, sockets. It
 * has no queue and no grant. With several of one address the first is adopted. One that is taken
 * from the list is its taker's alone.
 *
 * A back cannot bring this about: the front's directory is the toolstack's and the guest's.
 */
#include <linux/device.h>
#include <linux/etherdevice.h>
#include <linux/rtnetlink.h>

#include "driver.h"

static LIST_HEAD(orphans);
static DEFINE_MUTEX(orphans_lock);

/* Without a vif, and without a front. */
void pregrant_let_go(struct pregrant_device *dev)
{
	unregister_netdev(dev->netdev);
	pregrant_netdev_free(dev);
}

/* False: it was not there. */
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

/* The other parent, or none. Names and namespaces change with RTNL. */
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

/* It is `gone`, and has no front. */
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

/* One of this address, which has this vif now and begins; NULL: there is none, or it cannot. */
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
	dev->unwanted = false;
	WRITE_ONCE(dev->afresh, true);
	mutex_unlock(&dev->control);
	return dev;
}

/* No vif comes any more. */
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
