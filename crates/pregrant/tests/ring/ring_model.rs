//! Both ends of the ring against a model of two queues and a few counters (docs/protocol 1).
//!
//! The model counts in u64 and knows no wrap; the rings start anywhere, often just before it. What
//! the model cannot do is hide an answer, invent one, or forget a sleeper, so the rings cannot
//! either.

use pregrant::PeerFault;
use pregrant::platform::local::Pages;
use pregrant::ring::{BackRing, FrontRing, NetRx, NetTx, RingKind, RingMem, RingPages, Word};
use pregrant::wire::netif::{RxRequest, RxResponse, TxRequest, TxResponse};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;

/// A kind of ring whose requests and responses can be made from a number, so that neighbours
/// differ.
trait Sample: RingKind<Req: PartialEq + Debug, Rsp: PartialEq + Debug> {
    fn req(n: u64) -> Self::Req;
    fn rsp(n: u64) -> Self::Rsp;
}

impl Sample for NetTx {
    fn req(n: u64) -> TxRequest {
        let n16 = n as u16;
        TxRequest {
            gref: n as u32 ^ 0x5a5a_0000,
            offset: n16,
            flags: !n16,
            id: n16 ^ 0x00ff,
            size: n16 ^ 0xff00,
        }
    }
    fn rsp(n: u64) -> TxResponse {
        TxResponse { id: n as u16, status: !(n as i16) }
    }
}

impl Sample for NetRx {
    fn req(n: u64) -> RxRequest {
        RxRequest { id: n as u16, gref: n as u32 ^ 0x5a5a_0000 }
    }
    fn rsp(n: u64) -> RxResponse {
        let n16 = n as u16;
        RxResponse { id: n16, offset: !n16, flags: n16 ^ 0x00ff, status: n16 as i16 ^ 0x7f }
    }
}

fn ring_pages<K: RingKind>(pages: &Pages) -> RingPages<K, Pages> {
    RingPages::<K, _>::new(pages.clone())
}

type Front<K> = FrontRing<K, RingPages<K, Pages>>;
type Back<K> = BackRing<K, RingPages<K, Pages>>;

fn pair<K: Sample>(pages: usize, start: u32) -> (Front<K>, Back<K>, Pages) {
    let memory = Pages::new(pages);
    let page = ring_pages::<K>(&memory);
    page.init();
    let front = FrontRing::starting_at(page, start);
    let (back, notify) = BackRing::attach(ring_pages::<K>(&memory), None).expect("a fresh ring");
    assert!(!notify.wanted(), "nothing was replayed");
    (front, back, memory)
}

/// One step; numbers are reduced to what is allowed at that moment.
#[derive(Clone, Copy, Debug)]
enum Op {
    Push(u32),
    Publish,
    BackTake { want: u32, take: u32 },
    Answer(u32),
    FrontTake { want: u32, take: u32 },
    BackSleeps(u32),
    FrontSleeps(u32),
}

/// Steps of a run. Miri checks each access for what it is, so a few steps show it all.
const STEPS: usize = if cfg!(miri) { 12 } else { 200 };

/// Batch sizes: mostly small, sometimes a whole ring.
fn batch() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..5, 2 => 0u32..70, 1 => 0u32..if cfg!(miri) { 100 } else { 5000 }]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => batch().prop_map(Op::Push),
        3 => Just(Op::Publish),
        3 => (batch(), batch()).prop_map(|(want, take)| Op::BackTake { want, take }),
        3 => batch().prop_map(Op::Answer),
        3 => (batch(), batch()).prop_map(|(want, take)| Op::FrontTake { want, take }),
        1 => (0u32..6).prop_map(Op::BackSleeps),
        1 => (0u32..6).prop_map(Op::FrontSleeps),
    ]
}

/// Initial indices: 0, around the change of sign, and shortly before the wrap.
fn start() -> impl Strategy<Value = u32> {
    prop_oneof![1 => Just(0u32), 1 => Just(i32::MAX as u32), 4 => (0u32..600).prop_map(|n| u32::MAX - n)]
}

fn page_count() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(1usize), 1 => Just(2), 1 => Just(4), 1 => Just(8)]
}

