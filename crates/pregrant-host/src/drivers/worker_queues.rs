//! The queues that one worker serves, of devices of any class: polled while there is something,
//! armed once there is not.
//!
//! ```text
//!             +--------------------- its event channel fired, its doorbell, its descriptor, its time
//!             v                                                        |
//!   taken --> active --polled each round--> nothing moves --turn, arm--> armed
//!             ^                                   '--work after all--'
//!   fault: all queues of its device go back to the control thread, with what was wrong
//! ```
//! A round, a sleep and a wake-up cost what the active queues cost; those that are armed cost
//! nothing (now and then a busy worker checks what fired). Where the worker never sleeps (poll),
//! nothing is armed and all stay active.
//!
//! A queue whose port has frames for another queue here rings that one's doorbell. With
//! [`RxContext::Same`] what was rung for gets a batch at once, at the expense of the device whose
//! turn it is.
//!
//! A device's queues here have one account of time together ([`FairScheduler`]), and take turns in
//! being first.
//!
//! What a guest may do: fire events at any rate. An event makes its queue active, which costs the
//! worker one poll of that queue and, at the device's expense, one turn.

use super::device_class::{RingFault, ServedQueue};
use super::fair_scheduler::{FairScheduler, Turn};
use super::wait::PENDING_CHECKS;
use super::worker_pool::rx_context::RxContext;
use super::worker_pool::waker::{QueueDoorbell, Waker};
use crate::ports::port_readiness::PortReadiness;
use pregrant::PlatformError;
use pregrant::platform::{Clock, Events, PeerMem, Platform, ReadySet};
use pregrant::port::{ARENA_BYTES, Arena, PortOwner};
use pregrant::units::EvtchnPort;
use pregrant::xenbus::DeviceId;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of rounds between two polls of events while queues have work; fewer if rounds are long,
/// so that an armed queue waits for about `CHECK_WITHIN`. That is also the shortest interval of
/// polls, since a poll is a system call and rounds may be short.
const CHECK_EVERY: u32 = 16;
const CHECK_WITHIN: Duration = Duration::from_micros(200);
const CHECK_AGAIN: Duration = Duration::from_micros(100);
/// A queue without work for this number of rounds, while others have work, is armed instead of
/// polled.
const IDLE_ROUNDS: u32 = 64;

/// A worker's message to the control thread.
pub struct Returned<P> {
    /// The device.
    pub id: DeviceId,
    /// All queues of the device that this worker had.
    pub queues: Vec<Box<dyn ServedQueue<P>>>,
    /// The reason why the queues are returned although the control thread did not ask for them.
    pub why: Option<Why>,
}

/// The reason why workers no longer serve a device.
pub enum Why {
    /// The guest violated the protocol.
    Fault(RingFault),
    /// The worker that got a queue could not bind its event channel.
    Channel(PlatformError),
    /// The platform refused something else that the queues need; the text says what.
    Platform(String),
}

struct Slot<P> {
    queue: Box<dyn ServedQueue<P>>,
    group: usize,
    active: bool,
    /// Number of rounds since the queue last moved something.
    idle: u32,
    ports: Vec<EvtchnPort>,
}

/// The queues of one device that the thread serves.
struct Group {
    id: DeviceId,
    turn: Turn,
    /// Worker time that the device used and that was not reported yet.
    took_ns: u64,
    /// Worker time that the device used in all, for the status; other workers add theirs.
    worker_ns: Arc<AtomicU64>,
    slots: Vec<usize>,
    /// Indices of the active queues. The queue that is polled first changes from round to round.
    active: Vec<usize>,
    first: usize,
}

impl Group {
    /// Adds the measured time to the reported counter.
    fn publish_time(&mut self) {
        self.worker_ns.fetch_add(std::mem::take(&mut self.took_ns), Ordering::Relaxed);
    }
}

/// Collects the doorbells that are rung during some queue's turn.
struct Rung<'a, P> {
    waker: &'a Waker,
    slots: &'a mut [Option<Slot<P>>],
}

