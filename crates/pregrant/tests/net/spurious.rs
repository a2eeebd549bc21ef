//! Reports of a front's halves, and of a back's queue, about events before they sleep: an event
//! that brought no work is reported, since a platform may throttle such a peer. Also: when the
//! poller learns that the sender waits.
#![cfg(not(miri))]

use crate::pair::ordinary;
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::ruled_domain::{RuledDomain, Rules};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort, byte};

use pregrant::GrantRef;
use pregrant::net::back::{BackQueue, BackVif, Polled, VifConfig};
use pregrant::net::front::{FrontConfig, FrontVif, Lent, RxHalf, TxHalf};
use pregrant::net::path::PathConfig;
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::platform::{Access, PeerMem};
use pregrant::port::{Arena, Offload, Piece, Sink};
use pregrant::shm::SharedBytes;
use std::cell::Cell;

/// Number of times an end unmasks its channels.
#[derive(Default)]
struct Counts {
    unmasked: Cell<u32>,
    spurious: Cell<u32>,
}

impl Counts {
    /// Since the last call: number of unmaskings, and of those after an event that brought no work.
    fn take(&self) -> (u32, u32) {
        (self.unmasked.take(), self.spurious.take())
    }
}

impl Rules for Counts {
    fn unmasks(&self, is_spurious: bool) {
        self.unmasked.set(self.unmasked.get() + 1);
        self.spurious.set(self.spurious.get() + u32::from(is_spurious));
    }
}

type Counted = RuledDomain<Counts>;

/// A sink that receives frames one by one, and is no arena.
#[derive(Default)]
struct Lens(Vec<usize>);

impl Sink for Lens {
    fn takes(&self) -> usize {
        usize::MAX
    }
    fn take<'a>(&mut self, len: usize, _: Offload, _: impl Iterator<Item = Piece<'a>>) -> bool {
        self.0.push(len);
        true
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Arena,
    Sink,
    Reference,
}

/// A connected vif whose only queue is split into halves.
struct Halves {
    g: Counted,
    h: LocalDomain,
    fb: MapBus,
    tx: Box<TxHalf<Counted>>,
    rx: Box<RxHalf<Counted>>,
    back: BackVif<LocalDomain>,
    _front: FrontVif<Counted>,
}

impl Halves {
    fn new(requested: FrontConfig) -> Self {
        let xen = LocalXen::new();
        let g = Counted { domain: xen.domain(GUEST.0), rules: Counts::default() };
        let h = xen.domain(HOST.0);
        let (mut fb, mut bb) = device();
        let paths = PathConfig { guest_copy: true, ..PathConfig::default() };
        let mut back = BackVif::new(GUEST, 0, VifConfig { paths, ..VifConfig::default() });
        let mut front = FrontVif::new(HOST, requested, false);
        connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
        let queue = front.hand_out_queues().pop().expect("a queue");
        let (tx, rx) = queue.into_halves();
        g.rules.take();
        Self { g, h, fb, tx, rx, back, _front: front }
    }

    /// The back gives the guest a frame.
    fn deliver(&mut self) {
        let mut port = TestPort::default();
        port.gives.push_back(((0..1500).map(byte).collect(), Offload::default()));
        while self.back.poll_rx(&self.h, 0, &mut port).expect("an honest front") != Polled::Idle {}
    }

    fn recv(&mut self, way: Way) -> usize {
        let Self { g, rx, .. } = self;
        let (mut arena, mut lent) = (Arena::new(), Lent::default());
        let n = match way {
            Way::Arena => rx.recv(g, &mut arena, 1),
            Way::Sink => rx.recv(g, &mut Lens::default(), 1),
            Way::Reference => rx.recv_by_reference(g, &mut arena, &mut lent, 1),
        };
        lent.tokens().for_each(|token| rx.release(token).expect("it is lent"));
        n.expect("an honest back")
    }

    fn send(&mut self) {
        assert_eq!(self.tx.send(&self.g, &&[0; 60][..]), Ok(1));
    }

    /// The back answers what was sent.
    fn answer(&mut self) {
        let mut port = TestPort::default();
        while self.back.poll_tx(&self.h, 0, &mut port, &mut Arena::new()).expect("an honest front")
            != Polled::Idle
        {}
    }
}

#[test]
fn an_event_is_spurious_where_it_brought_no_frame() {
    for split_channels in [true, false] {
        for guest_copy in [true, false] {
            for way in [Way::Arena, Way::Sink, Way::Reference] {
                let mut halves = Halves::new(FrontConfig { split_channels, guest_copy, ..ordinary() });
                let what = format!("split {split_channels}, guest-copy {guest_copy}, {way:?}");
                let check = |halves: &mut Halves, work| {
                    assert_eq!(halves.rx.final_check(&halves.g), Ok(work), "{what}");
                    halves.g.rules.take()
                };
                assert_eq!(check(&mut halves, false), (1, 1), "{what}: nothing came");
                for _ in 0..3 {
                    halves.deliver();
                    assert_eq!(halves.recv(way), 1, "{what}");
                    assert_eq!(check(&mut halves, false), (1, 0), "{what}: a frame came");
                }
                halves.deliver();
                assert_eq!(check(&mut halves, true), (1, 0), "{what}: a frame is there");
                assert_eq!(halves.recv(way), 1, "{what}");
                assert_eq!(check(&mut halves, false), (1, 0), "{what}: it was taken");
                assert_eq!(check(&mut halves, false), (1, 1), "{what}: nothing came since");
            }
        }
    }
}

