//! A vif's back, as the driver's work item calls it: one thread at a time, which may sleep.
//!
//! ```text
//!   new --> step, again and again --CONNECTED--> say_connected, start_queues --RECALL, FAILED--> stop_queues, step or close
//!                                                                            --remove----------> stop_queues, end, free
//!   the next back is to go on with the rings:  may_leave --> hold --100 ms--> stop_queues, settle, leave, free
//! ```
//! A vif that another back has left connected becomes CONNECTED by its first step.

use super::platform::Machine;
use super::port::Skbs;
use super::queue::{Counters, Queue};
use super::shim;
use crate::bus::{BusError, KernelBus};
use crate::front::FAULT;
use crate::log;
use crate::shim::Device;
use crate::used_path::{ROOM, Words};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{Display, Write};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use pregrant::net::back::{BackQueue, BackStep, BackVif, Polled, PreviousState, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::path::PathConfig;
use pregrant::platform::Clock;
use pregrant::port::{FramePort, Steering};
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::back::{BackDevice, Drained, PageShare};
use pregrant::xenbus::bus::DeviceBus;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::{DomId, PeerFault, PlatformError, memory};

/// Results of `pregrant_back_step`: `enum pregrant_back_step`.
const WAITS: u32 = 0;
const RECALL: u32 = 1;
const CONNECTED: u32 = 2;
const CLOSED: u32 = 3;
const FAILED: u32 = 4;
const LATER: u32 = 5;

/// The back of a vif.
pub struct Back {
    p: Machine,
    bus: KernelBus,
    vif: BackVif<Machine>,
    /// A predecessor's state was read, and its rings were taken up if it left some.
    has_inherited: bool,
    /// Tries to take them up that came too early.
    tries: u32,
    /// Time at which the front may see state 4 again, for which it has seen 2: it then asks again
    /// for what this back has no record of. None: it is at 4.
    renews_ns: Option<u64>,
    /// The number of queues that the interface has.
    most_queues: u32,
    /// The number of the steering that C has.
    steered: u32,
    /// Why a step failed, or the guest's fault, until the vif is closed.
    why: log::Line,
    /// The queues that are handed out, and for each of them what its poll has.
    handed_out: Vec<BackQueue<Machine>>,
    polled: Vec<(*mut Queue, *mut Counters)>,
}

/// Tries to bind the channels of a vif that another back has left, which may still be closing them:
/// a second.
const TRIES: u32 = 20;
/// How long the state is 2 where the front shall ask again: so that its driver sees it.
const RENEWS_NS: u64 = 500_000_000;
/// The interface of a process that serves the vif, which removes the key when it gives the vif back
/// (docs/protocol 1.1).
const INTERFACE_OF_PROCESS: &str = "pregrant-interface";

/// What this driver offers: what the process does by default.
fn config(queues: u32) -> VifConfig {
    let paths = PathConfig::default();
    let mapped_pages = paths.mapped_pages();
    let features = BackFeatures { max_queues: queues, mapped_pages, ..BackFeatures::default() };
    VifConfig { features, paths, ..VifConfig::default() }
}

/// Makes the back of a vif of domain `of`, which offers so many queues. Null: there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_new(device: Device, of: u16, handle: u32, queues: u32) -> *mut Back {
    let back = memory::boxed(Back {
        p: Machine::new(device, true),
        bus: KernelBus(device),
        vif: vif(of, handle, queues),
        has_inherited: false,
        tries: 0,
        renews_ns: None,
        most_queues: queues,
        steered: 0,
        why: log::Line::default(),
        handed_out: Vec::new(),
        polled: Vec::new(),
    });
    back.map_or(core::ptr::null_mut(), Box::into_raw)
}

#[inline(never)]
fn vif(of: u16, handle: u32, queues: u32) -> BackVif<Machine> {
    let mut vif = BackVif::new(DomId(of), handle, config(queues));
    vif.await_hotplug();
    vif
}

