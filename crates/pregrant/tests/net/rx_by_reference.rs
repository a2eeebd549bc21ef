//! RX frames that the front passes on without a copy: a private head, and the rest in the granted
//! pages until a token is returned.
#![cfg(not(miri))]

use crate::lent::{Act, LentPort};

use pregrant::net::back::{BackVif, VifConfig};
use pregrant::net::front::{FrontConfig, FrontVif, Lent, UnknownToken};
use pregrant::net::path::PathConfig;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalXen};
use pregrant::port::{Arena, BURST_FRAMES, Offload, Token};
use pregrant::ring::{NetRx, RingKind};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RXF_CSUM_BLANK, RXF_DATA_VALIDATED, RXF_MORE_DATA, RxResponse};
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::raw_back::Rx;
use pregrant_testkit::two_domains::{GUEST, HOST, SLOTS, TestPort, Way};
use std::collections::BTreeSet;

const HEAD: usize = 256;

fn answer(id: u32, offset: u16, flags: u16, status: i16) -> RxResponse {
    RxResponse { id: id as u16, offset, flags, status }
}

/// Receives the frames that are there by reference.
fn take(r: &mut Rx, lent: &mut Lent) -> Result<usize, PeerFault> {
    r.arena.clear();
    lent.clear();
    r.front.recv_by_reference(&mut r.arena, lent, 1)
}

#[test]
fn a_head_is_private_and_the_rest_is_read_where_the_back_put_it() {
    for way in [Way::Copy, Way::Persistent(256), Way::Staging(256)] {
        let mut r = Rx::new(way);
        let mut lent = Lent::default();
        r.back.answer_rx(answer(0, 64, 0, 1000));
        r.back.answer_rx(answer(1, 0, 0, HEAD as i16));
        assert_eq!(take(&mut r, &mut lent), Ok(2), "{way:?}");
        let token = lent.token(0).expect("a long frame is lent");
        assert_eq!(
            (lent.token(1), lent.frames()),
            (None, 1),
            "a frame that is no longer than a head is copied"
        );
        let piece = r.front.piece(token, 0).expect("what follows the head");
        let mut rest = [0; 4096];
        assert_eq!((piece.copy_out(&mut rest), &rest[..744]), (744, &[1; 744][..]));
        assert!(r.front.piece(token, 1).is_none());
        // The back goes on writing: what was copied stays, what is lent does not.
        let gref = NetRx::read_req(&r.back.ring, 0).gref;
        assert_ne!(gref, 0);
        assert!(r.pages().copy_in(0, &[9; PAGE_SIZE]));
        assert_eq!(&r.arena.burst().frame(0)[..HEAD], [1; HEAD], "{way:?}");
        assert_eq!((r.front.piece(token, 0).map(|p| p.copy_out(&mut rest)), rest[0]), (Some(744), 9));
        assert_eq!(r.front.release(token), Ok(()));
        assert_eq!(r.front.release(token), Err(UnknownToken(token)), "a token is good once");
        assert!(r.front.piece(token, 0).is_none());
        r.close();
    }
}

