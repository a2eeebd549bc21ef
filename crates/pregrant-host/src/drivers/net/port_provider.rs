//! The remote side of a domain's vifs: the ports behind the rings, and how a vif is plugged into
//! them.
//!
//! ```text
//!   predecessor's  reserve()    what comes for its guest waits, before any of them is taken up
//!   vif found      found()      a tap is made: the toolstack's script expects it once the back says 2
//!   front at 4     connected()  one frame port for each queue
//!   RX slots       link()       the guest takes frames; or no longer, though it is connected
//!   front at 5     closed()     the ports are dropped
//!   vif removed    removed()    nothing of it stays (RemoteSide)
//! ```
//! A closure that makes ports is a remote side too: one where nothing is to be plugged.
//!
//! What a guest may do: nothing here; the keys are the toolstack's.

use crate::drivers::device_class::{HotplugStep, RemoteSide};
use pregrant::net::back::BackVif;
use pregrant::net::mtu::{self, Mtu};
use pregrant::platform::Platform;
use pregrant::port::{Arena, Burst, FramePort, Offloads};
use pregrant::xenbus::{Device, DeviceError, DeviceId};
use pregrant::xenstore::{Client, Transport};
use rustix::fd::OwnedFd;
use std::cell::RefCell;
use std::rc::Rc;

/// The ports of a vif's queues.
pub type Ports = Vec<Box<dyn FramePort>>;

/// The provider of ports, shared by all vifs of a backend.
pub(super) type SharedProvider = Rc<RefCell<Box<dyn PortProvider>>>;

/// The toolstack's settings of a vif's remote side, from the back's directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HotplugConfig {
    /// The interface's name: the key `vifname`, or else `vif<domid>.<handle>`.
    pub name: String,
    /// Key `bridge`: the bridge that the interface joins.
    pub bridge: Option<String>,
    /// Key `script`: the script that is run when the interface exists.
    pub script: Option<String>,
    /// Key `mtu`: the interface's MTU. An impossible value counts as absent.
    pub mtu: Option<u32>,
    /// Key `mac`: the guest's address.
    pub mac: Option<String>,
    /// [`INTERFACE`]: the number of the interface that a predecessor made.
    pub interface: Option<u32>,
    /// The back's directory in xenstore, which the script gets.
    pub dir: String,
}

/// Key of the backend, in its own directory: the number (ifindex) of a vif's interface, by which a
/// successor finds it even if its owner renamed it.
pub const INTERFACE: &str = "pregrant-interface";

/// Returns the name of a vif's interface if the toolstack gives none.
pub fn usual_name(id: &DeviceId) -> String {
    format!("vif{}.{}", id.front.0, id.handle)
}

impl HotplugConfig {
    /// Reads the configuration from xenstore. Values that are ignored are noted.
    ///
    /// # Errors
    /// The store is gone.
    pub fn read<T: Transport>(device: &Device, xs: &mut Client<T>) -> Result<(Self, Notes), DeviceError> {
        let id = device.id();
        let mut notes = Notes::new();
        let mtu = Mtu::or_pass_over(device.get_own(xs, mtu::KEY), |e| {
            notes.push((
                log::Level::Warn,
                format!("ignoring the key `mtu`, the interface keeps its MTU: {e}"),
            ));
        })?;
        // An invalid number is ignored: the interface is then found by its name.
        let interface = device.get_own(xs, INTERFACE).unwrap_or_default();
        let mut text = |key: &str| -> Result<Option<String>, DeviceError> {
            let text: Option<String> = device.get_own(xs, key)?;
            Ok(text.filter(|t| !t.is_empty()))
        };
        let place = Self {
            name: text("vifname")?.unwrap_or_else(|| usual_name(&id)),
            bridge: text("bridge")?,
            script: text("script")?,
            mac: text("mac")?,
            mtu,
            interface,
            dir: device.own_dir().to_owned(),
        };
        Ok((place, notes))
    }
}

/// The process that connects a vif's interface to the network (docs/protocol 2.10).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hotplug {
    /// The toolstack connects it: its script writes "connected" to `hotplug-status`, and only then
    /// the front is connected.
    Toolstack,
    /// This process connects it: it runs `script`, or joins `bridge` if there is no such file, and
    /// then writes "connected".
    Own,
    /// No process connects it.
    #[default]
    None,
}

/// The progress of hotplug.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plugged {
    /// Hotplug is done.
    Yes,
    /// The script still runs.
    NotYet,
    /// Hotplug failed; the text says why.
    No(String),
}

pub use crate::drivers::device_class::Notes;

