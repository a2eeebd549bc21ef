// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * The work item that follows the backend's xenbus state. It may sleep, allocate and use xenstore.
 * Traffic goes on meanwhile, except while queues are started or stopped.
 *
 * When a backend closes, crashes or is restarted, the interface loses its carrier and nothing else:
 * the core reconnects, and sockets stay. A backend that breaks the protocol is hostile: the front
 * closes until the device is bound again.
 *
 * Control never waits for a backend: it looks at a closing front again a little later, until
 * `close_by`. So suspend, which freezes work items, does not wait for a backend either. And a
 * backend cannot make control run all the time: after RUNS_AT_ONCE runs each further one costs a
 * pause.
 */
#include <linux/delay.h>
#include <linux/freezer.h>
#include <linux/if_ether.h>
#include <linux/jiffies.h>
#include <linux/rtnetlink.h>
#include <linux/sched/mm.h>

#include "driver.h"
#include "pacing.h"

/* How long a backend may take to unmap; then the pages stay granted, and are never used again. */
#define CLOSE_MS 10000
#define GONE_MS 1000
#define CLOSE_POLL_MS 10
/* The time from carrier on to gratuitous ARP, in which linkwatch activates the qdisc. */
#define ANNOUNCE_PAUSE HZ
/* The interval at which a backend is looked for whose directory cannot be read. */
#define LOOK_PAUSE HZ

/* Wakes control now. This and the next two functions may be called in any context. */
void pregrant_wake_control(struct pregrant_device *dev)
{
	mod_delayed_work(pregrant_control, &dev->work, paced(dev, 0));
}

/* Wakes control in `delay` jiffies, or earlier if it is due earlier. */
void pregrant_wake_control_in(struct pregrant_device *dev, unsigned long delay)
{
	queue_delayed_work(pregrant_control, &dev->work, paced(dev, delay));
}

/* The backend broke the protocol. */
void pregrant_fail(struct pregrant_device *dev)
{
	set_bit(PREGRANT_EV_FAULT, &dev->events);
	pregrant_wake_control(dev);
}

/*
 * The guest was restored, or the toolstack gave the vif another backend: stops traffic until
 * another front is connected. The interface stays, without carrier.
 */
void pregrant_reset(struct pregrant_device *dev)
{
	set_bit(PREGRANT_EV_RESET, &dev->events);
	mutex_lock(&dev->queues_lock);
	pregrant_pause(dev);
	mutex_unlock(&dev->queues_lock);
	netif_carrier_off(dev->netdev);
	pregrant_wake_control(dev);
}

/* Called with `queues_lock` held: pauses the queues. Afterwards no xmit and no NAPI runs. */
void pregrant_pause(struct pregrant_device *dev)
{
	unsigned int k;

	if (!dev->running)
		return;
	/* Readers hold the locks that netif_tx_disable() takes. */
	WRITE_ONCE(dev->running, false);
	netif_tx_disable(dev->netdev);
	for (k = 0; k < dev->queues_up; k++)
		napi_disable(&dev->queues[k].napi);
	/* The last poll may have woken a queue. */
	netif_tx_disable(dev->netdev);
}

/*
 * Like pregrant_pause(), and frees the skbs in flight: no event would do that while the queues are
 * paused, and sockets must not wait.
 */
void pregrant_pause_and_drop(struct pregrant_device *dev)
{
	unsigned int k;

	pregrant_pause(dev);
	for (k = 0; k < dev->queues_up; k++)
		pregrant_queue_drop_kept(&dev->queues[k]);
}

/*
 * Called with `queues_lock` held: lets xmit and NAPI run, and polls each queue once, since events
 * may have been missed.
 */
void pregrant_resume(struct pregrant_device *dev)
{
	unsigned int k;

	if (dev->running || !dev->open || !dev->queues_up || dev->suspended)
		return;
	if (READ_ONCE(dev->state) != PREGRANT_FOLLOWING || test_bit(PREGRANT_EV_RESET, &dev->events))
		return;
	dev->running = true;
	for (k = 0; k < dev->queues_up; k++) {
		dev->queues[k].tx_event = true;
		napi_enable(&dev->queues[k].napi);
	}
	netif_tx_wake_all_queues(dev->netdev);
	local_bh_disable();
	for (k = 0; k < dev->queues_up; k++)
		napi_schedule(&dev->queues[k].napi);
	local_bh_enable();
}

