//! The remote side of a netback: frames in bursts.
//!
//! ```text
//!   guest --TX--> net::back --tx_burst(Burst)-----> any port: private bytes
//!                          \--tx_zero_copy(ZeroCopyBurst)--> port (tap, sink): private heads, payload where the guest
//!                                                   put it; long frames of a path that keeps pages
//!   guest <--RX-- net::back <--rx_burst(Arena)---- port
//! ```
//!
//! TX and RX are the guest's, also here: `tx_burst` takes what a guest sent. A [`Burst`] is one
//! byte area with up to [`BURST_FRAMES`] frames in it, so that a batch stays in the cache. The
//! bytes are private copies; nothing that a peer does can change them. Ports are called once per
//! burst, through `dyn`.
//!
//! A port that says [`Payload::ZeroCopy`] may get a [`ZeroCopyBurst`]: of each frame the first
//! bytes are a private copy, with all headers that anybody has to understand; the rest is
//! [pieces](Piece) of memory that its guest can still write. It copies them, hands them on, or
//! never reads them, and then they are not even mapped. A frame that it hands on beyond the call it
//! holds ([`ZeroCopyBurst::hold`]), and completes through its [`Completions`].
//!
//! What a guest may do: change lent payload at any time, so that two readers, or two readings, see
//! two things. It cannot change a head, a length or an offload.

mod loan;
mod sink;
mod source;

use crate::burst_buffer::BurstBuffer;
use crate::units::PAGE_SIZE;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

pub use crate::shm::{Piece, PieceMut};
pub use crate::wire::netif::MAX_FRAME;
pub use loan::{Lender, LentPiece, Loan};
pub use sink::{LentSink, Sink};
pub use source::{BurstFrame, Frames, Source};

/// Frames in a burst at most.
pub const BURST_FRAMES: usize = 64;
/// Bytes in an arena: four frames of the largest size.
pub const ARENA_BYTES: usize = 256 * 1024;
/// A batch of fewer bytes is not worth memory of its own: [`FramePort::tx_room`] is not asked.
pub const BURST_BYTES_MIN: usize = 2048;

/// The work still to be done on a frame: checksum state and segmentation (docs/protocol 2.7).
///
/// It is what netif can say, and names no place: a blank checksum, and what is to be cut, is that
/// of the outermost TCP or UDP header behind an Ethernet header without tags
/// ([`IpHeaders::is_plain`](crate::net::headers::IpHeaders::is_plain)). A guest may say it of a
/// frame with tags, which a back passes on to a port so and to no other guest. A port whose frames
/// may have other work left, behind a tag or in a tunnel, does that itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The L4 checksum field holds only the pseudo-header's sum: somebody must finish it.
    pub csum_blank: bool,
    /// The L4 checksum was verified (also set with `csum_blank`).
    pub csum_ok: bool,
    /// 0 none, 1 TCPv4, 2 TCPv6. Where it is not 0 the checksum is blank.
    pub gso_type: u8,
    /// Bytes of payload in a segment when `gso_type` is not 0.
    pub gso_size: u16,
}

impl Offload {
    /// Nothing is to be done, or known.
    pub const NONE: Self = Self { csum_blank: false, csum_ok: false, gso_type: 0, gso_size: 0 };
}

/// Where a frame is in its burst's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameDesc {
    /// First byte.
    pub at: u32,
    /// Bytes, headers included, no FCS. 0: the frame was dropped on the way, skip it.
    pub len: u32,
    /// Checksum and segmentation.
    pub offload: Offload,
}

/// Frames to be read, in one byte area.
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a> {
    /// The area.
    pub bytes: &'a [u8],
    /// The frames, at most [`BURST_FRAMES`].
    pub frames: &'a [FrameDesc],
    /// Bytes of the area that are not there, but in these pieces, in the order of their places:
    /// only who copies frames to a guest ([`copy_to`](Self::copy_to)) ever gets a burst with any.
    pub lent: &'a [LentPiece<'a>],
}

impl<'a> Burst<'a> {
    /// Of private bytes.
    #[inline(always)]
    pub fn of(bytes: &'a [u8], frames: &'a [FrameDesc]) -> Self {
        Self { bytes, frames, lent: &[] }
    }

