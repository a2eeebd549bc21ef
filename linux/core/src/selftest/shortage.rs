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
//!
//! Each kind of refusal must reach each front, as an error or as less memory than without it; else
//! the test fails, since it would show nothing.

use super::*;
use crate::shim::{CHANNEL, GRANT, HEAP, PAGES, STATE};
use core::sync::atomic::Ordering;
use domains::CHANNELS;
use pregrant::net::front::{FrontQueue, FrontStep};
use pregrant::xenbus::XenbusState;

/// Length of a frame in bytes, and number of frames in each direction.
const LEN: usize = 64;
const FRAMES: u64 = 16;
/// Grants of a queue that the test's table has room for.
const TABLE_GRANTS: usize = 4096;
/// Pages that a back keeps mapped where it is asked for more than slots.
const MAPPED_PAGES: u32 = 4096;

/// Requests of one kind to a front, which are refused one after another.
struct Kind {
    kinds: u32,
    /// One in this number of the requests is refused.
    stride: u64,
    /// All requests that follow are refused, too.
    from_then_on: bool,
    /// The error if no refusal reaches the front.
    missed: &'static str,
}

const fn one(kinds: u32, stride: u64, missed: &'static str) -> Kind {
    Kind { kinds, stride, from_then_on: false, missed }
}

const fn all_from_one_on(kinds: u32, stride: u64, missed: &'static str) -> Kind {
    Kind { kinds, stride, from_then_on: true, missed }
}

/// Requests for lists of more than a page, each of which is refused to the fronts of each path.
const LISTS: Kind = one(HEAP, 1, "no refused list reached a front");
const SOME_PAGES: Kind = one(PAGES, 29, "no refused page reached a front");
const SOME_CHANNELS: Kind = one(CHANNEL, 5, "no refused channel reached a front");
const MEMORY: Kind = all_from_one_on(HEAP | PAGES | CHANNEL, 5, "no shortage of memory reached a front");
/// Requests for pages and channels, each of which is refused to a few fronts only, since that takes
/// longer.
const EACH_PAGE: Kind = one(PAGES | CHANNEL, 1, "no refused page or channel reached a front");
const ALL_PAGES: Kind = all_from_one_on(PAGES | CHANNEL, 1, "no shortage of pages reached a front");
const STATES: Kind = one(STATE, 1, "no refused state reached a front");
const GRANTS: Kind = one(GRANT, 151, "no refused grant reached a front");

/// A front of the test.
#[derive(Clone, Copy)]
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

    /// True if a set-up must ask for lists of more than a page. The others have shorter ones, of
    /// which none can be refused: with rings of one page and pages that stay, lists have an entry
    /// for each slot. The path `copy` has no more pages than slots, nor has `data-ring`, by
    /// `persistent` all pages stay, and of buffers of 2048 bytes a back's offer, 896 pages, has too
    /// few.
    fn has_long_lists(&self) -> bool {
        let has_more = match self.path {
            b"copy" | b"data-ring" => false,
            b"staging" | b"auto" => self.buffers > 0 && self.data_len < 2048,
            _ => self.buffers > 0,
        };
        let has_pool = self.in_place && self.path != b"persistent";
        self.ring_order > 0 || has_pool || has_more
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
            pregrant_selftest_back_control(back, host).map_err(|_| "the back's control ring")?;
            let turned = calls.make(|| front.turn(guest));
            if !turned.map_err(|_| "the front's control ring")? && !front.is_announcing() {
                break;
            }
        }
        if self.front.is_live() {
            self.turn()?;
        }
        self.give_up_pages()?;
        Ok(self.front.is_live())
    }

    /// Gives up pages as control does when the kernel is short of memory. This must need no list of
    /// more than a page, since there may be no memory for one.
    #[inline(never)]
    fn give_up_pages(&mut self) -> Result<()> {
        let Self { front, guest, .. } = self;
        // SAFETY: it sets what is counted.
        unsafe { shim::pk_fail(HEAP, 0, u64::MAX) };
        front.release_idle(guest);
        front.shrink_rx(guest, usize::MAX);
        // SAFETY: it reads a number, and ends what was set.
        let asked = unsafe {
            let asked = shim::pk_asked();
            shim::pk_fail(0, 0, 0);
            asked
        };
        if asked == 0 { Ok(()) } else { Err("a front asks for more than a page to give pages up") }
    }

    /// Number of staging buffers and ordinary pages of all queues.
    fn memory(&self) -> u32 {
        let queues = (0..self.front.nr_queues()).filter_map(|i| self.front.queue(i));
        let of_queue = |q: &FrontQueue<Domain>| {
            q.tx().chain().buffers() + q.rx().chain().buffers() + q.pages().iter().sum::<u32>()
        };
        queues.map(of_queue).sum()
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

/// The result of a set-up.
struct Outcome {
    /// The front was not live at once, or says that it has less than it asked for.
    failed: bool,
    asked: u64,
    /// Number of staging buffers and ordinary pages of a front that was live at once.
    memory: u32,
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
    ends.table.lock().make_room((TABLE_GRANTS * case.queues as usize) << case.ring_order);
    let mut calls = Calls { refusal, asked: 0 };
    let is_live = ends.connect(&mut calls)?;
    let asked = calls.asked;
    let failed = !is_live || ends.front.shortage().is_some();
    let memory = if is_live { ends.memory() } else { 0 };
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
    Ok((Outcome { failed, asked, memory }, ends.scratch))
}

/// The set-ups of one front.
struct SetUps<'a> {
    case: Case,
    /// Number of staging buffers and ordinary pages that it has if nothing is refused.
    whole: u32,
    spare: &'a mut Spare,
}

