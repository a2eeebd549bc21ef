//! A vif's front, as C calls it.
//!
//! ```text
//!   front   new, step, turn, close, free   control: one thread at a time, which may sleep
//!             |  lend, take_back: no frame travels meanwhile
//!             |-- Tx, of each queue: send, publish, reclaim, arm    data.rs, under the sender's lock
//!             '-- Rx: receive, arm                                  data.rs, by the queue's poller
//! ```
//! C keeps these rules. A negative answer is an error code; [`FAULT`] says that the back broke the
//! protocol, and that the vif is to be closed.

use crate::bus::{BusError, KernelBus};
use crate::data::{Rx, Tx};
use crate::in_place::has_done;
use crate::log;
use crate::platform::Kernel;
use crate::shim::{self, More};
use crate::used_path::{self, Seen};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::{Display, Write};
use core::mem::MaybeUninit;
use pregrant::net::front::{FrontConfig, FrontQueue, FrontStep, FrontVif, Granting};
use pregrant::net::path::staging::keys::MAX_PAGES_OFFERED;
use pregrant::net::path::staging::list::{DataLen, LONG_LIST_MAX};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::{Clock, Platform};
use pregrant::units::PAGE_SIZE;
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::bus::DeviceBus;
use pregrant::xenbus::front::FrontError;
use pregrant::{DomId, PeerFault};

/// The back broke the protocol, or the device failed: EIO.
pub const FAULT: i32 = -5;

/// A vif's front.
pub struct Front {
    p: Kernel,
    bus: KernelBus,
    vif: FrontVif<Kernel>,
    /// What its owner asks for: the path's name, or `auto`.
    asked: &'static [u8],
    /// Since it is live.
    shared: used_path::Shared,
    /// The halves of its queues, which C uses.
    handed_out: Vec<(*mut Tx, *mut Rx)>,
    /// See [`Rx`].
    in_place: usize,
    /// By queue: frames that there were no pages for, when some were added last.
    short: Vec<u64>,
    /// Where a step failed: when the next is tried; 0: none did.
    tries_at_ns: u64,
    pause_ns: u64,
    /// It was said why a step failed.
    reported: bool,
    /// It was not seen yet where a predecessor left the device.
    succeeds: bool,
    /// It begins again from its end: a part of the failed step may be done.
    restarts: bool,
    closes: bool,
    /// It is to be said how many pages the back keeps mapped.
    says_mapped: bool,
}

/// After a step that failed. It doubles until the vif is live.
const PAUSE_NS: u64 = 250_000_000;
const PAUSE_MAX_NS: u64 = 4_000_000_000;

/// The settings from a module's parameters: `struct pregrant_settings`. Its path is as long as it
/// says.
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

/// `buffers`: as many as twice the `cache` holds, as C has it.
pub const AUTO: u32 = u32::MAX;
/// RX pages of a queue that come as skbs have others: as many as two rings of one page have slots.
const MORE_RX_PAGES: u32 = 512;
/// Of them at once: what a step's reserve has room for.
const GROWS_BY: usize = 64;
/// Of a page with a frame in it half is used, as a rule.
const USED: u32 = PAGE_SIZE as u32 / 2;

impl Settings {
    /// Its name, or `auto`.
    pub fn path(&self) -> &[u8] {
        // SAFETY: so many bytes of C's, or of the self-test's, which live as long as these.
        unsafe { core::slice::from_raw_parts(self.path, self.path_len) }
    }

    /// Buffers of a direction and queue whose frames use so many bytes. `auto` is at most `most`:
    /// within what our back offers a vif, whatever this one says. So are pages in any case.
    fn pool(&self, bytes: u32, most: u32) -> u32 {
        match self.buffers {
            AUTO => self.cache.saturating_mul(2).checked_div(bytes).unwrap_or(0).min(most),
            n => n,
        }
    }

    /// Lists of buffers, or directions with pages of their own.
    fn lists(&self) -> u32 {
        self.queues.saturating_mul(2).max(1)
    }
}

/// Staging buffers of such a length: `data_len` of the module's parameters.
fn buffers(len: u32) -> Result<Buffers, &'static str> {
    let len = DataLen::new(len).filter(|_| len.is_power_of_two() || len == 65_535);
    let len = len.ok_or("data_len is no power of two from 16 to 4096, nor 65535")?;
    Ok(Buffers::of(Some(len), Some(len)))
}

