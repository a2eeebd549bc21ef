//! The parts of a domain.

use pregrant::DomId;

/// The parts of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainSpec {
    /// Its number.
    pub domid: DomId,
    /// Pages of memory; they cost nothing until they are touched.
    pub pages: usize,
    /// Pages of the grant table, 512 grants each, 64 at most; the first pages of the memory.
    pub grant_frames: u32,
    /// Whether it outlives its last process (domain 0 and driver domains do, guests do not).
    pub durable: bool,
}

impl DomainSpec {
    /// A guest: 128 MiB, 32768 grants, which are Xen's own default, gone with its last process.
    /// Sixteen disks and sixteen vifs have their pages there.
    pub fn guest(domid: DomId) -> Self {
        Self { domid, pages: 32768, grant_frames: 64, durable: false }
    }
    /// Domain 0 or a driver domain: as a guest, but it stays when its processes die.
    pub fn driver(domid: DomId) -> Self {
        Self { durable: true, ..Self::guest(domid) }
    }
}
