//! A back dies, and a new process takes over its live rings (docs/protocol 1.1); the guest notices
//! only a pause.
//!
//! The binary starts itself as `child PATH copy|map|spread`, a backend whose port keeps account in
//! memory that outlives it, and as `guest ORDERS PATH`. Tests run one after the other.

mod back;
mod control;
mod frames;
mod grefs;
mod guest;
mod matrix;
mod model_guest;
mod one_copy;
mod pairs;
mod reconnect;
mod rounds;
mod tcp;
mod traffic;
mod world;
mod zero_copy;

use back::BURST;
use model_guest::ModelGuest;
use pregrant::net::front::FrontConfig;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::xenbus::XenbusState;
use pregrant_loopback::LoopbackError;
use pregrant_test_machine::one_by_one;
use std::path::Path;
use std::time::Duration;
use traffic::Traffic;
use world::{BACK, Word, World};

const POINTS: [&str; 5] = ["after-copy", "mid-frame", "in-responses", "before-publish", "before-notify"];
/// How bytes travel: the back's ordinary path, and whether staging is negotiated.
const PATHS: [(&str, bool); 6] = [
    ("copy", false),
    ("map", false),
    ("persistent", false),
    ("copy", true),
    ("data-ring", false),
    ("foreign", false),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, path, ordinary] = args.as_slice()
        && child == "child"
    {
        return back::play(ordinary, Path::new(path));
    }
    if let [guest, orders @ .., path] = args.as_slice()
        && guest == "guest"
    {
        return guest::play(orders, Path::new(path));
    }
    let tests: [(&str, fn()); 15] = [
        ("a_vif_has_one_owner", a_vif_has_one_owner),
        ("tx_goes_on_after_a_crash_at_each_point", tx_goes_on_after_a_crash_at_each_point),
        ("rx_goes_on_after_a_crash_at_each_point", rx_goes_on_after_a_crash_at_each_point),
        (
            "what_a_guest_set_outlives_backs_that_die_at_each_point",
            control::what_a_guest_set_outlives_backs_that_die_at_each_point,
        ),
        (
            "mapped_pages_outlive_backs_that_die_at_each_point",
            grefs::mapped_pages_outlive_backs_that_die_at_each_point,
        ),
        (
            "buffers_that_are_sent_on_outlive_backs_that_die_at_each_point",
            zero_copy::buffers_that_are_sent_on_outlive_backs_that_die_at_each_point,
        ),
        (
            "lent_frames_outlive_backs_that_die_at_each_point",
            one_copy::lent_frames_outlive_backs_that_die_at_each_point,
        ),
        ("an_orderly_stop_loses_and_repeats_nothing", an_orderly_stop_loses_and_repeats_nothing),
        ("queues_are_taken_up_one_by_one", queues_are_taken_up_one_by_one),
        ("fronts_come_back", reconnect::fronts_come_back),
        ("a_front_closes_while_its_back_is_dead", reconnect::a_front_closes_while_its_back_is_dead),
        ("a_back_dies_while_it_closes", reconnect::a_back_dies_while_it_closes),
        ("any_two_levels_are_in_a_row", pairs::any_two_levels_are_in_a_row),
        ("matrix_of_paths", matrix::matrix_of_paths),
        ("either_end_is_killed_again_and_again", rounds::either_end_is_killed_again_and_again),
    ];
    let tests = tests.iter().map(|(name, test)| (name.to_string(), test as &dyn Fn()));
    one_by_one::run(tests.collect(), one_by_one::Leaves::NothingSoon, matrix::say_cell);
}

fn a_vif_has_one_owner() {
    let world = World::new();
    let back = world.back("copy", None);
    let guest = ModelGuest::connect(&world, false);
    let second = world.broker.attach(BACK).unwrap();
    let refused = second.own("vif5.0").unwrap_err();
    assert!(matches!(refused, LoopbackError::Held { .. }));
    assert!(refused.to_string().contains("\"vif5.0\" in domain 0 belongs to another process"), "{refused}");
    let mut back = back;
    back.kill();
    let owned = std::iter::repeat_with(|| second.own("vif5.0")).find_map(Result::ok).unwrap();
    drop(owned);
    drop(second);
    let mut back = world.back("copy", None);
    back.is_live();
    guest.close();
    world.end(back);
}

