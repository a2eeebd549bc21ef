//! `loopback`, `back`, `front` and `top` as processes of their own: a transfer outlives its
//! backends, an orderly end leaves devices connected or closes them, `top` shows what they do, and
//! obstacles are reported.

use pregrant::DomId;
use pregrant::xenbus::toolstack::Vif;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::BackStatus;
use pregrant_loopback::{Control, DomainSpec};
use pregrant_test_machine::served::{Process, Served, command};
use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A limit against hangs only.
const GUARD: Duration = Duration::from_secs(120);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A machine with guests 5 and 6.
struct Machine(Served);

impl Deref for Machine {
    type Target = Served;
    fn deref(&self) -> &Served {
        &self.0
    }
}

impl Machine {
    fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    fn start_with(name: &str, more: &[&str]) -> Self {
        Self(Served::start(name, &[&["--guest", "5", "--guest", "6"], more].concat()))
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    fn loopback(&self, args: &[&str]) -> Output {
        let mut command = command(&[&["loopback"], args].concat());
        command.arg("--dir").arg(&self.dir).output().expect("it starts")
    }

    fn back(&self, more: &[&str]) -> Process {
        let mut back = Process::start(&mut self.command(&[&["back"], more].concat()));
        assert!(back.line().contains("ready"));
        back
    }

    fn front(&self, domain: &str, more: &[&str]) -> Process {
        let mut front = Process::start(&mut self.command(&[&["front", "--domain", domain], more].concat()));
        assert!(front.line().contains("address 10.0.0."));
        front
    }

    fn status(&self) -> Option<BackStatus> {
        let mut document = Vec::new();
        UnixStream::connect(self.dir.join("back-0.status")).ok()?.read_to_end(&mut document).ok()?;
        serde_json::from_slice(&document).ok()
    }

    /// The status, once `wanted` accepts it.
    fn status_when(&self, wanted: impl Fn(&BackStatus) -> bool) -> BackStatus {
        let start = Instant::now();
        loop {
            match self.status() {
                Some(status) if wanted(&status) => return status,
                seen => assert!(start.elapsed() < GUARD, "{seen:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Number of frames that guest 5 has sent since the back took over its vif.
    fn sent_by_5(status: &BackStatus) -> u64 {
        let vif = status.vifs.iter().find(|vif| vif.front == 5);
        vif.map_or(0, |vif| vif.queues.iter().map(|q| q.tx.bytes).sum())
    }

    /// The back's state of a guest's vif.
    fn state(&self, guest: u16) -> String {
        self.key(&format!("/local/domain/0/backend/vif/{guest}/0/state"))
    }

    fn key(&self, at: &str) -> String {
        let mut xs = Client::new(UnixTransport::connect(self.dir.join("xenstored.sock")).expect("xenstored"));
        text(&xs.read_if_there(at).expect("xenstore answers").unwrap_or_default())
    }

    fn end(self) {
        self.0.end();
    }
}

/// The text behind `name` in a report, up to the next comma or semicolon.
fn after<'a>(report: &'a str, name: &str) -> &'a str {
    let rest = report.split_once(name).unwrap_or_else(|| panic!("no {name:?} in {report}")).1;
    rest.split([',', ';']).next().unwrap_or_default()
}

#[test]
fn a_transfer_outlives_its_backends() {
    const SOME: u64 = 4 << 20;
    let machine = Machine::start("outlives");
    let mut back = machine.back(&[]);
    let mut server = machine.front("6", &["--serve", "--experiment", "rx-coalesce=load"]);
    let client = machine.front("5", &["--send", "10.0.0.6", "--bytes", "512M"]);

    // Killed in mid-transfer: the next one takes up both vifs, on their live rings.
    machine.status_when(|s| Machine::sent_by_5(s) > SOME);
    back.child.kill().expect("it lives");
    back.child.wait().expect("it is dead");
    assert_eq!((machine.state(5), machine.state(6)), ("4".into(), "4".into()));
    let back = machine.back(&["--experiment", "rx-context=same"]);
    let status = machine.status_when(|s| Machine::sent_by_5(s) > SOME);
    assert!(status.vifs.iter().all(|vif| vif.reattached), "{status:?}");
    assert_eq!(status.pid, back.child.id());

    // Stopped in good order: the same.
    back.stop();
    assert_eq!((machine.state(5), machine.state(6)), ("4".into(), "4".into()));
    // One that waits takes over when its predecessor ends; and at its own end it closes.
    let back = machine.back(&[]);
    let mut waiting = Process::start(&mut machine.command(&["back", "--wait", "--close"]));
    assert!(waiting.line().contains(&format!("process {}", back.child.id())));
    machine.status_when(|s| Machine::sent_by_5(s) > SOME);
    back.stop();
    assert!(waiting.line().contains("ready"));

    let sent = client.ends_well();
    let received = server.line();
    assert_eq!(after(&sent, "sent ").split(' ').next(), Some("536870912"), "{sent}");
    assert_eq!(after(&sent, "sum "), after(&received, "sum "), "{sent}{received}");

    machine.status_when(|s| s.vifs.iter().any(|vif| vif.front == 6 && vif.state == "Connected"));
    waiting.stop();
    assert_eq!(machine.state(6), "6");
    // The guest waits, and a new backend gets it back.
    let back = machine.back(&[]);
    machine.status_when(|s| {
        s.vifs.iter().any(|vif| vif.front == 6 && vif.state == "Connected" && !vif.reattached)
    });
    server.stop();
    back.stop();
    machine.end();
}

/// A front that never sleeps asks for no event; one that sleeps at once gets one each time.
#[test]
fn a_front_waits_as_its_mode_says() {
    let machine = Machine::start("modes");
    let back = machine.back(&[]);
    let six = machine.front("6", &[]);
    // Frames to guest 5, and events with which the back notified it of them.
    let to_5 = |status: &BackStatus| {
        let vif = status.vifs.iter().find(|vif| vif.front == 5 && vif.connected_s.is_some());
        let queues = vif.iter().flat_map(|vif| &vif.queues);
        queues.fold((0, 0), |(frames, events), q| (frames + q.rx.frames, events + q.rx.notifications))
    };
    for (mode, sleeps) in [("poll", false), ("event", true)] {
        let five = machine.front("5", &["--mode", mode, "--ping", "10.0.0.6", "--interval", "0.002"]);
        let seen = machine.status_when(|status| to_5(status).0 > 400);
        let (frames, events) = to_5(&seen);
        assert_eq!(events > 10, sleeps, "{mode}: {events} events for {frames} frames");
        five.stop();
        machine.status_when(|status| to_5(status).0 == 0);
    }
    six.stop();
    back.stop();
    machine.end();
}

/// The process's counters include all of its worker threads, also one that has ended.
#[test]
fn the_process_counts_what_all_of_its_workers_did() {
    let copies = |status: &BackStatus| -> u64 {
        let queues = status.vifs.iter().flat_map(|vif| &vif.queues);
        queues.map(|queue| queue.tx.grant_copies + queue.rx.grant_copies).sum()
    };
    for workers in [&["--workers", "2"][..], &["--place", "own"]] {
        let machine = Machine::start(&format!("counts-{}", workers[1]));
        let back = machine.back(workers);
        let six = machine.front("6", &["--path", "copy"]);
        let mut five = machine.front("5", &["--path", "copy", "--ping", "10.0.0.6", "--interval", "0.005"]);
        assert!(five.line().starts_with("answer from 10.0.0.6"));
        let seen = machine.status_when(|status| {
            let process = &status.process;
            // Each vif copies at a worker of its own; one worker's alone are half of it.
            copies(status) > 50 && process.grant_copies >= copies(status) && process.syscalls > 50
        });
        assert_eq!(seen.vifs.len(), 2, "{seen:?}");
        let metrics = text(&machine.run(&["top", "--prometheus"]).stdout);
        let reported = after(
            &metrics,
            "pregrant_back_grant_operations_total{domain=\"0\",daemon=\"back\",op=\"copy\"} ",
        );
        let reported: f64 = reported.split_whitespace().next().expect("a figure").parse().expect("a number");
        assert!(reported >= seen.process.grant_copies as f64, "{metrics}");
        five.stop();
        six.stop();
        let last = machine.status_when(|status| status.vifs.iter().all(|vif| vif.connected_s.is_none()));
        assert!(last.process.grant_copies >= reported as u64, "{last:?}");
        back.stop();
        machine.end();
    }
}

/// The lines of `top --json`.
fn lines(out: &Output) -> Vec<serde_json::Value> {
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout).lines().map(|l| serde_json::from_str(l).expect("an object a line")).collect()
}

#[test]
fn top_shows_what_travels() {
    let machine = Machine::start("top");
    let out = machine.run(&["top", "--once"]);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
    assert!(text(&out.stderr).contains("pregrant back --loopback"), "{}", text(&out.stderr));

    let out = machine.run(&["back", "--workers", "40"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("cannot start 40 worker thread(s): "), "{}", text(&out.stderr));
    let back = machine.back(&["--workers", "2"]);
    let six = machine.front("6", &["--path", "copy"]);
    let mut five = machine.front("5", &["--ping", "10.0.0.6", "--interval", "0.005"]);
    assert!(five.line().starts_with("answer from 10.0.0.6"));
    // The workers' requests count for the process, too.
    let by_queue = |s: &BackStatus| -> u64 {
        let queues = s.vifs.iter().flat_map(|vif| &vif.queues);
        queues.map(|queue| queue.tx.grant_copies + queue.rx.grant_copies).sum()
    };
    let copied = by_queue(&machine.status_when(|s| by_queue(s) > 100));
    std::thread::sleep(Duration::from_millis(200)); // a document serves for a tenth of a second
    let process = machine.status_when(|_| true).process;
    assert!(process.grant_copies >= copied && process.notifications > 0, "{copied}: {process:?}");
    let flows = lines(&machine.run(&["top", "--once", "--json", "--interval", "0.5"]));
    assert_eq!(flows.len(), 4, "two vifs, two directions: {flows:?}");
    for flow in &flows {
        assert!(
            flow["frames_per_s"].as_f64() > Some(1.0) && flow["bits_per_s"].as_f64() > Some(100.0),
            "{flow}"
        );
        assert_eq!((&flow["state"], &flow["faults"]), (&"Connected".into(), &0.into()));
        // Whole frames of 98 bytes: by staging buffer without an operation, by grant with one.
        let (path, ops) = if flow["front"] == 5 { ("staging", 0.0) } else { ("copy", 1.0) };
        assert_eq!(flow["path"].as_str(), Some(path), "{flow}");
        // Its worker counts on while another thread reads: a batch, at each of two readings, may be
        // in one count and not the other.
        let frames = flow["frames_per_s"].as_f64().zip(flow["seconds"].as_f64()).map_or(0.0, |(f, s)| f * s);
        let apart = flow["grant_ops_per_frame"].as_f64().map_or(f64::MAX, |each| (each - ops).abs() * frames);
        assert!(apart < if ops > 0.0 { 4.5 } else { 0.5 }, "{flow}");
    }
    let table = text(&machine.run(&["top", "--once", "--interval", "0.2"]).stdout);
    assert!(table.contains("grant ops/frame") && table.contains("\n5.0  tx "), "{table}");

    let metrics = text(&machine.run(&["top", "--prometheus"]).stdout);
    let sample = r#"pregrant_queue_frames_total{domain="0",daemon="back",vif="5.0",queue="0",dir="tx",path="staging"} "#;
    assert!(metrics.contains(sample), "{metrics}");
    let mut server = Process::start(&mut machine.command(&["top", "--prometheus", "127.0.0.1:0"]));
    let at = after(&server.line(), "http://").split('/').next().expect("an address").to_string();
    let mut junk = TcpStream::connect(&at).expect("it listens");
    junk.write_all(&[0xFF; 20_000]).expect("it takes some");
    drop(junk);
    let mut scrape = TcpStream::connect(&at).expect("it listens");
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("a request");
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains(sample), "{answer}");
    server.stop();

    let pings = five.stop();
    assert!(pings.contains(" 0 lost"), "{pings}");
    six.stop();
    back.stop();
    machine.end();
}

#[test]
fn what_is_in_the_way_is_said() {
    let failed = |out: Output, expected: &[&str]| {
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{err}");
        for part in expected {
            assert!(err.contains(part), "no {part:?} in {err}");
        }
    };
    let pregrant = |args: &[&str]| command(args).output().expect("the program starts");
    failed(pregrant(&["back"]), &["Not on Xen?", "pregrant-lab loopback serve"]);
    failed(pregrant(&["front"]), &["Not on Xen?", "pregrant-lab loopback serve"]);
    for (wrong, expected) in [
        (["--workers", "0"], "1..=64"),
        (["--workers", "65"], "1..=64"),
        (["--workers", "two"], "invalid digit"),
        (["--place", "best"], "balanced, fixed, own"),
    ] {
        let out = pregrant(&[&["back"][..], &wrong].concat());
        let err = text(&out.stderr);
        assert!(out.status.code() == Some(2) && err.contains(expected), "{wrong:?}: {err}");
    }
    for command in [&["back"][..], &["front", "--domain", "5"], &["top", "--once"]] {
        let out = pregrant(&[command, &["--loopback", "/nonexistent/xen"]].concat());
        failed(out, &["/nonexistent/xen", "o such"]);
    }
    failed(
        pregrant(&["loopback", "serve", "--dir", "/nonexistent/xen"]),
        &["/nonexistent/xen", "choose a directory"],
    );
    failed(
        pregrant(&["top", "--prometheus", "0.0.0.0:9", "--loopback", "/tmp"]),
        &["not a loopback address"],
    );
    assert_eq!(pregrant(&["front", "--domain", "0"]).status.code(), Some(2));

    let machine = Machine::start("errors");
    failed(machine.loopback(&["serve"]), &["xenstored.sock", "another process serves this socket"]);
    let back = machine.back(&[]);
    let owner = format!("process {}", back.child.id());
    failed(machine.run(&["back"]), &["has a backend already", &owner, "--wait"]);
    failed(
        machine.run(&["front", "--domain", "7"]),
        &["there is no domain 7", "pregrant-lab loopback attach"],
    );
    let five = machine.front("5", &[]);
    failed(machine.run(&["front", "--domain", "5"]), &["has a front already"]);
    failed(
        machine.run(&["front", "--domain", "6", "--ping", "10.0.0.77", "--count", "1"]),
        &["10.0.0.77 does not answer"],
    );
    failed(
        machine.run(&["front", "--domain", "6", "--send", "10.0.0.5"]),
        &["refuses the connection", "--serve"],
    );

    // A guest of the loopback has no name, and is there all the same.
    machine.status_when(|s| s.vifs.iter().any(|vif| vif.front == 5 && vif.state == "Connected"));
    let doctor = text(&machine.run(&["doctor"]).stdout);
    for part in ["vif 5.0: served here", "vif 5.0: its front has feature-sg, "] {
        assert!(doctor.contains(part), "no {part:?} in {doctor}");
    }
    // Of domain 6, whose process has ended, either may be said.
    assert!(!doctor.contains("vif 5.0 (gone)"), "{doctor}");

    // A guest that comes and goes.
    assert!(machine.loopback(&["attach", "7"]).status.success());
    let seven = machine.front("7", &[]);
    machine.status_when(|s| s.vifs.iter().any(|vif| vif.front == 7 && vif.state == "Connected"));
    seven.stop();
    // Made again by the toolstack.
    let seven = machine.front("7", &[]);
    machine.status_when(|s| s.vifs.iter().any(|vif| vif.front == 7 && vif.state == "Connected"));
    assert!(machine.loopback(&["detach", "7"]).status.success());
    machine.status_when(|s| s.vifs.iter().all(|vif| vif.front != 7));
    drop(seven);
    // The failed fronts of 6 ended with their domain; it is made again, and no one waited for that.
    machine.status_when(|s| s.vifs.iter().any(|vif| vif.front == 6 && vif.state == "InitWait"));
    failed(machine.loopback(&["detach", "7"]), &["there is no domain 7", "this machine has domains 0, 5, 6"]);
    failed(
        machine.loopback(&["serve", "--guest", "5", "--guest", "5"]),
        &["--guest 5 is given twice", "pregrant-lab loopback attach"],
    );
    five.stop();
    back.stop();
    machine.end();
}

/// A backend that is stopped closes no vif. Guests that end meanwhile are created again
/// nevertheless, all without additional delay.
#[test]
fn a_stopped_backend_holds_no_guest_up() {
    let machine = Machine::start("stopped");
    let back = machine.back(&[]);
    let guests = ["7", "8", "9", "10"];
    for guest in guests {
        assert!(machine.loopback(&["attach", guest]).status.success());
    }
    let of = |status: &BackStatus, guest: &str| {
        status.vifs.iter().any(|vif| vif.front.to_string() == guest && vif.state == "Connected")
    };
    let fronts = guests.map(|guest| machine.front(guest, &[]));
    machine.status_when(|s| guests.iter().all(|guest| of(s, guest)));
    back.signal(Signal::STOP);
    drop(fronts);
    // More guests than a front's patience has seconds; the backend lets go of none of them.
    let fronts = guests.map(|guest| machine.front(guest, &[]));
    back.signal(Signal::CONT);
    machine.status_when(|s| guests.iter().all(|guest| of(s, guest)));
    fronts.into_iter().for_each(|front| drop(front.stop()));
    back.stop();
    machine.end();
}

/// A guest's grants are counted while it is connected: those that may be mapped, and those that
/// are.
#[test]
fn grants_are_counted() {
    ["v1", "v2"].into_iter().for_each(grants_of_tables_are_counted);
}

fn grants_of_tables_are_counted(version: &str) {
    let machine = Machine::start_with(&format!("grants-{version}"), &["--grant-table", version]);
    let doctor = text(&machine.run(&["doctor"]).stdout);
    assert!(doctor.contains(&format!("ok     loopback, grant tables {version}")), "{doctor}");
    let of = |domain: &[&str]| machine.loopback(&[&["grants"], domain].concat());
    assert_eq!(text(&of(&["--domain", "5"]).stdout), "no grants of domain 5\n");
    let back = machine.back(&[]);
    let front = machine.front("5", &["--path", "staging"]);
    machine.status_when(|s| s.vifs.iter().any(|vif| vif.front == 5 && vif.state == "Connected"));
    let rows = lines(&of(&["--domain", "5", "--json"]));
    let number = |row: &serde_json::Value, name: &str| row[name].as_u64().expect("a number");
    assert!(rows.iter().all(|row| number(row, "domain") == 5 && number(row, "to") == 0), "{rows:?}");
    assert!(rows.iter().all(|row| number(row, "ended") == 0 && row["table"] == version), "{rows:?}");
    // A one-page ring has 256 buffers of 2048 bytes in each direction, which stay mapped beside the
    // rings; the back only reads what is sent.
    let [of_rx, of_tx] = [false, true].map(|readonly| {
        rows.iter().find(|row| row["readonly"] == readonly).unwrap_or_else(|| panic!("{rows:?}"))
    });
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(number(of_tx, "in_use") >= 128 && number(of_rx, "in_use") >= 128 + 2, "{rows:?}");
    // RX pages that are not staged are granted, and mapped by no one.
    assert!(number(of_rx, "entries") >= number(of_rx, "in_use") + 256, "{rows:?}");
    let table = text(&of(&[]).stdout);
    assert!(table.contains("domain 5  domain 0") && !table.contains("domain 6"), "{table}");
    let unknown = of(&["--domain", "9"]);
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("there is no domain 9"));
    front.stop();
    back.stop();
    machine.end();
}

/// Neither end accepts frames over several slots. With staging buffers of 4096 bytes the front then
/// grants no page besides buffers, rings and lists.
#[test]
fn without_sg_no_ordinary_page_is_granted() {
    let machine = Machine::start("no-sg");
    let back = machine.back(&["--no-sg"]);
    let six = machine.front("6", &[]);
    let size = ["--data-len", "4096", "--buffers", "256"];
    for (no_sg, pages) in [(true, 0), (false, 256)] {
        let more: &[&str] = if no_sg { &["--no-sg"] } else { &[] };
        let args = ["--ping", "10.0.0.6", "--interval", "0.01"];
        let mut five = machine.front("5", &[&size, &args, more].concat());
        assert!(five.line().starts_with("answer from 10.0.0.6"));
        let grants = lines(&machine.loopback(&["grants", "--domain", "5", "--json"]));
        let entries: u64 = grants.iter().map(|row| row["entries"].as_u64().expect("a number")).sum();
        assert_eq!(entries, 2 * (256 + 2) + pages, "{grants:?}");
        for (key, has) in [
            ("0/backend/vif/5/0/feature-sg", "0"),
            ("0/backend/vif/5/0/feature-gso-tcpv4", "0"),
            ("5/device/vif/0/feature-sg", if no_sg { "0" } else { "1" }),
        ] {
            assert_eq!(machine.key(&format!("/local/domain/{key}")), has, "{key}");
        }
        assert!(five.stop().contains(" 0 lost"));
    }
    six.stop();
    back.stop();
    machine.end();
}

/// A guest exists before its vif: a front that starts in between waits, and does not end the guest
/// by leaving it.
#[test]
fn a_front_that_is_early_waits_for_its_vif() {
    let machine = Machine::start("early");
    let back = machine.back(&[]);
    let control = Control::connect(&machine.dir.join("broker.sock")).expect("a machine");
    control.create_domain(DomainSpec::guest(DomId(7))).expect("a guest");
    let mut front = Process::start(&mut machine.command(&["front", "--domain", "7"]));
    // it is early; were it late, the test would show less and not fail
    std::thread::sleep(Duration::from_millis(300));
    let mut xs = Client::new(UnixTransport::connect(machine.dir.join("xenstored.sock")).expect("xenstored"));
    Vif::new(DomId(7), DomId(0), 0, [0, 0x16, 0x3e, 0, 7, 0]).create(&mut xs).expect("xenstore takes it");
    assert!(front.line().contains("address 10.0.0."));
    front.stop();
    back.stop();
    machine.end();
}

/// A second machine in a directory does not start, and leaves there what is the first one's and the
/// user's; the first one removes, at its end, what killed backends left and nothing else.
#[test]
fn a_machine_removes_nothing_of_others() {
    let mut machine = Machine::start("twice");
    let dir = machine.dir.clone();
    let back = machine.back(&[]);
    let own = ["mine.status", "back-1.status"].map(|name| dir.join(name));
    own.iter().for_each(|file| std::fs::write(file, "a user's").expect("a file"));
    let socket = dir.join("mine-too.status");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));

    assert_eq!(machine.loopback(&["serve"]).status.code(), Some(1));
    assert!(own.iter().chain([&socket]).all(|file| file.exists()), "the second one removed a user's file");
    assert!(machine.status().is_some(), "the second one removed the first one's socket");

    let left = dir.join("back-0.status");
    drop(back); // killed
    assert!(left.exists());
    machine.0.stop();
    assert!(!left.exists(), "it is not removed later");
    assert!(own.iter().chain([&socket]).all(|file| file.exists()), "the machine removed a user's file");
}

