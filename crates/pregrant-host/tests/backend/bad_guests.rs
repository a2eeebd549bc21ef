//! Bad guests: one that breaks the protocol, dies or causes needless work loses its own vif or its
//! own extension, and a line says where and why. Two good guests exchange frames before, meanwhile
//! and after; nothing is left over.

use pregrant::net::headers::MacAddr;
use pregrant::platform::{Access, GrantPool, InUse, Platform};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RSP_ERROR, RSP_OKAY, RxRequest, TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest};
use pregrant::wire::staging::StagingEntry;
use pregrant::xenbus::{Class, DeviceId, XenbusState};
use pregrant::{DomId, GrantRef};
use pregrant_host::UnixTransport;
use pregrant_host::drivers::recovery::FileRecovery;
use pregrant_loopback::Loopback;
use pregrant_test_machine::guest::{Guest, ordinary};
use pregrant_test_machine::log_lines;
use pregrant_test_machine::machine::{BACK, Store, Test, mac, until};
use pregrant_test_machine::obstructed::Obstructed;
use pregrant_test_machine::raw_guest::{Keys, RawGuest};
use pregrant_test_machine::stage::{BAD, Stage};
use pregrant_testkit::model_front::Slot;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub const TESTS: &[Test] = &[
    ("keys_of_no_use", keys_of_no_use),
    ("grants_and_channels_that_are_not_there", grants_and_channels_that_are_not_there),
    ("staging_of_no_use", staging_of_no_use),
    ("xsa_39_90_rings_that_break_the_protocol", xsa_39_90_rings_that_break_the_protocol),
    ("frames_whose_pages_are_gone", frames_whose_pages_are_gone),
    ("xsa_350_states_at_random", xsa_350_states_at_random),
    ("xsa_350_a_state_that_never_rests", xsa_350_a_state_that_never_rests),
    ("directories_that_go", directories_that_go),
    ("a_guest_that_takes_its_memory_back", a_guest_that_takes_its_memory_back),
    ("xsa_392_a_guest_that_takes_no_frames", xsa_392_a_guest_that_takes_no_frames),
    ("a_guest_that_sends_as_another", a_guest_that_sends_as_another),
    ("guests_that_die", guests_that_die),
    ("xsa_43_ten_thousand_bad_connects", xsa_43_ten_thousand_bad_connects),
    ("xsa_43_reconnects_of_which_everything_complains", xsa_43_reconnects_of_which_everything_complains),
    (
        "a_guest_that_steps_without_end_is_served_now_and_again",
        a_guest_that_steps_without_end_is_served_now_and_again,
    ),
];

fn set(keys: &mut Keys, key: &str, value: impl ToString) {
    keys.insert(key.into(), value.to_string());
}

