//! `pregrant front --tap` as a process, with the kernel of a network namespace for its guest's:
//! frames from pages of the guest's own, and frames that are read where the backend wrote them.
//! Takes root, /dev/net/tun, `ip`, and util-linux.
//!
//! ```text
//!   frames --to -- kernel -- tap -- front 5 (own-buffers) -- back -- front 6 (--rx reference) -- tap -- kernel -- frames --serve
//! ```

use pregrant_test_machine::served::{Process, Served, command};
use pregrant_testkit::skip::skip;
use rustix::fd::AsFd;
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The command, run by another program.
fn by(program: &[&str], command: &Command) -> Command {
    let mut other = Command::new(program[0]);
    other.args(&program[1..]);
    by_of(other, command)
}

/// The command, run by another program that has arguments.
fn by_of(mut all: Command, command: &Command) -> Command {
    all.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        all.env(name, value.expect("none is removed"));
    }
    all
}

/// A guest with a kernel.
struct Guest {
    front: Process,
}

impl Guest {
    fn start(machine: &Served, domain: &str, more: &[&str]) -> Self {
        let args = ["front", "--domain", domain, "--tap", "eth0", "--queues", "1", "--mtu", "9000"];
        let mut front =
            Process::start(&mut by(&["unshare", "--net"], &machine.command(&[&args, more].concat())));
        front.line_with("interface eth0: ready");
        let mut guest = Self { front };
        for line in [&format!("addr add 10.9.0.{domain}/24 dev eth0"), "link set eth0 up"] {
            guest.runs(Command::new("ip").args(line.split(' '))).ends_well();
        }
        guest
    }

    /// A program of the guest's.
    fn runs(&mut self, command: &Command) -> Process {
        let pid = self.front.child.id().to_string();
        Process::start(&mut by(&["nsenter", "--net", "--target", &pid], command))
    }
}

/// The numbers after these words in a text.
fn numbers<const N: usize>(text: &str, before: [&str; N]) -> [u64; N] {
    before.map(|words| {
        let behind = text.split_once(words).unwrap_or_else(|| panic!("no {words:?} in {text}")).1;
        behind
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or_else(|| panic!("{words:?}: {text}"))
    })
}

fn can_run() -> bool {
    if !rustix::process::geteuid().is_root() {
        skip("a tap takes root");
        return false;
    }
    if let Err(e) = OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        skip(format_args!("/dev/net/tun: {e}; modprobe tun"));
        return false;
    }
    true
}

/// A new connection may be at another port of the network: others learn where its addresses are
/// from the front, unasked.
#[test]
fn a_tap_announces_its_addresses_after_a_new_connection() {
    if !can_run() {
        return;
    }
    let machine = Served::start("announced", &["--guest", "5", "--guest", "6"]);
    let back = || {
        let mut back = Process::start(&mut machine.command(&["back", "--close"]));
        back.line_with("ready");
        back
    };
    let first = back();
    let mut guests = ["5", "6"].map(|domain| Guest::start(&machine, domain, &["--path", "copy"]));
    for (guest, domain) in guests.iter_mut().zip(["5", "6"]) {
        let ip = format!("addr add fd00:9::{domain}/64 dev eth0 nodad");
        guest.runs(Command::new("ip").args(ip.split(' '))).ends_well();
    }
    let [one, other] = &mut guests;
    let in_guest =
        |guest: &mut Guest, line: &str| guest.runs(Command::new("sh").args(["-c", line])).ends_well();
    let mac = in_guest(one, "ip -o link show eth0");
    let mac = mac.split_once("link/ether ").expect("an address").1.split(' ').next().expect("it").to_owned();
    // It notes who announces himself, though it never asked.
    in_guest(other, "echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_accept");
    first.stop();
    // The other one is there when it connects.
    one.front.signal(Signal::STOP);
    let second = back();
    while !in_guest(other, "ip -o link show eth0").contains("LOWER_UP") {}
    assert_eq!(in_guest(other, "ip neigh show 10.9.0.5 dev eth0"), "", "the link was down");
    // Of IPv6 it corrects what it has.
    in_guest(other, "ip neigh replace fd00:9::5 lladdr 02:00:00:00:00:99 dev eth0 nud stale");
    one.front.signal(Signal::CONT);
    for ip in ["10.9.0.5", "fd00:9::5"] {
        while !in_guest(other, &format!("ip neigh show {ip} dev eth0")).contains(&mac) {}
    }
    let [one, other] = guests;
    one.front.stop();
    other.front.stop();
    second.stop();
    machine.end();
}

