//! The pages of the guest's own memory that the back of one queue keeps mapped: for each its grant
//! reference and its state. Frames in such pages are sent in place. It is the bounded form of the
//! hash table of buffers and references that was proposed in the review of staging grants.
//!
//! ```text
//!   page --lookup--> hit: its reference             sent --> in flight --> answered
//!            '------> miss: the frame is copied; and where there is a free place:
//!        Wanted --granted--> Asked (ADD) --> Added --makes way--> Leaving --> Asked (DEL) --> Ending --its grant ends--> free
//!                              '-refused-------------------------------------------------------^
//! ```
//! The [`Clock`] chooses the page that makes way for another. The [`WorkingSet`] decides whether
//! any page does.
//!
//! Invariants:
//! - A page has one place and one reference. The reference names that page as long as any request
//!   can carry it, so frames are right whatever the back answers.
//! - A page with a frame in flight does not make way.
//! - The grant of an announced page ends after the back has answered its DEL with success, has
//!   refused its ADD, or is disconnected. While the platform says that the grant is in use, ending
//!   it is tried again.
//! - Nothing is allocated after `new`.
//!
//! What a back may do:
//! - Refuse an ADD. A shorter one follows, so the cache learns how many pages the back takes.
//! - Refuse a DEL, or one entry of it. The page is in [`DELS_MAX`] DELs at most; after that it
//!   stays.
//! - Claim to have unmapped a page that it has mapped. The grant stays, and its place is not free.
//! - Never answer. Frames go on, copied or in place.
//! - Answer without a request. That is counted, and changes nothing.

use super::clock::Clock;
use super::working_set::{CacheMode, WorkingSet};
use crate::net::path::gref_mapping::front::{added, deleted};
use crate::units::GrantRef;
use crate::wire::netif_ctrl::{CtrlResponse, GREF_LIST_MAX, GREF_READONLY, GrefEntry};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
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
    /// It is granted, and waits to be announced to the back.
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

