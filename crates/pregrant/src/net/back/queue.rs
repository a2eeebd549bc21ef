//! One queue of the back: rings, paths, channels, statistics. One thread owns it, and it can move
//! to another.
//!
//! ```text
//!   connect --> | TX: ring, chain, channel | RX: ring, chain, channel | --drop--> unmapped, channels closed
//!                  poll_tx                   poll_rx     turn       arm, before its owner sleeps
//!                                              ^
//!   vif's owner, another thread: QueueShare ---'  limits for the queue, and its counters
//! ```
//! [`SharedControl`] has what the queues of a vif share. What a guest may do: see
//! [`tx`](super::tx), [`rx`](super::rx).

use super::shared_control::SharedControl;
use super::stall::Link;
use super::{Drained, Polled, RxQueue, TxQueue};
use crate::error::{PeerFault, PlatformError};
use crate::grants::MappedStats;
use crate::memory;
use crate::net::path::{Chain, ChainNames, ConfigGeneration};
use crate::net::stats::LiveStats;
use crate::platform::{Clock, Events, Platform};
use crate::port::{Arena, FramePort};
use crate::units::DomId;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// [`MappedStats`] that the queue's owner writes and any thread reads.
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

/// The state that a queue shares with the owner of its vif, wherever each of them runs.
#[derive(Debug)]
pub struct QueueShare {
    /// Counters of TX.
    pub tx: Arc<LiveStats>,
    /// Counters of RX.
    pub rx: Arc<LiveStats>,
    /// The paths of TX and RX.
    pub chains: [ChainNames; 2],
    /// Number of pages that are mapped from connect to disconnect.
    pub needed_pages: usize,
    /// For TX and RX: whether pages are kept mapped.
    pub keeps: [bool; 2],
    /// For TX and RX: counts of the pages kept mapped.
    kept: [SharedFigures; 2],
    link: AtomicBool,
    stalls: AtomicU64,
    /// Counts changes of the configuration.
    generation: AtomicU32,
    headroom: AtomicU16,
    /// Largest number of pages that TX and RX may keep mapped.
    allowed: [AtomicUsize; 2],
}

impl QueueShare {
    /// True if the guest received frames, at the last control turn.
    pub fn link_is_up(&self) -> bool {
        self.link.load(Ordering::Acquire)
    }

    /// Number of times the link went down because the guest received no frames for too long.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Number of pages kept mapped, as of the last turn.
    pub fn kept_pages(&self) -> usize {
        self.kept.iter().map(|kept| kept.pages.load(Ordering::Relaxed)).sum()
    }

    /// Counts of the pages that TX and RX keep mapped, as of the last turn. None: none are kept.
    pub fn kept(&self) -> [Option<MappedStats>; 2] {
        [0, 1].map(|dir| self.keeps[dir].then(|| self.kept[dir].read()))
    }

