//! Messages 8 to 10 at their limits: the answers of our back, the answers of a back that follows
//! the draft of these messages (a Linux netback of 2017, played on Xen), and our front with such a
//! back (docs/protocol 2.11).
#![cfg(not(miri))]

use crate::gref_mapping::{ADD, DEL, INVALID, Pair, SIZE, SUCCESS, announcing, by_hand, entries};
use crate::raw_ring::RawRing;

use pregrant::platform::local::{LocalDomain, LocalMap};
use pregrant::platform::{Access, GrantPool, PeerMem};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlType, GREF_READONLY, GrefEntry};
use pregrant::{DomId, GrantRef};
use pregrant_testkit::two_domains::{GUEST, HOST};

/// The status in an entry before a request.
const UNTOUCHED: u16 = 7;

/// The table of one queue, as the draft has it.
struct DraftBack {
    size: usize,
    mapped: Vec<(u32, LocalMap)>,
    /// References that it cannot map.
    refuses: Vec<GrantRef>,
    /// Number of requests that it answered.
    answered: u32,
    /// The types of these requests, and the references of each ADD or DEL.
    asked: Vec<(u16, Vec<u32>)>,
}

impl DraftBack {
    fn new(size: usize) -> Self {
        Self { size, mapped: Vec::new(), refuses: Vec::new(), answered: 0, asked: Vec::new() }
    }

    /// Status and data: of a size what is free; of an ADD and a DEL the entries that it checked.
    /// A status is written where it is not 0.
    fn answer(&mut self, h: &LocalDomain, request: &CtrlRequest) -> (u32, u32) {
        let [_, list, n] = request.data;
        let of = |gref, access| h.map(GUEST, &[GrantRef(gref)], access);
        if request.msg_type == SIZE.raw() {
            self.asked.push((request.msg_type, Vec::new()));
            return (SUCCESS, (self.size - self.mapped.len()) as u32);
        }
        let Ok(page) = of(list, Access::ReadWrite) else { return (INVALID, 0) };
        let mut refs = Vec::new();
        for k in 0..n as usize {
            let mut entry = [0; GrefEntry::SIZE];
            assert!(page.copy_out(k * GrefEntry::SIZE, &mut entry));
            let entry = GrefEntry::from_bytes(entry);
            refs.push(entry.gref);
            let access = if entry.flags & GREF_READONLY != 0 { Access::ReadOnly } else { Access::ReadWrite };
            let done = if request.msg_type == ADD.raw() {
                let fits = self.mapped.len() < self.size && !self.refuses.contains(&GrantRef(entry.gref));
                let map = of(entry.gref, access).ok().filter(|_| fits);
                map.map(|map| self.mapped.push((entry.gref, map)))
            } else {
                let at = self.mapped.iter().position(|(gref, _)| *gref == entry.gref);
                at.map(|at| drop(self.mapped.remove(at)))
            };
            if done.is_none() {
                let at = k * GrefEntry::SIZE + GrefEntry::STATUS_OFFSET;
                assert!(page.copy_in(at, &2u16.to_le_bytes()));
            }
        }
        self.asked.push((request.msg_type, refs));
        (SUCCESS, n)
    }

    /// Answers what a front asked on this ring.
    fn turn(&mut self, h: &LocalDomain, raw: &RawRing) -> bool {
        let asks = raw.requests() != self.answered;
        if asks {
            let request = raw.request(self.answered);
            let (status, data) = self.answer(h, &request);
            raw.answer(self.answered, (request.id, request.msg_type, status, data));
            self.answered += 1;
        }
        asks
    }
}

/// A list of an ADD or a DEL.
#[derive(Clone, Copy)]
enum List {
    /// This range of the queue's pages: TX read-only, RX writable.
    Tx(usize, usize),
    Rx(usize, usize),
    /// This range, and after it this reference.
    And(usize, usize, Odd),
    One(Odd),
    Twice,
    /// Four pages, in a list that cannot be written to.
    ReadOnly,
    /// Four pages with a wrong list page: reference 0, or an invalid one.
    Nowhere(u32),
    /// A list that claims this length.
    Long(u32),
}