/// Frames are shown five at a time, so that each five are a batch; the back dies in its third.
fn tx_goes_on_after_a_crash_at_each_point() {
    for ((ordinary, staged), long, point) in cases() {
        let world = World::new();
        let mut back = world.back(ordinary, Some(format!("{point}:3")));
        let mut guest = ModelGuest::connect_by(&world, (ordinary, staged));
        let (mut sent, mut answered, mut deaths) = (0, 0, 0);
        while answered < 40 {
            if answered == sent {
                guest.send(sent, 5, long);
                sent += 5;
            }
            answered += guest.answered();
            if back.is_dead() {
                deaths += 1;
                back = world.back(ordinary, None);
            }
        }
        guest.tx.finish().unwrap();
        let what = format!("{ordinary}, staged {staged}, long {long}, {point}");
        assert_eq!(guest.ringed()[0], if ordinary == "data-ring" { sent } else { 0 }, "{what}");
        assert_eq!((sent, deaths), (40, 1), "{what}");
        // The port had the batch and no one knew: R7. After the intent was written everybody does.
        let again = if point == "after-copy" { 5 } else { 0 };
        assert_eq!(world.log.account(0..sent), (0, again), "{what}: frames lost, frames repeated");
        // Worker threads may be faster than what is said.
        back.is_live();
        assert_eq!(world.log.get(Word::SaidTwice), again, "{what}: what the successor says of that");
        assert_eq!((world.log.get(Word::Damaged), world.log.get(Word::Reordered)), (0, 0), "{what}");
        assert_eq!(guest.back_state(), XenbusState::Connected);
        guest.close();
        world.end(back);
    }
}

fn rx_goes_on_after_a_crash_at_each_point() {
    // Pages that a back lent go with it, however it ends; nothing else does.
    for ((ordinary, staged), long, point) in cases().chain(cases_of(("guest-copy", false))) {
        let world = World::new();
        world.log.set(Word::Size, if long { 5000 } else { 900 });
        world.log.set(Word::Limit, 600);
        let mut back = world.back(ordinary, Some(format!("{point}:3")));
        let mut guest = ModelGuest::connect_by(&world, (ordinary, staged));
        let (mut came, mut deaths) = (Vec::new(), 0);
        while came.last() != Some(&599) {
            guest.post();
            came.extend(guest.received());
            if back.is_dead() {
                deaths += 1;
                back = world.back(ordinary, None);
            }
        }
        let what = format!("{ordinary}, staged {staged}, long {long}, {point}");
        // Before the death and behind it, while there was room.
        assert_eq!(guest.ringed()[1] > 60, ordinary == "data-ring", "{what}: {} in it", guest.ringed()[1]);
        assert_eq!(deaths, 1, "{what}");
        assert!(came.is_sorted_by(|a, b| a < b), "{what}: a frame came twice or late: {came:?}");
        // Taken from the port and not yet meant for the ring: R7.
        let lost = if point == "after-copy" { BURST as usize } else { 0 };
        back.is_live();
        let [lent, gone] = guest.lent();
        assert_eq!(lent > 60, ordinary == "guest-copy", "{what}: {lent} in lent pages");
        let missing = (0..600).filter(|seq| !came.contains(seq)).count();
        assert_eq!(missing, lost + gone as usize, "{what}: frames lost");
        assert_eq!(world.log.get(Word::SaidLost), lost as u32, "{what}: what the successor says of that");
        assert_eq!(guest.back_state(), XenbusState::Connected);
        guest.close();
        world.end(back);
    }
}

