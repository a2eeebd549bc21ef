//! One queue at the front, served by one loop: rings, paths, channels, statistics. It can be split
//! into halves for two loops ([`halves`](super::halves)).
//!
//! ```text
//!   Regions --new--> | TX ring, chain, channel | RX ring, chain, channel | --end--> Regions
//!                        send, reclaim             recv, release                     what is lent: Unreturned
//!                              ^------ recv_hooked ------'
//! ```
//! What the back may do: see [`tx`](super::tx), [`rx`](super::rx), [`rx_pages`](super::rx_pages).

use super::granted_piece::GrantedPiece;
use super::halves::{QueueLink, Rest, RxHalf, TxHalf};
use super::hook::{Diverted, HookAction, HookFrame, HookStats};
use super::own_pages::tx::HeadedFrame;
use super::plan::Plan;
use super::queue_memory::{ACCESS, QueueMemory, RX, TX};
use super::regions::{Granted, Granting, Grants, OwnRing, Region, Regions};
use super::requested::Requested;
use super::rx::{RxFront, RxTables};
use super::rx_hook::Hooked;
use super::rx_pages::lent::{Lent, UnknownToken};
use super::rx_pages::unreturned::Unreturned;
use super::trust::Trust;
use super::tx::{TxFront, TxTables};
use crate::error::{PeerFault, PlatformError};
use crate::net::features::{ActiveLists, BackFeatures, ChannelKeys, QueueKeys};
use crate::net::headers::MacAddr;
use crate::net::path::copy::front::OrdinaryPages;
#[cfg(feature = "research")]
use crate::net::path::research::{foreign, guest_copy};
use crate::net::path::{AnyFrontPath, FrontChain, PathName, data_ring, staging};
use crate::net::stats::DirStats;
use crate::platform::{Access, Events, Platform};
use crate::port::{Arena, BURST_FRAMES, FrameDesc, Frames, Sink, Source, Token};
use crate::ring::{FrontRing, NetRx, NetTx, RingKind, RingMem, RingPages};
use crate::units::{EvtchnPort, GrantRef};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

type Chan<P> = <<P as Platform>::Events as Events>::Chan;
type Offered<P> = (Chan<P>, EvtchnPort);

/// An error that cannot happen, since the paths contain all memory that a queue needs.
const NO_RINGS: PlatformError = PlatformError { op: "make a queue without rings", code: 22 };

/// The arguments of a new queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    /// Number of queues of the vif, including this one.
    pub queues: u32,
    /// The memory that the queue allocates.
    pub plan: Plan,
    /// The queue has an event channel for each direction.
    pub split: bool,
    /// Frames of TX and RX may be over several slots.
    pub sg: [bool; 2],
    /// How pages of TX and RX are granted. RX pages stay granted, and the same reference is posted
    /// again and again. If the back may need no grant, a page is granted only when it is first
    /// used.
    pub granting: [Granting; 2],
    /// Number of RX pages beyond the ring's slots.
    pub spare: u32,
    /// Number of RX pages that may be added later.
    pub more: u32,
    /// A number that no other queue of the vif has.
    pub tag: u16,
}

/// The memory of one direction of a queue that is being set up, or was ended.
struct Direction<K, P: Platform> {
    ring: OwnRing<K, P>,
    grants: Grants,
    chain: FrontChain<P>,
}

impl<K: RingKind, P: Platform> Direction<K, P> {
    /// Allocates and grants a ring.
    fn new(p: &P, regions: &mut Regions<P>, order: u32) -> Result<Self, PlatformError> {
        let ring_pages = regions.take_exactly(p, Access::ReadWrite, 1 << order)?;
        let (ring_pages, grants) = ring_pages.into_parts();
        let ring = RingPages::new(ring_pages);
        ring.init();
        Ok(Self { ring, grants, chain: FrontChain::default() })
    }

    fn release(self, p: &P, regions: &mut Regions<P>) {
        self.chain.release(p, regions);
        regions.put(p, Granted::from_parts(self.ring.into_pages(), self.grants));
    }
}

/// The tables of both directions: in a box, since a kernel's stack is small.
type Tables = Box<(TxTables, RxTables)>;

