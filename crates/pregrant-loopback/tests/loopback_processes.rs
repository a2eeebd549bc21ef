//! Domains as processes that die: killed at any moment, by a signal of their own, or not allowed to
//! read others' memory.
//!
//! The binary starts itself as `child ROLE PATH`; a child says `ready` (and what the test needs to
//! know) on its standard output and goes on when it reads a line. Tests run one after the other.

use pregrant::platform::{Access, CopyOp, Events, GrantPool, InUse, LocalBytes, PeerMem, Platform, ReadySet};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use pregrant_loopback::{Audit, Broker, Control, DomainSpec, GrantSummary, Hooks, Loopback, LoopbackError};
use pregrant_test_machine::one_by_one;
use pregrant_testkit::skip::skip;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

const BACK: DomId = DomId(0);
const DRIVER: DomId = DomId(3);
const GUEST: DomId = DomId(5);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, role, path] = args.as_slice()
        && child == "child"
    {
        return play(role, Path::new(path));
    }
    let tests: [(&str, fn()); 9] = [
        ("a_back_that_is_killed_leaves_nothing", a_back_that_is_killed_leaves_nothing),
        ("a_back_is_killed_at_any_moment", a_back_is_killed_at_any_moment),
        ("a_guest_dies_with_its_process", a_guest_dies_with_its_process),
        ("a_driver_domain_outlives_its_process", a_driver_domain_outlives_its_process),
        ("no_wake_up_is_lost_between_processes", no_wake_up_is_lost_between_processes),
        ("wrong_touches_are_signals", wrong_touches_are_signals),
        ("a_successor_finds_what_was_kept", a_successor_finds_what_was_kept),
        ("copies_work_where_process_vm_is_forbidden", copies_work_where_process_vm_is_forbidden),
        ("the_broker_is_reached_by_path", the_broker_is_reached_by_path),
    ];
    one_by_one::run(
        tests.iter().map(|(name, test)| (name.to_string(), test as &dyn Fn())).collect(),
        one_by_one::Leaves::Nothing,
        || {},
    );
}

/// A broker with domain 0 and a driver domain, on a socket of its own.
struct Rig {
    broker: Broker,
    path: PathBuf,
}

