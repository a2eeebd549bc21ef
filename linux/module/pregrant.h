/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * The two languages' one border: linux/core/src/shim.rs and front.rs say the same.
 *
 *   C  --pregrant_*-->  Rust   the front: states, keys, queues, frames
 *   C  <----pk_*------  Rust   what only the kernel has
 *
 * Texts are an address and a length. A negative number is the kernel's error code.
 */
#ifndef PREGRANT_H
#define PREGRANT_H

#include <linux/types.h>

struct pregrant_device;
struct pregrant_channel;
struct pregrant_front;
struct sk_buff;

/* The self-test has its own. */
#ifndef pregrant_may_allocate
#define pregrant_may_allocate(kind) true
#endif
#ifndef pregrant_note_memory
#define pregrant_note_memory(n) ((void)0)
#endif

/*
 * heap.c. Counted, and to stay 0: allocations where sleeping is not allowed, and those that waited.
 */
extern atomic_t pregrant_atomic_allocations, pregrant_memory_waits;
void *pk_alloc(size_t size, size_t align, bool zeroed);
void pk_free(void *at);
void *pk_pages(size_t n);
void pk_free_pages(void *at, size_t n);
/* What the self-test lets fail. */
enum pregrant_kind {
	PREGRANT_HEAP = 1,
	PREGRANT_PAGES = 2,
	PREGRANT_GRANT = 4,
	PREGRANT_CHANNEL = 8,
	PREGRANT_STATE = 16, /* to write one */
};

/*
 * reserve.c. Memory for what the core allocates between `use` and `rest`, by that thread: around
 * each call of `front_new`, `step`, `turn` and `lend`. A device has one of its own.
 */
struct pregrant_reserve;
/* Of a direction and queue, 0: one a slot. A back that takes the buffers gets no more pages. */
struct pregrant_more {
	u32 buffers, pages;
};
size_t pregrant_reserve_size(u32 queues, u32 slots, struct pregrant_more more);
/* NULL: there is none, so do not call. */
struct pregrant_reserve *pregrant_reserve_new(u32 queues, u32 slots, struct pregrant_more more);
/* Whether enough of it is left for a call: most of it may be pieces that are in use. */
bool pregrant_reserve_is_enough(struct pregrant_reserve *reserve);
void pregrant_reserve_use(struct pregrant_reserve *reserve);
size_t pregrant_reserve_rest(struct pregrant_reserve *reserve); /* the most that was taken of it */
void pregrant_reserve_free(struct pregrant_reserve *reserve); /* pieces of it may be in use still */
void *pregrant_reserve_cut(size_t size, size_t align, bool zeroed);
bool pregrant_reserve_put(void *at);

/* device.c: whether backs may have pages that others of the guest use, too. */
bool pk_trusted(void);

/* log.c */
void pk_log(struct pregrant_device *dev, u32 level, const char *text, size_t len);
void pk_fault(struct pregrant_device *dev, const char *text, size_t len);
void pk_panic(const char *text, size_t len);
u64 pk_now_ns(void);

/* grants.c */
int pk_grant(u16 to, void *page, bool readonly);
bool pk_grant_end(u32 gref);

/* events.c */
struct pregrant_channel *pk_channel_offer(struct pregrant_device *dev, u32 *port);
void pk_channel_close(struct pregrant_channel *chan);
void pk_channel_notify(struct pregrant_channel *chan);
void pk_channel_unmask(struct pregrant_channel *chan, bool idle);

/* keys.c */
int pk_key_read(struct pregrant_device *dev, bool own, const char *key, size_t n, char *to, size_t room);
int pk_key_list(struct pregrant_device *dev, u32 transaction, char *to, size_t room);
int pk_key_remove(struct pregrant_device *dev, u32 transaction, const char *key, size_t n);
int pk_key_write(struct pregrant_device *dev, u32 transaction, const char *key, size_t n, const char *value,
		 size_t len);
int pk_transaction_begin(struct pregrant_device *dev, u32 *transaction);
int pk_transaction_end(struct pregrant_device *dev, u32 transaction, bool abort);
int pk_state_write(struct pregrant_device *dev, u32 state);
int pk_error_write(struct pregrant_device *dev, int code, const char *text, size_t len);
int pk_error_remove(struct pregrant_device *dev);

