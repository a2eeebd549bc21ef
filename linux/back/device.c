// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* The module, its parameters, and the xenbus driver for vifs of guests. */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/version.h>
#include <xen/xen.h>

#include "driver.h"
#include "remove.h"

static unsigned int queues;
module_param(queues, uint, 0444);
MODULE_PARM_DESC(queues, "queues that a vif may have, at most 64; 0: one for each processor, up to 4");
#define QUEUES_DEFAULT 4
#define GUEST_PAGES_MIN 64
#define GUEST_PAGES_MAX (1 << 20)

unsigned int pregrant_guest_pages = 16384;
module_param_named(guest_pages, pregrant_guest_pages, uint, 0444);
MODULE_PARM_DESC(guest_pages, "pages that a guest may have mapped, over all of its vifs");

struct workqueue_struct *pregrant_control;

/* For uevent(), which may come at any time. */
static DEFINE_MUTEX(devices);

/* Keys of the own directory that the toolstack changes. */
static bool is_followed(const char *path)
{
	static const char *const keys[] = { "/state", "/online", "/hotplug-status", "/rate" };
	const char *key = strrchr(path, '/');
	unsigned int k;

	for (k = 0; key && k < ARRAY_SIZE(keys); k++)
		if (!strcmp(key, keys[k]))
			return true;
	return false;
}

/* The kernel's thread keeps no other events of this watch: the back writes many keys itself. */
static bool will_handle(struct xenbus_watch *watch, const char *path, const char *token)
{
	return is_followed(path);
}

static void own_key_changed(struct xenbus_watch *watch, const char *path, const char *token)
{
	struct pregrant_device *dev = container_of(watch, struct pregrant_device, watch);

	if (strstr(path, "/rate"))
		set_bit(PREGRANT_EV_RATE, &dev->events);
	pregrant_wake_control(dev);
}

static void front_changed(struct xenbus_device *xbdev, enum xenbus_state state)
{
	struct pregrant_device *dev = dev_get_drvdata(&xbdev->dev);

	if (dev)
		pregrant_wake_control(dev);
}

static void free_device(struct pregrant_device *dev)
{
	unsigned int k;

	if (dev->back)
		pregrant_back_free(dev->back);
	for (k = 0; dev->queues && k < dev->max_queues; k++)
		pregrant_queue_free(&dev->queues[k]);
	kvfree(dev->queues);
	kfree(dev->script);
	if (dev->guest)
		pregrant_guest_put(dev->guest);
	free_netdev(dev->netdev);
}

/*
 * The guest is connected, by queues that another back has offered. It is left as it is where its
 * interface's name is taken, as by a process's tap.
 */
static int make_room(struct xenbus_device *xbdev, unsigned int handle, unsigned int *max)
{
	unsigned int queues_up = xenbus_read_unsigned(xbdev->otherend, "multi-queue-num-queues", 1);
	struct net_device *other;
	char name[IFNAMSIZ];

	*max = max(*max, min_t(unsigned int, queues_up, PREGRANT_QUEUES_MAX));
	snprintf(name, sizeof(name), "vif%u.%u", xbdev->otherend_id, handle);
	other = dev_get_by_name(&init_net, name);
	if (!other)
		return 0;
	dev_put(other);
	dev_warn(&xbdev->dev, "left to another back: there is an interface %s\n", name);
	return -EEXIST;
}

