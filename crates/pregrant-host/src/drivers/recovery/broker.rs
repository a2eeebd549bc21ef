//! What outlives a back of the loopback: kept by the broker, as long as the back's domain lives.

use super::{QUEUES_MAX, Recovery, control_name, name, page_name, vif_of};
use crate::loopback::Loopback;
use pregrant::DomId;
use pregrant::net::back::ControlPage;
use pregrant::net::back::control_page::CONTROL_BYTES;
use pregrant::ring::{REDO_BYTES, RedoPage};
use pregrant::xenbus::DeviceId;
use std::any::Any;

/// With the loopback's broker.
#[derive(Clone, Copy, Debug, Default)]
pub struct BrokerRecovery;

impl Recovery<Loopback> for BrokerRecovery {
    fn own(&mut self, p: &Loopback, id: &DeviceId) -> Result<Box<dyn Any>, String> {
        match p.own(&name(id)) {
            Ok(owned) => Ok(Box::new(owned)),
            Err(e) => Err(e.to_string()),
        }
    }

    fn redo_page(
        &mut self,
        p: &Loopback,
        id: &DeviceId,
        queue: usize,
        dir: &'static str,
    ) -> Result<Option<RedoPage>, String> {
        let memory = p.persist(&page_name(id, queue, dir), REDO_BYTES);
        let lost = |e| format!("queue {queue} {dir} will not survive a crash of this process: {e}");
        memory.map(RedoPage::new).map_err(lost)
    }

    fn control_page(&mut self, p: &Loopback, id: &DeviceId) -> Result<Option<ControlPage>, String> {
        let memory = p.persist(&control_name(id), CONTROL_BYTES);
        let lost = |e| format!("what its guest sets by control requests will not survive a crash: {e}");
        memory.map(ControlPage::new).map_err(lost)
    }

    fn forget(&mut self, p: &Loopback, id: &DeviceId) {
        p.forget(&control_name(id));
        for queue in 0..QUEUES_MAX {
            let first = p.forget(&page_name(id, queue, "tx"));
            let second = p.forget(&page_name(id, queue, "rx"));
            if !first && !second {
                return;
            }
        }
    }

    fn kept(&mut self, p: &Loopback, own: DomId) -> Vec<DeviceId> {
        let mut vifs: Vec<_> = p.persisted().iter().filter_map(|page| vif_of(page, own)).collect();
        vifs.dedup();
        vifs
    }
}
