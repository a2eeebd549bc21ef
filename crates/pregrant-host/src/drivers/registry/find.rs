//! Finding a domain's vifs: which there are in its backend directory, which of them are new, and what a predecessor left.
//!
//! ```text
//!   event below backend/vif --scan--> new: own it, watch its front, inherit or take up, make its far side's place
//!                                     gone: removed
//!   somebody else still has it: tried again for a second
//! ```
//! What a guest may do: nothing here; the directory is the toolstack's.

use super::device_log::DeviceLog;
use super::{Backend, BackendError, VifInstance, WATCH};
use crate::drivers::fair_scheduler::Turn;
use crate::drivers::net::port_provider::{HotplugConfig, HotplugState};
use log::Level;
use pregrant::DomId;
use pregrant::net::back::vif::{HOTPLUG_STATUS, RATE};
use pregrant::net::back::{BackVif, PreviousState};
use pregrant::platform::Platform;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::{Class, Device, DeviceId, Side};
use pregrant::xenstore::{Client, Transport, WatchEvent, XsError, path};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long a vif whose last owner is dying is tried again (docs/protocol 1.1). Nobody waits for it meanwhile.
const DYING: Duration = Duration::from_secs(1);

/// A vif whose last owner still holds it.
#[derive(Clone, Copy)]
pub(super) struct Held {
    until: Instant,
    /// Given up, and said so.
    given_up: bool,
}

impl<P: Platform, T: Transport> Backend<P, T> {
    /// Finds vifs that are new, and forgets those whose directory is gone.
    pub(super) fn scan(&mut self) -> Result<(), BackendError> {
        let mut seen = Vec::new();
        for front in list(&mut self.xs, WATCH)? {
            let Ok(front) = front.parse::<u16>() else { continue };
            for handle in list(&mut self.xs, &format!("{WATCH}/{front}"))? {
                let Ok(handle) = handle.parse::<u32>() else { continue };
                if self.serves((front, handle)) {
                    seen.push((front, handle));
                }
            }
        }
        let gone: Vec<_> = self.vifs.keys().filter(|k| !seen.contains(k)).copied().collect();
        for key in gone {
            self.remove(key);
        }
        self.held.retain(|key, _| seen.contains(key));
        self.logs.retain(|key, log| {
            let stays = seen.contains(key);
            if !stays {
                log.end();
            }
            stays
        });
        for key in seen {
            if !self.vifs.contains_key(&key) && self.is_announced(key)? {
                self.find(key);
            }
        }
        self.forget_gone()
    }

    /// Whether a directory is a vif's already. Where it is written key by key, by hand or by a script, `state` comes last, and
    /// what is written there before would have the permissions of a directory that is not the guest's yet.
    fn is_announced(&mut self, key: (u16, u32)) -> Result<bool, XsError> {
        Ok(self.xs.read_if_there(&format!("{WATCH}/{}/{}/state", key.0, key.1))?.is_some())
    }

    /// Once: vifs that the toolstack took away while nobody was there to see it.
    pub(super) fn forget_gone(&mut self) -> Result<(), BackendError> {
        let Some(recovery) = self.recovery.as_mut().filter(|_| !self.forgot) else { return Ok(()) };
        self.forgot = true;
        for id in recovery.kept(&self.platform, self.platform.domid()) {
            let dir = format!("{WATCH}/{}/{}", id.front.0, id.handle);
            if self.xs.read_if_there(&dir)?.is_none() {
                recovery.forget(&self.platform, &id);
                DeviceLog::new(id).failed(Level::Warn, self.far.removed(&id));
            }
        }
        Ok(())
    }

