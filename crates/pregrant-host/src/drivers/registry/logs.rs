//! The logs of a backend's devices. A device has a log from the time at which it was found until
//! all work for it has ended.
//!
//! ```text
//!   found --> current, as long as its directory is there --removed--> ending, as long as its remote side works for it --> ended
//! ```
//! What a guest may do: cause lines; [`DeviceLog`] bounds them.

use crate::drivers::device_log::{DeviceLog, DeviceLogs};
use pregrant::xenbus::DeviceId;
use std::collections::BTreeMap;

/// The logs of all devices, which share one budget.
#[derive(Default)]
pub(super) struct Logs {
    /// The budget over all devices.
    budget: DeviceLogs,
    /// The log of each device, including those that another owner has.
    current: BTreeMap<DeviceId, DeviceLog>,
    /// The logs of devices that were removed and for which their class still has work under way.
    ending: Vec<DeviceLog>,
}

impl Logs {
    /// Returns the log of a device that was found.
    pub(super) fn of(&mut self, id: DeviceId) -> &DeviceLog {
        self.current.entry(id).or_insert_with(|| self.budget.of(id))
    }

    /// Returns the log of a device that was found before.
    pub(super) fn get(&self, id: &DeviceId) -> Option<&DeviceLog> {
        self.current.get(id)
    }

    /// Returns the log for a line about a device that may have been removed.
    pub(super) fn of_any(&self, id: DeviceId) -> DeviceLog {
        let ending = self.ending.iter().find(|log| log.id() == id);
        ending.or_else(|| self.get(&id)).cloned().unwrap_or_else(|| self.budget.of(id))
    }

    /// Ends the logs of devices that do not exist any more.
    pub(super) fn retain(&mut self, stays: impl Fn(&DeviceId) -> bool) {
        self.current.retain(|id, log| {
            let stays = stays(id);
            if !stays {
                log.end();
            }
            stays
        });
    }

    /// Called when a device was removed. `is_ending` is true if the device's class still has work
    /// under way for it.
    pub(super) fn removed(&mut self, id: &DeviceId, log: DeviceLog, is_ending: bool) {
        if is_ending {
            self.ending.push(log);
        } else {
            log.end();
        }
        self.current.remove(id);
    }

    /// Ends the logs of devices for which no work is under way any more.
    pub(super) fn retain_ending(&mut self, stays: impl Fn(&DeviceId) -> bool) {
        self.ending.retain(|log| {
            let stays = stays(&log.id());
            if !stays {
                log.end();
            }
            stays
        });
    }

    /// Called when the backend ends: returns the logs of removed devices for which work is still
    /// under way.
    pub(super) fn take_ending(&mut self) -> Vec<DeviceLog> {
        std::mem::take(&mut self.ending)
    }
}
