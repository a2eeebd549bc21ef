//! The driver domain's process: a [`Backend`] whose vifs end at a sink, a source, an echo or a switch.
//!
//! ```text
//!   order --> far side (Far) --> ports of the vif that comes --> marks, stamps (Signals) --> report
//!             queues are served here, or by worker threads (Staff)
//! ```

use super::account::Account;
use super::far::{Far, Ordered};
use super::order::{Case, Dir, Latencies, Nuisance, Order, Played, Report, Switched};
use super::signals::{Signals, WARM_UP, locked};
use super::staff::{Meter, Staff};
use super::{LoopbackBackend, ProcessArgs, Result, next_order, tell};
use pregrant::DomId;
use pregrant::net::path::PathName;
use pregrant::net::path::gref_mapping::DEFAULT_LIMIT;
use pregrant::platform::{Clock, Platform};
use pregrant::xenbus::{Class, DeviceId};
use pregrant_host::MonotonicClock;
use pregrant_host::drivers::net::CONTROL_PAGE;
use pregrant_host::drivers::recovery::KeptBytes;
use pregrant_host::drivers::{
    Backend, BackendConfig, BrokerRecovery, Mode, Net, NetConfig, Recovery, Rest, Stations, StatusTeller,
    Work, Worker,
};
use pregrant_host::loopback::Loopback;
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Recovery, with redo pages or without: so that their cost can be measured.
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

/// Carries out orders.
pub fn play(args: &ProcessArgs) -> Result<()> {
    let attach_at_ns = MonotonicClock.now_ns();
    let (platform, xs) = args.attach()?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    let far = Rc::new(RefCell::new(Far::Nothing));
    let ordered = Box::new(Ordered(Rc::clone(&far)));
    let redo = Rc::new(Cell::new(true));
    let recovery = RedoSwitch { inner: BrokerRecovery, redo: Rc::clone(&redo) };
    let config = BackendConfig { recovery: Some(Box::new(recovery)), ..BackendConfig::default() };
    let net = Net::new(NetConfig::default(), ordered);
    let mut backend = Backend::new(platform, xs, config, vec![Box::new(net)])?;
    // For `pregrant top`, beside the broker's socket; a testbed goes on without.
    let dir = args.broker.parent().unwrap_or(Path::new("."));
    let mut status = StatusTeller::on_loopback(dir, args.domid).inspect_err(|e| log::info!("{e}")).ok();
    let mut staff = None;
    while let Some(order) = next_order()? {
        let report = match order {
            Order::Employ(posts) => match Staff::employ(&mut backend, &posts) {
                Ok(employed) => {
                    staff = Some(employed);
                    Report::Employed
                }
                Err(e) => Report::Failed(e.to_string()),
            },
            Order::Case(case) => played(case_of(&mut backend, staff.as_ref(), &far, &redo, &case, None)),
            Order::Beside { case, nuisance } => {
                // A neighbour that breaks things on purpose, again and again: not to be told of.
                if std::env::var_os("RUST_LOG").is_none() {
                    log::set_max_level(log::LevelFilter::Error);
                }
                played(case_of(&mut backend, staff.as_ref(), &far, &redo, &case, Some(nuisance)))
            }
            Order::Switch { vifs, succeed } => {
                redo.set(true);
                match serve_switch(&mut backend, staff.as_ref(), &mut status, &far, vifs, succeed) {
                    Ok(served) => Report::Switch(Switched { attach_at_ns, ..served }),
                    Err(e) => Report::Failed(e.to_string()),
                }
            }
            Order::Transfer(_)
            | Order::Annoy { .. }
            | Order::Crowd(_)
            | Order::CrowdBack(_)
            | Order::Disks(_) => Report::Failed("that is a guest's order, or a crowd's".into()),
        };
        tell(&report)?;
    }
    backend.close_all();
    Ok(())
}

/// Rounds of the backend until `done` says so, or `most` has passed (false).
fn rounds(
    backend: &mut LoopbackBackend,
    staff: Option<&Arc<Staff>>,
    mode: Mode,
    most: Duration,
    mut done: impl FnMut(&mut LoopbackBackend) -> bool,
) -> Result<bool> {
    // Where others serve the queues there is nothing here to poll.
    let mode = if staff.is_some() { Mode::Event } else { mode };
    let done = |backend: &mut LoopbackBackend| {
        if let Some(staff) = staff {
            staff.awake();
        }
        done(backend)
    };
    let mut rounds = Rounds { backend, until: Instant::now() + most, late: false, done };
    Worker::new(mode).run(&mut rounds)?;
    Ok(!rounds.late)
}

/// See [`rounds`].
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

fn played(case: Result<Played>) -> Report {
    match case {
        Ok(played) => Report::Case(Box::new(played)),
        Err(e) => Report::Failed(e.to_string()),
    }
}

