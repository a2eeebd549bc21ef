/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * Made by `cargo xtask linux header` from linux/core/src: change the functions there.
 *
 *   C  --pregrant_*-->  Rust   the front: states, keys, queues, frames
 *   C  <----pk_*------  Rust   what only the kernel has
 *
 * Texts are an address and a length. A negative number is an error code of the kernel.
 */
#ifndef PREGRANT_CORE_H
#define PREGRANT_CORE_H

/* linux/core/src/shim.rs */
/*
 * Memory for the core. Null: there is none now for more than a page, or no such alignment. Less
 * than that is waited for.
 */
void *pk_alloc(size_t size, size_t align, bool zeroed);
void pk_free(void *at);
/*
 * Zeroed pages that can be granted, with consecutive addresses. Null: there is no memory now.
 */
void *pk_pages(size_t n);
void pk_free_pages(void *at, size_t n);
/* The module parameter `trusted`: backends may see whole pages of what is sent. */
bool pk_trusted(void);
/* Bytes of the L2 cache of a processor core. */
u32 pk_private_cache(void);
void pk_log(struct pregrant_device *d, u32 level, const char *text, size_t len);
/* Logs that the backend broke the protocol, once for each connection. */
void pk_fault(struct pregrant_device *d, const char *text, size_t len);
void pk_panic(const char *text, size_t len);
u64 pk_now_ns(void);
/* Grants a page to domain `to`. The grant reference, or an error code. */
int pk_grant(u16 to, void *page, bool readonly);
/* Ends foreign access. False: the page is still mapped. */
bool pk_grant_end(u32 gref);
struct pregrant_channel *pk_channel_offer(struct pregrant_device *device, u32 *port);
void pk_channel_close(struct pregrant_channel *chan);
void pk_channel_notify(struct pregrant_channel *chan);
/* Allows the next event (late EOI). `idle`: the last one brought no work. */
void pk_channel_unmask(struct pregrant_channel *chan, bool idle);
int pk_key_read(struct pregrant_device *d, bool own, const char *key, size_t n, char *to,
	size_t room);
int pk_key_list(struct pregrant_device *d, u32 transaction, char *to, size_t room);
int pk_key_remove(struct pregrant_device *d, u32 transaction, const char *key, size_t n);
int pk_key_write(struct pregrant_device *d, u32 transaction, const char *key, size_t n,
	const char *value, size_t len);
int pk_transaction_begin(struct pregrant_device *d, u32 *transaction);
int pk_transaction_end(struct pregrant_device *d, u32 transaction, bool abort);
int pk_state_write(struct pregrant_device *d, u32 state);
int pk_error_write(struct pregrant_device *d, int code, const char *text, size_t len);
int pk_error_remove(struct pregrant_device *d);
/* Copies `len` bytes of an skb from its byte `at` on. */
void pk_skb_read(struct sk_buff *skb, size_t at, void *to, size_t len);
/*
 * An skb for a received frame, added to `to`, a `struct pregrant_received`. `linear`: where its
 * bytes are written; null: they are appended. Null: the frame is dropped and counted.
 */
struct sk_buff *pk_skb_new(void *to, size_t len, u32 csum, u32 gso_type, u32 gso_size,
	void **linear);
/* Counts a received frame as dropped. */
void pk_frame_refused(void *to);
/*
 * The bytes of the last frame are in the staging buffer of a slot, too: at `from`, which is
 * byte `offset` of a buffer of `bytes` bytes.
 */
void pk_in_buffer(void *to, u16 slot, u16 offset, size_t bytes, void *from);
/*
 * As pk_skb_new, of a frame whose first `head` bytes are copied; pages are added for the
 * others.
 */
struct sk_buff *pk_skb_new_frags(void *to, size_t len, size_t head, u32 csum, u32 gso_type,
	u32 gso_size, void **linear);
/* Adds a fragment: `len` bytes at `at`. The skb takes a reference to their page. */
void pk_skb_add_page(struct sk_buff *skb, const void *at, size_t len);
/* Whether no skb has a reference to the page at `at` any more. */
bool pk_page_is_back(const void *at);
/* Appends bytes to a nonlinear skb. */
void pk_skb_append(struct sk_buff *skb, const void *from, size_t len);
/*
 * Lets requests of these `kinds` fail, from the `from`-th to before the `to`-th of those to
 * come.
 */
