//! A machine with guests that have a disk each, in one process, and their backend in another.
//!
//! ```text
//!   the first core   guests, a thread each; the backend's control thread, asleep while requests move
//!   the second ...   worker 0, worker 1 ...; with fewer cores than that they begin again at the first
//! ```
//! Requests are counted by the guests; operations and CPU time at both ends, as of the same two moments.

use super::Row;
use crate::bench::crowd::since;
use crate::bench::seating::Seating;
use crate::process::crowd::order::{BackOrder, CrowdReport, Spent};
use crate::process::disks::order::{DisksReport, GuestOrder, HANDLE, Load, Rested, Seen, Wish};
use crate::process::order::{Order, Report};
use crate::testbed::{Process, Testbed};
use pregrant::blk::path::PathName;
use pregrant_host::drivers::{Mode, Placement};
use std::error::Error;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The first guest's domain.
const FIRST: u16 = 10;
/// How long requests are in flight before they are counted.
const WARM_UP: Duration = Duration::from_millis(20);
/// Bytes of all disks of a machine together, at least.
const DISKS_BYTES: u64 = 256 << 20;
/// Bytes that a disk's length is a multiple of.
const DISK_UNIT: u64 = 1 << 20;

/// What a machine is made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Plan {
    /// How bytes travel.
    pub path: PathName,
    /// Guests.
    pub guests: u16,
    /// Worker threads of the backend.
    pub workers: usize,
}

impl Plan {
    /// Queues of each disk: each worker has some of one guest's, and else whole guests.
    pub fn queues(&self) -> u32 {
        if usize::from(self.guests) < self.workers { self.workers as u32 } else { 1 }
    }

    /// Many guests share a processor: each sleeps when its requests are all in flight, and so does the backend.
    pub fn sleeps(&self) -> bool {
        self.guests > 1
    }

    /// How both ends wait, as records name it.
    pub fn mode(&self) -> Mode {
        if self.sleeps() { Mode::Event } else { Mode::Poll }
    }
}

/// What a guest's disk must be fit for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Most {
    /// Requests in flight.
    pub depth: usize,
    /// Bytes of a request.
    pub size: usize,
    /// Bytes in flight.
    pub in_flight: usize,
}

impl Most {
    /// Of these rows.
    pub fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        rows.fold(Self::default(), |most, row| Self {
            depth: most.depth.max(row.depth),
            size: most.size.max(row.longest()),
            in_flight: most.in_flight.max(row.in_flight()),
        })
    }
}

/// The machine.
pub struct Stand {
    // The backend first: guests that go are then nobody's business.
    back: Process,
    guests: Process,
    _testbed: Testbed,
    plan: Plan,
    seating: Seating,
    /// A guest gives its core away when it has nothing to do.
    pub gives_way: bool,
}

/// What was done in some time.
#[derive(Debug)]
pub struct Window {
    /// That time.
    pub seconds: f64,
    /// Requests, by guest.
    pub requests: Vec<u64>,
    /// The guests' part, beside what became of their requests.
    pub guests: Seen,
    /// The backend's.
    pub back: Spent,
    /// What became of them, those before and after that time too.
    pub rested: Rested,
}

fn another(report: &impl std::fmt::Debug) -> Box<dyn Error> {
    format!("an answer to another order: {report:?}").into()
}

