//! Backs that close their vifs, or vanish, and fronts that come back, or do not.

use crate::traffic::Traffic;
use crate::world::{GUEST, Word, World};
use pregrant::net::front::FrontConfig;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::xenbus::XenbusState;
use std::time::Duration;

const TIMES: u32 = 10;
/// Slots of a ring of one page.
const SLOTS: u64 = 256;

fn config() -> [(&'static str, FrontConfig); 3] {
    let unstaged = FrontConfig { staging: Buffers::NONE, ..FrontConfig::default() };
    [("copy", FrontConfig { queues: 2, ..FrontConfig::default() }), ("copy", unstaged), ("map", unstaged)]
}

/// A back that is asked to close, ten times under traffic, and another one that opens again: what
/// is lost was on the rings, none comes twice, and at the end nothing is left.
pub fn fronts_come_back() {
    for (ordinary, config) in config() {
        let world = World::new();
        world.log.set(Word::Size, 600);
        let mut back = world.back(ordinary, None);
        let mut traffic = Traffic::new(world.guest(), config, true, 0..1_000_000);
        let (mut empty, mut last) = (None, (0, 0));
        for time in 0..TIMES {
            let goal = traffic.numbers.start + 2000;
            while traffic.numbers.start < goal {
                // Never more than there are slots for, so that nothing waits for some when the back
                // is asked to close.
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
            // Between two connections no one maps a grant of the guest's, there is no channel, and
            // the grants are those that the next one has again. The broker notices a
            // process's end in its own time; the guest's and the test's own stay.
            let mut now = world.broker.audit();
            while now.attachments > 2 {
                std::thread::sleep(Duration::from_millis(1));
                now = world.broker.audit();
            }
            assert_eq!((now.channels, now.maptrack), (0, 0));
            assert!((1..=traffic.front.vif().kept_pages()).contains(&now.grants), "{now:?}");
            // The other counts are those of the first time.
            let first = *empty.get_or_insert(now);
            assert!(time == 0 || now == first, "after {time} times: {now:?}, at first {first:?}");
            // Nothing is sent before the next connection: what has a higher number is not to be
            // lost.
            last = (traffic.numbers.start, u64::from(world.log.get(Word::Next)));
            back = world.back(ordinary, None);
        }
        let goal = traffic.numbers.start + 2000;
        while traffic.numbers.start < goal {
            world.log.set(Word::Limit, traffic.next() as u32 + 200);
            traffic.step_and_follow(true);
        }
        // The back makes frames up to the limit that it read: how many there are is known once it
        // has made them all.
        let made = u64::from(world.log.get(Word::Limit));
        while world.log.account(last.0..traffic.numbers.start).0 > 0 || traffic.missing(last.1..made) > 0 {
            traffic.step_and_follow(false);
        }
        assert_eq!(u64::from(world.log.get(Word::Next)), made);
        let sent = traffic.numbers.start;
        println!("  {ordinary}, {} queue(s): {sent} frames sent, {made} for the guest", config.queues);
        // A ring's worth of each queue, each time it is closed.
        let most = u64::from(TIMES * config.queues) * SLOTS;
        let (lost, twice) = world.log.account(0..sent);
        assert!(
            lost as u64 <= most && twice == 0,
            "{lost} frames lost, {most} at most may; {twice} came twice"
        );
        assert_eq!((world.log.get(Word::Damaged), world.log.get(Word::Reordered)), (0, 0));
        assert_eq!(traffic.next(), made);
        assert!(traffic.missing(0..made) <= most, "{} frames for the guest lost", traffic.missing(0..made));
        assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
        drop(traffic);
        world.end(back);
    }
}

/// A front that closes while its back is dead: it waits for a next back or the
/// toolstack.
pub fn a_front_closes_while_its_back_is_dead() {
    for next in ["back", "toolstack", "none"] {
        let mut world = World::new();
        let mut back = world.back("copy", None);
        let mut traffic = Traffic::new(world.guest(), FrontConfig::default(), true, 0..100);
        back.is_live();
        traffic.step(true);
        back.kill();
        assert!(!traffic.front.close(Duration::from_millis(20)).unwrap(), "neither has let go");
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

/// A back that dies in the middle of closing leaves a vif that the next one opens, once its front
/// has come down.
pub fn a_back_dies_while_it_closes() {
    for state in ["5", "6"] {
        let mut world = World::new();
        let mut back = world.back("copy", None);
        let mut traffic = Traffic::new(world.guest(), FrontConfig::default(), true, 0..2000);
        while traffic.numbers.start < 1000 {
            traffic.step(true);
        }
        // Frames on a ring that closes are lost: here there are none.
        while world.log.account(0..traffic.numbers.start).0 > 0 {
            traffic.step(false);
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
