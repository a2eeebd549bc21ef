//! The log of one device: every line that its guest can cause goes through here.
//!
//! ```text
//!   backend's own lines ---------------------------------+
//!   remote side: connected, link, closed, removed --Err(..)--+--> DeviceLog::say --faults (WARN)--> the device's, and all devices'
//!             failures, also of what is gone  -------+                    '-----the rest-------> the same, of their own
//!   recovery: a page that cannot be had ---------Err(..)--+     no room: counted, and reported with the next line, or at its end
//! ```
//! Remote sides and the recovery write no lines: they return what went wrong, and the backend
//! writes it here. A budget fills again with time ([`Lines`]), so a device is never silent for
//! good; and what it does by rights, such as to connect again and again, takes nothing from what
//! is written of its faults. The budgets last as long as the device's directory, through any
//! number of connects and of times that somebody else holds it. (`cargo xtask ci tidy` refuses
//! lines in the drivers that go another way, unless they say why no guest repeats them.)
//!
//! The lines of all devices together are bounded, too ([`ALL_DEVICES`]); a device that was quiet
//! for long has its first line all the same.

use crate::line_budget::{LineRate, Lines};
use log::{Level, log};
use pregrant::xenbus::DeviceId;
use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Number of log lines of either kind (faults, others) that one device can cause at once.
pub const LINES_PER_DEVICE: u32 = 16;
/// When a device has used up its first lines, it may cause one more line of each kind in this time.
pub const NEXT_LINE: Duration = Duration::from_secs(60);
/// The rate of lines for one device: the two bounds above.
const ONE_DEVICE: LineRate = LineRate { burst: LINES_PER_DEVICE, each: NEXT_LINE };
/// The rate of lines for all devices together, of either kind. It is large, since a backend that
/// starts logs two or three lines for each device.
pub const ALL_DEVICES: LineRate = LineRate { burst: 8192, each: Duration::from_millis(100) };

/// Two values: one for lines about faults, and one for other lines.
#[derive(Default, Debug)]
struct ByKind<B> {
    faults: B,
    rest: B,
}

impl<B> ByKind<B> {
    fn of(&mut self, level: Level) -> &mut B {
        if level <= Level::Warn { &mut self.faults } else { &mut self.rest }
    }
}

/// The budget of one device for one kind of line.
#[derive(Default, Debug)]
struct Budget {
    lines: Lines,
    /// The time at which the last line was written.
    last: Option<Duration>,
}

impl Budget {
    /// True if nothing was logged for as long as it takes to refill the budget.
    fn is_quiet(&self, now: Duration) -> bool {
        let long = ONE_DEVICE.each * ONE_DEVICE.burst;
        self.last.is_none_or(|last| now.saturating_sub(last) >= long)
    }
}

/// State that the logs of all devices share.
#[derive(Clone)]
pub struct DeviceLogs(Rc<Shared>);

struct Shared {
    lines: RefCell<ByKind<Lines>>,
    /// A clock that may start at any time.
    now: Box<dyn Fn() -> Duration>,
}

impl Default for DeviceLogs {
    fn default() -> Self {
        let began = Instant::now();
        Self::by_clock(move || began.elapsed())
    }
}

impl DeviceLogs {
    /// Creates a log with a clock of the caller, for tests.
    pub(super) fn by_clock(now: impl Fn() -> Duration + 'static) -> Self {
        Self(Rc::new(Shared { lines: RefCell::default(), now: Box::new(now) }))
    }

    /// Creates the log of a device that was just found.
    pub fn of(&self, id: DeviceId) -> DeviceLog {
        let (all, own) = (self.clone(), Rc::default());
        DeviceLog { id, all, own }
    }
}

#[derive(Default)]
struct Own {
    budgets: RefCell<ByKind<Budget>>,
    #[cfg(test)]
    written: Cell<u64>,
    /// Number of lines that were not written: in all, and since the last written one.
    left_out: Cell<u64>,
    unreported: Cell<u64>,
}

/// A device's lines in the log, of which it can cause a limited number. Clones share the budget.
#[derive(Clone)]
pub struct DeviceLog {
    id: DeviceId,
    all: DeviceLogs,
    own: Rc<Own>,
}

impl fmt::Debug for DeviceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceLog").field("id", &self.id).field("left_out", &self.left_out()).finish()
    }
}

impl DeviceLog {
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Writes a line, within the budgets.
    pub fn say(&self, level: Level, text: &dyn Display) {
        let Some(left_out) = self.take(level) else { return };
        match (left_out, self.has_more(level)) {
            (0, true) => log!(level, "{}: {text}", self.id),
            (0, false) => log!(
                level,
                "{}: {text} (from here on one such line of this {} in {} s at most)",
                self.id,
                self.id.class.name(),
                NEXT_LINE.as_secs()
            ),
            (n, _) => log!(
                level,
                "{}: {text} ({n} more line(s) of this {} were left out before)",
                self.id,
                self.id.class.name()
            ),
        }
    }

