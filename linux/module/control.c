// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * The work item that follows the back's state: it may sleep, allocate and talk to xenstore. Frames
 * travel meanwhile, except while the queues' halves go from the front to senders and polls, or
 * back.
 * A back that closes, crashes or is restarted costs the carrier and no more: the core goes through
 * the states and is live again, and the interface and its sockets stay. One that breaks the
 * protocol is hostile: the front closes for good.
 *
 * It waits for no back: a front that closes is looked at again a little later, until its time is
 * over. So the kernel, which waits for work items before it saves the guest, need not wait for a
 * back. Nor does it run whenever a back would have it: after some runs in a row each costs a pause.
 */
#include <linux/delay.h>
#include <linux/freezer.h>
#include <linux/if_ether.h>
#include <linux/jiffies.h>
#include <linux/rtnetlink.h>

#include "driver.h"

/* A back that does not let go of a device: then its pages stay granted, and are not used again. */
#define CLOSE_MS 10000
#define GONE_MS 1000
#define CLOSE_POLL_MS 10
/*
 * Behind the carrier, which the stack follows by a work item of its own: until then nothing is
 * sent.
 */
#define ANNOUNCE_PAUSE HZ
/* Where there was no memory. The back's next state makes it shorter. */
#define SHORTAGE_PAUSE (HZ / 2)
/* Between two looks for a back whose directory cannot be read. */
#define LOOK_PAUSE HZ
/* Runs in a row, and the share of each later one: events, and a back's states, bring them about. */
#define RUNS_AT_ONCE 32
#define RUN_SHARE (HZ / 20 ?: 1)

/* Jiffies until control may run: at least so many. */
static unsigned long paced(const struct pregrant_device *dev, unsigned long delay)
{
	unsigned long now = jiffies, from = READ_ONCE(dev->runs_until) - RUNS_AT_ONCE * RUN_SHARE;

	return time_after(from, now) ? max(delay, from - now) : delay;
}

/* Under `control`: a run uses its share up. A device that is left alone earns all back. */
static void count_run(struct pregrant_device *dev)
{
	unsigned long now = jiffies, until = dev->runs_until;

	WRITE_ONCE(dev->runs_until, (time_after(until, now) ? until : now) + RUN_SHARE);
}

/* From any context, as all that follow in this file and say nothing else. */
void pregrant_wake_control(struct pregrant_device *dev)
{
	mod_delayed_work(pregrant_control, &dev->work, paced(dev, 0));
}

/* Not later than that, if it was not woken meanwhile. */
void pregrant_wake_control_in(struct pregrant_device *dev, unsigned long delay)
{
	queue_delayed_work(pregrant_control, &dev->work, paced(dev, delay));
}

/* The back broke the protocol: from any context. */
void pregrant_fail(struct pregrant_device *dev)
{
	set_bit(0, &dev->failed);
	pregrant_wake_control(dev);
}

/*
 * The guest was restored, or the toolstack gave the vif another back: no frame travels until
 * another front has started. The stack keeps the interface, as when a back has gone.
 */
void pregrant_begin_afresh(struct pregrant_device *dev)
{
	WRITE_ONCE(dev->afresh, true);
	mutex_lock(&dev->lending);
	pregrant_pause(dev);
	mutex_unlock(&dev->lending);
	netif_carrier_off(dev->netdev);
	pregrant_wake_control(dev);
}

/* Under `lending`. No frame travels afterwards, and no poll runs. */
void pregrant_pause(struct pregrant_device *dev)
{
	unsigned int k;

	if (!dev->running)
		return;
	/* It is read under the locks that are taken here. */
	WRITE_ONCE(dev->running, false);
	netif_tx_disable(dev->netdev);
	for (k = 0; k < dev->lent; k++)
		napi_disable(&dev->queues[k].napi);
	/* The last poll may have let senders go on. */
	netif_tx_disable(dev->netdev);
}

/*
 * As above. No event would free skbs that are on their way: sockets and connections are not to
 * wait.
 */
void pregrant_pause_and_drop(struct pregrant_device *dev)
{
	unsigned int k;

	pregrant_pause(dev);
	for (k = 0; k < dev->lent; k++)
		pregrant_queue_drop_kept(&dev->queues[k]);
}

/* Under `lending`. Each queue is polled once: an event may have come meanwhile. */
void pregrant_resume(struct pregrant_device *dev)
{
	unsigned int k;

	if (dev->running || !dev->open || !dev->lent || READ_ONCE(dev->closed) || READ_ONCE(dev->afresh) || dev->suspended)
		return;
	dev->running = true;
	for (k = 0; k < dev->lent; k++) {
		dev->queues[k].tx_event = true;
		napi_enable(&dev->queues[k].napi);
	}
	netif_tx_wake_all_queues(dev->netdev);
	local_bh_disable();
	for (k = 0; k < dev->lent; k++)
		napi_schedule(&dev->queues[k].napi);
	local_bh_enable();
}

