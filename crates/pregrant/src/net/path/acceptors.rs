//! What a back keeps for each path while it accepts a connecting front, from its first queue to the
//! last.
//!
//! The `match`es below are where a further path says how it is accepted.

use super::acceptance::{Accepted, Accepting, Lost, Said};
use super::any_back::AnyPath;
use super::config::PathConfig;
use super::foreign::negotiation::ForeignAcceptor;
use super::guest_copy::negotiation::GuestCopyAcceptor;
use super::path_name::PathName;
use super::staging::Heads;
use super::{DataRing, Foreign, GuestCopy, MapPath, Negotiate, Persistent, Staging, gref_mapping};
use crate::net::features::FrontRequest;
use crate::platform::Platform;
use alloc::string::String;

/// Decides for each path what a front gets. Made for one front that connects.
pub struct Acceptors<P: Platform> {
    staging: Heads,
    foreign: ForeignAcceptor<P>,
    /// Also owns the pages that it grants to the guest, once the back uses a queue's rings.
    pub guest_copy: GuestCopyAcceptor<P>,
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
            foreign: ForeignAcceptor::new(config.foreign),
            guest_copy: GuestCopyAcceptor::new(config.guest_copy),
            gref_mapping: config.gref_mapping,
            persistent: config.persistent,
            map: config.fallback == PathName::Map,
        }
    }

    /// The key [`Negotiate::active_key`] of `path` for queue `queue`.
    pub fn active_key(path: PathName, front: &FrontRequest, queue: usize) -> Option<String> {
        match path {
            PathName::Staging => Staging::active_key(front, queue),
            PathName::DataRing => DataRing::active_key(front, queue),
            PathName::Foreign => Foreign::active_key(front, queue),
            PathName::GuestCopy => GuestCopy::active_key(front, queue),
            PathName::Persistent => Persistent::active_key(front, queue),
            PathName::GrefMapping | PathName::Map | PathName::Copy => None,
        }
    }

    /// Decides what the back accepts of a queue's request for `path`.
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
            PathName::Foreign => Foreign::accept(&mut self.foreign, cx, queue, said),
            PathName::GuestCopy => GuestCopy::accept(&mut self.guest_copy, cx, queue, said),
            PathName::Persistent => Persistent::accept(&mut self.persistent, cx, queue, said),
            PathName::GrefMapping => Ok(gref_mapping::acceptance::accept(self.gref_mapping, cx, queue)),
            // `map` needs nothing of the front. It is for TX only; RX goes to the next path.
            PathName::Map => {
                let tx = self.map.then(|| AnyPath::Map(MapPath::default()));
                Ok(Accepted { tx, ..Accepted::NONE })
            }
            PathName::Copy => Ok(Accepted::NONE),
        }
    }
}
