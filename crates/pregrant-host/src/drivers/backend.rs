//! A driver domain's vifs: found by a watch on its backend directory, stepped when their fronts' states change, polled
//! round robin.
//!
//! ```text
//!   xenstore --watch--> control(): find vifs, step them         never on the data path
//!   round():            vif 0 tx, rx; vif 1 tx, rx; ...         one batch each; who is ahead in time waits (`turns`)
//! ```
//! A vif that a predecessor left at state 4 is taken up with its live rings ([`Backend::succeed`]); [`Backend::leave`]
//! leaves it so, [`Backend::close_all`] closes it. What a predecessor closed stays closed until its front comes down.
//!
//! What a guest may do: close, vanish, lie, come back again and again. Its own vif is closed with a line that says why
//! (at most [`LINES_PER_VIF`] lines for each vif); the others go on. A guest that writes its state without end is heard
//! in turns ([`EVENTS_PER_TURN`]), so that frames move in between.

use super::far_side::{FarSide, Hotplug, Place, Plug};
use super::succession::Succession;
use super::turns::{Turn, Turns};
use log::{Level, log};
use pregrant::PeerFault;
use pregrant::net::back::refusal::ConnectError;
use pregrant::net::back::vif::HOTPLUG_STATUS;
use pregrant::net::back::{BackStep, BackVif, Drained, Left, Ordinary, Polled};
use pregrant::net::bus::StoreBus;
use pregrant::net::features::{BackFeatures, REQUEST_MULTICAST, queue_prefix};
use pregrant::net::stats::DirStats;
use pregrant::platform::Platform;
use pregrant::port::{Arena, FramePort, PortDrop};
use pregrant::xenbus::{Class, Device, DeviceError, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport, WatchEvent, XsError};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Lines that one vif can cause in the log; then it is quiet.
pub const LINES_PER_VIF: u32 = 16;

/// Events of xenstore that one call of [`Backend::control`] takes at most.
pub const EVENTS_PER_TURN: usize = 128;

/// How long fronts have to follow when all vifs are closed.
const FRONTS_FOLLOW: Duration = Duration::from_secs(1);

/// Pages of one guest that are mapped at a time, over all of its vifs, unless [`Backend::limit_pages`] says otherwise
/// (XSA-300): 64 MiB. A vif with four queues, a page for each of 256 buffers both ways, has 2056 of them.
pub const PAGES_PER_GUEST: usize = 16 * 1024;

/// How long a vif whose last owner is dying is tried again (PROTOCOL.md 1.1). Nobody waits for it meanwhile.
const DYING: Duration = Duration::from_secs(1);

/// Why the backend itself (not one vif of it) cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// xenstore is gone, or refuses.
    #[error("xenstore: {0}")]
    Store(#[from] XsError),
    /// A key of our own is of no use.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// One vif as others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VifReport {
    /// Which.
    pub id: DeviceId,
    /// Our state.
    pub state: XenbusState,
    /// By queue: path and counters of TX, then of RX.
    pub queues: Vec<(&'static str, DirStats, &'static str, DirStats)>,
    /// Staging lists that were refused: queue, direction, why.
    pub refused: Vec<(usize, &'static str, String)>,
    /// Why it was closed by us, if it was.
    pub failed: Option<String>,
    /// How often that happened.
    pub faults: u64,
    /// Why it was the last time, also when it is connected again.
    pub last_failure: Option<String>,
    /// Whether a predecessor's live rings were taken up.
    pub taken_up: bool,
    /// For how long its queues have been live.
    pub connected: Option<Duration>,
    /// What its ports dropped.
    pub port_drops: Vec<PortDrop>,
}

struct Served<P: Platform> {
    device: Device,
    vif: BackVif<P>,
    ports: Vec<Box<dyn FramePort>>,
    lines: u32,
    failed: Option<String>,
    faults: u64,
    last_failure: Option<String>,
    taken_up: bool,
    connected_at: Option<Instant>,
    turn: Turn,
    plug: Plug,
    /// The vif's lock, where there is one.
    _owned: Option<Box<dyn Any>>,
}

/// A vif whose last owner still holds it.
#[derive(Clone, Copy)]
struct Held {
    until: Instant,
    /// Given up, and said so.
    given_up: bool,
}

impl<P: Platform> Served<P> {
    /// Whether this vif's front changed a key that we watch.
    fn is_about(&self, event: &WatchEvent) -> bool {
        self.device.is_peer_event(event) || self.device.is_peer_key_event(event, REQUEST_MULTICAST)
    }

    /// Tells the ports how the guest wants its frames spread, if that changed.
    fn steer(&mut self) {
        if let Some(steering) = self.vif.new_steering() {
            for port in &mut self.ports {
                port.steer(steering.clone());
            }
        }
    }

    /// A line in the log, as long as this vif has some left.
    fn say(&mut self, level: Level, text: &dyn Display) {
        self.lines += 1;
        if self.lines < LINES_PER_VIF {
            log!(level, "{}: {text}", self.device.id());
        } else if self.lines == LINES_PER_VIF {
            log!(level, "{}: {text} (the last line of this vif)", self.device.id());
        }
    }
}

/// Which vifs a backend serves: all of a guest's, or one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// The guest.
    pub front: u16,
    /// Its device; None: all.
    pub handle: Option<u32>,
}

