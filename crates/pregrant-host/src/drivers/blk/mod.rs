//! Vbds, as a backend serves them: the class, and what only vbds have.
//!
//! ```text
//!   vbd          one vbd that is served: its handshake, and its image      queue  one of its queues: what workers have
//!   front        one vbd of the own domain: a guest's end
//! ```
//! [`Blk`] is a [`DeviceClass`]: the registry, the worker and the recovery serve vbds through it,
//! as devices of any class. The image of a vbd is in [`disks`](crate::disks); the toolstack names
//! it in the vbd's own directory.

pub mod front;
mod queue;
mod vbd;

use super::DeviceChoice;
use super::device_class::{DeviceClass, ServedDevice};
use crate::disks::{DiskConfig, NamedImage};
use pregrant::blk::back::{BackVbd, Vbd, VbdConfig};
use pregrant::platform::Platform;
use pregrant::xenbus::back::KeptMemory;
use pregrant::xenbus::{BackDevice, ClassRules, DeviceId};
use pregrant::xenstore::Transport;
use std::marker::PhantomData;
use vbd::VbdInstance;

/// The configuration of vbds that are found from now on.
#[derive(Clone, Debug, Default)]
pub struct BlkConfig {
    /// The features that are offered, and the methods by which bytes move.
    pub vbd: VbdConfig,
    /// The configuration of the vbds' images.
    pub disk: DiskConfig,
    /// True if a vbd with a script is connected only after the toolstack has run the script
    /// (`hotplug-status`).
    pub awaits_scripts: bool,
    /// The only vbds that are served; empty: all are. It must be set before the first vbd is found.
    pub chosen: Vec<DeviceChoice>,
}

/// The class of vbds, on platform `P`.
pub struct Blk<P> {
    /// The configuration of all vbds.
    pub config: BlkConfig,
    platform: PhantomData<fn(&P)>,
}

impl<P: Platform> Blk<P> {
    /// Serves vbds by these settings.
    pub fn new(config: BlkConfig) -> Self {
        Self { config, platform: PhantomData }
    }
}

impl<P: Platform, T: Transport + 'static> DeviceClass<P, T> for Blk<P> {
    fn rules(&self) -> ClassRules {
        Vbd::<P>::RULES
    }
    fn serves(&self, front: u16, handle: u32) -> bool {
        DeviceChoice::serve(&self.config.chosen, front, handle)
    }
    #[inline(never)]
    fn make(&mut self, id: &DeviceId, _: KeptMemory<'_>) -> Box<dyn ServedDevice<P, T>> {
        let mut config = self.config.vbd;
        // Persistent grants are offered only if at least one page may stay mapped.
        config.features.persistent &= config.persistent_pages > 0;
        let image = NamedImage::new(self.config.disk);
        let face = image.face().clone();
        let vbd = BackVbd::new(id.front, id.handle, config, Box::new(image));
        Box::new(VbdInstance::new(vbd, face, self.config.awaits_scripts))
    }
}
