//! Arrays that are built on the heap, and their indices. One built on the stack first would not fit
//! a kernel's stack, which has 16 KiB for all calls.

use alloc::boxed::Box;
use alloc::vec;

/// Returns `N` clones of `value`.
pub fn filled<T: Clone, const N: usize>(value: T) -> Box<[T; N]> {
    match vec![value; N].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("it is as long as it was made"),
    }
}

/// An index below `N`, a power of two, for an array of `N` items: it needs no check that could
/// panic. A larger index is an error of the caller's, and would be another item's.
#[inline(always)]
pub const fn within<const N: usize>(k: usize) -> usize {
    const { assert!(N.is_power_of_two()) };
    debug_assert!(k < N);
    k & (N - 1)
}
