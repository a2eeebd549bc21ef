//! Frames in the guest's own pages that are sent from there: by reference if the back has the page
//! mapped because it was asked to, else by a copy into the static pool (docs/protocol 2.11).
#![cfg(not(miri))]

use crate::gref_mapping::{ADD, DEL, INVALID, Pair, SIZE, SUCCESS, announcing, entries};
use crate::raw_ring::RawRing;

use pregrant::net::back::{BackVif, Polled, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{CacheMode, CacheStats, FrontConfig, FrontStep, FrontVif, HeadedFrame};
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::LocalDomain;
use pregrant::platform::{Access, GrantPool, PeerMem};
use pregrant::port::{Arena, FrameDesc, Offload};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif_ctrl::GrefEntry;
use pregrant::xenbus::BackDevice;
use pregrant::xenbus::back::PageShare;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort};

/// Number of table entries that the static pool uses.
const POOL: usize = 512;

/// A pair whose guest has some memory of its own.
struct Own {
    pair: Pair,
    number: usize,
}

/// Generates numbers below `n`, evenly distributed.
fn below(seed: &mut u64, n: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % n
}

impl Own {
    fn unasked(front: FrontConfig, back: VifConfig, pages: usize) -> Self {
        let front = FrontVif::new(HOST, front, true);
        let equip = |g: &LocalDomain, front: &mut FrontVif<LocalDomain>| {
            let memory = g.per_frame().expect("single grants").pages(pages).expect("pages");
            assert!(front.use_memory(memory, usize::MAX).is_ok());
        };
        Self { pair: Pair::around(front, back, usize::MAX, equip), number: 0 }
    }

    fn new(front: FrontConfig, back: VifConfig, pages: usize) -> Self {
        let mut own = Self::unasked(front, back, pages);
        own.turns();
        own
    }

    /// Both ends go on until there is nothing to ask.
    fn turns(&mut self) {
        while self.turn() {}
    }

    fn turn(&mut self) -> bool {
        let Pair { front, back, g, h, .. } = &mut self.pair;
        let asked = front.turn(g).expect("an honest back");
        let answered = back.poll_ctrl(h).expect("an honest front") == Polled::More;
        asked || answered
    }

    /// Writes the next frame to `at` of the memory.
    fn write(&mut self, at: usize, len: usize) -> (FrameDesc, Vec<u8>) {
        self.number += 1;
        let bytes: Vec<u8> = (0..len).map(|k| (k * 7 + k / 256 + self.number * 13) as u8).collect();
        let page = at / PAGE_SIZE;
        assert!(!self.pair.front.is_held(page), "page {page} is on its way");
        assert!(self.pair.front.memory().expect("memory").copy_in(at, &bytes));
        (FrameDesc { at: at as u32, len: len as u32, offload: Offload::default() }, bytes)
    }

    /// Sends a frame of `len` bytes from `at`, and waits for its answer.
    fn send(&mut self, q: usize, at: usize, len: usize) {
        let (desc, bytes) = self.write(at, len);
        assert_eq!(self.pair.front.send_own(&self.pair.g, q, &[desc]), Ok(1));
        assert_eq!(self.took(q), [bytes], "frame {}", self.number);
        self.pair.front.queue_mut(q).unwrap().reclaim(&self.pair.g, 1).expect("good answers");
        assert!(!self.pair.front.is_held(at / PAGE_SIZE));
    }

    fn took(&mut self, q: usize) -> Vec<Vec<u8>> {
        let mut port = TestPort::default();
        while self.pair.back.poll_tx(&self.pair.h, q, &mut port, &mut Arena::new()).expect("good frames")
            == Polled::More
        {}
        port.took.into_iter().map(|frame| frame.0).collect()
    }

    /// Sends a frame in each of these pages; returns how many went by reference.
    fn each(&mut self, pages: impl IntoIterator<Item = usize>) -> u64 {
        let before = self.stats().hits;
        for page in pages {
            self.send(0, page * PAGE_SIZE + page % 100, 300 + page);
        }
        self.stats().hits - before
    }

    fn stats(&self) -> CacheStats {
        self.pair.front.queue(0).unwrap().tx().cache().unwrap().stats()
    }

    fn close(mut self) {
        let Pair { front, fb, back, bb, h, g, xen, .. } = &mut self.pair;
        assert!(front.take_memory(g).is_none(), "it is connected");
        front.close(fb, None).expect("a map");
        back.close(h, bb, None).expect("a map");
        assert_eq!(xen.counts().mapped, 0);
        while !front.is_closed() {
            front.step(g, fb).expect("a map");
        }
        let memory = front.take_memory(g).expect("no grant stands");
        assert!(g.release(memory).is_ok());
        assert_eq!(xen.counts().grants, 0);
    }
}

