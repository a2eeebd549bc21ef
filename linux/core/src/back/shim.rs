//! The C functions that a back calls besides those of [`crate::shim`]. They are in `linux/back`.

use crate::shim::{Channel, Device, Skb};
use core::ffi::c_void;
use pregrant::platform::CopyOp;
use pregrant::port::LentPiece;

/// A `struct pregrant_map`: pages of the guest.
pub type Map = *mut c_void;
/// A `struct pregrant_copies`: the operations of a hypercall, which C makes of copies.
pub type Copies = *mut c_void;
/// A `struct pregrant_queue`.
pub type Port = *mut c_void;

/// A frame that the stack sends to the guest: `struct pregrant_frame`.
#[repr(C)]
pub struct Frame {
    pub skb: Skb,
    pub len: u32,
    /// Offset of its place in the core's burst.
    pub at: u32,
    /// `PREGRANT_CSUM_*`.
    pub csum: u8,
    /// `PREGRANT_GSO_*`, or 0.
    pub gso_type: u8,
    pub gso_size: u16,
    /// Bytes that its first slot should have; 0: as many as fit.
    pub cut: u16,
    /// Its bytes are to be read where the skb has them.
    pub lends: bool,
}

unsafe extern "C" {
    // map.c
    /// Maps `n` pages of the guest as one range of addresses. Null: they cannot be mapped, none of
    /// them stays so, and `status` has Xen's reason for the `failed`-th. `may_wait`: in process
    /// context; otherwise one page alone is mapped, if there is a place for it.
    pub fn pk_map(
        device: Device,
        of: u16,
        grefs: *const u32,
        n: usize,
        readonly: bool,
        may_wait: bool,
        status: *mut i32,
        failed: *mut u32,
    ) -> Map;
    /// The address of the mapped pages.
    pub fn pk_map_at(map: Map) -> *mut u8;
    /// In any context.
    pub fn pk_unmap(map: Map);
    /// The same for `n` maps, at most PREGRANT_UNMAPS: single pages by one hypercall.
    pub fn pk_unmap_several(maps: *mut Map, n: usize);

    // grants.c
    /// Room for the operations of a hypercall. It waits until there is some.
    pub fn pk_copies_new() -> Copies;
    pub fn pk_copies_free(copies: Copies);
    /// Makes the `n` copies between pages of domain `of` and the memory at `base` whose status is
    /// GNTST_okay, in their order, and sets the status of each that fails. `lent` has what is
    /// elsewhere of that memory, in order, as the copies are then. Returns the number of operations
    /// that Xen was asked for.
    pub fn pk_copy(
        copies: Copies,
        of: u16,
        base: *mut u8,
        to_peer: bool,
        ops: *mut CopyOp,
        n: usize,
        lent: *const LentPiece<'_>,
        nr_lent: usize,
    ) -> usize;

    // burst.c
    /// Memory for bursts, zeroed. It waits until there is some.
    pub fn pk_burst(bytes: usize) -> *mut u8;
    pub fn pk_burst_free(at: *mut u8);
    /// Chooses where a queue's next frames are fetched: `bytes` of memory of which no skb has a part,
    /// and new ones may. Null: there is none, and they go to the core's own memory.
    pub fn pk_burst_next(port: Port, bytes: usize) -> *mut u8;

    // events.c
    /// Binds an event channel to the guest's `remote`; `port` gets the local number. Null: `code`
    /// has the error.
    pub fn pk_channel_bind(device: Device, remote: u32, port: *mut u32, code: *mut i32) -> Channel;

    // queue.c
    /// The queue of a device with this index.
    pub fn pk_port(device: Device, queue: u32) -> Port;
    /// True if the interface takes frames.
    pub fn pk_port_is_up(port: Port) -> bool;

    // frame.c
    /// Makes an skb of a frame that the guest sent, which goes to the stack after the poll. True if
    /// it is long: then it may have a part of its burst, and pk_burst_next must follow.
    pub fn pk_frame_from_guest(
        port: Port,
        bytes: *const u8,
        len: usize,
        csum: u32,
        gso_type: u32,
        gso_size: u32,
    ) -> bool;
    /// Takes at most `most` skbs for the guest, which fit into `room` bytes. `n` gets the number of
    /// frames.
    pub fn pk_frames_take(port: Port, most: usize, room: usize, n: *mut usize) -> *mut Frame;
    /// Copies these skbs to their places in the burst at `burst`, counts them as sent, and frees
    /// them. Of those that are to be lent it copies the first `head` bytes, and keeps them until
    /// pk_lent_end. Returns how many are lent: some cannot be, and are copied.
    pub fn pk_frames_fill(port: Port, frames: *mut Frame, n: usize, burst: *mut u8, head: usize) -> usize;
    /// The bytes that are lent, in order; `n` gets the number of fragments.
    pub fn pk_lent(port: Port, n: *mut usize) -> *const LentPiece<'static>;
    /// Nothing of that is read any more: frees the skbs.
    pub fn pk_lent_end(port: Port);
    /// Number of skbs that wait for the guest.
    pub fn pk_frames_waiting(port: Port) -> u32;
}
