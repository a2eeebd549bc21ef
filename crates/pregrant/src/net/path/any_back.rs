//! Any of the paths at the back, as one type: a further path is a variant, and an arm of each
//! `match`.
//!
//! ```text
//!   Chain --> AnyPath --match, once a batch--> CopyPath, StagingPath ... each path's own type
//! ```

use super::back::{BackParts, BackPath};
use super::copy::back::CopyPath;
use super::data_ring::back::{self as data_ring, DataRingPath, InArea};
use super::gref_mapping::back::GrefMappingPath;
use super::gref_mapping::exchange::GrefExchange;
use super::map::back::MapPath;
use super::path_name::PathName;
use super::persistent::back::PersistentPath;
#[cfg(feature = "research")]
use super::research::foreign::back::{self as foreign, ForeignPath, NamesFrames};
#[cfg(feature = "research")]
use super::research::guest_copy::back::GuestCopyPath;
use super::staging::back::StagingPath;
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::net::batch::{Claim, Claims, RxBatch, Todo, TxBatch};
use crate::platform::{PeerMem, Platform};
use crate::port::{Arena, Burst, Piece, Token};
use crate::units::DomId;
use crate::wire::netif::TxRequest;

/// Mailbox between the vif's owner, which maps the pages that the guest asks for, and a queue.
pub type PageExchange<P> = GrefExchange<<<P as Platform>::Peer as PeerMem>::Map>;

/// The paths that a queue can run, matched once per batch.
pub enum AnyPath<P: Platform> {
    /// The guest granted the buffers before any frame was sent.
    Staging(StagingPath<P>),
    /// The guest granted a ring of bytes before any frame was sent.
    DataRing(DataRingPath<P>),
    /// The back copies from and to any page of a guest whose whole memory is mapped.
    #[cfg(feature = "research")]
    Foreign(ForeignPath<P>),
    /// The back grants its own pages, and the guest copies.
    #[cfg(feature = "research")]
    GuestCopy(GuestCopyPath<P>),
    /// The back uses pages that the guest asked it to map.
    GrefMapping(GrefMappingPath<P>),
    /// The back uses pages that stay mapped after it saw them.
    Persistent(PersistentPath<P>),
    /// The back copies the headers, and maps and unmaps the pages of the rest.
    Map(MapPath<P>),
    /// The back uses grant copy, one call for each batch.
    Copy(CopyPath),
}

impl<P: Platform> AnyPath<P> {
    /// The path's name in keys, tables and records. The frames that the path serves are counted
    /// under this name.
    #[inline(always)]
    pub fn name(&self) -> PathName {
        match self {
            Self::Staging(_) => PathName::Staging,
            Self::DataRing(_) => PathName::DataRing,
            #[cfg(feature = "research")]
            Self::Foreign(_) => PathName::Foreign,
            #[cfg(feature = "research")]
            Self::GuestCopy(_) => PathName::GuestCopy,
            Self::GrefMapping(_) => PathName::GrefMapping,
            Self::Persistent(_) => PathName::Persistent,
            Self::Map(_) => PathName::Map,
            Self::Copy(_) => PathName::Copy,
        }
    }

    /// The optional parts of this path (see [`BackParts`]).
    pub fn parts(&self) -> BackParts {
        let none = BackParts::default();
        match self {
            Self::Staging(path) => BackParts {
                leaves_long: path.leaves_long(),
                buffers: Some(path.buffer_names()),
                serves_all: path.serves_all(),
                holds_frames: true,
                ..none
            },
            Self::DataRing(path) => BackParts { may_be_full: path.is_rx(), ..none },
            #[cfg(feature = "research")]
            Self::GuestCopy(_) => BackParts { lent_pages: true, ..none },
            Self::GrefMapping(_) => BackParts { given_pages: true, holds_frames: true, ..none },
            Self::Persistent(_) => BackParts { kept_pages: true, holds_frames: true, ..none },
            Self::Map(_) => BackParts { holds_frames: true, ..none },
            #[cfg(feature = "research")]
            Self::Foreign(_) => none,
            Self::Copy(_) => none,
        }
    }

