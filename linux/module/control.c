// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * The work item that follows the back's state: it may sleep, allocate and talk to xenstore, with
 * the queues paused. A back that closes, crashes or is restarted costs the carrier and no more: the
 * core goes through the states and is live again, and the interface and its sockets stay.
 */
#include <linux/delay.h>
#include <linux/rtnetlink.h>

#include "driver.h"

/* A back that does not let go of a device: then its pages stay granted, and are not used again. */
#define CLOSE_MS 10000
#define CLOSE_POLL_MS 10

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

/* Under `control`. No frame travels afterwards, and no poll runs. */
void pregrant_pause(struct pregrant_device *dev)
{
	unsigned int k;

	if (!dev->running)
		return;
	/* Whoever has the lock now may still use the front. */
	spin_lock_irq(&dev->lock);
	dev->running = false;
	spin_unlock_irq(&dev->lock);
	for (k = 0; k < dev->live; k++)
		napi_disable(&dev->queues[k].napi);
	netif_tx_disable(dev->netdev);
}

/* Under `control`. Each queue is polled once: an event may have come meanwhile. */
void pregrant_resume(struct pregrant_device *dev)
{
	unsigned int k;

	if (dev->running || !dev->open || !dev->live)
		return;
	dev->running = true;
	for (k = 0; k < dev->live; k++)
		napi_enable(&dev->queues[k].napi);
	netif_tx_wake_all_queues(dev->netdev);
	local_bh_disable();
	for (k = 0; k < dev->live; k++)
		napi_schedule(&dev->queues[k].napi);
	local_bh_enable();
}

/* Under `control`, paused: as many queues as the core has live. True: they are others. */
static bool follow(struct pregrant_device *dev, bool connected)
{
	unsigned int now = pregrant_front_is_live(dev->front) ? pregrant_front_queues(dev->front) : 0;
	unsigned int k;

	now = min(now, dev->max_queues);
	if (now == dev->live && !connected)
		return false;
	for (k = 0; k < dev->max_queues; k++)
		pregrant_queue_drop_kept(&dev->queues[k]);
	dev->live = now;
	if (now) {
		pregrant_channels_meet(dev);
		dev->connects++;
	}
	return true;
}

/* With RTNL, which is never asked for under `control`. */
static void tell_stack(struct pregrant_device *dev)
{
	unsigned int live = READ_ONCE(dev->live);

	rtnl_lock();
	if (live) {
		netif_set_real_num_tx_queues(dev->netdev, live);
		netif_set_real_num_rx_queues(dev->netdev, live);
		netdev_update_features(dev->netdev);
	} else {
		netif_carrier_off(dev->netdev);
	}
	rtnl_unlock();
}

static void step(struct pregrant_device *dev)
{
	bool connected = false;
	int now;

	if (test_and_clear_bit(0, &dev->failed))
		pregrant_front_close(dev->front);
	now = pregrant_front_step(dev->front);
	if (now > 0)
		connected = now == 1;
	if (pregrant_front_is_live(dev->front) && pregrant_front_turn(dev->front) < 0) {
		pregrant_front_close(dev->front);
		pregrant_front_step(dev->front);
	}
	if (dev->live && !pregrant_front_is_live(dev->front))
		netdev_info(dev->netdev, "the back is gone\n");
	if (follow(dev, connected)) {
		mutex_unlock(&dev->control);
		tell_stack(dev);
		mutex_lock(&dev->control);
	}
	if (!dev->live || dev->gone)
		return;
	netif_carrier_on(dev->netdev);
	pregrant_resume(dev);
	if (connected)
		pregrant_multicast_all(dev);
}

void pregrant_control_work(struct work_struct *work)
{
	struct pregrant_device *dev = container_of(to_delayed_work(work), struct pregrant_device, work);
	u64 at;

	mutex_lock(&dev->control);
	if (!dev->gone) {
		pregrant_pause(dev);
		if (dev->anew) {
			dev->anew = false;
			netif_carrier_off(dev->netdev);
			pregrant_end(dev);
			if (pregrant_begin(dev))
				netdev_err(dev->netdev, "cannot begin anew\n");
		}
		if (dev->front)
			step(dev);
		at = dev->front ? pregrant_front_begins_at(dev->front) : 0;
		if (at) {
			u64 now = pk_now_ns();
			u64 wait = at > now ? div_u64(at - now, NSEC_PER_MSEC) + 1 : 1;

			mod_delayed_work(pregrant_control, &dev->work, msecs_to_jiffies(wait));
		}
	}
	mutex_unlock(&dev->control);
}

/* Under `control`: a front by the settings. */
int pregrant_begin(struct pregrant_device *dev)
{
	dev->front = pregrant_front_new(dev, dev->xbdev->otherend_id, &dev->settings);
	return dev->front ? 0 : -EINVAL;
}

/* Under `control`, paused: the front closes, and its memory is the kernel's again. */
void pregrant_end(struct pregrant_device *dev)
{
	unsigned int waited;

	if (!dev->front)
		return;
	pregrant_front_close(dev->front);
	for (waited = 0; waited < CLOSE_MS; waited += CLOSE_POLL_MS) {
		/* Where the directories are gone there is nobody to wait for. */
		if (!xenbus_exists(XBT_NIL, dev->xbdev->nodename, "state"))
			pregrant_front_removed(dev->front);
		pregrant_front_step(dev->front);
		if (pregrant_front_is_closed(dev->front))
			break;
		msleep(CLOSE_POLL_MS);
	}
	if (!pregrant_front_is_closed(dev->front))
		netdev_warn(dev->netdev, "the back does not let go: %llu pages stay granted\n",
			    pregrant_front_kept_pages(dev->front));
	follow(dev, false);
	pregrant_front_free(dev->front);
	dev->front = NULL;
}