/// Makes the ports of vifs: taps, ports of the switch, or others. An implementation writes no log
/// lines; it returns failures to the backend, which logs them within the vif's budget.
pub trait PortProvider: RemoteSide {
    /// Returns what [`inner_remote`](RemoteSide::inner_remote) returns, for the calls of this
    /// trait.
    fn inner_provider(&mut self) -> Option<&mut dyn PortProvider> {
        None
    }
    /// True if the kernel's netback serves the vif, and this process is about to take it over.
    fn is_kernels(&mut self, id: &DeviceId) -> bool {
        self.inner_provider().is_some_and(|inner| inner.is_kernels(id))
    }
    /// Called when a vif was found: creates the vif's interface. The front does not see the vif
    /// yet, unless `live` is true. Then the vif is about to be taken over, with a predecessor's
    /// interface, or with a new one like it that must be created at once. The call may be repeated.
    ///
    /// # Errors
    /// The reason, in words for the log and the store. The vif is not served.
    fn found(&mut self, id: &DeviceId, place: &HotplugConfig, live: bool) -> Result<Notes, String> {
        self.inner_provider().map_or(Ok(Notes::new()), |inner| inner.found(id, place, live))
    }
    /// Called when a vif that a predecessor left connected is about to be taken over, at once or
    /// when its last owner is gone: frames for its guest are queued from now on. `queues` and
    /// `front` are the likely arguments of [`connected`](Self::connected). The vif does not belong
    /// to this process yet.
    fn reserve(&mut self, id: &DeviceId, place: &HotplugConfig, queues: usize, front: Offloads) {
        if let Some(inner) = self.inner_provider() {
            inner.reserve(id, place, queues, front);
        }
    }
    /// Called when the vif is connected, or was not taken over after all: drops the
    /// [reserved](Self::reserve) ports that are not used. Returns how many queued frames are lost
    /// by that.
    fn release(&mut self, id: &DeviceId) -> usize {
        self.inner_provider().map_or(0, |inner| inner.release(id))
    }
    /// Starts or continues the hotplug of a vif with [`Hotplug::Own`]. It is called again until it
    /// returns another value than `NotYet`.
    fn plug(&mut self, id: &DeviceId, place: &HotplugConfig) -> Plugged {
        self.inner_provider().map_or(Plugged::Yes, |inner| inner.plug(id, place))
    }
    /// Starts or continues to undo the hotplug of a vif with [`Hotplug::Own`], if this process also
    /// removes the vif's directory. It is called again until the hotplug is undone; the directory
    /// still exists.
    fn unplug(&mut self, id: &DeviceId) -> Plugged {
        self.inner_provider().map_or(Plugged::Yes, |inner| inner.unplug(id))
    }
    /// Called when the front is connected: makes a port for each of `queues`. `front` is the
    /// offload work that the guest accepts to do.
    ///
    /// # Errors
    /// The reason, in words for the log. The vif's frames are dropped.
    fn connected(&mut self, id: &DeviceId, queues: usize, front: Offloads) -> Result<Ports, String>;
    /// For each queue a descriptor that is readable when the kernel has frames for the guest.
    /// Called for ports that were just made.
    ///
    /// The default is none: ports of this process (a switch, a sink) ring the doorbell of their
    /// worker. A provider whose frames come from the kernel must implement it, or the worker sleeps
    /// while they wait.
    fn readable(&mut self, id: &DeviceId) -> Vec<OwnedFd> {
        self.inner_provider().map_or_else(Vec::new, |inner| inner.readable(id))
    }
    /// Called when the guest begins or stops to receive frames: `up` if it is connected and has
    /// posted RX slots.
    ///
    /// The default does nothing: ports of this process have no carrier, and keep or drop the frames
    /// of a guest that takes none. A provider with an interface of the kernel's must implement it.
    ///
    /// # Errors
    /// The reason, in words for the log.
    fn link(&mut self, id: &DeviceId, up: bool) -> Result<(), String> {
        self.inner_provider().map_or(Ok(()), |inner| inner.link(id, up))
    }
    /// Sets the longest packet that the guest receives as the MTU of its interface; None: no limit.
    /// Called when the front connects, and when longer packets arrived nevertheless (they were
    /// dropped and counted). Returns notes of what was changed.
    ///
    /// The default does nothing: ports of this process have no MTU.
    ///
    /// # Errors
    /// The reason, in words for the log.
    fn limit_mtu(&mut self, id: &DeviceId, most: Option<u32>) -> Result<Notes, String> {
        self.inner_provider().map_or(Ok(Notes::new()), |inner| inner.limit_mtu(id, most))
    }
    /// Returns the number (ifindex) of the vif's interface, for [`INTERFACE`]; None: the vif has no
    /// interface.
    fn interface_number(&mut self, id: &DeviceId) -> Option<u32> {
        self.inner_provider()?.interface_number(id)
    }
    /// True if a vif's interface may change without an event, so that it must be
    /// [checked](Self::check).
    fn wants_checks(&mut self, id: &DeviceId) -> bool {
        self.inner_provider().is_some_and(|inner| inner.wants_checks(id))
    }
    /// Called each second while the front is connected: returns notes about changes of the vif's
    /// interface, and about what was done.
    fn check(&mut self, id: &DeviceId) -> Notes {
        self.inner_provider().map_or_else(Notes::new, |inner| inner.check(id))
    }
    /// Called when the front is no longer connected; its ports are gone.
    ///
    /// # Errors
    /// The reason, in words for the log.
    fn closed(&mut self, id: &DeviceId) -> Result<(), String> {
        self.inner_provider().map_or(Ok(()), |inner| inner.closed(id))
    }
}

