//! Pages that a back grants for RX (docs/protocol 4.7): how both ends agree, the front's checks of
//! the back's list and responses, what happens to frames when a back ends, and to pages that a
//! guest keeps mapped.
#![cfg(not(miri))]

use crate::pair::{Pair, ordinary};

use pregrant::net::back::{BackVif, Polled, PreviousState, VifConfig};
use pregrant::net::front::{Diverted, FrontConfig, FrontVif, Granting, HookAction, Regions, RxFront};
use pregrant::net::path::FrontChain;
use pregrant::net::path::PathConfig;
use pregrant::net::path::Refusal;
use pregrant::net::path::copy::front::OrdinaryPages;
use pregrant::net::path::research::guest_copy::keys::LendRefusal;
use pregrant::net::path::research::guest_copy::{
    ACTIVE, COUNT, FEATURE, GENERATION, LIST_REF, REFS, generation_of,
};
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalMap};
use pregrant::platform::{Access, PeerMem};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads};
use pregrant::ring::{FrontRing, NetRx, RingMem, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RXF_MORE_DATA, RxResponse};
use pregrant::xenbus::BackDevice;
use pregrant::xenbus::connect_error::{ConnectError, TooManyPages};
use pregrant::{GrantRef, PAGE_SIZE, PeerFault, PlatformError};
use pregrant_testkit::bus::{MapBus, connect};
use pregrant_testkit::own_grants::{FrameRules, OwnGrants, PerFrame};
use pregrant_testkit::two_domains::{GUEST, HOST, SLOTS, TestPort, TwoDomains, byte};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};

/// Both ends, the back with frames for the front.
struct Lender {
    ends: Pair,
    /// Frames that were given to the back.
    given: usize,
    port: TestPort,
}

fn request() -> FrontConfig {
    FrontConfig { guest_copy: true, ..ordinary() }
}

fn serving(guest_copy: bool) -> VifConfig {
    VifConfig { paths: PathConfig { guest_copy, ..PathConfig::default() }, ..VifConfig::default() }
}

impl Lender {
    fn new(requested: FrontConfig, served: VifConfig) -> Self {
        Self { ends: Pair::new(requested, served), given: 0, port: TestPort::default() }
    }

    fn connected(requested: FrontConfig, served: VifConfig) -> Self {
        let mut lender = Self::new(requested, served);
        lender.ends.connect();
        assert!(lender.ends.front.is_live());
        lender
    }

    /// The content of frame number `n`, of `len` bytes.
    fn frame(n: usize, len: usize) -> Vec<u8> {
        (0..len).map(|k| byte(k + 7 * n)).collect()
    }

    /// The back gets frames of these lengths, and delivers them on queue 0.
    fn deliver(&mut self, lens: &[usize]) {
        for &len in lens {
            self.port.gives.push_back((Self::frame(self.given, len), Offload::default()));
            self.given += 1;
        }
        while self.ends.back.poll_rx(&self.ends.h, 0, &mut self.port).expect("an honest front")
            != Polled::Idle
        {}
    }

    /// The frames that the front receives on queue 0; None for a frame that it dropped.
    fn receive(&mut self) -> Result<Vec<Option<Vec<u8>>>, PeerFault> {
        let mut got = Vec::new();
        loop {
            let mut arena = Arena::new();
            let n = self.ends.front.queue_mut(0).unwrap().recv(&self.ends.g, &mut arena, 1)?;
            let frames = (0..n).map(|i| arena.burst().frame(i).to_vec());
            got.extend(frames.map(|frame| Some(frame).filter(|frame| !frame.is_empty())));
            if n == 0 {
                return Ok(got);
            }
        }
    }

    fn page(&self, key: &str) -> LocalMap {
        let gref = self.ends.fb.own.borrow()[key].parse().map(GrantRef).expect("a number");
        self.ends.h.map(GUEST, &[gref], Access::ReadWrite).expect("the front's page")
    }
}

