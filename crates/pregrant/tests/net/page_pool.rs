//! More ordinary pages than the rings have slots: both ends agree on the number, each page is used
//! in turn, and no frame needs a grant operation.
#![cfg(not(miri))]

use crate::pair::Pair;
use crate::staging_pool::{burst, connected};
use pregrant::net::back::VifConfig;
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{PathConfig, PathName};
use pregrant::port::FramePort;
use pregrant_testkit::two_domains::{HOST, TestPort};

/// A back that announces that it keeps this many pages of a vif mapped.
fn keeps(pages: u32) -> VifConfig {
    let paths = PathConfig {
        persistent: pages as usize / 2,
        gref_mapping: pages as usize,
        foreign: true,
        ..PathConfig::default()
    };
    let features = BackFeatures { mapped_pages: pages, foreign: true, ..BackFeatures::default() };
    VifConfig { features, paths, ..VifConfig::default() }
}

/// A front that wants this many pages per direction.
fn wants(path: PathName, pages: u32) -> FrontConfig {
    FrontConfig {
        staging: Buffers::NONE,
        persistent: path == PathName::Persistent,
        gref_mapping: path == PathName::GrefMapping,
        foreign: path == PathName::Foreign,
        pages,
        ..FrontConfig::default()
    }
}

fn pages(pair: &Pair) -> [u32; 2] {
    pair.front.queue(0).expect("a queue").pages()
}

/// Polls both ends' control rings until the front has nothing left to announce.
fn announce(pair: &mut Pair) {
    while pair.front.is_announcing() {
        pair.back.poll_ctrl(&pair.h).expect("an honest front");
        pair.front.turn(&pair.g).expect("an honest back");
    }
}

/// The number of frames for which the back needed a grant operation.
fn granted(pair: &Pair) -> u64 {
    let (tx, rx) = pair.back.stats(0);
    tx.granted + rx.granted
}

#[test]
fn pages_are_as_many_as_are_wanted_within_what_the_back_says() {
    use PathName as P;
    for (path, wanted, kept, got) in [
        (P::Persistent, 1000, 2000, 1000),
        (P::Persistent, 1000, 896, 448),
        (P::Persistent, 1000, 300, 256),
        (P::Persistent, 100, 2000, 256),
        (P::Persistent, 0, 2000, 256),
        (P::GrefMapping, 1000, 2000, 1000),
        (P::GrefMapping, 1000, 896, 448),
        (P::Foreign, 1000, 0, 1000),
        (P::Foreign, 100, 0, 256),
        (P::Copy, 1000, 2000, 256),
    ] {
        let pair = connected(wants(path, wanted), keeps(kept));
        assert_eq!(pages(&pair), [got; 2], "{path}, {wanted} of {kept}");
        assert_eq!(pair.key(true, "mapped-pages-max"), (kept > 0).then(|| kept.to_string()));
        pair.close();
    }
    // Queues share what the back keeps.
    let mut pair = Pair::new(FrontConfig { queues: 2, ..wants(P::Persistent, 1000) }, keeps(1200));
    pair.connect();
    assert_eq!(pages(&pair), [300; 2]);
    pair.close();
}

#[test]
fn each_page_has_its_turn_and_stays_mapped() {
    for path in [PathName::Persistent, PathName::GrefMapping] {
        let mut pair = connected(wants(path, 400), keeps(896));
        if path == PathName::GrefMapping {
            announce(&mut pair);
            assert_eq!(pair.front.gref_pages(0), 800);
        }
        let mut next = 0;
        let mut play = |pair: &mut Pair, rounds| {
            for round in 0..rounds {
                burst(pair, next, &[60 + round % 1000, 1500, 4096, 4097, 65535, 9000]);
                burst(pair, next + 6, &[60; 40]);
                next += 46;
            }
        };
        // All pages are seen, a bounded number in a batch.
        play(&mut pair, 60);
        let before = granted(&pair);
        play(&mut pair, 60);
        assert_eq!(granted(&pair) - before, 0, "{path}");
        let mut ports: [Box<dyn FramePort>; 1] = [Box::new(TestPort::default())];
        let _ = pair.back.turn(&pair.h, &mut ports).expect("an honest front");
        let seen = pair.back.kept(0).map(|store| store.map_or(0, |store| store.pages));
        let due = if path == PathName::Persistent { [400; 2] } else { [0; 2] };
        assert_eq!(seen, due, "{path}");
        pair.close();
    }
}

#[test]
fn a_back_says_what_each_of_its_paths_has_room_for() {
    let says = |persistent, gref_mapping| {
        PathConfig { persistent, gref_mapping, ..PathConfig::default() }.mapped_pages()
    };
    assert_eq!(PathConfig::default().mapped_pages(), 896);
    assert_eq!((says(100, 4096), says(4096, 300), says(4096, 4096)), (200, 300, 896));
    assert_eq!((says(100, 0), says(0, 300), says(0, 0)), (200, 300, 0));
}

/// The table has room for fewer pages than the back announced: the front starts again, with one
/// page for each slot.
#[test]
fn a_front_whose_pages_are_not_all_taken_begins_again_with_fewer() {
    let short = VifConfig { paths: PathConfig { gref_mapping: 600, ..keeps(896).paths }, ..keeps(896) };
    let mut pair = Pair::new(wants(PathName::GrefMapping, 448), short);
    pair.front = FrontVif::new(HOST, wants(PathName::GrefMapping, 448), true);
    pair.connect();
    assert_eq!(pages(&pair), [448; 2]);
    announce(&mut pair);
    assert_eq!(pair.front.begins_at_ns(), Some(0), "at once");
    for _ in 0..3 {
        pair.connect();
    }
    assert!(pair.front.is_live());
    assert_eq!(pages(&pair), [256; 2]);
    announce(&mut pair);
    assert_eq!((pair.front.gref_pages(0), pair.front.begins_at_ns()), (512, None));
    burst(&mut pair, 0, &[64, 1500, 65535]);
}
