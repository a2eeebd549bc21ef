//! Periodic checks of the backings of devices, for changes that no event reports.
//!
//! ```text
//!   connected:             it may have changed (a disk's length)            each second, if its class wants it
//!   found:                 it is there, or not (backing_state)              at once; where it is not, with pauses that grow
//!   about to connect:      another has it, who may let go (backing_state)   from each 20 ms on, for ten seconds; then the device fails
//!   left by a predecessor: the same, or it is not there (discovery)         from each 20 ms on, for as long as it takes: its guest waits
//!   the kernel's:          the kernel has the device, and may let go        each second
//!   about to close:        it works on requests (queues, reclaim)           each 20 ms, for as long as its class says
//! ```
//! "From each 20 ms on": a check comes after an eighth of the time that has passed since the first,
//! a second at most.
//!
//! What a guest may do: nothing here.

use super::Backend;
use super::backing_state::{BUSY_MOST, BackingState, Busy};
use super::devices::Instance;
use super::stage::Stage;
use crate::drivers::device_class::Trial;
use log::Level;
use pregrant::platform::Platform;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::xenbus::{DeviceError, DeviceId};
use pregrant::xenstore::Transport;
use std::time::{Duration, Instant};

/// Interval of checks of the backings of connected devices.
const CHECK: Duration = Duration::from_secs(1);

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Lets a front wait that is about to connect while another process has the device's backing.
    pub(super) fn wait_for_busy(&mut self, id: DeviceId, e: ConnectError<DeviceError>) {
        let Some(served) = self.devices.get_mut(&id) else { return };
        let who = e.to_string();
        let backing = served.stage.backing_mut();
        match backing.map_or(Busy::TooLong, |backing| backing.is_busy(Instant::now(), &who)) {
            Busy::Begins => {
                served.say(Level::Info, &format_args!("waiting to connect until this is free: {who}"));
            }
            Busy::GoesOn => {}
            Busy::TooLong => self.failed_to_connect(id, e),
        }
    }

    /// Tries the backing of a device again: by connecting its front, if one waits, or without a
    /// front.
    fn try_backing(&mut self, id: DeviceId, failing: Duration) {
        self.step(id);
        let Some(served) = self.devices.get_mut(&id) else { return };
        // The front has tried the backing, and the next try is scheduled.
        let is_tried = |state: &BackingState| state.busy_check().is_some() || state.due().is_some();
        let Some(state) = served.stage.backing_mut().filter(|state| !is_tried(state)) else { return };
        let Some(backing) = served.served.backing() else { return state.is_there() };
        let tried = backing.try_ahead(&mut StoreBus { device: &served.device, xs: &mut self.xs });
        let (trial, quiet) = match tried {
            Ok(tried) => tried,
            Err(e) => return served.say(Level::Warn, &e),
        };
        let now = Instant::now();
        let line = match trial {
            Trial::Nothing | Trial::There(None) => return state.is_there(),
            Trial::There(Some(strange)) => {
                state.is_there();
                strange
            }
            Trial::Busy(who) if failing < BUSY_MOST => return state.fails(now, &who, false),
            Trial::Busy(why) | Trial::Missing(why) => {
                state.fails(now, &why, true);
                why
            }
        };
        if !quiet && state.is_news(&line) {
            served.say(Level::Warn, &line);
        }
    }

    /// Runs all checks of devices that are due.
    pub(super) fn run_checks(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.due_by(now, |stage| stage.backing()?.busy_check());
        due.into_iter().for_each(|id| self.step(id));
        let is_due = |s: &mut Instance<P, T>| Some((s.device.id(), s.stage.backing_mut()?.is_due(now)?));
        let due: Vec<_> = self.devices.iter_mut().filter_map(is_due).collect();
        due.into_iter().for_each(|(id, failing)| self.try_backing(id, failing));
        let due: Vec<_> = self.due_by(now, |stage| stage.queues()?.drain_check());
        due.into_iter().for_each(|id| self.go_on(id));
        if now.duration_since(self.polls.checked) < CHECK {
            return;
        }
        self.polls.checked = now;
        self.directory.rescan |= self.is_one_free();
        for served in self.devices.iter_mut().filter(|s| s.is_connected()) {
            let Some(changes) = served.served.periodic_check() else { continue };
            let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
            if let Err(e) = changes.check(&mut bus, &served.log) {
                served.say(Level::Warn, &e);
            }
        }
    }

    /// Returns the devices whose check is due.
    fn due_by(&self, now: Instant, check: impl Fn(&Stage<P>) -> Option<Instant>) -> Vec<DeviceId> {
        let due = self.devices.iter().filter(|served| check(&served.stage).is_some_and(|at| at <= now));
        due.map(|served| served.device.id()).collect()
    }

    /// Returns the time until the next check is due.
    pub(super) fn check_due(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let checks =
            !self.directory.left_alone.is_empty() || self.devices.iter_mut().any(Instance::wants_checks);
        let of_device = |stage: &Stage<P>| match stage {
            Stage::Waiting(backing) | Stage::Failed { backing, .. } => backing.busy_check().or(backing.due()),
            Stage::Connected(connected) => connected.queues.drain_check(),
        };
        let devices = self.devices.iter().filter_map(|served| of_device(&served.stage));
        let held = self.directory.held.values().filter_map(|held| held.next);
        let first = devices.chain(held).chain(checks.then(|| self.polls.checked + CHECK)).min()?;
        Some(first.saturating_duration_since(now))
    }
}
