//! The devices of a backend, of all classes, in the order of their numbers.

use super::backing_state::BackingState;
use super::stage::Stage;
use super::throttles::DeviceThrottle;
use crate::drivers::device_class::ServedDevice;
use crate::drivers::device_log::DeviceLog;
use log::Level;
use pregrant::platform::Platform;
use pregrant::xenbus::back::{Connection, PageUse};
use pregrant::xenbus::{Device, DeviceId, XenbusState};
use pregrant::xenstore::{Client, Transport, WatchEvent, XsError};
use std::any::Any;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The state of one device of any class, for the status and for tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceReport {
    /// The class, the guest and the number of the device.
    pub id: DeviceId,
    /// The back's xenbus state.
    pub state: XenbusState,
    /// The reason why this end closed the device, if it did.
    pub failed: Option<String>,
    /// Number of times the device was closed because of a fault.
    pub faults: u64,
    /// Number of times the device's front was not watched for a while, because it asked for too
    /// many steps or kept its control ring too busy.
    pub throttled: u64,
    /// Number of log lines that were left out because the device caused too many
    /// ([`DeviceLog`](crate::drivers::device_log::DeviceLog)).
    pub lines_left_out: u64,
    /// The reason why this end last closed the device, even if it is connected again.
    pub last_failure: Option<String>,
    /// The reason why the backing is unavailable, if the device is not connected because of that.
    pub waits_for: Option<String>,
    /// True if the backing was tried; false: it is unknown whether it is available.
    pub is_tried: bool,
    /// Worker time in nanoseconds that its queues used while other queues wanted the same worker.
    pub worker_ns: u64,
    /// True if the rings were taken over from a predecessor.
    pub reattached: bool,
    /// The time since the device's queues became live; None: they are not live.
    pub connected: Option<Duration>,
    /// Number of the guest's pages that the device has mapped, or may have at any moment, apart
    /// from kept pages.
    pub pages_needed: usize,
    /// Number of pages that the device may keep mapped, because it saw them or was asked to.
    pub pages_allowed: usize,
}

impl DeviceReport {
    /// Creates the report of a device that a predecessor left connected, and that waits for its
    /// backing.
    pub(super) fn waiting(id: DeviceId, state: XenbusState, why: &str) -> Self {
        Self {
            id,
            state,
            failed: None,
            faults: 0,
            throttled: 0,
            lines_left_out: 0,
            last_failure: None,
            waits_for: Some(why.into()),
            is_tried: true,
            worker_ns: 0,
            reattached: false,
            connected: None,
            pages_needed: 0,
            pages_allowed: 0,
        }
    }
}

/// A device that is served.
pub(super) struct Instance<P: Platform, T: Transport + 'static> {
    pub(super) device: Device,
    pub(super) served: Box<dyn ServedDevice<P, T>>,
    pub(super) log: DeviceLog,
    pub(super) stage: Stage<P>,
    pub(super) throttle: DeviceThrottle,
    pub(super) history: History,
    /// The device's lock, if locks are used.
    pub(super) _owned: Option<Box<dyn Any>>,
}

/// A device's history since it was found, for its report.
#[derive(Default)]
pub(super) struct History {
    /// Number of times this end closed the device.
    pub(super) failures: u64,
    /// The reason of the last of these failures.
    pub(super) last_failure: Option<String>,
    /// True if the rings were taken over from a predecessor.
    pub(super) reattached: bool,
    /// Worker time that its queues used while other queues wanted the same worker.
    pub(super) worker_ns: Arc<AtomicU64>,
}