#[test]
fn frames_go_from_where_they_are() {
    for queues in [1, 2] {
        let mut own = Own::new(FrontConfig { queues, ..announcing() }, entries(768), 200);
        for q in 0..queues as usize {
            let standing = own.pair.xen.counts().grants;
            for page in 0..200 {
                own.send(q, page * PAGE_SIZE, 100);
            }
            let stats = own.pair.front.queue(q).unwrap().tx().cache().unwrap().stats();
            assert_eq!((stats.hits, stats.misses, stats.copied_to_pool), (0, 200, 200));
            assert_eq!(own.pair.xen.counts().grants, standing, "nothing is granted for a frame");
            own.turns();
            assert_eq!(
                own.pair.front.queue(q).unwrap().tx().cache().unwrap().pages(),
                (200, 200),
                "no more than there are"
            );
            assert_eq!(own.pair.back.gref_pages(q)[0], POOL + 200);
            assert_eq!(own.pair.xen.counts().grants, standing + 200);
            let before = own.pair.xen.counts();
            for (offset, len) in [(0, 60), (17, 1500), (0, 4096), (4000, 96)] {
                for page in 0..200 {
                    own.send(q, page * PAGE_SIZE + offset, len);
                }
            }
            // Over two pages, and over several.
            own.send(q, 4000, 97);
            own.send(q, 3 * PAGE_SIZE + 5, 9000);
            let took = own.pair.xen.counts().since(&before);
            assert_eq!((took.copies, took.maps, took.unmaps), (0, 0, 0));
            let stats = own.pair.front.queue(q).unwrap().tx().cache().unwrap().stats();
            assert_eq!((stats.hits, stats.misses, stats.copied_to_pool), (802, 200, 200));
            assert_eq!((stats.adds, stats.dels, stats.evictions, stats.mode_changes), (200, 0, 0, 0));
            let (front, back) = (own.pair.front.queue(q).unwrap().stats().0, own.pair.back.stats(q).0);
            assert_eq!((front.frames, front.gref_mapping, back.gref_mapping), (1002, 802, 1002));
        }
        own.close();
    }
}

#[test]
fn what_is_no_frame_of_the_memory_is_dropped() {
    let mut own = Own::new(announcing(), entries(768), 2);
    let desc = |at, len, gso_type| {
        let offload = Offload { gso_type, gso_size: 100, csum_blank: gso_type != 0, ..Offload::default() };
        FrameDesc { at, len, offload }
    };
    for (desc, dropped) in [
        (desc(0, 0, 0), 0),
        (desc(8192, 1, 0), 1),
        (desc(u32::MAX, u32::MAX, 0), 1),
        (desc(8000, 193, 0), 1),
        (desc(0, 8192, 9), 1),
    ] {
        let before = own.pair.front.queue(0).unwrap().stats().0;
        assert_eq!(own.pair.front.send_own(&own.pair.g, 0, &[desc]), Ok(1));
        let after = own.pair.front.queue(0).unwrap().stats().0;
        assert_eq!((after.dropped - before.dropped, after.frames - before.frames), (dropped, 0), "{desc:?}");
    }
    // One that is to be cut has an extra info; the back has no page of it yet.
    assert_eq!(own.pair.front.send_own(&own.pair.g, 0, &[desc(0, 3000, 1)]), Ok(1));
    assert_eq!((own.stats().copied_to_pool, own.pair.front.in_flight(0)), (1, 2));
    own.close();
}

