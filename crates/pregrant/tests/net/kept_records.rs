//! Records that outlive a vif's back, and that its successor does not find: there is none, it was
//! truncated, or it is of another connection. The rings alone are sufficient, unless an unpublished
//! answer may be on one: then the vif is refused, with an explanation (docs/protocol 1.1, R3).
#![cfg(not(miri))]

use crate::gref_mapping::{Kept, Pair, announcing, entries};
use pregrant::platform::local::Pages;
use pregrant::platform::{Access, PeerMem};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{NetRx, NetTx, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::two_domains::{GUEST, TestPort};

const RECORDS: [&str; 4] = ["0/tx", "0/rx", "control", "0/grefs"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// A successor that has no memory for it either.
    NoMemory,
    /// Memory that was never used.
    Nothing,
    /// The second half of the record is missing.
    Cut,
    /// The record of another connection, which lasted longer.
    Another,
}

const FOUND: [Found; 4] = [Found::NoMemory, Found::Nothing, Found::Cut, Found::Another];

fn left(frames: usize) -> Pair {
    let mut pair = Pair::new(announcing(), entries(768));
    pair.exchange(0, frames, 900);
    pair
}

fn memory<'a>(kept: &'a mut Kept, name: &str) -> &'a mut Pages {
    if name == "control" { &mut kept.control } else { kept.pages.get_mut(name).expect("a record") }
}

/// Another process takes over the live rings, and finds that kind of record.
fn succeed(pair: &mut Pair, name: &str, found: Found) -> Result<bool, ConnectError<String>> {
    let page = memory(&mut pair.kept, name);
    let n = page.len();
    match found {
        Found::NoMemory | Found::Nothing => *page = Pages::new(n / PAGE_SIZE),
        Found::Cut => assert!(page.copy_in(n / 2, &vec![0; n - n / 2])),
        Found::Another => {
            let mut bytes = vec![0; n];
            assert!(memory(&mut left(7).kept, name).copy_out(0, &mut bytes) && page.copy_in(0, &bytes));
        }
    }
    let Pair { h, bb, kept, back, config, page_limit, .. } = pair;
    *back = Pair::back(config, kept, *page_limit);
    let pages = &kept.pages;
    back.reattach(h, bb, &mut |of, bytes| {
        let is_there = of != name || found != Found::NoMemory;
        let page = || pages.get(of).cloned().unwrap_or_else(|| Pages::new(bytes.div_ceil(PAGE_SIZE)));
        is_there.then(|| Box::new(page()) as Box<dyn SharedBytes + Send>)
    })
}

#[test]
fn rings_without_an_unpublished_answer_are_taken_up_whatever_is_found() {
    for name in RECORDS {
        for found in FOUND {
            let mut pair = left(3);
            // One frame waits for the successor.
            let mut burst = Arena::new();
            assert!(burst.push(&[7; 600], Offload::default()));
            assert_eq!(pair.front.queue_mut(0).unwrap().send(&pair.g, &burst.burst()), Ok(1));
            let taken = succeed(&mut pair, name, found);
            assert!(matches!(taken, Ok(true)), "{name}, {found:?}: {taken:?}");
            let (mut port, mut scratch) = (TestPort::default(), Arena::new());
            pair.back.poll_tx(&pair.h, 0, &mut port, &mut scratch).expect("good frames");
            assert_eq!(port.took.pop().map(|f| f.0), Some(vec![7; 600]), "{name}, {found:?}");
            pair.front.queue_mut(0).unwrap().reclaim(&pair.g, 1).expect("good answers");
            if name == "0/grefs" && matches!(found, Found::NoMemory | Found::Nothing) {
                assert_eq!(pair.back.gref_pages(0), [0, 0], "{found:?}");
            }
            pair.exchange(0, 3, 900);
            pair.close();
        }
    }
}

/// The slot of the next request has an answer over it, as after a death between that and the index.
fn answer_next(pair: &mut Pair, dir: &str) {
    let gref = pair.fb.own.borrow()[&format!("{dir}-ring-ref")].parse().expect("a reference");
    let map = pair.h.map(GUEST, &[GrantRef(gref)], Access::ReadWrite).expect("the ring");
    if dir == "tx" {
        let mut burst = Arena::new();
        assert!(burst.push(&[7; 600], Offload::default()));
        assert_eq!(pair.front.queue_mut(0).unwrap().send(&pair.g, &burst.burst()), Ok(1));
        let ring = RingPages::<NetTx, _>::new(map);
        let at = ring.load(Word::RspProd);
        let [gref, _, id] = ring.read::<3>(at);
        assert_ne!(gref, id & 0xFFFF, "a request that looks like its answer");
        ring.write::<1>(at, [id & 0xFFFF]);
    } else {
        let ring = RingPages::<NetRx, _>::new(map);
        let at = ring.load(Word::RspProd);
        let [id, _] = ring.read::<2>(at);
        ring.write::<2>(at, [id, 60 << 16]);
    }
}

#[test]
fn a_ring_with_answers_of_which_no_record_tells_is_refused_with_words() {
    for (dir, name) in [("tx", "0/tx"), ("rx", "0/rx")] {
        for found in [Found::NoMemory, Found::Nothing, Found::Another] {
            let mut pair = left(3);
            answer_next(&mut pair, dir);
            let refused = succeed(&mut pair, name, found);
            let Err(e @ ConnectError::Lost(_)) = refused else { panic!("{dir}, {found:?}: {refused:?}") };
            let text = e.to_string();
            for part in [&*format!("{dir}-ring-ref"), "died while it wrote answers", "no record", "reconnect"]
            {
                assert!(text.contains(part), "no {part:?}: {text}");
            }
            pair.back.close(&pair.h, &mut pair.bb, Some(&text)).expect("a map");
            assert_eq!(pair.mapped(), 0, "{dir}, {found:?}");
        }
    }
}