    /// Enters in `claims` the request flags by which a frame selects this path.
    pub fn claim(&self, claims: &mut AnyClaims) {
        match self {
            Self::Staging(path) => claims.buffer_flag = path.buffer_flag(),
            Self::DataRing(path) => claims.data_ring = InArea::new(path.half_bytes()),
            #[cfg(feature = "research")]
            Self::Foreign(_) => claims.foreign = NamesFrames::ALLOWED,
            #[cfg(feature = "research")]
            Self::GuestCopy(_) => {}
            Self::GrefMapping(_) | Self::Persistent(_) | Self::Map(_) | Self::Copy(_) => {}
        }
    }

    /// Calls [`BackPath::fetch`] of the path.
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        match self {
            Self::Staging(path) => path.fetch(p, of, batch, todo, out),
            Self::DataRing(path) => path.fetch(p, of, batch, todo, out),
            #[cfg(feature = "research")]
            Self::Foreign(path) => path.fetch(p, of, batch, todo, out),
            #[cfg(feature = "research")]
            Self::GuestCopy(path) => path.fetch(p, of, batch, todo, out),
            Self::GrefMapping(path) => path.fetch(p, of, batch, todo, out),
            Self::Persistent(path) => path.fetch(p, of, batch, todo, out),
            Self::Map(path) => path.fetch(p, of, batch, todo, out),
            Self::Copy(path) => path.fetch(p, of, batch, todo, out),
        }
    }

    /// Calls [`BackPath::deliver`] of the path.
    #[inline(always)]
    pub fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        match self {
            Self::Staging(path) => path.deliver(p, of, batch, frames, todo),
            Self::DataRing(path) => path.deliver(p, of, batch, frames, todo),
            #[cfg(feature = "research")]
            Self::Foreign(path) => path.deliver(p, of, batch, frames, todo),
            #[cfg(feature = "research")]
            Self::GuestCopy(path) => path.deliver(p, of, batch, frames, todo),
            Self::GrefMapping(path) => path.deliver(p, of, batch, frames, todo),
            Self::Persistent(path) => path.deliver(p, of, batch, frames, todo),
            Self::Map(path) => path.deliver(p, of, batch, frames, todo),
            Self::Copy(path) => path.deliver(p, of, batch, frames, todo),
        }
    }

    /// Calls [`BackPath::retire`] of the path.
    pub fn retire(&mut self, p: &P, done: &mut Bounded<Token>) {
        match self {
            Self::Staging(path) => path.retire(p, done),
            Self::DataRing(path) => path.retire(p, done),
            #[cfg(feature = "research")]
            Self::Foreign(path) => path.retire(p, done),
            #[cfg(feature = "research")]
            Self::GuestCopy(path) => path.retire(p, done),
            Self::GrefMapping(path) => path.retire(p, done),
            Self::Persistent(path) => path.retire(p, done),
            Self::Map(path) => path.retire(p, done),
            Self::Copy(path) => BackPath::<P>::retire(path, p, done),
        }
    }

    /// Makes room for the frames that a port may hold, for a ring of `slots` slots.
    pub fn make_room(&mut self, slots: usize) -> Result<(), PlatformError> {
        match self {
            Self::Staging(StagingPath { held, .. })
            | Self::GrefMapping(GrefMappingPath { held, .. })
            | Self::Persistent(PersistentPath { held, .. }) => held.make_room(slots),
            Self::Map(path) => path.make_room(slots),
            #[cfg(feature = "research")]
            Self::Foreign(_) | Self::GuestCopy(_) => Ok(()),
            Self::Copy(path) => path.make_room(),
            Self::DataRing(_) => Ok(()),
        }
    }

    /// Like [`PayloadSource::piece`](crate::port::PayloadSource::piece); also None if another path
    /// serves the frame.
    #[inline]
    pub fn piece(&self, i: usize, k: usize) -> Option<Piece<'_>> {
        match self {
            Self::Staging(path) => path.piece(i, k),
            Self::GrefMapping(path) => path.piece(i, k),
            Self::Persistent(path) => path.piece(i, k),
            Self::Map(path) => path.piece(i, k),
            #[cfg(feature = "research")]
            Self::Foreign(_) | Self::GuestCopy(_) => None,
            Self::DataRing(_) | Self::Copy(_) => None,
        }
    }

    /// Makes the payload that this path left in place reachable, for the batch's frames. Returns
    /// the frames for which that failed.
    pub fn map_payload(&mut self, p: &P, of: DomId) -> Todo {
        match self {
            Self::Map(path) => path.map_payload(p, of),
            // The pages of these paths stay mapped, so nothing is unmapped here.
            Self::Staging(_) | Self::GrefMapping(_) | Self::Persistent(_) => 0,
            #[cfg(feature = "research")]
            Self::Foreign(_) | Self::GuestCopy(_) => 0,
            Self::DataRing(_) | Self::Copy(_) => 0,
        }
    }

    /// Like [`PayloadSource::hold`](crate::port::PayloadSource::hold); also None if another path
    /// serves the frame.
    pub fn hold(&mut self, i: usize) -> Option<Token> {
        match self {
            Self::Staging(path) => path.hold(i),
            Self::GrefMapping(path) => path.hold(i),
            Self::Persistent(path) => path.hold(i),
            Self::Map(path) => path.hold_frame(i),
            #[cfg(feature = "research")]
            Self::Foreign(_) | Self::GuestCopy(_) => None,
            Self::DataRing(_) | Self::Copy(_) => None,
        }
    }

    /// Called after the port had the batch: fails frames that could not be read, and marks those
    /// that are held.
    pub fn settle(&mut self, batch: &mut TxBatch, out: &mut Arena) {
        match self {
            Self::Staging(StagingPath { held, .. })
            | Self::GrefMapping(GrefMappingPath { held, .. })
            | Self::Persistent(PersistentPath { held, .. }) => held.settle(batch),
            Self::Map(path) => path.settle(batch, out),
            #[cfg(feature = "research")]
            Self::Foreign(_) | Self::GuestCopy(_) => {}
            Self::DataRing(_) | Self::Copy(_) => {}
        }
    }

    /// True while the port still reads a frame from this path's pages.
    pub fn in_flight(&self) -> bool {
        match self {
            Self::Staging(StagingPath { held, .. })
            | Self::GrefMapping(GrefMappingPath { held, .. })
            | Self::Persistent(PersistentPath { held, .. }) => held.in_flight(),
            Self::Map(path) => path.in_flight(),
            #[cfg(feature = "research")]
            Self::Foreign(_) | Self::GuestCopy(_) => false,
            Self::DataRing(_) | Self::Copy(_) => false,
        }
    }

    /// Notes that the port has completed the frames with these tokens; `None`: all frames. Then
    /// [`retire`](Self::retire) returns them.
    pub fn complete(&mut self, tokens: Option<&[Token]>) {
        match self {
            Self::Staging(path) => path.complete(tokens),
            Self::GrefMapping(path) => path.complete(tokens),
            Self::Persistent(path) => path.complete(tokens),
            Self::Map(path) => path.complete(tokens),
            #[cfg(feature = "research")]
            Self::Foreign(_) | Self::GuestCopy(_) => {}
            Self::DataRing(_) | Self::Copy(_) => {}
        }
    }
}

