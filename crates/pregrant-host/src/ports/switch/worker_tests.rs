//! The switch between workers: what is copied, what is kept, and that every lost frame is counted.

use super::*;
use pregrant::net::headers::{MacAddr, addresses};
use pregrant::port::{BURST_FRAMES, Offload, QueueWaker};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const NONE: Offload = Offload { csum_blank: false, csum_ok: false, gso_type: 0, gso_size: 0 };
const ALL: Offloads = Offloads { csum: true, gso: true };

/// A small pseudo-random generator with a fixed seed, so that failures can be reproduced.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % below
    }
}

fn mac(n: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, (n >> 8) as u8, n as u8])
}

const EVERYBODY: MacAddr = MacAddr::BROADCAST;

/// A frame that the test sends.
#[derive(Clone, Copy)]
struct Plan {
    dst: MacAddr,
    src: MacAddr,
    seq: u64,
    len: usize,
}

const HEAD: usize = 22;

fn write(to: &mut [u8], plan: Plan) {
    to[..6].copy_from_slice(&plan.dst.0);
    to[6..12].copy_from_slice(&plan.src.0);
    to[12..14].copy_from_slice(&[0x88, 0xB5]);
    to[14..HEAD].copy_from_slice(&plan.seq.to_le_bytes());
    to[HEAD..].fill(plan.seq as u8);
}

/// Parses a whole frame.
fn read(frame: &[u8]) -> (MacAddr, u64) {
    let (_, src) = addresses(frame).unwrap();
    let seq = u64::from_le_bytes(frame[14..HEAD].try_into().unwrap());
    assert!(frame[HEAD..].iter().all(|b| *b == seq as u8), "a frame of {} bytes is damaged", frame.len());
    (src, seq)
}

/// Sends as a queue does: place, ask for room, fetch, forward. Returns the address of the frames,
/// if they lay in the switch's memory.
fn send(port: &mut SwitchPort, arena: &mut Arena, frames: &[Plan], offload: Offload) -> Option<*const u8> {
    arena.clear();
    let mut cursor = arena.cursor();
    for plan in frames {
        assert!(cursor.has_room());
        arena.place(&mut cursor, plan.len, offload);
    }
    arena.keep(cursor);
    let room =
        (arena.used_bytes() >= pregrant::port::BURST_BYTES_MIN).then(|| port.tx_room(arena.used_bytes()));
    let is_in = room.flatten().is_some_and(|room| arena.move_in(room).is_ok());
    for (i, plan) in frames.iter().enumerate() {
        let at = arena.desc(i).at as usize;
        write(&mut arena.bytes_mut()[at..at + plan.len], *plan);
    }
    let place = is_in.then(|| arena.burst().bytes.as_ptr());
    let took = if is_in { port.tx_filled(arena) } else { port.tx_burst(&arena.burst()) };
    assert_eq!(took, frames.len());
    place
}

fn burst(n: usize, dst: MacAddr, src: MacAddr, len: usize) -> Vec<Plan> {
    (0..n as u64).map(|seq| Plan { dst, src, seq, len }).collect()
}

fn pinned(switch: &Switch, n: usize, caps: Offloads) -> SwitchPort {
    let port = switch.add_port(caps).unwrap();
    port.set_sources(Sources::Own(mac(n)));
    port
}

fn seqs(burst: &Burst<'_>) -> Vec<u64> {
    burst.iter().map(|(frame, _)| read(frame).1).collect()
}

/// A burst from one guest to another is moved: the receiver gets the very memory that the batch was
/// fetched into. A pair of guests needs two such buffers.
#[test]
fn a_batch_is_moved_and_not_copied() {
    let switch = Switch::new();
    let (mut from, mut to) = (pinned(&switch, 1, ALL), pinned(&switch, 2, ALL));
    let (mut out, mut into) = (Arena::new(), Arena::new());
    for (len, n) in [(64, 64), (1500, 64), (1500, 3), (65535, 4), (65535, 1), (9000, 20)] {
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let place = send(&mut from, &mut out, &burst(n, mac(2), mac(1), len), NONE);
            into.clear();
            assert_eq!(to.rx_burst(&mut into), n);
            assert_eq!(place, Some(into.burst().bytes.as_ptr()), "{n} of {len} bytes were copied");
            assert_eq!(seqs(&into.burst()), (0..n as u64).collect::<Vec<_>>());
            places.extend(place);
        }
        assert!(places.len() <= 2, "{} pieces of memory for {n} of {len} bytes", places.len());
    }
}