/// The guest's root renames the interface, as udev does, and removes it. The front survives both,
/// and works in a new connection after each.
#[test]
fn a_front_outlives_its_interfaces_name_and_its_interface() {
    if !can_run() {
        return;
    }
    let machine = Served::start("renamed", &["--guest", "5"]);
    let back = || {
        let mut back = Process::start(&mut machine.command(&["back", "--close"]));
        back.line_with("ready");
        back
    };
    let first = back();
    let mut guest = Guest::start(&machine, "5", &["--path", "copy"]);
    let in_guest = |guest: &mut Guest, line: &str| {
        let all = format!("{line} 2>&1 || true");
        guest.runs(Command::new("sh").args(["-c", &all])).ends_well()
    };
    let address = |text: &str| {
        let behind = text.split_once("link/ether ").unwrap_or_else(|| panic!("no address: {text}")).1;
        behind.split(' ').next().expect("a word").to_owned()
    };
    let mac = address(&in_guest(&mut guest, "ip -o link show eth0"));
    in_guest(&mut guest, "ip link set eth0 down && ip link set eth0 name lan0 && ip link set lan0 up");
    first.stop();
    let second = back();
    while !in_guest(&mut guest, "ip -o link show lan0").contains("LOWER_UP") {}
    assert!(in_guest(&mut guest, "ip -o addr show lan0").contains("10.9.0.5"), "its address went");
    assert!(in_guest(&mut guest, "ip link show eth0").contains("does not exist"), "a namesake was made");

    in_guest(&mut guest, "ip link del lan0");
    while in_guest(&mut guest, "ip -o link show lan0").contains("does not exist") {}
    in_guest(&mut guest, "ip link set lan0 up");
    while !in_guest(&mut guest, "ip -o link show lan0").contains("LOWER_UP") {}
    let again = in_guest(&mut guest, "ip -o link show lan0");
    assert!(again.contains("mtu 9000 ") && address(&again) == mac, "{again}");
    second.stop();
    let third = back();
    while !in_guest(&mut guest, "ip -o link show lan0").contains("LOWER_UP") {}
    guest.front.stop();
    third.stop();
    machine.end();
}

/// A back without `feature-sg` accepts only frames of one slot: the kernel sends it no longer ones,
/// and sends them again to a back that accepts them.
#[test]
fn a_tap_has_the_mtu_that_its_back_takes() {
    if !can_run() {
        return;
    }
    let machine = Served::start("one-slot", &["--guest", "5"]);
    let back = |more: &[&str]| {
        let mut back = Process::start(&mut machine.command(&[&["back", "--close"], more].concat()));
        back.line_with("ready");
        back
    };
    let mut guest = None;
    for (more, mtu) in [(&["--no-sg"][..], "mtu 1500 "), (&[], "mtu 9000 "), (&["--no-sg"], "mtu 1500 ")] {
        let back = back(more);
        let guest = guest.get_or_insert_with(|| Guest::start(&machine, "5", &["--path", "copy"]));
        while !guest.runs(Command::new("ip").args(["-o", "link", "show", "eth0"])).ends_well().contains(mtu) {
        }
        back.stop();
    }
    guest.expect("it runs").front.stop();
    machine.end();
}

/// Runs this in a thread in a process' network, where its sockets are.
fn in_network<R: Send + 'static>(of: &Process, run: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
    let network = File::open(format!("/proc/{}/ns/net", of.child.id())).expect("its network");
    std::thread::spawn(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("as root");
        run()
    })
}

/// A count of this thread's network.
fn tcp_count(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("it is there");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, counts) = (lines.next().expect("names"), lines.next().expect("counts"));
    let mut both = names.split(' ').zip(counts.split(' '));
    both.find(|(n, _)| *n == name).expect("its count").1.parse().expect("a number")
}

/// Sends `bytes` bytes from one guest's kernel to guest 6's, by TCP. Returns how many segments were
/// sent, and how many of these again.
fn transfer(one: &Guest, other: &Guest, bytes: usize) -> (u64, u64) {
    let (listens, port) = channel();
    let receiver = in_network(&other.front, move || {
        let listener = TcpListener::bind("10.9.0.6:0").expect("its address");
        listens.send(listener.local_addr().expect("it has one")).expect("the test waits");
        let (mut stream, _) = listener.accept().expect("a connection");
        let (mut buffer, mut came) = (vec![0; 1 << 20], 0);
        while let n @ 1.. = stream.read(&mut buffer).expect("it goes on") {
            came += n;
        }
        came
    });
    let to = port.recv().expect("an address");
    let sender = in_network(&one.front, move || {
        let mut stream = TcpStream::connect(to).expect("it listens");
        let buffer = vec![7; 1 << 20];
        (0..bytes / buffer.len()).for_each(|_| stream.write_all(&buffer).expect("it goes on"));
        stream.shutdown(Shutdown::Write).expect("it goes on");
        (tcp_count("OutSegs"), tcp_count("RetransSegs"))
    });
    let counts = sender.join().expect("it sent all");
    assert_eq!(receiver.join().expect("it received all"), bytes);
    counts
}

