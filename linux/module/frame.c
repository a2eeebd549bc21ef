// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* Bytes of skbs: the core copies a frame once, between an skb and what is granted. */
#include <linux/etherdevice.h>
#include <linux/if_ether.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/version.h>

#include "driver.h"

/* A received frame until it goes up. */
struct pregrant_cb {
	size_t len;
	bool is_decided; /* by a program, or there is none */
};

static struct pregrant_cb *pregrant_cb(struct sk_buff *skb)
{
	return (struct pregrant_cb *)skb->cb;
}

void pk_skb_read(struct sk_buff *skb, size_t at, void *to, size_t len)
{
	/*
	 * It cannot fail: the core asks for no more than the skb said it has. No byte of before is
	 * sent.
	 */
	if (WARN_ON_ONCE(skb_copy_bits(skb, at, to, len)))
		memset(to, 0, len);
}

/*
 * At least as many as the pages that its fragments touch. 0: there are none, or more than a frame
 * in pieces has, or some are not ours to grant: another guest's, mapped here.
 */
unsigned int pregrant_skb_pages(const struct sk_buff *skb)
{
	const struct skb_shared_info *info = skb_shinfo(skb);
	unsigned int n = 0, k;

	if (skb_has_frag_list(skb))
		return 0;
	for (k = 0; k < info->nr_frags; k++) {
		const skb_frag_t *frag = &info->frags[k];
		struct page *page = skb_frag_page(frag);

		if (!page || PageForeign(page))
			return 0;
		n += PFN_UP(offset_in_page(skb_frag_off(frag)) + skb_frag_size(frag));
	}
	return n <= PREGRANT_PIECES_MAX ? n : 0;
}

/*
 * Longer frames have their headers in the skb, and the rest in pages: memory in one piece is
 * scarce.
 */
#define LINEAR_MAX 2048
#define HEAD 256

struct sk_buff *pregrant_skb_alloc(struct napi_struct *napi, unsigned int len)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
	return napi_alloc_skb(napi, len);
#else
	return __napi_alloc_skb(napi, len, GFP_ATOMIC | __GFP_NOWARN);
#endif
}

/* Adds an skb to those that go up. It may have its bytes, or get them. */
void pregrant_skb_received(struct pregrant_received *received, struct sk_buff *skb, u32 csum, bool is_decided)
{
	if (csum & PREGRANT_CSUM_BLANK)
		skb->ip_summed = CHECKSUM_PARTIAL;
	else if (csum & PREGRANT_CSUM_OK)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	*pregrant_cb(skb) = (struct pregrant_cb) { .len = skb->len, .is_decided = is_decided };
	__skb_queue_tail(&received->skbs, skb);
}

/* In a function of its own: what a program drops is not to save its registers. */
static noinline struct sk_buff *skb_sized(struct pregrant_received *received, size_t len, size_t linear, u32 csum,
					  u32 gso_type, u32 gso_size)
{
	struct sk_buff *skb = NULL;

	if (unlikely(received->program))
		pregrant_xdp_run(received);
	if (len >= ETH_HLEN)
		skb = pregrant_skb_alloc(received->napi, linear);
	if (!skb) {
		received->dropped++;
		return NULL;
	}
	if (gso_type) {
		struct skb_shared_info *info = skb_shinfo(skb);

		info->gso_size = gso_size;
		info->gso_type = gso_type == PREGRANT_GSO_TCPV6 ? SKB_GSO_TCPV6 : SKB_GSO_TCPV4;
		/*
		 * Its headers are whatever the back wrote: the stack parses them, and counts its
		 * segments.
		 */
		info->gso_type |= SKB_GSO_DODGY;
		info->gso_segs = 0;
	}
	pregrant_skb_received(received, skb, csum, !received->program);
	pregrant_cb(skb)->len = len;
	return skb;
}

/* Its segments would be of next to nothing. */
void pk_frame_refused(void *to)
{
	((struct pregrant_received *)to)->dropped++;
}

struct sk_buff *pk_skb_new(void *to, size_t len, u32 csum, u32 gso_type, u32 gso_size, void **linear)
{
	struct pregrant_received *received = to;
	bool whole = len <= LINEAR_MAX;
	struct sk_buff *skb;

	/* No skb, which is not asked for again. */
	if (unlikely(received->program) && !gso_type && len >= ETH_HLEN && len <= PREGRANT_XDP_FRAME_MAX)
		return pregrant_xdp_place(received, len, csum, linear);
	skb = skb_sized(received, len, whole ? len : HEAD, csum, gso_type, gso_size);
	*linear = skb && whole ? __skb_put(skb, len) : NULL;
	return skb;
}

/*
 * A frame whose first bytes are copied to `linear`, and whose others are added in the pages in
 * which they came.
 */
struct sk_buff *pk_skb_new_lent(void *to, size_t len, size_t head, u32 csum, u32 gso_type, u32 gso_size, void **linear)
{
	struct pregrant_received *received = to;
	/* The core copies more than the headers. */
	bool has_head = !WARN_ON_ONCE(head < ETH_HLEN);
	struct sk_buff *skb = has_head ? skb_sized(received, len, head, csum, gso_type, gso_size) : NULL;

