//! Pages of this domain that a connecting back lends to a queue's guest, and what becomes of them when the vif is closed.
//!
//! ```text
//!   guest-copy-ref --map, write, unmap--> list page        GuestCopyPath --disconnect--> released, or held
//! ```
//! What a front may do: name any page as its list; map what it is lent and keep it. Such a page is held and its release tried again, and
//! nothing more is lent to this vif meanwhile: what a guest can hold is what one connection lent.

use super::Vif;
use crate::net::features::{QueueKeys, RingRequest};
use crate::net::path::GuestCopyPath;
use crate::net::path::guest_copy::back::lent_pages;
use crate::platform::{Access, GrantPool, InUse, PeerMem, Platform};
use crate::ring::{NetRx, RingKind};
use crate::units::PAGE_SIZE;
use crate::wire::ring::ring_size;

impl<P: Platform> Vif<P> {
    /// Lends pages to a queue that asks for them, where they are no more than `left`. None: its frames go another way.
    pub(super) fn lend_pages(
        &mut self,
        p: &P,
        keys: &QueueKeys,
        left: usize,
    ) -> Option<(GuestCopyPath<P>, usize)> {
        let RingRequest::Index(list) = keys.guest_copy else { return None };
        if !self.config.guest_copy || !self.holds_nothing(p) {
            return None;
        }
        let slots = ring_size(keys.rx_ring.len() * PAGE_SIZE, NetRx::SLOT_WORDS * 4);
        let pages = lent_pages(slots) as usize;
        if pages > left {
            return None;
        }
        // Mapped no longer than it is written.
        let list = p.peer().map(self.of, &[list], Access::ReadWrite).ok()?;
        Some((GuestCopyPath::lend(p, self.of, &list, slots).ok()?, pages))
    }

    /// Ends what is lent.
    pub(super) fn take_pages_back(&mut self, p: &P) {
        let lent = self.queues.iter_mut().filter_map(|q| q.rx.chain_mut().take_guest_copy());
        self.held.extend(lent.map(GuestCopyPath::into_region));
        self.holds_nothing(p);
    }

    /// Tries again to release what a front held. Whether it let go of all.
    fn holds_nothing(&mut self, p: &P) -> bool {
        let held = core::mem::take(&mut self.held);
        let still = held.into_iter().filter_map(|region| p.grants().release(region).err());
        self.held = still.map(|InUse(region)| region).collect();
        self.held.is_empty()
    }

    /// Regions that were lent, and that the front has not let go of.
    pub fn held_regions(&self) -> usize {
        self.held.len()
    }
}
