// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Which back a vif has, and whether it is to have one: the toolstack's word.
 *
 *   `online` 0 in the back's directory     it wants the vif gone: the interface goes with it
 *   no directory of the front's            else: the back went before. The interface stays (orphan.c)
 *   another back in the front's directory  the vif was taken away and made again before xenbus, which
 *                                          looks when it has time, saw that: we go to the other back
 *   no directory of the back's             it is looked for by a timer: no watch says when it may be read
 *
 * A back writes its own `online`, and no other back's: with it 0 it decides whether the interface
 * is there while its vif is not.
 *
 * xenbus' own name for the back's directory is used nowhere but to see that it found none when the
 * guest was restored: it is NULL then, and the driver learns nothing. The front's directory is
 * read by control, here alone.
 *
 * A watch wakes control and does nothing else: its thread serves all devices of the guest. To
 * unregister one is to wait for that thread, which may be taking the device away and wait for
 * control: so another work item does that, for which no device waits.
 */
#include <linux/device.h>
#include <linux/etherdevice.h>
#include <linux/list.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "driver.h"

struct pregrant_watch {
	struct xenbus_watch watch;
	struct pregrant_device *dev; /* under `watches`; NULL: no one's any more */
	bool *fired;
	struct list_head left;
};

static DEFINE_SPINLOCK(watches);
static LIST_HEAD(watches_left);

static void fire(struct xenbus_watch *watch, const char *at, const char *token)
{
	struct pregrant_watch *own = container_of(watch, struct pregrant_watch, watch);

	/* As xenbus: what control would do can fail then. */
	if (system_state > SYSTEM_RUNNING)
		return;
	spin_lock(&watches);
	if (own->dev) {
		WRITE_ONCE(*own->fired, true);
		pregrant_wake_control(own->dev);
	}
	spin_unlock(&watches);
}

/*
 * Newer kernels (7.3) take a device away whose state in xenstore is 1 and in xbdev->state another:
 * who made its directory again wrote that 1. Xenbus' thread reads the one, then the other, and a
 * front that goes on from 1 between these would be taken for such a device. So 1 is noted before it
 * is written, and any other state by that thread, once it finds it written. At a restore it finds
 * 1, which xenbus has noted itself.
 */
static void note_written(struct xenbus_watch *watch, const char *at, const char *token)
{
	struct pregrant_watch *own = container_of(watch, struct pregrant_watch, watch);
	u32 state = xenbus_read_unsigned(watch->node, "", XenbusStateUnknown);

	/* Gone, or not to be read now: none is due then that is Unknown. */
	if (state == XenbusStateUnknown)
		return;
	spin_lock(&watches);
	if (own->dev && own->dev->state_due == state) {
		own->dev->xbdev->state = state;
		own->dev->state_due = XenbusStateUnknown;
	}
	spin_unlock(&watches);
}

/* From now on, and no other is due. */
void pregrant_note_state(struct pregrant_device *dev, u32 state)
{
	spin_lock(&watches);
	dev->xbdev->state = state;
	dev->state_due = XenbusStateUnknown;
	spin_unlock(&watches);
}

/* Once it is written; false: no one would see that. */
bool pregrant_note_later(struct pregrant_device *dev, u32 state)
{
	if (!dev->own_watch)
		return false;
	spin_lock(&watches);
	dev->state_due = state;
	spin_unlock(&watches);
	return true;
}

/* What this front wrote last, noted or not. */
u32 pregrant_written_state(struct pregrant_device *dev)
{
	u32 state;

	spin_lock(&watches);
	state = dev->state_due ?: dev->xbdev->state;
	spin_unlock(&watches);
	return state;
}

/* NULL: it cannot be watched. */
static struct pregrant_watch *watch_key(struct pregrant_device *dev, const char *dir, const char *key,
					typeof(fire) *callback, bool *fired)
{
	struct pregrant_watch *own = kzalloc(sizeof(*own), GFP_KERNEL);

	if (!own)
		return NULL;
	own->watch.callback = callback;
	own->watch.node = kasprintf(GFP_KERNEL, "%s/%s", dir, key);
	own->dev = dev;
	own->fired = fired;
	if (own->watch.node && !register_xenbus_watch(&own->watch))
		return own;
	kfree(own->watch.node);
	kfree(own);
	return NULL;
}

