//! Sends ICMP echo requests, one after another, from a guest's stack.

use super::guest_stack::GuestStack;
use smoltcp::iface::SocketHandle;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::icmp;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, IpAddress};
use std::collections::VecDeque;
use std::net::Ipv4Addr;

/// Length of the payload in bytes, as in other pings.
pub const PAYLOAD: usize = 56;
/// Largest number of requests that wait for answers; older ones count as lost.
const WAITING_MAX: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The sequence number of the answered request.
    pub seq: u16,
    pub took_ns: u64,
}

pub struct Pinger {
    socket: SocketHandle,
    to: Ipv4Addr,
    ident: u16,
    next: u16,
    /// Requests without an answer, with the time at which each was sent.
    waiting: VecDeque<(u16, u64)>,
    /// Returns the number of requests that were sent.
    pub sent: u64,
    pub answered: u64,
}

impl Pinger {
    pub fn new(stack: &mut GuestStack, to: Ipv4Addr, ident: u16) -> Self {
        let buffer = || {
            // A guest that did not run for a while finds all of its answers at once.
            let metadata = vec![icmp::PacketMetadata::EMPTY; WAITING_MAX];
            icmp::PacketBuffer::new(metadata, vec![0; WAITING_MAX * (PAYLOAD + 8)])
        };
        let mut socket = icmp::Socket::new(buffer(), buffer());
        // It was just made, and the endpoint is a definite one.
        let _ = socket.bind(icmp::Endpoint::Ident(ident));
        let socket = stack.sockets().add(socket);
        Self { socket, to, ident, next: 0, waiting: VecDeque::new(), sent: 0, answered: 0 }
    }

    /// Sends the next request. False: no room, try again.
    pub fn ask(&mut self, stack: &mut GuestStack, now_ns: u64) -> bool {
        let request =
            Icmpv4Repr::EchoRequest { ident: self.ident, seq_no: self.next, data: &[0x5A; PAYLOAD] };
        let socket = stack.sockets().get_mut::<icmp::Socket>(self.socket);
        let Ok(room) = socket.send(request.buffer_len(), IpAddress::Ipv4(self.to)) else { return false };
        request.emit(&mut Icmpv4Packet::new_unchecked(room), &ChecksumCapabilities::default());
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((self.next, now_ns));
        self.next = self.next.wrapping_add(1);
        self.sent += 1;
        true
    }

    /// The next answer that arrived; each is returned once.
    pub fn answer(&mut self, stack: &mut GuestStack, now_ns: u64) -> Option<Answer> {
        let socket = stack.sockets().get_mut::<icmp::Socket>(self.socket);
        while let Ok((bytes, from)) = socket.recv() {
            let packet = Icmpv4Packet::new_checked(bytes).ok();
            let repr = packet.and_then(|p| Icmpv4Repr::parse(&p, &ChecksumCapabilities::default()).ok());
            let Some(Icmpv4Repr::EchoReply { ident, seq_no, .. }) = repr else { continue };
            let at = self.waiting.iter().position(|(seq, _)| *seq == seq_no);
            if let (true, true, Some(at)) = (ident == self.ident, from == IpAddress::Ipv4(self.to), at)
                && let Some((seq, sent_ns)) = self.waiting.remove(at)
            {
                self.answered += 1;
                return Some(Answer { seq, took_ns: now_ns.saturating_sub(sent_ns) });
            }
        }
        None
    }

    /// Returns the number of requests that were sent in the last `patience_ns` and have no answer,
    /// which may still arrive.
    pub fn under_way(&self, now_ns: u64, patience_ns: u64) -> u64 {
        self.waiting.iter().filter(|(_, sent_ns)| now_ns.saturating_sub(*sent_ns) < patience_ns).count()
            as u64
    }

    /// Returns true if an answer may still arrive.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::guest_stack::tests::{carry, pair};
    use super::*;

    #[test]
    fn every_request_that_arrives_is_answered_once() {
        let (mut a, mut b) = pair(1500);
        let mut pinger = Pinger::new(&mut a, Ipv4Addr::new(10, 0, 0, 2), 7);
        let mut answers = Vec::new();
        let mut now = 0;
        for n in 0..10u16 {
            assert!(pinger.ask(&mut a, now));
            for _ in 0..4 {
                a.poll(now);
                let lost =
                    n == 4 && a.outgoing().frames.len() == 1 && a.outgoing().frame(0)[12..14] == [8, 0];
                if lost {
                    a.sent(1);
                }
                carry(&mut a, &mut b);
                now += 1000;
                b.poll(now);
                carry(&mut b, &mut a);
                a.poll(now);
                answers.extend(pinger.answer(&mut a, now));
            }
        }
        let numbers: Vec<_> = answers.iter().map(|answer| answer.seq).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 5, 6, 7, 8, 9], "the fifth was lost");
        assert_eq!((pinger.sent, pinger.answered, pinger.is_waiting()), (10, 9, true));
        assert_eq!((pinger.under_way(now, u64::MAX), pinger.under_way(now, 1000)), (1, 0));
        assert!(answers.iter().all(|answer| (1000..=4000).contains(&answer.took_ns)), "{answers:?}");
    }
}
