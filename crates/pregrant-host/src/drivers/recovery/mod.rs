//! Memory of a device that outlives the backend's process, so that the next one goes on with the
//! live rings (docs/protocol 1.1).
//!
//! ```text
//!   vif5.0          the lock: one owner, until it dies or gives the device up (R6)
//!   vif5.0/0/tx     the redo page of queue 0's TX ring (R3), and so on
//!   vif5.0/control  the control page: what the guest set by control requests (R4)
//! ```
//! The class decides what a number stands for, and how many bytes that has: here there are names
//! and bytes.
//!
//! On a real Xen it is kept in files that processes share (`file`); on the loopback the broker
//! keeps it (`pregrant-loopback`).
//!
//! Kept in the back's own domain: a guest reaches none of it, and can at most make the driver
//! domain keep one name and the pages of its queues for each device that the toolstack made.

mod file;

pub use file::{FileRecovery, Lock, LockError};

use pregrant::DomId;
use pregrant::shm::SharedBytes;
use pregrant::xenbus::{Class, DeviceId};
use std::any::Any;

/// Memory of a device that outlives the process.
pub type KeptBytes = Box<dyn SharedBytes + Send>;

/// Keeps locks and memory of devices, on platform `P`, beyond the end of a process.
pub trait Recovery<P> {
    /// Makes this process the only owner of the device, until the value is dropped or the process
    /// dies. The error names the present owner.
    fn own(&mut self, p: &P, id: &DeviceId) -> Result<Box<dyn Any>, String>;
    /// Returns memory of `bytes` bytes that belongs to the device, under a name that the class
    /// chooses, with the content that a predecessor left. None: no memory is kept.
    ///
    /// # Errors
    /// There is no memory to be had, in words for the log: the device works but does not survive a
    /// crash.
    fn page(&mut self, p: &P, id: &DeviceId, name: &str, bytes: usize) -> Result<Option<KeptBytes>, String>;
    /// Called when the device was removed for good: forgets the device's memory.
    fn forget(&mut self, p: &P, id: &DeviceId);
    /// Returns the domain's devices of this class for which something is kept, whether they exist
    /// or not. `own` is the domain.
    fn kept(&mut self, p: &P, class: Class, own: DomId) -> Vec<DeviceId>;
}

/// Returns the name under which everything of a device is kept, such as `vif5.0`. A page of the
/// device is `vif5.0/PAGE`: a file in the directory of that name, or a page that the loopback's
/// broker keeps.
pub fn device_name(id: &DeviceId) -> String {
    format!("{}{}.{}", id.class.name(), id.front.0, id.handle)
}

/// Returns the device that a page's name contains, in domain `back`, if it is of this class.
pub fn device_of(page: &str, class: Class, back: DomId) -> Option<DeviceId> {
    let (front, handle) = page.split_once('/')?.0.strip_prefix(class.name())?.split_once('.')?;
    let front = DomId(front.parse().ok()?);
    Some(DeviceId { class, front, back, handle: handle.parse().ok()? })
}
