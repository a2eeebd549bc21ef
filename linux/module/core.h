/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * Made by `cargo xtask linux header` from linux/core/src: change the functions there.
 *
 *   C  --pregrant_*-->  Rust   the front, or the back: states, keys, queues, frames
 *   C  <----pk_*------  Rust   what only the kernel has
 *
 * Texts are an address and a length. A negative number is an error code of the kernel.
 */
#ifndef PREGRANT_CORE_H
#define PREGRANT_CORE_H

/* linux/core/src/shim.rs */
/*
 * Allocates memory for the core. It waits until there is memory if `size` is at most a page.
 * Null: there is no memory for more than a page now, or the alignment is not supported.
 */
void *pk_alloc(size_t size, size_t align, bool zeroed);
void pk_free(void *at);
/*
 * Allocates zeroed pages with consecutive addresses, which can be granted. Null: there is no
 * memory now.
 */
void *pk_pages(size_t n);
void pk_free_pages(void *at, size_t n);
/* The module parameter `trusted`: backends may be granted whole pages of skbs that are sent. */
bool pk_trusted(void);
/* Size of a processor core's L2 cache in bytes. */
u32 pk_private_cache(void);
void pk_log(struct pregrant_device *d, u32 level, const char *text, size_t len);
/* Logs that the backend broke the protocol, once for each connection. */
void pk_fault(struct pregrant_device *d, const char *text, size_t len);
void pk_panic(const char *text, size_t len);
u64 pk_now_ns(void);
/* Grants a page to domain `to`. Returns the grant reference, or an error code. */
int pk_grant(u16 to, void *page, bool readonly);
/* Ends a grant. False: the page is still mapped. */
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
 * Allocates an skb for a received frame and adds it to `to`, a `struct pregrant_received`.
 * `linear`: where its bytes must be written; null: they are appended later. Returns null if the
 * frame is dropped; it is counted then.
 */
struct sk_buff *pk_skb_new(void *to, size_t len, u32 csum, u32 gso_type, u32 gso_size,
	void **linear);
/* Counts a received frame as dropped. */
void pk_frame_refused(void *to);
/*
 * Notes that the bytes of the last frame are also in the staging buffer of a slot: at `from`,
 * which is byte `offset` of a buffer of `bytes` bytes.
 */
void pk_in_buffer(void *to, u16 slot, u16 offset, size_t bytes, void *from);
/*
 * Like pk_skb_new, for a frame whose first `head` bytes are copied; the others are added as
 * fragments.
 */
struct sk_buff *pk_skb_new_frags(void *to, size_t len, size_t head, u32 csum, u32 gso_type,
	u32 gso_size, void **linear);
/* Adds a fragment of `len` bytes at `at`. The skb takes a reference to their page. */
void pk_skb_add_page(struct sk_buff *skb, const void *at, size_t len);
/* True if no skb has a reference to the page at `at` any more. */
bool pk_page_is_back(const void *at);
/* Appends bytes to a nonlinear skb. */
void pk_skb_append(struct sk_buff *skb, const void *from, size_t len);
/*
 * Lets requests of these `kinds` fail, from the `from`-th to before the `to`-th of the
 * following ones.
 */
void pk_fail(u32 kinds, u64 from, u64 to);
/* The number of such requests since pk_fail. */
u64 pk_asked(void);
bool pk_may_allocate(u32 kind);
/* Allocations that are not freed. */
s64 pk_memory(void);
/* Reschedules if needed. */
void pk_test_resched(void);
/* Makes an skb with these bytes, in fragments. Null: no memory. */
struct sk_buff *pk_test_skb(const void *from, size_t len);
void pk_test_free(struct sk_buff *skb);
/*
 * Returns the fragments of an skb, 17 at most: pages, offsets, lengths, and how many there are.
 */
