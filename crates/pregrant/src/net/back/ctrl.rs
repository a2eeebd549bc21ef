//! The control ring of a vif (docs/protocol 2.11): requests to [`Control`], each answered once.
//!
//! ```text
//!   request --read--> Control::answer --> control page: state and answer --> ring: answer --> rsp_prod
//! ```
//! Served in the owner's control turn, a few requests each ([`REQUESTS_PER_TURN`]), never between frames of a batch. One
//! request at a time, in their order: where a back dies, its successor finds in the control page whether the request is
//! done, and with which answer ([`BackRing::attach_after`]).
//!
//! What a guest may do: ask anything, without end. Each request costs it a slot and gets an answer; nothing is logged,
//! and frames move in between. Indices that lie close the vif.

use super::Polled;
use super::control::Control;
use super::tx::PeerRing;
use crate::error::PeerFault;
use crate::platform::{Events, Platform};
use crate::ring::{BackRing, NetCtrl};
use crate::units::DomId;
use crate::wire::netif_ctrl::CtrlResponse;

/// Requests of one vif that a control turn serves at most.
pub const REQUESTS_PER_TURN: u32 = 16;

/// The back's end of a control ring.
pub struct CtrlRing<P: Platform> {
    ring: BackRing<NetCtrl, PeerRing<NetCtrl, P>>,
    chan: <P::Events as Events>::Chan,
}

impl<P: Platform> CtrlRing<P> {
    /// Takes a ring up. `last`: of a predecessor's ring, the index after its last answer, and that answer; if it was not
    /// published, it is now.
    pub fn attach(
        mem: PeerRing<NetCtrl, P>,
        chan: <P::Events as Events>::Chan,
        last: Option<(u32, CtrlResponse)>,
    ) -> Result<Self, PeerFault> {
        let (ring, _) = match last {
            Some(last) => BackRing::attach_after(mem, last)?,
            None => BackRing::attach(mem, None)?,
        };
        Ok(Self { ring, chan })
    }

    /// Its event channel.
    pub fn channel(&self) -> &<P::Events as Events>::Chan {
        &self.chan
    }

    /// Tells the front to look: of what a predecessor answered, nobody may have told it (R5).
    pub fn notify(&self, p: &P) {
        p.events().notify(&self.chan);
    }

    /// The index of the next answer.
    pub fn rsp_prod(&self) -> u32 {
        self.ring.req_cons()
    }

    /// Serves requests of domain `of`, whose vif has `queues` queues.
    pub fn poll(
        &mut self,
        p: &P,
        of: DomId,
        queues: usize,
        control: &mut Control,
    ) -> Result<Polled, PeerFault> {
        let n = self.ring.available(REQUESTS_PER_TURN)?.min(REQUESTS_PER_TURN);
        for _ in 0..n {
            let request = self.ring.read(0);
            self.ring.consume(1);
            let answer = control.answer(p, of, queues, &request, self.ring.req_cons());
            if self.ring.answer(&[answer]).wanted() {
                p.events().notify(&self.chan);
            }
        }
        Ok(if n > 0 { Polled::More } else { Polled::Idle })
    }

    /// Whether there is work, as [`final_check`](Self::final_check) says it, and nothing is armed.
    pub fn is_pending(&mut self) -> bool {
        self.ring.available(1) != Ok(0)
    }

    /// Before sleeping: arms the ring and its channel. True: there is work.
    pub fn final_check(&mut self, p: &P) -> Result<bool, PeerFault> {
        let work = self.ring.final_check(1)?;
        p.events().unmask(&self.chan);
        Ok(work)
    }
}
