//! An error of a disk is reported where it is attached: by the toolstack's script, by `doctor`, by
//! the front that has no disk, and in one line of the backend's log.

use crate::back::{ID, make_vbd, store};
use crate::{Machine, can_mount, until_text};
use pregrant::xenbus::back::HOTPLUG_STATUS;
use pregrant_test_machine::served::{self, Process, Served};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// A disk of the guest with this image, and `pregrant blkback` with its log.
fn attached(machine: &Machine, image: &Path) -> (Process, PathBuf) {
    make_vbd(&machine.dir, "w");
    let params = image.to_str().expect("text");
    store(&machine.dir).write(&format!("{}/params", ID.back_dir()), params).expect("it may");
    backend(machine)
}

fn backend(machine: &Machine) -> (Process, PathBuf) {
    let log = machine.dir.join("back.log");
    let stderr = File::options().append(true).create(true).open(&log).expect("it may");
    let mut back = Process::start(machine.command(&["blkback"]).env("RUST_LOG", "info").stderr(stderr));
    back.line_with("ready");
    (back, log)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("text")
}

fn doctor(machine: &Served, more: &[&str]) -> Output {
    machine.command(&[&["doctor"], more].concat()).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes programs of these names, for the script to find, that run these lines of shell.
fn programs(dir: &Path, each: &[(&str, String)]) -> PathBuf {
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin).expect("it may");
    for (name, body) in each {
        let path = bin.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("it may");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("it may");
    }
    bin
}

/// Runs xl's script as for an attached disk: how it ended, and what it wrote into the store.
fn script(machine: &Machine) -> (Output, String) {
    let written = machine.dir.join("written");
    let bin = programs(
        &machine.dir,
        &[
            (
                "pregrant",
                format!(
                    "exec {} \"$@\" --loopback {}",
                    env!("CARGO_BIN_EXE_pregrant"),
                    machine.dir.display()
                ),
            ),
            ("xenstore-write", format!("printf '%s\\n' \"$@\" >> {}", written.display())),
        ],
    );
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("there is one"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/block-pregrant");
    let mut command = Command::new("sh");
    command.arg(script).arg("add").env("PATH", path).env("XENBUS_PATH", ID.back_dir());
    let out = command.output().expect("there is a shell");
    let keys = std::fs::read_to_string(&written).unwrap_or_default();
    let _ = std::fs::remove_file(&written);
    (out, keys)
}

#[test]
fn xl_s_script_fails_with_the_reason_why_a_disk_is_not_there() {
    let machine = Machine::start("script");
    let image = machine.dir.join("image");
    let (_back, log) = attached(&machine, &image);
    let (out, keys) = script(&machine);
    let why = format!("{}: there is no such file", image.display());
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains(&why), "{}", text(&out.stderr));
    let at = |key: &str| format!("{}/{key}\n", ID.back_dir());
    for part in [&why, &at("hotplug-error"), &(at(HOTPLUG_STATUS) + "error\n")] {
        assert!(keys.contains(part), "no {part:?} in {keys}");
    }
    assert!(!keys.contains("\nconnected"), "{keys}");
    // A qcow2 image served as raw: it is served, and the log says so.
    std::fs::write(&image, [&b"QFI\xfb"[..], &[0; 65532]].concat()).expect("it may");
    until_text(|| read(&log), "looks like a qcow2 image");
    let (out, keys) = script(&machine);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(keys, at(HOTPLUG_STATUS) + "connected\n");
    assert_eq!(read(&log).matches("there is no such file").count(), 1, "{}", read(&log));

    // Somebody has it who does not let go.
    let holder = File::open(&image).expect("it is there");
    flock(&holder, FlockOperation::LockExclusive).expect("it is free");
    let mut xs = store(&machine.dir);
    xs.write(&format!("{}/params", ID.back_dir()), format!("aio:{}", image.display())).expect("it may");
    // Once it has the key.
    let held = format!("process {} has its lock", std::process::id());
    until_text(|| text(&script(&machine).0.stderr), &held);
    // No other disk, and no backend.
    let out = doctor(&machine, &["--vbd", "5.51728"]);
    assert!(!out.status.success() && text(&out.stderr).contains("does not serve vbd 5.51728"), "{out:?}");
    drop(_back);
    let out = doctor(&machine, &["--vbd", "5.51712"]);
    assert!(text(&out.stderr).contains("no pregrant blkback runs"), "{out:?}");
}

