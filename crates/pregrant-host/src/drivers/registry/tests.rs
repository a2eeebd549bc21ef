//! Tests a backend with its xenstore in one process: its requests to xenstore, and what it
//! remembers of what guests write.

use super::watch::Changed;
use super::{Backend, BackendConfig};
use crate::drivers::net::port_provider::{Hotplug, HotplugConfig, Notes, Plugged, PortProvider, Ports};
use crate::drivers::recovery::{KeptBytes, Recovery};
use crate::drivers::{Frontend, Net, NetConfig, RemoteSide};
use pregrant::DomId;
use pregrant::net::back::Patience;
use pregrant::net::front::FrontConfig;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalXen, Pages};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads};
use pregrant::shm::SharedBytes;
use pregrant::xenbus::toolstack::{self, Vif};
use pregrant::xenbus::{Class, DeviceId, XenbusState};
use pregrant::xenstore::{Client, Transport, WatchEvent};
use pregrant_xenstored::{LocalLink, LocalStore};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const BACK: DomId = DomId(0);

/// A connection that records what is sent over it, as text.
struct RecordedLink {
    link: LocalLink,
    sent: Rc<RefCell<String>>,
}

impl Transport for RecordedLink {
    type Error = &'static str;
    fn send(&mut self, bytes: &[u8]) -> Result<(), Self::Error> {
        self.sent.borrow_mut().push_str(&String::from_utf8_lossy(bytes));
        self.link.send(bytes)
    }
    fn recv(&mut self, buf: &mut [u8], wait: Option<Duration>) -> Result<usize, Self::Error> {
        self.link.recv(buf, wait)
    }
}

/// A provider that has no ports for live vifs. For other vifs hotplug ends when the test decides,
/// and their ports have frames without end.
struct NoRoom {
    plugs: Rc<Cell<bool>>,
    links: Rc<RefCell<Vec<bool>>>,
    /// Number of link changes that the remote side had seen when the last vif was found.
    links_before: Rc<Cell<usize>>,
    /// The MTU limits that the remote side saw.
    mtus: Rc<RefCell<Vec<Option<u32>>>>,
    /// Length of the frames for guests.
    len: Arc<AtomicUsize>,
}

/// A port that accepts all frames, and always has a burst of frames of this length.
struct Endless(Arc<AtomicUsize>);

impl FramePort for Endless {
    fn caps(&self) -> Offloads {
        Offloads::default()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let before = into.len();
        while into.push(&vec![7; self.0.load(Ordering::Relaxed)], Offload::default()) {}
        into.len() - before
    }
}

impl RemoteSide for NoRoom {}
impl PortProvider for NoRoom {
    fn found(&mut self, _: &DeviceId, _: &HotplugConfig, live: bool) -> Result<Notes, String> {
        self.links_before.set(self.links.borrow().len());
        if live { Err("no place".into()) } else { Ok(Notes::new()) }
    }
    fn plug(&mut self, _: &DeviceId, _: &HotplugConfig) -> Plugged {
        if self.plugs.get() { Plugged::Yes } else { Plugged::NotYet }
    }
    fn connected(&mut self, _: &DeviceId, n: usize, _: Offloads) -> Result<Ports, String> {
        Ok((0..n).map(|_| Box::new(Endless(Arc::clone(&self.len))) as Box<dyn FramePort>).collect())
    }
    fn link(&mut self, _: &DeviceId, up: bool) -> Result<(), String> {
        self.links.borrow_mut().push(up);
        Ok(())
    }
    fn limit_mtu(&mut self, _: &DeviceId, most: Option<u32>) -> Result<Notes, String> {
        self.mtus.borrow_mut().push(most);
        Ok(Notes::new())
    }
}

/// A recovery that keeps nothing, and in which no other process has devices.
struct Nothing;

