//! The stage of one device: what exists of it in each, and which events lead from one to another.
//!
//! ```text
//!   stage       what exists                                        events, and where they lead
//!   Waiting     what is known of its backing                       its front connects              -> Connected
//!                                                                  its connect fails               -> Failed
//!                                                                  the toolstack names a backing   -> Waiting, tried again
//!   Connected   since when; its queues, here or with workers;      its front closes it             -> Waiting
//!               its share of its guest's pages                     a fault, or an error            -> Failed, once its queues
//!                                                                  the front or `online` is gone   -> Waiting  are here and drained
//!   Failed      why, as the store has it; what is known            its front comes down, and
//!               of its backing                                     connects again                  -> Connected
//!   (removed)   nothing                                            from each, once its directory is gone
//! ```
//! A device that a predecessor left begins as Connected where its rings are taken up, as Failed
//! where the predecessor closed it for a reason, and otherwise as Waiting. Where the queues of a
//! connected device are is in [`queues`](super::queues), and what is known of a backing in
//! [`backing_state`](super::backing_state). What is true in each stage is not here: how often the
//! device was throttled, and its history.
//!
//! Invariant: a device is Connected as long as its handshake has rings mapped
//! ([`Connection`](pregrant::xenbus::back::Connection)).
//!
//! What a guest may do: connect and close without end, or break the protocol; see the registry.

use super::backing_state::BackingState;
use super::queues::DeviceQueues;
use pregrant::platform::Platform;
use pregrant::xenbus::back::PageShare;
use std::time::Instant;

/// The stage of a device; the table above says which events lead where.
pub(super) enum Stage<P: Platform> {
    /// The front has not connected, or has closed the connection.
    Waiting(BackingState),
    /// The device's queues are live.
    Connected(Connected<P>),
    /// This end closed the device.
    Failed {
        /// The reason, as it was written to xenstore.
        why: String,
        backing: BackingState,
    },
}

/// The state of a device that is connected.
pub(super) struct Connected<P: Platform> {
    pub(super) since: Instant,
    pub(super) queues: DeviceQueues<P>,
    /// The share of pages; None before the guest's pages were shared out.
    pub(super) pages: Option<AnnouncedPages>,
}

/// A device's share of its guest's pages.
#[derive(Clone, Copy)]
pub(super) struct AnnouncedPages {
    /// Number of pages that the device requested when pages were [shared out](super::shared_pages).
    pub(super) requested: usize,
    /// The share of the guest's pages that the device was granted.
    pub(super) share: PageShare,
}

impl<P: Platform> Stage<P> {
    /// Called when the front is connected.
    pub(super) fn connect(&mut self, now: Instant) {
        *self = Self::Connected(Connected { since: now, queues: DeviceQueues::default(), pages: None });
    }

    /// Called when the front has closed the connection, or the device ends: forgets the state of
    /// its backing.
    pub(super) fn close(&mut self) {
        match self {
            Self::Waiting(_) | Self::Connected(_) => *self = Self::Waiting(BackingState::default()),
            Self::Failed { backing, .. } => *backing = BackingState::default(),
        }
    }

    /// Called when this end closed the device.
    pub(super) fn fail(&mut self, why: String) {
        let backing = self.backing_mut().map(std::mem::take).unwrap_or_default();
        *self = Self::Failed { why, backing };
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self, Self::Connected(_))
    }

    pub(super) fn connected(&self) -> Option<&Connected<P>> {
        match self {
            Self::Connected(connected) => Some(connected),
            Self::Waiting(_) | Self::Failed { .. } => None,
        }
    }

    pub(super) fn connected_mut(&mut self) -> Option<&mut Connected<P>> {
        match self {
            Self::Connected(connected) => Some(connected),
            Self::Waiting(_) | Self::Failed { .. } => None,
        }
    }

    /// Returns the queues of a connected device.
    pub(super) fn queues(&self) -> Option<&DeviceQueues<P>> {
        Some(&self.connected()?.queues)
    }

    pub(super) fn queues_mut(&mut self) -> Option<&mut DeviceQueues<P>> {
        Some(&mut self.connected_mut()?.queues)
    }

    /// Returns the state of the backing of a device that is not connected.
    pub(super) fn backing(&self) -> Option<&BackingState> {
        match self {
            Self::Waiting(backing) | Self::Failed { backing, .. } => Some(backing),
            Self::Connected(_) => None,
        }
    }

    pub(super) fn backing_mut(&mut self) -> Option<&mut BackingState> {
        match self {
            Self::Waiting(backing) | Self::Failed { backing, .. } => Some(backing),
            Self::Connected(_) => None,
        }
    }

    /// True if something waits for the queues, which workers have or which are not drained.
    pub(super) fn is_waited_for(&self) -> bool {
        self.queues().is_some_and(DeviceQueues::is_waited_for)
    }

    /// True if workers have the queues, or if some are on their way to or from workers.
    pub(super) fn is_handed_out(&self) -> bool {
        self.queues().is_some_and(DeviceQueues::is_handed_out)
    }
}
