//! A machine with many guests in one process and their backend in another, for `bench scale` and
//! `bench fairness`.
//!
//! ```text
//!   core 1   the guests, filled in turn by one thread
//!   core 2.. the backend: worker 0 on core 2, worker 1 on core 3 ..., from core 2 on again where there are no more
//! ```
//! On two cores all workers share the second: what several of them cost shows there, and not what
//! they gain.
//!
//! Frames are counted at the backend's ports, between two checks of all of them by its control
//! thread.

use super::Result;
use crate::record::Record;
use pregrant::net::path::PathName;
use pregrant_host::drivers::{Mode, Placement, RxContext};
use pregrant_testbed::answer;
use pregrant_testbed::process::process_command::{Devices, Load, Member, ProcessCommand, WorkerSetup};
use pregrant_testbed::process::report::{Came, Played, Report, Spent};
use pregrant_testbed::testbed::{Ends, Testbed};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

pub const DATA_LEN: u32 = 2048;
const FIRST: u16 = 10;
/// The time that rings are full before frames are counted.
const WARM_UP: Duration = Duration::from_millis(20);
/// Number of descriptors that this process needs for each vif as broker and xenstored: connections,
/// memory, ledgers, and memory that outlives a back.
const DESCRIPTORS_A_VIF: u64 = 16;

/// Settings of a testbed with many guests.
pub struct Plan {
    /// For each guest, the number of queues of its vif.
    pub queues: Vec<u32>,
    /// Number of worker threads of the backend, unless each guest has its own.
    pub workers: usize,
    /// The rule by which a guest's queues get their workers.
    pub place: Placement,
    pub mode: Mode,
    pub path: PathName,
    /// Number of staging buffers of each direction that a guest asks for; 0: as many as slots.
    pub buffers: u32,
}

pub struct Cores {
    pub guests: Option<usize>,
    /// The core of each of the backend's workers; empty if there is only one core.
    pub workers: Vec<usize>,
}

impl Cores {
    /// Returns the cores that this process may use.
    pub fn of_machine() -> Result<Self> {
        let cores = pregrant_testbed::limit::cores()?;
        Ok(match &cores[..] {
            [guests, workers @ ..] if !workers.is_empty() => {
                Self { guests: Some(*guests), workers: workers.to_vec() }
            }
            _ => Self { guests: None, workers: Vec::new() },
        })
    }

    pub fn describe(&self) -> String {
        match (self.guests, &self.workers[..]) {
            (Some(a), [b]) => format!(
                "Guests on core {a}, the backend on core {b}: several workers share that core, and show what \
                 they cost and not what they gain."
            ),
            (Some(a), [first, .., last]) => {
                format!("Guests on core {a}, workers in turn on cores {first} to {last}.")
            }
            _ => "This process may use one core only, and the figures say little.".into(),
        }
    }
}

/// Raises the limit of descriptors for this many vifs, in this process and those that it starts.
pub fn make_room(vifs: usize) -> Result<()> {
    let needed = 256 + vifs as u64 * DESCRIPTORS_A_VIF;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if maximum.is_some_and(|maximum| maximum < needed) {
        return Err(format!(
            "{vifs} vifs take {needed} descriptors, and this process may have {}: raise it (ulimit -Hn {needed}), or ask for \
             fewer vifs",
            maximum.unwrap_or(0)
        )
        .into());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).map_err(|e| {
        format!("cannot have {needed} descriptors: {e}; raise the limit of open files (ulimit -n)")
    })?;
    Ok(())
}

pub struct Stand {
    ends: Ends,
    wrong: Wrong,
}

/// Numbers of frames that were lost, repeated or damaged, and of lost wake-ups.
#[derive(Clone, Copy, Default)]
pub struct Wrong {
    lost: u64,
    repeated: u64,
    damaged: u64,
    missed_wakeups: u64,
}

impl Wrong {
    fn since(self, before: Self) -> Self {
        Self {
            lost: self.lost.saturating_sub(before.lost),
            repeated: self.repeated - before.repeated,
            damaged: self.damaged - before.damaged,
            missed_wakeups: self.missed_wakeups - before.missed_wakeups,
        }
    }
}

/// The frames that arrived in the measured time.
#[derive(Default)]
pub struct Window {
    pub seconds: f64,
    pub frames: Vec<u64>,
    /// The resources that the backend used in that time.
    pub spent: Spent,
    pub wrong: Wrong,
}

impl Window {
    /// Returns the number of frames of all guests.
    pub fn sum(&self) -> u64 {
        self.frames.iter().sum()
    }

    /// Writes these counts into the record.
    pub fn set(&self, record: &mut Record) {
        record.count(self.sum(), self.seconds);
        record.set_spent(&Spent::default(), &self.spent);
        self.wrong.set(record);
    }
}

impl Wrong {
    fn set(self, record: &mut Record) {
        record.lost = self.lost;
        record.repeated = Some(self.repeated);
        record.damaged = Some(self.damaged);
        record.missed_wakeups = Some(self.missed_wakeups);
    }
}

/// Latency of single frames, and the resources that the backend used for them.
pub struct Echoes {
    /// The report of the guest.
    pub guest: Played,
    pub spent: Spent,
}

