//! The paths of one direction of a queue, in their order: each gets the frames that the one before
//! did not serve, and `copy` serves the rest.
//!
//! ```text
//!   TX: batch --> data-ring, foreign --rest--> staging --rest--> gref-mapping --rest--> persistent, or map --rest--> copy
//!   RX: batch --> the paths in the list's order ------------------------------------------------rest--> copy
//! ```
//! The order is that of [`TX_ORDER`](super::TX_ORDER) and [`RX_ORDER`](super::RX_ORDER). Requests
//! that name their path by a flag go to paths that are asked first. State that both directions of a
//! queue share (a table of mapped pages) is with the chain that runs. A path may
//! lend a frame's payload, and hold frames longer than the call
//! ([`BackPath::retire`]).
//!
//! Invariant: one path alone lends a frame.

use super::any_back::{AnyClaims, AnyPath, PageExchange};
use super::back::{BackParts, BackPath};
use super::copy::back::CopyPath;
use super::data_ring::back::DataRingPath;
use super::gref_mapping::back::GrefMappingPath;
use super::path_name::{BufferNames, ChainNames, PathName};
use super::persistent::back::PersistentPath;
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::grants::MappedStats;
use crate::memory;
use crate::net::batch::{RxBatch, Todo, TxBatch};
use crate::net::stats::Served;
#[cfg(feature = "research")]
use crate::platform::GrantPool;
use crate::platform::{PeerMem, Platform};
use crate::port::{Arena, Burst, Piece, Token};
use crate::ring::{BackRing, NetRx, RingMem};
use crate::units::DomId;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

const COPY: PathName = PathName::Copy;

/// The paths of one direction of a queue, in their order. The path `copy` ends every chain; it is
/// in a field of its own.
pub struct Chain<P: Platform> {
    ahead: Vec<AnyPath<P>>,
    copy: CopyPath,
    parts: ChainParts,
}

/// Indices in the chain of the paths that have an optional part ([`BackParts`]).
#[derive(Clone, Copy, Default)]
struct ChainParts {
    buffers: Option<BufferNames>,
    serves_all: bool,
    kept_pages: Option<usize>,
    may_be_full: Option<usize>,
    given_pages: Option<usize>,
    #[cfg(feature = "research")]
    lent_pages: Option<usize>,
    holds_frames: bool,
    leaves_long: bool,
}

impl ChainParts {
    /// Finds the optional parts of these paths.
    fn of<P: Platform>(paths: &[AnyPath<P>]) -> Self {
        let mut all = Self { leaves_long: true, ..Self::default() };
        for (k, path) in paths.iter().enumerate() {
            let BackParts {
                buffers,
                serves_all,
                kept_pages,
                may_be_full,
                given_pages,
                #[cfg(feature = "research")]
                lent_pages,
                holds_frames,
                leaves_long,
            } = path.parts();
            all.buffers = all.buffers.or(buffers);
            all.serves_all |= serves_all;
            all.kept_pages = all.kept_pages.or(kept_pages.then_some(k));
            all.may_be_full = all.may_be_full.or(may_be_full.then_some(k));
            all.given_pages = all.given_pages.or(given_pages.then_some(k));
            #[cfg(feature = "research")]
            {
                all.lent_pages = all.lent_pages.or(lent_pages.then_some(k));
            }
            all.holds_frames |= holds_frames;
            all.leaves_long &= leaves_long;
        }
        all
    }
}

/// The chain of these paths, in this order.
impl<P: Platform> From<(&[PathName; PathName::COUNT], Vec<AnyPath<P>>)> for Chain<P> {
    fn from((order, paths): (&[PathName; PathName::COUNT], Vec<AnyPath<P>>)) -> Self {
        Self::new(order, paths)
    }
}

impl<P: Platform> Chain<P> {
    /// Makes a chain of `paths` in this `order`, then `copy`. If a path serves every frame, the
    /// paths after it keep no pages mapped.
    pub fn new(order: &[PathName], paths: impl IntoIterator<Item = AnyPath<P>>) -> Self {
        let place =
            |path: &AnyPath<P>| order.iter().position(|name| *name == path.name()).unwrap_or(usize::MAX);
        let mut ahead: Vec<_> = paths.into_iter().filter(|path| path.name() != COPY).collect();
        // They are few: each goes ahead of those that come after it in the order.
        for end in 1..ahead.len() {
            for k in (0..end).rev() {
                let two = ahead.get_mut(k..).and_then(|rest| rest.first_chunk_mut());
                let Some([before, path]) = two.filter(|[before, path]| place(before) > place(path)) else {
                    break;
                };
                mem::swap(before, path);
            }
        }
        if ChainParts::of(&ahead).serves_all {
            ahead.retain(|path| !path.parts().kept_pages);
        }
        let parts = ChainParts::of(&ahead);
        Self { ahead, copy: CopyPath::default(), parts }
    }

