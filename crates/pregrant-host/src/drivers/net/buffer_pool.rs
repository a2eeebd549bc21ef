//! How many staging buffers, or pages, a direction of a queue has if no option sets the number.
//!
//! ```text
//!   the private cache of a core (sysfs) * 2 / bytes of a buffer
//! ```
//! Buffers that stay in the private caches of both ends' cores go from one to the other at each
//! touch. With more than these hold, first in, first out, a line is in the cache that all cores
//! share before it is used again. Where the pages that a domain can grant are few (Linux's
//! gntalloc), a vif leaves most of them to others.

use pregrant::PAGE_SIZE;
use pregrant::net::path::PathConfig;
use pregrant::net::path::staging::keys::MAX_PAGES_OFFERED;
use pregrant::net::path::staging::list::{DataLen, LONG_LIST_MAX};

/// Number of bytes of buffers if the machine does not report the size of its caches.
const UNKNOWN: u64 = 4 << 20;
/// The buffers of one vif use at most this fraction (one in four) of the pages that a domain can
/// grant.
const SHARE: u64 = 4;

/// Number of staging buffers in each list of a vif with `lists` lists, in a domain that can grant
/// `grantable` pages (None: unknown).
pub fn buffers(len: DataLen, lists: u32, grantable: Option<u64>) -> u32 {
    within(pool_bytes(), len, lists, grantable)
}

/// Returns the number that [`buffers`] gives a vif of one queue with our back.
pub fn offered(len: DataLen) -> u32 {
    buffers(len, 2, None).min(len.buffers_within(MAX_PAGES_OFFERED, 2))
}

/// Number of ordinary pages that our back keeps mapped for each direction of a vif of one queue.
pub fn allowed_pages() -> u32 {
    PathConfig::default().mapped_pages() / 2
}

/// Returns the number of bytes of one direction's buffers.
pub fn pool_bytes() -> u64 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size");
    text.ok().and_then(|text| bytes_of(&text)).map_or(UNKNOWN, |cache| 2 * cache)
}

/// Returns the number of pages, as [`buffers`] does for buffers. Each page usually holds a frame of
/// at most half a page.
pub fn pages(lists: u32, grantable: Option<u64>) -> u32 {
    let pages = (pool_bytes() / (PAGE_SIZE as u64 / 2)).min(share(lists, grantable));
    pages.min(LONG_LIST_MAX as u64) as u32
}

/// Number of pages for each list, in a domain that can grant `grantable` pages.
pub fn share(lists: u32, grantable: Option<u64>) -> u64 {
    grantable.map_or(u64::MAX, |pages| pages / SHARE / u64::from(lists.max(1)))
}

fn within(bytes: u64, len: DataLen, lists: u32, grantable: Option<u64>) -> u32 {
    let bytes = bytes.min(share(lists, grantable).saturating_mul(PAGE_SIZE as u64));
    (bytes / u64::from(len.buffer_bytes())).min(LONG_LIST_MAX as u64) as u32
}

/// Parses a size as sysfs writes it, such as `1024K`.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => (text.strip_suffix('M')?, 1 << 20),
    };
    number.parse::<u64>().ok().filter(|n| (1..=1 << 20).contains(n)).map(|n| n * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_s_size_in_words() {
        assert_eq!(bytes_of("1024K\n"), Some(1 << 20));
        assert_eq!(bytes_of("2M"), Some(2 << 20));
        for text in ["", "K", "-1K", "0K", "1024", "99999999999999K", "x"] {
            assert_eq!(bytes_of(text), None, "{text}");
        }
        let len = |n| DataLen::new(n).expect("a length");
        assert_eq!(pages(2, None), buffers(len(2048), 2, None));
        assert_eq!((pages(2, Some(1024)), pages(0, Some(0))), (128, 0));
        assert!(buffers(len(65535), 2, None) >= 16 && buffers(len(16), 2, None) <= LONG_LIST_MAX as u32);
    }
    #[test]
    fn a_back_s_allowance_bounds_both_directions() {
        let len = |n| DataLen::new(n).expect("a length");
        assert_eq!([2048, 256, 65535].map(|n| len(n).buffers_within(896, 2)), [896, 7168, 448]);
        assert_eq!(
            (len(16).buffers_within(1 << 20, 0), len(64).buffers_within(1, 2)),
            (LONG_LIST_MAX as u32, 0)
        );
        assert!(offered(len(2048)) <= 896 && allowed_pages() == 448);
    }
    #[test]
    fn others_have_most_of_what_can_be_granted() {
        let of = |len, lists, grantable| within(2 << 20, DataLen::new(len).unwrap(), lists, grantable);
        assert_eq!([2048, 256, 65535].map(|len| of(len, 2, None)), [1024, 8192, 512]);
        assert_eq!([1024, 4096, 1 << 20].map(|pages| of(65535, 2, Some(pages))), [128, 512, 512]);
        assert_eq!((of(65535, 16, Some(4096)), of(64, 0, Some(0)), of(16, 2, None)), (64, 0, 32767));
    }
}
