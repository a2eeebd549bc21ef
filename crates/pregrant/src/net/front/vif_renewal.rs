//! A vif goes on with its rings while another back takes them. That back may not know the
//! references that the front sent to its predecessor.
//!
//! ```text
//!   our state 4 all the while, the back's: 4 --> 1, 2 or another --> 4     (Linux's netback, unbound and bound again)
//!        the back refuses what was shared at set-up  ------> 5, and from the beginning
//!        it accepts it, or nothing was shared -------------> live; later requests are sent again
//!        the back stays at 2 and serves the rings ---------> live all the while
//!        it stays there and does not: see taking_up -------> 5, and from the beginning
//! ```
//! A new back learns what was shared at set-up from the front's keys. It writes in its own keys
//! which of that it accepts, and frames use nothing else. It does not know later requests, so these
//! are sent again: pages that are to stay mapped (GET and ADD), and by [`FrontStep::Renewed`] the
//! requests of the vif's owner: hash and table on the control ring, multicast addresses. A
//! successor of our own back keeps all of it, and also state 4.
//!
//! What a back may do: leave 4 and come back as often as it likes. Each time costs it as much
//! work as the front.

use super::ctrl::CtrlFront;
use super::shared_path::SharedPath;
use super::taking_up::{Seen, TakingUp};
use super::tx_slots::TxLimits;
use super::vif::{FrontStep, FrontVif};
use crate::error::PeerFault;
use crate::net::features::BackFeatures;
use crate::net::path::{
    DataRing, Foreign, GuestCopy, Negotiate, PageAnnouncement, PathName, Persistent, Staging,
};
use crate::platform::{Clock, Platform};
use crate::port::Offloads;
use crate::xenbus::bus::DeviceBus;
use crate::xenbus::front::FrontError;
use crate::xenbus::state::XenbusState;
use alloc::vec::Vec;

impl<P: Platform> FrontVif<P> {
    /// The memory of queue `i` that was shared, and how much of it this back takes.
    pub(super) fn shared<B: DeviceBus>(
        &self,
        bus: &mut B,
        back: &BackFeatures,
        i: usize,
    ) -> Result<Vec<SharedPath>, FrontError<B::Error>> {
        let n = self.queues.len();
        let Some(queue) = self.queues.get(i) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for path in PathName::ALL {
            let shared = queue.shared(path);
            if !shared.any() {
                continue;
            }
            let of = (i, n);
            let taken = match path {
                PathName::Staging => Staging::taken(bus, &back.staging, of, shared),
                PathName::DataRing => DataRing::taken(bus, &back.data_ring, of, shared),
                PathName::Foreign => Foreign::taken(bus, &back.foreign, of, shared),
                PathName::GuestCopy => GuestCopy::taken(bus, &back.guest_copy, of, shared),
                PathName::Persistent => Persistent::taken(bus, &back.persistent, of, shared),
                // Their pages are ordinary ones, which any back takes.
                PathName::GrefMapping | PathName::Map | PathName::Copy => Ok(shared),
            };
            let taken = taken.map_err(FrontError::Keys)?.and(queue.offered(path, back));
            all.push(SharedPath { path, shared, taken });
        }
        Ok(all)
    }

    /// The back was not at 4, and is again: see the module.
    pub(super) fn renew<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
    ) -> Result<FrontStep, FrontError<B::Error>> {
        let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
        let mut as_before = true;
        for i in 0..self.queues.len() {
            as_before &= self.shared(bus, &back, i)?.iter().all(|of| of.taken == of.shared);
        }
        if !as_before {
            self.set_live(false);
            self.front.restart(bus).map_err(FrontError::Keys)?;
            return Ok(FrontStep::Waiting);
        }
        self.take_limits(&back);
        self.announced.clear();
        self.renews = self.asked.gref_mapping && self.ctrl.is_some() && back.ctrl_ring;
        if !self.renews {
            self.announcement = None; // no back answers
            self.rx_pool.renew(&mut self.regions, p);
        }
        if !self.ctrl.as_ref().is_some_and(CtrlFront::is_pending) {
            self.ask_again(p);
        }
        Ok(FrontStep::Renewed)
    }

    /// Which frames this back takes of the queues, and which unfinished.
    pub(super) fn take_limits(&mut self, back: &BackFeatures) {
        // The queues may have no memory for such frames, where the back before this took none.
        let sg = back.sg && !self.queues.iter().any(|q| q.tx().chain().of_one_slot());
        let limits = TxLimits { sg, gso_tcpv4: back.gso_tcpv4, gso_tcpv6: back.gso_tcpv6 };
        self.queues.iter_mut().for_each(|q| q.tx_mut().limit(limits));
        self.takes_sg = sg;
        self.takes_multicast &= back.multicast_control;
        self.takes = Offloads { csum: back.ipv6_csum, gso: sg && back.gso_tcpv4 && back.gso_tcpv6 };
    }

    /// Announces all pages again, once the request under way has its answer. True: it does
    /// now.
    pub(super) fn go_on_renewing(&mut self, p: &P) -> Result<bool, PeerFault> {
        let is_asking = self.is_asking();
        let Some(ctrl) = &mut self.ctrl else { return Ok(false) };
        // An answer to ours says nothing: either of the two backs may have given it. One to the
        // owner's is its.
        let is_ours = self.announcement.is_some() || is_asking;
        if ctrl.is_pending() && (!is_ours || ctrl.answer()?.is_none()) {
            return Ok(false);
        }
        self.ask_again(p);
        Ok(true)
    }

    fn ask_again(&mut self, p: &P) {
        if !core::mem::take(&mut self.renews) {
            return;
        }
        if let Some(own) = &mut self.own {
            own.renew(&mut self.queues);
        }
        self.rx_pool.renew(&mut self.regions, p);
        self.announcement = Some(PageAnnouncement::new(self.nr_queues()));
        self.ask_next(p);
    }

    /// Whether a back at 2, whose live rings it should have taken up, has had its time for that.
    pub(super) fn waits_in_vain(&mut self, p: &P, back: XenbusState) -> bool {
        if !self.live || !self.front.reconnects() || back != XenbusState::InitWait {
            self.end_taking_up();
            return false;
        }
        let now_ns = p.clock().now_ns();
        if self.taking_up.is_none() {
            self.handed_out.iter().for_each(|link| link.watch(true));
        }
        let seen = self.look_at_rings();
        let taking_up = self.taking_up.get_or_insert_with(|| TakingUp::new(now_ns, seen));
        taking_up.look(now_ns, seen);
        let over = taking_up.ends_ns().is_some_and(|ends| ends <= now_ns);
        if over {
            self.end_taking_up();
        }
        over
    }

    /// The back is not at 2 with our rings any more.
    pub(super) fn end_taking_up(&mut self) {
        if self.taking_up.take().is_some() {
            self.handed_out.iter().for_each(|link| link.watch(false));
        }
    }

    fn look_at_rings(&mut self) -> Seen {
        let mut seen = Seen::default();
        for queue in &mut self.queues {
            let (answers, waits) = queue.answers_on_rings();
            seen.answers = seen.answers.wrapping_add(answers);
            seen.waits |= waits;
        }
        for link in &self.handed_out {
            seen.answered |= link.take_answered();
            seen.waits |= link.sender_waits();
        }
        seen
    }
}
