//! One end of a device: its own directory, the peer's, and what is done with them.
//!
//! ```text
//!   front  own  /local/domain/<fd>/device/vif/<h>         peer  /local/domain/<bd>/backend/vif/<fd>/<h>
//!   back   own  /local/domain/<bd>/backend/vif/<fd>/<h>   peer  /local/domain/<fd>/device/vif/<h>
//! ```
//! Holds paths only: the connection is given to each call, since one connection serves many
//! devices.
//!
//! What the peer may do: write anything into its directory, at any time, or remove it. Values go
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
/// A back's key: 1, and 0 once the toolstack wants the device gone.
pub const ONLINE: &str = "online";

/// The kind of device, by the name that paths have of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Class(&'static str);

impl Class {
    /// A network interface.
    pub const VIF: Self = Self("vif");
    /// A disk.
    pub const VBD: Self = Self("vbd");

    /// A class that this crate does not know: a path's component.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The path's component.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The guest's.
    Front,
    /// The driver domain's.
    Back,
}

/// A device, as both ends and the toolstack know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId {
    /// Its kind.
    pub class: Class,
    /// The guest.
    pub front: DomId,
    /// The driver domain.
    pub back: DomId,
    /// The number among the guest's devices of this kind.
    pub handle: u32,
}

impl DeviceId {
    /// The directory below a domain's home.
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

    /// The guest's directory.
    pub fn front_dir(&self) -> String {
        self.dir(Side::Front)
    }

    /// The driver domain's directory.
    pub fn back_dir(&self) -> String {
        self.dir(Side::Back)
    }

    /// Where an end leaves the reason for which it failed.
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
    /// The end of a device whose domains are known.
    pub fn new(id: DeviceId, side: Side) -> Self {
        let (own_dir, peer_dir) = match side {
            Side::Front => (id.front_dir(), id.back_dir()),
            Side::Back => (id.back_dir(), id.front_dir()),
        };
        Self { id, side, own_dir, peer_dir }
    }

    /// The front's end of a guest's own device: asks xenstore who the guest is and where its back
    /// is.
    pub fn front<T: Transport>(xs: &mut Client<T>, class: Class, handle: u32) -> Result<Self, DeviceError> {
        let front = own_domid(xs)?;
        // The toolstack, domain 0, writes these.
        let key = format!("{}/device/{}/{handle}/backend-id", path::home(front), class.name());
        let back = required(&key, read_key(xs, &key, DomId(0))?, DomId(0))?;
        Ok(Self::new(DeviceId { class, front, back, handle }, Side::Front))
    }

    /// Which device.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Which end.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The own directory.
    pub fn own_dir(&self) -> &str {
        &self.own_dir
    }

    /// The peer's directory.
    pub fn peer_dir(&self) -> &str {
        &self.peer_dir
    }

    /// The own domain.
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

    /// A key that the peer wrote; `None` when it did not.
    pub fn get<V: KeyValue, T: Transport>(
        &self,
        xs: &mut Client<T>,
        key: &str,
    ) -> Result<Option<V>, DeviceError> {
        read_key(xs, &path::join(&self.peer_dir, key), self.peer_domid())
    }

    /// A key that the peer must have written.
    pub fn require<V: KeyValue, T: Transport>(
        &self,
        xs: &mut Client<T>,
        key: &str,
    ) -> Result<V, DeviceError> {
        let at = path::join(&self.peer_dir, key);
        required(&at, read_key(xs, &at, self.peer_domid())?, self.peer_domid())
    }

    /// A key in the own directory, which the toolstack wrote or this end did; `None` when there is
    /// none.
    pub fn get_own<V: KeyValue, T: Transport>(
        &self,
        xs: &mut Client<T>,
        key: &str,
    ) -> Result<Option<V>, DeviceError> {
        read_key(xs, &path::join(&self.own_dir, key), DomId(0))
    }

    /// Writes a key in the own directory.
    pub fn set<T: Transport>(&self, xs: &mut Client<T>, key: &str, value: &str) -> Result<(), XsError> {
        xs.write(&path::join(&self.own_dir, key), value)
    }

    /// Removes a key in the own directory. A missing one is no error.
    pub fn unset<T: Transport>(&self, xs: &mut Client<T>, key: &str) -> Result<(), XsError> {
        xs.rm(&path::join(&self.own_dir, key))
    }

    /// Writes several keys in the own directory, so that the peer sees all of them or none.
    ///
    /// Fails with `ENOENT` when the toolstack removed the directory meanwhile, rather than make it
    /// again.
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

