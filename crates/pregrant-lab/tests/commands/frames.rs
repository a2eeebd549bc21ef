//! `pregrant-lab frames` over 127.0.0.1: whole, and through a relay that drops, damages or
//! disorders what it passes on.
//!
//! ```text
//!   frames --to <--> relay (one datagram in so many is spoiled) <--> frames --serve
//! ```

use crate::LAB;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// `frames --serve` on a port that the kernel chose; ended on drop.
struct Server(Child, u16);

impl Server {
    fn start() -> Self {
        let mut command = Command::new(LAB);
        let mut child =
            command.args(["frames", "--serve", "--port", "0"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(' ').next().and_then(|p| p.parse().ok());
        Self(child, port.unwrap_or_else(|| panic!("no port in {line:?}")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The fate of the `n`-th datagram on its way.
#[derive(Clone, Copy)]
enum Fate {
    Whole,
    Dropped,
    Damaged,
    /// Goes behind the next one.
    Late,
}

/// Passes datagrams on in both directions, until nothing came for so long that both ends must be
/// gone.
fn relay(server: u16, to_server: fn(u64) -> Fate, to_sender: fn(u64) -> Fate) -> u16 {
    let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
    inside.connect(("127.0.0.1", server)).unwrap();
    let (back_from, back_to) = (inside.try_clone().unwrap(), outside.try_clone().unwrap());
    let (report, sender) = std::sync::mpsc::channel::<SocketAddr>();
    for socket in [&outside, &inside] {
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    }
    let pass = |fate: fn(u64) -> Fate, n: u64, bytes: &mut Vec<u8>, held: &mut Vec<Vec<u8>>| match fate(n) {
        Fate::Whole => {
            let mut out = vec![bytes.clone()];
            out.append(held);
            out
        }
        Fate::Dropped => Vec::new(),
        Fate::Damaged => {
            let at = n as usize % bytes.len();
            bytes[at] ^= 4;
            vec![bytes.clone()]
        }
        Fate::Late => {
            held.push(bytes.clone());
            Vec::new()
        }
    };
    std::thread::spawn(move || {
        let (mut bytes, mut held, mut reported) = (vec![0; 65536], Vec::new(), false);
        for n in 0.. {
            let Ok((len, from)) = outside.recv_from(&mut bytes) else { return };
            if !std::mem::replace(&mut reported, true) {
                report.send(from).unwrap();
            }
            for out in pass(to_server, n, &mut bytes[..len].to_vec(), &mut held) {
                let _ = inside.send(&out);
            }
        }
    });
    std::thread::spawn(move || {
        let Ok(sender) = sender.recv() else { return };
        let (mut bytes, mut held) = (vec![0; 65536], Vec::new());
        for n in 0.. {
            let Ok(len) = back_from.recv(&mut bytes) else { return };
            for out in pass(to_sender, n, &mut bytes[..len].to_vec(), &mut held) {
                let _ = back_to.send_to(&out, sender);
            }
        }
    });
    port
}

fn send(port: u16, count: u64, more: &[&str]) -> Output {
    let mut command = Command::new(LAB);
    command.args(["frames", "--to", "127.0.0.1", "--port", &port.to_string(), "--count", &count.to_string()]);
    command.args(more).output().unwrap()
}

/// The number behind `word` in the line of results.
fn figure(out: &Output, word: &str) -> u64 {
    let text = String::from_utf8_lossy(&out.stdout);
    let at = text.find(word).unwrap_or_else(|| panic!("no {word:?} in {text:?}, {:?}", out.stderr));
    let digits = text[at + word.len()..].trim_start().split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|d| d.parse().ok()).unwrap_or_else(|| panic!("{text:?}"))
}

fn whole(_: u64) -> Fate {
    Fate::Whole
}

#[test]
fn all_of_every_size_arrives_whole() {
    let server = Server::start();
    for (more, count) in [(&[][..], 20_000), (&["--size", "32..9000"], 2000), (&["--size", "65507"], 50)] {
        let out = send(server.1, count, more);
        assert!(out.status.success(), "{more:?}: {out:?}");
        for (word, n) in [("sent", count), ("received", count), ("damaged", 0), ("lost", 0)] {
            assert_eq!(figure(&out, word), n, "{word}, {more:?}: {out:?}");
        }
    }
}

#[test]
fn what_is_dropped_either_way_is_sent_again() {
    let server = Server::start();
    let some = |n: u64| if n % 50 == 7 { Fate::Dropped } else { Fate::Whole };
    let out = send(relay(server.1, some, some), 600, &[]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!([figure(&out, "received"), figure(&out, "damaged"), figure(&out, "lost")], [600, 0, 0]);
    // Those of the first 600 datagrams at least.
    assert!(figure(&out, "retransmitted") >= 12, "{out:?}");
}

#[test]
fn damage_fails_the_check_and_is_never_acknowledged() {
    let server = Server::start();
    let third = |n: u64| if n == 3 { Fate::Damaged } else { Fate::Whole };
    let out = send(relay(server.1, third, whole), 100, &["--size", "200"]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    // It was sent once more, which came whole.
    assert_eq!([figure(&out, "received"), figure(&out, "damaged"), figure(&out, "lost")], [100, 1, 0]);
    assert!(figure(&out, "retransmitted") >= 1, "{out:?}");
    // And on the way back.
    let first = |n: u64| if n == 0 { Fate::Damaged } else { Fate::Whole };
    let out = send(relay(server.1, whole, first), 100, &["--window", "1"]);
    assert_eq!((out.status.code(), figure(&out, "damaged")), (Some(1), 1), "{out:?}");
}

#[test]
fn disorder_is_counted_and_is_no_failure() {
    let server = Server::start();
    let tenth = |n: u64| if n % 10 == 5 { Fate::Late } else { Fate::Whole };
    let out = send(relay(server.1, tenth, whole), 100, &[]);
    assert!(out.status.success(), "{out:?}");
    assert!(figure(&out, "out of order") >= 9, "{out:?}");
}

#[test]
fn what_is_lost_for_good_fails_the_check_and_so_does_no_one_there() {
    let server = Server::start();
    // From some time on nothing passes.
    let cut = |n: u64| if n < 40 { Fate::Whole } else { Fate::Dropped };
    let out = send(relay(server.1, cut, whole), 100, &["--patience", "2"]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(figure(&out, "lost") > 0, "{out:?}");
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let out = send(silent.local_addr().unwrap().port(), 1, &["--patience", "1"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("frames --serve"), "{out:?}");
}
