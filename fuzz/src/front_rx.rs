//! The back attacks our front: answers to RX and to TX, indices, pages that it writes, pages that
//! it holds on to.
//!
//! ```text
//!   TxFront, RxFront  <--answers, indices, bytes--  raw back  <--operations-- tape
//!         '-- what the rules say ---------------------'   compared after each call
//! ```
//! RX: frames arrive with exactly the bytes that stand where the answers say, which differ from
//! slot to slot and from time to time, errors are counted, and a fault is reported if and only if
//! there is one. TX: each request describes the frame that was sent, an id is in flight once, and
//! no page that the back holds is used for another frame; nor is one of the guest's own, which the
//! back was asked to map. Frames that are received by reference
//! stay as they came until their tokens are back: no page of theirs is posted, and a fault leaves
//! none lent. Or a hook is asked of them: each is then where it said and as it left it, and a
//! buffer that is sent on is neither posted nor sent on again before its answer. At the end, fault
//! or not, everything that was granted can be taken back.

use crate::guest_pages::{bytes_of, granted};
use crate::lent_pages::LentPages;
use crate::own_frames::OwnFrames;
use crate::raw_ring::RawRing;
use crate::tape::{self, Tape};
use pregrant::net::checksum;
use pregrant::net::front::Granting;
use pregrant::net::front::lent::RX_HEAD_BYTES;
use pregrant::net::front::regions::Regions;
use pregrant::net::front::rx_hook::Hooked;
use pregrant::net::front::{Diverted, HookAction, HookFrame, HookStats, Lent, RxFront, TxFront};
use pregrant::net::path::copy::front::OrdinaryPages;
use pregrant::net::path::staging::front::StagingArea;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::{FrontChain, FrontPath};
use pregrant::platform::local::{LocalChan, LocalDomain, LocalMap};
use pregrant::platform::{Access, PeerMem};
use pregrant::port::{Arena, MAX_FRAME, Offload, Token};
use pregrant::ring::{FrontRing, NetRx, NetTx, RingKind, RingMem, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    Extra, RSP_DROPPED, RSP_ERROR, RSP_NULL, RSP_OKAY, RXF_CSUM_BLANK, RXF_DATA_RING, RXF_DATA_VALIDATED,
    RXF_EXTRA_INFO, RXF_MORE_DATA, RxResponse, TXF_EXTRA_INFO, TXF_MORE_DATA, TXF_STAGING_BUFFER, TxRequest,
    TxResponse,
};
use pregrant::{GrantRef, PAGE_SIZE, PeerFault};
use pregrant_testkit::two_domains::{GUEST, HOST, SLOTS, TwoDomains, Way, release_front};
use std::collections::BTreeMap;

/// Largest number of operations of one input.
const OPS: usize = 200;
/// The operation of a hook; the others are what is left of a division by 16.
const HOOKED: u8 = 0xFF;
/// An operation with frames in the guest's own pages.
const OWN: u8 = 0xFE;
/// Largest number of answers of one frame, and of its extra infos, that an honest back uses.
const CHAIN: usize = 32;

struct Game {
    domains: TwoDomains,
    tx: TxFront<LocalDomain>,
    rx: RxFront<LocalDomain>,
    tx_ring: RawRing<NetTx>,
    rx_ring: RawRing<NetRx>,
    chans: [LocalChan; 4],
    arena: Arena,
    /// TX requests that were checked.
    tx_seen: u32,
    /// Ids of requests without an answer, with the grants that they named.
    in_flight: BTreeMap<u16, u32>,
    extras_in_flight: u32,
    /// Pages that the back holds: the request's id, and whether it was answered since.
    held: Vec<(u16, bool, LocalMap)>,
    per_frame: bool,
    rx_errors: u64,
    /// For each RX slot its grant reference when it was last answered.
    rx_grefs: [u32; SLOTS as usize],
    /// RX pages by reference, once one was written: they stay granted.
    rx_pages: BTreeMap<u32, LocalMap>,
    lent: Vec<Loan>,
    /// For each RX slot the id of its buffer when it was last answered.
    rx_ids: [u16; SLOTS as usize],
    /// Buffers that are sent on, by the ids of their requests.
    on_tx: BTreeMap<u16, u16>,
    /// Id of the first RX buffer in the lists.
    first_rx: u32,
    diverted: Diverted,
    actions: HookStats,
    lends: LentPages,
    own: OwnFrames,
}

/// A hook's calls and verdicts.
struct Asked {
    head: Vec<u8>,
    len: usize,
    /// The head as it was left.
    left: Vec<u8>,
    action: HookAction,
}