static void unregister_left(struct work_struct *work)
{
	struct pregrant_watch *own;

	for (;;) {
		spin_lock(&watches);
		own = list_first_entry_or_null(&watches_left, struct pregrant_watch, left);
		if (own)
			list_del(&own->left);
		spin_unlock(&watches);
		if (!own)
			return;
		unregister_xenbus_watch(&own->watch);
		kfree(own->watch.node);
		kfree(own);
	}
}

static DECLARE_WORK(unregister_work, unregister_left);

/* It does not touch its device any more. */
static void leave(struct pregrant_watch **at)
{
	struct pregrant_watch *own = *at;

	*at = NULL;
	if (!own)
		return;
	spin_lock(&watches);
	own->dev = NULL;
	list_add_tail(&own->left, &watches_left);
	spin_unlock(&watches);
	schedule_work(&unregister_work);
}

/* The module goes: no device is left. */
void pregrant_backend_end(void)
{
	flush_work(&unregister_work);
}

/*
 * Without a watch it is as with other drivers: a vif that was made again too fast is bound by hand.
 */
void pregrant_backend_watch(struct pregrant_device *dev)
{
	dev->key_watch = watch_key(dev, dev->xbdev->nodename, "backend", fire, &dev->key_fired);
	dev->own_watch = watch_key(dev, dev->xbdev->nodename, "state", note_written, NULL);
}

/* A device that goes: no control runs any more, or it is `gone`. */
void pregrant_backend_leave(struct pregrant_device *dev)
{
	leave(&dev->key_watch);
	leave(&dev->state_watch);
	leave(&dev->own_watch);
	/* No one sees any more that it is written, and xbdev's next driver goes by it. */
	if (dev->state_due)
		pregrant_note_state(dev, dev->state_due);
	kfree(dev->back);
	dev->back = NULL;
}

/* What the front's directory says. */
static int read_back(struct pregrant_device *dev, char **path, int *id)
{
	int ret = xenbus_gather(XBT_NIL, dev->xbdev->nodename, "backend-id", "%i", id, "backend", NULL, path, NULL);

	if (ret || **path)
		return ret;
	kfree(*path);
	return -ENOENT;
}

/* Under `control`, or before there is any: for a front that begins. */
int pregrant_backend_find(struct pregrant_device *dev)
{
	char *path;
	int id, ret = read_back(dev, &path, &id);

	if (ret)
		return ret;
	if (dev->back && !strcmp(path, dev->back) && dev->state_watch) {
		kfree(path);
	} else {
		leave(&dev->state_watch);
		kfree(dev->back);
		dev->back = path;
		dev->state_watch = watch_key(dev, path, "state", fire, &dev->state_fired);
	}
	dev->back_id = id;
	return 0;
}

/*
 * Under `control`: whether the front's directory names another back than the front has, or none. A
 * guest that was restored has another domain's directory, or one that the toolstack made again.
 */
bool pregrant_backend_moved(struct pregrant_device *dev)
{
	char *path;
	bool moved;
	int id;

	if (!dev->back || read_back(dev, &path, &id))
		return true;
	moved = strcmp(path, dev->back) || pregrant_is_another(dev->xbdev);
	kfree(path);
	return moved;
}

/* Under `control`. What it said last, where its directory is gone. */
void pregrant_backend_seen(struct pregrant_device *dev)
{
	if (dev->back)
		WRITE_ONCE(dev->unwanted, !xenbus_read_unsigned(dev->back, "online", !dev->unwanted));
}

/* Under `control`: the front's key was written. */
void pregrant_backend_look(struct pregrant_device *dev)
{
	char *path;
	u8 mac[ETH_ALEN];
	bool another;
	int id;

	/* What it says then is read when the other front begins. */
	if (READ_ONCE(dev->afresh) || read_back(dev, &path, &id))
		return;
	another = !dev->back || strcmp(path, dev->back) || pregrant_is_another(dev->xbdev);
	kfree(path);
	if (!another)
		return;
	if (pregrant_read_mac(dev->xbdev, mac) || !ether_addr_equal(mac, dev->mac)) {
		netdev_warn(dev->netdev, "another vif is in its place: bind the device again\n");
		return;
	}
	netdev_info(dev->netdev, "its vif has another back\n");
	pregrant_note_state(dev, XenbusStateInitialising);
	WRITE_ONCE(dev->unwanted, false);
	pregrant_begin_afresh(dev);
}
