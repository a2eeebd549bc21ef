//! Finding a domain's devices: which there are in its backend directory, which of them are new,
//! and what a predecessor left.
//!
//! ```text
//!   event below backend/CLASS --scan--> new, all of them: what comes for a predecessor's guests waits from now on
//!                                     each of them: own it, watch its front, make its remote side's place
//!                                     each of them: take up what is left, or wait for its front
//!                                     gone: removed
//!   its last owner still has it: tried again for a second; its backing: for as long as that takes
//!   what is kept of it is of another version: left to the next backend, with its rings, as if its last owner lived
//!   another has it and keeps it (the kernel): left alone, and checked now and then (checks)
//! ```
//! What a guest may do: nothing here; the directory is the toolstack's.

use super::backing_state::BackingState;
use super::devices::{History, Instance, unwatch, watch};
use super::directory::Held;
use super::queues::Then;
use super::retry_interval::retry_interval;
use super::stage::Stage;
use super::throttles::DeviceThrottle;
use super::watch::{Changed, below_watch, watch_of};
use super::{Backend, BackendError};
use crate::drivers::device_class::{ServedDevice, Takeover};
use crate::drivers::device_log::DeviceLog;
use crate::drivers::recovery::Recovery;
use log::Level;
use pregrant::platform::Platform;
use pregrant::shm::SharedBytes;
use pregrant::xenbus::back::{Begin, PreviousState};
use pregrant::xenbus::bus::{DeviceBus, StoreBus};
use pregrant::xenbus::{Class, Device, DeviceId, Side, XenbusState, toolstack};
use pregrant::xenstore::{Transport, WatchEvent, XsError};
use std::any::Any;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// The time for which opening a device is tried again whose last owner is dying
/// (docs/protocol 1.1). Other devices are served meanwhile.
const DYING: Duration = Duration::from_secs(1);

/// Gives a device its kept memory. If that fails, it is logged for the device.
pub(super) fn keeper<'a, P>(
    recovery: &'a mut Option<Box<dyn Recovery<P>>>,
    p: &'a P,
    id: DeviceId,
    log: DeviceLog,
) -> impl FnMut(&str, usize) -> Option<Box<dyn SharedBytes + Send>> + 'a {
    move |name, bytes| log.failed(Level::Warn, recovery.as_mut()?.page(p, &id, name, bytes))?
}

