//! Describes a domain that is to be created.

use pregrant::DomId;

/// Describes a domain that is to be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainSpec {
    pub domid: DomId,
    /// Number of pages of memory. A page costs nothing until it is touched.
    pub pages: usize,
    /// Number of pages of the grant table, at most 64, with 512 grants each. They are the first
    /// pages of the memory.
    pub grant_frames: u32,
    /// True if the domain survives its last process, as domain 0 and driver domains do and guests
    /// do not.
    pub durable: bool,
}

impl DomainSpec {
    /// Describes a guest with 128 MiB and 32768 grants, which is Xen's default. That suffices for
    /// sixteen disks and sixteen vifs. The guest is destroyed with its last process.
    pub fn guest(domid: DomId) -> Self {
        Self { domid, pages: 32768, grant_frames: 64, durable: false }
    }
    /// Describes domain 0 or a driver domain, which has the default sizes and survives its
    /// processes.
    pub fn driver(domid: DomId) -> Self {
        Self { durable: true, ..Self::guest(domid) }
    }
}
