//! Where the shared ring's header keeps its indices, and how many slots fit (docs/protocol 1).
//!
//! ```text
//!   byte 0         4          8         12         16            20           64
//!   | req_prod (f) | req_event (b) | rsp_prod (b) | rsp_event (f) | pvt 0 | pad 0 | slot[0] slot[1] ...
//! ```
//! C: `DEFINE_RING_TYPES`, xen/include/public/io/ring.h. Little-endian. A slot is a union of
//! request and response. With several pages the header is in the first one only.
//!
//! Invariants: the number of slots is a power of two and never comes from the peer's memory.
//! Indices run freely over all of `u32`: slot = index & (slots - 1), every difference wraps.
//!
//! What the peer may do: change all of it at any time. [`crate::ring`] reads and checks; this file
//! only names.

/// Bytes before the first slot.
pub const HEADER_BYTES: usize = 64;
/// Offset of `req_prod`: requests published. Written by the front.
pub const REQ_PROD: usize = 0;
/// Offset of `req_event`: "notify me when `req_prod` passes this". Written by the back.
pub const REQ_EVENT: usize = 4;
/// Offset of `rsp_prod`: responses published. Written by the back.
pub const RSP_PROD: usize = 8;
/// Offset of `rsp_event`: "notify me when `rsp_prod` passes this". Written by the front.
pub const RSP_EVENT: usize = 12;
/// Offset of the private bytes: zero, never read.
pub const PRIVATE: usize = 16;
/// The initial value of both event indices, which the front writes: notify at the first index.
pub const EVENT_INIT: u32 = 1;

/// The number of slots in a ring of `bytes` bytes: the largest power of two that fits after the
/// header. 0 if not even one fits.
///
/// C: `__RING_SIZE`, xen/include/public/io/ring.h.
pub const fn ring_size(bytes: usize, slot_bytes: usize) -> u32 {
    if slot_bytes == 0 || bytes < HEADER_BYTES {
        return 0;
    }
    let fit = (bytes - HEADER_BYTES) / slot_bytes;
    if fit == 0 {
        return 0;
    }
    let log2 = fit.ilog2();
    // An index has 32 bits, and differences of indices must be unambiguous, so at most 2^31 slots
    // can be distinguished.
    if log2 > 31 { 1 << 31 } else { 1 << log2 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;
    use crate::wire::{blkif::Abi, netif, netif_ctrl};

    /// The table of docs/protocol 1: bytes of a slot, slots that would fit in one page, number of
    /// slots with 1, 2, 4, 8 and 16 pages.
    #[test]
    fn sizes_are_those_of_the_protocol() {
        let rows: [(usize, usize, &[u32]); 6] = [
            (netif::TX_SLOT_BYTES, 336, &[256, 512, 1024, 2048, 4096]),
            (netif::RX_SLOT_BYTES, 504, &[256, 512, 1024, 2048, 4096]),
            (netif_ctrl::SLOT_BYTES, 252, &[128]),
            (Abi::X86_64.slot_bytes(), 36, &[32, 64, 128, 256, 512]),
            (Abi::X86_32.slot_bytes(), 37, &[32, 64, 128, 256, 512]),
            (64, 63, &[32]), // the commands of pvcalls
        ];
        for (slot_bytes, raw, slots) in rows {
            assert_eq!((PAGE_SIZE - HEADER_BYTES) / slot_bytes, raw, "slots of {slot_bytes} bytes");
            for (order, &n) in slots.iter().enumerate() {
                let pages = 1 << order;
                assert_eq!(ring_size(pages * PAGE_SIZE, slot_bytes), n, "{slot_bytes} bytes, {pages} pages");
            }
        }
    }

    #[test]
    fn no_sizes_make_it_panic() {
        assert_eq!(ring_size(0, 12), 0);
        assert_eq!(ring_size(63, 12), 0);
        assert_eq!(ring_size(64, 12), 0);
        assert_eq!(ring_size(75, 12), 0);
        assert_eq!(ring_size(76, 12), 1);
        assert_eq!(ring_size(4096, 0), 0);
        assert_eq!(ring_size(usize::MAX, 1), 1 << 31);
    }
}
