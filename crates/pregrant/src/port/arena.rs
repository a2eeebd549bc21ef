//! Room for one burst, filled frame by frame.
//!
//! ```text
//!   bytes    [ f0 |gap| f1 |gap| f2 ... free        ]   each begins on a cache line
//!   frames   at, len, offload of each                   -> Burst
//! ```
//! Invariant: the frames are within the bytes, and no peer can write to them.

use super::{ARENA_BYTES, BURST_FRAMES, Burst, FrameDesc, Loan, MAX_FRAME, Offload};
use crate::array::within;
use crate::burst_buffer::BurstBuffer;
use crate::error::PlatformError;
use crate::memory;
use crate::units::PAGE_SIZE;
use alloc::boxed::Box;

/// Room for one burst: filled frame by frame, read as a [`Burst`], cleared, filled again. Allocates
/// once.
///
/// A port that moves bursts instead of copying them puts memory of its own in the place of the
/// arena's ([`move_in`](Self::move_in)), until it takes it back ([`move_out`](Self::move_out)):
///
/// ```text
///   move_in(theirs)    frames are in theirs    ours waits
///   clear()            frames are in ours      theirs waits for move_out
/// ```
#[derive(Debug)]
pub struct Arena {
    pub(super) bytes: BurstBuffer,
    /// While bytes that were moved in are in use, the arena's own bytes; afterwards the bytes that
    /// were moved in, until [`move_out`](Self::move_out) returns them.
    other: Option<BurstBuffer>,
    pub(super) moved_in: bool,
    used: usize,
    frames: [FrameDesc; BURST_FRAMES],
    n: usize,
    /// The zero-copy payload of the frames.
    lent: Option<Loan>,
    cuts: [u16; BURST_FRAMES],
    has_cuts: bool,
    takes_lent: bool,
}

/// The fill level of an arena; see [`Arena::cursor`].
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    n: usize,
    used: usize,
}

impl Cursor {
    /// Whether another frame of any legal length fits.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.n < BURST_FRAMES && self.used + MAX_FRAME <= ARENA_BYTES
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Arena {
    /// An empty arena of [`ARENA_BYTES`] on the heap.
    pub fn new() -> Self {
        Self::of(BurstBuffer::lines(ARENA_BYTES).unwrap_or_else(|_| BurstBuffer::heap(ARENA_BYTES)))
    }

    /// An empty arena in `buffer`, which must have [`ARENA_BYTES`]; otherwise on the heap.
    pub fn over(buffer: BurstBuffer) -> Result<Self, PlatformError> {
        Ok(Self::of(if buffer.len() == ARENA_BYTES { buffer } else { BurstBuffer::lines(ARENA_BYTES)? }))
    }

    /// Like [`over`](Self::over), in a box. Not inlined: an arena is large, and lies on the stack
    /// before it is in its box.
    #[inline(never)]
    pub fn boxed(buffer: BurstBuffer) -> Result<Box<Self>, PlatformError> {
        let buffer = if buffer.len() == ARENA_BYTES { buffer } else { BurstBuffer::lines(ARENA_BYTES)? };
        memory::boxed(Self::of(buffer))
    }

    /// An arena without memory, until an arena with memory replaces it. It takes no frames,
    /// whatever [`has_room`](Self::has_room) returns. (Replacing a heap arena by another instead
    /// makes glibc place the next ones elsewhere, which cost 5 % of RX at 1496 bytes in `bench
    /// net`, copy and staging.)
    pub fn nowhere() -> Self {
        Self::of(BurstBuffer::heap(0))
    }

    /// Whether this is an arena without memory ([`nowhere`](Self::nowhere)).
    pub fn is_nowhere(&self) -> bool {
        self.bytes.is_empty()
    }

    // Not inlined: the caller would have it twice on its stack, which is short in a kernel.
    #[inline(never)]
    fn of(bytes: BurstBuffer) -> Self {
        Self {
            bytes,
            other: None,
            moved_in: false,
            used: 0,
            frames: [FrameDesc::default(); BURST_FRAMES],
            n: 0,
            lent: None,
            cuts: [0; BURST_FRAMES],
            has_cuts: false,
            takes_lent: false,
        }
    }

    /// Removes the frames. New ones are put into the arena's own bytes again.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.used = 0;
        self.n = 0;
        if self.moved_in {
            self.exchange();
        }
        if self.lent.is_some() {
            self.lent = None;
        }
        if self.has_cuts {
            (self.cuts, self.has_cuts) = ([0; BURST_FRAMES], false);
        }
    }

    #[cold]
    fn exchange(&mut self) {
        if let Some(other) = &mut self.other {
            core::mem::swap(&mut self.bytes, other);
            self.moved_in = !self.moved_in;
        }
    }

