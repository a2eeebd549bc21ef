//! The private memory of bursts: from the heap, or pages that a platform provides.
//!
//! ```text
//!   BurstBuffer::heap(n)              Box<[u8]>
//!   BurstBuffer::lines(n)             a part of one, from the beginning of a cache line
//!   PeerMem::burst_buffer(n) --over--> pages that the platform knows by another name than their address, which spares it a lookup for each copy
//! ```
//! Invariant: this value owns the bytes, as a box does, until it is dropped; then their owner is
//! dropped. No peer can write to them.
#![expect(unsafe_code, reason = "private memory with an owner, which a platform gives for bursts")]

use crate::error::PlatformError;
use crate::memory;
use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// The memory of a burst.
pub struct BurstBuffer {
    /// The bytes, valid as long as this value exists; no borrow of them lasts longer. They are in a
    /// `MaybeUninit`, so that they may be freed while this value is a function's argument; they are
    /// always initialised.
    bytes: MaybeUninit<&'static mut [u8]>,
    /// The owner of the bytes. None: they are on the heap.
    owner: Option<Box<dyn Send + Sync>>,
}

impl BurstBuffer {
    /// Allocates `len` zeroed bytes on the heap.
    pub fn heap(len: usize) -> Self {
        vec![0; len].into_boxed_slice().into()
    }

    /// Allocates `len` zeroed bytes on the heap, aligned to a cache line. malloc would align them
    /// to 16 bytes, and then each block of 64 bytes that is copied crosses two lines.
    #[inline(never)]
    pub fn lines(len: usize) -> Result<Self, PlatformError> {
        let heap = Heap(NonNull::from(Box::leak(memory::list(0, len + LINE - 1)?)));
        let base: NonNull<u8> = heap.0.cast();
        let lead = base.as_ptr().align_offset(LINE).min(LINE - 1);
        // SAFETY: `lead + len` is at most the box's length. No one else knows the box; `Heap` frees
        // it when it is dropped.
        Ok(unsafe { Self::over(base.add(lead), len, memory::boxed(heap)?) })
    }

    /// Creates a buffer of the `len` bytes at `base`, which `owner` owns.
    ///
    /// # Safety
    ///
    /// The bytes are mapped, initialised, readable and writable, and no one else reads or writes
    /// them, until `owner` is dropped; only a kernel or hypervisor may, during a call by which this
    /// process passes them to it.
    pub unsafe fn over(base: NonNull<u8>, len: usize, owner: Box<dyn Send + Sync>) -> Self {
        // SAFETY: as the caller says, and this value has the owner.
        let bytes = unsafe { core::slice::from_raw_parts_mut(base.as_ptr(), len) };
        Self { bytes: MaybeUninit::new(bytes), owner: Some(owner) }
    }

    /// Returns the memory if it is on the heap.
    ///
    /// # Errors
    ///
    /// The memory is not on the heap: returns the buffer itself.
    pub fn into_heap(self) -> Result<Box<[u8]>, Self> {
        if self.owner.is_some() {
            return Err(self);
        }
        let mut buffer = ManuallyDrop::new(self);
        // SAFETY: initialised always; without an owner it is made of a box alone, and this value's
        // drop, which would free it, does not come.
        Ok(unsafe { Box::from_raw(&raw mut **buffer.bytes.assume_init_mut()) })
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// An allocation on the heap, of which a buffer uses a part.
struct Heap(NonNull<[u8]>);

// SAFETY: it is a box that is touched by its buffer alone, which has `&mut` for that.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: made of a box, and freed here alone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl From<Box<[u8]>> for BurstBuffer {
    fn from(bytes: Box<[u8]>) -> Self {
        Self { bytes: MaybeUninit::new(Box::leak(bytes)), owner: None }
    }
}

impl Deref for BurstBuffer {
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised always.
        unsafe { self.bytes.assume_init_ref() }
    }
}

impl DerefMut for BurstBuffer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: initialised always.
        unsafe { self.bytes.assume_init_mut() }
    }
}

impl Drop for BurstBuffer {
    fn drop(&mut self) {
        if self.owner.is_none() {
            // SAFETY: initialised always; made of a box, and freed here alone.
            drop(unsafe { Box::from_raw(&raw mut **self.bytes.assume_init_mut()) });
        }
    }
}

impl fmt::Debug for BurstBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_heap = self.owner.is_none();
        f.debug_struct("BurstBuffer").field("bytes", &self.len()).field("heap", &is_heap).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::sync::Arc;

    /// An owner of a buffer's memory.
    struct Owner(#[allow(dead_code)] Heap, #[allow(dead_code)] Arc<()>);

    /// A buffer of `len` bytes with an owner. The returned counter shows when the owner is dropped.
    pub(crate) fn of_an_owner(len: usize) -> (BurstBuffer, Arc<()>) {
        let there = Arc::new(());
        let bytes = NonNull::from(Box::leak(vec![3; len].into_boxed_slice()));
        let owner = Owner(Heap(bytes), Arc::clone(&there));
        // SAFETY: no one touches the bytes but by the buffer, until the owner frees them.
        (unsafe { BurstBuffer::over(bytes.cast(), len, Box::new(owner)) }, there)
    }

    #[test]
    fn a_buffer_of_the_heap_is_the_box_that_it_was() {
        let mut buffer = BurstBuffer::heap(100);
        assert!(buffer.len() == 100 && buffer.iter().all(|b| *b == 0));
        buffer[7] = 1;
        let bytes = buffer.into_heap().unwrap();
        assert_eq!((bytes.len(), bytes[7]), (100, 1));
        assert_eq!(&*BurstBuffer::from(bytes.clone()), &*bytes);
        assert!(BurstBuffer::heap(0).is_empty());
    }

    #[test]
    fn lines_begin_where_a_cache_line_does() {
        for len in [0, 1, 64, 100_000] {
            let mut buffer = BurstBuffer::lines(len).expect("memory");
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % LINE), (len, 0));
            assert!(buffer.iter().all(|b| *b == 0));
            buffer.fill(1);
            assert!(buffer.into_heap().is_err());
        }
    }

    #[test]
    fn an_owner_is_dropped_with_its_buffer() {
        let (mut buffer, there) = of_an_owner(64);
        buffer[0] = 4;
        assert_eq!(buffer[..2], [4, 3]);
        let buffer = buffer.into_heap().unwrap_err();
        assert_eq!(Arc::strong_count(&there), 2);
        drop(buffer);
        assert_eq!(Arc::strong_count(&there), 1);
    }
}