/// The parts of a queue that is being set up.
struct Parts<P: Platform> {
    tx: Option<Direction<NetTx, P>>,
    rx: Option<Direction<NetRx, P>>,
    tables: Option<Tables>,
    named: Vec<Granted<P>>,
}

impl<P: Platform> Parts<P> {
    /// Allocates all memory that a queue needs and collects its keys, except those of the event
    /// channels. After an error a part of it is allocated.
    #[inline(never)]
    fn take(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        config: QueueConfig,
    ) -> Result<QueueKeys, PlatformError> {
        let Plan { asked, pages, tx_share, tx_order, rx_order } = config.plan;
        let tx = self.tx.insert(Direction::new(p, regions, tx_order)?);
        let rx = self.rx.insert(Direction::new(p, regions, rx_order)?);
        let mut memory = QueueMemory {
            p,
            regions,
            chains: Default::default(),
            queues: config.queues,
            slots: [tx.ring.size() / tx_share, rx.ring.size()],
            sg: config.sg,
            spare: [0, config.spare],
            more: [0, config.more],
            pages,
            granting: config.granting,
            named: Vec::new(),
        };
        let keys = fill(&asked, &mut memory);
        let QueueMemory { chains: [tx_chain, rx_chain], named, .. } = memory;
        (tx.chain, rx.chain, self.named) = (tx_chain, rx_chain, named);
        let keys = keys?;
        self.tables = Some(tables(tx, rx, config.tag)?);
        let (tx_ring, rx_ring) = (tx.grants.refs().to_vec(), rx.grants.refs().to_vec());
        Ok(QueueKeys { tx_ring, rx_ring, ..keys })
    }

    #[inline(never)]
    fn release(self, p: &P, regions: &mut Regions<P>) {
        if let Some(tx) = self.tx {
            tx.release(p, regions);
        }
        if let Some(rx) = self.rx {
            rx.release(p, regions);
        }
        self.named.into_iter().for_each(|granted| regions.put(p, granted));
    }
}

/// Creates the tables of a queue whose rings and memory were [taken](Parts::take).
#[inline(never)]
fn tables<P: Platform>(
    tx: &mut Direction<NetTx, P>,
    rx: &Direction<NetRx, P>,
    tag: u16,
) -> Result<Tables, PlatformError> {
    let tx = TxTables::new(tx.ring.size(), &mut tx.chain)?;
    Ok(Box::new((tx, RxTables::new(rx.ring.size(), &rx.chain, tag)?)))
}

/// Allocates the memory of each path, and ordinary pages for the frames that no path carries.
fn fill<P: Platform>(asked: &Requested, memory: &mut QueueMemory<'_, P>) -> Result<QueueKeys, PlatformError> {
    let mut keys = QueueKeys::of_rings(Vec::new(), Vec::new(), ChannelKeys::Single(EvtchnPort(0)));
    for path in PathName::ALL {
        match path {
            PathName::Staging => keys.staging = staging::negotiation::take_memory(asked.staging, memory)?,
            PathName::DataRing => {
                if let Some(order) = asked.data_ring {
                    keys.data_ring = data_ring::negotiation::take_memory(order, memory)?;
                }
            }
            #[cfg(feature = "research")]
            PathName::Foreign if asked.foreign => foreign::negotiation::take_memory(memory)?,
            #[cfg(feature = "research")]
            PathName::GuestCopy if asked.guest_copy => {
                keys.guest_copy = guest_copy::negotiation::take_memory(memory)?;
            }
            // These use ordinary pages, or were not asked for.
            PathName::Foreign
            | PathName::GuestCopy
            | PathName::GrefMapping
            | PathName::Persistent
            | PathName::Map
            | PathName::Copy => {}
        }
    }
    for dir in [TX, RX] {
        if !memory.chains[dir].is_whole() {
            let pages = memory.pages(dir)?;
            memory.chains[dir].insert(AnyFrontPath::Copy(pages));
        }
    }
    Ok(keys)
}

/// One queue of a vif's front, in two halves.
pub struct FrontQueue<P: Platform> {
    /// Both halves are boxed, so that moving a queue is cheap, even onto a small stack.
    tx: Box<TxHalf<P>>,
    rx: Box<RxHalf<P>>,
}