/// A small batch is copied once, out of the arena that it was fetched into; the receiver delivers
/// from the copy.
#[test]
fn a_small_batch_is_copied_once() {
    let switch = Switch::new();
    let (mut from, mut to) = (pinned(&switch, 1, ALL), pinned(&switch, 2, ALL));
    let (mut out, mut into) = (Arena::new(), Arena::new());
    let own = into.burst().bytes.as_ptr();
    for _ in 0..3 {
        assert_eq!(send(&mut from, &mut out, &burst(5, mac(2), mac(1), 60), NONE), None);
        into.clear();
        assert_eq!(to.rx_burst(&mut into), 5);
        assert_ne!(into.burst().bytes.as_ptr(), own);
    }
    // The arena has its own memory again as soon as it is cleared.
    into.clear();
    assert_eq!(into.burst().bytes.as_ptr(), own);
    assert_eq!(into.fits(1), BURST_FRAMES);
}

/// After the memory of large batches was handed over, mails for small batches use little memory.
#[test]
fn small_batches_between_moved_ones_take_little_room() {
    let switch = Switch::new();
    let (mut from, mut to) = (pinned(&switch, 1, ALL), pinned(&switch, 2, ALL));
    let (mut out, mut into) = (Arena::new(), Arena::new());
    // 4 and 16 KiB: they fit 20 times.
    for _ in 0..20 {
        send(&mut from, &mut out, &burst(6, mac(2), mac(1), 64), NONE);
        send(&mut from, &mut out, &burst(6, mac(2), mac(1), 1514), NONE);
    }
    let mut came = 0;
    while to.rx_burst(&mut into) > 0 {
        came += into.len();
        into.clear();
    }
    assert_eq!((came, to.stats().rx_overflow), (240, 0));
}

/// A batch for several readers: one reader gets the memory and the others get copies. Each gets its
/// own frames, in order, and none gets bytes of another's.
#[test]
fn a_batch_for_several_is_shared_out() {
    let switch = Switch::new();
    let mut ports: Vec<_> = (0..3).map(|n| pinned(&switch, n, ALL)).collect();
    ports.push(pinned(&switch, 3, Offloads::default()));
    let (mut out, mut into) = (Arena::new(), Arena::new());
    let dst = |seq: u64| match seq % 16 {
        0 => mac(2),
        3 => EVERYBODY,
        5 => mac(3),
        _ => mac(1),
    };
    let frames: Vec<Plan> = (0..64).map(|seq| Plan { dst: dst(seq), src: mac(0), seq, len: 1500 }).collect();
    let place = send(&mut ports[0], &mut out, &frames, NONE);
    for (n, port) in ports.iter_mut().enumerate() {
        into.clear();
        port.rx_burst(&mut into);
        let due: Vec<u64> =
            (0..64).filter(|seq| n != 0 && (dst(*seq) == mac(n) || dst(*seq) == EVERYBODY)).collect();
        assert_eq!(seqs(&into.burst()), due, "port {n}");
        assert_eq!(n == 1, place == Some(into.burst().bytes.as_ptr()));
        // The owner of the memory may write it.
        into.bytes_mut().fill(0xEE);
        assert_eq!(port.stats().rx_frames, due.len() as u64);
    }
    assert_eq!((ports[0].stats().tx_frames, ports[0].stats().flooded), (64, 4));
}

/// If the smaller part of the memory contains a receiver's frames, that receiver does not get all
/// of the memory.
#[test]
fn memory_goes_to_no_one_who_needs_less_than_half() {
    let switch = Switch::new();
    let mut ports: Vec<_> = (0..4).map(|n| pinned(&switch, n, ALL)).collect();
    let (mut out, mut into) = (Arena::new(), Arena::new());
    let dst = |seq: u64| mac(1 + seq as usize % 3);
    let frames: Vec<Plan> = (0..64).map(|seq| Plan { dst: dst(seq), src: mac(0), seq, len: 1500 }).collect();
    let place = send(&mut ports[0], &mut out, &frames, NONE);
    for port in &mut ports[1..] {
        assert!(port.incoming.inbox().bytes() <= 64 * 1024);
        into.clear();
        port.rx_burst(&mut into);
        assert_ne!(place, Some(into.burst().bytes.as_ptr()));
    }
}

