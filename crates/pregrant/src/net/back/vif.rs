//! One vif at the back: from keys and states to live queues, and back.
//!
//! ```text
//!   toolstack: 1 --features--> 2 InitWait --front at 4: map, bind, judge lists--> 4 Connected
//!                    ^                                                              | front at 5, or a fault
//!                    +---- front again at 1 (reconnect) ---- 6 Closed <---- 5 <-----+
//! ```
//! Every step is taken in [`BackVif::step`], which the owner calls when a watch fired; none runs on the data path.
//! What a front may do: write any keys, in any order, change state at any time, vanish. The worst is a vif that closes
//! with a line that names what was wrong; nothing stays mapped or bound.

use super::assemble::TxBatch;
use super::path::{AnyPath, CopyPath, MapPath, StagedBuffers, StagingPath};
use super::rx_batch::RxAccepts;
use super::{Polled, RxQueue, TxQueue};
use crate::error::{PeerFault, PlatformError};
use crate::net::bus::DeviceBus;
use crate::net::features::{BackFeatures, ChannelKeys, DataKeys, FrontRequest, Pairs, QueueKeys, active_key};
use crate::net::staging_list::{self, ListFault};
use crate::net::stats::DirStats;
use crate::platform::{Access, Events, MapError, PeerMem, Platform};
use crate::port::{Arena, FramePort};
use crate::ring::{BackRing, RedoPage, RingPages};
use crate::units::{DomId, EvtchnPort, GrantRef};
use crate::wire::netif::{RX_SLOT_BYTES, TX_SLOT_BYTES};
use crate::xenbus::state::{self, Handshake, Reaction, XenbusState};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Which strategy serves frames that no staging list was accepted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ordinary {
    /// Batched grant copy of whole frames.
    #[default]
    Copy,
    /// Header copy, map and unmap of the rest, for TX.
    Map,
}

/// Memory for redo pages that outlives this process: by queue and direction.
pub type RedoSource<'a> = &'a mut dyn FnMut(usize, &'static str) -> Option<RedoPage>;

/// What went wrong while a vif was connected. The vif is closed; others go on.
#[derive(Debug)]
pub enum ConnectError<E> {
    /// Keys: missing, garbled, or the store failed. Says path, key and remedy itself.
    Keys(E),
    /// A grant of the front could not be mapped.
    Map {
        /// Which key named it.
        key: &'static str,
        /// The grant.
        gref: GrantRef,
        /// Why.
        error: MapError,
    },
    /// A channel of the front could not be bound.
    Bind {
        /// The front's end.
        port: EvtchnPort,
        /// Why.
        error: PlatformError,
    },
    /// A ring cannot be taken up.
    Ring(PeerFault),
}

impl<E: fmt::Display> fmt::Display for ConnectError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(e) => e.fmt(f),
            Self::Map { key, gref, error } => write!(
                f,
                "cannot map {gref}, named by the front's key {key}: {}; the front must grant it to this domain first",
                error.status
            ),
            Self::Bind { port, error } => {
                write!(
                    f,
                    "cannot bind {port} of the front: {error}; the front must offer it to this domain first"
                )
            }
            Self::Ring(fault) => fault.fmt(f),
        }
    }
}

impl<E> From<PeerFault> for ConnectError<E> {
    fn from(fault: PeerFault) -> Self {
        Self::Ring(fault)
    }
}

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// One live queue.
struct BackQueue<P: Platform> {
    tx: TxQueue<P>,
    rx: RxQueue<P>,
    tx_chan: Chan<P>,
    /// None: `tx_chan` serves both rings.
    rx_chan: Option<Chan<P>>,
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
    ordinary: Ordinary,
    queues: Vec<BackQueue<P>>,
    /// What is wrong with a list that was refused, for the log; the vif goes on without it.
    refused: Vec<(usize, &'static str, ListRefusal)>,
}

/// Why a staging list was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListRefusal {
    /// Its entries are wrong.
    Fault(ListFault),
    /// A page of it, or a buffer, could not be mapped.
    Map(MapError),
}

impl fmt::Display for ListRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(e) => e.fmt(f),
            Self::Map(MapError { index: Some(i), status }) => write!(f, "grant number {i} of it: {status}"),
            Self::Map(MapError { index: None, status }) => write!(f, "a grant of it: {status}"),
        }
    }
}

