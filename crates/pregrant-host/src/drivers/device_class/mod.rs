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

/// Texts for the log about a device, each with its level.
pub type Notes = Vec<(log::Level, String)>;

/// A class of devices (vif, vbd) that a backend serves.
pub trait DeviceClass<P: Platform, T: Transport + 'static>: Any {
    /// Returns the class's name, the keys that may change, and when its devices connect and close.
    fn rules(&self) -> ClassRules;
    /// Returns true if this device must be served in case it exists.
    fn serves(&self, front: u16, handle: u32) -> bool {
        let _ = (front, handle);
        true
    }
    /// Makes a device that was found. `kept` is the device's memory that outlives the process.
    fn make(&mut self, id: &DeviceId, kept: KeptMemory<'_>) -> Box<dyn ServedDevice<P, T>>;
    /// Returns the remote side of the class's devices, which outlives them; None: there is none.
    fn remote(&self) -> Option<RefMut<'_, dyn RemoteSide>> {
        None
    }
    /// Returns the part that queues traffic for guests while their devices are taken over from a
    /// predecessor. None: devices of this class get no traffic before they are set up.
    fn takeover(&mut self) -> Option<&mut dyn Takeover<T>> {
        None
    }
}

/// The part of a class whose guests' traffic is queued while a predecessor's device is taken over.
pub trait Takeover<T: Transport + 'static> {
    /// True if another driver (the kernel's) serves the guest until this process makes the device's
    /// port. The port is then made at the last moment, right before the rings are used.
    fn is_served_until_placed(&self, id: &DeviceId) -> bool;
    /// Called when a device was found that a predecessor may have left connected, before it is
    /// taken over. The class must queue traffic for the device's guest from now on. The device is
    /// not this process's yet; errors are reported when its port is made.
    fn reserve(&mut self, device: &Device, xs: &mut Client<T>);
    /// Called when the device is connected, or was not taken over after all: drops the
    /// [reserved](Self::reserve) resources that are not used. Returns how many queued frames are
    /// lost by that.
    fn release(&mut self, id: &DeviceId) -> usize;
}

/// The part of a class that acts on the remote side of its devices (taps, running scripts), also
/// for devices that are gone. An implementation that wraps another one returns it from
/// [`inner_remote`](Self::inner_remote). The wrapped one then gets the calls that the wrapper does
/// not implement.
pub trait RemoteSide {
    /// Returns the remote side that this one wraps, and that answers the calls which this one does
    /// not implement.
    fn inner_remote(&mut self) -> Option<&mut dyn RemoteSide> {
        None
    }
    /// Called when a device is gone, whether this process served it or not: removes all of its
    /// state.
    ///
    /// # Errors
    /// What could not be removed, in words for the log.
    fn removed(&mut self, id: &DeviceId) -> Result<(), String> {
        self.inner_remote().map_or(Ok(()), |inner| inner.removed(id))
    }
    /// True if work for a device that was removed is still under way; [`failures`](Self::failures)
    /// may report its failure.
    fn is_ending(&mut self, id: &DeviceId) -> bool {
        self.inner_remote().is_some_and(|inner| inner.is_ending(id))
    }
    /// Returns the failures since the last call, for the log: those of existing devices and of
    /// devices that are [ending](Self::is_ending).
    fn failures(&mut self) -> Vec<(DeviceId, String)> {
        self.inner_remote().map_or_else(Vec::new, |inner| inner.failures())
    }
    /// Time until the next [`turn`](Self::turn) is needed although no event asks for it. None: no
    /// turn is needed.
    fn due(&mut self) -> Option<Duration> {
        self.inner_remote()?.due()
    }
    /// Called between batches, once in a while, and before sleeping. Returns true if something
    /// arrived that was not checked: then do not sleep.
    fn turn(&mut self) -> bool {
        self.inner_remote().is_some_and(|inner| inner.turn())
    }
}

