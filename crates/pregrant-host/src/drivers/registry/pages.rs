//! The shares of one guest's pages (XSA-300): what each of its devices may have mapped. Numbers
//! alone: [`shared_pages`](super::shared_pages) knows the devices.
//!
//! ```text
//!   bound of a guest  =  the least of each device (rings, what was named at connect, what the guest had mapped by request)
//!                     +  shares of those that are connected (pages that are kept, or may be asked for)
//! ```
//! Invariants: each device that connects has its least as long as that of all fits into the bound.
//! The rest is shared evenly among those that are connected; one that requests less leaves the
//! rest to the others; each device that requests pages has some while there are any. A device that
//! is not connected has no part in this.
//!
//! A share can be cut again, but not what a device took to keep until it closes: a staging list, a
//! table of grants. Of such pages a device may have its even part and no more, with those that are
//! connected and request pages, and those that may come for some; and one page in [`SPARE`] of the
//! bound is left for the least of devices that are not known yet.

/// Pages of one guest that are mapped at a time, over all of its devices, unless the configuration
/// says otherwise (XSA-300): 64 MiB. A vif with eight queues, a page for each of 256 buffers both
/// ways, has 4112 of them.
pub const PAGES_PER_GUEST: usize = 16 * 1024;
/// One page in this number of the bound is not given away for long.
const SPARE: usize = 16;

/// The pages that a device may have mapped when it connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PageBudget {
    /// All that its guest's other devices can do without.
    pub(super) limit: usize,
    /// Of these, those that do not come back before it closes, unless it cannot work without them.
    pub(super) lasting: usize,
}

/// Of a guest with the bound `limit`, whose other devices have the `least` and, where they are
/// connected, these `requests` beyond it; `waiting` of its devices, with this one, are not
/// connected and may be soon.
pub(super) fn room(limit: usize, least: usize, requests: &[usize], waiting: usize) -> PageBudget {
    let lasting = lasting(limit, least, requests, waiting.max(1)).pop().unwrap_or(0);
    PageBudget { limit: limit.saturating_sub(least), lasting }
}

/// Pages that each device may yet take for long: those with these `requests`, and those that are
/// `waiting`, whose requests are not known yet.
pub(super) fn lasting(limit: usize, least: usize, requests: &[usize], waiting: usize) -> Vec<usize> {
    let left = limit.saturating_sub(least).saturating_sub(limit / SPARE);
    shares(left, &[requests, &vec![usize::MAX; waiting]].concat())
}

/// Shares out what is `left` among devices with these requests.
pub(super) fn shares(left: usize, requests: &[usize]) -> Vec<usize> {
    let mut left = left;
    let mut shares = vec![0; requests.len()];
    // Those that request little first: what they leave is the others'.
    let mut order: Vec<_> = (0..requests.len()).collect();
    order.sort_by_key(|&at| requests[at]);
    for (unserved, at) in (1..=requests.len()).rev().zip(order) {
        shares[at] = requests[at].min(left / unserved);
        left -= shares[at];
    }
    shares
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
