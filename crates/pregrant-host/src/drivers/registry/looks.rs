//! What is looked at now and then, for nobody tells of it: what stands behind a device.
//!
//! ```text
//!   connected:            it has changed perhaps (a disk's length)         each second, if its class wants it
//!   about to connect:     somebody has it, who may let go                  each 20 ms, for ten seconds; then the device fails
//!   left by a predecessor: the same, with live rings (find)                each 20 ms, for as long as it takes: its guest waits
//!   somebody else's:      the kernel has it, who may let go                each second
//!   about to close:       what is under way behind it ends (recall)        each 20 ms, for as long as its class says
//! ```
//! What a guest may do: nothing here.

use super::Backend;
use super::devices::{Busy, Settling};
use log::Level;
use pregrant::platform::Platform;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::refusal::ConnectError;
use pregrant::xenbus::{DeviceError, DeviceId};
use pregrant::xenstore::Transport;
use std::time::{Duration, Instant};

/// Between two looks at what stands behind devices that are connected.
const LOOK: Duration = Duration::from_secs(1);
/// Between two looks at what somebody has.
pub(super) const BUSY_LOOK: Duration = Duration::from_millis(20);
/// How long a front that is about to connect waits for that.
const BUSY_MOST: Duration = Duration::from_secs(10);

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// A front is about to connect, and somebody has what stands behind the device: it waits.
    pub(super) fn wait_for_busy(&mut self, id: DeviceId, e: ConnectError<DeviceError>) {
        let Some(served) = self.devices.get_mut(&id) else { return };
        let now = Instant::now();
        if served.busy.is_none() {
            served.say(Level::Info, &format_args!("its front waits: {e}"));
        }
        let since = served.busy.map_or(now, |busy| busy.since);
        if now.duration_since(since) < BUSY_MOST {
            served.busy = Some(Busy { since, next: now + BUSY_LOOK });
            return;
        }
        served.busy = None;
        self.failed_to_connect(id, e);
    }

    /// Looks at what it is time to look at.
    pub(super) fn turn_looks(&mut self) {
        let now = Instant::now();
        let is_due = |busy: &Busy| busy.next <= now;
        let due: Vec<_> = self.devices.iter().filter(|s| s.busy.as_ref().is_some_and(is_due)).collect();
        let due: Vec<_> = due.into_iter().map(|served| served.device.id()).collect();
        due.into_iter().for_each(|id| self.step(id));
        let is_due = |s: &Settling| !s.over && s.next <= now;
        let due: Vec<_> = self.devices.iter().filter(|s| s.settling.as_ref().is_some_and(is_due)).collect();
        let due: Vec<_> = due.into_iter().map(|served| served.device.id()).collect();
        due.into_iter().for_each(|id| self.go_on(id));
        if now.duration_since(self.looked) < LOOK {
            return;
        }
        self.looked = now;
        self.rescan |= self.is_one_free();
        for served in self.devices.iter_mut().filter(|s| s.is_connected() && s.served.wants_looks()) {
            let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
            if let Err(e) = served.served.look(&mut bus, &served.log) {
                served.say(Level::Warn, &e);
            }
        }
    }

    /// When the next look is due, from now.
    pub(super) fn look_due(&self) -> Option<Duration> {
        let now = Instant::now();
        let busy = self.devices.iter().filter_map(|served| served.busy.map(|busy| busy.next));
        let held = self.held.values().filter(|held| !held.given_up).map(|held| held.next);
        let looks = !self.left_alone.is_empty()
            || self.devices.iter().any(|s| s.is_connected() && s.served.wants_looks());
        let settling = self.devices.iter().filter_map(|s| s.settling.filter(|s| !s.over).map(|s| s.next));
        let first = busy.chain(held).chain(settling).chain(looks.then(|| self.looked + LOOK)).min()?;
        Some(first.saturating_duration_since(now))
    }
}