impl Chosen {
    /// Whether this names the vif.
    pub fn names(&self, front: u16, handle: u32) -> bool {
        self.front == front && self.handle.is_none_or(|h| h == handle)
    }
}

/// All vifs of a driver domain.
pub struct Backend<P: Platform, T: Transport> {
    platform: P,
    xs: Client<T>,
    features: BackFeatures,
    ordinary: Ordinary,
    far: Box<dyn FarSide>,
    hotplug: Hotplug,
    chosen: Vec<Chosen>,
    succession: Option<Box<dyn Succession<P>>>,
    /// What former vifs left there is gone.
    forgot: bool,
    vifs: BTreeMap<(u16, u32), Served<P>>,
    /// Vifs that somebody else still holds.
    held: BTreeMap<(u16, u32), Held>,
    /// Those with live queues, for the round.
    live: Vec<(u16, u32)>,
    turns: Turns,
    began: Instant,
    scratch: Arena,
    removed: u64,
    page_limit: usize,
}

const WATCH: &str = "backend/vif";

impl<P: Platform, T: Transport> Backend<P, T> {
    /// Starts to watch the domain's backend directory.
    pub fn new(
        platform: P,
        mut xs: Client<T>,
        features: BackFeatures,
        ordinary: Ordinary,
        far: Box<dyn FarSide>,
    ) -> Result<Self, BackendError> {
        xs.watch(WATCH, WATCH)?;
        Ok(Self {
            platform,
            xs,
            features,
            ordinary,
            far,
            hotplug: Hotplug::None,
            chosen: Vec::new(),
            succession: None,
            forgot: false,
            vifs: BTreeMap::new(),
            held: BTreeMap::new(),
            live: Vec::new(),
            turns: Turns::default(),
            began: Instant::now(),
            scratch: Arena::new(),
            removed: 0,
            page_limit: PAGES_PER_GUEST,
        })
    }

    /// Lets vifs outlive this process, and takes up those that did. Call it before the first
    /// [`control`](Self::control).
    pub fn succeed(&mut self, succession: Box<dyn Succession<P>>) {
        self.succession = Some(succession);
    }

    /// Who plugs vifs in that are found from now on.
    pub fn set_hotplug(&mut self, hotplug: Hotplug) {
        self.hotplug = hotplug;
    }

    /// Serves these vifs alone; all when there are none. Before the first [`control`](Self::control).
    pub fn choose(&mut self, chosen: Vec<Chosen>) {
        self.chosen = chosen;
    }

    /// The platform.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Which path serves frames of vifs found from now on, where no staging list is accepted.
    pub fn set_ordinary(&mut self, ordinary: Ordinary) {
        self.ordinary = ordinary;
    }

    /// How many pages of one guest may be mapped at a time; for vifs that connect from now on.
    pub fn limit_pages(&mut self, pages: usize) {
        self.page_limit = pages;
    }

    /// Pages that guest `front` may still have mapped, its vif `handle` not counted.
    fn pages_left(&self, (front, handle): (u16, u32)) -> usize {
        let others = self.vifs.range((front, 0)..=(front, u32::MAX)).filter(|(key, _)| key.1 != handle);
        self.page_limit.saturating_sub(others.map(|(_, served)| served.vif.mapped_pages()).sum())
    }