/// If a reader receives nothing while bursts of all kinds are sent to it, the memory that it holds
/// is bounded and well filled.
#[test]
fn what_a_slow_reader_holds_is_bounded() {
    // Frame length, frames per burst, and the least bytes of frames when the queue is full.
    for (len, n, at_least) in [
        (60, 1, 200),
        (60, 64, 400),
        (1500, 1, 400),
        (1500, 64, 300),
        (1500, 10, 250),
        (65535, 1, 400),
        (65535, 3, 300),
        (4097, 1, 250),
    ] {
        let switch = Switch::new();
        let (mut from, mut to) = (pinned(&switch, 1, ALL), pinned(&switch, 2, ALL));
        let mut senders = [pinned(&switch, 3, ALL), pinned(&switch, 4, ALL)];
        let (mut out, mut into) = (Arena::new(), Arena::new());
        let mut sent = 0;
        while to.stats().rx_overflow == 0 {
            send(&mut from, &mut out, &burst(n, mac(2), mac(1), len), NONE);
            sent += n as u64;
            assert!(to.incoming.inbox().bytes() <= QUEUE_BYTES);
        }
        // The bound is the same with several workers.
        for (worker, sender) in senders.iter_mut().enumerate() {
            sender.owned_by(&PortOwner { worker, waker: Arc::<Alarm>::default() });
            send(sender, &mut out, &burst(n, mac(2), mac(3 + worker), len), NONE);
            sent += n as u64;
            assert!(to.incoming.inbox().bytes() <= QUEUE_BYTES);
        }
        let stats = to.stats();
        assert_eq!(stats.rx_frames + stats.rx_overflow, sent);
        assert_eq!(to.held() as u64, stats.rx_frames);
        let held = stats.rx_frames as usize * len.next_multiple_of(64) / 1024;
        assert!(held >= at_least, "{held} KiB are {n} frames of {len} a burst");
        let mut got = 0;
        loop {
            into.clear();
            match to.rx_burst(&mut into) {
                0 => break,
                n => got += n as u64,
            }
        }
        assert_eq!((got, to.held(), to.incoming.inbox().bytes()), (stats.rx_frames, 0, 0));
    }
}

/// Many small bursts to a slow reader become a few large mails.
#[test]
fn mail_that_waits_grows() {
    let switch = Switch::new();
    let (mut from, mut to) = (pinned(&switch, 1, ALL), pinned(&switch, 2, ALL));
    let (mut out, mut into) = (Arena::new(), Arena::new());
    for seq in 0..640 {
        send(&mut from, &mut out, &[Plan { dst: mac(2), src: mac(1), seq, len: 64 }], NONE);
    }
    let mut got = Vec::new();
    for _ in 0..10 {
        into.clear();
        assert_eq!(to.rx_burst(&mut into), BURST_FRAMES);
        got.extend(seqs(&into.burst()));
    }
    assert_eq!(got, (0..640).collect::<Vec<_>>());
}

/// An arena that is not empty gets copies, as many as fit; the rest stays.
#[test]
fn frames_are_appended_to_what_is_there() {
    let switch = Switch::new();
    let (mut from, mut to) = (pinned(&switch, 1, ALL), pinned(&switch, 2, ALL));
    let (mut out, mut into) = (Arena::new(), Arena::new());
    send(&mut from, &mut out, &burst(64, mac(2), mac(1), 1500), NONE);
    assert!(into.push(&[0xAB; 60], NONE));
    assert_eq!(to.rx_burst(&mut into), 63);
    assert_eq!(seqs(&into.burst().skip(1)), (0..63).collect::<Vec<_>>());
    assert_eq!((into.burst().frame(0), to.held()), (&[0xAB; 60][..], 1));
    into.clear();
    assert_eq!((to.rx_burst(&mut into), to.held()), (1, 0));
    assert_eq!(seqs(&into.burst()), [63]);
}

