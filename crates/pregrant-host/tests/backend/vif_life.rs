//! Vifs from their coming to their end, as two guests and a backend live it: what was negotiated is
//! what frames take, and when it is over nothing is left.

use pregrant::DomId;
use pregrant::net::back::Drained;
use pregrant::net::features::BackFeatures;
use pregrant::net::front::FrontConfig;
use pregrant::net::path::PathName;
use pregrant::net::path::staging::keys::Offer;
use pregrant::port::Offloads;
use pregrant::wire::netif::RSP_OKAY;
use pregrant::xenbus::{Class, DeviceId, XenbusState, toolstack};
use pregrant::xenstore::{Access, Permission};
use pregrant_host::drivers::device_log::LINES_PER_DEVICE;
use pregrant_host::drivers::net::port_provider::{Notes, Ports};
use pregrant_host::drivers::recovery::BrokerRecovery;
use pregrant_host::drivers::{
    Backend, BackendConfig, Hotplug, HotplugConfig, Net, NetConfig, PortProvider, RemoteSide,
};
use pregrant_host::loopback::Audit;
use pregrant_test_machine::guest::{Guest, exchange, ordinary, staging};
use pregrant_test_machine::log_lines;
use pregrant_test_machine::machine::{BACK, Back, Machine, Plan, Store, Test, net, until};
use pregrant_test_machine::raw_guest::RawGuest;
use pregrant_testkit::model_front::Slot;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

pub const TESTS: &[Test] = &[
    ("frames_both_ways_by_copy_and_by_map", frames_both_ways_by_copy_and_by_map),
    ("frames_both_ways_in_pages_that_stay_mapped", frames_both_ways_in_pages_that_stay_mapped),
    ("frames_both_ways_in_any_page_of_the_guest", frames_both_ways_in_any_page_of_the_guest),
    ("each_data_length_each_direction", each_data_length_each_direction),
    ("one_or_two_channels", one_or_two_channels),
    ("two_queues", two_queues),
    ("a_back_without_staging", a_back_without_staging),
    ("a_front_comes_back", a_front_comes_back),
    ("the_toolstack_takes_a_vif_away", the_toolstack_takes_a_vif_away),
    ("a_closed_vif_is_taken_away_at_once", a_closed_vif_is_taken_away_at_once),
    ("a_directory_that_is_written_key_by_key", a_directory_that_is_written_key_by_key),
    ("a_live_vif_without_a_far_side_stays_as_it_is", a_live_vif_without_a_far_side_stays_as_it_is),
    ("ports_are_made_before_a_guest_is_notified", ports_are_made_before_a_guest_is_notified),
    ("a_driver_domain_takes_the_directories_away", a_driver_domain_takes_the_directories_away),
    (
        "what_the_toolstack_does_costs_no_front_its_hearing",
        what_the_toolstack_does_costs_no_front_its_hearing,
    ),
    ("a_directory_stays_until_its_vif_is_unplugged", a_directory_stays_until_its_vif_is_unplugged),
    (
        "what_fails_when_a_vif_is_gone_is_logged_at_its_expense",
        what_fails_when_a_vif_is_gone_is_logged_at_its_expense,
    ),
    ("a_backend_ends_and_another_serves", a_backend_ends_and_another_serves),
    ("what_a_predecessor_closed_stays_closed", what_a_predecessor_closed_stays_closed),
    ("an_orderly_end_delivers_what_there_are_slots_for", an_orderly_end_delivers_what_there_are_slots_for),
];

const LENGTHS: [usize; 6] = [60, 64, 257, 1514, 4097, 65535];

/// Two guests, 5 and 6, with a vif each.
fn two_vifs(machine: &mut Machine) -> [DeviceId; 2] {
    [5, 6].map(|domid| {
        machine.guest_domain(domid);
        machine.make_vif(domid, 0)
    })
}

/// Connects two guests, checks the way their frames take, exchanges, closes.
fn life(machine: &mut Machine, back: &Back, config: [FrontConfig; 2], paths: [(&str, &str); 2]) {
    let before = machine.broker.audit();
    let ids = two_vifs(machine);
    let [mut a, mut b] = [0, 1].map(|i| Guest::connected(machine, ids[i], config[i]));
    exchange(&mut a, &mut b, &LENGTHS);
    for i in 0..2 {
        let report = back.report(ids[i]).unwrap();
        assert_eq!((report.state, &report.failed), (XenbusState::Connected, &None));
        assert!(report.refused.is_empty(), "{:?}", report.refused);
        for (tx_path, tx, rx_path, rx) in report.queues {
            assert_eq!((tx_path, rx_path), paths[i]);
            assert_eq!((tx.errors, tx.dropped, rx.errors, rx.dropped), (0, 0, 0, 0));
        }
    }
    a.close();
    b.close();
    ids.into_iter().for_each(|id| machine.remove_vif(id));
    machine.settles(before);
}

