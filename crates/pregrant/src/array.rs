//! Arrays of the heap that are made where they stay. One that is made on the stack first does not
//! fit a kernel's, which has 16 KiB for all that is called.

use alloc::boxed::Box;
use alloc::vec;

/// `N` times `value`.
pub fn filled<T: Clone, const N: usize>(value: T) -> Box<[T; N]> {
    match vec![value; N].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("it is as long as it was made"),
    }
}
