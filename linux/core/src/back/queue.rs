//! One queue of a back, as its poll calls it.
//!
//! ```text
//!   pregrant_back_poll_queue   one batch each way   until there is nothing more
//!   pregrant_back_turn         what waits: frames that expire, a link that changes
//!   pregrant_back_poll_arm     events are asked for; then it is polled at the next, or at pregrant_back_wakes_at
//! ```

use super::platform::Machine;
use super::port::Skbs;
use super::shim::Port;
use crate::front::FAULT;
use crate::shim::Device;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use pregrant::burst_buffer::BurstBuffer;
use pregrant::net::back::queue::QueueShare;
use pregrant::net::back::{BackQueue, Polled};
use pregrant::net::stats::LiveStats;
use pregrant::platform::{Events, PeerMem, Platform};
use pregrant::port::{ARENA_BYTES, Arena};
use pregrant::{PeerFault, PlatformError};

/// A queue that its poll has.
pub struct Queue {
    p: Machine,
    /// In the list of its vif, which no one touches meanwhile.
    queue: NonNull<BackQueue<Machine>>,
    port: Skbs,
    scratch: Box<Arena>,
    /// The core's own memory for bursts, while `scratch` has some of C's.
    own: Option<BurstBuffer>,
    /// The guest broke the protocol: the ring, and how.
    fault: Option<(&'static str, PeerFault)>,
}

#[inline(never)]
fn scratch(p: &Machine) -> Result<Box<Arena>, PlatformError> {
    Arena::boxed(p.peer().burst_buffer(ARENA_BYTES)?)
}

/// The counters of a queue, which any thread may read.
pub struct Counters(Arc<QueueShare>);

impl Queue {
    /// A queue for the poll of `port`, with its counters.
    ///
    /// # Safety
    /// `queue` is valid, and no one else uses it, until this is dropped.
    pub unsafe fn new(
        device: Device,
        mut queue: NonNull<BackQueue<Machine>>,
        port: Port,
    ) -> Result<(Self, Counters), PlatformError> {
        let p = Machine::new(device, false);
        let scratch = scratch(&p)?;
        // SAFETY: the caller's.
        let counters = Counters(Arc::clone(unsafe { queue.as_mut() }.share()));
        Ok((Self { p, queue, port: Skbs::new(port), scratch, own: None, fault: None }, counters))
    }

    /// Its guest's fault: the ring, and how.
    pub fn fault(&self) -> Option<(&'static str, PeerFault)> {
        self.fault
    }

    /// The queue, with what its calls need.
    fn parts(&mut self) -> (&mut BackQueue<Machine>, &Machine, &mut Skbs, &mut Arena) {
        let Self { p, queue, port, scratch, .. } = self;
        // SAFETY: valid, and this one's alone (`new`).
        (unsafe { queue.as_mut() }, p, port, scratch)
    }

    /// Skbs may have parts of the last burst: the next is fetched elsewhere.
    #[inline(never)]
    fn fetch_elsewhere(&mut self) {
        self.port.had_long = false;
        let next = self.port.next_burst();
        let is_own = next.is_none();
        let Some(next) = next.or_else(|| self.own.take()) else { return };
        let old = self.scratch.replace(next);
        if !is_own && self.own.is_none() {
            self.own = Some(old);
        }
    }

    #[cold]
    fn broken(&mut self, ring: &'static str, fault: PeerFault) -> i32 {
        self.fault = Some((ring, fault));
        FAULT
    }
}

/// Moves one batch each way. 1: there may be more; below 0: the guest broke the protocol.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_poll_queue(queue: &mut Queue) -> i32 {
    let (core, p, port, scratch) = queue.parts();
    let tx = match core.poll_tx(p, port, scratch) {
        Ok(polled) => polled,
        Err(fault) => return queue.broken("tx", fault),
    };
    if port.had_long {
        queue.fetch_elsewhere();
    }
    let (core, p, port, _) = queue.parts();
    match core.poll_rx(p, port) {
        Ok(rx) => i32::from(tx == Polled::More || rx == Polled::More),
        Err(fault) => queue.broken("rx", fault),
    }
}

/// Called where nothing waits: asks for events. 1: there is work; below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_poll_arm(queue: &mut Queue) -> i32 {
    let (core, p, ..) = queue.parts();
    match core.arm(p) {
        Ok(work) => work.into(),
        Err((ring, fault)) => queue.broken(ring, fault),
    }
}

/// Handles what waits: before events are asked for, and now and then before that. 1: the device's
/// control must look at the link; below 0: a fault.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_turn(queue: &mut Queue) -> i32 {
    let (core, p, port, _) = queue.parts();
    match core.turn(p, port) {
        Ok(news) => news.into(),
        Err(fault) => queue.broken("rx", fault),
    }
}

/// Time at which the queue must be polled even if no event comes, by pk_now_ns; 0: never.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_wakes_at(queue: &mut Queue) -> u64 {
    queue.parts().0.deadline_ns().unwrap_or(0)
}

/// The local ports of a queue's event channels. The second is 0 if one serves both rings.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_ports(queue: &mut Queue, ports: &mut MaybeUninit<[u32; 2]>) {
    let (core, p, ..) = queue.parts();
    let mut channels = core.channels().map(|chan| p.events().local(chan).0);
    ports.write([channels.next().unwrap_or(0), channels.next().unwrap_or(0)]);
}

/// The counters of TX, then of RX, as ethtool.c names them.
#[unsafe(no_mangle)]
pub extern "C" fn pregrant_back_counters(counters: &Counters, to: &mut MaybeUninit<[u64; 30]>) {
    let [tx, rx] = [&counters.0.tx, &counters.0.rx].map(|live| of_direction(live));
    let mut all = [0; 30];
    all.iter_mut().zip(tx.into_iter().chain(rx)).for_each(|(to, from)| *to = from);
    to.write(all);
}

fn of_direction(live: &LiveStats) -> [u64; 15] {
    let stats = live.read();
    let others = stats.staging + stats.data_ring + stats.gref_mapping + stats.persistent;
    [
        stats.frames,
        stats.bytes,
        stats.grant_ops.copies,
        stats.grant_ops.maps,
        stats.errors,
        stats.dropped,
        stats.too_long,
        stats.expired,
        stats.batches,
        stats.notifications,
        stats.staging,
        stats.data_ring,
        stats.gref_mapping,
        stats.persistent,
        stats.frames.saturating_sub(others),
    ]
}
