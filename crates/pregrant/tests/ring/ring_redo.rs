//! A back that dies at any store of a batch, and the successor that takes over the live ring
//! (docs/protocol 1.1, R3).
//!
//! ```text
//!   BackRing --stores--> Recorded (RingMem, RedoMem) --> ring page, redo page
//!                            | kept in their order: (place, value), (place, value), ...
//!   before --(the first k of them)--> what a death leaves --> a successor, recorded too --> a third
//! ```
//!
//! The front must see each answer once, in order, and none missing; a request that is taken again
//! must still be a request. This test lists no stores: it has those that the code made, through the
//! traits by which it reaches this memory in production too, and that there are no others is
//! checked.

use pregrant::PeerFault;
use pregrant::platform::local::Pages;
use pregrant::ring::{
    BackRing, InFlight, NetRx, NetTx, Notify, REDO_RECORDS, RedoMem, RedoPage, RedoWords, RingKind, RingMem,
    RingPages, Word,
};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RxRequest, RxResponse, TxRequest, TxResponse};
use proptest::prelude::*;
use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Requests and answers by number. An answer shows which back made it.
trait Sample: RingKind<Req: PartialEq + Debug, Rsp: PartialEq + Debug> {
    fn req(index: u32) -> Self::Req;
    fn rsp(index: u32, by: u16) -> Self::Rsp;
}

impl Sample for NetTx {
    fn req(index: u32) -> TxRequest {
        let low = index as u16;
        TxRequest { gref: !index, offset: low, flags: !low, id: low ^ 0xff, size: low ^ 0xff00 }
    }
    fn rsp(index: u32, by: u16) -> TxResponse {
        TxResponse { id: index as u16, status: by as i16 }
    }
}

impl Sample for NetRx {
    fn req(index: u32) -> RxRequest {
        RxRequest { id: !(index as u16), gref: !index }
    }
    fn rsp(index: u32, by: u16) -> RxResponse {
        RxResponse { id: index as u16, offset: !(index as u16), flags: by, status: by as i16 }
    }
}

const INTENT: Place = Place::Redo(0);
const FROM: Place = Place::Redo(1);
const MAGIC: Place = Place::Redo(2);
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

/// A store that a back made.
type Store = (Place, u32);

/// Memory that outlives a back: the ring's page and the redo page. Stores of backs are kept in
/// their order.
struct Survives {
    ring: Pages,
    redo: Pages,
    stores: Rc<RefCell<Vec<Store>>>,
}

/// A back's way to its ring's page or its redo page.
struct Recorded<M> {
    mem: M,
    stores: Rc<RefCell<Vec<Store>>>,
}

impl<M> Recorded<M> {
    fn note(&self, place: Place, value: u32) {
        self.stores.borrow_mut().push((place, value));
    }
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
        self.note(Place::Ring(w as u32), v);
        self.mem.store(w, v);
    }
    fn read<const W: usize>(&self, idx: u32) -> [u32; W] {
        self.mem.read(idx)
    }
    fn write<const W: usize>(&self, idx: u32, words: [u32; W]) {
        let slot = 16 + (idx & (self.size() - 1)) * K::SLOT_WORDS as u32;
        (slot..).zip(words).for_each(|(at, word)| self.note(Place::Ring(at), word));
        self.mem.write(idx, words);
    }
}

impl RedoMem for Recorded<RedoWords> {
    fn load(&self, i: usize, order: Ordering) -> u32 {
        self.mem.load(i, order)
    }
    fn store(&self, i: usize, value: u32, order: Ordering) {
        self.note(Place::Redo(i as u32), value);
        self.mem.store(i, value, order);
    }
}

type Back<K> = BackRing<K, Recorded<RingPages<K, Pages>>, RedoPage<Recorded<RedoWords>>>;

#[derive(Clone, PartialEq, Eq)]
struct Words {
    ring: Vec<u32>,
    redo: Vec<u32>,
}