/// A head as short as the caller asks for; for a frame with a blank checksum the usual one. Bytes
/// that are needed later come from the back's page, up to the frame's end.
#[test]
fn a_head_is_as_short_as_was_asked_for() {
    for head in [14, 200] {
        let mut r = Rx::new(Way::Copy);
        let mut lent = Lent::with_head(head);
        r.back.answer_rx(answer(0, 64, 0, 1000));
        r.back.answer_rx(answer(1, 0, RXF_CSUM_BLANK | RXF_DATA_VALIDATED, 1000));
        r.back.answer_rx(answer(2, 0, 0, head as i16));
        assert_eq!(take(&mut r, &mut lent), Ok(3));
        assert_eq!((lent.frames(), lent.heads()[0], lent.heads()[1]), (0b11, head as u16, HEAD as u16));
        let token = lent.token(0).expect("a long frame is lent");
        let rest = 1000 - head;
        assert_eq!(r.front.piece(token, 0).map(|piece| piece.len()), Some(rest));
        assert_eq!(&r.arena.burst().frame(0)[..head], &vec![1; head][..]);
        // The back goes on writing: what is read later is what it has then.
        assert!(r.pages().copy_in(0, &[9; PAGE_SIZE]));
        for upto in [head - 1, 300, 5000] {
            let front = &r.front;
            lent.read_more(&mut r.arena, 0, upto, |token, k| front.piece(token, k));
            let now = upto.clamp(head, 1000);
            let frame = r.arena.burst().frame(0);
            assert_eq!((&frame[..head], &frame[head..now]), (&vec![1; head][..], &vec![9; now - head][..]));
        }
        lent.tokens().for_each(|token| assert_eq!(r.front.release(token), Ok(())));
        r.close();
    }
    let [least, most] = [0, 5000].map(Lent::with_head);
    assert_eq!(
        [format!("{least:?}"), format!("{most:?}")],
        [14, 256].map(|n| format!("{:?}", Lent::with_head(n)))
    );
}

#[test]
fn a_page_that_is_lent_is_posted_by_no_slot_before_it_comes_back() {
    let mut r = Rx::new(Way::Persistent(256));
    let refs: Vec<u32> = (0..SLOTS).map(|k| NetRx::read_req(&r.back.ring, k).gref).collect();
    for k in 0..SLOTS {
        r.back.answer_rx(answer(k, 0, 0, 1500));
    }
    let mut tokens = Vec::new();
    while tokens.len() < SLOTS as usize {
        let mut lent = Lent::default();
        assert_eq!(take(&mut r, &mut lent), Ok(BURST_FRAMES));
        assert!(!r.front.has_free(), "all pages of these slots are lent");
        r.front.post(&r.domains.guest, &r.chans.0).expect("nothing to post");
        assert_eq!(r.posted(), SLOTS);
        tokens.extend(lent.tokens());
    }
    // In another order than they came; each page is posted once, with the reference that it always
    // had.
    for (k, token) in tokens.iter().rev().enumerate() {
        assert_eq!(r.front.release(*token), Ok(()));
        r.front.post(&r.domains.guest, &r.chans.0).expect("a page");
        assert_eq!(r.posted(), SLOTS + k as u32 + 1);
        let req = NetRx::read_req(&r.back.ring, SLOTS + k as u32);
        assert_eq!((usize::from(req.id), req.gref), (k, refs[refs.len() - 1 - k]));
    }
    r.close();
}

#[test]
fn a_frame_over_several_slots_is_lent_whole_or_not_at_all() {
    let mut r = Rx::new(Way::Copy);
    let mut lent = Lent::default();
    // The head ends in the second slot; the first one's page stays with it.
    r.back.answer_rx(answer(0, 0, RXF_MORE_DATA, 200));
    r.back.answer_rx(answer(1, 16, RXF_MORE_DATA, 4000));
    r.back.answer_rx(answer(2, 0, 0, 7));
    assert_eq!(take(&mut r, &mut lent), Ok(1));
    let token = lent.token(0).expect("lent");
    let mut frame = r.arena.burst().frame(0)[..HEAD].to_vec();
    assert_eq!(frame[..], [vec![1; 200], vec![2; 56]].concat());
    let mut bytes = [0; 4096];
    for (k, len) in [3944, 7].into_iter().enumerate() {
        assert_eq!(r.front.piece(token, k).map(|p| p.copy_out(&mut bytes)), Some(len));
        frame.extend(&bytes[..len]);
    }
    assert!(r.front.piece(token, 2).is_none());
    assert_eq!(frame, [vec![1; 200], vec![2; 4000], vec![3; 7]].concat());
    r.front.post(&r.domains.guest, &r.chans.0).expect("the first slot");
    assert_eq!(r.posted(), SLOTS + 1);
    assert_eq!(r.front.release(token), Ok(()));
    // One with a wrong last slot is a fault, and nothing of it is lent.
    r.back.answer_rx(answer(3, 0, RXF_MORE_DATA, 4096));
    r.back.answer_rx(answer(4, 4000, 0, 97));
    let fault = PeerFault::BadResponse { offset: 4000, status: 97 };
    assert_eq!((take(&mut r, &mut lent), lent.frames(), r.front.lent()), (Err(fault), 0, 0));
    r.close();
}

