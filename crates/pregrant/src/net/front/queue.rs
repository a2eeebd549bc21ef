//! One queue at the front, whole: rings, paths, channels, statistics. Owned by one loop; nothing of
//! it is anybody else's.
//!
//! ```text
//!   Regions --new--> | TX ring, chain, channel | RX ring, chain, channel | --end--> Regions
//!                        send, reclaim             recv, release                     what is lent: Unreturned
//!                              ^------ recv_hooked ------'
//! ```
//! What the back may do is said where it does so: [`tx`](super::tx), [`rx`](super::rx),
//! [`lent`](super::lent).

use super::asked::Asked;
use super::hook::{Diverted, HookAction, HookFrame, HookStats};
use super::lent::{Lent, UnknownToken};
use super::memory::{ACCESS, QueueMemory, RX, TX};
use super::plan::Plan;
use super::regions::{Granted, Granting, Grants, OwnRing, Region, Regions};
use super::rx::RxFront;
use super::rx_hook::Hooked;
use super::tx::TxFront;
use super::unreturned::Unreturned;
use crate::error::{PeerFault, PlatformError};
use crate::net::features::{ActiveLists, BackFeatures, ChannelKeys, QueueKeys};
use crate::net::headers::MacAddr;
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::{AnyFrontPath, Asks, FrontChain, OfPath, PathName};
use crate::net::stats::DirStats;
use crate::platform::{Access, Events, Platform};
use crate::port::{Arena, BURST_FRAMES, FrameDesc, Frames, Offload, Piece, Sink, Token};
use crate::ring::{FrontRing, NetRx, NetTx, RingKind, RingMem, RingPages};
use crate::units::{EvtchnPort, GrantRef};
use alloc::boxed::Box;
use alloc::vec::Vec;

type Chan<P> = <<P as Platform>::Events as Events>::Chan;
type Offered<P> = (Chan<P>, EvtchnPort);

/// Cannot be: all memory was taken.
const NO_RINGS: PlatformError = PlatformError { op: "make a queue without rings", code: -22 };

/// What a queue is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    /// Its memory.
    pub plan: Plan,
    /// A channel for each direction.
    pub split: bool,
    /// How pages of TX and RX are granted. Those of RX stay granted: the same reference is posted
    /// again and again; late, where the back may need no grant.
    pub granting: [Granting; 2],
    /// RX pages beyond the ring's slots.
    pub spare: u32,
    /// No other queue's of the vif.
    pub tag: u16,
}

/// The memory of one direction of a queue that is being set up, or was ended.
struct Direction<K, P: Platform> {
    ring: OwnRing<K, P>,
    grants: Grants,
    chain: FrontChain<P>,
}

impl<K: RingKind, P: Platform> Direction<K, P> {
    /// A ring.
    fn new(p: &P, regions: &mut Regions<P>, order: u32) -> Result<Self, PlatformError> {
        let ring_pages = regions.take_exactly(p, Access::ReadWrite, 1 << order)?;
        let (ring_pages, grants) = ring_pages.into_parts();
        let ring = RingPages::new(ring_pages);
        ring.init();
        Ok(Self { ring, grants, chain: FrontChain::default() })
    }

    fn into_memory(self) -> impl Iterator<Item = Granted<P>> {
        let ring = Granted::from_parts(self.ring.into_pages(), self.grants);
        self.chain.into_memory().chain([ring])
    }
}

/// What a queue has so far, while it is set up.
struct Parts<P: Platform> {
    tx: Option<Direction<NetTx, P>>,
    rx: Option<Direction<NetRx, P>>,
    named: Vec<Granted<P>>,
}