#[test]
fn both_ends_agree_and_nothing_is_left() {
    let (lent, copy, lens) = (("copy", "guest-copy"), ("copy", "copy"), [60, 1500, 4096, 6000, 65535]);
    let queues = FrontConfig { queues: 3, split_channels: false, ..request() };
    let len = DataLen::new(256);
    let staged = FrontConfig { staging: Buffers::of(None, len), ..request() };
    let whole = FrontConfig { staging: Buffers::of(None, DataLen::new(65535)), ..request() };
    let ring = FrontConfig { data_ring: Some(8), ..request() };
    let few = FrontConfig { persistent: true, ..request() };
    for (requested, offered, paths, frames) in [
        (request(), true, lent, 5),
        (queues, true, lent, 5),
        (few, true, ("persistent", "guest-copy"), 5),
        // What no staging buffer has room for; what the data ring has.
        (staged, true, ("copy", "staging"), 4),
        (ring, true, ("data-ring", "data-ring"), 0),
        (whole, true, ("copy", "staging"), 0),
        (ordinary(), true, copy, 0),
        (request(), false, copy, 0),
    ] {
        let mut lender = Lender::connected(requested, serving(offered));
        assert_eq!(lender.ends.back.path_names(0), paths);
        let before = lender.ends.xen.counts();
        lender.deliver(&lens);
        let there = lender.ends.xen.counts();
        let expected: Vec<_> = lens.iter().enumerate().map(|(n, len)| Some(Lender::frame(n, *len))).collect();
        assert!(lender.receive() == Ok(expected), "{requested:?}");
        let ((_, front), (_, back)) =
            (lender.ends.front.queue(0).unwrap().stats(), lender.ends.back.stats(0));
        assert_eq!((front.guest_copy, back.guest_copy), (frames, frames), "{requested:?}");
        if paths.1 == "guest-copy" {
            assert_eq!((there.copies, there.maps), (before.copies, before.maps), "the back asks for nothing");
            // 1, 1, 1, 2 and 16 slots.
            assert_eq!(lender.ends.xen.counts().copies - there.copies, 21, "the guest asks for each slot");
            assert_eq!(back.grant_ops.total(), 0);
        }
        let key = |dir: &MapBus, key: &str| dir.own.borrow().get(key).cloned();
        assert_eq!(key(&lender.ends.bb, FEATURE).as_deref(), Some(if offered { "1" } else { "0" }));
        if requested.queues == 1 {
            let asked = requested.guest_copy && offered && requested.staging.rx != DataLen::new(65535);
            assert_eq!(key(&lender.ends.fb, LIST_REF).is_some(), asked, "{requested:?}");
            assert_eq!(key(&lender.ends.bb, ACTIVE).as_deref(), asked.then_some("1"));
        }
        lender.ends.close();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any frames, many times around the ring, and with a limit of pages at which the back can
    /// grant none.
    #[test]
    fn any_frames_arrive_in_order(
        bursts in proptest::collection::vec(proptest::collection::vec(14usize..9000, 1..40), 1..25),
        ring_order in 0u32..2,
    ) {
        let mut lender = Lender::connected(FrontConfig { ring_order, ..request() }, serving(true));
        for burst in bursts {
            let first = lender.given;
            lender.deliver(&burst);
            let expected: Vec<_> =
                burst.iter().enumerate().map(|(k, len)| Some(Lender::frame(first + k, *len))).collect();
            prop_assert!(lender.receive() == Ok(expected));
        }
        let (_, stats) = lender.ends.front.queue(0).unwrap().stats();
        prop_assert_eq!((stats.guest_copy, stats.errors), (lender.given as u64, 0));
        lender.ends.close();
    }
}

/// A guest may have fewer pages mapped: pages that are granted to it count among them.
#[test]
fn pages_that_are_lent_count_for_the_bound() {
    for (limit, lent) in [(2 + SLOTS as usize, true), (1 + SLOTS as usize, false)] {
        let mut lender = Lender::new(request(), serving(true));
        lender.ends.back.limit_pages(limit);
        lender.ends.connect();
        assert_eq!(lender.ends.front.queue(0).unwrap().borrows(), lent);
        assert_eq!(lender.ends.back.pages().needed, if lent { limit } else { 2 });
        let refused: Vec<_> =
            lender.ends.back.refused_lists().iter().map(|(q, _, why)| (*q, why.clone())).collect();
        let why = TooManyPages { asked: SLOTS as usize, left: SLOTS as usize - 1 };
        let why = (0, Refusal::GuestCopy(LendRefusal::TooManyPages(why)));
        assert_eq!(refused, if lent { vec![] } else { vec![why] });
        lender.deliver(&[60, 6000]);
        assert_eq!(lender.receive().map(|frames| frames.len()), Ok(2));
        assert_eq!(lender.ends.front.queue(0).unwrap().stats().1.guest_copy, if lent { 2 } else { 0 });
        lender.ends.close();
    }
}

/// Whatever the list contains: only frames that it does not name are lost.
#[test]
fn a_list_that_is_wrong_costs_frames_alone() {
    for (at, value, lost) in [
        (REFS + 4, 0u32, 1),
        (REFS + 4, 1, 1),
        (REFS + 4, u32::MAX, 1),
        (COUNT, 0, 4),
        (COUNT, 1, 3),
        (COUNT, u32::MAX, 0),
        (GENERATION, 0, 4),
        (GENERATION, 7, 4),
        (GENERATION, 257, 4),
    ] {
        let mut lender = Lender::connected(request(), serving(true));
        lender.deliver(&[60, 70, 80, 90]);
        let list = lender.page(LIST_REF);
        let was = list.load_u32(at).expect("a word of the page");
        assert!(list.store_u32(at, value));
        let got = lender.receive().expect("no fault");
        assert_eq!(
            (got.len(), got.iter().filter(|frame| frame.is_none()).count()),
            (4, lost),
            "{at}: {value}"
        );
        let right = got.iter().enumerate().filter_map(|(n, got)| Some((n, got.as_ref()?)));
        right.for_each(|(n, got)| assert!(*got == Lender::frame(n, 60 + 10 * n)));
        assert_eq!(lender.ends.front.queue(0).unwrap().stats().1.errors, lost as u64);
        // It goes on.
        assert!(list.store_u32(at, was));
        lender.deliver(&[1000]);
        assert!(lender.receive() == Ok(vec![Some(Lender::frame(4, 1000))]));
        drop(list);
        lender.ends.close();
    }
}

type Change = fn(&mut RxResponse);

/// Responses that pass their page, or are of two kinds, are faults; errors are errors.
#[test]
fn responses_that_cannot_be_are_faults() {
    let long = |rsp: RxResponse| rsp.flags & RXF_MORE_DATA != 0;
    let change: [(&str, Change, bool); 6] = [
        ("passes its page", |rsp| rsp.offset = 4096, true),
        ("is longer than a page", |rsp| rsp.status = 4097, true),
        ("is an error", |rsp| rsp.status = -1, false),
        ("is of the front's own page", |rsp| rsp.flags &= 0xFF, false),
        ("is of another generation", |rsp| rsp.flags ^= 0x300, false),
        ("is of the data ring", |rsp| rsp.flags |= 0x20, true),
    ];
    for (what, change, is_fault) in change {
        for lens in [[60, 60], [6000, 60]] {
            let mut lender = Lender::connected(request(), serving(true));
            lender.deliver(&lens);
            let ring = lender.page("rx-ring-ref");
            let word = |k: usize| ring.load_u32(64 + 4 * k).expect("a word of the ring");
            let mut rsp = RxResponse::from_words([word(0), word(1)]);
            assert!(generation_of(rsp.flags) == 1 && long(rsp) == (lens[0] > 4096));
            change(&mut rsp);
            for (k, word) in rsp.to_words().into_iter().enumerate() {
                assert!(ring.store_u32(64 + 4 * k, word));
            }
            let is_mixed = lens[0] > 4096 && (what.contains("own page") || what.contains("another"));
            match lender.receive() {
                Ok(got) => {
                    assert!(!is_fault && !is_mixed, "{what}, {lens:?}: no fault");
                    assert!(got.last() == Some(&Some(Lender::frame(1, 60))), "{what}, {lens:?}");
                    let _ = got;
                }
                Err(e) => assert!(is_fault || is_mixed, "{what}, {lens:?}: {e}"),
            }
            drop(ring);
            lender.ends.close();
        }
    }
}

/// A hook's frame in the back's pages, and frames by reference: they are copied, and dropped if
/// their page is gone.
#[test]
fn a_hook_sees_what_was_copied() {
    let mut lender = Lender::connected(request(), serving(true));
    for (lens, forge) in [([60, 1500, 6000], false), ([60, 1500, 6000], true)] {
        let first = lender.given;
        lender.deliver(&lens);
        let list = lender.page(LIST_REF);
        // The first slot of the second round.
        let was = list.load_u32(REFS + 16).expect("a word of the page");
        assert!(!forge || list.store_u32(REFS + 16, 0));
        let (mut out, mut diverted, mut heads) = (Arena::new(), Diverted::default(), Vec::new());
        let seen = lender.ends.front.queue_mut(0).unwrap().recv_hooked(
            &lender.ends.g,
            &mut out,
            &mut diverted,
            (1, 64),
            |frame| {
                heads.push(frame.head().to_vec());
                if frame.len() == 1500 { HookAction::Drop } else { HookAction::Pass }
            },
        );
        assert_eq!(seen, Ok(3));
        let expected = |n: usize| Lender::frame(first + n, lens[n]);
        let shown: &[usize] = if forge { &[1, 2] } else { &[0, 1, 2] };
        let shown = shown.iter().map(|n| expected(*n)[..lens[*n].min(256)].to_vec());
        assert!(heads.into_iter().eq(shown));
        let passed: Vec<_> = (0..out.len()).map(|i| out.burst().frame(i).to_vec()).collect();
        let all: &[usize] = if forge { &[2] } else { &[0, 2] };
        assert!(passed.iter().cloned().eq(all.iter().map(|n| expected(*n))));
        assert!(list.store_u32(REFS + 16, was));
        assert_eq!(lender.ends.front.queue(0).unwrap().stats().1.errors, u64::from(forge));
    }
    lender.ends.close();

    let mut lender = Lender::connected(request(), serving(true));
    lender.deliver(&[3000]);
    let (mut out, mut lent) = (Arena::new(), Default::default());
    assert_eq!(
        lender.ends.front.queue_mut(0).unwrap().recv_by_reference(&lender.ends.g, &mut out, &mut lent, 1),
        Ok(1)
    );
    assert!(lent.tokens().next().is_none() && out.burst().frame(0) == Lender::frame(0, 3000));
    lender.ends.close();
}

/// Frames that were answered and not copied are lost with their back, and are counted; no others
/// are. The next back grants pages of its own.
#[test]
fn a_successor_lends_again_and_what_was_lent_is_lost() {
    let mut lender = Lender::connected(request(), serving(true));
    lender.deliver(&[60, 6000]);
    assert_eq!(lender.receive().map(|frames| frames.len()), Ok(2));
    for (round, offered) in [true, true, false, true].into_iter().enumerate() {
        let first = lender.given;
        lender.deliver(&[60, 6000, 900]);
        lender.ends.back = BackVif::new(GUEST, 0, serving(offered));
        assert_eq!(lender.ends.back.inherit(&mut lender.ends.bb), Ok(PreviousState::Connected));
        assert!(lender.ends.back.reattach(&lender.ends.h, &mut lender.ends.bb, &mut |_, _| None).is_ok());
        assert_eq!(lender.ends.back.path_names(0).1, if offered { "guest-copy" } else { "copy" });
        lender.deliver(&[700, 5000]);
        let got = lender.receive().expect("no fault");
        assert_eq!(got.len(), 5);
        // Those of one that lent nothing are in the guest's own pages. All others are lost, also
        // where none lends again: a reference in the old list may be another page's by then.
        let stand = round == 3;
        assert_eq!(
            got[..3].iter().filter(|frame| frame.is_none()).count(),
            if stand { 0 } else { 3 },
            "{round}"
        );
        let expected = [(3, 700), (4, 5000)].map(|(k, len)| Some(Lender::frame(first + k, len)));
        assert!(got[3..] == expected, "{round}");
    }
    let Pair { mut front, mut back, g, h, mut fb, mut bb, xen, .. } = lender.ends;
    front.close(&mut fb, None).expect("a map");
    connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    assert!(front.is_closed());
    let c = xen.counts();
    assert_eq!((c.grants, c.mapped, c.channels), (3 * SLOTS as usize, 0, 0), "of the dead ones");
}

/// A guest that maps a page granted to it, and keeps it, holds that page, and gets no more.
#[test]
fn a_guest_that_keeps_a_page_is_lent_no_more() {
    let mut lender = Lender::connected(request(), serving(true));
    let gref = lender.page(LIST_REF).load_u32(REFS + 20).map(GrantRef).expect("a word of the page");
    assert!(lender.ends.g.map(HOST, &[gref], Access::ReadWrite).is_err(), "it is lent for reading");
    let mut kept = Some(lender.ends.g.map(HOST, &[gref], Access::ReadOnly).expect("it is lent"));
    for (round, lent) in [false, false, true].into_iter().enumerate() {
        if lent {
            kept = None;
        }
        lender.deliver(&[900; 8]);
        let page = |kept: &LocalMap| {
            let mut page = [0; PAGE_SIZE];
            assert!(kept.copy_out(0, &mut page));
            page
        };
        let was = kept.as_ref().map(page);
        assert!(was.is_none_or(|page| page[100] != 0));
        lender.ends.front.close(&mut lender.ends.fb, None).expect("a map");
        lender.ends.connect();
        assert!(lender.ends.front.is_closed());
        assert_eq!(
            (lender.ends.back.held_regions(), lender.ends.xen.counts().grants),
            (usize::from(!lent), usize::from(!lent))
        );
        // It counts for the bound. Nothing is written there: a copy may be on its way.
        let held = if lent { 0 } else { SLOTS as usize };
        assert_eq!(lender.ends.back.pages().needed, held);
        assert!(kept.as_ref().map(page) == was);
        lender.ends.back.limit_pages(1 + held);
        lender.ends.front = FrontVif::new(HOST, request(), false);
        lender.ends.fb.own.borrow_mut().insert("state".into(), "1".into());
        let too_many = TooManyPages { asked: 2 + held, left: 1 + held };
        let mut refused = 0;
        for _ in 0..8 {
            let stepped = lender.ends.back.step(&lender.ends.h, &mut lender.ends.bb, &mut |_, _| None);
            match stepped {
                Ok(_) => {}
                Err(ConnectError::TooManyPages(why)) if why == too_many => refused += 1,
                Err(e) => panic!("{e}"),
            }
            lender.ends.front.step(&lender.ends.g, &mut lender.ends.fb).expect("an honest back");
        }
        assert!(refused > 0);
        lender.ends.front.close(&mut lender.ends.fb, None).expect("a map");
        lender.ends.back.limit_pages(usize::MAX);
        lender.ends.connect();
        assert!(lender.ends.front.is_closed());
        lender.ends.front = FrontVif::new(HOST, request(), false);
        lender.ends.fb.own.borrow_mut().insert("state".into(), "1".into());
        lender.ends.connect();
        assert!(lender.ends.front.is_live(), "{round}");
        assert_eq!(lender.ends.front.queue(0).unwrap().borrows(), lent);
        let first = lender.given;
        lender.deliver(&[900]);
        assert!(lender.receive() == Ok(vec![Some(Lender::frame(first, 900))]));
    }
    assert!(kept.is_none());
    lender.ends.close();
}

/// A connect that fails leaves no page granted, however often it is tried, and whatever failed
/// after the queue.
#[test]
fn a_connect_that_fails_lends_nothing() {
    let queues = FrontConfig { queues: 2, split_channels: false, ctrl_ring: true, ..request() };
    for key in ["queue-1/event-channel", "event-channel-ctrl"] {
        let mut lender = Lender::new(queues, serving(true));
        lender
            .ends
            .back
            .step(&lender.ends.h, &mut lender.ends.bb, &mut |_, _| None)
            .expect("an honest front");
        lender.ends.front.step(&lender.ends.g, &mut lender.ends.fb).expect("an honest back");
        let was =
            lender.ends.fb.own.borrow_mut().insert(key.into(), "4000".into()).expect("a key of the front");
        let own = lender.ends.xen.counts();
        for _ in 0..3 {
            assert!(
                lender.ends.back.step(&lender.ends.h, &mut lender.ends.bb, &mut |_, _| None).is_err(),
                "{key}"
            );
            assert_eq!(lender.ends.xen.counts().grants, own.grants, "{key}: the front's alone");
            assert_eq!(
                (lender.ends.xen.counts().mapped, lender.ends.back.held_regions()),
                (own.mapped, 0),
                "{key}"
            );
        }
        lender.ends.fb.own.borrow_mut().insert(key.into(), was);
        lender.ends.connect();
        assert!(
            lender.ends.front.queue(0).unwrap().borrows() && lender.ends.front.queue(1).unwrap().borrows()
        );
        lender.ends.close();
    }
}

/// The n-th grant fails, and at each allocation lists are checked.
struct Watched {
    lists: Vec<LocalMap>,
    /// The generation of each list at each allocation.
    seen: RefCell<Vec<Vec<u32>>>,
    left: Cell<u32>,
}

impl Watched {
    fn of(domain: LocalDomain, lists: Vec<LocalMap>, left: u32) -> OwnGrants<PerFrame<Self>> {
        PerFrame::on(domain, Self { lists, seen: RefCell::default(), left: Cell::new(left) })
    }
}

impl FrameRules for Watched {
    fn allocates(&self) {
        let generations = self.lists.iter().filter_map(|list| list.load_u32(GENERATION)).collect();
        self.seen.borrow_mut().push(generations);
    }
    fn may_grant(&self) -> Result<(), PlatformError> {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.ok_or(PlatformError { op: "grant, which this test forbids", code: 28 })?);
        Ok(())
    }
}

