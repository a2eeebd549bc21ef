//! A front whose owner continues to step it after an error, or after its device was removed: it
//! starts again from the beginning, and never continues with rings that are only partly valid.
//!
//! ```text
//!   live --the back goes 2, 4 with a garbled key--> error --step--> 5
//!   live, queues handed out --removed--> Recall --step--> Recall --taken back, step--> 5
//! ```
#![cfg(not(miri))]

use crate::pair::{Pair, ordinary};
use pregrant::net::back::VifConfig;
use pregrant::net::front::{FrontStep, FrontVif};
use pregrant::xenbus::XenbusState;
use pregrant_testkit::two_domains::HOST;

/// A live vif whose front reconnects.
fn live() -> Pair {
    let mut pair = Pair::new(ordinary(), VifConfig::default());
    pair.front = FrontVif::new(HOST, ordinary(), true);
    pair.connect();
    assert!(pair.front.is_live());
    pair
}

fn begins_again(mut pair: Pair) {
    assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Waiting);
    assert_eq!((pair.front.state(), pair.front.is_live()), (XenbusState::Closing, false));
    pair.front.close(&mut pair.fb, None).expect("a map");
    pair.connect();
    assert!(pair.front.is_closed());
}

#[test]
fn a_step_that_failed_while_another_back_came_is_not_half_done() {
    let mut pair = live();
    let set = |pair: &Pair, key: &str, value: &str| pair.bb.own.borrow_mut().insert(key.into(), value.into());
    set(&pair, "state", "2");
    assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Waiting);
    assert!(pair.front.is_live());
    let queues = set(&pair, "multi-queue-max-queues", "many").expect("a back's key");
    set(&pair, "state", "4");
    assert!(pair.front.step(&pair.g, &mut pair.fb).is_err());
    assert!(!pair.front.is_live());
    set(&pair, "multi-queue-max-queues", &queues);
    begins_again(pair);
}

#[test]
fn a_device_that_was_removed_while_its_queues_are_handed_out_does_not_go_live() {
    let mut pair = live();
    let queues = pair.front.hand_out_queues();
    assert_eq!((queues.len(), pair.front.nr_queues()), (1, 1));
    assert_eq!(pair.front.removed(&pair.g), FrontStep::Recall);
    assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Recall);
    pair.front.take_back(queues);
    begins_again(pair);
}
