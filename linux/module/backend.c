// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * The backend of a vif, as xenstore names it.
 *
 *   `online` = 0 in the backend's directory   the toolstack removes the vif: so does the interface
 *   frontend directory gone, `online` = 1     the backend died first: the interface stays (orphan.c)
 *   frontend directory names another backend  the vif was removed and recreated before xenbus noticed:
 *                                             reconnect to the new backend
 *   backend directory unreadable              polled by a timer, since no watch fires
 *
 * A backend can write its own `online`, and so decide whether the interface stays while its vif is
 * gone. It cannot write that of another backend.
 *
 * xbdev->otherend is used only to see that xenbus found no backend after a restore: it is NULL
 * then, and no callback is called. Only control reads the frontend directory, here.
 *
 * Watch callbacks only wake control, since one thread runs those of all devices. Unregistering a
 * watch waits for that thread, which may be removing the device and wait for control: so a separate
 * work item unregisters watches, and no device waits for it.
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
	struct pregrant_device *dev; /* under `watches`; NULL: abandoned */
	enum pregrant_event event; /* the event to raise; the watch of this end's `state` raises none */
	struct list_head left;
};

static DEFINE_SPINLOCK(watches);
static LIST_HEAD(watches_left);

static void fire(struct xenbus_watch *watch, const char *at, const char *token)
{
	struct pregrant_watch *own = container_of(watch, struct pregrant_watch, watch);

	/* As xenbus does: do not reconnect during shutdown. */
	if (system_state > SYSTEM_RUNNING)
		return;
	spin_lock(&watches);
	if (own->dev) {
		set_bit(own->event, &own->dev->events);
		pregrant_wake_control(own->dev);
	}
	spin_unlock(&watches);
}

/*
 * Linux 7.3 and later removes a device whose state is 1 in xenstore but not in xbdev->state: its
 * directory was recreated. The xenbus thread reads the first, then the second, so a front that
 * leaves state 1 in between would look like that. Therefore xbdev->state becomes 1 before 1 is
 * written, and any other state is set by this watch, in the xenbus thread, once it is in xenstore.
 * After a restore xenbus sets 1 itself.
 */
static void note_written(struct xenbus_watch *watch, const char *at, const char *token)
{
	struct pregrant_watch *own = container_of(watch, struct pregrant_watch, watch);
	u32 state = xenbus_read_unsigned(watch->node, "", XenbusStateUnknown);

	/* The directory is gone or unreadable. */
	if (state == XenbusStateUnknown)
		return;
	spin_lock(&watches);
	if (own->dev && own->dev->state_due == state) {
		own->dev->xbdev->state = state;
		own->dev->state_due = XenbusStateUnknown;
	}
	spin_unlock(&watches);
}

/* Sets xbdev->state now. */
void pregrant_note_state(struct pregrant_device *dev, u32 state)
{
	spin_lock(&watches);
	dev->xbdev->state = state;
	dev->state_due = XenbusStateUnknown;
	spin_unlock(&watches);
}

/* Sets xbdev->state once xenstore has it. False: there is no watch for that. */
bool pregrant_note_later(struct pregrant_device *dev, u32 state)
{
	if (!dev->own_watch)
		return false;
	spin_lock(&watches);
	dev->state_due = state;
	spin_unlock(&watches);
	return true;
}

/* Returns the state that this front wrote last. */
u32 pregrant_written_state(struct pregrant_device *dev)
{
	u32 state;

	spin_lock(&watches);
	state = dev->state_due ?: dev->xbdev->state;
	spin_unlock(&watches);
	return state;
}

/* Watches a key. NULL: the watch failed. */
static struct pregrant_watch *watch_key(struct pregrant_device *dev, const char *dir, const char *key,
					typeof(fire) *callback, enum pregrant_event event)
{
	struct pregrant_watch *own = kzalloc(sizeof(*own), GFP_KERNEL);

	if (!own)
		return NULL;
	own->watch.callback = callback;
	own->watch.node = kasprintf(GFP_KERNEL, "%s/%s", dir, key);
	own->dev = dev;
	own->event = event;
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

/* Ends a watch: afterwards its callback does not touch the device. */
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

/* Called on module_exit: no device is left. */
void pregrant_backend_end(void)
{
	flush_work(&unregister_work);
}

/* Without watches a vif that is recreated too fast must be bound by hand. */
void pregrant_backend_watch(struct pregrant_device *dev)
{
	dev->key_watch = watch_key(dev, dev->xbdev->nodename, "backend", fire, PREGRANT_EV_BACKEND_KEY);
	dev->own_watch = watch_key(dev, dev->xbdev->nodename, "state", note_written, 0);
}

/* Called on remove: control does not run any more. */
void pregrant_backend_leave(struct pregrant_device *dev)
{
	leave(&dev->key_watch);
	leave(&dev->state_watch);
	leave(&dev->own_watch);
	/* The watch would have set this, and the next driver relies on it. */
	if (dev->state_due)
		pregrant_note_state(dev, dev->state_due);
	kfree(dev->back);
	dev->back = NULL;
}

/* Reads the backend that the frontend directory names. */
static int read_back(struct pregrant_device *dev, char **path, int *id)
{
	int ret = xenbus_gather(XBT_NIL, dev->xbdev->nodename, "backend-id", "%i", id, "backend", NULL, path, NULL);

	if (ret || **path)
		return ret;
	kfree(*path);
	return -ENOENT;
}

/*
 * Called with `control` held, or during probe: finds the backend for a new front, and watches its
 * state.
 */
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
		dev->state_watch = watch_key(dev, path, "state", fire, PREGRANT_EV_BACKEND_STATE);
	}
	dev->back_id = id;
	return 0;
}

/*
 * Called with `control` held: whether the frontend directory names another backend than that of the
 * front, or none. After a restore it is a new directory.
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

/* Called with `control` held: reads `online`; keeps the last value if the directory is gone. */
void pregrant_backend_seen(struct pregrant_device *dev)
{
	if (dev->back)
		WRITE_ONCE(dev->offline, !xenbus_read_unsigned(dev->back, "online", !dev->offline));
}

/* Called with `control` held: `backend` in the frontend directory was written. */
void pregrant_backend_look(struct pregrant_device *dev)
{
	char *path;
	u8 mac[ETH_ALEN];
	bool another;
	int id;

	/* The next front reads it anyway. */
	if (test_bit(PREGRANT_EV_RESET, &dev->events) || read_back(dev, &path, &id))
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
	WRITE_ONCE(dev->offline, false);
	pregrant_reset(dev);
}
