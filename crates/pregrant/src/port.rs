//! The remote side of a netback: frames in bursts.
//!
//! ```text
//!   guest --TX--> net::back --tx_burst(Burst)-----> any port: private bytes
//!                          \--tx_zero_copy(ZeroCopyBurst)--> port (tap, sink): private heads, payload where the guest
//!                                                   put it; long frames of a path that keeps pages
//!   guest <--RX-- net::back <--rx_burst(Arena)---- port
//! ```
//!
//! TX and RX are from the guest's view here too: `tx_burst` takes what a guest sent. A [`Burst`] is
//! one area of bytes with up to [`BURST_FRAMES`] frames, so that a batch stays in the cache. The
//! bytes are private copies that no peer can change. Ports are called once per burst, through
//! `dyn`.
//!
//! A port that asks for [`Payload::ZeroCopy`] may get a [`ZeroCopyBurst`]: the first bytes of each
//! frame, with all headers that any reader needs, are a private copy; the rest is
//! [fragments](Piece) of memory that its guest can still write. The port copies them, passes them
//! on, or never reads them, in which case they are not even mapped. A port that keeps a frame
//! beyond the call holds it ([`ZeroCopyBurst::hold`]) and later completes it through its
//! [`Completions`].
//!
//! What a guest may do: change zero-copy payload at any time, so two readers, or two reads, may see
//! different bytes. It cannot change a head, a length or an offload.

mod loan;
mod offload;
mod owner;
mod sink;
mod source;

use crate::array::within;
use crate::burst_buffer::BurstBuffer;
use crate::units::PAGE_SIZE;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

pub use crate::shm::{Piece, PieceMut};
pub use crate::wire::netif::MAX_FRAME;
pub use loan::{Lender, LentPiece, Loan};
pub use offload::{Offload, Offloads};
pub use owner::{PortOwner, QueueWaker};
pub use sink::{LentSink, Sink};
pub use source::{BurstFrame, Frames, Source};

/// Largest number of frames in a burst.
pub const BURST_FRAMES: usize = 64;
/// Bytes in an arena: room for four frames of the largest size.
pub const ARENA_BYTES: usize = 256 * 1024;
/// A batch of fewer bytes gets no memory of its own: [`FramePort::tx_room`] is not called for it.
pub const BURST_BYTES_MIN: usize = 2048;

/// The position of a frame in its burst's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameDesc {
    /// Offset of the first byte.
    pub at: u32,
    /// Number of bytes with headers, without FCS. 0: the frame was dropped, and must be skipped.
    pub len: u32,
    /// The checksum and segmentation work left.
    pub offload: Offload,
}

/// Frames to be read, in one area of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The frames, at most [`BURST_FRAMES`].
    pub frames: &'a [FrameDesc],
    /// Fragments that belong into the area but are elsewhere, by their offsets. Only code that
    /// copies frames to a guest ([`copy_to`](Self::copy_to)) ever gets a burst with any.
    pub lent: &'a [LentPiece<'a>],
    /// For each frame the number of bytes of its first slot on a ring, if that is to be less than a
    /// page ([`Arena::cut`]); 0: as many as there is room for. Empty: no frame is cut.
    pub cuts: &'a [u16],
}

impl<'a> Burst<'a> {
    /// A burst whose bytes are all private.
    #[inline(always)]
    pub fn of(bytes: &'a [u8], frames: &'a [FrameDesc]) -> Self {
        Self { bytes, frames, lent: &[], cuts: &[] }
    }