impl Stand {
    /// With all disks connected, and written once.
    pub fn start(plan: Plan, most: &Most) -> Result<Self> {
        let seating = Seating::of(plan.workers)?;
        let mut testbed = Testbed::start()?;
        // Twice what is in flight: parts of the disk that requests are apart in begin where they are aligned.
        let bytes = (DISKS_BYTES / u64::from(plan.guests)).max(2 * most.in_flight as u64);
        let bytes = bytes.next_multiple_of(DISK_UNIT);
        let image = format!("ram:{bytes}");
        let fronts: Vec<u16> = (FIRST..).take(plan.guests.into()).collect();
        for front in &fronts {
            testbed.large_guest_domain(*front)?;
            testbed.make_disk(*front, HANDLE, &image)?;
        }
        let back = testbed.process("crowd-back", 0, seating.back)?;
        let guests = testbed.process("disks", FIRST, seating.guest)?;
        let mut stand = Self { back, guests, _testbed: testbed, plan, seating, gives_way: false };
        // A worker that has nothing to do sleeps in the end: other machines have the same cores.
        let mode = if plan.sleeps() { Mode::Event } else { Mode::Adaptive };
        let posts = stand.seating.posts(Placement::Balanced, mode).ok_or("no workers")?;
        stand.ask_back(BackOrder::ServeDisks { posts, path: plan.path })?;
        let wish = Wish {
            persistent: plan.path == PathName::Persistent,
            queues: plan.queues(),
            depth: most.depth as u32,
            pages: most.in_flight.div_ceil(pregrant::PAGE_SIZE) + most.depth,
            size: most.size,
        };
        stand.ask(GuestOrder::Gather { fronts, wish })?;
        Ok(stand)
    }

    /// Whether the guests share their core with a worker.
    pub fn shares_guests_core(&self) -> bool {
        self.seating.shares_guests_core()
    }

    /// Who is where, in words.
    pub fn words(&self) -> String {
        self.seating.words()
    }

    fn ask(&mut self, order: GuestOrder) -> Result<DisksReport> {
        self.guests.order(&Order::Disks(order))?;
        match self.guests.report(&mut [&mut self.back])? {
            Report::Disks(report) => Ok(report),
            other => Err(another(&other)),
        }
    }

    fn ask_back(&mut self, order: BackOrder) -> Result<CrowdReport> {
        self.back.order(&Order::CrowdBack(order))?;
        match self.back.report(&mut [&mut self.guests])? {
            Report::Crowd(report) => Ok(report),
            other => Err(another(&other)),
        }
    }

    /// How the platform did its work, as the backend tells it.
    pub fn platform(&mut self) -> Result<String> {
        match self.ask_back(BackOrder::Describe)? {
            CrowdReport::Described(text) => Ok(text),
            other => Err(another(&other)),
        }
    }

    /// Both ends, as of now.
    fn look(&mut self) -> Result<(Seen, Spent)> {
        let back = match self.ask_back(BackOrder::Spent)? {
            CrowdReport::Spent(spent) => spent,
            other => return Err(another(&other)),
        };
        match self.ask(GuestOrder::Look)? {
            DisksReport::Seen(seen) => Ok((seen, back)),
            other => Err(another(&other)),
        }
    }

    /// What is done while all guests keep so many requests in flight.
    pub fn run(&mut self, row: &Row, seconds: f64) -> Result<Window> {
        let load = Load {
            dir: row.dir,
            size: row.size,
            greedy: row.greedy,
            align: row.align,
            depth: row.depth,
            sleeps: self.plan.sleeps(),
            gives_way: self.gives_way,
            takes_turns: row.is_compared,
            careless: false,
        };
        self.ask(GuestOrder::Begin(load))?;
        std::thread::sleep(WARM_UP);
        let (began, spent) = self.look()?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (ended, last) = self.look()?;
        let rested = match self.ask(GuestOrder::Rest)? {
            DisksReport::Rested(rested) => *rested,
            other => return Err(another(&other)),
        };
        let guests = Seen {
            at_ns: ended.at_ns - began.at_ns,
            requests: ended.requests.iter().zip(&began.requests).map(|(b, a)| b - a).collect(),
            cpu_ns: ended.cpu_ns - began.cpu_ns,
            ops: ended.ops.since(&began.ops),
        };
        Ok(Window {
            seconds: guests.at_ns as f64 / 1e9,
            requests: guests.requests.clone(),
            back: since(&last, &spent),
            guests,
            rested,
        })
    }
}
