//! A machine with many guests in one process and their backend in another, for `bench scale` and `bench fairness`.
//!
//! ```text
//!   core 1   the guests, filled in turn by one thread
//!   core 2.. the backend: worker 0 on core 2, worker 1 on core 3 ..., from core 2 on again where there are no more
//! ```
//! On two cores all workers share the second: what several of them cost shows there, and not what they gain.
//!
//! What came is counted at the backend's ports, between two looks of its control thread at all of them.

use crate::process::crowd::order::{BackOrder, Came, CrowdReport, Echoed, GuestOrder, Load, Member, Spent};
use crate::process::order::{Order, Posts, Report};
use crate::record::Record;
use crate::testbed::{Process, Testbed};
use pregrant::net::path::PathName;
use pregrant::net::path::data_ring::DEFAULT_ORDER;
use pregrant_host::drivers::{Mode, Placement};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Staging's data length.
pub const DATA_LEN: u32 = 2048;
/// The first guest's domain.
const FIRST: u16 = 10;
/// How long rings are full before frames are counted.
const WARM_UP: Duration = Duration::from_millis(20);
/// Descriptors of this process for each vif, as broker and xenstored: connections, memory, ledgers, what outlives a back.
const DESCRIPTORS_A_VIF: u64 = 16;

/// What a stand is made of.
pub struct Plan {
    /// Queues of each guest's vif.
    pub queues: Vec<u32>,
    /// Worker threads of the backend.
    pub workers: usize,
    /// How they wait.
    pub mode: Mode,
    /// How frames travel.
    pub path: PathName,
}

/// Where everybody is.
pub struct Cores {
    /// The guests.
    pub guests: Option<usize>,
    /// The backend's, by worker; empty where there is one core only.
    pub workers: Vec<usize>,
}

impl Cores {
    /// Of this machine, as far as this process may use it.
    pub fn of_machine() -> Result<Self> {
        let cores = crate::limit::cores()?;
        Ok(match &cores[..] {
            [guests, workers @ ..] if !workers.is_empty() => {
                Self { guests: Some(*guests), workers: workers.to_vec() }
            }
            _ => Self { guests: None, workers: Vec::new() },
        })
    }

    /// In words.
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

/// Makes room for the descriptors that so many vifs take, in this process and those that it starts.
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
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })
        .map_err(|e| format!("cannot have {needed} descriptors: {e}; see ulimit -n"))?;
    Ok(())
}

/// The machine.
pub struct Stand {
    // The backend first: guests that go are then nobody's business.
    back: Process,
    guests: Process,
    _testbed: Testbed,
    /// What went wrong so far.
    wrong: Wrong,
}

/// Frames that went wrong, and sleeps.
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

/// What came in some time.
#[derive(Default)]
pub struct Window {
    /// That time.
    pub seconds: f64,
    /// By guest.
    pub frames: Vec<u64>,
    /// What the backend used for it.
    pub spent: Spent,
    /// What went wrong.
    pub wrong: Wrong,
}

impl Window {
    /// Frames of all.
    pub fn sum(&self) -> u64 {
        self.frames.iter().sum()
    }

