//! The lifecycle of one device: connected, closed, removed, or failed by a fault of its guest.
//!
//! A failure closes that device alone, with a line that says why; the store has the same text.

use super::Backend;
use super::devices::Instance;
use super::discovery::keeper;
use super::pages::PageBudget;
use super::queues::Then;
use super::stage::Stage;
use super::watch::watch_of;
use crate::drivers::device_class::{HotplugStep, RingFault};
use log::Level;
use pregrant::platform::Platform;
use pregrant::xenbus::back::{BackStep, Begin, HOTPLUG_STATUS};
use pregrant::xenbus::bus::{DeviceBus, StoreBus};
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::xenbus::{DeviceError, DeviceId, XenbusState};
use pregrant::xenstore::Transport;
use std::fmt::Display;
use std::time::Instant;

/// A fault in the ring of this device.
pub(super) type Fault = (DeviceId, RingFault);

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Continues the hotplug scripts that this process runs. Removes the directory of a device
    /// whose hotplug is undone.
    pub(super) fn turn_plugs(&mut self) {
        if !self.polls.hotplugs {
            return;
        }
        let mut out = Vec::new();
        for served in self.devices.iter_mut() {
            let id = served.device.id();
            let Some(script) = served.served.hotplug().filter(|script| script.is_pending()) else { continue };
            match script.turn(&id) {
                None => {}
                Some(HotplugStep::In(status, why)) => {
                    if let Some(why) = why {
                        let text = format_args!("hotplug failed, so the frontend is not connected: {why}");
                        served.say(Level::Warn, &text);
                    }
                    // Our own watch on the directory brings the step that follows.
                    if let Err(e) = served.device.set(&mut self.xs, HOTPLUG_STATUS, status) {
                        served.say(Level::Warn, &e);
                    }
                }
                Some(HotplugStep::Out(why)) => {
                    if let Some(why) = why {
                        served.say(Level::Warn, &why);
                    }
                    out.push(id);
                }
            }
        }
        for id in out {
            if self.is_remade(&id) {
                self.remove(id);
                self.find(id);
                self.step(id);
            } else {
                self.remove_directory(&id);
            }
        }
        self.polls.hotplugs = self.devices.iter_mut().any(Instance::has_hotplug);
    }

    /// True if the toolstack has created another device in the directory of one that had ended.
    fn is_remade(&mut self, id: &DeviceId) -> bool {
        let Some(served) = self.devices.get(id) else { return false };
        let own = StoreBus { device: &served.device, xs: &mut self.xs }.own_state();
        matches!(own, Ok(XenbusState::Initialising))
    }

    /// Makes one device's next step. A failure closes that device only.
    pub(super) fn step(&mut self, id: DeviceId) {
        let Some(came_to) = self.step_of_stage(id) else { return };
        match came_to {
            Ok(BackStep::Connected) => self.connected(id, Begin::Fresh),
            Ok(BackStep::Closed) => {
                if self.closed(id) {
                    self.say(id, Level::Info, &"closed: the frontend has disconnected it");
                }
                self.share_pages(id.front);
            }
            // The front may have sent requests.
            Ok(BackStep::Waiting) => self.pool.wake_queues(id),
            Ok(BackStep::Closing) => {
                self.say(
                    id,
                    Level::Info,
                    &"the frontend is closing the device; serving it until that is done",
                );
            }
            Ok(BackStep::Recall) => {
                if self.has_returned(&id, Then::Step) {
                    self.step(id);
                }
                return;
            }
            Ok(BackStep::Removed) => self.over(id),
            Err(e) if e.is_busy() => return self.wait_for_busy(id, e),
            Err(e) => return self.failed_to_connect(id, e),
        }
        if let Some(backing) = self.devices.get_mut(&id).and_then(|served| served.stage.backing_mut()) {
            backing.end_busy();
        }
        self.update_live();
    }

    /// Makes the handshake's steps that the device's stage allows. None: there are none now.
    fn step_of_stage(&mut self, id: DeviceId) -> Option<Result<BackStep, ConnectError<DeviceError>>> {
        let room = match self.devices.get(&id)?.stage {
            Stage::Waiting(_) | Stage::Failed { .. } => self.room_for(&id),
            Stage::Connected(_) => PageBudget::default(),
        };
        let served = self.devices.get_mut(&id)?;
        // A device that is being unplugged is over, whatever is made in its place.
        if served.served.hotplug().is_some_and(|script| script.is_undone()) {
            return None;
        }
        let back = served.served.back_mut();
        match &mut served.stage {
            Stage::Waiting(backing) | Stage::Failed { backing, .. } => {
                back.limit_pages(room.limit, room.lasting);
                back.pause(backing.is_paused(Instant::now()));
            }
            Stage::Connected(connected) if connected.queues.is_draining() => {
                connected.queues.wait_with(Then::Step);
                return None;
            }
            Stage::Connected(_) => back.pause(false),
        }
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        let mut kept = keeper(&mut self.config.recovery, &self.platform, id, served.log.clone());
        let came_to = back.step(&self.platform, &mut bus, &mut kept);
        // The step may have closed one connection before the next one failed. Then the device
        // waits, or is tried again, as if it was its first connection.
        if came_to.is_err() && served.is_connected() && !served.is_stage_right() {
            served.stage.close();
        }
        Some(came_to)
    }

    /// Called when the front is no longer connected. Returns false if there is no such device.
    fn closed(&mut self, id: DeviceId) -> bool {
        let Some(served) = self.devices.get_mut(&id) else { return false };
        served.stage.close();
        served.served.closed(&id, &served.log);
        true
    }

    /// Called when the front is gone, or `online` is 0. The device stays closed until the toolstack
    /// removes its directory and `scan` notices that. If the device was forgotten now, it would be
    /// found again at once.
    fn over(&mut self, id: DeviceId) {
        self.closed(id);
        if self.config.removes
            && let Some(served) = self.devices.get_mut(&id)
        {
            if served.served.hotplug().is_some_and(|script| script.begin_undo()) {
                self.polls.hotplugs = true;
            } else {
                self.remove_directory(&id);
            }
        }
        self.share_pages(id.front);
    }

    /// Writes a line to the log of a device that is served.
    fn say(&self, id: DeviceId, level: Level, text: &dyn Display) {
        if let Some(served) = self.devices.get(&id) {
            served.say(level, text);
        }
    }

    /// Called when a device's step, or its connect, failed.
    pub(super) fn failed_to_connect(&mut self, id: DeviceId, e: ConnectError<DeviceError>) {
        let text = match e {
            // The toolstack removed the directory before this step, which is not a fault.
            ConnectError::Keys(_) if self.is_gone(&id) => {
                if self.has_returned(&id, Then::Remove) {
                    self.remove(id);
                }
                return;
            }
            ConnectError::Keys(e) => e.to_string(),
            e if e.is_of_ended_guest() => return self.guest_has_ended(id, &e),
            e => {
                let (is_of_backing, why) = (e.is_of_backing(), e.to_string());
                let text = format!("{}: {why}", id.front_dir());
                if is_of_backing
                    && let Some(served) = self.devices.get_mut(&id)
                    && let Some(backing) = served.stage.backing_mut()
                {
                    backing.fails(Instant::now(), &why, true);
                    let is_news = backing.is_news(&why);
                    self.fail_with(id, &text, is_news.then_some(Level::Warn));
                    return self.update_live();
                }
                text
            }
        };
        self.fail(id, &text);
        self.update_live();
    }

    /// Called when a device is live: makes its ports, informs its front, and logs it.
    pub(super) fn connected(&mut self, id: DeviceId, begin: Begin) {
        if let Some(served) = self.devices.get_mut(&id) {
            served.stage.connect(Instant::now());
        }
        self.share_pages(id.front);
        let Some(served) = self.devices.get_mut(&id) else { return };
        served.served.connected(begin, &served.device, &served.log);
        // Only now: frames that come at once for it, or from it, by another worker, find its ports.
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        match served.served.back_mut().say_connected(&mut bus) {
            Ok(()) => self.hand_out_queues(&id),
            Err(e) => self.failed_to_connect(id, ConnectError::Keys(e)),
        }
    }

    /// Called when the toolstack has changed one of the class's own keys.
    pub(super) fn own_key_changed(&mut self, id: &DeviceId, key: &str) {
        let Some(served) = self.devices.get_mut(id) else { return };
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        if let Err(e) = served.served.back_mut().own_key_changed(&self.platform, &mut bus, key) {
            served.say(Level::Warn, &e);
        }
        served.served.own_key_changed(&served.device, &served.log);
        if let Some(backing) = served.stage.backing_mut() {
            // The backing may be a different one now.
            backing.changed(Instant::now());
        }
        self.pool.wake_queues(*id);
    }

    /// Removes a device's directory, and the guest's if no other device is in it. `scan` notices
    /// later.
    fn remove_directory(&mut self, id: &DeviceId) {
        let Some(served) = self.devices.get(id) else { return };
        let guest = format!("{}/{}", watch_of(id.class), id.front.0);
        let gone =
            self.xs.rm(&format!("{guest}/{}", id.handle)).and_then(|()| match self.xs.directory(&guest) {
                Ok(left) if left.is_empty() => self.xs.rm(&guest),
                _ => Ok(()),
            });
        if let Err(e) = gone
            && !e.is_not_found()
        {
            served.say(Level::Info, &format_args!("cannot remove its xenstore directory: {e}"));
        }
    }

    /// True if a device's own directory does not exist any more.
    fn is_gone(&mut self, id: &DeviceId) -> bool {
        let Some(served) = self.devices.get(id) else { return true };
        matches!(self.xs.read_if_there(served.device.own_dir()), Ok(None))
    }

    /// Closes one device because of something that its guest did.
    #[cold]
    pub(super) fn fail(&mut self, id: DeviceId, why: &dyn Display) {
        self.fail_with(id, why, Some(Level::Warn));
    }

    /// Closes a device whose guest has ended, which is not a fault.
    pub(super) fn guest_has_ended(&mut self, id: DeviceId, why: &dyn Display) {
        self.fail_with(id, why, Some(Level::Info));
    }

    /// Closes the device as [`fail`](Self::fail) does, with a log line at this level if the reason
    /// is new.
    pub(super) fn fail_with(&mut self, id: DeviceId, why: &dyn Display, news: Option<Level>) {
        if !self.has_returned(&id, Then::Fail(news.unwrap_or(Level::Warn), why.to_string())) {
            return;
        }
        let Some(served) = self.devices.get_mut(&id) else { return };
        let text = format!(
            "{why}. To use the {} again, close its front and connect it again, or detach and attach it",
            id.class.name()
        );
        if let Some(level) = news {
            served.say(level, &format_args!("closed: {text}"));
        }
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        if let Err(e) = served.served.back_mut().close(&self.platform, &mut bus, Some(&text)) {
            // The directory may be gone with the guest; what matters is that nothing is mapped any
            // more.
            served.say(Level::Info, &e);
        }
        served.served.closed(&id, &served.log);
        served.history.failures += 1;
        served.history.last_failure = Some(text.clone());
        served.stage.fail(text);
        self.share_pages(id.front);
        self.update_live();
    }

    /// Closes a device because of a fault in its ring, if there is one. Returns true if there was.
    pub(super) fn fault(&mut self, fault: Option<Fault>) -> bool {
        let Some((id, RingFault { key, fault })) = fault else { return false };
        self.run_throttled(id, |backend| {
            let at = id.front_dir();
            backend
                .fail(id, &format_args!("{} broke the protocol on its ring {at}/{key}: {fault}", id.front));
        });
        true
    }

    pub(super) fn remove(&mut self, id: DeviceId) {
        if let Some(mut served) = self.devices.remove(&id) {
            let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
            // its directory may be gone
            let _ = served.served.back_mut().close(&self.platform, &mut bus, None);
            let _ = served.unwatch(&mut self.xs);
            if let Some(recovery) = &mut self.config.recovery {
                recovery.forget(&self.platform, &id);
            }
            let Instance { log, served, .. } = served;
            drop(served);
            let class = self.classes.iter().find(|c| c.rules().class == id.class);
            let is_ending = class.and_then(|class| class.remote()).is_some_and(|mut remote| {
                log.failed(Level::Warn, remote.removed(&id));
                remote.is_ending(&id)
            });
            self.devices.removed += 1;
            if !self.devices.iter().any(|s| s.device.id().front == id.front) {
                self.throttles.forget(id.front);
            }
            log.say(Level::Info, &"removed");
            self.logs.removed(&id, log, is_ending);
            self.share_pages(id.front);
        }
        self.update_live();
    }

    /// Logs the failures of classes' remote sides, within the budgets of their devices, also of
    /// devices that are gone.
    pub(super) fn report_failures(&mut self) {
        let remotes = || self.classes.iter().filter_map(|class| class.remote());
        for (id, why) in remotes().flat_map(|mut remote| remote.failures()) {
            self.logs.of_any(id).say(Level::Warn, &why);
        }
        self.logs.retain_ending(|id| remotes().any(|mut remote| remote.is_ending(id)));
    }

    pub(super) fn update_live(&mut self) {
        self.control_rings.update_live(&self.platform, &mut self.devices);
        self.even_out();
    }
}
