//! Another system's net back on the rings: it takes and answers slots as that system does, and
//! validates what our front asks.

use super::machine::{GUEST, HOST, Machine, VIF};
use super::page::Page;
use super::script::{Io, Pair, Step, play};
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::platform::local::{LocalChan, LocalDomain, LocalMap};
use pregrant::platform::{Access, Events, PeerMem};
use pregrant::port::{Arena, Offload};
use pregrant::shm::SharedBytes;
use pregrant::xenbus::Side;
use pregrant::{EvtchnPort, GrantRef, PAGE_SIZE};

const TX_SLOT: usize = 12;
const RX_SLOT: usize = 8;
const MORE_DATA: u16 = 4;
const EXTRA_INFO: u16 = 8;

/// How a system's back handles slots.
#[derive(Clone, Copy)]
pub struct Manners {
    /// The back accepts and makes frames over several slots.
    pub sg: bool,
    /// Offset of a received frame in its page.
    pub offset: u16,
}

struct Queue {
    tx: Page<LocalMap>,
    rx: Page<LocalMap>,
    channels: Vec<LocalChan>,
    req_cons: [u32; 2],
}

pub struct NetHost {
    front: FrontVif<LocalDomain>,
    queues: Vec<Queue>,
    manners: Manners,
    frames: u8,
    now_ns: u64,
}

/// Plays a back's table against our front, which restarts after a close.
pub fn play_back(manners: Manners, config: FrontConfig, steps: &[Step]) {
    let mut m = Machine::new(&VIF, Side::Front);
    let front = FrontVif::new(HOST, config, true);
    let mut pair = NetHost { front, queues: Vec::new(), manners, frames: 0, now_ns: 0 };
    play(&mut m, &mut pair, VIF.back, steps);
    assert!(pair.queues.is_empty(), "the table ends with what it mapped");
    assert!(pair.front.is_closed(), "our front has not closed, at state {}", pair.front.state());
}

impl Pair for NetHost {
    fn step(&mut self, m: &mut Machine) {
        // A front that restarts pauses before.
        self.now_ns += 1_000_000_000;
        m.xen.stop_clock(self.now_ns);
        let guest = m.guest.clone();
        self.front.step(&guest, &mut m.bus()).unwrap_or_else(|e| panic!("our front gives up: {e}"));
    }

    fn close(&mut self, m: &mut Machine) {
        self.front.close(&mut m.bus(), None).unwrap();
    }

