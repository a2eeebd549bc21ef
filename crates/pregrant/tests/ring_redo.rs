//! A back that dies at any store of a batch, and the one that takes the live ring up (PROTOCOL.md 1.1, R3).
//!
//! ```text
//!   before --(the stores of one call, in program order)--> after
//!            ^ death after the first, the second, ...: each is a state, and each gets a successor
//! ```
//!
//! The front must see each answer once, in order, and none missing; a request that is taken again must still be a
//! request. The order of stores is stated here, and the ring's part of it is compared with what the code really does.
#![cfg(not(loom))]

use pregrant::PeerFault;
use pregrant::platform::local::Pages;
use pregrant::ring::{
    BackRing, InHand, NetRx, NetTx, Notify, REDO_RECORDS, RedoPage, RingKind, RingMem, RingPages, Word,
};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RxRequest, RxResponse, TxRequest, TxResponse};
use proptest::prelude::*;
use std::cell::RefCell;
use std::fmt::Debug;

/// Requests and answers by number. Whose answer it is shows in it.
trait Sample: RingKind<Req: PartialEq + Debug, Rsp: PartialEq + Debug> {
    fn req(index: u32) -> Self::Req;
    fn rsp(index: u32, by: u16) -> Self::Rsp;
    /// Words of a response in its slot.
    const RSP_WORDS: u32;
}

impl Sample for NetTx {
    fn req(index: u32) -> TxRequest {
        let low = index as u16;
        TxRequest { gref: !index, offset: low, flags: !low, id: low ^ 0xff, size: low ^ 0xff00 }
    }
    fn rsp(index: u32, by: u16) -> TxResponse {
        TxResponse { id: index as u16, status: by as i16 }
    }
    const RSP_WORDS: u32 = 1;
}

impl Sample for NetRx {
    fn req(index: u32) -> RxRequest {
        RxRequest { id: !(index as u16), gref: !index }
    }
    fn rsp(index: u32, by: u16) -> RxResponse {
        RxResponse { id: index as u16, offset: !(index as u16), flags: by, status: by as i16 }
    }
    const RSP_WORDS: u32 = 2;
}

const INTENT: Place = Place::Redo(0);
const FROM: Place = Place::Redo(1);
const MAGIC: Place = Place::Redo(2);
/// For R7: what came in, two pairs of index and frames answered, asking, what the port held, what predecessors had.
const COUNTS: [Place; 8] = [
    Place::Redo(10),
    Place::Redo(3),
    Place::Redo(9),
    Place::Redo(8),
    Place::Redo(4),
    Place::Redo(5),
    Place::Redo(6),
    Place::Redo(7),
];
/// Frames that the first back has in its hands beyond its batch, and those that its port holds.
const BEHIND: u32 = 7;
const HELD: u32 = 3;
const RSP_PROD: Place = Place::Ring(2);
const FIRST_BACK: u16 = 11;
const SECOND_BACK: u16 = 22;

/// A word that a back stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Ring(u32),
    Redo(u32),
}

/// What outlives a back: the ring's page and the redo page.
struct Survives {
    ring: Pages,
    redo: Pages,
}

/// All words of both.
#[derive(Clone, PartialEq, Eq)]
struct Words {
    ring: Vec<u32>,
    redo: Vec<u32>,
}

impl Survives {
    fn new() -> Survives {
        let survives = Survives { ring: Pages::new(1), redo: Pages::new(1) };
        RingPages::new(survives.ring.clone(), 2).init();
        survives
    }

    fn words(&self) -> Words {
        let all = |pages: &Pages| (0..1024).map(|i| pages.load_u32(i * 4).unwrap()).collect();
        Words { ring: all(&self.ring), redo: all(&self.redo) }
    }

    fn put(&self, place: Place, value: u32) {
        let (pages, word) = match place {
            Place::Ring(word) => (&self.ring, word),
            Place::Redo(word) => (&self.redo, word),
        };
        assert!(pages.store_u32(word as usize * 4, value));
    }

    fn put_all(&self, words: &Words) {
        for i in 0..1024 {
            self.put(Place::Ring(i), words.ring[i as usize]);
            self.put(Place::Redo(i), words.redo[i as usize]);
        }
    }

