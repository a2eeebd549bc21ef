//! An address range as the kernel takes it: libc's `iovec`, which no thread owns.

use std::ffi::c_void;

/// A range. It says where something is and gives no access to it: who hands it to the kernel
/// answers for that.
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

    /// Its first address.
    #[inline(always)]
    pub(super) fn start(&self) -> *mut c_void {
        self.0.iov_base
    }

    /// Bytes.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// The address behind its last byte.
    #[inline(always)]
    pub(super) fn end(&self) -> usize {
        self.0.iov_base as usize + self.0.iov_len
    }

    /// More bytes at its end.
    #[inline(always)]
    pub(super) fn grow(&mut self, by: usize) {
        self.0.iov_len += by;
    }

    /// As a system call takes a list of them.
    pub(super) fn list(spans: &[Self]) -> *const libc::iovec {
        spans.as_ptr().cast()
    }
}
