//! Programs that wait while no back answers: one that is killed ends; one that lives waits, or gets
//! EIO after a time limit.
//!
//! ```text
//!   dd, fio, this test -- MNT/disk -- blkfront -- rings -- blkback, which is killed, or none
//! ```

use crate::{Machine, can_mount, programs};
use pregrant_test_machine::served::Process;
use pregrant_testkit::skip::skip_for_kernel;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn backend(machine: &Machine) -> Process {
    let mut back = Process::start(machine.command(&["blkback"]).env("RUST_LOG", "error"));
    back.line_with("ready");
    back
}

/// A disk that is mounted, and its back.
fn mounted(name: &str, more: &[&str]) -> (Machine, Process, Process) {
    let image = std::env::temp_dir().join(format!("pregrant-w-{}-{name}.img", std::process::id()));
    File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
    let machine = Machine::with_disk(name, &image);
    let back = backend(&machine);
    let front = machine.front(more);
    (machine, back, front)
}

fn remove_image(name: &str) {
    let image = std::env::temp_dir().join(format!("pregrant-w-{}-{name}.img", std::process::id()));
    std::fs::remove_file(image).expect("it is there");
}

fn start(program: &str, args: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it lives");
}

/// Waits for the end of a process. It kills one that never ends, so that a test cannot hang.
fn end(child: &mut Child) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it is there") {
            return status;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "process {} cannot be killed", child.id());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until one of its threads sleeps there, as far as the kernel tells.
fn waits(child: &Child, there: &str) {
    let began = Instant::now();
    let is_there = |task: std::io::Result<std::fs::DirEntry>| {
        let wchan = std::fs::read_to_string(task.expect("a thread").path().join("wchan"));
        wchan.is_ok_and(|name| name == there)
    };
    while began.elapsed() < Duration::from_secs(20) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).expect("it is there");
        if tasks.into_iter().any(is_there) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

const FOR_AN_ANSWER: &str = "request_wait_answer";
const FOR_ASYNCHRONOUS_ONES: &str = "read_events";
const FOR_RINGS: &str = "io_cqring_wait";

#[test]
fn a_program_that_waits_for_a_back_ends_when_it_is_killed() {
    if !can_mount() {
        return;
    }
    let (machine, back, front) = mounted("killed", &[]);
    let disk = machine.disk();
    let open = File::options().read(true).write(true).open(&disk).expect("the disk");
    open.write_all_at(&[7; 2 * MIB], 0).expect("a write");
    drop(back);
    let (of, to) = (format!("if={}", disk.display()), format!("of={}", disk.display()));
    let reads = ["bs=1M", "count=1", &of, "of=/dev/null"];
    let writes = ["bs=1M", "count=1", "if=/dev/zero", &to, "conv=notrunc", "seek=4"];
    let syncs = ["bs=1M", "count=0", &to, "conv=notrunc,fsync", "if=/dev/zero"];
    // More of them than the front lets in, so that some wait for room.
    let mut killed: Vec<_> = (0..40).map(|_| start("dd", &reads)).collect();
    killed.extend((0..4).map(|_| start("dd", &writes)));
    killed.push(start("dd", &syncs));
    // The kernel says its first signal alone, by which it does not end.
    let mut late = start("sh", &["-c", &format!("trap : WINCH; exec 3< {}; read -r _ <&3", disk.display())]);
    killed.iter().chain([&late]).for_each(|child| waits(child, FOR_AN_ANSWER));
    signal(&late, Signal::WINCH);
    killed.iter().for_each(|child| signal(child, Signal::KILL));
    for child in &mut killed {
        assert_eq!(end(child).signal(), Some(9));
    }
    assert!(late.try_wait().expect("it is there").is_none(), "its signal was harmless");
    signal(&late, Signal::TERM);
    assert_eq!(end(&mut late).signal(), Some(15));
    // One that lives goes on with the next back, in spite of a signal.
    let mut lives = start("dd", &["bs=1M", "count=2", &of, "of=/dev/null"]);
    waits(&lives, FOR_AN_ANSWER);
    signal(&lives, Signal::WINCH);
    let _back = backend(&machine);
    assert!(end(&mut lives).success());
    let mut bytes = vec![0; 2 * MIB];
    open.read_exact_at(&mut bytes, 0).expect("a read");
    assert!(bytes.iter().all(|byte| *byte == 7));
    drop(open);
    front.stop();
    remove_image("killed");
}

