//! A class of devices in a backend: how its devices are made, and the calls that each answers.
//!
//! ```text
//!   DeviceClass    one for each class: makes its devices, and has what they share
//!   RemoteSide     the remote side of them all: a switch, taps, scripts that run
//!   ServedDevice   one for each device: its handshake (AnyBack) joined with its port or image
//!     parts        what only some devices have, each handed over by a method that says None where
//!                  there is none: ControlRing, HotplugScript, DeviceBacking, PeriodicCheck
//!   ServedQueue    one for each queue of a connected device; a worker has it
//! ```
//! The registry calls all but the last, in the control thread, when a device connects, steps or
//! has an event. A worker calls queues.
//!
//! `examples/device_class` is a class, to be copied.
//!
//! What a guest may do: see each class. Lines that a guest can cause go through the [`DeviceLog`].

mod any_back;
mod served_queue;

pub use any_back::AnyBack;
pub use served_queue::{RingFault, ServedQueue};

use super::device_log::DeviceLog;
use pregrant::latency::LatencyFigures;
use pregrant::platform::Platform;
use pregrant::units::EvtchnPort;
use pregrant::xenbus::back::{Begin, Drained, KeptMemory};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::{ClassRules, Device, DeviceError, DeviceId};
use pregrant::xenstore::{Client, Transport};
use std::any::Any;
use std::cell::RefMut;
use std::time::Duration;

/// Lines for the log about a device.
pub type Notes = Vec<(log::Level, String)>;

/// One class of devices in a backend.
pub trait DeviceClass<P: Platform, T: Transport + 'static>: Any {
    /// Its name, the keys that may change, and when its devices connect and close.
    fn rules(&self) -> ClassRules;
    /// Whether this device must be served, if there is one.
    fn serves(&self, front: u16, handle: u32) -> bool {
        let _ = (front, handle);
        true
    }
    /// Makes a device that was found. `kept` is memory of it that outlives the process.
    fn make(&mut self, id: &DeviceId, kept: KeptMemory<'_>) -> Box<dyn ServedDevice<P, T>>;
    /// The remote side of its devices, which outlives them; None: there is none.
    fn remote(&self) -> Option<RefMut<'_, dyn RemoteSide>> {
        None
    }
    /// The part that keeps guests' traffic while a device comes from a predecessor; None: nothing
    /// comes for a guest before its device is here.
    fn takeover(&mut self) -> Option<&mut dyn Takeover<T>> {
        None
    }
}

/// A class whose devices have traffic queued for their guests while a predecessor's device is
/// taken over.
pub trait Takeover<T: Transport + 'static> {
    /// Whether another driver serves the device's guest until this process makes its port: then it
    /// is made at the last moment, and the rings are taken up right after.
    fn is_served_until_placed(&self, id: &DeviceId) -> bool;
    /// A device was found that a predecessor may have left connected, and is about to be taken up.
    /// Queue traffic for its guest from now on. The device is not this process' yet; errors are
    /// reported when it is placed.
    fn reserve(&mut self, device: &Device, xs: &mut Client<T>);
    /// The device is connected, or was not taken up after all: drops what was
    /// [reserved](Self::reserve) and is not in use. Returns how many queued frames are lost with
    /// it.
    fn release(&mut self, id: &DeviceId) -> usize;
}

