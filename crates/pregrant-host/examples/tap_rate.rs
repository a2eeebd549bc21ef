//! The cost of a frame through a tap, by a system call for each frame and by one for a burst. As
//! root, in a network namespace of its own:
//!
//! ```sh
//! cargo build --release -p pregrant-host --example tap_rate
//! sudo unshare -n target/release/examples/tap_rate             # both, in turn
//! sudo strace -cf unshare -n target/release/examples/tap_rate burst
//! ```

use pregrant::port::{Arena, FramePort, Offload, Offloads};
use pregrant_host::ports::tap::{Tap, TapPort, TransportKind};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::net::UdpSocket;
use std::process::Command;

const METHOD: &str = "\
write  bursts of frames to the tap, 8192 frames in all; the interface receives each and, as no one listens, drops it
read   a socket fills the interface's queue (256 frames, or 1), then frames are read till it is empty; the reading is timed
idle   a check of an empty queue
CPU time of the one thread, what its system calls do included. Single calls and bursts in turn, 21 times; medians.";

const REPEATS: usize = 21;
const WRITTEN: usize = 8192;
const QUEUE: usize = 256;
const OWN_MAC: [u8; 6] = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];

/// The time that this thread has spent: neighbours on its core do not count.
fn cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Nanoseconds for each frame that is written in bursts of `burst`.
fn write(port: &mut TapPort, len: usize, burst: usize) -> f64 {
    let mut arena = Arena::new();
    // The protocol number for experiments.
    let mut frame = [&OWN_MAC[..], &[0, 0x16, 0x3e, 0, 0, 7, 0x88, 0xb5]].concat();
    frame.resize(len, 0);
    for _ in 0..burst {
        assert!(arena.push(&frame, Offload::default()));
    }
    let start = cpu_ns();
    for _ in 0..WRITTEN / burst {
        port.tx_burst(&arena.burst());
    }
    (cpu_ns() - start) as f64 / WRITTEN as f64
}

/// Nanoseconds for each frame that is read from a queue of `queue`, the check that finds none
/// included.
fn read(port: &mut TapPort, socket: &UdpSocket, len: usize, queue: usize) -> Result<f64, Box<dyn Error>> {
    let mut arena = Arena::new();
    let payload = vec![0; len - 42];
    let (mut ns, mut frames) = (0, 0);
    for _ in 0..(4096 / queue).min(512) {
        for _ in 0..queue {
            socket.send_to(&payload, "10.77.0.2:4000")?;
        }
        let start = cpu_ns();
        loop {
            arena.clear();
            match port.rx_burst(&mut arena) {
                0 => break,
                n => frames += n,
            }
        }
        ns += cpu_ns() - start;
    }
    Ok(ns as f64 / frames as f64)
}

/// Nanoseconds for a check of an empty queue.
fn idle(port: &mut TapPort) -> f64 {
    let mut arena = Arena::new();
    let start = cpu_ns();
    for _ in 0..4096 {
        port.rx_burst(&mut arena);
    }
    (cpu_ns() - start) as f64 / 4096.0
}

fn ip(args: &str) -> Result<(), Box<dyn Error>> {
    match Command::new("ip").args(args.split(' ')).status()?.success() {
        true => Ok(()),
        false => Err(format!("ip {args} failed; is this a network namespace of its own, and root's?").into()),
    }
}

/// Shows which way the ports would have chosen.
struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        println!("{}", record.args());
    }
    fn flush(&self) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    log::set_logger(&Lines).map_err(|e| e.to_string())?;
    log::set_max_level(log::LevelFilter::Info);
    let only = std::env::args().nth(1);
    let mut tap = Tap::open("rate0")?;
    tap.interface().set_address(OWN_MAC)?;
    tap.interface().set_mtu(9000)?;
    tap.interface().set_up(true)?;
    ip("addr add 10.77.0.1/24 dev rate0")?;
    ip("neigh add 10.77.0.2 lladdr 00:16:3e:00:00:07 dev rate0")?;
    let socket = UdpSocket::bind("10.77.0.1:5000")?;
    // One descriptor, two ways to it.
    let mut ways = Vec::new();
    for (name, way) in [("single", TransportKind::Frame), ("burst", TransportKind::Burst)] {
        tap.set_way(way);
        let port = tap.ports(1, Offloads { csum: true, gso: true })?.remove(0);
        if port.way() != way {
            return Err("no io_uring here".into());
        }
        ways.push((name, port));
    }
    ways.retain(|(name, _)| only.as_deref().is_none_or(|o| o == *name));
    let rows =
        ["write 64 B by 64", "write 64 B by 8", "write 64 B by 2", "write 64 B alone", "write 1500 B by 64"];
    let rows = rows.iter().chain(&[
        "read 64 B of 256",
        "read 64 B of 8",
        "read 64 B alone",
        "read 1500 B of 256",
        "idle",
    ]);
    let rows: Vec<&str> = rows.copied().collect();
    let mut took = vec![vec![Vec::new(); rows.len()]; ways.len()];
    for _ in 0..REPEATS {
        for (way, (_, port)) in ways.iter_mut().enumerate() {
            for (row, took) in took[way].iter_mut().enumerate() {
                took.push(match row {
                    0 => write(port, 64, 64),
                    1 => write(port, 64, 8),
                    2 => write(port, 64, 2),
                    3 => write(port, 64, 1),
                    4 => write(port, 1500, 64),
                    5 => read(port, &socket, 64, QUEUE)?,
                    6 => read(port, &socket, 64, 8)?,
                    7 => read(port, &socket, 64, 1)?,
                    8 => read(port, &socket, 1500, QUEUE)?,
                    _ => idle(port),
                });
            }
        }
    }
    let refused: u64 = ways.iter().flat_map(|(_, p)| p.drops()).map(|d| d.frames).sum();
    println!(
        "{METHOD}\n\n{:20}{}",
        "ns a frame",
        ways.iter().map(|(n, _)| format!("{n:>10}")).collect::<String>()
    );
    for (row, name) in rows.iter().enumerate() {
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            format!("{:10.0}", times[times.len() / 2])
        };
        let cells: String = took.iter_mut().map(|way| median(&mut way[row])).collect();
        println!("{name:20}{cells}");
    }
    println!("refused: {refused}");
    Ok(())
}