fn keys_of_no_use() {
    let mut stage = Stage::set();
    let huge = "9".repeat(2000);
    let rows: [(&str, Option<&str>, &str); 12] = [
        ("tx-ring-ref", Some("x"), "is \"x\", expected a decimal number"),
        ("tx-ring-ref", Some(""), "is missing"),
        ("tx-ring-ref", None, "is missing"),
        ("rx-ring-ref", None, "is missing"),
        ("rx-ring-ref", Some("-1"), "is \"-1\""),
        ("rx-ring-ref", Some("4294967296"), "is \"4294967296\""),
        ("tx-ring-ref", Some(&huge), "999... (1936 more)\""),
        ("tx-ring-ref", Some("\x1b[2J\n"), "\\x1b[2J\\n"),
        ("event-channel", None, "is missing"),
        ("event-channel", Some("seven"), "is \"seven\""),
        ("request-rx-copy", Some("0"), "expected 1"),
        ("request-rx-copy", None, "expected 1"),
    ];
    for (key, value, part) in rows {
        let mischief = |_: &mut RawGuest, keys: &mut Keys| match value {
            Some(value) => set(keys, key, value),
            None => drop(keys.remove(key)),
        };
        stage.refuses(mischief, &[key.strip_suffix("-tx").unwrap_or(key), part]);
    }
    // Half a pair of channels, and none for both.
    stage.refuses(
        |_, keys| {
            keys.remove("event-channel");
            set(keys, "event-channel-tx", "3");
        },
        &["event-channel-rx", "is missing"],
    );
    for value in ["9", "0", "many"] {
        stage.refuses(
            |_, keys| set(keys, "multi-queue-num-queues", value),
            &["multi-queue-num-queues", value],
        );
    }
    // Rings of several pages: more than the back takes, and fewer than were promised.
    let ring_of = |dir: &'static str, order: u32| {
        move |_: &mut RawGuest, keys: &mut Keys| {
            let page = keys.remove(&format!("{dir}-ring-ref")).unwrap_or_default();
            set(keys, &format!("{dir}-ring-page-order"), order);
            set(keys, &format!("{dir}-ring-ref0"), page);
        }
    };
    stage.refuses(ring_of("tx", 5), &["tx-ring-page-order", "\"5\"", "at most the back's"]);
    stage.refuses(ring_of("rx", 1), &["rx-ring-ref1", "is missing"]);
    // Two queues promised, flat keys given.
    stage.refuses(|_, keys| set(keys, "multi-queue-num-queues", 2), &["queue-0/tx-ring-ref", "is missing"]);
    stage.end();
}

fn grants_and_channels_that_are_not_there() {
    let mut stage = Stage::set();
    let denied = "does not allow this";
    for key in ["tx-ring-ref", "rx-ring-ref"] {
        for gref in [0, 3000, 4096, u32::MAX] {
            stage.refuses(|_, keys| set(keys, key, gref), &[key, &format!("gref {gref}"), "must grant it"]);
        }
        stage.refuses(
            |guest, keys| set(keys, key, guest.grant(DomId(12), Access::ReadWrite).0),
            &[key, denied],
        );
        stage.refuses(|guest, keys| set(keys, key, guest.grant(BACK, Access::ReadOnly).0), &[key, denied]);
    }
    let second_page = |_: &mut RawGuest, keys: &mut Keys| {
        let page = keys.remove("tx-ring-ref").unwrap_or_default();
        set(keys, "tx-ring-page-order", 1);
        set(keys, "tx-ring-ref0", page);
        set(keys, "tx-ring-ref1", 3000);
    };
    stage.refuses(second_page, &["tx-ring-ref1", "gref 3000", "must grant it"]);
    for port in [0, 1000, u32::MAX] {
        stage.refuses(|_, keys| set(keys, "event-channel", port), &["event-channel names", "must offer it"]);
    }
    stage.end();
}

/// A row's mischief: the guest, its keys, the entries of its TX and its RX list.
type Mischief = fn(&mut RawGuest, &mut Keys, &mut [Vec<StagingEntry>; 2]);