impl Recovery<LocalDomain> for Nothing {
    fn own(&mut self, _: &LocalDomain, _: &DeviceId) -> Result<Box<dyn Any>, String> {
        Ok(Box::new(()))
    }
    fn page(
        &mut self,
        _: &LocalDomain,
        _: &DeviceId,
        _: &str,
        _: usize,
    ) -> Result<Option<KeptBytes>, String> {
        Ok(None)
    }
    fn forget(&mut self, _: &LocalDomain, _: &DeviceId) {}
    fn kept(&mut self, _: &LocalDomain, _: Class, _: DomId) -> Vec<DeviceId> {
        Vec::new()
    }
}

struct Stage {
    xen: LocalXen,
    store: LocalStore,
    /// The toolstack's connection.
    xs: Client<LocalLink>,
    backend: Backend<LocalDomain, RecordedLink>,
    sent: Rc<RefCell<String>>,
    plugs: Rc<Cell<bool>>,
    /// The changes of links that the remote side saw.
    links: Rc<RefCell<Vec<bool>>>,
    /// Number of link changes that the remote side had seen when the last vif was found.
    links_before: Rc<Cell<usize>>,
    /// The MTU limits that the remote side saw.
    mtus: Rc<RefCell<Vec<Option<u32>>>>,
    /// Length of the frames for guests.
    len: Arc<AtomicUsize>,
}

impl Stage {
    fn set() -> Self {
        Self::set_in(BACK)
    }

    /// Creates a stage whose backend is in domain `back`.
    fn set_in(back: DomId) -> Self {
        let (xen, store) = (LocalXen::new(), LocalStore::new());
        if back != BACK {
            store.with_server(|s| s.introduce(back)).unwrap();
        }
        let sent = Rc::<RefCell<String>>::default();
        let link = RecordedLink { link: store.link(back), sent: Rc::clone(&sent) };
        let plugs = Rc::<Cell<bool>>::default();
        let links = Rc::<RefCell<Vec<bool>>>::default();
        let links_before = Rc::<Cell<usize>>::default();
        let mtus = Rc::<RefCell<Vec<Option<u32>>>>::default();
        let len = Arc::new(AtomicUsize::new(60));
        let provider = Box::new(NoRoom {
            plugs: Rc::clone(&plugs),
            links: Rc::clone(&links),
            links_before: Rc::clone(&links_before),
            mtus: Rc::clone(&mtus),
            len: Arc::clone(&len),
        });
        let platform = xen.domain(back.0);
        let config = BackendConfig { recovery: Some(Box::new(Nothing)), ..BackendConfig::default() };
        let net = Net::new(NetConfig::default(), provider);
        let backend = Backend::new(platform, Client::new(link), config, vec![Box::new(net)]).unwrap();
        Self { xs: store.client(BACK), xen, store, backend, sent, plugs, links, links_before, mtus, len }
    }

    fn vif(&mut self, front: u16) -> DeviceId {
        self.store.with_server(|s| s.introduce(DomId(front))).unwrap();
        let vif = Vif::new(DomId(front), BACK, 0, [2, 0, 0, 0, 0, 1]);
        vif.create(&mut self.xs).unwrap();
        vif.id
    }

    /// Runs the backend until it would sleep.
    fn rest(&mut self) {
        while self.backend.control().unwrap() || self.backend.arm() {}
    }

    /// Returns the requests to xenstore since the last call.
    fn sent(&self) -> String {
        self.sent.take()
    }
}

#[test]
fn only_events_of_the_own_directory_s_watch_say_what_to_do() {
    let event = |path: &str, token: &str| WatchEvent { path: path.into(), token: token.into() };
    let vif = DeviceId { class: Class::VIF, front: DomId(7), back: BACK, handle: 0 };
    let stage = Stage::set();
    let of = |path: &str| stage.backend.meaning_of(&event(path, "backend/vif"));
    assert_eq!(of("backend/vif/7/0/online"), Changed::Toolstack(vif));
    assert_eq!(of("/local/domain/0/backend/vif/7/0/online"), Changed::Toolstack(vif));
    assert_eq!(of("backend/vif/7/0/state"), Changed::State(vif));
    assert_eq!(of("backend/vif/7/0/rate"), Changed::Own(vif, "rate"));
    assert_eq!(of("backend/vif/7/0/hotplug-status"), Changed::Toolstack(vif));
    assert_eq!(of("backend/vif/7/0/feature-sg"), Changed::Nothing);
    for all in ["backend/vif", "backend/vif/7", "backend/vif/7/0", "backend", "/local/domain/0/backend/vif"] {
        assert_eq!(of(all), Changed::Devices, "{all}");
    }
    // The guest chooses the token of its own watch freely.
    let token = "/local/domain/5/device/vif/0/state";
    for below in ["", "/backend/vif/7/0/online", "/backend/vif", "/backend/vif/7/0/state"] {
        assert_eq!(stage.backend.meaning_of(&event(&format!("{token}{below}"), token)), Changed::Nothing);
    }
}