/// Counters of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Frames that were sent from their own pages, all of their bytes or some.
    pub hits: u64,
    /// Frames whose page the back did not have.
    pub misses: u64,
    /// Frames that were copied into the static pool as a whole.
    pub copied_to_pool: u64,
    /// Pages that made way for others.
    pub evictions: u64,
    /// Pages that the back took.
    pub adds: u64,
    /// Pages that it let go of.
    pub dels: u64,
    /// Pages of requests that it refused, by ADD or DEL.
    pub refused: u64,
    /// Grants that could not be made, as the grant table is full: another page makes way.
    pub ungranted: u64,
    /// Grants that were still in use when they were to end, at the first try.
    pub in_use: u64,
    /// Answers without a request.
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
    /// Pages that the back's table has room for, by its last answer.
    capacity: usize,
    /// It refused to have so many.
    refused_from: usize,
    /// Places, each in one of these at most.
    wanted: Vec<u32>,
    /// Granted, and not announced to this back.
    again: Vec<u32>,
    leaving: Vec<u32>,
    ending: VecDeque<u32>,
    asked: Option<Ask>,
    /// The page that the request under way is about.
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
            ending: VecDeque::with_capacity(places),
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
    /// [`begin`](Self::begin): what was announced is announced again, by the same references.
    pub fn renew(&mut self) {
        (self.capacity, self.asked) = (0, None);
        for list in [&mut self.again, &mut self.leaving, &mut self.list] {
            list.clear();
        }
        for (place, entry) in self.entries.iter_mut().enumerate() {
            let is_announced =
                matches!(entry.state, State::Again | State::Asked | State::Added | State::Leaving);
            if is_announced && self.clock.page(place).is_some() {
                (entry.state, entry.dels) = (State::Again, 0);
                self.again.push(place as u32);
            }
        }
    }

    /// A frame is in this page: returns the page's place, and its reference if the back has it.
    #[inline(always)]
    pub fn lookup(&mut self, page: usize) -> Option<(u32, GrantRef)> {
        if page >= self.clock.pages() {
            return None;
        }
        let found = self.lookup_part(page);
        self.looked_up(found.is_some());
        found
    }

    /// The same of one page of a frame over several, which is not counted.
    #[inline(always)]
    pub fn lookup_part(&mut self, page: usize) -> Option<(u32, GrantRef)> {
        self.working_set.record_use(page);
        match self.clock.find(page) {
            Some(place) => {
                if let Some(&Entry { gref, state: State::Added, .. }) = self.entries.get(place) {
                    self.clock.touch(place);
                    return Some((place as u32, gref));
                }
            }
            None if self.capacity > 0 => self.want(page),
            None => {}
        }
        None
    }

    /// Counts a frame whose pages were looked up: whether it goes from one of them.
    #[inline(always)]
    pub fn looked_up(&mut self, is_hit: bool) {
        self.stats.hits += u64::from(is_hit);
        self.stats.misses += u64::from(!is_hit);
    }

    /// A page that has no place.
    #[cold]
    fn want(&mut self, page: usize) {
        if self.clock.len() < self.capacity
            && let Some(place) = self.clock.insert(page)
        {
            self.set(place as u32, EMPTY);
            self.wanted.push(place as u32);
            return;
        }
        self.make_way();
    }

    /// The page that was not used for the longest leaves.
    fn make_way(&mut self) {
        if self.working_set.mode() == CacheMode::Copying
            || self.leaving.len() == DELS_AT_ONCE
            || self.asked == Some(Ask::Del)
        {
            return;
        }
        let entries = &self.entries;
        let may_go = |place: usize| {
            entries.get(place).is_some_and(|Entry { state, in_flight, dels, .. }| {
                *state == State::Added && *in_flight == 0 && *dels < DELS_MAX
            })
        };
        if let Some(place) = self.clock.unused(may_go) {
            self.set_state(place as u32, State::Leaving);
            self.leaving.push(place as u32);
            self.stats.evictions += 1;
        }
    }

    /// A frame is sent from the page there.
    #[inline(always)]
    pub fn sent(&mut self, place: u32) {
        if let Some(entry) = self.entries.get_mut(place as usize) {
            entry.in_flight += 1;
        }
    }

    /// The request of such a frame was answered.
    #[inline(always)]
    pub fn answered(&mut self, place: u32) {
        if let Some(entry) = self.entries.get_mut(place as usize) {
            entry.in_flight = entry.in_flight.saturating_sub(1);
        }
    }

    /// Whether a request that names this page has no answer yet: its bytes are not to be changed.
    pub fn is_in_flight(&self, page: usize) -> bool {
        self.clock.find(page).is_some_and(|place| self.entry(place as u32).in_flight > 0)
    }

    /// The state of a place.
    #[inline(always)]
    fn entry(&self, place: u32) -> Entry {
        self.entries.get(place as usize).copied().unwrap_or(EMPTY)
    }

    #[inline(always)]
    fn set(&mut self, place: u32, to: Entry) {
        if let Some(entry) = self.entries.get_mut(place as usize) {
            *entry = to;
        }
    }

    #[inline(always)]
    fn set_state(&mut self, place: u32, state: State) {
        self.set(place, Entry { state, ..self.entry(place) });
    }

    /// A frame was copied.
    #[inline(always)]
    pub fn copied(&mut self) {
        self.stats.copied_to_pool += 1;
    }

    /// The next request, about the entries that `list` is filled with;
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
                    self.set(place, Entry { gref, state: State::Asked, ..EMPTY });
                    self.list.push(place);
                    list.push(GrefEntry { gref: gref.0, flags: GREF_READONLY, status: 0 });
                }
                None => {
                    self.clock.remove(place as usize);
                    self.stats.ungranted += 1;
                    self.make_way(); // its entry of the grant table is for the next one
                }
            }
        }
        if !self.list.is_empty() {
            self.asked = Some(Ask::Add);
        } else if !self.leaving.is_empty() {
            core::mem::swap(&mut self.list, &mut self.leaving);
            for k in 0..self.list.len() {
                let Some(&place) = self.list.get(k) else { break };
                self.set_state(place, State::Asked);
                list.push(GrefEntry { gref: self.entry(place).gref.0, flags: 0, status: 0 });
            }
            self.asked = Some(Ask::Del);
        }
        self.asked
    }

    /// Announces to a new back what it has room for; gives up the rest.
    fn announce_again(&mut self, list: &mut Vec<GrefEntry>) {
        if self.capacity == 0 {
            return; // it has not said yet
        }
        let had = self.grants() - self.again.len();
        let room = self.capacity.saturating_sub(had);
        while self.again.len() > room
            && let Some(place) = self.again.pop()
        {
            self.set_state(place, State::Ending);
            self.ending.push_back(place);
        }
        for _ in 0..ADDS_AT_ONCE {
            let Some(place) = self.again.pop() else { break };
            self.set_state(place, State::Asked);
            self.list.push(place);
            list.push(GrefEntry { gref: self.entry(place).gref.0, flags: GREF_READONLY, status: 0 });
        }
    }

    /// The request could not be sent: it is as if it had not been made.
    pub fn unsent(&mut self, end: impl FnMut(GrantRef) -> bool) {
        match self.asked.take() {
            Some(Ask::Add) => self.refused(end),
            Some(Ask::Del) => {
                while let Some(place) = self.list.pop() {
                    self.set_state(place, State::Added);
                }
            }
            None => {}
        }
    }

    /// Takes the answer to the last request, and the statuses in the list.
    pub fn take_answer(
        &mut self,
        answer: CtrlResponse,
        statuses: &[u16],
        mut end: impl FnMut(GrantRef) -> bool,
    ) {
        match self.asked.take() {
            None => self.stats.unasked += 1,
            Some(Ask::Add) => {
                let n = self.list.len();
                let mut taken = 0;
                for k in added(answer, statuses, n) {
                    let Some(&place) = self.list.get(k) else { continue };
                    self.set_state(place, State::Added);
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
                let mut gone = deleted(answer, statuses, self.list.len()).peekable();
                for k in 0..self.list.len() {
                    let Some(&place) = self.list.get(k) else { break };
                    if gone.next_if_eq(&k).is_some() {
                        self.stats.dels += 1;
                        self.end(place, &mut end);
                    } else {
                        let had = self.entry(place);
                        self.set(place, Entry { state: State::Added, dels: had.dels + 1, ..had });
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

    /// The rest of the list's request was not added.
    fn refused(&mut self, mut end: impl FnMut(GrantRef) -> bool) {
        for k in 0..self.list.len() {
            let Some(&place) = self.list.get(k) else { break };
            if self.entry(place).state == State::Asked {
                self.end(place, &mut end);
            }
        }
    }

    /// Ends the grant of the page there, or has it ended later.
    fn end(&mut self, place: u32, mut end: impl FnMut(GrantRef) -> bool) {
        let Entry { gref, in_flight, .. } = self.entry(place);
        if in_flight == 0 && end(gref) {
            self.clock.remove(place as usize);
        } else {
            self.set_state(place, State::Ending);
            self.ending.push_back(place);
            self.stats.in_use += 1;
        }
    }

    /// Tries again, of some.
    fn end_some(&mut self, mut end: impl FnMut(GrantRef) -> bool) {
        for _ in 0..self.ending.len().min(DELS_AT_ONCE) {
            let Some(place) = self.ending.pop_front() else { break };
            let Entry { gref, in_flight, .. } = self.entry(place);
            if in_flight == 0 && end(gref) {
                self.clock.remove(place as usize);
            } else {
                self.ending.push_back(place);
            }
        }
    }

    /// The back is gone: ends all grants that can be ended. The others take a place each until they
    /// can be: call this again.
    pub fn disconnect(&mut self, mut end: impl FnMut(GrantRef) -> bool) {
        (self.capacity, self.asked) = (0, None);
        self.ending.clear();
        for list in [&mut self.wanted, &mut self.again, &mut self.leaving, &mut self.list] {
            list.clear();
        }
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if self.clock.page(place).is_none() {
                continue;
            }
            if entry.gref == GrantRef::NONE || end(entry.gref) {
                self.clock.remove(place);
            } else {
                (entry.state, entry.in_flight) = (State::Ending, 0);
                self.ending.push_back(place as u32);
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

    /// Pages that the back takes, by its last answer.
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

    /// The counters, as a copy.
    pub fn stats(&self) -> CacheStats {
        CacheStats { mode_changes: self.working_set.changes(), ..self.stats }
    }
}

#[cfg(test)]
mod tests;
