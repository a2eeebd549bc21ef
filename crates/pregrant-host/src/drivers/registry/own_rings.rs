//! The rings of devices that are of no queue (a vif's control ring): this thread serves them, whoever serves the queues.
//!
//! ```text
//!            +--------------- its event channel fired, or a look found what nobody told of -------------+
//!            v                                                                                          |
//!   live --> active --a control turn: some requests--> active --nothing, before sleeping--> armed ------'
//!              ^                  '--its guest's account of time is empty--> paused --+
//!              '------------------- milliseconds later ------------------------------'
//! ```
//! Rings that are armed cost a control turn nothing, however many there are.
//!
//! What a guest may do: ask without end. It is served as far as its account goes ([`Throttle::work`]); while it is paused its ring
//! is neither looked at nor armed, so that its events wake nobody.
//!
//! [`Throttle::work`]: crate::drivers::throttle::Throttle::work

use super::Backend;
use super::devices::{Devices, Instance};
use crate::drivers::wait::is_lifted;
use log::Level;
use pregrant::platform::{Events, Platform, ReadySet};
use pregrant::units::EvtchnPort;
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::Transport;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Armed rings that one look for lost wake-ups takes at most.
const PENDING_LOOKS: usize = 4;
/// What the log says when a device's ring is paused for the first time.
const PAUSED: &str = "its front asks for too much on its control ring, which is not served now and again";

/// See the module.
#[derive(Default)]
pub(super) struct OwnRings {
    /// Of devices that are connected, by the number of their event channel.
    by_port: BTreeMap<EvtchnPort, DeviceId>,
    /// They have a turn in each control turn.
    active: BTreeSet<DeviceId>,
    paused: BTreeMap<DeviceId, Instant>,
    /// Where the next look for lost wake-ups begins.
    looked: usize,
    /// Nobody has asked what fired since control had its last turn.
    asks: bool,
    ready: ReadySet,
}

impl OwnRings {
    /// Those of devices that are connected, now that one has come or gone.
    pub(super) fn relive<P: Platform, T: Transport + 'static>(&mut self, p: &P, devices: &Devices<P, T>) {
        let live = devices.iter().filter(|served| served.is_connected());
        let own = live.filter_map(|served| Some((served.served.own_channel(p)?, served.device.id())));
        let before = std::mem::replace(&mut self.by_port, own.collect());
        // One that has connected anew has another channel, or is as good as new.
        self.active.retain(|id| self.by_port.values().any(|live| live == id));
        self.paused.retain(|id, _| self.by_port.values().any(|live| live == id));
        for (port, id) in &self.by_port {
            if before.get(port) != Some(id) {
                self.active.insert(*id);
            }
        }
    }

    /// These event channels fired.
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

    /// All that are not paused have a turn.
    fn wake_all(&mut self) {
        self.active.extend(self.by_port.values().filter(|id| !self.paused.contains_key(id)));
    }

    /// Those whose pause is over have a turn again.
    fn end_pauses(&mut self) {
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

    /// When the first pause is over, from now.
    pub(super) fn due(&self) -> Option<Duration> {
        let first = self.paused.values().min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// This thread has slept, or looked: what fired is known.
    pub(super) fn heard(&mut self) {
        self.asks = false;
    }

    /// Whether a guest showed work in one that is armed, of which an event has told or is to tell: of some, others each time; or of
    /// `all`. Its ring is active then.
    pub(super) fn is_pending<P: Platform, T: Transport + 'static>(
        &mut self,
        devices: &mut Devices<P, T>,
        all: bool,
    ) -> bool {
        let n = self.by_port.len();
        let looks = if all { n } else { n.min(PENDING_LOOKS) };
        let first = if n == 0 { 0 } else { self.looked % n };
        self.looked = first + looks;
        let found = self.by_port.values().cycle().skip(first).take(looks).find(|id| {
            !self.paused.contains_key(id)
                && devices.get_mut(id).is_some_and(|served| served.served.is_pending())
        });
        self.active.extend(found);
        found.is_some()
    }
}

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// The control turn of each live device with something in its own ring. True when there was something to do.
    pub(super) fn turn_devices(&mut self) -> bool {
        self.look_at_own_rings();
        self.own_rings.end_pauses();
        if self.own_rings.active.is_empty() {
            return false;
        }
        let (mut asked, mut fault) = (Vec::new(), None);
        for id in &self.own_rings.active {
            let Some(served) = self.devices.get_mut(id).filter(|served| !served.is_waited_for()) else {
                continue;
            };
            let start = Instant::now();
            match served.served.turn(&self.platform, id, &served.log) {
                Ok(true) => asked.push((*id, start.elapsed())),
                Ok(false) => {}
                Err(e) => fault = Some((*id, e)),
            }
        }
        for (id, took) in &asked {
            self.crew.nudge(*id);
            self.charge_own_ring(*id, *took);
        }
        self.fault(fault) || !asked.is_empty()
    }

    /// What fired that this thread's worker saw, and is of none of its queues.
    fn hear_own_rings(&mut self) {
        if let Some(load) = self.crew.inline_mut() {
            load.take_unknown(|ready| self.own_rings.fired(ready));
        }
    }

    /// What fired. A thread that serves no queues asks itself, where it has not slept since it had its last turn: while a ring is
    /// never empty it does not sleep.
    fn look_at_own_rings(&mut self) {
        self.hear_own_rings();
        if self.crew.inline_mut().is_some() {
            return;
        }
        if std::mem::replace(&mut self.own_rings.asks, true) && !self.own_rings.by_port.is_empty() {
            let mut ready = std::mem::take(&mut self.own_rings.ready);
            self.platform.events().wait(&mut ready, Some(Duration::ZERO));
            self.own_rings.fired(&ready);
            self.own_rings.ready = ready;
        }
    }

    /// Takes so much from the guest's account, and pauses the ring where there is no more.
    fn charge_own_ring(&mut self, id: DeviceId, took: Duration) {
        let throttle = self.throttle.entry(id.front.0).or_default();
        let pause = throttle.work(self.began.elapsed(), took);
        let Some(pause) = pause.filter(|_| self.config.limits_steps) else { return };
        let Some(served) = self.devices.get_mut(&id) else { return };
        self.own_rings.active.remove(&id);
        self.own_rings.paused.insert(id, Instant::now() + pause);
        served.ring_pauses += 1;
        if served.ring_pauses == 1 {
            served.say(Level::Warn, &PAUSED);
        }
    }

    /// Before sleeping: arms those that have nothing. True: one has something.
    pub(super) fn arm_own_rings(&mut self) -> bool {
        self.hear_own_rings();
        let Self { own_rings, devices, platform, .. } = self;
        let (mut work, mut fault) = (false, None);
        let mut arm = |served: &mut Instance<P, T>| match served.served.arm(platform) {
            Ok(more) => {
                work |= more;
                more
            }
            Err(e) => {
                fault = Some((served.device.id(), e));
                false
            }
        };
        own_rings
            .active
            .retain(|id| devices.get_mut(id).is_some_and(|served| served.is_waited_for() || arm(served)));
        self.fault(fault) | work
    }

    /// Whether a guest showed work in a device's own ring that is armed.
    pub(super) fn own_ring_is_pending(&mut self) -> bool {
        self.own_rings.is_pending(&mut self.devices, is_lifted())
    }
}
