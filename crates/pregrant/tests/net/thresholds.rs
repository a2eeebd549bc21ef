//! From which length on frames are mapped, and passed zero-copy: as the operator's settings say,
//! shown by counters.
#![cfg(not(miri))]

use crate::lent::{Act, LentPort, bytes_of, play, run};

use pregrant::net::back::{BackVif, VifConfig};
use pregrant::net::batch::Thresholds;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{AnyPath, Chain, PathConfig, PathName, PersistentPath};
use pregrant::platform::Access;
use pregrant::platform::local::LocalXen;
use pregrant::port::{Arena, Offload};
use pregrant_testkit::bus::{connect, device};
use pregrant_testkit::two_domains::{GUEST, HOST, TwoDomains, Way};

/// Lengths around the thresholds, a page each.
const LENS: [u16; 6] = [60, 128, 129, 1500, 1501, 4096];

fn set(copy_below: u32, lend_from: u32) -> Thresholds {
    Thresholds { copy_below, lend_from }
}

#[test]
fn frames_of_at_most_that_length_are_copied_and_longer_ones_mapped() {
    for (copy_below, mapped) in [(128, 4), (129, 3), (1500, 2), (1501, 1), (4095, 1), (4096, 0), (65535, 0)] {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Map, 0, 16);
        g.back.set_thresholds(set(copy_below, Thresholds::USUAL.lend_from));
        let mut port = LentPort::new(Act::Copy);
        for (page, len) in LENS.into_iter().enumerate() {
            play(&mut g, &[(page, 0, len)], 0, None);
        }
        run(&mut g, &domains, &mut port).unwrap();
        let ops = g.back.stats().grant_ops;
        // Those that are mapped have their heads by grant copy.
        assert_eq!((ops.maps, ops.unmaps, ops.copies), (mapped, mapped, LENS.len() as u64), "{copy_below}");
        assert_eq!(port.seen.iter().filter(|seen| !seen.whole).count() as u64, mapped, "{copy_below}");
        let seen = port.seen.iter().map(|seen| &seen.bytes).chain(&port.private);
        let whole = LENS.into_iter().enumerate().map(|(page, len)| bytes_of(&g, &[(page, 0, len)]));
        assert!(seen.cloned().eq(whole), "{copy_below}");
        g.model.answers().unwrap();
        g.close();
        domains.assert_empty();
    }
}

#[test]
fn frames_of_more_than_that_length_are_lent() {
    for (lend_from, lent) in [(128, 4), (129, 3), (1500, 2), (2048, 1), (4096, 0), (65535, 0)] {
        let domains = TwoDomains::new();
        let chain =
            Chain::from(AnyPath::Persistent(PersistentPath::new(256, Access::ReadOnly).expect("memory")));
        let mut g = domains.tx_model_by(chain, None, 0, 16);
        g.back.set_thresholds(set(Thresholds::USUAL.copy_below, lend_from));
        // The first time each page is seen, the second time it is mapped.
        for turn in 0..2 {
            let mut port = LentPort { named: true, ..LentPort::new(Act::Copy) };
            for (page, len) in LENS.into_iter().enumerate() {
                play(&mut g, &[(page, 0, len)], 0, None);
            }
            run(&mut g, &domains, &mut port).unwrap();
            g.model.answers().unwrap();
            if turn == 1 {
                let zero_copy = port.seen.iter().filter(|seen| !seen.whole);
                assert_eq!(zero_copy.count(), lent, "{lend_from}");
                assert_eq!(port.seen.len() + port.private.len(), LENS.len());
            }
        }
        g.close();
        domains.assert_empty();
    }
}

/// The operator's settings reach the queues of a vif.
#[test]
fn a_vif_copies_as_its_configuration_says() {
    for (copy_below, maps) in [(128, 3), (1000, 2), (1500, 1), (4000, 0)] {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let thresholds = set(copy_below, Thresholds::USUAL.lend_from);
        let paths = PathConfig { fallback: PathName::Map, thresholds, ..PathConfig::default() };
        let mut back = BackVif::new(GUEST, 0, VifConfig { paths, ..VifConfig::default() });
        let config = FrontConfig { staging: Buffers::NONE, ..FrontConfig::default() };
        let mut front = FrontVif::new(HOST, config, false);
        connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
        let before = xen.counts().maps;
        let mut burst = Arena::new();
        for len in [60, 1000, 1500, 3000] {
            assert!(burst.push(&vec![7; len], Offload::default()));
        }
        assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(4));
        let mut port = LentPort { named: true, ..LentPort::new(Act::Copy) };
        back.poll_tx(&h, 0, &mut port, &mut Arena::new()).expect("good slots");
        assert_eq!(port.seen.len() + port.private.len(), 4);
        assert_eq!(xen.counts().maps - before, maps, "{copy_below}");
    }
}