    /// Handles what xenstore has to say, without sleeping and not without end. True when something changed: then there
    /// may be more, so do not sleep before another call. To be called also when the connection's descriptor is not
    /// readable: events that came while a reply was awaited are kept in the client.
    pub fn control(&mut self) -> Result<bool, BackendError> {
        let mut events = 0;
        let mut scan = false;
        let mut stepped: Vec<(u16, u32)> = Vec::new();
        while events < EVENTS_PER_TURN
            && let Some(event) = self.xs.next_event(Some(Duration::ZERO))?
        {
            events += 1;
            match self.vifs.iter().find(|(_, s)| s.is_about(&event)) {
                Some((&key, _)) => stepped.push(key),
                None => match below_watch(&event.path) {
                    Changed::Vifs => scan = true,
                    Changed::Wish(key) => stepped.push(key),
                    Changed::Nothing => {}
                },
            }
        }
        if scan {
            self.scan()?;
            stepped.extend(self.vifs.keys());
        }
        stepped.sort_unstable();
        stepped.dedup();
        for key in stepped {
            self.step(key);
        }
        self.far.turn();
        self.plug_in();
        let asked = self.serve_ctrl_rings();
        Ok(self.retry_held() || events > 0 || asked)
    }

    /// Goes on with what is being plugged in by this process.
    fn plug_in(&mut self) {
        let over = |served: &mut Served<P>, far: &mut dyn FarSide| served.plug.turn(far, &served.device.id());
        for served in self.vifs.values_mut().filter(|s| s.plug.is_pending()) {
            let Some((status, why)) = over(served, &mut *self.far) else { continue };
            if let Some(why) = why {
                served
                    .say(Level::Warn, &format_args!("not plugged in, so its front is not connected: {why}"));
            }
            // Our own watch on the directory brings the step that follows.
            if let Err(e) = served.device.set(&mut self.xs, HOTPLUG_STATUS, status) {
                served.say(Level::Warn, &e);
            }
        }
    }

    /// Some control requests of each vif. True when there were any.
    fn serve_ctrl_rings(&mut self) -> bool {
        let mut asked = false;
        let mut fault = None;
        for &key in &self.live {
            let Some(served) = self.vifs.get_mut(&key) else { continue };
            match served.vif.poll_ctrl(&self.platform) {
                Ok(Polled::More) => asked = true,
                Ok(Polled::Idle) => continue,
                Err(e) => fault = Some((key, 0, "ctrl", e)),
            }
            served.steer();
        }
        if let Some(fault) = fault {
            self.fault(fault);
            return true;
        }
        asked
    }

    /// Finds vifs that are new, and forgets those whose directory is gone.
    fn scan(&mut self) -> Result<(), BackendError> {
        let mut seen = Vec::new();
        for front in list(&mut self.xs, WATCH)? {
            let Ok(front) = front.parse::<u16>() else { continue };
            for handle in list(&mut self.xs, &format!("{WATCH}/{front}"))? {
                let Ok(handle) = handle.parse::<u32>() else { continue };
                if self.chosen.is_empty() || self.chosen.iter().any(|c| c.names(front, handle)) {
                    seen.push((front, handle));
                }
            }
        }
        let gone: Vec<_> = self.vifs.keys().filter(|k| !seen.contains(k)).copied().collect();
        for key in gone {
            self.remove(key);
        }
        self.held.retain(|key, _| seen.contains(key));
        for key in seen {
            if !self.vifs.contains_key(&key) {
                self.find(key);
            }
        }
        self.forget_gone()
    }

    /// Once: vifs that the toolstack took away while nobody was there to see it.
    fn forget_gone(&mut self) -> Result<(), BackendError> {
        let Some(succession) = self.succession.as_mut().filter(|_| !self.forgot) else { return Ok(()) };
        self.forgot = true;
        for id in succession.kept(&self.platform, self.platform.domid()) {
            let dir = format!("{WATCH}/{}/{}", id.front.0, id.handle);
            if self.xs.read_if_there(&dir)?.is_none() {
                succession.forget(&self.platform, &id);
                self.far.removed(&id);
            }
        }
        Ok(())
    }

