//! The control ring and multicast control through a whole machine: xenstore, a backend that serves
//! others too, a switch. A guest gets the settings that it asks for; a guest that breaks the
//! protocol, or sends requests without end, loses only its own vif, or nothing.

use pregrant::GrantRef;
use pregrant::net::front::{FrontConfig, Granting};
use pregrant::net::headers::MacAddr;
use pregrant::net::path::gref_mapping::DEFAULT_LIMIT;
use pregrant::platform::{Access, Events, Platform};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{NetCtrl, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlType, GREF_READONLY, GrefEntry};
use pregrant::xenbus::XenbusState;
use pregrant_host::drivers::device_log::LINES_PER_DEVICE;
use pregrant_loopback::{Channel, Region};
use pregrant_test_machine::guest::{Guest, Traffic, ordinary};
use pregrant_test_machine::log_lines;
use pregrant_test_machine::machine::{BACK, Back, Machine, Test, until};
use pregrant_test_machine::raw_guest::RawGuest;

pub const TESTS: &[Test] = &[
    ("xsa_39_a_control_ring_that_breaks_the_protocol", xsa_39_a_control_ring_that_breaks_the_protocol),
    ("xsa_43_a_million_requests_and_a_quiet_log", xsa_43_a_million_requests_and_a_quiet_log),
    ("a_ring_that_is_never_empty_is_paused", a_ring_that_is_never_empty_is_paused),
    ("tables_are_filled_without_a_pause", tables_are_filled_without_a_pause),
    ("half_a_control_ring", half_a_control_ring),
    ("groups_as_the_guest_wants_them", groups_as_the_guest_wants_them),
    ("queues_as_the_guest_wants_them", queues_as_the_guest_wants_them),
];

const BAD: u16 = 5;

/// Two guests at work, a backend, and a third guest with a control ring of its own making.
fn with_a_guest(test: impl FnOnce(&mut Machine, &Back, &mut RawGuest, &mut Traffic)) {
    let mut machine = Machine::start();
    let back = Back::plain(&machine);
    let mut traffic = Traffic::start(&mut machine);
    machine.guest_domain(BAD);
    let keep = machine.attach(pregrant::DomId(BAD));
    let calm = machine.broker.audit();
    let id = machine.make_vif(BAD, 0);
    log_lines::take();
    let mut guest = RawGuest::attach(&machine, id);
    test(&mut machine, &back, &mut guest, &mut traffic);
    traffic.flows();
    drop(guest);
    machine.remove_vif(id);
    until(|| back.report(id).is_none());
    machine.settles(calm);
    traffic.assert_unharmed(&back);
    drop(keep);
    traffic.stop(&mut machine);
    back.stop();
    machine.end();
}

/// Connects with a control ring: its page is the guest's last. Gives the channel.
fn connect(guest: &mut RawGuest) -> Channel {
    let ring = guest.grant(BACK, Access::ReadWrite);
    let (channel, port) = guest.platform.events().offer(BACK).unwrap();
    let mut keys = guest.keys();
    keys.insert("ctrl-ring-ref".into(), ring.0.to_string());
    keys.insert("event-channel-ctrl".into(), port.0.to_string());
    guest.connect(&keys);
    guest.wait_back(&[XenbusState::Connected]);
    channel
}

fn xsa_39_a_control_ring_that_breaks_the_protocol() {
    for req_prod in [129, u32::MAX, 1 << 31] {
        with_a_guest(|machine, back, guest, traffic| {
            let channel = connect(guest);
            let id = guest.device.id();
            traffic.flows();
            assert!(guest.more.last().unwrap().store_u32(0, req_prod));
            guest.platform.events().notify(&channel);
            guest.wait_back(&[XenbusState::Closed]);
            let reported = machine.error_node(id).unwrap();
            for part in
                [&format!("{}/ctrl-ring-ref", id.front_dir()), &format!("req_prod {req_prod}"), "detach"]
            {
                assert!(reported.contains(part), "{part:?} is not in: {reported}");
            }
            until(|| back.report(id).is_some_and(|r| r.failed.as_ref() == Some(&reported)));
            assert_eq!(log_lines::with(&reported).len(), 1);
        });
    }
}

