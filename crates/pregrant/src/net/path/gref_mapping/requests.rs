//! Executes control requests 8 to 10 of a guest, about its queues' tables of mapped pages
//! (docs/protocol 2.11).
//!
//! ```text
//!   GET  ------------------------------------------------------------> answered at once
//!   ADD  list validated --> pages mapped, some in each turn --> to the queue's worker --> kept --> answered
//!                             one cannot be: unmapped, some in each turn ---------------------> answered
//!   DEL  list read         --> the worker lets go of them --> unmapped, some in each turn --> statuses, kept --> answered
//! ```
//! While an ADD or a DEL is under way, requests for other queues go on, and those for the same
//! queue wait. An invalid list is refused at once where nothing is under way for its queue. All
//! pages of an ADD are mapped, or none. `Control` and a [`GrefPage`] for each queue keep what
//! outlives the process: the tables, and the requests without an answer, which a successor executes
//! again from their beginning.
//!
//! What a guest may do: send requests without end ([`MAPS_PER_TURN`] and [`UNANSWERED_MAX`] bound a
//! turn and the waiting requests); request more than its share (refused: the pages count as mapped,
//! XSA-300); revoke its list (INVALID_PARAMETER).

use super::LIMIT_MAX;
use super::added::{Added, Stage};
use super::exchange::{GrefExchange, KeepOrder};
use super::list;
use super::page::{GREF_PAGE_BYTES, GrefPage};
use super::table::Mapped;
use crate::bounded::{Bounded, BoundedQueue};
use crate::error::PlatformError;
use crate::grants::MappedStats;
use crate::memory;
use crate::net::path::{ConfigGeneration, PathConfig};
use crate::platform::{Access, PeerMem, Platform};
use crate::record_version::UnknownRecord;
use crate::units::{DomId, GrantRef};
use crate::wire::netif_ctrl::{CtrlRequest, CtrlStatus, CtrlType, GREF_READONLY, GrefEntry};
use crate::xenbus::KeyName;
use crate::xenbus::back::KeptMemory;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

/// Largest number of pages of one vif that a control turn maps or unmaps. With Linux's gntdev each
/// one is two system calls.
pub const MAPS_PER_TURN: usize = 64;
/// Largest number of requests of one vif that are taken and not yet answered. Later ones wait on
/// the control ring.
pub const UNANSWERED_MAX: usize = 32;
/// Largest number of queues of a vif that can have a table.
pub const QUEUES_MAX: usize = 64;

type Map<P> = <<P as Platform>::Peer as PeerMem>::Map;

/// The requests and pages of one queue.
struct Queue<M> {
    added: Added,
    exchange: Arc<GrefExchange<M>>,
    share: Option<Arc<dyn ConfigGeneration>>,
    page: Option<GrefPage>,
    /// Number of the last change, which says which copy in `page` is valid.
    version: u32,
    /// Largest number of entries that the table had.
    most: usize,
    /// Number of pages in requests for which there was no room.
    refused: u64,
    /// Number of pages that may still be mapped as the first filling of the table, which every
    /// connection does once.
    unfilled: usize,
}

/// What a control turn did for a guest: the sum of requests taken and pages mapped or unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CtrlWork {
    /// All work of the turn.
    pub all: u32,
    /// The part of the work that fills each queue's table for the first time in a connection, as
    /// every guest that uses this path does.
    pub filling: u32,
}

/// A control-ring request that is under way, with the guest's list of grants.
struct Job<M> {
    request: CtrlRequest,
    queue: usize,
    entries: Box<[GrefEntry]>,
    step: Step<M>,
}

enum Step<M> {
    /// An earlier request for the same queue is not finished.
    Waiting,
    /// These pages of the request are mapped so far. The order is for the worker, when all are.
    Adding(Bounded<M>, KeepOrder<M>),
    /// The next page could not be mapped; the pages that were mapped must be unmapped.
    Failing(Bounded<M>),
    /// The worker was asked to give back the entries with the status SUCCESS.
    Wanted(Box<[CtrlStatus]>),
    /// The worker has given back these entries, and their pages are being unmapped.
    Unmapping(Box<[CtrlStatus]>, Bounded<M>),
    /// The request is finished, with this status and number for its answer.
    Done(CtrlStatus, u32),
}

/// A request whose answer can be sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// The request.
    pub request: CtrlRequest,
    /// The answer's status.
    pub status: CtrlStatus,
    /// The answer's data field.
    pub data: u32,
    /// The queue whose table the request changed, and the number of that change.
    pub changed: Option<(usize, u32)>,
}