/*
 * The guest is about to be saved: stops traffic until control, which is frozen by now, runs again.
 * After a restore a grant would be to whichever domain has the old backend's domid there.
 */
void pregrant_suspend(struct pregrant_device *dev)
{
	mutex_lock(&dev->queues_lock);
	dev->suspended = true;
	pregrant_pause(dev);
	mutex_unlock(&dev->queues_lock);
	pregrant_wake_control(dev);
}

/* Called with `control` held: continues after a suspend, whether the guest was restored or not. */
static void go_on(struct pregrant_device *dev)
{
	/*
	 * otherend is NULL: xenbus did not find the backend after a restore, and called no resume
	 * function. After an earlier restore of that kind it stays NULL, though the front has found
	 * its backend.
	 */
	bool moved = READ_ONCE(dev->suspended) && !dev->xbdev->otherend && pregrant_backend_moved(dev);

	mutex_lock(&dev->queues_lock);
	if (dev->suspended) {
		if (moved) {
			set_bit(PREGRANT_EV_RESET, &dev->events);
			/*
			 * The toolstack wrote state 1; xenbus notices that only if it finds the
			 * backend.
			 */
			pregrant_note_state(dev, XenbusStateInitialising);
		}
		dev->suspended = false;
		pregrant_resume(dev);
	}
	mutex_unlock(&dev->queues_lock);
}

/* Gives xmit and NAPI the queues, with `control` held. pregrant_resume() enables NAPI. */
void pregrant_start_queues(struct pregrant_device *dev)
{
	unsigned int n, k;
	u32 slots[2];

	pregrant_channels_connect(dev);
	pregrant_front_slots(dev->front, slots);
	n = min(pregrant_front_start_queues(dev->front), dev->max_queues);
	mutex_lock(&dev->queues_lock);
	WRITE_ONCE(dev->takes, pregrant_front_takes(dev->front));
	for (k = 0; k < n; k++) {
		pregrant_queue_drop_kept(&dev->queues[k]);
		dev->queues[k].tx = pregrant_front_tx(dev->front, k);
		dev->queues[k].rx = pregrant_front_rx(dev->front, k);
		pregrant_pieces_begin(&dev->queues[k]);
		dev->queues[k].sends_on = pregrant_tx_sends_on(dev->queues[k].tx);
		dev->queues[k].buffers_out = 0;
		memset(dev->queues[k].rx_counters, 0, sizeof(dev->queues[k].rx_counters));
	}
	/* These queues belong to an earlier connection, which had more. */
	for (; k < dev->max_queues; k++)
		pregrant_pieces_drop(&dev->queues[k]);
	memcpy(dev->slots, slots, sizeof(slots));
	pregrant_front_path(dev->front, &dev->settings, dev->used_path);
	WRITE_ONCE(dev->queues_up, n);
	mutex_unlock(&dev->queues_lock);
}

/*
 * Called with `control` held: the backend broke the protocol. Pages stay granted to it until it
 * closes, which may be never.
 */
static void close_for_good(struct pregrant_device *dev)
{
	mutex_lock(&dev->queues_lock);
	if (dev->state == PREGRANT_FOLLOWING)
		WRITE_ONCE(dev->state, PREGRANT_BROKEN);
	pregrant_pause_and_drop(dev);
	mutex_unlock(&dev->queues_lock);
	pregrant_front_close(dev->front);
}

/* Called with `control` held: pauses the queues and gives them back to the front. */
void pregrant_stop_queues(struct pregrant_device *dev)
{
	unsigned int k;

	mutex_lock(&dev->queues_lock);
	pregrant_pause_and_drop(dev);
	for (k = 0; k < dev->queues_up; k++) {
		dev->queues[k].tx = NULL;
		dev->queues[k].rx = NULL;
	}
	WRITE_ONCE(dev->queues_up, 0);
	mutex_unlock(&dev->queues_lock);
	pregrant_front_stop_queues(dev->front);
}