/// A control ring that its guest keeps full.
struct NeverEmpty {
    ring: RingPages<NetCtrl, Region>,
    channel: Channel,
    req_prod: u32,
    rsp_cons: u32,
}

impl NeverEmpty {
    const SLOTS: u32 = 128;

    fn connect(guest: &mut RawGuest) -> Self {
        let channel = connect(guest);
        let ring = RingPages::<NetCtrl, _>::new(guest.more.pop().unwrap());
        ring.store(Word::RspEvent, 1);
        Self { ring, channel, req_prod: 0, rsp_cons: 0 }
    }

    /// Takes the answers, which must come in order and once.
    fn take(&mut self) {
        let rsp_prod = self.ring.load(Word::RspProd);
        while self.rsp_cons < rsp_prod {
            let answer = CtrlResponse::from_words(self.ring.read::<3>(self.rsp_cons));
            assert_eq!((answer.id, answer.msg_type), (self.rsp_cons as u16, (self.rsp_cons % 16) as u16));
            self.rsp_cons += 1;
        }
    }

    /// Fills the ring again.
    fn fill(&mut self, guest: &RawGuest) {
        while self.req_prod - self.rsp_cons < Self::SLOTS {
            let at = self.req_prod;
            let data = [at, u32::MAX - at, at * 7];
            let request = CtrlRequest { id: at as u16, msg_type: (at % 16) as u16, data };
            self.ring.write::<4>(at, request.to_words());
            self.req_prod += 1;
        }
        self.ring.store(Word::ReqProd, self.req_prod);
        guest.platform.events().notify(&self.channel);
    }
}

/// Each of a million requests is answered, once and in order; others' frames move, and the log has
/// no line for it.
fn xsa_43_a_million_requests_and_a_quiet_log() {
    with_a_guest(|_, back, guest, traffic| {
        // How long its ring is paused is another test's.
        back.ask(|backend| backend.config_mut().limits_steps = false);
        let mut bad = NeverEmpty::connect(guest);
        let mut rounds = 0u32;
        while bad.rsp_cons < 1_000_000 {
            bad.take();
            bad.fill(guest);
            rounds += 1;
            if rounds % 100_000 == 1 {
                traffic.flows();
            }
        }
        let id = guest.device.id();
        assert_eq!(back.report(id).unwrap().failed, None);
        let lines = log_lines::with(&id.to_string());
        assert!(lines.len() < LINES_PER_DEVICE as usize && lines.len() <= 3, "{lines:?}");
        guest.more.push(bad.ring.into_pages());
    });
}

/// The control thread serves other guests too: it pauses the ring, logs that once, and answers the
/// rest later.
fn a_ring_that_is_never_empty_is_paused() {
    with_a_guest(|_, back, guest, traffic| {
        let mut bad = NeverEmpty::connect(guest);
        let id = guest.device.id();
        let throttled = || back.report(id).unwrap().throttled;
        while throttled() < 20 {
            // Without a pause of its own, or its account fills.
            for _ in 0..100_000 {
                bad.take();
                bad.fill(guest);
            }
        }
        traffic.flows();
        until(|| {
            bad.take();
            bad.rsp_cons == bad.req_prod
        });
        assert_eq!(back.report(id).unwrap().failed, None);
        assert_eq!(log_lines::with("control ring throttled").len(), 1);
        // It is served as any other afterwards.
        bad.fill(guest);
        until(|| {
            bad.take();
            bad.rsp_cons == bad.req_prod
        });
        guest.more.push(bad.ring.into_pages());
    });
}

