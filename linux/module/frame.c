// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * skbs: the core copies a frame once, between an skb and granted memory; with rx_in_place only a
 * long frame's head.
 */
#include <linux/etherdevice.h>
#include <linux/if_ether.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/version.h>

#include "driver.h"

/* Control buffer of a received skb until it is delivered. */
struct pregrant_cb {
	size_t len; /* length of the whole frame */
	u16 gso_size; /* as the backend says; not 0: a large segment */
	u8 gso_type;
	bool is_decided; /* no XDP program must see it any more */
};

static struct pregrant_cb *pregrant_cb(struct sk_buff *skb)
{
	return (struct pregrant_cb *)skb->cb;
}

void pk_skb_read(struct sk_buff *skb, size_t at, void *to, size_t len)
{
	/*
	 * Cannot fail: the core reads no more than skb->len. If it does, stale bytes must not reach
	 * the backend.
	 */
	if (WARN_ON_ONCE(skb_copy_bits(skb, at, to, len)))
		memset(to, 0, len);
}

/*
 * Returns the number of pages that the fragments touch, or more. 0: none, too many for one frame,
 * or a foreign page: another guest's page that is mapped here cannot be granted.
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

/* Of longer frames HEAD bytes are in the linear part and the rest is in pages: no large kmalloc. */
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

/* Queues an skb for delivery. Its bytes may follow. */
void pregrant_skb_received(struct pregrant_received *received, struct sk_buff *skb, u32 csum, bool is_decided)
{
	if (csum & PREGRANT_CSUM_BLANK)
		skb->ip_summed = CHECKSUM_PARTIAL;
	else if (csum & PREGRANT_CSUM_OK)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	*pregrant_cb(skb) = (struct pregrant_cb) { .len = skb->len, .is_decided = is_decided };
	__skb_queue_tail(&received->skbs, skb);
}

/* noinline: frames that XDP drops need not save the registers that this function uses. */
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
	pregrant_skb_received(received, skb, csum, !received->program);
	pregrant_cb(skb)->len = len;
	if (gso_type) {
		pregrant_cb(skb)->gso_type = gso_type;
		pregrant_cb(skb)->gso_size = gso_size;
	}
	return skb;
}

/* Counts a GSO frame that is dropped because its segments would be too short. */
void pk_frame_refused(void *to)
{
	((struct pregrant_received *)to)->dropped++;
}

struct sk_buff *pk_skb_new(void *to, size_t len, u32 csum, u32 gso_type, u32 gso_size, void **linear)
{
	struct pregrant_received *received = to;
	bool whole = len <= LINEAR_MAX;
	struct sk_buff *skb;

	/* There is no skb: the program sees the page. */
	if (unlikely(received->program) && !gso_type && len >= ETH_HLEN && len <= PREGRANT_XDP_FRAME_MAX)
		return pregrant_xdp_place(received, len, csum, linear);
	skb = skb_sized(received, len, whole ? len : HEAD, csum, gso_type, gso_size);
	*linear = skb && whole ? __skb_put(skb, len) : NULL;
	return skb;
}

/*
 * Makes an skb for a frame whose head is copied to `linear`; its other bytes are added as fragments
 * in their granted pages.
 */
struct sk_buff *pk_skb_new_frags(void *to, size_t len, size_t head, u32 csum, u32 gso_type, u32 gso_size, void **linear)
{
	struct pregrant_received *received = to;
	/* The core copies at least the headers. */
	bool has_head = !WARN_ON_ONCE(head < ETH_HLEN);
	struct sk_buff *skb = has_head ? skb_sized(received, len, head, csum, gso_type, gso_size) : NULL;

	*linear = skb ? __skb_put(skb, head) : NULL;
	return skb;
}

static struct page *page_of(const void *at)
{
	return is_vmalloc_addr(at) ? vmalloc_to_page(at) : virt_to_page(at);
}

/* An skb without a free fragment stays short, and is dropped at delivery. */
void pk_skb_add_page(struct sk_buff *skb, const void *at, size_t len)
{
	unsigned int n = skb_shinfo(skb)->nr_frags;
	struct page *page = page_of(at);

	if (n == MAX_SKB_FRAGS)
		return;
	get_page(page);
	skb_add_rx_frag(skb, n, page, offset_in_page(at), len, PAGE_SIZE);
	/*
	 * Writers must copy first: the backend sees the page. Not all look at the flag: until May
	 * 2026 ESP and RxRPC decrypt in place. The core therefore leaves only TCP in its pages.
	 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 12, 0)
	skb_shinfo(skb)->flags |= SKBFL_SHARED_FRAG;
#else
	skb_shinfo(skb)->tx_flags |= SKBTX_SHARED_FRAG;
#endif
}

/*
 * The barrier makes sure that reads of the page through an skb are over before it is posted again.
 */
bool pk_page_is_back(const void *at)
{
	bool is_back = page_ref_count(page_of(at)) == 1;

	smp_mb();
	return is_back;
}

/* Largest order of a compound page: these save allocations, if the kernel has some. */
#define ORDER_MAX 3

/* Allocates pages for the `left` bytes of a frame, and no more than these need. */
static struct page *pages_for(size_t left)
{
	unsigned int order = min_t(unsigned int, left > PAGE_SIZE ? ilog2(left / PAGE_SIZE) : 0, ORDER_MAX);
	struct page *page = NULL;

	if (order)
		page = __dev_alloc_pages((GFP_ATOMIC & ~__GFP_DIRECT_RECLAIM) | __GFP_NOWARN | __GFP_NORETRY, order);
	return page ? page : dev_alloc_pages(0);
}

/* Without memory the skb stays shorter than its frame, and is dropped at delivery. */
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

/* Called without any lock held, since the stack may send a frame in response. */
void pregrant_deliver(struct pregrant_queue *queue, struct pregrant_received *received)
{
	struct sk_buff *skb;

	while ((skb = __skb_dequeue(&received->skbs))) {
		struct pregrant_cb cb = *pregrant_cb(skb);
		/* The checksum of a GSO skb must be partial, since segmentation needs that. */
		bool blank = skb->ip_summed == CHECKSUM_PARTIAL, fix = cb.gso_size && !blank;

		if (skb->len != cb.len) {
			queue->rx_dropped++;
			dev_kfree_skb_any(skb);
			continue;
		}
		/* xdp.c counts the frames on which a program ran. */
		if (likely(!received->program)) {
			queue->rx_packets++;
			queue->rx_bytes += skb->len;
		}
		skb_record_rx_queue(skb, queue->index);
		skb->protocol = eth_type_trans(skb, queue->dev->netdev);
		skb_reset_network_header(skb);
		if (fix)
			skb->ip_summed = CHECKSUM_PARTIAL;
		/* Sets csum_start and csum_offset, for a device that forwards the frame. */
		if (((blank || fix) && skb_checksum_setup(skb, fix)) ||
		    (cb.gso_size && !pregrant_set_gso(skb, cb.gso_type, cb.gso_size))) {
			queue->rx_dropped++;
			dev_kfree_skb_any(skb);
			continue;
		}
		if (likely(cb.is_decided))
			napi_gro_receive(&queue->napi, skb);
		else
			pregrant_xdp_segments(received, skb);
	}
	queue->rx_dropped += received->dropped;
}
