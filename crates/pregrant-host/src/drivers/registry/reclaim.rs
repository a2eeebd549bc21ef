//! Queues go to workers and come back: what a device must wait with until they are here.
//!
//! ```text
//!   connected --hand_out_queues--> workers
//!   a step that closes, a failure, a directory that is gone:  has_returned? no: reclaimed, and then it is done;
//!                                                             is_drained? no: checked again, for as long as its class says
//!   pump: queues came --all of a device--> take_back_queues --> what waited;  or, where nothing did, they are placed again
//! ```
//! Invariant: nothing of a device is unmapped, closed or dropped while a worker may touch it.
//!
//! What a guest may do: close while its queues are on their way, or while the backing of its device
//! works on its requests. Its steps wait for that, others' do not.

use super::Backend;
use super::devices::Instance;
use super::queues::{DeviceQueues, Then};
use super::stage::Stage;
use crate::drivers::worker_queues::{Returned, Why};
use log::Level;
use pregrant::PlatformError;
use pregrant::platform::Platform;
use pregrant::xenbus::DeviceId;
use pregrant::xenbus::back::Connection;
use pregrant::xenstore::Transport;
use std::time::{Duration, Instant};

/// The time that a backend that ends waits for its workers.
const WORKERS_FOLLOW: Duration = Duration::from_secs(5);

