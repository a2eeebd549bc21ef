//! A back that answers in any order and dies at any store, and the successor that takes over the
//! live ring (docs/protocol 1.1).
//!
//! ```text
//!   BackRing --stores--> Recorded (RingMem, RedoMem) --> ring pages, journal
//!   before --(the first k of them)--> what a death leaves --> a successor, recorded too --> a third
//! ```
//! The front must see one answer for each id and no other. A request whose slot an answer overlaid
//! must still be known, word for word.
#![cfg(not(miri))]

use pregrant::PeerFault;
use pregrant::platform::local::Pages;
use pregrant::ring::{
    AnyOrder, BackRing, Blkif32, Blkif64, ById, RedoMem, RedoWords, RingKind, RingMem, RingPages, Taken,
    Word, by_id_words,
};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{OP_WRITE, Request, Response, RwRequest, Segment};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

const JOURNAL: usize = 8192;
type Words = RedoWords<JOURNAL>;

/// Request number `n`, which is also its id.
fn req(n: u32) -> Request {
    let seg = core::array::from_fn(|i| Segment { gref: n ^ i as u32, first_sect: 1, last_sect: 5 });
    let (id, sector) = (u64::from(n) | 7 << 40, u64::from(!n));
    Request::ReadWrite(RwRequest { op: OP_WRITE, nr_segments: 11, handle: 3, id, sector, seg })
}

fn rsp(n: u32) -> Response {
    Response { id: req(n).id(), op: OP_WRITE, status: 0 }
}

/// A word that a back stores.
#[derive(Clone, Copy, Debug)]
enum Place {
    Ring(usize),
    Journal(usize),
}

/// Memory that outlives a back. Stores of backs are kept in their order.
#[derive(Clone)]
struct Survives {
    ring: Pages,
    journal: Pages,
    stores: Rc<RefCell<Vec<(Place, u32)>>>,
}

struct Recorded<M> {
    mem: M,
    stores: Rc<RefCell<Vec<(Place, u32)>>>,
}

impl<K: RingKind> RingMem for Recorded<RingPages<K, Pages>> {
    type Kind = K;
    fn size(&self) -> u32 {
        self.mem.size()
    }
    fn load(&self, w: Word) -> u32 {
        self.mem.load(w)
    }
    fn store(&self, w: Word, v: u32) {
        self.stores.borrow_mut().push((Place::Ring(w as usize), v));
        self.mem.store(w, v);
    }
    fn read<const W: usize>(&self, idx: u32) -> [u32; W] {
        self.mem.read(idx)
    }
    fn write<const W: usize>(&self, idx: u32, words: [u32; W]) {
        let slot = 16 + (idx & (self.size() - 1)) as usize * K::SLOT_WORDS;
        let mut stores = self.stores.borrow_mut();
        stores.extend((slot..).zip(words).map(|(at, word)| (Place::Ring(at), word)));
        self.mem.write(idx, words);
    }
}

impl RedoMem for Recorded<Words> {
    fn load(&self, i: usize, order: Ordering) -> u32 {
        self.mem.load(i, order)
    }
    fn store(&self, i: usize, value: u32, order: Ordering) {
        self.stores.borrow_mut().push((Place::Journal(i), value));
        self.mem.store(i, value, order);
    }
}

type Back<K> = BackRing<K, Recorded<RingPages<K, Pages>>, ById<Recorded<Words>>>;

type Image = (Vec<u32>, Vec<u32>);

impl Survives {
    fn new<K: RingKind>(start: u32) -> Self {
        let all = Self { ring: Pages::new(1), journal: Pages::new(2), stores: Rc::default() };
        all.page::<K>().init();
        [0, 2].into_iter().for_each(|i| all.put(Place::Ring(i), start));
        all
    }

    fn page<K: RingKind>(&self) -> RingPages<K, Pages> {
        RingPages::new(self.ring.clone())
    }

    fn put(&self, place: Place, value: u32) {
        let (pages, word) = match place {
            Place::Ring(word) => (&self.ring, word),
            Place::Journal(word) => (&self.journal, word),
        };
        assert!(pages.store_u32(word * 4, value));
    }

