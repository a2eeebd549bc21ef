//! Which of the guest's own pages the back of one queue has mapped because it was asked to, and
//! which it is to be asked for: the hash table of buffers and their references that was proposed in
//! the review of staging grants, with a bound.
//!
//! ```text
//!   page --lookup--> hit: its reference             sent --> in flight --> answered
//!            '------> miss: the frame is copied; and where there is a free place:
//!        Wanted --granted--> Asked (ADD) --> Added --makes way--> Leaving --> Asked (DEL) --> Ending --its grant ends--> free
//!                              '-refused-------------------------------------------------------^
//! ```
//! Invariants: a page has one place and one reference; a page of which a frame is in flight makes
//! way for none; a grant that the back was told of is ended after its DEL was answered, with
//! success for that entry (or its ADD was refused, or the vif closed), and tried again for as long
//! as the platform says that it is in use. Nothing is allocated after it was made. What makes way
//! is the [`Clock`]'s to say, and whether anything does the [`WorkingSet`]'s.
//!
//! What a back may do: refuse an ADD, which is asked again of fewer and so shows how many pages it
//! takes; refuse a DEL or an entry of it, whose page is asked for [`DELS_MAX`] times and then
//! stays; say that it has let go of what it has mapped (the grant stands, and its place is taken);
//! never answer. Frames are right in each case: a reference names one page for as long as any
//! request can carry it. What is answered and was not asked is counted, and changes nothing.

use super::clock::Clock;
use super::front::added;
use super::working_set::{CacheMode, WorkingSet};
use crate::units::GrantRef;
use crate::wire::netif_ctrl::{CtrlResponse, CtrlStatus, GREF_LIST_MAX, GREF_READONLY, GrefEntry};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Pages of an ADD at most: a table is filled with few answers.
pub const ADDS_AT_ONCE: usize = GREF_LIST_MAX;

/// Pages of a DEL at most. Their frames are copied until it is answered: our back unmaps as many in
/// one control turn.
pub const DELS_AT_ONCE: usize = 64;

/// How often the back is asked to let go of a page (docs/protocol 2.11).
pub const DELS_MAX: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is not granted yet.
    Wanted,
    /// It is granted, and the back is to be told of it.
    Again,
    /// In the request that has no answer yet.
    Asked,
    Added,
    /// The next DEL names it.
    Leaving,
    /// The back has let go of it, as it says, and the platform says that it has not.
    Ending,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    gref: GrantRef,
    state: State,
    in_flight: u16,
    /// DELs that did not succeed.
    dels: u8,
}

const EMPTY: Entry = Entry { gref: GrantRef::NONE, state: State::Wanted, in_flight: 0, dels: 0 };

/// A request for the back: of the list that was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// ADD_GREF_MAPPING.
    Add,
    /// DEL_GREF_MAPPING.
    Del,
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Frames that were sent from where they lie.
    pub hits: u64,
    /// Frames whose page the back did not have.
    pub misses: u64,
    /// Frames that were copied into the static pool: misses, and those that no single page holds.
    pub copied_to_pool: u64,
    /// Pages that made way for others.
    pub evictions: u64,
    /// Pages that the back took.
    pub adds: u64,
    /// Pages that it let go of.
    pub dels: u64,
    /// Pages of requests that it refused, by ADD or DEL.
    pub refused: u64,
    /// Grants that could not be made: the grant table is full.
    pub ungranted: u64,
    /// Grants that were still in use when they were to end, at the first try.
    pub in_use: u64,
    /// Answers to what was not asked.
    pub unasked: u64,
    /// How often it went over to copying, or came back.
    pub mode_changes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct GrefCache {
    clock: Clock,
    entries: Box<[Entry]>,
    working_set: WorkingSet,
    /// Pages that the back's table has room for, as far as is known.
    capacity: usize,
    /// It refused to have so many.
    refused_from: usize,
    /// Places, each in one of these at most.
    wanted: Vec<u32>,
    /// Granted, and not told to this back.
    again: Vec<u32>,
    leaving: Vec<u32>,
    ending: Vec<u32>,
    asked: Option<Ask>,
    /// What the request under way is about.
    list: Vec<u32>,
    stats: CacheStats,
}

