//! `pregrant blkfront` as a process: a disk mounted through FUSE, and programs on it that know
//! nothing of Xen.
//!
//! ```text
//!   test: files, programs -- MNT/disk -- blkfront -- rings -- a back in the test (back.rs), or `pregrant blkback`
//! ```
//! It takes root and /dev/fuse.

mod attach;
mod back;
mod programs;
mod ram;
mod ranges;
mod waits;

use back::{Back, ID, Order, make_vbd, store};
use pregrant::DomId;
use pregrant::blk::disk::{Discard, DiskFigures};
use pregrant::xenbus::toolstack;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_loopback::Loopback;
use pregrant_test_machine::served::{Process, Served};
use pregrant_testkit::model_disk::ModelDisk;
use pregrant_testkit::skip::skip;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Whether disks can be mounted here; if not, prints why.
fn can_mount() -> bool {
    if !rustix::process::geteuid().is_root() {
        skip("a mount takes root");
        return false;
    }
    if let Err(e) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        skip(format_args!("/dev/fuse: {e}"));
        return false;
    }
    true
}

/// `pregrant-lab loopback serve` with guest 5, which has a disk.
struct Machine {
    served: Served,
    /// Keeps the guest, whichever of its processes ends.
    _guest: Loopback,
}

impl Deref for Machine {
    type Target = Served;
    fn deref(&self) -> &Served {
        &self.served
    }
}

impl Machine {
    fn start(name: &str) -> Self {
        Self::serving(name, &[])
    }

    /// A machine whose toolstack has created a disk for the guest.
    fn with_disk(name: &str, image: &Path) -> Self {
        Self::serving(name, &["--disk", &format!("5={}", image.display())])
    }

    fn serving(name: &str, more: &[&str]) -> Self {
        let served = Served::start(name, &[&["--guest", "5"], more].concat());
        std::fs::create_dir(served.dir.join("mnt")).expect("it may");
        let guest = Loopback::attach(&served.dir.join("broker.sock"), DomId(5)).expect("the guest is there");
        Self { served, _guest: guest }
    }

    /// The directory where the disk is mounted.
    fn mount(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    fn disk(&self) -> PathBuf {
        self.mount().join("disk")
    }

    fn blkfront(&self, more: &[&str]) -> Command {
        let mut command = self.command(&["blkfront", "--domain", "5"]);
        command.arg("--mount").arg(self.mount()).args(more);
        command
    }

    fn front(&self, more: &[&str]) -> Process {
        let mut front = Process::start(&mut self.blkfront(more));
        front.line_with(&self.disk().display().to_string());
        front
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // where a test failed
        let _ = rustix::mount::unmount(self.mount(), rustix::mount::UnmountFlags::DETACH);
        let _ = std::fs::remove_dir(self.mount());
    }
}

const SECTORS: u64 = 8192;

fn figures() -> DiskFigures {
    let discard = Some(Discard { granularity: 4096, alignment: 0, secure: false, zeroes: true });
    DiskFigures { discard, ..DiskFigures::of(SECTORS) }
}

/// Pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Writes, reads and punches holes at any offsets, and compares with a model. Nothing may fail.
fn exercise(file: &File, model: &mut [u8], numbers: &mut Numbers, steps: u64) {
    for _ in 0..steps {
        let at = numbers.next(model.len() as u64);
        let at = if numbers.next(3) == 0 { at } else { at / 512 * 512 };
        let most = if numbers.next(20) == 0 { 1 << 20 } else { 9000 };
        let len = (numbers.next(most) + 1).min(model.len() as u64 - at) as usize;
        let part = &mut model[at as usize..at as usize + len];
        match numbers.next(10) {
            0..5 => {
                let value = numbers.next(251);
                part.iter_mut().zip(0u64..).for_each(|(byte, k)| *byte = (value + k / 7) as u8);
                file.write_all_at(part, at).expect("a write");
            }
            5 => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, punch, at, len as u64).expect("a hole");
                part.fill(0);
            }
            6 => file.sync_data().expect("a flush"),
            _ => {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, at).expect("a read");
                assert!(bytes == part, "{len} bytes at {at} are others");
            }
        }
    }
}