    fn image(&self) -> Image {
        let all = |pages: &Pages| (0..pages.len() / 4).map(|i| pages.load_u32(i * 4).unwrap()).collect();
        (all(&self.ring), all(&self.journal))
    }

    fn restore(&self, image: &Image) {
        image.0.iter().enumerate().for_each(|(i, word)| self.put(Place::Ring(i), *word));
        image.1.iter().enumerate().for_each(|(i, word)| self.put(Place::Journal(i), *word));
    }

    fn try_attach<K: AnyOrder>(&self) -> Result<Back<K>, PeerFault> {
        let ring = Recorded { mem: self.page::<K>(), stores: self.stores.clone() };
        let size = ring.size();
        assert!(by_id_words(size, K::SLOT_WORDS) * 4 <= JOURNAL);
        let words = Recorded { mem: Words::new(self.journal.clone()).unwrap(), stores: self.stores.clone() };
        Ok(BackRing::attach(ring, Some(ById::over(words, size)))?.0)
    }

    /// Runs `act` and returns all of its stores, derived from what changed.
    fn recorded<T>(&self, act: impl FnOnce() -> T) -> (T, Vec<(Place, u32)>) {
        let before = self.image();
        self.stores.borrow_mut().clear();
        let result = act();
        let (after, stores) = (self.image(), self.stores.take());
        self.restore(&before);
        stores.iter().for_each(|&(place, value)| self.put(place, value));
        assert!(self.image() == after, "every store is seen");
        (result, stores)
    }

    /// Calls `with` for what a death after each of `stores` leaves.
    fn at_each_death(&self, before: &Image, stores: &[(Place, u32)], mut with: impl FnMut()) {
        for dead_after in 0..=stores.len() {
            self.restore(before);
            stores[..dead_after].iter().for_each(|&(place, value)| self.put(place, value));
            with();
        }
    }

    /// The front's part: `n` requests from index `first` on.
    fn ask<K: RingKind<Req = Request>>(&self, first: u32, n: u32) {
        let page = self.page::<K>();
        (0..n).map(|k| first.wrapping_add(k)).for_each(|at| K::write_req(&page, at, &req(at)));
        page.store(Word::ReqProd, first.wrapping_add(n));
    }
}

/// `n` requests from `start` on. The first `early` of `taken` are answered before, in the order of
/// `order`; a batch of `batch` answers is under way; then `more` are taken.
#[derive(Clone, Copy, Debug)]
struct Case {
    start: u32,
    n: u32,
    taken: u32,
    early: usize,
    batch: usize,
    more: u32,
}

/// Mixes the order in which requests are answered: the newest first, then the oldest.
fn shuffled(mut taken: Vec<(Taken, u32)>) -> Vec<(Taken, u32)> {
    let mut out = Vec::new();
    while let Some(last) = taken.pop() {
        out.push(last);
        if !taken.is_empty() {
            out.push(taken.remove(0));
        }
    }
    out
}

fn take<K: AnyOrder<Req = Request>>(back: &mut Back<K>) -> (Taken, u32) {
    let n = back.req_cons();
    let (taken, request) = back.take().expect("room for it");
    assert_eq!(request, req(n), "still a request");
    (taken, n)
}

fn answers(of: &[(Taken, u32)]) -> Vec<(Taken, Response)> {
    of.iter().map(|&(taken, n)| (taken, rsp(n))).collect()
}

/// A successor does what was consumed and not answered, then the rest: each id has one
/// answer.
fn finish<K: AnyOrder<Req = Request, Rsp = Response>>(case: Case, survives: &Survives) {
    let mut back = survives.try_attach::<K>().expect("the ring can be taken up");
    let mut todo: Vec<(Taken, u32)> = Vec::new();
    for (taken, request) in back.pending() {
        let n = request.id() as u32;
        assert_eq!(request, req(n), "known word for word");
        todo.push((taken, n));
    }
    let left = case.start.wrapping_add(case.n).wrapping_sub(back.req_cons());
    assert_eq!(back.available(1), Ok(left));
    todo.extend((0..left).map(|_| take(&mut back)));
    let _ = back.answer_taken(&answers(&shuffled(todo)));
    let page = survives.page::<K>();
    assert_eq!(page.load(Word::RspProd), case.start.wrapping_add(case.n));
    let mut seen = BTreeMap::new();
    for k in 0..case.n {
        *seen.entry(K::read_rsp(&page, case.start.wrapping_add(k)).id).or_insert(0) += 1;
    }
    let once: BTreeMap<u64, i32> = (0..case.n).map(|k| (req(case.start.wrapping_add(k)).id(), 1)).collect();
    assert_eq!(seen, once, "{case:?}");
}

