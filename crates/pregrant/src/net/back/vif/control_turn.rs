//! The control turns of a live vif: its owner checks whether the guest posts RX buffers, and what
//! it may send.

use super::super::control_ring::CtrlRing;
use super::super::credit::{BadRate, Rate};
use super::{BackQueue, Vif};
use crate::error::PeerFault;
use crate::net::features::xdp_headroom;
use crate::net::path::{CtrlWork, GrefRequests};
use crate::platform::{Clock, Events, Platform};
use crate::port::{FramePort, Steering};
use crate::xenbus::bus::DeviceBus;
use alloc::boxed::Box;
use alloc::sync::Arc;

/// The back's key in which the toolstack limits what the guest may send: "bytes,microseconds".
pub const RATE: &str = "rate";

impl<P: Platform> Vif<P> {
    /// Reads the headroom that the front asks for, and applies it from the next frame on.
    pub(super) fn reload_headroom<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<(), B::Error> {
        let bytes = if self.offered().xdp_headroom { xdp_headroom(bus)? } else { 0 };
        self.shares.iter().for_each(|s| s.set_headroom(bytes));
        self.queues.iter_mut().for_each(|q| q.apply_config(p));
        Ok(())
    }

    /// Reads the toolstack's [`RATE`] again, when it has changed.
    pub fn reload_rate<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<(), B::Error> {
        let text = bus.own_text(RATE)?.filter(|text| !text.is_empty());
        let rate = text.as_deref().map_or(Ok(None), Rate::parse);
        self.bad_rate = text.filter(|_| rate == Err(BadRate));
        self.rate = rate.unwrap_or(None);
        self.control.limit(self.rate, p.clock().now_ns());
        Ok(())
    }

    /// Takes no frame of the guest from now on, until [`RATE`] is read again; frames for the guest
    /// go on. False: the toolstack holds them already.
    pub fn hold(&self, p: &P) -> bool {
        self.control.limit(Some(Rate::HELD), p.clock().now_ns());
        self.rate != Some(Rate::HELD)
    }

    /// Before a [`detach`](crate::xenbus::Back::detach) that leaves the rings to a successor
    /// without this back's records: answers what is done of the frames that were taken, and takes
    /// no more. Returns how many requests have no answer, those of the control ring too; while
    /// there are some call [`poll_ctrl`](Self::poll_ctrl), and this again.
    pub fn settle(&mut self, p: &P) -> u32 {
        let frames = self.queues.iter_mut().map(|q| q.settle(p)).sum::<u32>();
        frames + self.ctrl.as_ref().map_or(0, CtrlRing::unanswered)
    }

    /// The limit by [`RATE`]. None: there is none.
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// The text of [`RATE`], if it is invalid: the guest is not limited then.
    pub fn bad_rate(&self) -> Option<&str> {
        self.bad_rate.as_deref()
    }

    /// Number of times frames of the guest had to wait for credit.
    pub fn credit_waits(&self) -> u64 {
        self.control.credit_waits()
    }

    /// In a control turn: drops frames for the guest that waited too long, and checks whether it
    /// still posts buffers ([`stall`](super::super::stall)). Returns the link's new state if it
    /// changed; true: all queues are ready. On a fault call [`close`](crate::xenbus::Back::close)
    /// with its text.
    pub fn turn(
        &mut self,
        p: &P,
        ports: &mut [Box<dyn FramePort>],
    ) -> Result<Option<bool>, (usize, PeerFault)> {
        for (i, (q, port)) in self.queues.iter_mut().zip(ports).enumerate() {
            q.turn(p, &mut **port).map_err(|e| (i, e))?;
        }
        Ok(self.new_link())
    }

    /// The link's state if it changed, as of the queues' last turns; true: all queues are ready.
    pub fn new_link(&mut self) -> Option<bool> {
        let link = !self.shares.is_empty() && self.shares.iter().all(|s| s.link_is_up());
        let was = core::mem::replace(&mut self.link, link);
        (was != link).then_some(link)
    }

    /// Whether any ring has work, announced by an event or not. It does not ask for events.
    pub fn is_pending(&mut self) -> bool {
        self.ctrl_is_pending() || self.queues.iter_mut().any(BackQueue::is_pending)
    }

    /// The control ring's event channel, if there is one.
    pub fn ctrl_channel(&self) -> Option<&<P::Events as Events>::Chan> {
        self.ctrl.as_ref().map(|ctrl| ctrl.channel())
    }

    /// The work that the last [`poll_ctrl`](Self::poll_ctrl) did.
    pub fn ctrl_work(&self) -> CtrlWork {
        let mut work = self.grefs.as_ref().map_or_else(CtrlWork::default, GrefRequests::work);
        work.all += self.ctrl.as_ref().map_or(0, CtrlRing::took);
        work
    }

    /// How the guest distributes its frames over its queues, for ports that are not asked by
    /// [`steer`](FramePort::steer), and a number that changes with that. None: as they like.
    pub fn steering(&self) -> (u32, Option<Arc<dyn Steering>>) {
        self.control.steering()
    }

    /// Whether the control ring has work. It does not ask for events.
    pub fn ctrl_is_pending(&mut self) -> bool {
        self.ctrl.as_mut().is_some_and(|ctrl| ctrl.is_pending(self.grefs.as_ref()))
    }

    /// Whether the link is up, as of the last [`turn`](Self::turn).
    pub fn link_is_up(&self) -> bool {
        self.link
    }

    /// Number of times queues stalled, over all connections.
    pub fn stalls(&self) -> u64 {
        self.past_stalls + self.shares.iter().map(|s| s.stalls()).sum::<u64>()
    }

    /// Time, by the platform's clock, at which this vif must be polled even if the guest sends
    /// nothing: to let frames expire, or for credit. None: never.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.queues.iter().filter_map(BackQueue::deadline_ns).min()
    }
}
