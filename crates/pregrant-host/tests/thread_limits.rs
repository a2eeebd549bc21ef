//! A process that may start no thread more, nor the kernel one for it, as in a cgroup whose
//! `pids.max` is in use: disks go on.
//!
//! The test starts itself as another user, for whom `RLIMIT_NPROC` counts (io_uring's workers count
//! there, too), with the image as its standard input.

use pregrant::blk::disk::{Buffer, Disk, Image, Io, IoMemory, IoOp, OpenError, Opening};
use pregrant_host::disks::{DiskConfig, FileImage, IoWay};
use pregrant_test_machine::log_lines;
use pregrant_testkit::skip::skip;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The I/O method of the child's disk, and whether threads are limited before it is connected.
const CHILD: &str = "PREGRANT_TEST_THREADS";
/// Another user, without any right.
const USER: u32 = 65534;

fn ask(disk: &mut dyn Disk, op: IoOp, sector: u64, byte: u8) -> Vec<u8> {
    let memory = match op {
        IoOp::Flush | IoOp::Discard { .. } => IoMemory::default(),
        IoOp::Read | IoOp::Write => {
            let mut buffer = Buffer::new(4096);
            buffer.set_len(4096);
            buffer.bytes_mut().fill(byte);
            IoMemory::Private(buffer)
        }
    };
    let sectors = if op == IoOp::Flush { 0 } else { 8 };
    disk.submit(Io { token: 1, op, sector, sectors, memory });
    disk.start();
    let mut done = Vec::new();
    while done.is_empty() {
        disk.wait();
        disk.complete(&mut done);
    }
    assert_eq!(done[0].outcome, Ok(()), "{op:?}");
    let mut bytes = vec![0; done[0].io.memory.len()];
    done[0].io.memory.read_into(&mut bytes);
    bytes
}

fn no_more_threads() {
    // There are more already.
    setrlimit(Resource::Nproc, Rlimit { current: Some(1), maximum: Some(1) }).unwrap();
    std::thread::Builder::new().spawn(|| ()).expect_err("the limit does not count");
}

fn child(io: IoWay, early: bool) {
    log_lines::capture();
    // Through the page cache a write may sleep, and io_uring has a thread of the kernel do it.
    let mut image = FileImage::new("/proc/self/fd/0", DiskConfig { io, direct: false });
    let how = Opening { writable: true, ..Opening::default() };
    while let Err(e) = image.open(&how) {
        assert!(matches!(e, OpenError::Busy(_)), "{e}");
        std::thread::yield_now();
    }
    if early {
        no_more_threads();
    }
    let mut disk = image.queue().unwrap();
    if !early {
        no_more_threads();
    }
    for k in 0..4 {
        ask(&mut *disk, IoOp::Write, 8 * u64::from(k), k + 1);
        ask(&mut *disk, IoOp::Flush, 0, 0);
        assert_eq!(ask(&mut *disk, IoOp::Read, 8 * u64::from(k), 0), [k + 1; 4096]);
    }
    ask(&mut *disk, IoOp::Discard { secure: false }, 8, 0);
    assert_eq!(ask(&mut *disk, IoOp::Read, 8, 7), [0; 4096]);
    drop(disk);
    image.close();
    let lines = log_lines::take();
    let few = lines.iter().filter(|line| line.contains("could be started")).count();
    let left = lines.iter().filter(|line| line.contains("io_uring did not carry out")).count();
    // Each is said once, with what it is for.
    match (io, early) {
        (IoWay::Threads, false) => assert_eq!((few, left), (0, 0), "{lines:?}"),
        (IoWay::Threads, true) => assert_eq!((few, left), (1, 0), "{lines:?}"),
        (IoWay::Uring, _) => assert!(few <= 1 && left <= 1, "{lines:?}"),
    }
    println!("said {few} {left}");
}

#[test]
fn a_disk_goes_on_where_no_thread_more_is_to_be_had() {
    if let Ok(how) = std::env::var(CHILD) {
        let (io, early) = how.split_once(' ').unwrap();
        return child(io.parse().unwrap(), early == "early");
    }
    if !rustix::process::geteuid().is_root() {
        return skip("it takes root to be another user");
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("threads-{}", std::process::id()));
    let test = std::thread::current().name().unwrap().to_string();
    let mut left_uring = 0;
    for (io, early) in [("threads", "late"), ("threads", "early"), ("uring", "late"), ("uring", "early")] {
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.set_permissions(Permissions::from_mode(0o666)).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &test, "--nocapture"]).env(CHILD, format!("{io} {early}"));
        command.stdin(File::options().read(true).write(true).open(&path).unwrap());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).uid(USER).gid(USER);
        let out = match command.output() {
            // The program itself may be out of that user's reach.
            Err(e) => return skip(format_args!("as user {USER}: {e}")),
            Ok(out) => out,
        };
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{io}, {early}: {said}{}", String::from_utf8_lossy(&out.stderr));
        left_uring += u32::from(said.contains("said 1 1") || said.contains("said 0 1"));
    }
    std::fs::remove_file(&path).unwrap();
    println!("{left_uring} of 2 left io_uring");
}