impl GrefCache {
    /// Of pages 0 to `pages`, for tables with `places` entries at most; the back has none yet.
    pub fn new(pages: usize, places: usize) -> Self {
        let places = places.min(pages);
        Self {
            clock: Clock::new(pages, places),
            entries: vec![EMPTY; places].into_boxed_slice(),
            working_set: WorkingSet::new(pages, places),
            capacity: 0,
            refused_from: 1,
            wanted: Vec::with_capacity(places),
            again: Vec::with_capacity(places),
            leaving: Vec::with_capacity(ADDS_AT_ONCE),
            ending: Vec::with_capacity(places),
            asked: None,
            list: Vec::with_capacity(ADDS_AT_ONCE),
            stats: CacheStats::default(),
        }
    }

    /// A back is connected whose table has room for so many.
    pub fn begin(&mut self, capacity: usize) {
        self.capacity = capacity.min(self.entries.len());
        self.refused_from = self.capacity + 1;
        self.working_set.begin(self.capacity);
    }

    /// Another back has the rings, whose table is taken for empty until the next
    /// [`begin`](Self::begin): what it was told of it is told again, by the same references.
    pub fn renew(&mut self) {
        (self.capacity, self.asked) = (0, None);
        for list in [&mut self.again, &mut self.leaving, &mut self.list] {
            list.clear();
        }
        for place in 0..self.entries.len() {
            let entry = &mut self.entries[place];
            let is_announced =
                matches!(entry.state, State::Again | State::Asked | State::Added | State::Leaving);
            if is_announced && self.clock.page(place).is_some() {
                (entry.state, entry.dels) = (State::Again, 0);
                self.again.push(place as u32);
            }
        }
    }

    /// A frame lies in this page: the place that the page has, and its reference, where the back
    /// has it.
    #[inline(always)]
    pub fn lookup(&mut self, page: usize) -> Option<(u32, GrantRef)> {
        if page >= self.clock.pages() {
            return None;
        }
        self.working_set.record_use(page);
        if let Some(place) = self.clock.find(page) {
            let entry = &self.entries[place];
            if entry.state == State::Added {
                self.clock.touch(place);
                self.stats.hits += 1;
                return Some((place as u32, entry.gref));
            }
        } else if self.capacity > 0 {
            self.want(page);
        }
        self.stats.misses += 1;
        None
    }

    /// A page that has no place.
    #[cold]
    fn want(&mut self, page: usize) {
        if self.clock.len() < self.capacity
            && let Some(place) = self.clock.insert(page)
        {
            self.entries[place] = EMPTY;
            self.wanted.push(place as u32);
            return;
        }
        if self.working_set.mode() == CacheMode::Copying
            || self.leaving.len() == DELS_AT_ONCE
            || self.asked == Some(Ask::Del)
        {
            return;
        }
        let entries = &self.entries;
        let may_go = |place: usize| {
            let Entry { state, in_flight, dels, .. } = entries[place];
            state == State::Added && in_flight == 0 && dels < DELS_MAX
        };
        if let Some(place) = self.clock.unused(may_go) {
            self.entries[place].state = State::Leaving;
            self.leaving.push(place as u32);
            self.stats.evictions += 1;
        }
    }

    /// A frame is sent from the page there.
    #[inline(always)]
    pub fn sent(&mut self, place: u32) {
        self.entries[place as usize].in_flight += 1;
    }

    /// The request of such a frame was answered.
    #[inline(always)]
    pub fn answered(&mut self, place: u32) {
        let in_flight = &mut self.entries[place as usize].in_flight;
        *in_flight = in_flight.saturating_sub(1);
    }

    /// Whether a request that names this page has no answer yet: its bytes are not to be changed.
    pub fn is_in_flight(&self, page: usize) -> bool {
        self.clock.find(page).is_some_and(|place| self.entries[place].in_flight > 0)
    }

    /// A frame was copied.
    #[inline(always)]
    pub fn copied(&mut self) {
        self.stats.copied_to_pool += 1;
    }

