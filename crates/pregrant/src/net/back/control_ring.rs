//! The control ring of a vif (docs/protocol 2.11): requests to [`SharedControl`], each answered
//! once.
//!
//! ```text
//!   request --read--> SharedControl::answer -----------> control page: state and answer --> ring: answer --> rsp_prod
//!              '----> GrefRequests::take ... due --------^
//! ```
//! It is served in the owner's control turn, a few requests at a time ([`REQUESTS_PER_TURN`]),
//! never between frames of a batch. Requests are executed one at a time in their order, except for
//! those that need several turns ([`GrefRequests`]), which do not block the others. If a back dies,
//! its successor finds in the control page which requests were answered, with which answer, and
//! which were taken and not answered ([`BackRing::attach_after`]). The state's lock is held while
//! an answer is recorded: pages are read, mapped and unmapped without it.
//!
//! What a guest may do: send any requests without end. Each uses a slot and gets an answer; nothing
//! is logged, and frames move in between. Impossible indices close the vif.

use super::Polled;
use super::shared_control::SharedControl;
use super::tx::PeerRing;
use crate::error::PeerFault;
use crate::net::path::GrefRequests;
use crate::platform::{Events, Platform};
use crate::ring::{BackRing, NetCtrl};
use crate::units::DomId;
use crate::wire::netif_ctrl::{CtrlRequest, CtrlResponse};

/// Largest number of requests of one vif per control turn.
pub const REQUESTS_PER_TURN: u32 = 16;

/// The back's end of a control ring.
pub struct CtrlRing<P: Platform> {
    ring: BackRing<NetCtrl, PeerRing<NetCtrl, P>>,
    chan: <P::Events as Events>::Chan,
    /// Number of requests that the last turn took.
    took: u32,
}

impl<P: Platform> CtrlRing<P> {
    /// Attaches to a ring. `last` is, for a predecessor's ring, the index after its last answer,
    /// and that answer; it is published now if it was not. `taken` more requests were taken and not
    /// answered.
    pub fn attach(
        mem: PeerRing<NetCtrl, P>,
        chan: <P::Events as Events>::Chan,
        last: Option<(u32, CtrlResponse)>,
        taken: usize,
    ) -> Result<Self, PeerFault> {
        let (ring, _) = match last {
            Some(last) => BackRing::attach_after(mem, last, taken as u32)?,
            None => BackRing::attach(mem, None)?,
        };
        Ok(Self { ring, chan, took: 0 })
    }

    /// The control ring's event channel.
    pub fn channel(&self) -> &<P::Events as Events>::Chan {
        &self.chan
    }

    /// For a predecessor's ring, before anything else: notifies the front if it may have missed the
    /// notification of the last answer (R5). Each answer is published by itself with its own
    /// notification. A front that takes any event for its answer, as that of the author of gref
    /// mappings does, would otherwise read its own request.
    pub fn make_good(&self, p: &P) {
        if self.ring.unnotified(1).wanted() {
            p.events().notify(&self.chan);
        }
    }

    /// The index of the next answer.
    pub fn rsp_prod(&self) -> u32 {
        self.ring.req_cons().wrapping_sub(self.ring.unanswered())
    }

    /// Number of requests that the last [turn](Self::poll) took.
    pub fn took(&self) -> u32 {
        self.took
    }

    /// Number of requests that were taken and not answered.
    pub fn unanswered(&self) -> u32 {
        self.ring.unanswered()
    }

    /// Executes requests of domain `of`. With `grefs` also requests about tables of mapped pages.
    pub fn poll(
        &mut self,
        p: &P,
        of: DomId,
        control: &SharedControl,
        mut grefs: Option<&mut GrefRequests<P>>,
    ) -> Result<Polled, PeerFault> {
        let mut moved = false;
        self.took = 0;
        if let Some(grefs) = &mut grefs {
            grefs.begin_turn();
            moved = grefs.can_move();
            self.answer_due(p, of, control, grefs);
        }
        let n = self.ring.available(REQUESTS_PER_TURN)?.min(REQUESTS_PER_TURN);
        for _ in 0..n {
            if grefs.as_ref().is_some_and(|grefs| !grefs.can_take()) {
                break;
            }
            let request = self.ring.read(0);
            self.ring.consume(1);
            self.took += 1;
            moved = true;
            let answer = match &mut grefs {
                Some(grefs) if GrefRequests::<P>::are(&request) => match grefs.take(p, of, &request) {
                    Some((status, data)) => control.lock().answer_with(
                        CtrlResponse::to(&request, status, data),
                        self.rsp_prod().wrapping_add(1),
                    ),
                    None => {
                        control.lock().grefs.take(grefs.unanswered());
                        self.answer_due(p, of, control, grefs);
                        continue;
                    }
                },
                _ => control.answer(p, of, &request, self.rsp_prod().wrapping_add(1)),
            };
            self.publish(p, answer);
        }
        Ok(if moved { Polled::More } else { Polled::Idle })
    }

    /// Answers requests that were taken earlier and are done.
    fn answer_due(&mut self, p: &P, of: DomId, control: &SharedControl, grefs: &mut GrefRequests<P>) {
        while let Some(due) = grefs.due(p, of) {
            let mut control = control.lock();
            if let Some((queue, version)) = due.changed
                && let Some(of_queue) = control.grefs.versions.get_mut(queue)
            {
                *of_queue = version;
            }
            control.grefs.take(grefs.unanswered());
            let response = CtrlResponse::to(&due.request, due.status, due.data);
            let answer = control.answer_with(response, self.rsp_prod().wrapping_add(1));
            drop(control);
            self.publish(p, answer);
        }
    }

    /// Answers requests that a predecessor took, if this back has no tables of mapped pages.
    pub fn refuse(&mut self, p: &P, of: DomId, control: &SharedControl, taken: &[CtrlRequest]) {
        for (k, request) in taken.iter().enumerate().take(self.ring.unanswered() as usize) {
            control.lock().grefs.take(taken.iter().skip(k + 1));
            let answer = control.answer(p, of, request, self.rsp_prod().wrapping_add(1));
            self.publish(p, answer);
        }
    }

    fn publish(&mut self, p: &P, answer: CtrlResponse) {
        if self.ring.answer(&[answer]).wanted() {
            p.events().notify(&self.chan);
        }
    }

    /// Whether there is work, as for [`final_check`](Self::final_check), without asking for events.
    pub fn is_pending(&mut self, grefs: Option<&GrefRequests<P>>) -> bool {
        let takes = grefs.is_none_or(GrefRequests::can_take);
        takes && self.ring.available(1) != Ok(0) || grefs.is_some_and(GrefRequests::can_move)
    }

    /// Called before sleeping: asks for events of the ring and unmasks its channel. Returns true if
    /// there is work. There is none while no more requests can be taken: the worker of a queue
    /// wakes this thread once one of those that were taken can continue.
    pub fn final_check(&mut self, p: &P, grefs: Option<&GrefRequests<P>>) -> Result<bool, PeerFault> {
        let work = self.ring.final_check(1)? && grefs.is_none_or(GrefRequests::can_take);
        p.events().unmask(&self.chan);
        Ok(work || grefs.is_some_and(GrefRequests::can_move))
    }
}