    /// The frames with their bytes, without those that were dropped. A frame that exceeds the area
    /// is skipped.
    #[inline(always)]
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], Offload)> + 'a {
        let bytes = self.bytes;
        self.frames.iter().filter(|d| d.len != 0).filter_map(move |d| {
            let at = d.at as usize;
            Some((bytes.get(at..at + d.len as usize)?, d.offload))
        })
    }

    /// The bytes of frame `i`; empty if it was dropped.
    #[inline(always)]
    pub fn frame(&self, i: usize) -> &'a [u8] {
        let part = |d: &FrameDesc| self.bytes.get(d.at as usize..d.at as usize + d.len as usize);
        self.frames.get(i).and_then(part).unwrap_or_default()
    }

    /// Length of frame `i` in bytes; 0 if it was dropped.
    #[inline(always)]
    pub fn len_of(&self, i: usize) -> u32 {
        self.frames.get(i).map_or(0, |d| d.len)
    }

    /// The burst without its first `n` frames.
    pub fn skip(&self, n: usize) -> Burst<'a> {
        let (frames, cuts) = (self.frames.get(n..), self.cuts.get(n..));
        Burst { frames: frames.unwrap_or_default(), cuts: cuts.unwrap_or_default(), ..*self }
    }
}

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
    bytes: BurstBuffer,
    /// While bytes that were moved in are in use, the arena's own bytes; afterwards the bytes that
    /// were moved in, until [`move_out`](Self::move_out) returns them.
    other: Option<BurstBuffer>,
    moved_in: bool,
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
        Self::of(BurstBuffer::lines(ARENA_BYTES))
    }

    /// An empty arena in `buffer`, which must have [`ARENA_BYTES`]; otherwise on the heap.
    pub fn over(buffer: BurstBuffer) -> Self {
        Self::of(if buffer.len() == ARENA_BYTES { buffer } else { BurstBuffer::lines(ARENA_BYTES) })
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

    /// Like [`room`](Self::room), for a frame that will be copied to a guest by grants: one of at most
    /// a page is within one, so that it takes one operation.
    #[inline(always)]
    pub fn free_within_page(&mut self, len: usize, offload: Offload) -> Option<&mut [u8]> {
        let gap = self.gap_to_page(0);
        if gap < len && len <= PAGE_SIZE && self.used + gap + len <= self.bytes.len() {
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

/// How a port wants the payload of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Payload {
    /// The port gets a private copy of the frame.
    #[default]
    Private,
    /// Zero-copy: the port itself copies, passes on or ignores it; see [`FramePort::tx_zero_copy`].
    ZeroCopy,
    /// Zero-copy, also for long frames on a path whose pages are mapped anyway: the port passes
    /// their addresses to the kernel.
    Named,
    /// Zero-copy for frames longer than this many bytes, in batches that are fetched to memory of
    /// the port ([`FramePort::tx_room`]), if their pages stay mapped: another guest's queue copies
    /// them from there.
    Standing(u32),
}

/// The name of a frame that a port holds, for the queue that it came from. It is unique among all
/// queues of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

impl Token {
    /// The token of frame `i`, less than [`BURST_FRAMES`], of the batch with this serial number of
    /// 58 bits.
    pub(crate) fn of(serial: u64, i: usize) -> Self {
        Self(serial << 6 | i as u64)
    }

    /// The serial number of the batch, and the frame's index.
    pub(crate) fn split(self) -> (u64, usize) {
        (self.0 >> 6, (self.0 & 63) as usize)
    }
}

const _: () = assert!(BURST_FRAMES == 1 << 6);

/// The frames that a port holds beyond the call that passed them, as their queue sees it. The queue
/// keeps this object as long as it exists.
///
/// A frame that is held is not answered, nor are those after it, and its pages stay mapped. A port
/// that never completes its frames thus stalls its own guest's queue when the ring is full, and
/// nothing else.
pub trait Completions: Send + Sync {
    /// Appends the tokens of frames that are not read any more. It is called once per turn; a
    /// completion wakes a sleeping worker, as a frame for the guest does.
    fn complete(&self, done: &mut Vec<Token>);
    /// The queue ends. Blocks briefly until no held frame is being read; none is read afterwards,
    /// and none is completed later. The queue then frees the pages. Frames that were not sent are
    /// lost, as on a link that goes down.
    fn give_up(&self);
}

/// The source of a burst's zero-copy payload. Frames are numbered as in the burst.
pub trait PayloadSource {
    /// Maps the payload. Returns a bit for each frame for which that failed.
    fn map_payload(&mut self) -> u64;
    /// Fragment `k` of frame `i`, in order. None: there are no more.
    fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>>;
    /// Holds frame `i` from now on. None: it cannot be held.
    fn hold(&mut self, i: usize) -> Option<Token>;
}

/// A zero-copy burst. Frames that are short, or whose path delivers private bytes, are whole.
pub struct ZeroCopyBurst<'a> {
    arena: &'a mut Arena,
    zero_copy: u64,
    heads: &'a [u16; BURST_FRAMES],
    source: &'a mut dyn PayloadSource,
    completions: &'a mut Option<Arc<dyn Completions>>,
    is_mapped: bool,
}

impl<'a> ZeroCopyBurst<'a> {
    /// Creates a burst of the frames of `arena`. `zero_copy` has a bit for each frame of which only
    /// the first `heads` bytes are in the arena; the other frames are whole. `completions` is the
    /// port's object, once it has held a frame.
    pub fn new(
        arena: &'a mut Arena,
        zero_copy: u64,
        heads: &'a [u16; BURST_FRAMES],
        source: &'a mut dyn PayloadSource,
        completions: &'a mut Option<Arc<dyn Completions>>,
    ) -> Self {
        Self { arena, zero_copy, heads, source, completions, is_mapped: false }
    }

    /// Number of frames, including dropped ones.
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Whether the burst has no frame.
    pub fn is_empty(&self) -> bool {
        self.arena.is_empty()
    }

    /// Bytes of frame `i`, including zero-copy payload. 0: it was dropped, and must be skipped.
    #[inline(always)]
    pub fn len_of(&self, i: usize) -> usize {
        self.arena.desc(i).len as usize
    }

    /// The work left on frame `i`.
    #[inline(always)]
    pub fn offload(&self, i: usize) -> Offload {
        self.arena.desc(i).offload
    }

    /// The private bytes at the start of frame `i`: all of it, or at least the headers that its
    /// offload refers to.
    #[inline(always)]
    pub fn head(&self, i: usize) -> &[u8] {
        let desc = self.arena.desc(i);
        let head = u32::from(self.heads[within::<BURST_FRAMES>(i)]);
        let len = if self.is_whole(i) { desc.len } else { head.min(desc.len) };
        self.arena.bytes.get(desc.at as usize..(desc.at + len) as usize).unwrap_or_default()
    }

    /// Whether [`head`](Self::head) is all of frame `i`.
    #[inline(always)]
    pub fn is_whole(&self, i: usize) -> bool {
        self.zero_copy >> i & 1 == 0
    }

    /// Maps the payload of all frames at once. Frames for which that fails are dropped from the
    /// burst. Before this call there are no fragments.
    pub fn map_payload(&mut self) {
        if self.zero_copy == 0 || core::mem::replace(&mut self.is_mapped, true) {
            return;
        }
        let mut failed = self.source.map_payload();
        while failed != 0 {
            self.arena.drop_frame(failed.trailing_zeros() as usize);
            failed &= failed - 1;
        }
    }

    /// The fragments after the head of frame `i`, in order.
    #[inline(always)]
    pub fn pieces(&self, i: usize) -> impl Iterator<Item = Piece<'_>> {
        let zero_copy = self.is_mapped && !self.is_whole(i) && self.len_of(i) != 0;
        let (source, mut k) = (&*self.source, 0);
        core::iter::from_fn(move || {
            k += 1;
            zero_copy.then(|| source.piece(i, k - 1)).flatten()
        })
    }

    /// Holds frame `i` beyond this call, until `by` completes it: its [fragments](Self::pieces)
    /// stay where they are, and may be read by their [addresses](Piece::as_raw) meanwhile. Its head
    /// is not kept. None: it is not held, because it is whole, was not [mapped](Self::map_payload),
    /// or this queue's held frames belong to another port ([`Completions`]).
    pub fn hold(&mut self, i: usize, by: &Arc<dyn Completions>) -> Option<Token> {
        if !self.is_mapped || self.is_whole(i) || self.len_of(i) == 0 {
            return None;
        }
        if !Arc::ptr_eq(self.completions.get_or_insert_with(|| Arc::clone(by)), by) {
            return None;
        }
        self.source.hold(i)
    }

    /// Copies the zero-copy payload, and returns the burst as [`FramePort::tx_burst`] takes it.
    pub fn private(&mut self) -> Burst<'_> {
        (0..self.len()).for_each(|i| self.make_whole(i));
        self.arena.burst()
    }

    /// Copies the zero-copy payload of frame `i`, which is whole then. If it cannot be read, the
    /// frame is dropped.
    pub fn make_whole(&mut self, i: usize) {
        self.map_payload();
        let desc = self.arena.desc(i);
        if desc.len == 0 || self.is_whole(i) {
            return;
        }
        let mut at = desc.at as usize + self.head(i).len();
        let end = (desc.at + desc.len) as usize;
        let mut k = 0;
        while let Some(piece) = self.source.piece(i, k) {
            at += piece.copy_out(self.arena.bytes.get_mut(at..end).unwrap_or_default());
            k += 1;
        }
        self.zero_copy &= !(1 << i);
        if at != end {
            self.arena.drop_frame(i);
        }
    }
}

