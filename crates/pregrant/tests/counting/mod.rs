//! An allocator that counts: calls for memory, and bytes in use. Tests with it are a binary of
//! their own, since the allocator is the whole process's.
#![allow(dead_code, reason = "each test uses its part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// Counts each thread's calls for memory, and the bytes that it holds.
struct Counting;

fn count(calls: u64, bytes: isize) {
    // A thread that is ending has no counters any more, and no test is on it.
    let _ = CALLS.try_with(|n| n.set(n.get() + calls));
    let _ = LIVE.try_with(|n| n.set(n.get() + bytes));
}

// SAFETY: everything is the system's allocator; counting touches thread-local cells without a
// destructor, so it neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
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
        count(1, new_size as isize - layout.size() as isize);
        // SAFETY: the caller's.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Calls for memory of this thread until now.
pub fn calls() -> u64 {
    CALLS.with(Cell::get)
}

/// Bytes that this thread asked for and did not give back.
pub fn live() -> isize {
    LIVE.with(Cell::get)
}
