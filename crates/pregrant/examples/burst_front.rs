//! A guest as network functions are written: one loop that polls, bursts in and out, no events, no
//! allocation.
//!
//! ```text
//!   thread of the driver domain: back.poll_tx, poll_rx       thread of the guest: recv -> addresses exchanged -> send, reclaim
//! ```
//! Frames that find no room on TX are kept and sent first, so that none is lost; received frames
//! wait on their ring meanwhile. Run it: `cargo run -p pregrant --features examples --example
//! burst_front`

mod machine;

use machine::{Machine, Result, udp};
use pregrant::net::front::FrontConfig;
use pregrant::port::Arena;
use std::sync::atomic::{AtomicBool, Ordering};

const FRAMES: usize = 20_000;

pub fn main() -> Result<()> {
    let mut machine = Machine::new()?;
    let mut wire = machine.wire(FrontConfig::default())?;
    for k in 0..FRAMES {
        let frame = udp([10, 0, 0, 9], [10, 0, 0, 5], k as u16, [64, 128, 300, 1500][k % 4]);
        wire.host_end.net.gives.push_back(frame);
    }
    let done = AtomicBool::new(false);
    let (guest, front, host_end) = (&machine.guest, &mut wire.front, &mut wire.host_end);
    std::thread::scope(|threads| {
        let back = threads.spawn(|| {
            while !done.load(Ordering::Relaxed) && host_end.net.took.len() < FRAMES {
                if !host_end.turn().map_err(|e| e.to_string())? {
                    std::thread::yield_now(); // a core of its own would spin
                }
            }
            Ok::<_, String>(())
        });
        let mut arena = Arena::new();
        let mut sent = 0;
        let mut run = || -> Result<()> {
            while sent < FRAMES && !back.is_finished() {
                arena.clear();
                if front.queue_mut(0).expect("a live vif").recv(guest, &mut arena, 1)? == 0 {
                    std::thread::yield_now();
                }
                for k in 0..arena.len() {
                    let at = arena.desc(k).at as usize;
                    let (to, from) = arena.bytes_mut()[at..at + 12].split_at_mut(6);
                    to.swap_with_slice(from);
                }
                let burst = arena.burst();
                let mut done = 0;
                while done < burst.frames.len() && !back.is_finished() {
                    done += front.queue_mut(0).expect("a live vif").send(guest, &burst.skip(done))?;
                    front.queue_mut(0).expect("a live vif").reclaim(guest, 1)?;
                }
                sent += done;
            }
            Ok(())
        };
        let ran = run();
        done.store(ran.is_err(), Ordering::Relaxed);
        back.join().map_err(|_| "the driver domain's thread panicked")??;
        ran
    })?;
    while wire.front.in_flight(0) > 0 {
        wire.host_end.turn()?;
        wire.front.queue_mut(0).expect("a live vif").reclaim(&machine.guest, 1)?;
    }
    let (tx, rx) = wire.front.queue(0).expect("a vif with queues").stats();
    let took = wire.close(&machine.guest)?.took;
    let right =
        |frame: &Vec<u8>| frame[6..12] == [0x00, 0x16, 0x3e, 0, 5, 0] && frame[..6] == [2, 0, 0, 0, 0, 9];
    println!(
        "{} frames there and {} back, {} of them through staging buffers",
        rx.frames, tx.frames, tx.staging
    );
    if took.len() == FRAMES && took.iter().all(right) {
        Ok(())
    } else {
        Err("frames are missing or wrong".into())
    }
}