impl<P: Platform> FrontQueue<P> {
    /// Grants rings and buffers, offers event channels, and collects the keys that describe them.
    /// On an error everything is released.
    #[inline(never)]
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        config: QueueConfig,
    ) -> Result<(Self, QueueKeys), PlatformError> {
        let mut parts = Parts { tx: None, rx: None, tables: None, named: Vec::new() };
        let taken = parts.take(p, regions, config).and_then(|keys| {
            let tx = p.events().offer(regions.to())?;
            let rx = config.split.then(|| p.events().offer(regions.to())).transpose()?;
            Ok((keys, tx, rx))
        });
        match (taken, parts) {
            (
                Ok((keys, tx_chan, rx_chan)),
                Parts { tx: Some(tx), rx: Some(rx), tables: Some(tables), named },
            ) => Ok(Self::of(config, (tx, rx), tables, named, keys, (tx_chan, rx_chan))),
            (taken, parts) => {
                parts.release(p, regions);
                Err(taken.err().unwrap_or(NO_RINGS))
            }
        }
    }

    #[inline(never)]
    fn of(
        config: QueueConfig,
        (tx, rx): (Direction<NetTx, P>, Direction<NetRx, P>),
        tables: Tables,
        named: Vec<Granted<P>>,
        keys: QueueKeys,
        ((tx_chan, tx_port), rx_chan): (Offered<P>, Option<Offered<P>>),
    ) -> (Self, QueueKeys) {
        let (tx_tables, rx_tables) = *tables;
        let (rx_chan, channels) = match rx_chan {
            Some((chan, rx)) => (Some(chan), ChannelKeys::Split { tx: tx_port, rx }),
            None => (None, ChannelKeys::Single(tx_port)),
        };
        let link = Arc::new(QueueLink::<P>::new(tx_chan, rx_chan));
        let rest = Rest {
            ring_grants: [tx.grants, rx.grants],
            named,
            asked: config.plan.asked,
            granting: config.granting[TX],
            spare: config.spare,
            more: config.more,
            ids: [tx.chain.ids().min(tx.ring.size()), rx.ring.size()],
            hooked: HookStats::default(),
        };
        let tx = TxFront::with_tables(FrontRing::new(tx.ring), tx.chain, tx_tables);
        let tx = Box::new(TxHalf { tx, link: link.clone() });
        let rx = RxFront::with_tables(FrontRing::new(rx.ring), rx.chain, rx_tables);
        (Self { tx, rx: Box::new(RxHalf { rx, link, arena: None, rest }) }, QueueKeys { channels, ..keys })
    }

    /// The paths that the queue asks for.
    pub fn asked(&self) -> &Requested {
        &self.rx.rest.asked
    }

    /// The directions in which the queue shares memory with the back for this path.
    pub fn shared(&self, path: PathName) -> ActiveLists {
        ActiveLists { tx: self.tx.tx.chain().has(path), rx: self.rx.rx.chain().has(path) }
    }

    /// The directions of this queue in which a back with this offer supports the path.
    pub(super) fn offered(&self, path: PathName, back: &BackFeatures) -> ActiveLists {
        let [tx, rx] = [self.tx.tx.chain(), self.rx.rx.chain()].map(|chain| chain.is_offered(path, back));
        ActiveLists { tx, rx }
    }

    /// Releases the memory of this path, except in the directions that the back accepted. It must
    /// be called before [`go_live`](Self::go_live).
    pub(super) fn give_up(&mut self, path: PathName, takes: ActiveLists, p: &P, regions: &mut Regions<P>) {
        for (chain, takes) in [(self.tx.tx.chain_mut(), takes.tx), (self.rx.rx.chain_mut(), takes.rx)] {
            if !takes {
                chain.give_up(path, p, regions);
            }
        }
    }

    /// Called when the back is connected: uses the memory that was shared and not given up, and
    /// posts RX requests.
    pub fn go_live(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        back: &BackFeatures,
        trust: Trust,
    ) -> Result<(), PlatformError> {
        self.tx.tx.chain_mut().go_live(back);
        self.rx.rx.chain_mut().go_live(back);
        let Rest { ids: [tx_ids, rx_slots], granting, spare, more, .. } = self.rx.rest;
        if !self.tx.tx.chain().is_whole() {
            let pages = OrdinaryPages::new(p, regions, ACCESS[TX], tx_ids, granting)?;
            self.tx.tx.chain_mut().insert(AnyFrontPath::Copy(pages));
        }
        if !self.rx.rx.chain().is_whole() {
            let n = rx_slots + spare;
            let pages = OrdinaryPages::pool(p, regions, ACCESS[RX], n, more)?;
            self.rx.rx.append(pages)?;
        }
        self.tx.tx.settle_ids()?;
        self.rx.rx.settle_buffers()?;
        let [tx, rx] = [self.tx.tx.chain(), self.rx.rx.chain()].map(FrontChain::sent_on);
        if tx > 0 && rx > self.rx.rx.ring_size() {
            self.tx.tx.allow_send_on(tx as u16)?;
        }
        if trust.lends() {
            self.rx.rx.allow_lent();
            if !self.rx.rest.asked.persistent {
                self.tx.tx.allow_pieces()?;
            }
        }
        self.rx.post(p)
    }

    /// Returns the memory, but for pages that the caller has by reference.
    #[inline(never)]
    pub fn end(mut self, p: &P, regions: &mut Regions<P>) -> Option<Unreturned<P>> {
        self.rx.rx.chain_mut().give_up_named(p, regions);
        let ((tx, tx_chain), (rx, rx_chain, loans)) = (self.tx.tx.into_parts(), self.rx.rx.end());
        let Rest { ring_grants: [tx_grants, rx_grants], named, .. } = self.rx.rest;
        let tx = Direction { ring: tx, grants: tx_grants, chain: tx_chain };
        let rx = Granted::from_parts(rx.into_pages(), rx_grants);
        tx.release(p, regions);
        regions.put(p, rx);
        named.into_iter().for_each(|granted| regions.put(p, granted));
        Unreturned::or_release(rx_chain, loans, p, regions)
    }

    /// Sends frames; see [`TxFront::send`].
    #[inline(always)]
    pub fn send(&mut self, p: &P, frames: &impl Frames) -> Result<usize, PlatformError> {
        self.tx.send(p, frames)
    }

    /// Writes frames without publishing them; see [`TxHalf::queue`].
    #[inline(always)]
    pub fn queue(&mut self, p: &P, frames: &impl Frames) -> Result<usize, PlatformError> {
        self.tx.queue(p, frames)
    }

    /// Publishes to the back what was [queued](Self::queue).
    #[inline(always)]
    pub fn publish(&mut self, p: &P) {
        self.tx.publish(p);
    }

    /// Writes a frame whose payload is in pages of the caller; see [`TxHalf::queue_pieces`].
    #[inline(always)]
    pub fn queue_pieces(
        &mut self,
        p: &P,
        frame: &impl Source,
        pieces: &[GrantedPiece],
        ids: &mut [u16],
    ) -> Result<bool, PlatformError> {
        self.tx.queue_pieces(p, frame, pieces, ids)
    }

    /// Returns the id of an answered fragment; see [`TxFront::answered_piece`].
    #[inline(always)]
    pub fn answered_piece(&mut self) -> Option<u16> {
        self.tx.answered_piece()
    }

    /// Sends frames from pages of the guest's own; see [`TxFront::send_own`].
    #[inline(always)]
    pub fn send_own(
        &mut self,
        p: &P,
        memory: &Region<P>,
        frames: &[FrameDesc],
    ) -> Result<usize, PlatformError> {
        self.tx.tx.send_own(p, self.tx.link.tx_chan(), memory, frames)
    }

    /// Sends frames of the guest's own memory whose heads are elsewhere; see
    /// [`TxFront::send_headed`].
    pub fn send_headed(
        &mut self,
        p: &P,
        memory: &Region<P>,
        frames: &[HeadedFrame<'_>],
    ) -> Result<usize, PlatformError> {
        self.tx.tx.send_headed(p, self.tx.link.tx_chan(), memory, frames)
    }

    /// The TX ring and its memory.
    #[inline(always)]
    pub fn tx(&self) -> &TxFront<P> {
        &self.tx.tx
    }

    /// Like [`tx`](Self::tx), mutable, for everything but frames.
    pub fn tx_mut(&mut self) -> &mut TxFront<P> {
        &mut self.tx.tx
    }

    /// The RX ring and its memory.
    #[inline(always)]
    pub fn rx(&self) -> &RxFront<P> {
        &self.rx.rx
    }

    /// Processes TX answers; see [`TxFront::reclaim`].
    #[inline(always)]
    pub fn reclaim(&mut self, p: &P, want: u32) -> Result<u32, PeerFault> {
        let n = self.tx.reclaim(p, want)?;
        if n > 0 && self.tx.tx.sends_on() {
            self.rx.take_returned(&mut self.tx);
            self.rx.post_free(p);
        }
        Ok(n)
    }

    /// Receives frames; see [`RxHalf::recv`].
    #[inline(always)]
    pub fn recv(&mut self, p: &P, to: &mut impl Sink, want: u32) -> Result<usize, PeerFault> {
        self.rx.recv(p, to, want)
    }

    /// Receives frames by reference. `lent` says which frames these are (it is cleared first; clear
    /// `out` too). Each must be [released](super::FrontVif::release) by its token before its pages
    /// are posted again.
    #[inline(always)]
    pub fn recv_by_reference(
        &mut self,
        p: &P,
        out: &mut Arena,
        lent: &mut Lent,
        want: u32,
    ) -> Result<usize, PeerFault> {
        self.rx.recv_by_reference(p, out, lent, want)
    }

    /// Asks `hook` what to do with each received frame and does it, for at most `most` frames, once
    /// at least `want` answers are there; then posts the slots again. Frames that pass are added to
    /// `out`, those for other vifs to `diverted`, which is cleared first. Returns for how many
    /// frames the hook was asked. See [`hook`](super::hook).
    ///
    /// Answers of TX are taken too, so that buffers that were sent on come back.
    #[inline(always)]
    pub fn recv_hooked(
        &mut self,
        p: &P,
        out: &mut Arena,
        diverted: &mut Diverted,
        (want, most): (u32, usize),
        hook: impl FnMut(&mut HookFrame) -> HookAction,
    ) -> Result<usize, PeerFault> {
        diverted.clear();
        if !self.rx.link.is_live() {
            return Ok(0);
        }
        // Done once, not for each frame: the ring's cache lines would bounce between the two ends.
        let waiting = self.tx.tx.in_flight();
        if waiting > 0 {
            let scarce = self.tx.tx.room() < BURST_FRAMES as u32;
            self.reclaim(p, if scarce { 1 } else { waiting.min(BURST_FRAMES as u32 / 2) })?;
        }
        let Self { tx, rx } = self;
        let mut to = Hooked { p, tx: &mut tx.tx, out, diverted, stats: &mut rx.rest.hooked };
        let seen = rx.rx.recv_hooked(&mut to, want, most, hook)?;
        if seen > 0 {
            self.tx.publish(p);
        }
        self.rx.post_free(p);
        Ok(seen)
    }

    /// Counters of the hook's verdicts.
    pub fn hook_stats(&self) -> HookStats {
        self.rx.rest.hooked
    }

    /// Releases a frame; see [`RxFront::release`]. Slots that waited for a page are posted by
    /// [`post_released`](Self::post_released).
    #[inline(always)]
    pub fn release(&mut self, token: Token) -> Result<(), UnknownToken> {
        self.rx.rx.release(token)
    }

    /// Posts the free slots for which there are pages.
    #[inline(always)]
    pub fn post_released(&mut self, p: &P) {
        self.rx.post_free(p);
    }

    /// Like [`rx`](Self::rx), mutable, for its pages.
    pub fn rx_mut(&mut self) -> &mut RxFront<P> {
        &mut self.rx.rx
    }

    /// Number of ordinary pages, for TX and for RX.
    pub fn pages(&self) -> [u32; 2] {
        [self.tx.tx.chain(), self.rx.rx.chain()].map(|chain| chain.pages().map_or(0, OrdinaryPages::ids))
    }

    /// For each direction: true if there are more pages or buffers than slots, so that each page or
    /// buffer rests before it is written again.
    pub fn rests(&self) -> bool {
        self.tx.tx.chain().pages().is_some_and(OrdinaryPages::rest)
    }

    /// The grants of the queue's ordinary pages, TX and RX.
    pub fn page_refs(&self) -> [&[GrantRef]; 2] {
        [self.tx.tx.chain(), self.rx.rx.chain()]
            .map(|chain| chain.pages().map_or(&[][..], OrdinaryPages::refs))
    }

    /// Asks the back to deliver a multicast address, or to stop that; see [`TxFront::multicast`].
    pub fn multicast(&mut self, p: &P, mac: MacAddr, wanted: bool) -> bool {
        self.tx.multicast(p, mac, wanted)
    }

    /// Called before sleeping: arms RX, and with `tx_too` also TX answers (for a caller that waits
    /// for room or for the end of what it sent); without it the back need not notify us for those.
    /// Returns true if there is work.
    pub fn final_check(&mut self, p: &P, tx_too: bool) -> Result<bool, PeerFault> {
        self.final_check_ahead(p, tx_too, 1)
    }

    /// Like [`final_check`](Self::final_check), with an event only when `ahead` RX answers have
    /// arrived that were not taken yet. For callers that wake by themselves before long, since
    /// fewer answers may arrive.
    pub fn final_check_ahead(&mut self, p: &P, tx_too: bool, ahead: u32) -> Result<bool, PeerFault> {
        let rx = self.rx.rx.final_check(ahead)?;
        let tx_too = tx_too || self.rx.rx.wants_buffer();
        let tx = tx_too && self.tx.tx.in_flight() > 0 && self.tx.tx.final_check(1)?;
        // This comes last: an event that arrived since the rings were armed must be kept until
        // here.
        let link = &self.tx.link;
        p.events().unmask(link.tx_chan());
        if link.is_split() {
            p.events().unmask(link.rx_chan());
        }
        Ok(rx || tx)
    }

    /// True if either ring has work, without arming anything.
    pub fn is_pending(&mut self, tx_too: bool) -> bool {
        let tx_too = tx_too || self.rx.rx.wants_buffer();
        self.rx.rx.is_pending() || tx_too && self.tx.tx.in_flight() > 0 && self.tx.tx.is_pending()
    }

    /// The number of answers that the back has published on both rings, which wraps; and whether
    /// sent frames wait for answers.
    pub(super) fn answers_on_rings(&mut self) -> (u32, bool) {
        let (tx, unanswered) = self.tx.tx.slots.ring.answers();
        let (rx, _) = self.rx.rx.ring.answers();
        (tx.wrapping_add(rx), unanswered > 0)
    }

    /// Counters of TX and RX.
    pub fn stats(&self) -> (DirStats, DirStats) {
        (self.tx.tx.stats(), self.rx.rx.stats())
    }

    /// The ports of the queue's event channels at this domain.
    pub fn channels(&self, p: &P) -> (EvtchnPort, Option<EvtchnPort>) {
        let link = &self.tx.link;
        let rx = link.is_split().then(|| p.events().local(link.rx_chan()));
        (p.events().local(link.tx_chan()), rx)
    }
}

