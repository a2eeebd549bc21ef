//! A vif's front, as C calls it.
//!
//! ```text
//!   control   new, step, turn, close, removed, free     one thread at a time, may sleep, no frame travels meanwhile
//!   data      send, reclaim, receive, arm, room         under the vif's lock
//! ```
//! C keeps both rules. A negative answer is an error code; [`FAULT`] says that the back broke the
//! protocol, and that the vif is to be closed.

use crate::bus::KernelBus;
use crate::log;
use crate::platform::Kernel;
use crate::shim;
use alloc::boxed::Box;
use core::ffi::c_void;
use pregrant::DomId;
use pregrant::net::front::{FrontConfig, FrontStep, FrontVif, Granting};
use pregrant::net::headers::MacAddr;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::stats::DirStats;
use pregrant::port::{Offload, Piece, PieceMut, Sink, Source};

/// The back broke the protocol, or the device failed: EIO.
const FAULT: i32 = -5;
/// The vif is not live: ENOTCONN.
const NOT_LIVE: i32 = -107;

/// A vif's front.
pub struct Front {
    p: Kernel,
    bus: KernelBus,
    vif: FrontVif<Kernel>,
}

/// What a module's parameters say: `struct pregrant_settings`.
#[repr(C)]
pub struct Settings {
    path: *const u8,
    path_len: usize,
    queues: u32,
    ring_order: u32,
    data_len: u32,
    multicast: bool,
}

/// The configuration of a path's name. None: there is no such path.
fn config(path: &[u8], settings: &Settings) -> Option<FrontConfig> {
    let plain = FrontConfig {
        staging: Buffers::NONE,
        granting: Granting::Standing,
        queues: settings.queues,
        ring_order: settings.ring_order,
        multicast_control: settings.multicast,
        ..FrontConfig::default()
    };
    let len = DataLen::new(settings.data_len);
    let staged = FrontConfig { staging: Buffers::of(len, len), ..plain };
    Some(match path {
        b"copy" => plain,
        b"staging" => staged,
        b"gref-mapping" => FrontConfig { gref_mapping: true, ..plain },
        b"persistent" => FrontConfig { persistent: true, ..plain },
        // Each back takes what it knows.
        b"auto" => FrontConfig { gref_mapping: true, ..staged },
        _ => return None,
    })
}

/// A front for `device`, a `struct pregrant_device`, whose back is in domain `back`. Null: the
/// settings name no path.
///
/// # Safety
/// The settings' path is as long as they say; `device` outlives the front.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_new(
    device: shim::Device,
    back: u16,
    settings: &Settings,
) -> *mut Front {
    // SAFETY: the caller's.
    let path = unsafe { core::slice::from_raw_parts(settings.path, settings.path_len) };
    let Some(config) = config(path, settings) else { return core::ptr::null_mut() };
    let mut front = Box::new(Front {
        p: Kernel { device },
        bus: KernelBus(device),
        vif: FrontVif::new(DomId(back), config, true),
    });
    let Front { bus, vif, .. } = &mut *front;
    if let Err(e) = vif.succeed(bus) {
        log::warn(format_args!("{e}"));
    }
    Box::into_raw(front)
}

/// Looks at the back's state and takes what steps it allows. 0: nothing new; 1: live, or live again
/// with another back; 2: not live any more; below 0: failed, and closing.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_step(front: &mut Front) -> i32 {
    let Front { p, bus, vif, .. } = front;
    let was_live = vif.is_live();
    match vif.step(p, bus) {
        Ok(FrontStep::Live | FrontStep::Renewed) => {
            say_connected(vif);
            1
        }
        Ok(_) => {
            if was_live && !vif.is_live() {
                2
            } else {
                0
            }
        }
        Err(e) => {
            log::warn(format_args!("{e}"));
            let _ = vif.close(bus, None);
            FAULT
        }
    }
}

#[inline(never)]
fn say_connected(vif: &FrontVif<Kernel>) {
    let (tx, rx) = vif.queue(0).map_or((None, None), |q| q.staging_lens());
    let staging = tx.or(rx).map_or(0, |len| len.value());
    log::info(format_args!(
        "connected: {} queue(s), staging buffers of {staging} bytes, persistent {}",
        vif.nr_queues(),
        vif.persists(),
    ));
    for missing in vif.not_offered() {
        log::info(format_args!("{missing}"));
    }
    if let Some(e) = vif.shortage() {
        log::warn(format_args!("less than was asked for: {e}"));
    }
}

