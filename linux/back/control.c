// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * The work item that follows the guest's xenbus state, and the toolstack's keys. It may sleep,
 * allocate and use xenstore. Frames travel meanwhile, except while queues are started or stopped.
 *
 *   first run   the interface is made: it is there before state 2
 *   2           the front's keys are awaited, and the toolstack's script (`hotplug-status`)
 *   4           the queues are polled; carrier, once the guest takes frames
 *   5, 6        at the guest's, at `online` = 0, after a fault: nothing stays mapped
 *   remove      4 stays, and the rings with it, for the next back; else 5, 6
 *
 * A vif that another back has left at 4 is connected by the first run.
 *
 * A guest cannot make control run all the time: after RUNS_AT_ONCE runs each further one costs a
 * pause.
 */
#include <linux/delay.h>
#include <linux/rtnetlink.h>
#include <linux/sched/mm.h>

#include "driver.h"
#include "pacing.h"

/* Steps of one run, which each change a state. */
#define STEPS_MAX 8
/* Turns of the guest's control ring in one run: each executes some requests. */
#define RING_TURNS 16
/* Within which what was taken of a guest that is left to another back must be answered. */
#define PREGRANT_SETTLE_SECONDS 10

/* In any context. */
void pregrant_wake_control(struct pregrant_device *dev)
{
	mod_delayed_work(pregrant_control, &dev->work, paced(dev, 0));
}

/* The interface gets what the guest accepts; the stack does the rest in software. */
static void prepare_interface(struct pregrant_device *dev, unsigned int queues)
{
	struct net_device *netdev = dev->netdev;
	u32 limit = pregrant_back_mtu_limit(dev->back);

	rtnl_lock();
	WRITE_ONCE(dev->takes, pregrant_back_takes(dev->back));
	WRITE_ONCE(dev->mtu_limit, limit);
	if (limit && netdev->mtu > limit && dev_set_mtu(netdev, limit) && __ratelimit(&dev->log_limit))
		netdev_warn(netdev, "the guest takes frames of one slot only, and the MTU stays above %u\n", limit);
	if ((netif_set_real_num_tx_queues(netdev, queues) || netif_set_real_num_rx_queues(netdev, queues)) &&
	    __ratelimit(&dev->log_limit))
		netdev_warn(netdev, "not all of its %u queues are used\n", queues);
	netdev_update_features(netdev);
	rtnl_unlock();
}

/* Stops the queues' polls. True: the guest broke the protocol on one. */
static bool stop_queues(struct pregrant_device *dev)
{
	unsigned int k;

	if (!dev->queues_up)
		return false;
	netif_carrier_off(dev->netdev);
	for (k = 0; k < dev->queues_up; k++)
		pregrant_queue_refuse(&dev->queues[k]);
	netif_tx_disable(dev->netdev);
	mutex_lock(&dev->queues_lock);
	for (k = 0; k < dev->queues_up; k++)
		pregrant_queue_stop(&dev->queues[k]);
	WRITE_ONCE(dev->queues_up, 0);
	mutex_unlock(&dev->queues_lock);
	return pregrant_back_stop_queues(dev->back);
}

/* Has the queues polled. Below 0: there is no thread for one, or no memory. */
static int start_queues(struct pregrant_device *dev)
{
	int k, n = pregrant_back_start_queues(dev->back);
	int ret = 0;

	if (n < 0)
		return n;
	mutex_lock(&dev->queues_lock);
	for (k = 0; k < n; k++) {
		struct pregrant_back_queue *core = pregrant_back_queue(dev->back, k);

		pregrant_channels_connect(dev, &dev->queues[k], core);
		ret = pregrant_queue_start(&dev->queues[k], core, pregrant_back_queue_counters(dev->back, k));
		if (ret)
			break;
	}
	WRITE_ONCE(dev->queues_up, n);
	mutex_unlock(&dev->queues_lock);
	return ret;
}

/* What waits for a guest that is not connected, or takes nothing, is dropped. */
static void drop_waiting(struct pregrant_device *dev)
{
	unsigned int k;

	for (k = 0; k < dev->max_queues; k++)
		pregrant_queue_purge(&dev->queues[k]);
	if (netif_running(dev->netdev))
		netif_tx_wake_all_queues(dev->netdev);
}

