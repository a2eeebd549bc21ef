//! The driver domain's process: a [`Backend`] whose vifs end at a sink, a source, an echo or a switch.
//!
//! The guest marks the begin and the end of the time that is counted by a frame of its own that travels alone
//! ([`is_mark`]); so the counters of both ends cover the same frames.

use super::account::{Account, CountedPort};
use super::fault::Fault;
use super::mark::{is_mark, mark, whole_frames};
use super::order::{Case, Dir, Latencies, Nuisance, Order, Played, Report, Switched};
use super::{ProcessArgs, Result, cpu_ns, next_order, tell};
use hdrhistogram::Histogram;
use pregrant::DomId;
use pregrant::platform::{Clock, Platform};
use pregrant::port::{Arena, Bell, Burst, FramePort, LentBurst, Offload, Offloads, Payload, PortOwner};
use pregrant::xenbus::{Class, DeviceId};
use pregrant_host::MonotonicClock;
use pregrant_host::counters::Counters;
use pregrant_host::drivers::StatusTeller;
use pregrant_host::drivers::net::CONTROL_PAGE;
use pregrant_host::drivers::net::port_provider::Notes;
use pregrant_host::drivers::recovery::KeptBytes;
use pregrant_host::drivers::{
    Backend, BackendConfig, BrokerRecovery, HotplugConfig, Mode, Net, NetConfig, PortProvider, Recovery,
    Rest, Stations, Work, Worker,
};
use pregrant_host::loopback::Loopback;
use pregrant_host::ports::generator::{Filling, Generator};
use pregrant_host::ports::sequence::Head;
use pregrant_host::ports::sink::{Check, Sink, SinkCounters};
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use pregrant_host::xenstored::UnixTransport;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Marks that came: the untimed burst began, each byte of which is looked at;
const WHOLE: u32 = 1;
/// the warm-up began,
const WARM_UP: u32 = 2;
/// the time that is counted began,
const COUNTED: u32 = 3;
/// and it is over.
const OVER: u32 = 4;

/// What a case's port tells the loop.
#[derive(Default)]
struct Signals {
    marks: AtomicU32,
    /// One for each queue.
    sinks: Mutex<Vec<Arc<SinkCounters>>>,
    made: AtomicU64,
    checked: AtomicU64,
    /// How far apart bursts came, in the time that is counted; one queue's.
    gaps: Mutex<Option<Histogram<u64>>>,
    /// The vif's ports are gone.
    gone: AtomicBool,
    /// Of ports that have frames of their own accord once a mark came.
    bells: Mutex<Vec<Arc<dyn Bell>>>,
}

impl Signals {
    /// A mark came, on whichever queue: those who wait for it are asked.
    fn mark(&self) {
        self.marks.fetch_add(1, Ordering::Relaxed);
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|bell| bell.ring());
    }
}

/// A port's hold on its signals; the end of it is one.
#[derive(Default)]
struct Presence(Arc<Signals>);

impl std::ops::Deref for Presence {
    type Target = Signals;
    fn deref(&self) -> &Signals {
        &self.0
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Relaxed);
    }
}

/// Takes numbered frames.
struct SinkPort {
    sink: Sink,
    /// Has private bytes, though it reads heads alone.
    look: bool,
    signals: Presence,
    /// When the last burst came, where gaps are measured.
    gaps: Option<Gaps>,
}

/// Time between bursts.
struct Gaps {
    all: Histogram<u64>,
    last_ns: u64,
}

impl Gaps {
    fn new() -> Option<Self> {
        Some(Self { all: Histogram::new_with_bounds(1, 100_000_000_000, 3).ok()?, last_ns: 0 })
    }

    /// A burst came at `now_ns`; only gaps that began while frames were `counted` count.
    fn note(&mut self, now_ns: u64, counted: bool) {
        if counted && self.last_ns > 0 {
            self.all.saturating_record(now_ns.saturating_sub(self.last_ns));
        }
        self.last_ns = if counted { now_ns } else { 0 };
    }
}

