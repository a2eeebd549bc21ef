//! A class of devices in a backend: how its devices are made, and the calls that each answers.
//!
//! ```text
//!   DeviceClass   one for each class: makes its devices, and has what they share
//!   RemoteSide    what stands behind them all: a switch, scripts that run
//!   ServedDevice  one for each device: its handshake (AnyBack) joined with what stands behind it
//!   ServedQueue   one for each queue of a connected device: what moves, in a worker's thread or in this one
//!   AnyBack       `xenbus::Back` of any class, over a connection to xenstore
//! ```
//! The registry calls the first three, in the control thread, and no queue. A worker calls queues:
//! one call by table for each active queue and round, and none for each frame.
//!
//! What a guest may do: see each class. Lines that a guest can cause go through the
//! [`DeviceLog`].

use super::device_log::DeviceLog;
use pregrant::latency::LatencyFigures;
use pregrant::platform::Platform;
use pregrant::port::{Arena, PortOwner};
use pregrant::units::EvtchnPort;
use pregrant::xenbus::back::{BackStep, Changed, Drained, KeptMemory, PreviousState};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::xenbus::{Back, BackDevice, Class, Device, DeviceError, DeviceId, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant::{PeerFault, PlatformError};
use rustix::fd::BorrowedFd;
use std::any::Any;
use std::cell::RefMut;
use std::time::Duration;

/// Lines for the log about a device.
pub type Notes = Vec<(log::Level, String)>;

/// One class of devices in a backend.
pub trait DeviceClass<P: Platform, T: Transport + 'static>: Any {
    /// Which.
    fn class(&self) -> Class;
    /// Keys of a front that may change while it is connected ([`BackDevice::FRONT_KEYS`]).
    fn front_keys(&self) -> &'static [&'static str] {
        &[]
    }
    /// Keys of the own directory that the toolstack may change ([`BackDevice::OWN_KEYS`]).
    fn own_keys(&self) -> &'static [&'static str] {
        &[]
    }
    /// Whether this device is to be served, if there is one.
    fn serves(&self, front: u16, handle: u32) -> bool {
        let _ = (front, handle);
        true
    }
    /// Whether another serves this device's guest until its place is made here: then that comes at
    /// the last moment, and its rings at once behind it.
    fn changes_hands(&self, id: &DeviceId) -> bool {
        let _ = id;
        false
    }
    /// A device was found that a predecessor may have left connected, and is about to be taken up:
    /// what comes for its guest from now on is to wait for it. Nothing of it is this process' yet,
    /// and what is wrong with it is said later.
    fn reserve(&mut self, device: &Device, xs: &mut Client<T>) {
        let _ = (device, xs);
    }
    /// It is connected, or not taken up after all: what was [reserved](Self::reserve) and is not in
    /// use goes. Returns how much of what came for its guest is lost with it.
    fn release(&mut self, id: &DeviceId) -> usize {
        let _ = id;
        0
    }
    /// A device that was found. `kept` is memory of it that outlives the process.
    fn make(&mut self, id: &DeviceId, kept: KeptMemory<'_>) -> Box<dyn ServedDevice<P, T>>;
    /// The remote side of its devices, which outlives them; None: there is none.
    fn remote(&self) -> Option<RefMut<'_, dyn RemoteSide>> {
        None
    }
}

/// The remote side of all devices of a class (taps, scripts that run), by the calls that belong to
/// no present device. One that wraps another returns it from [`inner_remote`](Self::inner_remote),
/// which then answers the calls that the wrapper does not.
pub trait RemoteSide {
    /// The one that this one wraps: it answers the calls that this one does not.
    fn inner_remote(&mut self) -> Option<&mut dyn RemoteSide> {
        None
    }
    /// A device is gone that no one here has served, or serves still: nothing of it stays.
    ///
    /// # Errors
    /// In words for the log: what stays behind.
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
    /// Between batches, once in a while, and before sleeping. True: something has come that no one
    /// checked, so do not sleep.
    fn turn(&mut self) -> bool {
        self.inner_remote().is_some_and(|inner| inner.turn())
    }
}

