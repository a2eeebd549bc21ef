//! Guests at one switch, each on a machine of its own, with real queues at both ends.
//!
//! ```text
//!   Sender: TxFront --ring--> TxQueue --SwitchPort--> switch --SwitchPort--> RxQueue --ring--> RxFront: Receiver
//! ```

use pregrant::net::back::{Polled, SharedControl};
use pregrant::net::front::Granting;
use pregrant::net::path::{AnyFrontPath, FrontPath};
use pregrant::port::{Arena, FramePort, Offload, Offloads};
use pregrant::shm::SharedBytes;
use pregrant_host::ports::switch::{Switch, SwitchPort};
use pregrant_testkit::two_domains::{Frame, GUEST, RxEnds, SLOTS, TwoDomains, TxEnds, Way};

pub const ALL: Offloads = Offloads { csum: true, gso: true };

pub fn mac(guest: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, guest]
}

/// A frame of `len` bytes that no other is like: of no IP.
pub fn frame(from: u8, to: u8, len: usize, seed: u32) -> Frame {
    let head = [&mac(to)[..], &mac(from), &[0x88, 0xB5]].concat();
    let mut x = seed.wrapping_mul(2_654_435_761) | 1;
    let noise = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    });
    (head.into_iter().chain(noise).take(len).collect(), Offload::NONE)
}

/// Teaches the switch that this guest is behind this port.
pub fn teach(port: &mut SwitchPort, guest: u8) {
    let mut arena = Arena::new();
    assert!(arena.push(&frame(guest, 0xFE, 60, 0).0, Offload::NONE));
    port.tx_burst(&arena.burst());
}

pub struct Sender {
    pub domains: TwoDomains,
    pub ends: TxEnds,
    pub port: SwitchPort,
    arena: Arena,
    burst: Arena,
}

impl Sender {
    pub fn new(switch: &Switch, guest: u8, way: Way) -> Self {
        let domains = TwoDomains::new();
        let ends = domains.tx(way, Granting::PerFrame, 0);
        let mut port = switch.add_port(ALL).unwrap();
        teach(&mut port, guest);
        Self { domains, ends, port, arena: Arena::new(), burst: Arena::new() }
    }

    /// Puts frames on its ring; how many had room.
    pub fn send(&mut self, frames: &[Frame]) -> usize {
        let mut sent = 0;
        loop {
            self.burst.clear();
            let fits = |(bytes, offload): &&Frame| self.burst.push(bytes, *offload);
            if frames[sent..].iter().take_while(fits).count() == 0 {
                return sent;
            }
            let n = self
                .ends
                .front
                .send(&self.domains.guest, &self.ends.front_chan, &self.burst.burst())
                .unwrap();
            if n == 0 {
                return sent;
            }
            sent += n;
        }
    }

    /// Runs one turn of its back, and then its own.
    pub fn turn(&mut self) -> bool {
        let Self { domains, ends, port, arena, .. } = self;
        let control = SharedControl::default();
        let polled = ends.back.poll(&domains.host, GUEST, &ends.back_chan, port, arena, &control).unwrap();
        ends.front.reclaim(&domains.guest, 1).unwrap();
        polled == Polled::More
    }

    /// Writes this into each of its staging buffers of a page.
    pub fn overwrite(&mut self, bytes: &[u8]) {
        let paths = self.ends.front.chain().paths().iter();
        let area =
            paths.filter_map(|path| if let AnyFrontPath::Staging(area) = path { Some(area) } else { None });
        for area in area {
            for id in 0..SLOTS as u16 {
                assert!(area.bytes().copy_in(area.start(id), bytes));
            }
        }
    }

    /// Number of requests without an answer.
    pub fn in_flight(&self) -> u32 {
        self.ends.front.in_flight()
    }

    /// Closes the queue, and checks that nothing stays granted or mapped.
    pub fn close(self) -> SwitchPort {
        self.ends.close(&self.domains);
        self.domains.assert_empty();
        self.port
    }
}

pub struct Receiver {
    pub domains: TwoDomains,
    pub ends: RxEnds,
    pub port: SwitchPort,
    arena: Arena,
    pub got: Vec<Frame>,
}

impl Receiver {
    pub fn new(switch: &Switch, guest: u8, way: Way, caps: Offloads) -> Self {
        let domains = TwoDomains::new();
        let ends = domains.rx(way, Granting::PerFrame, 0, false);
        let mut port = switch.add_port(caps).unwrap();
        teach(&mut port, guest);
        Self { domains, ends, port, arena: Arena::new(), got: Vec::new() }
    }

    /// Posts what slots it has.
    pub fn post(&mut self) {
        self.ends.front.post(&self.domains.guest, &self.ends.front_chan).unwrap();
    }

    pub fn poll(&mut self) -> bool {
        let Self { domains, ends, port, .. } = self;
        let control = SharedControl::default();
        ends.back.poll(&domains.host, GUEST, &ends.back_chan, port, &control).unwrap() == Polled::More
    }

    pub fn recv(&mut self) -> usize {
        self.arena.clear();
        let n = self.ends.front.recv(&mut self.arena, 1).unwrap();
        self.got.extend(self.arena.burst().iter().map(|(bytes, offload)| (bytes.to_vec(), offload)));
        n
    }

    /// Runs turns until nothing more arrives.
    pub fn turn(&mut self) {
        loop {
            self.post();
            let polled = self.poll();
            if self.recv() == 0 && !polled {
                return;
            }
        }
    }

    pub fn close(self) {
        self.ends.close(&self.domains);
        self.domains.assert_empty();
    }
}

/// Compares without printing frames of 65535 bytes.
pub fn assert_same(got: &[Frame], sent: &[Frame]) {
    assert_eq!(got.len(), sent.len(), "frames");
    for (i, (got, sent)) in got.iter().zip(sent).enumerate() {
        assert_eq!((got.0.len(), got.1), (sent.0.len(), sent.1), "length and offload of frame {i}");
        let differs = got.0.iter().zip(&sent.0).position(|(got, sent)| got != sent);
        assert_eq!(differs, None, "first byte that differs in frame {i} of {}", sent.0.len());
    }
}
