//! The services of a machine: memory granted and mapped, event channels, a clock.
//!
//! ```text
//!        front's side                                back's side
//!   GrantPool  alloc = memory + grants     PeerMem   map / unmap / copy, in lists
//!   GrantTable grant one frame at a time   Events    bind
//!   Events     offer                       Clock
//! ```
//!
//! Two levels of granting, because with Linux's gntalloc an allocation *is* the grant: pools exist
//! everywhere, per-frame grants where a program owns its grant table (loopback, bare metal).
//! Mapping and copying take lists so that one system call and one flush serve a batch.
//! Implementations: [`local`] (one process, for Miri, fuzzing and tests), and in `pregrant-host`
//! the loopback Xen and Linux's `/dev/xen`. All pass one conformance suite. [`bare`] is for guests
//! without an operating system.
#![expect(unsafe_code, reason = "`unsafe trait` lines alone: a wrong implementation breaks memory safety")]

use crate::burst_buffer::BurstBuffer;
use crate::error::PlatformError;
use crate::shm::SharedBytes;
use crate::units::{DomId, EvtchnPort, GrantRef};
use crate::wire::grant::GrantStatus;
use alloc::vec::Vec;
use core::time::Duration;

pub mod bare;
#[cfg(any(test, feature = "local"))]
pub mod local;

/// What the peer may do with granted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// `GTF_readonly`.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// A domain's machine, as one thread uses it: what both drivers are generic over. Resolved
/// statically.
///
/// Such a handle may move to another thread, and is used by one at a time. A second thread of the
/// same process has a handle of its own ([`another`](Self::another)). Of what a handle gave,
/// [maps](PeerMem::Map) and [ends](Events::Chan) may go to another thread: a map is used and
/// unmapped there, an end is [adopted](Events::adopt) there.
pub trait Platform: Send + Sized + 'static {
    /// Memory that this domain grants.
    type Grants: GrantPool;
    /// Memory of others that this domain reaches.
    type Peer: PeerMem;
    /// Event channels.
    type Events: Events;
    /// Time.
    type Clock: Clock;
    /// This domain's number.
    fn domid(&self) -> DomId;
    /// Memory that this domain grants.
    fn grants(&self) -> &Self::Grants;
    /// Memory of others.
    fn peer(&self) -> &Self::Peer;
    /// Event channels.
    fn events(&self) -> &Self::Events;
    /// Time.
    fn clock(&self) -> &Self::Clock;
    /// Another handle of this domain, for another thread of this process, with event channel ends
    /// of its own: each of the two gets events of those alone that it offered, bound or adopted
    /// itself. Each counts what was asked of it.
    ///
    /// As written here: a platform that serves one thread has none.
    fn another(&self) -> Result<Self, PlatformError> {
        Err(PlatformError { op: "make a second handle of a platform for one thread", code: NOT_SUPPORTED })
    }
}

/// `EOPNOTSUPP`.
const NOT_SUPPORTED: i32 = 95;

/// A grant that could not be revoked because the peer still uses it. The memory is kept and
/// retried; it goes to no other peer.
#[derive(Debug)]
pub struct InUse<T>(pub T);

/// The granting side: pools of pages.
///
/// # Safety
/// For the implementor: a `Region` is `pages * 4096` bytes, contiguous, page aligned and zeroed,
/// used by nothing else, until `release` returned `Ok`.
pub unsafe trait GrantPool {
    /// Granted (or grantable) memory.
    type Region: SharedBytes + Send;
    /// Allocates `refs.len()` pages, zeroes them, grants each to `to`, and fills `refs`.
    fn alloc(&self, to: DomId, acc: Access, refs: &mut [GrantRef]) -> Result<Self::Region, PlatformError>;
    /// Revokes all grants of the region and frees it. Where the peer still has a page mapped, the
    /// region comes back and is to be retried later; or the platform takes it and keeps such pages
    /// to itself (Linux's gntalloc), so that `Ok` does not say that the peer has let go.
    fn release(&self, region: Self::Region) -> Result<(), InUse<Self::Region>>;
    /// Which of this domain's frames the region's first page is, for a peer that has [all of
    /// it](PeerMem::whole) mapped; the others follow. None: no peer can have.
    fn first_frame(&self, region: &Self::Region) -> Option<u32> {
        let _ = region;
        None
    }
    /// Granting page by page, where the platform can.
    fn per_frame(&self) -> Option<&dyn GrantTable<Region = Self::Region>>;
}