/// A driver domain's home is not domain 0's. A xenstored may give a node's path from the home on,
/// or from the root on.
#[test]
fn a_driver_domain_s_events_are_below_its_own_home() {
    let stage = Stage::set_in(DomId(3));
    let vif = DeviceId { class: Class::VIF, front: DomId(7), back: DomId(3), handle: 0 };
    let of =
        |path: &str| stage.backend.meaning_of(&WatchEvent { path: path.into(), token: "backend/vif".into() });
    for home in ["", "/local/domain/3/"] {
        assert_eq!(of(&format!("{home}backend/vif/7/0/online")), Changed::Toolstack(vif), "{home}");
        assert_eq!(of(&format!("{home}backend/vif/7/0/state")), Changed::State(vif), "{home}");
        assert_eq!(of(&format!("{home}backend/vif/7/0/feature-sg")), Changed::Nothing, "{home}");
    }
    for others in ["/local/domain/0/backend/vif/7/0/online", "/local/domain/33/backend/vif/7/0/state"] {
        assert_eq!(of(others), Changed::Devices, "{others}: no device of ours");
    }
}

/// A guest whose vif is watched and not served creates a node below its state that has the name of
/// another vif's key. The other vif makes no step.
#[test]
fn a_guest_s_node_steps_no_one_else_s_vif() {
    let mut stage = Stage::set();
    let (held, other) = (stage.vif(5), stage.vif(7));
    // A predecessor left it connected, and there is no place for it here: it is left for the next
    // backend.
    for dir in [held.front_dir(), held.back_dir()] {
        stage.xs.write(&format!("{dir}/state"), "4").unwrap();
    }
    // Until nothing is left to do for the other vif.
    while {
        stage.sent();
        stage.backend.control().unwrap();
        stage.sent.borrow().contains("vif/7")
    } {}
    let served: Vec<_> = stage.backend.reports().iter().map(|r| (r.id, r.state)).collect();
    assert_eq!(served, [(other, XenbusState::InitWait)]);
    let mut guest = stage.store.client(held.front);
    let node = format!("{}/state/backend/vif/7/0/online", held.front_dir());
    stage.sent();
    guest.write(&node, "").unwrap();
    stage.backend.control().unwrap();
    let sent = stage.sent();
    assert!(!sent.contains("vif/7"), "asked for the sake of vif 7.0: {sent:?}");
    // Once the device is given up, its front is not watched any more.
    stage.rest();
    stage.sent();
    guest.write(&node, "").unwrap();
    assert!(!stage.backend.control().unwrap(), "{:?}", stage.sent());
}

/// A guest makes 100 000 nodes while the backend runs: one event waits for each watch.
#[test]
fn xsa_349_a_guest_s_nodes_are_kept_once() {
    let mut stage = Stage::set();
    stage.backend.config_mut().limits_steps = false;
    let ids = [stage.vif(5), stage.vif(7)];
    stage.rest();
    let mut guest = stage.store.client(ids[0].front);
    let mut most = 0;
    for n in 0..100_000 {
        let node = format!("{}/state/{n}", ids[0].front_dir());
        guest.write(&node, "").unwrap();
        guest.rm(&node).unwrap();
        if n % 500 == 0 {
            stage.backend.control().unwrap();
            most = most.max(stage.backend.xs.nr_waiting());
        }
    }
    // Each vif has two watched nodes (state and request), and the directory one.
    assert!(most <= 2 * ids.len() + 1, "{most} events waited");
    stage.rest();
    assert_eq!(stage.backend.xs.nr_waiting(), 0);
}