/// A producer's index as the consumer knows it, and when the consumer wants to be woken.
#[derive(Debug)]
struct Direction {
    published: u64,
    /// The index as the consumer last read it.
    seen: u64,
    taken: u64,
    /// "Notify me when `published` passes this."
    event: u64,
    /// The consumer sleeps until this many are published.
    asleep_until: Option<u64>,
}

impl Direction {
    fn new(start: u64) -> Direction {
        Direction { published: start, seen: start, taken: start, event: start + 1, asleep_until: None }
    }

    fn publish(&mut self, n: u64) -> bool {
        let old = self.published;
        self.published += n;
        let notify = old < self.event && self.event <= self.published;
        if notify {
            self.asleep_until = None;
        }
        notify
    }

    fn available(&mut self, want: u64) -> u64 {
        if self.seen - self.taken < want {
            self.seen = self.published;
        }
        self.seen - self.taken
    }

    fn final_check(&mut self, want: u64) -> bool {
        if self.available(want) >= want {
            return true;
        }
        self.event = self.taken + want;
        self.asleep_until = Some(self.event);
        self.available(want) >= want
    }
}

#[derive(Debug)]
struct Model {
    size: u64,
    pushed: u64,
    requests: Direction,
    responses: Direction,
    /// Numbers of the requests that are published and not taken.
    asked: VecDeque<u64>,
    /// Numbers of the requests that the back has taken and not answered.
    at_back: VecDeque<u64>,
    /// Numbers of the answers that the front has not taken.
    answered: VecDeque<u64>,
}

impl Model {
    fn new(size: u32, start: u32) -> Model {
        let (requests, responses) = (Direction::new(start.into()), Direction::new(start.into()));
        let (asked, at_back, answered) = Default::default();
        Model { size: size.into(), pushed: 0, requests, responses, asked, at_back, answered }
    }

    fn free(&self) -> u64 {
        self.size - self.pushed - (self.asked.len() + self.at_back.len() + self.answered.len()) as u64
    }

    fn step<K: Sample>(
        &mut self,
        op: Op,
        front: &mut FrontRing<K, impl RingMem<Kind = K>>,
        back: &mut BackRing<K, impl RingMem<Kind = K>>,
    ) {
        match op {
            Op::Push(n) => {
                for _ in 0..u64::from(n).min(self.free()) {
                    let number = self.requests.published + self.pushed;
                    assert_eq!(front.next_index(), number as u32);
                    front.push(&K::req(number));
                    self.pushed += 1;
                }
            }
            Op::Publish => {
                let first = self.requests.published;
                self.asked.extend(first..first + self.pushed);
                let notify = self.requests.publish(self.pushed);
                self.pushed = 0;
                assert_eq!(front.publish().wanted(), notify, "the back's wake-up");
            }
            Op::BackTake { want, take } => {
                let n = self.requests.available(want.into());
                assert_eq!(back.available(want), Ok(n as u32));
                let n = n.min(take.into());
                for ahead in 0..n {
                    let number =
                        self.asked.pop_front().expect("the model's queue is as long as its index says");
                    assert_eq!(back.read(ahead as u32), K::req(number));
                    self.at_back.push_back(number);
                }
                back.consume(n as u32);
                self.requests.taken += n;
            }
            Op::Answer(n) => {
                let numbers: Vec<u64> = (0..n).map_while(|_| self.at_back.pop_front()).collect();
                let answers: Vec<K::Rsp> = numbers.iter().map(|n| K::rsp(*n)).collect();
                let notify = self.responses.publish(numbers.len() as u64);
                self.answered.extend(numbers);
                assert_eq!(back.answer(&answers).wanted(), notify, "the front's wake-up");
            }
            Op::FrontTake { want, take } => {
                let n = self.responses.available(want.into());
                assert_eq!(front.available(want), Ok(n as u32));
                let n = n.min(take.into());
                for ahead in 0..n {
                    let number =
                        self.answered.pop_front().expect("the model's queue is as long as its index says");
                    assert_eq!(front.read(ahead as u32), K::rsp(number));
                }
                front.consume(n as u32);
                self.responses.taken += n;
            }
            Op::BackSleeps(more) => {
                assert_eq!(back.final_check(more), Ok(self.requests.final_check(more.max(1).into())));
            }
            Op::FrontSleeps(ahead) => {
                assert_eq!(front.final_check(ahead), Ok(self.responses.final_check(ahead.max(1).into())));
            }
        }
        self.agrees(front, back);
    }