impl<P: Platform> FrontQueue<P> {
    /// Splits the queue into its halves, each for an owner of its own. Received buffers that TX is
    /// sending then return to RX once the queue is [whole](Self::of_halves) again.
    pub fn into_halves(self) -> (Box<TxHalf<P>>, Box<RxHalf<P>>) {
        (self.tx, self.rx)
    }

    /// Joins the halves of a queue that was [split](Self::into_halves). Returns them if they belong
    /// to two queues.
    #[allow(clippy::type_complexity)]
    pub fn of_halves(
        tx: Box<TxHalf<P>>,
        rx: Box<RxHalf<P>>,
    ) -> Result<Self, (Box<TxHalf<P>>, Box<RxHalf<P>>)> {
        if !Arc::ptr_eq(&tx.link, &rx.link) {
            return Err((tx, rx));
        }
        let mut queue = Self { tx, rx };
        queue.rx.take_returned(&mut queue.tx);
        Ok(queue)
    }

    /// The state that the queue's halves share.
    pub(super) fn link(&self) -> &Arc<QueueLink<P>> {
        &self.tx.link
    }
}

#[cfg(test)]
mod tests {
    use super::FrontQueue;
    use crate::platform::local::LocalDomain;

    #[test]
    fn a_queue_can_go_to_another_thread() {
        fn is_send<T: Send>() {}
        is_send::<FrontQueue<LocalDomain>>();
        is_send::<(super::TxHalf<LocalDomain>, super::RxHalf<LocalDomain>)>();
    }
}
