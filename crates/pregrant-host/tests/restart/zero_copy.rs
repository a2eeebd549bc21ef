//! A guest that sends received buffers on, by their ids, while its back dies: the next one finds in
//! the requests what was in them.

use crate::POINTS;
use crate::back::BURST;
use crate::traffic::Traffic;
use crate::world::{Word, World};
use pregrant::net::front::FrontConfig;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant_test_machine::one_by_one::alive;
use std::time::Duration;

const FRAMES: u64 = 400;

pub fn buffers_that_are_sent_on_outlive_backs_that_die_at_each_point() {
    // Batches of RX and of TX are counted together: early ones and late ones of either.
    for (point, batch) in POINTS.into_iter().flat_map(|point| [2, 5, 8, 21].map(|batch| (point, batch))) {
        for (size, len) in [(64, 2048), (1514, 2048), (5000, 65535), (65535, 65535)] {
            alive();
            let len = DataLen::new(len);
            let staging = Buffers { sent_on: true, ..Buffers::of(len, len) };
            let config = FrontConfig { staging, ..FrontConfig::default() };
            let what = format!("{size} bytes, {point} of batch {batch}");
            let world = World::new();
            world.log.set(Word::Size, size);
            // One that serves its queues itself: its progress is known then.
            let mut back = world.back_of("copy", Some(format!("{point}:{batch}")), None);
            let mut traffic = Traffic::new(world.guest(), config, false, 0..0);
            (traffic.size, traffic.sends_on) = (Some(size as usize), true);
            assert!(traffic.front.vif().queue(0).unwrap().tx().sends_on());
            world.log.set(Word::Limit, FRAMES as u32);
            let all = traffic.front.vif().queue(0).unwrap().rx().buffers().holds().iter().sum::<usize>();
            let mut deaths = 0;
            while u64::from(world.log.get(Word::Next)) < FRAMES || deaths == 0 {
                traffic.step(true);
                assert_eq!(
                    traffic.front.vif().queue(0).unwrap().rx().buffers().holds().iter().sum::<usize>(),
                    all,
                    "{what}"
                );
                if back.is_dead() {
                    deaths += 1;
                    back = world.back_of("copy", None, None);
                }
            }
            back.is_live();
            let [twice, lost] = [Word::SaidTwice, Word::SaidLost].map(|word| u64::from(world.log.get(word)));
            let through = |traffic: &Traffic| {
                traffic.missing(0..FRAMES) <= lost && traffic.front.vif().in_flight(0) == 0
            };
            while !through(&traffic) {
                traffic.step(true);
            }
            assert_eq!(deaths, 1, "{what}");
            assert!(lost <= BURST.into(), "{what}: {lost} lost");
            assert_eq!(traffic.missing(0..FRAMES), lost, "{what}: frames for the guest");
            // Each frame was sent on, in the buffer that it came in, and arrived.
            let stats = traffic.front.vif().queue(0).unwrap().hook_stats();
            assert_eq!((stats.sent_on, stats.sent_copied, stats.unsent), (FRAMES - lost, 0, 0), "{what}");
            let account = world.log.account(0..FRAMES);
            assert_eq!((account.0 as u64, u64::from(account.1)), (lost, twice), "{what}: lost, repeated");
            assert_eq!((world.log.get(Word::Damaged), world.log.get(Word::Reordered)), (0, 0), "{what}");
            assert_eq!(
                traffic.front.vif().queue(0).unwrap().rx().buffers().holds()[2],
                0,
                "{what}: all are RX's again"
            );
            assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
            drop(traffic);
            world.end(back);
        }
    }
}
