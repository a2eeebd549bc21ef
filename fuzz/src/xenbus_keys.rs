//! The other end of a device writes whatever it likes into its directory, and changes its state as
//! it likes.
//!
//! ```text
//!   tape --keys, states--> peer's directory --xenstore--> BackVif or FrontVif, over LocalXen
//! ```
//! Every step ends, with a connection or with an error that names its reason in one short line
//! without control characters. An end that is not connected holds nothing: no page mapped or
//! granted, no channel.

use crate::guest_pages::{GuestPages, Right};
use crate::tape::Tape;
use pregrant::net::back::control_page::CONTROL_BYTES;
use pregrant::net::back::{BackVif, ControlPage, Polled, VifConfig};
use pregrant::net::features::{BackFeatures, queue_prefix};
use pregrant::net::front::Granting;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::PathConfig;
use pregrant::net::path::PathName;
use pregrant::net::path::research::foreign;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalChan, LocalDomain, Pages};
use pregrant::platform::{Events, GrantPool, GrantTable};
use pregrant::port::{Arena, FrameDesc, Offload};
use pregrant::shm::SharedBytes;
use pregrant::wire::staging::StagingEntry;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::toolstack::{self, Vif};
use pregrant::xenbus::{Device, DeviceId, Side};
use pregrant::xenstore::Client;
use pregrant::{DomId, PAGE_SIZE};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort, TwoDomains, Way};
use pregrant_xenstored::{LocalLink, LocalStore};

/// Largest number of operations of one input.
const OPS: usize = 120;
/// Pages of the hostile front: rings, lists, buffers.
const PAGES: usize = 16;
const CHANNELS: usize = 4;
/// Pages of the guest's own, to send from.
const OWN_PAGES: usize = 8;

/// Keys that either end reads, and some that it does not.
const KEYS: [&str; 45] = [
    "tx-ring-ref",
    "rx-ring-ref",
    "event-channel",
    "event-channel-tx",
    "event-channel-rx",
    "request-rx-copy",
    "feature-rx-notify",
    "feature-sg",
    "feature-gso-tcpv4",
    "feature-gso-tcpv6",
    "feature-no-csum-offload",
    "feature-ipv6-csum-offload",
    "multi-queue-num-queues",
    "feature-staging-grants",
    "tx-data-ref0",
    "tx-data-ref1",
    "tx-data-len",
    "rx-data-ref0",
    "rx-data-len",
    "request-multicast-control",
    "ctrl-ring-ref",
    "event-channel-ctrl",
    "feature-rx-copy",
    "feature-split-event-channels",
    "multi-queue-max-queues",
    "staging-grants-sizes",
    "staging-grants-active",
    "feature-multicast-control",
    "feature-ctrl-ring",
    "state",
    "online",
    "mac",
    "hotplug-status",
    "backend",
    "rx-data-ref1",
    "staging-grants-revision",
    "staging-grants-max-pages",
    "tx-ring-page-order",
    "rx-ring-page-order",
    "tx-ring-ref0",
    "tx-ring-ref1",
    "max-tx-ring-page-order",
    "max-rx-ring-page-order",
    "staging-grants-rx-heads",
    "mapped-pages-max",
];

/// The store with one device, and the hostile end's connection to it.
struct Store {
    store: LocalStore,
    id: DeviceId,
    side: Side,
    toolstack: Client<LocalLink>,
    peer: Client<LocalLink>,
    own: Client<LocalLink>,
    device: Device,
}

pub fn xenbus_keys(data: &[u8]) {
    let mut tape = Tape::new(data);
    match tape.below(2) {
        0 => hostile_front(&mut tape),
        _ => hostile_back(&mut tape),
    }
}

