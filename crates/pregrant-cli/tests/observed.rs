//! The output of commands about devices that are served: `doctor`, `top`, Prometheus' text, the
//! logs of both ends, and systemd's socket.
//!
//! ```text
//!   loopback serve --dir D      back, blkback, front ... of D: each one's log is a file      doctor, top: checked
//! ```

use pregrant::blk::front::FrontConfig;
use pregrant::net::front::{self as net, Granting};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::Platform;
use pregrant::wire::netif_ctrl::{GREF_READONLY, GrefEntry};
use pregrant::{DomId, GrantRef};
use pregrant_cli::loopback_machine;
use pregrant_host::drivers::blk::front::shared_disk::DiskOp;
use pregrant_host::drivers::{BlkFrontend, Frontend};
use pregrant_host::wake::WakeOn;
use pregrant_loopback::Loopback;
use pregrant_test_machine::served::{Process, Served};
use rustix::process::{Resource, Rlimit, Signal};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A limit against hangs only.
const GUARD: Duration = Duration::from_secs(120);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process of the machine whose log is written to a file.
struct Logged {
    process: Process,
    log: PathBuf,
}

impl Logged {
    fn start(machine: &Served, name: &str, args: &[&str]) -> Self {
        let log = machine.dir.join(format!("{name}.log"));
        let mut command = machine.command(args);
        command.stderr(File::create(&log).expect("the machine's folder"));
        Self { process: Process::start(&mut command), log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("its log")
    }

    /// The first line of its log with this in it, once it is there.
    fn says(&self, what: &str) -> String {
        let start = Instant::now();
        loop {
            let log = self.log();
            if let Some(line) = log.lines().find(|line| line.contains(what)) {
                return line.into();
            }
            assert!(start.elapsed() < GUARD, "it does not say {what:?}:\n{log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn run(machine: &Served, args: &[&str]) -> Output {
    machine.command(args).output().expect("the program starts")
}

/// The lines of `doctor` about a device, and whether anything was wrong.
fn doctor(machine: &Served, of: &str) -> (Vec<String>, bool) {
    let out = run(machine, &["doctor"]);
    let lines = text(&out.stdout).lines().filter(|line| line.contains(of)).map(String::from).collect();
    (lines, !out.status.success())
}

/// The JSON lines of `top --once`.
fn top(machine: &Served) -> Vec<serde_json::Value> {
    let out = run(machine, &["top", "--once", "--json", "--interval", "0.2"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout).lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

/// The directions of a vif have staging buffers of their own lengths, or none.
#[test]
fn directions_are_staged_apart() {
    let mut machine = Served::start("apart", &["--guest", "5", "--guest", "6"]);
    let mut back = Logged::start(&machine, "back", &["back", "--staging", "64,256"]);
    back.process.line_with("ready");
    let mut other = Logged::start(&machine, "other", &["front", "--domain", "6", "--data-len", "2048"]);
    other.process.line_with("address");
    back.says("vif 0 of domain 6, back in domain 0: connected, 1 queue(s), TX copy, RX copy");
    for (name, options, [tx, rx]) in [
        ("both", &["--experiment", "tx-data-len=64", "--rx-data-len", "256"][..], [Some(64), Some(256)]),
        ("rx", &["--data-len", "256", "--experiment", "rx-only=on"], [None, Some(256)]),
    ] {
        let args = ["front", "--domain", "5", "--ping", "10.0.0.6", "--interval", "0.01"];
        let mut front = Logged::start(&machine, name, &[&args, options].concat());
        for _ in 0..100 {
            front.process.line_with("answer from");
        }
        let flows = top(&machine);
        for (dir, len) in [("tx", tx), ("rx", rx)] {
            let flow = flows.iter().find(|f| f["front"] == 5 && f["dir"] == dir).expect("a flow");
            let chain = if len.is_some() { "staging" } else { "copy" };
            assert_eq!(flow["chains"][0][0], chain, "{flow}");
            assert_eq!(flow["data_lens"], serde_json::json!(Vec::from_iter(len)), "{flow}");
        }
        front.process.stop();
    }
    other.process.stop();
    back.process.stop();
    machine.stop();
}

/// The cost of a front that shares memory before frames come, by every command and in both logs:
/// nothing.
#[test]
fn what_a_path_shares_is_said_by_everybody() {
    let mut machine = Served::start("shares", &["--guest", "5", "--guest", "6"]);
    let mut back = Logged::start(&machine, "back", &["back"]);
    back.process.line_with("ready");
    let mut other = Logged::start(&machine, "other", &["front", "--domain", "6"]);
    other.process.line_with("address");
    for (path, front_says, back_says) in [
        ("persistent", "path persistent", "TX persistent, RX persistent"),
        ("gref-mapping", "path gref-mapping, ", "frames in them go by gref-mapping"),
        ("staging", "path staging 2048", "TX staging, RX staging, staging buffers of 2048 bytes"),
    ] {
        let name = format!("front-{path}");
        let args = ["front", "--domain", "5", "--path", path, "--ping", "10.0.0.6", "--interval", "0.01"];
        let mut front = Logged::start(&machine, &name, &args);
        front.says(front_says);
        back.says(back_says);
        // Pages are mapped at first sight: after so many frames all are.
        for _ in 0..600 {
            front.process.line_with("answer from");
        }
        let (lines, _) = doctor(&machine, "vif 5.0");
        let way = lines.iter().find(|line| line.contains("queue(s), TX")).expect("its path");
        assert!(way.starts_with("ok") && way.contains(&format!("TX {path}")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("grant copy")), "{lines:?}");
        let flows = top(&machine);
        let flow = flows.iter().find(|f| f["front"] == 5 && f["dir"] == "tx").expect("a flow");
        assert_eq!((&flow["class"], &flow["path"]), (&"vif".into(), &path.into()), "{flow}");
        assert_eq!(flow["chains"][0][0], path, "{flow}");
        let count = |at: &serde_json::Value| at.as_u64().expect("a number");
        let mapped = count(&flow["mapped_pages"]);
        let sum = count(&flow["pages_needed"]) + count(&flow["kept_pages"]);
        assert!(mapped > 0 && mapped == sum, "{flow}");
        match path {
            "persistent" => {
                let store = &flow["store"];
                let [pages, most, limit] = ["pages", "most", "limit"].map(|key| count(&store[key]));
                assert!(0 < pages && pages <= most && most <= limit && limit == 448, "{flow}");
                assert!(count(&flow["kept_pages"]) >= pages, "{flow}");
            }
            "gref-mapping" => {
                let [pages, limit] = ["pages", "limit"].map(|key| count(&flow["gref_table"][key]));
                assert!(
                    (512..=896).contains(&pages) && limit == 1152 && count(&flow["pages_needed"]) > pages,
                    "{flow}"
                );
            }
            _ => assert_eq!(flow["data_lens"], serde_json::json!([2048]), "{flow}"),
        }
        front.process.stop();
    }
    let refused = back.log().lines().filter(|line| line.contains("no page is mapped any more")).count();
    assert_eq!(refused, 0, "its vif closed, and that is said");
    other.process.stop();
    back.process.stop();
    machine.stop();
}

/// Pages that a guest has mapped by control messages come and go while its vif is connected: one
/// line when the first are there, one when there are more that stay, one when none is any more,
/// whatever is between.
#[test]
fn one_line_says_when_gref_mappings_begin_and_one_when_they_end() {
    let mut machine = Served::start("grefs", &["--guest", "5"]);
    let mut back = Logged::start(&machine, "back", &["back"]);
    back.process.line_with("ready");
    let platform =
        Loopback::attach(&loopback_machine::broker_socket(&machine.dir), DomId(5)).expect("guest 5");
    let xs = loopback_machine::store_of(&platform).expect("its xenstore");
    let (ctrl_ring, granting) = (true, Granting::Standing);
    let config = net::FrontConfig { ctrl_ring, granting, staging: Buffers::NONE, ..Default::default() };
    let mut front = Frontend::new(platform, xs, 0, config, false).expect("vif 0");
    assert!(front.connect(GUARD).expect("a backend"));
    let [tx, _] = front.vif().queue(0).unwrap().page_refs();
    let entry = |gref: &GrantRef| GrefEntry { gref: gref.0, flags: GREF_READONLY, status: 9 };
    let entries: Vec<_> = tx.iter().map(entry).collect();
    let mut ask = |adds: bool, entries: &[GrefEntry]| {
        let (platform, vif) = front.driver();
        let ctrl = vif.ctrl().expect("a control ring");
        let asked =
            if adds { ctrl.add_grefs(platform, 0, entries) } else { ctrl.del_grefs(platform, 0, entries) };
        asked.expect("one at a time");
        loop {
            if let Some(answer) = ctrl.answer().expect("an honest back") {
                return assert_eq!(answer.status, 0);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let (begins, ends) = ("frames in them go by gref-mapping", "no page is mapped any more");
    let count = |what: &str| back.log().lines().filter(|line| line.contains(what)).count();
    back.says("TX copy, RX copy");
    ask(true, &entries[..10]);
    back.says(begins);
    ask(true, &entries[10..20]);
    ask(false, &entries[5..15]);
    assert_eq!((count(begins), count(ends)), (1, 0), "{}", back.log());
    ask(false, &entries[..5]);
    ask(false, &entries[15..20]);
    let line = back.says(ends);
    assert!(line.contains("frames go by TX copy, RX copy"), "{line}");
    ask(true, &entries[..1]);
    let start = Instant::now();
    while count(begins) < 2 {
        assert!(start.elapsed() < GUARD, "{}", back.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    // A guest names its pages by one request after another: the log has all of them at last.
    for k in 1..4 {
        ask(true, &entries[k * 50..][..50]);
    }
    back.says("151 page(s) mapped at the guest's request by now");
    assert_eq!(count("by now"), 1, "{}", back.log());
    assert_eq!(count(ends), 1);
    assert!(front.close(GUARD).expect("it closes"));
    back.process.stop();
    machine.stop();
}

/// A feature that is requested by name and not offered is a warning; a default one is none.
#[test]
fn what_a_back_does_not_offer_is_said_to_who_asked_for_it() {
    let mut machine = Served::start("unmet", &["--guest", "5"]);
    let mut back = Logged::start(&machine, "back", &["back", "--persistent-grants", "0"]);
    back.process.line_with("ready");
    let front = Logged::start(&machine, "asks", &["front", "--domain", "5", "--path", "persistent"]);
    let line = front.says("does not offer persistent");
    assert!(line.contains("WARN") && line.contains("goes on with 1 queue(s), ordinary grants"), "{line}");
    front.process.stop();
    let front = Logged::start(&machine, "rings", &["front", "--domain", "5", "--ring-pages", "4"]);
    front.says("path staging 2048, 1 queue(s)");
    assert!(!front.log().contains("WARN"), "{}", front.log());
    front.process.stop();
    back.process.stop();
    machine.stop();
}

/// A device that the toolstack has not created is reported as missing, with a list of existing
/// ones.
#[test]
fn a_missing_device_is_said_to_be_missing() {
    let mut machine = Served::start("missing", &["--guest", "5", "--disk", "5=ram:1M"]);
    for (args, said) in [
        (&["front", "--domain", "5", "--vif", "3"][..], "domain 5 has no vif 3, it has vif 0: "),
        (
            &["blkfront", "--domain", "5", "--device", "xvdc", "--mount", "/"],
            "domain 5 has no vbd 51744 (xvdc), it has vbd 51712 (xvda): ",
        ),
    ] {
        if args[0] == "blkfront" && File::options().read(true).write(true).open("/dev/fuse").is_err() {
            continue; // it says that first
        }
        let mut args = args.to_vec();
        let mount = machine.dir.join("mnt");
        fs::create_dir_all(&mount).expect("the machine's folder");
        args.iter_mut().filter(|arg| **arg == "/").for_each(|arg| *arg = mount.to_str().expect("text"));
        let out = run(&machine, &args);
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{args:?}: {err}");
        assert!(err.contains(said) && err.contains("attach it"), "{args:?}: {err}");
        fs::remove_dir(&mount).expect("nothing is mounted");
    }
    machine.stop();
}

/// A line has its time, or, where standard error is systemd's journal, its priority; and nothing is
/// warned of where all end in good order.
#[test]
fn lines_are_for_who_reads_them_and_honest_ends_are_no_warnings() {
    let mut machine = Served::start("lines", &["--guest", "5", "--guest", "6"]);
    let log = machine.dir.join("journal.log");
    let file = File::create(&log).expect("the machine's folder");
    let stat = file.metadata().expect("a file");
    let mut command = machine.command(&["back", "--workers", "2"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", stat.dev(), stat.ino())).stderr(file);
    let mut back = Logged { process: Process::start(&mut command), log };
    back.process.line_with("ready");
    for _ in 0..3 {
        let other = Logged::start(&machine, "other", &["front", "--domain", "6"]);
        other.says("connected to domain 0");
        // Not this process' standard error.
        let mut command = machine.command(&["front", "--domain", "5"]);
        let log = machine.dir.join("front.log");
        command.env("JOURNAL_STREAM", "8:1").stderr(File::create(&log).expect("the machine's folder"));
        let front = Logged { process: Process::start(&mut command), log };
        front.says("connected to domain 0");
        front.process.stop();
        other.process.stop();
        for log in ["front.log", "other.log"] {
            let log = fs::read_to_string(machine.dir.join(log)).expect("its log");
            assert!(log.lines().all(|line| line.starts_with("[20") && line.contains("Z INFO ] ")), "{log}");
        }
    }
    back.process.stop();
    let log = fs::read_to_string(machine.dir.join("journal.log")).expect("its log");
    assert!(log.lines().count() > 6 && log.lines().all(|line| line.starts_with("<6>[INFO ] ")), "{log}");
    assert!(!log.contains("code "), "{log}");
    machine.stop();
}

/// A mistyped device would be waited for without a word.
#[test]
fn a_device_that_is_not_there_is_said_to_be_missing() {
    let mut machine = Served::start("missing", &["--guest", "5", "--disk", "5=ram:1M"]);
    for (args, says) in [
        (
            ["back", "--vif", "5.7"],
            "waiting for vif 7 of domain 5, which does not exist yet (this domain has 1, as: vif 0 of domain 5",
        ),
        (["back", "--vif", "6"], "waiting for vif of domain 6, which does not exist yet"),
        (
            ["blkback", "--vbd", "6"],
            "waiting for vbd of domain 6, which does not exist yet (this domain has 1, as: vbd 51712",
        ),
    ] {
        let log = Logged::start(&machine, "missing", &args);
        log.says(says);
        log.process.stop();
    }
    let there = Logged::start(&machine, "there", &["back", "--vif", "5.0"]);
    there.says("found");
    there.process.stop();
    let log = fs::read_to_string(machine.dir.join("there.log")).expect("its log");
    assert!(!log.contains("does not exist yet"), "{log}");
    machine.stop();
}

/// Every command distinguishes a hanging backend from one that does not run; and the
/// others of its machine are shown.
#[test]
fn a_hung_backend_is_no_absent_one() {
    let mut machine = Served::start("hung", &["--guest", "5", "--disk", "5=ram:1M"]);
    let mut back = Logged::start(&machine, "back", &["back"]);
    back.process.line_with("ready");
    let mut blkback = Logged::start(&machine, "blkback", &["blkback"]);
    blkback.process.line_with("ready");
    back.process.signal(Signal::STOP);
    let pid = back.process.child.id();
    let silent = format!("process {pid} runs and does not answer");

    let out = run(&machine, &["top", "--once"]);
    let shown = text(&out.stdout);
    assert!(
        out.status.success() && shown.contains(&silent) && shown.contains("domain 0, blkback: process"),
        "{shown}"
    );
    let scraped = text(&run(&machine, &["top", "--prometheus"]).stdout);
    for (daemon, up, running) in [("back", 0, 1), ("blkback", 1, 1)] {
        for (name, value) in [("up", up), ("running", running)] {
            let line = format!("pregrant_{name}{{domain=\"0\",daemon=\"{daemon}\"}} {value}");
            assert!(scraped.lines().any(|l| l == line), "no {line}\n{scraped}");
        }
    }
    let (lines, is_wrong) = doctor(&machine, "pregrant back");
    assert!(
        is_wrong && lines.iter().any(|line| line.starts_with("WRONG") && line.contains(&silent)),
        "{lines:?}"
    );
    let (lines, _) = doctor(&machine, "vif 5.0");
    assert!(!lines.iter().any(|line| line.contains("no backend serves")), "{lines:?}");

    // Killed: its socket is left, and no one is behind it.
    back.process.child.kill().expect("it lives");
    back.process.child.wait().expect("it is dead");
    let scraped = text(&run(&machine, &["top", "--prometheus"]).stdout);
    for name in ["up", "running"] {
        let line = format!("pregrant_{name}{{domain=\"0\",daemon=\"back\"}} 0");
        assert!(scraped.lines().any(|l| l == line), "no {line}\n{scraped}");
    }
    blkback.process.signal(Signal::STOP);
    let out = run(&machine, &["top", "--once", "--json"]);
    let said = text(&out.stderr);
    assert!(out.status.code() == Some(1) && said.contains("runs and does not answer"), "{said}");
    blkback.process.signal(Signal::CONT);
    blkback.process.stop();
    machine.stop();
}

/// A guest with the disk, in a thread, until it is asked to end.
fn with_disk(machine: &Served, work: impl FnOnce(&dyn Fn(DiskOp))) {
    let (report, reported) = mpsc::channel();
    let over = Arc::new(AtomicBool::new(false));
    let (dir, ends) = (machine.dir.clone(), Arc::clone(&over));
    let guest = std::thread::spawn(move || {
        let platform = Loopback::attach(&loopback_machine::broker_socket(&dir), DomId(5)).expect("guest 5");
        let xs = loopback_machine::store_of(&platform).expect("its xenstore");
        platform.events().also_wake_on(xs.transport().as_fd()).expect("a place for it");
        let mut front = BlkFrontend::new(platform, xs, 51712, FrontConfig::default()).expect("xvda");
        assert!(front.connect(GUARD).expect("a backend"));
        report.send(Arc::clone(front.disk())).expect("the test waits");
        while !ends.load(Ordering::Acquire) {
            if !front.round().expect("a disk") {
                front.control(Duration::ZERO).expect("a disk");
                front.sleep(Some(Duration::from_millis(50))).expect("a disk");
            }
        }
        assert!(front.close(GUARD).expect("a disk"));
    });
    let disk = reported.recv().expect("it connects");
    work(&|op| {
        let (report, reported) = mpsc::channel();
        disk.put(
            op,
            Box::new(move |outcome| report.send(outcome.map(<[u8]>::len)).expect("it is waited for")),
        );
        reported.recv().expect("each request is done once").expect("it succeeds");
    });
    over.store(true, Ordering::Release);
    disk.wake();
    guest.join().expect("the guest ends well");
}

/// A disk without any vif: its requests are in the JSON and in Prometheus' text, with their
/// latencies.
#[test]
fn a_disk_is_observed() {
    let mut machine = Served::start("disk", &["--guest", "5", "--disk", "5=ram:1M"]);
    let mut blkback = Logged::start(&machine, "blkback", &["blkback"]);
    blkback.process.line_with("ready");
    with_disk(&machine, |ask| {
        for block in 0..64 {
            ask(DiskOp::Write { at: block * 4096, bytes: vec![7; 4096] });
            ask(DiskOp::Read { at: block * 4096, len: 4096 });
        }
        ask(DiskOp::Flush);
        let lines = top(&machine);
        assert_eq!(lines.len(), 1, "{lines:?}");
        let disk = &lines[0];
        assert_eq!(
            (&disk["class"], &disk["daemon"], &disk["handle"]),
            (&"vbd".into(), &"blkback".into(), &51712.into())
        );
        let count = |at: &serde_json::Value| at.as_u64().expect("a number");
        for (op, requests, bytes) in [("read", 64, 64 * 4096), ("write", 64, 64 * 4096)] {
            let of = &disk["operations"][op];
            assert_eq!((count(&of["requests"]), count(&of["bytes"])), (requests, bytes), "{disk}");
            let buckets = of["latency"].as_array().expect("buckets");
            let all: u64 = buckets.iter().map(|bucket| count(&bucket["requests"])).sum();
            assert!(all == requests && count(&of["latency_sum_ns"]) > 0, "{disk}");
        }
        assert!(count(&disk["operations"]["flush"]["requests"]) >= 1, "{disk}");
        assert_eq!(count(&disk["gauges"]["in_flight"]), 0, "{disk}");
        assert!(disk["requests_per_s"].is_number() && disk["depth"].is_number(), "{disk}");
        let scraped = text(&run(&machine, &["top", "--prometheus"]).stdout);
        let labels = "domain=\"0\",daemon=\"blkback\",class=\"vbd\",device=\"5.51712\"";
        for (name, more, value) in [
            ("requests_total", ",op=\"read\"", "64"),
            ("bytes_total", ",op=\"write\"", "262144"),
            ("request_duration_seconds_count", ",op=\"write\"", "64"),
            ("in_flight_requests", "", "0"),
            ("oldest_request_age_seconds", "", "0"),
        ] {
            let line = format!("pregrant_device_{name}{{{labels}{more}}} {value}");
            assert!(scraped.lines().any(|l| l == line), "no {line}\n{scraped}");
        }
        let shown = text(&run(&machine, &["top", "--once"]).stdout);
        assert!(shown.contains("vbd 5.51712") && shown.contains("requests/s"), "{shown}");
    });
    blkback.process.stop();
    machine.stop();
}

/// systemd's watchdog is fed from the control thread only, so not while that is blocked.
#[test]
fn the_watchdog_is_fed_while_the_control_thread_turns() {
    let mut machine = Served::start("watchdog", &["--guest", "5"]);
    let path = machine.dir.join("notify.sock");
    let systemd = UnixDatagram::bind(&path).expect("a socket");
    systemd.set_read_timeout(Some(GUARD)).expect("a timeout");
    let receive = || {
        let mut news = [0; 256];
        let n = systemd.recv(&mut news).expect("news");
        text(&news[..n])
    };
    let mut command = machine.command(&["back"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    let mut back = Process::start(&mut command);
    back.line_with("ready");
    let (mut notices, mut fed) = (Vec::new(), 0);
    while fed < 5 || !notices.iter().any(|news: &String| news.starts_with("STATUS=vifs: 1")) {
        let news = receive();
        fed += u32::from(news == "WATCHDOG=1\n");
        notices.push(news);
    }
    assert!(notices.iter().any(|news| news == "READY=1\n"), "{notices:?}");
    back.signal(Signal::STOP);
    // Messages that were sent before it stopped.
    systemd.set_nonblocking(true).expect("a socket");
    let mut news = [0; 256];
    let wait = || {
        rustix::process::waitid(
            rustix::process::WaitId::Pid(rustix::process::Pid::from_child(&back.child)),
            rustix::process::WaitIdOptions::STOPPED | rustix::process::WaitIdOptions::NOWAIT,
        )
    };
    wait().expect("it stops");
    while systemd.recv(&mut news).is_ok() {}
    std::thread::sleep(Duration::from_millis(600));
    assert!(systemd.recv(&mut news).is_err(), "somebody else feeds the watchdog");
    back.signal(Signal::CONT);
    systemd.set_nonblocking(false).expect("a socket");
    while receive() != "WATCHDOG=1\n" {}
    back.signal(Signal::TERM);
    while receive() != "STOPPING=1\n" {}
    back.ends_well();
    machine.stop();
}

/// Clients that send nothing do not delay a scrape.
#[test]
fn a_scrape_waits_for_no_silent_client() {
    let machine = Served::start("scraped", &["--guest", "5"]);
    let mut back = Process::start(&mut machine.command(&["back"]));
    back.line_with("ready");
    let mut top = Process::start(&mut machine.command(&["top", "--prometheus", "127.0.0.1:0"]));
    let line = top.line_with("http://");
    let at = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    // Two seconds each, one after another, would be longer than the guard.
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(at).expect("it listens")).collect();
    let mut scrape = TcpStream::connect(at).expect("it listens");
    scrape.set_read_timeout(Some(GUARD)).expect("a timeout");
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("a request");
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).expect("an answer, though others say nothing");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("pregrant_up"), "{answer}");
    drop(silent);
    top.stop();
    back.stop();
    machine.end();
}

/// The time that a process has had, in ticks of 10 ms.
fn ticks(process: &Process) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.child.id())).expect("it lives");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    fields[11].parse::<u64>().expect("ticks") + fields[12].parse::<u64>().expect("ticks")
}

/// A reader that cannot be accepted keeps no daemon awake, and gets its answer later.
#[test]
fn a_backend_without_descriptors_rests_and_answers_later() {
    let machine = Served::start("no-descriptor", &["--guest", "5"]);
    let mut back = Process::start(&mut machine.command(&["back"]));
    back.line_with("ready");
    let pid = rustix::process::Pid::from_child(&back.child);
    // It keeps those that it has, and no number is left for another.
    let open = |n: &u64| fs::exists(format!("/proc/{}/fd/{n}", back.child.id())).expect("our own child");
    let free = (0..).find(|n| !open(n)).expect("a number");
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum; // as the child has it
    let none = Rlimit { current: Some(free), maximum };
    let before = rustix::process::prlimit(Some(pid), Resource::Nofile, none).expect("our own child");
    let mut reader = UnixStream::connect(machine.dir.join("back-0.status")).expect("it listens");
    let (began, had) = (Instant::now(), ticks(&back));
    std::thread::sleep(Duration::from_secs(1));
    let (took, had) = (began.elapsed(), ticks(&back) - had);
    assert!(Duration::from_millis(had * 10) < took / 10, "{had} ticks of 10 ms in {took:?}: it spins");
    rustix::process::prlimit(Some(pid), Resource::Nofile, before).expect("our own child");
    let mut document = String::new();
    reader.read_to_string(&mut document).expect("a document");
    assert!(document.contains("\"pid\""), "{document}");
    back.stop();
    machine.end();
}

/// Nor is the broker of another version where its client has no descriptor left.
#[test]
fn a_client_without_descriptors_says_so() {
    let machine = Served::start("no-room", &["--guest", "5"]);
    let said = (4..20).find_map(|limit| {
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        let front = machine.command(&["front", "--domain", "5"]);
        let mut shell = std::process::Command::new("timeout");
        shell.args(["5", "sh", "-c", &script]).arg(front.get_program()).args(front.get_args());
        let err = text(&shell.output().expect("it runs").stderr);
        assert!(!err.contains("another version"), "ulimit -n {limit}: {err}");
        err.contains("no descriptor is left in this process").then_some(err)
    });
    assert!(said.is_some_and(|err| err.contains("ulimit -n 1024")));
    machine.end();
}
