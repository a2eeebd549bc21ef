//! A disk that is mounted: the front's loop, and the end of the mount.
//!
//! ```text
//!   signal --> unmount --busy?--> detached: no program finds it any more, those that have the file open go on with it
//!                 '-------------------------------> the last one has closed it --> flush, close
//! ```
//! Invariant: the loop goes on as long as a program may ask for something.

use super::Result;
use super::file::{DiskFile, FUSE_THREADS};
use super::fuse::Session;
use crate::loopback_machine::shell_word;
use crate::stop::Stop;
use fuser::{Config, MountOption};
use pregrant::blk::device_number;
use pregrant::platform::Platform;
use pregrant::xenstore::Transport;
use pregrant_host::drivers::{BlkFrontend, Rest, Work};
use pregrant_host::wake::WakeOn;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::error::Error;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Checks whether a disk can be mounted at this path; if not, the error has the remedy. Unmounts
/// the file system of a process that was killed.
pub(super) fn check(mount: &Path) -> Result<()> {
    let shown = mount.display();
    if let Err(e) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        let remedy = match e.kind() {
            io::ErrorKind::PermissionDenied => "run this as root",
            _ => "load the module: modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN",
        };
        return Err(format!("/dev/fuse: {e}; a mount needs it: {remedy}").into());
    }
    match std::fs::metadata(mount) {
        Ok(dir) if dir.is_dir() => Ok(()),
        Ok(_) => Err(format!("--mount {shown}: not a directory; name a directory").into()),
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            // LOG: once, before anything is served.
            log::info!("{shown}: unmounting the stale mount of a process that has ended");
            Ok(rustix::mount::unmount(mount, UnmountFlags::DETACH)?)
        }
        Err(e) => {
            let word = shell_word(mount);
            Err(format!("--mount {shown}: {e}; make the directory first: mkdir -p {word}").into())
        }
    }
}

pub(super) struct Mounted<'a, P: Platform, T: Transport> {
    front: BlkFrontend<P, T>,
    mount: PathBuf,
    session: Session,
    /// True once the kernel has released the mount.
    ended: Arc<AtomicBool>,
    stop: &'a Stop,
    /// The index of the signal's descriptor among those that end a sleep; None: the signal was
    /// handled.
    signal: Option<usize>,
}

impl<'a, P: Platform, T: Transport> Mounted<'a, P, T>
where
    P::Events: WakeOn,
{
    /// Mounts the disk, whose size and sector size must be known.
    pub(super) fn new(
        front: BlkFrontend<P, T>,
        mount: &Path,
        timeout: Option<Duration>,
        stop: &'a Stop,
    ) -> Result<Self> {
        let name = device_number::name(front.device().id().handle);
        let ended = Arc::new(AtomicBool::new(false));
        let id = front.device().id().to_string();
        let file = DiskFile::new(id, Arc::clone(front.disk()), Arc::clone(&ended), timeout)?;
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(format!("pregrant:{name}")),
            MountOption::Subtype("pregrant".into()),
            MountOption::DefaultPermissions,
            MountOption::NoExec,
        ];
        let signal = Some(front.platform().events().also_wake_on(stop.as_fd())?);
        let session = Session::new(mount, &config, file, FUSE_THREADS).map_err(|e| {
            format!(
                "{}: cannot mount a disk there: {e}; it takes root, or fusermount3 (package fuse3)",
                mount.display()
            )
        })?;
        Ok(Self { front, mount: mount.into(), session, ended, stop, signal })
    }

    pub(super) fn front(&self) -> &BlkFrontend<P, T> {
        &self.front
    }

    /// Unmounts the disk, even if programs have the file open.
    fn unmount(&self) {
        let shown = self.mount.display();
        match rustix::mount::unmount(&self.mount, UnmountFlags::empty()) {
            Err(Errno::BUSY) => {
                // LOG: once, at the end.
                log::warn!(
                    "{shown}: in use: exiting when the last program closes the disk, or at once on a second signal"
                );
                // it was there just now
                let _ = rustix::mount::unmount(&self.mount, UnmountFlags::DETACH);
            }
            Ok(()) | Err(Errno::INVAL) => {}
            // LOG: as above.
            Err(e) => {
                log::error!("{shown}: cannot unmount: {e}; as root: umount -l {}", shell_word(&self.mount))
            }
        }
    }

    /// Called after the loop. If `well` is true, the loop ended without an error, and the call
    /// waits for FUSE's threads; otherwise programs get errors.
    pub(super) fn end(self, well: bool) -> (BlkFrontend<P, T>, Result<()>) {
        let Self { mut front, mount, session, .. } = self;
        if well {
            let joined = session.join().map_err(|e| format!("{}: {e}", mount.display()).into());
            return (front, joined);
        }
        front.fail();
        let _ = rustix::mount::unmount(&mount, UnmountFlags::DETACH); // it may be gone
        (front, Ok(()))
    }
}

impl<P: Platform, T: Transport> Rest for Mounted<'_, P, T>
where
    P::Events: WakeOn,
{
    type Error = Box<dyn Error>;

    fn sleep(&mut self) -> Result<()> {
        Ok(self.front.sleep_unless(None, || self.ended.load(Ordering::Acquire))?)
    }

    /// Follows the backend's state, and stops on a signal.
    fn control(&mut self) -> Result<()> {
        self.front.control(Duration::ZERO)?;
        if self.stop.asked()
            && let Some(signal) = self.signal.take()
        {
            self.front.platform().events().forget(signal); // it stays readable
            self.unmount();
        }
        Ok(())
    }
}

impl<P: Platform, T: Transport> Work for Mounted<'_, P, T>
where
    P::Events: WakeOn,
{
    fn is_live(&self) -> bool {
        self.front.vbd().is_live()
    }

    fn is_over(&mut self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn round(&mut self) -> Result<bool> {
        Ok(self.front.round()?)
    }
}
