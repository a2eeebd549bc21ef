//! The back's end of the control ring (docs/protocol 2.11), with requests written by the test: the
//! answer to each request, the treatment of a guest that breaks the protocol, and what a successor
//! finds wherever its predecessor died.
#![cfg(not(miri))]

use pregrant::net::back::control_page::CONTROL_BYTES;
use pregrant::net::back::control_ring::{CtrlRing, REQUESTS_PER_TURN};
use pregrant::net::back::multicast::MulticastList;
use pregrant::net::back::{Control, ControlPage, Polled, SharedControl};
use pregrant::net::batch::tx::MulticastAsk;
use pregrant::net::headers::MacAddr;
use pregrant::net::path::GrefRequests;
use pregrant::net::path::gref_mapping::exchange::GrefExchange;
use pregrant::net::path::gref_mapping::table::GrefTable;
use pregrant::platform::local::{LocalChan, LocalDomain, LocalRegion, LocalXen, Pages};
use pregrant::platform::{Access, Events, GrantPool, MapError, PeerMem};
use pregrant::ring::{NetCtrl, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlStatus, CtrlType, GrefEntry, SLOT_BYTES};
use pregrant::wire::ring::HEADER_BYTES;
use pregrant::{DomId, GrantRef, PAGE_SIZE, PeerFault};
use pregrant_testkit::rounds::rounds;
use pregrant_testkit::ruled_domain::{RuledDomain, Rules};
use proptest::prelude::*;
use std::cell::Cell;
use std::sync::Arc;

const GUEST: DomId = DomId(5);
const HOST: DomId = DomId(1);
const QUEUES: usize = 4;
const SLOTS: u32 = 128;
/// A reference that no one granted.
const NO_GRANT: u32 = 4_000_000;

const SUCCESS: u32 = 0;
const NOT_SUPPORTED: u32 = 1;
const INVALID: u32 = 2;
const OVERFLOW: u32 = 3;

/// A guest that writes requests word by word, and a back.
struct Game {
    xen: LocalXen,
    guest: LocalDomain,
    host: LocalDomain,
    ring: RingPages<NetCtrl, LocalRegion>,
    ring_memory: LocalRegion,
    ring_ref: GrantRef,
    channel: LocalChan,
    port: pregrant::EvtchnPort,
    /// The page for keys and tables, which the back may only read.
    page: LocalRegion,
    page_ref: u32,
    kept: Pages,
    back: Option<(CtrlRing<LocalDomain>, SharedControl)>,
    req_prod: u32,
    rsp_cons: u32,
}

impl Game {
    fn new() -> Self {
        let xen = LocalXen::new();
        let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let mut refs = [GrantRef::NONE];
        let ring = guest.alloc(HOST, Access::ReadWrite, &mut refs).expect("a page");
        let ring_ref = refs[0];
        let ring_memory = ring.clone();
        let ring = RingPages::<NetCtrl, _>::new(ring);
        ring.init();
        let page = guest.alloc(HOST, Access::ReadOnly, &mut refs).expect("a page");
        let (channel, port) = guest.offer(HOST).expect("a channel");
        let kept = Pages::new(CONTROL_BYTES / PAGE_SIZE);
        let (page_ref, back) = (refs[0].0, None);
        let mut game = Self {
            xen,
            guest,
            host,
            ring,
            ring_memory,
            ring_ref,
            channel,
            port,
            page,
            page_ref,
            kept,
            back,
            req_prod: 0,
            rsp_cons: 0,
        };
        game.connect(true);
        game
    }

    /// A back for a new connection, or one that resumes what the last one left.
    fn connect(&mut self, fresh: bool) {
        self.back = None;
        let shared = SharedControl::default();
        let mut control = shared.lock();
        control.keep(ControlPage::new(self.kept.clone()).expect("a page"));
        control.offer_multicast(true);
        control.set_queues(QUEUES);
        let map = self.host.map(GUEST, &[self.ring_ref], Access::ReadWrite).expect("the ring");
        let chan = self.host.bind(GUEST, self.port).expect("the channel");
        let mem = RingPages::<NetCtrl, _>::new(map);
        let last = if fresh { None } else { control.resume() };
        let ring = CtrlRing::attach(mem, chan, last, 0).expect("indices that belong together");
        if last.is_none() {
            let list = if fresh { MulticastList::default() } else { MulticastList::lost() };
            control.begin(ring.rsp_prod(), list).expect("memory");
        }
        drop(control);
        self.back = Some((ring, shared));
    }

