//! Hotplug scripts, which need root: run by this process, or by another one that it asks for it.
//!
//! ```text
//!   taps --> Run --+--> Script: a child of this process                               (without systemd)
//!                  |
//!                  '--> Asked --request--> /run/pregrant-hotplug/socket --> Service --> Script       (in its own unit)
//!                            <---"done", "failed: why"---
//! ```
//! The service is one process for each request (systemd starts it, `dist/pregrant-hotplug.socket`):
//! a backend that may neither run programs nor load modules nor write files asks it for the one
//! thing that it needs of root.
//!
//! An attacker who has the backend's process may have scripts run that are below
//! `/etc/xen/scripts`, with `online` or `offline`, for an interface that is a tap or is not there,
//! and a vif's directory; 64 at a time, each for a minute. Everything else is refused
//! ([`Request::parse`], [`Service::check`]), and nothing of what it sends reaches a shell but as a
//! value in the environment, of letters, digits and `/ . _ -`. The values that scripts read from
//! xenstore are another matter (docs/threat-model.md).

mod request;
mod script;
mod script_run;
mod service;

pub use request::{REQUEST_BYTES, Request, RequestError, What};
pub use script::{SCRIPT, Script};
pub use script_run::Asked;
pub use service::{Service, ServiceError};

use super::port_provider::{HotplugConfig, Plugged};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Largest number of hotplug scripts that a backend runs at the same time; other vifs wait. It is
/// smaller than the queue of the service's socket.
pub const RUNS_MAX: usize = 32;

/// The time that a script waits while the service accepts no connection.
const TAKEN: Duration = Duration::from_secs(65);

/// A hotplug script, run by this process or by the service.
#[derive(Debug)]
pub struct Run {
    request: Request,
    /// Socket of the service that runs the script; None: this process runs it.
    socket: Option<PathBuf>,
    how: How,
}

#[derive(Debug)]
enum How {
    /// The script has not started. If that is because the service accepts no connection, the time
    /// says since when.
    Waits(Option<Instant>),
    Here(Script),
    There(Asked),
}

/// Tells whether the service may start another script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capacity {
    /// Another script may start.
    Free,
    /// No script may start, since the largest number ([`RUNS_MAX`]) is running.
    None,
    /// No script may start, since the service refused a connection a moment ago.
    Refused,
}

impl Run {
    /// Creates the run of a vif's script. The script runs as the toolstack would run it, by the
    /// service at `socket` if there is one. It starts in one of the run's [turns](Self::turn).
    pub fn new(script: &str, place: &HotplugConfig, what: What, socket: Option<PathBuf>) -> Self {
        let request =
            Request { what, script: script.into(), vif: place.name.clone(), dir: place.dir.clone() };
        Self { request, socket, how: How::Waits(None) }
    }

    /// Returns the script's argument, `online` or `offline`.
    pub fn what(&self) -> What {
        self.request.what
    }

    /// True if the script has started.
    pub fn has_started(&self) -> bool {
        !matches!(self.how, How::Waits(_))
    }

    /// Continues the script. A script that has not started is started if there is [room](Capacity).
    /// A script that takes too long is killed; a script that the service does not accept in time
    /// fails.
    pub fn turn(&mut self, room: Capacity) -> Plugged {
        if let How::Waits(since) = self.how {
            match (room, self.begin(room)) {
                (_, Err(why)) => return Plugged::No(self.failed(&why)),
                (_, Ok(Some(how))) => self.how = how,
                (Capacity::None, Ok(None)) => {
                    self.how = How::Waits(None);
                    return Plugged::NotYet;
                }
                (_, Ok(None)) => {
                    let since = since.unwrap_or_else(Instant::now);
                    self.how = How::Waits(Some(since));
                    if since.elapsed() < TAKEN {
                        return Plugged::NotYet;
                    }
                    let why = format!("was not run: the hotplug service took no more for {TAKEN:?}");
                    return Plugged::No(self.failed(&why));
                }
            }
        }
        let turned = match &mut self.how {
            How::Waits(_) => None,
            How::Here(script) => script.turn(),
            How::There(asked) => asked.turn(),
        };
        match turned {
            None => Plugged::NotYet,
            Some(Ok(())) => Plugged::Yes,
            Some(Err(why)) => Plugged::No(self.failed(&why)),
        }
    }

    /// Starts the script; None: that is not possible now.
    fn begin(&self, room: Capacity) -> Result<Option<How>, String> {
        match &self.socket {
            _ if room != Capacity::Free => Ok(None),
            None => Script::start(&self.request).map(|script| Some(How::Here(script))),
            Some(socket) => Ok(Asked::of(socket, &self.request)?.map(How::There)),
        }
    }

    fn failed(&self, why: &str) -> String {
        format!("{} {} {why}", self.request.script, self.request.what)
    }

    /// Kills the script and its child processes.
    pub fn end(&mut self) {
        match &mut self.how {
            How::Waits(_) => {}
            How::Here(script) => script.end(),
            How::There(asked) => asked.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_takes_nothing_for_a_minute_is_reported() {
        let run = |how| Run { how, ..Run::new("/vif", &HotplugConfig::default(), What::Offline, None) };
        let long_ago = Instant::now().checked_sub(TAKEN).expect("it is up for longer");
        assert_eq!(run(How::Waits(None)).turn(Capacity::Refused), Plugged::NotYet);
        let why = run(How::Waits(Some(long_ago))).turn(Capacity::Refused);
        let text = "/vif offline was not run: the hotplug service took no more for 65s";
        assert_eq!(why, Plugged::No(text.into()));
        // While other scripts of ours run, the wait is not the service's fault.
        let mut waits = run(How::Waits(Some(long_ago)));
        assert_eq!(waits.turn(Capacity::None), Plugged::NotYet);
        assert_eq!(waits.turn(Capacity::Refused), Plugged::NotYet);
    }
}
