//! One vif at the front: from the back's offer to live queues, and back.
//!
//! ```text
//!   1 Initialising --back at 2: grant, offer channels, write keys--> 4 Connected --back at 4: live-->
//!         ^                                                                       | back at 5 or 6
//!         +------------------- 6 Closed <----------- 5 Closing <-----------------+
//! ```
//! Every step is taken in [`FrontVif::step`], which the owner calls when a watch fired; none runs on the data path. RX
//! requests are posted, and staging is used, only once the back is connected and has said which lists it accepted. What
//! a back may do: offer anything, accept nothing, close at any time, keep pages mapped. A front that reconnects offers it the
//! same pages again ([`regions`](super::regions)), not without pause ([`backoff`](super::backoff)). Frames that are on
//! the rings when the back closes are lost, as on any Ethernet whose cable is pulled.

use super::backoff::Backoff;
use super::ctrl::CtrlFront;
use super::plan::{Plan, plans};
use super::regions::{Granted, Grants, Region, Regions};
use super::tx::TxLimits;
use super::{Buffers, RxFront, TxFront};
use crate::error::{PeerFault, PlatformError};
use crate::net::features::{
    BackFeatures, ChannelKeys, DataKeys, DataRequest, FrontRequest, QueueKeys, active_key,
    of_front_connection,
};
use crate::net::front::regions::Granting;
use crate::net::headers::MacAddr;
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::staging::front::StagingArea;
use crate::net::path::staging::list::DataLen;
use crate::net::stats::DirStats;
use crate::platform::{Access, Clock, Events, Platform};
use crate::port::{Arena, Burst, Offloads};
use crate::ring::{FrontRing, NetRx, NetTx, RingKind, RingMem, RingPages};
use crate::units::{DomId, EvtchnPort};
use crate::xenbus::bus::DeviceBus;
use crate::xenbus::key_source::Pairs;
use crate::xenbus::state::{self, Handshake, Reaction, STEPS_AT_ONCE, XenbusState};
use alloc::vec::Vec;
use core::fmt;

/// What a front would like; it gets what the back offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontConfig {
    /// Queues.
    pub queues: u32,
    /// Bytes of a TX frame that fit a staging buffer; None: ordinary grants.
    pub tx_data_len: Option<DataLen>,
    /// The same for RX.
    pub rx_data_len: Option<DataLen>,
    /// How ordinary TX pages are granted.
    pub granting: Granting,
    /// Two event channels for each queue, where the back can.
    pub split_channels: bool,
    /// Pages are granted once and used again and again, where the back keeps them mapped.
    pub persistent: bool,
    /// A control ring, where the back answers one.
    pub ctrl_ring: bool,
    /// Only those multicast frames that are [named](FrontVif::multicast), where the back can leave the others out.
    pub multicast_control: bool,
}

impl Default for FrontConfig {
    fn default() -> Self {
        let len = DataLen::new(256);
        Self {
            queues: 1,
            tx_data_len: len,
            rx_data_len: len,
            granting: Granting::PerFrame,
            split_channels: true,
            persistent: false,
            ctrl_ring: false,
            multicast_control: false,
        }
    }
}

/// What went wrong. The vif is to be closed.
#[derive(Debug)]
pub enum FrontError<E> {
    /// Keys: missing, garbled, or the store failed.
    Keys(E),
    /// No memory, grant or channel to be had.
    Platform(PlatformError),
    /// The back does not copy into our pages (`feature-rx-copy` is not 1), and there is no other way.
    NoRxCopy,
}

impl<E: fmt::Display> fmt::Display for FrontError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(e) => e.fmt(f),
            Self::Platform(e) => e.fmt(f),
            Self::NoRxCopy => {
                f.write_str("the back does not offer feature-rx-copy = 1, and this front knows no other way")
            }
        }
    }
}

impl<E> From<PlatformError> for FrontError<E> {
    fn from(e: PlatformError) -> Self {
        Self::Platform(e)
    }
}

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// The memory of one direction of a queue that is being set up.
struct Direction<K, P: Platform> {
    ring: RingPages<K, Region<P>>,
    ring_grants: Grants,
    buffers: Buffers<P>,
}

