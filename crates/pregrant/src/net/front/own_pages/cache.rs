//! The pages of the guest's own memory that the back of one queue keeps mapped: for each its grant
//! reference and its state. Frames in such pages are sent in place. This is the bounded form of the
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
use crate::error::PlatformError;
use crate::memory;
use crate::net::path::gref_mapping::front::{added, deleted};
use crate::units::GrantRef;
use crate::wire::netif_ctrl::{CtrlResponse, GREF_LIST_MAX, GREF_READONLY, GrefEntry};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Largest number of pages in one ADD request. A large number fills a table with few answers.
pub const ADDS_AT_ONCE: usize = GREF_LIST_MAX;

/// Largest number of pages in one DEL request. Frames in them are copied until the back answers, so
/// the number is small: our back unmaps as many in one control turn.
pub const DELS_AT_ONCE: usize = 64;

/// How often the back is asked to unmap a page before the front gives up (docs/protocol 2.11).
pub const DELS_MAX: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The page is wanted in the table and not granted yet.
    Wanted,
    /// The page is granted, and waits to be announced to the back.
    Again,
    /// The page is in the request that has no answer yet.
    Asked,
    Added,
    /// The next DEL request will name the page.
    Leaving,
    /// The back says that it unmapped the page; the platform says that the grant is still in use.
    Ending,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    gref: GrantRef,
    state: State,
    in_flight: u16,
    /// Number of DEL requests that did not succeed.
    dels: u8,
}

const EMPTY: Entry = Entry { gref: GrantRef::NONE, state: State::Wanted, in_flight: 0, dels: 0 };

/// A request for the back about the list that was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// The request is ADD_GREF_MAPPING.
    Add,
    /// The request is DEL_GREF_MAPPING.
    Del,
}

/// Counters of a cache of granted pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Number of frames that were sent, wholly or in part, from their own pages.
    pub hits: u64,
    /// Number of frames in pages that the back had not mapped.
    pub misses: u64,
    /// Frames that were copied into the static pool as a whole.
    pub copied_to_pool: u64,
    /// Number of pages that were removed to make room for others.
    pub evictions: u64,
    /// Number of pages that the back accepted.
    pub adds: u64,
    /// Number of pages that the back unmapped.
    pub dels: u64,
    /// Number of pages in ADD or DEL requests that the back refused.
    pub refused: u64,
    /// Grants that could not be made, as the grant table is full: another page makes way.
    pub ungranted: u64,
    /// Grants that were still in use when they were to end, at the first try.
    pub in_use: u64,
    /// Number of answers without a request.
    pub unasked: u64,
    /// Number of times the cache changed between caching and copying.
    pub mode_changes: u64,
}

/// Which pages of the guest's memory are granted to the back and mapped there, for one queue; the
/// set follows what the guest sends.
#[derive(Debug)]
pub struct GrefCache {
    clock: Clock,
    entries: Box<[Entry]>,
    working_set: WorkingSet,
    /// Number of pages that the back's table has room for, by its last answer.
    capacity: usize,
    /// The back refused a table with this number of pages.
    refused_from: usize,
    /// Indices of pages that wait for their next step; each is in one of these lists at most.
    wanted: Vec<u32>,
    /// Indices of pages that are granted, and not announced to this back.
    again: Vec<u32>,
    leaving: Vec<u32>,
    ending: VecDeque<u32>,
    asked: Option<Ask>,
    /// Pages that the outstanding request names.
    list: Vec<u32>,
    stats: CacheStats,
}

impl GrefCache {
    /// Creates a cache for pages 0 to `pages` and tables of at most `places` entries. The back has
    /// no page yet.
    pub fn new(pages: usize, places: usize) -> Result<Self, PlatformError> {
        let places = places.min(pages);
        let mut ending = VecDeque::new();
        memory::grow_queue(&mut ending, places)?;
        Ok(Self {
            clock: Clock::new(pages, places)?,
            entries: memory::list(EMPTY, places)?,
            working_set: WorkingSet::new(pages, places)?,
            capacity: 0,
            refused_from: 1,
            wanted: memory::room(places)?,
            again: memory::room(places)?,
            leaving: Vec::with_capacity(ADDS_AT_ONCE),
            ending,
            asked: None,
            list: Vec::with_capacity(ADDS_AT_ONCE),
            stats: CacheStats::default(),
        })
    }

