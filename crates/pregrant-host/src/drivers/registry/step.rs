//! What becomes of one vif: connected, closed, removed, or failed for something that its guest did.
//!
//! A failure closes that vif alone, with a line that says why; the store has the same text.

use super::device_log::DeviceLog;
use super::{Backend, VifInstance, WATCH};
use crate::drivers::net::port_provider::{Hotplug, HotplugState, PlugStep, PortProvider, unplugged};
use log::Level;
use pregrant::PeerFault;
use pregrant::net::back::BackStep;
use pregrant::net::back::refusal::ConnectError;
use pregrant::net::back::vif::HOTPLUG_STATUS;
use pregrant::net::features::{REQUEST_MULTICAST, queue_prefix};
use pregrant::platform::Platform;
use pregrant::xenbus::bus::{DeviceBus, StoreBus};
use pregrant::xenbus::{Device, XenbusState};
use pregrant::xenstore::Transport;
use std::fmt::Display;
use std::time::Instant;

/// A vif's ring that broke the protocol: which vif, queue, direction.
pub(super) type Fault = ((u16, u32), usize, &'static str, PeerFault);

impl<P: Platform, T: Transport> Backend<P, T> {
    /// Goes on with what is being plugged in by this process, or out; the directory of a vif that is out goes.
    pub(super) fn turn_plugs(&mut self) {
        let over = |served: &mut VifInstance<P>, far: &mut dyn PortProvider| {
            served.plug.turn(far, &served.device.id())
        };
        let mut out = Vec::new();
        for (key, served) in self.vifs.iter_mut().filter(|(_, s)| s.plug.is_pending()) {
            match over(served, &mut *self.far) {
                None => {}
                Some(PlugStep::In(status, why)) => {
                    if let Some(why) = why {
                        let text = format_args!("not plugged in, so its front is not connected: {why}");
                        served.say(Level::Warn, &text);
                    }
                    // Our own watch on the directory brings the step that follows.
                    if let Err(e) = served.device.set(&mut self.xs, HOTPLUG_STATUS, status) {
                        served.say(Level::Warn, &e);
                    }
                }
                Some(PlugStep::Out(why)) => {
                    if let Some(why) = why {
                        served.say(Level::Warn, &why);
                    }
                    out.push(*key);
                }
            }
        }
        for key in out {
            if self.is_made_anew(key) {
                self.remove(key);
                self.find(key);
                self.step(key);
            } else {
                self.remove_directory(key);
            }
        }
    }

    /// Whether the toolstack has made another vif in the directory of one that was over, before it went.
    fn is_made_anew(&mut self, key: (u16, u32)) -> bool {
        let Some(served) = self.vifs.get(&key) else { return false };
        let own = StoreBus { device: &served.device, xs: &mut self.xs }.own_state();
        matches!(own, Ok(XenbusState::Initialising))
    }

    /// Takes one vif's steps; a failure closes that vif alone.
    pub(super) fn step(&mut self, key: (u16, u32)) {
        self.make_room(key);
        let pages_left = self.pages_left(key);
        // What is being unplugged is over, whatever is made in its place.
        let Some(served) = self.vifs.get_mut(&key).filter(|s| !s.plug.is_out()) else { return };
        let id = served.device.id();
        let peer_dir = served.device.peer_dir().to_owned();
        let log = served.log.clone();
        let mut redo = |queue, dir| {
            let page = self.recovery.as_mut()?.redo_page(&self.platform, &id, queue, dir);
            log.failed(Level::Warn, page)?
        };
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        served.vif.limit_pages(pages_left);
        match served.vif.step(&self.platform, &mut bus, &mut redo) {
            Ok(BackStep::Connected) => self.connected(key),
            Ok(BackStep::Closed) => {
                served.ports.clear();
                served.log.failed(Level::Info, self.far.closed(&id));
                served.say(Level::Info, &"closed");
            }
            Ok(BackStep::Waiting) => {}
            // Its front is gone, or `online` is 0: it stays closed until the toolstack removes its directory, and `scan`
            // misses it. To forget it now would be to find it again at once.
            Ok(BackStep::Removed) => {
                served.ports.clear();
                served.log.failed(Level::Info, self.far.closed(&id));
                match self.hotplug {
                    _ if !self.removes => {}
                    Hotplug::Own => served.plug = HotplugState::Undone,
                    _ => self.remove_directory(key),
                }
            }
            // The toolstack was faster than our step: no fault of anybody's.
            Err(ConnectError::Keys(_)) if self.is_gone(key) => return self.remove(key),
            Err(e @ ConnectError::Keys(_)) => self.fail(key, &e),
            Err(e) => {
                let text = format!("{peer_dir}: {e}");
                self.fail(key, &text);
            }
        }
        self.relive();
    }

    /// The queues of a vif are live: gives them ports, and tells the log.
    pub(super) fn connected(&mut self, key: (u16, u32)) {
        self.share_pages(key);
        let Some(served) = self.vifs.get_mut(&key) else { return };
        let id = served.device.id();
        let queues = served.vif.nr_queues();
        let ports = self.far.connected(&id, queues, served.vif.front_offloads());
        let ports = ports.map_err(|why| format!("its frames are dropped: {why}"));
        served.ports = served.log.failed(Level::Warn, ports).unwrap_or_else(|| unplugged(queues));
        served.failed = None;
        served.steer();
        served.connected_at = Some(Instant::now());
        served.stalled = false;
        served.tell_rate();
        let refused: Vec<_> =
            served.vif.refused_lists().iter().map(|(q, d, why)| (*q, *d, why.to_string())).collect();
        for (queue, dir, why) in refused {
            let at = front_key(&served.device, queue, queues, dir, "data-ref0");
            let line = format!(
                "the staging list {at} is not used, queue {queue} goes on with ordinary grants: {why}; \
                 correct the front's list and connect it again"
            );
            served.say(Level::Warn, &line);
        }
        let (tx, rx) = served.vif.path_names(0);
        served.say(Level::Info, &format_args!("connected, {queues} queue(s), TX {tx}, RX {rx}"));
    }

    /// Takes a vif's own directory away, and the guest's if it has no other. `scan` misses it then.
    fn remove_directory(&mut self, key: (u16, u32)) {
        let Some(served) = self.vifs.get(&key) else { return };
        let guest = format!("{WATCH}/{}", key.0);
        let gone = self.xs.rm(&format!("{guest}/{}", key.1)).and_then(|()| match self.xs.directory(&guest) {
            Ok(left) if left.is_empty() => self.xs.rm(&guest),
            _ => Ok(()),
        });
        if let Err(e) = gone
            && !e.is_not_found()
        {
            served.say(Level::Info, &format_args!("its directory stays behind: {e}"));
        }
    }

    /// Whether a vif's own directory is not there any more.
    pub(super) fn is_gone(&mut self, key: (u16, u32)) -> bool {
        let Some(served) = self.vifs.get(&key) else { return true };
        matches!(self.xs.read_if_there(served.device.own_dir()), Ok(None))
    }

    /// Closes one vif for something that its guest did.
    #[cold]
    pub(super) fn fail(&mut self, key: (u16, u32), why: &dyn Display) {
        let Some(served) = self.vifs.get_mut(&key) else { return };
        let text = format!(
            "{why}. To use the vif again, close its front and connect it again, or detach and attach it"
        );
        served.say(Level::Warn, &format_args!("closed: {text}"));
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        if let Err(e) = served.vif.close(&self.platform, &mut bus, Some(&text)) {
            // The directory may be gone with the guest; what matters is that nothing is mapped any more.
            served.say(Level::Info, &e);
        }
        served.ports.clear();
        served.log.failed(Level::Info, self.far.closed(&served.device.id()));
        served.faults += 1;
        served.last_failure = Some(text.clone());
        served.failed = Some(text);
        self.relive();
    }

    /// Closes one vif for what its ring showed.
    #[cold]
    pub(super) fn fault(&mut self, fault: Fault) {
        self.run_throttled(fault.0, |backend| backend.close_for(fault));
    }

    fn close_for(&mut self, (key, queue, dir, fault): Fault) {
        let Some(served) = self.vifs.get(&key) else { return };
        let at = front_key(&served.device, queue, served.vif.nr_queues(), dir, "ring-ref");
        let text = format!("{} broke the protocol on its ring {at}: {fault}", served.device.id().front);
        self.fail(key, &text);
    }

    pub(super) fn remove(&mut self, key: (u16, u32)) {
        if let Some(mut served) = self.vifs.remove(&key) {
            let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
            let _ = served.vif.close(&self.platform, &mut bus, None); // its directory may be gone
            let _ = served.device.unwatch_peer(&mut self.xs);
            let _ = served.device.unwatch_peer_key(&mut self.xs, REQUEST_MULTICAST);
            if let Some(recovery) = &mut self.recovery {
                recovery.forget(&self.platform, &served.device.id());
            }
            served.ports.clear();
            served.log.failed(Level::Warn, self.far.removed(&served.device.id()));
            self.removed += 1;
            if self.vifs.range((key.0, 0)..=(key.0, u32::MAX)).next().is_none() {
                self.throttle.remove(&key.0);
            }
            served.say(Level::Info, &"removed");
            if self.far.is_ending(&served.device.id()) {
                self.ending.push(served.log.clone());
            } else {
                served.log.end();
            }
            self.logs.remove(&key);
        }
        self.relive();
    }

    /// Writes what the far side says of vifs that it was not asked about, at their expense, also where they are gone.
    pub(super) fn tell_failures(&mut self) {
        for (id, why) in self.far.failures() {
            let log = self.ending.iter().find(|log| log.id() == id);
            let log = log.or_else(|| self.logs.get(&(id.front.0, id.handle))).cloned();
            log.unwrap_or_else(|| DeviceLog::new(id)).say(Level::Warn, &why);
        }
        let far = &self.far;
        self.ending.retain(|log| {
            let stays = far.is_ending(&log.id());
            if !stays {
                log.end();
            }
            stays
        });
    }

    pub(super) fn relive(&mut self) {
        self.live = self.vifs.iter().filter(|(_, s)| s.vif.nr_queues() > 0).map(|(k, _)| *k).collect();
    }
}

/// Where a front has the key `{dir}-{what}` of queue `i` of `n`; the control ring, `ctrl`, is of no queue.
pub(super) fn front_key(device: &Device, i: usize, n: usize, dir: &str, what: &str) -> String {
    let at = if dir == "ctrl" { String::new() } else { queue_prefix(i, n) };
    format!("{}/{at}{dir}-{what}", device.peer_dir())
}
