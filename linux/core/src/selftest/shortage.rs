//! Set-ups of a front for which memory, a grant or a channel is not to be had, or whose state
//! cannot be written.
//!
//! ```text
//!   n = 0, 1, 2 ... until there is no n-th:
//!     connect, the n-th is refused (or all from it on) --> an error, or it is live, with less
//!        --> at once, or after an error by another step: live, frames each way --> closed: nothing is left
//! ```
//! Calls of the front are made as the driver makes them: with a reserve, without which none is. A
//! heap that has nothing at all is no error then, and shows that the reserve is large enough. The
//! back and the test itself get what they ask for.

use super::*;
use crate::front::more_of;
use crate::shim::{CHANNEL, GRANT, HEAP, More, PAGES, STATE};
use core::sync::atomic::Ordering;
use domains::CHANNELS;
use pregrant::net::front::{FrontQueue, FrontStep};
use pregrant::xenbus::XenbusState;

/// Bytes of a frame, and frames each way.
const LEN: usize = 64;
const FRAMES: u64 = 16;
/// Grants of a queue that the test's table has room for.
const GRANTS: usize = 4096;
/// Pages that a back keeps mapped where it is asked for more than slots.
const MAPPED_PAGES: u32 = 4096;
/// One in this number of a set-up's grants is refused.
const GRANT_STRIDE: u64 = 151;

/// A front of the test.
struct Case {
    path: &'static [u8],
    queues: u32,
    ring_order: u32,
    /// Length of a staging buffer in bytes, and number of buffers or pages wanted for each
    /// direction.
    data_len: u32,
    buffers: u32,
}

impl Case {
    const fn new(path: &'static [u8], queues: u32, ring_order: u32) -> Self {
        Self { path, queues, ring_order, data_len: 2048, buffers: 0 }
    }

    #[inline(never)]
    fn config(&self) -> Result<FrontConfig> {
        let Self { path, queues, ring_order, data_len, buffers } = *self;
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
            rx_in_place: 0,
            multicast,
            send_on: false,
        };
        config(&settings)
    }

    fn more(&self) -> More {
        self.config().map_or(More::default(), |config| more_of(&config))
    }

    fn slots(&self) -> u32 {
        (RING_SLOTS as u32) << self.ring_order
    }
}

/// The kinds of memory refused to a front.
struct Refusal {
    kinds: u32,
    from: u64,
    to: u64,
    /// The reserve is there in any case.
    spares_reserve: bool,
}

impl Refusal {
    const NONE: Self = Self { kinds: 0, from: 0, to: 0, spares_reserve: true };
}

/// A front's calls, and what they asked for.
struct Calls<'a> {
    case: &'a Case,
    refusal: Refusal,
    asked: u64,
    /// Largest part of its reserve that one call used.
    most: usize,
}

impl Calls<'_> {
    /// Makes one. None: there is no memory for a reserve, and it was not made.
    fn make<T>(&mut self, call: impl FnOnce() -> T) -> Option<T> {
        let (queues, slots, more) = (self.case.queues, self.case.slots(), self.case.more());
        let Refusal { kinds, from, to, spares_reserve } = self.refusal;
        let (from, to) = (from.saturating_sub(self.asked), to.saturating_sub(self.asked));
        // SAFETY: it sets what is counted.
        let refuse = || unsafe { shim::pk_fail(kinds, from, to) };
        if !spares_reserve {
            refuse();
        }
        // SAFETY: it is ended below, by this thread.
        let reserve = unsafe { shim::pk_reserve_begin(queues, slots, more) };
        if spares_reserve {
            refuse();
        }
        let came = (!reserve.is_null()).then(call);
        // SAFETY: it reads a number, and ends what was started.
        unsafe {
            self.asked += shim::pk_asked();
            shim::pk_fail(0, 0, 0);
            if !reserve.is_null() {
                self.most = self.most.max(shim::pk_reserve_end(reserve));
            }
        }
        came
    }
}

