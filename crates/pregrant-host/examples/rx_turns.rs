//! Frames to a guest, path by path, for counting the instructions of either end.
//!
//! ```text
//!   back: a burst of 64 --copy | heads | staging | persistent--> ring      guest: receives it, posts again
//! ```
//! Both ends are in one thread, on a machine within the process: a grant copy is a memcpy and what
//! the platform keeps of it, without the system call that the loopback takes for a batch of them.
//!
//! `cargo build --release -p pregrant-host --example rx_turns`, then for either `back` or `guest`
//! `valgrind --tool=callgrind --toggle-collect='*turn_of_the_back*'
//! target/release/examples/rx_turns copy|heads|staging|persistent LENGTH BURSTS [reference]`.

use pregrant::net::back::{Polled, SharedControl};
use pregrant::net::front::{Granting, Lent};
use pregrant::port::{Arena, BURST_FRAMES, Burst, FramePort, Offload, Offloads};
use pregrant_testkit::two_domains::{GUEST, RxEnds, TwoDomains, Way};
use std::hint::black_box;

/// A port that returns the same frame, one burst at a time.
struct Gives {
    frame: Vec<u8>,
    left: usize,
}

impl FramePort for Gives {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let n = self.left;
        (0..n).for_each(|_| assert!(into.push(&self.frame, Offload::NONE)));
        self.left = 0;
        n
    }
}

#[inline(never)]
fn turn_of_the_back<T>(back: impl FnOnce() -> T) -> T {
    back()
}

#[inline(never)]
fn turn_of_the_guest<T>(guest: impl FnOnce() -> T) -> T {
    guest()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |k: usize| args.get(k).and_then(|n| n.parse::<usize>().ok()).expect("LENGTH and BURSTS");
    let (way, granting) = match args.first().map(String::as_str) {
        Some("copy") => (Way::Copy, Granting::Standing),
        Some("heads") => (Way::Heads(256), Granting::Standing),
        Some("staging") => (Way::Staging(2048), Granting::Standing),
        Some("persistent") => (Way::Persistent(256), Granting::Standing),
        _ => panic!("copy, heads, staging or persistent"),
    };
    let (len, bursts) = (number(1), number(2));
    let by_reference = args.iter().any(|arg| arg == "reference");
    let domains = TwoDomains::new();
    let RxEnds { mut front, mut back, front_chan, back_chan, .. } = domains.rx(way, granting, 0, false);
    let (mut port, control) = (Gives { frame: vec![7; len], left: 0 }, SharedControl::default());
    let (mut into, mut lent) = (Arena::new(), Lent::default());
    front.post(&domains.guest, &front_chan).expect("grants stand");
    let mut came = 0;
    for _ in 0..bursts {
        port.left = BURST_FRAMES;
        turn_of_the_back(|| {
            while back.poll(&domains.host, GUEST, &back_chan, &mut port, &control) == Ok(Polled::More) {}
        });
        came += turn_of_the_guest(|| {
            into.clear();
            let came = if by_reference {
                lent.clear();
                let came = front.recv_by_reference(&mut into, &mut lent, 1);
                lent.tokens().for_each(|token| assert_eq!(front.release(token), Ok(())));
                came
            } else {
                front.recv(&mut into, 1)
            };
            black_box(into.burst().frames.len());
            front.post(&domains.guest, &front_chan).expect("grants stand");
            came.expect("an honest back")
        });
    }
    println!("{came} frames, by staging buffers {}", back.stats().staging);
}
