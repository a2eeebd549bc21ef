//! A guest with a toy: honest, or not.

use super::machine::{Machine, Store, until};
use super::vtoy::{ANSWERED, ASKED, AT_WORK};
use pregrant::platform::{Access, Events, GrantPool, Platform};
use pregrant::shm::SharedBytes;
use pregrant::units::GrantRef;
use pregrant::xenbus::{Device, DeviceId, Side, XenbusState};
use pregrant_host::loopback::{Channel, Loopback, Region};

pub struct ToyFront {
    pub device: Device,
    pub xs: Store,
    page: Region,
    channel: Channel,
    keys: [(&'static str, String); 2],
    platform: Loopback,
}

impl ToyFront {
    /// Attaches to a toy that the toolstack made.
    pub fn attach(machine: &Machine, id: DeviceId) -> Self {
        let (platform, xs) = machine.attach(id.front);
        let mut gref = [GrantRef::NONE];
        let page = platform.grants().alloc(id.back, Access::ReadWrite, &mut gref).unwrap();
        let (channel, port) = platform.events().offer(id.back).unwrap();
        let keys = [("ring-ref", gref[0].0.to_string()), ("event-channel", port.0.to_string())];
        Self { device: Device::new(id, Side::Front), xs, page, channel, keys, platform }
    }

    /// Waits for the back, gives it the page, and waits until it has it.
    pub fn connect(&mut self) {
        self.wait_back(XenbusState::InitWait);
        assert!(self.page.copy_in(0, &[0; 8]));
        for (key, value) in &self.keys {
            self.device.set(&mut self.xs, key, value).unwrap();
        }
        self.set_state(XenbusState::Connected);
        self.wait_back(XenbusState::Connected);
    }

    pub fn set_state(&mut self, state: XenbusState) {
        self.device.set_state(&mut self.xs, state).unwrap();
    }

    pub fn wait_back(&mut self, state: XenbusState) {
        until(|| self.device.peer_state(&mut self.xs).unwrap() == state);
    }

    /// Sends `n` more requests, all together.
    pub fn ask(&self, n: u32) {
        let asked = self.page.load_u32(ASKED).unwrap();
        assert!(self.page.store_u32(ASKED, asked.wrapping_add(n)));
        self.platform.events().notify(&self.channel);
    }

    /// Whether the toy is at work behind its back.
    pub fn set_at_work(&self, is_at_work: bool) {
        assert!(self.page.store_u32(AT_WORK, is_at_work.into()));
    }

    pub fn answered(&self) -> u32 {
        self.page.load_u32(ANSWERED).unwrap()
    }
}