    /// The frames that are there, each with its bytes. A frame that passes the area's end is left
    /// out.
    #[inline(always)]
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], Offload)> + 'a {
        let bytes = self.bytes;
        self.frames.iter().filter(|d| d.len != 0).filter_map(move |d| {
            let at = d.at as usize;
            Some((bytes.get(at..at + d.len as usize)?, d.offload))
        })
    }

    /// The bytes of frame `i`; empty when it was dropped.
    #[inline(always)]
    pub fn frame(&self, i: usize) -> &'a [u8] {
        let d = &self.frames[i];
        &self.bytes[d.at as usize..d.at as usize + d.len as usize]
    }

    /// The burst without its first `n` frames.
    pub fn skip(&self, n: usize) -> Burst<'a> {
        Burst { frames: self.frames.get(n..).unwrap_or_default(), ..*self }
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
    /// Its own bytes while others are in their place; then those, until somebody takes them back.
    other: Option<BurstBuffer>,
    moved_in: bool,
    used: usize,
    frames: [FrameDesc; BURST_FRAMES],
    n: usize,
    /// Payload of what was moved in that is not there.
    lent: Option<Loan>,
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
    /// An empty arena of [`ARENA_BYTES`], of the heap.
    pub fn new() -> Self {
        Self::of(BurstBuffer::lines(ARENA_BYTES))
    }

    /// An empty arena in `buffer`, which has [`ARENA_BYTES`]; else in memory of the heap.
    pub fn over(buffer: BurstBuffer) -> Self {
        Self::of(if buffer.len() == ARENA_BYTES { buffer } else { BurstBuffer::lines(ARENA_BYTES) })
    }

    /// One without memory, until there is another to take its place; no frame is for it, whatever
    /// [`has_room`](Self::has_room) says. An arena of the heap that is given away for another has
    /// glibc put the next ones elsewhere, and RX of 1496 bytes lost 5 % by it (`bench net`, copy
    /// and staging).
    pub fn nowhere() -> Self {
        Self::of(BurstBuffer::heap(0))
    }

    /// Whether it is [such a one](Self::nowhere).
    pub fn is_nowhere(&self) -> bool {
        self.bytes.is_empty()
    }

    // Not inlined: a caller would have it twice on its stack, of which a kernel has little.
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
            takes_lent: false,
        }
    }

    /// Forgets the frames. They are in the arena's own bytes again.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.used = 0;
        self.n = 0;
        if self.moved_in {
            self.exchange();
            self.lent = None;
        }
    }

    #[cold]
    fn exchange(&mut self) {
        if let Some(other) = &mut self.other {
            core::mem::swap(&mut self.bytes, other);
            self.moved_in = !self.moved_in;
        }
    }

    /// Puts the frames that were placed into `bytes`, before they are filled. Refused: it is too
    /// small for them.
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

    /// Takes these frames, all in `bytes`, in place of what it had. Those that pass the end are
    /// left out.
    pub fn move_in_filled(&mut self, bytes: Box<[u8]>, frames: &[FrameDesc]) {
        self.clear();
        for desc in frames.iter().take(BURST_FRAMES) {
            let end = desc.at as usize + desc.len as usize;
            if end <= bytes.len() {
                self.frames[self.n] = *desc;
                self.n += 1;
                self.used = self.used.max((end + 63) & !63);
            }
        }
        self.other = Some(bytes.into());
        self.exchange();
    }

    /// Gives back what was moved in, before or after it was cleared. Frames that lay there are
    /// without bytes then: only their lengths are still right.
    pub fn move_out(&mut self) -> Option<Box<[u8]>> {
        if self.moved_in {
            self.exchange();
            self.lent = None;
        }
        // Its own memory, which may be none of the heap's, is in its place now.
        self.other.take()?.into_heap().ok()
    }

    /// Bytes that its frames take, gaps included.
    #[inline(always)]
    pub fn used_bytes(&self) -> usize {
        self.used.min(ARENA_BYTES)
    }

    /// Frames in it.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether no frame is in it.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Whether another frame of any legal length fits.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.cursor().has_room()
    }

    /// How many more frames of `len` bytes fit.
    pub fn fits(&self, len: usize) -> usize {
        let room = self.bytes.len().saturating_sub(self.used);
        (BURST_FRAMES - self.n).min(room / len.max(1).next_multiple_of(64))
    }

    /// The fill level, to be carried in registers while many frames are placed.
    #[inline(always)]
    pub fn cursor(&self) -> Cursor {
        // Nothing is added behind what was moved in: that is as long as its owner needed it.
        Cursor { n: self.n, used: if self.moved_in { ARENA_BYTES } else { self.used } }
    }

    /// Places a frame as [`room`](Self::room) does, behind `cursor`. The caller has seen that it
    /// [has room](Cursor::has_room).
    #[inline(always)]
    pub fn place(&mut self, cursor: &mut Cursor, len: usize, offload: Offload) {
        self.frames[cursor.n] = FrameDesc { at: cursor.used as u32, len: len as u32, offload };
        cursor.n += 1;
        cursor.used = (cursor.used + len + 63) & !63;
    }

    /// Adds the frames that were placed up to `cursor` to the arena.
    #[inline(always)]
    pub fn keep(&mut self, cursor: Cursor) {
        debug_assert!(cursor.n <= BURST_FRAMES && cursor.used <= ARENA_BYTES + 63);
        self.n = cursor.n;
        self.used = cursor.used;
    }

    /// Appends a frame of `len` bytes and gives its place to be filled (what is there is an older
    /// frame's bytes). The next frame starts on a new cache line. None when there is no room.
    #[inline(always)]
    pub fn room(&mut self, len: usize, offload: Offload) -> Option<&mut [u8]> {
        let at = self.used;
        if self.n == BURST_FRAMES || len > self.bytes.len().saturating_sub(at) {
            return None;
        }
        self.frames[self.n] = FrameDesc { at: at as u32, len: len as u32, offload };
        self.n += 1;
        self.used = (at + len + 63) & !63;
        Some(&mut self.bytes[at..at + len])
    }

    /// As [`room`](Self::room), so that byte `k` of the frame begins a page of this process, where
    /// that leaves room. Who copies the frame in pieces, whole pages from there on, has none that
    /// crosses a page: a platform pays for each page that it has to find.
    #[inline]
    pub fn free_with_page_at(&mut self, k: usize, len: usize, offload: Offload) -> Option<&mut [u8]> {
        let gap = self.gap_to_page(k);
        if self.used + gap + len <= self.bytes.len() {
            self.used += gap;
        }
        self.room(len, offload)
    }

    /// Bytes to leave free for byte `k` of the next frame to begin a page of this process.
    #[inline(always)]
    fn gap_to_page(&self, k: usize) -> usize {
        let off = (self.bytes.as_ptr().addr() + self.used + k) % PAGE_SIZE;
        (PAGE_SIZE - off) % PAGE_SIZE
    }

    /// Where the next frame may be read to whose length is not known yet: it begins a page, and has
    /// room for the longest. None: there is none. [`came`](Self::came) says what was read.
    pub fn free_to_read(&mut self) -> Option<&mut [u8]> {
        let at = self.used + self.gap_to_page(0);
        let has_frame = self.n < BURST_FRAMES && !self.moved_in;
        self.bytes.get_mut(at..at + MAX_FRAME).filter(|_| has_frame)
    }

    /// A frame of `len` bytes was read to [`free_to_read`](Self::free_to_read).
    pub fn came(&mut self, len: usize, offload: Offload) {
        let _ = self.free_with_page_at(0, len, offload);
    }

    /// As [`room`](Self::room), for a frame on its way to a guest, page by page: one that is longer
    /// than a page begins one.
    #[inline]
    pub fn free_by_pages(&mut self, len: usize, offload: Offload) -> Option<&mut [u8]> {
        if len > PAGE_SIZE { self.free_with_page_at(0, len, offload) } else { self.room(len, offload) }
    }

    /// Appends a copy of `frame`, [by pages](Self::free_by_pages); false when there is no room.
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

    /// Takes the newest frame out again.
    pub fn take_back(&mut self) {
        let newest = self.n.saturating_sub(1);
        if let Some(frame) = self.frames.get(newest).filter(|_| self.n > 0) {
            (self.n, self.used) = (newest, frame.at as usize);
        }
    }

    /// Marks frame `i` as dropped: readers skip it.
    pub fn drop_frame(&mut self, i: usize) {
        if let Some(frame) = self.frames.get_mut(i) {
            frame.len = 0;
        }
    }

    /// Changes what is to be done to frame `i`.
    pub fn set_offload(&mut self, i: usize, offload: Offload) {
        if let Some(frame) = self.frames.get_mut(i) {
            frame.offload = offload;
        }
    }

    /// The place of frame `i`.
    #[inline(always)]
    pub fn desc(&self, i: usize) -> FrameDesc {
        self.frames[i]
    }

    /// The whole byte area, for platforms that fill many frames in one call.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The frames, to be read.
    #[inline(always)]
    pub fn burst(&self) -> Burst<'_> {
        Burst::of(&self.bytes, &self.frames[..self.n])
    }
}

