//! The back's actions as time passes: frames that wait for slots expire, guests that post none
//! stall, a guest with a rate waits for its credit (docs/protocol 6). The test sets the time.
#![cfg(not(miri))]

use pregrant::net::back::{BackVif, Credit, Link, Patience, Polled, Rate, VifConfig};
use pregrant::net::features::RxAccepts;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::port::{Arena, FramePort, Offload};
use pregrant::wire::netif::{RSP_ERROR, RSP_OKAY, RxRequest, TXF_MORE_DATA, TxRequest};
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{GUEST, HOST, RxGame, TestPort, TwoDomains, Way};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

fn rx(notified: bool, live: bool) -> (TwoDomains, RxGame) {
    let domains = TwoDomains::new();
    let mut g = domains.rx_model(Way::Copy, 0, RxAccepts::ALL);
    g.back.watch(Patience::default(), notified, live, 0);
    (domains, g)
}

/// Frames of two pages and a byte: three slots each.
fn give(g: &mut RxGame, n: usize) {
    g.port.gives.extend((0..n).map(|_| (vec![7; 2 * PAGE_SIZE + 1], Offload::default())));
}

fn post(g: &mut RxGame, n: u16) {
    for _ in 0..n {
        let id = (g.model.next_index() & 255) as u16;
        g.model.post(RxRequest { id, gref: g.refs[usize::from(id)].0 });
    }
}

/// A worker's step: a round, then a control turn.
fn turn(g: &mut RxGame, now_ns: u64) {
    assert_eq!(g.run(), Ok(()));
    assert_eq!(g.back.turn(now_ns, &mut g.port), Ok(()));
}

#[test]
fn frames_that_wait_expire_after_ten_seconds_and_not_before() {
    let (_, mut g) = rx(true, true);
    give(&mut g, 2);
    turn(&mut g, 5 * S);
    assert_eq!((g.back.waiting(), g.back.deadline_ns()), (2, Some(15 * S)));
    turn(&mut g, 15 * S - 1);
    assert_eq!((g.back.waiting(), g.back.stats().expired), (2, 0));
    turn(&mut g, 15 * S);
    assert_eq!((g.back.waiting(), g.back.stats().expired, g.back.deadline_ns()), (0, 2, None));
    // Slots come too late for these, and in time for others.
    give(&mut g, 2);
    turn(&mut g, 16 * S);
    post(&mut g, 6);
    turn(&mut g, 27 * S);
    assert_eq!(g.model.frames().map(|f| f.len()), Ok(2));
    assert_eq!((g.back.stats().expired, g.back.stalls()), (2, 0));
}

/// A burst's age is its own: one that went in time leaves nothing of its age to the next.
#[test]
fn each_burst_has_its_own_age() {
    let (_, mut g) = rx(true, true);
    for round in 0..5 {
        give(&mut g, 1);
        turn(&mut g, round * 9 * S);
        post(&mut g, 3);
        assert_eq!(g.run(), Ok(()));
        give(&mut g, 1);
        turn(&mut g, round * 9 * S + 8 * S);
        post(&mut g, 3);
    }
    assert_eq!((g.back.stats().frames, g.back.stats().expired), (9, 0));
}

#[test]
fn without_rx_notify_frames_expire_soon_and_no_queue_stalls() {
    let (_, mut g) = rx(false, false);
    assert_eq!(g.back.link(), Link::Up, "no event would say when it is");
    for now in [0, 100 * S, 200 * S] {
        give(&mut g, 1);
        turn(&mut g, now);
        turn(&mut g, now + 30 * MS - 1);
        assert_eq!(g.back.waiting(), 1);
        turn(&mut g, now + 30 * MS);
        assert_eq!(g.back.waiting(), 0);
    }
    assert_eq!((g.back.link(), g.back.stalls(), g.back.stats().expired), (Link::Up, 0, 3));
}

