//! One vif at the back: from keys and states to live queues, and back.
//!
//! ```text
//!   toolstack: 1 --features--> 2 InitWait --front at 4: map, bind, judge lists--> 4 Connected
//!                    ^                                                              | front at 5, or a fault
//!                    +---- front again at 1 (reconnect) ---- 6 Closed <---- 5 <-----+
//! ```
//! A vif that stands at 4 at both ends when this process starts was left by a predecessor, in good order
//! ([`BackVif::detach`]) or not: [`BackVif::reattach`] goes on with its live rings, and the front sees nothing but a pause
//! (docs/protocol 1.1). One that a predecessor closed stays closed until its front comes down ([`BackVif::inherit`]).
//!
//! Every step is taken in [`BackVif::step`], which the owner calls when a watch fired; none runs on the data path.
//! What a front may do: write any keys, in any order, change state at any time, vanish. The worst is a vif that closes
//! with a line that names what was wrong; nothing stays mapped or bound.

mod turn;

pub use turn::RATE;

use super::control::Control;
use super::control_page::ControlPage;
use super::credit::Credit;
use super::ctrl::CtrlRing;
use super::hash::HashSteering;
use super::multicast::MulticastList;
use super::refusal::{ConnectError, ListRefusal, TooManyPages};
use super::rx_batch::RxAccepts;
use super::stall::Patience;
use super::{Interrupted, Polled, RxQueue, TxQueue};
use crate::error::PeerFault;
use crate::net::features::{
    BackFeatures, ChannelKeys, CtrlKeys, DataKeys, DataRequest, FrontRequest, QueueKeys, active_key,
    of_back_connection, queue_prefix, requests_multicast,
};
use crate::net::path::staging::list::{self as staging_list, ListFault};
use crate::net::path::{AnyPath, Chain, MapPath, PersistentPath, StagedBuffers, StagingPath, persistent};
use crate::net::stats::DirStats;
use crate::platform::{Access, Clock, Events, PeerMem, Platform};
use crate::port::{Arena, FramePort, Offloads, Steering};
use crate::ring::{BackRing, RedoPage, RingPages};
use crate::shm::SharedBytes;
use crate::units::{DomId, PAGE_SIZE};
use crate::wire::staging::ENTRIES_PER_PAGE;
use crate::xenbus::KeyError;
use crate::xenbus::bus::{DeviceBus, OwnKeys};
use crate::xenbus::key_source::Pairs;
use crate::xenbus::state::{self, Handshake, Reaction, STEPS_AT_ONCE, XenbusState};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Which strategy serves frames that no staging list was accepted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FallbackPath {
    /// Batched grant copy of whole frames.
    #[default]
    Copy,
    /// Header copy, map and unmap of the rest, for TX.
    Map,
}

/// What an end in good order came to, for the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drained {
    /// Frames that found slots at the last moment.
    pub delivered: usize,
    /// Frames that found none, and are lost with this process.
    pub lost: usize,
}

impl core::ops::AddAssign for Drained {
    fn add_assign(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.lost += other.lost;
    }
}

/// Memory for redo pages that outlives this process: by queue and direction.
pub type RedoSource<'a> = &'a mut dyn FnMut(usize, &'static str) -> Option<RedoPage>;

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// One live queue.
struct BackQueue<P: Platform> {
    tx: TxQueue<P>,
    rx: RxQueue<P>,
    tx_chan: Chan<P>,
    /// None: `tx_chan` serves both rings.
    rx_chan: Option<Chan<P>>,
    /// Pages that it has mapped from connect to disconnect.
    pages: usize,
}

/// The back's key in which a script tells how far it came: empty, "connected" or "error".
pub const HOTPLUG_STATUS: &str = "hotplug-status";

/// Rings of a queue, a page each.
const RING_PAGES: usize = 2;

/// How a connection begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begin {
    /// New rings: redo pages are cleared, lists are judged and the front is told.
    Fresh,
    /// A predecessor's rings: redo pages are replayed, what the front was told still holds.
    Reattach,
}

/// What a predecessor left of a vif.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PreviousState {
    /// Nothing that matters.
    Nothing,
    /// Rings that may be live: for [`BackVif::reattach`].
    Connected,
    /// It closed the vif, or was about to. With what it said of the reason, if there was one.
    Closed(Option<String>),
}

