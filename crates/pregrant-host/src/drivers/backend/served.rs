//! One vif as the backend keeps it, and as it reports it.

use crate::drivers::far_side::Plug;
use crate::drivers::turns::Turn;
use log::{Level, log};
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

/// Lines that one vif can cause in the log; then it is quiet.
pub const LINES_PER_VIF: u32 = 16;
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
    pub rests: u64,
    /// Why it was the last time, also when it is connected again.
    pub last_failure: Option<String>,
    /// Whether a predecessor's live rings were taken up.
    pub taken_up: bool,
    /// For how long its queues have been live.
    pub connected: Option<Duration>,
    /// What its ports dropped.
    pub port_drops: Vec<PortDrop>,
}

pub(super) struct Served<P: Platform> {
    pub(super) device: Device,
    pub(super) vif: BackVif<P>,
    pub(super) ports: Vec<Box<dyn FramePort>>,
    pub(super) lines: u32,
    pub(super) failed: Option<String>,
    pub(super) faults: u64,
    pub(super) rests: u64,
    pub(super) last_failure: Option<String>,
    pub(super) taken_up: bool,
    pub(super) connected_at: Option<Instant>,
    /// The log was told that its guest takes no frames.
    pub(super) stalled: bool,
    pub(super) turn: Turn,
    /// Its front is not listened to before.
    pub(super) rests_until: Option<Instant>,
    pub(super) plug: Plug,
    /// The vif's lock, where there is one.
    pub(super) _owned: Option<Box<dyn Any>>,
}

impl<P: Platform> Served<P> {
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
    pub(super) fn say(&mut self, level: Level, text: &dyn Display) {
        self.lines += 1;
        if self.lines < LINES_PER_VIF {
            log!(level, "{}: {text}", self.device.id());
        } else if self.lines == LINES_PER_VIF {
            log!(level, "{}: {text} (the last line of this vif)", self.device.id());
        }
    }
}