#[test]
fn what_is_in_staging_buffers_is_copied() {
    let mut r = Rx::new(Way::Staging(65535));
    let mut lent = Lent::default();
    r.back.answer_rx(answer(0, 0, 0, 4000));
    assert_eq!((take(&mut r, &mut lent), lent.frames()), (Ok(1), 0));
    assert_eq!(r.frames(), [vec![1; 4000]]);
    assert!(r.front.has_free());
    r.close();
}

/// Both ends on one machine.
struct Pair {
    xen: LocalXen,
    g: LocalDomain,
    h: LocalDomain,
    front: FrontVif<LocalDomain>,
    back: BackVif<LocalDomain>,
    fb: MapBus,
    bb: MapBus,
    port: TestPort,
    sent: u64,
}

impl Pair {
    fn new(config: FrontConfig, reconnect: bool) -> Self {
        let xen = LocalXen::new();
        let (g, h) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (fb, bb) = device();
        let back = BackVif::new(
            GUEST,
            0,
            VifConfig {
                paths: PathConfig { persistent: 512, ..PathConfig::default() },
                ..VifConfig::default()
            },
        );
        let front = FrontVif::new(HOST, config, reconnect);
        let mut pair = Self { xen, g, h, front, back, fb, bb, port: TestPort::default(), sent: 0 };
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        connect((&self.g, &mut self.front, &mut self.fb), (&self.h, &mut self.back, &mut self.bb));
        assert!(self.front.is_live());
    }

    /// A frame for the guest: its number tells its bytes.
    fn give(&mut self, len: usize) {
        self.port.gives.push_back((bytes(self.sent, len), Offload::default()));
        self.sent += 1;
        self.back.poll_rx(&self.h, 0, &mut self.port).expect("good slots");
    }

    /// The frame that is there, and its bytes.
    fn take(&mut self) -> Option<(Option<Token>, Vec<u8>)> {
        let (mut into, mut lent) = (Arena::new(), Lent::default());
        let n = self
            .front
            .queue_mut(0)
            .unwrap()
            .recv_by_reference(&self.g, &mut into, &mut lent, 1)
            .expect("good answers");
        if n == 0 {
            return None;
        }
        assert_eq!(n, 1);
        lent.copy(&mut into, |token, k| self.front.piece(token, k));
        Some((lent.token(0), into.burst().frame(0).to_vec()))
    }

    /// The zero-copy bytes of the frame with this `token`, as they are now.
    fn rest(&self, token: Token) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = self.front.piece(token, all.len()) {
            let mut bytes = vec![0; piece.len()];
            piece.copy_out(&mut bytes);
            all.push(bytes);
        }
        all.concat()
    }
}

fn bytes(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64 * 7 + number * 13) as u8).collect()
}

fn config(persistent: bool, spare_rx_pages: u32) -> FrontConfig {
    FrontConfig { staging: Buffers::NONE, persistent, spare_rx_pages, ..FrontConfig::default() }
}

