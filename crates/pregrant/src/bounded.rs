//! Lists with room for a fixed number of items, which is allocated once.
//!
//! ```text
//!   Bounded::new(3)   [ a ][ b ][   ]     push --> Ok     push --> Ok, full     push --> Err(item)
//! ```
//! A `Vec` that is full asks for memory, and a program or a kernel ends where there is none. What
//! runs for each frame of a guest may not do that, so its lists are these.
//!
//! What a peer may do: fill a list, as far as its user lets it; the user decides what an item
//! without room means.

use crate::error::PlatformError;
use crate::memory;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// A list that cannot grow beyond the room that it was made with.
#[derive(Debug, PartialEq, Eq)]
pub struct Bounded<T>(Vec<T>);

impl<T> Bounded<T> {
    /// Allocates a list with room for `items` items.
    pub fn new(items: usize) -> Result<Self, PlatformError> {
        memory::room(items).map(Self)
    }

    /// Allocates a list of these items, without room for more.
    pub fn of(items: impl ExactSizeIterator<Item = T>) -> Result<Self, PlatformError> {
        memory::collected(items).map(|items| Self(items.into_vec()))
    }

    /// A list without room, which allocates nothing.
    pub const fn without_room() -> Self {
        Self(Vec::new())
    }

    /// Number of items for which there is memory.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Number of further items for which there is room.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.0.capacity() - self.0.len()
    }

    /// Appends an item. Returns it if there is no room.
    #[inline(always)]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.0.len() >= self.0.capacity() {
            return Err(item);
        }
        self.0.push(item);
        Ok(())
    }

    /// Appends an item for which the caller knows that there is room. Where it was wrong, a test
    /// ends, and otherwise the item is dropped: so this is for what may be lost, as a mapping,
    /// which is unmapped then, or a frame's token, without which the frame stays unanswered. For
    /// all else there is [`push`](Self::push).
    #[inline(always)]
    pub fn put(&mut self, item: T) {
        let has_room = self.push(item).is_ok();
        debug_assert!(has_room, "a list has room for what is put there");
    }

    /// Removes the last item.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Removes item `k`. The last one takes its place.
    #[inline]
    pub fn take(&mut self, k: usize) -> Option<T> {
        if k >= self.0.len() {
            return None;
        }
        let last = self.0.pop()?;
        Some(match self.0.get_mut(k) {
            Some(item) => core::mem::replace(item, last),
            None => last,
        })
    }

    /// Removes all items.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Removes the items after the first `len`.
    #[inline(always)]
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// The list for a platform that unmaps all of its items.
    pub fn to_drain(&mut self) -> &mut Vec<T> {
        &mut self.0
    }

    /// The items, in a list that can grow.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<'a, T> IntoIterator for &'a Bounded<T> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self::without_room()
    }
}

impl<T> Deref for Bounded<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Bounded<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// A queue that cannot grow beyond the room that it was made with.
#[derive(Debug)]
pub struct BoundedQueue<T>(VecDeque<T>);

impl<T> BoundedQueue<T> {
    /// Allocates a queue with room for `items` items.
    pub fn new(items: usize) -> Result<Self, PlatformError> {
        let mut queue = VecDeque::new();
        memory::grow_queue(&mut queue, items)?;
        Ok(Self(queue))
    }

    /// Number of further items for which there is room.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.0.capacity() - self.0.len()
    }

    /// Appends an item. Returns it if there is no room.
    #[inline(always)]
    pub fn push_back(&mut self, item: T) -> Result<(), T> {
        if self.0.len() >= self.0.capacity() {
            return Err(item);
        }
        self.0.push_back(item);
        Ok(())
    }

    /// Appends an item for which the caller knows that there is room: see [`Bounded::put`].
    #[inline(always)]
    pub fn put(&mut self, item: T) {
        let has_room = self.push_back(item).is_ok();
        debug_assert!(has_room, "a queue has room for what is put there");
    }

    /// Removes the first item.
    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<T> {
        self.0.pop_front()
    }

    /// Item `k`, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self, k: usize) -> Option<&mut T> {
        self.0.get_mut(k)
    }

    /// Removes item `k`. The order of the others stays.
    pub fn remove(&mut self, k: usize) -> Option<T> {
        self.0.remove(k)
    }
}

impl<T> Default for BoundedQueue<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Deref for BoundedQueue<T> {
    type Target = VecDeque<T>;
    #[inline(always)]
    fn deref(&self) -> &VecDeque<T> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_comes_back() {
        let mut list = Bounded::new(2).unwrap();
        let most = list.room();
        assert_eq!(list.capacity(), most);
        for k in 0..most {
            assert_eq!((list.push(k), list.room()), (Ok(()), most - k - 1));
        }
        assert_eq!((list.push(7), list.len()), (Err(7), most));
        assert_eq!((list.take(0), list.push(8), list.push(9)), (Some(0), Ok(()), Err(9)));
        assert_eq!(Bounded::without_room().push(1), Err(1));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "room")]
    fn what_is_put_has_room() {
        Bounded::without_room().put(1);
    }

    #[test]
    fn a_queue_keeps_its_order_and_its_room() {
        let mut queue = BoundedQueue::new(4).unwrap();
        let most = queue.room();
        (0..most).for_each(|k| assert!(queue.push_back(k).is_ok()));
        assert_eq!((queue.push_back(9), queue.pop_front(), queue.push_back(9)), (Err(9), Some(0), Ok(())));
        assert_eq!((queue.remove(1), queue.remove(most), queue.front()), (Some(2), None, Some(&1)));
        assert_eq!(BoundedQueue::default().push_back(1), Err(1));
    }

    #[test]
    fn the_last_takes_the_place_of_what_is_taken() {
        let mut list = Bounded::new(4).unwrap();
        (0..4).for_each(|k| assert!(list.push(k).is_ok()));
        assert_eq!((list.take(4), list.take(9), list.len()), (None, None, 4));
        assert_eq!((list.take(1), list[..].to_vec()), (Some(1), Vec::from([0, 3, 2])));
        assert_eq!((list.take(2), list[..].to_vec()), (Some(2), Vec::from([0, 3])));
        list.truncate(1);
        assert_eq!((list.take(0), list.take(0), list.pop()), (Some(0), None, None));
        list.put(7);
        list.put(8);
        assert_eq!((list.pop(), list.into_vec()), (Some(8), Vec::from([7])));
    }
}