/// When the backend's own write causes an event, the step that follows is made before the sleep.
#[test]
fn what_a_turn_asks_for_is_done_before_the_sleep() {
    let mut stage = Stage::set();
    stage.backend.class_mut::<Net<LocalDomain>>().unwrap().config.hotplug = Hotplug::Own;
    let id = stage.vif(5);
    stage.rest();
    assert_eq!(stage.backend.reports()[0].state, XenbusState::InitWait);
    // A script ends, and nothing else happens: the event of the written key arrives with the reply.
    stage.plugs.set(true);
    stage.rest();
    assert!(!stage.backend.xs.has_events(), "an event waits, and the backend would sleep");
    let status = stage.xs.read(&format!("{}/hotplug-status", id.back_dir())).unwrap();
    assert_eq!(status, b"connected");
}

/// The remote side learns in control turns, and only there, whether a guest receives frames.
#[test]
fn control_turns_tell_the_far_side_of_links() {
    let mut stage = Stage::set();
    stage.xen.stop_clock(0);
    let id = stage.vif(5);
    let (guest, xs) = (stage.xen.domain(5), stage.store.client(id.front));
    let mut front = Frontend::new(guest, xs, id.handle, FrontConfig::default(), false).unwrap();
    for _ in 0..20 {
        front.control(Duration::ZERO).unwrap();
        stage.backend.control().unwrap();
    }
    assert!(front.vif().is_live());
    assert_eq!(*stage.links.borrow(), [true], "its front posts slots at once");
    // The guest reads none of the frames that wait for it.
    while stage.backend.round() {}
    stage.backend.control().unwrap();
    assert_eq!(*stage.links.borrow(), [true]);
    stage.xen.stop_clock(Patience::default().stall_ns);
    stage.backend.control().unwrap();
    assert_eq!(*stage.links.borrow(), [true, false]);
    let mut read = Arena::new();
    while front.recv(0, &mut read, 1).unwrap() > 0 {
        read.clear();
    }
    stage.backend.control().unwrap();
    assert_eq!(*stage.links.borrow(), [true, false, true]);
}

/// Kept memory, which is in this process and outlives a backend.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<BTreeMap<String, Pages>>>);

impl Recovery<LocalDomain> for Memory {
    fn own(&mut self, _: &LocalDomain, _: &DeviceId) -> Result<Box<dyn Any>, String> {
        Ok(Box::new(()))
    }
    fn page(
        &mut self,
        _: &LocalDomain,
        _: &DeviceId,
        name: &str,
        bytes: usize,
    ) -> Result<Option<KeptBytes>, String> {
        let mut pages = self.0.borrow_mut();
        let page = pages.entry(name.into()).or_insert_with(|| Pages::new(bytes.div_ceil(4096)));
        Ok(Some(Box::new(page.clone())))
    }
    fn forget(&mut self, _: &LocalDomain, _: &DeviceId) {
        self.0.borrow_mut().clear();
    }
    fn kept(&mut self, _: &LocalDomain, _: Class, _: DomId) -> Vec<DeviceId> {
        Vec::new()
    }
}

