//! A queue of the back allocates nothing for what changes while frames move: settings of its guest,
//! pages that are added and deleted, shares of kept pages, frames that a port keeps. A queue may be
//! polled where memory cannot be waited for, and a guest chooses when most of that changes. Control
//! may allocate, and so may the test's platform and its front: only calls of the queue are counted.
#![cfg(not(any(loom, miri)))]

use pregrant::bounded::Bounded;
use pregrant::net::back::{BackQueue, BackVif, Polled, SharedControl, VifConfig};
use pregrant::net::front::ctrl::{CtrlFront, NotAsked};
use pregrant::net::front::{FrontConfig, FrontVif, Granting};
use pregrant::net::path::gref_mapping::exchange::{GrefExchange, KeepOrder};
use pregrant::net::path::gref_mapping::table::{GrefTable, Mapped};
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::port::{
    Arena, Burst, Completions, FramePort, Offload, Offloads, Payload, Steering, ZeroCopyBurst,
};
use pregrant::wire::netif_ctrl::CtrlType;
use pregrant::{DomId, GrantRef};
use pregrant_testkit::bus::{connect, device};
use pregrant_testkit::counting::{Counting, calls};
use pregrant_testkit::shelf::Shelf;
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains, Way};
use std::sync::Arc;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Makes a call, and adds the allocations in it.
fn counted<T>(sum: &mut u64, call: impl FnOnce() -> T) -> T {
    let before = calls();
    let came = call();
    *sum += calls() - before;
    came
}

/// A port with frames for the guest, which notes how it is to distribute them.
#[derive(Default)]
struct Steered {
    changes: u32,
    queue: Option<usize>,
}

const FRAME: [u8; 60] = [7; 60];

impl FramePort for Steered {
    fn caps(&self) -> Offloads {
        Offloads::default()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        usize::from(into.push(&FRAME, Offload::default()))
    }
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        self.changes += 1;
        self.queue = by.map(|by| by.queue_of(&FRAME));
    }
}

#[test]
fn settings_that_change_allocate_nothing_at_a_queue() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let config =
        FrontConfig { queues: 2, ctrl_ring: true, multicast_control: true, ..FrontConfig::default() };
    let mut front = FrontVif::new(HOST, config, false);
    let mut back = BackVif::new(GUEST, 0, VifConfig::default());
    connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    let mut queues = back.hand_out_queues();
    let mut ports = [Steered::default(), Steered::default()];
    let (mut scratch, mut allocations) = (Arena::new(), 0);
    let mut run = |queues: &mut [BackQueue<LocalDomain>], ports: &mut [Steered], turns: bool| {
        for (q, port) in queues.iter_mut().zip(ports) {
            counted(&mut allocations, || {
                q.poll_tx(&h, port, &mut scratch).expect("an honest front");
                q.poll_rx(&h, port).expect("an honest front");
                if turns {
                    q.turn(&h, port).expect("an honest front");
                }
                q.arm(&h).expect("an honest front");
            });
        }
        assert_eq!(allocations, 0, "a queue allocates");
    };
    run(&mut queues, &mut ports, false);
    for round in 0..20u32 {
        let mut ask = |request: &dyn Fn(&mut CtrlFront<LocalDomain>) -> Result<(), NotAsked>| {
            let ctrl = front.ctrl().expect("a control ring");
            assert_eq!(request(ctrl), Ok(()));
            assert_eq!(back.poll_ctrl(&h), Ok(Polled::More));
            assert_eq!(ctrl.answer().expect("an honest back").map(|answer| answer.status), Some(0));
        };
        ask(&|ctrl| ctrl.ask(&g, CtrlType::SetHashAlgorithm, [1, 0, 0]));
        run(&mut queues, &mut ports, round % 2 == 0);
        ask(&|ctrl| ctrl.ask(&g, CtrlType::SetHashFlags, [0xF, 0, 0]));
        ask(&|ctrl| ctrl.ask(&g, CtrlType::SetHashMappingSize, [4, 0, 0]));
        ask(&|ctrl| ctrl.set_key(&g, &[round as u8; 40]));
        ask(&|ctrl| ctrl.set_mapping(&g, 0, &[round % 2; 4]));
        assert!(front.multicast(&g, pregrant::net::headers::MacAddr([1, 0, 0x5E, 0, 0, round as u8]), true));
        run(&mut queues, &mut ports, round % 2 == 1);
        assert!(ports.iter().all(|port| port.queue == Some(round as usize % 2)), "round {round}");
        for k in 0..2 {
            let queue = front.queue_mut(k).expect("a queue");
            queue.reclaim(&g, 1).expect("an honest back");
        }
    }
    assert!(ports.iter().all(|port| port.changes > 20));
    back.take_back(queues);
}