/// Frames that found a guest's queue full, in the order of the guests.
fn queue_full(machine: &Served) -> Vec<u64> {
    let status = Process::start(&mut machine.command(&["top", "--once", "--json"])).ends_well();
    let full = status.split("\"queue_full\":").skip(1).map(|text| text.split([',', '}']).next());
    full.map(|count| count.and_then(|count| count.parse().ok()).expect("a count")).collect()
}

/// Waits until the counts of [`queue_full`] are as they should be; a minute is a hang.
fn wait_for_counts(machine: &Served, are_right: impl Fn(&[u64]) -> bool) {
    let began = Instant::now();
    loop {
        let counts = queue_full(machine);
        if are_right(&counts) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{counts:?} for a minute");
    }
}

/// One kernel sends large segments as fast as it can, and the other receives them as fast as it
/// can: if there is no room, frames wait at the sender instead of being dropped and sent again.
#[test]
fn large_segments_between_two_kernels_wait_for_room() {
    if !can_run() {
        return;
    }
    let machine = Served::start("segments", &["--guest", "5", "--guest", "6"]);
    let mut back = Process::start(&mut machine.command(&["back"]));
    back.line_with("ready");
    let [one, other] = ["5", "6"].map(|domain| Guest::start(&machine, domain, &[]));
    let (segments, again) = transfer(&one, &other, 512 * 1024 * 1024);
    assert!(again * 1000 < segments, "{again} of {segments} segments were sent again");
    // A guest to which a busy machine gives no processor for long loses some.
    let dropped: u64 = queue_full(&machine).iter().sum();
    assert!(dropped * 1000 < segments, "{dropped} of {segments} segments found no room");
    one.front.stop();
    other.front.stop();
    back.stop();
    machine.end();
}

