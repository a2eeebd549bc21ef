//! The index page of a queue's area: written by the front, read once and validated by the back
//! (docs/protocol 4.5.1).
//!
//! ```text
//!   | ring_order | in: 2^(order-1) references, or zeros | out: as many |       a half of zeros is not wanted
//! ```
//! Each half is validated by itself. What a front may do: change the page while it is read. The
//! copy is validated.

use crate::memory;
use crate::shm::SharedBytes;
use crate::sort::sorted;
use crate::units::GrantRef;
use crate::wire::data_ring::{ORDER_MAX, ORDER_MIN, REFS, RING_ORDER, half_bytes};
use alloc::boxed::Box;
use core::fmt;

/// An error in an index page, or in one half of the area that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IndexFault {
    /// The order (log2 of the number of pages) is too large.
    Order {
        /// The order that was read.
        found: u32,
        /// The largest order that the back offered.
        most: u32,
    },
    /// A reference is 0, and others of the same half are not.
    NoReference {
        /// Index of the page in its half of the data ring.
        page: usize,
    },
    /// The same grant reference is in the page twice.
    Twice(GrantRef),
    /// There is no memory for the back's copy of the page.
    NoMemory,
}

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order { found, most } => {
                write!(f, "the order is {found}, and {ORDER_MIN} to {most} are allowed")
            }
            Self::NoReference { page } => {
                write!(f, "page {page} of this half has the reference 0, and others have not")
            }
            Self::Twice(gref) => write!(f, "reference {} is named twice", gref.0),
            Self::NoMemory => f.write_str("the backend has no memory for its copy of the page"),
        }
    }
}

impl core::error::Error for IndexFault {}

/// Writes the index page. `halves` are the references of `in` and `out`, empty for an unwanted
/// half. Returns false if they do not fit the order.
#[must_use]
pub fn write(page: &impl SharedBytes, order: u32, halves: [&[GrantRef]; 2]) -> bool {
    let each = 1usize << (order - 1);
    let refs = halves.iter().enumerate().all(|(half, refs)| {
        (0..each).all(|k| {
            let gref = refs.get(k).map_or(0, |gref| gref.0);
            page.store_u32(REFS + 4 * (half * each + k), gref)
        })
    });
    refs && page.store_u32(RING_ORDER, order)
}

/// A private copy of an index page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexPage {
    order: u32,
    refs: Box<[u32]>,
}

impl IndexPage {
    /// Reads the index page, each word once. Its order must be at most `most`, and its references
    /// must fit in a page.
    pub fn read(page: &impl SharedBytes, most: u32) -> Result<Self, IndexFault> {
        let most = most.min(ORDER_MAX);
        let order = page.load_u32(RING_ORDER).unwrap_or(0);
        if order < ORDER_MIN || order > most {
            return Err(IndexFault::Order { found: order, most });
        }
        let refs = memory::collected((0..1 << order).map(|k| page.load_u32(REFS + 4 * k).unwrap_or(0)));
        Ok(Self { order, refs: refs.map_err(|_| IndexFault::NoMemory)? })
    }

    /// Length of one half of the data ring, in bytes.
    pub fn half_bytes(&self) -> u32 {
        half_bytes(self.order).unwrap_or(0)
    }

