//! Foreign frames (docs/protocol 4.6): the checks of a guest's frame numbers, how both ends agree,
//! and what a successor finds. (data_path.rs shows that frames arrive intact.)
#![cfg(not(miri))]

use crate::pair::{Pair, ordinary};

use pregrant::PeerFault;
use pregrant::net::back::{BackVif, Polled, PreviousState, VifConfig};
use pregrant::net::features::RxAccepts;
use pregrant::net::front::FrontConfig;
use pregrant::net::path::PathConfig;
use pregrant::net::path::research::foreign::{ACTIVE, FEATURE, REQUEST};
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{AnyPath, Chain, RX_ORDER, TX_ORDER};
use pregrant::platform::local::LocalXen;
use pregrant::platform::{GrantPool, Platform};
use pregrant::port::{Arena, Offload};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    Extra, GSO_TYPE_TCPV4, RSP_ERROR, RSP_NULL, RSP_OKAY, RX_FOREIGN, RxRequest, TXF_CSUM_BLANK,
    TXF_DATA_VALIDATED, TXF_EXTRA_INFO, TXF_FOREIGN, TXF_MORE_DATA, TxRequest,
};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{FRAMES, GUEST, RxGame, SLOTS, TestPort, TwoDomains, TxGame, Way, byte};

const WAY: Way = Way::Foreign;

/// The model front against our TX back, with pages that are full of [`byte`].
struct Sender {
    domains: TwoDomains,
    game: TxGame,
    /// The first of its pages.
    first: u32,
}

impl Sender {
    fn new() -> Self {
        let domains = TwoDomains::new();
        domains.numbers_frames(WAY);
        let chain = Chain::new(TX_ORDER, domains.whole(WAY).map(AnyPath::Foreign));
        let game = domains.tx_model_by(chain, None, u32::MAX - 5, 4);
        let first = domains.guest.first_frame(&game.memory).expect("a guest with numbers");
        Self { domains, game, first }
    }

    /// Plays a frame of these slots; returns its answers, and the frame that the port got.
    fn play(&mut self, slots: &[Slot]) -> (Vec<i16>, Option<Vec<u8>>) {
        self.game.model.play(slots);
        self.game.run().expect("nothing that closes the device");
        let answers = self.game.model.answers().expect("answers in order").remove(0);
        self.game.model.finish().expect("every request is answered");
        let took = std::mem::take(&mut self.game.port.took);
        assert!(took.len() < 2);
        (answers, took.into_iter().next().map(|frame| frame.0))
    }

    /// `size` bytes at `offset` of its page `page`.
    fn named(&self, page: u32, offset: u16, size: u16) -> TxRequest {
        TxRequest { gref: self.first + page, offset, flags: TXF_FOREIGN, id: 7, size }
    }

    fn close(self) {
        self.game.close();
        self.domains.assert_empty();
    }
}

fn more(req: TxRequest) -> TxRequest {
    TxRequest { flags: req.flags | TXF_MORE_DATA, ..req }
}

#[test]
fn tx_frames_are_in_the_guest_s_frames() {
    let mut s = Sender::new();
    for (page, offset, size) in [(0, 0, 14), (0, 0, 4096), (3, 0, 4096), (2, 4000, 96), (1, 17, 1500)] {
        let expected = s.game.content(page as usize, offset.into(), size.into());
        let found = s.play(&[Slot::Data(s.named(page, offset, size))]);
        assert_eq!(found, (vec![RSP_OKAY], Some(expected)), "{size} bytes at {offset} of page {page}");
    }
    // Several slots, extra infos, a page twice, a slot of no bytes whose frame no one has.
    let flags = TXF_FOREIGN | TXF_EXTRA_INFO | TXF_CSUM_BLANK | TXF_DATA_VALIDATED;
    let gso = Slot::extra(Extra::Gso { size: 1448, gso_type: GSO_TYPE_TCPV4 }, false);
    let first = more(TxRequest { flags, size: 9000, ..s.named(1, 96, 0) });
    let rest = [s.named(0, 0, 4000), s.named(1, 100, 1000)];
    let none = TxRequest { gref: u32::MAX, ..s.named(0, 0, 0) };
    let slots =
        [Slot::Data(first), gso, Slot::Data(more(rest[0])), Slot::Data(more(none)), Slot::Data(rest[1])];
    let expected =
        [s.game.content(1, 96, 4000), s.game.content(0, 0, 4000), s.game.content(1, 100, 1000)].concat();
    let (answers, took) = s.play(&slots);
    assert_eq!(answers, [RSP_OKAY, RSP_NULL, RSP_OKAY, RSP_OKAY, RSP_OKAY]);
    assert!(took == Some(expected));
    // An ordinary grant beside it.
    let gref = s.game.refs[1].0;
    let (answers, took) = s.play(&[Slot::Data(TxRequest { gref, flags: 0, ..s.named(0, 0, 100) })]);
    assert_eq!((answers, took), (vec![RSP_OKAY], Some(s.game.content(1, 0, 100))));
    let stats = s.game.back.stats();
    assert_eq!((stats.foreign, stats.granted, stats.errors), (6, 1, 0));
    assert_eq!((stats.grant_ops.copies, stats.grant_ops.maps), (1, 0));
    s.close();
}

