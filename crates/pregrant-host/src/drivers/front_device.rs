//! A guest's end of one device, whatever its class: its directory in xenstore, the connection to
//! that, and what can go wrong.
//!
//! ```text
//!   Frontend (net), BlkFrontend --step, close--> FrontVif, FrontVbd --keys, states--> bus --.
//!              '---- wait_for_events: what its back or the toolstack wrote -----------------------------+-- xenstore
//! ```
//! What the back may do: write its state without end; its events are taken in turns.

use pregrant::blk::device_number;
use pregrant::platform::{Clock, Platform};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::device::{ONLINE, own_domid};
use pregrant::xenbus::{Class, Device, DeviceError, KeyError};
use pregrant::xenstore::{Client, Transport, XsError, path};
use pregrant::{DomId, PeerFault, PlatformError};
use std::time::Duration;

/// Largest number of xenstore events that one call of [`FrontDevice::wait_for_events`] handles.
const EVENTS_PER_TURN: usize = 128;
/// Interval of checks for pages that a back still has mapped, since no event reports their release.
pub(super) const RETRY: Duration = Duration::from_millis(100);
/// Interval of attempts to close while this end closes.
pub(super) const CLOSING_RETRY: Duration = Duration::from_millis(10);

/// The reason why a guest's device cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// The connection to xenstore has ended, or xenstore refused a request.
    #[error("xenstore: {0}")]
    Store(#[from] XsError),
    /// A key of the device has a value that cannot be used.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The xenbus handshake failed.
    #[error("{device}: {what}")]
    Connect {
        /// The device, as log lines name it.
        device: String,
        /// The reason why the handshake failed.
        what: String,
    },
    #[error("{0}")]
    Platform(#[from] PlatformError),
    /// The back broke the protocol.
    #[error(
        "{device}: the back broke the protocol: {fault}. The device is closed; check the driver domain's log"
    )]
    Fault {
        /// The device, as log lines name it.
        device: String,
        /// The violation that the back committed.
        fault: PeerFault,
    },
    /// The toolstack has not created this device.
    #[error("{}", missing(.domid, .class, .handle, .there))]
    Missing {
        /// The domain id of this guest.
        domid: DomId,
        /// The class of the device.
        class: Class,
        /// The device number that was asked for.
        handle: u32,
        /// Numbers of the devices of this class that exist.
        there: Vec<u32>,
    },
    /// The toolstack removed a disk. (A vif is closed in this case.)
    #[error("{device}: the toolstack has removed the disk; attach it again, and start this again")]
    Removed {
        /// The device, as log lines name it.
        device: String,
    },
}

/// Formats a device's number, with the name if the device is a disk.
fn numbered(class: Class, handle: u32) -> String {
    match class {
        Class::VBD => format!("{handle} ({})", device_number::name(handle)),
        _ => handle.to_string(),
    }
}

fn missing(domid: &DomId, class: &Class, handle: &u32, there: &[u32]) -> String {
    let (name, which) = (class.name(), numbered(*class, *handle));
    let attach = match *class {
        Class::VBD => "xl block-attach; on the loopback pregrant-lab loopback attach --disk",
        _ => "xl network-attach; on the loopback pregrant-lab loopback attach",
    };
    if there.is_empty() {
        return format!("{domid} has no {name} {which}, and no other: attach it first ({attach})");
    }
    let there: Vec<_> = there.iter().map(|handle| numbered(*class, *handle)).collect();
    let there = there.join(", ");
    format!(
        "{domid} has no {name} {which}, it has {name} {there}: name one that is there, or attach it ({attach})"
    )
}

/// A guest's device: its xenbus directories, its connection to xenstore, and its platform.
pub(super) struct FrontDevice<P, T> {
    pub platform: P,
    pub device: Device,
    pub xs: Client<T>,
}

/// Returns the devices of a class that the toolstack has created for a domain.
fn devices<T: Transport>(xs: &mut Client<T>, domid: DomId, class: Class) -> Result<Vec<u32>, XsError> {
    let names = match xs.directory(&format!("{}/device/{}", path::home(domid), class.name())) {
        Err(e) if e.is_not_found() => Vec::new(),
        names => names?,
    };
    let mut handles: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    handles.sort_unstable();
    Ok(handles)
}

impl<P: Platform, T: Transport> FrontDevice<P, T> {
    /// Finds device `handle` of this domain, and begins to watch its back.
    pub fn new(platform: P, mut xs: Client<T>, class: Class, handle: u32) -> Result<Self, FrontendError> {
        let device = match Device::front(&mut xs, class, handle) {
            Err(DeviceError::Key(KeyError { seen: None, .. })) => {
                let domid = own_domid(&mut xs)?;
                let there = devices(&mut xs, domid, class)?;
                return Err(FrontendError::Missing { domid, class, handle, there });
            }
            found => found?,
        };
        device.watch_peer(&mut xs)?;
        // A closed device restarts only if the toolstack still wants it.
        device.watch_peer_key(&mut xs, ONLINE)?;
        // If the back's domain is not the toolstack's, each end's directory is removed separately,
        // and this one may be the last.
        device.watch_own(&mut xs)?;
        Ok(Self { platform, device, xs })
    }

    /// Returns the arguments that a step of the driver needs.
    pub fn split(&mut self) -> (&P, StoreBus<'_, T>) {
        (&self.platform, StoreBus { device: &self.device, xs: &mut self.xs })
    }

    /// Receives xenstore events. Waits at most `wait` for the first, and not beyond the time at
    /// which the device restarts. Returns the number of events.
    pub fn wait_for_events(
        &mut self,
        wait: Duration,
        begins_at_ns: Option<u64>,
    ) -> Result<usize, FrontendError> {
        let mut wait = self.until(begins_at_ns).map_or(wait, |begins_in| wait.min(begins_in));
        let mut events = 0;
        while events < EVENTS_PER_TURN && self.xs.next_event(Some(wait))?.is_some() {
            wait = Duration::ZERO;
            events += 1;
        }
        Ok(events)
    }

    /// Returns the time that is left until `at_ns`, by the platform's clock.
    pub fn until(&self, at_ns: Option<u64>) -> Option<Duration> {
        Some(Duration::from_nanos(at_ns?.saturating_sub(self.platform.clock().now_ns())))
    }

    /// True if the toolstack has removed the device.
    pub fn is_gone(&mut self) -> bool {
        matches!(self.xs.read_if_there(self.device.own_dir()), Ok(None))
    }

    /// Creates the error for a failed handshake.
    pub fn not_connected(&self, what: String) -> FrontendError {
        FrontendError::Connect { device: self.device.id().to_string(), what }
    }

    /// Creates the error for a back that broke the protocol.
    pub fn fault(&self, fault: PeerFault) -> FrontendError {
        FrontendError::Fault { device: self.device.id().to_string(), fault }
    }

    /// Creates the error for a device that the toolstack removed.
    pub fn removed(&self) -> FrontendError {
        FrontendError::Removed { device: self.device.id().to_string() }
    }
}
