// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * A queue: the sender's side, and the thread that polls both rings.
 *
 * The thread sleeps when both rings are empty and ask for events, until an event, a frame of the
 * stack, or the core's own deadline. `has_event` is set before it is woken, and cleared before it
 * polls, so none is missed.
 */
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/sched/mm.h>

#include "driver.h"

/* Polls between two turns of the core, where there is always work. */
#define TURN_EVERY 64

struct pregrant_queue *pk_port(struct pregrant_device *dev, u32 index)
{
	return &dev->queues[index];
}

bool pk_port_is_up(struct pregrant_queue *queue)
{
	return netif_running(queue->dev->netdev);
}

/* In any context. */
void pregrant_queue_wake(struct pregrant_queue *queue)
{
	if (!xchg(&queue->has_event, 1))
		wake_up(&queue->wait);
}

static bool is_full(const struct pregrant_queue *queue)
{
	return skb_queue_len_lockless(&queue->skbs) >= PREGRANT_WAIT_FRAMES ||
	       READ_ONCE(queue->bytes) >= PREGRANT_WAIT_BYTES;
}

/* Wakes a stopped sender once half of what may wait is gone. */
void pregrant_queue_wake_sender(struct pregrant_queue *queue)
{
	struct netdev_queue *txq = txq_of(queue);

	if (likely(!netif_tx_queue_stopped(txq)))
		return;
	if (skb_queue_len_lockless(&queue->skbs) <= PREGRANT_WAIT_FRAMES / 2 &&
	    READ_ONCE(queue->bytes) <= PREGRANT_WAIT_BYTES / 2)
		netif_tx_wake_queue(txq);
}

/* ndo_start_xmit: the stack holds the netdev_queue lock. */
netdev_tx_t pregrant_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	unsigned int index = skb_get_queue_mapping(skb);
	struct pregrant_queue *queue = &dev->queues[index < dev->max_queues ? index : 0];
	struct netdev_queue *txq = txq_of(queue);
	unsigned long flags;

	if (unlikely(!READ_ONCE(queue->core) || skb->len > PREGRANT_FRAME_MAX || skb->len < ETH_HLEN))
		goto drop;
	/* The frame may wait for long: no one else may wait for its pages. */
	if (skb_orphan_frags(skb, GFP_ATOMIC))
		goto drop;
	skb_tx_timestamp(skb);
	nf_reset_ct(skb);
	spin_lock_irqsave(&queue->skbs.lock, flags);
	queue->bytes += skb->len;
	__skb_queue_tail(&queue->skbs, skb);
	/* Under the lock: the thread sees the stop, or this sees what it has taken. */
	if (is_full(queue))
		netif_tx_stop_queue(txq);
	spin_unlock_irqrestore(&queue->skbs.lock, flags);
	goto wake;
drop:
	dev_core_stats_tx_dropped_inc(netdev);
	dev_kfree_skb_any(skb);
wake:
	/* Also for those before a frame that is dropped. */
	if (!netdev_xmit_more() || netif_xmit_stopped(txq))
		pregrant_queue_wake(queue);
	return NETDEV_TX_OK;
}

/* Sleeps until there is something to do. */
static void rest(struct pregrant_queue *queue)
{
	u64 at = pregrant_back_wakes_at(queue->core);
	ktime_t until = ns_to_ktime(at);
	DEFINE_WAIT(wait);

	prepare_to_wait(&queue->wait, &wait, TASK_IDLE);
	if (!READ_ONCE(queue->has_event) && !kthread_should_stop())
		schedule_hrtimeout(at ? &until : NULL, HRTIMER_MODE_ABS);
	finish_wait(&queue->wait, &wait);
}

/* Handles what waits. Below 0: a fault. */
static int turn(struct pregrant_queue *queue)
{
	int news = pregrant_back_turn(queue->core);

	if (news > 0)
		pregrant_wake_control(queue->dev);
	return news;
}

