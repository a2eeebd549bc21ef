//! A device class of one's own: `vtoy`, the example `device_class`, connects, dies with its back,
//! is taken up by a successor, is throttled and shows in the status; through the registry, the
//! worker and the recovery that serve vifs, and beside vifs of the same backend.
//!
//! The binary starts itself as `back BROKER DIR`, a backend of both classes that tells its status
//! in DIR. It is killed with SIGKILL, or ends in good order when its standard input does.

#[path = "../../examples/device_class/main.rs"]
mod example;

use example::front;
use example::vtoy::{MOST, Toys, VTOY};
use pregrant::DomId;
use pregrant::platform::Platform;
use pregrant::xenbus::toolstack::{self, Vif};
use pregrant::xenbus::{DeviceId, Side, XenbusState};
use pregrant_host::UnixTransport;
use pregrant_host::drivers::status::{DeviceStatus, socket_path};
use pregrant_host::drivers::{
    BackStatus, Backend, BackendConfig, Mode, Net, NetConfig, PollLoop, Rest, Stations, StatusPublisher, Work,
};
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use pregrant_loopback::{BrokerRecovery, Loopback};
use pregrant_test_machine::guest::{Guest, exchange, ordinary};
use pregrant_test_machine::machine;
use pregrant_test_machine::machine::{BACK, Machine, Test, until};
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [back, broker, dir] = args.as_slice()
        && back == "back"
    {
        return serve(Path::new(broker), Path::new(dir));
    }
    const TESTS: &[Test] = &[
        ("the_example_runs", || example::main().unwrap()),
        ("a_toy_outlives_its_back_beside_vifs", a_toy_outlives_its_back_beside_vifs),
        ("a_toy_s_front_is_bounded", a_toy_s_front_is_bounded),
        (
            "a_toy_at_work_closes_when_it_is_done_and_holds_no_other",
            a_toy_at_work_closes_when_it_is_done_and_holds_no_other,
        ),
    ];
    machine::run(&[("toy_class", TESTS)]);
}

/// A back of both classes.
struct Serving {
    backend: Backend<Loopback, UnixTransport>,
    status: StatusPublisher<Loopback>,
    over: Arc<AtomicBool>,
}

impl Rest for Serving {
    type Error = Box<dyn Error>;
    const CONTROL_AFTER_SLEEP: bool = false;
    fn control(&mut self) -> Result<(), Self::Error> {
        self.backend.control()?;
        self.status.turn(&self.backend);
        Ok(())
    }
    fn sleep(&mut self) -> Result<(), Self::Error> {
        if !self.backend.control()? {
            self.backend.sleep(self.status.due());
        }
        Ok(())
    }
}

impl Work for Serving {
    fn round(&mut self) -> Result<bool, Self::Error> {
        Ok(self.backend.round())
    }
    fn is_over(&mut self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// The process: serves until its standard input ends.
fn serve(broker: &Path, dir: &Path) {
    let platform = Loopback::attach(broker, BACK).unwrap();
    let xs = machine::Store::new(UnixTransport::new(platform.take_store_fd().unwrap()).unwrap());
    let status =
        StatusPublisher::bind(&socket_path(dir, BACK.0), Loopback::counters, Loopback::describe).unwrap();
    platform.events().also_wake_on(xs.transport().as_fd()).unwrap();
    platform.events().also_wake_on(status.as_fd()).unwrap();
    platform.events().also_wake_on(std::io::stdin().as_fd()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        stop.store(true, Ordering::Relaxed);
    });
    let config = BackendConfig { recovery: Some(Box::new(BrokerRecovery)), ..BackendConfig::default() };
    let net = Net::new(NetConfig::default(), Box::new(Stations::at(&Switch::new())));
    let backend = Backend::new(platform, xs, config, vec![Box::new(net), Box::new(Toys)]).unwrap();
    let mut serving = Serving { backend, status, over };
    serving.control().unwrap();
    println!("ready");
    PollLoop::new(Mode::Adaptive).run(&mut serving).unwrap();
    serving.backend.detach();
}

/// The directory for backs' status. Each finds what its predecessor left there; it is removed with
/// the test, however that ends.
struct StatusDir(PathBuf);

impl StatusDir {
    fn new(machine: &Machine) -> Self {
        let name = format!("pregrant-toy-{}", std::process::id());
        let dir = machine.broker_path().parent().unwrap().join(name);
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for StatusDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // the test has said what is wrong
    }
}

/// The process, as the test has it.
struct Back<'a> {
    child: Child,
    dir: &'a StatusDir,
}

