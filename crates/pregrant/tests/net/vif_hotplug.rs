//! `hotplug-status` (docs/protocol 2.10): when a vif is connected, and what a state of 2 with live
//! rings means.
#![cfg(not(miri))]

use pregrant::net::back::{BackStep, BackVif, PreviousState, VifConfig};
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::xenbus::XenbusState as S;
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::two_domains::{GUEST, HOST};

fn back() -> BackVif<LocalDomain> {
    BackVif::new(GUEST, 0, VifConfig::default())
}

/// A vif whose back is gone and whose front is connected: returns the front, which keeps the rings,
/// the back's domain, and both directories.
fn left_by_a_back() -> (FrontVif<LocalDomain>, LocalDomain, MapBus, MapBus) {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let mut front = FrontVif::new(HOST, FrontConfig::default(), false);
    connect((&g, &mut front, &mut fb), (&h, &mut back(), &mut bb));
    (front, h, fb, bb)
}

/// Linux's netback removes the key when it is unbound; when it is bound again, it waits for the key
/// before it enters 4, while its rings stay live. A successor resumes them, and enters 4.
#[test]
fn live_rings_at_state_2_are_taken_up() {
    let (_guest, h, fb, mut bb) = left_by_a_back();
    for front_state in ["4", "7"] {
        bb.own.borrow_mut().insert("state".into(), "2".into());
        fb.own.borrow_mut().insert("state".into(), front_state.into());
        // A predecessor of ours that died at 2 connected no one.
        assert_eq!(back().inherit(&mut bb), Ok(PreviousState::Nothing));
        let mut next = back();
        next.take_from_kernel();
        assert_eq!(next.inherit(&mut bb), Ok(PreviousState::Connected));
        assert_eq!(next.reattach(&h, &mut bb, &mut |_, _| None).ok(), Some(true));
        assert_eq!(
            (next.state(), next.nr_queues(), bb.own.borrow()["state"].as_str()),
            (S::Connected, 1, "4")
        );
    }
}

/// If the key exists, a script is or was running; while the front is not in state 4 there is
/// nothing to resume.
#[test]
fn state_2_is_else_the_beginning() {
    let (_guest, h, fb, mut bb) = left_by_a_back();
    bb.own.borrow_mut().insert("state".into(), "2".into());
    for (key, front_state) in
        [(Some(""), "4"), (Some("connected"), "4"), (None, "1"), (None, "3"), (None, "6")]
    {
        match key {
            Some(text) => drop(bb.own.borrow_mut().insert("hotplug-status".into(), text.into())),
            None => drop(bb.own.borrow_mut().remove("hotplug-status")),
        }
        fb.own.borrow_mut().insert("state".into(), front_state.into());
        let mut next = back();
        next.take_from_kernel();
        assert_eq!(next.inherit(&mut bb), Ok(PreviousState::Nothing), "{key:?} {front_state}");
    }

    // A back that died while the script was at work: the next one waits for it as the first did.
    fb.own.borrow_mut().insert("state".into(), "4".into());
    bb.own.borrow_mut().insert("hotplug-status".into(), "".into());
    let mut next = back();
    next.await_hotplug();
    assert_eq!(next.inherit(&mut bb), Ok(PreviousState::Nothing));
    assert_eq!(next.step(&h, &mut bb, &mut |_, _| None).ok(), Some(BackStep::Waiting));
    assert_eq!((next.nr_queues(), bb.own.borrow()["state"].as_str()), (0, "2"));
    bb.own.borrow_mut().insert("hotplug-status".into(), "connected".into());
    // Its port is made before its front sees 4.
    assert_eq!(next.step_unsaid(&h, &mut bb, &mut |_, _| None).ok(), Some(BackStep::Connected));
    assert_eq!((next.nr_queues(), bb.own.borrow()["state"].as_str()), (1, "2"));
    next.say_connected(&mut bb).unwrap();
    assert_eq!((next.nr_queues(), bb.own.borrow()["state"].as_str()), (1, "4"));
    bb.own.borrow_mut().insert("state".into(), "x".into());
    next.say_connected(&mut bb).unwrap();
    assert_eq!(bb.own.borrow()["state"], "x", "it is said once");
}
