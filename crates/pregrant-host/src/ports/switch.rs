//! A learning switch between the vifs of one host, on any number of workers.
//!
//! ```text
//!   guest 1 --fetch--> memory of worker A's   tx_filled         rx_burst   the same memory --deliver--> guest 2
//!                                \-- plan: source, MAC table, queue --mailbox--> |
//!                                 \-- copy: frames for others, small bursts ---> |  (mail, 4 to 64 KiB)
//! ```
//!
//! Known unicast goes to its port; broadcast, multicast and unknown unicast go to every other port;
//! nothing returns to the port it came from. Each queue to a guest is bounded ([`QUEUE_BYTES`]):
//! what does not fit is dropped and counted at the port that was too slow. Before that, a port
//! whose last burst was for a queue that is full has [no room](FramePort::room): its guest's frames
//! wait on its ring, for a bounded time (`patience.rs`). Frames for groups wait for no one. A frame
//! keeps its blank checksum and its segmentation where the receiver takes them; for others its
//! checksum is finished on its way into the queue, and it is cut before
//! ([`segments`](super::segments)). A vif with several queues is one port with several handles; a
//! flow keeps to one of them, to the one that the guest said where it did ([`FramePort::steer`]).
//!
//! **Copies.** A batch of 2 KiB and more is fetched into memory that the switch gives
//! ([`FramePort::tx_room`]), and the receiver delivers from that memory: two copies, out of one
//! guest and into the other. Frames are copied once more on the way where most of their batch is
//! for another queue, where the batch goes to all ports, and where it is small. Long frames in
//! pages that stay mapped are copied once, from there (`lent_burst`).
//!
//! **Workers.** Each worker that has ports here has an outbox (`outbox.rs`), and each queue a
//! mailbox of each worker that sends to it (`inbox.rs`, `mailbox.rs`). A frame takes no lock. A
//! burst takes that of its worker's outbox, which is not contended; the address table is read
//! without one. [`FramePort::owned_by`] says which worker a handle is at, and which doorbell wakes
//! it. Handles that no one gave to a worker have an outbox in common, wherever they are called, and
//! are not woken.
//!
//! What a guest may do: forge the addresses that its port's [`Sources`] allow; send to everybody,
//! but no large segments, for TCP is not for groups; send noise; take nothing. It costs others no
//! more than their own queue's room, and who sends to it the time that its queue is waited for.

mod fabric;
mod inbox;
mod lent_burst;
mod mail;
mod mailbox;
mod outbox;
mod patience;
mod recent;
mod stats;
mod sync;
mod vif;