/// A frame that was received by reference.
struct Loan {
    token: Token,
    /// The references of its pages, and what is in them, as the rules have it; None: the index was
    /// wrong by then.
    rest: Option<(Vec<u32>, Vec<u8>)>,
}

/// The next thing on the RX ring.
enum Next {
    /// The bytes, and the pages after its head if it can stay in place.
    Frame(Vec<u8>, Offload, Vec<u32>),
    Error,
    Incomplete,
    Fault,
}

/// Staging buffers, as if the back had accepted their list.
fn staging(domains: &TwoDomains, way: Way, acc: Access, n: u32) -> Option<StagingArea<LocalDomain>> {
    let (Way::Staging(len) | Way::Heads(len)) = way else { return None };
    let len = DataLen::new(len).expect("a length that buffers can have");
    Some(StagingArea::new(&domains.guest, &mut Regions::new(HOST), acc, len, n, 0).expect("staging buffers"))
}

pub fn front_rx(data: &[u8]) {
    tape::play(data, OPS, Game::new, |game, tape| game.play(tape).is_ok(), Game::close);
}

impl Game {
    fn new(tape: &mut Tape<'_>) -> Self {
        let domains = TwoDomains::new();
        let ways = [Way::Copy, Way::Staging(128), Way::Staging(256), Way::Staging(4096), Way::Staging(65535)];
        let (tx_way, rx_way) = (tape.one_of(&ways), tape.one_of(&ways));
        let granting = tape.one_of(&[Granting::PerFrame, Granting::Standing]);
        let how = tape.u8();
        let start = if how & 1 == 0 { 0 } else { u32::MAX - u32::from(tape.u8()) };
        let spare = if how & 2 == 0 { 0 } else { SLOTS / 4 };
        let (tx_mem, tx_back) = domains.ring::<NetTx>();
        let (rx_mem, rx_back) = domains.ring::<NetRx>();
        let ((a, b), (c, d)) = (domains.channel(), domains.channel());
        let rx_pages = || {
            let (regions, n) = (&mut Regions::new(HOST), SLOTS + spare);
            OrdinaryPages::new(&domains.guest, regions, Access::ReadWrite, n, Granting::Standing)
                .expect("pages")
        };
        let rx_pages = (!rx_way.copy_only()).then(rx_pages);
        // More ids than the ring has slots.
        let longer = if how & 8 != 0 { SLOTS / 2 } else { 0 };
        let tx_area = staging(&domains, tx_way, Access::ReadOnly, SLOTS + longer);
        let more = if how & 4 != 0 { SLOTS / 8 } else { 0 };
        let mut rx_area = staging(&domains, rx_way, Access::ReadWrite, SLOTS + more);
        if let Some(area) = &mut rx_area {
            area.set_rx_heads(how & 16 != 0);
        }
        let sends_on = more > 0 && tx_area.is_some() && rx_area.is_some();
        let tx_chain = FrontChain::new(tx_area, domains.ordinary(tx_way, Access::ReadOnly, granting));
        let rings = (FrontRing::starting_at(tx_mem, start), FrontRing::starting_at(rx_mem, start));
        let mut tx = TxFront::new(&domains.guest, rings.0, tx_chain).expect("memory");
        let mut game = Self {
            rx: RxFront::new(&domains.guest, rings.1, FrontChain::new(rx_area, rx_pages), 1).expect("memory"),
            tx_ring: RawRing::new(tx_back, start),
            rx_ring: RawRing::new(rx_back, start),
            chans: [a, b, c, d],
            arena: Arena::new(),
            tx_seen: start,
            in_flight: BTreeMap::new(),
            extras_in_flight: 0,
            held: Vec::new(),
            per_frame: granting == Granting::PerFrame,
            rx_errors: 0,
            rx_grefs: [0; SLOTS as usize],
            rx_pages: BTreeMap::new(),
            lent: Vec::new(),
            rx_ids: std::array::from_fn(|slot| slot as u16),
            on_tx: BTreeMap::new(),
            first_rx: SLOTS + longer,
            diverted: Diverted::new(),
            actions: HookStats::default(),
            lends: LentPages::new(&domains),
            own: OwnFrames::new(&domains, &mut tx),
            tx,
            domains,
        };
        if sends_on {
            game.tx.allow_send_on((SLOTS + longer) as u16).expect("memory");
        }
        if how & 32 != 0 {
            game.tx.allow_pieces().expect("memory");
        }
        game
    }