impl FramePort for SinkPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.burst_came(|| is_mark(frames));
        if is_mark(frames) {
            self.signals.mark();
            return frames.frames.len();
        }
        let whole = self.wants_whole();
        self.sink.take(frames);
        if whole {
            self.signals.checked.fetch_add(frames.iter().count() as u64, Ordering::Relaxed);
        }
        frames.frames.len()
    }
    fn payload(&self) -> Payload {
        if self.look { Payload::Private } else { Payload::Lent }
    }
    fn tx_lent(&mut self, frames: &mut LentBurst<'_>) -> usize {
        // A mark is short, and comes alone: never here.
        self.burst_came(|| false);
        let whole = self.wants_whole();
        self.sink.take_lent(frames);
        if whole {
            let checked = (0..frames.len()).filter(|&i| frames.len_of(i) > 0).count();
            self.signals.checked.fetch_add(checked as u64, Ordering::Relaxed);
        }
        frames.len()
    }
    fn rx_burst(&mut self, _into: &mut Arena) -> usize {
        0
    }
}

impl SinkPort {
    /// Notes the gap that ends now.
    fn burst_came(&mut self, is_mark: impl Fn() -> bool) {
        if let Some(gaps) = &mut self.gaps {
            // The mark that ends the count ends the last gap too: a back that froze before it shows.
            let counted = self.signals.marks.load(Ordering::Relaxed) == COUNTED;
            gaps.note(MonotonicClock.now_ns(), counted);
            if counted && is_mark() {
                *self.signals.gaps.lock().unwrap_or_else(PoisonError::into_inner) = Some(gaps.all.clone());
            }
        }
    }

    /// Whether frames are to be checked whole now; told to the sink.
    fn wants_whole(&mut self) -> bool {
        let whole = self.signals.marks.load(Ordering::Relaxed) == WHOLE;
        self.sink.set_check(if whole { Check::Payload } else { Check::Number });
        whole
    }
}

/// Gives numbered frames, from the first mark to the last, and then one mark: what comes after it is nothing.
struct SourcePort {
    generator: Generator,
    signals: Presence,
    burst: u64,
    /// Frames of the untimed burst.
    whole: u64,
    /// Marks that were sent: at the end of that, and at the end of all.
    marks: u32,
}

impl SourcePort {
    /// Tells the guest that nothing more comes for now.
    fn mark(&mut self, into: &mut Arena) -> usize {
        let sent = into.push(&mark(), Offload::default());
        self.marks += u32::from(sent);
        sent as usize
    }
}

impl FramePort for SourcePort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        if is_mark(frames) {
            self.signals.mark();
        }
        frames.frames.len()
    }
    fn owned_by(&mut self, owner: &PortOwner) {
        let mut bells = self.signals.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.push(Arc::clone(&owner.bell));
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let most = match (self.signals.marks.load(Ordering::Relaxed), self.marks) {
            (WHOLE, 0) if self.generator.made() < self.whole => self.whole - self.generator.made(),
            (WHOLE, 0) | (OVER, 1) => return self.mark(into),
            (WARM_UP | COUNTED, 1) => {
                self.generator.set_filling(Filling::Head);
                self.burst
            }
            _ => return 0,
        };
        let first = self.generator.made();
        let n = self.generator.fill(into, most.min(self.burst));
        if first < self.whole {
            Fault::wanted().damage(into, first);
        }
        self.signals.made.fetch_add(n, Ordering::Relaxed);
        n as usize
    }
}

/// Sends each frame back to where it came from, with the time at which it was here.
struct EchoPort {
    back: Arena,
    /// Frames so far.
    nr: u64,
    signals: Presence,
}

impl FramePort for EchoPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        if is_mark(frames) {
            self.signals.mark();
            return 1;
        }
        let now = MonotonicClock.now_ns().to_le_bytes();
        let mut took = 0;
        for (frame, offload) in frames.iter() {
            for _ in 0..Fault::wanted().echoes(self.nr) {
                let Some(room) = self.back.room(frame.len(), offload) else { return took };
                room.copy_from_slice(frame);
                if let Some(stamp) = room.get_mut(40..48) {
                    stamp.copy_from_slice(&now);
                }
            }
            self.nr += 1;
            took += 1;
        }
        took
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let mut n = 0;
        for (frame, offload) in self.back.burst().iter() {
            n += into.push(frame, offload) as usize;
        }
        self.back.clear();
        n
    }
}