struct FrontQueue<P: Platform> {
    tx: TxFront<P>,
    rx: RxFront<P>,
    /// Of the two rings.
    ring_grants: [Grants; 2],
    tx_chan: Chan<P>,
    /// None: `tx_chan` serves both rings.
    rx_chan: Option<Chan<P>>,
}

/// What [`FrontVif::step`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrontStep {
    /// Nothing to do until the next watch event.
    Waiting,
    /// The queues are live now.
    Live,
    /// The queues are gone now.
    Closed,
}

/// One vif, served by one domain.
pub struct FrontVif<P: Platform> {
    state: XenbusState,
    config: FrontConfig,
    queues: Vec<FrontQueue<P>>,
    ctrl: Option<CtrlFront<P>>,
    live: bool,
    reconnect: bool,
    /// What is granted to the back and not in use.
    regions: Regions<P>,
    backoff: Backoff,
    begins_at_ns: Option<u64>,
    /// By queue: whether the back accepted our staging lists.
    accepted: Vec<bool>,
    /// Why the queues are fewer or smaller than wished for.
    shortage: Option<PlatformError>,
    /// What the back takes unfinished.
    takes: Offloads,
    /// Both ends keep pages; as of the last set-up.
    persistent: bool,
}

impl<P: Platform> FrontVif<P> {
    /// A vif whose toolstack's state is 1.
    pub fn new(to: DomId, config: FrontConfig, reconnect: bool) -> Self {
        Self {
            state: XenbusState::Initialising,
            config,
            queues: Vec::new(),
            ctrl: None,
            live: false,
            reconnect,
            regions: Regions::new(to),
            backoff: Backoff::default(),
            begins_at_ns: None,
            accepted: Vec::new(),
            shortage: None,
            takes: Offloads::default(),
            persistent: false,
        }
    }