/// Executes a guest's requests to map and unmap pages, a bounded number in each control turn.
pub struct GrefRequests<P: Platform> {
    queues: Vec<Queue<Map<P>>>,
    jobs: BoundedQueue<Job<Map<P>>>,
    /// Memory for the pages that are unmapped together.
    unmapped: Bounded<Map<P>>,
    limit: usize,
    /// Number of pages that may still be added.
    room: usize,
    budget: usize,
    /// Work of the current turn.
    work: CtrlWork,
}

impl<P: Platform> GrefRequests<P> {
    /// Serves queues with these exchanges. Each table has at most `limit` entries, all tables
    /// together `room`.
    pub fn new(
        exchanges: Vec<Arc<GrefExchange<Map<P>>>>,
        limit: usize,
        room: usize,
    ) -> Result<Self, PlatformError> {
        let mut requests = Self::without_queues(limit, room)?;
        exchanges.into_iter().try_for_each(|exchange| requests.add_queue(exchange))?;
        Ok(requests)
    }

    fn without_queues(limit: usize, room: usize) -> Result<Self, PlatformError> {
        Ok(Self {
            queues: Vec::new(),
            jobs: BoundedQueue::new(UNANSWERED_MAX)?,
            unmapped: Bounded::new(MAPS_PER_TURN)?,
            limit,
            room,
            budget: 0,
            work: CtrlWork::default(),
        })
    }

    fn add_queue(&mut self, exchange: Arc<GrefExchange<Map<P>>>) -> Result<(), PlatformError> {
        if self.queues.len() >= QUEUES_MAX {
            return Ok(());
        }
        let (added, share, page, unfilled) = (Added::default(), None, None, self.limit);
        let queue = Queue { added, exchange, share, page, version: 0, most: 0, refused: 0, unfilled };
        memory::push(&mut self.queues, queue)
    }

    /// True if a control request is of the types that are executed here (8, 9, 10).
    pub fn are(request: &CtrlRequest) -> bool {
        use CtrlType::{AddGrefMapping, DelGrefMapping, GetGrefMappingSize};
        let msg_type = CtrlType::from_raw(request.msg_type);
        matches!(msg_type, Some(GetGrefMappingSize | AddGrefMapping | DelGrefMapping))
    }

