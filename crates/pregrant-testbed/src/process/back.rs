//! The driver domain's process: a [`Backend`] whose vifs end at a sink, a source, an echo or a
//! switch, or which serves a crowd of vifs or disks.
//!
//! ```text
//!   command --> remote side (PortPlan) --> ports of the vif that comes --> marks, stamps (Signals) --> report
//!             queues are served here, or by worker threads (WorkerThreads)
//! ```
//! Between the commands of a crowd its devices are served; between others nothing is.

use super::account::Account;
use super::crowd::port::Hall;
use super::port_plan::{PlannedPorts, PortPlan};
use super::process_command::{Case, Devices, Dir, Nuisance, ProcessCommand, WorkerSetup};
use super::report::{Came, Latencies, Played, Report, Spent, Switched};
use super::signals::{Signals, WARM_UP, locked};
use super::worker_threads::{Meter, WorkerThreads};
use super::{LoopbackBackend, ProcessArgs, Result, has_command, next_command, send_report};
use crate::cpu_time;
use pregrant::DomId;
use pregrant::blk::path::PathName as DiskPath;
use pregrant::net::back::vif::VifConfig;
use pregrant::net::path::gref_mapping::DEFAULT_LIMIT;
use pregrant::net::path::{PathConfig, PathName, persistent};
use pregrant::platform::{Clock, Platform};
use pregrant::xenbus::{Class, DeviceId};
use pregrant_host::MonotonicClock;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::net::CONTROL_PAGE;
use pregrant_host::drivers::recovery::KeptBytes;
use pregrant_host::drivers::status::socket_path;
use pregrant_host::drivers::{
    Backend, BackendConfig, Blk, BlkConfig, DeviceClass, Mode, Net, NetConfig, PollLoop, Recovery, Rest,
    Stations, StatusPublisher, Work,
};
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use pregrant_loopback::{BrokerRecovery, Loopback};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A recovery with or without redo pages, so that their cost can be measured.
struct RedoSwitch {
    inner: BrokerRecovery,
    redo: Rc<Cell<bool>>,
}

impl Recovery<Loopback> for RedoSwitch {
    fn own(&mut self, p: &Loopback, id: &DeviceId) -> std::result::Result<Box<dyn Any>, String> {
        self.inner.own(p, id)
    }
    fn page(
        &mut self,
        p: &Loopback,
        id: &DeviceId,
        name: &str,
        bytes: usize,
    ) -> std::result::Result<Option<KeptBytes>, String> {
        let wanted = self.redo.get() || name == CONTROL_PAGE;
        if wanted { self.inner.page(p, id, name, bytes) } else { Ok(None) }
    }
    fn forget(&mut self, p: &Loopback, id: &DeviceId) {
        self.inner.forget(p, id);
    }
    fn kept(&mut self, p: &Loopback, class: Class, own: DomId) -> Vec<DeviceId> {
        self.inner.kept(p, class, own)
    }
}

struct Host {
    backend: LoopbackBackend,
    port_plan: Rc<RefCell<PortPlan>>,
    redo: Rc<Cell<bool>>,
    worker_threads: Option<Arc<WorkerThreads>>,
    attach_at_ns: u64,
    /// The directory of the machine's sockets; `domid` is the number of this domain.
    dir: PathBuf,
    domid: u16,
    /// The number of the descriptor for commands among the descriptors that wake this thread. None:
    /// the process does not serve many guests.
    commands: Option<usize>,
    hall: Arc<Hall>,
    over: bool,
}

/// Executes commands until there are no more.
pub fn play(args: &ProcessArgs) -> Result<()> {
    let Some(first) = next_command()? else { return Ok(()) };
    let mut host = Host::new(args, &first)?;
    host.obey(first, Spent::default())?;
    if host.commands.is_some() {
        return PollLoop::new(Mode::Event).run(&mut host);
    }
    while let Some(command) = next_command()? {
        host.obey(command, Spent::default())?;
    }
    host.backend.close_all();
    Ok(())
}

