//! The kernel's own backends, kept off what is served here, and given what is not.
//!
//! ```text
//!   drivers_autoprobe = 0   what is new is no one's until it is checked
//!   each check              what is not chosen here, and no other backend of ours serves, the kernel gets by name
//!   the end                 1 again, unless another backend of ours runs, or waits for this one's end
//! ```
//! `back` and `blkback` share that switch. Each hands on devices of its own kind, and those of no
//! backend of ours; those of a kind whose backend has run since boot are that one's to hand on,
//! also while it is being started again. The kernel keeps the devices that it has: they are left
//! alone (`had_by_others` of a backend's configuration).
//!
//! One that [waits](Heir) for its predecessor's end holds the lock `NAME.next.lock` and has set the
//! switch to 0. A predecessor that finds that lock held leaves the switch as it is; else it takes
//! the lock itself, sets 1, and keeps the lock until its process has ended. So the next backend
//! sets 0 after that 1, and no device falls to the kernel between two backends when the second
//! waited for the first. Locks of others are asked and never taken, or two that end together would
//! each take the other's question for an heir, and leave the switch at 0.

use super::{RUN_DIR, Result, Serves};
use pregrant_host::drivers::DeviceChoice;
use pregrant_host::drivers::recovery::{Lock, LockError};
use pregrant_host::linux::KernelBack;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Interval at which devices are looked for that the kernel should have.
const CHECK: Duration = Duration::from_millis(100);
const KINDS: [Serves; 2] = [Serves::Vifs, Serves::Vbds];

/// Returns the path of the lock that allows one backend of each kind.
pub fn lock_path(run_dir: &Path, serves: Serves) -> PathBuf {
    run_dir.join(format!("{}.lock", serves.lock()))
}

/// Returns the path of the lock of the process that waits until that backend ends.
fn next_path(run_dir: &Path, serves: Serves) -> PathBuf {
    run_dir.join(format!("{}.next.lock", serves.lock()))
}

/// Returns true if a backend of another kind runs. A process that has both locks is ending, and
/// does not count. So if two backends end at the same time, one of them restores the kernel's
/// state.
fn another_runs(run_dir: &Path, serves: Serves) -> bool {
    KINDS.into_iter().filter(|other| *other != serves).any(|other| {
        let owner = Lock::owner(&lock_path(run_dir, other));
        owner.is_some() && owner != Lock::owner(&next_path(run_dir, other))
    })
}

/// A process that waits for its predecessor's end and keeps the kernel from binding devices from
/// then on. If the value is dropped before it [succeeds](Self::succeed), the process has given up.
/// The drop then restores the kernel's state, if the predecessor has left that to this process.
pub struct Heir {
    kernel: KernelBack,
    serves: Serves,
    run_dir: PathBuf,
    next: Option<Lock>,
    /// True if this process has the backend's lock.
    owns: bool,
    succeeded: bool,
}

impl Heir {
    /// Makes this process the only one that waits until the kernel's backend ends. None: another
    /// process waits already, or there is no kernel driver.
    pub fn begin(kernel: KernelBack, serves: Serves, run_dir: &Path) -> Option<Self> {
        if !kernel.has_bus() {
            return None;
        }
        let next = Lock::take(&next_path(run_dir, serves)).ok()?;
        // One that may not do that reports it when its turn has come.
        kernel.set_autoprobe(false).ok()?;
        let (next, run_dir) = (Some(next), run_dir.into());
        Some(Self { kernel, serves, run_dir, next, owns: false, succeeded: false })
    }

    /// Called when this process has the backend's lock, and will keep it after this value is
    /// dropped.
    pub fn has_come(&mut self) {
        self.owns = true;
    }

    /// Called when another value in this process ([`KeptOff`]) keeps the kernel from binding
    /// devices.
    pub fn succeed(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        drop(self.next.take());
        if self.succeeded {
            return;
        }
        let lock = (!self.owns).then(|| Lock::take(&lock_path(&self.run_dir, self.serves)));
        if !matches!(lock, Some(Err(_))) && !another_runs(&self.run_dir, self.serves) {
            let _ = self.kernel.set_autoprobe(true); // as it is where no backend runs
        }
    }
}

