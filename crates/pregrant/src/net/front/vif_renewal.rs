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

use super::shared_path::SharedPath;
use super::stage::{Announcing, BackIs, Live, Queues, Stage};
use super::taking_up::{Seen, TakingUp};
use super::tx_slots::TxLimits;
use super::vif::{FrontStep, FrontVif};
use crate::error::PeerFault;
use crate::net::features::BackFeatures;
#[cfg(not(feature = "research"))]
use crate::net::path::active_lists::ActiveLists;
use crate::net::path::{DataRing, Negotiate, PageAnnouncement, PathName, Persistent, Staging};
#[cfg(feature = "research")]
use crate::net::path::{Foreign, GuestCopy};
use crate::platform::{Clock, Platform};
use crate::port::Offloads;
use crate::xenbus::bus::DeviceBus;
use crate::xenbus::front::FrontError;
use crate::xenbus::state::XenbusState;
use alloc::vec::Vec;

impl<P: Platform> FrontVif<P> {
    /// The memory that queue `i` shared, and the part of it that this back accepts.
    pub(super) fn shared<B: DeviceBus>(
        &self,
        bus: &mut B,
        back: &BackFeatures,
        i: usize,
    ) -> Result<Vec<SharedPath>, FrontError<B::Error>> {
        let n = self.stage.queues().len();
        let Some(queue) = self.stage.queues().get(i) else { return Ok(Vec::new()) };
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
                #[cfg(feature = "research")]
                PathName::Foreign => Foreign::taken(bus, &back.foreign, of, shared),
                #[cfg(feature = "research")]
                PathName::GuestCopy => GuestCopy::taken(bus, &back.guest_copy, of, shared),
                #[cfg(not(feature = "research"))]
                PathName::Foreign | PathName::GuestCopy => Ok(ActiveLists::NONE),
                PathName::Persistent => Persistent::taken(bus, &back.persistent, of, shared),
                // These paths use ordinary pages, which any back accepts.
                PathName::GrefMapping | PathName::Map | PathName::Copy => Ok(shared),
            };
            let taken = taken.map_err(FrontError::Keys)?.and(queue.offered(path, back));
            all.push(SharedPath { path, shared, taken });
        }
        Ok(all)
    }

    /// Continues with a back that is at state 4 again after it had left that state: see the module.
    pub(super) fn renew<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
    ) -> Result<FrontStep, FrontError<B::Error>> {
        let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
        let mut as_before = true;
        for i in 0..self.stage.queues().len() {
            as_before &= self.shared(bus, &back, i)?.iter().all(|of| of.taken == of.shared);
        }
        if !as_before {
            return self.begin_again(bus);
        }
        self.take_limits(&back);
        let Stage::Live(live) = &mut self.stage else { return Ok(FrontStep::Waiting) };
        let ctrl = live.ctrl.as_ref().filter(|_| self.agreed.asked.gref_mapping && back.ctrl_ring);
        if let Some(ctrl) = ctrl {
            let is_pending = ctrl.is_pending();
            live.announcing = Announcing::AskingAgain { awaits_ours: live.announcing.has_ring() };
            if !is_pending {
                self.ask_again(p);
            }
        } else {
            live.announcing = Announcing::NONE; // this back answers no such request
            self.rx_pool.renew(&mut self.regions, p);
        }
        Ok(FrontStep::Renewed)
    }

    /// Tells the queues which frames this back accepts, and which offload work.
    pub(super) fn take_limits(&mut self, back: &BackFeatures) {
        // The queues may have no memory for such frames, if the former back accepted none.
        let queues = self.stage.queues_mut();
        let sg = back.sg && !queues.iter().any(|q| q.tx().chain().of_one_slot());
        let limits = TxLimits { sg, gso_tcpv4: back.gso_tcpv4, gso_tcpv6: back.gso_tcpv6 };
        queues.iter_mut().for_each(|q| q.tx_mut().limit(limits));
        self.agreed.takes_sg = sg;
        self.agreed.takes_multicast &= back.multicast_control;
        self.agreed.takes = Offloads { csum: back.ipv6_csum, gso: sg && back.gso_tcpv4 && back.gso_tcpv6 };
    }

    /// Announces all pages again, once the outstanding request has its answer. Returns true if it
    /// starts to do so now.
    pub(super) fn go_on_renewing(&mut self, p: &P) -> Result<bool, PeerFault> {
        let is_asking = self.is_asking();
        let Stage::Live(Live { ctrl: Some(ctrl), announcing, .. }) = &mut self.stage else {
            return Ok(false);
        };
        // An answer to our request means nothing, since either of the two backs may have given it.
        // An answer to a request of the owner is passed to the owner.
        let is_ours = announcing.has_ring() || is_asking;
        if ctrl.is_pending() && (!is_ours || ctrl.answer()?.is_none()) {
            return Ok(false);
        }
        self.ask_again(p);
        Ok(true)
    }

    fn ask_again(&mut self, p: &P) {
        let Stage::Live(Live { queues, announcing, .. }) = &mut self.stage else { return };
        if let Some(own) = &mut self.own {
            own.renew(queues.here_mut());
        }
        self.rx_pool.renew(&mut self.regions, p);
        *announcing = Announcing::Asking(PageAnnouncement::new(queues.count()));
        self.ask_next(p);
    }

    /// Handles a back that is not in state 4, which counts as away. Returns true if the back is in
    /// state 2 and did not use the live rings within its time.
    pub(super) fn follow_away(&mut self, p: &P, back: XenbusState) -> bool {
        let Stage::Live(live) = &mut self.stage else { return false };
        if !self.front.reconnects() || back != XenbusState::InitWait {
            live.end_away();
            live.back = BackIs::Away { taking_up: None };
            return false;
        }
        let now_ns = p.clock().now_ns();
        if let BackIs::Connected | BackIs::Away { taking_up: None } = live.back {
            live.queues.watch(true);
        }
        let seen = look_at_rings(&mut live.queues);
        let mut taking_up = match live.back {
            BackIs::Away { taking_up: Some(taking_up) } => taking_up,
            BackIs::Connected | BackIs::Away { taking_up: None } => TakingUp::new(now_ns, seen),
        };
        taking_up.look(now_ns, seen);
        live.back = BackIs::Away { taking_up: Some(taking_up) };
        taking_up.ends_ns().is_some_and(|ends| ends <= now_ns)
    }
}

fn look_at_rings<P: Platform>(queues: &mut Queues<P>) -> Seen {
    let mut seen = Seen::default();
    match queues {
        Queues::Here(queues) => {
            for queue in queues {
                let (answers, waits) = queue.answers_on_rings();
                seen.answers = seen.answers.wrapping_add(answers);
                seen.waits |= waits;
            }
        }
        Queues::HandedOut(out) => {
            for queue in out {
                seen.answered |= queue.link.take_answered();
                seen.waits |= queue.link.sender_waits();
            }
        }
    }
    seen
}
