//! RX pages that are added to a live queue and removed, for frames that a consumer has by its own
//! references (docs/protocol 2.11).
#![cfg(not(miri))]

use crate::gref_mapping::{Kept, Pair, announcing, entries};

use pregrant::net::back::{Polled, VifConfig};
use pregrant::net::front::rx_pages::pool::PoolStats;
use pregrant::net::front::{FrontConfig, FrontQueue, FrontStep, FrontVif};
use pregrant::platform::{Access, PeerMem};
use pregrant::port::{LentSink, Offload, Piece, Sink, Token};
use pregrant::wire::netif::{RXF_MORE_DATA, RxResponse};
use pregrant_testkit::raw_back::Rx;
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort, Way};
use std::cell::Cell;

/// A frame's bytes by its number: TCP over IPv4.
fn bytes(number: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 256 + number * 13) as u8).collect();
    if let Some(head) = bytes.first_chunk_mut::<TCP_AT>() {
        *head = header(6, len);
    }
    if let Some(words) = bytes.get_mut(TCP_AT + 12) {
        *words = 0x50;
    }
    bytes
}

const TCP_AT: usize = 34;

/// The headers ahead of such a protocol's, in a frame of `len` bytes: Ethernet and IPv4.
fn header(protocol: u8, len: usize) -> [u8; TCP_AT] {
    let mut head = [2; TCP_AT];
    head[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    head[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    head[20..22].fill(0);
    head[23] = protocol;
    head
}

/// Receives frames as a kernel does: the head is copied, the rest stays where it is.
#[derive(Default)]
struct Skbs {
    /// The bytes that were copied, and the token of frames whose rest was not.
    frames: Vec<(Vec<u8>, Option<Token>)>,
    /// Allocation of the next page fails.
    fails: bool,
}

impl Sink for Skbs {
    fn takes(&self) -> usize {
        64
    }
    fn take<'a>(&mut self, len: usize, _: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        let mut frame = Vec::new();
        pieces.for_each(|piece| frame.extend(copy(&piece)));
        assert_eq!(frame.len(), len);
        self.frames.push((frame, None));
        true
    }
}

impl LentSink for Skbs {
    fn wants(&self, len: usize, pages: usize) -> bool {
        len > 2048 && pages <= 17
    }
    fn take_lent<'a>(
        &mut self,
        len: usize,
        _: Offload,
        head: [Piece<'a>; 2],
        rest: impl Iterator<Item = Piece<'a>>,
    ) -> bool {
        let behind: usize = rest.map(|piece| piece.len()).sum();
        let head = head.map(|piece| copy(&piece)).concat();
        assert_eq!(head.len() + behind, len);
        if self.fails {
            return false;
        }
        self.frames.push((head, None));
        true
    }
    fn lent(&mut self, token: Token) {
        self.frames.last_mut().expect("a frame").1 = Some(token);
    }
}

fn copy(piece: &Piece<'_>) -> Vec<u8> {
    let mut bytes = vec![0; piece.len()];
    assert_eq!(piece.copy_out(&mut bytes), bytes.len());
    bytes
}

/// A vif whose guest reads frames in place.
struct Game {
    pair: Pair,
    port: TestPort,
    given: usize,
    taken: usize,
    held: Vec<(usize, Token, Vec<u8>)>,
}

const LEN: usize = 9000;

impl Game {
    fn new(front: FrontConfig, back: VifConfig) -> Self {
        Self::of(Pair::connected(front, back, usize::MAX))
    }

    fn of(pair: Pair) -> Self {
        let mut game = Self { pair, port: TestPort::default(), given: 0, taken: 0, held: Vec::new() };
        game.turns();
        game
    }

    /// Both ends go on until there is nothing to ask. How often the front asked or was answered.
    fn turns(&mut self) -> usize {
        let Pair { front, back, g, h, .. } = &mut self.pair;
        let mut turns = 0;
        loop {
            let asked = front.turn(g).expect("an honest back");
            let answered = back.poll_ctrl(h).expect("an honest front") == Polled::More;
            for i in 0..back.nr_queues() {
                back.poll_rx(h, i, &mut self.port).expect("good slots");
            }
            if !asked && !answered {
                return turns;
            }
            turns += usize::from(asked);
        }
    }

    /// Delivers this many frames to the guest; returns how many of them it has by reference.
    fn frames(&mut self, n: usize) -> usize {
        let before = self.held.len();
        for _ in 0..n {
            self.port.gives.push_back((bytes(self.given, LEN), Offload::default()));
            self.given += 1;
            self.pair.back.poll_rx(&self.pair.h, 0, &mut self.port).expect("good slots");
            self.take(&mut Skbs::default());
        }
        assert_eq!(self.taken, self.given);
        self.held.len() - before
    }

    fn take(&mut self, to: &mut Skbs) {
        let queues = self.pair.front.hand_out_queues();
        let (tx, mut rx) = queues.into_iter().next().expect("a queue").into_halves();
        rx.take_lent(to, 1).expect("good answers");
        rx.post_taken(&self.pair.g);
        self.pair.front.take_back(vec![FrontQueue::of_halves(tx, rx).ok().expect("its halves")]);
        for (copied, token) in to.frames.drain(..) {
            let whole = bytes(self.taken, LEN);
            assert!(whole.starts_with(&copied), "frame {}", self.taken);
            match token {
                Some(token) => self.held.push((self.taken, token, whole[copied.len()..].to_vec())),
                None => assert_eq!(copied.len(), LEN),
            }
            self.taken += 1;
        }
    }

    /// Checks that held frames are unchanged.
    fn check(&self) {
        for (number, token, rest) in &self.held {
            let pieces = (0..).map_while(|k| self.pair.front.piece(*token, k));
            assert!(pieces.flat_map(|piece| copy(&piece)).eq(rest.iter().copied()), "frame {number}");
        }
    }

    fn release(&mut self, at: usize) {
        let (_, token, _) = self.held.remove(at);
        assert_eq!(self.pair.front.release(&self.pair.g, [token]), Ok(()));
    }

    fn release_all(&mut self) {
        while !self.held.is_empty() {
            self.release(0);
        }
    }

    fn grow(&mut self, n: usize) -> usize {
        let grown = self.pair.front.grow_rx(&self.pair.g, 0, n).expect("pages");
        self.turns();
        grown
    }

    fn shrink(&mut self, n: usize) -> usize {
        let shrunk = self.pair.front.shrink_rx(&self.pair.g, n);
        self.turns();
        shrunk
    }

    fn short(&self) -> u64 {
        self.pair.front.queue(0).expect("a queue").rx().pages().short()
    }

    fn grants(&self) -> usize {
        self.pair.xen.counts().grants
    }
}

fn growing(more_rx_pages: u32) -> FrontConfig {
    FrontConfig { more_rx_pages, ..announcing() }
}

#[test]
fn the_pool_grows_with_what_is_read_in_place_and_shrinks() {
    let mut game = Game::new(growing(128), entries(768));
    let (mapped, grants) = (game.pair.mapped(), game.grants());
    assert_eq!((game.frames(4), game.short()), (0, 4), "no page is spare: all is copied");
    assert_eq!(game.grow(64), 64);
    assert_eq!((game.pair.mapped(), game.grants()), (mapped + 64, grants + 64), "granted, and added");
    assert_eq!(game.frames(30), 21, "three pages each");
    game.check();
    assert_eq!(game.grow(1000), 64, "as many as there is room for");
    assert_eq!(game.frames(30), 21);
    game.check();
    assert_eq!((game.grow(1), game.shrink(1000)), (0, 2), "slots have the others, or the guest");
    game.release_all();
    assert_eq!(game.shrink(1000), 126, "slots have as many as they need");
    let stats = PoolStats { grown: 128, adds: 255 + 128, shrunk: 128, dels: 128 };
    assert_eq!(game.pair.front.rx_pool_stats(), stats);
    assert_eq!((game.pair.mapped(), game.grants()), (mapped, grants));
    assert_eq!(game.pair.front.rx_pool(), (255, 0));
    assert_eq!(game.frames(40), 0);
    assert_eq!(game.grow(1000), 128, "the same numbers again");
    assert!(game.frames(40) > 0);
    game.check();
    game.release_all();
    game.pair.close();
}

/// Frames come and go back in any order, the pool grows and shrinks, and what is held is never
/// written over.
#[test]
fn held_frames_stay_as_they_came() {
    for back in [entries(768), entries(600), VifConfig::default()] {
        let mut game = Game::new(growing(200), back);
        let grants = game.grants();
        let (mut seed, mut lent) = (7u64, 0);
        for turn in 0..600 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (seed >> 33) as usize;
            match at % 8 {
                0 => _ = game.grow(at / 8 % 40),
                1 => _ = game.shrink(at / 8 % 40),
                2 | 3 if !game.held.is_empty() => game.release(at / 8 % game.held.len()),
                _ => lent += game.frames(at / 8 % 4),
            }
            if turn % 16 == 0 {
                game.check();
            }
        }
        assert!(lent > 100, "{lent}");
        game.check();
        game.release_all();
        game.shrink(usize::MAX);
        // The page that stays may be the one that no slot has.
        let (there, leaving) = game.pair.front.rx_pool();
        assert_eq!((game.grants() - there, leaving), (grants - 255, 0));
        assert!(there <= 256, "{there}");
        game.pair.close();
    }
}

