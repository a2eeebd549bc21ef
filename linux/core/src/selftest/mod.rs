//! Both ends of a vif in this kernel: the handshake, and frames each way by each path that the
//! front may ask for. Every byte of every frame is compared; afterwards no grant may be left. A
//! frame that goes by another path than the one that was asked for is a failure.
//!
//! ```text
//!   front domain --TX, frame k filled by k--> back domain: Counterpart compares
//!    skbs, halves <--RX, frame k filled by k-- Counterpart; the test compares
//! ```

mod back;
mod directory;
mod domains;
mod segments;
mod shortage;
mod skbs;
mod stack;

use crate::front::{AUTO, Settings, config};
use crate::halves::counters;
use crate::log;
use crate::shim;
use crate::used_path::{Seen, Shared};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use back::{
    Back, Queue, pregrant_selftest_back_close, pregrant_selftest_back_control, pregrant_selftest_back_new,
    pregrant_selftest_back_poll_arm, pregrant_selftest_back_poll_rx, pregrant_selftest_back_poll_tx,
    pregrant_selftest_back_step, pregrant_selftest_back_turn,
};
use core::fmt::Write;
use directory::{MapBus, directory};
use domains::{Domain, Table};
use pregrant::net::back::Polled;
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::net::path::PathName;
use pregrant::net::path::data_ring::{DEFAULT_ORDER, rounded};
use pregrant::net::path::staging::keys::{MAX_PAGES_OFFERED, Offer};
use pregrant::net::stats::DirStats;
use pregrant::platform::Clock;
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads};
use pregrant::units::PAGE_SIZE;
use pregrant::wire::data_ring::half_bytes;
use pregrant::{DomId, PeerFault};
use spin::Mutex;

type Result<T> = core::result::Result<T, &'static str>;

const GUEST: DomId = DomId(5);
const HOST: DomId = DomId(0);
/// Number of steps within which two ends connect, or close.
const STEPS: u32 = 8;
/// Bytes of the Ethernet, IPv4 and TCP headers together.
const TCP_HEADER: usize = 54;
/// Slots of a ring of one page: each has a page of its own.
const RING_SLOTS: u64 = 256;
const NO_DEVICE: shim::Device = core::ptr::null_mut();
/// Largest number of turns in which the front announces its pages to the back by control requests.
const QUESTIONS: u32 = 2000;

/// A vif of the test.
struct Trial {
    path: PathName,
    /// Bytes of a staging buffer, if the path has any.
    data_len: u32,
    /// Number of staging buffers or pages of a direction, or `AUTO`. 0: one for each slot, or the
    /// default of a data ring.
    buffers: u32,
    /// Length of a frame in bytes.
    len: usize,
    /// Divisor of the requested number of frames, for long frames.
    share: u64,
    /// True if frames to the back are sent as fragments in granted pages of their own, which the
    /// back copies whatever the path is.
    in_pieces: bool,
    /// True if frames from the back stay in the pages in which they arrive.
    in_place: bool,
}

fn trials() -> [Trial; 15] {
    use PathName as P;
    let trial = |path, data_len, len, share| Trial {
        path,
        data_len,
        buffers: 0,
        len,
        share,
        in_pieces: false,
        in_place: false,
    };
    let more = |path, len| Trial { buffers: AUTO, ..trial(path, 2048, len, 1) };
    let halves_of = |pages, len, share| Trial { buffers: pages, ..trial(P::DataRing, 2048, len, share) };
    let pieces = |path, len, share| Trial { in_pieces: true, ..trial(path, 2048, len, share) };
    let in_place = |path, len, share| Trial { in_place: true, ..trial(path, 2048, len, share) };
    [
        trial(P::Copy, 2048, 64, 1),
        trial(P::Staging, 256, 64, 1),
        more(P::Staging, 1514),
        trial(P::DataRing, 2048, 64, 1),
        trial(P::DataRing, 2048, 1514, 10),
        // A page for each slot, as long frames need; and less than one such frame has.
        halves_of(RING_SLOTS as u32, 60_000, 100),
        halves_of(8, 60_000, 100),
        trial(P::GrefMapping, 2048, 64, 1),
        trial(P::Persistent, 2048, 64, 1),
        trial(P::Copy, 2048, 60_000, 100),
        trial(P::GrefMapping, 2048, 60_000, 100),
        pieces(P::Copy, 1514, 10),
        pieces(P::Staging, 60_000, 100),
        in_place(P::Copy, 60_000, 100),
        in_place(P::GrefMapping, 9000, 10),
    ]
}

