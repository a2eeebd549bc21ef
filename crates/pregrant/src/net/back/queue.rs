//! One queue at the back, whole: rings, paths, channels, statistics. Owned by one loop, and may be
//! handed to another thread's.
//!
//! ```text
//!   connect --> | TX: ring, chain, channel | RX: ring, chain, channel | --drop--> unmapped, channels closed
//!                  poll_tx                   poll_rx     turn       arm, before its owner sleeps
//!                                              ^
//!   vif's owner, another thread: QueueShare ---'  what the queue is to keep to, and what it has come to
//! ```
//! [`SharedControl`] has all that the queues of a vif share. What a guest may do: see
//! [`tx`](super::tx), [`rx`](super::rx).

use super::shared_control::SharedControl;
use super::stall::Link;
use super::{Drained, Polled, RxQueue, TxQueue};
use crate::error::{PeerFault, PlatformError};
use crate::grants::MappedStats;
use crate::net::path::{Chain, ChainNames, ConfigGeneration};
use crate::net::stats::LiveStats;
use crate::platform::{Clock, Events, Platform};
use crate::port::{Arena, FramePort};
use crate::units::DomId;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// [`MappedStats`], written by the queue's owner, read by any thread.
#[derive(Debug, Default)]
struct SharedFigures {
    pages: AtomicUsize,
    most: AtomicUsize,
    limit: AtomicUsize,
    overflows: AtomicU64,
}

impl SharedFigures {
    fn write(&self, figures: MappedStats) {
        let MappedStats { pages, most, limit, overflows } = figures;
        self.pages.store(pages, Ordering::Relaxed);
        self.most.store(most, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        self.overflows.store(overflows, Ordering::Relaxed);
    }

    fn read(&self) -> MappedStats {
        MappedStats {
            pages: self.pages.load(Ordering::Relaxed),
            most: self.most.load(Ordering::Relaxed),
            limit: self.limit.load(Ordering::Relaxed),
            overflows: self.overflows.load(Ordering::Relaxed),
        }
    }
}

/// What a queue and its vif's owner know of each other, wherever each of them runs.
#[derive(Debug)]
pub struct QueueShare {
    /// TX, counted.
    pub tx: Arc<LiveStats>,
    /// RX, counted.
    pub rx: Arc<LiveStats>,
    /// The paths of TX and RX.
    pub chains: [ChainNames; 2],
    /// Pages that are mapped from connect to disconnect.
    pub needed_pages: usize,
    /// Of TX and RX: whether pages stay mapped once they were seen.
    pub keeps: [bool; 2],
    /// Of TX and RX.
    kept: [SharedFigures; 2],
    link: AtomicBool,
    stalls: AtomicU64,
    /// Orders, and how many there were.
    generation: AtomicU32,
    headroom: AtomicU16,
    /// Pages that TX and RX may keep.
    allowed: [AtomicUsize; 2],
}

impl QueueShare {
    /// Whether its guest takes frames, as of its last turn.
    pub fn link_is_up(&self) -> bool {
        self.link.load(Ordering::Acquire)
    }

    /// How often its guest took none for so long that its link went down.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Pages that stay mapped since they were seen, as of its last turn.
    pub fn kept_pages(&self) -> usize {
        self.kept.iter().map(|kept| kept.pages.load(Ordering::Relaxed)).sum()
    }

    /// What became of such pages of TX and RX, as of its last turn; None: none are kept.
    pub fn kept(&self) -> [Option<MappedStats>; 2] {
        [0, 1].map(|dir| self.keeps[dir].then(|| self.kept[dir].read()))
    }

