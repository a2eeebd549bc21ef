//! Announces to the back which of the front's pages to keep mapped: those that were granted at
//! connect, queue by queue.
//!
//! ```text
//!   live --> GET size of queue 0 --> ADD up to 512 pages --> GET --> ADD ... --> GET size of queue 1 ... --> over
//!              '-- NOT_SUPPORTED, 0 --> over         '-- refused: half as many, and in the end none
//! ```
//! A back that follows the draft of these messages reports as size the free entries, answers an ADD
//! with success though a part of it failed, and counts in its data the entries that it checked. So
//! a GET comes before each ADD, and accepted pages are counted by the entries' statuses, which are
//! 0 before.
//!
//! Invariants: the pages are a static pool, and of RX pages that come and go the
//! one that stays. A reference names the same page from connect to disconnect. Requests carry these
//! references from the first frame on, announced or not: the back copies by grant each page that is
//! not in its table. Where the table is short, each direction has half of it, and what the other
//! leaves.
//!
//! What a back may do: report any size (the front announces only the pages that it has), any
//! status, or nothing. The front counts accepted pages, and sends the same frames in each case.

use crate::net::front::ctrl::{CtrlFront, NotAsked};
use crate::platform::Platform;
use crate::units::GrantRef;
use crate::wire::netif_ctrl::{CtrlResponse, CtrlStatus, CtrlType, GREF_LIST_MAX, GREF_READONLY, GrefEntry};
use alloc::vec::Vec;

/// A refused ADD request is tried again in halves, of at least this many entries.
const LEAST_PART: usize = 32;

/// The control request that the front sends next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question<'a> {
    /// GET asks how large the table of this queue is.
    Size(u32),
    /// ADD asks the back to map these pages into the table of this queue.
    Add(u32, &'a [GrefEntry]),
    /// No request is left.
    Over,
}

/// Decides, at the front, which control request comes next while the back is asked to map the pages
/// that were granted at connect, and what the answers mean.
#[derive(Clone, Debug, Default)]
pub struct PageAnnouncement {
    queue: usize,
    /// Number of TX and of RX pages of the current queue that are announced, once the size of its
    /// table is known.
    pages: Option<[usize; 2]>,
    /// Number of entries that were announced so far, and number that the next request adds.
    announced: usize,
    part: usize,
    /// The entries of the next request.
    entries: Option<Vec<GrefEntry>>,
    /// For each queue the number of pages that the back mapped.
    taken: Vec<usize>,
    /// For each queue the number of further pages that its table has room for, as the back says.
    room: Vec<usize>,
    over: bool,
}

impl<P: Platform> CtrlFront<P> {
    /// Asks the back to map these pages for `queue`, all or none: at most 512.
    pub fn add_grefs(&mut self, p: &P, queue: u32, entries: &[GrefEntry]) -> Result<(), NotAsked> {
        self.ask_with_list(p, CtrlType::AddGrefMapping, queue, entries)
    }

    /// Asks the back to unmap these pages. Afterwards the unmapped ones have status 0 in
    /// [`statuses`](Self::statuses), if the back is honest. Only the end of a page's grant proves
    /// that the page is free.
    pub fn del_grefs(&mut self, p: &P, queue: u32, entries: &[GrefEntry]) -> Result<(), NotAsked> {
        self.ask_with_list(p, CtrlType::DelGrefMapping, queue, entries)
    }
}

impl PageAnnouncement {
    /// Starts the announcement for a vif with `queues` queues.
    pub fn new(queues: usize) -> Self {
        let none = alloc::vec![0; queues];
        Self { taken: none.clone(), room: none, over: queues == 0, ..Self::default() }
    }

