//! The cost in the back of a frame from a guest to a tap: copied and then written, or written from
//! the guest's mapped pages (`back --lend-from`), in turns.
//!
//! ```text
//!   guest: fills its ring --staging--> back: TX --copy, write | writev--> tap     no one listens
//! ```
//! CPU time of the back's part; guest and back are one thread, on a machine within the process. As
//! root, in a network namespace of its own:
//!
//! `cargo build --release -p pregrant-host --example lend_rate`, then
//! `sudo unshare -n target/release/examples/lend_rate [REPEATS]`

use pregrant::net::back::SharedControl;
use pregrant::net::batch::Thresholds;
use pregrant::net::front::Granting;
use pregrant::port::{Arena, MAX_FRAME, Offload, Offloads};
use pregrant_host::ports::tap::{Tap, TapPort, TransportKind};
use pregrant_testkit::two_domains::{GUEST, TwoDomains, Way};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;

/// Bytes of frames in a measurement.
const BYTES: usize = 8 << 20;
const OWN_MAC: [u8; 6] = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];
const ALL: Offloads = Offloads { csum: true, gso: true };

/// The time that this thread has spent: neighbours on its core do not count.
fn cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Measures nanoseconds for each frame.
fn measure(port: &mut TapPort, len: usize, lend_from: u32) -> f64 {
    let domains = TwoDomains::new();
    let way = if len <= 2048 { Way::Staging(2048) } else { Way::Staging(65535) };
    let a = domains.tx(way, Granting::PerFrame, 0);
    let (mut send, mut back, mut scratch) = (a.front, a.back, Arena::new());
    back.set_thresholds(Thresholds { lend_from, ..Thresholds::USUAL });
    // The protocol number for experiments.
    let mut frame = [&OWN_MAC[..], &[0, 0x16, 0x3e, 0, 0, 7, 0x88, 0xb5]].concat();
    frame.resize(len, 0);
    let mut out = Arena::new();
    while out.push(&frame, Offload::NONE) {}
    let (control, mut ns) = (SharedControl::default(), 0);
    while (back.stats().frames as usize) < BYTES / len {
        send.reclaim(&domains.guest, 1).unwrap();
        send.send(&domains.guest, &a.front_chan, &out.burst()).unwrap();
        let started = cpu_ns();
        back.poll(&domains.host, GUEST, &a.back_chan, port, &mut scratch, &control).unwrap();
        ns += cpu_ns() - started;
    }
    ns as f64 / back.stats().frames as f64
}

fn main() -> Result<(), Box<dyn Error>> {
    let repeats = std::env::args().nth(1).map_or(Ok(21), |n| n.parse::<usize>())?;
    let mut tap = Tap::open("lend0")?;
    tap.interface().set_address(OWN_MAC)?;
    tap.interface().set_mtu(MAX_FRAME as u32 - 14)?;
    tap.interface().set_up(true)?;
    for way in [TransportKind::Frame, TransportKind::Burst] {
        tap.set_way(way);
        let mut port = tap.ports(1, ALL)?.remove(0);
        if port.way() != way {
            println!("{way:?}: not here");
            continue;
        }
        for len in [256, 1500, 2048, 4096, 9000, 20_000, 60_000] {
            let mut all: Vec<_> = (0..repeats)
                .map(|_| [MAX_FRAME as u32, Thresholds::LEAST].map(|from| measure(&mut port, len, from)))
                .collect();
            let mut median = |of: fn(&[f64; 2]) -> f64| {
                all.sort_by(|a, b| of(a).total_cmp(&of(b)));
                [repeats / 2, repeats / 4, repeats - 1 - repeats / 4].map(|at| of(&all[at]))
            };
            let ([copied, ..], [lent, ..]) = (median(|p| p[0]), median(|p| p[1]));
            let [ratio, low, high] = median(|p| p[0] / p[1]);
            println!(
                "{way:?}, {len} bytes: copied {copied:.0} ns a frame, lent {lent:.0}; {ratio:.2} ({low:.2}..{high:.2})"
            );
        }
    }
    Ok(())
}
