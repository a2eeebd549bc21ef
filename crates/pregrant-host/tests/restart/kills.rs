//! Both directions at once between our own front and backs that are killed at random moments. The seed is printed;
//! `PREGRANT_SEED` plays one again.

use crate::world::{Word, World};
use pregrant::net::front::Wishes;
use pregrant::platform::{Events, Platform, ReadySet};
use pregrant::port::{Arena, BURST_FRAMES, Offload};
use pregrant::xenbus::XenbusState;
use pregrant_host::drivers::Frontend;
use pregrant_host::loopback::Loopback;
use pregrant_host::ports::sequence;
use pregrant_host::xenstored::UnixTransport;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const KILLS: u32 = 20;

struct Traffic {
    front: Frontend<Loopback, UnixTransport>,
    sent: u64,
    came: u64,
    /// One more than the highest number that came.
    next: u64,
}

impl Traffic {
    /// Sends and receives what there is; sleeps, for a short time at most, when there is nothing.
    fn step(&mut self, send: bool) {
        let mut burst = Arena::new();
        if send {
            for seq in self.sent..self.sent + 8 {
                let mut frame = vec![0; if seq % 7 == 0 { 5000 } else { 200 }];
                sequence::fill(&mut frame, seq);
                assert!(burst.push(&frame, Offload::default()));
            }
        }
        let sent = self.front.send(0, &burst.burst()).unwrap();
        self.sent += sent as u64;
        let reclaimed = self.front.reclaim(0, 1).unwrap();
        let mut came = Arena::new();
        let n = self.front.recv(0, &mut came, 1).unwrap();
        for (frame, _) in came.burst().iter() {
            let seq = sequence::check(frame).unwrap();
            assert!(seq >= self.next, "frame {seq} came after {}: twice or late", self.next - 1);
            self.next = seq + 1;
            self.came += 1;
        }
        if sent == 0 && reclaimed == 0 && n == 0 && !self.front.arm(true).unwrap() {
            let mut ready = ReadySet::default();
            self.front.platform().events().wait(&mut ready, Some(Duration::from_millis(1)));
        }
    }
}

pub fn backs_are_killed_at_any_moment() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed: u64 = std::env::var("PREGRANT_SEED").map_or_else(|_| now(), |s| s.parse().unwrap());
    println!("PREGRANT_SEED={seed}");
    let mut dice = seed | 1;
    let mut roll = |below: u64| {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (dice >> 33) % below
    };
    let unstaged = Wishes { tx_data_len: None, rx_data_len: None, ..Wishes::default() };
    for (ordinary, wishes) in [("copy", Wishes::default()), ("copy", unstaged), ("map", unstaged)] {
        let world = World::new();
        world.log.set(Word::Size, 600);
        world.log.set(Word::Limit, u32::MAX);
        let mut back = world.back(ordinary, None);
        let (guest, xs) = world.guest();
        let mut front = Frontend::new(guest, xs, 0, wishes, false).unwrap();
        assert!(front.connect(Duration::from_secs(60)).unwrap());
        let mut traffic = Traffic { front, sent: 0, came: 0, next: 0 };
        let mut pauses = Vec::new();
        for _ in 0..KILLS {
            let until = Instant::now() + Duration::from_micros(1000 + roll(60_000));
            while Instant::now() < until {
                traffic.step(true);
            }
            back.kill();
            pauses.extend(Some(world.log.get(Word::PauseUs)).filter(|us| *us > 0));
            world.log.set(Word::PauseUs, 0);
            back = world.back(ordinary, None);
        }
        // Everything that is on the way comes to its end.
        let before = (traffic.sent, traffic.came);
        while traffic.sent < before.0 + 1000 || traffic.came < before.1 + 1000 {
            traffic.step(true);
        }
        world.log.set(Word::Limit, 0);
        while world.log.account(traffic.sent).0 > 0 {
            traffic.step(false);
        }
        let made = u64::from(world.log.get(Word::Next));
        while traffic.next < made {
            traffic.step(false);
        }
        let (missing, again) = world.log.account(traffic.sent);
        let lost = made - traffic.came;
        pauses.sort_unstable();
        println!(
            "  {ordinary}, staged {}: {} frames sent, {again} of them twice; {made} frames for the guest, {lost} lost; \
             attach to first frame in us: {pauses:?}",
            wishes.tx_data_len.is_some(),
            traffic.sent
        );
        assert_eq!(missing, 0, "frames of the guest are lost");
        assert!(again <= BURST_FRAMES as u32 * KILLS, "{again} frames twice after {KILLS} kills");
        assert!(lost <= BURST_FRAMES as u64 * u64::from(KILLS), "{lost} frames lost after {KILLS} kills");
        assert_eq!((world.log.get(Word::Damaged), world.log.get(Word::Reordered)), (0, 0));
        assert_eq!(traffic.front.states().unwrap(), (XenbusState::Connected, XenbusState::Connected));
        assert!(traffic.front.close(Duration::from_secs(60)).unwrap());
        drop(traffic);
        world.end(back);
    }
}
