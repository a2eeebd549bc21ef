//! A front and a back in threads of their own over one memory, with and without a third one that
//! overwrites it.
//!
//! ```text
//!   front thread -- requests, frames --> shared pages <-- answers, copies -- back thread
//!                                            ^
//!                                    mutator thread (a hostile peer's other processor)
//! ```
//!
//! Under Miri this shows that racing with a peer is defined: slots are relaxed words, frames are
//! copied by `shm`, and both sleep in event channels. Natively it shows the same at a higher speed.

use pregrant::platform::local::{LocalChan, LocalDomain, LocalXen, Pages};
use pregrant::platform::{Events, ReadySet};
use pregrant::ring::{BackRing, FrontRing, NetTx, Notify, RingPages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RSP_ERROR, RSP_OKAY, TxRequest, TxResponse};
use pregrant::{DomId, PAGE_SIZE};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const FRAMES: u32 = if cfg!(miri) { 90 } else { 40_000 };
/// Bytes of a frame, one slot for each in the frames' pages.
const FRAME: usize = 48;
const SLOTS: u32 = 64;
/// Just before the wrap of the indices.
const START: u32 = u32::MAX - 20;

/// One end's channel, and how its thread sleeps.
struct Doorbell {
    domain: LocalDomain,
    chan: LocalChan,
    ready: ReadySet,
}

impl Doorbell {
    fn new(domain: LocalDomain, chan: LocalChan) -> Doorbell {
        Doorbell { domain, chan, ready: ReadySet::default() }
    }

    fn ring_if(&self, notify: Notify) {
        if notify.wanted() {
            self.domain.notify(&self.chan);
        }
    }

    fn sleep(&mut self) {
        self.domain.wait(&mut self.ready, None);
        self.domain.unmask(&self.chan);
    }
}

fn doorbells() -> (Doorbell, Doorbell) {
    let xen = LocalXen::new();
    let (guest, driver) = (xen.domain(1), xen.domain(0));
    let (front, port) = guest.offer(DomId(0)).expect("a channel");
    let back = driver.bind(DomId(1), port).expect("the channel that was offered");
    (Doorbell::new(guest, front), Doorbell::new(driver, back))
}

fn frame(n: u32) -> [u8; FRAME] {
    std::array::from_fn(|i| (n as usize * 7 + i) as u8)
}

/// Sends all frames; `check` sees the number and the answer of each.
fn front(
    mut ring: FrontRing<NetTx, RingPages<NetTx, Pages>>,
    frames: Pages,
    mut doorbell: Doorbell,
    check: impl Fn(u32, TxResponse),
) {
    let (mut sent, mut answered) = (0u32, 0u32);
    while answered < FRAMES {
        while sent < FRAMES && sent - answered < SLOTS {
            let at = (sent % SLOTS) as usize * FRAME;
            assert!(frames.copy_in(at, &frame(sent)));
            let (gref, offset) = ((at / PAGE_SIZE) as u32, (at % PAGE_SIZE) as u16);
            ring.push(&TxRequest { gref, offset, flags: 0, id: sent as u16, size: FRAME as u16 });
            sent += 1;
        }
        doorbell.ring_if(ring.publish());
        let n = ring.available(1).expect("an honest back");
        for ahead in 0..n {
            check(answered + ahead, ring.read(ahead));
        }
        ring.consume(n);
        answered += n;
        // Wait for a few at once, as a front does that wants fewer events.
        let more = 4.min(FRAMES - answered).min(sent - answered);
        if n == 0 && !ring.final_check(more).expect("an honest back") {
            doorbell.sleep();
        }
    }
    assert_eq!(ring.in_flight(), 0);
}

