//! The primitives of version 2; loom has its own, with a fence for what it does not model.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A SeqCst exchange comes before a SeqCst load behind it as it is.
#[inline(always)]
pub(super) fn ordered_as_seq_cst() {}
