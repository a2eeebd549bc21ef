//! The disk of a fuzzed back, and what the rules say of its requests: it sees each call of a poll
//! as it comes.
//!
//! ```text
//!   poll: complete* --taken, all of them--> submit* --start--> (perform, complete, submit of next steps)*
//!            |              |                 |                             |
//!            |              '-- validated here, with the guest's memory as it is now; the disk's order must be the one that comes
//!            '-- reads land in the guest's memory, an answer falls due           out, in the requests' order
//! ```
//! The expected contents of the guest's memory are kept beside it, byte by byte: each change is
//! recorded here. The disk keeps no sectors: what it gives for a read is new each time, and what is
//! written is compared as it comes.
//!
//! A guest may name pages of its rings as data, for it has granted them to this back. What is on
//! the ring then is the disk's doing and the guest's, and no rule says what comes of it: from there
//! to the end of that connection the disk only does what it is given.

use crate::blk_ring::BlkRing;
use crate::guest_pages::Right;
use pregrant::PAGE_SIZE;
use pregrant::blk::disk::{DiskFigures, Done, Io, IoError, IoMemory, IoOp, OpenError, Opening, SECTOR_BYTES};
use pregrant::blk::path::PathName;
use pregrant::platform::local::LocalRegion;
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{
    DISCARD_SECURE, OP_DISCARD, OP_FLUSH_DISKCACHE, OP_READ, OP_WRITE, OP_WRITE_BARRIER, RSP_EOPNOTSUPP,
    RSP_ERROR, RSP_OKAY, Request, Response, SEGMENTS_MAX, SLOT_WORDS_MAX, Segment,
};
use pregrant_testkit::shared_disk::{self, SharedDisk, perhaps_die};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Changes that the guest makes while a poll runs.
pub enum Meanwhile {
    Page(usize, u8),
    /// A slot of the ring that is polled.
    Slot(BlkRing, u32, [u32; SLOT_WORDS_MAX]),
}

/// A part of a page.
#[derive(Clone, Copy, Debug)]
struct Part {
    gref: u32,
    /// The page when the request was taken. None: the back may not use it in this way.
    page: Option<usize>,
    at: usize,
    len: usize,
}

/// A request that the disk works on, or will.
struct Active {
    index: u32,
    answer: Response,
    /// The disk's operations for it, in order.
    ops: Vec<IoOp>,
    step: usize,
    alone: bool,
    sector: u64,
    sectors: u64,
    parts: Vec<Part>,
    /// The back copies its bytes.
    copies: bool,
    /// For a back that copies: the data of a write, read from the guest, or the data of a read,
    /// from the disk.
    copied: Option<Vec<u8>>,
}

/// An answer that is due, and the request's index.
pub type Due = (u32, Response);

impl fmt::Debug for Active {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, answer, ops, step, sector, sectors, parts, .. } = self;
        write!(
            f,
            "request {index}, {answer:?}: {ops:?} from {step}, {sectors} sectors at {sector}, {} parts",
            parts.len()
        )
    }
}

enum Outcome {
    Answer(Due),
    Go(Active),
    /// A read with a page that is not the back's to use: the disk gets it where its bytes are
    /// copied, as they are where all of its pages would be more than may be mapped. Else it is
    /// answered.
    IfCopied(Active, Due),
}

/// Whether this order is a copied read's.
fn is_of(io: &Io, active: &Active) -> bool {
    let copied = matches!(io.memory, IoMemory::Private(_));
    copied && io.op == IoOp::Read && (io.sector, io.sectors) == (active.sector, active.sectors)
}

/// A request that may be taken, with its place on the ring.
#[derive(Clone, Copy)]
pub struct Asked {
    pub index: u32,
    pub request: Request,
    pub again: bool,
}

/// The requests of one queue, in one connection.
#[derive(Default)]
struct Lane {
    gone: bool,
    /// Requests that the poll may take.
    asked: Vec<Asked>,
    /// The requests after validation, from the moment all were taken, without those that the back
    /// was already seen to take. Only as many count as were taken.
    evaluated: Option<VecDeque<Outcome>>,
    /// Number of these that the back was seen to take.
    seen: usize,
    /// The disk has its batch.
    started: bool,
    /// Requests that the disk has completed, and that the back must report to the guest.
    ended: Vec<(Active, bool)>,
    active: BTreeMap<u64, Active>,
    /// A barrier that has not started.
    barrier: Option<Active>,
    due: Vec<Due>,
    unstarted: Vec<Io>,
    waiting: Vec<Io>,
    done: Vec<Done>,
}