impl<'a> SetUps<'a> {
    /// Sets the front up without a refusal.
    #[inline(never)]
    fn new(case: Case, spare: &'a mut Spare) -> Result<Self> {
        match attempt(&case, Refusal::NONE, false, spare)? {
            Outcome { failed: true, .. } => Err("a set-up fails though nothing is refused"),
            Outcome { memory: whole, .. } => Ok(Self { case, whole, spare }),
        }
    }

    /// Sets the front up again and again, each time with another refusal, until none is met.
    /// Returns the number of set-ups, and how many of them failed or got less.
    #[inline(never)]
    fn refuse(&mut self, kind: &Kind) -> Result<(u64, u64)> {
        let (mut tried, mut reached) = (0, 0);
        loop {
            let from = tried * kind.stride;
            let to = if kind.from_then_on { u64::MAX } else { from + 1 };
            let refusal = Refusal { kinds: kind.kinds, from, to };
            let outcome = attempt(&self.case, refusal, tried % 2 == 1, self.spare)?;
            if outcome.asked <= from {
                return Ok((tried, reached));
            }
            let has_less = outcome.failed || outcome.memory < self.whole;
            (tried, reached) = (tried + 1, reached + u64::from(has_less));
        }
    }

    /// Like [`refuse`](Self::refuse). It is an error if no refusal reaches the front.
    #[inline(never)]
    fn must_reach(&mut self, kind: &Kind) -> Result<(u64, u64)> {
        let (tried, reached) = self.refuse(kind)?;
        if reached > 0 { Ok((tried, reached)) } else { Err(kind.missed) }
    }
}

/// Tests all cases.
#[inline(never)]
pub fn play() -> Result<()> {
    let mut spare = None;
    for path in [&b"copy"[..], b"staging", b"data-ring", b"gref-mapping", b"persistent", b"auto"] {
        let slots = |queues, ring_order| Case::new(path, queues, ring_order);
        let more = |data_len, buffers| Case { data_len, buffers, ..slots(1, 0) };
        let in_place = Case { in_place: true, ..slots(1, 0) };
        // The last two: as many as a back's offer has, and as it maps.
        let cases =
            [slots(1, 0), slots(8, 0), slots(1, 4), in_place, more(64, 28_672), more(2048, MAPPED_PAGES / 2)];
        for case in cases {
            refuse_memory(SetUps::new(case, &mut spare)?)?;
        }
    }
    let auto = Case::new(b"auto", 1, 0);
    let more = Case { data_len: 64, buffers: 2048, ..auto };
    for case in [auto, Case::new(b"data-ring", 1, 0), Case::new(b"persistent", 1, 0), more] {
        refuse_others(SetUps::new(case, &mut spare)?)?;
    }
    Ok(())
}

/// Each list of more than a page is refused once, and some pages and channels; then all memory from
/// some request on.
#[inline(never)]
fn refuse_memory(mut set_ups: SetUps<'_>) -> Result<()> {
    let (lists, less_lists) = set_ups.refuse(&LISTS)?;
    let (pages, less_pages) = set_ups.must_reach(&SOME_PAGES)?;
    let (channels, less_channels) = set_ups.must_reach(&SOME_CHANNELS)?;
    let (rest, less_rest) = set_ups.must_reach(&MEMORY)?;
    let Case { path, queues, ring_order, buffers, in_place, .. } = set_ups.case;
    log::info(
        NO_DEVICE,
        format_args!(
            "selftest of shortages, {}, {queues} queues, {} pages a ring, {buffers} buffers{}: {less_lists} of {lists} \
             set-ups had less by a refused list, {less_pages} of {pages} by a page, {less_channels} of {channels} by a \
             channel, {less_rest} of {rest} by all memory from one on",
            core::str::from_utf8(path).unwrap_or_default(),
            1 << ring_order,
            if in_place { ", in place" } else { "" },
        ),
    );
    // A refusal that the set-up met must have reached the front, and so must one of a front that
    // has long lists.
    let is_met = lists > 0 || set_ups.case.has_long_lists();
    if is_met && less_lists == 0 { Err(LISTS.missed) } else { Ok(()) }
}

/// Each page, channel and write of a state is refused once, and some grants; then all pages and
/// channels from each on.
#[inline(never)]
fn refuse_others(mut set_ups: SetUps<'_>) -> Result<()> {
    let (pages, less_pages) = set_ups.must_reach(&EACH_PAGE)?;
    let (rest, less_rest) = set_ups.must_reach(&ALL_PAGES)?;
    let (states, less_states) = set_ups.must_reach(&STATES)?;
    let (grants, less_grants) = set_ups.must_reach(&GRANTS)?;
    log::info(
        NO_DEVICE,
        format_args!(
            "selftest of shortages, {}, {} buffers: {less_pages} of {pages} set-ups had less by a refused page or \
             channel, {less_rest} of {rest} by all from one on, {less_states} of {states} by a state, {less_grants} of \
             {grants} by a grant",
            core::str::from_utf8(set_ups.case.path).unwrap_or_default(),
            set_ups.case.buffers,
        ),
    );
    Ok(())
}