/// The configuration of these settings, or why there is none.
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
        b"gref-mapping" => FrontConfig { gref_mapping: true, ..plain },
        b"persistent" => FrontConfig { persistent: true, ..plain },
        // Each back takes what it knows.
        b"auto" => FrontConfig { gref_mapping: true, ..staged },
        _ => return Err("path is none of auto, staging, gref-mapping, persistent and copy"),
    })
}

/// Whether there can be a front by these settings. Where not the kernel's log has the reason.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_check(settings: &Settings) -> bool {
    let config = config(settings);
    if let Err(why) = &config {
        log::warn(core::ptr::null_mut(), format_args!("{why}"));
    }
    config.is_ok()
}

/// What these settings ask for.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_more(settings: &Settings) -> More {
    config(settings).map_or(More::default(), |config| more_of(&config))
}

/// The same of a configuration.
pub fn more_of(config: &FrontConfig) -> More {
    let most = LONG_LIST_MAX as u32;
    // Each of a pool has its own account.
    let pool = if config.more_rx_pages > 0 { config.more_rx_pages + (256 << config.ring_order) } else { 0 };
    More { buffers: config.staging.buffers.min(most), pages: config.pages.min(most).max(pool) }
}

/// A front for `device`, a `struct pregrant_device`, whose back is in domain `back`. Null: the
/// settings do not [pass](pregrant_front_check).
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
    let front = Box::new(Front {
        p: Kernel { device },
        bus: KernelBus(device),
        vif: FrontVif::new(DomId(back), config, true),
        asked: used_path::asked(settings.path()),
        shared: used_path::Shared::default(),
        handed_out: Vec::new(),
        in_place: settings.rx_in_place as usize,
        short: Vec::new(),
        tries_at_ns: 0,
        pause_ns: PAUSE_NS,
        reported: false,
        succeeds: true,
        restarts: false,
        closes: false,
        says_mapped: false,
    });
    Box::into_raw(front)
}

/// Reads the back's state and takes what steps it allows; one that fails is tried again later.
/// True: its queues are to be taken back, and then it is to be asked again.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_step(front: &mut Front) -> bool {
    if front.p.clock().now_ns() < front.tries_at_ns {
        return false;
    }
    front.tries_at_ns = 0;
    front.take_pages_back();
    if let Err(e) = front.begin_step() {
        front.failed(e.code(), &e);
        return false;
    }
    let Front { p, bus, vif, asked, shared, short, .. } = front;
    // SAFETY: it reads a parameter, which may change while the module is loaded.
    vif.set_trusted(unsafe { shim::pk_trusted() });
    match vif.step(p, bus) {
        Ok(to @ (FrontStep::Live | FrontStep::Renewed)) => {
            *shared = used_path::Shared::by(vif);
            if to == FrontStep::Live {
                short.clear(); // new queues count from 0
            }
            say_connected(p.device, vif, &Seen::of(vif, *shared, asked));
            front.went_on();
        }
        // A step that failed once it was live is over, too.
        Ok(FrontStep::Waiting) if vif.is_live() => front.went_on(),
        Ok(FrontStep::Recall) => return true,
        Ok(FrontStep::Waiting | FrontStep::Closed) => {}
        Err(e) => front.failed(code_of(&e), &e),
    }
    false
}

/// The kernel's number for it.
fn code_of(e: &FrontError<BusError>) -> i32 {
    match e {
        FrontError::Keys(e) => e.code(),
        FrontError::Platform(e) => -e.code,
        FrontError::Lacks(_) => FAULT,
    }
}

impl Front {
    /// Pages with which the stack has done, of queues that are not handed out. One that closes for
    /// good needs none again: an skb's reference keeps a page that it has.
    fn take_pages_back(&mut self) {
        let is_over = self.closes && !self.vif.is_live();
        if self.vif.lent() > 0 {
            self.vif.release_done(&self.p, |pieces| is_over || has_done(pieces));
        }
    }

    /// States that are to be written first.
    fn begin_step(&mut self) -> Result<(), BusError> {
        if self.succeeds {
            self.vif.succeed(&mut self.bus)?;
            self.succeeds = false;
        }
        if self.restarts {
            self.vif.restart(&mut self.bus)?;
            self.restarts = false;
        }
        Ok(())
    }

