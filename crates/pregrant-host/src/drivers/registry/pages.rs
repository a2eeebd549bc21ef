//! How many pages of one guest's may be mapped, over all of its devices (XSA-300), and who has them.
//!
//! ```text
//!   limit of a guest  =  what its devices need (rings, buffers named at connect)  +  what they keep since they saw it
//! ```
//! Queues that workers have are told, and let go of pages as soon as they are looked at.
//!
//! What a device needs comes first. Before one may connect, what its guest's others only keep gives way to what it may come to
//! need; once it is connected, what is left is shared out anew.

use super::Backend;
use super::devices::Instance;
use pregrant::platform::Platform;
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::Transport;

/// Pages of one guest that are mapped at a time, over all of its devices, unless the configuration says otherwise
/// (XSA-300): 64 MiB. A vif with eight queues, a page for each of 256 buffers both ways, has 4112 of them.
pub const PAGES_PER_GUEST: usize = 16 * 1024;
/// Pages of all guests that stay mapped since they were seen, or because they asked for it, each a mapping of its own: a Linux process may have 65530
/// (`vm.max_map_count`). Who connects when they are shared out has the next path.
const PERSISTENT_PAGES: usize = 16 * 1024;

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Pages that a device of a guest may need, what its others need not counted.
    pub(super) fn pages_left(&self, id: &DeviceId) -> usize {
        let others = self.devices.iter().filter(|s| is_other(&s.device.id(), id));
        self.config.page_limit.saturating_sub(others.map(|s| s.served.back().needed_pages()).sum())
    }

    /// Before a device may connect: what its guest's others only keep gives way to what it may come to need.
    pub(super) fn make_room(&mut self, id: &DeviceId) {
        if self.devices.get(id).is_some_and(|served| served.is_connected()) {
            return;
        }
        let most = self.classes.iter().find(|c| c.class() == id.class).map_or(0, |c| c.most_pages());
        let left = self.pages_left(id).saturating_sub(most);
        let others = || self.devices.iter().filter(|s| is_other(&s.device.id(), id));
        if others().map(|s| s.served.back().allowed_pages()).sum::<usize>() > left {
            let n = others().count();
            for served in self.devices.iter_mut().filter(|s| is_other(&s.device.id(), id)) {
                served.served.back_mut().allow_pages(&self.platform, left / n);
                self.crew.nudge(served.device.id());
            }
        }
    }

    /// A device is connected: what its guest's devices may keep is shared out anew.
    pub(super) fn share_pages(&mut self, id: &DeviceId) {
        let (own, strangers): (Vec<_>, Vec<_>) =
            self.devices.iter().partition(|s| s.device.id().front == id.front);
        let mappings = |s: &&Instance<P, T>| {
            let back = s.served.back();
            back.allowed_pages() + back.single_pages()
        };
        let theirs = strangers.iter().map(mappings).sum::<usize>()
            + own.iter().map(|s| s.served.back().single_pages()).sum::<usize>();
        let n = own.iter().filter(|s| s.is_connected()).count();
        let needed = own.iter().map(|s| s.served.back().needed_pages()).sum();
        let left = self.config.page_limit.saturating_sub(needed).min(PERSISTENT_PAGES.saturating_sub(theirs));
        for served in self.devices.iter_mut().filter(|s| s.device.id().front == id.front) {
            served.served.back_mut().allow_pages(&self.platform, left / n.max(1));
            self.crew.nudge(served.device.id());
        }
    }
}

/// Another device of the same guest.
fn is_other(id: &DeviceId, than: &DeviceId) -> bool {
    id.front == than.front && id != than
}