/// Flags of TX requests by which the paths of a queue recognize their requests.
#[derive(Clone, Copy, Default, Debug)]
pub struct AnyClaims {
    data_ring: InArea,
    #[cfg(feature = "research")]
    foreign: NamesFrames,
    /// Flag of requests that name a received staging buffer by its number. 0: the guest may not
    /// send such requests, and the flag has no meaning. The queue has staging in both directions.
    buffer_flag: u16,
}

impl Claims for AnyClaims {
    #[inline(always)]
    fn any(self) -> bool {
        #[cfg(feature = "research")]
        if self.foreign.any() {
            return true;
        }
        self.data_ring.any()
    }

    #[inline(always)]
    fn claim(self, req: &TxRequest) -> Option<Claim> {
        if self.data_ring.claims(req) {
            return Some(data_ring::CLAIM);
        }
        #[cfg(feature = "research")]
        if self.foreign.claims(req) {
            return Some(foreign::CLAIM);
        }
        None
    }

    #[inline(always)]
    fn is_place(self, claim: Claim, req: &TxRequest) -> Option<bool> {
        if data_ring::CLAIM.is(claim) { Some(self.data_ring.is_place(req)) } else { None }
    }

    #[inline(always)]
    fn buffer_flag(self) -> u16 {
        self.buffer_flag
    }
}

#[cfg(feature = "research")]
const _: () = assert!(!data_ring::CLAIM.is(foreign::CLAIM), "each path has its own");
