//! The sizes of a queue's memory: a list of plans, from the requested one to the smallest that
//! works. The first one for which there is memory is used.
//!
//! ```text
//!   more buffers or pages than slots --> requested length, an id for each TX slot --> half the TX ids --> rings of a page --> a shorter length --> ... --> no staging
//!   all of it with the requested data ring --> with a smaller one --> with none
//! ```
//! Memory that can be granted may be short: Linux's gntalloc has 1024 pages for a whole domain, and
//! two queues with a page per slot need more. The order prefers more queues to more ids, longer
//! buffers to shorter ones, and any staging to none.
//!
//! What a peer may do: offer lengths. However many it offers, few plans are made.

use super::requested::Requested;
use crate::error::PlatformError;
use crate::memory;
use alloc::vec::Vec;

/// The memory of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The paths that the queues ask for.
    pub asked: Requested,
    /// Number of ordinary pages for each direction, if it exceeds the number of slots; 0: there is
    /// one page for each slot.
    pub pages: u32,
    /// The divisor of the TX ring's size: memory is allocated for that part of its slots.
    pub tx_share: u32,
    /// log2 of the pages of the TX ring.
    pub tx_order: u32,
    /// log2 of the pages of the RX ring.
    pub rx_order: u32,
}

impl Plan {
    /// True if the plan has more memory than frames need.
    pub fn is_extra(&self) -> bool {
        self.pages > 0 || self.asked.is_extra()
    }
}

/// The plans, best first. `asked` has the requests for paths in the same order; `pages` is
/// explained at [`Plan::pages`]; `orders` are those of the TX ring and the RX ring.
pub fn plans(asked: &[Requested], pages: u32, orders: (u32, u32)) -> Result<Vec<Plan>, PlatformError> {
    let (tx_order, rx_order) = orders;
    let more = asked.first().filter(|asked| pages > 0 && !asked.is_extra());
    let more = more.map(|&asked| Plan { asked, pages, tx_share: 1, tx_order, rx_order });
    let (both, one) = ([orders, (0, 0)], [orders]);
    let orders = if orders == (0, 0) { &one[..] } else { &both };
    let mut plans = memory::room(1 + 2 * asked.len() * orders.len())?;
    plans.extend(more);
    for &asked in asked {
        // More than frames need: with all of their requests, or not at all.
        let is_extra = asked.is_extra();
        for &(tx_order, rx_order) in orders.iter().take(if is_extra { 1 } else { orders.len() }) {
            let plan = |tx_share| Plan { asked, pages: 0, tx_share, tx_order, rx_order };
            if is_extra {
                plans.extend([plan(1)]);
            } else {
                plans.extend([1, 2].map(plan));
            }
        }
    }
    Ok(plans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::features::BackFeatures;
    use crate::net::path::DataLen;
    use crate::net::path::staging::keys::Offer;
    use crate::net::path::staging::wanted::Buffers;

    fn len(n: u32) -> Option<DataLen> {
        DataLen::new(n)
    }

    #[test]
    fn more_pages_than_slots_are_given_up_first() {
        let [none, staged] =
            [None, len(64)].map(|len| Requested { staging: Buffers::of(len, len), ..Requested::default() });
        let of = |asked, pages| -> Vec<_> {
            plans(&[asked], pages, (2, 2))
                .expect("memory")
                .iter()
                .map(|p| (p.pages, p.tx_order, p.tx_share))
                .collect()
        };
        let few = [(0, 2, 1), (0, 2, 2), (0, 0, 1), (0, 0, 2)];
        assert_eq!((of(none, 0), of(none, 448)), (few.into(), [&[(448, 2, 1)], &few[..]].concat()));
        let longer = Buffers { buffers: 1000, max_pages: 896, ..staged.staging };
        assert_eq!(
            of(Requested { staging: longer, ..staged }, 448),
            [(0, 2, 1)],
            "one kind of more is enough"
        );
    }

    #[test]
    fn plans_get_smaller_and_end_without_staging() {
        let sizes: Vec<DataLen> = [64, 65535, 256, 2048, 256].into_iter().filter_map(DataLen::new).collect();
        let back = BackFeatures {
            staging: Offer { sizes, revision: 3, max_pages: 0, rx_heads: false },
            ..BackFeatures::default()
        };
        let plans = |tx, rx, orders, data_ring| {
            let asked = Requested { staging: Buffers::of(tx, rx), data_ring, ..Requested::default() };
            plans(&asked.smaller(&back).expect("memory"), 0, orders).expect("memory")
        };
        let of = |tx, rx| -> Vec<_> {
            plans(tx, rx, (0, 0), None)
                .iter()
                .filter(|p| p.tx_share == 1)
                .map(|p| (p.asked.staging.tx, p.asked.staging.rx))
                .collect()
        };
        let down = [65535, 2048, 256, 64].map(|n| (len(n), len(n)));
        assert_eq!(of(len(65535), len(65535)), [&down[..], &[(None, None)]].concat());
        assert_eq!(of(len(256), None), [(len(256), None), (len(64), None), (None, None)]);
        assert_eq!(of(len(2048), len(64))[1], (len(256), len(64)));
        assert_eq!(of(None, None), [(None, None)]);
        let shares: Vec<u32> = plans(None, None, (0, 0), None).iter().map(|p| p.tx_share).collect();
        assert_eq!(shares, [1, 2]);
        let rings = plans(len(64), None, (4, 2), None);
        let rings: Vec<_> =
            rings.iter().map(|p| (p.asked.staging.tx, p.tx_order, p.rx_order, p.tx_share)).collect();
        let of = |len| [(len, 4, 2, 1), (len, 4, 2, 2), (len, 0, 0, 1), (len, 0, 0, 2)];
        assert_eq!(rings, [of(len(64)), of(None)].concat());
        for (wanted, orders) in [(9, &[Some(9), Some(7), Some(5), None][..]), (3, &[Some(3), Some(1), None])]
        {
            let mut rings: Vec<_> =
                plans(None, None, (0, 0), Some(wanted)).iter().map(|p| p.asked.data_ring).collect();
            rings.dedup();
            assert_eq!(rings, orders);
        }
        // A smaller data ring is tried with all sizes of staging again.
        let both = plans(len(64), None, (0, 0), Some(1));
        let both: Vec<_> = both.iter().map(|p| (p.asked.data_ring, p.asked.staging.tx, p.tx_share)).collect();
        let of = |ring, len| [(ring, len, 1), (ring, len, 2)];
        let (some, none) = (Some(1), None);
        assert_eq!(both, [of(some, len(64)), of(some, None), of(none, len(64)), of(none, None)].concat());
    }
}
