//! The redo page as a successor finds it at the moments at which a back may die with frames in
//! flight (docs/protocol 1.1, R7): when frames are passed to the port, when the port is asked for
//! frames, and afterwards.
//!
//! ```text
//!   TxQueue::poll --in_flight--> port.tx_burst: inspect      RxQueue::poll --asking--> port.rx_burst: inspect --in_flight--> ...
//! ```
//! To inspect is to copy ring page and redo page, and to take the copy up.
#![cfg(not(miri))]

use pregrant::GrantRef;
use pregrant::net::back::{Patience, Polled, RxQueue, SharedControl, TxQueue};
use pregrant::net::features::RxAccepts;
use pregrant::net::path::{AnyPath, CopyPath, MapPath};
use pregrant::platform::local::{LocalDomain, LocalMap, LocalRegion, Pages};
use pregrant::platform::{Access, GrantPool};
use pregrant::port::{Arena, Burst, Completions, FramePort, Offload, Offloads, Payload, ZeroCopyBurst};
use pregrant::ring::{BackRing, InFlight, NetRx, NetTx, RedoPage, RingKind, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RxRequest, TXF_MORE_DATA, TxRequest};
use pregrant_testkit::model_front::{RxModel, Slot, TxModel};
use pregrant_testkit::shelf::Shelf;
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

struct Survives<K> {
    ring: LocalRegion,
    redo: Pages,
    kind: PhantomData<K>,
}

impl<K: RingKind> Survives<K> {
    /// A new ring's pages, and the back's end of that ring.
    fn new(domains: &TwoDomains) -> (Self, BackRing<K, RingPages<K, LocalMap>>) {
        let (front, back) = domains.ring::<K>();
        let survives = Self { ring: front.into_pages(), redo: Pages::new(1), kind: PhantomData };
        let (back, _) = BackRing::attach(back, RedoPage::new(survives.redo.clone())).expect("a fresh ring");
        (survives, back)
    }

    /// What a successor would find if the back died now.
    fn inspect(&self) -> InFlight {
        let copy = |of: &dyn SharedBytes| {
            let (copy, mut bytes) = (Pages::new(1), vec![0; of.len()]);
            assert!(of.copy_out(0, &mut bytes) && copy.copy_in(0, &bytes));
            copy
        };
        let ring = RingPages::<K, _>::new(copy(&self.ring));
        let (back, _) =
            BackRing::attach(ring, RedoPage::new(copy(&self.redo))).expect("the ring can be taken up");
        back.inherited().expect("a redo page")
    }

    fn answered(&self) -> u32 {
        RingPages::<K, _>::new(self.ring.clone()).load(Word::RspProd)
    }

    fn release(self, domains: &TwoDomains) {
        assert!(domains.guest.release(self.ring).is_ok(), "the back still maps the ring");
    }
}

/// A port that inspects whenever it is called.
struct InspectingPort<'a, K> {
    survives: &'a Survives<K>,
    /// Number of frames that it accepted, and how many of these were in flight when it got the last
    /// of them.
    took: u32,
    in_flight: Vec<(u32, InFlight)>,
    gives: VecDeque<usize>,
    asked: Vec<InFlight>,
}

impl<'a, K> InspectingPort<'a, K> {
    fn new(survives: &'a Survives<K>) -> Self {
        Self { survives, took: 0, in_flight: Vec::new(), gives: VecDeque::new(), asked: Vec::new() }
    }
}

impl<K: RingKind + Sync> FramePort for InspectingPort<'_, K> {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.took += frames.iter().count() as u32;
        self.in_flight.push((self.took - self.survives.answered(), self.survives.inspect()));
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        self.asked.push(self.survives.inspect());
        let before = into.len();
        while into.has_room()
            && let Some(len) = self.gives.pop_front()
        {
            assert!(into.push(&vec![7; len], Offload::default()));
        }
        into.len() - before
    }
    fn held(&self) -> usize {
        self.gives.len()
    }
}

fn known(frames: u32) -> InFlight {
    InFlight { frames, asking: false, total: frames }
}