    /// From its next batch on it leaves so many bytes free ahead of a frame's.
    pub(super) fn set_headroom(&self, bytes: u16) {
        self.headroom.store(bytes, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// From its next batch or turn on TX and RX keep so many pages at most, where they keep any.
    pub(super) fn set_page_limits(&self, pages: [usize; 2]) {
        self.allowed.iter().zip(pages).for_each(|(allowed, pages)| allowed.store(pages, Ordering::Relaxed));
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl ConfigGeneration for QueueShare {
    /// The queue applies the change at its next batch or turn.
    fn advance(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// The queue.
pub struct BackQueue<P: Platform> {
    of: DomId,
    pub(super) tx: TxQueue<P>,
    pub(super) rx: RxQueue<P>,
    /// None: it could not be [adopted](Self::adopt), and the queue stands still until its vif
    /// closes.
    tx_chan: Option<Chan<P>>,
    /// None: `tx_chan` serves both rings.
    rx_chan: Option<Chan<P>>,
    control: Arc<SharedControl>,
    share: Arc<QueueShare>,
    /// Pages were given back, and its vif's owner does not know.
    gave_back: bool,
    /// Config generation that it has applied.
    applied: u32,
    /// Armed while there was no credit: TX asks for no event, and is polled then, whatever other
    /// queues do meanwhile.
    waits_until: Option<u64>,
    /// While it is armed: when its port, which had no room, is asked again at the latest.
    asks_at: Option<u64>,
}

/// Compiles for what goes from one worker's thread to another's: the queue does, on every platform,
/// with all that it has mapped.
const fn goes_to_another_thread<T: Send>() {}

impl<P: Platform> BackQueue<P> {
    /// Of these halves, of domain `of`. `rx_chan` is missing where one channel serves both; `pages`
    /// are mapped from connect to disconnect.
    #[inline(never)]
    pub fn new(
        of: DomId,
        tx: TxQueue<P>,
        rx: RxQueue<P>,
        (tx_chan, rx_chan): (Chan<P>, Option<Chan<P>>),
        control: Arc<SharedControl>,
        pages: usize,
    ) -> Self {
        const { goes_to_another_thread::<Self>() };
        let share = Arc::new(QueueShare {
            tx: tx.live_stats(),
            rx: rx.live_stats(),
            chains: [tx.chain().names(), rx.chain().names()],
            needed_pages: pages,
            keeps: [tx.chain().pages().is_some(), rx.chain().pages().is_some()],
            kept: Default::default(),
            link: AtomicBool::new(false),
            stalls: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            headroom: AtomicU16::new(0),
            allowed: [const { AtomicUsize::new(0) }; 2],
        });
        Self {
            of,
            tx,
            rx,
            tx_chan: Some(tx_chan),
            rx_chan,
            control,
            share,
            gave_back: false,
            applied: 0,
            waits_until: None,
            asks_at: None,
        }
    }

    /// What its vif's owner knows of it.
    pub fn share(&self) -> &Arc<QueueShare> {
        &self.share
    }

    /// Its event channels.
    pub fn channels(&self) -> impl Iterator<Item = &Chan<P>> {
        self.tx_chan.iter().chain(&self.rx_chan)
    }

    /// Has its event channels come to `p`, another handle of the same domain: its new owner's. One
    /// event is pending afterwards.
    pub fn adopt(&mut self, p: &P) -> Result<(), PlatformError> {
        let rx = self.rx_chan.take();
        let tx = self.tx_chan.take();
        self.rx_chan = rx.map(|chan| p.events().adopt(chan)).transpose()?;
        self.tx_chan = tx.map(|chan| p.events().adopt(chan)).transpose()?;
        Ok(())
    }

    /// Its paths: TX, RX.
    fn chains_mut(&mut self) -> [&mut Chain<P>; 2] {
        [self.tx.chain_mut(), self.rx.chain_mut()]
    }

    /// Moves one batch from the guest to `port`.
    pub fn poll_tx(
        &mut self,
        p: &P,
        port: &mut dyn FramePort,
        scratch: &mut Arena,
    ) -> Result<Polled, PeerFault> {
        if self.share.generation.load(Ordering::Acquire) != self.applied {
            self.apply_config(p);
        }
        self.tx.chain_mut().take_over(self.rx.chain_mut());
        let Some(chan) = &self.tx_chan else { return Ok(Polled::Idle) };
        self.tx.poll(p, self.of, chan, port, scratch, &self.control)
    }

    /// Moves one batch from `port` to the guest.
    pub fn poll_rx(&mut self, p: &P, port: &mut dyn FramePort) -> Result<Polled, PeerFault> {
        if self.share.generation.load(Ordering::Acquire) != self.applied {
            self.apply_config(p);
        }
        self.rx.chain_mut().take_over(self.tx.chain_mut());
        let Some(chan) = self.rx_chan.as_ref().or(self.tx_chan.as_ref()) else { return Ok(Polled::Idle) };
        self.rx.poll(p, self.of, chan, port, &self.control)
    }

    /// Requests that the queue has consumed, of both rings; the number wraps.
    #[inline]
    pub fn requests(&self) -> u32 {
        self.tx.requests().wrapping_add(self.rx.requests())
    }

    /// Applies a new configuration, and serves what waits: between batches, and before it is armed.
    /// True: its vif's owner has to check it, for its link changed, or it has given pages back, or
    /// frames were too long for its guest.
    pub fn turn(&mut self, p: &P, port: &mut dyn FramePort) -> Result<bool, PeerFault> {
        (self.waits_until, self.asks_at) = (None, None);
        if self.tx.chain_mut().waits() || self.share.generation.load(Ordering::Acquire) != self.applied {
            self.apply_config(p);
        }
        self.rx.apply_settings(&self.control, port);
        if self.rx.is_timed() {
            self.rx.turn(p.clock().now_ns(), port)?;
        }
        for (shared, chain) in self.share.kept.iter().zip([self.tx.chain(), self.rx.chain()]) {
            if let Some(figures) = chain.kept() {
                shared.write(figures);
            }
        }
        self.share.stalls.store(self.rx.stalls(), Ordering::Relaxed);
        let up = self.rx.link() == Link::Up;
        let gave_back = core::mem::take(&mut self.gave_back);
        let is_long = self.rx.reports_long_frames(|| p.clock().now_ns());
        Ok(self.share.link.swap(up, Ordering::Release) != up || gave_back || is_long)
    }

    /// Does what it was ordered to.
    #[cold]
    pub(super) fn apply_config(&mut self, p: &P) {
        self.applied = self.share.generation.load(Ordering::Acquire);
        self.rx.set_headroom(self.share.headroom.load(Ordering::Relaxed));
        let share = Arc::clone(&self.share);
        for (chain, pages) in self.chains_mut().into_iter().zip(&share.allowed) {
            chain.limit_pages(p, pages.load(Ordering::Relaxed));
        }
        let gave_back = self.chains_mut().map(Chain::apply_config);
        self.gave_back |= gave_back.contains(&true);
    }

    /// Before sleeping: arms both rings and their channels. True: there is work. A fault comes with
    /// its direction.
    pub fn arm(&mut self, p: &P) -> Result<bool, (&'static str, PeerFault)> {
        // A queue that waits for credit asks for no event, and sleeps until then.
        let until = self.control.credit_deadline_ns();
        self.waits_until = until.filter(|until| !self.tx.is_late() && p.clock().now_ns() < *until);
        let tx = match (until, self.waits_until) {
            (None, _) => self.tx.final_check().map_err(|e| ("tx", e))?,
            (Some(_), waits) => waits.is_none() && (self.tx.is_late() || self.tx.stands().is_none()),
        };
        let rx = self.rx.final_check().map_err(|e| ("rx", e))?;
        self.asks_at = self.tx.stands().map(|ns| p.clock().now_ns() + ns);
        // Last: an event that came since the rings were armed is kept until here.
        self.channels().for_each(|chan| p.events().unmask(chan));
        Ok(tx || rx)
    }

    /// Whether a ring has work for us, announced by an event or about to be. Arms nothing.
    pub fn is_pending(&mut self) -> bool {
        // A guest that has to wait for credit is not asked for requests.
        let waits = self.credit_deadline_ns().is_some();
        !waits && self.tx.is_pending() || self.rx.is_pending()
    }

    /// When it wants its owner awake, by the platform's clock, though nothing comes from the guest:
    /// to let frames expire, for credit, or to ask a port that had no room. None: never.
    pub fn deadline_ns(&self) -> Option<u64> {
        // Whose port has no room has no use for credit.
        let credit = self.credit_deadline_ns().filter(|_| self.tx.stands().is_none());
        [self.rx.deadline_ns(), credit, self.asks_at].into_iter().flatten().min()
    }

    fn credit_deadline_ns(&self) -> Option<u64> {
        self.waits_until.or_else(|| self.control.credit_deadline_ns())
    }

    /// Delivers the frames that `port` has for the guest, as many as it has slots for.
    pub fn deliver(&mut self, p: &P, port: &mut dyn FramePort) -> Drained {
        let before = self.rx.stats().frames;
        // Others may go on to fill the port: what it holds now is what is owed.
        let mut most = self.rx.waiting() + port.held();
        while most > 0 && self.rx.waiting() + port.held() > 0 {
            if self.poll_rx(p, port) != Ok(Polled::More) {
                break;
            }
            most -= 1;
        }
        Drained {
            delivered: (self.rx.stats().frames - before) as usize,
            lost: self.rx.waiting() + port.held(),
        }
    }

    /// Has what is held of TX retired and answered, before it is dropped.
    pub fn retire(&mut self, p: &P) {
        if let Some(chan) = &self.tx_chan {
            self.tx.drain(p, chan);
        }
    }
}
