//! Which devices of a class a backend serves: all of a guest's, or one. Operators choose so.

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceChoice {
    /// The guest.
    pub front: u16,
    /// Its device; None: all.
    pub handle: Option<u32>,
}

impl DeviceChoice {
    /// Whether a device is served where these are chosen: none chooses all.
    pub fn serve(chosen: &[Self], front: u16, handle: u32) -> bool {
        chosen.is_empty() || chosen.iter().any(|c| c.names(front, handle))
    }

    /// Whether this names the device.
    pub fn names(&self, front: u16, handle: u32) -> bool {
        self.front == front && self.handle.is_none_or(|h| h == handle)
    }
}
