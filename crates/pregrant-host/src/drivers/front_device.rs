//! A guest's end of one device, whatever its class: its directory in xenstore, the connection to that, and what can go wrong.
//!
//! ```text
//!   Frontend (net), BlkFrontend --step, close--> FrontVif, FrontVbd --keys, states--> bus --.
//!              '---- hear: what its back or the toolstack wrote -----------------------------+-- xenstore
//! ```
//! What the back may do: write its state without end; it is heard in turns.

use pregrant::platform::{Clock, Platform};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::device::ONLINE;
use pregrant::xenbus::{Class, Device, DeviceError};
use pregrant::xenstore::{Client, Transport, XsError};
use pregrant::{PeerFault, PlatformError};
use std::time::Duration;

/// Events of xenstore that one call of [`FrontDevice::hear`] takes at most.
const EVENTS_PER_TURN: usize = 128;
/// Between two looks at what nobody tells: pages that a back still has.
pub(super) const RETRY: Duration = Duration::from_millis(100);
/// The same, while this end closes.
pub(super) const CLOSING_RETRY: Duration = Duration::from_millis(10);

/// Why a guest's device cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// xenstore is gone, or refuses.
    #[error("xenstore: {0}")]
    Store(#[from] XsError),
    /// A key is of no use.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The handshake failed.
    #[error("{device}: {what}")]
    Connect {
        /// Which.
        device: String,
        /// Why.
        what: String,
    },
    /// The platform failed.
    #[error("{0}")]
    Platform(#[from] PlatformError),
    /// The back lied.
    #[error("{device}: the back broke the protocol: {fault}. It is closed; look at the driver domain's log")]
    Fault {
        /// Which.
        device: String,
        /// How.
        fault: PeerFault,
    },
    /// The toolstack took a disk away; a vif is closed then.
    #[error("{device}: the toolstack has removed the disk; attach it again, and start this again")]
    Removed {
        /// Which.
        device: String,
    },
}

/// See the module.
pub(super) struct FrontDevice<P, T> {
    pub platform: P,
    pub device: Device,
    pub xs: Client<T>,
}

impl<P: Platform, T: Transport> FrontDevice<P, T> {
    /// Finds the own domain's device `handle` and begins to watch its back.
    pub fn new(platform: P, mut xs: Client<T>, class: Class, handle: u32) -> Result<Self, FrontendError> {
        let device = Device::front(&mut xs, class, handle)?;
        device.watch_peer(&mut xs)?;
        // One that is closed begins anew only where the toolstack wants the device.
        device.watch_peer_key(&mut xs, ONLINE)?;
        // Where the back's domain is not the toolstack's, each takes its end's directory: this one may go last.
        device.watch_own(&mut xs)?;
        Ok(Self { platform, device, xs })
    }

    /// What a driver's step is given.
    pub fn split(&mut self) -> (&P, StoreBus<'_, T>) {
        (&self.platform, StoreBus { device: &self.device, xs: &mut self.xs })
    }

    /// Hears what xenstore has to say, waiting at most so long for it, and not beyond the time at which the device begins anew.
    /// Returns how many events there were.
    pub fn hear(&mut self, wait: Duration, begins_at_ns: Option<u64>) -> Result<usize, FrontendError> {
        let mut wait = self.until(begins_at_ns).map_or(wait, |begins_in| wait.min(begins_in));
        let mut events = 0;
        while events < EVENTS_PER_TURN && self.xs.next_event(Some(wait))?.is_some() {
            wait = Duration::ZERO;
            events += 1;
        }
        Ok(events)
    }

    /// How long it is until then, by the platform's clock.
    pub fn until(&self, at_ns: Option<u64>) -> Option<Duration> {
        Some(Duration::from_nanos(at_ns?.saturating_sub(self.platform.clock().now_ns())))
    }

    /// Whether the toolstack took the device away.
    pub fn is_gone(&mut self) -> bool {
        matches!(self.xs.read_if_there(self.device.own_dir()), Ok(None))
    }

    /// The handshake failed.
    pub fn not_connected(&self, what: String) -> FrontendError {
        FrontendError::Connect { device: self.device.id().to_string(), what }
    }

    /// The back lied.
    pub fn fault(&self, fault: PeerFault) -> FrontendError {
        FrontendError::Fault { device: self.device.id().to_string(), fault }
    }

    /// The toolstack took it away.
    pub fn removed(&self) -> FrontendError {
        FrontendError::Removed { device: self.device.id().to_string() }
    }
}
