//! What the log says of one vif: the one place through which every line goes that its guest can cause.
//!
//! ```text
//!   backend's own lines ---------------------------------+
//!   far side: connected, link, closed, removed --Err(..)--+--> DeviceLog::say --> LINES_PER_DEVICE lines, then a count,
//!             failures, also of vifs that are gone -------+                    which is told once, at the vif's end
//!   recovery: a page that cannot be had ---------Err(..)--+
//! ```
//! Far sides and successions write no lines: they say what went wrong, and the backend writes it here. The budget lasts as
//! long as the vif's directory, through any number of connects and of times that somebody else holds it. (`cargo xtask ci
//! tidy` refuses lines in the drivers that go another way, unless they say why no guest repeats them.)

use log::{Level, log};
use pregrant::xenbus::DeviceId;
use std::cell::Cell;
use std::fmt::Display;
use std::rc::Rc;

/// Lines that one vif can cause in the log; then it is quiet.
pub const LINES_PER_DEVICE: u32 = 16;

/// See the module. Clones are the same vif's.
#[derive(Clone, Debug)]
pub(super) struct DeviceLog {
    id: DeviceId,
    lines: Rc<Cell<u64>>,
}

impl DeviceLog {
    /// Of a vif that was just found.
    pub(super) fn new(id: DeviceId) -> Self {
        Self { id, lines: Rc::default() }
    }

    /// Whose.
    pub(super) fn id(&self) -> DeviceId {
        self.id
    }

    /// A line, as long as this vif has some left.
    pub(super) fn say(&self, level: Level, text: &dyn Display) {
        self.lines.set(self.lines.get() + 1);
        match self.lines.get() {
            n if n < LINES_PER_DEVICE.into() => log!(level, "{}: {text}", self.id),
            n if n == u64::from(LINES_PER_DEVICE) => {
                log!(level, "{}: {text} (the last line of this vif)", self.id)
            }
            _ => {}
        }
    }

    /// Tells of what failed.
    pub(super) fn failed<T>(&self, level: Level, outcome: Result<T, String>) -> Option<T> {
        outcome.inspect_err(|why| self.say(level, why)).ok()
    }

    /// Lines that were not written.
    pub(super) fn left_out(&self) -> u64 {
        self.lines.get().saturating_sub(LINES_PER_DEVICE.into())
    }

    /// At the vif's end: how many were not written.
    pub(super) fn end(&self) {
        if self.left_out() > 0 {
            log!(Level::Info, "{}: {} more line(s) of this vif were not written", self.id, self.left_out());
        }
    }
}
