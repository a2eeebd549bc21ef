//! The network device: netif's two ends, and what happens to a frame between them.
//!
//! TX and RX are the guest's, everywhere: TX is what a guest sends.

pub mod ahead;
pub mod announcement;
pub mod back;
pub mod batch;
pub mod checksum;
pub mod feature_keys;
pub mod features;
pub mod front;
pub mod gso;
pub mod headers;
pub mod mtu;
pub mod one_slot;
pub mod path;
pub mod placed_offload;
pub mod stats;
pub mod toeplitz;
