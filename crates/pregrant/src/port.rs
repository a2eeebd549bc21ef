//! The far side of a netback: frames in bursts, in private memory.
//!
//! ```text
//!   guest --TX--> net::back --tx_burst(Burst)--> port (switch, tap, pcap, sink)
//!   guest <--RX-- net::back <--rx_burst(Arena)-- port
//! ```
//!
//! TX and RX are the guest's, also here: `tx_burst` takes what a guest sent. A [`Burst`] is one byte area with up to
//! [`BURST_FRAMES`] frames in it, so that a batch stays in the cache. The bytes are private copies; nothing that a peer
//! does can change them. Ports are called once per burst, through `dyn`.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

pub use crate::wire::netif::MAX_FRAME;

/// Frames in a burst at most.
pub const BURST_FRAMES: usize = 64;
/// Bytes in an arena: four frames of the largest size.
pub const ARENA_BYTES: usize = 256 * 1024;

/// What is still to be done to a frame, or known of it: checksum state and segmentation (docs/protocol 2.7).
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

/// Where a frame lies in its burst's bytes.
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
}

impl<'a> Burst<'a> {
    /// The frames that are there, each with its bytes. A frame that passes the area's end is left out.
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
        Burst { bytes: self.bytes, frames: &self.frames[n..] }
    }
}

/// Room for one burst: filled frame by frame, read as a [`Burst`], cleared, filled again. Allocates once.
#[derive(Debug)]
pub struct Arena {
    bytes: Box<[u8]>,
    used: usize,
    frames: [FrameDesc; BURST_FRAMES],
    n: usize,
}

/// How far an arena is filled; see [`Arena::cursor`].
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
    /// An empty arena of [`ARENA_BYTES`].
    pub fn new() -> Self {
        Self {
            bytes: vec![0; ARENA_BYTES].into_boxed_slice(),
            used: 0,
            frames: [FrameDesc::default(); BURST_FRAMES],
            n: 0,
        }
    }

    /// Forgets the frames.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.used = 0;
        self.n = 0;
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
        (BURST_FRAMES - self.n).min((ARENA_BYTES - self.used) / len.max(1).next_multiple_of(64))
    }

    /// How far it is filled, to be carried in registers while many frames are placed.
    #[inline(always)]
    pub fn cursor(&self) -> Cursor {
        Cursor { n: self.n, used: self.used }
    }

    /// Places a frame as [`room`](Self::room) does, behind `cursor`. The caller has seen that it
    /// [has room](Cursor::has_room).
    #[inline(always)]
    pub fn place(&mut self, cursor: &mut Cursor, len: usize, offload: Offload) {
        self.frames[cursor.n] = FrameDesc { at: cursor.used as u32, len: len as u32, offload };
        cursor.n += 1;
        cursor.used = (cursor.used + len + 63) & !63;
    }

    /// What was placed up to `cursor` is in the arena now.
    #[inline(always)]
    pub fn keep(&mut self, cursor: Cursor) {
        debug_assert!(cursor.n <= BURST_FRAMES && cursor.used <= ARENA_BYTES + 63);
        self.n = cursor.n;
        self.used = cursor.used;
    }

    /// Appends a frame of `len` bytes and gives its place to be filled (what is there is an older frame's bytes). The
    /// next frame starts on a new cache line. None when there is no room.
    #[inline(always)]
    pub fn room(&mut self, len: usize, offload: Offload) -> Option<&mut [u8]> {
        let at = self.used;
        if self.n == BURST_FRAMES || len > ARENA_BYTES - at {
            return None;
        }
        self.frames[self.n] = FrameDesc { at: at as u32, len: len as u32, offload };
        self.n += 1;
        self.used = (at + len + 63) & !63;
        Some(&mut self.bytes[at..at + len])
    }

    /// Appends a copy of `frame`; false when there is no room.
    #[must_use]
    pub fn push(&mut self, frame: &[u8], offload: Offload) -> bool {
        match self.room(frame.len(), offload) {
            Some(to) => {
                to.copy_from_slice(frame);
                true
            }
            None => false,
        }
    }

    /// Marks frame `i` as dropped: readers skip it.
    pub fn drop_frame(&mut self, i: usize) {
        self.frames[i].len = 0;
    }

    /// Changes what is to be done to frame `i`.
    pub fn set_offload(&mut self, i: usize, offload: Offload) {
        self.frames[i].offload = offload;
    }

    /// Where frame `i` lies.
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
        Burst { bytes: &self.bytes, frames: &self.frames[..self.n] }
    }
}

/// What a port can take unfinished. What it cannot is finished in software before.
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
    /// How many so far.
    pub frames: u64,
}

/// In which of its queues a guest wants a frame.
pub trait Steering: fmt::Debug + Send + Sync {
    /// The queue's number, less than the number of the guest's queues.
    fn queue_of(&self, frame: &[u8]) -> usize;
}

/// The far side of one queue of a netback.
pub trait FramePort: Send {
    /// What it can take unfinished.
    fn caps(&self) -> Offloads;
    /// Takes frames that the guest sent. Returns how many of them (from the first) it took; the rest are dropped and
    /// counted by the caller.
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize;
    /// Appends frames for the guest to `into`, as many as it has and as fit. Returns how many.
    fn rx_burst(&mut self, into: &mut Arena) -> usize;
    /// What it took, or had for the guest, and dropped: of the whole vif, whichever of its queues' ports is asked. Never
    /// called on the data path.
    fn drops(&self) -> Vec<PortDrop> {
        Vec::new()
    }
    /// Frames for the guest that wait in this process' memory, and are lost with it: a queue of the program's own counts,
    /// the kernel's does not.
    fn held(&self) -> usize {
        0
    }
    /// The guest wants its frames spread over its queues like this from now on; None: as the port likes. Called for
    /// each queue's port, never between bursts of a batch. A port with one queue has no use for it.
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        let _ = by;
    }
}