/// A reference of an old list may be granted again as soon as anything is: so each list has its
/// next generation by then. A back that may grant nothing starts one, too.
#[test]
fn each_list_has_its_next_generation_before_anything_is_lent() {
    for limit in [usize::MAX, 4] {
        let mut lender =
            Lender::connected(FrontConfig { queues: 2, split_channels: false, ..request() }, serving(true));
        let lists = |lender: &Lender| {
            (0..2).map(|i| lender.page(&format!("queue-{i}/{LIST_REF}"))).collect::<Vec<_>>()
        };
        let p = Watched::of(lender.ends.h.clone(), lists(&lender), 0);
        let mut next = BackVif::<OwnGrants<PerFrame<Watched>>>::new(GUEST, 0, serving(true));
        next.limit_pages(limit);
        assert_eq!(next.inherit(&mut lender.ends.bb), Ok(PreviousState::Connected));
        lender.ends.back = BackVif::new(GUEST, 0, serving(true));
        assert!(next.reattach(&p, &mut lender.ends.bb, &mut |_, _| None).is_ok());
        let lends = limit == usize::MAX;
        assert_eq!(*p.seen.borrow(), if lends { vec![vec![2, 2]; 2] } else { vec![] });
        for list in lists(&lender) {
            let count = if lends { SLOTS } else { 0 };
            assert_eq!((list.load_u32(GENERATION), list.load_u32(COUNT)), (Some(2), Some(count)));
        }
    }
}

