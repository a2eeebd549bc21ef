//! How a frame's bytes travel: a folder for each way, behind one interface at each end.
//!
//! ```text
//!   NAME/mod.rs          what is agreed on, what it costs, what a peer may do
//!   NAME/keys.rs         its keys, and why it is refused
//!   NAME/negotiation.rs  Negotiate: what a back offers, what a front asks for, what is accepted
//!   NAME/back.rs         BackPath: fetch (TX), deliver (RX), retire
//!   NAME/front.rs        FrontPath: where the bytes of an id go, and the grant of it. Paths without one
//!                        use ordinary pages, of copy/front.rs
//! ```
//!
//! | path | how the back gets at the bytes; the front copies too, unless it says otherwise | granted | keys |
//! |---|---|---|---|
//! | [`copy`] | grant copy | for each frame, or once | none |
//! | [`map`] | heads by grant copy, the rest from pages that it maps: copied, or taken there by the port | as `copy` | none |
//! | [`persistent`] | copies from and to pages that it maps at first sight | once | `feature-persistent` |
//! | [`gref_mapping`] | the same, mapped because the front asked | once | `feature-ctrl-ring`, and messages 8 to 10 |
//! | [`staging`] | the same, mapped at connect | once | `feature-staging-grants` and its lists |
//! | [`foreign`](research::foreign) | copies from and to any page of a guest that trusts it | never | `feature-foreign`; loopback only |
//! | [`guest_copy`](research::guest_copy), RX | copies into pages of its own that it lends; the guest does the grant copy | by the back, once | `feature-guest-copy` |
//! | [`data_ring`] | copies from and to a circular area that it maps at connect | once | `feature-data-ring` and an index page |
//!
//! `foreign` and `guest-copy` are in [`research`]: real Xen refuses them, so a build has them with
//! the feature of that name alone.
//!
//! What [`map`] maps may be lent to a port, and what stays mapped may be too ([`held`]).
//!
//! Either end asks the paths of a queue one after another ([`chain`], [`front_chain`]); each serves
//! what it can of a batch.

pub mod copy;
pub mod data_ring;
pub mod gref_mapping;
pub mod map;
pub mod persistent;
pub mod research;
pub mod staging;

pub mod acceptance;
pub mod acceptors;
pub mod active_lists;
pub mod any_back;
pub mod any_front;
pub mod back;
pub mod chain;
pub mod config;
pub mod cost;
pub mod front;
pub mod front_chain;
pub mod held;
pub mod keys;
pub mod named_memory;
pub mod negotiation;
pub mod order;
pub mod path_name;
pub mod refusal;
pub mod request_keys;

pub use any_back::{AnyClaims, AnyPath, PageExchange};
pub use any_front::{AnyFlaggedPath, AnyFrontPath};
pub use back::{BackParts, BackPath, ConfigGeneration};
pub use chain::Chain;
pub use copy::back::CopyPath;
pub use data_ring::back::DataRingPath;
pub use front::FrontPath;
pub use front_chain::FrontChain;
pub use gref_mapping::back::GrefMappingPath;
pub use gref_mapping::front::PageAnnouncement;
pub use gref_mapping::requests::{
    CtrlWork, GrefRequests, QUEUES_MAX as GREF_QUEUES_MAX, UNANSWERED_MAX as GREF_UNANSWERED_MAX,
};
pub use map::back::MapPath;
pub use order::{RX_ORDER, TX_ORDER};
pub use path_name::{BufferNames, ChainNames, FrameCost, PathName};
pub use persistent::back::PersistentPath;
pub use refusal::Refusal;
#[cfg(feature = "research")]
pub use research::foreign::back::ForeignPath;
#[cfg(feature = "research")]
pub use research::guest_copy::back::GuestCopyPath;
#[cfg(feature = "research")]
pub use research::guest_copy::lent::LentRegions;
pub use staging::back::{StagedBuffers, StagingPath};
pub use staging::list::DataLen;

pub use config::PathConfig;
pub use data_ring::DataRing;
pub use negotiation::Negotiate;
pub use persistent::Persistent;
#[cfg(feature = "research")]
pub use research::foreign::Foreign;
#[cfg(feature = "research")]
pub use research::guest_copy::GuestCopy;
pub use staging::Staging;

pub use super::stats::Served;