use self::fabric::Fabric;
use self::inbox::Incoming;
use self::lent_burst::Lends;
use self::outbox::{Outbox, Sender};
use self::recent::Recent;
use self::stats::Counters;
use self::vif::Vif;
use super::segments::CutSegment;
use pregrant::port::{
    Arena, Burst, Completions, DropCounts, FramePort, Offloads, Payload, PortDrop, PortOwner, QueueWaker,
    Room, Steering, ZeroCopyBurst,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use self::inbox::QUEUE_BYTES;
pub use self::stats::SwitchStats;
pub use self::vif::{Sources, SwitchFull};
/// Largest number of ports of one switch.
pub use super::mac_table::MAX_PORTS;

/// The default of the length above which frames are forwarded zero-copy, if their pages are mapped.
/// Copying shorter frames costs less than holding and answering them.
pub const LEND_ABOVE: u32 = 4096;
/// After a burst in which nothing could be zero-copy, a port asks for copies for this many bursts.
const COPY_AGAIN: u32 = 32;

/// A switch. All clones of a value are the same switch.
#[derive(Clone, Default)]
pub struct Switch {
    shared: Arc<Shared>,
}

/// State that the ports of one switch share.
struct Shared {
    fabric: Fabric,
    lend_above: AtomicU32,
    /// The outboxes of the workers, by the workers' numbers. The one of None belongs to ports that
    /// were not given to a worker.
    outboxes: Mutex<BTreeMap<Option<usize>, Arc<Mutex<Outbox>>>>,
}

impl Default for Shared {
    fn default() -> Self {
        let (fabric, outboxes) = Default::default();
        Self { fabric, lend_above: LEND_ABOVE.into(), outboxes }
    }
}

impl Shared {
    fn outbox(&self, worker: Option<usize>) -> Arc<Mutex<Outbox>> {
        Arc::clone(lock(&self.outboxes).entry(worker).or_default())
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch").finish_non_exhaustive()
    }
}

impl Switch {
    /// Creates a switch without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time for ageing. A worker calls it once per turn.
    pub fn set_now(&self, now_ns: u64) {
        self.shared.fabric.set_now(now_ns);
    }

    /// Adds a port for a vif with one queue, whose guest supports the offloads `caps`.
    pub fn add_port(&self, caps: Offloads) -> Result<SwitchPort, SwitchFull> {
        let (port, vif) = self.shared.fabric.join(1, caps)?;
        Ok(SwitchPort::new(&self.shared, port, 0, &vif))
    }

    /// Adds a port for a vif with `queues` queues; returns one handle per queue.
    pub fn add_multi_queue_port(&self, queues: usize, caps: Offloads) -> Result<Vec<SwitchPort>, SwitchFull> {
        if queues == 0 {
            return Ok(Vec::new());
        }
        let (port, vif) = self.shared.fabric.join(queues, caps)?;
        Ok((0..queues).map(|queue| SwitchPort::new(&self.shared, port, queue, &vif)).collect())
    }

    /// Sets the length above which frames stay in their sender's pages, if these are mapped, until
    /// they are copied to their receiver. [`MAX_FRAME`](pregrant::port::MAX_FRAME) disables this.
    pub fn lend_above(&self, bytes: u32) {
        self.shared.lend_above.store(bytes, Ordering::Relaxed);
    }

    /// Returns the number of known addresses, including pinned ones.
    pub fn known_addresses(&self) -> usize {
        self.shared.fabric.macs.len()
    }
}

/// One queue of a vif at the switch. Dropping the last handle of a port drops its frames and
/// addresses.
pub struct SwitchPort {
    shared: Arc<Shared>,
    port: u16,
    incoming: Incoming,
    counters: Arc<Counters>,
    /// The outbox of the worker that has this queue.
    outbox: Arc<Mutex<Outbox>>,
    /// Scratch memory for the segments of the current frame.
    cut: CutSegment,
    lends: Arc<Lends>,
    /// The completions as the trait object that the queue needs.
    completions: Arc<dyn Completions>,
    /// Number of bursts still to be copied, without a zero-copy attempt.
    not_lent: u32,
    /// The queues that received the port's last burst.
    recent: Recent,
    /// Wakes its worker. None: no worker has it, so its caller cannot be woken and does not wait.
    waker: Option<Arc<dyn QueueWaker>>,
}

impl fmt::Debug for SwitchPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchPort").field("port", &self.port).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Any state that a panic could leave behind is valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SwitchPort {
    fn new(shared: &Arc<Shared>, port: u16, queue: usize, vif: &Vif) -> Self {
        let lends = Arc::<Lends>::default();
        Self {
            shared: Arc::clone(shared),
            port,
            incoming: Incoming::new(&vif.inboxes[queue]),
            counters: Arc::clone(&vif.counters),
            outbox: shared.outbox(None),
            cut: CutSegment::default(),
            completions: Arc::clone(&lends) as Arc<dyn Completions>,
            lends,
            not_lent: 0,
            recent: Recent::default(),
            waker: None,
        }
    }

    /// Sets the offloads that the guest behind this port supports, once negotiated. Frames that
    /// already wait are not changed.
    pub fn set_guest_caps(&self, caps: Offloads) {
        self.shared.fabric.change(self.port, |vif| vif.caps = caps);
    }

    /// Sets the source addresses that the guest may use. Its own address, if known, is pinned to
    /// this port, even if another used it before; of two vifs with one address the later one has
    /// it.
    pub fn set_sources(&self, sources: Sources) {
        self.shared.fabric.set_sources(self.port, sources);
    }

    /// Returns the counters of the port, summed over all its queues.
    pub fn stats(&self) -> SwitchStats {
        self.counters.get()
    }

    /// Returns true if frames wait for the guest.
    pub fn has_frames(&self) -> bool {
        self.held() > 0
    }
}