    fn page<K: RingKind>(&self) -> RingPages<Pages> {
        RingPages::new(self.ring.clone(), K::SLOT_WORDS)
    }

    fn redo(&self) -> Option<RedoPage> {
        RedoPage::new(self.redo.clone())
    }

    fn attach<K: RingKind>(&self) -> (BackRing<K, RingPages<Pages>>, Notify) {
        BackRing::attach(self.page::<K>(), self.redo()).expect("the ring can be taken up")
    }

    /// The front's part, without a front: `count` requests from `first` on.
    fn ask<K: Sample>(&self, first: u32, count: u32) {
        let page = self.page::<K>();
        for index in (0..count).map(|k| first.wrapping_add(k)) {
            K::write_req(&page, index, &K::req(index));
        }
        page.store(Word::ReqProd, first.wrapping_add(count));
    }
}

impl Words {
    fn get(&self, place: Place) -> u32 {
        match place {
            Place::Ring(word) => self.ring[word as usize],
            Place::Redo(word) => self.redo[word as usize],
        }
    }
}

/// The ring's stores for `count` answers from `first` on.
fn ring_stores<K: Sample>(first: u32, count: u32) -> Vec<Place> {
    let slot = |index: u32| 16 + (index & 255) * K::SLOT_WORDS as u32;
    let words = |k: u32| (0..K::RSP_WORDS).map(move |w| Place::Ring(slot(first.wrapping_add(k)) + w));
    (0..count).flat_map(words).chain([RSP_PROD]).collect()
}

/// All stores of `BackRing::answer`; of the pairs one is as it was.
fn answer_stores<K: Sample>(first: u32, count: u32) -> Vec<Place> {
    let records = (0..2 * count).map(|w| Place::Redo(16 + w));
    let pairs = [7, 6, 5, 4].map(Place::Redo);
    [FROM]
        .into_iter()
        .chain(pairs)
        .chain(records)
        .chain([INTENT])
        .chain(ring_stores::<K>(first, count))
        .collect()
}

/// What a redo page may hold when a back begins.
#[derive(Clone, Copy, Debug)]
enum Old {
    /// Zeroed: the file is new.
    Nothing,
    /// From a back that served before somebody without a redo page did; relative to where the ring is now.
    Stale { from: i32, intent: i32 },
}

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Where the indices start.
    start: u32,
    old: Old,
    /// Answered in full before the batch in which the back dies.
    earlier: u32,
    /// Answers of that batch.
    batch: u32,
    /// Requests after it.
    later: u32,
}

impl Case {
    fn total(&self) -> u32 {
        self.earlier + self.batch + self.later
    }

    fn at(&self, k: u32) -> u32 {
        self.start.wrapping_add(k)
    }

    fn answers<K: Sample>(&self, from: u32, to: u32, by: u16) -> Vec<K::Rsp> {
        (from..to).map(|k| K::rsp(self.at(k), by)).collect()
    }

    /// The state just before the batch's answers, and the back that is about to write them.
    fn begin<K: Sample>(&self) -> (Survives, BackRing<K, RingPages<Pages>>) {
        let survives = Survives::new();
        for index in [Place::Ring(0), RSP_PROD] {
            survives.put(index, self.start);
        }
        for event in [Place::Ring(1), Place::Ring(3)] {
            survives.put(event, self.at(1));
        }
        if let Old::Stale { from, intent } = self.old {
            survives.put(FROM, self.start.wrapping_add_signed(from));
            survives.put(INTENT, self.start.wrapping_add_signed(intent));
            survives.put(MAGIC, u32::from_le_bytes(*b"PGR1"));
        }
        survives.ask::<K>(self.start, self.total());
        let (mut back, _) = survives.attach::<K>();
        assert_eq!(back.available(1), Ok(self.total()));
        back.consume(self.earlier + self.batch);
        back.in_hand(self.earlier + self.batch + BEHIND, HELD);
        let _ = back.answer_frames(&self.answers::<K>(0, self.earlier, FIRST_BACK), self.earlier);
        (survives, back)
    }

