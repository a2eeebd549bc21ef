//! A front's queues apart from their vif: served as halves by two threads, and called back when the
//! back closes or another one comes.
#![cfg(not(miri))]

use crate::pair::{Pair, ordinary};
use pregrant_testkit::bus::device;
use pregrant_testkit::two_domains::{GUEST, HOST, TestPort, byte};

use pregrant::net::back::{BackVif, Polled, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, FrontQueue, FrontStep, FrontVif};
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::Platform;
use pregrant::platform::local::LocalXen;
use pregrant::port::{Arena, Offload, Piece, Sink};
use std::sync::atomic::{AtomicBool, Ordering};

const FRAMES: usize = 20_000;

fn numbered(k: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..[60, 300, 1514, 5000][k % 4]).map(byte).collect();
    frame[20..24].copy_from_slice(&(k as u32).to_le_bytes());
    frame
}

/// Each half runs at its own speed, and neither sees the other's state: all frames arrive, in both
/// directions, in order.
#[test]
fn two_threads_serve_the_halves_of_a_queue() {
    for config in [ordinary(), FrontConfig { split_channels: false, ..ordinary() }, FrontConfig::default()] {
        let mut pair = Pair::new(config, VifConfig::default());
        pair.connect();
        let queues = pair.front.hand_out_queues();
        assert!(pair.front.is_handed_out() && !pair.front.is_closed());
        assert_eq!((queues.len(), pair.front.nr_queues(), pair.front.queue(0).is_some()), (1, 1, false));
        let queue = queues.into_iter().next().expect("a queue");
        let (mut tx, mut rx) = queue.into_halves();
        let (sends, receives) = (pair.g.another().expect("a handle"), pair.g.another().expect("a handle"));
        let done = AtomicBool::new(false);
        let Pair { h, back, .. } = &mut pair;
        let (tx, rx, took) = std::thread::scope(|threads| {
            let sender = threads.spawn(|| {
                for k in 0..FRAMES {
                    let frame = numbered(k);
                    while tx.queue(&sends, &&frame[..]).expect("grants to be had") == 0 {
                        tx.publish(&sends);
                        tx.reclaim(&sends, 1).expect("an honest back");
                        std::thread::yield_now();
                    }
                    if k % 7 == 0 {
                        tx.publish(&sends);
                    }
                }
                tx.publish(&sends);
                while tx.front().in_flight() > 0 {
                    tx.reclaim(&sends, 1).expect("an honest back");
                    std::thread::yield_now();
                }
                tx
            });
            let poller = threads.spawn(|| {
                let (mut arena, mut came) = (Arena::new(), 0);
                while came < FRAMES {
                    arena.clear();
                    rx.recv(&receives, &mut arena, 1).expect("an honest back");
                    for (frame, _) in arena.burst().iter() {
                        assert!(frame == numbered(came), "frame {came}");
                        came += 1;
                    }
                    std::thread::yield_now();
                }
                rx
            });
            let serve = || {
                let (mut port, mut arena, mut given) = (TestPort::default(), Arena::new(), 0);
                while !done.load(Ordering::Relaxed) {
                    if port.gives.is_empty() && given < FRAMES {
                        port.gives.extend((given..given + 16).map(|k| (numbered(k), Offload::default())));
                        given += 16;
                    }
                    let tx = back.poll_tx(h, 0, &mut port, &mut arena).expect("an honest front");
                    let rx = back.poll_rx(h, 0, &mut port).expect("an honest front");
                    if (tx, rx) == (Polled::Idle, Polled::Idle) {
                        std::thread::yield_now();
                    }
                }
                port.took
            };
            let server = threads.spawn(serve);
            let (tx, rx) = (sender.join(), poller.join());
            done.store(true, Ordering::Relaxed);
            (tx.expect("it sends"), rx.expect("it receives"), server.join().expect("it serves"))
        });
        assert_eq!(took.len(), FRAMES);
        assert!(took.iter().enumerate().all(|(k, (frame, _))| *frame == numbered(k)));
        let Ok(queue) = FrontQueue::of_halves(tx, rx) else { panic!("they are of one queue") };
        pair.front.take_back(vec![queue]);
        pair.exchange(100, 1);
        pair.close();
    }
}

