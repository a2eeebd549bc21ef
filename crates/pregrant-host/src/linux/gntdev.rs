//! Mapping and copying of grants by `/dev/xen/gntdev`.
//!
//! ```text
//!   map    ioctl: a list of references --> index; mmap at the index maps them (a bad one fails here, with EINVAL)
//!   unmap  munmap, then ioctl with the index
//!   copy   ioctl: segments, each with its own status; the kernel makes hypercalls of 16     (to and from `rooms`, or short ones by way of `bounce`)
//! ```
//! A grant reference may be mapped several times at once. A mapping that is not writable maps the
//! grants read-only.
//!
//! What a peer may do: name any reference (the status reports failure), change the bytes at any
//! time, die (its pages stay until they are unmapped).

use super::bounce::Bounce;
use super::burst_buffers::BurstBuffers;
use super::device_node::{GNTDEV, Node, NodeError};
use super::ioctl::{
    self, DEST_GREF, GNTDEV_COPY, GNTDEV_MAP, GNTDEV_UNMAP, SOURCE_GREF, Segment, gref_side, pair,
};
use crate::counters::Tally;
use crate::line_budget::LineBudget;
use crate::mapping::Base;
use pregrant::burst_buffer::BurstBuffer;
use pregrant::platform::{Access, CopyBatch, CopyOp, GrantOps, LocalBytes, MapError, PeerMem};
use pregrant::shm::SharedBytes;
use pregrant::wire::grant::GrantStatus;
use pregrant::{DomId, GrantRef, PAGE_SIZE, PlatformError};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::{OnceCell, RefCell};
use std::ptr::NonNull;
use std::sync::Arc;

/// Largest number of segments per ioctl. The kernel takes any number; this limits our buffer. One
/// is kept free for an operation that crosses a page boundary.
const SEGMENTS: usize = 1024;

/// The segments of the next call, and the operation to which each belongs.
#[derive(Debug)]
struct Tried {
    segments: Vec<Segment>,
    ops: Vec<Piece>,
}

/// An operation of a batch, and its range in the bounce pages if it has one.
#[derive(Clone, Copy, Debug)]
struct Piece {
    batch: u32,
    op: u32,
    place: Option<usize>,
}

impl Default for Tried {
    fn default() -> Self {
        Self { segments: Vec::with_capacity(SEGMENTS), ops: Vec::with_capacity(SEGMENTS) }
    }
}

impl Tried {
    fn push(&mut self, segment: Segment, op: Piece) {
        self.segments.push(segment);
        self.ops.push(op);
    }

    fn is_full(&self) -> bool {
        self.segments.len() >= SEGMENTS - 1
    }
}

/// Access to other domains' granted memory.
#[derive(Debug)]
pub struct Gntdev {
    node: OnceCell<Arc<Node>>,
    tally: Arc<Tally>,
    own: DomId,
    tried: RefCell<Tried>,
    bounce: Bounce,
}

/// Mapped pages of another domain, which are unmapped on drop.
#[derive(Debug)]
pub struct PeerMap {
    node: Arc<Node>,
    tally: Arc<Tally>,
    base: Base,
    pages: usize,
    index: u64,
    write: bool,
}

impl Gntdev {
    pub(super) fn new(own: DomId, tally: Arc<Tally>) -> Self {
        let bounce = Bounce::new(own, Arc::clone(&tally));
        Self { node: OnceCell::new(), tally, own, tried: RefCell::default(), bounce }
    }

    pub(super) fn node(&self) -> Result<&Arc<Node>, NodeError> {
        if self.node.get().is_none() {
            let _ = self.node.set(Arc::new(Node::open(GNTDEV)?));
        }
        self.node.get().ok_or(NodeError {
            path: GNTDEV.path,
            errno: Errno::NODEV,
            remedy: "try again".into(),
        })
    }
}

/// Returns the grant status that corresponds to an errno of gntdev.
fn status_of(errno: Errno) -> GrantStatus {
    match errno {
        Errno::NOMEM | Errno::NOSPC => GrantStatus::NO_SPACE,
        Errno::AGAIN => GrantStatus::EAGAIN,
        _ => GrantStatus::GENERAL_ERROR,
    }
}

// SAFETY: a map is one mmap of gntdev over as many pages as the list has, in the list's order,
// until drop.
unsafe impl PeerMem for Gntdev {
    type Map = PeerMap;

    #[inline(always)]
    fn grant_ops(&self) -> GrantOps {
        self.tally.grant_ops()
    }

