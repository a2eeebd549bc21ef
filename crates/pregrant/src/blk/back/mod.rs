//! The back's end of a disk: takes the guest's requests, passes them to a disk, and answers them as
//! they complete.
//!
//! ```text
//!   ring --take--> journal --validate--> Job --path.begin--> Io --> disk --Done--> path.end --settle--> answer
//!                                     | refused: an answer at once                          by id, in any order
//! ```
//! The data path ([`queue`]) is separate from the control path ([`vbd`]: keys, states, the disk's
//! properties).

pub mod counters;
pub mod flush_fault;
pub mod journaled_ring;
pub mod kept_image;
pub mod queue;
pub mod request;
pub mod vbd;

pub use counters::{Counters, Counts, Latencies};
pub use queue::{BackQueue, QueueShare};
pub use vbd::{BackVbd, Tried, Vbd, VbdConfig};
