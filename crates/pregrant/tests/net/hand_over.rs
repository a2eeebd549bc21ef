//! A vif is left to a back without this one's records: the guest's frames wait on the ring, all
//! that was taken of it is answered. One is taken from such a back, whose time its own records do
//! not know.
#![cfg(not(miri))]

use crate::gref_mapping::{Pair, announcing, by_hand, entries};
use crate::in_flight::KeepingPort;
use pregrant::net::back::{Polled, VifConfig};
use pregrant::net::path::{PathConfig, PathName};
use pregrant::port::{Arena, Offload};
use pregrant_testkit::two_domains::TestPort;
use std::sync::Arc;

fn send(pair: &mut Pair, bytes: &[u8]) {
    let mut burst = Arena::new();
    assert!(burst.push(bytes, Offload::default()));
    assert_eq!(pair.front.queue_mut(0).expect("a queue").send(&pair.g, &burst.burst()), Ok(1));
}

#[test]
fn a_guest_that_is_held_sends_nothing_and_gets_its_frames() {
    let mut pair = Pair::new(by_hand(), VifConfig::default());
    pair.exchange(0, 3, 900);
    assert!(pair.back.hold(&pair.h));
    send(&mut pair, &[7; 600]);
    let (mut port, mut scratch) = (TestPort::default(), Arena::new());
    for _ in 0..3 {
        assert_eq!(pair.back.poll_tx(&pair.h, 0, &mut port, &mut scratch), Ok(Polled::Idle));
    }
    port.gives.push_back((vec![9; 700], Offload::default()));
    assert_eq!(pair.back.poll_rx(&pair.h, 0, &mut port), Ok(Polled::More));
    scratch.clear();
    assert_eq!(pair.front.queue_mut(0).expect("a queue").recv(&pair.g, &mut scratch, 1), Ok(1));
    assert_eq!((port.took.len(), pair.back.settle(&pair.h)), (0, 0));
    // The next one, here the same, reads the toolstack's rate.
    pair.back.reload_rate(&pair.h, &mut pair.bb).expect("plain maps");
    assert_eq!(pair.back.poll_tx(&pair.h, 0, &mut port, &mut Arena::new()), Ok(Polled::More));
    assert_eq!(port.took.pop().map(|f| f.0), Some(vec![7; 600]));
    // A tool that hands the vif over has held it before, by the same rate.
    pair.bb.own.borrow_mut().insert("rate".into(), "1,100000000".into());
    pair.back.reload_rate(&pair.h, &mut pair.bb).expect("plain maps");
    assert!(!pair.back.hold(&pair.h));
    pair.front.queue_mut(0).expect("a queue").reclaim(&pair.g, 1).expect("good answers");
    pair.close();
}

#[test]
fn what_a_port_keeps_is_answered_before_the_rings_are_left() {
    let paths = PathConfig { fallback: PathName::Map, ..PathConfig::default() };
    let mut pair = Pair::new(by_hand(), VifConfig { paths, ..VifConfig::default() });
    let mut port = KeepingPort(Arc::default());
    for _ in 0..3 {
        send(&mut pair, &[7; 1400]);
    }
    assert_eq!(pair.back.poll_tx(&pair.h, 0, &mut port, &mut Arena::new()), Ok(Polled::More));
    assert_eq!([pair.back.settle(&pair.h), pair.back.settle(&pair.h)], [3, 3]);
    // The next one gets frames that come meanwhile.
    send(&mut pair, &[8; 1400]);
    port.0.finish_newest(0);
    assert_eq!(pair.back.settle(&pair.h), 0);
    let queue = pair.front.queue_mut(0).expect("a queue");
    queue.reclaim(&pair.g, 3).expect("good answers");
    let Pair { back, h, .. } = &mut pair;
    back.detach(h, &mut [Box::new(TestPort::default())]);
    // A driver of the kernel, which has no records.
    pair.back = Pair::back(&pair.config, &pair.kept, pair.page_limit);
    pair.back.take_from_kernel();
    assert_eq!(pair.back.reattach(&pair.h, &mut pair.bb, &mut |_, _| None).ok(), Some(true));
    let (mut port, mut scratch) = (TestPort::default(), Arena::new());
    pair.back.poll_tx(&pair.h, 0, &mut port, &mut scratch).expect("good frames");
    assert_eq!(port.took.iter().map(|f| &f.0[..]).collect::<Vec<_>>(), [&[8; 1400][..]]);
    pair.front.queue_mut(0).expect("a queue").reclaim(&pair.g, 1).expect("good answers");
    pair.close();
}

/// The table of mapped pages that a process has recorded is of a time before the kernel's driver,
/// under which the guest may have granted other pages by these references.
#[test]
fn records_of_a_time_before_the_kernels_driver_are_forgotten() {
    let mut pair = Pair::new(announcing(), entries(768));
    pair.exchange(0, 3, 900);
    assert_ne!(pair.back.gref_pages(0), [0, 0]);
    for of_kernel in [false, true] {
        pair.back = Pair::back(&pair.config, &pair.kept, pair.page_limit);
        if of_kernel {
            pair.back.take_from_kernel();
        }
        let Pair { back, h, bb, kept, .. } = &mut pair;
        assert_eq!(back.reattach(h, bb, &mut |name, n| kept.page(name, n)).ok(), Some(true));
        pair.exchange(0, 3, 900);
        assert_eq!(pair.back.gref_pages(0) == [0, 0], of_kernel);
    }
    pair.close();
}
