//! The frames that a front sends, wherever their bytes are.
//!
//! ```text
//!   Burst: one byte area -------.
//!   a kernel's buffer: pieces ---+--copy_to--> memory of a slot, once
//! ```
//! The sender first asks for the lengths, then lets each frame be written to the memory that it is
//! sent from. A peer only sees what is written there; it has no access to the source.

use super::{Burst, FrameDesc, Offload};
use crate::shm::PieceMut;

/// One frame to be sent.
#[allow(clippy::len_without_is_empty)] // an empty one is skipped
pub trait Source: Copy {
    /// Number of bytes with headers, without FCS. 0: the frame was dropped.
    fn len(&self) -> usize;
    /// The checksum and segmentation work left.
    fn offload(&self) -> &Offload;
    /// Copies the frame's bytes from offset `at` on until `to` is full. `to` must not be longer
    /// than the rest.
    fn copy_to(&self, at: usize, to: PieceMut<'_>);
}

/// A list of at most [`BURST_FRAMES`](super::BURST_FRAMES) frames.
pub trait Frames: Copy {
    /// One frame of the list.
    type Frame<'a>: Source
    where
        Self: 'a;
    /// Number of frames.
    fn count(&self) -> usize;
    /// Frame `i`. None: there are fewer.
    fn get(&self, i: usize) -> Option<Self::Frame<'_>>;
    /// The first `n` frames, or all if there are fewer, in order.
    fn first(&self, n: usize) -> impl Iterator<Item = Self::Frame<'_>>;
    /// The list without its first `n` frames, which must exist.
    fn skip(self, n: usize) -> Self;
}

/// A list of one frame.
impl<S: Source> Frames for S {
    type Frame<'a>
        = Self
    where
        Self: 'a;

    #[inline(always)]
    fn count(&self) -> usize {
        1
    }
    #[inline(always)]
    fn get(&self, i: usize) -> Option<Self> {
        (i == 0).then_some(*self)
    }
    #[inline(always)]
    fn first(&self, n: usize) -> impl Iterator<Item = Self> {
        (n > 0).then_some(*self).into_iter()
    }
    /// Returns itself: once the frame was sent, no one asks for the rest.
    #[inline(always)]
    fn skip(self, _n: usize) -> Self {
        self
    }
}

/// A contiguous frame without offloads.
impl Source for &[u8] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
    #[inline(always)]
    fn offload(&self) -> &Offload {
        &Offload::NONE
    }
    #[inline(always)]
    fn copy_to(&self, at: usize, to: PieceMut<'_>) {
        if let Some(bytes) = <[u8]>::get(self, at..at + to.len()) {
            to.copy_in(bytes);
        }
    }
}

/// A frame of a burst.
#[derive(Clone, Copy, Debug)]
pub struct BurstFrame<'a> {
    bytes: &'a [u8],
    desc: &'a FrameDesc,
}

impl Source for BurstFrame<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.desc.len as usize
    }
    #[inline(always)]
    fn offload(&self) -> &Offload {
        &self.desc.offload
    }
    #[inline(always)]
    fn copy_to(&self, at: usize, to: PieceMut<'_>) {
        let from = self.desc.at as usize + at;
        if let Some(bytes) = self.bytes.get(from..from + to.len()) {
            to.copy_in(bytes);
        }
    }
}

impl Frames for Burst<'_> {
    type Frame<'a>
        = BurstFrame<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn count(&self) -> usize {
        self.frames.len()
    }
    #[inline(always)]
    fn get(&self, i: usize) -> Option<BurstFrame<'_>> {
        self.frames.get(i).map(|desc| BurstFrame { bytes: self.bytes, desc })
    }
    #[inline(always)]
    fn first(&self, n: usize) -> impl Iterator<Item = BurstFrame<'_>> {
        let bytes = self.bytes;
        self.frames.get(..n).unwrap_or(self.frames).iter().map(move |desc| BurstFrame { bytes, desc })
    }
    #[inline(always)]
    fn skip(self, n: usize) -> Self {
        Burst::skip(&self, n)
    }
}
