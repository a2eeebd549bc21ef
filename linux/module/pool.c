// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * RX pages that skbs have: with `rx_in_place` the payload of a long frame goes up in the pages in
 * which it came, and slots get others. A page is posted again once no skb has it.
 *
 *   frames find no page --> control adds some: granted, and where the back maps pages it is asked to
 *   memory is short     --> control takes away what no slot and no skb has: the back is asked to let go
 *
 * What the back may do: change these bytes at any time, also what was checked. So it is for a back
 * that is trusted so far; none in domain 0 could not.
 */
#include "driver.h"

/* Between two times that pages are added: each time frames wait, for a millisecond or so. */
#define GROW_PAUSE (HZ / 10)

/* By a poll. */
void pregrant_pool_look(struct pregrant_queue *queue)
{
	struct pregrant_device *dev = queue->dev;
	bool is_short;
	u32 spare;

	queue->rx_in_place += pregrant_rx_in_place(queue->rx, &is_short, &spare);
	WRITE_ONCE(queue->rx_spare, spare);
	if (!is_short || READ_ONCE(dev->is_full) || READ_ONCE(dev->is_short))
		return;
	WRITE_ONCE(dev->is_short, true);
	if (time_before(jiffies, READ_ONCE(dev->grows_at)))
		queue_delayed_work(pregrant_control, &dev->work, GROW_PAUSE);
	else
		pregrant_wake_control(dev);
}

/* From any context: pages that could go. */
u32 pregrant_pool_spare(const struct pregrant_device *dev)
{
	unsigned int k;
	u32 spare = 0;

	for (k = 0; k < dev->max_queues; k++)
		spare += READ_ONCE(dev->queues[k].rx_spare);
	return spare;
}

/* Under `control`, while its queues are lent. */
void pregrant_pool_control(struct pregrant_device *dev, bool shrinks)
{
	bool grows = READ_ONCE(dev->is_short) && !time_before(jiffies, dev->grows_at);
	unsigned int k;

	shrinks = shrinks && pregrant_pool_spare(dev);
	if (!dev->settings.rx_in_place || !dev->lent || !(grows || shrinks))
		return;
	pregrant_take_back(dev);
	if (grows) {
		WRITE_ONCE(dev->grows_at, jiffies + GROW_PAUSE);
		WRITE_ONCE(dev->is_full, !pregrant_front_grow(dev->front));
		WRITE_ONCE(dev->is_short, false);
	}
	if (shrinks) {
		pregrant_front_shrink(dev->front);
		WRITE_ONCE(dev->is_full, false);
		for (k = 0; k < dev->max_queues; k++)
			WRITE_ONCE(dev->queues[k].rx_spare, 0);
	}
	pregrant_lend(dev);
	mutex_lock(&dev->lending);
	pregrant_resume(dev);
	mutex_unlock(&dev->lending);
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
