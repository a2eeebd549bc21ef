//! The requests that a front has in hand: in which pieces each goes to a ring, which of them wait, and what is asked again.
//!
//! ```text
//!   add --(overlaps an earlier change?)--> waiting --'
//!    '--> stages: pieces --> ready --ask_first--> asked --answered--> last of its stage? next stage, or done
//!                              ^                    |
//!                              '------- lost -------'        the back closed; nobody knows whether it was done
//!
//!   read   [read]                                   of whole sectors; the bytes that were wanted are cut out
//!   write  ([read the sectors at its edges]) [write]
//!   flush  [flush]                                  once the changes that came before it are done
//!   punch  [discard] ([read back a chunk] [write zeroes])*      a discard promises nothing of what is read afterwards
//! ```
//! Invariants: of two requests that change the same sector the later one begins when the earlier one is done, so that no part of a
//! sector is lost to a neighbour, and doing one again undoes nothing. Reads wait for nobody. A piece is in `ready` or among those that
//! were asked, never in both. Every request is done once.
//!
//! Reads, writes and discards may be done twice, so what a back did not answer is simply asked again, of the next one; a flush follows
//! the changes that it covers as ever. Sectors of another size, which only another disk has, fail what is in hand.
//!
//! What a back may do: answer a piece with anything. A damaged read is its user's to find out.

use super::shared_disk::{CHUNK, DiskOp, DiskRequest, Done};
use pregrant::blk::disk::{DiskFigures, IoError, SECTOR_BYTES};
use pregrant::blk::front::{Ask, NotAsked};
use std::collections::VecDeque;
use std::ops::Range;

/// What a piece asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PieceOp {
    Read,
    Write,
    Flush,
    Discard,
}

/// What one ring request is to be, or several where it is longer than those can be.
#[derive(Debug)]
struct Piece {
    place: usize,
    op: PieceOp,
    /// Bytes of the disk, whole sectors.
    bytes: Range<u64>,
}

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Read,
    Edges,
    Write,
    Flush,
    Discard,
    ReadBack,
    Zero,
}

/// A request in hand.
struct InHand {
    /// In the order of coming.
    number: u64,
    done: Done,
    weight: usize,
    /// Where it begins.
    first: Stage,
    stage: Stage,
    /// Pieces of this stage without an answer.
    left: usize,
    failed: Option<IoError>,
    /// What it is about, and the whole sectors that have it.
    bytes: Range<u64>,
    sectors: Range<u64>,
    /// Whole sectors from byte `buffer_at` of the disk on.
    buffer: Vec<u8>,
    buffer_at: u64,
    /// Of a write that does not fill its sectors.
    patch: Vec<u8>,
    /// Of a flush: changes that it covers.
    covers: u64,
}