/// The number of frames that a port dropped for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortDrop {
    /// `tx` or `rx`, from the guest's view.
    pub dir: &'static str,
    /// The reason in one word for tables and metrics, such as `queue_full`.
    pub reason: &'static str,
    /// Frames dropped for this reason since the start.
    pub frames: u64,
}

/// How a guest distributes its frames over its queues.
pub trait Steering: fmt::Debug + Send + Sync {
    /// The queue for a frame, less than the number of the guest's queues.
    fn queue_of(&self, frame: &[u8]) -> usize;
}

/// Counts of the frames that a vif's ports dropped, readable by any thread.
pub trait DropCounts: Send + Sync {
    /// Current counts.
    fn read(&self) -> Vec<PortDrop>;
}

/// Whether a port has room for a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// The port has room.
    Now,
    /// The port has no room. It is asked again after this many nanoseconds, unless it wakes its
    /// worker earlier.
    Later(u64),
}

impl Room {
    /// The port has no room, and does not know when it will: it is asked again once a second.
    pub const UNKNOWN: Self = Self::Later(1_000_000_000);
}

/// The remote side of one queue of a netback.
pub trait FramePort: Send {
    /// The offloads that the port supports.
    fn caps(&self) -> Offloads;
    /// Whether the port has room for a burst. If not, the guest's frames stay on its ring. The port
    /// wakes the worker when it has room, as for a frame for the guest; the worker asks again then,
    /// or at the time that the port [returned](Room::Later). A port must not block here, since the
    /// worker has other guests.
    fn room(&mut self) -> Room {
        Room::Now
    }
    /// Takes frames that the guest sent. Returns how many, from the first on; the caller drops and
    /// counts the rest.
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize;
    /// Returns memory for a batch of this many bytes that will be fetched. A port that moves bursts
    /// to others provides its own memory, which is passed filled to [`tx_filled`](Self::tx_filled);
    /// other ports copy. The memory may not come back, because the whole batch can fail.
    fn tx_room(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        let _ = bytes;
        None
    }
    /// Like [`tx_burst`](Self::tx_burst), for a batch in the memory that [`tx_room`](Self::tx_room)
    /// returned, which the port may [take](Arena::move_out).
    fn tx_filled(&mut self, arena: &mut Arena) -> usize {
        self.tx_burst(&arena.burst())
    }
    /// How the port wants payload. The queue's paths decide what it gets.
    fn payload(&self) -> Payload {
        Payload::Private
    }
    /// Like [`tx_burst`](Self::tx_burst), for zero-copy frames. Bursts without any still go to
    /// `tx_burst`.
    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        self.tx_burst(&frames.private())
    }
    /// Appends frames for the guest to `into`, as many as it has and as fit, or
    /// [moves](Arena::move_in_filled) them into an empty arena, with memory that no one else has.
    /// Returns how many. After a call that returned 0 it is not called again until its queue's
    /// guest or its [waker](Self::owned_by) wakes its worker.
    fn rx_burst(&mut self, into: &mut Arena) -> usize;
    /// The guest's queue is stalled: it has no room for frames that were returned. From now on no
    /// [zero-copy](Loan) frame may wait here, because its sender is only answered when it is read,
    /// and must not wait for this guest.
    fn rx_stands(&mut self) {}
    /// The kernel reports frames for the guest. It is called by a worker that waits for the port's
    /// descriptor, before it asks for the frames. Once it has been called, a port may rely on it,
    /// and skip a few polls after one that found nothing.
    fn became_readable(&mut self) {}
    /// The counter of frames that the vif's ports dropped, the same for all of its queues. None:
    /// the ports drop no frames.
    fn drop_counts(&self) -> Option<Arc<dyn DropCounts>> {
        None
    }
    /// Frames dropped since the start. It is never called on the data path.
    fn drops(&self) -> Vec<PortDrop> {
        self.drop_counts().map_or_else(Vec::new, |counts| counts.read())
    }
    /// Number of frames for the guest that wait in this process's memory, and would be lost with
    /// it. Those in a queue of the kernel do not count.
    fn held(&self) -> usize {
        0
    }
    /// Sets how the guest's frames are distributed over its queues from now on. None: as the port
    /// likes. It is called for each queue's port, never between bursts of a batch. A port with one
    /// queue ignores it.
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        let _ = by;
    }
    /// Sets the worker that calls the port from now on. A port that gets frames outside of its
    /// calls must wake this worker by its waker, from any thread. A port without a worker wakes
    /// none.
    fn owned_by(&mut self, owner: &PortOwner) {
        let _ = owner;
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
        let mut arena = Arena::over(buffer);
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
        assert_eq!(Arena::over(BurstBuffer::heap(100)).burst().bytes.len(), ARENA_BYTES);
    }

    #[test]
    fn a_short_frame_is_within_a_page_and_bytes_can_be_exchanged() {
        let mut arena = Arena::new();
        let page_of = |bytes: &[u8], at: usize| (bytes.as_ptr().addr() + at) / PAGE_SIZE;
        for len in (1..=BURST_FRAMES).map(|k| k * 997 % PAGE_SIZE + 1) {
            arena.free_within_page(len, Offload::default()).unwrap().fill(len as u8);
            let (burst, at) = (arena.burst(), arena.desc(arena.len() - 1).at as usize);
            assert_eq!(page_of(burst.bytes, at), page_of(burst.bytes, at + len - 1));
        }
        assert!(arena.free_within_page(1, Offload::default()).is_none(), "a burst has no more frames");
        let was = arena.burst().bytes.as_ptr();
        let old = arena.replace(BurstBuffer::lines(ARENA_BYTES));
        assert!(arena.is_empty() && old.as_ptr() == was && arena.burst().bytes.as_ptr() != was);
        // A frame of more than a page begins where the last one ended.
        assert!(arena.free_within_page(100, Offload::default()).is_some());
        assert!(arena.free_within_page(MAX_FRAME, Offload::default()).is_some());
        assert_eq!(arena.desc(1).at, 128);
    }
}