/// A front's state in which its rings are live.
fn is_connected(front: XenbusState) -> bool {
    matches!(front, XenbusState::Connected | XenbusState::Reconfiguring)
}

/// What [`BackVif::step`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackStep {
    /// Nothing to do until the next watch event.
    Waiting,
    /// The queues are live now.
    Connected,
    /// The queues are gone now; the front may come back.
    Closed,
    /// The toolstack wants the device gone, and it is closed: forget it.
    Removed,
}

/// One vif of domain `of`.
pub struct BackVif<P: Platform> {
    of: DomId,
    handle: u32,
    state: XenbusState,
    features: BackFeatures,
    fallback: FallbackPath,
    queues: Vec<BackQueue<P>>,
    /// What the front set by control requests.
    control: Control,
    ctrl: Option<CtrlRing<P>>,
    /// Closed from this end, by us or a predecessor: a front that goes on saying 4 is not connected again, it must come
    /// down first.
    shut: bool,
    /// The store has a reason for which the vif is closed.
    reported: bool,
    /// Closed for good: [`step`](Self::step) goes to 6 and no further.
    ending: bool,
    /// What the front takes, as of the last connect.
    accepts: RxAccepts,
    /// What is wrong with a list that was refused, for the log; the vif goes on without it.
    refused: Vec<(usize, &'static str, ListRefusal)>,
    /// Pages that it may have mapped.
    page_limit: usize,
    /// Of these, pages for each queue and direction that stay mapped when they were seen.
    persistent_limit: usize,
    /// Pages that all of them may have.
    allowed: usize,
    /// How long frames wait for the front's slots.
    patience: Patience,
    /// What stands in `rate` and is none.
    bad_rate: Option<String>,
    /// Stalls of former connections.
    past_stalls: u64,
    /// The link's state that the owner was told of.
    link: bool,
    /// Not connected before the toolstack's script has said that the far side is ready.
    awaits_hotplug: bool,
    /// Linux's netback served it until now.
    of_kernel: bool,
}

impl<P: Platform> BackVif<P> {
    /// A vif that the toolstack created; nothing is written yet.
    pub fn new(of: DomId, handle: u32, features: BackFeatures, fallback: FallbackPath) -> Self {
        let (queues, refused) = (Vec::new(), Vec::new());
        Self {
            of,
            handle,
            state: XenbusState::Initialising,
            features,
            fallback,
            queues,
            control: Control::default(),
            ctrl: None,
            shut: false,
            reported: false,
            ending: false,
            accepts: RxAccepts::ALL,
            refused,
            page_limit: usize::MAX,
            persistent_limit: persistent::DEFAULT_LIMIT,
            allowed: 0,
            patience: Patience::default(),
            bad_rate: None,
            past_stalls: 0,
            link: false,
            awaits_hotplug: false,
            of_kernel: false,
        }
    }

    /// Before [`inherit`](Self::inherit): Linux's netback serves it until now. A predecessor of ours that died at state 2
    /// connected nobody; netback may have.
    pub fn take_from_kernel(&mut self) {
        self.of_kernel = true;
    }

    /// From now on the front is connected only when [`HOTPLUG_STATUS`] says "connected": a script of the toolstack's
    /// makes the far side ready (docs/protocol 2.10). Call [`step`](Self::step) when that key changes.
    pub fn await_hotplug(&mut self) {
        self.awaits_hotplug = true;
    }

    /// What later connects may have mapped: rings, staging buffers, and pages that stay mapped since they were seen. Lists beyond it are refused, and their queues go on
    /// with ordinary grants. A batch of the path `map` comes on top; it is bounded by the batch.
    pub fn limit_pages(&mut self, pages: usize) {
        self.page_limit = pages;
    }

    /// How many pages of each queue and direction may stay mapped once they were seen, where the front persists, from the next
    /// connection on.
    pub fn limit_persistent(&mut self, pages: usize) {
        self.persistent_limit = pages;
    }

    /// How long frames wait for the front's RX slots, from the next connection on.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Pages that it has mapped: those that it [needs](Self::needed_pages), and those that it keeps since it saw them.
    pub fn mapped_pages(&self) -> usize {
        let kept = |q: &BackQueue<P>| {
            [q.tx.chain().pages(), q.rx.chain().pages()].into_iter().flatten().sum::<usize>()
        };
        self.needed_pages() + self.queues.iter().map(kept).sum::<usize>()
    }