    /// A successor takes the ring up, and `resumed` says how many answers its predecessors must have left.
    fn finish<K: Sample>(&self, survives: &Survives, resumed: u32) {
        let (mut back, _) = survives.attach::<K>();
        assert_eq!(back.req_cons(), self.at(resumed), "where the successor goes on");
        let left = self.total() - resumed;
        assert_eq!(back.available(1), Ok(left));
        for ahead in 0..left {
            assert_eq!(back.read(ahead), K::req(self.at(resumed + ahead)), "still a request");
        }
        back.consume(left);
        let _ = back.answer(&self.answers::<K>(resumed, self.total(), SECOND_BACK));
        let page = survives.page::<K>();
        assert_eq!(page.load(Word::RspProd), self.at(self.total()), "each answer is published once");
        for k in 0..self.total() {
            let by = if k < resumed { FIRST_BACK } else { SECOND_BACK };
            assert_eq!(K::read_rsp(&page, self.at(k)), K::rsp(self.at(k), by), "answer {k}");
        }
    }
}

/// Calls `with` for the state after each prefix of `stores`, and how long that prefix was.
fn at_each_death(
    survives: &Survives,
    before: &Words,
    after: &Words,
    stores: &[Place],
    mut with: impl FnMut(usize),
) {
    for dead_after in 0..=stores.len() {
        survives.put_all(before);
        for place in &stores[..dead_after] {
            survives.put(*place, after.get(*place));
        }
        with(dead_after);
    }
    assert!(survives_as(before, after, stores), "the list of stores is complete");
}

/// Whether `stores` turn `before` into `after`.
fn survives_as(before: &Words, after: &Words, stores: &[Place]) -> bool {
    let mut words = before.clone();
    for place in stores {
        match *place {
            Place::Ring(word) => words.ring[word as usize] = after.ring[word as usize],
            Place::Redo(word) => words.redo[word as usize] = after.redo[word as usize],
        }
    }
    words == *after
}

/// The first back dies in its batch, the second while it takes the ring up, the third serves.
fn every_death<K: Sample>(case: Case) {
    let (survives, mut back) = case.begin::<K>();
    let first = case.at(case.earlier);
    let done = case.earlier + case.batch;
    let before = survives.words();
    let _ = back.answer_frames(&case.answers::<K>(case.earlier, done, FIRST_BACK), case.batch);
    let after = survives.words();
    let stores = answer_stores::<K>(first, case.batch);
    let intent = stores.iter().position(|s| *s == INTENT).expect("a batch has an intent");
    at_each_death(&survives, &before, &after, &stores, |dead_after| {
        let resumed = if dead_after <= intent { case.earlier } else { done };
        let to_replay = dead_after > intent && dead_after < stores.len();
        let found = survives.words();
        let inherited = survives.attach::<K>().0.inherited();
        let frames = BEHIND + HELD + (done - resumed);
        assert_eq!(inherited, Some(InHand { frames, asking: false, total: frames }));
        let taken_up = survives.words();
        let mut attach = if to_replay { ring_stores::<K>(first, case.batch) } else { Vec::new() };
        attach.extend(COUNTS.into_iter().chain([INTENT, FROM, MAGIC]));
        at_each_death(&survives, &found, &taken_up, &attach, |dead_after| {
            // What the second was counting when it died may be counted again, and is never forgotten.
            let third = survives.attach::<K>().0.inherited().expect("a redo page");
            assert!((frames..=2 * frames).contains(&third.total) && third.frames <= frames, "{third:?}");
            let nothing = InHand { frames: 0, asking: false, total: frames };
            assert!(dead_after < attach.len() || third == nothing, "{third:?}");
            case.finish::<K>(&survives, resumed);
        });
    });
}

