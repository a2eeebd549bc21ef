//! The two halves of a front's queue under every order of their memory accesses that the C11 model
//! allows (`cargo xtask ci loom`): a sender that waits for room, a poller, and a back, with one
//! event channel for both rings.
//!
//! ```text
//!   sender, lock: link.wait, arm TX, sleep <--room-- poller: event, link.sender_waits? lock, take answers
//!                                            ^------ RX: arm, sleep <--event-- back: answers on both rings
//! ```
//! A wake-up that is lost is a deadlock, which loom reports. The last test takes one ingredient
//! away, and expects loom to find the fault.
#![cfg(loom)]

mod loom_event;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use loom_event::{Event, explore};
use pregrant::net::front::link::Link;
use pregrant::ring::{BackRing, FrontRing, NetRx, NetTx, Notify, RingKind, RingMem, Word};
use pregrant::wire::netif::{RSP_OKAY, RxRequest, RxResponse, TxRequest, TxResponse};
use std::marker::PhantomData;
use std::sync::Arc;

/// One side's view of a ring's words in loom's cells, with two slots.
struct Cells<K> {
    header: Arc<[AtomicU32; 4]>,
    slots: Arc<Vec<AtomicU32>>,
    kind: PhantomData<K>,
}

impl<K: RingKind> Cells<K> {
    /// Both sides'. Both event indices start at 1, as the front's initialisation leaves them.
    fn pair() -> (Self, Self) {
        let header = Arc::new([0, 1, 0, 1].map(AtomicU32::new));
        let slots: Arc<Vec<_>> = Arc::new((0..2 * K::SLOT_WORDS).map(|_| AtomicU32::new(0)).collect());
        let view = || Self { header: header.clone(), slots: slots.clone(), kind: PhantomData };
        (view(), view())
    }

    fn slot(&self, idx: u32) -> usize {
        (idx & 1) as usize * K::SLOT_WORDS
    }
}

impl<K: RingKind> RingMem for Cells<K> {
    type Kind = K;
    fn size(&self) -> u32 {
        2
    }
    fn load(&self, w: Word) -> u32 {
        self.header[w as usize].load(Ordering::Acquire)
    }
    fn store(&self, w: Word, v: u32) {
        self.header[w as usize].store(v, Ordering::Release);
    }
    fn read<const W: usize>(&self, idx: u32) -> [u32; W] {
        let at = self.slot(idx);
        std::array::from_fn(|i| self.slots[at + i].load(Ordering::Relaxed))
    }
    fn write<const W: usize>(&self, idx: u32, words: [u32; W]) {
        let at = self.slot(idx);
        words.into_iter().enumerate().for_each(|(i, w)| self.slots[at + i].store(w, Ordering::Relaxed));
    }
    fn full_fence(&self) {
        pregrant::sync::fence(Ordering::SeqCst);
    }
}

fn send_if(event: &Event, notify: Notify) {
    if notify.wanted() {
        event.send();
    }
}

/// State that sender and poller share.
struct Queue {
    link: Link<Event>,
    /// The TX half's ring, under the sender's lock.
    tx: Mutex<FrontRing<NetTx, Cells<NetTx>>>,
    /// The sender may go on.
    room: Event,
    sender_is_done: AtomicU32,
}

/// The sender waits until its request is answered. `late`: it sets the flag only after it has asked
/// for an event.
fn sender(queue: &Queue, late: bool) {
    let mut tx = queue.tx.lock().unwrap();
    if !late {
        queue.link.wait();
    }
    let work = tx.final_check(1).unwrap();
    if late {
        queue.link.wait();
    }
    if work {
        tx.consume(1);
        queue.link.go_on();
        drop(tx);
    } else {
        drop(tx);
        queue.room.sleep();
    }
    // For the model's end alone: the poller may have nothing to wake up for.
    queue.sender_is_done.store(1, Ordering::Release);
    queue.link.tx_chan().send();
}

/// Receives a frame, and TX answers if the sender waits for them.
fn poller(queue: &Queue, mut rx: FrontRing<NetRx, Cells<NetRx>>) {
    let mut came = 0;
    loop {
        if came == 0 {
            came = rx.available(1).unwrap();
            rx.consume(came);
        }
        if queue.link.sender_waits() {
            let mut tx = queue.tx.lock().unwrap();
            let n = tx.available(1).unwrap();
            if n > 0 {
                tx.consume(n);
                queue.link.go_on();
                queue.room.send();
            }
        }
        if came > 0 && queue.sender_is_done.load(Ordering::Acquire) != 0 {
            return;
        }
        if came > 0 || !rx.final_check(1).unwrap() {
            queue.link.rx_chan().sleep();
        }
    }
}

fn both_halves_wait(late: bool) {
    explore(Some(2), move || {
        let (ours, theirs) = Cells::<NetTx>::pair();
        let mut tx = FrontRing::new(ours);
        tx.push(&TxRequest::default());
        let _ = tx.publish();
        let (mut back_tx, _) = BackRing::<NetTx, _>::attach(theirs, None).unwrap();
        let (ours, theirs) = Cells::<NetRx>::pair();
        let mut rx = FrontRing::new(ours);
        rx.push(&RxRequest::default());
        let _ = rx.publish();
        let (mut back_rx, _) = BackRing::<NetRx, _>::attach(theirs, None).unwrap();
        let queue = Arc::new(Queue {
            link: Link::new(Event::default(), None),
            tx: Mutex::new(tx),
            room: Event::default(),
            sender_is_done: AtomicU32::new(0),
        });
        let sends = {
            let queue = queue.clone();
            thread::spawn(move || sender(&queue, late))
        };
        let polls = {
            let queue = queue.clone();
            thread::spawn(move || poller(&queue, rx))
        };
        assert_eq!(back_tx.available(1), Ok(1));
        back_tx.consume(1);
        send_if(queue.link.tx_chan(), back_tx.answer(&[TxResponse { id: 0, status: RSP_OKAY }]));
        assert_eq!(back_rx.available(1), Ok(1));
        back_rx.consume(1);
        send_if(queue.link.tx_chan(), back_rx.answer(&[RxResponse::default()]));
        sends.join().unwrap();
        polls.join().unwrap();
    });
}

#[test]
fn neither_half_sleeps_over_what_is_its_own() {
    both_halves_wait(false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sender_that_waits_before_it_says_so_is_slept_over() {
    both_halves_wait(true);
}
