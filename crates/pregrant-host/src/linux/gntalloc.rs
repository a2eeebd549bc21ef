//! Granting memory by `/dev/xen/gntalloc`, where each allocation is a grant.
//!
//! ```text
//!   alloc    ioctl: pages, granted at once --> mmap at the index that it gave
//!   release  munmap, ioctl: the kernel ends the grants, now or when the peer has unmapped
//! ```
//! So pages cannot be granted one by one ([`GrantPool::per_frame`] is None), and a page in use
//! never comes back: the kernel keeps it, granted and unused by anyone else, and tries to free it
//! from time to time.
//!
//! What a peer may do: keep pages mapped for ever. Since Linux's fix of XSA-396, released pages are
//! not counted any more: the module's parameter `limit` (by default 1024 pages for the whole
//! domain) limits the pages in use, not those that the kernel waits for, so the domain's grant
//! table is what runs out next. Therefore a front that grants to a peer again and again offers it
//! the same pages each time, and releases them only at the end (`pregrant::grants::regions`).

use super::device_node::{GNTALLOC, Node, NodeError};
use super::ioctl::{self, GNTALLOC_ALLOC, GNTALLOC_DEALLOC, pair};
use crate::counters::Tally;
use crate::line_budget::LineBudget;
use crate::mapping::Base;
use pregrant::platform::{Access, GrantPool, GrantTable, InUse};
use pregrant::shm::SharedBytes;
use pregrant::{DomId, GrantRef, PAGE_SIZE, PlatformError};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::OnceCell;
use std::ptr::NonNull;
use std::sync::Arc;

/// `GNTALLOC_FLAG_WRITABLE`.
const WRITABLE: u32 = 1;
/// The module parameter that limits a domain's pages.
const LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";

/// Memory that this domain grants.
#[derive(Debug)]
pub struct Gntalloc {
    node: OnceCell<Arc<Node>>,
    tally: Arc<Tally>,
}

/// Granted pages, which are released on drop.
#[derive(Debug)]
pub struct Region {
    node: Arc<Node>,
    tally: Arc<Tally>,
    base: Base,
    pages: usize,
    index: u64,
}

impl Gntalloc {
    pub(super) fn new(tally: Arc<Tally>) -> Self {
        Self { node: OnceCell::new(), tally }
    }

    pub(super) fn node(&self) -> Result<&Arc<Node>, NodeError> {
        if self.node.get().is_none() {
            let _ = self.node.set(Arc::new(Node::open(GNTALLOC)?));
        }
        self.node.get().ok_or(NodeError {
            path: GNTALLOC.path,
            errno: Errno::NODEV,
            remedy: "try again".into(),
        })
    }

    /// Returns the largest number of pages that all processes of this domain together can grant
    /// through gntalloc. None: the module is not loaded.
    pub fn limit() -> Option<u64> {
        std::fs::read_to_string(LIMIT).ok()?.trim().parse().ok()
    }
}

// SAFETY: a region is a mapping of its own of pages that gntalloc made for it (zeroed, and zeroed
// once more here, since that is the rule), contiguous and page aligned, until drop; the kernel
// reuses none that a peer still has mapped.
unsafe impl GrantPool for Gntalloc {
    type Region = Region;

    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<Region, PlatformError> {
        let failed = |op, e: Errno| PlatformError { op, code: e.raw_os_error() };
        let node = self.node().map_err(|e| {
            NO_NODE.error(format_args!("{e}"));
            failed("open /dev/xen/gntalloc", e.errno)
        })?;
        let count = u32::try_from(refs.len()).ok().filter(|n| *n > 0);
        let count = count.ok_or(failed("grant no pages, or too many to count", Errno::INVAL))?;
        let flags = if acc == Access::ReadWrite { WRITABLE } else { 0 };
        // The structure's 16 bytes, then the references, two per word.
        let mut words = vec![0; 2 + refs.len().div_ceil(2) + 1];
        words[0] = pair(u32::from(to.0) | flags << 16, count);
        self.tally.syscalls.add(2);
        // SAFETY: 16 bytes and 4 for each reference, and a word to spare.
        unsafe { ioctl::call(node.as_fd(), GNTALLOC_ALLOC, &mut words) }.map_err(|e| match e {
            Errno::NOSPC => failed(
                "grant pages: gntalloc's limit is reached (more: echo 4096 > /sys/module/xen_gntalloc/parameters/limit)",
                e,
            ),
            e => failed("grant pages through gntalloc", e),
        })?;
        let index = words[1];
        for (i, gref) in refs.iter_mut().enumerate() {
            *gref = GrantRef((words[2 + i / 2] >> (32 * (i % 2))) as u32);
        }
        let len = refs.len() * PAGE_SIZE;
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                node.as_fd(),
                index,
            )
        };
        let base = match mapped.map(|p| NonNull::new(p.cast::<u8>())) {
            Ok(Some(base)) => Base(base),
            Ok(None) | Err(_) => {
                dealloc(node, index, refs.len());
                let e = mapped.err().unwrap_or(Errno::NOMEM);
                return Err(failed("map the pages that gntalloc granted", e));
            }
        };
        let region =
            Region { node: Arc::clone(node), tally: Arc::clone(&self.tally), base, pages: refs.len(), index };
        region.zero();
        Ok(region)
    }

    /// Releases a region. This never fails, since the kernel keeps pages that a peer still has
    /// mapped.
    fn release(&self, region: Region) -> Result<(), InUse<Region>> {
        drop(region);
        Ok(())
    }

    fn per_frame(&self) -> Option<&dyn GrantTable<Region = Region>> {
        None
    }
}

/// Limits the log lines about the missing node, which backends that reconnect could repeat without
/// end.
static NO_NODE: LineBudget = LineBudget::new();
static KEPT: LineBudget = LineBudget::new();

fn dealloc(node: &Node, index: u64, pages: usize) {
    // SAFETY: the structure is two words.
    if let Err(e) = unsafe { ioctl::call(node.as_fd(), GNTALLOC_DEALLOC, &mut [index, pages as u64]) } {
        KEPT.warn(format_args!(
            "{node}: {pages} granted page(s) cannot be freed yet: {e}",
            node = GNTALLOC.path
        ));
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.tally.syscalls.add(2);
        // SAFETY: the range is this value's own and nothing borrows from it any more.
        if let Err(e) = unsafe { rustix::mm::munmap(self.base.0.as_ptr().cast(), self.len()) } {
            KEPT.warn(format_args!(
                "{node}: munmap of {len} bytes failed: {e}",
                node = GNTALLOC.path,
                len = self.len()
            ));
        }
        dealloc(&self.node, self.index, self.pages);
    }
}

// SAFETY: see `GrantPool` above; mapped until drop.
unsafe impl SharedBytes for Region {
    fn base(&self) -> NonNull<u8> {
        self.base.0
    }
    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
}
