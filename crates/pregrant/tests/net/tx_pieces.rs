//! Frames whose head is copied and whose rest is in pages that the guest grants for the frame, and
//! keeps until its request is answered.
#![cfg(not(miri))]

use crate::pair::{Pair, ordinary};
use pregrant_testkit::raw_back::Tx;
use pregrant_testkit::two_domains::{HOST, TestPort, Way, byte};

use pregrant::net::back::{Polled, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, GrantedPiece, PIECES_MAX};
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::LocalRegion;
use pregrant::platform::{Access, GrantPool};
use pregrant::port::{Arena, BurstFrame, Frames, Offload};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::RSP_OKAY;
use pregrant::{GrantRef, PAGE_SIZE, PeerFault};
use std::collections::BTreeMap;

const PAGES: usize = 32;

/// A guest with pages that are not its pool's, and both ends of a vif.
struct Guest {
    pair: Pair,
    memory: LocalRegion,
    /// Grants of fragments, by id.
    out: BTreeMap<u16, GrantRef>,
}

fn back() -> VifConfig {
    let features = BackFeatures { gso_tcpv4: true, ..BackFeatures::default() };
    VifConfig { features, ..VifConfig::default() }
}

impl Guest {
    fn new(config: FrontConfig) -> Self {
        let mut pair = Pair::new(config, back());
        pair.connect();
        let memory = pair.g.per_frame().expect("single grants").pages(PAGES).expect("pages");
        let bytes: Vec<u8> = (0..PAGES * PAGE_SIZE).map(byte).collect();
        assert!(memory.copy_in(0, &bytes));
        Self { pair, memory, out: BTreeMap::new() }
    }

    /// Grants fragments of these lengths, the `k`-th in page `k`, and returns the frame that ends
    /// with them, after `head` bytes.
    fn grant(&self, head: usize, lens: &[(u16, u16)]) -> (Vec<u8>, Vec<GrantedPiece>) {
        let mut frame: Vec<u8> = (0..head).map(|at| byte(at + 5)).collect();
        let table = self.pair.g.per_frame().expect("single grants");
        let piece = |(page, &(offset, len)): (usize, &(u16, u16))| {
            let mut bytes = vec![0; usize::from(len)];
            assert!(self.memory.copy_out(page * PAGE_SIZE + usize::from(offset), &mut bytes));
            frame.extend(bytes);
            let gref = table.grant(HOST, &self.memory, page, Access::ReadOnly).expect("a grant");
            GrantedPiece { gref, offset, len }
        };
        let pieces = lens.iter().enumerate().map(piece).collect();
        (frame, pieces)
    }

    fn end(&self, gref: GrantRef) {
        assert!(self.pair.g.per_frame().expect("single grants").revoke(gref).is_ok());
    }

    /// Queues it; whether there was room, or why it cannot be.
    fn queue(
        &mut self,
        frame: &[u8],
        offload: Offload,
        pieces: &[GrantedPiece],
    ) -> Result<bool, &'static str> {
        let mut arena = Arena::new();
        assert!(arena.push(frame, offload));
        let burst = arena.burst();
        let source: BurstFrame<'_> = burst.get(0).expect("a frame");
        let mut ids = [u16::MAX; PIECES_MAX];
        let queue = self.pair.front.queue_mut(0).expect("a queue");
        let queued = queue.queue_pieces(&self.pair.g, &source, pieces, &mut ids).map_err(|e| e.op)?;
        if queued {
            for (id, piece) in ids.into_iter().zip(pieces) {
                assert_eq!(self.out.insert(id, piece.gref), None, "id {id} is out twice");
            }
        }
        Ok(queued)
    }

    /// Shows the back what was queued; returns the frames that it got.
    fn took(&mut self) -> Vec<(Vec<u8>, Offload)> {
        let Pair { front, back, g, h, .. } = &mut self.pair;
        front.queue_mut(0).expect("a queue").publish(g);
        let mut port = TestPort::default();
        while back.poll_tx(h, 0, &mut port, &mut Arena::new()).expect("an honest front") == Polled::More {}
        port.took
    }

    /// Processes answers, and ends the grants of the answered fragments.
    fn reclaim(&mut self) {
        let queue = self.pair.front.queue_mut(0).expect("a queue");
        queue.reclaim(&self.pair.g, 1).expect("an honest back");
        while let Some(id) = self.pair.front.queue_mut(0).expect("a queue").answered_piece() {
            let gref = self.out.remove(&id).expect("a piece that is out");
            self.end(gref);
        }
    }

    fn close(self) {
        assert!(self.out.is_empty());
        assert!(self.pair.g.release(self.memory).is_ok());
        self.pair.close();
    }
}

