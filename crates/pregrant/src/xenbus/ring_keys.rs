//! Keys in which fronts of every class report their rings and queues: one place that writes them,
//! the same place that reads them (docs/protocol 2.8 and 5.4).
//!
//! ```text
//!   one queue    [PREFIX]ring-ref                                     a page
//!                [PREFIX]ring-page-order, [PREFIX]ring-ref0, 1, ...   2^order pages
//!   more queues  multi-queue-num-queues, and the same below queue-0/, queue-1/ ...
//!                but a disk's ring-page-order, which is one key at the top for all of its queues
//! ```
//! PREFIX is "tx-" or "rx-" for a vif and nothing for a disk. What a front may do: write anything.
//! A number that is garbled or more than the back said is an error that names the key; a key
//! without a value is a key that is not there.

use super::key_source::{KeySource, Pairs, decimal, needed, number, put};
use crate::units::GrantRef;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The front's key for how many queues there are.
pub const NUM_QUEUES: &str = "multi-queue-num-queues";

/// The front's key for the pages of a ring, as the exponent of 2.
pub const RING_ORDER: &str = "ring-page-order";

/// Pages of a ring at most, as the exponent of 2.
pub const MAX_RING_ORDER: u32 = 4;

/// The pages that a back takes, by one of its keys. Garbled means one page.
pub fn ring_order<S: KeySource>(keys: &mut S, key: &str) -> Result<u32, S::Error> {
    Ok(keys.text(key)?.as_deref().and_then(decimal).unwrap_or(0).min(MAX_RING_ORDER))
}

/// The key that names page `k` of a ring, by a number or without one.
pub fn ring_key(prefix: &str, k: usize, numbered: bool) -> String {
    if numbered { format!("{prefix}ring-ref{k}") } else { format!("{prefix}ring-ref") }
}

/// Writes how many pages a ring has, where it has several.
pub fn put_order(p: &mut Pairs, prefix: &str, pages: usize) {
    if pages > 1 {
        put(p, format!("{prefix}{RING_ORDER}"), pages.ilog2());
    }
}

/// Writes a ring's pages.
pub fn put_ring(p: &mut Pairs, prefix: &str, refs: &[GrantRef]) {
    for (k, r) in refs.iter().enumerate() {
        put(p, ring_key(prefix, k, refs.len() > 1), r.0);
    }
}

/// A front's order; None: it says none. `most` is what the back said; `expected` names it, should
/// there be more.
pub fn asked_order<S: KeySource>(
    keys: &mut S,
    prefix: &str,
    (most, expected): (u32, &'static str),
) -> Result<Option<u32>, S::Error> {
    let key = format!("{prefix}{RING_ORDER}");
    match number(keys, &key)? {
        Some(order) if order > most => Err(keys.bad(&key, &order.to_string(), expected)),
        order => Ok(order),
    }
}

/// The grants of a ring: `ring-ref`, or by numbers as many as an order says.
pub fn ring_pages<S: KeySource>(
    keys: &mut S,
    prefix: &str,
    order: Option<u32>,
) -> Result<Vec<GrantRef>, S::Error> {
    let pages = 1 << order.unwrap_or(0);
    (0..pages).map(|k| needed(keys, &ring_key(prefix, k, order.is_some())).map(GrantRef)).collect()
}

/// The grants of a vif's ring. Only our fronts write orders, each beside its ring, and they remove
/// what another left. So a key without a number is of a front that knows no orders, whatever one of
/// ours that was killed left beside it.
pub fn vif_ring<S: KeySource>(
    keys: &mut S,
    prefix: &str,
    most: (u32, &'static str),
) -> Result<Vec<GrantRef>, S::Error> {
    if let Some(only) = number(keys, &ring_key(prefix, 0, false))? {
        return Ok(Vec::from([GrantRef(only)]));
    }
    let order = asked_order(keys, prefix, most)?.filter(|order| *order > 0);
    ring_pages(keys, prefix, order)
}

/// How many queues the front has; the back takes `most`.
pub fn nr_queues<S: KeySource>(keys: &mut S, most: u32) -> Result<u32, S::Error> {
    let n = number(keys, NUM_QUEUES)?.unwrap_or(1);
    if n == 0 || n > most {
        let expected = "at least 1 and at most the back's multi-queue-max-queues";
        return Err(keys.bad(NUM_QUEUES, &n.to_string(), expected));
    }
    Ok(n)
}

/// Where queue `i` of `n` has its keys, relative to its end's directory, with the slash.
pub fn queue_prefix(i: usize, n: usize) -> String {
    if n >= 2 { format!("queue-{i}/") } else { String::new() }
}