/// The granting side, one frame at a time, over memory that stays the domain's own.
pub trait GrantTable {
    /// Memory of this domain.
    type Region;
    /// `pages` contiguous pages of the domain's own memory, zeroed, not granted to anybody. Given
    /// back with [`GrantPool::release`].
    fn pages(&self, pages: usize) -> Result<Self::Region, PlatformError>;
    /// Grants page `page` of `region` to `to`. Writes domid and frame, then the flags with release
    /// order.
    fn grant(
        &self,
        to: DomId,
        region: &Self::Region,
        page: usize,
        acc: Access,
    ) -> Result<GrantRef, PlatformError>;
    /// Ends a grant by the single atomic step of docs/protocol 8.1; `Err` means that the peer still
    /// uses the page.
    fn revoke(&self, gref: GrantRef) -> Result<(), InUse<GrantRef>>;
}

/// A list could not be mapped. Nothing of it stays mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapError {
    /// Which entry failed first, where the platform can tell.
    pub index: Option<usize>,
    /// Why.
    pub status: GrantStatus,
}

/// One piece of a batched grant copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyOp {
    /// The peer's page.
    pub gref: GrantRef,
    /// Start in the page; `offset + len <= 4096`.
    pub offset: u16,
    /// Bytes.
    pub len: u16,
    /// Start in the local bytes.
    pub at: u32,
    /// Out: what became of it.
    pub status: GrantStatus,
}

impl CopyOp {
    /// A piece of no bytes, for a list that is filled later.
    pub const NOTHING: Self =
        Self { gref: GrantRef::NONE, offset: 0, len: 0, at: 0, status: GrantStatus::GENERAL_ERROR };
}

/// The local side of a batched grant copy, and its direction.
#[derive(Debug)]
pub enum LocalBytes<'a> {
    /// The peer's bytes come here (guest TX).
    FromPeer(&'a mut [u8]),
    /// These bytes go to the peer (guest RX).
    ToPeer(&'a [u8]),
}

/// A batch of pieces with local bytes of its own, one of several that are copied together.
#[derive(Debug)]
pub struct CopyBatch<'a> {
    /// Its local side.
    pub local: LocalBytes<'a>,
    /// Its pieces.
    pub ops: &'a mut [CopyOp],
}

/// Grant operations that the mapping side has asked for. Every figure only grows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GrantOps {
    /// Pieces copied.
    pub copies: u64,
    /// Pages mapped.
    pub maps: u64,
    /// Pages unmapped.
    pub unmaps: u64,
}

impl GrantOps {
    /// Adds what came between two readings.
    #[inline(always)]
    pub fn add_between(&mut self, before: &Self, after: &Self) {
        self.copies += after.copies - before.copies;
        self.maps += after.maps - before.maps;
        self.unmaps += after.unmaps - before.unmaps;
    }

