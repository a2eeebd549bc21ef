//! A back that cycles through its states and keeps pages mapped (XSA-396), on a platform whose
//! release never fails: over hundreds of connections the guest grants only what one connection
//! needs.
#![cfg(not(miri))]

use pregrant_testkit::rounds::rounds;

use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::keys::Offer;
use pregrant::net::path::staging::keys::active_key;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalMap, LocalRegion, LocalXen};
use pregrant::platform::{Access, GrantPool, GrantTable, InUse, PeerMem, Platform};
use pregrant::port::{Arena, Offload};
use pregrant::shm::SharedBytes;
use pregrant::{DomId, GrantRef, PAGE_SIZE, PeerFault, PlatformError};
use pregrant_testkit::bus::{MapBus, device};
use pregrant_testkit::own_grants::OwnGrants;
use pregrant_testkit::two_domains::{GUEST, HOST};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Linux's gntalloc: an allocation is the grant, and a release always succeeds. The kernel ends the
/// grants later, once the peer has let go; till then they are in no count of its.
struct Gntalloc {
    domain: LocalDomain,
    deferred: RefCell<Vec<LocalRegion>>,
    /// Number of pages, at most `limit` at a time.
    counted: Cell<usize>,
    limit: usize,
    /// Pages that were ever granted.
    ever: Cell<usize>,
}

impl Gntalloc {
    fn of(domain: LocalDomain, limit: usize) -> OwnGrants<Self> {
        let (counted, ever) = (Cell::new(0), Cell::new(0));
        OwnGrants::new(domain, |domain| Self { domain, deferred: RefCell::default(), counted, limit, ever })
    }
}

// SAFETY: everything is the domain's; a region is freed when its grants have ended.
#[allow(unsafe_code)]
unsafe impl GrantPool for Gntalloc {
    type Region = LocalRegion;
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<LocalRegion, PlatformError> {
        if self.counted.get() + refs.len() > self.limit {
            return Err(PlatformError { op: "grant more pages than the limit allows", code: 28 });
        }
        self.counted.set(self.counted.get() + refs.len());
        self.ever.set(self.ever.get() + refs.len());
        self.domain.alloc(to, acc, refs)
    }
    fn release(&self, region: LocalRegion) -> Result<(), InUse<LocalRegion>> {
        self.counted.set(self.counted.get() - region.len() / PAGE_SIZE);
        let mut deferred = self.deferred.borrow_mut();
        deferred.push(region);
        *deferred = deferred.drain(..).filter_map(|r| self.domain.release(r).err().map(|e| e.0)).collect();
        Ok(())
    }
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = LocalRegion>> {
        None
    }
}

/// A back that maps all that it is granted, and lets go of nothing.
struct Hoarder {
    host: LocalDomain,
    bus: MapBus,
    /// For each reference the mapping, and whether it is writable.
    maps: BTreeMap<u32, (LocalMap, bool)>,
    /// The back accepts staging lists.
    accepts: bool,
}

impl Hoarder {
    fn new(host: LocalDomain, bus: MapBus) -> Self {
        Self { host, bus, maps: BTreeMap::new(), accepts: true }
    }

    fn show(&self, state: u8) {
        self.bus.own.borrow_mut().insert("state".into(), state.to_string());
    }

    fn offer(&self, features: &BackFeatures) {
        self.bus.own.borrow_mut().clear();
        self.bus.own.borrow_mut().extend(features.pairs());
        self.show(2);
    }

    /// References are small numbers: no one has to tell which.
    fn map_all(&mut self, most: u32) {
        for gref in 1..most {
            let map = |acc| self.host.map(GUEST, &[GrantRef(gref)], acc);
            if self.maps.contains_key(&gref) {
                continue;
            }
            if let Ok(map) = map(Access::ReadWrite) {
                self.maps.insert(gref, (map, true));
            } else if let Ok(map) = map(Access::ReadOnly) {
                self.maps.insert(gref, (map, false));
            }
        }
    }

    /// Number of pages that contain this byte four times in a row.
    fn pages_with(&self, byte: u8) -> usize {
        let mut page = vec![0; PAGE_SIZE];
        let mut shows = |map: &LocalMap| {
            assert!(map.copy_out(0, &mut page));
            page.contains(&byte) && page.windows(4).any(|four| four == [byte; 4])
        };
        self.maps.values().filter(|(map, _)| shows(map)).count()
    }