u32 pk_test_pieces(struct sk_buff *skb, void **pages, u16 *offsets, u16 *lens);
/* Makes an empty `struct pregrant_received`. */
void *pk_test_received(void);
/* Number of frames that were dropped. */
u32 pk_test_dropped(void *received);
/*
 * Copies the bytes of the next skb, and returns their number. 0: the skb lacks some of its
 * bytes; below 0: there is no skb.
 */
int pk_test_next(void *received, void *to, size_t room);
/* Enters softirq context, as NAPI does, or leaves it. */
void pk_test_softirq(bool on);
/* Fills the unused part of this thread's stack with a pattern. */
void pk_test_stack_fill(void);
/*
 * Returns how many bytes of stack were used below its caller's frame since
 * `pk_test_stack_fill`.
 */
size_t pk_test_stack_used(void);

/* linux/core/src/front.rs */
/* True if a front with these settings is possible. If not, the reason is logged. */
bool pregrant_front_check(const struct pregrant_settings *settings);
/*
 * Makes a front for a device whose backend is in domain `back`. Null: the settings do not pass
 * pregrant_front_check.
 */
struct pregrant_front *pregrant_front_new(struct pregrant_device *device, u16 back,
	const struct pregrant_settings *settings);
/*
 * Reads the backend's xenbus state and makes the steps that it allows; one that fails is tried
 * again later. True: call pregrant_front_stop_queues, then call this again.
 */
bool pregrant_front_step(struct pregrant_front *front);
/*
 * Hands out the live queues, each as two halves, to be used without the front. Returns how
 * many.
 */
u32 pregrant_front_start_queues(struct pregrant_front *front);
/* The sending half of a queue that is handed out. Null: there is none. */
struct pregrant_tx *pregrant_front_tx(const struct pregrant_front *front, u32 queue);
/* The receiving half of a queue that is handed out. Null: there is none. */
struct pregrant_rx *pregrant_front_rx(const struct pregrant_front *front, u32 queue);
/* Takes back the halves of all queues. */
void pregrant_front_stop_queues(struct pregrant_front *front);
/* True if frames can travel. */
bool pregrant_front_is_live(const struct pregrant_front *front);
/* The features that the backend accepts: PREGRANT_TAKES_*. */
u32 pregrant_front_takes(const struct pregrant_front *front);
/* The path of a live front's frames and the reason for it, NUL-terminated. */
void pregrant_front_path(const struct pregrant_front *front,
	const struct pregrant_settings *settings, char to[PREGRANT_PATH_ROOM]);
/*
 * The event channel ports of a queue. The second is 0 if one channel serves both directions;
 * both are 0 if there is no such queue.
 */
void pregrant_front_ports(const struct pregrant_front *front, u32 queue, u32 ports[2]);
/* Number of slots of each queue's TX and RX ring; 0: there is no queue here. */
void pregrant_front_slots(const struct pregrant_front *front, u32 slots[2]);
/* Time of the next step if no event comes, by pk_now_ns; 0: none is due. */
u64 pregrant_front_begins_at(const struct pregrant_front *front);
/* Begins to close for good. Call pregrant_front_step until pregrant_front_is_closed. */
void pregrant_front_close(struct pregrant_front *front);
/*
 * Like pregrant_front_close, but the xenstore directories belong to another front: the guest
 * was restored, and its grants and channels are gone, or the toolstack has made the vif again.
 * Call pregrant_front_stop_queues before, and this again until pregrant_front_is_closed.
 */
void pregrant_front_abandon(struct pregrant_front *front);
/* True if the front is closed and the backend has unmapped all of its pages. */
bool pregrant_front_is_closed(const struct pregrant_front *front);
/* Number of pages that are granted to the backend and not in use. */
u64 pregrant_front_kept_pages(const struct pregrant_front *front);
/* Frees pages that are granted and not in use, if the backend has not mapped them. */
void pregrant_front_release_idle(struct pregrant_front *front);
/*
 * Adds up to 64 RX pages to each queue that had none for some frames. Returns how many; below
 * 0: there is no memory now. Call pregrant_front_stop_queues before.
 */
