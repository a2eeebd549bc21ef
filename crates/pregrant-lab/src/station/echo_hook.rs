//! A frame hook to try: what becomes of echo requests, before the guest's stack or kernel has a
//! frame of them.
//!
//! ```text
//!   Frontend --head--> echo request for this address? --no--> Pass
//!                          '--yes--> Pass, Drop, or Tx: the answer, made in the head, in the buffer that the request came in
//! ```
//! What a peer may do: send anything. A frame passes unless it is a whole echo request in one
//! fragment, to this hardware address and from a host's. IP addresses are not checked.

use pregrant::net::front::{Diverted, FrontQueue, HookAction, HookFrame, HookStats};
use pregrant::net::headers::MacAddr;
use pregrant::platform::Platform;
use pregrant::port::{Arena, BURST_FRAMES};
use pregrant::xenstore::Transport;
use pregrant_host::drivers::{Frontend, FrontendError};
use std::fmt;

/// See the module.
pub struct EchoHook {
    mac: MacAddr,
    action: HookAction,
    diverted: Diverted,
}

impl EchoHook {
    /// Of a vif with this address, for requests this action.
    pub fn new(mac: MacAddr, action: HookAction) -> Self {
        Self { mac, action, diverted: Diverted::new() }
    }

    /// Receives a burst of queue `i`: frames that pass are added to `out`. Returns how many there
    /// were.
    pub fn recv<P: Platform, T: Transport>(
        &mut self,
        guest: &mut Frontend<P, T>,
        i: usize,
        out: &mut Arena,
    ) -> Result<usize, FrontendError> {
        let Self { mac, action, diverted } = self;
        guest.recv_hooked(i, out, diverted, (1, BURST_FRAMES), |frame| inspect(frame, *mac, *action))
    }
}

const IPV4: [u8; 2] = [8, 0];
const ICMP: u8 = 1;
const REQUEST: u8 = 8;
const ANSWER: u8 = 0;

fn inspect(frame: &mut HookFrame, mac: MacAddr, action: HookAction) -> HookAction {
    let head = frame.head();
    let is_request = head.len() >= 42
        && head[..6] == mac.0
        && head[6] & 1 == 0
        && head[12..14] == IPV4
        && head[14] == 0x45
        && u16::from_be_bytes([head[20], head[21]]) & 0x3FFF == 0
        && head[23] == ICMP
        && head[34] == REQUEST;
    if !is_request {
        return HookAction::Pass;
    }
    if action == HookAction::Tx {
        answer(frame.head_mut());
    }
    action
}

/// Makes a request the answer to it. Sums stay right where two words change places.
fn answer(head: &mut [u8]) {
    let (to, from) = head[..12].split_at_mut(6);
    to.swap_with_slice(from);
    let (from, to) = head[26..34].split_at_mut(4);
    from.swap_with_slice(to);
    head[34] = ANSWER;
    // RFC 1624: the word of the type became less by so much.
    let sum = u16::from_be_bytes([head[36], head[37]]);
    let (sum, carry) = sum.overflowing_add(u16::from(REQUEST - ANSWER) << 8);
    head[36..38].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
}

/// The verdicts of the hooks of all queues of a vif since it connected, in a line.
pub struct HookLine(HookStats);

impl HookLine {
    /// Of this vif.
    pub fn of<P: Platform, T: Transport>(guest: &Frontend<P, T>) -> Self {
        let vif = guest.vif();
        let mut sum = HookStats::default();
        for stats in (0..vif.nr_queues()).filter_map(|i| vif.queue(i)).map(FrontQueue::hook_stats) {
            sum.passed += stats.passed;
            sum.dropped += stats.dropped;
            sum.sent_on += stats.sent_on;
            sum.sent_copied += stats.sent_copied;
            sum.unsent += stats.unsent;
        }
        Self(sum)
    }
}

impl fmt::Display for HookLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HookStats { passed, dropped, sent_on, sent_copied, unsent, .. } = self.0;
        let frames = self.0.frames();
        write!(
            f,
            "hook: {frames} frame(s), {passed} passed, {dropped} dropped, {sent_on} sent on in their buffers, \
             {sent_copied} by a copy, {unsent} without room"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr};

    #[test]
    fn an_answer_is_the_request_with_ends_exchanged_and_a_right_sum() {
        for data in [&[][..], &[0xFF; 64], b"any bytes"] {
            let request = Icmpv4Repr::EchoRequest { ident: 0xABCD, seq_no: 7, data };
            let mut frame = vec![0; 34 + request.buffer_len()];
            frame[..12].copy_from_slice(&[1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16]);
            frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            request.emit(&mut Icmpv4Packet::new_unchecked(&mut frame[34..]), &Default::default());
            answer(&mut frame);
            assert_eq!(frame[..12], [11, 12, 13, 14, 15, 16, 1, 2, 3, 4, 5, 6]);
            assert_eq!(frame[26..34], [10, 0, 0, 2, 10, 0, 0, 1]);
            let packet = Icmpv4Packet::new_checked(&frame[34..]).unwrap();
            let answer = Icmpv4Repr::EchoReply { ident: 0xABCD, seq_no: 7, data };
            assert!(packet.verify_checksum());
            assert_eq!(Icmpv4Repr::parse(&packet, &Default::default()), Ok(answer));
        }
    }
}
