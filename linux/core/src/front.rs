//! A vif's front, as C calls it.
//!
//! ```text
//!   front   new, step, turn, close, free   control: one thread at a time, which may sleep
//!             |  start_queues, stop_queues: no frame travels meanwhile
//!             |-- Tx, of each queue: send, publish, reclaim, arm    halves.rs, under the sender's lock
//!             '-- Rx: receive, arm                                  halves.rs, by the queue's poller
//! ```
//! C keeps these rules. A negative result is an error code; [`FAULT`] means that the backend broke
//! the protocol, and that the vif must be closed.

use crate::bus::{BusError, KernelBus};
use crate::halves::{Rx, Tx};
use crate::in_place::{InPlace, has_done};
use crate::log;
use crate::platform::Kernel;
use crate::shim;
use crate::used_path::{self, Seen, Words};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::{Display, Write};
use core::mem::MaybeUninit;
use pregrant::net::front::{FrontConfig, FrontQueue, FrontStep, FrontVif, Granting};
use pregrant::net::path::data_ring::DEFAULT_ORDER;
use pregrant::net::path::staging::keys::MAX_PAGES_OFFERED;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::{Clock, Platform};
use pregrant::units::PAGE_SIZE;
use pregrant::wire::data_ring::ORDER_MAX;
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::bus::DeviceBus;
use pregrant::xenbus::front::FrontError;
use pregrant::{DomId, PeerFault};

/// EIO: the backend broke the protocol, or the device failed.
pub const FAULT: i32 = -5;

/// The front of a vif, as C uses it.
pub struct Front {
    p: Kernel,
    bus: KernelBus,
    vif: FrontVif<Kernel>,
    task: Task,
    retry: Retry,
    /// The path that its owner asked for by name, or `auto`.
    asked: &'static [u8],
    /// The paths that the last connect agreed on, for the text of `ethtool -i`.
    shared: used_path::Shared,
    /// The halves of the queues that C has.
    handed_out: Vec<(*mut Tx, *mut Rx)>,
    /// Bytes from which a received frame stays in its pages; 0: none does. See [`Rx`].
    in_place: usize,
    /// For each queue that was stopped, its list of frames that stay in their pages, for reuse.
    kept_in_place: Vec<Option<InPlace>>,
    /// For each queue the number of frames for which there were no spare RX pages, when pages were
    /// last added.
    short: Vec<u64>,
    /// True once the log has the number of pages that the back keeps mapped.
    is_mapping_logged: bool,
}

/// What the next step does before it follows the back.
///
/// | task | from | to |
/// |---|---|---|
/// | `TakeOver` | the beginning | `Follow`, once the predecessor's xenbus state is read |
/// | `Follow` | | `Restart`, where a step failed at Connected or Closing |
/// | `Restart` | | `Follow`, once Closing is written |
/// | `Close` | any, by `pregrant_front_close` or `pregrant_front_abandon` | none |
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Reads the xenbus state in which a predecessor left the device.
    TakeOver,
    /// Nothing: the next step follows the back.
    Follow,
    /// Closes from this end and connects again, since a part of a failed step may be done.
    Restart,
    /// Closes for good. `writes_state`: the state Closing could not be written yet.
    Close { writes_state: bool },
}

/// The pauses between steps that fail.
struct Retry {
    /// When the next step is tried again; 0: none has failed.
    at_ns: u64,
    pause_ns: u64,
    /// True if the first failure since the vif was live has been reported.
    is_reported: bool,
}

/// The pause after a step that failed. It doubles until the vif is live.
const PAUSE_NS: u64 = 250_000_000;
const PAUSE_MAX_NS: u64 = 4_000_000_000;

/// The module's parameters: `struct pregrant_settings`.
#[repr(C)]
pub struct Settings {
    pub path: *const u8,
    pub path_len: usize,
    pub queues: u32,
    pub ring_order: u32,
    pub data_len: u32,
    pub buffers: u32,
    pub cache: u32,
    pub rx_in_place: u32,
    pub multicast: bool,
    pub send_on: bool,
}