impl<P: Platform> Rung<'_, P> {
    /// Delivers a batch to each of these queues and makes them active, even if nothing is left for
    /// them, since their doorbell does not ring again. A fault is returned with the index of its
    /// group.
    fn deliver(self, p: &P, delivered: &mut Vec<usize>) -> Result<(), (usize, RingFault)> {
        let (slots, bits) = (self.slots.len(), self.waker.doorbell.bits());
        let first = delivered.len();
        self.waker.doorbell.take(|slot| delivered.extend((slot..slots).step_by(bits)));
        for slot in &delivered[first..] {
            if let Some(Some(entry)) = self.slots.get_mut(*slot) {
                entry.queue.deliver(p).map_err(|e| (entry.group, e))?;
            }
        }
        Ok(())
    }
}

/// The queues that one thread serves.
pub struct WorkerQueues<P: Platform> {
    waker: Arc<Waker>,
    slots: Vec<Option<Slot<P>>>,
    /// Number of queues in all groups.
    nr_queues: usize,
    groups: Vec<Option<Group>>,
    /// The groups that have active queues.
    busy: Vec<usize>,
    /// A slot, by the local number of an event channel.
    by_port: Vec<Option<usize>>,
    /// Queues that are armed and have a deadline.
    timed: Vec<usize>,
    /// Readiness of ports that receive frames from the kernel.
    arrivals: Option<PortReadiness>,
    /// True once the warning that there is no file descriptor for ports was logged.
    fd_error_logged: bool,
    turns: FairScheduler,
    began: Instant,
    /// Number of rounds until the clock is checked.
    check_in: u32,
    check_every: u32,
    /// Time at which the clock was last read.
    counted_at: Instant,
    /// Time at which events were last polled.
    checked_at: Instant,
    /// True if the thread arms queues and sleeps; false if it only polls.
    sleeps: bool,
    scratch: Arena,
    rx_context: RxContext,
    /// Queues that got a batch in another queue's turn, and become active.
    delivered: Vec<usize>,
    /// Scratch memory for the list of the active slots while they are visited.
    listed: Vec<usize>,
    ready: ReadySet,
    /// Channels that fired and belong to no queue of this thread; None: no one needs them.
    unknown: Option<ReadySet>,
    /// The slot at which the next check for lost events starts.
    checked: usize,
    returned: Vec<Returned<P>>,
    /// Devices that the control thread must check.
    changed: Vec<DeviceId>,
}