/// A sink without memory has the frame counted, and its pages stay with their slots.
#[test]
fn a_frame_that_is_lost_leaves_its_pages() {
    let mut game = Game::new(growing(64), entries(768));
    assert_eq!(game.grow(64), 64);
    for _ in 0..200 {
        game.port.gives.push_back((bytes(0, LEN), Offload::default()));
        game.pair.back.poll_rx(&game.pair.h, 0, &mut game.port).expect("good slots");
        game.take(&mut Skbs { fails: true, ..Skbs::default() });
    }
    assert_eq!((game.pair.front.lent(), game.short()), (0, 0));
    assert_eq!(game.shrink(1000), 64);
    game.pair.close();
}

/// The connection ends with frames in the consumer's hands: their pages are not used again until it
/// has given them back, or has references of its own.
#[test]
fn pages_of_frames_that_are_held_outlive_the_queue() {
    for forgets in [false, true] {
        let mut game = Game::new(growing(64), entries(768));
        assert_eq!((game.grow(64), game.frames(10)), (64, 10));
        let Pair { front, fb, back, bb, h, g, .. } = &mut game.pair;
        front.close(fb, None).expect("a map");
        back.close(h, bb, None).expect("a map");
        front.step(g, fb).expect("a map");
        assert_eq!((front.lent(), front.is_closed()), (10, false));
        game.check();
        match forgets {
            true => game.pair.front.release_done(&game.pair.g, |_| true),
            false => game.release_all(),
        }
        let Pair { front, fb, g, xen, .. } = &mut game.pair;
        for _ in 0..3 {
            front.step(g, fb).expect("a map");
        }
        assert_eq!((front.is_closed(), xen.counts().grants), (true, 0));
    }
}