/// The value of `buffers` that asks for as many buffers as hold twice the size of the `cache`. It
/// is `PREGRANT_BUFFERS_AUTO` in C.
pub const AUTO: u32 = u32::MAX;
/// Largest number of queues that C sets: `PREGRANT_QUEUES_MAX`. A list with an entry for each queue
/// takes at most a page.
const QUEUES_MAX: usize = 64;
/// RX pages of a queue that can be added while skbs have others: as many as two rings of one page
/// have slots.
const MORE_RX_PAGES: u32 = 512;
/// Largest number of RX pages that one call adds to a queue. Their memory and their lists may be
/// refused; then fewer are added, or none.
const GROWS_BY: usize = 64;
/// Bytes of a page that a frame uses, on average.
const USED: u32 = PAGE_SIZE as u32 / 2;

impl Settings {
    /// The name of a path, or `auto`.
    pub fn path(&self) -> &[u8] {
        // SAFETY: C, or the self-test, gives `path_len` bytes that outlive the settings.
        unsafe { core::slice::from_raw_parts(self.path, self.path_len) }
    }

    /// Number of buffers of `bytes` bytes for one direction of a queue. With [`AUTO`] it is at most
    /// `most`, the number that `pregrant back` allows a vif.
    fn pool(&self, bytes: u32, most: u32) -> u32 {
        match self.buffers {
            AUTO => self.cache.saturating_mul(2).checked_div(bytes).unwrap_or(0).min(most),
            n => n,
        }
    }

    /// The number of buffer lists of a vif: two a queue.
    fn lists(&self) -> u32 {
        self.queues.saturating_mul(2).max(1)
    }

    /// log2 of the pages of a data ring, each half of which has at most as many pages as `buffers`
    /// says.
    fn data_ring_order(&self) -> u32 {
        let pages = self.pool(PAGE_SIZE as u32, MAX_PAGES_OFFERED / self.lists());
        pages.checked_ilog2().map_or(DEFAULT_ORDER, |of_a_half| (of_a_half + 1).min(ORDER_MAX))
    }
}

/// Staging buffers of the length that the parameter `data_len` has.
fn buffers(len: u32) -> Result<Buffers, &'static str> {
    let len = DataLen::new(len).filter(|_| len.is_power_of_two() || len == 65_535);
    let len = len.ok_or("data_len is no power of two from 16 to 4096, nor 65535")?;
    Ok(Buffers::of(Some(len), Some(len)))
}

/// The front's configuration, or why the settings are wrong.
pub fn config(settings: &Settings) -> Result<FrontConfig, &'static str> {
    let most_pages = MAX_PAGES_OFFERED / settings.lists();
    let plain = FrontConfig {
        staging: Buffers::NONE,
        granting: Granting::Standing,
        queues: settings.queues,
        ring_order: settings.ring_order,
        multicast_control: settings.multicast,
        pages: settings.pool(USED, most_pages).min(most_pages),
        more_rx_pages: if settings.rx_in_place > 0 { MORE_RX_PAGES } else { 0 },
        ..FrontConfig::default()
    };
    let staging = buffers(settings.data_len)?;
    let more = staging.rx.map_or(0, |len| {
        settings.pool(len.buffer_bytes().into(), len.buffers_within(MAX_PAGES_OFFERED, settings.lists()))
    });
    let staging = Buffers { sent_on: settings.send_on, buffers: more, ..staging };
    let staged = FrontConfig { staging, ..plain };
    Ok(match settings.path() {
        b"copy" => plain,
        b"staging" => staged,
        // The pages are for frames that find no room in it.
        b"data-ring" => FrontConfig { data_ring: Some(settings.data_ring_order()), pages: 0, ..plain },
        b"gref-mapping" => FrontConfig { gref_mapping: true, ..plain },
        b"persistent" => FrontConfig { persistent: true, ..plain },
        // The back accepts the paths that it knows.
        b"auto" => FrontConfig { gref_mapping: true, ..staged },
        _ => return Err("path is none of auto, staging, data-ring, gref-mapping, persistent and copy"),
    })
}