impl<P: Platform> WorkerQueues<P> {
    /// Creates a worker without queues.
    pub fn new(waker: Arc<Waker>) -> Self {
        Self {
            waker,
            slots: Vec::new(),
            nr_queues: 0,
            groups: Vec::new(),
            busy: Vec::new(),
            by_port: Vec::new(),
            timed: Vec::new(),
            arrivals: None,
            fd_error_logged: false,
            turns: FairScheduler::default(),
            began: Instant::now(),
            check_in: CHECK_EVERY,
            check_every: CHECK_EVERY,
            counted_at: Instant::now(),
            checked_at: Instant::now(),
            sleeps: false,
            scratch: Arena::nowhere(),
            rx_context: RxContext::default(),
            delivered: Vec::new(),
            listed: Vec::new(),
            ready: ReadySet::default(),
            unknown: None,
            checked: 0,
            returned: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// Keeps channels that fired and belong to no queue of this thread, for other rings that it
    /// serves ([`take_unknown`](Self::take_unknown)).
    pub fn keeping_unknown(mut self) -> Self {
        self.unknown = Some(ReadySet::default());
        self
    }

    /// Sets whether frames from one queue to another are delivered in the sender's or in the
    /// receiver's turn.
    pub fn delivering(mut self, rx_context: RxContext) -> Self {
        self.rx_context = rx_context;
        self
    }

    /// Serves a queue of this device from now on; it is active. The device's time while others want
    /// this worker is counted in `worker_ns`.
    pub fn take(
        &mut self,
        p: &P,
        id: DeviceId,
        mut queue: Box<dyn ServedQueue<P>>,
        worker_ns: &Arc<AtomicU64>,
    ) {
        if queue.needs_scratch() && self.scratch.is_nowhere() {
            let buffer = p.peer().burst_buffer(ARENA_BYTES);
            self.scratch = buffer.and_then(Arena::over).unwrap_or_default();
        }
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let waker = Arc::new(QueueDoorbell { waker: Arc::clone(&self.waker), slot });
        queue.owned_by(&PortOwner { worker: self.waker.number, waker });
        let ports = queue.channels(p);
        for port in &ports {
            let at = port.0 as usize;
            if at >= self.by_port.len() {
                self.by_port.resize(at + 1, None);
            }
            self.by_port[at] = Some(slot);
        }
        if let Some(fd) = queue.readable()
            && let Err(e) = self.wait_for(fd, slot)
            && !std::mem::replace(&mut self.fd_error_logged, true)
        {
            // The queue is checked when anything else happens to it.
            // LOG: once for each worker
            log::warn!("{id}: cannot poll a queue's descriptor; the queue may be served late: {e}");
        }
        let group = self.group_of(id, worker_ns);
        if let Some(group) = &mut self.groups[group] {
            group.slots.push(slot);
        }
        let entry = Slot { queue, group, active: false, idle: 0, ports };
        self.nr_queues += 1;
        if slot == self.slots.len() {
            self.slots.push(Some(entry));
        } else {
            self.slots[slot] = Some(entry);
        }
        self.activate(slot);
    }

    /// Makes a slot active whenever the kernel has frames for its port.
    fn wait_for(&mut self, port: BorrowedFd<'_>, slot: usize) -> std::io::Result<()> {
        if self.arrivals.is_none() {
            self.arrivals = Some(PortReadiness::new()?);
        }
        self.arrivals.as_ref().map_or(Ok(()), |all| all.add(port, slot as u64))
    }

    fn group_of(&mut self, id: DeviceId, worker_ns: &Arc<AtomicU64>) -> usize {
        let is = |g: &Option<Group>| g.as_ref().is_some_and(|g| g.id == id);
        if let Some(at) = self.groups.iter().position(is) {
            return at;
        }
        let at = self.groups.iter().position(Option::is_none).unwrap_or(self.groups.len());
        let group = Group {
            id,
            turn: Turn::default(),
            took_ns: 0,
            worker_ns: Arc::clone(worker_ns),
            slots: Vec::new(),
            active: Vec::new(),
            first: 0,
        };
        if at == self.groups.len() {
            self.groups.push(Some(group));
        } else {
            self.groups[at] = Some(group);
        }
        at
    }

    /// Returns all queues of this device.
    pub fn give_back(&mut self, id: &DeviceId) -> Vec<Box<dyn ServedQueue<P>>> {
        let is = |g: &Option<Group>| g.as_ref().is_some_and(|g| g.id == *id);
        let Some(at) = self.groups.iter().position(is) else { return Vec::new() };
        self.busy.retain(|busy| *busy != at);
        let slots = self.groups[at].take().map_or_else(Vec::new, |mut group| {
            group.publish_time();
            group.slots
        });
        self.timed.retain(|slot| !slots.contains(slot));
        let mut queues = Vec::with_capacity(slots.len());
        for slot in slots {
            let Some(Slot { queue, ports, .. }) = self.slots[slot].take() else { continue };
            self.nr_queues -= 1;
            ports.iter().for_each(|port| self.by_port[port.0 as usize] = None);
            if let (Some(all), Some(fd)) = (&self.arrivals, queue.readable()) {
                all.remove(fd);
            }
            queues.push(queue);
        }
        queues
    }

    /// Makes all queues of a device active, so that they are polled.
    pub fn wake_queues(&mut self, id: &DeviceId) {
        let is = |g: &&Option<Group>| g.as_ref().is_some_and(|g| g.id == *id);
        let slots = self.groups.iter().find(is).and_then(Option::as_ref).map(|g| g.slots.clone());
        slots.into_iter().flatten().for_each(|slot| self.activate(slot));
    }

    fn activate(&mut self, slot: usize) {
        let Some(Some(entry)) = self.slots.get_mut(slot) else { return };
        entry.idle = 0;
        if std::mem::replace(&mut entry.active, true) {
            return;
        }
        let at = entry.group;
        if let Some(group) = &mut self.groups[at] {
            if group.active.is_empty() {
                self.busy.push(at);
            }
            group.active.push(slot);
        }
    }

    /// Removes a queue that is armed from the list of polled ones.
    fn deactivate(&mut self, slot: usize) {
        let Some(Some(entry)) = self.slots.get_mut(slot) else { return };
        entry.active = false;
        let at = entry.group;
        if let Some(group) = &mut self.groups[at] {
            group.active.retain(|active| *active != slot);
            if group.active.is_empty() {
                self.busy.retain(|busy| *busy != at);
            }
        }
    }

    /// Serves one batch of each active queue, in both directions, of each device whose turn it is.
    /// Returns true if there may be more.
    #[inline]
    pub fn round(&mut self, p: &P) -> bool {
        self.check_in -= 1;
        if self.check_in == 0 {
            self.check_while_busy(p);
        }
        let mut moved = false;
        let (mut fault, mut broken) = (None, None);
        // With a single device there is nothing to share, so no clock is read.
        let mut since = (self.busy.len() > 1).then(Instant::now);
        if let Some(now) = since {
            self.turns.begin(now.duration_since(self.began).as_nanos() as u64);
        }
        for &at in &self.busy {
            let Some(group) = &mut self.groups[at] else { continue };
            if since.is_some() && self.turns.waits(&group.turn) {
                moved = true;
                continue;
            }
            let n = group.active.len();
            group.first = if group.first + 1 < n { group.first + 1 } else { 0 };
            let (mut worked, mut requests) = (false, 0u32);
            for k in 0..n {
                let i = if group.first + k < n { group.first + k } else { group.first + k - n };
                let Some(entry) = &mut self.slots[group.active[i]] else { continue };
                let before = if since.is_some() { entry.queue.requests() } else { 0 };
                match entry.queue.poll(p, &mut self.scratch) {
                    Ok(true) => {
                        (worked, entry.idle) = (true, 0);
                        if since.is_some() {
                            requests += entry.queue.requests().wrapping_sub(before);
                        }
                        if self.rx_context == RxContext::Same {
                            let rung = Rung { waker: &self.waker, slots: &mut self.slots };
                            if let Err(of_another) = rung.deliver(p, &mut self.delivered) {
                                broken = Some(of_another);
                                break;
                            }
                        }
                    }
                    Ok(false) => entry.idle += 1,
                    Err(e) => {
                        (worked, fault) = (true, Some((group.id, e)));
                        break;
                    }
                }
            }
            moved |= worked;
            match &mut since {
                Some(since) if worked => {
                    let now = Instant::now();
                    let took = now.duration_since(std::mem::replace(since, now)).as_nanos() as u64;
                    self.turns.served(&mut group.turn, took, requests);
                    group.took_ns += took;
                }
                Some(_) => self.turns.idle(&mut group.turn),
                None => {}
            }
        }
        if !self.delivered.is_empty() {
            let delivered = std::mem::take(&mut self.delivered);
            delivered.iter().for_each(|slot| self.activate(*slot));
            self.delivered = delivered;
            self.delivered.clear();
        }
        // One fault per round: its device is gone in the next round, in which another can be
        // reported.
        let id_of = |at: usize| self.groups.get(at).and_then(Option::as_ref).map(|group| group.id);
        let broken = broken.and_then(|(at, fault)| Some((id_of(at)?, fault)));
        if let Some((id, fault)) = fault.or(broken) {
            self.return_all(id, Some(fault));
        }
        moved
    }

    #[cold]
    fn return_all(&mut self, id: DeviceId, fault: Option<RingFault>) {
        let queues = self.give_back(&id);
        self.returned.push(Returned { id, queues, why: fault.map(Why::Fault) });
    }

    /// Called now and then: polls events of armed queues, and arms queues that were idle for long.
    #[cold]
    fn check_while_busy(&mut self, p: &P) {
        let rounds = std::mem::replace(&mut self.check_every, CHECK_EVERY);
        self.check_in = CHECK_EVERY;
        self.publish_times();
        if !self.sleeps {
            return;
        }
        if self.nr_active() < self.nr_queues() {
            let now = Instant::now();
            let took = now.duration_since(std::mem::replace(&mut self.counted_at, now));
            let within = CHECK_WITHIN.as_nanos() * u128::from(rounds) / took.as_nanos().max(1);
            self.check_every = within.clamp(1, CHECK_EVERY.into()) as u32;
            self.check_in = self.check_every;
            if now.duration_since(self.checked_at) >= CHECK_AGAIN {
                self.checked_at = now;
                self.check(p);
            }
        }
        if self.nr_active() > 1 {
            let is_idle = |slot: &usize| self.slots[*slot].as_ref().is_some_and(|s| s.idle > IDLE_ROUNDS);
            let idle: Vec<_> = self.active().filter(is_idle).collect();
            idle.into_iter().for_each(|slot| self.arm_one(p, slot));
        }
    }

    /// Updates the devices' time counters; now and then is enough.
    fn publish_times(&mut self) {
        for &at in &self.busy {
            if let Some(group) = &mut self.groups[at] {
                group.publish_time();
            }
        }
    }

    /// Makes the queues active whose event channels have fired, without sleeping.
    pub fn check(&mut self, p: &P) {
        let mut ready = std::mem::take(&mut self.ready);
        p.events().wait(&mut ready, Some(Duration::ZERO));
        self.fired(&ready);
        self.ready = ready;
        self.take_doorbells();
        self.poll_ports();
    }

    /// Makes the queues active whose event channels fired.
    pub fn fired(&mut self, ready: &ReadySet) {
        if ready.others {
            (0..self.slots.len()).for_each(|slot| self.activate(slot));
            self.unknown.iter_mut().for_each(|unknown| unknown.others = true);
        }
        for port in &ready.ports {
            match self.by_port.get(port.0 as usize) {
                Some(Some(slot)) => self.activate(*slot),
                _ => self.unknown.iter_mut().for_each(|unknown| unknown.ports.push(*port)),
            }
        }
    }

    /// Returns the channels that fired since the last call and belong to no queue of this thread.
    pub fn take_unknown(&mut self, whose: impl FnOnce(&ReadySet)) {
        if let Some(unknown) = &mut self.unknown {
            whose(unknown);
            unknown.others = false;
            unknown.ports.clear();
        }
    }

    /// Makes queues active whose doorbells were rung.
    pub fn take_doorbells(&mut self) {
        let waker = Arc::clone(&self.waker);
        let (slots, bits) = (self.slots.len(), waker.doorbell.bits());
        waker.doorbell.take(|slot| (slot..slots).step_by(bits).for_each(|slot| self.activate(slot)));
    }

    /// Makes the queues active for whose ports the kernel has frames.
    pub fn poll_ports(&mut self) {
        if let Some(arrivals) = self.arrivals.clone() {
            arrivals.take(|slot| {
                if let Some(Some(entry)) = self.slots.get_mut(slot as usize) {
                    entry.queue.became_readable();
                }
                self.activate(slot as usize);
            });
        }
    }

    /// Returns a descriptor that is readable when the kernel has frames for one of the ports; None:
    /// there is no such port yet.
    pub fn wakes(&self) -> Option<BorrowedFd<'_>> {
        self.arrivals.as_ref().map(AsFd::as_fd)
    }

    /// Called before sleeping, after [`take_doorbells`](Self::take_doorbells): polls and arms the
    /// active queues. Returns true if there is work.
    pub fn arm(&mut self, p: &P) -> bool {
        // A worker without queues sleeps in any mode.
        self.sleeps = self.nr_queues > 0;
        let faults = self.returned.len();
        let active = self.list_active();
        active.iter().for_each(|slot| self.arm_one(p, *slot));
        self.listed = active;
        !self.busy.is_empty() || self.returned.len() > faults
    }

    fn active(&self) -> impl Iterator<Item = usize> + '_ {
        self.busy.iter().filter_map(|at| self.groups[*at].as_ref()).flat_map(|g| g.active.iter().copied())
    }

