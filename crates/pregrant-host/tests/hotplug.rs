//! The hotplug service: what it runs for a backend, and what it refuses to an attacker who controls
//! the backend's process.

use pregrant_host::drivers::net::hotplug::{
    Asked, Capacity, REQUEST_BYTES, Request, Run, Service, ServiceError, What,
};
use pregrant_host::drivers::{HotplugConfig, Plugged};
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv,
    send, socket_with, socketpair,
};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Folders with a script `vif-bridge`, and with interfaces: `vif5.0` is a tap, `eth0` is none.
struct Host {
    dir: PathBuf,
    service: Service,
    _alone: MutexGuard<'static, ()>,
}

/// A script cannot be run while somebody has it open to write; a child of another test has, until
/// it runs its own program.
static ALONE: Mutex<()> = Mutex::new(());

impl Host {
    fn new(test: &str, script: &str) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = std::env::temp_dir().join(format!("pregrant-hotplug-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        for folder in ["scripts/more", "net/vif5.0", "net/eth0"] {
            fs::create_dir_all(dir.join(folder)).unwrap();
        }
        fs::write(dir.join("net/vif5.0/tun_flags"), "0x1002\n").unwrap();
        let service = Service::new(dir.join("scripts"), dir.join("net"));
        let host = Self { service, dir, _alone: alone };
        host.put("scripts/vif-bridge", script, 0o755);
        host
    }