/// A consumer with references of its own is asked about each frame once, however many frames it
/// has, also of queues that are gone.
#[test]
fn a_consumer_is_asked_about_each_frame_once() {
    let front = FrontVif::new(HOST, growing(512), true);
    let mut game = Game::of(Pair::around(front, entries(768), usize::MAX, |_, _| {}));
    for round in 1..=3 {
        assert!(game.grow(512) > 0);
        assert!(game.frames(20) > 0);
        if round < 3 {
            reconnect(&mut game, round);
        }
    }
    let held = game.held.len();
    assert!(held >= 40, "{held}");
    let asked = Cell::new(0usize);
    let Pair { front, g, .. } = &mut game.pair;
    // It has every second one still, and none later.
    front.release_done(g, |_| {
        asked.set(asked.get() + 1);
        asked.get().is_multiple_of(2)
    });
    assert_eq!((asked.take(), front.lent() as usize), (held, held - held / 2));
    front.release_done(g, |_| {
        asked.set(asked.get() + 1);
        true
    });
    assert_eq!((asked.take(), front.lent()), (held - held / 2, 0));
    game.held.clear();
    game.pair.front.close(&mut game.pair.fb, None).expect("a map");
    game.pair.close();
}

/// A back that closes and connects again while the guest has frames: only the pages of these frames
/// stay behind, in each connection.
#[test]
fn frames_that_are_held_over_each_reconnect_keep_their_pages_alone() {
    let front = FrontVif::new(HOST, growing(512), true);
    let mut game = Game::of(Pair::around(front, entries(768), usize::MAX, |_, _| {}));
    let before = game.grants();
    for round in 1..=20 {
        assert_eq!((game.grow(64), game.frames(1)), (64, 1));
        game.check();
        assert_eq!(game.grants(), before + 64 + 3 * (round - 1), "with three pages of each frame");
        reconnect(&mut game, round as u64);
    }
    game.release_all();
    game.pair.front.close(&mut game.pair.fb, None).expect("a map");
    game.pair.close();
}