fn every_death<K: AnyOrder<Req = Request, Rsp = Response>>(case: Case) {
    let survives = Survives::new::<K>(case.start);
    survives.ask::<K>(case.start, case.n);
    let mut back = survives.try_attach::<K>().unwrap();
    assert!(back.pending().is_empty());
    assert_eq!(back.available(1), Ok(case.n));
    let taken: Vec<_> = (0..case.taken).map(|_| take(&mut back)).collect();
    let order = shuffled(taken);
    let _ = back.answer_taken(&answers(&order[..case.early]));
    let before = survives.image();
    let (_, stores) = survives.recorded(|| {
        let _ = back.answer_taken(&answers(&order[case.early..case.early + case.batch]));
        (0..case.more).for_each(|_| {
            take(&mut back);
        });
    });
    survives.at_each_death(&before, &stores, || {
        let found = survives.image();
        let (_, attach) = survives.recorded(|| drop(survives.try_attach::<K>().unwrap()));
        survives.at_each_death(&found, &attach, || finish::<K>(case, &survives));
    });
}

#[test]
fn each_id_is_answered_once_no_matter_who_dies_where() {
    let cases = [(1, 1, 0, 1, 0), (6, 4, 1, 2, 1), (6, 6, 2, 3, 0), (9, 5, 0, 5, 2), (32, 5, 1, 2, 2)];
    for start in [0, 30, u32::MAX - 3] {
        for (n, taken, early, batch, more) in cases {
            let case = Case { start, n, taken, early, batch, more };
            every_death::<Blkif64>(case);
            every_death::<Blkif32>(case);
        }
    }
}

#[test]
fn a_ring_that_does_not_fit_its_journal_is_refused() {
    let survives = Survives::new::<Blkif64>(5);
    survives.ask::<Blkif64>(5, 4);
    let mut back = survives.try_attach::<Blkif64>().unwrap();
    assert_eq!(back.available(1), Ok(4));
    let taken: Vec<_> = (0..3).map(|_| take(&mut back)).collect();
    let _ = back.answer_taken(&answers(&taken[1..2]));
    drop(back);
    let image = survives.image();
    for (word, value) in [(2, 7), (2, 4), (0, 6), (0, 5u32.wrapping_sub(1)), (0, 100)] {
        survives.restore(&image);
        survives.put(Place::Ring(word), value);
        assert!(
            matches!(survives.try_attach::<Blkif64>(), Err(PeerFault::BadAttach { .. })),
            "{word} {value}"
        );
    }
    survives.restore(&image);
    let back = survives.try_attach::<Blkif64>().unwrap();
    assert_eq!(back.pending().len(), 2);
}

/// A ring is full of requests that were taken: none is lost, and no more can be sent.
#[test]
fn a_whole_ring_is_remembered() {
    let survives = Survives::new::<Blkif64>(0);
    survives.ask::<Blkif64>(0, 32);
    let mut back = survives.try_attach::<Blkif64>().unwrap();
    assert_eq!(back.available(32), Ok(32));
    let taken: Vec<_> = (0..32).map(|_| take(&mut back)).collect();
    let _ = back.answer_taken(&answers(&taken[31..]));
    drop(back);
    let successor = survives.try_attach::<Blkif64>().unwrap();
    let numbers: Vec<u32> = successor.pending().iter().map(|(_, request)| request.id() as u32).collect();
    assert_eq!(numbers, (0..31).collect::<Vec<_>>());
}