/*
 * The guest is to be saved: no frame travels until control runs again, which stands still by now.
 * Behind that grants would be to whatever domain has the old back's number there.
 */
void pregrant_suspend(struct pregrant_device *dev)
{
	mutex_lock(&dev->lending);
	dev->suspended = true;
	pregrant_pause(dev);
	mutex_unlock(&dev->lending);
	pregrant_wake_control(dev);
}

/* Under `control`: the kernel goes on, restored or not. */
static void go_on(struct pregrant_device *dev)
{
	/*
	 * xenbus has not found the back where the guest is now, and said nothing. Or it was so at
	 * an earlier restore, and xenbus does not look again: then the front has found its back
	 * itself.
	 */
	bool moved = READ_ONCE(dev->suspended) && !dev->xbdev->otherend && pregrant_backend_moved(dev);

	mutex_lock(&dev->lending);
	if (dev->suspended) {
		if (moved) {
			WRITE_ONCE(dev->afresh, true);
			/* The toolstack's, which xenbus notes where it finds the back. */
			pregrant_note_state(dev, XenbusStateInitialising);
		}
		dev->suspended = false;
		pregrant_resume(dev);
	}
	mutex_unlock(&dev->lending);
}

/* Under `control`: the front gives its queues away. */
void pregrant_lend(struct pregrant_device *dev)
{
	unsigned int n, k;
	u32 slots[2];

	pregrant_channels_meet(dev);
	pregrant_front_slots(dev->front, slots);
	n = min(pregrant_front_lend(dev->front), dev->max_queues);
	mutex_lock(&dev->lending);
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
	/* Those that the front has no more. */
	for (; k < dev->max_queues; k++)
		pregrant_pieces_drop(&dev->queues[k]);
	memcpy(dev->slots, slots, sizeof(slots));
	pregrant_front_path(dev->front, &dev->settings, dev->used_path);
	WRITE_ONCE(dev->lent, n);
	mutex_unlock(&dev->lending);
}

/* Under `control`. Pages stay with the back until it closes, which may be never. */
static void close_for_good(struct pregrant_device *dev)
{
	mutex_lock(&dev->lending);
	WRITE_ONCE(dev->closed, true);
	pregrant_pause_and_drop(dev);
	mutex_unlock(&dev->lending);
	pregrant_front_close(dev->front);
}

/* Under `control`: it has them back. */
void pregrant_take_back(struct pregrant_device *dev)
{
	unsigned int k;

	mutex_lock(&dev->lending);
	pregrant_pause_and_drop(dev);
	for (k = 0; k < dev->lent; k++) {
		dev->queues[k].tx = NULL;
		dev->queues[k].rx = NULL;
	}
	WRITE_ONCE(dev->lent, 0);
	mutex_unlock(&dev->lending);
	pregrant_front_take_back(dev->front);
}

/* Under `control`: after a fault of the back. */
static void handle_fault(struct pregrant_device *dev)
{
	if (test_and_clear_bit(0, &dev->failed))
		close_for_good(dev);
}

/* Under `control`. If the back's state allows it now. */
static void follow(struct pregrant_device *dev)
{
	if (pregrant_front_step(dev->front)) {
		pregrant_take_back(dev);
		/* It is this connection's, not the next one's. */
		handle_fault(dev);
		pregrant_front_step(dev->front);
	}
}

/* With RTNL, which is never asked for under `control`. */
static void tell_stack(struct pregrant_device *dev)
{
	unsigned int n = READ_ONCE(dev->lent);
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
	unsigned int was = dev->lent;
	bool connected;

	handle_fault(dev);
	follow(dev);
	if (pregrant_front_is_live(dev->front) && pregrant_front_turn(dev->front) < 0) {
		close_for_good(dev);
		follow(dev);
	}
	if (was && !pregrant_front_is_live(dev->front) && netif_carrier_ok(dev->netdev)) {
		if (__ratelimit(&dev->says))
			netdev_info(dev->netdev, "the back is gone\n");
		netif_carrier_off(dev->netdev);
	}
	connected = !dev->lent && pregrant_front_is_live(dev->front);
	if (!connected)
		return;
	pregrant_lend(dev);
	WRITE_ONCE(dev->connects, dev->connects + 1);
	WRITE_ONCE(dev->grows_at, jiffies);
	mutex_unlock(&dev->control);
	tell_stack(dev);
	mutex_lock(&dev->control);
	/* It may have gone meanwhile. */
	if (!dev->lent || dev->gone)
		return;
	netif_carrier_on(dev->netdev);
	mutex_lock(&dev->lending);
	pregrant_resume(dev);
	mutex_unlock(&dev->lending);
	pregrant_multicast(dev, true);
	dev->announce_at = jiffies + ANNOUNCE_PAUSE ?: 1;
}

