//! What a back keeps for each path while it accepts a connecting front, from its first queue to the
//! last.
//!
//! To add a path, add an arm for it to each `match` below.

use super::acceptance::{Accepted, Accepting, Lost, Said};
use super::any_back::AnyPath;
use super::config::PathConfig;
use super::path_name::PathName;
#[cfg(not(feature = "research"))]
use super::research::absent;
#[cfg(feature = "research")]
use super::research::foreign::negotiation::ForeignAcceptor;
#[cfg(feature = "research")]
use super::research::guest_copy::negotiation::GuestCopyAcceptor;
use super::staging::Heads;
use super::{DataRing, MapPath, Negotiate, Persistent, Staging, gref_mapping};
#[cfg(feature = "research")]
use super::{Foreign, GuestCopy};
use crate::net::features::FrontRequest;
use crate::platform::Platform;
use crate::xenbus::KeyName;
#[cfg(not(feature = "research"))]
use core::marker::PhantomData;

/// Decides for each path what a front gets. Made for one front that connects.
pub struct Acceptors<P: Platform> {
    staging: Heads,
    #[cfg(feature = "research")]
    foreign: ForeignAcceptor<P>,
    /// The acceptor of `guest-copy`. It also owns the pages that it grants to the guest, once the
    /// back uses a queue's rings.
    #[cfg(feature = "research")]
    pub guest_copy: GuestCopyAcceptor<P>,
    #[cfg(not(feature = "research"))]
    platform: PhantomData<P>,
    gref_mapping: usize,
    persistent: usize,
    /// Whether the operator wants `map` for frames that use no shared memory.
    map: bool,
}

impl<P: Platform> Acceptors<P> {
    /// Makes an acceptor for each path that the operator's settings allow.
    pub fn new(config: &PathConfig) -> Self {
        Self {
            staging: config.staging,
            #[cfg(feature = "research")]
            foreign: ForeignAcceptor::new(config.foreign),
            #[cfg(feature = "research")]
            guest_copy: GuestCopyAcceptor::new(config.guest_copy),
            #[cfg(not(feature = "research"))]
            platform: PhantomData,
            gref_mapping: config.gref_mapping,
            persistent: config.persistent,
            map: config.fallback == PathName::Map,
        }
    }

    /// The key [`Negotiate::active_key`] of `path` for queue `queue`.
    #[inline(never)] // a kernel's stack is small
    pub fn active_key(path: PathName, front: &FrontRequest, queue: usize) -> Option<KeyName> {
        match path {
            PathName::Staging => Staging::active_key(front, queue),
            PathName::DataRing => DataRing::active_key(front, queue),
            #[cfg(feature = "research")]
            PathName::Foreign => Foreign::active_key(front, queue),
            #[cfg(feature = "research")]
            PathName::GuestCopy => GuestCopy::active_key(front, queue),
            #[cfg(not(feature = "research"))]
            PathName::Foreign | PathName::GuestCopy => absent::active_key(path, front, queue),
            PathName::Persistent => Persistent::active_key(front, queue),
            PathName::GrefMapping | PathName::Map | PathName::Copy => None,
        }
    }

    /// Decides what the back accepts of a queue's request for `path`.
    #[inline(never)] // a kernel's stack is small
    pub fn accept(
        &mut self,
        path: PathName,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        match path {
            PathName::Staging => Staging::accept(&mut self.staging, cx, queue, said),
            PathName::DataRing => DataRing::accept(&mut (), cx, queue, said),
            #[cfg(feature = "research")]
            PathName::Foreign => Foreign::accept(&mut self.foreign, cx, queue, said),
            #[cfg(feature = "research")]
            PathName::GuestCopy => GuestCopy::accept(&mut self.guest_copy, cx, queue, said),
            #[cfg(not(feature = "research"))]
            PathName::Foreign | PathName::GuestCopy => absent::accept(path, said),
            PathName::Persistent => Persistent::accept(&mut self.persistent, cx, queue, said),
            PathName::GrefMapping => gref_mapping::acceptance::accept(self.gref_mapping, cx, queue),
            // `map` needs nothing of the front. It is for TX only; RX goes to the next path.
            PathName::Map => {
                let tx = self.map.then(|| AnyPath::Map(MapPath::default()));
                Ok(Accepted { tx, ..Accepted::NONE })
            }
            PathName::Copy => Ok(Accepted::NONE),
        }
    }
}
