//! Runs any sequence of requests on a model of a disk. The answers come in any order, and backs
//! close in between.

use super::super::shared_disk::{DiskOp, DiskRequest};
use super::*;
use pregrant::blk::disk::Discard;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const SECTORS: u64 = 24;
const BYTES: usize = SECTORS as usize * SECTOR_BYTES;

/// Returns the figures of a disk that discards. With `zeroes`, discarded sectors read as zeroes.
fn figures(sector_size: u32, granularity: u32, zeroes: bool) -> DiskFigures {
    let alignment = if granularity > sector_size { sector_size } else { 0 };
    let discard = Some(Discard { granularity, alignment, secure: false, zeroes });
    DiskFigures { sector_size, discard, ..DiskFigures::of(SECTORS) }
}

/// A request as it was put on the ring.
#[derive(Clone, Debug)]
enum Asked {
    Read { at: usize, len: usize },
    Write { at: usize, bytes: Vec<u8> },
    Flush,
    Discard { at: usize, len: usize },
}

impl Asked {
    fn of(ask: &Ask<'_>) -> Self {
        let byte = |sector: &u64| *sector as usize * SECTOR_BYTES;
        match ask {
            Ask::Read { sector, sectors } => {
                Self::Read { at: byte(sector), len: *sectors as usize * SECTOR_BYTES }
            }
            Ask::Write { sector, bytes } => Self::Write { at: byte(sector), bytes: bytes.to_vec() },
            Ask::Flush => Self::Flush,
            Ask::Discard { sector, sectors, .. } => {
                Self::Discard { at: byte(sector), len: *sectors as usize * SECTOR_BYTES }
            }
            Ask::Barrier { .. } => unreachable!("a schedule asks for flushes"),
        }
    }
}

/// A back with a disk in memory.
struct Back {
    disk: Vec<u8>,
    figures: DiskFigures,
    waiting: Vec<(u64, Asked)>,
}

