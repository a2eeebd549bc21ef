//! A back that sleeps is woken by each of its rings, through its own channel, again and again.
//!
//! ```text
//!   back: drain everything, final_check --Ok(false)--> may sleep        guest: send | post | ask
//!   back: wait <----------------------- one event, on that ring's channel ------'
//! ```
//! No time passes here: an event is there at once or never.
#![cfg(not(miri))]

use pregrant::net::back::{BackVif, Link, Patience, Polled, VifConfig};
use pregrant::net::features::RxAccepts;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::platform::{Events, ReadySet};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{NetRx, RingMem, RingPages, Word};
use pregrant::wire::netif::RxRequest;
use pregrant::wire::netif_ctrl::CtrlType;
use pregrant::{EvtchnPort, PAGE_SIZE};
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort, TwoDomains, Way};
use std::time::Duration;

/// A guest and its driver domain, connected over plain maps.
struct Pair {
    g: LocalDomain,
    h: LocalDomain,
    front: FrontVif<LocalDomain>,
    back: BackVif<LocalDomain>,
    port: TestPort,
    arena: Arena,
    buses: (MapBus, MapBus),
}

impl Pair {
    fn connected(split_channels: bool) -> Self {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let config = FrontConfig { split_channels, ctrl_ring: true, ..FrontConfig::default() };
        let mut front = FrontVif::new(HOST, config, false);
        let mut back = BackVif::new(GUEST, 0, VifConfig::default());
        connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
        assert!(front.ctrl().is_some() && back.nr_queues() == 1);
        Self { g, h, front, back, port: TestPort::default(), arena: Arena::new(), buses: (fb, bb) }
    }

    /// Lets the back do all its work and handle its old events, until it may sleep.
    fn fall_asleep(&mut self) {
        let Self { h, back, port, arena, .. } = self;
        while back.poll_ctrl(h) == Ok(Polled::More) {}
        while back.poll_tx(h, 0, port, arena) == Ok(Polled::More) {}
        while back.poll_rx(h, 0, port) == Ok(Polled::More) {}
        // The first slots take the link up, in a control turn: until then they are work.
        back.turn(h, &mut [Box::new(TestPort::default())]).expect("an honest guest");
        self.events();
        assert_eq!(self.back.final_check(&self.h, 0), Ok(false), "there is no work");
        assert_eq!(self.back.final_check_ctrl(&self.h), Ok(false));
        assert_eq!(self.events(), [], "and no event of the past");
    }

    /// The back's channels that have fired since it last checked.
    fn events(&self) -> Vec<EvtchnPort> {
        let mut ready = ReadySet::default();
        self.h.wait(&mut ready, Some(Duration::ZERO));
        ready.ports
    }

    /// The only channel of the back that fired.
    fn woken(&self, by: &str) -> EvtchnPort {
        let events = self.events();
        assert_eq!(events.len(), 1, "{by} is one event");
        events[0]
    }

    fn receive(&mut self) -> usize {
        self.arena.clear();
        self.front.queue_mut(0).unwrap().recv(&self.g, &mut self.arena, 1).expect("an honest back")
    }
}

#[test]
fn each_ring_wakes_the_back_through_its_own_channel_each_time() {
    for split in [true, false] {
        let mut pair = Pair::connected(split);
        let mut channels = Vec::new();
        for round in 0..3 {
            pair.fall_asleep();
            pair.arena.clear();
            assert!(pair.arena.push(&[7; 60], Offload::default()));
            assert_eq!(pair.front.queue_mut(0).unwrap().send(&pair.g, &pair.arena.burst()), Ok(1));
            let tx = pair.woken("a request of TX");

            // More frames than the guest has slots: the next waits for one.
            pair.port.gives.extend((0..400).map(|_| (vec![7; 60], Offload::default())));
            pair.fall_asleep();
            assert!(!pair.port.gives.is_empty(), "no slot is left");
            assert!(pair.receive() > 0);
            let rx = pair.woken("a slot of RX for a frame that waits");
            pair.fall_asleep();
            while pair.receive() > 0 {
                pair.fall_asleep();
            }
            pair.front.queue_mut(0).unwrap().reclaim(&pair.g, 1).expect("an honest back");

            pair.fall_asleep();
            let ctrl = pair.front.ctrl().expect("a control ring");
            ctrl.ask(&pair.g, CtrlType::GetHashFlags, [0; 3]).expect("nothing is asked yet");
            let ctrl = pair.woken("a control request");
            pair.fall_asleep();
            let answer = pair.front.ctrl().expect("a control ring").answer();
            assert!(matches!(answer, Ok(Some(_))), "{answer:?}");

            channels.push((tx, rx, ctrl));
            assert_eq!(channels[round], channels[0]);
        }
        let (tx, rx, ctrl) = channels[0];
        assert!((tx != rx) == split && ctrl != tx && ctrl != rx, "{channels:?}");
        drop(pair.buses);
    }
}

/// The guest posted nothing for a minute, and its frames expired: the queue asks for an event for
/// the slots that would have been enough, not for those of a frame that is gone.
#[test]
fn a_stalled_queue_asks_for_the_slots_that_end_it() {
    let domains = TwoDomains::new();
    let mut g = domains.rx_model(Way::Copy, 0, RxAccepts::ALL);
    let ring = RingPages::<NetRx, _>::new(g.ring_memory.clone());
    g.back.watch(Patience::default(), true, true, 0);
    g.port.gives.push_back((vec![7; 2 * PAGE_SIZE + 1], Offload::default()));
    g.model.post(RxRequest { id: 0, gref: g.refs[0].0 });
    for now_ns in [0, 61_000_000_000] {
        assert_eq!(g.run(), Ok(()));
        assert_eq!(g.back.turn(now_ns, &mut g.port), Ok(()));
    }
    assert_eq!((g.back.link(), g.back.waiting()), (Link::Stalled, 0));
    assert_eq!(ring.load(Word::ReqEvent), 1);
    assert_eq!((g.back.final_check(), ring.load(Word::ReqEvent)), (Ok(false), 3));
    g.close();
    domains.assert_empty();
}