    /// The paths of the chain, without `copy` at its end.
    pub fn paths_mut(&mut self) -> &mut [AnyPath<P>] {
        &mut self.ahead
    }

    /// Removes the pages that were granted to the guest from their path and returns them. From then
    /// on that path delivers nothing.
    #[cfg(feature = "research")]
    pub fn take_lent(&mut self) -> Option<<P::Grants as GrantPool>::Region> {
        let lent = self.ahead.remove(self.parts.lent_pages?);
        self.parts = ChainParts::of(&self.ahead);
        match lent {
            AnyPath::GuestCopy(path) => Some(path.into_region()),
            _ => None,
        }
    }

    /// The request flags by which frames select paths of this chain.
    pub fn claims(&self) -> AnyClaims {
        let mut claims = AnyClaims::default();
        self.ahead.iter().for_each(|path| path.claim(&mut claims));
        claims
    }

    /// Moves the table of mapped pages, which both directions of a queue share, from the chain of
    /// the other direction to this one.
    #[inline(always)]
    pub fn take_over(&mut self, from: &mut Self) {
        if let (Some(to), Some(from)) = (self.given_pages_mut(), from.given_pages_mut()) {
            to.take_over(from);
        }
    }

    /// Applies changes to the table of gref mappings: pages that the control thread, which owns the
    /// vif, mapped for the guest, and pages that it must unmap. Returns true if the table released
    /// pages that the control thread has still to unmap.
    pub fn apply_config(&mut self) -> bool {
        self.given_pages_mut().is_some_and(GrefMappingPath::apply_config)
    }

    /// True if the owner's last settings must be [applied](Self::apply_config) again, although
    /// there are no new ones.
    pub fn waits(&mut self) -> bool {
        self.given_pages_mut().is_some_and(|path| path.waits())
    }

    /// The path whose pages the vif's owner maps and unmaps on request.
    #[inline(always)]
    fn given_pages_mut(&mut self) -> Option<&mut GrefMappingPath<P>> {
        match self.ahead.get_mut(self.parts.given_pages?)? {
            AnyPath::GrefMapping(path) => Some(path),
            _ => None,
        }
    }

    /// The mailbox by which the vif's owner asks this queue to map or unmap pages.
    pub fn exchange(&self) -> Option<Arc<PageExchange<P>>> {
        match self.ahead.get(self.parts.given_pages?)? {
            AnyPath::GrefMapping(path) => path.exchange(),
            _ => None,
        }
    }

    /// Tells the path that needs it which of its memory the predecessor handed out on this ring.
    pub fn resume<M: RingMem<Kind = NetRx>>(
        &mut self,
        ring: &BackRing<NetRx, M>,
    ) -> Result<(), PlatformError> {
        match self.may_be_full_mut() {
            Some(path) => path.resume(ring.size(), &ring.answers_left()?, ring.req_cons()),
            None => Ok(()),
        }
    }

    /// Makes room for a batch, and for the frames that a port may hold: as many as a ring of `held`
    /// slots has. Before that the chain serves no frame.
    pub fn make_room(&mut self, held: usize) -> Result<(), PlatformError> {
        self.copy.make_room()?;
        if held > 0 {
            self.ahead.iter_mut().try_for_each(|path| path.make_room(held))?;
        }
        Ok(())
    }

    /// For a path whose memory can be full: the number of frames that found no room since the last
    /// call, and the largest number of bytes that were in use at a time.
    #[inline(always)]
    pub fn take_counts(&mut self) -> Option<(u64, u64)> {
        self.may_be_full_mut()?.take_counts()
    }

    /// The path whose memory can be full.
    #[inline(always)]
    fn may_be_full_mut(&mut self) -> Option<&mut DataRingPath<P>> {
        match self.ahead.get_mut(self.parts.may_be_full?)? {
            AnyPath::DataRing(path) => Some(path),
            _ => None,
        }
    }

    /// The names of the chain's paths.
    pub fn names(&self) -> Result<ChainNames, PlatformError> {
        let mut paths = memory::room(self.ahead.len() + 1)?;
        let copy = (!self.parts.serves_all).then_some(COPY);
        let names = self.ahead.iter().map(AnyPath::name).chain(copy);
        names.into_iter().try_for_each(|name| memory::push(&mut paths, name))?;
        Ok(ChainNames { paths, buffers: self.parts.buffers })
    }

    /// The staging buffers of the chain; None: it has none.
    pub fn buffers(&self) -> Option<BufferNames> {
        self.parts.buffers
    }