fn cases() -> impl Iterator<Item = ((&'static str, bool), bool, &'static str)> {
    PATHS.into_iter().flat_map(cases_of)
}

fn cases_of(path: (&'static str, bool)) -> impl Iterator<Item = ((&'static str, bool), bool, &'static str)> {
    [false, true].into_iter().flat_map(move |long| POINTS.into_iter().map(move |point| (path, long, point)))
}

fn an_orderly_stop_loses_and_repeats_nothing() {
    for (ordinary, staged) in PATHS {
        let world = World::new();
        world.log.set(Word::Size, 900);
        let mut back = world.back(ordinary, None);
        let mut guest = ModelGuest::connect_by(&world, (ordinary, staged));
        let (mut sent, mut answered, mut came) = (0, 0, 0..0);
        // Numbers begin at 0, and each is the next: nothing is missing, nothing comes twice.
        let receive = |guest: &mut ModelGuest, came: &mut std::ops::Range<u64>| {
            for seq in guest.received() {
                assert_eq!(seq, came.end, "frames lost or repeated on the way to the guest");
                came.end += 1;
            }
        };
        for round in 0..6 {
            // More than there are slots: a batch waits in the back's hands, and the rest behind its
            // port.
            guest.post();
            let limit = came.end + guest.slots() + 44;
            world.log.set(Word::Limit, limit as u32);
            for _ in 0..20 {
                // Not before the answers: some are in flight when the back stops.
                while guest.tx.free() < 30 || sent - answered > 60 {
                    answered += guest.answered();
                }
                guest.send(sent, 10, round % 2 == 1);
                sent += 10;
            }
            while came.end < limit - 44 {
                receive(&mut guest, &mut came);
            }
            guest.post_unheard();
            back.stop();
            back = world.back(ordinary, None);
            while came.end < limit {
                receive(&mut guest, &mut came);
            }
        }
        while answered < sent {
            answered += guest.answered();
        }
        guest.tx.finish().unwrap();
        assert_eq!(world.log.account(0..sent), (0, 0), "frames lost, frames repeated");
        assert_eq!((world.log.get(Word::Damaged), world.log.get(Word::Reordered)), (0, 0));
        assert_eq!(world.state.get(Word::Lost), 0);
        back.is_live();
        let said = [Word::SaidTwice, Word::SaidLost].map(|word| world.log.get(word));
        assert_eq!(said, [0, 0], "what successors say of that");
        guest.close();
        world.end(back);
    }
}

/// Three queues, each with its own rings, pages and channels; the back dies in a batch of one of
/// them.
fn queues_are_taken_up_one_by_one() {
    let unstaged = FrontConfig { staging: Buffers::NONE, ..FrontConfig::default() };
    for (ordinary, config) in [("copy", FrontConfig::default()), ("copy", unstaged), ("map", unstaged)] {
        for (split_channels, point) in [true, false].into_iter().flat_map(|s| POINTS.map(|p| (s, p))) {
            let world = World::new();
            world.log.set(Word::Size, 900);
            world.log.set(Word::Limit, 600);
            let mut back = world.back(ordinary, Some(format!("{point}:11")));
            let config = FrontConfig { queues: 3, split_channels, ..config };
            let mut traffic = Traffic::new(world.guest(), config, false, 0..600);
            let mut deaths = 0;
            while world.log.account(0..600).0 > 0 || world.log.get(Word::Next) < 600 {
                traffic.step(true);
                if back.is_dead() {
                    deaths += 1;
                    back = world.back(ordinary, None);
                }
            }
            let what = format!("{ordinary}, staged {}, {point}", config.staging.tx.is_some());
            assert_eq!(deaths, 1, "{what}");
            back.is_live();
            // All were made, and are on their way by some queue or lost. The watchdog reports
            // frames that never come.
            while traffic.missing(0..600) > u64::from(world.log.get(Word::SaidLost)) {
                traffic.step(true);
            }
            let again = world.log.get(Word::Again);
            let lost = traffic.missing(0..600);
            // One batch of one queue, and only where no one knew of it; of each queue that has a
            // worker to itself.
            let several = std::env::var_os(world::WORKERS).is_some();
            let at_most = if several { 3 * 64 } else { 64 };
            assert!(
                again == 0 || (several || point == "after-copy") && again <= at_most,
                "{what}: {again} twice"
            );
            // Frames that each queue had from its port.
            assert!(lost <= u64::from(3 * BURST), "{what}: {lost} lost");
            let said = [Word::SaidTwice, Word::SaidLost].map(|word| u64::from(world.log.get(word)));
            // Another worker may have died between its journal's entry and the frames.
            let is_said = if several { said[0] >= again.into() } else { said[0] == u64::from(again) };
            assert!(
                is_said && said[1] == lost,
                "{what}: {again} twice, {lost} lost; the successor says {said:?}"
            );
            assert_eq!((world.log.get(Word::Damaged), world.log.get(Word::Reordered)), (0, 0), "{what}");
            assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
            drop(traffic);
            world.end(back);
        }
    }
}
