//! One queue of a vbd that is served: its ring, joined with the descriptor that reports its disk's
//! progress. A worker serves it.
//!
//! ```text
//!   poll   guest --requests--> disk, disk --what it has done--> guest: one batch each way
//! ```
//! A worker that sleeps is woken by the guest's events, and by the disk's descriptor.
//!
//! What a guest may do: as for [`BackQueue`]. Its fault closes its vbd.

use crate::drivers::device_class::{RingFault, ServedQueue};
use pregrant::PlatformError;
use pregrant::blk::back::BackQueue;
use pregrant::error::PeerFault;
use pregrant::platform::{Events, Platform};
use pregrant::port::Arena;
use pregrant::units::EvtchnPort;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

pub(super) struct VbdQueue<P: Platform> {
    pub(super) queue: BackQueue<P>,
    pub(super) readable: Option<OwnedFd>,
    pub(super) number: usize,
}

impl<P: Platform> VbdQueue<P> {
    #[cold]
    fn fault(&self, fault: PeerFault) -> RingFault {
        RingFault { key: self.queue.share().ring_key.clone(), fault }
    }
}

impl<P: Platform> ServedQueue<P> for VbdQueue<P> {
    fn number(&self) -> usize {
        self.number
    }

    #[inline]
    fn poll(&mut self, p: &P, _: &mut Arena) -> Result<bool, RingFault> {
        self.queue.poll(p).map(|moved| moved > 0).map_err(|e| self.fault(e))
    }

    #[inline]
    fn requests(&self) -> u32 {
        self.queue.requests()
    }

    /// Returns true if the queue could use more of its guest's pages than before.
    fn turn(&mut self, _: &P) -> Result<bool, RingFault> {
        Ok(self.queue.has_grown())
    }

    fn arm(&mut self, p: &P) -> Result<bool, RingFault> {
        self.queue.arm(p).map_err(|e| self.fault(e))
    }

    fn is_pending(&mut self) -> bool {
        self.queue.is_pending()
    }

    fn channels(&self, p: &P) -> Vec<EvtchnPort> {
        self.queue.channel().map(|chan| p.events().local(chan)).into_iter().collect()
    }

    fn adopt(&mut self, p: &P) -> Result<(), PlatformError> {
        self.queue.adopt(p)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.readable.as_ref().map(AsFd::as_fd)
    }
}