/// A ring of a device broke its protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingFault {
    /// The front's key that names the ring, below its directory.
    pub key: String,
    /// How.
    pub fault: PeerFault,
}

/// The result of a hotplug step.
pub enum HotplugStep {
    /// The text for `hotplug-status`, and why it failed if it did.
    In(&'static str, Option<String>),
    /// It is undone, and why that failed if it did.
    Out(Option<String>),
}

/// The backing of a device, as it was [tried](ServedDevice::try_ahead) before its front came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trial {
    /// There is nothing to be tried.
    Nothing,
    /// It is there; and what is strange about it.
    There(Option<String>),
    /// Somebody has it who may let go: who, in words.
    Busy(String),
    /// It cannot be had: why, and what to do.
    Missing(String),
}

/// The measurements of a class for a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
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
    /// Their requests.
    pub name: &'static str,
    /// Those that were done.
    pub requests: u64,
    /// Their bytes; 0 where none travel.
    pub bytes: u64,
    /// How long they took, those that failed among them.
    pub latency: LatencyFigures,
}

/// One device that is served.
pub trait ServedDevice<P: Platform, T: Transport + 'static>: Any {
    /// Its handshake.
    fn back(&self) -> &dyn AnyBack<P, T>;
    /// The same, to take its steps.
    fn back_mut(&mut self) -> &mut dyn AnyBack<P, T>;
    /// Stops in good order without closing ([`Back::detach`]).
    fn detach(&mut self, p: &P) -> Drained;
    /// Begins to close for good, in good order ([`Back::end`]).
    ///
    /// # Errors
    /// The directory is gone, or xenstore.
    fn end(&mut self, p: &P, bus: &mut StoreBus<'_, T>) -> Result<Drained, DeviceError>;
    /// Whether what outlives this process of it is a successor's, after its [end](Self::end) too.
    fn leaves_records(&self) -> bool {
        false
    }

    /// Makes what stands behind it, before its front sees anything; or finds it again,
    /// where a predecessor left the device connected (`live`). May come again.
    ///
    /// # Errors
    /// In words for the log and the store. The device is not served.
    fn place(&mut self, device: &Device, xs: &mut Client<T>, live: bool) -> Result<Notes, String> {
        let _ = (device, xs, live);
        Ok(Notes::new())
    }
    /// Tries what stands behind it, before its front comes. With it whether the toolstack's script
    /// is still to say what that is: then nothing is logged yet.
    ///
    /// # Errors
    /// The directory is gone, or xenstore.
    fn try_ahead(&mut self, bus: &mut StoreBus<'_, T>) -> Result<(Trial, bool), DeviceError> {
        let _ = bus;
        Ok((Trial::Nothing, false))
    }
    /// It is connected: says so, and how.
    fn connected(&mut self, device: &Device, log: &DeviceLog);
    /// The work that a predecessor left unfinished, in words for the log.
    fn interrupted(&self) -> String {
        String::new()
    }
    /// It is connected no longer.
    fn closed(&mut self, id: &DeviceId, log: &DeviceLog) {
        let _ = (id, log);
    }

    /// Gives the queues of a device that has just connected to the thread that serves them, in
    /// their order. While they are away its handshake says so ([`AnyBack::is_handed_out`]).
    fn lend(&mut self) -> Vec<Box<dyn ServedQueue<P>>>;
    /// Takes all of them back, in their order, with event channels that are this handle's again.
    fn take_back(&mut self, queues: Vec<Box<dyn ServedQueue<P>>>);
    /// Its queues are here, and it is about to be closed: how long at most that waits for what was
    /// taken from its guest and is under way behind it. It is asked again meanwhile, and begins
    /// nothing. None: nothing is.
    fn under_way(&mut self, p: &P) -> Option<Duration> {
        let _ = p;
        None
    }
    /// The event channel, as this handle knows it, of a ring that is not of one queue: as of when
    /// it connected. None: it has none.
    fn own_channel(&self, p: &P) -> Option<EvtchnPort> {
        let _ = p;
        None
    }
    /// In a control turn, while it is connected: what is not of one queue. It has one after its
    /// [own channel](Self::own_channel) fired, until it is armed again, and where one of its queues
    /// says so. True: there was something to do that its queues are to know of.
    ///
    /// # Errors
    /// A ring broke its protocol: the device is closed.
    fn turn(&mut self, p: &P, id: &DeviceId, log: &DeviceLog) -> Result<bool, RingFault> {
        let _ = (p, id, log);
        Ok(false)
    }
    /// Which part of what the last [`turn`](Self::turn) did, in thousandths, comes once with each
    /// connection. It is not charged to the guest's account of what it asks for: an honest one asks
    /// for it.
    fn comes_with_connection(&self) -> u32 {
        0
    }
    /// Before sleeping: arms what is not of one queue. True: there is work.
    ///
    /// # Errors
    /// As for [`turn`](Self::turn).
    fn arm(&mut self, p: &P) -> Result<bool, RingFault> {
        let _ = p;
        Ok(false)
    }
    /// Whether the guest has published work that is not of one queue. An event has reported it, or
    /// will. Arms nothing.
    fn is_pending(&mut self) -> bool {
        false
    }
    /// One of the class's own keys changed, and was checked: for what is to be said of that.
    fn key_changed(&mut self, device: &Device, log: &DeviceLog) {
        let _ = (device, log);
    }

    /// Goes on with a hotplug step of this process. The result, once it is over.
    fn plug(&mut self, id: &DeviceId) -> Option<HotplugStep> {
        let _ = id;
        None
    }
    /// Whether [`plug`](Self::plug) is to be asked again.
    fn has_hotplug(&self) -> bool {
        false
    }
    /// The device is over: begins to undo its hotplug. False: there is nothing to undo.
    fn unplug(&mut self) -> bool {
        false
    }
    /// Whether it is over, and its hotplug is being undone.
    fn is_out(&self) -> bool {
        false
    }

    /// Whether it is to be [checked](Self::check) now and then while it is connected, for what
    /// stands behind it may change without an event.
    fn wants_checks(&self) -> bool {
        false
    }
    /// Now and then: tells its front what has changed behind it.
    ///
    /// # Errors
    /// The directory is gone, or xenstore.
    fn check(&mut self, bus: &mut StoreBus<'_, T>, log: &DeviceLog) -> Result<(), DeviceError> {
        let _ = (bus, log);
        Ok(())
    }

    /// Its kind and service, in words for the status. Empty: none.
    fn describe(&self) -> String {
        String::new()
    }
    /// Its part of the status beside that of any device.
    fn figures(&self) -> Figures {
        Figures::default()
    }
}