fn staged(len: u32) -> FrontConfig {
    let len = DataLen::new(len);
    FrontConfig { staging: Buffers::of(len, len), ..FrontConfig::default() }
}

/// On each path for ordinary frames, between such frames, and more than the ring has slots.
#[test]
fn a_frame_is_its_head_and_its_pieces() {
    let gref_mapping = FrontConfig { gref_mapping: true, ..ordinary() };
    for config in [ordinary(), staged(256), staged(2048), gref_mapping] {
        let mut guest = Guest::new(config);
        for turn in 0..200_u16 {
            let n = 1 + usize::from(turn) % PIECES_MAX;
            let head = 14 + usize::from(turn) * 20;
            let full = |k| if k < 15 { (0, 4096 - 256) } else { (turn, 200) };
            let short = |k: u16| (k * turn % 2000, 1 + turn * 9);
            let lens: Vec<_> =
                (0..n as u16).map(|k| if turn % 2 == 0 { full(k) } else { short(k) }).collect();
            let (frame, pieces) = guest.grant(head, &lens);
            assert_eq!(guest.queue(&frame, Offload::default(), &pieces), Ok(true), "turn {turn}");
            let (between, none) = guest.grant(300, &[]);
            assert_eq!(guest.pair.front.queue_mut(0).unwrap().queue(&guest.pair.g, &&between[..]), Ok(1));
            assert!(none.is_empty());
            let took: Vec<_> = guest.took().into_iter().map(|(bytes, _)| bytes).collect();
            assert!(took == [frame, between], "turn {turn}");
            guest.reclaim();
            assert!(guest.out.is_empty(), "all are answered");
        }
        guest.close();
    }
}

#[test]
fn a_large_segment_has_its_extra_info_behind_its_head() {
    let mut guest = Guest::new(staged(2048));
    let offload = Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 };
    // Headers that a back can parse: TCP over IPv4, whose lengths are right.
    let mut pieces = vec![(0, 4096); 15];
    pieces.push((100, 3000));
    let (mut frame, pieces) = guest.grant(54, &pieces);
    let link = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let (mut packet, payload) = (Vec::new(), frame.split_off(54));
    link.tcp(1, 2, 1000, 500).write(&mut packet, &payload).expect("a packet");
    assert_eq!(guest.queue(&packet, offload, &pieces), Ok(true));
    let took = guest.took();
    assert_eq!((took.len(), took[0].1.gso_size), (1, 1448));
    assert!(took[0].0[54..] == payload);
    guest.reclaim();
    guest.close();
}

/// The frame is refused: nothing is on the ring, and nothing was taken.
#[test]
fn what_is_no_such_frame_is_refused() {
    let mut guest = Guest::new(staged(2048));
    let (frame, pieces) = guest.grant(60, &[(0, 4096), (96, 1000)]);
    let piece = |offset, len| GrantedPiece { gref: pieces[0].gref, offset, len };
    let refused = "send a frame in pieces that are no such";
    let room = guest.pair.front.room(0);
    let parts = [
        &[][..],           // none
        &[piece(0, 0)],    // an empty one
        &[piece(1, 4096)], // beyond its page
        &[piece(u16::MAX, 1)],
        &[piece(0, 900)],                  // the head would be longer than a page
        &[piece(0, 4096), piece(0, 1050)], // the head would be shorter than its addresses
        &[piece(0, 4096), piece(0, 1060)], // no head
        &[piece(0, 4096), piece(0, 4096)], // more than the frame
        &[piece(0, 60); PIECES_MAX + 1],
    ];
    for pieces in parts {
        assert_eq!(guest.queue(&frame, Offload::default(), pieces), Err(refused), "{pieces:?}");
    }
    let unknown = Offload { gso_type: 3, ..Offload::default() };
    assert_eq!(guest.queue(&frame, unknown, &pieces), Err(refused));
    assert_eq!((guest.pair.front.room(0), guest.took().len()), (room, 0));
    assert_eq!(guest.queue(&frame, Offload::default(), &pieces), Ok(true));
    assert_eq!(guest.took().len(), 1);
    guest.reclaim();
    guest.close();
}

