//! Periodic checks of what is behind a device, for changes that no event reports.
//!
//! ```text
//!   connected:            it has changed perhaps (a disk's length)         each second, if its class wants it
//!   found:                it is there, or not (behind)                     at once; where it is not again, with pauses that grow
//!   about to connect:     somebody has it, who may let go                  from each 20 ms on, for ten seconds; then the device fails
//!   left by a predecessor: the same, or it is not there (find)             from each 20 ms on, for as long as it takes: its guest waits
//!   somebody else's:      the kernel has it, who may let go                each second
//!   about to close:       what is under way behind it ends (reclaim)        each 20 ms, for as long as its class says
//! ```
//! "From each 20 ms on": a check comes after an eighth of the time that has passed since the first,
//! a second at most.
//!
//! What a guest may do: nothing here.

use super::Backend;
use super::devices::{Busy, Instance};
use crate::drivers::device_class::Trial;
use log::Level;
use pregrant::platform::Platform;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::xenbus::{DeviceError, DeviceId};
use pregrant::xenstore::Transport;
use std::time::{Duration, Instant};

/// Between two checks of what stands behind devices that are connected.
const CHECK: Duration = Duration::from_secs(1);
/// Between two checks of what somebody has.
pub(super) const BUSY_CHECK: Duration = Duration::from_millis(20);
/// The same, when it has taken long.
const BUSY_CHECK_MOST: Duration = Duration::from_secs(1);
/// How long a front that is about to connect waits for that.
const BUSY_MOST: Duration = Duration::from_secs(10);

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// A front is about to connect, and somebody has what stands behind the device: it waits.
    pub(super) fn wait_for_busy(&mut self, id: DeviceId, e: ConnectError<DeviceError>) {
        let Some(served) = self.devices.get_mut(&id) else { return };
        let (now, who) = (Instant::now(), e.to_string());
        if served.behind.why().is_some() {
            // It was logged before, and waits for the next try.
            return served.behind.fails(now, &who, true);
        }
        if served.busy.is_none() {
            served.say(Level::Info, &format_args!("waiting to connect until this is free: {who}"));
        }
        let since = served.busy.take().map_or(now, |busy| busy.since);
        if now.duration_since(since) < BUSY_MOST {
            served.busy = Some(Busy { since, next: now + busy_pause(since, now), who });
            return;
        }
        self.failed_to_connect(id, e);
    }

    /// The backing of a device is to be tried again: by its front's connect, if there is a front
    /// that waits, or without one.
    fn try_behind(&mut self, id: DeviceId, failing: Duration) {
        self.step(id);
        let Some(served) = self.devices.get_mut(&id) else { return };
        if served.is_connected() || served.busy.is_some() || served.behind.due().is_some() {
            return;
        }
        let Some(backing) = served.served.backing() else { return served.behind.is_there() };
        let tried = backing.try_ahead(&mut StoreBus { device: &served.device, xs: &mut self.xs });
        let (trial, quiet) = match tried {
            Ok(tried) => tried,
            Err(e) => return served.say(Level::Warn, &e),
        };
        let now = Instant::now();
        let line = match trial {
            Trial::Nothing | Trial::There(None) => return served.behind.is_there(),
            Trial::There(Some(strange)) => {
                served.behind.is_there();
                strange
            }
            Trial::Busy(who) if failing < BUSY_MOST => return served.behind.fails(now, &who, false),
            Trial::Busy(why) | Trial::Missing(why) => {
                served.behind.fails(now, &why, true);
                why
            }
        };
        if !quiet && served.behind.is_news(&line) {
            served.say(Level::Warn, &line);
        }
    }

    /// Checks what it is time to check.
    pub(super) fn run_checks(&mut self) {
        let now = Instant::now();
        let is_due = |busy: &Busy| busy.next <= now;
        let due: Vec<_> = self.devices.iter().filter(|s| s.busy.as_ref().is_some_and(is_due)).collect();
        let due: Vec<_> = due.into_iter().map(|served| served.device.id()).collect();
        due.into_iter().for_each(|id| self.step(id));
        let due: Vec<_> =
            self.devices.iter_mut().filter_map(|s| Some((s.device.id(), s.behind.is_due(now)?))).collect();
        due.into_iter().for_each(|(id, failing)| self.try_behind(id, failing));
        let is_due = |next: Instant| next <= now;
        let due: Vec<_> = self
            .devices
            .iter()
            .filter(|s| s.stage.drain_check().is_some_and(is_due))
            .map(|s| s.device.id())
            .collect();
        due.into_iter().for_each(|id| self.go_on(id));
        if now.duration_since(self.checked) < CHECK {
            return;
        }
        self.checked = now;
        self.rescan |= self.is_one_free();
        for served in self.devices.iter_mut().filter(|s| s.is_connected()) {
            let Some(changes) = served.served.periodic_check() else { continue };
            let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
            if let Err(e) = changes.check(&mut bus, &served.log) {
                served.say(Level::Warn, &e);
            }
        }
    }

    /// When the next check is due, from now.
    pub(super) fn check_due(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let checks = !self.left_alone.is_empty() || self.devices.iter_mut().any(Instance::wants_checks);
        let busy = self.devices.iter().filter_map(|served| served.busy.as_ref().map(|busy| busy.next));
        let behind = self.devices.iter().filter_map(|served| served.behind.due());
        let held = self.held.values().filter(|held| !held.given_up).map(|held| held.next);
        let draining = self.devices.iter().filter_map(|s| s.stage.drain_check());
        let first = busy
            .chain(behind)
            .chain(held)
            .chain(draining)
            .chain(checks.then(|| self.checked + CHECK))
            .min()?;
        Some(first.saturating_duration_since(now))
    }
}

/// How long somebody who has it since then is left alone.
pub(super) fn busy_pause(since: Instant, now: Instant) -> Duration {
    (now.duration_since(since) / 8).clamp(BUSY_CHECK, BUSY_CHECK_MOST)
}
