//! Answers echo requests in the buffers in which they arrived.
//!
//! What a peer may do: send anything. A request is whole in one fragment, to this hardware address
//! and from a host's. IP addresses are not checked.

use pregrant::net::headers::MacAddr;

const IPV4: [u8; 2] = [8, 0];
const ICMP: u8 = 1;
const REQUEST: u8 = 8;
const ANSWER: u8 = 0;

/// Returns true if a frame with this head is an echo request to `mac`.
pub fn is_request(head: &[u8], mac: MacAddr) -> bool {
    head.len() >= 42
        && head[..6] == mac.0
        && head[6] & 1 == 0
        && head[12..14] == IPV4
        && head[14] == 0x45
        && u16::from_be_bytes([head[20], head[21]]) & 0x3FFF == 0
        && head[23] == ICMP
        && head[34] == REQUEST
}

/// Turns a request into its answer, in place. The checksums remain right, since they do not change
/// when two words change places.
pub fn answer(head: &mut [u8]) {
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
