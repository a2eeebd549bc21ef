// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * A queue: the sender's side, and the NAPI poll of both rings.
 *
 * The poll ends when both rings are empty and ask for events. It comes again for an event, a frame
 * of the stack, or the core's own deadline; what comes before it has ended is noted by NAPI, which
 * polls once more.
 *
 * A sender in a softirq schedules the poll itself: it comes when that sender's poll is over, with
 * all its frames. A process would have each of its frames polled at once, alone, before it could
 * send the next. So it does for a frame that comes after a pause, as a request does; for one that
 * comes shortly after another, or where much waits, it wakes a thread, which schedules the poll.
 */
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/preempt.h>
#include <linux/sched/clock.h>
#include <linux/version.h>

#include "driver.h"

/* After a pause of this length a process' frame does not wait for others. */
#define PAUSE_NS (50 * NSEC_PER_USEC)
/* Where so many bytes wait they are a part of a stream, and others follow. */
#define STREAM_BYTES 16384
/* What a batch counts at least against the budget, in frames. */
#define BATCH_LEAST 4
/* Batches between two turns of the core, where there is always work. */
#define TURN_EVERY 64

struct pregrant_queue *pk_port(struct pregrant_device *dev, u32 index)
{
	return &dev->queues[index];
}

bool pk_port_is_up(struct pregrant_queue *queue)
{
	return READ_ONCE(queue->dev->is_up);
}

/* With BH or interrupts disabled. While there is no core, NAPI is disabled. */
void pregrant_queue_wake(struct pregrant_queue *queue)
{
	napi_schedule(&queue->napi);
}

/* Waits for the guest: at least so much; what the other side does meanwhile may be missing. */
static bool waits(const struct pregrant_queue *queue, u32 frames, u32 bytes)
{
	return READ_ONCE(queue->frames_in) - READ_ONCE(queue->frames_out) >= frames ||
	       READ_ONCE(queue->bytes_in) - READ_ONCE(queue->bytes_out) >= bytes;
}

/* ndo_start_xmit has queued frames, and the queue is open to senders: it has a thread. */
static void wake_for_sender(struct pregrant_queue *queue)
{
	u64 now, before = queue->sent_at;

	if (in_serving_softirq() || test_bit(NAPI_STATE_SCHED, &queue->napi.state)) {
		pregrant_queue_wake(queue);
		return;
	}
	if (xchg(&queue->has_frames, 1))
		return;
	now = local_clock();
	queue->sent_at = now;
	if (now - before < PAUSE_NS || waits(queue, PREGRANT_WAIT_FRAMES, STREAM_BYTES)) {
		wake_up_process(queue->thread);
		return;
	}
	WRITE_ONCE(queue->has_frames, 0);
	pregrant_queue_wake(queue);
}

static bool is_full(const struct pregrant_queue *queue)
{
	return waits(queue, PREGRANT_WAIT_FRAMES, PREGRANT_WAIT_BYTES);
}

/* ndo_start_xmit: the stack holds the netdev_queue lock. */
netdev_tx_t pregrant_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	struct pregrant_queue *queue = &dev->queues[skb_get_queue_mapping(skb)];
	bool is_open = smp_load_acquire(&queue->takes_frames);
	struct netdev_queue *txq = txq_of(queue);
	u32 len;

	if (unlikely(!is_open || skb->len > PREGRANT_FRAME_MAX || skb->len < ETH_HLEN))
		goto drop;
	/* The frame may wait for long: no one else may wait for its pages. */
	if (skb_orphan_frags_rx(skb, GFP_ATOMIC))
		goto drop;
	skb_tx_timestamp(skb);
	nf_reset_ct(skb);
	len = skb->len;
	/* Before the poll can take it, so that no more is taken than was added. */
	WRITE_ONCE(queue->frames_in, queue->frames_in + 1);
	WRITE_ONCE(queue->bytes_in, queue->bytes_in + len);
	if (unlikely(__ptr_ring_produce(&queue->waiting, skb))) {
		/* It is not full: the sender's queue was stopped before. */
		WRITE_ONCE(queue->frames_in, queue->frames_in - 1);
		WRITE_ONCE(queue->bytes_in, queue->bytes_in - len);
		goto drop;
	}
	if (unlikely(is_full(queue))) {
		netif_tx_stop_queue(txq);
		/* The poll sees the stop, or this sees what it has taken. */
		smp_mb();
		if (!is_full(queue))
			netif_tx_start_queue(txq);
	}
	goto wake;
