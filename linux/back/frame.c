// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * skbs: of frames that the guest sent, and for it. A short frame from the guest is copied from the
 * core's burst to its skb; a long one stays there (burst.c), but for its headers. One for the guest
 * is read by the core where the skb has it; a short one is copied to the burst, which costs less.
 */
#include <linux/etherdevice.h>
#include <linux/mm.h>
#include <xen/xen.h>

#include "driver.h"

/* Of longer frames HEAD bytes, with all headers, are in the linear part, the rest is in pages. */
#define LINEAR_MAX 2048
#define HEAD 256
/* The largest order of pages that long frames are copied to, if the kernel has some. */
#define ORDER 3

static struct sk_buff *short_skb(struct pregrant_queue *queue, const void *bytes, size_t len)
{
	struct sk_buff *skb = napi_alloc_skb(&queue->napi, len);

	if (skb)
		skb_put_data(skb, bytes, len);
	return skb;
}

/* Of the bytes where they are, page by page: devices of a PV domain take no longer fragments. */
static struct sk_buff *long_skb(struct pregrant_queue *queue, const void *bytes, size_t len)
{
	struct sk_buff *skb = short_skb(queue, bytes, HEAD);
	size_t at, some;

	BUILD_BUG_ON((PREGRANT_FRAME_MAX - HEAD) / PAGE_SIZE + 2 > MAX_SKB_FRAGS);
	for (at = HEAD; skb && at < len; at += some) {
		struct page *page = virt_to_page(bytes + at);

		some = min_t(size_t, len - at, PAGE_SIZE - offset_in_page(bytes + at));
		get_page(page);
		skb_add_rx_frag(skb, skb_shinfo(skb)->nr_frags, page, offset_in_page(bytes + at), some, PAGE_SIZE);
	}
	return skb;
}

static struct sk_buff *copied_skb(const void *bytes, size_t len)
{
	struct sk_buff *skb;
	int err;

	skb = alloc_skb_with_frags(NET_SKB_PAD + NET_IP_ALIGN + HEAD, len - HEAD, xen_pv_domain() ? 0 : ORDER, &err,
				   GFP_ATOMIC | __GFP_NOWARN);
	if (!skb)
		return NULL;
	skb_reserve(skb, NET_SKB_PAD + NET_IP_ALIGN);
	skb_put(skb, HEAD);
	skb->data_len = len - HEAD;
	skb->len = len;
	if (!skb_store_bits(skb, 0, bytes, len))
		return skb;
	kfree_skb(skb);
	return NULL;
}

static struct sk_buff *skb_with(struct pregrant_queue *queue, const void *bytes, size_t len)
{
	if (len <= LINEAR_MAX)
		return short_skb(queue, bytes, len);
	return queue->burst ? long_skb(queue, bytes, len) : copied_skb(bytes, len);
}

bool pk_frame_from_guest(struct pregrant_queue *queue, const void *bytes, size_t len, u32 csum, u32 gso_type,
			 u32 gso_size)
{
	struct sk_buff *skb = len >= ETH_HLEN ? skb_with(queue, bytes, len) : NULL;
	bool is_long = len > LINEAR_MAX;

	if (!skb) {
		queue->rx_dropped++;
		return is_long;
	}
	/* The core makes the checksum of a large segment blank. */
	if (csum & PREGRANT_CSUM_BLANK || gso_type)
		skb->ip_summed = CHECKSUM_PARTIAL;
	else if (csum & PREGRANT_CSUM_OK)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	skb_record_rx_queue(skb, queue->index);
	skb->protocol = eth_type_trans(skb, queue->dev->netdev);
	skb_reset_network_header(skb);
	/* Sets csum_start and csum_offset, for a device that forwards the frame. */
	if (skb->ip_summed == CHECKSUM_PARTIAL && skb_checksum_setup(skb, false))
		goto drop;
	if (gso_type && !pregrant_set_gso(skb, gso_type, gso_size))
		goto drop;
	queue->rx_packets++;
	queue->rx_bytes += len;
	list_add_tail(&skb->list, &queue->received);
	return is_long;
drop:
	queue->rx_dropped++;
	kfree_skb(skb);
	return is_long;
}

/* Called between batches. The stack may send frames to any vif in response: they are queued. */
void pregrant_deliver(struct pregrant_queue *queue)
{
	if (list_empty(&queue->received))
		return;
	netif_receive_skb_list(&queue->received);
	INIT_LIST_HEAD(&queue->received);
}

struct pregrant_frame *pk_frames_take(struct pregrant_queue *queue, size_t most, size_t room, size_t *n)
{
	struct sk_buff *skb;
	size_t k, used = 0;
	u32 bytes = 0;

	most = min_t(size_t, most, ARRAY_SIZE(queue->frames));
	for (k = 0; k < most && used + PREGRANT_FRAME_MAX <= room; k++) {
		struct pregrant_frame *frame = &queue->frames[k];

		skb = __ptr_ring_consume(&queue->waiting);
		if (!skb)
			break;
		bytes += skb->len;
		frame->skb = skb;
		frame->len = skb->len;
		frame->csum = 0;
		if (skb->ip_summed == CHECKSUM_PARTIAL)
			frame->csum = PREGRANT_CSUM_BLANK;
		else if (skb->ip_summed == CHECKSUM_UNNECESSARY)
			frame->csum = PREGRANT_CSUM_OK;
		frame->gso_type = 0;
		frame->gso_size = 0;
		if (skb_is_gso(skb)) {
			frame->gso_size = skb_shinfo(skb)->gso_size;
			frame->gso_type = skb_shinfo(skb)->gso_type & SKB_GSO_TCPV6 ? PREGRANT_GSO_TCPV6 :
										      PREGRANT_GSO_TCPV4;
		}
		/* The core begins each on a cache line, after a gap that is shorter than it. */
		used += ALIGN(skb->len, 64) + min_t(size_t, ALIGN(skb->len, 64), PAGE_SIZE);
	}
	if (k)
		pregrant_queue_took(queue, k, bytes);
	*n = k;
	return queue->frames;
}