fn with_machine(features: BackFeatures, fallback: PathName, test: impl FnOnce(&mut Machine, &Back)) {
    let mut machine = Machine::start();
    let back = Back::start(&machine, features, fallback);
    back.ask(|_| ()); // attached
    test(&mut machine, &back);
    back.stop();
    machine.end();
}

fn frames_both_ways_by_copy_and_by_map() {
    for (kind, tx_path) in [(PathName::Copy, "copy"), (PathName::Map, "map")] {
        with_machine(BackFeatures::default(), kind, |machine, back| {
            life(machine, back, [ordinary(); 2], [(tx_path, "copy"); 2]);
        });
    }
}

fn frames_both_ways_in_pages_that_stay_mapped() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        let config = FrontConfig { persistent: true, ..ordinary() };
        life(machine, back, [config, ordinary()], [("persistent", "persistent"), ("copy", "copy")]);
        let config = FrontConfig { queues: 2, ..config };
        life(machine, back, [config; 2], [("persistent", "persistent"); 2]);
        let config = FrontConfig { gref_mapping: true, ..ordinary() };
        life(machine, back, [config, ordinary()], [("gref-mapping", "gref-mapping"), ("copy", "copy")]);
        let config = FrontConfig { queues: 2, ..config };
        life(machine, back, [config; 2], [("gref-mapping", "gref-mapping"); 2]);
        let (config, ring) = (FrontConfig { data_ring: Some(5), ..ordinary() }, ("data-ring", "data-ring"));
        life(machine, back, [config, ordinary()], [ring, ("copy", "copy")]);
        // Frames that no staging buffer has room for, by two queues.
        let mixed = FrontConfig { queues: 2, data_ring: Some(5), ..staging(Some(256), None) };
        life(machine, back, [mixed, FrontConfig { queues: 2, ..config }], [ring; 2]);
    });
}

/// Guests that let their back map all of them, beside one that does not; and a back that was not
/// asked to.
fn frames_both_ways_in_any_page_of_the_guest() {
    let config = FrontConfig { foreign: true, ..ordinary() };
    let (named, copy) = (("foreign", "foreign"), ("copy", "copy"));
    let mut machine = Machine::start();
    let plan = Plan { foreign: true, ..Plan::default() };
    let back = Back::serving(&machine, plan);
    back.ask(|_| ()); // attached
    life(&mut machine, &back, [config, ordinary()], [named, copy]);
    life(
        &mut machine,
        &back,
        [FrontConfig { queues: 2, ..config }, staging(Some(256), Some(256))],
        [named, ("staging", "staging")],
    );
    back.stop();
    machine.end();
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        life(machine, back, [config, ordinary()], [copy; 2]);
    });
}

fn each_data_length_each_direction() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        let both = ("staging", "staging");
        for (tx, rx) in [(64, 65535), (128, 4096), (256, 2048), (2048, 256), (4096, 128), (65535, 64)] {
            life(machine, back, [staging(Some(tx), Some(rx)), staging(Some(rx), Some(tx))], [both; 2]);
        }
        for len in [256, 65535] {
            let one_way = [staging(Some(len), None), staging(None, Some(len))];
            life(machine, back, one_way, [("staging", "copy"), ("copy", "staging")]);
        }
        // A guest with the extension and one without, on one back.
        life(machine, back, [staging(Some(256), Some(256)), ordinary()], [both, ("copy", "copy")]);
    });
}