pub struct Model {
    pub image: DiskFigures,
    pub known_figures: DiskFigures,
    pub barrier: bool,
    pub max_indirect: u16,
    pub path: PathName,
    region: LocalRegion,
    memory: Vec<u8>,
    pub rights: Vec<(u32, Right)>,
    /// References of the rings' pages.
    pub rings: Vec<u32>,
    /// A request names a ring page as its data.
    names_ring: Cell<bool>,
    lanes: Vec<Lane>,
    pub meanwhile: Option<Meanwhile>,
    /// The back's process ends at this call, counted from now.
    pub dies_in: Option<u32>,
    /// Orders are done as they are started.
    pub at_once: bool,
    /// The disk completes nothing.
    pub hangs: bool,
    /// The result of the next requests to the disk.
    pub outcome: Result<(), IoError>,
    /// A flush of this connection failed, and the back has seen that: its others fail too.
    flush_failed: bool,
    /// Bits: which requests of a queue that is dropped are executed nevertheless.
    pub lands: u8,
    reads: u64,
}

/// The model, shared by all that have a way to it.
pub type ModelDisk = SharedDisk<Model>;

impl Model {
    /// A disk for a guest with this memory.
    pub fn disk(image: DiskFigures, path: PathName, region: LocalRegion) -> ModelDisk {
        let mut memory = vec![0; region.len()];
        assert!(region.copy_out(0, &mut memory));
        SharedDisk::of(Self {
            image,
            known_figures: image,
            barrier: false,
            max_indirect: 0,
            path,
            region,
            memory,
            rights: Vec::new(),
            rings: Vec::new(),
            names_ring: Cell::new(false),
            lanes: Vec::new(),
            meanwhile: None,
            dies_in: None,
            at_once: false,
            hangs: false,
            outcome: Ok(()),
            flush_failed: false,
            lands: 0,
            reads: 0,
        })
    }
}

fn nth(lands: u8, k: usize) -> bool {
    lands >> (k % 8) & 1 == 1
}

impl Model {
    /// The indices of the last `n` queues of the disk.
    pub fn last_lanes(&self, n: usize) -> usize {
        self.lanes.len() - n
    }

    /// The guest writes to its memory.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.region.copy_in(at, bytes));
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Checks that only allowed writes changed the guest's memory.
    pub fn compare(&self) {
        let mut now = vec![0; self.memory.len()];
        assert!(self.region.copy_out(0, &mut now));
        if let Some(at) = (0..now.len()).find(|at| now[*at] != self.memory[*at]) {
            let (is, was) = (now[at], self.memory[at]);
            panic!("byte {at:#x} of the guest's memory is {is:#x}, and should be {was:#x}");
        }
    }

    /// It is unknown which bytes of a disk reached the guest: takes its memory as correct.
    pub fn forget_memory(&mut self) {
        assert!(self.region.copy_out(0, &mut self.memory));
    }

    /// Called before a poll, with the requests that it may take, in order.
    pub fn before_poll(&mut self, lane: usize, asked: impl Iterator<Item = Asked>) {
        let lane = &mut self.lanes[lane];
        (lane.asked, lane.evaluated, lane.seen, lane.started) = (asked.collect(), None, 0, false);
    }

    /// The requests that a poll took, as it read them.
    pub fn taken(&mut self, lane: usize, n: usize) -> Vec<Asked> {
        let asked = &self.lanes[lane].asked;
        assert!(n <= asked.len(), "{n} requests taken, of {}", asked.len());
        asked[..n].to_vec()
    }

    /// The answers that are due after a poll that took `taken` requests.
    pub fn after_poll(&mut self, lane: usize, taken: usize) -> Vec<Due> {
        self.deliver(lane);
        let this = &mut self.lanes[lane];
        assert!(this.seen <= taken, "an order of a request that was not taken");
        let left = taken - this.seen;
        let evaluated = this.evaluated.take().unwrap_or_default();
        for outcome in evaluated.into_iter().take(left) {
            assert!(this.barrier.is_none(), "a request is taken behind a barrier");
            match outcome {
                Outcome::Answer(due) | Outcome::IfCopied(_, due) => this.due.push(due),
                Outcome::Go(active) if active.alone => this.barrier = Some(active),
                Outcome::Go(active) => panic!("taken, and its disk was never asked: {active:?}"),
            }
        }
        assert!(this.unstarted.is_empty(), "these are not started before the next request");
        std::mem::take(&mut this.due)
    }

