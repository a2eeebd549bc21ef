//! Access to shared memory: a range inside of it is copied, exactly; any other is refused, and
//! nothing is touched.
#![cfg(not(loom))]

use pregrant::platform::local::{LocalXen, Pages};
use pregrant::platform::{Access, GrantPool, PeerMem};
use pregrant::ring::{NetTx, RedoWords, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::{DomId, GrantRef, PAGE_SIZE};
use std::sync::atomic::Ordering;

const LEN: usize = 2 * PAGE_SIZE;

/// Starts and lengths at and around the range's ends, and some whose sum overflows.
const PLACES: [(usize, usize); 12] = [
    (0, 0),
    (0, LEN),
    (LEN, 0),
    (LEN - 1, 1),
    (1, LEN - 1),
    (0, LEN + 1),
    (1, LEN),
    (LEN, 1),
    (LEN + 1, 0),
    (LEN + 1, 1),
    (usize::MAX, 1),
    (usize::MAX, LEN),
];

fn number(at: usize) -> u8 {
    (at * 7 + at / 251 + 1) as u8
}

#[test]
fn a_copy_is_inside_or_is_none() {
    let pages = Pages::new(2);
    assert_eq!((pages.len(), pages.is_empty()), (LEN, false));
    let all: Vec<u8> = (0..LEN).map(number).collect();
    assert!(pages.copy_in(0, &all));
    for (at, len) in PLACES {
        let inside = at.checked_add(len).is_some_and(|end| end <= LEN);
        let mut out = vec![0; len];
        assert_eq!(pages.copy_out(at, &mut out), inside, "{len} from {at}");
        if inside {
            assert_eq!(out, all[at..at + len]);
        } else {
            assert!(out.iter().all(|b| *b == 0), "untouched");
        }
        assert_eq!(pages.copy_in(at, &out), inside, "{len} to {at}");
    }
    let mut out = vec![0; LEN];
    assert!(pages.copy_out(0, &mut out) && out == all, "what was refused wrote nothing");
}

/// Short copies go by overlapping blocks: each length, at places that no block is aligned to.
#[test]
fn a_piece_is_copied_whole_where_it_fits_and_is_apart() {
    let (from, to) = (Pages::new(2), Pages::new(2));
    let all: Vec<u8> = (0..LEN).map(number).collect();
    assert!(from.copy_in(0, &all));
    for (at, len) in PLACES {
        let inside = at.checked_add(len).is_some_and(|end| end <= LEN);
        for first in [0, 3] {
            to.zero();
            let Some(piece) = from.piece(first, len) else { continue };
            assert_eq!(to.copy_piece_in(at, piece), inside, "{len} bytes to {at}");
            let mut now = vec![0; LEN];
            assert!(to.copy_out(0, &mut now));
            let here = |k: usize| inside && (at..at + len).contains(&k);
            assert!(
                (0..LEN).all(|k| now[k] == if here(k) { all[first + k - at] } else { 0 }),
                "{len} bytes to {at}"
            );
        }
    }
    // Of one range: beside each other, and not.
    for (at, apart) in [
        (200, true),
        (100, true),
        (101, false),
        (199, false),
        (150, false),
        (0, true),
        (50, true),
        (51, false),
    ] {
        let pages = Pages::new(2);
        assert!(pages.copy_in(0, &all));
        let piece = pages.piece(if at < 100 { 100 } else { 150 }, 50).expect("inside");
        assert_eq!(pages.copy_piece_in(at, piece), apart, "to {at}");
    }
}

#[test]
fn each_length_is_copied_whole_and_nothing_beside_it() {
    let lengths = if cfg!(miri) { 0..5 } else { 0..300 };
    for len in lengths {
        for at in [0, 1, 7, 64, PAGE_SIZE - 3] {
            let pages = Pages::new(2);
            let frame: Vec<u8> = (0..len).map(|k| number(k) | 1).collect();
            assert!(pages.copy_in(at, &frame));
            let mut all = vec![0; LEN];
            assert!(pages.copy_out(0, &mut all));
            assert_eq!(all[at..at + len], frame);
            assert!(all[..at].iter().chain(&all[at + len..]).all(|b| *b == 0), "{len} at {at}");
            let mut out = vec![0xEE; len + 40];
            assert!(pages.copy_out(at, &mut out[20..20 + len]));
            assert_eq!(out[20..20 + len], frame);
            assert!(out[..20].iter().chain(&out[20 + len..]).all(|b| *b == 0xEE), "{len} from {at}");
        }
    }
}

#[test]
fn words_are_aligned_and_inside() {
    let pages = Pages::new(2);
    for at in [1, 2, 3, LEN - 3, LEN - 1, LEN, LEN + 4, usize::MAX - 3, usize::MAX] {
        assert!(pages.load_u32(at).is_none() && pages.word(at).is_none(), "{at}");
        assert!(!pages.store_u32(at, 1));
    }
    for at in [0, 4, PAGE_SIZE, LEN - 4] {
        assert_eq!(pages.load_u32(at), Some(0));
        assert!(pages.store_u32(at, 0x0403_0201 + at as u32));
        assert_eq!(pages.load_u32(at), Some(0x0403_0201 + at as u32));
        assert_eq!(pages.word(at).map(|w| w.load(Ordering::Relaxed)), pages.load_u32(at));
        let mut bytes = [0; 4];
        assert!(pages.copy_out(at, &mut bytes));
        assert_eq!(u32::from_le_bytes(bytes), 0x0403_0201 + at as u32);
    }
}

#[test]
fn all_of_it_is_zeroed() {
    let pages = Pages::new(2);
    assert!(pages.copy_in(0, &[0xFF; LEN]));
    pages.zero();
    let mut out = [1; LEN];
    assert!(pages.copy_out(0, &mut out) && out == [0; LEN]);
}

/// A hint changes nothing, wherever it points: it may be given for a frame that ends past the
/// range.
#[test]
fn prefetches_change_nothing() {
    let pages = Pages::new(2);
    assert!(pages.copy_in(0, &[3; LEN]));
    for (at, len) in [(0, LEN), (1, 300), (LEN - 1, 64), (LEN, 64), (LEN + 64, 64)] {
        pages.prefetch_read(at, len);
        pages.prefetch_write(at, len);
    }
    let mut out = [0; LEN];
    assert!(pages.copy_out(0, &mut out) && out == [3; LEN]);
}

/// A page that is mapped for reading refuses stores of any kind, however it was granted.
#[test]
fn pages_that_are_mapped_to_be_read_refuse_stores() {
    let xen = LocalXen::new();
    let (guest, host) = (xen.domain(7), xen.domain(0));
    for granted in [Access::ReadOnly, Access::ReadWrite] {
        let mut refs = [GrantRef::NONE];
        let page = guest.alloc(DomId(0), granted, &mut refs).expect("memory");
        assert!(page.is_writable() && page.copy_in(0, b"the guest's"));
        let map = host.map(DomId(7), &refs, Access::ReadOnly).expect("a grant");
        assert!(!map.is_writable() && !map.copy_in(0, b"x") && !map.store_u32(0, 1));
        assert!(!map.copy_piece_in(4, page.piece(0, 1).expect("inside")));
        assert!(map.word(0).is_none() && map.load_u32(0) == page.load_u32(0));
        map.zero();
        assert!(RedoWords::<4096>::new(Some(map)).is_none());
        let map = Box::new(Some(host.map(DomId(7), &refs, Access::ReadOnly).expect("a grant")));
        assert!(!map.is_writable() && !map.copy_in(0, b"x"));
        let mut bytes = [0; 11];
        assert!(map.copy_out(0, &mut bytes) && &bytes == b"the guest's");
        let ring = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| RingPages::<NetTx, _>::new(map)));
        assert!(ring.is_err(), "both ends of a ring write");
        if granted == Access::ReadWrite {
            let map = host.map(DomId(7), &refs, Access::ReadWrite).expect("a grant");
            assert!(map.copy_in(0, b"the back's!") && map.word(0).is_some());
        }
    }
}