fn one_or_two_channels() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, _| {
        let before = machine.broker.audit();
        for split in [false, true] {
            let ids = two_vifs(machine);
            let config = FrontConfig { split_channels: split, ..ordinary() };
            let [mut a, mut b] = ids.map(|id| Guest::connected(machine, id, config));
            let key = |name| format!("{}/{name}", ids[0].front_dir());
            assert_eq!(machine.key(&key("event-channel")).is_some(), !split);
            assert_eq!(machine.key(&key("event-channel-tx")).is_some(), split);
            assert_eq!(machine.key(&key("event-channel-rx")).is_some(), split);
            // Both ends of each, of two guests.
            assert_eq!(machine.broker.audit().channels, before.channels + if split { 8 } else { 4 });
            exchange(&mut a, &mut b, &LENGTHS);
            a.close();
            b.close();
            ids.into_iter().for_each(|id| machine.remove_vif(id));
            machine.settles(before);
        }
    });
}

fn two_queues() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        for (config, path, active) in
            [(ordinary(), "copy", None), (staging(Some(256), Some(256)), "staging", Some("1"))]
        {
            let ids = two_vifs(machine);
            let [mut a, mut b] =
                ids.map(|id| Guest::connected(machine, id, FrontConfig { queues: 2, ..config }));
            for (dir, id) in ids.map(|id| (id.front_dir(), id)) {
                assert_eq!(machine.key(&format!("{dir}/multi-queue-num-queues")).as_deref(), Some("2"));
                assert_eq!(machine.key(&format!("{dir}/tx-ring-ref")), None, "flat keys are for one queue");
                for queue in 0..2 {
                    assert!(machine.key(&format!("{dir}/queue-{queue}/rx-ring-ref")).is_some());
                    let key = format!("{}/queue-{queue}/staging-grants-active", id.back_dir());
                    assert_eq!(machine.key(&key).as_deref(), active);
                }
            }
            exchange(&mut a, &mut b, &LENGTHS);
            for id in ids {
                let queues = back.report(id).unwrap().queues;
                assert_eq!(queues.iter().map(|q| (q.0, q.2)).collect::<Vec<_>>(), [(path, path); 2]);
                assert!(queues.iter().all(|q| q.1.frames > 0), "both queues took frames: {queues:?}");
            }
            a.close();
            b.close();
            ids.into_iter().for_each(|id| machine.remove_vif(id));
        }
    });
}

/// A back that knows nothing of the extension, and one of long ago: one queue, one channel.
fn a_back_without_staging() {
    let plain = BackFeatures { staging: Offer::NONE, ..BackFeatures::default() };
    let old = BackFeatures { max_queues: 1, split_channels: false, ..plain.clone() };
    for features in [plain, old] {
        with_machine(features, PathName::Copy, |machine, back| {
            let config = FrontConfig { queues: 2, ..staging(Some(256), Some(65535)) };
            life(machine, back, [config; 2], [("copy", "copy"); 2]);
        });
    }
}

/// Front 4 -> 5 -> 6 -> 1 -> 4, with the back following, several times over one attachment.
fn a_front_comes_back() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        let before = machine.broker.audit();
        let ids = two_vifs(machine);
        let (keep, _) = machine.attach(ids[0].front); // the domain outlives its vif's drivers
        let mut steady = Guest::connected(machine, ids[1], ordinary());
        let config = [staging(Some(256), Some(256)), ordinary(), FrontConfig { queues: 2, ..ordinary() }];
        for config in config.iter().cycle().take(9) {
            let mut guest = Guest::connected(machine, ids[0], *config);
            exchange(&mut guest, &mut steady, &[64, 1514]);
            guest.close();
            assert_eq!(machine.key(&format!("{}/state", ids[0].front_dir())).as_deref(), Some("6"));
            until(|| machine.back_state(ids[0]).as_deref() == Some("6"));
            // The next driver begins where the toolstack began; the back offers again.
            machine.xs.write(&format!("{}/state", ids[0].front_dir()), "1").unwrap();
            until(|| machine.back_state(ids[0]).as_deref() == Some("2"));
        }
        assert_eq!(back.report(ids[0]).unwrap().failed, None);
        let mut last = Guest::connected(machine, ids[0], ordinary());
        exchange(&mut steady, &mut last, &[64]);
        last.close();
        steady.close();
        drop(keep);
        ids.into_iter().for_each(|id| machine.remove_vif(id));
        machine.settles(before);
    });
}