/// Halves of two queues make none.
#[test]
fn a_queue_is_made_of_its_own_halves() {
    let features = BackFeatures { max_queues: 2, ..BackFeatures::default() };
    let mut pair =
        Pair::new(FrontConfig { queues: 2, ..ordinary() }, VifConfig { features, ..VifConfig::default() });
    pair.connect();
    let mut halves = pair.front.hand_out_queues().into_iter().map(FrontQueue::into_halves);
    let ((tx_a, rx_a), (tx_b, rx_b)) = (halves.next().expect("a queue"), halves.next().expect("another"));
    let Err((tx_a, rx_b)) = FrontQueue::of_halves(tx_a, rx_b) else { panic!("they are of two queues") };
    let whole = [FrontQueue::of_halves(tx_a, rx_a), FrontQueue::of_halves(tx_b, rx_b)];
    pair.front.take_back(whole.into_iter().filter_map(Result::ok).collect());
    assert_eq!(pair.front.nr_queues(), 2);
    pair.close();
}

/// A vif whose queues are handed out is torn down once they are back; nothing travels meanwhile.
#[test]
fn a_back_that_closes_has_queues_called_back() {
    let mut pair = Pair::new(ordinary(), VifConfig::default());
    pair.connect();
    let mut queues = pair.front.hand_out_queues();
    let grants = pair.xen.counts().grants;
    pair.bb.own.borrow_mut().insert("state".into(), "5".into());
    for _ in 0..2 {
        assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Recall);
    }
    let queue = &mut queues[0];
    assert_eq!(queue.send(&pair.g, &&[0; 60][..]), Ok(0));
    assert_eq!(queue.recv(&pair.g, &mut Arena::new(), 1), Ok(0));
    assert_eq!(queue.reclaim(&pair.g, 1), Ok(0));
    assert_eq!(pair.xen.counts().grants, grants, "nothing was given up");
    pair.front.take_back(queues);
    assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Closed);
    assert!(pair.front.hand_out_queues().is_empty(), "there is none");
}

/// The toolstack removes the vif while its queues are handed out: nothing of them is left once they
/// are back.
#[test]
fn a_vif_that_is_removed_has_queues_called_back() {
    let mut pair = Pair::new(ordinary(), VifConfig::default());
    pair.connect();
    let mut queues = pair.front.hand_out_queues();
    assert_eq!(pair.front.removed(&pair.g), FrontStep::Recall);
    assert_eq!(queues[0].send(&pair.g, &&[0; 60][..]), Ok(0));
    pair.front.take_back(queues);
    assert!(!pair.front.is_live() && !pair.front.is_closed());
    assert_eq!(pair.front.removed(&pair.g), FrontStep::Closed);
    assert_eq!(pair.front.nr_queues(), 0);
    // Pages that the back has mapped are released when it unmaps them.
    pair.back.close(&pair.h, &mut pair.bb, None).expect("a map");
    pair.front.step(&pair.g, &mut pair.fb).expect("a map");
    assert!(pair.front.is_closed());
    assert_eq!(pair.xen.counts().grants, 0);
}

/// Another back has the rings: the vif checks its queues, which go on afterwards.
#[test]
fn a_back_that_is_another_has_queues_called_back() {
    let mut pair = Pair::new(ordinary(), VifConfig::default());
    pair.connect();
    let queues = pair.front.hand_out_queues();
    let state = |pair: &mut Pair, state: &str| {
        pair.bb.own.borrow_mut().insert("state".into(), state.into());
        pair.front.step(&pair.g, &mut pair.fb).expect("a map")
    };
    assert_eq!(state(&mut pair, "3"), FrontStep::Waiting);
    assert_eq!(state(&mut pair, "4"), FrontStep::Recall);
    pair.front.take_back(queues);
    assert_eq!(state(&mut pair, "4"), FrontStep::Renewed);
    pair.exchange(100, 1);
    pair.close();
}

/// The back is asked for pages while the queues that have them are away.
#[test]
fn pages_are_announced_while_queues_are_handed_out() {
    let features = BackFeatures { ctrl_ring: true, ..BackFeatures::default() };
    let config = FrontConfig { gref_mapping: true, ..ordinary() };
    let mut pair = Pair::new(config, VifConfig { features, ..VifConfig::default() });
    pair.connect();
    let queues = pair.front.hand_out_queues();
    for _ in 0..50 {
        pair.back.poll_ctrl(&pair.h).expect("an honest front");
        pair.front.turn(&pair.g).expect("an honest back");
    }
    assert!(!pair.front.is_announcing());
    assert!(pair.front.gref_pages(0) > 0, "the back has pages of the queue");
    pair.front.take_back(queues);
    pair.exchange(100, 1);
    pair.close();
}