    /// The answers that a back that ends in good order must have given since its last poll.
    pub fn due_at_end(&mut self, lane: usize) -> Vec<Due> {
        std::mem::take(&mut self.lanes[lane].due)
    }

    /// Parts of requests that are in flight.
    pub fn parts(&self, lane: usize) -> usize {
        let lane = &self.lanes[lane];
        lane.active.values().chain(&lane.barrier).map(|active| active.parts.len()).sum()
    }

    /// Whether a request named a page of its guest's ring, so that nothing else can be checked
    /// here.
    pub fn names_ring(&self) -> bool {
        self.names_ring.get()
    }

    /// The front is gone, and so are its rings.
    pub fn disconnected(&mut self) {
        if self.names_ring.take() {
            self.forget_memory();
        }
        self.flush_failed = false;
        self.rings.clear();
    }

    /// The page of a grant reference, if the back may use it in this way.
    fn page(&self, gref: u32, write: bool) -> Option<usize> {
        if self.rings.contains(&gref) {
            self.names_ring.set(true);
        }
        let fits = |right| right == Right::Write || right == Right::Read && !write;
        self.rights.iter().position(|&(r, right)| r == gref && fits(right))
    }

    fn parts_bytes(&self, parts: &[Part]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in parts {
            let at = part.page? * PAGE_SIZE + part.at;
            bytes.extend_from_slice(&self.memory[at..at + part.len]);
        }
        Some(bytes)
    }

    /// The result that docs/protocol 5.3 prescribes for a request.
    fn evaluate(&self, Asked { index, request, .. }: &Asked) -> Outcome {
        let op = match request {
            Request::ReadWrite(r) => r.op,
            Request::Indirect(r) => r.op,
            Request::Discard(_) => OP_DISCARD,
            Request::Other { op, .. } => *op,
        };
        let answer = |status| Response { id: request.id(), op, status };
        match self.outcome(request) {
            Err(status) => Outcome::Answer((*index, answer(status))),
            Ok((ops, alone, sector, sectors, parts)) => {
                let copied = if ops.contains(&IoOp::Write) { self.parts_bytes(&parts) } else { None };
                let lacks = parts.iter().any(|part| part.page.is_none());
                let active = Active {
                    index: *index,
                    answer: answer(RSP_OKAY),
                    ops,
                    step: 0,
                    alone,
                    sector,
                    sectors,
                    parts,
                    copies: self.path == PathName::Copy,
                    copied,
                };
                match lacks && self.path != PathName::Copy {
                    true => Outcome::IfCopied(active, (*index, answer(RSP_ERROR))),
                    false => Outcome::Go(active),
                }
            }
        }
    }