/// Reads the front's xenbus state and makes the steps that it allows. Returns a PREGRANT_BACK_*:
/// RECALL: call pregrant_back_stop_queues, then this again; CONNECTED: prepare the interface, and
/// call pregrant_back_say_connected, pregrant_back_start_queues; LATER: call this again in 50 ms;
/// FAILED: call pregrant_back_stop_queues, pregrant_back_close.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_step(back: &mut Back) -> u32 {
    match back.step() {
        Err(e) if e.is_too_early() && !back.has_inherited && back.tries < TRIES => {
            back.tries += 1;
            LATER
        }
        Ok(BackStep::Waiting | BackStep::Closing) if back.renews_ns.is_some() => LATER,
        Ok(BackStep::Waiting | BackStep::Closing) => WAITS,
        Ok(BackStep::Recall) => RECALL,
        Ok(BackStep::Connected) => CONNECTED,
        Ok(BackStep::Closed | BackStep::Removed) => CLOSED,
        Err(e) => {
            back.failed(&e);
            FAILED
        }
    }
}

/// Limits the pages that the vif may have mapped, at its next connection, and those of them that
/// it may keep until it closes.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_limit_pages(back: &mut Back, pages: u32, lasting: u32) {
    back.vif.limit_pages(pages as usize);
    back.vif.limit_lasting(lasting as usize);
}

/// Limits the pages that a connected vif may have, with those that it needs.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_share_pages(back: &mut Back, pages: u32) {
    let Back { p, vif, .. } = back;
    let (needed, pages) = (vif.pages().needed, pages as usize);
    vif.allow_pages(p, PageShare { pages: pages.saturating_sub(needed), lasting: pages.max(needed) });
}

/// Number of pages that the vif has mapped or may ask for, until it closes.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_pages(back: &Back) -> u32 {
    let pages = back.vif.pages();
    u32::try_from(pages.needed + pages.allowed).unwrap_or(u32::MAX)
}

/// Number of pages that the vif has mapped; 0: it is not connected.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_needed_pages(back: &Back) -> u32 {
    u32::try_from(back.vif.pages().needed).unwrap_or(u32::MAX)
}

/// Writes state 4. Below 0: as FAILED of pregrant_back_step.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_say_connected(back: &mut Back) -> i32 {
    match back.vif.say_connected(&mut back.bus) {
        Ok(()) => 0,
        Err(e) => {
            back.failed(&e);
            e.code()
        }
    }
}

/// Hands out the queues, each to its poll. Returns how many. Below 0: there is no memory; then call
/// pregrant_back_close.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_start_queues(back: &mut Back) -> i32 {
    match back.start_queues() {
        Ok(()) => back.polled.len() as i32,
        Err(e) => {
            // SAFETY: no one has one yet.
            unsafe { pregrant_back_stop_queues(back) };
            back.failed(&e);
            -e.code
        }
    }
}

/// A queue that is handed out. Null: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_queue(back: &Back, queue: u32) -> *mut Queue {
    back.polled.get(queue as usize).map_or(core::ptr::null_mut(), |(queue, _)| *queue)
}

/// The counters of a queue that is handed out. Null: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_queue_counters(back: &Back, queue: u32) -> *mut Counters {
    back.polled.get(queue as usize).map_or(core::ptr::null_mut(), |(_, counters)| *counters)
}

/// Takes back all queues. 1: the guest broke the protocol on one; then call pregrant_back_close.
///
/// # Safety
/// No one uses them, or their counters, any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_back_stop_queues(back: &mut Back) -> u32 {
    let mut fault = None;
    for (queue, counters) in core::mem::take(&mut back.polled) {
        // SAFETY: boxes of `pregrant_back_start_queues`, which are the caller's no more.
        let (queue, counters) = unsafe { (Box::from_raw(queue), Box::from_raw(counters)) };
        fault = fault.or(queue.fault());
        drop((queue, counters));
    }
    if !back.handed_out.is_empty() {
        back.vif.take_back(core::mem::take(&mut back.handed_out));
    }
    if let Some((ring, fault)) = fault {
        back.broken(ring, &fault);
    }
    fault.is_some().into()
}

