//! A vif whose rings live on while another back takes them, which may know nothing of what its
//! predecessor was told.
//!
//! ```text
//!   our state 4 all the while, the back's: 4 --> 1, 2 or another --> 4     (Linux's netback, unbound and bound again)
//!        what was shared at set-up is not taken any more --> 5, and from the beginning
//!        it is, or nothing was ----------------------------> live; what was asked since is asked again
//! ```
//! Keys tell a new back of what was shared at set-up: it says in its own which of these it takes,
//! and frames travel that way or by nothing. What a front asks for later it would not know: pages
//! that are to stay mapped (GET and ADD again, whatever it kept), and what the vif's owner asked
//! for, by [`FrontStep::Renewed`]: hash and table on the control ring, multicast addresses. Our own
//! back's successor keeps all of it, and the state 4 as well.
//!
//! What a back may do: leave 4 and come back as often as it likes. Each time costs it as much as
//! us.

use super::ctrl::CtrlFront;
use super::taken::Taken;
use super::tx_slots::TxLimits;
use super::vif::{FrontError, FrontStep, FrontVif};
use crate::error::PeerFault;
use crate::net::features::{
    ActiveLists, BackFeatures, active_key, data_ring_active_key, guest_copy_active_key,
};
use crate::net::path::foreign;
use crate::net::path::gref_mapping::front::PageAnnouncement;
use crate::net::path::gref_mapping::own_pages::OwnPages;
use crate::net::path::staging::list::DataLen;
use crate::platform::Platform;
use crate::port::Offloads;
use crate::wire::data_ring::ORDER_MIN;
use crate::xenbus::bus::DeviceBus;

impl<P: Platform> FrontVif<P> {
    /// What of queue `i` was shared.
    pub(super) fn shared(&self, i: usize) -> Taken {
        let (tx, rx) = self.queues[i].staging_lens();
        let lists = ActiveLists { tx: tx.is_some(), rx: rx.is_some() };
        Taken { lists, rings: self.queues[i].data_ring(), lends: self.queues[i].borrows() }
    }

    /// What of it this back takes. It may be another than the one that we asked, and know nothing
    /// of what the keys of its directory say: it has to offer it, too.
    pub(super) fn taken<B: DeviceBus>(
        &self,
        bus: &mut B,
        back: &BackFeatures,
        i: usize,
    ) -> Result<Taken, FrontError<B::Error>> {
        let (n, shared) = (self.queues.len(), self.shared(i));
        let mut said = |asked: bool, key: &dyn Fn() -> alloc::string::String| match asked {
            true => bus.text(&key()).map_err(FrontError::Keys),
            false => Ok(None),
        };
        let (tx, rx) = self.queues[i].staging_lens();
        let known = |len: Option<DataLen>| len.is_some_and(|len| back.staging_sizes.contains(&len));
        let text = said(shared.lists.any(), &|| active_key(i, n))?;
        let lists = ActiveLists::parse(text.as_deref(), shared.lists);
        let lists = lists.and(ActiveLists { tx: known(tx), rx: known(rx) });
        let has_rings = shared.rings.any() && back.max_data_ring_order >= ORDER_MIN;
        let text = said(has_rings, &|| data_ring_active_key(i, n))?;
        let rings = ActiveLists::parse(text.as_deref(), ActiveLists::BOTH).and(shared.rings);
        let text = said(shared.lends && back.guest_copy, &|| guest_copy_active_key(i, n))?;
        Ok(Taken { lists, rings, lends: text.as_deref() == Some("1") })
    }

    /// Whether this back names frames as its front does.
    pub(super) fn takes_names<B: DeviceBus>(
        &self,
        bus: &mut B,
        back: &BackFeatures,
    ) -> Result<bool, FrontError<B::Error>> {
        Ok(back.foreign && bus.text(foreign::ACTIVE).map_err(FrontError::Keys)?.as_deref() == Some("1"))
    }

    /// The back was not at 4, and is again: see the module.
    pub(super) fn renew<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
    ) -> Result<FrontStep, FrontError<B::Error>> {
        let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
        let mut as_before = !self.names_frames() || self.takes_names(bus, &back)?;
        for i in 0..self.queues.len() {
            as_before &= self.taken(bus, &back, i)? == self.shared(i);
        }
        if !as_before {
            self.live = false;
            self.front.restart(bus).map_err(FrontError::Keys)?;
            return Ok(FrontStep::Waiting);
        }
        self.take_limits(&back);
        self.announced.clear();
        self.renews = self.asked.gref_mapping && self.ctrl.is_some() && back.ctrl_ring;
        if !self.renews {
            self.announcement = None; // nobody answers
        }
        if !self.ctrl.as_ref().is_some_and(CtrlFront::is_pending) {
            self.ask_again(p);
        }
        Ok(FrontStep::Renewed)
    }

    /// Which frames this back takes of the queues, and which unfinished.
    pub(super) fn take_limits(&mut self, back: &BackFeatures) {
        let limits = TxLimits { sg: back.sg, gso_tcpv4: back.gso_tcpv4, gso_tcpv6: back.gso_tcpv6 };
        self.queues.iter_mut().for_each(|q| q.tx_mut().limit(limits));
        self.takes = Offloads { csum: back.ipv6_csum, gso: back.sg && back.gso_tcpv4 && back.gso_tcpv6 };
    }

    /// Asks for pages from the beginning, once what was asked before has its answer. True: it does
    /// now.
    pub(super) fn go_on_renewing(&mut self, p: &P) -> Result<bool, PeerFault> {
        let Some(ctrl) = &mut self.ctrl else { return Ok(false) };
        // An answer to ours says nothing: which of the two backs gave it, nobody knows. One to the
        // owner's is its.
        let is_ours = self.announcement.is_some() || self.own.as_ref().is_some_and(OwnPages::is_asking);
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
        self.announcement = Some(PageAnnouncement::new(self.queues.len()));
        self.ask_next(p);
    }
}