/* Called with `control` held: who chooses the queue of a frame for the guest. */
static void steer(struct pregrant_device *dev, struct pregrant_steer *by)
{
	struct pregrant_steer *old;

	old = rcu_replace_pointer(dev->steering, by, lockdep_is_held(&dev->control));
	if (!old)
		return;
	synchronize_net();
	pregrant_back_steer_free(old);
}

static void disconnected(struct pregrant_device *dev)
{
	netif_carrier_off(dev->netdev);
	WRITE_ONCE(dev->takes, 0);
	WRITE_ONCE(dev->mtu_limit, 0);
	pregrant_guest_leave(dev);
	steer(dev, NULL);
	drop_waiting(dev);
}

/* A step failed, or the guest broke the protocol. The core has the reason. */
static void fail(struct pregrant_device *dev)
{
	stop_queues(dev);
	pregrant_back_close(dev->back);
	disconnected(dev);
}

/* The queues are connected. False: they could not be started. */
static bool connected(struct pregrant_device *dev)
{
	prepare_interface(dev, pregrant_back_nr_queues(dev->back));
	if (pregrant_back_say_connected(dev->back) || start_queues(dev)) {
		fail(dev);
		return false;
	}
	WRITE_ONCE(dev->connects, dev->connects + 1);
	if (netif_running(dev->netdev))
		netif_tx_wake_all_queues(dev->netdev);
	return true;
}

/* Called with `control` held: a connected vif's paths, which the guest's requests change. */
static void note_paths(struct pregrant_device *dev)
{
	char paths[PREGRANT_PATH_ROOM];

	if (!dev->queues_up)
		return;
	pregrant_back_paths(dev->back, paths);
	mutex_lock(&dev->queues_lock);
	memcpy(dev->paths, paths, sizeof(paths));
	mutex_unlock(&dev->queues_lock);
}

/* For who has RTNL: while control runs, they are those of its last run. */
void pregrant_note_paths(struct pregrant_device *dev)
{
	unsigned int flags;

	if (!mutex_trylock(&dev->control))
		return;
	flags = memalloc_noio_save();
	note_paths(dev);
	memalloc_noio_restore(flags);
	mutex_unlock(&dev->control);
}

static void follow_link(struct pregrant_device *dev)
{
	switch (pregrant_back_link(dev->back)) {
	case 1:
		netif_carrier_on(dev->netdev);
		break;
	case 0:
		netif_carrier_off(dev->netdev);
		drop_waiting(dev);
		break;
	}
}

static void poll_queues(struct pregrant_device *dev)
{
	unsigned int k;

	local_bh_disable();
	for (k = 0; k < dev->queues_up; k++)
		pregrant_queue_wake(&dev->queues[k]);
	local_bh_enable();
}

/* Serves the guest's control ring, if it has one. False: the guest broke the protocol on it. */
static bool serve_ring(struct pregrant_device *dev)
{
	unsigned int turns;
	int more = 1;

	for (turns = 0; more > 0 && turns < RING_TURNS; turns++) {
		more = pregrant_back_ring_turn(dev->back);
		/* Queues have a part in some requests. */
		if (more > 0)
			poll_queues(dev);
	}
	if (more > 0)
		pregrant_wake_control(dev);
	return more >= 0;
}

static void follow(struct pregrant_device *dev)
{
	unsigned int steps;

	if (test_and_clear_bit(PREGRANT_EV_FAULT, &dev->events)) {
		if (stop_queues(dev)) {
			fail(dev);
			return;
		}
	}
	if (test_and_clear_bit(PREGRANT_EV_UP, &dev->events)) {
		/* After those to whom that is notified under RTNL. */
		rtnl_lock();
		WRITE_ONCE(dev->is_up, netif_running(dev->netdev));
		rtnl_unlock();
		poll_queues(dev);
	}
	if (test_and_clear_bit(PREGRANT_EV_RATE, &dev->events)) {
		pregrant_back_rate(dev->back);
		/* Their next poll may be as late as the last rate asked for. */
		poll_queues(dev);
	}
	for (steps = 0; steps < STEPS_MAX; steps++) {
		switch (pregrant_guest_step(dev)) {
		case PREGRANT_BACK_RECALL:
			if (stop_queues(dev)) {
				fail(dev);
				return;
			}
			continue;
		case PREGRANT_BACK_CONNECTED:
			if (!connected(dev))
				return;
			continue;
		case PREGRANT_BACK_CLOSED:
			disconnected(dev);
			break;
		case PREGRANT_BACK_LATER:
			queue_delayed_work(pregrant_control, &dev->work, HZ / 20);
			break;
		case PREGRANT_BACK_FAILED:
			fail(dev);
			return;
		}
		break;
	}
	if (!serve_ring(dev)) {
		fail(dev);
		return;
	}
	if (dev->queues_up && pregrant_back_is_steered(dev->back))
		steer(dev, pregrant_back_steering(dev->back));
	note_paths(dev);
	follow_link(dev);
}