/// Eight queues' tables filled with all that GET offers: no pause, and no line that warns. To go on
/// adding and deleting is paused as any other request.
fn tables_are_filled_without_a_pause() {
    let mut machine = Machine::start();
    let back = Back::plain(&machine);
    machine.guest_domain(BAD);
    let id = machine.make_vif(BAD, 0);
    log_lines::take();
    let config = FrontConfig { queues: 8, ctrl_ring: true, granting: Granting::Standing, ..ordinary() };
    let mut guest = Guest::connected(&machine, id, config);
    let entry = |gref: &GrantRef| GrefEntry { gref: gref.0, flags: GREF_READONLY, status: 0 };
    let refs: Vec<_> =
        (0..2).flat_map(|q| guest.front.vif().queue(q).unwrap().page_refs().concat()).collect();
    let list: Vec<_> = refs.iter().take(768).map(entry).collect();
    assert_eq!((guest.front.vif().nr_queues(), list.len()), (8, 768));
    let mut ask = |queue: u32, entries: &[GrefEntry], adds: bool| {
        let (platform, vif) = guest.front.driver();
        let ctrl = vif.ctrl().unwrap();
        match (adds, entries) {
            (_, []) => ctrl.ask(platform, CtrlType::GetGrefMappingSize, [queue, 0, 0]),
            (true, _) => ctrl.add_grefs(platform, queue, entries),
            (false, _) => ctrl.del_grefs(platform, queue, entries),
        }
        .unwrap();
        loop {
            if let Some(answer) = ctrl.answer().unwrap() {
                assert_eq!(answer.status, 0);
                return answer.data;
            }
            std::thread::yield_now();
        }
    };
    for queue in 0..8 {
        assert_eq!(ask(queue, &[], true), DEFAULT_LIMIT as u32);
        ask(queue, &list[..512], true);
        ask(queue, &list[512..], true);
    }
    assert_eq!(back.report(id).unwrap().throttled, 0);
    assert_eq!(log_lines::with("WARN"), [""; 0]);
    while back.report(id).unwrap().throttled == 0 {
        ask(0, &list[..512], false);
        ask(0, &list[..512], true);
    }
    until(|| log_lines::with("control ring throttled").len() == 1);
    drop(guest);
    machine.remove_vif(id);
    until(|| back.report(id).is_none());
    back.stop();
    machine.end();
}

/// A ring without its channel, or with one that is not there, is a bad connect with a text that
/// names the key.
fn half_a_control_ring() {
    for (key, value, part) in [
        ("event-channel-ctrl", None, "is missing"),
        ("event-channel-ctrl", Some("999"), "cannot be bound"),
        ("ctrl-ring-ref", Some("3000"), "cannot be mapped"),
        ("ctrl-ring-ref", Some("x"), "expected a decimal number"),
    ] {
        with_a_guest(|machine, _, guest, _| {
            let ring = guest.grant(BACK, Access::ReadWrite);
            let (_channel, port) = guest.platform.events().offer(BACK).unwrap();
            let mut keys = guest.keys();
            keys.insert("ctrl-ring-ref".into(), ring.0.to_string());
            keys.insert("event-channel-ctrl".into(), port.0.to_string());
            keys.remove(key);
            keys.extend(value.map(|v| (key.to_owned(), v.to_owned())));
            guest.connect(&keys);
            guest.wait_back(&[XenbusState::Closed]);
            let reported = machine.error_node(guest.device.id()).unwrap();
            assert!(reported.contains(key) && reported.contains(part), "{key} = {value:?}: {reported}");
        });
    }
}

/// Two guests at a switch, 5 with these requests and 6 with ordinary ones.
fn with_two(config: FrontConfig, test: impl FnOnce(&mut Guest, &mut Guest)) {
    let mut machine = Machine::start();
    let back = Back::plain(&machine);
    back.ask(|_| ());
    let before = machine.broker.audit();
    let ids = [5, 6].map(|domid| {
        machine.guest_domain(domid);
        machine.make_vif(domid, 0)
    });
    let mut a = Guest::connected(&machine, ids[0], config);
    let mut b = Guest::connected(&machine, ids[1], ordinary());
    test(&mut a, &mut b);
    a.close();
    b.close();
    ids.into_iter().for_each(|id| machine.remove_vif(id));
    machine.settles(before);
    back.stop();
    machine.end();
}

