// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * ndo_start_xmit and NAPI of a queue.
 *
 *   xmit: the payload is copied to granted memory; the skb is kept until its requests have their
 *         responses, so that TCP small queues and BQL count it. The pages of long skbs are granted
 *         instead (pieces.c)
 *   poll: TX responses free skbs and wake the queue; received frames become skbs, unless an XDP
 *         program decides otherwise (xdp.c)
 *
 * The backend may respond in any order. skbs are freed in order, by the count of responses; the
 * payload was copied, so it does not matter which response arrived.
 *
 * A short skb with nothing else in flight is freed at once, and no event is requested for its
 * response, which the next xmit or poll reads: else each round trip would cost the guest two
 * events.
 */
#include <linux/etherdevice.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "driver.h"

/* Minimum interval between requests for multicast addresses that the backend refused. */
#define MULTICAST_PAUSE (HZ / 10)

/*
 * Called with the netdev_queue lock held: reads TX responses and frees the skbs that they complete.
 */
static int reclaim(struct pregrant_queue *queue, int budget)
{
	int n = pregrant_tx_reclaim(queue->tx);
	unsigned int packets = 0, bytes = 0;
	u32 answered;

	/* Responses that were read before a fault count, too. */
	if (n && queue->pieces_out)
		pregrant_pieces_answered(queue, budget, &packets, &bytes);
	if (n <= 0)
		return n;
	/*
	 * There may be room now for an address that was refused. Do not ask at once: a backend may
	 * respond to frames and never to addresses.
	 */
	if (unlikely(queue->mc_refused)) {
		queue->mc_refused = false;
		set_bit(PREGRANT_EV_MULTICAST, &queue->dev->events);
		pregrant_wake_control_in(queue->dev, MULTICAST_PAUSE);
	}
	answered = queue->requests - pregrant_tx_in_flight(queue->tx);
	while (queue->kept_head != queue->kept_tail) {
		struct pregrant_kept *kept = &queue->kept[queue->kept_head & queue->kept_mask];

		if ((s32)(answered - kept->end) < 0)
			break;
		packets++;
		bytes += kept->bytes;
		napi_consume_skb(kept->skb, budget);
		queue->kept_head++;
	}
	if (packets)
		netdev_tx_completed_queue(txq_of(queue), packets, bytes);
	return n;
}

static bool has_room(struct pregrant_queue *queue)
{
	return pregrant_tx_room(queue->tx) >= PREGRANT_FRAME_SLOTS;
}

/*
 * Called with the netdev_queue lock held: requests an event when half of the requests in flight
 * have their responses. Responses that are there already are read at once.
 */
static int arm_tx(struct pregrant_queue *queue, int budget)
{
	int work;

	do {
		u32 in_flight = pregrant_tx_in_flight(queue->tx);

		work = pregrant_tx_arm(queue->tx, in_flight / 2 + 1);
		queue->tx_armed = in_flight != 0;
		if (work > 0)
			work = reclaim(queue, budget);
	} while (work > 0);
	return work;
}

/* Grants the pages of the skb if that is allowed, else copies it. */
static int send(struct pregrant_queue *queue, struct sk_buff *skb, bool *in_pieces)
{
	u32 csum = 0, gso_type = 0, gso_size = 0;

	/* CHECKSUM_UNNECESSARY of another device is not passed on. */
	if (skb->ip_summed == CHECKSUM_PARTIAL)
		csum = PREGRANT_CSUM_BLANK;
	if (skb_is_gso(skb)) {
		gso_size = skb_shinfo(skb)->gso_size;
		gso_type = skb_shinfo(skb)->gso_type & SKB_GSO_TCPV6 ? PREGRANT_GSO_TCPV6 : PREGRANT_GSO_TCPV4;
	}
	if (pregrant_goes_in_pieces(queue, skb)) {
		int sent = pregrant_send_in_pieces(queue, skb, csum, gso_type, gso_size);

		*in_pieces = sent == 1;
		if (sent >= 0)
			return sent;
	}
	return pregrant_tx_send(queue->tx, skb, skb->len, csum, gso_type, gso_size);
}

/* Counts a sent frame of `requests` requests. Called with the netdev_queue lock held. */
static void note_sent(struct pregrant_queue *queue, u32 requests, size_t len)
{
	queue->requests += requests;
	queue->tx_packets++;
	queue->tx_bytes += len;
}

/*
 * Called with the netdev_queue lock held: copies a linear frame to the ring;
 * pregrant_tx_publish() makes it visible to the backend. False: the ring is full, or the backend
 * does not accept such a frame.
 */
bool pregrant_send_bytes(struct pregrant_queue *queue, const void *bytes, size_t len, u32 csum)
{
	u32 before, sent;

	if (!pregrant_tx_room(queue->tx) && reclaim(queue, 0) < 0)
		pregrant_fail(queue->dev);
	before = pregrant_tx_in_flight(queue->tx);
	if (pregrant_tx_send(queue->tx, bytes, len, csum | PREGRANT_LINEAR, 0, 0) != 1)
		return false;
	sent = pregrant_tx_in_flight(queue->tx) - before;
	if (!sent)
		return false;
	note_sent(queue, sent, len);
	return true;
}