    /// Called when a back is connected whose table has room for `capacity` pages.
    pub fn begin(&mut self, capacity: usize) {
        self.capacity = capacity.min(self.entries.len());
        self.refused_from = self.capacity + 1;
        self.working_set.begin(self.capacity);
    }

    /// Called when another back took over the rings. Its table counts as empty until the next
    /// [`begin`](Self::begin); then the pages are announced again, by the same references.
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

    /// Looks up the page of a frame: returns the page's index, and its reference if the back has
    /// mapped it.
    #[inline(always)]
    pub fn lookup(&mut self, page: usize) -> Option<(u32, GrantRef)> {
        if page >= self.clock.pages() {
            return None;
        }
        let found = self.lookup_part(page);
        self.looked_up(found.is_some());
        found
    }

    /// Looks up one page of a frame over several pages, without counting.
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

    /// Counts a frame whose pages were looked up. `is_hit`: it is sent from at least one of them.
    #[inline(always)]
    pub fn looked_up(&mut self, is_hit: bool) {
        self.stats.hits += u64::from(is_hit);
        self.stats.misses += u64::from(!is_hit);
    }

    /// Asks for a page that is not in the table.
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

    /// Removes the page that was not used for the longest time.
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

    /// Notes that a frame in flight uses the page at this index.
    #[inline(always)]
    pub fn sent(&mut self, place: u32) {
        if let Some(entry) = self.entries.get_mut(place as usize) {
            entry.in_flight += 1;
        }
    }

    /// Notes that the request of a frame in this page was answered.
    #[inline(always)]
    pub fn answered(&mut self, place: u32) {
        if let Some(entry) = self.entries.get_mut(place as usize) {
            entry.in_flight = entry.in_flight.saturating_sub(1);
        }
    }

    /// True if a request that names this page has no answer yet, so that its bytes must not change.
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

    /// Counts a frame that was copied.
    #[inline(always)]
    pub fn copied(&mut self) {
        self.stats.copied_to_pool += 1;
    }

    /// The next request, for the entries that are put into `list`;
    /// [`take_answer`](Self::take_answer) processes its answer. None: there is nothing to ask, or
    /// an answer is outstanding. `grant` grants a page; `end` ends a grant and returns whether that
    /// succeeded.
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
        // Both kinds are asked in turn: pages that leave make room for new ones.
        let most = self.capacity.saturating_sub(self.grants()).min(ADDS_AT_ONCE);
        if most == 0 {
            // The back has room for fewer pages than expected.
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

    /// Announces pages to a new back, as many as it has room for; gives up the rest.
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

    /// Restores the state before a request that could not be sent.
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

    /// Processes the answer to the last request, and the statuses in the list.
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
                    // After a refusal the capacity is set between what the back has and what it
                    // refused.
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

    /// Ends the grants of the list's pages whose addition the back has not confirmed.
    fn refused(&mut self, mut end: impl FnMut(GrantRef) -> bool) {
        for k in 0..self.list.len() {
            let Some(&place) = self.list.get(k) else { break };
            if self.entry(place).state == State::Asked {
                self.end(place, &mut end);
            }
        }
    }

    /// Ends the grant of the page at this index, now or later.
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

    /// Tries again to end some of the grants that could not be ended.
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

    /// The back is gone: ends all grants that can be ended. Each of the others uses up a place
    /// until it can be ended; call this again later.
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

    /// Number of pages that the back says it has mapped.
    pub fn added(&self) -> usize {
        let added =
            |entry: &(usize, &Entry)| self.clock.page(entry.0).is_some() && entry.1.state == State::Added;
        self.entries.iter().enumerate().filter(added).count()
    }

    /// Number of grants that exist.
    pub fn grants(&self) -> usize {
        self.clock.len() - self.wanted.len()
    }

    /// Number of pages that the back has room for, by its last answer.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of pages that the back says it has mapped, and number that it has room for.
    pub fn pages(&self) -> (usize, usize) {
        (self.added(), self.capacity)
    }

    /// Whether pages that are not in the table enter it, or their frames are copied.
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
