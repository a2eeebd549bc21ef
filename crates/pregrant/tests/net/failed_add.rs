//! A list of pages of which one cannot be mapped: processed in turns like any other list.
#![cfg(not(miri))]

use crate::gref_mapping::{INVALID, Pair, SUCCESS, by_hand, entries};
use pregrant::net::back::Polled;
use pregrant::net::path::gref_mapping::requests::MAPS_PER_TURN;
use pregrant::wire::netif_ctrl::CtrlType;

const ADD: CtrlType = CtrlType::AddGrefMapping;

/// The last page of a long list: those before it are unmapped within the bound of a turn.
#[test]
fn a_long_list_that_fails_takes_turns() {
    let mut pair = Pair::new(by_hand(), entries(768));
    let mut all = pair.pages(0, 256);
    let mapped = pair.mapped();
    all.last_mut().expect("512 entries").gref = 0xFFFF;
    pair.ask(ADD, 0, &all);
    let mut most = 0;
    loop {
        let before = pair.xen.counts();
        assert_eq!(pair.back.poll_ctrl(&pair.h), Ok(Polled::More));
        let after = pair.xen.counts();
        most = most.max(after.unmaps - before.unmaps);
        if let Some(answer) = pair.answer() {
            assert_eq!(answer, (INVALID, 0));
            break;
        }
    }
    // The list's own page is one more.
    assert!((1..=MAPS_PER_TURN as u64 + 2).contains(&most), "{most} pages unmapped in one turn");
    assert_eq!(pair.mapped(), mapped);
    // All of its places are free again.
    let all = pair.pages(0, 256);
    assert_eq!(pair.asked(ADD, 0, &all), (SUCCESS, 512));
    pair.close();
}
