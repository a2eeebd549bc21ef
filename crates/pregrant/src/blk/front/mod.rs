//! The front's end of a disk, in the guest: sends requests for sectors, and takes the answers.
//!
//! ```text
//!   Ask --submit--> pages (filled, for a write) --> segments --> ring         ring --> Answer: its tag, and a read's bytes
//! ```
//! The data path ([`queue`]) is separate from the control path (`vbd`: keys, states, the disk's
//! properties).

pub mod free_pages;
mod not_offered;
pub mod own_pages;
pub mod queue;
pub mod vbd;

pub use not_offered::NotOffered;
pub use own_pages::OwnAsk;
pub use queue::{Answer, Ask, FrontQueue, NotAsked};
pub use vbd::{FrontConfig, FrontStep, FrontVbd};
