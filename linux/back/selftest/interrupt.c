// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Event channels of the test, and the polls that they cause. As in Xen's code with late EOI, a
 * channel is masked from its event to its EOI; an event that comes meanwhile comes then.
 */
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "front.h"

#define CHANNELS 64

static struct channel {
	irq_handler_t handler; /* NULL: not bound */
	void *data;
	bool is_masked, is_pending;
} channels[CHANNELS];
static DEFINE_SPINLOCK(lock);

unsigned int channels_bound;
atomic_t channel_events = ATOMIC_INIT(0), channel_spurious = ATOMIC_INIT(0);

static void deliver(struct channel *channel)
{
	irq_handler_t handler;
	unsigned long flags;

	/* The poll comes at its end. */
	local_bh_disable();
	spin_lock_irqsave(&lock, flags);
	handler = channel->handler;
	if (!handler || channel->is_masked) {
		channel->is_pending = true;
	} else {
		channel->is_masked = true;
		channel->is_pending = false;
		atomic_inc(&channel_events);
		handler(channel - channels, channel->data);
	}
	spin_unlock_irqrestore(&lock, flags);
	local_bh_enable();
}

static void redeliver(struct work_struct *work)
{
	unsigned int k;

	for (k = 1; k < CHANNELS; k++)
		if (READ_ONCE(channels[k].is_pending) && !READ_ONCE(channels[k].is_masked))
			deliver(&channels[k]);
}

static DECLARE_WORK(redelivers, redeliver);

void channel_send(u32 port)
{
	deliver(&channels[port]);
}

int channel_bind(u32 remote, irq_handler_t handler, void *data)
{
	int ret = -EINVAL;

	spin_lock_irq(&lock);
	if (remote && remote < CHANNELS && !channels[remote].handler) {
		channels[remote] = (struct channel) { .handler = handler, .data = data };
		channels_bound++;
		ret = remote;
	}
	spin_unlock_irq(&lock);
	return ret;
}

void channel_unbind(int irq)
{
	spin_lock_irq(&lock);
	channels[irq].handler = NULL;
	channels_bound--;
	spin_unlock_irq(&lock);
}

void channel_notify(int irq)
{
}

void channel_eoi(int irq, unsigned int flags)
{
	if (flags & XEN_EOI_FLAG_SPURIOUS)
		atomic_inc(&channel_spurious);
	WRITE_ONCE(channels[irq].is_masked, false);
	smp_mb();
	if (READ_ONCE(channels[irq].is_pending))
		schedule_work(&redelivers);
}

void channels_end(void)
{
	cancel_work_sync(&redelivers);
}

/* The longest poll so far, in grant operations, and how many there were. */
u64 poll_ops_most;
atomic_t polls = ATOMIC_INIT(0);
static int (*poll_of_driver)(struct napi_struct *, int);

static int measured_poll(struct napi_struct *napi, int budget)
{
	u64 before = table_ops;
	int work = poll_of_driver(napi, budget);

	atomic_inc(&polls);
	poll_ops_most = max(poll_ops_most, table_ops - before);
	return work;
}

void measured_napi_add(struct net_device *netdev, struct napi_struct *napi, int (*poll)(struct napi_struct *, int))
{
	poll_of_driver = poll;
	(netif_napi_add)(netdev, napi, measured_poll);
}
