//! The state of the domain's backend directory, and the devices in it that are not served.

use crate::drivers::device_class::ServedDevice;
use pregrant::platform::Platform;
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::Transport;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The devices that are in the domain's backend directory: devices that are served, held by others,
/// or ignored.
pub(super) struct Directory<P: Platform, T: Transport + 'static> {
    /// True if a device's directory may have appeared that was not checked.
    pub(super) rescan: bool,
    /// True once the kept memory of removed devices was freed, which is done only once.
    pub(super) has_cleared: bool,
    /// Devices that another process still has, and that are tried again.
    pub(super) held: BTreeMap<DeviceId, Held<P, T>>,
    /// Devices that another driver has and keeps.
    pub(super) left_alone: BTreeSet<DeviceId>,
}

impl<P: Platform, T: Transport + 'static> Default for Directory<P, T> {
    fn default() -> Self {
        Self { rescan: false, has_cleared: false, held: BTreeMap::new(), left_alone: BTreeSet::new() }
    }
}

/// A device that its last owner has not released yet, or whose backing is not released.
pub(super) struct Held<P: Platform, T: Transport + 'static> {
    /// Time at which this process first tried to take the device.
    pub(super) since: Instant,
    /// The owner of the device, or a text that says what is missing.
    pub(super) why: String,
    /// The time of the next try; None: there is none until the directory changes.
    pub(super) next: Option<Instant>,
    /// True if the reason was logged.
    pub(super) is_logged: bool,
    /// The device as it was created, if it waits for its backing.
    pub(super) made: Option<Box<dyn ServedDevice<P, T>>>,
}

impl<P: Platform, T: Transport + 'static> Held<P, T> {
    pub(super) fn is_given_up(&self) -> bool {
        self.next.is_none()
    }
}
