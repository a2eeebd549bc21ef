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

/// One device as others see it, whatever its class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceReport {
    /// Class, guest and number.
    pub id: DeviceId,
    /// The back's state.
    pub state: XenbusState,
    /// Why it was closed by us, if it was.
    pub failed: Option<String>,
    /// How often that happened.
    pub faults: u64,
    /// How often its front was not watched for a while, since it asked for too many steps, or for
    /// too much on its control ring.
    pub throttled: u64,
    /// Lines that the log does not have of it, since it caused too many
    /// ([`DeviceLog`](crate::drivers::device_log::DeviceLog)).
    pub lines_left_out: u64,
    /// Why it was the last time, also when it is connected again.
    pub last_failure: Option<String>,
    /// Why its backing is unavailable, where it is not connected for that.
    pub waits_for: Option<String>,
    /// Whether that was tried; false: it may be there or not.
    pub is_tried: bool,
    /// Nanoseconds of workers' time that its queues took while others wanted the same worker.
    pub worker_ns: u64,
    /// Whether a predecessor's live rings were taken up.
    pub reattached: bool,
    /// For how long its queues have been live.
    pub connected: Option<Duration>,
    /// Pages of its guest that it has mapped, or may have at any moment, whatever it keeps.
    pub pages_needed: usize,
    /// Pages that it may keep since it saw them, or may be asked to keep.
    pub pages_allowed: usize,
}

impl DeviceReport {
    /// Of a device that a predecessor left connected, and that waits for its backing.
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

/// One device that is served.
pub(super) struct Instance<P: Platform, T: Transport + 'static> {
    pub(super) device: Device,
    pub(super) served: Box<dyn ServedDevice<P, T>>,
    pub(super) log: DeviceLog,
    pub(super) stage: Stage<P>,
    pub(super) throttle: DeviceThrottle,
    pub(super) history: History,
    /// The device's lock, where there is one.
    pub(super) _owned: Option<Box<dyn Any>>,
}

/// The history of a device since it was found, for its report.
#[derive(Default)]
pub(super) struct History {
    /// How often it was closed from this end.
    pub(super) failures: u64,
    /// Why, the last time.
    pub(super) last_failure: Option<String>,
    /// Whether a predecessor's live rings were taken up.
    pub(super) reattached: bool,
    /// The time that its queues took of workers that others wanted too.
    pub(super) worker_ns: Arc<AtomicU64>,
}

impl<P: Platform, T: Transport + 'static> Instance<P, T> {
    /// Whether this device's front changed a key that we watch.
    pub(super) fn is_about(&self, event: &WatchEvent) -> bool {
        let is_about = |key: &&str| self.device.is_peer_key_event(event, key);
        self.device.is_peer_event(event) || self.front_keys().iter().any(is_about)
    }

    /// Watches its front's state and the other keys that may change; there is one event at once.
    pub(super) fn watch(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        watch(&self.device, self.front_keys(), xs)
    }

    /// Ends these watches.
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

    /// The invariant of [`stage`](super::stage).
    pub(super) fn is_stage_right(&self) -> bool {
        self.is_connected() == (self.served.back().connection() != Connection::None)
    }

    /// Keys of its front that may change while it is connected.
    fn front_keys(&self) -> &'static [&'static str] {
        self.served.back().rules().front_keys
    }

    /// Whether this process plugs it in, or out.
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

/// Watches a front's keys.
pub(super) fn watch<T: Transport>(device: &Device, keys: &[&str], xs: &mut Client<T>) -> Result<(), XsError> {
    device.watch_peer(xs)?;
    keys.iter().try_for_each(|key| device.watch_peer_key(xs, key))
}

/// Ends these watches.
pub(super) fn unwatch<T: Transport>(
    device: &Device,
    keys: &[&str],
    xs: &mut Client<T>,
) -> Result<(), XsError> {
    // Each of them, whatever becomes of the others; the first error counts.
    let keys: Vec<_> = keys.iter().map(|key| device.unwatch_peer_key(xs, key)).collect();
    device.unwatch_peer(xs)?;
    keys.into_iter().collect()
}

/// The devices that are served, by their numbers: a position holds until one comes or goes.
pub(super) struct Devices<P: Platform, T: Transport + 'static> {
    served: Vec<Instance<P, T>>,
    /// How many came and went.
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

    /// All of them, which are served no longer.
    pub(super) fn take_all(&mut self) -> Vec<Instance<P, T>> {
        std::mem::take(&mut self.served)
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Instance<P, T>> {
        self.served.iter_mut()
    }
}
