//! The cost in the back of a frame between two guests, including rings, with one copy and with two,
//! in turns.
//!
//! ```text
//!   guests: A fills its ring, B empties its own      back: TX of A -> switch -> RX of B
//! ```
//! By staging, on a machine within the process: nothing of it takes a system call. All in one
//! thread; with `threads`, the back in a second one, which wants a core of its own. `ABOVE`: the
//! switch lends longer frames; by default, as it does. `TURNS`: so many in place of a time, of one
//! repeat, for who counts the instructions of `turn`:
//! `valgrind --tool=callgrind --toggle-collect='*turn_of_the_back*'`.
//!
//! `cargo run --release -p pregrant-host --example between_rate [REPEATS [one|threads [ABOVE
//! [TURNS LENGTH]]]]`

use pregrant::net::back::{Polled, SharedControl};
use pregrant::net::front::Granting;
use pregrant::port::{Arena, FramePort, MAX_FRAME, Offload, Offloads};
use pregrant_host::ports::switch::{LEND_ABOVE, Switch};
use pregrant_testkit::two_domains::{GUEST, TwoDomains, Way};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ALL: Offloads = Offloads { csum: true, gso: true };
/// The duration of each repeat, with one copy and with two.
const TIME: Duration = Duration::from_millis(100);

/// Results: nanoseconds for each frame, in all and in the back while it had work; the share of
/// zero-copy frames, and of turns in which frames wait for the receiver's slots; the number of
/// frames.
#[derive(Clone, Copy, Default)]
struct Rate {
    all: f64,
    back: f64,
    lent: f64,
    waits: f64,
    frames: u64,
}

/// The back's part, to be found by its name.
#[inline(never)]
fn turn_of_the_back<T>(back: impl FnOnce() -> T) -> T {
    back()
}

/// Runs both guests and the back in one thread, or the back in another; for some time, or for a
/// number of turns.
fn measure(len: usize, lend_above: u32, threads: bool, most: Option<u32>) -> Rate {
    let switch = Switch::new();
    switch.lend_above(lend_above);
    let [sending, receiving] = [TwoDomains::new(), TwoDomains::new()];
    let way = if len <= 2048 { Way::Staging(2048) } else { Way::Staging(65535) };
    let (a, b) = (sending.tx(way, Granting::PerFrame, 0), receiving.rx(way, Granting::PerFrame, 0, false));
    let (mut from, mut to) = (switch.add_port(ALL).unwrap(), switch.add_port(ALL).unwrap());
    let mut frame = vec![7u8; len];
    let mut arena = Arena::new();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    assert!(arena.push(&frame[..60], Offload::NONE));
    to.tx_burst(&arena.burst());
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    let (mut tx, mut rx) = (a.back, b.back);
    let (mut send, mut recv) = (a.front, b.front);
    let [host_a, host_b] = [&sending, &receiving].map(|domains| domains.host.clone());
    let (mut scratch, control, mut back_ns) = (Arena::new(), SharedControl::default(), 0);
    let (mut turns, mut waits) = (0u32, 0u32);
    let mut back = || {
        let started = Instant::now();
        let [sent, came] = turn_of_the_back(|| {
            let sent = tx.poll(&host_a, GUEST, &a.back_chan, &mut from, &mut scratch, &control).unwrap();
            [sent, rx.poll(&host_b, GUEST, &b.back_chan, &mut to, &control).unwrap()]
        });
        let works = [sent, came].contains(&Polled::More);
        if works {
            back_ns += started.elapsed().as_nanos() as u64;
        }
        turns += u32::from(works || rx.waiting() > 0);
        waits += u32::from(rx.waiting() > 0);
        (back_ns, rx.stats().frames, to.stats().rx_lent, f64::from(waits) / f64::from(turns.max(1)))
    };
    let (mut out, mut into) = (Arena::new(), Arena::new());
    while out.push(&frame, Offload::NONE) {}
    let mut guests = || {
        send.reclaim(&sending.guest, 1).unwrap();
        send.send(&sending.guest, &a.front_chan, &out.burst()).unwrap();
        into.clear();
        recv.recv(&mut into, 1).unwrap();
        recv.post(&receiving.guest, &b.front_chan).unwrap();
    };
    let (is_over, started) = (AtomicBool::new(false), Instant::now());
    let mut came = (0, 0, 0, 0.0);
    if threads {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    came = back();
                }
            });
            while started.elapsed() < TIME {
                (0..16).for_each(|_| guests());
            }
            is_over.store(true, Ordering::Relaxed);
        });
    } else {
        let mut turns = 0;
        while most.map_or_else(|| started.elapsed() < TIME, |most| turns < most) {
            for _ in 0..16 {
                guests();
                came = back();
            }
            turns += 16;
        }
    }
    let (all, n) = (started.elapsed().as_nanos() as f64, came.1.max(1) as f64);
    Rate { all: all / n, back: came.0 as f64 / n, lent: came.2 as f64 / n, waits: came.3, frames: came.1 }
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |k: usize| args.get(k).and_then(|n| n.parse::<u32>().ok());
    let threads = args.iter().any(|arg| arg == "threads");
    let (repeats, above) = (number(0).unwrap_or(15), number(2).unwrap_or(LEND_ABOVE));
    if let (Some(turns), Some(len)) = (number(3), number(4)) {
        let rate = measure(len as usize, above, false, Some(turns));
        println!("{len} bytes: {} frames, lent {:.2}", rate.frames, rate.lent);
        return;
    }
    for len in [1500, 3000, 4096, 9000, 16_000, 20_000, MAX_FRAME] {
        let pairs: Vec<_> = (0..repeats)
            .map(|_| [MAX_FRAME as u32, above].map(|above| measure(len, above, threads, None)))
            .collect();
        let of = |which: fn(&[Rate; 2]) -> f64| median(&mut pairs.iter().map(which).collect::<Vec<_>>());
        println!(
            "{len} bytes: two copies {:.0} ns a frame ({:.0} of the back, which works {:.2} of the time), one copy \
             {:.0} ({:.0}, {:.2}); two to one {:.2} ({:.2}); lent {:.2}, waits {:.2}",
            of(|p| p[0].all),
            of(|p| p[0].back),
            of(|p| p[0].back / p[0].all),
            of(|p| p[1].all),
            of(|p| p[1].back),
            of(|p| p[1].back / p[1].all),
            of(|p| p[0].all / p[1].all),
            of(|p| p[0].back / p[1].back),
            of(|p| p[1].lent),
            of(|p| p[1].waits),
        );
    }
}
