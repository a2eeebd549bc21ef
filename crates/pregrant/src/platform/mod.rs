//! The services of a machine: granting and mapping of memory, event channels, a clock.
//!
//! ```text
//!        front's side                                back's side
//!   GrantPool  alloc = memory + grants     PeerMem   map / unmap / copy, in lists
//!   GrantTable grant one frame at a time   Events    bind
//!   Events     offer                       Clock
//! ```
//!
//! There are two levels of granting, because with Linux's gntalloc each allocation *is* a grant:
//! pools exist everywhere, grants of single pages only where a program controls its grant table
//! (loopback, bare metal). Mapping and copying take lists, so that one system call and one flush
//! serve a batch. Implementations: [`local`] (one process, for Miri, fuzzing and tests), Linux's
//! `/dev/xen` in `pregrant-host`, and the loopback in `pregrant-loopback`. All pass the same
//! conformance suite.
//! [`bare`] is for guests without an operating system.
#![expect(unsafe_code, reason = "`unsafe trait` lines alone: a wrong implementation breaks memory safety")]

use crate::burst_buffer::BurstBuffer;
use crate::error::PlatformError;
use crate::port::Burst;
use crate::shm::SharedBytes;
use crate::units::{DomId, EvtchnPort, GrantRef};
use crate::wire::grant::GrantStatus;
use alloc::vec::Vec;
use core::mem::{align_of, offset_of, size_of};
use core::time::Duration;

pub mod bare;
#[cfg(any(test, feature = "local"))]
pub mod local;
mod no_memory;

pub use no_memory::NoMemory;

/// The peer's access to granted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The peer may only read (`GTF_readonly`).
    ReadOnly,
    /// The peer may read and write.
    ReadWrite,
}

/// A domain's machine, as one thread uses it. Both drivers are generic over it.
///
/// A handle may move to another thread, and only one thread at a time may use it. A second thread
/// of the same process needs a handle of its own ([`another`](Self::another)). [Maps](PeerMem::Map)
/// and [channel ends](Events::Chan) may move to another thread without their handle: a map is used
/// and unmapped there, an end is [adopted](Events::adopt) there.
pub trait Platform: Send + Sized + 'static {
    /// The type of the granting side.
    type Grants: GrantPool;
    /// The type of the access to other domains' memory.
    type Peer: PeerMem;
    /// The type of the event channels.
    type Events: Events;
    /// The type of the clock.
    type Clock: Clock;
    /// This domain's number.
    fn domid(&self) -> DomId;
    /// The granting side: memory that this domain grants.
    fn grants(&self) -> &Self::Grants;
    /// The access to other domains' memory.
    fn peer(&self) -> &Self::Peer;
    /// The event channels.
    fn events(&self) -> &Self::Events;
    /// The clock.
    fn clock(&self) -> &Self::Clock;
    /// Creates another handle of this domain, for another thread of this process, with event
    /// channel ends of its own: each handle only gets events of ends that it offered, bound or
    /// adopted itself. Each has its own counters.
    ///
    /// The default is an error, for platforms that serve one thread only.
    fn another(&self) -> Result<Self, PlatformError> {
        Err(PlatformError { op: "make a second handle of a platform for one thread", code: NOT_SUPPORTED })
    }
}

/// The errno `EOPNOTSUPP`.
const NOT_SUPPORTED: i32 = 95;

/// A grant that could not be revoked because the peer still uses it. The memory is kept to be tried
/// again later, and is never granted to another peer.
#[derive(Debug)]
pub struct InUse<T>(pub T);

/// The granting side: pools of pages.
///
/// # Safety
/// For the implementor: a `Region` is `pages * 4096` bytes, contiguous, page aligned and zeroed,
/// used by nothing else, until `release` returned `Ok`.
pub unsafe trait GrantPool {
    /// Memory that is, or can be, granted.
    type Region: SharedBytes + Send;
    /// Allocates and zeroes `refs.len()` pages, grants each to `to`, and fills `refs` with the
    /// grant references.
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<Self::Region, PlatformError>;
    /// Revokes all grants of the region and frees it. If the peer still has a page mapped, the
    /// region is returned to be tried again later; or the platform keeps such pages itself (Linux's
    /// gntalloc), so `Ok` does not prove that the peer has let go.
    fn release(&self, region: Self::Region) -> Result<(), InUse<Self::Region>>;
    /// The number of the frame that is the region's first page, for a peer that has [all
    /// memory](PeerMem::whole) mapped; the other pages follow. None: a peer cannot map all memory.
    fn first_frame(&self, region: &Self::Region) -> Option<u32> {
        let _ = region;
        None
    }
    /// The grants of single pages, if the platform supports them.
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = Self::Region>>;
}