drop:
	dev_core_stats_tx_dropped_inc(netdev);
	dev_kfree_skb_any(skb);
wake:
	/* Also for those before a frame that is dropped. */
	if ((!netdev_xmit_more() || netif_xmit_stopped(txq)) && is_open)
		wake_for_sender(queue);
	return NETDEV_TX_OK;
}

/*
 * So much was taken of what waits: wakes a stopped sender once half of what may wait is gone. What
 * comes after the last that was taken has the queue polled again.
 */
void pregrant_queue_took(struct pregrant_queue *queue, u32 frames, u32 bytes)
{
	struct netdev_queue *txq = txq_of(queue);

	WRITE_ONCE(queue->frames_out, queue->frames_out + frames);
	WRITE_ONCE(queue->bytes_out, queue->bytes_out + bytes);
	/* This sees the sender's stop, or the sender sees what was taken. */
	smp_mb();
	if (likely(!netif_tx_queue_stopped(txq)) || !netif_running(queue->dev->netdev))
		return;
	if (!waits(queue, PREGRANT_WAIT_FRAMES / 2, PREGRANT_WAIT_BYTES / 2))
		netif_tx_wake_queue(txq);
}

static void drop_waiting(struct pregrant_queue *queue)
{
	struct sk_buff *skb;
	u32 frames, bytes = 0;

	for (frames = 0; (skb = __ptr_ring_consume(&queue->waiting)); frames++) {
		bytes += skb->len;
		dev_kfree_skb_any(skb);
	}
	queue->tx_dropped += frames;
	pregrant_queue_took(queue, frames, bytes);
}

static enum hrtimer_restart deadline(struct hrtimer *timer)
{
	pregrant_queue_wake(container_of(timer, struct pregrant_queue, timer));
	return HRTIMER_NORESTART;
}

/* Polls again at the core's deadline, if it has one. */
static void set_timer(struct pregrant_queue *queue)
{
	u64 at = pregrant_back_wakes_at(queue->core);

	if (at)
		hrtimer_start(&queue->timer, ns_to_ktime(at), HRTIMER_MODE_ABS);
	else if (hrtimer_active(&queue->timer))
		hrtimer_try_to_cancel(&queue->timer);
}

/* Handles what waits. Below 0: a fault. */
static int turn(struct pregrant_queue *queue)
{
	int news = pregrant_back_turn(queue->core);

	if (news > 0)
		pregrant_wake_control(queue->dev);
	return news;
}

/* Frames each way that were passed on, or dropped. */
static u64 handled(const struct pregrant_queue *queue)
{
	return queue->rx_packets + queue->rx_dropped + queue->tx_packets + queue->tx_dropped;
}

/* Both rings are empty: asks for events. 1: they are not; below 0: a fault. */
static int rest(struct pregrant_queue *queue)
{
	int more = turn(queue);

	if (more >= 0)
		more = pregrant_back_poll_arm(queue->core);
	if (!more)
		set_timer(queue);
	return more;
}

/*
 * A batch has at most 64 frames and 256 KiB each way. Each frame counts against the budget, and
 * each batch counts as BATCH_LEAST at least.
 */