/// If a record has an unknown version, the vif stays connected with all kept memory, and a backend
/// that knows the version continues to serve it.
#[test]
fn a_vif_whose_records_are_unknown_is_left_to_another_backend() {
    let (xen, store, memory) = (LocalXen::new(), LocalStore::new(), Memory::default());
    store.with_server(|s| s.introduce(DomId(5)).unwrap());
    let mut xs = store.client(BACK);
    let vif = Vif::new(DomId(5), BACK, 0, [2, 0, 0, 0, 0, 1]);
    vif.create(&mut xs).unwrap();
    let backend = || {
        let ports = |_: &DeviceId, n: usize, _: Offloads| -> Ports {
            let port = || Box::new(Endless(Arc::new(AtomicUsize::new(60)))) as Box<dyn FramePort>;
            (0..n).map(|_| port()).collect()
        };
        let config = BackendConfig { recovery: Some(Box::new(memory.clone())), ..BackendConfig::default() };
        let net = Net::new(NetConfig::default(), Box::new(ports));
        Backend::new(xen.domain(BACK.0), Client::new(store.link(BACK)), config, vec![Box::new(net)]).unwrap()
    };
    let mut first = backend();
    let mut front =
        Frontend::new(xen.domain(5), store.client(DomId(5)), 0, FrontConfig::default(), false).unwrap();
    while !front.vif().is_live() {
        front.control(Duration::ZERO).unwrap();
        first.control().unwrap();
    }
    drop(first); // without a word
    let redo = memory.0.borrow()["0/tx"].clone();
    let version = 44;
    assert_eq!(redo.load_u32(version), Some(1));
    assert!(redo.store_u32(version, 2));
    let mut older = backend();
    while older.directory.held.get(&vif.id).is_none_or(|held| !held.is_given_up()) {
        older.control().unwrap();
    }
    let held = &older.directory.held[&vif.id];
    let why = "the redo page that an earlier backend kept of this device has version 2, and this program reads versions up to 1";
    assert!(held.is_logged && held.why.starts_with(why), "{}", held.why);
    assert!(held.why.ends_with("Left connected for the next backend"), "{}", held.why);
    assert!(older.reports().is_empty());
    front.control(Duration::ZERO).unwrap();
    assert!(front.vif().is_live(), "its guest sees nothing");
    drop(older);
    // This backend knows the version.
    assert!(redo.store_u32(version, 1));
    let mut next = backend();
    next.control().unwrap();
    assert!(next.reports()[0].reattached);
    let mut read = Arena::new();
    while front.recv(0, &mut read, 1).unwrap() == 0 {
        next.round();
    }
}

/// The remote side of a guest whose frames must fit one slot is limited when the front connects,
/// and again if longer frames arrive nevertheless.
#[test]
fn an_interface_is_limited_at_the_connect_and_when_longer_frames_come() {
    for sg in [true, false] {
        let mut stage = Stage::set();
        stage.xen.stop_clock(0);
        let id = stage.vif(5);
        let (guest, xs) = (stage.xen.domain(5), stage.store.client(id.front));
        let config = FrontConfig { sg, staging: Buffers::NONE, ..FrontConfig::default() };
        let mut front = Frontend::new(guest, xs, id.handle, config, false).unwrap();
        while !front.vif().is_live() {
            front.control(Duration::ZERO).unwrap();
            stage.backend.control().unwrap();
        }
        let limit = (!sg).then_some(1500);
        assert_eq!(stage.mtus.take(), [limit]);
        let mut read = Arena::new();
        let mut burst = |len: usize| {
            stage.len.store(len, Ordering::Relaxed);
            for _ in 0..4 {
                stage.backend.round();
                stage.backend.control().unwrap();
            }
            while front.recv(0, &mut read, 1).unwrap() > 0 {
                read.clear();
            }
            stage.mtus.take()
        };
        assert_eq!(burst(1514), []);
        let due = if sg { &[][..] } else { &[limit][..] };
        assert_eq!(burst(2000), due);
        assert_eq!(burst(2000), [], "not again and again");
        stage.xen.stop_clock(1_000_000_000);
        assert_eq!(burst(2000), due);
    }
}

/// A guest whose slots are posted gets its link before another vif's interface is created, which
/// takes long.
#[test]
fn a_link_does_not_wait_for_another_vif() {
    let mut stage = Stage::set();
    let id = stage.vif(5);
    let (guest, xs) = (stage.xen.domain(5), stage.store.client(id.front));
    let mut front = Frontend::new(guest, xs, id.handle, FrontConfig::default(), false).unwrap();
    while !front.vif().is_live() {
        stage.backend.control().unwrap();
        front.control(Duration::ZERO).unwrap();
    }
    assert!(stage.links.borrow().is_empty());
    stage.vif(7);
    stage.backend.control().unwrap();
    assert_eq!(*stage.links.borrow(), [true]);
    assert_eq!(stage.links_before.get(), 1);
}