impl Ends {
    /// Connects. Returns false if that failed and must be tried again.
    #[inline(never)]
    fn connect(&mut self, calls: &mut Calls<'_>) -> Result<bool> {
        for _ in 0..2 * STEPS {
            self.back_step()?;
            // The live front was refused a reserve.
            if self.front.is_live() {
                return self.hand_out(calls);
            }
            let Self { front, guest, front_bus, .. } = self;
            let Some(stepped) = calls.make(|| front.step(guest, front_bus).map_err(drop)) else {
                return Ok(false);
            };
            match stepped {
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
    fn hand_out(&mut self, calls: &mut Calls<'_>) -> Result<bool> {
        let Self { front, guest, host, back, .. } = self;
        let handed = calls.make(|| {
            let halves = front.hand_out_queues().into_iter().map(FrontQueue::into_halves);
            let queues = halves.filter_map(|(tx, rx)| FrontQueue::of_halves(tx, rx).ok());
            let queues = queues.collect();
            front.take_back(queues);
        });
        if handed.is_none() {
            return Ok(false);
        }
        for _ in 0..QUESTIONS {
            back.poll_ctrl(host).map_err(|_| "the back's control ring")?;
            let Some(turned) = calls.make(|| front.turn(guest)) else { return Ok(false) };
            if !turned.map_err(|_| "the front's control ring")? && !front.is_announcing() {
                break;
            }
        }
        Ok(front.is_live())
    }

    /// Closes, with memory still short: nothing may be left over.
    #[inline(never)]
    fn disconnect(&mut self, calls: &mut Calls<'_>) -> Result<()> {
        calls.refusal.spares_reserve = true;
        let Self { front, front_bus, .. } = self;
        let closed = calls.make(|| front.close(front_bus, None)).ok_or("no reserve to close")?;
        if closed.is_err() {
            // Like `front.rs` does it in its next step.
            let restarted = calls.make(|| front.restart(front_bus).ok()).flatten();
            restarted.ok_or("the front does not close")?;
        }
        for _ in 0..STEPS {
            self.back_step()?;
            let Self { front, guest, front_bus, .. } = self;
            let stepped = calls.make(|| front.step(guest, front_bus).map(drop).map_err(|_| "a closing step"));
            stepped.unwrap_or(Err("no reserve to step"))?;
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
    /// An error occurred.
    failed: bool,
    asked: u64,
    /// Largest number of bytes that were used of the reserve.
    most: usize,
}

/// Memory of a finished test that the next one reuses.
type Spare = Option<Box<Arena>>;

/// Plays one front, from its first step to its end. `gives_up`: it closes after an error instead of
/// trying again.
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
    let mut calls = Calls { case, refusal, asked: 0, most: 0 };
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
    Ok((Outcome { failed: !is_whole, asked, most: calls.most }, ends.scratch))
}

/// Refuses each allocation of a set-up once, `stride` apart, and then all from it on. Returns the
/// number of set-ups, and how many of them failed or got less.
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
        let refusal = Refusal { kinds, from, to, spares_reserve: from_then_on };
        let outcome = attempt(case, refusal, tried % 2 == 1, spare)?;
        if outcome.asked <= from {
            return Ok((tried, failed));
        }
        (tried, failed) = (tried + 1, failed + u64::from(outcome.failed));
    }
}

/// The heap refuses everything, so all memory comes from the reserve. Returns the used part of it
/// in percent.
#[inline(never)]
fn live_by_reserve(case: &Case, spare: &mut Spare) -> Result<usize> {
    let refusal = Refusal { kinds: HEAP, from: 0, to: u64::MAX, spares_reserve: true };
    let outcome = attempt(case, refusal, false, spare)?;
    // SAFETY: it computes.
    let size = unsafe { shim::pk_reserve_size(case.queues, case.slots(), case.more()) };
    match outcome {
        Outcome { failed: true, .. } => Err("a set-up fails though it has a reserve"),
        Outcome { most, .. } if most * 2 > size => Err("a reserve is not twice what is taken of it"),
        Outcome { most, .. } => Ok((most * 100).checked_div(size).unwrap_or_default()),
    }
}

/// Plays all cases.
#[inline(never)]
pub fn play() -> Result<()> {
    let mut spare = None;
    let slots = |path| Case::new(path, 1, 0);
    // The largest set-ups take long, so only one in `stride` of their allocations is refused.
    for (case, stride) in [
        (slots(b"auto"), 5),
        (slots(b"persistent"), 1),
        (Case { data_len: 64, buffers: 2048, ..slots(b"auto") }, 17),
    ] {
        let Case { path, buffers, .. } = case;
        let kinds = HEAP | PAGES | CHANNEL;
        let (one, failed_one) = refuse_each(&case, kinds, (stride, false), &mut spare)?;
        let (rest, failed_rest) = refuse_each(&case, kinds, (11, true), &mut spare)?;
        for from_then_on in [false, true] {
            refuse_each(&case, PAGES | CHANNEL, (1, from_then_on), &mut spare)?;
        }
        let (_, failed_states) = refuse_each(&case, STATE, (1, false), &mut spare)?;
        let (grants, failed_grants) = refuse_each(&case, GRANT, (GRANT_STRIDE, false), &mut spare)?;
        log::info(
            NO_DEVICE,
            format_args!(
                "selftest of shortages, {}, {buffers} buffers: of {one} set-ups with one refusal {failed_one} had \
                 less, of {rest} with all from one on {failed_rest}, of {grants} with a grant's {failed_grants}",
                core::str::from_utf8(path).unwrap_or_default()
            ),
        );
        // If only buffers beyond the slots are refused, the front does without: that is no
        // shortage.
        let failed_grants = if buffers > 0 { grants } else { failed_grants };
        if [failed_one, failed_rest, failed_grants, failed_states].contains(&0) {
            return Err("no refusal reached a front");
        }
    }
    let mut most = 0;
    for path in [&b"copy"[..], b"staging", b"gref-mapping", b"persistent", b"auto"] {
        for (queues, ring_order) in [(1, 0), (8, 0), (1, 4)] {
            most = most.max(live_by_reserve(&Case::new(path, queues, ring_order), &mut spare)?);
        }
        // As many buffers as a back offers, and as many pages as it maps.
        for (data_len, buffers) in [(64, 28_672), (2048, MAPPED_PAGES / 2)] {
            let case = Case { data_len, buffers, ..Case::new(path, 1, 0) };
            most = most.max(live_by_reserve(&case, &mut spare)?);
        }
    }
    // SAFETY: it reads a number.
    let waits = unsafe { shim::pk_memory_waits() };
    log::info(NO_DEVICE, format_args!("selftest of shortages: {most} % of a reserve at most, {waits} waits"));
    if waits == 0 { Ok(()) } else { Err("memory was waited for") }
}
