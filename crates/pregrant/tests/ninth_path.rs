//! A path is its folder and one line of the list (docs/architecture.md, "What to touch to add a
//! path"): frames travel both ways by a ninth one, which the feature `ninth-path` adds so.
#![cfg(not(any(miri, loom)))]

mod rig;

use pregrant::net::back::{BackVif, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, FrontVif, NotOffered};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{PathConfig, PathName};
use pregrant::platform::local::LocalXen;
use pregrant::port::{Arena, Offload};
use rig::bus::{connect, device};
use rig::{GUEST, HOST, TestPort};

const KEY: &str = "feature-persistent-again";
const NAME: &str = "persistent-again";
/// Four times around a ring, and more.
const FRAMES: u64 = 1200;

/// What the two ends say of the path, and what it carried.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    /// The key, in the directories of the front and the back.
    keys: [Option<String>; 2],
    /// What the front wants and does not get.
    not_offered: Vec<NotOffered>,
    /// The back's paths of TX and RX.
    chains: [Vec<&'static str>; 2],
    /// Whether it carried frames, TX and RX.
    carried: [bool; 2],
}

/// Frames both ways, with each byte checked, between a front that wants the path and a back that
/// offers it, if they do.
fn exchange(wants: bool, offers: bool, limit: usize) -> Outcome {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let config = FrontConfig { ninth: wants, staging: Buffers::NONE, ..FrontConfig::default() };
    let mut front = FrontVif::new(HOST, config, false);
    let config = VifConfig {
        features: BackFeatures { ninth: offers, ..BackFeatures::default() },
        paths: PathConfig { ninth: limit, ..PathConfig::default() },
        ..VifConfig::default()
    };
    let mut back = BackVif::new(GUEST, 0, config);
    connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    let keys = [&fb, &bb].map(|bus| bus.own.borrow().get(KEY).cloned());

    let (mut port, mut scratch, mut into) = (TestPort::default(), Arena::new(), Arena::new());
    let lens = [60, 64, 1500, 4096, 9000, 65535].into_iter().cycle();
    for (k, len) in (0..FRAMES as usize).zip(lens) {
        let bytes = |k: usize| -> Vec<u8> { (0..len).map(|at| (at * 7 + k) as u8).collect() };
        let mut burst = Arena::new();
        assert!(burst.push(&bytes(k), Offload::default()));
        assert_eq!(front.queue_mut(0).unwrap().send(&g, &burst.burst()), Ok(1));
        back.poll_tx(&h, 0, &mut port, &mut scratch).expect("good frames");
        // Held frames are answered by the next call.
        back.poll_tx(&h, 0, &mut port, &mut scratch).expect("good frames");
        front.queue_mut(0).unwrap().reclaim(&g, 1).expect("good answers");
        assert_eq!(port.took.pop().map(|f| f.0), Some(bytes(k)), "frame {k} from the guest");
        port.gives.push_back((bytes(k + 1), Offload::default()));
        back.poll_rx(&h, 0, &mut port).expect("good slots");
        into.clear();
        assert_eq!(front.queue_mut(0).unwrap().recv(&g, &mut into, 1), Ok(1));
        assert_eq!(into.burst().frame(0), bytes(k + 1), "frame {k} for the guest");
    }

    let stats: [_; 2] = back.stats(0).into();
    for dir in &stats {
        assert_eq!((dir.frames, dir.ninth + dir.granted), (FRAMES, FRAMES), "{dir:?}");
    }
    let outcome = Outcome {
        keys,
        not_offered: front.not_offered().to_vec(),
        chains: [0, 1].map(|dir| back.chain(0, dir)),
        carried: stats.map(|dir| dir.ninth > FRAMES / 2),
    };
    back.close(&h, &mut bb, None).expect("a map");
    while !front.is_closed() {
        front.step(&g, &mut fb).expect("a map");
    }
    let counts = xen.counts();
    assert_eq!((counts.grants, counts.mapped), (0, 0), "left behind");
    outcome
}

#[test]
fn frames_travel_by_it_both_ways() {
    assert_eq!(NAME.parse(), Ok(PathName::Ninth));
    assert_eq!(PathName::COUNT, 9);
    let said = || Some("1".to_string());
    let both = Outcome {
        keys: [said(), said()],
        not_offered: vec![],
        chains: [vec![NAME, "copy"], vec![NAME, "copy"]],
        carried: [true, true],
    };
    assert_eq!(exchange(true, true, 256), both);
}

#[test]
fn without_either_end_frames_go_by_copy() {
    let said = || Some("1".to_string());
    let by_copy = |keys, not_offered| Outcome {
        keys,
        not_offered,
        chains: [vec!["copy"], vec!["copy"]],
        carried: [false, false],
    };
    let missing = vec![NotOffered::Path(PathName::Ninth)];
    assert_eq!(exchange(true, false, 256), by_copy([None, None], missing));
    assert_eq!(exchange(false, true, 256), by_copy([None, said()], vec![]));
    // Offered and asked for, and the back keeps no page.
    assert_eq!(exchange(true, true, 0), by_copy([said(), said()], vec![]));
    assert_eq!(exchange(false, false, 0), by_copy([None, None], vec![]));
}
