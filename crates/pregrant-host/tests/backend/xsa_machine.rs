//! Xen's security advisories that need a whole machine: processes' resources, event channels,
//! xenstore, the log. A hostile guest beside two that must go on. docs/threat-model.md has the
//! table.

use pregrant::net::front::FrontConfig;
use pregrant::wire::netif::{RSP_ERROR, RSP_OKAY, TXF_MORE_DATA, TxRequest};
use pregrant::xenbus::XenbusState;
use pregrant_host::UnixTransport;
use pregrant_loopback::Loopback;
use pregrant_test_machine::guest::{Guest, exchange, ordinary, staging};
use pregrant_test_machine::log_lines;
use pregrant_test_machine::machine::{Store, Test, mac, until};
use pregrant_test_machine::raw_guest::RawGuest;
use pregrant_test_machine::stage::{BAD, Stage};
use pregrant_testkit::model_front::Slot;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    ("xsa_43_a_million_bad_requests_are_a_few_lines", xsa_43_a_million_bad_requests_are_a_few_lines),
    ("xsa_300_one_guest_s_vifs_share_its_pages", xsa_300_one_guest_s_vifs_share_its_pages),
    ("xsa_300_pages_that_are_kept_count_too", xsa_300_pages_that_are_kept_count_too),
    ("xsa_331_channels_that_close_under_load", xsa_331_channels_that_close_under_load),
    ("xsa_332_an_event_storm_with_empty_rings", xsa_332_an_event_storm_with_empty_rings),
    ("xsa_349_state_flips_while_no_one_listens", xsa_349_state_flips_while_no_one_listens),
];

/// Called when the bad guest has done everything: checks that nothing came of it.
fn end(mut stage: Stage) {
    stage.settles();
    stage.end();
}

/// Pages of memory that this process has.
fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Every request is answered with ERROR, and the log's lines about the guest fit on a page.
fn xsa_43_a_million_bad_requests_are_a_few_lines() {
    let began = Instant::now();
    let mut stage = Stage::set();
    let id = stage.vif(0);
    let mut guest = RawGuest::attach(&stage.machine, id);
    guest.connect_honestly();
    let bad = |k: u64, guest: &RawGuest| {
        let request = guest.request((k % 256) as u16, 64);
        match k % 4 {
            0 => vec![Slot::Data(TxRequest { gref: 3000, ..request })],
            1 => vec![Slot::Data(TxRequest { gref: 0, ..request })],
            2 => vec![Slot::Data(TxRequest { size: 13, ..request })],
            // A fragment that is longer than the frame.
            _ => vec![
                Slot::Data(TxRequest { flags: TXF_MORE_DATA, ..request }),
                Slot::Data(TxRequest { size: 65, offset: 0, ..request }),
            ],
        }
    };
    let (mut played, mut errors) = (0u64, 0u64);
    while errors < 1_000_000 {
        while guest.tx.free() >= 2 {
            guest.tx.write(&bad(played, &guest));
            played += 1;
        }
        guest.tx.publish();
        guest.notify();
        while guest.tx.in_flight() > 0 {
            for statuses in guest.tx.answers().unwrap() {
                assert!(statuses.iter().all(|s| *s == RSP_ERROR), "{statuses:?}");
                errors += 1;
            }
        }
    }
    let report = stage.back.report(id).unwrap();
    assert_eq!((report.state, report.queues[0].1.errors), (XenbusState::Connected, errors));
    let lines = log_lines::take();
    assert!(
        lines.len() <= log_lines::most_of_a_device(began),
        "{} lines for {errors} errors: {lines:?}",
        lines.len()
    );
    drop(guest);
    stage.remove(id);
    end(stage);
}