/* frame.c */
void pk_skb_read(struct sk_buff *skb, size_t at, void *to, size_t len);
struct sk_buff *pk_skb_new(void *to, size_t len, u32 csum, u32 gso_type, u32 gso_size, void **linear);
void pk_skb_append(struct sk_buff *skb, const void *from, size_t len);
struct sk_buff *pk_skb_new_lent(void *to, size_t len, size_t head, u32 csum, u32 gso_type, u32 gso_size, void **linear);
void pk_skb_lend(struct sk_buff *skb, void *at, size_t len);
bool pk_page_is_back(void *at);
void pk_frame_refused(void *to);
void pk_in_buffer(void *to, u16 slot, u16 offset, size_t bytes, void *from);

/* Control: one caller at a time, who may sleep. */
struct pregrant_settings {
	const char *path;
	size_t path_len;
	u32 queues, ring_order, data_len, buffers, cache, rx_in_place;
	bool multicast, send_on;
};
/* `buffers`: as many as twice the `cache` holds, bytes. */
#define PREGRANT_BUFFERS_AUTO U32_MAX
/* cache.c */
u32 pk_private_cache(void);
/* False: no front can have these; the log says why. */
bool pregrant_front_check(const struct pregrant_settings *settings);
/* What they ask for. */
struct pregrant_more pregrant_front_more(const struct pregrant_settings *settings);
/* NULL: the settings are such. */
struct pregrant_front *pregrant_front_new(struct pregrant_device *dev, u16 back,
					  const struct pregrant_settings *settings);
/* True: its queues are to be taken back, and then it is to be asked again. */
bool pregrant_front_step(struct pregrant_front *front);
int pregrant_front_turn(struct pregrant_front *front);
bool pregrant_front_is_live(const struct pregrant_front *front);
u32 pregrant_front_takes(const struct pregrant_front *front);
#define PREGRANT_PATH_ROOM 32
void pregrant_front_path(const struct pregrant_front *front, const struct pregrant_settings *settings,
			 char to[PREGRANT_PATH_ROOM]);
void pregrant_front_ports(const struct pregrant_front *front, u32 queue, u32 ports[2]);
void pregrant_front_slots(const struct pregrant_front *front, u32 slots[2]);
u64 pregrant_front_begins_at(const struct pregrant_front *front);
void pregrant_front_close(struct pregrant_front *front);
void pregrant_front_abandon(struct pregrant_front *front);
bool pregrant_front_is_closed(const struct pregrant_front *front);
u64 pregrant_front_kept_pages(const struct pregrant_front *front);
void pregrant_front_release_idle(struct pregrant_front *front);
/*
 * With its queues at home: RX pages for queues that were short of them, or none but what slots
 * need. How many came, below 0: there is no memory now; or went.
 */
s32 pregrant_front_grow(struct pregrant_front *front);
u32 pregrant_front_shrink(struct pregrant_front *front);
/* Pages; how many came and went; of these, how many the back mapped, and let go of. */
#define PREGRANT_POOL_FIGURES 5
void pregrant_front_pool(const struct pregrant_front *front, u64 to[PREGRANT_POOL_FIGURES]);
void pregrant_front_free(struct pregrant_front *front);
/* Offloads that a back takes unfinished. */
#define PREGRANT_TAKES_IPV6_CSUM 1
#define PREGRANT_TAKES_GSO 2
#define PREGRANT_TAKES_SG 4
#define PREGRANT_TAKES_MULTICAST 8 /* names of the multicast addresses that are wanted */
#define PREGRANT_TAKES_MAPPINGS 16 /* our pages, which it keeps mapped */

/*
 * Its live queues, each as two halves, which are used without the front; they come back before it
 * changes any.
 */
struct pregrant_tx;
struct pregrant_rx;
u32 pregrant_front_lend(struct pregrant_front *front);
struct pregrant_tx *pregrant_front_tx(const struct pregrant_front *front, u32 queue);
struct pregrant_rx *pregrant_front_rx(const struct pregrant_front *front, u32 queue);
void pregrant_front_take_back(struct pregrant_front *front);

/* A sender's half: under its netdev queue's lock. */
int pregrant_tx_send(struct pregrant_tx *tx, const void *from, size_t len, u32 csum, u32 gso_type, u32 gso_size);
void pregrant_tx_publish(struct pregrant_tx *tx);
u32 pregrant_tx_room(const struct pregrant_tx *tx);
u32 pregrant_tx_in_flight(const struct pregrant_tx *tx);
int pregrant_tx_reclaim(struct pregrant_tx *tx);
int pregrant_tx_arm(struct pregrant_tx *tx, u32 ahead);
/*
 * The same of a frame whose last bytes are pages that the caller has granted to the back; `ids` are
 * the pieces'. Other answers than 1: the grants are the caller's still.
 */
