//! A backend as time passes, on a machine within the test: the remote side's link goes down, and a
//! rate changes while frames travel. The exact times of each rule are tested in the core.

use pregrant::DomId;
use pregrant::net::back::Patience;
use pregrant::wire::netif::{RSP_OKAY, RxRequest};
use pregrant::xenbus::XenbusState;
use pregrant_test_machine::guest::{Guest, ordinary};
use pregrant_test_machine::log_lines;
use pregrant_test_machine::machine::{Back, Machine, Test, mac, net, until};
use pregrant_test_machine::raw_guest::RawGuest;
use pregrant_testkit::model_front::Slot;

pub const TESTS: &[Test] = &[
    (
        "xsa_392_a_guest_that_takes_no_frames_loses_its_link",
        xsa_392_a_guest_that_takes_no_frames_loses_its_link,
    ),
    ("a_rate_is_known_at_any_time", a_rate_is_known_at_any_time),
];

fn xsa_392_a_guest_that_takes_no_frames_loses_its_link() {
    let mut machine = Machine::start();
    let back = Back::plain(&machine);
    let ms = |n: u64| n * 1_000_000;
    // As the rules are, a thousand times as fast.
    let patience = Patience { expiry_ns: ms(10), unnotified_expiry_ns: ms(1), stall_ns: ms(60) };
    back.ask(move |backend| net(backend).config.vif.patience = patience);
    [5, 6].into_iter().for_each(|domid| machine.guest_domain(domid));
    let (bad, good) = (machine.make_vif(5, 0), machine.make_vif(6, 0));
    let keep = machine.attach(DomId(5));
    let mut guest = RawGuest::attach(&machine, bad);
    guest.connect_honestly();
    guest.play(&[Slot::Data(guest.request(0, 64))]);
    assert_eq!(guest.answers(), [RSP_OKAY]);
    assert_eq!(back.links(bad), [true; 0], "no slots, no link");
    let post = |guest: &mut RawGuest| {
        guest.rx.post(RxRequest { id: 0, gref: guest.page_refs[1].0 });
        guest.notify();
    };
    post(&mut guest);
    until(|| back.links(bad) == [true]);
    // One slot for frames that need two.
    let mut sender = Guest::connected(&machine, good, ordinary());
    let mut seq = 0;
    until(|| {
        sender.send(0, mac(bad.front.0, bad.handle), 5000, seq);
        seq += 1;
        back.links(bad).len() == 2
    });
    let report = back.report(bad).unwrap();
    assert_eq!((back.links(bad), report.link, report.stalls), (vec![true, false], false, 1));
    assert_eq!((report.state, report.device.failed), (XenbusState::Connected, None));
    // A first frame that comes late finds the patience at its end, and waits for its own.
    until(|| back.report(bad).is_some_and(|report| report.queues[0].3.expired > 0));
    assert_eq!(back.report(bad).unwrap().queues[0].3.frames, 0);
    assert_eq!(log_lines::with("posts no RX buffers").len(), 1);
    post(&mut guest);
    until(|| back.links(bad).len() == 3);
    assert!(back.report(bad).unwrap().link);
    assert_eq!((back.links(good), back.report(good).unwrap().stalls), (vec![true], 0));
    sender.close();
    drop((guest, keep));
    machine.remove_vif(bad);
    machine.remove_vif(good);
    until(|| back.report(bad).is_none() && back.report(good).is_none());
    back.stop();
    machine.end();
}

fn a_rate_is_known_at_any_time() {
    let mut machine = Machine::start();
    let back = Back::plain(&machine);
    machine.guest_domain(5);
    let id = machine.make_vif(5, 0);
    let rate = format!("{}/rate", id.back_dir());
    machine.xs.write(&rate, "quickly").unwrap();
    let mut guest = Guest::connected(&machine, id, ordinary());
    until(|| log_lines::with("expected \"bytes,microseconds\"").len() == 1);
    let send = |guest: &mut Guest, n: u64| {
        for seq in 0..n {
            guest.send(0, mac(id.front.0, id.handle), 1000, seq);
        }
        until(|| guest.front.reclaim(0, 1).unwrap() == 0 && guest.front.vif().in_flight(0) == 0);
    };
    send(&mut guest, 100);
    assert_eq!(back.report(id).unwrap().credit_waits, 0);
    // 10 frames each 2 ms.
    machine.xs.write(&rate, "10000,2000").unwrap();
    until(|| {
        send(&mut guest, 20);
        back.report(id).unwrap().credit_waits > 3
    });
    // Each change is in the log, once, and in the status.
    let said = |what: &str| log_lines::with(what).len();
    assert_eq!(said("its guest may send 10000 bytes in 2000 microseconds at most"), 1);
    let shown = back.report(id).unwrap().rate.map(|rate| rate.to_string());
    assert_eq!(shown.as_deref(), Some("10000 bytes in 2000 microseconds"));
    machine.xs.write(&rate, "20000,2000").unwrap();
    until(|| said("its guest may send 20000 bytes in 2000 microseconds at most") == 1);
    machine.xs.write(&rate, "").unwrap();
    until(|| said("its guest's sending is not limited any more") == 1);
    assert_eq!(back.report(id).unwrap().rate, None);
    until(|| {
        send(&mut guest, 1);
        back.report(id).unwrap().credit_waits == 0
    });
    send(&mut guest, 100);
    assert_eq!(back.report(id).unwrap().credit_waits, 0);
    guest.close();
    machine.remove_vif(id);
    until(|| back.report(id).is_none());
    back.stop();
    machine.end();
}
