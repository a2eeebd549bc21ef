//! The requests that a front has in hand: the parts in which each goes to a ring, the requests that
//! wait, and the parts that are sent again.
//!
//! ```text
//!   add --(overlaps an earlier change?)--> waiting --'
//!    '--> stages: pieces --> ready --ask_first--> asked --answered--> last of its stage? next stage, or done
//!                              ^                    |
//!                              '------- lost -------'        the back closed; no one knows whether it was done
//!
//!   read   [read]                                   of whole sectors; the bytes that were wanted are cut out
//!   write  ([read the sectors at its edges]) [write]
//!   flush  [flush]                                  once the changes that came before it are done
//!   zeroes [discard, or write zeroes]*              in parts, few of them at a time; parts of sectors at its edges are writes beside it
//! ```
//! A range that is to read as zeroes is never read. Its whole units are discarded, where the disk
//! says that these read as zeroes then; what is left of it, and all of it elsewhere, is written. (A
//! hole is refused elsewhere, as Linux's block devices refuse it: to write it would take the room
//! that it was to give back.) However long it is, a few parts of it are asked at a time, and
//! others' pieces go between them; it ends early, when it is asked to.
//!
//! Invariants: of two requests that change the same sector the later one begins when the earlier
//! one is done, so that no part of a sector is lost to a neighbour, and doing one again undoes
//! nothing. Reads wait for no one. A piece is in `ready` or among those that were asked, never in
//! both. Every request is done once.
//!
//! A request that no one waits for any more is interrupted: the pieces that a back has are
//! answered, those that it has not are never asked, and those that it loses are not asked again.
//!
//! Reads, writes and discards may be done twice, so what a back did not answer is simply asked
//! again, of the next one; a flush follows the changes that it covers as ever. Sectors of another
//! size, which only another disk has, fail what is in hand. The next back does the part of a range
//! of zeroes that a back has not done, as it can.
//!
//! What a back may do: answer a piece with anything. A damaged read is its user's to find out.

use super::shared_disk::{DiskOp, DiskRequest, Done, Interrupt};
use pregrant::blk::disk::{Discard, DiskFigures, IoError, SECTOR_BYTES};
use pregrant::blk::front::{Ask, NotAsked};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The sizes of the parts into which a range of zeroes is cut.
struct Parts {
    /// Number of parts of one range that are in flight at the same time.
    at_once: usize,
    /// Largest number of bytes of a part that is discarded; more if the disk's units are larger.
    discarded: u64,
    /// Largest number of bytes of a part that is written.
    written: u64,
}

impl Default for Parts {
    fn default() -> Self {
        Self { at_once: 8, discarded: 1 << 30, written: 256 << 10 }
    }
}

/// The operation of one part of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PieceOp {
    Read,
    Write,
    Flush,
    Discard,
    /// Writes zeroes.
    Zero,
}

/// The content of one request on the ring, or of several if it is longer than a request can be.
#[derive(Debug)]
struct Piece {
    place: usize,
    op: PieceOp,
    /// The bytes of the disk, which are whole sectors.
    bytes: Range<u64>,
}

/// The step at which a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Read,
    Edges,
    Write,
    Flush,
    Zero,
}

/// A request that is not finished.
struct InHand {
    /// The number of the request, in the order in which requests arrived.
    number: u64,
    done: Done,
    /// The number and the weight of the requests that are settled together with this one.
    share: (usize, usize),
    /// The first stage of the request.
    first: Stage,
    stage: Stage,
    /// Number of parts of the current stage that have no answer.
    left: usize,
    failed: Option<IoError>,
    /// The request's bytes, and the whole sectors that contain them.
    bytes: Range<u64>,
    sectors: Range<u64>,
    /// The data of whole sectors, from byte `buffer_at` of the disk on.
    buffer: Vec<u8>,
    buffer_at: u64,
    /// The bytes of a write that does not fill whole sectors.
    patch: Vec<u8>,
    /// For a flush: the number of changes that it must make durable.
    covers: u64,
    interrupt: Interrupt,
    zeroes: Option<Zeroes>,
}

/// A range of whole sectors that must read as zeroes.
struct Zeroes {
    /// True if the range must use no space on the backing (a hole).
    hole: bool,
    /// The rest of the range, which is not cut into parts yet.
    rest: VecDeque<(PieceOp, Range<u64>)>,
}