impl Trial {
    /// The settings by which the module asks for this path.
    #[inline(never)]
    fn config(&self) -> Result<FrontConfig> {
        config(&self.settings(self.path.name().as_bytes()))
    }

    #[inline(never)]
    fn settings(&self, path: &'static [u8]) -> Settings {
        Settings {
            path: path.as_ptr(),
            path_len: path.len(),
            queues: 1,
            ring_order: 0,
            data_len: self.data_len,
            buffers: self.buffers,
            // SAFETY: it asks the processor. At least so much that a vif's pages are the bound.
            cache: unsafe { shim::pk_private_cache() }.max(4 << 20),
            multicast: false,
            rx_in_place: if self.in_place { 2049 } else { 0 },
            send_on: false,
        }
    }

    /// Number of a direction's frames that used another path, as the back counts them.
    fn others(&self, stats: &DirStats) -> u64 {
        let by = match self.path {
            _ if self.in_pieces => stats.granted,
            PathName::Staging => stats.staging,
            PathName::DataRing => stats.data_ring,
            PathName::GrefMapping => stats.gref_mapping,
            PathName::Persistent => stats.persistent,
            _ => stats.granted,
        };
        stats.frames - by
    }

    /// log2 of the pages of the data ring that the front must get.
    fn data_ring(&self) -> Option<u32> {
        let order = match self.buffers {
            0 => DEFAULT_ORDER,
            pages => pages.ilog2() + 1,
        };
        (self.path == PathName::DataRing).then_some(order)
    }

    /// True if no frame fits the data ring, so that all of them use the pages.
    fn is_too_long(&self) -> bool {
        self.path == PathName::DataRing && self.buffers > 0 && self.len > self.buffers as usize * PAGE_SIZE
    }

    /// Largest allowed result of `others`: a back maps a page when it first sees it, only a few at
    /// a time.
    fn others_max(&self) -> u64 {
        match self.path {
            PathName::Persistent => 4 * RING_SLOTS,
            _ if self.is_too_long() => u64::MAX,
            _ => 0,
        }
    }

    /// True if no frame takes a grant operation, not even the first ones.
    fn needs_no_operation(&self) -> bool {
        matches!(self.path, PathName::Staging | PathName::DataRing) && !self.in_pieces && !self.is_too_long()
    }
}

fn word(k: u64, i: usize) -> u64 {
    k.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i as u64)
}

/// Fills a frame in units of 8 bytes, which is fast enough for a million frames under emulation.
fn fill(frame: &mut [u8], k: u64) {
    let words = frame.len() / 8;
    let mut chunks = frame.chunks_exact_mut(8);
    for (i, chunk) in chunks.by_ref().enumerate() {
        chunk.copy_from_slice(&word(k, i).to_le_bytes());
    }
    chunks.into_remainder().iter_mut().zip(word(k, words).to_le_bytes()).for_each(|(to, from)| *to = from);
}

fn is_frame(frame: &[u8], len: usize, k: u64) -> bool {
    let mut chunks = frame.chunks_exact(8);
    let differs = |(i, chunk): (usize, &[u8])| match <[u8; 8]>::try_from(chunk) {
        Ok(bytes) => u64::from_le_bytes(bytes) != word(k, i),
        Err(_) => true,
    };
    let whole = !chunks.by_ref().enumerate().any(differs);
    let last = word(k, frame.len() / 8).to_le_bytes();
    whole && frame.len() == len && chunks.remainder().iter().zip(last).all(|(a, b)| *a == b)
}