struct pregrant_granted_piece {
	u32 gref;
	u16 offset, len;
};
#define PREGRANT_PIECES_MAX 17
int pregrant_tx_send_pieces(struct pregrant_tx *tx, struct sk_buff *skb, size_t len, u32 csum, u32 gso_type,
			    u32 gso_size, const struct pregrant_granted_piece *pieces, u32 n, u16 *ids);
/* How many ids pieces may have; 0: this back takes none. */
u32 pregrant_tx_piece_ids(const struct pregrant_tx *tx);
/* Pieces without an answer, or whose answer was not asked for; 0 on a new ring. */
u32 pregrant_tx_pieces_out(const struct pregrant_tx *tx);
/* Pieces that are answered, at most `room`, after each `reclaim` until it is 0: there are none. */
u32 pregrant_tx_answered_pieces(struct pregrant_tx *tx, u16 *ids, u32 room);
bool pregrant_tx_multicast(struct pregrant_tx *tx, const u8 mac[6], bool wanted);
/*
 * A receiver's half: its NAPI's alone. What was used of `most`: a frame each, or each segment of a
 * large one where a program decides; below 0: a fault.
 */
int pregrant_rx_receive(struct pregrant_rx *rx, void *to, u32 most, bool decides, bool send_on);
/* Frames in their pages since the last call; whether others found none. */
u32 pregrant_rx_in_place(struct pregrant_rx *rx, bool *is_short);
void pregrant_rx_post(struct pregrant_rx *rx);
/*
 * Received buffers that are sent on, where the back takes such: between `receive` and `post`, and
 * under the sender's lock.
 */
bool pregrant_tx_sends_on(const struct pregrant_tx *tx);
bool pregrant_tx_send_on(struct pregrant_tx *tx, struct pregrant_rx *rx, u16 slot, u16 offset, u16 len, u32 csum);
u32 pregrant_rx_take_returned(struct pregrant_rx *rx, struct pregrant_tx *tx);
int pregrant_rx_arm(struct pregrant_rx *rx);
/* Checksums, of a frame sent or received. */
#define PREGRANT_CSUM_BLANK 1
#define PREGRANT_CSUM_OK 2
/* What is sent is bytes, and no skb. */
#define PREGRANT_LINEAR 4
/* Large segments. */
#define PREGRANT_GSO_TCPV4 1
#define PREGRANT_GSO_TCPV6 2
#define PREGRANT_GSO_MIN 48 /* bytes of a segment: the crate's MIN_GSO_SIZE */

#define PREGRANT_COUNTERS 8
void pregrant_tx_counters(const struct pregrant_tx *tx, u64 to[PREGRANT_COUNTERS]);
void pregrant_rx_counters(const struct pregrant_rx *rx, u64 to[PREGRANT_COUNTERS]);

/* The self-test, linux/core/src/selftest: 0 where all is right. */
int pregrant_selftest(u64 frames);
int pregrant_selftest_pieces(void);
int pregrant_selftest_control(void);
int pregrant_selftest_backend(void);
int pregrant_selftest_xdp(void);
/* selftest.c: what it lets fail, by a count of what it asks for. */
void pk_fail(u32 kinds, u64 from, u64 to);
u64 pk_asked(void);
bool pk_may_allocate(u32 kind);
s64 pk_memory(void);
u32 pk_memory_waits(void);
u32 pk_test_pieces(const struct sk_buff *skb, void **pages, u16 *offsets, u16 *lens);
void pk_test_resched(void);
struct sk_buff *pk_test_skb(const void *from, size_t len);
void pk_test_free(struct sk_buff *skb);
void *pk_test_received(void);
u32 pk_test_dropped(void *received);
int pk_test_next(void *received, void *to, size_t room);
void pk_test_softirq(bool on);
size_t pk_reserve_size(u32 queues, u32 slots, struct pregrant_more more);
void *pk_reserve_begin(u32 queues, u32 slots, struct pregrant_more more);
size_t pk_reserve_end(void *reserve);

#endif
