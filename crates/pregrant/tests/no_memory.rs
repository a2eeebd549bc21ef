//! A front is set up while memory is short: each allocation of more than a page is refused once,
//! then all from some on. Each time the set-up fails with an error or does with less, memory comes
//! back, the front connects and moves a frame, and closes: nothing is left. A test binary of its
//! own, since the allocator that refuses is the whole process's; one that is asked in vain by code
//! that cannot fail ends it.
#![cfg(not(any(loom, miri)))]

use pregrant::net::back::{BackVif, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::regions::{Granting, OwnRing, Regions};
use pregrant::net::front::{FrontConfig, FrontVif, RxFront, TxFront};
use pregrant::net::path::copy::front::OrdinaryPages;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{FrontChain, PathConfig};
use pregrant::platform::local::{LocalChan, LocalDomain, LocalRegion, LocalXen};
use pregrant::platform::{Access, Events, GrantPool, GrantTable, InUse, Platform, ReadySet};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{FrontRing, NetRx, NetTx, RingKind, RingPages};
use pregrant::xenbus::front::FrontError;
use pregrant::{DomId, EvtchnPort, GrantRef, PlatformError};
use pregrant_testkit::bus::{MapBus, device};
use pregrant_testkit::counting::{Counting, Refused, live, refusing, spared};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort};
use std::time::Duration;

#[global_allocator]
static COUNTING: Counting = Counting;

/// A guest's domain: what the test's machine allocates for its grants and channels is not refused.
struct Spared(LocalDomain);

impl Platform for Spared {
    type Grants = Self;
    type Peer = LocalDomain;
    type Events = Self;
    type Clock = LocalDomain;
    fn domid(&self) -> DomId {
        self.0.domid()
    }
    fn grants(&self) -> &Self {
        self
    }
    fn peer(&self) -> &LocalDomain {
        &self.0
    }
    fn events(&self) -> &Self {
        self
    }
    fn clock(&self) -> &LocalDomain {
        &self.0
    }
}

impl Events for Spared {
    type Chan = LocalChan;
    fn offer(&self, to: DomId) -> Result<(LocalChan, EvtchnPort), PlatformError> {
        spared(|| self.0.offer(to))
    }
    fn bind(&self, to: DomId, port: EvtchnPort) -> Result<LocalChan, PlatformError> {
        spared(|| self.0.bind(to, port))
    }
    fn adopt(&self, chan: LocalChan) -> Result<LocalChan, PlatformError> {
        spared(|| self.0.adopt(chan))
    }
    fn local(&self, chan: &LocalChan) -> EvtchnPort {
        self.0.local(chan)
    }
    fn notify(&self, chan: &LocalChan) {
        spared(|| self.0.notify(chan));
    }
    fn unmask(&self, chan: &LocalChan) {
        spared(|| self.0.unmask(chan));
    }
    fn wait(&self, ready: &mut ReadySet, max: Option<Duration>) {
        self.0.wait(ready, max);
    }
}

// SAFETY: everything is the domain's.
#[allow(unsafe_code)]
unsafe impl GrantPool for Spared {
    type Region = LocalRegion;
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<LocalRegion, PlatformError> {
        spared(|| self.0.alloc(to, acc, refs))
    }
    fn release(&self, region: LocalRegion) -> Result<(), InUse<LocalRegion>> {
        spared(|| self.0.release(region))
    }
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = LocalRegion>> {
        Some(self)
    }
}

impl GrantTable for Spared {
    type Region = LocalRegion;
    fn pages(&self, pages: usize) -> Result<LocalRegion, PlatformError> {
        spared(|| self.0.pages(pages))
    }
    fn grant(
        &self,
        to: DomId,
        of: &LocalRegion,
        page: usize,
        acc: Access,
    ) -> Result<GrantRef, PlatformError> {
        spared(|| self.0.grant(to, of, page, acc))
    }
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>> {
        spared(|| self.0.revoke(gref))
    }
}

/// The settings of a front.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    config: FrontConfig,
    /// Frames are sent from pages of the guest's own.
    own_pages: bool,
}

fn cases() -> Vec<Case> {
    let len = DataLen::new(2048);
    let plain = FrontConfig { staging: Buffers::NONE, ring_order: 4, ..FrontConfig::default() };
    let staged = FrontConfig { staging: Buffers::of(len, len), ..plain };
    let sent_on = Buffers { sent_on: true, ..staged.staging };
    let short = DataLen::new(64);
    let more_buffers = Buffers { buffers: 8000, ..Buffers::of(short, short) };
    let case = |name, config| Case { name, config, own_pages: false };
    let mapped = FrontConfig { gref_mapping: true, ..plain };
    vec![
        case("copy", plain),
        case("staging", staged),
        case("staging, sent on", FrontConfig { staging: sent_on, ring_order: 3, ..staged }),
        case("staging, more buffers", FrontConfig { staging: more_buffers, ring_order: 0, ..staged }),
        case("data ring", FrontConfig { data_ring: Some(5), ..plain }),
        case("gref-mapping", mapped),
        case("gref-mapping, more pages", FrontConfig { pages: 1500, ring_order: 0, ..mapped }),
        case("persistent", FrontConfig { persistent: true, ..plain }),
        case("pages that come and go", FrontConfig { more_rx_pages: 512, ring_order: 0, ..mapped }),
        case("queues", FrontConfig { queues: 36, ring_order: 0, ..plain }),
        Case { name: "own pages", config: FrontConfig { ring_order: 0, ..mapped }, own_pages: true },
    ]
}