    /// Whether an answer is waited for.
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// What is to be asked next, about the entries that `list` is filled with;
    /// [`take_answer`](Self::take_answer) gets the answer. None: nothing, or there is no answer
    /// yet. `grant` grants a page, `end` ends a grant, and says whether it could.
    pub fn question(
        &mut self,
        list: &mut Vec<GrefEntry>,
        mut grant: impl FnMut(usize) -> Option<GrantRef>,
        end: impl FnMut(GrantRef) -> bool,
    ) -> Option<Ask> {
        self.end_some(end);
        list.clear();
        if self.asked.is_some() {
            return None;
        }
        self.list.clear();
        self.announce_again(list);
        // Never is only one of the two asked: what leaves makes room for what comes.
        let most = self.capacity.saturating_sub(self.grants()).min(ADDS_AT_ONCE);
        if most == 0 {
            // It takes fewer than was thought.
            while let Some(place) = self.wanted.pop() {
                self.clock.remove(place as usize);
            }
        }
        let most = most.min(ADDS_AT_ONCE - self.list.len());
        let announced_again = self.list.len();
        while self.list.len() < announced_again + most
            && let Some(place) = self.wanted.pop()
        {
            let Some(page) = self.clock.page(place as usize) else { continue };
            match grant(page) {
                Some(gref) => {
                    self.entries[place as usize] = Entry { gref, state: State::Asked, ..EMPTY };
                    self.list.push(place);
                    list.push(GrefEntry { gref: gref.0, flags: GREF_READONLY, status: 0 });
                }
                None => {
                    self.clock.remove(place as usize);
                    self.stats.ungranted += 1;
                }
            }
        }
        if !self.list.is_empty() {
            self.asked = Some(Ask::Add);
        } else if !self.leaving.is_empty() {
            core::mem::swap(&mut self.list, &mut self.leaving);
            for &place in &self.list {
                let entry = &mut self.entries[place as usize];
                entry.state = State::Asked;
                list.push(GrefEntry { gref: entry.gref.0, flags: 0, status: 0 });
            }
            self.asked = Some(Ask::Del);
        }
        self.asked
    }

    /// What a new back is told of that it has room for; the rest is given up.
    fn announce_again(&mut self, list: &mut Vec<GrefEntry>) {
        if self.capacity == 0 {
            return; // it has not said yet
        }
        let had = self.grants() - self.again.len();
        let room = self.capacity.saturating_sub(had);
        while self.again.len() > room
            && let Some(place) = self.again.pop()
        {
            self.entries[place as usize].state = State::Ending;
            self.ending.push(place);
        }
        let first = self.again.len().saturating_sub(ADDS_AT_ONCE);
        for place in self.again.drain(first..) {
            let entry = &mut self.entries[place as usize];
            entry.state = State::Asked;
            self.list.push(place);
            list.push(GrefEntry { gref: entry.gref.0, flags: GREF_READONLY, status: 0 });
        }
    }

    /// The request could not be sent: it is as if it had not been made.
    pub fn unsent(&mut self, end: impl FnMut(GrantRef) -> bool) {
        match self.asked.take() {
            Some(Ask::Add) => self.refused(end),
            Some(Ask::Del) => {
                self.list.iter().for_each(|place| self.entries[*place as usize].state = State::Added)
            }
            None => {}
        }
    }