/* Polls until the rings are empty, and asks for events. Below 0: a fault. */
static int serve(struct pregrant_queue *queue)
{
	unsigned int polls = 0;
	int more;

	do {
		WRITE_ONCE(queue->has_event, 0);
		smp_mb(); /* events from here on are seen by rest() */
		do {
			more = pregrant_back_poll_queue(queue->core);
			pregrant_deliver(queue);
			cond_resched();
			if (more >= 0 && ++polls % TURN_EVERY == 0 && turn(queue) < 0)
				return -EIO;
		} while (more > 0 && !kthread_should_stop());
		if (more >= 0)
			more = turn(queue);
		if (more >= 0)
			more = pregrant_back_poll_arm(queue->core);
	} while (more > 0 && !kthread_should_stop());
	return more;
}

/* What the thread has taken waits again, before the rest. */
static void give_back(struct pregrant_queue *queue)
{
	struct sk_buff *skb;
	unsigned long flags;

	spin_lock_irqsave(&queue->skbs.lock, flags);
	skb_queue_walk(&queue->taken, skb)
		queue->bytes += skb->len;
	skb_queue_splice_init(&queue->taken, &queue->skbs);
	spin_unlock_irqrestore(&queue->skbs.lock, flags);
}

static int run(void *data)
{
	struct pregrant_queue *queue = data;
	unsigned int flags = memalloc_noio_save(); /* this host may swap over the interface */

	while (!kthread_should_stop()) {
		if (serve(queue) < 0) {
			set_bit(PREGRANT_EV_FAULT, &queue->dev->events);
			pregrant_wake_control(queue->dev);
			break;
		}
		rest(queue);
	}
	memalloc_noio_restore(flags);
	give_back(queue);
	while (!kthread_should_stop()) {
		set_current_state(TASK_IDLE);
		if (!kthread_should_stop())
			schedule();
		__set_current_state(TASK_RUNNING);
	}
	return 0;
}

/* Called with `queues_lock` held. */
int pregrant_queue_start(struct pregrant_queue *queue, struct pregrant_back_queue *core,
			 struct pregrant_back_counters *counters)
{
	struct task_struct *thread = kthread_create(run, queue, "%s-q%u", queue->dev->netdev->name, queue->index);

	if (IS_ERR(thread))
		return PTR_ERR(thread);
	queue->has_event = 0;
	queue->counters = counters;
	queue->thread = thread;
	WRITE_ONCE(queue->core, core);
	wake_up_process(thread);
	return 0;
}

/* Called with `queues_lock` held, while no sender runs. What waits for the guest stays. */
void pregrant_queue_stop(struct pregrant_queue *queue)
{
	if (!queue->thread)
		return;
	kthread_stop(queue->thread);
	queue->thread = NULL;
	WRITE_ONCE(queue->core, NULL);
	queue->counters = NULL;
}

/* Called with `control` held: drops what waits, but for what a thread has taken. */
void pregrant_queue_purge(struct pregrant_queue *queue)
{
	unsigned long flags;
	struct sk_buff_head old;

	__skb_queue_head_init(&old);
	spin_lock_irqsave(&queue->skbs.lock, flags);
	skb_queue_splice_init(&queue->skbs, &old);
	queue->bytes = 0;
	spin_unlock_irqrestore(&queue->skbs.lock, flags);
	WRITE_ONCE(queue->purged, queue->purged + skb_queue_len(&old));
	__skb_queue_purge(&old);
}

/* Called when no thread will run any more. */
void pregrant_queue_free(struct pregrant_queue *queue)
{
	give_back(queue);
	pregrant_queue_purge(queue);
}

void pregrant_queue_init(struct pregrant_queue *queue, struct pregrant_device *dev, unsigned int index)
{
	queue->dev = dev;
	queue->index = index;
	skb_queue_head_init(&queue->skbs);
	__skb_queue_head_init(&queue->taken);
	init_waitqueue_head(&queue->wait);
	INIT_LIST_HEAD(&queue->received);
}
