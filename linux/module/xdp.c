// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * XDP: runs a program on a received frame before an skb is built.
 *
 *   the back's memory --copied once--> a page of the queue's --program--> drop: the page is used for the next frame
 *                                                                    '--> pass: an skb from the page, or a copy
 *                                                                    '--> tx: copied to TX of the same queue, or
 *                                                                    |        its staging buffer is sent on
 *                                                                    '--> redirect: the page is given away
 *
 * The program sees a private copy of the whole frame: it runs when the core asks for memory for the
 * next frame, or has no more frames. Blank checksums are completed first, since only XDP_PASS could
 * carry CHECKSUM_PARTIAL. A GSO frame becomes an skb first and is segmented; the program then sees
 * each segment.
 *
 * All of this runs in NAPI poll under rcu_read_lock(). The netdev_queue lock is taken at the first
 * XDP_TX of a poll and held until the poll has all frames, but not across a redirect, which takes
 * locks of other queues, nor while skbs are delivered.
 */
#include <linux/bpf_trace.h>
#include <linux/etherdevice.h>
#include <linux/filter.h>
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <linux/version.h>
#include <net/ip.h>
#include <net/xdp.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
#include <net/gso.h>
#endif

#include "driver.h"

/*
 * XDP_PASS copies frames up to this length, so that no socket is charged for a whole page, and the
 * page can be used again.
 */
#define COPY_MAX 2048

int pregrant_xdp_init(struct pregrant_queue *queue)
{
	struct net_device *netdev = queue->dev->netdev;
	int ret;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 12, 0)
	xdp_init_buff(&queue->buff, PAGE_SIZE, &queue->rxq);
#else
	queue->buff.frame_sz = PAGE_SIZE;
	queue->buff.rxq = &queue->rxq;
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 11, 0)
	ret = xdp_rxq_info_reg(&queue->rxq, netdev, queue->index, queue->napi.napi_id);
#else
	ret = xdp_rxq_info_reg(&queue->rxq, netdev, queue->index);
#endif
	return ret ?: xdp_rxq_info_reg_mem_model(&queue->rxq, MEM_TYPE_PAGE_ORDER0, NULL);
}

void pregrant_xdp_free(struct pregrant_queue *queue)
{
	if (xdp_rxq_info_is_reg(&queue->rxq))
		xdp_rxq_info_unreg(&queue->rxq);
	if (queue->buff.data_hard_start)
		__free_page(virt_to_page(queue->buff.data_hard_start));
}

/*
 * Runs the program on the previous frame, and returns the place for this frame in the queue's page,
 * which it also puts in `linear`. NULL: there is no memory; the frame is dropped and counted.
 */
void *pregrant_xdp_place(struct pregrant_received *received, size_t len, u32 csum, void **linear)
{
	struct xdp_buff *xdp = &received->queue->buff;

	pregrant_xdp_run(received);
	if (unlikely(!xdp->data_hard_start)) {
		struct page *page = dev_alloc_page();

		if (!page) {
			received->dropped++;
			return *linear = NULL;
		}
		xdp->data_hard_start = page_address(page);
	}
	received->pending = len;
	received->csum = csum;
	received->shared = NULL;
	xdp->data = xdp->data_hard_start + XDP_PACKET_HEADROOM;
	xdp->data_meta = xdp->data;
	xdp->data_end = xdp->data + len;
	return *linear = xdp->data;
}

/*
 * Completes a blank checksum; the field holds the sum of the pseudo header. False: the headers are
 * not understood, and it stays blank.
 */