    /// Pages that are mapped from connect to disconnect: rings and staging buffers.
    pub fn needed_pages(&self) -> usize {
        self.queues.iter().map(|q| q.pages).sum::<usize>() + usize::from(self.ctrl.is_some())
    }

    /// From now on it keeps at most `pages` beyond those that it [needs](Self::needed_pages), in equal parts for each queue and
    /// direction; those that are too many are unmapped. At connect that is what its [limit](Self::limit_pages) leaves.
    pub fn allow_persistent(&mut self, p: &P, pages: usize) {
        let mut chains: Vec<_> = self
            .queues
            .iter_mut()
            .flat_map(|q| [q.tx.chain_mut(), q.rx.chain_mut()])
            .filter(|c| c.pages().is_some())
            .collect();
        let each = pages / chains.len().max(1);
        chains.iter_mut().for_each(|chain| chain.limit_pages(p, each.min(self.persistent_limit)));
        self.allowed = each.min(self.persistent_limit) * chains.len();
    }

    /// Pages that it may keep at most, as of the last [`allow_persistent`](Self::allow_persistent).
    pub fn allowed_persistent(&self) -> usize {
        if self.queues.is_empty() { 0 } else { self.allowed }
    }

    /// The guest.
    pub fn front(&self) -> DomId {
        self.of
    }

    /// The guest's number of the device.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Our own state.
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// Keeps what the front sets by control requests in memory that outlives this process, for a successor. Before the
    /// first connection.
    pub fn keep_control(&mut self, page: ControlPage) {
        self.control.keep(page);
    }

    /// Staging lists that were refused at the last connect: queue, direction, why.
    pub fn refused_lists(&self) -> &[(usize, &'static str, ListRefusal)] {
        &self.refused
    }

    /// Looks at what a predecessor left, before anything else. What it closed, for a fault or because it was told to, is
    /// not opened again behind its back.
    pub fn inherit<B: DeviceBus>(&mut self, bus: &mut B) -> Result<PreviousState, B::Error> {
        match bus.own_state()? {
            // 8 is 4 with a wish of the front's granted.
            XenbusState::Connected | XenbusState::Reconfigured => Ok(PreviousState::Connected),
            // Linux's netback with live rings, after it was bound again: its last unbinding took the key, for which its 4
            // waits ever since.
            XenbusState::InitWait
                if self.of_kernel
                    && bus.own_text(HOTPLUG_STATUS)?.is_none()
                    && is_connected(bus.peer_state()?) =>
            {
                Ok(PreviousState::Connected)
            }
            own @ (XenbusState::Closing | XenbusState::Closed) => {
                self.state = own;
                self.shut = true;
                let why = bus.reported()?;
                self.reported = why.is_some();
                Ok(PreviousState::Closed(why))
            }
            _ => Ok(PreviousState::Nothing),
        }
    }

    /// Goes on where a predecessor stopped, where [`inherit`](Self::inherit) said [`PreviousState::Connected`], before the first
    /// [`step`](Self::step). True: the queues are live, the front
    /// was notified once, and the owner polls before it arms (R5). Writes nothing but a 4 that was never said, so that the
    /// front does not react;
    /// whatever was advertised and accepted then is so now. False: there is nothing to take up, step as ever.
    ///
    /// A channel that a process held until just now may not be free yet: when [`ConnectError::is_too_early`], call it
    /// again for a second. After any other error call [`close`](Self::close).
    pub fn reattach<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        redo: RedoSource<'_>,
    ) -> Result<bool, ConnectError<B::Error>> {
        // From here on the store and this vif agree; a front that left meanwhile is followed by `step`.
        let own = bus.own_state().map_err(ConnectError::Keys)?;
        self.state = match own {
            XenbusState::Reconfigured => XenbusState::Reconfigured,
            _ => XenbusState::Connected,
        };
        if !is_connected(bus.peer_state().map_err(ConnectError::Keys)?) {
            return Ok(false);
        }
        self.features = BackFeatures::read(&mut OwnKeys(bus)).map_err(ConnectError::Keys)?;
        self.connect(p, bus, redo, Begin::Reattach)?;
        if own == XenbusState::InitWait {
            bus.set_state(XenbusState::Connected).map_err(ConnectError::Keys)?;
        }
        Ok(true)
    }

