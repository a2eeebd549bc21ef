//! The loop of a driver: rounds, control when it is due, sleep.
//!
//! ```text
//!   round --moved or spinning--> again --> round
//!     '-----2 ms of rounds------> control --> round             (PollController decides)
//!     '-----nothing moves-------> sleep, control --> round
//! ```
//! All that a loop does of its own is in a [`Work`]: this is resolved when compiling, and a round
//! costs no call by table.
//!
//! Invariant: no one sleeps on work. [`Rest::sleep`] arms, and checks once more before it sleeps;
//! what comes after that check wakes it. Control has its turn after each sleep, or, where it had it
//! just before, at the kernel's first tick after [`CONTROL_EVERY`].

use super::poll_controller::{CONTROL_EVERY, Mode, Next, PollController};
use crate::clock::coarse;
use std::time::Duration;

/// The calls of a worker between rounds.
pub trait Rest {
    /// The error that ends the loop.
    type Error;
    /// Whether a control turn follows each sleep. False: [`sleep`](Self::sleep) itself checks what
    /// a control turn checks, and the next one is due in time.
    const CONTROL_AFTER_SLEEP: bool = true;

    /// Follows xenstore, and does all other work outside of the data path.
    ///
    /// # Errors
    /// The loop ends.
    fn control(&mut self) -> Result<(), Self::Error>;
    /// Arms all queues, checks once more, and sleeps if there is still no work.
    ///
    /// # Errors
    /// The loop ends.
    fn sleep(&mut self) -> Result<(), Self::Error>;
    /// Called when another round follows at once.
    #[inline(always)]
    fn again(&mut self, moved: bool) {
        let _ = moved;
    }
}

/// All calls of a worker.
pub trait Work: Rest {
    /// Runs one batch of everything that there is. Returns true if something moved.
    ///
    /// # Errors
    /// The loop ends.
    fn round(&mut self) -> Result<bool, Self::Error>;
    /// Returns false if nothing can move now. The loop then sleeps after each round.
    fn is_live(&self) -> bool {
        true
    }
    /// Returns true to end [`PollLoop::run`]. It is called before each round.
    fn is_over(&mut self) -> bool {
        false
    }
}

/// The loop of a thread that serves queues: rounds of work, control turns, sleep.
#[derive(Debug)]
pub struct PollLoop {
    pace: PollController,
    /// Time of the last control turn, by the coarse clock, which needs no system call.
    controlled: Duration,
}

impl PollLoop {
    /// Creates the state of a loop that starts.
    pub fn new(mode: Mode) -> Self {
        Self { pace: PollController::new(mode), controlled: coarse() }
    }

    /// Runs until the work is over.
    ///
    /// # Errors
    /// A round, the control call or the sleep of `work` failed.
    #[inline]
    pub fn run<W: Work>(&mut self, work: &mut W) -> Result<(), W::Error> {
        while !work.is_over() {
            self.turn(work)?;
        }
        Ok(())
    }

    /// Runs one round and the step that follows it.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    #[inline(always)]
    pub fn turn<W: Work>(&mut self, work: &mut W) -> Result<(), W::Error> {
        let moved = work.round()?;
        if !work.is_live() {
            work.sleep()?;
            return self.control(work);
        }
        self.after(work, moved)
    }

    /// Does what follows a round that the caller has run itself; `moved` is true if frames moved in
    /// it.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    #[inline(always)]
    pub fn after<W: Rest>(&mut self, work: &mut W, moved: bool) -> Result<(), W::Error> {
        match self.pace.after(moved) {
            Next::Again => {
                work.again(moved);
                return Ok(());
            }
            Next::Control => {}
            Next::Sleep => {
                work.sleep()?;
                if !W::CONTROL_AFTER_SLEEP && coarse() - self.controlled < CONTROL_EVERY {
                    return Ok(());
                }
            }
        }
        self.control(work)
    }

    fn control<W: Rest>(&mut self, work: &mut W) -> Result<(), W::Error> {
        work.control()?;
        if !W::CONTROL_AFTER_SLEEP {
            self.controlled = coarse();
        }
        Ok(())
    }
}
