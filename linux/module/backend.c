// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Which back a vif has, and whether it is to have one: the toolstack's word.
 *
 *   `online` 0 in the back's directory     it wants the vif gone: the interface goes with it
 *   no directory of the front's            else: the back went before. The interface stays (orphan.c)
 *   another back in the front's directory  the vif was taken away and made again before xenbus, which
 *                                          looks when it has time, saw that: we go to the other back
 *
 * A back writes its own `online`, and no other back's: with it 0 it decides whether the interface
 * is there while its vif is not.
 */
#include <linux/device.h>
#include <linux/etherdevice.h>
#include <linux/slab.h>

#include "driver.h"

/* What it said last, where its directory is gone. */
void pregrant_backend_seen(struct pregrant_device *dev)
{
	bool was = READ_ONCE(dev->unwanted);

	WRITE_ONCE(dev->unwanted, !xenbus_read_unsigned(dev->xbdev->otherend, "online", !was));
}

static bool is_another(const struct pregrant_device *dev, const char *path)
{
	return strcmp(path, dev->xbdev->otherend) || pregrant_is_another(dev->xbdev);
}

/* In the thread of the watches: so to take one away waits for none. */
static void go_to(struct pregrant_device *dev, const char *path, int id)
{
	char *node = kasprintf(GFP_KERNEL, "%s/state", path);
	struct xenbus_device *xbdev = dev->xbdev;
	u8 mac[ETH_ALEN];

	if (!node || pregrant_read_mac(xbdev, mac) || !ether_addr_equal(mac, dev->mac)) {
		netdev_warn(dev->netdev, "another vif is in its place: bind the device again\n");
		kfree(node);
		kfree(path);
		return;
	}
	netdev_info(dev->netdev, "its vif has another back\n");
	mutex_lock(&dev->control);
	pregrant_begin_afresh(dev);
	if (xbdev->otherend_watch.node)
		unregister_xenbus_watch(&xbdev->otherend_watch);
	kfree(xbdev->otherend_watch.node);
	kfree(xbdev->otherend);
	xbdev->otherend = path;
	xbdev->otherend_id = id;
	xbdev->otherend_watch.node = node;
	xbdev->state = XenbusStateInitialising;
	/* xenbus takes it away where it has a path. */
	if (register_xenbus_watch(&xbdev->otherend_watch)) {
		xbdev->otherend_watch.node = NULL;
		kfree(node);
	}
	dev->unwanted = false;
	mutex_unlock(&dev->control);
}

static void key_changed(struct xenbus_watch *watch, const char *at, const char *token)
{
	struct pregrant_device *dev = container_of(watch, struct pregrant_device, backend_watch);
	struct xenbus_device *xbdev = dev->xbdev;
	char *path;
	int id;

	/* While it is bound or unbound xenbus reads the key itself. */
	if (!device_trylock(&xbdev->dev))
		return;
	if (!xenbus_gather(XBT_NIL, xbdev->nodename, "backend-id", "%i", &id, "backend", NULL, &path, NULL)) {
		if (*path && is_another(dev, path))
			go_to(dev, path, id);
		else
			kfree(path);
	}
	device_unlock(&xbdev->dev);
}

/*
 * Without a watch it is as with other drivers: a vif that was made again too fast is bound by hand.
 */
void pregrant_backend_watch(struct pregrant_device *dev)
{
	struct xenbus_watch *watch = &dev->backend_watch;

	*watch = (struct xenbus_watch) { .callback = key_changed };
	watch->node = kasprintf(GFP_KERNEL, "%s/backend", dev->xbdev->nodename);
	if (watch->node && register_xenbus_watch(watch)) {
		kfree(watch->node);
		watch->node = NULL;
	}
}

void pregrant_backend_unwatch(struct pregrant_device *dev)
{
	struct xenbus_watch *watch = &dev->backend_watch;

	if (!watch->node)
		return;
	unregister_xenbus_watch(watch);
	kfree(watch->node);
	watch->node = NULL;
}