#[test]
fn tx_frames_that_the_guest_does_not_have_are_errors() {
    let mut s = Sender::new();
    let mut errors = 0;
    for gref in [FRAMES as u32, FRAMES as u32 + 1, RX_FOREIGN, RX_FOREIGN | s.first, u32::MAX] {
        let req = TxRequest { gref, ..s.named(0, 0, 60) };
        assert_eq!(s.play(&[Slot::Data(req)]), (vec![RSP_ERROR], None), "frame {gref}");
        // One of several.
        let first = more(TxRequest { size: 2060, ..s.named(0, 0, 0) });
        assert_eq!(
            s.play(&[first, more(req), s.named(0, 0, 1000)].map(Slot::Data)),
            (vec![RSP_ERROR; 3], None)
        );
        errors += 2;
    }
    // The last one is the guest's: whatever is there.
    let last = TxRequest { gref: FRAMES as u32 - 1, ..s.named(0, 4036, 60) };
    assert_eq!(s.play(&[Slot::Data(last)]), (vec![RSP_OKAY], Some(vec![0; 60])));
    // All slots name frames, or none does.
    let granted = TxRequest { gref: s.game.refs[0].0, flags: 0, ..s.named(0, 0, 1000) };
    for slots in [
        [more(TxRequest { size: 2000, ..s.named(0, 0, 0) }), granted],
        [more(TxRequest { size: 2000, ..granted }), s.named(0, 0, 1000)],
    ] {
        assert_eq!(s.play(&slots.map(Slot::Data)), (vec![RSP_ERROR; 2], None), "{slots:?}");
        errors += 1;
    }
    assert_eq!(s.play(&[Slot::Data(s.named(0, 0, 13))]), (vec![RSP_ERROR], None), "shorter than a header");
    let stats = s.game.back.stats();
    assert_eq!((stats.foreign, stats.errors, stats.grant_ops.copies), (1, errors + 1, 0));
    // A slot that crosses its page closes the device, as ever.
    s.game.model.play(&[Slot::Data(s.named(0, 4000, 100))]);
    assert_eq!(s.game.run(), Err(PeerFault::CrossesPage { offset: 4000, size: 100 }));
    s.close();
}

/// A guest that names the ring that it is named on, and its own answers.
#[test]
fn tx_a_ring_that_is_sent_is_bytes_as_any() {
    let mut s = Sender::new();
    let ring = s.domains.guest.first_frame(&s.game.ring_memory).expect("a guest with numbers");
    let (answers, took) = s.play(&[Slot::Data(TxRequest { gref: ring, ..s.named(0, 0, 4096) })]);
    assert_eq!((answers, took.map(|bytes| bytes.len())), (vec![RSP_OKAY], Some(4096)));
    s.close();
}