    /// Sets what is in it.
    pub fn set(&self, record: &mut Record) {
        record.count(self.sum(), self.seconds);
        record.set_ops(self.spent.ops);
        record.backend_cpu_ns = self.spent.cpu_ns;
        record.worker_cpu_ns = Some(self.spent.workers_cpu_ns.clone());
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

/// What single frames took, and the backend for them.
pub struct Echoes {
    /// As the guest tells it.
    pub guest: Echoed,
    /// What the backend used meanwhile.
    pub spent: Spent,
}

impl Echoes {
    /// System calls of the backend for each time that an event woke it.
    pub fn syscalls_a_wakeup(&self) -> f64 {
        self.spent.ops.syscalls as f64 / self.guest.wakeups.max(1) as f64
    }

    /// Sets what is in it.
    pub fn set(&self, record: &mut Record) {
        let guest = &self.guest;
        record.count(guest.frames, guest.seconds);
        record.set_ops(guest.ops.plus(&self.spent.ops));
        record.frontend_cpu_ns = guest.cpu_ns;
        record.backend_cpu_ns = self.spent.cpu_ns;
        record.worker_cpu_ns = Some(self.spent.workers_cpu_ns.clone());
        record.depth = Some(1);
        record.syscalls_a_wakeup = Some(self.syscalls_a_wakeup());
        Wrong {
            lost: guest.lost,
            repeated: guest.wrong,
            damaged: guest.damaged,
            missed_wakeups: guest.missed_wakeups + self.spent.missed_wakeups,
        }
        .set(record);
    }
}

/// What was used in between.
pub fn since(after: &Spent, before: &Spent) -> Spent {
    let workers = after.workers_cpu_ns.iter().zip(&before.workers_cpu_ns).map(|(a, b)| a - b);
    // The same devices: they stay.
    let devices = after.devices_ns.iter().zip(&before.devices_ns).map(|(a, b)| (a.0, a.1 - b.1));
    Spent {
        at_ns: after.at_ns - before.at_ns,
        cpu_ns: after.cpu_ns - before.cpu_ns,
        workers_cpu_ns: workers.collect(),
        devices_ns: devices.collect(),
        ops: after.ops.since(&before.ops),
        missed_wakeups: after.missed_wakeups - before.missed_wakeups,
    }
}

fn another(report: &CrowdReport) -> Box<dyn Error> {
    format!("an answer to another order: {report:?}").into()
}

impl Stand {
    /// With all guests connected.
    pub fn start(plan: &Plan, cores: &Cores) -> Result<Self> {
        let mut testbed = Testbed::start()?;
        let queues = plan.queues.iter().zip(FIRST..);
        let members: Vec<_> = queues.map(|(&queues, domid)| Member { domid, queues }).collect();
        for member in &members {
            testbed.guest_domain(member.domid)?;
            testbed.make_vif(member.domid, 0)?;
        }
        let back = testbed.process("crowd-back", 0, cores.workers.first().copied())?;
        let guests = testbed.process("crowd", FIRST, cores.guests)?;
        let mut stand = Self { back, guests, _testbed: testbed, wrong: Wrong::default() };
        let Plan { workers, mode, path, .. } = *plan;
        let posts = Posts { workers, place: Placement::Balanced, mode, cores: cores.workers.clone() };
        stand.ask_back(BackOrder::Serve { posts, path })?;
        stand.ask(GuestOrder::Gather {
            members,
            data_len: (path == PathName::Staging).then_some(DATA_LEN),
            persistent: path == PathName::Persistent,
            gref_mapping: path == PathName::GrefMapping,
            data_ring: (path == PathName::DataRing).then_some(DEFAULT_ORDER),
            foreign: path == PathName::Foreign,
            guest_copy: path == PathName::GuestCopy,
        })?;
        Ok(stand)
    }

    fn ask(&mut self, order: GuestOrder) -> Result<CrowdReport> {
        self.guests.order(&Order::Crowd(order))?;
        match self.guests.report(&mut [&mut self.back])? {
            Report::Crowd(report) => Ok(report),
            other => Err(format!("an answer to another order: {other:?}").into()),
        }
    }

    fn ask_back(&mut self, order: BackOrder) -> Result<CrowdReport> {
        self.back.order(&Order::CrowdBack(order))?;
        match self.back.report(&mut [&mut self.guests])? {
            Report::Crowd(report) => Ok(report),
            other => Err(format!("an answer to another order: {other:?}").into()),
        }
    }

    /// What the backend has used so far.
    pub fn spent(&mut self) -> Result<Spent> {
        match self.ask_back(BackOrder::Spent)? {
            CrowdReport::Spent(spent) => Ok(spent),
            other => Err(another(&other)),
        }
    }

    fn seen(&mut self) -> Result<(Spent, Vec<Came>)> {
        match self.ask_back(BackOrder::Seen)? {
            CrowdReport::Seen { spent, came } => Ok((spent, came)),
            other => Err(another(&other)),
        }
    }

    /// What comes while these send all they can.
    pub fn send(&mut self, loads: Vec<Load>, seconds: f64) -> Result<Window> {
        self.ask(GuestOrder::Send(loads))?;
        std::thread::sleep(WARM_UP);
        let (began, first) = self.seen()?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (ended, last) = self.seen()?;
        let (sent, missed_wakeups) = match self.ask(GuestOrder::Rest)? {
            CrowdReport::Sent { frames, missed_wakeups } => (frames, missed_wakeups),
            other => return Err(another(&other)),
        };
        // All that was sent is answered, so it has been at a port.
        let (end, all) = self.seen()?;
        if [first.len(), last.len(), all.len()] != [sent.len(); 3] {
            return Err(format!("{} guests were connected, and {} have ports", sent.len(), all.len()).into());
        }
        let mut wrong = Wrong { missed_wakeups: missed_wakeups + end.missed_wakeups, ..Wrong::default() };
        for (came, sent) in all.iter().zip(&sent) {
            wrong.lost += came.missing + sent.saturating_sub(came.next);
            wrong.repeated += came.wrong;
            wrong.damaged += came.damaged;
        }
        let before = std::mem::replace(&mut self.wrong, wrong);
        let spent = since(&ended, &began);
        Ok(Window {
            seconds: spent.at_ns as f64 / 1e9,
            frames: last.iter().zip(&first).map(|(b, a)| b.frames - a.frames).collect(),
            spent,
            wrong: wrong.since(before),
        })
    }

    /// One frame of the first guest at a time, there and back, both ends asleep in between; the others are connected.
    pub fn echo(&mut self, seconds: f64) -> Result<Echoes> {
        self.ask_back(BackOrder::Echo(true))?;
        let began = self.spent()?;
        let guest = match self.ask(GuestOrder::Echo { seconds, mode: Mode::Event })? {
            CrowdReport::Echoed(guest) => *guest,
            other => return Err(another(&other)),
        };
        let spent = since(&self.spent()?, &began);
        self.ask_back(BackOrder::Echo(false))?;
        Ok(Echoes { guest, spent })
    }
}