static bool finish_sum(u8 *frame, size_t len)
{
	__be16 protocol = ((const struct ethhdr *)frame)->h_proto;
	size_t at = ETH_HLEN, end, field;
	u8 carries;

	if (protocol == htons(ETH_P_8021Q) && len >= at + VLAN_HLEN) {
		protocol = ((const struct vlan_hdr *)(frame + at))->h_vlan_encapsulated_proto;
		at += VLAN_HLEN;
	}
	if (protocol == htons(ETH_P_IP) && len >= at + sizeof(struct iphdr)) {
		const struct iphdr *ip = (const struct iphdr *)(frame + at);

		if (ip->ihl < 5 || ip_is_fragment(ip))
			return false;
		end = at + ntohs(ip->tot_len);
		carries = ip->protocol;
		at += ip->ihl * 4;
	} else if (protocol == htons(ETH_P_IPV6) && len >= at + sizeof(struct ipv6hdr)) {
		const struct ipv6hdr *ip = (const struct ipv6hdr *)(frame + at);

		at += sizeof(*ip);
		end = at + ntohs(ip->payload_len);
		carries = ip->nexthdr;
	} else {
		return false;
	}
	if (carries == IPPROTO_TCP)
		field = at + offsetof(struct tcphdr, check);
	else if (carries == IPPROTO_UDP)
		field = at + offsetof(struct udphdr, check);
	else
		return false;
	if (end > len || field + sizeof(__sum16) > end)
		return false;
	*(__sum16 *)(frame + field) = csum_fold(csum_partial(frame + at, end - at, 0)) ?: CSUM_MANGLED_0;
	return true;
}

/* XDP_PASS: builds an skb of the bytes that the program left. */
static void pass(struct pregrant_received *received, const struct xdp_buff *xdp)
{
	struct pregrant_queue *queue = received->queue;
	size_t len = xdp->data_end - xdp->data, meta = xdp->data - xdp->data_meta;
	struct sk_buff *skb;

	if (len + meta <= COPY_MAX) {
		skb = pregrant_skb_alloc(received->napi, meta + len);
		if (skb) {
			memcpy(__skb_put(skb, meta + len), xdp->data_meta, meta + len);
			__skb_pull(skb, meta);
		}
	} else {
		skb = build_skb(xdp->data_hard_start, PAGE_SIZE);
		if (skb) {
			skb_reserve(skb, xdp->data - xdp->data_hard_start);
			__skb_put(skb, len);
			queue->buff.data_hard_start = NULL;
		}
	}
	if (!skb) {
		received->dropped++;
		return;
	}
	if (meta)
		skb_metadata_set(skb, meta);
	pregrant_skb_received(received, skb, received->csum, true);
	queue->xdp[PREGRANT_XDP_PASS]++;
}

void pk_in_buffer(void *to, u16 slot, u16 offset, size_t bytes, void *from)
{
	struct pregrant_received *received = to;

	if (!received->pending)
		return;
	received->shared = from;
	received->slot = slot;
	received->offset = offset;
	received->buffer_bytes = bytes;
}

/* Programs change headers, so this many bytes are written back without comparing them. */
#define HEADERS 128

/*
 * Writes the bytes that the program changed back to the staging buffer. If the backend changes the
 * buffer meanwhile, only the backend itself reads the result.
 */
static void write_back(u8 *to, const u8 *from, size_t len)
{
	size_t at = min_t(size_t, len, HEADERS);

	memcpy(to, from, at);
	for (; at + 4 * sizeof(u64) <= len; at += 4 * sizeof(u64)) {
		const u64 *ours = (const u64 *)(from + at), *theirs = (const u64 *)(to + at);

		if ((ours[0] ^ theirs[0]) | (ours[1] ^ theirs[1]) | (ours[2] ^ theirs[2]) | (ours[3] ^ theirs[3]))
			break;
	}
	memcpy(to + at, from + at, len - at);
}

/*
 * Notes that the staging buffer of a frame is to be sent on, once the core has read all frames of
 * this poll. False: copy the frame instead.
 */
static bool keep_buffer(struct pregrant_received *received, const struct xdp_buff *xdp)
{
	struct pregrant_queue *queue = received->queue;
	size_t len = xdp->data_end - xdp->data;
	/* Negative if the program added more headroom than the buffer has. */
	int offset = received->offset + (int)(xdp->data - xdp->data_hard_start) - XDP_PACKET_HEADROOM;

	if (!received->shared || received->on_its_way == ARRAY_SIZE(queue->on_its_way) || offset < 0 ||
	    offset + len > received->buffer_bytes)
		return false;
	write_back(received->shared + offset - received->offset, xdp->data, len);
	queue->on_its_way[received->on_its_way++] = (struct pregrant_on_its_way) {
		.slot = received->slot, .offset = offset, .len = len, .csum = received->csum,
	};
	return true;
}

