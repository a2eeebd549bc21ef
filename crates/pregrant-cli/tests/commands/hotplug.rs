//! `pregrant hotplug` as systemd starts it: a request on standard input, the answer there, and an
//! exit code for the journal.

use crate::PREGRANT;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Starts it with a request for `script`. Returns its answer, and how it ended.
fn ask(scripts: &Path, script: &str) -> (String, Output) {
    ask_of(Command::new(PREGRANT), scripts, script)
}

fn ask_of(mut program: Command, scripts: &Path, script: &str) -> (String, Output) {
    let (asker, served) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // The form is written out here: an old backend may ask a new service.
    let request = format!(
        "pregrant hotplug 1\nwhat=online\nscript={script}\nvif=vif31.7\ndir=/local/domain/0/backend/vif/31/7\n"
    );
    send(&asker, request.as_bytes(), SendFlags::NOSIGNAL).unwrap();
    program.args(["hotplug", "--scripts"]).arg(scripts).stdin(Stdio::from(served));
    let out = program.output().unwrap();
    drop(program); // its end of the socket
    let mut answer = [0; 512];
    let (n, _) = recv(&asker, &mut answer, RecvFlags::empty()).unwrap();
    (String::from_utf8(answer[..n].to_vec()).unwrap(), out)
}

#[test]
fn one_request_is_one_process() {
    let dir = std::env::temp_dir().join(format!("pregrant-hotplug-cli-{}", std::process::id()));
    let scripts = dir.join("scripts");
    std::fs::create_dir_all(&scripts).unwrap();
    let script = scripts.join("vif-test");
    std::fs::write(&script, "#!/bin/sh\necho \"$1 $vif $XENBUS_PATH\" > ${0%/*}/../ran\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (answer, out) = ask(&scripts, &script.display().to_string());
    assert_eq!((answer.as_str(), out.status.code()), ("done", Some(0)), "{out:?}");
    let reported = std::fs::read_to_string(dir.join("ran")).unwrap();
    assert_eq!(reported, "online vif31.7 /local/domain/0/backend/vif/31/7\n");

    // A parent that ignores SIGCHLD has the kernel reap children: their exit codes would be lost.
    let mut ignoring = Command::new("env");
    ignoring.args(["--ignore-signal=CHLD", PREGRANT]);
    let (answer, out) = ask_of(ignoring, &scripts, &script.display().to_string());
    assert_eq!((answer.as_str(), out.status.code()), ("done", Some(0)), "{out:?}");

    let (answer, out) = ask(&scripts, "/bin/sh");
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(answer.starts_with("failed: refused: /bin/sh is not in"), "{answer}");
    assert!(out.status.code() == Some(1) && error.contains("refused: /bin/sh"), "{out:?}");

    // By hand it has no one to serve.
    let mut by_hand = Command::new(PREGRANT);
    let out = by_hand.arg("hotplug").stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && error.contains("pregrant-hotplug.socket"), "{error}");
    let _ = std::fs::remove_dir_all(&dir);
}

/// The machine's xenstore would name the script that this process runs, or the image that it opens.
#[test]
fn a_machine_that_others_may_change_has_nothing_run_or_opened() {
    let dir = std::env::temp_dir().join(format!("pregrant-not-ours-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let shown = dir.display().to_string();
    let refused = |args: &[&str], why: &str| {
        let out = crate::pregrant(args);
        let error = crate::text(&out.stderr);
        assert!(out.status.code() == Some(1) && error.contains(why) && error.contains(&shown), "{error}");
    };
    refused(&["back", "--loopback", &shown, "--port", "tap"], "chmod go-w");
    refused(&["blkback", "--loopback", &shown], "chmod go-w");
    refused(&["loopback", "serve", "--dir", &shown], "chmod go-w");
    // The switch runs nothing.
    refused(&["back", "--loopback", &shown], "no machine runs here");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let served = [&["back", "--loopback", &*shown, "--port", "tap"][..], &["blkback", "--loopback", &shown]];
    served.iter().for_each(|args| refused(args, "no machine runs here"));
    std::fs::remove_dir(&dir).unwrap();
    served.iter().for_each(|args| refused(args, "no such directory"));
}