    /// Stops in good order without closing: answers what was taken from the guest, delivers what was taken from `ports`
    /// and what they hold as far as the guest has slots, lets go of rings, lists and channels, writes nothing. State 4
    /// stays, for a successor to [`reattach`](Self::reattach).
    pub fn detach(&mut self, p: &P, ports: &mut [Box<dyn FramePort>]) -> Drained {
        let drained = self.deliver(p, ports);
        self.drop_queues(p);
        drained
    }

    /// Begins to close for good, in good order: drains as [`detach`](Self::detach) does, lets go, and says 5.
    /// [`step`](Self::step) then follows the front to 6, and no further. A vif that is not connected stays as it is.
    pub fn end<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        ports: &mut [Box<dyn FramePort>],
    ) -> Result<Drained, B::Error> {
        let drained = self.detach(p, ports);
        self.ending = true;
        if matches!(self.state, XenbusState::Connected | XenbusState::Reconfigured) {
            self.shut = true;
            self.state = XenbusState::Closing;
            bus.set_state(XenbusState::Closing)?;
        }
        Ok(drained)
    }

    /// Delivers what waits for the guest, as far as there are slots.
    fn deliver(&mut self, p: &P, ports: &mut [Box<dyn FramePort>]) -> Drained {
        let mut drained = Drained::default();
        for (q, port) in self.queues.iter_mut().zip(ports) {
            let before = q.rx.stats().frames;
            // Others may go on to fill the port: what it holds now is what is owed.
            let mut most = q.rx.waiting() + port.held();
            while most > 0 && q.rx.waiting() + port.held() > 0 {
                let chan = q.rx_chan.as_ref().unwrap_or(&q.tx_chan);
                if q.rx.poll(p, self.of, chan, &mut **port, &self.control) != Ok(Polled::More) {
                    break;
                }
                most -= 1;
            }
            drained.delivered += (q.rx.stats().frames - before) as usize;
            drained.lost += q.rx.waiting() + port.held();
        }
        drained
    }