    /// Begins to serve a vif: a new one, or one that a predecessor left connected.
    fn find(&mut self, key: (u16, u32)) {
        let own = self.platform.domid();
        let id = DeviceId { class: Class::Vif, front: pregrant::DomId(key.0), back: own, handle: key.1 };
        let owned = match self.succession.as_mut().map(|s| s.own(&self.platform, &id)).transpose() {
            Ok(owned) => owned,
            Err(why) => return self.hold(key, &id, &why),
        };
        let device = Device::new(id, Side::Back);
        let watched = device
            .watch_peer(&mut self.xs)
            .and_then(|()| device.watch_peer_key(&mut self.xs, REQUEST_MULTICAST));
        if let Err(e) = watched {
            log!(Level::Warn, "{id}: cannot watch the front's state: {e}");
            return;
        }
        let mut vif = BackVif::new(id.front, key.1, self.features.clone(), self.ordinary);
        vif.limit_pages(self.pages_left(key));
        let control = self.succession.as_mut().and_then(|s| s.control_page(&self.platform, &id));
        if let Some(page) = control {
            vif.keep_control(page);
        }
        let mut bus = StoreBus { device: &device, xs: &mut self.xs };
        let left = match vif.inherit(&mut bus) {
            Ok(left) => left,
            Err(e) => {
                log!(Level::Warn, "{id}: cannot read what a predecessor left: {e}");
                return;
            }
        };
        let taken = match (&left, &mut self.succession) {
            (Left::Connected, Some(succession)) => {
                let mut redo = |queue, dir| succession.redo_page(&self.platform, &id, queue, dir);
                vif.take_up(&self.platform, &mut bus, &mut redo)
            }
            _ => Ok(false),
        };
        if let Err(e) = &taken
            && e.is_too_early()
            && self.held.get(&key).is_none_or(|held| Instant::now() < held.until)
        {
            return self.hold(key, &id, e);
        }
        self.held.remove(&key);
        let live = matches!(taken, Ok(true));
        let plug = Place::read(&device, &mut self.xs)
            .map_err(|e| e.to_string())
            .and_then(|place| Plug::begin(&mut *self.far, self.hotplug, &device, place, &mut vif, live));
        let (plug, misplaced) = match plug {
            Ok(plug) => (plug, None),
            Err(why) => (Plug::Done, Some(why)),
        };
        let mut served = Served {
            device,
            vif,
            ports: Vec::new(),
            lines: 0,
            failed: None,
            faults: 0,
            last_failure: None,
            taken_up: live,
            connected_at: None,
            turn: Turn::default(),
            plug,
            _owned: owned,
        };
        match left {
            _ if live => {
                served.say(Level::Info, &"taken up where a predecessor stopped");
            }
            Left::Closed(Some(why)) => {
                served.say(Level::Warn, &format_args!("a predecessor closed it: {why}"));
                served.failed = Some(why);
            }
            _ => served.say(Level::Info, &"found"),
        }
        self.vifs.insert(key, served);
        match taken {
            _ if let Some(why) = misplaced => self.fail(key, &why),
            Ok(true) => {
                self.connected(key);
                self.relive();
            }
            Ok(false) => {}
            Err(e) => self.fail(key, &format!("its live rings cannot be taken up: {e}")),
        }
    }

    /// Somebody else still has the vif: it is tried again for a second, and after that when the directory changes.
    fn hold(&mut self, key: (u16, u32), id: &DeviceId, why: &dyn Display) {
        let first = Held { until: Instant::now() + DYING, given_up: false };
        let held = self.held.entry(key).or_insert(first);
        if !held.given_up && Instant::now() >= held.until {
            held.given_up = true;
            log!(Level::Warn, "{id}: not served: {why}");
        }
    }

    /// Tries again what a dying process still had. True: look again soon.
    fn retry_held(&mut self) -> bool {
        let due: Vec<_> = self.held.iter().filter(|(_, h)| !h.given_up).map(|(key, _)| *key).collect();
        for &key in &due {
            self.find(key);
            if self.vifs.contains_key(&key) {
                self.step(key);
            }
        }
        !due.is_empty()
    }