#[test]
fn an_event_is_spurious_where_it_brought_no_answer() {
    let mut halves = Halves::new(FrontConfig { split_channels: true, ..ordinary() });
    let check = |halves: &mut Halves, work| {
        assert_eq!(halves.tx.final_check(&halves.g, 1), Ok(work));
        halves.g.rules.take()
    };
    halves.send();
    assert_eq!(check(&mut halves, false), (1, 1), "nothing is answered");
    halves.answer();
    assert_eq!(check(&mut halves, true), (1, 0), "an answer is there");
    assert_eq!(halves.tx.reclaim(&halves.g, 1), Ok(1));
    assert_eq!(check(&mut halves, false), (1, 0), "it was taken");
    assert_eq!(check(&mut halves, false), (1, 1), "nothing came since");
}

#[test]
fn a_sender_waits_for_answers_that_can_come() {
    let mut halves = Halves::new(FrontConfig { split_channels: false, ..ordinary() });
    let check = |halves: &mut Halves| halves.tx.final_check(&halves.g, 1);
    assert_eq!((check(&mut halves), halves.rx.sender_waits()), (Ok(false), false), "nothing is in flight");
    halves.send();
    assert_eq!((check(&mut halves), halves.rx.sender_waits()), (Ok(false), true));
    halves.answer();
    assert_eq!((check(&mut halves), halves.rx.sender_waits()), (Ok(true), false), "it is there");
    assert_eq!((halves.tx.reclaim(&halves.g, 1), halves.rx.sender_waits()), (Ok(1), false));
    // More answers than there were requests.
    halves.send();
    let ring = halves.fb.own.borrow()["tx-ring-ref"].parse().map(GrantRef).expect("a number");
    let ring = halves.h.map(GUEST, &[ring], Access::ReadWrite).expect("the front's page");
    assert!(ring.store_u32(8, 1 << 20));
    assert!(check(&mut halves).is_err());
    assert!(!halves.rx.sender_waits(), "a fault ends the queue");
}

/// A back that counts, with a front of its own for each of these tests.
#[test]
fn an_event_is_spurious_where_it_brought_no_request() {
    for split_channels in [true, false] {
        let xen = LocalXen::new();
        let g = xen.domain(GUEST.0);
        let h = Counted { domain: xen.domain(HOST.0), rules: Counts::default() };
        let (mut fb, mut bb) = device();
        let mut back = BackVif::new(GUEST, 0, VifConfig::default());
        let mut front = FrontVif::new(HOST, FrontConfig { split_channels, ..ordinary() }, false);
        connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
        let mut queue = back.hand_out_queues().pop().expect("a queue");
        let channels = queue.channels().count() as u32;
        assert_eq!(channels, if split_channels { 2 } else { 1 });
        let (mut port, mut scratch) = (TestPort::default(), Arena::new());
        h.rules.take();
        let arm = |queue: &mut BackQueue<Counted>, work| {
            assert_eq!(queue.arm(&h), Ok(work));
            h.rules.take()
        };
        // The guest's slots are there: the link goes up. The first event is the platform's own.
        assert_eq!(queue.turn(&h, &mut port), Ok(true));
        assert_eq!(arm(&mut queue, false), (channels, 0));
        assert_eq!(arm(&mut queue, false), (channels, channels), "nothing came");
        // A frame of the guest: on its channel, and on no other.
        let others = channels - 1;
        for _ in 0..3 {
            let frame = [0; 60];
            assert_eq!(front.queue_mut(0).expect("a queue").send(&g, &&frame[..]), Ok(1));
            assert_eq!(arm(&mut queue, true), (channels, others), "a request is there");
            while queue.poll_tx(&h, &mut port, &mut scratch) == Ok(Polled::More) {}
            assert_eq!(arm(&mut queue, false), (channels, others), "it was taken");
            assert_eq!(arm(&mut queue, false), (channels, channels), "nothing came since");
            assert_eq!(front.queue_mut(0).expect("a queue").reclaim(&g, 1), Ok(1));
        }
        // A frame for the guest, and the slot that it posts again.
        port.gives.push_back((vec![0; 60], Offload::default()));
        while queue.poll_rx(&h, &mut port) == Ok(Polled::More) {}
        assert_eq!(arm(&mut queue, false), (channels, others), "a slot was used");
        assert_eq!(front.queue_mut(0).expect("a queue").recv(&g, &mut scratch, 1), Ok(1));
        assert_eq!(arm(&mut queue, false), (channels, others), "a slot came");
        assert_eq!(arm(&mut queue, false), (channels, channels), "nothing came since");
        back.take_back(vec![queue]);
    }
}