/// Two tables: one has a place for each page, in the other most pages have none.
#[test]
fn pages_that_come_and_go_allocate_nothing_at_a_queue() {
    const PAGES: u32 = 64;
    for limit in [PAGES as usize, 4] {
        let (exchange, mut table) = (GrefExchange::default(), GrefTable::new(limit).expect("memory"));
        let mut allocations = 0;
        for round in 0..50 {
            let from = 8 + round * PAGES;
            for k in (from..from + PAGES).step_by(16) {
                let page = |r: u32| (GrantRef(r), Mapped::new(r, r.is_multiple_of(2)));
                exchange.keep(KeepOrder::of((k..k + 16).map(page)).expect("memory"));
            }
            assert!(!counted(&mut allocations, || exchange.apply(&mut table)));
            assert_eq!(table.len(), PAGES as usize);
            let held = from;
            table.hold(held);
            let refs = |from: u32| Bounded::of((from..from + PAGES / 2).map(GrantRef)).expect("memory");
            exchange.want_back(refs(from)).expect("memory");
            let one = [(GrantRef(7), Mapped::new(7, false))];
            exchange.keep(KeepOrder::of(one.into_iter()).expect("memory"));
            assert!(!counted(&mut allocations, || exchange.apply(&mut table)));
            assert!(exchange.waits());
            table.release(held);
            assert!(counted(&mut allocations, || exchange.apply(&mut table)));
            assert_eq!(exchange.given().map(|pages| pages.len()), Some(PAGES as usize / 2));
            for refs in [refs(from + PAGES / 2), Bounded::of([GrantRef(7)].into_iter()).expect("memory")] {
                let n = refs.len();
                exchange.want_back(refs).expect("memory");
                assert!(counted(&mut allocations, || exchange.apply(&mut table)));
                assert_eq!(exchange.given().map(|pages| pages.len()), Some(n));
            }
            assert_eq!((table.len(), table.nr_writable()), (0, 0));
        }
        assert_eq!(allocations, 0, "a table of {limit} pages allocates");
    }
}

struct Keeps {
    shelf: Arc<dyn Completions>,
    tokens: Arc<Shelf>,
    payload: Payload,
    kept: u64,
}

impl FramePort for Keeps {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn payload(&self) -> Payload {
        self.payload
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        frames.frames.len()
    }
    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        frames.map_payload();
        for i in 0..frames.len() {
            if let Some(token) = frames.hold(i, &self.shelf) {
                self.tokens.kept().push(token);
                self.kept += 1;
            }
        }
        frames.len()
    }
    fn rx_burst(&mut self, _: &mut Arena) -> usize {
        0
    }
}

/// Frames of `len` bytes by `way` to a port that keeps them while others come. `counts_from`: the
/// round from which allocations count, since the test's platform allocates for its first mappings.
/// `shares`: the pages that may stay mapped change from round to round.
fn keep(way: Way, payload: Payload, len: usize, counts_from: u32, shares: bool) {
    const OF: DomId = GUEST;
    let domains = TwoDomains::new();
    let mut ends = domains.tx(way, Granting::Standing, 0);
    let (mut burst, mut arena, control) = (Arena::new(), Arena::new(), SharedControl::default());
    let tokens = Arc::new(Shelf::with_room(1024));
    let shelf: Arc<dyn Completions> = tokens.clone();
    let mut port = Keeps { shelf, tokens: Arc::clone(&tokens), payload, kept: 0 };
    let bytes = vec![9; len];
    let mut allocations = 0;
    for round in 0..100u32 {
        let mut ignored = 0;
        let sum = if round < counts_from { &mut ignored } else { &mut allocations };
        if shares {
            let pages = match round {
                0..25 => 256,
                95.. => 0,
                _ => [256, 200, 256, 60][round as usize % 4],
            };
            counted(sum, || ends.back.chain_mut().limit_pages(&domains.host, pages));
        }
        for _ in 0..3 {
            burst.clear();
            while burst.len() < 7 && burst.has_room() && burst.push(&bytes, Offload::default()) {}
            ends.front.send(&domains.guest, &ends.front_chan, &burst.burst()).expect("grants");
            let mut poll = || {
                let (host, chan) = (&domains.host, &ends.back_chan);
                ends.back.poll(host, OF, chan, &mut port, &mut arena, &control).expect("an honest front")
            };
            counted(sum, || while poll() == Polled::More {});
        }
        {
            // The newest are completed first, and some stay until the next round.
            let stay = if round % 5 == 4 { 0 } else { tokens.kept().len().min(3) };
            tokens.finish_newest(stay);
        }
        ends.front.reclaim(&domains.guest, 1).expect("an honest back");
    }
    assert!(port.kept > 200, "{way:?}: only {} frames were kept", port.kept);
    assert_eq!(allocations, 0, "{way:?} allocates where the port keeps frames");
    tokens.finish_newest(0);
    ends.back.drain(&domains.host, &ends.back_chan);
    ends.close(&domains);
}

#[test]
fn frames_that_a_port_keeps_allocate_nothing() {
    keep(Way::Staging(65535), Payload::Named, 3000, 0, false);
    keep(Way::Map, Payload::ZeroCopy, 3000, 20, false);
}

#[test]
fn frames_in_pages_of_a_share_that_changes_allocate_nothing() {
    keep(Way::Persistent(256), Payload::Named, 3000, 0, true);
}
