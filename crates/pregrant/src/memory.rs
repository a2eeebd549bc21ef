//! Allocates by calls that can fail: lists, tables, boxes, texts.
//!
//! ```text
//!   list(), array(), room(), grow(), push(), boxed(), text()     NO_MEMORY: the step fails, or does with less
//! ```
//! A kernel's allocator waits for a page, and refuses what is larger where memory is short. So a
//! front and a back, when they are set up, allocate by these functions each table and list whose
//! length a configuration or a peer chooses; giving memory back needs no memory. A back allocates
//! what is short in this way too: code that cannot fail has a call that panics wherever it
//! allocates. Programs have the same error.
//!
//! What a peer may do: choose lengths, within the bounds that are checked when its keys are read.
#![expect(unsafe_code, reason = "a box whose memory may be refused")]

use crate::error::PlatformError;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::fmt::{self, Write};
use core::ptr::NonNull;

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

/// Returns `N` clones of `value`, in memory of their own.
pub fn array<T: Clone, const N: usize>(value: T) -> Result<Box<[T; N]>, PlatformError> {
    list(value, N)?.try_into().map_err(|_| NO_MEMORY)
}

/// Returns a box of `item`.
pub fn boxed<T>(item: T) -> Result<Box<T>, PlatformError> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return Ok(Box::new(item)); // it takes no memory
    }
    // SAFETY: the layout has bytes.
    let at = unsafe { alloc::alloc::alloc(layout) }.cast::<T>();
    let at = NonNull::new(at).ok_or(NO_MEMORY)?.as_ptr();
    // SAFETY: new memory for a T, which is the box's alone. A box frees it by the same layout.
    unsafe {
        at.write(item);
        Ok(Box::from_raw(at))
    }
}

/// Appends an item to a list.
#[inline]
pub fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), PlatformError> {
    list.try_reserve(1).map_err(|_| NO_MEMORY)?;
    list.push(item);
    Ok(())
}

/// Formats a text.
pub fn text(of: impl fmt::Display) -> Result<String, PlatformError> {
    let mut text = Text(Vec::new());
    write!(text, "{of}").map_err(|_| NO_MEMORY)?;
    String::from_utf8(text.0).map_err(|_| NO_MEMORY)
}

/// The bytes of a text that is being formatted.
struct Text(Vec<u8>);

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.0.try_reserve(more.len()).map_err(|_| fmt::Error)?;
        self.0.extend_from_slice(more.as_bytes());
        Ok(())
    }
}

/// Gives a list room for `more` further items.
#[inline]
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
    use alloc::sync::Arc;

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
        assert_eq!(array(7u16), Ok(Box::new([7, 7, 7])));
        let mut list = Vec::new();
        assert_eq!((push(&mut list, 1), push(&mut list, 2), list), (Ok(()), Ok(()), Vec::from([1, 2])));
    }

    #[test]
    fn a_box_and_a_text_have_what_they_are_made_of() {
        let shared = Arc::new(());
        let two = boxed([Arc::clone(&shared), Arc::clone(&shared)]);
        assert!(two.is_ok_and(|two| Arc::ptr_eq(&two[0], &two[1]) && Arc::strong_count(&shared) == 3));
        assert_eq!(Arc::strong_count(&shared), 1, "a box drops its item");
        assert_eq!(boxed(()), Ok(Box::new(())));
        assert_eq!(text(format_args!("queue-{}/{}", 7, "x")).as_deref(), Ok("queue-7/x"));
        assert_eq!(text("").as_deref(), Ok(""));
    }
}
