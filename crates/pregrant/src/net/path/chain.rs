//! The paths of one direction of a queue, one after another: what the first does not serve the next is asked for, and
//! `copy` serves what is left.
//!
//! ```text
//!   batch --> staging --rest--> data-ring --rest--> gref-mapping --rest--> persistent, or map --rest--> copy
//! ```
//! Frames from the guest say themselves that they are in the data ring, or [foreign](ForeignPath), which are therefore asked first.
//! The table of [gref mappings](GrefMappingPath) is one for both directions of a queue: the chain that is at work has it.
//! Each may [lend](Lends) a frame's payload, and hold frames longer than the call ([`BackPath::retire`]): a frame that is lent is one path's alone.

use super::gref_mapping::table::GrefTable;
use super::{
    AnyClaims, AnyPath, BackPath, CopyPath, DataRingPath, ForeignPath, GrefMappingPath, GuestCopyPath, Lends,
    MapPath, PathName, PersistentPath, Served, StagingPath,
};
use crate::grants::StoreFigures;
use crate::net::batch::{RxBatch, Todo, TxBatch};
use crate::platform::{Access, PeerMem, Platform};
use crate::port::{Arena, Burst, Piece, Token};
use crate::units::DomId;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What a chain is, for who looks from elsewhere: as of when its queue connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainNames {
    /// Its paths, in the order in which they are asked. `copy` is the last, where anything is left for it.
    pub paths: Vec<PathName>,
    /// Bytes of a frame that fit a staging buffer; None: there are none.
    pub data_len: Option<u32>,
    /// The heads of longer frames come from their buffers.
    pub heads: bool,
}

impl ChainNames {
    /// The paths as they are shown, the first one first: `staging+copy` where staging has the heads of longer frames. Gref mappings are among
    /// them where the guest has pages `mapped`.
    pub fn shown(&self, mapped: bool) -> Vec<&'static str> {
        let rest = if self.paths.contains(&PathName::Map) { PathName::Map } else { PathName::Copy };
        let in_use = self.paths.iter().filter(|path| mapped || **path != PathName::GrefMapping);
        let name = |path: &PathName| match path {
            PathName::Staging if self.heads => rest.behind_heads(),
            path => path.name(),
        };
        in_use.map(name).collect()
    }
}

/// The chain. Ends with `copy`, which is not named.
pub struct Chain<P: Platform> {
    ahead: Vec<AnyPath<P>>,
    copy: CopyPath,
    /// Which of them has the table of gref mappings.
    by_grefs: Option<usize>,
    /// Which of them is the data ring.
    by_area: Option<usize>,
}

impl<P: Platform> Chain<P> {
    /// These, then `copy`.
    pub fn new(ahead: Vec<AnyPath<P>>) -> Self {
        let mut chain = Self { ahead, copy: CopyPath::default(), by_grefs: None, by_area: None };
        chain.find();
        chain
    }

    /// Looks where they are.
    fn find(&mut self) {
        self.by_grefs = self.ahead.iter().position(|path| matches!(path, AnyPath::GrefMapping(_)));
        self.by_area = self.ahead.iter().position(|path| matches!(path, AnyPath::DataRing(_)));
    }

    /// What serves one direction of a queue: its staging buffers, `kept.0` pages that stay mapped with access `kept.1`, and
    /// `fallback` for what is left.
    pub fn of(staging: Option<StagingPath<P>>, kept: (usize, Access), fallback: PathName) -> Self {
        let serves_all = staging.as_ref().is_some_and(StagingPath::serves_all);
        let persistent =
            (kept.0 > 0 && !serves_all).then(|| AnyPath::Persistent(PersistentPath::new(kept.0, kept.1)));
        let map = (fallback == PathName::Map).then(|| AnyPath::Map(MapPath::default()));
        Self::new(staging.map(AnyPath::Staging).into_iter().chain(persistent).chain(map).collect())
    }

    /// The same, and `table` for what is not in staging buffers. Of the two directions of a queue one has it at first.
    #[must_use]
    pub fn with_grefs(self, table: Option<Box<GrefTable<<P::Peer as PeerMem>::Map>>>) -> Self {
        let mut ahead = self.ahead;
        let shared = |path: &&AnyPath<P>| matches!(path, AnyPath::Staging(_) | AnyPath::DataRing(_));
        let staged = ahead.iter().take_while(shared).count();
        ahead.insert(staged, AnyPath::GrefMapping(GrefMappingPath::new(table)));
        Self::new(ahead)
    }

    /// The same, with a data ring: TX before all others, since a place is no grant and no id; RX for what is not in staging buffers.
    #[must_use]
    pub fn with_data_ring(self, path: Option<DataRingPath<P>>, access: Access) -> Self {
        let Some(path) = path else { return self };
        let mut ahead = self.ahead;
        let staged = ahead.iter().take_while(|path| matches!(path, AnyPath::Staging(_))).count();
        ahead.insert(if access == Access::ReadOnly { 0 } else { staged }, AnyPath::DataRing(path));
        Self::new(ahead)
    }