fn staging_of_no_use() {
    let mut stage = Stage::set();
    let rows: &[(&str, &str, Mischief)] = &[
        ("tx", "tx-data-len is \"300\"", |_, keys, _| set(keys, "tx-data-len", 300)),
        ("tx", "tx-data-len is \"many\"", |_, keys, _| set(keys, "tx-data-len", "many")),
        ("rx", "rx-data-len is \"0\"", |_, keys, _| set(keys, "rx-data-len", 0)),
        ("tx", "tx-data-len is missing", |_, keys, _| drop(keys.remove("tx-data-len"))),
        ("rx", "rx-data-ref0 is missing", |_, keys, _| drop(keys.remove("rx-data-ref0"))),
        ("tx", "tx-data-ref0 is \"x\"", |_, keys, _| set(keys, "tx-data-ref0", "x")),
        ("tx", "does not exist", |_, keys, _| set(keys, "tx-data-ref0", 3000)),
        ("rx", "does not exist", |_, keys, _| set(keys, "rx-data-ref0", 4_000_000_000u32)),
        ("tx", "no entry", |_, _, lists| lists[0].clear()),
        ("tx", "entry 7 has id 9", |_, _, lists| lists[0][7].id = 9),
        ("rx", "entry 0 has id 0", |_, _, lists| {
            lists[1].iter_mut().enumerate().for_each(|(i, e)| e.id = i as u16);
        }),
        ("tx", "entry 3 at offset 3841", |_, _, lists| lists[0][3].offset = 3841),
        ("rx", "overlaps", |_, _, lists| lists[1][5].offset = lists[1][4].offset + 1),
        ("rx", "overlaps", |_, _, lists| {
            let first = lists[1][0];
            lists[1][200] = StagingEntry { id: lists[1][200].id, ..first };
        }),
        ("tx", "does not exist", |_, _, lists| lists[0][100].gref = 3000),
        ("tx", "does not allow this", |guest, _, lists| {
            lists[0][100].gref = guest.grant(DomId(12), Access::ReadWrite).0;
        }),
        ("rx", "grant number 16", |guest, _, lists| {
            lists[1][250].gref = guest.grant(BACK, Access::ReadOnly).0
        }),
    ];
    // A front that knows no more than all or nothing gets nothing.
    for (dir, part, mischief, apart) in
        rows.iter().flat_map(|&(dir, part, mischief)| [false, true].map(|apart| (dir, part, mischief, apart)))
    {
        let (id, mut guest) = stage.guest();
        let mut keys = guest.keys();
        set(&mut keys, "feature-staging-grants", 1);
        if apart {
            set(&mut keys, "staging-grants-revision", 2);
        }
        let mut lists = [guest.buffers(Access::ReadOnly, 0), guest.buffers(Access::ReadWrite, 256)];
        for dir in ["tx", "rx"] {
            set(&mut keys, &format!("{dir}-data-len"), 256);
            set(&mut keys, &format!("{dir}-data-ref0"), 0);
        }
        // Twice: lists are written between, and keys may be changed after.
        mischief(&mut guest, &mut Keys::new(), &mut lists);
        for (dir, entries) in ["tx", "rx"].into_iter().zip(&lists) {
            let list = guest.list(entries);
            set(&mut keys, &format!("{dir}-data-ref0"), list.0);
        }
        mischief(&mut guest, &mut keys, &mut lists);
        guest.connect(&keys);
        guest.wait_back(&[XenbusState::Connected]);
        until(|| stage.report(id).state == XenbusState::Connected);
        let active = format!("{}/staging-grants-active", id.back_dir());
        let (said, tx, rx) = match (apart, dir) {
            (true, "tx") => ("rx", "copy", "staging"),
            (true, _) => ("tx", "staging", "copy"),
            _ => ("0", "copy", "copy"),
        };
        assert_eq!(stage.machine.key(&active).as_deref(), Some(said), "{part}");
        let report = stage.report(id);
        assert_eq!(report.failed, None);
        let [(0, refused_dir, why)] = &report.refused[..] else { panic!("{part}: {:?}", report.refused) };
        assert!(*refused_dir == dir && why.contains(part), "{dir} {part}: {:?}", report.refused);
        assert_eq!((report.queues[0].0, report.queues[0].2), (tx, rx));
        let lines = log_lines::with(&format!("{}/{dir}-data-ref0", id.front_dir()));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with(&format!("WARN: {id}: ")) && lines[0].contains(part), "{lines:?}");
        // It works, with ordinary grants.
        guest.play(&[Slot::Data(guest.request(3, 64))]);
        assert_eq!(guest.answers(), [RSP_OKAY]);
        stage.traffic.flows();
        stage.clear(id, guest);
    }
    stage.end();
}