/// A frame that the port gets, or got and whose answer waits, may be passed twice: a successor
/// learns of it before the port gets it.
#[test]
fn frames_are_in_hand_before_the_port_has_them_until_they_are_answered() {
    let paths: [fn() -> AnyPath<LocalDomain>; 2] =
        [|| AnyPath::Copy(CopyPath::default()), || AnyPath::Map(MapPath::default())];
    for path in paths {
        let domains = TwoDomains::new();
        let (survives, ring) = Survives::<NetTx>::new(&domains);
        let (_front_chan, chan) = domains.channel();
        let mut refs = [GrantRef::NONE];
        let memory = domains.guest.alloc(HOST, Access::ReadOnly, &mut refs).expect("the guest's page");
        let mut model = TxModel::new(RingPages::new(survives.ring.clone()));
        let mut back = TxQueue::new(ring, path()).expect("memory");
        let mut port = InspectingPort::new(&survives);
        let (mut arena, control, mut id) = (Arena::new(), SharedControl::default(), 0);
        for frames in [3, 1, 5, 0, 2] {
            for _ in 0..frames {
                model.play(&[Slot::Data(TxRequest { gref: refs[0].0, offset: 0, flags: 0, id, size: 900 })]);
                id += 1;
            }
            back.poll(&domains.host, GUEST, &chan, &mut port, &mut arena, &control).expect("an honest front");
        }
        while back.poll(&domains.host, GUEST, &chan, &mut port, &mut arena, &control) == Ok(Polled::More) {}
        assert_eq!(port.in_flight.len(), 4, "one burst for each batch with frames");
        for (due, found) in &port.in_flight {
            assert_eq!(*found, known(*due), "{:?}", port.in_flight);
        }
        assert_eq!((port.took, survives.inspect()), (11, known(0)), "all are answered");
        drop((back, chan));
        assert!(domains.guest.release(memory).is_ok());
        survives.release(&domains);
    }
}

/// A port that maps what it gets, and keeps it.
pub struct KeepingPort(pub Arc<Shelf>);

impl FramePort for KeepingPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn payload(&self) -> Payload {
        Payload::ZeroCopy
    }
    fn tx_burst(&mut self, _: &Burst<'_>) -> usize {
        unreachable!("all frames are lent")
    }
    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        let completions: Arc<dyn Completions> = self.0.clone();
        frames.map_payload();
        let kept = (0..frames.len()).filter_map(|i| frames.hold(i, &completions));
        self.0.kept().extend(kept);
        frames.len()
    }
    fn rx_burst(&mut self, _: &mut Arena) -> usize {
        0
    }
}

/// A frame that the port keeps is in hand until the port has completed it and it is answered: the
/// port of a successor may get it a second time. One that the port found unreadable is not.
#[test]
fn frames_that_a_port_keeps_are_in_hand_until_they_are_answered() {
    let domains = TwoDomains::new();
    let (survives, ring) = Survives::<NetTx>::new(&domains);
    let (_front_chan, chan) = domains.channel();
    let mut refs = [GrantRef::NONE];
    let memory = domains.guest.alloc(HOST, Access::ReadOnly, &mut refs).expect("the guest's page");
    let mut model = TxModel::new(RingPages::new(survives.ring.clone()));
    let mut back = TxQueue::new(ring, AnyPath::Map(MapPath::default())).expect("memory");
    let mut port = KeepingPort(Arc::default());
    let (mut arena, control, mut id) = (Arena::new(), SharedControl::default(), 0);
    for (bad, due) in [(0, 3), (1, 5), (3, 5), (0, 8)] {
        for k in 0..3 {
            // The head's page is there, and its payload's is not.
            let second = if k < bad { 77_777 } else { refs[0].0 };
            model.play(&[
                Slot::Data(TxRequest { gref: refs[0].0, offset: 0, flags: TXF_MORE_DATA, id, size: 900 }),
                Slot::Data(TxRequest { gref: second, offset: 0, flags: 0, id: id + 1, size: 500 }),
            ]);
            id += 2;
        }
        back.poll(&domains.host, GUEST, &chan, &mut port, &mut arena, &control).expect("an honest front");
        assert_eq!(survives.inspect(), known(due));
    }
    assert_eq!(survives.answered(), 0);
    port.0.finish_newest(0);
    back.poll(&domains.host, GUEST, &chan, &mut port, &mut arena, &control).expect("an honest front");
    assert_eq!((survives.answered(), survives.inspect()), (24, known(0)));
    drop((back, chan));
    assert!(domains.guest.release(memory).is_ok());
    survives.release(&domains);
}