/// A receiver that was killed during a transfer sends nothing any more: its sender ends, and
/// reports why.
#[test]
fn a_receiver_that_is_gone_ends_the_sender() {
    let machine = Machine::start("gone");
    let back = machine.back(&[]);
    let server = machine.front("6", &["--serve"]);
    let mut command = machine.command(&["front", "--domain", "5", "--send", "10.0.0.6", "--bytes", "1000G"]);
    let mut sender = Process::start(command.stderr(Stdio::piped()));
    machine.status_when(|s| Machine::sent_by_5(s) > 1_000_000);
    drop(server); // killed
    let start = Instant::now();
    let status = loop {
        match sender.child.try_wait().expect("it can be asked") {
            Some(status) => break status,
            None => assert!(start.elapsed() < GUARD, "it waits for ever"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let err = sender.log();
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("10.0.0.6 is gone: nothing has moved for 30 s"), "{err}");
    back.stop();
    machine.end();
}

/// The machine ends first: its processes report that, and not the errors that follow from it.
#[test]
fn the_end_of_the_machine_is_reported_as_such() {
    let machine = Machine::start("ended");
    let start = |mut command: Command| {
        let mut child = Process::start(command.stderr(Stdio::piped()));
        child.line();
        child
    };
    let back = start(machine.command(&["back"]));
    let front = start(machine.command(&["front", "--domain", "5"]));
    machine.status_when(|s| s.vifs.iter().any(|vif| vif.front == 5 && vif.state == "Connected"));
    let dir = machine.dir.display().to_string();
    machine.end();
    for (mut process, program) in [(back, "pregrant"), (front, "pregrant-lab")] {
        let err = process.log();
        let last = err.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("{program}: the machine in {dir} has ended")), "{err}");
        assert_eq!(process.child.wait().expect("it ends").code(), Some(3), "{err}");
    }
}