fn xsa_39_90_rings_that_break_the_protocol() {
    let mut stage = Stage::set();
    stage.closes(
        |guest| guest.tx.publish_index(guest.tx.next_index() + 257),
        &["tx-ring-ref", "req_prod 258"],
    );
    stage.closes(|guest| guest.tx.publish_index(0), &["tx-ring-ref", "req_prod 0 went backwards"]);
    let play = |guest: &mut RawGuest, change: fn(&mut TxRequest), extra: Option<[u32; 3]>| {
        let mut request = guest.request(1, 64);
        change(&mut request);
        let slots = [Some(Slot::Data(request)), extra.map(Slot::Extra)];
        guest.play(&slots.into_iter().flatten().collect::<Vec<_>>());
    };
    type Change = fn(&mut TxRequest);
    let rows: [(Change, Option<[u32; 3]>, &str); 6] = [
        (|r| r.offset = 4090, None, "64 bytes at offset 4090 crosses its page"),
        (|r| r.flags = TXF_MORE_DATA, None, "more slots than are on the ring"),
        (|r| r.flags = TXF_EXTRA_INFO, None, "more slots than are on the ring"),
        (|r| r.flags = TXF_EXTRA_INFO, Some([0; 3]), "extra info of type 0"),
        (|r| r.flags = TXF_EXTRA_INFO, Some([0x09, 0, 0]), "extra info of type 9"),
        (|r| r.flags = TXF_EXTRA_INFO, Some([0x01, 0x01, 0]), "segment size 0"),
    ];
    for (change, extra, part) in rows {
        stage.closes(|guest| play(guest, change, extra), &["tx-ring-ref", part]);
    }
    // The RX ring is checked when there is a frame for it.
    let (id, mut guest) = stage.guest();
    guest.connect_honestly();
    guest.play(&[Slot::Data(guest.request(0, 64))]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    guest.rx.publish_index(1000);
    let other = stage.machine.make_vif(BAD, 1000);
    let mut sender = Guest::connected(&stage.machine, other, ordinary());
    sender.send(0, mac(id.front.0, id.handle), 64, 0);
    stage.is_closed(id, &mut guest, &["rx-ring-ref", "req_prod 1000"]);
    sender.close();
    stage.machine.remove_vif(other);
    until(|| stage.back.report(other).is_none());
    stage.clear(id, guest);
    stage.end();
}

/// Errors of single frames: they are answered and counted, and the vif goes on.
fn frames_whose_pages_are_gone() {
    let mut stage = Stage::set();
    let (id, mut guest) = stage.guest();
    guest.connect_honestly();
    let elsewhere = guest.grant(DomId(12), Access::ReadWrite);
    for gref in [GrantRef(0), GrantRef(3000), GrantRef(u32::MAX), elsewhere] {
        guest.play(&[Slot::Data(TxRequest { gref: gref.0, ..guest.request(1, 64) })]);
        assert_eq!(guest.answers(), [RSP_ERROR], "{gref}");
    }
    guest.play(&[Slot::Data(TxRequest { size: 13, ..guest.request(1, 64) })]);
    assert_eq!(guest.answers(), [RSP_ERROR]);
    // On RX: pages that do not exist, that are another's, that may not be written.
    let read_only = guest.grant(BACK, Access::ReadOnly);
    let bad = [GrantRef(0), GrantRef(3000), elsewhere, read_only];
    guest.play(&[Slot::Data(guest.request(2, 64))]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    for (i, gref) in bad.iter().chain([&guest.page_refs[1]]).enumerate() {
        guest.rx.post(RxRequest { id: i as u16, gref: gref.0 });
    }
    let other = stage.machine.make_vif(BAD, 1000);
    let mut sender = Guest::connected(&stage.machine, other, ordinary());
    for seq in 0..5 {
        sender.send(0, mac(id.front.0, id.handle), 64, seq);
    }
    let mut frames = Vec::new();
    until(|| {
        frames.extend(guest.rx.frames().unwrap());
        frames.len() == 5
    });
    assert_eq!(frames.iter().map(|f| f.failed()).collect::<Vec<_>>(), [true, true, true, true, false]);
    let report = stage.report(id);
    assert_eq!((report.state, report.device.failed), (XenbusState::Connected, None));
    assert_eq!((report.queues[0].1.errors, report.queues[0].3.errors), (5, 4));
    sender.close();
    stage.machine.remove_vif(other);
    until(|| stage.back.report(other).is_none());
    stage.clear(id, guest);
    stage.end();
}

fn xsa_350_states_at_random() {
    let began = Instant::now();
    let mut stage = Stage::set();
    let (id, mut guest) = stage.guest();
    guest.connect_honestly();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for turn in 0..200 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let states =
            [XenbusState::Initialising, XenbusState::Connected, XenbusState::Closing, XenbusState::Closed];
        guest.set_state(states[(random % 4) as usize]);
        if turn % 20 == 19 {
            stage.traffic.flows();
        }
    }
    // It comes to rest, and a front that behaves from now on is served.
    guest.is_served_from_now_on();
    let lines = log_lines::with(&id.to_string());
    assert!(lines.len() <= log_lines::most_of_a_device(began), "{lines:?}");
    // Garbage is no state.
    let state = format!("{}/state", id.front_dir());
    for garbage in ["", "9", "44", "four", "\0"] {
        guest.xs.write(&state, garbage).unwrap();
        stage.traffic.flows();
    }
    until(|| stage.report(id).state == XenbusState::Closed);
    stage.clear(id, guest);
    stage.end();
}

/// A guest that writes its state as fast as it can is served in turns, and the frames of others
/// move in between.
fn xsa_350_a_state_that_never_rests() {
    let began = Instant::now();
    let mut stage = Stage::set();
    let (id, guest) = stage.guest();
    let connection = stage.machine.broker.connect().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let platform = Loopback::attach_fd(connection, id.front).unwrap();
            let mut xs = Store::new(UnixTransport::new(platform.take_store_fd().unwrap()).unwrap());
            let state = format!("{}/state", id.front_dir());
            let mut written = 0u64;
            while !stop.load(Ordering::Relaxed) {
                xs.write(&state, ["1", "4", "5", "6"][written as usize % 4]).unwrap();
                written += 1;
            }
            written
        })
    };
    for _ in 0..20 {
        stage.traffic.flows();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().unwrap() > 100, "it was busy all the time");
    let lines = log_lines::with(&id.to_string());
    assert!(lines.len() <= log_lines::most_of_a_device(began), "{lines:?}");
    stage.clear(id, guest);
    stage.end();
}

