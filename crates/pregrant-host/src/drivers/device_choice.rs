//! The choice of an operator which devices of a class a backend serves: all devices of a guest, or
//! one.

/// A guest's device that an operator chose, or all devices of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceChoice {
    /// The guest's domain id.
    pub front: u16,
    /// Number of the device; None: all devices of the guest.
    pub handle: Option<u32>,
}

impl DeviceChoice {
    /// True if a device is served when these are chosen; an empty list chooses all.
    pub fn serve(chosen: &[Self], front: u16, handle: u32) -> bool {
        chosen.is_empty() || chosen.iter().any(|c| c.names(front, handle))
    }

    /// Returns true if the choice includes the device.
    pub fn names(&self, front: u16, handle: u32) -> bool {
        self.front == front && self.handle.is_none_or(|h| h == handle)
    }
}