/// A frame in several pages, or one that the back must segment, has a slot for each page: by
/// reference if the back has the page, else by a copy of that page's bytes only.
#[test]
fn frames_over_pages_go_from_where_the_back_has_them() {
    let gso = Offload { gso_type: 1, gso_size: 1448, csum_blank: true, csum_ok: true };
    for had in [(0..40).collect::<Vec<_>>(), vec![0], vec![1], vec![0, 2, 16], vec![30]] {
        let mut own = Own::new(announcing(), entries(768), 40);
        own.each(had.iter().copied());
        own.turns();
        let copies = own.pair.xen.counts().copies;
        for (at, len) in [
            (0, 60),
            (4000, 97),
            (4095, 60),
            (0, 8192),
            (100, 9000),
            (4095, 65_535),
            (0, 65_535),
            (1, 65_535),
        ] {
            for offload in [Offload::default(), gso] {
                let (desc, bytes) = own.write(at, len);
                let pages = at / PAGE_SIZE..(at + len).div_ceil(PAGE_SIZE);
                let before = (own.stats(), own.pair.front.queue(0).unwrap().stats().0);
                let desc = FrameDesc { offload, ..desc };
                assert_eq!(own.pair.front.send_own(&own.pair.g, 0, &[desc]), Ok(1));
                let (by, all) = (own.stats(), pages.clone().all(|page| had.contains(&page)));
                let some = pages.clone().any(|page| had.contains(&page));
                let what = format!("{len} at {at}, {offload:?}, {had:?}");
                let counted = (by.hits - before.0.hits, by.copied_to_pool - before.0.copied_to_pool);
                assert_eq!(counted, (u64::from(some), u64::from(!some)), "{what}");
                let stats = own.pair.front.queue(0).unwrap().stats().0;
                assert_eq!(stats.gref_mapping - before.1.gref_mapping, u64::from(all), "{what}");
                let extra = u32::from(offload.gso_type != 0);
                let slots = if some { pages.len() } else { len.div_ceil(PAGE_SIZE) };
                assert_eq!(own.pair.front.in_flight(0), slots as u32 + extra, "{what}");
                for page in pages.clone() {
                    assert_eq!(own.pair.front.is_held(page), had.contains(&page), "{what}: {page}");
                }
                let mut port = TestPort::default();
                while own.pair.back.poll_tx(&own.pair.h, 0, &mut port, &mut Arena::new()) == Ok(Polled::More)
                {
                }
                assert!(port.took == [(bytes, offload)], "{what}");
                own.pair.front.queue_mut(0).unwrap().reclaim(&own.pair.g, 1).expect("good answers");
                assert!(!pages.into_iter().any(|page| own.pair.front.is_held(page)));
            }
        }
        assert_eq!(own.pair.xen.counts().copies, copies, "no grant copy");
        own.close();
    }
}

/// Headers from elsewhere and payload in the guest's pages are one frame: a slot for the head,
/// which is copied, and one for each page, as without a head. One that has no page, or a head
/// longer than a page, is copied as a whole.
#[test]
fn a_head_from_elsewhere_goes_before_the_guest_s_pages() {
    let gso = Offload { gso_type: 1, gso_size: 1448, csum_blank: true, csum_ok: true };
    for (had, sg) in
        [((0..40).collect::<Vec<_>>(), true), (vec![1], true), (vec![30], true), (vec![0, 1], false)]
    {
        let features = BackFeatures { sg, ..BackFeatures::default() };
        let mut own = Own::new(announcing(), VifConfig { features, ..entries(768) }, 40);
        own.each(had.iter().copied());
        own.turns();
        let copies = own.pair.xen.counts().copies;
        for (head, at, len) in [
            (14, 0, 46),
            (66, 2000, 1448),
            (66, 4000, 1448),
            (60, 0, 0),
            (66, 0, 60_000),
            (256, 4095, 65_279),
            (4096, 100, 9000),
            (4097, 100, 9000),
        ] {
            for offload in [Offload::default(), gso] {
                if !sg && (head + len > PAGE_SIZE || offload.gso_type != 0) {
                    continue; // no frame for such a back
                }
                let (payload, bytes) = own.write(at, len);
                let start: Vec<u8> = (0..head).map(|k| (k * 11 + own.number) as u8).collect();
                let before = (own.stats(), own.pair.front.queue(0).unwrap().stats().0);
                let frame = HeadedFrame { head: &start, payload: FrameDesc { offload, ..payload } };
                assert_eq!(own.pair.front.send_headed(&own.pair.g, 0, &[frame]), Ok(1));
                let pages = if len > 0 { at / PAGE_SIZE..(at + len).div_ceil(PAGE_SIZE) } else { 0..0 };
                let in_parts = sg && head <= PAGE_SIZE;
                let some = in_parts && pages.clone().any(|page| had.contains(&page));
                let all = some && pages.clone().all(|page| had.contains(&page));
                let what = format!("{len} at {at} behind {head}, {offload:?}, {had:?}");
                let by = own.stats();
                let counted = (by.hits - before.0.hits, by.copied_to_pool - before.0.copied_to_pool);
                assert_eq!(counted, (u64::from(some), u64::from(!some)), "{what}");
                let stats = own.pair.front.queue(0).unwrap().stats().0;
                assert_eq!(stats.gref_mapping - before.1.gref_mapping, u64::from(all), "{what}");
                assert_eq!(stats.bytes - before.1.bytes, (head + len) as u64, "{what}");
                let extra = u32::from(offload.gso_type != 0);
                let slots = if some { 1 + pages.len() } else { (head + len).div_ceil(PAGE_SIZE) };
                assert_eq!(own.pair.front.in_flight(0), slots as u32 + extra, "{what}");
                for page in pages.clone() {
                    assert_eq!(own.pair.front.is_held(page), some && had.contains(&page), "{what}: {page}");
                }
                let mut port = TestPort::default();
                while own.pair.back.poll_tx(&own.pair.h, 0, &mut port, &mut Arena::new()) == Ok(Polled::More)
                {
                }
                assert!(port.took == [([start, bytes].concat(), offload)], "{what}");
                own.pair.front.queue_mut(0).unwrap().reclaim(&own.pair.g, 1).expect("good answers");
                assert!(!pages.into_iter().any(|page| own.pair.front.is_held(page)));
            }
        }
        assert_eq!(own.pair.xen.counts().copies, copies, "no grant copy");
        own.close();
    }
}