    /// Looks at the front's state and takes what steps it allows. After an error call [`close`](Self::close).
    pub fn step<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        redo: RedoSource<'_>,
    ) -> Result<BackStep, ConnectError<B::Error>> {
        use XenbusState as S;
        let mut came_to = BackStep::Waiting;
        for _ in 0..STEPS_AT_ONCE {
            let front = bus.peer_state().map_err(ConnectError::Keys)?;
            let online = bus.online().map_err(ConnectError::Keys)?;
            // A toolstack that asks for the end waits for 6, and may have written 5 over ours, whatever the front says.
            if !online
                && self.state == S::Closed
                && bus.own_state().map_err(ConnectError::Keys)? == S::Closing
            {
                bus.set_state(S::Closed).map_err(ConnectError::Keys)?;
            }
            self.shut &= matches!(front, S::Connected | S::Reconfiguring);
            if self.shut {
                return Ok(came_to);
            }
            let next = match state::back(self.state, front, Handshake::Direct, online) {
                Reaction::Stay => {
                    if self.state == S::Connected && self.features.dynamic_multicast_control {
                        self.reload_multicast(bus)?;
                    }
                    return Ok(came_to);
                }
                Reaction::Remove => {
                    self.drop_queues(p);
                    return Ok(BackStep::Removed);
                }
                Reaction::Enter(S::InitWait | S::Connected) if self.ending => return Ok(came_to),
                Reaction::Enter(next) => next,
            };
            match next {
                S::InitWait => {
                    bus.publish(&self.features.pairs(), of_back_connection).map_err(ConnectError::Keys)?;
                }
                S::Connected if self.queues.is_empty() => {
                    let plugged = |status: Option<String>| status.as_deref() == Some("connected");
                    if self.awaits_hotplug
                        && !plugged(bus.own_text(HOTPLUG_STATUS).map_err(ConnectError::Keys)?)
                    {
                        return Ok(came_to);
                    }
                    self.connect(p, bus, redo, Begin::Fresh)?;
                    came_to = BackStep::Connected;
                }
                // Linux's front says 7 before it writes the key, and 4 after it: the second look sees what the first may
                // have missed.
                S::Reconfigured | S::Connected => self.reload_headroom(bus).map_err(ConnectError::Keys)?,
                S::Closing | S::Closed => {
                    if !self.queues.is_empty() {
                        came_to = BackStep::Closed;
                    }
                    self.drop_queues(p);
                }
                _ => {}
            }
            bus.set_state(next).map_err(ConnectError::Keys)?;
            self.state = next;
        }
        Ok(came_to) // the front's state changed meanwhile, and there is an event that says so
    }

    /// The front may ask for multicast control, or no longer, at any time (`feature-dynamic-multicast-control`).
    fn reload_multicast<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), ConnectError<B::Error>> {
        let on = self.features.multicast_control && requests_multicast(bus).map_err(ConnectError::Keys)?;
        self.control.multicast.request(on);
        Ok(())
    }

    /// Closes from this end: after a fault, an error, or when the toolstack or the operator wants it. The text goes to
    /// the store, where `xenstore-ls` shows it.
    pub fn close<B: DeviceBus>(&mut self, p: &P, bus: &mut B, why: Option<&str>) -> Result<(), B::Error> {
        self.drop_queues(p);
        self.shut = true;
        self.reported |= why.is_some();
        // The state matters more than the text: it is written even where the text has no place.
        let told = why.map_or(Ok(()), |text| bus.report(text));
        if self.state != XenbusState::Closed {
            self.state = XenbusState::Closing;
            bus.set_state(XenbusState::Closing)?;
            self.state = XenbusState::Closed;
            bus.set_state(XenbusState::Closed)?;
        }
        told
    }

    fn drop_queues(&mut self, p: &P) {
        for q in &mut self.queues {
            q.tx.drain(p, &q.tx_chan);
        }
        self.link = false;
        self.past_stalls = self.stalls();
        self.queues.clear(); // maps are unmapped and channels closed on drop
        self.ctrl = None;
    }

    /// Maps rings, binds channels, judges staging lists; says which lists were accepted.
    fn connect<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        redo: RedoSource<'_>,
        begin: Begin,
    ) -> Result<(), ConnectError<B::Error>> {
        let front = FrontRequest::read(bus, &self.features).map_err(ConnectError::Keys)?;
        let accepts = RxAccepts {
            sg: front.sg,
            gso_tcpv4: front.gso_tcpv4,
            gso_tcpv6: front.gso_tcpv6,
            csum: front.csum,
            ipv6_csum: front.ipv6_csum,
        };
        self.accepts = accepts;
        let mut active = Pairs::new();
        let rings = front.queues.len() * RING_PAGES + usize::from(front.ctrl.is_some());
        let Some(mut left) = self.page_limit.checked_sub(rings) else {
            let left = self.page_limit;
            return Err(ConnectError::TooManyPages(TooManyPages { asked: rings, left }));
        };
        self.refused.clear();
        let mut staged = Vec::with_capacity(front.queues.len());
        for (i, keys) in front.queues.iter().enumerate() {
            let refused = self.refused.len();
            let (tx_staging, tx_staged, tx_pages) = self.staging(p, (i, "tx"), &keys.tx_data, 0, left);
            // Ids go on from TX to RX: the RX list begins where the TX list ends. Without the one the other means nothing.
            let rx_data = if self.refused.len() == refused { &keys.rx_data } else { &DataRequest::None };
            let (rx_staging, _, rx_pages) = self.staging(p, (i, "rx"), rx_data, tx_staged, left - tx_pages);
            let asked = keys.tx_data != DataRequest::None || keys.rx_data != DataRequest::None;
            let active_key = active_key(i, front.queues.len());
            // A front that was told "0" fills no buffers: lists that can be mapped now do not change that.
            let told = match begin {
                Begin::Fresh => true,
                Begin::Reattach => {
                    bus.own_text(&active_key).map_err(ConnectError::Keys)?.as_deref() == Some("1")
                }
            };
            // And one that was told "1" goes on filling them.
            if begin == Begin::Reattach
                && told
                && let Some((queue, dir, why)) = self.refused.get(refused)
            {
                return Err(ConnectError::ListLost { queue: *queue, dir, why: why.clone() });
            }
            let all = self.refused.len() == refused && (told || !asked);
            // All or nothing: with one list refused the queue has no staging, and the front is not told otherwise.
            let (tx_staging, rx_staging, pages) =
                if all { (tx_staging, rx_staging, tx_pages + rx_pages) } else { (None, None, 0) };
            left -= pages;
            if asked {
                active.push((active_key, String::from(if all { "1" } else { "0" })));
            }
            staged.push((tx_staging, rx_staging, pages));
        }
        let mut queues = Vec::<BackQueue<P>>::with_capacity(front.queues.len());
        let limit = if front.persistent { self.persistent_limit } else { 0 };
        for ((i, keys), (tx_staging, rx_staging, pages)) in front.queues.iter().enumerate().zip(staged) {
            let fallback = match self.fallback {
                FallbackPath::Copy => None,
                FallbackPath::Map => Some(AnyPath::Map(MapPath::default())),
            };
            let tx_chain = chain(tx_staging, (limit, Access::ReadOnly), fallback);
            let rx_chain = chain(rx_staging, (limit, Access::ReadWrite), None);
            queues.push(self.connect_queue(
                p,
                (i, front.queues.len()),
                keys,
                (tx_chain, rx_chain, pages),
                accepts,
                redo,
                begin,
            )?);
        }
        self.connect_ctrl(p, front.ctrl, begin)?;
        self.control.multicast.request(front.multicast_control);
        if begin == Begin::Fresh {
            bus.publish(&active, of_back_connection).map_err(ConnectError::Keys)?;
        }
        if core::mem::take(&mut self.reported) {
            bus.recant().map_err(ConnectError::Keys)?;
        }
        let now_ns = p.clock().now_ns();
        for q in &mut queues {
            q.rx.watch(self.patience, front.rx_notify, begin == Begin::Reattach, now_ns);
        }
        self.queues = queues;
        self.allow_persistent(p, left);
        self.reload_headroom(bus).map_err(ConnectError::Keys)?;
        self.reload_rate(p, bus).map_err(ConnectError::Keys)
    }

    /// Sets the control state that this connection begins with, and takes the front's control ring up if it has one.
    fn connect_ctrl<E>(
        &mut self,
        p: &P,
        keys: Option<CtrlKeys>,
        begin: Begin,
    ) -> Result<(), ConnectError<E>> {
        let of = self.of;
        self.control.offer_multicast(self.features.multicast_control);
        let kept = if begin == Begin::Reattach { self.control.resume() } else { None };
        self.ctrl = match keys {
            None => None,
            Some(CtrlKeys { ring: gref, channel: port }) => {
                let map = p.peer().map(of, &[gref], Access::ReadWrite);
                let key = || String::from("ctrl-ring-ref");
                let map = map.map_err(|error| ConnectError::Map { key: key(), of, gref, error })?;
                let mem = RingPages::new(map);
                let key = || String::from("event-channel-ctrl");
                let chan = p.events().bind(of, port);
                let chan = chan.map_err(|error| ConnectError::Bind { key: key(), of, port, error })?;
                Some(CtrlRing::attach(mem, chan, kept)?)
            }
        };
        if let (Some(ctrl), Begin::Reattach) = (&self.ctrl, begin) {
            ctrl.notify(p);
        }
        if kept.is_none() {
            let list = match begin {
                Begin::Fresh => MulticastList::default(),
                Begin::Reattach => MulticastList::lost(),
            };
            self.control.begin(self.ctrl.as_ref().map_or(0, CtrlRing::rsp_prod), list);
        }
        Ok(())
    }

    /// The staging path of one direction, if its list was accepted; how many entries that has, and pages.
    fn staging(
        &mut self,
        p: &P,
        (queue, dir): (usize, &'static str),
        data: &DataRequest,
        first_id: u16,
        left: usize,
    ) -> (Option<StagingPath<P>>, u16, usize) {
        let acc = if dir == "tx" { Access::ReadOnly } else { Access::ReadWrite };
        let why = match data {
            DataRequest::None => return (None, 0, 0),
            DataRequest::Bad { key, value, expected } => {
                let seen = value.as_ref().map(String::as_bytes);
                ListRefusal::Key(KeyError::new(key, seen, expected, self.of))
            }
            DataRequest::Keys(keys) => match accept(p, self.of, keys, acc, first_id, left) {
                Ok((buffers, n)) => {
                    let pages = buffers.map.len() / PAGE_SIZE;
                    return (Some(StagingPath::new(buffers)), n, pages);
                }
                Err(why) => why,
            },
        };
        self.refused.push((queue, dir, why));
        (None, 0, 0)
    }

    #[allow(clippy::too_many_arguments)] // one call, from `connect`
    fn connect_queue<E>(
        &self,
        p: &P,
        (i, n): (usize, usize),
        keys: &QueueKeys,
        (tx_chain, rx_chain, kept_pages): (Chain<P>, Chain<P>, usize),
        accepts: RxAccepts,
        redo: RedoSource<'_>,
        begin: Begin,
    ) -> Result<BackQueue<P>, ConnectError<E>> {
        let of = self.of;
        let at = |name: &str| queue_prefix(i, n) + name;
        let map = |key, gref| {
            let map = p.peer().map(of, &[gref], Access::ReadWrite);
            map.map_err(|error| ConnectError::Map { key: at(key), of, gref, error })
        };
        let bind = |key, port| {
            let chan = p.events().bind(of, port);
            chan.map_err(|error| ConnectError::Bind { key: at(key), of, port, error })
        };
        let tx_mem = RingPages::new(map("tx-ring-ref", keys.tx_ring)?);
        let rx_mem = RingPages::new(map("rx-ring-ref", keys.rx_ring)?);
        let (tx_chan, rx_chan) = match keys.channels {
            ChannelKeys::Single(port) => (bind("event-channel", port)?, None),
            ChannelKeys::Split { tx, rx } => {
                (bind("event-channel-tx", tx)?, Some(bind("event-channel-rx", rx)?))
            }
        };
        let mut page = |dir| {
            let page = redo(i, dir);
            // A new connection's rings start anew: what an old one's last batch left must not be replayed.
            if let (Begin::Fresh, Some(page)) = (begin, &page) {
                page.clear();
            }
            page
        };
        let (tx_ring, tx_told) = BackRing::attach(tx_mem, page("tx"))?;
        let (rx_ring, rx_told) = BackRing::attach(rx_mem, page("rx"))?;
        // A predecessor may have died between an answer and its notification.
        let tell = begin == Begin::Reattach;
        if tell || tx_told.wanted() {
            p.events().notify(&tx_chan);
        }
        if tell || rx_told.wanted() {
            p.events().notify(rx_chan.as_ref().unwrap_or(&tx_chan));
        }
        let tx = TxQueue::new(tx_ring, tx_chain);
        let rx = RxQueue::new(rx_ring, rx_chain, accepts);
        Ok(BackQueue { tx, rx, tx_chan, rx_chan, pages: RING_PAGES + kept_pages })
    }

    /// What the connected front takes unfinished; ports finish the rest.
    pub fn front_offloads(&self) -> Offloads {
        self.accepts.offloads()
    }

    /// What the predecessor on this connection's rings had in its hands.
    pub fn interrupted(&self) -> Interrupted {
        let mut sum = Interrupted::default();
        for q in &self.queues {
            match (q.tx.inherited(), q.rx.inherited()) {
                (Some(tx), Some(rx)) => {
                    sum.twice = sum.twice.saturating_add(tx.frames);
                    sum.lost = sum.lost.saturating_add(rx.frames);
                    sum.asking += u32::from(rx.asking);
                }
                _ => sum.unknown += 1,
            }
        }
        sum
    }

    /// Live queues.
    pub fn nr_queues(&self) -> usize {
        self.queues.len()
    }

    /// Moves one batch of queue `i` from the guest to `port`. A fault: call [`close`](Self::close) with its text.
    #[inline(always)]
    pub fn poll_tx(
        &mut self,
        p: &P,
        i: usize,
        port: &mut dyn FramePort,
        scratch: &mut Arena,
    ) -> Result<Polled, PeerFault> {
        let q = &mut self.queues[i];
        q.tx.poll(p, self.of, &q.tx_chan, port, scratch, &mut self.control)
    }

    /// Moves one batch of queue `i` from `port` to the guest.
    #[inline(always)]
    pub fn poll_rx(&mut self, p: &P, i: usize, port: &mut dyn FramePort) -> Result<Polled, PeerFault> {
        let q = &mut self.queues[i];
        q.rx.poll(p, self.of, q.rx_chan.as_ref().unwrap_or(&q.tx_chan), port, &self.control)
    }

    /// Serves some control requests: in the owner's control turn, never between frames. A fault: call
    /// [`close`](Self::close) with its text.
    pub fn poll_ctrl(&mut self, p: &P) -> Result<Polled, PeerFault> {
        match &mut self.ctrl {
            Some(ctrl) => ctrl.poll(p, self.of, self.queues.len(), &mut self.control),
            None => Ok(Polled::Idle),
        }
    }

    /// Before sleeping: arms the control ring. True: there is work.
    pub fn final_check_ctrl(&mut self, p: &P) -> Result<bool, PeerFault> {
        self.ctrl.as_mut().map_or(Ok(false), |ctrl| ctrl.final_check(p))
    }

    /// How the ports of this vif's queues are to spread frames over them ([`FramePort::steer`]), once for each change;
    /// None: nothing changed.
    pub fn new_steering(&mut self) -> Option<Option<Arc<dyn Steering>>> {
        if !self.control.take_steer() {
            return None;
        }
        let (settings, queues) = (&self.control.hash, self.queues.len());
        let on = settings.is_on() && queues > 1;
        Some(on.then(|| Arc::new(HashSteering { settings: settings.clone(), queues }) as Arc<dyn Steering>))
    }

    /// Before sleeping: arms both rings of queue `i` and its channels. True: there is work.
    /// A fault comes with its direction.
    pub fn final_check(&mut self, p: &P, i: usize) -> Result<bool, (&'static str, PeerFault)> {
        let q = &mut self.queues[i];
        // One that has to wait for credit is not told of requests, and sleeps until then.
        let tx = match self.control.credit.as_ref().and_then(Credit::deadline_ns) {
            Some(until) => q.tx.is_late() || p.clock().now_ns() >= until,
            None => q.tx.final_check().map_err(|e| ("tx", e))?,
        };
        let rx = q.rx.final_check().map_err(|e| ("rx", e))?;
        // Last: an event that came since the rings were armed is kept until here.
        p.events().unmask(&q.tx_chan);
        if let Some(chan) = &q.rx_chan {
            p.events().unmask(chan);
        }
        Ok(tx || rx)
    }

    /// Counters of queue `i`.
    pub fn stats(&self, i: usize) -> (DirStats, DirStats) {
        (self.queues[i].tx.stats(), self.queues[i].rx.stats())
    }

    /// The paths that queue `i` runs: TX, RX.
    pub fn path_names(&self, i: usize) -> (&'static str, &'static str) {
        (self.queues[i].tx.path_name(), self.queues[i].rx.path_name())
    }
}

