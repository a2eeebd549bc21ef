//! Calculates how many staging buffers or pages a queue of `pregrant front` has in each direction,
//! from the option `--buffers N|auto`.

use pregrant::net::path::staging::list::{DataLen, LONG_LIST_MAX};
use pregrant_host::drivers::net::buffer_pool;

/// Number of slots of a ring of one page.
const SLOTS: u32 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BufferCount {
    /// The number of buffers that the processor's caches suggest.
    Auto,
    Number(u32),
}

impl BufferCount {
    /// Returns the number of buffers of this length for rings of 2^`ring_order` pages; 0: one for
    /// each slot. There are `lists` lists, in a domain that may grant `grants` pages (None:
    /// unknown).
    pub(super) fn of(self, len: DataLen, ring_order: u32, lists: u32, grantable: Option<u64>) -> u32 {
        self.or(ring_order, || buffer_pool::buffers(len, lists, grantable))
    }

    /// Calculates the number of whole pages, as [`entries`](Self::entries) does for buffers.
    pub(super) fn pages(self, ring_order: u32, lists: u32, grantable: Option<u64>) -> u32 {
        self.or(ring_order, || buffer_pool::pages(lists, grantable))
    }

    fn or(self, ring_order: u32, auto: impl FnOnce() -> u32) -> u32 {
        let n = match self {
            Self::Auto => auto(),
            Self::Number(n) => n,
        };
        if n > SLOTS << ring_order { n } else { 0 }
    }
}

/// Parses `auto`, or a number of buffers that a list can have.
pub(super) fn buffer_count(text: &str) -> Result<BufferCount, String> {
    if text == "auto" {
        return Ok(BufferCount::Auto);
    }
    let n = text.parse().ok().filter(|n| (1..=LONG_LIST_MAX as u32).contains(n));
    n.map(BufferCount::Number).ok_or_else(|| format!("auto, or a number from 1 to {LONG_LIST_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_slots_or_none() {
        let of = |count: BufferCount, order| count.of(DataLen::new(2048).unwrap(), order, 2, Some(1024));
        assert_eq!([255, 256, 257].map(|n| of(BufferCount::Number(n), 0)), [0, 0, 257]);
        assert_eq!([1024, 1025].map(|n| of(BufferCount::Number(n), 2)), [0, 1025]);
        assert_eq!(of(BufferCount::Auto, 0), 0, "a quarter of 1024 pages are 256 buffers each way");
        assert_eq!(buffer_count("auto"), Ok(BufferCount::Auto));
        assert_eq!(buffer_count("32767"), Ok(BufferCount::Number(32767)));
        for bad in ["", "0", "-1", "32768", "Auto", "1k"] {
            assert!(buffer_count(bad).is_err(), "{bad}");
        }
    }
}