/// A back that reads heads from staging buffers finds them there, even if the frame goes by
/// reference.
#[test]
fn heads_are_in_staging_buffers_too() {
    for heads in [false, true] {
        let staging = Buffers::of(DataLen::new(256), None);
        let mut config = entries(768);
        config.paths.staging.heads = heads;
        let mut own = Own::new(FrontConfig { staging, ..announcing() }, config, 20);
        own.each(0..20);
        own.turns();
        let before = own.stats().hits;
        for (at, len) in [(0, 60), (0, 257), (100, 1514), (4000, 300), (4095, 20_000)] {
            own.send(0, at, len);
        }
        assert_eq!(own.stats().hits - before, 5);
        for head in [54, 256, 300] {
            let (payload, bytes) = own.write(4000, 1448);
            let start: Vec<u8> = (0..head).map(|k| (k * 3) as u8).collect();
            let frame = HeadedFrame { head: &start, payload };
            assert_eq!(own.pair.front.send_headed(&own.pair.g, 0, &[frame]), Ok(1));
            assert_eq!(own.took(0), [[start, bytes].concat()], "behind a head of {head}");
            own.pair.front.queue_mut(0).unwrap().reclaim(&own.pair.g, 1).expect("good answers");
        }
        assert_eq!(own.stats().hits - before, 8);
        own.close();
    }
}

/// If the ring has no room for all slots of a frame, none of them is used.
#[test]
fn a_frame_over_pages_is_sent_whole_or_not_at_all() {
    let mut own = Own::new(announcing(), entries(768), 40);
    own.each(0..40);
    own.turns();
    let (desc, bytes) = own.write(4095, 65_535);
    let mut sent = 0;
    while own.pair.front.send_own(&own.pair.g, 0, &[desc]) == Ok(1) {
        sent += 1;
    }
    assert_eq!((sent, own.pair.front.in_flight(0)), (15, 15 * 17));
    assert!(own.took(0).iter().all(|took| *took == bytes));
    own.pair.front.queue_mut(0).unwrap().reclaim(&own.pair.g, 1).expect("good answers");
    assert!((0..40).all(|page| !own.pair.front.is_held(page)));
    own.close();
}

/// Without scatter-gather a frame has one slot, wherever its bytes are.
#[test]
fn without_sg_a_frame_over_two_pages_is_copied() {
    let config =
        VifConfig { features: BackFeatures { sg: false, ..BackFeatures::default() }, ..entries(768) };
    let mut own = Own::new(announcing(), config, 4);
    own.each(0..4);
    own.turns();
    let before = own.stats();
    own.send(0, 4000, 1500);
    assert_eq!((own.stats().hits, own.stats().copied_to_pool), (before.hits, before.copied_to_pool + 1));
    own.close();
}

/// The grant table has no free entry: the page that was not used for the longest is let go of, and
/// its entry serves the next page.
#[test]
fn a_full_grant_table_lets_the_oldest_page_go() {
    let mut own = Own::new(announcing(), entries(POOL + 20), 40);
    own.each(0..8);
    own.turns();
    own.pair.xen.limit_grants(GUEST, own.pair.xen.counts().grants);
    for page in 8..12 {
        assert_eq!(own.each([page]), 0);
        own.turns();
        assert!(own.stats().ungranted > 0, "no entry is free");
        assert_eq!(own.each([page]), 0, "not yet granted");
        own.turns();
        assert_eq!(own.each([page]), 1, "by an entry that another page had");
    }
    let stats = own.stats();
    assert_eq!((stats.evictions, stats.dels, stats.adds), (4, 4, 12), "{stats:?}");
    own.close();
}