#[derive(Clone, Copy)]
enum Odd {
    Zero,
    Ungranted,
    Strangers,
    UnknownFlag,
    WriteToReadOnly,
}

/// The answer to a request: status, data, and the statuses of the entries: None, they are
/// as they were.
type Answer = (u32, u32, Option<&'static [u16]>);
/// A request as text, its type, its list; our answer; and the draft's, with the statuses that
/// follow.
type Edge = (&'static str, u16, List, Answer, Option<(u32, u32, &'static [u16])>);

/// The requests, in this order, each of queue 0 with a table of 500; our answer; and the draft's,
/// where it was seen.
#[rustfmt::skip]
const EDGES: &[Edge] = &[
    ("GET", 8, List::Long(0), (SUCCESS, 500, None), Some((SUCCESS, 500, &[]))),
    ("ADD of 4", 9, List::Tx(0, 4), (SUCCESS, 4, None), Some((SUCCESS, 4, &[UNTOUCHED; 4]))),
    ("GET with some mapped", 8, List::Long(0), (SUCCESS, 500, None), Some((SUCCESS, 496, &[]))),
    ("ADD of the same 4", 9, List::Tx(0, 4), (INVALID, 0, None), Some((SUCCESS, 4, &[UNTOUCHED; 4]))),
    ("GET with them mapped twice", 8, List::Long(0), (SUCCESS, 500, None), Some((SUCCESS, 492, &[]))),
    ("ADD of 6, one granted to no domain", 9, List::And(10, 15, Odd::Ungranted), (INVALID, 0, None),
        Some((SUCCESS, 6, &[UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED, 2]))),
    ("GET after a part failed", 8, List::Long(0), (SUCCESS, 500, None), Some((SUCCESS, 487, &[]))),
    ("DEL of 4 known", 10, List::Tx(0, 4), (SUCCESS, 4, Some(&[0; 4])), Some((SUCCESS, 4, &[UNTOUCHED; 4]))),
    ("DEL of 4 unknown", 10, List::Rx(40, 44), (SUCCESS, 0, Some(&[2; 4])), Some((SUCCESS, 4, &[2; 4]))),
    ("ADD of one twice in a list", 9, List::Twice, (INVALID, 0, None), Some((SUCCESS, 2, &[UNTOUCHED; 2]))),
    ("ADD with flag 8", 9, List::One(Odd::UnknownFlag), (INVALID, 0, None), Some((SUCCESS, 1, &[UNTOUCHED]))),
    ("ADD by a list that is read-only", 9, List::ReadOnly, (SUCCESS, 4, None), Some((INVALID, 0, &[UNTOUCHED; 4]))),
    ("DEL by a list that is read-only", 10, List::ReadOnly, (INVALID, 0, None), Some((INVALID, 0, &[UNTOUCHED; 4]))),
    ("DEL of these", 10, List::Rx(0, 4), (SUCCESS, 4, Some(&[0; 4])), None),
    ("ADD of RX pages for reading", 9, List::One(Odd::WriteToReadOnly), (INVALID, 0, None), None),
    ("ADD of reference 0", 9, List::One(Odd::Zero), (INVALID, 0, None), None),
    ("ADD of reference 0 behind others", 9, List::And(20, 25, Odd::Zero), (INVALID, 0, None), None),
    ("ADD of what is granted to another domain", 9, List::And(20, 25, Odd::Strangers), (INVALID, 0, None), None),
    ("ADD of a flag behind others", 9, List::And(20, 25, Odd::UnknownFlag), (INVALID, 0, None), None),
    ("GET after what failed", 8, List::Long(0), (SUCCESS, 500, None), None),
    ("ADD of no entry", 9, List::Long(0), (INVALID, 0, None), None),
    ("DEL of no entry", 10, List::Long(0), (INVALID, 0, None), None),
    ("ADD of more than a page of entries", 9, List::Long(513), (INVALID, 0, None), None),
    ("DEL of more than a page of entries", 10, List::Long(513), (INVALID, 0, None), None),
    ("ADD of 2^32 - 1 entries", 9, List::Long(u32::MAX), (INVALID, 0, None), None),
    ("ADD by list reference 0", 9, List::Nowhere(0), (INVALID, 0, None), None),
    ("ADD by a list that is not granted", 9, List::Nowhere(4_000_000), (INVALID, 0, None), None),
    ("DEL by a list that is not granted", 10, List::Nowhere(4_000_000), (INVALID, 0, None), None),
    ("ADD of 250 TX pages", 9, List::Tx(0, 250), (SUCCESS, 250, None), None),
    ("ADD of 251 RX pages: one too many", 9, List::Rx(0, 251), (INVALID, 0, None), None),
    ("ADD of 250 RX pages: the last", 9, List::Rx(0, 250), (SUCCESS, 250, None), None),
    ("GET of a full table", 8, List::Long(0), (SUCCESS, 500, None), None),
    ("ADD to a full table", 9, List::Rx(250, 251), (INVALID, 0, None), None),
    ("DEL of one known and one not", 10, List::And(0, 1, Odd::Ungranted), (SUCCESS, 1, Some(&[0, 2])), None),
    ("DEL of one twice in a list", 10, List::Twice, (SUCCESS, 1, Some(&[0, 2])), None),
    ("GET at the end", 8, List::Long(0), (SUCCESS, 500, None), None),
];