/// Frames requested of the port, frames that wait, and frames left in the port: lost with the back
/// until they are answered.
#[test]
fn frames_for_the_guest_are_in_hand_from_the_port_to_the_answer() {
    let domains = TwoDomains::new();
    let (survives, ring) = Survives::<NetRx>::new(&domains);
    let (_front_chan, chan) = domains.channel();
    let mut refs = [GrantRef::NONE; 8];
    let memory = domains.guest.alloc(HOST, Access::ReadWrite, &mut refs).expect("the guest's pages");
    let mut model = RxModel::new(RingPages::new(survives.ring.clone()));
    let no_sg = RxAccepts { sg: false, ..RxAccepts::ALL };
    let mut back = RxQueue::new(ring, AnyPath::Copy(CopyPath::default()), no_sg).expect("memory");
    let mut port = InspectingPort::new(&survives);
    let control = SharedControl::default();
    let mut id = 0;
    let mut post = |n: u16| {
        for _ in 0..n {
            model.post(RxRequest { id: id % 8, gref: refs[usize::from(id % 8)].0 });
            id += 1;
        }
    };
    let mut poll = |port: &mut InspectingPort<'_, NetRx>| {
        let polled = back.poll(&domains.host, GUEST, &chan, port, &control).expect("an honest front");
        (polled, survives.inspect())
    };
    // All go.
    post(3);
    port.gives.extend([60, 70, 80]);
    assert_eq!(poll(&mut port), (Polled::More, known(0)));
    // Nothing is there.
    assert_eq!(poll(&mut port), (Polled::Idle, known(0)));
    // One goes and two wait for slots; then the port gets more, behind them.
    post(1);
    port.gives.extend([60, 70, 80]);
    assert_eq!(poll(&mut port), (Polled::More, known(2)));
    port.gives.extend([60; 5]);
    assert_eq!(poll(&mut port), (Polled::Idle, known(2 + 5)));
    post(2);
    assert_eq!(poll(&mut port), (Polled::More, known(5)));
    // One that this guest cannot take is dropped, and in no one's hands.
    port.gives = [60, 5000, 60].into();
    post(2);
    assert_eq!(poll(&mut port), (Polled::More, known(0)));
    assert_eq!(port.asked.len(), 4);
    assert!(port.asked.iter().all(|found| found.asking), "{:?}", port.asked);
    assert_eq!(model.frames().map(|frames| frames.len()), Ok(8));
    drop((back, chan));
    assert!(domains.guest.release(memory).is_ok());
    survives.release(&domains);
}

/// Frames that a stalled queue drops, its own and its port's, are in no one's hands.
#[test]
fn frames_that_expire_leave_the_hands_of_the_back() {
    let domains = TwoDomains::new();
    let (survives, ring) = Survives::<NetRx>::new(&domains);
    let (_front_chan, chan) = domains.channel();
    let mut back = RxQueue::new(ring, AnyPath::Copy(CopyPath::default()), RxAccepts::ALL).expect("memory");
    let mut port = InspectingPort::new(&survives);
    back.watch(Patience::default(), true, true, 0);
    port.gives.extend([60; 70]);
    let polled = back.poll(&domains.host, GUEST, &chan, &mut port, &SharedControl::default());
    assert_eq!((polled, survives.inspect()), (Ok(Polled::Idle), known(64 + 6)));
    assert_eq!(back.turn(0, &mut port), Ok(()));
    assert_eq!(survives.inspect(), known(70), "nothing has expired yet");
    assert_eq!(back.turn(61_000_000_000, &mut port), Ok(()));
    assert_eq!((back.waiting(), port.gives.len(), survives.inspect()), (0, 0, known(0)));
    assert_eq!(port.asked.len(), 3, "for its first burst, for what it had left, and for nothing more");
    assert!(port.asked.iter().all(|found| found.asking), "{:?}", port.asked);
    drop((back, chan));
    survives.release(&domains);
}