struct Vif {
    guest: Spared,
    host: LocalDomain,
    front: FrontVif<Spared>,
    back: BackVif<LocalDomain>,
    buses: (MapBus, MapBus),
}

impl Case {
    /// True if the front asks for more buffers or pages than its rings have slots.
    fn asks_for_more(&self) -> bool {
        self.config.staging.buffers > 0 || self.config.pages > 0
    }
}

/// Why a front is not live.
#[derive(Debug, PartialEq, Eq)]
struct NoMemory;

impl Vif {
    fn new(case: Case) -> Self {
        let xen = LocalXen::new();
        let guest = Spared(xen.domain(GUEST.0));
        let mut front = FrontVif::new(HOST, case.config, true);
        if case.own_pages {
            let memory = guest.pages(2048).expect("pages");
            assert!(front.use_memory(memory, 2048).is_ok());
        }
        let paths = PathConfig { gref_mapping: 4096, ..PathConfig::default() };
        let features = BackFeatures { mapped_pages: 4096, max_queues: 64, ..BackFeatures::default() };
        let back = BackVif::new(GUEST, 0, VifConfig { paths, features, ..VifConfig::default() });
        Self { guest, host: xen.domain(HOST.0), front, back, buses: device() }
    }

    fn back_step(&mut self) {
        self.back.step(&self.host, &mut self.buses.1, &mut |_, _| None).expect("an honest front");
        self.back.poll_ctrl(&self.host).expect("an honest front");
    }

    /// Steps both ends until the front is live, and has asked its back for what it asks; the
    /// front's calls are `refused` that memory.
    fn connect(&mut self, refused: &mut Refused) -> Result<(), NoMemory> {
        let mut was_handed_out = false;
        for _ in 0..100 {
            self.back_step();
            let (front, guest, bus) = (&mut self.front, &self.guest, &mut self.buses.0);
            match refusing(refused, || front.step(guest, bus)) {
                Ok(_) => {}
                Err(FrontError::Platform(PlatformError { code: 12, .. })) => {
                    refusing(refused, || front.restart(bus)).expect("a restart needs no memory");
                    return Err(NoMemory);
                }
                Err(e) => panic!("{e}"),
            }
            if front.is_live() && !was_handed_out {
                was_handed_out = true;
                refusing(refused, || {
                    let queues = front.hand_out_queues();
                    front.take_back(queues);
                    let _ = front.grow_rx(guest, 0, 300);
                });
            }
            refusing(refused, || front.turn(guest)).expect("an honest back");
            if front.is_live() && !front.is_announcing() {
                refusing(refused, || front.shrink_rx(guest, usize::MAX));
                return Ok(());
            }
        }
        panic!("it neither connects nor fails");
    }

    /// Whether the front has all of the buffers and pages beyond the slots that its case asks for.
    /// It has them whole or not at all, and its back accepts what it has.
    fn has_more(&self, case: &Case) -> bool {
        let queue = self.front.queue(0).expect("a queue");
        let (buffers, pages) = (queue.asked().staging.buffers, queue.pages());
        let FrontConfig { staging, pages: wanted, .. } = case.config;
        assert!([0, staging.buffers].contains(&buffers), "{}: {buffers} buffers", case.name);
        assert!(
            wanted == 0 || pages == [wanted; 2] || pages.iter().all(|&n| n <= SLOTS),
            "{}: {pages:?} pages",
            case.name
        );
        assert_eq!(self.front.not_offered(), [], "{}", case.name);
        buffers == staging.buffers && (wanted == 0 || pages == [wanted; 2])
    }

    /// A frame each way arrives.
    fn moves_frames(&mut self) {
        let (mut port, mut arena, mut scratch) = (TestPort::default(), Arena::new(), Arena::new());
        let frame = [0x5a; 1400];
        assert!(arena.push(&frame, Offload::default()));
        let queue = self.front.queue_mut(0).expect("a queue");
        assert_eq!(queue.send(&self.guest, &arena.burst()), Ok(1));
        self.back.poll_tx(&self.host, 0, &mut port, &mut scratch).expect("an honest front");
        port.gives.push_back((frame.to_vec(), Offload::default()));
        self.back.poll_rx(&self.host, 0, &mut port).expect("an honest front");
        arena.clear();
        let queue = self.front.queue_mut(0).expect("a queue");
        assert_eq!(queue.recv(&self.guest, &mut arena, 1), Ok(1));
        assert_eq!(
            (port.took.len(), &port.took[0].0[..], arena.burst().frame(0)),
            (1, &frame[..], &frame[..])
        );
    }

