//! Programs that know nothing of Xen, on a disk whose backend is killed under them.
//!
//! ```text
//!   mke2fs, e2fsck, debugfs, fio, qemu-img -- MNT/disk -- blkfront -- rings -- blkback (killed, and started again) -- image
//! ```

use crate::{Machine, Numbers, Process, can_mount};
use pregrant_testkit::skip::skip;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The disk; a file system is on the first half.
const IMAGE_BYTES: u64 = 48 << 20;
const FS_KIB: u64 = (IMAGE_BYTES >> 10) / 2;

/// Whether a program is installed; if not, prints what is skipped.
pub fn has(program: &str, package: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !is_there {
        skip(format_args!("{program} is missing; as root: apt-get install {package}"));
    }
    is_there
}

/// Files with bytes that seem random, in folders.
fn make_tree(at: &Path) {
    let mut numbers = Numbers(7);
    for folder in 0..5 {
        let dir = at.join(format!("folder{folder}/inner"));
        std::fs::create_dir_all(&dir).expect("it may");
        for file in 0..8 {
            let len = numbers.next(if file == 0 { 900_000 } else { 60_000 });
            let bytes: Vec<u8> = (0..len).map(|_| numbers.next(256) as u8).collect();
            std::fs::write(dir.join(format!("file{file}")), bytes).expect("it may");
        }
    }
}

/// The files below, by name, with their bytes.
fn tree(at: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![at.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(at).expect("it is below").to_path_buf();
                found.push((name, std::fs::read(path).expect("a file")));
            }
        }
    }
    found.sort();
    found
}

/// The backend, and a way to start its successor.
struct Backend<'a> {
    machine: &'a Machine,
    running: Process,
}

impl<'a> Backend<'a> {
    fn start(machine: &'a Machine) -> Self {
        Self { machine, running: Self::another(machine) }
    }

    fn another(machine: &Machine) -> Process {
        let mut back = Process::start(machine.command(&["blkback"]).env("RUST_LOG", "warn"));
        back.line_with("ready");
        back
    }

    fn kill(&mut self) {
        self.running.child.kill().expect("it lives");
        self.running.child.wait().expect("it ends");
    }

    /// The program must succeed, whatever happens to backends meanwhile: it begins without one, and
    /// `kills` die while it runs.
    fn under(&mut self, program: &mut Command, kills: u32) -> String {
        self.kill();
        let program = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = program.spawn().expect("it starts");
        self.running = Self::another(self.machine);
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(20));
            self.kill();
            self.running = Self::another(self.machine);
        }
        let out = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{program:?}: {said}");
        said
    }
}

#[test]
fn programs_do_not_notice_that_their_disks_backend_is_killed() {
    if !can_mount() {
        return;
    }
    let image = std::env::temp_dir().join(format!("pregrant-f-{}.img", std::process::id()));
    File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES)).expect("an image");
    let machine = Machine::with_disk("programs", &image);
    let (from, to) = (machine.dir.join("from"), machine.dir.join("to"));
    let mut back = Backend::start(&machine);
    let front = machine.front(&["--queues", "2", "--ring-pages", "4", "--segments", "256"]);
    let disk = machine.disk();

    if has("mke2fs", "e2fsprogs") && has("debugfs", "e2fsprogs") && has("e2fsck", "e2fsprogs") {
        make_tree(&from);
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-t", "ext4", "-d"]).arg(&from).arg(&disk).arg(format!("{FS_KIB}k"));
        back.under(&mut mke2fs, 2);
        back.under(Command::new("e2fsck").arg("-fn").arg(&disk), 0);
        std::fs::create_dir(&to).expect("it may");
        let rdump = format!("rdump / {}", to.display());
        back.under(Command::new("debugfs").args(["-R", &rdump]).arg(&disk), 1);
        assert!(tree(&from) == tree(&to), "the files are others");
    }
    if has("fio", "fio") {
        let mut fio = Command::new("fio");
        fio.args([
            "--name=half",
            "--rw=randrw",
            "--bsrange=512-128k",
            "--direct=1",
            "--ioengine=libaio",
            "--iodepth=16",
        ]);
        fio.args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--size=12M",
            "--fsync=64",
            "--randseed=7",
        ]);
        fio.arg(format!("--offset={}k", FS_KIB)).arg(format!("--filename={}", disk.display()));
        let said = back.under(&mut fio, 2);
        assert!(said.contains("err= 0"), "{said}");
    }
    if has("qemu-img", "qemu-utils") {
        // As another program sees the image, below the backend; -U: the backend has it open.
        let mut compare = Command::new("qemu-img");
        let said =
            back.under(compare.args(["compare", "-U", "-f", "raw", "-F", "raw"]).arg(&disk).arg(&image), 1);
        assert!(said.contains("identical"), "{said}");
    }
    let seen = std::fs::read(&disk).expect("the disk");
    front.stop();
    drop(back);
    assert!(seen == std::fs::read(&image).expect("the image"), "the image is another");
    std::fs::remove_file(&image).expect("it is there");
}