/// Granting of single pages, in memory that stays the domain's own.
pub trait GrantTable {
    /// Memory of this domain.
    type Region;
    /// Allocates `pages` contiguous zeroed pages that are not granted. Return them with
    /// [`GrantPool::release`].
    fn pages(&self, pages: usize) -> Result<Self::Region, PlatformError>;
    /// Grants page `page` of `region` to `to`. It writes domid and frame, then the flags with
    /// release order.
    fn grant(
        &self,
        to: DomId,
        region: &Self::Region,
        page: usize,
        acc: Access,
    ) -> Result<GrantRef, PlatformError>;
    /// Ends a grant by the single atomic step of docs/protocol 8.1. `Err`: the peer still uses the
    /// page.
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>>;
}

/// A list of grants could not be mapped. None of them stays mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapError {
    /// The index of the first entry that failed, if the platform can tell.
    pub index: Option<usize>,
    /// The status of the entry that failed.
    pub status: GrantStatus,
}

/// One operation of a batched grant copy. Its layout is C's, for a platform that hands a list to C.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyOp {
    /// Grant reference of the peer's page.
    pub gref: GrantRef,
    /// Offset in the local bytes.
    pub at: u32,
    /// Offset in the page; `offset + len <= 4096`.
    pub offset: u16,
    /// Number of bytes.
    pub len: u16,
    /// The result, which the platform sets.
    pub status: GrantStatus,
}

const _: () = assert!(size_of::<CopyOp>() == 16 && align_of::<CopyOp>() == 4);
const _: () = assert!(offset_of!(CopyOp, gref) == 0 && offset_of!(CopyOp, at) == 4);
const _: () = assert!(offset_of!(CopyOp, offset) == 8 && offset_of!(CopyOp, len) == 10);
const _: () = assert!(offset_of!(CopyOp, status) == 12);

impl CopyOp {
    /// An operation of no bytes, for a list that is filled later.
    pub const NOTHING: Self =
        Self { gref: GrantRef::NONE, offset: 0, len: 0, at: 0, status: GrantStatus::GENERAL_ERROR };
}

/// The local side of a batched grant copy, and its direction.
#[derive(Debug)]
pub enum LocalBytes<'a> {
    /// Bytes are copied from the peer to here (guest TX).
    FromPeer(&'a mut [u8]),
    /// Bytes are copied from here to the peer (guest RX).
    ToPeer(&'a [u8]),
}

/// Grant copies to a peer from wherever a port has the bytes of its frames.
pub trait LentCopies {
    /// Like [`PeerMem::copy`] of `frames.bytes` to the peer, where the bytes that
    /// [belong](Burst::lent) into them are read where they are. The operations are in the order of
    /// their local bytes.
    fn copy_lent(&self, of: DomId, frames: &Burst<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError>;
}

/// A batch with local bytes of its own, one of several that are copied in one request.
#[derive(Debug)]
pub struct CopyBatch<'a> {
    /// The local side of the copies.
    pub local: LocalBytes<'a>,
    /// The operations.
    pub ops: &'a mut [CopyOp],
}

/// Counts of grant operations that the mapping side has requested. They never decrease.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GrantOps {
    /// Copy operations.
    pub copies: u64,
    /// Pages mapped.
    pub maps: u64,
    /// Pages unmapped.
    pub unmaps: u64,
}

impl GrantOps {
    /// Adds the difference of two readings.
    #[inline(always)]
    pub fn add_between(&mut self, before: &Self, after: &Self) {
        self.copies += after.copies - before.copies;
        self.maps += after.maps - before.maps;
        self.unmaps += after.unmaps - before.unmaps;
    }

    /// The sum of all counts.
    pub fn total(&self) -> u64 {
        self.copies + self.maps + self.unmaps
    }
}

