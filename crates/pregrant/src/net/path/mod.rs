//! How a frame's bytes travel: a folder for each way, behind one interface at each end.
//!
//! ```text
//!   NAME/mod.rs    what is agreed on, what it costs, what a peer may do
//!   NAME/back.rs   BackPath: fetch (TX), deliver (RX), retire
//!   NAME/front.rs  FrontPath: where the bytes of an id go, and the grant of it
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
//! What [`map`] maps may be lent to a port, and what stays mapped may be too ([`lending`]).
//!
//! Either end asks the paths of a queue one after another ([`chain`], [`front_chain`]); each serves what it can of a batch.

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
pub mod lending;
pub mod map;
pub mod name;
pub mod persistent;
pub mod staging;

pub use any::{AnyClaims, AnyPath};
pub use any_front::AnyFrontPath;
pub use back::{BackPath, Lends};
pub use chain::{Chain, ChainNames};
pub use copy::back::CopyPath;
pub use data_ring::back::DataRingPath;
pub use foreign::back::ForeignPath;
pub use front::FrontPath;
pub use front_chain::FrontChain;
pub use gref_mapping::back::GrefMappingPath;
pub use guest_copy::back::GuestCopyPath;
pub use map::back::MapPath;
pub use name::{FrameCost, PathName};
pub use persistent::back::PersistentPath;
pub use staging::back::{StagedBuffers, StagingPath};

pub use super::stats::{Counted, Served};
