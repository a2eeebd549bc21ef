//! What of a vif outlives the backend's process, so that the next one goes on with the live rings
//! (docs/protocol 1.1).
//!
//! ```text
//!   vif5.0          the lock: one owner, until it dies or gives the vif up (R6)
//!   vif5.0/0/tx     the redo page of queue 0's TX ring (R3), and so on
//!   vif5.0/control  the control page: what the guest set by control requests (R4)
//! ```
//! | file | keeps it |
//! |---|---|
//! | `broker` | with the loopback's broker |
//! | `file` | in files that processes share, on real Xen |
//!
//! Kept in the back's own domain: a guest reaches none of it, and can at most make the driver domain keep one name and
//! the pages of its queues for each vif that the toolstack made.

mod broker;
mod file;

pub use broker::BrokerRecovery;
pub use file::{FileRecovery, Lock, LockError};

use pregrant::DomId;
use pregrant::net::back::ControlPage;
use pregrant::ring::RedoPage;
use pregrant::xenbus::{Class, DeviceId};
use std::any::Any;

/// Queues of a vif whose pages are forgotten with it.
const QUEUES_MAX: usize = 64;

/// Keeps it, on platform `P`.
pub trait Recovery<P> {
    /// Makes this process the vif's only owner, until the value is dropped or the process dies. The error names who or
    /// what is in the way.
    fn own(&mut self, p: &P, id: &DeviceId) -> Result<Box<dyn Any>, String>;
    /// The redo page of a queue's direction, as a predecessor left it. None: there is to be none.
    ///
    /// # Errors
    /// There is no memory to be had, in words for the log: the vif works but does not survive a crash.
    fn redo_page(
        &mut self,
        p: &P,
        id: &DeviceId,
        queue: usize,
        dir: &'static str,
    ) -> Result<Option<RedoPage>, String>;
    /// The control page, likewise.
    ///
    /// # Errors
    /// As for [`redo_page`](Self::redo_page).
    fn control_page(&mut self, p: &P, id: &DeviceId) -> Result<Option<ControlPage>, String>;
    /// The vif is gone for good.
    fn forget(&mut self, p: &P, id: &DeviceId);
    /// The domain's vifs that something is kept of, whether there are such vifs or not. `own` is the domain.
    fn kept(&mut self, p: &P, own: DomId) -> Vec<DeviceId>;
}

fn name(id: &DeviceId) -> String {
    format!("{}{}.{}", id.class.name(), id.front.0, id.handle)
}

/// The vif of a page's name, in domain `back`.
fn vif_of(page: &str, back: DomId) -> Option<DeviceId> {
    let (front, handle) = page.split_once('/')?.0.strip_prefix(Class::Vif.name())?.split_once('.')?;
    let front = DomId(front.parse().ok()?);
    Some(DeviceId { class: Class::Vif, front, back, handle: handle.parse().ok()? })
}

fn page_name(id: &DeviceId, queue: usize, dir: &str) -> String {
    format!("{}/{queue}/{dir}", name(id))
}

fn control_name(id: &DeviceId) -> String {
    format!("{}/control", name(id))
}
