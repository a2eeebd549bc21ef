//! A guest that a test controls. Its rings, grants and keys are those of an ordinary driver, and
//! the test can change each of them.
//!
//! ```text
//!   test --keys, slots--> RawGuest { keys in xenstore, TxModel and RxModel on rings, pages } --> the back under test
//!        <--states, answers, each of them checked by the models--
//! ```

use crate::machine::{self, BACK, Machine, Store, until};
use pregrant::net::features::{ChannelKeys, FrontRequest, QueueKeys, of_front_connection};
use pregrant::net::path::staging::list as staging_list;
use pregrant::platform::{Access, Events, GrantPool, Platform};
use pregrant::ring::{NetRx, NetTx, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RSP_OKAY, TxRequest};
use pregrant::wire::staging::StagingEntry;
use pregrant::xenbus::{Device, DeviceId, Side, XenbusState};
use pregrant::{EvtchnPort, GrantRef};
use pregrant_loopback::{Channel, Loopback, Region};
use pregrant_testkit::model_front::{RxModel, Slot, TxModel};
use std::collections::BTreeMap;

/// Keys of the front's directory.
pub type Keys = BTreeMap<String, String>;

/// Number of pages for frames.
pub const PAGES: usize = 4;

pub struct RawGuest {
    pub xs: Store,
    pub device: Device,
    pub tx: TxModel<RingPages<NetTx, Region>>,
    pub rx: RxModel<RingPages<NetRx, Region>>,
    pub tx_ring: GrantRef,
    pub rx_ring: GrantRef,
    pub port: EvtchnPort,
    channel: Channel,
    /// Pages that the back may read and write.
    pub pages: Region,
    pub page_refs: [GrantRef; PAGES],
    /// Further pages that are granted, such as list pages and buffers.
    pub more: Vec<Region>,
    /// The platform, which must be dropped after everything above.
    pub platform: Loopback,
}

impl RawGuest {
    /// Attaches to the domain, grants two rings and some pages, and offers an event channel. Writes
    /// no key yet.
    pub fn attach(machine: &Machine, id: DeviceId) -> Self {
        let (platform, xs) = machine.attach(id.front);
        Self::over(platform, xs, id)
    }

    /// Like [`attach`](Self::attach), with an existing attachment.
    pub fn over(platform: Loopback, mut xs: Store, id: DeviceId) -> Self {
        let device = Device::new(id, Side::Front);
        device.watch_peer(&mut xs).unwrap();
        let ring = || {
            let mut gref = [GrantRef::NONE];
            let page = platform.grants().alloc(BACK, Access::ReadWrite, &mut gref).unwrap();
            (page, gref[0])
        };
        let ((tx_page, tx_ring), (rx_page, rx_ring)) = (ring(), ring());
        let tx_mem = RingPages::new(tx_page);
        let rx_mem = RingPages::new(rx_page);
        tx_mem.init();
        rx_mem.init();
        let mut page_refs = [GrantRef::NONE; PAGES];
        let pages = platform.grants().alloc(BACK, Access::ReadWrite, &mut page_refs).unwrap();
        let (channel, port) = platform.events().offer(BACK).unwrap();
        let (tx, rx) = (TxModel::new(tx_mem), RxModel::new(rx_mem));
        Self {
            xs,
            device,
            tx,
            rx,
            tx_ring,
            rx_ring,
            port,
            channel,
            pages,
            page_refs,
            more: Vec::new(),
            platform,
        }
    }

    /// Grants one more page to `to` with this access, and keeps it granted.
    pub fn grant(&mut self, to: pregrant::DomId, acc: Access) -> GrantRef {
        let mut gref = [GrantRef::NONE];
        self.more.push(self.platform.grants().alloc(to, acc, &mut gref).unwrap());
        gref[0]
    }

    /// Grants a page with a staging list of these entries.
    pub fn list(&mut self, entries: &[StagingEntry]) -> GrantRef {
        let mut gref = [GrantRef::NONE];
        let page = self.platform.grants().alloc(BACK, Access::ReadOnly, &mut gref).unwrap();
        assert!(staging_list::write(&page, entries.iter().copied()));
        self.more.push(page);
        gref[0]
    }

