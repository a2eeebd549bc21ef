//! How a loop sleeps, and what becomes of a wake-up that is lost.
//!
//! ```text
//!   armed, no work --wait--> an event, a descriptor ----------------------------> go on
//!                            a time that is due (a rate, an expiry, a script) --> go on
//!                            the bound --work?-- no ----------------------------> go on
//!                                        yes, and its event does not come ------> counted, go on
//! ```
//! The bound is a guard: a notification, an arm or an unmask that is forgotten costs a guest a
//! tenth of a second and no more (a worker with many armed queues checks a few of them each time,
//! so that idle ones cost nothing). It would also hide every such mistake from every test. So it
//! counts ([`Waiter::missed_wakeups`]), and where [`UNBOUNDED`] is set it is lifted: a wait goes on
//! until it is woken, and one with work whose event does not come ends the process with what it
//! waited for. A test that hangs at both ends is its own watchdog's business; each end says then
//! what it waits for.
//!
//! What a peer may do: show work and not notify. It is served late, and counted as if the mistake
//! were ours.

use crate::wake::WakeOn;
use pregrant::platform::{Events, ReadySet};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The environment variable that lifts the bound if its value is `unbounded`.
pub const UNBOUNDED: &str = "PREGRANT_WAITS";

/// A wait ends after this time, and the worker checks for work even without an event.
const BOUND: Duration = Duration::from_millis(100);
/// The time after such a check within which the event may still arrive, because its sender may be
/// between publishing the work and sending the event.
const LATE: Duration = Duration::from_millis(20);
/// This bound and the next one replace the ones above while the bound on waits is lifted. They are
/// long because senders can be paused for long on a busy machine.
const UNBOUNDED_CHECK: Duration = Duration::from_secs(5);
const UNBOUNDED_LATE: Duration = Duration::from_secs(2);
/// The time after which an unbounded wait logs what it waits for.
const SAYS: Duration = Duration::from_secs(60);

static LIFTED: AtomicBool = AtomicBool::new(false);

/// Number of armed queues, or of control rings, that one such check covers. It determines the cost
/// of idle vifs.
pub(super) const PENDING_CHECKS: usize = 4;

/// Lifts the bound for all later waits of this process, as [`UNBOUNDED`] does. For tests.
pub fn lift_bounds() {
    LIFTED.store(true, Ordering::Relaxed);
}

/// True if a wait checks everything that it waits for, and ends the process if an event was lost.
pub(super) fn is_lifted() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    LIFTED.load(Ordering::Relaxed)
        || *ASKED.get_or_init(|| std::env::var_os(UNBOUNDED).is_some_and(|v| v == "unbounded"))
}

/// Sleeps for a driver, and counts events that were lost.
#[derive(Default)]
pub struct Waiter {
    ready: ReadySet,
    missed_wakeups: u64,
}

impl Waiter {
    /// Number of waits that ended by timeout although work was pending: the event was lost.
    pub fn missed_wakeups(&self) -> u64 {
        self.missed_wakeups
    }

    /// Returns the event channels that ended the last sleep.
    pub fn ready(&self) -> &ReadySet {
        &self.ready
    }

    /// Sleeps until an event or a descriptor ends it, or until `due`. `driver` is armed and has no
    /// work; `pending` checks whether `driver` has work, without arming anything. `what` describes
    /// the awaited event for the log.
    pub fn sleep<D, E: Events + WakeOn>(
        &mut self,
        driver: &mut D,
        events: for<'a> fn(&'a D) -> &'a E,
        mut pending: impl FnMut(&mut D) -> bool,
        what: &dyn Fn(&D) -> String,
        due: Option<Duration>,
    ) {
        let lifted = is_lifted();
        let (bound, late) = if lifted { (UNBOUNDED_CHECK, UNBOUNDED_LATE) } else { (BOUND, LATE) };
        // Reading the clock may be a system call; most waits end by an event and need no clock.
        let began = (lifted || due.is_some()).then(Instant::now);
        let mut said = false;
        loop {
            let left =
                due.map(|due| due.saturating_sub(began.map_or(Duration::ZERO, |began| began.elapsed())));
            let most = left.map_or(bound, |left| left.min(bound));
            if self.is_woken(events(driver), most) {
                return;
            }
            // The wait lasted this long, or longer.
            let waited = began.map_or(most, |began| began.elapsed());
            let is_due = due.is_some_and(|due| waited >= due);
            if waited < BOUND {
                return;
            }
            if pending(driver) {
                // The event may be on its way. If it arrives now, it ends the wait.
                if self.is_woken(events(driver), late) {
                    return;
                }
                self.missed_wakeups += 1;
                let what = what(driver);
                if lifted {
                    // If this line cannot be written, nothing else changes.
                    let _ = writeln!(
                        std::io::stderr(),
                        "pregrant: a wake-up was lost: {what}: waited for {waited:?} and more, and there is work"
                    );
                    std::process::abort();
                }
                log::debug!("a wake-up was lost: {what}");
                return;
            }
            if is_due || !lifted {
                return;
            }
            if waited > SAYS && !std::mem::replace(&mut said, true) {
                let (pid, what) = (std::process::id(), what(driver));
                let _ = writeln!(std::io::stderr(), "pregrant: process {pid}: {what} for {SAYS:?}"); // as above
            }
        }
    }

    /// Waits at most for `most`. Returns true if anything ended the wait earlier.
    fn is_woken<E: Events + WakeOn>(&mut self, events: &E, most: Duration) -> bool {
        events.wait(&mut self.ready, Some(most));
        self.ready.others || !self.ready.ports.is_empty() || events.woken_by_any()
    }
}