/// A device that the kernel has does not prevent others from being served: it is left to the
/// kernel, with one warning, until it is free.
#[test]
fn a_device_that_somebody_else_has_is_left_alone() {
    let mut stage = Stage::set();
    let ids = [stage.vif(5), stage.vif(7)];
    let has = Rc::new(Cell::new(true));
    let had = Rc::clone(&has);
    let reported =
        move |id: &DeviceId| (had.get() && id.front == DomId(7)).then(|| "the kernel has it".into());
    stage.backend.config_mut().had_by_others = Some(Box::new(reported));
    stage.rest();
    let served = |stage: &Stage| stage.backend.reports().iter().map(|r| r.id).collect::<Vec<_>>();
    assert_eq!(served(&stage), [ids[0]]);
    // Others come and go, and its backend writes anything: it is not checked for that, nor written
    // to.
    let state = format!("{}/state", ids[1].back_dir());
    let others = stage.vif(9);
    stage.rest();
    for its in ["2", "4", "5", "4"] {
        stage.xs.write(&state, its).unwrap();
        stage.sent();
        stage.rest();
        assert!(!stage.sent().contains("vif/7"), "asked for the sake of vif 7.0");
        assert_eq!(stage.xs.read(&state).unwrap(), its.as_bytes());
    }
    assert_eq!(served(&stage), [ids[0], others]);
    assert_eq!(stage.backend.logs.of(ids[1]).written(), 1, "it was said once");
    // The kernel lets go, without an event.
    stage.xs.write(&state, "1").unwrap();
    has.set(false);
    stage.backend.polls.checked -= Duration::from_secs(2);
    stage.rest();
    assert_eq!(served(&stage), [ids[0], ids[1], others]);
    assert_eq!(stage.xs.read(&state).unwrap(), b"2");
    // From then on the kernel gets only devices that are given to it.
    has.set(true);
    stage.vif(11);
    stage.rest();
    assert_eq!(served(&stage).len(), 4, "what is served here is not asked about again");
}

/// After `xl network-detach` of a vif whose front reconnects (as ours and firmware's do), the
/// toolstack finds state 6 whenever it reads the state.
#[test]
fn a_vif_that_is_to_go_is_not_offered_again() {
    for removes in [false, true] {
        let mut stage = Stage::set();
        stage.backend.config_mut().removes = removes;
        let id = stage.vif(5);
        let (guest, xs) = (stage.xen.domain(5), stage.store.client(id.front));
        let mut front = Frontend::new(guest, xs, id.handle, FrontConfig::default(), true).unwrap();
        let turns = |stage: &mut Stage, front: &mut Frontend<_, _>, each: &mut dyn FnMut(&mut Stage)| {
            for _ in 0..20 {
                front.control(Duration::ZERO).unwrap();
                stage.backend.control().unwrap();
                each(stage);
            }
        };
        turns(&mut stage, &mut front, &mut |_| ());
        assert!(front.vif().is_live());
        toolstack::request_removal(&mut stage.xs, &id).unwrap();
        let state = format!("{}/state", id.back_dir());
        let mut seen = Vec::new();
        turns(&mut stage, &mut front, &mut |stage| {
            let now = stage.xs.read_if_there(&state).unwrap().unwrap_or_else(|| b"gone".to_vec());
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        });
        let last: &[u8] = if removes { b"gone" } else { b"6" };
        assert_eq!(seen.last().map(Vec::as_slice), Some(last), "{seen:?}");
        assert!(!seen.iter().any(|state| ["1", "2", "4"].iter().any(|s| s.as_bytes() == state)), "{seen:?}");
        assert!(!front.vif().is_live());
        assert_eq!(stage.xen.counts().mapped, 0);
    }
}