    /// Plays one operation. `Err`: the front reported a fault, and was right.
    fn play(&mut self, tape: &mut Tape<'_>) -> Result<(), PeerFault> {
        let op = tape.u8();
        if op == HOOKED {
            return self.hooked(tape);
        }
        if op == OWN {
            let tx = (&mut self.tx, &self.chans[0]);
            let sent = self.own.play(&self.domains, tx, &self.in_flight, tape);
            sent.iter().for_each(|(frame, offload)| self.frame_sent(frame, *offload));
            assert_eq!(self.tx_ring.mem.load(Word::ReqProd), self.tx_seen, "requests beyond the frames");
            self.own.check(&self.tx, &self.in_flight);
            return Ok(());
        }
        match op % 16 {
            0 => self.send(tape),
            1 => self.answer_tx_in_order(1 + tape.below(64)),
            2 => {
                let status = tape.one_of(&[RSP_OKAY, RSP_ERROR, RSP_DROPPED, RSP_NULL, 2, i16::MIN]);
                let known = self.in_flight.keys().nth(tape.below(8)).copied();
                let id = if tape.below(2) == 0 { known.unwrap_or(3) } else { tape.u16() };
                self.answer_tx(TxResponse { id, status });
            }
            3 => return self.reclaim(tape.below(2) == 0),
            4 => self.hold(tape.below(256)),
            5 => {
                let n = self.held.len();
                self.lends.held.pop();
                self.own.held.pop();
                if n > 0 {
                    self.held.remove(tape.below(n.min(256)));
                }
            }
            6 => self.tx_ring.show_wrong_index(tape),
            7 => assert!(self.rx.post(&self.domains.guest, &self.chans[2]).is_ok(), "standing grants"),
            8 => {
                for _ in 0..1 + tape.below(64) {
                    self.answer_rx(RxResponse { id: 0, offset: 0, flags: 1, status: 60 }.to_words());
                }
            }
            9 => {
                let flags =
                    tape.one_of(&[0, RXF_MORE_DATA, RXF_CSUM_BLANK, RXF_EXTRA_INFO, RXF_MORE_DATA | 8]);
                let status = tape.one_of(&[60, 0, 1, 128, 256, 1514, 4096, RSP_ERROR, i16::MIN, 4097]);
                let offset = tape.one_of(&[0, 0, 0, 1, 64, 192]);
                self.answer_rx(RxResponse { id: 0, offset, flags, status }.to_words());
            }
            10 => {
                let extra = match tape.below(3) {
                    0 => Extra::Gso { size: tape.u16(), gso_type: tape.u8() },
                    1 => Extra::Xdp { headroom: tape.u16() },
                    _ => Extra::Gso { size: 1448, gso_type: 2 },
                };
                self.answer_rx(extra.to_words(tape.below(4) == 0));
            }
            11 => {
                let words = [tape.u32(), tape.u32()];
                self.answer_rx(words);
            }
            12 => self.rx_ring.show_wrong_index(tape),
            13 => {
                // One frame of many slots.
                let (n, status) = (1 + tape.below(34), tape.one_of(&[4096, 1, 0, 3855, RSP_ERROR]));
                for k in 1..=n {
                    let flags = if k < n { RXF_MORE_DATA } else { 0 };
                    self.answer_rx(RxResponse { id: 0, offset: 0, flags, status }.to_words());
                }
            }
            14 => {
                // A ring's length of short frames, as honest ends exchange them.
                for _ in 0..1 + tape.below(5) {
                    self.send_frames(60, 64, Offload::default());
                    self.answer_tx_in_order(64);
                    self.reclaim(false)?;
                }
            }
            _ => {
                let how = tape.u8();
                self.release(usize::from(how >> 2));
                return self.recv(how & 1 == 0, how & 2 != 0);
            }
        }
        Ok(())
    }

