//! The act with a disk: a guest reads and writes at random places, its backend is killed in the middle, and a new process takes up the
//! live ring. The guest knows of each sector what it wrote last, and looks at every read; at the end at the whole disk.
//!
//! ```text
//!   guest: all sectors written ---- 32 requests in flight, all the time ---------------------------- all sectors read
//!   backend:           first process  --kill -9--| fork, exec, attach, requests once more |-- second process
//! ```
//! The image is a file, which outlives a process as a disk does; in memory where there is such a place.

use super::Result;
use crate::process::crowd::order::{BackOrder, CrowdReport};
use crate::process::disks::order::{Dir, DisksReport, GuestOrder, HANDLE, Load, Rested, Wish};
use crate::process::order::{Order, Posts, Report};
use crate::table::figure;
use crate::testbed::{Process, Testbed};
use pregrant::PAGE_SIZE;
use pregrant::blk::path::PathName;
use pregrant_host::drivers::{Mode, Placement};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The guest.
pub const GUEST: u16 = 7;
/// Bytes of the disk.
pub const DISK_BYTES: u64 = 32 << 20;
/// Bytes of a request, and requests in flight.
pub const SIZE: usize = 4096;
pub const DEPTH: usize = 32;
/// How long requests move before the kill, and after the new process answers.
const MOVES: Duration = Duration::from_millis(150);
/// How long the new process has for its first answer: a busy machine takes long to start one.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at that.
const LOOK: Duration = Duration::from_millis(2);

/// An image of this run alone, gone with it.
struct ImageFile(PathBuf);

impl ImageFile {
    fn make() -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        let path = dir.join(format!("pregrant-demo-{}.img", std::process::id()));
        let said = |e| format!("cannot make {}, the disk's image: {e}", path.display());
        File::create_new(&path).and_then(|file| file.set_len(DISK_BYTES)).map_err(said)?;
        Ok(Self(path))
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // it may be gone
    }
}

/// The machine, its disk and its two processes.
pub struct DiskStage {
    // The guest first: a backend that sees it go has nothing to close.
    guest: Process,
    back: Process,
    testbed: Testbed,
    image: ImageFile,
}

/// What came of it.
pub struct Played {
    /// The process that was killed, and its successor.
    pids: [u32; 2],
    /// Requests that were answered before the kill, and in all.
    before: u64,
    all: u64,
    rested: Rested,
    /// Sectors that were looked at in the end.
    sectors: u64,
    image: PathBuf,
}

fn serve(testbed: &Testbed) -> Result<Process> {
    let mut back = testbed.process("crowd-back", 0, None)?;
    let posts = Posts { workers: 1, place: Placement::Balanced, mode: Mode::Adaptive, cores: Vec::new() };
    back.order(&Order::CrowdBack(BackOrder::ServeDisks { posts, path: PathName::Persistent }))?;
    match back.report(&mut [])? {
        Report::Crowd(CrowdReport::Done) => Ok(back),
        other => Err(format!("an answer to another order: {other:?}").into()),
    }
}

impl DiskStage {
    /// Connects the disk, and has all of it written.
    pub fn start() -> Result<Self> {
        let image = ImageFile::make()?;
        let mut testbed = Testbed::start()?;
        testbed.guest_domain(GUEST)?;
        testbed.make_disk(GUEST, HANDLE, &image.0.display().to_string())?;
        let back = serve(&testbed)?;
        let guest = testbed.process("disks", GUEST, None)?;
        let mut stage = Self { guest, back, testbed, image };
        let (depth, pages) = (DEPTH as u32, DEPTH * SIZE / PAGE_SIZE);
        let wish = Wish { persistent: true, queues: 1, depth, pages, size: SIZE };
        stage.ask(GuestOrder::Gather { fronts: vec![GUEST], wish })?;
        Ok(stage)
    }

    fn ask(&mut self, order: GuestOrder) -> Result<DisksReport> {
        self.guest.order(&Order::Disks(order))?;
        match self.guest.report(&mut [&mut self.back])? {
            Report::Disks(report) => Ok(report),
            other => Err(format!("an answer to another order: {other:?}").into()),
        }
    }

    fn answered(&mut self) -> Result<u64> {
        match self.ask(GuestOrder::Look)? {
            DisksReport::Seen(seen) => Ok(seen.requests.iter().sum()),
            other => Err(format!("an answer to another order: {other:?}").into()),
        }
    }

    fn rested(&mut self, order: GuestOrder) -> Result<Rested> {
        match self.ask(order)? {
            DisksReport::Rested(rested) => Ok(*rested),
            other => Err(format!("an answer to another order: {other:?}").into()),
        }
    }

    /// The act. A request that fails, or a byte that is not what was written last, is an error.
    pub fn play(mut self) -> Result<Played> {
        let load = Load {
            dir: Dir::Mixed,
            size: SIZE,
            greedy: None,
            align: SIZE,
            depth: DEPTH,
            sleeps: true,
            gives_way: false,
            takes_turns: false,
            careless: false,
        };
        let first = self.answered()?;
        self.ask(GuestOrder::Begin(load))?;
        // From here on the guest knows how long each request takes.
        self.answered()?;
        std::thread::sleep(MOVES);
        let before = self.answered()? - first;
        let old = self.back.pid();
        self.back.kill()?;
        self.back = serve(&self.testbed)?;
        // What was answered between the last look and the kill is no more than a moment's work.
        let (taken_up, until) = (self.answered()?, Instant::now() + PATIENCE);
        while self.answered()? == taken_up {
            if Instant::now() > until {
                return Err(format!("the new backend has answered nothing after {PATIENCE:?}").into());
            }
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(MOVES);
        let rested = self.rested(GuestOrder::Rest)?;
        let all = self.answered()? - first;
        let whole = self.rested(GuestOrder::Verify)?;
        for (what, n) in [
            ("requests failed", rested.failed + whole.failed),
            ("reads brought other bytes than were written", rested.damaged + whole.damaged),
            ("wake-ups were missed", rested.missed_wakeups),
        ] {
            if n > 0 {
                return Err(format!("{n} {what} around the death of the backend; none may").into());
            }
        }
        let pids = [old, self.back.pid()];
        Ok(Played { pids, before, all, rested, sectors: whole.checked, image: self.image.0.clone() })
    }

    /// Who serves.
    pub fn pid(&self) -> u32 {
        self.back.pid()
    }
}

impl Played {
    /// The act in words.
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
                "each read had what was written last; so has all of the disk, {} sectors, every byte looked at ({})",
                self.sectors,
                self.image.display()
            ),
        ]
    }
}