    /// The control request that the front sends next.
    pub fn question(&self) -> Question<'_> {
        let queue = self.queue as u32;
        match &self.entries {
            _ if self.over => Question::Over,
            Some(entries) => Question::Add(queue, entries),
            None => Question::Size(queue),
        }
    }

    /// Sends the request that is [next](Self::question). Error: a request is under way, or none is
    /// left.
    pub(crate) fn ask<P: Platform>(&self, p: &P, ctrl: &mut CtrlFront<P>) -> Result<(), NotAsked> {
        match self.question() {
            Question::Size(queue) => ctrl.ask(p, CtrlType::GetGrefMappingSize, [queue, 0, 0]),
            Question::Add(queue, entries) => ctrl.add_grefs(p, queue, entries),
            Question::Over => Err(NotAsked),
        }
    }

    /// Number of entries that the request names.
    pub fn asked(&self) -> usize {
        if let Question::Add(_, entries) = self.question() { entries.len() } else { 0 }
    }

    /// Processes the back's answer to the request, and what it wrote to the entries. `pages` has
    /// the references of the queue's TX and RX pages, and how many more RX pages are announced
    /// later.
    pub fn take_answer<'a>(
        &mut self,
        answer: CtrlResponse,
        statuses: &[u16],
        pages: impl FnOnce(usize) -> ([&'a [GrantRef]; 2], usize),
    ) {
        let good = CtrlStatus::from_raw(answer.status) == Some(CtrlStatus::Success);
        match (self.pages, &self.entries) {
            (None, _) if good && answer.data > 0 => {
                let (refs, later) = pages(self.queue);
                let announced = shares(refs.map(<[_]>::len), later, answer.data as usize);
                let n = announced[0] + announced[1];
                let more = answer.data as usize - n;
                self.room.get_mut(self.queue).into_iter().for_each(|room| *room = more);
                (self.pages, self.part) = (Some(announced), n.min(GREF_LIST_MAX));
                self.list_entries(refs, announced);
            }
            // A back that does not know the request gives this answer for every queue, or for this
            // one only.
            (None, _) if !good => self.over = true,
            (None, _) => self.part = 0,
            (Some(announced), None) => {
                self.part = if good { self.part.min(answer.data as usize) } else { 0 };
                self.list_entries(pages(self.queue).0, announced);
            }
            (Some([tx, rx]), Some(_)) => {
                let taken = added(answer, statuses, self.part).count();
                self.taken.get_mut(self.queue).into_iter().for_each(|all| *all += taken);
                if taken < self.part {
                    self.room.get_mut(self.queue).into_iter().for_each(|room| *room = 0);
                }
                if good {
                    self.announced += self.part;
                } else {
                    self.part = if self.part / 2 < LEAST_PART { 0 } else { self.part / 2 };
                }
                self.part = self.part.min(tx + rx - self.announced);
                self.entries = None;
            }
        }
        if self.part == 0 {
            (self.queue, self.pages, self.announced, self.entries) = (self.queue + 1, None, 0, None);
            self.over |= self.queue >= self.taken.len();
        }
    }

    /// Fills the list of the next request with the pages that follow those announced so far.
    fn list_entries(&mut self, refs: [&[GrantRef]; 2], announced: [usize; 2]) {
        let list: Vec<_> = entries(refs, announced).skip(self.announced).take(self.part).collect();
        self.part = list.len();
        self.entries = Some(list);
    }

    /// For each queue the number of pages that the back reports as mapped.
    pub fn taken(&self) -> &[usize] {
        &self.taken
    }

    /// For each queue the number of further pages that the back reports room for.
    pub fn room(&self) -> &[usize] {
        &self.room
    }
}

/// Entries of an ADD of `n` that the back reports as mapped. By the specification all or none,
/// without statuses; by its draft those with status 0 among the first `data` entries, which the
/// back checked.
pub fn added(answer: CtrlResponse, statuses: &[u16], n: usize) -> impl Iterator<Item = usize> {
    let good = CtrlStatus::from_raw(answer.status) == Some(CtrlStatus::Success);
    let looked_at = match answer.data as usize {
        _ if !good => 0,
        0 => n,
        data => data.min(n),
    };
    (0..looked_at).filter(|k| statuses.get(*k) == Some(&0))
}

