//! Arrays that are built on the heap. One built on the stack first would not fit a kernel's stack,
//! which has 16 KiB for all calls.

use alloc::boxed::Box;
use alloc::vec;

/// Returns `N` clones of `value`.
pub fn filled<T: Clone, const N: usize>(value: T) -> Box<[T; N]> {
    match vec![value; N].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("it is as long as it was made"),
    }
}