    /// Calls `what` with the state locked.
    fn control<R>(&self, what: impl FnOnce(&mut Control) -> R) -> R {
        what(&mut self.back.as_ref().expect("a back").1.lock())
    }

    fn poll(&mut self) -> Result<Polled, PeerFault> {
        let (ring, control) = self.back.as_mut().expect("a back");
        ring.poll(&self.host, GUEST, control, None)
    }

    /// Writes a request into the next slot, and shows it.
    fn push(&mut self, request: CtrlRequest) {
        self.ring.write::<4>(self.req_prod, request.to_words());
        self.req_prod = self.req_prod.wrapping_add(1);
        self.ring.store(Word::ReqProd, self.req_prod);
    }

    /// The answers that were published since.
    fn answers(&mut self) -> Vec<CtrlResponse> {
        let rsp_prod = self.ring.load(Word::RspProd);
        let n = rsp_prod.wrapping_sub(self.rsp_cons);
        assert!(n <= self.req_prod.wrapping_sub(self.rsp_cons), "answers to what was not asked");
        let at = |k: u32| CtrlResponse::from_words(self.ring.read::<3>(self.rsp_cons.wrapping_add(k)));
        let answers = (0..n).map(at).collect();
        self.rsp_cons = rsp_prod;
        answers
    }

    /// Sends a request; returns status and data of the one answer.
    fn ask(&mut self, msg_type: u16, data: [u32; 3]) -> (u32, u32) {
        let request = CtrlRequest { id: self.req_prod as u16 ^ 0x5A5A, msg_type, data };
        self.push(request);
        assert_eq!((self.poll(), self.poll()), (Ok(Polled::More), Ok(Polled::Idle)));
        let answers = self.answers();
        let [CtrlResponse { id, msg_type, status, data }] = answers[..] else { panic!("{answers:?}") };
        assert_eq!((id, msg_type), (request.id, request.msg_type));
        // A response has 12 bytes; the slot's others are the front's.
        let slot = self.ring.read::<4>(self.rsp_cons.wrapping_sub(1));
        assert_eq!(slot[3], request.data[2]);
        (status, data)
    }

    fn put_words(&self, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert!(self.page.copy_in(0, &bytes));
    }

    fn close(mut self) {
        self.back = None;
        let Self { xen, guest, ring_memory, page, channel, .. } = self;
        assert!(guest.release(ring_memory).is_ok() && guest.release(page).is_ok());
        drop(channel);
        let counts = xen.counts();
        assert_eq!((counts.grants, counts.mapped, counts.channels), (0, 0, 0));
    }
}

#[test]
fn each_type_is_answered_as_the_protocol_says() {
    let mut g = Game::new();
    // Types 8 to 10 are for tables that no queue of this back has.
    for msg_type in [0, 8, 9, 10, 11, 255, u16::MAX] {
        assert_eq!(g.ask(msg_type, [g.page_ref, 1, 1]), (NOT_SUPPORTED, 0), "type {msg_type}");
    }
    assert_eq!(g.ask(1, [0; 3]), (NOT_SUPPORTED, 0), "no algorithm yet");
    assert_eq!(g.ask(2, [1, 0, 0]), (INVALID, 0), "no algorithm yet");
    assert_eq!(g.ask(7, [2, 0, 0]), (INVALID, 0));
    assert_eq!(g.ask(7, [1, 0, 0]), (SUCCESS, 0));
    assert_eq!(g.ask(1, [0; 3]), (SUCCESS, 0xF));
    assert_eq!((g.ask(2, [0x10, 0, 0]), g.ask(2, [0xF, 0, 0])), ((INVALID, 0), (SUCCESS, 0)));
    assert_eq!(g.ask(4, [0; 3]), (SUCCESS, 128));
    assert_eq!((g.ask(5, [129, 0, 0]), g.ask(5, [128, 0, 0])), ((INVALID, 0), (SUCCESS, 0)));
    g.put_words(&[0x0403_0201; 40]);
    assert_eq!((g.ask(3, [g.page_ref, 41, 0]), g.ask(3, [g.page_ref, 40, 0])), ((OVERFLOW, 0), (SUCCESS, 0)));
    assert_eq!(g.control(|c| c.hash().clone()).key()[..5], [1, 2, 3, 4, 1]);
    assert_eq!(g.ask(3, [g.page_ref, u32::MAX, 0]), (OVERFLOW, 0));
    assert_eq!(g.ask(3, [NO_GRANT, 0, 0]), (SUCCESS, 0), "an empty key is in no page");
    assert_eq!(g.control(|c| c.hash().clone()).key(), &[0; 40]);
    g.put_words(&[3, 2, 1]);
    assert_eq!(g.ask(6, [g.page_ref, 3, 125]), (SUCCESS, 0));
    assert_eq!(g.control(|c| c.hash().clone()).mapping()[124..], [0, 3, 2, 1]);
    g.close();
}