    /// Which grants may be written.
    fn access(&self) -> BTreeMap<u32, bool> {
        self.maps.iter().map(|(gref, (_, writable))| (*gref, *writable)).collect()
    }
}

/// Content of the guest's frames, and byte that the back writes wherever it can.
const SENT: u8 = 0xA7;
const SCRAWL: u8 = 0xB9;

/// Plays one cycle of states 2, 4, 5, 6, with frames in between. `check`: reads all memory.
fn turn<P: Platform>(
    p: &P,
    front: &mut FrontVif<P>,
    fb: &mut MapBus,
    back: &mut Hoarder,
    offer: &BackFeatures,
    check: bool,
) {
    back.offer(offer);
    // From 6 to 1, and on.
    front.step(p, fb).expect("a map");
    assert_eq!(fb.own.borrow()["state"], "4");
    back.map_all(3000);
    if check && front.kept_pages() == 0 {
        assert_eq!((back.pages_with(SENT), back.pages_with(SCRAWL)), (0, 0), "what is offered is zeroed");
    }
    let queues = fb.own.borrow().get("multi-queue-num-queues").map_or(1, |n| n.parse().expect("a number"));
    for i in 0..queues {
        let accepts = u32::from(back.accepts).to_string();
        back.bus.own.borrow_mut().insert(active_key(i, queues).to_string(), accepts);
    }
    back.show(4);
    front.step(p, fb).expect("a map");
    assert!(front.is_live() && front.nr_queues() == queues);
    assert!(front.staging_accepted(0) == (back.accepts && !offer.staging.sizes.is_empty()) || !check);
    back.map_all(3000);
    let mut burst = Arena::new();
    for len in [100, 9000] {
        assert!(burst.push(&vec![SENT; len], Offload::default()));
    }
    for i in 0..front.nr_queues() {
        // None once the ring is full of those that no one has answered.
        front.queue_mut(i).unwrap().send(p, &burst.burst()).expect("grants stand");
    }
    assert!(!check || back.pages_with(SENT) >= 3, "it sees what it is sent");
    back.show(5);
    front.step(p, fb).expect("a map");
    back.show(6);
    front.step(p, fb).expect("a map");
    assert!(!front.is_live());
    for (map, _) in back.maps.values().filter(|(_, writable)| *writable) {
        assert!(map.copy_in(64, &[SCRAWL; PAGE_SIZE - 64]));
    }
}

fn config(len: u32) -> FrontConfig {
    let len = DataLen::new(len);
    FrontConfig { queues: 2, staging: Buffers::of(len, len), ctrl_ring: true, ..FrontConfig::default() }
}

/// Offers that have the front make its queues of other memory each time.
fn offers() -> [BackFeatures; 5] {
    let all = BackFeatures { ctrl_ring: true, ..BackFeatures::default() };
    [
        all.clone(),
        BackFeatures { staging: Offer::NONE, ..all.clone() },
        BackFeatures { max_queues: 1, ..all.clone() },
        BackFeatures { max_queues: 1, staging: Offer::NONE, ctrl_ring: false, ..all.clone() },
        all,
    ]
}

/// Some hundred cycles of states 2, 4, 5 and 6, with the same offer each time or another one; no
/// page is ever unmapped.
#[test]
fn xsa_396_a_back_that_cycles_gets_one_connection_s_pages() {
    let all = offers();
    for (len, offers, turns) in
        [(256, &all[..1], 300), (256, &all[..], 100), (65535, &all[..1], 100), (65535, &all[..], 100)]
    {
        let xen = LocalXen::new();
        let p = Gntalloc::of(xen.domain(GUEST.0), 1 << 20);
        let (mut fb, bb) = device();
        let mut back = Hoarder::new(xen.domain(HOST.0), bb);
        let mut front = FrontVif::new(HOST, config(len), true);
        let mut once = (0, 0);
        for n in 0..rounds(turns / 2, turns) {
            xen.stop_clock(n * 1_000_000_000);
            // Every third time it takes the lists, and says no.
            back.accepts = n % 3 < 2;
            turn(&p, &mut front, &mut fb, &mut back, &offers[n as usize % offers.len()], n % 50 < 3);
            let now = (xen.counts().grants, p.ever.get());
            if n == 0 {
                once = now;
                assert!(once.0 > 1000 && once.0 == once.1, "{once:?} pages of two queues");
            }
            assert_eq!(now, once, "turn {n}, {len} bytes: pages that are granted, and ever were");
        }
        // The end of the vif: all that the platform can say is that it took them.
        front.close(&mut fb, None).expect("a map");
        front.step(&p, &mut fb).expect("a map");
        assert!(front.is_closed());
        assert_eq!((p.counted.get(), xen.counts().grants), (0, once.0));
    }
}