static int poll(struct napi_struct *napi, int budget)
{
	struct pregrant_queue *queue = container_of(napi, struct pregrant_queue, napi);
	u64 before = handled(queue);
	int more, work, batches = 0;

	/* netpoll, in any context. */
	if (!budget)
		return 0;
	if (unlikely(READ_ONCE(queue->drops_waiting))) {
		WRITE_ONCE(queue->drops_waiting, false);
		drop_waiting(queue);
	}
	if (unlikely(queue->is_broken)) {
		napi_complete(napi);
		return 0;
	}
	queue->is_polled = true;
	do {
		more = pregrant_back_poll_queue(queue->core);
		pregrant_deliver(queue);
		/* A batch that brought nothing may have cost as much: its copies have failed. */
		batches++;
		work = min_t(u64, max_t(u64, handled(queue) - before, batches * BATCH_LEAST), budget);
		if (more > 0 && ++queue->batches % TURN_EVERY == 0 && turn(queue) < 0)
			more = -EIO;
	} while (more > 0 && work < budget);
	if (!more)
		more = rest(queue);
	queue->is_polled = false;
	if (unlikely(more < 0)) {
		queue->is_broken = true;
		set_bit(PREGRANT_EV_FAULT, &queue->dev->events);
		pregrant_wake_control(queue->dev);
		napi_complete(napi);
		return 0;
	}
	if (more)
		return budget;
	work = min(work, budget - 1);
	napi_complete_done(napi, work);
	return work;
}

static void wake(struct pregrant_queue *queue)
{
	local_bh_disable();
	pregrant_queue_wake(queue);
	/* Polls. */
	local_bh_enable();
}

static int run(void *data)
{
	struct pregrant_queue *queue = data;

	for (;;) {
		set_current_state(TASK_IDLE);
		if (kthread_should_stop())
			break;
		if (!xchg(&queue->has_frames, 0)) {
			schedule();
			continue;
		}
		__set_current_state(TASK_RUNNING);
		wake(queue);
		cond_resched();
	}
	__set_current_state(TASK_RUNNING);
	return 0;
}

/* Called with `queues_lock` held. */
int pregrant_queue_start(struct pregrant_queue *queue, struct pregrant_back_queue *core,
			 struct pregrant_back_counters *counters)
{
	struct task_struct *thread = kthread_run(run, queue, "%s-q%u", queue->dev->netdev->name, queue->index);

	if (IS_ERR(thread))
		return PTR_ERR(thread);
	queue->thread = thread;
	queue->counters = counters;
	queue->is_broken = false;
	queue->burst = NULL;
	queue->core = core;
	napi_enable(&queue->napi);
	smp_store_release(&queue->takes_frames, true);
	wake(queue);
	return 0;
}

/*
 * Called before netif_tx_disable(), whose locks wait for senders. Other polls and ndo_open may wake
 * senders again, which then drop their frames.
 */
void pregrant_queue_refuse(struct pregrant_queue *queue)
{
	WRITE_ONCE(queue->takes_frames, false);
}

/* Called with `queues_lock` held, after that. What waits for the guest stays. */
void pregrant_queue_stop(struct pregrant_queue *queue)
{
	if (!queue->thread)
		return;
	kthread_stop(queue->thread);
	queue->thread = NULL;
	napi_disable(&queue->napi);
	hrtimer_cancel(&queue->timer);
	queue->core = NULL;
	queue->counters = NULL;
}

/* Called with `control` held: what waits is dropped, by the poll if there is one. */
void pregrant_queue_purge(struct pregrant_queue *queue)
{
	if (!queue->thread) {
		drop_waiting(queue);
		return;
	}
	WRITE_ONCE(queue->drops_waiting, true);
	wake(queue);
}

/* Called when no poll will run any more. */
void pregrant_queue_free(struct pregrant_queue *queue)
{
	netif_napi_del(&queue->napi);
	drop_waiting(queue);
	pregrant_bursts_free(queue);
	ptr_ring_cleanup(&queue->waiting, NULL);
}

int pregrant_queue_init(struct pregrant_queue *queue, struct pregrant_device *dev, unsigned int index)
{
	queue->dev = dev;
	queue->index = index;
	__skb_queue_head_init(&queue->lent);
	INIT_LIST_HEAD(&queue->received);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&queue->timer, deadline, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
#else
	hrtimer_init(&queue->timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	queue->timer.function = deadline;
#endif
	if (ptr_ring_init(&queue->waiting, PREGRANT_WAIT_PLACES, GFP_KERNEL))
		return -ENOMEM;
	netif_napi_add(dev->netdev, &queue->napi, poll);
	return 0;
}
