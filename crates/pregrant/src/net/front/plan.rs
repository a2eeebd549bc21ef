//! What a queue is made of, from all that was wished for to the least that works.
//!
//! ```text
//!   wished length, an id for each TX slot --> half the TX ids --> rings of a page --> a shorter length --> ... --> no staging
//!   all of it with the wished data ring --> with a smaller one --> with none
//! ```
//! Memory to grant may be short: Linux's gntalloc has 1024 pages for a whole domain, and two queues
//! with a page for each slot are more. More queues come before more ids, longer buffers before
//! shorter ones, and any staging before none.
//!
//! What a peer may do: offer lengths; at most a few plans are made of them.

use crate::net::path::staging::list::DataLen;
use crate::wire::data_ring::ORDER_MIN;
use alloc::vec::Vec;

/// The memory of one queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// TX staging; None: ordinary grants.
    pub tx_len: Option<DataLen>,
    /// RX staging.
    pub rx_len: Option<DataLen>,
    /// Pages of the data ring, as the exponent of 2; None: there is none.
    pub data_ring: Option<u32>,
    /// Of a TX ring's slots one in so many has memory.
    pub tx_share: u32,
    /// Pages of the TX ring, as the exponent of 2.
    pub tx_order: u32,
    /// Of the RX ring.
    pub rx_order: u32,
}

/// Lengths that are tried below the wished one.
const SHORTER_MAX: usize = 4;

/// Of a data ring that there is no memory for, a quarter is tried, and a quarter of that.
const SMALLER_RINGS: [u32; 3] = [0, 2, 4];

/// The plans, the best first. `offered`: the lengths that the back knows; `orders`: those of the TX
/// ring and the RX ring; `data_ring`: that of the data ring.
pub fn plans(
    (tx_len, rx_len): (Option<DataLen>, Option<DataLen>),
    offered: &[DataLen],
    orders: (u32, u32),
    data_ring: Option<u32>,
) -> Vec<Plan> {
    let longest = tx_len.max(rx_len);
    let mut lens: Vec<Option<DataLen>> = offered
        .iter()
        .filter(|len| Some(**len) < longest && !len.copy_only())
        .map(|len| Some(*len))
        .collect();
    lens.sort_unstable();
    lens.dedup();
    lens.reverse();
    lens.truncate(SHORTER_MAX);
    lens.insert(0, longest);
    if longest.is_some() {
        lens.push(None);
    }
    let orders = if orders == (0, 0) { Vec::from([orders]) } else { Vec::from([orders, (0, 0)]) };
    let smaller = |order: u32| SMALLER_RINGS.into_iter().filter_map(move |less| order.checked_sub(less));
    let rings = data_ring.into_iter().flat_map(smaller).filter(|order| *order >= ORDER_MIN).map(Some);
    let rings: Vec<_> = rings.chain([None]).collect();
    let mut plans = Vec::new();
    for (data_ring, len) in rings.iter().flat_map(|ring| lens.iter().map(move |len| (*ring, *len))) {
        for &(tx_order, rx_order) in &orders {
            plans.extend([1, 2].map(|tx_share| Plan {
                tx_len: tx_len.min(len),
                rx_len: rx_len.min(len),
                data_ring,
                tx_share,
                tx_order,
                rx_order,
            }));
        }
    }
    plans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(n: u32) -> Option<DataLen> {
        DataLen::new(n)
    }

    #[test]
    fn plans_get_smaller_and_end_without_staging() {
        let offered: Vec<DataLen> =
            [64, 65535, 256, 2048, 256].into_iter().filter_map(DataLen::new).collect();
        let of = |tx, rx| -> Vec<_> {
            plans((tx, rx), &offered, (0, 0), None)
                .iter()
                .filter(|p| p.tx_share == 1)
                .map(|p| (p.tx_len, p.rx_len))
                .collect()
        };
        let down = [65535, 2048, 256, 64].map(|n| (len(n), len(n)));
        assert_eq!(of(len(65535), len(65535)), [&down[..], &[(None, None)]].concat());
        assert_eq!(of(len(256), None), [(len(256), None), (len(64), None), (None, None)]);
        assert_eq!(of(len(2048), len(64))[1], (len(256), len(64)));
        assert_eq!(of(None, None), [(None, None)]);
        let shares: Vec<u32> =
            plans((None, None), &offered, (0, 0), None).iter().map(|p| p.tx_share).collect();
        assert_eq!(shares, [1, 2]);
        let rings = plans((len(64), None), &offered, (4, 2), None);
        let rings: Vec<_> = rings.iter().map(|p| (p.tx_len, p.tx_order, p.rx_order, p.tx_share)).collect();
        let of = |len| [(len, 4, 2, 1), (len, 4, 2, 2), (len, 0, 0, 1), (len, 0, 0, 2)];
        assert_eq!(rings, [of(len(64)), of(None)].concat());
        for (requested, orders) in
            [(9, &[Some(9), Some(7), Some(5), None][..]), (3, &[Some(3), Some(1), None])]
        {
            let mut rings: Vec<_> =
                plans((None, None), &offered, (0, 0), Some(requested)).iter().map(|p| p.data_ring).collect();
            rings.dedup();
            assert_eq!(rings, orders);
        }
    }
}