int pregrant_front_grow(struct pregrant_front *front);
/*
 * Removes RX pages that neither a slot nor an skb needs. Returns how many. Call
 * pregrant_front_stop_queues before.
 */
u32 pregrant_front_shrink(struct pregrant_front *front);
/*
 * Counters of RX pages for frames that stay in their pages: present, added and removed ones,
 * and those that the backend mapped and unmapped on request.
 */
void pregrant_front_pool(const struct pregrant_front *front, u64 to[5]);
/* Frees a front. Pages that are still granted stay allocated. */
void pregrant_front_free(struct pregrant_front *front);
/* Continues the requests on the control ring. Below 0: a fault. */
int pregrant_front_turn(struct pregrant_front *front);

/* linux/core/src/halves.rs */
/*
 * Copies an skb to the ring, or `len` bytes if `csum` has PREGRANT_LINEAR. The backend sees the
 * frame after pregrant_tx_publish. 1: sent; 0: no room now; below 0: it cannot be sent.
 */
int pregrant_tx_send(struct pregrant_tx *tx, const void *from, size_t len, u32 csum,
	u32 gso_type, u32 gso_size);
/*
 * Like pregrant_tx_send, for an skb whose last bytes are in these `n` granted pages; `ids` gets
 * the ids of their requests. Unless 1 is returned, the backend sees none of it, and the grants
 * remain the caller's.
 */
int pregrant_tx_send_pieces(struct pregrant_tx *tx, struct sk_buff *skb, size_t len, u32 csum,
	u32 gso_type, u32 gso_size, const struct pregrant_granted_piece *pieces, u32 n, u16 *ids);
/* The number of ids that granted pages may have; 0: the backend must not get any. */
u32 pregrant_tx_piece_ids(const struct pregrant_tx *tx);
/*
 * Number of requests of granted pages without a response, or whose response was not read; 0 on
 * a new ring.
 */
u32 pregrant_tx_pieces_out(const struct pregrant_tx *tx);
/*
 * Returns ids of granted pages whose response has arrived, at most `room`. Call it after each
 * pregrant_tx_reclaim until it returns 0.
 */
u32 pregrant_tx_answered_pieces(struct pregrant_tx *tx, u16 *ids, u32 room);
/* Publishes what was sent, and sends an event if the backend wants one. */
void pregrant_tx_publish(struct pregrant_tx *tx);
/* Number of free TX slots. */
u32 pregrant_tx_room(const struct pregrant_tx *tx);
/* Number of TX requests without a response. */
u32 pregrant_tx_in_flight(const struct pregrant_tx *tx);
/* Reads TX responses. Returns how many; below 0: a fault. */
int pregrant_tx_reclaim(struct pregrant_tx *tx);
/*
 * Asks for an event when `ahead` responses have arrived that were not read yet, and unmasks the
 * channel. 1: they have arrived already; below 0: a fault.
 */
int pregrant_tx_arm(struct pregrant_tx *tx, u32 ahead);
/*
 * Asks the backend to deliver multicast frames to an address, or to stop that. False: there is
 * no room now.
 */
bool pregrant_tx_multicast(struct pregrant_tx *tx, const u8 mac[6], bool wanted);
/* The counters of TX, as ethtool.c names them. */
void pregrant_tx_counters(const struct pregrant_tx *tx, u64 to[9]);
/* The counters of RX. */
void pregrant_rx_counters(const struct pregrant_rx *rx, u64 to[9]);
/*
 * Adds an skb to `to` for each received frame, at most `most`. Returns how many of `most` were
 * used; below 0: a fault. Then call pregrant_rx_post. `decides`: an XDP program sees the
 * frames, and each segment of a large one counts as a frame. `send_on`: pk_in_buffer is called
 * for each.
 */
