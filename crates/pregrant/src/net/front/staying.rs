//! Which received frames may stay in the pages in which they came, for a consumer with references
//! of its own to these pages, such as a kernel's network stack.
//!
//! ```text
//!   head, a private copy --headers--> TCP, whole or a fragment     its payload may stay
//!                                 '-> all else                     it is copied
//! ```
//! A stack that decrypts may write to the bytes that it reads: Linux's ESP input does so in the
//! pages of a frame that is not cloned, whatever the frame's flags say (until May 2026;
//! CVE-2026-43284), also inside UDP, and so does Linux's RxRPC, which is over UDP (CVE-2026-43500).
//! Then the back would see what was encrypted, or change what has been checked. A tunnel may have
//! such packets inside. Linux only reads TCP's payload, or decrypts a copy of it.
//!
//! What the back may do: write any headers. Those in the copy are the ones that the consumer
//! parses; what it changes in its pages later is payload.

use crate::net::headers::{IpHeaders, PROTOCOL_TCP};

/// Length of the longest TCP header.
const TCP_MAX: usize = 60;

/// True if the payload of a frame of `len` bytes may stay in its pages; `head` is a private copy of
/// its first bytes.
pub(super) fn may_stay(head: &[u8], len: usize) -> bool {
    IpHeaders::parse_head(head, len).is_ok_and(|headers| {
        headers.protocol == PROTOCOL_TCP
            && match headers.fragment {
                // Only the first has the header, and all are one packet at last.
                true => headers.l4_at + TCP_MAX <= head.len(),
                false => IpHeaders::are_in(head, len),
            }
    })
}

#[cfg(test)]
mod tests {
    use super::may_stay;
    use alloc::vec;
    use alloc::vec::Vec;

    const LEN: usize = 3000;
    const HEAD: usize = 256;

    /// Returns the headers Ethernet, `tags`, IPv4 with this protocol and fragment word, and TCP.
    fn ipv4(tags: &[u16], protocol: u8, fragment: u16) -> Vec<u8> {
        let mut head = vec![0; 12];
        tags.iter().for_each(|tag| head.extend([tag.to_be_bytes(), [0, 7]].concat()));
        head.extend([8, 0, 0x45, 0]);
        let total = (LEN - head.len() + 2) as u16;
        head.extend([total.to_be_bytes(), [0, 1], fragment.to_be_bytes(), [64, protocol]].concat());
        head.extend([0; 10]);
        tcp(head, 5)
    }

    /// Returns the headers Ethernet, IPv6, these extension headers of 8 bytes each, and TCP.
    fn ipv6(next: &[u8]) -> Vec<u8> {
        let mut head = vec![0; 12];
        head.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        head.extend(((LEN - 54) as u16).to_be_bytes());
        head.extend([next[0], 64]);
        head.extend([0; 32]);
        next[1..].iter().for_each(|next| head.extend([*next, 0, 0, 0, 0, 0, 0, 0]));
        tcp(head, 5)
    }

    /// Changes `head` so that its first extension header says that this is a later fragment.
    fn later(mut head: Vec<u8>) -> Vec<u8> {
        head[56..58].copy_from_slice(&[1, 1]);
        head
    }

    fn tcp(mut head: Vec<u8>, words: u8) -> Vec<u8> {
        let at = head.len();
        head.resize(HEAD, 0);
        head[at + 12] = words << 4;
        head
    }

    #[test]
    fn tcp_alone_stays_in_its_pages() {
        for (what, head) in [
            ("plain", ipv4(&[], 6, 0)),
            ("in a tag", ipv4(&[0x8100], 6, 0)),
            ("in two tags", ipv4(&[0x88a8, 0x8100], 6, 0)),
            ("its first fragment", ipv4(&[], 6, 0x2000)),
            ("a later fragment", ipv4(&[], 6, 0x2010)),
            ("IPv6", ipv6(&[6])),
            ("behind options", ipv6(&[0, 60, 6])),
            ("alone behind a fragment header", ipv6(&[44, 6])),
            ("a later fragment of IPv6", later(ipv6(&[44, 6]))),
        ] {
            assert!(may_stay(&head, LEN), "{what}");
        }
        for (what, head) in [
            ("ESP", ipv4(&[], 50, 0)),
            ("ESP in a tag", ipv4(&[0x8100], 50, 0)),
            ("a fragment of ESP", ipv4(&[], 50, 0x2010)),
            ("AH", ipv4(&[], 51, 0)),
            ("UDP, with ESP or RxRPC perhaps", ipv4(&[], 17, 0)),
            ("a fragment of UDP", ipv4(&[], 17, 0x2010)),
            ("IP in IP", ipv4(&[], 4, 0)),
            ("GRE", ipv4(&[], 47, 0)),
            ("ESP by IPv6", ipv6(&[50])),
            ("ESP behind options", ipv6(&[0, 60, 50])),
            ("a later fragment that begins with options", later(ipv6(&[44, 60, 6]))),
            ("a later fragment of ESP by IPv6", later(ipv6(&[44, 50]))),
            ("three tags", ipv4(&[0x88a8, 0x8100, 0x8100], 6, 0)),
            ("no IP", vec![0x5a; HEAD]),
            ("MACsec", [&[0; 12][..], &[0x88, 0xe5], &[0; HEAD - 14]].concat()),
            ("more options than a head has room for", ipv6(&[0, 60, 60, 60, 60, 60, 60, 60, 60, 60, 6])),
        ] {
            assert!(!may_stay(&head, LEN), "{what}");
        }
    }

    #[test]
    fn all_headers_are_in_the_copy() {
        let options = |len: u8| {
            let mut head = ipv6(&[60, 6]);
            head[55] = len / 8 - 1;
            let at = 54 + usize::from(len);
            head[at + 12..].fill(0xf0);
            head
        };
        // Ethernet, IPv6, options, and a TCP header of 60 bytes.
        assert!(may_stay(&options(136), LEN));
        assert!(!may_stay(&options(144), LEN));
        // The last of three extension headers may begin just at the end of a fragment header.
        let mut fragment = ipv6(&[60, 44, 6]);
        fragment[55] = 128 / 8 - 1;
        fragment[54 + 128..][..4].copy_from_slice(&[6, 0, 0, 1]);
        assert!(may_stay(&fragment, LEN), "54 + 128 + 8 + 60");
        fragment[55] = 136 / 8 - 1;
        fragment[54 + 136..][..4].copy_from_slice(&[6, 0, 0, 1]);
        fragment[54] = 44;
        assert!(!may_stay(&fragment, LEN));
        // A packet that is longer than its frame.
        assert!(!may_stay(&ipv4(&[], 6, 0), LEN - 1));
    }
}