/// Returns the headers of a TCP segment for a frame of `len` bytes. Only TCP payload may stay in
/// the pages in which it arrived.
fn tcp_header(len: usize) -> [u8; TCP_HEADER] {
    let mut head = [0; TCP_HEADER];
    let mut put = |at: usize, bytes: &[u8]| {
        head.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
    };
    put(12, &[8, 0, 0x45]);
    put(16, &(len.saturating_sub(14) as u16).to_be_bytes());
    put(22, &[64, 6]);
    put(46, &[0x50]);
    head
}

/// The port of the test's back, which checks the frames from the guest and makes those for it.
struct Counterpart {
    len: usize,
    /// Headers with which each frame for the guest begins, if frames must be TCP segments.
    head: Option<[u8; TCP_HEADER]>,
    /// Number of frames that arrived, and of those that were out of sequence.
    came: u64,
    wrong: u64,
    /// Number of frames that were sent.
    gave: u64,
    /// Offloads that the frames ask for.
    offload: Offload,
}

impl FramePort for Counterpart {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        for (frame, _) in frames.iter() {
            self.wrong += u64::from(!is_frame(frame, self.len, self.came));
            self.came += 1;
        }
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let before = into.len();
        while into.has_room() {
            let Some(to) = into.room(self.len, self.offload) else { break };
            fill(to, self.gave);
            self.head.iter().flatten().zip(to).for_each(|(from, to)| *to = *from);
            self.gave += 1;
        }
        into.len() - before
    }
}

/// Both ends of a vif.
struct Ends {
    table: Arc<Mutex<Table>>,
    guest: Domain,
    host: Domain,
    front_bus: MapBus,
    back_bus: MapBus,
    front: Box<FrontVif<Domain>>,
    back: Box<Back>,
    port: Counterpart,
    scratch: Box<Arena>,
    /// The bytes of one frame.
    bytes: Vec<u8>,
    /// Largest number of frames that are published to the back at once: no more than a data ring
    /// has room for.
    at_once: u64,
}

/// Everything that our back offers.
#[inline(never)]
fn whole() -> BackFeatures {
    BackFeatures::default()
}
#[inline(never)]
fn front(config: FrontConfig, reconnect: bool) -> Box<FrontVif<Domain>> {
    Box::new(FrontVif::new(HOST, config, reconnect))
}
#[inline(never)]
fn arena() -> Box<Arena> {
    Box::new(Arena::new())
}

impl Ends {
    #[inline(never)]
    fn new(
        features: BackFeatures,
        config: FrontConfig,
        len: usize,
        reconnect: bool,
        scratch: Box<Arena>,
    ) -> Self {
        let table = Arc::new(Mutex::new(Table::default()));
        let [guest, host] = [GUEST, HOST].map(|number| Domain { table: table.clone(), number });
        let (of_front, of_back) = (directory(), directory());
        let half = config.data_ring.and_then(|order| half_bytes(order).ok()).unwrap_or(u32::MAX);
        let at_once = (half as usize).checked_div(rounded(len)).unwrap_or_default().max(1);
        Self {
            table,
            guest,
            host,
            front_bus: MapBus { own: of_front.clone(), peer: of_back.clone(), may_fail: true },
            back_bus: MapBus { own: of_back, peer: of_front, may_fail: false },
            front: front(config, reconnect),
            back: pregrant_selftest_back_new(GUEST, features),
            port: Counterpart { len, head: None, came: 0, wrong: 0, gave: 0, offload: Offload::default() },
            scratch,
            bytes: vec![0; len],
            at_once: (at_once as u64).min(skbs::AT_ONCE),
        }
    }

    #[inline(never)]
    fn steps(&mut self) -> Result<()> {
        for _ in 0..STEPS {
            self.back_step()?;
            self.front.step(&self.guest, &mut self.front_bus).map_err(|_| "the front's step")?;
        }
        Ok(())
    }

    #[inline(never)]
    fn back_step(&mut self) -> Result<()> {
        let stepped = pregrant_selftest_back_step(&mut self.back, &self.host, &mut self.back_bus);
        if stepped { Ok(()) } else { Err("the back's step") }
    }