    /// As [`set_in_transaction`](Self::set_in_transaction), and removes what is `stale` among the
    /// own directory's names.
    pub fn replace_in_transaction<T: Transport>(
        &self,
        xs: &mut Client<T>,
        keys: &[(&str, &str)],
        stale: fn(&str) -> bool,
    ) -> Result<(), XsError> {
        xs.transaction(|t| {
            for name in t.directory(&self.own_dir)?.iter().filter(|name| stale(name)) {
                t.rm(&path::join(&self.own_dir, name))?;
            }
            keys.iter().try_for_each(|(key, value)| t.write(&path::join(&self.own_dir, key), value))
        })
    }

    /// The own state.
    pub fn state<T: Transport>(&self, xs: &mut Client<T>) -> Result<XenbusState, XsError> {
        read_state(xs, &self.own_dir)
    }

    /// The peer's state. [`XenbusState::Unknown`] when its directory is gone or has no state.
    pub fn peer_state<T: Transport>(&self, xs: &mut Client<T>) -> Result<XenbusState, XsError> {
        read_state(xs, &self.peer_dir)
    }

    /// Does the toolstack want the device to stay? Backs have the key. Where no one wrote one,
    /// no one wants the device gone.
    pub fn online<T: Transport>(&self, xs: &mut Client<T>) -> Result<bool, XsError> {
        let value = unless_gone(xs.read(&path::join(&self.own_dir, ONLINE)))?;
        Ok(value.is_none_or(|v| v == b"1"))
    }

    /// Writes the own state, unless the toolstack removed the directory: then it fails with
    /// `ENOENT`, rather than leave a ghost of the device.
    pub fn set_state<T: Transport>(&self, xs: &mut Client<T>, state: XenbusState) -> Result<(), XsError> {
        self.set_in_transaction(xs, &[(STATE, state.digit())])
    }

    /// Tells the user why the device does not work, and begins to take it down.
    pub fn fail<T: Transport>(&self, xs: &mut Client<T>, text: &str) -> Result<(), XsError> {
        // A guest may have no place for the text; the state matters more.
        let reported = xs.write(&self.id.error_path(self.side), text);
        self.set_state(xs, XenbusState::Closing)?;
        reported
    }

    /// Watches the peer's state. The watch fires once right away, whether anything changed or not.
    pub fn watch_peer<T: Transport>(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        self.watch_peer_key(xs, STATE)
    }

    /// No more.
    pub fn unwatch_peer<T: Transport>(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        self.unwatch_peer_key(xs, STATE)
    }

    /// Asks for an event whenever this key of the peer's changes, beside its state. Watching twice
    /// is no error.
    pub fn watch_peer_key<T: Transport>(&self, xs: &mut Client<T>, key: &str) -> Result<(), XsError> {
        watch(xs, &path::join(&self.peer_dir, key))
    }

    /// Asks for an event when the own directory is taken away, and whenever the own state changes.
    /// Watching twice is no error.
    pub fn watch_own<T: Transport>(&self, xs: &mut Client<T>) -> Result<(), XsError> {
        watch(xs, &path::join(&self.own_dir, STATE))
    }

    /// No more.
    pub fn unwatch_peer_key<T: Transport>(&self, xs: &mut Client<T>, key: &str) -> Result<(), XsError> {
        let path = path::join(&self.peer_dir, key);
        match xs.unwatch(&path, &path) {
            Err(e) if e.is_not_found() => Ok(()),
            other => other,
        }
    }

    /// Is this event one that [`Device::watch_peer_key`] asked for?
    pub fn is_peer_key_event(&self, event: &WatchEvent, key: &str) -> bool {
        event.token.strip_prefix(&self.peer_dir).and_then(|rest| rest.strip_prefix('/')) == Some(key)
    }

    /// Is this event the one that [`Device::watch_peer`] asked for?
    pub fn is_peer_event(&self, event: &WatchEvent) -> bool {
        self.is_peer_key_event(event, STATE)
    }

    /// Waits until the peer's state is one that the test wants, and gives it; gives the last one
    /// seen when that does not happen in time (`None`: for ever). Call [`Device::watch_peer`]
    /// before. Other watches' events are kept.
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

/// The domain that a connection speaks for: the toolstack wrote it into its home.
pub fn own_domid<T: Transport>(xs: &mut Client<T>) -> Result<DomId, DeviceError> {
    let text = xs.read("domid")?;
    let domid = core::str::from_utf8(&text).ok().and_then(DomId::parse);
    domid.ok_or_else(|| KeyError::new("domid", Some(&text), DomId::EXPECTED, DomId(0)).into())
}

fn read_state<T: Transport>(xs: &mut Client<T>, dir: &str) -> Result<XenbusState, XsError> {
    let value = unless_gone(xs.read(&path::join(dir, STATE)))?;
    Ok(XenbusState::parse(value.as_deref()))
}

/// Who may not read a removed directory's parent gets `EACCES`, not `ENOENT`: both mean
/// gone.
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