/// The sum of first and count wraps or exceeds the table, or an entry names a queue that does not
/// exist: nothing of the request is applied.
#[test]
fn xsa_270_the_table_of_queues_is_written_inside_of_itself_only() {
    let mut g = Game::new();
    g.put_words(&[1; 1024]);
    assert_eq!(g.ask(6, [g.page_ref, 1, 0]), (INVALID, 0), "there is no table");
    assert_eq!(g.ask(5, [8, 0, 0]), (SUCCESS, 0));
    for (count, first) in
        [(1, u32::MAX), (2, u32::MAX - 1), (8, u32::MAX - 7), (128, u32::MAX - 127), (1, 8), (9, 0)]
    {
        assert_eq!(g.ask(6, [g.page_ref, count, first]), (INVALID, 0), "{count} from {first}");
    }
    for (count, first) in [(129, 0), (1024, 0), (1025, 0), (u32::MAX, 1), (0x4000_0000, 0), (0x4000_0001, 7)]
    {
        assert_eq!(g.ask(6, [g.page_ref, count, first]), (OVERFLOW, 0), "{count} from {first}");
    }
    for wrong in [QUEUES as u32, 0x1_0000, u32::MAX] {
        g.put_words(&[1, 1, 1, 1, 1, 1, 1, wrong]);
        assert_eq!(g.ask(6, [g.page_ref, 8, 0]), (INVALID, 0), "queue {wrong}");
    }
    assert_eq!(g.control(|c| c.hash().clone()).mapping(), [0; 8]);
    g.put_words(&[3; 8]);
    assert_eq!(g.ask(6, [g.page_ref, 8, 0]), (SUCCESS, 0));
    g.close();
}

#[test]
fn pages_that_cannot_be_read_change_nothing() {
    let mut g = Game::new();
    assert_eq!((g.ask(7, [1, 0, 0]), g.ask(5, [4, 0, 0])), ((SUCCESS, 0), (SUCCESS, 0)));
    g.put_words(&[0x0101_0101; 10]);
    assert_eq!(g.ask(3, [g.page_ref, 40, 0]), (SUCCESS, 0));
    // Granted to somebody else, to no one, and the reference that is never a page of data.
    let mut theirs = [GrantRef::NONE];
    let other = g.guest.alloc(DomId(9), Access::ReadWrite, &mut theirs).expect("a page");
    for gref in [0, NO_GRANT, u32::MAX, theirs[0].0] {
        assert_eq!(g.ask(3, [gref, 40, 0]), (INVALID, 0), "gref {gref}");
        assert_eq!(g.ask(6, [gref, 4, 0]), (INVALID, 0), "gref {gref}");
    }
    let hash = g.control(|c| c.hash().clone());
    assert_eq!((hash.key(), hash.mapping().len()), (&[1; 40], 4));
    assert!(g.guest.release(other).is_ok());
    g.close();
}

#[test]
fn a_turn_serves_a_few_requests_and_the_indices_wrap() {
    let mut g = Game::new();
    for start in [0, u32::MAX - 20] {
        for w in [Word::ReqProd, Word::RspProd] {
            g.ring.store(w, start);
        }
        (g.req_prod, g.rsp_cons) = (start, start);
        g.connect(true);
        for id in 0..SLOTS as u16 {
            g.push(CtrlRequest { id, msg_type: 4, data: [0; 3] });
        }
        for turn in 1..=SLOTS / REQUESTS_PER_TURN {
            assert_eq!(g.poll(), Ok(Polled::More));
            assert_eq!(g.ring.load(Word::RspProd).wrapping_sub(start), turn * REQUESTS_PER_TURN);
        }
        assert_eq!(g.poll(), Ok(Polled::Idle));
        let ids: Vec<u16> = g.answers().iter().map(|a| a.id).collect();
        assert!(ids.into_iter().eq(0..SLOTS as u16));
    }
    g.close();
}

