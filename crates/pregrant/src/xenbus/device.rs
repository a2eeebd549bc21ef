//! One end of a device: its own directory, the peer's, and operations on them.
//!
//! ```text
//!   front  own  /local/domain/<fd>/device/vif/<h>         peer  /local/domain/<bd>/backend/vif/<fd>/<h>
//!   back   own  /local/domain/<bd>/backend/vif/<fd>/<h>   peer  /local/domain/<fd>/device/vif/<h>
//! ```
//! It holds paths only: the connection is passed to each call, since it serves many devices.
//!
//! What the peer may do: write anything to its directory at any time, or remove it. Values go
//! through [`KeyValue`]; a directory that cannot be read counts as gone.

use super::key::{DeviceError, KeyError, KeyValue};
use super::state::XenbusState;
use crate::platform::Clock;
use crate::units::DomId;
use crate::wire::xs::Errno;
use crate::xenstore::{Client, Transport, WatchEvent, XsError, path};
use alloc::format;
use alloc::string::String;
use core::time::Duration;

/// The key that both ends watch.
pub(crate) const STATE: &str = "state";
/// The back's key that is 1, and 0 once the toolstack wants the device gone.
pub const ONLINE: &str = "online";

/// A class of devices, by its name in xenstore paths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Class(&'static str);

impl Class {
    /// The class of network interfaces.
    pub const VIF: Self = Self("vif");
    /// The class of disks.
    pub const VBD: Self = Self("vbd");

    /// A class that this crate does not know, by its name in paths.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name in paths.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// One of the two ends of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The front, in the guest.
    Front,
    /// The back, in the driver domain.
    Back,
}

/// The identity of a device for both ends and the toolstack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId {
    /// The device's class.
    pub class: Class,
    /// The guest's domain.
    pub front: DomId,
    /// The driver domain.
    pub back: DomId,
    /// The device's number among the guest's devices of this class.
    pub handle: u32,
}

impl DeviceId {
    /// The directory of an end, relative to its domain's home.
    fn below_home(&self, side: Side) -> String {
        let (class, handle) = (self.class.name(), self.handle);
        match side {
            Side::Front => format!("device/{class}/{handle}"),
            Side::Back => format!("backend/{class}/{}/{handle}", self.front.0),
        }
    }

    /// The domain of an end.
    pub fn domid(&self, side: Side) -> DomId {
        match side {
            Side::Front => self.front,
            Side::Back => self.back,
        }
    }

    /// The directory of an end.
    pub fn dir(&self, side: Side) -> String {
        path::join(&path::home(self.domid(side)), &self.below_home(side))
    }

    /// The front's directory.
    pub fn front_dir(&self) -> String {
        self.dir(Side::Front)
    }

    /// The back's directory.
    pub fn back_dir(&self) -> String {
        self.dir(Side::Back)
    }

    /// The path where an end writes why it failed.
    pub fn error_path(&self, side: Side) -> String {
        format!("{}/error/{}/error", path::home(self.domid(side)), self.below_home(side))
    }
}

impl core::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {} of {}, back in {}", self.class.name(), self.handle, self.front, self.back)
    }
}

/// One end of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    id: DeviceId,
    side: Side,
    own_dir: String,
    peer_dir: String,
}

impl Device {
    /// The given end of a device whose domains are known.
    pub fn new(id: DeviceId, side: Side) -> Self {
        let (own_dir, peer_dir) = match side {
            Side::Front => (id.front_dir(), id.back_dir()),
            Side::Back => (id.back_dir(), id.front_dir()),
        };
        Self { id, side, own_dir, peer_dir }
    }

    /// The front's end of one of the guest's own devices. Reads from xenstore which domain this is,
    /// and where the back is.
    pub fn front<T: Transport>(xs: &mut Client<T>, class: Class, handle: u32) -> Result<Self, DeviceError> {
        let front = own_domid(xs)?;
        // The toolstack in domain 0 writes these keys.
        let key = format!("{}/device/{}/{handle}/backend-id", path::home(front), class.name());
        let back = required(&key, read_key(xs, &key, DomId(0))?, DomId(0))?;
        Ok(Self::new(DeviceId { class, front, back, handle }, Side::Front))
    }

    /// The identity of the device.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Which end of the device this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The directory of this end.
    pub fn own_dir(&self) -> &str {
        &self.own_dir
    }

    /// The peer's directory.
    pub fn peer_dir(&self) -> &str {
        &self.peer_dir
    }

    /// The domain of this end.
    pub fn domid(&self) -> DomId {
        self.id.domid(self.side)
    }