/* Called with `control` held: closes the front if the backend broke the protocol. */
static void handle_fault(struct pregrant_device *dev)
{
	if (test_and_clear_bit(PREGRANT_EV_FAULT, &dev->events))
		close_for_good(dev);
}

/* Called with `control` held: one step of the front, which may need the queues for it. */
static void follow(struct pregrant_device *dev)
{
	if (pregrant_front_step(dev->front)) {
		pregrant_stop_queues(dev);
		/* A fault that was seen before belongs to this connection, not to the next one. */
		handle_fault(dev);
		pregrant_front_step(dev->front);
	}
}

/*
 * Adapts the net_device to a new connection. Called without `control` held, since this takes RTNL.
 */
static void update_netdev(struct pregrant_device *dev)
{
	unsigned int n = READ_ONCE(dev->queues_up);
	struct net_device *netdev = dev->netdev;

	if (!n)
		return;
	rtnl_lock();
	netif_set_real_num_tx_queues(netdev, n);
	netif_set_real_num_rx_queues(netdev, n);
	netdev_update_features(netdev);
	if (!(READ_ONCE(dev->takes) & PREGRANT_TAKES_SG) && netdev->mtu > ETH_DATA_LEN) {
		netdev_warn(netdev, "this back takes no longer frames: MTU %u\n", ETH_DATA_LEN);
		dev_set_mtu(netdev, ETH_DATA_LEN);
	}
	rtnl_unlock();
}

static void step(struct pregrant_device *dev)
{
	unsigned int was = dev->queues_up;
	bool connected;

	handle_fault(dev);
	follow(dev);
	if (pregrant_front_is_live(dev->front) && pregrant_front_turn(dev->front) < 0) {
		close_for_good(dev);
		follow(dev);
	}
	if (was && !pregrant_front_is_live(dev->front) && netif_carrier_ok(dev->netdev)) {
		if (__ratelimit(&dev->log_limit))
			netdev_info(dev->netdev, "the back is gone\n");
		netif_carrier_off(dev->netdev);
	}
	connected = !dev->queues_up && pregrant_front_is_live(dev->front);
	if (!connected)
		return;
	pregrant_start_queues(dev);
	WRITE_ONCE(dev->connects, dev->connects + 1);
	WRITE_ONCE(dev->grow_after, jiffies);
	mutex_unlock(&dev->control);
	update_netdev(dev);
	mutex_lock(&dev->control);
	/* The connection or the device may be gone meanwhile. */
	if (!dev->queues_up || !dev->bound)
		return;
	netif_carrier_on(dev->netdev);
	mutex_lock(&dev->queues_lock);
	pregrant_resume(dev);
	mutex_unlock(&dev->queues_lock);
	pregrant_multicast(dev, true);
	dev->announce_at = jiffies + ANNOUNCE_PAUSE ?: 1;
}

/*
 * Called with `control` held: switches may know the MAC address at the port of an earlier backend.
 */
static void announce(struct pregrant_device *dev)
{
	if (time_before(jiffies, dev->announce_at))
		return;
	dev->announce_at = 0;
	mutex_unlock(&dev->control);
	netdev_notify_peers(dev->netdev);
	mutex_lock(&dev->control);
}

/* True if a front of another backend, or none, has the xenstore directory. */
static bool has_lost_directory(struct pregrant_device *dev)
{
	return test_bit(PREGRANT_EV_RESET, &dev->events) || pregrant_is_gone(dev);
}

/* Called with `control` held: starts to close the front. Then call try_free() until it is freed. */
static void start_closing(struct pregrant_device *dev)
{
	if (dev->state == PREGRANT_CLOSING || dev->state == PREGRANT_ABANDONING)
		return;
	pregrant_stop_queues(dev);
	WRITE_ONCE(dev->state, PREGRANT_CLOSING);
	dev->close_by = jiffies + msecs_to_jiffies(CLOSE_MS);
	if (!has_lost_directory(dev))
		pregrant_front_close(dev->front);
}

