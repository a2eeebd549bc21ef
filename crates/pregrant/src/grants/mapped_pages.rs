//! A bounded store of mapped pages, by grant reference.
//!
//! ```text
//!   index: hash of gref --> place     places: [gref 9, map, used 17, held 0] [gref 12, map, used 18, held 1] ...
//! ```
//! Invariants: no page is added beyond the limit; a page that is held is never unmapped, not even
//! if the limit is lowered; a reference has at most one page. All memory is allocated when the
//! store is created.
//!
//! What a peer may do: name any number of references. Each that cannot be mapped costs it a failed
//! call, at most [`MAPS_AT_ONCE`] per batch; it can only fill its own store; references whose
//! hashes collide find no place, and are served without the store. A peer that ends a grant and
//! reuses its number for another page breaks its own promise: the store keeps using the page that
//! it mapped, which the peer cannot have back before the vif is closed.

use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::memory;
use crate::units::GrantRef;
use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::mem;

/// Largest number of pages that one batch maps: with Linux's gntdev each is two system calls, for
/// which others wait.
pub const MAPS_AT_ONCE: usize = 16;

/// Number of places that are searched for one reference. All pages of a ring find one
/// (`all_pages_of_a_ring_find_a_place`), and a peer whose references collide causes no longer
/// search.
const PROBES: usize = 16;

/// Largest number of pages that are removed in one search for those that were used least.
pub const PURGED_AT_ONCE: usize = 32;

/// The value of an index entry that refers to no page.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Page<M> {
    gref: GrantRef,
    map: M,
    /// The number of the batch in which the page was last used, as the store counts batches.
    used: u32,
    held: u32,
}

/// The fill level of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MappedStats {
    /// Pages that are mapped now.
    pub pages: usize,
    /// The most pages that were mapped at one time.
    pub most: usize,
    /// The limit of pages.
    pub limit: usize,
    /// Number of times there was no room for a page.
    pub overflows: u64,
}

/// Mapped pages of one peer, all with the same access.
#[derive(Debug)]
pub struct MappedPages<M> {
    pages: Bounded<Page<M>>,
    most: usize,
    limit: usize,
    index: Box<[u32]>,
    wanted: Bounded<GrantRef>,
    batch: u32,
    overflows: u64,
}

impl<M> MappedPages<M> {
    /// An empty store for at most `limit` pages, which [`set_limit`](Self::set_limit) can only
    /// lower.
    pub fn new(limit: usize) -> Result<Self, PlatformError> {
        Ok(Self {
            pages: Bounded::new(limit)?,
            most: 0,
            limit,
            index: memory::list(NONE, (4 * limit).next_power_of_two())?,
            wanted: Bounded::new(MAPS_AT_ONCE)?,
            batch: 0,
            overflows: 0,
        })
    }

    /// Number of pages mapped.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether no page is mapped.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The limit of pages.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Sets the limit, at most the initial one. The least recently used pages beyond it are moved
    /// to `out`, to be unmapped together; those that are held stay until they are
    /// [purged](Self::purge_excess) later.
    pub fn set_limit(&mut self, limit: usize, out: &mut Vec<M>) {
        self.set_limit_only(limit);
        self.purge_excess(out);
    }

    /// Sets the limit, at most the initial one, and moves no page: those beyond it stay until they
    /// are [purged](Self::purge_some).
    pub fn set_limit_only(&mut self, limit: usize) {
        self.limit = limit.min(self.pages.capacity());
    }

    /// Moves pages beyond the limit, which were held when it was lowered, to `out`, except those
    /// that are still held.
    pub fn purge_excess(&mut self, out: &mut Vec<M>) {
        self.purge(self.excess(), out);
    }

    /// Number of pages beyond the limit.
    pub fn excess(&self) -> usize {
        self.pages.len().saturating_sub(self.limit)
    }