/// The figures that a class measures for a device, in addition to those that all devices have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// A text with the backing's kind and the way in which it is served. Empty: there is no
    /// backing.
    pub description: String,
    /// The values of counters since the device connected. They only grow.
    pub counters: Vec<(&'static str, u64)>,
    /// Current values, which may also fall.
    pub gauges: Vec<(&'static str, u64)>,
    /// The device's requests by kind.
    pub operations: Vec<Operation>,
}

/// Counts of the device's requests of one kind, since it connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operation {
    /// Name of the kind.
    pub name: &'static str,
    /// Number of requests that were done.
    pub requests: u64,
    /// Number of bytes that requests of this kind transferred; 0 if they carry no data.
    pub bytes: u64,
    /// The time that requests needed, including failed ones.
    pub latency: LatencyFigures,
}

/// A device that a backend serves.
pub trait ServedDevice<P: Platform, T: Transport + 'static>: Any {
    /// Returns the device's end of the xenbus handshake.
    fn back(&self) -> &dyn AnyBack<P, T>;
    /// Returns what [`back`](Self::back) returns, for the handshake's next step.
    fn back_mut(&mut self) -> &mut dyn AnyBack<P, T>;
    /// Creates the device's port, or checks the disk's image, before the front sees anything. If a
    /// predecessor left the device connected (`live`), finds that port or image again. The call may
    /// be repeated.
    ///
    /// # Errors
    /// The reason, in words for the log and the store. The device is not served.
    fn place(&mut self, device: &Device, xs: &mut Client<T>, live: bool) -> Result<Notes, String>;
    /// Called when the device is connected, with new rings or a predecessor's: sets up its queues,
    /// and logs the connection. For a predecessor's rings it calls [`log_reattached`] first.
    fn connected(&mut self, begin: Begin, device: &Device, log: &DeviceLog);
    /// Called when the device is no longer connected.
    fn closed(&mut self, id: &DeviceId, log: &DeviceLog);
    /// Stops the device in good order without closing it
    /// ([`Back::detach`](pregrant::xenbus::Back::detach)).
    fn detach(&mut self, p: &P) -> Drained;
    /// Returns the queues of a device that has just connected, in order, for the thread that will
    /// serve them. Until they are back the handshake reports
    /// [`Connection::HandedOut`](pregrant::xenbus::back::Connection).
    fn hand_out_queues(&mut self) -> Vec<Box<dyn ServedQueue<P>>>;
    /// Takes all queues back, in order. Their event channels are bound to this platform handle.
    fn take_back_queues(&mut self, queues: Vec<Box<dyn ServedQueue<P>>>);
    /// Called when one of the class's own keys changed and the handshake has read it: logs the
    /// consequence.
    fn own_key_changed(&mut self, device: &Device, log: &DeviceLog);
    /// Returns the part of the device's status that depends on its class.
    fn figures(&self) -> Figures;

    /// Returns the device's control ring, which belongs to no queue.
    fn control_ring(&mut self) -> Option<&mut dyn ControlRing<P>> {
        None
    }
    /// Returns the device's hotplug script, if this process runs it.
    fn hotplug(&mut self) -> Option<&mut dyn HotplugScript> {
        None
    }
    /// Returns the device's backing, if it is one that can be missing, in use or slow.
    fn backing(&mut self) -> Option<&mut dyn DeviceBacking<P, T>> {
        None
    }
    /// Returns a check of things that change without an event; None while there is nothing to
    /// check. It is called only while the device is connected.
    fn periodic_check(&mut self) -> Option<&mut dyn PeriodicCheck<T>> {
        None
    }
}

/// Logs that a device continues with a predecessor's rings. `unfinished` names the work that the
/// predecessor left; empty: none.
pub fn log_reattached(log: &DeviceLog, unfinished: &str) {
    let text = format_args!("re-attached to the live rings that an earlier backend left{unfinished}");
    log.say(log::Level::Info, &text);
}

