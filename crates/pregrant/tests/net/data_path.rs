//! Any frames, in both directions, by every path, with both ends ours: bytes and offloads arrive
//! intact and in order, and nothing stays granted, mapped or bound.
#![cfg(not(miri))] // Miri has data_path_race

use pregrant::net::back::{Polled, SharedControl};
use pregrant::net::front::Granting;
use pregrant::net::gso::MIN_GSO_SIZE;
use pregrant::net::stats::DirStats;
use pregrant::platform::local::LocalCounts;
use pregrant::port::{Arena, Offload, Piece, PieceMut, Sink, Source};
use pregrant_testkit::two_domains::{Frame, GUEST, OWN_WAYS, TestPort, TwoDomains, WAYS, Way};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Lengths at which something changes: buffers, pages, colours, header copies, the ends of what is
/// legal.
const EDGES: [usize; 26] = [
    14, 15, 63, 64, 65, 127, 128, 129, 192, 193, 255, 256, 257, 260, 1500, 2047, 2048, 2049, 4095, 4096,
    4097, 8191, 8192, 8193, 65534, 65535,
];

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => proptest::sample::select(&EDGES[..]),
        4 => 14..300usize,
        2 => 300..5000usize,
        1 => 5000..=65535usize,
    ]
}

fn offloads() -> impl Strategy<Value = Offload> {
    (any::<(bool, bool)>(), prop_oneof![4 => Just(0u8), 1 => 1..=2u8], MIN_GSO_SIZE..=u16::MAX).prop_map(
        |((blank, ok), gso_type, size)| Offload {
            csum_blank: blank || gso_type != 0,    // gso.rs has those that are not
            csum_ok: ok || blank || gso_type != 0, // what the wire can say: blank implies validated
            gso_type,
            gso_size: if gso_type == 0 { 0 } else { size },
        },
    )
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    vec((lengths(), offloads(), any::<u32>()), 1..80)
        .prop_map(|list| list.into_iter().map(|(len, offload, seed)| (noise(len, seed), offload)).collect())
}

/// Bytes that tell where in which frame they belong.
fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x as u8
        })
        .collect()
}

fn ways() -> impl Strategy<Value = Way> {
    proptest::sample::select([&WAYS[..], &OWN_WAYS].concat())
}

fn granting() -> impl Strategy<Value = Granting> {
    prop_oneof![Just(Granting::Standing), Just(Granting::PerFrame)]
}

/// Initial ring indices: any, often just before the wrap.
fn starts() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), any::<u32>(), (u32::MAX - 300..=u32::MAX)]
}

/// How much each side does before the other one gets its turn.
fn turns() -> impl Strategy<Value = Vec<(u8, u8, u8)>> {
    vec((1..=64u8, 0..4u8, 0..4u8), 1..20)
}

/// A frame in fragments of this many bytes.
#[derive(Clone, Copy)]
struct InPieces<'a>(&'a Frame, usize);

impl Source for InPieces<'_> {
    fn len(&self) -> usize {
        self.0.0.len()
    }
    fn offload(&self) -> &Offload {
        &self.0.1
    }
    fn copy_to(&self, at: usize, to: PieceMut<'_>) {
        let mut left = to;
        for piece in self.0.0[at..].chunks(self.1) {
            let (now, later) = left.split_at(piece.len());
            now.copy_in(piece);
            left = later;
        }
        assert!(left.is_empty(), "a place is not longer than the rest of its frame");
    }
}

/// A port that keeps each frame in memory of its own, accepts few at a time, and refuses some at
/// first.
struct Few {
    most: usize,
    refuses: usize,
    took: Vec<Frame>,
}

impl Sink for Few {
    fn takes(&self) -> usize {
        self.most
    }
    fn take<'a>(&mut self, len: usize, offload: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        assert!(self.most > 0, "it said that it takes none");
        if self.refuses > 0 {
            self.refuses -= 1;
            return false;
        }
        let mut frame = vec![0; len];
        let copied = pieces.fold(0, |at, piece| at + piece.copy_out(&mut frame[at..]));
        assert_eq!(copied, len, "the pieces are the frame");
        self.most -= 1;
        self.took.push((frame, offload));
        true
    }
}

