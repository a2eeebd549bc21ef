//! What the owner of an interface does while a tap has it: renames it, moves it to another network
//! namespace, removes it. The descriptor stays, and frames go on.

use pregrant::DomId;
use pregrant::port::{Arena, FramePort, Offload};
use pregrant::xenbus::{Class, DeviceId};
use pregrant_host::drivers::net::port_provider::Ports;
use pregrant_host::drivers::{Hotplug, HotplugConfig, PortProvider, RemoteSide, Taps};
use pregrant_host::ports::netdev_ioctl::Interface;
use pregrant_host::ports::tap::{Tap, TapPort, Whereabouts};
use pregrant_test_machine::netns::{BOTH, GUEST_MAC, apart, ip};
use pregrant_testkit::skip::skip;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Set for a process of one test alone.
const ALONE: &str = "PREGRANT_TEST_ALONE";
/// Against hangs only.
const GUARD: Duration = Duration::from_secs(60);

const ID: DeviceId = DeviceId { class: Class::VIF, front: DomId(7), back: DomId(0), handle: 0 };

fn place() -> HotplugConfig {
    HotplugConfig { name: "vif7.0".into(), bridge: Some("br7".into()), ..HotplugConfig::default() }
}

/// A broadcast of the guest arrives at a socket of this machine's, by the bridge.
fn arrives(ports: &mut Ports) {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&GUEST_MAC);
    frame.extend_from_slice(&[8, 0]);
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 255];
    let sum = packet.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(&[0x13, 0x88, 0x13, 0x89, 0, 12, 0, 0, 1, 2, 3, 4]);
    frame.extend_from_slice(&packet);
    let socket = UdpSocket::bind("10.77.0.255:5001").unwrap();
    socket.set_nonblocking(true).unwrap();
    let began = Instant::now();
    loop {
        let mut arena = Arena::new();
        assert!(arena.push(&frame, Offload::default()));
        ports[0].tx_burst(&arena.burst());
        let mut got = [0; 8];
        if socket.recv(&mut got).is_ok_and(|n| got[..n] == [1, 2, 3, 4]) {
            return;
        }
        assert!(began.elapsed() < GUARD, "no frame of the guest arrives");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn bridge() -> bool {
    ip("link add br7 type bridge") && ip("addr add 10.77.0.1/24 dev br7") && ip("link set br7 up")
}

/// An IPv4 packet that the interface sends comes from the port.
fn comes(port: &mut TapPort) -> bool {
    let began = Instant::now();
    let mut arena = Arena::new();
    while began.elapsed() < GUARD {
        arena.clear();
        port.rx_burst(&mut arena);
        if arena.burst().iter().any(|(frame, _)| frame.get(..6) == Some(&GUEST_MAC)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Sends one to the guest by `name`, which gets what is missing for that.
fn send_by(name: &str) {
    let done = ip(&format!("link set {name} up"))
        && ip(&format!("addr replace 10.78.0.1/24 dev {name}"))
        && ip(&format!("neigh replace 10.78.0.2 lladdr 00:16:3e:00:00:07 dev {name}"));
    assert!(done, "`ip` fails");
    UdpSocket::bind("10.78.0.1:0").unwrap().send_to(&[7; 60], "10.78.0.2:4000").unwrap();
}

#[test]
fn a_renamed_interface_keeps_its_queues_and_gets_no_namesake() {
    apart(|| {
        let tap = Tap::open("vif7.0").unwrap();
        if !ip("link set vif7.0 name other7") {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        for queues in [1, 2, 3, 1] {
            let mut ports = tap.ports(queues, BOTH).unwrap();
            assert_eq!(ports.len(), queues);
            assert!(!ip("link show vif7.0"), "another interface was made");
            if queues == 1 {
                send_by("other7");
                assert!(comes(&mut ports[0]), "the only queue gets no frame");
            }
        }
        assert_eq!(tap.whereabouts(), Whereabouts::Here("other7".into()));
        assert_eq!(tap.interface().name(), "other7");
    });
}

/// A process in a network namespace of its own.
struct Apart(Child);

impl Apart {
    fn start() -> Option<Self> {
        let mut command = Command::new("unshare");
        let child = command.args(["-n", "sh", "-c", "echo; exec sleep 1000"]).stdout(Stdio::piped()).spawn();
        let mut child = child.ok()?;
        let mut ready = [0];
        std::io::Read::read_exact(child.stdout.as_mut()?, &mut ready).ok()?;
        Some(Self(child))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_interface_in_another_namespace_keeps_what_it_has() {
    apart(|| {
        let tap = Tap::open("vif7.0").unwrap();
        tap.reserve(2).unwrap();
        let Some(other) = Apart::start() else { return skip("there is no `unshare`") };
        if !ip(&format!("link set vif7.0 netns {}", other.0.id())) {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        // Another one of that name is not taken for it.
        assert!(ip("link add vif7.0 type bridge"));
        let mtu = Interface::new("vif7.0").unwrap().mtu().unwrap();
        assert_eq!(tap.whereabouts(), Whereabouts::Elsewhere);
        for queues in [2, 1, 2] {
            assert_eq!(tap.ports(queues, BOTH).unwrap().len(), queues);
        }
        let refused = tap.ports(3, BOTH).expect_err("a third queue").to_string();
        assert!(
            refused.contains("vif7.0: it is in another network namespace now") && refused.contains("than 2"),
            "{refused}"
        );
        let refused = tap.interface().set_mtu(1000).unwrap_err().to_string();
        assert!(refused.contains("another network namespace"), "{refused}");
        assert_eq!(Interface::new("vif7.0").unwrap().mtu().unwrap(), mtu);
    });
}

#[test]
fn a_removed_interface_is_made_again_below_its_ports() {
    apart(|| {
        let tap = Tap::open("vif7.0").unwrap();
        let mut ports = tap.ports(2, BOTH).unwrap();
        if !ip("link del vif7.0") {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        assert_eq!(tap.whereabouts(), Whereabouts::Gone);
        let refused = tap.interface().set_up(true).unwrap_err().to_string();
        assert!(refused.contains("vif7.0") && refused.contains("it was removed"), "{refused}");
        tap.make_again().unwrap();
        assert_eq!(tap.whereabouts(), Whereabouts::Here("vif7.0".into()));
        drop(ports.pop());
        drop(ports);
        let mut ports = tap.ports(1, BOTH).unwrap();
        send_by("vif7.0");
        assert!(comes(&mut ports[0]), "no frame comes by the new one");
    });
}

/// Half of its queues have the new one when there is no descriptor left to ask what became of it.
/// In a process of its own: others' tests need descriptors, and give some back.
#[test]
fn one_that_is_renamed_while_it_is_made_again_is_finished() {
    if std::env::var_os(ALONE).is_none() {
        let name = "owner::one_that_is_renamed_while_it_is_made_again_is_finished";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let ended = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").status().unwrap();
        return assert!(ended.success(), "{ended}");
    }
    apart(|| {
        let tap = Tap::open("vif7.0").unwrap();
        drop(tap.ports(2, BOTH).unwrap());
        if !ip("link del vif7.0") {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        let before = getrlimit(Resource::Nofile);
        let lowest = std::fs::File::open("/dev/null").unwrap();
        let none_left = Rlimit { current: Some(lowest.as_raw_fd() as u64), ..before };
        drop(lowest);
        setrlimit(Resource::Nofile, none_left).unwrap();
        let made = tap.make_again();
        setrlimit(Resource::Nofile, before).unwrap();
        made.expect_err("it could not ask");
        assert!(ip("link set vif7.0 name other7"));
        tap.make_again().unwrap();
        assert_eq!(tap.whereabouts(), Whereabouts::Here("other7".into()));
        assert!(!ip("link show vif7.0"), "another one was made");
        assert_eq!(tap.ports(2, BOTH).unwrap().len(), 2);
    });
}

/// The vif's frames go on by ports that a worker has, in the bridge that the toolstack names, and
/// the log has a line.
#[test]
fn a_vif_whose_interface_is_removed_is_served_by_another() {
    apart(|| {
        if !bridge() {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        let mut taps = Taps::new().unwrap();
        taps.found(&ID, &place(), true).unwrap();
        let mut ports = taps.connected(&ID, 1, BOTH).unwrap();
        taps.link(&ID, true).unwrap();
        assert!(taps.wants_checks(&ID) && taps.check(&ID).is_empty());
        arrives(&mut ports);
        let number = taps.interface_number(&ID).unwrap();
        assert!(ip("link del vif7.0"));
        let notes = taps.check(&ID);
        let [(log::Level::Warn, text)] = &notes[..] else { panic!("{notes:?}") };
        assert!(text.contains("vif7.0 was removed, and is made again, in bridge br7"), "{text}");
        assert!(taps.check(&ID).is_empty(), "once");
        assert_ne!(taps.interface_number(&ID), Some(number));
        arrives(&mut ports);
        drop(ports);
        taps.removed(&ID).unwrap();
        assert!(!ip("link show vif7.0"));
    });
}

/// A bridge that the toolstack names is one that a script was to use, or no one: the interface
/// stays out of it, down, and the log says what to do.
#[test]
fn an_interface_that_a_script_plugged_in_is_made_again_and_not_put_elsewhere() {
    apart(|| {
        if !bridge() {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        for (hotplug, script, words) in [
            (Hotplug::Own, Some("/bin/true"), "detach the vif and attach it again, for its script /bin/true"),
            (Hotplug::Toolstack, Some("/bin/true"), "is not run again"),
            (Hotplug::None, None, "ip link set vif7.0 up"),
            (Hotplug::None, Some("/bin/true"), "--hotplug none"),
        ] {
            let mut taps = Taps::new().unwrap();
            taps.set_hotplug(hotplug);
            let place = HotplugConfig { script: script.map(String::from), ..place() };
            taps.found(&ID, &place, true).unwrap();
            assert!(ip("link del vif7.0"));
            let notes = taps.check(&ID);
            let [(log::Level::Warn, text)] = &notes[..] else { panic!("{notes:?}") };
            assert!(text.contains("made again, down and in no bridge;") && text.contains(words), "{text}");
            let interface = Interface::new("vif7.0").unwrap();
            assert!(!interface.is_up().unwrap(), "{hotplug:?} {script:?}");
            assert!(!Path::new("/sys/class/net/br7/brif/vif7.0").exists(), "{hotplug:?} {script:?}");
            // Nor by the next backend.
            let interface = taps.interface_number(&ID);
            drop(taps);
            let mut taps = Taps::new().unwrap();
            taps.set_hotplug(hotplug);
            let notes = taps.found(&ID, &HotplugConfig { interface, ..place }, true).unwrap();
            let [(log::Level::Warn, text)] = &notes[..] else { panic!("{notes:?}") };
            assert!(text.contains("vif7.0 is down") && text.contains("ip link set vif7.0 up"), "{text}");
            let interface = Interface::new("vif7.0").unwrap();
            assert!(!interface.is_up().unwrap(), "{hotplug:?} {script:?}");
            assert!(!Path::new("/sys/class/net/br7/brif/vif7.0").exists(), "{hotplug:?} {script:?}");
            taps.removed(&ID).unwrap();
            while taps.due().is_some() {
                taps.turn();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // Where there is no such script, its bridge is what plugs it in.
        let mut taps = Taps::new().unwrap();
        let place = HotplugConfig { script: Some("/nonexistent/vif-script".into()), ..place() };
        taps.found(&ID, &place, true).unwrap();
        assert!(ip("link del vif7.0"));
        assert!(taps.check(&ID)[0].1.contains("is made again, in bridge br7"));
        assert!(Interface::new("vif7.0").unwrap().is_up().unwrap());
        taps.removed(&ID).unwrap();
    });
}

/// By its number, also where its name is another's by now.
#[test]
fn the_next_backend_finds_an_interface_that_was_renamed() {
    apart(|| {
        if !bridge() {
            return skip("`ip` does not run; apt-get install iproute2");
        }
        let mut taps = Taps::new().unwrap();
        taps.found(&ID, &place(), true).unwrap();
        drop(taps.connected(&ID, 2, BOTH).unwrap());
        let number = taps.interface_number(&ID);
        assert!(ip("link set vif7.0 down") && ip("link set vif7.0 name lan7") && ip("link set lan7 up"));
        let notes = taps.check(&ID);
        let [(log::Level::Info, text)] = &notes[..] else { panic!("{notes:?}") };
        assert!(text.contains("is called lan7 now"), "{text}");
        drop(taps);

        let mut taps = Taps::new().unwrap();
        let notes = taps.found(&ID, &HotplugConfig { interface: number, ..place() }, true).unwrap();
        assert!(notes.iter().any(|(_, text)| text.contains("is called lan7 now")), "{notes:?}");
        assert!(!ip("link show vif7.0"), "another one was made beside it");
        assert_eq!(taps.interface_number(&ID), number);
        let mut ports = taps.connected(&ID, 1, BOTH).unwrap();
        arrives(&mut ports);
        drop(ports);
        drop(taps);

        // It went while no one was there: that is said.
        assert!(ip("link del lan7"));
        let mut taps = Taps::new().unwrap();
        let notes = taps.found(&ID, &HotplugConfig { interface: number, ..place() }, true).unwrap();
        let [(log::Level::Warn, text)] = &notes[..] else { panic!("{notes:?}") };
        assert!(text.contains("not in this network namespace any more, so vif7.0 was made"), "{text}");
        taps.removed(&ID).unwrap();
    });
}
