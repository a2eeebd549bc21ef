//! The handshake of a device of any class, over a connection to xenstore: [`Back`] as a trait
//! object, so that the registry needs no type for each class.
//!
//! What a front may do: see [`Back`].

use pregrant::platform::Platform;
use pregrant::xenbus::back::{BackStep, Changed, Connection, KeptMemory, PageShare, PageUse, PreviousState};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::xenbus::{Back, BackDevice, ClassRules, DeviceError, XenbusState};
use pregrant::xenstore::Transport;

/// The backend side of the xenbus handshake, for a device of any class. Each call does what the
/// call of the same name of [`Back`], or of the device in it, does.
pub trait AnyBack<P: Platform, T: Transport + 'static> {
    /// Returns the rules of the device's class.
    fn rules(&self) -> ClassRules;
    /// Returns the xenbus state of the back.
    fn state(&self) -> XenbusState;
    /// Reports whether the front is connected, and whether the device or a worker has its queues
    /// ([`BackDevice::connection`]).
    fn connection(&self) -> Connection;
    /// See [`Back::inherit`].
    ///
    /// # Errors
    /// The directory is gone, or xenstore failed.
    fn inherit(&mut self, bus: &mut StoreBus<'_, T>) -> Result<PreviousState, DeviceError>;
    /// See [`Back::reattach`].
    ///
    /// # Errors
    /// Nothing is mapped. What to do depends on the error.
    fn reattach(
        &mut self,
        p: &P,
        bus: &mut StoreBus<'_, T>,
        kept: KeptMemory<'_>,
    ) -> Result<bool, ConnectError<DeviceError>>;
    /// Makes the next step; see [`Back::step_unsaid`]. A front that this connects is informed
    /// later.
    ///
    /// # Errors
    /// The device must be [closed](Self::close).
    fn step(
        &mut self,
        p: &P,
        bus: &mut StoreBus<'_, T>,
        kept: KeptMemory<'_>,
    ) -> Result<BackStep, ConnectError<DeviceError>>;
    /// See [`Back::say_connected`].
    ///
    /// # Errors
    /// The directory is gone, or xenstore failed.
    fn say_connected(&mut self, bus: &mut StoreBus<'_, T>) -> Result<(), DeviceError>;
    /// See [`Back::end_detached`].
    ///
    /// # Errors
    /// The directory is gone, or xenstore failed.
    fn end_detached(&mut self, bus: &mut StoreBus<'_, T>) -> Result<(), DeviceError>;
    /// Closes the connection; see [`Back::close`].
    ///
    /// # Errors
    /// The directory is gone, or xenstore failed. The connection is closed all the same.
    fn close(&mut self, p: &P, bus: &mut StoreBus<'_, T>, why: Option<&str>) -> Result<(), DeviceError>;
    /// Reads one of the [own keys](ClassRules::own_keys) again, which changed.
    ///
    /// # Errors
    /// The directory is gone, or xenstore failed.
    fn own_key_changed(&mut self, p: &P, bus: &mut StoreBus<'_, T>, key: &str) -> Result<(), DeviceError>;
    /// While `paused` is true, ignores the front's state; see [`Back::pause`].
    fn pause(&mut self, paused: bool);
    /// Sets how many pages later connections may map ([`Back::limit_pages`]), and how many of these
    /// may stay mapped until the device closes ([`Back::limit_lasting`]).
    fn limit_pages(&mut self, pages: usize, lasting: usize);
    /// Returns the guest's pages that the device has mapped, or may map.
    fn pages(&self) -> PageUse;
    /// Sets the device's share of its guest's pages ([`BackDevice::allow_pages`]).
    fn allow_pages(&mut self, p: &P, share: PageShare);
}

impl<P: Platform, T: Transport + 'static, D: BackDevice<Platform = P>> AnyBack<P, T> for Back<D> {
    fn rules(&self) -> ClassRules {
        D::RULES
    }
    fn state(&self) -> XenbusState {
        self.state()
    }
    fn connection(&self) -> Connection {
        (**self).connection()
    }
    fn inherit(&mut self, bus: &mut StoreBus<'_, T>) -> Result<PreviousState, DeviceError> {
        self.inherit(bus)
    }
    fn reattach(
        &mut self,
        p: &P,
        bus: &mut StoreBus<'_, T>,
        kept: KeptMemory<'_>,
    ) -> Result<bool, ConnectError<DeviceError>> {
        self.reattach(p, bus, kept)
    }
    fn step(
        &mut self,
        p: &P,
        bus: &mut StoreBus<'_, T>,
        kept: KeptMemory<'_>,
    ) -> Result<BackStep, ConnectError<DeviceError>> {
        self.step_unsaid(p, bus, kept)
    }
    fn say_connected(&mut self, bus: &mut StoreBus<'_, T>) -> Result<(), DeviceError> {
        self.say_connected(bus)
    }
    fn end_detached(&mut self, bus: &mut StoreBus<'_, T>) -> Result<(), DeviceError> {
        self.end_detached(bus)
    }
    fn close(&mut self, p: &P, bus: &mut StoreBus<'_, T>, why: Option<&str>) -> Result<(), DeviceError> {
        self.close(p, bus, why)
    }
    fn own_key_changed(&mut self, p: &P, bus: &mut StoreBus<'_, T>, key: &str) -> Result<(), DeviceError> {
        match (**self).connection() {
            Connection::None => Ok(()),
            Connection::Here | Connection::HandedOut => self.changed(p, bus, Changed::Own(key)),
        }
    }
    fn pause(&mut self, paused: bool) {
        self.pause(paused);
    }
    fn limit_pages(&mut self, pages: usize, lasting: usize) {
        self.limit_pages(pages);
        self.limit_lasting(lasting);
    }
    fn pages(&self) -> PageUse {
        (**self).pages()
    }
    fn allow_pages(&mut self, p: &P, share: PageShare) {
        (**self).allow_pages(p, share);
    }
}