/// A page of a frame that is not answered is not removed from the table, whatever comes.
#[test]
fn a_page_on_its_way_makes_way_for_none() {
    let mut own = Own::new(announcing(), entries(POOL + 4), 100);
    own.each(0..4);
    own.turns();
    let descs: Vec<_> = (0..4).map(|page| own.write(page * PAGE_SIZE, 500)).collect();
    let frames: Vec<_> = descs.iter().map(|(desc, _)| *desc).collect();
    assert_eq!(own.pair.front.send_own(&own.pair.g, 0, &frames), Ok(4));
    for page in (10..100).cycle().take(400) {
        let (desc, _) = own.write(page * PAGE_SIZE, 60);
        own.pair.front.send_own(&own.pair.g, 0, &[desc]).expect("standing grants");
        own.turns();
    }
    assert!((0..4).all(|page| own.pair.front.is_held(page)) && !own.pair.front.is_held(10));
    assert_eq!((own.stats().evictions, own.pair.front.room(0)), (0, 0), "the ring is full");
    let took = own.took(0);
    assert!(took[..4].iter().zip(&descs).all(|(took, (_, bytes))| took == bytes));
    own.pair.front.queue_mut(0).unwrap().reclaim(&own.pair.g, 1).expect("good answers");
    assert!((0..100).all(|page| !own.pair.front.is_held(page)));
    own.each((10..14).cycle().take(20));
    own.turns();
    own.each(10..14);
    own.turns();
    assert_eq!(own.each(10..14), 4, "now they do");
    own.close();
}

/// First more pages than the table has entries, then fewer: the front starts to copy by itself, and
/// stops again.
#[test]
fn a_table_that_is_short_makes_the_front_copy_until_the_working_set_fits() {
    const TABLE: usize = 64;
    let mut own = Own::new(announcing(), entries(POOL + TABLE), 512);
    let mut seed = 1;
    let mut some = |own: &mut Own, pages: usize, first: usize| {
        let (before, frames) = (own.stats(), 3000);
        for k in 0..frames {
            own.each([first + below(&mut seed, pages)]);
            if k % 16 == 0 {
                own.turn();
            }
            assert!(own.pair.back.gref_pages(0)[0] <= POOL + TABLE);
        }
        let after = own.stats();
        let hits = after.hits - before.hits;
        (
            hits as f64 / frames as f64,
            own.pair.front.queue(0).unwrap().tx().cache().unwrap().mode(),
            after.mode_changes,
        )
    };
    let (rate, mode, changes) = some(&mut own, 60, 0);
    assert_eq!((mode, changes), (CacheMode::Caching, 0));
    assert!(rate > 0.9, "{rate}");
    let (_, mode, changes) = some(&mut own, 512, 0);
    assert_eq!((mode, changes), (CacheMode::Copying, 1));
    let stats = own.stats();
    assert!(stats.evictions > 0 && stats.dels > 0, "{stats:?}");
    let (rate, mode, changes) = some(&mut own, 512, 0);
    assert_eq!((mode, changes), (CacheMode::Copying, 1));
    assert_eq!(own.stats().evictions, stats.evictions, "nothing comes or goes");
    assert!((0.05..0.3).contains(&rate), "what is there is used: {rate}");
    let (_, mode, changes) = some(&mut own, 40, 300);
    assert_eq!((mode, changes), (CacheMode::Caching, 2));
    let (rate, mode, changes) = some(&mut own, 40, 300);
    assert_eq!((mode, changes), (CacheMode::Caching, 2));
    assert!(rate > 0.99, "{rate}");
    let stats = own.stats();
    assert_eq!((stats.refused, stats.in_use, stats.unasked, stats.ungranted), (0, 0, 0, 0));
    assert_eq!(stats.hits + stats.copied_to_pool, own.pair.front.queue(0).unwrap().stats().0.frames);
    own.close();
}

/// Every frame is copied: without a table, without room in it, and with a back that keeps what it
/// sees mapped.
#[test]
fn a_back_without_a_table_gets_copies() {
    let no_ring = BackFeatures { ctrl_ring: false, ..BackFeatures::default() };
    let plain = FrontConfig { gref_mapping: false, ..announcing() };
    for (front, back) in [
        (announcing(), VifConfig { features: no_ring, ..entries(768) }),
        (announcing(), entries(0)),
        (announcing(), entries(100)),
        (announcing(), entries(POOL)),
        (plain, entries(768)),
        (FrontConfig { persistent: true, ..announcing() }, entries(768)),
    ] {
        let mut own = Own::new(front, back, 300);
        for _ in 0..2 {
            assert_eq!(own.each(0..300), 0);
            own.turns();
        }
        let stats = own.stats();
        assert_eq!(
            (stats.copied_to_pool, stats.adds, own.pair.front.queue(0).unwrap().tx().cache().unwrap().mode()),
            (600, 0, CacheMode::Copying)
        );
        own.send(0, 100, 20_000);
        own.close();
    }
}