/// Creates the class of disks, whose images the toolstack names.
fn disks(path: DiskPath) -> Blk<Loopback> {
    let mut config = BlkConfig::default();
    config.vbd.features.persistent = path == DiskPath::Persistent;
    if path != DiskPath::Persistent {
        config.vbd.fallback = path;
    }
    Blk::new(config)
}

/// Number of staging pages that a measured vif may have: as many as any row asks for.
const STAGING_PAGES: u32 = 8192;

impl Host {
    /// Starts a backend with the settings that the first command needs.
    fn new(args: &ProcessArgs, first: &ProcessCommand) -> Result<Self> {
        let attach_at_ns = MonotonicClock.now_ns();
        let (platform, xs) = super::attach(&args.broker, DomId(args.domid))?;
        let port_plan = Rc::new(RefCell::new(PortPlan::Nothing));
        let redo = Rc::new(Cell::new(true));
        let class: Box<dyn DeviceClass<Loopback, UnixTransport>> = match first {
            ProcessCommand::Serve(_, Devices::Disks(path)) => Box::new(disks(*path)),
            _ => Box::new(Net::new(NetConfig::default(), Box::new(PlannedPorts(Rc::clone(&port_plan))))),
        };
        let recovery = RedoSwitch { inner: BrokerRecovery, redo: Rc::clone(&redo) };
        let config = BackendConfig { recovery: Some(Box::new(recovery)), ..BackendConfig::default() };
        Ok(Self {
            backend: Backend::new(platform, xs, config, vec![class])?,
            port_plan,
            redo,
            worker_threads: None,
            attach_at_ns,
            dir: args.broker.parent().unwrap_or(Path::new(".")).into(),
            domid: args.domid,
            commands: None,
            hall: Arc::default(),
            over: false,
        })
    }

    /// Executes a command and answers it. `spent` are the resources that were used before the
    /// answer was prepared.
    fn obey(&mut self, command: ProcessCommand, spent: Spent) -> Result<()> {
        let done = match command {
            ProcessCommand::StartWorkers(worker_setup) => {
                WorkerThreads::start(&mut self.backend, &worker_setup).map(|worker_threads| {
                    self.worker_threads = Some(worker_threads);
                    Report::Done
                })
            }
            ProcessCommand::Serve(worker_setup, devices) => self.serve(&worker_setup, devices),
            ProcessCommand::Case(case) => {
                // A neighbour that breaks things on purpose, again and again: its lines are
                // not logged.
                if case.beside.is_some() && std::env::var_os("RUST_LOG").is_none() {
                    log::set_max_level(log::LevelFilter::Error);
                }
                self.case(&case).map(|played| Report::Case(Box::new(played)))
            }
            ProcessCommand::Switch { vifs, succeed } => self.switch(vifs, succeed).map(Report::Switch),
            ProcessCommand::SendBack(echoes) => {
                self.hall.set_echoes(echoes);
                Ok(Report::Done)
            }
            ProcessCommand::Describe => Ok(Report::Described(self.backend.platform().describe())),
            ProcessCommand::Spent => Ok(Report::Spent(spent)),
            ProcessCommand::Seen => Ok(Report::Seen { came: self.hall.came(), spent }),
            _ => Err("that is a guest's command".into()),
        };
        let placed = self.worker_threads.as_ref().map_or(Ok(()), |worker_threads| worker_threads.in_place());
        let report = done.and_then(|report| placed.map(|()| report));
        send_report(&report.unwrap_or_else(|e| Report::Failed(e.to_string())))
    }

    /// Serves a crowd's devices from now on, also between commands.
    fn serve(&mut self, worker_setup: &WorkerSetup, devices: Devices) -> Result<Report> {
        if let Devices::Vifs(path) = devices {
            *self.port_plan.borrow_mut() = PortPlan::Crowd(Arc::clone(&self.hall));
            self.configure(path, path);
        }
        self.commands = Some(self.backend.platform().events().also_wake_on(std::io::stdin().as_fd())?);
        self.worker_threads = Some(WorkerThreads::start(&mut self.backend, worker_setup)?);
        Ok(Report::Done)
    }

