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

mod arena;
mod loan;
mod offload;
mod owner;
mod sink;
mod source;

use crate::array::within;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

pub use crate::shm::{Piece, PieceMut};
pub use crate::wire::netif::MAX_FRAME;
pub use arena::{Arena, Cursor};
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
