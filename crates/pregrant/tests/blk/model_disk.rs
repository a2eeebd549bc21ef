//! A disk in memory with a cache that can be lost, which does what it is given at once, or when the test says so, in any order.
//!
//! ```text
//!   submit --> unstarted --start--> waiting --do_one--> cache (what reads see) --a flush--> platter (what a loss of power leaves)
//! ```
//! Dropping a queue's way to it loses what waits there, or does it first, as the test has it: so a back's process ends.

use pregrant::blk::disk::{
    Disk, DiskFigures, Done, Image, Io, IoError, IoMemory, IoOp, OpenError, Opening, SECTOR_BYTES,
};
use pregrant::error::PlatformError;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug)]
pub struct Inside {
    pub figures: DiskFigures,
    /// Why it cannot be opened.
    pub broken: Option<String>,
    /// What tells it from others.
    pub identity: Option<String>,
    /// What reads see.
    pub cache: Vec<u8>,
    /// What a loss of power leaves.
    pub platter: Vec<u8>,
    /// What it was given, in order.
    pub log: Vec<(IoOp, u64, u64)>,
    /// By queue: what was not done yet, and what was and is to be told.
    lanes: Vec<Lane>,
    /// Orders are done when the test says so.
    pub by_hand: bool,
    /// Orders fail so, when they are done.
    pub fails: Option<IoError>,
    pub opened: u32,
    /// As it was opened last.
    pub writable: bool,
    /// Units of 512 bytes in a logical sector, as it was opened last.
    units: u64,
    /// The back's process ends at the so many-th call of a way to it.
    pub dies_in: Option<u32>,
    /// Pieces of each transfer in mapped pages.
    pub pieces: Vec<usize>,
}

#[derive(Debug, Default)]
struct Lane {
    gone: bool,
    /// What was submitted since the last start.
    unstarted: Vec<Io>,
    waiting: Vec<Io>,
    done: Vec<Done>,
}

impl Inside {
    fn range(sector: u64, sectors: u64) -> std::ops::Range<usize> {
        sector as usize * SECTOR_BYTES..(sector + sectors) as usize * SECTOR_BYTES
    }

    fn perform(&mut self, lane: usize, mut io: Io) {
        if let Some(e) = self.fails {
            return self.lanes[lane].done.push(Done { io, outcome: Err(e) });
        }
        let at = Self::range(io.sector, io.sectors);
        assert!(at.end <= self.cache.len(), "{io:?} passes the end of the disk");
        if matches!(io.op, IoOp::Read | IoOp::Write) {
            assert_eq!(io.memory.len(), at.len(), "{io:?}");
            assert_eq!(io.sectors % self.units, 0, "{io:?}");
        }
        let outcome = match io.op {
            IoOp::Read => {
                io.memory.fill_from(&self.cache[at]);
                Ok(())
            }
            IoOp::Write => {
                assert!(!self.figures.read_only);
                io.memory.read_into(&mut self.cache[at]);
                Ok(())
            }
            IoOp::Flush => {
                self.platter.copy_from_slice(&self.cache);
                Ok(())
            }
            IoOp::Discard { .. } => {
                self.cache[at].fill(0);
                Ok(())
            }
        };
        self.lanes[lane].done.push(Done { io, outcome });
    }

    /// Orders that wait, over all queues.
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    /// Orders that nobody has started, over all queues.
    pub fn unstarted(&self) -> usize {
        self.lanes.iter().map(|lane| lane.unstarted.len()).sum()
    }

    /// Does one of those that wait. False: there are none.
    pub fn do_one(&mut self, which: usize) -> bool {
        let n = self.waiting();
        if n == 0 {
            return false;
        }
        let mut k = which % n;
        for lane in 0..self.lanes.len() {
            let here = self.lanes[lane].waiting.len();
            if k < here {
                let io = self.lanes[lane].waiting.remove(k);
                self.perform(lane, io);
                return true;
            }
            k -= here;
        }
        unreachable!()
    }

    /// Of those that wait on ways that are gone, every other one is done in the end, and the rest never.
    fn end(&mut self, lane: usize, which: usize) {
        let Lane { unstarted, waiting, .. } = &mut self.lanes[lane];
        let left: Vec<Io> = waiting.drain(..).chain(unstarted.drain(..)).collect();
        for (k, io) in left.into_iter().enumerate() {
            if (which >> (k % 16)) & 1 == 1 {
                self.perform(lane, io);
            }
        }
        self.lanes[lane].done.clear();
        self.lanes[lane].gone = true;
    }
}