/// `online` = 0 and state 5, as `xl network-detach` does it.
fn the_toolstack_takes_a_vif_away() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        let before = machine.broker.audit();
        let ids = two_vifs(machine);
        let [mut a, mut b] = ids.map(|id| Guest::connected(machine, id, staging(Some(256), Some(256))));
        exchange(&mut a, &mut b, &[64, 1514]);
        toolstack::request_removal(&mut machine.xs, &ids[0]).unwrap();
        until(|| {
            a.front.control(Duration::from_millis(1)).unwrap();
            a.front.vif().is_closed()
        });
        until(|| machine.back_state(ids[0]).as_deref() == Some("6"));
        machine.remove_vif(ids[0]);
        until(|| back.report(ids[0]).is_none());
        // A new one of the same number, for the same domain.
        machine.make_vif(5, 0);
        let mut again = Guest::connected(machine, ids[0], ordinary());
        exchange(&mut again, &mut b, &[64, 1514]);
        again.close();
        b.close();
        drop(a);
        ids.into_iter().for_each(|id| machine.remove_vif(id));
        machine.settles(before);
    });
}

/// The front closed before the toolstack asked, or is gone: a toolstack that checks first leaves 6
/// as it is (libxl), another writes 5 over it, and 6 must be said again, or that one waits until it
/// loses its patience.
fn a_closed_vif_is_taken_away_at_once() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, _back| {
        let before = machine.broker.audit();
        let ids = two_vifs(machine);
        for (id, stays) in [(ids[0], true), (ids[1], false)] {
            // else the domain ends with its driver
            let keep = stays.then(|| machine.attach(id.front));
            Guest::connected(machine, id, ordinary()).close();
            until(|| machine.back_state(id).as_deref() == Some("6"));
            machine
                .xs
                .transaction(|t| {
                    t.write(&format!("{}/online", id.back_dir()), "0")?;
                    t.write(&format!("{}/state", id.back_dir()), "5")
                })
                .unwrap();
            until(|| machine.back_state(id).as_deref() == Some("6"));
            toolstack::request_removal(&mut machine.xs, &id).unwrap();
            assert_eq!(machine.back_state(id).as_deref(), Some("6"));
            drop(keep);
            machine.remove_vif(id);
        }
        machine.settles(before);
    });
}

/// By hand, or by a script: the directory comes first, its permissions later, `state` last. Until
/// then it is no vif, and nothing is written there that the guest could not read.
fn a_directory_that_is_written_key_by_key() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        let id = DeviceId { class: Class::VIF, front: DomId(5), back: BACK, handle: 3 };
        machine.xs.write(&format!("{}/state", id.front_dir()), "1").unwrap();
        machine.xs.write(&id.back_dir(), "").unwrap();
        let settled = |back: &Back| back.ask(|b| drop(b.control()));
        settled(back);
        assert!(back.report(id).is_none(), "a directory without a state was taken for a vif");
        machine.xs.write(&format!("{}/online", id.back_dir()), "1").unwrap();
        settled(back);
        assert_eq!(machine.back_state(id), None);
        let reader = Permission::new(Access::Read, id.front);
        machine.xs.set_perms(&id.back_dir(), &[Permission::new(Access::None, BACK), reader]).unwrap();
        machine.xs.write(&format!("{}/frontend", id.back_dir()), id.front_dir()).unwrap();
        machine.xs.write(&format!("{}/state", id.back_dir()), "1").unwrap();
        until(|| machine.back_state(id).as_deref() == Some("2"));
        let perms = machine.xs.get_perms(&format!("{}/feature-sg", id.back_dir())).unwrap();
        assert!(perms.contains(&reader), "the guest may not read it: {perms:?}");
        machine.remove_vif(id);
        until(|| back.report(id).is_none());
    });
}

/// A remote side that cannot make anything.
struct NoTap;

impl RemoteSide for NoTap {}
impl PortProvider for NoTap {
    fn found(&mut self, _: &DeviceId, _: &HotplugConfig, _: bool) -> Result<Notes, String> {
        Err("no tap".into())
    }
    fn connected(&mut self, _: &DeviceId, _: usize, _: Offloads) -> Result<Ports, String> {
        Ok(Vec::new())
    }
}

/// A port provider that records the vif's state at the time when its ports were made.
struct Asks(Store, Arc<Mutex<Vec<u8>>>);

impl RemoteSide for Asks {}
impl PortProvider for Asks {
    fn connected(&mut self, id: &DeviceId, _: usize, _: Offloads) -> Result<Ports, String> {
        *self.1.lock().unwrap() = self.0.read(&format!("{}/state", id.back_dir())).unwrap();
        Err("nothing is behind it".into())
    }
}

