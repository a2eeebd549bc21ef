//! Ensures that a single process of a domain serves the devices of a kind. Its lock is released
//! when the process ends, and a successor may wait for that.

use super::kernel::{Heir, lock_path};
use super::{RUN_DIR, Result, Serves};
use crate::loopback_machine::DRIVER;
use crate::screen;
use crate::status_reader::{self, NoStatus};
use crate::stop::Stop;
use pregrant_host::drivers::recovery::{Lock, LockError};
use pregrant_host::linux::KernelBack;
use pregrant_loopback::{Loopback, LoopbackError, Owned};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time that a predecessor that was just killed may need to disappear.
const DYING: Duration = Duration::from_secs(1);

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

/// The lock that makes this process the domain's only backend of its kind.
pub struct XenOwner {
    /// Undoes on drop the steps that this process made while it waited. It must be dropped before
    /// the lock.
    heir: Option<Heir>,
    _lock: Lock,
}

impl XenOwner {
    /// Called when this backend has taken over the task of keeping the kernel from binding devices.
    pub fn succeed(&mut self) {
        if let Some(heir) = self.heir.take() {
            heir.succeed();
        }
    }
}

/// Makes this process the domain's only backend of its kind on Xen. None: the process was asked to
/// stop while it waited.
pub fn own_xen(serves: Serves, wait: bool, stop: &Stop) -> Result<Option<XenOwner>> {
    let path = lock_path(Path::new(RUN_DIR), serves);
    let mut heir: Option<Heir> = None;
    let dying = Instant::now() + DYING;
    let mut said = false;
    loop {
        match Lock::take(&path) {
            Ok(lock) => {
                heir.iter_mut().for_each(Heir::has_come);
                return Ok(Some(XenOwner { heir, _lock: lock }));
            }
            Err(LockError::Held { .. }) if stop.asked() => return Ok(None),
            Err(LockError::Held { owner, .. }) if wait => {
                if !std::mem::replace(&mut said, true) {
                    let _ = screen::print(format_args!(
                        "process {owner} serves this domain; waiting for its end"
                    ));
                }
            }
            Err(LockError::Held { .. }) if Instant::now() < dying => {}
            Err(LockError::Held { owner, .. }) => {
                let class = serves.class().name();
                return Err(format!(
                    "this domain has a backend already: process {owner}. Stop it first (its {class}s stay connected, and the \
                     next backend takes them up), or start this one with --wait"
                )
                .into());
            }
            Err(e) => return Err(e.into()),
        }
        // The kernel is kept off without a gap.
        heir = heir.or_else(|| Heir::begin(KernelBack::of(serves.class()), serves, Path::new(RUN_DIR)));
        std::thread::sleep(Duration::from_millis(1));
    }
}