impl<P: Platform, T: Transport + 'static> Instance<P, T> {
    /// Returns true if this device's front changed a key that we watch.
    pub(super) fn is_about(&self, event: &WatchEvent) -> bool {
        let is_about = |key: &&str| self.device.is_peer_key_event(event, key);
        self.device.is_peer_event(event) || self.front_keys().iter().any(is_about)
    }

    /// Watches the state of the device's front and the other keys that may change. An event comes
    /// at once.
    pub(super) fn watch(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        watch(&self.device, self.front_keys(), xs)
    }

    /// Removes the device's watches.
    pub(super) fn unwatch(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        unwatch(&self.device, self.front_keys(), xs)
    }

    /// Writes a line to the log, within the device's budget.
    pub(super) fn say(&self, level: Level, text: &dyn Display) {
        self.log.say(level, text);
    }

    pub(super) fn is_connected(&self) -> bool {
        self.stage.is_connected()
    }

    /// Checks the invariant of [`stage`](super::stage).
    pub(super) fn is_stage_right(&self) -> bool {
        self.is_connected() == (self.served.back().connection() != Connection::None)
    }

    /// Returns the keys of the front that may change while it is connected.
    fn front_keys(&self) -> &'static [&'static str] {
        self.served.back().rules().front_keys
    }

    /// True if this process runs the device's hotplug.
    pub(super) fn has_hotplug(&mut self) -> bool {
        self.served.hotplug().is_some_and(|script| script.is_pending())
    }

    pub(super) fn wants_checks(&mut self) -> bool {
        self.is_connected() && self.served.periodic_check().is_some()
    }

    pub(super) fn report(&self) -> DeviceReport {
        let PageUse { needed, allowed, .. } = self.served.back().pages();
        let (backing, history) = (self.stage.backing(), &self.history);
        let failed = match &self.stage {
            Stage::Failed { why, .. } => Some(why.clone()),
            Stage::Waiting(_) | Stage::Connected(_) => None,
        };
        DeviceReport {
            id: self.device.id(),
            state: self.served.back().state(),
            failed,
            faults: history.failures,
            throttled: self.throttle.times(),
            lines_left_out: self.log.left_out(),
            last_failure: history.last_failure.clone(),
            waits_for: backing.and_then(BackingState::why).map(String::from),
            is_tried: backing.is_none_or(BackingState::is_decided),
            worker_ns: history.worker_ns.load(Ordering::Relaxed),
            reattached: history.reattached,
            connected: self.stage.connected().map(|connected| connected.since.elapsed()),
            pages_needed: needed,
            pages_allowed: allowed,
        }
    }
}

/// Watches keys of a device's front.
pub(super) fn watch<T: Transport>(device: &Device, keys: &[&str], xs: &mut Client<T>) -> Result<(), XsError> {
    device.watch_peer(xs)?;
    keys.iter().try_for_each(|key| device.watch_peer_key(xs, key))
}

/// Ends the watches of keys of a device's front.
pub(super) fn unwatch<T: Transport>(
    device: &Device,
    keys: &[&str],
    xs: &mut Client<T>,
) -> Result<(), XsError> {
    // All watches are ended, even if one fails; the first error is returned.
    let keys: Vec<_> = keys.iter().map(|key| device.unwatch_peer_key(xs, key)).collect();
    device.unwatch_peer(xs)?;
    keys.into_iter().collect()
}

/// The devices that are served, in the order of their ids. A position is valid until a device is
/// added or removed.
pub(super) struct Devices<P: Platform, T: Transport + 'static> {
    served: Vec<Instance<P, T>>,
    /// Number of devices that were removed.
    pub(super) removed: u64,
}

impl<P: Platform, T: Transport + 'static> Default for Devices<P, T> {
    fn default() -> Self {
        Self { served: Vec::new(), removed: 0 }
    }
}

impl<P: Platform, T: Transport + 'static> Devices<P, T> {
    fn find(&self, id: &DeviceId) -> Result<usize, usize> {
        self.served.binary_search_by_key(id, |served| served.device.id())
    }

    pub(super) fn nr_connected(&self) -> usize {
        self.served.iter().filter(|served| served.is_connected()).count()
    }

    pub(super) fn has(&self, id: &DeviceId) -> bool {
        self.find(id).is_ok()
    }

    pub(super) fn get(&self, id: &DeviceId) -> Option<&Instance<P, T>> {
        self.find(id).ok().map(|at| &self.served[at])
    }

    pub(super) fn get_mut(&mut self, id: &DeviceId) -> Option<&mut Instance<P, T>> {
        self.find(id).ok().map(|at| &mut self.served[at])
    }

    pub(super) fn insert(&mut self, served: Instance<P, T>) {
        match self.find(&served.device.id()) {
            Ok(at) => self.served[at] = served,
            Err(at) => self.served.insert(at, served),
        }
    }

    pub(super) fn remove(&mut self, id: &DeviceId) -> Option<Instance<P, T>> {
        self.find(id).ok().map(|at| self.served.remove(at))
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Instance<P, T>> {
        self.served.iter()
    }

    /// Removes and returns all devices.
    pub(super) fn take_all(&mut self) -> Vec<Instance<P, T>> {
        std::mem::take(&mut self.served)
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Instance<P, T>> {
        self.served.iter_mut()
    }
}