impl Rig {
    fn new() -> Self {
        let name = format!("pregrant-test-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let broker = Broker::start(Some(&path), Hooks::default()).unwrap();
        broker.create_domain(DomainSpec::driver(BACK)).unwrap();
        broker.create_domain(DomainSpec::driver(DRIVER)).unwrap();
        Self { broker, path }
    }

    fn guest(&self) -> Loopback {
        self.broker.create_domain(DomainSpec::guest(GUEST)).unwrap();
        self.broker.attach(GUEST).unwrap()
    }

    fn child(&self, role: &str) -> Role {
        self.child_by(Command::new(std::env::current_exe().unwrap()), role)
    }

    fn child_by(&self, mut command: Command, role: &str) -> Role {
        let child = command.args(["child", role]).arg(&self.path);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Role { child, says }
    }

    /// Waits until the broker's account is `wanted`; it notices a death in its own time.
    fn settles(&self, wanted: Audit) {
        let mut rounds = 0;
        while self.broker.audit() != wanted {
            rounds += 1;
            assert!(rounds < 20_000, "left: {:?}, wanted: {wanted:?}", self.broker.audit());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

struct Role {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
}

impl Role {
    /// The numbers after the child's next "ready".
    fn ready(&mut self) -> Vec<u32> {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("ready"), "the child said {line:?}");
        words.map(|w| w.parse().unwrap()).collect()
    }

    fn send(&mut self, numbers: &[u32]) {
        let line: Vec<String> = numbers.iter().map(u32::to_string).collect();
        writeln!(self.child.stdin.as_mut().unwrap(), "{}", line.join(" ")).unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().unwrap()
    }
}

fn say_ready(numbers: &[u32]) {
    let line: Vec<String> = numbers.iter().map(u32::to_string).collect();
    println!("ready {}", line.join(" "));
    std::io::stdout().flush().unwrap();
}

fn receive() -> Vec<u32> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.split_whitespace().map(|w| w.parse().unwrap()).collect()
}

fn grefs(numbers: &[u32]) -> Vec<GrantRef> {
    numbers.iter().map(|n| GrantRef(*n)).collect()
}

fn ops(refs: &[GrantRef]) -> Vec<CopyOp> {
    let op = |(i, gref): (usize, &GrantRef)| CopyOp {
        gref: *gref,
        offset: 0,
        len: 64,
        at: i as u32 * 64,
        status: GrantStatus::GENERAL_ERROR,
    };
    refs.iter().enumerate().map(op).collect()
}

fn play(role: &str, path: &Path) {
    match role {
        "holding-back" => holding_back(path),
        "busy-back" => busy_back(path),
        "granting-guest" => granting_front(path, GUEST),
        "granting-driver" => granting_front(path, DRIVER),
        "echo" => echo(path),
        "touch-after-unmap" | "write-read-only" | "touch-beside" => touch(path, role),
        "keeper" => {
            let back = Loopback::attach(path, BACK).unwrap();
            let kept = back.persist("redo/vif5.0", 5000).unwrap();
            assert!(kept.is_fresh() && kept.store_u32(4096, 0xC0FFEE));
            say_ready(&[]);
            receive();
        }
        "copying-back" => {
            let back = Loopback::attach(path, BACK).unwrap();
            say_ready(&[]);
            let refs = grefs(&receive());
            let mut bytes = vec![0; refs.len() * 64];
            let mut ops = ops(&refs);
            back.peer().copy(GUEST, LocalBytes::FromPeer(&mut bytes), &mut ops).unwrap();
            assert!(ops.iter().all(|o| o.status.is_okay()), "{ops:?}");
            let forbidden = back.describe().contains("is forbidden here");
            say_ready(&[u32::from(forbidden), bytes.iter().map(|b| u32::from(*b)).sum()]);
        }
        role => panic!("no such role: {role}"),
    }
}

/// Maps all that it knows of, binds, and waits to be killed.
fn holding_back(path: &Path) {
    let back = Loopback::attach(path, BACK).unwrap();
    say_ready(&[]);
    let reported = receive();
    let refs = grefs(&reported[1..]);
    let _chan = back.events().bind(GUEST, EvtchnPort(reported[0])).unwrap();
    let _all = back.peer().map(GUEST, &refs, Access::ReadWrite).unwrap();
    let _one = back.peer().map(GUEST, &refs[3..4], Access::ReadOnly).unwrap();
    let _mixed = back.peer().map(GUEST, &[refs[5], refs[1]], Access::ReadOnly).unwrap();
    say_ready(&[]);
    receive();
}

/// Copies, maps and notifies without end.
fn busy_back(path: &Path) {
    let back = Loopback::attach(path, BACK).unwrap();
    say_ready(&[]);
    let reported = receive();
    let refs = grefs(&reported[1..]);
    let chan = back.events().bind(GUEST, EvtchnPort(reported[0])).unwrap();
    say_ready(&[]);
    let mut bytes = vec![7; refs.len() * 64];
    let mut ops = ops(&refs);
    let mut maps = Vec::new();
    loop {
        back.peer().copy(GUEST, LocalBytes::FromPeer(&mut bytes), &mut ops).unwrap();
        back.events().notify(&chan);
        back.peer().copy(GUEST, LocalBytes::ToPeer(&bytes), &mut ops).unwrap();
        assert!(ops.iter().all(|o| o.status.is_okay()));
        for gref in &refs {
            maps.push(back.peer().map(GUEST, &[*gref], Access::ReadWrite).unwrap());
        }
        back.peer().unmap(&mut maps);
    }
}

/// Grants 6 pages to domain 0, offers a channel, and waits to be killed.
fn granting_front(path: &Path, domid: DomId) {
    let front = Loopback::attach(path, domid).unwrap();
    let mut refs = [GrantRef::NONE; 6];
    let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
    assert!(region.copy_in(5 * PAGE_SIZE, b"last words"));
    let (_chan, port) = front.events().offer(BACK).unwrap();
    let mut numbers = vec![port.0];
    numbers.extend(refs.iter().map(|r| r.0));
    say_ready(&numbers);
    receive();
}

/// Answers each event with one.
fn echo(path: &Path) {
    let back = Loopback::attach(path, BACK).unwrap();
    say_ready(&[]);
    let reported = receive();
    let chan = back.events().bind(GUEST, EvtchnPort(reported[0])).unwrap();
    let mut ready = ReadySet::default();
    back.events().wait(&mut ready, None);
    back.events().unmask(&chan);
    say_ready(&[]);
    for _ in 0..reported[1] {
        back.events().wait(&mut ready, None);
        assert_eq!(ready.ports, [back.events().local(&chan)]);
        back.events().unmask(&chan);
        back.events().notify(&chan);
    }
    let counters = back.counters();
    say_ready(&[counters.notifications as u32]);
    receive();
}

/// Accesses what it must not, which must end it.
fn touch(path: &Path, role: &str) {
    let front = Loopback::attach(path, DRIVER).unwrap();
    let back = Loopback::attach(path, BACK).unwrap();
    let mut refs = [GrantRef::NONE; 2];
    let _region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
    let acc = if role == "write-read-only" { Access::ReadOnly } else { Access::ReadWrite };
    let map = back.peer().map(DRIVER, &refs[..1], acc).unwrap();
    let base = map.base().as_ptr();
    // SAFETY: mapped.
    assert_eq!(unsafe { base.read_volatile() }, 0);
    say_ready(&[]);
    receive();
    // SAFETY: none: each of these faults, which is what the test is about.
    unsafe {
        match role {
            "write-read-only" => base.write_volatile(1),
            "touch-beside" => {
                let _ = base.add(PAGE_SIZE).read_volatile();
            }
            _ => {
                back.peer().unmap(&mut vec![map]);
                let _ = base.read_volatile();
            }
        }
    }
    say_ready(&[]);
}

/// True if the first of the two methods of mapping is available. The tests use both, or the second
/// one twice.
fn maps_by_userfaultfd(back: &Loopback) -> bool {
    let how = back.describe();
    let is_here = how.contains("userfaultfd continue");
    if !is_here {
        skip(how);
    }
    is_here
}

fn a_back_that_is_killed_leaves_nothing() {
    let rig = Rig::new();
    let front = rig.guest();
    for no_uffd in ["0", "1"] {
        let mut refs = [GrantRef::NONE; 10];
        let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
        let (chan, port) = front.events().offer(BACK).unwrap();
        let before = rig.broker.audit();
        assert_eq!((before.pins, before.grants, before.channels), (0, 10, 1));

        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("PREGRANT_NO_UFFD", no_uffd);
        let mut back = rig.child_by(command, "holding-back");
        back.ready();
        let mut reported = vec![port.0];
        reported.extend(refs.iter().map(|r| r.0));
        back.send(&reported);
        back.ready();
        let during = rig.broker.audit();
        // 10 for writing; 3, 5 and 1 for reading too.
        assert_eq!((during.pins, during.maptrack, during.channels, during.attachments), (13, 10, 2, 2));
        let Err(InUse(region)) = front.grants().release(region) else { panic!("released while mapped") };
        front.events().notify(&chan);
        let sent = front.counters().notifications;
        back.kill();
        // No page of the region was revoked: every page was mapped.
        rig.settles(before);

        front.events().notify(&chan);
        assert_eq!(front.counters().notifications, sent, "a notify to a dead peer goes nowhere");
        let successor = rig.broker.attach(BACK).unwrap();
        let remote = successor.events().bind(GUEST, port).unwrap();
        front.events().notify(&chan);
        assert_eq!(front.counters().notifications, sent + 1);
        drop((remote, successor, chan));
        front.grants().release(region).map_err(|_| "the grants are still in use").unwrap();
        rig.settles(Audit { domains: 3, attachments: 1, ..Audit::default() });
    }
}

fn a_back_is_killed_at_any_moment() {
    let rig = Rig::new();
    let front = rig.guest();
    let (chan, port) = front.events().offer(BACK).unwrap();
    let empty = rig.broker.audit();
    for round in 0..40 {
        let mut refs = [GrantRef::NONE; 24];
        let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
        let mut back = rig.child("busy-back");
        back.ready();
        let mut reported = vec![port.0];
        reported.extend(refs.iter().map(|r| r.0));
        back.send(&reported);
        back.ready();
        std::thread::sleep(Duration::from_micros(round * 53));
        back.kill();
        rig.settles(Audit { grants: 24, ..empty });
        front.grants().release(region).map_err(|_| format!("round {round}: still in use")).unwrap();
        rig.settles(empty);
        // Its events do not keep the next one from ringing.
        let mut ready = ReadySet::default();
        front.events().wait(&mut ready, Some(Duration::ZERO));
        front.events().unmask(&chan);
        front.events().wait(&mut ready, Some(Duration::ZERO));
        front.events().unmask(&chan);
    }
}

fn a_guest_dies_with_its_process() {
    let rig = Rig::new();
    let back = rig.broker.attach(BACK).unwrap();
    let alone = rig.broker.audit();
    rig.broker.create_domain(DomainSpec::guest(GUEST)).unwrap();
    let mut guest = rig.child("granting-guest");
    let said = guest.ready();
    let refs = grefs(&said[1..]);
    let chan = back.events().bind(GUEST, EvtchnPort(said[0])).unwrap();
    let map = back.peer().map(GUEST, &refs, Access::ReadWrite).unwrap();
    guest.kill();
    rig.settles(Audit { channels: 1, ..alone });
    // As on Xen, the page lives as long as its mapping.
    let mut bytes = [0; 10];
    assert!(map.copy_out(5 * PAGE_SIZE, &mut bytes));
    assert_eq!(&bytes, b"last words");
    let mut ops = ops(&refs);
    back.peer().copy(GUEST, LocalBytes::FromPeer(&mut [0; 6 * 64]), &mut ops).unwrap();
    assert!(ops.iter().all(|o| o.status == GrantStatus::BAD_DOMAIN), "{ops:?}");
    back.events().notify(&chan);
    assert_eq!(back.counters().notifications, 0);
    // Its namesake is another domain.
    let namesake = rig.guest();
    assert_eq!(back.peer().map(GUEST, &refs, Access::ReadOnly).unwrap_err().status, GrantStatus::BAD_GNTREF);
    let region = namesake.grants().alloc(BACK, Access::ReadWrite, &mut [GrantRef::NONE; 6]).unwrap();
    assert!(region.copy_in(5 * PAGE_SIZE, b"other bits") && map.copy_out(5 * PAGE_SIZE, &mut bytes));
    assert_eq!(&bytes, b"last words");
    drop((map, chan, region, namesake));
    rig.settles(alone);
}

fn a_driver_domain_outlives_its_process() {
    let rig = Rig::new();
    let back = rig.broker.attach(BACK).unwrap();
    let alone = rig.broker.audit();
    let mut driver = rig.child("granting-driver");
    let said = driver.ready();
    let refs = grefs(&said[1..]);
    let map = back.peer().map(DRIVER, &refs[..2], Access::ReadOnly).unwrap();
    driver.kill();
    // Two pages are still mapped here; the other four and their grants are free already.
    rig.settles(Audit { grants: 2, maptrack: 2, pins: 2, zombie_pages: 2, ..alone });
    let left = Control::connect(&rig.path).unwrap().grants().unwrap();
    assert!(
        matches!(left[..], [GrantSummary { from: DRIVER, to: BACK, granted: 2, in_use: 2, ended: 2, .. }]),
        "{left:?}"
    );
    // Its memory can be read while no one is attached to it.
    let mut ops = ops(&refs[..2]);
    back.peer().copy(DRIVER, LocalBytes::FromPeer(&mut [0; 128]), &mut ops).unwrap();
    assert!(ops.iter().all(|o| o.status.is_okay()), "{ops:?}");
    drop(map);
    let successor = rig.broker.attach(DRIVER).unwrap();
    rig.settles(Audit { attachments: 2, ..alone });
    // All of it is free again: its pages but those of the table.
    let DomainSpec { pages, grant_frames, .. } = DomainSpec::driver(DRIVER);
    let all = successor.grants().per_frame().unwrap().pages(pages - grant_frames as usize).unwrap();
    assert!(successor.grants().per_frame().unwrap().pages(1).is_err());
    drop((all, successor));
    rig.settles(alone);
}

fn no_wake_up_is_lost_between_processes() {
    const ROUNDS: u32 = 20_000;
    let rig = Rig::new();
    let front = rig.guest();
    let (chan, port) = front.events().offer(BACK).unwrap();
    let mut back = rig.child("echo");
    back.ready();
    back.send(&[port.0, ROUNDS]);
    back.ready();
    let mut ready = ReadySet::default();
    for round in 0..ROUNDS {
        front.events().notify(&chan);
        if round % 3 == 0 {
            // Meet the other side awake, asleep and in between.
            std::thread::yield_now();
        }
        front.events().wait(&mut ready, None);
        assert_eq!(ready.ports, [port]);
        front.events().unmask(&chan);
    }
    assert_eq!(back.ready(), [ROUNDS]);
    let counters = front.counters();
    assert_eq!(counters.notifications, u64::from(ROUNDS));
    assert!(counters.wakeups <= counters.notifications && counters.wakeups > 0, "{counters:?}");
    assert!(back.end().success());
}

fn wrong_touches_are_signals() {
    let rig = Rig::new();
    let alone = rig.broker.audit();
    let has_uffd = maps_by_userfaultfd(&rig.broker.attach(BACK).unwrap());
    rig.settles(alone);
    for (no_uffd, hidden) in [("0", libc::SIGBUS), ("1", libc::SIGSEGV)] {
        let hidden = if no_uffd == "1" || has_uffd { hidden } else { libc::SIGSEGV };
        let roles =
            [("touch-after-unmap", hidden), ("touch-beside", hidden), ("write-read-only", libc::SIGSEGV)];
        for (role, signal) in roles {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env("PREGRANT_NO_UFFD", no_uffd);
            let mut child = rig.child_by(command, role);
            child.ready();
            child.send(&[]);
            assert_eq!(child.end().signal(), Some(signal), "{role}, PREGRANT_NO_UFFD={no_uffd}");
            rig.settles(alone);
        }
    }
}

fn a_successor_finds_what_was_kept() {
    let rig = Rig::new();
    let mut keeper = rig.child("keeper");
    keeper.ready();
    keeper.kill();
    rig.settles(Audit { domains: 2, regions: 1, ..Audit::default() });
    let back = rig.broker.attach(BACK).unwrap();
    let kept = back.persist("redo/vif5.0", 5000).unwrap();
    assert!(!kept.is_fresh());
    assert_eq!((kept.len(), kept.load_u32(4096)), (2 * PAGE_SIZE, Some(0xC0FFEE)));
    let other = back.persist("redo/vif5.1", 4096).unwrap();
    assert!(other.is_fresh() && other.load_u32(0) == Some(0));
    let resized = back.persist("redo/vif5.0", 4096).unwrap_err().to_string();
    assert!(resized.contains("redo/vif5.0") && resized.contains("domain 0"), "{resized}");
    assert!(back.persist("", 4096).is_err() && back.persist(&"x".repeat(65), 4096).is_err());
    let driver = rig.broker.attach(DRIVER).unwrap();
    assert!(driver.persist("redo/vif5.0", 5000).unwrap().is_fresh(), "another domain's names are its own");
}

/// A new user namespace may not read this process' memory.
fn copies_work_where_process_vm_is_forbidden() {
    let allowed = Command::new("unshare").args(["-U", "true"]).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|s| s.success()) {
        return skip("no unshare(1), or no user namespaces here");
    }
    let rig = Rig::new();
    let front = rig.guest();
    let mut refs = [GrantRef::NONE; 16];
    let region = front.grants().alloc(BACK, Access::ReadWrite, &mut refs).unwrap();
    for page in 0..16 {
        assert!(region.copy_in(page * PAGE_SIZE, &[page as u8; 64]));
    }
    let numbers: Vec<u32> = refs.iter().map(|r| r.0).collect();
    let mut in_namespace = Command::new("unshare");
    in_namespace.arg("-U").arg(std::env::current_exe().unwrap());
    for (command, forbidden) in [(Command::new(std::env::current_exe().unwrap()), 0), (in_namespace, 1)] {
        let mut back = rig.child_by(command, "copying-back");
        back.ready();
        back.send(&numbers);
        assert_eq!(back.ready(), [forbidden, (0..16).sum::<u32>() * 64]);
        assert!(back.end().success());
    }
}

fn the_broker_is_reached_by_path() {
    let rig = Rig::new();
    let control = Control::connect(&rig.path).unwrap();
    control.create_domain(DomainSpec::guest(DomId(9))).unwrap();
    let again = control.create_domain(DomainSpec::guest(DomId(9))).unwrap_err().to_string();
    assert!(again.contains("create domain 9"), "{again}");
    assert!(control.create_domain(DomainSpec { pages: 3, ..DomainSpec::guest(DomId(8)) }).is_err());
    let guest = Loopback::attach(&rig.path, DomId(9)).unwrap();
    let audit = control.audit().unwrap();
    assert_eq!((audit.domains, audit.attachments), (3, 1));
    assert_eq!(audit, rig.broker.audit());
    drop(guest);
    let unknown = Loopback::attach(&rig.path, DomId(77)).unwrap_err().to_string();
    assert!(unknown.contains("domain 77 is not known to the broker at"), "{unknown}");
    assert!(unknown.contains(rig.path.to_str().unwrap()) && unknown.contains("running?"), "{unknown}");
    assert!(matches!(Broker::start(Some(&rig.path), Hooks::default()), Err(LoopbackError::Refused { .. })));
    control.destroy_domain(DRIVER).unwrap();
    assert!(control.destroy_domain(DRIVER).is_err());

    // Twenty attachments, and an error that says so.
    let many: Vec<Loopback> =
        std::iter::from_fn(|| Loopback::attach(&rig.path, BACK).ok()).take(100).collect();
    assert_eq!(many.len(), 20);
    let full = Loopback::attach(&rig.path, BACK).unwrap_err().to_string();
    assert!(full.contains("(20)"), "{full}");
    drop(many);

    let left = Loopback::attach(&rig.path, BACK).unwrap();
    let (chan, _) = left.events().offer(GUEST).unwrap();
    let path = rig.path.clone();
    drop(rig);
    let gone = Loopback::attach(&path, BACK).unwrap_err().to_string();
    assert!(gone.contains("no loopback broker answers at"), "{gone}");
    assert!(left.events().offer(GUEST).is_err(), "the broker is gone");
    assert!(matches!(control.create_domain(DomainSpec::guest(DomId(9))), Err(LoopbackError::Gone { .. })));
    drop((chan, left));
}