static int probe_device(struct xenbus_device *xbdev)
{
	unsigned int max = queues ? queues : min_t(unsigned int, num_online_cpus(), QUEUES_DEFAULT);
	struct net_device *netdev;
	struct pregrant_device *dev;
	unsigned int handle, state;
	char *script;
	int ret;

	if (xenbus_scanf(XBT_NIL, xbdev->nodename, "handle", "%u", &handle) != 1) {
		xenbus_dev_fatal(xbdev, -EINVAL, "its key `handle` is no number");
		return -EINVAL;
	}
	state = xenbus_read_unsigned(xbdev->nodename, "state", XenbusStateUnknown);
	if (state == XenbusStateConnected) {
		ret = make_room(xbdev, handle, &max);
		if (ret)
			return ret;
	}
	netdev = pregrant_netdev_new(xbdev, handle, max);
	if (!netdev)
		return -ENOMEM;
	dev = netdev_priv(netdev);
	dev->netdev = netdev;
	dev->xbdev = xbdev;
	dev->runs_until = jiffies;
	mutex_init(&dev->control);
	mutex_init(&dev->queues_lock);
	ratelimit_state_init(&dev->log_limit, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);
	INIT_DELAYED_WORK(&dev->work, pregrant_control_work);
	INIT_LIST_HEAD(&dev->channels);
	ret = -ENOMEM;
	dev->guest = pregrant_guest_get(xbdev->otherend_id);
	dev->queues = kvcalloc(max, sizeof(*dev->queues), GFP_KERNEL);
	if (!dev->guest || !dev->queues)
		goto failed;
	for (; dev->max_queues < max; dev->max_queues++)
		if (pregrant_queue_init(&dev->queues[dev->max_queues], dev, dev->max_queues))
			goto failed;
	script = xenbus_read(XBT_NIL, xbdev->nodename, "script", NULL);
	dev->script = IS_ERR(script) ? NULL : script;
	dev->back = pregrant_back_new(dev, xbdev->otherend_id, handle, max);
	if (!dev->back)
		goto failed;
	/* xenbus does not write a state that it takes for the one in xenstore. */
	xbdev->state = state;
	dev->was_left = state == XenbusStateConnected;
	dev->bound = true;
	mutex_lock(&devices);
	dev_set_drvdata(&xbdev->dev, dev);
	mutex_unlock(&devices);
	ret = xenbus_watch_path(xbdev, xbdev->nodename, &dev->watch, will_handle, own_key_changed);
	if (ret)
		goto unset;
	pregrant_files_add(dev);
	pregrant_wake_control(dev);
	return 0;
unset:
	mutex_lock(&devices);
	dev_set_drvdata(&xbdev->dev, NULL);
	mutex_unlock(&devices);
failed:
	free_device(dev);
	return ret;
}

static int probe(struct xenbus_device *xbdev, const struct xenbus_device_id *id)
{
	unsigned int flags = memalloc_noio_save(); /* see heap.c */
	int ret = probe_device(xbdev);

	memalloc_noio_restore(flags);
	return ret;
}

static void take_away(struct xenbus_device *xbdev)
{
	struct pregrant_device *dev = dev_get_drvdata(&xbdev->dev);
	unsigned int flags = memalloc_noio_save(); /* see heap.c */
	bool is_left;

	unregister_xenbus_watch(&dev->watch);
	pregrant_files_remove(dev);
	mutex_lock(&dev->control);
	dev->bound = false;
	is_left = pregrant_leave(dev);
	if (!is_left)
		pregrant_end(dev);
	mutex_unlock(&dev->control);
	/* Nothing wakes control any more: no watch, no poll. */
	cancel_delayed_work_sync(&dev->work);
	if (dev->registered) {
		kobject_uevent(&xbdev->dev.kobj, KOBJ_OFFLINE);
		/* The next backend waits for its own script. No process was the last. */
		xenbus_rm(XBT_NIL, xbdev->nodename, "hotplug-status");
		xenbus_rm(XBT_NIL, xbdev->nodename, "pregrant-interface");
	}
	mutex_lock(&devices);
	dev_set_drvdata(&xbdev->dev, NULL);
	mutex_unlock(&devices);
	if (dev->registered)
		unregister_netdev(dev->netdev);
	free_device(dev);
	if (!is_left)
		xenbus_switch_state(xbdev, XenbusStateClosed);
	memalloc_noio_restore(flags);
}

PREGRANT_DEFINE_REMOVE(take_away)

