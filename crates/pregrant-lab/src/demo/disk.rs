//! The act with a disk: a guest reads and writes at random places, its backend is killed in the
//! middle, and a new process takes up the live ring. The guest knows of each sector what it wrote
//! last, and checks every read, and at the end the whole disk.
//!
//! ```text
//!   guest: all sectors written ---- 32 requests in flight, all the time ---------------------------- all sectors read
//!   backend:           first process  --kill -9--| fork, exec, attach, requests once more |-- second process
//! ```
//! The image is memory of this process, which outlives a backend as a disk does, and goes with this
//! process however that ends.

use super::Result;
use crate::record::{DISK_RESTART, Disk, Of, Record, Took};
use pregrant::PAGE_SIZE;
use pregrant::blk::path::PathName;
use pregrant_cli::screen::Progress;
use pregrant_cli::table::figure;
use pregrant_host::drivers::{Mode, Placement, RxContext};
use pregrant_testbed::answer;
use pregrant_testbed::process::disks::disks_command::{
    Buffers, Dir, DiskSetup, DisksCommand, HANDLE, Load, Rested,
};
use pregrant_testbed::process::process_command::{Devices, ProcessCommand, WorkerSetup};
use pregrant_testbed::process::report::Report;
use pregrant_testbed::testbed::{Ends, Process, Testbed};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

pub const GUEST: u16 = 7;
/// Length of the disk in bytes.
pub const DISK_BYTES: u64 = 32 << 20;
/// The number of bytes of a request; the next constant is the number of requests in flight.
pub const SIZE: usize = 4096;
pub const DEPTH: usize = 32;
const WORKERS: usize = 1;
const MODE: Mode = Mode::Adaptive;
/// The time that requests run before the kill, and after the first answer of the new process.
const MOVES: Duration = Duration::from_millis(150);
/// The time that the new process may need to answer: a busy machine takes long to start one.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which the requests are checked.
const CHECK: Duration = Duration::from_millis(2);

/// A disk image for this run only: a file without a name, so that no signal leaves it behind.
struct ImageFile(OwnedFd);

impl ImageFile {
    fn make() -> Result<Self> {
        let made = memfd_create("pregrant-demo", MemfdFlags::CLOEXEC);
        let made = made.and_then(|file| ftruncate(&file, DISK_BYTES).map(|()| file));
        Ok(Self(
            made.map_err(|e| format!("cannot make the disk's image, {DISK_BYTES} bytes of memory: {e}"))?,
        ))
    }

    /// The path by which other processes of this user open the image.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// A machine with a disk, and the processes at both ends of the disk.
pub struct DiskStage {
    ends: Ends,
    _image: ImageFile,
}

pub struct Played {
    /// The process ids of the backend that was killed and of its successor.
    pids: [u32; 2],
    /// Number of requests that were answered before the kill, and in all.
    before: u64,
    all: u64,
    rested: Rested,
    /// The time for which requests were sent.
    took: Duration,
    /// Number of sectors that were checked at the end.
    sectors: u64,
}

fn serve(testbed: &Testbed) -> Result<Process> {
    let mut back = testbed.process("back", 0, None)?;
    let worker_setup = WorkerSetup {
        workers: WORKERS,
        place: Placement::Balanced,
        rx_context: RxContext::Worker,
        mode: MODE,
        cores: Vec::new(),
    };
    let serve = ProcessCommand::Serve(worker_setup, Devices::Disks(PathName::Persistent));
    answer!(back.ask(&serve, &mut [])?, Report::Done => ());
    Ok(back)
}

impl DiskStage {
    /// Creates the machine, connects the disk, and writes all of it.
    pub fn start() -> Result<Self> {
        let image = ImageFile::make()?;
        let mut testbed = Testbed::start()?;
        testbed.guest_domain(GUEST)?;
        testbed.make_disk(GUEST, HANDLE, &image.path())?;
        let back = serve(&testbed)?;
        let guests = testbed.process("guest", GUEST, None)?;
        let mut stage = Self { ends: Ends { back, guests, testbed }, _image: image };
        let (depth, pages) = (DEPTH as u32, DEPTH * SIZE / PAGE_SIZE);
        let setup =
            DiskSetup { persistent: true, queues: 1, depth, pages, size: SIZE, buffers: Buffers::Pool };
        answer!(stage.ask(DisksCommand::Gather { fronts: vec![GUEST], setup })?, Report::Done => ());
        Ok(stage)
    }

