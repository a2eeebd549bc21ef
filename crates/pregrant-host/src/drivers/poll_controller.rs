//! When a loop around queues checks again, and when it sleeps.
//!
//! ```text
//!   poll      never sleeps, never arms: the peer never notifies
//!   event     arms and sleeps as soon as nothing moves
//!   adaptive  spins for a bounded time first (a spin helps only when it is longer than the gap), then sleeps
//!             spins in vain: the next 1, 3, 7 ... 63 times it sleeps at once; a spin that paid: it spins each time again
//! ```
//! A spin is in vain where frames come seldom, and where their sender waits for the processor on
//! which we spin.
//!
//! Whatever it does, it checks its control connection once in [`CONTROL_EVERY`]: rounds may take
//! a microsecond or a thousand, and a new vif beside a busy one is to connect as soon.

use crate::choice::named;
use std::time::{Duration, Instant};

named! {
    /// The behaviour of a worker that finds no work: it polls, sleeps, or both.
    Mode, "a polling mode" {
        /// The worker never sleeps.
        Poll = "poll",
        /// The worker sleeps as soon as there is no work.
        Event = "event",
        /// The worker polls up to [`SPIN`] if that found work recently, and then sleeps.
        #[default]
        Adaptive = "adaptive",
    }
}

/// The time that adaptive mode polls before it sleeps. A wake-up costs 5 to 15 us, so polling pays
/// only if frames arrive closer together than this.
pub const SPIN: Duration = Duration::from_micros(50);

/// After this number of polls in a row that found nothing, polling gets no rarer: the worker polls
/// before one of 64 sleeps.
const VAIN_MOST: u32 = 6;

/// Rounds without a frame after which a polling loop checks its control connection.
const IDLE_ROUNDS_TO_CONTROL: u32 = 20_000;
/// The longest time that a loop that moves frames may run without a control turn.
pub const CONTROL_EVERY: Duration = Duration::from_millis(2);
/// Number of rounds with frames after which a loop checks the clock.
const BUSY_ROUNDS_TO_CLOCK: u32 = 16;

/// The step after a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The loop runs another round.
    Again,
    /// Run a control turn without sleeping, then another round.
    Control,
    /// Arm the queues, and sleep if there is still no work.
    Sleep,
}

/// Decides after each round whether to poll, to sleep, or to run a control turn.
#[derive(Debug)]
pub struct PollController {
    mode: Mode,
    idle: u32,
    busy: u32,
    /// Time at which the current polling began; None while the loop does not poll.
    since: Option<Instant>,
    /// Number of polls that found no work since a poll found some.
    vain: u32,
    /// Number of sleeps that remain to be done without polling before them.
    unspun: u32,
    /// Time at which the first frames after the last control turn moved, or some rounds later.
    controlled: Option<Instant>,
}

impl PollController {
    /// Creates the controller of a loop that starts.
    pub fn new(mode: Mode) -> Self {
        Self { mode, idle: 0, busy: 0, since: None, vain: 0, unspun: 0, controlled: None }
    }

    /// Returns the next step after a round; `moved` is true if frames moved in the round.
    #[inline]
    pub fn after(&mut self, moved: bool) -> Next {
        self.after_at(moved, Instant::now)
    }