    /// It is live, and no step is to be tried again.
    fn went_on(&mut self) {
        self.pause_ns = PAUSE_NS;
        if core::mem::take(&mut self.reported) {
            let _ = self.bus.recant(); // a message, no more
        }
    }

    /// Until there is nothing to do.
    fn turn(&mut self) -> Result<(), PeerFault> {
        loop {
            let was_announcing = self.vif.is_announcing();
            let moved = self.vif.turn(&self.p)?;
            self.says_mapped |= was_announcing && !self.vif.is_announcing();
            // Those of the pool are asked for behind the others.
            if !moved && !self.vif.is_asking() && core::mem::take(&mut self.says_mapped) {
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

    /// Memory, xenstore or keys: not for good, unlike a fault. It is reported once.
    #[cold]
    #[inline(never)]
    fn failed(&mut self, code: i32, e: &dyn Display) {
        if self.closes {
            self.tries_at_ns = self.p.clock().now_ns().saturating_add(PAUSE_NS);
            return;
        }
        if !core::mem::replace(&mut self.reported, true) {
            let mut line = log::Line::default();
            let _ = write!(line, "{e}: tries again");
            self.bus.report_failure(code, line.text());
        }
        // A vif that is live is left alone: the back's state could not be read. Before 4 the same
        // step can be taken again.
        let (at, live) = (self.vif.state(), self.vif.is_live());
        self.restarts |= !live && matches!(at, XenbusState::Connected | XenbusState::Closing);
        self.tries_at_ns = self.p.clock().now_ns().saturating_add(self.pause_ns);
        self.pause_ns = self.pause_ns.saturating_mul(2).min(PAUSE_MAX_NS);
    }
}

/// Gives the live queues away, each as two halves, to be used without the front. How many.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_lend(front: &mut Front) -> u32 {
    let (device, in_place, persists) = (front.p.device, front.in_place, front.vif.persists());
    let halves = front.vif.hand_out_queues().into_iter().map(|queue| {
        let (tx, rx) = queue.into_halves();
        let (tx, rx) = (Tx::new(device, tx, persists), Rx::new(device, rx, in_place, persists));
        (Box::into_raw(Box::new(tx)), Box::into_raw(Box::new(rx)))
    });
    front.handed_out = halves.collect();
    front.handed_out.len() as u32
}

/// The half of a queue that is handed out. Null: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_tx(front: &Front, queue: u32) -> *mut Tx {
    front.handed_out.get(queue as usize).map_or(core::ptr::null_mut(), |halves| halves.0)
}

/// The other.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_rx(front: &Front, queue: u32) -> *mut Rx {
    front.handed_out.get(queue as usize).map_or(core::ptr::null_mut(), |halves| halves.1)
}

/// Takes the halves back.
///
/// # Safety
/// No one uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_take_back(front: &mut Front) {
    if front.handed_out.is_empty() {
        return;
    }
    let queues = core::mem::take(&mut front.handed_out).into_iter().filter_map(|(tx, rx)| {
        // SAFETY: boxes of `pregrant_front_lend`, which are the caller's no more.
        let (tx, rx) = unsafe { (Box::from_raw(tx), Box::from_raw(rx)) };
        FrontQueue::of_halves(tx.into_half(), rx.into_half()).ok()
    });
    front.vif.take_back(queues.collect());
}

#[inline(never)]
fn say_connected(device: shim::Device, vif: &FrontVif<Kernel>, seen: &Seen<'_>) {
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

/// Whether frames can travel.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_is_live(front: &Front) -> bool {
    front.vif.is_live()
}

/// Bit 0: the back takes blank checksums of IPv6, too; bit 1: large segments; bit 2: frames of
/// several slots; bit 3: requests for multicast addresses; bit 4: it keeps our
/// pages mapped, or is asked to.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_takes(front: &Front) -> u32 {
    let takes = front.vif.takes();
    let (sg, multicast) = (front.vif.takes_sg(), front.vif.takes_multicast());
    let maps = front.vif.is_announcing() || front.vif.gref_pages(0) > 0;
    let offloads = u32::from(takes.csum) | u32::from(takes.gso) << 1;
    offloads | u32::from(sg) << 2 | u32::from(multicast) << 3 | u32::from(maps) << 4
}