/// One case, from the vif's coming to its end; `beside` it another guest may have a vif.
fn case_of(
    backend: &mut LoopbackBackend,
    staff: Option<&Arc<Staff>>,
    far: &RefCell<Far>,
    redo: &Cell<bool>,
    case: &Case,
    beside: Option<Nuisance>,
) -> Result<Played> {
    redo.set(case.redo);
    let signals = Arc::new(Signals::new(Meter::new(backend, staff)));
    let own = Far::Case {
        dir: case.dir,
        size: case.size,
        burst: case.burst,
        look: case.look,
        signals: Arc::clone(&signals),
        gaps: beside.is_some(),
    };
    let missed = backend.missed_wakeups();
    *far.borrow_mut() = match beside {
        None => own,
        Some(nuisance) => Far::Beside {
            front: DomId(case.front),
            case: Box::new(own),
            feed: (nuisance == Nuisance::Stalled).then_some(case.size),
            others: Arc::clone(&signals),
        },
    };
    if let Some(net) = backend.class_mut::<Net<Loopback>>() {
        (net.config.vif.fallback, net.config.vif.staged_heads) = (case.rest, case.heads);
        net.config.vif.gref_pages = case.gref_pages.unwrap_or(DEFAULT_LIMIT);
        net.config.vif.foreign = case.path == PathName::Foreign;
        net.config.vif.guest_copy = case.path == PathName::GuestCopy;
    }
    let mut played = Played::default();
    let most = Duration::from_secs_f64(case.seconds * 4.0 + 20.0);
    backend.control()?;
    let ended = rounds(backend, staff, case.mode, most, |backend| {
        if played.path.is_empty() && signals.marks.load(Ordering::Relaxed) >= WARM_UP {
            played.path = path_of(backend, case);
        }
        signals.gone.load(Ordering::Relaxed)
    })?;
    if !ended {
        return Err(
            format!("vif {} of domain {} did not come and go in {most:?}", case.handle, case.front).into()
        );
    }
    staff.map_or(Ok(()), |staff| staff.in_place())?;
    if let Some((begin, end)) = signals.counted() {
        played.counters = end.counters.since(&begin.counters);
        played.cpu_ns = end.cpu_ns - begin.cpu_ns;
        played.workers = end.workers_since(&begin);
        played.seconds = (end.at - begin.at).as_secs_f64();
        played.others = end.others.saturating_sub(begin.others);
    }
    played.sent = signals.made.load(Ordering::Relaxed);
    for sink in locked(&signals.sinks).iter() {
        let r = sink.read();
        played.next += r.next;
        played.missing += r.lost;
        played.wrong += r.duplicated + r.reordered;
        played.damaged += r.damaged;
    }
    played.checked = signals.checked.load(Ordering::Relaxed);
    played.missed_wakeups = backend.missed_wakeups() - missed;
    let gaps = locked(&signals.gaps).take();
    played.gaps = gaps.as_ref().map(Latencies::of);
    played.platform = backend.platform().describe();
    Ok(played)
}

/// The path that the case's vif runs in the case's direction.
fn path_of(backend: &LoopbackBackend, case: &Case) -> String {
    let reports = backend.reports();
    let own = reports.iter().find(|r| (r.id.front.0, r.id.handle) == (case.front, case.handle));
    let queue = own.and_then(|r| r.queues.first());
    queue.map_or("", |q| if case.dir == Dir::Rx { q.2 } else { q.0 }).into()
}

/// A learning switch until so many vifs have come and gone.
fn serve_switch(
    backend: &mut LoopbackBackend,
    staff: Option<&Arc<Staff>>,
    status: &mut Option<StatusTeller<Loopback>>,
    far: &RefCell<Far>,
    vifs: u64,
    succeed: bool,
) -> Result<Switched> {
    let account = Arc::new(Account::open(backend.platform(), succeed)?);
    let switch = Switch::new();
    if let Some(staff) = staff {
        staff.serve(&switch);
    }
    *far.borrow_mut() = Far::Switch(Stations::at(&switch), Arc::clone(&account));
    let before = backend.removed();
    backend.control()?;
    // Only here: in a case nobody would answer who asks, and it would wake without end.
    let asked = status.as_ref().map(|s| backend.platform().events().also_wake_on(s.as_fd())).transpose()?;
    let ended = rounds(backend, staff, Mode::Adaptive, Duration::from_secs(60), |backend| {
        switch.set_now(MonotonicClock.now_ns());
        if let Some(status) = status {
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
        attach_at_ns: 0,
        first_frame_at_ns: account.first_frame_at_ns(),
        frames: account.frames(),
        missed_wakeups: backend.missed_wakeups(),
    })
}