    /// The answer to what was asked, and what stands in the list.
    pub fn take_answer(
        &mut self,
        answer: CtrlResponse,
        statuses: &[u16],
        mut end: impl FnMut(GrantRef) -> bool,
    ) {
        let good = CtrlStatus::from_raw(answer.status) == Some(CtrlStatus::Success);
        match self.asked.take() {
            None => self.stats.unasked += 1,
            Some(Ask::Add) => {
                let n = self.list.len();
                let mut taken = 0;
                for k in added(answer, statuses, n) {
                    self.entries[self.list[k] as usize].state = State::Added;
                    taken += 1;
                }
                self.stats.adds += taken as u64;
                if taken < n {
                    self.stats.refused += (n - taken) as u64;
                    self.refused_from = self.refused_from.min(self.grants());
                    self.refused(end);
                    // All were refused: perhaps a part would not have been.
                    let part = if taken == 0 { n / 2 } else { 0 };
                    self.set_capacity(self.capacity.min(self.grants() + part));
                } else if self.grants() >= self.capacity && self.capacity + 1 < self.refused_from {
                    // After a refusal: between what it has and what it refused.
                    self.set_capacity(self.capacity.midpoint(self.refused_from));
                }
            }
            Some(Ask::Del) => {
                // Statuses are 0 before, and one that follows the draft writes those alone that
                // failed. Its data says that it looked; that of one that follows the specification,
                // how many it let go of.
                let gone = statuses.iter().take(self.list.len()).filter(|status| **status == 0).count();
                let good = good && gone <= answer.data as usize;
                for k in 0..self.list.len() {
                    let place = self.list[k];
                    if good && statuses.get(k) == Some(&0) {
                        self.stats.dels += 1;
                        self.end(place, &mut end);
                    } else {
                        let entry = &mut self.entries[place as usize];
                        (entry.state, entry.dels) = (State::Added, entry.dels + 1);
                        self.stats.refused += 1;
                    }
                }
            }
        }
    }

    fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.working_set.begin(capacity);
    }

    /// What is still asked of the list was not added.
    fn refused(&mut self, mut end: impl FnMut(GrantRef) -> bool) {
        for k in 0..self.list.len() {
            let place = self.list[k];
            if self.entries[place as usize].state == State::Asked {
                self.end(place, &mut end);
            }
        }
    }

    /// Ends the grant of the page there, or has it ended later.
    fn end(&mut self, place: u32, mut end: impl FnMut(GrantRef) -> bool) {
        let Entry { gref, in_flight, .. } = self.entries[place as usize];
        if in_flight == 0 && end(gref) {
            self.clock.remove(place as usize);
        } else {
            self.entries[place as usize].state = State::Ending;
            self.ending.push(place);
            self.stats.in_use += 1;
        }
    }

    /// Tries again, of some.
    fn end_some(&mut self, mut end: impl FnMut(GrantRef) -> bool) {
        for _ in 0..self.ending.len().min(DELS_AT_ONCE) {
            let place = self.ending.remove(0);
            let Entry { gref, in_flight, .. } = self.entries[place as usize];
            if in_flight == 0 && end(gref) {
                self.clock.remove(place as usize);
            } else {
                self.ending.push(place);
            }
        }
    }

    /// The back is gone: ends all grants that can be ended. The others take a place each until they
    /// can be: call this again.
    pub fn disconnect(&mut self, mut end: impl FnMut(GrantRef) -> bool) {
        (self.capacity, self.asked) = (0, None);
        for list in [&mut self.wanted, &mut self.again, &mut self.leaving, &mut self.ending, &mut self.list] {
            list.clear();
        }
        for place in 0..self.entries.len() {
            if self.clock.page(place).is_none() {
                continue;
            }
            let entry = &mut self.entries[place];
            if entry.gref == GrantRef::NONE || end(entry.gref) {
                self.clock.remove(place);
            } else {
                (entry.state, entry.in_flight) = (State::Ending, 0);
                self.ending.push(place as u32);
            }
        }
    }

    /// Pages that the back has, as it says.
    pub fn added(&self) -> usize {
        let added =
            |entry: &(usize, &Entry)| self.clock.page(entry.0).is_some() && entry.1.state == State::Added;
        self.entries.iter().enumerate().filter(added).count()
    }

    /// Grants that stand.
    pub fn grants(&self) -> usize {
        self.clock.len() - self.wanted.len()
    }

    /// Pages that the back takes, as far as is known.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Pages that the back has, as it says, and how many it takes.
    pub fn pages(&self) -> (usize, usize) {
        (self.added(), self.capacity)
    }

    /// What becomes of pages that have no place.
    pub fn mode(&self) -> CacheMode {
        self.working_set.mode()
    }

    /// What happened so far.
    pub fn stats(&self) -> CacheStats {
        CacheStats { mode_changes: self.working_set.changes(), ..self.stats }
    }
}

#[cfg(test)]
mod tests;