/// Sends `frames` from our front to our back, in turns, in fragments of this many bytes, one by one
/// or in bursts. Returns what the port received.
fn carry_tx(
    domains: &TwoDomains,
    way: Way,
    granting: Granting,
    start: u32,
    (frames, pieces): (&[Frame], Option<usize>),
    turns: &[(u8, u8, u8)],
) -> Vec<Frame> {
    let copies = domains.xen.counts().copies;
    let mut ends = domains.tx(way, granting, start);
    let set_up = domains.xen.counts();
    let mut port = TestPort::default();
    let (mut arena, mut burst) = (Arena::new(), Arena::new());
    let mut todo: VecDeque<&Frame> = frames.iter().collect();
    let mut turn = turns.iter().cycle();
    while !todo.is_empty() || ends.front.in_flight() > 0 {
        let &(most, polls, reclaims) = turn.next().expect("turns repeat");
        burst.clear();
        for (bytes, offload) in todo.iter().take(most as usize) {
            if !burst.push(bytes, *offload) {
                break;
            }
        }
        let sent = match pieces {
            None => ends.front.send(&domains.guest, &ends.front_chan, &burst.burst()),
            Some(bytes) => {
                let queued = todo.iter().take(most as usize).take_while(|frame| {
                    let queued = ends.front.queue(&domains.guest, &InPieces(frame, bytes));
                    queued.expect("grants to be had") == 1
                });
                let sent = queued.count();
                ends.front.publish(&domains.guest, &ends.front_chan);
                Ok(sent)
            }
        };
        let sent = sent.expect("grants to be had");
        todo.drain(..sent);
        // At the end of the frames everybody gets a turn, whatever the script says.
        for _ in 0..polls.max(todo.is_empty() as u8) {
            ends.back
                .poll(&domains.host, GUEST, &ends.back_chan, &mut port, &mut arena, &SharedControl::default())
                .expect("an honest front");
        }
        for _ in 0..reclaims.max((sent == 0) as u8) {
            ends.front.reclaim(&domains.guest, 1).expect("an honest back");
        }
        if sent == 0 {
            ends.back
                .poll(&domains.host, GUEST, &ends.back_chan, &mut port, &mut arena, &SharedControl::default())
                .expect("an honest front");
        }
    }
    assert!(!ends.back.final_check().expect("an honest front"), "nothing is left to do");
    assert_counted(domains, way, frames, (ends.front.stats(), ends.back.stats()), (copies, set_up));
    ends.close(domains);
    port.took
}

/// Checks the counters of the front and of the back after `frames`, and that the back's count of
/// grant operations since `set_up` is the machine's. `copies`: the machine's before the set-up.
fn assert_counted(
    domains: &TwoDomains,
    way: Way,
    frames: &[Frame],
    (front, back): (DirStats, DirStats),
    (copies, set_up): (u64, LocalCounts),
) {
    assert_eq!((front.frames, front.errors), (frames.len() as u64, 0));
    assert_eq!((back.frames, back.errors, back.dropped), (frames.len() as u64, 0, 0));
    assert_eq!((front.bytes, front.staging), (back.bytes, back.staging), "both ends count alike");
    let (now, ops) = (domains.xen.counts(), back.grant_ops);
    if way.copy_only() {
        assert_eq!((back.granted, now.copies), (0, copies), "no grant operation with 65535");
    }
    assert_eq!(ops.copies, now.copies - set_up.copies);
    assert_eq!((ops.maps, ops.unmaps), (now.maps - set_up.maps, now.unmaps - set_up.unmaps));
}