    /// Takes one vif's steps; a failure closes that vif alone.
    fn step(&mut self, key: (u16, u32)) {
        let pages_left = self.pages_left(key);
        let Some(served) = self.vifs.get_mut(&key) else { return };
        let id = served.device.id();
        let peer_dir = served.device.peer_dir().to_owned();
        let mut redo =
            |queue, dir| self.succession.as_mut().and_then(|s| s.redo_page(&self.platform, &id, queue, dir));
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        served.vif.limit_pages(pages_left);
        match served.vif.step(&self.platform, &mut bus, &mut redo) {
            Ok(BackStep::Connected) => self.connected(key),
            Ok(BackStep::Closed) => {
                served.ports.clear();
                self.far.closed(&id);
                served.say(Level::Info, &"closed");
            }
            Ok(BackStep::Waiting) => {}
            // Its front is gone, or `online` is 0: it stays closed until the toolstack removes its directory, and `scan`
            // misses it. To forget it now would be to find it again at once.
            Ok(BackStep::Removed) => {
                served.ports.clear();
                self.far.closed(&id);
            }
            // The toolstack was faster than our step: no fault of anybody's.
            Err(ConnectError::Keys(_)) if self.is_gone(key) => return self.remove(key),
            Err(e @ ConnectError::Keys(_)) => self.fail(key, &e),
            Err(e) => {
                let text = format!("{peer_dir}: {e}");
                self.fail(key, &text);
            }
        }
        self.relive();
    }

    /// The queues of a vif are live: gives them ports, and tells the log.
    fn connected(&mut self, key: (u16, u32)) {
        let Some(served) = self.vifs.get_mut(&key) else { return };
        let id = served.device.id();
        served.ports = self.far.connected(&id, served.vif.nr_queues(), served.vif.front_offloads());
        served.failed = None;
        served.steer();
        served.connected_at = Some(Instant::now());
        let refused: Vec<_> =
            served.vif.refused_lists().iter().map(|(q, d, why)| (*q, *d, why.to_string())).collect();
        for (queue, dir, why) in refused {
            let at = front_key(&served.device, queue, served.vif.nr_queues(), dir, "data-ref0");
            let line = format!(
                "the staging list {at} is not used, queue {queue} goes on with ordinary grants: {why}; \
                 correct the front's list and connect it again"
            );
            served.say(Level::Warn, &line);
        }
        let (tx, rx) = served.vif.path_names(0);
        let queues = served.vif.nr_queues();
        served.say(Level::Info, &format_args!("connected, {queues} queue(s), TX {tx}, RX {rx}"));
    }

    /// Whether a vif's own directory is not there any more.
    fn is_gone(&mut self, key: (u16, u32)) -> bool {
        let Some(served) = self.vifs.get(&key) else { return true };
        matches!(self.xs.read_if_there(served.device.own_dir()), Ok(None))
    }

    /// Closes one vif for something that its guest did.
    #[cold]
    fn fail(&mut self, key: (u16, u32), why: &dyn Display) {
        let Some(served) = self.vifs.get_mut(&key) else { return };
        let text = format!(
            "{why}. To use the vif again, close its front and connect it again, or detach and attach it"
        );
        served.say(Level::Warn, &format_args!("closed: {text}"));
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        if let Err(e) = served.vif.close(&self.platform, &mut bus, Some(&text)) {
            // The directory may be gone with the guest; what matters is that nothing is mapped any more.
            served.say(Level::Info, &e);
        }
        served.ports.clear();
        self.far.closed(&served.device.id());
        served.faults += 1;
        served.last_failure = Some(text.clone());
        served.failed = Some(text);
        self.relive();
    }

    /// Closes one vif for what its ring showed.
    #[cold]
    fn fault(&mut self, (key, queue, dir, fault): Fault) {
        let Some(served) = self.vifs.get(&key) else { return };
        let at = front_key(&served.device, queue, served.vif.nr_queues(), dir, "ring-ref");
        let text = format!("{} broke the protocol on its ring {at}: {fault}", served.device.id().front);
        self.fail(key, &text);
    }