impl<F: FnMut(&DeviceId, usize, Offloads) -> Ports> RemoteSide for F {}
impl<F: FnMut(&DeviceId, usize, Offloads) -> Ports> PortProvider for F {
    fn connected(&mut self, id: &DeviceId, queues: usize, front: Offloads) -> Result<Ports, String> {
        Ok(self(id, queues, front))
    }
}

/// Returns the ports of a vif that has no interface. They refuse and count every frame.
pub fn unplugged(queues: usize) -> Ports {
    (0..queues).map(|_| Box::new(Unplugged) as Box<dyn FramePort>).collect()
}

struct Unplugged;

impl FramePort for Unplugged {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, _frames: &Burst<'_>) -> usize {
        0
    }
    fn rx_burst(&mut self, _into: &mut Arena) -> usize {
        0
    }
}

/// State of one vif's hotplug.
#[derive(Debug)]
pub(super) enum HotplugState {
    /// No hotplug step is left to do.
    Done,
    /// This process does the hotplug, and calls the provider again.
    Own(HotplugConfig),
    /// The vif has ended, and the hotplug that this process did is being undone.
    Undone,
}

impl HotplugState {
    /// Makes the remote side's interface and starts hotplug. For a vif that was taken over
    /// (`live`), hotplug is done already.
    pub(super) fn begin<P: Platform>(
        provider: &mut dyn PortProvider,
        hotplug: Hotplug,
        device: &Device,
        place: HotplugConfig,
        vif: &mut BackVif<P>,
        live: bool,
    ) -> Result<(Self, Notes), String> {
        let notes = provider.found(&device.id(), &place, live)?;
        if live || hotplug == Hotplug::None {
            return Ok((Self::Done, notes));
        }
        vif.await_hotplug();
        Ok((if hotplug == Hotplug::Own { Self::Own(place) } else { Self::Done }, notes))
    }

    /// Calls the provider again. Returns the result once it is known.
    pub(super) fn turn(&mut self, provider: &mut dyn PortProvider, id: &DeviceId) -> Option<HotplugStep> {
        let plugged = match self {
            Self::Done => return None,
            Self::Own(place) => provider.plug(id, place),
            Self::Undone => provider.unplug(id),
        };
        let why = match plugged {
            Plugged::NotYet => return None,
            Plugged::Yes => None,
            Plugged::No(why) => Some(why),
        };
        let step = match self {
            Self::Undone => HotplugStep::Out(why),
            _ => HotplugStep::In(if why.is_none() { "connected" } else { "error" }, why),
        };
        *self = Self::Done;
        Some(step)
    }

    /// True if the vif has ended.
    pub(super) fn is_out(&self) -> bool {
        matches!(self, Self::Undone)
    }

    /// True if the provider must be called again.
    pub(super) fn is_pending(&self) -> bool {
        !matches!(self, Self::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::HotplugConfig;
    use pregrant::DomId;
    use pregrant::xenbus::toolstack::Vif;
    use pregrant::xenbus::{Device, Side};
    use pregrant_xenstored::LocalStore;

    #[test]
    fn an_mtu_of_no_use_is_noted_and_the_vif_goes_on() {
        for (text, bytes, notes) in
            [("9000", Some(9000), 0), ("", None, 0), ("jumbo", None, 1), ("1500.0", None, 1)]
        {
            let store = LocalStore::new();
            store.with_server(|s| s.introduce(DomId(5)).unwrap());
            let mut xs = store.client(DomId(0));
            let vif = Vif { back_keys: &[("mtu", text)], ..Vif::new(DomId(5), DomId(0), 0, [2; 6]) };
            vif.create(&mut xs).unwrap();
            let (place, said) = HotplugConfig::read(&Device::new(vif.id, Side::Back), &mut xs).unwrap();
            assert_eq!((place.mtu, said.len()), (bytes, notes), "{text:?}: {said:?}");
        }
    }
}
