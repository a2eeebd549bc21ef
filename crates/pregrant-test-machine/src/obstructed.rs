//! A directory for memory that outlives a back, in which others have put files that are in the way,
//! and that must stay.

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
