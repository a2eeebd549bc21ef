//! Places in one half of an area: handed out one after the other, freed in the same order.
//!
//! ```text
//!         tail            head           numbers that run freely; a place is one of them modulo the half's size
//!   ......|=====|===|=====|.........
//!          oldest          next place
//! ```
//! Invariants: `head - tail` is at most the half's size, so no byte is given out twice before it
//! was freed; all numbers are multiples of 64. The numbers are private to the end that hands places
//! out: a peer affects them only by the order in which it answers or posts.

use super::rounded;
use crate::error::PlatformError;
use crate::memory;
use alloc::boxed::Box;

/// The bytes of one half of a data ring that are handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    size: u32,
    head: u32,
    tail: u32,
    most: u32,
}

impl Places {
    /// Starts with a half of `size` bytes, a power of two, all of which is free.
    pub fn new(size: u32) -> Self {
        Self::resumed(size, 0, 0)
    }

    /// Starts with the state that a predecessor left: the next place, and the number of bytes
    /// before it that are in use.
    pub fn resumed(size: u32, next: u32, used: u32) -> Self {
        debug_assert!(size.is_power_of_two() && used <= size);
        Self { size, head: next, tail: next.wrapping_sub(used), most: used }
    }

    /// Length of the data ring's half, in bytes.
    #[inline(always)]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Number of bytes that are handed out.
    #[inline(always)]
    pub fn in_use(&self) -> u32 {
        self.head.wrapping_sub(self.tail)
    }

    /// Largest number of bytes that were handed out at the same time.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Count of all bytes that were handed out so far. With [`free_to`](Self::free_to) of this
    /// value, the whole half is free.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Offset of the place that is handed out next.
    #[inline(always)]
    pub fn next(&self) -> u32 {
        self.head & (self.size - 1)
    }

    /// True if `bytes` bytes, rounded up, are free.
    #[inline(always)]
    pub fn has_room(&self, bytes: usize) -> bool {
        rounded(bytes) <= (self.size - self.in_use()) as usize
    }

    /// Hands out the place for `bytes` bytes. None: there is no room now.
    #[inline(always)]
    pub fn take(&mut self, bytes: usize) -> Option<u32> {
        if !self.has_room(bytes) {
            return None;
        }
        let place = self.next();
        self.head = self.head.wrapping_add(rounded(bytes) as u32);
        self.most = self.most.max(self.in_use());
        Some(place)
    }

    /// Frees everything that was handed out before [`head`](Self::head) had the value `head`.
    #[inline(always)]
    pub fn free_to(&mut self, head: u32) {
        debug_assert!(head.wrapping_sub(self.tail) <= self.in_use());
        self.tail = head;
    }
}

/// Places in use, in the order in which they were handed out. For each: what it is used for, and
/// the value of [`Places::head`] after it.
#[derive(Debug)]
pub struct Used<T> {
    list: Box<[(T, u32)]>,
    first: u32,
    next: u32,
}

impl<T: Copy + Default> Used<T> {
    /// Allocates room for `n` places at a time, a power of two.
    pub fn new(n: u32) -> Result<Self, PlatformError> {
        memory::list((T::default(), 0), n as usize).map(Self::over)
    }

    /// Uses `list` for as many places at a time as it has entries, a power of two.
    pub fn over(list: Box<[(T, u32)]>) -> Self {
        debug_assert!(list.len().is_power_of_two());
        Self { list, first: 0, next: 0 }
    }

    /// True if `n` more places can be noted.
    #[inline(always)]
    pub fn has_room(&self, n: u32) -> bool {
        self.next.wrapping_sub(self.first) as usize + n as usize <= self.list.len()
    }

    /// Notes the newest place. Returns its number, by which the place [is changed](Self::set) until
    /// it is forgotten.
    #[inline(always)]
    pub fn note(&mut self, what: T, head: u32) -> u32 {
        let number = self.next;
        if let Some(slot) = self.slot(number) {
            *slot = (what, head);
        }
        self.next = number.wrapping_add(1);
        number
    }

    /// Changes what a noted place is used for.
    #[inline(always)]
    pub fn set(&mut self, number: u32, what: T) {
        if let Some(slot) = self.slot(number) {
            slot.0 = what;
        }
    }