#[test]
fn a_disk_outlives_backs_that_die_or_close_and_is_what_was_written() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("outlives");
    make_vbd(&machine.dir, "w");
    let disk = ModelDisk::new(figures());
    let back = Back::start(&machine.dir, disk.clone());
    let front = machine.front(&["--queues", "2", "--device", "xvda"]);
    let path = machine.disk();
    let open = || File::options().read(true).write(true).open(&path).expect("the disk");
    let mut model = disk.inside().cache.clone();
    let half = model.len() / 2;
    // Two programs, each with its half; backs come and go meanwhile.
    std::thread::scope(|scope| {
        let (left, right) = model.split_at_mut(half);
        let first = scope.spawn(|| exercise(&open(), left, &mut Numbers(1), 400));
        let second = scope.spawn(|| {
            let file = open();
            let at = half as u64;
            for k in 0..200u8 {
                let bytes = [k; 4096];
                let place = at + u64::from(k) * 8192 + 100;
                file.write_all_at(&bytes, place).expect("a write");
                right[place as usize - half..][..4096].fill(k);
            }
            file.sync_all().expect("a flush");
        });
        let mut orders = 0u32;
        while !(first.is_finished() && second.is_finished()) {
            back.order(if orders % 3 == 2 { Order::Reopen } else { Order::Die });
            orders += 1;
            std::thread::sleep(Duration::from_millis(if orders < 40 { 10 } else { 200 }));
        }
        assert!(orders > 3, "it was over before anything could happen");
    });
    assert!(disk.inside().cache == model, "the disk is another");

    // A disk that grows.
    let file = open();
    assert_eq!(file.metadata().expect("figures").size(), SECTORS * 512);
    {
        let mut inside = disk.inside();
        inside.cache.resize((SECTORS as usize + 8) * 512, 7);
        inside.platter.resize((SECTORS as usize + 8) * 512, 7);
        inside.figures.sectors += 8;
    }
    assert_eq!(file.write_at(&[1], SECTORS * 512).map_err(|e| e.raw_os_error()), Err(Some(28)), "ENOSPC");
    back.order(Order::Resize(SECTORS + 8));
    while file.metadata().expect("figures").size() == SECTORS * 512 {
        std::thread::sleep(Duration::from_millis(1));
    }
    file.write_all_at(&[9; 100], SECTORS * 512 + 50).expect("a write where it grew");
    let mut end = [0; 200];
    assert_eq!(file.read_at(&mut end, SECTORS * 512 + 8 * 512 - 100).expect("a read"), 100);
    assert_eq!((end[0], end[99], end[100]), (7, 7, 0));

    // Bytes that O_DSYNC wrote are not in a cache.
    let durable = File::options().write(true).custom_flags(0x1000).open(machine.disk()).expect("the disk");
    durable.write_all_at(b"durable", 4096).expect("a write");
    assert_eq!(&disk.inside().platter[4096..4103], b"durable");

    // A signal while a program has it open: the program goes on.
    drop(durable);
    front.signal(rustix::process::Signal::TERM);
    while machine.disk().exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    file.write_all_at(b"the last", 512).expect("it goes on");
    drop(file);
    front.ends_well();
    let inside = disk.inside();
    assert_eq!(&inside.platter[512..520], b"the last");
    assert!(inside.platter == inside.cache, "it flushed at the end");
}

#[test]
fn a_disk_that_may_not_be_written_to_is_read() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("readonly");
    make_vbd(&machine.dir, "r");
    let disk = ModelDisk::new(figures());
    let _back = Back::start(&machine.dir, disk.clone());
    // The only disk needs not be named; and the other layout, and a grant for each request.
    let front = machine.front(&["--layout", "x86_32", "--no-persistent"]);
    let refused = File::options().write(true).open(machine.disk()).map_err(|e| e.raw_os_error());
    assert_eq!(refused.err(), Some(Some(30)), "EROFS");
    let bytes = std::fs::read(machine.disk()).expect("the disk");
    assert!(bytes == disk.inside().cache);
    // The file as any program finds it.
    let names = std::fs::read_dir(machine.mount()).expect("a directory");
    let found: Vec<_> = names
        .map(|entry| entry.expect("an entry"))
        .map(|entry| (entry.file_name(), entry.file_type().expect("a kind").is_file()))
        .collect();
    assert_eq!(found, [("disk".into(), true)]);
    let file = std::fs::metadata(machine.disk()).expect("figures");
    assert_eq!((file.len(), file.mode(), file.nlink()), (SECTORS * 512, 0o100_400, 1));
    let blocks = rustix::fs::statvfs(machine.mount()).expect("figures");
    assert_eq!((blocks.f_blocks, blocks.f_frsize, blocks.f_bavail), (SECTORS / 8, 4096, 0));
    assert!(File::create(machine.mount().join("other")).is_err());
    front.stop();
}