/// True if a front with these settings is possible. If not, the reason is logged.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_check(settings: &Settings) -> bool {
    let config = config(settings);
    if let Err(why) = &config {
        log::warn(core::ptr::null_mut(), format_args!("{why}"));
    }
    config.is_ok()
}

/// Makes a front for a device whose backend is in domain `back`. Null: the settings do not pass
/// pregrant_front_check.
///
/// # Safety
/// `device` outlives the front.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_new(
    device: shim::Device,
    back: u16,
    settings: &Settings,
) -> *mut Front {
    let Ok(config) = config(settings) else { return core::ptr::null_mut() };
    const { assert!(size_of::<Front>() <= PAGE_SIZE, "the allocator may refuse more") };
    let front = Box::new(Front {
        p: Kernel { device },
        bus: KernelBus(device),
        vif: FrontVif::new(DomId(back), config, true),
        task: Task::TakeOver,
        retry: Retry { at_ns: 0, pause_ns: PAUSE_NS, is_reported: false },
        asked: used_path::asked(settings.path()),
        shared: used_path::Shared::default(),
        handed_out: Vec::new(),
        in_place: settings.rx_in_place as usize,
        kept_in_place: Vec::new(),
        short: Vec::new(),
        is_mapping_logged: true,
    });
    Box::into_raw(front)
}

/// Reads the backend's xenbus state and makes the steps that it allows; one that fails is tried
/// again later. True: call pregrant_front_stop_queues, then call this again.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_step(front: &mut Front) -> bool {
    if front.p.clock().now_ns() < front.retry.at_ns {
        return false;
    }
    front.retry.at_ns = 0;
    front.reclaim_pages();
    if let Err(e) = front.do_task() {
        front.failed(e.code(), &e);
        return false;
    }
    let Front { p, bus, vif, asked, shared, short, .. } = front;
    // SAFETY: it reads a module parameter.
    vif.set_trusted(unsafe { shim::pk_trusted() });
    match vif.step(p, bus) {
        Ok(to @ (FrontStep::Live | FrontStep::Renewed)) => {
            *shared = used_path::Shared::by(vif);
            if to == FrontStep::Live {
                short.clear(); // new queues count from 0
            }
            log_connected(p.device, vif, &Seen::of(vif, *shared, asked));
            front.went_on();
        }
        // An earlier step that failed while the vif was live is made up for.
        Ok(FrontStep::Waiting) if vif.is_live() => front.went_on(),
        Ok(FrontStep::Recall) => return true,
        Ok(FrontStep::Waiting | FrontStep::Closed) => {}
        Err(e) => front.failed(code_of(&e), &e),
    }
    false
}

/// The error code that is reported in xenstore.
fn code_of(e: &FrontError<BusError>) -> i32 {
    match e {
        FrontError::Keys(e) => e.code(),
        FrontError::Platform(e) => -e.code,
        FrontError::Lacks(_) => FAULT,
    }
}

impl Front {
    /// Reclaims RX pages that no skb refers to, of queues that are not handed out. A front that
    /// closes for good reclaims all pages: an skb's reference keeps its page allocated.
    fn reclaim_pages(&mut self) {
        let is_over = matches!(self.task, Task::Close { .. }) && !self.vif.is_live();
        if self.vif.lent() > 0 {
            self.vif.release_done(&self.p, |pieces| is_over || has_done(pieces));
        }
    }