    /// Grants new pages with 256 buffers of 256 bytes, and returns their list entries with ids from
    /// `first_id` on.
    pub fn buffers(&mut self, acc: Access, first_id: u16) -> Vec<StagingEntry> {
        let mut refs = [GrantRef::NONE; 16];
        self.more.push(self.platform.grants().alloc(BACK, acc, &mut refs).unwrap());
        let entry = |i: u16| StagingEntry {
            id: first_id + i,
            gref: refs[usize::from(i / 16)].0,
            offset: i % 16 * 256,
        };
        (0..256).map(entry).collect()
    }

    /// The keys of an honest front with one queue, one channel and no staging.
    pub fn keys(&self) -> Keys {
        let queue = QueueKeys::new(self.tx_ring, self.rx_ring, ChannelKeys::Single(self.port));
        let request = FrontRequest::new(vec![queue]);
        request.pairs().into_iter().collect()
    }

    /// Waits for the back's offer, writes the keys, and enters Connected.
    pub fn connect(&mut self, keys: &Keys) {
        self.wait_back(&[XenbusState::InitWait]);
        let keys: Vec<(&str, &str)> = keys.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        self.device.replace_in_transaction(&mut self.xs, &keys, of_front_connection).unwrap();
        self.set_state(XenbusState::Connected);
    }

    /// Connects as an honest front does, and waits until the back is connected.
    pub fn connect_honestly(&mut self) {
        self.connect(&self.keys());
        self.wait_back(&[XenbusState::Connected]);
    }

    /// Closes the device and connects it again as an honest front does. Checks that the back
    /// answers the first frame.
    pub fn is_served_from_now_on(&mut self) {
        self.set_state(XenbusState::Closed);
        self.wait_back(&[XenbusState::Closed]);
        self.set_state(XenbusState::Initialising);
        self.connect_honestly();
        self.play(&[Slot::Data(self.request(0, 64))]);
        assert_eq!(self.answers(), [RSP_OKAY]);
    }

    pub fn set_state(&mut self, state: XenbusState) {
        self.device.set_state(&mut self.xs, state).unwrap();
    }

    /// Waits until the back's state is one of these.
    pub fn wait_back(&mut self, wanted: &[XenbusState]) -> XenbusState {
        let clock = pregrant_host::MonotonicClock;
        self.device.wait_peer(&mut self.xs, &clock, None, |s| wanted.contains(&s)).unwrap()
    }

    /// Returns a request for `size` bytes of page 0, with a frame that is addressed to no guest.
    pub fn request(&self, id: u16, size: u16) -> TxRequest {
        let mut frame = [0; 64];
        frame[..6].copy_from_slice(&[2, 0xbb, 0, 0, 0, 1]);
        let own = self.device.id();
        frame[6..12].copy_from_slice(&machine::mac(own.front.0, own.handle).0);
        frame[12..14].copy_from_slice(&[0x88, 0xb6]);
        assert!(self.pages.copy_in(0, &frame));
        TxRequest { gref: self.page_refs[0].0, offset: 0, flags: 0, id, size }
    }

    /// Writes slots to the TX ring and publishes them, and notifies the back.
    pub fn play(&mut self, slots: &[Slot]) {
        self.tx.play(slots);
        self.notify();
    }

    /// Closes the guest's end of the event channel. The back does not notice that.
    pub fn close_channel(&mut self) {
        self.channel = self.platform.events().offer(BACK).unwrap().0;
    }

    pub fn notify(&self) {
        self.platform.events().notify(&self.channel);
    }

    /// Waits for the answers to the last frame, and returns the statuses of its slots.
    pub fn answers(&mut self) -> Vec<i16> {
        let mut answered = Vec::new();
        until(|| {
            answered.extend(self.tx.answers().unwrap());
            !answered.is_empty()
        });
        assert_eq!(answered.len(), 1);
        answered.remove(0)
    }
}
