//! The only access to memory that a peer can write.
//!
//! ```text
//!   private memory  <-- copy_out --   shared pages   <-- copy_in --  private memory
//!   (&[u8], structs)                  (SharedBytes: an address and a length, never a &[u8])
//! ```
//!
//! Invariants: no `&` or `&mut` to shared memory is ever formed. Words are relaxed atomics; payload
//! is copied once by [`copy_from_shared`] and [`copy_to_shared`] (a plain copy in release builds,
//! relaxed bytes under Miri). Every access is checked against the length, and a store also against
//! [`is_writable`](SharedBytes::is_writable): safe code never writes to pages that are mapped
//! read-only, which would raise SIGSEGV. What a peer may do: change any byte at any time. So
//! whatever was copied is validated as a copy, and nothing is read twice. A [`Piece`] may also be
//! passed to the kernel by address, which then copies for us.
#![expect(unsafe_code, reason = "the only access to memory that a peer can write")]

use crate::units::PAGE_SIZE;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

/// Memory that a peer may write: an address range that stays put while the value lives.
///
/// # Safety
/// For the implementor: `base()` is page aligned and `base()..base() + len()` is mapped, readable
/// (and writable where [`is_writable`](Self::is_writable) says so) from construction until the
/// value is dropped, and moving the value does not move the range. The bytes may change at any
/// time; no reference to them exists anywhere.
pub unsafe trait SharedBytes {
    /// Start of the range.
    fn base(&self) -> NonNull<u8>;
    /// Length of the range in bytes, a multiple of the page size.
    fn len(&self) -> usize;
    /// Whether the range is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the range may be written, which never changes. If not, stores are refused, like
    /// those past the end.
    #[inline(always)]
    fn is_writable(&self) -> bool {
        true
    }
    /// Called when a store was refused because the range is not writable. That is a bug in this
    /// program, which an implementor may log.
    #[cold]
    fn store_refused(&self) {}

    /// Copies `dst.len()` bytes from offset `at`. False: they exceed the range, and nothing was
    /// copied.
    #[inline(always)]
    #[must_use]
    fn copy_out(&self, at: usize, dst: &mut [u8]) -> bool {
        if at > self.len() || dst.len() > self.len() - at {
            return false;
        }
        // SAFETY: `at + dst.len() <= self.len()`, so the source is in the range that the
        // implementor vouches for; `dst` is private memory, so the two do not overlap.
        unsafe { copy_from_shared(self.base().as_ptr().add(at), dst.as_mut_ptr(), dst.len()) };
        true
    }

    /// Copies `src` to offset `at`. False: `src` exceeds the range, or the range is not writable;
    /// nothing was copied.
    #[inline(always)]
    #[must_use]
    fn copy_in(&self, at: usize, src: &[u8]) -> bool {
        if at > self.len() || src.len() > self.len() - at || !self.takes_stores() {
            return false;
        }
        // SAFETY: as in `copy_out`, with the directions swapped.
        unsafe { copy_to_shared(src.as_ptr(), self.base().as_ptr().add(at), src.len()) };
        true
    }

    /// Copies all of `from` to offset `at`. False: it exceeds the range, the two overlap, or the
    /// range is not writable; nothing was copied.
    #[inline(always)]
    #[must_use]
    fn copy_piece_in(&self, at: usize, from: Piece<'_>) -> bool {
        if at > self.len() || from.len > self.len() - at || !self.takes_stores() {
            return false;
        }
        // SAFETY: `at <= self.len()`, so the address is inside the range or one past it.
        let to = unsafe { self.base().add(at) };
        let apart = to.addr().get().abs_diff(from.base.addr().get()) >= from.len;
        if apart {
            // SAFETY: the source is in the range that the piece was borrowed from, the
            // destination in this one (checked), and they do not overlap (checked).
            unsafe { copy_across(from.base.as_ptr(), to.as_ptr(), from.len) };
        }
        apart
    }