/// Whether frames can travel.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_is_live(front: &Front) -> bool {
    front.vif.is_live()
}

/// Bit 0: the back takes blank checksums of IPv6, too; bit 1: large segments.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_takes(front: &Front) -> u32 {
    let takes = front.vif.takes();
    u32::from(takes.csum) | u32::from(takes.gso) << 1
}

/// Live queues.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_queues(front: &Front) -> u32 {
    front.vif.nr_queues() as u32
}

/// The ports of a queue's channels; the second is 0 where there is one for both directions.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_ports(front: &Front, queue: u32, ports: &mut [u32; 2]) {
    let channels = front.vif.queue(queue as usize).map(|q| q.channels(&front.p));
    *ports = channels.map_or([0; 2], |(tx, rx)| [tx.0, rx.map_or(0, |port| port.0)]);
}

/// When it is to be stepped again whatever happens, by `pk_now_ns`; 0: not.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_begins_at(front: &Front) -> u64 {
    front.vif.begins_at_ns().unwrap_or(0)
}

/// Begins to close for good. Go on with steps until it [is](pregrant_front_is_closed).
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_close(front: &mut Front) {
    let Front { bus, vif, .. } = front;
    let _ = vif.close(bus, None);
}

/// The directories are gone.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_removed(front: &mut Front) {
    front.vif.removed(&front.p);
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

/// # Safety
/// It is `pregrant_front_new`'s, and used by nobody any more. What is still granted is leaked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_free(front: *mut Front) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(front) });
}

/// Goes on with what the back is asked on the control ring. 1: it is being asked; below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_turn(front: &mut Front) -> i32 {
    loop {
        let was_announcing = front.vif.is_announcing();
        match front.vif.turn(&front.p) {
            Ok(true) => {
                if was_announcing && !front.vif.is_announcing() {
                    log::info(format_args!("the back keeps {} pages mapped", front.vif.gref_pages(0)));
                }
            }
            Ok(false) => match front.vif.final_check_ctrl(&front.p) {
                Ok(true) => {}
                Ok(false) => return i32::from(front.vif.is_announcing()),
                Err(fault) => return fault_of(&fault),
            },
            Err(fault) => return fault_of(&fault),
        }
    }
}

#[cold]
#[inline(never)]
fn fault_of(fault: &dyn core::fmt::Display) -> i32 {
    log::warn(format_args!("the back broke the protocol: {fault}"));
    FAULT
}

/// An skb that is to be sent.
#[derive(Clone, Copy)]
struct Frame {
    skb: shim::Skb,
    len: usize,
    offload: Offload,
}

impl Source for Frame {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }
    #[inline(always)]
    fn offload(&self) -> &Offload {
        &self.offload
    }
    #[inline(always)]
    fn copy_to(&self, at: usize, to: PieceMut<'_>) {
        let (to, len) = to.as_raw();
        // SAFETY: bytes that the skb has, to memory of that length.
        unsafe { shim::pk_skb_read(self.skb, at, to, len) }
    }
}

/// Writes an skb's bytes to the ring; the back is [shown](pregrant_front_publish) them later. 1:
/// taken; 0: no room now; below 0: it cannot be.
///
/// # Safety
/// The skb has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_send(
    front: &mut Front,
    queue: u32,
    skb: shim::Skb,
    len: usize,
    csum: u32,
    gso_type: u32,
    gso_size: u32,
) -> i32 {
    let Front { p, vif, .. } = front;
    let Some(queue) = vif.queue_mut(queue as usize) else { return NOT_LIVE };
    let offload = Offload {
        csum_blank: csum & 1 != 0,
        csum_ok: csum & 2 != 0,
        gso_type: gso_type as u8,
        gso_size: gso_size as u16,
    };
    match queue.queue(p, &Frame { skb, len, offload }) {
        Ok(n) => n as i32,
        Err(e) => e.code,
    }
}

/// Shows the back what was sent.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_publish(front: &mut Front, queue: u32) {
    let Front { p, vif, .. } = front;
    if let Some(queue) = vif.queue_mut(queue as usize) {
        queue.publish(p);
    }
}