    fn do_task(&mut self) -> Result<(), BusError> {
        match self.task {
            Task::Follow | Task::Close { writes_state: false } => {}
            Task::TakeOver => {
                self.vif.succeed(&mut self.bus)?;
                self.task = Task::Follow;
            }
            Task::Restart => {
                self.vif.restart(&mut self.bus)?;
                self.task = Task::Follow;
            }
            Task::Close { writes_state: true } => {
                self.vif.restart(&mut self.bus)?;
                self.task = Task::Close { writes_state: false };
            }
        }
        Ok(())
    }

    /// Called when the vif is live: ends the pauses between tries, and withdraws the error report.
    fn went_on(&mut self) {
        self.retry.pause_ns = PAUSE_NS;
        if core::mem::take(&mut self.retry.is_reported) {
            let _ = self.bus.recant(); // a message, no more
        }
    }

    /// Makes steps until there is nothing to do.
    fn turn(&mut self) -> Result<(), PeerFault> {
        loop {
            let was_announcing = self.vif.is_announcing();
            let moved = self.vif.turn(&self.p)?;
            if was_announcing && !self.vif.is_announcing() {
                self.is_mapping_logged = false;
            }
            // The pages of the pool are asked for after the others.
            let is_settled = !moved && !self.vif.is_asking();
            if is_settled && !core::mem::replace(&mut self.is_mapping_logged, true) {
                let (pages, seen) = (self.vif.mapped_pages(), Seen::of(&self.vif, self.shared, self.asked));
                let (path, why) = (seen.path(), seen.why());
                let said = format_args!("the back keeps {pages} pages mapped: path {path} ({why})");
                log::info(self.p.device, said);
            }
            if !moved && !self.vif.final_check_ctrl(&self.p)? {
                return Ok(());
            }
        }
    }

    /// Called when a step failed for a transient reason (memory, xenstore or keys): the step is
    /// tried again after a pause. Of several failures in a row only the first is reported.
    #[cold]
    #[inline(never)]
    fn failed(&mut self, code: i32, e: &dyn Display) {
        let now_ns = self.p.clock().now_ns();
        if let Task::Close { .. } = self.task {
            self.retry.at_ns = now_ns.saturating_add(PAUSE_NS);
            return;
        }
        if !core::mem::replace(&mut self.retry.is_reported, true) {
            let mut line = log::Line::default();
            let _ = write!(line, "{e}: tries again");
            self.bus.report_failure(code, line.text());
        }
        // A live vif is not touched if the back's state cannot be read. Before state 4 the same
        // step can be made again.
        let (at, live) = (self.vif.state(), self.vif.is_live());
        if !live && matches!(at, XenbusState::Connected | XenbusState::Closing) {
            self.task = Task::Restart;
        }
        self.retry.at_ns = now_ns.saturating_add(self.retry.pause_ns);
        self.retry.pause_ns = self.retry.pause_ns.saturating_mul(2).min(PAUSE_MAX_NS);
    }
}

/// Hands out the live queues, each as two halves, to be used without the front. Returns how many.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_start_queues(front: &mut Front) -> u32 {
    let (device, in_place, persists) = (front.p.device, front.in_place, front.vif.persists());
    let mut kept = core::mem::take(&mut front.kept_in_place).into_iter();
    let halves = front.vif.hand_out_queues().into_iter().map(|queue| {
        let (tx, rx) = queue.into_halves();
        let kept = kept.next().flatten();
        let (tx, rx) = (Tx::new(device, tx, persists), Rx::new(device, rx, in_place, kept, persists));
        (Box::into_raw(Box::new(tx)), Box::into_raw(Box::new(rx)))
    });
    front.handed_out = halves.collect();
    front.handed_out.len() as u32
}

/// The sending half of a queue that is handed out. Null: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_tx(front: &Front, queue: u32) -> *mut Tx {
    front.handed_out.get(queue as usize).map_or(core::ptr::null_mut(), |halves| halves.0)
}

/// The receiving half of a queue that is handed out. Null: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_rx(front: &Front, queue: u32) -> *mut Rx {
    front.handed_out.get(queue as usize).map_or(core::ptr::null_mut(), |halves| halves.1)
}

