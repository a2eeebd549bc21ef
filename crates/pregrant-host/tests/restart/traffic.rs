//! A guest's real front with numbered frames both ways, on all of its queues; from private memory,
//! or from pages of the guest's own.

use crate::frames;
use pregrant::PAGE_SIZE;
use pregrant::net::front::{Diverted, FrontConfig, HeadedFrame, HookAction, HookFrame};
use pregrant::platform::{GrantPool, Platform};
use pregrant::port::{Arena, BURST_FRAMES, FrameDesc};
use pregrant::shm::SharedBytes;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::Frontend;
use pregrant_loopback::Loopback;
use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

pub struct Traffic {
    pub front: Frontend<Loopback, UnixTransport>,
    /// Number of the next frame to send, and where they end.
    pub numbers: Range<u64>,
    /// Numbers of the frames that came.
    came: HashSet<u64>,
    /// For each queue, one more than the highest number received.
    next: Vec<u64>,
    burst: Arena,
    diverted: Diverted,
    /// How long its frames are; None: some are short and some long.
    pub size: Option<usize>,
    /// It makes no frames: received frames are sent on by their hook.
    pub sends_on: bool,
    /// Frames that the guest's own memory has room for, each in pages of its own; 0: there is none.
    own_places: usize,
    place: usize,
    /// How long a step sleeps at most: its owner has other things to do. None: until it is woken.
    pub sleep_most: Option<Duration>,
}

impl Traffic {
    pub fn new(
        guest: (Loopback, Client<UnixTransport>),
        config: FrontConfig,
        reconnect: bool,
        numbers: Range<u64>,
    ) -> Self {
        Self::with_own_pages(guest, config, reconnect, numbers, (0, 0))
    }

    /// The same with the guest's own memory for this many frames of this length, from which they
    /// are sent.
    pub fn with_own_pages(
        (platform, xs): (Loopback, Client<UnixTransport>),
        config: FrontConfig,
        reconnect: bool,
        numbers: Range<u64>,
        (own_places, len): (usize, usize),
    ) -> Self {
        let mut front = Frontend::new(platform, xs, 0, config, reconnect).unwrap();
        if own_places > 0 {
            let (platform, vif) = front.driver();
            let pages = own_places * frames::slots(len);
            let memory = platform.grants().per_frame().unwrap().pages(pages).unwrap();
            assert!(vif.use_memory(memory, pages).is_ok());
        }
        let next = vec![0; config.queues as usize];
        let mut traffic = Self {
            front,
            numbers,
            came: HashSet::new(),
            next,
            burst: Arena::new(),
            diverted: Diverted::new(),
            size: None,
            sends_on: false,
            own_places,
            place: 0,
            sleep_most: Some(Duration::from_millis(1)),
        };
        assert!(traffic.front.connect(Duration::from_secs(60)).unwrap());
        traffic
    }

    /// How many of these numbers did not come.
    pub fn missing(&self, numbers: Range<u64>) -> u64 {
        numbers.filter(|seq| !self.came.contains(seq)).count() as u64
    }

    /// One more than the highest number received.
    pub fn next(&self) -> u64 {
        self.next.iter().copied().max().unwrap()
    }

    /// Sends and receives what there is, on each queue; sleeps, for
    /// [`sleep_most`](Self::sleep_most) at most, when there is nothing.
    pub fn step(&mut self, send: bool) {
        let mut moved = false;
        for i in 0..self.front.vif().nr_queues() {
            moved |= if self.sends_on { self.send_on(i) } else { self.send_and_receive(i, send) };
        }
        if !moved {
            self.front.sleep(true, self.sleep_most).unwrap();
        }
    }

    fn send_and_receive(&mut self, i: usize, send: bool) -> bool {
        let sent = if self.own_places > 0 && send { self.send_own(i) } else { self.send(i, send) };
        self.numbers.start += sent as u64;
        let mut moved = sent > 0 || self.front.reclaim(i, 1).unwrap() > 0;
        self.burst.clear();
        moved |= self.front.recv(i, &mut self.burst, 1).unwrap() > 0;
        for (frame, offload) in self.burst.burst().iter() {
            note(i, frames::check(frame, offload).unwrap(), &mut self.next, &mut self.came);
        }
        moved
    }