	*linear = skb ? __skb_put(skb, head) : NULL;
	return skb;
}

static struct page *page_of(void *at)
{
	return is_vmalloc_addr(at) ? vmalloc_to_page(at) : virt_to_page(at);
}

/* An skb without room for it is short, and dropped when it is delivered. */
void pk_skb_lend(struct sk_buff *skb, void *at, size_t len)
{
	unsigned int n = skb_shinfo(skb)->nr_frags;
	struct page *page = page_of(at);

	if (n == MAX_SKB_FRAGS)
		return;
	get_page(page);
	skb_add_rx_frag(skb, n, page, offset_in_page(at), len, PAGE_SIZE);
	/*
	 * Who would write to it is to copy: the back sees the page. Not all ask: until May 2026 ESP
	 * and RxRPC decrypt where the payload is. The core lends none of theirs: TCP's alone.
	 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 12, 0)
	skb_shinfo(skb)->flags |= SKBFL_SHARED_FRAG;
#else
	skb_shinfo(skb)->tx_flags |= SKBTX_SHARED_FRAG;
#endif
}

/* No skb has the page any more, and what was read of it is read. */
bool pk_page_is_back(void *at)
{
	bool is_back = page_ref_count(page_of(at)) == 1;

	smp_mb();
	return is_back;
}

/* Of pages in one piece where they are to be had: fewer to take and to give back. */
#define ORDER_MAX 3

/* For what is left of a frame: no more than that, but for its last page. */
static struct page *pages_for(size_t left)
{
	unsigned int order = min_t(unsigned int, left > PAGE_SIZE ? ilog2(left / PAGE_SIZE) : 0, ORDER_MAX);
	struct page *page = NULL;

	if (order)
		page = __dev_alloc_pages((GFP_ATOMIC & ~__GFP_DIRECT_RECLAIM) | __GFP_NOWARN | __GFP_NORETRY, order);
	return page ? page : dev_alloc_pages(0);
}

/*
 * An skb that ends up shorter than it was to be, for want of memory, is dropped when it is
 * delivered.
 */
void pk_skb_append(struct sk_buff *skb, const void *from, size_t len)
{
	struct skb_shared_info *info = skb_shinfo(skb);

	while (len) {
		size_t n = min_t(size_t, len, HEAD - skb_headlen(skb));
		skb_frag_t *frag;

		if (n) {
			memcpy(__skb_put(skb, n), from, n);
		} else {
			frag = info->nr_frags ? &info->frags[info->nr_frags - 1] : NULL;
			if (!frag || skb_frag_size(frag) == page_size(skb_frag_page(frag))) {
				struct page *page = NULL;

				if (info->nr_frags < MAX_SKB_FRAGS)
					page = pages_for(pregrant_cb(skb)->len - skb->len);
				if (!page)
					return;
				frag = &info->frags[info->nr_frags];
				skb_add_rx_frag(skb, info->nr_frags, page, 0, 0, page_size(page));
			}
			n = min_t(size_t, len, page_size(skb_frag_page(frag)) - skb_frag_size(frag));
			memcpy(skb_frag_address(frag) + skb_frag_size(frag), from, n);
			skb_frag_size_add(frag, n);
			skb->len += n;
			skb->data_len += n;
		}
		from += n;
		len -= n;
	}
}

/* Outside of any lock: the stack may answer a frame by sending one. */
void pregrant_deliver(struct pregrant_queue *queue, struct pregrant_received *received)
{
	struct sk_buff *skb;

	while ((skb = __skb_dequeue(&received->skbs))) {
		/*
		 * A large segment whose sum is not blank: its segments' sums are to be made from a
		 * blank one.
		 */
		bool blank = skb->ip_summed == CHECKSUM_PARTIAL, fix = skb_is_gso(skb) && !blank;
		bool is_decided;

		if (skb->len != pregrant_cb(skb)->len) {
			queue->rx_dropped++;
			dev_kfree_skb_any(skb);
			continue;
		}
		/* What a program sees is counted then. */
		if (likely(!received->program)) {
			queue->rx_packets++;
			queue->rx_bytes += skb->len;
		}
		is_decided = pregrant_cb(skb)->is_decided;
		skb_record_rx_queue(skb, queue->index);
		skb->protocol = eth_type_trans(skb, queue->dev->netdev);
		skb_reset_network_header(skb);
		if (fix)
			skb->ip_summed = CHECKSUM_PARTIAL;
		/* Where the sum is to be, for the one that sends the frame on. */
		if ((blank || fix) && skb_checksum_setup(skb, fix)) {
			queue->rx_dropped++;
			dev_kfree_skb_any(skb);
			continue;
		}
		if (likely(is_decided))
			napi_gro_receive(&queue->napi, skb);
		else
			pregrant_xdp_segments(received, skb);
	}
	queue->rx_dropped += received->dropped;
}