/// The pages that one vif may release for others in its life (net/front/regions.rs), and the plans
/// of the connection that reaches that limit: twelve are more than there are.
fn spare(limit: usize) -> usize {
    8192 + 12 * limit
}

/// With little memory, so that plans are tried and given up, and idle pages are released for
/// others: the number of pages stays within the limit and does not grow.
#[test]
fn xsa_396_a_back_that_cycles_where_memory_is_short_gets_what_there_is() {
    let all = offers();
    for limit in [400, 600, 775, 800, 1024] {
        let xen = LocalXen::new();
        let p = Gntalloc::of(xen.domain(GUEST.0), limit);
        let (mut fb, bb) = device();
        let mut back = Hoarder::new(xen.domain(HOST.0), bb);
        let mut front = FrontVif::new(HOST, config(65535), true);
        let mut had = (0, 0);
        for n in 0..100 {
            xen.stop_clock(n as u64 * 1_000_000_000);
            back.accepts = n % 3 < 2;
            turn(&p, &mut front, &mut fb, &mut back, &all[n % all.len()], false);
            assert!(xen.counts().grants <= limit + spare(limit), "turn {n}: {} pages", xen.counts().grants);
            assert!(p.counted.get() <= limit);
            match n {
                50 => had = (p.ever.get(), xen.counts().grants),
                51.. => assert_eq!((p.ever.get(), xen.counts().grants), had, "turn {n} of limit {limit}"),
                _ => {}
            }
        }
    }
}

/// With little memory, a front that returns to an honest back gets what a new front would, however
/// many queues the last connection had.
#[test]
fn pages_of_the_last_connection_do_not_stand_in_the_way_of_the_next() {
    for limit in [775, 800, 1024] {
        // By the queues that each back takes: those of the last connection, and the pages granted
        // then.
        let of = |takes: &[u32]| {
            let xen = LocalXen::new();
            let p = Gntalloc::of(xen.domain(GUEST.0), limit);
            let (mut fb, bb) = device();
            let mut back = Hoarder::new(xen.domain(HOST.0), bb);
            let mut front = FrontVif::new(HOST, FrontConfig { ctrl_ring: false, ..config(65535) }, true);
            let mut last = (0, 0);
            for (n, max_queues) in takes.iter().enumerate() {
                xen.stop_clock(n as u64 * 1_000_000_000);
                let offer = BackFeatures { max_queues: *max_queues, ..BackFeatures::default() };
                turn(&p, &mut front, &mut fb, &mut back, &offer, false);
                last = (
                    fb.own.borrow().get("multi-queue-num-queues").map_or(1, |n| n.parse().unwrap()),
                    back.maps.len(),
                );
                back.maps.clear();
            }
            last
        };
        for (takes, fresh) in [(&[1, 2][..], 2), (&[2, 1], 1), (&[2, 2], 2), (&[1, 2, 1, 2, 1, 2], 2)] {
            let (again, fresh) = (of(takes), of(&[fresh]));
            assert_eq!(again.0, fresh.0, "queues after {takes:?}, of {limit} pages");
            assert!(
                again.1 >= fresh.1,
                "{} pages after {takes:?}, a new front {}, of {limit}",
                again.1,
                fresh.1
            );
        }
    }
}

