//! The atomic operations of version 2. Loom replaces this file, and adds a fence that its model
//! needs.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// No fence is needed here: on the hardware a SeqCst exchange already precedes a later SeqCst load.
#[inline(always)]
pub(super) fn ordered_as_seq_cst() {}
