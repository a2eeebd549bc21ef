//! The two ends of a device and the toolstack, in one xenstore: who writes which key, and what a
//! hostile peer can do with it.
#![cfg(not(any(loom, miri)))]

use pregrant::DomId;
use pregrant::net::mtu::Mtu;
use pregrant::platform::Clock;
use pregrant::wire::xs::Errno;
use pregrant::xenbus::toolstack::{self, Vif};
use pregrant::xenbus::{Class, Device, DeviceError, Side, XenbusState};
use pregrant::xenstore::{Client, path};
use pregrant_xenstored::{LocalLink, LocalStore};
use std::cell::Cell;
use std::time::Duration;

const FRONT: DomId = DomId(7);
const BACK: DomId = DomId(2);

/// A store with one vif, and the connections of toolstack, front and back.
fn vif() -> (LocalStore, [Client<LocalLink>; 3], Device, Device) {
    let store = LocalStore::new();
    store.with_server(|s| {
        s.introduce(FRONT).unwrap();
        s.introduce(BACK).unwrap();
    });
    let mut clients = [DomId(0), FRONT, BACK].map(|domid| store.client(domid));
    let vif = Vif {
        front_keys: &[("mtu", "9000")],
        back_keys: &[("bridge", "xenbr0")],
        ..Vif::new(FRONT, BACK, 3, [0, 0x16, 0x3e, 1, 2, 3])
    };
    vif.create(&mut clients[0]).unwrap();
    let front = Device::front(&mut clients[1], Class::VIF, 3).unwrap();
    let back = Device::new(vif.id, Side::Back);
    assert_eq!(front.id(), back.id());
    (store, clients, front, back)
}

/// Advances by a second each time it is asked.
struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + 1_000_000_000);
        self.0.get()
    }
}

#[test]
fn each_end_finds_what_libxl_would_have_written() {
    let (_store, [_, f, b], front, back) = vif();
    let (f, b) = (&mut { f }, &mut { b });
    assert_eq!(front.own_dir(), "/local/domain/7/device/vif/3");
    assert_eq!(front.peer_dir(), "/local/domain/2/backend/vif/7/3");
    assert_eq!(front.get_own::<[u8; 6], _>(f, "mac").unwrap(), Some([0, 0x16, 0x3e, 1, 2, 3]));
    assert_eq!(front.get_own::<String, _>(f, "backend").unwrap().unwrap(), front.peer_dir());
    assert_eq!(front.get_own::<u32, _>(f, "mtu").unwrap(), Some(9000));
    assert_eq!(back.get_own::<String, _>(b, "frontend").unwrap().unwrap(), back.peer_dir());
    assert_eq!(back.get_own::<DomId, _>(b, "frontend-id").unwrap(), Some(FRONT));
    assert_eq!(back.get_own::<String, _>(b, "bridge").unwrap().unwrap(), "xenbr0");
    assert!(back.online(b).unwrap());
    assert_eq!(back.state(b).unwrap(), XenbusState::Initialising);
    assert_eq!(back.peer_state(b).unwrap(), XenbusState::Initialising);
    assert_eq!(toolstack::backs_of(b, BACK, Class::VIF).unwrap(), [back.id()]);
}

#[test]
fn an_end_writes_its_own_directory_and_reads_the_peers() {
    let (store, [_, f, b], front, back) = vif();
    let (f, b) = (&mut { f }, &mut { b });
    back.set_in_transaction(b, &[("feature-sg", "1"), ("state", "2")]).unwrap();
    assert_eq!(front.get::<bool, _>(f, "feature-sg").unwrap(), Some(true));
    assert_eq!(front.get::<bool, _>(f, "feature-nothing").unwrap(), None);
    assert_eq!(front.peer_state(f).unwrap(), XenbusState::InitWait);
    let theirs = path::join(front.peer_dir(), "state");
    assert_eq!(f.write(&theirs, "4").unwrap_err().errno(), Some(Errno::Eacces));
    // Another guest sees neither.
    store.with_server(|s| s.introduce(DomId(8)).unwrap());
    let mut other = store.client(DomId(8));
    assert_eq!(other.read(&theirs).unwrap_err().errno(), Some(Errno::Eacces));
    assert_eq!(other.directory(front.own_dir()).unwrap_err().errno(), Some(Errno::Eacces));
}