/// Slots that frames can take now.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_room(front: &Front, queue: u32) -> u32 {
    front.vif.queue(queue as usize).map_or(0, |q| q.tx().room())
}

/// Requests without an answer.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_in_flight(front: &Front, queue: u32) -> u32 {
    front.vif.queue(queue as usize).map_or(0, |q| q.tx().in_flight())
}

/// Takes answers of TX. How many; below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_reclaim(front: &mut Front, queue: u32) -> i32 {
    let Front { p, vif, .. } = front;
    let Some(queue) = vif.queue_mut(queue as usize) else { return 0 };
    match queue.reclaim(p, 1) {
        Ok(n) => n as i32,
        Err(fault) => fault_of(&fault),
    }
}

/// A `struct pregrant_received`, which skbs are added to.
struct Skbs {
    to: *mut c_void,
    most: usize,
}

impl Sink for Skbs {
    #[inline(always)]
    fn takes(&self) -> usize {
        self.most
    }
    /// Where there is no memory the frame is dropped: C counts it. To leave it on its ring would be
    /// to ask again without end.
    #[inline(always)]
    fn take<'a>(&mut self, len: usize, offload: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        self.most -= 1;
        let csum = u32::from(offload.csum_blank) | u32::from(offload.csum_ok) << 1;
        let (kind, size) = (u32::from(offload.gso_type), u32::from(offload.gso_size));
        let mut linear = core::ptr::null_mut();
        // SAFETY: `to` is what C's caller gave.
        let skb = unsafe { shim::pk_skb_new(self.to, len, csum, kind, size, &mut linear) };
        if skb.is_null() {
            return true;
        }
        if linear.is_null() {
            for (from, len) in pieces.map(|piece| piece.as_raw()) {
                // SAFETY: a piece of memory that is mapped; C copies it, once.
                unsafe { shim::pk_skb_append(skb, from, len) };
            }
            return true;
        }
        // SAFETY: private memory of `len` bytes.
        let mut to = unsafe { core::slice::from_raw_parts_mut(linear, len) };
        for piece in pieces {
            let copied = piece.copy_out(to);
            to = to.get_mut(copied..).unwrap_or_default();
        }
        true
    }
}

/// Gives each frame that is there an skb in `to`, at most `most`. How many; below 0: a fault.
///
/// # Safety
/// `to` is a `struct pregrant_received`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_receive(
    front: &mut Front,
    queue: u32,
    to: *mut c_void,
    most: u32,
) -> i32 {
    let Front { p, vif, .. } = front;
    let Some(queue) = vif.queue_mut(queue as usize) else { return 0 };
    match queue.recv(p, &mut Skbs { to, most: most as usize }, 1) {
        Ok(n) => n as i32,
        Err(fault) => fault_of(&fault),
    }
}

/// Asks for an event at the `ahead`-th answer of TX from here. 1: it is there; below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_arm_tx(front: &mut Front, queue: u32, ahead: u32) -> i32 {
    let Some(queue) = front.vif.queue_mut(queue as usize) else { return 0 };
    match queue.tx_mut().final_check(ahead) {
        Ok(work) => i32::from(work),
        Err(fault) => fault_of(&fault),
    }
}

/// Before a queue waits for an event: arms RX, and allows the next. 1: there is work; below 0: a
/// fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_arm(front: &mut Front, queue: u32) -> i32 {
    let Front { p, vif, .. } = front;
    let Some(queue) = vif.queue_mut(queue as usize) else { return 0 };
    match queue.final_check(p, false) {
        Ok(work) => i32::from(work),
        Err(fault) => fault_of(&fault),
    }
}

/// Asks for multicast frames to an address, or no longer. False: not now.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_multicast(front: &mut Front, mac: &[u8; 6], wanted: bool) -> bool {
    front.vif.multicast(&front.p, MacAddr(*mac), wanted)
}

/// A queue's counters, TX and RX: `struct pregrant_counters`.
#[repr(C)]
pub struct Counters([[u64; 8]; 2]);

/// Reads them.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_front_counters(front: &Front, queue: u32, to: &mut Counters) {
    let (tx, rx) = front.vif.queue(queue as usize).map(|q| q.stats()).unwrap_or_default();
    let of = |s: DirStats| {
        [s.frames, s.bytes, s.staging, s.granted, s.persistent, s.errors, s.dropped, s.notifications]
    };
    to.0 = [of(tx), of(rx)];
}
