//! One queue of the back: ring, path, and handle of the disk. One thread owns it, and it can move
//! to another.
//!
//! ```text
//!   ring --take--> Job in a place --validate, begin, fetch--> disk     at most a batch a poll, and no more parts in flight than the budget
//!   disk --Done--> the place's Job --next step--> disk              FLUSH with data and BARRIER have three steps
//!                                  '-deliver, end--> answers --settle, then publish--> ring
//!   a BARRIER waits until all before it came back; meanwhile nothing is taken
//! ```
//! Invariants: each request that was taken is answered once, through its slot in `jobs`; that slot
//! is free again when its last I/O has completed. No answer is written before the pages are
//! unmapped. Requests that a predecessor took and did not answer are executed again before any
//! other is taken.
//!
//! What a guest may do: whatever [`request`](super::request) says about a slot; use an id twice
//! (both are answered); publish a wrong index (a fault); request large transfers on all slots (they
//! wait on the ring: the budget bounds what is mapped or copied for them), including some that fail
//! at their last page (what was mapped for one is unmapped before the next is checked, and a poll
//! checks few of them), or that are refused after their whole segment list was read (the same few).

use super::counters::{Counters, Latencies, add};
use super::flush_fault::FlushFault;
use super::journaled_ring::JournaledRing;
use super::request::{Kind, Refusal, Rules, ValidRequest, answered_op, validate};
use crate::blk::disk::{Disk, Done, Io, IoError, IoMemory, IoOp, SECTOR_BYTES};
use crate::blk::path::back::MapOf;
use crate::blk::path::{AnyPath, Direction, Held, PageTransfer, Part, PathName};
use crate::error::{PeerFault, PlatformError};
use crate::platform::{Clock, Events, Platform};
use crate::ring::Taken;
use crate::units::DomId;
use crate::wire::blkif::{RSP_EOPNOTSUPP, RSP_ERROR, RSP_OKAY, Request, Response, SEGMENTS_MAX, Segment};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Largest number of requests taken in one poll.
pub const BATCH: usize = 64;
/// Once a batch has this many segments, no further request is added to it: 256 KiB in whole pages,
/// as for frames.
const BATCH_PARTS: usize = 64;

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// The state that a queue shares with the owner of its disk, which may be another thread.
#[derive(Debug)]
pub struct QueueShare {
    /// Counters of the queue.
    pub counters: Counters,
    /// The front's key that names the first page of the queue's ring.
    pub ring_key: String,
    /// Latencies of the queue's requests.
    pub latencies: Latencies,
    /// The path by which the queue's data moves.
    pub path: PathName,
    /// Number of ring pages, which are mapped from connect to disconnect.
    pub ring_pages: usize,
    /// Number of slots of the queue's ring.
    slots: usize,
    /// Largest number of segments in flight.
    budget: usize,
    /// Segments of the longest kind of request seen so far.
    longest: AtomicUsize,
    /// Number of pages that may be mapped for single requests.
    alone: AtomicUsize,
    in_flight: AtomicUsize,
    /// The time at which the batch of each request was taken, by the request's slot in `jobs`; 0:
    /// the slot is free.
    taken_ns: Box<[AtomicU64]>,
    kept_pages: AtomicUsize,
    overflows: AtomicU64,
    /// Counts changes of the configuration.
    generation: AtomicU32,
    allowed: AtomicUsize,
    sectors: AtomicU64,
}

impl QueueShare {
    /// Number of requests that were taken and not answered, as of the queue's last poll.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// When the oldest unanswered request was taken, by the platform's clock. It is valid even
    /// while the queue's owner is stalled. None: there is none.
    pub fn oldest_ns(&self) -> Option<u64> {
        self.taken_ns.iter().map(|taken| taken.load(Ordering::Relaxed)).filter(|taken| *taken > 0).min()
    }

    /// Number of pages kept mapped for later requests, as of the queue's last poll.
    pub fn kept_pages(&self) -> usize {
        self.kept_pages.load(Ordering::Relaxed)
    }

    /// Number of times there was no room for a page among those kept mapped.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }

    /// Whether the path keeps pages mapped.
    pub fn keeps(&self) -> bool {
        self.path == PathName::Persistent
    }

    /// Number of pages that the queue could map at once for single requests: the slots of its ring
    /// times the segments of the longest kind of request seen so far.
    pub fn requested_alone(&self) -> usize {
        let most = self.slots * self.longest.load(Ordering::Relaxed);
        if self.path == PathName::Copy { 0 } else { most.min(self.budget) }
    }

