//! How a frame's bytes travel: a folder for each way, behind one interface at each end.
//!
//! ```text
//!   NAME/mod.rs     what is agreed on, what it costs, what a peer may do
//!   NAME/keys.rs    its keys, and why it is refused
//!   NAME/accept.rs  Accept: what a connecting back takes of what the front asks for
//!   NAME/claim.rs   which requests are its own, where a flag says so
//!   NAME/back.rs    BackPath: fetch (TX), deliver (RX), retire
//!   NAME/front.rs   FrontPath: where the bytes of an id go, and the grant of it; NamedPath: RX memory
//!                   that responses name
//! ```
//!
//! | path | who copies | granted | keys |
//! |---|---|---|---|
//! | [`copy`] | the back, by grant copy | for each frame, or once | none |
//! | [`map`] | the back: heads by grant copy, the rest from pages that it maps; or nobody, where the port takes it there | as `copy` | none |
//! | [`persistent`] | both, from and to pages that the back maps at first sight | once | `feature-persistent` |
//! | [`gref_mapping`] | both, from and to pages that the back maps because the front asked | once | `feature-ctrl-ring`, and messages 8 to 10 |
//! | [`staging`] | both, from and to pages that the back maps at connect | once | `feature-staging-grants` and its lists |
//! | [`foreign`] | the back alone, from and to any page of a guest that trusts it | never | `feature-foreign`; loopback only |
//! | [`guest_copy`], RX | the guest, by grant copy, from pages that the back lends | by the back, once | `feature-guest-copy` |
//! | [`data_ring`] | both, from and to a circular area that the back maps at connect | once | `feature-data-ring` and an index page |
//!
//! What [`map`] maps may be lent to a port, and what stays mapped may be too ([`held`]).
//!
//! Either end asks the paths of a queue one after another ([`chain`], [`front_chain`]); each serves
//! what it can of a batch.

/// The list of all paths, handed to the macro `$with` behind its arguments: what a path is, its
/// name as it is written, what a frame costs that it serves, and its type at the back.
macro_rules! paths {
    ($with:ident $args:tt) => {
        $with! {
            $args
            /// Batched grant copy.
            Copy = "copy", GrantCopy, crate::net::path::CopyPath;
            /// Copy of the headers, map and unmap of the rest.
            Map = "map", MapAndUnmap, crate::net::path::MapPath<P>;
            /// Pages that stay mapped once they were seen.
            Persistent = "persistent", NoGrantOperation, crate::net::path::PersistentPath<P>;
            /// Buffers granted before the data comes.
            Staging = "staging", NoGrantOperation, crate::net::path::StagingPath<P>;
            /// Pages that the guest asked to keep mapped.
            GrefMapping = "gref-mapping", NoGrantOperation, crate::net::path::GrefMappingPath<P>;
            /// A circular area granted before the data comes.
            DataRing = "data-ring", NoGrantOperation, crate::net::path::DataRingPath<P>;
            /// Any frame of a guest that trusts its back.
            Foreign = "foreign", NoGrantOperation, crate::net::path::ForeignPath<P>;
            /// Pages that the back lends: the guest copies.
            GuestCopy = "guest-copy", CopyByGuest, crate::net::path::GuestCopyPath<P>;
        }
    };
}

pub mod accept;
pub mod active;
pub mod any;
pub mod any_front;
pub mod back;
pub mod chain;
pub mod copy;
pub mod data_ring;
pub mod foreign;
pub mod front;
pub mod front_chain;
pub mod gref_mapping;
pub mod guest_copy;
pub mod held;
pub mod keys;
pub mod map;
pub mod name;
pub mod named;
pub mod persistent;
pub mod refusal;
pub mod staging;

pub use any::{AnyClaims, AnyPath};
pub use any_front::{AnyFrontPath, AnyNamedPath};
pub use back::{BackPath, ByteArea, ConfigGeneration, Shared};
pub use chain::Chain;
pub use copy::back::CopyPath;
pub use data_ring::back::DataRingPath;
pub use foreign::back::ForeignPath;
pub use front::FrontPath;
pub use front_chain::FrontChain;
pub use gref_mapping::back::GrefMappingPath;
pub use guest_copy::back::GuestCopyPath;
pub use guest_copy::lent::LentRegions;
pub use held::HoldsFrames;
pub use map::back::MapPath;
pub use name::{ChainNames, FrameCost, PathName};
pub use named::NamedPath;
pub use persistent::back::PersistentPath;
pub use refusal::Refusal;
pub use staging::back::{StagedBuffers, StagingPath};

pub use super::stats::{Counted, Served};

use crate::platform::Platform;
use accept::Accept;
use alloc::boxed::Box;
use keys::PathKeys;

/// The keys of all paths.
pub const KEYS: &[PathKeys] = &[
    staging::keys::KEYS,
    persistent::keys::KEYS,
    data_ring::keys::KEYS,
    foreign::keys::KEYS,
    guest_copy::keys::KEYS,
];

/// The order in which the paths of TX are asked: first those that know their requests by a flag,
/// for what these name is no grant.
pub const TX_ORDER: &[PathName] = &[
    PathName::Foreign,
    PathName::DataRing,
    PathName::Staging,
    PathName::GrefMapping,
    PathName::Persistent,
    PathName::Map,
];

/// The order of RX: memory that both ends have first.
pub const RX_ORDER: &[PathName] = &[
    PathName::Staging,
    PathName::DataRing,
    PathName::Foreign,
    PathName::GuestCopy,
    PathName::GrefMapping,
    PathName::Persistent,
];

/// How a back is to serve, as its operator says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathConfig {
    /// What fetches frames that no memory was shared for before: `map`, or `copy`.
    pub fallback: PathName,
    /// Whether the head of a frame that is longer than a staging buffer is taken from there.
    pub staged_heads: bool,
    /// Pages of each queue and direction that may stay mapped once they were seen.
    pub persistent_pages: usize,
    /// Pages of each queue that the front may have mapped by request.
    pub gref_pages: usize,
    /// Whether all memory of a guest may be mapped.
    pub foreign: bool,
    /// Whether pages of this domain are lent.
    pub guest_copy: bool,
}

/// What takes each path for a front that connects, in the order in which they share the guest's
/// pages.
pub fn acceptors<P: Platform>(config: &PathConfig) -> [Box<dyn Accept<P>>; 7] {
    [
        Box::new(staging::accept::AcceptStaging { heads: config.staged_heads }),
        Box::new(data_ring::accept::AcceptDataRing),
        Box::new(foreign::accept::AcceptForeign::new(config.foreign)),
        Box::new(guest_copy::accept::AcceptGuestCopy::new(config.guest_copy)),
        Box::new(gref_mapping::accept::AcceptGrefMapping { limit: config.gref_pages }),
        Box::new(persistent::accept::AcceptPersistent { limit: config.persistent_pages }),
        Box::new(map::accept::AcceptMap { wanted: config.fallback == PathName::Map }),
    ]
}