/* For udev, where it runs the toolstack's scripts; xenbus adds XENBUS_*. */
static int add_variables(const struct device *device, struct kobj_uevent_env *env)
{
	struct pregrant_device *dev;
	int ret = 0;

	mutex_lock(&devices);
	dev = dev_get_drvdata(device);
	if (dev) {
		if (dev->script)
			ret = add_uevent_var(env, "script=%s", dev->script);
		ret = ret ?: add_uevent_var(env, "vif=%s", dev->netdev->name);
	}
	mutex_unlock(&devices);
	return ret;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
static int uevent(const struct xenbus_device *xbdev, struct kobj_uevent_env *env)
{
	return add_variables(&xbdev->dev, env);
}
#else
static int uevent(struct xenbus_device *xbdev, struct kobj_uevent_env *env)
{
	return add_variables(&xbdev->dev, env);
}
#endif

static const struct xenbus_device_id ids[] = {
	{ "vif" },
	{ "" },
};

static struct xenbus_driver driver = {
	/* "vif" is the name of xen-netback. */
	.name = "pregrant_back",
	.ids = ids,
	.allow_rebind = true,
	.probe = probe,
	.remove = PREGRANT_REMOVE(take_away),
	.uevent = uevent,
	.otherend_changed = front_changed,
};

static int __init pregrant_init(void)
{
	int ret;

	if (queues > PREGRANT_QUEUES_MAX) {
		pr_warn("pregrant_back: queues is above %u\n", PREGRANT_QUEUES_MAX);
		return -EINVAL;
	}
	if (pregrant_guest_pages < GUEST_PAGES_MIN || pregrant_guest_pages > GUEST_PAGES_MAX) {
		pr_warn("pregrant_back: guest_pages is not from %u to %u\n", GUEST_PAGES_MIN,
			GUEST_PAGES_MAX);
		return -EINVAL;
	}
	if (!xen_domain())
		return -ENODEV;
	pregrant_control = alloc_workqueue("pregrant_back", WQ_UNBOUND, 0);
	if (!pregrant_control)
		return -ENOMEM;
	/* Without an owner: vifs do not keep the module, and are left to the next back. */
	ret = __xenbus_register_backend(&driver, NULL, NULL);
	if (ret)
		destroy_workqueue(pregrant_control);
	return ret;
}

static int hold_device(struct device *device, void *any)
{
	struct pregrant_device *dev;

	/* Who takes it away has the lock, and waits for who walks over the driver's devices. */
	if (!device_trylock(device))
		return 0;
	dev = dev_get_drvdata(device);
	if (dev)
		*(bool *)any |= pregrant_hold(dev);
	device_unlock(device);
	return 0;
}

/*
 * xenbus takes a device away under its lock, and waits for the kernel's thread of watches, which
 * may wait for that lock, as its guest is gone. So it is that thread that takes them all away.
 */
static DECLARE_COMPLETION(unregistered);

static void unregister(struct xenbus_watch *watch, const char *path, const char *token)
{
	if (completion_done(&unregistered))
		return;
	xenbus_unregister_driver(&driver);
	complete_all(&unregistered);
}

/* It fires as it is registered. */
static struct xenbus_watch leaves = { .node = "domid", .callback = unregister };

static void __exit pregrant_exit(void)
{
	bool any = false;

	/* All at once, so that not each waits for those before it. */
	if (!driver_for_each_device(&driver.driver, NULL, &any, hold_device) && any)
		msleep(PREGRANT_ON_THE_WAY_MS);
	if (register_xenbus_watch(&leaves)) {
		xenbus_unregister_driver(&driver);
	} else {
		wait_for_completion(&unregistered);
		unregister_xenbus_watch(&leaves);
	}
	destroy_workqueue(pregrant_control);
	pregrant_maps_end();
	if (atomic64_read(&pregrant_maps) || atomic64_read(&pregrant_maps_lost))
		pr_warn("pregrant_back: of guests' pages %lld stay mapped, %lld could not be unmapped\n",
			atomic64_read(&pregrant_maps), atomic64_read(&pregrant_maps_lost));
}

module_init(pregrant_init);
module_exit(pregrant_exit);
MODULE_DESCRIPTION("Backend of Xen guests' network interfaces");
#ifdef PREGRANT_VERSION
MODULE_VERSION(PREGRANT_VERSION);
#endif
MODULE_LICENSE("Dual MIT/GPL");
