//! The longest frame for a guest that takes one slot per frame, because its front does not write
//! `feature-sg` (docs/protocol 2.8).
//!
//! ```text
//!   14 Ethernet, 1500 packet                           as of an interface with an MTU of 1500
//!   14 Ethernet, 4 or 8 of VLAN tags, 1500 packet      tags come on top
//!   the RX staging buffers' length, a page at most     if they are longer, the front has more room
//! ```
//! A slot has a page, but many of these fronts use a buffer for an MTU of 1500 per frame, and
//! truncate longer ones without an error. Linux's netback limits its interface's MTU for them.
//!
//! What a guest may do: be such a guest. Others may send frames of any length to it: those that are
//! too long are dropped and counted.

use super::headers::{ETHERNET_LEN, ETHERTYPE_QINQ, ETHERTYPE_VLAN, be16};
use crate::units::PAGE_SIZE;

/// Bytes of a packet, unless a larger size is known.
const MTU: usize = 1500;
/// Bytes of a VLAN tag.
const TAG_LEN: usize = 4;
/// Number of VLAN tags that may be added to a packet of that size.
const MAX_TAGS: usize = 2;

/// The limits of a guest that takes one slot per frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OneSlot {
    most: u32,
}

impl OneSlot {
    /// The limits of a guest whose RX staging buffers, if it has any, have this many bytes.
    pub fn with_buffers(bytes: Option<u32>) -> Self {
        let buffers = bytes.map_or(0, |bytes| bytes as usize).min(PAGE_SIZE);
        Self { most: buffers.max(ETHERNET_LEN + MTU) as u32 }
    }

    /// The MTU of an interface that sends to the guest.
    pub fn mtu(self) -> u32 {
        self.most - ETHERNET_LEN as u32
    }

    /// True if the guest accepts a frame of `len` bytes, whose first bytes are `head`.
    #[inline(always)]
    pub fn takes(self, len: usize, head: &[u8]) -> bool {
        len <= self.most as usize || self.takes_tagged(len, head)
    }

    #[cold]
    fn takes_tagged(self, len: usize, head: &[u8]) -> bool {
        let is_tag = |at: &usize| matches!(be16(head, *at), Some(ETHERTYPE_VLAN | ETHERTYPE_QINQ));
        let tags = (0..MAX_TAGS).map(|k| ETHERNET_LEN - 2 + k * TAG_LEN).take_while(is_tag).count();
        len <= self.most as usize + tags * TAG_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn tags_come_on_top_of_the_longest_frame() {
        let plain = OneSlot::with_buffers(None);
        assert_eq!(plain.mtu(), 1500);
        let tags = [&[][..], &[0x81, 0, 0, 5], &[0x88, 0xA8, 0, 6, 0x81, 0, 0, 5], &[0x81, 0, 0, 1, 8, 0]];
        for (tags, most) in tags.into_iter().zip([1514, 1518, 1522, 1518]) {
            let mut frame = vec![2; 9000];
            frame[12..12 + tags.len()].copy_from_slice(tags);
            for len in [60, 1514, most] {
                assert!(plain.takes(len, &frame[..len]), "{len}, {tags:?}");
            }
            assert!(!plain.takes(most + 1, &frame[..most + 1]), "{tags:?}");
            // The private head of a zero-copy frame.
            assert!(plain.takes(most, &frame[..128]) && !plain.takes(9000, &frame[..128]));
        }
        assert!(!plain.takes(1515, &[]) && plain.takes(1514, &[]));
    }

    #[test]
    fn staging_buffers_say_that_there_is_more() {
        for (bytes, mtu) in [(64, 1500), (2048, 2034), (4096, 4082), (65535, 4082)] {
            assert_eq!(OneSlot::with_buffers(Some(bytes)).mtu(), mtu);
        }
    }
}