static void close_no_later(struct pregrant_device *dev, unsigned long at)
{
	if (time_before(at, dev->close_by))
		dev->close_by = at;
}

/*
 * Called with `control` held, while the front is CLOSING or ABANDONING. True: the backend has let
 * go, or its time is over, and the front is freed. Pages that the backend still maps stay granted,
 * and allocated.
 */
static bool try_free(struct pregrant_device *dev)
{
	unsigned int k;

	if (dev->state == PREGRANT_CLOSING && has_lost_directory(dev)) {
		WRITE_ONCE(dev->state, PREGRANT_ABANDONING);
		close_no_later(dev, jiffies + msecs_to_jiffies(GONE_MS));
	}
	if (dev->state == PREGRANT_ABANDONING)
		pregrant_front_abandon(dev->front);
	else
		pregrant_front_step(dev->front);
	if (!pregrant_front_is_closed(dev->front)) {
		if (time_before(jiffies, dev->close_by))
			return false;
		netdev_warn(dev->netdev, "the back does not let go: %llu pages stay granted\n",
			    pregrant_front_kept_pages(dev->front));
	}
	pregrant_front_free(dev->front);
	dev->front = NULL;
	WRITE_ONCE(dev->state, PREGRANT_NO_FRONT);
	WRITE_ONCE(dev->kept_pages, 0);
	pregrant_pool_show(dev);
	for (k = 0; k < dev->max_queues; k++)
		pregrant_pieces_drop(&dev->queues[k]);
	return true;
}

/*
 * Called with `control` held, on remove: waits until the front is freed. It does not wait while the
 * kernel freezes this task.
 */
void pregrant_end(struct pregrant_device *dev)
{
	if (!dev->front)
		return;
	start_closing(dev);
	while (!try_free(dev)) {
		if (freezing(current))
			close_no_later(dev, jiffies);
		else
			msleep(CLOSE_POLL_MS);
	}
}

/* Called with `control` held: makes a front, for the backend that the xenstore directory names. */
int pregrant_begin(struct pregrant_device *dev)
{
	int ret = pregrant_backend_find(dev);

	if (ret)
		return ret;
	clear_bit(PREGRANT_EV_FAULT, &dev->events);
	atomic_set(&dev->fault_logged, 0);
	dev->front = pregrant_front_new(dev, dev->back_id, &dev->settings);
	if (!dev->front)
		return -EINVAL;
	WRITE_ONCE(dev->state, PREGRANT_FOLLOWING);
	return 0;
}

/*
 * Called with `control` held, in state NO_FRONT: makes a front. Faults of an earlier backend do not
 * count for it.
 */
static bool begin(struct pregrant_device *dev)
{
	if (test_bit(PREGRANT_EV_RESET, &dev->events)) {
		WRITE_ONCE(dev->grants_stopped, false);
		atomic_set(&dev->pieces_kept, 0);
		clear_bit(PREGRANT_EV_RESET, &dev->events);
	}
	if (!pregrant_begin(dev)) {
		dev->no_backend_logged = false;
		return true;
	}
	if (!dev->no_backend_logged)
		netdev_warn(dev->netdev, "%s names no back: it is looked for each second\n", dev->xbdev->nodename);
	dev->no_backend_logged = true;
	return false;
}

/*
 * Called with `control` held: reconnects with `queues` queues, for ethtool -L. BROKEN stays as it
 * is.
 */
static void restart_with(struct pregrant_device *dev, unsigned int queues)
{
	WRITE_ONCE(dev->settings.queues, queues);
	if (!dev->front)
		return;
	/* Queues stop first: the new front would forget a fault that is found later. */
	netif_carrier_off(dev->netdev);
	pregrant_stop_queues(dev);
	handle_fault(dev);
	if (dev->state != PREGRANT_BROKEN)
		start_closing(dev);
}

/*
 * Returns the number of jiffies until control has something to do without an event; ULONG_MAX: it
 * has nothing to do.
 */