    /// Sets the path of vifs that connect; frames that it does not serve go by `rest`.
    fn configure(&mut self, path: PathName, rest: PathName) {
        if let Some(net) = self.backend.class_mut::<Net<Loopback>>() {
            let paths =
                PathConfig { fallback: rest, foreign: false, guest_copy: false, ..net.config.vif.paths };
            net.config.vif.paths = paths.allowing(path);
        }
    }

    fn meter(&self) -> Meter {
        Meter::new(&self.backend, self.worker_threads.as_ref())
    }

    fn spent(&self) -> Spent {
        Spent {
            devices_ns: self.backend.devices().map(|(said, _)| (said.id.front.0, said.worker_ns)).collect(),
            missed_wakeups: self.backend.missed_wakeups(),
            ..self.meter().read()
        }
    }
}

/// Serves a crowd's queues between the commands.
impl Rest for Host {
    type Error = Box<dyn Error>;
    // As in `pregrant back`.
    const CONTROL_AFTER_SLEEP: bool = false;

    fn control(&mut self) -> Result<()> {
        self.backend.control()?;
        Ok(())
    }
    fn sleep(&mut self) -> Result<()> {
        if !self.backend.control()? {
            self.backend.sleep(None);
            // The event that ended the sleep before may still be reported, if there was no sleep.
            let woken =
                self.commands.is_some_and(|commands| self.backend.platform().events().woken_by(commands));
            if woken && has_command()? {
                let spent = self.spent();
                match next_command()? {
                    Some(command) => self.obey(command, spent)?,
                    None => self.over = true,
                }
            }
        }
        Ok(())
    }
}

impl Work for Host {
    fn round(&mut self) -> Result<bool> {
        Ok(self.backend.round())
    }
    fn is_over(&mut self) -> bool {
        self.over
    }
}

/// Runs rounds of the backend until `done` returns true, or `most` has passed (false).
fn rounds(
    backend: &mut LoopbackBackend,
    worker_threads: Option<&Arc<WorkerThreads>>,
    mode: Mode,
    most: Duration,
    mut done: impl FnMut(&mut LoopbackBackend) -> bool,
) -> Result<bool> {
    // Where others serve the queues there is nothing here to poll.
    let mode = if worker_threads.is_some() { Mode::Event } else { mode };
    let done = |backend: &mut LoopbackBackend| {
        if let Some(worker_threads) = worker_threads {
            worker_threads.awake();
        }
        done(backend)
    };
    let mut rounds = Rounds { backend, until: Instant::now() + most, late: false, done };
    PollLoop::new(mode).run(&mut rounds)?;
    Ok(!rounds.late)
}

struct Rounds<'a, F> {
    backend: &'a mut LoopbackBackend,
    until: Instant,
    late: bool,
    done: F,
}

