//! The atomics of the rings: those of `core`, or loom's when the crate is compiled with `--cfg
//! loom`.
//!
//! Sleep and wake-up depend on [`fence`]`(SeqCst)` between a store of one index and a load of
//! another. They use fences because loom models SeqCst fences and not SeqCst accesses.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
