//! The keys in which fronts of every class name their rings and queues, written and read in one
//! place (docs/protocol 2.8 and 5.4).
//!
//! ```text
//!   one queue    [PREFIX]ring-ref                                     a page
//!                [PREFIX]ring-page-order, [PREFIX]ring-ref0, 1, ...   2^order pages
//!   more queues  multi-queue-num-queues, and the same below queue-0/, queue-1/ ...
//!                but a disk's ring-page-order, which is one key at the top for all of its queues
//! ```
//! PREFIX is "tx-" or "rx-" for a vif and empty for a disk. What a front may do: write anything. A
//! number that is invalid, or larger than the back offered, is an error that names the key; a key
//! with an empty value counts as absent.

use super::key_name::KeyName;
use super::key_source::{KeySink, KeySource, decimal, needed, number, put};
use crate::memory;
use crate::units::GrantRef;
use alloc::vec::Vec;
use core::fmt;

/// The front's key for the number of queues.
pub const NUM_QUEUES: &str = "multi-queue-num-queues";

/// The front's key for log2 of the number of pages of a ring.
pub const RING_ORDER: &str = "ring-page-order";

/// Largest log2 of the number of pages of a ring.
pub const MAX_RING_ORDER: u32 = 4;

/// Reads the largest ring that a back accepts from one of its keys. An invalid value means one
/// page.
pub fn ring_order<S: KeySource>(keys: &mut S, key: &str) -> Result<u32, S::Error> {
    Ok(keys.text(key)?.as_deref().and_then(decimal).unwrap_or(0).min(MAX_RING_ORDER))
}

/// Not inlined: names of keys are made in many places.
#[inline(never)]
fn key(name: fmt::Arguments<'_>) -> KeyName {
    KeyName::of(name)
}

/// The key of page `k` of a ring, with or without a number.
pub fn ring_key(prefix: &str, k: usize, numbered: bool) -> KeyName {
    if numbered { key(format_args!("{prefix}ring-ref{k}")) } else { key(format_args!("{prefix}ring-ref")) }
}

/// Writes the number of pages of a ring that has several.
pub fn put_order(p: &mut dyn KeySink, prefix: &str, pages: usize) {
    if pages > 1 {
        put(p, format_args!("{prefix}{RING_ORDER}"), pages.ilog2());
    }
}

/// Writes the pages of a ring.
pub fn put_ring(p: &mut dyn KeySink, prefix: &str, refs: &[GrantRef]) {
    for (k, r) in refs.iter().enumerate() {
        put(p, ring_key(prefix, k, refs.len() > 1), r.0);
    }
}

/// Reads a front's order. None: there is no such key. `most` is what the back offered, in the key
/// `expected`, which the error names if the value is larger.
pub fn asked_order<S: KeySource>(
    keys: &mut S,
    prefix: &str,
    (most, expected): (u32, &'static str),
) -> Result<Option<u32>, S::Error> {
    let key = key(format_args!("{prefix}{RING_ORDER}"));
    match number(keys, &key)? {
        Some(order) if order > most => Err(keys.bad(&key, &KeyName::of(order), expected)),
        order => Ok(order),
    }
}

/// Reads the grants of a ring: `ring-ref`, or as many numbered keys as the order says.
pub fn ring_pages<S: KeySource>(
    keys: &mut S,
    prefix: &str,
    order: Option<u32>,
) -> Result<Vec<GrantRef>, S::Error> {
    let pages = 1 << order.unwrap_or(0);
    let mut refs = memory::room(pages).map_err(|e| keys.refused(e))?;
    for k in 0..pages {
        let gref = GrantRef(needed(keys, &ring_key(prefix, k, order.is_some()))?);
        memory::push(&mut refs, gref).map_err(|e| keys.refused(e))?;
    }
    Ok(refs)
}

/// Reads the grants of a vif's ring. Only our fronts write orders, each beside its ring, and they
/// remove what another front left. So a key without a number is from a front that knows no orders,
/// whatever one of our fronts left beside it when it was killed.
pub fn vif_ring<S: KeySource>(
    keys: &mut S,
    prefix: &str,
    most: (u32, &'static str),
) -> Result<Vec<GrantRef>, S::Error> {
    if let Some(only) = number(keys, &ring_key(prefix, 0, false))? {
        let mut refs = Vec::new();
        return memory::push(&mut refs, GrantRef(only)).map(|()| refs).map_err(|e| keys.refused(e));
    }
    let order = asked_order(keys, prefix, most)?.filter(|order| *order > 0);
    ring_pages(keys, prefix, order)
}

/// Reads the number of queues; the back accepts at most `most`.
pub fn nr_queues<S: KeySource>(keys: &mut S, most: u32) -> Result<u32, S::Error> {
    let n = number(keys, NUM_QUEUES)?.unwrap_or(1);
    if n == 0 || n > most {
        let expected = "at least 1 and at most the back's multi-queue-max-queues";
        return Err(keys.bad(NUM_QUEUES, &KeyName::of(n), expected));
    }
    Ok(n)
}

/// The prefix of the keys of queue `i` of `n`, relative to the end's directory, with the slash.
pub fn queue_prefix(i: usize, n: usize) -> KeyName {
    if n >= 2 { key(format_args!("queue-{i}/")) } else { key(format_args!("")) }
}