/// Frames of a program's own queue.
struct Held(TestPort);

impl FramePort for Held {
    fn caps(&self) -> Offloads {
        self.0.caps()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.0.tx_burst(frames)
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        self.0.rx_burst(into)
    }
    fn held(&self) -> usize {
        self.0.gives.len()
    }
}

/// Frames that a back delivers in an orderly stop outlive it, and so are not in pages that end with
/// it.
#[test]
fn what_is_delivered_at_the_last_moment_is_not_lost() {
    let ring = FrontConfig { data_ring: Some(8), ..request() };
    for requested in [request(), ring] {
        let mut lender = Lender::connected(requested, serving(true));
        let lens = [60, 6000, 900];
        let gives = lens.iter().enumerate().map(|(n, len)| (Lender::frame(n, *len), Offload::default()));
        let port = Held(TestPort { gives: gives.collect(), ..TestPort::default() });
        let drained = lender.ends.back.detach(&lender.ends.h, &mut [Box::new(port)]);
        assert_eq!((drained.delivered, drained.lost), (3, 0));
        let expected: Vec<_> = lens.iter().enumerate().map(|(n, len)| Some(Lender::frame(n, *len))).collect();
        assert!(lender.receive() == Ok(expected), "{requested:?}");
        assert_eq!(
            lender.ends.front.queue(0).unwrap().stats().1.data_ring,
            if requested.data_ring.is_some() { 3 } else { 0 }
        );
        lender.ends.back = BackVif::new(GUEST, 0, serving(true));
        assert_eq!(lender.ends.back.inherit(&mut lender.ends.bb), Ok(PreviousState::Connected));
        assert!(lender.ends.back.reattach(&lender.ends.h, &mut lender.ends.bb, &mut |_, _| None).is_ok());
        lender.ends.close();
    }
}