/// The back closes, and another is there.
fn reconnect(game: &mut Game, second: u64) {
    let Pair { front, fb, back, bb, h, g, xen, .. } = &mut game.pair;
    xen.stop_clock(second * 1_000_000_000);
    back.close(h, bb, None).expect("a map");
    for _ in 0..4 {
        front.step(g, fb).expect("a map");
    }
    game.pair.kept = Kept::default();
    game.pair.back = Pair::back(&game.pair.config, &game.pair.kept, game.pair.page_limit);
    game.pair.bb.own.borrow_mut().insert("state".into(), "1".into());
    game.pair.connect();
    game.turns();
}

/// Each queue counts, however few of its pages are out.
#[test]
fn with_too_many_queues_out_frames_are_copied() {
    let front = FrontVif::new(HOST, growing(64), true);
    let mut game = Game::of(Pair::around(front, entries(768), usize::MAX, |_, _| {}));
    let mut lent = 0;
    for round in 1..=70 {
        game.grow(64);
        lent += game.frames(1);
        reconnect(&mut game, round);
    }
    assert_eq!(lent, 64);
    game.release_all();
    game.pair.front.close(&mut game.pair.fb, None).expect("a map");
    game.pair.close();
}

/// While the guest holds too many pages, frames of a new connection are copied, until some pages
/// are back.
#[test]
fn with_too_many_pages_out_frames_are_copied() {
    let front = FrontVif::new(HOST, growing(896), true);
    let mut game = Game::of(Pair::around(front, VifConfig::default(), usize::MAX, |_, _| {}));
    let mut lent = Vec::new();
    for round in 1..=20 {
        while game.grow(64) > 0 {}
        lent.push(game.frames(400));
        reconnect(&mut game, round);
    }
    assert_eq!((lent[0], lent[19]), (896 / 3, 0), "{lent:?}");
    let out = 3 * lent.iter().sum::<usize>();
    assert!((4096..4096 + 900).contains(&out), "{out} pages");
    game.check();
    game.release_all();
    reconnect(&mut game, 30);
    assert!(game.grow(64) == 64 && game.frames(10) == 10);
    game.release_all();
    game.pair.front.close(&mut game.pair.fb, None).expect("a map");
    game.pair.close();
}

/// After a shrink the back has as many pages as it may keep, and the pool can grow once the back
/// has answered.
#[test]
fn the_pool_grows_when_the_back_has_let_go() {
    let mut game = Game::new(growing(512), entries(768));
    assert_eq!(game.grow(512), 512);
    assert_eq!(game.pair.front.shrink_rx(&game.pair.g, usize::MAX), 512);
    assert_eq!(game.pair.front.grow_rx(&game.pair.g, 0, 64), Ok(0));
    game.turns();
    assert_eq!(game.grow(64), 64);
    game.pair.close();
}

/// A table that is short is shared with pages that are named later.
#[test]
fn a_short_table_is_shared_with_the_pool() {
    for more in [0, 512] {
        for size in [100, 256, 400] {
            let game = Game::new(growing(more), entries(size));
            assert_eq!(game.pair.back.gref_pages(0), [size, size / 2], "{more} more");
            game.pair.close();
        }
    }
}

/// A back whose tables report room, while the guest's share has none, is not asked for each page.
#[test]
fn a_back_without_room_is_asked_a_few_times() {
    for (limit, connect, grow) in [(usize::MAX, 40, [8, 8]), (4 * 2 + 1 + 1600, 70, [40, 0])] {
        let pair = Pair::connected(FrontConfig { queues: 4, ..growing(512) }, entries(768), limit);
        let mut game = Game { pair, port: TestPort::default(), given: 0, taken: 0, held: Vec::new() };
        let turns = game.turns();
        assert!((8..connect).contains(&turns), "{turns} with a share of {limit} pages");
        for most in grow {
            for i in 0..4 {
                assert_eq!(game.pair.front.grow_rx(&game.pair.g, i, 64), Ok(64));
            }
            let turns = game.turns();
            assert!(turns <= most, "{turns} for more");
        }
        game.pair.close();
    }
}

/// A frame of one slot whose head is in a buffer is passed up in its page like any other.
#[test]
fn a_frame_of_one_slot_is_handed_on_behind_its_head() {
    for (way, copied) in [(Way::Heads(2048), 2048), (Way::Copy, 256)] {
        let mut r = Rx::with_spare(way, 40);
        r.front.allow_lent();
        r.put(0, &bytes(0, 4000));
        let mut skbs = Skbs::default();
        r.back.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 4000 });
        assert_eq!(r.front.recv_lent(&mut skbs, 1), Ok(1), "{way:?}");
        let (head, token) = skbs.frames.pop().expect("a frame");
        assert!(head == bytes(0, 4000)[..copied], "{way:?}");
        assert_eq!(r.front.release(token.expect("the rest is in its page")), Ok(()));
        r.close();
    }
}