impl<F> Rest for Rounds<'_, F> {
    type Error = Box<dyn Error>;
    fn control(&mut self) -> Result<()> {
        self.backend.control()?;
        self.late = Instant::now() > self.until;
        Ok(())
    }
    fn sleep(&mut self) -> Result<()> {
        if !self.backend.control()? {
            self.backend.sleep(Some(self.until.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }
}

impl<F: FnMut(&mut LoopbackBackend) -> bool> Work for Rounds<'_, F> {
    #[inline(always)]
    fn round(&mut self) -> Result<bool> {
        Ok(self.backend.round())
    }
    fn is_over(&mut self) -> bool {
        self.late || (self.done)(self.backend)
    }
}

impl Host {
    /// Runs the back's part of one case, from the connect of the vif to its close.
    fn case(&mut self, case: &Case) -> Result<Played> {
        self.redo.set(case.redo);
        let signals = Arc::new(Signals::new(self.meter()));
        let own = PortPlan::Case(case.clone(), Arc::clone(&signals));
        let missed = self.backend.missed_wakeups();
        *self.port_plan.borrow_mut() = match case.beside {
            None => own,
            Some(nuisance) => PortPlan::Beside {
                front: DomId(case.front),
                case: Box::new(own),
                feed: (nuisance == Nuisance::Stalled).then_some(case.size),
                others: Arc::clone(&signals),
            },
        };
        self.configure(case.path, case.rest);
        if let Some(net) = self.backend.class_mut::<Net<Loopback>>() {
            net.config.vif.paths.staging.heads = case.heads;
            let pages = case.staging_buffers as usize;
            let VifConfig { features, paths, .. } = &mut net.config.vif;
            (features.staging.max_pages, features.mapped_pages) = (STAGING_PAGES, 2 * case.staging_buffers);
            paths.gref_mapping = case.gref_pages.unwrap_or(DEFAULT_LIMIT.max(2 * pages));
            paths.thresholds.copy_below = case.copy_below;
            paths.persistent = persistent::DEFAULT_LIMIT.max(pages);
        }
        let mut played = Played::default();
        let most = Duration::from_secs_f64(case.seconds * 4.0 + 20.0);
        self.backend.control()?;
        let ended = rounds(&mut self.backend, self.worker_threads.as_ref(), case.mode, most, |backend| {
            if played.path.is_empty() && signals.marks.load(Ordering::Relaxed) >= WARM_UP {
                played.path = path_of(backend, case);
            }
            signals.gone.load(Ordering::Relaxed)
        })?;
        if !ended {
            let (handle, front) = (case.handle, case.front);
            return Err(format!("vif {handle} of domain {front} did not come and go in {most:?}").into());
        }
        (played.spent, played.others) = signals.counted().unwrap_or_default();
        played.sent = signals.made.load(Ordering::Relaxed);
        played.came = Came::of(locked(&signals.sinks).iter().map(|sink| sink.read()));
        played.checked = signals.checked.load(Ordering::Relaxed);
        played.spent.missed_wakeups = self.backend.missed_wakeups() - missed;
        played.gaps = locked(&signals.gaps).take().as_ref().map(Latencies::of);
        played.platform = self.backend.platform().describe();
        Ok(played)
    }

    /// Runs a learning switch until this many vifs have connected and closed.
    fn switch(&mut self, vifs: u64, succeed: bool) -> Result<Switched> {
        self.redo.set(true);
        let Self { backend, port_plan, worker_threads, dir, domid, .. } = self;
        let account = Arc::new(Account::open(backend.platform(), succeed)?);
        let switch = Switch::new();
        if let Some(worker_threads) = worker_threads {
            worker_threads.serve(&switch);
        }
        *port_plan.borrow_mut() = PortPlan::Switch(Stations::at(&switch), Arc::clone(&account));
        let (before, cpu_before_ns) = (backend.removed(), cpu_time::of_process());
        backend.control()?;
        // For `pregrant top`, beside the broker's socket; a testbed works without it. Only here: in
        // a case no thread would answer, and clients would wake it without end.
        let mut status =
            StatusPublisher::bind(&socket_path(dir, *domid), Loopback::counters, Loopback::describe)
                .inspect_err(|e| log::info!("{e}"))
                .ok();
        let asked =
            status.as_ref().map(|s| backend.platform().events().also_wake_on(s.as_fd())).transpose()?;
        let ended =
            rounds(backend, worker_threads.as_ref(), Mode::Adaptive, Duration::from_secs(60), |backend| {
                switch.set_now(MonotonicClock.now_ns());
                if let Some(status) = &mut status {
                    status.turn(backend);
                }
                backend.removed() - before >= vifs
            })?;
        if let Some(number) = asked {
            backend.platform().events().forget(number);
        }
        if !ended {
            return Err(format!("{vifs} vifs did not come and go within a minute").into());
        }
        Ok(Switched {
            attach_at_ns: self.attach_at_ns,
            first_frame_at_ns: account.first_frame_at_ns(),
            frames: account.frames(),
            missed_wakeups: backend.missed_wakeups(),
            cpu_ns: cpu_time::of_process() - cpu_before_ns,
        })
    }
}

/// Returns the path that the case's vif uses in the case's direction.
fn path_of(backend: &LoopbackBackend, case: &Case) -> String {
    let reports = backend.reports();
    let own = reports.iter().find(|r| (r.id.front.0, r.id.handle) == (case.front, case.handle));
    let queue = own.and_then(|r| r.queues.first());
    queue.map_or("", |q| if case.dir == Dir::Rx { q.2 } else { q.0 }).into()
}