/// A device that this process owns and has made a port for, and whose rings were not checked yet.
struct Placed<P: Platform, T: Transport + 'static> {
    device: Device,
    served: Box<dyn ServedDevice<P, T>>,
    log: DeviceLog,
    owned: Option<Box<dyn Any>>,
    left: PreviousState,
    /// True if the rings that a predecessor left may be usable.
    live: bool,
    /// The reason why the port or image could not be created; None: it was created.
    misplaced: Option<String>,
}

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Returns the meaning of an event that belongs to no served front.
    pub(super) fn meaning_of(&self, event: &WatchEvent) -> Changed {
        // Another token: a front's key, of a device that is not served, or not yet. Its path is as
        // the guest likes.
        let is_of = |class: Class| event.token.strip_prefix("backend/") == Some(class.name());
        let rules = self.classes.iter().map(|class| class.rules()).find(|rules| is_of(rules.class));
        rules.map_or(Changed::Nothing, |rules| below_watch(event, self.platform.domid(), &rules))
    }

    /// Returns the part of a device's class that takes over devices from a predecessor.
    fn takeover(&mut self, id: &DeviceId) -> Option<&mut dyn Takeover<T>> {
        self.classes.iter_mut().find(|class| class.rules().class == id.class)?.takeover()
    }

    /// Finds new devices, and forgets those whose directory was removed.
    pub(super) fn scan(&mut self) -> Result<(), BackendError> {
        let mut seen = Vec::new();
        let back = self.platform.domid();
        for class in &self.classes {
            seen.extend(toolstack::backs_of(&mut self.xs, back, class.rules().class)?);
        }
        seen.retain(|id| self.serves(id));
        let gone: Vec<_> =
            self.devices.iter().map(|s| s.device.id()).filter(|id| !seen.contains(id)).collect();
        for id in gone {
            if self.has_returned(&id, Then::Remove) {
                self.remove(id);
            }
        }
        let gone: Vec<_> = self.directory.held.keys().filter(|id| !seen.contains(id)).copied().collect();
        gone.iter().for_each(|id| self.release(id));
        self.directory.held.retain(|id, _| seen.contains(id));
        self.directory.left_alone.retain(|id| seen.contains(id));
        self.logs.retain(|id| seen.contains(id));
        let mut new = Vec::new();
        for id in seen {
            if !self.devices.has(&id) && self.is_announced(&id)? {
                new.push(id);
            }
        }
        // A worker serves the first of them before the last is taken over; frames from the first
        // guest to the last must not be lost.
        new.iter().for_each(|id| self.reserve(id));
        let (served, new): (Vec<_>, Vec<_>) = new
            .into_iter()
            .partition(|id| self.takeover(id).is_some_and(|takeover| takeover.is_served_until_placed(id)));
        let placed: Vec<_> = new.into_iter().map(|id| (id, self.place(id))).collect();
        placed.into_iter().for_each(|(id, placed)| self.take_up(id, placed));
        served.into_iter().for_each(|id| self.find(id));
        self.forget_gone()
    }

    /// Queues traffic for a device's guest, if a predecessor left it connected.
    fn reserve(&mut self, id: &DeviceId) {
        if self.config.recovery.is_none() || self.directory.held.get(id).is_some_and(Held::is_given_up) {
            return;
        }
        let class = self.classes.iter_mut().find(|class| class.rules().class == id.class);
        if let Some(takeover) = class.and_then(|class| class.takeover()) {
            takeover.reserve(&Device::new(*id, Side::Back), &mut self.xs);
        }
    }

    /// True if the toolstack has finished the device's directory. If it is written key by key, by
    /// hand or by a script, `state` comes last; a key that we wrote before would get permissions of
    /// a directory that does not belong to the guest yet.
    fn is_announced(&mut self, id: &DeviceId) -> Result<bool, XsError> {
        Ok(self
            .xs
            .read_if_there(&format!("{}/{}/{}/state", watch_of(id.class), id.front.0, id.handle))?
            .is_some())
    }

    /// Frees, once, everything that is kept of devices that the toolstack removed while no backend
    /// ran.
    fn forget_gone(&mut self) -> Result<(), BackendError> {
        let Some(recovery) = self.config.recovery.as_mut().filter(|_| !self.directory.has_cleared) else {
            return Ok(());
        };
        self.directory.has_cleared = true;
        for class in &self.classes {
            for id in recovery.kept(&self.platform, class.rules().class, self.platform.domid()) {
                let dir = format!("{}/{}/{}", watch_of(id.class), id.front.0, id.handle);
                if self.xs.read_if_there(&dir)?.is_none() {
                    recovery.forget(&self.platform, &id);
                    let removed = class.remote().map_or(Ok(()), |mut remote| remote.removed(&id));
                    self.logs.of_any(id).failed(Level::Warn, removed);
                }
            }
        }
        Ok(())
    }

    /// True if another driver has a device and keeps it; that is logged once.
    fn is_left_alone(&mut self, id: DeviceId) -> bool {
        let Some(why) = self.config.had_by_others.as_ref().and_then(|had| had(&id)) else {
            self.directory.left_alone.remove(&id);
            return false;
        };
        if self.directory.left_alone.insert(id) {
            self.logs.of(id).say(Level::Warn, &format_args!("not served by this backend: {why}"));
        }
        true
    }

    /// True if another owner has released a device; no event reports that.
    pub(super) fn is_one_free(&self) -> bool {
        let Some(had) = &self.config.had_by_others else { return false };
        self.directory.left_alone.iter().any(|id| had(id).is_none())
    }

    /// Drops the frames that are queued for a device's guest, if the device is not connected.
    fn release(&mut self, id: &DeviceId) {
        let Some(takeover) = self.takeover(id) else { return };
        let lost = takeover.release(id);
        if lost > 0
            && let Some(log) = self.logs.get(id)
        {
            log.say(
                Level::Warn,
                &format_args!("not re-attached: {lost} frame(s) queued for the guest are lost"),
            );
        }
    }

    /// Starts to serve a device: a new one, or one that a predecessor left connected.
    pub(super) fn find(&mut self, id: DeviceId) {
        let placed = self.place(id);
        self.take_up(id, placed);
    }

    /// Locks a device for this process, and makes its port or checks its image. None: that failed,
    /// or must be tried again.
    fn place(&mut self, id: DeviceId) -> Option<Placed<P, T>> {
        if self.is_left_alone(id) {
            self.directory.held.remove(&id);
            return None;
        }
        let log = self.logs.of(id).clone();
        let device = Device::new(id, Side::Back);
        // The toolstack has created a new device. Kept memory belongs to a former one of the same
        // number, which was removed while no backend ran.
        if let Some(recovery) = &mut self.config.recovery
            && matches!(
                StoreBus { device: &device, xs: &mut self.xs }.own_state(),
                Ok(XenbusState::Initialising)
            )
        {
            recovery.forget(&self.platform, &id);
        }
        let owned = self.config.recovery.as_mut().map(|s| s.own(&self.platform, &id)).transpose();
        let owned = match owned {
            Ok(owned) => owned,
            Err(why) => {
                self.hold(id, &why, false);
                return None;
            }
        };
        let class = self.classes.iter_mut().find(|class| class.rules().class == id.class)?;
        let front_keys = class.rules().front_keys;
        if let Err(e) = watch(&device, front_keys, &mut self.xs) {
            log.say(Level::Warn, &format_args!("cannot watch the front's state: {e}"));
            return None;
        }
        let mut served =
            self.directory.held.get_mut(&id).and_then(|held| held.made.take()).unwrap_or_else(|| {
                class.make(&id, &mut keeper(&mut self.config.recovery, &self.platform, id, log.clone()))
            });
        let left = match served.back_mut().inherit(&mut StoreBus { device: &device, xs: &mut self.xs }) {
            Ok(left) => left,
            Err(e) => {
                log.say(
                    Level::Warn,
                    &format_args!("cannot read an earlier backend's state of this device from xenstore: {e}"),
                );
                return None;
            }
        };
        // This comes first: frames for the guest are queued from here on.
        let live = left == PreviousState::Connected && self.config.recovery.is_some();
        let misplaced = match served.place(&device, &mut self.xs, live) {
            Ok(notes) => {
                notes.iter().for_each(|(level, text)| log.say(*level, text));
                None
            }
            Err(why) => Some(why),
        };
        if let (true, Some(why)) = (live, &misplaced) {
            // The guest is connected, and could not reconnect after a close. The next backend finds
            // it unchanged.
            let why = format!("{why}; left connected for the next backend");
            self.hold(id, &why, false);
            return None;
        }
        Some(Placed { device, served, log, owned, left, live, misplaced })
    }

    /// Continues with the rings that a predecessor left, or waits for the front.
    fn take_up(&mut self, id: DeviceId, placed: Option<Placed<P, T>>) {
        if let Some(placed) = placed {
            self.take_up_placed(id, placed);
        }
        if self.directory.held.get(&id).is_none_or(Held::is_given_up) {
            self.release(&id);
        }
    }

    fn take_up_placed(&mut self, id: DeviceId, placed: Placed<P, T>) {
        let Placed { device, mut served, log, owned, left, live, misplaced } = placed;
        // The features that a predecessor accepted are accepted again, whatever a new connection
        // would get.
        served.back_mut().limit_pages(self.room_for(&id).limit, usize::MAX);
        let taken = if live {
            let mut kept = keeper(&mut self.config.recovery, &self.platform, id, log.clone());
            let mut bus = StoreBus { device: &device, xs: &mut self.xs };
            served.back_mut().reattach(&self.platform, &mut bus, &mut kept)
        } else {
            Ok(false)
        };
        if let Err(e) = &taken
            && e.is_for_another()
        {
            // The guest could not reconnect after a close.
            self.hold(id, &format!("{e}. Left connected for the next backend"), false);
            return;
        }
        if let Err(e) = &taken
            && (e.is_busy()
                || e.is_too_early()
                    && self.directory.held.get(&id).is_none_or(|held| held.since.elapsed() < DYING))
        {
            self.hold(id, e, e.is_busy());
            if e.is_busy()
                && let Some(held) = self.directory.held.get_mut(&id)
            {
                // The device stays held; otherwise its wait would start again.
                held.made = Some(served);
            }
            return;
        }
        self.directory.held.remove(&id);
        let live = matches!(taken, Ok(true));
        let now = Instant::now();
        let mut stage = Stage::Waiting(BackingState::found(now));
        match left {
            // The class logs this, with the work that the predecessor left unfinished.
            _ if live => stage.connect(now),
            PreviousState::Closed(Some(why)) => {
                log.say(Level::Warn, &format_args!("closed by an earlier backend, and stays closed: {why}"));
                stage.fail(why);
            }
            _ => log.say(Level::Info, &"found in xenstore: waiting for its frontend"),
        }
        let mut instance = Instance {
            device,
            served,
            log,
            stage,
            throttle: DeviceThrottle::default(),
            history: History { reattached: live, ..History::default() },
            _owned: owned,
        };
        self.polls.hotplugs |= instance.has_hotplug();
        self.devices.insert(instance);
        // Places of others may have moved.
        self.update_live();
        match taken {
            _ if let Some(why) = misplaced => self.fail(id, &why),
            Ok(true) => self.connected(id, Begin::Reattach),
            Ok(false) => {}
            Err(e) if e.is_of_ended_guest() => self.guest_has_ended(id, &e),
            Err(e) => {
                // A front that reconnects must find the backing as it was found here, and that is
                // logged then.
                if e.is_of_backing()
                    && let Some(served) = self.devices.get_mut(&id)
                    && let Some(backing) = served.stage.backing_mut()
                {
                    let why = e.to_string();
                    backing.fails(Instant::now(), &why, true);
                    let _ = backing.is_news(&why);
                }
                self.fail(id, &format!("cannot re-attach to the guest's live rings: {e}"));
            }
        }
    }

    /// Keeps a device for later that its last owner still has: it is tried again for a second, and
    /// then when the directory changes. If `busy` is true, the backing is locked by a dying
    /// process, or missing; it is then tried again as long as the guest waits.
    fn hold(&mut self, id: DeviceId, why: &dyn Display, busy: bool) {
        let now = Instant::now();
        let first = Held { since: now, why: String::new(), next: Some(now), is_logged: false, made: None };
        let held = self.directory.held.entry(id).or_insert(first);
        held.why = why.to_string();
        let is_long = now.duration_since(held.since) >= DYING;
        held.next = match busy {
            true => Some(now + retry_interval(held.since, now)),
            false if is_long => None,
            false => Some(now),
        };
        let is_given_up = held.is_given_up();
        if is_long && !std::mem::replace(&mut held.is_logged, true) {
            let how = if busy { "its guest waits" } else { "not served" };
            self.logs.of(id).say(Level::Warn, &format_args!("{how}: {why}"));
        }
        // The device is not served, so what its front writes must not wake this process.
        if is_given_up {
            let class = self.classes.iter().find(|class| class.rules().class == id.class);
            let keys = class.map_or(&[][..], |class| class.rules().front_keys);
            // If this fails, xenstore is gone.
            let _ = unwatch(&Device::new(id, Side::Back), keys, &mut self.xs);
        }
    }

    /// Tries again to open devices that a dying process still had. Returns true if they must be
    /// checked again soon.
    pub(super) fn retry_held(&mut self) -> bool {
        let now = Instant::now();
        let is_due = |held: &Held<P, T>| held.next.is_some_and(|at| at <= now);
        let due: Vec<_> =
            self.directory.held.iter().filter(|(_, held)| is_due(held)).map(|(id, _)| *id).collect();
        for &id in &due {
            self.find(id);
            if self.devices.has(&id) {
                self.step(id);
            }
        }
        // Devices that have waited for long are retried by time.
        self.directory.held.values().any(|held| held.next.is_some_and(|at| at <= Instant::now()))
    }
}
