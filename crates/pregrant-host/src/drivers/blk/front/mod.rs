//! A disk of the own domain, as a guest's driver serves it to threads.
//!
//! ```text
//!   frontend     one vbd: the loop between threads and rings
//!   shared_disk  the same vbd, as threads use it: requests in bytes
//!   schedule     how those become requests of whole sectors, their order, and which are sent again
//! ```

pub mod frontend;
mod schedule;
pub mod shared_disk;
