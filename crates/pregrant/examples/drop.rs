//! A guest that is flooded: its frame hook drops what no one asked for before anything is allocated
//! or copied.
//!
//! ```text
//!   network --64 bytes each--> back ==staging==> hook: UDP to port 9? --yes--> gone
//!                                                                     --no---> the stack's arena
//! ```
//! Run it: `cargo run -p pregrant --features examples --example drop`

mod machine;

use machine::{Machine, Result, udp};
use pregrant::net::front::{Diverted, FrontConfig, HookAction, HookFrame, HookStats};
use pregrant::port::Arena;

const FRAMES: usize = 10_000;
/// One frame in this many is for somebody.
const ONE_IN: usize = 10;
const UNWANTED: u16 = 9;

/// Frames to drop. All headers are in the head, and the head is private: what is checked stays
/// so.
fn hook(frame: &mut HookFrame) -> HookAction {
    let head = frame.head();
    let is_udp = head.len() >= 42 && head[12..14] == [8, 0] && head[14] == 0x45 && head[23] == 17;
    if is_udp && head[36..38] == UNWANTED.to_be_bytes() { HookAction::Drop } else { HookAction::Pass }
}

pub fn main() -> Result<()> {
    let mut machine = Machine::new()?;
    let mut wire = machine.wire(FrontConfig::default())?;
    for k in 0..FRAMES {
        let port = if k % ONE_IN == 0 { 53 } else { UNWANTED };
        wire.host_end.net.gives.push_back(udp([10, 0, 0, 9], [10, 0, 0, 5], port, 64));
    }
    let (mut passed, mut elsewhere) = (Arena::new(), Diverted::new());
    let mut frames = 0;
    loop {
        let more = wire.host_end.turn()?;
        passed.clear();
        let seen = wire.front.queue_mut(0).expect("a live vif").recv_hooked(
            &machine.guest,
            &mut passed,
            &mut elsewhere,
            (1, 64),
            hook,
        )?;
        frames += passed.burst().iter().count();
        if !more && seen == 0 {
            break;
        }
    }
    let stats: HookStats = wire.front.queue(0).expect("a vif with queues").hook_stats();
    println!("{} frames came, {} were dropped, {frames} went on", stats.frames(), stats.dropped);
    wire.close(&machine.guest)?;
    let due = FRAMES / ONE_IN;
    if frames != due || stats.dropped as usize != FRAMES - due {
        return Err(format!("{due} were to go on").into());
    }
    Ok(())
}