    /// Reads the aligned 32-bit word at offset `at` once. None: it is not aligned, or exceeds the
    /// range.
    #[inline(always)]
    fn load_u32(&self, at: usize) -> Option<u32> {
        // SAFETY: what is there is an atomic word of the range, and is read alone.
        word_at(self, at).map(|w| unsafe { w.as_ref() }.load(Ordering::Relaxed))
    }

    /// Writes the aligned 32-bit word at offset `at`. False: it is not aligned, exceeds the range,
    /// or the range is not writable.
    #[inline(always)]
    #[must_use]
    fn store_u32(&self, at: usize, value: u32) -> bool {
        self.word(at).map(|w| w.store(value, Ordering::Relaxed)).is_some()
    }

    /// The aligned word at offset `at` as an atomic that can be written. None: it is not aligned,
    /// exceeds the range, or the range is not writable.
    #[inline(always)]
    fn word(&self, at: usize) -> Option<&AtomicU32> {
        let word = word_at(self, at).filter(|_| self.takes_stores())?;
        // SAFETY: the word is in the range, for as long as this is borrowed, and an atomic may be
        // shared with a writer that we do not control.
        Some(unsafe { word.as_ref() })
    }

    /// Whether the range is writable; if not, reports the refused store.
    #[doc(hidden)]
    #[inline(always)]
    fn takes_stores(&self) -> bool {
        let takes = self.is_writable();
        if !takes {
            self.store_refused();
        }
        takes
    }

    /// Prefetches the cache lines of `at..at + len` for writing.
    #[inline(always)]
    fn prefetch_write(&self, at: usize, len: usize) {
        let mut line = at;
        while line < at + len && line < self.len() {
            // SAFETY: inside the range; a prefetch reads and writes nothing.
            prefetchw(unsafe { self.base().as_ptr().add(line) });
            line += 64;
        }
    }

    /// Prefetches the cache lines of `at..at + len` for reading.
    #[inline(always)]
    fn prefetch_read(&self, at: usize, len: usize) {
        let mut line = at;
        while line < at + len && line < self.len() {
            // SAFETY: inside the range; a prefetch reads and writes nothing.
            prefetch(unsafe { self.base().as_ptr().add(line) });
            line += 64;
        }
    }

    /// The `len` bytes from offset `at` on. None: they exceed the range.
    #[inline(always)]
    fn piece(&self, at: usize, len: usize) -> Option<Piece<'_>> {
        if at > self.len() || len > self.len() - at {
            return None;
        }
        // SAFETY: `at <= self.len()`, so the address is inside the range or one past it.
        let base = unsafe { self.base().add(at) };
        Some(Piece { base, len, of: PhantomData })
    }

    /// Like [`piece`](Self::piece), for writing. None: the bytes exceed the range, or it is not
    /// writable.
    #[inline(always)]
    fn piece_mut(&self, at: usize, len: usize) -> Option<PieceMut<'_>> {
        if at > self.len() || len > self.len() - at || !self.takes_stores() {
            return None;
        }
        // SAFETY: as in `piece`.
        let base = unsafe { self.base().add(at) };
        Some(PieceMut { base, len, of: PhantomData })
    }

    /// Zeroes the whole range if it is writable: a page is zeroed before it is shared.
    fn zero(&self) {
        // By a copy, since a loop over words took half of the tests' time.
        static ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        if cfg!(miri) {
            // Under Miri payload is bytes and rings are words, and Miri requires one width of
            // atomics.
            let _ = (0..self.len()).step_by(4).all(|at| self.store_u32(at, 0));
            return;
        }
        let mut at = 0;
        while at < self.len()
            && let Some(page) = self.piece_mut(at, PAGE_SIZE.min(self.len() - at))
        {
            page.copy_in(&ZEROES);
            at += PAGE_SIZE;
        }
    }
}