/// The remote side of all devices of a class (taps, scripts that run), by the calls that belong to
/// no present device. One that wraps another returns it from [`inner_remote`](Self::inner_remote),
/// which then answers the calls that the wrapper does not.
pub trait RemoteSide {
    /// The one that this one wraps: it answers the calls that this one does not.
    fn inner_remote(&mut self) -> Option<&mut dyn RemoteSide> {
        None
    }
    /// A device is gone that this process has not served, or serves still: remove all of its
    /// state.
    ///
    /// # Errors
    /// In words for the log: what could not be removed.
    fn removed(&mut self, id: &DeviceId) -> Result<(), String> {
        self.inner_remote().map_or(Ok(()), |inner| inner.removed(id))
    }
    /// Whether work for a device that is gone is still under way; [`failures`](Self::failures) may
    /// report it.
    fn is_ending(&mut self, id: &DeviceId) -> bool {
        self.inner_remote().is_some_and(|inner| inner.is_ending(id))
    }
    /// Failures since the last call, for the log: of devices that are there, and of those that
    /// [end](Self::is_ending).
    fn failures(&mut self) -> Vec<(DeviceId, String)> {
        self.inner_remote().map_or_else(Vec::new, |inner| inner.failures())
    }
    /// When it wants another [`turn`](Self::turn), from now, though nothing wakes for it. None:
    /// never.
    fn due(&mut self) -> Option<Duration> {
        self.inner_remote()?.due()
    }
    /// Between batches, once in a while, and before sleeping. True: something has come that was
    /// not checked, so do not sleep.
    fn turn(&mut self) -> bool {
        self.inner_remote().is_some_and(|inner| inner.turn())
    }
}

/// The measurements of a class for a device, beside those of any device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Its kind and service, in words. Empty: none.
    pub description: String,
    /// Counters that only grow, since it connected.
    pub counters: Vec<(&'static str, u64)>,
    /// Gauges: as of now.
    pub gauges: Vec<(&'static str, u64)>,
    /// Its requests, by what they ask for.
    pub operations: Vec<Operation>,
}

/// Requests that ask for the same, since the device connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operation {
    /// What they ask for.
    pub name: &'static str,
    /// Requests that were done.
    pub requests: u64,
    /// Their bytes; 0 where no data travels.
    pub bytes: u64,
    /// How long they took, including those that failed.
    pub latency: LatencyFigures,
}

/// One device that is served.
pub trait ServedDevice<P: Platform, T: Transport + 'static>: Any {
    /// Its handshake.
    fn back(&self) -> &dyn AnyBack<P, T>;
    /// The same, to take its steps.
    fn back_mut(&mut self) -> &mut dyn AnyBack<P, T>;
    /// Makes its port, or checks its image, before its front sees anything; or finds it again,
    /// where a predecessor left the device connected (`live`). May be called again.
    ///
    /// # Errors
    /// In words for the log and the store. The device is not served.
    fn place(&mut self, device: &Device, xs: &mut Client<T>, live: bool) -> Result<Notes, String>;
    /// It is connected, with new rings or a predecessor's: makes what its queues need, and logs
    /// how it is connected; [`log_reattached`] comes first where the rings are a predecessor's.
    fn connected(&mut self, begin: Begin, device: &Device, log: &DeviceLog);
    /// It is connected no longer.
    fn closed(&mut self, id: &DeviceId, log: &DeviceLog);
    /// Stops in good order without closing ([`Back::detach`](pregrant::xenbus::Back::detach)).
    fn detach(&mut self, p: &P) -> Drained;
    /// Gives the queues of a device that has just connected to the thread that serves them, in
    /// their order. While they are away its handshake says so
    /// ([`Connection::HandedOut`](pregrant::xenbus::back::Connection)).
    fn hand_out_queues(&mut self) -> Vec<Box<dyn ServedQueue<P>>>;
    /// All of them come back, in their order, with event channels that are bound to this handle.
    fn take_back_queues(&mut self, queues: Vec<Box<dyn ServedQueue<P>>>);
    /// One of the class's own keys changed, and the handshake has read it: logs what follows.
    fn own_key_changed(&mut self, device: &Device, log: &DeviceLog);
    /// Its part of the status beside that of any device.
    fn figures(&self) -> Figures;

    /// The part for a ring that belongs to no queue.
    fn control_ring(&mut self) -> Option<&mut dyn ControlRing<P>> {
        None
    }
    /// The part for hotplug that this process does itself.
    fn hotplug(&mut self) -> Option<&mut dyn HotplugScript> {
        None
    }
    /// The part for a backing that may be absent, in use or slow.
    fn backing(&mut self) -> Option<&mut dyn DeviceBacking<P, T>> {
        None
    }
    /// The part for what changes without an event; None while there is nothing to check. The
    /// device is connected.
    fn periodic_check(&mut self) -> Option<&mut dyn PeriodicCheck<T>> {
        None
    }
}