/// Which path frames of a live front take, and why, with a 0 behind it.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_path(
    front: &Front,
    settings: &Settings,
    to: &mut MaybeUninit<[u8; used_path::ROOM]>,
) {
    to.write(Seen::of(&front.vif, front.shared, settings.path()).words());
}

/// The ports of a queue's channels; the second is 0 where there is one for both directions, both
/// are where there is no such queue.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_ports(front: &Front, queue: u32, ports: &mut MaybeUninit<[u32; 2]>) {
    let channels = front.vif.queue(queue as usize).map(|q| q.channels(&front.p));
    ports.write(channels.map_or([0; 2], |(tx, rx)| [tx.0, rx.map_or(0, |port| port.0)]));
}

/// Slots of the rings of its first queue, TX and RX, which are those of all; 0: it is not live.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_slots(front: &Front, slots: &mut MaybeUninit<[u32; 2]>) {
    let rings = front.vif.queue(0).map(|q| [q.tx().ring_size(), q.rx().ring_size()]);
    slots.write(rings.unwrap_or_default());
}

/// When it is to be stepped again whatever happens, by `pk_now_ns`; 0: not.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_begins_at(front: &Front) -> u64 {
    match front.tries_at_ns {
        // No event says when the stack has done with a page. Where others travel no one waits.
        0 if front.vif.lent() > 0 => {
            let pause = if front.vif.is_live() { PAUSE_MAX_NS } else { PAUSE_NS };
            front.p.clock().now_ns().saturating_add(pause)
        }
        0 => front.vif.begins_at_ns().unwrap_or(0),
        at => at,
    }
}

/// Begins to close for good. Go on with steps until it [is](pregrant_front_is_closed).
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_close(front: &mut Front) {
    front.closes = true;
    front.tries_at_ns = 0;
    front.succeeds = false;
    let Front { bus, vif, .. } = front;
    // Where the state cannot be written now the next step writes it.
    let was_closed = vif.state() == XenbusState::Closed;
    let written = vif.close(bus, None);
    front.restarts |= !was_closed && written.is_err();
}

/// The directories are another front's: the guest was restored, and no grant and no channel of
/// before is there, or the toolstack has made the vif again. Its queues are
/// [back](pregrant_front_take_back); it is to be called again until it
/// [is closed](pregrant_front_is_closed), and to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_abandon(front: &mut Front) {
    front.closes = true;
    front.vif.restored(&front.p);
    front.take_pages_back();
    front.vif.restored(&front.p);
}

/// Whether all of its memory is the kernel's again.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_is_closed(front: &Front) -> bool {
    front.vif.is_closed()
}

/// Pages that are granted to the back and not in use.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_kept_pages(front: &Front) -> u64 {
    front.vif.kept_pages() as u64
}

/// Memory is short: gives up those of them that the back does not have.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_release_idle(front: &mut Front) {
    front.vif.release_idle(&front.p);
}

/// Adds RX pages to those queues whose skbs have too many, 64 to each. How many; below 0: there is
/// no memory now. Its queues are [back](pregrant_front_take_back).
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

/// Takes RX pages away that no slot needs, and no skb has. How many. As above.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_shrink(front: &mut Front) -> u32 {
    front.take_pages_back();
    front.vif.shrink_rx(&front.p, usize::MAX) as u32
}

/// Of RX pages that come and go: how many there are, have come, have gone; and pages that the back
/// was asked to map, and did, or to let go of.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_pool(front: &Front, to: &mut MaybeUninit<[u64; 5]>) {
    let (pages, stats) = (front.vif.rx_pool().0, front.vif.rx_pool_stats());
    to.write([pages as u64, stats.grown, stats.shrunk, stats.adds, stats.dels]);
}

/// # Safety
/// It is `pregrant_front_new`'s, and no one uses it any more. Pages that are still granted are
/// leaked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_free(front: *mut Front) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(front) });
}

/// Goes on with what the back is asked on the control ring. Below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_turn(front: &mut Front) -> i32 {
    or_fault(front.p.device, front.turn().map(|()| 0))
}

/// The number for C; of a fault, which is said.
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