impl<'a> Back<'a> {
    fn start(machine: &Machine, dir: &'a StatusDir) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("back").arg(machine.broker_path()).arg(&dir.0).env("PREGRANT_WAITS", "unbounded");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, dir }
    }

    fn status(&self) -> BackStatus {
        let mut document = Vec::new();
        let socket = socket_path(&self.dir.0, BACK.0);
        UnixStream::connect(socket).unwrap().read_to_end(&mut document).unwrap();
        serde_json::from_slice(&document).unwrap()
    }

    /// The status of a toy.
    fn toy(&self, id: DeviceId) -> Option<DeviceStatus> {
        let is_it = |d: &DeviceStatus| (&*d.class, d.front, d.handle) == ("vtoy", id.front.0, id.handle);
        self.status().devices.into_iter().find(is_it)
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends in good order: devices stay connected.
    fn leave(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// The front of a toy, in this process, which waits for its back.
struct ToyFront(front::ToyFront<Loopback, UnixTransport>);

impl Deref for ToyFront {
    type Target = front::ToyFront<Loopback, UnixTransport>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for ToyFront {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl ToyFront {
    fn attach(machine: &Machine, id: DeviceId) -> Self {
        let (platform, xs) = machine.attach(id.front);
        Self(front::ToyFront::attach(platform, xs, id))
    }

    /// Waits for the back, gives it the page, and waits until it has it.
    fn connect(&mut self) {
        self.wait_back(XenbusState::InitWait);
        self.offer();
        self.wait_back(XenbusState::Connected);
    }

    fn wait_back(&mut self, state: XenbusState) {
        until(|| self.back_state() == state);
    }
}

/// The toolstack makes a toy.
fn make_toy(machine: &mut Machine, front: u16) -> DeviceId {
    let id = DeviceId { class: VTOY, front: DomId(front), back: BACK, handle: 0 };
    Vif { id, mac: [0; 6], front_keys: &[], back_keys: &[] }.create(&mut machine.xs).unwrap();
    id
}

fn a_toy_outlives_its_back_beside_vifs() {
    let mut machine = Machine::start();
    let dir = StatusDir::new(&machine);
    [5, 6].into_iter().for_each(|domid| machine.guest_domain(domid));
    let vifs = [5, 6].map(|domid| machine.make_vif(domid, 0));
    let toy = make_toy(&mut machine, 5);
    let back = Back::start(&machine, &dir);
    let [mut a, mut b] = vifs.map(|id| Guest::connected(&machine, id, ordinary()));
    let mut front = ToyFront::attach(&machine, toy);
    front.connect();
    front.ask(100);
    until(|| front.answered() == 100);
    exchange(&mut a, &mut b, &[64]);
    let status = back.status();
    assert_eq!((status.vifs.len(), status.devices.len()), (2, 1));
    let seen = back.toy(toy).unwrap();
    assert_eq!((&*seen.state, seen.reattached, seen.connected_s.is_some()), ("Connected", false, true));
    assert_eq!((seen.counters["answered"], seen.counters["answered_by_this"]), (100, 100));
    // Killed between any two of these; each successor goes on where it stopped, and the front sees
    // no state change.
    let mut back = back;
    for asked in [150, 200, 250] {
        back.kill();
        front.ask(50);
        back = Back::start(&machine, &dir);
        until(|| front.answered() == asked);
        exchange(&mut a, &mut b, &[64]);
        let seen = back.toy(toy).unwrap();
        assert_eq!((&*seen.state, seen.reattached), ("Connected", true));
        assert_eq!((seen.counters["answered"], seen.counters["answered_by_this"]), (asked.into(), 50));
        assert!(back.status().vifs.iter().all(|vif| vif.reattached));
        assert_eq!(machine.back_state(toy).as_deref(), Some("4"));
    }
    // So does one that follows a good end.
    front.ask(1);
    until(|| front.answered() == 251);
    back.leave();
    let back = Back::start(&machine, &dir);
    front.ask(1);
    until(|| front.answered() == 252);
    // It closes, and comes again with a count of its own.
    front.set_state(XenbusState::Closing);
    front.wait_back(XenbusState::Closing);
    front.set_state(XenbusState::Closed);
    front.wait_back(XenbusState::Closed);
    front.set_state(XenbusState::Initialising);
    front.connect();
    front.ask(3);
    until(|| front.answered() == 3);
    // Gone for good: nothing is kept of it, and the vifs are as they were.
    drop(front);
    toolstack::remove(&mut machine.xs, &toy).unwrap();
    until(|| back.toy(toy).is_none());
    exchange(&mut a, &mut b, &[64]);
    let (platform, _xs) = machine.attach(BACK);
    assert!(platform.persisted().iter().all(|page| page.starts_with("vif")), "{:?}", platform.persisted());
    drop((platform, _xs));
    a.close();
    b.close();
    vifs.into_iter().for_each(|id| machine.remove_vif(id));
    until(|| back.status().vifs.is_empty());
    back.leave();
    machine.end();
}

fn a_toy_at_work_closes_when_it_is_done_and_holds_no_other() {
    let mut machine = Machine::start();
    let dir = StatusDir::new(&machine);
    [5, 6, 7].into_iter().for_each(|domid| machine.guest_domain(domid));
    let toys = [5, 6, 7].map(|domid| make_toy(&mut machine, domid));
    let back = Back::start(&machine, &dir);
    let [mut slow, mut liar, mut other] = toys.map(|id| ToyFront::attach(&machine, id));
    for front in [&mut slow, &mut liar] {
        front.connect();
        front.set_at_work(true);
    }
    slow.set_state(XenbusState::Closing);
    liar.ask(MOST + 1);
    // The earlier value was seen before it is connected.
    other.connect();
    other.ask(10);
    until(|| other.answered() == 10);
    assert_eq!(machine.back_state(toys[0]).as_deref(), Some("4"), "it is at work, and its close waits");
    // Its front goes on meanwhile; the step waits with the other one.
    slow.set_state(XenbusState::Closed);
    other.ask(10);
    until(|| other.answered() == 20);
    slow.set_at_work(false);
    slow.wait_back(XenbusState::Closed);
    assert_eq!(machine.back_state(toys[1]).as_deref(), Some("4"), "so does a fault");
    liar.set_at_work(false);
    liar.wait_back(XenbusState::Closed);
    assert_eq!(back.toy(toys[1]).unwrap().faults, 1);
    // Each comes again.
    for front in [&mut slow, &mut liar] {
        front.set_state(XenbusState::Closed);
        front.set_state(XenbusState::Initialising);
        front.connect();
        front.ask(3);
        until(|| front.answered() == 3);
    }
    drop((slow, liar, other));
    for toy in toys {
        toolstack::remove(&mut machine.xs, &toy).unwrap();
    }
    until(|| back.status().devices.is_empty());
    back.leave();
    machine.end();
}

fn a_toy_s_front_is_bounded() {
    let mut machine = Machine::start();
    let dir = StatusDir::new(&machine);
    [5, 6].into_iter().for_each(|domid| machine.guest_domain(domid));
    let toys = [5, 6].map(|domid| make_toy(&mut machine, domid));
    let back = Back::start(&machine, &dir);
    let [mut good, mut bad] = toys.map(|id| ToyFront::attach(&machine, id));
    good.connect();
    bad.connect();
    // One that is further ahead than it may be: its toy is closed, with a reason, until it comes
    // down.
    bad.ask(MOST + 1);
    bad.wait_back(XenbusState::Closed);
    let why = machine.key(&toys[1].error_path(Side::Back)).unwrap();
    assert!(
        why.contains("domain 6 broke the protocol on its ring /local/domain/6/device/vtoy/0/ring-ref"),
        "{why}"
    );
    let seen = back.toy(toys[1]).unwrap();
    assert_eq!((seen.faults, seen.last_failure.as_deref()), (1, Some(&*why)));
    good.ask(10);
    until(|| good.answered() == 10);
    bad.set_state(XenbusState::Closed);
    bad.set_state(XenbusState::Initialising);
    bad.connect();
    // One that asks for steps without end is served now and again; its neighbour is served as
    // ever.
    let mut asked = 0u32;
    until(|| {
        for _ in 0..50 {
            let front = &mut bad.0;
            front.device.set(&mut front.xs, "mood", "swinging").unwrap();
        }
        asked += 1;
        good.ask(1);
        until(|| good.answered() == 10 + asked);
        back.toy(toys[1]).unwrap().throttled > 0
    });
    assert_eq!(back.toy(toys[0]).unwrap().throttled, 0);
    drop((good, bad));
    for toy in toys {
        toolstack::remove(&mut machine.xs, &toy).unwrap();
    }
    until(|| back.status().devices.is_empty());
    back.leave();
    machine.end();
}