static unsigned long due_in(struct pregrant_device *dev)
{
	u64 at = pregrant_front_begins_at(dev->front);
	unsigned long due = ULONG_MAX, now = jiffies;

	if (at) {
		u64 now_ns = pk_now_ns();

		due = msecs_to_jiffies(at > now_ns ? div_u64(at - now_ns, NSEC_PER_MSEC) + 1 : 1);
	}
	if (dev->announce_at && dev->queues_up)
		due = min(due, time_after(dev->announce_at, now) ? dev->announce_at - now : 0);
	if (dev->backend_unreadable || !dev->state_watch)
		due = min_t(unsigned long, due, LOOK_PAUSE);
	return due;
}

/* Called with `control` held: handles events and requests. False: there is no front to step. */
static bool has_front(struct pregrant_device *dev)
{
	unsigned int queues = xchg(&dev->restart_queues, 0);

	go_on(dev);
	if (test_and_clear_bit(PREGRANT_EV_BACKEND_STATE, &dev->events))
		pregrant_backend_seen(dev);
	if (test_and_clear_bit(PREGRANT_EV_BACKEND_KEY, &dev->events))
		pregrant_backend_look(dev);
	if (queues)
		restart_with(dev, queues);
	if (test_bit(PREGRANT_EV_RESET, &dev->events) && dev->front) {
		netif_carrier_off(dev->netdev);
		start_closing(dev);
	}
	switch (dev->state) {
	case PREGRANT_FOLLOWING:
	case PREGRANT_BROKEN:
		return true;
	case PREGRANT_CLOSING:
	case PREGRANT_ABANDONING:
		if (!try_free(dev)) {
			pregrant_wake_control_in(dev, msecs_to_jiffies(CLOSE_POLL_MS));
			return false;
		}
		fallthrough;
	case PREGRANT_NO_FRONT:
		break;
	}
	if (begin(dev))
		return true;
	pregrant_wake_control_in(dev, LOOK_PAUSE);
	return false;
}

/* Called with `control` held: handles what has happened, and steps the front. */
static void control(struct pregrant_device *dev)
{
	unsigned long due;
	unsigned int k;
	bool shrinks;

	if (!has_front(dev))
		return;
	shrinks = test_and_clear_bit(PREGRANT_EV_SHRINK, &dev->events);
	step(dev);
	pregrant_pool_control(dev, shrinks);
	pregrant_pool_show(dev);
	/* The mappings of the backend decide whether skb pages may be granted. */
	if (dev->queues_up) {
		WRITE_ONCE(dev->takes, pregrant_front_takes(dev->front));
		for (k = 0; k < dev->queues_up; k++)
			pregrant_pieces_allow(&dev->queues[k]);
		mutex_lock(&dev->queues_lock);
		pregrant_front_path(dev->front, &dev->settings, dev->used_path);
		mutex_unlock(&dev->queues_lock);
	}
	if (dev->announce_at && dev->queues_up)
		announce(dev);
	if (test_and_clear_bit(PREGRANT_EV_MULTICAST, &dev->events))
		pregrant_multicast(dev, false);
	WRITE_ONCE(dev->kept_pages, pregrant_front_kept_pages(dev->front));
	due = due_in(dev);
	if (due != ULONG_MAX)
		pregrant_wake_control_in(dev, due);
}

void pregrant_control_work(struct work_struct *work)
{
	struct pregrant_device *dev = container_of(to_delayed_work(work), struct pregrant_device, work);
	unsigned int flags = memalloc_noio_save(); /* see heap.c */

	mutex_lock(&dev->control);
	if (dev->bound) {
		count_run(dev);
		/* Needs no memory, so it comes before all that may have to wait for some. */
		if (test_bit(PREGRANT_EV_SHRINK, &dev->events) && dev->front)
			pregrant_front_release_idle(dev->front);
		control(dev);
	}
	mutex_unlock(&dev->control);
	memalloc_noio_restore(flags);
}

/* Logs one line per connection, whichever queues see a fault. */
void pk_fault(struct pregrant_device *dev, const char *text, size_t len)
{
	if (!atomic_xchg(&dev->fault_logged, 1))
		netdev_err(dev->netdev, "the back broke the protocol: %.*s; closed until it is bound again\n",
			   (int)min_t(size_t, len, 256), text);
}