/// The aligned word at offset `at` of a range.
#[inline(always)]
fn word_at<S: SharedBytes + ?Sized>(of: &S, at: usize) -> Option<NonNull<AtomicU32>> {
    if !at.is_multiple_of(4) || at >= of.len() {
        return None;
    }
    // SAFETY: aligned (the base is page aligned and `at` a multiple of 4, as is the length), and
    // inside the range.
    Some(unsafe { of.base().add(at) }.cast())
}

/// Some bytes of shared memory, valid while the owner of the mapping is borrowed. Made by
/// [`SharedBytes::piece`]. Its layout is an address and a length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    base: NonNull<u8>,
    len: usize,
    of: PhantomData<&'a ()>,
}

// SAFETY: an address and a length; who reads there copies bytes that a peer may write at the same
// time, on whichever thread.
unsafe impl Send for Piece<'_> {}
// SAFETY: as above.
unsafe impl Sync for Piece<'_> {}

impl Piece<'_> {
    /// Number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes to `dst`, as many as both have. Returns how many. A second read may differ.
    #[inline(always)]
    pub fn copy_out(&self, dst: &mut [u8]) -> usize {
        let n = self.len.min(dst.len());
        // SAFETY: `n` bytes from `base` are in the range of the `SharedBytes` that this is borrowed
        // from; `dst` is private.
        unsafe { copy_from_shared(self.base.as_ptr(), dst.as_mut_ptr(), n) };
        n
    }

    /// Returns the `len` bytes after the first `from`; fewer if the fragment is shorter.
    #[inline(always)]
    #[must_use]
    pub fn part(self, from: usize, len: usize) -> Self {
        let from = from.min(self.len);
        // SAFETY: `from <= len`, so the address is inside the piece or one past it.
        let base = unsafe { self.base.add(from) };
        Self { base, len: len.min(self.len - from), of: PhantomData }
    }

    /// Returns a fragment of the same bytes that may outlive the borrow of their range.
    ///
    /// # Safety
    ///
    /// The bytes are read only as long as their range stays mapped.
    #[must_use]
    pub unsafe fn outliving<'b>(self) -> Piece<'b> {
        Piece { base: self.base, len: self.len, of: PhantomData }
    }

    /// The address and length, for a request to the kernel that reads the bytes for us. No
    /// reference to them is ever formed.
    #[inline(always)]
    pub fn as_raw(&self) -> (*const u8, usize) {
        (self.base.as_ptr(), self.len)
    }
}

impl<'a> From<&'a mut [u8]> for Piece<'a> {
    /// Wraps private bytes for a reader that also takes shared ones.
    #[inline(always)]
    fn from(bytes: &'a mut [u8]) -> Self {
        // They are borrowed as long as the piece exists, so no one else writes to them.
        Self { len: bytes.len(), base: NonNull::from(bytes).cast(), of: PhantomData }
    }
}

/// Some writable bytes of shared memory, valid while the owner of the mapping is borrowed. Made by
/// [`SharedBytes::piece_mut`].
#[derive(Debug)]
pub struct PieceMut<'a> {
    base: NonNull<u8>,
    len: usize,
    of: PhantomData<&'a ()>,
}