#[test]
fn wrong_indices_are_faults_and_nothing_is_done() {
    for ahead in [SLOTS + 1, SLOTS * 2, u32::MAX, 1 << 31] {
        let mut g = Game::new();
        assert_eq!(g.ask(7, [1, 0, 0]), (SUCCESS, 0));
        let (req_cons, req_prod) = (g.req_prod, g.req_prod.wrapping_add(ahead));
        g.ring.write::<4>(req_cons, CtrlRequest { id: 1, msg_type: 7, data: [0; 3] }.to_words());
        g.ring.store(Word::ReqProd, req_prod);
        assert_eq!(g.poll(), Err(PeerFault::ReqProdOverrun { req_prod, req_cons, size: SLOTS }));
        assert_eq!((g.control(|c| c.hash().algorithm()), g.ring.load(Word::RspProd)), (1, 1));
        g.close();
    }
}

/// A guest that overwrites the back's own index harms only itself: the back uses its private one.
#[test]
fn the_backs_own_index_is_not_read_back() {
    let mut g = Game::new();
    g.ring.store(Word::RspProd, 77);
    g.push(CtrlRequest { id: 1, msg_type: 4, data: [0; 3] });
    assert_eq!((g.poll(), g.ring.load(Word::RspProd)), (Ok(Polled::More), 1));
    g.close();
}

/// XSA-43's idea: a guest that only errs costs an answer each, and nothing that grows.
#[test]
fn many_bad_requests_are_as_many_answers() {
    let mut g = Game::new();
    let mut answered = 0;
    while answered < rounds(100_000, 1_000_000) {
        for k in 0..SLOTS {
            let data = [NO_GRANT.wrapping_add(k), k, u32::MAX];
            g.push(CtrlRequest { id: k as u16, msg_type: (k % 13) as u16 | (k as u16 & 1) << 15, data });
        }
        while g.poll() == Ok(Polled::More) {}
        let answers = g.answers();
        assert_eq!(answers.len(), SLOTS as usize);
        answered += u64::from(SLOTS);
    }
    assert_eq!(g.xen.counts().mapped, 1, "the ring");
    g.close();
}

/// Any request; half of its data is near valid values.
fn any_request(page: u32) -> impl Strategy<Value = CtrlRequest> {
    let word = prop_oneof![
        4 => 0u32..5,
        3 => Just(page),
        2 => prop_oneof![Just(40u32), Just(41), Just(128), Just(129)],
        2 => (0u32..140).prop_map(|n| u32::MAX - n),
        1 => any::<u32>(),
    ];
    let types = prop_oneof![9 => 0u16..12, 1 => any::<u16>()];
    (any::<u16>(), types, [word.clone(), word.clone(), word]).prop_map(|(id, msg_type, data)| CtrlRequest {
        id,
        msg_type,
        data,
    })
}

/// A plain model of what a back may answer to a request.
#[derive(Clone, PartialEq, Debug, Default)]
struct Model {
    algorithm: u32,
    flags: u32,
    key: Vec<u8>,
    table: Vec<u32>,
}

