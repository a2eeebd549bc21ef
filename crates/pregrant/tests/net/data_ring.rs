//! Data rings (docs/protocol 4.5): checks of the places that a front and a back name, what a
//! successor finds, and how both ends agree. (data_path.rs shows that frames arrive intact.)
#![cfg(not(miri))]

use crate::pair::{Pair, ordinary};

use pregrant::net::back::{BackVif, PreviousState, RxQueue, VifConfig};
use pregrant::net::features::RxAccepts;
use pregrant::net::features::{ActiveLists, BackFeatures};
use pregrant::net::front::{FrontConfig, Granting};
use pregrant::net::path::data_ring::PIECE_MAX;
use pregrant::net::path::data_ring::front::{DataArea, RecvArea, SendArea};
use pregrant::net::path::data_ring::index::IndexPage;
use pregrant::net::path::data_ring::keys::{ACTIVE, INDEX_REF};
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{
    AnyFlaggedPath, AnyFrontPath, AnyPath, Chain, DataRingPath, FrontPath, RX_ORDER, StagingPath, TX_ORDER,
};
use pregrant::platform::local::LocalDomain;
use pregrant::platform::{Access, GrantPool, PeerMem};
use pregrant::port::Offload;
use pregrant::ring::{BackRing, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::data_ring::{REFS, RING_ORDER};
use pregrant::wire::netif::{
    Extra, GSO_TYPE_TCPV4, RSP_ERROR, RSP_NULL, RSP_OKAY, RXF_DATA_RING, RXF_MORE_DATA, RxRequest,
    RxResponse, TXF_CSUM_BLANK, TXF_DATA_RING, TXF_DATA_VALIDATED, TXF_EXTRA_INFO, TXF_MORE_DATA,
    TXF_STAGING_BUFFER, TxRequest,
};
use pregrant::{GrantRef, PAGE_SIZE, PeerFault};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::raw_back::{Rx, Tx};
use pregrant_testkit::two_domains::{
    GUEST, HOST, RxGame, SLOTS, TwoDomains, TxGame, Way, byte, release_half,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const ORDER: u32 = 2;
const HALF: usize = 8192;
const WAY: Way = Way::DataRing(ORDER);

/// The model front against our TX back with a data ring, whose half is full of [`byte`].
struct Sender {
    domains: TwoDomains,
    game: TxGame,
    area: DataArea<LocalDomain>,
}

impl Sender {
    fn new() -> Self {
        let domains = TwoDomains::new();
        let (area, half) = domains.half(WAY, Access::ReadOnly).expect("a data ring");
        let chain = Chain::new(TX_ORDER, [AnyPath::DataRing(half)]);
        let game = domains.tx_model_by(chain, None, u32::MAX - 5, 4);
        let out = area.out.as_ref().expect("the half for TX");
        assert!(out.bytes().copy_in(0, &(0..HALF).map(byte).collect::<Vec<u8>>()));
        Self { domains, game, area }
    }

    /// The bytes at a place.
    fn content(place: usize, len: usize) -> Vec<u8> {
        (0..len).map(|k| byte((place + k) % HALF)).collect()
    }

    /// Plays a frame of these slots; its answers, and what the port took.
    fn play(&mut self, slots: &[Slot]) -> (Vec<i16>, Option<Vec<u8>>) {
        self.game.model.play(slots);
        self.game.run().expect("nothing that closes the device");
        let answers = self.game.model.answers().expect("answers in order").remove(0);
        self.game.model.finish().expect("every request is answered");
        let took = std::mem::take(&mut self.game.port.took);
        assert!(took.len() < 2);
        (answers, took.into_iter().next().map(|frame| frame.0))
    }

    fn close(self) {
        self.game.close();
        let out = self.area.out.map(SendArea::into_granted);
        release_half(&self.domains.guest, Some(self.area.index), out);
        self.domains.assert_empty();
    }
}

fn at(place: u32, size: u16) -> TxRequest {
    TxRequest { gref: place, offset: 0, flags: TXF_DATA_RING, id: 7, size }
}

#[test]
fn tx_frames_are_where_requests_say_around_the_end_too() {
    let mut s = Sender::new();
    let half = HALF as u32;
    for (place, size) in [(0, 14), (0, 8192), (64, 64), (half - 64, 14), (half - 64, 1500), (4096, 8192)] {
        let (answers, took) = s.play(&[Slot::Data(at(place, size))]);
        let expected = Sender::content(place as usize, size as usize);
        assert_eq!((answers, took), (vec![RSP_OKAY], Some(expected)), "{size} bytes at {place}");
    }
    // One slot and its extra infos, however long it is.
    let flags = TXF_DATA_RING | TXF_EXTRA_INFO | TXF_CSUM_BLANK | TXF_DATA_VALIDATED;
    let gso = Slot::extra(Extra::Gso { size: 1448, gso_type: GSO_TYPE_TCPV4 }, false);
    let (answers, took) = s.play(&[Slot::Data(TxRequest { flags, ..at(192, 6000) }), gso]);
    assert_eq!((answers, took), (vec![RSP_OKAY, RSP_NULL], Some(Sender::content(192, 6000))));
    // An ordinary grant beside it.
    let gref = s.game.refs[1].0;
    let (answers, took) = s.play(&[Slot::Data(TxRequest { gref, flags: 0, ..at(0, 100) })]);
    assert_eq!((answers, took), (vec![RSP_OKAY], Some(s.game.content(1, 0, 100))));
    let stats = s.game.back.stats();
    assert_eq!((stats.data_ring, stats.granted, stats.errors), (7, 1, 0));
    assert_eq!(stats.grant_ops.copies, 1);
    s.close();
}

/// The flag of a received buffer beside that of the data ring: the number is a place, whatever it
/// would be as a buffer.
#[test]
fn a_place_beside_a_buffer_s_flag_is_a_place() {
    let domains = TwoDomains::new();
    let (tx_area, tx_buffers) = domains.stage(Way::Staging(2048), Access::ReadOnly, 0).expect("staging");
    let (rx_area, rx_buffers) = domains.stage(Way::Staging(2048), Access::ReadWrite, 256).expect("staging");
    for area in [&tx_area, &rx_area] {
        assert!(area.bytes().copy_in(0, &vec![0xEE; area.bytes().len()]));
    }
    let rx = StagingPath::new(rx_buffers).expect("memory");
    let by_list =
        AnyPath::Staging(StagingPath::new(tx_buffers).expect("memory").with_received(&rx).expect("memory"));
    let (area, half) = domains.half(WAY, Access::ReadOnly).expect("a data ring");
    let out = area.out.as_ref().expect("the half for TX");
    assert!(out.bytes().copy_in(0, &(0..HALF).map(byte).collect::<Vec<u8>>()));
    let chain = Chain::new(TX_ORDER, [by_list, AnyPath::DataRing(half)]);
    let game = domains.tx_model_by(chain, Some(tx_area), 0, 1);
    let mut s = Sender { domains, game, area };
    let flags = TXF_DATA_RING | TXF_STAGING_BUFFER;
    // As buffers 64 and 320 are of either list, and 4096 of none.
    for (place, size) in [(64, 60), (320, 60), (320, 1500), (4096, 60), (4096, 3000)] {
        let both = TxRequest { flags, ..at(place, size) };
        let due = Sender::content(place as usize, size.into());
        assert_eq!(
            s.play(&[Slot::Data(both)]),
            (vec![RSP_OKAY], Some(due.clone())),
            "{size} bytes at {place}"
        );
        let both = TxRequest { flags: flags | TXF_EXTRA_INFO | TXF_CSUM_BLANK | TXF_DATA_VALIDATED, ..both };
        let gso = Slot::extra(Extra::Gso { size: 1448, gso_type: GSO_TYPE_TCPV4 }, false);
        let played = s.play(&[Slot::Data(both), gso]);
        assert_eq!(played, (vec![RSP_OKAY, RSP_NULL], Some(due)), "{size} bytes at {place}, and an extra");
    }
    // Twice in a batch: a buffer could not be named again.
    for id in [1, 2] {
        s.game.model.play(&[Slot::Data(TxRequest { flags, id, ..at(320, 60) })]);
    }
    s.game.run().expect("nothing that closes the device");
    assert_eq!(s.game.model.answers(), Ok(vec![vec![RSP_OKAY]; 2]));
    let took: Vec<_> = s.game.port.took.drain(..).map(|(bytes, _)| bytes).collect();
    assert!(took == vec![Sender::content(320, 60); 2]);
    assert_eq!((s.game.back.stats().data_ring, s.domains.xen.counts().copies), (12, 0));
    let Sender { domains, game, area } = s;
    game.close();
    release_half(&domains.guest, Some(area.index), area.out.map(SendArea::into_granted));
    drop(rx);
    for granted in rx_area.into_granted() {
        assert!(granted.release(&domains.guest).is_ok(), "the back still maps a staging page");
    }
    domains.assert_empty();
}

#[test]
fn tx_places_that_are_none_are_errors() {
    let mut s = Sender::new();
    let half = HALF as u32;
    let mut errors = 0;
    for req in [
        at(32, 64),
        at(1, 64),
        at(half, 64),
        at(half + 64, 64),
        at(u32::MAX - 63, 64),
        at(u32::MAX, 64),
        at(0, 8193),
        at(64, u16::MAX),
        at(0, 13),
        at(0, 0),
        TxRequest { offset: 64, ..at(0, 64) },
    ] {
        assert_eq!(s.play(&[Slot::Data(req)]), (vec![RSP_ERROR], None), "{req:?}");
        errors += 1;
    }
    // A frame is in the data ring as a whole, in one slot.
    let gref = s.game.refs[0].0;
    let granted = TxRequest { gref, offset: 0, flags: 0, id: 8, size: 1000 };
    let more = |req: TxRequest| TxRequest { flags: req.flags | TXF_MORE_DATA, ..req };
    for slots in [
        [more(at(0, 2000)), granted],
        [more(at(0, 2000)), TxRequest { id: 8, ..at(64, 1000) }],
        [more(TxRequest { size: 2000, id: 7, ..granted }), TxRequest { id: 8, ..at(64, 1000) }],
    ] {
        assert_eq!(s.play(&slots.map(Slot::Data)), (vec![RSP_ERROR; 2], None), "{slots:?}");
        errors += 1;
    }
    // The next one is served.
    assert_eq!(s.play(&[Slot::Data(at(64, 64))]).1, Some(Sender::content(64, 64)));
    let stats = s.game.back.stats();
    assert_eq!((stats.frames, stats.errors, stats.grant_ops.copies), (1, errors, 0));
    s.close();
}

/// If no data ring was negotiated, the flag has no meaning, like any unknown flag.
#[test]
fn tx_without_a_data_ring_a_place_is_a_grant() {
    let domains = TwoDomains::new();
    let mut game = domains.tx_model(Way::Copy, 0, 2);
    let gref = game.refs[1].0;
    game.model.play(&[Slot::Data(TxRequest { gref, ..at(0, 100) })]);
    game.run().expect("an honest front");
    assert_eq!(game.model.answers(), Ok(vec![vec![RSP_OKAY]]));
    assert_eq!(game.port.took[0].0, game.content(1, 0, 100));
    game.close();
    domains.assert_empty();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// In any order of answers: bytes whose request has no answer are not overwritten, and
    /// everything is free at the end.
    #[test]
    fn tx_bytes_are_the_back_s_until_they_are_answered(
        steps in proptest::collection::vec((any::<bool>(), 14usize..3000, any::<prop::sample::Index>()), 1..150),
    ) {
        let mut t = Tx::new(Way::Copy);
        let (area, half) = t.domains.half(WAY, Access::ReadOnly).expect("a data ring");
        let (index, bytes) = (area.index, area.out.as_ref().expect("TX").bytes().clone());
        t.front.chain_mut().insert(AnyFrontPath::DataRing(area.out.expect("TX")));
        let mut waiting: Vec<(u16, u32, Vec<u8>)> = Vec::new();
        let mut asked = 0u32;
        let (mut ringed, mut granted) = (0, 0);
        let check = |place: u32, len: usize| -> Vec<u8> {
            let mut seen = vec![0; len];
            for (k, byte) in seen.iter_mut().enumerate() {
                assert!(bytes.copy_out((place as usize + k) % HALF, core::slice::from_mut(byte)));
            }
            seen
        };
        let end = steps.len();
        for (k, (send, len, which)) in steps.into_iter().enumerate() {
            if send {
                let frame: Vec<u8> = (0..len).map(|at| (at * 7 + k * 13) as u8).collect();
                t.burst.clear();
                prop_assert!(t.burst.push(&frame, Offload::default()));
                let sent = t.front.send(&t.domains.guest, &t.chans.0, &t.burst.burst());
                prop_assert_eq!(sent, Ok(1));
                let req = t.back.tx(asked);
                asked += 1;
                prop_assert_eq!(usize::from(req.size), len);
                if req.flags & TXF_DATA_RING != 0 {
                    prop_assert_eq!((req.gref % 64, req.offset), (0, 0));
                    waiting.push((req.id, req.gref, frame));
                    ringed += 1;
                } else {
                    waiting.push((req.id, u32::MAX, frame));
                    granted += 1;
                }
            } else if !waiting.is_empty() {
                let (id, ..) = waiting.remove(which.index(waiting.len()));
                t.back.answer_tx(id, RSP_OKAY);
                prop_assert_eq!(t.reclaim(), Ok(1));
            }
            for (_, place, frame) in waiting.iter().filter(|w| w.1 != u32::MAX) {
                prop_assert!(check(*place, frame.len()) == *frame, "step {k} of {end}: bytes at {place} are gone");
            }
        }
        let stats = t.front.stats();
        prop_assert_eq!((stats.data_ring, stats.no_room, stats.granted), (ringed, granted, granted));
        prop_assert!(stats.most_bytes <= HALF as u64);
        for (id, ..) in waiting {
            t.back.answer_tx(id, RSP_ERROR);
        }
        t.reclaim().expect("answers to what was asked");
        let Some((_, AnyFrontPath::DataRing(area))) = t.front.chain_mut().split(0) else { panic!("it is there") };
        prop_assert!(area.has_room(HALF) && area.put(0, &&[1; HALF][..]).is_some(), "all of it is free");
        drop(half);
        release_half(&t.domains.guest, Some(index), None);
        t.close();
    }
}

/// Our RX front against a back in the hands of a test. The half is full of [`byte`].
struct Receiver {
    r: Rx,
    index: pregrant::net::front::regions::Granted<LocalDomain>,
    half: DataRingPath<LocalDomain>,
}

impl Receiver {
    fn new() -> Self {
        let mut r = Rx::new(Way::Copy);
        let (area, half) = r.domains.half(WAY, Access::ReadWrite).expect("a data ring");
        let within = area.within.expect("the half for RX");
        assert!(within.bytes().copy_in(0, &(0..HALF).map(byte).collect::<Vec<u8>>()));
        r.front.chain_mut().insert_flagged(AnyFlaggedPath::DataRing(within));
        Self { r, index: area.index, half }
    }

    fn close(self) {
        drop(self.half);
        release_half(&self.r.domains.guest, Some(self.index), None);
        self.r.close();
    }
}

fn piece(id: u16, place: usize, len: i16) -> RxResponse {
    RxResponse { id, offset: (place / 64) as u16, flags: RXF_DATA_RING, status: len }
}

#[test]
fn rx_frames_are_where_answers_say_around_the_end_too() {
    let mut x = Receiver::new();
    let more = |rsp: RxResponse| RxResponse { flags: rsp.flags | RXF_MORE_DATA, ..rsp };
    for rsp in [
        piece(0, 0, 60),
        piece(1, 64, 1500),
        piece(2, HALF - 64, 1500),
        piece(3, 4096, 8192),
        // Two pieces, the second around the end.
        more(piece(4, 128, 4096)),
        piece(5, HALF - 128, 900),
        // An ordinary page behind it.
        RxResponse { id: 6, offset: 0, flags: 0, status: 100 },
    ] {
        x.r.back.answer_rx(rsp);
    }
    assert_eq!(x.r.recv(), Ok(6));
    let mut expected: Vec<Vec<u8>> = [(0, 60), (64, 1500), (HALF - 64, 1500), (4096, 8192)]
        .map(|(place, len)| Sender::content(place, len))
        .into();
    expected.push([Sender::content(128, 4096), Sender::content(HALF - 128, 900)].concat());
    expected.push(vec![7; 100]);
    assert!(x.r.frames() == expected);
    let stats = x.r.front.stats();
    assert_eq!((stats.data_ring, stats.granted, stats.frames), (5, 1, 6));
    x.close();
}

#[test]
fn rx_what_is_outside_or_not_whole_is_a_fault() {
    let outside = RxResponse { offset: (HALF / 64) as u16, ..piece(0, 0, 60) };
    for rsp in [
        outside,
        RxResponse { offset: u16::MAX, ..piece(0, 0, 60) },
        piece(0, 0, HALF as i16 + 1),
        piece(0, 0, i16::MAX),
    ] {
        for first_of_two in [false, true] {
            let mut x = Receiver::new();
            x.r.back.answer_rx(RxResponse {
                flags: rsp.flags | if first_of_two { RXF_MORE_DATA } else { 0 },
                ..rsp
            });
            if first_of_two {
                x.r.back.answer_rx(piece(1, 0, 60));
            }
            let fault = PeerFault::BadResponse { offset: rsp.offset, status: rsp.status };
            assert_eq!(x.r.recv(), Err(fault), "{rsp:?}");
            x.close();
        }
    }
    // Half of it in pages.
    for flags in [[RXF_DATA_RING | RXF_MORE_DATA, 0], [RXF_MORE_DATA, RXF_DATA_RING]] {
        let mut x = Receiver::new();
        for (id, flags) in flags.into_iter().enumerate() {
            x.r.back.answer_rx(RxResponse { flags, ..piece(id as u16, 0, 100) });
        }
        assert_eq!(x.r.recv(), Err(PeerFault::BadResponse { offset: 0, status: 100 }));
        x.close();
    }
    // Where there is none.
    for more in [0, RXF_MORE_DATA] {
        let mut r = Rx::new(Way::Copy);
        r.back.answer_rx(RxResponse { flags: RXF_DATA_RING | more, ..piece(0, 64, 100) });
        r.back.answer_rx(piece(1, 64, 100));
        assert_eq!(r.recv(), Err(PeerFault::BadResponse { offset: 1, status: 100 }));
        r.close();
    }
    const { assert!(HALF < PIECE_MAX) };
}

/// The model front against our RX back with a data ring.
struct Taker {
    domains: TwoDomains,
    game: RxGame,
    area: DataArea<LocalDomain>,
    /// Frames that were received and whose slots were not posted again: place and bytes of each
    /// fragment.
    kept: VecDeque<(Option<usize>, Vec<u8>)>,
    posted: u32,
    sent: u32,
    ringed: u32,
    /// What the back leaves free ahead of each slot's bytes.
    headroom: usize,
}

impl Taker {
    fn new() -> Self {
        let domains = TwoDomains::new();
        let (area, half) = domains.half(WAY, Access::ReadWrite).expect("a data ring");
        let chain = Chain::new(RX_ORDER, [AnyPath::DataRing(half)]);
        let game = domains.rx_model_by(chain, None, u32::MAX - 40, RxAccepts::ALL);
        Self { domains, game, area, kept: VecDeque::new(), posted: 0, sent: 0, ringed: 0, headroom: 0 }
    }

    /// Posts `n` slots. All are posted once before one is posted again, which gives the oldest
    /// frame's bytes back.
    fn post(&mut self, n: usize) {
        for _ in 0..n {
            if self.game.model.free() == 0 {
                return;
            }
            if self.posted >= SLOTS {
                assert!(self.kept.pop_front().is_some(), "what is free was answered");
            }
            let id = (self.posted % SLOTS) as u16;
            self.posted += 1;
            self.game.model.post(RxRequest { id, gref: self.game.refs[usize::from(id)].0 });
        }
    }

    fn within(&self, place: usize, len: usize) -> Vec<u8> {
        let bytes = self.area.within.as_ref().expect("the half for RX").bytes();
        let mut seen = vec![0; len];
        for (k, byte) in seen.iter_mut().enumerate() {
            assert!(bytes.copy_out((place + k) % HALF, core::slice::from_mut(byte)));
        }
        seen
    }

    /// Delivers frames of these lengths, as many as there are slots for.
    fn deliver(&mut self, lens: &[usize]) {
        let mut free = self.game.model.in_flight() as usize;
        // An extra info names the headroom, and has a slot of its own.
        let (room, extras) = (PAGE_SIZE - self.headroom, usize::from(self.headroom > 0));
        let fits = |len: &&usize| {
            let slots = len.div_ceil(room) + extras;
            free.checked_sub(slots).map(|left| free = left).is_some()
        };
        for len in lens.iter().take_while(fits) {
            let seed = self.sent;
            self.sent += 1;
            let frame = (0..*len).map(|k| (k as u32 * 5 + seed * 17) as u8).collect();
            self.game.port.gives.push_back((frame, Offload::default()));
        }
        let expected: Vec<Vec<u8>> = self.game.port.gives.iter().map(|frame| frame.0.clone()).collect();
        self.game.run().expect("an honest front");
        let frames = self.game.model.frames().expect("answers in order");
        assert_eq!(frames.len(), expected.len());
        for (frame, expected) in frames.iter().zip(expected) {
            assert!(!frame.failed());
            let mut bytes = Vec::<u8>::new();
            for rsp in &frame.slots {
                let len = rsp.status as usize;
                let ringed = rsp.flags & RXF_DATA_RING != 0;
                self.ringed += u32::from(ringed);
                let place = ringed.then(|| usize::from(rsp.offset) * 64);
                let seen = place.map_or_else(
                    || {
                        let mut seen = vec![0; len];
                        let at = usize::from(rsp.id) * PAGE_SIZE + usize::from(rsp.offset);
                        assert!(self.game.memory.copy_out(at, &mut seen));
                        seen
                    },
                    |place| self.within(place, len),
                );
                bytes.extend(&seen);
                self.kept.push_back((place, seen));
            }
            // An extra info has a slot of its own.
            self.kept.extend(frame.extras.iter().map(|_| (None, Vec::new())));
            assert!(bytes == expected, "frame of {} bytes", expected.len());
        }
        for (place, bytes) in self.kept.iter().filter_map(|(place, bytes)| place.map(|at| (at, bytes))) {
            assert!(self.within(place, bytes.len()) == *bytes, "bytes at {place} were written over");
        }
    }

    /// The back dies, and another one takes over the ring and the half.
    fn succeed(&mut self, headroom: u16) {
        let Self { domains, game, area, .. } = self;
        let host = &domains.host;
        let index = host.map(GUEST, &[area.index_ref()], Access::ReadOnly).expect("the index page");
        let [within, _] = IndexPage::read(&index, 9).expect("an index page").validate();
        let refs = within.expect("good").expect("wanted");
        let ring = host.map(GUEST, &[game.ring_ref], Access::ReadWrite).expect("the ring");
        let map = host.map(GUEST, &refs, Access::ReadWrite).expect("its pages");
        let (ring, _) = BackRing::attach(RingPages::new(ring), None).expect("a live ring");
        let half = DataRingPath::rx(map, HALF as u32).expect("memory");
        let chain = Chain::new(RX_ORDER, [AnyPath::DataRing(half)]);
        game.back = RxQueue::new(ring, chain, RxAccepts::ALL).expect("memory");
        game.back.set_headroom(headroom);
        self.headroom = headroom.into();
    }

    fn close(self) {
        self.game.close();
        let within = self.area.within.map(RecvArea::into_granted);
        release_half(&self.domains.guest, Some(self.area.index), within);
        self.domains.assert_empty();
    }
}

/// What happens on the way to the guest.
#[derive(Clone, Debug)]
enum Step {
    Post(usize),
    Deliver(Vec<usize>),
    /// A successor, which leaves this many bytes of headroom.
    Succeed(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![3 => 14usize..300, 2 => 300..3000usize, 1 => 3000..9000usize];
    let step = prop_oneof![
        4 => (1usize..40).prop_map(Step::Post),
        5 => proptest::collection::vec(len, 1..6).prop_map(Step::Deliver),
        1 => proptest::sample::select(&[0u16, 0, 0, 100, 256, 2048][..]).prop_map(Step::Succeed),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// After a death at any time: bytes that the front has not given back are unchanged, even when
    /// the successor begins to write.
    #[test]
    fn rx_bytes_are_the_front_s_until_it_posts_their_slots_again(steps in steps()) {
        let mut t = Taker::new();
        t.post(SLOTS as usize / 2);
        for step in steps {
            match step {
                Step::Post(n) => t.post(n),
                Step::Deliver(lens) => t.deliver(&lens),
                Step::Succeed(headroom) => t.succeed(headroom),
            }
        }
        // It goes on: once all slots went round, the half is used again.
        t.succeed(0);
        let until = t.posted + 3 * SLOTS;
        t.post(SLOTS as usize);
        let ringed = t.ringed;
        while t.posted < until {
            t.deliver(&[60]);
            t.post(SLOTS as usize);
        }
        prop_assert!(t.ringed - ringed >= (HALF / 64) as u32, "{} of 768 in it", t.ringed - ringed);
        t.close();
    }

    /// A front that writes over answers before a successor reads them: it gets frames, in the half
    /// or not, and no more than what it posted.
    #[test]
    fn rx_a_successor_survives_any_answers(
        violations in proptest::collection::vec((0u32..SLOTS, any::<[u32; 2]>(), any::<bool>()), 1..40),
    ) {
        let mut t = Taker::new();
        t.post(SLOTS as usize / 2);
        t.deliver(&[60, 2000, 900, 5000, 64]);
        for (slot, mut words, flagged) in violations {
            if flagged {
                words[1] |= u32::from(RXF_DATA_RING);
            }
            for (k, word) in words.into_iter().enumerate() {
                prop_assert!(t.game.ring_memory.store_u32(64 + 8 * slot as usize + 4 * k, word));
            }
        }
        t.kept.iter_mut().for_each(|kept| kept.0 = None);
        // Those that wait were written over, too.
        while t.game.model.in_flight() > 0 {
            t.succeed(0);
            t.game.port.gives.extend((0..64).map(|_| (vec![9; 700], Offload::default())));
            t.game.run().expect("slots of any kind");
            if t.game.model.frames().is_err() {
                break; // ids were written over
            }
        }
        t.close();
    }
}

/// Frames that find no room go by copy, are counted, and are in order with the others.
#[test]
fn rx_a_full_half_is_counted_and_frames_go_by_copy() {
    let mut t = Taker::new();
    t.post(SLOTS as usize);
    t.deliver(&[1500; 12]);
    let stats = t.game.back.stats();
    // 8192 bytes in pieces of 1536.
    assert_eq!((stats.data_ring, stats.granted, stats.no_room, stats.most_bytes), (5, 7, 7, 7680));
    assert_eq!(stats.grant_ops.copies, 7);
    // A ring later there is room again.
    while t.posted < 2 * SLOTS {
        t.post(SLOTS as usize);
        t.deliver(&[1500]);
    }
    let before = t.ringed;
    t.post(SLOTS as usize);
    t.deliver(&[1500]);
    assert_eq!(t.ringed, before + 1);
    t.close();
}

fn request(data_ring: Option<u32>) -> FrontConfig {
    FrontConfig { data_ring, granting: Granting::PerFrame, ..ordinary() }
}

fn pair(requested: FrontConfig, offered: BackFeatures, page_limit: Option<usize>) -> Pair {
    let mut pair = Pair::new(requested, VifConfig { features: offered, ..VifConfig::default() });
    if let Some(pages) = page_limit {
        pair.back.limit_pages(pages);
    }
    pair
}

/// The reports of both ends about queue 0, and how many frames of 1500 bytes go through the ring,
/// TX and RX.
fn shows(pair: &mut Pair) -> (ActiveLists, (&'static str, &'static str), [u64; 2]) {
    pair.exchange(1500, 1);
    let Pair { front, back, .. } = pair;
    let ((ftx, frx), (btx, brx)) = (front.queue(0).unwrap().stats(), back.stats(0));
    assert_eq!((ftx.data_ring, frx.data_ring), (btx.data_ring, brx.data_ring), "both ends count alike");
    (front.queue(0).unwrap().data_ring(), back.path_names(0), [btx.data_ring, brx.data_ring])
}

const NONE: ActiveLists = ActiveLists::NONE;
const BOTH: ActiveLists = ActiveLists::BOTH;

#[test]
fn both_ends_agree_and_nothing_is_left() {
    let lists = |tx, rx| ActiveLists { tx, rx };
    let old = BackFeatures { data_ring: 0, ..BackFeatures::default() };
    let small = BackFeatures { data_ring: 3, ..BackFeatures::default() };
    let all = BackFeatures::default;
    let staged = |tx: Option<u32>, rx: Option<u32>| {
        let len = |n: Option<u32>| n.and_then(DataLen::new);
        FrontConfig { staging: Buffers::of(len(tx), len(rx)), ..request(Some(5)) }
    };
    let (ring, copy) = ("data-ring", "copy");
    for (requested, offered, active, paths, frames) in [
        (request(Some(5)), all(), BOTH, (ring, ring), [1, 1]),
        (request(Some(1)), all(), BOTH, (ring, ring), [1, 1]),
        (request(Some(9)), small, BOTH, (ring, ring), [1, 1]),
        (FrontConfig { queues: 3, ..request(Some(4)) }, all(), BOTH, (ring, ring), [1, 1]),
        (request(None), all(), NONE, (copy, copy), [0, 0]),
        (request(Some(0)), all(), NONE, (copy, copy), [0, 0]),
        (request(Some(5)), old, NONE, (copy, copy), [0, 0]),
        // What staging buffers do not carry.
        (staged(Some(256), Some(256)), all(), BOTH, (ring, "staging"), [1, 1]),
        (staged(Some(65535), None), all(), lists(false, true), ("staging", ring), [0, 1]),
        (staged(None, Some(65535)), all(), lists(true, false), (ring, "staging"), [1, 0]),
        (staged(Some(65535), Some(65535)), all(), NONE, ("staging", "staging"), [0, 0]),
    ] {
        let wanted = (requested.data_ring, offered.data_ring, requested.staging);
        let mut pair = pair(requested, offered, None);
        pair.connect();
        assert_eq!(shows(&mut pair), (active, paths, frames), "{wanted:?}");
        assert_eq!(pair.front.shortage(), None);
        assert!(pair.back.refused_lists().is_empty());
        pair.close();
    }
}

/// If one half is wrong, the other one is used; if a page is wrong, the vif is used without the
/// data ring. The front learns it.
#[test]
fn what_is_wrong_is_refused_with_a_word_and_the_rest_is_served() {
    let lists = |tx, rx| ActiveLists { tx, rx };
    // Of order 2: two pages each, `in` first.
    let page = |k: usize| REFS + 4 * k;
    for (at, value, active, word) in [
        (RING_ORDER, 0, NONE, "the order is 0, and 1 to 9 are allowed"),
        (RING_ORDER, 10, NONE, "the order is 10"),
        (page(1), 0, lists(true, false), "reference 0"),
        (page(3), 0, lists(false, true), "page 1 of this half has the reference 0"),
        (page(0), 12345, lists(true, false), "page 0 of this half"),
        (page(2), 12345, lists(false, true), "page 0 of this half"),
    ] {
        let mut pair = pair(request(Some(2)), BackFeatures::default(), None);
        let Pair { g, h, fb, bb, front, back, .. } = &mut pair;
        back.step(h, bb, &mut |_, _| None).expect("an honest front");
        front.step(g, fb).expect("an honest back");
        let index = fb.own.borrow()[INDEX_REF].parse().map(GrantRef).expect("a number");
        let own = h.map(GUEST, &[index], Access::ReadOnly).expect("the index page");
        let mut bytes = vec![0; PAGE_SIZE];
        assert!(own.copy_out(0, &mut bytes));
        bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        drop(own);
        let mut forged = [GrantRef::NONE];
        let memory = g.alloc(HOST, Access::ReadOnly, &mut forged).expect("a page");
        assert!(memory.copy_in(0, &bytes));
        fb.own.borrow_mut().insert(INDEX_REF.into(), forged[0].0.to_string());
        let g = g.clone();
        pair.connect();
        assert!(g.release(memory).is_ok(), "a back maps an index page no longer than it reads it");
        let refused: Vec<_> =
            pair.back.refused_lists().iter().map(|(q, dir, why)| (*q, *dir, why.to_string())).collect();
        let expected: &[&str] = match (active.tx, active.rx) {
            (false, false) => &["tx", "rx"],
            (true, _) => &["rx"],
            _ => &["tx"],
        };
        assert_eq!(refused.iter().map(|r| r.1).collect::<Vec<_>>(), expected, "{refused:?}");
        assert!(refused.iter().all(|(q, _, why)| *q == 0 && why.contains(word)), "{refused:?}");
        let (seen, _, frames) = shows(&mut pair);
        assert_eq!((seen, frames), (active, [active.tx, active.rx].map(u64::from)), "{word}");
        pair.close();
    }
}

/// A key that is none, a page that is not there, more pages than the guest may have mapped.
#[test]
fn what_cannot_be_had_is_refused_and_frames_go_by_copy() {
    for (value, limit, word) in [
        (Some("x"), None, "a grant reference"),
        (Some("4000000000"), None, "the index page"),
        // Two pages for the rings, and less than a half.
        (None, Some(3), "2"),
    ] {
        let mut pair = pair(request(Some(2)), BackFeatures::default(), limit);
        let Pair { g, h, fb, bb, front, back, .. } = &mut pair;
        back.step(h, bb, &mut |_, _| None).expect("an honest front");
        front.step(g, fb).expect("an honest back");
        if let Some(value) = value {
            fb.own.borrow_mut().insert(INDEX_REF.into(), value.into());
        }
        pair.connect();
        let refused: Vec<_> = pair.back.refused_lists().iter().map(|(_, _, why)| why.to_string()).collect();
        assert!(refused.len() == 2 && refused.iter().all(|why| why.contains(word)), "{refused:?}");
        assert_eq!(pair.bb.own.borrow()[ACTIVE], "0");
        assert_eq!(shows(&mut pair), (NONE, ("copy", "copy"), [0, 0]));
        pair.close();
    }
    // One half more than it may have: TX comes first.
    let mut pair = pair(request(Some(2)), BackFeatures::default(), Some(4));
    pair.connect();
    assert_eq!(shows(&mut pair).2, [1, 0]);
    assert_eq!(pair.bb.own.borrow()[ACTIVE], "tx");
    assert_eq!(pair.back.mapped_pages(), 4);
    pair.close();
}

/// A successor uses the halves that were accepted; it refuses a vif whose front uses others.
#[test]
fn a_successor_takes_what_was_accepted_or_nothing() {
    for (said, forge, taken) in
        [("1", false, true), ("tx", false, true), ("rx", false, true), ("0", false, true), ("1", true, false)]
    {
        let mut pair = pair(request(Some(2)), BackFeatures::default(), None);
        pair.connect();
        assert_eq!(shows(&mut pair).2, [1, 1]);
        // As a predecessor said it, who had not been given the other half.
        pair.bb.own.borrow_mut().insert(ACTIVE.into(), said.into());
        pair.back = BackVif::new(GUEST, 0, VifConfig::default());
        if forge {
            pair.fb.own.borrow_mut().insert(INDEX_REF.into(), "4000000000".into());
        }
        assert_eq!(pair.back.inherit(&mut pair.bb), Ok(PreviousState::Connected));
        let again = pair.back.reattach(&pair.h, &mut pair.bb, &mut |_, _| None);
        assert_eq!(again.is_ok(), taken, "{said}: {:?}", again.err().map(|e| e.to_string()));
        if taken {
            let half = |dir| if said == "1" || said == dir { "data-ring" } else { "copy" };
            assert_eq!(pair.back.path_names(0), (half("tx"), half("rx")));
        } else {
            pair.back.close(&pair.h, &mut pair.bb, None).expect("a map");
        }
        pair.close();
    }
}