/// One slot is always posted, for frames that need three: after a minute the queue stalls
/// nevertheless, waiting frames in back and port are dropped, and it recovers when there are three
/// slots, not before.
#[test]
fn xsa_392_one_slot_for_longer_frames_stalls_the_queue() {
    let (_, mut g) = rx(true, true);
    post(&mut g, 4);
    give(&mut g, 1);
    turn(&mut g, S);
    assert_eq!(g.model.frames().map(|f| f.len()), Ok(1));
    give(&mut g, 1000);
    for now in 2..61 {
        turn(&mut g, now * S);
        assert_eq!((g.back.link(), g.back.stalls()), (Link::Up, 0), "{now} s");
    }
    turn(&mut g, 61 * S);
    assert_eq!((g.back.link(), g.back.stalls()), (Link::Stalled, 1));
    for now in 62..90 {
        give(&mut g, 10);
        turn(&mut g, now * S);
    }
    assert!(g.back.waiting() + g.port.gives.len() < 200, "what is old is not kept");
    assert_eq!((g.back.link(), g.back.stalls(), g.back.stats().frames), (Link::Stalled, 1, 1));
    post(&mut g, 1);
    turn(&mut g, 90 * S);
    assert_eq!(g.back.link(), Link::Stalled, "two slots are not three");
    give(&mut g, 1);
    post(&mut g, 1);
    turn(&mut g, 90 * S);
    assert_eq!(g.back.link(), Link::Up);
    assert_eq!(g.back.stats().frames, 2);
    // The time starts again.
    give(&mut g, 1);
    turn(&mut g, 149 * S);
    assert_eq!((g.back.link(), g.back.stalls()), (Link::Up, 1));
    turn(&mut g, 150 * S);
    assert_eq!((g.back.link(), g.back.stalls()), (Link::Stalled, 2));
}

/// The guest is asked to notify when it posts slots, but does not for slots that it posted before
/// that: so these count as work.
#[test]
fn slots_that_were_posted_before_the_last_look_are_not_slept_over() {
    let (_, mut g) = rx(true, false);
    turn(&mut g, S);
    assert_eq!((g.back.link(), g.back.is_pending()), (Link::Starting, false));
    post(&mut g, 1);
    assert!(g.back.is_pending());
    assert_eq!(g.back.final_check(), Ok(true));
    turn(&mut g, 2 * S);
    assert_eq!(g.back.link(), Link::Up);
    assert_eq!((g.back.final_check(), g.back.is_pending()), (Ok(false), false));
}

#[test]
fn a_queue_starts_without_a_link_until_slots_are_posted() {
    let (_, mut g) = rx(true, false);
    turn(&mut g, S);
    assert_eq!(g.back.link(), Link::Starting);
    // The first slot is an event, though no frame waits for it.
    assert_eq!(g.back.final_check(), Ok(false));
    post(&mut g, 1);
    turn(&mut g, 100 * S);
    assert_eq!((g.back.link(), g.back.stalls()), (Link::Up, 0));
}

#[test]
fn a_wrong_index_is_found_in_a_turn_too() {
    let (_, mut g) = rx(true, false);
    g.model.publish_index(1000);
    let fault = PeerFault::ReqProdOverrun { req_prod: 1000, req_cons: 0, size: 256 };
    assert_eq!(g.back.turn(0, &mut g.port), Err(fault));
}

/// A guest and its driver domain, connected over plain maps, with a clock that shows 0.
struct Pair {
    xen: LocalXen,
    g: LocalDomain,
    h: LocalDomain,
    front: FrontVif<LocalDomain>,
    back: BackVif<LocalDomain>,
    bb: MapBus,
    fb: MapBus,
    ports: Vec<Box<dyn FramePort>>,
}

impl Pair {
    fn connected(queues: u32, rate: &str) -> Self {
        let xen = LocalXen::new();
        xen.stop_clock(0);
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        bb.own.borrow_mut().insert("rate".into(), rate.into());
        let config = FrontConfig { queues, staging: Buffers::NONE, ..FrontConfig::default() };
        let mut front = FrontVif::new(HOST, config, false);
        let mut back = BackVif::new(GUEST, 0, VifConfig::default());
        connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
        assert_eq!(back.nr_queues(), queues as usize);
        let ports = (0..queues).map(|_| Box::new(TestPort::default()) as Box<dyn FramePort>).collect();
        Self { xen, g, h, front, back, bb, fb, ports }
    }

    /// Sends frames of 1000 bytes on queue `i` until it is full.
    fn fill(&mut self, i: usize) {
        let mut burst = Arena::new();
        assert!(burst.push(&[7; 1000], Offload::default()));
        while self.front.queue_mut(i).unwrap().send(&self.g, &burst.burst()) == Ok(1) {}
    }

