//! A disk in memory, whose process ends under a running guest: the guest is refused another disk,
//! and no program reads zeroes.
//!
//! ```text
//!   ext4 -- loop device -- MNT/disk -- blkfront -- rings -- blkback, killed, ended, replaced -- ram:32M
//! ```

use crate::{Machine, can_mount, until_text};
use pregrant_test_machine::served::Process;
use pregrant_testkit::skip::skip;
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

fn runs(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A file system on the disk, through a loop device, with a file in it; unmounted with the test.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    /// None: a program or device that it needs is missing here.
    fn new(disk: &Path, at: &'a Path) -> Option<Self> {
        let (disk, shown) = (disk.display().to_string(), at.display().to_string());
        std::fs::create_dir(at).expect("it may");
        if !runs("mke2fs", &["-q", "-F", "-t", "ext4", &disk])
            || !runs("mount", &["-o", "loop", &disk, &shown])
        {
            skip("a file system on a loop device takes e2fsprogs and /dev/loop-control");
            return None;
        }
        let mounted = Self(at);
        std::fs::write(at.join("file"), vec![7; 1 << 20]).expect("a file");
        assert!(runs("sync", &["-f", &shown]));
        Some(mounted)
    }

    fn reads(&self) -> bool {
        let file = format!("if={}", self.0.join("file").display());
        runs("dd", &[&file, "of=/dev/null", "iflag=direct", "bs=1M"])
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        runs("umount", &["-l", &self.0.display().to_string()]);
    }
}

fn backend(machine: &Machine, more: &[&str]) -> Process {
    let args = [&["blkback"], more].concat();
    let mut back = Process::start(machine.command(&args).env("RUST_LOG", "error"));
    back.line_with("ready");
    back
}

#[test]
fn a_disk_in_memory_that_is_lost_is_refused_and_not_read_as_zeroes() {
    if !can_mount() {
        return;
    }
    for (name, signal, more) in [
        ("killed", Signal::KILL, &[][..]),
        ("ended", Signal::TERM, &[]),
        ("closed", Signal::TERM, &["--close"]),
    ] {
        let machine = Machine::serving(&format!("ram-{name}"), &["--disk", "5=ram:32M"]);
        let mut back = backend(&machine, more);
        let front = machine.front(&["--timeout", "3"]);
        let at = machine.dir.join("fs");
        // Its errors take their time: once is enough.
        let mounted = if signal == Signal::KILL { Mounted::new(&machine.disk(), &at) } else { None };
        assert!(mounted.as_ref().is_none_or(Mounted::reads));
        let disk = File::options().read(true).write(true).open(machine.disk()).expect("the disk");
        disk.write_all_at(&[7; 4096], 20 << 20).expect("a write");
        back.signal(signal);
        back.child.wait().expect("it ends");
        let doctor = || {
            let out = machine.command(&["doctor"]).output().expect("it starts");
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        // Neither of the next one, nor of one behind that.
        for _ in 0..2 {
            let mut back = backend(&machine, &[]);
            until_text(doctor, "is not the image that its guest was connected to");
            let read = disk.read_exact_at(&mut [0; 4096], 20 << 20).map_err(|e| e.raw_os_error());
            assert_eq!(read, Err(Some(5)), "EIO");
            assert!(mounted.as_ref().is_none_or(|mounted| !mounted.reads()));
            back.child.kill().expect("it lives");
            back.child.wait().expect("it ends");
        }
        drop((mounted, disk));
        front.signal(Signal::TERM);
    }
}
