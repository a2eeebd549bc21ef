/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * A vif's device and its queues, as the files of the driver share them.
 *
 *   control   one work item a device, under `control`; it may sleep, and has the front
 *   xmit      the stack's senders: a queue's `tx`, under its netdev queue's lock
 *   poll      a queue's NAPI: `rx`, alone; `tx` under that lock. Received skbs go up outside of it
 *   event     an interrupt's handler: it says who is to poll
 *
 * The front lends a queue's two halves while frames can travel. They go back when the queues are
 * paused: no sender has the lock then, and no poll runs.
 *
 * Locks: `control` or RTNL, never both: control may wait long, for the back. Then `lending` or that
 * of xenstore's transactions, the list of addresses, a netdev queue's.
 */
#ifndef PREGRANT_DRIVER_H
#define PREGRANT_DRIVER_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/ratelimit.h>
#include <linux/skbuff.h>
#include <linux/workqueue.h>
#include <net/xdp.h>
#include <xen/grant_table.h>
#include <xen/xenbus.h>

#include "pregrant.h"

/* Slots of the longest frame: its head, its pieces, its extra info. */
#define PREGRANT_FRAME_SLOTS (1 + PREGRANT_PIECES_MAX + 1)
#define PREGRANT_FRAME_MAX 65535
#define PREGRANT_MTU_MAX (PREGRANT_FRAME_MAX - 18)
#define PREGRANT_ORDER_MAX 4
#define PREGRANT_SLOTS 256 /* of a ring of one page */
/* The longest frame that an XDP program sees: its page has room ahead of it, and an end behind. */
#define PREGRANT_XDP_FRAME_MAX \
	(PAGE_SIZE - XDP_PACKET_HEADROOM - SKB_DATA_ALIGN(sizeof(struct skb_shared_info)))
#define PREGRANT_XDP_MTU_MAX (PREGRANT_XDP_FRAME_MAX - 18)

/* A frame whose requests the back has not answered. */
struct pregrant_kept {
	struct sk_buff *skb;
	u32 end; /* requests that were sent when it was */
	u32 bytes;
};

/* Of an skb, in one page. */
struct pregrant_page_piece {
	struct page *page;
	u16 offset, len;
};

/* On the way through an skb's fragments, page by page; at the beginning all but the skb's is 0. */
struct pregrant_walk {
	const struct skb_shared_info *info;
	unsigned int frag; /* the next one */
	struct page *page;
	size_t at, left; /* of this one, in that page */
};

static inline bool pregrant_walk_next(struct pregrant_walk *walk, struct pregrant_page_piece *to)
{
	while (!walk->left) {
		const skb_frag_t *frag;

		if (walk->frag == walk->info->nr_frags)
			return false;
		frag = &walk->info->frags[walk->frag++];
		walk->left = skb_frag_size(frag);
		walk->page = skb_frag_page(frag) + skb_frag_off(frag) / PAGE_SIZE;
		walk->at = offset_in_page(skb_frag_off(frag));
	}
	to->page = walk->page++;
	to->offset = walk->at;
	to->len = min_t(size_t, walk->left, PAGE_SIZE - walk->at);
	walk->left -= to->len;
	walk->at = 0;
	return true;
}

/* One that is granted to the back; by its request's id. */
struct pregrant_piece {
	struct sk_buff *skb; /* NULL: none has this id */
	u32 gref;
};

/* Bytes in the buffer of a slot, which is to be sent on. */
struct pregrant_on_its_way {
	u16 slot, offset, len;
	u8 csum;
};

/* Verdicts of XDP programs; ethtool.c names them. */
enum pregrant_verdict {
	PREGRANT_XDP_PASS, PREGRANT_XDP_DROP, PREGRANT_XDP_TX,
	PREGRANT_XDP_TX_BUFFERS, /* of these, in the buffers in which they came */
	PREGRANT_XDP_TX_FULL, PREGRANT_XDP_REDIRECT, PREGRANT_XDP_ABORTED,
	PREGRANT_XDP_XMIT, /* frames that others' programs redirect to here */
	PREGRANT_VERDICTS,
};

