// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Xen network frontend: module parameters, probe and remove of "vif" devices. Whichever of this
 * module and xen-netfront is loaded first binds them; unbind and bind in /sys/bus/xen/drivers moves
 * a device from one to the other.
 */
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <xen/platform_pci.h>
#include <xen/xen.h>

#include "driver.h"
#include "remove.h"

static char *path = "auto";
module_param(path, charp, 0444);
MODULE_PARM_DESC(path, "how frames travel: auto, staging, data-ring, gref-mapping, persistent or copy");

static unsigned int queues;
module_param(queues, uint, 0444);
MODULE_PARM_DESC(queues, "queues of a device, 64 at most; 0: one for each processor, 4 at most");

static unsigned int pages = 1;
module_param(pages, uint, 0444);
MODULE_PARM_DESC(pages, "pages of each ring: 1, 2, 4, 8 or 16, where the back takes more than 1");

static unsigned int data_len = 2048;
module_param(data_len, uint, 0444);
MODULE_PARM_DESC(data_len, "bytes of a staging buffer: a power of two from 16 to 4096, or 65535; one that the back offers");

static char *buffers = "0";
module_param(buffers, charp, 0444);
MODULE_PARM_DESC(buffers, "staging buffers or pages of a direction and queue, where the back keeps more mapped than a ring has slots; auto: as many as twice a core's private cache holds; 0: as many as slots, of a data ring's half 128");

static bool multicast;
module_param(multicast, bool, 0444);
MODULE_PARM_DESC(multicast, "have the back leave out multicast without a listener; not with bridges");

static bool send_on;
module_param(send_on, bool, 0444);
MODULE_PARM_DESC(send_on, "XDP_TX returns a received staging buffer as it is, where the back takes such: with twice as many of them");

static unsigned int lend_from;
module_param(lend_from, uint, 0444);
MODULE_PARM_DESC(lend_from, "bytes of a frame whose pages are granted for it, not copied; 65536: none; 0: 4096, none where the back maps pages");

static unsigned int rx_in_place;
module_param(rx_in_place, uint, 0444);
MODULE_PARM_DESC(rx_in_place, "bytes, above 2048, from which a received frame goes up in the pages in which it came, which a back that maps them can still change; 0: none");

bool pregrant_count_tx_pages;
module_param_named(count_tx_pages, pregrant_count_tx_pages, bool, 0444);
MODULE_PARM_DESC(count_tx_pages, "count how few pages frames are sent from: ethtool -S has tx_pages and hits of tables of these");

/* Like xen-netfront's: read at each connect, together with the xenstore key of that name. */
static bool trusted = true;
module_param(trusted, bool, 0644);
MODULE_PARM_DESC(trusted, "whether backs may see whole pages of what is sent, and frames stay in pages that they have; N: never, else unless the toolstack's key `trusted` is 0");

bool pk_trusted(void)
{
	return READ_ONCE(trusted);
}

/* The default is long enough for a driver domain to restart, even by hand. */
static unsigned int keep_orphans = 300;
module_param(keep_orphans, uint, 0644);
MODULE_PARM_DESC(keep_orphans, "seconds that an interface waits for another vif of its address when its driver domain has gone; 0: none");

/* The grants of ten devices with this many queues fit a grant table of 64 pages. */
#define QUEUES_DEFAULT 4

struct workqueue_struct *pregrant_control;

/* Reads the module parameter `buffers`. Returns an error code if it is no number. */
static int buffers_of(u32 *n)
{
	if (!strcmp(buffers, "auto")) {
		*n = PREGRANT_BUFFERS_AUTO;
		return 0;
	}
	return kstrtou32(buffers, 0, n) || *n == PREGRANT_BUFFERS_AUTO ? -EINVAL : 0;
}

static struct pregrant_settings settings(void)
{
	u32 n = 0;

	buffers_of(&n); /* cannot fail: checked when the module was loaded */
	return (struct pregrant_settings) {
		.path = path, .path_len = strlen(path), .queues = queues, .ring_order = ilog2(pages),
		.data_len = data_len, .buffers = n, .cache = pk_private_cache(),
		.multicast = multicast, .send_on = send_on,
		/* frame.c copies shorter frames to the linear part of the skb. */
		.rx_in_place = rx_in_place ? max(rx_in_place, 2049u) : 0,
	};
}