    fn send(&mut self, tape: &mut Tape<'_>) {
        if self.tx.takes_pieces() && tape.below(2) == 1 {
            if let Some((frame, offload)) = self.lends.queue(&self.domains, &mut self.tx, tape) {
                self.tx.publish(&self.domains.guest, &self.chans[0]);
                self.frame_sent(&frame, offload);
            }
            return;
        }
        let lens = [60usize, 14, 1, 128, 129, 256, 1514, 4096, 4097, 65535];
        let (len, many, gso) = (tape.one_of(&lens), 1 + tape.below(8), tape.below(4) == 3);
        let offload = match gso {
            true => Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 },
            false => Offload::default(),
        };
        self.send_frames(len, many, offload);
    }

    fn send_frames(&mut self, len: usize, many: usize, offload: Offload) {
        self.arena.clear();
        let mut frames = Vec::new();
        while frames.len() < many && self.arena.has_room() {
            let frame: Vec<u8> = (0..len).map(|at| (at ^ at >> 8 ^ frames.len()) as u8).collect();
            assert!(self.arena.push(&frame, offload));
            frames.push(frame);
        }
        let sent = self.tx.send(&self.domains.guest, &self.chans[0], &self.arena.burst());
        let sent = sent.expect("grants to be had");
        for frame in &frames[..sent] {
            self.frame_sent(frame, offload);
        }
        assert_eq!(self.tx_ring.mem.load(Word::ReqProd), self.tx_seen, "requests beyond the frames");
    }

    /// The next requests on the ring describe this frame, in memory that is free for it.
    fn frame_sent(&mut self, frame: &[u8], offload: Offload) {
        let (bytes, gso) = self.tx_frame();
        assert_eq!(gso, (offload.gso_type, if offload.gso_type == 0 { 0 } else { offload.gso_size }));
        assert!(bytes == frame, "the requests describe other bytes than were sent");
    }

    /// The frame that the next requests describe, and how it must be segmented.
    fn tx_frame(&mut self) -> (Vec<u8>, (u8, u16)) {
        let (mut bytes, mut gso) = (Vec::new(), (0, 0));
        let (mut first, mut more) = (None, true);
        while more {
            let req = self.next_tx();
            let (is_first, len) = (first.is_none(), usize::from(req.size));
            first.get_or_insert(req);
            assert!(self.in_flight.insert(req.id, req.gref).is_none(), "id {} is in flight twice", req.id);
            if self.per_frame && req.gref != 0 {
                let held = self.held.iter().any(|(id, answered, _)| *id == req.id && *answered);
                assert!(!held, "the page of id {} is used again, and the back still has it", req.id);
            }
            if req.flags & TXF_STAGING_BUFFER != 0 {
                let buffer = u16::try_from(req.gref - self.first_rx).expect("an RX buffer");
                let twice = self.on_tx.values().any(|other| *other == buffer);
                assert!(!twice && self.tx.sends_on(), "buffer {buffer} is sent on twice");
                self.on_tx.insert(req.id, buffer);
            }
            if !is_first {
                bytes.extend(self.sent_bytes(&req, len));
            }
            if req.flags & TXF_EXTRA_INFO != 0 {
                let words = self.next_tx().to_words();
                let Ok((Extra::Gso { size, gso_type }, false)) = Extra::parse_tx(words) else {
                    panic!("an extra info without a request")
                };
                gso = (gso_type, size);
                self.extras_in_flight += 1;
            }
            more = req.flags & TXF_MORE_DATA != 0;
        }
        // The first request has the length of all.
        let first = first.expect("a request");
        let head = usize::from(first.size).checked_sub(bytes.len()).expect("slots within the frame's length");
        ([self.sent_bytes(&first, head), bytes].concat(), gso)
    }

    fn sent_bytes(&self, req: &TxRequest, len: usize) -> Vec<u8> {
        if let Some(&buffer) = self.on_tx.get(&req.id) {
            let area = self.rx.chain().staging().expect("RX buffers");
            assert!(u32::from(buffer) < area.entries());
            return bytes_of(area.bytes(), area.start(buffer) + req.offset as usize, len);
        }
        match (req.gref, self.tx.chain().staging()) {
            (0, Some(area)) => bytes_of(area.bytes(), area.start(req.id) + req.offset as usize, len),
            (gref, _) => granted(&self.domains, gref, req.offset, len).expect("a granted page"),
        }
    }

    fn next_tx(&mut self) -> TxRequest {
        self.tx_seen = self.tx_seen.wrapping_add(1);
        TxRequest::from_words(self.tx_ring.mem.read::<3>(self.tx_seen.wrapping_sub(1)))
    }

    fn answer_tx(&mut self, rsp: TxResponse) {
        if self.tx_ring.asked() > 0 {
            self.tx_ring.mem.write::<1>(self.tx_ring.rsp_prod, [rsp.to_word()]);
            self.tx_ring.rsp_prod = self.tx_ring.rsp_prod.wrapping_add(1);
        }
    }

    /// Answers as an honest back does.
    fn answer_tx_in_order(&mut self, n: usize) {
        let mut extra = false;
        for _ in 0..n.min(self.tx_ring.asked() as usize) {
            let req = TxRequest::from_words(self.tx_ring.mem.read::<3>(self.tx_ring.rsp_prod));
            let status = if extra { RSP_NULL } else { RSP_OKAY };
            extra = !extra && req.flags & TXF_EXTRA_INFO != 0;
            self.answer_tx(TxResponse { id: req.id, status });
        }
    }

    /// Maps the page of a request in flight, as a back that gives nothing back.
    fn hold(&mut self, nth: usize) {
        let at = self.tx_ring.rsp_prod.wrapping_add(nth as u32 % self.tx_ring.asked().max(1));
        let req = TxRequest::from_words(self.tx_ring.mem.read::<3>(at));
        // An answer that was written and not published may be there instead.
        if self.tx_ring.asked() > 0
            && req.flags & TXF_STAGING_BUFFER == 0
            && self.in_flight.get(&req.id) == Some(&req.gref)
            && let Ok(map) = self.domains.host.map(GUEST, &[GrantRef(req.gref)], Access::ReadOnly)
        {
            match self.lends.out.contains_key(&req.id) {
                _ if self.own.names(req.gref) => self.own.held.push(map),
                true => self.lends.held.push(map),
                false => self.held.push((req.id, false, map)),
            }
        }
    }

    fn reclaim(&mut self, check_first: bool) -> Result<(), PeerFault> {
        if !self.tx_ring.lied {
            self.tx_ring.show();
        }
        let n = self.tx_ring.mem.load(Word::RspProd).wrapping_sub(self.tx_ring.cons);
        let asked = self.tx_seen.wrapping_sub(self.tx_ring.cons);
        let mut fault = n > asked;
        for k in 0..if fault { 0 } else { n } {
            let words = self.tx_ring.mem.read::<1>(self.tx_ring.cons.wrapping_add(k));
            let rsp = TxResponse::from_word(words[0]);
            if rsp.status == RSP_NULL {
                fault |= self.extras_in_flight == 0;
                self.extras_in_flight = self.extras_in_flight.saturating_sub(1);
            } else {
                fault |= self.in_flight.remove(&rsp.id).is_none();
                self.on_tx.remove(&rsp.id);
                let of_it = self.held.iter_mut().filter(|(id, ..)| *id == rsp.id);
                of_it.for_each(|(_, answered, _)| *answered = true);
            }
        }
        let found = if check_first { self.tx.final_check(1) } else { Ok(true) };
        let taken = found.and_then(|_| self.tx.reclaim(&self.domains.guest, 1));
        assert_eq!(taken.is_err(), fault, "{taken:?}");
        assert_eq!(taken?, n);
        while let Some(buffer) = self.tx.returned() {
            self.rx.give_back(buffer);
        }
        self.lends.answered(&self.domains, &mut self.tx);
        self.own.check(&self.tx, &self.in_flight);
        assert_eq!(
            self.rx.buffers().away() as usize,
            self.on_tx.len(),
            "buffers are lost, or came back early"
        );
        self.tx_ring.cons = self.tx_ring.cons.wrapping_add(n);
        if self.tx_ring.lied {
            // It took what was shown.
            self.tx_ring.rsp_prod = self.tx_ring.cons;
            self.tx_ring.lied = false;
        }
        let unusable = self.held.iter().filter(|(_, answered, _)| *answered && self.per_frame).count();
        let free = SLOTS - self.tx.in_flight();
        assert!(
            self.tx.room() <= free && self.tx.room() as usize + unusable >= free as usize,
            "ids are lost"
        );
        Ok(())
    }

    /// An answer to the next RX request, with bytes in its memory that are this answer's.
    fn answer_rx(&mut self, words: [u32; 2]) {
        if self.rx_ring.asked() == 0 {
            return;
        }
        let index = self.rx_ring.rsp_prod;
        let slot = (index & (SLOTS - 1)) as usize;
        let req = NetRx::read_req(&self.rx_ring.mem, index);
        if !self.rx_ring.lied {
            self.rx_ids[slot] = req.id;
            assert!(!self.on_tx.values().any(|buffer| *buffer == req.id), "a buffer on TX is posted");
        }
        let fill: [u8; PAGE_SIZE] = std::array::from_fn(|at| (at ^ at >> 8) as u8 ^ index as u8 ^ 0x5A);
        if let Some(area) = self.rx.chain().staging() {
            assert!(area.bytes().copy_in(area.start(self.rx_ids[slot]), &fill[..area.slot_bytes()]));
        }
        let gref = req.gref;
        if !self.rx_ring.lied && gref != 0 {
            self.rx_grefs[slot] = gref;
            let lent = self.lent.iter().filter_map(|loan| loan.rest.as_ref());
            assert!(
                lent.into_iter().all(|(pages, _)| !pages.contains(&gref)),
                "a page that is lent is posted"
            );
            let host = &self.domains.host;
            let map = || host.map(GUEST, &[GrantRef(gref)], Access::ReadWrite).expect("a page for the back");
            assert!(self.rx_pages.entry(gref).or_insert_with(map).copy_in(0, &fill.map(|b| !b)));
        }
        self.rx_ring.mem.write::<2>(index, words);
        self.rx_ring.rsp_prod = index.wrapping_add(1);
    }

    /// Returns `n` frames, from the oldest on, and checks that they are unchanged.
    fn release(&mut self, n: usize) {
        for Loan { token, rest } in self.lent.drain(..n.min(self.lent.len())) {
            let mut pieces = Vec::new();
            while let Some(piece) = self.rx.piece(token, pieces.len()) {
                let mut bytes = vec![0; piece.len()];
                piece.copy_out(&mut bytes);
                pieces.push(bytes);
            }
            if let Some((pages, due)) = rest {
                assert!(
                    pieces.len() == pages.len() && pieces.concat() == due,
                    "a frame that is lent changed"
                );
            }
            assert!(self.rx.release(Token(token.0 ^ 1 << 40)).is_err() && self.rx.release(token).is_ok());
            assert!(self.rx.release(token).is_err(), "a token is good twice");
        }
        assert_eq!(self.rx.lent() as usize, self.lent.len());
    }

    /// Receives until nothing is left, and compares.
    fn recv(&mut self, check_first: bool, by_reference: bool) -> Result<(), PeerFault> {
        if !self.rx_ring.lied {
            self.rx_ring.show();
        }
        if check_first {
            let work = self.rx.final_check(1);
            assert!(self.rx_ring.lied || work.is_ok(), "{work:?} of an honest index");
            work?;
        }
        let mut lent = Lent::default();
        loop {
            self.arena.clear();
            lent.clear();
            let n = match by_reference {
                true => self.rx.recv_by_reference(&mut self.arena, &mut lent, 1),
                false => self.rx.recv(&mut self.arena, 1),
            };
            if self.rx_ring.lied {
                self.lent.extend(lent.tokens().map(|token| Loan { token, rest: None }));
                assert_eq!(self.rx.lent() as usize, self.lent.len());
                n?;
                self.rx.post(&self.domains.guest, &self.chans[2]).expect("standing grants");
                return Ok(());
            }
            let before = self.rx_ring.cons;
            let n = match n {
                Ok(n) => n,
                Err(e) => {
                    while let Next::Frame(..) | Next::Error = self.next_rx() {}
                    assert!(matches!(self.next_rx(), Next::Fault), "{e} where there is no fault");
                    assert_eq!(self.rx.lent() as usize, self.lent.len(), "a fault leaves frames lent");
                    return Err(e);
                }
            };
            lent.copy(&mut self.arena, |token, k| self.rx.piece(token, k));
            for i in 0..n {
                let mut next = self.next_rx();
                while let Next::Error = next {
                    next = self.next_rx();
                }
                let Next::Frame(due, due_offload, pages) = next else {
                    panic!("a frame that the back did not send")
                };
                let (burst, offload) = (self.arena.burst(), self.arena.desc(i).offload);
                let bytes = burst.frame(i);
                assert!(bytes == due, "{} bytes that are not what the back put there", bytes.len());
                assert!(offload == due_offload || due.is_empty());
                assert_eq!(lent.token(i).is_some(), by_reference && !pages.is_empty());
                if let Some(token) = lent.token(i) {
                    self.lent.push(Loan { token, rest: Some((pages, due[RX_HEAD_BYTES..].to_vec())) });
                }
            }
            assert_eq!(self.rx.lent() as usize, self.lent.len());
            if n == 0 {
                let mut errors = 0;
                let next = loop {
                    let at = self.rx_ring.cons;
                    match self.next_rx() {
                        Next::Error => errors += 1,
                        next => {
                            self.rx_ring.cons = at;
                            break next;
                        }
                    }
                };
                // It checked answers that it knew of, and they were errors: what came behind them
                // is for another call.
                if errors > 0 && !matches!(next, Next::Incomplete) {
                    continue;
                }
                assert!(matches!(next, Next::Incomplete), "a frame or a fault that is not read");
                assert_eq!(self.rx.stats().errors, self.rx_errors, "each error is counted once");
                if self.rx_ring.cons == before {
                    return Ok(());
                }
            }
        }
    }

    /// Runs a hook with any verdicts, once, and compares.
    fn hooked(&mut self, tape: &mut Tape<'_>) -> Result<(), PeerFault> {
        if !self.rx_ring.lied {
            self.rx_ring.show();
        }
        self.arena.clear();
        self.diverted.clear();
        let (before, mut asked) = (self.actions, Vec::new());
        let most = 1 + tape.below(64);
        let hook = |f: &mut HookFrame| {
            let (head, len) = (f.head().to_vec(), f.len());
            let says = tape.u8();
            if f.offload.gso_type == 0 {
                match says & 3 {
                    0 => drop(f.grow(usize::from(says))),
                    1 => drop(f.shrink(usize::from(says >> 4))),
                    2 => f.head_mut().iter_mut().for_each(|b| *b = !*b),
                    _ => {}
                }
            }
            let action = match says >> 2 & 3 {
                0 => HookAction::Pass,
                1 => HookAction::Drop,
                2 => HookAction::Redirect(says.into()),
                _ => HookAction::Tx,
            };
            asked.push(Asked { head, len, left: f.head().to_vec(), action });
            action
        };
        let (p, stats) = (&self.domains.guest, &mut self.actions);
        let (out, diverted) = (&mut self.arena, &mut self.diverted);
        let n = self.rx.recv_hooked(&mut Hooked { p, tx: &mut self.tx, out, diverted, stats }, 1, most, hook);
        self.tx.publish(&self.domains.guest, &self.chans[0]);
        let lied = self.rx_ring.lied;
        // They were called for the frames that came, as the rules have it.
        let (mut pass, mut redirect, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        for Asked { head, len, left, action } in if lied { &[][..] } else { &asked[..] } {
            let mut next = self.next_rx();
            while let Next::Error = next {
                next = self.next_rx();
            }
            let Next::Frame(bytes, offload, _) = next else { panic!("a frame that the back did not send") };
            let frame = if offload.gso_type != 0 {
                bytes // its checksum was made blank, or it is dropped
            } else {
                // Of a frame that was sent on the head may be in the buffer as the hook left it.
                let came = *action == HookAction::Tx || bytes.starts_with(head);
                assert!(bytes.len() == *len && came, "a head that the back did not send");
                [&left[..], &bytes[head.len()..]].concat()
            };
            match action {
                _ if frame.len() > MAX_FRAME => {}
                HookAction::Pass => pass.push(frame),
                HookAction::Redirect(vif) => redirect.push((*vif, frame)),
                HookAction::Tx => sent.push((frame, offload)),
                HookAction::Drop => {}
            }
        }
        let mut due = sent.iter();
        while self.tx_seen != self.tx_ring.mem.load(Word::ReqProd) {
            let (bytes, gso) = self.tx_frame();
            let found = due.any(|(frame, offload)| *frame == bytes && offload.gso_type == gso.0);
            assert!(found || lied, "{} bytes that no hook sent", bytes.len());
        }
        if lied {
            n?;
            self.rx.post(&self.domains.guest, &self.chans[2]).expect("standing grants");
            return Ok(());
        }
        if let Err(e) = n {
            while let Next::Frame(..) | Next::Error = self.next_rx() {}
            assert!(matches!(self.next_rx(), Next::Fault), "{e} where there is no fault");
            return Err(e);
        }
        // Before their slots are posted again.
        while self.rx_errors < self.rx.stats().errors {
            assert!(matches!(self.next_rx(), Next::Error), "an error that the back did not answer");
        }
        assert_eq!(n?, asked.len());
        assert_eq!(self.actions.frames() - before.frames(), asked.len() as u64);
        let there = |burst: pregrant::port::Burst<'_>| -> Vec<Vec<u8>> {
            (0..burst.frames.len()).map(|i| burst.frame(i).to_vec()).collect()
        };
        assert!(there(self.arena.burst()) == pass, "frames that passed are others");
        let runs = self.diverted.runs();
        let runs: Vec<_> = runs.flat_map(|(vif, b)| there(b).into_iter().map(move |f| (vif, f))).collect();
        assert!(runs == redirect, "frames for other vifs are others");
        self.rx.post(&self.domains.guest, &self.chans[2]).expect("standing grants");
        Ok(())
    }

    /// Reads the next answers by the rules, and takes them if they are a frame or an error.
    fn next_rx(&mut self) -> Next {
        let n = self.rx_ring.rsp_prod.wrapping_sub(self.rx_ring.cons);
        let read = |k: u32| self.rx_ring.mem.read::<2>(self.rx_ring.cons.wrapping_add(k));
        if n == 0 {
            return Next::Incomplete;
        }
        let mut rsp = RxResponse::from_words(read(0));
        let mut offload = Offload {
            csum_blank: rsp.flags & RXF_CSUM_BLANK != 0,
            csum_ok: rsp.flags & (RXF_CSUM_BLANK | RXF_DATA_VALIDATED) != 0,
            ..Offload::default()
        };
        let (mut used, mut at, mut headroom) = (1, 0, 0);
        let mut extra = rsp.flags & RXF_EXTRA_INFO != 0;
        while extra {
            if used == n {
                return Next::Incomplete;
            }
            let parsed = Extra::parse(read(used));
            let (Ok((info, more)), true) = (parsed, (used as usize) < CHAIN) else { return Next::Fault };
            match info {
                Extra::Gso { size, gso_type } => (offload.gso_size, offload.gso_type) = (size, gso_type),
                Extra::Xdp { headroom: bytes } => headroom = usize::from(bytes),
                _ => {}
            }
            (used, extra) = (used + 1, more);
        }
        let mut pieces = Vec::new();
        let mut error = false;
        loop {
            error |= rsp.status < 0;
            pieces.push((self.rx_ring.cons.wrapping_add(at), rsp));
            if rsp.flags & RXF_MORE_DATA == 0 {
                break;
            }
            if used == n {
                return Next::Incomplete;
            }
            if pieces.len() == CHAIN {
                return Next::Fault;
            }
            (at, used) = (used, used + 1);
            rsp = RxResponse::from_words(read(at));
        }
        let next = if error { Some(Next::Error) } else { self.frame_there(&pieces, headroom, offload) };
        match next {
            Some(next) => {
                self.rx_errors += u64::from(error);
                self.rx_ring.cons = self.rx_ring.cons.wrapping_add(used);
                next
            }
            None => Next::Fault,
        }
    }

    /// The bytes of a frame, from the places that docs/protocol 3.3 prescribes. Headroom, as given
    /// by the answers, uses a part of a buffer, too.
    fn frame_there(&self, pieces: &[(u32, RxResponse)], headroom: usize, offload: Offload) -> Option<Next> {
        // There is no data ring here.
        if pieces.iter().any(|(_, rsp)| rsp.flags & RXF_DATA_RING != 0) {
            return None;
        }
        let total: usize = pieces.iter().map(|(_, rsp)| rsp.status as usize).sum();
        let staging = self.rx.chain().staging();
        let fits = |area: &&StagingArea<_>| pieces.len() == 1 && headroom + total <= area.slot_bytes();
        let staged = staging.filter(|area| area.data_len().copy_only() || fits(area));
        let heads = staging.filter(|area| staged.is_none() && area.holds_heads());
        let (mut bytes, mut behind_head) = (Vec::new(), Vec::new());
        for (index, rsp) in pieces {
            let slot = (index & (SLOTS - 1)) as usize;
            let (offset, len) = (rsp.offset as usize, rsp.status as usize);
            let limit = staged.map_or(PAGE_SIZE, |area| area.slot_bytes());
            if offset + len > limit {
                return None;
            }
            // Its first bytes as far as a buffer has them.
            let (mut offset, mut len) = (offset, len);
            if let Some(area) = heads.filter(|_| bytes.is_empty() && *index == pieces[0].0) {
                let head = area.slot_bytes().saturating_sub(offset).min(len);
                bytes.extend(bytes_of(area.bytes(), area.start(self.rx_ids[slot]) + offset, head));
                (offset, len) = (offset + head, len - head);
            }
            let gref = self.rx_grefs[slot];
            bytes.extend(match (staged, self.rx_pages.get(&gref)) {
                (Some(area), _) => bytes_of(area.bytes(), area.start(self.rx_ids[slot]) + offset, len),
                (None, Some(page)) => bytes_of(page, offset, len),
                (None, None) => return None,
            });
            if staged.is_none() && len > 0 && bytes.len() > RX_HEAD_BYTES {
                behind_head.push(gref);
            }
        }
        if heads.is_some() {
            behind_head.clear(); // it is copied
        }
        let mut offload = offload;
        if offload.gso_type != 0 && !offload.csum_blank {
            // Its checksum is made blank, for which all of it is read; one that has none is
            // dropped.
            behind_head.clear();
            match checksum::make_blank(&mut bytes) {
                Ok(()) => (offload.csum_blank, offload.csum_ok) = (true, true),
                Err(_) => bytes.clear(),
            }
        }
        (total <= MAX_FRAME).then_some(Next::Frame(bytes, offload, behind_head))
    }

    fn close(mut self) {
        self.release(usize::MAX);
        let Self { domains, mut tx, rx, tx_ring, rx_ring, chans, held, rx_pages, lends, own, .. } = self;
        drop((held, rx_pages, tx_ring, rx_ring, chans));
        lends.close(&domains);
        own.close(&domains, &mut tx);
        release_front(&domains.guest, tx.into_parts());
        release_front(&domains.guest, rx.into_parts());
        domains.assert_empty();
    }
}