/// If the path was not negotiated, the flag has no meaning.
#[test]
fn tx_a_flag_that_was_not_agreed_on_names_a_grant() {
    let domains = TwoDomains::new();
    let mut game = domains.tx_model(Way::Copy, 0, 1);
    let gref = game.refs[0].0;
    game.model.play(&[Slot::Data(TxRequest { gref, offset: 0, flags: TXF_FOREIGN, id: 1, size: 60 })]);
    game.run().expect("an honest front");
    assert!(game.port.took.remove(0).0 == game.content(0, 0, 60));
    let stats = game.back.stats();
    assert_eq!((stats.foreign, stats.granted), (0, 1));
    game.close();
    domains.assert_empty();
}

/// An RX back, and a model of a front whose requests the test fills in itself.
fn receiver() -> (TwoDomains, RxGame, u32) {
    let domains = TwoDomains::new();
    domains.numbers_frames(WAY);
    let chain = Chain::new(RX_ORDER, domains.whole(WAY).map(AnyPath::Foreign));
    let game = domains.rx_model_by(chain, None, u32::MAX - 2, RxAccepts::ALL);
    let first = domains.guest.first_frame(&game.memory).expect("a guest with numbers");
    (domains, game, first)
}

#[test]
fn rx_slots_are_frames_or_grants_each_by_itself() {
    let (domains, mut game, first) = receiver();
    let beyond = RX_FOREIGN | FRAMES as u32;
    let named = |id: u16| RX_FOREIGN | (first + u32::from(id));
    let granted = game.refs[1].0;
    let frame: Vec<u8> = (0..6000).map(byte).collect();
    for (grefs, good, foreign, copies) in [
        ([named(0), named(1)], true, 1, 0),
        ([named(0), granted], true, 0, 1),
        ([game.refs[0].0, named(1)], true, 0, 1),
        ([named(0), named(0)], true, 1, 0),
        ([beyond, named(1)], false, 0, 0),
        ([named(0), beyond], false, 0, 0),
        ([granted, beyond], false, 0, 0),
        ([u32::MAX, granted], false, 0, 0),
    ] {
        let before = game.back.stats();
        for (id, gref) in grefs.into_iter().enumerate() {
            game.model.post(RxRequest { id: id as u16, gref });
        }
        game.port.gives.push_back((frame.clone(), Offload::default()));
        game.run().expect("an honest front");
        let frames = game.model.frames().expect("answers in order");
        assert_eq!((frames.len(), frames[0].failed()), (1, !good), "{grefs:x?}");
        if good && grefs[0] != grefs[1] {
            let mut bytes = vec![0; 6000];
            assert!(game.memory.copy_out(0, &mut bytes) && bytes == frame, "{grefs:x?}");
        }
        let after = game.back.stats();
        assert_eq!(after.foreign - before.foreign, foreign, "{grefs:x?}");
        assert_eq!(after.grant_ops.copies - before.grant_ops.copies, copies, "{grefs:x?}");
    }
    game.close();
    domains.assert_empty();
}

/// A guest has frames written over the very ring on which they are answered: the back uses its own
/// indices, and finds invalid requests when it reads them.
#[test]
fn rx_over_the_guest_s_own_ring_is_the_guest_s_loss() {
    let (domains, mut game, _) = receiver();
    let ring = domains.guest.first_frame(&game.ring_memory).expect("a guest with numbers");
    for id in 0..SLOTS as u16 / 2 {
        game.model.post(RxRequest { id, gref: RX_FOREIGN | ring });
    }
    // 0xA5A5A5A5 requests are too many: a fault, and nothing else, once what was shown before is
    // used up.
    game.port.gives.extend((0..2 * SLOTS).map(|_| (vec![0xA5; 4096], Offload::default())));
    assert!(matches!(game.run(), Err(PeerFault::ReqProdOverrun { .. })));
    assert!(game.back.stats().foreign > 0);
    game.close();
    domains.assert_empty();
}

fn request() -> FrontConfig {
    FrontConfig { foreign: true, ..ordinary() }
}

fn serving(foreign: bool) -> VifConfig {
    VifConfig { paths: PathConfig { foreign, ..PathConfig::default() }, ..VifConfig::default() }
}

fn ends(requested: FrontConfig, served: VifConfig, numbered: bool) -> Pair {
    let xen = LocalXen::new();
    if numbered {
        xen.number_frames(GUEST, FRAMES);
    }
    Pair::on(xen, requested, served)
}

