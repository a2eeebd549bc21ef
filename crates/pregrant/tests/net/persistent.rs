//! Persistent grants between our two ends: negotiated, used without grant operations, limited,
//! given up.
#![cfg(not(miri))]

use pregrant::net::back::{BackVif, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::Granting;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::PathConfig;
use pregrant::net::path::PathName;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalCounts, LocalDomain, LocalXen};
use pregrant::port::{Arena, Offload};
use pregrant::xenbus::BackDevice;
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort};

/// A vif with both ends on one machine.
struct Pair {
    xen: LocalXen,
    g: LocalDomain,
    h: LocalDomain,
    front: FrontVif<LocalDomain>,
    back: BackVif<LocalDomain>,
    fb: MapBus,
    bb: MapBus,
}

/// The configuration of the two ends.
struct Offers {
    features: BackFeatures,
    fallback: PathName,
    config: FrontConfig,
    limit: usize,
    page_limit: usize,
}

impl Default for Offers {
    fn default() -> Self {
        let config = FrontConfig {
            staging: Buffers::NONE,
            granting: Granting::PerFrame,
            persistent: true,
            ..FrontConfig::default()
        };
        Self {
            features: BackFeatures::default(),
            fallback: PathName::Copy,
            config,
            limit: 256,
            page_limit: usize::MAX,
        }
    }
}

impl Pair {
    fn new(offers: Offers) -> Self {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (fb, bb) = device();
        let config = VifConfig {
            features: offers.features,
            paths: PathConfig {
                fallback: offers.fallback,
                persistent: offers.limit,
                ..PathConfig::default()
            },
            ..VifConfig::default()
        };
        let mut back = BackVif::new(GUEST, 0, config);
        back.limit_pages(offers.page_limit);
        let front = FrontVif::new(HOST, offers.config, false);
        let mut pair = Self { xen, g, h, front, back, fb, bb };
        connect((&pair.g, &mut pair.front, &mut pair.fb), (&pair.h, &mut pair.back, &mut pair.bb));
        assert!(pair.front.is_live());
        pair
    }

    /// Moves this many frames of `len` bytes in each direction and checks each. Returns what that
    /// cost.
    fn exchange(&mut self, frames: usize, len: usize) -> LocalCounts {
        let before = self.xen.counts();
        let bytes = |k: usize| -> Vec<u8> { (0..len).map(|at| (at * 7 + k) as u8).collect() };
        let (mut port, mut scratch, mut into) = (TestPort::default(), Arena::new(), Arena::new());
        for k in 0..frames {
            let mut burst = Arena::new();
            assert!(burst.push(&bytes(k), Offload::default()));
            assert_eq!(self.front.queue_mut(0).unwrap().send(&self.g, &burst.burst()), Ok(1));
            self.back.poll_tx(&self.h, 0, &mut port, &mut scratch).expect("good frames");
            // Held frames are answered by the next call.
            self.back.poll_tx(&self.h, 0, &mut port, &mut scratch).expect("good frames");
            self.front.queue_mut(0).unwrap().reclaim(&self.g, 1).expect("good answers");
            assert_eq!(port.took.pop().map(|f| f.0), Some(bytes(k)), "frame {k} from the guest");
            port.gives.push_back((bytes(k + 1), Offload::default()));
            self.back.poll_rx(&self.h, 0, &mut port).expect("good slots");
            into.clear();
            assert_eq!(self.front.queue_mut(0).unwrap().recv(&self.g, &mut into, 1), Ok(1));
            assert_eq!(into.burst().frame(0), bytes(k + 1), "frame {k} for the guest");
        }
        self.xen.counts().since(&before)
    }

    fn paths(&self) -> (&'static str, &'static str) {
        self.back.path_names(0)
    }

    fn close(mut self) {
        self.back.close(&self.h, &mut self.bb, None).expect("a map");
        assert_eq!(self.xen.counts().mapped, 0, "closed, and something is mapped");
        while !self.front.is_closed() {
            self.front.step(&self.g, &mut self.fb).expect("a map");
        }
        assert_eq!(self.xen.counts().grants, 0);
    }
}

#[test]
fn pages_are_mapped_once_and_then_nothing_is_asked_of_xen() {
    let mut pair = Pair::new(Offers::default());
    assert_eq!(pair.paths(), ("persistent", "persistent"));
    for key in [&pair.fb, &pair.bb] {
        assert_eq!(key.own.borrow()["feature-persistent"], "1");
    }
    // Twice around both rings, so that each page is seen.
    let first = pair.exchange(512, 900);
    assert_eq!((first.maps, first.unmaps), (512, 0), "each page of both rings, once");
    assert_eq!(first.copies, 512, "what is mapped was copied by a grant operation once");
    for len in [60, 900, 4096, 9000] {
        let then = pair.exchange(600, len);
        assert_eq!((then.copies, then.maps, then.unmaps), (0, 0, 0), "{len} bytes");
    }
    let (tx, rx) = pair.back.stats(0);
    assert_eq!((tx.granted, rx.granted), (256, 256), "the frames that were copied the first time");
    let others = 512 + 4 * 600 - 256;
    assert_eq!((tx.persistent, rx.persistent, tx.staging, rx.staging), (others, others, 0, 0));
    pair.close();
}