struct pregrant_queue {
	struct pregrant_device *dev;
	unsigned int index;
	struct napi_struct napi;
	struct pregrant_tx *tx; /* lent, or NULL */
	struct pregrant_rx *rx;
	bool tx_event; /* answers of TX are to be read */

	/* Of the sender, under the netdev queue's lock. */
	struct pregrant_kept *kept; /* a ring, as large as the back's can be */
	u32 kept_head, kept_tail, kept_mask;
	u32 requests; /* sent up to now */
	bool tx_armed;
	bool may_lend, lends; /* frames may be in pieces; and are */
	struct pregrant_piece *pieces;
	u32 pieces_out;
	grant_ref_t *numbers; /* of grants: `spare` ones that no page has */
	u32 spare;
	struct pregrant_granted_piece granted[PREGRANT_PIECES_MAX]; /* of the frame that is sent */
	u16 ids[PREGRANT_PIECES_MAX]; /* its pieces', or answered ones */
	bool mc_refused; /* an address could not be asked for: there was no room */

	/* Of the poll. */
	struct xdp_rxq_info rxq;
	struct xdp_buff buff; /* the frame that a program sees, in a page of the queue's, or in none yet */
	struct pregrant_on_its_way on_its_way[NAPI_POLL_WEIGHT]; /* until slots are posted */
	bool sends_on; /* the back takes buffers in which frames came */
	u32 buffers_out; /* on TX */
	u64 xdp[PREGRANT_VERDICTS];

	u64 tx_packets, tx_bytes, tx_dropped, tx_in_pieces;
	u64 rx_packets, rx_bytes, rx_dropped, rx_in_place;
	u64 rx_counters[PREGRANT_COUNTERS]; /* as of the last poll */
};

struct pregrant_watch;

struct pregrant_device {
	struct xenbus_device *xbdev; /* NULL: an orphan's. It changes with RTNL, while the device is `gone` */
	char *back; /* its back's directory, under `control`; NULL: the front's names none */
	domid_t back_id; /* of the front's; pieces.c has it while queues are lent */
	struct net_device *netdev;
	struct pregrant_front *front;
	struct pregrant_settings settings;
	unsigned int max_queues;
	u32 lend_from; /* bytes of a frame whose pages are granted, not copied; 0: by what the back does */
	atomic_t pieces_kept; /* pages of skbs that the back has, or had when their ring was over */
	bool lends_none; /* no more of them */
	struct pregrant_queue *queues;
	struct bpf_prog __rcu *program; /* XDP's, under RTNL; NULL: none */

	struct mutex control;
	struct delayed_work work;
	struct list_head channels; /* under `control`, as are the front and these */
	unsigned long announce_at; /* jiffies; 0: no */
	bool gone, closed, short_of_memory;
	bool afresh; /* another back: nothing of before is to be used, nor said to it */
	bool ends; /* the front is on its way to its end, which comes then at the latest: */
	unsigned long ends_by; /* jiffies */
	bool ends_unheard; /* no one is there to close it */
	bool back_unseen; /* its state could not be read */
	bool said_missing; /* that there is no back */
	struct pregrant_reserve *reserve; /* for what the front allocates */

	u8 mac[ETH_ALEN]; /* as the toolstack has it */
	bool unwanted; /* the toolstack wants the vif gone */
	struct pregrant_watch *key_watch, *state_watch, *own_watch; /* NULL: not watched */
	u32 state_due; /* under `watches`: what xbdev->state is to be once it is written; 0: nothing */
	struct list_head orphan;
	struct delayed_work expiry; /* an orphan's */

	u64 pool[PREGRANT_POOL_FIGURES]; /* RX pages that come and go; from any context */
	unsigned long grows_at; /* jiffies; not earlier */
	bool is_short; /* skbs have too many of them */

	struct shrinker *shrinker;
	unsigned long shrinks_at; /* jiffies; not earlier */
	bool shrinks;