/// A part of a device: a ring that belongs to no queue, which the control thread serves in control
/// turns.
pub trait ControlRing<P: Platform> {
    /// Returns the control ring's event channel, as this platform handle names it, from the time of
    /// the connect. None: the front has no control ring.
    fn channel(&self, p: &P) -> Option<EvtchnPort>;
    /// Serves the ring in a control turn. It is called while the device is connected and the ring
    /// is active or a queue requests it. Returns true if there was something to do that the queues
    /// must know of.
    ///
    /// # Errors
    /// A ring broke its protocol: the device is closed.
    fn turn(&mut self, p: &P, id: &DeviceId, log: &DeviceLog) -> Result<bool, RingFault>;
    /// Returns the part, in thousandths, of the last [`turn`](Self::turn)'s work that each
    /// connection brings once. It is not charged to the guest's account of control requests, since
    /// an honest guest makes them, too.
    fn part_of_connecting(&self) -> u32;
    /// Called before sleeping: arms the ring. Returns true if there is work.
    ///
    /// # Errors
    /// As for [`turn`](Self::turn).
    fn arm(&mut self, p: &P) -> Result<bool, RingFault>;
    /// True if the guest has published work on the ring. An event has reported that work, or will.
    /// The call arms nothing.
    fn is_pending(&mut self) -> bool;
}

/// A part of a device: a hotplug script that this process runs for it.
pub trait HotplugScript {
    /// True if the script runs, or waits to run, so that [`turn`](Self::turn) must be called.
    fn is_pending(&self) -> bool;
    /// Continues the script, and returns its result once it has ended.
    fn turn(&mut self, id: &DeviceId) -> Option<HotplugStep>;
    /// Called when the device ends: starts to undo its hotplug. Returns false if there is nothing
    /// to undo.
    fn begin_undo(&mut self) -> bool;
    /// True if the device has ended and its hotplug is being undone.
    fn is_undone(&self) -> bool;
}

/// The result of a hotplug step.
pub enum HotplugStep {
    /// The hotplug was done. The first text is for `hotplug-status`; the second says why it failed,
    /// if it did.
    In(&'static str, Option<String>),
    /// The hotplug was undone. The text says why that failed, if it did.
    Out(Option<String>),
}

/// A part of a device: its backing (a disk's image), which may be absent, in use or slow.
pub trait DeviceBacking<P: Platform, T: Transport + 'static> {
    /// Tries to open the backing before the front connects. The flag says whether the toolstack's
    /// script may still name another backing; then nothing is logged yet.
    ///
    /// # Errors
    /// The directory is gone, or xenstore failed.
    fn try_ahead(&mut self, bus: &mut StoreBus<'_, T>) -> Result<(Trial, bool), DeviceError>;
    /// Called when the device has all its queues and is about to be closed. Returns how long the
    /// close may wait for requests that the backing still works on; None: there are none. The call
    /// is repeated meanwhile, and no new request starts.
    fn under_way(&mut self, p: &P) -> Option<Duration>;
    /// Called when the device is about to end for good. Returns true if its kept memory must stay
    /// for a successor.
    fn give_up(&mut self) -> bool;
}

/// The result of trying a device's backing before the front connects
/// ([`DeviceBacking::try_ahead`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trial {
    /// The device has no backing that could be tried.
    Nothing,
    /// The backing is available; the text is a warning about it.
    There(Option<String>),
    /// Another process has the backing and may release it; the text names that process.
    Busy(String),
    /// The backing cannot be opened; the text says why, and what to do.
    Missing(String),
}

/// A part of a device: something that changes without an event.
pub trait PeriodicCheck<T: Transport + 'static> {
    /// Called once a second while the device is connected: publishes changes to its front.
    ///
    /// # Errors
    /// The directory is gone, or xenstore failed.
    fn check(&mut self, bus: &mut StoreBus<'_, T>, log: &DeviceLog) -> Result<(), DeviceError>;
}