impl PieceMut<'_> {
    /// Number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `n` bytes and the rest; all bytes and none, if there are fewer.
    #[inline(always)]
    pub fn split_at(self, n: usize) -> (Self, Self) {
        let n = n.min(self.len);
        // SAFETY: `n <= len`, so the address is inside the piece or one past it.
        let rest = unsafe { self.base.add(n) };
        let rest = Self { base: rest, len: self.len - n, of: PhantomData };
        (Self { len: n, ..self }, rest)
    }

    /// Copies the bytes to `dst`, as many as both have. Returns how many. A second read may differ.
    pub fn copy_out(&self, dst: &mut [u8]) -> usize {
        let n = self.len.min(dst.len());
        // SAFETY: `n` bytes from `base` are in the range that this is borrowed from; `dst` is
        // private.
        unsafe { copy_from_shared(self.base.as_ptr(), dst.as_mut_ptr(), n) };
        n
    }

    /// Copies `src` to the start, as much as fits.
    #[inline(always)]
    pub fn copy_in(&self, src: &[u8]) {
        let n = self.len.min(src.len());
        // SAFETY: `n` bytes from `base` are in the range of the `SharedBytes` that this is borrowed
        // from, which may be written (checked there); `src` is private.
        unsafe { copy_to_shared(src.as_ptr(), self.base.as_ptr(), n) };
    }

    /// The address and length, for a request to the kernel that writes the bytes for us. No
    /// reference to them is ever formed.
    #[inline(always)]
    pub fn as_raw(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), self.len)
    }
}

impl<'a> From<&'a mut [u8]> for PieceMut<'a> {
    /// Wraps private bytes for a writer that also takes shared ones.
    fn from(bytes: &'a mut [u8]) -> Self {
        // They are borrowed as long as the piece exists, so no one else accesses them.
        Self { len: bytes.len(), base: NonNull::from(bytes).cast(), of: PhantomData }
    }
}

// SAFETY: what is in the box vouches for its range, which stays where it is when the box moves.
unsafe impl<S: SharedBytes + ?Sized> SharedBytes for alloc::boxed::Box<S> {
    fn base(&self) -> NonNull<u8> {
        (**self).base()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
    fn is_writable(&self) -> bool {
        (**self).is_writable()
    }
    fn store_refused(&self) {
        (**self).store_refused();
    }
}

// SAFETY: what there is vouches for its range; nothing is a range of no bytes, at an address that
// is aligned as a page is and that no one reads. Moving either moves no range.
unsafe impl<S: SharedBytes> SharedBytes for Option<S> {
    fn base(&self) -> NonNull<u8> {
        self.as_ref().map_or(NonNull::<AlignedAsPage>::dangling().cast(), S::base)
    }
    fn len(&self) -> usize {
        self.as_ref().map_or(0, S::len)
    }
    fn is_writable(&self) -> bool {
        self.as_ref().is_none_or(S::is_writable)
    }
    fn store_refused(&self) {
        if let Some(range) = self {
            range.store_refused();
        }
    }
}

/// Gives the address of an empty range.
#[repr(align(4096))]
struct AlignedAsPage;

/// A real `prefetchw`. The intrinsics of Rust and C silently emit `prefetcht0` on the baseline
/// target, which made filling slots slower than without any prefetch.
#[inline(always)]
pub fn prefetchw(p: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no architectural effect, whatever the address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = p;
}

/// A prefetch for reading.
#[inline(always)]
pub fn prefetch(p: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse", not(miri)))]
    // SAFETY: a prefetch has no architectural effect, whatever the address; SSE is part of the
    // target.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    // A kernel, where the intrinsic is a call: every x86-64 has the instruction, which needs no
    // vector register.
    #[cfg(all(target_arch = "x86_64", not(target_feature = "sse"), not(miri)))]
    // SAFETY: a prefetch has no architectural effect, whatever the address.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = p;
}

/// Copies `len` bytes from shared memory into private memory.
///
/// # Safety
/// `src..src + len` is mapped shared memory, `dst..dst + len` is private, writable memory.
#[inline(always)]
pub unsafe fn copy_from_shared(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(not(miri))]
    // SAFETY: the caller's. The peer may race; the copy's value is then any mixture, which the
    // validation that follows must cope with.
    unsafe {
        copy_short(src, dst, len)
    };
    #[cfg(miri)]
    for i in 0..len {
        // SAFETY: the caller's.
        unsafe { *dst.add(i) = (*src.add(i).cast::<core::sync::atomic::AtomicU8>()).load(Ordering::Relaxed) };
    }
}