    /// The same, of a guest that names frames: TX before all others, since a frame is no grant; RX for what is neither in staging buffers
    /// nor in a data ring.
    #[must_use]
    pub fn with_foreign(self, path: Option<ForeignPath<P>>, access: Access) -> Self {
        let Some(path) = path else { return self };
        let mut ahead = self.ahead;
        let shared = |path: &&AnyPath<P>| matches!(path, AnyPath::Staging(_) | AnyPath::DataRing(_));
        let staged = ahead.iter().take_while(shared).count();
        ahead.insert(if access == Access::ReadOnly { 0 } else { staged }, AnyPath::Foreign(path));
        Self::new(ahead)
    }

    /// The same, RX, with pages that are lent to the guest, for what is neither in staging buffers nor in a data ring.
    #[must_use]
    pub fn with_guest_copy(self, path: Option<GuestCopyPath<P>>) -> Self {
        let Some(path) = path else { return self };
        let mut ahead = self.ahead;
        let shared = |path: &&AnyPath<P>| matches!(path, AnyPath::Staging(_) | AnyPath::DataRing(_));
        let staged = ahead.iter().take_while(shared).count();
        ahead.insert(staged, AnyPath::GuestCopy(path));
        Self::new(ahead)
    }

    /// Does without the pages that are lent, and gives them away: nothing is delivered by them any more.
    pub fn take_guest_copy(&mut self) -> Option<GuestCopyPath<P>> {
        let at = self.ahead.iter().position(|path| matches!(path, AnyPath::GuestCopy(_)))?;
        let AnyPath::GuestCopy(path) = self.ahead.remove(at) else { return None };
        self.find();
        Some(path)
    }

    /// Which requests are its paths' own.
    pub fn claims(&self) -> AnyClaims {
        let mut claims = AnyClaims::default();
        self.ahead.iter().for_each(|path| path.claim(&mut claims));
        claims
    }

    /// Its data ring.
    #[inline(always)]
    pub fn data_ring(&mut self) -> Option<&mut DataRingPath<P>> {
        match self.ahead.get_mut(self.by_area?) {
            Some(AnyPath::DataRing(path)) => Some(path),
            _ => None,
        }
    }

    /// The path of its gref mappings.
    #[inline(always)]
    pub fn grefs(&mut self) -> Option<&mut GrefMappingPath<P>> {
        match self.ahead.get_mut(self.by_grefs?) {
            Some(AnyPath::GrefMapping(path)) => Some(path),
            _ => None,
        }
    }

    /// What it is.
    pub fn names(&self) -> ChainNames {
        let staging = self.ahead.iter().find_map(|path| match path {
            AnyPath::Staging(path) => Some(path),
            _ => None,
        });
        let serves_all = staging.is_some_and(StagingPath::serves_all);
        let copy = (!serves_all).then_some(<CopyPath as BackPath<P>>::NAME);
        ChainNames {
            paths: self.ahead.iter().map(AnyPath::name).chain(copy).collect(),
            data_len: staging.map(StagingPath::data_len),
            heads: staging.is_some_and(StagingPath::has_heads),
        }
    }

    /// What became of pages that its paths mapped when they saw them; None: none of them does so.
    pub fn kept(&self) -> Option<StoreFigures> {
        self.ahead.iter().find_map(AnyPath::kept)
    }

    /// Fetches the frames in `todo`.
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Served {
        let (mut rest, mut served) = (todo, Served::by_grants(todo));
        for path in &mut self.ahead {
            let left = path.fetch(p, of, batch, rest, out);
            served.note(path.counted(), rest & !left);
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
        let (mut rest, mut served) = (todo, Served::by_grants(todo));
        for path in &mut self.ahead {
            let left = path.deliver(p, of, batch, frames, rest);
            served.note(path.counted(), rest & !left);
            rest = left;
            if rest == 0 {
                return served;
            }
        }
        let refused = self.copy.deliver(p, of, batch, frames, rest);
        debug_assert_eq!(refused, 0, "copy serves every frame");
        served
    }

    /// Those of them that lend payload; none: all give private bytes.
    pub fn lenders(&mut self) -> impl Iterator<Item = &mut dyn Lends<P>> {
        self.ahead.iter_mut().filter_map(AnyPath::lends)
    }

    /// Piece `k` of frame `i`, whichever path lends it.
    pub fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        self.ahead.iter().find_map(|path| path.piece(i, k))
    }

    /// Pages that its paths mapped since the connect and keep; None: none of them does so.
    pub fn pages(&self) -> Option<usize> {
        self.ahead.iter().filter_map(AnyPath::pages).reduce(|a, b| a + b)
    }

    /// How many pages each path that [keeps](Self::pages) some may keep from now on.
    pub fn limit_pages(&mut self, p: &P, pages: usize) {
        self.ahead.iter_mut().for_each(|path| path.limit_pages(p, pages));
    }

    /// Lets go of what is held; see [`BackPath::retire`].
    pub fn retire(&mut self, p: &P, done: &mut Vec<Token>) {
        self.ahead.iter_mut().for_each(|path| path.retire(p, done));
    }
}

impl<P: Platform> From<AnyPath<P>> for Chain<P> {
    fn from(path: AnyPath<P>) -> Self {
        match path {
            AnyPath::Copy(_) => Self::new(Vec::new()),
            path => Self::new(Vec::from([path])),
        }
    }
}
