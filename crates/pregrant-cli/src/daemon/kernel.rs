//! The kernel's own backends, kept off what is served here, and given what is not.
//!
//! ```text
//!   drivers_autoprobe = 0   what is new is nobody's until it is looked at
//!   each look               what is not chosen here, and no other backend of ours serves, the kernel gets by name
//!   the end                 1 again, unless another backend of ours still runs
//! ```
//! `back` and `blkback` share that switch. Each hands on devices of its own kind, and those of no backend of ours; those of a
//! kind whose backend has run since boot are that one's to hand on, also while it is being started again.

use super::{RUN_DIR, Result, Serves};
use pregrant::DomId;
use pregrant::xenbus::DeviceId;
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::Chosen;
use pregrant_host::drivers::recovery::{Lock, LockError};
use pregrant_host::linux::KernelBack;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Between two looks at what the kernel has.
const LOOK: Duration = Duration::from_millis(100);

/// The kernel's autoprobe, off until this is dropped; and what it is off for.
pub struct KeptOff {
    kernel: KernelBack,
    serves: Serves,
    chosen: Vec<Chosen>,
    run_dir: PathBuf,
}

impl KeptOff {
    /// From now on the kernel takes no new device by itself. None: it has no backends.
    ///
    /// # Errors
    /// Not root.
    pub fn begin(serves: Serves, chosen: Vec<Chosen>) -> Result<Option<Rc<Self>>> {
        let kernel = KernelBack::of(serves.class());
        if !kernel.has_bus() {
            return Ok(None);
        }
        // First of all: what comes from here on is nobody's until it is looked at. Also where the driver is not loaded: a device
        // that comes makes udev load it.
        kernel.set_autoprobe(false)?;
        Ok(Some(Rc::new(Self { kernel, serves, chosen, run_dir: RUN_DIR.into() })))
    }

    /// The kernel's driver.
    pub fn kernel(&self) -> &KernelBack {
        &self.kernel
    }

    fn lock_of(&self, serves: Serves) -> PathBuf {
        self.run_dir.join(format!("{}.lock", serves.lock()))
    }

    fn others(&self) -> impl Iterator<Item = Serves> {
        [Serves::Vifs, Serves::Vbds].into_iter().filter(|other| *other != self.serves)
    }

    /// Gives the kernel what is not ours.
    fn hand_on(&self) {
        let with_others: Vec<_> = self.others().filter(|other| self.lock_of(*other).exists()).collect();
        self.kernel.probe_others(|class, front, handle| {
            if class == self.serves.class() {
                Chosen::serve(&self.chosen, front, handle)
            } else {
                with_others.iter().any(|other| other.class() == class)
            }
        });
    }

    /// Whether another backend of ours runs.
    fn another_runs(&self) -> bool {
        let has_owner =
            |path: &Path| path.exists() && matches!(Lock::take(path), Err(LockError::Held { .. }));
        self.others().any(|other| has_owner(&self.lock_of(other)))
    }

    /// What is to be done in control turns so that the kernel gets the devices that are not ours.
    pub fn looking_after(kept: &Option<Rc<Self>>) -> Option<(Duration, Box<dyn FnMut()>)> {
        let kept = kept.clone()?;
        let mut looked = Instant::now() - LOOK;
        let look = move || {
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                kept.hand_on();
            }
        };
        Some((LOOK, Box::new(look)))
    }
}

impl Drop for KeptOff {
    fn drop(&mut self) {
        if !self.another_runs()
            && let Err(e) = self.kernel.set_autoprobe(true)
        {
            // LOG: once, at this process' end.
            log::warn!("the kernel takes no new devices by itself: {e}");
        }
        // What came since the last look is not looked at again by the kernel.
        self.hand_on();
    }
}

/// The domain's devices that are chosen; all when nothing is.
///
/// # Errors
/// xenstore's.
pub fn devices_of<T: Transport>(
    serves: Serves,
    back: DomId,
    xs: &mut Client<T>,
    chosen: &[Chosen],
) -> Result<Vec<DeviceId>> {
    let mut found = pregrant::xenbus::toolstack::backs_of(xs, back, serves.class())?;
    found.retain(|id| Chosen::serve(chosen, id.front.0, id.handle));
    Ok(found)
}
