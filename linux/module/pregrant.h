/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * What C and Rust share: structures and constants here, the functions in core.h. The Rust types are
 * in linux/core/src/{shim,front,halves}.rs and linux/core/src/back, and have the same layout.
 */
#ifndef PREGRANT_H
#define PREGRANT_H

#include <linux/stddef.h>
#include <linux/types.h>

struct pregrant_device;
struct pregrant_channel;
struct pregrant_front; /* the control part of a vif; one caller at a time, which may sleep */
struct pregrant_tx; /* the sending half of a queue: under its netdev_queue lock */
struct pregrant_rx; /* the receiving half: its NAPI alone */
struct pregrant_back; /* of the other module: the control part of a vif's back; as the front's */
struct pregrant_back_queue; /* a queue of it: its thread's */
struct pregrant_steer; /* of a back: chooses the queue of a frame for the guest */
struct pregrant_back_counters; /* of such a queue, which any thread may read */
struct pregrant_queue; /* of an interface, of either module */
struct pregrant_map;
struct pregrant_copies;
struct sk_buff;

/* The self-test defines its own. */
#ifndef pregrant_may_allocate
#define pregrant_may_allocate(kind) true
#endif
#ifndef pregrant_note_memory
#define pregrant_note_memory(n) ((void)0)
#endif

/* heap.c: allocations in atomic context, of which there must be none. */
extern atomic_t pregrant_atomic_allocations;
/* heap.c: allocations of more than a page for which there was no memory. */
extern atomic_t pregrant_memory_refused;

/* Kinds of requests that the self-test can fail. */
enum pregrant_kind {
	PREGRANT_HEAP = 1, /* allocations of more than a page: shorter ones always succeed */
	PREGRANT_PAGES = 2,
	PREGRANT_GRANT = 4,
	PREGRANT_CHANNEL = 8,
	PREGRANT_STATE = 16, /* writing a xenbus state */
};

/* The module parameters. */
struct pregrant_settings {
	const char *path;
	size_t path_len;
	u32 queues, ring_order, data_len, buffers, cache, rx_in_place;
	bool multicast, send_on;
};
#define PREGRANT_QUEUES_MAX 64 /* largest value of `queues` */
#define PREGRANT_BUFFERS_AUTO U32_MAX /* `buffers`: twice what `cache` bytes hold */

#define PREGRANT_PATH_ROOM 32 /* ETHTOOL_FWVERS_LEN */
#define PREGRANT_POOL_FIGURES 5
#define PREGRANT_COUNTERS 9

/* Results of pregrant_front_takes(). */
#define PREGRANT_TAKES_IPV6_CSUM 1
#define PREGRANT_TAKES_GSO 2
#define PREGRANT_TAKES_SG 4
#define PREGRANT_TAKES_MULTICAST 8 /* requests for multicast addresses */
#define PREGRANT_TAKES_MAPPINGS 16 /* maps pages of the front, or is being asked to; or its data ring */

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

/* Results of pregrant_back_step(). */
enum pregrant_back_step {
	PREGRANT_BACK_WAITS,
	PREGRANT_BACK_RECALL,
	PREGRANT_BACK_CONNECTED,
	PREGRANT_BACK_CLOSED,
	PREGRANT_BACK_FAILED,
	PREGRANT_BACK_LATER,
};

/* Results of pregrant_back_takes(): what the guest accepts. */
#define PREGRANT_GUEST_SG 1
#define PREGRANT_GUEST_CSUM 2
#define PREGRANT_GUEST_IPV6_CSUM 4
#define PREGRANT_GUEST_GSO_TCPV4 8
#define PREGRANT_GUEST_GSO_TCPV6 16

/* A frame that the stack sends to a guest. */
struct pregrant_frame {
	struct sk_buff *skb;
	u32 len; /* 0: there is no place for it */
	u32 at; /* its place in the core's burst */
	u8 csum; /* PREGRANT_CSUM_* */
	u8 gso_type; /* PREGRANT_GSO_*; 0: none */
	u16 gso_size;
	u16 cut; /* bytes that its first slot should have; 0: as many as fit */
	bool lends; /* its bytes are to be read where the skb has them */
};

/* Maps of a list that are unmapped at once: UNMAPS of the crate. */
#define PREGRANT_UNMAPS 16

/* A grant copy, of a list: CopyOp of the crate. */
struct pregrant_copy {
	u32 gref;
	u32 at; /* offset in the local bytes */
	u16 offset, len; /* in the peer's page */
	s16 status; /* GNTST_* */
};
_Static_assert(sizeof(struct pregrant_copy) == 16 && offsetof(struct pregrant_copy, gref) == 0 &&
		       offsetof(struct pregrant_copy, at) == 4 && offsetof(struct pregrant_copy, offset) == 8 &&
		       offsetof(struct pregrant_copy, len) == 10 && offsetof(struct pregrant_copy, status) == 12,
	       "the layout of CopyOp");
/* Bytes of a burst that are elsewhere: LentPiece of the crate. */
struct pregrant_lent_piece {
	u32 at; /* offset in the burst */
	void *bytes;
	size_t len;
};
_Static_assert(sizeof(struct pregrant_lent_piece) == 24 && offsetof(struct pregrant_lent_piece, bytes) == 8 &&
		       offsetof(struct pregrant_lent_piece, len) == 16,
	       "the layout of LentPiece");
#define PREGRANT_BACK_COUNTERS 15 /* of a direction of a queue */

/* selftest_*.c: return 0, or an error code after logging what is wrong. */
int pregrant_selftest_pieces(void);
int pregrant_selftest_control(void);
int pregrant_selftest_backend(void);
int pregrant_selftest_xdp(void);

#include "core.h"

#endif
