//! The index page of a pair of byte rings, as PVCalls has it (docs/protocol 4.4).
//!
//! ```text
//!   index page                                       data: 2^order pages
//!   0    in_cons (f) | in_prod (b) | in_error (b)    +--------------------+--------------------+
//!   64  out_cons (b) | out_prod (f)| out_error (b)   | in: back -> front  | out: front -> back |
//!   128 ring_order (f) | ref[0] ref[1] ... (f)       +--------------------+--------------------+
//! ```
//! C: `struct pvcalls_data_intf`, xen/include/public/io/pvcalls.h. Little-endian. The generic flex
//! ring of ring.h has the same offsets and no error fields.
//!
//! Invariants: each half has 2^(order + 11) bytes; indices run freely and are masked; only the
//! consumer moves `cons`, only the producer `prod`.
//!
//! What the peer may do: change every field at any time. The order is read once; the back checks it
//! with [`half_bytes`], and each pair of indices with [`queued`].

use super::WireError;

/// Offset of `in_cons`: bytes that the front has consumed. Written by the front.
pub const IN_CONS: usize = 0;
/// Offset of `in_prod`: bytes that the back has produced. Written by the back.
pub const IN_PROD: usize = 4;
/// Offset of `in_error`: a negative errno, which ends the direction. Written by the back.
pub const IN_ERROR: usize = 8;
/// Offset of `out_cons`: bytes that the back has consumed. Written by the back.
pub const OUT_CONS: usize = 64;
/// Offset of `out_prod`: bytes that the front has produced. Written by the front.
pub const OUT_PROD: usize = 68;
/// Offset of `out_error`: a negative errno, which ends the direction. Written by the **back**.
pub const OUT_ERROR: usize = 72;
/// Offset of `ring_order`: log2 of the number of data pages. Written by the front before the page
/// is shared.
pub const RING_ORDER: usize = 128;
/// Offset of `ref[]`: the grant references of the data pages, 2^order of them, `u32` each. Written
/// by the front before the page is shared.
pub const REFS: usize = 132;
/// Number of references that fit in the page after [`REFS`].
pub const REFS_MAX: usize = (crate::PAGE_SIZE - REFS) / 4;
/// Smallest order: one page per direction.
pub const ORDER_MIN: u32 = 1;
/// Largest order whose references fit in an index page.
pub const ORDER_MAX: u32 = REFS_MAX.ilog2();

const _: () = assert!(REFS_MAX == 991 && ORDER_MAX == 9);

/// Bytes of one direction's half.
///
/// # Errors
///
/// [`WireError::DataRingOrder`] unless the order is in [`ORDER_MIN`]`..=`[`ORDER_MAX`].
pub const fn half_bytes(order: u32) -> Result<u32, WireError> {
    if order < ORDER_MIN || order > ORDER_MAX {
        return Err(WireError::DataRingOrder { found: order, allowed: [ORDER_MIN, ORDER_MAX] });
    }
    Ok(1 << (order + 11))
}

/// Number of bytes waiting in a half of `half_bytes` bytes.
///
/// # Errors
///
/// [`WireError::DataRingIndex`] if the indices claim more than the half holds.
pub const fn queued(prod: u32, cons: u32, half_bytes: u32) -> Result<u32, WireError> {
    let queued = prod.wrapping_sub(cons);
    if queued > half_bytes {
        return Err(WireError::DataRingIndex { prod, cons });
    }
    Ok(queued)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_1_to_9_are_served() {
        assert_eq!(half_bytes(0), Err(WireError::DataRingOrder { found: 0, allowed: [1, 9] }));
        assert_eq!(half_bytes(1), Ok(4096));
        assert_eq!(half_bytes(9), Ok(1 << 20));
        assert_eq!(half_bytes(10), Err(WireError::DataRingOrder { found: 10, allowed: [1, 9] }));
        assert_eq!(half_bytes(u32::MAX), Err(WireError::DataRingOrder { found: u32::MAX, allowed: [1, 9] }));
        for order in ORDER_MIN..=ORDER_MAX {
            assert!(REFS + 4 * (1 << order) <= crate::PAGE_SIZE);
        }
    }

    #[test]
    fn indices_wrap_and_cannot_claim_more_than_the_half() {
        assert_eq!(queued(5, 5, 4096), Ok(0));
        assert_eq!(queued(4096, 0, 4096), Ok(4096));
        assert_eq!(queued(3, u32::MAX - 1, 4096), Ok(5));
        assert_eq!(queued(4097, 0, 4096), Err(WireError::DataRingIndex { prod: 4097, cons: 0 }));
        assert_eq!(queued(0, 1, 4096), Err(WireError::DataRingIndex { prod: 0, cons: 1 }));
    }
}