/// One queue of a device that is connected: its rings, joined with what stands behind them. It is
/// in one thread at a time.
pub trait ServedQueue<P: Platform>: Any + Send {
    /// Which of the device's.
    fn number(&self) -> usize;
    /// One batch, both directions. True: there may be more. `scratch` is for what a batch needs,
    /// and is no one's between calls.
    ///
    /// # Errors
    /// A ring broke its protocol: the device is closed.
    fn poll(&mut self, p: &P, scratch: &mut Arena) -> Result<bool, RingFault>;
    /// One batch of what waits for the guest, in another queue's turn. True: there may be more.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    fn deliver(&mut self, p: &P) -> Result<bool, RingFault> {
        let _ = p;
        Ok(false)
    }
    /// Whether its [`poll`](Self::poll) uses what it is given.
    fn needs_scratch(&self) -> bool {
        false
    }
    /// Requests taken since the start; the number wraps. A worker compares the cost of turns by
    /// them; by time alone where there are none.
    fn requests(&self) -> u32 {
        0
    }
    /// Now and then, and before it is armed: applies what was said to its device, and watches what
    /// waits. True: its device is to have a [turn](ServedDevice::turn).
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    fn turn(&mut self, p: &P) -> Result<bool, RingFault> {
        let _ = p;
        Ok(false)
    }
    /// Arms its rings, and allows the next event of its channels. True: there is work.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    fn arm(&mut self, p: &P) -> Result<bool, RingFault>;
    /// Whether the guest has published work. An event has reported it, or will. Arms nothing.
    fn is_pending(&mut self) -> bool;
    /// When it wants its worker awake though nothing comes from the guest, by the platform's clock.
    /// None: never.
    fn deadline_ns(&self) -> Option<u64> {
        None
    }
    /// Its event channels, as this handle knows them.
    fn channels(&self, p: &P) -> Vec<EvtchnPort>;
    /// Has its event channels come to this handle.
    ///
    /// # Errors
    /// They are closed: the queue stands still.
    fn adopt(&mut self, p: &P) -> Result<(), PlatformError>;
    /// Its poller from now on: for ports that ring a doorbell.
    fn owned_by(&mut self, owner: &PortOwner) {
        let _ = owner;
    }
    /// The kernel has something for the guest: called before it is polled.
    fn became_readable(&mut self) {}
    /// The descriptor that is readable when the kernel has something for the guest, where there is
    /// one.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Declares each call of [`AnyBack`], and says which one of [`Back`], or of the device in it, it