    fn map(&mut self, m: &mut Machine, keys: &[(&'static str, u32)]) {
        assert!(self.queues.is_empty(), "a table unmaps before it maps again");
        let mut tx = None;
        for (key, n) in keys {
            let ring = || m.host.map(GUEST, &[GrantRef(*n)], Access::ReadWrite).expect("the ring is granted");
            match key.rsplit('/').next().unwrap() {
                "tx-ring-ref" => tx = Some(Page::new(ring(), TX_SLOT)),
                "rx-ring-ref" => {
                    let (tx, rx) =
                        (tx.take().expect("its TX ring is named before"), Page::new(ring(), RX_SLOT));
                    self.queues.push(Queue { tx, rx, channels: Vec::new(), req_cons: [0; 2] });
                }
                _ => {
                    let channel = m.host.bind(GUEST, EvtchnPort(*n)).expect("the channel is offered");
                    self.queues.last_mut().expect("its rings are named before").channels.push(channel);
                }
            }
        }
    }

    fn io(&mut self, m: &mut Machine, io: Io) {
        assert!(self.front.is_live(), "our front waits, at state {}", self.front.state());
        assert_eq!(self.front.nr_queues(), self.queues.len(), "queues that are live");
        for i in 0..self.queues.len() {
            let lens: &[usize] = if io == Io::Many { &[60, 9000, 14 + 4096, 1514] } else { &[60, 300, 1514] };
            // Until the rings' indices have passed their end.
            for _ in 0..if io == Io::Many { 60 } else { 1 } {
                for len in lens {
                    self.take(m, i, *len);
                    self.give(m, i, *len);
                }
            }
        }
    }

    fn end(&mut self, _: &mut Machine) {
        self.queues.clear();
    }
}

impl NetHost {
    fn content(&mut self, len: usize) -> Vec<u8> {
        self.frames = self.frames.wrapping_add(1);
        (0..len).map(|k| (k as u8).wrapping_mul(13) ^ self.frames.wrapping_mul(71)).collect()
    }

    /// Our front sends a frame; the back gathers it from the slots, and answers each.
    fn take(&mut self, m: &mut Machine, i: usize, len: usize) {
        let bytes = self.content(len);
        let mut burst = Arena::new();
        assert!(burst.push(&bytes, Offload::default()));
        assert_eq!(self.front.queue_mut(i).unwrap().send(&m.guest, &burst.burst()), Ok(1));
        let Queue { tx, req_cons, .. } = &mut self.queues[i];
        let prod = tx.req_prod();
        let (mut frame, mut whole) = (Vec::new(), 0);
        while req_cons[0] != prod {
            let at = req_cons[0];
            let (gref, offset, flags) = (tx.u32(at, 0), tx.u16(at, 4), tx.u16(at, 6));
            let (id, size) = (tx.u16(at, 8), tx.u16(at, 10));
            assert_eq!(flags & EXTRA_INFO, 0, "nothing was asked that needs one");
            assert!(self.manners.sg || flags & MORE_DATA == 0, "it takes one slot a frame, and said so");
            assert!(usize::from(offset) + usize::from(size.min(4096)) <= PAGE_SIZE || flags & MORE_DATA != 0);
            let first = frame.is_empty();
            if first {
                whole = usize::from(size);
            }
            // The first slot has the whole frame's length: what the others have is not its own.
            let others = |from: u32| (from..prod).map(|k| usize::from(tx.u16(k, 10))).sum::<usize>();
            let own = if first { whole - others(at.wrapping_add(1)) } else { usize::from(size) };
            let map =
                m.host.map(GUEST, &[GrantRef(gref)], Access::ReadOnly).expect("a slot's page is granted");
            let mut piece = vec![0; own];
            assert!(map.copy_out(offset.into(), &mut piece), "a slot passes its page");
            frame.append(&mut piece);
            tx.put(at, 0, &id.to_le_bytes());
            tx.put(at, 2, &0i16.to_le_bytes());
            req_cons[0] = at.wrapping_add(1);
        }
        assert_eq!(frame.len(), whole);
        assert!(frame == bytes, "a frame of {len} bytes that our front sent");
        tx.set_req_event(prod.wrapping_add(1));
        tx.set_rsp_prod(prod);
        self.front.queue_mut(i).unwrap().reclaim(&m.guest, 1).expect("an honest back");
        assert_eq!(self.front.in_flight(i), 0, "each slot was answered");
    }

    /// The back puts a frame into the slots that our front posted.
    fn give(&mut self, m: &mut Machine, i: usize, len: usize) {
        let bytes = self.content(len);
        let room = PAGE_SIZE - usize::from(self.manners.offset);
        let Queue { rx, req_cons, .. } = &mut self.queues[i];
        let mut pieces = bytes.chunks(room).peekable();
        while let Some(piece) = pieces.next() {
            let at = req_cons[1];
            assert_ne!(at, rx.req_prod(), "our front posts no slots");
            let (id, gref) = (rx.u16(at, 0), rx.u32(at, 4));
            let map =
                m.host.map(GUEST, &[GrantRef(gref)], Access::ReadWrite).expect("a slot's page is granted");
            assert!(map.copy_in(self.manners.offset.into(), piece));
            let flags = if pieces.peek().is_some() { MORE_DATA } else { 0 };
            for (place, field) in [(0, id), (2, self.manners.offset), (4, flags), (6, piece.len() as u16)] {
                rx.put(at, place, &field.to_le_bytes());
            }
            req_cons[1] = at.wrapping_add(1);
        }
        rx.set_rsp_prod(req_cons[1]);
        rx.set_req_event(req_cons[1].wrapping_add(1));
        let mut arena = Arena::new();
        self.front.queue_mut(i).unwrap().recv(&m.guest, &mut arena, 1).expect("an honest back");
        let frames: Vec<_> = arena.burst().iter().map(|(bytes, _)| bytes.to_vec()).collect();
        assert!(frames == [bytes], "a frame of {len} bytes that our front is given");
    }
}
