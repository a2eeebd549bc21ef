//! Keys in which fronts of every class tell of their rings and queues: one place that writes them, the same place that reads them
//! (docs/protocol 2.8 and 5.4).
//!
//! ```text
//!   one queue    [PREFIX]ring-ref                                     a page
//!                [PREFIX]ring-page-order, [PREFIX]ring-ref0, 1, ...   2^order pages
//!   more queues  multi-queue-num-queues, and the same below queue-0/, queue-1/ ...
//! ```
//! PREFIX is "tx-" or "rx-" for a vif and nothing for a disk. What a front may do: write anything. A number that is garbled or more
//! than the back said is an error that names the key.

use super::key_source::{KeySource, Pairs, decimal, needed, number, put};
use crate::units::GrantRef;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The front's key for how many queues there are.
pub const NUM_QUEUES: &str = "multi-queue-num-queues";

/// Pages of a ring at most, as the exponent of 2.
pub const MAX_RING_ORDER: u32 = 4;

/// What a back takes, by one of its keys. Garbled means one page.
pub fn ring_order<S: KeySource>(keys: &mut S, key: &str) -> Result<u32, S::Error> {
    Ok(keys.text(key)?.as_deref().and_then(decimal).unwrap_or(0).min(MAX_RING_ORDER))
}

/// The key that names page `k` of a ring that has `pages`.
pub fn ring_key(prefix: &str, k: usize, pages: usize) -> String {
    if pages == 1 { format!("{prefix}ring-ref") } else { format!("{prefix}ring-ref{k}") }
}

/// Writes a ring's keys.
pub fn put_ring(p: &mut Pairs, prefix: &str, refs: &[GrantRef]) {
    if refs.len() > 1 {
        put(p, format!("{prefix}ring-page-order"), refs.len().ilog2());
    }
    for (k, r) in refs.iter().enumerate() {
        put(p, ring_key(prefix, k, refs.len()), r.0);
    }
}

/// The grants of a ring, blkif's way: with an order, each key has a number. A key without one says that its front knows no orders,
/// whatever another one left beside it. `most` is what the back said; `expected` names it, should there be more.
pub fn ring<S: KeySource>(
    keys: &mut S,
    prefix: &str,
    (most, expected): (u32, &'static str),
) -> Result<Vec<GrantRef>, S::Error> {
    if let Some(only) = number(keys, &ring_key(prefix, 0, 1))? {
        return Ok(Vec::from([GrantRef(only)]));
    }
    let key = format!("{prefix}ring-page-order");
    let order = number(keys, &key)?.unwrap_or(0);
    if order > most {
        return Err(keys.bad(&key, &order.to_string(), expected));
    }
    let pages = 1 << order;
    (0..pages).map(|k| needed(keys, &ring_key(prefix, k, pages)).map(GrantRef)).collect()
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