/// Delivers `frames` from our back to our front, in turns; returns what arrived. To a sink of its
/// own, or to arenas.
fn carry_rx(
    domains: &TwoDomains,
    way: Way,
    granting: Granting,
    (start, after_tx): (u32, bool),
    (frames, own_sink): (&[Frame], bool),
    turns: &[(u8, u8, u8)],
) -> Vec<Frame> {
    let copies = domains.xen.counts().copies;
    let mut ends = domains.rx(way, granting, start, after_tx);
    let set_up = domains.xen.counts();
    let mut port = TestPort::default();
    let mut arena = Arena::new();
    let mut todo: VecDeque<&Frame> = frames.iter().collect();
    let mut arrived = Vec::new();
    let mut turn = turns.iter().cycle();
    let mut idle = false;
    while !todo.is_empty() || !port.gives.is_empty() || !idle {
        let &(most, polls, recvs) = turn.next().expect("turns repeat");
        for _ in 0..most {
            port.gives.extend(todo.pop_front().cloned());
        }
        ends.front.post(&domains.guest, &ends.front_chan).expect("grants to be had");
        idle = false;
        for _ in 0..=polls {
            let polled = ends
                .back
                .poll(&domains.host, GUEST, &ends.back_chan, &mut port, &SharedControl::default())
                .expect("an honest front");
            idle = polled == Polled::Idle && !ends.back.final_check().expect("an honest front");
        }
        for _ in 0..=recvs {
            if own_sink {
                let mut few =
                    Few { most: usize::from(most % 7), refuses: usize::from(polls % 2), took: Vec::new() };
                let asked = (few.most, few.refuses);
                let n = ends.front.recv(&mut few, 1).expect("an honest back");
                assert_eq!(n, few.took.len());
                idle &= n == 0 && asked.0 > 0 && asked.1 == few.refuses;
                arrived.append(&mut few.took);
                continue;
            }
            arena.clear();
            let n = ends.front.recv(&mut arena, 1).expect("an honest back");
            assert_eq!(n, arena.len());
            idle &= n == 0;
            arrived.extend(arena.burst().iter().map(|(bytes, offload)| (bytes.to_vec(), offload)));
        }
    }
    assert_counted(domains, way, frames, (ends.front.stats(), ends.back.stats()), (copies, set_up));
    ends.close(domains);
    arrived
}