impl Model {
    fn answer(&mut self, r: &CtrlRequest, page_ref: u32, page: &[u8]) -> (u32, u32) {
        let [a, b, c] = r.data.map(u64::from);
        match CtrlType::from_raw(r.msg_type) {
            Some(CtrlType::GetHashFlags) if self.algorithm == 1 => return (SUCCESS, 15),
            Some(CtrlType::SetHashFlags) if self.algorithm == 1 && a < 16 => self.flags = a as u32,
            Some(CtrlType::SetHashKey) if b > 40 => return (OVERFLOW, 0),
            Some(CtrlType::SetHashKey) if b == 0 || a == u64::from(page_ref) => {
                self.key = page[..b as usize].to_vec();
                self.key.resize(40, 0);
            }
            Some(CtrlType::GetHashMappingSize) => return (SUCCESS, 128),
            Some(CtrlType::SetHashMappingSize) if a <= 128 => self.table = vec![0; a as usize],
            Some(CtrlType::SetHashMapping) if b > 128 => return (OVERFLOW, 0),
            Some(CtrlType::SetHashMapping)
                if b + c <= self.table.len() as u64 && (b == 0 || a == u64::from(page_ref)) =>
            {
                let words = page.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().expect("4")));
                let entries: Vec<u32> = words.take(b as usize).collect();
                if entries.iter().any(|e| *e >= QUEUES as u32) {
                    return (INVALID, 0);
                }
                self.table[c as usize..(b + c) as usize].copy_from_slice(&entries);
            }
            Some(CtrlType::SetHashAlgorithm) if a <= 1 => self.algorithm = a as u32,
            Some(
                CtrlType::SetHashFlags
                | CtrlType::SetHashKey
                | CtrlType::SetHashMappingSize
                | CtrlType::SetHashMapping
                | CtrlType::SetHashAlgorithm,
            ) => return (INVALID, 0),
            _ => return (NOT_SUPPORTED, 0),
        }
        (SUCCESS, 0)
    }

    fn is(&self, control: &Control) -> bool {
        let mut key = self.key.clone();
        key.resize(40, 0);
        let h = control.hash();
        let table = h.mapping().iter().map(|q| u32::from(*q));
        (h.algorithm(), h.flags()) == (self.algorithm, self.flags)
            && h.key()[..] == key[..]
            && table.eq(self.table.iter().copied())
    }
}

/// The page's content: entries of a table, most of them right, or bytes of a key.
fn page_words() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(prop_oneof![30 => 0u32..QUEUES as u32, 1 => any::<u32>()], 128)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any requests, and now and then another back that takes over: each is answered once, as the
    /// model says.
    #[test]
    fn any_requests_in_any_order(
        steps in proptest::collection::vec((any_request(u32::MAX), 0u8..10, page_words()), 1..40),
    ) {
        let mut g = Game::new();
        let mut model = Model::default();
        for (mut request, dice, words) in steps {
            // The strategy does not know the reference.
            for d in &mut request.data {
                *d = if *d == u32::MAX { g.page_ref } else { *d };
            }
            g.put_words(&words);
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let due = model.answer(&request, g.page_ref, &bytes);
            if dice == 0 {
                g.connect(false);
            }
            prop_assert_eq!(g.ask(request.msg_type, request.data), due, "{:?}", request);
            prop_assert!(g.control(|c| model.is(c)), "{:?}: {:?}", request, model);
        }
        g.connect(false);
        prop_assert!(g.control(|c| model.is(c)));
        g.close();
    }
}

/// The state after every single store of a request's execution, each with a successor: the request
/// is answered once, as if no process had died. The order of stores is documented in
/// `control_page.rs` and `ctrl.rs`.
#[test]
fn wherever_a_back_dies_the_request_is_answered_once() {
    let requests: [(u16, [u32; 3]); 6] =
        [(7, [1, 0, 0]), (2, [5, 0, 0]), (3, [0, 40, 0]), (5, [6, 0, 0]), (6, [0, 6, 0]), (1, [0; 3])];
    for nth in 0..requests.len() {
        let mut g = Game::new();
        g.put_words(&[1, 2, 3, 0, 1, 2, 3, 0, 1, 2]);
        let page_ref = g.page_ref;
        let with_page = |(msg_type, [a, b, c]): (u16, [u32; 3])| {
            (msg_type, [if matches!(msg_type, 3 | 6) { page_ref } else { a }, b, c])
        };
        for &(msg_type, data) in requests[..nth].iter() {
            let (msg_type, data) = with_page((msg_type, data));
            assert_eq!(g.ask(msg_type, data).0, SUCCESS);
        }
        let (msg_type, data) = with_page(requests[nth]);
        g.push(CtrlRequest { id: 900, msg_type, data });
        let ring_memory = g.ring_memory.clone();
        let before = (bytes(&ring_memory), bytes(&g.kept));
        assert_eq!(g.poll(), Ok(Polled::More));
        let after = (bytes(&ring_memory), bytes(&g.kept));
        let (hash, due) = (g.control(|c| c.hash().clone()), g.answers());
        let answer_at = g.rsp_cons;
        // The page's words in their order with each copy's checksum last, the answer's words, the
        // index.
        let changed = |at: &usize| before.1[*at..at + 4] != after.1[*at..at + 4];
        let (sums, words): (Vec<usize>, Vec<usize>) =
            (0..CONTROL_BYTES).step_by(4).filter(changed).partition(|at| at % 2048 == 8);
        let slot = HEADER_BYTES + (answer_at.wrapping_sub(1) % SLOTS) as usize * SLOT_BYTES;
        let kept_stores = words.into_iter().chain(sums).map(|at| (true, at));
        let ring_stores = [slot, slot + 4, slot + 8, 8].map(|at| (false, at));
        let stores: Vec<(bool, usize)> = kept_stores.chain(ring_stores).collect();
        assert!(stores.len() > 6, "a request changes the page and the ring");
        for died in 0..=stores.len() {
            g.back = None;
            assert!(ring_memory.copy_in(0, &before.0) && g.kept.copy_in(0, &before.1));
            for &(kept, at) in &stores[..died] {
                let done = if kept {
                    g.kept.copy_in(at, &after.1[at..at + 4])
                } else {
                    ring_memory.copy_in(at, &after.0[at..at + 4])
                };
                assert!(done);
            }
            g.rsp_cons = answer_at.wrapping_sub(1);
            g.connect(false);
            while g.poll() == Ok(Polled::More) {}
            let what = format!("request {nth}, dead after {died} of {} stores", stores.len());
            assert_eq!(g.answers(), due, "{what}");
            assert!(g.control(|c| *c.hash() == hash), "{what}");
        }
        g.close();
    }
}