/// Frames that were noted before a fault belong to that call's arena: a caller that continues does
/// not get them in another.
#[test]
fn pieces_of_a_call_that_failed_are_not_fetched_later() {
    let mut lender = Lender::connected(request(), serving(true));
    lender.deliver(&[60, 60]);
    let ring = lender.page("rx-ring-ref");
    // The second response's offset passes its page.
    let was = ring.load_u32(64 + 8).expect("a word of the ring");
    assert!(ring.store_u32(64 + 8, was | 4096 << 16));
    let mut arena = Arena::new();
    assert!(lender.ends.front.queue_mut(0).unwrap().recv(&lender.ends.g, &mut arena, 1).is_err());
    let (copies, mut other) = (lender.ends.xen.counts().copies, Arena::new());
    assert!(lender.ends.front.queue_mut(0).unwrap().recv(&lender.ends.g, &mut other, 3).is_err());
    assert_eq!(
        (lender.ends.xen.counts().copies, other.len(), lender.ends.front.queue(0).unwrap().stats().1.errors),
        (copies, 0, 0)
    );
    drop(ring);
    lender.ends.close();
}

/// A frame that must be sent back, and whose page is gone when its rest is copied, counts once as
/// unsent, and as an error.
#[test]
fn a_frame_whose_rest_is_gone_is_counted_once() {
    for action in [HookAction::Tx, HookAction::Pass, HookAction::Redirect(1)] {
        let mut lender = Lender::connected(request(), serving(true));
        lender.deliver(&[1500, 1500]);
        let list = lender.page(LIST_REF);
        let (mut out, mut diverted, mut seen) = (Arena::new(), Diverted::default(), 0);
        let frames =
            lender.ends.front.queue_mut(0).unwrap().recv_hooked(
                &lender.ends.g,
                &mut out,
                &mut diverted,
                (1, 64),
                |_| {
                    seen += 1;
                    assert!(list.store_u32(
                        REFS + 4,
                        if seen == 2 { 0 } else { list.load_u32(REFS + 4).unwrap_or(0) }
                    ));
                    action
                },
            );
        assert_eq!(frames, Ok(2));
        let stats = lender.ends.front.queue(0).unwrap().hook_stats();
        assert_eq!(
            (stats.frames(), lender.ends.front.queue(0).unwrap().stats().1.errors),
            (2, 1),
            "{stats:?}"
        );
        if action == HookAction::Tx {
            assert_eq!((stats.sent_copied, stats.unsent), (1, 1));
        }
        drop(list);
        lender.ends.close();
    }
}

/// Requests that were written before a grant failed are shown to the back.
#[test]
fn what_is_posted_before_a_grant_fails_is_published() {
    let domains = TwoDomains::new();
    let (front_ring, back_ring) = domains.ring::<NetRx>();
    let p = Watched::of(domains.guest.clone(), Vec::new(), 5);
    let pages = OrdinaryPages::new(&p, &mut Regions::new(HOST), Access::ReadWrite, SLOTS, Granting::PerFrame)
        .expect("pages");
    let mut front: RxFront<OwnGrants<PerFrame<Watched>>> =
        RxFront::new(&p, FrontRing::new(front_ring), FrontChain::new(None, Some(pages)), 1).unwrap();
    let chan = domains.channel();
    for (more, posted) in [(0, 5), (0, 5), (7, 12)] {
        p.left.set(p.left.get() + more);
        assert_eq!(front.post(&p, &chan.0).map_err(|e| e.code), Err(28));
        assert_eq!(back_ring.load(Word::ReqProd), posted);
    }
}
