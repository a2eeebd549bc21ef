//! The allocator: `heap.c`. It never refuses what takes at most a page, and may refuse more, for
//! which the crate therefore asks by functions that can fail. The data path allocates nothing: C
//! counts allocations in atomic context and warns of the first (`atomic_allocations` of `ethtool
//! -S`; the self-test fails unless it is 0).
#![allow(unsafe_code)]

use crate::shim;
use core::alloc::{GlobalAlloc, Layout};

struct KernelHeap;

// SAFETY: kmalloc and vmalloc keep an allocator's promises, and align as they are asked to.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        // SAFETY: any size and alignment is a question that C may answer with null.
        unsafe { shim::pk_alloc(l.size(), l.align(), false) }
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { shim::pk_alloc(l.size(), l.align(), true) }
    }
    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: the caller's: it is one of ours, and no one uses it any more.
        unsafe { shim::pk_free(at) }
    }
}

#[global_allocator]
static HEAP: KernelHeap = KernelHeap;