    fn ask(&mut self, order: DisksCommand) -> Result<Report> {
        self.ends.ask_guests(ProcessCommand::Disks(order))
    }

    fn answered(&mut self) -> Result<u64> {
        Ok(answer!(self.ask(DisksCommand::Check)?, Report::DisksSeen(seen) => seen.requests.iter().sum()))
    }

    fn rested(&mut self, order: DisksCommand) -> Result<Rested> {
        Ok(answer!(self.ask(order)?, Report::Rested(rested) => *rested))
    }

    /// Plays this part of the demo. A request that fails, or a byte with a value other than the
    /// last written one, is an error.
    pub fn play(mut self, progress: &Progress) -> Result<Played> {
        progress.show("   reading and writing");
        let first = self.answered()?;
        let began = Instant::now();
        answer!(self.ask(DisksCommand::Begin(Load::of(Dir::Mixed, SIZE, SIZE, DEPTH)))?, Report::Done => ());
        // From here on the guest knows how long each request takes.
        self.answered()?;
        std::thread::sleep(MOVES);
        let before = self.answered()? - first;
        let old = self.ends.back.pid();
        self.ends.back.kill()?;
        progress.show("   waiting for the new backend's first answer");
        self.ends.back = serve(&self.ends.testbed)?;
        // The answers between the last check and the kill are no more than a moment's work.
        let (taken_up, until) = (self.answered()?, Instant::now() + PATIENCE);
        while self.answered()? == taken_up {
            if Instant::now() > until {
                return Err(format!("the new backend has answered nothing after {PATIENCE:?}").into());
            }
            std::thread::sleep(CHECK);
        }
        progress.show("   reading and writing on");
        std::thread::sleep(MOVES);
        let rested = self.rested(DisksCommand::Rest)?;
        let took = began.elapsed();
        let all = self.answered()? - first;
        progress.show("   reading all of the disk");
        let whole = self.rested(DisksCommand::Verify)?;
        for (what, n) in [
            ("requests failed", rested.failed + whole.failed),
            ("reads brought other bytes than were written", rested.damaged + whole.damaged),
            ("wake-ups were missed", rested.missed_wakeups),
        ] {
            if n > 0 {
                return Err(format!("{n} {what} around the death of the backend; none may").into());
            }
        }
        let pids = [old, self.ends.back.pid()];
        Ok(Played { pids, before, all, rested, took, sectors: whole.checked })
    }

    pub fn pid(&self) -> u32 {
        self.ends.back.pid()
    }
}

impl Played {
    pub fn lines(&self) -> Vec<String> {
        let [old, new] = self.pids;
        vec![
            format!(
                "process {old} was killed (SIGKILL) when {} requests were answered, and process {new} took over",
                self.before
            ),
            format!(
                "the guest's {} requests: none failed; the longest took {} ms",
                self.all,
                figure(self.rested.latency.most_ns as f64 / 1e6)
            ),
            format!(
                "each read had what was written last; so has all of the disk, {} sectors, every byte checked",
                self.sectors
            ),
        ]
    }

    pub fn record(&self) -> Record {
        let Rested { failed, damaged, missed_wakeups, latency, .. } = &self.rested;
        let mut record =
            Record::new(DISK_RESTART, PathName::Persistent.name(), Dir::Mixed.name(), SIZE as u64);
        record.count(self.all, self.took.as_secs_f64());
        record.lost = *failed;
        record.damaged = Some(*damaged);
        record.missed_wakeups = Some(*missed_wakeups);
        record.depth = Some(DEPTH as u32);
        record.workers = Some(WORKERS as u32);
        record.mode = MODE.name().into();
        record.took = Some(Took {
            latency_p50_ns: latency.p50_ns,
            latency_p99_ns: latency.p99_ns,
            latency_most_ns: Some(latency.most_ns),
            latency_histogram: None,
        });
        let (align, before) = (Some(SIZE as u32), Some(self.before));
        record.of = Of::Disk(Disk { guests: 1, align, before, ..Disk::default() });
        record
    }
}