#[test]
fn without_one_of_the_keys_frames_go_as_ever() {
    let offers = Offers::default();
    let silent = Offers { config: FrontConfig { persistent: false, ..offers.config }, ..Offers::default() };
    let old = Offers { features: BackFeatures { persistent: false, ..offers.features }, ..Offers::default() };
    let none = Offers { limit: 0, ..Offers::default() };
    for (offers, what) in [(silent, "front"), (old, "back"), (none, "limit")] {
        let mut pair = Pair::new(offers);
        assert_eq!(pair.paths(), ("copy", "copy"), "{what}");
        let ops = pair.exchange(100, 900);
        assert_eq!((ops.copies, ops.maps), (200, 0), "{what}");
        pair.close();
    }
}

/// Pages beyond the store's limit, and frames longer than a staging buffer, are served by the next
/// of the chain.
#[test]
fn what_does_not_fit_goes_to_the_next_path() {
    let mut pair = Pair::new(Offers { limit: 20, ..Offers::default() });
    pair.exchange(600, 900);
    assert_eq!(pair.xen.counts().mapped, 2 + 2 * 20);
    let then = pair.exchange(256, 900);
    assert_eq!((then.copies, then.maps), (2 * (256 - 20), 0), "20 pages of each direction are there");
    pair.close();
    let len = DataLen::new(256);
    let config = FrontConfig { staging: Buffers::of(len, len), ..Offers::default().config };
    let mut pair = Pair::new(Offers { config, ..Offers::default() });
    assert_eq!(pair.paths(), ("staging", "staging"));
    let short = pair.exchange(300, 200);
    assert_eq!((short.copies, short.maps), (0, 0));
    pair.exchange(512, 900);
    let long = pair.exchange(300, 900);
    assert_eq!((long.copies, long.maps), (0, 0), "longer than a buffer, and its page is known");
    pair.close();
}

/// An accepted list does not hide what the operator chose for the rest.
#[test]
fn map_serves_what_is_longer_than_a_staging_buffer() {
    let len = DataLen::new(256);
    let config =
        FrontConfig { staging: Buffers::of(len, len), persistent: false, ..Offers::default().config };
    let mut pair = Pair::new(Offers { config, fallback: PathName::Map, ..Offers::default() });
    assert_eq!(pair.paths(), ("staging", "staging"));
    let ops = pair.exchange(50, 900);
    assert_eq!((ops.maps, ops.unmaps), (50, 50), "TX by map, RX by copy");
    pair.close();
}

/// Pages that are mapped after the connect count as if they were mapped then (XSA-300).
#[test]
fn the_bound_of_a_guest_s_pages_holds() {
    for page_limit in [2, 3, 12, 100, 300] {
        let mut pair = Pair::new(Offers { page_limit, ..Offers::default() });
        assert!(pair.back.mapped_pages() <= page_limit);
        pair.exchange(600, 900);
        let mapped = pair.xen.counts().mapped;
        assert!(mapped <= page_limit, "{mapped} pages are mapped, {page_limit} may be");
        assert_eq!(mapped, page_limit.min(2 + 2 * 256), "and all that may be are used");
        pair.close();
    }
}

/// Pages that all queues need have priority over pages that a queue only keeps mapped.
#[test]
fn lists_come_before_pages_that_are_kept() {
    let len = DataLen::new(256);
    let config = FrontConfig { queues: 2, staging: Buffers::of(len, len), ..Offers::default().config };
    // Rings and all lists, and a hundred.
    let pair = Pair::new(Offers { config, page_limit: 2 * (2 + 32) + 100, ..Offers::default() });
    assert!(pair.front.staging_accepted(0) && pair.front.staging_accepted(1));
    assert_eq!((pair.back.pages().needed, pair.back.pages().allowed), (68, 100));
    pair.close();
    // Where staging serves every frame nothing is kept besides.
    let len = DataLen::new(65535);
    let config = FrontConfig { staging: Buffers::of(len, len), ..Offers::default().config };
    let pair = Pair::new(Offers { config, ..Offers::default() });
    assert_eq!(pair.back.pages().allowed, 0);
    pair.close();
}