/// A port's requirement for a frame's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Payload {
    /// A private copy.
    #[default]
    Private,
    /// To copy it, hand it on or skip it itself: [`FramePort::tx_zero_copy`].
    ZeroCopy,
    /// The same, and of long frames also where the pages are mapped anyhow: it has the kernel read
    /// them. To skip them would say nothing of a path whose whole work is to copy them.
    Named,
    /// Of batches that are fetched into memory of the port's ([`FramePort::tx_room`]), frames of
    /// more than so many bytes whose pages stay mapped: another guest's queue copies them from
    /// there.
    Standing(u32),
}

/// Names a frame that a port keeps, for the queue that lent it; unique among all queues of the
/// process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

impl Token {
    /// Of frame `i`, less than [`BURST_FRAMES`], of a batch with this serial number of 58 bits.
    pub(crate) fn of(serial: u64, i: usize) -> Self {
        Self(serial << 6 | i as u64)
    }

    /// The batch's number, and the frame's.
    pub(crate) fn split(self) -> (u64, usize) {
        (self.0 >> 6, (self.0 & 63) as usize)
    }
}

const _: () = assert!(BURST_FRAMES == 1 << 6);

/// A port's frames that it keeps beyond the call that gave them, as the queue sees it. The queue
/// has it for as long as it lives.
///
/// A frame that is kept is not answered, nor are those behind it, and its pages stay mapped. A port
/// that never completes so stops its own guest's queue when the ring is full, and nothing else.
pub trait Completions: Send + Sync {
    /// Appends those that are no longer read. Asked once a round; a completion while the worker
    /// sleeps wakes it as a frame for the guest does.
    fn complete(&self, done: &mut Vec<Token>);
    /// The queue ends: returns, soon, when none of them is read any more, nor will be. Their pages
    /// go then; none of them is completed later. Frames that were not sent are lost, as on a link
    /// that goes down.
    fn give_up(&self);
}