/* The interface is there before the core writes state 2. False: it cannot be. */
static bool has_interface(struct pregrant_device *dev)
{
	int ret;

	if (dev->registered)
		return true;
	ret = register_netdev(dev->netdev);
	if (ret) {
		/* A guest that is connected may wait for another back. */
		if (dev->was_left)
			xenbus_dev_error(dev->xbdev, ret, "no interface %s", dev->netdev->name);
		else
			xenbus_dev_fatal(dev->xbdev, ret, "no interface %s", dev->netdev->name);
		dev->bound = false;
		return false;
	}
	dev->registered = true;
	/* For a toolstack that leaves its scripts to udev. */
	kobject_uevent(&dev->xbdev->dev.kobj, KOBJ_ONLINE);
	return true;
}

void pregrant_control_work(struct work_struct *work)
{
	struct pregrant_device *dev = container_of(work, struct pregrant_device, work.work);
	unsigned int flags = memalloc_noio_save(); /* see heap.c */

	mutex_lock(&dev->control);
	if (dev->bound && has_interface(dev)) {
		count_run(dev);
		follow(dev);
		pregrant_maps_tidy();
	}
	mutex_unlock(&dev->control);
	memalloc_noio_restore(flags);
}

/* Called with `control` held, when the device goes: in order, as far as the directory is there. */
void pregrant_end(struct pregrant_device *dev)
{
	if (stop_queues(dev))
		pregrant_back_close(dev->back);
	pregrant_back_end(dev->back);
	disconnected(dev);
}

/*
 * Called with `control` held: the guest's frames wait on its ring from now on, those for it go on.
 * True: they did not before.
 */
static bool hold(struct pregrant_device *dev)
{
	if (dev->held || !dev->queues_up || !pregrant_back_may_leave(dev->back))
		return false;
	dev->held = true;
	return pregrant_back_hold(dev->back);
}

/* Before the module goes with all of its vifs. */
bool pregrant_hold(struct pregrant_device *dev)
{
	unsigned int flags = memalloc_noio_save(); /* see heap.c */
	bool is_new;

	mutex_lock(&dev->control);
	is_new = dev->bound && hold(dev);
	mutex_unlock(&dev->control);
	memalloc_noio_restore(flags);
	return is_new;
}

/* Called with `control` held: answers what the queues have taken. False: not all of it. */
static bool settle(struct pregrant_device *dev)
{
	unsigned long until = jiffies + PREGRANT_SETTLE_SECONDS * HZ;
	bool is_last;
	int left;

	do {
		is_last = time_after(jiffies, until);
		left = pregrant_back_settle(dev->back, is_last);
		if (left > 0 && !is_last)
			msleep(10);
	} while (left > 0 && !is_last);
	return !left;
}

/*
 * Called with `control` held, when the driver lets go of the device: leaves it connected for the
 * next back. False: it must end.
 */
bool pregrant_leave(struct pregrant_device *dev)
{
	if (pregrant_back_is_untouched(dev->back))
		return true;
	if (hold(dev))
		msleep(PREGRANT_ON_THE_WAY_MS);
	if (!dev->held || !pregrant_back_may_leave(dev->back))
		return false;
	if (stop_queues(dev) || !settle(dev)) {
		pregrant_back_close(dev->back);
		return false;
	}
	pregrant_back_leave(dev->back);
	disconnected(dev);
	return true;
}