/// The request of a row, whose list is in a page of its own: queue, list and length; the page; and
/// the number of its entries.
fn request(
    pair: &Pair,
    list: List,
    stranger: GrantRef,
) -> ([u32; 3], Option<<LocalDomain as GrantPool>::Region>, usize) {
    let [tx, rx] = pair.front.queue(0).expect("a queue").page_refs();
    let entry = |gref: u32, flags| GrefEntry { gref, flags, status: UNTOUCHED };
    let of = |refs: &[GrantRef], flags| refs.iter().map(|gref| entry(gref.0, flags)).collect::<Vec<_>>();
    let odd = |odd| match odd {
        Odd::Zero => entry(0, 0),
        Odd::Ungranted => entry(4_000_000, 0),
        Odd::Strangers => entry(stranger.0, 0),
        Odd::UnknownFlag => entry(rx[30].0, 8),
        Odd::WriteToReadOnly => entry(tx[30].0, 0),
    };
    let list_of = match list {
        List::Tx(from, to) => of(&tx[from..to], GREF_READONLY),
        List::Rx(from, to) => of(&rx[from..to], 0),
        List::And(from, to, one) => [of(&rx[from..to], 0), vec![odd(one)]].concat(),
        List::One(one) => vec![odd(one)],
        List::Twice => of(&[rx[5], rx[5]], 0),
        List::ReadOnly | List::Nowhere(_) => of(&rx[..4], 0),
        List::Long(n) => return ([0, 0, n], None, 0),
    };
    let mut refs = [GrantRef::NONE];
    let access = if matches!(list, List::ReadOnly) { Access::ReadOnly } else { Access::ReadWrite };
    let page = pair.g.alloc(HOST, access, &mut refs).expect("a page");
    let bytes: Vec<u8> = list_of.iter().flat_map(|e| e.to_bytes()).collect();
    assert!(page.copy_in(0, &bytes));
    let at = if let List::Nowhere(at) = list { at } else { refs[0].0 };
    ([0, at, list_of.len() as u32], Some(page), list_of.len())
}

fn statuses(page: Option<&<LocalDomain as GrantPool>::Region>, n: usize) -> Vec<u16> {
    let status = |k: usize| {
        let mut entry = [0; GrefEntry::SIZE];
        assert!(page.expect("a list").copy_out(k * GrefEntry::SIZE, &mut entry));
        GrefEntry::from_bytes(entry).status
    };
    (0..n).map(status).collect()
}