/// Takes back the halves of all queues.
///
/// # Safety
/// No one uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_stop_queues(front: &mut Front) {
    if front.handed_out.is_empty() {
        return;
    }
    const { assert!(QUEUES_MAX * size_of::<Option<InPlace>>() <= PAGE_SIZE, "the allocator may refuse more") };
    let kept_in_place = &mut front.kept_in_place;
    let queues = core::mem::take(&mut front.handed_out).into_iter().filter_map(|(tx, rx)| {
        // SAFETY: boxes of `pregrant_front_start_queues`, which are the caller's no more.
        let (tx, rx) = unsafe { (Box::from_raw(tx), Box::from_raw(rx)) };
        let (rx, in_place) = rx.into_parts();
        kept_in_place.push(in_place);
        FrontQueue::of_halves(tx.into_half(), rx).ok()
    });
    front.vif.take_back(queues.collect());
}

#[inline(never)]
fn log_connected(device: shim::Device, vif: &FrontVif<Kernel>, seen: &Seen<'_>) {
    let (tx, rx) = vif.queue(0).map_or((None, None), |q| q.staging_lens());
    let (queues, path, why) = (vif.nr_queues(), seen.path(), seen.why());
    let trust = if vif.trust().lends() { "" } else { "; the back is not trusted: all frames are copied" };
    match tx.or(rx).map(|len| len.value()) {
        Some(len) => log::info(
            device,
            format_args!(
                "connected: path {path} ({why}), {queues} queue(s), staging buffers of {len} bytes{trust}"
            ),
        ),
        None => log::info(device, format_args!("connected: path {path} ({why}), {queues} queue(s){trust}")),
    }
    for missing in vif.not_offered() {
        log::info(device, format_args!("{missing}"));
    }
    if let Some(e) = vif.shortage() {
        log::warn(device, format_args!("less than was asked for: {e}"));
    }
}

/// True if frames can travel.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_is_live(front: &Front) -> bool {
    front.vif.is_live()
}

/// The features that the backend accepts: PREGRANT_TAKES_*.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_takes(front: &Front) -> u32 {
    let takes = front.vif.takes();
    let (sg, multicast) = (front.vif.takes_sg(), front.vif.takes_multicast());
    // A data ring has room for long frames, as pages that the back maps have.
    let maps = front.vif.is_announcing() || front.vif.gref_pages(0) > 0 || front.shared.ringed[0];
    let offloads = u32::from(takes.csum) | u32::from(takes.gso) << 1;
    offloads | u32::from(sg) << 2 | u32::from(multicast) << 3 | u32::from(maps) << 4
}

/// The path of a live front's frames and the reason for it, NUL-terminated.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_path(front: &Front, settings: &Settings, to: &mut MaybeUninit<Words>) {
    to.write(Seen::of(&front.vif, front.shared, settings.path()).words());
}

/// The event channel ports of a queue. The second is 0 if one channel serves both directions; both
/// are 0 if there is no such queue.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_ports(front: &Front, queue: u32, ports: &mut MaybeUninit<[u32; 2]>) {
    let channels = front.vif.queue(queue as usize).map(|q| q.channels(&front.p));
    ports.write(channels.map_or([0; 2], |(tx, rx)| [tx.0, rx.map_or(0, |port| port.0)]));
}

/// Number of slots of each queue's TX and RX ring; 0: there is no queue here.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_slots(front: &Front, slots: &mut MaybeUninit<[u32; 2]>) {
    let rings = front.vif.queue(0).map(|q| [q.tx().ring_size(), q.rx().ring_size()]);
    slots.write(rings.unwrap_or_default());
}

