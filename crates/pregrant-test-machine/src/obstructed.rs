//! A recovery in whose directory other files are in the places of those for kept memory, so that no
//! memory can be kept. It forgets no device, so these files stay.

use pregrant::DomId;
use pregrant::xenbus::{Class, DeviceId};
use pregrant_host::drivers::recovery::{FileRecovery, KeptBytes, Recovery};
use std::any::Any;

pub struct Obstructed(pub FileRecovery);

impl<P> Recovery<P> for Obstructed {
    fn own(&mut self, p: &P, id: &DeviceId) -> Result<Box<dyn Any>, String> {
        self.0.own(p, id)
    }
    fn page(&mut self, p: &P, id: &DeviceId, name: &str, bytes: usize) -> Result<Option<KeptBytes>, String> {
        self.0.page(p, id, name, bytes)
    }
    fn forget(&mut self, _: &P, _: &DeviceId) {}
    fn kept(&mut self, p: &P, class: Class, own: DomId) -> Vec<DeviceId> {
        self.0.kept(p, class, own)
    }
}
