//! A vif's back in a kernel: what the module `pregrant_back.ko` is of Rust.
//!
//! ```text
//!   linux/back (C): xenbus driver, net_device, NAPI, event channels, grant copies
//!        |  pregrant_back_*: vif.rs, queue.rs       ^  pk_*: shim.rs here, and the front's
//!        v                                          |
//!   vif     BackVif over --> platform (grant copies, mapped rings, channels), bus (keys, states)
//!   queue   BackQueue with its port, which is the net_device
//! ```
//! TX is what the guest sends, RX what it receives, here as everywhere.
//!
//! What a guest may do: see the crate. A fault of its rings ends its queue's polls, and closes the
//! vif.

mod platform;
mod port;
mod queue;
mod shim;
mod vif;
