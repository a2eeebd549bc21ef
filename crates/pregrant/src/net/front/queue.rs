//! One queue at the front, whole: rings, paths, channels, statistics. Owned by one loop; nothing of it is anybody else's.
//!
//! ```text
//!   Regions --new--> | TX ring, chain, channel | RX ring, chain, channel | --end--> Regions
//!                        send, reclaim             recv, release                     what is lent: LentPages
//!                              ^------ recv_hooked ------'
//! ```
//! What the back may do is said where it does so: [`tx`](super::tx), [`rx`](super::rx), [`loans`](super::loans).

use super::hook::{Diverted, HookFrame, HookStats, Verdict};
use super::lent_pages::LentPages;
use super::loans::{Lent, UnknownToken};
use super::plan::Plan;
use super::regions::{Granted, Granting, Grants, OwnRing, Region, Regions};
use super::rx::RxFront;
use super::rx_hook::Hooked;
use super::tx::{TxFront, TxLimits};
use crate::error::{PeerFault, PlatformError};
use crate::net::features::{ActiveLists, ChannelKeys, DataKeys, DataRequest, QueueKeys};
use crate::net::headers::MacAddr;
use crate::net::path::FrontChain;
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::data_ring::front::{DataArea, RecvArea, SendArea};
use crate::net::path::gref_mapping::cache::GrefCache;
use crate::net::path::guest_copy::front::BorrowedPages;
use crate::net::path::staging::front::StagingArea;
use crate::net::path::staging::keys::{FIRST_SLOTS_SINCE, SENT_ON_SINCE};
use crate::net::path::staging::list::{DataLen, LIST_ENTRIES_MAX};
use crate::net::stats::DirStats;
use crate::platform::{Access, Events, Platform};
use crate::port::{Arena, BURST_FRAMES, Burst, FrameDesc, Piece, Token};
use crate::ring::{FrontRing, NetRx, NetTx, RingKind, RingMem, RingPages};
use crate::units::{EvtchnPort, GrantRef};
use crate::wire::netif::RX_FOREIGN;
use alloc::vec::Vec;

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// What a queue is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    /// Its memory.
    pub plan: Plan,
    /// A channel for each direction.
    pub split: bool,
    /// How TX pages are granted. Those of RX stay granted: the same reference is posted again and again.
    pub granting: Granting,
    /// Those of RX are granted when they are first posted, for a back that may need no grant.
    pub rx_late: bool,
    /// The back is asked to lend pages for RX, where staging does not carry every frame.
    pub borrows: bool,
    /// RX pages beyond the ring's slots.
    pub spare: u32,
    /// RX staging buffers beyond the ring's slots, as far as its list has room: as many as can be on TX.
    pub spare_buffers: u32,
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
    /// All of it, or none and an error. `first_id`: of its staging list. `pages`: how they are granted, and how many beyond the ids.
    fn new(
        p: &P,
        regions: &mut Regions<P>,
        (acc, order): (Access, u32),
        (len, share, first_id): (Option<DataLen>, u32, u16),
        spare_buffers: u32,
        pages: (Granting, u32),
    ) -> Result<Self, PlatformError> {
        let ring_pages = regions.take_exactly(p, Access::ReadWrite, 1 << order)?;
        let (ring_pages, grants) = ring_pages.into_parts();
        let ring = RingPages::new(ring_pages);
        ring.init();
        let n = ring.size() / share;
        let entries = (n + spare_buffers).min(LIST_ENTRIES_MAX as u32);
        let staging = len.map(|len| StagingArea::new(p, regions, acc, len, entries, first_id)).transpose();
        let staging = match staging {
            Ok(staging) => staging,
            Err(e) => {
                regions.put(p, Granted::from_parts(ring.into_pages(), grants));
                return Err(e);
            }
        };
        let mut direction = Self { ring, grants, chain: FrontChain::new(staging, None) };
        if !direction.chain.is_whole() {
            match OrdinaryPages::new(p, regions, acc, n + pages.1, pages.0) {
                Ok(pages) => direction.chain.append(pages),
                Err(e) => {
                    direction.release(p, regions);
                    return Err(e);
                }
            }
        }
        Ok(direction)
    }

    fn keys(&self) -> DataRequest {
        let keys =
            |area: &StagingArea<P>| DataKeys { list_refs: Vec::from(area.list_refs()), len: area.data_len() };
        DataRequest::from(self.chain.staging().map(keys))
    }

    fn release(self, p: &P, regions: &mut Regions<P>) {
        self.chain.release(p, regions);
        regions.put(p, Granted::from_parts(self.ring.into_pages(), self.grants));
    }
}