    /// Returns the next step as [`after`](Self::after) does, with a clock of the caller.
    #[inline]
    fn after_at(&mut self, moved: bool, now: impl Fn() -> Instant) -> Next {
        if moved {
            self.idle = 0;
            if self.since.take().is_some() {
                self.vain = 0;
            }
            self.busy += 1;
            if self.busy < BUSY_ROUNDS_TO_CLOCK {
                return Next::Again;
            }
            self.busy = 0;
            let now = now();
            let since = *self.controlled.get_or_insert(now);
            if now.duration_since(since) < CONTROL_EVERY {
                return Next::Again;
            }
            self.controlled = Some(now);
            return Next::Control;
        }
        self.idle += 1;
        match self.mode {
            Mode::Poll => {
                std::hint::spin_loop();
                if self.idle >= IDLE_ROUNDS_TO_CONTROL {
                    self.idle = 0;
                    return Next::Control;
                }
                Next::Again
            }
            Mode::Event => Next::Sleep,
            Mode::Adaptive => {
                if self.idle == 1 && self.unspun > 0 {
                    (self.idle, self.unspun) = (0, self.unspun - 1);
                    return Next::Sleep;
                }
                std::hint::spin_loop();
                // The clock is read once in a while only: it costs as much as a round.
                if self.idle % 16 != 1 {
                    return Next::Again;
                }
                match self.since {
                    None => {
                        self.since = Some(now());
                        Next::Again
                    }
                    Some(since) if now().duration_since(since) >= SPIN => {
                        self.since = None;
                        self.idle = 0;
                        self.vain = VAIN_MOST.min(self.vain + 1);
                        self.unspun = (1 << self.vain) - 1;
                        Next::Sleep
                    }
                    Some(_) => Next::Again,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_is_written_is_read() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("Poll".parse::<Mode>().is_err_and(|e| e.contains("poll, event, adaptive")));
    }
    use std::cell::Cell;

    /// Simulates rounds of `round` each for a second. Returns the longest time without a control
    /// turn.
    fn longest(mode: Mode, round: Duration, moved: impl Fn(u32) -> bool) -> Duration {
        let (start, mut pace) = (Instant::now(), PollController::new(mode));
        let at = Cell::new(Duration::ZERO);
        let (mut last, mut longest) = (Duration::ZERO, Duration::ZERO);
        for n in 0.. {
            if at.get() > Duration::from_secs(1) {
                break;
            }
            at.set(at.get() + round);
            if pace.after_at(moved(n), || start + at.get()) != Next::Again {
                longest = longest.max(at.get() - last);
                last = at.get();
            }
        }
        longest.max(at.get() - last)
    }

    /// Simulates `n` pauses, each of which ends after `gap`, with rounds of a microsecond and
    /// sleeps that end at once. Returns how often the loop polled in vain, and how often it slept.
    fn pauses(pace: &mut PollController, n: usize, gap: Duration) -> (usize, usize) {
        let start = Instant::now();
        let at = Cell::new(Duration::ZERO);
        let (mut spins, mut sleeps) = (0, 0);
        for _ in 0..n {
            pace.after_at(true, || start + at.get());
            let began = at.get();
            while at.get() - began < gap {
                at.set(at.get() + Duration::from_micros(1));
                if pace.after_at(false, || start + at.get()) == Next::Sleep {
                    sleeps += 1;
                    spins += usize::from(at.get() - began >= SPIN);
                    break;
                }
            }
        }
        (spins, sleeps)
    }

    #[test]
    fn spins_in_vain_become_rare_and_one_that_paid_brings_them_back() {
        let (seldom, often) = (2 * SPIN, SPIN / 2);
        let mut pace = PollController::new(Mode::Adaptive);
        // 1, then 1 of 2, of 4 ... of 64: six of the first 121, and then one of 64.
        assert_eq!(pauses(&mut pace, 121, seldom), (6, 121));
        assert_eq!(pauses(&mut pace, 6400, seldom), (100, 6400));
        // Frames come closer: within 64 pauses one spin is tried again, and from then on none
        // sleeps.
        let (spins, sleeps) = pauses(&mut pace, 100, often);
        assert!(spins == 0 && sleeps < 64, "{sleeps}");
        assert_eq!(pauses(&mut pace, 100, often), (0, 0));
        assert_eq!(pauses(&mut pace, 2, seldom), (1, 2));
    }

    #[test]
    fn a_busy_loop_sees_control_whatever_its_rounds_take() {
        for micros in [1, 50, 100, 1000] {
            let round = Duration::from_micros(micros);
            // The clock is read each 16 rounds; the first reading starts the time.
            let bound = CONTROL_EVERY + 32 * round;
            for mode in [Mode::Poll, Mode::Event, Mode::Adaptive] {
                let longest = longest(mode, round, |_| true);
                assert!(longest <= bound, "{mode:?}, rounds of {micros} us: {longest:?}");
                assert!(longest >= CONTROL_EVERY, "{mode:?}, rounds of {micros} us: not each time");
            }
        }
        // Frames move in every second round.
        let round = Duration::from_micros(50);
        assert!(longest(Mode::Poll, round, |n| n % 2 == 0) <= CONTROL_EVERY + 64 * round);
    }
}