    /// Number of times there was no room for a page.
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    /// The number of pages, the limit, and how often there was no room.
    pub fn figures(&self) -> MappedStats {
        let Self { pages, most, limit, overflows, .. } = self;
        MappedStats { pages: pages.len(), most: *most, limit: *limit, overflows: *overflows }
    }

    /// Starts a batch: pages used from here on count as used later than those used before.
    #[inline(always)]
    pub fn begin_batch(&mut self) {
        self.batch = self.batch.wrapping_add(1);
    }

    /// The places of the index where `gref` may be, the most likely first.
    #[inline(always)]
    fn places(&self, gref: GrantRef) -> impl Iterator<Item = usize> + use<M> {
        let mask = self.index.len() - 1;
        // Fibonacci hashing spreads consecutive references.
        let start = (u64::from(gref.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..PROBES).map(move |probe| (start + probe) & mask)
    }

    #[inline(always)]
    fn place_of(&self, gref: GrantRef) -> Option<usize> {
        for at in self.places(gref) {
            let place = self.index.get(at).copied().unwrap_or(NONE) as usize;
            // The index of no page is past the end, too.
            if self.pages.get(place)?.gref == gref {
                return Some(place);
            }
        }
        None
    }

    /// The page of `gref`, if it is mapped. It counts as used.
    #[inline(always)]
    pub fn find(&mut self, gref: GrantRef) -> Option<&M> {
        let place = self.find_place(gref)?;
        self.at(place)
    }

    /// Like [`find`](Self::find), as a place for [`at`](Self::at).
    #[inline(always)]
    pub fn find_place(&mut self, gref: GrantRef) -> Option<u32> {
        let at = self.place_of(gref)?;
        self.pages.get_mut(at)?.used = self.batch;
        Some(at as u32)
    }

    /// Whether the page of `gref` is mapped.
    #[inline(always)]
    pub fn has(&self, gref: GrantRef) -> bool {
        self.place_of(gref).is_some()
    }

    /// The place of the page of `gref`, for [`at`](Self::at), valid until a page is added or
    /// removed. The page does not count as used.
    #[inline(always)]
    pub fn locate(&self, gref: GrantRef) -> Option<u32> {
        self.place_of(gref).map(|at| at as u32)
    }

    /// The page at a place.
    #[inline(always)]
    pub fn at(&self, place: u32) -> Option<&M> {
        self.pages.get(place as usize).map(|page| &page.map)
    }

    /// The place of the index at which [`insert`](Self::insert) would put `gref`.
    fn place_for(&self, gref: GrantRef) -> Option<usize> {
        self.free_place(gref).filter(|_| self.pages.len() < self.limit && !self.has(gref))
    }

    /// A free place of the index where `gref` may be.
    fn free_place(&self, gref: GrantRef) -> Option<usize> {
        self.places(gref).find(|&at| self.index.get(at) == Some(&NONE))
    }

    /// The place of the index that has the page at `place`, whose reference is `gref`.
    fn entry_of(&mut self, gref: GrantRef, place: u32) -> Option<&mut u32> {
        let at = self.places(gref).find(|&at| self.index.get(at) == Some(&place))?;
        self.index.get_mut(at)
    }

    /// The page of `gref`, to be changed. It does not count as used.
    pub fn page_mut(&mut self, gref: GrantRef) -> Option<&mut M> {
        let at = self.place_of(gref)?;
        self.pages.get_mut(at).map(|page| &mut page.map)
    }

    /// Whether [`insert`](Self::insert) would accept the page of `gref`. Ask this before mapping
    /// it.
    pub fn has_place(&self, gref: GrantRef) -> bool {
        self.place_for(gref).is_some()
    }

    /// Adds a page that the caller mapped. Returns it if there is no place for it, or its reference
    /// has a page already.
    pub fn insert(&mut self, gref: GrantRef, map: M) -> Result<(), M> {
        match self.place_for(gref) {
            Some(at) => self.push(at, gref, map),
            None => Err(map),
        }
    }

    /// Adds a page at a free place of the index. Returns it if there is no room.
    fn push(&mut self, at: usize, gref: GrantRef, map: M) -> Result<(), M> {
        let place = self.pages.len() as u32;
        let page = Page { gref, map, used: self.batch, held: 0 };
        self.pages.push(page).map_err(|page| page.map)?;
        if let Some(entry) = self.index.get_mut(at) {
            *entry = place;
        }
        self.most = self.most.max(self.pages.len());
        Ok(())
    }

    /// Removes the page of `gref`, unless it is held.
    pub fn remove(&mut self, gref: GrantRef) -> Option<M> {
        let at = self.place_of(gref).filter(|&at| self.pages.get(at).is_some_and(|page| page.held == 0))?;
        self.take(at as u32)
    }

    /// Notes that `gref` should be mapped at the next [`map_wanted`](Self::map_wanted).
    pub fn want(&mut self, gref: GrantRef) {
        if self.pages.len() + self.wanted.len() >= self.limit {
            self.overflows += 1;
        } else if !self.wanted.contains(&gref) {
            let _ = self.wanted.push(gref); // if there is no room, it is named again
        }
    }

    /// Maps the noted references with `map`; those that it cannot map are forgotten.
    pub fn map_wanted(&mut self, mut map: impl FnMut(GrantRef) -> Option<M>) {
        for k in 0..self.wanted.len() {
            let Some(&gref) = self.wanted.get(k) else { break };
            match self.free_place(gref) {
                Some(at) if !self.has(gref) => {
                    if let Some(map) = map(gref) {
                        let has_room = self.push(at, gref, map).is_ok();
                        debug_assert!(has_room, "no more are wanted than there is room for");
                    }
                }
                Some(_) => {}
                None => self.overflows += 1,
            }
        }
        self.wanted.clear();
    }

    /// Prevents the page of `gref` from being [purged](Self::purge), until it is
    /// [released](Self::release) as often. False: there is no such page.
    #[must_use]
    pub fn hold(&mut self, gref: GrantRef) -> bool {
        let place = self.place_of(gref);
        let page = place.and_then(|at| self.pages.get_mut(at));
        page.map(|page| page.held += 1).is_some()
    }

    /// Whether the page of `gref` is held.
    pub fn is_held(&self, gref: GrantRef) -> bool {
        let page = self.place_of(gref).and_then(|at| self.pages.get(at));
        page.is_some_and(|page| page.held > 0)
    }

    /// Undoes one [`hold`](Self::hold).
    pub fn release(&mut self, gref: GrantRef) {
        if let Some(page) = self.place_of(gref).and_then(|at| self.pages.get_mut(at)) {
            page.held = page.held.saturating_sub(1);
        }
    }

    /// Moves at most `n` pages to `out`, to be unmapped together: the least recently used first,
    /// and none that is held.
    pub fn purge(&mut self, n: usize, out: &mut Vec<M>) {
        if n == 0 {
            return;
        }
        // The peer chose the order of both, in which a sort may recurse (`crate::sort`).
        let mut oldest: BinaryHeap<(u32, u32)> = (0..)
            .zip(self.pages.iter())
            .filter(|(_, page)| page.held == 0)
            .map(|(at, page)| (self.batch.wrapping_sub(page.used), at))
            .collect();
        let mut places: BinaryHeap<u32> = (0..n).map_while(|_| oldest.pop()).map(|(_, at)| at).collect();
        // From the end, so that the places of those still to be moved stay valid.
        while let Some(at) = places.pop() {
            out.extend(self.take(at));
        }
    }

    /// Like [`purge`](Self::purge), for at most [`PURGED_AT_ONCE`] pages and as many as `out` has
    /// room for: it allocates nothing. Returns how many it moved.
    pub fn purge_some(&mut self, n: usize, out: &mut Bounded<M>) -> usize {
        let n = n.min(out.room()).min(PURGED_AT_ONCE);
        if n == 0 {
            return 0;
        }
        // Ages and places, the oldest first.
        let mut oldest = [None::<(u32, u32)>; PURGED_AT_ONCE];
        let oldest = oldest.get_mut(..n).unwrap_or_default();
        for (at, page) in (0..).zip(self.pages.iter()).filter(|(_, page)| page.held == 0) {
            let mut next = Some((self.batch.wrapping_sub(page.used), at));
            for place in oldest.iter_mut() {
                if next > *place {
                    mem::swap(place, &mut next);
                }
                if next.is_none() {
                    break;
                }
            }
        }
        let before = out.len();
        // From the end, so that the places of those still to be moved stay valid.
        while let Some(place) = oldest.iter_mut().max_by_key(|place| place.map(|(_, at)| at))
            && let Some((_, at)) = place.take()
        {
            if let Some(map) = self.take(at) {
                out.put(map);
            }
        }
        out.len() - before
    }

    fn take(&mut self, at: u32) -> Option<M> {
        self.forget(at);
        let last = (self.pages.len() as u32).wrapping_sub(1);
        if last != at
            && let Some(gref) = self.pages.get(last as usize).map(|page| page.gref)
            && let Some(entry) = self.entry_of(gref, last)
        {
            *entry = at;
        }
        self.pages.take(at as usize).map(|page| page.map)
    }

    /// Removes a page from the index. Entries after it move up, so that searches stay short.
    fn forget(&mut self, at: u32) {
        let mask = self.index.len() - 1;
        let gref = self.pages.get(at as usize).map(|page| page.gref);
        let place = |gref| self.places(gref).find(|&i| self.index.get(i) == Some(&at));
        let Some(mut hole) = gref.and_then(place) else { return };
        let mut next = (hole + 1) & mask;
        while let Some(&entry) = self.index.get(next)
            && entry != NONE
            && next != hole
        {
            let page = self.pages.get(entry as usize);
            let start = page.and_then(|page| self.places(page.gref).next()).unwrap_or(next);
            // An entry may move to the hole if its search passes there before its current place.
            if (next.wrapping_sub(start) & mask) >= (next.wrapping_sub(hole) & mask) {
                if let Some(place) = self.index.get_mut(hole) {
                    *place = entry;
                }
                hole = next;
            }
            next = (next + 1) & mask;
        }
        if let Some(place) = self.index.get_mut(hole) {
            *place = NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    fn with(refs: &[u32], limit: usize) -> MappedPages<u32> {
        let mut store = MappedPages::new(limit).expect("memory");
        for &r in refs {
            store.begin_batch();
            store.want(GrantRef(r));
            store.map_wanted(|gref| Some(gref.0 * 10));
        }
        store
    }

    #[test]
    fn what_is_wanted_is_there_the_next_time_and_once() {
        let mut store = MappedPages::new(4).expect("memory");
        assert_eq!(store.find(GrantRef(9)), None);
        store.want(GrantRef(9));
        store.want(GrantRef(9));
        let mut asked = Vec::new();
        store.map_wanted(|gref| {
            asked.push(gref.0);
            Some(90)
        });
        assert_eq!((asked, store.len()), (Vec::from([9]), 1));
        assert_eq!(store.find(GrantRef(9)), Some(&90));
        store.want(GrantRef(9));
        store.map_wanted(|_| panic!("it is there"));
    }

    #[test]
    fn what_cannot_be_mapped_is_asked_for_again_and_takes_no_place() {
        let mut store = MappedPages::<u32>::new(2).expect("memory");
        for _ in 0..3 {
            store.want(GrantRef(9));
            store.map_wanted(|_| None);
        }
        assert_eq!((store.len(), store.has(GrantRef(9)), store.overflows()), (0, false, 0));
    }

    #[test]
    fn a_full_store_counts_what_found_no_place() {
        let mut store = with(&[8, 9, 10], 2);
        assert_eq!((store.len(), store.overflows(), store.has(GrantRef(10))), (2, 1, false));
        assert_eq!(store.figures(), MappedStats { pages: 2, most: 2, limit: 2, overflows: 1 });
        assert_eq!(store.find(GrantRef(8)), Some(&80));
        store.set_limit(1, &mut Vec::new());
        assert_eq!(store.figures(), MappedStats { pages: 1, most: 2, limit: 1, overflows: 1 });
        let none = MappedPages::<u32>::new(0).expect("memory");
        assert!(!none.has(GrantRef(8)));
    }

    /// Consecutive references, as a kernel allocates them, and random ones all find a place.
    #[test]
    fn all_pages_of_a_ring_find_a_place() {
        let mut x = 88_172_645_463_325_252u64;
        let mut any = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            8 + (x % 32_000) as u32
        };
        let strides = [1, 2, 3, 4, 8, 16, 32, 64, 128];
        let mut rings: Vec<Vec<u32>> = strides.map(|n| (0..256).map(|k| 8 + k * n).collect()).into();
        for _ in 0..1000 {
            let mut ring = Vec::new();
            while ring.len() < 256 {
                let r = any();
                if !ring.contains(&r) {
                    ring.push(r);
                }
            }
            rings.push(ring);
        }
        let short: usize = rings.iter().map(|ring| 256 - with(ring, 256).len()).sum();
        assert_eq!(short, 0, "pages of {} rings without a place", rings.len());
    }

    #[test]
    fn a_lower_limit_unmaps_what_was_used_least() {
        let mut store = with(&[8, 9, 10], 3);
        let mut out = Vec::new();
        store.set_limit(1, &mut out);
        out.sort_unstable();
        assert_eq!((out, store.find(GrantRef(10))), (Vec::from([80, 90]), Some(&100)));
        store.want(GrantRef(11));
        store.map_wanted(|_| panic!("no more than one"));
        store.set_limit(9, &mut Vec::new());
        assert_eq!(store.limit(), 3, "no more than at the beginning");
    }

    #[test]
    fn a_batch_maps_so_many_and_no_more() {
        let mut store = MappedPages::<u32>::new(256).expect("memory");
        (8..200).for_each(|r| store.want(GrantRef(r)));
        let mut asked = 0;
        store.map_wanted(|gref| {
            asked += 1;
            Some(gref.0)
        });
        assert_eq!((asked, store.len()), (MAPS_AT_ONCE, MAPS_AT_ONCE));
    }

    #[test]
    fn the_least_recently_used_go_first_and_never_what_is_held() {
        let mut store = with(&[8, 9, 10, 11], 4);
        assert!(store.hold(GrantRef(9)) && !store.hold(GrantRef(12)));
        store.begin_batch();
        store.find(GrantRef(8));
        let mut out = Vec::new();
        store.purge(2, &mut out);
        out.sort_unstable();
        assert_eq!((out, store.len()), (Vec::from([100, 110]), 2));
        assert_eq!(
            (store.find(GrantRef(8)).copied(), store.find(GrantRef(9)).copied()),
            (Some(80), Some(90))
        );
        store.release(GrantRef(9));
        store.purge(9, &mut Vec::new());
        assert!(store.is_empty() && !store.has(GrantRef(8)));
    }

    /// The pages that `purge` moves, in its order, by two sorts.
    fn purged(store: &MappedPages<u32>, n: usize) -> Vec<u32> {
        let pages = (0usize..).zip(&store.pages).filter(|(_, page)| page.held == 0);
        let mut idle: Vec<_> = pages.map(|(at, page)| (store.batch.wrapping_sub(page.used), at)).collect();
        idle.sort_by(|a, b| b.cmp(a));
        idle.truncate(n);
        idle.sort_by_key(|&(_, at)| core::cmp::Reverse(at));
        idle.into_iter().map(|(_, at)| store.pages[at].map).collect()
    }

    proptest! {
        #[test]
        fn as_two_sorts_do(
            batch in any::<u32>(),
            ages in prop::collection::vec((0u32..9, prop::bool::weighted(0.2)), 0..300),
            n in 0usize..320,
        ) {
            let mut store = MappedPages::new(300).expect("memory");
            for (r, &(age, is_held)) in (8..).zip(&ages) {
                store.batch = batch.wrapping_sub(age);
                // Those whose hashes collide have no place.
                if store.insert(GrantRef(r), r).is_ok() && is_held {
                    prop_assert!(store.hold(GrantRef(r)));
                }
            }
            store.batch = batch;
            // Some at a time, and as many as there is room for.
            let mut some = Bounded::new(2 * PURGED_AT_ONCE.min(1 + n / 2)).expect("memory");
            let expected = purged(&store, n.min(some.capacity()).min(PURGED_AT_ONCE));
            prop_assert_eq!(store.purge_some(n, &mut some), expected.len());
            prop_assert!(some.iter().all(|r| !store.has(GrantRef(*r))));
            prop_assert_eq!(some.into_vec(), expected);
            let (expected, before) = (purged(&store, n), store.len());
            let mut out = Vec::new();
            store.purge(n, &mut out);
            prop_assert_eq!(store.len() + out.len(), before);
            prop_assert!(out.iter().all(|r| !store.has(GrantRef(*r))));
            prop_assert_eq!(out, expected);
        }

        /// Compares with an unbounded map: what is found was mapped, and there are never too many
        /// pages.
        #[test]
        fn as_a_map_does(
            limit in 1usize..40,
            acts in prop::collection::vec((0u8..6, 8u32..80, any::<bool>()), 0..300),
        ) {
            let mut store = MappedPages::<u32>::new(limit).expect("memory");
            let (mut model, mut held) = (BTreeMap::new(), BTreeMap::<u32, u32>::new());
            for (act, r, good) in acts {
                let gref = GrantRef(r);
                match act {
                    0 => {
                        store.begin_batch();
                        store.want(gref);
                        store.map_wanted(|gref| good.then_some(gref.0));
                        if store.has(gref) {
                            model.insert(r, r);
                        }
                    }
                    1 => if store.hold(gref) {
                        *held.entry(r).or_default() += 1;
                    },
                    2 => if held.get(&r).is_some_and(|n| *n > 0) {
                        store.release(gref);
                        *held.entry(r).or_default() -= 1;
                    },
                    3 => {
                        let had = model.contains_key(&r);
                        let has_place = store.has_place(gref);
                        let put = store.insert(gref, r);
                        prop_assert_eq!(put.is_ok(), has_place);
                        prop_assert!(put.is_err() || !had, "twice");
                        if put.is_ok() {
                            model.insert(r, r);
                        }
                    }
                    4 => {
                        let free = held.get(&r).is_none_or(|n| *n == 0);
                        let gone = store.remove(gref);
                        prop_assert_eq!(gone, if free { model.remove(&r) } else { None });
                    }
                    _ => {
                        let mut out = Vec::new();
                        store.purge(3, &mut out);
                        for gone in out {
                            prop_assert!(held.get(&gone).is_none_or(|n| *n == 0), "held");
                            prop_assert!(model.remove(&gone).is_some());
                        }
                    }
                }
                prop_assert!(store.len() <= limit);
                prop_assert_eq!(store.len(), model.len());
                for r in 8..80 {
                    let there = store.locate(GrantRef(r)).and_then(|place| store.at(place).copied());
                    prop_assert_eq!(there, model.get(&r).copied());
                    prop_assert_eq!(store.find(GrantRef(r)).copied(), model.get(&r).copied());
                }
            }
        }
    }
}