    fn agrees<K: Sample>(
        &self,
        front: &FrontRing<K, impl RingMem<Kind = K>>,
        back: &BackRing<K, impl RingMem<Kind = K>>,
    ) {
        assert_eq!(u64::from(front.free()), self.free());
        assert_eq!(u64::from(front.in_flight()), self.size - self.free());
        assert_eq!(back.unanswered() as usize, self.at_back.len());
        assert_eq!(front.rsp_cons(), self.responses.taken as u32);
        assert_eq!(back.req_cons(), self.requests.taken as u32);
        for direction in [&self.requests, &self.responses] {
            if let Some(until) = direction.asleep_until {
                assert!(direction.published < until, "a sleeper was not woken: {direction:?}");
            }
        }
    }
}

fn follows_the_model<K: Sample>(pages: usize, start: u32, ops: &[Op]) {
    let (mut front, mut back, _) = pair::<K>(pages, start);
    let mut model = Model::new(front.size(), start);
    for op in ops {
        model.step(*op, &mut front, &mut back);
    }
}

/// The indices that a side must believe, given what it has seen and what the protocol still allows,
/// as u32.
fn believable(seen: u64, limit: u64, reported: u32) -> Option<u64> {
    (seen..=limit).find(|index| *index as u32 == reported)
}

/// An index that a liar stores, from what would be right.
#[derive(Clone, Copy, Debug)]
enum Violation {
    Near(i32),
    Any(u32),
}

impl Violation {
    fn about(self, truth: u64) -> u32 {
        match self {
            Violation::Near(by) => (truth as u32).wrapping_add_signed(by),
            Violation::Any(index) => index,
        }
    }
}

fn violation() -> impl Strategy<Value = Violation> {
    prop_oneof![3 => (-5i32..=5).prop_map(Violation::Near), 3 => (-600i32..600).prop_map(Violation::Near), 2 => any::<u32>().prop_map(Violation::Any)]
}

fn a_lying_front_is_caught<K: Sample>(start: u32, ops: &[Op], violation: Violation) {
    let (mut front, mut back, memory) = pair::<K>(1, start);
    let page = ring_pages::<K>(&memory);
    let mut model = Model::new(front.size(), start);
    for op in ops {
        model.step(*op, &mut front, &mut back);
    }
    let reported = violation.about(model.requests.published);
    page.store(Word::ReqProd, reported);
    let (seen, taken) = (model.requests.seen, model.requests.taken);
    let result = back.available(u32::MAX);
    match believable(seen, model.responses.published + model.size, reported) {
        Some(index) => assert_eq!(result, Ok((index - taken) as u32)),
        None => {
            let fault =
                PeerFault::ReqProdOverrun { req_prod: reported, req_cons: taken as u32, size: back.size() };
            assert_eq!(result, Err(fault));
            assert_eq!(back.final_check(u32::MAX), Err(fault), "asked again, and before sleeping");
            page.store(Word::ReqProd, model.requests.published as u32);
            let truth = model.requests.available(u64::MAX) as u32;
            assert_eq!(back.available(u32::MAX), Ok(truth), "a refused index changes nothing");
        }
    }
}

fn a_lying_back_is_caught<K: Sample>(start: u32, ops: &[Op], violation: Violation) {
    let (mut front, mut back, memory) = pair::<K>(1, start);
    let page = ring_pages::<K>(&memory);
    let mut model = Model::new(front.size(), start);
    for op in ops {
        model.step(*op, &mut front, &mut back);
    }
    let reported = violation.about(model.responses.published);
    page.store(Word::RspProd, reported);
    let (seen, taken) = (model.responses.seen, model.responses.taken);
    let result = front.available(u32::MAX);
    // Only what was published can be answered; what was pushed and not shown cannot.
    match believable(seen, model.requests.published, reported) {
        Some(index) => assert_eq!(result, Ok((index - taken) as u32)),
        None => {
            let in_flight = (model.requests.published - taken) as u32;
            let fault = PeerFault::RspProdOverrun { rsp_prod: reported, rsp_cons: taken as u32, in_flight };
            assert_eq!(result, Err(fault));
            assert_eq!(front.final_check(u32::MAX), Err(fault), "asked again, and before sleeping");
            page.store(Word::RspProd, model.responses.published as u32);
            assert_eq!(front.available(u32::MAX), Err(fault), "a truth behind it does not mend it");
        }
    }
}

