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
use super::exchange::GrefExchange;
use super::list;
use super::page::{GREF_PAGE_BYTES, GrefPage};
use super::table::Mapped;
use crate::grants::MappedStats;
use crate::net::path::{ConfigGeneration, PathConfig};
use crate::platform::{Access, PeerMem, Platform};
use crate::record_version::UnknownRecord;
use crate::units::{DomId, GrantRef};
use crate::wire::netif_ctrl::{CtrlRequest, CtrlStatus, CtrlType, GREF_READONLY, GrefEntry};
use crate::xenbus::back::KeptMemory;
use alloc::collections::BTreeMap;
use alloc::format;
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

/// An entry of a table, as this side knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Added {
    flags: u16,
    /// The page is about to be unmapped.
    going: bool,
}

/// The requests and pages of one queue.
struct Queue<M> {
    added: BTreeMap<u32, Added>,
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
    entries: Vec<GrefEntry>,
    step: Step<M>,
}

enum Step<M> {
    /// An earlier request for the same queue is not finished.
    Waiting,
    /// These pages of the request are mapped so far.
    Adding(Vec<M>),
    /// The next page could not be mapped; the pages that were mapped must be unmapped.
    Failing(Vec<M>),
    /// The worker was asked to give back these entries (by index).
    Wanted(Vec<usize>),
    /// The worker has given back these entries, and their pages are being unmapped.
    Unmapping(Vec<usize>, Vec<M>),
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
    jobs: Vec<Job<Map<P>>>,
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
    pub fn new(exchanges: Vec<Arc<GrefExchange<Map<P>>>>, limit: usize, room: usize) -> Self {
        let queue = |exchange| {
            let (added, share, page) = (BTreeMap::new(), None, None);
            Queue { added, exchange, share, page, version: 0, most: 0, refused: 0, unfilled: limit }
        };
        let queues = exchanges.into_iter().take(QUEUES_MAX).map(queue).collect();
        Self { queues, jobs: Vec::new(), limit, room, budget: 0, work: CtrlWork::default() }
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
    ) -> Option<Self> {
        let (exchanges, shares): (Vec<_>, Vec<_>) =
            queues.map_while(|(exchange, share)| Some((exchange?, share))).unzip();
        if exchanges.is_empty() {
            return None;
        }
        let mut requests = Self::new(exchanges, config.gref_mapping.min(LIMIT_MAX), room);
        for (i, share) in shares.into_iter().enumerate() {
            requests.set_share(i, Arc::<S>::clone(share));
            if let Some(page) = kept(&format!("{i}/grefs"), GREF_PAGE_BYTES).and_then(GrefPage::new) {
                requests.keep(i, page);
            }
        }
        Some(requests)
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
    pub fn resume(&mut self, p: &P, of: DomId, versions: &[u32]) {
        let Self { queues, room, limit, .. } = self;
        for (q, &version) in queues.iter_mut().zip(versions) {
            q.version = version;
            let entries = q.page.as_ref().and_then(|page| page.load(version)).unwrap_or_default();
            let mut pages = Vec::new();
            for entry in entries.iter().take(*limit) {
                if *room > 0
                    && !q.added.contains_key(&entry.gref)
                    && let Some(page) = map(p, of, entry)
                {
                    *room -= 1;
                    q.added.insert(entry.gref, Added { flags: entry.flags, going: false });
                    pages.push((GrantRef(entry.gref), page));
                }
            }
            q.most = q.added.len();
            q.unfilled = limit.saturating_sub(q.most);
            q.exchange.keep(pages);
            q.order();
        }
    }

    /// Takes over the requests that a predecessor had taken from the ring and not answered.
    pub fn take_again(&mut self, p: &P, of: DomId, requests: &[CtrlRequest]) {
        for request in requests {
            if let Some((status, data)) = self.take(p, of, request) {
                // The predecessor had accepted the request, so it ends with this status in any
                // case.
                let step = Step::Done(status, data);
                self.jobs.push(Job { request: *request, queue: usize::MAX, entries: Vec::new(), step });
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
            Step::Wanted(_) => !self.queues[job.queue].exchange.has_given(),
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
        self.jobs.push(job);
        None
    }

    /// Starts the first request of a queue: validates it, and reserves or marks its pages.
    fn begin(&mut self, job: &mut Job<Map<P>>) {
        let q = &mut self.queues[job.queue];
        let n = job.entries.len();
        if job.request.msg_type == CtrlType::AddGrefMapping.raw() {
            let fits = q.added.len() + n <= self.limit && n <= self.room;
            q.refused += if fits { 0 } else { n as u64 };
            if !fits || list::validate(&job.entries, |gref| q.added.contains_key(&gref)).is_err() {
                job.step = Step::Done(CtrlStatus::InvalidParameter, 0);
                return;
            }
            self.room -= n;
            let added = |entry: &GrefEntry| (entry.gref, Added { flags: entry.flags, going: false });
            q.added.extend(job.entries.iter().map(added));
            job.step = Step::Adding(Vec::with_capacity(n));
            return;
        }
        let mut going = Vec::new();
        for (k, entry) in job.entries.iter().enumerate() {
            // A page that is listed twice is unmapped once.
            if let Some(added) = q.added.get_mut(&entry.gref).filter(|added| !added.going) {
                added.going = true;
                going.push(k);
            }
        }
        if going.is_empty() {
            job.step = Step::Unmapping(going, Vec::new());
            return;
        }
        q.exchange.want_back(going.iter().map(|&k| GrantRef(job.entries[k].gref)).collect());
        q.order();
        job.step = Step::Wanted(going);
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
        for at in 0..self.jobs.len() {
            let queue = self.jobs[at].queue;
            if self.jobs[..at].iter().any(|earlier| earlier.queue == queue) {
                continue;
            }
            if matches!(self.jobs[at].step, Step::Waiting) {
                let mut job = Job {
                    entries: mem::take(&mut self.jobs[at].entries),
                    step: Step::Waiting,
                    ..self.jobs[at]
                };
                self.begin(&mut job);
                self.jobs[at] = job;
            }
            if let Some(due) = self.go_on(p, of, at) {
                self.jobs.remove(at);
                return Some(due);
            }
        }
        None
    }

    fn go_on(&mut self, p: &P, of: DomId, at: usize) -> Option<Due> {
        let Self { queues, jobs, room, budget, work, .. } = self;
        let Job { request, queue, entries, step } = &mut jobs[at];
        let due = |status, data, changed| Some(Due { request: *request, status, data, changed });
        if let Step::Done(status, data) = step {
            return due(*status, *data, None);
        }
        let q = queues.get_mut(*queue)?;
        'steps: loop {
            match &mut *step {
                Step::Adding(maps) => {
                    while maps.len() < entries.len() {
                        *budget = budget.checked_sub(1)?;
                        work.all += 1;
                        if let Some(left) = q.unfilled.checked_sub(1) {
                            q.unfilled = left;
                            work.filling += 1;
                        }
                        let Some(page) = map(p, of, &entries[maps.len()]) else {
                            *step = Step::Failing(mem::take(maps));
                            continue 'steps;
                        };
                        maps.push(page.map);
                    }
                    let page = |(entry, map): (&GrefEntry, _)| {
                        (GrantRef(entry.gref), Mapped::new(map, is_writable(entry.flags)))
                    };
                    q.exchange.keep(entries.iter().zip(maps.drain(..)).map(page).collect());
                    q.order();
                    q.most = q.most.max(q.added.len());
                    // Unused by the specification; a front of the draft reads how many were
                    // checked.
                    break due(CtrlStatus::Success, entries.len() as u32, Some((*queue, q.store())));
                }
                Step::Failing(maps) => {
                    unmap_within(p, maps, budget, work)?;
                    for entry in &*entries {
                        q.added.remove(&entry.gref);
                    }
                    *room += entries.len();
                    break due(CtrlStatus::InvalidParameter, 0, None);
                }
                Step::Wanted(going) => {
                    let maps = q.exchange.given()?;
                    *step = Step::Unmapping(mem::take(going), maps);
                }
                Step::Unmapping(going, maps) => {
                    unmap_within(p, maps, budget, work)?;
                    let mut statuses = alloc::vec![CtrlStatus::InvalidParameter; entries.len()];
                    for &k in &*going {
                        statuses[k] = CtrlStatus::Success;
                        q.added.remove(&entries[k].gref);
                    }
                    *room += going.len();
                    let changed = (!going.is_empty()).then(|| (*queue, q.store()));
                    break if list::write_statuses(p, of, request.data[1], &statuses) {
                        due(CtrlStatus::Success, going.len() as u32, changed)
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
            let entries = self.added.iter().filter(|(_, added)| !added.going);
            page.store(self.version, entries.map(|(&gref, added)| (gref, added.flags)));
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
    maps: &mut Vec<Map<P>>,
    budget: &mut usize,
    work: &mut CtrlWork,
) -> Option<()> {
    let n = maps.len().min(*budget);
    if n > 0 {
        *budget -= n;
        work.all += n as u32;
        p.peer().unmap(&mut maps.drain(maps.len() - n..).collect());
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