/// The lender of one burst's payload. Frames are numbered as in the burst.
pub trait PayloadSource {
    /// Makes payload reachable. Returns a bit for each frame for which that failed.
    fn map_payload(&mut self) -> u64;
    /// Piece `k` of frame `i`, in order; None: there are no more.
    fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>>;
    /// Frame `i` is kept from now on. None: it has nothing that could be.
    fn hold(&mut self, i: usize) -> Option<Token>;
}

/// A burst whose payload is lent. Frames that are short, or whose path gives private bytes, are
/// whole.
pub struct ZeroCopyBurst<'a> {
    arena: &'a mut Arena,
    zero_copy: u64,
    heads: &'a [u16; BURST_FRAMES],
    source: &'a mut dyn PayloadSource,
    completions: &'a mut Option<Arc<dyn Completions>>,
    is_mapped: bool,
}

impl<'a> ZeroCopyBurst<'a> {
    /// The frames of `arena`. Of those in `zero_copy`, a bit each, only so many bytes as `heads`
    /// says are there; the others are whole. `completions` is the port's, as soon as it has kept
    /// one.
    pub fn new(
        arena: &'a mut Arena,
        zero_copy: u64,
        heads: &'a [u16; BURST_FRAMES],
        source: &'a mut dyn PayloadSource,
        completions: &'a mut Option<Arc<dyn Completions>>,
    ) -> Self {
        Self { arena, zero_copy, heads, source, completions, is_mapped: false }
    }