/// Frames that another worker has for a guest that just read 4 find its port.
fn ports_are_made_before_a_guest_is_notified() {
    let mut machine = Machine::start();
    machine.guest_domain(5);
    let id = machine.make_vif(5, 0);
    let state = Arc::new(Mutex::new(Vec::new()));
    let (platform, xs) = machine.attach(BACK);
    let (second, asks) = machine.attach(BACK);
    let net = Net::new(NetConfig::default(), Box::new(Asks(asks, Arc::clone(&state))));
    let mut back = Backend::new(platform, xs, BackendConfig::default(), vec![Box::new(net)]).unwrap();
    let mut guest = RawGuest::attach(&machine, id);
    back.control().unwrap();
    guest.connect(&guest.keys());
    until(|| {
        back.control().unwrap();
        machine.back_state(id).as_deref() == Some("4")
    });
    assert_eq!(*state.lock().unwrap(), b"2");
    drop(guest);
    machine.remove_vif(id);
    until(|| {
        back.control().unwrap();
        back.reports().is_empty()
    });
    drop((back, second));
    machine.end();
}

/// Its guest is connected, and a netfront does not come back from a close: the next backend finds
/// it so, and serves it.
fn a_live_vif_without_a_far_side_stays_as_it_is() {
    let mut machine = Machine::start();
    let ids = two_vifs(&mut machine);
    let back = Back::plain(&machine);
    let [mut a, mut b] = ids.map(|id| Guest::connected(&machine, id, ordinary()));
    back.ask(|backend| backend.detach());
    drop(back);
    {
        let (platform, xs) = machine.attach(BACK);
        let net = Net::new(NetConfig::default(), Box::new(NoTap));
        let config = BackendConfig { recovery: Some(Box::new(BrokerRecovery)), ..BackendConfig::default() };
        let mut second = Backend::new(platform, xs, config, vec![Box::new(net)]).unwrap();
        // More than a second: that is how long a vif is tried again.
        for _ in 0..150 {
            second.control().unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(second.reports().is_empty());
        assert_eq!(ids.map(|id| machine.back_state(id)), [Some("4".into()), Some("4".into())]);
        assert_eq!(machine.error_node(ids[0]), None);
    }
    let back = Back::plain(&machine);
    exchange(&mut a, &mut b, &[64, 1514]);
    a.close();
    b.close();
    ids.into_iter().for_each(|id| machine.remove_vif(id));
    until(|| back.ask(|b| b.reports().is_empty()));
    // The last one keeps nothing for a successor, and so forgets nothing either.
    back.ask(|b| b.platform().persisted().iter().for_each(|name| assert!(b.platform().forget(name))));
    back.stop();
    machine.end();
}

/// No one else does: the toolstack's daemon is not there, and xl cleans its own domain alone.
fn a_driver_domain_takes_the_directories_away() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        back.ask(|backend| backend.config_mut().removes = true);
        let before = machine.broker.audit();
        let ids = two_vifs(machine);
        let guests = ids.map(|id| Guest::connected(machine, id, ordinary()));
        let dir = |id: DeviceId| id.back_dir();
        // One is destroyed: its own directory goes with it. The other is detached.
        let [a, mut b] = guests;
        drop(a);
        let _ = machine.xs.rm(&ids[0].front_dir()); // gone with the domain, or not yet
        until(|| machine.key(&dir(ids[0])).is_none());
        toolstack::request_removal(&mut machine.xs, &ids[1]).unwrap();
        until(|| {
            b.front.control(Duration::from_millis(1)).unwrap();
            b.front.vif().is_closed()
        });
        until(|| machine.key(&dir(ids[1])).is_none() && back.ask(|b| b.reports().is_empty()));
        drop(b);
        ids.into_iter().for_each(|id| machine.remove_vif(id));
        machine.settles(before);
    });
}