    fn remove(&mut self, key: (u16, u32)) {
        if let Some(mut served) = self.vifs.remove(&key) {
            let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
            let _ = served.vif.close(&self.platform, &mut bus, None); // its directory may be gone
            let _ = served.device.unwatch_peer(&mut self.xs);
            let _ = served.device.unwatch_peer_key(&mut self.xs, REQUEST_MULTICAST);
            if let Some(succession) = &mut self.succession {
                succession.forget(&self.platform, &served.device.id());
            }
            served.ports.clear();
            self.far.removed(&served.device.id());
            self.removed += 1;
            served.say(Level::Info, &"removed");
        }
        self.relive();
    }

    fn relive(&mut self) {
        self.live = self.vifs.iter().filter(|(_, s)| s.vif.nr_queues() > 0).map(|(k, _)| *k).collect();
    }

    /// One batch of each queue, both directions, of every vif whose turn it is. True when there may be more.
    #[inline]
    pub fn round(&mut self) -> bool {
        let mut moved = false;
        let mut fault = None;
        // With one vif there is nothing to share, and no clock to read.
        let mut since = (self.live.len() > 1).then(Instant::now);
        if let Some(now) = since {
            self.turns.begin(now.duration_since(self.began).as_nanos() as u64);
        }
        for &key in &self.live {
            let Some(served) = self.vifs.get_mut(&key) else { continue };
            if since.is_some() && self.turns.waits(&served.turn) {
                moved = true;
                continue;
            }
            let mut worked = false;
            for (i, port) in served.ports.iter_mut().enumerate() {
                let tx = served.vif.poll_tx(&self.platform, i, &mut **port, &mut self.scratch);
                let rx = served.vif.poll_rx(&self.platform, i, &mut **port);
                worked |= tx == Ok(Polled::More) || rx == Ok(Polled::More);
                if let Err(e) = tx {
                    fault = Some((key, i, "tx", e));
                } else if let Err(e) = rx {
                    fault = Some((key, i, "rx", e));
                }
            }
            moved |= worked;
            match &mut since {
                Some(since) if worked => {
                    let now = Instant::now();
                    let took = now.duration_since(std::mem::replace(since, now));
                    self.turns.served(&mut served.turn, took.as_nanos() as u64);
                }
                Some(_) => self.turns.idle(&mut served.turn),
                None => {}
            }
        }
        // One a round: that vif is not live in the next, where another's turn comes.
        if let Some(fault) = fault {
            self.fault(fault);
            return true;
        }
        moved
    }

    /// Before sleeping: arms every queue. True: there is work.
    pub fn arm(&mut self) -> bool {
        let mut work = self.retry_held();
        let mut fault = None;
        for &key in &self.live {
            let Some(served) = self.vifs.get_mut(&key) else { continue };
            for i in 0..served.vif.nr_queues() {
                match served.vif.final_check(&self.platform, i) {
                    Ok(more) => work |= more,
                    Err((dir, e)) => fault = Some((key, i, dir, e)),
                }
            }
            match served.vif.final_check_ctrl(&self.platform) {
                Ok(more) => work |= more,
                Err(e) => fault = Some((key, 0, "ctrl", e)),
            }
        }
        if let Some(fault) = fault {
            self.fault(fault);
            return true;
        }
        work
    }

    /// All vifs.
    pub fn reports(&self) -> Vec<VifReport> {
        self.vifs
            .values()
            .map(|s| VifReport {
                id: s.device.id(),
                state: s.vif.state(),
                queues: (0..s.vif.nr_queues())
                    .map(|i| {
                        let ((tx, rx), (tx_path, rx_path)) = (s.vif.stats(i), s.vif.path_names(i));
                        (tx_path, tx, rx_path, rx)
                    })
                    .collect(),
                refused: s.vif.refused_lists().iter().map(|(q, d, why)| (*q, *d, why.to_string())).collect(),
                failed: s.failed.clone(),
                faults: s.faults,
                last_failure: s.last_failure.clone(),
                taken_up: s.taken_up,
                connected: s.connected_at.filter(|_| s.vif.nr_queues() > 0).map(|at| at.elapsed()),
                port_drops: s.ports.first().map(|p| p.drops()).unwrap_or_default(),
            })
            .collect()
    }

    /// Vifs with live queues.
    pub fn nr_live(&self) -> usize {
        self.live.len()
    }

    /// Vifs that came and went.
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// The ports of a vif, to look into them.
    pub fn ports_mut(&mut self, front: u16, handle: u32) -> Option<&mut [Box<dyn FramePort>]> {
        self.vifs.get_mut(&(front, handle)).map(|s| &mut s.ports[..])
    }

