//! Any of the paths, as one type: the one file at the back that knows them all.
//!
//! ```text
//!   Chain --> AnyPath --match, once a batch--> CopyPath, MapPath, GrefMappingPath, PersistentPath,
//!                                              StagingPath, DataRingPath, ForeignPath, GuestCopyPath
//! ```

use super::back::{BackPath, ByteArea, Shared};
use super::data_ring::claim::{self as data_ring, InArea};
use super::foreign::claim::{self as foreign, NamesFrames};
use super::gref_mapping::exchange::GrefExchange;
use super::held::HoldsFrames;
use super::name::PathName;
use crate::grants::StoreFigures;
use crate::net::batch::{Claim, Claims, RxBatch, Todo, TxBatch};
use crate::net::stats::Counted;
use crate::platform::{GrantPool, PeerMem, Platform};
use crate::port::{Arena, Burst, Piece, Token};
use crate::units::DomId;
use crate::wire::netif::TxRequest;
use alloc::sync::Arc;
use alloc::vec::Vec;

macro_rules! any_path {
    ({} $($(#[$doc:meta])* $path:ident = $name:literal, $cost:ident, $back:ty;)*) => {
        /// The paths that a queue can run, matched once per batch.
        pub enum AnyPath<P: Platform> {
            $($(#[$doc])* $path($back),)*
        }
    };
}

paths!(any_path {});

/// Which requests are the paths' own, by their flags: as each path says of itself.
#[derive(Clone, Copy, Default, Debug)]
pub struct AnyClaims {
    places: InArea,
    frames: NamesFrames,
    buffer_flag: u16,
}

const _: () = assert!(!data_ring::CLAIM.is(foreign::CLAIM), "each path has its own");

impl Claims for AnyClaims {
    #[inline(always)]
    fn any(self) -> bool {
        self.places.any() || self.frames.any()
    }

    #[inline(always)]
    fn claim(self, req: &TxRequest) -> Option<Claim> {
        if self.places.claims(req) {
            Some(data_ring::CLAIM)
        } else if self.frames.claims(req) {
            Some(foreign::CLAIM)
        } else {
            None
        }
    }

    #[inline(always)]
    fn is_place(self, claim: Claim, req: &TxRequest) -> Option<bool> {
        claim.is(data_ring::CLAIM).then(|| self.places.has(req))
    }

    #[inline(always)]
    fn buffer_flag(self) -> u16 {
        self.buffer_flag
    }
}

/// Evaluates `$call` with `$bound` bound to the path that it is.
macro_rules! with_path {
    ($any:expr, $bound:ident => $call:expr) => {
        paths!(match_path { $any, $bound => $call })
    };
}

macro_rules! match_path {
    (
        { $any:expr, $bound:ident => $call:expr }
        $($(#[$doc:meta])* $path:ident = $name:literal, $cost:ident, $back:ty;)*
    ) => {
        match $any {
            $(Self::$path($bound) => $call,)*
        }
    };
}

fn name<P: Platform, B: BackPath<P>>(_: &B) -> PathName {
    B::NAME
}

#[inline(always)]
fn counted<P: Platform, B: BackPath<P>>(_: &B) -> Counted {
    B::COUNTED
}

impl<P: Platform> AnyPath<P> {
    /// [`BackPath::NAME`].
    pub fn name(&self) -> PathName {
        with_path!(self, path => name::<P, _>(path))
    }

    /// Says in `claims` which requests are its own.
    pub fn claim(&self, claims: &mut AnyClaims) {
        match self {
            Self::Staging(path) => claims.buffer_flag = path.buffer_flag(),
            Self::DataRing(path) => claims.places = InArea::new(path.half_bytes()),
            Self::Foreign(_) => claims.frames = NamesFrames::ALLOWED,
            _ => {}
        }
    }

    /// [`BackPath::serves_all`].
    pub fn serves_all(&self) -> bool {
        with_path!(self, path => BackPath::<P>::serves_all(path))
    }

    /// [`BackPath::buffers`].
    pub fn buffers(&self) -> Option<(u32, bool)> {
        with_path!(self, path => BackPath::<P>::buffers(path))
    }

    /// [`BackPath::room`].
    #[inline(always)]
    pub fn room(&mut self) -> Option<&mut dyn ByteArea> {
        with_path!(self, path => BackPath::<P>::room(path))
    }

    /// [`BackPath::shared`].
    pub fn shared(&mut self) -> Option<&mut dyn Shared> {
        with_path!(self, path => BackPath::<P>::shared(path))
    }

    /// Takes over what it shares with the queue's other direction.
    #[inline(always)]
    pub fn take_over(&mut self, from: &mut Self) {
        if let (Self::GrefMapping(path), Self::GrefMapping(from)) = (self, from) {
            path.take_over(from);
        }
    }

    /// Where its vif's owner asks for pages.
    pub fn exchange(&self) -> Option<Arc<GrefExchange<<P::Peer as PeerMem>::Map>>> {
        match self {
            Self::GrefMapping(path) => path.exchange(),
            _ => None,
        }
    }

    /// Whether it delivers into pages that are lent to the guest.
    pub fn is_lent(&self) -> bool {
        matches!(self, Self::GuestCopy(_))
    }

    /// Gives these away.
    pub fn into_lent(self) -> Option<<P::Grants as GrantPool>::Region> {
        match self {
            Self::GuestCopy(path) => Some(path.into_region()),
            _ => None,
        }
    }

    /// [`BackPath::COUNTED`].
    #[inline(always)]
    pub fn counted(&self) -> Counted {
        with_path!(self, path => counted::<P, _>(path))
    }

    /// [`BackPath::fetch`].
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        with_path!(self, path => path.fetch(p, of, batch, todo, out))
    }

    /// [`BackPath::deliver`].
    #[inline(always)]
    pub fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        with_path!(self, path => path.deliver(p, of, batch, frames, todo))
    }

    /// [`BackPath::retire`].
    pub fn retire(&mut self, p: &P, done: &mut Vec<Token>) {
        with_path!(self, path => path.retire(p, done))
    }

    /// [`BackPath::piece`].
    #[inline]
    pub fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        with_path!(self, path => BackPath::<P>::piece(path, i, k))
    }

    /// [`BackPath::holds_frames`].
    pub fn holds_frames(&mut self) -> Option<&mut dyn HoldsFrames<P>> {
        with_path!(self, path => path.holds_frames())
    }

    /// [`BackPath::pages`].
    pub fn pages(&self) -> Option<usize> {
        with_path!(self, path => BackPath::<P>::pages(path))
    }

    /// [`BackPath::kept`].
    pub fn kept(&self) -> Option<StoreFigures> {
        with_path!(self, path => BackPath::<P>::kept(path))
    }

    /// [`BackPath::limit_pages`].
    pub fn limit_pages(&mut self, p: &P, pages: usize) {
        with_path!(self, path => path.limit_pages(p, pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::path::FrameCost;
    use crate::platform::local::LocalDomain;

    /// What is said of a path's cost is what its frames are counted as.
    #[test]
    fn costs_agree_with_counters() {
        fn of<B: BackPath<LocalDomain>>() -> (PathName, Counted) {
            (B::NAME, B::COUNTED)
        }
        type P = LocalDomain;
        macro_rules! all {
            ({} $($(#[$doc:meta])* $path:ident = $name:literal, $cost:ident, $back:ty;)*) => {
                [$(of::<$back>()),*]
            };
        }
        let all = paths!(all {});
        assert!(PathName::ALL.iter().all(|path| all.iter().any(|(name, _)| name == path)), "{all:?}");
        for (name, counted) in all {
            let by_grants = matches!(name.frame_cost(), FrameCost::GrantCopy | FrameCost::MapAndUnmap);
            assert_eq!(by_grants, counted == Counted::Granted, "{name}");
            assert_eq!(name.frame_cost() == FrameCost::CopyByGuest, counted == Counted::GuestCopy, "{name}");
        }
    }
}
