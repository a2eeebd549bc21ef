//! A guest with a toy device: an honest one, or a hostile one.

use super::vtoy::{ANSWERED, ASKED, AT_WORK};
use pregrant::platform::{Access, Events, GrantPool, Platform};
use pregrant::shm::SharedBytes;
use pregrant::units::GrantRef;
use pregrant::xenbus::{Device, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};

/// A front of the toy class, step by step: it never waits.
pub struct ToyFront<P: Platform, T: Transport> {
    pub device: Device,
    pub xs: Client<T>,
    page: <P::Grants as GrantPool>::Region,
    channel: <P::Events as Events>::Chan,
    keys: [(&'static str, String); 2],
    platform: P,
}

impl<P: Platform, T: Transport> ToyFront<P, T> {
    /// The front of a toy that the toolstack made.
    pub fn attach(platform: P, xs: Client<T>, id: DeviceId) -> Self {
        let mut gref = [GrantRef::NONE];
        let page = platform.grants().alloc(id.back, Access::ReadWrite, &mut gref).expect("a page");
        let (channel, port) = platform.events().offer(id.back).expect("a channel");
        let keys = [("ring-ref", gref[0].0.to_string()), ("event-channel", port.0.to_string())];
        Self { device: Device::new(id, Side::Front), xs, page, channel, keys, platform }
    }

    /// Gives the page to a back that waits for it.
    pub fn offer(&mut self) {
        assert!(self.page.copy_in(0, &[0; 8]));
        for (key, value) in &self.keys {
            self.device.set(&mut self.xs, key, value).expect("xenstore takes the keys");
        }
        self.set_state(XenbusState::Connected);
    }

    pub fn set_state(&mut self, state: XenbusState) {
        self.device.set_state(&mut self.xs, state).expect("xenstore takes the state");
    }

    pub fn back_state(&mut self) -> XenbusState {
        self.device.peer_state(&mut self.xs).expect("xenstore answers")
    }

    /// Asks for `n` more, all together.
    pub fn ask(&self, n: u32) {
        let asked = self.page.load_u32(ASKED).expect("a word of the page");
        assert!(self.page.store_u32(ASKED, asked.wrapping_add(n)));
        self.platform.events().notify(&self.channel);
    }

    /// Sets whether the toy is at work.
    pub fn set_at_work(&self, is_at_work: bool) {
        assert!(self.page.store_u32(AT_WORK, is_at_work.into()));
    }

    /// The count that the back has reached.
    pub fn answered(&self) -> u32 {
        self.page.load_u32(ANSWERED).expect("a word of the page")
    }
}
