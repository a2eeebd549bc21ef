//! The ring under every order of its memory accesses that the C11 model allows (`cargo xtask ci
//! loom`).
//!
//! ```text
//!   front thread:  push, publish --(Notify::Yes)--> event channel --> back thread sleeps in it
//!                  sleeps        <-- event channel <--(Notify::Yes)-- answer
//! ```
//!
//! A wake-up that is lost is a deadlock, which loom reports. Slots are relaxed words, so loom also
//! shows a stale one wherever the index that publishes it does not order it. The last tests take
//! one ingredient away and expect loom to find the fault: they show that the models above can fail.
#![cfg(loom)]

mod loom_event;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use loom_event::{Event, explore};
use pregrant::ring::{BackRing, FrontRing, NetTx, Notify, RingKind, RingMem, Word};
use pregrant::wire::netif::{RSP_OKAY, TxRequest, TxResponse};
use std::sync::Arc;

/// The fence that a side's memory leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The fence between our store for the peer and the load of what it stored.
    FullFence,
    /// Release and acquire on the indices.
    IndexOrder,
}

/// One side's view of a ring's words in loom's cells.
struct Cells {
    header: Arc<[AtomicU32; 4]>,
    slots: Arc<Vec<AtomicU32>>,
    without: Without,
}

impl Cells {
    fn new(size: usize) -> Cells {
        // Both event indices start at 1, as the front's initialisation leaves them.
        let header = [0, 1, 0, 1].map(AtomicU32::new);
        let slots = (0..size * 3).map(|_| AtomicU32::new(0)).collect();
        Cells { header: Arc::new(header), slots: Arc::new(slots), without: Without::Nothing }
    }

    fn view(&self, without: Without) -> Cells {
        Cells { header: self.header.clone(), slots: self.slots.clone(), without }
    }

    fn order(&self, order: Ordering) -> Ordering {
        if self.without == Without::IndexOrder { Ordering::Relaxed } else { order }
    }

    fn slot(&self, idx: u32) -> usize {
        (idx & (self.size() - 1)) as usize * NetTx::SLOT_WORDS
    }
}

impl RingMem for Cells {
    type Kind = NetTx;
    fn size(&self) -> u32 {
        (self.slots.len() / 3) as u32
    }
    fn load(&self, w: Word) -> u32 {
        self.header[w as usize].load(self.order(Ordering::Acquire))
    }
    fn store(&self, w: Word, v: u32) {
        self.header[w as usize].store(v, self.order(Ordering::Release));
    }
    fn read<const W: usize>(&self, idx: u32) -> [u32; W] {
        let at = self.slot(idx);
        std::array::from_fn(|i| self.slots[at + i].load(Ordering::Relaxed))
    }
    fn write<const W: usize>(&self, idx: u32, words: [u32; W]) {
        let at = self.slot(idx);
        for (i, w) in words.into_iter().enumerate() {
            self.slots[at + i].store(w, Ordering::Relaxed);
        }
    }
    fn full_fence(&self) {
        if self.without != Without::FullFence {
            pregrant::sync::fence(Ordering::SeqCst);
        }
    }
}

fn send_if(event: &Event, notify: Notify) {
    if notify.wanted() {
        event.send();
    }
}

fn request(n: u32) -> TxRequest {
    TxRequest { gref: 100 + n, offset: n as u16, flags: 0, id: n as u16, size: 60 + n as u16 }
}

fn response(n: u32) -> TxResponse {
    TxResponse { id: n as u16, status: RSP_OKAY }
}

type Front = FrontRing<NetTx, Cells>;
type Back = BackRing<NetTx, Cells>;

/// Takes `count` requests, from the `first`-th on, and sleeps when there are none.
fn take_requests(ring: &mut Back, event: &Event, first: u32, count: u32) {
    let mut taken = 0;
    while taken < count {
        let n = ring.available(1).unwrap().min(count - taken);
        for ahead in 0..n {
            assert_eq!(ring.read(ahead), request(first + taken + ahead), "a request's words are whole");
        }
        ring.consume(n);
        taken += n;
        if taken < count && !ring.final_check(1).unwrap() {
            event.sleep();
        }
    }
}

/// Takes `count` answers, from the `first`-th on; sleeps until `batch` of them are there.
fn take_answers(ring: &mut Front, event: &Event, first: u32, count: u32, batch: u32) {
    let mut taken = 0;
    while taken < count {
        let n = ring.available(1).unwrap().min(count - taken);
        for ahead in 0..n {
            assert_eq!(ring.read(ahead), response(first + taken + ahead), "an answer's word is whole");
        }
        ring.consume(n);
        taken += n;
        if taken < count && !ring.final_check(batch.min(count - taken)).unwrap() {
            event.sleep();
        }
    }
}

