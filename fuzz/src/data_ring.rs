//! The data ring: index pages of any content, requests that name any place, answers that do, and
//! backs that die while a guest writes over what its successor reads.
//!
//! ```text
//!   index page bytes --read, validate-->        each half by itself, compared with every reference beside every other
//!   TX slots --back--> frames                are the bytes at their places, or errors
//!   frames --back, successors--> RX answers  whole, within the half, and on no byte that was not given back
//!   RX answers --front--> frames             are the bytes at their places, or a fault
//! ```

use crate::guest_pages::{bytes_of, fill};
use crate::tape::Tape;
use pregrant::net::back::RxQueue;
use pregrant::net::features::RxAccepts;
use pregrant::net::front::regions::Regions;
use pregrant::net::front::{Granting, RxFront};
use pregrant::net::path::copy::front::OrdinaryPages;
use pregrant::net::path::data_ring::front::{RecvArea, SendArea};
use pregrant::net::path::data_ring::index::IndexPage;
use pregrant::net::path::data_ring::{PIECE_MAX, rounded};
use pregrant::net::path::{AnyFlaggedPath, AnyPath, Chain, DataRingPath, FrontChain, RX_ORDER, TX_ORDER};
use pregrant::platform::local::{LocalDomain, Pages};
use pregrant::platform::{Access, PeerMem};
use pregrant::port::{Arena, Offload};
use pregrant::ring::{BackRing, FrontRing, NetRx, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::data_ring::{REFS, RING_ORDER};
use pregrant::wire::netif::{
    MIN_FRAME, RSP_OKAY, RXF_DATA_RING, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest, RxResponse, TXF_DATA_RING,
    TxRequest,
};
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{
    GUEST, HOST, Half, RxGame, SLOTS, TwoDomains, Way, release_front, release_half,
};
use std::collections::VecDeque;

/// Largest number of operations of one input.
const OPS: usize = 120;
const WAY: Way = Way::DataRing(2);
const HALF: usize = 8192;

pub fn data_ring(data: &[u8]) {
    let mut tape = Tape::new(data);
    match tape.below(4) {
        0 => index(&mut tape),
        1 => tx(&mut tape),
        2 => Rx::new().play(&mut tape),
        _ => front(&mut tape),
    }
}

fn index(tape: &mut Tape<'_>) {
    let page = Pages::new(1);
    let order = tape.one_of(&[1u32, 2, 3, 9, 0, 10]);
    assert!(page.store_u32(RING_ORDER, order));
    for k in 0..512 {
        assert!(page.store_u32(REFS + 4 * k, 8 + k as u32));
    }
    for _ in 0..tape.below(12) {
        let (at, value) = (REFS + 4 * usize::from(tape.u16() % 512), tape.one_of(&[0u32, 8, 9, 10, 15, 300]));
        assert!(page.store_u32(at, value));
    }
    let rest = tape.rest();
    assert!(page.copy_in(RING_ORDER, &rest[..rest.len().min(PAGE_SIZE - RING_ORDER)]));
    let order = page.load_u32(RING_ORDER).unwrap_or(0);
    for most in [9, 3, 1, 0, u32::MAX] {
        let read = IndexPage::read(&page, most);
        assert_eq!(read.is_ok(), (1..=most.min(9)).contains(&order));
        let Ok(read) = read else { continue };
        let refs: Vec<u32> = (0..1 << order).map(|k| page.load_u32(REFS + 4 * k).unwrap_or(0)).collect();
        let each = refs.len() / 2;
        assert_eq!(read.half_bytes() as usize, each * PAGE_SIZE);
        for (half, validated) in read.validate().into_iter().enumerate() {
            let own = half * each..(half + 1) * each;
            let once = |k: usize| refs.iter().enumerate().all(|(other, gref)| other == k || *gref != refs[k]);
            let good = own.clone().all(|k| refs[k] != 0 && once(k));
            let unwanted = own.clone().all(|k| refs[k] == 0);
            match validated {
                Ok(None) => assert!(unwanted),
                Ok(Some(taken)) => {
                    assert!(good);
                    assert!(taken.iter().map(|gref: &GrantRef| gref.0).eq(refs[own].iter().copied()));
                }
                Err(fault) => assert!(!good && !unwanted && fault.to_string().len() < 200),
            }
        }
    }
}

/// `len` bytes of a half at a place, around its end.
fn around(bytes: &impl SharedBytes, place: usize, len: usize) -> Vec<u8> {
    let to_end = len.min(HALF - place);
    let mut seen = bytes_of(bytes, place, to_end);
    seen.extend(bytes_of(bytes, 0, len - to_end));
    seen
}

fn tx(tape: &mut Tape<'_>) {
    let domains = TwoDomains::new();
    let (area, half): Half = domains.half(WAY, Access::ReadOnly).expect("a data ring");
    let out = area.out.expect("the half for TX");
    fill(out.bytes());
    let chain = Chain::new(TX_ORDER, [AnyPath::DataRing(half)]);
    let mut game = domains.tx_model_by(chain, None, u32::MAX - 9, 2);
    while tape.more(OPS) {
        let place = tape.one_of(&[0u32, 64, 8128, 4096, 8192, 32, u32::MAX]) ^ u32::from(tape.u8() & 0x41);
        let size = tape.one_of(&[60u16, 64, 1500, 8192, 8193, 13, 0, u16::MAX]) ^ u16::from(tape.u8() & 3);
        let offset = tape.one_of(&[0u16, 0, 0, 0, 64, u16::MAX]);
        let id = tape.u16();
        let request = TxRequest { gref: place, offset, flags: TXF_DATA_RING, id, size };
        game.model.play(&[Slot::Data(request)]);
        game.run().expect("a place closes no device");
        let answers = game.model.answers().expect("answers in order");
        let len = usize::from(size);
        let good = place.is_multiple_of(64) && (place as usize) < HALF && len <= HALF && offset == 0;
        let good = good && len >= MIN_FRAME;
        let took: Vec<_> = game.port.took.drain(..).map(|frame| frame.0).collect();
        assert_eq!(answers[0][0] == RSP_OKAY, good, "{request:?}");
        let expected = good.then(|| around(out.bytes(), place as usize, len));
        assert!(took.into_iter().eq(expected), "{request:?}");
    }
    assert_eq!(game.back.stats().grant_ops.copies, 0);
    game.close();
    release_half(&domains.guest, Some(area.index), Some(SendArea::into_granted(out)));
    domains.assert_empty();
}

struct Rx {
    domains: TwoDomains,
    game: RxGame,
    index: pregrant::net::front::regions::Granted<LocalDomain>,
    within: RecvArea<LocalDomain>,
    posted: u32,
    /// For each answer whose slot was not posted again: offset in the half, and length.
    kept: VecDeque<Option<(usize, usize)>>,
    /// The guest wrote over an answer: its places are its own affair from now on.
    lied: bool,
}

impl Rx {
    fn new() -> Self {
        let domains = TwoDomains::new();
        let (area, half) = domains.half(WAY, Access::ReadWrite).expect("a data ring");
        let chain = Chain::new(RX_ORDER, [AnyPath::DataRing(half)]);
        let game = domains.rx_model_by(chain, None, u32::MAX - 9, RxAccepts::ALL);
        let within = area.within.expect("the half for RX");
        Self { domains, game, index: area.index, within, posted: 0, kept: VecDeque::new(), lied: false }
    }

    fn play(mut self, tape: &mut Tape<'_>) {
        while tape.more(OPS) {
            match tape.below(5) {
                0 | 1 => self.post(1 + tape.below(100)),
                2 | 3 => {
                    let len = usize::from(tape.one_of(&[60u16, 64, 1500, 4000, 9000])) + tape.below(64);
                    self.deliver(1 + tape.below(8), len);
                }
                _ => self.succeed(tape),
            }
        }
        self.game.close();
        release_half(&self.domains.guest, Some(self.index), Some(self.within.into_granted()));
        self.domains.assert_empty();
    }

    fn post(&mut self, n: usize) {
        for _ in 0..n {
            if self.game.model.free() == 0 {
                return;
            }
            if self.posted >= SLOTS {
                self.kept.pop_front();
            }
            let id = (self.posted % SLOTS) as u16;
            self.posted += 1;
            self.game.model.post(RxRequest { id, gref: self.game.refs[usize::from(id)].0 });
        }
    }

    fn deliver(&mut self, n: usize, len: usize) {
        // With headroom a frame has an extra info of its own.
        let n = n.min(self.game.model.in_flight() as usize / (len.div_ceil(PAGE_SIZE - 2048) + 1));
        let frame: Vec<u8> = (0..len).map(|k| (k * 3 + self.posted as usize) as u8).collect();
        self.game.port.gives.extend((0..n).map(|_| (frame.clone(), Offload::default())));
        self.game.run().expect("an honest ring");
        let frames = self.game.model.frames().expect("answers in order");
        assert_eq!(frames.len(), n);
        for got in frames {
            let mut bytes = Vec::new();
            for rsp in &got.slots {
                let len = rsp.status as usize;
                if rsp.flags & RXF_DATA_RING == 0 {
                    let at = usize::from(rsp.id) * PAGE_SIZE + usize::from(rsp.offset);
                    bytes.extend(bytes_of(&self.game.memory, at, len));
                    self.kept.push_back(None);
                    continue;
                }
                let place = usize::from(rsp.offset) * 64;
                assert!(place < HALF && len <= HALF.min(PIECE_MAX));
                bytes.extend(around(self.within.bytes(), place, len));
                let apart = |(at, other): &(usize, usize)| {
                    let ahead = (place + HALF - at) % HALF;
                    ahead >= rounded(*other) && ahead + rounded(len) <= HALF
                };
                assert!(self.lied || self.kept.iter().flatten().all(apart), "{rsp:?} beside {:?}", self.kept);
                self.kept.push_back(Some((place, len)));
            }
            // An extra info has a slot of its own.
            self.kept.extend(got.extras.iter().map(|_| None));
            assert!(bytes == frame);
        }
    }

    /// The back dies; perhaps the guest writes over answers before the next one checks.
    fn succeed(&mut self, tape: &mut Tape<'_>) {
        if tape.below(4) == 0 {
            let words = [tape.u32(), tape.u32() | u32::from(RXF_DATA_RING)];
            // Of one that was answered, so that the ring's requests stay what they are.
            let back = 1 + (tape.u8() as usize).min(self.kept.len().saturating_sub(1));
            if let Some(slot) = self.kept.len().checked_sub(back) {
                let model = &self.game.model;
                let answered = model.next_index().wrapping_sub(model.in_flight());
                let oldest = answered.wrapping_sub(self.kept.len() as u32);
                let at = 64 + 8 * (oldest.wrapping_add(slot as u32) % SLOTS) as usize;
                for (k, word) in words.into_iter().enumerate() {
                    assert!(self.game.ring_memory.store_u32(at + 4 * k, word));
                }
                self.lied = true;
            }
        }
        let host = &self.domains.host;
        let page = host.map(GUEST, self.index.refs(), Access::ReadOnly).expect("the index page");
        let [within, _] = IndexPage::read(&page, 9).expect("an index page").validate();
        let refs = within.expect("good").expect("wanted");
        let ring = host.map(GUEST, &[self.game.ring_ref], Access::ReadWrite).expect("the ring");
        let half =
            DataRingPath::rx(host.map(GUEST, &refs, Access::ReadWrite).expect("its pages"), HALF as u32)
                .expect("memory");
        let (ring, _) = BackRing::attach(RingPages::new(ring), None).expect("a live ring");
        let chain = Chain::new(RX_ORDER, [AnyPath::DataRing(half)]);
        self.game.back = RxQueue::new(ring, chain, RxAccepts::ALL).expect("memory");
        self.game.back.set_headroom(tape.one_of(&[0u16, 0, 0, 100, 256]));
    }
}

/// Our front, and any answers.
fn front(tape: &mut Tape<'_>) {
    let domains = TwoDomains::new();
    let (front_ring, ring) = domains.ring::<NetRx>();
    let (chan, other) = domains.channel();
    let (area, half) = domains.half(WAY, Access::ReadWrite).expect("a data ring");
    let within = area.within.expect("the half for RX");
    fill(within.bytes());
    let content = bytes_of(within.bytes(), 0, HALF);
    let pages = OrdinaryPages::new(
        &domains.guest,
        &mut Regions::new(HOST),
        Access::ReadWrite,
        SLOTS,
        Granting::Standing,
    );
    let mut front =
        RxFront::new(&domains.guest, FrontRing::new(front_ring), FrontChain::new(None, pages.ok()), 1)
            .expect("memory");
    front.chain_mut().insert_flagged(AnyFlaggedPath::DataRing(within));
    // Up to here no answer was one of several for a frame.
    let mut whole = true;
    let (mut rsp_prod, mut arena) = (0u32, Arena::new());
    while tape.more(OPS) {
        assert!(front.post(&domains.guest, &chan).is_ok());
        let flags = tape.one_of(&[RXF_DATA_RING, RXF_DATA_RING, RXF_DATA_RING, 0]);
        let more = tape.one_of(&[0, 0, 0, RXF_MORE_DATA, RXF_EXTRA_INFO]);
        let offset = tape.one_of(&[0u16, 1, 127, 128, 64, u16::MAX]) ^ u16::from(tape.u8() & 1);
        let status = tape.one_of(&[60i16, 1500, 4096, 8192, 8193, i16::MAX, -1, 0]);
        let rsp = RxResponse { id: 0, offset, flags: flags | more, status };
        ring.write(rsp_prod, rsp.to_words());
        rsp_prod = rsp_prod.wrapping_add(1);
        ring.store(Word::RspProd, rsp_prod);
        arena.clear();
        whole &= more == 0;
        let alone = whole && status >= 0;
        let got = front.recv(&mut arena, 1);
        if alone && flags != 0 {
            let (place, len) = (usize::from(offset) * 64, status as usize);
            let good = place < HALF && len <= HALF;
            assert_eq!(got.is_ok(), good, "{rsp:?}");
            if good {
                assert_eq!(got, Ok(1));
                let expected = content.iter().cycle().skip(place).take(len);
                assert!(arena.burst().frame(0).iter().eq(expected), "{rsp:?}");
            }
        }
        if got.is_err() {
            break;
        }
    }
    drop((half, ring));
    release_half(&domains.guest, Some(area.index), None);
    release_front(&domains.guest, front.into_parts());
    drop((chan, other));
    domains.assert_empty();
}
