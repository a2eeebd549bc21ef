//! Worker threads: queues go from one to another under traffic while guests come, break rules and
//! die, and every frame arrives once and in its order; what is a vif's or a guest's holds over all
//! workers; what cannot be served is closed with a line.
//!
//! Waits are unbounded here: a wake-up, or a command to a worker, that is lost ends the process or
//! hangs the test.

use pregrant::net::features::BackFeatures;
use pregrant::net::front::FrontConfig;
use pregrant::net::headers::MacAddr;
use pregrant::platform::ReadySet;
use pregrant::port::Arena;
use pregrant::units::EvtchnPort;
use pregrant::wire::netif::RSP_OKAY;
use pregrant::xenbus::{Class, DeviceId, XenbusState};
use pregrant::{DomId, PlatformError};
use pregrant_host::UnixTransport;
use pregrant_host::drivers::Mode;
use pregrant_host::drivers::Placement;
use pregrant_host::drivers::RxContext;
use pregrant_host::drivers::device_class::{RingFault, ServedQueue};
use pregrant_host::drivers::worker_pool::placement::Carried;
use pregrant_host::drivers::worker_pool::waker::Waker;
use pregrant_host::drivers::worker_pool::{SpawnWorker, Threads, WorkerPool, thread};
use pregrant_host::drivers::worker_queues::{Returned, Why, WorkerQueues};
use pregrant_loopback::{Broker, DomainSpec, Hooks, Loopback};
use pregrant_test_machine::guest::{Guest, exchange, ordinary, staging};
use pregrant_test_machine::log_lines;
use pregrant_test_machine::machine::{self, Back, Machine, Plan, Test, Workers, until};
use pregrant_test_machine::raw_guest::RawGuest;
use pregrant_testkit::model_front::Slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    ("queues_move_between_two_workers", || queues_move(Some((2, Placement::Balanced)), 1)),
    ("queues_move_between_three_workers", || queues_move(Some((3, Placement::Balanced)), 2)),
    ("each_vif_has_a_worker_of_its_own", || queues_move(Some((1, Placement::Own)), 3)),
    ("a_rate_is_the_whole_vif_s", a_rate_is_the_whole_vif_s),
    ("pages_are_bounded_over_all_workers", pages_are_bounded_over_all_workers),
    ("a_successor_takes_up_what_workers_had", a_successor_takes_up_what_workers_had),
    ("a_channel_that_is_lost_on_the_way_closes_its_vif", a_channel_that_is_lost_on_the_way_closes_its_vif),
    ("no_command_is_lost", no_command_is_lost),
    ("who_is_left_is_placed_evenly", who_is_left_is_placed_evenly),
    ("a_queue_that_a_worker_cannot_have_comes_back", a_queue_that_a_worker_cannot_have_comes_back),
    ("queues_without_any_worker_come_back", queues_without_any_worker_come_back),
    ("a_worker_that_only_polls_arms_nothing", a_worker_that_only_polls_arms_nothing),
    ("events_that_the_kernel_dropped_are_made_good", events_that_the_kernel_dropped_are_made_good),
];

const TWO: Workers = Some((2, Placement::Balanced));

/// Pseudo-random numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % sides
    }
}

/// A back with these workers, for vifs of up to eight queues.
fn back(machine: &Machine, workers: Workers) -> Back {
    serving(machine, workers, false)
}

/// A backend that resumes what a predecessor left, or not.
fn serving(machine: &Machine, workers: Workers, recovers: bool) -> Back {
    let features = BackFeatures { max_queues: 8, ..BackFeatures::default() };
    let back = Back::serving(machine, Plan { features, workers, recovers, ..Plan::default() });
    back.ask(|_| ()); // attached
    back
}

/// The load of each worker, once there are `queues` in all: none is on its way.
fn carried(back: &Back, queues: usize) -> Vec<Carried> {
    let mut carried = Vec::new();
    until(|| {
        carried = back.ask(|backend| backend.carried());
        carried.iter().map(Carried::total).sum::<usize>() == queues
    });
    carried
}