/// What the next vif that connects gets.
enum Far {
    Nothing,
    Case {
        dir: Dir,
        size: usize,
        burst: usize,
        look: bool,
        signals: Arc<Signals>,
        /// Whether the time between bursts is measured.
        gaps: bool,
    },
    /// A case for this guest's vif; frames without end for any other, if that is wanted.
    Beside {
        front: DomId,
        case: Box<Far>,
        feed: Option<usize>,
    },
    Switch(Stations, Arc<Account>),
}

impl Far {
    /// The ports of a vif with `n` queues; `caps` is what the guest takes unfinished.
    fn ports(&self, id: &DeviceId, n: usize, caps: Offloads) -> Vec<Box<dyn FramePort>> {
        match self {
            // One station, whatever its queues: a broadcast must not come back on another of them.
            Self::Switch(stations, account) => match stations.ports(id, n, caps) {
                Ok(ports) => {
                    let counted = |port| CountedPort::new(port, Arc::clone(account));
                    ports.into_iter().map(|p| Box::new(counted(p)) as Box<dyn FramePort>).collect()
                }
                Err(_) => Self::Nothing.ports(id, n, caps),
            },
            Self::Beside { front, case, .. } if *front == id.front => case.ports(id, n, caps),
            Self::Beside { feed: Some(size), .. } => {
                let feed = || Box::new(Generator::new(Head::default(), *size)) as Box<dyn FramePort>;
                std::iter::repeat_with(feed).take(n).collect()
            }
            _ => (0..n).map(|_| self.port()).collect(),
        }
    }

    fn port(&self) -> Box<dyn FramePort> {
        match self {
            Self::Case { dir: Dir::Rx, size, burst, signals, .. } => Box::new(SourcePort {
                generator: Generator::new(Head::default(), *size),
                signals: Presence(Arc::clone(signals)),
                burst: *burst as u64,
                whole: whole_frames(*size),
                marks: 0,
            }),
            Self::Case { dir: Dir::Echo, signals, .. } => {
                Box::new(EchoPort { back: Arena::new(), nr: 0, signals: Presence(Arc::clone(signals)) })
            }
            Self::Case { signals, gaps, look, .. } => {
                let sink = Sink::new(Check::Number);
                signals.sinks.lock().unwrap_or_else(PoisonError::into_inner).push(sink.counters());
                let gaps = if *gaps { Gaps::new() } else { None };
                Box::new(SinkPort { sink, look: *look, signals: Presence(Arc::clone(signals)), gaps })
            }
            Self::Nothing | Self::Switch(..) | Self::Beside { .. } => {
                let sink = Sink::new(Check::Number);
                Box::new(SinkPort { sink, look: false, signals: Presence::default(), gaps: None })
            }
        }
    }
}

/// The far side that the last order asked for.
struct Ordered(Rc<RefCell<Far>>);

impl PortProvider for Ordered {
    fn found(
        &mut self,
        id: &DeviceId,
        place: &HotplugConfig,
        live: bool,
    ) -> std::result::Result<Notes, String> {
        match &mut *self.0.borrow_mut() {
            Far::Switch(stations, _) => stations.found(id, place, live),
            _ => Ok(Notes::new()),
        }
    }
    fn connected(
        &mut self,
        id: &DeviceId,
        queues: usize,
        front: Offloads,
    ) -> std::result::Result<Vec<Box<dyn FramePort>>, String> {
        Ok(self.0.borrow().ports(id, queues, front))
    }
    fn readable(&mut self, _: &DeviceId) -> Vec<OwnedFd> {
        Vec::new()
    }
    fn link(&mut self, _: &DeviceId, _: bool) -> std::result::Result<(), String> {
        Ok(())
    }
    fn removed(&mut self, id: &DeviceId) -> std::result::Result<(), String> {
        match &mut *self.0.borrow_mut() {
            Far::Switch(stations, _) => stations.removed(id),
            _ => Ok(()),
        }
    }
}

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