    /// Sets the headroom of frames, from the next batch on.
    pub(super) fn set_headroom(&self, bytes: u16) {
        self.headroom.store(bytes, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Limits the pages that TX and RX keep mapped, if they keep any, from the next batch or turn
    /// on.
    pub(super) fn set_page_limits(&self, pages: [usize; 2]) {
        self.allowed.iter().zip(pages).for_each(|(allowed, pages)| allowed.store(pages, Ordering::Relaxed));
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl ConfigGeneration for QueueShare {
    /// Makes the queue apply a change at its next batch or turn.
    fn advance(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// One queue of a vif's back.
pub struct BackQueue<P: Platform> {
    of: DomId,
    pub(super) tx: TxQueue<P>,
    pub(super) rx: RxQueue<P>,
    /// The event channel of the TX ring, or of both rings. None: it could not be
    /// [adopted](Self::adopt), so the queue is stalled until its vif closes.
    tx_chan: Option<Chan<P>>,
    /// The event channel of the RX ring. None: `tx_chan` serves both rings.
    rx_chan: Option<Chan<P>>,
    control: Arc<SharedControl>,
    share: Arc<QueueShare>,
    /// Whether pages were returned to the guest, and the vif's owner does not know yet.
    gave_back: bool,
    /// The generation of the configuration that the queue has applied.
    applied: u32,
    /// Set while the queue sleeps without credit: TX asks for no event and is polled at this time,
    /// whatever other queues do meanwhile.
    waits_until: Option<u64>,
    /// While the queue sleeps: the latest time at which its port, which had no room, is asked
    /// again.
    asks_at: Option<u64>,
    /// Where TX and RX were when their channels were last unmasked. None: not yet.
    unmasked_at: Option<[Progress; 2]>,
}

/// Requests of a ring that were consumed, and that the guest has shown.
type Progress = (u32, u32);

/// Checks that what moves between workers' threads is Send: the queue, on every platform, with
/// everything that it has mapped.
const fn goes_to_another_thread<T: Send>() {}

impl<P: Platform> BackQueue<P> {
    /// A queue of domain `of` with these halves. There is no `rx_chan` if one channel serves both;
    /// `pages` is the number of pages mapped from connect to disconnect.
    #[inline(never)]
    #[expect(clippy::boxed_local, reason = "they move from box to box, not by a kernel's stack")]
    pub fn new(
        of: DomId,
        tx: Box<TxQueue<P>>,
        rx: Box<RxQueue<P>>,
        (tx_chan, rx_chan): (Chan<P>, Option<Chan<P>>),
        control: Arc<SharedControl>,
        pages: usize,
    ) -> Result<Box<Self>, PlatformError> {
        const { goes_to_another_thread::<Self>() };
        let share = Arc::new(QueueShare {
            tx: tx.live_stats(),
            rx: rx.live_stats(),
            chains: [tx.chain().names()?, rx.chain().names()?],
            needed_pages: pages,
            keeps: [tx.chain().pages().is_some(), rx.chain().pages().is_some()],
            kept: Default::default(),
            link: AtomicBool::new(false),
            stalls: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            headroom: AtomicU16::new(0),
            allowed: [const { AtomicUsize::new(0) }; 2],
        });
        memory::boxed(Self {
            of,
            tx: *tx,
            rx: *rx,
            tx_chan: Some(tx_chan),
            rx_chan,
            control,
            share,
            gave_back: false,
            applied: 0,
            waits_until: None,
            asks_at: None,
            unmasked_at: None,
        })
    }

    /// The state that the queue shares with its vif's owner.
    pub fn share(&self) -> &Arc<QueueShare> {
        &self.share
    }

    /// The queue's event channels.
    pub fn channels(&self) -> impl Iterator<Item = &Chan<P>> {
        self.tx_chan.iter().chain(&self.rx_chan)
    }

    /// Moves the queue's event channels to `p`, another handle of the same domain, which belongs to
    /// the new owner. One event is pending afterwards.
    pub fn adopt(&mut self, p: &P) -> Result<(), PlatformError> {
        let rx = self.rx_chan.take();
        let tx = self.tx_chan.take();
        self.rx_chan = rx.map(|chan| p.events().adopt(chan)).transpose()?;
        self.tx_chan = tx.map(|chan| p.events().adopt(chan)).transpose()?;
        // The event that is pending is the platform's.
        self.unmasked_at = None;
        Ok(())
    }

    /// The paths for TX and RX.
    fn chains_mut(&mut self) -> [&mut Chain<P>; 2] {
        [self.tx.chain_mut(), self.rx.chain_mut()]
    }

    /// Moves one batch from the guest to `port`. The grant operations that are requested through
    /// `p` meanwhile count as this queue's.
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

    /// Moves one batch from `port` to the guest. The grant operations that are requested through
    /// `p` meanwhile count as this queue's.
    pub fn poll_rx(&mut self, p: &P, port: &mut dyn FramePort) -> Result<Polled, PeerFault> {
        if self.share.generation.load(Ordering::Acquire) != self.applied {
            self.apply_config(p);
        }
        self.rx.chain_mut().take_over(self.tx.chain_mut());
        let Some(chan) = self.rx_chan.as_ref().or(self.tx_chan.as_ref()) else { return Ok(Polled::Idle) };
        self.rx.poll(p, self.of, chan, port, &self.control)
    }

    /// Number of requests consumed from both rings, which wraps.
    #[inline]
    pub fn requests(&self) -> u32 {
        self.tx.requests().wrapping_add(self.rx.requests())
    }

    /// Applies a new configuration, and handles what waits. It is called between batches, and
    /// before the queue sleeps. Returns true if the vif's owner must check the queue, because its
    /// link changed, or it returned pages, or frames were too long for its guest.
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

    /// Applies the pending configuration.
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

    /// Called before sleeping: asks for events of both rings and unmasks their channels. Returns
    /// true if there is work. A fault comes with its direction. An event without a request that was
    /// not there before is spurious: a platform may throttle a guest that sends many (XSA-332).
    pub fn arm(&mut self, p: &P) -> Result<bool, (&'static str, PeerFault)> {
        // A queue that waits for credit asks for no event, and sleeps until it has credit.
        let until = self.control.credit_deadline_ns();
        self.waits_until = until.filter(|until| !self.tx.is_late() && p.clock().now_ns() < *until);
        let tx = match (until, self.waits_until) {
            (None, _) => self.tx.final_check().map_err(|e| ("tx", e))?,
            (Some(_), waits) => waits.is_none() && (self.tx.is_late() || self.tx.stands().is_none()),
        };
        let rx = self.rx.final_check().map_err(|e| ("rx", e))?;
        self.asks_at = self.tx.stands().map(|ns| p.clock().now_ns() + ns);
        let at = [self.tx.progress(), self.rx.progress()];
        let came = self.unmasked_at.replace(at).map_or([true; 2], |was| [was[0] != at[0], was[1] != at[1]]);
        // The channels come last, so that an event that came since the rings were checked is kept
        // until here.
        let unmask = |chan: &Chan<P>, brought_work| match brought_work {
            true => p.events().unmask(chan),
            false => p.events().unmask_spurious(chan),
        };
        match (&self.tx_chan, &self.rx_chan) {
            (Some(of_tx), Some(of_rx)) => {
                unmask(of_tx, came[0] || tx);
                unmask(of_rx, came[1] || rx);
            }
            (of_both, other) => {
                let both = of_both.iter().chain(other);
                both.for_each(|chan| unmask(chan, came != [false; 2] || tx || rx));
            }
        }
        Ok(tx || rx)
    }

    /// Whether a ring has work, announced by an event or not. It does not ask for events.
    pub fn is_pending(&mut self) -> bool {
        // The ring of a guest that must wait for credit is not checked for requests.
        let waits = self.credit_deadline_ns().is_some();
        !waits && self.tx.is_pending() || self.rx.is_pending()
    }

    /// Time, by the platform's clock, at which the queue must be polled even if the guest sends
    /// nothing: to let frames expire, for credit, or to ask a port that had no room. None: never.
    pub fn deadline_ns(&self) -> Option<u64> {
        // While its port has no room, credit is of no use.
        let credit = self.credit_deadline_ns().filter(|_| self.tx.stands().is_none());
        [self.rx.deadline_ns(), credit, self.asks_at].into_iter().flatten().min()
    }

    fn credit_deadline_ns(&self) -> Option<u64> {
        self.waits_until.or_else(|| self.control.credit_deadline_ns())
    }

    /// Delivers the frames that `port` has for the guest, as many as the guest has posted slots
    /// for.
    pub fn deliver(&mut self, p: &P, port: &mut dyn FramePort) -> Drained {
        let before = self.rx.stats().frames;
        // Others may go on to fill the port, so only what it holds now is delivered.
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

    /// Answers what the paths and the port are done with, and takes nothing more. Returns how many
    /// requests were taken and have no answer.
    pub fn settle(&mut self, p: &P) -> u32 {
        if let Some(chan) = &self.tx_chan {
            self.tx.settle(p, chan);
        }
        self.tx.unanswered() + self.rx.unanswered()
    }

    /// Retires and answers what TX holds, before the queue is dropped.
    pub fn retire(&mut self, p: &P) {
        if let Some(chan) = &self.tx_chan {
            self.tx.drain(p, chan);
        }
    }
}