/// The worker of each queue of a vif.
fn places(carried: &[Carried], id: &DeviceId) -> Vec<usize> {
    carried.iter().map(|worker| worker.of(id)).collect()
}

/// Frames of one guest that may be on their way: many fewer than any queue between has room for, so
/// that none may be lost.
const WINDOW: u64 = 48;

#[derive(Default)]
struct Station {
    sent: AtomicU64,
    got: AtomicU64,
}

/// Guests in threads of their own; each sends numbered frames to the next, on all of its queues in
/// turns.
struct Circle {
    ids: Vec<DeviceId>,
    queues: usize,
    stations: Arc<Vec<Station>>,
    flows: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Circle {
    /// Starts guests with this many queues each, from domain 11 on.
    fn start(machine: &mut Machine, back: &Back, configs: &[FrontConfig]) -> Self {
        let n = configs.len();
        let stations: Arc<Vec<Station>> = Arc::new((0..n).map(|_| Station::default()).collect());
        let (flows, over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let ids: Vec<_> = (11..)
            .take(n)
            .map(|domid| {
                machine.guest_domain(domid);
                machine.make_vif(domid, 0)
            })
            .collect();
        let threads = (0..n)
            .map(|me| {
                let (id, next, config) = (ids[me], ids[(me + 1) % n], configs[me]);
                let connection = machine.broker.connect().unwrap();
                let (stations, flows, over) = (Arc::clone(&stations), Arc::clone(&flows), Arc::clone(&over));
                std::thread::spawn(move || {
                    let platform = Loopback::attach_fd(connection, id.front).unwrap();
                    let fd = platform.take_store_fd().unwrap();
                    let xs = machine::Store::new(UnixTransport::new(fd).unwrap());
                    let mut guest = Guest::over(platform, xs, id, config, false);
                    guest.connect();
                    let to = machine::mac(next.front.0, next.handle);
                    play(&mut guest, to, (&stations[me], &stations[(me + 1) % n]), &flows, &over);
                    guest.close();
                })
            })
            .collect();
        let queues = configs.iter().map(|config| config.queues as usize).sum();
        let circle = Self { ids, queues, stations, flows, over, threads };
        until(|| {
            circle
                .ids
                .iter()
                .all(|id| back.report(*id).is_some_and(|report| report.state == XenbusState::Connected))
        });
        circle.go(true);
        circle
    }

    fn go(&self, flows: bool) {
        self.flows.store(flows, Ordering::SeqCst);
    }

    /// Returns once each guest has got more frames after the call.
    fn flows(&self) {
        let got = || self.stations.iter().map(|s| s.got.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = got();
        until(|| {
            assert!(!self.threads.iter().any(JoinHandle::is_finished), "a guest's thread ended: see above");
            got().iter().zip(&before).all(|(now, before)| *now > before + 8)
        });
    }

    /// Waits until nothing is in flight any more.
    fn rest(&self) {
        self.go(false);
        until(|| {
            let load = |n: &AtomicU64| n.load(Ordering::SeqCst);
            let sent: u64 = self.stations.iter().map(|s| load(&s.sent)).sum();
            self.stations.iter().map(|s| load(&s.got)).sum::<u64>() == sent
        });
    }

    /// Checks that no vif failed, and that no frame was dropped anywhere.
    fn assert_unharmed(&self, back: &Back) {
        for id in &self.ids {
            let report = back.report(*id).unwrap();
            assert_eq!((&report.device.failed, report.stalls), (&None, 0));
            for (_, tx, _, rx) in &report.queues {
                assert_eq!((tx.errors, tx.dropped, rx.errors, rx.dropped, rx.expired), (0, 0, 0, 0, 0));
            }
            assert!(report.port_drops.iter().all(|drop| drop.frames == 0), "{:?}", report.port_drops);
        }
    }

    fn end(mut self, machine: &mut Machine) {
        self.rest();
        self.over.store(true, Ordering::SeqCst);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        self.ids.iter().for_each(|id| machine.remove_vif(*id));
    }
}

/// Runs one of several guests, each of which sends to the next. Checks that no frame that it
/// receives is lost, repeated or out of order.
fn play(
    guest: &mut Guest,
    to: MacAddr,
    (own, next): (&Station, &Station),
    flows: &AtomicBool,
    over: &AtomicBool,
) {
    let mut last = [0u64; 8];
    let mut numbers = [0u64; 8];
    let mut turn = 0usize;
    while !over.load(Ordering::SeqCst) {
        let mut moved = false;
        for (seq, _) in guest.take() {
            let (queue, number) = ((seq >> 32) as usize, seq & 0xFFFF_FFFF);
            assert_eq!(
                number,
                last[queue] + 1,
                "queue {queue} of the sender: lost, repeated or out of order"
            );
            last[queue] = number;
            own.got.fetch_add(1, Ordering::SeqCst);
            moved = true;
        }
        let on_the_way = own.sent.load(Ordering::SeqCst) - next.got.load(Ordering::SeqCst);
        if flows.load(Ordering::SeqCst) && on_the_way < WINDOW {
            turn += 1;
            let queue = turn % guest.front.vif().nr_queues();
            numbers[queue] += 1;
            own.sent.fetch_add(1, Ordering::SeqCst);
            guest.send(queue, to, [64, 700, 1514, 5000][turn % 4], (queue as u64) << 32 | numbers[queue]);
            moved = true;
        }
        if !moved {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A guest that stays for a while, and how it ends.
enum Visitor {
    Good(Box<Guest>),
    Liar(Box<RawGuest>),
}

impl Visitor {
    fn id(&self) -> DeviceId {
        match self {
            Self::Good(guest) => guest.id(),
            Self::Liar(guest) => guest.device.id(),
        }
    }
}

/// The leaving guest: mostly one at the worker that carries least, so that the others' queues
/// have to move.
fn leaves(visitors: &[(Visitor, usize)], carried: &[Carried], dice: &mut Dice) -> usize {
    let least = carried.iter().min_by_key(|worker| worker.total()).unwrap();
    let fits = |at: &usize| least.of(&visitors[*at].0.id()) == visitors[*at].1;
    (0..visitors.len()).find(fits).unwrap_or_else(|| dice.roll(visitors.len()))
}

fn queues_move(workers: Workers, seed: u64) {
    const TURNS: usize = 40;
    let own = workers.is_some_and(|(_, place)| place == Placement::Own);
    println!("  seed {seed}");
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15 ^ seed);
    let mut machine = Machine::start();
    let back = back(&machine, workers);
    let persistent = FrontConfig { queues: 8, persistent: true, ..ordinary() };
    let configs = [ordinary(), FrontConfig { queues: 3, ..staging(Some(256), Some(256)) }, persistent];
    let circle = Circle::start(&mut machine, &back, &configs);
    circle.flows();
    let (mut visitors, mut queues) = (Vec::<(Visitor, usize)>::new(), circle.queues);
    let mut before = carried(&back, queues);
    let (mut moves, mut came, mut grows) = (0, 0, true);
    for turn in 0..TURNS {
        // They come, and go again, several at a time.
        grows = if grows { visitors.len() < 6 } else { visitors.len() < 2 };
        if grows {
            let domid = 100 + came;
            came += 1;
            machine.guest_domain(domid);
            let id = machine.make_vif(domid, 0);
            let n = if dice.roll(4) > 0 { 1 } else { 1 + dice.roll(8) };
            if dice.roll(4) == 0 {
                let mut guest = RawGuest::attach(&machine, id);
                guest.connect_honestly();
                visitors.push((Visitor::Liar(Box::new(guest)), 1));
                queues += 1;
            } else {
                let config = FrontConfig { queues: n as u32, split_channels: turn % 2 == 0, ..ordinary() };
                let mut guest = Guest::connected(&machine, id, config);
                back.ask(|_| ()); // its port is there
                if let Some((Visitor::Good(other), _)) = visitors.last_mut() {
                    exchange(&mut guest, other, &[64]);
                }
                visitors.push((Visitor::Good(Box::new(guest)), n));
                queues += n;
            }
        } else {
            let (visitor, n) = visitors.swap_remove(leaves(&visitors, &before, &mut dice));
            let id = visitor.id();
            match visitor {
                Visitor::Good(guest) => match dice.roll(3) {
                    0 => guest.close(),
                    // Its domain ends with it.
                    1 => drop(guest),
                    _ => {
                        machine.remove_vif(id);
                        until(|| back.report(id).is_none());
                    }
                },
                Visitor::Liar(mut guest) => {
                    guest.tx.publish_index(guest.tx.next_index() + 257);
                    guest.notify();
                    guest.wait_back(&[XenbusState::Closed]);
                    until(|| back.report(id).is_some_and(|report| report.device.failed.is_some()));
                }
            }
            queues -= n;
            carried(&back, queues);
            if back.report(id).is_some() {
                machine.remove_vif(id);
                until(|| back.report(id).is_none());
            }
        }
        circle.flows();
        let now = carried(&back, queues);
        if own {
            assert_eq!(now.len(), 3 + visitors.len(), "a worker for each vif");
            assert!(now.iter().all(|worker| worker.queues.len() == 1), "{now:?}");
        } else {
            let visiting = visitors.iter().map(|(visitor, _)| visitor.id());
            let moved = |id: &DeviceId| {
                let (before, now) = (places(&before, id), places(&now, id));
                before.iter().sum::<usize>() == now.iter().sum::<usize>() && before != now
            };
            moves += circle.ids.iter().copied().chain(visiting).filter(moved).count();
        }
        before = now;
    }
    let sent: u64 = circle.stations.iter().map(|s| s.sent.load(Ordering::Relaxed)).sum();
    println!("  {came} visitors, {moves} times a vif's queues moved, under traffic of {sent} frames");
    assert!(moves > 5 || own, "{moves} moves");
    circle.rest();
    circle.assert_unharmed(&back);
    for (visitor, _) in visitors {
        let id = visitor.id();
        drop(visitor);
        machine.remove_vif(id);
    }
    circle.end(&mut machine);
    until(|| back.ask(|backend| backend.reports().is_empty()));
    back.stop();
    machine.end();
}

/// Four queues on two workers have one account.
fn a_rate_is_the_whole_vif_s() {
    const WINDOW: Duration = Duration::from_millis(2);
    const BYTES: u64 = 20_000;
    const EACH: u64 = 150;
    let mut machine = Machine::start();
    let back = back(&machine, TWO);
    machine.guest_domain(5);
    let id = machine.make_vif(5, 0);
    let mut guest = Guest::connected(&machine, id, FrontConfig { queues: 4, ..ordinary() });
    assert_eq!(places(&carried(&back, 4), &id), [2, 2]);
    machine.xs.write(&format!("{}/rate", id.back_dir()), format!("{BYTES},{}", WINDOW.as_micros())).unwrap();
    // It is read once somebody has to wait.
    let mut seq = 0;
    let mut send = |guest: &mut Guest, n: u64| {
        for _ in 0..n {
            for queue in 0..4 {
                guest.send(queue, machine::mac(9, 0), 1000, seq);
                seq += 1;
            }
        }
        until(|| {
            (0..4)
                .all(|queue| guest.front.reclaim(queue, 1).is_ok() && guest.front.vif().in_flight(queue) == 0)
        });
    };
    until(|| {
        send(&mut guest, 10);
        back.report(id).unwrap().credit_waits > 0
    });
    let began = Instant::now();
    send(&mut guest, EACH);
    let windows = began.elapsed().as_micros() as u64 / WINDOW.as_micros() as u64 + 2;
    // The credit that a vif may save up: the longest frame always passes one day.
    let most = windows * BYTES + 128 * 1024;
    assert!(4 * EACH * 1000 <= most, "{} bytes in {windows} windows", 4 * EACH * 1000);
    let report = back.report(id).unwrap();
    assert!(report.queues.iter().all(|(_, tx, ..)| tx.frames >= EACH), "each queue has had its part");
    guest.close();
    machine.remove_vif(id);
    until(|| back.report(id).is_none());
    back.stop();
    machine.end();
}

/// Pages that a guest's idle vif keeps mapped give way, in another worker's thread, when its other
/// vif needs them.
fn pages_are_bounded_over_all_workers() {
    let mut machine = Machine::start();
    let back = back(&machine, TWO);
    machine.guest_domain(5);
    let keep = machine.attach(DomId(5));
    let calm = machine.broker.audit();
    let ids = [0, 1].map(|handle| machine.make_vif(5, handle));
    let config = FrontConfig { queues: 4, persistent: true, ..ordinary() };
    // Eight rings, and four buffers for each direction of each queue; a vif may come to need many
    // more.
    const LIMIT: usize = 8 + 32;
    back.ask(|backend| backend.config_mut().page_limit = LIMIT);
    let mapped = |machine: &Machine| machine.broker.audit().maptrack - calm.maptrack;
    let fill = |guest: &mut Guest, of: usize| {
        for n in 0..32 {
            guest.send(n % 4, machine::mac(9, 0), 1000, (of * 32 + n) as u64);
        }
        until(|| {
            (0..4)
                .all(|queue| guest.front.reclaim(queue, 1).is_ok() && guest.front.vif().in_flight(queue) == 0)
        });
    };
    let mut first = Guest::connected(&machine, ids[0], config);
    fill(&mut first, 0);
    let alone = mapped(&machine);
    assert!(alone > 8 && alone <= LIMIT, "{alone} pages");
    // The first does nothing meanwhile.
    let mut second = Guest::connected(&machine, ids[1], config);
    carried(&back, 8);
    until(|| mapped(&machine) <= LIMIT);
    fill(&mut second, 1);
    let both = mapped(&machine);
    assert!(both > 16 && both <= LIMIT, "{both} pages");
    fill(&mut first, 2);
    assert!(mapped(&machine) <= LIMIT);
    first.close();
    second.close();
    ids.into_iter().for_each(|id| machine.remove_vif(id));
    until(|| ids.iter().all(|id| back.report(*id).is_none()));
    machine.settles(calm);
    drop(keep);
    back.stop();
    machine.end();
}

fn a_successor_takes_up_what_workers_had() {
    let mut machine = Machine::start();
    let plans: [Workers; 4] = [TWO, Some((3, Placement::Balanced)), None, Some((1, Placement::Own))];
    let mut present = serving(&machine, plans[3], true);
    let configs =
        [FrontConfig { queues: 5, ..ordinary() }, FrontConfig { queues: 2, ..staging(Some(256), None) }];
    let circle = Circle::start(&mut machine, &present, &configs);
    for workers in plans {
        circle.flows();
        // Frames that wait in the switch are the process's own, and go with it.
        circle.rest();
        let drained = present.ask(|backend| backend.detach());
        assert_eq!(drained.lost, 0);
        drop(present);
        present = serving(&machine, workers, true);
        until(|| {
            circle.ids.iter().all(|id| present.report(*id).is_some_and(|report| report.device.reattached))
        });
        circle.go(true);
        if workers.is_some() {
            carried(&present, circle.queues);
        }
    }
    circle.flows();
    circle.rest();
    circle.assert_unharmed(&present);
    circle.end(&mut machine);
    until(|| present.ask(|backend| backend.reports().is_empty()));
    present.stop();
    machine.end();
}

/// A guest closes its channel. No one notices, until the queue moves.
fn a_channel_that_is_lost_on_the_way_closes_its_vif() {
    let mut machine = Machine::start();
    let back = back(&machine, TWO);
    [5, 6, 7].into_iter().for_each(|domid| machine.guest_domain(domid));
    let ids = [5, 6, 7].map(|domid| machine.make_vif(domid, 0));
    // To worker 0, 1, 0.
    let mut guests = ids.map(|id| {
        let mut guest = RawGuest::attach(&machine, id);
        guest.connect_honestly();
        back.ask(|_| ());
        guest
    });
    assert_eq!(places(&carried(&back, 3), &ids[2]), [1, 0]);
    guests[0].close_channel();
    log_lines::take();
    // Worker 1 has none then, and the smaller number of the others moves.
    guests[1].set_state(XenbusState::Closing);
    guests[1].set_state(XenbusState::Closed);
    guests[0].wait_back(&[XenbusState::Closed]);
    until(|| back.report(ids[0]).is_some_and(|report| report.device.failed.is_some()));
    let reported = machine.error_node(ids[0]).unwrap();
    assert!(reported.starts_with("its guest has closed an event channel: it has ended"), "{reported}");
    // A guest that ends with a live vif does nothing that is to be warned of.
    let lines = log_lines::with(&reported);
    assert!(lines.len() == 1 && lines[0].starts_with("INFO: "), "{lines:?}");
    assert_eq!(log_lines::with("code"), [""; 0]);
    // The other one has not noticed.
    guests[2].play(&[Slot::Data(guests[2].request(0, 64))]);
    assert_eq!(guests[2].answers(), [RSP_OKAY]);
    drop(guests);
    ids.into_iter().for_each(|id| machine.remove_vif(id));
    until(|| back.ask(|backend| backend.reports().is_empty()));
    back.stop();
    machine.end();
}

/// A queue of no device.
#[derive(Default)]
struct Idle {
    number: usize,
    refuses: bool,
    /// Number of times it was polled, and armed.
    calls: Arc<[AtomicU64; 2]>,
}

impl ServedQueue<Loopback> for Idle {
    fn number(&self) -> usize {
        self.number
    }
    fn poll(&mut self, _: &Loopback, _: &mut Arena) -> Result<bool, RingFault> {
        self.calls[0].fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }
    fn arm(&mut self, _: &Loopback) -> Result<bool, RingFault> {
        self.calls[1].fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }
    fn is_pending(&mut self) -> bool {
        false
    }
    fn channels(&self, _: &Loopback) -> Vec<EvtchnPort> {
        Vec::new()
    }
    fn adopt(&mut self, _: &Loopback) -> Result<(), PlatformError> {
        if self.refuses { Err(PlatformError { op: "adopt a channel", code: 28 }) } else { Ok(()) }
    }
}

fn idle(refuses: &[bool]) -> Vec<Box<dyn ServedQueue<Loopback>>> {
    let queue = |(number, refuses): (usize, &bool)| {
        Box::new(Idle { number, refuses: *refuses, ..Idle::default() }) as Box<dyn ServedQueue<Loopback>>
    };
    refuses.iter().enumerate().map(queue).collect()
}

/// Workers alone, in a domain without anything else.
fn pool(workers: usize, place: Placement, test: impl FnOnce(&Loopback, &mut WorkerPool<Loopback>, DeviceId)) {
    pool_in(Mode::Event, workers, place, |p, pool, id, begin| {
        begin();
        test(p, pool, id);
    });
}

/// Like `pool`, with threads that start only on request.
fn pool_in(
    mode: Mode,
    workers: usize,
    place: Placement,
    test: impl FnOnce(&Loopback, &mut WorkerPool<Loopback>, DeviceId, &mut dyn FnMut()),
) {
    let started = Arc::<AtomicBool>::default();
    let may_begin = Arc::clone(&started);
    let broker = Broker::start(None, Hooks::default()).unwrap();
    broker.create_domain(DomainSpec::driver(machine::BACK)).unwrap();
    let p = broker.attach(machine::BACK).unwrap();
    let spare = std::sync::Mutex::new(p.another().unwrap());
    let spawn: SpawnWorker<Loopback> = Box::new(move |_, post| {
        let p = spare.lock().unwrap().another().unwrap();
        let started = Arc::clone(&may_begin);
        Ok(std::thread::spawn(move || {
            until(|| started.load(Ordering::SeqCst));
            let how = (mode, RxContext::Worker);
            thread::run(thread::Start::new(p, post).unwrap(), how, &|_| {}, Arc::new(|| {}));
        }))
    });
    let waker = Waker::of_thread(usize::MAX).unwrap();
    let mut pool = WorkerPool::Threads(Threads::new(workers, place, waker, spawn).unwrap());
    let id = DeviceId { class: Class::VIF, front: DomId(5), back: machine::BACK, handle: 0 };
    test(&p, &mut pool, id, &mut || started.store(true, Ordering::SeqCst));
    assert_eq!(pool.carried().iter().map(Carried::total).sum::<usize>(), 0);
}

/// Waits until this many queues were returned; returns them with the reason.
fn returned(pool: &mut WorkerPool<Loopback>, queues: usize) -> (Vec<usize>, Vec<String>) {
    let (mut numbers, mut whys) = (Vec::new(), Vec::new());
    while numbers.len() < queues {
        for Returned { queues, why, .. } in pool.pump().0 {
            numbers.extend(queues.iter().map(|queue| queue.number()));
            whys.extend(why.map(|why| match why {
                Why::Channel(e) => e.to_string(),
                Why::Platform(why) => why,
                Why::Fault(fault) => fault.fault.to_string(),
            }));
        }
        std::thread::yield_now();
    }
    numbers.sort_unstable();
    (numbers, whys)
}

/// A worker that falls asleep just when a command is sent to it receives the command nevertheless.
fn no_command_is_lost() {
    pool(1, Placement::Balanced, |p, pool, id| {
        let mut dice = Dice(4);
        for _ in 0..1000 {
            pool.hand_out(p, id, idle(&[false]), &Arc::default());
            (0..dice.roll(2000)).for_each(|_| std::hint::spin_loop());
            pool.reclaim(id);
            assert_eq!(returned(pool, 1), (vec![0], vec![]));
        }
    });
}

/// The others are still the worker's, and come when they are asked for.
fn a_queue_that_a_worker_cannot_have_comes_back() {
    for place in Placement::ALL {
        pool(1, place, |p, pool, id| {
            pool.hand_out(p, id, idle(&[false, true, false]), &Arc::default());
            let (numbers, whys) = returned(pool, 1);
            assert_eq!((numbers, whys.len()), (vec![1], 1));
            assert!(whys[0].contains("adopt a channel"), "{whys:?}");
            assert_eq!(pool.carried()[0].of(&id), 2);
            pool.reclaim(id);
            assert_eq!(returned(pool, 2), (vec![0, 2], vec![]));
        });
    }
}

fn queues_without_any_worker_come_back() {
    let broker = Broker::start(None, Hooks::default()).unwrap();
    broker.create_domain(DomainSpec::driver(machine::BACK)).unwrap();
    let p = broker.attach(machine::BACK).unwrap();
    let spawn: SpawnWorker<Loopback> = Box::new(|_, _| Err("no room".into()));
    let threads = Threads::new(1, Placement::Own, Waker::of_thread(usize::MAX).unwrap(), spawn).unwrap();
    let mut pool = WorkerPool::Threads(threads);
    let id = DeviceId { class: Class::VIF, front: DomId(5), back: machine::BACK, handle: 0 };
    let note = pool.hand_out(&p, id, idle(&[false, false]), &Arc::default()).unwrap();
    assert!(note.starts_with("no thread of its own: no room"), "{note}");
    let (numbers, whys) = returned(&mut pool, 2);
    assert_eq!((numbers, whys.len()), (vec![0, 1], 1));
    assert!(whys[0].contains("no worker thread"), "{whys:?}");
}

/// A worker in poll mode arms no queue, also if its first queue arrives just when it is about to
/// sleep.
fn a_worker_that_only_polls_arms_nothing() {
    pool_in(Mode::Poll, 1, Placement::Balanced, |p, pool, id, begin| {
        let calls = Arc::<[AtomicU64; 2]>::default();
        let idle = Box::new(Idle { calls: Arc::clone(&calls), ..Idle::default() });
        pool.hand_out(p, id, vec![idle], &Arc::default());
        begin();
        until(|| calls[0].load(Ordering::Relaxed) > 100);
        pool.reclaim(id);
        assert_eq!(returned(pool, 1), (vec![0], vec![]));
        assert_eq!(calls[1].load(Ordering::Relaxed), 0, "armed");
    });
}

/// The kernel dropped an event, and it is unknown of which queue: each queue is checked.
fn events_that_the_kernel_dropped_are_made_good() {
    let broker = Broker::start(None, Hooks::default()).unwrap();
    broker.create_domain(DomainSpec::driver(machine::BACK)).unwrap();
    let p = broker.attach(machine::BACK).unwrap();
    let mut load = WorkerQueues::new(Waker::inline());
    let calls = [(); 3].map(|()| Arc::<[AtomicU64; 2]>::default());
    for (number, calls) in calls.iter().enumerate() {
        let id = DeviceId { class: Class::VIF, front: DomId(5), back: machine::BACK, handle: number as u32 };
        let idle = Box::new(Idle { number, refuses: false, calls: Arc::clone(calls) });
        load.take(&p, id, idle, &Arc::default());
    }
    let polled = || calls.each_ref().map(|calls| calls[0].load(Ordering::Relaxed));
    load.round(&p);
    assert!(!load.arm(&p));
    let before = polled();
    load.fired(&ReadySet::default());
    load.round(&p);
    assert_eq!(polled(), before, "armed queues are not polled");
    load.fired(&ReadySet { others: true, ..ReadySet::default() });
    load.round(&p);
    assert_eq!(polled(), before.map(|n| n + 1));
}

/// All vifs of one worker end at once: some of the other's move until both serve the same number.
fn who_is_left_is_placed_evenly() {
    let mut machine = Machine::start();
    let back = back(&machine, TWO);
    let ids: Vec<_> = (5..21)
        .map(|domid| {
            machine.guest_domain(domid);
            machine.make_vif(domid, 0)
        })
        .collect();
    let guests: Vec<_> = ids
        .iter()
        .map(|id| {
            let mut guest = RawGuest::attach(&machine, *id);
            guest.connect_honestly();
            guest
        })
        .collect();
    let before = carried(&back, 16);
    assert!(before.iter().all(|worker| worker.total() == 8), "{before:?}");
    // The backend gets all of them in one turn.
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let waits = back.send_job(move |_| held.recv().is_err());
    ids.iter().filter(|id| before[0].of(id) > 0).for_each(|id| machine.remove_vif(*id));
    drop(hold);
    assert!(waits.recv().unwrap());
    until(|| carried(&back, 8).iter().all(|worker| worker.total() == 4));
    drop(guests);
    ids.iter().filter(|id| before[1].of(id) > 0).for_each(|id| machine.remove_vif(*id));
    until(|| back.ask(|backend| backend.reports().is_empty()));
    back.stop();
    machine.end();
}