fn bytes<S: SharedBytes>(memory: &S) -> Vec<u8> {
    let mut b = vec![0; memory.len()];
    assert!(memory.copy_out(0, &mut b));
    b
}

#[test]
fn multicast_requests_outlive_a_back_and_what_is_lost_is_flooded() {
    let mac = |n| MacAddr([1, 0, 0x5E, 0, 0, n]);
    let mut g = Game::new();
    assert_eq!(g.ask(7, [1, 0, 0]), (SUCCESS, 0));
    let mut refused = Vec::new();
    let asks = (0..66).map(|n| MulticastAsk::Add(mac(n)));
    g.control(|c| c.multicast(asks, |k| refused.push(k)));
    assert_eq!(refused, [64, 65]);
    g.connect(false);
    g.control(|c| c.multicast.request(true));
    assert!(g.control(|c| c.multicast.wants(mac(63)) && !c.multicast.wants(mac(64))));
    assert_eq!(g.control(|c| c.hash().algorithm()), 1);
    // The ring's last answer is still there beside the list: nothing is answered twice.
    assert_eq!((g.poll(), g.answers()), (Ok(Polled::Idle), vec![]));
    // Damaged: everything arrives, nothing is hashed, and so it stays over the next successor.
    for _ in 0..2 {
        assert!(g.kept.copy_in(100, &[0xFF; 8]) && g.kept.copy_in(2148, &[0xFF; 8]));
        for _ in 0..2 {
            g.connect(false);
            g.control(|c| c.multicast.request(true));
            assert!(g.control(|c| c.multicast.wants(mac(64))));
            assert_eq!((g.control(|c| c.hash().algorithm()), g.poll()), (0, Ok(Polled::Idle)));
        }
    }
    // A new connection begins with an empty list.
    g.connect(true);
    g.control(|c| c.multicast.request(true));
    assert!(!g.control(|c| c.multicast.wants(mac(63))));
    // A guest that was not offered multicast control names nothing.
    g.control(|c| c.offer_multicast(false));
    let mut refused = 0;
    let asks = [MulticastAsk::Add(mac(1)), MulticastAsk::Del(mac(2))];
    g.control(|c| c.multicast(asks.into_iter(), |_| refused += 1));
    assert_eq!(refused, 2);
    g.close();
}

#[test]
fn statuses_are_those_of_the_wire() {
    let statuses = [
        CtrlStatus::Success,
        CtrlStatus::NotSupported,
        CtrlStatus::InvalidParameter,
        CtrlStatus::BufferOverflow,
    ];
    assert_eq!(statuses.map(CtrlStatus::raw), [SUCCESS, NOT_SUPPORTED, INVALID, OVERFLOW]);
}