    /// Runs rounds until nothing moves; returns the number of frames taken on each queue.
    fn rounds(&mut self) -> Vec<u64> {
        let n = self.back.nr_queues();
        let before: Vec<_> = (0..n).map(|i| self.back.stats(i).0.frames).collect();
        loop {
            let mut moved = false;
            let first = self.back.credit_waits() as usize % n;
            for i in (0..n).map(|k| (first + k) % n) {
                let tx = self.back.poll_tx(&self.h, i, &mut *self.ports[i], &mut Arena::new());
                moved |= tx == Ok(Polled::More);
            }
            if !moved {
                return (0..n).map(|i| self.back.stats(i).0.frames - before[i]).collect();
            }
        }
    }
}

#[test]
fn the_link_is_up_when_all_queues_are_ready() {
    let mut pair = Pair::connected(2, "");
    assert_eq!(pair.back.turn(&pair.h, &mut pair.ports), Ok(Some(true)), "our front posts slots at once");
    assert_eq!(pair.back.turn(&pair.h, &mut pair.ports), Ok(None));
    // Its second queue is read no more.
    let mut port = TestPort::default();
    port.gives.extend((0..300).map(|_| (vec![7; 60], Offload::default())));
    while pair.back.poll_rx(&pair.h, 1, &mut port) == Ok(Polled::More) {}
    pair.ports[1] = Box::new(port);
    assert_eq!(pair.back.turn(&pair.h, &mut pair.ports), Ok(None));
    assert_eq!(pair.back.deadline_ns(), Some(10 * S));
    pair.xen.stop_clock(60 * S);
    assert_eq!(pair.back.turn(&pair.h, &mut pair.ports), Ok(Some(false)));
    assert_eq!((pair.back.link_is_up(), pair.back.stalls()), (false, 1));
    let mut got = Arena::new();
    while pair.front.queue_mut(1).unwrap().recv(&pair.g, &mut got, 1) != Ok(0) {
        got.clear();
    }
    assert_eq!(pair.back.turn(&pair.h, &mut pair.ports), Ok(Some(true)));
    // A vif that is taken up was up, and one that closes has no link.
    pair.back.close(&pair.h, &mut pair.bb, None).expect("plain maps");
    assert!(!pair.back.link_is_up() && pair.back.deadline_ns().is_none());
    assert_eq!(pair.back.turn(&pair.h, &mut pair.ports), Ok(None));
}

#[test]
fn a_rate_holds_frames_back_and_keeps_no_one_awake() {
    let mut pair = Pair::connected(1, "10000,50000");
    // The slots that its front posted take the link up: until then they are work.
    assert_eq!(pair.back.final_check(&pair.h, 0), Ok(true));
    assert_eq!(pair.back.turn(&pair.h, &mut pair.ports), Ok(Some(true)));
    pair.fill(0);
    assert_eq!(pair.rounds(), [10]);
    // More waits on the ring, and yet there is no work before the window's end.
    assert_eq!(pair.back.final_check(&pair.h, 0), Ok(false));
    assert_eq!(pair.back.deadline_ns(), Some(50 * MS));
    pair.xen.stop_clock(50 * MS - 1);
    assert_eq!((pair.rounds(), pair.back.final_check(&pair.h, 0)), (vec![0], Ok(false)));
    pair.xen.stop_clock(50 * MS);
    assert_eq!(pair.back.final_check(&pair.h, 0), Ok(true));
    assert_eq!(pair.rounds(), [10]);
    assert_eq!((pair.back.deadline_ns(), pair.back.credit_waits()), (Some(100 * MS), 2));
    // Another rate holds at once; the same one, written again, gives no more.
    for (rate, now, taken) in
        [("10000,50000", 51, 0), ("20000,50000", 52, 20), ("", 53, 224), ("20000,0", 53, 0)]
    {
        pair.bb.own.borrow_mut().insert("rate".into(), rate.into());
        pair.back.reload_rate(&pair.h, &mut pair.bb).expect("plain maps");
        pair.xen.stop_clock(now * MS);
        let got = pair.rounds()[0];
        // Of 256 slots the front keeps some free.
        assert!(got == taken || rate.is_empty() && got > 100, "{rate}: {got}");
    }
    assert!(pair.back.deadline_ns().is_none());
}