void pk_fail(u32 kinds, u64 from, u64 to);
/* The number of such requests since. */
u64 pk_asked(void);
bool pk_may_allocate(u32 kind);
/* Allocations that are not freed. */
s64 pk_memory(void);
/* Reschedules if needed. */
void pk_test_resched(void);
/* An skb with these bytes, in fragments. Null: no memory. */
struct sk_buff *pk_test_skb(const void *from, size_t len);
void pk_test_free(struct sk_buff *skb);
/* The fragments of an skb, 17 at most: pages, offsets, lengths. How many. */
u32 pk_test_pieces(struct sk_buff *skb, void **pages, u16 *offsets, u16 *lens);
/* A `struct pregrant_received`, empty. */
void *pk_test_received(void);
/* Frames that were dropped. */
u32 pk_test_dropped(void *received);
/* The bytes of the next skb: how many; 0: some are missing; below 0: there is no skb. */
int pk_test_next(void *received, void *to, size_t room);
/* Enters softirq context, as NAPI does, or leaves it. */
void pk_test_softirq(bool on);

/* linux/core/src/front.rs */
/* Whether there can be a front with these settings. If not, the reason is logged. */
bool pregrant_front_check(const struct pregrant_settings *settings);
/*
 * A front for a device whose backend is in domain `back`. Null: the settings do not pass
 * pregrant_front_check.
 */
struct pregrant_front *pregrant_front_new(struct pregrant_device *device, u16 back,
	const struct pregrant_settings *settings);
/*
 * Reads the backend's xenbus state and takes the steps that it allows; one that fails is tried
 * again later. True: call pregrant_front_stop_queues, then call this again.
 */
bool pregrant_front_step(struct pregrant_front *front);
/* Hands out the live queues, each as two halves, to be used without the front. How many. */
u32 pregrant_front_start_queues(struct pregrant_front *front);
/* The sending half of a queue that is handed out. Null: there is none. */
struct pregrant_tx *pregrant_front_tx(const struct pregrant_front *front, u32 queue);
/* The receiving half of a queue that is handed out. Null: there is none. */
struct pregrant_rx *pregrant_front_rx(const struct pregrant_front *front, u32 queue);
/* Takes the halves of all queues back. */
void pregrant_front_stop_queues(struct pregrant_front *front);
/* Whether frames can travel. */
bool pregrant_front_is_live(const struct pregrant_front *front);
/* What the backend accepts: PREGRANT_TAKES_*. */
u32 pregrant_front_takes(const struct pregrant_front *front);
/* The path of a live front's frames and why it is that one, NUL-terminated. */
void pregrant_front_path(const struct pregrant_front *front,
	const struct pregrant_settings *settings, char to[PREGRANT_PATH_ROOM]);
/*
 * The event channel ports of a queue. The second is 0 where one serves both directions, both
 * are where there is no such queue.
 */
void pregrant_front_ports(const struct pregrant_front *front, u32 queue, u32 ports[2]);
/* Slots of each queue's TX and RX ring; 0: there is no queue here. */
void pregrant_front_slots(const struct pregrant_front *front, u32 slots[2]);
/* When the next step is due without an event, by pk_now_ns; 0: it is not. */
u64 pregrant_front_begins_at(const struct pregrant_front *front);
/* Begins to close for good. Go on with steps until pregrant_front_is_closed. */
void pregrant_front_close(struct pregrant_front *front);
/*
 * As pregrant_front_close, but the xenstore directories are another front's: the guest was
 * restored, and its grants and channels are gone, or the toolstack has made the vif again.
 * After pregrant_front_stop_queues. Call it again until pregrant_front_is_closed.
 */
void pregrant_front_abandon(struct pregrant_front *front);
/* Whether the front is closed and the backend has unmapped all of its pages. */
bool pregrant_front_is_closed(const struct pregrant_front *front);
/* Pages that are granted to the backend and not in use. */
u64 pregrant_front_kept_pages(const struct pregrant_front *front);
/* Frees such pages, where the backend has not mapped them. */
void pregrant_front_release_idle(struct pregrant_front *front);
/*
 * Adds up to 64 RX pages to each queue that had none for some frames. How many; below 0: there
 * is no memory now. After pregrant_front_stop_queues.
 */
int pregrant_front_grow(struct pregrant_front *front);
/*
 * Takes away RX pages that no slot needs, and no skb has. How many. After
 * pregrant_front_stop_queues.
 */
u32 pregrant_front_shrink(struct pregrant_front *front);
/*
 * RX pages for frames that stay in their pages: how many there are, were added, were taken
 * away; and how many of them the backend mapped and unmapped on request.
 */