impl<P: Platform> Parts<P> {
    /// Takes all memory that a queue needs; and its keys, but for the channels'. After an error
    /// some of it is there.
    fn take(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        config: QueueConfig,
    ) -> Result<QueueKeys, PlatformError> {
        let Plan { asked, tx_share, tx_order, rx_order } = config.plan;
        let tx = self.tx.insert(Direction::new(p, regions, tx_order)?);
        let rx = self.rx.insert(Direction::new(p, regions, rx_order)?);
        let mut memory = QueueMemory {
            p,
            regions,
            chains: Default::default(),
            slots: [tx.ring.size() / tx_share, rx.ring.size()],
            spare: [0, config.spare],
            granting: config.granting,
            named: Vec::new(),
        };
        let keys = fill(&asked, &mut memory);
        let QueueMemory { chains: [tx_chain, rx_chain], named, .. } = memory;
        (tx.chain, rx.chain, self.named) = (tx_chain, rx_chain, named);
        let (tx_ring, rx_ring) = (tx.grants.refs().to_vec(), rx.grants.refs().to_vec());
        Ok(QueueKeys { tx_ring, rx_ring, ..keys? })
    }

    fn into_memory(self) -> impl Iterator<Item = Granted<P>> {
        let tx = self.tx.into_iter().flat_map(Direction::into_memory);
        tx.chain(self.rx.into_iter().flat_map(Direction::into_memory)).chain(self.named)
    }
}

/// What each path shares, and ordinary pages for what they do not carry.
fn fill<P: Platform>(asked: &Asked, memory: &mut QueueMemory<'_, P>) -> Result<QueueKeys, PlatformError> {
    let mut keys = QueueKeys::start();
    each_path!(Path => {
        *OfPath::<Path>::path_mut(&mut keys) = Path::take_memory(*OfPath::<Path>::path(asked), memory)?;
    });
    for dir in [TX, RX] {
        if !memory.chains[dir].is_whole() {
            let pages = memory.pages(dir)?;
            memory.chains[dir].insert(AnyFrontPath::Copy(pages));
        }
    }
    Ok(keys)
}

/// The queue.
pub struct FrontQueue<P: Platform> {
    tx: TxFront<P>,
    rx: RxFront<P>,
    /// Of the two rings.
    ring_grants: [Grants; 2],
    /// Pages that keys name, and no chain has.
    named: Vec<Granted<P>>,
    tx_chan: Chan<P>,
    /// None: `tx_chan` serves both rings.
    rx_chan: Option<Chan<P>>,
    config: QueueConfig,
    /// TX ids and RX slots.
    ids: [u32; 2],
    hooked: HookStats,
    /// See [`recv_by_arena`](Self::recv_by_arena).
    arena: Option<Box<Arena>>,
}