impl Store {
    /// The hostile end is not `side`.
    fn new(side: Side) -> Self {
        let store = LocalStore::new();
        store.with_server(|s| [GUEST, HOST].map(|domid| s.introduce(domid).expect("a new domain")));
        let id = Vif::new(GUEST, HOST, 0, [2; 6]).id;
        let (own, peer) = match side {
            Side::Back => (HOST, GUEST),
            Side::Front => (GUEST, HOST),
        };
        let mut this = Self {
            toolstack: store.client(DomId(0)),
            peer: store.client(peer),
            own: store.client(own),
            device: Device::new(id, side),
            store,
            id,
            side,
        };
        this.create();
        this
    }

    fn create(&mut self) {
        Vif { id: self.id, mac: [2; 6], front_keys: &[], back_keys: &[] }
            .create(&mut self.toolstack)
            .expect("domain 0 has no quota");
    }

    /// The peer writes; what the store refuses it is refused.
    fn write(&mut self, key: &str, value: &[u8]) {
        let _ = self.peer.write(&format!("{}/{key}", self.device.peer_dir()), value);
    }

    fn bus(&mut self) -> StoreBus<'_, LocalLink> {
        StoreBus { device: &self.device, xs: &mut self.own }
    }

    /// An operation on the store that either end's peer, or the toolstack, may do at any time.
    fn play(&mut self, tape: &mut Tape<'_>, numbers: &[u32]) {
        match tape.below(10) {
            0..=3 => {
                let queue = ["", "", "queue-0/", "queue-1/", "queue-7/"][tape.below(5)];
                let key = format!("{queue}{}", tape.one_of(&KEYS));
                match tape.below(4) {
                    0 => self.write(&key, tape.string()),
                    1 => self.write(&key, tape.u32().to_string().as_bytes()),
                    2 => self.write(
                        &key,
                        tape.one_of(&[b"1" as &[u8], b"0", b"128;256;65535", b"256", b"2\0", b"tx", b"rx"]),
                    ),
                    _ => self.write(&key, tape.one_of(numbers).to_string().as_bytes()),
                }
            }
            4..=6 => {
                let state = tape.u8() % 12;
                self.write("state", state.to_string().as_bytes());
            }
            7 => {
                let key = format!("{}/{}", self.device.peer_dir(), tape.one_of(&KEYS));
                let _ = self.peer.rm(&key);
            }
            8 => {
                let path = format!("{}/online", self.id.dir(Side::Back));
                let _ = self.toolstack.write(&path, if tape.below(2) == 0 { "0" } else { "1" });
            }
            _ => {
                assert!(toolstack::remove(&mut self.toolstack, &self.id).is_ok());
                if tape.below(4) != 0 {
                    self.create();
                }
            }
        }
    }

    /// Called after a removal: lets both ends finish.
    fn make_sure_of_it(&mut self) {
        if self.own.directory(self.device.own_dir()).is_err() {
            self.create();
        }
        assert!(self.store.with_server(|s| s.counts_are_right()));
        assert_eq!(self.device.side(), self.side);
    }
}

/// A text that the log and the store will show.
fn shown(text: &str) {
    assert!(text.len() < 1000 && !text.contains(char::is_control), "{text:?}");
}

