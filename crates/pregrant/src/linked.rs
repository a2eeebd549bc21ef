//! Lists whose entries bring their own memory, so that to link one allocates nothing.
//!
//! ```text
//!   one thread: Entry::new(item) --push--> Linked --pop--> item: another thread, which may not allocate
//! ```
//! An entry is linked before the others. Nothing here recurses, however long a list is: an entry
//! does not drop the next one, which its list does. Invariant: outside of a list no entry has a
//! next one.

use crate::error::PlatformError;
use crate::memory;
use alloc::boxed::Box;
use core::mem::ManuallyDrop;

/// An item, with the memory by which a list holds it.
#[derive(Debug)]
pub struct Entry<T> {
    /// The item.
    pub item: T,
    next: ManuallyDrop<Option<Box<Self>>>,
}

impl<T> Entry<T> {
    /// Allocates an entry.
    pub fn new(item: T) -> Result<Box<Self>, PlatformError> {
        memory::boxed(Self { item, next: ManuallyDrop::new(None) })
    }
}

/// A list of entries.
#[derive(Debug)]
pub struct Linked<T> {
    first: Option<Box<Entry<T>>>,
}

impl<T> Linked<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self { first: None }
    }

    /// Links an entry before all others.
    #[inline]
    pub fn push(&mut self, mut entry: Box<Entry<T>>) {
        *entry.next = self.first.take();
        self.first = Some(entry);
    }

    /// Removes the first entry.
    #[inline]
    pub fn pop(&mut self) -> Option<Box<Entry<T>>> {
        let mut entry = self.first.take()?;
        self.first = entry.next.take();
        Some(entry)
    }

    /// Moves the entries of `other` behind those of this list, in the opposite order.
    pub fn append_reversed(&mut self, mut other: Self) {
        let mut reversed = Self::new();
        while let Some(entry) = other.pop() {
            reversed.push(entry);
        }
        let mut end = &mut self.first;
        while let Some(entry) = end {
            end = &mut entry.next;
        }
        *end = reversed.first.take();
    }

    /// Removes the entries for which `stays` is false. The order of the others changes.
    pub fn retain(&mut self, stays: impl Fn(&T) -> bool) {
        let mut all = core::mem::take(self);
        while let Some(entry) = all.pop() {
            if stays(&entry.item) {
                self.push(entry);
            }
        }
    }

    /// The items, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let mut next = self.first.as_deref_mut();
        core::iter::from_fn(move || {
            let entry = next.take()?;
            next = entry.next.as_deref_mut();
            Some(&mut entry.item)
        })
    }
}

impl<T> Default for Linked<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Linked<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn of(items: impl IntoIterator<Item = u32>) -> Linked<u32> {
        let mut list = Linked::new();
        items.into_iter().for_each(|item| list.push(Entry::new(item).expect("memory")));
        list
    }

    fn items(mut list: Linked<u32>) -> Vec<u32> {
        core::iter::from_fn(|| list.pop().map(|entry| entry.item)).collect()
    }

    #[test]
    fn entries_come_and_go() {
        let mut list = of([1, 2, 3]);
        list.append_reversed(of([7, 8]));
        list.iter_mut().for_each(|item| *item *= 10);
        assert_eq!(items(list), [30, 20, 10, 70, 80]);
        let mut list = of(1..=6);
        list.retain(|item| item % 2 == 0);
        assert_eq!(items(list), [2, 4, 6]);
        let mut list = Linked::new();
        list.append_reversed(of([5, 6]));
        assert_eq!(items(list), [5, 6]);
        assert_eq!(items(Linked::default()), []);
    }

    #[test]
    #[cfg_attr(miri, ignore = "long")]
    fn a_long_list_ends_without_recursion() {
        drop(of(0..1_000_000));
    }
}