#[test]
fn xsa_43_a_back_that_resizes_without_end_is_a_few_lines() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("resizes");
    make_vbd(&machine.dir, "w");
    let back = Back::start(&machine.dir, ModelDisk::new(figures()));
    let log = machine.dir.join("front.log");
    let mut command = machine.blkfront(&[]);
    command.env("RUST_LOG", "info").stderr(File::create(&log).expect("it may"));
    let mut front = Process::start(&mut command);
    front.line_with(&machine.disk().display().to_string());
    let length = || std::fs::metadata(machine.disk()).expect("the disk").len();
    for round in 1..=60 {
        let sectors = SECTORS - round;
        back.order(Order::Resize(sectors));
        // Each is seen before the next is sent.
        while length() != sectors * 512 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    front.stop();
    let log = std::fs::read_to_string(&log).expect("text");
    let lines = log.lines().filter(|line| line.contains("bytes now")).count();
    assert!((1..20).contains(&lines), "{log}");
}

/// `xl block-detach` of a disk whose file a program has open: the disk stays until the last program
/// closes the file, and is then flushed and closed.
#[test]
fn a_toolstack_that_wants_a_disk_waits_for_its_last_program() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("wanted");
    make_vbd(&machine.dir, "w");
    let disk = ModelDisk::new(figures());
    let _back = Back::start(&machine.dir, disk.clone());
    let mut front = machine.front(&[]);
    let mut xs = store(&machine.dir);
    let mut until = |wanted: [&str; 2]| {
        let state =
            |dir: String, xs: &mut Client<UnixTransport>| xs.read(&format!("{dir}/state")).expect("a state");
        while [ID.front_dir(), ID.back_dir()].map(|dir| state(dir, &mut xs)) != wanted.map(|s| s.as_bytes()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let file = File::options().read(true).write(true).open(machine.disk()).expect("it opens");
    let second = File::open(machine.disk()).expect("so does another");
    toolstack::request_removal(&mut store(&machine.dir), &ID).expect("the toolstack may");
    until(["5", "5"]);
    file.write_all_at(&[7; 8192], 4096).expect("it is served");
    let mut read = [0; 8192];
    second.read_exact_at(&mut read, 4096).expect("it is served");
    assert_eq!(read, [7; 8192]);
    drop(second);
    file.write_all_at(&[8; 512], 0).expect("one has it open still");
    until(["5", "5"]);
    drop(file);
    until(["6", "6"]);
    assert_eq!(disk.inside().platter[..512], [8; 512], "it was not flushed");
    assert_eq!(disk.inside().platter[4096..12288], [7; 8192]);
    toolstack::remove(&mut store(&machine.dir), &ID).expect("the toolstack may");
    assert!(!front.child.wait().expect("it ends").success(), "its disk is gone");
}

/// `loopback detach` of one disk, like xl's block-detach: a guest that uses the disk keeps it, and
/// the command reports that; the disk goes when the use ends, or by force.
#[test]
fn one_disk_is_detached_when_its_guest_lets_go_of_it() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("detached");
    make_vbd(&machine.dir, "w");
    let disk = ModelDisk::new(figures());
    let _back = Back::start(&machine.dir, disk.clone());
    let mut front = machine.front(&[]);
    let detach = || {
        let out =
            machine.command(&["loopback", "detach", "5", "--disk", "xvda"]).output().expect("it starts");
        (out.status.code(), [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()))
    };
    let file = File::options().read(true).write(true).open(machine.disk()).expect("it opens");
    let (code, [_, err]) = detach();
    assert!(code == Some(1) && err.contains("vbd 51712 of domain 5") && err.contains("--force"), "{err}");
    file.write_all_at(&[7; 512], 0).expect("it is served");
    drop(file);
    let (code, [out, err]) = detach();
    assert!(code == Some(0) && out.contains("vbd 51712 of domain 5"), "{out}{err}");
    assert_eq!(disk.inside().platter[..512], [7; 512], "it was not flushed");
    let (code, [_, err]) = detach();
    assert!(code == Some(1) && err.contains("nothing is detached"), "{err}");
    assert!(!front.child.wait().expect("it ends").success(), "its disk is gone");
}

