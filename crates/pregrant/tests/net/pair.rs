//! Both ends of a vif, over plain maps.
#![cfg(not(miri))]

use pregrant::net::back::{BackVif, Polled, VifConfig};
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::port::{Arena, Offload};
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort, byte};

pub struct Pair {
    pub xen: LocalXen,
    pub g: LocalDomain,
    pub h: LocalDomain,
    pub fb: MapBus,
    pub bb: MapBus,
    pub front: FrontVif<LocalDomain>,
    pub back: BackVif<LocalDomain>,
}

/// A front that requests nothing but grants.
pub fn ordinary() -> FrontConfig {
    FrontConfig { staging: Buffers::NONE, ..FrontConfig::default() }
}

impl Pair {
    pub fn new(requested: FrontConfig, served: VifConfig) -> Self {
        Self::on(LocalXen::new(), requested, served)
    }

    /// Makes the pair on a machine that the test provides.
    pub fn on(xen: LocalXen, requested: FrontConfig, served: VifConfig) -> Self {
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (fb, bb) = device();
        let (front, back) = (FrontVif::new(HOST, requested, false), BackVif::new(GUEST, 0, served));
        Self { xen, g, h, fb, bb, front, back }
    }

    pub fn connect(&mut self) {
        let Self { g, h, fb, bb, front, back, .. } = self;
        connect((g, front, fb), (h, back, bb));
    }

    /// Moves a frame of this length in each direction on queue 0; the guest's frame needs this many
    /// slots.
    pub fn exchange(&mut self, len: usize, slots: u32) {
        let Self { g, h, front, back, .. } = self;
        let (mut port, mut arena) = (TestPort::default(), Arena::new());
        let frame: Vec<u8> = (0..len).map(byte).collect();
        assert!(arena.push(&frame, Offload::default()));
        assert_eq!(front.queue_mut(0).unwrap().send(g, &arena.burst()), Ok(1));
        while back.poll_tx(h, 0, &mut port, &mut Arena::new()).expect("an honest front") != Polled::Idle {}
        assert_eq!(front.queue_mut(0).unwrap().reclaim(g, slots), Ok(slots));
        assert!(port.took.remove(0).0 == frame);
        port.gives.push_back((frame.clone(), Offload::default()));
        while back.poll_rx(h, 0, &mut port).expect("an honest front") != Polled::Idle {}
        arena.clear();
        assert_eq!(front.queue_mut(0).unwrap().recv(g, &mut arena, 1), Ok(1));
        assert!(arena.burst().frame(0) == frame);
    }

    /// A key of the back's directory, or of the front's.
    pub fn key(&self, back: bool, key: &str) -> Option<String> {
        if back { &self.bb.own } else { &self.fb.own }.borrow().get(key).cloned()
    }

    pub fn close(mut self) {
        self.front.close(&mut self.fb, None).expect("a map");
        self.connect();
        assert!(self.front.is_closed());
        let c = self.xen.counts();
        assert_eq!((c.grants, c.mapped, c.channels, c.wholes), (0, 0, 0, 0));
    }
}