/// is.
macro_rules! any_back {
    ($(fn $call:ident([$($by:tt)+] $me:ident $(, $arg:ident: $of:ty)*) $(-> $to:ty)? = $is:expr;)*) => {
        /// The handshake of a device of any class; see [`Back`] for each.
        #[allow(missing_docs)] // each is Back's
        pub trait AnyBack<P: Platform, T: Transport + 'static> {
            $(fn $call($($by)+ $me $(, $arg: $of)*) $(-> $to)?;)*
        }

        impl<P: Platform, T: Transport + 'static, D: BackDevice<Platform = P>> AnyBack<P, T> for Back<D> {
            $(fn $call($($by)+ $me $(, $arg: $of)*) $(-> $to)? { $is })*
        }
    };
}

any_back! {
    fn state([&] self) -> XenbusState = self.state();
    fn is_connected([&] self) -> bool = (**self).is_connected();
    fn is_handed_out([&] self) -> bool = (**self).is_handed_out();
    fn serves_closing([&] self) -> bool = D::SERVES_CLOSING;
    fn inherit([&mut] self, bus: &mut StoreBus<'_, T>) -> Result<PreviousState, DeviceError> =
        self.inherit(bus);
    fn reattach([&mut] self, p: &P, bus: &mut StoreBus<'_, T>, kept: KeptMemory<'_>)
        -> Result<bool, ConnectError<DeviceError>> = self.reattach(p, bus, kept);
    fn step([&mut] self, p: &P, bus: &mut StoreBus<'_, T>, kept: KeptMemory<'_>)
        -> Result<BackStep, ConnectError<DeviceError>> = self.step_unsaid(p, bus, kept);
    fn say_connected([&mut] self, bus: &mut StoreBus<'_, T>) -> Result<(), DeviceError> =
        self.say_connected(bus);
    fn close([&mut] self, p: &P, bus: &mut StoreBus<'_, T>, why: Option<&str>) -> Result<(), DeviceError> =
        self.close(p, bus, why);
    fn own_key_changed([&mut] self, p: &P, bus: &mut StoreBus<'_, T>, key: &str) -> Result<(), DeviceError> =
        if (**self).is_connected() { self.changed(p, bus, Changed::Own(key)) } else { Ok(()) };
    fn pause([&mut] self, paused: bool) = self.pause(paused);
    fn limit_pages([&mut] self, pages: usize) = self.limit_pages(pages);
    fn limit_lasting([&mut] self, pages: usize) = self.limit_lasting(pages);
    fn needed_pages([&] self) -> usize = (**self).needed_pages();
    fn least_pages([&] self) -> usize = (**self).least_pages();
    fn requested_pages([&] self) -> usize = (**self).requested_pages();
    fn single_pages([&] self) -> usize = (**self).single_pages();
    fn allowed_pages([&] self) -> usize = (**self).allowed_pages();
    fn allow_pages([&mut] self, p: &P, pages: usize) = (**self).allow_pages(p, pages);
}
