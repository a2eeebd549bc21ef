//! The consumer of frames in a guest of `bench hook`: as a stack would take them, or a frame hook.
//!
//! ```text
//!   Allocate, Stack:  arena --> memory of their own, headers read        smoltcp
//!   Return:           arena --> TX, as any frame                         Hook, SendOn: action Drop, Tx
//! ```
//! Each of them reads every frame's number, which the row's sink checks.

use super::Result;
use super::guest::Guest;
use super::process_command::{RING_SLOTS, RxWay};
use crate::station::guest_stack::{GuestStack, StackConfig};
use pregrant::net::front::{Diverted, HookAction};
use pregrant::net::headers::{IpHeaders, MacAddr};
use pregrant::port::{Arena, BURST_FRAMES};
use pregrant_host::ports::checking_sink::CheckingSink;
use pregrant_host::ports::sequence::{self, Wrong};
use std::hint::black_box;
use std::net::Ipv4Addr;

pub struct Consumer {
    diverted: Diverted,
    numbers: [(Number, usize); BURST_FRAMES],
    stack: GuestStack,
    /// Frames that the guest's network stack would have queued.
    backlog: Vec<Box<[u8]>>,
}

type Number = std::result::Result<u64, Wrong>;

impl Consumer {
    /// Creates a consumer that has received no frame.
    pub fn new() -> Self {
        let config = StackConfig::new(MacAddr([2, 0, 0, 0, 0, 5]), Ipv4Addr::new(10, 0, 0, 5));
        Self {
            diverted: Diverted::new(),
            numbers: [(Err(Wrong::Foreign), 0); BURST_FRAMES],
            stack: GuestStack::new(&config, 0),
            backlog: Vec::with_capacity(BURST_FRAMES),
        }
    }

    /// Handles frames of queue `i`, of `slots` slots each, by a hook that drops them or sends them
    /// back.
    #[inline(always)]
    pub fn hook(
        &mut self,
        guest: &mut Guest,
        i: usize,
        arena: &mut Arena,
        sink: &mut CheckingSink,
        (how, slots): (RxWay, usize),
    ) -> Result<usize> {
        let Self { diverted, numbers, .. } = self;
        let (action, most) = match how {
            RxWay::SendOn => {
                // As many as there is room for: nothing is dropped.
                let want = (BURST_FRAMES * slots).min(RING_SLOTS as usize / 2);
                if (guest.vif().room(i) as usize) < want {
                    guest.reclaim(i, want as u32 / 2)?;
                }
                (HookAction::Tx, guest.vif().room(i) as usize / slots)
            }
            _ => (HookAction::Drop, BURST_FRAMES),
        };
        if most == 0 {
            return Ok(0);
        }
        let mut seen = 0;
        let n = guest.recv_hooked(i, arena, diverted, (1, most), |frame| {
            let (head, len) = (frame.head(), frame.len());
            numbers[seen] = (sequence::number_of(head, len), len);
            seen += 1;
            if numbers[seen - 1].0.is_err() {
                return HookAction::Drop; // a mark is not to come back
            }
            if how == RxWay::SendOn {
                // The addresses, as a sender of replies must.
                let (to, from) = frame.head_mut()[..12].split_at_mut(6);
                to.swap_with_slice(from);
            }
            action
        })?;
        sink.take_each(numbers[..seen].iter().copied());
        Ok(n)
    }

    /// Handles frames of queue `i` that were copied to `arena`.
    #[inline(always)]
    pub fn consume(
        &mut self,
        guest: &mut Guest,
        i: usize,
        arena: &mut Arena,
        how: RxWay,
        wait: impl FnMut(&mut Guest, bool) -> Result<()>,
    ) -> Result<()> {
        match how {
            RxWay::Allocate => {
                self.backlog.extend(arena.burst().iter().map(|(frame, _)| Box::from(frame)));
                for frame in self.backlog.drain(..) {
                    black_box(IpHeaders::parse(black_box(&frame)).is_ok());
                }
            }
            RxWay::Stack => {
                self.stack.receive(&arena.burst());
                black_box(self.stack.poll(0));
                self.stack.sent(BURST_FRAMES);
            }
            RxWay::Return => return send_back(guest, i, arena, wait),
            _ => {}
        }
        Ok(())
    }
}

/// Sends all frames of the arena back.
fn send_back(
    guest: &mut Guest,
    i: usize,
    arena: &mut Arena,
    mut wait: impl FnMut(&mut Guest, bool) -> Result<()>,
) -> Result<()> {
    for k in 0..arena.len() {
        let at = arena.desc(k).at as usize;
        let (to, from) = arena.bytes_mut()[at..at + 12].split_at_mut(6);
        to.swap_with_slice(from);
    }
    let mut done = 0;
    while done < arena.len() {
        if (guest.vif().room(i) as usize) < BURST_FRAMES {
            guest.reclaim(i, BURST_FRAMES as u32 / 2)?;
        }
        let sent = guest.send(i, &arena.burst().skip(done))?;
        done += sent;
        if sent == 0 {
            let freed = guest.reclaim(i, 1)?;
            wait(guest, freed > 0)?;
        }
    }
    Ok(())
}
