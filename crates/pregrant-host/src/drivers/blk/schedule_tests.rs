//! Any program of requests on a model of a disk, answered in any order, with backs that close in between.

use super::super::shared_disk::{DiskOp, DiskRequest};
use super::*;
use pregrant::blk::disk::Discard;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const SECTORS: u64 = 24;
const BYTES: usize = SECTORS as usize * SECTOR_BYTES;

fn figures(sector_size: u32, granularity: u32) -> DiskFigures {
    let discard = Some(Discard { granularity, alignment: 0, secure: false, zeroes: true });
    DiskFigures { sector_size, discard, ..DiskFigures::of(SECTORS) }
}

/// What was asked, as the ring has it.
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
    unit: usize,
    waiting: Vec<(u64, Asked)>,
}

impl Back {
    /// Does what was asked; a read's bytes.
    fn perform(&mut self, asked: &Asked) -> Vec<u8> {
        let whole =
            |at: &usize, len: usize| assert_eq!((at % self.unit, len % self.unit), (0, 0), "{asked:?}");
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
            // What is read afterwards nobody promised: something else, here.
            Asked::Discard { at, len } => {
                self.disk[*at..at + len].iter_mut().for_each(|b| *b = b.wrapping_mul(3))
            }
        }
        Vec::new()
    }
}

/// A request that is on its way.
#[derive(Clone, Debug)]
enum Op {
    Read,
    Write(u8),
    Flush,
    Punch,
}

/// A step of the program.
#[derive(Clone, Debug)]
enum Step {
    Put(Op, usize, usize),
    /// As many pieces are asked as there are, of so many pages at most.
    Ask(usize),
    /// One that waits is answered.
    Answer(usize),
    /// The back closes; of what it had, what these bits say is done all the same.
    Close(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        4 => Just(Op::Read),
        6 => any::<u8>().prop_map(Op::Write),
        1 => Just(Op::Flush),
        1 => Just(Op::Punch)
    ];
    // Often whole sectors, often parts of neighbours.
    let place = prop_oneof![(0..SECTORS as usize).prop_map(|sector| sector * SECTOR_BYTES), 0..BYTES,];
    let len = prop_oneof![1..700usize, (1..9usize).prop_map(|n| n * SECTOR_BYTES)];
    let step = prop_oneof![
        5 => (op, place, len).prop_map(|(op, at, len)| Step::Put(op, at, len.min(BYTES - at))),
        4 => (1..3usize).prop_map(Step::Ask),
        6 => any::<usize>().prop_map(Step::Answer),
        1 => any::<u16>().prop_map(Step::Close),
    ];
    proptest::collection::vec(step, 1..120)
}

/// What became of a request: None while it is on its way.
type Fate = Arc<Mutex<Option<Result<Vec<u8>, IoError>>>>;

struct Way {
    op: Op,
    bytes: Range<usize>,
    fate: Fate,
    /// Of a read: what each byte may be.
    may_be: Vec<Vec<u8>>,
}

fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The program's view: bytes after all that is done, and what is on its way.
struct World {
    schedule: Schedule,
    back: Back,
    model: Vec<u8>,
    ways: Vec<Way>,
}

impl World {
    fn new(unit: u32, granularity: u32) -> Self {
        let mut schedule = Schedule::default();
        schedule.set_figures(figures(unit, granularity));
        let disk: Vec<u8> = (0..BYTES).map(|k| (k * 7) as u8 | 1).collect();
        let back = Back { disk: disk.clone(), unit: unit as usize, waiting: Vec::new() };
        Self { schedule, back, model: disk, ways: Vec::new() }
    }