    /// Serves the queues of a front that connects, each with its exchange and its settings; None:
    /// no queue has this path. If `kept` has memory, the tables are recorded there.
    pub fn of_queues<'a, S: ConfigGeneration + 'static>(
        queues: impl Iterator<Item = (Option<Arc<GrefExchange<Map<P>>>>, &'a Arc<S>)>,
        config: &PathConfig,
        room: usize,
        kept: KeptMemory<'_>,
    ) -> Result<Option<Self>, PlatformError> {
        let mut requests = Self::without_queues(config.gref_mapping.min(LIMIT_MAX), room)?;
        let queues = queues.map_while(|(exchange, share)| Some((exchange?, share)));
        for (i, (exchange, share)) in queues.enumerate() {
            requests.add_queue(exchange)?;
            requests.set_share(i, Arc::<S>::clone(share));
            let name = KeyName::of(format_args!("{i}/grefs"));
            if let Some(page) = kept(&name, GREF_PAGE_BYTES).and_then(GrefPage::new) {
                requests.keep(i, page);
            }
        }
        Ok(Some(requests).filter(|requests| !requests.queues.is_empty()))
    }

    /// Sets how queue `i` is notified whenever there is something for it.
    pub fn set_share(&mut self, i: usize, share: Arc<dyn ConfigGeneration>) {
        if let Some(q) = self.queues.get_mut(i) {
            q.share = Some(share);
        }
    }

    /// Records the table of queue `i` in this memory from now on, for a successor.
    pub fn keep(&mut self, i: usize, page: GrefPage) {
        if let Some(q) = self.queues.get_mut(i) {
            q.page = Some(page);
        }
    }

    /// Checks whether the tables that a predecessor recorded can be read, at these numbers of
    /// changes.
    ///
    /// # Errors
    ///
    /// A table cannot be read: the vif must not be resumed.
    pub fn check(&self, versions: &[u32]) -> Result<(), UnknownRecord> {
        let mut tables =
            self.queues.iter().zip(versions).filter_map(|(q, version)| Some((q.page.as_ref()?, version)));
        tables.try_for_each(|(page, version)| page.check(*version).map(drop))
    }

    /// Restores the tables that a predecessor [recorded](Self::keep) for domain `of`, at these
    /// numbers of changes: at most `room` pages. A page that cannot be mapped again is left out;
    /// frames in it go by the next path.
    ///
    /// # Errors
    ///
    /// There is no memory for a table.
    pub fn resume(&mut self, p: &P, of: DomId, versions: &[u32]) -> Result<(), PlatformError> {
        let Self { queues, room, limit, .. } = self;
        for (q, &version) in queues.iter_mut().zip(versions) {
            q.version = version;
            let entries = q.page.as_ref().and_then(|page| page.load(version)).unwrap_or_default();
            let most = entries.len().min(*limit);
            let (mut pages, mut order) = (Bounded::new(most)?, KeepOrder::new(most)?);
            for entry in entries.iter().take(most) {
                if *room > 0
                    && !q.added.has(entry.gref)
                    && let Some(page) = map(p, of, entry)
                {
                    q.added.add([(entry.gref, entry.flags)].into_iter(), Stage::Stays)?;
                    *room -= 1;
                    pages.put((GrantRef(entry.gref), page));
                }
            }
            q.most = q.added.len();
            q.unfilled = limit.saturating_sub(q.most);
            order.fill(pages.into_vec().into_iter());
            q.exchange.keep(order);
            q.order();
        }
        Ok(())
    }

    /// Takes over the requests that a predecessor had taken from the ring and not answered.
    pub fn take_again(&mut self, p: &P, of: DomId, requests: &[CtrlRequest]) {
        for request in requests {
            if let Some((status, data)) = self.take(p, of, request) {
                // The predecessor had accepted the request, so it ends with this status in any
                // case.
                let step = Step::Done(status, data);
                let job = Job { request: *request, queue: usize::MAX, entries: Box::default(), step };
                self.jobs.put(job); // no more were taken than there is room for
            }
        }
    }

    /// Number of pages that are mapped for tables, or will be when the current requests are done.
    pub fn pages(&self) -> usize {
        self.queues.iter().map(|q| q.added.len()).sum()
    }

    /// Pages of the table of queue `i` that serve TX, and RX.
    pub fn pages_in_use(&self, i: usize) -> [usize; 2] {
        self.queues.get(i).map_or([0; 2], |q| q.exchange.pages())
    }

    /// Current and largest number of pages in the table of queue `i`, and how many pages were
    /// refused because it was full.
    pub fn figures(&self, i: usize) -> Option<MappedStats> {
        let q = self.queues.get(i)?;
        let pages = q.added.len();
        let limit = (pages + self.room).min(self.limit);
        Some(MappedStats { pages, most: q.most, limit, overflows: q.refused })
    }

    /// Number of pages that may still be added.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Allows at most `pages` pages from now on, and never more than the tables have entries. Pages
    /// that are mapped stay.
    pub fn set_room(&mut self, pages: usize) {
        self.room = pages.min(self.free());
    }

    /// Number of free entries in the tables.
    pub fn free(&self) -> usize {
        (self.queues.len() * self.limit).saturating_sub(self.pages())
    }

    /// Requests that were consumed and not answered.
    pub fn unanswered(&self) -> impl Iterator<Item = &CtrlRequest> {
        self.jobs.iter().map(|job| &job.request)
    }

    /// True if another request can be consumed.
    pub fn can_take(&self) -> bool {
        self.jobs.len() < UNANSWERED_MAX
    }

    /// True if one of the current requests can continue.
    pub fn can_move(&self) -> bool {
        let is_idle = |job: &Job<_>| match job.step {
            Step::Waiting => true,
            Step::Wanted(_) => self.queues.get(job.queue).is_some_and(|q| !q.exchange.has_given()),
            _ => false,
        };
        !self.jobs.iter().all(is_idle)
    }

    /// Takes a request of type 8, 9 or 10. Returns its answer if that is known at once; None:
    /// [`due`](Self::due) returns it later.
    pub fn take(&mut self, p: &P, of: DomId, request: &CtrlRequest) -> Option<(CtrlStatus, u32)> {
        const INVALID: Option<(CtrlStatus, u32)> = Some((CtrlStatus::InvalidParameter, 0));
        let [queue, gref, n] = request.data;
        let queue = queue as usize;
        let Some(q) = self.queues.get(queue) else { return INVALID };
        let read = match CtrlType::from_raw(request.msg_type) {
            Some(CtrlType::GetGrefMappingSize) => {
                return Some((CtrlStatus::Success, (q.added.len() + self.room).min(self.limit) as u32));
            }
            Some(CtrlType::AddGrefMapping) => list::read(p, of, gref, n),
            _ => list::read_writable(p, of, gref, n),
        };
        let Ok(entries) = read else { return INVALID };
        let first = !self.jobs.iter().any(|job| job.queue == queue);
        let mut job = Job { request: *request, queue, entries, step: Step::Waiting };
        if first {
            self.begin(&mut job);
        }
        if let Step::Done(status, data) = job.step {
            return Some((status, data));
        }
        match self.jobs.push_back(job) {
            Ok(()) => None,
            Err(_) => INVALID, // cannot be: `can_take` was asked
        }
    }

    /// Starts the first request of a queue: validates it, and reserves or marks its pages.
    fn begin(&mut self, job: &mut Job<Map<P>>) {
        let started = match job.request.msg_type == CtrlType::AddGrefMapping.raw() {
            true => self.begin_adding(job),
            false => self.begin_removing(job),
        };
        job.step = started.unwrap_or(Step::Done(CtrlStatus::InvalidParameter, 0));
    }

    /// Reserves the entries of an ADD. None: the list is invalid, or there is no room for it.
    #[inline(never)]
    fn begin_adding(&mut self, job: &Job<Map<P>>) -> Option<Step<Map<P>>> {
        let q = self.queues.get_mut(job.queue)?;
        let n = job.entries.len();
        let fits = q.added.len() + n <= self.limit && n <= self.room;
        q.refused += if fits { 0 } else { n as u64 };
        if !fits || list::validate(&job.entries, |gref| q.added.has(gref)).is_err() {
            return None;
        }
        let (maps, order) = (Bounded::new(n).ok()?, KeepOrder::new(n).ok()?);
        let entries = job.entries.iter().map(|entry| (entry.gref, entry.flags));
        q.added.add(entries, Stage::Comes).ok()?;
        self.room -= n;
        Some(Step::Adding(maps, order))
    }

    /// Marks the entries of a DEL, and asks the worker for their pages. None: there is no memory to
    /// do so.
    #[inline(never)]
    fn begin_removing(&mut self, job: &Job<Map<P>>) -> Option<Step<Map<P>>> {
        let q = self.queues.get_mut(job.queue)?;
        let mut statuses = memory::list(CtrlStatus::InvalidParameter, job.entries.len()).ok()?;
        let mut refs = Bounded::new(job.entries.len()).ok()?;
        for (entry, status) in job.entries.iter().zip(&mut statuses) {
            // A page that is listed twice is unmapped once.
            if q.added.advance(entry.gref, Stage::Stays, Stage::Leaves) {
                *status = CtrlStatus::Success;
                refs.put(GrantRef(entry.gref));
            }
        }
        if refs.is_empty() {
            return Some(Step::Unmapping(statuses, Bounded::without_room()));
        }
        if q.exchange.want_back(refs).is_err() {
            q.added.advance_all(Stage::Leaves, Stage::Stays);
            return None;
        }
        q.order();
        Some(Step::Wanted(statuses))
    }

    /// Called when a control turn begins.
    pub fn begin_turn(&mut self) {
        self.budget = MAPS_PER_TURN;
        self.work = CtrlWork::default();
    }

    /// Number of pages that were mapped and unmapped since [`begin_turn`](Self::begin_turn).
    pub fn work(&self) -> CtrlWork {
        self.work
    }

    /// Continues the requests of domain `of` that are under way, and returns the next one that is
    /// finished. Its table is recorded; the record is valid once the number in `changed` is stored.
    pub fn due(&mut self, p: &P, of: DomId) -> Option<Due> {
        let mut at = 0;
        while let Some(Job { queue, .. }) = self.jobs.get(at) {
            if self.jobs.iter().take(at).all(|earlier| earlier.queue != *queue) {
                self.begin_waiting(at);
                if let Some(due) = self.go_on(p, of, at) {
                    self.jobs.remove(at);
                    return Some(due);
                }
            }
            at += 1;
        }
        None
    }

    /// Starts the request at this place, if it waits.
    fn begin_waiting(&mut self, at: usize) {
        let waiting = self.jobs.get_mut(at).filter(|job| matches!(job.step, Step::Waiting));
        let Some(Job { request, queue, entries, .. }) = waiting else { return };
        let (request, queue, entries) = (*request, *queue, mem::take(entries));
        let mut started = Job { request, queue, entries, step: Step::Waiting };
        self.begin(&mut started);
        if let Some(job) = self.jobs.get_mut(at) {
            *job = started;
        }
    }

    fn go_on(&mut self, p: &P, of: DomId, at: usize) -> Option<Due> {
        let Self { queues, jobs, unmapped, room, budget, work, .. } = self;
        let Job { request, queue, entries, step } = jobs.get_mut(at)?;
        let due = |status, data, changed| Some(Due { request: *request, status, data, changed });
        if let Step::Done(status, data) = step {
            return due(*status, *data, None);
        }
        let q = queues.get_mut(*queue)?;
        'steps: loop {
            match &mut *step {
                Step::Adding(maps, order) => {
                    while let Some(entry) = entries.get(maps.len()) {
                        *budget = budget.checked_sub(1)?;
                        work.all += 1;
                        if let Some(left) = q.unfilled.checked_sub(1) {
                            q.unfilled = left;
                            work.filling += 1;
                        }
                        let page = map(p, of, entry).and_then(|page| maps.push(page.map).ok());
                        if page.is_none() {
                            *step = Step::Failing(mem::take(maps));
                            continue 'steps;
                        }
                    }
                    let page = |(entry, map): (&GrefEntry, _)| {
                        (GrantRef(entry.gref), Mapped::new(map, is_writable(entry.flags)))
                    };
                    order.fill(entries.iter().zip(maps.to_drain().drain(..)).map(page));
                    q.exchange.keep(order.take());
                    q.order();
                    q.added.advance_all(Stage::Comes, Stage::Stays);
                    q.most = q.most.max(q.added.len());
                    // Unused by the specification; a front of the draft reads how many were
                    // checked.
                    break due(CtrlStatus::Success, entries.len() as u32, Some((*queue, q.store())));
                }
                Step::Failing(maps) => {
                    unmap_within(p, maps, unmapped, (budget, work))?;
                    q.added.remove(Stage::Comes);
                    *room += entries.len();
                    break due(CtrlStatus::InvalidParameter, 0, None);
                }
                Step::Wanted(statuses) => {
                    let maps = q.exchange.given()?;
                    *step = Step::Unmapping(mem::take(statuses), maps);
                }
                Step::Unmapping(statuses, maps) => {
                    unmap_within(p, maps, unmapped, (budget, work))?;
                    q.added.remove(Stage::Leaves);
                    let gone = statuses.iter().filter(|status| **status == CtrlStatus::Success).count();
                    *room += gone;
                    let changed = (gone > 0).then(|| (*queue, q.store()));
                    break if list::write_statuses(p, of, request.data[1], statuses) {
                        due(CtrlStatus::Success, gone as u32, changed)
                    } else {
                        due(CtrlStatus::InvalidParameter, 0, changed)
                    };
                }
                Step::Waiting | Step::Done(..) => break None,
            }
        }
    }
}

