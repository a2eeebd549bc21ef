//! A guest's real front with numbered frames both ways, on all of its queues.

use pregrant::net::front::Wishes;
use pregrant::platform::{Events, Platform, ReadySet};
use pregrant::port::{Arena, Offload};
use pregrant::xenstore::Client;
use pregrant_host::drivers::Frontend;
use pregrant_host::loopback::Loopback;
use pregrant_host::ports::sequence;
use pregrant_host::xenstored::UnixTransport;
use std::ops::Range;
use std::time::Duration;

pub struct Traffic {
    pub front: Frontend<Loopback, UnixTransport>,
    /// Number of the next frame to send, and where they end.
    pub numbers: Range<u64>,
    /// Frames that came.
    pub came: u64,
    /// By queue, one more than the highest number that came.
    next: Vec<u64>,
    burst: Arena,
}

impl Traffic {
    pub fn new(
        (platform, xs): (Loopback, Client<UnixTransport>),
        wishes: Wishes,
        reconnect: bool,
        numbers: Range<u64>,
    ) -> Self {
        let front = Frontend::new(platform, xs, 0, wishes, reconnect).unwrap();
        let next = vec![0; wishes.queues as usize];
        let mut traffic = Self { front, numbers, came: 0, next, burst: Arena::new() };
        assert!(traffic.front.connect(Duration::from_secs(60)).unwrap());
        traffic
    }

    /// One more than the highest number that came.
    pub fn next(&self) -> u64 {
        self.next.iter().copied().max().unwrap()
    }

    /// Sends and receives what there is, on each queue; sleeps, for a short time at most, when there is nothing.
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
                assert!(seq >= *next, "queue {i}: frame {seq} came after {}: twice or late", *next - 1);
                *next = seq + 1;
                self.came += 1;
            }
        }
        if !moved && !self.front.arm(true).unwrap() {
            let mut ready = ReadySet::default();
            self.front.platform().events().wait(&mut ready, Some(Duration::from_millis(1)));
        }
    }

    /// As [`step`](Self::step), and follows the back's state.
    pub fn step_and_follow(&mut self, send: bool) {
        self.front.control(Duration::ZERO).unwrap();
        self.step(send);
    }
}