/// The state's lock is free while the guest's pages are mapped and copied, which may take long.
#[test]
fn no_page_is_mapped_under_the_lock_of_the_state() {
    #[derive(Default)]
    struct Unlocked {
        shared: Arc<SharedControl>,
        maps: Cell<u32>,
        /// Copies and unmappings.
        touches: Cell<u32>,
    }
    impl Unlocked {
        fn counts(&self, count: &Cell<u32>) {
            assert!(self.shared.try_lock(false).is_some(), "the state is locked");
            count.set(count.get() + 1);
        }
    }
    impl Rules for Unlocked {
        fn may_map(&self, _: &[GrantRef]) -> Result<(), MapError> {
            self.counts(&self.maps);
            Ok(())
        }
        fn touches(&self) {
            self.counts(&self.touches);
        }
    }
    let xen = LocalXen::new();
    let guest = xen.domain(GUEST.0);
    let shared = Arc::new(SharedControl::default());
    shared.lock().set_queues(2);
    let rules = Unlocked { shared: Arc::clone(&shared), ..Unlocked::default() };
    let host = RuledDomain { domain: xen.domain(HOST.0), rules };
    let mut refs = [GrantRef::NONE; 4];
    let pages = guest.alloc(HOST, Access::ReadWrite, &mut refs).expect("pages");
    let [ring_ref, list_ref, data @ ..] = refs;
    let ring = RingPages::<NetCtrl, _>::new(pages.clone());
    ring.init();
    let entries = data.iter().flat_map(|gref| GrefEntry { gref: gref.0, flags: 0, status: 0 }.to_bytes());
    assert!(pages.copy_in(PAGE_SIZE, &entries.collect::<Vec<u8>>()));
    let request = CtrlRequest { id: 1, msg_type: CtrlType::AddGrefMapping.raw(), data: [0, list_ref.0, 2] };
    ring.write::<4>(0, request.to_words());
    ring.store(Word::ReqProd, 1);

    let map = host.map(GUEST, &[ring_ref], Access::ReadWrite).expect("the ring");
    let (channel, port) = guest.offer(HOST).expect("a channel");
    let chan = host.bind(GUEST, port).expect("the channel");
    let mut back =
        CtrlRing::attach(RingPages::new(map), chan, None, 0).expect("indices that belong together");
    shared.lock().begin(0, MulticastList::default()).expect("memory");
    let before = host.rules.maps.get();
    let (exchange, mut table) = (Arc::<GrefExchange<_>>::default(), GrefTable::new(8).expect("memory"));
    let mut grefs = GrefRequests::new(vec![Arc::clone(&exchange)], 8, 8).expect("memory");
    assert_eq!(back.poll(&host, GUEST, &shared, Some(&mut grefs)), Ok(Polled::More));
    assert_eq!((ring.load(Word::RspProd), grefs.pages()), (1, 2));
    assert!(!exchange.apply(&mut table));
    assert_eq!(host.rules.maps.get(), before + 2, "pages were mapped");
    // A key, a table of queues, and a list whose pages are unmapped.
    let requests = [
        (CtrlType::SetHashMappingSize, [4, 0, 0]),
        (CtrlType::SetHashKey, [list_ref.0, 40, 0]),
        (CtrlType::SetHashMapping, [list_ref.0, 1, 0]),
        (CtrlType::DelGrefMapping, [0, list_ref.0, 2]),
    ];
    for (index, (msg_type, data)) in (1..).zip(requests) {
        let request = CtrlRequest { id: 1, msg_type: msg_type.raw(), data };
        ring.write::<4>(index, request.to_words());
        ring.store(Word::ReqProd, index + 1);
        let before = host.rules.touches.get();
        assert_eq!(back.poll(&host, GUEST, &shared, Some(&mut grefs)), Ok(Polled::More));
        let touched = host.rules.touches.get() - before;
        assert_eq!(touched > 0, msg_type != CtrlType::SetHashMappingSize, "{msg_type:?}");
    }
    assert!(exchange.apply(&mut table), "the pages go back");
    assert_eq!(back.poll(&host, GUEST, &shared, Some(&mut grefs)), Ok(Polled::More));
    assert_eq!((ring.load(Word::RspProd), grefs.pages()), (5, 0));
    drop((back, grefs, channel));
}
