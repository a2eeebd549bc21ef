//! One vif as the backend keeps it, and as it reports it.

use super::device_log::DeviceLog;
use crate::drivers::fair_scheduler::Turn;
use crate::drivers::net::port_provider::HotplugState;
use log::Level;
use pregrant::net::back::BackVif;
use pregrant::net::back::credit::BadRate;
use pregrant::net::back::vif::RATE;
use pregrant::net::features::REQUEST_MULTICAST;
use pregrant::net::stats::DirStats;
use pregrant::platform::Platform;
use pregrant::port::{FramePort, PortDrop};
use pregrant::xenbus::{Device, DeviceId, XenbusState};
use pregrant::xenstore::{Client, Transport, WatchEvent, XsError};
use std::any::Any;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// One vif as others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VifReport {
    /// Which.
    pub id: DeviceId,
    /// Our state.
    pub state: XenbusState,
    /// By queue: path and counters of TX, then of RX.
    pub queues: Vec<(&'static str, DirStats, &'static str, DirStats)>,
    /// Whether the guest takes frames: it has slots for them, or had not long ago.
    pub link: bool,
    /// How often it did not for so long that its link went down, in all of its connections.
    pub stalls: u64,
    /// How often its frames had to wait for credit, since it connected.
    pub credit_waits: u64,
    /// Staging lists that were refused: queue, direction, why.
    pub refused: Vec<(usize, &'static str, String)>,
    /// Why it was closed by us, if it was.
    pub failed: Option<String>,
    /// How often that happened.
    pub faults: u64,
    /// How often its front was not listened to for a while, since it asked for too many steps.
    pub throttled: u64,
    /// Lines that the log does not have of it, since it caused more than [`LINES_PER_DEVICE`](super::LINES_PER_DEVICE).
    pub lines_left_out: u64,
    /// Why it was the last time, also when it is connected again.
    pub last_failure: Option<String>,
    /// Whether a predecessor's live rings were taken up.
    pub reattached: bool,
    /// For how long its queues have been live.
    pub connected: Option<Duration>,
    /// What its ports dropped.
    pub port_drops: Vec<PortDrop>,
}

pub(super) struct VifInstance<P: Platform> {
    pub(super) device: Device,
    pub(super) vif: BackVif<P>,
    pub(super) ports: Vec<Box<dyn FramePort>>,
    pub(super) log: DeviceLog,
    pub(super) failed: Option<String>,
    pub(super) faults: u64,
    pub(super) throttled: u64,
    pub(super) last_failure: Option<String>,
    pub(super) reattached: bool,
    pub(super) connected_at: Option<Instant>,
    /// The log was told that its guest takes no frames.
    pub(super) stalled: bool,
    pub(super) turn: Turn,
    /// Its front is not listened to before.
    pub(super) throttled_until: Option<Instant>,
    pub(super) plug: HotplugState,
    /// The vif's lock, where there is one.
    pub(super) _owned: Option<Box<dyn Any>>,
}

impl<P: Platform> VifInstance<P> {
    /// Whether this vif's front changed a key that we watch.
    pub(super) fn is_about(&self, event: &WatchEvent) -> bool {
        self.device.is_peer_event(event) || self.device.is_peer_key_event(event, REQUEST_MULTICAST)
    }

    /// Asks for an event whenever the front changes its state or its wish, and now.
    pub(super) fn listen<T: Transport>(device: &Device, xs: &mut Client<T>) -> Result<(), XsError> {
        device.watch_peer(xs)?;
        device.watch_peer_key(xs, REQUEST_MULTICAST)
    }

    /// No more.
    pub(super) fn hush<T: Transport>(device: &Device, xs: &mut Client<T>) -> Result<(), XsError> {
        device.unwatch_peer(xs)?;
        device.unwatch_peer_key(xs, REQUEST_MULTICAST)
    }

    /// Tells the ports how the guest wants its frames spread, if that changed.
    pub(super) fn steer(&mut self) {
        if let Some(steering) = self.vif.new_steering() {
            for port in &mut self.ports {
                port.steer(steering.clone());
            }
        }
    }

    /// Tells of a rate that is none.
    pub(super) fn tell_rate(&mut self) {
        if let Some(text) = self.vif.bad_rate() {
            let text = format!("{}/{RATE} is {text:.40?}, {BadRate}", self.device.own_dir());
            self.say(Level::Warn, &text);
        }
    }

    /// A line in the log, as long as this vif has some left.
    pub(super) fn say(&self, level: Level, text: &dyn Display) {
        self.log.say(level, text);
    }
}