/// Only the payload of TCP stays in place; everything else is copied, wherever its head is, and so
/// is each frame of an untrusted back.
#[test]
fn what_a_stack_may_write_to_is_copied() {
    const TCP: u8 = 6;
    for way in [Way::Heads(2048), Way::Copy] {
        for (protocol, trusted) in [(TCP, true), (TCP, false), (17, true), (50, true), (51, true), (47, true)]
        {
            let mut r = Rx::with_spare(way, 40);
            if trusted {
                r.front.allow_lent();
            }
            let mut frame = bytes(0, 4000);
            frame[..TCP_AT].copy_from_slice(&header(protocol, 4000));
            r.put(0, &frame);
            let mut skbs = Skbs::default();
            r.back.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 4000 });
            assert_eq!(r.front.recv_lent(&mut skbs, 1), Ok(1));
            let (copied, token) = skbs.frames.pop().expect("a frame");
            assert_eq!(token.is_some(), trusted && protocol == TCP, "{way:?}, {protocol}, {trusted}");
            assert!(frame.starts_with(&copied));
            match token {
                Some(token) => assert_eq!(r.front.release(token), Ok(())),
                None => assert_eq!(copied.len(), 4000),
            }
            assert_eq!(r.front.pages().short(), 0, "no page was wanted");
            r.close();
        }
    }
}

/// The toolstack's and the owner's settings are used from the next connection on, for both
/// directions: frames to the back from their own pages, and frames from it in their pages.
#[test]
fn xsa_403_the_back_is_trusted_as_of_each_connect() {
    let front = FrontVif::new(HOST, growing(64), true);
    let mut game = Game::of(Pair::around(front, VifConfig::default(), usize::MAX, |_, _| {}));
    for (round, (owner, key, trusted)) in (1..).zip([
        (true, None, true),
        (true, Some("0"), false),
        (true, Some("1"), true),
        (false, Some("1"), false),
        (false, None, false),
        (true, Some("yes"), true),
        (true, Some(" 0"), false),
    ]) {
        game.pair.front.set_trusted(owner);
        let keys = &game.pair.fb.own;
        match key {
            Some(value) => keys.borrow_mut().insert("trusted".into(), value.into()),
            None => keys.borrow_mut().remove("trusted"),
        };
        let takes = |game: &Game| game.pair.front.queue(0).expect("a queue").tx().takes_pieces();
        let before = takes(&game);
        game.turns();
        assert_eq!(takes(&game), before, "a connection is as it was set up");
        reconnect(&mut game, round);
        assert_eq!(game.grow(64), 64);
        assert_eq!(takes(&game), trusted, "{owner}, {key:?}");
        assert_eq!(game.frames(5), if trusted { 5 } else { 0 }, "{owner}, {key:?}");
        assert_eq!(game.pair.front.trust().lends(), trusted);
        game.release_all();
    }
    game.pair.front.close(&mut game.pair.fb, None).expect("a map");
    game.pair.close();
}

/// The back says how much of a frame is in its first slot. At least the headers are copied, so that
/// no one parses a page.
#[test]
fn a_head_is_never_shorter_than_headers() {
    for (in_first, token) in [(0, false), (1, false), (13, false), (14, false), (255, false), (256, true)] {
        for way in [Way::Heads(256), Way::Copy] {
            // A frame that begins behind the buffer's bytes is in its pages alone.
            let token = token || in_first == 0 && way != Way::Copy;
            let mut r = Rx::with_spare(way, 40);
            let mut skbs = Skbs::default();
            // With heads in buffers of 256 bytes those behind the offset are in its page.
            let (offset, len) = match way {
                Way::Copy => (0, in_first),
                _ => (256 - in_first, 3000),
            };
            r.front.allow_lent();
            r.put(usize::from(offset), &bytes(0, usize::from(len) + 4000));
            for (flags, offset, len) in [(RXF_MORE_DATA, offset, len), (0, 0, 4000)] {
                r.back.answer_rx(RxResponse { id: 0, offset, flags, status: len as i16 });
            }
            assert_eq!(r.front.recv_lent(&mut skbs, 1), Ok(1), "{way:?}, {in_first}");
            let [(copied, got)] = &skbs.frames[..] else { panic!("one frame") };
            assert_eq!(got.is_some(), token, "{way:?}, {in_first}");
            let head = if way == Way::Copy || in_first > 0 { 256 } else { usize::from(len) };
            assert_eq!(
                copied.len(),
                if token { head } else { usize::from(len) + 4000 },
                "{way:?}, {in_first}"
            );
            if let Some(token) = got {
                assert_eq!(r.front.release(*token), Ok(()));
            }
            r.close();
        }
    }
}

