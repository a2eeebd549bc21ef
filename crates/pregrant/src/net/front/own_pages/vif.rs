//! The calls of a vif's owner about pages of the guest's own memory: to send from them, and to get
//! them back.
//!
//! ```text
//!   use_memory --> connect --> memory().copy_in(at, frame), send_own(at, len) --> reclaim --> until it is not held
//!              <-- take_memory <-- closed
//! ```
//! A caller that changes a page that is [held](FrontVif::is_held) changes a frame in flight, and
//! harms no other guest.
//!
//! What the back may do: read all of a page from its ADD until it unmaps it, with anything else
//! that is in there. It cannot write to it.

use super::mapping_requests::OwnPages;
use super::tx::HeadedFrame;
use crate::error::PlatformError;
use crate::net::front::regions::Region;
use crate::net::front::vif::FrontVif;
use crate::platform::Platform;
use crate::port::FrameDesc;

impl<P: Platform> FrontVif<P> {
    /// Lets the vif send from `memory` from the next connection on. The platform must not have
    /// granted these pages ([`GrantTable::pages`](crate::platform::GrantTable::pages)). For each
    /// queue at most `places` pages (at most 4096) are granted at a time, and no more than the
    /// back's table has room for beside the static pool. None are granted if both ends use
    /// persistent grants, since the back then keeps what it sees. Refused if the vif has such
    /// memory already, or is connected.
    pub fn use_memory(&mut self, memory: Region<P>, places: usize) -> Result<(), Region<P>> {
        if self.own.is_some() || !self.stage.queues().is_empty() {
            return Err(memory);
        }
        self.own = Some(OwnPages::new(memory, self.regions.to(), places));
        Ok(())
    }

    /// The memory from which the vif sends.
    #[inline(always)]
    pub fn memory(&self) -> Option<&Region<P>> {
        self.own.as_ref().map(OwnPages::memory)
    }

    /// Gives the memory back. None: there is none, or the vif is connected, or the back still uses
    /// a page: try again later.
    pub fn take_memory(&mut self, p: &P) -> Option<Region<P>> {
        if !self.stage.queues().is_empty() {
            return None;
        }
        let own = self.own.as_mut()?;
        own.release(p);
        if own.grants() > 0 {
            return None;
        }
        self.own.take().map(OwnPages::into_memory)
    }

    /// Sends frames of the [memory](Self::memory) on queue `i`: those in a page that the back has
    /// mapped without a copy, the others by a copy. Returns how many frames it accepted, from the
    /// first on; frames that are empty, or not in the memory, count as accepted.
    #[inline(always)]
    pub fn send_own(&mut self, p: &P, i: usize, frames: &[FrameDesc]) -> Result<usize, PlatformError> {
        match &self.own {
            Some(own) => {
                self.stage.live_queues_mut().get_mut(i).map_or(Ok(0), |q| q.send_own(p, own.memory(), frames))
            }
            None => Ok(0),
        }
    }

    /// Like [`send_own`](Self::send_own), for frames whose heads are in private memory; see
    /// [`TxFront::send_headed`](crate::net::front::TxFront::send_headed).
    pub fn send_headed(
        &mut self,
        p: &P,
        i: usize,
        frames: &[HeadedFrame<'_>],
    ) -> Result<usize, PlatformError> {
        match &self.own {
            Some(own) => self
                .stage
                .live_queues_mut()
                .get_mut(i)
                .map_or(Ok(0), |q| q.send_headed(p, own.memory(), frames)),
            None => Ok(0),
        }
    }

    /// Whether a request names this page of the memory and has no answer yet.
    pub fn is_held(&self, page: usize) -> bool {
        self.stage
            .queues()
            .iter()
            .filter_map(|queue| queue.tx().cache())
            .any(|cache| cache.is_in_flight(page))
    }

    /// Number of grants of the memory's pages that still exist for queues that are gone.
    pub(crate) fn own_grants(&self) -> usize {
        self.own.as_ref().map_or(0, OwnPages::grants)
    }

    /// True if a request about these pages is outstanding.
    pub fn is_asking(&self) -> bool {
        self.own.as_ref().is_some_and(OwnPages::is_asking) || self.rx_pool.is_asking()
    }
}
