// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * The back's event channels: each is bound to one that the guest offers, and has its queue polled,
 * or wakes control.
 */
#include <linux/interrupt.h>
#include <linux/slab.h>
#include <xen/events.h>

#include "channel.h"

static irqreturn_t event(int irq, void *data)
{
	struct pregrant_channel *chan = data;
	struct pregrant_queue *queue;

	/*
	 * Orders against pregrant_channels_connect(): either this sees the queue, or the poll after
	 * that sees `pending`.
	 */
	smp_store_mb(chan->pending, true);
	queue = smp_load_acquire(&chan->queue);
	if (queue)
		pregrant_queue_wake(queue);
	else
		pregrant_wake_control(chan->dev);
	return IRQ_HANDLED;
}

struct pregrant_channel *pk_channel_bind(struct pregrant_device *dev, u32 remote, u32 *port, int *code)
{
	struct pregrant_channel *chan = kzalloc(sizeof(*chan), GFP_KERNEL);
	int irq;

	*code = -ENOMEM;
	if (!chan)
		return NULL;
	chan->dev = dev;
	irq = bind_interdomain_evtchn_to_irqhandler_lateeoi(dev->xbdev, remote, event, 0, dev->netdev->name, chan);
	if (irq < 0) {
		*code = irq;
		kfree(chan);
		return NULL;
	}
	chan->irq = irq;
	/* Any number that differs for each channel of the vif will do. */
	*port = chan->port = irq;
	list_add_tail(&chan->list, &dev->channels);
	return chan;
}

/* Called before the queue is polled: from now on events cause that. */
void pregrant_channels_connect(struct pregrant_device *dev, struct pregrant_queue *queue,
			       struct pregrant_back_queue *core)
{
	struct pregrant_channel *chan;
	u32 ports[2];

	pregrant_back_ports(core, ports);
	list_for_each_entry(chan, &dev->channels, list) {
		if (chan->port == ports[0] || chan->port == ports[1])
			smp_store_release(&chan->queue, queue);
	}
}