    /// Number of pages that the queue may map for single requests, as last set by the control
    /// thread.
    pub fn alone(&self) -> usize {
        self.alone.load(Ordering::Relaxed)
    }

    /// Limits the pages kept mapped, from the next poll on.
    pub(super) fn set_page_limit(&self, pages: usize) {
        self.allowed.store(pages, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Limits the pages mapped for single requests, from the next poll on.
    pub(super) fn set_alone_limit(&self, pages: usize) {
        self.alone.store(pages, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Sets the length of the disk, from the next poll on.
    pub(super) fn set_sectors(&self, sectors: u64) {
        self.sectors.store(sectors, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// A request from the time it is taken until it is answered.
struct Job<P: Platform> {
    taken: Option<Taken>,
    id: u64,
    op: u8,
    request: ValidRequest,
    /// Number of I/O operations that were submitted to the disk for the request.
    step: u8,
    parts: Vec<Part>,
    held: Held<P>,
    /// The memory, until the disk has it.
    memory: Option<IoMemory>,
    /// The result so far.
    outcome: Result<(), IoError>,
}

impl<P: Platform> Default for Job<P> {
    fn default() -> Self {
        Self {
            taken: None,
            id: 0,
            op: 0,
            request: ValidRequest::default(),
            step: 0,
            parts: Vec::new(),
            held: Held::default(),
            memory: None,
            outcome: Ok(()),
        }
    }
}

impl<P: Platform> Job<P> {
    /// The next I/O for the disk. None: all are done.
    fn next(&mut self) -> Option<IoOp> {
        let has_parts = !self.parts.is_empty();
        let op = match (self.request.kind, self.step) {
            (Kind::Read, 0) => Some(IoOp::Read),
            (Kind::Write, 0) => Some(IoOp::Write),
            (Kind::Flush, 0) => Some(IoOp::Flush),
            (Kind::Discard { secure }, 0) => Some(IoOp::Discard { secure }),
            (Kind::FlushWrite | Kind::Barrier, 0) => Some(IoOp::Flush),
            (Kind::FlushWrite | Kind::Barrier, 1) if has_parts => Some(IoOp::Write),
            (Kind::FlushWrite | Kind::Barrier, 2) if has_parts => Some(IoOp::Flush),
            _ => None,
        };
        self.step += 1;
        op
    }
}

/// One queue of a disk's back.
pub struct BackQueue<P: Platform> {
    /// The queue's handle of the disk. It is the first field, so that the disk releases all memory
    /// before the rest is dropped.
    disk: Box<dyn Disk>,
    of: DomId,
    ring: JournaledRing<MapOf<P>>,
    /// The event channel. None: it could not be [adopted](Self::adopt), so the queue is stalled
    /// until its disk closes.
    chan: Option<Chan<P>>,
    path: AnyPath<P>,
    rules: Rules,
    flush_fault: FlushFault,
    share: Arc<QueueShare>,
    jobs: Box<[Job<P>]>,
    free: Vec<u32>,
    /// Requests that a predecessor took and did not answer, oldest first.
    redo: VecDeque<(Taken, Request)>,
    answers: Vec<(Taken, Response)>,
    done: Vec<Done>,
    /// Requests that were taken, and whose data was not fetched yet.
    first_transfers: Vec<PageTransfer>,
    /// Requests that the disk has completed, whose data must be delivered.
    ended: Vec<PageTransfer>,
    list: Vec<u8>,
    /// A barrier that waits for the requests before it, or is executed alone.
    barrier: Option<u32>,
    barrier_goes: bool,
    parts_in_flight: usize,
    /// Largest number of segments in flight.
    budget: usize,
    /// Number of segments of the requests that could not begin, or were refused, in this poll.
    failed_parts: usize,
    /// A request of a longer kind than any before arrived, and was not reported yet.
    grew: bool,
    /// The disk has I/O that was submitted and not started.
    submitted: bool,
    /// True while requests are taken; cleared when the queue ends.
    takes: bool,
    applied: u32,
    /// The time of the current batch, once the clock was read.
    now_ns: Option<u64>,
}

/// Checks that what moves between workers' threads is Send.
const fn goes_to_another_thread<T: Send>() {}

/// The parts of a queue, besides its ring and its channel.
pub struct QueueParts<P: Platform> {
    /// The front's key that names the first page of the queue's ring.
    pub ring_key: String,
    /// The queue's handle of the disk.
    pub disk: Box<dyn Disk>,
    /// The path of the data.
    pub path: AnyPath<P>,
    /// The rules by which requests are validated.
    pub rules: Rules,
    /// Largest number of segments in flight.
    pub budget: usize,
    /// Number of ring pages, which are mapped from connect to disconnect.
    pub ring_pages: usize,
    /// The record of failed flushes, for all queues of the disk.
    pub flush_fault: FlushFault,
}

impl<P: Platform> BackQueue<P> {
    /// Creates a queue for domain `of`.
    pub fn new(of: DomId, ring: JournaledRing<MapOf<P>>, chan: Chan<P>, parts: QueueParts<P>) -> Self {
        const { goes_to_another_thread::<Self>() };
        let QueueParts { ring_key, disk, path, rules, budget, ring_pages, flush_fault } = parts;
        let budget = budget.max(rules.most_parts());
        let size = ring.size();
        let redo: VecDeque<_> = ring.pending().into();
        let share = QueueShare {
            counters: Counters::default(),
            ring_key,
            latencies: Latencies::default(),
            path: path.name(),
            ring_pages,
            slots: size as usize,
            budget,
            longest: AtomicUsize::new(SEGMENTS_MAX.min(rules.most_parts())),
            alone: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            taken_ns: (0..size).map(|_| AtomicU64::new(0)).collect(),
            kept_pages: AtomicUsize::new(0),
            overflows: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            allowed: AtomicUsize::new(usize::MAX),
            sectors: AtomicU64::new(rules.figures.sectors),
        };
        Self {
            disk,
            of,
            ring,
            chan: Some(chan),
            path,
            rules,
            flush_fault,
            share: Arc::new(share),
            jobs: (0..size).map(|_| Job::default()).collect(),
            free: (0..size).rev().collect(),
            redo,
            answers: Vec::with_capacity(size as usize),
            done: Vec::with_capacity(size as usize),
            first_transfers: Vec::with_capacity(BATCH),
            ended: Vec::with_capacity(size as usize),
            list: Vec::new(),
            barrier: None,
            barrier_goes: false,
            parts_in_flight: 0,
            budget,
            failed_parts: 0,
            grew: false,
            submitted: false,
            takes: true,
            applied: 0,
            now_ns: None,
        }
    }

    /// The state that the queue shares with its disk's owner.
    pub fn share(&self) -> &Arc<QueueShare> {
        &self.share
    }

    /// The queue's event channel.
    pub fn channel(&self) -> Option<&Chan<P>> {
        self.chan.as_ref()
    }

    /// Moves the queue's event channel to `p`, another handle of the same domain, which belongs to
    /// the new owner. One event is pending afterwards.
    pub fn adopt(&mut self, p: &P) -> Result<(), PlatformError> {
        self.chan = self.chan.take().map(|chan| p.events().adopt(chan)).transpose()?;
        Ok(())
    }

    /// Number of requests taken since the start, which wraps.
    pub fn requests(&self) -> u32 {
        self.ring.req_cons()
    }

    /// Number of requests that were taken and not answered.
    pub fn in_flight(&self) -> usize {
        self.jobs.len() - self.free.len()
    }

    /// Answers the requests that the disk has completed, and passes one batch of requests to the
    /// disk. Returns the number of all these requests. After a fault the disk must be closed.
    pub fn poll(&mut self, p: &P) -> Result<usize, PeerFault> {
        if self.chan.is_none() {
            return Ok(0);
        }
        if self.share.generation.load(Ordering::Acquire) != self.applied {
            self.apply_config(p);
        }
        self.now_ns = None;
        let mut moved = self.collect(p);
        // Pages of completed requests are unmapped before others are mapped in their place.
        self.path.settle(p);
        let taken = if self.takes { self.take_batch(p) } else { Ok(0) };
        // Requests taken before a fault are executed all the same.
        self.fetch(p);
        self.begin_barrier();
        loop {
            self.submitted = false;
            self.disk.start();
            // A disk in memory took its time there.
            self.now_ns = None;
            // A disk in memory has done already, and has the next steps of what it did to start.
            moved += self.collect(p);
            if !self.submitted {
                break;
            }
        }
        self.answer(p);
        // Requests that were taken before the fault are answered all the same.
        Ok(moved + taken?)
    }

    /// Collects the I/Os that the disk has completed. Returns their number.
    fn collect(&mut self, p: &P) -> usize {
        let mut all = 0;
        loop {
            let mut done = core::mem::take(&mut self.done);
            self.disk.complete(&mut done);
            let n = done.len();
            all += n;
            // A flush that succeeded may have completed after one that failed.
            if done.iter().any(is_failed_flush) {
                self.flush_fault.note();
            }
            done.drain(..).for_each(|done| self.came_back(done));
            self.done = done;
            self.deliver(p);
            self.begin_barrier();
            if n == 0 {
                return all;
            }
        }
    }

    /// The platform's clock, which a poll reads once before its disk starts, and once after that.
    fn now_ns(&mut self, p: &P) -> u64 {
        *self.now_ns.get_or_insert_with(|| p.clock().now_ns())
    }

    fn take_batch(&mut self, p: &P) -> Result<usize, PeerFault> {
        self.failed_parts = 0;
        let before = self.parts_in_flight;
        if self.can_take() {
            let n = self.ring.available(1)?;
            self.ring.prefetch(n.min(BATCH as u32));
        }
        for n in 0..BATCH {
            // Requests that fail late cost as much as others and are never in flight; so do those
            // whose segment list is refused.
            let failed_enough = self.failed_parts >= self.rules.most_parts();
            // A queue with much work gets more turns, and none so long that the worker's other
            // devices have to wait for it.
            let parts = self.parts_in_flight.saturating_sub(before) + self.failed_parts;
            let enough = parts >= BATCH_PARTS;
            if self.barrier.is_some() || failed_enough || enough || !self.has_room() {
                return Ok(n);
            }
            let request = match self.redo.pop_front() {
                Some(request) => {
                    add(&self.share.counters.redone, 1);
                    request
                }
                None if self.ring.available(1)? == 0 => return Ok(n),
                None => match self.ring.take() {
                    Some(request) => request,
                    None => return Ok(n),
                },
            };
            let taken_ns = self.now_ns(p);
            self.begin(p, request, taken_ns);
        }
        Ok(BATCH)
    }

    /// Whether the longest possible request still fits the budget.
    fn has_room(&self) -> bool {
        let most = self.rules.most_parts();
        !self.free.is_empty() && (self.parts_in_flight == 0 || self.parts_in_flight + most <= self.budget)
    }

    fn begin(&mut self, p: &P, (taken, req): (Taken, Request), taken_ns: u64) {
        let Some(place) = self.free.pop() else { return };
        let Self { jobs, path, rules, list, of, .. } = self;
        let job = &mut jobs[place as usize];
        (job.taken, job.id, job.op, job.step) = (Some(taken), req.id(), answered_op(&req), 0);
        list.clear();
        self.share.taken_ns[place as usize].store(taken_ns.max(1), Ordering::Relaxed);
        let validated =
            validate(&req, rules, &mut job.parts, list, |refs, out| path.read_list(p, *of, refs, out));
        let request = match validated {
            Ok(request) => request,
            Err(refusal) => {
                let Counters { refused, unsupported, failed, .. } = &self.share.counters;
                let counter = match refusal {
                    Refusal::Wrong => refused,
                    Refusal::NotSupported => unsupported,
                    Refusal::NoList => failed,
                };
                add(counter, 1);
                // A segment list costs its length, even if it is refused.
                let listed = list.len() / Segment::SIZE;
                self.failed_parts += job.parts.len().max(listed);
                job.parts.clear();
                return self.finish(place, refusal.status());
            }
        };
        job.request = request;
        let mut memory = IoMemory::default();
        if !job.parts.is_empty() {
            match path.begin(p, *of, request.kind.way(), &job.parts, &mut job.held) {
                Some(made) => memory = made,
                None => {
                    path.settle(p);
                    self.failed_parts += job.parts.len();
                    add(&self.share.counters.failed, 1);
                    job.parts.clear();
                    return self.finish(place, RSP_ERROR);
                }
            }
        }
        self.parts_in_flight += job.parts.len();
        if job.parts.len() > self.share.longest.load(Ordering::Relaxed) {
            let longest = job.parts.len().next_power_of_two().min(self.rules.most_parts());
            self.share.longest.store(longest, Ordering::Relaxed);
            self.grew = true;
        }
        if request.kind == Kind::Barrier {
            self.barrier = Some(place);
        }
        self.first_transfers.push(PageTransfer { place, way: request.kind.way(), memory, good: true });
    }

    /// Fetches the data of a batch, and passes its I/O to the disk.
    fn fetch(&mut self, p: &P) {
        let mut first_transfers = core::mem::take(&mut self.first_transfers);
        let Self { jobs, path, of, .. } = self;
        path.fetch(p, *of, &mut first_transfers, |place| &jobs[place as usize].parts);
        let mut batch = first_transfers.drain(..).peekable();
        while let Some(PageTransfer { place, memory, good, .. }) = batch.next() {
            // A disk in memory copies on submit: meanwhile prefetch for the next one.
            if let Some(PageTransfer { memory, way, .. }) = batch.peek() {
                memory.prefetch(*way == Direction::Read);
            }
            let job = &mut self.jobs[place as usize];
            job.memory = Some(memory);
            if !good {
                self.end(place, Err(IoError::Failed));
            } else if job.request.kind != Kind::Barrier {
                self.go_on(place);
            }
        }
        drop(batch);
        self.first_transfers = first_transfers;
        self.deliver(p);
    }

    /// Executes a barrier once it is the only request in flight.
    fn begin_barrier(&mut self) {
        if let Some(place) = self.barrier
            && !self.barrier_goes
            && self.in_flight() == 1
        {
            self.barrier_goes = true;
            self.submit_next(place);
        }
    }

    /// Submits the next I/O of a request. False: there is none.
    fn submit_next(&mut self, place: u32) -> bool {
        let job = &mut self.jobs[place as usize];
        let Some(op) = job.next() else { return false };
        let (sector, sectors, memory) = match op {
            IoOp::Flush => (0, 0, IoMemory::default()),
            IoOp::Read | IoOp::Write | IoOp::Discard { .. } => {
                (job.request.sector, job.request.sectors, job.memory.take().unwrap_or_default())
            }
        };
        self.submitted = true;
        self.disk.submit(Io { token: place.into(), op, sector, sectors, memory });
        true
    }

    fn go_on(&mut self, place: u32) {
        if !self.submit_next(place) {
            self.end(place, Ok(()));
        }
    }

    fn came_back(&mut self, Done { io, outcome }: Done) {
        let place = io.token as u32;
        let Some(job) = self.jobs.get_mut(place as usize) else { return };
        if matches!(io.op, IoOp::Read | IoOp::Write) {
            job.memory = Some(io.memory);
        }
        let is_flush = matches!(io.op, IoOp::Flush);
        match outcome {
            // The disk reports lost writes once, and another flush got that report.
            Ok(()) if is_flush && self.flush_fault.is_noted() => self.end(place, Err(IoError::Failed)),
            Ok(()) => self.go_on(place),
            Err(e) => self.end(place, Err(e)),
        }
    }

    /// Handles a request that the disk has completed, or that failed.
    fn end(&mut self, place: u32, outcome: Result<(), IoError>) {
        let job = &mut self.jobs[place as usize];
        job.outcome = outcome;
        let memory = job.memory.take().unwrap_or_default();
        self.ended.push(PageTransfer { place, way: job.request.kind.way(), memory, good: outcome.is_ok() });
    }

    /// Delivers the data of completed requests to the guest, and answers them.
    fn deliver(&mut self, p: &P) {
        if self.ended.is_empty() {
            return;
        }
        let mut ended = core::mem::take(&mut self.ended);
        let Self { jobs, path, of, .. } = self;
        path.deliver(p, *of, &mut ended, |place| &jobs[place as usize].parts);
        let now_ns = self.now_ns(p);
        ended.drain(..).for_each(|transfer| self.account(transfer, now_ns));
        self.ended = ended;
    }

    /// Counts a completed request, and queues its answer.
    fn account(&mut self, PageTransfer { place, memory, good, .. }: PageTransfer, now_ns: u64) {
        let Self { jobs, path, share, .. } = self;
        let job = &mut jobs[place as usize];
        path.end(memory, &mut job.held);
        let outcome = job.outcome;
        self.parts_in_flight -= job.parts.len();
        let c = &share.counters;
        let latency = share.latencies.of(job.request.kind, !job.parts.is_empty());
        let taken_ns = share.taken_ns[place as usize].load(Ordering::Relaxed);
        latency.add(now_ns.saturating_sub(taken_ns));
        // For a discard this would not be a number of bytes moved, and may overflow.
        let bytes = job.request.sectors.saturating_mul(SECTOR_BYTES as u64);
        match job.request.kind {
            _ if !good => add(&c.failed, 1),
            Kind::Read => {
                add(&c.reads, 1);
                add(&c.bytes_read, bytes);
            }
            Kind::Write | Kind::FlushWrite | Kind::Barrier if !job.parts.is_empty() => {
                add(&c.writes, 1);
                add(&c.bytes_written, bytes);
                add(&c.flushes, u64::from(job.request.kind != Kind::Write));
            }
            Kind::Write => {}
            Kind::Flush | Kind::FlushWrite | Kind::Barrier => add(&c.flushes, 1),
            Kind::Discard { .. } => add(&c.discards, 1),
        }
        job.parts.clear();
        if self.barrier == Some(place) {
            self.barrier = None;
            self.barrier_goes = false;
        }
        let status = match outcome {
            Err(IoError::NotSupported) => RSP_EOPNOTSUPP,
            _ if good => RSP_OKAY,
            _ => RSP_ERROR,
        };
        self.finish(place, status);
    }

    fn finish(&mut self, place: u32, status: i16) {
        let job = &mut self.jobs[place as usize];
        if let Some(taken) = job.taken.take() {
            self.share.taken_ns[place as usize].store(0, Ordering::Relaxed);
            self.answers.push((taken, Response { id: job.id, op: job.op, status }));
            self.free.push(place);
        }
    }

    /// Unmaps the pages of completed requests, and answers them.
    fn answer(&mut self, p: &P) {
        self.path.settle(p);
        self.share.in_flight.store(self.in_flight(), Ordering::Relaxed);
        if let Some(kept) = self.path.pages() {
            self.share.kept_pages.store(kept, Ordering::Relaxed);
            self.share.overflows.store(self.path.overflows(), Ordering::Relaxed);
        }
        if self.answers.is_empty() {
            return;
        }
        add(&self.share.counters.answers, self.answers.len() as u64);
        let notify = self.ring.answer_taken(&self.answers);
        self.answers.clear();
        if let Some(chan) = self.chan.as_ref().filter(|_| notify.wanted()) {
            p.events().notify(chan);
        }
    }

    /// Applies the pending configuration.
    #[cold]
    pub(super) fn apply_config(&mut self, p: &P) {
        self.applied = self.share.generation.load(Ordering::Acquire);
        self.rules.figures.sectors = self.share.sectors.load(Ordering::Relaxed);
        let (allowed, alone) = (&self.share.allowed, &self.share.alone);
        self.path.limit_pages(p, allowed.load(Ordering::Relaxed), alone.load(Ordering::Relaxed));
    }

    /// Whether the number of pages [that the queue could map](QueueShare::requested_alone) has
    /// grown since the last call.
    pub fn has_grown(&mut self) -> bool {
        core::mem::take(&mut self.grew)
    }

    /// True if the queue may take a request, if there is one.
    fn can_take(&self) -> bool {
        self.chan.is_some() && self.takes && self.barrier.is_none() && self.has_room()
    }

    /// Call before sleeping: asks for events of the ring and unmasks the channel. Returns true if
    /// there is work. The completion of an I/O wakes the owner by itself; until then a full queue
    /// asks for no event.
    pub fn arm(&mut self, p: &P) -> Result<bool, PeerFault> {
        let work = self.can_take() && (!self.redo.is_empty() || self.ring.final_check()?);
        // The channel comes last, so that an event that came since the ring was checked is kept
        // until here.
        if let Some(chan) = &self.chan {
            p.events().unmask(chan);
        }
        Ok(work)
    }

    /// True if there is a request that the queue may take. Does not ask for events.
    pub fn is_pending(&mut self) -> bool {
        self.can_take() && (!self.redo.is_empty() || self.ring.available(1) != Ok(0))
    }

    /// Answers what has completed, and takes no request. Returns the number of requests that are
    /// still in the disk.
    pub fn under_way(&mut self, p: &P) -> usize {
        let takes = core::mem::replace(&mut self.takes, false);
        let _ = self.poll(p); // takes nothing, so that nothing can be wrong
        self.takes = takes;
        self.in_flight()
    }

    /// Before an orderly drop: takes no more requests, and answers all that were taken, unless the
    /// disk hangs. Unless `patient`, it leaves those that are still in the disk. Returns how many
    /// it answered. A successor finds the others in the journal.
    pub fn drain(&mut self, p: &P, patient: bool) -> usize {
        let before = self.share.counters.read().answers;
        self.takes = false;
        while self.under_way(p) > 0 && patient && self.chan.is_some() && self.disk.wait() {}
        (self.share.counters.read().answers - before) as usize
    }
}

/// True if this is a flush that failed: writes that were answered before it may be lost.
fn is_failed_flush(Done { io, outcome }: &Done) -> bool {
    matches!(io.op, IoOp::Flush) && *outcome == Err(IoError::Failed)
}