/// A port that reads payload in place gets it from the pages; one that would keep it gets a copy.
/// Afterwards the frames are back in their queue.
#[test]
fn frames_that_are_handed_on_are_read_where_they_are() {
    for (persistent, act) in [(false, Act::Copy), (true, Act::Copy), (false, Act::Skip), (true, Act::Keep)] {
        let mut pair = Pair::new(config(persistent, 0), false);
        let mut port = LentPort { named: true, ..LentPort::new(act) };
        let (mut came, mut lent) = (Arena::new(), Lent::default());
        for turn in 0..300 {
            let (first, lens) = (pair.sent, [60, 256, 257, 1500, 9000]);
            lens.into_iter().for_each(|len| pair.give(len));
            came.clear();
            lent.clear();
            let queue = pair.front.queue_mut(0).unwrap();
            let n = queue.recv_by_reference(&pair.g, &mut came, &mut lent, 1).expect("good answers");
            assert_eq!((n, lent.frames()), (5, 0b11100), "{turn}");
            assert_eq!(pair.front.hand_on(&pair.g, &mut came, &mut lent, &mut port), 5);
            assert_eq!((pair.front.lent(), lent.frames()), (0, 0), "{turn}");
            assert_eq!(port.shelf.kept().len(), 0, "nothing is kept");
            for ((seen, len), number) in port.seen.drain(..).zip(lens).zip(first..) {
                let whole = bytes(number, len);
                assert_eq!((seen.len, seen.whole), (len, len <= HEAD));
                assert!(seen.head == whole[..len.min(HEAD)], "{turn}: {len}");
                assert!(act == Act::Skip || seen.bytes == whole, "{turn}: {len}");
            }
            // With nothing by reference it is a burst as any.
            pair.give(60);
            came.clear();
            let queue = pair.front.queue_mut(0).unwrap();
            assert_eq!(queue.recv_by_reference(&pair.g, &mut came, &mut lent, 1), Ok(1));
            assert_eq!(pair.front.hand_on(&pair.g, &mut came, &mut lent, &mut port), 1);
            assert_eq!((port.seen.len(), port.private.pop()), (0, Some(bytes(first + 5, 60))));
        }
    }
}

/// Frames come and go back in any order, and what is held is never written over; where nothing is
/// spare, fewer slots are posted.
#[test]
fn held_frames_stay_as_they_came() {
    let frames = 2000;
    for (persistent, spare, most) in [(true, 0, 200), (true, 40, 256), (false, 256, 500)] {
        let mut pair = Pair::new(config(persistent, spare), false);
        assert_eq!(pair.back.path_names(0).1, if persistent { "persistent" } else { "copy" });
        let mut held: Vec<(Token, Vec<u8>)> = Vec::new();
        let mut random = 7u64;
        for k in 0..frames {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let len = [60, 256, 257, 1500, 4096, 9000][(random >> 40) as usize % 6];
            pair.give(len);
            let (token, frame) = pair.take().expect("a slot was there");
            assert_eq!(frame, bytes(k, len), "frame {k} of {len} bytes");
            assert_eq!(token.is_some(), len > HEAD);
            held.extend(token.map(|token| (token, frame)));
            let give_back =
                if held.len() * 3 > most { held.len() / 2 } else { usize::from(random >> 33 & 1 == 1) };
            for _ in 0..give_back.min(held.len()) {
                let (token, frame) = held.swap_remove((random >> 20) as usize % held.len());
                assert_eq!(pair.rest(token), frame[HEAD..], "it is as it came");
                assert_eq!(pair.front.release(&pair.g, [token]), Ok(()));
                assert_eq!(pair.front.release(&pair.g, [token]), Err(UnknownToken(token)));
            }
            assert_eq!(pair.front.lent() as usize, held.len());
        }
        let numbers: BTreeSet<Token> = held.iter().map(|(token, _)| *token).collect();
        assert_eq!(numbers.len(), held.len());
        assert_eq!(pair.front.release(&pair.g, numbers), Ok(()));
    }
}

/// While the consumer has all pages the ring is empty; the first page that is returned is posted
/// without waiting for another frame.
#[test]
fn a_ring_that_ran_dry_goes_on_when_a_page_comes_back() {
    let mut pair = Pair::new(config(true, 0), false);
    let mut held = Vec::new();
    for _ in 0..SLOTS {
        pair.give(1500);
        held.extend(pair.take().and_then(|(token, _)| token));
    }
    assert_eq!(held.len(), SLOTS as usize);
    pair.give(1500);
    assert_eq!(pair.take(), None, "no slot is posted");
    assert_eq!(pair.front.release(&pair.g, held.pop()), Ok(()));
    pair.back.poll_rx(&pair.h, 0, &mut pair.port).expect("good slots");
    assert_eq!(pair.take().map(|(_, frame)| frame), Some(bytes(u64::from(SLOTS), 1500)));
}

