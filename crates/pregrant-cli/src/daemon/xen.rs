//! How a process becomes a real Xen domain's backend of a kind: attached through /dev/xen, its only
//! owner. [`attachment`](super::attachment) has the rest, which the loopback shares.

use super::attachment::Attached;
use super::kernel::{Heir, lock_path};
use super::{DYING, DaemonArgs, RUN_DIR, Result, Serves};
use crate::screen;
use crate::stop::Stop;
use pregrant::DomId;
use pregrant::xenbus::device::own_domid;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::recovery::{Lock, LockError};
use pregrant_host::drivers::registry::HadByOthers;
use pregrant_host::drivers::{BackendConfig, FileRecovery, StatusPublisher};
use pregrant_host::linux::{KernelBack, Xen};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Largest number of worker threads that are started on Xen unless the user asks for more: a driver
/// domain seldom has more vCPUs.
const WORKERS_MOST: usize = 4;

/// The domain id of the toolstack's domain.
pub const TOOLSTACKS: DomId = DomId(0);

/// Connects to the xenstore of this domain, and returns the connection with the domain's number.
/// `elsewhere` is the remedy if this machine is not a Xen guest.
pub fn xenstore_of_xen(elsewhere: &str) -> Result<(Client<UnixTransport>, DomId)> {
    let transport = UnixTransport::find().map_err(|e| match e.is_denied() {
        true => e.to_string(),
        false => format!("{e}. Not on Xen? {elsewhere}"),
    })?;
    let mut xs = Client::new(transport);
    let domid = own_domid(&mut xs)?;
    Ok((xs, domid))
}

impl Attached<Xen> {
    /// Attaches in this domain. None: the process was asked to stop while it waited for its
    /// predecessor to end.
    pub fn on_xen(
        (xs, domid): (Client<UnixTransport>, DomId),
        serves: Serves,
        args: &DaemonArgs,
        stop: Stop,
    ) -> Result<Option<(Self, XenOwner)>> {
        let platform = Xen::open(domid)?;
        platform.ready_for_back()?;
        let Some(owner) = own_xen(serves, args.wait, &stop)? else { return Ok(None) };
        make_private(serves.own_dir())?;
        let status =
            StatusPublisher::bind(&serves.status(serves.own_dir(), domid.0), Xen::counters, Xen::describe)?;
        let config = BackendConfig {
            recovery: Some(Box::new(FileRecovery::new(serves.own_dir()))),
            removes: removes_directories(domid, false),
            ..BackendConfig::default()
        };
        let (workers, hint) = (workers_on_xen(), "pregrant top".into());
        let attached = Self { platform, xs, serves, domid, config, workers, hint, stop, status };
        Ok(Some((attached.woken()?, owner)))
    }

    /// Leaves each device for which `had` gives a reason to its owner.
    pub fn leave(&mut self, had: HadByOthers) {
        self.config.had_by_others = Some(had);
    }

    /// Tells whether the toolstack connects devices here: then it also removes the directories of
    /// devices that have ended.
    pub fn plugged_by_toolstack(&mut self, plugs: bool) {
        self.config.removes = removes_directories(self.domid, plugs);
    }
}

/// Makes a directory for this user alone, where systemd did not.
fn make_private(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    Ok(made.map_err(|e| format!("{}: {e}; is its folder writable for this user?", dir.display()))?)
}

/// Returns the number of worker threads of a backend on Xen, unless the operator sets another.
fn workers_on_xen() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MOST)
}

/// Returns true if a backend in domain `own` removes the directories of devices that have ended. In
/// dom0 the toolstack removes them. In a driver domain whose toolstack runs hotplug scripts, its
/// daemon (`xl devd`) does, and reads in the directory what it must undo: if that were removed
/// before, it would run no script.
fn removes_directories(own: DomId, toolstack_plugs: bool) -> bool {
    own != TOOLSTACKS && !toolstack_plugs
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_a_toolstacks_where_one_cares_for_the_domain() {
        let driver_domain = DomId(7);
        assert!(
            !removes_directories(TOOLSTACKS, true) && !removes_directories(TOOLSTACKS, false),
            "xl's in dom0"
        );
        assert!(!removes_directories(driver_domain, true), "xl devd's");
        assert!(removes_directories(driver_domain, false), "no one else would");
    }

    /// A backend that is started by hand creates its own folder, and each kind of backend has
    /// another one.
    #[test]
    fn a_backend_makes_the_folder_that_is_its_own() {
        use std::os::unix::fs::PermissionsExt;
        assert_ne!(Serves::Vifs.own_dir(), Serves::Vbds.own_dir());
        let dir = std::env::temp_dir().join(format!("pregrant-own-{}", std::process::id()));
        for _ in 0..2 {
            make_private(&dir.join("pregrant-back")).unwrap();
        }
        assert_eq!(dir.join("pregrant-back").metadata().unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(dir.join("file"), "").unwrap();
        assert!(make_private(&dir.join("file")).unwrap_err().to_string().contains("file"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