/// The mapping side. Every operation is counted by the platform.
///
/// # Safety
/// For the implementor: a `Map` is one contiguous range that shows the pages of `refs`, or the
/// frames of the whole domain, in their order, and stays valid until it is dropped or drained by
/// `unmap`.
pub unsafe trait PeerMem {
    /// Mapped pages of a peer, which are unmapped on drop. A thread with another handle may use a
    /// map, and unmap it through that handle or by dropping it, while this handle maps and unmaps
    /// others. Several owners may share a map; they must be on one thread at a time.
    type Map: SharedBytes + Send + Sync;
    /// Maps a list of a peer's grants as one contiguous range, all or none.
    fn map(&self, of: DomId, refs: &[GrantRef], acc: Access) -> Result<Self::Map, MapError>;
    /// Maps all of domain `of`, which trusts this one, to be read and written: its frames in their
    /// order, from frame 0 on, as a map that stays whatever becomes of the domain. No grant is
    /// asked for, and no operation counted (docs/protocol 4.6).
    ///
    /// The default is an error, for a platform that keeps domains apart.
    fn whole(&self, of: DomId) -> Result<Self::Map, PlatformError> {
        let _ = of;
        Err(PlatformError {
            op: "map a whole domain on a platform that keeps domains apart",
            code: NOT_SUPPORTED,
        })
    }
    /// Unmaps all of `done`, which it drains, and whose memory the list keeps; one flush for at
    /// most 32 pages.
    fn unmap(&self, done: &mut Vec<Self::Map>);
    /// Copies a batch, in order, in one system call. Each operation has its own status; `Err` only
    /// if none could be tried. An operation gets `bad_copy_arg` if its range exceeds the local
    /// bytes or the page.
    fn copy(&self, of: DomId, local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError>;
    /// Copies from memory that a port lends, if the platform can.
    fn lent_copies(&self) -> Option<&dyn LentCopies> {
        None
    }
    /// Copies several batches of one direction, in their order, with as few system calls as the
    /// platform can. Otherwise it is like [`copy`](Self::copy) of each batch.
    ///
    /// The default copies one batch after the other.
    fn copy_each(&self, of: DomId, batches: &mut [CopyBatch<'_>]) -> Result<(), PlatformError> {
        batches.iter_mut().try_for_each(|batch| {
            let local = match &mut batch.local {
                LocalBytes::FromPeer(bytes) => LocalBytes::FromPeer(bytes),
                LocalBytes::ToPeer(bytes) => LocalBytes::ToPeer(bytes),
            };
            self.copy(of, local, batch.ops)
        })
    }
    /// Allocates `bytes` bytes, a multiple of the page size, which will be the local side of many
    /// copies.
    ///
    /// The default is on the heap, for platforms whose copies cost the same with any memory.
    fn burst_buffer(&self, bytes: usize) -> Result<BurstBuffer, PlatformError> {
        BurstBuffer::lines(bytes)
    }
    /// Counts of the operations requested through this handle. A map that is dropped is counted by
    /// the handle that made it, one that `unmap` drains by the handle that unmaps. A queue reads it
    /// twice per batch, and counts the difference as its own: so it must be as cheap as three
    /// loads, and what moves frames at the same time, another queue or the other direction of this
    /// one, needs [a handle of its own](Platform::another).
    fn grant_ops(&self) -> GrantOps;
}

/// The local event channel ends that fired.
#[derive(Debug, Default)]
pub struct ReadySet {
    /// Ends that had an event since they were last unmasked.
    pub ports: Vec<EvtchnPort>,
    /// Events were lost, so further ends may have fired: all must be checked and unmasked.
    pub others: bool,
}

/// Event channels (docs/protocol 8.2). Events are edges, may be merged, and may be spurious: always
/// check the ring.
pub trait Events {
    /// One end of an event channel, which is closed on drop. Several threads may
    /// [send](Self::notify) by one at a time.
    type Chan: Send + Sync;
    /// Allocates an end for `to` to bind to (`EVTCHNOP_alloc_unbound`). Its number must be written
    /// to xenstore.
    fn offer(&self, to: DomId) -> Result<(Self::Chan, EvtchnPort), PlatformError>;
    /// Binds to the end that `to` offered (`EVTCHNOP_bind_interdomain`), also after a predecessor
    /// died. One event is pending afterwards.
    fn bind(&self, to: DomId, port: EvtchnPort) -> Result<Self::Chan, PlatformError>;
    /// Takes over an end that another handle of this domain [bound](Self::bind): it is closed
    /// there, and bound here to the same end of the peer. One event is pending afterwards, for
    /// whatever the peer sent meanwhile. The old handle gets no further event, except perhaps one
    /// from before. The local number may change. On an error the end stays closed. An end that was
    /// offered cannot be adopted, since the peer knows its number.
    fn adopt(&self, chan: Self::Chan) -> Result<Self::Chan, PlatformError>;
    /// The local number of this end, as in [`ReadySet`].
    fn local(&self, chan: &Self::Chan) -> EvtchnPort;
    /// Sends an event to the peer's end.
    fn notify(&self, chan: &Self::Chan);
    /// Unmasks this end for its next event. Call it after the ring was emptied and asks for events.
    fn unmask(&self, chan: &Self::Chan);
    /// Unmasks an end whose event brought no work: a platform may throttle such a peer (Linux's
    /// late EOI).
    ///
    /// The default does not.
    fn unmask_spurious(&self, chan: &Self::Chan) {
        self.unmask(chan);
    }
    /// Sleeps until an end fires or `max` has passed (None: no timeout). It clears `ready` first.
    /// Each end that is reported is masked until [`unmask`](Self::unmask).
    fn wait(&self, ready: &mut ReadySet, max: Option<Duration>);
}

/// A monotonic clock.
pub trait Clock {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;
}