    /// Puts the placed frames into `bytes`, before they are filled. Error: `bytes` is too short.
    pub fn move_in(&mut self, bytes: Box<[u8]>) -> Result<(), Box<[u8]>> {
        if bytes.len() < self.used_bytes() {
            return Err(bytes);
        }
        if self.moved_in {
            self.exchange();
        }
        self.other = Some(bytes.into());
        self.exchange();
        Ok(())
    }

    /// Replaces the arena's bytes and frames by `bytes` and `frames`. Frames that exceed `bytes`
    /// are skipped.
    pub fn move_in_filled(&mut self, bytes: Box<[u8]>, frames: &[FrameDesc]) {
        self.clear();
        for desc in frames.iter().take(BURST_FRAMES) {
            let end = desc.at as usize + desc.len as usize;
            if end <= bytes.len() {
                self.frames[within::<BURST_FRAMES>(self.n)] = *desc;
                self.n += 1;
                self.used = self.used.max((end + 63) & !63);
            }
        }
        self.other = Some(bytes.into());
        self.exchange();
    }

    /// Removes the frames, and puts new ones into `bytes`, of [`ARENA_BYTES`], from now on. Returns
    /// what they replace: for a platform on which somebody still reads the frames there.
    pub fn replace(&mut self, bytes: BurstBuffer) -> BurstBuffer {
        debug_assert_eq!(bytes.len(), ARENA_BYTES);
        self.clear();
        core::mem::replace(&mut self.bytes, bytes)
    }

    /// Returns the bytes that were moved in, before or after a clear. Frames in them have no bytes
    /// then; only their lengths are still right.
    pub fn move_out(&mut self) -> Option<Box<[u8]>> {
        if self.moved_in {
            self.exchange();
            self.lent = None;
        }
        // Its own memory, which may not be from the heap, is in its place now.
        self.other.take()?.into_heap().ok()
    }

    /// Bytes that the frames use, including gaps.
    #[inline(always)]
    pub fn used_bytes(&self) -> usize {
        self.used.min(ARENA_BYTES)
    }