/// A guest that is allowed fewer pages than its table has entries finds out.
#[test]
fn a_back_that_takes_fewer_than_it_said_is_asked_for_fewer() {
    let mut own = Own::new(announcing(), entries(768), 256);
    own.pair.back.allow_pages(&own.pair.h, PageShare { pages: 37, lasting: usize::MAX });
    for _ in 0..20 {
        own.each(0..256);
        own.turns();
    }
    assert_eq!(own.pair.front.queue(0).unwrap().tx().cache().unwrap().pages(), (37, 37));
    assert!(own.stats().refused > 0);
    assert_eq!(own.pair.front.queue(0).unwrap().tx().cache().unwrap().mode(), CacheMode::Copying);
    own.close();
}

/// The back dies after some of its turns, while pages are added and removed; the next one continues
/// with the requests.
#[test]
fn a_back_that_dies_is_followed_by_one_that_knows_the_pages() {
    for turns in 0..30 {
        let mut own = Own::new(announcing(), entries(POOL + 32), 100);
        let mut turn = 0;
        for round in 0..12 {
            for page in 0..40 {
                own.each([(page + round * 3) % 100]);
                if page % 4 == 0 {
                    if turn == turns {
                        own.pair.restart();
                    }
                    turn += 1;
                    own.turn();
                }
            }
        }
        own.turns();
        let stats = own.stats();
        assert!(stats.hits > 0 && stats.dels > 0, "dead at turn {turns}: {stats:?}");
        assert_eq!((stats.refused, stats.in_use, stats.unasked), (0, 0, 0), "dead at turn {turns}");
        let (added, capacity) = own.pair.front.queue(0).unwrap().tx().cache().unwrap().pages();
        assert_eq!((own.pair.back.gref_pages(0)[0], capacity), (POOL + added, 32), "dead at turn {turns}");
        own.pair.restart();
        let copies = own.pair.xen.counts().copies;
        own.each(0..100);
        assert_eq!(own.pair.xen.counts().copies, copies, "dead at turn {turns}");
        for _ in 0..4 {
            own.each(0..20);
            own.turns();
        }
        let copies = own.pair.xen.counts().copies;
        assert_eq!((own.each(0..20), own.pair.xen.counts().copies), (20, copies), "dead at turn {turns}");
        own.close();
    }
}

/// One back closes and another connects: it gets the same memory with new grants; pages that the
/// first keeps mapped stay granted and use up room.
#[test]
fn the_pages_are_announced_to_another_back_again() {
    let mut own = Own::new(announcing(), entries(POOL + 32), 100);
    own.each(0..32);
    own.turns();
    assert_eq!(own.each(0..32), 32);
    let standing = own.pair.xen.counts().grants;
    // Of the memory's, which are the newest: it is mapped once more, by no one who would tell.
    let refs: Vec<GrantRef> = (0..4000).map(GrantRef).collect();
    let kept: Vec<_> = refs
        .iter()
        .rev()
        .filter_map(|gref| own.pair.h.map(GUEST, &[*gref], Access::ReadOnly).ok())
        .take(5)
        .collect();
    assert_eq!(kept.len(), 5);
    let (desc, _) = own.write(0, 900);
    assert_eq!(own.pair.front.send_own(&own.pair.g, 0, &[desc]), Ok(1));
    for _ in 0..2 {
        let Pair { front, fb, back, bb, h, g, .. } = &mut own.pair;
        back.end(h, bb, &mut []).expect("a map");
        assert_eq!(front.step(g, fb).expect("a map"), FrontStep::Closed);
        back.step(h, bb, &mut |_, _| None).expect("a map");
        assert!(!front.is_held(0), "what was on the ring is gone");
        own.pair.back = BackVif::new(GUEST, 0, own.pair.config.clone());
        own.pair.back.inherit(&mut own.pair.bb).expect("a map");
        own.pair.kept = Default::default();
        own.pair.xen.stop_clock(own.pair.xen.counts().maps * 1_000_000_000_000);
        own.pair.connect();
        own.turns();
        assert_eq!(own.each(0..32), 0, "it does not know them yet");
        own.turns();
        assert_eq!(own.pair.front.queue(0).unwrap().tx().cache().unwrap().pages(), (27, 32));
        own.each(0..32);
        own.turns();
        assert!(own.pair.xen.counts().grants <= standing);
        own.pair.front.turn(&own.pair.g).expect("an honest back");
    }
    drop(kept);
    own.turns();
    own.each(0..32);
    own.turns();
    assert_eq!(
        (own.each(0..32), own.pair.front.queue(0).unwrap().tx().cache().unwrap().pages()),
        (32, (32, 32))
    );
    own.close();
}

