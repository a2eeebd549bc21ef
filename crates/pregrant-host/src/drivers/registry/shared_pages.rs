//! Which devices share the pages of their guest ([`pages`](super::pages)), and when each learns its
//! share.
//!
//! ```text
//!   about to step: what it may have, should it connect           a check: no other device learns of it
//!   connected, taken up, closed, gone, requests more: the shares of all connected devices of this guest, again
//! ```
//! Queues that workers have get the new share, and let go of pages once they are checked: until
//! then what one gives way with and what another has instead are both mapped.
//!
//! What a guest may do: connect and close without end. Each time the shares of its own devices are
//! counted, at the expense of its steps.

use super::Backend;
use super::devices::Instance;
use super::pages::{PAGES_PER_GUEST, PageBudget, lasting, room, shares};
use super::stage::AnnouncedPages;
use pregrant::platform::Platform;
use pregrant::units::DomId;
use pregrant::xenbus::back::PageShare;
use pregrant::xenbus::{DeviceId, XenbusState};
use pregrant::xenstore::Transport;

/// Largest number of pages, of all guests, that stay mapped after they were first seen or because
/// the guest asked for it. Each is a mapping of its own, and a Linux process may have 65530
/// (`vm.max_map_count`). One guest alone cannot get all of them. A device that connects when none
/// are left uses its next path.
const PERSISTENT_PAGES: usize = 2 * PAGES_PER_GUEST;

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Returns the pages that a device may map if it connects now.
    pub(super) fn room_for(&self, id: &DeviceId) -> PageBudget {
        let others =
            || self.devices.iter().filter(|s| s.device.id().front == id.front && s.device.id() != *id);
        let (mut least, mut requests) = (0, Vec::new());
        for other in others() {
            let pages = other.served.back().pages();
            least += pages.least;
            requests.extend(other.is_connected().then_some(pages.requested));
        }
        room(self.config.page_limit, least, &requests, 1 + others().filter(|s| may_connect(s)).count())
    }

    /// Shares a guest's pages among its devices again, beyond their minimum. Pages that it leaves
    /// are offered to guests that were short of them.
    pub(super) fn share_pages(&mut self, front: DomId) {
        self.share_out(front, false);
        let is_short =
            |s: &&Instance<P, T>| announced(s).is_some_and(|pages| pages.share.pages < pages.requested);
        let mut short: Vec<_> = self.devices.iter().filter(is_short).map(|s| s.device.id().front).collect();
        short.sort_unstable();
        short.dedup();
        short.into_iter().filter(|other| *other != front).for_each(|other| self.share_out(other, true));
    }

    /// Shares out one guest's pages. With `for_more` this is done only if there are more pages than
    /// last time.
    fn share_out(&mut self, front: DomId, for_more: bool) {
        let limit = self.config.page_limit;
        let (own, strangers): (Vec<_>, Vec<_>) =
            self.devices.iter().partition(|s| s.device.id().front == front);
        let of_strangers = strangers.iter().map(|s| s.served.back().pages());
        let mut theirs = of_strangers.map(|pages| pages.allowed + pages.single).sum::<usize>();
        let (mut least, mut waiting, mut before, mut of_connected) = (0, 0, 0, Vec::new());
        for device in own {
            let pages = device.served.back().pages();
            theirs += pages.single;
            least += pages.least;
            waiting += usize::from(may_connect(device));
            before += announced(device).map_or(0, |pages| pages.share.pages);
            of_connected.extend(device.is_connected().then_some(pages));
        }
        let left = limit.saturating_sub(least).min(PERSISTENT_PAGES.saturating_sub(theirs));
        let requests: Vec<_> = of_connected.iter().map(|pages| pages.requested).collect();
        let for_long = lasting(limit, least, &requests, waiting);
        let shares = shares(left, &requests);
        if for_more && shares.iter().sum::<usize>() <= before {
            return;
        }
        let own = self.devices.iter_mut().filter(|s| s.device.id().front == front && s.is_connected());
        let shares = shares.into_iter().zip(for_long);
        for ((served, (pages, for_long)), of_device) in own.zip(shares).zip(of_connected) {
            let Some(connected) = served.stage.connected_mut() else { continue };
            let share = PageShare { pages, lasting: of_device.least + for_long };
            let before = connected.pages.replace(AnnouncedPages { requested: of_device.requested, share });
            if before.is_none_or(|before| before.share != share) {
                served.served.back_mut().allow_pages(&self.platform, share);
                self.pool.wake_queues(served.device.id());
            }
        }
    }

    /// Shares out pages as [`share_pages`](Self::share_pages) does, if the device requests another
    /// number of pages than when they were last shared out.
    pub(super) fn share_as_requested(&mut self, id: &DeviceId) {
        let Some(served) = self.devices.get(id).filter(|served| served.is_connected()) else { return };
        let before = announced(served).map_or(0, |pages| pages.requested);
        if served.served.back().pages().requested > before {
            self.share_pages(id.front);
        }
    }
}

/// Returns the share that was announced to a connected device.
fn announced<P: Platform, T: Transport + 'static>(served: &Instance<P, T>) -> Option<AnnouncedPages> {
    served.stage.connected()?.pages
}

/// Returns true if a device is not connected, and its front may connect soon.
fn may_connect<P: Platform, T: Transport + 'static>(served: &Instance<P, T>) -> bool {
    let state = served.served.back().state();
    !served.is_connected() && matches!(state, XenbusState::Initialising | XenbusState::InitWait)
}