    /// All of them.
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
    /// Mapped pages of a peer; unmapped on drop. A thread with another handle may use it, and unmap
    /// it through that handle or by dropping it, while this one maps and unmaps others. Several
    /// owners may share one; they are one thread's at a time.
    type Map: SharedBytes + Send + Sync;
    /// Maps a list of a peer's grants as one contiguous range, all or nothing.
    fn map(&self, of: DomId, refs: &[GrantRef], acc: Access) -> Result<Self::Map, MapError>;
    /// Maps all of domain `of`, which trusts this one, to be read and written: its frames in their
    /// order, from frame 0 on, as a map that stays whatever becomes of the domain. No grant is
    /// asked for, and no operation counted (docs/protocol 4.6).
    ///
    /// As written here: a platform that keeps domains apart has no such thing.
    fn whole(&self, of: DomId) -> Result<Self::Map, PlatformError> {
        let _ = of;
        Err(PlatformError {
            op: "map a whole domain on a platform that keeps domains apart",
            code: NOT_SUPPORTED,
        })
    }
    /// Unmaps all of `done` (which it drains); one flush for at most 32 pages.
    fn unmap(&self, done: &mut Vec<Self::Map>);
    /// Copies a batch, in order, in one system call. Each op has its own status; `Err` only where
    /// nothing could be tried. An op whose `at + len` passes the local bytes or whose page range is
    /// wrong gets `bad_copy_arg`.
    fn copy(&self, of: DomId, local: LocalBytes<'_>, ops: &mut [CopyOp]) -> Result<(), PlatformError>;
    /// Copies several batches of one direction, in their order, in as few system calls as the
    /// platform can do it. Otherwise as [`copy`](Self::copy), each for itself.
    ///
    /// As written here: one after the other.
    fn copy_each(&self, of: DomId, batches: &mut [CopyBatch<'_>]) -> Result<(), PlatformError> {
        batches.iter_mut().try_for_each(|batch| {
            let local = match &mut batch.local {
                LocalBytes::FromPeer(bytes) => LocalBytes::FromPeer(bytes),
                LocalBytes::ToPeer(bytes) => LocalBytes::ToPeer(bytes),
            };
            self.copy(of, local, batch.ops)
        })
    }
    /// Memory of `bytes` bytes, a multiple of the page size, for the local side of copies again and
    /// again.
    ///
    /// As written here: the heap's, where a copy costs the same with any memory.
    fn burst_buffer(&self, bytes: usize) -> BurstBuffer {
        BurstBuffer::lines(bytes)
    }
    /// Operations requested through this handle. A map that is dropped counts with the handle that
    /// made it, one that `unmap` drains with that handle. Read twice a batch: as cheap as three
    /// loads.
    fn grant_ops(&self) -> GrantOps;
}

/// Local event channel ends that fired.
#[derive(Debug, Default)]
pub struct ReadySet {
    /// Ends with an event since they were last unmasked.
    pub ports: Vec<EvtchnPort>,
    /// Others have one too, and which is not known: all are to be checked, and unmasked.
    pub others: bool,
}

/// Event channels (docs/protocol 8.2): edge-like, coalescing, possibly spurious; always check the
/// ring.
pub trait Events {
    /// One end; closed on drop. Several threads may [send](Self::notify) by one at a time.
    type Chan: Send + Sync;
    /// Allocates an end for `to` to bind to (`EVTCHNOP_alloc_unbound`); the number goes into
    /// xenstore.
    fn offer(&self, to: DomId) -> Result<(Self::Chan, EvtchnPort), PlatformError>;
    /// Binds to the end that `to` offered (`EVTCHNOP_bind_interdomain`); also after a predecessor's
    /// death. One event is pending at once afterwards.
    fn bind(&self, to: DomId, port: EvtchnPort) -> Result<Self::Chan, PlatformError>;
    /// Takes over an end that another handle of this domain [bound](Self::bind): it is closed
    /// there, and bound here to the same end of the same peer. One event is pending at once
    /// afterwards, for whatever the peer sent meanwhile; the old handle gets no more of it, but
    /// perhaps once of what came before. The local number may be another one. An error leaves it
    /// closed. An end that was offered cannot move: its number is the one that the peer knows.
    fn adopt(&self, chan: Self::Chan) -> Result<Self::Chan, PlatformError>;
    /// This end's local number, as [`ReadySet`] names it.
    fn local(&self, chan: &Self::Chan) -> EvtchnPort;
    /// Sends.
    fn notify(&self, chan: &Self::Chan);
    /// Allows the next event of this end: called after the ring was drained and armed.
    fn unmask(&self, chan: &Self::Chan);
    /// The same, where the event brought no work: a platform may slow such a peer down (Linux's
    /// late EOI).
    ///
    /// As written here: it does not.
    fn unmask_spurious(&self, chan: &Self::Chan) {
        self.unmask(chan);
    }
    /// Sleeps until an end fires or `max` has passed (None: for ever). `ready` is cleared first.
    /// Each end that is reported is masked until [`unmask`](Self::unmask).
    fn wait(&self, ready: &mut ReadySet, max: Option<Duration>);
}

/// Monotonic time.
pub trait Clock {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;
}