/// The disk, whoever has a way to it.
#[derive(Clone)]
pub struct ModelDisk(Arc<Mutex<Inside>>, Arc<Mutex<usize>>);

impl ModelDisk {
    pub fn new(figures: DiskFigures) -> Self {
        let bytes: Vec<u8> = (0..figures.sectors as usize * SECTOR_BYTES).map(byte).collect();
        let inside = Inside {
            figures,
            broken: None,
            identity: Some("the model".into()),
            cache: bytes.clone(),
            platter: bytes,
            log: Vec::new(),
            lanes: Vec::new(),
            by_hand: false,
            fails: None,
            opened: 0,
            writable: false,
            units: 1,
            dies_in: None,
            pieces: Vec::new(),
        };
        Self(Arc::new(Mutex::new(inside)), Arc::default())
    }

    pub fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(|dead| dead.into_inner())
    }

    /// Which of the orders that wait land when a queue's way is dropped: by the bits of this.
    pub fn lands_at_end(&self, which: usize) {
        *self.1.lock().unwrap() = which;
    }

    /// The process ends here, if it is to: not by the panic hook, for nobody is to be told.
    fn perhaps_die(&self) {
        let mut inside = self.inside();
        inside.dies_in = inside.dies_in.and_then(|n| n.checked_sub(1));
        if inside.dies_in == Some(0) {
            inside.dies_in = None;
            drop(inside);
            std::panic::resume_unwind(Box::new(Died));
        }
    }

    /// What it was given since the last call.
    pub fn log(&self) -> Vec<(IoOp, u64, u64)> {
        std::mem::take(&mut self.inside().log)
    }
}

/// How a back's process ends.
pub struct Died;

/// What a fresh disk holds at byte `at`.
pub fn byte(at: usize) -> u8 {
    (at ^ ((at >> 9) * 29) ^ ((at >> 12) * 101)) as u8
}

impl Image for ModelDisk {
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError> {
        let mut inside = self.inside();
        inside.opened += 1;
        inside.writable = how.writable;
        let figures = if how.native_sectors { inside.figures } else { inside.figures.in_sectors_of_512() };
        inside.units = figures.units();
        inside.broken.clone().map_or(Ok(figures), |why| Err(OpenError::Failed(why)))
    }
    fn identity(&self) -> Option<String> {
        self.inside().identity.clone()
    }
    fn queue(&mut self) -> Result<Box<dyn Disk>, PlatformError> {
        let mut inside = self.inside();
        inside.lanes.push(Lane::default());
        Ok(Box::new(Way { disk: self.clone(), lane: inside.lanes.len() - 1 }))
    }
}

struct Way {
    disk: ModelDisk,
    lane: usize,
}

impl Disk for Way {
    fn submit(&mut self, io: Io) {
        self.disk.perhaps_die();
        let mut inside = self.disk.inside();
        let order = (io.op, io.sector, io.sectors);
        if let IoMemory::Mapped(pieces) = &io.memory {
            inside.pieces.push(pieces.len());
        }
        inside.log.push(order);
        inside.lanes[self.lane].unstarted.push(io);
    }
    fn start(&mut self) {
        let mut inside = self.disk.inside();
        let started = std::mem::take(&mut inside.lanes[self.lane].unstarted);
        for io in started {
            if inside.by_hand {
                inside.lanes[self.lane].waiting.push(io);
            } else {
                inside.perform(self.lane, io);
            }
        }
    }
    fn complete(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.disk.inside().lanes[self.lane].done);
        self.disk.perhaps_die();
    }
    fn wait(&mut self) -> bool {
        let mut inside = self.disk.inside();
        assert_eq!(inside.lanes[self.lane].unstarted.len(), 0, "it sleeps for what nobody has started");
        if !inside.lanes[self.lane].waiting.is_empty() {
            let io = inside.lanes[self.lane].waiting.remove(0);
            inside.perform(self.lane, io);
        }
        true
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let which = *self.disk.1.lock().unwrap();
        self.disk.inside().end(self.lane, which);
    }
}
