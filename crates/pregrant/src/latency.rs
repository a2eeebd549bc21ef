//! A histogram of latencies whose update costs a few additions. One thread writes it and any may
//! read it.
//!
//! ```text
//!   buckets:   up to 8.2 us | 33 us | 131 us | 524 us | 2.1 ms | 8.4 ms | 34 ms | 134 ms | 537 ms | 2.1 s | 8.6 s | longer
//! ```
//! Each bound is four times the one before, so the bit length of a time gives its bucket without
//! comparisons. When one thread reads two counters while another adds to them, either may be ahead
//! by a batch.

use core::sync::atomic::{AtomicU64, Ordering};

/// log2 of the first bucket's bound in nanoseconds.
const FIRST_BITS: u32 = 13;
/// log2 of the ratio of two bounds.
const STEP_BITS: u32 = 2;

/// Number of buckets with a bound.
pub const BOUNDED: usize = 11;

/// The longest time in nanoseconds that bucket `i` counts. None: it has no bound.
pub const fn bound_ns(i: usize) -> Option<u64> {
    if i < BOUNDED { Some((1 << (FIRST_BITS + STEP_BITS * i as u32)) - 1) } else { None }
}

/// The bucket for a time.
#[inline(always)]
const fn bucket_of(ns: u64) -> usize {
    let bits = u64::BITS - ns.leading_zeros();
    let bucket = bits.saturating_sub(FIRST_BITS).div_ceil(STEP_BITS) as usize;
    if bucket < BOUNDED { bucket } else { BOUNDED }
}

/// A histogram, which only its owner writes.
#[derive(Debug, Default)]
pub struct Latency {
    sum_ns: AtomicU64,
    buckets: [AtomicU64; BOUNDED + 1],
}

/// A snapshot of a histogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LatencyFigures {
    /// Sum of all times, in nanoseconds.
    pub sum_ns: u64,
    /// Number of requests by bucket; the last bucket has no [bound](bound_ns).
    pub buckets: [u64; BOUNDED + 1],
}

impl Latency {
    /// Counts a request that took `ns` nanoseconds. There is one writer, so this needs no locked
    /// operation.
    #[inline(always)]
    pub fn add(&self, ns: u64) {
        for (counter, n) in [(&self.sum_ns, ns), (&self.buckets[bucket_of(ns)], 1)] {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }

    /// Takes a snapshot.
    pub fn read(&self) -> LatencyFigures {
        LatencyFigures {
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
            buckets: self.buckets.each_ref().map(|n| n.load(Ordering::Relaxed)),
        }
    }
}

impl core::iter::Sum for LatencyFigures {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, more| {
            sum.sum_ns += more.sum_ns;
            sum.buckets.iter_mut().zip(more.buckets).for_each(|(sum, n)| *sum += n);
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_whose_bound_it_does_not_pass() {
        let bounds: [u64; BOUNDED] = core::array::from_fn(|i| bound_ns(i).unwrap());
        assert!(bounds.windows(2).all(|pair| pair[1] + 1 == 4 * (pair[0] + 1)), "{bounds:?}");
        let near = bounds.iter().flat_map(|bound| [bound - 1, *bound, bound + 1, 2 * bound]);
        for ns in near.chain([0, 1, u64::MAX]) {
            let expected = bounds.iter().position(|bound| ns <= *bound).unwrap_or(BOUNDED);
            assert_eq!(bucket_of(ns), expected, "{ns} ns");
        }
        assert_eq!(bound_ns(BOUNDED), None);
    }

    #[test]
    fn what_is_counted_is_read_and_added_up() {
        let (fast, slow) = (Latency::default(), Latency::default());
        [100, 8191, 8192].iter().for_each(|ns| fast.add(*ns));
        slow.add(u64::MAX / 2);
        assert_eq!((fast.read().sum_ns, &fast.read().buckets[..2]), (100 + 8191 + 8192, &[2, 1][..]));
        let both: LatencyFigures = [fast.read(), slow.read()].into_iter().sum();
        assert_eq!((both.buckets[BOUNDED], both.buckets.iter().sum::<u64>()), (1, 4));
    }
}
