//! A large segment of the kernel's that netif cannot pass on, for it is behind a VLAN tag: cut, and
//! its frames wait here until there is room for them.
//!
//! netif names no place of what is to be cut, and Linux's end drops what has a tag
//! (docs/protocol 2.7). The frames of one segment wait here at a time, and nothing behind it is
//! read before they are gone, so that the order of frames stays.

use crate::ports::segments::CutFrame;
use pregrant::net::headers::HeaderFault;
use pregrant::port::{Arena, Offload};

/// Nothing is left to be done to a frame that was cut.
pub const FINISHED: Offload = Offload { csum_blank: false, csum_ok: true, gso_type: 0, gso_size: 0 };

/// See the module.
#[derive(Debug, Default)]
pub struct CutFrames {
    frames: CutFrame,
    /// The oldest that waits.
    next: usize,
}

impl CutFrames {
    /// Cuts `frame`; none waits here.
    ///
    /// # Errors
    /// Its headers do not allow it.
    pub fn cut(&mut self, frame: &[u8], offload: Offload) -> Result<(), HeaderFault> {
        self.next = 0;
        self.frames.cut(frame, offload)
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.frames.len().saturating_sub(self.next)
    }

    /// The oldest, which is gone then.
    pub fn pop(&mut self) -> Option<&[u8]> {
        let frame = self.frames.get(self.next)?;
        self.next += 1;
        Some(frame)
    }

    /// Moves frames to `into`, as long as there is room. True: none waits any more.
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
