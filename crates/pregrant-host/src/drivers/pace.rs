//! When a loop around queues looks again, and when it sleeps.
//!
//! ```text
//!   poll      never sleeps, never arms: the peer never notifies
//!   event     arms and sleeps as soon as nothing moves
//!   adaptive  spins for a bounded time first (a spin helps only when it is longer than the gap), then sleeps
//! ```

use std::time::{Duration, Instant};

/// How a worker waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Never sleeps.
    Poll,
    /// Sleeps at once.
    Event,
    /// Spins up to [`SPIN`], then sleeps.
    #[default]
    Adaptive,
}

impl Mode {
    /// As records name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Event => "event",
            Self::Adaptive => "adaptive",
        }
    }
}

/// How long adaptive mode spins (MECHANISMS.md, recommendation 3).
pub const SPIN: Duration = Duration::from_micros(50);

/// Rounds without a frame after which a polling loop looks at its control connection.
const IDLE_ROUNDS_TO_CONTROL: u32 = 20_000;
/// Rounds with frames after which it does so too.
const BUSY_ROUNDS_TO_CONTROL: u32 = 4096;

/// What to do after a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Another round.
    Again,
    /// Look at the control connection without sleeping, then another round.
    Control,
    /// Arm, and sleep when there is still nothing.
    Sleep,
}

/// Counts rounds and decides.
#[derive(Debug)]
pub struct Pace {
    mode: Mode,
    idle: u32,
    busy: u32,
    since: Option<Instant>,
}

impl Pace {
    /// At the start of a loop.
    pub fn new(mode: Mode) -> Self {
        Self { mode, idle: 0, busy: 0, since: None }
    }

    /// After a round in which something `moved`, or nothing.
    #[inline]
    pub fn after(&mut self, moved: bool) -> Next {
        if moved {
            self.idle = 0;
            self.since = None;
            self.busy += 1;
            if self.busy >= BUSY_ROUNDS_TO_CONTROL {
                self.busy = 0;
                return Next::Control;
            }
            return Next::Again;
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
                std::hint::spin_loop();
                // The clock is read once in a while only: it costs as much as a round.
                if self.idle % 16 != 1 {
                    return Next::Again;
                }
                match self.since {
                    None => {
                        self.since = Some(Instant::now());
                        Next::Again
                    }
                    Some(since) if since.elapsed() >= SPIN => {
                        self.since = None;
                        self.idle = 0;
                        Next::Sleep
                    }
                    Some(_) => Next::Again,
                }
            }
        }
    }
}