/// A script that runs behind a vif that is gone: its line is one of that vif's faults, and none is
/// lost without a count.
fn what_fails_when_a_vif_is_gone_is_logged_at_its_expense() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        let ids = two_vifs(machine);
        let guests = ids.map(|id| machine.attach(id.front));
        until(|| ids.iter().all(|id| back.report(*id).is_some()));
        log_lines::take();
        // While it is there, too, as many as may be written at once: the one more is not.
        (0..LINES_PER_DEVICE).for_each(|n| back.fails(ids[1], &format!("failure {n}."), false));
        for id in ids {
            back.begins_to_end(id);
            machine.remove_vif(id);
            until(|| back.report(id).is_none());
        }
        assert_eq!(log_lines::with("more line(s)"), [""; 0], "it may have more to say");
        for id in ids {
            back.fails(id, "the script failed", true);
        }
        let lines = log_lines::take();
        let [five, six] = ids.map(|id| {
            lines.iter().filter(|l| l.contains(&format!(" {id}: "))).map(String::as_str).collect::<Vec<_>>()
        });
        assert_eq!(
            five,
            [format!("INFO: {}: removed", ids[0]), format!("WARN: {}: the script failed", ids[0])]
        );
        let faults = LINES_PER_DEVICE as usize;
        assert_eq!(six.len(), faults + 2, "{six:?}");
        assert!(six[faults - 1].contains("(from here on one such line of this vif"), "{six:?}");
        assert!(six[faults].ends_with("removed"), "{six:?}");
        assert!(six[faults + 1].ends_with("1 more line(s) of this vif were not written"), "{six:?}");
        // One whose end the backend does not live to see.
        let id = machine.make_vif(5, 1);
        until(|| back.report(id).is_some());
        back.begins_to_end(id);
        machine.remove_vif(id);
        until(|| back.report(id).is_none());
        back.ask(|backend| backend.detach());
        assert_eq!(log_lines::with(&format!("{id}: exiting before")).len(), 1);
        drop(guests);
    });
}

/// Vifs come and go beside one, which is checked each time: not at its expense.
fn what_the_toolstack_does_costs_no_front_its_hearing() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        let ids = two_vifs(machine);
        let guests = ids.map(|id| Guest::connected(machine, id, ordinary()));
        for _ in 0..150 {
            let other = machine.make_vif(5, 7);
            until(|| back.report(other).is_some());
            machine.remove_vif(other);
            until(|| back.report(other).is_none());
        }
        assert!(ids.iter().all(|id| back.report(*id).unwrap().throttled == 0));
        drop(guests);
        ids.into_iter().for_each(|id| machine.remove_vif(id));
    });
}

/// A script that undoes the hotplug finds the vif's directory.
fn a_directory_stays_until_its_vif_is_unplugged() {
    with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
        back.ask(|backend| {
            backend.config_mut().removes = true;
            net(backend).config.hotplug = Hotplug::Own;
        });
        machine.guest_domain(5);
        let id = machine.make_vif(5, 0);
        let _keep = machine.attach(DomId(5));
        let guest = Guest::connected(machine, id, ordinary());
        assert_eq!(back.holds_plugs(true), 0);
        drop(guest);
        machine.xs.rm(&id.front_dir()).unwrap();
        until(|| back.holds_plugs(true) > 2);
        assert!(machine.key(&id.back_dir()).is_some());
        // The toolstack is in a hurry, and makes another one there: that one is plugged in and
        // served.
        machine.make_vif(5, 0);
        let asked = back.holds_plugs(true);
        until(|| back.holds_plugs(true) > asked + 2);
        assert_eq!(machine.back_state(id).as_deref(), Some("1"));
        back.holds_plugs(false);
        let guest = Guest::connected(machine, id, ordinary());
        assert_eq!(machine.key(&format!("{}/hotplug-status", id.back_dir())).as_deref(), Some("connected"));
        let asked = back.holds_plugs(false);
        drop(guest);
        machine.xs.rm(&id.front_dir()).unwrap();
        until(|| machine.key(&id.back_dir()).is_none() && back.ask(|b| b.reports().is_empty()));
        assert!(back.holds_plugs(false) > asked);
        machine.remove_vif(id);
    });
}

/// The backend closes all vifs and ends; fronts that come back are served by its successor.
fn a_backend_ends_and_another_serves() {
    let mut machine = Machine::start();
    let ids = two_vifs(&mut machine);
    let mut guests = ids.map(|id| Guest::attach(&machine, id, staging(Some(256), Some(256)), true));
    let attached = machine.broker.audit();
    let mut kept = 0;
    for round in 0..2 {
        let back = Back::plain(&machine);
        for guest in &mut guests {
            guest.connect();
        }
        let [a, b] = &mut guests;
        exchange(a, b, &LENGTHS);
        back.stop();
        until(|| {
            guests.iter_mut().all(|guest| {
                guest.front.control(Duration::from_millis(1)).unwrap();
                !guest.front.vif().is_live()
            })
        });
        // The grants are those that the next connection has again.
        if round == 0 {
            kept = machine.broker.audit().grants;
            assert!((1..=2 * guests[0].front.vif().kept_pages()).contains(&kept), "{kept} grants");
        }
        machine.settles(Audit { grants: kept, ..attached });
    }
    drop(guests);
    ids.into_iter().for_each(|id| machine.remove_vif(id));
    machine.end();
}