	struct mutex lending;
	unsigned int lent; /* queues; 0: not connected */
	u32 slots[2]; /* of their rings, TX and RX */
	char used_path[PREGRANT_PATH_ROOM]; /* and why */
	bool open, running;
	bool suspended; /* from before the guest is saved until control runs again */

	/* From any context. */
	bool key_fired, state_fired; /* their watches */
	unsigned long runs_until; /* jiffies that control's runs have used up, each its share */
	u32 takes; /* what the back takes unfinished */
	u64 kept_pages;
	unsigned int restart_queues; /* restart with so many; 0: no */
	unsigned long failed; /* bit 0: the back broke the protocol; bit 1: that was said */
	unsigned int connects;
	struct ratelimit_state says; /* the core's lines */
	bool mc_again; /* addresses that were refused are to be asked for */
};

static inline struct netdev_queue *txq_of(struct pregrant_queue *queue)
{
	return netdev_get_tx_queue(queue->dev->netdev, queue->index);
}

/* device.c */
extern struct workqueue_struct *pregrant_control;

/* control.c */
void pregrant_control_work(struct work_struct *work);
void pregrant_wake_control(struct pregrant_device *dev);
void pregrant_wake_control_in(struct pregrant_device *dev, unsigned long delay);
void pregrant_suspend(struct pregrant_device *dev);
void pregrant_fail(struct pregrant_device *dev);
void pregrant_begin_afresh(struct pregrant_device *dev);
void pregrant_pause(struct pregrant_device *dev);
void pregrant_pause_and_drop(struct pregrant_device *dev);
void pregrant_take_back(struct pregrant_device *dev);
void pregrant_lend(struct pregrant_device *dev);
void pregrant_resume(struct pregrant_device *dev);
bool pregrant_take_reserve(struct pregrant_device *dev);
void pregrant_rest_reserve(struct pregrant_device *dev);
int pregrant_begin(struct pregrant_device *dev);
void pregrant_end(struct pregrant_device *dev);

/* netdev.c */
int pregrant_read_mac(struct xenbus_device *xbdev, u8 mac[ETH_ALEN]);
struct net_device *pregrant_netdev_new(struct xenbus_device *xbdev, const u8 mac[ETH_ALEN], unsigned int max_queues);
void pregrant_netdev_free(struct pregrant_device *dev);
void pregrant_multicast(struct pregrant_device *dev, bool all);

/* queue.c */
int pregrant_queue_init(struct pregrant_queue *queue, struct pregrant_device *dev, unsigned int index);
void pregrant_queue_free(struct pregrant_queue *queue);
void pregrant_queue_drop_kept(struct pregrant_queue *queue);
bool pregrant_queue_multicast(struct pregrant_queue *queue, const u8 mac[6], bool wanted);
void pregrant_queue_tx_counters(struct pregrant_queue *queue, u64 to[PREGRANT_COUNTERS]);
int pregrant_take_returned(struct pregrant_queue *queue, int budget);
bool pregrant_send_buffer(struct pregrant_queue *queue, const struct pregrant_on_its_way *at);
bool pregrant_send_bytes(struct pregrant_queue *queue, const void *bytes, size_t len, u32 csum);
netdev_tx_t pregrant_xmit(struct sk_buff *skb, struct net_device *netdev);

/* pieces.c */
int pregrant_pieces_init(struct pregrant_queue *queue, u32 ids);
void pregrant_pieces_free(struct pregrant_queue *queue);
void pregrant_pieces_begin(struct pregrant_queue *queue);
void pregrant_pieces_allow(struct pregrant_queue *queue);
bool pregrant_goes_in_pieces(const struct pregrant_queue *queue, const struct sk_buff *skb);
int pregrant_send_in_pieces(struct pregrant_queue *queue, struct sk_buff *skb, u32 csum, u32 gso_type, u32 gso_size);
void pregrant_pieces_answered(struct pregrant_queue *queue, int budget, unsigned int *packets, unsigned int *bytes);
void pregrant_pieces_orphan(struct pregrant_queue *queue);
void pregrant_pieces_drop(struct pregrant_queue *queue);

