// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Zero-copy RX: with `rx_in_place` the payload of a long frame stays in the granted pages in which
 * it came, as fragments of the skb, and the ring gets other pages. A page is posted again once no
 * skb has a reference to it.
 *
 *   no page for a frame --> control adds pages: grants them, and has a mapping backend map them
 *   memory is short     --> control takes away pages that neither the ring nor an skb has: the
 *                           backend is asked to unmap them
 *
 * The backend can change these bytes at any time, after they were checked too, and can read what
 * the stack writes there. So only TCP stays in its pages, and only with a trusted backend. (A
 * backend in dom0 can write guest memory anyway.) With any other the pool does not grow: no frame
 * wants a page.
 */
#include "driver.h"

/* Minimum interval between pool growths; each one stalls traffic for about 1 ms. */
#define GROW_PAUSE (HZ / 10)
/* The interval after a growth or a shrink that came to nothing. */
#define SHORTAGE_PAUSE (5 * HZ)

/* Called from NAPI poll: asks for more pages if frames were copied because none was spare. */
void pregrant_pool_look(struct pregrant_queue *queue)
{
	struct pregrant_device *dev = queue->dev;
	bool is_short;

	queue->rx_in_place += pregrant_rx_in_place(queue->rx, &is_short);
	/* If it is too early, or pages are asked for already, the next growth counts the frames. */
	if (!is_short || test_bit(PREGRANT_EV_GROW_RX, &dev->events) || time_before(jiffies, READ_ONCE(dev->grow_after)))
		return;
	set_bit(PREGRANT_EV_GROW_RX, &dev->events);
	pregrant_wake_control(dev);
}

/*
 * Returns the number of pages beyond those that the rings need, in any context. They can be freed
 * unless skbs have them.
 */
u32 pregrant_pool_spare(const struct pregrant_device *dev)
{
	u64 needed = (u64)READ_ONCE(dev->queues_up) * READ_ONCE(dev->slots[1]), pages = READ_ONCE(dev->pool[0]);

	return dev->settings.rx_in_place && pages > needed ? pages - needed : 0;
}

/* Called with `control` held, while the queues are up: adds or removes pages. */
void pregrant_pool_control(struct pregrant_device *dev, bool shrinks)
{
	bool grows = test_bit(PREGRANT_EV_GROW_RX, &dev->events), again = false;
	unsigned int k;
	s32 grown;

	shrinks = shrinks && pregrant_pool_spare(dev);
	/* Not while the vif disconnects: the rings must drain first. */
	if (!dev->settings.rx_in_place || !dev->queues_up || !pregrant_front_is_live(dev->front))
		return;
	if (!grows && !shrinks)
		return;
	for (k = 0; k < dev->queues_up; k++)
		again |= READ_ONCE(dev->queues[k].mc_refused);
	pregrant_stop_queues(dev);
	if (grows) {
		grown = pregrant_front_grow(dev->front);
		WRITE_ONCE(dev->grow_after, jiffies + (grown > 0 ? GROW_PAUSE : SHORTAGE_PAUSE));
		clear_bit(PREGRANT_EV_GROW_RX, &dev->events);
	}
	/* If skbs have all pages, control is asked again later. */
	if (shrinks && !pregrant_front_shrink(dev->front))
		WRITE_ONCE(dev->shrink_after, jiffies + SHORTAGE_PAUSE);
	pregrant_start_queues(dev);
	mutex_lock(&dev->queues_lock);
	pregrant_resume(dev);
	mutex_unlock(&dev->queues_lock);
	/* Stopping the queues forgot which multicast addresses were refused. */
	if (again)
		set_bit(PREGRANT_EV_MULTICAST, &dev->events);
	/* Send the map and unmap requests now: their responses raise events. */
	if (pregrant_front_is_live(dev->front) && pregrant_front_turn(dev->front) < 0)
		pregrant_fail(dev);
}

/* Called with `control` held: copies the figures for ethtool -S. */
void pregrant_pool_show(struct pregrant_device *dev)
{
	u64 now[PREGRANT_POOL_FIGURES] = {};
	unsigned int k;

	if (dev->front)
		pregrant_front_pool(dev->front, now);
	for (k = 0; k < PREGRANT_POOL_FIGURES; k++)
		WRITE_ONCE(dev->pool[k], now[k]);
}