/// Returns the message and its level for a new owner of a queue that cannot bind its event channel,
/// which was bound until now. It is no warning if the guest ended with a live device, or its front
/// was killed, since that closes the guest's end.
fn not_bound(e: &PlatformError) -> (Level, String) {
    if e.is_of_no_end() {
        let why = "its guest has closed an event channel: it has ended, or its front has died";
        return (Level::Info, why.into());
    }
    (
        Level::Warn,
        format!(
            "cannot bind an event channel while moving a queue to another worker: {e}; closing the device"
        ),
    )
}

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Gives a connected device's queues to the workers.
    pub(super) fn hand_out_queues(&mut self, id: &DeviceId) {
        let Some(served) = self.devices.get_mut(id) else { return };
        let Some(place) = served.stage.queues_mut() else { return };
        let queues = served.served.hand_out_queues();
        place.hand_out(queues.len());
        if let Some(note) = self.pool.hand_out(&self.platform, *id, queues, &served.history.worker_ns) {
            served.say(Level::Warn, &note);
        }
    }

    /// True if all queues of a device are here, and its backing works on no request. If not,
    /// reclaims the queues and does `then` later.
    pub(super) fn has_returned(&mut self, id: &DeviceId, then: Then) -> bool {
        let Some(served) = self.devices.get(id) else { return true };
        let came = if served.stage.is_handed_out() { self.pool.reclaim(*id) } else { None };
        if let Some(came) = came {
            self.queues_returned(came);
        }
        let has_returned = self.is_drained(id);
        if !has_returned
            && let Some(served) = self.devices.get_mut(id)
            && let Some(queues) = served.stage.queues_mut()
        {
            queues.wait_with(then);
        }
        has_returned
    }

    /// True if a device's queues are here, and its backing works on no request. Otherwise it is
    /// checked again.
    fn is_drained(&mut self, id: &DeviceId) -> bool {
        let Some(Instance { stage, served, .. }) = self.devices.get_mut(id) else { return true };
        match stage {
            Stage::Waiting(_) | Stage::Failed { .. } => true,
            Stage::Connected(connected) => {
                connected.queues.is_drained(|| served.backing()?.under_way(&self.platform))
            }
        }
    }

    /// Takes queues that a worker returned. If these were the last, the device has all of its
    /// queues again.
    fn queues_returned(&mut self, Returned { id, queues, why }: Returned<P>) -> bool {
        let Some(Instance { stage, served, log, .. }) = self.devices.get_mut(&id) else { return false };
        let Some(place) = stage.queues_mut() else {
            debug_assert!(queues.is_empty(), "queues of a device that is not connected");
            return false;
        };
        place.receive(queues);
        match why {
            None => {}
            Some(Why::Fault(fault)) => place.wait_with(Then::Fault(fault)),
            Some(Why::Channel(e)) => {
                let (level, why) = not_bound(&e);
                place.wait_with(Then::Fail(level, why));
            }
            Some(Why::Platform(why)) => place.wait_with(Then::Fail(Level::Warn, why)),
        }
        let Some(mut queues) = place.take_returned() else {
            if place.is_waited_for() {
                // Other workers must return their queues, too.
                self.pool.reclaim(id);
            }
            return false;
        };
        if self.pool.inline_mut().is_none() {
            for queue in &mut queues {
                if let Err(e) = queue.adopt(&self.platform) {
                    let (level, why) = not_bound(&e);
                    if !place.is_waited_for() {
                        // Otherwise the queue would never move again.
                        place.wait_with(Then::Fail(level, why));
                    } else if level < Level::Info {
                        // Steps that wait for it report that themselves; a guest that has ended
                        // needs no further line.
                        log.say(Level::Info, &why);
                    }
                }
            }
        }
        served.take_back_queues(queues);
        true
    }

    /// Handles messages of workers. Returns true if there were any.
    pub(super) fn pump(&mut self) -> bool {
        let (returned, changed) = self.pool.pump();
        let news = !returned.is_empty() || !changed.is_empty();
        for came in returned {
            let id = came.id;
            if self.queues_returned(came) {
                self.go_on(id);
            }
        }
        for id in changed {
            self.turn_device(id);
        }
        news
    }

    /// Does the steps that waited for a device's queues. If there were none, the queues are handed
    /// out again, possibly to other workers.
    pub(super) fn go_on(&mut self, id: DeviceId) {
        if self.devices.get(&id).is_some_and(|served| served.stage.is_waited_for()) && !self.is_drained(&id) {
            return;
        }
        let Some(served) = self.devices.get_mut(&id) else { return };
        let then = served.stage.queues_mut().map(DeviceQueues::take_waiting).unwrap_or_default();
        if then.is_empty() && served.is_connected() {
            return self.hand_out_again(&id);
        }
        for then in then {
            match then {
                Then::Step => self.run_throttled(id, |backend| backend.step(id)),
                Then::Fail(level, why) => self.fail_with(id, &why, Some(level)),
                Then::Fault(fault) => drop(self.fault(Some((id, fault)))),
                // A step that waited before it may have connected the device again.
                Then::Remove if self.has_returned(&id, Then::Remove) => {
                    self.remove(id);
                    // The toolstack may have made it again meanwhile.
                    self.directory.rescan = true;
                }
                Then::Remove => {}
            }
        }
        // A step may have found that there is nothing to close after all.
        if self.devices.get(&id).is_some_and(|s| {
            s.is_connected() && !s.stage.is_handed_out() && s.served.back().connection() == Connection::Here
        }) {
            self.hand_out_again(&id);
        }
    }

    /// Hands out queues that were here, and makes up for checks that were skipped meanwhile.
    fn hand_out_again(&mut self, id: &DeviceId) {
        self.hand_out_queues(id);
        self.turn_device(*id);
        // Devices move one at a time; others may follow.
        self.even_out();
    }

    /// Runs a device's control turn, if it is connected and does not wait for its queues.
    fn turn_device(&mut self, id: DeviceId) {
        let Some(served) = self.devices.get_mut(&id).filter(|s| s.is_connected() && !s.stage.is_waited_for())
        else {
            return;
        };
        let turned = match served.served.control_ring() {
            Some(ring) => ring.turn(&self.platform, &id, &served.log),
            None => Ok(false),
        };
        match turned {
            Ok(true) => {
                self.pool.wake_queues(id);
                // Work that is done in turns continues, although the guest shows nothing new.
                self.control_rings.wake(id);
            }
            Ok(false) => {}
            Err(fault) => drop(self.fault(Some((id, fault)))),
        }
        self.share_as_requested(&id);
    }

    /// Moves a device's queues if workers serve unequal numbers of queues, because devices came or
    /// went.
    pub(super) fn even_out(&mut self) {
        if let Some(id) = self.pool.uneven()
            && self.devices.get(&id).and_then(|s| s.stage.queues()).is_some_and(DeviceQueues::may_move)
        {
            self.pool.reclaim(id);
        }
    }

    /// Reclaims all queues, because the backend ends.
    pub(super) fn reclaim_all(&mut self) {
        let handed_out: Vec<_> =
            self.devices.iter().filter(|s| s.stage.is_handed_out()).map(|s| s.device.id()).collect();
        for id in handed_out {
            if let Some(came) = self.pool.reclaim(id) {
                self.queues_returned(came);
            }
        }
        let until = Instant::now() + WORKERS_FOLLOW;
        while self.devices.iter().any(|served| served.stage.is_handed_out()) && Instant::now() < until {
            for came in self.pool.pump().0 {
                self.queues_returned(came);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        for served in self.devices.iter().filter(|s| s.stage.is_handed_out()) {
            served.say(
                Level::Warn,
                &"a worker thread kept queues of this device past the time for a shutdown; the next backend takes them over",
            );
        }
    }
}