/* Under `control`: the network may find this address at another port since it connected. */
static void announce(struct pregrant_device *dev)
{
	if (time_before(jiffies, dev->announce_at))
		return;
	dev->announce_at = 0;
	mutex_unlock(&dev->control);
	netdev_notify_peers(dev->netdev);
	mutex_lock(&dev->control);
}

/*
 * Under `control`: the front is to end, which may take a while. `has_ended` says when it has, and
 * is to be asked until then.
 */
static void begin_end(struct pregrant_device *dev)
{
	if (dev->ends)
		return;
	pregrant_take_back(dev);
	dev->ends = true;
	dev->ends_unheard = false;
	dev->ends_by = jiffies + msecs_to_jiffies(CLOSE_MS);
	/* There is no directory, or it is the next front's: see below. */
	if (!READ_ONCE(dev->afresh) && !pregrant_is_gone(dev))
		pregrant_front_close(dev->front);
}

static void ends_no_later(struct pregrant_device *dev, unsigned long at)
{
	if (time_before(at, dev->ends_by))
		dev->ends_by = at;
}

/*
 * Under `control`. True: the back has let go, or its time is over, and the front's memory is the
 * kernel's again, but for pages that the back has.
 */
static bool has_ended(struct pregrant_device *dev)
{
	unsigned int k;

	if (!dev->ends_unheard && (READ_ONCE(dev->afresh) || pregrant_is_gone(dev))) {
		dev->ends_unheard = true;
		ends_no_later(dev, jiffies + msecs_to_jiffies(GONE_MS));
	}
	if (dev->ends_unheard)
		pregrant_front_abandon(dev->front);
	else
		pregrant_front_step(dev->front);
	if (!pregrant_front_is_closed(dev->front)) {
		if (time_before(jiffies, dev->ends_by))
			return false;
		netdev_warn(dev->netdev, "the back does not let go: %llu pages stay granted\n",
			    pregrant_front_kept_pages(dev->front));
	}
	pregrant_front_free(dev->front);
	dev->front = NULL;
	dev->ends = false;
	WRITE_ONCE(dev->kept_pages, 0);
	pregrant_pool_show(dev);
	for (k = 0; k < dev->max_queues; k++)
		pregrant_pieces_drop(&dev->queues[k]);
	return true;
}

/*
 * Under `control`, of a device that goes: this waits. Not where the kernel waits for the task that
 * does.
 */
void pregrant_end(struct pregrant_device *dev)
{
	if (!dev->front)
		return;
	begin_end(dev);
	while (!has_ended(dev)) {
		if (freezing(current))
			ends_no_later(dev, jiffies);
		else
			msleep(CLOSE_POLL_MS);
	}
}

/* Under `control`: a front by the settings, for the back that the front's directory has. */
int pregrant_begin(struct pregrant_device *dev)
{
	int ret = pregrant_backend_find(dev);

	if (ret)
		return ret;
	WRITE_ONCE(dev->failed, 0);
	WRITE_ONCE(dev->closed, false);
	dev->front = pregrant_front_new(dev, dev->back_id, &dev->settings);
	return dev->front ? 0 : -EINVAL;
}

/* Under `control`: there is no front. What another's back did is over. */
static bool begin(struct pregrant_device *dev)
{
	if (READ_ONCE(dev->afresh)) {
		WRITE_ONCE(dev->lends_none, false);
		atomic_set(&dev->pieces_kept, 0);
		WRITE_ONCE(dev->afresh, false);
	}
	if (!pregrant_begin(dev)) {
		dev->said_missing = false;
		return true;
	}
	if (!dev->said_missing)
		netdev_warn(dev->netdev, "%s names no back: it is looked for each second\n", dev->xbdev->nodename);
	dev->said_missing = true;
	return false;
}

/* Under `control`: `ethtool -L`. A back that broke the protocol gets no other chance by it. */
static void restart_with(struct pregrant_device *dev, unsigned int queues)
{
	WRITE_ONCE(dev->settings.queues, queues);
	if (!dev->front)
		return;
	/* No frame finds a fault afterwards, which the end would forget. */
	netif_carrier_off(dev->netdev);
	pregrant_take_back(dev);
	handle_fault(dev);
	if (!dev->closed)
		begin_end(dev);
}

