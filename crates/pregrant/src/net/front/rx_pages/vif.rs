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
    /// Adds at most `n` RX pages to queue `i`, within
    /// [`more_rx_pages`](crate::net::front::FrontConfig::more_rx_pages). Returns how many.
    ///
    /// # Errors
    /// The platform has no page to grant, or there is no memory for the list of them.
    pub fn grow_rx(&mut self, p: &P, i: usize, n: usize) -> Result<usize, PlatformError> {
        let Some(queue) = self.stage.live_queues_mut().get_mut(i) else { return Ok(0) };
        let (grown, failed) = self.rx_pool.grow(p, &mut self.regions, (i, queue), n);
        self.ask_pool(p);
        failed.filter(|_| grown == 0).map_or(Ok(grown), Err)
    }

    /// Takes at most `n` of them away that are spare, of all queues. Returns how many; their grants
    /// end once the back has let go of them.
    pub fn shrink_rx(&mut self, p: &P, n: usize) -> usize {
        let mut shrunk = 0;
        for (i, queue) in self.stage.queues_mut().iter_mut().enumerate() {
            shrunk += self.rx_pool.shrink(p, &mut self.regions, (i, queue), n - shrunk);
        }
        self.rx_pool.release(p, &mut self.regions);
        self.ask_pool(p);
        shrunk
    }

    /// Asks the back now, unless it is still asked for the pages of the queues; a fault is found by
    /// the next turn.
    fn ask_pool(&mut self, p: &P) {
        if let Stage::Live(Live { ctrl: Some(ctrl), announcing: Announcing::Over { .. }, .. }) =
            &mut self.stage
            && !self.rx_pool.is_asking()
        {
            let _ = self.rx_pool.turn(p, &mut self.regions, ctrl);
        }
    }

    /// RX pages that were added, and those that were taken away and that the back may have.
    pub fn rx_pool(&self) -> (usize, usize) {
        (self.rx_pool.pages(), self.rx_pool.leaving())
    }

    /// Pages that the back says it keeps mapped, of all queues.
    pub fn mapped_pages(&self) -> usize {
        (0..self.nr_queues()).map(|i| self.gref_pages(i)).sum::<usize>() + self.rx_pool.mapped()
    }

    /// How it grew, and shrank.
    pub fn rx_pool_stats(&self) -> PoolStats {
        self.rx_pool.stats()
    }

    /// Gives lent frames back whose pieces the consumer has no more, as it says: of queues that are
    /// gone, and of those that are not handed out. Each frame is asked about once.
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