type LoopbackBackend = Backend<Loopback, UnixTransport>;

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
    while let Some(order) = next_order()? {
        let report = match order {
            Order::Case(case) => played(case_of(&mut backend, &far, &redo, &case, None)),
            Order::Beside { case, nuisance } => {
                // A neighbour that breaks things on purpose, again and again: not to be told of.
                if std::env::var_os("RUST_LOG").is_none() {
                    log::set_max_level(log::LevelFilter::Error);
                }
                played(case_of(&mut backend, &far, &redo, &case, Some(nuisance)))
            }
            Order::Switch { vifs, succeed } => {
                redo.set(true);
                match serve_switch(&mut backend, &mut status, &far, vifs, succeed) {
                    Ok(served) => Report::Switch(Switched { attach_at_ns, ..served }),
                    Err(e) => Report::Failed(e.to_string()),
                }
            }
            Order::Transfer(_) | Order::Annoy { .. } => Report::Failed("that is a guest's order".into()),
        };
        tell(&report)?;
    }
    backend.close_all();
    Ok(())
}

/// Rounds of the backend until `done` says so, or `most` has passed (false).
fn rounds(
    backend: &mut LoopbackBackend,
    mode: Mode,
    most: Duration,
    done: impl FnMut(&mut LoopbackBackend) -> bool,
) -> Result<bool> {
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
    far: &RefCell<Far>,
    redo: &Cell<bool>,
    case: &Case,
    beside: Option<Nuisance>,
) -> Result<Played> {
    redo.set(case.redo);
    let signals = Arc::new(Signals::default());
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
        },
    };
    if let Some(net) = backend.class_mut::<Net<Loopback>>() {
        net.config.vif.fallback = case.path;
    }
    let mut played = Played::default();
    let mut marks = 0;
    let mut begin = (Counters::default(), 0, Instant::now(), 0);
    let most = Duration::from_secs_f64(case.seconds * 4.0 + 20.0);
    backend.control()?;
    let ended = rounds(backend, case.mode, most, |backend| {
        let now = signals.marks.load(Ordering::Relaxed);
        if now != marks {
            marks = now;
            let counters = backend.platform().counters();
            match marks {
                WARM_UP => played.path = path_of(backend, case),
                COUNTED => begin = (counters, cpu_ns(), Instant::now(), others(backend, case)),
                OVER => {
                    played.counters = counters.since(&begin.0).into();
                    played.cpu_ns = cpu_ns() - begin.1;
                    played.seconds = begin.2.elapsed().as_secs_f64();
                    played.others = others(backend, case).saturating_sub(begin.3);
                }
                _ => {}
            }
        }
        signals.gone.load(Ordering::Relaxed)
    })?;
    if !ended {
        return Err(
            format!("vif {} of domain {} did not come and go in {most:?}", case.handle, case.front).into()
        );
    }
    played.sent = signals.made.load(Ordering::Relaxed);
    for sink in signals.sinks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let r = sink.read();
        played.next += r.next;
        played.missing += r.lost;
        played.wrong += r.duplicated + r.reordered;
        played.damaged += r.damaged;
    }
    played.checked = signals.checked.load(Ordering::Relaxed);
    played.missed_wakeups = backend.missed_wakeups() - missed;
    let gaps = signals.gaps.lock().unwrap_or_else(PoisonError::into_inner).take();
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

/// Frames that guests other than the case's have sent so far, over the vifs that are live.
fn others(backend: &LoopbackBackend, case: &Case) -> u64 {
    let reports = backend.reports();
    let queues = reports.iter().filter(|r| r.id.front.0 != case.front).flat_map(|r| &r.queues);
    queues.map(|(_, tx, _, _)| tx.frames).sum()
}

/// A learning switch until so many vifs have come and gone.
fn serve_switch(
    backend: &mut LoopbackBackend,
    status: &mut Option<StatusTeller<Loopback>>,
    far: &RefCell<Far>,
    vifs: u64,
    succeed: bool,
) -> Result<Switched> {
    let account = Arc::new(Account::open(backend.platform(), succeed)?);
    let switch = Switch::new();
    *far.borrow_mut() = Far::Switch(Stations::at(&switch), Arc::clone(&account));
    let before = backend.removed();
    backend.control()?;
    // Only here: in a case nobody would answer who asks, and it would wake without end.
    let asked = status.as_ref().map(|s| backend.platform().events().also_wake_on(s.as_fd())).transpose()?;
    let ended = rounds(backend, Mode::Adaptive, Duration::from_secs(60), |backend| {
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
