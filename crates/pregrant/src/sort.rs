//! Sorts lists whose order a peer chose, without recursion and without a buffer in the stack.
//!
//! ```text
//!   slice::sort_unstable          recurses, up to 2 * log2(n) levels if a peer chose the order
//!   slice::sort                   recurses likewise, and has 4 KiB of scratch space in the stack
//!   BTreeSet, BTreeMap: collect   calls slice::sort
//!   sorted()                      a heap: n * log(n) steps, one frame of stack
//! ```
//! A kernel's stack has 16 KiB, so neither a driver's control path nor its data path sorts by the
//! first three.
//!
//! What a peer may do: choose the order and the length of a list; the length is bounded by the
//! caller.

use crate::error::PlatformError;
use crate::memory;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;

/// Returns the items in ascending order. Equal items have no order.
pub fn sorted<T: Ord>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, PlatformError> {
    Ok(BinaryHeap::from(memory::collected(items)?.into_vec()).into_sorted_vec())
}

#[cfg(test)]
mod tests {
    use super::sorted;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_a_sort_does(items in prop::collection::vec(0u16..100, 0..200)) {
            let mut model: Vec<u16> = items.clone();
            model.sort_unstable();
            prop_assert_eq!(sorted(items.into_iter()), Ok(model));
        }
    }
}