/// Switches off the kernel's autoprobe until the value is dropped, and remembers which devices it
/// was switched off for.
pub struct KeptOff {
    kernel: KernelBack,
    serves: Serves,
    chosen: Vec<DeviceChoice>,
    run_dir: PathBuf,
}

impl KeptOff {
    /// Stops the kernel from binding new devices by itself. None: the kernel has no backends.
    ///
    /// # Errors
    ///
    /// The process is not root.
    pub fn begin(serves: Serves, chosen: Vec<DeviceChoice>) -> Result<Option<Rc<Self>>> {
        Self::begin_at(KernelBack::of(serves.class()), serves, chosen, Path::new(RUN_DIR))
    }

    fn begin_at(
        kernel: KernelBack,
        serves: Serves,
        chosen: Vec<DeviceChoice>,
        run_dir: &Path,
    ) -> Result<Option<Rc<Self>>> {
        if !kernel.has_bus() {
            return Ok(None);
        }
        // First of all: what comes from here on is no one's until it is checked. Also where the
        // driver is not loaded: a device that comes makes udev load it.
        kernel.set_autoprobe(false)?;
        Ok(Some(Rc::new(Self { kernel, serves, chosen, run_dir: run_dir.into() })))
    }

    fn others(&self) -> impl Iterator<Item = Serves> {
        KINDS.into_iter().filter(|other| *other != self.serves)
    }

    /// Lets the kernel bind the devices that this process does not serve.
    fn hand_on(&self) {
        let has_run = |other: &Serves| lock_path(&self.run_dir, *other).exists();
        let with_others: Vec<_> = self.others().filter(has_run).collect();
        self.kernel.probe_others(|class, front, handle| {
            if class == self.serves.class() {
                DeviceChoice::serve(&self.chosen, front, handle)
            } else {
                with_others.iter().any(|other| other.class() == class)
            }
        });
    }

    fn check(&self) {
        // A backend of another kind that ended as this one began has not seen it.
        if self.kernel.autoprobe() {
            let _ = self.kernel.set_autoprobe(false); // it could be set when this began
        }
        self.hand_on();
    }

    /// Returns the check that gives the kernel the devices that are not ours, and its interval. It
    /// is made in control turns.
    pub fn watching(kept: &Option<Rc<Self>>) -> Option<(Duration, Box<dyn FnMut()>)> {
        let kept = kept.clone()?;
        let mut checked = Instant::now() - CHECK;
        let check = move || {
            if checked.elapsed() >= CHECK {
                checked = Instant::now();
                kept.check();
            }
        };
        Some((CHECK, Box::new(check)))
    }
}