    /// Takes a line from the budget. Returns None if the line must not be written, else how many
    /// lines were left out since the last one.
    fn take(&self, level: Level) -> Option<u64> {
        let now = (self.all.0.now)();
        let (mut own, mut all) = (self.own.budgets.borrow_mut(), self.all.0.lines.borrow_mut());
        let (own, all) = (own.of(level), all.of(level));
        let is_logged = all.has_room(ALL_DEVICES, now) || own.is_quiet(now);
        if is_logged && own.lines.has_room(ONE_DEVICE, now) {
            own.lines.spend(ONE_DEVICE);
            own.last = Some(now);
            all.spend(ALL_DEVICES);
            #[cfg(test)]
            self.own.written.set(self.own.written.get() + 1);
            return Some(self.own.unreported.take());
        }
        self.own.left_out.set(self.own.left_out.get() + 1);
        self.own.unreported.set(self.own.unreported.get() + 1);
        None
    }

    /// True if another line of the same kind may follow at once.
    fn has_more(&self, level: Level) -> bool {
        let now = (self.all.0.now)();
        self.own.budgets.borrow_mut().of(level).lines.has_room(ONE_DEVICE, now)
    }

    /// Logs the error of an outcome, if it is one.
    pub fn failed<T>(&self, level: Level, outcome: Result<T, String>) -> Option<T> {
        outcome.inspect_err(|why| self.say(level, why)).ok()
    }

    /// Returns the number of lines that were not written.
    pub fn left_out(&self) -> u64 {
        self.own.left_out.get()
    }

    /// Returns the number of lines that were written.
    #[cfg(test)]
    pub(super) fn written(&self) -> u64 {
        self.own.written.get()
    }

    /// Called when the device ends: reports the lines that were left out and not yet reported.
    pub fn end(&self) {
        let (n, class) = (self.own.unreported.take(), self.id.class.name());
        if n > 0 {
            log!(Level::Info, "{}: {n} more line(s) of this {class} were not written", self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::DomId;
    use pregrant::xenbus::Class;
    use std::collections::BTreeMap;

    /// Logs by a clock that the test sets, in seconds.
    fn logs() -> (DeviceLogs, Rc<Cell<u64>>) {
        let clock = Rc::new(Cell::new(1000));
        let now = Rc::clone(&clock);
        (DeviceLogs::by_clock(move || Duration::from_secs(now.get())), clock)
    }

    fn vif(front: u16) -> DeviceId {
        DeviceId { class: Class::VIF, front: DomId(front), back: DomId(0), handle: 0 }
    }

    #[test]
    fn honest_reconnects_take_nothing_from_faults() {
        let (logs, clock) = logs();
        let log = logs.of(vif(1));
        // A day of reconnects, one in ten seconds: two lines each.
        let mut said = 0;
        for _ in 0..8640 {
            clock.set(clock.get() + 10);
            said += u64::from(log.take(Level::Info).is_some()) + u64::from(log.take(Level::Info).is_some());
        }
        assert!(said < 16 + 86_400 / 60 + 2, "{said}");
        assert_eq!(log.left_out(), 2 * 8640 - said);
        // Every fault is logged, and the first one says how many lines were left out.
        let faults: Vec<_> = (0..LINES_PER_DEVICE).map(|_| log.take(Level::Warn)).collect();
        assert!(faults[0].is_some_and(|n| n > 0), "{faults:?}");
        assert!(faults[1..].iter().all(|n| *n == Some(0)), "{faults:?}");
        assert_eq!(log.take(Level::Error), None, "so many at once are enough");
    }

    #[test]
    fn faults_are_written_again_after_a_while_and_count_what_was_left_out() {
        let (logs, clock) = logs();
        let log = logs.of(vif(1));
        for hour in 0..24 {
            let written: Vec<_> = (0..1000).filter_map(|_| log.take(Level::Warn)).collect();
            assert_eq!(written.len(), LINES_PER_DEVICE as usize, "hour {hour}");
            let before = if hour == 0 { 0 } else { 1000 - u64::from(LINES_PER_DEVICE) };
            assert_eq!((written[0], written[1]), (before, 0));
            clock.set(clock.get() + 3600);
        }
        assert_eq!(log.left_out(), 24 * (1000 - u64::from(LINES_PER_DEVICE)));
    }

    #[test]
    fn a_thousand_devices_that_break_the_protocol_are_bounded_and_silence_no_one() {
        const LIARS: u16 = 1000;
        let (logs, clock) = logs();
        let liars: Vec<_> = (0..LIARS).map(|front| logs.of(vif(front))).collect();
        let (mut written, hours) = (0u64, 2);
        for _ in 0..hours * 360 {
            clock.set(clock.get() + 10);
            for log in &liars {
                written += (0..3).filter(|_| log.take(Level::Warn).is_some()).count() as u64;
            }
        }
        // The lines of the budget, then one each minute, and one more of each device after a long
        // silence.
        let silences = hours * 3600 / (NEXT_LINE.as_secs() * u64::from(LINES_PER_DEVICE));
        let most = u64::from(LIARS) * (1 + silences) + u64::from(ALL_DEVICES.burst) + hours * 3600 * 10;
        assert!(written <= most, "{written} of {most}");
        let honest = logs.of(vif(5000));
        assert_eq!(honest.take(Level::Warn), Some(0));
        let reported: BTreeMap<_, _> = liars.iter().map(|log| (log.id(), log.left_out())).collect();
        let left_out: u64 = reported.values().sum();
        assert_eq!(written + left_out, u64::from(LIARS) * 3 * hours * 360);
    }
}