    /// Frames, those that were dropped on the way included.
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.arena.is_empty()
    }

    /// Bytes of frame `i`, lent ones included; 0: it was dropped, skip it.
    #[inline(always)]
    pub fn len_of(&self, i: usize) -> usize {
        self.arena.desc(i).len as usize
    }

    /// The work to be done on frame `i`.
    #[inline(always)]
    pub fn offload(&self, i: usize) -> Offload {
        self.arena.desc(i).offload
    }

    /// The private bytes at the front of frame `i`: all of it, or at least the headers that its
    /// offload refers to.
    #[inline(always)]
    pub fn head(&self, i: usize) -> &[u8] {
        let desc = self.arena.desc(i);
        let len = if self.is_whole(i) { desc.len } else { u32::from(self.heads[i]).min(desc.len) };
        &self.arena.bytes[desc.at as usize..(desc.at + len) as usize]
    }

    /// Whether [`head`](Self::head) is all of frame `i`.
    #[inline(always)]
    pub fn is_whole(&self, i: usize) -> bool {
        self.zero_copy >> i & 1 == 0
    }

    /// Makes the payload of all frames reachable, in one go; those whose is not are dropped from
    /// the burst. Before it there are no pieces.
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

    /// The pieces behind the head of frame `i`, in order.
    #[inline(always)]
    pub fn pieces(&self, i: usize) -> impl Iterator<Item = Piece<'_>> {
        let zero_copy = self.is_mapped && !self.is_whole(i) && self.len_of(i) != 0;
        let (source, mut k) = (&*self.source, 0);
        core::iter::from_fn(move || {
            k += 1;
            zero_copy.then(|| source.piece(i, k - 1)).flatten()
        })
    }

    /// Keeps frame `i` beyond this call, until `by` completes it: its [pieces](Self::pieces) stay
    /// where they are, and as they are [named to the kernel](Piece::as_raw) they may be read for so
    /// long. Its head does not stay. None: it is not kept, for it is whole, was not
    /// [mapped](Self::map_payload), or the frames that this queue holds are another port's
    /// ([`Completions`]).
    pub fn hold(&mut self, i: usize, by: &Arc<dyn Completions>) -> Option<Token> {
        if !self.is_mapped || self.is_whole(i) || self.len_of(i) == 0 {
            return None;
        }
        if !Arc::ptr_eq(self.completions.get_or_insert_with(|| Arc::clone(by)), by) {
            return None;
        }
        self.source.hold(i)
    }

    /// Copies what is lent: the burst as [`FramePort::tx_burst`] takes it.
    pub fn private(&mut self) -> Burst<'_> {
        (0..self.len()).for_each(|i| self.make_whole(i));
        self.arena.burst()
    }

    /// Copies what is lent of frame `i`, which is whole then; or dropped, where that cannot be
    /// read.
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
            at += piece.copy_out(&mut self.arena.bytes[at..end]);
            k += 1;
        }
        self.zero_copy &= !(1 << i);
        if at != end {
            self.arena.drop_frame(i);
        }
    }
}

/// Offloads that a port can take unfinished. The others are finished in software before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offloads {
    /// Takes frames whose checksum is blank.
    pub csum: bool,
    /// Takes TCP segments larger than the MTU.
    pub gso: bool,
}

/// Frames that a port dropped for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortDrop {
    /// `tx` or `rx`, as the guest sees it.
    pub dir: &'static str,
    /// Why, in one word for tables and metrics: `queue_full`.
    pub reason: &'static str,
    /// Frames dropped for it since the start.
    pub frames: u64,
}

/// In which of its queues a guest wants a frame.
pub trait Steering: fmt::Debug + Send + Sync {
    /// The queue's number, less than the number of the guest's queues.
    fn queue_of(&self, frame: &[u8]) -> usize;
}

/// Frames that a vif's ports dropped, readable by any thread.
pub trait DropCounts: Send + Sync {
    /// How it stands.
    fn read(&self) -> Vec<PortDrop>;
}

/// Whether a port takes a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// It does.
    Now,
    /// It has no room. It is asked again after so many nanoseconds, unless it says before that it
    /// has some.
    Later(u64),
}

impl Room {
    /// No room, and no time at which that changes: asked once a second all the same.
    pub const UNKNOWN: Self = Self::Later(1_000_000_000);
}