/// The queue.
pub struct FrontQueue<P: Platform> {
    tx: TxFront<P>,
    rx: RxFront<P>,
    /// Of the two rings.
    ring_grants: [Grants; 2],
    /// The page that names the data ring's; None: there is none.
    index: Option<Granted<P>>,
    tx_chan: Chan<P>,
    /// None: `tx_chan` serves both rings.
    rx_chan: Option<Chan<P>>,
    config: QueueConfig,
    /// TX ids and RX slots.
    ids: [u32; 2],
    hooked: HookStats,
}

impl<P: Platform> FrontQueue<P> {
    /// Grants rings and buffers, offers channels; and the keys that say so. Where something of it is not to be had, nothing is.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        config: QueueConfig,
    ) -> Result<(Self, QueueKeys), PlatformError> {
        let Plan { tx_len, rx_len, data_ring, tx_share, tx_order, rx_order } = config.plan;
        let tx = Direction::<NetTx, P>::new(
            p,
            regions,
            (Access::ReadOnly, tx_order),
            (tx_len, tx_share, 0),
            0,
            (config.granting, 0),
        )?;
        let first_rx = tx.chain.staging().map_or(0, |area| area.entries() as u16);
        let rx_granting = if config.rx_late { Granting::PerFrame } else { Granting::Standing };
        let rx = match Direction::<NetRx, P>::new(
            p,
            regions,
            (Access::ReadWrite, rx_order),
            (rx_len, 1, first_rx),
            if tx_len.is_some() { config.spare_buffers.min(tx.chain.ids()) } else { 0 },
            (rx_granting, config.spare),
        ) {
            Ok(rx) => rx,
            Err(e) => {
                tx.release(p, regions);
                return Err(e);
            }
        };
        // Where staging carries every frame, nothing would be left for it.
        let wanted = [&tx.chain, &rx.chain].map(|chain| chain.pages().is_some());
        let area = data_ring
            .filter(|_| wanted.contains(&true))
            .map(|order| DataArea::new(p, regions, order, wanted, tx.chain.ids()));
        let area = match area.transpose() {
            Ok(area) => area,
            Err(e) => {
                tx.release(p, regions);
                rx.release(p, regions);
                return Err(e);
            }
        };
        let list =
            (config.borrows && wanted[1]).then(|| regions.take(p, Access::ReadWrite, 1, Granting::Standing));
        let list = match list.transpose() {
            Ok(list) => list,
            Err(e) => {
                tx.release(p, regions);
                rx.release(p, regions);
                if let Some(area) = area {
                    area.release(p, regions);
                }
                return Err(e);
            }
        };
        let to = regions.to();
        let offered = p.events().offer(to).and_then(|tx| {
            let rx = if config.split { Some(p.events().offer(to)?) } else { None };
            Ok((tx, rx))
        });
        let ((tx_chan, tx_port), rx_chan) = match offered {
            Ok(offered) => offered,
            Err(e) => {
                tx.release(p, regions);
                rx.release(p, regions);
                if let Some(area) = area {
                    area.release(p, regions);
                }
                list.into_iter().for_each(|list| regions.put(p, list));
                return Err(e);
            }
        };
        let borrowed = list.map(|list| BorrowedPages::new(list, to));
        let (rx_chan, channels) = match rx_chan {
            Some((chan, rx)) => (Some(chan), ChannelKeys::Split { tx: tx_port, rx }),
            None => (None, ChannelKeys::Single(tx_port)),
        };
        let keys = QueueKeys {
            tx_ring: tx.grants.refs().to_vec(),
            rx_ring: rx.grants.refs().to_vec(),
            channels,
            tx_data: tx.keys(),
            rx_data: rx.keys(),
            data_ring: area.as_ref().map(DataArea::index_ref).into(),
            guest_copy: borrowed.as_ref().map(BorrowedPages::list_ref).into(),
        };
        let (index, out, within) = match area {
            Some(DataArea { index, out, within }) => (Some(index), out, within),
            None => (None, None, None),
        };
        let mut queue = Self {
            ids: [tx.chain.ids(), rx.ring.size()],
            tx: TxFront::new(FrontRing::new(tx.ring), tx.chain),
            rx: RxFront::new(FrontRing::new(rx.ring), rx.chain, config.tag),
            ring_grants: [tx.grants, rx.grants],
            index,
            tx_chan,
            rx_chan,
            config,
            hooked: HookStats::default(),
        };
        queue.tx.set_area(out);
        queue.rx.set_area(within);
        queue.rx.set_borrowed(borrowed);
        Ok((queue, keys))
    }

    /// Tells what the back takes.
    pub fn limit(&mut self, limits: TxLimits) {
        self.tx.limit(limits);
    }

    /// The back has mapped all of this domain: pages are named by their frames. Before [`go_live`](Self::go_live).
    pub fn name_frames(&mut self, p: &P) {
        self.tx.chain_mut().name_frames(p, 0);
        self.rx.chain_mut().name_frames(p, RX_FOREIGN);
    }

    /// The back lends no pages. Before [`go_live`](Self::go_live).
    pub fn give_up_borrowed(&mut self, p: &P, regions: &mut Regions<P>) {
        let list = self.rx.take_borrowed().map(BorrowedPages::into_granted);
        list.into_iter().for_each(|list| regions.put(p, list));
    }

    /// Whether it does.
    pub fn borrows(&self) -> bool {
        self.rx.has_borrowed()
    }

    /// Whether they are.
    pub fn names_frames(&self) -> bool {
        self.tx.chain().names_frames()
    }

    /// The back is connected: goes on without those staging lists, and halves of the data ring, that it did not accept, and posts
    /// RX. Of the rules of the staging `revision` are [first slots](StagingArea::set_first_slots) and
    /// [buffers that are sent on](TxFront::allow_send_on).
    pub fn go_live(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        active: ActiveLists,
        data_ring: ActiveLists,
        revision: u32,
    ) -> Result<(), PlatformError> {
        // First what goes: memory may be short.
        if !active.tx {
            self.tx.chain_mut().give_up_staging(p, regions);
        }
        if !active.rx {
            self.rx.chain_mut().give_up_staging(p, regions);
        }
        let out = if data_ring.tx { None } else { self.tx.take_area() };
        let within = if data_ring.rx { None } else { self.rx.take_area() };
        let halves = [out.map(SendArea::into_granted), within.map(RecvArea::into_granted)];
        halves.into_iter().flatten().for_each(|granted| regions.put(p, granted));
        self.tx.chain_mut().set_first_slots(revision >= FIRST_SLOTS_SINCE);
        self.rx.chain_mut().set_first_slots(revision >= FIRST_SLOTS_SINCE);
        if let (Some(tx), Some(rx)) = (self.tx.chain().staging(), self.rx.chain().staging())
            && revision >= SENT_ON_SINCE
            && rx.entries() > self.rx.ring_size()
        {
            let first_id = tx.entries() as u16;
            self.tx.allow_send_on(first_id);
        }
        let [tx_ids, rx_slots] = self.ids;
        if !self.tx.chain().is_whole() {
            let pages = OrdinaryPages::new(p, regions, Access::ReadOnly, tx_ids, self.config.granting)?;
            self.tx.chain_mut().append(pages);
        }
        if !self.rx.chain().is_whole() {
            let n = rx_slots + self.config.spare;
            let pages = OrdinaryPages::new(p, regions, Access::ReadWrite, n, Granting::Standing)?;
            self.rx.append(pages);
        }
        self.post(p)
    }

    fn post(&mut self, p: &P) -> Result<(), PlatformError> {
        self.rx.post(p, self.rx_chan.as_ref().unwrap_or(&self.tx_chan))
    }

    /// Gives the memory back, but for what is lent.
    pub fn end(mut self, p: &P, regions: &mut Regions<P>) -> Option<LentPages<P>> {
        self.give_up_borrowed(p, regions);
        let (out, within) = (self.tx.take_area(), self.rx.take_area());
        let halves = [out.map(SendArea::into_granted), within.map(RecvArea::into_granted), self.index];
        halves.into_iter().flatten().for_each(|granted| regions.put(p, granted));
        let ((tx, tx_chain), (rx, rx_chain, loans)) = (self.tx.into_parts(), self.rx.end());
        let [tx_grants, rx_grants] = self.ring_grants;
        Direction { ring: tx, grants: tx_grants, chain: tx_chain }.release(p, regions);
        regions.put(p, Granted::from_parts(rx.into_pages(), rx_grants));
        LentPages::or_release(rx_chain, loans, p, regions)
    }

    /// Sends frames; see [`TxFront::send`].
    #[inline(always)]
    pub fn send(&mut self, p: &P, burst: &Burst<'_>) -> Result<usize, PlatformError> {
        self.tx.send(p, &self.tx_chan, burst)
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

    /// See [`TxFront::set_cache`].
    pub fn set_cache(&mut self, cache: GrefCache) {
        self.tx.set_cache(cache);
    }

    /// See [`TxFront::take_cache`].
    pub fn take_cache(&mut self) -> Option<GrefCache> {
        self.tx.take_cache()
    }

    /// See [`TxFront::cache`].
    pub fn cache(&self) -> Option<&GrefCache> {
        self.tx.cache()
    }

    /// See [`TxFront::cache_mut`].
    pub fn cache_mut(&mut self) -> Option<&mut GrefCache> {
        self.tx.cache_mut()
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

    /// Receives frames and posts their slots again.
    #[inline(always)]
    pub fn recv(&mut self, p: &P, out: &mut Arena, want: u32) -> Result<usize, PeerFault> {
        let n = self.rx.recv(out, want)?;
        self.rx.fetch_borrowed(p, out);
        self.post_free(p);
        Ok(n)
    }

    /// Receives frames by reference: those that `lent` says (it is cleared first, as `out` is to be) are to be
    /// [released](super::FrontVif::release), each by its token, before their pages are posted again.
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
        self.rx.fetch_borrowed(p, out);
        self.post_free(p);
        Ok(n)
    }

    /// Asks `hook` what is to become of the frames that are there, at most `most` and once at least `want` answers are, and does it;
    /// posts their slots again. Those that it lets pass are added to `out`, those for other vifs to `diverted`, which is cleared first.
    /// Returns how many it was asked of. See [`hook`](super::hook).
    ///
    /// Answers of TX are taken too, so that buffers that were sent on come back.
    #[inline(always)]
    pub fn recv_hooked(
        &mut self,
        p: &P,
        out: &mut Arena,
        diverted: &mut Diverted,
        (want, most): (u32, usize),
        hook: impl FnMut(&mut HookFrame) -> Verdict,
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

    /// RX staging buffers: those of slots, spare ones, and those that are on TX.
    pub fn buffers(&self) -> [usize; 3] {
        self.rx.buffers().holds()
    }

    /// Whether received buffers can be sent on as they are.
    pub fn sends_on(&self) -> bool {
        self.tx.sends_on()
    }

    #[inline(always)]
    fn post_free(&mut self, p: &P) {
        // Not only after frames: a ringful of error answers frees slots too.
        if self.rx.has_free() {
            // Standing grants: posting cannot fail.
            let _ = self.post(p);
        }
    }

    /// See [`RxFront::piece`].
    #[inline(always)]
    pub fn piece(&self, token: Token, k: usize) -> Option<Piece<'_>> {
        self.rx.piece(token, k)
    }

    /// See [`RxFront::release`]. Slots that waited for a page are posted by [`post_released`](Self::post_released).
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

    /// See [`TxFront::multicast_wishes`].
    pub fn multicast_wishes(&self) -> (usize, u64) {
        self.tx.multicast_wishes()
    }

    /// TX slots that are free.
    pub fn room(&self) -> u32 {
        self.tx.room()
    }

    /// TX requests without an answer.
    pub fn in_flight(&self) -> u32 {
        self.tx.in_flight()
    }

    /// TX requests that can be in flight.
    pub fn tx_ids(&self) -> u32 {
        self.tx.chain().ids()
    }

    /// Frames that are lent.
    pub fn lent(&self) -> u32 {
        self.rx.lent()
    }

    /// Before sleeping: arms RX, and (`tx_too`: somebody waits for room or for the end of what was sent) TX answers; else the back
    /// need not wake us for them. True: there is work.
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

    /// Bytes of a frame that fit a staging buffer, TX and RX; None: ordinary grants.
    pub fn staging_lens(&self) -> (Option<DataLen>, Option<DataLen>) {
        let of = |chain: &FrontChain<P>| chain.staging().map(StagingArea::data_len);
        (of(self.tx.chain()), of(self.rx.chain()))
    }

    /// Which directions go through a data ring.
    pub fn data_ring(&self) -> ActiveLists {
        ActiveLists { tx: self.tx.has_area(), rx: self.rx.has_area() }
    }

    /// Bytes of shared memory in staging buffers and lists.
    pub fn staging_bytes(&self) -> usize {
        let of = |chain: &FrontChain<P>| chain.staging().map_or(0, StagingArea::memory_bytes);
        of(self.tx.chain()) + of(self.rx.chain())
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