impl Survives {
    fn new() -> Survives {
        let survives = Survives { ring: Pages::new(1), redo: Pages::new(1), stores: Rc::default() };
        survives.page::<NetTx>().init(); // of any kind: its header
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

    fn page<K: RingKind>(&self) -> RingPages<K, Pages> {
        RingPages::new(self.ring.clone())
    }

    fn redo(&self) -> Option<RedoPage> {
        RedoPage::new(self.redo.clone())
    }

    fn try_attach<K: RingKind>(&self) -> Result<(Back<K>, Notify), PeerFault> {
        let ring = Recorded { mem: self.page::<K>(), stores: self.stores.clone() };
        let words = RedoWords::new(self.redo.clone()).expect("a page");
        let redo = RedoPage::over(Recorded { mem: words, stores: self.stores.clone() });
        BackRing::attach(ring, Some(redo))
    }

    fn attach<K: RingKind>(&self) -> (Back<K>, Notify) {
        self.try_attach().expect("the ring can be taken up")
    }

    /// Calls `act`; returns its result and the stores that it made. It must have changed nothing
    /// else.
    fn recorded<T>(&self, act: impl FnOnce() -> T) -> (T, Vec<Store>) {
        let before = self.words();
        self.stores.borrow_mut().clear();
        let result = act();
        let after = self.words();
        let stores = self.stores.take();
        self.put_all(&before);
        stores.iter().for_each(|&(place, value)| self.put(place, value));
        assert!(self.words() == after, "every store is seen");
        (result, stores)
    }

    /// Calls `with` for the state that a death after each of `stores`, or before all of them,
    /// leaves; `with` gets the stores that were made.
    fn at_each_death(&self, before: &Words, stores: &[Store], mut with: impl FnMut(&[Store])) {
        for dead_after in 0..=stores.len() {
            self.put_all(before);
            let made = &stores[..dead_after];
            made.iter().for_each(|&(place, value)| self.put(place, value));
            with(made);
        }
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

/// The content of a redo page when a back begins.
#[derive(Clone, Copy, Debug)]
enum Old {
    /// Zeroed: the file is new.
    Nothing,
    /// From a back that served before somebody without a redo page did; relative to where the ring
    /// is now.
    Stale { from: i32, intent: i32 },
}

#[derive(Clone, Copy, Debug)]
struct Case {
    start: u32,
    old: Old,
    /// Answered in full before the batch in which the back dies.
    earlier: u32,
    batch: u32,
    /// Number of requests after it.
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
    fn begin<K: Sample>(&self) -> (Survives, Back<K>) {
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
        back.in_flight(self.earlier + self.batch + BEHIND, HELD);
        let _ = back.answer_frames(&self.answers::<K>(0, self.earlier, FIRST_BACK), self.earlier);
        (survives, back)
    }

    /// A successor attaches to the ring; `resumed` is the number of answers that its predecessors
    /// must have left.
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

/// The first back dies in its batch, the second while it takes over the ring, the third serves.
fn every_death<K: Sample>(case: Case) {
    let (survives, mut back) = case.begin::<K>();
    let done = case.earlier + case.batch;
    let answers = case.answers::<K>(case.earlier, done, FIRST_BACK);
    let before = survives.words();
    let (_, stores) = survives.recorded(|| back.answer_frames(&answers, case.batch));
    survives.at_each_death(&before, &stores, |made| {
        let found = survives.words();
        let ((second, _), attach) = survives.recorded(|| survives.attach::<K>());
        // All of the batch from the intent on, and nothing of it before.
        let intended = made.iter().any(|(place, _)| *place == INTENT);
        let resumed = if intended { done } else { case.earlier };
        assert_eq!(second.req_cons(), case.at(resumed));
        let frames = BEHIND + HELD + (done - resumed);
        assert_eq!(second.inherited(), Some(InFlight { frames, asking: false, total: frames }));
        survives.at_each_death(&found, &attach, |made| {
            // Frames that the second was counting when it died may be counted again, and are never
            // forgotten.
            let third = survives.attach::<K>().0.inherited().expect("a redo page");
            assert!((frames..=2 * frames).contains(&third.total) && third.frames <= frames, "{third:?}");
            let nothing = InFlight { frames: 0, asking: false, total: frames };
            assert!(made.len() < attach.len() || third == nothing, "{third:?}");
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
    let (_, stores) = survives.recorded(|| back.answer(&case.answers::<NetTx>(0, batch, FIRST_BACK)));
    survives.at_each_death(&before, &stores, |made| {
        let intended = made.iter().any(|(place, _)| *place == INTENT);
        case.finish::<NetTx>(&survives, if intended { batch } else { 0 });
    });
}

/// The order of docs/protocol 1.1, R3, for Miri too, which does not play each death.
#[test]
fn the_intent_stands_after_the_records_and_before_the_slots_and_the_index_comes_last() {
    let case = Case { start: 0, old: Old::Nothing, earlier: 0, batch: 5, later: 0 };
    let (survives, mut back) = case.begin::<NetRx>();
    let answers = case.answers::<NetRx>(0, 5, FIRST_BACK);
    let (_, stores) = survives.recorded(|| back.answer(&answers));
    let at = |place: Place| stores.iter().position(|s| s.0 == place).expect("such a store");
    let intent = at(INTENT);
    assert_eq!((at(FROM), at(RSP_PROD)), (0, stores.len() - 1));
    let records: Vec<u32> = answers.iter().flat_map(|rsp| rsp.to_words()).collect();
    let values = |stores: &[Store]| stores.iter().map(|s| s.1).collect::<Vec<u32>>();
    assert!(values(&stores[..intent]).ends_with(&records));
    assert_eq!(values(&stores[intent + 1..stores.len() - 1]), records);
}

/// A back dies while it records its frames in flight: its successor finds the old record, the new
/// record, or that it is unknown.
#[test]
#[cfg_attr(
    miri,
    ignore = "each death is a page copied word by word; the tests beside it make the same accesses"
)]
fn what_is_in_hand_is_never_a_mixture_of_two_statements() {
    let case = Case { start: 7, old: Old::Nothing, earlier: 0, batch: 4, later: 0 };
    let (survives, back) = case.begin::<NetRx>();
    back.in_flight(9, 2);
    let before = survives.words();
    let (_, stores) = survives.recorded(|| {
        back.asking();
        back.in_flight(3, 5);
    });
    let mut found = Vec::new();
    survives.at_each_death(&before, &stores, |_| {
        let InFlight { frames, asking, .. } = survives.attach::<NetRx>().0.inherited().expect("a redo page");
        found.push((!asking).then_some(frames));
    });
    found.dedup();
    assert_eq!(found, [Some(11), None, Some(8)]);
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
    let fault = survives.try_attach::<NetTx>().map(drop);
    assert_eq!(fault, Err(PeerFault::BadAttach { req_prod: 2, rsp_prod: 0 }));
    assert!(survives.words() == before, "a refused ring is left as it was");
}

/// A back knows which received frames were not answered, whatever happened to the backs before it.
#[test]
fn a_successor_finds_what_its_predecessor_had_in_its_hands() {
    let case = Case { start: u32::MAX - 5, old: Old::Nothing, earlier: 0, batch: 4, later: 8 };
    let (survives, back) = case.begin::<NetRx>();
    back.in_flight(9, 2);
    back.asking();
    let (mut back, _) = survives.attach::<NetRx>();
    assert_eq!(back.inherited(), Some(InFlight { frames: 11, asking: true, total: 11 }));
    // Nothing is in the hands of one who has just started; then three come, and two of them leave.
    assert_eq!(back.available(1), Ok(12));
    back.consume(12);
    back.in_flight(3, 0);
    let _ = back.answer_frames(&case.answers::<NetRx>(0, 4, FIRST_BACK), 2);
    let (mut back, _) = survives.attach::<NetRx>();
    assert_eq!(back.inherited(), Some(InFlight { frames: 1, asking: false, total: 12 }));
    assert_eq!(back.available(1), Ok(8));
    back.consume(8);
    back.in_flight(5, 0);
    let _ = back.answer_frames(&case.answers::<NetRx>(4, 12, SECOND_BACK), 5);
    let (back, _) = survives.attach::<NetRx>();
    assert_eq!(back.inherited(), Some(InFlight { frames: 0, asking: false, total: 12 }));
    // A connection later.
    survives.redo().unwrap().clear();
    assert_eq!(survives.attach::<NetRx>().0.inherited(), Some(InFlight::default()));
    drop(back);
    // An index that no back left: the guest made it up, and there is nothing to be said.
    survives.put(RSP_PROD, case.at(3));
    assert_eq!(survives.attach::<NetRx>().0.inherited(), Some(InFlight::default()));
    let (without, _) = BackRing::attach(survives.page::<NetRx>(), None::<RedoPage>).unwrap();
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
        if let Ok((back, _)) = survives.try_attach::<NetTx>() {
            prop_assert!(header[0].wrapping_sub(back.req_cons()) <= back.size());
            prop_assert!(back.req_cons().wrapping_sub(header[2]) <= REDO_RECORDS as u32);
        }
    }
}