    fn put(&mut self, op: Op, at: usize, len: usize) {
        let fate = Fate::default();
        let tell = Arc::clone(&fate);
        let done = Box::new(move |outcome: Result<&[u8], IoError>| {
            let before = tell.lock().unwrap().replace(outcome.map(<[u8]>::to_vec));
            assert!(before.is_none(), "done twice");
        });
        let bytes = if matches!(op, Op::Flush) { 0..0 } else { at..at + len };
        let mut may_be: Vec<Vec<u8>> = Vec::new();
        match op {
            // What is there, and what is being written.
            Op::Read => {
                may_be = self.model[bytes.clone()].iter().map(|byte| vec![*byte]).collect();
                for way in &self.ways {
                    add_values(&mut may_be, &bytes, &way.op, &way.bytes);
                }
            }
            Op::Write(_) | Op::Punch => {
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
        };
        self.ways.push(Way { op, bytes, fate, may_be });
        self.schedule.add(DiskRequest { op: asked, done });
        self.look();
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
        // Two that change the same sector are never asked at once.
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
        self.look();
    }

    fn close(&mut self, lands: u16) {
        let waiting = std::mem::take(&mut self.back.waiting);
        let tags: Vec<u64> = waiting.iter().rev().map(|(tag, _)| *tag).collect();
        for (k, (_, asked)) in waiting.iter().enumerate() {
            if lands >> (k % 16) & 1 == 1 {
                self.back.perform(asked);
            }
        }
        assert_eq!(self.schedule.lost(&tags), tags.len());
        assert_eq!(self.schedule.in_flight(), 0);
    }

    /// Takes note of what is done.
    fn look(&mut self) {
        let mut k = 0;
        while k < self.ways.len() {
            let Some(fate) = self.ways[k].fate.lock().unwrap().take() else {
                k += 1;
                continue;
            };
            let way = self.ways.remove(k);
            let bytes = fate.expect("an honest back");
            match way.op {
                Op::Read => {
                    assert_eq!(bytes.len(), way.bytes.len());
                    for (k, byte) in bytes.iter().enumerate() {
                        assert!(way.may_be[k].contains(byte), "byte {} of {:?}: {byte}", k, way.bytes);
                    }
                }
                Op::Write(value) => self.model[way.bytes.clone()].fill(value),
                Op::Punch => self.model[way.bytes.clone()].fill(0),
                // All that came before it is done.
                Op::Flush => assert!(self.ways[..k].iter().all(|way| matches!(way.op, Op::Read | Op::Flush))),
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
        assert_eq!(self.back.disk, self.model);
        assert_eq!(self.schedule.in_flight(), 0);
    }
}

/// The bytes of a read may also be those of a change.
fn add_values(may_be: &mut [Vec<u8>], read: &Range<usize>, change: &Op, changed: &Range<usize>) {
    for at in read.start.max(changed.start)..read.end.min(changed.end) {
        match change {
            Op::Write(value) => may_be[at - read.start].push(*value),
            // While a hole is punched anything may be read of it.
            Op::Punch => may_be[at - read.start].extend(0..=255),
            Op::Read | Op::Flush => {}
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_asked_and_whoever_dies_the_disk_is_what_was_written(
        steps in steps(),
        (unit, granularity) in prop_oneof![Just((512, 512)), Just((512, 4096)), Just((4096, 4096)), Just((1024, 1536))],
    ) {
        let mut world = World::new(unit, granularity);
        for step in steps {
            match step {
                Step::Put(op, at, len) => world.put(op, at, len),
                Step::Ask(pages) => world.ask(pages),
                Step::Answer(which) => world.answer(which),
                Step::Close(lands) => world.close(lands),
            }
        }
        world.end();
    }
}

/// How one request ends that is put alone.
fn fate_of(schedule: &mut Schedule, op: DiskOp) -> Fate {
    let fate = Fate::default();
    let tell = Arc::clone(&fate);
    let done = Box::new(move |outcome: Result<&[u8], IoError>| {
        tell.lock().unwrap().replace(outcome.map(<[u8]>::to_vec));
    });
    schedule.add(DiskRequest { op, done });
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
    // It was not told that the disk discards.
    let punch = DiskOp::PunchHole { at: 0, len: 4096 };
    assert_eq!(*fate_of(&mut schedule, punch).lock().unwrap(), Some(Err(IoError::NotSupported)));
    assert_eq!(*fate_of(&mut schedule, DiskOp::Read { at: bytes, len: 0 }).lock().unwrap(), Some(Ok(vec![])));
    assert!(!schedule.is_ready() && schedule.is_empty());
    assert_eq!(schedule.settled(), (5, 2 + 1 + 1 + CHUNK));
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