/*
 * Sends the staging buffers that were noted, and makes those with a response RX buffers again.
 * Buffers for which the ring has no room stay RX buffers. Below 0: a fault.
 */
int pregrant_xdp_send_on(struct pregrant_received *received)
{
	struct pregrant_queue *queue = received->queue;
	struct netdev_queue *txq = txq_of(queue);
	unsigned int k, sent = 0;
	int ret;

	if (!received->on_its_way && !queue->buffers_out)
		return 0;
	__netif_tx_lock(txq, smp_processor_id());
	ret = pregrant_take_returned(queue, 1);
	for (k = 0; k < received->on_its_way && ret >= 0; k++)
		sent += pregrant_send_buffer(queue, &queue->on_its_way[k]);
	__netif_tx_unlock(txq);
	queue->xdp[PREGRANT_XDP_TX] += sent;
	queue->xdp[PREGRANT_XDP_TX_BUFFERS] += sent;
	queue->xdp[PREGRANT_XDP_TX_FULL] += received->on_its_way - sent;
	received->sent |= sent != 0;
	return ret;
}

static void unlock_tx(struct pregrant_received *received)
{
	if (received->has_tx)
		__netif_tx_unlock(txq_of(received->queue));
	received->has_tx = false;
}

static bool send_back(struct pregrant_received *received, const struct xdp_buff *xdp)
{
	struct pregrant_queue *queue = received->queue;
	bool sent;

	if (!received->has_tx)
		__netif_tx_lock(txq_of(queue), smp_processor_id());
	received->has_tx = true;
	sent = pregrant_send_bytes(queue, xdp->data, xdp->data_end - xdp->data, received->csum);
	received->sent |= sent;
	return sent;
}

/* Runs the program on the frame in the queue's page. */
static void decide(struct pregrant_received *received)
{
	struct pregrant_queue *queue = received->queue;
	struct net_device *netdev = queue->dev->netdev;
	struct bpf_prog *program = received->program;
	struct xdp_buff *xdp = &queue->buff;
	size_t len = received->pending;
	u32 act;

	received->pending = 0;
	if (received->csum & PREGRANT_CSUM_BLANK && finish_sum(xdp->data, len))
		received->csum = PREGRANT_CSUM_OK;
	queue->rx_packets++;
	queue->rx_bytes += len;
	act = bpf_prog_run_xdp(program, xdp);
	switch (act) {
	case XDP_DROP:
		queue->xdp[PREGRANT_XDP_DROP]++;
		return;
	case XDP_PASS:
		pass(received, xdp);
		return;
	case XDP_TX:
		if (keep_buffer(received, xdp))
			return;
		if (send_back(received, xdp)) {
			queue->xdp[PREGRANT_XDP_TX]++;
			return;
		}
		queue->xdp[PREGRANT_XDP_TX_FULL]++;
		trace_xdp_exception(netdev, program, act);
		return;
	case XDP_REDIRECT:
		unlock_tx(received);
		if (!xdp_do_redirect(netdev, xdp, program)) {
			xdp->data_hard_start = NULL;
			received->redirected = true;
			queue->xdp[PREGRANT_XDP_REDIRECT]++;
			return;
		}
		break;
	case XDP_ABORTED:
		break;
	default:
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 17, 0)
		bpf_warn_invalid_xdp_action(netdev, program, act);
#else
		bpf_warn_invalid_xdp_action(act);
#endif
	}
	trace_xdp_exception(netdev, program, act);
	queue->xdp[PREGRANT_XDP_ABORTED]++;
}

/* Runs the program if a frame waits for it. Afterwards the lock of the netdev_queue may be held. */
void pregrant_xdp_run(struct pregrant_received *received)
{
	if (received->pending)
		decide(received);
}

/* Like pregrant_xdp_run(), for the last frame of a poll; releases that lock, too. */
void pregrant_xdp_run_last(struct pregrant_received *received)
{
	pregrant_xdp_run(received);
	unlock_tx(received);
}

