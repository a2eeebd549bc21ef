// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * RX pages that skbs have: with `rx_in_place` the payload of a long frame goes up in the pages in
 * which it came, and slots get others. A page is posted again once no skb has it.
 *
 *   frames find no page --> control adds some: granted, and where the back maps pages it is asked to
 *   memory is short     --> control takes away what no slot and no skb has: the back is asked to let go
 *
 * What the back may do: change these bytes at any time, also what was checked, and read what the
 * stack writes there. So the core lends frames of TCP alone, and of a back that is trusted; one in
 * domain 0 can do that to all of the guest anyway. Of another back the pool does not grow, since no
 * frame asks for a page.
 */
#include "driver.h"

/* Between two times that pages are added: each time frames wait, for a millisecond or so. */
#define GROW_PAUSE (HZ / 10)
/* Where there was no memory, no more were to be had, or none was to be given back. */
#define SHORTAGE_PAUSE (5 * HZ)

/* By a poll. */
void pregrant_pool_look(struct pregrant_queue *queue)
{
	struct pregrant_device *dev = queue->dev;
	bool is_short;

	queue->rx_in_place += pregrant_rx_in_place(queue->rx, &is_short);
	/* Frames for which there were no pages meanwhile count at the next growth. */
	if (!is_short || READ_ONCE(dev->is_short) || time_before(jiffies, READ_ONCE(dev->grows_at)))
		return;
	WRITE_ONCE(dev->is_short, true);
	pregrant_wake_control(dev);
}

/* From any context: pages beyond those that slots need, which could go where no skb has them. */
u32 pregrant_pool_spare(const struct pregrant_device *dev)
{
	u64 needed = (u64)READ_ONCE(dev->lent) * READ_ONCE(dev->slots[1]), pages = READ_ONCE(dev->pool[0]);

	return dev->settings.rx_in_place && pages > needed ? pages - needed : 0;
}

/* Under `control`, while its queues are lent. */
void pregrant_pool_control(struct pregrant_device *dev, bool shrinks)
{
	bool grows = READ_ONCE(dev->is_short), again = false;
	unsigned int k;
	s32 grown;

	shrinks = shrinks && pregrant_pool_spare(dev);
	/* Not on the way to its end: what is on a ring is answered first. */
	if (!dev->settings.rx_in_place || !dev->lent || !pregrant_front_is_live(dev->front))
		return;
	if (!grows && !shrinks)
		return;
	for (k = 0; k < dev->lent; k++)
		again |= READ_ONCE(dev->queues[k].mc_refused);
	pregrant_take_back(dev);
	if (grows) {
		grown = pregrant_front_grow(dev->front);
		WRITE_ONCE(dev->grows_at, jiffies + (grown > 0 ? GROW_PAUSE : SHORTAGE_PAUSE));
		WRITE_ONCE(dev->is_short, false);
	}
	/* Where skbs have them all it is not asked again at once. */
	if (shrinks && !pregrant_front_shrink(dev->front))
		WRITE_ONCE(dev->shrinks_at, jiffies + SHORTAGE_PAUSE);
	pregrant_lend(dev);
	mutex_lock(&dev->lending);
	pregrant_resume(dev);
	mutex_unlock(&dev->lending);
	/* Refused multicast addresses were forgotten. */
	if (again)
		WRITE_ONCE(dev->mc_again, true);
	/* What the back was asked has an event when it is answered. */
	if (pregrant_front_is_live(dev->front) && pregrant_front_turn(dev->front) < 0)
		pregrant_fail(dev);
}

/* Under `control`: for ethtool. */
void pregrant_pool_show(struct pregrant_device *dev)
{
	u64 now[PREGRANT_POOL_FIGURES] = {};
	unsigned int k;

	if (dev->front)
		pregrant_front_pool(dev->front, now);
	for (k = 0; k < PREGRANT_POOL_FIGURES; k++)
		WRITE_ONCE(dev->pool[k], now[k]);
}