/// Frames that the reader accepts only complete are completed in the memory that is handed over.
#[test]
fn a_moved_batch_is_finished_for_its_reader() {
    let switch = Switch::new();
    let (mut from, mut to) = (pinned(&switch, 1, ALL), pinned(&switch, 2, Offloads::default()));
    let (mut out, mut into) = (Arena::new(), Arena::new());
    // They are no packets, so they cannot be completed; every second one needs it.
    let blank = Offload { csum_blank: true, csum_ok: true, ..NONE };
    assert!(send(&mut from, &mut out, &burst(4, mac(2), mac(1), 1500), blank).is_some());
    assert!(send(&mut from, &mut out, &burst(4, mac(2), mac(1), 1500), NONE).is_some());
    assert_eq!(to.rx_burst(&mut into), 4);
    assert_eq!((to.stats().rx_unfinishable, to.stats().rx_frames), (4, 4));
    assert_eq!(to.incoming.inbox().bytes(), 0, "a mail without frames holds nothing");
}

/// A waker that counts wake-ups, and wakes the thread that sleeps on it.
#[derive(Debug, Default)]
struct Alarm {
    rung: Mutex<bool>,
    changed: Condvar,
    times: AtomicUsize,
}

impl QueueWaker for Alarm {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
        self.times.fetch_add(1, Ordering::Relaxed);
    }
}