impl DropCounts for Counters {
    fn read(&self) -> Vec<PortDrop> {
        let stats = self.get();
        let drop = |dir, reason, frames| PortDrop { dir, reason, frames };
        vec![
            drop("tx", "bad_frame", stats.bad_frames),
            drop("tx", "forged_source", stats.forged),
            drop("tx", "gso_to_group", stats.gso_to_group),
            drop("tx", "no_port", stats.no_port),
            drop("rx", "queue_full", stats.rx_overflow),
            drop("rx", "unfinishable", stats.rx_unfinishable),
        ]
    }
}

impl FramePort for SwitchPort {
    /// Returns all offloads, since the switch completes frames for receivers that do not support
    /// them.
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }

    /// Returns no room while the queue is full that the last burst went to, since the next burst
    /// probably goes there too.
    fn room(&mut self) -> Room {
        match &self.waker {
            Some(waker) => self.recent.room(waker),
            None => Room::Now,
        }
    }

    /// Accepts all frames. Frames for which a slow receiver has no room are counted at its port.
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        let sender = Sender { port: self.port, recent: &mut self.recent, cut: &mut self.cut };
        lock(&self.outbox).forward(&self.shared.fabric, sender, frames, None);
        frames.frames.len()
    }

    fn tx_room(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        Some(lock(&self.outbox).room(bytes))
    }

    fn tx_filled(&mut self, arena: &mut Arena) -> usize {
        self.not_lent = self.not_lent.saturating_sub(1);
        let memory = arena.move_out();
        let sender = Sender { port: self.port, recent: &mut self.recent, cut: &mut self.cut };
        lock(&self.outbox).forward(&self.shared.fabric, sender, &arena.burst(), memory);
        arena.len()
    }

    /// Asks for private copies if nothing could be zero-copy lately, since copying at once is
    /// cheaper then.
    fn payload(&self) -> Payload {
        if self.not_lent > 0 {
            return Payload::Private;
        }
        Payload::Standing(self.shared.lend_above.load(Ordering::Relaxed))
    }

    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        if !frames.is_in_room() {
            return self.tx_burst(&frames.private());
        }
        let (n, fabric) = (frames.len(), &self.shared.fabric);
        let mut outbox = lock(&self.outbox);
        let sender = Sender { port: self.port, recent: &mut self.recent, cut: &mut self.cut };
        if outbox.forward_lent(fabric, sender, frames, &self.lends, &self.completions) == 0 {
            self.not_lent = COPY_AGAIN;
        }
        n
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        self.incoming.pop_into(into)
    }

    fn rx_stands(&mut self) {
        self.incoming.stand();
    }

    fn drop_counts(&self) -> Option<Arc<dyn DropCounts>> {
        Some(Arc::clone(&self.counters) as Arc<dyn DropCounts>)
    }

    fn held(&self) -> usize {
        self.incoming.inbox().len()
    }

    /// Sets how frames are distributed to the guest's queues. Frames that wait already stay in
    /// their queue.
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        self.shared.fabric.change(self.port, |vif| vif.steering = by);
    }

    /// Moves the port to another worker. Frames that it sent through its old worker arrive before
    /// those that it sends through the new one.
    fn owned_by(&mut self, owner: &PortOwner) {
        // The old worker also must not recall mail that contains frames of this port: then later
        // mail could become the oldest.
        lock(&self.outbox).seal();
        self.outbox = self.shared.outbox(Some(owner.worker));
        lock(&self.outbox).seal();
        self.recent.forget();
        self.waker = Some(Arc::clone(&owner.waker));
        self.lends.set_waker(&owner.waker);
        self.incoming.set_waker(&owner.waker); // which rings it
    }
}

impl Drop for SwitchPort {
    fn drop(&mut self) {
        self.shared.fabric.leave(self.port);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod worker_tests;