impl<P: Platform> BackVif<P> {
    /// A vif that the toolstack created; nothing is written yet.
    pub fn new(of: DomId, handle: u32, features: BackFeatures, ordinary: Ordinary) -> Self {
        let (queues, refused) = (Vec::new(), Vec::new());
        Self { of, handle, state: XenbusState::Initialising, features, ordinary, queues, refused }
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

    /// Staging lists that were refused at the last connect: queue, direction, why.
    pub fn refused_lists(&self) -> &[(usize, &'static str, ListRefusal)] {
        &self.refused
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
        loop {
            let front = bus.peer_state().map_err(ConnectError::Keys)?;
            let online = bus.online().map_err(ConnectError::Keys)?;
            let next = match state::back(self.state, front, Handshake::Direct, online) {
                Reaction::Stay => return Ok(came_to),
                Reaction::Remove => {
                    self.drop_queues(p);
                    return Ok(BackStep::Removed);
                }
                Reaction::Enter(next) => next,
            };
            match next {
                S::InitWait => bus.publish(&self.features.pairs()).map_err(ConnectError::Keys)?,
                S::Connected if self.queues.is_empty() => {
                    self.connect(p, bus, redo)?;
                    came_to = BackStep::Connected;
                }
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
    }

    /// Closes from this end: after a fault, an error, or when the toolstack or the operator wants it. The text goes to
    /// the store, where `xenstore-ls` shows it.
    pub fn close<B: DeviceBus>(&mut self, p: &P, bus: &mut B, why: Option<&str>) -> Result<(), B::Error> {
        self.drop_queues(p);
        if let Some(text) = why {
            bus.report(text)?;
        }
        if self.state != XenbusState::Closed {
            self.state = XenbusState::Closing;
            bus.set_state(XenbusState::Closing)?;
            self.state = XenbusState::Closed;
            bus.set_state(XenbusState::Closed)?;
        }
        Ok(())
    }

    fn drop_queues(&mut self, p: &P) {
        for q in &mut self.queues {
            q.tx.drain(p, &q.tx_chan);
        }
        self.queues.clear(); // maps are unmapped and channels closed on drop
    }

    /// Maps rings, binds channels, judges staging lists; says which lists were accepted.
    fn connect<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        redo: RedoSource<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        let front = FrontRequest::read(bus, &self.features).map_err(ConnectError::Keys)?;
        let mut queues = Vec::with_capacity(front.queues.len());
        let mut active = Pairs::new();
        self.refused.clear();
        for (i, keys) in front.queues.iter().enumerate() {
            let (tx_path, tx_staged) = self.path(p, i, "tx", &keys.tx_data, 0)?;
            // Ids go on from TX to RX: the RX list begins where the TX list ends.
            let (rx_path, rx_staged) = self.path(p, i, "rx", &keys.rx_data, tx_staged.unwrap_or(0))?;
            let asked = keys.tx_data.is_some() || keys.rx_data.is_some();
            let all = keys.tx_data.is_some() == tx_staged.is_some()
                && keys.rx_data.is_some() == rx_staged.is_some();
            // All or nothing: with one list refused the queue has no staging, and the front is not told otherwise.
            let (tx_path, rx_path) = if asked && !all {
                (self.ordinary_tx(), AnyPath::Copy(CopyPath::default()))
            } else {
                (tx_path, rx_path)
            };
            if asked {
                active.push((active_key(i, front.queues.len()), String::from(if all { "1" } else { "0" })));
            }
            queues.push(self.connect_queue(
                p,
                i,
                keys,
                tx_path,
                rx_path,
                RxAccepts { sg: front.sg },
                redo,
            )?);
        }
        bus.publish(&active).map_err(ConnectError::Keys)?;
        self.queues = queues;
        Ok(())
    }

    fn ordinary_tx(&self) -> AnyPath<P> {
        match self.ordinary {
            Ordinary::Copy => AnyPath::Copy(CopyPath::default()),
            Ordinary::Map => AnyPath::Map(MapPath::default()),
        }
    }

    /// The path of one direction, and how many entries its list has if it was accepted.
    fn path<E>(
        &mut self,
        p: &P,
        queue: usize,
        dir: &'static str,
        data: &Option<DataKeys>,
        first_id: u16,
    ) -> Result<(AnyPath<P>, Option<u16>), ConnectError<E>> {
        let ordinary = |vif: &Self| {
            if dir == "tx" { vif.ordinary_tx() } else { AnyPath::Copy(CopyPath::default()) }
        };
        let Some(data) = data else { return Ok((ordinary(self), None)) };
        let acc = if dir == "tx" { Access::ReadOnly } else { Access::ReadWrite };
        match accept(p, self.of, data, acc, first_id) {
            Ok((buffers, n)) => Ok((AnyPath::Staging(StagingPath::new(buffers)), Some(n))),
            Err(why) => {
                self.refused.push((queue, dir, why));
                Ok((ordinary(self), None))
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // one call, from `connect`
    fn connect_queue<E>(
        &self,
        p: &P,
        i: usize,
        keys: &QueueKeys,
        tx_path: AnyPath<P>,
        rx_path: AnyPath<P>,
        accepts: RxAccepts,
        redo: RedoSource<'_>,
    ) -> Result<BackQueue<P>, ConnectError<E>> {
        let map = |key, gref| {
            let map = p.peer().map(self.of, &[gref], Access::ReadWrite);
            map.map_err(|error| ConnectError::Map { key, gref, error })
        };
        let bind = |port| p.events().bind(self.of, port).map_err(|error| ConnectError::Bind { port, error });
        let tx_mem = RingPages::new(map("tx-ring-ref", keys.tx_ring)?, TX_SLOT_BYTES / 4);
        let rx_mem = RingPages::new(map("rx-ring-ref", keys.rx_ring)?, RX_SLOT_BYTES / 4);
        let (tx_chan, rx_chan) = match keys.channels {
            ChannelKeys::Single(port) => (bind(port)?, None),
            ChannelKeys::Split { tx, rx } => (bind(tx)?, Some(bind(rx)?)),
        };
        // A new connection's rings start anew: what an old one's last batch left must not be replayed.
        let mut fresh_page = |dir| redo(i, dir).inspect(RedoPage::clear);
        let (tx_ring, tx_told) = BackRing::attach(tx_mem, fresh_page("tx"))?;
        let (rx_ring, rx_told) = BackRing::attach(rx_mem, fresh_page("rx"))?;
        if tx_told.wanted() {
            p.events().notify(&tx_chan);
        }
        if rx_told.wanted() {
            p.events().notify(rx_chan.as_ref().unwrap_or(&tx_chan));
        }
        let tx = TxQueue::new(tx_ring, tx_path);
        let rx = RxQueue::new(rx_ring, rx_path, accepts);
        Ok(BackQueue { tx, rx, tx_chan, rx_chan })
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
        q.tx.poll(p, self.of, &q.tx_chan, port, scratch)
    }

    /// Moves one batch of queue `i` from `port` to the guest.
    #[inline(always)]
    pub fn poll_rx(&mut self, p: &P, i: usize, port: &mut dyn FramePort) -> Result<Polled, PeerFault> {
        let q = &mut self.queues[i];
        q.rx.poll(p, self.of, q.rx_chan.as_ref().unwrap_or(&q.tx_chan), port)
    }

    /// Before sleeping: arms both rings of queue `i` and its channels. True: there is work.
    pub fn final_check(&mut self, p: &P, i: usize) -> Result<bool, PeerFault> {
        let q = &mut self.queues[i];
        p.events().unmask(&q.tx_chan);
        if let Some(chan) = &q.rx_chan {
            p.events().unmask(chan);
        }
        let tx = q.tx.final_check()?;
        let rx = q.rx.final_check()?;
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

/// Octets of private memory that a queue's TX batch takes; for the memory figures.
pub const TX_BATCH_BYTES: usize = size_of::<TxBatch>();

/// Reads, judges and maps one direction's list: all of it or nothing.
#[allow(clippy::type_complexity)]
fn accept<P: Platform>(
    p: &P,
    of: DomId,
    data: &DataKeys,
    acc: Access,
    first_id: u16,
) -> Result<(StagedBuffers<<P::Peer as PeerMem>::Map>, u16), ListRefusal> {
    let mut entries = Vec::new();
    for &r in &data.list_refs {
        let page = p.peer().map(of, &[r], Access::ReadOnly).map_err(ListRefusal::Map)?;
        let before = entries.len();
        entries.extend(staging_list::read(&page, usize::MAX));
        if entries.len() - before < crate::wire::staging::ENTRIES_PER_PAGE {
            break; // its terminator
        }
    }
    let list = staging_list::judge(&entries, first_id, data.len).map_err(ListRefusal::Fault)?;
    let map = p.peer().map(of, &list.refs, acc).map_err(ListRefusal::Map)?;
    let buffers = StagedBuffers {
        map,
        place: list.place,
        len: data.len.buffer_bytes(),
        copy_only: data.len.copy_only(),
    };
    Ok((buffers, entries.len() as u16))
}
