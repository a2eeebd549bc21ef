//! Xen's own tools (Debian: xenstore-utils) against `pregrant-lab store serve`.

use crate::LAB;
use pregrant_testkit::skip::skip;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

struct Store {
    child: Child,
    socket: PathBuf,
}

impl Store {
    fn start(name: &str) -> Self {
        let socket = std::env::temp_dir().join(format!("pregrant-{name}-{}.sock", std::process::id()));
        let mut child = Command::new(LAB)
            .args(["store", "serve", "--socket"])
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, format!("xenstored ready on {}\n", socket.display()));
        Self { child, socket }
    }

    fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("XENSTORED_PATH", &self.socket);
        command
    }

    fn run(&self, name: &str, args: &[&str]) -> Output {
        self.tool(name).args(args).output().unwrap()
    }

    /// The output of a tool that succeeds.
    fn says(&self, name: &str, args: &[&str]) -> String {
        let out = self.run(name, args);
        assert!(out.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn signal(&mut self, signal: &str) -> Option<i32> {
        assert!(
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
        );
        self.child.wait().unwrap().code()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Only when a test failed halfway.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn tools() -> bool {
    let found = Command::new("xenstore-ls").arg("-h").output().is_ok();
    if !found {
        skip("xenstore-utils is not installed");
    }
    found
}

/// A tree as xenstore-ls prints it, without its dots for alignment.
fn lines(text: &str) -> Vec<String> {
    let plain =
        |line: &str| line.split(" . ").next().unwrap_or_default().trim_end_matches([' ', '.']).to_string();
    text.lines().map(plain).collect()
}

#[test]
fn nodes() {
    if !tools() {
        return;
    }
    let store = Store::start("nodes");
    store.says("xenstore-write", &["/vm/a", "1", "/vm/a/b", "two words", "/vm/c", ""]);
    assert_eq!(store.says("xenstore-read", &["/vm/a/b"]), "two words\n");
    assert_eq!(store.says("xenstore-read", &["-p", "/vm/a", "/vm/c"]), "/vm/a: 1\n/vm/c: \n");
    assert_eq!(store.says("xenstore-list", &["/vm"]), "a\nc\n");
    assert_eq!(lines(&store.says("xenstore-ls", &["/vm"])), ["a = \"1\"", " b = \"two words\"", "c = \"\""]);
    let full = store.says("xenstore-ls", &["-f", "/vm"]);
    assert!(lines(&full).contains(&"/vm/a/b = \"two words\"".to_string()), "{full}");
    assert!(store.run("xenstore-exists", &["/vm/a"]).status.success());
    store.says("xenstore-rm", &["/vm/a"]);
    assert!(!store.run("xenstore-exists", &["/vm/a"]).status.success());
    let missing = store.run("xenstore-read", &["/vm/a/b"]);
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("couldn't read path /vm/a/b"));
    // With -t the tool also removes what is empty above.
    store.says("xenstore-rm", &["-t", "/vm/c"]);
    assert!(!store.run("xenstore-exists", &["/vm"]).status.success());
}

#[test]
fn permissions() {
    if !tools() {
        return;
    }
    let store = Store::start("permissions");
    store.says("xenstore-write", &["/vm/a/b", "1"]);
    store.says("xenstore-chmod", &["/vm/a", "n0", "r7"]);
    assert!(store.says("xenstore-ls", &["-p", "/vm"]).lines().next().unwrap().ends_with("(n0,r7)"));
    store.says("xenstore-chmod", &["-r", "/vm/a", "b3"]);
    let all = store.says("xenstore-ls", &["-p", "/vm"]);
    assert_eq!(all.lines().count(), 2);
    assert!(all.lines().all(|l| l.ends_with("(b3)")), "{all}");
    assert!(!store.run("xenstore-chmod", &["/vm/a", "z3"]).status.success());
}

#[test]
fn a_directory_too_long_for_one_message() {
    if !tools() {
        return;
    }
    let store = Store::start("parts");
    let names: Vec<_> = (1000..1600).map(|i| format!("some-long-name-{i}")).collect();
    let pairs: Vec<_> = names.iter().flat_map(|n| [format!("/many/{n}"), "v".into()]).collect();
    store.says("xenstore-write", &pairs.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(store.says("xenstore-list", &["/many"]).lines().collect::<Vec<_>>(), names);
    assert_eq!(store.says("xenstore-ls", &["/many"]).lines().count(), names.len());
}

#[test]
fn watches() {
    if !tools() {
        return;
    }
    let store = Store::start("watches");
    let mut watch = store.tool("xenstore-watch");
    // Ends by itself after two events: the one at once, and the change.
    let mut child = watch.args(["-n", "2", "/vm"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut reported = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    reported.read_line(&mut first).unwrap();
    assert_eq!(first, "/vm\n");
    store.says("xenstore-write", &["/vm/7/name", "x"]);
    let mut rest = String::new();
    reported.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "/vm/7/name\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn ends_on_signals_and_removes_its_socket() {
    for signal in ["-TERM", "-INT"] {
        let mut store = Store::start(&format!("signal{signal}"));
        assert_eq!(store.signal(signal), Some(0));
        assert!(!store.socket.exists());
    }
}

#[test]
fn a_dead_servers_socket_is_taken_over_and_a_living_ones_is_not() {
    let mut store = Store::start("taken");
    let second = Command::new(LAB).args(["store", "serve", "--socket"]).arg(&store.socket).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains(&*store.socket.to_string_lossy()) && said.contains("stop it"), "{said}");
    assert_eq!(store.signal("-KILL"), None);
    assert!(store.socket.exists());
    let mut next = Store::start("taken");
    assert_eq!(next.signal("-TERM"), Some(0));
}

#[test]
fn wrong_usage_is_2() {
    for args in [&["store"][..], &["store", "serve"], &["store", "serve", "--sockets", "x"]] {
        let out = Command::new(LAB).args(args).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(!out.stderr.is_empty());
    }
}