fn directories_that_go() {
    let mut stage = Stage::set();
    // The front's own directory, by the guest or by the toolstack.
    let (id, mut guest) = stage.guest();
    guest.connect_honestly();
    stage.machine.xs.rm(&id.front_dir()).unwrap();
    until(|| stage.report(id).state == XenbusState::Closed);
    assert_eq!(stage.machine.back_state(id).as_deref(), Some("6"));
    stage.traffic.flows();
    // The toolstack makes it again, and a driver uses it.
    drop(guest);
    stage.machine.make_vif(BAD, id.handle);
    let mut guest = RawGuest::attach(&stage.machine, id);
    guest.connect_honestly();
    guest.play(&[Slot::Data(guest.request(0, 64))]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    // The back's directory, while live: the vif is forgotten, its directory not written again.
    stage.machine.xs.rm(&id.back_dir()).unwrap();
    until(|| stage.back.report(id).is_none());
    stage.traffic.flows();
    assert_eq!(stage.machine.back_state(id), None);
    stage.clear(id, guest);
    // Keys that go while the back reads them.
    let (id, mut guest) = stage.guest();
    guest.connect(&guest.keys());
    for key in ["tx-ring-ref", "event-channel", "state"] {
        stage.machine.xs.rm(&format!("{}/{key}", id.front_dir())).unwrap();
    }
    until(|| stage.report(id).state == XenbusState::Closed);
    stage.clear(id, guest);
    stage.end();
}

/// A page that the back has mapped cannot be revoked; another can, and then the frame fails alone.
fn a_guest_that_takes_its_memory_back() {
    let mut stage = Stage::set();
    let (id, mut guest) = stage.guest();
    let mut keys = guest.keys();
    set(&mut keys, "feature-staging-grants", 1);
    let entries = guest.buffers(Access::ReadOnly, 0);
    let list = guest.list(&entries);
    set(&mut keys, "tx-data-len", 256);
    set(&mut keys, "tx-data-ref0", list.0);
    guest.connect(&keys);
    guest.wait_back(&[XenbusState::Connected]);
    let mut regions = std::mem::take(&mut guest.more).into_iter();
    let (buffers, list) = (regions.next().unwrap(), regions.next().unwrap());
    guest.platform.grants().release(list).map_err(|_| "a list is read once, at connect").unwrap();
    let Err(InUse(buffers)) = guest.platform.grants().release(buffers) else { panic!("staging is in use") };
    // Still as before: request 0's bytes are in the buffer of id 0.
    guest.request(0, 64); // writes page 0, whose bytes are a frame
    let mut frame = [0; 64];
    assert!(guest.pages.copy_out(0, &mut frame) && buffers.copy_in(0, &frame));
    guest.play(&[Slot::Data(TxRequest { gref: 0, offset: 0, flags: 0, id: 0, size: 64 })]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    // A page that the back copies from only when it is asked to.
    let lone = guest.grant(BACK, Access::ReadOnly);
    let page = guest.more.pop().unwrap();
    let request = TxRequest { gref: lone.0, ..guest.request(1, 300) };
    guest.play(&[Slot::Data(request)]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    guest.platform.grants().release(page).map_err(|_| "a copy is over when it is answered").unwrap();
    guest.play(&[Slot::Data(request)]);
    assert_eq!(guest.answers(), [RSP_ERROR]);
    assert_eq!(stage.report(id).state, XenbusState::Connected);
    // After the close all of it is the guest's again.
    guest.set_state(XenbusState::Closed);
    guest.wait_back(&[XenbusState::Closed]);
    guest.platform.grants().release(buffers).map_err(|_| "nothing is mapped any more").unwrap();
    stage.clear(id, guest);
    stage.end();
}

/// The guest uses the good guests' addresses as sources: their frames must reach them nevertheless.
fn a_guest_that_sends_as_another() {
    let mut stage = Stage::set();
    let id = stage.machine.make_vif(BAD, 0);
    let mut bad = Guest::connected(&stage.machine, id, ordinary());
    let mut sent = 0;
    for _ in 0..20 {
        for victim in [mac(11, 0), mac(12, 0)] {
            bad.act_as(victim);
            bad.send(0, MacAddr::BROADCAST, 64, sent);
            sent += 1;
        }
        stage.traffic.flows();
    }
    until(|| {
        bad.take();
        bad.front.vif().in_flight(0) == 0
    });
    let drops = stage.report(id).port_drops;
    let forged = drops.iter().find(|drop| drop.reason == "forged_source").map(|drop| drop.frames);
    assert_eq!(forged, Some(sent));
    // The guest's own program sees it too.
    assert_eq!((bad.front.forged_source(), bad.front.mac()), (sent, Some(mac(BAD, 0))));
    bad.close();
    stage.machine.remove_vif(id);
    until(|| stage.back.report(id).is_none());
    stage.traffic.assert_unharmed(&stage.back);
    stage.end();
}

fn xsa_392_a_guest_that_takes_no_frames() {
    let mut stage = Stage::set();
    let (id, mut guest) = stage.guest();
    guest.connect_honestly();
    guest.play(&[Slot::Data(guest.request(0, 64))]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    let other = stage.machine.make_vif(BAD, 1000);
    let mut sender = Guest::connected(&stage.machine, other, ordinary());
    // Far more than the back keeps for it.
    for seq in 0..2000 {
        sender.send(0, mac(id.front.0, id.handle), 1514, seq);
        if seq % 500 == 0 {
            stage.traffic.flows();
        }
    }
    // Its own sender is not held up: everything is answered, the rest was dropped.
    until(|| sender.front.reclaim(0, 1).unwrap() == 0 && sender.front.vif().in_flight(0) == 0);
    let report = stage.report(id);
    assert_eq!((report.state, report.queues[0].3.frames), (XenbusState::Connected, 0));
    // Frames that waited come once there is room for them.
    guest.rx.post(RxRequest { id: 0, gref: guest.page_refs[1].0 });
    guest.notify();
    let mut frames = Vec::new();
    until(|| {
        frames.extend(guest.rx.frames().unwrap());
        !frames.is_empty()
    });
    assert_eq!((frames.len(), frames[0].bytes()), (1, 1514));
    sender.close();
    stage.machine.remove_vif(other);
    until(|| stage.back.report(other).is_none());
    stage.clear(id, guest);
    stage.end();
}

/// The domain that dies with its process.
const MORTAL: DeviceId = DeviceId { class: Class::VIF, front: DomId(7), back: BACK, handle: 0 };

/// A child: connects, and sends until it is killed.
pub fn play_until_killed(broker: &Path) {
    let platform = Loopback::attach(broker, MORTAL.front).unwrap();
    let fd = platform.take_store_fd().unwrap();
    let mut guest = RawGuest::over(platform, Store::new(UnixTransport::new(fd).unwrap()), MORTAL);
    guest.connect_honestly();
    println!("connected");
    loop {
        for id in 0..16 {
            guest.play(&[Slot::Data(guest.request(id, 64))]);
        }
        while guest.tx.in_flight() > 0 {
            guest.tx.answers().unwrap();
        }
    }
}

fn guests_that_die() {
    let mut stage = Stage::set();
    // Killed, with frames on their way.
    for _ in 0..5 {
        stage.machine.guest_domain(MORTAL.front.0);
        stage.machine.make_vif(MORTAL.front.0, MORTAL.handle);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("child")
            .arg(stage.machine.broker_path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "connected\n");
        until(|| stage.report(MORTAL).queues.first().is_some_and(|q| q.1.frames > 100));
        child.kill().unwrap();
        child.wait().unwrap();
        until(|| stage.report(MORTAL).state == XenbusState::Closed);
        stage.traffic.flows();
        stage.machine.remove_vif(MORTAL);
        until(|| stage.back.report(MORTAL).is_none());
        stage.machine.settles(stage.calm);
    }
    // An attachment that is dropped, its domain kept by another.
    let (id, mut guest) = stage.guest();
    guest.connect_honestly();
    guest.play(&[Slot::Data(guest.request(0, 64))]);
    drop(guest);
    stage.traffic.flows();
    stage.machine.remove_vif(id);
    until(|| stage.back.report(id).is_none());
    stage.machine.settles(stage.calm);
    stage.end();
}

/// Pages of memory that this process has.
fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn xsa_43_ten_thousand_bad_connects() {
    let began = Instant::now();
    let mut stage = Stage::set();
    let (id, mut guest) = stage.guest();
    let mut keys = guest.keys();
    set(&mut keys, "tx-ring-ref", "x".repeat(1000));
    guest.connect(&keys);
    guest.wait_back(&[XenbusState::Closed]);
    stage.back.ask(|backend| backend.config_mut().limits_steps = false);
    let mut before = 0;
    for turn in 0..10_000 {
        guest.set_state(XenbusState::Initialising);
        guest.wait_back(&[XenbusState::InitWait]);
        guest.set_state(XenbusState::Connected);
        guest.wait_back(&[XenbusState::Closed]);
        if turn % 1000 == 0 {
            stage.traffic.flows();
        }
        if turn == 1000 {
            before = resident_pages();
        }
    }
    let grown = resident_pages().saturating_sub(before);
    assert!(grown < 1024, "{grown} pages more than after the first thousand");
    let lines = log_lines::take();
    assert!(
        lines.len() <= 2 * log_lines::most_of_a_device(began),
        "{} lines: {:?}",
        lines.len(),
        lines.last()
    );
    assert!(lines.iter().any(|line| line.contains("from here on one such line of this vif")), "{lines:?}");
    // The guest that mends its ways is served.
    guest.set_state(XenbusState::Closed);
    guest.set_state(XenbusState::Initialising);
    guest.connect_honestly();
    stage.clear(id, guest);
    stage.end();
}

/// Each connect and each close of an honest guest fails in part for reasons that are not the
/// guest's: the remote side's ports, the files of its vif. All lines are written within the vif's
/// budget.
fn xsa_43_reconnects_of_which_everything_complains() {
    let began = Instant::now();
    let mut stage = Stage::set();
    let dir = std::env::temp_dir().join(format!("pregrant-complaints-{}", std::process::id()));
    // Where the pages' files and their directories would be, there are others.
    let vif = dir.join(format!("vif{BAD}.1"));
    std::fs::create_dir_all(vif.join("control")).unwrap();
    std::fs::write(vif.join("0"), "").unwrap();
    let files = Obstructed(FileRecovery::new(&dir));
    stage.back.ask(move |backend| {
        backend.config_mut().recovery = Some(Box::new(files));
        backend.config_mut().limits_steps = false;
    });
    stage.back.refuses();
    let (id, mut guest) = stage.guest();
    for turn in 0..200 {
        guest.connect_honestly();
        guest.set_state(XenbusState::Closing);
        guest.wait_back(&[XenbusState::Closing]);
        guest.set_state(XenbusState::Closed);
        guest.wait_back(&[XenbusState::Closed]);
        guest.set_state(XenbusState::Initialising);
        if turn % 50 == 0 {
            stage.traffic.flows();
        }
    }
    let lines = log_lines::take();
    assert!(
        lines.len() <= log_lines::most_of_a_device(began),
        "{} lines: {:?}",
        lines.len(),
        &lines[..40.min(lines.len())]
    );
    let name = vif.display().to_string();
    for part in [format!("{name}/control"), format!("{name}/0/tx"), "out of order".into()] {
        assert!(lines.iter().any(|line| line.contains(&part)), "nothing of {part}: {lines:?}");
    }
    let left_out = stage.report(id).lines_left_out;
    assert!(left_out > 200, "{left_out} lines were counted and not written");
    stage.clear(id, guest);
    let counts = log_lines::with("of this vif were not written");
    assert_eq!(counts.len(), 1, "{counts:?}");
    stage.end();
    std::fs::remove_dir_all(&dir).unwrap();
}

fn a_guest_that_steps_without_end_is_served_now_and_again() {
    let mut stage = Stage::set();
    let (id, mut guest) = stage.guest();
    let mut keys = guest.keys();
    set(&mut keys, "tx-ring-ref", "x");
    guest.connect(&keys);
    // It waits for each answer, which keeps coming: at last only after rests.
    let mut turns = 0;
    while stage.report(id).throttled < 3 {
        guest.wait_back(&[XenbusState::Closed]);
        guest.set_state(XenbusState::Initialising);
        guest.wait_back(&[XenbusState::InitWait]);
        guest.set_state(XenbusState::Connected);
        turns += 1;
    }
    assert!(turns >= 8, "it had to rest after {turns} bad connects");
    guest.wait_back(&[XenbusState::Closed]);
    // One that waits for nothing.
    let throttled = stage.report(id).throttled;
    while stage.report(id).throttled < throttled + 3 {
        for state in [XenbusState::Initialising, XenbusState::Connected, XenbusState::Closing] {
            guest.set_state(state);
        }
    }
    stage.traffic.flows();
    // One that mends its ways is served, and another may be detached at any time.
    guest.set_state(XenbusState::Closed);
    guest.set_state(XenbusState::Initialising);
    guest.connect_honestly();
    guest.play(&[Slot::Data(guest.request(0, 64))]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    stage.clear(id, guest);
    stage.end();
}
