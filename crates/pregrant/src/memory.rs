//! Allocates lists and tables that can take more than a page, for which memory may be refused.
//!
//! ```text
//!   at most a page   Box, Vec, String, format!     the allocator never refuses it
//!   more             list(), room(), grow()        NO_MEMORY, and the step fails, or does with less
//! ```
//! A kernel's allocator waits for a page, and refuses what is larger where memory is short. So a
//! front, when it is set up, allocates by these functions each table and list whose length a
//! configuration or a back chooses; giving memory back needs no memory. Programs have the same
//! error.
//!
//! What a peer may do: choose lengths, within the bounds that are checked when its keys are read.

use crate::error::PlatformError;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// There is no memory for a table or a list.
pub const NO_MEMORY: PlatformError = PlatformError { op: "allocate memory for a connection", code: 12 };

/// Returns a list of `n` clones of `value`.
#[inline(never)]
pub fn list<T: Clone>(value: T, n: usize) -> Result<Box<[T]>, PlatformError> {
    let mut all = room(n)?;
    all.resize(n, value);
    Ok(all.into_boxed_slice())
}

/// Collects all items of an iterator, whose number is known, in a list.
pub fn collected<T>(all: impl ExactSizeIterator<Item = T>) -> Result<Box<[T]>, PlatformError> {
    let mut list = room(all.len())?;
    list.extend(all);
    Ok(list.into_boxed_slice())
}

/// Returns an empty list with room for `n` items.
pub fn room<T>(n: usize) -> Result<Vec<T>, PlatformError> {
    let mut list = Vec::new();
    list.try_reserve_exact(n).map_err(|_| NO_MEMORY)?;
    Ok(list)
}

/// Gives a list room for `more` further items.
pub fn grow<T>(list: &mut Vec<T>, more: usize) -> Result<(), PlatformError> {
    list.try_reserve(more).map_err(|_| NO_MEMORY)
}

/// Gives a queue room for `more` further items.
pub fn grow_queue<T>(queue: &mut VecDeque<T>, more: usize) -> Result<(), PlatformError> {
    queue.try_reserve(more).map_err(|_| NO_MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_memory_is_for_is_an_error() {
        assert_eq!(list(0u64, usize::MAX / 4), Err(NO_MEMORY));
        // Miri ends where its own machine has no memory.
        #[cfg(not(miri))]
        assert_eq!(list(0u64, usize::MAX / 16), Err(NO_MEMORY));
        assert_eq!(room::<u64>(usize::MAX), Err(NO_MEMORY));
        assert_eq!(grow(&mut Vec::<u8>::new(), usize::MAX), Err(NO_MEMORY));
        assert_eq!(grow_queue(&mut VecDeque::<u8>::new(), usize::MAX), Err(NO_MEMORY));
    }

    #[test]
    fn a_list_is_as_long_as_was_asked_for() {
        assert_eq!(list(7u16, 3).as_deref(), Ok(&[7, 7, 7][..]));
        assert_eq!(collected([1, 2].into_iter()).as_deref(), Ok(&[1, 2][..]));
        assert!(room::<u8>(5).is_ok_and(|list| list.is_empty() && list.capacity() >= 5));
    }
}