    /// Returns the active queues, in a list that is reused because each wake-up needs one.
    fn list_active(&mut self) -> Vec<usize> {
        let mut list = std::mem::take(&mut self.listed);
        list.clear();
        list.extend(self.active());
        list
    }

    /// Arms one queue. It becomes inactive if it has no work.
    fn arm_one(&mut self, p: &P, slot: usize) {
        let Some(Some(entry)) = self.slots.get_mut(slot) else { return };
        // Queues that have become active since the last round, perhaps by their port, are asked
        // once: rings do not know of ports.
        let polled = if entry.idle == 0 { entry.queue.poll(p, &mut self.scratch) } else { Ok(false) };
        let armed = polled.and_then(|moved| {
            let changed = entry.queue.turn(p)?;
            Ok((changed, moved || entry.queue.arm(p)?))
        });
        let (at, due) = (entry.group, entry.queue.deadline_ns());
        let Some(id) = self.groups[at].as_ref().map(|g| g.id) else { return };
        match armed {
            Ok((changed, work)) => {
                if changed {
                    self.changed.push(id);
                }
                if !work {
                    self.deactivate(slot);
                    if due.is_some() && !self.timed.contains(&slot) {
                        self.timed.push(slot);
                    }
                } else if let Some(Some(entry)) = self.slots.get_mut(slot) {
                    entry.idle = 0;
                }
            }
            Err(fault) => self.return_all(id, Some(fault)),
        }
    }