proptest! {
    #[test]
    fn tx_follows_the_model(pages in page_count(), start in start(), ops in prop::collection::vec(op(), 1..STEPS)) {
        follows_the_model::<NetTx>(pages, start, &ops);
    }

    #[test]
    fn rx_follows_the_model(pages in page_count(), start in start(), ops in prop::collection::vec(op(), 1..STEPS)) {
        follows_the_model::<NetRx>(pages, start, &ops);
    }

    #[test]
    fn xsa_86_a_front_with_a_wrong_req_prod_is_caught(start in start(), ops in prop::collection::vec(op(), 0..STEPS / 4), violation in violation()) {
        a_lying_front_is_caught::<NetTx>(start, &ops, violation);
        a_lying_front_is_caught::<NetRx>(start, &ops, violation);
    }

    #[test]
    fn xsa_86_a_back_with_a_wrong_rsp_prod_is_caught(start in start(), ops in prop::collection::vec(op(), 0..STEPS / 4), violation in violation()) {
        a_lying_back_is_caught::<NetTx>(start, &ops, violation);
        a_lying_back_is_caught::<NetRx>(start, &ops, violation);
    }

    #[test]
    fn a_wrong_event_index_wakes_at_the_wrong_time_and_no_more(
        start in start(), before in 0u32..200, n in 1u32..50, event in any::<u32>(), near in -60i32..60, guess in any::<bool>(),
    ) {
        let (mut front, mut back, memory) = pair::<NetTx>(1, start);
        let page = ring_pages::<NetTx>(&memory);
        for k in 0..before { front.push(&NetTx::req(k.into())); }
        let _ = front.publish();
        let old = start.wrapping_add(before);
        let event = if guess { event } else { old.wrapping_add_signed(near) };
        page.store(Word::ReqEvent, event);
        for k in 0..n { front.push(&NetTx::req(k.into())); }
        let inside = (1..=n).any(|k| old.wrapping_add(k) == event);
        prop_assert_eq!(front.publish().wanted(), inside);
        prop_assert_eq!(back.available(u32::MAX), Ok(before + n));
    }

    #[test]
    fn a_live_ring_is_taken_up_only_when_its_indices_belong_together(rsp_prod in start(), ahead in 0u32..600, any in any::<u32>(), guess in any::<bool>()) {
        let memory = Pages::new(1);
        let page = ring_pages::<NetTx>(&memory);
        page.init();
        let ahead = if guess { any } else { ahead };
        let req_prod = rsp_prod.wrapping_add(ahead);
        page.store(Word::ReqProd, req_prod);
        page.store(Word::RspProd, rsp_prod);
        match BackRing::<NetTx, _>::attach(page, None) {
            Ok((mut back, _)) => {
                prop_assert!(ahead <= back.size());
                prop_assert_eq!(back.req_cons(), rsp_prod);
                prop_assert_eq!(back.available(1), Ok(ahead));
            }
            Err(fault) => {
                prop_assert!(ahead > 256);
                prop_assert_eq!(fault, PeerFault::BadAttach { req_prod, rsp_prod });
            }
        }
    }
}

/// A request that was taken and not answered holds its slot: a front that fills it again has
/// overrun the ring.
#[test]
fn xsa_86_a_slot_without_an_answer_is_not_free() {
    let (mut front, mut back, memory) = pair::<NetTx>(1, u32::MAX - 7);
    let page = ring_pages::<NetTx>(&memory);
    let (size, start) = (front.size(), front.next_index());
    for n in 0..u64::from(size) {
        front.push(&NetTx::req(n));
    }
    let _ = front.publish();
    assert_eq!(back.available(size), Ok(size));
    back.consume(10);
    let _ = back.answer(&[TxResponse::default(); 4]);
    for (beyond, believed) in [(5, false), (4, true)] {
        let reported = start.wrapping_add(size + beyond);
        page.store(Word::ReqProd, reported);
        let fault = PeerFault::ReqProdOverrun { req_prod: reported, req_cons: start.wrapping_add(10), size };
        assert_eq!(back.available(size), if believed { Ok(size - 10 + beyond) } else { Err(fault) });
    }
}

