//! Keys of one connection must not outlive it, if the other driver of the same end would be served
//! by them.
//!
//! ```text
//!   our front --path persistent, closed        the kernel's netfront: grants each frame's page again
//!   our back, closed or given back             the kernel's netback: knows neither lists nor kept pages
//!           '--- what is left in the directory ---^
//! ```
//! The kernel's drivers write their own keys and remove none that they do not know. [`Kernel`] does
//! the same.
#![cfg(not(miri))]

use pregrant::PlatformError;
use pregrant::net::back::{BackVif, VifConfig};
use pregrant::net::features::{BackFeatures, memory_is_active, of_front_connection, unknown_to_netback};
use pregrant::net::front::Granting;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::keys::Offer;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::port::{Arena, Offload};
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::bus::{DeviceBus, OwnKeys};
use pregrant::xenbus::key_source::{KeySource, Pairs};
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort};

/// An end like Linux's: it writes its own keys, does not know ours, and removes none.
struct Kernel(MapBus);

/// True if the key is one of ours that the kernel's drivers do not write.
fn is_ours(key: &str) -> bool {
    key == "feature-persistent" || key.contains("staging-grants") || key.ends_with("-ring-page-order")
}

impl KeySource for Kernel {
    type Error = String;
    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        self.0.text(key)
    }
    fn bad(&self, key: &str, value: &str, expected: &'static str) -> String {
        self.0.bad(key, value, expected)
    }
    fn refused(&self, why: PlatformError) -> String {
        self.0.refused(why)
    }
}

impl DeviceBus for Kernel {
    fn peer_state(&mut self) -> Result<XenbusState, String> {
        self.0.peer_state()
    }
    fn set_state(&mut self, state: XenbusState) -> Result<(), String> {
        self.0.set_state(state)
    }
    fn publish(&mut self, pairs: &Pairs, _: fn(&str) -> bool) -> Result<(), String> {
        self.0.own.borrow_mut().extend(pairs.iter().filter(|(key, _)| !is_ours(key)).cloned());
        Ok(())
    }
    fn own_state(&mut self) -> Result<XenbusState, String> {
        self.0.own_state()
    }
    fn own_text(&mut self, key: &str) -> Result<Option<String>, String> {
        self.0.own_text(key)
    }
    fn online(&mut self) -> Result<bool, String> {
        self.0.online()
    }
    fn report(&mut self, text: &str) -> Result<(), String> {
        self.0.report(text)
    }
    fn reported(&mut self) -> Result<Option<String>, String> {
        self.0.reported()
    }
    fn recant(&mut self) -> Result<(), String> {
        self.0.recant()
    }
}

fn request(len: Option<u32>, persistent: bool) -> FrontConfig {
    let len = len.and_then(DataLen::new);
    FrontConfig {
        queues: 1,
        staging: Buffers::of(len, len),
        granting: Granting::PerFrame,
        persistent,
        ..FrontConfig::default()
    }
}

/// Closes the front, and steps both ends until it is closed.
fn close(
    (g, front, fb): (&LocalDomain, &mut FrontVif<LocalDomain>, &mut MapBus),
    (h, back, bb): (&LocalDomain, &mut BackVif<LocalDomain>, &mut MapBus),
) {
    front.close(fb, None).unwrap();
    connect((g, front, fb), (h, back, bb));
    assert!(front.is_closed());
}