/// Frames to the groups that the guest names, and to all groups whenever it asks for that.
fn groups_as_the_guest_wants_them() {
    with_two(FrontConfig { multicast_control: true, ..ordinary() }, |a, b| {
        request_group(a, MacAddr([1, 0, 0x5E, 0, 0, 2]));
        assert_eq!(received(a, b), [2]);
        let key = format!("{}/request-multicast-control", a.id().front_dir());
        a.front.xs().write(&key, "0").unwrap();
        until(|| received(a, b) == [1, 2, 3]);
        a.front.xs().write(&key, "1").unwrap();
        until(|| received(a, b) == [2]);
    });
}

/// TCP flows go to the queues that the guest's table names. (The switch's own choice spreads such
/// flows over both queues, as its test shows.)
fn queues_as_the_guest_wants_them() {
    with_two(FrontConfig { queues: 2, ctrl_ring: true, ..ordinary() }, |a, b| {
        for step in 0..4 {
            let (platform, vif) = a.front.driver();
            let ctrl = vif.ctrl().unwrap();
            match step {
                0 => ctrl.ask(platform, CtrlType::SetHashAlgorithm, [1, 0, 0]),
                1 => ctrl.ask(platform, CtrlType::SetHashFlags, [0xF, 0, 0]),
                2 => ctrl.ask(platform, CtrlType::SetHashMappingSize, [4, 0, 0]),
                _ => ctrl.set_mapping(platform, 0, &[1; 4]),
            }
            .unwrap();
            let mut answer = None;
            until(|| {
                answer = ctrl.answer().unwrap();
                answer.is_some()
            });
            assert_eq!(answer.unwrap().status, 0, "step {step}");
        }
        let mut burst = Arena::new();
        for n in 0..32 {
            let mut f = a.mac().0.to_vec();
            f.extend(b.mac().0);
            f.extend([8, 0, 0x45, 0, 0, 46, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, n, 10, 0, 0, 2, n, 1, 0, 80]);
            f.resize(60, 0);
            assert!(burst.push(&f, Offload::default()));
        }
        assert_eq!(b.front.send(0, &burst.burst()).unwrap(), 32);
        let mut came = [0; 2];
        until(|| {
            for (i, came) in came.iter_mut().enumerate() {
                let mut into = Arena::new();
                *came += a.front.recv(i, &mut into, 1).unwrap();
            }
            came.iter().sum::<usize>() == 32
        });
        assert_eq!(came, [0, 32]);
        b.front.reclaim(0, 1).unwrap();
    });
}

fn request_group(a: &mut Guest, group: MacAddr) {
    let (platform, vif) = a.front.driver();
    assert!(vif.multicast(platform, group, true));
    until(|| {
        vif.queue_mut(0).unwrap().reclaim(platform, 1).unwrap();
        vif.multicast_requests() == (0, 0)
    });
}

/// Which of three groups' frames, sent by `b`, reach `a`: a frame to `a` itself follows them.
fn received(a: &mut Guest, b: &mut Guest) -> Vec<u8> {
    let mut burst = Arena::new();
    for dst in [1, 2, 3].map(|n| [1, 0, 0x5E, 0, 0, n]).into_iter().chain([a.mac().0]) {
        let mut f = dst.to_vec();
        f.extend(b.mac().0);
        f.extend([0x88, 0xB6]);
        f.resize(60, 0);
        assert!(burst.push(&f, Offload::default()));
    }
    assert_eq!(b.front.send(0, &burst.burst()).unwrap(), 4);
    let (mut groups, mut last) = (Vec::new(), false);
    let mut into = Arena::new();
    until(|| {
        into.clear();
        a.front.recv(0, &mut into, 1).unwrap();
        for (frame, _) in into.burst().iter() {
            if frame[0] & 1 == 1 { groups.push(frame[5]) } else { last = true }
        }
        last
    });
    b.front.reclaim(0, 1).unwrap();
    groups
}