impl Zeroes {
    /// Plans by which operations these bytes, whole sectors, become zeroes on this disk.
    fn plan(&self, figures: &DiskFigures, bytes: Range<u64>) -> Result<[(PieceOp, Range<u64>); 3], IoError> {
        let zeroing = zeroing(figures);
        if self.hole && zeroing.is_none() {
            return Err(IoError::NotSupported);
        }
        let inner = zeroing.and_then(|discard| units(figures, &discard, &bytes));
        let inner = inner.unwrap_or(bytes.end..bytes.end);
        Ok([
            (PieceOp::Zero, bytes.start..inner.start),
            (PieceOp::Discard, inner.clone()),
            (PieceOp::Zero, inner.end..bytes.end),
        ])
    }

    /// Removes the next part from the range, and returns it.
    fn next(&mut self, figures: &DiskFigures, parts: &Parts) -> Option<(PieceOp, Range<u64>)> {
        while self.rest.front().is_some_and(|(_, bytes)| bytes.is_empty()) {
            self.rest.pop_front();
        }
        let (op, bytes) = self.rest.front_mut()?;
        let most = match figures.discard {
            Some(discard) if *op == PieceOp::Discard => {
                let unit = unit(figures, &discard);
                (parts.discarded / unit * unit).max(unit)
            }
            _ => parts.written,
        };
        let piece = bytes.start..bytes.end.min(bytes.start.saturating_add(most));
        bytes.start = piece.end;
        Some((*op, piece))
    }
}

/// Returns the disk's discard parameters if discarded sectors read as zeroes and units are whole
/// sectors; otherwise None.
fn zeroing(figures: &DiskFigures) -> Option<Discard> {
    let whole = |bytes: u32| bytes.is_multiple_of(figures.sector_size);
    figures.discard.filter(|discard| {
        let units = whole(discard.granularity) || discard.granularity < figures.sector_size;
        discard.zeroes && units && whole(discard.alignment)
    })
}

/// Returns the number of bytes that the disk discards as a unit.
fn unit(figures: &DiskFigures, discard: &Discard) -> u64 {
    u64::from(discard.granularity.max(figures.sector_size))
}

/// Returns the whole discard units within these bytes, if there are any.
fn units(figures: &DiskFigures, discard: &Discard, bytes: &Range<u64>) -> Option<Range<u64>> {
    let unit = unit(figures, discard);
    let offset = u64::from(discard.alignment) % unit;
    let up = |at: u64| at.saturating_sub(offset).next_multiple_of(unit) + offset;
    let end = bytes.end.checked_sub(offset)? / unit * unit + offset;
    Some(up(bytes.start)..end).filter(|inner| inner.start < inner.end)
}

/// Splits `done` into `parts` completions; it is called when all of them are.
fn joined(done: Done, parts: usize) -> impl Iterator<Item = Done> {
    let state = Arc::new(Mutex::new((parts, None::<IoError>, Some(done))));
    (0..parts).map(move |_| {
        let state = Arc::clone(&state);
        let part = move |outcome: Result<&[u8], IoError>| {
            let mut all = state.lock().unwrap_or_else(PoisonError::into_inner);
            all.0 -= 1;
            all.1 = all.1.or(outcome.err());
            let failed = all.1;
            let last = if all.0 == 0 { all.2.take() } else { None };
            drop(all);
            if let Some(done) = last {
                done(failed.map_or(Ok(&[]), Err));
            }
        };
        Box::new(part) as Done
    })
}

impl InHand {
    /// Returns the range of the buffer that holds these bytes of the disk.
    fn part(&self, bytes: &Range<u64>) -> Range<usize> {
        (bytes.start - self.buffer_at) as usize..(bytes.end - self.buffer_at) as usize
    }
}

/// Cuts requests into parts, orders writes to the same sector, and repeats parts that a closed back
/// did not answer.
#[derive(Default)]
pub(super) struct Schedule {
    places: Vec<Option<InHand>>,
    free: Vec<usize>,
    /// The numbers and sectors of requests that change sectors, in order of arrival.
    changes: VecDeque<(u64, Range<u64>)>,
    /// The indices of requests that wait for earlier ones, in order of arrival.
    waiting: VecDeque<usize>,
    ready: VecDeque<Piece>,
    /// For each tag, the part of a request that was sent with it.
    asked: Vec<Option<Piece>>,
    free_tags: Vec<usize>,
    came: u64,
    /// Number of changes that were made, wholly or in part, and how many of them a flush made
    /// durable.
    changed: u64,
    flushed: u64,
    /// The number of requests that were done since the last [`settled`](Self::settled), and their
    /// weight.
    settled: (usize, usize),
    figures: Option<DiskFigures>,
    parts: Parts,
    /// Zeroes for one write. They are allocated when they are first needed.
    zeroes: Vec<u8>,
}

