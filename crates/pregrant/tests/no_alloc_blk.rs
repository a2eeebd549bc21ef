//! A disk's request allocates nothing, at either end, on any path, once a request of each kind was
//! made. A test binary of its own, since the counting allocator is the whole process's.
#![cfg(not(any(loom, miri)))]

use pregrant::blk::back::{BackVbd, VbdConfig};
use pregrant::blk::disk::{Disk, DiskFigures, Done, Image, Io, IoOp, OpenError, Opening, SECTOR_BYTES};
use pregrant::blk::features::BackFeatures;
use pregrant::blk::front::{Ask, FrontConfig, FrontVbd};
use pregrant::blk::path::PathName;
use pregrant::error::PlatformError;
use pregrant::grants::regions::Granting;
use pregrant::platform::local::{LocalDomain, LocalXen, Pages};
use pregrant::shm::SharedBytes;
use pregrant::{DomId, PAGE_SIZE};
use pregrant_testkit::bus::{MapBus, device};
use pregrant_testkit::counting::{Counting, calls, live};

#[global_allocator]
static COUNTING: Counting = Counting;

const GUEST: DomId = DomId(5);
const HOST: DomId = DomId(1);
/// Number of sectors of the disk.
const SECTORS: u64 = 4096;
/// Number of counted requests.
const REQUESTS: u64 = 30_000;
/// Requests before the count starts: buffers and lists have grown to what they need, each place
/// having had the longest.
const WARM_UP: u64 = 10_000;
/// Lengths of requests in bytes, one after another: a sector, pages, all segments of a slot, lists
/// of segments.
const LENGTHS: [usize; 8] = [4096, 512, 4096, 8192, 4096, 45056, 65536, 262_144];

struct Memory(Pages);

struct Way {
    memory: Pages,
    done: Vec<Done>,
}

impl Image for Memory {
    fn open(&mut self, _: &Opening) -> Result<DiskFigures, OpenError> {
        Ok(DiskFigures::of(SECTORS))
    }
    fn queue(&mut self) -> Result<Box<dyn Disk>, PlatformError> {
        Ok(Box::new(Way { memory: self.0.clone(), done: Vec::new() }))
    }
}

impl Disk for Way {
    fn submit(&mut self, mut io: Io) {
        let at = io.sector as usize * SECTOR_BYTES;
        assert!(match io.op {
            IoOp::Read => io.memory.load_at(&self.memory, at),
            IoOp::Write => io.memory.store_at(&self.memory, at),
            IoOp::Flush | IoOp::Discard { .. } => true,
        });
        self.done.push(Done { io, outcome: Ok(()) });
    }
    fn complete(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.done);
    }
}

struct Pair {
    guest: LocalDomain,
    host: LocalDomain,
    front: FrontVbd<LocalDomain>,
    back: BackVbd<LocalDomain>,
    bytes: Vec<u8>,
    answered: u64,
    asked: u64,
}

impl Pair {
    fn new(path: PathName) -> Self {
        let xen = LocalXen::new();
        let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut front_bus, mut back_bus): (MapBus, MapBus) = device();
        back_bus.own.borrow_mut().insert("mode".into(), "w".into());
        let persistent = path == PathName::Persistent;
        let fallback = if persistent { PathName::Copy } else { path };
        let features = BackFeatures { persistent, ..BackFeatures::default() };
        let config = VbdConfig { features, fallback, ..VbdConfig::default() };
        let image = Box::new(Memory(Pages::new(SECTORS as usize * SECTOR_BYTES / PAGE_SIZE)));
        let mut back = BackVbd::new(GUEST, 51712, config, image);
        let granting = Granting::Standing;
        let mut front =
            FrontVbd::new(HOST, FrontConfig { persistent, granting, ..FrontConfig::default() }, false);
        let mut kept = Vec::new();
        for _ in 0..8 {
            let mut keep = |_: &str, bytes: usize| {
                kept.push(Pages::new(bytes.div_ceil(PAGE_SIZE)));
                kept.last().cloned().map(|pages| Box::new(pages) as Box<dyn SharedBytes + Send>)
            };
            back.step(&host, &mut back_bus, &mut keep).expect("an honest front");
            front.step(&guest, &mut front_bus).expect("an honest back");
        }
        assert!(front.is_live() && front.persists() == persistent);
        let bytes = vec![0x5a; 262_144];
        Self { guest, host, front, back, bytes, answered: 0, asked: 0 }
    }

    /// Sends requests and takes answers until this many were answered.
    fn run(&mut self, requests: u64) {
        let until = self.answered + requests;
        while self.answered < until {
            loop {
                let k = self.asked;
                let len = LENGTHS[k as usize % LENGTHS.len()];
                let sectors = (len / SECTOR_BYTES) as u64;
                let sector = k * 37 % (SECTORS - sectors + 1);
                let ask = match k % 3 {
                    0 => Ask::Read { sector, sectors: sectors as u32 },
                    1 => Ask::Write { sector, bytes: &self.bytes[..len] },
                    _ if k.is_multiple_of(7) => Ask::Flush,
                    _ => Ask::Read { sector, sectors: sectors as u32 },
                };
                if self.front.submit(&self.guest, 0, &ask, k).is_err() {
                    break;
                }
                self.asked += 1;
            }
            self.front.publish(&self.guest, 0);
            for queue in self.back.queues() {
                queue.poll(&self.host).expect("an honest front");
            }
            let (bytes, mut good) = (&mut self.bytes, 0);
            let each = |answer: pregrant::blk::front::Answer<'_, LocalDomain>| {
                answer.copy_out(bytes);
                good += u64::from(answer.outcome.is_ok());
            };
            let answered = self.front.take(&self.guest, 0, each).expect("an honest back") as u64;
            assert_eq!(good, answered, "requests failed");
            self.answered += answered;
        }
    }
}

fn allocates_nothing(path: PathName) {
    let mut pair = Pair::new(path);
    pair.run(WARM_UP);
    let before = (calls(), live());
    pair.run(REQUESTS);
    assert_eq!((calls(), live()), before, "requests by {path} allocate");
}

#[test]
fn copy_allocates_nothing() {
    allocates_nothing(PathName::Copy);
}

#[test]
fn map_allocates_nothing() {
    allocates_nothing(PathName::Map);
}

#[test]
fn persistent_allocates_nothing() {
    allocates_nothing(PathName::Persistent);
}
