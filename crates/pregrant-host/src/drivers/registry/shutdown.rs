//! Ends a backend: its devices are closed, or left to a successor.

use super::Backend;
use super::devices::Instance;
use log::{Level, log};
use pregrant::platform::Platform;
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::back::Drained;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenstore::Transport;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The time that fronts have to follow when all devices are closed.
const FRONTS_FOLLOW: Duration = Duration::from_secs(1);

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Stops at once without closing devices: answers the requests that were taken, delivers the
    /// frames that ports hold as long as there are RX slots, releases everything, and leaves each
    /// device in its state for a successor.
    #[inline(never)]
    pub fn detach(&mut self) -> Drained {
        self.reclaim_all();
        let mut drained = Drained::default();
        for served in self.devices.iter_mut() {
            drained += served.served.detach(&self.platform);
        }
        self.ended(self.devices.iter().count(), "left to a successor", drained);
        self.devices.iter().for_each(|served| served.log.end());
        drop(self.devices.take_all());
        self.update_live();
        drained
    }

    /// Closes all connected devices in good order: drains them as [`detach`](Self::detach) does,
    /// sets state 5, waits for their fronts (a second at most), sets state 6. Other devices are not
    /// changed. A disk whose front does not follow is not changed either: it is in use, and its
    /// guest would lose data.
    #[inline(never)]
    pub fn close_all(&mut self) -> Drained {
        self.reclaim_all();
        let (mut drained, mut keeps_records) = (Drained::default(), BTreeSet::new());
        for served in self.devices.iter_mut() {
            if served.served.backing().is_some_and(|backing| backing.give_up()) {
                keeps_records.insert(served.device.id());
            }
            drained += served.served.detach(&self.platform);
            let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
            if let Err(e) = served.served.back_mut().end_detached(&mut bus) {
                served.say(Level::Info, &e); // its directory may be gone
            }
            served.stage.close();
        }
        self.update_live();
        self.wake_all();
        let closing = |s: &Instance<P, T>| s.served.back().state() == XenbusState::Closing;
        let mut n = self.devices.iter().filter(|s| closing(s)).count();
        let until = Instant::now() + FRONTS_FOLLOW;
        while self.devices.iter().any(closing) && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            // Without a connection to xenstore no front can follow.
            let Ok(event) = self.xs.next_event(Some(left)) else { break };
            let Some(event) = event else { continue };
            for served in self.devices.iter_mut().filter(|s| s.device.is_peer_event(&event)) {
                let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
                if let Err(e) = served.served.back_mut().step(&self.platform, &mut bus, &mut |_, _| None) {
                    served.say(Level::Info, &e);
                }
            }
        }
        let stays = |s: &Instance<P, T>| closing(s) && s.served.back().rules().serves_closing;
        n -= self.devices.iter().filter(|s| stays(s)).count();
        self.ended(n, "closed", drained);
        for mut served in self.devices.take_all() {
            let id = served.device.id();
            if stays(&served) {
                let text =
                    "the guest has not closed this disk and may use it: left open for the next backend";
                served.say(Level::Warn, &text);
                served.log.end();
                // the connection ends with this process
                let _ = served.device.unwatch_peer(&mut self.xs);
                continue;
            }
            if closing(&served) {
                served.say(Level::Info, &"closed, although its frontend's state did not follow");
                let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
                let _ = served.served.back_mut().close(&self.platform, &mut bus, None); // as above
            }
            served.log.end();
            let _ = served.device.unwatch_peer(&mut self.xs);
            if let Some(recovery) = &mut self.config.recovery
                && !keeps_records.contains(&id)
            {
                recovery.forget(&self.platform, &id);
            }
        }
        drained
    }

    pub(super) fn ended(&mut self, n: usize, how: &str, Drained { delivered, lost }: Drained) {
        self.report_failures();
        for log in self.logs.take_ending() {
            log.say(Level::Warn, &"exiting before the device's hotplug script (offline) has finished");
            log.end();
        }
        let level = if lost > 0 { Level::Warn } else { Level::Info };
        // LOG: once, at this process' end.
        log!(
            level,
            "{n} device(s) {how}; delivered the last {delivered} frame(s) and response(s) to guests, lost {lost}"
        );
    }
}