/// Another back takes over the rings while an ADD has no answer: a later answer counts for no page,
/// and all pages are announced to the new back.
#[test]
fn another_back_gets_the_pool_too() {
    for asks in [false, true] {
        let mut game = Game::new(growing(128), entries(768));
        let mapped = game.pair.mapped();
        let set = |pair: &Pair, state: &str| {
            pair.bb.own.borrow_mut().insert("state".into(), state.into());
        };
        assert_eq!(game.pair.front.grow_rx(&game.pair.g, 0, 64), Ok(64));
        if !asks {
            game.turns();
        }
        set(&game.pair, "2");
        game.pair.front.step(&game.pair.g, &mut game.pair.fb).expect("a map");
        game.pair.kept = Kept::default();
        set(&game.pair, "4");
        game.pair.restart();
        let came_to = game.pair.front.step(&game.pair.g, &mut game.pair.fb).expect("a map");
        assert_eq!(came_to, FrontStep::Renewed);
        game.turns();
        assert!(!game.pair.front.final_check_ctrl(&game.pair.g).expect("an honest back"), "nothing is left");
        assert_eq!((game.pair.front.is_announcing(), game.pair.mapped()), (false, mapped + 64));
        assert!(game.frames(20) > 0);
        game.check();
        game.release_all();
        // The page that stays may be the one that no slot has.
        assert!((63..=64).contains(&game.shrink(1000)));
        assert!((mapped..=mapped + 1).contains(&game.pair.mapped()));
        game.pair.close();
    }
}

/// Table and pool change places: what leaves makes room for as many, and for no more.
#[test]
fn a_back_is_named_no_more_than_it_takes() {
    let mut game = Game::new(growing(512), entries(600));
    let adds = game.pair.front.rx_pool_stats().adds;
    game.grow(512);
    let all = game.pair.front.rx_pool_stats().adds;
    assert!(all > adds || adds == 600 - 257, "{adds}, {all}");
    for _ in 0..5 {
        assert_eq!(game.shrink(100), 100);
        assert_eq!(game.grow(100), 100);
    }
    let stats = game.pair.front.rx_pool_stats();
    assert_eq!(stats.adds - stats.dels, 600 - 257, "the table is as full as it was");
    game.pair.close();
}

/// If a back keeps removed pages mapped, no more pages are granted in their place.
#[test]
fn what_a_back_keeps_is_bounded() {
    let mut game = Game::new(growing(512), VifConfig::default());
    let mut kept = Vec::new();
    for _ in 0..8 {
        game.grow(512);
        let refs: Vec<_> =
            game.pair.front.queue(0).unwrap().rx().added_refs().map(|(_, gref)| gref).collect();
        let maps = refs.iter().filter_map(|gref| game.pair.h.map(GUEST, &[*gref], Access::ReadWrite).ok());
        kept.extend(maps.collect::<Vec<_>>());
        game.shrink(512);
    }
    let (_, leaving) = game.pair.front.rx_pool();
    assert!((256..256 + 512).contains(&leaving), "{leaving}");
    game.pair.h.unmap(&mut kept);
    game.shrink(0);
    assert_eq!((game.pair.front.rx_pool().1, game.grow(1)), (0, 1));
    game.pair.close();
}

/// A back claims to have unmapped a page and keeps it: its grant exists until it is unmapped.
#[test]
fn a_page_that_the_back_keeps_is_not_given_back() {
    let mut game = Game::new(growing(8), VifConfig::default());
    assert_eq!(game.grow(8), 8, "a back without a table");
    let grants = game.grants();
    let (_, gref) = game.pair.front.queue(0).unwrap().rx().added_refs().last().expect("a page");
    let kept = game.pair.h.map(GUEST, &[gref], Access::ReadWrite).expect("it is granted");
    assert_eq!(game.shrink(8), 8);
    assert_eq!((game.grants(), game.pair.front.rx_pool()), (grants - 7, (255, 1)));
    game.pair.h.unmap(&mut vec![kept]);
    assert_eq!((game.shrink(8), game.grants()), (0, grants - 8));
    game.pair.close();
}
