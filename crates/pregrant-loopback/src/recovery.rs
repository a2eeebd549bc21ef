//! Memory that outlives a back of the loopback: the broker keeps it as long as the back's domain
//! lives.

use crate::loopback::Loopback;
use pregrant::DomId;
use pregrant::xenbus::{Class, DeviceId};
use pregrant_host::drivers::recovery::{KeptBytes, Recovery, device_name, device_of};
use std::any::Any;

/// Keeps locks and memory with the loopback's broker.
#[derive(Clone, Copy, Debug, Default)]
pub struct BrokerRecovery;

impl Recovery<Loopback> for BrokerRecovery {
    fn own(&mut self, p: &Loopback, id: &DeviceId) -> Result<Box<dyn Any>, String> {
        match p.own(&device_name(id)) {
            Ok(owned) => Ok(Box::new(owned)),
            Err(e) => Err(e.to_string()),
        }
    }

    fn page(
        &mut self,
        p: &Loopback,
        id: &DeviceId,
        page: &str,
        bytes: usize,
    ) -> Result<Option<KeptBytes>, String> {
        match p.persist(&format!("{}/{page}", device_name(id)), bytes) {
            Ok(memory) => Ok(Some(Box::new(memory))),
            Err(e) => Err(format!("the record {page} will not survive a crash of this process: {e}")),
        }
    }

    fn forget(&mut self, p: &Loopback, id: &DeviceId) {
        let own = device_name(id) + "/";
        for page in p.persisted().iter().filter(|page| page.starts_with(&own)) {
            p.forget(page);
        }
    }

    fn kept(&mut self, p: &Loopback, class: Class, own: DomId) -> Vec<DeviceId> {
        let mut devices: Vec<_> =
            p.persisted().iter().filter_map(|page| device_of(page, class, own)).collect();
        devices.dedup();
        devices
    }
}