static void copy_all(struct sk_buff *skb, void *to)
{
	/* Cannot fail: the skb has these bytes. Stale ones must not go out. */
	if (!skb_is_nonlinear(skb))
		skb_copy_from_linear_data(skb, to, skb->len);
	else if (WARN_ON_ONCE(skb_copy_bits(skb, 0, to, skb->len)))
		memset(to, 0, skb->len);
}

static bool add_piece(struct pregrant_queue *queue, u32 *at, void *bytes, size_t len)
{
	if (!len)
		return true;
	if (!bytes || queue->nr_pieces == PREGRANT_PIECES || is_vmalloc_addr(bytes))
		return false;
	queue->pieces[queue->nr_pieces++] = (struct pregrant_lent_piece) { .at = *at, .bytes = bytes, .len = len };
	*at += len;
	return true;
}

static bool add_pieces(struct pregrant_queue *queue, u32 *at, struct sk_buff *skb)
{
	unsigned int k;

	if (!add_piece(queue, at, skb->data, skb_headlen(skb)))
		return false;
	for (k = 0; k < skb_shinfo(skb)->nr_frags; k++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[k];

		/* Another guest's page, by blkback: Xen does not take it for this domain's. */
		if (!skb_frag_page(frag) || PageForeign(skb_frag_page(frag)))
			return false;
		if (!add_piece(queue, at, skb_frag_address(frag), skb_frag_size(frag)))
			return false;
	}
	return true;
}

/*
 * What a long frame's first slot should have, so that a page of it is in each later one: what is
 * before its first long fragment, and this one's bytes in its first page. 0: as much as fits.
 */
static u16 first_slot(const struct pregrant_queue *queue, unsigned int k, u32 from)
{
	for (; k < queue->nr_pieces; k++) {
		const struct pregrant_lent_piece *piece = &queue->pieces[k];

		if (piece->len >= PAGE_SIZE) {
			u32 bytes = piece->at - from + PAGE_SIZE - offset_in_page(piece->bytes);

			return bytes < PAGE_SIZE ? bytes : 0;
		}
	}
	return 0;
}

/* False: its bytes cannot be read where they are. */
static bool lend(struct pregrant_queue *queue, struct pregrant_frame *frame, u8 *head, size_t len)
{
	unsigned int before = queue->nr_pieces;
	struct sk_buff *part, *skb = frame->skb;
	u32 at = frame->at;

	if (!add_pieces(queue, &at, skb))
		goto full;
	/* None has a list of its own: the stack makes it so, and the lengths would not be right. */
	skb_walk_frags(skb, part)
		if (skb_has_frag_list(part) || !add_pieces(queue, &at, part))
			goto full;
	/* What is missing would be stale bytes of the burst. */
	if (at - frame->at != skb->len)
		goto full;
	if (len <= skb_headlen(skb))
		skb_copy_from_linear_data(skb, head, len);
	else if (skb_copy_bits(skb, 0, head, len))
		goto full;
	__skb_queue_tail(&queue->lent, skb);
	if (skb->len > 2 * PAGE_SIZE)
		frame->cut = first_slot(queue, before, frame->at);
	return true;
full:
	queue->nr_pieces = before;
	return false;
}

/* Several at once, in the poll. */
static void sent(struct pregrant_queue *queue, struct sk_buff *skb)
{
	napi_consume_skb(skb, queue->is_polled);
}

size_t pk_frames_fill(struct pregrant_queue *queue, struct pregrant_frame *frames, size_t n, void *burst, size_t head)
{
	u64 packets = 0, bytes = 0;
	size_t k, lent = 0;

	for (k = 0; k < n; k++) {
		struct pregrant_frame *frame = &frames[k];
		struct sk_buff *skb = frame->skb;

		frame->cut = 0;
		if (unlikely(!frame->len)) {
			queue->tx_dropped++;
			dev_kfree_skb_any(skb);
			continue;
		}
		packets++;
		bytes += skb->len;
		if (frame->lends && lend(queue, frame, burst + frame->at, head)) {
			lent++;
			continue;
		}
		copy_all(skb, burst + frame->at);
		sent(queue, skb);
	}
	queue->tx_packets += packets;
	queue->tx_bytes += bytes;
	return lent;
}

const struct pregrant_lent_piece *pk_lent(struct pregrant_queue *queue, size_t *n)
{
	*n = queue->nr_pieces;
	return queue->pieces;
}

void pk_lent_end(struct pregrant_queue *queue)
{
	struct sk_buff *skb;

	queue->nr_pieces = 0;
	while ((skb = __skb_dequeue(&queue->lent)))
		sent(queue, skb);
}

u32 pk_frames_waiting(struct pregrant_queue *queue)
{
	return READ_ONCE(queue->frames_in) - queue->frames_out;
}