/// Closes the vif, because a step failed or its guest broke the protocol.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_close(back: &mut Back) {
    let Back { p, bus, vif, why, .. } = back;
    // Taken: a later close has its own reason.
    let why = core::mem::take(why);
    let why = if why.text().is_empty() { "a queue has no thread" } else { why.text() };
    // Where the state cannot be written the directory is gone, or the next step writes it.
    let _ = vif.close(p, bus, Some(why));
}

/// True if nothing was read of the vif's state yet: it is as another back, or the toolstack, has
/// left it.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_is_untouched(back: &Back) -> bool {
    !back.has_inherited
}

/// True if the next back may go on with the rings: both ends are connected, and the toolstack wants
/// the vif to stay.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_may_leave(back: &mut Back) -> bool {
    let Back { bus, vif, renews_ns, .. } = back;
    // The toolstack writes 5 over the 4.
    let is_live = match bus.own_state() {
        Ok(XenbusState::Connected | XenbusState::Reconfigured) => true,
        Ok(XenbusState::InitWait) => renews_ns.is_some(),
        _ => false,
    };
    let front = matches!(bus.peer_state(), Ok(XenbusState::Connected | XenbusState::Reconfiguring));
    is_live && front && vif.nr_queues() > 0 && matches!(bus.online(), Ok(true))
}

/// Takes no more frames of the guest. False: someone holds them already.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_hold(back: &mut Back) -> bool {
    back.vif.hold(&back.p)
}

/// After pregrant_back_stop_queues: answers what can be answered of the requests that were taken.
/// Returns how many have no answer; below 0, or if this was the last call and there are some: call
/// pregrant_back_close.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_settle(back: &mut Back, is_last: bool) -> i32 {
    if pregrant_back_ring_turn(back) < 0 {
        return FAULT;
    }
    let n = back.vif.settle(&back.p);
    if n > 0 && is_last {
        let text = "of its requests cannot be answered, so no other back can go on with them";
        back.failed(&format_args!("{n} {text}"));
    }
    n as i32
}

/// Leaves the rings to the next back, at state 4: what waits for the guest is delivered as far as
/// there is room.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_leave(back: &mut Back) {
    // Without memory for them, what waits for the guest is lost.
    let mut ports = back.ports().unwrap_or_default();
    // Where the state cannot be written the directory is gone.
    let _ = back.renew(true);
    let Drained { delivered, lost } = back.vif.detach(&back.p, &mut ports[..]);
    let text = "left connected, for the next back: at the end";
    log::info(back.p.device, format_args!("{text} {delivered} frame(s) delivered to it, {lost} lost"));
}

/// Closes the vif for good: what waits for the guest is delivered as far as there is room, then
/// states 5 and 6 are written.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_end(back: &mut Back) {
    // Without memory for them, what waits for the guest is lost.
    let mut ports = back.ports().unwrap_or_default();
    let Back { p, bus, vif, .. } = back;
    if vif.end(p, bus, &mut ports[..]).is_ok() {
        let _ = vif.step(p, bus, &mut |_, _| None);
    }
}

/// Executes some requests of the guest's control ring, if it has one. 1: call this again; 0: an
/// event says when; below 0: the guest broke the protocol, call pregrant_back_close.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_ring_turn(back: &mut Back) -> i32 {
    let Back { p, vif, .. } = back;
    let turn = match vif.poll_ctrl(p) {
        Ok(Polled::More) => Ok(true),
        Ok(_) => vif.final_check_ctrl(p),
        Err(fault) => Err(fault),
    };
    match turn {
        Ok(more) => more.into(),
        Err(fault) => {
            back.broken("ctrl", &fault);
            FAULT
        }
    }
}

/// What chooses the queue of a frame for the guest.
pub struct Steer(Arc<dyn Steering>);