impl<M> Queue<M> {
    /// Tells the queue's worker to execute its commands.
    fn order(&self) {
        if let Some(share) = &self.share {
            share.advance();
        }
    }

    /// Records the table as it is now. Returns the number of the change.
    fn store(&mut self) -> u32 {
        self.version = self.version.wrapping_add(1).max(1);
        if let Some(page) = &self.page {
            page.store(self.version, self.added.kept());
        }
        self.version
    }
}

fn is_writable(flags: u16) -> bool {
    flags & GREF_READONLY == 0
}

/// Unmaps as many pages as the turn's budget allows. None: some pages are left.
fn unmap_within<P: Platform>(
    p: &P,
    maps: &mut Bounded<Map<P>>,
    unmapped: &mut Bounded<Map<P>>,
    (budget, work): (&mut usize, &mut CtrlWork),
) -> Option<()> {
    while *budget > 0
        && unmapped.room() > 0
        && let Some(map) = maps.pop()
    {
        *budget -= 1;
        work.all += 1;
        unmapped.put(map);
    }
    if !unmapped.is_empty() {
        p.peer().unmap(unmapped.to_drain());
    }
    maps.is_empty().then_some(())
}

/// Maps the page of one entry.
fn map<P: Platform>(p: &P, of: DomId, entry: &GrefEntry) -> Option<Mapped<Map<P>>> {
    let writable = is_writable(entry.flags);
    let acc = if writable { Access::ReadWrite } else { Access::ReadOnly };
    let map = p.peer().map(of, &[GrantRef(entry.gref)], acc).ok()?;
    Some(Mapped::new(map, writable))
}
