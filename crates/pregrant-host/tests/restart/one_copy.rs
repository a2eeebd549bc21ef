//! Frames that go zero-copy from one guest to another through the back's switch, while the back
//! dies: they are in the sender's pages and on its ring, so the next back finds them there.
//!
//! ```text
//!   sender (7) --numbered frames, each above the threshold--> switch --copied once--> receiver (8)
//!              <--------------- a short one now and then: where the receiver is ------'
//! ```
//! A sender has its answer when the receiver has the bytes: a death loses no frame that is lent,
//! and repeats those alone that its successor names.

use crate::POINTS;
use crate::world::{Back, Word, World};
use pregrant::DomId;
use pregrant::net::front::FrontConfig;
use pregrant::net::headers::MacAddr;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::port::{Arena, BURST_FRAMES, Offload};
use pregrant_host::UnixTransport;
use pregrant_host::drivers::Frontend;
use pregrant_host::ports::sequence::{self, Head};
use pregrant_loopback::{DomainSpec, Loopback};
use pregrant_test_machine::one_by_one::alive;
use std::time::Duration;

const SENDER: DomId = DomId(7);
const RECEIVER: DomId = DomId(8);
/// More than the batches before the death, and some by the next back.
const FRAMES: u64 = 1000;
/// Frames that are shown together: they fill most of the memory that the switch gives for them, or
/// it would copy them.
const TOGETHER: u64 = 3;
/// Turns from one short frame of the receiver's to the next.
const HELLO: u32 = 16;
/// Batches of answers of either guest, counted after those that a port receives before it gets
/// zero-copy frames again.
const DIES_IN: [u32; 2] = [500, 501];

/// A guest at the switch.
struct Station {
    front: Frontend<Loopback, UnixTransport>,
    burst: Arena,
    head: Head,
}

fn mac(of: DomId) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, of.0 as u8])
}

impl Station {
    fn new(world: &mut World, [own, peer]: [DomId; 2], config: FrontConfig) -> Self {
        world.add(DomainSpec::guest(own));
        let (platform, xs) = world.attach(own);
        let mut front = Frontend::new(platform, xs, 0, config, false).unwrap();
        assert!(front.connect(Duration::from_secs(60)).unwrap());
        Self { front, burst: Arena::new(), head: Head::new(mac(peer), mac(own)) }
    }

    /// Sends frames of these numbers, in one batch.
    fn send(&mut self, numbers: std::ops::Range<u64>, len: usize) -> u64 {
        self.burst.clear();
        for number in numbers {
            let mut frame = vec![0; len];
            self.head.fill(&mut frame, number);
            assert!(self.burst.push(&frame, Offload::default()));
        }
        self.front.send(0, &self.burst.burst()).unwrap() as u64
    }

    /// Whether all that it sent is answered.
    fn is_answered(&mut self) -> bool {
        self.front.reclaim(0, 1).unwrap();
        self.front.vif().in_flight(0) == 0
    }

    /// Numbers of the received frames.
    fn recv(&mut self) -> Vec<u64> {
        self.burst.clear();
        self.front.recv(0, &mut self.burst, 1).unwrap();
        self.burst.burst().iter().map(|(frame, _)| sequence::check(frame).expect("a whole frame")).collect()
    }
}

/// Number of times each frame arrived.
struct Arrivals {
    times: Vec<u32>,
    next: u64,
}

impl Arrivals {
    fn note(&mut self, number: u64) {
        self.times[number as usize] += 1;
        self.next = self.next.max(number + 1);
    }
}

pub fn lent_frames_outlive_backs_that_die_at_each_point() {
    let len = DataLen::new(65535);
    let staged = FrontConfig { staging: Buffers::of(len, len), ..FrontConfig::default() };
    let persistent = FrontConfig { staging: Buffers::NONE, persistent: true, ..FrontConfig::default() };
    for (point, batch) in POINTS.into_iter().flat_map(|point| DIES_IN.map(|batch| (point, batch))) {
        // Three frames of 9000 bytes leave gaps in the switch's memory, for they begin pages. With
        // workers the sender's may be ahead, and frames wait for the receiver: of 60000 bytes more
        // than a port holds.
        for (name, config, len, workers) in [
            ("staging", staged, 8000, None),
            ("staging", staged, 8000, Some("2")),
            ("staging", staged, 60_000, None),
            ("persistent", persistent, 9000, None),
            ("persistent", persistent, 9000, Some("2")),
        ] {
            alive();
            let what = format!("{name}, {len} bytes, {point} of batch {batch}, {workers:?} workers");
            play(config, len, &format!("{point}:{batch}"), workers, &what);
        }
    }
}

fn play(config: FrontConfig, len: usize, crash: &str, workers: Option<&str>, what: &str) {
    let mut world = World::empty();
    // One that serves its queues itself: its answers are in the order of what it does. Its
    // successor may have workers.
    let mut back = world.back_of("copy", Some(crash.into()), None);
    let mut sender = Station::new(&mut world, [SENDER, RECEIVER], config);
    let mut receiver = Station::new(&mut world, [RECEIVER, SENDER], config);
    let mut arrivals = Arrivals { times: vec![0; FRAMES as usize], next: 0 };
    let (mut sent, mut deaths, mut lent, mut turns) = (0, 0, 0, 0);
    while arrivals.next < FRAMES {
        sender.recv();
        turns += 1;
        if turns % HELLO == 1 && receiver.is_answered() {
            receiver.send(0..1, 64);
            // It counts when it is asked.
            world.state.add(Word::Asked, 1);
        }
        if sender.is_answered() && sent < FRAMES && sent <= arrivals.next + TOGETHER {
            sent += sender.send(sent..FRAMES.min(sent + TOGETHER), len);
        }
        receiver.recv().into_iter().for_each(|number| arrivals.note(number));
        if back.is_dead() {
            deaths += 1;
            lent = world.state.get(Word::Lent);
            back = world.back_of("copy", None, workers.map(String::from));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    end(world, back, [sender, receiver], &mut arrivals);
    assert_eq!(deaths, 1, "{what}");
    let twice: u32 = arrivals.times.iter().map(|times| times.saturating_sub(1)).sum();
    let lost = arrivals.times.iter().filter(|times| **times == 0).count();
    assert!(lent > TOGETHER as u32, "{what}: {lent} lent before it died");
    assert_eq!(lost, 0, "{what}: frames lost");
    assert!(twice <= BURST_FRAMES as u32, "{what}: {twice} twice");
}

/// Both guests close; the last frames are counted, too.
fn end(world: World, back: Back, stations: [Station; 2], arrivals: &mut Arrivals) {
    let [mut sender, mut receiver] = stations;
    while !sender.is_answered() {
        receiver.recv().into_iter().for_each(|number| arrivals.note(number));
    }
    for mut station in [sender, receiver] {
        assert!(station.front.close(Duration::from_secs(60)).unwrap());
    }
    world.end(back);
}