/// The front publishes two requests one by one; the back sleeps whenever it finds none.
fn requests_wake_the_back(front: Without, back: Without) {
    explore(Some(4), move || {
        let cells = Cells::new(2);
        let event = Arc::new(Event::default());
        let mut ring = Front::new(cells.view(front));
        let (mut peer, _) = Back::attach(cells.view(back), None).unwrap();
        let sleeper = {
            let event = event.clone();
            thread::spawn(move || take_requests(&mut peer, &event, 0, 2))
        };
        for n in 0..2 {
            ring.push(&request(n));
            send_if(&event, ring.publish());
        }
        sleeper.join().unwrap();
    });
}

/// The back answers two requests one by one; the front sleeps until `batch` answers are there.
fn answers_wake_the_front(front: Without, back: Without, batch: u32) {
    explore(Some(4), move || {
        let cells = Cells::new(2);
        let event = Arc::new(Event::default());
        let mut ring = Front::new(cells.view(front));
        for n in 0..2 {
            ring.push(&request(n));
        }
        let _ = ring.publish();
        let (mut peer, _) = Back::attach(cells.view(back), None).unwrap();
        let sleeper = {
            let event = event.clone();
            thread::spawn(move || take_answers(&mut ring, &event, 0, 2, batch))
        };
        assert_eq!(peer.available(2), Ok(2));
        peer.consume(2);
        for n in 0..2 {
            send_if(&event, peer.answer(&[response(n)]));
        }
        sleeper.join().unwrap();
    });
}

/// More requests than slots go through the ring, each slot is used again, and both ends sleep.
fn both_ends_sleep(size: usize, count: u32, preemptions: usize) {
    explore(Some(preemptions), move || {
        let cells = Cells::new(size);
        let (to_back, to_front) = (Arc::new(Event::default()), Arc::new(Event::default()));
        let mut ring = Front::new(cells.view(Without::Nothing));
        let (mut peer, _) = Back::attach(cells.view(Without::Nothing), None).unwrap();
        let back = {
            let (to_back, to_front) = (to_back.clone(), to_front.clone());
            thread::spawn(move || {
                for n in 0..count {
                    take_requests(&mut peer, &to_back, n, 1);
                    send_if(&to_front, peer.answer(&[response(n)]));
                }
            })
        };
        let (mut asked, mut answered) = (0, 0);
        while answered < count {
            while asked < count && ring.free() > 0 {
                ring.push(&request(asked));
                asked += 1;
            }
            send_if(&to_back, ring.publish());
            take_answers(&mut ring, &to_front, answered, 1, 1);
            answered += 1;
        }
        assert_eq!(ring.in_flight(), 0);
        back.join().unwrap();
    });
}

#[test]
fn no_request_is_slept_over() {
    requests_wake_the_back(Without::Nothing, Without::Nothing);
}

#[test]
fn no_answer_is_slept_over() {
    answers_wake_the_front(Without::Nothing, Without::Nothing, 1);
}

#[test]
fn no_batch_of_answers_is_slept_over() {
    answers_wake_the_front(Without::Nothing, Without::Nothing, 2);
}

#[test]
fn slots_are_used_again_while_both_ends_sleep() {
    both_ends_sleep(2, 3, 3);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_front_without_fence_loses_a_request() {
    requests_wake_the_back(Without::FullFence, Without::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_back_that_sleeps_without_fence_loses_a_request() {
    requests_wake_the_back(Without::Nothing, Without::FullFence);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_back_without_fence_loses_an_answer() {
    answers_wake_the_front(Without::Nothing, Without::FullFence, 1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_front_that_sleeps_without_fence_loses_an_answer() {
    answers_wake_the_front(Without::FullFence, Without::Nothing, 1);
}

#[test]
#[should_panic(expected = "a request's words are whole")]
fn unordered_indices_show_a_request_that_is_not_there_yet() {
    requests_wake_the_back(Without::IndexOrder, Without::Nothing);
}

#[test]
#[should_panic(expected = "an answer's word is whole")]
fn unordered_indices_show_an_answer_that_is_not_there_yet() {
    answers_wake_the_front(Without::Nothing, Without::IndexOrder, 1);
}
