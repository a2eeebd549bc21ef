//! Frames that came by reference, handed on to a port that reads their payload where it is.
//!
//! ```text
//!   recv_by_reference --> heads in an arena, tokens --hand_on--> FramePort::tx_zero_copy --> release
//!                                                      '-- piece: the pages that the back wrote to
//! ```
//! Invariant: a frame is given back when the port's call is over. No port holds a frame beyond the
//! call: for a port that would, the payload is copied.
//!
//! What the back may do: write to these pages at any time. A port parses heads alone, which are
//! private.

use super::FrontVif;
use super::rx_pages::lent::Lent;
use crate::platform::Platform;
use crate::port::{Arena, FramePort, Payload, PayloadSource, Piece, Token, ZeroCopyBurst};

/// The payload of an arena's frames.
struct LentPayload<'a, P: Platform> {
    vif: &'a FrontVif<P>,
    lent: &'a Lent,
}

impl<P: Platform> PayloadSource for LentPayload<'_, P> {
    fn map_payload(&mut self) -> u64 {
        0
    }
    fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        self.vif.piece(self.lent.token(i)?, k)
    }
    fn hold(&mut self, _i: usize) -> Option<Token> {
        None
    }
}

impl<P: Platform> FrontVif<P> {
    /// Passes the frames of `came` to `port`, those in `lent` by reference, and then releases them
    /// to their queue. Returns how many frames the port accepted.
    pub fn hand_on(&mut self, p: &P, came: &mut Arena, lent: &mut Lent, port: &mut dyn FramePort) -> usize {
        if lent.frames() == 0 {
            return port.tx_burst(&came.burst());
        }
        let mut source = LentPayload { vif: self, lent };
        let mut completions = None;
        let mut burst = ZeroCopyBurst::new(came, lent.frames(), lent.heads(), &mut source, &mut completions);
        let taken = match port.payload() {
            Payload::Private => port.tx_burst(&burst.private()),
            Payload::ZeroCopy | Payload::Named | Payload::Standing(_) => port.tx_zero_copy(&mut burst),
        };
        let known = self.release(p, lent.tokens());
        debug_assert!(known.is_ok(), "the vif lent them");
        lent.clear();
        taken
    }
}
