//! `online` = 0 (docs/protocol 2.10): a device that the toolstack removes comes down from any
//! state, and stays down, whatever its front and the toolstack write, in any order.
#![cfg(not(miri))]

use pregrant::net::back::{BackStep, BackVif, VifConfig};
use pregrant::net::front::{FrontConfig, FrontStep, FrontVif};
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::xenbus::XenbusState as S;
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::two_domains::{GUEST, HOST};
use proptest::prelude::*;

fn set(bus: &MapBus, key: &str, value: &str) {
    bus.own.borrow_mut().insert(key.into(), value.into());
}

fn says(bus: &MapBus) -> String {
    bus.own.borrow()["state"].clone()
}

/// Our front reconnects after each close, but not here.
#[test]
fn a_vif_that_is_to_go_stays_gone_with_a_front_that_reconnects() {
    for (lives, toolstacks) in [(true, "5"), (true, "4"), (false, "5"), (false, "2")] {
        let what = format!("live {lives}, state {toolstacks}");
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut front = FrontVif::<LocalDomain>::new(HOST, FrontConfig::default(), true);
        let mut back = BackVif::new(GUEST, 0, VifConfig::default());
        if lives {
            connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
            assert!(front.is_live(), "{what}");
        } else {
            assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).unwrap(), BackStep::Waiting);
        }
        // libxl's, and one that leaves the state alone.
        set(&bb, "online", "0");
        set(&bb, "state", toolstacks);
        let mut removed = 0;
        for _ in 0..20 {
            let came_to = back.step(&h, &mut bb, &mut |_, _| None).unwrap();
            removed += u32::from(came_to == BackStep::Removed);
            assert!(removed == 0 || says(&bb) == "6", "{what}: {}", says(&bb));
            front.step(&g, &mut fb).unwrap();
            // The front does not know it, where the toolstack wrote nothing.
            if lives && toolstacks == "4" && removed == 0 && front.is_live() {
                set(&bb, "state", "5");
            }
        }
        assert!(removed > 0, "{what}: back {}, front {}", says(&bb), front.state());
        assert!(!front.is_live());
        assert_eq!(xen.counts().mapped, 0, "{what}");
        // The toolstack thinks better of it.
        set(&bb, "online", "1");
        let mut live = false;
        for _ in 0..20 {
            let _ = back.step(&h, &mut bb, &mut |_, _| None).unwrap();
            live |= front.step(&g, &mut fb).unwrap() == FrontStep::Live;
        }
        assert!(live, "{what}: back {}, front {}", says(&bb), front.state());
        drop((front, back));
    }
}

/// A back that closed for a fault while its front stayed: the toolstack's daemon removes its
/// directory at state 6.
#[test]
fn a_vif_that_was_closed_for_a_fault_is_over_though_its_front_stands_at_4() {
    let xen = LocalXen::new();
    let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
    let (mut fb, mut bb) = device();
    let mut front = FrontVif::<LocalDomain>::new(HOST, FrontConfig::default(), false);
    let mut back = BackVif::new(GUEST, 0, VifConfig::default());
    connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
    back.close(&h, &mut bb, Some("it lied")).unwrap();
    assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).unwrap(), BackStep::Waiting);
    set(&bb, "online", "0");
    assert_eq!(back.step(&h, &mut bb, &mut |_, _| None).unwrap(), BackStep::Removed);
    assert_eq!(says(&bb), "6");
}

proptest! {
    /// A front's keys are those of an honest one; its states, the toolstack's 5 and `online` come
    /// in any order.
    #[test]
    fn whatever_a_front_writes_what_is_to_go_goes(
        steps in prop::collection::vec((0u8..9, any::<bool>(), any::<bool>()), 1..40),
    ) {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut fb, mut bb) = device();
        let mut front = FrontVif::<LocalDomain>::new(HOST, FrontConfig::default(), true);
        let mut back = BackVif::new(GUEST, 0, VifConfig::default());
        connect((&g, &mut front, &mut fb), (&h, &mut back, &mut bb));
        let mut over = false;
        for (state, online, writes_5) in steps {
            set(&fb, "state", &state.to_string());
            set(&bb, "online", if online { "1" } else { "0" });
            if writes_5 && !online {
                set(&bb, "state", "5");
            }
            let before = back.state();
            let came_to = match back.step(&h, &mut bb, &mut |_, _| None) {
                Ok(came_to) => came_to,
                Err(e) => {
                    back.close(&h, &mut bb, Some(&e.to_string())).unwrap();
                    continue;
                }
            };
            over = !online && (over || came_to == BackStep::Removed);
            if online {
                continue;
            }
            let up = matches!(before, S::Connected | S::Reconfigured);
            let front = S::parse(Some(state.to_string().as_bytes()));
            let is_served = up && !matches!(front, S::Initialising | S::Closed | S::Unknown);
            prop_assert!(came_to == BackStep::Removed || is_served || came_to == BackStep::Closed,
                "back {} to {}, front {}: {:?}", before, back.state(), front, came_to);
            if over {
                prop_assert_eq!(says(&bb), "6");
                prop_assert_eq!(xen.counts().mapped, 0);
            }
        }
    }
}