impl InHand {
    /// Where these bytes of the disk are in its buffer.
    fn part(&self, bytes: &Range<u64>) -> Range<usize> {
        (bytes.start - self.buffer_at) as usize..(bytes.end - self.buffer_at) as usize
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Schedule {
    places: Vec<Option<InHand>>,
    free: Vec<usize>,
    /// Numbers and sectors of requests that change some, in the order of coming.
    changes: VecDeque<(u64, Range<u64>)>,
    /// Places of requests that wait for earlier ones, in the order of coming.
    waiting: VecDeque<usize>,
    ready: VecDeque<Piece>,
    /// By tag.
    asked: Vec<Option<Piece>>,
    free_tags: Vec<usize>,
    came: u64,
    /// Changes that were done, whole or in part, and how many of these a flush has covered.
    changed: u64,
    flushed: u64,
    /// Requests that were done, and their weight, since the last [`settled`](Self::settled).
    settled: (usize, usize),
    figures: Option<DiskFigures>,
}

impl Schedule {
    /// What the disk is from now on.
    pub(super) fn set_figures(&mut self, figures: DiskFigures) {
        if self.figures.is_some_and(|before| before.units() != figures.units()) {
            self.fail_all();
        }
        self.figures = Some(figures);
    }

    /// Requests in hand.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether something was changed that no flush has covered.
    pub(super) fn is_dirty(&self) -> bool {
        self.changed > self.flushed
    }

    /// Pieces that were asked and have no answer.
    pub(super) fn in_flight(&self) -> usize {
        self.asked.len() - self.free_tags.len()
    }

    /// Whether some can be asked.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Requests that were done since the last call, and their weight.
    pub(super) fn settled(&mut self) -> (usize, usize) {
        std::mem::take(&mut self.settled)
    }

    /// Takes a request in hand.
    pub(super) fn add(&mut self, request: DiskRequest) {
        let weight = request.weight();
        let DiskRequest { op, done } = request;
        let (at, len, first) = match &op {
            DiskOp::Read { at, len } => (*at, *len as u64, Stage::Read),
            DiskOp::Write { at, bytes } => (*at, bytes.len() as u64, Stage::Write),
            DiskOp::Flush => (0, 0, Stage::Flush),
            DiskOp::PunchHole { at, len } => (*at, *len, Stage::Discard),
        };
        let figures = self.figures.unwrap_or(DiskFigures::of(0));
        let unit = u64::from(figures.sector_size);
        let end =
            at.checked_add(len).filter(|end| *end <= figures.sectors.saturating_mul(SECTOR_BYTES as u64));
        let refused = match end {
            None => Some(Err(IoError::Failed)),
            Some(_) if first == Stage::Discard && figures.discard.is_none() => {
                Some(Err(IoError::NotSupported))
            }
            Some(_) if len == 0 && first != Stage::Flush => Some(Ok(&[][..])),
            Some(_) => None,
        };
        if let Some(outcome) = refused {
            self.settled.0 += 1;
            self.settled.1 += weight;
            return done(outcome);
        }
        let bytes = at..at + len;
        let sectors = at - at % unit..bytes.end.next_multiple_of(unit);
        let mut request = InHand {
            number: self.came,
            done,
            weight,
            first,
            stage: first,
            left: 0,
            failed: None,
            buffer: Vec::new(),
            buffer_at: sectors.start,
            patch: Vec::new(),
            covers: 0,
            bytes,
            sectors,
        };
        match op {
            DiskOp::Read { .. } => {
                request.buffer = vec![0; (request.sectors.end - request.sectors.start) as usize]
            }
            DiskOp::Write { bytes, .. } if request.bytes == request.sectors => request.buffer = bytes,
            DiskOp::Write { bytes, .. } => {
                request.buffer = vec![0; (request.sectors.end - request.sectors.start) as usize];
                request.patch = bytes;
                request.first = Stage::Edges;
            }
            DiskOp::Flush | DiskOp::PunchHole { .. } => {}
        }
        self.came += 1;
        let changes = matches!(request.first, Stage::Edges | Stage::Write | Stage::Discard);
        let waits = self.waits(&request);
        if changes {
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

    /// Whether it is to wait for earlier changes.
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

    /// Its first pieces can be asked.
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
            _ => match self.discarded(&bytes) {
                Some(inner) => self.stage(place, Stage::Discard, PieceOp::Discard, [inner]),
                None => self.read_back(place, sectors.start),
            },
        }
    }

    /// Of these bytes the whole units that the disk discards, if there are any.
    fn discarded(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let figures = self.figures?;
        let discard = figures.discard?;
        let sector = u64::from(figures.sector_size);
        let unit = u64::from(discard.granularity).max(sector).next_multiple_of(sector);
        let offset = u64::from(discard.alignment) / sector * sector % unit;
        let up = |at: u64| at.saturating_sub(offset).next_multiple_of(unit) + offset;
        let end = bytes.end.checked_sub(offset)? / unit * unit + offset;
        Some(up(bytes.start)..end).filter(|inner| inner.start < inner.end)
    }

    /// Looks what is in the next chunk of a hole; done, where there is none.
    fn read_back(&mut self, place: usize, at: u64) {
        let Some(request) = &mut self.places[place] else { return };
        let chunk = at..request.sectors.end.min(at + CHUNK as u64);
        if chunk.is_empty() {
            return self.finish(place);
        }
        request.buffer.resize((chunk.end - chunk.start) as usize, 0);
        request.buffer_at = chunk.start;
        self.stage(place, Stage::ReadBack, PieceOp::Read, [chunk]);
    }

    fn stage(&mut self, place: usize, stage: Stage, op: PieceOp, all: impl IntoIterator<Item = Range<u64>>) {
        let Some(request) = &mut self.places[place] else { return };
        request.stage = stage;
        for bytes in all {
            request.left += 1;
            self.ready.push_back(Piece { place, op, bytes });
        }
    }

    /// Whether the next piece is a flush.
    pub(super) fn flush_is_next(&self) -> bool {
        self.ready.front().is_some_and(|piece| piece.op == PieceOp::Flush)
    }

    /// The next piece needs not be asked.
    pub(super) fn skip_first(&mut self) {
        if let Some(piece) = self.ready.pop_front() {
            self.over(&piece, Ok(()), |_| 0);
        }
    }

    /// The next piece cannot be asked, and never can.
    pub(super) fn fail_first(&mut self) {
        if let Some(piece) = self.ready.pop_front() {
            self.over(&piece, Err(IoError::Failed), |_| 0);
        }
    }

    /// Has the next piece asked, or as much of it as a request can be: `most` bytes, some whole pages. It stays where it cannot be.
    pub(super) fn ask_first(
        &mut self,
        most: usize,
        submit: impl FnOnce(&Ask<'_>, u64) -> Result<(), NotAsked>,
    ) -> Result<(), NotAsked> {
        let Some(piece) = self.ready.front_mut() else { return Ok(()) };
        let Some(request) = &mut self.places[piece.place] else { return Ok(()) };
        let travels = matches!(piece.op, PieceOp::Read | PieceOp::Write);
        let most = if travels { most as u64 } else { u64::MAX };
        let now = piece.bytes.start..piece.bytes.end.min(piece.bytes.start.saturating_add(most));
        let sector = now.start / SECTOR_BYTES as u64;
        let sectors = (now.end - now.start) / SECTOR_BYTES as u64;
        let ask = match piece.op {
            PieceOp::Read => Ask::Read { sector, sectors: sectors as u32 },
            PieceOp::Write => Ask::Write { sector, bytes: &request.buffer[request.part(&now)] },
            PieceOp::Flush => Ask::Flush,
            PieceOp::Discard => Ask::Discard { sector, sectors, secure: false },
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

    /// What was asked with this tag has an answer; `copy_out` has the bytes of a read.
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
        match outcome {
            Ok(()) if piece.op == PieceOp::Read => {
                let part = request.part(&piece.bytes);
                copy_out(&mut request.buffer[part]);
            }
            Ok(()) => {}
            Err(e) => request.failed = request.failed.or(Some(e)),
        }
        request.left -= 1;
        if request.left == 0 {
            self.advance(piece.place);
        }
    }

    /// All pieces of a stage are answered.
    fn advance(&mut self, place: usize) {
        let Some(request) = &mut self.places[place] else { return };
        if request.failed.is_some() {
            return self.finish(place);
        }
        let sectors = request.sectors.clone();
        let chunk_end = request.buffer_at + request.buffer.len() as u64;
        match request.stage {
            Stage::Read | Stage::Write | Stage::Flush => self.finish(place),
            Stage::Edges => {
                let part = request.part(&request.bytes);
                request.buffer[part].copy_from_slice(&std::mem::take(&mut request.patch));
                self.stage(place, Stage::Write, PieceOp::Write, [sectors]);
            }
            Stage::Discard => self.read_back(place, sectors.start),
            Stage::ReadBack => {
                let hole = request.bytes.start.max(request.buffer_at)..request.bytes.end.min(chunk_end);
                let part = request.part(&hole);
                let hole = &mut request.buffer[part];
                if hole.iter().all(|byte| *byte == 0) {
                    return self.read_back(place, chunk_end);
                }
                hole.fill(0);
                let chunk = request.buffer_at..chunk_end;
                self.stage(place, Stage::Zero, PieceOp::Write, [chunk]);
            }
            Stage::Zero => self.read_back(place, chunk_end),
        }
    }

    /// It is done: tells so, and lets those begin that waited for it.
    fn finish(&mut self, place: usize) {
        let Some(request) = self.places[place].take() else { return };
        self.free.push(place);
        self.settled.0 += 1;
        self.settled.1 += request.weight;
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
        // One that began may have been done at once, and others have been looked at by that.
        debug_assert!(self.waiting.is_empty(), "nothing is added meanwhile");
        self.waiting = waiting;
    }

    /// Pieces with these tags have no answer any more: they are ahead of all others now. Returns how many there were.
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

    /// All that is in hand fails.
    pub(super) fn fail_all(&mut self) {
        self.ready.clear();
        self.waiting.clear();
        self.changes.clear();
        (self.asked, self.free_tags) = (Vec::new(), Vec::new());
        for request in std::mem::take(&mut self.places).into_iter().flatten() {
            self.settled.0 += 1;
            self.settled.1 += request.weight;
            (request.done)(Err(IoError::Failed));
        }
        self.free.clear();
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
