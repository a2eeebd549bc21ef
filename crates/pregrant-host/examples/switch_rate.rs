//! The cost in the switch of a frame between two guests, without rings and grants: nanoseconds for
//! each frame, with one worker.
//!
//! ```text
//!   a guest's memory --copy--> where the batch is fetched to --switch--> where it is delivered from --copy--> another guest's memory
//! ```
//!
//! `cargo run --release -p pregrant-host --example switch_rate [ROW]`

use pregrant::port::{Arena, BURST_BYTES_MIN, FramePort, Offload, Offloads};
use pregrant_host::ports::switch::{Switch, SwitchPort};
use std::hint::black_box;
use std::time::{Duration, Instant};

const ALL: Offloads = Offloads { csum: true, gso: true };
/// The duration of each row.
const TIME: Duration = Duration::from_millis(100);

/// Sends a batch as a queue does: from a guest's memory, into the port's memory where it gives
/// some.
fn send(port: &mut SwitchPort, arena: &mut Arena, guest: &[u8], n: usize, offload: Offload) {
    arena.clear();
    let mut cursor = arena.cursor();
    for _ in 0..n {
        arena.place(&mut cursor, guest.len(), offload);
    }
    arena.keep(cursor);
    let bytes = arena.used_bytes();
    let is_in =
        bytes >= BURST_BYTES_MIN && port.tx_room(bytes).is_some_and(|room| arena.move_in(room).is_ok());
    for i in 0..n {
        let at = arena.desc(i).at as usize;
        arena.bytes_mut()[at..at + guest.len()].copy_from_slice(guest);
    }
    let took = if is_in { port.tx_filled(arena) } else { port.tx_burst(&arena.burst()) };
    assert_eq!(took, n);
}

fn receive(port: &mut SwitchPort, arena: &mut Arena, guest: &mut [u8]) -> usize {
    arena.clear();
    let n = port.rx_burst(arena);
    for (frame, _) in arena.burst().iter() {
        guest[..frame.len()].copy_from_slice(frame);
        black_box(&guest);
    }
    n
}

fn main() {
    let large = Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 };
    let rows = [
        (64, 64, false),
        (64, 1, false),
        (1500, 64, false),
        (1500, 8, false),
        (1500, 1, false),
        (65535, 3, true),
        (65535, 1, true),
    ];
    let only: Option<usize> = std::env::args().nth(1).and_then(|row| row.parse().ok());
    for (row, (len, n, is_large)) in rows.into_iter().enumerate() {
        if only.is_some_and(|only| only != row) {
            continue;
        }
        let switch = Switch::new();
        let (mut from, mut to) = (switch.add_port(ALL).unwrap(), switch.add_port(ALL).unwrap());
        let (mut out, mut into, mut back) = (Arena::new(), Arena::new(), Arena::new());
        let mut guest = vec![0u8; 65536];
        let mut frame = vec![7u8; len];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        let mut other = frame.clone();
        other[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        send(&mut to, &mut out, &other, 1, Offload::default());
        receive(&mut from, &mut back, &mut guest);
        let offload = if is_large { large } else { Offload::default() };
        let (begin, mut frames) = (Instant::now(), 0);
        while begin.elapsed() < TIME {
            for _ in 0..64 {
                send(&mut from, &mut out, &frame, n, offload);
                frames += receive(&mut to, &mut into, &mut guest);
            }
        }
        let ns = begin.elapsed().as_nanos() as f64 / frames as f64;
        println!("{len} bytes, {n} a burst: {ns:.1} ns a frame");
    }
}