/// The control ring in the hands of a test, frames by a back that has no table: whatever is
/// answered, they are right, and no grant ends that the back may have mapped.
struct Lying {
    own: Own,
    raw: RawRing,
    asked: u32,
}

impl Lying {
    /// A back that offers room for `room` pages besides the pool, and has accepted the pool.
    fn new(room: u32) -> Self {
        let mut own = Own::unasked(announcing(), entries(0), 100);
        let raw = RawRing::of(&mut own.pair);
        let mut lying = Self { own, raw, asked: 0 };
        assert_eq!(lying.raw.request(0).msg_type, SIZE.raw());
        lying.answer(SUCCESS, POOL as u32 + room);
        lying.answer(SUCCESS, 0);
        lying
    }

    fn answer(&mut self, status: u32, data: u32) {
        let request = self.raw.request(self.asked);
        self.raw.answer(self.asked, (request.id, request.msg_type, status, data));
        self.asked += 1;
        self.own.pair.front.turn(&self.own.pair.g).expect("what was asked");
    }

    fn list(&self, msg_type: pregrant::wire::netif_ctrl::CtrlType) -> (u32, Vec<GrefEntry>) {
        let request = self.raw.request(self.asked);
        assert_eq!(request.msg_type, msg_type.raw());
        let [_, gref, n] = request.data;
        let page = self.own.pair.h.map(GUEST, &[GrantRef(gref)], Access::ReadWrite).expect("the list");
        let mut bytes = vec![0; n as usize * GrefEntry::SIZE];
        assert!(page.copy_out(0, &mut bytes));
        (gref, bytes.as_chunks().0.iter().map(|entry| GrefEntry::from_bytes(*entry)).collect())
    }

    fn write_statuses(&self, list: u32, statuses: &[u16]) {
        let page = self.own.pair.h.map(GUEST, &[GrantRef(list)], Access::ReadWrite).expect("the list");
        for (k, status) in statuses.iter().enumerate() {
            assert!(page.copy_in(k * GrefEntry::SIZE + GrefEntry::STATUS_OFFSET, &status.to_le_bytes()));
        }
    }

    fn close(self) {
        self.raw.end(&self.own.pair);
        self.own.close();
    }

    fn turn(&mut self) {
        self.own.pair.front.turn(&self.own.pair.g).expect("what was asked");
    }

    /// A front whose pages fill the table and that wants others: returns it with the DEL that it
    /// must send.
    fn filled(room: usize) -> (Self, Vec<GrefEntry>) {
        let mut lying = Self::new(room as u32);
        lying.own.each(0..room);
        lying.turn();
        let (_, added) = lying.list(ADD);
        assert_eq!(added.len(), room);
        lying.answer(SUCCESS, 0);
        assert_eq!(lying.own.each(0..room), room as u64, "by grant copy, and right");
        // Twice, since all were used.
        for _ in 0..2 {
            lying.own.each(50..50 + room);
        }
        lying.turn();
        (lying, added)
    }
}

#[test]
fn a_back_that_misreports_an_add_gets_the_same_frames() {
    for (status, entry, hits) in
        [(SUCCESS, 0, 8), (SUCCESS, 9, 0), (INVALID, 9, 0), (INVALID, 0, 0), (77, 0, 0), (u32::MAX, 0, 0)]
    {
        let mut lying = Lying::new(8);
        let standing = lying.own.pair.xen.counts().grants;
        assert_eq!(lying.own.each(0..20), 0);
        lying.turn();
        let (list, entries) = lying.list(ADD);
        assert_eq!((entries.len(), lying.own.each(0..20)), (8, 0), "not yet");
        lying.write_statuses(list, &[entry; 8]);
        // One of them is mapped, whatever it says.
        let map =
            lying.own.pair.h.map(GUEST, &[GrantRef(entries[3].gref)], Access::ReadOnly).expect("granted");
        lying.answer(status, 12345);
        assert_eq!(lying.own.each(0..20), hits);
        let grants = lying.own.pair.xen.counts().grants;
        assert_eq!(grants, if hits == 8 { standing + 8 } else { standing + 1 + lying.pending() });
        drop(map);
        lying.close();
    }
}

impl Lying {
    /// Pages of the ADD that is under way.
    fn pending(&self) -> usize {
        let is_add = self.raw.request(self.asked).msg_type == ADD.raw();
        if is_add { self.raw.request(self.asked).data[2] as usize } else { 0 }
    }
}