    /// Number of frames.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether the arena has no frame.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Whether another frame of any legal length fits.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.cursor().has_room()
    }

    /// Number of further frames of `len` bytes that fit.
    pub fn fits(&self, len: usize) -> usize {
        let room = self.bytes.len().saturating_sub(self.used);
        (BURST_FRAMES - self.n).min(room / len.max(1).next_multiple_of(64))
    }

    /// The fill level, to be kept in registers while many frames are placed.
    #[inline(always)]
    pub fn cursor(&self) -> Cursor {
        // No frame is added after those that were moved in: `bytes` was only as long as they
        // needed.
        Cursor { n: self.n, used: if self.moved_in { ARENA_BYTES } else { self.used } }
    }

    /// Places a frame as [`room`](Self::room) does, at `cursor`. The caller has checked that
    /// `cursor` [has room](Cursor::has_room).
    #[inline(always)]
    pub fn place(&mut self, cursor: &mut Cursor, len: usize, offload: Offload) {
        self.frames[within::<BURST_FRAMES>(cursor.n)] =
            FrameDesc { at: cursor.used as u32, len: len as u32, offload };
        cursor.n += 1;
        cursor.used = (cursor.used + len + 63) & !63;
    }

    /// Adds the frames that were placed up to `cursor`.
    #[inline(always)]
    pub fn keep(&mut self, cursor: Cursor) {
        debug_assert!(cursor.n <= BURST_FRAMES && cursor.used <= ARENA_BYTES + 63);
        self.n = cursor.n;
        self.used = cursor.used;
    }

    /// Appends a frame of `len` bytes and returns its bytes to be filled, which hold an older
    /// frame's data. The next frame starts on a new cache line. None: there is no room.
    #[inline(always)]
    pub fn room(&mut self, len: usize, offload: Offload) -> Option<&mut [u8]> {
        let at = self.used;
        if self.n == BURST_FRAMES {
            return None;
        }
        let bytes = self.bytes.get_mut(at..)?.get_mut(..len)?;
        self.frames[within::<BURST_FRAMES>(self.n)] = FrameDesc { at: at as u32, len: len as u32, offload };
        self.n += 1;
        self.used = (at + len + 63) & !63;
        Some(bytes)
    }

    /// Like [`room`](Self::room), but byte `k` of the frame is aligned to a page if there is room
    /// for that. If the frame is copied by whole pages from there on, no part of it crosses a page,
    /// which saves the platform a page lookup each.
    #[inline]
    pub fn free_with_page_at(&mut self, k: usize, len: usize, offload: Offload) -> Option<&mut [u8]> {
        let gap = self.gap_to_page(k);
        if self.used + gap + len <= self.bytes.len() {
            self.used += gap;
        }
        self.room(len, offload)
    }

    /// Bytes to skip so that byte `k` of the next frame is aligned to a page.
    #[inline(always)]
    fn gap_to_page(&self, k: usize) -> usize {
        let off = (self.bytes.as_ptr().addr() + self.used + k) % PAGE_SIZE;
        (PAGE_SIZE - off) % PAGE_SIZE
    }

    /// Memory for a frame whose length is not known yet: it is aligned to a page, and has room for
    /// the longest frame. None: there is no room. Then call [`came`](Self::came).
    pub fn free_to_read(&mut self) -> Option<&mut [u8]> {
        let at = self.used + self.gap_to_page(0);
        let has_frame = self.n < BURST_FRAMES && !self.moved_in;
        self.bytes.get_mut(at..at + MAX_FRAME).filter(|_| has_frame)
    }

    /// A frame of `len` bytes was read to [`free_to_read`](Self::free_to_read).
    pub fn came(&mut self, len: usize, offload: Offload) {
        let _ = self.free_with_page_at(0, len, offload);
    }

    /// Like [`room`](Self::room), for a frame that will be copied to a guest page by page: one
    /// longer than a page is aligned to a page.
    #[inline]
    pub fn free_by_pages(&mut self, len: usize, offload: Offload) -> Option<&mut [u8]> {
        if len > PAGE_SIZE { self.free_with_page_at(0, len, offload) } else { self.room(len, offload) }
    }

    /// Like [`room`](Self::room), for a frame that will be copied to a guest by grants: one of at
    /// most a page is within one, so that it takes one operation, and a longer one begins on one.
    #[inline(always)]
    pub fn free_for_grants(&mut self, len: usize, offload: Offload) -> Option<&mut [u8]> {
        let gap = self.gap_to_page(0);
        if gap < len && self.used + gap + len <= self.bytes.len() {
            self.used += gap;
        }
        self.room(len, offload)
    }

    /// Appends a copy of `frame`, [aligned for pages](Self::free_by_pages). False: there is no
    /// room.
    #[must_use]
    pub fn push(&mut self, frame: &[u8], offload: Offload) -> bool {
        match self.free_by_pages(frame.len(), offload) {
            Some(to) => {
                to.copy_from_slice(frame);
                true
            }
            None => false,
        }
    }

    /// Removes the newest frame.
    pub fn take_back(&mut self) {
        let newest = self.n.saturating_sub(1);
        if let Some(frame) = self.frames.get(newest).filter(|_| self.n > 0) {
            (self.n, self.used) = (newest, frame.at as usize);
        }
    }

    /// Marks frame `i` as dropped, so that readers skip it.
    pub fn drop_frame(&mut self, i: usize) {
        if let Some(frame) = self.frames.get_mut(i) {
            frame.len = 0;
        }
    }

    /// Changes the offloads of frame `i`.
    pub fn set_offload(&mut self, i: usize, offload: Offload) {
        if let Some(frame) = self.frames.get_mut(i) {
            frame.offload = offload;
        }
    }

    /// The position of frame `i`.
    #[inline(always)]
    pub fn desc(&self, i: usize) -> FrameDesc {
        self.frames[within::<BURST_FRAMES>(i)]
    }

    /// The `len` bytes at `at`. None: there are not that many.
    #[inline(always)]
    pub fn part_mut(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        self.bytes.get_mut(at..)?.get_mut(..len)
    }

    /// All bytes, for platforms that fill many frames in one call.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Asks for the first slot of frame `i`, if it needs several, to have `bytes` bytes:
    /// so that later slots, of a page each, are copied from one page of the frame's memory each. A
    /// grant copy reads no two.
    pub fn cut(&mut self, i: usize, bytes: u16) {
        if let Some(cut) = self.cuts.get_mut(i) {
            (*cut, self.has_cuts) = (bytes, true);
        }
    }

    /// The frames, to be read.
    #[inline(always)]
    pub fn burst(&self) -> Burst<'_> {
        let cuts = if self.has_cuts { self.cuts.get(..self.n).unwrap_or_default() } else { &[] };
        Burst { cuts, ..Burst::of(&self.bytes, self.frames.get(..self.n).unwrap_or_default()) }
    }
}

impl Arena {
    /// Sets whether frames that are moved in may have [zero-copy](Loan) payload: the arena's owner
    /// must only copy them to a guest, and must not read their payload otherwise.
    pub fn take_lent(&mut self, takes: bool) {
        self.takes_lent = takes;
    }

    /// The setting of [`take_lent`](Self::take_lent).
    #[inline(always)]
    pub fn takes_lent(&self) -> bool {
        self.takes_lent
    }