impl Schedule {
    /// Sets the disk's figures, which hold from now on.
    pub(super) fn set_figures(&mut self, figures: DiskFigures) {
        if self.figures.is_some_and(|before| before.units() != figures.units()) {
            self.fail_all();
        }
        let before = self.figures.replace(figures);
        if before.is_some_and(|before| before.discard != figures.discard) {
            self.plan_again(&figures);
        }
    }

    /// Plans again how to write the unsent parts of ranges of zeroes.
    fn plan_again(&mut self, figures: &DiskFigures) {
        let Self { ready, places, .. } = self;
        ready.retain(|piece| {
            let request = places[piece.place].as_mut();
            let Some(InHand { zeroes: Some(zeroes), left, .. }) = request else { return true };
            zeroes.rest.push_front((piece.op, piece.bytes.clone()));
            *left -= 1;
            false
        });
        for place in 0..self.places.len() {
            let Some(request) = &mut self.places[place] else { continue };
            let Some(zeroes) = &mut request.zeroes else { continue };
            let rest = std::mem::take(&mut zeroes.rest);
            let started = !rest.is_empty() || request.left > 0;
            for (_, bytes) in rest {
                match zeroes.plan(figures, bytes) {
                    Ok(parts) => zeroes.rest.extend(parts),
                    Err(e) => request.failed = request.failed.or(Some(e)),
                }
            }
            if started {
                self.go_on(place);
            }
        }
    }

    /// Number of requests.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if sectors were changed that no flush has covered.
    pub(super) fn is_dirty(&self) -> bool {
        self.changed > self.flushed
    }

    /// Number of parts that were sent and have no answer.
    pub(super) fn in_flight(&self) -> usize {
        self.asked.len() - self.free_tags.len()
    }

    /// True if a part can be sent.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the number of requests that were done since the last call, and their weight.
    pub(super) fn settled(&mut self) -> (usize, usize) {
        std::mem::take(&mut self.settled)
    }

    /// Accepts a request.
    pub(super) fn add(&mut self, request: DiskRequest) {
        let share = (1, request.weight());
        let DiskRequest { op, interrupt, done } = request;
        let (at, len) = match &op {
            DiskOp::Read { at, len } => (*at, *len as u64),
            DiskOp::Write { at, bytes } => (*at, bytes.len() as u64),
            DiskOp::Flush => (0, 0),
            DiskOp::PunchHole { at, len } | DiskOp::Zero { at, len } => (*at, *len),
        };
        let figures = self.figures.unwrap_or(DiskFigures::of(0));
        let end =
            at.checked_add(len).filter(|end| *end <= figures.sectors.saturating_mul(SECTOR_BYTES as u64));
        let refused = match &op {
            _ if end.is_none() => Some(Err(IoError::Failed)),
            DiskOp::PunchHole { .. } if zeroing(&figures).is_none() => Some(Err(IoError::NotSupported)),
            DiskOp::Flush => None,
            _ if len == 0 => Some(Ok(&[][..])),
            _ => None,
        };
        if let Some(outcome) = refused {
            self.settle(share);
            return done(outcome);
        }
        let hole = match op {
            DiskOp::PunchHole { .. } => true,
            DiskOp::Zero { .. } => false,
            op => return self.take(at..at + len, op, None, interrupt, done, share),
        };
        // Whole sectors become zeroes; the partial sectors at both ends are written.
        let unit = u64::from(figures.sector_size);
        let written = |bytes: &Range<u64>| DiskOp::Write {
            at: bytes.start,
            bytes: vec![0; (bytes.end - bytes.start) as usize],
        };
        let whole = at.next_multiple_of(unit)..(at + len) / unit * unit;
        if whole.is_empty() {
            return self.take(at..at + len, written(&(at..at + len)), None, interrupt, done, share);
        }
        let edges = [at..whole.start, whole.end..at + len];
        let edges = edges.into_iter().filter(|edge| !edge.is_empty());
        let mut dones = joined(done, edges.clone().count() + 1);
        let mut next = || dones.next().unwrap_or_else(|| Box::new(|_| ()));
        let zeroes = Zeroes { hole, rest: VecDeque::new() };
        let (at, len) = (whole.start, whole.end - whole.start);
        self.take(whole, DiskOp::Zero { at, len }, Some(zeroes), interrupt.clone(), next(), share);
        for edge in edges {
            let op = written(&edge);
            self.take(edge, op, None, interrupt.clone(), next(), (0, 0));
        }
    }

