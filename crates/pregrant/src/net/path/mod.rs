//! How a frame's bytes travel: a folder for each way, behind one interface at each end.
//!
//! ```text
//!   NAME/mod.rs     what is agreed on, what it costs, what a peer may do
//!   NAME/keys.rs    its keys, and why it is refused
//!   NAME/negotiation.rs   Negotiation, FrontNegotiation: what each end says of it, and how it is configured
//!   NAME/acceptance.rs    Accept: what a connecting back takes of what the front asks for
//!   NAME/claim.rs   which requests are its own, where a flag says so
//!   NAME/back.rs    BackPath: fetch (TX), deliver (RX), retire
//!   NAME/front.rs   FrontPath: where the bytes of an id go, and the grant of it; FlaggedPath: RX memory
//!                   that responses name. Paths without one use ordinary pages, of copy/front.rs
//! ```
//!
//! | path | how the back gets at the bytes; the front copies too, unless it says otherwise | granted | keys |
//! |---|---|---|---|
//! | [`copy`] | grant copy | for each frame, or once | none |
//! | [`map`] | heads by grant copy, the rest from pages that it maps: copied, or taken there by the port | as `copy` | none |
//! | [`persistent`] | copies from and to pages that it maps at first sight | once | `feature-persistent` |
//! | [`gref_mapping`] | the same, mapped because the front asked | once | `feature-ctrl-ring`, and messages 8 to 10 |
//! | [`staging`] | the same, mapped at connect | once | `feature-staging-grants` and its lists |
//! | [`foreign`] | copies from and to any page of a guest that trusts it | never | `feature-foreign`; loopback only |
//! | [`guest_copy`], RX | copies into pages of its own that it lends; the guest does the grant copy | by the back, once | `feature-guest-copy` |
//! | [`data_ring`] | copies from and to a circular area that it maps at connect | once | `feature-data-ring` and an index page |
//!
//! What [`map`] maps may be lent to a port, and what stays mapped may be too ([`held`]).
//!
//! Either end asks the paths of a queue one after another ([`chain`], [`front_chain`]); each serves
//! what it can of a batch.

/// The list of all paths, in the order in which they are asked, handed to the macro `$with` behind
/// its arguments: what a path is, its folder with the type of this name
/// ([`Negotiation`]), and its name as it is written.
macro_rules! paths {
    ($with:ident $args:tt) => {
        listed! {
            $with $args
            /// Buffers granted before the data comes.
            Staging = staging, "staging";
            /// A circular area granted before the data comes.
            DataRing = data_ring, "data-ring";
            /// Any frame of a guest that trusts its back.
            Foreign = foreign, "foreign";
            /// Pages that the back lends: the guest copies.
            GuestCopy = guest_copy, "guest-copy";
            /// Pages that the guest asked to keep mapped.
            GrefMapping = gref_mapping, "gref-mapping";
            /// Pages that stay mapped once they were seen.
            Persistent = persistent, "persistent";
            /// Copy of the headers, map and unmap of the rest.
            Map = map, "map";
            /// Batched grant copy.
            Copy = copy, "copy";
        }
    };
}

/// Hands the list on.
#[cfg(not(feature = "ninth-path"))]
macro_rules! listed {
    ($with:ident $args:tt $($list:tt)*) => {
        $with! { $args $($list)* }
    };
}

/// Hands the list on with a line more, for tests/ninth_path.rs.
#[cfg(feature = "ninth-path")]
macro_rules! listed {
    ($with:ident $args:tt $($list:tt)*) => {
        $with! { $args
            /// Pages that stay mapped, for a test.
            Ninth = ninth, "persistent-again";
            $($list)*
        }
    };
}

