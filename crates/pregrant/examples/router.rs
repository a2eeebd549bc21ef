//! A guest that routes IPv4 between two vifs in its frame hook: what leaves where it came goes in
//! the buffer that it came in.
//!
//! ```text
//!   10.0.0.0/24 --vif 0--> hook --Redirect(1), one copy--> vif 1 -- 10.0.1.0/24
//!        ^                  '---Tx, no copy---.
//!        '------------------------------------'           hosts of one network that do not see each other
//! ```
//! Hop count and checksum are changed in the private head, which is what goes on. Run it:
//! `cargo run -p pregrant --features examples --example router`

mod machine;

use machine::{Machine, Result, header_sum, udp};
use pregrant::net::front::{Diverted, FrontConfig, HookAction, HookFrame};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::port::Arena;

const FRAMES: usize = 4000;

/// The next hop's address, for 10.0.x.y.
fn mac_of(ip: [u8; 4]) -> [u8; 6] {
    [0x02, 0, 0, 0, ip[2], ip[3]]
}

/// The destination of a frame that came by `vif`.
fn route(vif: u32, frame: &mut HookFrame) -> HookAction {
    let head = frame.head();
    let Some(ip) = head.get(14..34).filter(|ip| head[12..14] == [8, 0] && ip[0] == 0x45) else {
        return HookAction::Pass;
    };
    let (hops, to) = (ip[8], [ip[16], ip[17], ip[18], ip[19]]);
    if header_sum(ip) != 0xFFFF || hops <= 1 || to[..2] != [10, 0] || to[2] > 1 {
        return HookAction::Drop;
    }
    let head = frame.head_mut();
    head[6..12].copy_from_slice(&[0x00, 0x16, 0x3e, 0, 5, to[2]]);
    head[..6].copy_from_slice(&mac_of(to));
    head[22] -= 1;
    // RFC 1624: the first byte of a word became less by one.
    let sum = u16::from_be_bytes([head[24], head[25]]);
    let (sum, carry) = sum.overflowing_add(0x0100);
    head[24..26].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    let out = u32::from(to[2]);
    if out == vif { HookAction::Tx } else { HookAction::Redirect(out) }
}

pub fn main() -> Result<()> {
    let mut machine = Machine::new()?;
    let config = FrontConfig {
        staging: Buffers { sent_on: true, ..FrontConfig::default().staging },
        ..FrontConfig::default()
    };
    let mut wires = [machine.wire(config)?, machine.wire(config)?];
    for k in 0..FRAMES {
        let (from, to) = (k % 2, k / 2 % 2);
        let (near, remote) = ([10, 0, from as u8, 7], [10, 0, to as u8, 8]);
        let frame = udp(near, remote, 53, if k % 5 == 0 { 1500 } else { 64 });
        wires[from].host_end.net.gives.push_back(frame);
    }
    let guest = &machine.guest;
    let (mut passed, mut elsewhere) = (Arena::new(), Diverted::new());
    loop {
        let mut moved = false;
        for from in 0..wires.len() {
            moved |= wires[from].host_end.turn()?;
            passed.clear();
            // No more than either can take: nothing is lost for want of room.
            let most = wires.iter().map(|wire| wire.front.room(0)).min().unwrap_or(0) as usize;
            let front = &mut wires[from].front;
            let hook = |frame: &mut HookFrame| route(from as u32, frame);
            moved |= front.queue_mut(0).expect("a live vif").recv_hooked(
                guest,
                &mut passed,
                &mut elsewhere,
                (1, most),
                hook,
            )? > 0;
            for (to, burst) in elsewhere.runs() {
                wires[to as usize].front.queue_mut(0).expect("a live vif").send(guest, &burst)?;
            }
            for wire in &mut wires {
                moved |= wire.front.queue_mut(0).expect("a live vif").reclaim(guest, 1)? > 0;
            }
        }
        if !moved {
            break;
        }
    }
    let mut arrived = 0;
    for (net, wire) in wires.into_iter().enumerate() {
        let stats = wire.front.queue(0).expect("a vif with queues").hook_stats();
        println!(
            "vif {net}: {} frames to the other one, {} back in their buffers, {} back by a copy, {} without room",
            stats.redirected, stats.sent_on, stats.sent_copied, stats.unsent
        );
        let right = |frame: &&Vec<u8>| {
            header_sum(&frame[14..34]) == 0xFFFF
                && frame[22] == 63
                && frame[..6] == [2, 0, 0, 0, net as u8, 8]
        };
        arrived += wire.close(guest)?.took.iter().filter(right).count();
    }
    println!("{arrived} of {FRAMES} frames arrived as they should");
    let left = machine.xen.counts();
    if (arrived, left.grants, left.mapped) == (FRAMES, 0, 0) {
        Ok(())
    } else {
        Err("frames or grants are amiss".into())
    }
}