    /// Forgets the oldest places as long as `done` is true for them. Returns the head after the
    /// last of them.
    #[inline(always)]
    pub fn forget(&mut self, done: impl Fn(&T) -> bool) -> Option<u32> {
        let mut freed = None;
        while self.first != self.next {
            let Some((what, head)) = self.list.get(self.place_of(self.first)) else { break };
            if !done(what) {
                break;
            }
            freed = Some(*head);
            self.first = self.first.wrapping_add(1);
        }
        freed
    }

    #[inline(always)]
    fn place_of(&self, number: u32) -> usize {
        number as usize & (self.list.len() - 1)
    }

    #[inline(always)]
    fn slot(&mut self, number: u32) -> Option<&mut (T, u32)> {
        let place = self.place_of(number);
        self.list.get_mut(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::path::data_ring::PLACE_BYTES;
    use alloc::collections::VecDeque;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The bytes that a place of `bytes` bytes covers, one by one.
    fn covered(place: u32, bytes: usize, size: u32) -> impl Iterator<Item = usize> {
        (0..bytes).map(move |k| (place as usize + k) % size as usize)
    }

    proptest! {
        /// For any order of requests and frees: no byte is handed out twice, places follow each
        /// other around the end, and room is refused only if there is none.
        #[test]
        #[cfg_attr(miri, ignore = "arithmetic, a byte at a time")]
        fn no_byte_is_given_out_before_it_was_freed(
            order in 0u32..4,
            from in any::<u32>(),
            steps in proptest::collection::vec((any::<bool>(), 1usize..9000), 1..200),
        ) {
            let size = 4096u32 << order;
            let mut places = Places::resumed(size, from & !63, 0);
            let mut owner: Vec<bool> = vec![false; size as usize];
            let mut used: VecDeque<(u32, usize, u32)> = VecDeque::new();
            let mut expected = places.next();
            for (take, bytes) in steps {
                if take {
                    let taken = rounded(bytes);
                    let free = size as usize - used.iter().map(|u| u.1).sum::<usize>();
                    let Some(place) = places.take(bytes) else {
                        prop_assert!(taken > free, "{taken} refused of {free}");
                        continue;
                    };
                    prop_assert!(taken <= free && place < size && (place as usize).is_multiple_of(PLACE_BYTES));
                    prop_assert_eq!(place, expected);
                    expected = (place + taken as u32) % size;
                    for at in covered(place, taken, size) {
                        prop_assert!(!owner[at], "byte {at} is in use");
                        owner[at] = true;
                    }
                    used.push_back((place, taken, places.head()));
                } else if let Some((place, taken, head)) = used.pop_front() {
                    places.free_to(head);
                    covered(place, taken, size).for_each(|at| owner[at] = false);
                }
                prop_assert_eq!(places.in_use() as usize, owner.iter().filter(|used| **used).count());
                prop_assert!(places.most() >= places.in_use());
            }
        }
    }

    #[test]
    fn what_is_freed_is_the_oldest_whatever_is_done_first() {
        let mut used = Used::<bool>::new(4).expect("memory");
        let numbers: Vec<u32> = [64, 128, 192, 256].map(|head| used.note(false, head)).into();
        assert!(!used.has_room(1));
        used.set(numbers[2], true);
        used.set(numbers[1], true);
        assert_eq!(used.forget(|done| *done), None);
        used.set(numbers[0], true);
        assert_eq!(used.forget(|done| *done), Some(192));
        assert!(used.has_room(3) && !used.has_room(4));
        assert_eq!(used.forget(|done| *done), None);
        let fifth = used.note(true, 320);
        assert_eq!(used.forget(|done| *done), None, "the fourth is not done");
        used.set(numbers[3], true);
        assert_eq!((fifth, used.forget(|done| *done)), (4, Some(320)));
    }

    #[test]
    fn what_a_predecessor_left_is_not_given_out() {
        let mut places = Places::resumed(4096, 1024, 3072);
        assert_eq!((places.in_use(), places.next()), (3072, 1024));
        assert_eq!(places.take(1024), Some(1024));
        assert_eq!(places.take(1), None);
        places.free_to(1024);
        assert_eq!(places.take(3072), Some(2048));
        assert_eq!((places.take(1), places.most()), (None, 4096));
    }
}