void pregrant_front_pool(const struct pregrant_front *front, u64 to[5]);
/* Frees a front. Pages that are still granted stay allocated. */
void pregrant_front_free(struct pregrant_front *front);
/* Goes on with requests on the control ring. Below 0: a fault. */
int pregrant_front_turn(struct pregrant_front *front);

/* linux/core/src/halves.rs */
/*
 * Copies an skb to the ring, or `len` bytes where `csum` has PREGRANT_LINEAR. The backend sees
 * the frame after pregrant_tx_publish. 1: sent; 0: no room now; below 0: it cannot be sent.
 */
int pregrant_tx_send(struct pregrant_tx *tx, const void *from, size_t len, u32 csum,
	u32 gso_type, u32 gso_size);
/*
 * As pregrant_tx_send, of an skb whose last bytes are these `n` granted pages; `ids` gets the
 * ids of their requests. Not 1: the backend sees none of it, and the grants remain the
 * caller's.
 */
int pregrant_tx_send_pieces(struct pregrant_tx *tx, struct sk_buff *skb, size_t len, u32 csum,
	u32 gso_type, u32 gso_size, const struct pregrant_granted_piece *pieces, u32 n, u16 *ids);
/* The number of ids that granted pages may have; 0: the backend is not to get any. */
u32 pregrant_tx_piece_ids(const struct pregrant_tx *tx);
/*
 * Requests of granted pages without a response, or whose response was not read; 0 on a new
 * ring.
 */
u32 pregrant_tx_pieces_out(const struct pregrant_tx *tx);
/*
 * Ids of granted pages whose response has come, at most `room`. After each pregrant_tx_reclaim
 * until it is 0.
 */
u32 pregrant_tx_answered_pieces(struct pregrant_tx *tx, u16 *ids, u32 room);
/* Publishes what was sent, and sends an event if the backend wants one. */
void pregrant_tx_publish(struct pregrant_tx *tx);
/* Free TX slots. */
u32 pregrant_tx_room(const struct pregrant_tx *tx);
/* TX requests without a response. */
u32 pregrant_tx_in_flight(const struct pregrant_tx *tx);
/* Reads TX responses. How many; below 0: a fault. */
int pregrant_tx_reclaim(struct pregrant_tx *tx);
/*
 * Asks for an event at the `ahead`-th response from here, and unmasks the channel. 1: that
 * response is there; below 0: a fault.
 */
int pregrant_tx_arm(struct pregrant_tx *tx, u32 ahead);
/* Asks for multicast frames to an address, or no longer. False: there is no room now. */
bool pregrant_tx_multicast(struct pregrant_tx *tx, const u8 mac[6], bool wanted);
/* The counters of TX, as ethtool.c names them. */
void pregrant_tx_counters(const struct pregrant_tx *tx, u64 to[8]);
/* The counters of RX. */
void pregrant_rx_counters(const struct pregrant_rx *rx, u64 to[8]);
/*
 * Adds an skb to `to` for each received frame, at most `most`. How many of `most` were used;
 * below 0: a fault. Then call pregrant_rx_post. `decides`: an XDP program sees the frames, and
 * each segment of a large one counts as a frame. `send_on`: pk_in_buffer is called for each.
 */
int pregrant_rx_receive(struct pregrant_rx *rx, void *to, u32 most, bool decides, bool send_on);
/*
 * Frames that stayed in their pages since the last call. `is_short`: others were copied for
 * want of pages.
 */
u32 pregrant_rx_in_place(struct pregrant_rx *rx, bool *is_short);
/* Posts RX buffers in free slots. */
void pregrant_rx_post(struct pregrant_rx *rx);
/* Whether the backend takes back received staging buffers on TX. */
bool pregrant_tx_sends_on(const struct pregrant_tx *tx);
/*
 * Sends `len` bytes at `offset` of the staging buffer of a slot, between pregrant_rx_receive
 * and pregrant_rx_post, under the TX lock. False: there is no room, or the buffer is shorter.
 */
bool pregrant_tx_send_on(struct pregrant_tx *tx, struct pregrant_rx *rx, u16 slot, u16 offset,
	u16 len, u32 csum);
/*
 * Makes buffers RX buffers again that were sent on and have their response. How many have none.
 */
u32 pregrant_rx_take_returned(struct pregrant_rx *rx, struct pregrant_tx *tx);
/*
 * Before NAPI completes: asks for an event, and unmasks the channel. 1: there is work; below 0:
 * a fault.
 */
int pregrant_rx_arm(struct pregrant_rx *rx);

/* linux/core/src/selftest/mod.rs */
/* Runs all parts, with so many frames each way. 0: all is right. */
int pregrant_selftest(u64 frames);

#endif