    /// Called in a control turn: polls events, serves active queues with waiting work, and queues
    /// whose time has come.
    pub fn turn(&mut self, p: &P) {
        self.check(p);
        self.turn_checked(p);
    }

    /// Runs a turn as [`turn`](Self::turn) does, right after events were polled.
    pub fn turn_checked(&mut self, p: &P) {
        let now_ns = p.clock().now_ns();
        let slots = &self.slots;
        let is_due = |slot: &usize| {
            let due = slots[*slot].as_ref().and_then(|s| s.queue.deadline_ns());
            due.is_none_or(|due| due <= now_ns)
        };
        let (due, timed) = self.timed.iter().partition(|slot| is_due(slot));
        self.timed = timed;
        let due: Vec<usize> = due;
        due.into_iter().for_each(|slot| self.activate(slot));
        let active = self.list_active();
        for slot in &active {
            let Some(Some(entry)) = self.slots.get_mut(*slot) else { continue };
            let turned = entry.queue.turn(p);
            let Some(id) = self.groups[entry.group].as_ref().map(|g| g.id) else { continue };
            match turned {
                Ok(true) => self.changed.push(id),
                Ok(false) => {}
                Err(fault) => self.return_all(id, Some(fault)),
            }
        }
        self.listed = active;
    }

    /// Time until the first queue with a deadline must be woken.
    pub fn due(&self, p: &P) -> Option<Duration> {
        let deadline = |slot: &usize| self.slots[*slot].as_ref().and_then(|s| s.queue.deadline_ns());
        let first = self.timed.iter().filter_map(deadline).min()?;
        Some(Duration::from_nanos(first.saturating_sub(p.clock().now_ns())))
    }

