//! The back's process: a real [`Backend`] between guests and ports that record frames in logs, and
//! a switch for guests that talk to each other.

use crate::control::SpreadPort;
use crate::frames;
use crate::world::{self, BACK, Counts, GUEST, LOGGED, Log, Word};
use pregrant::DomId;
use pregrant::net::back::VifConfig;
use pregrant::net::features::BackFeatures;
use pregrant::net::path::PathConfig;
use pregrant::net::path::PathName;
use pregrant::net::path::staging::Heads;
use pregrant::platform::{Clock, Platform};
use pregrant::port::{Arena, Burst, FramePort, Offloads, Payload, PortOwner, QueueWaker};
use pregrant::xenbus::DeviceId;
use pregrant_host::MonotonicClock;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::net::port_provider::{Notes, Ports};
use pregrant_host::drivers::{
    Backend, BackendConfig, BackendError, HotplugConfig, Mode, Net, NetConfig, Placement, PollLoop,
    PortProvider, RemoteSide, Rest, RxContext, Stations, VifReport, Work, WorkerConfig,
};
use pregrant_host::wake::WakeOn;
use pregrant_loopback::{BrokerRecovery, Loopback, ProcessCounts};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Frames for the guest in a burst.
pub const BURST: u32 = 5;

const CAPS: Offloads = Offloads { csum: true, gso: true };

/// State that all ports of the process share.
struct Process {
    state: Log,
    began_ns: u64,
}

impl Process {
    fn frames(&self, n: usize) {
        self.state.add(Word::Frames, n);
        if n > 0 && self.state.get(Word::PauseUs) == 0 {
            let us = (MonotonicClock.now_ns() - self.began_ns) / 1000;
            self.state.set(Word::PauseUs, us.max(1) as u32);
        }
    }
}

struct LogPort {
    process: Arc<Mutex<Process>>,
    log: Arc<Mutex<Log>>,
    queue: usize,
    last: Option<u64>,
    of: u16,
    wakers: Wakers,
}

impl FramePort for LogPort {
    fn caps(&self) -> Offloads {
        CAPS
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        let log = self.log.lock().unwrap();
        for (frame, offload) in frames.iter() {
            let Ok(seq) = frames::check(frame, offload) else {
                log.add(Word::Damaged, 1);
                continue;
            };
            if self.last.is_some_and(|last| seq <= last) {
                log.add(Word::Reordered, 1);
            }
            self.last = Some(seq);
            log.note(seq);
        }
        log.set(Word::Served, log.get(Word::Served) | 1 << self.queue);
        self.process.lock().unwrap().frames(frames.frames.len());
        frames.frames.len()
    }
    /// The place of the frames of the first of several queues, for paths that leave them there;
    /// private copies of the next one's.
    fn payload(&self) -> Payload {
        if self.queue.is_multiple_of(2) { Payload::ZeroCopy } else { Payload::Private }
    }
    fn owned_by(&mut self, owner: &PortOwner) {
        self.wakers.keep((self.of, self.queue), owner);
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let log = self.log.lock().unwrap();
        let (next, size) = (log.get(Word::Next), log.get(Word::Size) as usize);
        let most = log.get(Word::Limit).saturating_sub(next).min(BURST);
        let mut n = 0;
        while n < most && into.has_room() {
            let (frame, offload) = frames::make(u64::from(next + n), size);
            assert!(into.push(&frame, offload));
            n += 1;
        }
        log.set(Word::Next, next + n);
        self.process.lock().unwrap().frames(n as usize);
        n as usize
    }
}

/// The back's report of its predecessors, before it moves a frame.
fn report_predecessors(logs: &[(DomId, Arc<Mutex<Log>>)], vifs: &[VifReport]) {
    for vif in vifs.iter().filter(|vif| !vif.queues.is_empty()) {
        let Some((_, log)) = logs.iter().find(|(of, _)| *of == vif.id.front) else { continue };
        let [twice, lost] = vif.queues.iter().fold([0, 0], |[twice, lost], (_, tx, _, rx)| {
            [twice + tx.interrupted as u32, lost + rx.interrupted as u32]
        });
        let log = log.lock().unwrap();
        log.set(Word::SaidTwice, twice);
        log.set(Word::SaidLost, lost);
    }
}

type ByQueue = BTreeMap<(u16, usize), Arc<dyn QueueWaker>>;

/// Ports that log frames of certain guests; the others are at a switch, where frames for them wait
/// while their vifs are resumed.
struct LoggedPorts<F> {
    logged: F,
    others: Stations,
}

