// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Event channels of both drivers, with late EOI: after an event the channel stays masked until the
 * core has read the ring, so that an event storm costs polls and no more. Events without work are
 * reported as spurious, and Xen's event code delays them, by up to a second. So an event must not
 * count as spurious if its work was done by a poll that the other channel of the queue had
 * scheduled, perhaps on another CPU.
 */
#include <linux/interrupt.h>
#include <linux/slab.h>
#include <xen/events.h>

#include "channel.h"

#define IDLE_MAX 16

/* Counts events of all channels that were reported as spurious. */
atomic_t pregrant_spurious_events = ATOMIC_INIT(0);

void pk_channel_close(struct pregrant_channel *chan)
{
	list_del(&chan->list);
	unbind_from_irqhandler(chan->irq, chan);
	kfree(chan);
}

void pk_channel_notify(struct pregrant_channel *chan)
{
	notify_remote_via_irq(chan->irq);
}

void pk_channel_unmask(struct pregrant_channel *chan, bool idle)
{
	bool is_spurious;

	if (!READ_ONCE(chan->pending) || !xchg(&chan->pending, false)) {
		chan->early |= !idle;
		return;
	}
	/* An event without work does not count if its work was done before. */
	chan->idle = idle && !chan->early ? chan->idle + 1 : 0;
	chan->early = false;
	is_spurious = chan->idle > IDLE_MAX;
	if (is_spurious)
		atomic_inc(&pregrant_spurious_events);
	xen_irq_lateeoi(chan->irq, is_spurious ? XEN_EOI_FLAG_SPURIOUS : 0);
}
