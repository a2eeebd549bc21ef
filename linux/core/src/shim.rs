//! The C functions that this library calls. Their prototypes for C, in `linux/module/core.h`, are
//! made of these by `cargo xtask linux header`, comments and all.
//!
//! Texts are an address and a length. A negative number is an error code of the kernel.

use core::ffi::c_void;

/// Kinds of requests that the self-test can fail: `enum pregrant_kind`.
pub const HEAP: u32 = 1;
pub const PAGES: u32 = 2;
pub const GRANT: u32 = 4;
pub const CHANNEL: u32 = 8;
pub const STATE: u32 = 16;

/// A `struct pregrant_device`; null in the self-test.
pub type Device = *mut c_void;
/// A `struct pregrant_channel`.
pub type Channel = *mut c_void;
/// A `struct sk_buff`.
pub type Skb = *mut c_void;
/// A text: `const char *`.
pub type Text = *const u8;
/// Room for a text: `char *`.
pub type TextRoom = *mut u8;

unsafe extern "C" {
    // heap.c
    /// Allocates memory for the core. It waits until there is memory if `size` is at most a page.
    /// Null: there is no memory for more than a page now, or the alignment is not supported.
    pub fn pk_alloc(size: usize, align: usize, zeroed: bool) -> *mut u8;
    pub fn pk_free(at: *mut u8);
    /// Allocates zeroed pages with consecutive addresses, which can be granted. Null: there is no
    /// memory now.
    pub fn pk_pages(n: usize) -> *mut u8;
    pub fn pk_free_pages(at: *mut u8, n: usize);

    // device.c
    /// The module parameter `trusted`: backends may be granted whole pages of skbs that are sent.
    pub fn pk_trusted() -> bool;

    // cache.c
    /// Size of a processor core's L2 cache in bytes.
    pub fn pk_private_cache() -> u32;

    // log.c
    pub fn pk_log(d: Device, level: u32, text: Text, len: usize);
    /// Logs that the backend broke the protocol, once for each connection.
    pub fn pk_fault(d: Device, text: Text, len: usize);
    pub fn pk_panic(text: Text, len: usize);
    pub fn pk_now_ns() -> u64;

    // grants.c
    /// Grants a page to domain `to`. Returns the grant reference, or an error code.
    pub fn pk_grant(to: u16, page: *mut u8, readonly: bool) -> i32;
    /// Ends a grant. False: the page is still mapped.
    pub fn pk_grant_end(gref: u32) -> bool;

    // events.c
    pub fn pk_channel_offer(device: Device, port: *mut u32) -> Channel;

    // channel.c
    pub fn pk_channel_close(chan: Channel);
    pub fn pk_channel_notify(chan: Channel);
    /// Allows the next event (late EOI). `idle`: the last one brought no work.
    pub fn pk_channel_unmask(chan: Channel, idle: bool);

    // keys.c
    pub fn pk_key_read(d: Device, own: bool, key: Text, n: usize, to: TextRoom, room: usize) -> i32;
    pub fn pk_key_list(d: Device, transaction: u32, to: TextRoom, room: usize) -> i32;
    pub fn pk_key_remove(d: Device, transaction: u32, key: Text, n: usize) -> i32;
    pub fn pk_key_write(d: Device, transaction: u32, key: Text, n: usize, value: Text, len: usize) -> i32;
    pub fn pk_transaction_begin(d: Device, transaction: *mut u32) -> i32;
    pub fn pk_transaction_end(d: Device, transaction: u32, abort: bool) -> i32;
    pub fn pk_state_write(d: Device, state: u32) -> i32;
    pub fn pk_error_write(d: Device, code: i32, text: Text, len: usize) -> i32;
    pub fn pk_error_remove(d: Device) -> i32;

    // frame.c
    /// Copies `len` bytes of an skb from its byte `at` on.
    pub fn pk_skb_read(skb: Skb, at: usize, to: *mut u8, len: usize);
    /// Allocates an skb for a received frame and adds it to `to`, a `struct pregrant_received`.
    /// `linear`: where its bytes must be written; null: they are appended later. Returns null if
    /// the frame is dropped; it is counted then.
    pub fn pk_skb_new(
        to: *mut c_void,
        len: usize,
        csum: u32,
        gso_type: u32,
        gso_size: u32,
        linear: *mut *mut u8,
    ) -> Skb;
    /// Counts a received frame as dropped.
    pub fn pk_frame_refused(to: *mut c_void);
    /// Notes that the bytes of the last frame are also in the staging buffer of a slot: at `from`,
    /// which is byte `offset` of a buffer of `bytes` bytes.
    pub fn pk_in_buffer(to: *mut c_void, slot: u16, offset: u16, bytes: usize, from: *mut u8);
    /// Like pk_skb_new, for a frame whose first `head` bytes are copied; the others are added as
    /// fragments.
    pub fn pk_skb_new_frags(
        to: *mut c_void,
        len: usize,
        head: usize,
        csum: u32,
        gso_type: u32,
        gso_size: u32,
        linear: *mut *mut u8,
    ) -> Skb;
    /// Adds a fragment of `len` bytes at `at`. The skb takes a reference to their page.
    pub fn pk_skb_add_page(skb: Skb, at: *const u8, len: usize);
    /// True if no skb has a reference to the page at `at` any more.
    pub fn pk_page_is_back(at: *const u8) -> bool;
    /// Appends bytes to a nonlinear skb.
    pub fn pk_skb_append(skb: Skb, from: *const u8, len: usize);

    // selftest.c
    /// Lets requests of these `kinds` fail, from the `from`-th to before the `to`-th of the
    /// following ones.
    pub fn pk_fail(kinds: u32, from: u64, to: u64);
    /// The number of such requests since pk_fail.
    pub fn pk_asked() -> u64;
    pub fn pk_may_allocate(kind: u32) -> bool;
    /// Allocations that are not freed.
    pub fn pk_memory() -> i64;
    /// Reschedules if needed.
    pub fn pk_test_resched();
    /// Makes an skb with these bytes, in fragments. Null: no memory.
    pub fn pk_test_skb(from: *const u8, len: usize) -> Skb;
    pub fn pk_test_free(skb: Skb);
    /// Returns the fragments of an skb, 17 at most: pages, offsets, lengths, and how many there
    /// are.
    pub fn pk_test_pieces(skb: Skb, pages: *mut *mut u8, offsets: *mut u16, lens: *mut u16) -> u32;
    /// Makes an empty `struct pregrant_received`.
    pub fn pk_test_received() -> *mut c_void;
    /// Number of frames that were dropped.
    pub fn pk_test_dropped(received: *mut c_void) -> u32;
    /// Copies the bytes of the next skb, and returns their number. 0: the skb lacks some of its
    /// bytes; below 0: there is no skb.
    pub fn pk_test_next(received: *mut c_void, to: *mut u8, room: usize) -> i32;
    /// Enters softirq context, as NAPI does, or leaves it.
    pub fn pk_test_softirq(on: bool);
    /// Fills the unused part of this thread's stack with a pattern.
    pub fn pk_test_stack_fill();
    /// Returns how many bytes of stack were used below its caller's frame since
    /// `pk_test_stack_fill`.
    pub fn pk_test_stack_used() -> usize;
}
