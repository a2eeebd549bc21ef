/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * What C and Rust share: structures and constants here, the functions in core.h. The Rust types are
 * in linux/core/src/{shim,front,halves}.rs and have the same layout.
 */
#ifndef PREGRANT_H
#define PREGRANT_H

#include <linux/types.h>

struct pregrant_device;
struct pregrant_channel;
struct pregrant_front; /* the control part of a vif; one caller at a time, which may sleep */
struct pregrant_tx; /* the sending half of a queue: under its netdev_queue lock */
struct pregrant_rx; /* the receiving half: its NAPI alone */
struct sk_buff;

/* The self-test defines its own. */
#ifndef pregrant_may_allocate
#define pregrant_may_allocate(kind) true
#endif
#ifndef pregrant_note_memory
#define pregrant_note_memory(n) ((void)0)
#endif

/* heap.c: allocations in atomic context, and those that waited for memory. Both stay 0. */
extern atomic_t pregrant_atomic_allocations, pregrant_memory_waits;

/* Kinds of requests that the self-test can fail. */
enum pregrant_kind {
	PREGRANT_HEAP = 1,
	PREGRANT_PAGES = 2,
	PREGRANT_GRANT = 4,
	PREGRANT_CHANNEL = 8,
	PREGRANT_STATE = 16, /* writing a xenbus state */
};

/* Staging buffers and pages of one direction of a queue; 0: one per slot. A backend gets either. */
struct pregrant_more {
	u32 buffers, pages;
};

/*
 * reserve.c: memory for allocations of the core between `use` and `rest`, by that thread: around
 * each call of pregrant_front_new(), _step(), _turn() and _start_queues(). A device has one of its
 * own.
 */
struct pregrant_reserve;
size_t pregrant_reserve_size(u32 queues, u32 slots, struct pregrant_more more);
/* NULL: no memory; the core must not be called. */
struct pregrant_reserve *pregrant_reserve_new(u32 queues, u32 slots, struct pregrant_more more);
/* Whether enough is left for a call: allocations of earlier calls may still be in use. */
bool pregrant_reserve_is_enough(struct pregrant_reserve *reserve);
void pregrant_reserve_use(struct pregrant_reserve *reserve);
/* Ends the use. Returns the largest number of bytes that were in use. */
size_t pregrant_reserve_rest(struct pregrant_reserve *reserve);
void pregrant_reserve_free(struct pregrant_reserve *reserve); /* parts may still be in use */
void *pregrant_reserve_cut(size_t size, size_t align, bool zeroed);
bool pregrant_reserve_put(void *at);

/* The module parameters. */
struct pregrant_settings {
	const char *path;
	size_t path_len;
	u32 queues, ring_order, data_len, buffers, cache, rx_in_place;
	bool multicast, send_on;
};
#define PREGRANT_BUFFERS_AUTO U32_MAX /* `buffers`: twice what `cache` bytes hold */

#define PREGRANT_PATH_ROOM 32 /* ETHTOOL_FWVERS_LEN */
#define PREGRANT_POOL_FIGURES 5
#define PREGRANT_COUNTERS 8

/* Results of pregrant_front_takes(). */
#define PREGRANT_TAKES_IPV6_CSUM 1
#define PREGRANT_TAKES_GSO 2
#define PREGRANT_TAKES_SG 4
#define PREGRANT_TAKES_MULTICAST 8 /* requests for multicast addresses */
#define PREGRANT_TAKES_MAPPINGS 16 /* maps pages of the front, or is being asked to */

/* A page fragment that is granted for one frame. */
struct pregrant_granted_piece {
	u32 gref;
	u16 offset, len;
};
#define PREGRANT_PIECES_MAX 17

/* Bits of `csum` of a frame, sent or received. */
#define PREGRANT_CSUM_BLANK 1
#define PREGRANT_CSUM_OK 2
#define PREGRANT_LINEAR 4 /* pregrant_tx_send(): `from` is an address of bytes, not an skb */
/* Values of `gso_type` of a frame. */
#define PREGRANT_GSO_TCPV4 1
#define PREGRANT_GSO_TCPV6 2
#define PREGRANT_GSO_MIN 48 /* least number of bytes of a segment: MIN_GSO_SIZE of the crate */

/* selftest_*.c: return 0, or an error code after logging what is wrong. */
int pregrant_selftest_pieces(void);
int pregrant_selftest_control(void);
int pregrant_selftest_backend(void);
int pregrant_selftest_xdp(void);

#include "core.h"

#endif