#[test]
fn what_is_in_the_way_is_said() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("inway");
    let failed = |command: &mut Command, expected: &str| {
        let out = command.output().expect("it starts");
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && err.contains(expected), "{err}");
    };
    failed(&mut machine.blkfront(&[]), "has no disk");
    std::fs::remove_dir(machine.mount()).expect("it is there");
    failed(&mut machine.blkfront(&[]), "mkdir -p");
    std::fs::create_dir(machine.mount()).expect("it may");
    failed(machine.blkfront(&[]).args(["--device", "sda"]), "xvda");
    // A front that was killed leaves its mount: the next one puts it away.
    make_vbd(&machine.dir, "w");
    let _back = Back::start(&machine.dir, ModelDisk::new(figures()));
    let mut front = machine.front(&[]);
    failed(machine.blkfront(&["--device", "xvda"]).env("RUST_LOG", "error"), "has a front already");
    front.child.kill().expect("it lives");
    front.child.wait().expect("it ends");
    assert_eq!(
        std::fs::metadata(machine.mount()).map_err(|e| e.raw_os_error()).err(),
        Some(Some(107)),
        "ENOTCONN"
    );
    failed(machine.blkfront(&["--device", "xvdb"]).env("RUST_LOG", "error"), "51728");
    assert!(machine.mount().is_dir(), "put away");
    // And what it left connected is brought down first.
    machine.front(&[]).stop();
}

/// A front that waits for its disk, and what it logs.
fn waiting_front(machine: &Machine) -> (Process, PathBuf) {
    let log = machine.dir.join("front.log");
    let mut command = machine.blkfront(&["--wait"]);
    command.env("RUST_LOG", "info").stderr(File::create(&log).expect("it may"));
    (Process::start(&mut command), log)
}

fn until_text(of: impl Fn() -> String, part: &str) {
    while !of().contains(part) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_guest_learns_why_it_has_no_disk() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("noimage");
    make_vbd(&machine.dir, "w");
    store(&machine.dir).write(&format!("{}/params", ID.back_dir()), "/nonexistent/image").expect("it may");
    let mut back = Process::start(machine.command(&["blkback"]).env("RUST_LOG", "error"));
    back.line_with("ready");
    let (front, log) = waiting_front(&machine);
    let text = || std::fs::read_to_string(&log).expect("text");
    until_text(text, "the back has closed it: ");
    let why = "/nonexistent/image: there is no such file, so the disk has no image";
    assert!(text().contains(why), "{}", text());
    let doctor = machine.command(&["doctor"]).output().expect("it starts");
    let found = String::from_utf8_lossy(&doctor.stdout);
    assert!(!doctor.status.success(), "{found}");
    for part in ["a backend serves 1 vbd(s)", "ok     vbd 5.51712 (xvda)", why] {
        assert!(found.contains(part), "no {part:?} in {found}");
    }
    front.stop();
}

#[test]
fn an_empty_drive_is_served_once_it_has_an_image() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("drive");
    make_vbd(&machine.dir, "r");
    let (mut xs, dir) = (store(&machine.dir), ID.back_dir());
    xs.write(&format!("{dir}/device-type"), "cdrom").expect("it may");
    xs.write(&format!("{dir}/params"), "").expect("it may");
    let mut back = Process::start(machine.command(&["blkback"]).env("RUST_LOG", "error"));
    back.line_with("ready");
    let (mut front, _) = waiting_front(&machine);
    let doctor = || {
        let out = machine.command(&["doctor"]).output().expect("it starts");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    until_text(doctor, "note   vbd 5.51712 (xvda): an empty drive");
    xs.write(&format!("{dir}/params"), "ram:64K").expect("it may");
    front.line_with(&machine.disk().display().to_string());
    until_text(doctor, "ok     vbd 5.51712 (xvda): persistent, ram:65536, 64 KiB, read-only");
    front.stop();
}