/// Logs that a device goes on with a predecessor's rings, and with which work that the predecessor
/// left unfinished; empty: none.
pub fn log_reattached(log: &DeviceLog, unfinished: &str) {
    let text = format_args!("re-attached to the live rings that an earlier backend left{unfinished}");
    log.say(log::Level::Info, &text);
}

/// A part of a device: a ring that belongs to no queue, which the control thread serves in control
/// turns.
pub trait ControlRing<P: Platform> {
    /// Its event channel, as this handle knows it, as of when the device connected. None: this
    /// front has no such ring.
    fn channel(&self, p: &P) -> Option<EvtchnPort>;
    /// A control turn, while the device is connected: called while the ring is active or a queue
    /// requests it. True: there was something to do that the queues must know of.
    ///
    /// # Errors
    /// A ring broke its protocol: the device is closed.
    fn turn(&mut self, p: &P, id: &DeviceId, log: &DeviceLog) -> Result<bool, RingFault>;
    /// The part, in thousandths, of the last [`turn`](Self::turn)'s work that each connection
    /// brings once. It is not charged to the guest's account of control requests, since an honest
    /// guest makes them, too.
    fn part_of_connecting(&self) -> u32;
    /// Before sleeping: arms the ring. True: there is work.
    ///
    /// # Errors
    /// As for [`turn`](Self::turn).
    fn arm(&mut self, p: &P) -> Result<bool, RingFault>;
    /// Whether the guest has published work on the ring. An event has reported it, or will. Arms
    /// nothing.
    fn is_pending(&mut self) -> bool;
}

/// A part of a device: a hotplug script that this process runs for it.
pub trait HotplugScript {
    /// Whether it is under way, so that [`turn`](Self::turn) must be called.
    fn is_pending(&self) -> bool;
    /// Goes on with it. The result, once it is over.
    fn turn(&mut self, id: &DeviceId) -> Option<HotplugStep>;
    /// The device is over: begins to undo its hotplug. False: there is nothing to undo.
    fn begin_undo(&mut self) -> bool;
    /// Whether the device is over, and its hotplug is being undone.
    fn is_undone(&self) -> bool;
}

/// The result of a hotplug step.
pub enum HotplugStep {
    /// The text for `hotplug-status`, and why it failed if it did.
    In(&'static str, Option<String>),
    /// It is undone, and why that failed if it did.
    Out(Option<String>),
}

/// A part of a device: its backing (a disk's image), which may be absent, in use or slow.
pub trait DeviceBacking<P: Platform, T: Transport + 'static> {
    /// Tries the backing before the front comes. With it whether the toolstack's script may still
    /// name another one: then nothing is logged yet.
    ///
    /// # Errors
    /// The directory is gone, or xenstore.
    fn try_ahead(&mut self, bus: &mut StoreBus<'_, T>) -> Result<(Trial, bool), DeviceError>;
    /// The device's queues are here, and it is about to be closed: how long at most its close
    /// waits for requests that the backing still works on. None: there are none. It is called
    /// again meanwhile, and begins nothing.
    fn under_way(&mut self, p: &P) -> Option<Duration>;
    /// The device is about to end for good. True: what is kept of it must stay for a successor.
    fn give_up(&mut self) -> bool;
}

/// The backing of a device, as it was [tried](DeviceBacking::try_ahead) before its front came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trial {
    /// There is nothing to try.
    Nothing,
    /// It is there; and what is strange about it.
    There(Option<String>),
    /// Another has it, who may let go: who, in words.
    Busy(String),
    /// It cannot be opened: why, and what to do.
    Missing(String),
}

/// A part of a device: something that changes without an event.
pub trait PeriodicCheck<T: Transport + 'static> {
    /// Once a second while the device is connected: publishes to its front what has changed.
    ///
    /// # Errors
    /// The directory is gone, or xenstore.
    fn check(&mut self, bus: &mut StoreBus<'_, T>, log: &DeviceLog) -> Result<(), DeviceError>;
}