#[test]
fn a_garbled_key_names_path_value_domain_and_expectation() {
    let (_store, [_, f, b], front, back) = vif();
    let (f, b) = (&mut { f }, &mut { b });
    front.set(f, "tx-ring-ref", "eight").unwrap();
    let Err(DeviceError::Key(e)) = back.require::<pregrant::GrantRef, _>(b, "tx-ring-ref") else { panic!() };
    assert_eq!(e.path, "/local/domain/7/device/vif/3/tx-ring-ref");
    assert_eq!((e.seen.as_deref(), e.writer), (Some("eight"), FRONT));
    let Err(DeviceError::Key(e)) = back.require::<u32, _>(b, "rx-ring-ref") else { panic!() };
    assert_eq!(e.seen, None);
}

#[test]
fn an_mtu_of_no_use_is_passed_over_at_either_end() {
    let (_store, [_, f, b], front, back) = vif();
    let (f, b) = (&mut { f }, &mut { b });
    for (own, backs, reported, lines) in [
        (&b"1400"[..], &b"9000"[..], Some(1400), 0),
        (b"jumbo", b"9000", Some(9000), 1),
        (b"", b"1500.0", None, 1),
        (b"\xFF\xFE", b"70000", None, 2),
        (b"", b"", None, 0),
    ] {
        f.write(&path::join(front.own_dir(), "mtu"), own).unwrap();
        b.write(&path::join(back.own_dir(), "mtu"), backs).unwrap();
        let mut said = 0;
        let read = Mtu::announced_to_front(&front, f, |_| said += 1).unwrap();
        assert_eq!((read, said), (reported, lines), "{own:?}, {backs:?}");
    }
}

#[test]
fn a_removed_device_is_unknown_and_is_not_written_back() {
    let (store, [t, f, b], front, back) = vif();
    let (t, f, b) = (&mut { t }, &mut { f }, &mut { b });
    let before = store.with_server(|s| s.usage(FRONT).0);
    front.watch_peer(f).unwrap();
    while f.next_event(Some(Duration::ZERO)).unwrap().is_some() {}
    toolstack::remove(t, &back.id()).unwrap();
    let event = f.next_event(None).unwrap().unwrap();
    assert!(front.is_peer_event(&event));
    assert_eq!(front.peer_state(f).unwrap(), XenbusState::Unknown);
    assert_eq!(back.peer_state(b).unwrap(), XenbusState::Unknown);
    assert!(back.set_state(b, XenbusState::Closed).is_err());
    assert!(toolstack::backs_of(b, BACK, Class::VIF).unwrap().is_empty());
    // Making and removing leaves no more nodes than before.
    Vif { id: back.id(), mac: [2; 6], front_keys: &[("mtu", "1500")], back_keys: &[] }.create(t).unwrap();
    assert_eq!(store.with_server(|s| s.usage(FRONT).0), before);
    assert!(store.with_server(|s| s.counts_are_right()));
}

#[test]
fn failing_leaves_the_reason_and_closes() {
    let (_store, [t, f, b], front, back) = vif();
    let (t, f, b) = (&mut { t }, &mut { f }, &mut { b });
    front.fail(f, "no grants left").unwrap();
    assert_eq!(t.read("/local/domain/7/error/device/vif/3/error").unwrap(), b"no grants left");
    assert_eq!(back.peer_state(b).unwrap(), XenbusState::Closing);
    back.fail(b, "cannot map").unwrap();
    assert_eq!(t.read("/local/domain/2/error/backend/vif/7/3/error").unwrap(), b"cannot map");
}

#[test]
fn waiting_for_the_peer_keeps_other_events_and_ends_in_time() {
    let (_store, [_, f, b], front, back) = vif();
    let (f, b) = (&mut { f }, &mut { b });
    f.watch("data", "mine").unwrap();
    front.watch_peer(f).unwrap();
    let clock = Ticking(Cell::new(0));
    let wait = Some(Duration::from_secs(5));
    let last = front.wait_peer(f, &clock, Some(Duration::ZERO), |s| s == XenbusState::InitWait).unwrap();
    assert_eq!(last, XenbusState::Initialising);
    back.set_state(b, XenbusState::InitWait).unwrap();
    let state = front.wait_peer(f, &clock, wait, |s| s == XenbusState::InitWait).unwrap();
    assert_eq!(state, XenbusState::InitWait);
    assert_eq!(f.next_event(None).unwrap().unwrap().token, "mine");
}
