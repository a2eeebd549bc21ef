//! A guest's real front with numbered frames both ways, on all of its queues.

use pregrant::net::front::FrontConfig;
use pregrant::port::{Arena, Offload};
use pregrant::xenstore::Client;
use pregrant_host::drivers::Frontend;
use pregrant_host::loopback::Loopback;
use pregrant_host::ports::sequence;
use pregrant_host::xenstored::UnixTransport;
use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

pub struct Traffic {
    pub front: Frontend<Loopback, UnixTransport>,
    /// Number of the next frame to send, and where they end.
    pub numbers: Range<u64>,
    /// Numbers of the frames that came.
    came: HashSet<u64>,
    /// By queue, one more than the highest number that came.
    next: Vec<u64>,
    burst: Arena,
    /// How long a step sleeps at most: its owner has other things to look after. None: until it is woken.
    pub looks_up: Option<Duration>,
}

impl Traffic {
    pub fn new(
        (platform, xs): (Loopback, Client<UnixTransport>),
        config: FrontConfig,
        reconnect: bool,
        numbers: Range<u64>,
    ) -> Self {
        let front = Frontend::new(platform, xs, 0, config, reconnect).unwrap();
        let next = vec![0; config.queues as usize];
        let mut traffic = Self {
            front,
            numbers,
            came: HashSet::new(),
            next,
            burst: Arena::new(),
            looks_up: Some(Duration::from_millis(1)),
        };
        assert!(traffic.front.connect(Duration::from_secs(60)).unwrap());
        traffic
    }

    /// How many of these numbers did not come.
    pub fn missing(&self, numbers: Range<u64>) -> u64 {
        numbers.filter(|seq| !self.came.contains(seq)).count() as u64
    }

    /// One more than the highest number that came.
    pub fn next(&self) -> u64 {
        self.next.iter().copied().max().unwrap()
    }

    /// Sends and receives what there is, on each queue; sleeps, for [`looks_up`](Self::looks_up) at most, when there is nothing.
    pub fn step(&mut self, send: bool) {
        let mut moved = false;
        for i in 0..self.front.vif().nr_queues() {
            self.burst.clear();
            let from = self.numbers.start;
            for seq in (from..self.numbers.end).take(if send { 8 } else { 0 }) {
                let mut frame = vec![0; if seq % 7 == 0 { 5000 } else { 200 }];
                sequence::fill(&mut frame, seq);
                assert!(self.burst.push(&frame, Offload::default()));
            }
            let sent = self.front.send(i, &self.burst.burst()).unwrap();
            self.numbers.start += sent as u64;
            moved |= sent > 0 || self.front.reclaim(i, 1).unwrap() > 0;
            self.burst.clear();
            moved |= self.front.recv(i, &mut self.burst, 1).unwrap() > 0;
            for (frame, _) in self.burst.burst().iter() {
                let (seq, next) = (sequence::check(frame).unwrap(), &mut self.next[i]);
                assert!(seq >= *next, "queue {i}: frame {seq} came after {}: late", *next - 1);
                *next = (seq + 1).max(*next);
                assert!(self.came.insert(seq), "frame {seq} came twice, the second time on queue {i}");
            }
        }
        if !moved {
            self.front.sleep(true, self.looks_up).unwrap();
        }
    }

    /// As [`step`](Self::step), and follows the back's state.
    pub fn step_and_follow(&mut self, send: bool) {
        self.front.control(Duration::ZERO).unwrap();
        self.step(send);
    }
}
