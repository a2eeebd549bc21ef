//! The C functions that this library calls, as `linux/module/pregrant.h` declares them: the two
//! files say the same.
//!
//! Texts are an address and a length. A negative number is the kernel's error code.

use core::ffi::c_void;

/// What the self-test lets fail: `enum pregrant_kind`.
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

/// Buffers or pages of a direction and queue: `struct pregrant_more`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct More {
    pub buffers: u32,
    pub pages: u32,
}

unsafe extern "C" {
    // heap.c
    pub fn pk_alloc(size: usize, align: usize, zeroed: bool) -> *mut u8;
    pub fn pk_free(at: *mut u8);
    /// Zeroed pages, contiguous for the CPU.
    pub fn pk_pages(n: usize) -> *mut u8;
    pub fn pk_free_pages(at: *mut u8, n: usize);

    // device.c
    /// Whether the guest's administrator lets backs have pages that others use, too.
    pub fn pk_trusted() -> bool;

    // cache.c
    /// Bytes of a core's own cache.
    pub fn pk_private_cache() -> u32;

    // log.c
    pub fn pk_log(d: Device, level: u32, text: *const u8, len: usize);
    /// The back broke the protocol.
    pub fn pk_fault(d: Device, text: *const u8, len: usize);
    pub fn pk_panic(text: *const u8, len: usize);
    pub fn pk_now_ns() -> u64;

    // grants.c
    /// Above 0: the reference.
    pub fn pk_grant(to: u16, page: *mut u8, readonly: bool) -> i32;
    /// False: the peer still has the page.
    pub fn pk_grant_end(gref: u32) -> bool;

    // events.c
    pub fn pk_channel_offer(device: Device, port: *mut u32) -> Channel;
    pub fn pk_channel_close(chan: Channel);
    pub fn pk_channel_notify(chan: Channel);
    /// `idle`: the event brought no work.
    pub fn pk_channel_unmask(chan: Channel, idle: bool);

    // keys.c
    pub fn pk_key_read(d: Device, own: bool, key: *const u8, n: usize, to: *mut u8, room: usize) -> i32;
    pub fn pk_key_list(d: Device, transaction: u32, to: *mut u8, room: usize) -> i32;
    pub fn pk_key_remove(d: Device, transaction: u32, key: *const u8, n: usize) -> i32;
    pub fn pk_key_write(
        d: Device,
        transaction: u32,
        key: *const u8,
        n: usize,
        value: *const u8,
        len: usize,
    ) -> i32;
    pub fn pk_transaction_begin(d: Device, transaction: *mut u32) -> i32;
    pub fn pk_transaction_end(d: Device, transaction: u32, abort: bool) -> i32;
    pub fn pk_state_write(d: Device, state: u32) -> i32;
    pub fn pk_error_write(d: Device, code: i32, text: *const u8, len: usize) -> i32;
    pub fn pk_error_remove(d: Device) -> i32;

    // frame.c
    /// Copies `len` bytes from `at` on.
    pub fn pk_skb_read(skb: Skb, at: usize, to: *mut u8, len: usize);
    /// An skb for another received frame, which `to` collects. `linear`: memory for all of its
    /// bytes; null: they are appended. Null: there is none now.
    pub fn pk_skb_new(
        to: *mut c_void,
        len: usize,
        csum: u32,
        gso_type: u32,
        gso_size: u32,
        linear: *mut *mut u8,
    ) -> Skb;
    /// A received frame that no skb is to have: it is counted.
    pub fn pk_frame_refused(to: *mut c_void);
    /// The last one's bytes are in the buffer of a slot, too, of so many `bytes`, from its
    /// `offset`-th on: at `from`.
    pub fn pk_in_buffer(to: *mut c_void, slot: u16, offset: u16, bytes: usize, from: *mut u8);
    /// The same of a frame whose first `head` bytes are copied, and whose others are lent.
    pub fn pk_skb_new_lent(
        to: *mut c_void,
        len: usize,
        head: usize,
        csum: u32,
        gso_type: u32,
        gso_size: u32,
        linear: *mut *mut u8,
    ) -> Skb;
    /// Bytes of a page that stays where it is; the skb has a reference to that.
    pub fn pk_skb_lend(skb: Skb, at: *const u8, len: usize);
    /// Whether no skb has the page there.
    pub fn pk_page_is_back(at: *const u8) -> bool;
    /// Bytes of one that is not linear.
    pub fn pk_skb_append(skb: Skb, from: *const u8, len: usize);

    // selftest.c
    /// The `from`-th to the `to`-th of what is asked for of these kinds from here on is not to be
    /// had.
    pub fn pk_fail(kinds: u32, from: u64, to: u64);
    /// So many were asked for since.
    pub fn pk_asked() -> u64;
    pub fn pk_may_allocate(kind: u32) -> bool;
    /// Pieces and ranges that are not freed.
    pub fn pk_memory() -> i64;
    pub fn pk_memory_waits() -> u32;
    /// Lets others have the processor, if they wait for it.
    pub fn pk_test_resched();
    /// An skb with these bytes, in pieces. Null: there is none.
    pub fn pk_test_skb(from: *const u8, len: usize) -> Skb;
    pub fn pk_test_free(skb: Skb);
    /// Its pieces, 17 at most: where their pages are, and where they are there. 0: it has none.
    pub fn pk_test_pieces(skb: Skb, pages: *mut *mut u8, offsets: *mut u16, lens: *mut u16) -> u32;
    /// A `struct pregrant_received`, empty.
    pub fn pk_test_received() -> *mut c_void;
    /// Frames that were dropped since it was empty.
    pub fn pk_test_dropped(received: *mut c_void) -> u32;
    /// The bytes of its next skb: how many; 0 where they are not whole; below 0: there is none.
    pub fn pk_test_next(received: *mut c_void, to: *mut u8, room: usize) -> i32;
    /// From here on nothing may sleep, or again.
    pub fn pk_test_softirq(on: bool);
    pub fn pk_reserve_size(queues: u32, slots: u32, more: More) -> usize;
    /// Null: there is none.
    pub fn pk_reserve_begin(queues: u32, slots: u32, more: More) -> *mut c_void;
    /// The count taken of it.
    pub fn pk_reserve_end(reserve: *mut c_void) -> usize;
}