#[test]
fn doctor_says_who_has_an_image() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("locked");
    let image = machine.dir.join("image");
    File::create(&image).and_then(|file| file.set_len(1 << 20)).expect("it may");
    let holder = File::open(&image).expect("it is there");
    let lock = |how| flock(&holder, how).expect("it may");
    let held = format!("process {} has its lock", std::process::id());
    let said = || text(&doctor(&machine, &[]).stdout);
    let waits = || said().lines().any(|line| line.starts_with("WRONG  vbd 5.51712") && line.contains(&held));
    lock(FlockOperation::LockExclusive);
    let (back, _) = attached(&machine, &image);
    // Before a front comes, and while one waits.
    until_text(said, &held);
    assert!(waits(), "{}", said());
    let mut command = machine.blkfront(&["--wait"]);
    let mut front = Process::start(&mut command);
    until_text(said, "InitWait), front 3");
    assert!(waits(), "{}", said());
    lock(FlockOperation::Unlock);
    front.line_with(&machine.disk().display().to_string());
    assert!(!said().contains(&held), "{}", said());
    // And when a successor waits for it, whose guest is connected.
    drop(back);
    while flock(&holder, FlockOperation::NonBlockingLockExclusive).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (_back, _) = backend(&machine);
    until_text(said, &held);
    assert!(waits() && !said().contains("(xvda): no backend serves it"), "{}", said());
    lock(FlockOperation::Unlock);
    while waits() {
        std::thread::sleep(Duration::from_millis(10));
    }
    front.stop();
}

#[test]
fn a_front_whose_disk_is_not_there_ends_with_the_reason() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("bound");
    let ends = || {
        let out = machine.blkfront(&["--wait=2"]).env("RUST_LOG", "error").output().expect("it starts");
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{err}");
        assert!(err.contains("no disk in 2 s") && err.contains("With --wait"), "{err}");
        err
    };
    make_vbd(&machine.dir, "w");
    let err = ends();
    assert!(err.contains("no backend serves it"), "{err}");
    let image = machine.dir.join("image");
    let (_back, _) = attached(&machine, &image);
    let err = ends();
    assert!(err.contains("there is no such file"), "{err}");
    File::create(&image).expect("it may");
    // The backend checks again after a while.
    until_text(ends, "it has no sectors");
    let (mut xs, dir) = (store(&machine.dir), ID.back_dir());
    for (key, value) in [("device-type", "cdrom"), ("params", "")] {
        xs.write(&format!("{dir}/{key}"), value).expect("it may");
    }
    let err = ends();
    assert!(err.contains("a drive without a medium"), "{err}");
}

#[test]
fn an_image_that_is_not_there_is_one_line_and_is_served_once_it_is() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("oneline");
    let image = machine.dir.join("image");
    let (_back, log) = attached(&machine, &image);
    let front_log = machine.dir.join("front.log");
    let mut command = machine.blkfront(&["--wait"]);
    command.env("RUST_LOG", "info").stderr(File::create(&front_log).expect("it may"));
    let mut front = Process::start(&mut command);
    until_text(|| read(&front_log), "the back has closed it: ");
    // Its front comes again and again.
    std::thread::sleep(Duration::from_secs(9));
    for (whose, log) in [("back", &log), ("front", &front_log)] {
        let log = read(log);
        let lines: Vec<_> = log.lines().filter(|line| line.contains("there is no such file")).collect();
        assert_eq!(lines.len(), 1, "the {whose}'s log: {log}");
        assert!(!log.contains("too many steps"), "{log}");
    }
    let said = text(&doctor(&machine, &[]).stdout);
    assert!(said.contains("its image is waited for: ") && said.contains("no such file"), "{said}");
    File::create(&image).and_then(|file| file.set_len(1 << 20)).expect("it may");
    front.line_with(&machine.disk().display().to_string());
    front.stop();
}

#[test]
fn an_image_that_shrinks_under_its_guest_is_a_warning() {
    if !can_mount() {
        return;
    }
    let machine = Machine::start("shrinks");
    let image = machine.dir.join("image");
    let file = File::create(&image).expect("it may");
    let becomes = |kib: u64| file.set_len(kib << 10).expect("it may");
    becomes(1024);
    let (_back, log) = attached(&machine, &image);
    let front = machine.front(&[]);
    let line = |part: &str| read(&log).lines().find(|line| line.contains(part)).map(String::from);
    for (kib, says, level) in [
        (2048, "size has changed from 1 MiB to 2 MiB", "INFO"),
        (512, "size has changed from 2 MiB to 512 KiB: what its guest has beyond that is lost", "WARN"),
    ] {
        becomes(kib);
        until_text(|| read(&log), says);
        assert!(line(says).is_some_and(|line| line.contains(level)), "{}", read(&log));
    }
    front.stop();
}

#[test]
fn a_guest_that_is_detached_leaves_no_warning() {
    if !can_mount() {
        return;
    }
    let image = std::env::temp_dir().join(format!("pregrant-d-{}.img", std::process::id()));
    File::create(&image).and_then(|file| file.set_len(1 << 20)).expect("it may");
    let machine = Machine::with_disk("detached", &image);
    let (_back, log) = backend(&machine);
    let front_log = machine.dir.join("front.log");
    let mut command = machine.blkfront(&[]);
    command.env("RUST_LOG", "info").stderr(File::create(&front_log).expect("it may"));
    let mut front = Process::start(&mut command);
    front.line_with(&machine.disk().display().to_string());
    let mut detach = served::command(&["loopback", "detach", "5", "--dir"]);
    let detached = detach.arg(&machine.dir).output();
    assert!(detached.expect("it starts").status.success());
    front.child.wait().expect("it ends");
    for log in [&log, &front_log] {
        assert!(!read(log).contains("WARN"), "{}", read(log));
    }
    std::fs::remove_file(&image).expect("it is there");
}