#[test]
fn a_front_that_grants_each_frame_again_follows_one_that_persisted() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let mut back = BackVif::new(GUEST, 0, VifConfig::default());
    let mut front = FrontVif::new(HOST, request(None, true), false);
    connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    assert!(front.is_live());
    assert_eq!(fb.own_text("feature-persistent").unwrap().as_deref(), Some("1"));
    close((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    assert_eq!(fb.own_text("feature-persistent").unwrap(), None);

    fb.set_state(XenbusState::Initialising).unwrap();
    let mut kernel = Kernel(fb);
    let mut front = FrontVif::new(HOST, request(None, false), false);
    for _ in 0..8 {
        back.step(&h, &mut bb, &mut |_, _| None).unwrap();
        front.step(&g, &mut kernel).unwrap();
    }
    assert!(front.is_live());
    let (mut port, mut scratch) = (TestPort::default(), Arena::new());
    for k in 0..1000 {
        let mut burst = Arena::new();
        assert!(burst.push(&[k as u8; 900], Offload::default()));
        assert_eq!(
            front.queue_mut(0).unwrap().send(&g, &burst.burst()),
            Ok(1),
            "frame {k}: the back holds on to {:?}",
            xen.counts()
        );
        back.poll_tx(&h, 0, &mut port, &mut scratch).unwrap();
        front.queue_mut(0).unwrap().reclaim(&g, 1).unwrap();
        assert_eq!(port.took.pop().unwrap().0, vec![k as u8; 900], "frame {k}");
    }
}

#[test]
fn a_closed_front_leaves_no_key_of_its_connection_and_all_of_the_toolstacks() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    fb.own.borrow_mut().insert("mac".into(), "00:16:3e:00:00:01".into());
    let mut back = BackVif::new(GUEST, 0, VifConfig::default());
    let config = FrontConfig { queues: 2, ctrl_ring: true, ..request(Some(256), true) };
    let mut front = FrontVif::new(HOST, config, false);
    connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    assert!(front.is_live() && front.nr_queues() == 2);
    close((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    let own = fb.own.borrow();
    let left: Vec<&String> = own.keys().filter(|key| of_front_connection(key)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!own.keys().any(|key| key.contains("ref") || is_ours(key)), "{own:?}");
    assert_eq!(own.get("mac").map(String::as_str), Some("00:16:3e:00:00:01"));
}

#[test]
fn a_kernel_back_that_follows_ours_is_not_taken_for_ours() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let mut back = BackVif::new(GUEST, 0, VifConfig::default());
    let mut front = FrontVif::new(HOST, request(Some(65535), false), false);
    connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    assert!(front.is_live() && front.staging_accepted(0));
    close((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));

    // As `pregrant back --give-back` does before the kernel's netback is bound.
    bb.publish(&Pairs::new(), unknown_to_netback).unwrap();
    for bus in [&mut fb, &mut bb] {
        bus.set_state(XenbusState::Initialising).unwrap();
    }
    let mut kernel = Kernel(bb);
    let plain = BackFeatures { staging: Offer::NONE, persistent: false, ..BackFeatures::default() };
    let mut back = BackVif::new(GUEST, 0, VifConfig { features: plain, ..VifConfig::default() });
    let mut front = FrontVif::new(HOST, FrontConfig { ring_order: 4, ..request(Some(65535), true) }, false);
    for _ in 0..8 {
        back.step(&h, &mut kernel, &mut |_, _| None).unwrap();
        front.step(&g, &mut fb).unwrap();
    }
    assert!(front.is_live() && !front.staging_accepted(0));
    assert_ne!(fb.own_text("feature-persistent").unwrap().as_deref(), Some("1"));
    assert!(fb.own_text("tx-ring-ref").unwrap().is_some(), "it knows no other key of a ring");
    let (mut port, mut scratch, mut burst) = (TestPort::default(), Arena::new(), Arena::new());
    assert!(burst.push(&[7; 900], Offload::default()));
    assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(1));
    back.poll_tx(&h, 0, &mut port, &mut scratch).unwrap();
    assert_eq!(port.took.iter().filter(|frame| frame.0 == [7; 900]).count(), 1, "{:?}", back.stats(0).0);
}

#[test]
fn lists_count_only_where_the_connected_back_offers_their_length() {
    // The connected back's key of its lengths, and whether the front may believe the key beside it.
    for (sizes, believed) in [(None, false), (Some("64;128"), false), (Some("64;256"), true)] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut back = BackVif::new(GUEST, 0, VifConfig::default());
        let mut front = FrontVif::new(HOST, request(Some(256), false), false);
        back.step(&h, &mut bb, &mut |_, _| None).unwrap();
        front.step(&g, &mut fb).unwrap();
        assert!(front.state() == XenbusState::Connected && !front.is_live());
        {
            let mut dir = bb.own.borrow_mut();
            match sizes {
                Some(sizes) => drop(dir.insert("staging-grants-sizes".into(), sizes.into())),
                None => drop(dir.remove("feature-staging-grants")),
            }
            dir.insert("staging-grants-active".into(), "1".into());
        }
        bb.set_state(XenbusState::Connected).unwrap();
        front.step(&g, &mut fb).unwrap();
        assert!(front.is_live());
        assert_eq!(front.staging_accepted(0), believed, "{sizes:?}");
    }
}

#[test]
fn active_lists_are_seen_in_the_backs_directory_whatever_the_number_of_queues() {
    for queues in [1, 2, 4] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        for len in [None, Some(256)] {
            let (mut fb, mut bb) = device();
            let mut back = BackVif::new(GUEST, 0, VifConfig::default());
            let mut front = FrontVif::new(HOST, FrontConfig { queues, ..request(len, true) }, false);
            connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
            assert!(front.is_live());
            let max = BackFeatures::read(&mut OwnKeys(&mut bb)).unwrap().max_queues;
            let seen = memory_is_active(&mut OwnKeys(&mut bb), max).unwrap();
            assert_eq!(seen, len.is_some(), "{queues} queues, {len:?}");
            bb.publish(&Pairs::new(), unknown_to_netback).unwrap();
            assert!(!bb.own.borrow().keys().any(|key| is_ours(key)), "{:?}", bb.own.borrow());
            assert_eq!(bb.own_text("feature-sg").unwrap().as_deref(), Some("1"));
        }
    }
}