/// The frames of a capture file, which is whole.
fn captured(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).expect("a capture file");
    let (head, mut rest) = file.split_at(24);
    assert_eq!(head[..8], [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0], "pcap, version 2.4");
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let field = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("four bytes"));
        let len = field(8);
        assert_eq!(len, field(12), "a frame was cut");
        let (frame, more) = rest[16..].split_at(len as usize);
        frames.push(frame.to_vec());
        rest = more;
    }
    frames
}

/// Number of echo requests and replies that domain 5's guest sent, and that it received.
fn echoes_of_5(frames: &[Vec<u8>]) -> [usize; 4] {
    let echoes = |from: u8, to: u8, kind: u8| {
        let is_one = |f: &&Vec<u8>| {
            f.len() > 34
                && f[23] == 1
                && f[26..30] == [10, 0, 0, from]
                && f[30..34] == [10, 0, 0, to]
                && f[34] == kind
        };
        frames.iter().filter(is_one).count()
    };
    [echoes(5, 6, 8), echoes(5, 6, 0), echoes(6, 5, 8), echoes(6, 5, 0)]
}

/// Both directions of a vif, as many connects as there are; and nothing of others.
#[test]
fn what_passes_a_vif_is_captured() {
    let machine = Machine::start("captured");
    let [five, seven] = ["five.pcap", "seven.pcap"].map(|name| machine.dir.join(name));
    let option = |vif: &str, path: &Path| format!("{vif}={}", path.display());
    let options = [option("5.0", &five), option("7.0", &seven)];
    std::fs::write(&five, "of another day").expect("a file");
    let back = machine.back(&["--capture", &options[0], "--capture", &options[1]]);
    let six = machine.front("6", &[]);
    let ping = |from: &str, to: &str| {
        let args = ["front", "--domain", from, "--ping", to, "--count", "20", "--interval", "0.01"];
        let out = machine.run(&args);
        assert!(text(&out.stdout).contains(" 0 lost"), "{out:?}");
    };
    ping("5", "10.0.0.6");
    six.stop();
    // Its guest ends with each.
    let front = machine.front("5", &[]);
    ping("6", "10.0.0.5");
    front.stop();
    back.stop();
    assert_eq!(echoes_of_5(&captured(&five)), [20; 4]);
    assert_eq!(captured(&seven), [[0; 0]; 0], "it was never there");
    // A backend that cannot make one serves no one, and leaves those that there are.
    for (path, why) in [("/nonexistent/x.pcap", "No such file or directory"), ("/dev/full", "No space left")]
    {
        let out = machine.run(&["back", "--capture", &format!("5.0={path}")]);
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{err}");
        assert!(err.contains(&format!("{path}: the capture file cannot be made: {why}")), "{err}");
    }
    [five, seven].iter().for_each(|file| std::fs::remove_file(file).expect("it is there"));
    machine.end();
}