/// Not possible if the back keeps pages mapped by their references, reads the first slot or all of
/// a frame from a buffer, or accepts only one slot for each frame.
#[test]
fn not_on_every_path() {
    for config in [FrontConfig { persistent: true, ..ordinary() }, staged(4096), staged(65535)] {
        let mut guest = Guest::new(config);
        let (frame, pieces) = guest.grant(60, &[(0, 4096)]);
        assert!(!guest.pair.front.queue(0).expect("a queue").tx().takes_pieces());
        assert!(guest.queue(&frame, Offload::default(), &pieces).is_err());
        guest.end(pieces[0].gref);
        guest.close();
    }
    let features = BackFeatures { sg: false, ..BackFeatures::default() };
    let mut pair = Pair::new(ordinary(), VifConfig { features, ..VifConfig::default() });
    pair.connect();
    assert!(!pair.front.queue(0).expect("a queue").tx().takes_pieces());
    pair.close();
}

#[test]
fn a_full_ring_takes_none_and_goes_on() {
    let mut guest = Guest::new(ordinary());
    let (frame, pieces) = guest.grant(60, &[(0, 4096); PIECES_MAX - 3]);
    for _ in 0..3 {
        let mut queued = 0;
        while guest.queue(&frame, Offload::default(), &pieces) == Ok(true) {
            queued += 1;
            // A piece is in several frames here: each id has its own end, of which the last counts.
            guest.out.clear();
        }
        assert_eq!(queued, 256 / (1 + pieces.len()));
        assert_eq!(guest.took().len(), queued);
        let queue = guest.pair.front.queue_mut(0).expect("a queue");
        assert_eq!(queue.reclaim(&guest.pair.g, 1), Ok((queued * (1 + pieces.len())) as u32));
        let mut ended = 0;
        while guest.pair.front.queue_mut(0).expect("a queue").answered_piece().is_some() {
            ended += 1;
        }
        assert_eq!(ended, queued * pieces.len());
    }
    pieces.iter().for_each(|piece| guest.end(piece.gref));
    guest.close();
}

/// A fragment whose request is answered twice, or out of order.
#[test]
fn a_back_answers_pieces_as_it_likes() {
    let mut t = Tx::new(Way::Copy);
    t.front.allow_pieces().unwrap();
    let frame: Vec<u8> = (0..5000).map(byte).collect();
    let gref = GrantRef(9);
    let pieces = [GrantedPiece { gref, offset: 0, len: 2000 }, GrantedPiece { gref, offset: 8, len: 2500 }];
    let mut ids = [0; 2];
    assert_eq!(t.front.queue_pieces(&t.domains.guest, &&frame[..], &pieces, &mut ids), Ok(true));
    t.front.publish(&t.domains.guest, &t.chans.0);
    let [head, first, last] = [0, 1, 2].map(|k| t.back.tx(k));
    assert_eq!((head.size, first.id, last.id), (5000, ids[0], ids[1]));
    assert_eq!((first.gref, first.offset, last.offset, last.size), (9, 0, 8, 2500));
    t.back.answer_tx(last.id, RSP_OKAY);
    t.back.answer_tx(first.id, RSP_OKAY);
    assert_eq!(t.reclaim(), Ok(2));
    assert_eq!([t.front.answered_piece(), t.front.answered_piece()], [Some(ids[0]), Some(ids[1])]);
    t.back.answer_tx(first.id, RSP_OKAY);
    assert_eq!(t.reclaim(), Err(PeerFault::UnknownId(first.id)));
    assert_eq!(t.front.answered_piece(), None);
    t.close();
}