impl Echoes {
    /// Divides `of` by the number of times that an event woke the backend.
    pub fn a_wakeup(&self, of: u64) -> f64 {
        of as f64 / self.guest.spent.ops.wakeups.max(1) as f64
    }

    /// Writes these counts into the record.
    pub fn set(&self, record: &mut Record) {
        let guest = &self.guest;
        record.count(guest.frames, guest.spent.seconds());
        record.set_spent(&guest.spent, &self.spent);
        record.depth = Some(1);
        Wrong {
            lost: guest.came.missing,
            repeated: guest.came.wrong,
            damaged: guest.came.damaged,
            missed_wakeups: guest.spent.missed_wakeups + self.spent.missed_wakeups,
        }
        .set(record);
    }
}

impl Stand {
    pub fn start(plan: &Plan, cores: &Cores) -> Result<Self> {
        let mut testbed = Testbed::start()?;
        let queues = plan.queues.iter().zip(FIRST..);
        let members: Vec<_> = queues.map(|(&queues, domid)| Member { domid, queues }).collect();
        for member in &members {
            testbed.guest_domain(member.domid)?;
            testbed.make_vif(member.domid, 0)?;
        }
        let back = testbed.process("back", 0, cores.workers.first().copied())?;
        let guests = testbed.process("guest", FIRST, cores.guests)?;
        let mut ends = Ends { back, guests, testbed };
        let Plan { workers, place, mode, path, buffers, .. } = *plan;
        let rx_context = RxContext::Worker;
        let worker_setup = WorkerSetup { workers, place, rx_context, mode, cores: cores.workers.clone() };
        answer!(ends.ask_back(ProcessCommand::Serve(worker_setup, Devices::Vifs(path)))?, Report::Done => ());
        let data_len = (path == PathName::Staging).then_some(DATA_LEN);
        let gather = ProcessCommand::Gather { members, path, data_len, buffers };
        answer!(ends.ask_guests(gather)?, Report::Done => ());
        Ok(Self { ends, wrong: Wrong::default() })
    }

    /// Asks the backend for the resources that it has used up to now.
    pub fn spent(&mut self) -> Result<Spent> {
        Ok(answer!(self.ends.ask_back(ProcessCommand::Spent)?, Report::Spent(spent) => spent))
    }

    /// Returns the number of bytes of the backend's own memory, and of guests' memory that it has
    /// mapped.
    pub fn memory(&self) -> Result<[u64; 2]> {
        let path = format!("/proc/{}/status", self.ends.back.pid());
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            kib.map(|kib| kib << 10).ok_or(format!("{path} has no {name}"))
        };
        Ok([field("RssAnon:")?, field("RssShmem:")?])
    }

    fn seen(&mut self) -> Result<(Spent, Vec<Came>)> {
        Ok(answer!(self.ends.ask_back(ProcessCommand::Seen)?, Report::Seen { spent, came } => (spent, came)))
    }

    /// Counts the frames that arrive while these guests send as much as they can.
    pub fn send(&mut self, loads: Vec<Load>, seconds: f64) -> Result<Window> {
        answer!(self.ends.ask_guests(ProcessCommand::Send(loads))?, Report::Done => ());
        std::thread::sleep(WARM_UP);
        let (began, first) = self.seen()?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (ended, last) = self.seen()?;
        let rested = self.ends.ask_guests(ProcessCommand::Rest)?;
        let (sent, missed_wakeups) =
            answer!(rested, Report::Sent { frames, missed_wakeups } => (frames, missed_wakeups));
        // All that was sent is answered, so it has been at a port.
        let (end, all) = self.seen()?;
        if [first.len(), last.len(), all.len()] != [sent.len(); 3] {
            return Err(format!("{} guests were connected, and {} have ports", sent.len(), all.len()).into());
        }
        let mut wrong = Wrong { missed_wakeups: missed_wakeups + end.missed_wakeups, ..Wrong::default() };
        for (came, sent) in all.iter().zip(&sent) {
            wrong.lost += came.lost_of(*sent);
            wrong.repeated += came.wrong;
            wrong.damaged += came.damaged + came.foreign;
        }
        let before = std::mem::replace(&mut self.wrong, wrong);
        let spent = ended.since(&began);
        Ok(Window {
            seconds: spent.seconds(),
            frames: last.iter().zip(&first).map(|(b, a)| b.frames - a.frames).collect(),
            spent,
            wrong: wrong.since(before),
        })
    }

    /// Sends one frame of the first guest at a time and waits for its echo, with both ends asleep
    /// in between while the others are connected.
    pub fn echo(&mut self, seconds: f64) -> Result<Echoes> {
        answer!(self.ends.ask_back(ProcessCommand::SendBack(true))?, Report::Done => ());
        let began = self.spent()?;
        let echo = ProcessCommand::Echo { seconds, mode: Mode::Event };
        let guest = answer!(self.ends.ask_guests(echo)?, Report::Case(guest) => *guest);
        let spent = self.spent()?.since(&began);
        answer!(self.ends.ask_back(ProcessCommand::SendBack(false))?, Report::Done => ());
        Ok(Echoes { guest, spent })
    }
}
