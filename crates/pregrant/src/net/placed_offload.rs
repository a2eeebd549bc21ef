//! Offload work on a frame with its offsets, as virtio's header and Linux's skb have them, and its
//! conversion to what netif can express.
//!
//! ```text
//!   csum_start ---------------------------------v    v-- csum_offset behind it
//!   | Ethernet | VLAN | IP | UDP | VXLAN | .. IP | TCP .. | payload
//!
//!   netif: a flag, and no place:   | Ethernet | IP | TCP or UDP .. | payload
//! ```
//! A reader of netif's flag looks for the outermost TCP or UDP header after an untagged Ethernet
//! header (docs/protocol 2.7). So the receiver of a frame with offsets passes on the work on such a
//! header and does the rest itself: [`take`](PlacedOffload::take) completes any other checksum at
//! the given place, and reports a large segment after a tag as one to be segmented
//! ([`Taken::Uncut`]). A large segment in a tunnel is refused: segmenting it also needs the rules
//! of the outer headers, and Linux passes none to a reader that did not ask for them
//! (`TUN_F_UDP_TUNNEL_GSO`).
//!
//! What a peer may do: no peer controls this alone, but a nested guest, or a program with a packet
//! socket, chooses each number: an offset outside of the frame is refused, and one inside costs
//! that frame two bytes.

use super::checksum;
use super::headers::{HeaderFault, IpHeaders};
use crate::port::Offload;

/// Offload work on a frame, with its offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlacedOffload {
    /// The offload work that is left.
    pub offload: Offload,
    /// For a blank checksum: offset of the first byte that it covers.
    pub csum_start: u16,
    /// For a blank checksum: offset of the checksum field, counted from `csum_start`.
    pub csum_offset: u16,
}

/// The result of taking a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// netif can express the work that is left.
    Frame(Offload),
    /// The frame is a large segment that must be segmented first.
    Uncut(Offload),
}

impl PlacedOffload {
    /// Whether netif can express this work for a frame of `len` bytes, of which `head` has the
    /// first, including all headers if there are any.
    #[inline]
    pub fn is_plain(&self, head: &[u8], len: usize) -> bool {
        let Offload { csum_blank, gso_type, .. } = self.offload;
        !csum_blank && gso_type == 0 || self.outermost(head, len).is_some_and(|ip| ip.is_plain())
    }

    /// The frame's headers, if the offsets are those of the outermost TCP or UDP header.
    fn outermost(&self, head: &[u8], len: usize) -> Option<IpHeaders> {
        let ip = IpHeaders::parse_head(head, len).ok()?;
        let start = usize::from(self.csum_start);
        let field = start + usize::from(self.csum_offset);
        let is_named = ip.l4_at == start && ip.checksum_at() == Ok(field);
        (is_named || !self.offload.csum_blank).then_some(ip)
    }

    /// Prepares a frame: completes its checksum if netif cannot express that it is blank. Doing it
    /// again with the work that is left changes nothing.
    ///
    /// # Errors
    ///
    /// An offset is outside of the frame, or the frame is a large segment whose offsets are not
    /// those of its outermost TCP header. The frame is unchanged.
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
        // If another checksum was completed, nothing is known about the outermost one.
        Ok(Taken::Frame(Offload { csum_ok: is_outermost, ..Offload::default() }))
    }
}