fn hostile_front(tape: &mut Tape<'_>) {
    let domains = TwoDomains::new();
    domains.numbers_frames(Way::Foreign);
    let mut store = Store::new(Side::Back);
    let mut pages = GuestPages::new(&domains, PAGES, Right::Write);
    assert!(pages.region.copy_in(0, &vec![0; pages.region.len()]));
    let channels: Vec<(LocalChan, u32)> =
        (0..CHANNELS).map(|_| domains.guest.offer(HOST).expect("a channel")).map(|(c, p)| (c, p.0)).collect();
    let numbers = |pages: &GuestPages| -> Vec<u32> {
        (0..PAGES).map(|k| pages.gref(k)).chain(channels.iter().map(|c| c.1)).chain([2, 4, 0]).collect()
    };
    let ordinary = if tape.below(2) == 0 { PathName::Copy } else { PathName::Map };
    // Memory that outlives this back, as a file does, and what it may have mapped.
    let (kept, limit) = (Pages::new(CONTROL_BYTES / PAGE_SIZE), tape.one_of(&[usize::MAX, 6, 2, 0]));
    let fresh = || {
        let paths = PathConfig { fallback: ordinary, foreign: true, ..PathConfig::default() };
        let config = VifConfig { paths, ..VifConfig::default() };
        let mut vif = BackVif::<LocalDomain>::new(GUEST, 0, config);
        vif.keep_control(ControlPage::new(kept.clone()).expect("a page"));
        vif.limit_pages(limit);
        vif
    };
    let mut vif = fresh();
    let (mut port, mut arena) = (TestPort::default(), Arena::new());
    while tape.more(OPS) {
        let mut failed = None;
        match tape.below(14) {
            0..=3 => store.play(tape, &numbers(&pages)),
            // All that a front of one queue writes.
            4 => honest_front(&mut store, &pages, &channels, tape),
            5 => {
                let right = tape.one_of(&[Right::None, Right::Read, Right::Write, Right::Stranger]);
                let page = tape.below(PAGES);
                // What the back has mapped cannot be revoked: the guest tries only where it has
                // not.
                if vif.nr_queues() == 0 {
                    pages.grant(&domains, page, right);
                }
            }
            6 => {
                let word = 4 * (usize::from(tape.u16()) % (PAGES * PAGE_SIZE / 4));
                assert!(pages.region.store_u32(word, tape.u32()));
            }
            7 => {
                for i in 0..vif.nr_queues() {
                    port.gives.push_back((vec![7; 60], Offload::default()));
                    let tx = vif.poll_tx(&domains.host, i, &mut port, &mut arena);
                    let rx = vif.poll_rx(&domains.host, i, &mut port);
                    assert!(port.took.iter().all(|(bytes, _)| bytes.len() >= 14));
                    port.took.clear();
                    let ctrl = vif.poll_ctrl(&domains.host);
                    failed = failed.or([tx, rx, ctrl].into_iter().find_map(|r: Result<Polled, _>| r.err()));
                }
            }
            // The operator, or the toolstack, takes it down.
            9 => {
                let _ = vif.close(&domains.host, &mut store.bus(), None);
            }
            // This process is killed, and another one finds what is left.
            8 => {
                vif = fresh();
                if let Err(e) = vif.reattach(&domains.host, &mut store.bus(), &mut |_, _| None) {
                    shown(&e.to_string());
                    let _ = vif.close(&domains.host, &mut store.bus(), Some(&e.to_string()));
                }
            }
            _ => {
                if let Err(e) = vif.step(&domains.host, &mut store.bus(), &mut |_, _| None) {
                    shown(&e.to_string());
                    let _ = vif.close(&domains.host, &mut store.bus(), Some(&e.to_string()));
                    assert_eq!(vif.nr_queues(), 0);
                }
                vif.refused_lists().iter().for_each(|(_, _, why)| shown(&why.to_string()));
            }
        }
        if let Some(fault) = failed {
            shown(&fault.to_string());
            let _ = vif.close(&domains.host, &mut store.bus(), Some(&fault.to_string()));
        }
        assert!(vif.nr_queues() <= BackFeatures::default().max_queues as usize);
        assert!(vif.mapped_pages() <= limit, "more is mapped than may be");
        if vif.nr_queues() == 0 {
            let counts = domains.xen.counts();
            assert_eq!(
                (counts.mapped, counts.channels),
                (0, CHANNELS),
                "an end that is not connected holds on"
            );
        }
    }
    store.make_sure_of_it();
    assert!(vif.close(&domains.host, &mut store.bus(), None).is_ok());
    let counts = domains.xen.counts();
    assert_eq!((counts.mapped, counts.channels), (0, CHANNELS), "a closed end holds on");
    drop((vif, channels));
    pages.close(&domains);
    domains.assert_empty();
}