#[test]
fn each_edge_has_its_answer() {
    let mut pair = Pair::new(by_hand(), entries(500));
    let mut refs = [GrantRef::NONE];
    let strangers = pair.g.alloc(DomId(9), Access::ReadWrite, &mut refs).expect("a page");
    let mapped = pair.mapped();
    let mut draft = DraftBack::new(500);
    for &(what, msg_type, list, ours, seen) in EDGES {
        let (data, page, n) = request(&pair, list, refs[0]);
        let ctrl = pair.front.ctrl().expect("a control ring");
        let asked = CtrlType::from_raw(msg_type).expect("a type");
        assert_eq!(ctrl.ask(&pair.g, asked, data), Ok(()));
        pair.turns();
        let (status, count, written) = ours;
        assert_eq!(pair.answer(), Some((status, count)), "{what}");
        let untouched = vec![UNTOUCHED; n];
        assert_eq!(statuses(page.as_ref(), n), written.unwrap_or(&untouched), "{what}");
        if status != SUCCESS {
            let before = pair.back.gref_pages(0)[0];
            assert_eq!(pair.mapped(), mapped + before + draft.mapped.len(), "{what}: none of it is mapped");
        }
        if let Some(page) = page {
            assert!(pair.g.release(page).is_ok());
        }
        let Some((status, count, written)) = seen else { continue };
        let (data, page, n) = request(&pair, list, refs[0]);
        let asked = CtrlRequest { id: 1, msg_type, data };
        assert_eq!(draft.answer(&pair.h, &asked), (status, count), "the draft: {what}");
        assert_eq!(statuses(page.as_ref(), n), written, "the draft: {what}");
        if let Some(page) = page {
            assert!(pair.g.release(page).is_ok());
        }
    }
    // A queue that is not there, by each message.
    for (msg_type, queue) in [(SIZE, 1), (ADD, 1), (DEL, 1), (ADD, u32::MAX)] {
        let list = if msg_type == SIZE { Vec::new() } else { pair.pages(0, 1) };
        assert_eq!(pair.asked(msg_type, queue, &list), (INVALID, 0), "{msg_type:?} of queue {queue}");
    }
    drop(draft);
    assert!(pair.g.release(strangers).is_ok());
    pair.close();
}

/// Our front on a back of the draft: it asks what is free before each ADD, names no page twice, has
/// zero in each status before, and counts what is mapped.
#[test]
fn a_front_on_a_back_of_the_draft_has_its_pages_mapped() {
    for (size, gone, due) in [(768, 0, 512), (512, 0, 512), (300, 0, 300), (768, 3, 509), (0, 0, 0)] {
        let mut pair = Pair::connected(announcing(), entries(0), usize::MAX);
        let raw = RawRing::of(&mut pair);
        let mut draft = DraftBack::new(size);
        draft.refuses = pair.front.queue(0).expect("a queue").page_refs()[1][..gone].to_vec();
        while draft.turn(&pair.h, &raw) {
            pair.front.turn(&pair.g).expect("an honest back");
        }
        assert!(!pair.front.is_announcing());
        assert_eq!((pair.front.gref_pages(0), draft.mapped.len()), (due, due), "of {size}, {gone} gone");
        let types: Vec<u16> = draft.asked.iter().map(|(msg_type, _)| *msg_type).collect();
        let adds = types.iter().filter(|raw| **raw == ADD.raw()).count();
        assert!(types.chunks(2).take(adds).all(|pair| *pair == [SIZE.raw(), ADD.raw()]), "{types:?}");
        let mut named: Vec<u32> = draft.asked.iter().flat_map(|(_, refs)| refs.clone()).collect();
        let n = named.len();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named.len(), n, "a page was named twice");
        assert_eq!(pair.exchange(0, 30, 900).copies, 60, "its frames are the other back's");
        draft.mapped.clear();
        raw.end(&pair);
        pair.close();
    }
}