/// Memory in which every word is different each time it is read, and that counts reads.
struct Shifting {
    reads: RefCell<Vec<(u32, usize)>>,
    index_loads: RefCell<VecDeque<u32>>,
    next: RefCell<u32>,
}

impl Shifting {
    fn new(index_loads: &[u32]) -> Shifting {
        let index_loads = RefCell::new(index_loads.iter().copied().collect());
        Shifting { reads: RefCell::default(), index_loads, next: RefCell::new(0) }
    }
}

impl RingMem for &Shifting {
    type Kind = NetTx;
    fn size(&self) -> u32 {
        8
    }
    fn load(&self, _: Word) -> u32 {
        self.index_loads.borrow_mut().pop_front().expect("no more index loads than the test allows")
    }
    fn store(&self, _: Word, _: u32) {}
    fn read<const W: usize>(&self, idx: u32) -> [u32; W] {
        self.reads.borrow_mut().push((idx, W));
        std::array::from_fn(|_| {
            *self.next.borrow_mut() += 1;
            *self.next.borrow()
        })
    }
    fn write<const W: usize>(&self, _: u32, _: [u32; W]) {}
}

#[test]
fn xsa_155_197_each_word_of_a_ring_is_read_once() {
    // attach loads rsp_prod and req_prod, and each check of the ring loads one index.
    let memory = Shifting::new(&[0, 0, 3, 7]);
    let (mut back, _) = BackRing::<NetTx, _>::attach(&memory, None).unwrap();
    assert_eq!(back.available(1), Ok(3));
    assert_eq!(back.available(3), Ok(3), "known without a read");
    assert_eq!(back.read(0), TxRequest::from_words([1, 2, 3]));
    assert_eq!(back.read(1), TxRequest::from_words([4, 5, 6]));
    back.consume(2);
    assert_eq!(back.available(2), Ok(5));
    assert_eq!(*memory.reads.borrow(), [(0, 3), (1, 3)]);
    assert!(memory.index_loads.borrow().is_empty());
}

#[test]
fn slots_that_the_peer_scribbles_over_reach_nothing_but_their_reader() {
    use pregrant::shm::SharedBytes;
    let (mut front, mut back, memory) = pair::<NetTx>(1, u32::MAX - 2);
    let scribble =
        |value: u32| (64..memory.len()).step_by(4).for_each(|at| assert!(memory.store_u32(at, value)));
    for round in 0..if cfg!(miri) { 4u64 } else { 600 } {
        front.push(&NetTx::req(round));
        let _ = front.publish();
        scribble(round as u32);
        assert_eq!(back.available(1), Ok(1));
        assert_eq!(back.read(0), TxRequest::from_words([round as u32; 3]));
        back.consume(1);
        let _ = back.answer(&[NetTx::rsp(round)]);
        scribble(!(round as u32));
        assert_eq!(front.available(1), Ok(1));
        assert_eq!(front.read(0), TxResponse::from_word(!(round as u32)));
        front.consume(1);
    }
    assert_eq!((front.in_flight(), back.unanswered()), (0, 0));
}

#[test]
fn xsa_216_a_response_leaves_the_rest_of_its_slot_alone() {
    use pregrant::shm::SharedBytes;
    let (mut front, mut back, memory) = pair::<NetTx>(1, 0);
    let request = NetTx::req(0xabcd);
    front.push(&request);
    let _ = front.publish();
    assert_eq!(back.available(1), Ok(1));
    back.consume(1);
    let _ = back.answer(&[NetTx::rsp(7)]);
    let words = [64, 68, 72].map(|at| memory.load_u32(at).unwrap());
    assert_eq!(words[0], NetTx::rsp(7).to_word());
    assert_eq!(words[1..], request.to_words()[1..]);
}

#[test]
fn sizes_are_those_of_the_protocol() {
    for (pages, size) in [(1, 256), (2, 512), (4, 1024), (8, 2048), (16, 4096)] {
        assert_eq!(ring_pages::<NetTx>(&Pages::new(pages)).size(), size);
        assert_eq!(ring_pages::<NetRx>(&Pages::new(pages)).size(), size);
    }
}