    /// Counters of pages that the paths keep mapped after they saw them; None: no path of the chain
    /// does that.
    pub fn kept(&self) -> Option<MappedStats> {
        self.kept_pages().map(PersistentPath::kept)
    }

    /// Fetches the frames in `todo`.
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Served {
        let (mut rest, mut served) = (todo, Served::by_grants(todo));
        for path in &mut self.ahead {
            let left = path.fetch(p, of, batch, rest, out);
            served.note(path.name(), rest & !left);
            rest = left;
            if rest == 0 {
                return served;
            }
        }
        let refused = self.copy.fetch(p, of, batch, rest, out);
        debug_assert_eq!(refused, 0, "copy serves every frame");
        served
    }

    /// Delivers the frames in `todo`.
    #[inline(always)]
    pub fn deliver(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut RxBatch,
        frames: &Burst<'_>,
        todo: Todo,
    ) -> Served {
        let (served, rest) = self.deliver_in_place(p, of, batch, frames, todo);
        if rest != 0 {
            self.deliver_copies(p, of, batch, frames, rest);
        }
        served
    }

    /// Like [`deliver`](Self::deliver), for frames whose payload the port may only lend
    /// ([`Loan`](crate::port::Loan)). A platform may [copy](Self::deliver_lent) the returned frames
    /// as they are. Otherwise the caller copies their payload to private memory, then calls
    /// [`deliver_copies`](Self::deliver_copies): a grant copy is possible between one guest's pages
    /// and ours only.
    ///
    /// It is called once a batch, from two places, and not inlined, so that its loops are compiled
    /// once.
    #[inline(never)]
    pub fn deliver_in_place(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut RxBatch,
        frames: &Burst<'_>,
        todo: Todo,
    ) -> (Served, Todo) {
        let (mut rest, mut served) = (todo, Served::by_grants(todo));
        for path in &mut self.ahead {
            let left = path.deliver(p, of, batch, frames, rest);
            served.note(path.name(), rest & !left);
            rest = left;
            if rest == 0 {
                break;
            }
        }
        (served, rest)
    }

    /// Delivers the frames that the chain's paths did not serve.
    #[inline(never)]
    pub fn deliver_copies(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, rest: Todo) {
        let refused = self.copy.deliver(p, of, batch, frames, rest);
        debug_assert_eq!(refused, 0, "copy serves every frame");
    }

    /// Delivers the frames that the chain's paths did not serve, some of whose bytes a port lends.
    /// Returns those that it did not: all, if the platform cannot copy them.
    pub fn deliver_lent(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut RxBatch,
        frames: &Burst<'_>,
        rest: Todo,
    ) -> Todo {
        match p.peer().lent_copies() {
            Some(by) if rest != 0 => self.copy.deliver_lent(by, of, batch, frames, rest),
            _ => return rest,
        }
        0
    }

    /// True if the chain has a path besides `copy`.
    pub fn has_others(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// True if frames of several slots are delivered by `copy` alone.
    pub fn copies_long(&self) -> bool {
        self.parts.leaves_long
    }

    /// True if a path of the chain can leave payload in the guest's pages; else ports get private
    /// bytes only.
    #[inline(always)]
    pub fn holds_frames(&self) -> bool {
        self.parts.holds_frames
    }

    /// Fragment `k` of frame `i`, from the path that left it in the guest's pages.
    pub fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        self.ahead.iter().find_map(|path| path.piece(i, k))
    }

    /// The path that keeps pages mapped after it saw them.
    fn kept_pages(&self) -> Option<&PersistentPath<P>> {
        match self.ahead.get(self.parts.kept_pages?)? {
            AnyPath::Persistent(path) => Some(path),
            _ => None,
        }
    }

    /// Number of pages that the chain's paths mapped since the connect and keep mapped; None: no
    /// path keeps pages.
    pub fn pages(&self) -> Option<usize> {
        self.kept_pages().map(PersistentPath::pages)
    }

    /// Sets the number of [kept pages](Self::pages) that are allowed from now on.
    pub fn limit_pages(&mut self, p: &P, pages: usize) {
        let Some(k) = self.parts.kept_pages else { return };
        if let Some(AnyPath::Persistent(path)) = self.ahead.get_mut(k) {
            path.limit_pages(p, pages);
        }
    }

    /// Releases what is held; see [`BackPath::retire`].
    pub fn retire(&mut self, p: &P, done: &mut Bounded<Token>) {
        self.ahead.iter_mut().for_each(|path| path.retire(p, done));
    }
}

impl<P: Platform> From<AnyPath<P>> for Chain<P> {
    fn from(path: AnyPath<P>) -> Self {
        Self::new(&[], [path])
    }
}
