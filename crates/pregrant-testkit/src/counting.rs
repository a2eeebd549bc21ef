//! A global allocator that counts each thread's allocations and the bytes that the thread holds. A
//! test that counts must therefore be a program of its own, which installs this allocator:
//!
//! ```standalone_crate
//! use pregrant_testkit::counting::{Counting, calls};
//!
//! #[global_allocator]
//! static COUNTING: Counting = Counting;
//!
//! fn main() {
//!     let before = calls();
//!     drop(std::hint::black_box(Box::new(1)));
//!     assert_eq!(calls() - before, 1);
//! }
//! ```
#![expect(unsafe_code, reason = "an allocator is an unsafe trait; it calls the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// The allocations that are refused on this thread, while [`refusing`] makes a call.
    static REFUSED: Cell<Option<Refused>> = const { Cell::new(None) };
}

/// Allocations of at most this many bytes are never refused.
const PAGE: usize = 4096;

/// Chooses which of the allocations of more than a page are refused, counted from 0.
#[derive(Clone, Copy)]
pub struct Refused {
    from: u64,
    to: u64,
    asked: u64,
}

impl Refused {
    /// Refuses no allocation.
    pub const fn none() -> Self {
        Self { from: 0, to: 0, asked: 0 }
    }

    /// Refuses the `n`-th allocation, or with `then_on` that one and all after it.
    pub const fn from(n: u64, then_on: bool) -> Self {
        Self { from: n, to: if then_on { u64::MAX } else { n + 1 }, asked: 0 }
    }

    /// Returns how many allocations were refused.
    pub fn count(&self) -> u64 {
        self.asked.min(self.to).saturating_sub(self.from)
    }
}

/// Makes a call in which the allocations that `refused` selects fail.
pub fn refusing<T>(refused: &mut Refused, call: impl FnOnce() -> T) -> T {
    REFUSED.set(Some(*refused));
    let came = call();
    *refused = REFUSED.take().unwrap_or(*refused);
    came
}

/// Makes a call in which no allocation is refused, within a call of [`refusing`].
pub fn spared<T>(call: impl FnOnce() -> T) -> T {
    let refused = REFUSED.take();
    let came = call();
    REFUSED.set(refused);
    came
}

fn is_refused(bytes: usize) -> bool {
    let asks = |refused: &Cell<Option<Refused>>| match refused.get() {
        Some(now) if bytes > PAGE => {
            refused.set(Some(Refused { asked: now.asked + 1, ..now }));
            (now.from..now.to).contains(&now.asked)
        }
        _ => false,
    };
    REFUSED.try_with(asks).unwrap_or(false)
}

/// The allocator that counts each thread's allocations, and the bytes that the thread holds.
pub struct Counting;

fn count(calls: u64, bytes: isize) {
    // A thread that is ending has no counters any more, and no test is on it.
    let _ = CALLS.try_with(|n| n.set(n.get() + calls));
    let _ = LIVE.try_with(|n| n.set(n.get() + bytes));
}

// SAFETY: everything is the system's allocator; counting touches thread-local cells without a
// destructor, so it neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return null_mut();
        }
        count(1, layout.size() as isize);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return null_mut();
        }
        count(1, layout.size() as isize);
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if is_refused(new_size) {
            return null_mut();
        }
        count(1, new_size as isize - layout.size() as isize);
        // SAFETY: the caller's.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Returns the number of allocations that this thread has made so far.
pub fn calls() -> u64 {
    CALLS.with(Cell::get)
}

/// Returns the number of bytes that this thread has allocated, minus those that it has freed.
pub fn live() -> isize {
    LIVE.with(Cell::get)
}