/// True if what chooses queues has changed since the last call.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_is_steered(back: &mut Back) -> bool {
    let steered = back.vif.steering().0;
    core::mem::replace(&mut back.steered, steered) != steered
}

/// What chooses queues from now on, to be freed by pregrant_back_steer_free. Null: the stack
/// does, as where there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_steering(back: &Back) -> *mut Steer {
    let by = back.vif.steering().1;
    let by = by.and_then(|by| memory::boxed(Steer(by)).ok());
    by.map_or(core::ptr::null_mut(), Box::into_raw)
}

/// The queue of a frame for the guest.
///
/// # Safety
/// `frame` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_back_queue_of(by: &Steer, frame: *const u8, len: usize) -> u32 {
    // SAFETY: the caller's; it is read during the call.
    by.0.queue_of(unsafe { core::slice::from_raw_parts(frame, len) }) as u32
}

/// Frees what pregrant_back_steering gave.
///
/// # Safety
/// No one uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_back_steer_free(by: *mut Steer) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(by) });
}

/// Number of queues of a connected vif.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_nr_queues(back: &Back) -> u32 {
    back.vif.nr_queues() as u32
}

/// The paths of the first queue of a connected vif, for TX and RX, with a terminating 0.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_paths(back: &Back, to: &mut MaybeUninit<Words>) {
    let mut line = log::Line::default();
    let (tx, rx) = match back.vif.nr_queues() {
        0 => ("none", "none"),
        _ => back.vif.path_names(0),
    };
    let _ = if tx == rx { write!(line, "{tx}") } else { write!(line, "tx {tx} rx {rx}") };
    let mut words = [0; ROOM];
    words.iter_mut().zip(line.text().bytes().take(ROOM - 1)).for_each(|(to, from)| *to = from);
    to.write(words);
}

/// Whether the link is up: all queues' guest takes frames. 1 or 0 if that changed, otherwise -1.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_link(back: &mut Back) -> i32 {
    back.vif.new_link().map_or(-1, i32::from)
}

/// The frames that the guest accepts: PREGRANT_GUEST_*.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_takes(back: &Back) -> u32 {
    let takes = back.vif.accepts();
    let bits = [takes.sg, takes.csum, takes.ipv6_csum, takes.gso_tcpv4, takes.gso_tcpv6];
    bits.into_iter().zip(0..).map(|(is_set, bit)| u32::from(is_set) << bit).sum()
}

/// The largest MTU of the interface that the guest can receive; 0: any.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_mtu_limit(back: &Back) -> u32 {
    back.vif.mtu_limit().unwrap_or(0)
}

/// The toolstack's key `rate` has changed.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_rate(back: &mut Back) {
    let Back { p, bus, vif, .. } = back;
    if let Err(e) = vif.reload_rate(p, bus) {
        log::warn(p.device, format_args!("{e}"));
    }
    if vif.bad_rate().is_some() {
        log::warn(p.device, format_args!("its key `rate` is invalid, and does not limit the guest"));
    }
}

/// Frees a back, which has been ended, or whose step has failed and which is closed.
///
/// # Safety
/// It is `pregrant_back_new`'s, and no one uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pregrant_back_free(back: *mut Back) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(back) });
}

