//! A disk in memory with a cache that can be lost. It executes requests at once, or when the test
//! says so, in any order.
//!
//! ```text
//!   submit --> unstarted --start--> waiting --do_one--> cache (what reads see) --a flush--> platter (what a loss of power leaves)
//! ```
//! Dropping a queue's way to it loses what waits there, or does it first, as the test has it: so a
//! back's process ends.

use crate::shared_disk::{Model, SharedDisk, perhaps_die};
use pregrant::blk::disk::{DiskFigures, Done, Io, IoError, IoMemory, IoOp, OpenError, Opening, SECTOR_BYTES};
use std::sync::MutexGuard;

#[derive(Debug)]
pub struct Inside {
    pub figures: DiskFigures,
    /// The error with which the disk refuses to be opened, if it does.
    pub broken: Option<String>,
    /// The identity of the image.
    pub identity: Option<String>,
    pub cache: Vec<u8>,
    /// The content that survives a loss of power.
    pub platter: Vec<u8>,
    pub log: Vec<(IoOp, u64, u64)>,
    /// For each queue's handle: requests that were not executed, and results that must be reported.
    lanes: Vec<Lane>,
    /// If true, a request is executed only when the test calls `do_one`; otherwise at once.
    pub by_hand: bool,
    /// The error with which every request fails when it is executed, if requests must fail.
    pub fails: Option<IoError>,
    pub opened: u32,
    /// True if the image was last opened for writing.
    pub writable: bool,
    /// Number of 512-byte units in a logical sector, as of the last open.
    units: u64,
    /// Number of calls of a handle until the back's process dies. None: it does not die.
    pub dies_in: Option<u32>,
    /// For each transfer in mapped pages, its number of fragments.
    pub pieces: Vec<usize>,
    /// Bit `k % 16` tells whether the `k`-th of the waiting requests is executed when a queue's
    /// handle is dropped.
    lands: usize,
}

#[derive(Debug, Default)]
struct Lane {
    gone: bool,
    /// The requests submitted since the last start.
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

    /// Returns the number of requests of all queues that were started and not executed.
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    /// Returns the number of requests of all queues that were submitted and not started.
    pub fn unstarted(&self) -> usize {
        self.lanes.iter().map(|lane| lane.unstarted.len()).sum()
    }

    /// Executes one of the waiting requests, which `which` selects. Returns false if there are
    /// none.
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
}

/// The disk, shared by all of its handles.
pub type ModelDisk = SharedDisk<Inside>;

impl ModelDisk {
    pub fn new(figures: DiskFigures) -> Self {
        let bytes: Vec<u8> = (0..figures.sectors as usize * SECTOR_BYTES).map(byte).collect();
        Self::of(Inside {
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
            lands: 0,
        })
    }

    pub fn inside(&self) -> MutexGuard<'_, Inside> {
        self.lock()
    }

    /// Sets which of the waiting requests are executed when a queue's handle is dropped: bit `k %
    /// 16` of `which` is for the `k`-th request.
    pub fn lands_at_end(&self, which: usize) {
        self.lock().lands = which;
    }

    /// Returns the requests that were submitted since the last call: operation, first sector, and
    /// number of sectors.
    pub fn log(&self) -> Vec<(IoOp, u64, u64)> {
        std::mem::take(&mut self.lock().log)
    }
}

/// The byte at offset `at` of a new disk.
pub fn byte(at: usize) -> u8 {
    (at ^ ((at >> 9) * 29) ^ ((at >> 12) * 101)) as u8
}

impl Model for Inside {
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError> {
        self.opened += 1;
        self.writable = how.writable;
        let figures = if how.native_sectors { self.figures } else { self.figures.in_sectors_of_512() };
        self.units = figures.units();
        self.broken.clone().map_or(Ok(figures), |why| Err(OpenError::Failed(why)))
    }
    fn identity(&self) -> Option<String> {
        self.identity.clone()
    }
    fn lane(&mut self) -> usize {
        self.lanes.push(Lane::default());
        self.lanes.len() - 1
    }
    fn submit(&mut self, lane: usize, io: Io) {
        perhaps_die(&mut self.dies_in);
        if let IoMemory::Mapped(pieces) = &io.memory {
            self.pieces.push(pieces.len());
        }
        self.log.push((io.op, io.sector, io.sectors));
        self.lanes[lane].unstarted.push(io);
    }
    fn start(&mut self, lane: usize) {
        for io in std::mem::take(&mut self.lanes[lane].unstarted) {
            if self.by_hand {
                self.lanes[lane].waiting.push(io);
            } else {
                self.perform(lane, io);
            }
        }
    }
    fn complete(&mut self, lane: usize, done: &mut Vec<Done>) {
        done.append(&mut self.lanes[lane].done);
        perhaps_die(&mut self.dies_in);
    }
    fn wait(&mut self, lane: usize) -> bool {
        assert_eq!(self.lanes[lane].unstarted.len(), 0, "it sleeps for an order that is not started");
        if !self.lanes[lane].waiting.is_empty() {
            let io = self.lanes[lane].waiting.remove(0);
            self.perform(lane, io);
        }
        true
    }
    /// Called when a queue's handle is dropped: executes those of its waiting requests that `lands`
    /// selects, and drops the others.
    fn end(&mut self, lane: usize) {
        let Lane { unstarted, waiting, .. } = &mut self.lanes[lane];
        let left: Vec<Io> = waiting.drain(..).chain(unstarted.drain(..)).collect();
        for (k, io) in left.into_iter().enumerate() {
            if (self.lands >> (k % 16)) & 1 == 1 {
                self.perform(lane, io);
            }
        }
        self.lanes[lane].done.clear();
        self.lanes[lane].gone = true;
    }
}