/// Time of the next step if no event comes, by pk_now_ns; 0: none is due.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_begins_at(front: &Front) -> u64 {
    match front.retry.at_ns {
        // No event reports that the stack has released a page. While the vif is live no one waits
        // for that.
        0 if front.vif.lent() > 0 => {
            let pause = if front.vif.is_live() { PAUSE_MAX_NS } else { PAUSE_NS };
            front.p.clock().now_ns().saturating_add(pause)
        }
        0 => front.vif.begins_at_ns().unwrap_or(0),
        at => at,
    }
}

/// Begins to close for good. Call pregrant_front_step until pregrant_front_is_closed.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_close(front: &mut Front) {
    front.retry.at_ns = 0;
    let Front { bus, vif, task, .. } = front;
    let is_unwritten = matches!(task, Task::Restart | Task::Close { writes_state: true });
    let was_closed = vif.state() == XenbusState::Closed;
    let written = vif.close(bus, None);
    // If the state cannot be written now, the next step writes it.
    *task = Task::Close { writes_state: is_unwritten || !was_closed && written.is_err() };
}

/// Like pregrant_front_close, but the xenstore directories belong to another front: the guest was
/// restored, and its grants and channels are gone, or the toolstack has made the vif again. Call
/// pregrant_front_stop_queues before, and this again until pregrant_front_is_closed.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_abandon(front: &mut Front) {
    front.task = Task::Close { writes_state: false };
    front.vif.restored(&front.p);
    front.reclaim_pages();
    front.vif.restored(&front.p);
}

/// True if the front is closed and the backend has unmapped all of its pages.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_is_closed(front: &Front) -> bool {
    front.vif.is_closed()
}

/// Number of pages that are granted to the backend and not in use.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_kept_pages(front: &Front) -> u64 {
    front.vif.kept_pages() as u64
}

/// Frees pages that are granted and not in use, if the backend has not mapped them.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_release_idle(front: &mut Front) {
    front.vif.release_idle(&front.p);
}

/// Adds up to 64 RX pages to each queue that had none for some frames. Returns how many; below 0:
/// there is no memory now. Call pregrant_front_stop_queues before.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_grow(front: &mut Front) -> i32 {
    let Front { p, vif, short, .. } = front;
    let mut grown = 0;
    short.resize(vif.nr_queues(), 0);
    for (i, seen) in short.iter_mut().enumerate() {
        let now = vif.queue(i).map_or(0, |queue| queue.rx().pages().short());
        if core::mem::replace(seen, now) != now {
            match vif.grow_rx(p, i, GROWS_BY) {
                Ok(n) => grown += n,
                Err(e) => return -e.code,
            }
        }
    }
    grown as i32
}

/// Removes RX pages that neither a slot nor an skb needs. Returns how many. Call
/// pregrant_front_stop_queues before.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_shrink(front: &mut Front) -> u32 {
    front.reclaim_pages();
    front.vif.shrink_rx(&front.p, usize::MAX) as u32
}

/// Counters of RX pages for frames that stay in their pages: present, added and removed ones, and
/// those that the backend mapped and unmapped on request.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_pool(front: &Front, to: &mut MaybeUninit<[u64; 5]>) {
    let (pages, stats) = (front.vif.rx_pool().0, front.vif.rx_pool_stats());
    to.write([pages as u64, stats.grown, stats.shrunk, stats.adds, stats.dels]);
}

/// Frees a front. Pages that are still granted stay allocated.
///
/// # Safety
/// It is `pregrant_front_new`'s, and no one uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_free(front: *mut Front) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(front) });
}

/// Continues the requests on the control ring. Below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_turn(front: &mut Front) -> i32 {
    or_fault(front.p.device, front.turn().map(|()| 0))
}

/// Converts a result to the number that C gets, and logs a fault.
#[inline(always)]
pub fn or_fault(device: shim::Device, done: Result<i32, PeerFault>) -> i32 {
    done.unwrap_or_else(
        #[cold]
        #[inline(never)]
        |fault| {
            log::fault(device, &fault);
            FAULT
        },
    )
}
