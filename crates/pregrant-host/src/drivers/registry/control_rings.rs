//! The rings of devices that are of no queue (a vif's control ring): this thread serves them, and
//! any thread the queues.
//!
//! ```text
//!            +--------------- its event channel fired, or a check found what no event reported --------------+
//!            v                                                                                          |
//!   live --> active --a control turn: some requests--> active --nothing, before sleeping--> armed ------'
//!              ^                  '--its guest's account of time is empty--> paused --+
//!              '------------------- milliseconds later ------------------------------'
//! ```
//! Rings that are armed cost a control turn nothing, however many there are.
//!
//! What a guest may do: ask without end, and be paused. Its ring is neither checked nor armed
//! then, so that its events do not wake this thread.

use super::devices::Devices;
use crate::drivers::wait::PENDING_CHECKS;
use pregrant::platform::{Platform, ReadySet};
use pregrant::units::EvtchnPort;
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::Transport;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The state of all control rings: active (with work), armed (idle), or paused.
#[derive(Default)]
pub(super) struct ControlRings {
    /// Connected devices by the event channel of their control ring.
    by_port: BTreeMap<EvtchnPort, DeviceId>,
    /// Devices whose control ring is served in each control turn.
    pub(super) active: BTreeSet<DeviceId>,
    paused: BTreeMap<DeviceId, Instant>,
    /// The index at which the next check for lost events starts.
    checked: usize,
    /// True if this thread has neither slept nor polled since its last control turn, so that the
    /// next one must poll the platform for events.
    pub(super) asks: bool,
    pub(super) ready: ReadySet,
}

impl ControlRings {
    /// Called when a device has connected or closed: updates the connected devices.
    pub(super) fn update_live<P: Platform, T: Transport + 'static>(
        &mut self,
        p: &P,
        devices: &mut Devices<P, T>,
    ) {
        let live = devices.iter_mut().filter(|served| served.is_connected());
        let own =
            live.filter_map(|served| Some((served.served.control_ring()?.channel(p)?, served.device.id())));
        let before = std::mem::replace(&mut self.by_port, own.collect());
        // A device that has reconnected has another channel, or starts afresh.
        self.active.retain(|id| self.by_port.values().any(|live| live == id));
        self.paused.retain(|id, _| self.by_port.values().any(|live| live == id));
        for (port, id) in &self.by_port {
            if before.get(port) != Some(id) {
                self.active.insert(*id);
            }
        }
    }

    /// Called with the event channels that fired.
    pub(super) fn fired(&mut self, ready: &ReadySet) {
        if ready.others {
            self.wake_all();
        }
        for id in ready.ports.iter().filter_map(|port| self.by_port.get(port)) {
            if !self.paused.contains_key(id) {
                self.active.insert(*id);
            }
        }
    }

    /// Serves the device's ring in the next turns, unless it is paused.
    pub(super) fn wake(&mut self, id: DeviceId) {
        if !self.paused.contains_key(&id) {
            self.active.insert(id);
        }
    }

    /// Gives all rings that are not paused a turn.
    fn wake_all(&mut self) {
        self.active.extend(self.by_port.values().filter(|id| !self.paused.contains_key(id)));
    }

    /// Makes rings active again whose pause is over.
    pub(super) fn end_pauses(&mut self) {
        if self.paused.is_empty() {
            return;
        }
        let now = Instant::now();
        let Self { active, paused, .. } = self;
        paused.retain(|id, until| {
            let goes_on = *until > now;
            if !goes_on {
                active.insert(*id);
            }
            goes_on
        });
    }

    /// Stops serving the ring for this long.
    pub(super) fn pause(&mut self, id: DeviceId, pause: Duration) {
        self.active.remove(&id);
        self.paused.insert(id, Instant::now() + pause);
    }

    /// True if no device has a control ring.
    pub(super) fn is_empty(&self) -> bool {
        self.by_port.is_empty()
    }

    /// Returns the time until the first pause is over.
    pub(super) fn due(&self) -> Option<Duration> {
        let first = self.paused.values().min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Called after this thread has slept or polled, which shows it all events.
    pub(super) fn events_seen(&mut self) {
        self.asks = false;
    }

    /// True if a guest has published work on an armed ring. An event has reported that work, or
    /// will. Checks some rings in each call, or with `all` all of them, and makes those with work
    /// active.
    pub(super) fn is_pending<P: Platform, T: Transport + 'static>(
        &mut self,
        devices: &mut Devices<P, T>,
        all: bool,
    ) -> bool {
        let n = self.by_port.len();
        let checks = if all { n } else { n.min(PENDING_CHECKS) };
        let first = if n == 0 { 0 } else { self.checked % n };
        self.checked = first + checks;
        let found = self.by_port.values().cycle().skip(first).take(checks).find(|id| {
            !self.paused.contains_key(id)
                && devices
                    .get_mut(id)
                    .filter(|served| !served.stage.is_waited_for())
                    .and_then(|served| served.served.control_ring())
                    .is_some_and(|ring| ring.is_pending())
        });
        self.active.extend(found);
        found.is_some()
    }
}
