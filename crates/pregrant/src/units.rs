//! Xen's small numbers, each with a type of its own.

use core::fmt;

/// Bytes in a page of the paravirtual interfaces: always 4096, whatever the guest's page size.
pub const PAGE_SIZE: usize = 4096;

/// A domain's number (`domid_t`, xen/include/public/xen.h).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct DomId(pub u16);

/// An index into the granting domain's grant table (`grant_ref_t`,
/// xen/include/public/grant_table.h).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct GrantRef(pub u32);

/// A domain's own number of one end of an event channel (`evtchn_port_t`,
/// xen/include/public/event_channel.h). It is never called a bare "port": that is a frame port, see
/// [`crate::port`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct EvtchnPort(pub u32);

impl DomId {
    /// `DOMID_SELF` (0x7FF0): the caller's own domain in a grant operation.
    pub const SELF: DomId = DomId(0x7FF0);
}

impl GrantRef {
    /// Reference 0 is the reserved console grant and never valid for data, so it ends lists.
    pub const NONE: GrantRef = GrantRef(0);
    /// The first reference that a driver may use. Xen reserves 0..8 (docs/protocol 8.1).
    pub const FIRST_FREE: GrantRef = GrantRef(8);
}

impl fmt::Display for DomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "domain {}", self.0)
    }
}

impl fmt::Display for GrantRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gref {}", self.0)
    }
}

impl fmt::Display for EvtchnPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event channel {}", self.0)
    }
}