/// A back in state 2 uses the live rings within its time, as Linux's netback does, or else waits
/// for a front that starts again: then the front does.
#[test]
fn a_front_begins_again_for_a_back_that_stays_at_2() {
    let xen = LocalXen::new();
    xen.stop_clock(1);
    let mut pair = Pair::on(xen, ordinary(), VifConfig::default());
    pair.front = FrontVif::new(HOST, ordinary(), true);
    pair.connect();
    let state = |pair: &mut Pair, state: &str| {
        pair.bb.own.borrow_mut().insert("state".into(), state.into());
        pair.front.step(&pair.g, &mut pair.fb).expect("a map")
    };
    assert_eq!((state(&mut pair, "2"), pair.front.is_live()), (FrontStep::Waiting, true));
    assert!(pair.front.begins_at_ns().is_some());
    assert_eq!((state(&mut pair, "4"), pair.front.begins_at_ns()), (FrontStep::Renewed, None));
    pair.exchange(100, 1);
    assert_eq!(state(&mut pair, "2"), FrontStep::Waiting);
    assert_eq!(until_it_restarts(&mut pair, &mut 1, 60 * S), Some(30 * S), "its rings are idle");
    pair.connect();
    if let Some(at_ns) = pair.front.begins_at_ns() {
        pair.xen.stop_clock(at_ns);
        pair.connect();
    }
    assert!(pair.front.is_live(), "front {:?}, back {:?}", pair.front.state(), pair.back.state());
    pair.exchange(100, 1);
}

const S: u64 = 1_000_000_000;

/// Steps the front, whose back is in state 2, whenever it asks for it, for at most `most_ns`.
/// Returns after what time it restarted; None: it did not.
fn until_it_restarts(pair: &mut Pair, now_ns: &mut u64, most_ns: u64) -> Option<u64> {
    let began = *now_ns;
    while let Some(at_ns) = pair.front.begins_at_ns().filter(|at| *at <= began + most_ns) {
        *now_ns = at_ns;
        pair.xen.stop_clock(at_ns);
        assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Waiting);
        if !pair.front.is_live() {
            assert_eq!(pair.fb.own.borrow()["state"], "5");
            return Some(at_ns - began);
        }
    }
    assert_eq!(pair.fb.own.borrow()["state"], "4");
    *now_ns = began + most_ns;
    pair.xen.stop_clock(*now_ns);
    None
}

/// A back at 2 that serves the live rings, as Linux's netback does until its hotplug script has
/// run, keeps its front: the time counts from the last answer. One that has stopped answering loses
/// it, and so does one that never answered.
#[test]
fn a_back_at_2_that_answers_keeps_its_front() {
    for handed_out in [false, true] {
        let xen = LocalXen::new();
        xen.stop_clock(1);
        let mut pair = Pair::on(xen, ordinary(), VifConfig::default());
        pair.front = FrontVif::new(HOST, ordinary(), true);
        pair.connect();
        let mut halves = handed_out.then(|| pair.front.hand_out_queues().remove(0).into_halves());
        pair.bb.own.borrow_mut().insert("state".into(), "2".into());
        assert_eq!(pair.front.step(&pair.g, &mut pair.fb).expect("a map"), FrontStep::Waiting);
        let mut send = |pair: &mut Pair, answered: bool| {
            let frame = [7; 60];
            match &mut halves {
                Some((tx, _)) => {
                    assert_eq!(tx.send(&pair.g, &&frame[..]), Ok(1));
                    let _ = tx.final_check(&pair.g, 1).expect("an honest back");
                }
                None => assert_eq!(pair.front.queue_mut(0).unwrap().send(&pair.g, &&frame[..]), Ok(1)),
            }
            let Pair { h, back, .. } = pair;
            let mut port = TestPort::default();
            let mut poll = || back.poll_tx(h, 0, &mut port, &mut Arena::new()).expect("an honest front");
            while answered && poll() != Polled::Idle {}
            if let (Some((tx, _)), true) = (&mut halves, answered) {
                assert!(tx.reclaim(&pair.g, 1).expect("an honest back") > 0);
            }
        };
        let mut now_ns = 1;
        for second in 0..10 {
            send(&mut pair, true);
            let restarted = until_it_restarts(&mut pair, &mut now_ns, S);
            assert_eq!(restarted, None, "after {second} s, handed out: {handed_out}");
        }
        let restarted = until_it_restarts(&mut pair, &mut now_ns, 100 * S);
        assert_eq!(restarted, None, "an idle link says nothing against it");
        send(&mut pair, false);
        let restarted = until_it_restarts(&mut pair, &mut now_ns, 100 * S).map(|ns| ns / S);
        assert_eq!(restarted, Some(3), "handed out: {handed_out}");
    }
}

