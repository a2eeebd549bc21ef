//! Tracks when the control thread last polled the things that no event reports, for all devices.

use std::time::Instant;

/// The times at which the control thread last polled things that report no events, for all devices.
pub(super) struct Polls {
    /// Time at which the backings of connected devices were last checked.
    pub(super) checked: Instant,
    /// True if hotplug scripts of some devices are under way.
    pub(super) hotplugs: bool,
}

impl Default for Polls {
    fn default() -> Self {
        Self { checked: Instant::now(), hotplugs: false }
    }
}
