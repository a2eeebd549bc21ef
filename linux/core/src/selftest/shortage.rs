//! Tests fronts whose set-up gets too little memory, too few grants or channels, or whose state
//! cannot be written.
//!
//! ```text
//!   n = 0, 1, 2 ... until there is no n-th:
//!     connect, the n-th is refused (or all from it on) --> an error, or it is live, with less
//!        --> at once, or after an error by another step: live, frames each way --> closed: nothing is left
//! ```
//! Memory is refused where it is more than a page. A table or list that the core asks for as if it
//! could not be refused ends this test, and the kernel with it: so it is found. The back and the
//! test itself get what they ask for.

use super::*;
use crate::shim::{CHANNEL, GRANT, HEAP, PAGES, STATE};
use core::sync::atomic::Ordering;
use domains::CHANNELS;
use pregrant::net::front::{FrontQueue, FrontStep};
use pregrant::xenbus::XenbusState;

/// Length of a frame in bytes, and number of frames in each direction.
const LEN: usize = 64;
const FRAMES: u64 = 16;
/// Number of grants per queue for which the test's grant table has room.
const GRANTS: usize = 4096;
/// Number of pages that the back offers to keep mapped, in cases with more buffers than slots.
const MAPPED_PAGES: u32 = 4096;
/// Distance between the numbers of the allocations from which on all are refused: every fifth
/// allocation begins a case.
const REST_STRIDE: u64 = 5;
/// Distance between the numbers of the grants that are refused.
const GRANT_STRIDE: u64 = 151;

/// A front of the test.
struct Case {
    path: &'static [u8],
    queues: u32,
    ring_order: u32,
    /// Length of a staging buffer in bytes. The next field is the number of buffers or pages that
    /// are wanted for each direction.
    data_len: u32,
    buffers: u32,
    /// True if RX pages are added and removed during the test.
    in_place: bool,
}

impl Case {
    const fn new(path: &'static [u8], queues: u32, ring_order: u32) -> Self {
        Self { path, queues, ring_order, data_len: 2048, buffers: 0, in_place: false }
    }

    #[inline(never)]
    fn config(&self) -> Result<FrontConfig> {
        let Self { path, queues, ring_order, data_len, buffers, in_place } = *self;
        let (path_len, multicast) = (path.len(), false);
        let at = path.as_ptr();
        let settings = Settings {
            path: at,
            path_len,
            queues,
            ring_order,
            data_len,
            buffers,
            cache: 0,
            rx_in_place: if in_place { 2049 } else { 0 },
            multicast,
            send_on: false,
        };
        config(&settings)
    }
}

/// Requests of some kinds that are refused to a front: those with numbers from `from` to before
/// `to`.
#[derive(Clone, Copy)]
struct Refusal {
    kinds: u32,
    from: u64,
    to: u64,
}

impl Refusal {
    const NONE: Self = Self { kinds: 0, from: 0, to: 0 };
}

/// Counts what a front's calls request of the kernel, and refuses some of it.
struct Calls {
    refusal: Refusal,
    asked: u64,
}

impl Calls {
    /// Makes one call, and counts its requests.
    fn make<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let Refusal { kinds, from, to } = self.refusal;
        // SAFETY: it sets what is counted.
        unsafe { shim::pk_fail(kinds, from.saturating_sub(self.asked), to.saturating_sub(self.asked)) };
        let came = call();
        // SAFETY: it reads a number, and ends what was set.
        unsafe {
            self.asked += shim::pk_asked();
            shim::pk_fail(0, 0, 0);
        }
        came
    }
}

impl Ends {
    /// Connects. Returns false if that failed and must be tried again.
    #[inline(never)]
    fn connect(&mut self, calls: &mut Calls) -> Result<bool> {
        for _ in 0..2 * STEPS {
            self.back_step()?;
            let Self { front, guest, front_bus, .. } = self;
            match calls.make(|| front.step(guest, front_bus).map_err(drop)) {
                Ok(FrontStep::Live) => return self.hand_out(calls),
                Ok(_) => {}
                Err(()) => {
                    // Like `front.rs` does it.
                    if matches!(front.state(), XenbusState::Connected | XenbusState::Closing) {
                        front.restart(front_bus).map_err(|_| "the front does not restart")?;
                    }
                    return Ok(false);
                }
            }
        }
        Err("the front neither connects nor fails")
    }

