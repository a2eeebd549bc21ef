//! Ensures that a single process of a loopback domain serves the devices of a kind. Its lock is
//! released when the process ends, and a successor may wait for that.

use super::{DYING, Result, Serves};
use crate::loopback_machine::DRIVER;
use crate::screen;
use crate::status_reader::{self, NoStatus};
use crate::stop::Stop;
use pregrant_loopback::{Loopback, LoopbackError, Owned};
use std::path::Path;
use std::time::{Duration, Instant};

/// Makes this process the loopback domain's only backend of its kind. None: the process was asked
/// to stop while it waited.
pub fn own_loopback(
    platform: &Loopback,
    dir: &Path,
    serves: Serves,
    wait: bool,
    stop: &Stop,
) -> Result<Option<Owned>> {
    let dying = Instant::now() + DYING;
    let mut said = false;
    loop {
        match platform.own(serves.lock()) {
            Ok(owned) => return Ok(Some(owned)),
            Err(LoopbackError::Held { .. }) if stop.asked() => return Ok(None),
            Err(LoopbackError::Held { .. }) if wait || Instant::now() < dying => {}
            Err(LoopbackError::Held { .. }) => {
                let (who, class) = (owner(dir, serves), serves.class().name());
                return Err(format!(
                    "{DRIVER} has a backend already: {who}. Stop it first (its {class}s stay connected, and the next backend \
                     takes them up), or start this one with --wait"
                )
                .into());
            }
            Err(e) => return Err(e.into()),
        }
        if wait && !said {
            said = true;
            let who = owner(dir, serves);
            let _ = screen::print(format_args!("{DRIVER} has a backend: {who}; waiting for its end"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Describes the process that has the backend's lock.
fn owner(dir: &Path, serves: Serves) -> String {
    match status_reader::read(&serves.status(dir, DRIVER.0)) {
        Ok(status) => format!("process {}, for {:.0} s", status.pid, status.uptime_s),
        Err(NoStatus::Absent) => "a process that tells no status".into(),
        Err(silent @ NoStatus::Silent { .. }) => silent.to_string(),
        Err(NoStatus::Denied(why) | NoStatus::Failed(why)) => {
            format!("a process that tells no status ({why})")
        }
    }
}
