//! Backs that close their vifs, or vanish, and fronts that come back, or do not.

use crate::traffic::Traffic;
use crate::world::{GUEST, Word, World};
use pregrant::net::front::Wishes;
use pregrant::xenbus::XenbusState;
use std::time::Duration;

const TIMES: u32 = 10;

fn wishes() -> [(&'static str, Wishes); 3] {
    let unstaged = Wishes { tx_data_len: None, rx_data_len: None, ..Wishes::default() };
    [("copy", Wishes { queues: 2, ..Wishes::default() }), ("copy", unstaged), ("map", unstaged)]
}

/// A back that is told to close, ten times under traffic, and another one that opens again: no frame is lost, either
/// way, and none comes twice; at the end nothing is left.
pub fn fronts_come_back_with_their_frames() {
    for (ordinary, wishes) in wishes() {
        let world = World::new();
        world.log.set(Word::Size, 600);
        let mut back = world.back(ordinary, None);
        let mut traffic = Traffic::new(world.guest(), wishes, true, 0..1_000_000);
        let mut empty = world.broker.audit();
        for time in 0..TIMES {
            let goal = traffic.numbers.start + 2000;
            while traffic.numbers.start < goal {
                // Never more than there are slots for, so that nothing waits for some when the back is told to close.
                world.log.set(Word::Limit, traffic.next() as u32 + 200);
                traffic.step_and_follow(true);
            }
            back.begin_to_close();
            while !back.is_dead() {
                traffic.step_and_follow(true);
            }
            assert_eq!(world.state.get(Word::Lost), 0);
            while traffic.front.vif().is_live() {
                traffic.front.control(Duration::ZERO).unwrap();
            }
            let (own, peer) = traffic.front.states().unwrap();
            assert_eq!(peer, XenbusState::Closed);
            assert!([XenbusState::Closed, XenbusState::Initialising].contains(&own), "{own}");
            // Between two connections the guest has no grant, no channel, and nobody maps any.
            if time == 0 {
                empty = world.broker.audit();
                assert_eq!((empty.grants, empty.channels, empty.maptrack), (0, 0, 0));
            }
            assert_eq!(world.broker.audit(), empty, "after {time} times");
            back = world.back(ordinary, None);
        }
        world.log.set(Word::Limit, 0);
        let made = u64::from(world.log.get(Word::Next));
        while world.log.account(0..traffic.numbers.start).0 > 0 || traffic.next() < made {
            traffic.step_and_follow(false);
        }
        let sent = traffic.numbers.start;
        println!("  {ordinary}, {} queue(s): {sent} frames sent, {made} for the guest", wishes.queues);
        assert_eq!(world.log.account(0..sent), (0, 0), "frames lost, frames twice");
        assert_eq!((world.log.get(Word::Damaged), world.log.get(Word::Reordered)), (0, 0));
        assert_eq!((traffic.came, traffic.front.vif().lost()), (made, 0));
        assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
        drop(traffic);
        world.end(back);
    }
}

/// A front that closes while its back is dead: it waits for whoever comes, a next back or the toolstack.
pub fn a_front_closes_while_its_back_is_dead() {
    for next in ["back", "toolstack", "nobody"] {
        let mut world = World::new();
        let mut back = world.back("copy", None);
        let mut traffic = Traffic::new(world.guest(), Wishes::default(), true, 0..100);
        back.is_live();
        traffic.step(true);
        back.kill();
        assert!(!traffic.front.close(Duration::from_millis(20)).unwrap(), "nobody has let go");
        assert_eq!(traffic.front.states().unwrap(), (XenbusState::Closing, XenbusState::Connected));
        match next {
            "back" => {
                back = world.back("copy", None);
                assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
            }
            "toolstack" => {
                world.remove_vif(GUEST);
                assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
                back = world.back("copy", None);
            }
            _ => back = world.back("copy", None),
        }
        drop(traffic);
        world.end(back);
    }
}

/// A back that dies in the middle of closing leaves a vif that the next one opens, once its front has come down.
pub fn a_back_dies_while_it_closes() {
    for state in ["5", "6"] {
        let mut world = World::new();
        let mut back = world.back("copy", None);
        let mut traffic = Traffic::new(world.guest(), Wishes::default(), true, 0..2000);
        while traffic.numbers.start < 1000 {
            traffic.step(true);
        }
        // As if it had died right after it wrote this.
        back.stop();
        world.set_state_of_back(state);
        back = world.back("copy", None);
        while traffic.front.vif().is_live() {
            traffic.front.control(Duration::ZERO).unwrap();
        }
        while !traffic.numbers.is_empty() || world.log.account(0..2000).0 > 0 {
            traffic.step_and_follow(true);
        }
        assert_eq!(world.log.account(0..2000), (0, 0), "{state}: frames lost, frames twice");
        assert_eq!(traffic.front.states().unwrap(), (XenbusState::Connected, XenbusState::Connected));
        assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
        drop(traffic);
        world.end(back);
    }
}