    /// Hands the queues out and takes them back, as when frames travel meanwhile; then announces
    /// pages.
    #[inline(never)]
    fn hand_out(&mut self, calls: &mut Calls) -> Result<bool> {
        let Self { front, guest, host, back, .. } = self;
        calls.make(|| {
            let halves = front.hand_out_queues().into_iter().map(FrontQueue::into_halves);
            let queues = halves.filter_map(|(tx, rx)| FrontQueue::of_halves(tx, rx).ok());
            let queues = queues.collect();
            front.take_back(queues);
            // Pages for whose list there is no memory are not added.
            let _ = front.grow_rx(guest, 0, 64);
        });
        for _ in 0..QUESTIONS {
            back.poll_ctrl(host).map_err(|_| "the back's control ring")?;
            let turned = calls.make(|| front.turn(guest));
            if !turned.map_err(|_| "the front's control ring")? && !front.is_announcing() {
                break;
            }
        }
        calls.make(|| front.shrink_rx(guest, usize::MAX));
        Ok(front.is_live())
    }

    /// Closes the vif while memory is still short, and checks that nothing is left.
    #[inline(never)]
    fn disconnect(&mut self, calls: &mut Calls) -> Result<()> {
        let Self { front, front_bus, .. } = self;
        if calls.make(|| front.close(front_bus, None)).is_err() {
            // Like `front.rs` does it in its next step.
            calls.make(|| front.restart(front_bus)).map_err(|_| "the front does not close")?;
        }
        for _ in 0..STEPS {
            self.back_step()?;
            let Self { front, guest, front_bus, .. } = self;
            calls.make(|| front.step(guest, front_bus)).map_err(|_| "a closing step")?;
        }
        if !self.front.is_closed() {
            return Err("the front is not closed");
        }
        let left = self.table.lock().left();
        match (left, CHANNELS.load(Ordering::Relaxed)) {
            (0, 0) => Ok(()),
            (0, _) => Err("channels are left"),
            _ => Err("grants are left"),
        }
    }
}

/// The result of a case.
struct Outcome {
    /// True if the front did not get all that it asked for.
    failed: bool,
    asked: u64,
}

/// A finished test's memory, which the next test reuses.
type Spare = Option<Box<Arena>>;

/// Runs one front from its first step to its end. With `gives_up` it closes after an error instead
/// of trying again.
#[inline(never)]
fn attempt(case: &Case, refusal: Refusal, gives_up: bool, spare: &mut Spare) -> Result<Outcome> {
    // Large, and of no interest.
    let own = spare.take().unwrap_or_else(arena);
    // SAFETY: it reads a number.
    let memory = unsafe { shim::pk_memory() };
    let (outcome, own) = play_out(case, refusal, gives_up, own)?;
    *spare = Some(own);
    // SAFETY: as above.
    let left = unsafe { shim::pk_memory() } - memory;
    if left == 0 { Ok(outcome) } else { Err("memory is left") }
}

#[inline(never)]
fn play_out(
    case: &Case,
    refusal: Refusal,
    gives_up: bool,
    arena: Box<Arena>,
) -> Result<(Outcome, Box<Arena>)> {
    let mapped_pages = if case.buffers > 0 { MAPPED_PAGES } else { 0 };
    let features = BackFeatures { mapped_pages, ..whole() };
    let mut ends = Ends::new(features, case.config()?, LEN, true, arena);
    ends.table.lock().make_room((GRANTS * case.queues as usize) << case.ring_order);
    let mut calls = Calls { refusal, asked: 0 };
    let is_live = ends.connect(&mut calls)?;
    let asked = calls.asked;
    let is_whole = is_live && ends.front.shortage().is_none();
    if !is_live && !gives_up {
        let refusal = core::mem::replace(&mut calls.refusal, Refusal::NONE);
        if !ends.connect(&mut calls)? {
            return Err("there is memory again, and the front does not connect");
        }
        calls.refusal = refusal;
    }
    if is_live || !gives_up {
        let wrong = ends.tx(FRAMES, false)? + ends.rx(FRAMES, false)?;
        if wrong > 0 {
            return Err("frames are wrong or lost");
        }
    }
    ends.disconnect(&mut calls)?;
    Ok((Outcome { failed: !is_whole, asked }, ends.scratch))
}