    /// Calls the back's first queue.
    fn with_queue<T>(
        &mut self,
        call: impl FnOnce(&mut Queue, &Domain, &mut Counterpart, &mut Arena) -> T,
    ) -> Result<T> {
        let Self { back, host, port, scratch, .. } = self;
        let mut queues = back.hand_out_queues();
        let came = queues.first_mut().map(|queue| call(queue, host, port, scratch));
        back.take_back(queues);
        came.ok_or("the back has no queue")
    }

    /// Moves frames from the front to the back, in softirq context. If there are none, asks for
    /// events as a driver does, and looks once more.
    #[inline(never)]
    fn poll_tx(&mut self) -> Result<Polled> {
        let polled = self.with_queue(|queue, host, port, scratch| {
            skbs::softirq(|| match pregrant_selftest_back_poll_tx(queue, host, port, scratch)? {
                Polled::Idle if pregrant_selftest_back_poll_arm(queue, host)? => {
                    pregrant_selftest_back_poll_tx(queue, host, port, scratch)
                }
                polled => Ok(polled),
            })
        })?;
        polled.map_err(|_: PeerFault| "a fault of the front, TX")
    }

    /// Moves frames from the back to the front, in softirq context.
    #[inline(never)]
    fn poll_rx(&mut self) -> Result<Polled> {
        let poll = |queue: &mut Queue, host: &Domain, port: &mut Counterpart, _: &mut Arena| {
            skbs::softirq(|| pregrant_selftest_back_poll_rx(queue, host, port))
        };
        self.with_queue(poll)?.map_err(|_| "a fault of the front, RX")
    }

    /// Lets the back's queue apply what control changed, as a driver does before it starts NAPI.
    #[inline(never)]
    fn turn(&mut self) -> Result<()> {
        let turned =
            self.with_queue(|queue, host, port, _| pregrant_selftest_back_turn(queue, host, port))?;
        turned.map(drop).map_err(|_| "the back's turn")
    }

    /// Lets the front announce its pages to the back, if the path does so.
    #[inline(never)]
    fn announce(&mut self) -> Result<()> {
        for _ in 0..QUESTIONS {
            pregrant_selftest_back_control(&mut self.back, &self.host)
                .map_err(|_| "the back's control ring")?;
            if !self.front.turn(&self.guest).map_err(|_| "the front's control ring")?
                && !self.front.is_announcing()
            {
                break;
            }
        }
        if self.front.is_live() { self.turn() } else { Err("the vif is not live") }
    }
}

#[inline(never)]
fn play(trial: &Trial, frames: u64) -> Result<()> {
    let len = trial.len;
    let n = frames.checked_div(trial.share).unwrap_or_default().max(1);
    let config = trial.config()?;
    // The back allows no more.
    let asked = config.staging.buffers.min(MAX_PAGES_OFFERED);
    let mut ends = Ends::new(whole(), config, len, false, arena());
    ends.steps()?;
    ends.announce()?;
    let (buffers, pages) = ends.front.queue(0).map_or(((0, 0), [0, 0]), |q| (q.staging_buffers(), q.pages()));
    let fewest =
        if trial.path == PathName::Staging { buffers.0.min(buffers.1) } else { pages[0].min(pages[1]) };
    let has_more = trial.path == PathName::DataRing || u64::from(fewest) > RING_SLOTS;
    if trial.buffers > 0 && !has_more || fewest < asked {
        return Err("there are fewer buffers than were asked for");
    }
    if ends.front.queue(0).is_none_or(|q| q.asked().data_ring != trial.data_ring()) {
        return Err("the data ring has another size than was asked for");
    }
    let (name, mut right) = (trial.path.name(), log::Line::default());
    let seen = Seen::of(&ends.front, Shared::by(&ends.front), name.as_bytes());
    if write!(right, "{name}: path={name}").is_err() || !says(&seen, right.text()) {
        return Err("it says another path");
    }
    let before = ends.table.lock().ops();
    let start = ends.guest.now_ns();
    let wrong_tx = ends.tx(n, trial.in_pieces)?;
    let between = ends.guest.now_ns();
    let wrong_rx = ends.rx(n, trial.in_place)?;
    let over = ends.guest.now_ns();
    let after = ends.table.lock().ops();
    let (tx, rx) = ends.back.stats(0);
    let others = trial.others(&tx).max(trial.others(&rx));
    ends.front.close(&mut ends.front_bus, None).map_err(|_| "the front does not close")?;
    ends.steps()?;
    let table = ends.table.clone();
    drop(ends);
    let left = table.lock().left();
    log::info(
        NO_DEVICE,
        format_args!(
            "selftest {}, {len} B: {n} frames each way, {wrong_tx} and {wrong_rx} wrong or lost, at most {others} by \
             another path, {} and {} ns each, {} copies, {} maps, {left} grants left",
            trial.path,
            (between - start).checked_div(n).unwrap_or_default(),
            (over - between).checked_div(n).unwrap_or_default(),
            after.copies - before.copies,
            after.maps - before.maps,
        ),
    );
    match (wrong_tx + wrong_rx, left) {
        (0, 0) if others > trial.others_max() => Err("frames went by another path"),
        (0, 0) if trial.is_too_long() && others < n => Err("frames went by a data ring that is too short"),
        (0, 0)
            if trial.needs_no_operation() && (after.copies, after.maps) != (before.copies, before.maps) =>
        {
            Err("frames took grant operations")
        }
        (0, 0) if tx.frames < n || rx.frames < n => Err("the back counts fewer frames"),
        (0, 0) => Ok(()),
        (0, _) => Err("grants are left"),
        _ => Err("frames are wrong or lost"),
    }
}