/// Up to two queues, rings in pages 0 and 1, 12 and 13, perhaps a control ring in 14; the first
/// queue's staging lists in 2 and 3 if the tape wants them, buffers from 4 on.
fn honest_front(store: &mut Store, pages: &GuestPages, channels: &[(LocalChan, u32)], tape: &mut Tape<'_>) {
    for ring in [0, 1, 12, 13, 14] {
        assert!(pages.region.copy_in(ring * PAGE_SIZE, &[0; PAGE_SIZE]));
    }
    let queues = 1 + tape.below(2);
    store.write("request-rx-copy", b"1");
    store.write(foreign::REQUEST, if queues == 2 { b"1" } else { b"0" });
    store.write("multi-queue-num-queues", queues.to_string().as_bytes());
    for (i, channel) in channels.iter().enumerate().take(queues) {
        let at = queue_prefix(i, queues);
        for (key, value) in [
            ("tx-ring-ref", pages.gref(12 * i)),
            ("rx-ring-ref", pages.gref(12 * i + 1)),
            ("event-channel", channel.1),
        ] {
            store.write(&format!("{at}{key}"), value.to_string().as_bytes());
        }
    }
    if tape.below(2) == 0 {
        store.write("ctrl-ring-ref", pages.gref(14).to_string().as_bytes());
        store.write("event-channel-ctrl", channels[2].1.to_string().as_bytes());
        store.write("request-multicast-control", b"1");
    }
    let at = queue_prefix(0, queues);
    let len = tape.one_of(&[0, 64, 128, 256, 4096, 65535]);
    if let Some(len) = DataLen::new(len) {
        let bytes = usize::from(len.buffer_bytes());
        let (per_page, mut first_id) = (PAGE_SIZE / bytes, 0);
        for (dir, list) in [("tx", 2), ("rx", 3)] {
            let n = (4 * per_page).min(256);
            let entries = (0..n).map(|k| StagingEntry {
                id: (first_id + k) as u16,
                gref: pages.gref(list * 4 - 4 + k / per_page),
                offset: (k % per_page * bytes) as u16,
            });
            let mut written = [0; PAGE_SIZE];
            entries.enumerate().for_each(|(k, e)| written[k * 8..k * 8 + 8].copy_from_slice(&e.to_bytes()));
            assert!(pages.region.copy_in(list * PAGE_SIZE, &written));
            first_id += n;
            store.write(&format!("{at}{dir}-data-ref0"), pages.gref(list).to_string().as_bytes());
            store.write(&format!("{at}{dir}-data-len"), len.value().to_string().as_bytes());
        }
        store.write("feature-staging-grants", b"1");
    }
    store.write("state", b"4");
}