/// Runs set-ups until none is left in which something is refused: in each of them one request is
/// refused, or all requests from one on; the first refused request is `stride` later in each set-up
/// than in the one before. Returns the number of set-ups, and how many of them failed or got less.
#[inline(never)]
fn refuse_each(
    case: &Case,
    kinds: u32,
    (stride, from_then_on): (u64, bool),
    spare: &mut Spare,
) -> Result<(u64, u64)> {
    let (mut tried, mut failed) = (0, 0);
    loop {
        let from = tried * stride;
        let to = if from_then_on { u64::MAX } else { from + 1 };
        let refusal = Refusal { kinds, from, to };
        let outcome = attempt(case, refusal, tried % 2 == 1, spare)?;
        if outcome.asked <= from {
            return Ok((tried, failed));
        }
        (tried, failed) = (tried + 1, failed + u64::from(outcome.failed));
    }
}

/// Tests all cases.
#[inline(never)]
pub fn play() -> Result<()> {
    let mut spare = None;
    for path in [&b"copy"[..], b"staging", b"gref-mapping", b"persistent", b"auto"] {
        let slots = |queues, ring_order| Case::new(path, queues, ring_order);
        let more = |data_len, buffers| Case { data_len, buffers, ..slots(1, 0) };
        let in_place = Case { in_place: true, ..slots(1, 0) };
        // The last two: as many as a back's offer has, and as it maps.
        let cases =
            [slots(1, 0), slots(8, 0), slots(1, 4), in_place, more(64, 28_672), more(2048, MAPPED_PAGES / 2)];
        for case in cases {
            refuse_memory(&case, &mut spare)?;
        }
    }
    for case in [Case::new(b"auto", 1, 0), Case::new(b"persistent", 1, 0)] {
        for from_then_on in [false, true] {
            refuse_each(&case, PAGES | CHANNEL, (1, from_then_on), &mut spare)?;
        }
        let (_, failed_states) = refuse_each(&case, STATE, (1, false), &mut spare)?;
        let (grants, failed_grants) = refuse_each(&case, GRANT, (GRANT_STRIDE, false), &mut spare)?;
        log::info(
            NO_DEVICE,
            format_args!(
                "selftest of shortages, {}: of {grants} set-ups without a grant {failed_grants} had less",
                core::str::from_utf8(case.path).unwrap_or_default()
            ),
        );
        if [failed_grants, failed_states].contains(&0) {
            return Err("no refusal reached a front");
        }
    }
    Ok(())
}

/// Tests set-ups in which one list of more than a page is refused, and set-ups in which all lists,
/// pages and channels from one on are refused.
#[inline(never)]
fn refuse_memory(case: &Case, spare: &mut Spare) -> Result<()> {
    let &Case { path, queues, ring_order, buffers, .. } = case;
    let (one, failed_one) = refuse_each(case, HEAP, (1, false), spare)?;
    let (rest, failed_rest) = refuse_each(case, HEAP | PAGES | CHANNEL, (REST_STRIDE, true), spare)?;
    log::info(
        NO_DEVICE,
        format_args!(
            "selftest of shortages, {}, {queues} queues, {} pages a ring, {buffers} buffers: of {one} set-ups with \
             one list refused {failed_one} had less, of {rest} with all memory from one on {failed_rest}",
            core::str::from_utf8(path).unwrap_or_default(),
            1 << ring_order,
        ),
    );
    // To have no more buffers than slots is no shortage.
    let is_missed = one > 0 && failed_one == 0 && buffers == 0;
    if is_missed || failed_rest == 0 { Err("no refusal reached a front") } else { Ok(()) }
}
