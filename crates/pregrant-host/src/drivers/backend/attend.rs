//! Listening to fronts, each as long as its guest's account has it ([`Attention`](crate::drivers::attention::Attention)).
//!
//! ```text
//!   attend: a step, or what a fault comes to; its time is charged --both accounts empty--> watches away, rest
//!   wake_rested: watches set again, which gives an event, and with it the step that was missed
//! ```
//! What the toolstack does with a vif that rests (`online`, its directory) is heard at once.
//!
//! What a guest may do: ask for steps without end. It gets a bounded share of the worker's time, and one line in the log.

use super::{Backend, Served};
use crate::drivers::attention::LONGEST_REST;
use log::Level;
use pregrant::platform::Platform;
use pregrant::xenstore::Transport;
use std::time::{Duration, Instant};

/// What the log says of a vif's first rest.
const RESTS: &str = "its front asks for too many steps, and is not listened to now and again";

impl<P: Platform, T: Transport> Backend<P, T> {
    /// Does what a vif's front made necessary, at its guest's expense.
    pub(super) fn attend(&mut self, key: (u16, u32), what: impl FnOnce(&mut Self)) {
        let start = Instant::now();
        what(self);
        let Some(served) = self.vifs.get_mut(&key) else { return };
        let now = Instant::now();
        let attention = self.attention.entry(key.0).or_default();
        let rest = attention.step(now.duration_since(self.began), now.duration_since(start));
        let Some(rest) = rest.filter(|_| self.limits_steps && served.rests_until.is_none()) else { return };
        if let Err(e) = Served::<P>::hush(&served.device, &mut self.xs) {
            served.say(Level::Warn, &e); // one of its watches may be gone: they are set again in any case
        }
        attention.spend(self.began.elapsed(), now.elapsed());
        served.rests_until = Some(now + rest);
        served.rests += 1;
        if served.rests == 1 {
            served.say(Level::Warn, &RESTS);
        }
    }

    /// Listens to all, whatever they did.
    pub(super) fn wake_all(&mut self) {
        self.wake_those_until(Instant::now() + LONGEST_REST);
    }

    /// Listens again to those that have rested. True: there are such, and what they missed may have come already.
    pub(super) fn wake_rested(&mut self) -> bool {
        self.wake_those_until(Instant::now())
    }

    fn wake_those_until(&mut self, end: Instant) -> bool {
        let mut woke = false;
        let rested = |s: &Served<P>| s.rests_until.is_some_and(|until| until <= end);
        for (key, served) in self.vifs.iter_mut().filter(|(_, s)| rested(s)) {
            let attention = self.attention.entry(key.0).or_default();
            woke = true;
            let start = Instant::now();
            served.rests_until = match Served::<P>::listen(&served.device, &mut self.xs) {
                Ok(()) => None,
                Err(e) => {
                    served.say(Level::Warn, &e);
                    Some(start + LONGEST_REST)
                }
            };
            attention.spend(self.began.elapsed(), start.elapsed());
        }
        woke
    }

    /// When the first of those that rest is to be listened to again, from now.
    pub(super) fn rest_left(&self) -> Option<Duration> {
        let first = self.vifs.values().filter_map(|s| s.rests_until).min();
        first.map(|until| until.saturating_duration_since(Instant::now()))
    }
}