/// Copies `len` bytes from private memory into shared memory. Never rounded up: that would leak
/// private bytes.
///
/// # Safety
/// `dst..dst + len` is mapped, writable shared memory, `src..src + len` is private memory.
#[inline(always)]
pub unsafe fn copy_to_shared(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(not(miri))]
    // SAFETY: the caller's.
    unsafe {
        copy_short(src, dst, len)
    };
    #[cfg(miri)]
    for i in 0..len {
        // SAFETY: the caller's.
        unsafe { (*dst.add(i).cast::<core::sync::atomic::AtomicU8>()).store(*src.add(i), Ordering::Relaxed) };
    }
}

/// Copies `len` bytes from shared memory into other shared memory.
///
/// # Safety
/// `src..src + len` and `dst..dst + len` are mapped shared memory, the second is writable, and they
/// do not overlap.
#[inline(always)]
unsafe fn copy_across(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(not(miri))]
    // SAFETY: the caller's. A peer may race with either: then what is written is any mixture, as if
    // the peer had written it.
    unsafe {
        copy_short(src, dst, len)
    };
    #[cfg(miri)]
    for i in 0..len {
        // SAFETY: the caller's.
        unsafe {
            let byte = (*src.add(i).cast::<core::sync::atomic::AtomicU8>()).load(Ordering::Relaxed);
            (*dst.add(i).cast::<core::sync::atomic::AtomicU8>()).store(byte, Ordering::Relaxed);
        }
    }
}

/// A copy whose common short lengths need no library call: two overlapping blocks cover 16 to 128
/// bytes.
///
/// # Safety
/// As for `ptr::copy_nonoverlapping`.
#[cfg(not(miri))]
#[inline(always)]
unsafe fn copy_short(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: every block is inside `0..len` of both sides: the last one of each arm starts at
    // `len` less its size.
    unsafe {
        match len {
            64 => block64(src, dst),
            65..=128 => {
                block64(src, dst);
                block64(src.add(len - 64), dst.add(len - 64));
            }
            32..=63 => {
                block32(src, dst);
                block32(src.add(len - 32), dst.add(len - 32));
            }
            16..=31 => {
                block16(src, dst);
                block16(src.add(len - 16), dst.add(len - 16));
            }
            _ => core::ptr::copy_nonoverlapping(src, dst, len),
        }
    }
}

/// Copies 16 bytes, in one register if the machine has such (an array of words would travel by way
/// of the stack).
///
/// # Safety
///
/// As for `ptr::copy_nonoverlapping` of 16 bytes.
#[cfg(not(miri))]
#[inline(always)]
unsafe fn block16(src: *const u8, dst: *mut u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    // SAFETY: the caller's; SSE2 is part of the target.
    unsafe {
        use core::arch::x86_64::{_mm_loadu_si128, _mm_storeu_si128};
        _mm_storeu_si128(dst.cast(), _mm_loadu_si128(src.cast()));
    }
    // A kernel, where the intrinsic is a call; two words of 64 bits there.
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    // SAFETY: the caller's.
    unsafe {
        dst.cast::<u128>().write_unaligned(src.cast::<u128>().read_unaligned());
    }
}

/// Copies 32 bytes as two blocks of 16.
///
/// # Safety
///
/// As for `ptr::copy_nonoverlapping` of 32 bytes.
#[cfg(not(miri))]
#[inline(always)]
unsafe fn block32(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's, for both halves.
    unsafe {
        block16(src, dst);
        block16(src.add(16), dst.add(16));
    }
}

/// Copies 64 bytes as two blocks of 32.
///
/// # Safety
///
/// As for `ptr::copy_nonoverlapping` of 64 bytes.
#[cfg(not(miri))]
#[inline(always)]
unsafe fn block64(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's, for both halves.
    unsafe {
        block32(src, dst);
        block32(src.add(32), dst.add(32));
    }
}