impl<F> RemoteSide for LoggedPorts<F> {}
impl<F: FnMut(&DeviceId, usize) -> Option<Ports>> PortProvider for LoggedPorts<F> {
    fn found(&mut self, id: &DeviceId, place: &HotplugConfig, live: bool) -> Result<Notes, String> {
        self.others.found(id, place, live)
    }
    fn reserve(&mut self, id: &DeviceId, place: &HotplugConfig, queues: usize, front: Offloads) {
        if !LOGGED.contains(&id.front) {
            self.others.reserve(id, place, queues, front);
        }
    }
    fn release(&mut self, id: &DeviceId) -> usize {
        self.others.release(id)
    }
    fn connected(&mut self, id: &DeviceId, queues: usize, front: Offloads) -> Result<Ports, String> {
        let logged = (self.logged)(id, queues);
        logged.map_or_else(|| self.others.connected(id, queues, front), Ok)
    }
}

/// The doorbells of ports, as their workers gave them.
#[derive(Clone, Default)]
pub struct Wakers(Arc<Mutex<ByQueue>>);

impl Wakers {
    /// Sets how the present owner of this port is woken.
    pub fn keep(&self, of: (u16, usize), owner: &PortOwner) {
        self.0.lock().unwrap().insert(of, Arc::clone(&owner.waker));
    }
}