impl<P: Platform> FrontQueue<P> {
    /// Grants rings and buffers, offers channels; and the keys that say so. Where something of it
    /// is not to be had, nothing is.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        config: QueueConfig,
    ) -> Result<(Self, QueueKeys), PlatformError> {
        let mut parts = Parts { tx: None, rx: None, named: Vec::new() };
        let taken = parts.take(p, regions, config).and_then(|keys| {
            let tx = p.events().offer(regions.to())?;
            let rx = config.split.then(|| p.events().offer(regions.to())).transpose()?;
            Ok((keys, tx, rx))
        });
        match (taken, parts) {
            (Ok((keys, tx_chan, rx_chan)), Parts { tx: Some(tx), rx: Some(rx), named }) => {
                Ok(Self::of(config, tx, rx, named, keys, (tx_chan, rx_chan)))
            }
            (taken, parts) => {
                parts.into_memory().for_each(|granted| regions.put(p, granted));
                Err(taken.err().unwrap_or(NO_RINGS))
            }
        }
    }

    fn of(
        config: QueueConfig,
        tx: Direction<NetTx, P>,
        rx: Direction<NetRx, P>,
        named: Vec<Granted<P>>,
        keys: QueueKeys,
        ((tx_chan, tx_port), rx_chan): (Offered<P>, Option<Offered<P>>),
    ) -> (Self, QueueKeys) {
        let (rx_chan, channels) = match rx_chan {
            Some((chan, rx)) => (Some(chan), ChannelKeys::Split { tx: tx_port, rx }),
            None => (None, ChannelKeys::Single(tx_port)),
        };
        let queue = Self {
            ids: [tx.chain.ids(), rx.ring.size()],
            tx: TxFront::new(FrontRing::new(tx.ring), tx.chain),
            rx: RxFront::new(FrontRing::new(rx.ring), rx.chain, config.tag),
            ring_grants: [tx.grants, rx.grants],
            named,
            tx_chan,
            rx_chan,
            config,
            hooked: HookStats::default(),
            arena: None,
        };
        (queue, QueueKeys { channels, ..keys })
    }

    /// What it asks for of the paths.
    pub fn asked(&self) -> &Asked {
        &self.config.plan.asked
    }

    /// In which directions it shares memory for this path with the back.
    pub fn shared(&self, path: PathName) -> ActiveLists {
        ActiveLists { tx: self.tx.chain().has(path), rx: self.rx.chain().has(path) }
    }

    /// In which directions such a back can have that.
    pub(super) fn offered(&self, path: PathName, back: &BackFeatures) -> ActiveLists {
        let [tx, rx] = [self.tx.chain(), self.rx.chain()].map(|chain| chain.is_offered(path, back));
        ActiveLists { tx, rx }
    }

    /// Does without the memory of this path, but in directions that the back takes. Before
    /// [`go_live`](Self::go_live).
    pub(super) fn give_up(&mut self, path: PathName, takes: ActiveLists, p: &P, regions: &mut Regions<P>) {
        for (chain, takes) in [(self.tx.chain_mut(), takes.tx), (self.rx.chain_mut(), takes.rx)] {
            if !takes {
                chain.give_up(path, p, regions);
            }
        }
    }

    /// The back is connected: goes on with what is left of what was shared, and posts RX.
    pub fn go_live(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        back: &BackFeatures,
    ) -> Result<(), PlatformError> {
        self.tx.chain_mut().go_live(back);
        self.rx.chain_mut().go_live(back);
        let [tx, rx] = [self.tx.chain(), self.rx.chain()].map(FrontChain::sent_on);
        if tx > 0 && rx > self.rx.ring_size() {
            self.tx.allow_send_on(tx as u16);
        }
        let [tx_ids, rx_slots] = self.ids;
        if !self.tx.chain().is_whole() {
            let pages = OrdinaryPages::new(p, regions, ACCESS[TX], tx_ids, self.config.granting[TX])?;
            self.tx.chain_mut().insert(AnyFrontPath::Copy(pages));
        }
        if !self.rx.chain().is_whole() {
            let n = rx_slots + self.config.spare;
            let pages = OrdinaryPages::new(p, regions, ACCESS[RX], n, Granting::Standing)?;
            self.rx.append(pages);
        }
        self.post(p)
    }

    fn post(&mut self, p: &P) -> Result<(), PlatformError> {
        self.rx.post(p, self.rx_chan.as_ref().unwrap_or(&self.tx_chan))
    }

    /// Gives the memory back, but for what is lent.
    pub fn end(mut self, p: &P, regions: &mut Regions<P>) -> Option<Unreturned<P>> {
        self.rx.chain_mut().give_up_named(p, regions);
        let ((tx, tx_chain), (rx, rx_chain, loans)) = (self.tx.into_parts(), self.rx.end());
        let [tx_grants, rx_grants] = self.ring_grants;
        let tx = Direction { ring: tx, grants: tx_grants, chain: tx_chain };
        let rx = Granted::from_parts(rx.into_pages(), rx_grants);
        tx.into_memory().chain([rx]).chain(self.named).for_each(|granted| regions.put(p, granted));
        Unreturned::or_release(rx_chain, loans, p, regions)
    }

    /// Sends frames; see [`TxFront::send`].
    #[inline(always)]
    pub fn send(&mut self, p: &P, frames: &impl Frames) -> Result<usize, PlatformError> {
        self.tx.send(p, &self.tx_chan, frames)
    }

    /// Writes frames to the ring, and shows the back none: [`publish`](Self::publish) does, before
    /// the sender waits for anything. See [`TxFront::queue`].
    #[inline(always)]
    pub fn queue(&mut self, p: &P, frames: &impl Frames) -> Result<usize, PlatformError> {
        self.tx.queue(p, frames)
    }

    /// Shows the back what was [queued](Self::queue).
    #[inline(always)]
    pub fn publish(&mut self, p: &P) {
        self.tx.publish(p, &self.tx_chan);
    }

    /// Sends frames from pages of the guest's own; see [`TxFront::send_own`].
    #[inline(always)]
    pub fn send_own(
        &mut self,
        p: &P,
        memory: &Region<P>,
        frames: &[FrameDesc],
    ) -> Result<usize, PlatformError> {
        self.tx.send_own(p, &self.tx_chan, memory, frames)
    }

    /// Its TX half.
    #[inline(always)]
    pub fn tx(&self) -> &TxFront<P> {
        &self.tx
    }

    /// The same, for what is not about frames.
    pub fn tx_mut(&mut self) -> &mut TxFront<P> {
        &mut self.tx
    }

    /// Its RX half.
    #[inline(always)]
    pub fn rx(&self) -> &RxFront<P> {
        &self.rx
    }

    /// Takes TX answers; see [`TxFront::reclaim`].
    #[inline(always)]
    pub fn reclaim(&mut self, p: &P, want: u32) -> Result<u32, PeerFault> {
        let n = self.tx.reclaim(p, want)?;
        if n > 0 && self.tx.sends_on() {
            while let Some(buffer) = self.tx.returned() {
                self.rx.give_back(buffer);
            }
            self.post_free(p);
        }
        Ok(n)
    }

    /// Receives frames, as many as `to` takes and once at least `want` answers are there, and posts
    /// their slots again.
    #[inline(always)]
    pub fn recv(&mut self, p: &P, to: &mut impl Sink, want: u32) -> Result<usize, PeerFault> {
        if self.rx.chain().fetches() && to.arena().is_none() {
            return self.recv_by_arena(p, to, want);
        }
        let n = self.rx.recv(to, want)?;
        if let Some(out) = to.arena() {
            self.rx.fetch(p, out);
        }
        self.post_free(p);
        Ok(n)
    }

    /// The same by way of an arena, where frames come by a path that fills many at once. The first
    /// call makes it.
    #[cold]
    fn recv_by_arena(&mut self, p: &P, to: &mut impl Sink, want: u32) -> Result<usize, PeerFault> {
        let mut arena = self.arena.take().unwrap_or_default();
        arena.clear();
        let mut most = AtMost { arena: &mut arena, most: to.takes() };
        let n = self.rx.recv(&mut most, want);
        self.rx.fetch(p, &mut arena);
        for i in 0..arena.len() {
            let FrameDesc { at, len, offload } = arena.desc(i);
            let (at, len) = (at as usize, len as usize);
            let bytes = arena.bytes_mut().get_mut(at..at + len).filter(|bytes| !bytes.is_empty());
            let Some(bytes) = bytes else { continue };
            if !to.take(len, offload, core::iter::once(Piece::from(bytes))) {
                self.rx.note_dropped();
            }
        }
        self.arena = Some(arena);
        self.post_free(p);
        n
    }

    /// Receives frames by reference: those that `lent` says (it is cleared first, as `out` is to
    /// be) are to be [released](super::FrontVif::release), each by its token, before their pages
    /// are posted again.
    #[inline(always)]
    pub fn recv_by_reference(
        &mut self,
        p: &P,
        out: &mut Arena,
        lent: &mut Lent,
        want: u32,
    ) -> Result<usize, PeerFault> {
        lent.clear();
        let n = self.rx.recv_by_reference(out, lent, want)?;
        self.rx.fetch(p, out);
        self.post_free(p);
        Ok(n)
    }

    /// Asks `hook` what is to become of the frames that are there, at most `most` and once at least
    /// `want` answers are, and does it; posts their slots again. Those that it lets pass are added
    /// to `out`, those for other vifs to `diverted`, which is cleared first. Returns how many it
    /// was asked of. See [`hook`](super::hook).
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
        // Not for each of them: the ring's lines would go to and fro.
        let waiting = self.tx.in_flight();
        if waiting > 0 {
            let scarce = self.tx.room() < BURST_FRAMES as u32;
            self.reclaim(p, if scarce { 1 } else { waiting.min(BURST_FRAMES as u32 / 2) })?;
        }
        let Self { tx, rx, hooked, .. } = self;
        let mut to = Hooked { p, tx, out, diverted, stats: hooked };
        let seen = rx.recv_hooked(&mut to, want, most, hook)?;
        if seen > 0 {
            self.tx.publish(p, &self.tx_chan);
        }
        self.post_free(p);
        Ok(seen)
    }

    /// What hooks said of its frames.
    pub fn hook_stats(&self) -> HookStats {
        self.hooked
    }

    #[inline(always)]
    fn post_free(&mut self, p: &P) {
        // Not only after frames: a ringful of error answers frees slots too.
        if self.rx.has_free() {
            // Standing grants: posting cannot fail.
            let _ = self.post(p);
        }
    }

    /// See [`RxFront::release`]. Slots that waited for a page are posted by
    /// [`post_released`](Self::post_released).
    #[inline(always)]
    pub fn release(&mut self, token: Token) -> Result<(), UnknownToken> {
        self.rx.release(token)
    }

    /// Posts the slots that there are pages for again.
    #[inline(always)]
    pub fn post_released(&mut self, p: &P) {
        self.post_free(p);
    }

    /// The grants of its ordinary pages, TX and RX.
    pub fn page_refs(&self) -> [&[GrantRef]; 2] {
        [self.tx.chain(), self.rx.chain()].map(|chain| chain.pages().map_or(&[][..], OrdinaryPages::refs))
    }

    /// See [`TxFront::multicast`].
    pub fn multicast(&mut self, p: &P, mac: MacAddr, wanted: bool) -> bool {
        self.tx.multicast(p, &self.tx_chan, mac, wanted)
    }

    /// Before sleeping: arms RX, and (`tx_too`: somebody waits for room or for the end of what was
    /// sent) TX answers; else the back need not wake us for them. True: there is work.
    pub fn final_check(&mut self, p: &P, tx_too: bool) -> Result<bool, PeerFault> {
        let rx = self.rx.final_check(1)?;
        let tx_too = tx_too || self.rx.wants_buffer();
        let tx = tx_too && self.tx.in_flight() > 0 && self.tx.final_check(1)?;
        // Last: an event that came since the rings were armed is kept until here.
        p.events().unmask(&self.tx_chan);
        if let Some(chan) = &self.rx_chan {
            p.events().unmask(chan);
        }
        Ok(rx || tx)
    }

    /// Whether either ring has work for us; nothing is armed.
    pub fn is_pending(&mut self, tx_too: bool) -> bool {
        let tx_too = tx_too || self.rx.wants_buffer();
        self.rx.is_pending() || tx_too && self.tx.in_flight() > 0 && self.tx.is_pending()
    }

    /// Counters.
    pub fn stats(&self) -> (DirStats, DirStats) {
        (self.tx.stats(), self.rx.stats())
    }

    /// Our channels: which local ends mean it.
    pub fn channels(&self, p: &P) -> (EvtchnPort, Option<EvtchnPort>) {
        (p.events().local(&self.tx_chan), self.rx_chan.as_ref().map(|c| p.events().local(c)))
    }
}

/// An arena that takes so many frames and no more.
struct AtMost<'a> {
    arena: &'a mut Arena,
    most: usize,
}

impl Sink for AtMost<'_> {
    fn takes(&self) -> usize {
        self.arena.takes().min(self.most - self.arena.len().min(self.most))
    }
    fn take<'a>(&mut self, len: usize, offload: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        self.arena.take(len, offload, pieces)
    }
    fn arena(&mut self) -> Option<&mut Arena> {
        Some(self.arena)
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
    }
}
