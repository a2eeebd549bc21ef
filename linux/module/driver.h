/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * The net_device of a vif and its queues.
 *
 *   control   one delayed work item per device, under `control`: it may sleep, and owns the front
 *   xmit      ndo_start_xmit: a queue's `tx`, under its netdev_queue lock
 *   poll      a queue's NAPI: owns `rx`; `tx` under that lock. Received skbs go up without it
 *   event     interrupt handler: schedules the NAPI or control
 *
 * While the vif is connected, xmit and NAPI have the two halves of each queue (`queues_up`). The
 * front gets them back while the queues are paused: no sender holds the lock then, no NAPI runs.
 *
 * Lock order: `control` or RTNL, never both, since control may wait long for the backend; then
 * `queues_lock` or the lock of xenstore transactions; the address list; a netdev_queue.
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

/* Slots of the longest frame: its head, its granted pages, its extra info. */
#define PREGRANT_FRAME_SLOTS (1 + PREGRANT_PIECES_MAX + 1)
#define PREGRANT_FRAME_MAX 65535
#define PREGRANT_MTU_MAX (PREGRANT_FRAME_MAX - 18)
#define PREGRANT_ORDER_MAX 4
#define PREGRANT_SLOTS 256 /* of a ring of one page */
/* The longest frame for XDP: its page also has headroom and skb_shared_info. */
#define PREGRANT_XDP_FRAME_MAX \
	(PAGE_SIZE - XDP_PACKET_HEADROOM - SKB_DATA_ALIGN(sizeof(struct skb_shared_info)))
#define PREGRANT_XDP_MTU_MAX (PREGRANT_XDP_FRAME_MAX - 18)

/* An skb in flight: some of its requests have no response yet. */
struct pregrant_kept {
	struct sk_buff *skb;
	u32 end; /* requests of the queue up to and including its own */
	u32 bytes;
};

/* A part of an skb within one page. */
struct pregrant_page_piece {
	struct page *page;
	u16 offset, len;
};

/* An iterator over the pages of an skb's fragments. Initialise `info`, and the rest with 0. */
struct pregrant_walk {
	const struct skb_shared_info *info;
	unsigned int frag; /* the next fragment */
	struct page *page;
	size_t at, left; /* offset in `page`; bytes left of the current fragment */
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

/* A page granted for a TX request; indexed by the id of the request. */
struct pregrant_piece {
	struct sk_buff *skb; /* NULL: the id is free */
	u32 gref;
};

/* A received frame in the staging buffer of a slot, which XDP_TX sends on. */
struct pregrant_on_its_way {
	u16 slot, offset, len;
	u8 csum;
};

/* Verdicts of XDP programs; ethtool.c names them. */
enum pregrant_verdict {
	PREGRANT_XDP_PASS, PREGRANT_XDP_DROP, PREGRANT_XDP_TX,
	PREGRANT_XDP_TX_BUFFERS, /* of these, sent on in their staging buffers */
	PREGRANT_XDP_TX_FULL, PREGRANT_XDP_REDIRECT, PREGRANT_XDP_ABORTED,
	PREGRANT_XDP_XMIT, /* ndo_xdp_xmit */
	PREGRANT_VERDICTS,
};

/* Figures of tx_pages.c, of one queue, in the order of ethtool.c. */
#define PREGRANT_TX_PAGES_TABLES 5
enum pregrant_tx_pages_figure {
	PREGRANT_TX_PAGES_ALL, /* pages of frames, with each time that one is sent from */
	PREGRANT_TX_PAGES_NEW, /* of these, for the first time */
	PREGRANT_TX_PAGES_HITS, /* of these, found in a table: the smallest first */
	PREGRANT_TX_PAGES_FIGURES = PREGRANT_TX_PAGES_HITS + PREGRANT_TX_PAGES_TABLES,
};

struct pregrant_queue {
	struct pregrant_device *dev;
	unsigned int index;
	struct napi_struct napi;
	struct pregrant_tx *tx; /* NULL unless the queue is up */
	struct pregrant_rx *rx; /* NULL unless the queue is up */
	bool tx_event; /* an event came: read TX responses */

	/* xmit: under the netdev_queue lock. */
	struct pregrant_kept *kept; /* ring buffer of skbs in flight, as large as the TX ring */
	u32 kept_head, kept_tail, kept_mask;
	u32 requests; /* sent since the connection began */
	bool tx_armed; /* a response will raise an event */
	bool may_grant; /* the backend takes frames whose pages are granted one by one */
	bool grants; /* frames are sent in granted pages now */
	struct pregrant_piece *pieces;
	u32 pieces_out;
	grant_ref_t *numbers; /* unused grant references, `spare` of them */
	u32 spare;
	struct pregrant_granted_piece granted[PREGRANT_PIECES_MAX]; /* of the skb being sent */
	u16 ids[PREGRANT_PIECES_MAX]; /* ids of the requests of the skb being sent, or of responses */
	bool mc_refused; /* a multicast request found the ring full */
	struct pregrant_tx_pages *tx_pages; /* NULL: they are not counted */

