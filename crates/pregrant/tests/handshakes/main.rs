//! Each other system's handshake against our ends, played from tables of what that system writes
//! and waits for (docs/protocol 2.12 and 5.5), with frames and requests that travel afterwards.
//!
//! ```text
//!   machine   a store with the toolstack's keys, grants, channels      script   steps of a table, and who plays them
//!   net_front, blk_front   other systems' fronts, our backs            net_guest, blk_guest   their rings, slot by slot
//!   net_back,  blk_back    other systems' backs, our fronts            net_host,  blk_host
//! ```
//! The other system's part shares no code with our drivers: keys and slots are written byte by
//! byte.
#![cfg(not(any(loom, miri)))]

mod blk_back;
mod blk_front;
mod blk_guest;
mod blk_host;
mod machine;
mod net_back;
mod net_front;
mod net_guest;
mod net_host;
mod page;
mod script;
