//! What the log says of one device: the one place through which every line goes that its guest can cause.
//!
//! ```text
//!   backend's own lines ---------------------------------+
//!   far side: connected, link, closed, removed --Err(..)--+--> DeviceLog::say --> LINES_PER_DEVICE lines, then a count,
//!             failures, also of what is gone  -------+                    which is told once, at its end
//!   recovery: a page that cannot be had ---------Err(..)--+
//! ```
//! Far sides and successions write no lines: they say what went wrong, and the backend writes it here. The budget lasts as
//! long as the device's directory, through any number of connects and of times that somebody else holds it. (`cargo xtask ci
//! tidy` refuses lines in the drivers that go another way, unless they say why no guest repeats them.)

use log::{Level, log};
use pregrant::xenbus::DeviceId;
use std::cell::Cell;
use std::fmt::Display;
use std::rc::Rc;

/// Lines that one device can cause in the log; then it is quiet.
pub const LINES_PER_DEVICE: u32 = 16;

/// See the module. Clones are the same device's.
#[derive(Clone, Debug)]
pub struct DeviceLog {
    id: DeviceId,
    lines: Rc<Cell<u64>>,
}

impl DeviceLog {
    /// Of a device that was just found.
    pub fn new(id: DeviceId) -> Self {
        Self { id, lines: Rc::default() }
    }

    /// Whose.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// A line, as long as this device has some left.
    pub fn say(&self, level: Level, text: &dyn Display) {
        self.lines.set(self.lines.get() + 1);
        match self.lines.get() {
            n if n < LINES_PER_DEVICE.into() => log!(level, "{}: {text}", self.id),
            n if n == u64::from(LINES_PER_DEVICE) => {
                log!(level, "{}: {text} (the last line of this {})", self.id, self.id.class.name())
            }
            _ => {}
        }
    }

    /// Tells of what failed.
    pub fn failed<T>(&self, level: Level, outcome: Result<T, String>) -> Option<T> {
        outcome.inspect_err(|why| self.say(level, why)).ok()
    }

    /// Lines that were not written.
    pub fn left_out(&self) -> u64 {
        self.lines.get().saturating_sub(LINES_PER_DEVICE.into())
    }

    /// At the device's end: how many were not written.
    pub fn end(&self) {
        if self.left_out() > 0 {
            let (n, class) = (self.left_out(), self.id.class.name());
            log!(Level::Info, "{}: {n} more line(s) of this {class} were not written", self.id);
        }
    }
}