    /// Stops without closing, at once: answers what was taken from guests, delivers to them what was taken from ports
    /// and what these hold as far as there are slots, lets go of everything, and leaves every vif at the state at which
    /// it is, for a successor.
    pub fn leave(&mut self) -> Drained {
        let mut drained = Drained::default();
        for served in self.vifs.values_mut() {
            drained += served.vif.leave(&self.platform, &mut served.ports);
        }
        self.ended(self.vifs.len(), "left to a successor", drained);
        self.vifs.clear();
        self.relive();
        drained
    }

    /// Closes all vifs that are connected, in good order: drains as [`leave`](Self::leave) does, says 5, waits for their
    /// fronts (a second at most), says 6. The others stay as they are.
    pub fn close_all(&mut self) -> Drained {
        let mut drained = Drained::default();
        for served in self.vifs.values_mut() {
            let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
            match served.vif.end(&self.platform, &mut bus, &mut served.ports) {
                Ok(more) => drained += more,
                Err(e) => served.say(Level::Info, &e), // its directory may be gone
            }
        }
        self.relive();
        let closing = |s: &Served<P>| s.vif.state() == XenbusState::Closing;
        let n = self.vifs.values().filter(|s| closing(s)).count();
        let until = Instant::now() + FRONTS_FOLLOW;
        while self.vifs.values().any(closing) && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            // Without a store there is nobody to follow.
            let Ok(event) = self.xs.next_event(Some(left)) else { break };
            let Some(event) = event else { continue };
            for served in self.vifs.values_mut().filter(|s| s.device.is_peer_event(&event)) {
                let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
                if let Err(e) = served.vif.step(&self.platform, &mut bus, &mut |_, _| None) {
                    served.say(Level::Info, &e);
                }
            }
        }
        self.ended(n, "closed", drained);
        for (_, mut served) in std::mem::take(&mut self.vifs) {
            let id = served.device.id();
            if closing(&served) {
                served.say(Level::Info, &"its front did not follow; closed all the same");
                let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
                let _ = served.vif.close(&self.platform, &mut bus, None); // as above
            }
            let _ = served.device.unwatch_peer(&mut self.xs);
            if let Some(succession) = &mut self.succession {
                succession.forget(&self.platform, &id);
            }
        }
        drained
    }

    fn ended(&self, n: usize, how: &str, Drained { delivered, lost }: Drained) {
        let level = if lost > 0 { Level::Warn } else { Level::Info };
        log!(
            level,
            "{n} vif(s) {how}; {delivered} frame(s) for guests were delivered at the last moment, {lost} are lost"
        );
    }
}

/// A vif's ring that broke the protocol: which vif, queue, direction.
type Fault = ((u16, u32), usize, &'static str, PeerFault);

/// Where a front has the key `{dir}-{what}` of queue `i` of `n`; the control ring, `ctrl`, is of no queue.
fn front_key(device: &Device, i: usize, n: usize, dir: &str, what: &str) -> String {
    let at = if dir == "ctrl" { String::new() } else { queue_prefix(i, n) };
    format!("{}/{at}{dir}-{what}", device.peer_dir())
}

/// What an event below our own directory means.
enum Changed {
    /// A vif came or went, perhaps.
    Vifs,
    /// The toolstack's wish for one vif, or its script's word.
    Wish((u16, u32)),
    /// A key that we, or the toolstack, write for others to read.
    Nothing,
}

fn below_watch(path: &str) -> Changed {
    let mut parts = path.rsplit_once(WATCH).map_or("", |(_, below)| below).split('/').skip(1);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(front), Some(handle), Some(key)) => match (front.parse(), handle.parse()) {
            (Ok(front), Ok(handle)) if key == "online" || key == HOTPLUG_STATUS => {
                Changed::Wish((front, handle))
            }
            _ => Changed::Nothing,
        },
        _ => Changed::Vifs,
    }
}

/// The names in a directory; none when it is not there.
fn list<T: Transport>(xs: &mut Client<T>, path: &str) -> Result<Vec<String>, XsError> {
    match xs.directory(path) {
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        other => other,
    }
}
