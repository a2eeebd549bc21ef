//! A machine with guests that have a disk each, in one process, and their backend in another.
//!
//! ```text
//!   the first core   guests, a thread each; the backend's control thread, asleep while requests move
//!   the second ...   worker 0, worker 1 ...; with fewer cores than that they begin again at the first
//! ```
//! Requests are counted by the guests; operations and CPU time at both ends, as of the same two
//! moments.

use super::Row;
use super::medium::{Files, Image, Medium};
use crate::bench::Result;
use crate::bench::core_placement::CorePlacement;
use pregrant::blk::path::PathName;
use pregrant_host::drivers::{Mode, Placement};
use pregrant_testbed::answer;
use pregrant_testbed::process::disks::disks_command::{
    Buffers, DiskSetup, DisksCommand, DisksSeen, HANDLE, Load, Rested,
};
use pregrant_testbed::process::process_command::{Devices, ProcessCommand};
use pregrant_testbed::process::report::{Report, Spent};
use pregrant_testbed::testbed::{Ends, Testbed};
use std::time::Duration;

const FIRST: u16 = 10;
/// The time that requests are in flight before they are counted.
const WARM_UP: Duration = Duration::from_millis(20);
/// Smallest number of bytes of all disks of a machine together.
const DISKS_BYTES: u64 = 256 << 20;
/// The unit of a disk's length in bytes.
const DISK_UNIT: u64 = 1 << 20;

/// The settings for which a machine of its own is started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Plan {
    pub path: PathName,
    pub buffers: Buffers,
    pub medium: Medium,
    pub guests: u16,
    /// Number of worker threads of the backend.
    pub workers: usize,
}

impl Plan {
    /// Returns the number of queues of each disk: one for each worker if there are fewer guests
    /// than workers, and otherwise one.
    pub fn queues(&self) -> u32 {
        if usize::from(self.guests) < self.workers { self.workers as u32 } else { 1 }
    }

    /// Returns the path, and whose pages requests use, as text.
    pub fn path_name(&self) -> String {
        match self.buffers {
            Buffers::Pool => self.path.to_string(),
            Buffers::Own => format!("{}, own pages", self.path),
        }
    }

    /// True if many guests share a processor. Guests and the backend then sleep while all requests
    /// are in flight.
    pub fn sleeps(&self) -> bool {
        self.guests > 1
    }

    /// Returns the waiting mode of both ends, as records name it.
    pub fn mode(&self) -> Mode {
        if self.sleeps() { Mode::Event } else { Mode::Poll }
    }
}

/// The largest load that a guest's disk must be able to get.
#[derive(Clone, Copy, Debug, Default)]
pub struct Most {
    /// Largest number of requests in flight.
    pub depth: usize,
    /// Largest length of a request in bytes.
    pub size: usize,
    /// Largest number of bytes in flight.
    pub in_flight: usize,
}

impl Most {
    pub fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        rows.fold(Self::default(), |most, row| Self {
            depth: most.depth.max(row.depth),
            size: most.size.max(row.longest()),
            in_flight: most.in_flight.max(row.in_flight()),
        })
    }
}

pub struct Stand {
    ends: Ends,
    plan: Plan,
    pub core_placement: CorePlacement,
    /// True if a guest yields its core when it has nothing to do.
    pub gives_way: bool,
    _images: Vec<Image>,
}

/// The work that was done in the measured time.
#[derive(Debug)]
pub struct Window {
    pub seconds: f64,
    /// For each guest, the number of its requests.
    pub requests: Vec<u64>,
    /// The resources that the guests used; `rested` has what became of their requests.
    pub guests: Spent,
    pub back: Spent,
    /// Results of the guests, including requests before and after that time.
    pub rested: Rested,
}

impl Stand {
    /// Connects all disks and writes each once; `files` is the folder for disks on files.
    pub fn start(plan: Plan, most: &Most, files: Option<Files<'_>>) -> Result<Self> {
        let core_placement = CorePlacement::of(plan.workers)?;
        let mut testbed = Testbed::start()?;
        // Twice what is in flight: parts of the disk that requests are apart in begin where they
        // are aligned.
        let bytes = (DISKS_BYTES / u64::from(plan.guests)).max(2 * most.in_flight as u64);
        let bytes = bytes.next_multiple_of(DISK_UNIT);
        let fronts: Vec<u16> = (FIRST..).take(plan.guests.into()).collect();
        let mut images = Vec::new();
        for (n, front) in fronts.iter().enumerate() {
            testbed.large_guest_domain(*front)?;
            let image = plan.medium.image(bytes, files, n)?;
            testbed.make_disk(*front, HANDLE, image.params())?;
            images.push(image);
        }
        let back = testbed.process("back", 0, core_placement.back)?;
        let guests = testbed.process("guest", FIRST, core_placement.guest)?;
        let mut ends = Ends { back, guests, testbed };
        // A worker that has nothing to do sleeps in the end: other machines have the same cores.
        let mode = if plan.sleeps() { Mode::Event } else { Mode::Adaptive };
        let worker_setup = core_placement.worker_setup(Placement::Balanced, mode).ok_or("no workers")?;
        answer!(ends.ask_back(ProcessCommand::Serve(worker_setup, Devices::Disks(plan.path)))?, Report::Done => ());
        let setup = DiskSetup {
            persistent: plan.path == PathName::Persistent,
            queues: plan.queues(),
            depth: most.depth as u32,
            pages: most.in_flight.div_ceil(pregrant::PAGE_SIZE) + most.depth,
            size: most.size,
            buffers: plan.buffers,
        };
        let gather = ProcessCommand::Disks(DisksCommand::Gather { fronts, setup });
        answer!(ends.ask_guests(gather)?, Report::Done => ());
        Ok(Self { ends, plan, core_placement, gives_way: false, _images: images })
    }

    /// Asks the backend how its platform copied and mapped.
    pub fn platform(&mut self) -> Result<String> {
        Ok(answer!(self.ends.ask_back(ProcessCommand::Describe)?, Report::Described(text) => text))
    }

    /// Asks both ends for their current counters.
    fn check(&mut self) -> Result<(DisksSeen, Spent)> {
        let back = answer!(self.ends.ask_back(ProcessCommand::Spent)?, Report::Spent(spent) => spent);
        let check = self.ends.ask_guests(ProcessCommand::Disks(DisksCommand::Check))?;
        Ok((answer!(check, Report::DisksSeen(seen) => seen), back))
    }

    /// Measures while all guests keep as many requests in flight as the row says.
    pub fn run(&mut self, row: &Row, seconds: f64) -> Result<Window> {
        let load = Load {
            greedy: row.greedy,
            sleeps: self.plan.sleeps(),
            gives_way: self.gives_way,
            takes_turns: row.is_compared,
            ..Load::of(row.dir, row.size, row.align, row.depth)
        };
        answer!(self.ends.ask_guests(ProcessCommand::Disks(DisksCommand::Begin(load)))?, Report::Done => ());
        std::thread::sleep(WARM_UP);
        let (began, spent) = self.check()?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (ended, last) = self.check()?;
        let rested = self.ends.ask_guests(ProcessCommand::Disks(DisksCommand::Rest))?;
        let rested = answer!(rested, Report::Rested(rested) => *rested);
        let guests = ended.spent.since(&began.spent);
        Ok(Window {
            seconds: guests.seconds(),
            requests: ended.requests.iter().zip(&began.requests).map(|(b, a)| b - a).collect(),
            back: last.since(&spent),
            guests,
            rested,
        })
    }
}