/// A struct with a field for each path beside its own, which all have a value to begin with: `pub
/// struct NAME(type of a path, function that makes one)`, or `default` for its default. The types
/// are those of the folders, and not the projections that they are equal to: rustc 1.95 does not
/// compile a closure that takes such fields out of a struct (`..config`).
macro_rules! with_paths {
    (
        {
            $(#[$attr:meta])*
            pub struct $name:ident($of:ident, $start:ident) {
                $($(#[$about:meta])* pub $field:ident: $type:ty = $value:expr,)*
            }
        }
        $($(#[$doc:meta])* $path:ident = $module:ident, $text:literal;)*
    ) => {
        $(#[$attr])*
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
            $($(#[$doc])* pub $module: crate::net::path::$module::$of,)*
        }

        impl $name {
            /// To begin with.
            pub(crate) fn start() -> Self {
                Self {
                    $($field: $value,)*
                    $($module: starts!($start $module $path $of),)*
                }
            }
        }

        $(
            impl crate::net::path::OfPath<crate::net::path::$module::$path> for $name {
                type Field = crate::net::path::$module::$of;
                fn path(&self) -> &Self::Field {
                    &self.$module
                }
                fn path_mut(&mut self) -> &mut Self::Field {
                    &mut self.$module
                }
            }
        )*
    };
}

macro_rules! starts {
    (default $module:ident $path:ident $of:ident) => {
        <crate::net::path::$module::$of>::default()
    };
    ($start:ident $module:ident $path:ident $of:ident) => {
        <crate::net::path::$module::$path as crate::net::path::Negotiation>::$start()
    };
}

/// Does the same for each path, in the order of the list: `each_path!(Path => ...)`.
macro_rules! each_path {
    ($path:ident => $does:expr) => {
        paths!(does_each { $path => $does })
    };
}

macro_rules! does_each {
    (
        { $each:ident => $does:expr }
        $($(#[$doc:meta])* $path:ident = $module:ident, $text:literal;)*
    ) => {
        $({
            type $each = crate::net::path::$module::$path;
            $does
        })*
    };
}

/// Does the same with whichever memory at the front it is; compiled for each.
macro_rules! with_path {
    ($any:expr, $bound:ident => $what:expr) => {
        paths!(match_any { AnyFrontPath, $any, $bound => $what })
    };
}

/// The same of memory that responses name.
macro_rules! with_flagged {
    ($any:expr, $bound:ident => $what:expr) => {
        paths!(match_any { AnyFlaggedPath, $any, $bound => $what })
    };
}

/// The same of a path at the back.
macro_rules! with_back {
    ($any:expr, $bound:ident => $what:expr) => {
        paths!(match_any { AnyPath, $any, $bound => $what })
    };
}

macro_rules! match_any {
    (
        { $of:ident, $any:expr, $bound:ident => $what:expr }
        $($(#[$doc:meta])* $path:ident = $module:ident, $name:literal;)*
    ) => {
        match $any {
            $(crate::net::path::$of::$path($bound) => $what,)*
        }
    };
}

/// The types of a path's negotiation, by their names in its file.
macro_rules! own_types {
    () => {
        type Offer = Offer;
        type Request = Request;
        type QueueRequest = QueueRequest;
        type Config = Config;
        type Wanted = Wanted;
    };
}

/// Of a path without memory at the front.
macro_rules! no_memory {
    () => {
        type Front<P: crate::platform::Platform> = crate::net::path::uninhabited::NoMemory<P>;
        type Flagged<P: crate::platform::Platform> = crate::net::path::uninhabited::NoMemory<P>;
    };
}

macro_rules! folders {
    ({} $($(#[$doc:meta])* $path:ident = $module:ident, $text:literal;)*) => {
        $(pub mod $module;)*

        /// The keys of all paths.
        pub const KEYS: &[PathKeys] = &[$(<$module::$path as Negotiation>::KEYS),*];
    };
}

paths!(folders {});

pub mod acceptance;
pub mod active;
pub mod any_back;
pub mod any_front;
pub mod any_refusal;
pub mod back;
pub mod chain;
pub mod config;
pub mod cost;
pub mod flagged_rx;
pub mod front;
pub mod front_chain;
pub mod front_negotiation;
pub mod held;
pub mod keys;
pub mod negotiation;
pub mod path_name;
pub mod path_not_offered;
pub mod path_refusal;
pub mod request_keys;
pub mod uninhabited;

pub use any_back::{AnyClaims, AnyPath};
pub use any_front::{AnyFlaggedPath, AnyFrontPath};
pub use any_refusal::Refusal;
pub use back::{BackPath, ByteArea, ConfigGeneration, Shared};
pub use chain::Chain;
pub use copy::back::CopyPath;
pub use data_ring::back::DataRingPath;
pub use flagged_rx::FlaggedPath;
pub use foreign::back::ForeignPath;
pub use front::FrontPath;
pub use front_chain::FrontChain;
pub use gref_mapping::announced_pages::AnnouncedPages;
pub use gref_mapping::back::GrefMappingPath;
pub use gref_mapping::cache::{CacheStats, GrefCache};
pub use gref_mapping::front::PageAnnouncement;
pub use gref_mapping::own_pages::OwnPages;
pub use gref_mapping::requests::{
    CtrlWork, GrefRequests, QUEUES_MAX as GREF_QUEUES_MAX, UNANSWERED_MAX as GREF_UNANSWERED_MAX,
};
pub use gref_mapping::rx_pool::RxPool;
pub use gref_mapping::tx_own_pages::HeadedFrame;
pub use gref_mapping::working_set::CacheMode;
pub use guest_copy::back::GuestCopyPath;
pub use guest_copy::lent::LentRegions;
pub use held::HoldsFrames;
pub use map::back::MapPath;
pub use path_name::{BufferNames, ChainNames, FrameCost, PathName};
pub use path_refusal::PathRefusal;
pub use persistent::back::PersistentPath;
pub use staging::back::{StagedBuffers, StagingPath};
pub use staging::list::DataLen;

pub use config::PathConfig;
pub use front_negotiation::FrontNegotiation;
pub use negotiation::{Negotiation, OfPath};
pub use path_not_offered::PathNotOffered;

pub use super::stats::Served;

use crate::platform::{PeerMem, Platform};
use acceptance::Accept;
use alloc::boxed::Box;
use alloc::vec::Vec;
use keys::PathKeys;

/// How a received buffer is sent on by TX as it is: the path that carries it, and the flag of its
/// request.
pub const SENT_ON: (PathName, u16) = (PathName::Staging, crate::wire::netif::TXF_STAGING_BUFFER);

/// What passes between a vif's owner, which maps pages that the guest asks for, and a queue.
pub type PageExchange<P> = gref_mapping::exchange::GrefExchange<<<P as Platform>::Peer as PeerMem>::Map>;

/// The order in which the paths of TX are asked: first those that know their requests by a flag,
/// for what these name is no grant; then that of the list.
pub const TX_ORDER: &[PathName] = &PathName::CLAIMS_FIRST;

/// The order of RX: that of the list, memory that both ends have first.
pub const RX_ORDER: &[PathName] = &PathName::ALL;

/// What takes each path for a front that connects, in the order in which they share the guest's
/// pages.
pub fn acceptors<P: Platform>(config: &PathConfig) -> Vec<Box<dyn Accept<P>>> {
    let mut all = Vec::new();
    each_path!(Path => all.extend(Path::acceptor(OfPath::<Path>::path(config), config.fallback)));
    all
}