    fn map(&self, of: DomId, refs: &[GrantRef], acc: Access) -> Result<PeerMap, MapError> {
        let failed = |errno| MapError { index: None, status: status_of(errno) };
        let node = self.node().map_err(|e| {
            NO_NODE.error(format_args!("{e}"));
            failed(e.errno)
        })?;
        if refs.is_empty() {
            return Err(failed(Errno::INVAL));
        }
        // The structure's 16 bytes, then 8 for each reference.
        let mut words = vec![0; 2 + refs.len()];
        words[0] = refs.len() as u64;
        for (word, gref) in words[2..].iter_mut().zip(refs) {
            *word = pair(of.0.into(), gref.0);
        }
        self.tally.syscalls.add(2);
        // SAFETY: 16 bytes and 8 for each reference.
        unsafe { ioctl::call(node.as_fd(), GNTDEV_MAP, &mut words) }.map_err(failed)?;
        let index = words[1];
        let prot = match acc {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                refs.len() * PAGE_SIZE,
                prot,
                MapFlags::SHARED,
                node.as_fd(),
                index,
            )
        };
        match mapped.map(|p| NonNull::new(p.cast::<u8>())) {
            Ok(Some(base)) => {
                self.tally.grant_maps.add(refs.len());
                Ok(PeerMap {
                    node: Arc::clone(node),
                    tally: Arc::clone(&self.tally),
                    base: Base(base),
                    pages: refs.len(),
                    index,
                    write: acc == Access::ReadWrite,
                })
            }
            Ok(None) | Err(_) => {
                unmap(node, index, refs.len());
                Err(failed(mapped.err().unwrap_or(Errno::NOMEM)))
            }
        }
    }

    fn burst_buffer(&self, bytes: usize) -> Result<BurstBuffer, PlatformError> {
        BurstBuffers::take(self.own, &self.tally, bytes)
    }

    fn unmap(&self, done: &mut Vec<PeerMap>) {
        for mut map in done.drain(..) {
            if !Arc::ptr_eq(&map.tally, &self.tally) {
                // It was mapped through another handle and is unmapped through this one.
                map.tally = Arc::clone(&self.tally);
            }
        }
    }

    fn copy(&self, of: DomId, local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError> {
        self.copy_each(of, &mut [CopyBatch { local, ops }])
    }

    fn copy_each(&self, of: DomId, batches: &mut [CopyBatch<'_>]) -> Result<(), PlatformError> {
        let failed = |e: Errno| PlatformError { op: "copy through gntdev", code: e.raw_os_error() };
        let node = self.node().map_err(|e| failed(e.errno))?;
        let mut tried = self.tried.borrow_mut();
        for k in 0..batches.len() {
            self.tally.copies(batches[k].ops);
            let burst_buffer = BurstBuffers::of(match &batches[k].local {
                LocalBytes::FromPeer(bytes) => bytes,
                LocalBytes::ToPeer(bytes) => bytes,
            });
            let (base, len, to_peer) = match &mut batches[k].local {
                LocalBytes::FromPeer(bytes) => (bytes.as_mut_ptr() as u64, bytes.len(), false),
                LocalBytes::ToPeer(bytes) => (bytes.as_ptr() as u64, bytes.len(), true),
            };
            for i in 0..batches[k].ops.len() {
                let op = &mut batches[k].ops[i];
                let (offset, count, at) = (usize::from(op.offset), usize::from(op.len), op.at as usize);
                // One segment that the kernel refuses would fail the whole call.
                if offset + count > PAGE_SIZE || at > len || count > len - at {
                    op.status = GrantStatus::BAD_COPY_ARG;
                    continue;
                }
                op.status = GrantStatus::OKAY;
                if count == 0 {
                    continue;
                }
                let theirs = |done: usize| gref_side(op.gref.0, op.offset + done as u16, of.0);
                if let Some((pages, start)) = &burst_buffer {
                    let mut done = 0;
                    while done < count {
                        // A segment must not cross a page boundary.
                        let at = start + at + done;
                        let n = (count - done).min(PAGE_SIZE - at % PAGE_SIZE);
                        let Some(near) = pages.side(at) else {
                            // Cannot happen: the length equals that of the reserved range.
                            op.status = GrantStatus::BAD_COPY_ARG;
                            break;
                        };
                        let (source, dest) =
                            if to_peer { (near, theirs(done)) } else { (theirs(done), near) };
                        let flags = SOURCE_GREF | DEST_GREF;
                        let segment = Segment { source, dest, len: n as u16, flags, status: 0, pad: 0 };
                        tried.push(segment, Piece { batch: k as u32, op: i as u32, place: None });
                        done += n;
                    }
                    if tried.is_full() {
                        self.call_copy(node, &mut tried, batches).map_err(failed)?;
                    }
                    continue;
                }
                let theirs = theirs(0);
                let place = self.bounce.place(count).filter(|place| match &batches[k].local {
                    LocalBytes::ToPeer(bytes) => self.bounce.put(*place, &bytes[at..at + count]),
                    LocalBytes::FromPeer(_) => true,
                });
                let (near, flags) = match place.and_then(|place| self.bounce.side(place)) {
                    Some(near) => (near, SOURCE_GREF | DEST_GREF),
                    None => (base + at as u64, if to_peer { DEST_GREF } else { SOURCE_GREF }),
                };
                let (source, dest) = if to_peer { (near, theirs) } else { (theirs, near) };
                let segment = Segment { source, dest, len: count as u16, flags, status: 0, pad: 0 };
                tried.push(segment, Piece { batch: k as u32, op: i as u32, place });
                if tried.is_full() {
                    self.call_copy(node, &mut tried, batches).map_err(failed)?;
                }
            }
        }
        self.call_copy(node, &mut tried, batches).map_err(failed)
    }
}

impl Gntdev {
    /// Makes one call for the collected segments, and sets the operations' statuses.
    fn call_copy(&self, node: &Node, tried: &mut Tried, batches: &mut [CopyBatch<'_>]) -> Result<(), Errno> {
        if tried.segments.is_empty() {
            return Ok(());
        }
        self.tally.syscalls.add(1);
        let mut words = [tried.segments.len() as u64, tried.segments.as_mut_ptr() as u64];
        // SAFETY: as many segments as the first word says, in a vector that lives on; each address
        // and length is in the local bytes of its batch (checked as it was collected), borrowed
        // for this call, exclusively where they are written. A near side that is a reference is a
        // page of `bounce`, which no one borrows, or of the room that the batch's bytes are in,
        // which is borrowed for this call.
        let called = unsafe { ioctl::call(node.as_fd(), GNTDEV_COPY, &mut words) };
        for (segment, piece) in tried.segments.drain(..).zip(tried.ops.drain(..)) {
            let mut status =
                if called.is_ok() { GrantStatus(segment.status) } else { GrantStatus::GENERAL_ERROR };
            let batch = &mut batches[piece.batch as usize];
            let op = &mut batch.ops[piece.op as usize];
            if let (Some(place), LocalBytes::FromPeer(bytes)) = (piece.place, &mut batch.local)
                && status == GrantStatus::OKAY
                && !self.bounce.take(place, &mut bytes[op.at as usize..][..usize::from(op.len)])
            {
                status = GrantStatus::GENERAL_ERROR;
            }
            // An operation of two segments succeeds only if both did.
            if status != GrantStatus::OKAY {
                op.status = status;
            }
        }
        self.bounce.clear();
        called.map(drop)
    }
}

/// Limits the log lines about the missing node, which guests that reconnect could repeat without
/// end.
static NO_NODE: LineBudget = LineBudget::new();
static UNMAPPED: LineBudget = LineBudget::new();

fn unmap(node: &Node, index: u64, pages: usize) {
    // SAFETY: the structure is two words.
    if let Err(e) = unsafe { ioctl::call(node.as_fd(), GNTDEV_UNMAP, &mut [index, pages as u64]) } {
        UNMAPPED.warn(format_args!("{node}: cannot unmap {pages} page(s): {e}", node = GNTDEV.path));
    }
}

impl Drop for PeerMap {
    fn drop(&mut self) {
        self.tally.syscalls.add(2);
        self.tally.grant_unmaps.add(self.pages);
        // SAFETY: the range is this value's own and nothing borrows from it any more.
        if let Err(e) = unsafe { rustix::mm::munmap(self.base.0.as_ptr().cast(), self.len()) } {
            UNMAPPED.warn(format_args!(
                "{node}: munmap of {len} bytes failed: {e}",
                node = GNTDEV.path,
                len = self.len()
            ));
        }
        unmap(&self.node, self.index, self.pages);
    }
}

// SAFETY: `map` mapped that many pages, page aligned, until drop; one that faults when it is
// written to says that it may not be.
unsafe impl SharedBytes for PeerMap {
    fn base(&self) -> NonNull<u8> {
        self.base.0
    }
    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }
    #[inline(always)]
    fn is_writable(&self) -> bool {
        self.write
    }
    fn store_refused(&self) {
        static REFUSED: LineBudget = LineBudget::new();
        REFUSED.warn(format_args!(
            "{node}: refused a write to {pages} page(s) that are mapped read-only; a bug in pregrant, please report it",
            node = GNTDEV.path,
            pages = self.pages
        ));
    }
}