/// A process that ends waits for its requests: by libaio behind PF_EXITING, by io_uring before. A
/// signal that dumps core is taken off the process first.
#[test]
fn a_program_with_asynchronous_requests_ends_when_it_is_killed() {
    if !can_mount() || !programs::has("fio", "fio") {
        return;
    }
    let (machine, back, front) = mounted("async", &[]);
    drop(back);
    let file = format!("--filename={}", machine.disk().display());
    for (engine, there) in [("libaio", FOR_ASYNCHRONOUS_ONES), ("io_uring", FOR_RINGS)] {
        for by in [Signal::KILL, Signal::ABORT] {
            let engine = format!("--ioengine={engine}");
            let args = ["--name=t", &file, &engine, "--iodepth=8", "--direct=1", "--rw=randread", "--thread"];
            let mut fio = start("fio", &args);
            waits(&fio, there);
            signal(&fio, by);
            assert_eq!(end(&mut fio).signal(), Some(by.as_raw()), "{engine}");
        }
    }
    // The file is closed: there is a signal for the front, and an end of it.
    let _back = backend(&machine);
    front.stop();
    remove_image("async");
}

#[test]
fn a_request_that_no_back_answers_is_an_error_after_the_bound() {
    if !can_mount() {
        return;
    }
    let (machine, back, front) = mounted("bounded", &["--timeout", "2"]);
    let disk = File::options().read(true).write(true).open(machine.disk()).expect("the disk");
    drop(back);
    let mut bytes = vec![0; MIB];
    let failed = |outcome: std::io::Result<()>| {
        assert_eq!(outcome.map_err(|e| e.raw_os_error()), Err(Some(5)), "EIO");
    };
    failed(disk.read_exact_at(&mut bytes, 0));
    failed(disk.write_all_at(&[9; 4096], 0));
    failed(disk.sync_all());
    let back = backend(&machine);
    disk.read_exact_at(&mut bytes, 0).expect("a back answers");
    // One that is closed has nothing of it: what has failed is not written later.
    back.signal(Signal::TERM);
    drop(back);
    let mut closing = Process::start(machine.command(&["blkback", "--close"]).env("RUST_LOG", "error"));
    closing.line_with("ready");
    closing.stop();
    failed(disk.write_all_at(&[9; 4096], 8 << 20));
    let _back = backend(&machine);
    disk.read_exact_at(&mut bytes, 8 << 20).expect("a back answers");
    assert!(bytes.iter().all(|byte| *byte == 0), "a write that failed was done later");
    drop(disk);
    front.stop();
    remove_image("bounded");
}

/// The flag `PF_MEMALLOC_NOIO`, which marks an IO_FLUSHER, must be set on all threads of a front.
#[test]
fn a_front_waits_for_no_disk_where_it_lacks_memory() {
    if !can_mount() {
        return;
    }
    if let Err(e) = rustix::process::configure_io_flusher_behavior(false) {
        // No package gives this process CAP_SYS_RESOURCE.
        skip_for_kernel(format_args!("an IO_FLUSHER: {e}"));
        return;
    }
    let (_machine, _back, front) = mounted("flusher", &[]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", front.child.id())).expect("it lives");
    for task in tasks {
        let stat = std::fs::read_to_string(task.expect("a thread").path().join("stat")).expect("text");
        let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6));
        let flags: u64 = flags.and_then(|flags| flags.parse().ok()).expect("a number");
        assert_ne!(flags & 0x8_0000, 0, "{stat}");
    }
    front.stop();
    remove_image("flusher");
}
