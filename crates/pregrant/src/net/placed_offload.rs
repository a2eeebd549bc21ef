//! The work left to be done on a frame, with its place, as virtio's header and Linux's skb name it;
//! and as much of it as netif can say.
//!
//! ```text
//!   csum_start ---------------------------------v    v-- csum_offset behind it
//!   | Ethernet | VLAN | IP | UDP | VXLAN | .. IP | TCP .. | payload
//!
//!   netif: a flag, and no place:   | Ethernet | IP | TCP or UDP .. | payload
//! ```
//! Who reads netif's flag looks for the outermost TCP or UDP header behind an untagged Ethernet
//! header (docs/protocol 2.7). So who gets a frame with a place passes on what that place says of
//! such a header, and does the rest itself: [`take`](PlacedOffload::take) finishes any other
//! checksum where it is said to be, and a large segment behind a tag is to be cut
//! ([`Taken::Uncut`]). A large segment in a tunnel is refused: to cut it needs the outer headers'
//! rules too, and Linux gives none to a reader that did not ask (`TUN_F_UDP_TUNNEL_GSO`).
//!
//! What a peer may do: nothing here is a peer's word alone, but a nested guest, or a program with a
//! packet socket, chooses each number: a place outside of the frame is refused, and one inside
//! costs that frame two bytes.

use super::checksum;
use super::headers::{HeaderFault, IpHeaders};
use crate::port::Offload;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlacedOffload {
    /// The work.
    pub offload: Offload,
    /// Of a blank checksum: the first byte that it covers.
    pub csum_start: u16,
    /// Of a blank checksum: its field's first byte, counted from `csum_start`.
    pub csum_offset: u16,
}

/// A frame that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// netif can say what is left to be done.
    Frame(Offload),
    /// A large segment that is to be cut before it travels.
    Uncut(Offload),
}

impl PlacedOffload {
    /// Whether netif can say this of a frame of `len` bytes, of which `head` has the first: all
    /// headers, where there are any.
    #[inline]
    pub fn is_plain(&self, head: &[u8], len: usize) -> bool {
        let Offload { csum_blank, gso_type, .. } = self.offload;
        !csum_blank && gso_type == 0 || self.outermost(head, len).is_some_and(|ip| ip.is_plain())
    }

    /// The frame's headers, where the place is the outermost TCP or UDP header's.
    fn outermost(&self, head: &[u8], len: usize) -> Option<IpHeaders> {
        let ip = IpHeaders::parse_head(head, len).ok()?;
        let start = usize::from(self.csum_start);
        let field = start + usize::from(self.csum_offset);
        let is_named = ip.l4_at == start && ip.checksum_at() == Ok(field);
        (is_named || !self.offload.csum_blank).then_some(ip)
    }

    /// Takes a frame: finishes its checksum where netif cannot say that it is blank. Taken again
    /// with what is left, it is the same.
    ///
    /// # Errors
    /// The place is outside of the frame, or it is a large segment whose place is not its outermost
    /// TCP header's. The frame is unchanged.
    #[inline]
    pub fn take(&self, frame: &mut [u8]) -> Result<Taken, HeaderFault> {
        if self.is_plain(frame, frame.len()) {
            return Ok(Taken::Frame(self.offload));
        }
        self.take_other(frame)
    }

    #[cold]
    fn take_other(&self, frame: &mut [u8]) -> Result<Taken, HeaderFault> {
        let is_outermost = self.outermost(frame, frame.len()).is_some();
        if self.offload.gso_type != 0 {
            return if is_outermost { Ok(Taken::Uncut(self.offload)) } else { Err(HeaderFault::Unsupported) };
        }
        checksum::finish_at(frame, self.csum_start.into(), self.csum_offset.into())?;
        // Of the outermost checksum nothing is known where another was finished.
        Ok(Taken::Frame(Offload { csum_ok: is_outermost, ..Offload::default() }))
    }
}