/// Rings when the test has frames for a guest, or a question: what it writes into memory wakes
/// no one.
fn doorbell_of(watched: [Log; 3], wakers: Wakers) -> UnixStream {
    let (waker, mut rings) = UnixStream::pair().unwrap();
    waker.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let mut last = [[0; 2]; 3];
        loop {
            let now = watched.each_ref().map(|log| [Word::Limit, Word::Asked].map(|word| log.get(word)));
            if std::mem::replace(&mut last, now) != now {
                wakers.0.lock().unwrap().values().for_each(|waker| waker.ring());
                if rings.write_all(&[0]).is_err() {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    waker
}

/// Parses how vifs are served: `map`, `foreign` or another path's name, and `heads`, `no-sg`.
fn vif_config(words: &str) -> VifConfig {
    let said = |word| words.split(',').any(|w| w == word);
    let paths = PathConfig {
        fallback: if said("map") { PathName::Map } else { PathName::Copy },
        staging: Heads { heads: said("heads") },
        foreign: said("foreign"),
        guest_copy: said("guest-copy"),
        ..PathConfig::default()
    };
    let features = BackFeatures { sg: !said("no-sg"), ..BackFeatures::default() };
    VifConfig { features, paths, ..VifConfig::default() }
}

/// The counts of all queues of [`GUEST`]'s vif.
fn counted(vifs: &[VifReport]) -> [Counts; 2] {
    let mut counts = [Counts::default(); 2];
    for (_, tx, _, rx) in vifs.iter().filter(|vif| vif.id.front == GUEST).flat_map(|vif| &vif.queues) {
        for (sum, queue) in counts.iter_mut().zip([tx, rx]) {
            sum.frames += queue.frames as u32;
            sum.granted += queue.granted as u32;
            sum.persistent += queue.persistent as u32;
            sum.gref_mapped += queue.gref_mapping as u32;
            sum.data_ring += queue.data_ring as u32;
            sum.foreign += queue.foreign as u32;
            sum.guest_copy += queue.guest_copy as u32;
            sum.staged += queue.staging as u32;
            sum.dropped += (queue.dropped + queue.too_long) as u32;
            sum.errors += queue.errors as u32;
            sum.maps += queue.grant_ops.maps as u32;
        }
    }
    counts
}

/// The command from standard input.
const LEAVE: u8 = 1;
const CLOSE: u8 = 2;

/// Serves until its standard input ends, then leaves, or closes its devices if there was any input.
pub fn play(ordinary: &str, path: &Path) {
    let began_ns = MonotonicClock.now_ns();
    let platform = Loopback::attach(path, BACK).unwrap();
    let state = Log::open(&platform, BACK);
    state.set(Word::Stage, 1);
    let xs = world::client(&platform);
    platform.events().also_wake_on(xs.transport().as_fd()).unwrap();
    platform.events().also_wake_on(std::io::stdin().as_fd()).unwrap();
    let end = Arc::new(AtomicU8::new(0));
    let stop = Arc::clone(&end);
    std::thread::spawn(move || {
        let said = std::io::stdin().read(&mut [0]).unwrap_or(0);
        stop.store(if said > 0 { CLOSE } else { LEAVE }, Ordering::Relaxed);
    });
    let spread = ordinary == "spread";
    let process = Arc::new(Mutex::new(Process { state: Log::open(&platform, BACK), began_ns }));
    let logs = LOGGED.map(|of| (of, Arc::new(Mutex::new(Log::open(&platform, of)))));
    let report_logs = logs.clone();
    let watched = [BACK, LOGGED[0], LOGGED[1]].map(|of| Log::open(&platform, of));
    let wakers = Wakers::default();
    let port_wakers = wakers.clone();
    let logged = move |id: &DeviceId, n: usize| -> Option<Vec<Box<dyn FramePort>>> {
        let (_, log) = logs.iter().find(|(of, _)| *of == id.front)?;
        let port = |queue| -> Box<dyn FramePort> {
            let log = Arc::clone(log);
            if spread {
                return Box::new(SpreadPort::new(log, queue, port_wakers.clone()));
            }
            let (process, of, wakers) = (Arc::clone(&process), id.front.0, port_wakers.clone());
            Box::new(LogPort { process, log, queue, last: None, of, wakers })
        };
        Some((0..n).map(port).collect())
    };
    let mut others = Stations::default();
    others.allow_mac_spoofing([None]); // guests' addresses are the tests'
    let ports = Box::new(LoggedPorts { logged, others });
    let vif = vif_config(ordinary);
    let net = Net::new(NetConfig { vif, ..NetConfig::default() }, ports);
    let config = BackendConfig { recovery: Some(Box::new(BrokerRecovery)), ..BackendConfig::default() };
    let mut backend = Backend::new(platform, xs, config, vec![Box::new(net)]).unwrap();
    if let Ok(workers) = std::env::var(world::WORKERS) {
        let (workers, each_turn) = (workers.parse().unwrap(), Arc::new(|| {}));
        backend
            .start_workers(WorkerConfig {
                workers,
                place: Placement::Balanced,
                rx_context: RxContext::default(),
                mode: Mode::Adaptive,
                each_start: Arc::new(|_| {}),
                each_turn,
            })
            .unwrap();
    }
    let waker = doorbell_of(watched, wakers);
    backend.platform().events().also_wake_on(waker.as_fd()).unwrap();
    let mut serving = Serving { backend, waker, state, end: Arc::clone(&end), report_logs };
    PollLoop::new(Mode::Adaptive).run(&mut serving).unwrap();
    let Serving { mut backend, state, .. } = serving;
    let drained = if end.load(Ordering::Relaxed) == CLOSE { backend.close_all() } else { backend.detach() };
    state.add(Word::Lost, drained.lost);
}

/// A back that keeps account of itself in control turns.
struct Serving {
    backend: Backend<Loopback, UnixTransport>,
    waker: UnixStream,
    state: Log,
    end: Arc<AtomicU8>,
    report_logs: [(DomId, Arc<Mutex<Log>>); 2],
}

impl Rest for Serving {
    type Error = BackendError;

    fn sleep(&mut self) -> Result<(), BackendError> {
        if !self.backend.control()? {
            self.backend.sleep(None);
        }
        let _ = self.waker.read(&mut [0; 64]);
        Ok(())
    }

    fn control(&mut self) -> Result<(), BackendError> {
        self.backend.control()?;
        let state = &self.state;
        let reports = self.backend.reports();
        report_predecessors(&self.report_logs, &reports);
        let lent = reports.iter().flat_map(|vif| &vif.queues).map(|(_, _, _, rx)| rx.lent).sum::<u64>();
        state.set(Word::Lent, lent as u32);
        if state.get(Word::Stage) == 1 && self.backend.nr_live() > 0 {
            state.set(Word::Stage, 2);
            println!("live");
        }
        let asked = state.get(Word::Asked);
        if state.get(Word::Answered) != asked {
            let ProcessCounts { fds, eventfds, threads, mappings } = ProcessCounts::now().unwrap();
            let counts = [
                (Word::Fds, fds),
                (Word::EventFds, eventfds),
                (Word::Threads, threads),
                (Word::Mappings, mappings),
                (Word::Vifs, self.backend.devices().count()),
            ];
            for (word, n) in counts {
                state.set(word, n as u32);
            }
            for (dir, counts) in counted(&self.backend.reports()).into_iter().enumerate() {
                state.set_counts(dir, counts);
            }
            state.set(Word::Answered, asked);
        }
        Ok(())
    }
}

impl Work for Serving {
    fn round(&mut self) -> Result<bool, BackendError> {
        Ok(self.backend.round())
    }
    fn is_over(&mut self) -> bool {
        self.end.load(Ordering::Relaxed) != 0
    }
}