/// A guest's mapped pages count over all of its vifs; another guest's share is its own.
fn xsa_300_one_guest_s_vifs_share_its_pages() {
    let mut stage = Stage::set();
    // Rings of two vifs, and buffers of one: 16 pages a direction.
    stage.back.ask(|backend| backend.config_mut().page_limit = 4 + 32);
    let config = staging(Some(256), Some(256));
    // When the first connects the second is not known.
    let [(a, first), (b, second)] = [0, 1].map(|handle| {
        let id = stage.vif(handle);
        (id, Guest::connected(&stage.machine, id, config))
    });
    let ids = [a, b];
    let paths = |id| stage.back.report(id).map(|r| (r.queues[0].0, r.queues[0].2));
    assert_eq!(ids.map(paths), [Some(("staging", "staging")), Some(("copy", "copy"))]);
    let refused = stage.back.report(ids[1]).unwrap().refused;
    assert!(refused[0].2.contains("of the guest's limit are free"), "{refused:?}");
    let other = stage.machine.make_vif(6, 0);
    stage.machine.guest_domain(6);
    let third = Guest::connected(&stage.machine, other, config);
    assert_eq!(stage.back.report(other).map(|r| r.queues[0].0), Some("staging"));
    // Released pages are there for the other.
    first.close();
    second.close();
    let second = Guest::attach(&stage.machine, ids[1], config, false);
    // A new driver starts from the beginning, as after a boot.
    stage.machine.remove_vif(ids[1]);
    until(|| stage.back.report(ids[1]).is_none());
    drop(second);
    let id = stage.vif(1);
    let second = Guest::connected(&stage.machine, id, config);
    assert_eq!(stage.back.report(id).map(|r| r.queues[0].0), Some("staging"));
    second.close();
    third.close();
    stage.remove(other);
    stage.remove(id);
    stage.remove(ids[0]);
    end(stage);
}

/// Pages that stay mapped after they were seen count for the guest's limit, over all of its vifs,
/// and are unmapped when another of its vifs needs them.
fn xsa_300_pages_that_are_kept_count_too() {
    let mut stage = Stage::set();
    let limit = 4 + 100;
    stage.back.ask(move |backend| backend.config_mut().page_limit = limit);
    let ids = [0, 1, 2].map(|handle| stage.vif(handle));
    let persistent = FrontConfig { persistent: true, ..ordinary() };
    let mapped = |stage: &Stage| stage.machine.broker.audit().maptrack - stage.calm.maptrack;
    let [mut first, mut second] = [ids[0], ids[1]].map(|id| Guest::connected(&stage.machine, id, persistent));
    for _ in 0..30 {
        exchange(&mut first, &mut second, &[60, 1514, 9000]);
        assert!(mapped(&stage) <= limit, "{} pages are mapped", mapped(&stage));
    }
    assert!(mapped(&stage) > limit / 2, "and many are: {}", mapped(&stage));
    let third = Guest::connected(&stage.machine, ids[2], staging(Some(256), Some(256)));
    assert_eq!(stage.back.report(ids[2]).map(|r| r.queues[0].0), Some("staging"));
    for _ in 0..30 {
        exchange(&mut first, &mut second, &[60, 1514, 9000]);
        assert!(mapped(&stage) <= limit, "{} pages are mapped", mapped(&stage));
    }
    for guest in [first, second, third] {
        guest.close();
    }
    ids.into_iter().for_each(|id| stage.remove(id));
    end(stage);
}

/// Vifs of a guest come and go with their channels while the back sends to them and they to it.
fn xsa_331_channels_that_close_under_load() {
    let mut stage = Stage::set();
    // Somebody who sends to the bad guest's address all the time.
    let sender_id = stage.vif(1000);
    let connection = stage.machine.broker.connect().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let at = Arc::new(AtomicU32::new(0));
    let sender = {
        let (stop, to) = (Arc::clone(&stop), Arc::clone(&at));
        std::thread::spawn(move || {
            let platform = Loopback::attach_fd(connection, sender_id.front).unwrap();
            let xs = Store::new(UnixTransport::new(platform.take_store_fd().unwrap()).unwrap());
            let mut sender = Guest::over(platform, xs, sender_id, ordinary(), false);
            sender.connect();
            let mut seq = 0;
            while !stop.load(Ordering::Relaxed) {
                sender.send(0, mac(BAD, to.load(Ordering::Relaxed)), 64, seq);
                seq += 1;
                // While the address is no one's the switch floods: leave the good guests' queues
                // some room.
                std::thread::sleep(Duration::from_micros(20));
            }
            sender.close();
        })
    };
    for handle in 0..60 {
        let id = stage.vif(handle);
        at.store(handle, Ordering::Relaxed);
        let mut guest = RawGuest::attach(&stage.machine, id);
        guest.connect_honestly();
        guest.play(&[Slot::Data(guest.request(0, 64))]);
        assert_eq!(guest.answers(), [RSP_OKAY]);
        for k in 0..64 {
            let gref = guest.page_refs[k as usize % 4].0;
            guest.rx.post(pregrant::wire::netif::RxRequest { id: k, gref });
            guest.notify();
        }
        if handle % 2 == 0 {
            until(|| !guest.rx.frames().unwrap().is_empty());
        }
        // The guest's end closes; the back learns of it from xenstore only, later.
        drop(guest);
        stage.remove(id);
    }
    stop.store(true, Ordering::Relaxed);
    sender.join().unwrap();
    stage.remove(sender_id);
    end(stage);
}