#[test]
fn a_grant_ends_only_when_the_back_has_let_go() {
    let (mut lying, added) = Lying::filled(8);
    let (list, dels) = lying.list(DEL);
    assert!(!dels.is_empty() && dels.iter().all(|entry| added.iter().any(|had| had.gref == entry.gref)));
    assert!(
        dels.iter().all(|entry| entry.status == 0),
        "one that follows the draft writes what failed alone"
    );
    let grants = |lying: &Lying| lying.own.pair.xen.counts().grants;
    let standing = grants(&lying);
    // It says that it has let go of all, and has one of them mapped; another's status it does not
    // write.
    let map = lying.own.pair.h.map(GUEST, &[GrantRef(dels[0].gref)], Access::ReadOnly).expect("granted");
    let mut statuses = vec![0; dels.len()];
    statuses[1] = 2;
    lying.write_statuses(list, &statuses);
    lying.answer(SUCCESS, 99_999);
    assert_eq!(grants(&lying), standing - (dels.len() - 2));
    let stats = lying.own.stats();
    assert_eq!((stats.in_use, stats.refused, stats.dels), (1, 1, dels.len() as u64 - 1));
    assert!(lying.own.pair.h.map(GUEST, &[GrantRef(dels[1].gref)], Access::ReadOnly).is_ok(), "it stands");
    lying.turn();
    assert_eq!(grants(&lying), standing - (dels.len() - 2), "not yet");
    drop(map);
    lying.turn();
    assert_eq!(grants(&lying), standing - (dels.len() - 1));
    lying.close();
}

#[test]
fn a_page_that_is_not_given_back_is_asked_for_so_often_and_kept() {
    // The last says that it let go of none, and has not written to the list.
    for (status, entry, data) in
        [(INVALID, 0, 1), (77, 0, 1), (SUCCESS, 2, 1), (SUCCESS, 0xFFFF, 1), (1, 0, 1), (SUCCESS, 0, 0)]
    {
        let (mut lying, _) = Lying::filled(1);
        let standing = lying.own.pair.xen.counts().grants;
        for asked in 1..=3 {
            let (list, dels) = lying.list(DEL);
            assert_eq!(dels.len(), 1);
            lying.write_statuses(list, &[entry]);
            lying.answer(status, data);
            assert_eq!(lying.own.stats().refused, asked);
            assert_eq!(lying.own.each([0]), 1, "its reference is as good as before");
            lying.own.each([50, 51, 52]);
            lying.turn();
        }
        assert_eq!(lying.raw.request(lying.asked).msg_type, 0, "nothing is asked any more");
        assert_eq!((lying.own.pair.xen.counts().grants, lying.own.stats().dels), (standing, 0));
        lying.close();
    }
}

/// An answer without a request is a fault; an event without an answer is not.
#[test]
fn an_answer_that_was_not_asked_closes_the_vif() {
    let (good, twice, other, early) = (0, 1, 2, 3);
    for kind in [good, twice, other, early] {
        let (mut lying, _) = Lying::filled(4);
        let (list, dels) = lying.list(DEL);
        let standing = lying.own.pair.xen.counts().grants;
        lying.write_statuses(list, &vec![0; dels.len()]);
        let request = lying.raw.request(lying.asked);
        let (id, msg_type) = match kind {
            2 => (request.id + 1, request.msg_type),
            3 => (request.id, ADD.raw()),
            _ => (request.id, request.msg_type),
        };
        lying.raw.answer(lying.asked, (id, msg_type, SUCCESS, dels.len() as u32));
        let Pair { front, g, .. } = &mut lying.own.pair;
        let received = front.turn(g);
        assert_eq!(received.is_ok(), kind <= twice, "{kind}");
        let ended = standing - lying.own.pair.xen.counts().grants;
        assert_eq!(ended, if kind <= twice { dels.len() } else { 0 }, "{kind}");
        if kind == twice {
            lying.raw.answer(lying.asked + 1, (id, msg_type, SUCCESS, 0));
            let Pair { front, g, .. } = &mut lying.own.pair;
            // Nothing is asked at present, so nothing is read; it counts for the next question,
            // before the back can have seen that: no status says that anything was let go of.
            assert_eq!(front.turn(g), Ok(false));
            let standing = lying.own.pair.xen.counts().grants;
            for _ in 0..4 {
                lying.own.each(60..70);
                lying.turn();
                assert!(lying.own.pair.xen.counts().grants >= standing);
            }
        }
        lying.close();
    }
}