    /// The references of `in` and of `out`; None for a half that is not wanted.
    pub fn validate(&self) -> [Result<Option<Box<[GrantRef]>>, IndexFault>; 2] {
        let Ok(order) = sorted(self.refs.iter().copied()) else {
            return [const { Err(IndexFault::NoMemory) }; 2];
        };
        // Equal references are beside each other.
        let is_twice = |gref: &u32| order.get(order.partition_point(|other| other < gref) + 1) == Some(gref);
        let (within, out) = self.refs.split_at(self.refs.len() / 2);
        [within, out].map(|half| {
            if half.iter().all(|gref| *gref == 0) {
                return Ok(None);
            }
            if let Some(page) = half.iter().position(|gref| *gref == 0) {
                return Err(IndexFault::NoReference { page });
            }
            match half.iter().find(|gref| is_twice(gref)) {
                Some(gref) => Err(IndexFault::Twice(GrantRef(*gref))),
                None => memory::collected(half.iter().copied().map(GrantRef))
                    .map(Some)
                    .map_err(|_| IndexFault::NoMemory),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::local::LocalXen;
    use crate::platform::{Access, GrantPool};
    use crate::units::DomId;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn validated(
        order: u32,
        refs: &[u32],
        most: u32,
    ) -> Result<[Result<Option<usize>, IndexFault>; 2], IndexFault> {
        let xen = LocalXen::new();
        let guest = xen.domain(5);
        let page = guest.alloc(DomId(1), Access::ReadOnly, &mut [GrantRef::NONE]).unwrap();
        assert!(page.store_u32(RING_ORDER, order));
        for (k, gref) in refs.iter().enumerate() {
            assert!(page.store_u32(REFS + 4 * k, *gref));
        }
        let index = IndexPage::read(&page, most)?;
        Ok(index.validate().map(|half| half.map(|refs| refs.map(|refs| refs.len()))))
    }

    #[test]
    fn what_is_written_is_read() {
        let xen = LocalXen::new();
        let guest = xen.domain(5);
        let page = guest.alloc(DomId(1), Access::ReadOnly, &mut [GrantRef::NONE]).unwrap();
        let refs: Vec<GrantRef> = (8..8 + 512).map(GrantRef).collect();
        for order in ORDER_MIN..=ORDER_MAX {
            let (within, rest) = refs.split_at(1 << (order - 1));
            let out = &rest[..1 << (order - 1)];
            assert!(write(&page, order, [within, out]));
            let index = IndexPage::read(&page, ORDER_MAX).unwrap();
            assert_eq!(index.half_bytes() as usize, within.len() * crate::PAGE_SIZE);
            assert_eq!(index.validate(), [Ok(Some(within.into())), Ok(Some(out.into()))]);
            assert!(write(&page, order, [&[], out]));
            assert_eq!(
                IndexPage::read(&page, ORDER_MAX).unwrap().validate(),
                [Ok(None), Ok(Some(out.into()))]
            );
        }
    }

    #[test]
    fn each_half_is_judged_by_itself() {
        use IndexFault::{NoReference, Order, Twice};
        let both = [Ok(Some(2)), Ok(Some(2))];
        assert_eq!(validated(2, &[8, 9, 10, 11], 9), Ok(both));
        assert_eq!(validated(2, &[8, 9, 10, 11], 1), Err(Order { found: 2, most: 1 }));
        for order in [0, 10, u32::MAX] {
            assert_eq!(validated(order, &[8, 9], u32::MAX), Err(Order { found: order, most: 9 }));
        }
        assert_eq!(validated(2, &[8, 0, 10, 11], 9), Ok([Err(NoReference { page: 1 }), Ok(Some(2))]));
        assert_eq!(validated(2, &[8, 9, 10, 10], 9), Ok([Ok(Some(2)), Err(Twice(GrantRef(10)))]));
        assert_eq!(validated(2, &[8, 9, 9, 11], 9), Ok([Err(Twice(GrantRef(9))); 2]));
        assert_eq!(validated(2, &[0, 0, 10, 11], 9), Ok([Ok(None), Ok(Some(2))]));
        assert_eq!(validated(1, &[0, 0, 10, 11], 9), Ok([Ok(None); 2]), "what is behind is not read");
    }

    /// The references that are named twice.
    fn named_twice(refs: &[u32]) -> BTreeSet<u32> {
        let mut seen = BTreeSet::new();
        refs.iter().copied().filter(|gref| *gref != 0 && !seen.insert(*gref)).collect()
    }

    /// The largest order that the property test plays: Miri would take minutes for 512 references.
    const ORDER_HERE: u32 = if cfg!(miri) { 4 } else { ORDER_MAX };

    proptest! {
        #[test]
        fn what_is_named_twice_is_found_in_any_order(
            order in ORDER_MIN..=ORDER_HERE,
            of in prop_oneof![Just(4u32), Just(300), Just(100_000)],
            refs in prop::collection::vec(any::<u32>(), 1 << ORDER_HERE),
        ) {
            let refs: Vec<u32> = refs.iter().take(1 << order).map(|gref| gref % of).collect();
            let twice = named_twice(&refs);
            let expected = [0, 1].map(|half| {
                let half = &refs[half * refs.len() / 2..][..refs.len() / 2];
                if half.iter().all(|gref| *gref == 0) {
                    return Ok(None);
                }
                if let Some(page) = half.iter().position(|gref| *gref == 0) {
                    return Err(IndexFault::NoReference { page });
                }
                let first = half.iter().find(|gref| twice.contains(gref));
                first.map_or(Ok(Some(half.len())), |gref| Err(IndexFault::Twice(GrantRef(*gref))))
            });
            prop_assert_eq!(validated(order, &refs, ORDER_MAX), Ok(expected));
        }
    }
}
