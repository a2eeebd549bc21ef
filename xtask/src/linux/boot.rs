//! Runs the self-tests in a kernel of Debian's, in QEMU without Xen. Checks the lines that they
//! must print, and that the kernel reports no failure.

use super::kbuild::{self, Headers};
use super::rules;
use crate::console::Console;
use crate::rig::{self, Plain};
use crate::tool;
use crate::workspace::{Workspace, show, write};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Timeout of a boot under emulation, with all frames, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);
/// The kernel's taint for a module that is not in its tree (O) and not signed by its maker (E):
/// 4096 and 8192.
const TAINT: &str = "TAINT 12288";
/// Programs that the host runs: program, package.
pub(super) const TOOLS: [(&str, &str); 3] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("cpio", "cpio"), ("dpkg", "dpkg")];
/// Words of a log that show that a kernel has failed.
const BAD: [&str; 7] =
    ["WARNING:", "BUG:", "Oops", "Call Trace", "unable to handle", "Kernel panic - ", "stack guard"];

/// Script of the first process. Without Xen the drivers must refuse to load, and so must the front
/// with invalid parameters. The back's, and its self-test, are built for 6.1 and newer.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
insmod /pregrant_selftest.ko frames=$(sed 's/.*frames=//' /proc/cmdline)
echo SELFTEST $?
rmmod pregrant_selftest || echo FAIL: the self-test module stays
[ -e /pregrant.ko ] || echo FAIL: no module
insmod /pregrant.ko && echo FAIL: a front without Xen
insmod /pregrant.ko data_len=1000 && echo FAIL: a front with any buffers
case $(uname -r) in
5.*) ;;
*)
	insmod /pregrant_back_selftest.ko guest_pages=256
	echo SELFTEST OF THE BACK $?
	rmmod pregrant_back_selftest || echo FAIL: the self-test module of the back stays
	insmod /pregrant_back.ko 2>&1 | grep -q 'No such device' || echo FAIL: no module of a back, or one without Xen
	;;
esac
echo TAINT $(cat /proc/sys/kernel/tainted)
poweroff -f
";

/// Makes the files that [`play`] boots: the kernel of these headers, and a file system with the
/// modules.
pub(super) fn prepare(
    w: &Workspace,
    headers: &Headers,
    release: Option<&str>,
    modules: &[PathBuf],
) -> Result<Plain, String> {
    for (program, package) in TOOLS {
        tool::debian(w, program, package)?;
    }
    let init = w.target().join("linux/init");
    write(&init, INIT)?;
    let runs = std::fs::set_permissions(&init, Permissions::from_mode(0o755));
    runs.map_err(|e| format!("{}: {e}", init.display()))?;
    let files = [&[init], modules].concat();
    let plain = rig::plain(w, release, &files)?;
    if plain.version != headers.version {
        let remedy = match &headers.root {
            Some(root) => format!("remove {}", root.display()),
            None => "apt-get update, and install linux-headers-amd64".into(),
        };
        return Err(format!(
            "the headers are those of {}, and Debian's kernel is {}: {remedy}",
            headers.version, plain.version
        ));
    }
    Ok(plain)
}

/// Boots the machine, and moves this many frames in each direction by each path.
pub(super) fn play(w: &Workspace, plain: &Plain, frames: u64) -> Result<(), String> {
    let mut qemu = w.program("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-cpu", "qemu64,+rdrand", "-m", "512", "-nodefaults", "-display", "none"]);
    qemu.args(["-no-reboot", "-serial", "stdio"]).arg("-kernel").arg(&plain.kernel);
    qemu.arg("-initrd").arg(&plain.initrd).arg("-append");
    qemu.arg(format!("console=ttyS0 loglevel=7 panic=-1 nokaslr frames={frames}"));
    println!("$ {}", show(&qemu));
    let start = Instant::now();
    let console = Console::start(&mut qemu)?;
    let mut log = Vec::new();
    while let Ok(line) = console.line(PATIENCE.saturating_sub(start.elapsed())) {
        if line.contains("pregrant") {
            println!("linux: {}: {line}", plain.version);
        }
        log.push(line);
    }
    drop(console);
    let rules = if kbuild::has_back(&plain.version) { rules::names(w)? } else { Vec::new() };
    verdict(&log, &rules).map_err(|why| {
        println!("{}", shown(&plain.version, &log));
        format!("{}: {why}", plain.version)
    })?;
    println!("linux: the self-test passed in {} s, on {}", start.elapsed().as_secs(), plain.version);
    Ok(())
}

/// The lines of a log that say why a kernel of this version failed. Another kernel may be running
/// meanwhile, so each line names the version, and all are printed at once.
fn shown(version: &str, log: &[String]) -> String {
    // A trace begins a line or two above the word, and the end may be far below.
    let bad = log.iter().position(|line| is_bad(line));
    let trace = bad.into_iter().flat_map(|k| log.iter().skip(k.saturating_sub(3)).take(30));
    let gap = bad.map(|_| "...");
    let end = log.iter().skip(log.len().saturating_sub(60));
    let lines = trace.map(String::as_str).chain(gap).chain(end.map(String::as_str));
    lines.map(|line| format!("       {version} | {line}")).collect::<Vec<_>>().join("\n")
}

fn is_bad(line: &str) -> bool {
    BAD.iter().any(|word| line.contains(word)) || line.starts_with("FAIL")
}

/// `rules`: those of the back's self-test; none where there is no back.
fn verdict(log: &[String], rules: &[String]) -> Result<(), String> {
    if let Some(line) = log.iter().find(|line| is_bad(line)) {
        return Err(format!("the kernel says: {line}"));
    }
    for wanted in
        ["SELFTEST 0", "selftest passed, 0 atomic allocations", "data_len is no power of two", TAINT]
    {
        if !log.iter().any(|line| line.contains(wanted)) {
            return Err(format!("the machine did not say {wanted:?}"));
        }
    }
    if rules.is_empty() { Ok(()) } else { rules::verdict(log, rules) }
}

#[cfg(test)]
mod tests {
    use super::{shown, verdict};

    #[test]
    fn a_kernel_that_warns_fails_whatever_the_test_says() {
        let good = [
            "SELFTEST 0",
            "TAINT 12288",
            "[ 1.0] pregrant: selftest passed, 0 atomic allocations",
            "[ 2.0] pregrant: data_len is no power of two",
        ];
        let log = |lines: &[&str]| lines.iter().map(|line| line.to_string()).collect::<Vec<_>>();
        assert_eq!(verdict(&log(&good), &[]), Ok(()));
        assert!(verdict(&log(&good[..2]), &[]).is_err());
        assert!(verdict(&log(&[&good[..], &["[ 2.0] WARNING: CPU: 0 PID: 1"]].concat()), &[]).is_err());
        assert!(verdict(&log(&["SELFTEST 0", "TAINT 12800", good[2], good[3]]), &[]).is_err());
    }

    #[test]
    fn the_log_of_a_kernel_that_fails_names_it_in_each_line() {
        let log: Vec<String> = (0..100).map(|k| format!("line {k}")).collect();
        let lines = |log: &[String]| shown("6.1", log).lines().map(str::to_string).collect::<Vec<_>>();
        assert_eq!(lines(&log).len(), 60);
        let oops = [&log[..10], &["Oops".to_string()], &log[10..]].concat();
        let all = lines(&oops);
        assert_eq!((all.len(), &*all[0], &*all[30]), (91, "       6.1 | line 7", "       6.1 | ..."));
        assert!(all.iter().all(|line| line.starts_with("       6.1 | ")), "{all:?}");
    }
}
