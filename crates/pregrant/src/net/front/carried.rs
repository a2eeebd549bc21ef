//! Frames that a front carries over from a connection that ended to the next one.
//!
//! ```text
//!   the back closes:   TX requests without an answer --> unsent       RX answers not taken yet --> arrived
//!   connected again:   unsent --> the new TX ring, before new frames  arrived --> the owner's next `recv`
//! ```
//! So towards the back a frame is sent at least once: one that the old back had taken and not answered goes twice. Ours
//! answers what it took before it closes, so only one that died in between, and never came back, leaves such frames.
//!
//! Allocates, but only between connections. Bounded by the old rings: as many frames as they have slots. What the back
//! may do: see [`TxFront::unanswered`](super::TxFront::unanswered).

use crate::port::{Arena, Offload};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// A frame that waits to be sent again.
struct Unsent {
    queue: usize,
    frame: Box<[u8]>,
    offload: Offload,
}

/// All of a vif's.
#[derive(Default)]
pub struct Carried {
    unsent: VecDeque<Unsent>,
    arrived: VecDeque<(Box<[u8]>, Offload)>,
    lost: u64,
}

impl Carried {
    /// A frame that queue `queue` sent, and nobody answered.
    pub fn push_unsent(&mut self, queue: usize, frame: &[u8], offload: Offload) {
        self.unsent.push_back(Unsent { queue, frame: frame.into(), offload });
    }

    /// Frames that the back delivered, and nobody took.
    pub fn push_arrived(&mut self, frames: &Arena) {
        self.arrived.extend(frames.burst().iter().map(|(frame, offload)| (frame.into(), offload)));
    }

    /// Requests that made no sense when they were looked at again.
    pub fn count_lost(&mut self, n: u32) {
        self.lost += u64::from(n);
    }

    /// How many of those there were.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether frames wait to be sent.
    #[inline(always)]
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether frames wait to be received.
    #[inline(always)]
    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Lends the oldest frame that waits to `send`, with its queue, until one is not taken.
    pub fn send_each<E>(
        &mut self,
        mut send: impl FnMut(usize, &[u8], Offload) -> Result<bool, E>,
    ) -> Result<(), E> {
        while let Some(Unsent { queue, frame, offload }) = self.unsent.front()
            && send(*queue, frame, *offload)?
        {
            self.unsent.pop_front();
        }
        Ok(())
    }

    /// Gives the frames that arrived, as many as fit. Returns how many.
    pub fn take_arrived(&mut self, out: &mut Arena) -> usize {
        let before = out.len();
        while let Some((frame, offload)) = self.arrived.front()
            && out.push(frame, *offload)
        {
            self.arrived.pop_front();
        }
        out.len() - before
    }

    /// The vif is closed by its owner: nobody waits any more.
    pub fn clear(&mut self) {
        self.unsent.clear();
        self.arrived.clear();
    }
}
