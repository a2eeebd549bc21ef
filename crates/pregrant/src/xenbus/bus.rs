//! What a device needs of xenbus: its own state and keys, and its peer's. It is implemented for a
//! device on xenstore ([`Device`]), and by plain maps in tests.

use super::key_source::{KeySource, Pairs};
use super::state::XenbusState;
use super::{Device, DeviceError, KeyError};
use crate::error::PlatformError;
use crate::xenstore::{Access, Client, Permission, Transport};
use alloc::format;
use alloc::string::String;

/// One end of a device. [`KeySource`] reads the peer's directory; this trait has the rest.
pub trait DeviceBus: KeySource {
    /// The peer's `state`; Unknown if it is missing or invalid.
    fn peer_state(&mut self) -> Result<XenbusState, Self::Error>;
    /// Our own `state` in xenstore, which a predecessor may have written.
    fn own_state(&mut self) -> Result<XenbusState, Self::Error>;
    /// A key of our own directory. None: it does not exist.
    fn own_text(&mut self, key: &str) -> Result<Option<String>, Self::Error>;
    /// Writes our own `state`.
    fn set_state(&mut self, state: XenbusState) -> Result<(), Self::Error>;
    /// Writes keys to our own directory, and removes those names in it (first level) that are
    /// `stale` and not among the keys, in one transaction.
    fn publish(&mut self, pairs: &Pairs, stale: fn(&str) -> bool) -> Result<(), Self::Error>;
    /// Whether the toolstack wants the device to stay (`online` in our own directory).
    fn online(&mut self) -> Result<bool, Self::Error>;
    /// Writes why this end gives up to `error/device/...`, which its peer may read.
    fn report(&mut self, text: &str) -> Result<(), Self::Error>;
    /// The text that was [reported](Self::report), by this process or a predecessor.
    fn reported(&mut self) -> Result<Option<String>, Self::Error>;
    /// Removes the [reported](Self::report) text, since the device works.
    fn recant(&mut self) -> Result<(), Self::Error>;
}

/// The own directory's keys, read like a peer's: what a predecessor advertised.
pub struct OwnKeys<'a, B>(pub &'a mut B);

impl<B: DeviceBus> KeySource for OwnKeys<'_, B> {
    type Error = B::Error;
    fn text(&mut self, key: &str) -> Result<Option<String>, B::Error> {
        self.0.own_text(key)
    }
    fn bad(&self, key: &str, value: &str, expected: &'static str) -> B::Error {
        self.0.bad(key, value, expected)
    }
    fn refused(&self, why: PlatformError) -> B::Error {
        self.0.refused(why)
    }
}

/// One end of a device over a connection to xenstore. The connection serves many devices, so it is
/// only borrowed for a step.
pub struct StoreBus<'a, T> {
    /// The device and the end.
    pub device: &'a Device,
    /// The connection.
    pub xs: &'a mut Client<T>,
}

impl<T> StoreBus<'_, T> {
    fn error_path(&self) -> String {
        self.device.id().error_path(self.device.side())
    }
}

impl<T: Transport> KeySource for StoreBus<'_, T> {
    type Error = DeviceError;
    fn text(&mut self, key: &str) -> Result<Option<String>, DeviceError> {
        self.device.get::<String, T>(self.xs, key)
    }
    fn bad(&self, key: &str, value: &str, expected: &'static str) -> DeviceError {
        let at = format!("{}/{key}", self.device.peer_dir());
        let seen = if value.is_empty() { None } else { Some(value.as_bytes()) };
        KeyError::new(&at, seen, expected, self.device.peer_domid()).into()
    }
    fn refused(&self, why: PlatformError) -> DeviceError {
        DeviceError::Memory(why)
    }
}

impl<T: Transport> DeviceBus for StoreBus<'_, T> {
    fn peer_state(&mut self) -> Result<XenbusState, DeviceError> {
        Ok(self.device.peer_state(self.xs)?)
    }
    fn own_state(&mut self) -> Result<XenbusState, DeviceError> {
        Ok(self.device.state(self.xs)?)
    }
    fn own_text(&mut self, key: &str) -> Result<Option<String>, DeviceError> {
        self.device.get_own::<String, T>(self.xs, key)
    }
    fn set_state(&mut self, state: XenbusState) -> Result<(), DeviceError> {
        Ok(self.device.set_state(self.xs, state)?)
    }
    fn publish(&mut self, pairs: &Pairs, stale: fn(&str) -> bool) -> Result<(), DeviceError> {
        Ok(self.device.replace_in_transaction(self.xs, pairs, stale)?)
    }
    fn online(&mut self) -> Result<bool, DeviceError> {
        Ok(self.device.online(self.xs)?)
    }
    fn report(&mut self, text: &str) -> Result<(), DeviceError> {
        let at = self.error_path();
        self.xs.write(&at, text)?;
        let (own, peer) = (self.device.domid(), self.device.peer_domid());
        let readable = [Permission::new(Access::None, own), Permission::new(Access::Read, peer)];
        Ok(self.xs.set_perms(&at, &readable)?)
    }
    fn reported(&mut self) -> Result<Option<String>, DeviceError> {
        let text = self.xs.read_if_there(&self.error_path())?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }
    fn recant(&mut self) -> Result<(), DeviceError> {
        match self.xs.rm(&self.error_path()) {
            Err(e) if e.is_not_found() => Ok(()),
            other => Ok(other?),
        }
    }
}