    #[allow(clippy::type_complexity)] // one use
    fn outcome(&self, request: &Request) -> Result<(Vec<IoOp>, bool, u64, u64, Vec<Part>), i16> {
        let units = u64::from(self.known_figures.sector_size) / SECTOR_BYTES as u64;
        let on_disk = |sector: u64, n: u64| {
            let end = u128::from(sector) + u128::from(n);
            n > 0
                && sector.is_multiple_of(units)
                && n.is_multiple_of(units)
                && end <= self.known_figures.sectors.into()
        };
        let (op, sector, segments) = match request {
            Request::Other { .. } => return Err(RSP_EOPNOTSUPP),
            Request::Discard(r) => {
                let secure = r.flag & DISCARD_SECURE != 0;
                let can = self.known_figures.discard.is_some_and(|d| !secure || d.secure)
                    && !self.known_figures.read_only;
                return match (can, on_disk(r.sector, r.nr_sectors)) {
                    (false, _) => Err(RSP_EOPNOTSUPP),
                    (_, false) => Err(RSP_ERROR),
                    _ => Ok((vec![IoOp::Discard { secure }], false, r.sector, r.nr_sectors, Vec::new())),
                };
            }
            Request::ReadWrite(r) => {
                let segments = r.seg.get(..r.nr_segments.into()).filter(|s| s.len() <= SEGMENTS_MAX);
                (r.op, r.sector, segments.ok_or(RSP_ERROR)?.to_vec())
            }
            Request::Indirect(_) if self.max_indirect == 0 => return Err(RSP_EOPNOTSUPP),
            Request::Indirect(r) => {
                let n = usize::from(r.nr_segments);
                if n == 0 || r.nr_segments > self.max_indirect || ![OP_READ, OP_WRITE].contains(&r.op) {
                    return Err(RSP_ERROR);
                }
                let mut list = Vec::new();
                for gref in r.grefs.iter().take(n.div_ceil(PAGE_SIZE / Segment::SIZE)) {
                    let at = self.page(*gref, false).ok_or(RSP_ERROR)? * PAGE_SIZE;
                    let (entries, _) = self.memory[at..at + PAGE_SIZE].as_chunks();
                    list.extend(entries.iter().map(|bytes| Segment::from_bytes(*bytes)));
                }
                list.truncate(n);
                (r.op, r.sector, list)
            }
        };
        let alone = op == OP_WRITE_BARRIER;
        if alone && !(self.barrier && self.known_figures.flush)
            || op == OP_FLUSH_DISKCACHE && !self.known_figures.flush
        {
            return Err(RSP_EOPNOTSUPP);
        }
        let ops = match (op, segments.is_empty()) {
            (OP_READ, false) => vec![IoOp::Read],
            (OP_WRITE, false) => vec![IoOp::Write],
            (OP_WRITE_BARRIER | OP_FLUSH_DISKCACHE, true) => {
                return Ok((vec![IoOp::Flush], alone, 0, 0, Vec::new()));
            }
            (OP_WRITE_BARRIER | OP_FLUSH_DISKCACHE, false) => vec![IoOp::Flush, IoOp::Write, IoOp::Flush],
            _ => return Err(RSP_ERROR),
        };
        let reads = op == OP_READ;
        let mut parts = Vec::new();
        let mut total = 0;
        for segment in segments {
            let (first, last) = (u64::from(segment.first_sect), u64::from(segment.last_sect));
            if first > last || last > 7 || !(last - first + 1).is_multiple_of(units) {
                return Err(RSP_ERROR);
            }
            let (at, len) = (first as usize * SECTOR_BYTES, (last - first + 1) as usize * SECTOR_BYTES);
            parts.push(Part { gref: segment.gref, page: self.page(segment.gref, reads), at, len });
            total += last - first + 1;
        }
        let wrong = !reads && self.known_figures.read_only || !on_disk(sector, total);
        // Where a read is copied, its pages are checked when there are bytes.
        if wrong || !reads && parts.iter().any(|part| part.page.is_none()) {
            return Err(RSP_ERROR);
        }
        Ok((ops, alone, sector, total, parts))
    }

    /// The taking of this poll is over.
    fn evaluate_all(&mut self, lane: usize) {
        if self.lanes[lane].evaluated.is_none() {
            let evaluated = self.lanes[lane].asked.iter().map(|asked| self.evaluate(asked)).collect();
            self.lanes[lane].evaluated = Some(evaluated);
        }
    }

    /// The next request that the disk must get; `io` is what it got. Requests before it are
    /// answered at once. All are validated.
    fn next(&mut self, lane: usize, io: &Io) -> Active {
        let this = &mut self.lanes[lane];
        loop {
            let outcome = this.evaluated.as_mut().and_then(VecDeque::pop_front);
            this.seen += 1;
            match outcome.expect("an order without a request") {
                Outcome::Answer(due) => this.due.push(due),
                Outcome::IfCopied(active, due) if !is_of(io, &active) => {
                    drop(active);
                    this.due.push(due);
                }
                Outcome::Go(active) | Outcome::IfCopied(active, _) => {
                    assert!(!this.started || active.alone, "a request begins behind its poll's batch");
                    return active;
                }
            }
        }
    }

    /// The written bytes are the guest's.
    fn see_write(&self, active: &Active, io: &Io) {
        if io.op == IoOp::Write {
            let mut bytes = vec![0; io.memory.len()];
            io.memory.read_into(&mut bytes);
            let expected = active.copied.clone().or_else(|| self.parts_bytes(&active.parts));
            assert!(
                expected.as_ref() == Some(&bytes),
                "other bytes than the guest's are written: {active:?}"
            );
        }
    }

