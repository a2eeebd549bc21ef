//! `persistent-again`: a ninth path, for a test alone (tests/ninth_path.rs), behind the cargo
//! feature `ninth-path`. It shows what a further path takes: this folder, and one line of the list.
//!
//! ```text
//!   feature-persistent-again = "1" at both ends --> the back maps each page when it first sees it
//! ```
//! It is [`persistent`](super::persistent) without what makes that fast, under a key of its own. No
//! end offers it or asks for it unless its owner says so. What a peer may do: as there.

pub mod acceptance;
pub mod back;
pub mod keys;
pub mod negotiation;

pub use keys::FEATURE;

pub use negotiation::{Config, Ninth, Offer, QueueRequest, Request, Wanted};