static bool parameters_are_good(void)
{
	struct pregrant_settings given;
	u32 n;

	if (buffers_of(&n)) {
		pr_warn("pregrant: buffers is neither auto nor a number\n");
		return false;
	}
	if (!pages || pages > 1 << PREGRANT_ORDER_MAX || !is_power_of_2(pages)) {
		pr_warn("pregrant: pages is none of 1, 2, 4, 8 and 16\n");
		return false;
	}
	if (queues > PREGRANT_QUEUES_MAX) {
		pr_warn("pregrant: queues is above %u\n", PREGRANT_QUEUES_MAX);
		return false;
	}
	given = settings();
	return pregrant_front_check(&given);
}

static void begin(struct pregrant_device *dev)
{
	dev_set_drvdata(&dev->xbdev->dev, dev);
	pregrant_backend_watch(dev);
	mutex_lock(&dev->control);
	dev->bound = true;
	mutex_unlock(&dev->control);
	pregrant_wake_control(dev);
}

/* Counts starts and ends of probes, so it is odd during a probe. */
static atomic_t probes = ATOMIC_INIT(0);

static int probe_device(struct xenbus_device *xbdev)
{
	unsigned int max = queues ? queues : min_t(unsigned int, num_online_cpus(), QUEUES_DEFAULT);
	struct net_device *netdev;
	struct pregrant_device *dev;
	const char *why = "no memory";
	u8 mac[ETH_ALEN];
	unsigned int k;
	int ret = pregrant_read_mac(xbdev, mac);

	if (ret) {
		xenbus_dev_fatal(xbdev, ret, "no address");
		return ret;
	}
	/* The previous driver, or a program, may have changed the state without xenbus. */
	xbdev->state = xenbus_read_unsigned(xbdev->nodename, "state", XenbusStateUnknown);
	dev = pregrant_adopt(xbdev, mac);
	if (dev) {
		begin(dev);
		return 0;
	}
	ret = -ENOMEM;
	netdev = pregrant_netdev_new(xbdev, mac, max);
	if (!netdev) {
		xenbus_dev_fatal(xbdev, ret, "no interface");
		return ret;
	}
	dev = netdev_priv(netdev);
	dev->netdev = netdev;
	dev->xbdev = xbdev;
	ether_addr_copy(dev->mac, mac);
	dev->settings = settings();
	dev->settings.queues = max;
	dev->lend_from = lend_from;
	dev->runs_until = jiffies;
	mutex_init(&dev->control);
	mutex_init(&dev->queues_lock);
	ratelimit_state_init(&dev->log_limit, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);
	INIT_DELAYED_WORK(&dev->work, pregrant_control_work);
	INIT_DELAYED_WORK(&dev->expiry, pregrant_orphan_expired);
	INIT_LIST_HEAD(&dev->channels);
	INIT_LIST_HEAD(&dev->orphan);
	dev->queues = kvcalloc(max, sizeof(*dev->queues), GFP_KERNEL);
	if (!dev->queues)
		goto failed;
	dev->max_queues = max;
	/* Initialise all of them, since the error path frees all. */
	for (k = 0, ret = 0; k < max; k++) {
		int failed = pregrant_queue_init(&dev->queues[k], dev, k);

		ret = ret ?: failed;
	}
	if (ret)
		goto failed;
	ret = pregrant_begin(dev);
	why = "no front";
	if (ret)
		goto failed;
	pregrant_shrinker_begin(dev);
	ret = register_netdev(netdev);
	why = "no interface";
	if (ret) {
		pregrant_end(dev);
		goto failed;
	}
	begin(dev);
	return 0;
failed:
	xenbus_dev_fatal(xbdev, ret, "%s", why);
	pregrant_netdev_free(dev);
	return ret;
}

static int probe(struct xenbus_device *xbdev, const struct xenbus_device_id *id)
{
	unsigned int flags = memalloc_noio_save(); /* see heap.c */
	int ret;

	atomic_inc(&probes);
	ret = probe_device(xbdev);
	atomic_inc(&probes);
	memalloc_noio_restore(flags);
	return ret;
}

/* .suspend: tasks and control are frozen by now. */
static int saved(struct xenbus_device *xbdev)
{
	pregrant_suspend(dev_get_drvdata(&xbdev->dev));
	return 0;
}

/*
 * .resume: called before they are thawed, but not if xenbus finds no backend, nor if the suspend
 * was cancelled.
 */
static int restored(struct xenbus_device *xbdev)
{
	pregrant_reset(dev_get_drvdata(&xbdev->dev));
	return 0;
}