    /// Begins where a predecessor in this domain (a front that died, the kernel's netfront) left the device: what is
    /// connected is brought down first, what is closed begins again. Before the first [`step`](Self::step), and only for one
    /// that reconnects.
    pub fn succeed<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        use XenbusState as S;
        match bus.own_state()? {
            S::Initialising | S::Unknown => {}
            S::Closed => self.state = S::Closed,
            _ => {
                bus.set_state(S::Closing)?;
                self.state = S::Closing;
            }
        }
        Ok(())
    }

    /// Our own state.
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// Whether frames can travel.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Looks at the back's state and takes what steps it allows. After an error call [`close`](Self::close).
    pub fn step<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<FrontStep, FrontError<B::Error>> {
        use XenbusState as S;
        self.begins_at_ns = None;
        self.release_unneeded(p);
        let mut came_to = FrontStep::Waiting;
        for _ in 0..STEPS_AT_ONCE {
            let back = bus.peer_state().map_err(FrontError::Keys)?;
            let next = match state::front(self.state, back, Handshake::Direct, self.reconnect) {
                Reaction::Enter(S::Initialising) => {
                    if let Err(at_ns) = self.backoff.begin(p.clock().now_ns()) {
                        self.begins_at_ns = Some(at_ns);
                        return Ok(came_to);
                    }
                    S::Initialising
                }
                Reaction::Enter(next) => next,
                Reaction::Stay | Reaction::Remove => {
                    if self.state == S::Connected && back == S::Connected && !self.live {
                        self.go_live(p, bus)?;
                        return Ok(FrontStep::Live);
                    }
                    return Ok(came_to);
                }
            };
            match next {
                S::Connected => self.set_up(p, bus)?,
                S::Closing | S::Closed => {
                    if !self.queues.is_empty() && matches!(back, S::Closing | S::Closed | S::Unknown) {
                        self.tear_down(p);
                        came_to = FrontStep::Closed;
                    }
                    self.live = false;
                }
                _ => {}
            }
            if next == S::Closed {
                // The next front of this vif may be one that knows nothing of our keys, and removes none. Where the
                // toolstack took the directory, the keys are gone too.
                let _ = bus.publish(&Pairs::new(), of_front_connection);
            }
            bus.set_state(next).map_err(FrontError::Keys)?;
            self.state = next;
        }
        Ok(came_to) // the back's state changed meanwhile, and there is an event that says so
    }

    /// Begins to close from this end; go on calling [`step`](Self::step) until [`is_closed`](Self::is_closed).
    pub fn close<B: DeviceBus>(&mut self, bus: &mut B, why: Option<&str>) -> Result<(), B::Error> {
        self.live = false;
        self.reconnect = false;
        let told = why.map_or(Ok(()), |text| bus.report(text));
        if !matches!(self.state, XenbusState::Closing | XenbusState::Closed) {
            self.state = XenbusState::Closing;
            bus.set_state(XenbusState::Closing)?;
        }
        told
    }

    /// The toolstack took the vif away, directories and all: closed, without a word to anybody. One that reconnects waits
    /// for another vif of the same number.
    pub fn removed(&mut self, p: &P) {
        self.tear_down(p);
        self.state = XenbusState::Closed;
    }

    /// Whether the vif is closed and all of its memory is our own again. Never so of one that reconnects and was connected
    /// before: it keeps its pages for the next time.
    pub fn is_closed(&self) -> bool {
        self.state == XenbusState::Closed && self.queues.is_empty() && self.regions.is_empty()
    }

    /// Pages that are granted to the back and not in use.
    pub fn kept_pages(&self) -> usize {
        self.regions.pages()
    }

    /// Whether a vif that does not reconnect has pages that the back uses though they are not in use:
    /// [`step`](Self::step) tries again to get them back.
    pub fn awaits_release(&self) -> bool {
        !self.reconnect && !self.regions.is_empty()
    }

    /// When a vif that waits before it begins anew wants its next [`step`](Self::step), whether a watch fires or not, by the
    /// platform's clock; None: it does not wait.
    pub fn begins_at_ns(&self) -> Option<u64> {
        self.begins_at_ns
    }

    /// Grants rings and staging buffers, offers channels, writes the keys.
    fn set_up<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<(), FrontError<B::Error>> {
        let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
        if !back.rx_copy {
            return Err(FrontError::NoRxCopy);
        }
        let offered = |len: Option<DataLen>| len.filter(|l| back.staging_sizes.contains(l));
        let (tx_len, rx_len) = (offered(self.config.tx_data_len), offered(self.config.rx_data_len));
        let split = self.config.split_channels && back.split_channels;
        let limits = TxLimits { sg: back.sg, gso_tcpv4: back.gso_tcpv4, gso_tcpv6: back.gso_tcpv6 };
        self.takes = Offloads { csum: back.ipv6_csum, gso: back.sg && back.gso_tcpv4 && back.gso_tcpv6 };
        self.tear_down(p);
        self.persistent = self.config.persistent && back.persistent;
        let plans = plans(tx_len, rx_len, &back.staging_sizes);
        let keys = self.make_queues(p, self.config.queues.clamp(1, back.max_queues), &plans, split)?;
        self.queues.iter_mut().for_each(|q| q.tx.limit(limits));
        // One that there is no memory for is done without, as queues and buffers are.
        let ctrl = if self.config.ctrl_ring && back.ctrl_ring {
            match CtrlFront::new(p, &mut self.regions) {
                Ok((ctrl, keys)) => {
                    self.ctrl = Some(ctrl);
                    Some(keys)
                }
                Err(e) => {
                    self.shortage.get_or_insert(e);
                    None
                }
            }
        } else {
            None
        };
        let request = FrontRequest {
            multicast_control: self.config.multicast_control && back.multicast_control,
            persistent: self.persistent,
            ctrl,
            ..FrontRequest::new(keys)
        };
        self.regions.tell();
        bus.publish(&request.pairs(), of_front_connection).map_err(FrontError::Keys)
    }

    /// As many queues as are wished for, by the first plan that there is memory for; where there is none, as many as the
    /// memory allows.
    fn make_queues(
        &mut self,
        p: &P,
        n: u32,
        plans: &[Plan],
        split: bool,
    ) -> Result<Vec<QueueKeys>, PlatformError> {
        let mut best: Option<(usize, Plan)> = None;
        let mut shortage = None;
        self.regions.begin();
        for plan in plans {
            let staged = plan.tx_len.is_some() || plan.rx_len.is_some();
            if best.is_some_and(|(_, best)| !staged && (best.tx_len.is_some() || best.rx_len.is_some())) {
                break;
            }
            let (keys, failed) = self.try_with_room(p, n, *plan, split);
            let Some(e) = failed else {
                self.shortage = shortage;
                return Ok(keys);
            };
            shortage.get_or_insert(e);
            if keys.len() > best.map_or(0, |(queues, _)| queues) {
                best = Some((keys.len(), *plan));
            }
            self.tear_down(p);
        }
        // Another process may have taken the memory meanwhile.
        let (keys, failed) = best
            .map_or((Vec::new(), None), |(queues, plan)| self.try_with_room(p, queues as u32, plan, split));
        self.shortage = shortage;
        match failed.or(shortage) {
            Some(e) if keys.is_empty() => Err(e),
            _ => Ok(keys),
        }
    }

    /// At most `n` queues by one plan, and why not more; where memory is short, without what is kept for other plans.
    fn try_with_room(
        &mut self,
        p: &P,
        n: u32,
        plan: Plan,
        split: bool,
    ) -> (Vec<QueueKeys>, Option<PlatformError>) {
        let tried = self.try_queues(p, n, plan, split);
        if tried.1.is_none() || self.regions.is_empty() {
            return tried;
        }
        self.tear_down(p);
        self.regions.make_room(p);
        self.try_queues(p, n, plan, split)
    }

    /// At most `n` queues by one plan, and why not more.
    fn try_queues(
        &mut self,
        p: &P,
        n: u32,
        plan: Plan,
        split: bool,
    ) -> (Vec<QueueKeys>, Option<PlatformError>) {
        let mut keys = Vec::new();
        for _ in 0..n {
            match self.queue(p, plan, split) {
                Ok((queue, queue_keys)) => {
                    self.queues.push(queue);
                    keys.push(queue_keys);
                }
                Err(e) => return (keys, Some(e)),
            }
        }
        (keys, None)
    }

    fn queue(&mut self, p: &P, plan: Plan, split: bool) -> Result<(FrontQueue<P>, QueueKeys), PlatformError> {
        let Plan { tx_len, rx_len, tx_share } = plan;
        let tx = self.direction::<NetTx>(p, Access::ReadOnly, tx_len, (0, tx_share))?;
        let first_rx = tx.buffers.staging.as_ref().map_or(0, |a| a.entries() as u16);
        let rx = match self.direction::<NetRx>(p, Access::ReadWrite, rx_len, (first_rx, 1)) {
            Ok(rx) => rx,
            Err(e) => {
                self.give_up(p, tx);
                return Err(e);
            }
        };
        let to = self.regions.to();
        let offered = p.events().offer(to).and_then(|tx| {
            let rx = if split { Some(p.events().offer(to)?) } else { None };
            Ok((tx, rx))
        });
        let ((tx_chan, tx_port), rx_chan) = match offered {
            Ok(offered) => offered,
            Err(e) => {
                self.give_up(p, tx);
                self.give_up(p, rx);
                return Err(e);
            }
        };
        let (rx_chan, channels) = match rx_chan {
            Some((chan, rx)) => (Some(chan), ChannelKeys::Split { tx: tx_port, rx }),
            None => (None, ChannelKeys::Single(tx_port)),
        };
        let data = |buffers: &Buffers<P>| {
            let keys =
                |a: &StagingArea<P>| DataKeys { list_refs: Vec::from([a.list_ref()]), len: a.data_len() };
            DataRequest::from(buffers.staging.as_ref().map(keys))
        };
        let (tx_data, rx_data) = (data(&tx.buffers), data(&rx.buffers));
        let (tx_ring, rx_ring) = (tx.ring_grants.first(), rx.ring_grants.first());
        let keys = QueueKeys { tx_ring, rx_ring, channels, tx_data, rx_data };
        let queue = FrontQueue {
            tx: TxFront::new(FrontRing::new(tx.ring), tx.buffers),
            rx: RxFront::new(FrontRing::new(rx.ring), rx.buffers),
            ring_grants: [tx.ring_grants, rx.ring_grants],
            tx_chan,
            rx_chan,
        };
        Ok((queue, keys))
    }

    /// The memory of one direction: all of it, or none and an error. `ids`: the first, and for one in how many slots.
    fn direction<K: RingKind>(
        &mut self,
        p: &P,
        acc: Access,
        len: Option<DataLen>,
        (first_id, share): (u16, u32),
    ) -> Result<Direction<K, P>, PlatformError> {
        let page = self.regions.take(p, Access::ReadWrite, 1, Granting::Standing)?;
        let (page, ring_grants) = page.into_parts();
        let ring = RingPages::new(page);
        ring.init();
        let n = ring.size() / share;
        let mut buffers = Buffers { staging: None, pages: None };
        let filled = len
            .map(|len| StagingArea::new(p, &mut self.regions, acc, len, n, first_id))
            .transpose()
            .map(|area| buffers.staging = area)
            .and_then(|()| {
                if !buffers.copy_only() {
                    let pages =
                        if acc == Access::ReadOnly { self.tx_pages(p, n) } else { self.rx_pages(p, n) };
                    buffers.pages = Some(pages?);
                }
                Ok(())
            });
        let direction = Direction { ring, ring_grants, buffers };
        match filled {
            Ok(()) => Ok(direction),
            Err(e) => {
                self.give_up(p, direction);
                Err(e)
            }
        }
    }

    /// Gives up the memory of one direction.
    fn give_up<K: RingKind>(&mut self, p: &P, direction: Direction<K, P>) {
        let Direction { ring, ring_grants, buffers: Buffers { staging, pages } } = direction;
        let staging = staging.into_iter().flat_map(StagingArea::into_granted);
        let all = staging.chain(pages.map(OrdinaryPages::into_granted));
        for granted in all.chain([Granted::from_parts(ring.into_pages(), ring_grants)]) {
            self.regions.put(p, granted);
        }
    }

    /// One that never comes back has no use for pages that are not in use.
    fn release_unneeded(&mut self, p: &P) {
        if !self.reconnect {
            self.regions.release(p);
        }
    }

    fn tx_pages(&mut self, p: &P, n: u32) -> Result<OrdinaryPages<P>, PlatformError> {
        // The back keeps what it has seen: a reference must go on naming its page.
        let granting = if self.persistent { Granting::Standing } else { self.config.granting };
        OrdinaryPages::new(p, &mut self.regions, Access::ReadOnly, n, granting)
    }

    /// RX pages stay granted: the same reference is posted again and again.
    fn rx_pages(&mut self, p: &P, n: u32) -> Result<OrdinaryPages<P>, PlatformError> {
        OrdinaryPages::new(p, &mut self.regions, Access::ReadWrite, n, Granting::Standing)
    }

    /// The back is connected: reads which lists it accepted, and posts RX.
    fn go_live<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<(), FrontError<B::Error>> {
        let n = self.queues.len();
        self.accepted.clear();
        // Again: the back that is connected may be another than the one that we asked, and know nothing of lists.
        let offered = BackFeatures::read(bus).map_err(FrontError::Keys)?.staging_sizes;
        for i in 0..n {
            let (tx, rx) = self.staging_lens(i);
            let asked = tx.is_some() || rx.is_some();
            let known = [tx, rx].iter().flatten().all(|len| offered.contains(len));
            let key = active_key(i, n);
            let active =
                asked && known && bus.text(&key).map_err(FrontError::Keys)?.is_some_and(|t| t.trim() == "1");
            self.accepted.push(active);
            if asked && !active {
                let q = &mut self.queues[i];
                let (tx_ids, rx_ids) = (q.tx.buffers().ids(), q.rx.buffers().ids());
                // First what goes: memory may be short.
                let gone = [q.tx.buffers_mut().staging.take(), q.rx.buffers_mut().staging.take()];
                for granted in gone.into_iter().flatten().flat_map(StagingArea::into_granted) {
                    self.regions.put(p, granted);
                }
                if self.queues[i].tx.buffers().pages.is_none() {
                    let pages = self.tx_pages(p, tx_ids)?;
                    self.queues[i].tx.buffers_mut().pages = Some(pages);
                }
                if self.queues[i].rx.buffers().pages.is_none() {
                    let pages = self.rx_pages(p, rx_ids)?;
                    self.queues[i].rx.buffers_mut().pages = Some(pages);
                }
            }
            let q = &mut self.queues[i];
            q.rx.post(p, q.rx_chan.as_ref().unwrap_or(&q.tx_chan))?;
        }
        self.release_unneeded(p);
        self.live = true;
        Ok(())
    }

    /// Gives up queues and channels. The pages are put by, or released where they are not needed again.
    fn tear_down(&mut self, p: &P) {
        self.live = false;
        if let Some(ctrl) = self.ctrl.take() {
            ctrl.into_granted().into_iter().for_each(|granted| self.regions.put(p, granted));
        }
        for q in core::mem::take(&mut self.queues) {
            let ((tx, tx_buffers), (rx, rx_buffers)) = (q.tx.into_parts(), q.rx.into_parts());
            let [tx_grants, rx_grants] = q.ring_grants;
            self.give_up(p, Direction { ring: tx, ring_grants: tx_grants, buffers: tx_buffers });
            self.give_up(p, Direction { ring: rx, ring_grants: rx_grants, buffers: rx_buffers });
        }
        self.release_unneeded(p);
    }

    /// The control ring; None: there is none, or the back is not connected.
    pub fn ctrl(&mut self) -> Option<&mut CtrlFront<P>> {
        self.ctrl.as_mut().filter(|_| self.live)
    }

    /// Names a multicast address that frames are wanted for, or no longer (queue 0; see [`TxFront::multicast`]).
    pub fn multicast(&mut self, p: &P, mac: MacAddr, wanted: bool) -> bool {
        let Some(q) = self.queues.first_mut().filter(|_| self.live) else { return false };
        q.tx.multicast(p, &q.tx_chan, mac, wanted)
    }

    /// Multicast wishes on the way, and how many were refused so far: the back's list is full.
    pub fn multicast_wishes(&self) -> (usize, u64) {
        self.queues.first().map_or((0, 0), |q| q.tx.multicast_wishes())
    }

    /// Live queues.
    pub fn nr_queues(&self) -> usize {
        if self.live { self.queues.len() } else { 0 }
    }

    /// Whether the back accepted the staging lists of queue `i`.
    pub fn staging_accepted(&self, i: usize) -> bool {
        self.accepted.get(i).copied().unwrap_or(false)
    }

    /// Whether ordinary pages are granted once, and the back may keep them mapped.
    pub fn persists(&self) -> bool {
        self.persistent
    }

    /// Why there are fewer queues, TX ids or shorter staging buffers than wished for; None: it is all there.
    pub fn shortage(&self) -> Option<PlatformError> {
        self.shortage
    }

    /// Bytes of a frame that fit a staging buffer of queue `i`, TX and RX; None: ordinary grants.
    pub fn staging_lens(&self, i: usize) -> (Option<DataLen>, Option<DataLen>) {
        let of = |b: &Buffers<P>| b.staging.as_ref().map(StagingArea::data_len);
        self.queues.get(i).map_or((None, None), |q| (of(q.tx.buffers()), of(q.rx.buffers())))
    }

    /// TX requests that queue `i` can have in flight.
    pub fn tx_ids(&self, i: usize) -> u32 {
        self.queues.get(i).map_or(0, |q| q.tx.buffers().ids())
    }

    /// What the back takes unfinished; the rest is to be finished before it is sent.
    pub fn takes(&self) -> Offloads {
        self.takes
    }

    /// Sends frames on queue `i`; see [`TxFront::send`]. None are taken while the vif is not live.
    #[inline(always)]
    pub fn send(&mut self, p: &P, i: usize, burst: &Burst<'_>) -> Result<usize, PlatformError> {
        if !self.live {
            return Ok(0);
        }
        let q = &mut self.queues[i];
        q.tx.send(p, &q.tx_chan, burst)
    }

    /// Takes TX answers of queue `i`; see [`TxFront::reclaim`].
    #[inline(always)]
    pub fn reclaim(&mut self, p: &P, i: usize, want: u32) -> Result<u32, PeerFault> {
        if !self.live {
            return Ok(0);
        }
        self.queues[i].tx.reclaim(p, want)
    }

    /// Receives frames of queue `i` and posts its slots again.
    #[inline(always)]
    pub fn recv(&mut self, p: &P, i: usize, out: &mut Arena, want: u32) -> Result<usize, PeerFault> {
        if !self.live {
            return Ok(0);
        }
        let q = &mut self.queues[i];
        let n = q.rx.recv(out, want)?;
        // Not only after frames: a ringful of error answers frees slots too.
        if q.rx.has_free() {
            // Standing grants: posting cannot fail.
            let _ = q.rx.post(p, q.rx_chan.as_ref().unwrap_or(&q.tx_chan));
        }
        Ok(n)
    }

    /// TX slots of queue `i` that are free.
    pub fn room(&self, i: usize) -> u32 {
        if self.live { self.queues[i].tx.room() } else { 0 }
    }

    /// TX requests of queue `i` without an answer.
    pub fn in_flight(&self, i: usize) -> u32 {
        if self.live { self.queues[i].tx.in_flight() } else { 0 }
    }

    /// Before sleeping: arms queue `i` for RX, and (`tx_too`: somebody waits for room or for the end of what was sent) for
    /// TX answers; else the back need not wake us for them. True: there is work.
    pub fn final_check(&mut self, p: &P, i: usize, tx_too: bool) -> Result<bool, PeerFault> {
        let q = &mut self.queues[i];
        let rx = q.rx.final_check(1)?;
        let tx = tx_too && q.tx.in_flight() > 0 && q.tx.final_check(1)?;
        // Last: an event that came since the rings were armed is kept until here.
        p.events().unmask(&q.tx_chan);
        if let Some(chan) = &q.rx_chan {
            p.events().unmask(chan);
        }
        Ok(rx || tx)
    }

    /// Whether any ring has work for us, as [`final_check`](Self::final_check) says it; nothing is armed.
    pub fn is_pending(&mut self, tx_too: bool) -> bool {
        self.queues
            .iter_mut()
            .any(|q| q.rx.is_pending() || tx_too && q.tx.in_flight() > 0 && q.tx.is_pending())
    }

    /// Counters of queue `i`.
    pub fn stats(&self, i: usize) -> (DirStats, DirStats) {
        (self.queues[i].tx.stats(), self.queues[i].rx.stats())
    }

    /// Our channels of queue `i`: which local ends mean it.
    pub fn channels(&self, p: &P, i: usize) -> (EvtchnPort, Option<EvtchnPort>) {
        let q = &self.queues[i];
        (p.events().local(&q.tx_chan), q.rx_chan.as_ref().map(|c| p.events().local(c)))
    }

    /// Bytes of shared memory in staging buffers and lists of all queues.
    pub fn staging_bytes(&self) -> usize {
        let of = |a: Option<&StagingArea<P>>| a.map_or(0, StagingArea::memory_bytes);
        self.queues
            .iter()
            .map(|q| of(q.tx.buffers().staging.as_ref()) + of(q.rx.buffers().staging.as_ref()))
            .sum()
    }
}