/// A capture that has reached its size limit is reported once; its vif goes on.
#[test]
fn a_capture_ends_at_its_limit() {
    let machine = Machine::start("capture-limit");
    let file = machine.dir.join("five.pcap");
    let option = format!("5.0={}", file.display());
    let args = ["back", "--capture", &option, "--capture-limit", "1k"];
    let mut back = Process::start(machine.command(&args).stderr(Stdio::piped()));
    assert!(back.line().contains("ready"));
    let six = machine.front("6", &[]);
    let args = ["front", "--domain", "5", "--ping", "10.0.0.6", "--count", "20", "--interval", "0.01"];
    let out = machine.run(&args);
    assert!(text(&out.stdout).contains(" 0 lost"), "{out:?}");
    six.stop();
    back.signal(Signal::TERM);
    let log = back.log();
    back.ends_well();
    let ends: Vec<&str> = log.lines().filter(|line| line.contains("capture")).collect();
    let expected = format!("the capture into {} has ended at its limit of 1024 bytes", file.display());
    assert!(ends.len() == 1 && ends[0].contains(&expected) && ends[0].contains("WARN"), "{log}");
    let len = std::fs::metadata(&file).expect("it is there").len();
    assert!((512..=1024).contains(&len) && !captured(&file).is_empty(), "{len} bytes");
    std::fs::remove_file(file).expect("it is there");
    machine.end();
}