static void take_away(struct xenbus_device *xbdev)
{
	struct pregrant_device *dev = dev_get_drvdata(&xbdev->dev);
	unsigned int keep = READ_ONCE(keep_orphans);
	unsigned int flags = memalloc_noio_save(); /* see heap.c */
	bool stays;

	mutex_lock(&dev->control);
	dev->bound = false; /* control does not change the carrier any more */
	pregrant_backend_seen(dev);
	mutex_unlock(&dev->control);
	cancel_delayed_work_sync(&dev->work);
	/* If the device was unbound by hand, its xenstore directory still exists. */
	stays = keep && !dev->offline && pregrant_is_gone(dev);
	dev_set_drvdata(&xbdev->dev, NULL);
	if (stays)
		netif_carrier_off(dev->netdev);
	else
		unregister_netdev(dev->netdev);
	/* Remove cannot fail: to close a front takes a page at a time, and waits for it. */
	mutex_lock(&dev->control);
	pregrant_end(dev);
	pregrant_backend_leave(dev);
	mutex_unlock(&dev->control);
	if (stays)
		pregrant_orphan(dev, keep);
	else
		pregrant_netdev_free(dev);
	memalloc_noio_restore(flags);
}

PREGRANT_DEFINE_REMOVE(take_away)

static const struct xenbus_device_id ids[] = {
	{ "vif" },
	{ "" },
};

static struct xenbus_driver driver = {
	/* "vif" is the name of xen-netfront. */
	.name = "pregrant",
	.ids = ids,
	.probe = probe,
	.remove = PREGRANT_REMOVE(take_away),
	.suspend = saved,
	.resume = restored,
	/* xenbus must not write Closed: the front did, and a recreated directory is another vif. */
	.allow_rebind = true,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 16, 0)
	/* Do not make boot wait minutes for a dead backend. */
	.not_essential = true,
#endif
};

/*
 * xenbus_register_frontend() probes the devices, then waits for their backends: 30 s, before 5.16
 * five minutes. module_init waits less, so that a dead backend does not hold up boot.
 */
#define LOAD_WAITS (2 * HZ)

static int registered = -EINPROGRESS;
static DECLARE_COMPLETION(registering_done);

static void do_register(struct work_struct *work)
{
	registered = xenbus_register_frontend(&driver);
	if (registered)
		pr_warn("pregrant: xenbus does not take the driver: error %d\n", registered);
	complete_all(&registering_done);
}

static DECLARE_WORK(registering, do_register);

static int begin_driver(void)
{
	int seen;

	queue_work(system_long_wq, &registering);
	do {
		seen = atomic_read(&probes);
		if (!wait_for_completion_timeout(&registering_done, LOAD_WAITS))
			continue;
		/* The work function must have returned before a failed load frees it. */
		flush_work(&registering);
		return registered;
		/* Go on while probes make progress, so that xen-netfront does not bind the rest. */
	} while (atomic_read(&probes) != seen || seen % 2);
	pr_info("pregrant: loaded, and a back has not answered yet; its interface is up once it does\n");
	return 0;
}

static void end_driver(void)
{
	flush_work(&registering);
	if (!registered)
		xenbus_unregister_driver(&driver);
}

static int __init pregrant_init(void)
{
	int ret;

	if (!parameters_are_good())
		return -EINVAL;
	if (!xen_domain() || !xen_has_pv_nic_devices())
		return -ENODEV;
	/* Frozen during suspend: xenbus reads the paths of its devices again then. */
	pregrant_control = alloc_workqueue("pregrant", WQ_UNBOUND | WQ_FREEZABLE, 0);
	if (!pregrant_control)
		return -ENOMEM;
	ret = begin_driver();
	if (ret) {
		pregrant_backend_end();
		destroy_workqueue(pregrant_control);
	}
	return ret;
}

static void __exit pregrant_exit(void)
{
	s64 left;

	end_driver();
	pregrant_orphans_end();
	pregrant_backend_end();
	destroy_workqueue(pregrant_control);
	left = atomic64_read(&pregrant_grants) - atomic64_read(&pregrant_grants_ended) -
	       atomic64_read(&pregrant_grants_deferred);
	if (atomic64_read(&pregrant_grants_deferred))
		pr_info("pregrant: %lld grants were left to the kernel\n", atomic64_read(&pregrant_grants_deferred));
	if (left)
		pr_warn("pregrant: %lld grants did not end\n", left);
}

module_init(pregrant_init);
module_exit(pregrant_exit);
MODULE_DESCRIPTION("Network interface of a Xen guest that outlives its backend");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_ALIAS("xen:vif");
