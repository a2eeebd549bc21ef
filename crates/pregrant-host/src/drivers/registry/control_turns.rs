//! The control turns of devices, which serve the rings that belong to no queue
//! ([`ControlRings`](super::control_rings)).
//!
//! ```text
//!   control(): what fired? --> each active ring: some requests --took t--> its guest's account --empty--> a pause
//!   before sleeping:           each active ring: armed, if it has none
//! ```
//! What a guest may do: ask without end. It may make the requests that each connection brings,
//! such as filling tables once; beyond that it is served within its account ([`Throttle::work`]),
//! and its device has a line in the log for that, once in a while.
//!
//! [`Throttle::work`]: crate::drivers::throttle::Throttle::work

use super::Backend;
use super::devices::Instance;
use crate::drivers::wait::is_lifted;
use log::Level;
use pregrant::platform::{Events, Platform};
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::Transport;
use std::time::{Duration, Instant};

/// The log line for a device whose control ring is paused; it is repeated rarely.
const PAUSED: &str = "control ring throttled: the frontend sends too many requests";

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Runs the control turn of each live device that has something to do in its own ring. Returns
    /// true if there was something to do.
    pub(super) fn turn_devices(&mut self) -> bool {
        self.check_control_rings();
        self.control_rings.end_pauses();
        if self.control_rings.active.is_empty() {
            return false;
        }
        let (mut asked, mut fault) = (Vec::new(), None);
        for id in &self.control_rings.active {
            let Some(served) = self.devices.get_mut(id).filter(|served| !served.stage.is_waited_for()) else {
                continue;
            };
            let Some(ring) = served.served.control_ring() else { continue };
            let start = Instant::now();
            match ring.turn(&self.platform, id, &served.log) {
                Ok(true) => asked.push((*id, start.elapsed(), ring.part_of_connecting())),
                Ok(false) => {}
                Err(e) => fault = Some((*id, e)),
            }
        }
        for (id, took, once) in &asked {
            self.pool.wake_queues(*id);
            self.charge_own_ring(*id, *took, *once);
        }
        self.fault(fault) || !asked.is_empty()
    }

    /// Polls control rings by channels that fired for this thread's worker and belong to none of
    /// its queues.
    fn poll_control_rings(&mut self) {
        if let Some(load) = self.pool.inline_mut() {
            load.take_unknown(|ready| self.control_rings.fired(ready));
        }
    }

    /// Polls control rings by channels that fired. A thread without queues asks the platform itself
    /// if it has not slept since its last turn, because it never sleeps while a ring has work.
    fn check_control_rings(&mut self) {
        self.poll_control_rings();
        if self.pool.inline_mut().is_some() {
            return;
        }
        if std::mem::replace(&mut self.control_rings.asks, true) && !self.control_rings.is_empty() {
            let mut ready = std::mem::take(&mut self.control_rings.ready);
            self.platform.events().wait(&mut ready, Some(Duration::ZERO));
            self.control_rings.fired(&ready);
            self.control_rings.ready = ready;
        }
    }

    /// Charges time on the control ring to the guest, and pauses the ring if the guest has used up
    /// its share. The part that every connection needs once (`once`, in thousandths) is charged to
    /// the guest's steps instead, so that a front that reconnects without end is throttled.
    fn charge_own_ring(&mut self, id: DeviceId, took: Duration, once: u32) {
        let (throttle, now) = self.throttles.of(id.front);
        let once = took * once / 1000;
        throttle.spend(now, once);
        let pause = throttle.work(now, took.saturating_sub(once));
        let Some(pause) = pause.filter(|_| self.config.limits_steps) else { return };
        let Some(served) = self.devices.get_mut(&id) else { return };
        self.control_rings.pause(id, pause);
        if served.throttle.ring.again(Instant::now()) {
            let times = served.throttle.ring.times;
            served.say(Level::Warn, &format_args!("{PAUSED} ({times} time(s) in all)"));
        }
    }

    /// Called before sleeping: arms the control rings that have no work. Returns true if one has
    /// work.
    pub(super) fn arm_control_rings(&mut self) -> bool {
        self.poll_control_rings();
        let Self { control_rings, devices, platform, .. } = self;
        let (mut work, mut fault) = (false, None);
        let mut arm = |served: &mut Instance<P, T>| match served.served.control_ring() {
            None => false,
            Some(ring) => match ring.arm(platform) {
                Ok(more) => {
                    work |= more;
                    more
                }
                Err(e) => {
                    // One fault is reported at a time: another ring stays active, and is reported
                    // in its next turn.
                    fault = Some((served.device.id(), e));
                    true
                }
            },
        };
        control_rings.active.retain(|id| {
            devices.get_mut(id).is_some_and(|served| served.stage.is_waited_for() || arm(served))
        });
        self.fault(fault) | work
    }

    /// Returns true if a guest has published work on an armed control ring.
    pub(super) fn control_ring_is_pending(&mut self) -> bool {
        self.control_rings.is_pending(&mut self.devices, is_lifted())
    }
}