#[test]
fn queues_share_a_rate_and_none_starves() {
    let mut pair = Pair::connected(2, "3000,1000");
    let mut all = [0; 2];
    for now in 0..100 {
        pair.xen.stop_clock(now * MS);
        (0..2).for_each(|i| {
            pair.front.queue_mut(i).unwrap().reclaim(&pair.g, 1).expect("an honest back");
            pair.fill(i);
        });
        let got = pair.rounds();
        assert_eq!(got[0] + got[1], 3, "the rate is the vif's: {got:?} at {now} ms");
        all = [all[0] + got[0], all[1] + got[1]];
    }
    assert_eq!(all, [150, 150]);
    let _ = &pair.fb;
}

/// A worker sleeps until the end of the window; what a queue of another worker does then must not
/// leave it asleep.
#[test]
fn a_queue_that_waits_for_credit_is_checked_when_it_was_said() {
    let mut pair = Pair::connected(2, "3000,1000");
    pair.xen.stop_clock(0);
    assert_eq!(pair.back.turn(&pair.h, &mut pair.ports), Ok(Some(true)));
    (0..2).for_each(|i| pair.fill(i));
    assert_eq!(pair.rounds().iter().sum::<u64>(), 3);
    assert_eq!(pair.back.final_check(&pair.h, 1), Ok(false));
    assert_eq!(pair.back.deadline_ns(), Some(MS));
    pair.xen.stop_clock(MS);
    let mut port = TestPort::default();
    while pair.back.poll_tx(&pair.h, 0, &mut port, &mut Arena::new()) == Ok(Polled::More) {}
    assert_eq!(pair.back.final_check(&pair.h, 0), Ok(false), "it has had all of the window's");
    assert_eq!(pair.back.deadline_ns(), Some(MS), "the other wakes now, and not a window later");
    pair.xen.stop_clock(2 * MS);
    while pair.back.poll_tx(&pair.h, 1, &mut port, &mut Arena::new()) == Ok(Polled::More) {}
    assert_eq!(pair.back.final_check(&pair.h, 1), Ok(false));
    assert_eq!(pair.back.stats(1).0.frames + pair.back.stats(0).0.frames, 9);
}

#[test]
fn a_garbled_rate_is_none_and_is_reported() {
    for text in ["fast", "1000", "1000,", "1000,x", "-1,5", "\u{1b}[2J"] {
        let mut pair = Pair::connected(1, text);
        assert_eq!(pair.back.turn(&pair.h, &mut pair.ports), Ok(Some(true)));
        assert_eq!(pair.back.bad_rate(), Some(text));
        pair.fill(0);
        assert!(pair.rounds()[0] > 200 && pair.back.final_check(&pair.h, 0) == Ok(false));
    }
    assert_eq!(Pair::connected(1, "1000,50000").back.bad_rate(), None);
}

/// A frame costs the credit that its first request claims, whatever happens to it.
#[test]
fn refused_frames_cost_credit_too() {
    let domains = TwoDomains::new();
    domains.xen.stop_clock(0);
    let mut g = domains.tx_model(Way::Copy, 0, 1);
    g.control.lock().credit = Some(Credit::new(Rate { bytes: 3000, usec: 1000 }, 0));
    let gref = g.refs[0].0;
    let slot = move |id, size, flags| Slot::Data(TxRequest { gref, offset: 0, flags, id, size });
    // too long
    g.model.play(&[slot(0, 1000, TXF_MORE_DATA), slot(1, 600, TXF_MORE_DATA), slot(2, 600, 0)]);
    g.model.play(&[slot(3, 1500, TXF_MORE_DATA), slot(4, 500, 0)]);
    g.model.play(&[slot(5, 600, 0)]);
    g.model.play(&[slot(6, 500, 0)]);
    assert_eq!(g.run(), Ok(()));
    assert_eq!(g.model.answers(), Ok(vec![vec![RSP_ERROR; 3], vec![RSP_OKAY; 2]]));
    // The short one behind it waits too: order is kept.
    assert_eq!((g.run(), g.model.answers()), (Ok(()), Ok(vec![])));
    domains.xen.stop_clock(MS);
    assert_eq!((g.run(), g.model.answers()), (Ok(()), Ok(vec![vec![RSP_OKAY]; 2])));
    g.close();
    domains.assert_empty();
}