    /// Does one of the orders that wait. False: there are none.
    pub fn perform_one(&mut self, lane: usize, which: usize) -> bool {
        let n = self.lanes[lane].waiting.len();
        if n > 0 {
            let io = self.lanes[lane].waiting.remove(which % n);
            self.perform(lane, io);
        }
        n > 0
    }

    fn perform(&mut self, lane: usize, mut io: Io) {
        let outcome = self.outcome;
        if self.names_ring() {
            match io.op {
                IoOp::Read => io.memory.fill_from(&vec![self.reads as u8; io.memory.len()]),
                IoOp::Write => io.memory.read_into(&mut vec![0; io.memory.len()]),
                IoOp::Flush | IoOp::Discard { .. } => {}
            }
            return self.lanes[lane].done.push(Done { io, outcome });
        }
        let active = &self.lanes[lane].active[&io.token];
        self.see_write(active, &io);
        if io.op == IoOp::Read {
            self.reads += 1;
            let seed = self.reads.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let bytes: Vec<u8> = (0..io.memory.len()).map(|k| (k ^ k >> 8 ^ seed as usize) as u8).collect();
            // A disk that fails has done a part of it.
            io.memory.fill_from(&bytes);
            if active.copies {
                self.lanes[lane].active.get_mut(&io.token).expect("as above").copied = Some(bytes);
            } else {
                let parts = active.parts.clone();
                self.land(&parts, &bytes);
            }
        }
        self.lanes[lane].done.push(Done { io, outcome });
    }

    /// Bytes of a read come to the guest's pages, those that are the back's to write. False: not
    /// all are.
    fn land(&mut self, parts: &[Part], bytes: &[u8]) -> bool {
        let (mut at, mut all) = (0, true);
        for part in parts {
            match part.page {
                Some(page) => {
                    let to = page * PAGE_SIZE + part.at;
                    self.memory[to..to + part.len].copy_from_slice(&bytes[at..at + part.len]);
                }
                None => all = false,
            }
            at += part.len;
        }
        all
    }

    /// The back has seen a completion: delivers data, and answers.
    fn deliver(&mut self, lane: usize) {
        for (mut active, lands) in std::mem::take(&mut self.lanes[lane].ended) {
            if lands {
                active.parts.iter_mut().for_each(|part| part.page = self.page(part.gref, true));
                let bytes = active.copied.take().unwrap_or_default();
                if !self.land(&active.parts, &bytes) {
                    active.answer.status = RSP_ERROR;
                }
            }
            self.lanes[lane].due.push((active.index, active.answer));
        }
    }
}

impl shared_disk::Model for Model {
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError> {
        assert!(how.writable || self.known_figures.read_only, "the toolstack lets its guest write");
        assert!(self.lanes.iter().all(|lane| lane.gone), "it is opened while somebody has a way to it");
        Ok(if how.native_sectors { self.image } else { self.image.in_sectors_of_512() })
    }
    fn sectors(&mut self) -> Option<u64> {
        Some(self.image.sectors)
    }
    fn close(&mut self) {
        assert!(self.lanes.iter().all(|lane| lane.gone), "it is closed while somebody has a way to it");
    }
    fn lane(&mut self) -> usize {
        self.lanes.push(Lane::default());
        self.lanes.len() - 1
    }
    fn wait(&mut self, lane: usize) -> bool {
        assert!(self.lanes[lane].unstarted.is_empty(), "it sleeps for an order that is not started");
        if !self.hangs {
            self.perform_one(lane, 0);
        }
        !self.hangs
    }

