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
use alloc::vec;
use core::ffi::c_void;
use pregrant::DomId;
use pregrant::net::front::{FrontConfig, FrontStep, FrontVif, Granting};
use pregrant::net::headers::MacAddr;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::stats::DirStats;
use pregrant::port::{Arena, Burst, FrameDesc, MAX_FRAME, Offload};

/// The back broke the protocol, or the device failed: EIO.
const FAULT: i32 = -5;
/// The vif is not live: ENOTCONN.
const NOT_LIVE: i32 = -107;

/// A vif's front.
pub struct Front {
    p: Kernel,
    bus: KernelBus,
    vif: FrontVif<Kernel>,
    /// A frame on its way from an skb to the back.
    sent: Box<[u8]>,
    /// Frames on their way to skbs.
    received: Box<Arena>,
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
        tx_data_len: None,
        rx_data_len: None,
        granting: Granting::Standing,
        queues: settings.queues,
        ring_order: settings.ring_order,
        multicast_control: settings.multicast,
        ..FrontConfig::default()
    };
    let len = DataLen::new(settings.data_len);
    let staged = FrontConfig { tx_data_len: len, rx_data_len: len, ..plain };
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
        sent: vec![0; MAX_FRAME].into_boxed_slice(),
        received: Box::new(Arena::new()),
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

/// Sends an skb's bytes: 1: taken; 0: no room now; below 0: it cannot be.
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
    let Front { p, vif, sent, .. } = front;
    let Some(queue) = vif.queue_mut(queue as usize) else { return NOT_LIVE };
    let Some(to) = sent.get_mut(..len) else { return -90 };
    // SAFETY: as many bytes as the skb has, to memory of ours.
    unsafe { shim::pk_skb_read(skb, 0, to.as_mut_ptr(), len) };
    let offload = Offload {
        csum_blank: csum & 1 != 0,
        csum_ok: csum & 2 != 0,
        gso_type: gso_type as u8,
        gso_size: gso_size as u16,
    };
    let frames = [FrameDesc { at: 0, len: len as u32, offload }];
    match queue.send(p, &Burst { bytes: sent, frames: &frames }) {
        Ok(n) => n as i32,
        Err(e) => e.code,
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

/// Gives each frame that is there an skb in `to`, at most `most`. How many; below 0: a fault.
///
/// # Safety
/// `to` is what `pk_skb_new` takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_front_receive(
    front: &mut Front,
    queue: u32,
    to: *mut c_void,
    most: u32,
) -> i32 {
    let Front { p, vif, received, .. } = front;
    let Some(queue) = vif.queue_mut(queue as usize) else { return 0 };
    received.clear();
    let _ = most; // an arena's, which is no more than a poll's
    if let Err(fault) = queue.recv(p, &mut **received, 1) {
        return fault_of(&fault);
    }
    let burst = received.burst();
    for (frame, offload) in burst.iter() {
        let csum = u32::from(offload.csum_blank) | u32::from(offload.csum_ok) << 1;
        let (kind, size) = (u32::from(offload.gso_type), u32::from(offload.gso_size));
        // SAFETY: the caller's; null, or as many bytes as the frame has.
        unsafe {
            let at = shim::pk_skb_new(to, frame.len(), csum, kind, size);
            if !at.is_null() {
                core::ptr::copy_nonoverlapping(frame.as_ptr(), at, frame.len());
            }
        }
    }
    burst.frames.len() as i32
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
        [s.frames, s.bytes, s.staged, s.granted, s.persistent, s.errors, s.dropped, s.notifications]
    };
    to.0 = [of(tx), of(rx)];
}