fn every_death_of<K: Sample>() {
    let olds = [
        Old::Nothing,
        Old::Stale { from: -9, intent: -4 },
        Old::Stale { from: -9, intent: 3 },
        Old::Stale { from: 2, intent: 7 },
    ];
    for start in [0, 254, u32::MAX - 3, u32::MAX] {
        for old in olds {
            for batch in [1, 2, 3, 5] {
                for (earlier, later) in [(0, 0), (0, 2), (3, 1)] {
                    every_death::<K>(Case { start, old, earlier, batch, later });
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states; the tests below make the same accesses")]
fn a_tx_back_that_dies_anywhere_leaves_each_answer_to_be_given_once() {
    every_death_of::<NetTx>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states; the tests below make the same accesses")]
fn an_rx_back_that_dies_anywhere_leaves_each_answer_to_be_given_once() {
    every_death_of::<NetRx>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of states; the tests below make the same accesses")]
fn a_batch_may_fill_the_redo_page() {
    let batch = REDO_RECORDS as u32;
    let case = Case { start: u32::MAX - 100, old: Old::Nothing, earlier: 0, batch, later: 0 };
    let (survives, mut back) = case.begin::<NetTx>();
    let before = survives.words();
    let _ = back.answer(&case.answers::<NetTx>(0, batch, FIRST_BACK));
    let after = survives.words();
    let stores = answer_stores::<NetTx>(case.start, batch);
    let intent = stores.iter().position(|s| *s == INTENT).expect("a batch has an intent");
    at_each_death(&survives, &before, &after, &stores, |dead_after| {
        case.finish::<NetTx>(&survives, if dead_after <= intent { 0 } else { batch });
    });
}

/// Memory of a ring that keeps the order of its stores, and looks at the redo page at the first of them.
struct Watched<'a> {
    page: RingPages<Pages>,
    survives: &'a Survives,
    stores: RefCell<Vec<Place>>,
    redo_at_first_store: RefCell<Option<Vec<u32>>>,
}

impl Watched<'_> {
    fn note(&self, place: Place) {
        self.redo_at_first_store.borrow_mut().get_or_insert_with(|| self.survives.words().redo);
        self.stores.borrow_mut().push(place);
    }
}

impl RingMem for &Watched<'_> {
    fn size(&self) -> u32 {
        self.page.size()
    }
    fn load(&self, w: Word) -> u32 {
        self.page.load(w)
    }
    fn store(&self, w: Word, v: u32) {
        self.note(Place::Ring(w as u32));
        self.page.store(w, v);
    }
    fn read<const SLOT: usize, const W: usize>(&self, idx: u32) -> [u32; W] {
        self.page.read::<SLOT, W>(idx)
    }
    fn write<const SLOT: usize, const W: usize>(&self, idx: u32, words: [u32; W]) {
        for w in 0..W {
            self.note(Place::Ring(16 + (idx & (self.size() - 1)) * SLOT as u32 + w as u32));
        }
        self.page.write::<SLOT, W>(idx, words);
    }
}

#[test]
fn the_intent_stands_before_the_first_slot_is_touched_and_the_index_comes_last() {
    let survives = Survives::new();
    survives.ask::<NetRx>(0, 5);
    let (page, stores, redo_at_first_store) =
        (survives.page::<NetRx>(), RefCell::default(), RefCell::default());
    let watched = Watched { page, survives: &survives, stores, redo_at_first_store };
    let (mut back, _) = BackRing::<NetRx, _>::attach(&watched, survives.redo()).unwrap();
    assert_eq!(back.available(1), Ok(5));
    back.consume(5);
    let answers: Vec<RxResponse> = (0..5).map(|k| NetRx::rsp(k, FIRST_BACK)).collect();
    let _ = back.answer(&answers);
    assert_eq!(*watched.stores.borrow(), ring_stores::<NetRx>(0, 5));
    assert_eq!(
        *watched.redo_at_first_store.borrow(),
        Some(survives.words().redo),
        "whole before, untouched after"
    );
}

#[test]
fn a_replay_says_whether_the_front_waits_for_it() {
    for (event, wanted) in [(1, true), (3, true), (4, false), (0, false)] {
        let case = Case { start: 0, old: Old::Nothing, earlier: 0, batch: 3, later: 0 };
        let (survives, mut back) = case.begin::<NetTx>();
        let _ = back.answer(&case.answers::<NetTx>(0, 3, FIRST_BACK));
        survives.put(RSP_PROD, 0);
        survives.put(Place::Ring(3), event);
        assert_eq!(survives.attach::<NetTx>().1.wanted(), wanted, "rsp_event {event}");
    }
}

#[test]
fn a_cleared_page_has_nothing_for_the_next_connection() {
    let case = Case { start: 0, old: Old::Nothing, earlier: 0, batch: 2, later: 0 };
    let (survives, mut back) = case.begin::<NetTx>();
    let _ = back.answer(&case.answers::<NetTx>(0, 2, FIRST_BACK));
    // The front comes again, with a ring of its own that starts at 0 as the old one did.
    survives.page::<NetTx>().init();
    survives.ask::<NetTx>(0, 4);
    survives.redo().unwrap().clear();
    let (back, notify) = survives.attach::<NetTx>();
    assert_eq!((back.req_cons(), notify), (0, Notify::No));
}

#[test]
fn answers_that_were_never_asked_are_not_replayed() {
    let case = Case { start: 0, old: Old::Nothing, earlier: 0, batch: 3, later: 0 };
    let (survives, mut back) = case.begin::<NetTx>();
    let _ = back.answer(&case.answers::<NetTx>(0, 3, FIRST_BACK));
    survives.put(RSP_PROD, 0);
    survives.put(Place::Ring(0), 2);
    let before = survives.words();
    let fault = BackRing::<NetTx, _>::attach(survives.page::<NetTx>(), survives.redo()).map(drop);
    assert_eq!(fault, Err(PeerFault::BadAttach { req_prod: 2, rsp_prod: 0 }));
    assert!(survives.words() == before, "a refused ring is left as it was");
}

/// What a back has in its hands is what came in and was not answered, whatever became of the backs before.
#[test]
fn a_successor_finds_what_its_predecessor_had_in_its_hands() {
    let case = Case { start: u32::MAX - 5, old: Old::Nothing, earlier: 0, batch: 4, later: 8 };
    let (survives, back) = case.begin::<NetRx>();
    back.in_hand(9, 2);
    back.asking();
    let (mut back, _) = survives.attach::<NetRx>();
    assert_eq!(back.inherited(), Some(InHand { frames: 11, asking: true, total: 11 }));
    // Nothing is in the hands of one who has just begun; then three come, and two of them leave.
    assert_eq!(back.available(1), Ok(12));
    back.consume(12);
    back.in_hand(3, 0);
    let _ = back.answer_frames(&case.answers::<NetRx>(0, 4, FIRST_BACK), 2);
    let (mut back, _) = survives.attach::<NetRx>();
    assert_eq!(back.inherited(), Some(InHand { frames: 1, asking: false, total: 12 }));
    assert_eq!(back.available(1), Ok(8));
    back.consume(8);
    back.in_hand(5, 0);
    let _ = back.answer_frames(&case.answers::<NetRx>(4, 12, SECOND_BACK), 5);
    let (back, _) = survives.attach::<NetRx>();
    assert_eq!(back.inherited(), Some(InHand { frames: 0, asking: false, total: 12 }));
    // A connection later.
    survives.redo().unwrap().clear();
    assert_eq!(survives.attach::<NetRx>().0.inherited(), Some(InHand::default()));
    drop(back);
    // An index that no back left: the guest made it up, and there is nothing to be said.
    survives.put(RSP_PROD, case.at(3));
    assert_eq!(survives.attach::<NetRx>().0.inherited(), Some(InHand::default()));
    let (without, _) = BackRing::<NetRx, _>::attach(survives.page::<NetRx>(), None).unwrap();
    assert_eq!(without.inherited(), None);
}

proptest! {
    #[test]
    fn no_redo_page_and_no_index_makes_a_back_run_ahead_of_its_front(
        header in prop::array::uniform4(prop_oneof![0u32..20, any::<u32>()]),
        redo in prop::array::uniform3(prop_oneof![0u32..20, any::<u32>(), Just(u32::from_le_bytes(*b"PGR1"))]),
    ) {
        let survives = Survives::new();
        (0..4).for_each(|w| survives.put(Place::Ring(w), header[w as usize]));
        (0..3).for_each(|w| survives.put(Place::Redo(w), redo[w as usize]));
        if let Ok((back, _)) = BackRing::<NetTx, _>::attach(survives.page::<NetTx>(), survives.redo()) {
            prop_assert!(header[0].wrapping_sub(back.req_cons()) <= back.size());
            prop_assert!(back.req_cons().wrapping_sub(header[2]) <= REDO_RECORDS as u32);
        }
    }
}
