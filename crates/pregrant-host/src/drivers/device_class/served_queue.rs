//! One queue of a connected device, as a worker serves it.
//!
//! A worker makes one dynamic call for each active queue and round, and none for each frame.
//!
//! What a guest may do: break the protocol of a ring. The queue returns a [`RingFault`], and its
//! device is closed.

use pregrant::platform::Platform;
use pregrant::port::{Arena, PortOwner};
use pregrant::units::EvtchnPort;
use pregrant::{PeerFault, PlatformError};
use rustix::fd::BorrowedFd;
use std::any::Any;

/// A ring of a device broke its protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingFault {
    /// The front's key that names the ring, relative to the front's directory.
    pub key: String,
    /// The violation that the front committed.
    pub fault: PeerFault,
}

/// One queue of a connected device: its rings together with its port or its disk. Only one thread
/// at a time has it.
pub trait ServedQueue<P: Platform>: Any + Send {
    /// Index of the queue in its device.
    fn number(&self) -> usize;
    /// Serves one batch in both directions. Returns true if there may be more work. `scratch` is
    /// memory for the batch, whose contents are not kept between calls.
    ///
    /// # Errors
    /// A ring broke its protocol: the device is closed.
    fn poll(&mut self, p: &P, scratch: &mut Arena) -> Result<bool, RingFault>;
    /// Delivers one batch that waits for this queue's guest, during the turn of another queue.
    /// Returns true if there may be more.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    fn deliver(&mut self, p: &P) -> Result<bool, RingFault> {
        let _ = p;
        Ok(false)
    }
    /// True if [`poll`](Self::poll) uses `scratch`.
    fn needs_scratch(&self) -> bool {
        false
    }
    /// Number of requests consumed since the start, which wraps. A worker compares the cost of
    /// turns by it; by time alone if it does not change.
    fn requests(&self) -> u32 {
        0
    }
    /// Called now and then, and before the queue is armed: applies the device's pending
    /// configuration, and checks requests that wait. Returns true if the device must have a control
    /// turn.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    fn turn(&mut self, p: &P) -> Result<bool, RingFault> {
        let _ = p;
        Ok(false)
    }
    /// Arms the queue's rings, and allows the next event of its channels. Returns true if there is
    /// work.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    fn arm(&mut self, p: &P) -> Result<bool, RingFault>;
    /// True if the guest has published work. An event has reported that work, or will. The call
    /// arms nothing.
    fn is_pending(&mut self) -> bool;
    /// Returns the time, by the platform's clock, at which the queue needs a poll even if the guest
    /// sends nothing. None: it needs none.
    fn deadline_ns(&self) -> Option<u64> {
        None
    }
    /// Returns the queue's event channels, as this platform handle names them.
    fn channels(&self, p: &P) -> Vec<EvtchnPort>;
    /// Binds its event channels to this handle.
    ///
    /// # Errors
    /// The channels are closed: the queue cannot be served.
    fn adopt(&mut self, p: &P) -> Result<(), PlatformError>;
    /// Called when a worker becomes the queue's poller, for ports that ring a doorbell.
    fn owned_by(&mut self, owner: &PortOwner) {
        let _ = owner;
    }
    /// Called before a poll when the kernel has something for the guest.
    fn became_readable(&mut self) {}
    /// Returns the descriptor that is readable when the kernel has frames for the guest, if there
    /// is one.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