int pregrant_rx_receive(struct pregrant_rx *rx, void *to, u32 most, bool decides, bool send_on);
/*
 * Number of frames that stayed in their pages since the last call. `is_short`: others were
 * copied because no page was spare.
 */
u32 pregrant_rx_in_place(struct pregrant_rx *rx, bool *is_short);
/* Posts RX buffers in free slots. */
void pregrant_rx_post(struct pregrant_rx *rx);
/* True if the backend accepts received staging buffers on TX. */
bool pregrant_tx_sends_on(const struct pregrant_tx *tx);
/*
 * Sends `len` bytes at `offset` of the staging buffer of a slot, between pregrant_rx_receive
 * and pregrant_rx_post, under the TX lock. False: there is no room, or the buffer is shorter.
 */
bool pregrant_tx_send_on(struct pregrant_tx *tx, struct pregrant_rx *rx, u16 slot, u16 offset,
	u16 len, u32 csum);
/*
 * Gives staging buffers that TX sent on, and that have a response, back to RX. Returns the
 * number of buffers without a response.
 */
u32 pregrant_rx_take_returned(struct pregrant_rx *rx, struct pregrant_tx *tx);
/*
 * Called before NAPI completes: asks for an event, and unmasks the channel. 1: there is work;
 * below 0: a fault.
 */
int pregrant_rx_arm(struct pregrant_rx *rx);

/* linux/core/src/back/shim.rs */
/*
 * Maps `n` pages of the guest as one range of addresses. Null: they cannot be mapped, none of
 * them stays so, and `status` has Xen's reason for the `failed`-th. `may_wait`: in process
 * context; otherwise one page alone is mapped, if there is a place for it.
 */
struct pregrant_map *pk_map(struct pregrant_device *device, u16 of, const u32 *grefs, size_t n,
	bool readonly, bool may_wait, int *status, u32 *failed);
/* The address of the mapped pages. */
void *pk_map_at(struct pregrant_map *map);
/* In any context. */
void pk_unmap(struct pregrant_map *map);
/* The same for `n` maps, at most PREGRANT_UNMAPS: single pages by one hypercall. */
void pk_unmap_several(struct pregrant_map **maps, size_t n);
/* Room for the operations of a hypercall. It waits until there is some. */
struct pregrant_copies *pk_copies_new(void);
void pk_copies_free(struct pregrant_copies *copies);
/*
 * Makes the `n` copies between pages of domain `of` and the memory at `base` whose status is
 * GNTST_okay, in their order, and sets the status of each that fails. `lent` has what is
 * elsewhere of that memory, in order, as the copies are then. Returns the number of operations
 * that Xen was asked for.
 */
size_t pk_copy(struct pregrant_copies *copies, u16 of, void *base, bool to_peer,
	struct pregrant_copy *ops, size_t n, const struct pregrant_lent_piece *lent, size_t nr_lent);
/* Memory for bursts, zeroed. It waits until there is some. */
void *pk_burst(size_t bytes);
void pk_burst_free(void *at);
/*
 * Chooses where a queue's next frames are fetched: `bytes` of memory of which no skb has a
 * part, and new ones may. Null: there is none, and they go to the core's own memory.
 */
void *pk_burst_next(struct pregrant_queue *port, size_t bytes);
/*
 * Binds an event channel to the guest's `remote`; `port` gets the local number. Null: `code`
 * has the error.
 */
struct pregrant_channel *pk_channel_bind(struct pregrant_device *device, u32 remote, u32 *port,
	int *code);
/* The queue of a device with this index. */
struct pregrant_queue *pk_port(struct pregrant_device *device, u32 queue);
/* True if the interface takes frames. */
bool pk_port_is_up(struct pregrant_queue *port);
/*
 * Makes an skb of a frame that the guest sent, which goes to the stack after the poll. True if
 * it is long: then it may have a part of its burst, and pk_burst_next must follow.
 */