impl Alarm {
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[test]
fn who_found_nothing_is_woken_once() {
    let switch = Switch::new();
    let (mut from, mut to) = (pinned(&switch, 1, ALL), pinned(&switch, 2, ALL));
    let (mut out, mut into) = (Arena::new(), Arena::new());
    let alarm = Arc::<Alarm>::default();
    let rung = || alarm.times.load(Ordering::Relaxed);
    to.owned_by(&PortOwner { worker: 1, waker: alarm.clone() });
    assert_eq!(rung(), 1, "there may be mail that rang elsewhere");
    let one = |from: &mut SwitchPort, out: &mut Arena| {
        send(from, out, &burst(1, mac(2), mac(1), 60), NONE);
    };
    one(&mut from, &mut out);
    assert_eq!(rung(), 1, "it has not said that it waits");
    assert_eq!(to.rx_burst(&mut into), 1);
    one(&mut from, &mut out);
    assert_eq!(rung(), 1);
    into.clear();
    assert_eq!(to.rx_burst(&mut into), 1);
    into.clear();
    assert_eq!(to.rx_burst(&mut into), 0);
    one(&mut from, &mut out);
    one(&mut from, &mut out);
    assert_eq!(rung(), 2);
    // On another worker.
    let other = Arc::<Alarm>::default();
    to.owned_by(&PortOwner { worker: 2, waker: other.clone() });
    assert_eq!((rung(), other.times.load(Ordering::Relaxed)), (2, 1));
    assert_eq!(to.rx_burst(&mut into), 2);
}

/// Sends bursts of 256 KiB while there is room; returns how many.
fn fill(from: &mut SwitchPort, out: &mut Arena, to: usize, src: usize) -> u64 {
    let mut sent = 0;
    while from.room() == Room::Now {
        send(from, out, &burst(4, mac(to), mac(src), 65_000), NONE);
        sent += 4;
    }
    sent
}

/// Frames that stay on their guest's ring cannot be lost.
#[test]
fn who_sends_to_a_full_queue_waits_for_room_and_loses_nothing() {
    let switch = Switch::new();
    let mut to = pinned(&switch, 9, ALL);
    let (mut out, mut into) = (Arena::new(), Arena::new());
    let at = |worker| (Arc::<Alarm>::default(), worker);
    let alarms: Vec<_> = (0..4).map(at).collect();
    let mut senders: Vec<_> = (0..4).map(|n| pinned(&switch, n, ALL)).collect();
    for (port, (alarm, worker)) in senders.iter_mut().zip(&alarms) {
        port.owned_by(&PortOwner { worker: *worker, waker: alarm.clone() });
    }
    let rung = || alarms.iter().map(|(alarm, _)| alarm.times.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let (mut sent, mut got) = (0, 0);
    for round in 0..50 {
        // Each sender asks before the others' bursts arrive.
        for _ in 0..2 {
            send(&mut senders[0], &mut out, &burst(4, mac(9), mac(0), 65_000), NONE);
            sent += 4;
        }
        let has_room: Vec<bool> = senders.iter_mut().map(|port| port.room() == Room::Now).collect();
        for (n, port) in senders.iter_mut().enumerate().filter(|(n, _)| has_room[*n]) {
            send(port, &mut out, &burst(4, mac(9), mac(n), 65_000), NONE);
            sent += 4;
        }
        assert_eq!((has_room, to.incoming.inbox().bytes()), (vec![true; 4], QUEUE_BYTES));
        for port in &mut senders {
            assert!(matches!(port.room(), Room::Later(1..=10_000_000)), "round {round}");
        }
        let before = rung();
        let mut bursts = 0;
        loop {
            into.clear();
            match to.rx_burst(&mut into) {
                0 => break,
                n => got += n as u64,
            }
            bursts += 1;
            let is_low = to.incoming.inbox().bytes() <= 256 * 1024;
            let woken = rung().iter().zip(&before).all(|(now, before)| *now == before + 1);
            assert_eq!(woken, is_low, "after {bursts} bursts of round {round}");
        }
        assert!(bursts >= 3 && senders.iter_mut().all(|port| port.room() == Room::Now));
    }
    assert_eq!((to.stats().rx_overflow, got), (0, sent));
    // A port that leaves releases its senders.
    for (n, port) in senders.iter_mut().enumerate() {
        fill(port, &mut out, 9, n);
    }
    let before = rung();
    drop(to);
    assert!(rung().iter().zip(&before).all(|(now, before)| *now > *before));
    assert!(senders.iter_mut().all(|port| port.room() == Room::Now));
}

/// A sender that was woken sends before the queue is full again. A sender that always finds the
/// queue full sends after a while, because the guest receives enough for unlimited waits.
#[test]
fn a_sender_has_its_turn_though_others_fill_the_queue_again() {
    let switch = Switch::new();
    let mut to = pinned(&switch, 9, ALL);
    let mut senders: Vec<_> = (0..2).map(|n| pinned(&switch, n, ALL)).collect();
    for (worker, port) in senders.iter_mut().enumerate() {
        port.owned_by(&PortOwner { worker, waker: Arc::<Alarm>::default() });
    }
    let (mut out, mut into) = (Arena::new(), Arena::new());
    let mut take = |to: &mut SwitchPort| {
        into.clear();
        to.rx_burst(&mut into)
    };
    fill(&mut senders[0], &mut out, 9, 0);
    while to.incoming.inbox().bytes() > 256 * 1024 {
        assert!(take(&mut to) > 0);
    }
    // The other sender sends without asking for room.
    while to.incoming.inbox().bytes() <= 256 * 1024 {
        send(&mut senders[1], &mut out, &burst(4, mac(9), mac(1), 65_000), NONE);
    }
    assert!(to.incoming.inbox().bytes() <= 512 * 1024);
    assert_eq!(senders[0].room(), Room::Now);
    fill(&mut senders[0], &mut out, 9, 0);
    let mut asked = 0;
    while let Room::Later(ns) = senders[0].room() {
        std::thread::sleep(Duration::from_nanos(ns));
        assert!(take(&mut to) > 0);
        while to.incoming.inbox().bytes() <= 512 * 1024 {
            send(&mut senders[1], &mut out, &burst(4, mac(9), mac(1), 65_000), NONE);
        }
        asked += 1;
        assert!(asked < 100, "it stands");
    }
    assert!(asked > 1);
}

/// Each sender waits only once for a guest that receives nothing, and only as long as the queue's
/// patience lasts. Senders to other guests do not wait.
#[test]
fn a_guest_that_takes_nothing_stops_its_senders_for_a_while_and_no_others() {
    let switch = Switch::new();
    let (mut dead, mut alive) = (pinned(&switch, 8, ALL), pinned(&switch, 9, ALL));
    let mut senders: Vec<_> = (0..3).map(|n| pinned(&switch, n, ALL)).collect();
    for (worker, port) in senders.iter_mut().enumerate() {
        port.owned_by(&PortOwner { worker, waker: Arc::<Alarm>::default() });
    }
    let (mut out, mut into) = (Arena::new(), Arena::new());
    fill(&mut senders[0], &mut out, 8, 0);
    let mut came = 0u64;
    let mut bystander = |port: &mut SwitchPort, out: &mut Arena| {
        assert_eq!(port.room(), Room::Now, "it sends to another");
        send(port, out, &burst(4, mac(9), mac(2), 65_000), NONE);
        into.clear();
        came += alive.rx_burst(&mut into) as u64;
    };
    // Checks as a worker does, which sleeps in between.
    let mut asked = 0u64;
    while let Room::Later(ns) = senders[0].room() {
        std::thread::sleep(Duration::from_nanos(ns));
        bystander(&mut senders[2], &mut out);
        asked += 1;
    }
    // Each wait is 10 ms at most, and counts as at least that, except for the first and the last.
    assert!((2..=22).contains(&asked), "{asked}");
    // From now on frames that do not fit are dropped, from any sender.
    for n in 0..2 {
        for _ in 0..20 {
            send(&mut senders[n], &mut out, &burst(4, mac(8), mac(n), 65_000), NONE);
            assert_eq!(senders[n].room(), Room::Now);
            bystander(&mut senders[2], &mut out);
        }
    }
    let stats = dead.stats();
    assert!(stats.rx_overflow > 0 && dead.incoming.inbox().bytes() <= QUEUE_BYTES);
    assert!(came > 0 && alive.stats().rx_overflow == 0);
    // Until the guest has taken what waits, and more.
    let mut left = 2_000_000usize;
    while left > 0 {
        into.clear();
        assert_eq!(senders[0].room(), Room::Now);
        send(&mut senders[0], &mut out, &burst(4, mac(8), mac(0), 65_000), NONE);
        while dead.rx_burst(&mut into) > 0 {
            left = left.saturating_sub(into.used_bytes());
            into.clear();
        }
    }
    fill(&mut senders[0], &mut out, 8, 0);
    assert!(matches!(senders[0].room(), Room::Later(_)));
}

/// A port that moves to another worker and back keeps its frames in order, however many wait, and
/// whatever other ports of these workers send.
#[test]
fn frames_of_a_port_that_moves_stay_in_order() {
    let switch = Switch::new();
    let mut to = pinned(&switch, 9, ALL);
    let mut senders: Vec<_> = (0..4).map(|n| (pinned(&switch, n, ALL), n as u64 * 10_000)).collect();
    let mut due: Vec<u64> = senders.iter().map(|(_, seq)| *seq).collect();
    let (mut out, mut into, mut dice) = (Arena::new(), Arena::new(), Dice(3));
    let at = |worker| PortOwner { worker, waker: Arc::<Alarm>::default() };
    senders.iter_mut().enumerate().for_each(|(n, (port, _))| port.owned_by(&at(n)));
    for round in 0..2000 {
        let n = dice.roll(4);
        let (port, seq) = &mut senders[n];
        if n == 3 {
            port.owned_by(&at(dice.roll(3)));
        }
        for _ in 0..dice.roll(3) {
            send(port, &mut out, &[Plan { dst: mac(9), src: mac(n), seq: *seq, len: 64 }], NONE);
            *seq += 1;
        }
        if round % 20 != 0 {
            continue;
        }
        loop {
            into.clear();
            if to.rx_burst(&mut into) == 0 {
                break;
            }
            for (frame, _) in into.burst().iter() {
                let (src, seq) = read(frame);
                let due = &mut due[usize::from(src.0[5])];
                assert_eq!(seq, *due);
                *due += 1;
            }
        }
    }
    assert!(due[3] > 30_100 && to.stats().rx_overflow == 0);
}

/// Senders do not keep frames for a port that is gone.
#[test]
fn a_port_that_leaves_leaves_no_mail() {
    let switch = Switch::new();
    let (mut from, to) = (pinned(&switch, 1, ALL), switch.add_multi_queue_port(2, ALL).unwrap());
    to[0].set_sources(Sources::Own(mac(2)));
    let mut to = VecDeque::from(to);
    let mut out = Arena::new();
    let frames: Vec<Plan> = burst(64, EVERYBODY, mac(1), 1500);
    send(&mut from, &mut out, &frames, NONE);
    let held: usize = to.iter().map(|port| port.held()).sum();
    assert_eq!(held, 64);
    // One queue ends while its vif stays: frames for it are counted at the receiver.
    let ended = to.pop_front().unwrap();
    let its = ended.held() as u64;
    drop(ended);
    send(&mut from, &mut out, &frames, NONE);
    assert_eq!(to[0].stats().rx_overflow, its);
}

/// A reference model of the switch: a list of frames per port, and the port at which each address
/// was seen.
#[derive(Default)]
struct Model {
    received: BTreeMap<[u8; 6], usize>,
    waiting: BTreeMap<usize, Vec<(MacAddr, u64)>>,
}

impl Model {
    fn send(&mut self, from: usize, plan: Plan) {
        let dst = self.received.get(&plan.dst.0).copied();
        match *self.received.entry(plan.src.0).or_insert(from) {
            port if port != from => return,
            _ => {}
        }
        // The learnt source already holds for the frame itself.
        let dst = if plan.dst == plan.src { Some(from) } else { dst };
        for (port, waiting) in &mut self.waiting {
            if *port != from && dst.is_none_or(|dst| dst == *port) {
                waiting.push((plan.src, plan.seq));
            }
        }
    }
}

#[test]
fn behaves_like_a_list_for_each_port() {
    let mut dice = Dice(11);
    let (switch, mut model) = (Switch::new(), Model::default());
    let mut ports: BTreeMap<usize, SwitchPort> = BTreeMap::new();
    let (mut out, mut into, mut seq) = (Arena::new(), Arena::new(), 0);
    for step in 0..3000 {
        let n = dice.roll(6);
        match dice.roll(8) {
            0 if step % 7 == 0 => {
                ports.remove(&n);
                model.waiting.remove(&n);
                model.received.retain(|_, port| *port != n);
            }
            0..=1 => {
                let port = ports.entry(n).or_insert_with(|| switch.add_port(ALL).unwrap());
                model.waiting.entry(n).or_default();
                let waker = Arc::<Alarm>::default();
                port.owned_by(&PortOwner { worker: dice.roll(3), waker });
            }
            2..=4 => {
                let Some(port) = ports.get_mut(&n) else { continue };
                let frames: Vec<Plan> = (0..1 + dice.roll(12))
                    .map(|_| {
                        seq += 1;
                        let dst = if dice.roll(5) == 0 { EVERYBODY } else { mac(dice.roll(9)) };
                        let len = if dice.roll(3) == 0 { 60 + dice.roll(3000) } else { 60 };
                        Plan { dst, src: mac(dice.roll(9)), seq, len }
                    })
                    .collect();
                frames.iter().for_each(|plan| model.send(n, *plan));
                send(port, &mut out, &frames, NONE);
            }
            _ => {
                let (Some(port), Some(due)) = (ports.get_mut(&n), model.waiting.get_mut(&n)) else {
                    continue;
                };
                let mut got = Vec::new();
                loop {
                    into.clear();
                    if port.rx_burst(&mut into) == 0 {
                        break;
                    }
                    got.extend(into.burst().iter().map(|(frame, _)| read(frame)));
                }
                // With several workers, whose ports do not wait for one another, each worker's
                // frames are in order.
                got.sort_by_key(|(_, seq)| *seq);
                assert_eq!(got, *due, "step {step}, port {n}");
                assert_eq!(port.stats().rx_overflow, 0);
                due.clear();
            }
        }
    }
}

/// A guest that a worker of the test serves.
struct Station {
    port: SwitchPort,
    n: usize,
    left: usize,
    sent: Vec<u64>,
    received: Vec<u64>,
    got: u64,
}

const STATIONS: usize = 9;
const WORKERS: usize = 3;
const BURSTS: usize = 300;

/// Stations that move to a worker, its waker, and how many still send.
struct Office {
    to: Vec<Sender<Station>>,
    alarms: Vec<Arc<Alarm>>,
    sending: AtomicUsize,
    /// Number of broadcast frames, from guests that come and go.
    shouts: AtomicUsize,
}

impl Station {
    /// Sends one burst whose frames go to all other ports in turn.
    fn send(&mut self, out: &mut Arena, dice: &mut Dice) {
        let len = [60, 200, 1500, 9000][dice.roll(4)];
        let dst = (self.n + 1 + dice.roll(STATIONS - 1)) % STATIONS;
        let frames: Vec<Plan> = (0..1 + dice.roll(20))
            .map(|k| {
                let to = if k % 9 == 8 { (dst + 1) % STATIONS } else { dst };
                self.sent[to] += u64::from(to != self.n);
                Plan { dst: mac(to), src: mac(self.n), seq: self.sent[to], len }
            })
            .collect();
        send(&mut self.port, out, &frames, NONE);
        self.left -= 1;
    }

    /// Checks that the received frames are in order and intact. Gaps are frames that did not fit.
    fn receive(&mut self, into: &mut Arena) -> usize {
        into.clear();
        let n = self.port.rx_burst(into);
        for (frame, _) in into.burst().iter() {
            self.got += 1;
            let ((dst, _), (src, seq)) = (addresses(frame).unwrap(), read(frame));
            if dst != EVERYBODY {
                let received = &mut self.received[usize::from(src.0[5])];
                assert!(dst == mac(self.n) && seq > *received, "{seq} after {received}");
                *received = seq;
            }
        }
        n
    }
}

/// Runs a worker: it sends, receives, gives guests to other workers, and sleeps when it is idle.
fn work(worker: usize, switch: &Switch, office: &Office, new: &Receiver<Station>) -> Vec<Station> {
    let (mut stations, mut out, mut into) = (Vec::<Station>::new(), Arena::new(), Arena::new());
    let mut dice = Dice(worker as u64);
    let alarm = &office.alarms[worker];
    loop {
        for mut station in new.try_iter() {
            station.port.owned_by(&PortOwner { worker, waker: alarm.clone() });
            stations.push(station);
        }
        let mut is_busy = false;
        for station in &mut stations {
            if station.left > 0 {
                is_busy = true;
                station.send(&mut out, &mut dice);
                if station.left == 0 && office.sending.fetch_sub(1, Ordering::AcqRel) == 1 {
                    office.alarms.iter().for_each(|alarm| alarm.ring());
                }
            }
            // Some stations read rarely.
            if station.left == 0 || dice.roll(4) > 0 {
                is_busy |= station.receive(&mut into) > 0;
            }
        }
        if dice.roll(8) == 0 && !stations.is_empty() && is_busy {
            let other = dice.roll(WORKERS);
            let moved = stations.swap_remove(dice.roll(stations.len()));
            office.to[other].send(moved).unwrap();
            office.alarms[other].ring();
        }
        // A station that connects, sends a broadcast and disconnects.
        if dice.roll(16) == 0 && is_busy {
            let mut guest = switch.add_port(ALL).unwrap();
            guest.owned_by(&PortOwner { worker, waker: alarm.clone() });
            send(&mut guest, &mut out, &burst(3, EVERYBODY, mac(1000 + worker), 1000), NONE);
            into.clear();
            guest.rx_burst(&mut into);
            office.shouts.fetch_add(3, Ordering::Relaxed);
        }
        if !is_busy {
            if office.sending.load(Ordering::Acquire) == 0 {
                return stations;
            }
            alarm.sleep();
        }
    }
}

#[test]
fn nothing_is_lost_between_workers_that_is_not_counted() {
    let switch = Switch::new();
    let (to, new): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| channel()).unzip();
    let alarms = (0..WORKERS).map(|_| Arc::default()).collect();
    let office = Office { to, alarms, sending: AtomicUsize::new(STATIONS), shouts: AtomicUsize::new(0) };
    for n in 0..STATIONS {
        let port = pinned(&switch, n, ALL);
        let (sent, received) = (vec![0; STATIONS], vec![0; STATIONS]);
        office.to[n % WORKERS].send(Station { port, n, left: BURSTS, sent, received, got: 0 }).unwrap();
    }
    let mut stations: Vec<Station> = std::thread::scope(|scope| {
        let (switch, office) = (&switch, &office);
        let start = |(worker, new)| scope.spawn(move || (work(worker, switch, office, &new), new));
        let workers: Vec<_> = new.into_iter().enumerate().map(start).collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        // Include stations that were given to a worker that had ended.
        ended
            .into_iter()
            .flat_map(|(its, new)| its.into_iter().chain(new.try_iter().collect::<Vec<_>>()))
            .collect()
    });
    assert_eq!(stations.len(), STATIONS);
    let mut into = Arena::new();
    for station in &mut stations {
        while station.receive(&mut into) > 0 {}
        assert_eq!((station.port.held(), station.port.incoming.inbox().bytes()), (0, 0));
    }
    let shouts = office.shouts.load(Ordering::Relaxed) as u64;
    assert!(shouts > 0);
    for station in &stations {
        let stats = station.port.stats();
        let sent: u64 = stations.iter().map(|other| other.sent[station.n]).sum();
        assert_eq!(station.got, stats.rx_frames, "lost, and counted as queued");
        assert_eq!(stats.rx_frames + stats.rx_overflow, sent + shouts, "lost, and not counted");
    }
}
