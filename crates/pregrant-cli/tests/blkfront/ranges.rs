//! Long ranges of zeroes, on a disk of terabytes: their cost is counted, and no program has to wait
//! for the end of one.
//!
//! ```text
//!   fallocate(2) -- MNT/disk -- blkfront -- rings -- blkback, which counts -- a sparse image
//! ```

use crate::{Machine, can_mount};
use pregrant_test_machine::served::Process;
use pregrant_testkit::skip::skip;
use rustix::fs::FallocateFlags;
use rustix::process::Signal;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

const TIB: u64 = 1 << 40;

/// A sparse image of 3 TiB, which is removed when dropped.
struct Image(PathBuf);

impl Image {
    /// None: files cannot be that long here.
    fn new(name: &str) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("pregrant-r-{}-{name}.img", std::process::id()));
        let image = Self(path);
        let file = File::create(&image.0).expect("it may");
        if let Err(e) = file.set_len(3 * TIB) {
            skip(format_args!("a file of 3 TiB: {e}"));
            return None;
        }
        Some(image)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn backend(machine: &Machine) -> Process {
    let mut back = Process::start(machine.command(&["blkback"]).env("RUST_LOG", "warn"));
    back.line_with("ready");
    back
}

/// The backend's work of a kind since its disk connected: number of requests, and of bytes. It can
/// be read once for each backend, which caches its report for a while.
fn counted(machine: &Machine) -> impl Fn(&str) -> (u64, u64) {
    let mut text = String::new();
    let mut socket = UnixStream::connect(machine.dir.join("blkback-0.status")).expect("it answers");
    socket.read_to_string(&mut text).expect("text");
    let status: serde_json::Value = serde_json::from_str(&text).expect("an object");
    move |kind| {
        let of = &status["devices"][0]["operations"][kind];
        let number = |key: &str| of[key].as_u64().unwrap_or_else(|| panic!("no {kind} {key} in {status}"));
        (number("requests"), number("bytes"))
    }
}

#[test]
fn a_hole_of_terabytes_is_asked_for_in_parts_and_nothing_is_read() {
    if !can_mount() {
        return;
    }
    let Some(image) = Image::new("hole") else { return };
    let machine = Machine::with_disk("hole", &image.0);
    let _back = backend(&machine);
    let front = machine.front(&[]);
    let file = File::options().read(true).write(true).open(machine.disk()).expect("the disk");
    let begin = 12_345_678_000;
    let end = begin + 5 * TIB / 2;
    // Data in it, and at its edges, where half of the data stays.
    let places = [begin, begin + TIB, end - 1_000_000, end].map(|at| at - 5000);
    for at in places {
        file.write_all_at(&[7; 10_000], at).expect("a write");
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, begin, end - begin).expect("a hole");
    let counted = counted(&machine);
    let ((discards, _), (reads, read)) = (counted("discard"), counted("read"));
    assert!((1000..3000).contains(&discards), "{discards} discards");
    // The edges' sectors, and those of the writes above.
    assert!(reads <= 10 && read <= 10 * 512, "{reads} reads of {read} bytes");
    for (at, kept) in places.into_iter().zip([0..5000, 0..0, 0..0, 5000..10_000]) {
        let mut bytes = [1; 10_000];
        file.read_exact_at(&mut bytes, at).expect("a read");
        let expected: Vec<u8> = (0..10_000).map(|k| if kept.contains(&k) { 7 } else { 0 }).collect();
        assert!(bytes[..] == expected, "at {at}");
    }
    assert!(image.0.metadata().expect("the image").blocks() < 1000, "it takes room still");
    // A range that is to be zeroes only, past the end too.
    let zero = FallocateFlags::ZERO_RANGE;
    rustix::fs::fallocate(&file, zero, begin - 4000, 3000).expect("zeroes");
    let mut bytes = [1; 4000];
    file.read_exact_at(&mut bytes, begin - 4000).expect("a read");
    assert!(bytes[..3000] == [0; 3000] && bytes[3000..] == [7; 1000]);
    let beyond = |mode| rustix::fs::fallocate(&file, mode, 3 * TIB - 512, 1024);
    assert_eq!(beyond(zero), Err(rustix::io::Errno::NOSPC));
    assert_eq!(beyond(zero | FallocateFlags::KEEP_SIZE), Ok(()));
    drop(file);
    front.stop();
}

/// The backend is stopped, so nothing is ever answered: without the signal the program would wait
/// forever.
#[test]
fn a_program_dies_of_a_signal_in_the_middle_of_a_hole() {
    if !can_mount() {
        return;
    }
    let Some(image) = Image::new("ranges-killed") else { return };
    let machine = Machine::with_disk("ranges-killed", &image.0);
    let back = backend(&machine);
    let front = machine.front(&[]);
    let file = File::options().read(true).write(true).open(machine.disk()).expect("the disk");
    file.write_all_at(&[7; 4096], 0).expect("a write");
    back.signal(Signal::STOP);
    for signal in [Signal::TERM, Signal::KILL] {
        let mut program = Command::new("fallocate");
        program.args(["--punch-hole", "--length", "2T", "--offset", "4096"]).arg(machine.disk());
        let mut program = Process::start(&mut program);
        // It waits for its system call (x86-64's number), and only the
        // kernel knows that.
        let call = format!("/proc/{}/syscall", program.child.id());
        while !std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with("285 ")) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        program.signal(signal);
        let ended = program.child.wait().expect("it ends");
        assert_eq!(ended.signal(), Some(signal.as_raw()));
    }
    // Requests behind it are served, once a backend serves.
    back.signal(Signal::CONT);
    file.write_all_at(&[8; 4096], TIB).expect("a write");
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, TIB).expect("a read");
    assert_eq!(bytes, [8; 4096]);
    file.read_exact_at(&mut bytes, 0).expect("a read");
    assert_eq!(bytes, [7; 4096]);
    drop(file);
    front.stop();
}