    /// Closes while memory is as short as before: no grant is left.
    fn close(mut self, refused: &mut Refused) {
        let (front, bus) = (&mut self.front, &mut self.buses.0);
        refusing(refused, || front.close(bus, None)).expect("a map");
        for _ in 0..8 {
            self.back_step();
            let (front, guest, bus) = (&mut self.front, &self.guest, &mut self.buses.0);
            refusing(refused, || front.step(guest, bus)).expect("closing needs no memory");
        }
        if self.front.memory().is_some() {
            let memory = self.front.take_memory(&self.guest).expect("no page is in use");
            assert!(self.guest.release(memory).is_ok());
        }
        assert!(self.front.is_closed());
    }
}

/// Slots of a ring of one page, which the fronts that ask for more have.
const SLOTS: u32 = 256;

/// One front, from its first step to its end. Whether something was refused, and whether the front
/// failed, says that it has less, or does without what it asked for beyond its slots: that is no
/// shortage, and the front says nothing.
fn play(case: Case, mut refused: Refused) -> (bool, bool) {
    let mut vif = Vif::new(case);
    let connected = vif.connect(&mut refused);
    let was_refused = refused.count() > 0;
    let lacks_more = || case.asks_for_more() && !vif.has_more(&case);
    let has_less = connected.is_err() || vif.front.shortage().is_some() || lacks_more();
    assert!(was_refused || !has_less, "{}: it has less though nothing was refused", case.name);
    if connected.is_err() {
        let again = vif.connect(&mut Refused::none());
        assert_eq!(again, Ok(()), "{}: no connection though there is memory", case.name);
        assert!(!case.asks_for_more() || vif.has_more(&case), "{}: less than there is", case.name);
    }
    vif.moves_frames();
    vif.close(&mut refused);
    (was_refused, has_less)
}

/// Makes one direction of a queue, `new`, while the first list of more than a page is refused, then
/// the second and so on, until none is: each time no grant is left.
fn ends_its_grants(new: impl Fn(&Spared) -> Box<dyn FnOnce(&Spared) -> Result<(), PlatformError>>) {
    for n in 0.. {
        let xen = LocalXen::new();
        let guest = Spared(xen.domain(GUEST.0));
        let make = new(&guest);
        let mut refused = Refused::from(n, false);
        let made = refusing(&mut refused, || make(&guest));
        if refused.count() == 0 {
            assert!(n > 0 && made.is_ok(), "no list of more than a page was asked for");
            return;
        }
        assert_eq!(made.err().map(|e| e.code), Some(12));
        assert_eq!(xen.counts().grants, 0, "grants are left after refusal {n}");
    }
}

/// Grants a ring of 16 pages, and an ordinary page for each of its slots.
fn ring_and_pages<K: RingKind>(guest: &Spared) -> (FrontRing<K, OwnRing<K, Spared>>, FrontChain<Spared>) {
    let mut refs = [GrantRef::NONE; 16];
    let ring = RingPages::new(guest.alloc(HOST, Access::ReadWrite, &mut refs).expect("pages"));
    ring.init();
    let ring = FrontRing::new(ring);
    let (regions, granting) = (&mut Regions::new(HOST), Granting::Standing);
    let pages = OrdinaryPages::new(guest, regions, Access::ReadWrite, ring.size(), granting);
    (ring, FrontChain::new(None, Some(pages.expect("pages"))))
}

#[test]
fn a_direction_for_whose_tables_there_is_no_memory_ends_its_grants() {
    ends_its_grants(|guest| {
        let (ring, chain) = ring_and_pages::<NetTx>(guest);
        Box::new(move |guest| TxFront::new(guest, ring, chain).map(drop))
    });
    ends_its_grants(|guest| {
        let (ring, chain) = ring_and_pages::<NetRx>(guest);
        Box::new(move |guest| RxFront::new(guest, ring, chain, 1).map(drop))
    });
}

#[test]
fn what_there_is_no_memory_for_is_an_error_or_less_and_nothing_is_left() {
    let mut text = String::new();
    for case in cases() {
        // All from one on: from every fourth.
        for (from_then_on, stride) in [(false, 1), (true, 4)] {
            let (mut tried, mut had_less) = (0, 0);
            loop {
                let before = live();
                let (was_refused, has_less) = play(case, Refused::from(tried * stride, from_then_on));
                assert_eq!(live(), before, "{}: memory is left after refusal {}", case.name, tried * stride);
                if !was_refused {
                    break;
                }
                (tried, had_less) = (tried + 1, had_less + u64::from(has_less));
            }
            text += &format!("{}: of {tried} set-ups {had_less} failed or had less\n", case.name);
            assert!(tried > 0 && had_less > 0, "{text}");
        }
    }
    println!("{text}");
}