/// Indices of the `n` entries of a DEL that the back reports as unmapped: those with status 0. The
/// front sets all statuses to 0 before it sends the request, so it believes the zeroes only if
/// there are no more of them than `answer.data` says. A back by the specification puts the number
/// of unmapped entries there; one by the draft puts the number of entries that it checked, and
/// writes the statuses of those that failed.
pub fn deleted(answer: CtrlResponse, statuses: &[u16], n: usize) -> impl Iterator<Item = usize> {
    let good = CtrlStatus::from_raw(answer.status) == Some(CtrlStatus::Success);
    let gone = move || (0..n).filter(|k| statuses.get(*k) == Some(&0));
    let counts = good && gone().count() <= answer.data as usize;
    gone().filter(move |_| counts)
}

/// How many of the TX and RX pages are announced where a table has room for `size`.
fn shares([tx, rx]: [usize; 2], later: usize, size: usize) -> [usize; 2] {
    let tx = tx.min((size / 2).max(size.saturating_sub(rx + later)));
    [tx, rx.min(size - tx)]
}

/// The entries for the first pages of each direction, as many as `pages` says: TX for reading, RX
/// for writing.
fn entries<'a>(refs: [&'a [GrantRef]; 2], pages: [usize; 2]) -> impl Iterator<Item = GrefEntry> + 'a {
    let entry = |flags| move |gref: &GrantRef| GrefEntry { gref: gref.0, flags, status: 0 };
    let [tx, rx] = [0, 1].map(|dir| refs[dir].iter().take(pages[dir]));
    tx.map(entry(GREF_READONLY)).chain(rx.map(entry(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refs(from: u32, n: u32) -> Vec<GrantRef> {
        (from..from + n).map(GrantRef).collect()
    }

    /// Plays a back that gives `answers` to the requests in turn, with status 2 in the last
    /// `failed` entries of each list. Returns what was asked: the size of a queue, or a number of
    /// entries.
    fn announced_with(
        failed: usize,
        tx: u32,
        rx: u32,
        queues: usize,
        answers: &[(u32, u32)],
    ) -> (Vec<(u32, Option<usize>)>, Vec<usize>) {
        let (tx, rx) = (refs(8, tx), refs(5000, rx));
        let (mut announcement, mut asked, mut answers) =
            (PageAnnouncement::new(queues), Vec::new(), answers.iter());
        loop {
            match announcement.question() {
                Question::Over => break,
                Question::Size(queue) => asked.push((queue, None)),
                Question::Add(queue, entries) => asked.push((queue, Some(entries.len()))),
            }
            let &(status, data) = answers.next().expect("a question more");
            let mut statuses = alloc::vec![0; announcement.asked()];
            let bad = statuses.len().saturating_sub(failed);
            statuses[bad..].fill(2);
            announcement.take_answer(
                CtrlResponse { status, data, ..CtrlResponse::default() },
                &statuses,
                |_| ([&tx, &rx], 0),
            );
        }
        assert!(answers.next().is_none());
        (asked, announcement.taken().to_vec())
    }

    /// Like `announced_with`, for a back that does not write to the entries.
    fn announced(
        tx: u32,
        rx: u32,
        queues: usize,
        answers: &[(u32, u32)],
    ) -> (Vec<(u32, Option<usize>)>, Vec<usize>) {
        announced_with(0, tx, rx, queues, answers)
    }

    #[test]
    fn all_pages_are_announced_where_there_is_room() {
        let (asked, taken) = announced(256, 256, 2, &[(0, 768), (0, 0), (0, 512), (0, 512)]);
        assert_eq!(asked, [(0, None), (0, Some(512)), (1, None), (1, Some(512))]);
        assert_eq!(taken, [512, 512]);
        let (asked, taken) = announced(256, 500, 1, &[(0, u32::MAX), (0, 0), (0, u32::MAX), (0, 0)]);
        let adds = [(0, Some(512)), (0, None), (0, Some(244))];
        assert_eq!((&asked[1..], taken), (&adds[..], Vec::from([756])));
    }

    /// A back that follows the draft: a table's size counts free places only, an answer SUCCESS can
    /// have failed entries, and its data counts the checked entries.
    #[test]
    fn a_back_that_follows_the_draft_is_believed_entry_by_entry() {
        let (asked, taken) =
            announced_with(1, 256, 500, 1, &[(0, 768), (0, 512), (0, 100), (0, 100), (0, 0)]);
        let adds = [(0, Some(512)), (0, None), (0, Some(100)), (0, None)];
        assert_eq!((&asked[1..], taken), (&adds[..], Vec::from([511 + 99])));
        // The back checked only a part, or claims to have mapped more than was announced.
        assert_eq!(announced_with(0, 8, 8, 1, &[(0, 16), (0, 5)]).1, [5]);
        assert_eq!(announced_with(3, 8, 8, 1, &[(0, 16), (0, 999)]).1, [13]);
        assert_eq!(announced_with(16, 8, 8, 1, &[(0, 16), (0, 16)]).1, [0]);
    }

    #[test]
    fn a_back_that_has_no_table_is_asked_once() {
        for status in [1, 2, 3, 77] {
            assert_eq!(announced(256, 256, 4, &[(status, 9)]), (Vec::from([(0, None)]), Vec::from([0; 4])));
        }
        // One queue has no table: the others are asked nevertheless.
        assert_eq!(announced(8, 8, 2, &[(0, 0), (0, 99), (0, 0)]).1, [0, 16]);
    }

    #[test]
    fn what_is_refused_is_announced_in_parts_and_given_up_in_the_end() {
        let refuse = (2, 0);
        let size = (0, 512);
        let each = |answers: &[(u32, u32)]| -> Vec<_> { answers.iter().flat_map(|a| [size, *a]).collect() };
        let answers = each(&[refuse, (0, 0), refuse, (0, 0), refuse, (0, 0), refuse, refuse]);
        let (asked, taken) = announced(256, 256, 1, &answers);
        let parts: Vec<_> = asked.iter().filter_map(|(_, n)| *n).collect();
        assert_eq!((parts, taken), (Vec::from([512, 256, 256, 128, 128, 64, 64, 32]), Vec::from([448])));
        let (asked, taken) = announced(256, 256, 1, &each(&[refuse; 5]));
        assert_eq!((asked.len(), taken), (10, Vec::from([0])));
    }

    #[test]
    fn what_a_del_unmapped_is_in_either_answer() {
        let of = |status, data, statuses: &[u16]| -> Vec<_> {
            let answer = CtrlResponse { status, data, ..CtrlResponse::default() };
            deleted(answer, statuses, 3).collect()
        };
        assert_eq!(of(0, 1, &[2, 2, 0]), [2]);
        assert_eq!(of(0, 3, &[0, 2, 0]), [0, 2], "the draft's: of three that it checked");
        assert_eq!(of(0, 2, &[0; 3]), [], "it wrote none of them");
        assert_eq!(of(0, 3, &[0; 3]), [0, 1, 2]);
        assert_eq!((of(2, 3, &[0; 3]), of(0, u32::MAX, &[])), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_short_table_is_shared() {
        let of = |tx, rx, size| {
            let (tx_refs, rx_refs) = (refs(8, tx), refs(5000, rx));
            let pages = shares([tx_refs.len(), rx_refs.len()], 0, size);
            let entries: Vec<_> = super::entries([&tx_refs, &rx_refs], pages).collect();
            let nr_tx = entries.iter().filter(|e| e.flags == GREF_READONLY && e.gref < 5000).count();
            (nr_tx, entries.iter().filter(|e| e.flags == 0 && e.gref >= 5000).count(), entries.len())
        };
        assert_eq!(of(256, 256, 512), (256, 256, 512));
        assert_eq!(of(256, 256, 100), (50, 50, 100));
        assert_eq!(of(256, 10, 100), (90, 10, 100));
        assert_eq!(of(10, 256, 100), (10, 90, 100));
        assert_eq!(of(10, 10, usize::MAX), (10, 10, 20));
        assert_eq!(of(3, 3, 1), (0, 1, 1));
    }
}