/// True if `ethtool -i` shows exactly this text.
#[inline(never)]
fn says(seen: &Seen<'_>, wanted: &str) -> bool {
    seen.words().split(|byte| *byte == 0).next() == Some(wanted.as_bytes())
}

/// Checks the text of `ethtool -i` for backs that lack some features.
#[inline(never)]
fn say_paths() -> Result<()> {
    let no_staging = BackFeatures { staging: Offer::NONE, ..whole() };
    let plain = BackFeatures { ctrl_ring: false, ..no_staging.clone() };
    let no_ring = BackFeatures { data_ring: 0, ..whole() };
    for (asked, features, wanted) in [
        (&b"auto"[..], whole(), "staging+gref: path=auto"),
        (b"auto", BackFeatures { ctrl_ring: false, ..whole() }, "staging: gref absent"),
        (b"auto", no_staging, "gref-mapping: staging absent"),
        (b"auto", plain, "copy: staging absent"),
        (b"data-ring", no_ring, "copy: data-ring absent"),
    ] {
        let trial = Trial {
            path: PathName::Copy,
            data_len: 2048,
            buffers: 0,
            len: 64,
            share: 1,
            in_pieces: false,
            in_place: false,
        };
        let settings = trial.settings(asked);
        let mut ends = Ends::new(features, config(&settings)?, 64, false, arena());
        ends.steps()?;
        ends.announce()?;
        if !says(&Seen::of(&ends.front, Shared::by(&ends.front), asked), wanted) {
            return Err(wanted);
        }
        ends.front.close(&mut ends.front_bus, None).map_err(|_| "the front does not close")?;
        ends.steps()?;
    }
    say_seen()
}