/// Events without any request: nothing is sent, counted or logged for them, and others are served.
fn xsa_332_an_event_storm_with_empty_rings() {
    let mut stage = Stage::set();
    let id = stage.vif(0);
    let connection = stage.machine.broker.connect().unwrap();
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let storm = {
        let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
        std::thread::spawn(move || {
            let platform = Loopback::attach_fd(connection, id.front).unwrap();
            let xs = Store::new(UnixTransport::new(platform.take_store_fd().unwrap()).unwrap());
            let mut guest = RawGuest::over(platform, xs, id);
            guest.connect_honestly();
            while !stop.load(Ordering::Relaxed) {
                guest.notify();
                sent.fetch_add(1, Ordering::Relaxed);
            }
            // It is a guest like any other when it is done with that.
            guest.play(&[Slot::Data(guest.request(0, 64))]);
            assert_eq!(guest.answers(), [RSP_OKAY]);
        })
    };
    until(|| sent.load(Ordering::Relaxed) > 1000);
    let seen = |stage: &Stage| stage.back.report(id).map(|r| (r.device.state, r.queues, r.device.failed));
    let (before, memory) = (seen(&stage), resident_pages());
    log_lines::take();
    let started = sent.load(Ordering::Relaxed);
    while sent.load(Ordering::Relaxed) < started + 200_000 {
        stage.traffic.flows();
    }
    assert_eq!(seen(&stage), before, "state and counters, events sent among them");
    assert_eq!(log_lines::take(), [""; 0]);
    let grown = resident_pages().saturating_sub(memory);
    assert!(grown < 256, "{grown} pages more");
    stop.store(true, Ordering::Relaxed);
    storm.join().unwrap();
    stage.remove(id);
    end(stage);
}

/// A back that is busy elsewhere while a guest writes its state a hundred thousand times: what
/// waits for it is bounded.
fn xsa_349_state_flips_while_no_one_listens() {
    let began = Instant::now();
    let mut stage = Stage::set();
    let id = stage.vif(0);
    let mut guest = RawGuest::attach(&stage.machine, id);
    guest.connect_honestly();
    let (go_on, held) = mpsc::channel::<()>();
    let (is_held, holds) = mpsc::channel();
    std::thread::scope(|scope| {
        let back = &stage.back;
        scope.spawn(move || {
            back.ask(move |_| {
                is_held.send(()).unwrap();
                let _ = held.recv();
            });
        });
        holds.recv().unwrap();
        let state = format!("{}/state", id.front_dir());
        let mut flips = 0;
        let mut flip = |guest: &mut RawGuest| {
            flips += 1;
            guest.xs.write(&state, ["1", "4", "5", "6"][flips % 4]).unwrap();
        };
        (0..10_000).for_each(|_| flip(&mut guest));
        let before = resident_pages();
        (0..100_000).for_each(|_| flip(&mut guest));
        let grown = resident_pages().saturating_sub(before);
        assert!(grown < 256, "{grown} pages more");
        drop(go_on);
    });
    stage.traffic.flows();
    // The guest that comes to rest is served.
    guest.is_served_from_now_on();
    let lines = log_lines::with(&id.to_string());
    assert!(lines.len() <= log_lines::most_of_a_device(began), "{lines:?}");
    drop(guest);
    stage.remove(id);
    end(stage);
}