/* Segments a GSO skb, and runs the program on each. What passes keeps its place among the skbs. */
void pregrant_xdp_segments(struct pregrant_received *received, struct sk_buff *skb)
{
	struct sk_buff *segment = NULL, *next;
	struct sk_buff_head behind;
	void *to;

	__skb_queue_head_init(&behind);
	skb_queue_splice_init(&received->skbs, &behind);
	skb_push(skb, ETH_HLEN);
	if (skb_is_gso(skb))
		segment = __skb_gso_segment(skb, NETIF_F_SG, false);
	/* The skb is not longer than one segment. */
	if (IS_ERR_OR_NULL(segment))
		segment = skb;
	else
		consume_skb(skb);
	for (; segment; segment = next) {
		u32 csum = segment->ip_summed == CHECKSUM_PARTIAL ? PREGRANT_CSUM_BLANK : PREGRANT_CSUM_OK;

		next = segment->next;
		/* A segment that is longer than a page is longer than the MTU. */
		if (segment->len > PREGRANT_XDP_FRAME_MAX) {
			received->queue->rx_dropped++;
		} else if (pregrant_xdp_place(received, segment->len, csum, &to)) {
			if (!WARN_ON_ONCE(skb_copy_bits(segment, 0, to, segment->len)))
				pregrant_xdp_run(received);
			received->pending = 0;
		}
		skb_mark_not_on_list(segment);
		consume_skb(segment);
	}
	unlock_tx(received);
	skb_queue_splice_tail(&behind, &received->skbs);
}

/* Called at the end of a poll: publishes what was sent, flushes redirects. */
void pregrant_xdp_flush(struct pregrant_received *received)
{
	struct pregrant_queue *queue = received->queue;
	struct netdev_queue *txq = txq_of(queue);

	if (received->sent) {
		__netif_tx_lock(txq, smp_processor_id());
		pregrant_tx_publish(queue->tx);
		__netif_tx_unlock(txq);
	}
	if (received->redirected)
		xdp_do_flush();
}

/* True if the frame is linear. */
static bool is_whole(struct xdp_frame *frame)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 18, 0)
	return !xdp_frame_has_frags(frame);
#else
	return true;
#endif
}

/* ndo_xdp_xmit: frames that programs redirect to this interface. */
int pregrant_xdp_xmit(struct net_device *netdev, int n, struct xdp_frame **frames, u32 flags)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	unsigned int queues_up = READ_ONCE(dev->queues_up);
	struct pregrant_queue *queue;
	struct netdev_queue *txq;
	int sent = 0, k;

	if (unlikely(flags & ~XDP_XMIT_FLAGS_MASK))
		return -EINVAL;
	if (unlikely(!queues_up))
		return -ENETDOWN;
	queue = &dev->queues[smp_processor_id() % queues_up];
	txq = txq_of(queue);
	__netif_tx_lock(txq, smp_processor_id());
	/* Stable under this lock. There may be fewer queues up than a moment ago. */
	if (likely(READ_ONCE(dev->running) && queue->tx)) {
		while (sent < n && is_whole(frames[sent]) &&
		       pregrant_send_bytes(queue, frames[sent]->data, frames[sent]->len, 0))
			sent++;
		queue->xdp[PREGRANT_XDP_XMIT] += sent;
		pregrant_tx_publish(queue->tx);
	}
	__netif_tx_unlock(txq);
	for (k = 0; k < sent; k++)
		xdp_return_frame_rx_napi(frames[k]);
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 13, 0)
	/* Before 5.13 the driver frees the frames that it did not send, too. */
	for (; k < n; k++)
		xdp_return_frame_rx_napi(frames[k]);
#endif
	return sent;
}

static int set_program(struct net_device *netdev, struct bpf_prog *program, struct netlink_ext_ack *extack)
{
	struct pregrant_device *dev = netdev_priv(netdev);
	struct bpf_prog *before = rtnl_dereference(dev->program);

	if (program && netdev->mtu > PREGRANT_XDP_MTU_MAX) {
		NL_SET_ERR_MSG_MOD(extack, "a frame of this MTU, its headroom and its end do not fit a page: 3502 do");
		return -EINVAL;
	}
	rcu_assign_pointer(dev->program, program);
	if (before)
		bpf_prog_put(before);
	return 0;
}

/* ndo_bpf, under RTNL. */
int pregrant_bpf(struct net_device *netdev, struct netdev_bpf *bpf)
{
	return bpf->command == XDP_SETUP_PROG ? set_program(netdev, bpf->prog, bpf->extack) : -EINVAL;
}