/*
 * Called from poll with the netdev_queue lock held: staging buffers that XDP_TX sent on, and that
 * have their response, can be posted for RX again. Below 0: a fault.
 */
int pregrant_take_returned(struct pregrant_queue *queue, int budget)
{
	int n = reclaim(queue, budget);

	queue->buffers_out = pregrant_rx_take_returned(queue->rx, queue->tx);
	return n;
}

/*
 * Sends a received staging buffer on as a TX frame. Called with the netdev_queue lock held. False:
 * the ring is full, or the backend does not accept such a frame.
 */
bool pregrant_send_buffer(struct pregrant_queue *queue, const struct pregrant_on_its_way *at)
{
	if (!pregrant_tx_send_on(queue->tx, queue->rx, at->slot, at->offset, at->len, at->csum))
		return false;
	note_sent(queue, 1, at->len);
	queue->buffers_out++;
	return true;
}

/*
 * Stops the netdev queue; the next poll wakes it if there is room by then. Called with the
 * netdev_queue lock held.
 */
static void stop_sender(struct pregrant_queue *queue)
{
	netif_tx_stop_queue(txq_of(queue));
	WRITE_ONCE(queue->tx_event, true);
}

/* ndo_start_xmit: the stack holds the netdev_queue lock. */
netdev_tx_t pregrant_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	struct pregrant_queue *queue = &dev->queues[skb_get_queue_mapping(skb)];
	struct netdev_queue *txq = txq_of(queue);
	struct pregrant_kept *kept;
	bool full = false, in_pieces = false, alone;
	u32 before, after;
	int sent = -EMSGSIZE;

	if (unlikely(!queue->tx)) {
		queue->tx_dropped++;
		dev_kfree_skb_any(skb);
		return NETDEV_TX_OK;
	}
	/* No event is armed: read the responses here. */
	before = pregrant_tx_in_flight(queue->tx);
	if (!has_room(queue) || (before && !queue->tx_armed)) {
		if (reclaim(queue, 0) < 0)
			pregrant_fail(dev);
		before = pregrant_tx_in_flight(queue->tx);
	}
	if (skb->len <= PREGRANT_FRAME_MAX && skb->len >= ETH_HLEN)
		sent = send(queue, skb, &in_pieces);
	if (sent == 0) {
		/*
		 * The queue is stopped before the ring can be full, so the vif is disconnecting or
		 * reconnecting.
		 */
		stop_sender(queue);
		pregrant_tx_publish(queue->tx);
		napi_schedule(&queue->napi);
		return NETDEV_TX_BUSY;
	}
	after = pregrant_tx_in_flight(queue->tx);
	if (sent < 0 || after == before) {
		queue->tx_dropped++;
		/* skbs before it, sent with xmit_more, are not published yet. */
		pregrant_tx_publish(queue->tx);
		dev_kfree_skb_any(skb);
		return NETDEV_TX_OK;
	}
	note_sent(queue, after - before, skb->len);
	if (unlikely(queue->tx_pages))
		pregrant_tx_pages_count(queue->tx_pages, skb);
	alone = !before && after == 1 && !netdev_xmit_more();
	if (alone) {
		skb_tx_timestamp(skb);
		pregrant_tx_publish(queue->tx);
		dev_consume_skb_any(skb);
		return NETDEV_TX_OK;
	}
	/* The socket still counts the skb, but conntrack must not wait for the backend. */
	nf_reset_ct(skb);
	if (!in_pieces) {
		kept = &queue->kept[queue->kept_tail++ & queue->kept_mask];
		*kept = (struct pregrant_kept) { .skb = skb, .end = queue->requests, .bytes = skb->len };
	}
	skb_tx_timestamp(skb);
	if (!has_room(queue)) {
		stop_sender(queue);
		full = true;
	}
	/* With xmit_more one event is enough. */
	if (__netdev_tx_sent_queue(txq, skb->len, netdev_xmit_more()))
		pregrant_tx_publish(queue->tx);
	if (full)
		napi_schedule(&queue->napi);
	else if (!queue->tx_armed && arm_tx(queue, 0) < 0)
		pregrant_fail(dev);
	return NETDEV_TX_OK;
}

/* TX completion: frees skbs, and wakes the queue if there is room. */
static int poll_tx(struct pregrant_queue *queue, int budget)
{
	struct netdev_queue *txq = txq_of(queue);
	int ret;

	/* netpoll (budget 0) may have interrupted xmit on this CPU. */
	if (budget)
		__netif_tx_lock(txq, smp_processor_id());
	else if (!__netif_tx_trylock(txq))
		return 0;
	WRITE_ONCE(queue->tx_event, false);
	ret = reclaim(queue, budget);
	if (ret >= 0)
		ret = arm_tx(queue, budget);
	if (netif_tx_queue_stopped(txq) && has_room(queue))
		netif_tx_wake_queue(txq);
	__netif_tx_unlock(txq);
	return ret;
}