/// A front that goes on saying 4 on a vif that was closed for a fault gets nothing from the next
/// backend either.
fn what_a_predecessor_closed_stays_closed() {
    let mut machine = Machine::start();
    machine.guest_domain(5);
    let id = machine.make_vif(5, 0);
    let back = Back::plain(&machine);
    let mut guest = RawGuest::attach(&machine, id);
    guest.connect_honestly();
    guest.tx.publish_index(1000);
    guest.notify();
    guest.wait_back(&[XenbusState::Closed]);
    let reported = machine.error_node(id).unwrap();
    drop(back); // without a word to the store

    let back = Back::plain(&machine);
    until(|| back.report(id).is_some());
    // The front's state is an event: it was checked.
    guest.set_state(XenbusState::Connected);
    let other = machine.make_vif(5, 1);
    let mut honest = RawGuest::attach(&machine, other);
    honest.connect_honestly();
    let report = back.report(id).unwrap();
    assert_eq!((report.state, report.device.failed), (XenbusState::Closed, Some(reported)));
    assert_eq!(machine.back_state(id).as_deref(), Some("6"));

    guest.set_state(XenbusState::Closing);
    guest.set_state(XenbusState::Closed);
    guest.set_state(XenbusState::Initialising);
    let mut again = RawGuest::attach(&machine, id);
    again.connect_honestly();
    again.play(&[Slot::Data(again.request(0, 64))]);
    assert_eq!(again.answers(), [RSP_OKAY]);
    assert_eq!(machine.error_node(id), None, "what is mended is not reported any more");
    drop((guest, honest, again));
    machine.remove_vif(id);
    machine.remove_vif(other);
    until(|| back.report(id).is_none() && back.report(other).is_none());
    back.stop();
    machine.end();
}

/// Frames that wait for a guest's slots when the backend is asked to stop are delivered while there
/// are slots, and the rest is counted.
fn an_orderly_end_delivers_what_there_are_slots_for() {
    /// More than a ring has slots.
    const SENT: u64 = 300;
    for (closes, posted) in [(false, true), (false, false), (true, true), (true, false)] {
        with_machine(BackFeatures::default(), PathName::Copy, |machine, back| {
            let ids = two_vifs(machine);
            let [mut a, mut b] = ids.map(|id| Guest::connected(machine, id, ordinary()));
            // The switch knows where `b` is.
            b.send(0, a.mac(), 64, 0);
            a.next_frame();
            for seq in 0..SENT {
                a.send(0, b.mac(), 64, seq);
            }
            until(|| back.report(ids[0]).unwrap().queues[0].1.frames == SENT);
            until(|| back.report(ids[1]).unwrap().queues[0].3.frames == 256);
            // The back's thread stands still while `b` takes some frames and posts their slots, or
            // does not.
            let (go, gone) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
            let (receive, received) = (Arc::clone(&go), Arc::clone(&gone));
            let reported = back.send_job(move |backend| {
                received.wait();
                receive.wait();
                if closes { backend.close_all() } else { backend.detach() }
            });
            gone.wait();
            let mut came = Vec::new();
            while posted && came.len() < 128 {
                came.extend(b.take().into_iter().map(|(seq, _)| seq));
            }
            go.wait();
            let mut drained = None;
            until(|| {
                // Fronts that follow, and one that does not.
                a.front.control(Duration::ZERO).unwrap();
                if posted {
                    b.front.control(Duration::ZERO).unwrap();
                }
                drained = reported.try_recv().ok();
                drained.is_some()
            });
            assert_eq!(machine.back_state(ids[1]).as_deref(), Some(if closes { "6" } else { "4" }));
            let waited = SENT as usize - 256;
            let expected = if posted {
                Drained { delivered: waited, lost: 0 }
            } else {
                Drained { delivered: 0, lost: waited }
            };
            assert_eq!(drained, Some(expected));
            drop((a, b));
            ids.into_iter().for_each(|id| machine.remove_vif(id));
        });
    }
}
