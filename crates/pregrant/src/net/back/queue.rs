//! One queue at the back, whole: rings, paths, channels, statistics. Owned by one loop; nothing of it is anybody else's.
//!
//! ```text
//!   connect --> | TX: ring, chain, channel | RX: ring, chain, channel | --drop--> unmapped, channels closed
//!                  poll_tx                   poll_rx                arm, before its owner sleeps
//! ```
//! What all queues of a vif share, its credit and what its front asked for, comes with each call ([`Control`]). What a guest may do
//! is said where it does so: [`tx`](super::tx), [`rx`](super::rx).

use super::control::Control;
use super::credit::Credit;
use super::{Drained, Polled, RxQueue, TxQueue};
use crate::error::PeerFault;
use crate::net::path::Chain;
use crate::platform::{Clock, Events, Platform};
use crate::port::{Arena, FramePort};
use crate::units::DomId;

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// The queue.
pub struct BackQueue<P: Platform> {
    pub(super) tx: TxQueue<P>,
    pub(super) rx: RxQueue<P>,
    tx_chan: Chan<P>,
    /// None: `tx_chan` serves both rings.
    rx_chan: Option<Chan<P>>,
    pages: usize,
}

impl<P: Platform> BackQueue<P> {
    /// Of these halves. `rx_chan` is missing where one channel serves both; `pages` are mapped from connect to disconnect.
    pub fn new(
        tx: TxQueue<P>,
        rx: RxQueue<P>,
        (tx_chan, rx_chan): (Chan<P>, Option<Chan<P>>),
        pages: usize,
    ) -> Self {
        Self { tx, rx, tx_chan, rx_chan, pages }
    }

    /// Pages that are mapped from connect to disconnect.
    pub fn needed_pages(&self) -> usize {
        self.pages
    }

    /// Pages that stay mapped since they were seen.
    pub fn kept_pages(&self) -> usize {
        [self.tx.chain().pages(), self.rx.chain().pages()].into_iter().flatten().sum()
    }

    /// Its paths: TX, RX.
    pub fn chains_mut(&mut self) -> [&mut Chain<P>; 2] {
        [self.tx.chain_mut(), self.rx.chain_mut()]
    }

    /// Moves one batch from the guest `of` to `port`.
    #[inline(always)]
    pub fn poll_tx(
        &mut self,
        p: &P,
        of: DomId,
        port: &mut dyn FramePort,
        scratch: &mut Arena,
        control: &mut Control,
    ) -> Result<Polled, PeerFault> {
        self.tx.poll(p, of, &self.tx_chan, port, scratch, control)
    }

    /// Moves one batch from `port` to the guest `of`.
    #[inline(always)]
    pub fn poll_rx(
        &mut self,
        p: &P,
        of: DomId,
        port: &mut dyn FramePort,
        control: &Control,
    ) -> Result<Polled, PeerFault> {
        self.rx.poll(p, of, self.rx_chan.as_ref().unwrap_or(&self.tx_chan), port, control)
    }

    /// Before sleeping: arms both rings and their channels. True: there is work. A fault comes with its direction.
    pub fn arm(&mut self, p: &P, credit: Option<&Credit>) -> Result<bool, (&'static str, PeerFault)> {
        // One that has to wait for credit is not told of requests, and sleeps until then.
        let tx = match credit.and_then(Credit::deadline_ns) {
            Some(until) => self.tx.is_late() || p.clock().now_ns() >= until,
            None => self.tx.final_check().map_err(|e| ("tx", e))?,
        };
        let rx = self.rx.final_check().map_err(|e| ("rx", e))?;
        // Last: an event that came since the rings were armed is kept until here.
        p.events().unmask(&self.tx_chan);
        if let Some(chan) = &self.rx_chan {
            p.events().unmask(chan);
        }
        Ok(tx || rx)
    }

    /// Delivers what `port` holds for the guest, as far as it has slots.
    pub fn deliver(&mut self, p: &P, of: DomId, port: &mut dyn FramePort, control: &Control) -> Drained {
        let before = self.rx.stats().frames;
        // Others may go on to fill the port: what it holds now is what is owed.
        let mut most = self.rx.waiting() + port.held();
        while most > 0 && self.rx.waiting() + port.held() > 0 {
            if self.poll_rx(p, of, port, control) != Ok(Polled::More) {
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
        self.tx.drain(p, &self.tx_chan);
    }
}