    /// The peer's domain.
    pub fn peer_domid(&self) -> DomId {
        self.id.domid(match self.side {
            Side::Front => Side::Back,
            Side::Back => Side::Front,
        })
    }

    /// Reads a key of the peer. `None`: it does not exist.
    pub fn get<V: KeyValue, T: Transport>(
        &self,
        xs: &mut Client<T>,
        key: &str,
    ) -> Result<Option<V>, DeviceError> {
        read_key(xs, &path::join(&self.peer_dir, key), self.peer_domid())
    }

    /// Reads a key that the peer must have written.
    pub fn require<V: KeyValue, T: Transport>(
        &self,
        xs: &mut Client<T>,
        key: &str,
    ) -> Result<V, DeviceError> {
        let at = path::join(&self.peer_dir, key);
        required(&at, read_key(xs, &at, self.peer_domid())?, self.peer_domid())
    }

    /// Reads a key of this end's directory, which the toolstack or this end wrote. `None`: it does
    /// not exist.
    pub fn get_own<V: KeyValue, T: Transport>(
        &self,
        xs: &mut Client<T>,
        key: &str,
    ) -> Result<Option<V>, DeviceError> {
        read_key(xs, &path::join(&self.own_dir, key), DomId(0))
    }

    /// Writes a key in this end's directory.
    pub fn set<T: Transport>(&self, xs: &mut Client<T>, key: &str, value: &str) -> Result<(), XsError> {
        xs.write(&path::join(&self.own_dir, key), value)
    }

    /// Removes a key in this end's directory. A missing key is no error.
    pub fn unset<T: Transport>(&self, xs: &mut Client<T>, key: &str) -> Result<(), XsError> {
        xs.rm(&path::join(&self.own_dir, key))
    }

    /// Writes several keys in this end's directory in one transaction, so that the peer sees all of
    /// them or none.
    ///
    /// It fails with `ENOENT`, instead of creating the directory again, if the toolstack has
    /// removed it.
    pub fn set_in_transaction<T: Transport>(
        &self,
        xs: &mut Client<T>,
        keys: &[(&str, &str)],
    ) -> Result<(), XsError> {
        xs.transaction(|t| {
            t.read(&self.own_dir)?;
            keys.iter().try_for_each(|(key, value)| t.write(&path::join(&self.own_dir, key), value))
        })
    }

    /// Like [`set_in_transaction`](Self::set_in_transaction), and also removes the names in this
    /// end's directory that are `stale`.
    pub fn replace_in_transaction<T: Transport>(
        &self,
        xs: &mut Client<T>,
        keys: &[(impl AsRef<str>, impl AsRef<str>)],
        stale: fn(&str) -> bool,
    ) -> Result<(), XsError> {
        xs.transaction(|t| {
            for name in t.directory(&self.own_dir)?.iter().filter(|name| stale(name)) {
                t.rm(&path::join(&self.own_dir, name))?;
            }
            keys.iter().try_for_each(|(key, value)| {
                t.write(&path::join(&self.own_dir, key.as_ref()), value.as_ref())
            })
        })
    }

    /// Reads this end's state.
    pub fn state<T: Transport>(&self, xs: &mut Client<T>) -> Result<XenbusState, XsError> {
        read_state(xs, &self.own_dir)
    }

    /// Reads the peer's state. [`XenbusState::Unknown`]: its directory is gone or has no state.
    pub fn peer_state<T: Transport>(&self, xs: &mut Client<T>) -> Result<XenbusState, XsError> {
        read_state(xs, &self.peer_dir)
    }

    /// Whether the toolstack wants the device to stay. Only backs have the key; if it is missing,
    /// the device stays.
    pub fn online<T: Transport>(&self, xs: &mut Client<T>) -> Result<bool, XsError> {
        let value = unless_gone(xs.read(&path::join(&self.own_dir, ONLINE)))?;
        Ok(value.is_none_or(|v| v == b"1"))
    }

    /// Writes this end's state. It fails with `ENOENT` if the toolstack has removed the directory,
    /// instead of creating a part of it again.
    pub fn set_state<T: Transport>(&self, xs: &mut Client<T>, state: XenbusState) -> Result<(), XsError> {
        self.set_in_transaction(xs, &[(STATE, state.digit())])
    }

    /// Reports to the user why the device does not work, and begins to close it.
    pub fn fail<T: Transport>(&self, xs: &mut Client<T>, text: &str) -> Result<(), XsError> {
        // The guest may not be allowed to write the text; the state matters more.
        let reported = xs.write(&self.id.error_path(self.side), text);
        self.set_state(xs, XenbusState::Closing)?;
        reported
    }

    /// Watches the peer's state. The watch fires once at once.
    pub fn watch_peer<T: Transport>(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        self.watch_peer_key(xs, STATE)
    }