/// A vif that closes while frames are held: they can be read, their pages stay granted, to no one
/// else, and are not used by the next connection; the last token ends it.
#[test]
fn memory_outlives_the_connection_until_the_last_token_is_back() {
    for reconnect in [false, true] {
        let mut pair = Pair::new(config(true, 0), reconnect);
        pair.give(1500);
        let first = pair.take().unwrap();
        pair.give(1400);
        let second = pair.take().unwrap();
        pair.back.close(&pair.h, &mut pair.bb, None).expect("a map");
        for _ in 0..4 {
            pair.front.step(&pair.g, &mut pair.fb).expect("a map");
        }
        assert!(!pair.front.is_live() && !pair.front.is_closed());
        assert_eq!(pair.front.lent(), 2);
        if reconnect {
            pair.back = BackVif::new(GUEST, 0, VifConfig::default());
            pair.bb.own.borrow_mut().insert("state".into(), "1".into());
            pair.connect();
            let numbers = pair.sent;
            for k in 0..300 {
                pair.give(1000);
                let (token, frame) = pair.take().expect("a slot");
                assert_eq!(frame, bytes(numbers + k, 1000));
                assert!(token != first.0 && pair.front.release(&pair.g, token).is_ok());
            }
        }
        assert_eq!(pair.rest(first.0.unwrap()), first.1[HEAD..]);
        assert_eq!(pair.front.release(&pair.g, first.0), Ok(()));
        assert_eq!(pair.front.release(&pair.g, first.0), Err(UnknownToken(first.0.unwrap())));
        assert_eq!(pair.rest(second.0.unwrap()), second.1[HEAD..]);
        assert_eq!(pair.front.release(&pair.g, second.0), Ok(()));
        assert_eq!(pair.front.lent(), 0);
        if !reconnect {
            pair.front.step(&pair.g, &mut pair.fb).expect("a map");
            assert!(pair.front.is_closed());
            assert_eq!(pair.xen.counts().grants, 0);
        }
    }
}

#[test]
fn tokens_of_another_kind_of_receiving_do_not_exist() {
    let mut pair =
        Pair::new(FrontConfig { staging: Buffers::of(None, DataLen::new(2048)), ..config(true, 0) }, false);
    pair.give(2000);
    assert_eq!(pair.take(), Some((None, bytes(0, 2000))), "in a staging buffer");
    pair.give(2100);
    let (token, frame) = pair.take().unwrap();
    assert_eq!((token.is_some(), frame), (true, bytes(1, 2100)));
    for forged in [0, 1, u64::MAX, token.unwrap().0 ^ 1 << 20] {
        assert!(pair.front.release(&pair.g, [Token(forged)]).is_err(), "{forged:#x}");
    }
    assert_eq!(pair.front.release(&pair.g, token), Ok(()));
}

/// A call that returns a fault has returned no frame: nothing of that call is passed by reference,
/// and nothing must be released.
#[test]
fn a_call_that_ends_in_a_fault_lends_nothing() {
    let mut r = Rx::new(Way::Persistent(256));
    let mut lent = Lent::default();
    r.back.answer_rx(answer(0, 0, 0, 1500));
    assert_eq!(take(&mut r, &mut lent), Ok(1));
    let token = lent.token(0).expect("a lent frame");
    r.back.answer_rx(answer(1, 0, 0, 1500));
    r.back.answer_rx(answer(2, 4000, 0, 1500));
    r.arena.clear();
    lent.clear();
    let fault = r.front.recv_by_reference(&mut r.arena, &mut lent, 1);
    assert!(matches!(fault, Err(PeerFault::BadResponse { offset: 4000, .. })), "{fault:?}");
    assert_eq!((lent.frames(), r.front.lent()), (0, 1), "that of the call before");
    assert_eq!(r.front.release(token), Ok(()));
    assert_eq!(r.front.lent(), 0);
}
