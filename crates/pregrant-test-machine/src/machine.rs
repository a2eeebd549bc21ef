//! A loopback machine inside a test: broker and xenstored, with a backend in one thread and guests
//! in others.
//!
//! ```text
//!   test's thread: toolstack, guests ---- threads: broker, xenstored, back (domain 0, a learning switch)
//! ```
//! Nothing here has a time limit but [`run`]'s watchdog: what does not happen hangs the test until
//! that barks.

use crate::{log_lines, one_by_one};
use pregrant::DomId;
use pregrant::net::back::VifConfig;
use pregrant::net::features::BackFeatures;
use pregrant::net::headers::MacAddr;
use pregrant::net::path::PathConfig;
use pregrant::net::path::PathName;
use pregrant::platform::Platform;
use pregrant::port::{FramePort, Offloads};
use pregrant::xenbus::toolstack::{self, Vif};
use pregrant::xenbus::{Class, DeviceId, Side};
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::net::port_provider::{Notes, Ports};
use pregrant_host::drivers::recovery::KeptBytes;
use pregrant_host::drivers::{
    Backend, BackendConfig, Blk, BlkConfig, DeviceClass, HotplugConfig, Mode, Net, NetConfig, Placement,
    Plugged, PortProvider, Recovery, RemoteSide, RxContext, Stations, VifReport, WorkerConfig,
};
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use pregrant_loopback::xenstored::{Handle, Xenstored};
use pregrant_loopback::{Audit, Broker, BrokerRecovery, DomainSpec, Hooks, Loopback};
use std::any::Any;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

pub const BACK: DomId = DomId(0);

pub type Store = Client<UnixTransport>;
pub type LoopbackBackend = Backend<Loopback, UnixTransport>;