/* Under `control`: for all that the front can allocate in a call. False: there is no memory. */
bool pregrant_take_reserve(struct pregrant_device *dev)
{
	struct pregrant_reserve *reserve = dev->reserve;

	if (!reserve || !pregrant_reserve_is_enough(reserve)) {
		reserve = pregrant_reserve_new(dev->max_queues, PREGRANT_SLOTS << dev->settings.ring_order,
					       pregrant_front_more(&dev->settings));
		if (!reserve)
			return false;
		pregrant_reserve_free(dev->reserve);
		dev->reserve = reserve;
	}
	pregrant_reserve_use(reserve);
	return true;
}

void pregrant_rest_reserve(struct pregrant_device *dev)
{
	pregrant_reserve_rest(dev->reserve);
}

/* Under `control`: all is as it was, and is tried again. */
static void put_off(struct pregrant_device *dev)
{
	static const char says[] = "no memory to follow the back: tries again";

	if (!dev->short_of_memory)
		pk_error_write(dev, -ENOMEM, says, sizeof(says) - 1);
	dev->short_of_memory = true;
	pregrant_wake_control_in(dev, SHORTAGE_PAUSE);
}

/* Jiffies until control has something to do though nothing happens; ULONG_MAX: it has not. */
static unsigned long due_in(struct pregrant_device *dev)
{
	u64 at = pregrant_front_begins_at(dev->front);
	unsigned long due = ULONG_MAX, now = jiffies;

	if (at) {
		u64 now_ns = pk_now_ns();

		due = msecs_to_jiffies(at > now_ns ? div_u64(at - now_ns, NSEC_PER_MSEC) + 1 : 1);
	}
	if (dev->announce_at && dev->lent)
		due = min(due, time_after(dev->announce_at, now) ? dev->announce_at - now : 0);
	if (dev->back_unseen || !dev->state_watch)
		due = min_t(unsigned long, due, LOOK_PAUSE);
	return due;
}

/* Under `control`, with a reserve: what was asked for. False: there is no front to step now. */
static bool has_front(struct pregrant_device *dev)
{
	unsigned int queues = xchg(&dev->restart_queues, 0);

	go_on(dev);
	if (xchg(&dev->state_fired, false))
		pregrant_backend_seen(dev);
	if (xchg(&dev->key_fired, false))
		pregrant_backend_look(dev);
	if (queues)
		restart_with(dev, queues);
	if (READ_ONCE(dev->afresh) && dev->front) {
		netif_carrier_off(dev->netdev);
		begin_end(dev);
	}
	if (dev->ends && !has_ended(dev)) {
		pregrant_wake_control_in(dev, msecs_to_jiffies(CLOSE_POLL_MS));
		return false;
	}
	if (dev->front || begin(dev))
		return true;
	pregrant_wake_control_in(dev, LOOK_PAUSE);
	return false;
}

/* Under `control`, with a reserve. */
static void control(struct pregrant_device *dev)
{
	unsigned long due;
	unsigned int k;
	bool shrinks;

	if (dev->short_of_memory)
		pk_error_remove(dev);
	dev->short_of_memory = false;
	if (!has_front(dev))
		return;
	shrinks = xchg(&dev->shrinks, false);
	step(dev);
	pregrant_pool_control(dev, shrinks);
	pregrant_pool_show(dev);
	/* It may have taken our pages meanwhile. */
	if (dev->lent) {
		WRITE_ONCE(dev->takes, pregrant_front_takes(dev->front));
		for (k = 0; k < dev->lent; k++)
			pregrant_pieces_allow(&dev->queues[k]);
		mutex_lock(&dev->lending);
		pregrant_front_path(dev->front, &dev->settings, dev->used_path);
		mutex_unlock(&dev->lending);
	}
	if (dev->announce_at && dev->lent)
		announce(dev);
	if (xchg(&dev->mc_again, false))
		pregrant_multicast(dev, false);
	WRITE_ONCE(dev->kept_pages, pregrant_front_kept_pages(dev->front));
	due = due_in(dev);
	if (due != ULONG_MAX)
		pregrant_wake_control_in(dev, due);
}

void pregrant_control_work(struct work_struct *work)
{
	struct pregrant_device *dev = container_of(to_delayed_work(work), struct pregrant_device, work);

	mutex_lock(&dev->control);
	if (!dev->gone) {
		count_run(dev);
		/* It allocates nothing: where memory is short there may be no reserve. */
		if (READ_ONCE(dev->shrinks) && dev->front)
			pregrant_front_release_idle(dev->front);
		if (pregrant_take_reserve(dev)) {
			control(dev);
			pregrant_rest_reserve(dev);
		} else {
			put_off(dev);
		}
	}
	mutex_unlock(&dev->control);
}
