//! `pregrant back` as users run it, with worker threads and the switch, is killed and replaced at
//! once, again and again: all frames that guests sent meanwhile arrive in order, and no port drops
//! a frame.
//!
//! ```text
//!   guests 5, 6 (in this process): nothing on its way | kill -9 | 32 frames each into the rings | the next backend
//! ```
//! Frames that a killed process was moving may be lost; here there are none, so every frame counts.

use pregrant::DomId;
use pregrant::net::front::FrontConfig;
use pregrant::net::headers::MacAddr;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::port::{Arena, Offload};
use pregrant_cli::loopback_machine::{broker_socket, store_of};
use pregrant_host::UnixTransport;
use pregrant_host::drivers::{BackStatus, Frontend};
use pregrant_host::ports::sequence::{self, Head};
use pregrant_loopback::Loopback;
use pregrant_test_machine::served::{Process, Served};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

const KILLS: u64 = 8;
/// Frames of each guest while there is none: fewer than a ring has slots, and than a queue of the
/// switch has room for.
const WAITING: u64 = 32;

struct Guest {
    front: Frontend<Loopback, UnixTransport>,
    mac: MacAddr,
    into: Arena,
    sent: u64,
    /// Numbers of the received frames.
    got: Vec<u64>,
}

impl Guest {
    fn connect(machine: &Served, domid: u16, config: FrontConfig) -> Self {
        let domid = DomId(domid);
        let platform = Loopback::attach(&broker_socket(&machine.dir), domid).expect("the domain is there");
        let xs = store_of(&platform).expect("xenstore");
        let mut front = Frontend::new(platform, xs, 0, config, false).expect("a vif");
        while !front.connect(Duration::from_millis(100)).expect("a back") {}
        // As the toolstack makes it: Xen's vendor number, domain, handle.
        let [hi, lo] = domid.0.to_be_bytes();
        let mac = MacAddr([0x00, 0x16, 0x3e, hi, lo, 0]);
        Self { front, mac, into: Arena::new(), sent: 0, got: Vec::new() }
    }

    fn send(&mut self, to: MacAddr, frames: u64) {
        for _ in 0..frames {
            let mut out = Arena::new();
            let len = [64, 700, 1514, 5000][self.sent as usize % 4];
            Head::new(to, self.mac).fill(out.room(len, Offload::default()).expect("room"), self.sent);
            while self.front.send(0, &out.burst()).expect("a page") == 0 {
                self.front.reclaim(0, 1).expect("answers");
            }
            self.sent += 1;
        }
    }

    /// Processes answers, and receives frames.
    fn turn(&mut self) {
        self.front.reclaim(0, 1).expect("answers");
        for queue in 0..self.front.vif().nr_queues() {
            self.into.clear();
            self.front.recv(queue, &mut self.into, 1).expect("frames");
            let own = self.into.burst().iter().filter(|(frame, _)| frame[..6] == self.mac.0);
            self.got.extend(own.map(|(frame, _)| sequence::check(frame).expect("a whole frame")));
        }
    }

    fn is_answered(&self) -> bool {
        self.front.vif().in_flight(0) == 0
    }
}

/// The status of a backend, once it has all vifs of the guests.
fn status(machine: &Served) -> BackStatus {
    loop {
        let mut document = Vec::new();
        if let Ok(mut socket) = UnixStream::connect(machine.dir.join("back-0.status"))
            && socket.read_to_end(&mut document).is_ok()
            && let Ok(status) = serde_json::from_slice::<BackStatus>(&document)
            && status.vifs.iter().filter(|vif| vif.state == "Connected").count() == 2
        {
            return status;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A backend by worker threads.
fn back(machine: &Served, how: [&str; 2]) -> Process {
    Process::start(&mut machine.command(&["back", how[0], how[1]]))
}

#[test]
fn frames_that_wait_for_the_next_backend_arrive() {
    let machine = Served::start("killed", &["--guest", "5", "--guest", "6"]);
    let mut serving = back(&machine, ["--workers", "1"]);
    assert!(serving.line().contains("ready"));
    let plain = FrontConfig { staging: Buffers::NONE, queues: 2, ..FrontConfig::default() };
    let mut guests =
        [(5, FrontConfig::default()), (6, plain)].map(|(domid, of)| Guest::connect(&machine, domid, of));
    status(&machine);
    let macs = guests.each_ref().map(|guest| guest.mac);
    for kill in 0..KILLS {
        serving.child.kill().expect("it lives");
        serving.child.wait().expect("it is dead");
        // Which vif is had first does not matter, nor which worker has it.
        let how = [["--workers", "1"], ["--workers", "2"], ["--place", "own"]];
        serving = back(&machine, how[kill as usize % how.len()]);
        for (guest, to) in guests.iter_mut().zip([macs[1], macs[0]]) {
            guest.send(to, WAITING);
        }
        while !guests.iter().all(Guest::is_answered) {
            guests.iter_mut().for_each(Guest::turn);
        }
        // Each sends one more, behind which nothing that arrives at all is to come.
        assert!(serving.line().contains("ready"));
        assert!(status(&machine).vifs.iter().all(|vif| vif.reattached));
        for (guest, to) in guests.iter_mut().zip([macs[1], macs[0]]) {
            guest.send(to, 1);
        }
        let all: Vec<u64> = (0..guests[0].sent).collect();
        while guests.iter().any(|guest| guest.got.last() != all.last()) {
            guests.iter_mut().for_each(Guest::turn);
        }
        for guest in &guests {
            assert_eq!(guest.got, all, "domain {} after kill {kill}", guest.front.device().id().front.0);
        }
        for vif in status(&machine).vifs {
            let dropped: u64 = vif.port_drops.values().flat_map(|reasons| reasons.values()).sum();
            assert!(dropped == 0 && !vif.port_drops.is_empty(), "kill {kill}: {:?}", vif.port_drops);
        }
    }
    drop(guests);
    serving.stop();
    machine.end();
}

/// The log has nothing else to report: the next backend takes over the same rings.
#[test]
fn a_front_says_that_its_backend_answers_nothing_and_that_it_does_again() {
    let machine = Served::start("silent", &["--guest", "5"]);
    let start = || {
        let mut serving = back(&machine, ["--workers", "1"]);
        assert!(serving.line().contains("ready"));
        serving
    };
    let mut serving = start();
    let args = ["front", "--domain", "5", "--ping", "10.0.0.6", "--interval", "0.2"];
    let mut front = Process::start(machine.command(&args).stderr(Stdio::piped()));
    let mut lines = BufReader::new(front.child.stderr.take().expect("its log")).lines();
    let mut line_with = |what: &str| {
        let line = lines.by_ref().map(|line| line.expect("text")).find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("it ended without {what:?}"))
    };
    line_with("connected to");
    serving.child.kill().expect("it lives");
    serving.child.wait().expect("it is dead");
    let silent = line_with("has answered none of ");
    assert!(silent.contains("vif 0 of domain 5") && silent.contains("for the next one"), "{silent}");
    serving = start();
    line_with("a backend answers again, after ");
    front.signal(rustix::process::Signal::TERM);
    serving.stop();
}