impl Back {
    #[inline(never)]
    fn start_queues(&mut self) -> Result<(), PlatformError> {
        self.handed_out = self.vif.hand_out_queues();
        let (device, first) = (self.p.device, NonNull::from(&mut self.handed_out[..]).cast());
        for k in 0..self.handed_out.len() {
            // SAFETY: one of the list, which stays as it is until `pregrant_back_stop_queues`.
            // There is a queue of the interface for each that is offered.
            let new = unsafe { Queue::new(device, first.add(k), shim::pk_port(device, k as u32)) };
            let (queue, counters) = new?;
            memory::grow(&mut self.polled, 1)?;
            let (queue, counters) = (memory::boxed(queue)?, memory::boxed(counters)?);
            memory::push(&mut self.polled, (Box::into_raw(queue), Box::into_raw(counters)))?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<BackStep, ConnectError<BusError>> {
        if !self.has_inherited {
            let taken = self.take_up();
            self.has_inherited =
                !taken.as_ref().is_err_and(ConnectError::is_too_early) || self.tries >= TRIES;
            if taken? {
                return Ok(BackStep::Connected);
            }
        }
        self.renew(false).map_err(ConnectError::Keys)?;
        let Back { p, bus, vif, .. } = self;
        let came_to = vif.step_unsaid(p, bus, &mut |_, _| None)?;
        if came_to == BackStep::Connected {
            log_connected(vif, p.device);
        }
        Ok(came_to)
    }

    /// Goes on with the rings that another back has left, if it left some.
    #[inline(never)]
    fn take_up(&mut self) -> Result<bool, ConnectError<BusError>> {
        let Back { p, bus, vif, most_queues, .. } = self;
        // Drivers of the kernel leave a vif in good order; a process may have died.
        if bus.own_text(INTERFACE_OF_PROCESS).map_err(ConnectError::Keys)?.is_none() {
            vif.take_from_kernel();
        }
        if vif.inherit(bus).map_err(ConnectError::Keys)? != PreviousState::Connected {
            return Ok(false);
        }
        if !vif.reattach(p, bus, &mut |_, _| None)? {
            return Ok(false);
        }
        if vif.nr_queues() > *most_queues as usize {
            return Err(ConnectError::Lost(memory::text("it has more queues than the interface")?));
        }
        if vif.ctrl_channel().is_some() {
            // For what its front has asked on the control ring, of which there is no record.
            bus.set_state(XenbusState::InitWait).map_err(ConnectError::Keys)?;
            self.renews_ns = Some(p.now_ns() + RENEWS_NS);
        }
        log::info(p.device, format_args!("taken up from another back"));
        log_connected(vif, p.device);
        Ok(true)
    }

    /// Writes state 4 for a front that saw 2 long enough, or `at_once`.
    fn renew(&mut self, at_once: bool) -> Result<(), BusError> {
        let Some(at) = self.renews_ns else { return Ok(()) };
        let is_connected = self.vif.is_connected();
        if at_once || !is_connected || self.p.now_ns() >= at {
            self.renews_ns = None;
            // The toolstack may have written 5 over the 2.
            if is_connected && self.bus.own_state()? == XenbusState::InitWait {
                self.bus.set_state(XenbusState::Connected)?;
            }
        }
        Ok(())
    }

    /// The remote side of each queue.
    #[inline(never)]
    fn ports(&self) -> Result<Vec<Box<dyn FramePort>>, PlatformError> {
        let device = self.p.device;
        let mut ports = Vec::new();
        for k in 0..self.vif.nr_queues() as u32 {
            // SAFETY: as in `start_queues`.
            let port = Skbs::new(unsafe { shim::pk_port(device, k) });
            memory::push(&mut ports, memory::boxed(port)? as Box<dyn FramePort>)?;
        }
        Ok(ports)
    }

    #[cold]
    #[inline(never)]
    fn broken(&mut self, ring: &str, fault: &PeerFault) {
        self.why = log::Line::default();
        let _ = write!(self.why, "the guest broke the protocol on its {ring} ring: {fault}");
    }

    #[cold]
    #[inline(never)]
    fn failed(&mut self, e: &dyn Display) {
        self.why = log::Line::default();
        let _ = write!(self.why, "{e}");
    }
}

#[inline(never)]
fn log_connected(vif: &BackVif<Machine>, device: Device) {
    let (queues, (tx, rx)) = (vif.nr_queues(), vif.path_names(0));
    log::info(device, format_args!("connected: {queues} queue(s), TX by {tx}, RX by {rx}"));
    if let Some((queue, dir, why)) = vif.refused_lists().first() {
        let lists = vif.refused_lists().len();
        log::info(device, format_args!("{lists} list(s) refused, of queue {queue}, {dir}: {why}"));
    }
}