/// The name of a test, and its function.
pub type Test = (&'static str, fn());

/// Runs the tests of these files one after another, because each counts what the whole process
/// uses. Arguments that are not options select tests by parts of `file::name`.
pub fn run(files: &[(&str, &[Test])]) {
    log_lines::capture();
    pregrant_host::drivers::wait::lift_bounds();
    let tests = files.iter().flat_map(|(file, tests)| tests.iter().map(move |test| (*file, test)));
    let named = tests.map(|(file, (name, test))| (format!("{file}::{name}"), test as &dyn Fn()));
    one_by_one::run(named.collect(), one_by_one::Leaves::Nothing, || {});
}

/// Waits until `happened` returns true, which is checked every millisecond. If that never occurs,
/// the watchdog ends the test.
pub fn until(mut happened: impl FnMut() -> bool) {
    while !happened() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub struct Machine {
    pub broker: Arc<Broker>,
    pub xs: Store,
    path: PathBuf,
    store: Handle,
    store_thread: Option<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
}

impl Machine {
    pub fn start() -> Self {
        let mut server = Xenstored::new().unwrap();
        server.introduce(BACK).ok(); // known from the start, or now
        let store = server.handle();
        let (stopping, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let store_thread = {
            let (stopping, connections) = (Arc::clone(&stopping), Arc::clone(&connections));
            std::thread::spawn(move || {
                while !stopping.load(Ordering::Relaxed) {
                    server.poll_once(None).unwrap();
                    connections.store(server.connections(), Ordering::Relaxed);
                }
            })
        };
        let path = std::env::temp_dir().join(format!("pregrant-test-{}.broker", std::process::id()));
        let broker = Broker::start(Some(&path), Hooks::with_store(&store)).unwrap();
        broker.create_domain(DomainSpec::driver(BACK)).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        store.add_connection(OwnedFd::from(theirs), BACK).unwrap();
        let xs = Client::new(UnixTransport::new(OwnedFd::from(ours)).unwrap());
        Self {
            broker: Arc::new(broker),
            xs,
            path,
            store,
            store_thread: Some(store_thread),
            stopping,
            connections,
        }
    }

    pub fn broker_path(&self) -> &std::path::Path {
        &self.path
    }

    /// Creates a guest domain; first waits until an earlier domain with this number is gone.
    pub fn guest_domain(&self, domid: u16) {
        until(|| match self.broker.create_domain(DomainSpec::guest(DomId(domid))) {
            Ok(()) => true,
            Err(e) => {
                assert!(e.to_string().contains("File exists"), "{e}");
                false
            }
        });
    }

    /// Attaches the calling thread to a domain.
    pub fn attach(&self, domid: DomId) -> (Loopback, Store) {
        let platform = self.broker.attach(domid).unwrap();
        let fd = platform.take_store_fd().unwrap();
        let xs = Client::new(UnixTransport::new(fd).unwrap());
        (platform, xs)
    }

    /// Creates a vif, as the toolstack does.
    pub fn make_vif(&mut self, front: u16, handle: u32) -> DeviceId {
        let vif = Vif::new(DomId(front), BACK, handle, mac(front, handle).0);
        vif.create(&mut self.xs).unwrap();
        vif.id
    }

    pub fn remove_vif(&mut self, id: DeviceId) {
        toolstack::remove(&mut self.xs, &id).unwrap();
    }

    /// Returns the value of a key in xenstore, if it exists.
    pub fn key(&mut self, path: &str) -> Option<String> {
        let value = self.xs.read_if_there(path).unwrap();
        value.map(|v| String::from_utf8_lossy(&v).into_owned())
    }

    /// Returns the back's error report for a vif (the node `error` in xenstore), if there is one.
    pub fn error_node(&mut self, id: DeviceId) -> Option<String> {
        self.key(&id.error_path(Side::Back))
    }

    pub fn back_state(&mut self, id: DeviceId) -> Option<String> {
        self.key(&format!("{}/state", id.back_dir()))
    }

    /// Returns the number of open xenstore connections, including the toolstack's.
    pub fn connections(&self) -> usize {
        // A round through the server, so that it has counted what came before.
        self.store.introduce(BACK).ok();
        self.connections.load(Ordering::Relaxed)
    }

    /// Waits until the broker counts the objects in `wanted`. It may take the broker a while to
    /// notice that a process has ended.
    pub fn settles(&self, wanted: Audit) {
        let mut rounds = 0;
        while self.broker.audit() != wanted {
            rounds += 1;
            assert!(rounds < 20_000, "left: {:?}, wanted: {wanted:?}", self.broker.audit());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks that only domain 0 and the toolstack are left, and ends the machine.
    pub fn end(self) {
        self.settles(Audit { domains: 1, ..Audit::default() });
        until(|| self.connections() == 1);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = self.store.stop();
        if let Some(thread) = self.store_thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns a backend's class of vifs, by which a test changes how vifs are served that are found
/// later.
pub fn net(backend: &mut LoopbackBackend) -> &mut Net<Loopback> {
    backend.class_mut().expect("vifs are served")
}

type Job = Box<dyn FnOnce(&mut LoopbackBackend) + Send>;

/// The address that the toolstack assigns to a vif. The switch lets the guest send only with this
/// one.
pub fn mac(front: u16, handle: u32) -> MacAddr {
    let [hi, lo] = front.to_be_bytes();
    MacAddr([0x00, 0x16, 0x3e, hi, lo, handle as u8])
}

/// The environment variable that makes backs use worker threads. Its value has their number and the
/// placement of queues (`2 fixed`).
pub const WORKERS: &str = "PREGRANT_TEST_WORKERS";

/// Number of a back's worker threads, and the placement of queues on them. None: the back's only
/// thread serves the queues.
pub type Workers = Option<(usize, Placement)>;

fn workers() -> Workers {
    let said = std::env::var(WORKERS).ok()?;
    let (workers, place) = said.split_once(' ').unwrap_or((&said, "balanced"));
    Some((workers.parse().unwrap(), place.parse().unwrap()))
}

/// The settings of a back in a test.
pub struct Plan {
    pub features: BackFeatures,
    pub fallback: PathName,
    /// Whether the back may map a guest's whole memory.
    pub foreign: bool,
    pub workers: Workers,
    /// Whether devices outlive the back, and the back takes over those of its predecessor.
    pub recovers: bool,
    /// Something that prevents the back from taking over one of the vifs at once.
    pub obstacle: Option<Arc<Obstacle>>,
    pub disks: bool,
}

impl Default for Plan {
    /// The settings of a back with all features, which serves frames by `copy` if nothing else is
    /// negotiated.
    fn default() -> Self {
        let (features, fallback) = (BackFeatures::default(), PathName::Copy);
        Self {
            features,
            fallback,
            foreign: false,
            workers: workers(),
            recovers: false,
            obstacle: None,
            disks: false,
        }
    }
}

/// Domain 0's backend in a thread of its own, with a switch between its vifs.
pub struct Back {
    jobs: Option<mpsc::Sender<Job>>,
    /// Wakes the thread for a job. When this is closed, the thread ends.
    waker: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    links: Links,
    unplugging: Arc<Unplugging>,
    refuses: Arc<AtomicBool>,
    late: Arc<Mutex<Late>>,
}

impl Back {
    /// Starts a back that serves all vifs of domain 0, with these features.
    pub fn start(machine: &Machine, features: BackFeatures, fallback: PathName) -> Self {
        Self::serving(machine, Plan { features, fallback, ..Plan::default() })
    }

    /// Starts a back with these settings.
    pub fn serving(machine: &Machine, plan: Plan) -> Self {
        let connection = machine.broker.connect().unwrap();
        let (jobs, todo) = mpsc::channel();
        let links = Links::default();
        let unplugging = Arc::new(Unplugging::default());
        let refuses = Arc::<AtomicBool>::default();
        let late = Arc::<Mutex<Late>>::default();
        let provider = AtSwitch {
            late: Arc::clone(&late),
            stations: Stations::at(&Switch::new()),
            links: Arc::clone(&links),
            unplugging: Arc::clone(&unplugging),
            refuses: Arc::clone(&refuses),
            obstacle: plan.obstacle.clone(),
        };
        let (waker, rings) = UnixStream::pair().unwrap();
        rings.set_nonblocking(true).unwrap();
        let thread = std::thread::spawn(move || serve(connection, plan, (&todo, rings), provider));
        Self { jobs: Some(jobs), waker: Some(waker), thread: Some(thread), links, unplugging, refuses, late }
    }

    /// Starts a back with all features, which serves frames by `copy` if nothing else is
    /// negotiated.
    pub fn plain(machine: &Machine) -> Self {
        Self::serving(machine, Plan::default())
    }

    /// Runs `job` on the backend's thread, and returns its result.
    pub fn ask<R: Send + 'static>(&self, job: impl FnOnce(&mut LoopbackBackend) -> R + Send + 'static) -> R {
        self.send_job(job).recv().expect("the back's thread ended")
    }

    /// Runs `job` on the backend's thread, without waiting for its result.
    pub fn send_job<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut LoopbackBackend) -> R + Send + 'static,
    ) -> mpsc::Receiver<R> {
        let (reply, answer) = mpsc::channel();
        let job: Job = Box::new(move |backend| drop(reply.send(job(backend))));
        self.jobs.as_ref().unwrap().send(job).expect("the back's thread ended");
        self.waker.as_ref().unwrap().write_all(&[0]).expect("the back's thread ended");
        answer
    }

    /// Returns the changes of a vif's link of which the remote side was notified, in order.
    pub fn links(&self, id: DeviceId) -> Vec<bool> {
        self.links.lock().unwrap().iter().filter(|(of, _)| *of == id).map(|(_, up)| *up).collect()
    }

    /// With `holds`, undoing hotplug does not end until this is called again without it. Returns
    /// how often undoing was requested so far.
    pub fn holds_plugs(&self, holds: bool) -> u32 {
        self.unplugging.holds.store(holds, Ordering::SeqCst);
        self.unplugging.asked.load(Ordering::SeqCst)
    }

    /// Makes the back's remote side refuse to make ports and to set links from now on.
    pub fn refuses(&self) {
        self.refuses.store(true, Ordering::SeqCst);
    }

    /// Makes the back's remote side report work for this vif even after the vif is gone.
    pub fn begins_to_end(&self, id: DeviceId) {
        self.late.lock().unwrap().under_way.push(id);
    }

    /// Makes the back's remote side report a failure for this vif. With `is_last` its work for the
    /// vif then ends.
    pub fn fails(&self, id: DeviceId, why: &str, is_last: bool) {
        {
            let mut late = self.late.lock().unwrap();
            late.failures.push((id, why.into()));
            late.under_way.retain(|of| !is_last || *of != id);
        }
        self.ask(|backend| backend.control().unwrap());
    }

    /// Returns the backend's report on a vif.
    pub fn report(&self, id: DeviceId) -> Option<VifReport> {
        assert_eq!(id.class, Class::VIF);
        self.ask(move |backend| backend.reports().into_iter().find(|r| r.id == id))
    }

    /// Closes all vifs, and ends the back.
    pub fn stop(mut self) {
        self.ask(LoopbackBackend::close_all);
        self.end();
    }

    fn end(&mut self) {
        drop((self.jobs.take(), self.waker.take()));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            assert!(std::thread::panicking(), "the back's thread panicked: see above");
        }
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        self.end();
    }
}

/// The changes of links of which a remote side was notified, in order.
pub type Links = Arc<Mutex<Vec<(DeviceId, bool)>>>;

/// Whether a remote side delays the undoing of hotplug, and how often that was requested.
#[derive(Default)]
struct Unplugging {
    holds: AtomicBool,
    asked: AtomicU32,
}

/// The kind of an obstacle to taking over a vif at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The vif's rings are taken over, and making its ports takes as long as the obstacle exists.
    Slow,
    /// The vif's last owner is dying: the vif is held once, and the next try takes as long as the
    /// obstacle exists.
    Held,
    /// Another process owns the vif as long as the obstacle exists.
    Owned,
}

pub struct Obstacle {
    pub id: DeviceId,
    pub kind: Kind,
    /// True once the obstacle does not exist any more.
    pub gone: AtomicBool,
    /// Number of times the back tried to become the owner of the vif.
    pub met: AtomicU32,
    /// The names of the remote side's calls, each with its vif.
    pub steps: Mutex<Vec<(&'static str, DeviceId)>>,
}

impl Obstacle {
    pub fn new(id: DeviceId, kind: Kind) -> Arc<Self> {
        let (gone, met, steps) = (AtomicBool::new(false), AtomicU32::new(0), Mutex::default());
        Arc::new(Self { id, kind, gone, met, steps })
    }
}

/// The broker's recovery, with an obstacle to owning one device.
struct Obstructed(BrokerRecovery, Option<Arc<Obstacle>>);

impl Recovery<Loopback> for Obstructed {
    fn own(&mut self, p: &Loopback, id: &DeviceId) -> Result<Box<dyn Any>, String> {
        if let Some(obstacle) = self.1.as_ref().filter(|o| o.id == *id && o.kind != Kind::Slow) {
            let is_gone = || obstacle.gone.load(Ordering::SeqCst);
            let before = obstacle.met.fetch_add(1, Ordering::SeqCst);
            if obstacle.kind == Kind::Held && before > 0 {
                until(is_gone);
            } else if !is_gone() {
                return Err("another has it".into());
            }
        }
        self.0.own(p, id)
    }
    fn page(
        &mut self,
        p: &Loopback,
        id: &DeviceId,
        name: &str,
        bytes: usize,
    ) -> Result<Option<KeptBytes>, String> {
        self.0.page(p, id, name, bytes)
    }
    fn forget(&mut self, p: &Loopback, id: &DeviceId) {
        self.0.forget(p, id);
    }
    fn kept(&mut self, p: &Loopback, class: Class, own: DomId) -> Vec<DeviceId> {
        self.0.kept(p, class, own)
    }
}

/// Work that a remote side still does for vifs that are gone, and failures that it will report.
#[derive(Default)]
struct Late {
    under_way: Vec<DeviceId>,
    failures: Vec<(DeviceId, String)>,
}

/// The remote side of a test's back: a switch.
struct AtSwitch {
    late: Arc<Mutex<Late>>,
    stations: Stations,
    links: Links,
    unplugging: Arc<Unplugging>,
    refuses: Arc<AtomicBool>,
    obstacle: Option<Arc<Obstacle>>,
}

impl AtSwitch {
    fn answers(&self) -> Result<(), String> {
        if self.refuses.load(Ordering::SeqCst) { Err("it is out of order".into()) } else { Ok(()) }
    }
}

impl RemoteSide for AtSwitch {
    fn is_ending(&mut self, id: &DeviceId) -> bool {
        self.late.lock().unwrap().under_way.contains(id)
    }
    fn failures(&mut self) -> Vec<(DeviceId, String)> {
        std::mem::take(&mut self.late.lock().unwrap().failures)
    }
}

impl PortProvider for AtSwitch {
    fn inner_provider(&mut self) -> Option<&mut dyn PortProvider> {
        Some(&mut self.stations)
    }
    fn found(&mut self, id: &DeviceId, place: &HotplugConfig, live: bool) -> Result<Notes, String> {
        if let Some(obstacle) = &self.obstacle {
            obstacle.steps.lock().unwrap().push(("found", *id));
        }
        self.stations.found(id, place, live)
    }
    fn connected(&mut self, id: &DeviceId, queues: usize, _: Offloads) -> Result<Ports, String> {
        self.answers()?;
        if let Some(obstacle) = &self.obstacle {
            obstacle.steps.lock().unwrap().push(("connected", *id));
            if obstacle.id == *id && obstacle.kind == Kind::Slow {
                until(|| obstacle.gone.load(Ordering::SeqCst));
            }
        }
        let caps = Offloads { csum: true, gso: true };
        let ports = self.stations.ports(id, queues, caps).unwrap();
        Ok(ports.into_iter().map(|p| Box::new(p) as Box<dyn FramePort>).collect())
    }
    fn link(&mut self, id: &DeviceId, up: bool) -> Result<(), String> {
        self.links.lock().unwrap().push((*id, up));
        self.answers()
    }
    fn closed(&mut self, _: &DeviceId) -> Result<(), String> {
        self.answers()
    }
    fn unplug(&mut self, _: &DeviceId) -> Plugged {
        self.unplugging.asked.fetch_add(1, Ordering::SeqCst);
        if self.unplugging.holds.load(Ordering::SeqCst) { Plugged::NotYet } else { Plugged::Yes }
    }
}

fn serve(
    connection: OwnedFd,
    Plan { features, fallback, foreign, workers, recovers, obstacle, disks }: Plan,
    (jobs, mut rings): (&mpsc::Receiver<Job>, UnixStream),
    provider: AtSwitch,
) {
    let platform = Loopback::attach_fd(connection, BACK).unwrap();
    let fd = platform.take_store_fd().unwrap();
    let xs = Client::new(UnixTransport::new(fd).unwrap());
    platform.events().also_wake_on(xs.transport().as_fd()).unwrap();
    platform.events().also_wake_on(rings.as_fd()).unwrap();
    let vif = VifConfig {
        features,
        paths: PathConfig { fallback, foreign, ..PathConfig::default() },
        ..VifConfig::default()
    };
    let net = Net::new(NetConfig { vif, ..NetConfig::default() }, Box::new(provider));
    let mut config = BackendConfig::default();
    if recovers {
        config.recovery = Some(Box::new(Obstructed(BrokerRecovery, obstacle)));
    }
    let mut classes: Vec<Box<dyn DeviceClass<_, _>>> = vec![Box::new(net)];
    if disks {
        classes.push(Box::new(Blk::new(BlkConfig::default())));
    }
    let mut backend = Backend::new(platform, xs, config, classes).unwrap();
    if let Some((workers, place)) = workers {
        let workers = WorkerConfig {
            workers,
            place,
            rx_context: RxContext::default(),
            mode: Mode::Event,
            each_start: Arc::new(|_| {}),
            each_turn: Arc::new(|| {}),
        };
        backend.start_workers(workers).unwrap();
    }
    let mut rounds = 0u32;
    loop {
        let _ = rings.read(&mut [0; 64]); // before the jobs: one that comes later rings again
        loop {
            match jobs.try_recv() {
                Ok(job) => job(&mut backend),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
        }
        rounds = rounds.wrapping_add(1);
        if backend.round() {
            // Traffic keeps no one from being served.
            if rounds.is_multiple_of(64) {
                backend.control().unwrap();
            }
        } else if !backend.control().unwrap() {
            backend.sleep(None);
        }
    }
}