/* keys.c */
bool pregrant_is_gone(struct pregrant_device *dev); /* its directory is, or is another's */
bool pregrant_is_another(struct xenbus_device *xbdev);

/* backend.c */
void pregrant_backend_watch(struct pregrant_device *dev);
void pregrant_note_state(struct pregrant_device *dev, u32 state);
bool pregrant_note_later(struct pregrant_device *dev, u32 state);
u32 pregrant_written_state(struct pregrant_device *dev);
int pregrant_backend_find(struct pregrant_device *dev);
void pregrant_backend_seen(struct pregrant_device *dev);
void pregrant_backend_look(struct pregrant_device *dev);
bool pregrant_backend_moved(struct pregrant_device *dev);
void pregrant_backend_leave(struct pregrant_device *dev);
void pregrant_backend_end(void);

/* pool.c */
void pregrant_pool_look(struct pregrant_queue *queue);
void pregrant_pool_control(struct pregrant_device *dev, bool shrinks);
u32 pregrant_pool_spare(const struct pregrant_device *dev);
void pregrant_pool_show(struct pregrant_device *dev);

/* shrinker.c */
void pregrant_shrinker_begin(struct pregrant_device *dev);
void pregrant_shrinker_end(struct pregrant_device *dev);

/* orphan.c */
void pregrant_let_go(struct pregrant_device *dev);
void pregrant_orphan(struct pregrant_device *dev, unsigned int seconds);
void pregrant_orphan_expired(struct work_struct *work);
struct pregrant_device *pregrant_adopt(struct xenbus_device *xbdev, const u8 mac[ETH_ALEN]);
void pregrant_orphans_end(void);

/* frame.c: what pk_skb_new adds to. */
struct pregrant_received {
	struct napi_struct *napi;
	struct sk_buff_head skbs;
	unsigned int dropped;

	/* Where a program decides: */
	struct bpf_prog *program; /* NULL: none does */
	struct pregrant_queue *queue;
	u32 pending; /* bytes of the frame in the queue's page; 0: none */
	u32 csum; /* that frame's */
	void *shared; /* where it is in a buffer that can be sent on; NULL: in none */
	u16 slot, offset; /* and where that is */
	size_t buffer_bytes;
	unsigned int on_its_way; /* of the queue's */
	bool has_tx; /* the netdev queue is locked */
	bool sent, redirected;
};
struct sk_buff *pregrant_skb_alloc(struct napi_struct *napi, unsigned int len);
void pregrant_skb_received(struct pregrant_received *received, struct sk_buff *skb, u32 csum, bool is_decided);
unsigned int pregrant_skb_pages(const struct sk_buff *skb);
void pregrant_deliver(struct pregrant_queue *queue, struct pregrant_received *received);

/* xdp.c */
int pregrant_xdp_init(struct pregrant_queue *queue);
void pregrant_xdp_free(struct pregrant_queue *queue);
void *pregrant_xdp_place(struct pregrant_received *received, size_t len, u32 csum, void **linear);
void pregrant_xdp_run(struct pregrant_received *received);
void pregrant_xdp_run_last(struct pregrant_received *received);
void pregrant_xdp_segments(struct pregrant_received *received, struct sk_buff *skb);
int pregrant_xdp_send_on(struct pregrant_received *received);
void pregrant_xdp_flush(struct pregrant_received *received);
int pregrant_xdp_xmit(struct net_device *netdev, int n, struct xdp_frame **frames, u32 flags);
int pregrant_bpf(struct net_device *netdev, struct netdev_bpf *bpf);

/* events.c */
extern atomic_t pregrant_spurious_events;
void pregrant_channels_meet(struct pregrant_device *dev);

/* grants.c */
extern atomic64_t pregrant_grants, pregrant_grants_ended, pregrant_grants_deferred;

/* ethtool.c */
extern const struct ethtool_ops pregrant_ethtool;

#endif
