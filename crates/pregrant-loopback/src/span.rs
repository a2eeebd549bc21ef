//! An address range in the form of libc's `iovec`, which may be sent between threads.
#![expect(unsafe_code, reason = "addresses that are sent between threads")]

use std::ffi::c_void;

/// An address range. It gives no access to the memory; the code that passes it to the kernel
/// vouches for that.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Span(libc::iovec);

// SAFETY: an address and a length, which nothing here follows.
unsafe impl Send for Span {}

impl Span {
    #[inline(always)]
    pub(super) fn new(start: *mut c_void, len: usize) -> Self {
        Self(libc::iovec { iov_base: start, iov_len: len })
    }

    #[inline(always)]
    pub(super) fn start(&self) -> *mut c_void {
        self.0.iov_base
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Returns the address after the last byte of the range.
    #[inline(always)]
    pub(super) fn end(&self) -> usize {
        self.0.iov_base as usize + self.0.iov_len
    }

    /// Extends the range by `by` bytes.
    #[inline(always)]
    pub(super) fn grow(&mut self, by: usize) {
        self.0.iov_len += by;
    }

    /// Returns the list in the form that system calls take.
    pub(super) fn list(spans: &[Self]) -> *const libc::iovec {
        spans.as_ptr().cast()
    }
}