/// A page that the back could only read stays read-only for it, however often it is reused. Pages
/// of one back are never given to another one.
#[test]
fn xsa_396_pages_come_back_with_the_access_that_they_had_and_to_no_one_else() {
    let xen = LocalXen::new();
    let p = Gntalloc::of(xen.domain(GUEST.0), 1 << 20);
    let (mut fb, bb) = device();
    let mut back = Hoarder::new(xen.domain(HOST.0), bb);
    let mut front = FrontVif::new(HOST, config(256), true);
    let mut access = BTreeMap::new();
    let offers = offers();
    for n in 0..20 {
        xen.stop_clock(n as u64 * 1_000_000_000);
        back.maps.clear();
        turn(&p, &mut front, &mut fb, &mut back, &offers[n % offers.len()], true);
        if n == 0 {
            access = back.access();
            assert!(access.values().any(|w| *w) && access.values().any(|w| !*w));
        }
        assert!(back.access() == access, "turn {n}");
    }
    // Another domain's vif of the same guest, while the first one waits for its back.
    let other = DomId(2);
    let (mut other_fb, other_bb) = device();
    let mut hoarder = Hoarder::new(xen.domain(other.0), other_bb);
    let mut second = FrontVif::new(other, config(256), true);
    turn(&p, &mut second, &mut other_fb, &mut hoarder, &offers[0], true);
    assert_eq!(hoarder.maps.len(), access.len());
    assert!(hoarder.maps.keys().all(|gref| !access.contains_key(gref)));
    assert_eq!(hoarder.pages_with(SCRAWL), hoarder.maps.values().filter(|(_, writable)| *writable).count());
}

/// A page that the back has kept from its last connection may be its ring in this one. Its writes
/// there before and after the vif is connected break the protocol like any other write.
#[test]
fn a_ring_that_is_written_to_through_an_old_mapping_is_a_fault_at_most() {
    for before in [true, false] {
        let xen = LocalXen::new();
        let p = Gntalloc::of(xen.domain(GUEST.0), 1 << 20);
        let (mut fb, bb) = device();
        let mut back = Hoarder::new(xen.domain(HOST.0), bb);
        let mut front = FrontVif::new(HOST, FrontConfig { queues: 1, ..config(256) }, true);
        let offer = &offers()[0];
        turn(&p, &mut front, &mut fb, &mut back, offer, true);
        let scrawl = |back: &Hoarder| {
            for (map, _) in back.maps.values().filter(|(_, writable)| *writable) {
                assert!(map.copy_in(0, &[SCRAWL; 16]));
            }
        };
        back.offer(offer);
        front.step(&p, &mut fb).expect("a map");
        if before {
            scrawl(&back);
        }
        back.show(4);
        front.step(&p, &mut fb).expect("it reads no index of the back's");
        assert!(front.is_live());
        scrawl(&back);
        let violation = u32::from_le_bytes([SCRAWL; 4]);
        let overrun = |fault: &PeerFault| matches!(fault, PeerFault::RspProdOverrun { rsp_prod, .. } if *rsp_prod == violation);
        assert!(front.queue_mut(0).unwrap().reclaim(&p, 1).is_err_and(|fault| overrun(&fault)));
        assert!(
            front.queue_mut(0).unwrap().recv(&p, &mut Arena::new(), 1).is_err_and(|fault| overrun(&fault))
        );
    }
}

/// A back that cycles does not make its front connect without limit, and the front tells when it
/// will.
#[test]
fn a_front_backs_off_from_a_back_that_cycles() {
    let xen = LocalXen::new();
    let p = Gntalloc::of(xen.domain(GUEST.0), 1 << 20);
    let (mut fb, bb) = device();
    let back = Hoarder::new(xen.domain(HOST.0), bb);
    let mut front = FrontVif::new(HOST, config(256), true);
    let (mut now, mut connected, mut waited) = (1_000_000_000, 0, Vec::new());
    xen.stop_clock(now);
    // As many turns as the back likes.
    for _ in 0..1000 {
        for state in [2, 4, 5, 6] {
            if state == 2 {
                back.offer(&offers()[0]);
            }
            back.show(state);
            front.step(&p, &mut fb).expect("a map");
            connected += u32::from(front.is_live());
            if let Some(at_ns) = front.begins_at_ns() {
                assert!(at_ns > now && !front.is_live());
            }
        }
    }
    assert_eq!(connected, 9, "the first, and eight that start again");
    // Then two a second.
    for _ in 0..20 {
        let at_ns = front.begins_at_ns().expect("it waits");
        xen.stop_clock(at_ns - 1);
        back.offer(&offers()[0]);
        front.step(&p, &mut fb).expect("a map");
        assert_eq!(front.begins_at_ns(), Some(at_ns), "not before");
        waited.push(at_ns - now);
        now = at_ns;
        xen.stop_clock(now);
        front.step(&p, &mut fb).expect("a map");
        assert_eq!((front.begins_at_ns(), fb.own.borrow()["state"].as_str()), (None, "4"));
        for state in [4, 5, 6] {
            back.show(state);
            front.step(&p, &mut fb).expect("a map");
        }
    }
    assert_eq!(waited, [500_000_000; 20]);
}