/// What serves one direction of a queue: its staging buffers, `kept.0` pages that stay mapped with access `kept.1`, and the
/// fall-back.
fn chain<P: Platform>(
    staging: Option<StagingPath<P>>,
    kept: (usize, Access),
    fallback: Option<AnyPath<P>>,
) -> Chain<P> {
    let serves_all = staging.as_ref().is_some_and(StagingPath::serves_all);
    let persistent =
        (kept.0 > 0 && !serves_all).then(|| AnyPath::Persistent(PersistentPath::new(kept.0, kept.1)));
    Chain::new(staging.map(AnyPath::Staging).into_iter().chain(persistent).chain(fallback).collect())
}

/// Reads, judges and maps one direction's list: all of it or nothing.
#[allow(clippy::type_complexity)]
fn accept<P: Platform>(
    p: &P,
    of: DomId,
    data: &DataKeys,
    acc: Access,
    first_id: u16,
    left: usize,
) -> Result<(StagedBuffers<<P::Peer as PeerMem>::Map>, u16), ListRefusal> {
    // A ring of one page needs 256 buffers, and one list page has 512 entries: what stands in further pages would be
    // mapped for nothing.
    let Some(&r) = data.list_refs.first() else { return Err(ListRefusal::Fault(ListFault::Empty)) };
    let page = p.peer().map(of, &[r], Access::ReadOnly).map_err(ListRefusal::Map)?;
    let entries = staging_list::read(&page, ENTRIES_PER_PAGE);
    let list = staging_list::judge(&entries, first_id, data.len).map_err(ListRefusal::Fault)?;
    let asked = list.refs.len();
    if asked > left {
        return Err(ListRefusal::TooManyPages(TooManyPages { asked, left }));
    }
    let map = p.peer().map(of, &list.refs, acc).map_err(ListRefusal::Map)?;
    let buffers = StagedBuffers {
        map,
        place: list.place,
        len: data.len.buffer_bytes(),
        copy_only: data.len.copy_only(),
    };
    Ok((buffers, entries.len() as u16))
}
