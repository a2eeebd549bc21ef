// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * The work item that follows the back's state: it may sleep, allocate and talk to xenstore. Frames
 * travel meanwhile, except while the queues' halves go from the front to senders and polls, or
 * back.
 * A back that closes, crashes or is restarted costs the carrier and no more: the core goes through
 * the states and is live again, and the interface and its sockets stay. One that breaks the
 * protocol is hostile: the front closes for good.
 */
#include <linux/delay.h>
#include <linux/if_ether.h>
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

void pregrant_wake_control(struct pregrant_device *dev)
{
	mod_delayed_work(pregrant_control, &dev->work, 0);
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

	if (dev->running || !dev->open || !dev->lent || READ_ONCE(dev->closed) || READ_ONCE(dev->afresh))
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
	queue_delayed_work(pregrant_control, &dev->work, ANNOUNCE_PAUSE);
}

/* Under `control`: the network may find this address at another port since it connected. */
static void announce(struct pregrant_device *dev)
{
	unsigned long now = jiffies;

	if (time_before(now, dev->announce_at)) {
		queue_delayed_work(pregrant_control, &dev->work, dev->announce_at - now);
		return;
	}
	dev->announce_at = 0;
	mutex_unlock(&dev->control);
	netdev_notify_peers(dev->netdev);
	mutex_lock(&dev->control);
}

/* Under `control`: `ethtool -L`. A back that broke the protocol gets no other chance by it. */
static void restart_with(struct pregrant_device *dev, unsigned int queues)
{
	netif_carrier_off(dev->netdev);
	if (dev->front) {
		/* No frame finds a fault afterwards, which the end would forget. */
		pregrant_take_back(dev);
		handle_fault(dev);
	}
	if (dev->closed)
		return;
	WRITE_ONCE(dev->settings.queues, queues);
	pregrant_end(dev);
	if (pregrant_begin(dev))
		netdev_err(dev->netdev, "cannot restart\n");
}

/* Under `control`: another back may be at the other end. */
static void begin_afresh(struct pregrant_device *dev)
{
	netif_carrier_off(dev->netdev);
	pregrant_end(dev);
	WRITE_ONCE(dev->lends_none, false);
	atomic_set(&dev->pieces_kept, 0);
	WRITE_ONCE(dev->afresh, false);
	if (pregrant_begin(dev))
		netdev_err(dev->netdev, "cannot begin again\n");
}

/* For all that the front can allocate in a call. */
struct pregrant_reserve *pregrant_reserve_for(const struct pregrant_device *dev)
{
	return pregrant_reserve_begin(dev->max_queues, PREGRANT_SLOTS << dev->settings.ring_order,
				      pregrant_front_more(&dev->settings));
}

/* Under `control`: all is as it was, and is tried again. */
static void put_off(struct pregrant_device *dev)
{
	static const char says[] = "no memory to follow the back: tries again";

	if (!dev->short_of_memory)
		pk_error_write(dev, -ENOMEM, says, sizeof(says) - 1);
	dev->short_of_memory = true;
	queue_delayed_work(pregrant_control, &dev->work, SHORTAGE_PAUSE);
}

/* Under `control`, with a reserve. */
static void control(struct pregrant_device *dev)
{
	unsigned int queues = xchg(&dev->restart_queues, 0), k;
	bool shrinks;
	u64 at;

	if (dev->short_of_memory)
		pk_error_remove(dev);
	dev->short_of_memory = false;
	if (READ_ONCE(dev->afresh)) {
		if (queues)
			WRITE_ONCE(dev->settings.queues, queues);
		queues = 0;
		begin_afresh(dev);
	}
	if (queues)
		restart_with(dev, queues);
	shrinks = xchg(&dev->shrinks, false);
	if (shrinks && dev->front)
		pregrant_front_release_idle(dev->front);
	if (dev->front)
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
	WRITE_ONCE(dev->kept_pages, dev->front ? pregrant_front_kept_pages(dev->front) : 0);
	at = dev->front ? pregrant_front_begins_at(dev->front) : 0;
	if (at) {
		u64 now = pk_now_ns();
		u64 wait = at > now ? div_u64(at - now, NSEC_PER_MSEC) + 1 : 1;

		/* Not where it was woken meanwhile. */
		queue_delayed_work(pregrant_control, &dev->work, msecs_to_jiffies(wait));
	}
}

void pregrant_control_work(struct work_struct *work)
{
	struct pregrant_device *dev = container_of(to_delayed_work(work), struct pregrant_device, work);
	struct pregrant_reserve *reserve;

	mutex_lock(&dev->control);
	if (!dev->gone) {
		reserve = pregrant_reserve_for(dev);
		if (reserve) {
			control(dev);
			pregrant_reserve_end(reserve);
		} else {
			put_off(dev);
		}
	}
	mutex_unlock(&dev->control);
}

/* Under `control`: a front by the settings. What another's back did is over. */
int pregrant_begin(struct pregrant_device *dev)
{
	WRITE_ONCE(dev->failed, 0);
	WRITE_ONCE(dev->closed, false);
	dev->front = pregrant_front_new(dev, dev->xbdev->otherend_id, &dev->settings);
	return dev->front ? 0 : -EINVAL;
}

/* Under `control`: until the back has let go, or for so long. */
static void wait_for_close(struct pregrant_device *dev)
{
	bool is_gone = false;
	unsigned int waited;

	for (waited = 0; waited < (is_gone ? GONE_MS : CLOSE_MS); waited += CLOSE_POLL_MS) {
		/* The toolstack took it: the back lets go soon, or not at all. */
		is_gone = is_gone || pregrant_is_gone(dev);
		if (is_gone)
			pregrant_front_removed(dev->front);
		pregrant_front_step(dev->front);
		if (pregrant_front_is_closed(dev->front))
			break;
		msleep(CLOSE_POLL_MS);
	}
}

/* Under `control`, without a word: until no back has a page any more, or for so long. */
static void wait_for_release(struct pregrant_device *dev)
{
	unsigned int waited;

	for (waited = 0; waited < GONE_MS; waited += CLOSE_POLL_MS) {
		pregrant_front_abandon(dev->front);
		if (pregrant_front_is_closed(dev->front))
			break;
		msleep(CLOSE_POLL_MS);
	}
}

/* Under `control`: the front closes, and its memory is the kernel's again. */
void pregrant_end(struct pregrant_device *dev)
{
	unsigned int k;

	if (!dev->front)
		return;
	pregrant_take_back(dev);
	/* There is no directory, or it is the next front's. */
	if (READ_ONCE(dev->afresh) || pregrant_is_gone(dev)) {
		wait_for_release(dev);
	} else {
		pregrant_front_close(dev->front);
		wait_for_close(dev);
	}
	if (!pregrant_front_is_closed(dev->front))
		netdev_warn(dev->netdev, "the back does not let go: %llu pages stay granted\n",
			    pregrant_front_kept_pages(dev->front));
	pregrant_front_free(dev->front);
	dev->front = NULL;
	WRITE_ONCE(dev->kept_pages, 0);
	for (k = 0; k < dev->max_queues; k++)
		pregrant_pieces_drop(&dev->queues[k]);
}