	/* NAPI poll. */
	struct xdp_rxq_info rxq;
	struct xdp_buff buff; /* the frame that XDP sees; its page belongs to the queue */
	struct pregrant_on_its_way on_its_way[NAPI_POLL_WEIGHT]; /* until RX buffers are posted */
	bool sends_on; /* the backend accepts received staging buffers on TX */
	u32 buffers_out; /* staging buffers sent on that have no response yet */
	u64 xdp[PREGRANT_VERDICTS];

	u64 tx_packets, tx_bytes, tx_dropped, tx_in_pieces;
	u64 rx_packets, rx_bytes, rx_dropped, rx_in_place;
	u64 rx_counters[PREGRANT_COUNTERS]; /* as of the last poll */
};

struct pregrant_watch;

/*
 * The front of a device. Written by control; READ_ONCE() elsewhere.
 *
 *   NO_FRONT --a backend is named--> FOLLOWING --it broke the protocol--> BROKEN
 *      ^                                 |                                  |
 *      |                                 | remove, ethtool -L, new backend  | remove, new backend
 *      |                                 v                                  |
 *      '--closed, or close_by------- CLOSING <------------------------------'
 *      |                                 | the xenstore directory is gone, or another front's
 *      |                                 v
 *      '--freed, or close_by------- ABANDONING
 *
 * A new backend is one after a restore, or one that the toolstack wrote into the directory.
 */
enum pregrant_front_state {
	PREGRANT_NO_FRONT, /* `front` is NULL; a backend is looked for once a second */
	PREGRANT_FOLLOWING, /* the front follows the backend's xenbus state, connected or not */
	PREGRANT_BROKEN, /* closed until the device is bound again, or its backend replaced */
	PREGRANT_CLOSING, /* the front waits for the backend to unmap its pages, and is freed */
	PREGRANT_ABANDONING, /* like CLOSING, but nothing is written to xenstore any more */
};

/* Bits of `events`: what happened since control ran, in any context. */
enum pregrant_event {
	PREGRANT_EV_FAULT, /* the backend broke the protocol */
	PREGRANT_EV_RESET, /* backend replaced: discard all previous state */
	PREGRANT_EV_BACKEND_KEY, /* watch: `backend` in the front's directory */
	PREGRANT_EV_BACKEND_STATE, /* watch: `state` in the backend's directory */
	PREGRANT_EV_MULTICAST, /* the backend has room for addresses that it refused */
	PREGRANT_EV_GROW_RX, /* frames were copied for want of RX pages */
	PREGRANT_EV_SHRINK, /* the shrinker wants pages back */
};

struct pregrant_device {
	struct xenbus_device *xbdev; /* NULL for orphans. Changes under RTNL, while not `bound` */
	char *back; /* xenstore directory of the backend, under `control`; NULL: none is named */
	domid_t back_id; /* of `front`; constant while queues are up */
	struct net_device *netdev;
	struct pregrant_front *front;
	struct pregrant_settings settings;
	unsigned int max_queues;
	u32 lend_from; /* module parameter: bytes from which skb pages are granted; 0: auto */
	atomic_t pieces_kept; /* pages of skbs that are granted, on earlier connections too */
	bool grants_stopped; /* the backend kept an skb page mapped: no more are granted */
	struct pregrant_queue *queues;
	struct bpf_prog __rcu *program; /* XDP; written under RTNL */

	struct mutex control;
	struct delayed_work work;
	/* Under `control`, as is `front`: */
	struct list_head channels; /* event channels */
	bool bound; /* to its xenbus device: between probe and remove; control runs only then */
	enum pregrant_front_state state; /* of `front` */
	unsigned long close_by; /* jiffies: a CLOSING front is freed then at the latest */
	unsigned long announce_at; /* jiffies; 0: nothing to announce */
	bool backend_unreadable; /* its state could not be read: a timer reads it again */
	bool no_backend_logged;

	u8 mac[ETH_ALEN]; /* as the toolstack wrote it */
	bool offline; /* `online` of the backend is 0: the toolstack removes the vif */
	struct pregrant_watch *key_watch, *state_watch, *own_watch; /* NULL: not watched */
	u32 state_due; /* under `watches`: becomes xbdev->state once xenstore has it; 0: none */
	struct list_head orphan;
	struct delayed_work expiry; /* frees an orphan */

