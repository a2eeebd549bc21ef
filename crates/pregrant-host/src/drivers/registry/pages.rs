//! Computes the shares of one guest's pages (XSA-300): how many each of its devices may have
//! mapped. It deals with numbers only; [`shared_pages`](super::shared_pages) knows the devices.
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

/// Default for the pages of one guest that may be mapped, over all of its devices (XSA-300): 64
/// MiB. For comparison: a vif with eight queues and a page for each of 256 buffers in both
/// directions has 4112.
pub const PAGES_PER_GUEST: usize = 16 * 1024;
/// One of this number of the guest's pages is kept back, so that a device that connects later finds
/// room.
const SPARE: usize = 16;

/// The pages that a device may have mapped when it connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PageBudget {
    /// Number of pages that the guest's other devices do not need.
    pub(super) limit: usize,
    /// Number of these pages that may stay mapped until the device closes, in addition to those
    /// that the device cannot work without.
    pub(super) lasting: usize,
}

/// Returns the share of one device. Its guest may have `limit` pages; the guest's other devices
/// have `least` and, if connected, request these `requests` beyond that. `waiting` devices,
/// including this one, are not connected and may be soon.
pub(super) fn room(limit: usize, least: usize, requests: &[usize], waiting: usize) -> PageBudget {
    let lasting = lasting(limit, least, requests, waiting.max(1)).pop().unwrap_or(0);
    PageBudget { limit: limit.saturating_sub(least), lasting }
}

/// Returns the number of pages that each device may still keep until it closes. There are devices
/// with these `requests`, and `waiting` devices whose requests are not known yet.
pub(super) fn lasting(limit: usize, least: usize, requests: &[usize], waiting: usize) -> Vec<usize> {
    let left = limit.saturating_sub(least).saturating_sub(limit / SPARE);
    shares(left, &[requests, &vec![usize::MAX; waiting]].concat())
}

/// Shares out the `left` pages among devices with these requests.
pub(super) fn shares(left: usize, requests: &[usize]) -> Vec<usize> {
    let mut left = left;
    let mut shares = vec![0; requests.len()];
    // Devices with small requests come first; what they leave goes to the others.
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