/// The paths of queue 0; and for a frame of 6000 bytes in each direction how many frames were named
/// by number, and how many grant operations were needed.
fn shows(pair: &mut Pair) -> ((&'static str, &'static str), [u64; 2], u64) {
    pair.exchange(6000, 2);
    let Pair { front, back, .. } = pair;
    let ((ftx, frx), (btx, brx)) = (front.queue(0).unwrap().stats(), back.stats(0));
    assert_eq!((ftx.foreign, frx.foreign), (btx.foreign, brx.foreign), "both ends count alike");
    assert_eq!(front.names_frames(), btx.foreign > 0);
    (back.path_names(0), [btx.foreign, brx.foreign], btx.grant_ops.total() + brx.grant_ops.total())
}

#[test]
fn both_ends_agree_and_nothing_is_left() {
    let (named, copy) = (("foreign", "foreign"), ("copy", "copy"));
    let queues = FrontConfig { queues: 3, split_channels: false, ..request() };
    // Paths that the whole guest's memory makes needless are not requested.
    let len = DataLen::new(256);
    let all =
        FrontConfig { staging: Buffers::of(len, len), data_ring: Some(3), persistent: true, ..request() };
    for (requested, offered, paths, ops) in [
        (request(), true, named, 0),
        (queues, true, named, 0),
        (all, true, named, 0),
        (FrontConfig { spare_rx_pages: 20, ..request() }, true, named, 0),
        (ordinary(), true, copy, 4),
        (request(), false, copy, 4),
    ] {
        let mut pair = ends(requested, serving(offered), true);
        pair.connect();
        let is_active = requested.foreign && offered;
        assert_eq!(shows(&mut pair), (paths, [u64::from(is_active); 2], ops), "{requested:?}");
        assert!(pair.back.refused_lists().is_empty());
        assert_eq!(pair.key(true, FEATURE).as_deref(), Some(if offered { "1" } else { "0" }));
        assert_eq!(pair.key(false, REQUEST).as_deref(), is_active.then_some("1"));
        assert_eq!(pair.key(true, ACTIVE).as_deref(), is_active.then_some("1"));
        let counts = pair.xen.counts();
        let nr_queues = pair.front.nr_queues();
        assert_eq!(counts.wholes, if is_active { nr_queues } else { 0 });
        if is_active {
            assert_eq!(
                (counts.grants, counts.mapped),
                (2 * nr_queues, 2 * nr_queues),
                "rings alone are granted"
            );
            assert_eq!(pair.back.mapped_pages(), 2 * nr_queues, "the bound of pages counts the rings alone");
        }
        pair.close();
    }
}

/// A domain that cannot be mapped is served like any other, and the log says so. So is one that
/// wrote its request unasked.
#[test]
fn what_cannot_be_mapped_goes_by_grants() {
    let mut pair = ends(request(), serving(true), false);
    pair.connect();
    assert_eq!(pair.key(true, ACTIVE).as_deref(), Some("0"));
    assert_eq!(shows(&mut pair), (("copy", "copy"), [0, 0], 4));
    let refused: Vec<_> = pair.back.refused_lists().iter().map(|(q, _, why)| (*q, why.to_string())).collect();
    assert!(matches!(&refused[..], [(0, why)] if why.contains("whole domain")), "{refused:?}");
    pair.close();

    let mut pair = ends(ordinary(), serving(false), true);
    let Pair { g, h, fb, bb, front, back, .. } = &mut pair;
    back.step(h, bb, &mut |_, _| None).expect("an honest front");
    front.step(g, fb).expect("an honest back");
    fb.own.borrow_mut().insert(REQUEST.into(), "1".into());
    pair.connect();
    assert_eq!((pair.key(true, ACTIVE), pair.xen.counts().wholes), (None, 0));
    assert_eq!(shows(&mut pair), (("copy", "copy"), [0, 0], 4));
    pair.close();
}

