//! One queue of a vif that is served: its rings joined with its port. A worker serves it.
//!
//! ```text
//!   poll   guest --TX--> port, port --RX--> guest: one batch each way
//!   turn   orders and requests are applied; frames for guests expire, guests that take none lose their link (docs/protocol 6)
//! ```
//! What a guest may do: as for [`BackQueue`]. Its fault closes its vif.

use crate::drivers::device_class::{RingFault, ServedQueue};
use pregrant::net::back::{BackQueue, Polled};
use pregrant::net::features::queue_prefix;
use pregrant::platform::{Events, Platform};
use pregrant::port::{Arena, FramePort, PortOwner};
use pregrant::units::EvtchnPort;
use pregrant::{PeerFault, PlatformError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

pub(super) struct VifQueue<P: Platform> {
    pub(super) queue: BackQueue<P>,
    pub(super) port: Box<dyn FramePort>,
    pub(super) readable: Option<OwnedFd>,
    pub(super) number: usize,
    /// Number of queues of the vif.
    pub(super) nr_queues: usize,
}

/// Returns the front's key `{dir}-{what}` of queue `i` of `n`, relative to the front's directory.
/// The control ring, `ctrl`, belongs to no queue.
pub(super) fn front_key(i: usize, n: usize, dir: &str, what: &str) -> String {
    let at = if dir == "ctrl" { queue_prefix(0, 1) } else { queue_prefix(i, n) };
    format!("{at}{dir}-{what}")
}

impl<P: Platform> VifQueue<P> {
    #[cold]
    fn fault(&self, ring: &str, fault: PeerFault) -> RingFault {
        RingFault { key: front_key(self.number, self.nr_queues, ring, "ring-ref"), fault }
    }
}

impl<P: Platform> ServedQueue<P> for VifQueue<P> {
    fn number(&self) -> usize {
        self.number
    }

    #[inline]
    fn poll(&mut self, p: &P, scratch: &mut Arena) -> Result<bool, RingFault> {
        let tx = self.queue.poll_tx(p, &mut *self.port, scratch);
        let rx = self.queue.poll_rx(p, &mut *self.port);
        match (tx, rx) {
            (Ok(tx), Ok(rx)) => Ok(tx == Polled::More || rx == Polled::More),
            (Err(e), _) => Err(self.fault("tx", e)),
            (_, Err(e)) => Err(self.fault("rx", e)),
        }
    }

    fn deliver(&mut self, p: &P) -> Result<bool, RingFault> {
        let rx = self.queue.poll_rx(p, &mut *self.port).map_err(|e| self.fault("rx", e))?;
        Ok(rx == Polled::More)
    }

    fn needs_scratch(&self) -> bool {
        true
    }

    #[inline]
    fn requests(&self) -> u32 {
        self.queue.requests()
    }

    fn turn(&mut self, p: &P) -> Result<bool, RingFault> {
        self.queue.turn(p, &mut *self.port).map_err(|e| self.fault("rx", e))
    }

    fn arm(&mut self, p: &P) -> Result<bool, RingFault> {
        self.queue.arm(p).map_err(|(ring, e)| self.fault(ring, e))
    }

    fn is_pending(&mut self) -> bool {
        self.queue.is_pending()
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.queue.deadline_ns()
    }

    fn channels(&self, p: &P) -> Vec<EvtchnPort> {
        self.queue.channels().map(|chan| p.events().local(chan)).collect()
    }

    fn adopt(&mut self, p: &P) -> Result<(), PlatformError> {
        self.queue.adopt(p)
    }

    fn owned_by(&mut self, owner: &PortOwner) {
        self.port.owned_by(owner);
    }

    fn became_readable(&mut self) {
        self.port.became_readable();
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.readable.as_ref().map(AsFd::as_fd)
    }
}