/*
 * Asks the backend to deliver a multicast address, or to stop that. Called with BH disabled. False:
 * the ring is full; try again after responses.
 */
bool pregrant_queue_multicast(struct pregrant_queue *queue, const u8 mac[6], bool wanted)
{
	struct netdev_queue *txq = txq_of(queue);
	bool asked = false;

	__netif_tx_lock(txq, smp_processor_id());
	if (READ_ONCE(queue->dev->running)) {
		asked = pregrant_tx_multicast(queue->tx, mac, wanted);
		queue->mc_refused = wanted && !asked;
	}
	/* The response makes room for the next address: arm an event, in case no skb follows. */
	if (asked && !queue->tx_armed && arm_tx(queue, 0) < 0)
		pregrant_fail(queue->dev);
	__netif_tx_unlock(txq);
	return asked;
}

/* Reads the counters of TX. Called with `queues_lock` held, while the queue is up. */
void pregrant_queue_tx_counters(struct pregrant_queue *queue, u64 to[PREGRANT_COUNTERS])
{
	__netif_tx_lock_bh(txq_of(queue));
	pregrant_tx_counters(queue->tx, to);
	__netif_tx_unlock_bh(txq_of(queue));
}

/* Copies the counters that NAPI owns, for ethtool to read. */
static void show_rx_counters(struct pregrant_queue *queue)
{
	u64 now[PREGRANT_COUNTERS];
	unsigned int i;

	pregrant_rx_counters(queue->rx, now);
	for (i = 0; i < PREGRANT_COUNTERS; i++)
		WRITE_ONCE(queue->rx_counters[i], now[i]);
}

static int poll(struct napi_struct *napi, int budget)
{
	struct pregrant_queue *queue = container_of(napi, struct pregrant_queue, napi);
	struct pregrant_received received = { .napi = napi, .queue = queue };
	int frames = 0, work = 0, tx = 0;

	if (!budget || READ_ONCE(queue->tx_event))
		tx = poll_tx(queue, budget);
	if (!budget) {
		if (tx < 0)
			pregrant_fail(queue->dev);
		return 0;
	}
	__skb_queue_head_init(&received.skbs);
	rcu_read_lock();
	received.program = rcu_dereference(queue->dev->program);
	if (tx >= 0)
		frames = pregrant_rx_receive(queue->rx, &received, budget, received.program, received.program && queue->sends_on);
	if (unlikely(received.program))
		pregrant_xdp_run_last(&received);
	if (unlikely(queue->sends_on) && frames >= 0 && pregrant_xdp_send_on(&received) < 0)
		tx = -EIO;
	if (frames >= 0)
		pregrant_rx_post(queue->rx);
	pregrant_deliver(queue, &received);
	if (unlikely(received.program))
		pregrant_xdp_flush(&received);
	rcu_read_unlock();
	show_rx_counters(queue);
	if (unlikely(queue->dev->settings.rx_in_place))
		pregrant_pool_look(queue);
	if (tx >= 0 && frames >= 0 && frames < budget)
		work = pregrant_rx_arm(queue->rx);
	if (tx < 0 || frames < 0 || work < 0) {
		pregrant_fail(queue->dev);
		napi_complete(napi);
		return 0;
	}
	if (frames == budget || work > 0)
		return budget;
	napi_complete_done(napi, frames);
	return frames;
}

int pregrant_queue_init(struct pregrant_queue *queue, struct pregrant_device *dev, unsigned int index)
{
	u32 slots = PREGRANT_SLOTS << dev->settings.ring_order;
	int ret;

	queue->dev = dev;
	queue->index = index;
	queue->kept = kvcalloc(slots, sizeof(*queue->kept), GFP_KERNEL);
	queue->kept_mask = slots - 1;
	ret = pregrant_pieces_init(queue, slots);
	if (pregrant_count_tx_pages) {
		queue->tx_pages = pregrant_tx_pages_new();
		ret = ret ?: queue->tx_pages ? 0 : -ENOMEM;
	}
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 1, 0)
	netif_napi_add(dev->netdev, &queue->napi, poll);
#else
	netif_napi_add(dev->netdev, &queue->napi, poll, NAPI_POLL_WEIGHT);
#endif
	return queue->kept ? ret ?: pregrant_xdp_init(queue) : -ENOMEM;
}

/*
 * Frees the skbs that wait for responses, while the queue is paused. A backend that is still
 * running reads their requests nevertheless.
 */
void pregrant_queue_drop_kept(struct pregrant_queue *queue)
{
	while (queue->kept_head != queue->kept_tail)
		dev_kfree_skb_any(queue->kept[queue->kept_head++ & queue->kept_mask].skb);
	pregrant_pieces_orphan(queue);
	queue->requests = 0;
	queue->tx_armed = false;
	queue->mc_refused = false;
	netdev_tx_reset_queue(txq_of(queue));
}

void pregrant_queue_free(struct pregrant_queue *queue)
{
	pregrant_xdp_free(queue);
	netif_napi_del(&queue->napi);
	pregrant_pieces_free(queue);
	kvfree(queue->kept);
	pregrant_tx_pages_free(queue->tx_pages);
}