    /// Ends the watch of the peer's state.
    pub fn unwatch_peer<T: Transport>(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        self.unwatch_peer_key(xs, STATE)
    }

    /// Watches this key of the peer, besides its state. Watching twice is no error.
    pub fn watch_peer_key<T: Transport>(&self, xs: &mut Client<T>, key: &str) -> Result<(), XsError> {
        watch(xs, &path::join(&self.peer_dir, key))
    }

    /// Watches for the removal of this end's directory and for changes of its state. Watching twice
    /// is no error.
    pub fn watch_own<T: Transport>(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        watch(xs, &path::join(&self.own_dir, STATE))
    }

    /// Ends the watch of a key.
    pub fn unwatch_peer_key<T: Transport>(&self, xs: &mut Client<T>, key: &str) -> Result<(), XsError> {
        let path = path::join(&self.peer_dir, key);
        match xs.unwatch(&path, &path) {
            Err(e) if e.is_not_found() => Ok(()),
            other => other,
        }
    }

    /// Whether this event is from [`Device::watch_peer_key`].
    pub fn is_peer_key_event(&self, event: &WatchEvent, key: &str) -> bool {
        event.token.strip_prefix(&self.peer_dir).and_then(|rest| rest.strip_prefix('/')) == Some(key)
    }

    /// Whether this event is from [`Device::watch_peer`].
    pub fn is_peer_event(&self, event: &WatchEvent) -> bool {
        self.is_peer_key_event(event, STATE)
    }

    /// Waits until `wanted` accepts the peer's state, and returns it; on timeout returns the last
    /// state seen (`None`: no timeout). Call [`Device::watch_peer`] first. Events of other watches
    /// are kept.
    pub fn wait_peer<T: Transport>(
        &self,
        xs: &mut Client<T>,
        clock: &impl Clock,
        timeout: Option<Duration>,
        wanted: impl Fn(XenbusState) -> bool,
    ) -> Result<XenbusState, XsError> {
        let start_ns = clock.now_ns();
        loop {
            let state = self.peer_state(xs)?;
            if wanted(state) {
                return Ok(state);
            }
            let gone = Duration::from_nanos(clock.now_ns().saturating_sub(start_ns));
            let left = timeout.map(|t| t.saturating_sub(gone));
            if left.is_some_and(|l| l.is_zero()) {
                return Ok(state);
            }
            xs.next_event_where(left, |e| self.is_peer_event(e))?;
        }
    }
}

/// The domain of a connection, which the toolstack wrote to the domain's home.
pub fn own_domid<T: Transport>(xs: &mut Client<T>) -> Result<DomId, DeviceError> {
    let text = xs.read("domid")?;
    let domid = core::str::from_utf8(&text).ok().and_then(DomId::parse);
    domid.ok_or_else(|| KeyError::new("domid", Some(&text), DomId::EXPECTED, DomId(0)).into())
}

fn read_state<T: Transport>(xs: &mut Client<T>, dir: &str) -> Result<XenbusState, XsError> {
    let value = unless_gone(xs.read(&path::join(dir, STATE)))?;
    Ok(XenbusState::parse(value.as_deref()))
}

/// Returns the value that was read, or None if its directory is gone.
///
/// A client that may not read a removed directory's parent gets `EACCES` instead of `ENOENT`: both
/// errors mean that the directory is gone.
fn unless_gone(read: Result<alloc::vec::Vec<u8>, XsError>) -> Result<Option<alloc::vec::Vec<u8>>, XsError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.errno(), Some(Errno::Enoent | Errno::Eacces)) => Ok(None),
        Err(e) => Err(e),
    }
}

fn read_key<V: KeyValue, T: Transport>(
    xs: &mut Client<T>,
    at: &str,
    writer: DomId,
) -> Result<Option<V>, DeviceError> {
    let Some(bytes) = unless_gone(xs.read(at))? else { return Ok(None) };
    match core::str::from_utf8(&bytes).ok().and_then(V::parse) {
        Some(value) => Ok(Some(value)),
        None => Err(KeyError::new(at, Some(&bytes), V::EXPECTED, writer).into()),
    }
}

fn required<V: KeyValue>(at: &str, value: Option<V>, writer: DomId) -> Result<V, DeviceError> {
    value.ok_or_else(|| KeyError::new(at, None, V::EXPECTED, writer).into())
}

fn watch<T: Transport>(xs: &mut Client<T>, path: &str) -> Result<(), XsError> {
    match xs.watch(path, path) {
        Err(e) if e.errno() == Some(Errno::Eexist) => Ok(()),
        other => other,
    }
}