/// Answers all requests; `check` sees the number and the bytes of each frame that survived
/// validation.
fn back(
    mut ring: BackRing<NetTx, RingPages<NetTx, Pages>>,
    frames: Pages,
    mut doorbell: Doorbell,
    check: impl Fn(u32, &[u8]),
) {
    let (mut served, mut answers) = (0u32, Vec::new());
    while served < FRAMES {
        let n = ring.available(1).expect("an honest front").min(16);
        for ahead in 0..n {
            let request = ring.read(ahead);
            let mut bytes = [0; FRAME];
            let (at, len) = (request.gref as usize, usize::from(request.size));
            let fits = len <= FRAME
                && usize::from(request.offset) + len <= PAGE_SIZE
                && at < frames.len() / PAGE_SIZE;
            let start = at.saturating_mul(PAGE_SIZE).saturating_add(request.offset.into());
            let copied = fits && frames.copy_out(start, &mut bytes[..len]);
            if copied {
                check(served + ahead, &bytes[..len]);
            }
            answers.push(TxResponse { id: request.id, status: if copied { RSP_OKAY } else { RSP_ERROR } });
        }
        ring.consume(n);
        doorbell.ring_if(ring.answer(&answers));
        answers.clear();
        served += n;
        if n == 0 && !ring.final_check(1).expect("an honest front") {
            doorbell.sleep();
        }
    }
    assert_eq!(ring.unanswered(), 0);
}

/// Rewrites slots by words and frames by bytes, never the indices: a false index is in
/// `ring_model`.
fn scribble(ring: &Pages, frames: &Pages, stop: &AtomicBool) -> u32 {
    let (mut state, mut rounds) = (0x9e37_79b9u32, 0);
    while !stop.load(Ordering::Relaxed) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let slot = 64 + (state as usize % 256) * 12;
        for word in 0..3 {
            assert!(ring.store_u32(slot + word * 4, state.rotate_left(word as u32 * 7)));
        }
        let at = state as usize % (SLOTS as usize * FRAME - 8);
        assert!(frames.copy_in(at, &state.to_le_bytes()));
        rounds += 1;
        thread::yield_now();
    }
    rounds
}

type Ends = (FrontRing<NetTx, RingPages<NetTx, Pages>>, BackRing<NetTx, RingPages<NetTx, Pages>>);

fn ends(memory: &Pages) -> Ends {
    let page = || RingPages::new(memory.clone());
    page().init();
    let front = FrontRing::starting_at(page(), START);
    let (back, _) = BackRing::attach(page(), None).expect("a fresh ring");
    (front, back)
}

#[test]
fn every_frame_and_every_answer_arrives_as_it_was_written() {
    let (memory, frames) = (Pages::new(1), Pages::new(1));
    let (front_ring, back_ring) = ends(&memory);
    let (front_doorbell, back_doorbell) = doorbells();
    thread::scope(|scope| {
        scope.spawn(|| {
            front(front_ring, frames.clone(), front_doorbell, |n, answer| {
                assert_eq!(answer, TxResponse { id: n as u16, status: RSP_OKAY });
            })
        });
        scope
            .spawn(|| back(back_ring, frames.clone(), back_doorbell, |n, bytes| assert_eq!(bytes, frame(n))));
    });
}

#[test]
fn a_mutator_spoils_contents_and_nothing_else() {
    let (memory, frames) = (Pages::new(1), Pages::new(1));
    let (front_ring, back_ring) = ends(&memory);
    let (front_doorbell, back_doorbell) = doorbells();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mutator = scope.spawn(|| scribble(&memory, &frames, &stop));
        let ends = [
            scope.spawn(|| front(front_ring, frames.clone(), front_doorbell, |_, _| {})),
            scope.spawn(|| {
                back(back_ring, frames.clone(), back_doorbell, |_, bytes| assert!(bytes.len() <= FRAME))
            }),
        ];
        let results = ends.map(|end| end.join());
        stop.store(true, Ordering::Relaxed);
        assert!(mutator.join().expect("the mutator") > 0);
        for result in results {
            result.expect("neither end minds");
        }
    });
}