    fn submit(&mut self, lane: usize, io: Io) {
        perhaps_die(&mut self.dies_in);
        let this = &mut self.lanes[lane];
        assert!(!this.gone);
        let is_new = !this.active.contains_key(&io.token);
        if is_new {
            self.deliver(lane);
            if self.lanes[lane].barrier.is_none() {
                self.evaluate_all(lane);
            }
        }
        if self.names_ring() {
            return self.lanes[lane].unstarted.push(io);
        }
        if is_new {
            let this = &mut self.lanes[lane];
            let active = match this.barrier.take() {
                Some(barrier) => barrier,
                None => self.next(lane, &io),
            };
            let this = &mut self.lanes[lane];
            let alone =
                this.active.values().all(|other| !other.alone) && (!active.alone || this.active.is_empty());
            assert!(alone, "a barrier goes alone");
            this.active.insert(io.token, active);
        }
        let Some(active) = self.lanes[lane].active.get_mut(&io.token) else { unreachable!() };
        if matches!(io.op, IoOp::Read | IoOp::Write) {
            active.copies = matches!(io.memory, IoMemory::Private(_));
            // Else it is what is there when the disk checks.
            active.copied.take_if(|_| !active.copies);
        }
        let active = &self.lanes[lane].active[&io.token];
        assert_eq!(Some(&io.op), active.ops.get(active.step), "of {active:?}");
        let (sector, sectors) = if io.op == IoOp::Flush { (0, 0) } else { (active.sector, active.sectors) };
        assert_eq!((io.sector, io.sectors), (sector, sectors), "of {active:?}");
        if matches!(io.op, IoOp::Read | IoOp::Write) {
            // Pages beyond those that may be mapped are copied.
            assert!(active.copies || self.path != PathName::Copy);
            assert_eq!(io.memory.len() as u64, sectors * SECTOR_BYTES as u64);
        } else {
            assert!(io.memory.is_empty());
        }
        self.see_write(active, &io);
        self.lanes[lane].unstarted.push(io);
        match self.meanwhile.take() {
            Some(Meanwhile::Page(page, with)) => self.write(page * PAGE_SIZE, &[with; PAGE_SIZE]),
            Some(Meanwhile::Slot(ring, index, words)) => {
                ring.write(index, &words);
                // A taken request is no longer the guest's.
                let Lane { asked, evaluated, .. } = &mut self.lanes[lane];
                let mut later = asked.iter_mut().filter(|_| evaluated.is_none());
                if let Some(asked) = later.find(|asked| !asked.again && asked.index == index) {
                    asked.request = ring.request(index);
                }
            }
            None => {}
        }
    }

    fn start(&mut self, lane: usize) {
        self.deliver(lane);
        self.evaluate_all(lane);
        self.lanes[lane].started = true;
        let started = std::mem::take(&mut self.lanes[lane].unstarted);
        if self.at_once {
            started.into_iter().for_each(|io| self.perform(lane, io));
        } else {
            self.lanes[lane].waiting.extend(started);
        }
    }

    fn complete(&mut self, lane: usize, done: &mut Vec<Done>) {
        perhaps_die(&mut self.dies_in);
        self.deliver(lane);
        let new = std::mem::take(&mut self.lanes[lane].done);
        if self.names_ring() {
            return done.extend(new);
        }
        let failed = Err(IoError::Failed);
        self.flush_failed |= new.iter().any(|one| one.io.op == IoOp::Flush && one.outcome == failed);
        let this = &mut self.lanes[lane];
        for one in &new {
            let fails = self.flush_failed && one.io.op == IoOp::Flush && one.outcome.is_ok();
            let outcome = if fails { failed } else { one.outcome };
            let active = this.active.get_mut(&one.io.token).expect("an order of its own");
            active.step += 1;
            if outcome.is_ok() && active.step < active.ops.len() {
                continue;
            }
            let mut active = this.active.remove(&one.io.token).expect("as above");
            active.answer.status = match outcome {
                Ok(()) => RSP_OKAY,
                Err(IoError::Failed) => RSP_ERROR,
                Err(IoError::NotSupported) => RSP_EOPNOTSUPP,
            };
            let lands = outcome.is_ok() && one.io.op == IoOp::Read && active.copies;
            this.ended.push((active, lands));
        }
        done.extend(new);
    }

    /// Executes some of the pending requests when a queue ends.
    fn end(&mut self, lane: usize) {
        let this = &mut self.lanes[lane];
        this.gone = true;
        let left: Vec<Io> = this.waiting.drain(..).chain(this.unstarted.drain(..)).collect();
        for (k, io) in left.into_iter().enumerate() {
            if nth(self.lands, k) {
                self.perform(lane, io);
            }
        }
        let due = std::mem::take(&mut self.lanes[lane].due);
        self.lanes[lane] = Lane { gone: true, due, ..Lane::default() };
    }
}