    /// From places that no request names; each second burst with heads from elsewhere.
    fn send_own(&mut self, i: usize) -> usize {
        const HEAD: usize = 14;
        let len = self.size.expect("frames of one length");
        let (platform, vif) = self.front.driver();
        let (pages, mut made) = (frames::slots(len), Vec::new());
        for seq in self.numbers.clone().take(self.own_places.min(8)) {
            let first = (self.place + made.len()) % self.own_places * pages;
            if (first..first + pages).any(|page| vif.is_held(page)) {
                break;
            }
            let (frame, offload) = frames::make(seq, len);
            assert!(vif.memory().unwrap().copy_in(first * PAGE_SIZE, &frame));
            made.push((frame, FrameDesc { at: (first * PAGE_SIZE) as u32, len: len as u32, offload }));
        }
        let sent = if self.numbers.start % 16 < 8 {
            let whole: Vec<_> = made.iter().map(|(_, desc)| *desc).collect();
            vif.send_own(platform, i, &whole)
        } else {
            let behind = |desc: &FrameDesc| FrameDesc {
                at: desc.at + HEAD as u32,
                len: desc.len - HEAD as u32,
                ..*desc
            };
            let headed: Vec<_> = made
                .iter()
                .map(|(frame, desc)| HeadedFrame { head: &frame[..HEAD], payload: behind(desc) })
                .collect();
            vif.send_headed(platform, i, &headed)
        };
        let sent = sent.unwrap();
        self.place = (self.place + sent) % self.own_places;
        sent
    }

    fn send(&mut self, i: usize, send: bool) -> usize {
        self.burst.clear();
        let from = self.numbers.start;
        for seq in (from..self.numbers.end).take(if send { 8 } else { 0 }) {
            if !self.burst.has_room() {
                break;
            }
            let (frame, offload) =
                frames::make(seq, self.size.unwrap_or(if seq % 7 == 0 { 5000 } else { 200 }));
            assert!(self.burst.push(&frame, offload));
        }
        self.front.send(i, &self.burst.burst()).unwrap()
    }

    fn send_on(&mut self, i: usize) -> bool {
        let slots = frames::slots(self.size.unwrap_or(5000)) as u32 + 1;
        let most = (self.front.vif().room(i) / slots).min(BURST_FRAMES as u32);
        let Self { front, burst, diverted, next, came, .. } = self;
        burst.clear();
        let hook = |frame: &mut HookFrame| {
            note(i, frames::number(frame.head()), next, came);
            HookAction::Tx
        };
        let seen = if most > 0 {
            front.recv_hooked(i, burst, diverted, (1, most as usize), hook).unwrap()
        } else {
            0
        };
        seen > 0 || front.reclaim(i, 1).unwrap() > 0
    }

    /// What it knows of the received frames, for another front in its place.
    pub fn end(self) -> Came {
        let Self { came, next, .. } = self;
        Came { came, next }
    }

    /// Goes on with what another one knew.
    pub fn go_on(&mut self, Came { came, next }: Came) {
        (self.came, self.next) = (came, next);
    }

    /// Like [`step`](Self::step), and also follows the back's state.
    pub fn step_and_follow(&mut self, send: bool) {
        self.front.control(Duration::ZERO).unwrap();
        self.step(send);
    }
}

/// Frames that came.
pub struct Came {
    came: HashSet<u64>,
    next: Vec<u64>,
}

fn note(i: usize, seq: u64, next: &mut [u64], came: &mut HashSet<u64>) {
    assert!(seq >= next[i], "queue {i}: frame {seq} came after {}: late", next[i] - 1);
    next[i] = seq + 1;
    assert!(came.insert(seq), "frame {seq} came twice, the second time on queue {i}");
}
