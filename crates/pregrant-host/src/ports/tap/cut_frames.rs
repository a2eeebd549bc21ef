//! Large segments from the kernel that netif cannot carry, because they have a VLAN tag: they are
//! segmented here, and the frames wait until there is room for them.
//!
//! netif does not say where a frame's headers are, and Linux drops tagged large segments
//! (docs/protocol 2.7). The frames of one segment wait here at a time, and nothing is read from the
//! tap before they are gone, which keeps the order.

use crate::ports::segments::CutSegment;
use pregrant::net::headers::HeaderFault;
use pregrant::port::{Arena, Offload};

/// The offload of a segmented frame, which needs no further work.
pub const FINISHED: Offload = Offload { csum_blank: false, csum_ok: true, gso_type: 0, gso_size: 0 };

/// The frames into which one large segment was cut.
#[derive(Debug, Default)]
pub struct CutFrames {
    frames: CutSegment,
    /// The index of the oldest frame that waits.
    next: usize,
}

impl CutFrames {
    /// Cuts `frame` into segments. All frames of an earlier call must have been removed.
    ///
    /// # Errors
    ///
    /// The frame's headers do not allow it.
    pub fn cut(&mut self, frame: &[u8], offload: Offload) -> Result<(), HeaderFault> {
        self.next = 0;
        self.frames.cut(frame, offload)
    }

    /// Returns the number of waiting frames.
    pub fn len(&self) -> usize {
        self.frames.len().saturating_sub(self.next)
    }

    /// Removes and returns the oldest frame.
    pub fn pop(&mut self) -> Option<&[u8]> {
        let frame = self.frames.get(self.next)?;
        self.next += 1;
        Some(frame)
    }

    /// Moves frames to `into` while there is room. True: none waits any more.
    pub fn unload(&mut self, into: &mut Arena) -> bool {
        while let Some(frame) = self.frames.get(self.next) {
            if into.fits(frame.len()) == 0 || !into.push(frame, FINISHED) {
                return false;
            }
            self.next += 1;
        }
        true
    }
}
