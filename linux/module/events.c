// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* The front's event channels: it offers them, and each belongs to a queue or to control. */
#include <linux/interrupt.h>
#include <linux/slab.h>
#include <asm/xen/hypercall.h>
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
	if (queue) {
		if (chan->is_tx)
			WRITE_ONCE(queue->tx_event, true);
		napi_schedule(&queue->napi);
	} else {
		pregrant_wake_control(chan->dev);
	}
	return IRQ_HANDLED;
}

/* xenbus_alloc_evtchn() would close the device on an error, but fewer queues will do. */
static int alloc_port(struct pregrant_device *dev, u32 *port)
{
	struct evtchn_alloc_unbound alloc = { .dom = DOMID_SELF, .remote_dom = dev->back_id };
	int ret = HYPERVISOR_event_channel_op(EVTCHNOP_alloc_unbound, &alloc);

	*port = alloc.port;
	return ret;
}

static void close_port(u32 port)
{
	struct evtchn_close close = { .port = port };

	if (HYPERVISOR_event_channel_op(EVTCHNOP_close, &close))
		pr_warn("pregrant: event channel %u does not close\n", port);
}

struct pregrant_channel *pk_channel_offer(struct pregrant_device *dev, u32 *port)
{
	struct pregrant_channel *chan = kzalloc(sizeof(*chan), GFP_KERNEL);

	if (!chan)
		return NULL;
	chan->dev = dev;
	if (alloc_port(dev, &chan->port))
		goto no_port;
	/* In two steps, since the second closes the port if it fails, and the first does not. */
	if (bind_evtchn_to_irq_lateeoi(chan->port) < 0) {
		close_port(chan->port);
		goto no_port;
	}
	chan->irq = bind_evtchn_to_irqhandler_lateeoi(chan->port, event, 0, dev->netdev->name, chan);
	if (chan->irq < 0)
		goto no_port;
	list_add_tail(&chan->list, &dev->channels);
	*port = chan->port;
	return chan;
no_port:
	kfree(chan);
	return NULL;
}

/* Called before queues are started: from now on events go to their NAPIs. */
void pregrant_channels_connect(struct pregrant_device *dev)
{
	struct pregrant_channel *chan;
	unsigned int k;
	u32 ports[2];

	for (k = 0; k < dev->max_queues; k++) {
		pregrant_front_ports(dev->front, k, ports);
		list_for_each_entry(chan, &dev->channels, list) {
			if (chan->port != ports[0] && chan->port != ports[1])
				continue;
			chan->is_tx = chan->port == ports[0];
			smp_store_release(&chan->queue, &dev->queues[k]);
		}
	}
}