/// The guest has another domain id after a restore: the old back has nothing, and neither has the
/// front, whose queues were handed out.
#[test]
fn a_restored_guest_has_nothing_granted() {
    let mut pair = Pair::new(ordinary(), VifConfig::default());
    pair.front = FrontVif::new(HOST, ordinary(), true);
    pair.connect();
    let queues = pair.front.hand_out_queues();
    drop(std::mem::replace(&mut pair.back, BackVif::new(GUEST, 0, VifConfig::default())));
    assert_eq!(pair.front.restored(&pair.g), FrontStep::Recall);
    pair.front.take_back(queues);
    assert_eq!(pair.front.restored(&pair.g), FrontStep::Closed);
    let left = pair.xen.counts();
    assert_eq!((left.grants, left.mapped, left.channels, pair.front.is_closed()), (0, 0, 0, true));
    // The toolstack makes its directories again, and a front begins.
    (pair.fb, pair.bb) = device();
    pair.front = FrontVif::new(HOST, ordinary(), true);
    pair.connect();
    pair.exchange(100, 1);
}

/// Bytes as they come, and the buffers that they are in.
#[derive(Default)]
struct Seen {
    frames: Vec<Vec<u8>>,
    places: Vec<(u16, u16)>,
}

impl Sink for Seen {
    fn takes(&self) -> usize {
        64
    }
    fn take<'a>(&mut self, len: usize, _: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        let mut frame = vec![0; len];
        pieces.fold(0, |at, piece| at + piece.copy_out(&mut frame[at..]));
        self.frames.push(frame);
        true
    }
    fn in_buffer(&mut self, slot: u16, offset: u16, bytes: usize) {
        assert_eq!(bytes, 2048);
        self.places.push((slot, offset));
    }
}

/// Received buffers that one half sends through the other are returned to it, and no slot waits for
/// one.
#[test]
fn a_half_sends_received_buffers_on() {
    let len = DataLen::new(2048);
    let staging = Buffers { sent_on: true, ..Buffers::of(len, len) };
    let mut pair = Pair::new(FrontConfig { staging, ..ordinary() }, VifConfig::default());
    pair.connect();
    let queue = pair.front.hand_out_queues().into_iter().next().expect("a queue");
    let (mut tx, mut rx) = queue.into_halves();
    assert!(tx.front().sends_on());
    let (mut port, mut arena) = (TestPort::default(), Arena::new());
    for round in 0..100 {
        // The long one is in pages.
        let given: Vec<Vec<u8>> = (0..20).map(|k| numbered(20 * round + k)).collect();
        port.gives.extend(given.iter().map(|frame| (frame.clone(), Offload::default())));
        while pair.back.poll_rx(&pair.h, 0, &mut port).expect("an honest front") == Polled::More {}
        let mut seen = Seen::default();
        assert_eq!(rx.take(&pair.g, &mut seen, 1), Ok(20));
        assert_eq!((&seen.frames, seen.places.len()), (&given, 15));
        let short: Vec<_> = given.into_iter().filter(|frame| frame.len() <= 2048).collect();
        for (&(slot, offset), frame) in seen.places.iter().zip(&short) {
            let len = frame.len() as u16;
            assert!(!rx.send_on(&mut tx, slot, (offset, 2049), Offload::default()), "beyond its buffer");
            assert!(rx.send_on(&mut tx, slot, (offset, len), Offload::default()), "round {round}");
            assert!(!rx.send_on(&mut tx, slot, (offset, len), Offload::default()), "it has none now");
        }
        rx.post_taken(&pair.g);
        tx.publish(&pair.g);
        while pair.back.poll_tx(&pair.h, 0, &mut port, &mut arena).expect("an honest front") == Polled::More {
        }
        let came: Vec<_> = port.took.drain(..).map(|(frame, _)| frame).collect();
        assert_eq!(came, short);
        assert_eq!((tx.reclaim(&pair.g, 1), rx.front().buffers().away()), (Ok(15), 15));
        rx.take_returned(&mut tx);
        assert_eq!(rx.front().buffers().away(), 0);
    }
    let Ok(queue) = FrontQueue::of_halves(tx, rx) else { panic!("they are of one queue") };
    pair.front.take_back(vec![queue]);
    pair.exchange(100, 1);
    pair.close();
}