/// Checks the text of `ethtool -i` for states that no back of the test brings about.
#[inline(never)]
fn say_seen() -> Result<()> {
    let shared = Shared { staged: [true; 2], ringed: [false; 2], has_pages: true };
    let whole = Seen {
        asked: b"auto",
        shared,
        maps: true,
        maps_none: false,
        persists: false,
        refused: None,
        is_short: false,
        absent: None,
    };
    let none_mapped = Seen { maps: false, maps_none: true, ..whole };
    let refused = Seen { refused: Some("staging refused"), ..whole };
    let [tx, rx] = [[true, false], [false, true]].map(|staged| Shared { staged, ..shared });
    let in_ring = Seen { asked: b"data-ring", maps: false, maps_none: true, ..whole };
    let ring = |ringed, refused| Seen {
        shared: Shared { staged: [false; 2], ringed, ..shared },
        refused,
        ..in_ring
    };
    let no_ring = Some("data-ring refused");
    for (seen, wanted) in [
        (Seen { is_short: true, ..whole }, "staging+gref: no memory"),
        (refused, "staging+gref: staging refused"),
        (Seen { shared: tx, ..whole }, "tx staging: rx refused"),
        (Seen { shared: rx, ..refused }, "rx staging: tx refused"),
        (Seen { shared: rx, is_short: true, ..whole }, "rx staging: no memory"),
        (none_mapped, "staging: gref refused"),
        (Seen { maps: false, ..whole }, "staging: path=auto"),
        (ring([true; 2], None), "data-ring: path=data-ring"),
        (ring([true, false], no_ring), "tx data-ring: rx refused"),
        (ring([false, true], no_ring), "rx data-ring: tx refused"),
        (ring([false; 2], no_ring), "copy: data-ring refused"),
        (Seen { is_short: true, ..ring([true; 2], None) }, "data-ring: no memory"),
        (Seen { is_short: true, ..ring([false; 2], None) }, "copy: no memory"),
    ] {
        if !says(&seen, wanted) {
            return Err(wanted);
        }
    }
    Ok(())
}

/// Checks that a back gets no pages with other data if the toolstack or the module's parameter
/// calls it untrusted: no frame is sent from its own pages, and none stays in the pages in which it
/// arrived.
#[inline(never)]
fn distrust() -> Result<()> {
    for (trusted, key, lends) in
        [(true, "1", true), (true, "0", false), (false, "1", false), (true, "yes", true)]
    {
        let trial = Trial {
            path: PathName::Copy,
            data_len: 2048,
            buffers: 0,
            len: 9000,
            share: 1,
            in_pieces: lends,
            in_place: lends,
        };
        let settings = Settings { rx_in_place: 2049, ..trial.settings(b"copy") };
        let mut ends = Ends::new(whole(), config(&settings)?, 9000, false, arena());
        directory::write(&ends.front_bus.own, "trusted", key);
        ends.front.set_trusted(trusted);
        ends.steps()?;
        let before = ends.table.lock().ops();
        let takes = ends.front.queue(0).is_some_and(|queue| queue.tx().takes_pieces());
        let wrong = ends.tx(100, lends)?;
        let (wrong_rx, lent) = ends.rx_in_place(100)?;
        let copies = ends.table.lock().ops().copies - before.copies;
        if wrong + wrong_rx > 0 || takes != lends || (lent > 0) != lends || copies == 0 {
            return Err("a back is trusted that is not, or is not that is");
        }
        ends.front.close(&mut ends.front_bus, None).map_err(|_| "the front does not close")?;
        ends.steps()?;
        if ends.table.lock().left() > 0 {
            return Err("grants are left");
        }
    }
    Ok(())
}

/// Checks the counters of `ethtool -S` for what a front's frames are copied through.
#[inline(never)]
fn say_counters() -> Result<()> {
    let stats = DirStats { frames: 9, granted: 4, staging: 2, data_ring: 3, ..DirStats::default() };
    let right = counters(stats, false) == [9, 0, 2, 3, 4, 0, 0, 0, 0]
        && counters(stats, true) == [9, 0, 2, 3, 0, 4, 0, 0, 0];
    if right { Ok(()) } else { Err("the counters are of another path") }
}

/// Runs all parts, with `frames` frames in each direction. 0: everything is right.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_selftest(frames: u64) -> i32 {
    for trial in trials() {
        if let Err(e) = play(&trial, frames) {
            log::warn(NO_DEVICE, format_args!("selftest {}, {} B, failed: {e}", trial.path, trial.len));
            return -22;
        }
    }
    let said = say_paths().and_then(|()| say_counters()).and_then(|()| distrust());
    match said.and_then(|()| segments::play()).and_then(|()| stack::play()).and_then(|()| shortage::play()) {
        Ok(()) => 0,
        Err(e) => {
            log::warn(
                NO_DEVICE,
                format_args!("selftest of paths, segments, the stack and shortages failed: {e}"),
            );
            -22
        }
    }
}