    /// Begins to serve a vif: a new one, or one that a predecessor left connected.
    pub(super) fn find(&mut self, key: (u16, u32)) {
        let own = self.platform.domid();
        let id = DeviceId { class: Class::Vif, front: DomId(key.0), back: own, handle: key.1 };
        let log = self.logs.entry(key).or_insert_with(|| DeviceLog::new(id)).clone();
        let owned = match self.recovery.as_mut().map(|s| s.own(&self.platform, &id)).transpose() {
            Ok(owned) => owned,
            Err(why) => return self.hold(key, &id, &why),
        };
        let device = Device::new(id, Side::Back);
        if let Err(e) = VifInstance::<P>::listen(&device, &mut self.xs) {
            log.say(Level::Warn, &format_args!("cannot watch the front's state: {e}"));
            return;
        }
        let mut vif = BackVif::new(id.front, key.1, self.features.clone(), self.fallback);
        self.make_room(key);
        vif.limit_pages(self.pages_left(key));
        vif.limit_persistent(self.persistent_limit);
        vif.set_patience(self.patience);
        let control = self.recovery.as_mut().map(|s| s.control_page(&self.platform, &id));
        if let Some(page) = control.and_then(|page| log.failed(Level::Warn, page)?) {
            vif.keep_control(page);
        }
        if self.far.is_kernels(&id) {
            vif.take_from_kernel();
        }
        let mut bus = StoreBus { device: &device, xs: &mut self.xs };
        let left = match vif.inherit(&mut bus) {
            Ok(left) => left,
            Err(e) => {
                log.say(Level::Warn, &format_args!("cannot read what a predecessor left: {e}"));
                return;
            }
        };
        // First of all: what comes for the guest from here on waits at its place.
        let live = left == PreviousState::Connected && self.recovery.is_some();
        let plug = HotplugConfig::read(&device, &mut self.xs).map_err(|e| e.to_string()).and_then(|place| {
            HotplugState::begin(&mut *self.far, self.hotplug, &device, place, &mut vif, live)
        });
        let (plug, misplaced) = match plug {
            Ok((plug, notes)) => {
                notes.iter().for_each(|(level, text)| log.say(*level, text));
                (plug, None)
            }
            Err(why) => (HotplugState::Done, Some(why)),
        };
        if let (true, Some(why)) = (live, &misplaced) {
            // Its guest is connected, and would not come back from a close: whoever serves it next finds it as it is.
            let why = format!("{why}; it stays connected, for the next backend");
            return self.hold(key, &id, &why);
        }
        let mut bus = StoreBus { device: &device, xs: &mut self.xs };
        let taken = match (&left, &mut self.recovery) {
            (PreviousState::Connected, Some(recovery)) => {
                let mut redo = |queue, dir| {
                    log.failed(Level::Warn, recovery.redo_page(&self.platform, &id, queue, dir))?
                };
                vif.reattach(&self.platform, &mut bus, &mut redo)
            }
            _ => Ok(false),
        };
        if let Err(e) = &taken
            && e.is_too_early()
            && self.held.get(&key).is_none_or(|held| Instant::now() < held.until)
        {
            return self.hold(key, &id, e);
        }
        self.held.remove(&key);
        let live = matches!(taken, Ok(true));
        let mut served = VifInstance {
            device,
            vif,
            ports: Vec::new(),
            log,
            failed: None,
            faults: 0,
            throttled: 0,
            last_failure: None,
            reattached: live,
            connected_at: None,
            stalled: false,
            turn: Turn::default(),
            throttled_until: None,
            plug,
            _owned: owned,
        };
        match left {
            _ if live => {
                let had = served.vif.interrupted();
                served.say(Level::Info, &format_args!("taken up where a predecessor stopped; {had}"));
            }
            PreviousState::Closed(Some(why)) => {
                served.say(Level::Warn, &format_args!("a predecessor closed it: {why}"));
                served.failed = Some(why);
            }
            _ => served.say(Level::Info, &"found"),
        }
        self.vifs.insert(key, served);
        match taken {
            _ if let Some(why) = misplaced => self.fail(key, &why),
            Ok(true) => {
                self.connected(key);
                self.relive();
            }
            Ok(false) => {}
            Err(e) => self.fail(key, &format!("its live rings cannot be taken up: {e}")),
        }
    }

    /// Somebody else still has the vif: it is tried again for a second, and after that when the directory changes.
    pub(super) fn hold(&mut self, key: (u16, u32), id: &DeviceId, why: &dyn Display) {
        let first = Held { until: Instant::now() + DYING, given_up: false };
        let held = self.held.entry(key).or_insert(first);
        if !held.given_up && Instant::now() >= held.until {
            held.given_up = true;
            let log = self.logs.entry(key).or_insert_with(|| DeviceLog::new(*id));
            log.say(Level::Warn, &format_args!("not served: {why}"));
        }
        // Nobody listens to its front: what that writes is not to keep this process awake.
        if held.given_up {
            let _ = VifInstance::<P>::hush(&Device::new(*id, Side::Back), &mut self.xs); // xenstore is gone, then
        }
    }

    /// Tries again what a dying process still had. True: look again soon.
    pub(super) fn retry_held(&mut self) -> bool {
        let due: Vec<_> = self.held.iter().filter(|(_, h)| !h.given_up).map(|(key, _)| *key).collect();
        for &key in &due {
            self.find(key);
            if self.vifs.contains_key(&key) {
                self.step(key);
            }
        }
        !due.is_empty()
    }
}

/// What an event below our own directory means.
pub(super) enum Changed {
    /// A vif came or went, perhaps.
    Vifs,
    /// Written by us, or by a toolstack that announces the vif.
    State((u16, u32)),
    /// The toolstack's wish for one vif, or its script's word.
    Wish((u16, u32)),
    /// How much a guest may send.
    Rate((u16, u32)),
    /// A key that we, or the toolstack, write for others to read.
    Nothing,
}

pub(super) fn below_watch(event: &WatchEvent, own: DomId) -> Changed {
    // A front's key, of a vif that is not served, or not yet: its path is as the guest likes.
    if event.token != WATCH {
        return Changed::Nothing;
    }
    // Some xenstoreds name nodes from the root on.
    let home = path::home(own) + "/";
    let from_home = event.path.strip_prefix(&home).unwrap_or(&event.path);
    // A node above: all of it may have gone.
    let Some(below) = from_home.strip_prefix(WATCH) else { return Changed::Vifs };
    let mut parts = below.split('/').skip(1);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(front), Some(handle), Some(key)) => match (front.parse(), handle.parse()) {
            (Ok(front), Ok(handle)) if key == "online" || key == HOTPLUG_STATUS => {
                Changed::Wish((front, handle))
            }
            (Ok(front), Ok(handle)) if key == "state" => Changed::State((front, handle)),
            (Ok(front), Ok(handle)) if key == RATE => Changed::Rate((front, handle)),
            _ => Changed::Nothing,
        },
        _ => Changed::Vifs,
    }
}

/// The names in a directory; none when it is not there.
fn list<T: Transport>(xs: &mut Client<T>, path: &str) -> Result<Vec<String>, XsError> {
    match xs.directory(path) {
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        other => other,
    }
}
