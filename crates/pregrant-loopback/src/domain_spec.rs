//! The parts of a new domain.

use pregrant::DomId;

/// The parts of a new domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainSpec {
    pub domid: DomId,
    /// Pages of memory, which cost nothing until they are touched.
    pub pages: usize,
    /// Pages of the grant table, at most 64, with 512 grants each. They are the first pages of the
    /// memory.
    pub grant_frames: u32,
    /// Whether the domain survives its last process, as domain 0 and driver domains do and guests
    /// do not.
    pub durable: bool,
}

impl DomainSpec {
    /// A guest with 128 MiB and 32768 grants, which is Xen's default. That suffices for sixteen
    /// disks and sixteen vifs. It is destroyed with its last process.
    pub fn guest(domid: DomId) -> Self {
        Self { domid, pages: 32768, grant_frames: 64, durable: false }
    }
    /// Domain 0 or a driver domain: the default sizes, and it survives its processes.
    pub fn driver(domid: DomId) -> Self {
        Self { durable: true, ..Self::guest(domid) }
    }
}
