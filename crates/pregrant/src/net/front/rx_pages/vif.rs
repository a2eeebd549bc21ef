//! The calls of a vif's owner about RX pages that consumers have by reference: more of them, fewer,
//! and those of a consumer that has references of its own.
//!
//! ```text
//!   frames find no spare page --grow_rx--> more        memory is short --shrink_rx--> fewer
//! ```
//! What the back may do: see [`pool`](super::pool).

use super::pool::PoolStats;
use crate::error::PlatformError;
use crate::net::front::stage::{Announcing, Live, Stage};
use crate::net::front::vif::FrontVif;
use crate::platform::Platform;
use crate::port::Piece;

impl<P: Platform> FrontVif<P> {
    /// Adds at most `n` RX pages to queue `i`, up to
    /// [`more_rx_pages`](crate::net::front::FrontConfig::more_rx_pages). Returns how many were
    /// added.
    ///
    /// # Errors
    /// The platform has no page to grant, or there is no memory for the list of them.
    pub fn grow_rx(&mut self, p: &P, i: usize, n: usize) -> Result<usize, PlatformError> {
        let Some(queue) = self.stage.live_queues_mut().get_mut(i) else { return Ok(0) };
        let (grown, failed) = self.rx_pool.grow(p, &mut self.regions, (i, queue), n);
        self.ask_pool(p);
        failed.filter(|_| grown == 0).map_or(Ok(grown), Err)
    }

    /// Removes at most `n` spare added pages, of any queue. Returns how many; their grants end once
    /// the back has unmapped them.
    pub fn shrink_rx(&mut self, p: &P, n: usize) -> usize {
        let mut shrunk = 0;
        for (i, queue) in self.stage.queues_mut().iter_mut().enumerate() {
            shrunk += self.rx_pool.shrink(p, &mut self.regions, (i, queue), n - shrunk);
        }
        self.rx_pool.release(p, &mut self.regions);
        self.ask_pool(p);
        shrunk
    }

    /// Sends a request about the pool's pages, unless the back is still being asked for the pages
    /// of the queues. A fault is found by the next turn.
    fn ask_pool(&mut self, p: &P) {
        if let Stage::Live(Live { ctrl: Some(ctrl), announcing: Announcing::Over { .. }, .. }) =
            &mut self.stage
            && !self.rx_pool.is_asking()
        {
            let _ = self.rx_pool.turn(p, &mut self.regions, ctrl);
        }
    }

    /// Number of RX pages that were added, and number of removed pages that the back may still have
    /// mapped.
    pub fn rx_pool(&self) -> (usize, usize) {
        (self.rx_pool.pages(), self.rx_pool.leaving())
    }

    /// Number of pages of all queues that the back says it keeps mapped.
    pub fn mapped_pages(&self) -> usize {
        (0..self.nr_queues()).map(|i| self.gref_pages(i)).sum::<usize>() + self.rx_pool.mapped()
    }

    /// Counters of added and removed RX pages.
    pub fn rx_pool_stats(&self) -> PoolStats {
        self.rx_pool.stats()
    }

    /// Releases frames that were passed by reference and of which `has_done` says that the consumer
    /// needs them no more: frames of former queues, and of queues that are not handed out.
    /// `has_done` is asked once for each frame.
    pub fn release_done(&mut self, p: &P, has_done: impl Fn(&mut dyn Iterator<Item = Piece<'_>>) -> bool) {
        let is_live = self.is_live();
        for queue in self.stage.queues_mut() {
            let lent = queue.rx().lent();
            for page in 0..queue.rx().pages().numbers() {
                let rx = queue.rx();
                if let Some(token) = rx.pages().token_of(page)
                    && has_done(&mut rx.pieces(token))
                {
                    let known = queue.release(token);
                    debug_assert!(known.is_ok(), "it is lent");
                }
            }
            if is_live && queue.rx().lent() != lent {
                queue.post_released(p);
            }
        }
        for pages in &mut self.unreturned {
            pages.release_done(&has_done);
        }
        self.release_unlent(p);
    }
}