    fn put(&self, file: &str, text: &str, mode: u32) {
        let path = self.dir.join(file);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn request(&self) -> Request {
        Request {
            what: What::Online,
            script: self.path("scripts/vif-bridge"),
            vif: "vif5.0".into(),
            dir: "/local/domain/0/backend/vif/5/0".into(),
        }
    }

    fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(file)).ok()
    }

    /// Sends a message and serves it; what the asker gets.
    fn answer(&self, message: &[u8]) -> String {
        let (asker, served) = pair();
        send(&asker, message, SendFlags::NOSIGNAL).unwrap();
        let result = self.service.serve(&served);
        let mut answer = [0; REQUEST_BYTES];
        let (n, _) = recv(&asker, &mut answer, RecvFlags::DONTWAIT).unwrap();
        let answer = String::from_utf8(answer[..n].to_vec()).unwrap();
        assert_eq!(result.is_ok(), answer == "done", "{result:?} {answer}");
        answer
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// A script that writes what it was given beside the folder of scripts.
const REPORTING_SCRIPT: &str =
    "#!/bin/sh\necho \"$*|$script|$vif|$XENBUS_PATH|$XENBUS_TYPE\" > ${0%/*}/../ran\n";

#[test]
fn a_script_gets_what_the_toolstack_would_give_it() {
    let host = Host::new("runs", REPORTING_SCRIPT);
    for what in [What::Online, What::Offline] {
        let request = Request { what, ..host.request() };
        assert_eq!(host.answer(request.encode().as_bytes()), "done");
        let script = &request.script;
        let reported = format!("{what} type_if=vif|{script}|vif5.0|/local/domain/0/backend/vif/5/0|vif\n");
        assert_eq!(host.read("ran"), Some(reported));
    }
    // The interface is gone already: what is undone is undone all the same.
    let gone = Request { what: What::Offline, vif: "vif6.0".into(), ..host.request() };
    assert_eq!(host.answer(gone.encode().as_bytes()), "done");
    host.put("scripts/fails", "#!/bin/sh\nexit 3\n", 0o755);
    let fails = Request { script: host.path("scripts/fails"), ..host.request() };
    assert_eq!(host.answer(fails.encode().as_bytes()), "failed: ended with exit status: 3");
}

#[test]
fn what_a_backend_in_wrong_hands_asks_for_is_refused() {
    let host = Host::new("refuses", REPORTING_SCRIPT);
    host.put("outside", REPORTING_SCRIPT, 0o755);
    host.put("scripts/more/below", REPORTING_SCRIPT, 0o755);
    host.put("scripts/writable", REPORTING_SCRIPT, 0o777);
    host.put("scripts/by-group", REPORTING_SCRIPT, 0o775);
    host.put("scripts/not-to-be-run", REPORTING_SCRIPT, 0o644);
    symlink(host.dir.join("outside"), host.dir.join("scripts/link")).unwrap();
    for (script, why) in [
        ("outside", "is not in"),
        ("scripts/more/below", "is not in"),
        ("scripts", "is not in"),
        ("scripts/link", "no plain file"),
        ("scripts/more", "no plain file"),
        ("scripts/writable", "may write"),
        ("scripts/by-group", "may write"),
        ("scripts/none", "No such file"),
        ("scripts/not-to-be-run", "cannot be run"),
    ] {
        let request = Request { script: host.path(script), ..host.request() };
        let answer = host.answer(request.encode().as_bytes());
        assert!(answer.starts_with("failed: ") && answer.contains(why), "{script}: {answer}");
    }
    let shell = Request { script: "/bin/sh".into(), ..host.request() };
    assert!(host.answer(shell.encode().as_bytes()).contains("is not in"));
    let card = Request { vif: "eth0".into(), ..host.request() };
    assert!(host.answer(card.encode().as_bytes()).contains("no tap"));
    // Nothing of it is a request.
    let good = host.request().encode();
    let long = format!("{good}{}", "x".repeat(REQUEST_BYTES * 4));
    for message in
        [good.repeat(2), good.replace("online", "remove"), good.replace("/local", "/tool/local"), long]
    {
        assert!(host.answer(message.as_bytes()).starts_with("failed: refused: "), "{message}");
    }
    assert_eq!(host.read("ran"), None, "nothing was run");
}

#[test]
fn an_asker_that_goes_or_talks_on_ends_its_script() {
    for talks_on in [false, true] {
        let script = "#!/bin/sh\nsleep 1000 & echo $! > ${0%/*}/../sleeper\nmv ${0%/*}/../sleeper ${0%/*}/../at\nwait\n";
        let host = Host::new(&format!("goes-{talks_on}"), script);
        let (asker, served) = pair();
        send(&asker, host.request().encode().as_bytes(), SendFlags::NOSIGNAL).unwrap();
        let service = host.service.clone();
        let serving = thread::spawn(move || service.serve(&served));
        let sleeper = loop {
            match host.read("at") {
                Some(pid) => break pid.trim().to_string(),
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        if talks_on {
            send(&asker, b"and one more", SendFlags::NOSIGNAL).unwrap();
        } else {
            drop(asker);
        }
        assert!(matches!(serving.join().unwrap(), Err(ServiceError::Gone)));
        // The script that it started ends with it.
        while is_running(&sleeper) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A process that is dead and not waited for yet runs no more.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

/// Listens as systemd does: one service per connection, and none beyond `connections`.
fn listening(at: &Path, service: Service, connections: usize) -> JoinHandle<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(at).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    thread::spawn(move || {
        for _ in 0..connections {
            let _ = service.serve(accept(&socket).unwrap());
        }
    })
}

fn ended(run: &mut Run) -> Plugged {
    loop {
        match run.turn(Capacity::Free) {
            Plugged::NotYet => thread::sleep(Duration::from_millis(1)),
            plugged => return plugged,
        }
    }
}

#[test]
fn a_backend_learns_how_its_script_ended() {
    let host = Host::new("asks", REPORTING_SCRIPT);
    host.put("scripts/fails", "#!/bin/sh\nexit 3\n", 0o755);
    let socket = host.dir.join("socket");
    let request = host.request();
    let place =
        HotplugConfig { name: request.vif.clone(), dir: request.dir.clone(), ..HotplugConfig::default() };
    let run =
        |script: &str| ended(&mut Run::new(&host.path(script), &place, What::Online, Some(socket.clone())));
    let refused = run("scripts/vif-bridge");
    assert!(matches!(&refused, Plugged::No(why) if why.contains("pregrant-hotplug.socket")), "{refused:?}");
    let serving = listening(&socket, host.service.clone(), 3);
    assert_eq!(run("scripts/vif-bridge"), Plugged::Yes);
    assert!(host.read("ran").is_some_and(|reported| reported.starts_with("online ")));
    for (script, why) in [("scripts/fails", "online ended with exit status: 3"), ("outside", "refused")] {
        let plugged = run(script);
        assert!(matches!(&plugged, Plugged::No(text) if text.contains(why)), "{script}: {plugged:?}");
    }
    serving.join().unwrap();
    // No one serves it any more: the connection ends without a word, or is not taken at all.
    let plugged = run("scripts/vif-bridge");
    assert!(matches!(plugged, Plugged::No(_)), "{plugged:?}");
}

/// The service's text is written to the log and to xenstore; a text that is not plain and short is
/// replaced.
#[test]
fn what_a_service_says_is_plain_and_short() {
    let host = Host::new("says", REPORTING_SCRIPT);
    let socket = host.dir.join("socket");
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    let received = |answer: &[u8]| {
        let mut asked = Asked::of(&socket, &host.request()).unwrap().expect("there is room");
        assert_eq!(asked.turn(), None);
        let service = accept(&listener).unwrap();
        recv(&service, &mut [0; REQUEST_BYTES], RecvFlags::empty()).unwrap();
        send(&service, answer, SendFlags::NOSIGNAL).unwrap();
        drop(service);
        asked.turn().unwrap()
    };
    assert_eq!(received(b"done"), Ok(()));
    assert_eq!(received(b"failed: a\x1b[2Jb\nc\xff"), Err("a?[2Jb?c?".into()));
    assert!(received(&[b'x'; REQUEST_BYTES * 8]).unwrap_err().len() <= REQUEST_BYTES);
}

/// A service whose queue of connections is full is tried again: scripts wait, online as well as
/// offline.
#[test]
fn a_script_waits_for_a_service_that_takes_no_more() {
    let host = Host::new("waits", REPORTING_SCRIPT);
    let socket = host.dir.join("socket");
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
    // One connection waits to be taken, and no other.
    listen(&listener, 0).unwrap();
    let place = HotplugConfig { name: "vif5.0".into(), dir: host.request().dir, ..HotplugConfig::default() };
    for what in [What::Online, What::Offline] {
        let new = || Run::new(&host.path("scripts/vif-bridge"), &place, what, Some(socket.clone()));
        let (mut taken, mut waits) = (new(), new());
        assert_eq!((taken.turn(Capacity::Free), taken.has_started()), (Plugged::NotYet, true));
        for _ in 0..3 {
            assert_eq!((waits.turn(Capacity::Free), waits.has_started()), (Plugged::NotYet, false));
        }
        host.service.serve(accept(&listener).unwrap()).unwrap();
        assert_eq!((taken.turn(Capacity::Free), host.read("ran").is_some()), (Plugged::Yes, true));
        for room in [Capacity::None, Capacity::Refused] {
            assert_eq!((waits.turn(room), waits.has_started()), (Plugged::NotYet, false), "no one is asked");
        }
        assert_eq!((waits.turn(Capacity::Free), waits.has_started()), (Plugged::NotYet, true));
        fs::remove_file(host.dir.join("ran")).unwrap();
        host.service.serve(accept(&listener).unwrap()).unwrap();
        assert_eq!(waits.turn(Capacity::Free), Plugged::Yes);
        assert!(host.read("ran").is_some_and(|reported| reported.starts_with(what.as_str())));
    }
}
