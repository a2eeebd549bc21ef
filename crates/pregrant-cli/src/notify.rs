//! Reports of this process to systemd, by the crate `sd-notify`: one datagram for each change.
//!
//! ```text
//!   READY=1                             the units after it may start: guests are served
//!   STATUS=vifs: 3, connected: 2         `systemctl status` shows it
//!   WATCHDOG=1                          the control thread has had a turn; without it for WatchdogSec the unit is started again
//!   STOPPING=1                          asked to end; what guests sent is being answered
//! ```
//! Without `NOTIFY_SOCKET` in the environment no one asked, and nothing is said. The watchdog is
//! fed by the control thread alone: one that hangs serves no xenstore, though its workers go on;
//! the next process takes the live rings up.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// The interval at which the status is checked.
const EVERY: Duration = Duration::from_secs(1);
/// Number of keep-alive messages in the watchdog's interval, so that a turn that is late by half of
/// the interval does no harm.
const FEEDS: u32 = 4;

#[derive(Debug, Default)]
pub struct Notify {
    is_wanted: bool,
    status: String,
    checked: Option<Instant>,
    /// The interval of keep-alive messages. None: there is no watchdog.
    feed: Option<Duration>,
    fed: Option<Instant>,
}

impl Notify {
    /// Connects to the service manager of this process, if it set NOTIFY_SOCKET.
    pub fn from_environment() -> Self {
        let is_wanted = std::env::var_os("NOTIFY_SOCKET").is_some();
        let watchdog = sd_notify::watchdog_enabled().filter(|_| is_wanted);
        Self { is_wanted, feed: watchdog.map(|time| time / FEEDS), ..Self::default() }
    }

    pub fn ready(&self) {
        self.say(NotifyState::Ready);
    }

    /// Reports that the process is stopping.
    pub fn stopping(&self) {
        self.say(NotifyState::Stopping);
    }

    /// Returns the time until the next turn is needed even if nothing happens. None: systemd
    /// expects no messages.
    pub fn due(&self) -> Option<Duration> {
        let every = self.is_wanted.then_some(EVERY);
        every.map(|every| self.feed.map_or(every, |feed| feed.min(every)))
    }

    /// Called in a control turn: sends the watchdog's keep-alive message and, if it has changed, a
    /// line about what the process does. Calls `text` once a second at most.
    pub fn turn(&mut self, now: Instant, text: impl FnOnce() -> String) {
        let is_due =
            |at: Option<Instant>, every| at.is_none_or(|at| now.saturating_duration_since(at) >= every);
        if let Some(feed) = self.feed
            && is_due(self.fed, feed)
        {
            self.fed = Some(now);
            self.say(NotifyState::Watchdog);
        }
        if !self.is_wanted || !is_due(self.checked, EVERY) {
            return;
        }
        self.checked = Some(now);
        let text = text();
        if text != self.status {
            self.say(NotifyState::Status(&text));
            self.status = text;
        }
    }

    fn say(&self, state: NotifyState<'_>) {
        if self.is_wanted
            && let Err(e) = sd_notify::notify(std::slice::from_ref(&state))
        {
            log::debug!("cannot notify systemd of {state}: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_want_to_know_is_asked_for_no_turn() {
        let mut alone = Notify::default();
        alone.ready();
        alone.turn(Instant::now(), || unreachable!("no one reads it"));
        assert_eq!(alone.due(), None);
        let wanted = Notify { is_wanted: true, ..Notify::default() };
        assert_eq!(wanted.due(), Some(EVERY));
        let soon = Duration::from_millis(50);
        assert_eq!(Notify { feed: Some(soon), ..wanted }.due(), Some(soon));
    }
}