/// Compares without printing frames of 65535 bytes.
fn same(arrived: &[Frame], sent: &[Frame]) -> Result<(), TestCaseError> {
    prop_assert_eq!(arrived.len(), sent.len());
    for (i, (a, s)) in arrived.iter().zip(sent).enumerate() {
        prop_assert_eq!(a.1, s.1, "offload of frame {}", i);
        prop_assert_eq!(a.0.len(), s.0.len(), "length of frame {}", i);
        let differs = a.0.iter().zip(&s.0).position(|(a, s)| a != s);
        prop_assert_eq!(differs, None, "first byte that differs in frame {} of {}", i, s.0.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_the_guest_sends_arrives(
        way in ways(), granting in granting(), start in starts(), frames in frames(), turns in turns(),
    ) {
        let domains = TwoDomains::new();
        same(&carry_tx(&domains, way, granting, start, (&frames, None), &turns), &frames)?;
        domains.assert_empty();
    }

    #[test]
    fn what_comes_for_the_guest_arrives(
        way in ways(), granting in granting(), start in starts(), after_tx: bool, frames in frames(), turns in turns(),
    ) {
        let domains = TwoDomains::new();
        same(&carry_rx(&domains, way, granting, (start, after_tx), (&frames, false), &turns), &frames)?;
        domains.assert_empty();
    }

    /// Frames that are in pieces go as those of a burst do.
    #[test]
    fn what_is_sent_in_pieces_arrives(
        way in ways(), granting in granting(), start in starts(), pieces in 1..5000usize, frames in frames(),
        turns in turns(),
    ) {
        let domains = TwoDomains::new();
        same(&carry_tx(&domains, way, granting, start, (&frames, Some(pieces)), &turns), &frames)?;
        domains.assert_empty();
    }

    /// A sink of any kind gets what an arena gets; what it has no room for stays on the ring.
    #[test]
    fn any_sink_gets_what_comes(
        way in ways(), granting in granting(), start in starts(), after_tx: bool, frames in frames(),
        mut turns in turns(),
    ) {
        let domains = TwoDomains::new();
        turns.push((1, 0, 0)); // one that takes a frame
        same(&carry_rx(&domains, way, granting, (start, after_tx), (&frames, true), &turns), &frames)?;
        domains.assert_empty();
    }

    /// The two directions of one queue have lengths of their own, and either may be without
    /// staging.
    #[test]
    fn directions_are_negotiated_apart(tx in ways(), rx in ways(), frames in frames(), turns in turns()) {
        let domains = TwoDomains::new();
        let after_tx = tx.data_len().is_some();
        same(&carry_tx(&domains, tx, Granting::PerFrame, 0, (&frames, None), &turns), &frames)?;
        same(&carry_rx(&domains, rx, Granting::PerFrame, (0, after_tx), (&frames, false), &turns), &frames)?;
        domains.assert_empty();
    }
}

/// The sender decides when the back sees its requests.
#[test]
fn what_is_queued_is_seen_once_it_is_published() {
    let domains = TwoDomains::new();
    let mut ends = domains.tx(Way::Copy, Granting::PerFrame, 0);
    let (mut port, mut arena) = (TestPort::default(), Arena::new());
    let frame = (noise(9000, 1), Offload::default());
    for published in [false, true] {
        if published {
            ends.front.publish(&domains.guest, &ends.front_chan);
        } else {
            assert_eq!(ends.front.queue(&domains.guest, &InPieces(&frame, 100)), Ok(1));
        }
        let polled = ends.back.poll(
            &domains.host,
            GUEST,
            &ends.back_chan,
            &mut port,
            &mut arena,
            &SharedControl::default(),
        );
        assert_eq!(
            (polled, port.took.len()),
            (Ok(if published { Polled::More } else { Polled::Idle }), usize::from(published))
        );
    }
    ends.front.reclaim(&domains.guest, 1).expect("an honest back");
    ends.close(&domains);
    domains.assert_empty();
}

/// A frame of at most N bytes needs no grant operation, one of N + 1 bytes does.
#[test]
fn the_data_length_is_where_staging_ends() {
    for len in [64usize, 128, 256, 2048, 4096] {
        for (content, staged) in [(len, 1), (len + 1, 0)] {
            let domains = TwoDomains::new();
            let mut ends = domains.tx(Way::Staging(len as u32), Granting::PerFrame, 0);
            let (mut arena, mut burst, mut port) = (Arena::new(), Arena::new(), TestPort::default());
            assert!(burst.push(&noise(content, 1), Offload::default()));
            assert_eq!(ends.front.send(&domains.guest, &ends.front_chan, &burst.burst()), Ok(1));
            ends.back
                .poll(&domains.host, GUEST, &ends.back_chan, &mut port, &mut arena, &SharedControl::default())
                .expect("an honest front");
            let stats = ends.back.stats();
            assert_eq!((stats.staging, stats.granted), (staged, 1 - staged), "TX {content} of {len}");
            assert_eq!(domains.xen.counts().copies == 0, staged == 1);
            ends.close(&domains);

            let mut ends = domains.rx(Way::Staging(len as u32), Granting::PerFrame, 0, false);
            let mut port =
                TestPort { gives: [(noise(content, 1), Offload::default())].into(), ..TestPort::default() };
            ends.front.post(&domains.guest, &ends.front_chan).expect("grants to be had");
            ends.back
                .poll(&domains.host, GUEST, &ends.back_chan, &mut port, &SharedControl::default())
                .expect("an honest front");
            let stats = ends.back.stats();
            assert_eq!((stats.staging, stats.granted), (staged, 1 - staged), "RX {content} of {len}");
            ends.close(&domains);
            domains.assert_empty();
        }
    }
}