bool pk_frame_from_guest(struct pregrant_queue *port, const void *bytes, size_t len, u32 csum,
	u32 gso_type, u32 gso_size);
/*
 * Takes at most `most` skbs for the guest, which fit into `room` bytes. `n` gets the number of
 * frames.
 */
struct pregrant_frame *pk_frames_take(struct pregrant_queue *port, size_t most, size_t room,
	size_t *n);
/*
 * Copies these skbs to their places in the burst at `burst`, counts them as sent, and frees
 * them. Of those that are to be lent it copies the first `head` bytes, and keeps them until
 * pk_lent_end. Returns how many are lent: some cannot be, and are copied.
 */
size_t pk_frames_fill(struct pregrant_queue *port, struct pregrant_frame *frames, size_t n,
	void *burst, size_t head);
/* The bytes that are lent, in order; `n` gets the number of fragments. */
const struct pregrant_lent_piece *pk_lent(struct pregrant_queue *port, size_t *n);
/* Nothing of that is read any more: frees the skbs. */
void pk_lent_end(struct pregrant_queue *port);
/* Number of skbs that wait for the guest. */
u32 pk_frames_waiting(struct pregrant_queue *port);

/* linux/core/src/back/vif.rs */
/*
 * Makes the back of a vif of domain `of`, which offers so many queues. Null: there is no
 * memory.
 */
struct pregrant_back *pregrant_back_new(struct pregrant_device *device, u16 of, u32 handle,
	u32 queues);
/*
 * Reads the front's xenbus state and makes the steps that it allows. Returns a PREGRANT_BACK_*:
 * RECALL: call pregrant_back_stop_queues, then this again; CONNECTED: prepare the interface,
 * and call pregrant_back_say_connected, pregrant_back_start_queues; LATER: call this again in
 * 50 ms; FAILED: call pregrant_back_stop_queues, pregrant_back_close.
 */
u32 pregrant_back_step(struct pregrant_back *back);
/*
 * Limits the pages that the vif may have mapped, at its next connection, and those of them that
 * it may keep until it closes.
 */
void pregrant_back_limit_pages(struct pregrant_back *back, u32 pages, u32 lasting);
/* Limits the pages that a connected vif may have, with those that it needs. */
void pregrant_back_share_pages(struct pregrant_back *back, u32 pages);
/* Number of pages that the vif has mapped or may ask for, until it closes. */
u32 pregrant_back_pages(const struct pregrant_back *back);
/* Number of pages that the vif has mapped; 0: it is not connected. */
u32 pregrant_back_needed_pages(const struct pregrant_back *back);
/* Writes state 4. Below 0: as FAILED of pregrant_back_step. */
int pregrant_back_say_connected(struct pregrant_back *back);
/*
 * Hands out the queues, each to its poll. Returns how many. Below 0: there is no memory; then
 * call pregrant_back_close.
 */
int pregrant_back_start_queues(struct pregrant_back *back);
/* A queue that is handed out. Null: there is none. */
struct pregrant_back_queue *pregrant_back_queue(const struct pregrant_back *back, u32 queue);
/* The counters of a queue that is handed out. Null: there is none. */
struct pregrant_back_counters *pregrant_back_queue_counters(const struct pregrant_back *back,
	u32 queue);
/*
 * Takes back all queues. 1: the guest broke the protocol on one; then call pregrant_back_close.
 */
u32 pregrant_back_stop_queues(struct pregrant_back *back);
/* Closes the vif, because a step failed or its guest broke the protocol. */
void pregrant_back_close(struct pregrant_back *back);
/*
 * True if nothing was read of the vif's state yet: it is as another back, or the toolstack, has
 * left it.
 */
bool pregrant_back_is_untouched(const struct pregrant_back *back);
/*
 * True if the next back may go on with the rings: both ends are connected, and the toolstack
 * wants the vif to stay.
 */
