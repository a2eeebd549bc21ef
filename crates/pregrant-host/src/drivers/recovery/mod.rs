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

/// Keeps it, on platform `P`.
pub trait Recovery<P> {
    /// Makes this process the device's only owner, until the value is dropped or the process dies.
    /// The error names who or what is in the way.
    fn own(&mut self, p: &P, id: &DeviceId) -> Result<Box<dyn Any>, String>;
    /// `bytes` of a device's memory, by a name that its class gives, as a predecessor left them.
    /// None: there are to be none.
    ///
    /// # Errors
    /// There is no memory to be had, in words for the log: the device works but does not survive a
    /// crash.
    fn page(&mut self, p: &P, id: &DeviceId, name: &str, bytes: usize) -> Result<Option<KeptBytes>, String>;
    /// The device is gone for good.
    fn forget(&mut self, p: &P, id: &DeviceId);
    /// The domain's devices of this class that something is kept of, whether there are such devices
    /// or not. `own` is the domain.
    fn kept(&mut self, p: &P, class: Class, own: DomId) -> Vec<DeviceId>;
}

/// The name under which everything of a device is kept: `vif5.0`.
pub fn device_name(id: &DeviceId) -> String {
    format!("{}{}.{}", id.class.name(), id.front.0, id.handle)
}

/// The device of a page's name, in domain `back`, if it is of this class.
pub fn device_of(page: &str, class: Class, back: DomId) -> Option<DeviceId> {
    let (front, handle) = page.split_once('/')?.0.strip_prefix(class.name())?.split_once('.')?;
    let front = DomId(front.parse().ok()?);
    Some(DeviceId { class, front, back, handle: handle.parse().ok()? })
}