/// A front uses grants with a back that does not offer this path, or answers anything but an
/// acceptance, or stops to offer it.
#[test]
fn a_front_names_frames_to_one_that_says_so_alone() {
    for (key, said) in
        [(ACTIVE, None), (ACTIVE, Some("0")), (ACTIVE, Some("yes")), (FEATURE, Some("0")), (FEATURE, None)]
    {
        let mut pair = ends(request(), serving(true), true);
        let Pair { g, h, fb, bb, front, back, .. } = &mut pair;
        for _ in 0..2 {
            back.step(h, bb, &mut |_, _| None).expect("an honest front");
            if !front.is_live() && fb.own.borrow()["state"] == "1" {
                front.step(g, fb).expect("an honest back");
            }
        }
        assert_eq!(bb.own.borrow()[ACTIVE], "1");
        match said {
            Some(said) => drop(bb.own.borrow_mut().insert(key.into(), said.into())),
            None => drop(bb.own.borrow_mut().remove(key)),
        }
        pair.connect();
        let (_, frames, _) = shows(&mut pair);
        assert_eq!(frames, [0, 0], "{key} {said:?}");
        pair.close();
    }
}

/// A successor maps the guest's memory again, if its predecessor was asked to and the guest still
/// wants it; else it refuses a vif whose front goes on naming frames.
#[test]
fn a_successor_takes_it_up_or_takes_nothing() {
    for (offered, forge, taken, word) in [
        (true, None, true, ""),
        (false, None, false, "--path foreign"),
        (true, Some(REQUEST), false, REQUEST),
    ] {
        let mut pair = ends(request(), serving(true), true);
        pair.connect();
        assert_eq!(shows(&mut pair).1, [1, 1]);
        pair.back = BackVif::new(GUEST, 0, serving(offered));
        if let Some(key) = forge {
            pair.fb.own.borrow_mut().remove(key);
        }
        assert_eq!(pair.back.inherit(&mut pair.bb), Ok(PreviousState::Connected));
        let again = pair.back.reattach(&pair.h, &mut pair.bb, &mut |_, _| None);
        assert_eq!(again.is_ok(), taken, "{offered} {forge:?}");
        match again {
            Ok(_) => assert_eq!(pair.back.path_names(0), ("foreign", "foreign")),
            Err(e) => {
                assert!(e.to_string().contains(word), "{e}");
                assert_eq!(pair.xen.counts().wholes, 0);
                pair.back.close(&pair.h, &mut pair.bb, None).expect("a map");
            }
        }
        pair.close();
    }
    // One of a front that was not given it.
    let mut pair = ends(ordinary(), serving(false), true);
    pair.connect();
    pair.back = BackVif::new(GUEST, 0, serving(true));
    assert_eq!(pair.back.inherit(&mut pair.bb), Ok(PreviousState::Connected));
    assert!(pair.back.reattach(&pair.h, &mut pair.bb, &mut |_, _| None).is_ok());
    assert_eq!((pair.back.path_names(0), pair.xen.counts().wholes), (("copy", "copy"), 0));
    pair.close();
}

/// Frames are read by reference in their pages, like those in granted pages.
#[test]
fn frames_by_reference_are_read_in_their_pages() {
    let domains = TwoDomains::new();
    let mut ends = domains.rx(WAY, pregrant::net::front::Granting::Standing, 0, false);
    let (mut port, mut arena) = (TestPort::default(), Arena::new());
    ends.front.post(&domains.guest, &ends.front_chan).expect("pages to post");
    let frame: Vec<u8> = (0..3000).map(byte).collect();
    port.gives.push_back((frame.clone(), Offload::default()));
    let control = Default::default();
    while ends.back.poll(domains.host.peer(), GUEST, &ends.back_chan, &mut port, &control) == Ok(Polled::More)
    {
    }
    let mut lent = Default::default();
    assert_eq!(ends.front.recv_by_reference(&mut arena, &mut lent, 1), Ok(1));
    let token = lent.tokens().next().expect("it is longer than a head");
    let mut bytes = arena.burst().frame(0).to_vec();
    let head = pregrant::net::front::lent::RX_HEAD_BYTES;
    let piece = ends.front.piece(token, 0).expect("what follows the head");
    assert_eq!((piece.copy_out(&mut bytes[head..]), ends.front.stats().foreign), (3000 - head, 1));
    assert!(bytes == frame);
    assert!(ends.front.release(token).is_ok());
    ends.close(&domains);
    domains.assert_empty();
}