bool pregrant_back_may_leave(struct pregrant_back *back);
/* Takes no more frames of the guest. False: someone holds them already. */
bool pregrant_back_hold(struct pregrant_back *back);
/*
 * After pregrant_back_stop_queues: answers what can be answered of the requests that were
 * taken. Returns how many have no answer; below 0, or if this was the last call and there are
 * some: call pregrant_back_close.
 */
int pregrant_back_settle(struct pregrant_back *back, bool is_last);
/*
 * Leaves the rings to the next back, at state 4: what waits for the guest is delivered as far
 * as there is room.
 */
void pregrant_back_leave(struct pregrant_back *back);
/*
 * Closes the vif for good: what waits for the guest is delivered as far as there is room, then
 * states 5 and 6 are written.
 */
void pregrant_back_end(struct pregrant_back *back);
/*
 * Executes some requests of the guest's control ring, if it has one. 1: call this again; 0: an
 * event says when; below 0: the guest broke the protocol, call pregrant_back_close.
 */
int pregrant_back_ring_turn(struct pregrant_back *back);
/* True if what chooses queues has changed since the last call. */
bool pregrant_back_is_steered(struct pregrant_back *back);
/*
 * What chooses queues from now on, to be freed by pregrant_back_steer_free. Null: the stack
 * does, as where there is no memory.
 */
struct pregrant_steer *pregrant_back_steering(const struct pregrant_back *back);
/* The queue of a frame for the guest. */
u32 pregrant_back_queue_of(const struct pregrant_steer *by, const void *frame, size_t len);
/* Frees what pregrant_back_steering gave. */
void pregrant_back_steer_free(struct pregrant_steer *by);
/* Number of queues of a connected vif. */
u32 pregrant_back_nr_queues(const struct pregrant_back *back);
/* The paths of the first queue of a connected vif, for TX and RX, with a terminating 0. */
void pregrant_back_paths(const struct pregrant_back *back, char to[PREGRANT_PATH_ROOM]);
/*
 * Whether the link is up: all queues' guest takes frames. 1 or 0 if that changed, otherwise -1.
 */
int pregrant_back_link(struct pregrant_back *back);
/* The frames that the guest accepts: PREGRANT_GUEST_*. */
u32 pregrant_back_takes(const struct pregrant_back *back);
/* The largest MTU of the interface that the guest can receive; 0: any. */
u32 pregrant_back_mtu_limit(const struct pregrant_back *back);
/* The toolstack's key `rate` has changed. */
void pregrant_back_rate(struct pregrant_back *back);
/* Frees a back, which has been ended, or whose step has failed and which is closed. */
void pregrant_back_free(struct pregrant_back *back);

/* linux/core/src/back/queue.rs */
/* Moves one batch each way. 1: there may be more; below 0: the guest broke the protocol. */
int pregrant_back_poll_queue(struct pregrant_back_queue *queue);
/* Called where nothing waits: asks for events. 1: there is work; below 0: a fault. */
int pregrant_back_poll_arm(struct pregrant_back_queue *queue);
/*
 * Handles what waits: before events are asked for, and now and then before that. 1: the
 * device's control must look at the link; below 0: a fault.
 */
int pregrant_back_turn(struct pregrant_back_queue *queue);
/* Time at which the queue must be polled even if no event comes, by pk_now_ns; 0: never. */
u64 pregrant_back_wakes_at(struct pregrant_back_queue *queue);
/* The local ports of a queue's event channels. The second is 0 if one serves both rings. */
void pregrant_back_ports(struct pregrant_back_queue *queue, u32 ports[2]);
/* The counters of TX, then of RX, as ethtool.c names them. */
void pregrant_back_counters(const struct pregrant_back_counters *counters, u64 to[30]);

/* linux/core/src/selftest/mod.rs */
/* Runs all parts, with `frames` frames in each direction. 0: everything is right. */
int pregrant_selftest(u64 frames);

#endif