/// One guest does not read, and another sends to it: the sender's frames to a third guest go on,
/// since no one waits forever for the first.
#[test]
fn a_guest_that_does_not_read_does_not_stop_who_sends_to_it() {
    if !can_run() {
        return;
    }
    let machine = Served::start("unread", &["--guest", "5", "--guest", "6", "--guest", "7"]);
    let mut back = Process::start(&mut machine.command(&["back"]));
    back.line_with("ready");
    let [mut one, other, mut dead] = ["5", "6", "7"].map(|domain| Guest::start(&machine, domain, &[]));
    let link = dead.runs(Command::new("ip").args(["-o", "link", "show", "eth0"])).ends_well();
    let mac = link.split_once("link/ether ").expect("an address").1.split(' ').next().expect("it").to_owned();
    // A front that is stopped before it is connected never is, and has no queue.
    wait_for_counts(&machine, |counts| counts.len() == 3);
    // It does not answer when it is asked for.
    let neighbour = format!("neigh replace 10.9.0.7 lladdr {mac} dev eth0 nud permanent");
    one.runs(Command::new("ip").args(neighbour.split(' '))).ends_well();
    dead.front.signal(Signal::STOP);
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let flood = in_network(&one.front, move || {
        let socket = UdpSocket::bind("10.9.0.5:0").expect("its address");
        while !ends.load(Ordering::Relaxed) {
            for _ in 0..20 {
                // Its kernel may have no room at the moment.
                let _ = socket.send_to(&[7; 1400], "10.9.0.7:9");
            }
            // Its other programs have a share of the interface.
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    wait_for_counts(&machine, |counts| counts[2] > 0);
    let (segments, _) = transfer(&one, &other, 16 * 1024 * 1024);
    let dropped: u64 = queue_full(&machine)[..2].iter().sum();
    assert!(dropped * 10 < segments, "{dropped} of {segments} segments found no room");
    is_over.store(true, Ordering::Relaxed);
    flood.join().expect("it sent");
    dead.front.signal(Signal::CONT);
    for guest in [one, other, dead] {
        guest.front.stop();
    }
    back.stop();
    machine.end();
}

/// An operator's work on Xen, without Xen: vifs are taps of domain 0's kernel, which join a bridge
/// or are connected by a script; one of them is detached, and the guest and its other vif go on.
#[test]
fn a_machine_of_the_loopback_has_taps_bridges_and_scripts() {
    if !can_run() {
        return;
    }
    let machine = Served::start("taps", &[]);
    let script = machine.dir.join("vif-vlan");
    // As a script of Xen's reads a key of its vif.
    let text = format!(
        "#!/bin/sh\nset -e\necho \"$1 $vif\" >> {dir}/ran\n[ $1 = online ] || exit 0\n\
         {program} store read --loopback {dir} $XENBUS_PATH/vlan >> {dir}/ran\nip link set $vif master br0\nip link set $vif up\n",
        dir = machine.dir.display(),
        program = env!("CARGO_BIN_EXE_pregrant"),
    );
    std::fs::write(&script, text).expect("it is written");
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("it is ours");
    let does = |args: &[&str]| Process::start(&mut machine.command(args)).ends_well();
    does(&["loopback", "attach", "5", "--vif", "bridge=br0"]);
    does(&["loopback", "attach", "5", "--vif", &format!("script={},vlan=10,bridge=br0", script.display())]);
    // Domain 0's network.
    let mut back = Command::new("unshare");
    back.args(["--net", "sh", "-c"]);
    back.arg("ip link add br0 type bridge && ip addr add 10.9.0.1/24 dev br0 && ip link set br0 up && exec \"$0\" \"$@\"");
    let mut back = Process::start(&mut by_of(back, &machine.command(&["back", "--port", "tap"])));
    back.line_with("ready");
    let domain_0 = back.child.id().to_string();
    let in_domain_0 = |line: &str| {
        Process::start(Command::new("nsenter").args(["--net", "--target", &domain_0, "sh", "-c", line]))
            .ends_well()
    };
    let mut guest = Guest::start(&machine, "5", &["--path", "copy"]);
    let (listens, port) = channel();
    let receiver = in_network(&back, move || {
        let listener = TcpListener::bind("10.9.0.1:0").expect("the bridge's address");
        listens.send(listener.local_addr().expect("it has one")).expect("the test waits");
        let mut text = String::new();
        listener.accept().expect("a connection").0.read_to_string(&mut text).expect("it goes on");
        text
    });
    let to = port.recv().expect("an address");
    let sender = in_network(&guest.front, move || {
        TcpStream::connect(to).expect("it listens").write_all(b"through a bridge").expect("it goes on");
    });
    sender.join().expect("it sent");
    assert_eq!(receiver.join().expect("it came"), "through a bridge");
    // The other vif: its script has run, and its tap waits for a front.
    while !std::fs::read_to_string(machine.dir.join("ran")).is_ok_and(|ran| ran == "online vif5.1\n10\n") {}
    while !in_domain_0("ip -o link show master br0").contains("vif5.1") {}
    assert!(in_domain_0("ip -o link show master br0").contains("vif5.0"));
    assert!(does(&["loopback", "detach", "5", "--vif", "1"]).contains("vif 1 of domain 5"));
    while in_domain_0("ip -o link show").contains("vif5.1") {}
    while !std::fs::read_to_string(machine.dir.join("ran")).is_ok_and(|ran| ran.ends_with("offline vif5.1\n"))
    {
    }
    let left = does(&["store", "ls", "/local/domain/0/backend/vif"]);
    assert!(left.contains("bridge = \"br0\"") && !left.contains("vlan"), "{left}");
    assert!(
        guest.runs(Command::new("ip").args(["-o", "link", "show", "eth0"])).ends_well().contains("LOWER_UP")
    );
    // From the end of the guest's last process on, its vif is made again as it was. Meanwhile there
    // may be no such directory, which is an error.
    guest.front.stop();
    let listed =
        || machine.command(&["store", "ls", "/local/domain/0/backend/vif"]).output().expect("it runs");
    while !String::from_utf8_lossy(&listed().stdout).contains("bridge = \"br0\"") {}
    back.stop();
    std::fs::remove_file(machine.dir.join("ran")).expect("it is there");
    std::fs::remove_file(&script).expect("it is there");
    machine.end();
}

#[test]
fn frames_of_a_kernel_go_from_pages_of_the_guest_s_own() {
    const FRAMES: u64 = 4000;
    if !can_run() {
        return;
    }
    let machine = Served::start("own", &["--guest", "5", "--guest", "6"]);
    let mut back = Process::start(&mut machine.command(&["back"]));
    back.line_with("ready");
    let mut one = Guest::start(&machine, "5", &["--path", "gref-mapping", "--experiment", "own-buffers=256"]);
    let mut other = Guest::start(&machine, "6", &["--path", "copy", "--rx", "reference"]);
    let mut server = other.runs(&command(&["frames", "--serve"]));
    server.line_with("receiving");
    let count = FRAMES.to_string();
    let frames = command(&["frames", "--to", "10.9.0.6", "--count", &count, "--size", "64..8900"]);
    let said = one.runs(&frames).ends_well();
    assert_eq!(numbers(&said, ["sent "]), [FRAMES], "{said}");
    assert!(said.contains("damaged 0, lost 0"), "{said}");
    let said = one.front.stop();
    let [sent, own] = numbers(&said, ["sent ", "frames, "]);
    // The first ones go before the backend has the pages.
    assert!(sent >= FRAMES && own * 2 > sent, "{said}");
    let said = other.front.stop();
    let [came, referred] = numbers(&said, ["received ", "frames, "]);
    assert!(came >= FRAMES && referred * 2 > came, "{said}");
    drop(server);
    back.stop();
    machine.end();
}