/// A capture whose file cannot be written any more is reported once; its vif goes on.
#[test]
fn a_capture_that_fails_ends_alone() {
    let machine = Machine::start("capture-fails");
    let pipe = machine.dir.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    let reader = File::options()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(&pipe)
        .expect("a pipe");
    let option = format!("5.0={}", pipe.display());
    let mut back = Process::start(machine.command(&["back", "--capture", &option]).stderr(Stdio::piped()));
    assert!(back.line().contains("ready"));
    drop(reader);
    let six = machine.front("6", &[]);
    for _ in 0..2 {
        let args = ["front", "--domain", "5", "--ping", "10.0.0.6", "--count", "20", "--interval", "0.01"];
        let out = machine.run(&args);
        assert!(text(&out.stdout).contains(" 0 lost"), "{out:?}");
    }
    six.stop();
    back.signal(Signal::TERM);
    let log = back.log();
    back.ends_well();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("capture")).collect();
    let expected = format!(
        "vif 0 of domain 5, back in domain 0: the capture into {} has ended: Broken pipe",
        pipe.display()
    );
    assert!(lines.len() == 1 && lines[0].contains(&expected) && lines[0].contains("WARN"), "{log}");
    std::fs::remove_file(pipe).expect("it is there");
    machine.end();
}