fn hostile_back(tape: &mut Tape<'_>) {
    let domains = TwoDomains::new();
    domains.numbers_frames(Way::Foreign);
    let mut store = Store::new(Side::Front);
    let config = FrontConfig {
        queues: 2,
        staging: Buffers {
            tx: DataLen::new(tape.one_of(&[256, 65535])),
            rx: DataLen::new(tape.one_of(&[256, 65535])),
            sent_on: true,
            buffers: 600,
            ..Buffers::NONE
        },
        granting: tape.one_of(&[Granting::PerFrame, Granting::Standing]),
        sg: true,
        split_channels: tape.below(2) == 0,
        persistent: tape.below(2) == 0,
        gref_mapping: false,
        data_ring: Some(3),
        foreign: true,
        guest_copy: true,
        spare_rx_pages: 16,
        headroom: 256,
        ctrl_ring: tape.below(2) == 0,
        multicast_control: tape.below(2) == 0,
        ring_order: tape.one_of(&[0, 1, 4]),
        ..FrontConfig::default()
    };
    let reconnect = tape.below(2) == 0;
    let mut vif = FrontVif::<LocalDomain>::new(HOST, config, reconnect);
    let memory = GrantTable::pages(&domains.guest, OWN_PAGES).expect("the guest's pages");
    assert!(vif.use_memory(memory, OWN_PAGES).is_ok());
    let mut arena = Arena::new();
    let numbers = [0, 1, 2, 4, 128, 256, 65535, u32::MAX];
    for op in 0..OPS {
        if tape.is_over() {
            break;
        }
        // Time enough to reconnect.
        domains.xen.stop_clock(op as u64 * 1_000_000_000);
        let mut failed = false;
        match tape.below(8) {
            0..=3 => store.play(tape, &numbers),
            4 => {
                let offered =
                    BackFeatures { foreign: op % 2 == 1, guest_copy: op % 4 == 2, ..BackFeatures::default() };
                for (key, value) in offered.pairs() {
                    store.write(&key, value.as_bytes());
                }
                store.write(foreign::ACTIVE, if op % 3 == 0 { b"0" } else { b"1" });
                store.write("state", b"2");
            }
            5 => {
                for i in 0..vif.nr_queues() {
                    arena.clear();
                    assert!(arena.push(&[7; 300], Offload::default()));
                    failed |= vif.queue_mut(i).unwrap().send(&domains.guest, &arena.burst()).is_err();
                    // Of the guest's own, while no request names the page.
                    let page = op % OWN_PAGES;
                    let at = (page * PAGE_SIZE) as u32;
                    let own = FrameDesc { at, len: 300, offload: Offload::default() };
                    failed |= !vif.is_held(page) && vif.send_own(&domains.guest, i, &[own]).is_err();
                    failed |= vif.turn(&domains.guest).is_err();
                    arena.clear();
                    failed |= vif.queue_mut(i).unwrap().recv(&domains.guest, &mut arena, 1).is_err();
                    failed |= vif.queue_mut(i).unwrap().reclaim(&domains.guest, 1).is_err();
                }
                assert!(!failed, "no end answered");
            }
            _ => {
                if let Err(e) = vif.step(&domains.guest, &mut store.bus()) {
                    shown(&e.to_string());
                    failed = true;
                }
            }
        }
        if failed {
            // As its driver does: this device is over.
            let _ = vif.close(&mut store.bus(), Some("a fault"));
        }
        assert!(vif.nr_queues() <= 2);
        // All that two queues may have, whatever was offered before; and with smaller rings, each
        // half of the next.
        let (pages, times) = (1usize << config.ring_order, if config.ring_order > 0 { 2 } else { 1 });
        let slots = 256 * pages;
        let list = (slots * StagingEntry::SIZE).div_ceil(PAGE_SIZE);
        let tx = pages + list + 2 * slots;
        // As many buffers more as TX has ids, to be sent on; and what is spare of its pages.
        let rx = pages + 2 * list + 3 * slots + config.spare_rx_pages as usize;
        let data_ring = 1 + config.data_ring.map_or(0, |order| 1 << order);
        // Pages that would be named, to a back that wants grants after all, have others than those
        // of connections without.
        let named = 2 * slots + config.spare_rx_pages as usize;
        // And a list page of exported pages.
        let most = times * 2 * (tx + rx + data_ring + named + 1) + 2 * OWN_PAGES + 4;
        let grants = domains.xen.counts().grants;
        assert!(grants <= most, "memory without bound: {grants} grants, at most {most} expected");
    }
    store.make_sure_of_it();
    let _ = vif.close(&mut store.bus(), None);
    store.write("state", b"6");
    assert!(vif.step(&domains.guest, &mut store.bus()).is_ok());
    assert!(vif.is_closed(), "{:?}", vif.state());
    let memory = vif.take_memory(&domains.guest).expect("no grant stands");
    assert!(domains.guest.release(memory).is_ok());
    drop(vif);
    domains.assert_empty();
}