impl Drop for KeptOff {
    fn drop(&mut self) {
        match Lock::take(&next_path(&self.run_dir, self.serves)) {
            // It has set the switch, and hands on what came meanwhile.
            Err(LockError::Held { .. }) => return,
            // Until this process has ended: a process that waits from now on sets the switch after
            // this.
            Ok(next) => std::mem::forget(next),
            Err(LockError::Failed { .. }) => {}
        }
        if !another_runs(&self.run_dir, self.serves)
            && let Err(e) = self.kernel.set_autoprobe(true)
        {
            // LOG: once, at this process' end.
            log::warn!(
                "cannot set /sys/bus/xen-backend/drivers_autoprobe back to 1, so the kernel probes no new device: {e}"
            );
        }
        // The kernel does not check again the devices that came since the last check.
        self.hand_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory that imitates the kernel's bus, and a directory for locks.
    struct Machine(PathBuf);

    impl Machine {
        fn new(test: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("pregrant-kept-off-{}-{test}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(dir.join("bus/devices")).unwrap();
            fs::create_dir_all(dir.join("run")).unwrap();
            fs::write(dir.join("bus/drivers_autoprobe"), "1").unwrap();
            Self(dir)
        }
        fn kernel(&self, serves: Serves) -> KernelBack {
            KernelBack::on_bus(self.0.join("bus"), serves.class())
        }
        fn run_dir(&self) -> PathBuf {
            self.0.join("run")
        }
        fn takes_new(&self) -> bool {
            self.kernel(Serves::Vifs).autoprobe()
        }
        /// Starts what a running backend has: its lock, and the setting that keeps the kernel from
        /// binding devices.
        fn backend(&self, serves: Serves) -> (Rc<KeptOff>, Lock) {
            let lock = Lock::take(&lock_path(&self.run_dir(), serves)).unwrap();
            let kept = KeptOff::begin_at(self.kernel(serves), serves, Vec::new(), &self.run_dir());
            (kept.unwrap().unwrap(), lock)
        }
        fn heir(&self, serves: Serves) -> Option<Heir> {
            Heir::begin(self.kernel(serves), serves, &self.run_dir())
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Drops the kept devices first and then the lock, as the end of a process does.
    fn end((kept, lock): (Rc<KeptOff>, Lock)) {
        drop(kept);
        drop(lock);
    }

    #[test]
    fn the_kernel_takes_no_device_between_a_backend_and_one_that_waits_for_it() {
        let machine = Machine::new("heir");
        let first = machine.backend(Serves::Vifs);
        assert!(!machine.takes_new());
        let heir = machine.heir(Serves::Vifs).unwrap();
        assert!(machine.heir(Serves::Vifs).is_none(), "one waits at a time");
        end(first);
        assert!(!machine.takes_new(), "the old one has let go of the kernel, though the next waits");
        let second = machine.backend(Serves::Vifs);
        heir.succeed();
        assert!(!machine.takes_new());
        end(second);
        assert!(machine.takes_new());
    }

    #[test]
    fn one_whose_turn_has_come_and_that_fails_gives_the_kernel_its_devices() {
        let machine = Machine::new("fails");
        let first = machine.backend(Serves::Vifs);
        let mut heir = machine.heir(Serves::Vifs).unwrap();
        end(first);
        let lock = Lock::take(&lock_path(&machine.run_dir(), Serves::Vifs)).unwrap();
        heir.has_come();
        drop(heir);
        assert!(machine.takes_new());
        drop(lock);
    }

    #[test]
    fn the_last_backend_gives_the_kernel_its_devices() {
        let machine = Machine::new("last");
        let (vifs, vbds) = (machine.backend(Serves::Vifs), machine.backend(Serves::Vbds));
        end(vifs);
        assert!(!machine.takes_new(), "disks are served still");
        end(vbds);
        assert!(machine.takes_new());
        // Both at once: the lock of the first is held until its process has ended.
        let machine = Machine::new("both");
        let (vifs, vbds) = (machine.backend(Serves::Vifs), machine.backend(Serves::Vbds));
        drop(vifs.0);
        assert!(!machine.takes_new());
        drop(vbds.0);
        assert!(machine.takes_new(), "each left the kernel to the other");
        drop((vifs.1, vbds.1));
        // Its lock is held until its process has ended: the next one sets the switch after it.
        assert!(machine.heir(Serves::Vbds).is_none());
    }

    #[test]
    fn two_that_end_at_the_same_time_do_not_both_leave_the_switch() {
        for round in 0..100 {
            let machine = Machine::new("together");
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|threads| {
                for serves in KINDS {
                    let (machine, both) = (&machine, &both);
                    threads.spawn(move || {
                        let (kept, lock) = machine.backend(serves);
                        both.wait();
                        end((kept, lock));
                    });
                }
            });
            assert!(machine.takes_new(), "round {round}: each took the other's question for an heir");
        }
    }

    #[test]
    fn one_that_waits_no_more_leaves_the_kernel_to_the_one_that_runs() {
        let machine = Machine::new("gives-up");
        let first = machine.backend(Serves::Vifs);
        drop(machine.heir(Serves::Vifs).unwrap());
        assert!(!machine.takes_new());
        let heir = machine.heir(Serves::Vifs).unwrap();
        end(first);
        drop(heir);
        assert!(machine.takes_new(), "no backend keeps it off, and none runs");
    }

    #[test]
    fn a_backend_of_another_kind_that_ends_does_not_give_the_kernel_ours() {
        let machine = Machine::new("checks");
        let (kept, _lock) = machine.backend(Serves::Vifs);
        machine.kernel(Serves::Vbds).set_autoprobe(true).unwrap();
        kept.check();
        assert!(!machine.takes_new());
    }
}