impl Back {
    /// Executes a request; returns the bytes of a read.
    fn perform(&mut self, asked: &Asked) -> Vec<u8> {
        let unit = self.figures.sector_size as usize;
        let whole = |at: &usize, len: usize| assert_eq!((at % unit, len % unit), (0, 0), "{asked:?}");
        let discard = self.figures.discard.expect("it discards");
        match asked {
            Asked::Read { at, len } => {
                whole(at, *len);
                return self.disk[*at..at + len].to_vec();
            }
            Asked::Write { at, bytes } => {
                whole(at, bytes.len());
                self.disk[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Asked::Flush => {}
            Asked::Discard { at, len } => {
                assert!(discard.zeroes, "the bytes read afterwards are undefined");
                whole(at, *len);
                // Partly discarded units do not read as zeroes.
                let (granularity, alignment) = (discard.granularity as usize, discard.alignment as usize);
                let unit_of = |at: usize| (at + granularity - alignment) / granularity;
                for k in *at..at + len {
                    let first = (unit_of(k) * granularity + alignment).saturating_sub(granularity);
                    let is_whole = *at <= first && unit_of(at + len) > unit_of(k);
                    self.disk[k] = if is_whole { 0 } else { self.disk[k].wrapping_mul(3) };
                }
            }
        }
        Vec::new()
    }
}

/// A request that is not finished.
#[derive(Clone, Debug)]
enum Op {
    Read,
    Write(u8),
    Flush,
    Punch,
    Zero,
}

/// A step of the program.
#[derive(Clone, Debug)]
enum Step {
    Put(Op, usize, usize),
    /// Sends all ready parts, each of at most this many pages.
    Ask(usize),
    /// The back answers one of the parts that were sent.
    Answer(usize),
    /// Closes the back. The bits say which of the parts it had are done nevertheless. The next back
    /// promises zeroes, or does not.
    Close(u16, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        4 => Just(Op::Read),
        6 => any::<u8>().prop_map(Op::Write),
        1 => Just(Op::Flush),
        1 => Just(Op::Punch),
        2 => Just(Op::Zero)
    ];
    // Often whole sectors, often parts of neighbours.
    let place = prop_oneof![(0..SECTORS as usize).prop_map(|sector| sector * SECTOR_BYTES), 0..BYTES,];
    let len = prop_oneof![1..700usize, (1..9usize).prop_map(|n| n * SECTOR_BYTES)];
    let step = prop_oneof![
        5 => (op, place, len).prop_map(|(op, at, len)| Step::Put(op, at, len.min(BYTES - at))),
        4 => (1..3usize).prop_map(Step::Ask),
        6 => any::<usize>().prop_map(Step::Answer),
        1 => (any::<u16>(), any::<bool>()).prop_map(|(lands, zeroes)| Step::Close(lands, zeroes)),
    ];
    proptest::collection::vec(step, 1..120)
}

/// The result of a request, which is None until the request is answered.
type Fate = Arc<Mutex<Option<Result<Vec<u8>, IoError>>>>;

struct Way {
    op: Op,
    bytes: Range<usize>,
    fate: Fate,
    /// For a read: the values that each byte may have.
    may_be: Vec<Vec<u8>>,
    /// For zeroes: later writes that are done, in order. The parts of a range of zeroes can be done
    /// long before its last one.
    later: Vec<(Range<usize>, u8)>,
}

fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// What the program expects: the bytes after all finished requests, and the unfinished requests.
struct World {
    schedule: Schedule,
    back: Back,
    model: Vec<u8>,
    /// For each byte of the disk, true if reading it may also return zero.
    perhaps: Vec<bool>,
    ways: Vec<Way>,
}

impl World {
    fn new(figures: DiskFigures) -> Self {
        // Small parts, so that there are many.
        let parts = Parts { at_once: 2, discarded: 2048, written: u64::from(figures.sector_size).max(1024) };
        let mut schedule = Schedule { parts, ..Schedule::default() };
        schedule.set_figures(figures);
        let disk: Vec<u8> = (0..BYTES).map(|k| (k * 7) as u8 | 1).collect();
        let back = Back { disk: disk.clone(), figures, waiting: Vec::new() };
        Self { schedule, back, model: disk, perhaps: vec![false; BYTES], ways: Vec::new() }
    }

    fn put(&mut self, op: Op, at: usize, len: usize) {
        let fate = Fate::default();
        let report = Arc::clone(&fate);
        let done = Box::new(move |outcome: Result<&[u8], IoError>| {
            let before = report.lock().unwrap().replace(outcome.map(<[u8]>::to_vec));
            assert!(before.is_none(), "done twice");
        });
        let bytes = if matches!(op, Op::Flush) { 0..0 } else { at..at + len };
        let mut may_be: Vec<Vec<u8>> = Vec::new();
        match op {
            // The bytes there, and those that are being written.
            Op::Read => {
                may_be = self.model[bytes.clone()].iter().map(|byte| vec![*byte]).collect();
                let perhaps = may_be.iter_mut().zip(&self.perhaps[bytes.clone()]);
                perhaps.filter(|(_, zero)| **zero).for_each(|(values, _)| values.push(0));
                for way in &self.ways {
                    add_values(&mut may_be, &bytes, &way.op, &way.bytes);
                }
            }
            Op::Write(_) | Op::Punch | Op::Zero => {
                for way in self.ways.iter_mut().filter(|way| matches!(way.op, Op::Read)) {
                    let read = way.bytes.clone();
                    add_values(&mut way.may_be, &read, &op, &bytes);
                }
            }
            Op::Flush => {}
        }
        let at = at as u64;
        let asked = match op {
            Op::Read => DiskOp::Read { at, len },
            Op::Write(value) => DiskOp::Write { at, bytes: vec![value; len] },
            Op::Flush => DiskOp::Flush,
            Op::Punch => DiskOp::PunchHole { at, len: len as u64 },
            Op::Zero => DiskOp::Zero { at, len: len as u64 },
        };
        self.ways.push(Way { op, bytes, fate, may_be, later: Vec::new() });
        self.schedule.add(DiskRequest { op: asked, interrupt: Interrupt::default(), done });
        let refused = self.ways.last().is_some_and(|way| matches!(*way.fate.lock().unwrap(), Some(Err(_))));
        if refused {
            let discard = self.back.figures.discard.expect("it discards");
            let aligned = [discard.granularity, discard.alignment]
                .iter()
                .all(|bytes| bytes.is_multiple_of(self.back.figures.sector_size));
            let way = self.ways.pop();
            assert!(way.is_some_and(|way| matches!(way.op, Op::Punch)) && !(discard.zeroes && aligned));
        }
        self.check();
    }

    fn ask(&mut self, pages: usize) {
        while self.schedule.is_ready() {
            let flush = self.schedule.flush_is_next();
            let waiting = &mut self.back.waiting;
            let submit = |ask: &Ask<'_>, tag: u64| {
                let asked = Asked::of(ask);
                assert_eq!(flush, matches!(asked, Asked::Flush));
                assert!(waiting.iter().all(|(other, _)| *other != tag), "a tag that is in use");
                waiting.push((tag, asked));
                Ok(())
            };
            self.schedule.ask_first(pages * 4096, submit).expect("it takes all");
        }
        // Two parts that change the same sector are never in flight together.
        let changed = self.back.waiting.iter().filter_map(|(_, asked)| match asked {
            Asked::Write { at, bytes } => Some(*at..at + bytes.len()),
            Asked::Discard { at, len } => Some(*at..at + len),
            Asked::Read { .. } | Asked::Flush => None,
        });
        let changed: Vec<_> = changed.collect();
        for (i, a) in changed.iter().enumerate() {
            assert!(changed[i + 1..].iter().all(|b| !overlaps(a, b)), "{changed:?}");
        }
    }

    fn answer(&mut self, which: usize) {
        if self.back.waiting.is_empty() {
            return;
        }
        let (tag, asked) = self.back.waiting.remove(which % self.back.waiting.len());
        let bytes = self.back.perform(&asked);
        self.schedule.answered(tag, Ok(()), |to| {
            to.copy_from_slice(&bytes);
            bytes.len()
        });
        self.check();
    }

    fn close(&mut self, lands: u16, zeroes: bool) {
        let waiting = std::mem::take(&mut self.back.waiting);
        let tags: Vec<u64> = waiting.iter().rev().map(|(tag, _)| *tag).collect();
        for (k, (_, asked)) in waiting.iter().enumerate() {
            if lands >> (k % 16) & 1 == 1 {
                self.back.perform(asked);
            }
        }
        assert_eq!(self.schedule.lost(&tags), tags.len());
        assert_eq!(self.schedule.in_flight(), 0);
        let discard = self.back.figures.discard.map(|discard| Discard { zeroes, ..discard });
        self.back.figures.discard = discard;
        self.schedule.set_figures(self.back.figures);
        self.check();
    }

    /// Checks the requests that are done.
    fn check(&mut self) {
        let mut k = 0;
        while k < self.ways.len() {
            let Some(fate) = self.ways[k].fate.lock().unwrap().take() else {
                k += 1;
                continue;
            };
            let way = self.ways.remove(k);
            let bytes = match fate {
                Ok(bytes) => bytes,
                // The back that could is gone: of the range some is zeroes, and some as it was.
                Err(e) => {
                    assert!(matches!(way.op, Op::Punch) && e == IoError::NotSupported, "an honest back");
                    for at in way.bytes.clone() {
                        let is_put = |way: &Way| !matches!(way.op, Op::Read) && way.bytes.contains(&at);
                        // A later change may already be on the disk.
                        if self.ways[k..].iter().any(is_put) {
                            self.perhaps[at] = true;
                        } else {
                            let is = self.back.disk[at];
                            assert!([0, self.model[at]].contains(&is), "byte {at}");
                            self.changed(k, at..at + 1, is, &[]);
                        }
                    }
                    continue;
                }
            };
            match way.op {
                Op::Read => {
                    assert_eq!(bytes.len(), way.bytes.len());
                    for (k, byte) in bytes.iter().enumerate() {
                        assert!(way.may_be[k].contains(byte), "byte {} of {:?}: {byte}", k, way.bytes);
                    }
                }
                Op::Write(value) => self.changed(k, way.bytes, value, &[]),
                Op::Punch | Op::Zero => self.changed(k, way.bytes, 0, &way.later),
                // All requests before a flush must be done.
                Op::Flush => assert!(self.ways[..k].iter().all(|way| matches!(way.op, Op::Read | Op::Flush))),
            }
        }
    }

    /// Called when a change is done, and the last `ahead` of the earlier changes are not.
    fn changed(&mut self, ahead: usize, bytes: Range<usize>, value: u8, later: &[(Range<usize>, u8)]) {
        let mut all = vec![(bytes, value)];
        all.extend(later.iter().cloned());
        for (bytes, value) in &all {
            self.model[bytes.clone()].fill(*value);
            self.perhaps[bytes.clone()].fill(false);
        }
        for earlier in &mut self.ways[..ahead] {
            if matches!(earlier.op, Op::Punch | Op::Zero) {
                let within = all.iter().map(|(bytes, value)| {
                    (bytes.start.max(earlier.bytes.start)..bytes.end.min(earlier.bytes.end), *value)
                });
                earlier.later.extend(within.filter(|(bytes, _)| !bytes.is_empty()));
            }
        }
    }

    fn end(mut self) {
        let mut turns = 0;
        while !self.schedule.is_empty() {
            self.ask(2);
            self.answer(turns);
            turns += 1;
            assert!(turns < 10_000, "it never ends");
        }
        assert!(self.ways.is_empty());
        let differs = (0..BYTES).find(|k| self.back.disk[*k] != self.model[*k]);
        assert_eq!(differs.map(|k| (k, self.back.disk[k], self.model[k])), None);
        assert_eq!(self.schedule.in_flight(), 0);
    }
}

/// A read may also return the bytes of a change that is under way.
fn add_values(may_be: &mut [Vec<u8>], read: &Range<usize>, change: &Op, changed: &Range<usize>) {
    for at in read.start.max(changed.start)..read.end.min(changed.end) {
        match change {
            Op::Write(value) => may_be[at - read.start].push(*value),
            Op::Punch | Op::Zero => may_be[at - read.start].push(0),
            Op::Read | Op::Flush => {}
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_asked_and_no_matter_who_dies_the_disk_is_what_was_written(
        steps in steps(),
        (unit, granularity) in prop_oneof![Just((512, 512)), Just((512, 4096)), Just((4096, 4096)), Just((1024, 1536))],
        zeroes in any::<bool>(),
    ) {
        let mut world = World::new(figures(unit, granularity, zeroes));
        for step in steps {
            match step {
                Step::Put(op, at, len) => world.put(op, at, len),
                Step::Ask(pages) => world.ask(pages),
                Step::Answer(which) => world.answer(which),
                Step::Close(lands, zeroes) => world.close(lands, zeroes),
            }
        }
        world.end();
    }
}

/// Adds a request, and returns its result once there is one.
fn fate_of(schedule: &mut Schedule, op: DiskOp) -> Fate {
    fate_until(schedule, op, &Interrupt::default())
}

/// Adds a request that `interrupt` can end early, and returns its result once there is one.
fn fate_until(schedule: &mut Schedule, op: DiskOp, interrupt: &Interrupt) -> Fate {
    let fate = Fate::default();
    let report = Arc::clone(&fate);
    let done = Box::new(move |outcome: Result<&[u8], IoError>| {
        report.lock().unwrap().replace(outcome.map(<[u8]>::to_vec));
    });
    schedule.add(DiskRequest { op, interrupt: interrupt.clone(), done });
    fate
}

#[test]
fn what_is_past_the_end_or_of_no_bytes_never_reaches_a_ring() {
    let mut schedule = Schedule::default();
    schedule.set_figures(DiskFigures::of(SECTORS));
    let bytes = BYTES as u64;
    let refused = [
        DiskOp::Read { at: bytes - 1, len: 2 },
        DiskOp::Write { at: u64::MAX, bytes: vec![1] },
        DiskOp::Write { at: bytes, bytes: vec![1] },
    ];
    for op in refused {
        assert_eq!(*fate_of(&mut schedule, op).lock().unwrap(), Some(Err(IoError::Failed)));
    }
    // The disk does not know yet whether it discards, and whether zeroes are read then.
    let punch = || DiskOp::PunchHole { at: 0, len: 4096 };
    assert_eq!(*fate_of(&mut schedule, punch()).lock().unwrap(), Some(Err(IoError::NotSupported)));
    schedule.set_figures(figures(512, 512, false));
    assert_eq!(*fate_of(&mut schedule, punch()).lock().unwrap(), Some(Err(IoError::NotSupported)));
    assert_eq!(*fate_of(&mut schedule, DiskOp::Read { at: bytes, len: 0 }).lock().unwrap(), Some(Ok(vec![])));
    assert!(!schedule.is_ready() && schedule.is_empty());
    assert_eq!(schedule.settled(), (6, 2 + 1 + 1 + 2 * punch().weight()));
}

const TIB: u64 = 1 << 40;

/// Sends everything that can be sent; returns for each part the tag, the operation and the number
/// of bytes.
fn ask_all(schedule: &mut Schedule) -> Vec<(u64, char, u64)> {
    let mut asked = Vec::new();
    while schedule.is_ready() {
        let submit = |ask: &Ask<'_>, tag: u64| {
            asked.push(match ask {
                Ask::Read { sectors, .. } => (tag, 'r', u64::from(*sectors) * SECTOR_BYTES as u64),
                Ask::Write { bytes, .. } => (tag, 'w', bytes.len() as u64),
                Ask::Discard { sectors, .. } => (tag, 'd', sectors * SECTOR_BYTES as u64),
                Ask::Flush => (tag, 'f', 0),
                _ => unreachable!("nothing else was put"),
            });
            Ok(())
        };
        schedule.ask_first(1 << 20, submit).unwrap();
    }
    asked
}

/// A disk of 3 TiB.
fn long_disk(zeroes: bool) -> Schedule {
    let mut schedule = Schedule::default();
    let sectors = 3 * TIB / SECTOR_BYTES as u64;
    schedule.set_figures(DiskFigures { sectors, ..figures(512, 4096, zeroes) });
    schedule
}

/// Other requests do not wait until all of a long range is done.
#[test]
fn a_hole_of_terabytes_is_a_few_requests_at_a_time_and_nothing_is_read() {
    let mut schedule = long_disk(true);
    let (at, len) = (12_345_678_848, 5 * TIB / 2 + 1024);
    let fate = fate_of(&mut schedule, DiskOp::PunchHole { at, len });
    let mut all = Vec::new();
    // Parts of another request are sent between its parts.
    let mut other = ask_all(&mut schedule);
    assert!(other.len() <= Parts::default().at_once);
    let write = fate_of(&mut schedule, DiskOp::Write { at: 0, bytes: vec![1; 512] });
    other.extend(ask_all(&mut schedule));
    assert_eq!(other.last().map(|(_, kind, len)| (*kind, *len)), Some(('w', 512)));
    let mut waiting = VecDeque::from(other);
    while let Some(asked) = waiting.pop_front() {
        schedule.answered(asked.0, Ok(()), |_| panic!("nothing was read"));
        all.push(asked);
        waiting.extend(ask_all(&mut schedule));
        assert!(waiting.len() <= Parts::default().at_once + 1);
    }
    assert!(fate.lock().unwrap().as_ref().unwrap().is_ok() && write.lock().unwrap().is_some());
    let bytes = |kind: char| all.iter().filter(|asked| asked.1 == kind).map(|asked| asked.2).sum::<u64>();
    assert_eq!(bytes('d') + bytes('w'), len + 512);
    assert!(bytes('w') <= 2 * 4096 + 512 && bytes('r') == 0);
    assert!(all.len() <= 2600, "{} requests", all.len());
    assert!(schedule.is_empty() && schedule.is_dirty());
}

#[test]
fn a_range_that_is_interrupted_ends_with_the_parts_that_the_back_has() {
    for (zeroes, op) in [(true, 'd'), (false, 'w')] {
        let mut schedule = long_disk(zeroes);
        let interrupt = Interrupt::default();
        let range = DiskOp::Zero { at: 4608, len: 2 * TIB };
        let fate = fate_until(&mut schedule, range, &interrupt);
        let asked = ask_all(&mut schedule);
        assert!(asked.iter().all(|asked| asked.1 == op), "{asked:?}");
        // One part is answered, so the next one is ready; of another part the back has lost all
        // trace.
        schedule.answered(asked[0].0, Ok(()), |_| 0);
        assert!(schedule.is_ready());
        interrupt.raise();
        assert_eq!(schedule.lost(&[asked[1].0]), 1);
        // Requests that wait for the range continue after it.
        let flush = fate_of(&mut schedule, DiskOp::Flush);
        assert_eq!(ask_all(&mut schedule), []);
        for (tag, ..) in &asked[2..] {
            assert_eq!(*fate.lock().unwrap(), None, "the back has some of it still");
            schedule.answered(*tag, Ok(()), |_| 0);
        }
        assert_eq!(*fate.lock().unwrap(), Some(Err(IoError::Failed)));
        assert!(schedule.flush_is_next());
        schedule.skip_first();
        assert!(schedule.is_empty() && flush.lock().unwrap().is_some());
    }
}

/// A range that is interrupted before it starts sends nothing.
#[test]
fn a_range_that_is_interrupted_while_it_waits_asks_nothing() {
    let mut schedule = long_disk(true);
    let write = fate_of(&mut schedule, DiskOp::Write { at: 0, bytes: vec![1; 512] });
    let interrupt = Interrupt::default();
    let fate = fate_until(&mut schedule, DiskOp::PunchHole { at: 0, len: TIB }, &interrupt);
    let asked = ask_all(&mut schedule);
    assert_eq!(asked.len(), 1);
    interrupt.raise();
    schedule.answered(asked[0].0, Ok(()), |_| 0);
    assert!(write.lock().unwrap().is_some() && fate.lock().unwrap().is_some());
    assert!(schedule.is_empty() && !schedule.is_ready());
}

/// A program is killed while no back answers. Parts of its requests that no back has end at once. A
/// part that a back has is answered. A part that the back loses is not sent again.
#[test]
fn of_requests_that_no_one_waits_for_only_what_a_back_has_goes_on() {
    let mut schedule = long_disk(true);
    let interrupt = Interrupt::default();
    let until = |schedule: &mut Schedule, op| fate_until(schedule, op, &interrupt);
    let write = |at| DiskOp::Write { at, bytes: vec![1; 512] };
    let is_over = |fate: &Fate| *fate.lock().unwrap() == Some(Err(IoError::Failed));
    let asked = [until(&mut schedule, write(0)), until(&mut schedule, DiskOp::Read { at: 0, len: 4096 })];
    assert_eq!(ask_all(&mut schedule).len(), 2);
    // The write waits for the first one, and then reads the rest of its sector.
    let waits = until(&mut schedule, DiskOp::Write { at: 100, bytes: vec![2; 8] });
    let unasked = [until(&mut schedule, write(512)), until(&mut schedule, DiskOp::Read { at: 0, len: 512 })];
    let flush = until(&mut schedule, DiskOp::Flush);
    let (others, others_flush) =
        (fate_of(&mut schedule, DiskOp::Read { at: 0, len: 512 }), fate_of(&mut schedule, DiskOp::Flush));
    interrupt.raise();
    schedule.drop_interrupted();
    assert!(is_over(&waits) && unasked.iter().all(is_over) && is_over(&flush));
    assert!(asked.iter().chain([&others, &others_flush]).all(|fate| fate.lock().unwrap().is_none()));
    // The back had the read, and loses the write.
    schedule.answered(1, Ok(()), |to| to.len());
    assert!(asked[1].lock().unwrap().as_ref().is_some_and(Result::is_ok));
    assert_eq!(schedule.lost(&[0]), 1);
    schedule.drop_interrupted();
    assert!(is_over(&asked[0]));
    let left = ask_all(&mut schedule);
    assert_eq!(left.iter().map(|asked| (asked.1, asked.2)).collect::<Vec<_>>(), [('r', 512), ('f', 0)]);
    left.iter().for_each(|(tag, ..)| schedule.answered(*tag, Ok(()), |to| to.len()));
    assert!(
        schedule.is_empty() && others.lock().unwrap().is_some() && others_flush.lock().unwrap().is_some()
    );
}

/// If the disk claimed to discard and refuses, zeroes are written instead, and a hole is refused.
#[test]
fn a_discard_that_is_refused_is_written_where_zeroes_were_asked_for() {
    let mut schedule = long_disk(true);
    let op = |hole| {
        let (at, len) = (512, 1 << 20);
        if hole { DiskOp::PunchHole { at, len } } else { DiskOp::Zero { at, len } }
    };
    for (hole, expected) in [(false, Ok(vec![])), (true, Err(IoError::NotSupported))] {
        let fate = fate_of(&mut schedule, op(hole));
        let asked = ask_all(&mut schedule);
        assert_eq!(asked.iter().map(|asked| (asked.1, asked.2)).collect::<Vec<_>>(), [('d', 1 << 20)]);
        schedule.answered(asked[0].0, Err(IoError::NotSupported), |_| 0);
        let written = ask_all(&mut schedule);
        assert!(written.iter().all(|asked| asked.1 == 'w'));
        assert_eq!(written.iter().map(|asked| asked.2).sum::<u64>(), if hole { 0 } else { 1 << 20 });
        written.iter().for_each(|asked| schedule.answered(asked.0, Ok(()), |_| 0));
        assert_eq!(*fate.lock().unwrap(), Some(expected));
        assert!(schedule.is_empty());
    }
}

#[test]
fn an_error_of_the_disk_is_the_requests_and_lets_others_go_on() {
    let mut schedule = Schedule::default();
    schedule.set_figures(DiskFigures::of(SECTORS));
    let first = fate_of(&mut schedule, DiskOp::Write { at: 0, bytes: vec![1; 1024] });
    let second = fate_of(&mut schedule, DiskOp::Write { at: 512, bytes: vec![2; 512] });
    let flush = fate_of(&mut schedule, DiskOp::Flush);
    let mut asked = None;
    schedule
        .ask_first(4096, |_, tag| {
            asked = Some(tag);
            Ok(())
        })
        .unwrap();
    assert_eq!(asked, Some(0));
    assert!(!schedule.is_ready(), "the second waits for the first, the flush for both");
    schedule.answered(0, Err(IoError::Failed), |_| 0);
    assert_eq!(*first.lock().unwrap(), Some(Err(IoError::Failed)));
    // The back has no room: it stays where it is.
    assert_eq!(schedule.ask_first(4096, |_, _| Err(NotAsked::Full)), Err(NotAsked::Full));
    schedule.ask_first(4096, |_, _| Ok(())).unwrap();
    schedule.answered(0, Ok(()), |_| 0);
    assert_eq!(*second.lock().unwrap(), Some(Ok(vec![])));
    // A disk without a cache needs no flush.
    assert!(schedule.flush_is_next() && schedule.is_dirty());
    schedule.skip_first();
    assert!(!schedule.is_dirty());
    assert_eq!(*flush.lock().unwrap(), Some(Ok(vec![])));
}

#[test]
fn a_disk_of_other_sectors_is_another_disk() {
    let mut schedule = Schedule::default();
    schedule.set_figures(DiskFigures::of(SECTORS));
    let read = fate_of(&mut schedule, DiskOp::Read { at: 512, len: 512 });
    schedule.ask_first(4096, |_, _| Ok(())).unwrap();
    schedule.lost(&[0]);
    schedule.set_figures(DiskFigures { sector_size: 4096, ..DiskFigures::of(SECTORS) });
    assert_eq!(*read.lock().unwrap(), Some(Err(IoError::Failed)));
    assert!(schedule.is_empty() && !schedule.is_ready());
}