    /// Adds a request as [`add`](Self::add) does, once the disk's figures are known.
    fn take(
        &mut self,
        bytes: Range<u64>,
        op: DiskOp,
        zeroes: Option<Zeroes>,
        interrupt: Interrupt,
        done: Done,
        share: (usize, usize),
    ) {
        let unit = self.figures.map_or(SECTOR_BYTES as u64, |figures| figures.sector_size.into());
        let sectors = bytes.start - bytes.start % unit..bytes.end.next_multiple_of(unit);
        let all = (sectors.end - sectors.start) as usize;
        let (first, buffer, patch) = match op {
            DiskOp::Read { .. } => (Stage::Read, vec![0; all], Vec::new()),
            DiskOp::Write { bytes: patch, .. } if bytes == sectors => (Stage::Write, patch, Vec::new()),
            DiskOp::Write { bytes: patch, .. } => (Stage::Edges, vec![0; all], patch),
            DiskOp::Flush => (Stage::Flush, Vec::new(), Vec::new()),
            DiskOp::PunchHole { .. } | DiskOp::Zero { .. } => (Stage::Zero, Vec::new(), Vec::new()),
        };
        let request = InHand {
            number: self.came,
            done,
            share,
            first,
            stage: first,
            left: 0,
            failed: None,
            buffer,
            buffer_at: sectors.start,
            patch,
            covers: 0,
            interrupt,
            zeroes,
            bytes,
            sectors,
        };
        self.came += 1;
        let waits = self.waits(&request);
        if matches!(first, Stage::Edges | Stage::Write | Stage::Zero) {
            self.changes.push_back((request.number, request.sectors.clone()));
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(request);
        if waits {
            self.waiting.push_back(place);
        } else {
            self.begin(place);
        }
    }

    fn settle(&mut self, (requests, bytes): (usize, usize)) {
        self.settled.0 += requests;
        self.settled.1 += bytes;
    }

    /// True if the request must wait for earlier changes.
    fn waits(&self, request: &InHand) -> bool {
        let mut earlier = self.changes.iter().take_while(|(number, _)| *number < request.number);
        match request.first {
            Stage::Read => false,
            Stage::Flush => earlier.next().is_some(),
            _ => earlier.any(|(_, sectors)| {
                sectors.start < request.sectors.end && request.sectors.start < sectors.end
            }),
        }
    }

    /// Called when the first parts of the request can be sent.
    fn begin(&mut self, place: usize) {
        let Some(request) = &mut self.places[place] else { return };
        request.covers = self.changed;
        let (sectors, bytes) = (request.sectors.clone(), request.bytes.clone());
        match request.first {
            Stage::Read => self.stage(place, Stage::Read, PieceOp::Read, [sectors]),
            Stage::Write => self.stage(place, Stage::Write, PieceOp::Write, [sectors]),
            Stage::Flush => self.stage(place, Stage::Flush, PieceOp::Flush, [sectors]),
            Stage::Edges => {
                let unit = self.figures.map_or(SECTOR_BYTES as u64, |figures| figures.sector_size.into());
                let head = (bytes.start > sectors.start).then_some(sectors.start);
                let tail = (bytes.end < sectors.end).then_some(sectors.end - unit);
                let tail = tail.filter(|tail| head != Some(*tail));
                let edges = [head, tail].into_iter().flatten().map(|at| at..at + unit);
                self.stage(place, Stage::Edges, PieceOp::Read, edges);
            }
            Stage::Zero => {
                let figures = self.figures.unwrap_or(DiskFigures::of(0));
                let planned = request
                    .zeroes
                    .as_mut()
                    .map(|zeroes| zeroes.plan(&figures, sectors).map(|parts| zeroes.rest.extend(parts)));
                request.failed = planned.and_then(Result::err);
                self.go_on(place);
            }
        }
    }

    /// Makes the next parts of a range of zeroes ready to be sent. If none is left, the range is
    /// done.
    fn go_on(&mut self, place: usize) {
        let figures = self.figures.unwrap_or(DiskFigures::of(0));
        let Some(request) = &mut self.places[place] else { return };
        let Some(zeroes) = &mut request.zeroes else { return };
        if request.interrupt.is_raised() {
            request.failed = request.failed.or(Some(IoError::Failed));
        }
        while request.failed.is_none()
            && request.left < self.parts.at_once
            && let Some((op, bytes)) = zeroes.next(&figures, &self.parts)
        {
            request.left += 1;
            self.ready.push_back(Piece { place, op, bytes });
        }
        if request.left == 0 {
            self.finish(place);
        }
    }

    fn stage(&mut self, place: usize, stage: Stage, op: PieceOp, all: impl IntoIterator<Item = Range<u64>>) {
        let Some(request) = &mut self.places[place] else { return };
        request.stage = stage;
        for bytes in all {
            request.left += 1;
            self.ready.push_back(Piece { place, op, bytes });
        }
    }

    /// True if the next part is a flush.
    pub(super) fn flush_is_next(&self) -> bool {
        self.ready.front().is_some_and(|piece| piece.op == PieceOp::Flush)
    }

    /// Removes the next part, which is not needed any more.
    pub(super) fn skip_first(&mut self) {
        if let Some(piece) = self.ready.pop_front() {
            self.over(&piece, Ok(()), |_| 0);
        }
    }

    /// Fails the next part, which can never be sent.
    pub(super) fn fail_first(&mut self) {
        if let Some(piece) = self.ready.pop_front() {
            self.over(&piece, Err(IoError::Failed), |_| 0);
        }
    }

    /// True if no one needs this part any more: its request was interrupted, or belongs to a range
    /// of zeroes that has failed.
    fn is_unwanted(&self, piece: &Piece) -> bool {
        self.places[piece.place].as_ref().is_some_and(|request| {
            request.interrupt.is_raised() || request.zeroes.is_some() && request.failed.is_some()
        })
    }

    /// Ends the parts of interrupted requests that no back has.
    pub(super) fn drop_interrupted(&mut self) {
        let mut k = 0;
        while let Some(piece) = self.ready.get(k) {
            if !self.is_unwanted(piece) {
                k += 1;
            } else if let Some(piece) = self.ready.remove(k) {
                // Parts that become ready by that come after all others.
                self.over(&piece, Err(IoError::Failed), |_| 0);
            }
        }
        let interrupted =
            |request: &Option<InHand>| request.as_ref().is_some_and(|request| request.interrupt.is_raised());
        while let Some(at) = self.waiting.iter().position(|place| interrupted(&self.places[*place])) {
            let Some(place) = self.waiting.remove(at) else { return };
            if let Some(request) = &mut self.places[place] {
                request.failed = Some(IoError::Failed);
            }
            self.finish(place);
        }
    }

    /// Sends the next part, or as much of it as fits in a request: `most` bytes, whole pages. A
    /// part that cannot be sent stays.
    pub(super) fn ask_first(
        &mut self,
        most: usize,
        submit: impl FnOnce(&Ask<'_>, u64) -> Result<(), NotAsked>,
    ) -> Result<(), NotAsked> {
        if self.ready.front().is_some_and(|piece| self.is_unwanted(piece)) {
            self.fail_first();
            return Ok(());
        }
        let Some(piece) = self.ready.front_mut() else { return Ok(()) };
        let Some(request) = &mut self.places[piece.place] else { return Ok(()) };
        let travels = matches!(piece.op, PieceOp::Read | PieceOp::Write | PieceOp::Zero);
        if piece.op == PieceOp::Zero {
            self.zeroes.resize(self.parts.written as usize, 0);
        }
        let most = if travels { most as u64 } else { u64::MAX };
        let now = piece.bytes.start..piece.bytes.end.min(piece.bytes.start.saturating_add(most));
        let sector = now.start / SECTOR_BYTES as u64;
        let sectors = (now.end - now.start) / SECTOR_BYTES as u64;
        let ask = match piece.op {
            PieceOp::Read => Ask::Read { sector, sectors: sectors as u32 },
            PieceOp::Write => Ask::Write { sector, bytes: &request.buffer[request.part(&now)] },
            PieceOp::Flush => Ask::Flush,
            PieceOp::Discard => Ask::Discard { sector, sectors, secure: false },
            PieceOp::Zero => Ask::Write { sector, bytes: &self.zeroes[..(now.end - now.start) as usize] },
        };
        let tag = self.free_tags.last().copied().unwrap_or(self.asked.len());
        submit(&ask, tag as u64)?;
        let asked = Piece { place: piece.place, op: piece.op, bytes: now.clone() };
        if now.end < piece.bytes.end {
            piece.bytes.start = now.end;
            request.left += 1;
        } else {
            self.ready.pop_front();
        }
        if self.free_tags.pop().is_none() {
            self.asked.push(None);
        }
        self.asked[tag] = Some(asked);
        Ok(())
    }

    /// Called when the request with this tag was answered; `copy_out` copies the bytes of a read.
    pub(super) fn answered(
        &mut self,
        tag: u64,
        outcome: Result<(), IoError>,
        copy_out: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let Some(piece) = self.asked.get_mut(tag as usize).and_then(Option::take) else { return };
        self.free_tags.push(tag as usize);
        self.over(&piece, outcome, copy_out);
    }

    fn over(
        &mut self,
        piece: &Piece,
        outcome: Result<(), IoError>,
        copy_out: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let Some(request) = &mut self.places[piece.place] else { return };
        request.interrupt.moved();
        let is_refused = piece.op == PieceOp::Discard && outcome == Err(IoError::NotSupported);
        if let Some(zeroes) = request.zeroes.as_mut().filter(|zeroes| is_refused && !zeroes.hole) {
            // A disk may discard in one place and not in another: there it is written, as where
            // nothing is discarded.
            zeroes.rest.push_front((PieceOp::Zero, piece.bytes.clone()));
        } else if let Err(e) = outcome {
            request.failed = request.failed.or(Some(e));
        } else if piece.op == PieceOp::Read {
            let part = request.part(&piece.bytes);
            copy_out(&mut request.buffer[part]);
        }
        request.left -= 1;
        if request.zeroes.is_some() {
            self.go_on(piece.place);
        } else if request.left == 0 {
            self.advance(piece.place);
        }
    }

    /// Starts the next stage of the request, since all parts of the current one are answered.
    fn advance(&mut self, place: usize) {
        let Some(request) = &mut self.places[place] else { return };
        if request.failed.is_some() {
            return self.finish(place);
        }
        let sectors = request.sectors.clone();
        match request.stage {
            Stage::Read | Stage::Write | Stage::Flush | Stage::Zero => self.finish(place),
            Stage::Edges => {
                let part = request.part(&request.bytes);
                request.buffer[part].copy_from_slice(&std::mem::take(&mut request.patch));
                self.stage(place, Stage::Write, PieceOp::Write, [sectors]);
            }
        }
    }

    /// Completes a request, and starts the requests that waited for it.
    fn finish(&mut self, place: usize) {
        let Some(request) = self.places[place].take() else { return };
        self.free.push(place);
        self.settle(request.share);
        match request.first {
            Stage::Read => {}
            Stage::Flush if request.failed.is_some() => {}
            Stage::Flush => self.flushed = self.flushed.max(request.covers),
            _ => self.changed += 1,
        }
        let part = if request.first == Stage::Read { request.part(&request.bytes) } else { 0..0 };
        (request.done)(match request.failed {
            None => Ok(&request.buffer[part]),
            Some(e) => Err(e),
        });
        let Some(at) = self.changes.iter().position(|(number, _)| *number == request.number) else { return };
        self.changes.remove(at);
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|&place| {
            let stays = self.places[place].as_ref().is_some_and(|request| self.waits(request));
            if !stays {
                self.begin(place);
            }
            stays
        });
        // A request that started may have finished at once, and others were checked again.
        debug_assert!(self.waiting.is_empty(), "nothing is added meanwhile");
        self.waiting = waiting;
    }

    /// Called when the parts with these tags will never be answered. They are sent again, before
    /// all others. Returns their number.
    pub(super) fn lost(&mut self, tags: &[u64]) -> usize {
        let mut pieces = Vec::with_capacity(tags.len());
        for &tag in tags {
            if let Some(piece) = self.asked.get_mut(tag as usize).and_then(Option::take) {
                self.free_tags.push(tag as usize);
                pieces.push(piece);
            }
        }
        let number = |piece: &Piece| self.places[piece.place].as_ref().map_or(0, |request| request.number);
        pieces.sort_by_key(|piece| (number(piece), piece.bytes.start));
        let n = pieces.len();
        pieces.into_iter().rev().for_each(|piece| self.ready.push_front(piece));
        n
    }

    /// Fails all requests.
    pub(super) fn fail_all(&mut self) {
        self.ready.clear();
        self.waiting.clear();
        self.changes.clear();
        (self.asked, self.free_tags) = (Vec::new(), Vec::new());
        for request in std::mem::take(&mut self.places).into_iter().flatten() {
            self.settle(request.share);
            (request.done)(Err(IoError::Failed));
        }
        self.free.clear();
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