	u64 pool[PREGRANT_POOL_FIGURES]; /* of pregrant_front_pool(); read in any context */
	unsigned long grow_after; /* jiffies: no RX pages are added earlier */

	struct shrinker *shrinker;
	unsigned long shrink_after; /* jiffies: control is not asked for pages earlier */

	struct mutex queues_lock;
	unsigned int queues_up; /* queues that xmit and NAPI have; 0: not connected */
	u32 slots[2]; /* of each queue's rings: TX, RX */
	char used_path[PREGRANT_PATH_ROOM]; /* the path and the reason, for ethtool -i */
	bool open; /* between ndo_open and ndo_stop */
	bool suspended; /* from before the guest is saved until control runs again */
	bool running; /* NAPI is enabled: open, connected, neither suspended nor broken */

	/* Written and read in any context. */
	unsigned long events; /* enum pregrant_event */
	unsigned int restart_queues; /* ethtool -L: reconnect with this many; 0: no request */
	unsigned long runs_until; /* jiffies: each run of control adds its share, for pacing */
	u32 takes; /* PREGRANT_TAKES_*: offloads and requests that the backend accepts */
	u64 kept_pages; /* pages that stay granted for the next connect, and are not used now */
	unsigned int connects;
	atomic_t fault_logged; /* a fault of this connection is in the log */
	struct ratelimit_state log_limit; /* of lines that a backend can cause */
};

/* keys.c: the backend's directory, if one is named. */
static inline const char *pregrant_peer_dir(const struct pregrant_device *dev)
{
	return dev->back;
}

/* No watch fires when a key becomes readable, so a timer reads it again. */
static inline void pregrant_peer_state_was_read(struct pregrant_device *dev, bool is_readable)
{
	dev->backend_unreadable = !is_readable;
}

/* device.c */
extern struct workqueue_struct *pregrant_control;

/* control.c */
void pregrant_control_work(struct work_struct *work);
void pregrant_wake_control(struct pregrant_device *dev);
void pregrant_wake_control_in(struct pregrant_device *dev, unsigned long delay);
void pregrant_suspend(struct pregrant_device *dev);
void pregrant_fail(struct pregrant_device *dev);
void pregrant_reset(struct pregrant_device *dev);
void pregrant_pause(struct pregrant_device *dev);
void pregrant_pause_and_drop(struct pregrant_device *dev);
void pregrant_stop_queues(struct pregrant_device *dev);
void pregrant_start_queues(struct pregrant_device *dev);
void pregrant_resume(struct pregrant_device *dev);
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

/* state.c */
/* Whether the xenstore directory is gone, or is another front's. */
bool pregrant_is_gone(struct pregrant_device *dev);
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

/* tx_pages.c */
extern bool pregrant_count_tx_pages; /* the parameter */
void pregrant_tx_pages_count(struct pregrant_tx_pages *to, const struct sk_buff *skb);
u64 pregrant_tx_pages_figure(const struct pregrant_tx_pages *of, unsigned int k);
struct pregrant_tx_pages *pregrant_tx_pages_new(void);
void pregrant_tx_pages_free(struct pregrant_tx_pages *of);

/* shrinker.c */
void pregrant_shrinker_begin(struct pregrant_device *dev);
void pregrant_shrinker_end(struct pregrant_device *dev);

/* orphan.c */
void pregrant_let_go(struct pregrant_device *dev);
void pregrant_orphan(struct pregrant_device *dev, unsigned int seconds);
void pregrant_orphan_expired(struct work_struct *work);
struct pregrant_device *pregrant_adopt(struct xenbus_device *xbdev, const u8 mac[ETH_ALEN]);
void pregrant_orphans_end(void);

/* frame.c: the received frames of one poll. */
struct pregrant_received {
	struct napi_struct *napi;
	struct sk_buff_head skbs;
	unsigned int dropped;

	/* With an XDP program: */
	struct bpf_prog *program; /* NULL: none */
	struct pregrant_queue *queue;
	u32 pending; /* bytes of the frame in the page of the queue; 0: none */
	u32 csum; /* PREGRANT_CSUM_* of that frame */
	void *shared; /* that frame in a staging buffer that can be sent on; or NULL */
	u16 slot, offset; /* slot of that buffer, offset of the frame in it */
	size_t buffer_bytes;
	unsigned int on_its_way; /* entries used of queue->on_its_way */
	bool has_tx; /* the netdev_queue lock is held */
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

/* channel.c */
extern atomic_t pregrant_spurious_events;

/* events.c */
void pregrant_channels_connect(struct pregrant_device *dev);

/* grants.c */
extern atomic64_t pregrant_grants, pregrant_grants_ended, pregrant_grants_deferred;

/* ethtool.c */
extern const struct ethtool_ops pregrant_ethtool;

#include "both.h"

#endif