/// A successor that cannot map a list which its predecessor accepted does not serve the vif: its
/// front fills buffers that no one would read.
#[test]
fn a_list_that_is_lost_at_a_restart_is_no_connection() {
    let len = DataLen::new(256);
    let config = FrontConfig { staging: Buffers::of(len, len), ..Offers::default().config };
    for page_limit in [2, 17, 33, 34] {
        let mut pair = Pair::new(Offers { config, ..Offers::default() });
        pair.back.detach(&pair.h, &mut []);
        let mut next = BackVif::new(GUEST, 0, VifConfig::default());
        next.limit_pages(page_limit);
        next.inherit(&mut pair.bb).expect("a map");
        let taken = next.reattach(&pair.h, &mut pair.bb, &mut |_, _| None);
        match taken {
            Ok(true) => assert_eq!((page_limit, next.path_names(0)), (34, ("staging", "staging"))),
            Err(e) => assert!(page_limit < 34 && e.to_string().contains("cannot be taken again"), "{e}"),
            Ok(false) => panic!("the rings are live"),
        }
        next.close(&pair.h, &mut pair.bb, None).expect("a map");
        assert_eq!(pair.xen.counts().mapped, 0);
    }
}

/// A successor with these features, on the rings that are live.
fn succeed(pair: &mut Pair, features: BackFeatures) {
    pair.back.detach(&pair.h, &mut []);
    pair.back = BackVif::new(GUEST, 0, VifConfig { features, ..VifConfig::default() });
    pair.back.inherit(&mut pair.bb).expect("a map");
    let taken = pair.back.reattach(&pair.h, &mut pair.bb, &mut |_, _| None);
    assert_eq!(taken.ok(), Some(true));
}

/// A predecessor's offer holds while its rings live. A front that reconnects gets the offer of the
/// back that runs, whatever was offered before.
#[test]
fn a_successor_offers_its_own_to_the_next_connection() {
    let with = |on: bool| BackFeatures {
        persistent: on,
        sg: on,
        gso_tcpv4: on,
        gso_tcpv6: on,
        multicast_control: on,
        xdp_headroom: on,
        ctrl_ring: on,
        max_queues: if on { 8 } else { 1 },
        ..BackFeatures::default()
    };
    let path = |on| if on { ("persistent", "persistent") } else { ("copy", "copy") };
    for (was, is) in [(false, true), (true, false), (true, true)] {
        let mut pair = Pair::new(Offers { features: with(was), ..Offers::default() });
        let offers = |pair: &Pair, on| {
            let own = pair.bb.own.borrow();
            with(on).pairs().iter().all(|(key, value)| own.get(key) == Some(value))
        };
        // A second one takes over from the first as that did from its own predecessor.
        for _ in 0..2 {
            succeed(&mut pair, with(is));
            assert_eq!(pair.paths(), path(was), "as it was agreed on");
            assert!(offers(&pair, was), "and nothing is written over what was offered");
            pair.exchange(20, 900);
        }
        pair.front.close(&mut pair.fb, None).expect("a map");
        connect((&pair.g, &mut pair.front, &mut pair.fb), (&pair.h, &mut pair.back, &mut pair.bb));
        assert!(pair.front.is_closed());
        pair.front = FrontVif::new(HOST, Offers::default().config, false);
        pair.fb.own.borrow_mut().insert("state".into(), "1".into());
        connect((&pair.g, &mut pair.front, &mut pair.fb), (&pair.h, &mut pair.back, &mut pair.bb));
        assert!(pair.front.is_live() && offers(&pair, is), "{:?}", pair.bb.own);
        assert_eq!(pair.paths(), path(is));
        pair.exchange(20, 900);
        pair.close();
    }
}

/// A back does not use a feature that it did not offer, whatever its front writes: the front of
/// 2015 writes `feature-persistent` for every back, and keeps that promise only if the back wrote
/// it, too. Neither does a successor that offers it.
#[test]
fn a_front_s_key_alone_turns_nothing_on() {
    for offered in [false, true] {
        let offers = Offers::default();
        let features = BackFeatures { persistent: offered, ..BackFeatures::default() };
        let (xen, config) = (LocalXen::new(), VifConfig { features, ..VifConfig::default() });
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut back = BackVif::new(GUEST, 0, config);
        // One that does not persist: each of its slots is to be asked of Xen.
        let mut front = FrontVif::new(HOST, FrontConfig { persistent: false, ..offers.config }, false);
        back.step(&h, &mut bb, &mut |_, _| None).expect("an honest front");
        front.step(&g, &mut fb).expect("an honest back");
        assert_eq!(fb.own.borrow()["state"], "4");
        assert_eq!(fb.own.borrow_mut().insert("feature-persistent".into(), "1".into()).as_deref(), Some("0"));
        connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
        let mut pair = Pair { xen, g, h, front, back, fb, bb };
        let path = if offered { "persistent" } else { "copy" };
        assert_eq!(pair.paths(), (path, path));
        succeed(&mut pair, BackFeatures::default());
        assert_eq!(pair.paths(), (path, path));
        if !offered {
            let ops = pair.exchange(100, 900);
            assert_eq!((ops.copies, ops.maps), (200, 0));
        }
        pair.close();
    }
}
