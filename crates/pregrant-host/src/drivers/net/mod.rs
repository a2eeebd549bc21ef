//! Vifs, as a backend serves them: the class, and what only vifs have.
//!
//! ```text
//!   vif              one vif that is served      queue  one of its queues, joined with its port: what workers have
//!   report           what others see of it
//!   port_provider    the remote side of a backend's vifs: taps, interfaces of this machine; or stations, a switch
//!   capture          the same, and some vifs' frames in a file
//!   hotplug          the scripts of vifs, run here or by a service that may do more than this process
//!   frontend         one vif of the own domain      silent_back  whether its back answers
//! ```
//! [`Net`] is a [`DeviceClass`]: the registry, the worker and the recovery serve vifs through it,
//! as devices of any class.

pub mod buffer_pool;
pub mod capture;
pub mod frontend;
pub mod hotplug;
pub mod port_provider;
mod queue;
mod report;
pub mod rx_coalescing;
mod silent_back;
pub mod stations;
pub mod taps;
mod vif;

pub use report::{SharedMemory, VifReport};

use super::DeviceChoice;
use super::device_class::{DeviceClass, RemoteSide, ServedDevice, Takeover};
use port_provider::{Hotplug, HotplugConfig, PortProvider, SharedProvider};
use pregrant::net::back::control_page::CONTROL_BYTES;
use pregrant::net::back::{BackVif, ControlPage, Vif, VifConfig};
use pregrant::platform::Platform;
use pregrant::xenbus::back::{KeptMemory, PreviousState};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::{BackDevice, ClassRules, Device, DeviceId};
use pregrant::xenstore::{Client, Transport};
use std::cell::{Cell, RefCell, RefMut};
use std::marker::PhantomData;
use std::rc::Rc;
use vif::VifInstance;

/// Name of a vif's control page among its kept memory.
pub const CONTROL_PAGE: &str = "control";

/// The configuration of vifs that are found from now on.
#[derive(Clone, Debug, Default)]
pub struct NetConfig {
    /// The features that are offered, and the methods by which frames move.
    pub vif: VifConfig,
    /// The process that runs the vifs' hotplug scripts.
    pub hotplug: Hotplug,
    /// The only vifs that are served; empty: all are. It must be set before the first vif is found.
    pub chosen: Vec<DeviceChoice>,
}

/// The class of vifs, on platform `P`.
pub struct Net<P> {
    /// The configuration of all vifs.
    pub config: NetConfig,
    provider: SharedProvider,
    /// True once the warning that guests may not be isolated was logged.
    warned: Rc<Cell<bool>>,
    platform: PhantomData<fn(&P)>,
}

impl<P: Platform> Net<P> {
    /// Creates a class whose vifs get their ports from `provider`.
    pub fn new(config: NetConfig, provider: Box<dyn PortProvider>) -> Self {
        let (provider, warned) = (Rc::new(RefCell::new(provider)), Rc::default());
        Self { config, provider, warned, platform: PhantomData }
    }
}

impl<P: Platform, T: Transport + 'static> DeviceClass<P, T> for Net<P> {
    fn rules(&self) -> ClassRules {
        Vif::<P>::RULES
    }
    fn serves(&self, front: u16, handle: u32) -> bool {
        DeviceChoice::serve(&self.config.chosen, front, handle)
    }
    #[inline(never)]
    fn make(&mut self, id: &DeviceId, kept: KeptMemory<'_>) -> Box<dyn ServedDevice<P, T>> {
        let mut config = self.config.vif.clone();
        // Persistent grants are offered only if at least one page may stay mapped.
        config.features.persistent &= config.paths.persistent > 0;
        let mut vif = BackVif::new(id.front, id.handle, config);
        if let Some(page) = kept(CONTROL_PAGE, CONTROL_BYTES).and_then(ControlPage::new) {
            vif.keep_control(page);
        }
        if self.provider.borrow_mut().is_kernels(id) {
            vif.take_from_kernel();
        }
        let (provider, warned) = (Rc::clone(&self.provider), Rc::clone(&self.warned));
        Box::new(VifInstance::new(vif, provider, self.config.hotplug, warned))
    }
    fn remote(&self) -> Option<RefMut<'_, dyn RemoteSide>> {
        Some(RefMut::map(self.provider.borrow_mut(), |provider| &mut **provider as &mut dyn RemoteSide))
    }
    fn takeover(&mut self) -> Option<&mut dyn Takeover<T>> {
        Some(self)
    }
}

impl<P: Platform, T: Transport + 'static> Takeover<T> for Net<P> {
    fn is_served_until_placed(&self, id: &DeviceId) -> bool {
        self.provider.borrow_mut().is_kernels(id)
    }
    #[inline(never)]
    fn reserve(&mut self, device: &Device, xs: &mut Client<T>) {
        let id = device.id();
        let mut vif = BackVif::<P>::new(id.front, id.handle, self.config.vif.clone());
        if self.provider.borrow_mut().is_kernels(&id) {
            vif.take_from_kernel();
        }
        let mut bus = StoreBus { device, xs };
        if !matches!(vif.inherit(&mut bus), Ok(PreviousState::Connected)) {
            return;
        }
        if let Ok((queues, front)) = Vif::<P>::left_by_predecessor(&mut bus)
            && let Ok((place, _)) = HotplugConfig::read(device, xs)
        {
            self.provider.borrow_mut().reserve(&id, &place, queues, front);
        }
    }
    fn release(&mut self, id: &DeviceId) -> usize {
        self.provider.borrow_mut().release(id)
    }
}