/// The remote side of one queue of a netback.
pub trait FramePort: Send {
    /// Offloads that it can take unfinished.
    fn caps(&self) -> Offloads;
    /// Whether it has room for a burst. Where it has not, the guest's frames stay on its ring; the
    /// port wakes the worker when it has room, as for a frame for the guest. The worker asks again
    /// then, and when the port [says](Room::Later). A port does not wait here: a worker has other
    /// guests.
    fn room(&mut self) -> Room {
        Room::Now
    }
    /// Takes frames that the guest sent. Returns how many of them (from the first) it took; the
    /// rest are dropped and counted by the caller.
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize;
    /// Memory for a batch of so many bytes, which is to be fetched. A port that moves bursts to
    /// others gives some of its own, and gets it filled by [`tx_filled`](Self::tx_filled); all
    /// others copy what they want. It may not come back: a batch can fail as a whole.
    fn tx_room(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        let _ = bytes;
        None
    }
    /// As [`tx_burst`](Self::tx_burst), of a batch that is in the memory that
    /// [`tx_room`](Self::tx_room) gave: the port may [take](Arena::move_out) it.
    fn tx_filled(&mut self, arena: &mut Arena) -> usize {
        self.tx_burst(&arena.burst())
    }
    /// Its requirement for payload. The queue's paths decide the result.
    fn payload(&self) -> Payload {
        Payload::Private
    }
    /// As [`tx_burst`](Self::tx_burst), which goes on being called where nothing is lent.
    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        self.tx_burst(&frames.private())
    }
    /// Appends frames for the guest to `into`, as many as it has and as fit, or
    /// [moves](Arena::move_in_filled) them into an empty one: no one else has that memory then.
    /// Returns how many. After a call that gave none it is not asked again before its queue's guest
    /// or its [waker](Self::owned_by) wakes its worker.
    fn rx_burst(&mut self, into: &mut Arena) -> usize;
    /// The guest has no room for frames that were given: none that is [lent](Loan) is to wait here
    /// from now on. Its sender is answered when it is read, and must not wait for this guest.
    fn rx_stands(&mut self) {}
    /// The kernel says that there are frames for the guest: called by who waits for the port's
    /// descriptor, before it asks for them. Once called, a port may rely on it, and give none
    /// for a few calls after one that found nothing.
    fn became_readable(&mut self) {}
    /// Who counts what it took, or had for the guest, and dropped: of the whole vif, whichever of
    /// its queues' ports is asked. None: it drops nothing.
    fn drop_counts(&self) -> Option<Arc<dyn DropCounts>> {
        None
    }
    /// Frames dropped since the start. Never called on the data path.
    fn drops(&self) -> Vec<PortDrop> {
        self.drop_counts().map_or_else(Vec::new, |counts| counts.read())
    }
    /// Frames for the guest that wait in this process' memory, and are lost with it: a queue of the
    /// program's own counts, the kernel's does not.
    fn held(&self) -> usize {
        0
    }
    /// The guest wants its frames spread over its queues like this from now on; None: as the port
    /// likes. Called for each queue's port, never between bursts of a batch. A port with one queue
    /// has no use for it.
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        let _ = by;
    }
    /// This worker calls the port from now on. A port that comes to have frames outside of a call
    /// to it wakes its worker by its waker, from any thread; a port without a worker has none to
    /// wake.
    fn owned_by(&mut self, owner: &PortOwner) {
        let _ = owner;
    }
}

/// Wakes a worker.
pub trait QueueWaker: Send + Sync + fmt::Debug {
    /// There is something for the port to which this waker belongs. Rung often, it does no more
    /// than rung once. From any thread, also while another port holds its lock: it calls no port.
    fn ring(&self);
}

/// A port's caller.
#[derive(Clone, Debug)]
pub struct PortOwner {
    /// The worker's number, of those that there are: the one producer of what its ports send to
    /// others.
    pub worker: usize,
    /// Has the worker ask this port for frames.
    pub waker: Arc<dyn QueueWaker>,
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
        // A frame that is read in place begins a page, and is a frame like others.
        arena.free_to_read().unwrap()[..3].copy_from_slice(b"abc");
        arena.came(3, Offload::default());
        let read = arena.burst().frame(1);
        assert!(read == b"abc" && read.as_ptr().addr().is_multiple_of(PAGE_SIZE));
        while let Some(room) = arena.free_to_read() {
            assert_eq!(room.len(), MAX_FRAME);
            arena.came(MAX_FRAME, Offload::default());
        }
        assert_eq!(arena.len(), 5, "three more of the longest");
        // Too small a buffer is none.
        assert_eq!(Arena::over(BurstBuffer::heap(100)).burst().bytes.len(), ARENA_BYTES);
    }
}