    /// Like [`move_in_filled`](Self::move_in_filled), with zero-copy payload `lent`. If this arena
    /// takes none, the payload is copied at once.
    pub fn move_in_lent(&mut self, bytes: Box<[u8]>, frames: &[FrameDesc], lent: Option<Loan>) {
        self.move_in_filled(bytes, frames);
        self.lent = lent;
        if !self.takes_lent {
            self.make_private(0);
        }
    }

    /// The frames of this arena, which are in its own bytes, have zero-copy payload `lent`. Only an
    /// arena that [takes it](Self::takes_lent) may get it.
    pub fn lend(&mut self, lent: Loan) {
        debug_assert!(self.takes_lent && !self.moved_in);
        self.lent = Some(lent);
    }

    /// The zero-copy payload of the arena's frames.
    #[inline(always)]
    pub fn lent(&self) -> Option<&Loan> {
        self.lent.as_ref()
    }

    /// Called when the frames were read: releases the payload.
    #[inline(always)]
    pub fn end_loan(&mut self) {
        self.lent = None;
    }

    /// Frame `first` and those after it wait for their receiver's slots: they are made
    /// [private](Self::make_private), unless they [may wait](Loan::may_wait) as they are.
    pub fn make_wait(&mut self, first: usize) {
        if !self.lent.as_ref().is_some_and(|lent| lent.may_wait()) {
            self.make_private(first);
        }
    }

    /// Copies the payload of frame `first` and of those after it, and releases all payload: of the
    /// frames before it only the heads remain.
    #[cold]
    pub fn make_private(&mut self, first: usize) {
        if let Some(lent) = self.lent.take()
            && let Some(frame) = self.frames.iter().take(self.n).nth(first)
        {
            lent.copy_out(frame.at as usize, &mut self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn an_arena_in_an_owners_buffer_gives_none_of_it_away() {
        let (buffer, _owner) = crate::burst_buffer::tests::of_an_owner(ARENA_BYTES);
        let base = buffer.as_ptr().addr();
        let mut arena = Arena::over(buffer).expect("memory");
        assert!(arena.move_out().is_none());
        arena.move_in(vec![9; 100].into_boxed_slice()).unwrap();
        assert_eq!(arena.move_out().as_deref(), Some(&[9; 100][..]));
        assert!(arena.move_out().is_none());
        assert!(arena.push(&[3; 60], Offload::default()));
        assert_eq!(arena.burst().bytes.as_ptr().addr(), base);
        // A frame that is read in place is aligned to a page, and otherwise like any other.
        arena.free_to_read().unwrap()[..3].copy_from_slice(b"abc");
        arena.came(3, Offload::default());
        let read = arena.burst().frame(1);
        assert!(read == b"abc" && read.as_ptr().addr().is_multiple_of(PAGE_SIZE));
        while let Some(room) = arena.free_to_read() {
            assert_eq!(room.len(), MAX_FRAME);
            arena.came(MAX_FRAME, Offload::default());
        }
        assert_eq!(arena.len(), 5, "three more of the longest");
        // A buffer that is too small is not used.
        assert_eq!(Arena::over(BurstBuffer::heap(100)).expect("memory").burst().bytes.len(), ARENA_BYTES);
    }

    #[test]
    fn a_short_frame_is_within_a_page_and_bytes_can_be_exchanged() {
        let mut arena = Arena::new();
        let page_of = |bytes: &[u8], at: usize| (bytes.as_ptr().addr() + at) / PAGE_SIZE;
        for len in (1..=BURST_FRAMES).map(|k| k * 997 % PAGE_SIZE + 1) {
            arena.free_for_grants(len, Offload::default()).unwrap().fill(len as u8);
            let (burst, at) = (arena.burst(), arena.desc(arena.len() - 1).at as usize);
            assert_eq!(page_of(burst.bytes, at), page_of(burst.bytes, at + len - 1));
        }
        assert!(arena.free_for_grants(1, Offload::default()).is_none(), "a burst has no more frames");
        let was = arena.burst().bytes.as_ptr();
        let old = arena.replace(BurstBuffer::lines(ARENA_BYTES).expect("memory"));
        assert!(arena.is_empty() && old.as_ptr() == was && arena.burst().bytes.as_ptr() != was);
        // A frame of more than a page begins on one.
        assert!(arena.free_for_grants(100, Offload::default()).is_some());
        assert!(arena.free_for_grants(MAX_FRAME, Offload::default()).is_some());
        assert_eq!(
            page_of(arena.burst().bytes, arena.desc(1).at as usize) * PAGE_SIZE,
            arena.burst().frame(1).as_ptr().addr()
        );
    }
}