    /// True if a guest has published work. An event has reported that work, or will. Checks some
    /// queues in each call, or with `all` all of them, and makes those with work active, whether
    /// their event arrives or not.
    pub fn is_pending(&mut self, all: bool) -> bool {
        let n = self.slots.len();
        let checks = if all { n } else { n.min(PENDING_CHECKS) };
        let first = self.checked;
        self.checked = if n == 0 { 0 } else { (first + checks) % n };
        let found = (0..checks).map(|k| (first + k) % n).find(|slot| {
            let slot = self.slots[*slot].as_mut();
            slot.is_some_and(|slot| slot.queue.is_pending())
        });
        if let Some(slot) = found {
            self.activate(slot);
        }
        found.is_some()
    }

    /// Returns the number of queues. It is called in each round.
    #[inline(always)]
    pub fn nr_queues(&self) -> usize {
        self.nr_queues
    }

    fn nr_active(&self) -> usize {
        self.active().count()
    }

    /// Returns the queues that were given back since the last call.
    pub fn take_returned(&mut self) -> Vec<Returned<P>> {
        std::mem::take(&mut self.returned)
    }

    /// Returns the devices that the control thread must check, since the last call.
    pub fn take_changed(&mut self) -> Vec<DeviceId> {
        std::mem::take(&mut self.changed)
    }

    /// True if there are messages for the control thread.
    #[inline(always)]
    pub fn has_news(&self) -> bool {
        !self.returned.is_empty() || !self.changed.is_empty()
    }

    /// Returns the waker by which other threads reach this worker.
    pub fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// Describes the worker for a test that waits for it in vain.
    pub fn describe(&self) -> String {
        let active = self.nr_active();
        format!("frames or slots of {} queue(s), {active} of them active", self.nr_queues())
    }
}
