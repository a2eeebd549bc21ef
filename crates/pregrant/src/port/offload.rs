//! Checksum and segmentation work: what is left of a frame's, and what a port takes.
//!
//! ```text
//!   Offload, of a frame --within Offloads, of its reader--> passed on; else done before
//! ```
//! What a guest may do: claim any work about its frames. Only a copy of the claim counts, and who
//! does the work parses the frame itself.

/// The work left to be done on a frame: checksum and segmentation (docs/protocol 2.7).
///
/// It has what netif can express, and no offsets: the checksum and the segmentation are those of
/// the outermost TCP or UDP header, after an Ethernet header without tags
/// ([`IpHeaders::is_plain`](crate::net::headers::IpHeaders::is_plain)). A guest may set it on a
/// tagged frame, which a back passes on to a port unchanged, and to no other guest. A port whose
/// frames have other work left, after a tag or in a tunnel, does that work itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The L4 checksum field holds only the pseudo-header's sum, and must be completed.
    pub csum_blank: bool,
    /// The L4 checksum was verified (also set with `csum_blank`).
    pub csum_ok: bool,
    /// The type of segmentation: 0 none, 1 TCPv4, 2 TCPv6. If it is not 0, the checksum is blank.
    pub gso_type: u8,
    /// Bytes of payload per segment, if `gso_type` is not 0.
    pub gso_size: u16,
}

impl Offload {
    /// No work is left, and nothing is known about the checksum.
    pub const NONE: Self = Self { csum_blank: false, csum_ok: false, gso_type: 0, gso_size: 0 };
}

/// The offloads that a port supports. Other work is done in software first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offloads {
    /// The receiver accepts frames with a blank checksum.
    pub csum: bool,
    /// The receiver accepts TCP segments larger than the MTU.
    pub gso: bool,
}
