//! A backend's first frames: frames that guests sent while no backend ran reach their receivers,
//! whichever vif the successor takes over first.
//!
//! ```text
//!   guest 5 --32 frames--> ring      | back: detached        | successor: 5 is served by a worker,
//!   guest 6 <--------------------------------------------------- 6 is not had yet (Obstacle)
//! ```
//! The obstacle stays until guest 5's frames are answered, so a worker has served it before vif 6
//! is had, always.

use pregrant::net::front::FrontConfig;
use pregrant::xenbus::DeviceId;
use pregrant_host::drivers::Placement;
use pregrant_test_machine::guest::{Guest, exchange, ordinary};
use pregrant_test_machine::log_lines;
use pregrant_test_machine::machine::{Back, Kind, Machine, Obstacle, Plan, Test, Workers, until};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub const TESTS: &[Test] = &[
    ("no_frame_is_lost_while_another_vif_is_taken_up", || no_frame_is_lost(Kind::Slow)),
    ("no_frame_is_lost_while_another_vif_is_held", || no_frame_is_lost(Kind::Held)),
    ("what_waits_for_a_vif_that_another_has_is_reported", what_waits_for_a_vif_that_another_has_is_reported),
];

const TWO: Workers = Some((2, Placement::Balanced));

/// Frames that wait: fewer than a ring has slots, and many fewer than a queue of the switch has
/// room for.
const WAITING: u64 = 32;

/// Two guests that know each other, and no back any more.
struct Orphans {
    machine: Machine,
    guests: [Guest; 2],
}

impl Orphans {
    fn leave() -> Self {
        let mut machine = Machine::start();
        let back = Back::serving(&machine, Plan { workers: TWO, recovers: true, ..Plan::default() });
        let configs = [ordinary(), FrontConfig { queues: 2, ..ordinary() }];
        let mut guests = [(5, configs[0]), (6, configs[1])].map(|(domid, config)| {
            machine.guest_domain(domid);
            let id = machine.make_vif(domid, 0);
            let guest = Guest::connected(&machine, id, config);
            back.ask(|_| ()); // its port is there
            guest
        });
        let [five, six] = &mut guests;
        exchange(five, six, &[64, 1514]);
        assert_eq!(back.ask(|backend| backend.detach()).lost, 0);
        drop(back);
        Self { machine, guests }
    }

    fn ids(&self) -> [DeviceId; 2] {
        self.guests.each_ref().map(Guest::id)
    }

    /// Guest 5 sends frames to 6, and no one is there.
    fn send(&mut self) {
        let [five, six] = &mut self.guests;
        (0..WAITING).for_each(|n| five.send(0, six.mac(), [64, 700, 1514, 5000][n as usize % 4], n));
    }

    /// Starts a successor, with an obstacle to taking over vif 6.
    fn succeed(&self, kind: Kind) -> (Back, Arc<Obstacle>) {
        let obstacle = Obstacle::new(self.ids()[1], kind);
        let in_the_way = Some(Arc::clone(&obstacle));
        let plan = Plan { workers: TWO, recovers: true, obstacle: in_the_way, ..Plan::default() };
        (Back::serving(&self.machine, plan), obstacle)
    }

    /// All that guest 5 sent is answered.
    fn answered(&mut self) {
        let front = &mut self.guests[0].front;
        until(|| {
            front.reclaim(0, 1).unwrap();
            front.vif().in_flight(0) == 0
        });
    }

    fn end(self, back: Back) {
        let Self { mut machine, guests } = self;
        let ids = guests.each_ref().map(Guest::id);
        guests.into_iter().for_each(Guest::close);
        ids.into_iter().for_each(|id| machine.remove_vif(id));
        until(|| back.ask(|backend| backend.reports().is_empty()));
        back.stop();
        machine.end();
    }
}

fn no_frame_is_lost(kind: Kind) {
    let mut orphans = Orphans::leave();
    orphans.send();
    let (back, obstacle) = orphans.succeed(kind);
    orphans.answered();
    obstacle.gone.store(true, Ordering::SeqCst);
    let ids = orphans.ids();
    until(|| ids.iter().all(|id| back.report(*id).is_some_and(|report| report.device.reattached)));
    if kind == Kind::Slow {
        // A tap's link comes up with its place, and a frame that its bridge has for it before is
        // dropped.
        let steps = obstacle.steps.lock().unwrap().clone();
        let [a, b] = ids;
        assert_eq!(steps, [("found", a), ("found", b), ("connected", a), ("connected", b)]);
    }
    // One more, behind which nothing that arrives at all is to come.
    let [five, six] = &mut orphans.guests;
    five.send(0, six.mac(), 64, WAITING);
    let mut got = Vec::new();
    while got.last() != Some(&WAITING) {
        got.extend(six.take().iter().map(|(n, _)| *n));
    }
    assert_eq!(got, (0..=WAITING).collect::<Vec<_>>());
    for id in ids {
        let drops = back.report(id).unwrap().port_drops;
        assert!(!drops.is_empty() && drops.iter().all(|drop| drop.frames == 0), "{drops:?}");
    }
    exchange(five, six, &[64, 1514]);
    orphans.end(back);
}

/// Frames for a vif that cannot be taken over are not kept: they are reported, and later ones are
/// counted.
fn what_waits_for_a_vif_that_another_has_is_reported() {
    let mut orphans = Orphans::leave();
    log_lines::take();
    orphans.send();
    let (back, obstacle) = orphans.succeed(Kind::Owned);
    orphans.answered();
    let [five, six] = orphans.ids();
    let no_port = || {
        let drops = back.report(five).unwrap().port_drops;
        drops.iter().find(|drop| drop.reason == "no_port").unwrap().frames
    };
    assert_eq!(no_port(), 0, "they wait");
    until(|| !log_lines::with("not served: another has it").is_empty());
    let reported = format!("not re-attached: {WAITING} frame(s) queued for the guest are lost");
    until(|| !log_lines::with(&reported).is_empty());
    orphans.send();
    orphans.answered();
    assert_eq!(no_port(), WAITING);
    // It becomes free, and the toolstack touches it.
    obstacle.gone.store(true, Ordering::SeqCst);
    orphans.machine.xs.write(&format!("{}/state", six.back_dir()), "4").unwrap();
    until(|| back.report(six).is_some_and(|report| report.device.reattached));
    let [five, six] = &mut orphans.guests;
    exchange(five, six, &[64, 1514]);
    assert_eq!(log_lines::with(&reported).len(), 1);
    orphans.end(back);
}
