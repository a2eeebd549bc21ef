//! Connects a vif's front: maps rings, binds channels, validates lists, and writes which of them
//! are active.
//!
//! What a front may do: name any grant and any channel. An error names the key of what cannot be
//! mapped or bound. Rings come first: if they exceed the limit of the guest's pages (XSA-300),
//! nothing is connected.

use super::Vif;
use crate::error::PlatformError;
use crate::memory;
use crate::net::back::control_page::KeptGrefs;
use crate::net::back::control_ring::CtrlRing;
use crate::net::back::multicast::MulticastList;
use crate::net::back::tx::PeerRing;
use crate::net::back::{BackQueue, RxQueue, TxQueue};
use crate::net::features::{
    BackFeatures, ChannelKeys, CtrlKeys, FrontRequest, QueueKeys, RxAccepts, connected_queues,
    of_back_connection, queue_prefix,
};
use crate::net::path::acceptance::{Accepted, Accepting, Lost, REFUSALS, Refusals, Said};
use crate::net::path::acceptors::Acceptors;
use crate::net::path::{AnyPath, GrefRequests, PathName, RX_ORDER, TX_ORDER};
#[cfg(feature = "research")]
use crate::net::path::{GuestCopy, Negotiate};
use crate::platform::{Access, Clock, Events, PeerMem, Platform};
use crate::port::Offloads;
use crate::ring::{BackRing, NetRx, NetTx, REDO_BYTES, RedoPage, RingPages};
use crate::units::GrantRef;
use crate::xenbus::KeyName;
use crate::xenbus::back::{BackDevice, Begin, Connect, KeptMemory, PageShare};
use crate::xenbus::bus::{DeviceBus, OwnKeys};
use crate::xenbus::connect_error::{ConnectError, TooManyPages};
use crate::xenbus::key_source::{PairsInMemory, put};
use crate::xenbus::ring_keys::ring_key;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// The rings of a queue (TX and RX) and its channels.
type AttachedRings<P> =
    (BackRing<NetTx, PeerRing<NetTx, P>>, BackRing<NetRx, PeerRing<NetRx, P>>, (Chan<P>, Option<Chan<P>>));

/// The redo pages of a queue, of TX and RX, if there are any.
type RedoPages = [Option<RedoPage>; 2];

/// The paths of a queue, and the number of pages that they use.
struct QueuePaths<P: Platform> {
    tx: Vec<AnyPath<P>>,
    rx: Vec<AnyPath<P>>,
    pages: usize,
}

impl<P: Platform> Default for QueuePaths<P> {
    fn default() -> Self {
        Self { tx: Vec::new(), rx: Vec::new(), pages: 0 }
    }
}

impl<P: Platform> QueuePaths<P> {
    /// Adds what a path accepted to the queue: its pages count against those that are `left`, and
    /// its key becomes `active`.
    #[inline(never)] // a kernel's stack is small
    fn add(
        &mut self,
        more: Accepted<P>,
        key: Option<KeyName>,
        (left, active): (&mut usize, &mut PairsInMemory),
    ) -> Result<(), PlatformError> {
        more.tx.map_or(Ok(()), |path| memory::push(&mut self.tx, path))?;
        more.rx.map_or(Ok(()), |path| memory::push(&mut self.rx, path))?;
        self.pages += more.pages;
        *left -= more.pages;
        if let (Some(key), Some(text)) = (key, more.active) {
            put(active, key, text);
        }
        Ok(())
    }
}

impl<P: Platform> Vif<P> {
    /// Reads what the ports of a predecessor's connection depend on, before anything is mapped: the
    /// number of queues, and the offloads of its front.
    pub fn left_by_predecessor<B: DeviceBus>(bus: &mut B) -> Result<(usize, Offloads), B::Error> {
        Ok((connected_queues(bus)? as usize, RxAccepts::read(bus)?.offloads()))
    }

    /// Maps rings, binds channels, validates staging lists and data rings; returns which were
    /// accepted.
    pub(super) fn connect_queues<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        Connect { begin, of_kernel, page_limit, lasting, kept }: Connect<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        // A predecessor's offer is only valid for its connection; the next one gets this back's
        // offer.
        self.left = match begin {
            Begin::Reattach => Some(BackFeatures::read(&mut OwnKeys(bus)).map_err(ConnectError::Keys)?),
            Begin::Fresh => None,
        };
        let front = FrontRequest::read(bus, self.offered()).map_err(ConnectError::Keys)?;
        let redo_pages = self.redo_pages(front.queues.len(), (kept, begin), of_kernel)?;
        let accepts = RxAccepts {
            sg: front.sg,
            gso_tcpv4: front.gso_tcpv4,
            gso_tcpv6: front.gso_tcpv6,
            csum: front.csum,
            ipv6_csum: front.ipv6_csum,
        };
        self.accepts = accepts;
        let pages_of = |keys: &QueueKeys| keys.tx_ring.len() + keys.rx_ring.len();
        let rings = front.queues.iter().map(pages_of).sum::<usize>() + usize::from(front.ctrl.is_some());
        // Pages of a former connection that are still held count, too.
        self.holds_nothing(p);
        let rings = rings + self.held_pages();
        let Some(mut left) = page_limit.checked_sub(rings) else {
            return Err(ConnectError::TooManyPages(TooManyPages { asked: rings, left: page_limit }));
        };
        // Pages that are only kept give way to other devices; those that the keys name do not.
        let lasting = if begin == Begin::Fresh { lasting.saturating_sub(rings) } else { left };
        let only_kept = left - left.min(lasting);
        left -= only_kept;
        self.refused = Refusals::new(REFUSALS * front.queues.len())?;
        let mut paths = Acceptors::new(&self.config.paths);
        let mut active = PairsInMemory::new();
        let accepted = self.accept_paths(p, bus, &front, (&mut paths, begin), (&mut left, &mut active))?;
        for (i, (of_queue, redo)) in accepted.into_iter().zip(redo_pages).enumerate() {
            let rest = (&mut paths, &mut left, &mut active);
            self.connect_queue(p, &front, (i, of_queue), rest, (redo, begin))?;
            if begin == Begin::Reattach && !of_kernel {
                self.refuse_doubtful(i, front.queues.len())?;
            }
        }
        let shares = memory::collected(self.queues.iter().map(|q| Arc::clone(q.share())))?.into_vec();
        let exchanges = self.queues.iter().map(|q| q.tx.chain().exchange()).zip(&shares);
        self.grefs = GrefRequests::of_queues(exchanges, &self.config.paths, left, kept)?;
        self.connect_ctrl(p, front.ctrl, begin)?;
        left -= self.single_pages();
        self.control.lock().multicast.request(front.multicast_control);
        if begin == Begin::Fresh {
            bus.publish(&active.whole()?, of_back_connection).map_err(ConnectError::Keys)?;
        }
        let now_ns = p.clock().now_ns();
        for q in &mut self.queues {
            q.rx.watch(self.config.patience, front.rx_notify, begin == Begin::Reattach, now_ns);
        }
        self.shares = shares;
        let share = PageShare { pages: left + only_kept, lasting: self.lasting };
        self.allow_pages(p, share);
        self.reload_headroom(p, bus).map_err(ConnectError::Keys)?;
        self.reload_rate(p, bus).map_err(ConnectError::Keys)
    }

    /// The redo pages of each queue, of TX and RX, if there are any. A predecessor's records are
    /// checked here, before anything is mapped, except for its tables of gref mappings.
    #[inline(never)] // a kernel's stack is small
    fn redo_pages<E>(
        &self,
        queues: usize,
        (kept, begin): (KeptMemory<'_>, Begin),
        of_kernel: bool,
    ) -> Result<Box<[RedoPages]>, ConnectError<E>> {
        let page = |i, dir| kept(&KeyName::of(format_args!("{i}/{dir}")), REDO_BYTES).and_then(RedoPage::new);
        let mut page = page;
        let pages = memory::collected((0..queues).map(|i| ["tx", "rx"].map(|dir| page(i, dir))))?;
        let mut all = pages.iter().flatten().flatten();
        match begin {
            // The rings of a new connection start at 0: an old ring's last batch must not be
            // replayed.
            Begin::Fresh => all.for_each(RedoPage::clear),
            // A driver of the kernel answered what it took, and keeps no records: those that are
            // there are of a time before it.
            Begin::Reattach if of_kernel => {
                all.for_each(RedoPage::clear);
                self.control.lock().forget();
            }
            Begin::Reattach => {
                self.control.lock().check()?;
                all.try_for_each(|page| page.check().map(drop))?;
            }
        }
        Ok(pages)
    }

    /// Maps the rings of queue `i`, binds its channels, and adds its paths. Paths export pages only
    /// after everything that may fail, since they belong to a queue of the vif then.
    #[inline(never)]
    fn connect_queue<E>(
        &mut self,
        p: &P,
        front: &FrontRequest,
        (i, of_queue): (usize, QueuePaths<P>),
        rest: (&mut Acceptors<P>, &mut usize, &mut PairsInMemory),
        (redo, begin): (RedoPages, Begin),
    ) -> Result<(), ConnectError<E>> {
        let Some(keys) = front.queues.get(i) else { return Ok(()) };
        let rings = self.attach_rings(p, (i, front.queues.len()), keys, redo, begin)?;
        #[cfg(feature = "research")]
        let of_queue = self.export_pages(p, front, (i, of_queue), rest)?;
        #[cfg(not(feature = "research"))]
        let _ = rest; // no path exports pages
        Ok(self.add_queue(p, rings, of_queue, keys.tx_ring.len() + keys.rx_ring.len())?)
    }

    /// Exports to the guest the pages in which a path of this queue delivers frames.
    #[cfg(feature = "research")]
    fn export_pages(
        &mut self,
        p: &P,
        front: &FrontRequest,
        (i, mut of_queue): (usize, QueuePaths<P>),
        (paths, left, active): (&mut Acceptors<P>, &mut usize, &mut PairsInMemory),
    ) -> Result<QueuePaths<P>, PlatformError> {
        let lent = paths.guest_copy.lend(&mut self.accepting(p, front, *left), i);
        of_queue.add(lent, GuestCopy::active_key(front, i), (left, active))?;
        Ok(of_queue)
    }

    #[inline(never)] // a queue is large, and its rings lie on the caller's stack
    fn add_queue(
        &mut self,
        p: &P,
        (tx, rx, chans): AttachedRings<P>,
        paths: QueuePaths<P>,
        ring_pages: usize,
    ) -> Result<(), PlatformError> {
        let tx = self.tx_of(tx, paths.tx)?;
        let rx = self.rx_of(p, rx, paths.rx)?;
        self.push_queue(tx, rx, chans, ring_pages + paths.pages)
    }

    /// Refuses to resume a ring if no record says whether its next slot is a request or an answer:
    /// a frame might be sent that the guest never meant to send.
    fn refuse_doubtful<E>(&self, i: usize, n: usize) -> Result<(), ConnectError<E>> {
        let Some(q) = self.queues.get(i) else { return Ok(()) };
        let doubts = [("tx-", q.tx.is_doubtful()), ("rx-", q.rx.is_doubtful())];
        match doubts.iter().find(|(_, is_doubtful)| *is_doubtful) {
            None => Ok(()),
            Some((dir, _)) => Err(ConnectError::Lost(memory::text(format_args!(
                "{}{}: the last backend may have died while it wrote answers there, and no record of this \
                 connection says so (there was no memory for one, or it was removed)",
                queue_prefix(i, n),
                ring_key(dir, 0, false)
            ))?)),
        }
    }

    // Each half is in its box while the other is made, and while both move to the list.
    #[inline(never)]
    fn tx_of(
        &self,
        ring: BackRing<NetTx, PeerRing<NetTx, P>>,
        paths: Vec<AnyPath<P>>,
    ) -> Result<Box<TxQueue<P>>, PlatformError> {
        let mut tx = TxQueue::new(ring, (TX_ORDER, paths))?;
        tx.set_thresholds(self.config.paths.thresholds);
        memory::boxed(tx)
    }

    #[inline(never)]
    fn rx_of(
        &self,
        p: &P,
        ring: BackRing<NetRx, PeerRing<NetRx, P>>,
        paths: Vec<AnyPath<P>>,
    ) -> Result<Box<RxQueue<P>>, PlatformError> {
        memory::boxed(RxQueue::in_room_of(p, ring, (RX_ORDER, paths), self.accepts)?)
    }

    #[inline(never)]
    fn push_queue(
        &mut self,
        tx: Box<TxQueue<P>>,
        rx: Box<RxQueue<P>>,
        chans: (Chan<P>, Option<Chan<P>>),
        pages: usize,
    ) -> Result<(), PlatformError> {
        memory::grow(&mut self.queues, 1)?;
        let queue = BackQueue::new(self.of, tx, rx, chans, Arc::clone(&self.control), pages)?;
        memory::push(&mut self.queues, *queue)
    }

    /// A front that connects, as a path sees it.
    fn accepting<'a>(&'a mut self, p: &'a P, front: &'a FrontRequest, left: usize) -> Accepting<'a, P> {
        let held = self.held_pages();
        let offered = self.left.as_ref().unwrap_or(&self.config.features);
        Accepting { p, of: self.of, offered, front, left, held, refused: &mut self.refused }
    }

    /// Lets each path accept what the front asks for on each queue, or what a predecessor recorded.
    #[inline(never)]
    fn accept_paths<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        front: &FrontRequest,
        (paths, begin): (&mut Acceptors<P>, Begin),
        (left, active): (&mut usize, &mut PairsInMemory),
    ) -> Result<Vec<QueuePaths<P>>, ConnectError<B::Error>> {
        let mut queues = memory::room(front.queues.len())?;
        for i in 0..front.queues.len() {
            let mut of_queue = QueuePaths::default();
            for path in PathName::ALL {
                let rest = (&mut of_queue, &mut *left, &mut *active);
                self.accept_path(p, bus, front, (path, i), (paths, begin), rest)?;
            }
            memory::push(&mut queues, of_queue)?;
        }
        Ok(queues)
    }

    /// Lets a path accept what the front asks for on queue `i`.
    #[inline(never)] // a kernel's stack is small
    fn accept_path<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        front: &FrontRequest,
        (path, i): (PathName, usize),
        (paths, begin): (&mut Acceptors<P>, Begin),
        (of_queue, left, active): (&mut QueuePaths<P>, &mut usize, &mut PairsInMemory),
    ) -> Result<(), ConnectError<B::Error>> {
        let key = Acceptors::<P>::active_key(path, front, i);
        let said = match (begin, &key) {
            (Begin::Reattach, Some(key)) => bus.own_text(key).map_err(ConnectError::Keys)?,
            _ => None,
        };
        let said = match begin {
            Begin::Fresh => Said::Fresh,
            Begin::Reattach => Said::Reattach(said.as_deref()),
        };
        let accepted = paths.accept(path, &mut self.accepting(p, front, *left), i, said);
        let accepted = accepted.map_err(|Lost(what)| ConnectError::Lost(what))?;
        Ok(of_queue.add(accepted, key, (left, active))?)
    }

    /// Sets the control state at the start of this connection, and attaches the front's control
    /// ring if it has one.
    #[inline(never)]
    fn connect_ctrl<E>(
        &mut self,
        p: &P,
        keys: Option<CtrlKeys>,
        begin: Begin,
    ) -> Result<(), ConnectError<E>> {
        let of = self.of;
        let (kept, versions, taken) = {
            let mut control = self.control.lock();
            control.offer_multicast(self.offered().multicast_control);
            control.set_queues(self.queues.len());
            let kept = if begin == Begin::Reattach { control.resume() } else { None };
            let KeptGrefs { versions, taken } = &control.grefs;
            (kept, *versions, memory::collected(taken.iter().copied())?)
        };
        if let (Some(grefs), true) = (&self.grefs, kept.is_some()) {
            grefs.check(&versions[..])?;
        }
        self.ctrl = match keys {
            None => None,
            Some(CtrlKeys { ring: gref, channel: port }) => {
                let map = p.peer().map(of, &[gref], Access::ReadWrite);
                let key = || KeyName::of("ctrl-ring-ref");
                let map = map.map_err(|error| ConnectError::Map { key: key(), of, gref, error })?;
                let mem = RingPages::new(map);
                let key = || KeyName::of("event-channel-ctrl");
                let chan = p.events().bind(of, port);
                let chan = chan.map_err(|error| ConnectError::Bind { key: key(), of, port, error })?;
                Some(CtrlRing::attach(mem, chan, kept, taken.len())?)
            }
        };
        if let (Some(ctrl), Begin::Reattach) = (&self.ctrl, begin) {
            ctrl.make_good(p);
        }
        if let (Some(ctrl), true) = (&mut self.ctrl, kept.is_some()) {
            let taken = if ctrl.unanswered() > 0 { &taken[..] } else { &[] };
            match &mut self.grefs {
                Some(grefs) => {
                    grefs.resume(p, self.of, &versions[..])?;
                    grefs.take_again(p, self.of, taken);
                }
                None => ctrl.refuse(p, self.of, &self.control, taken),
            }
        }
        if kept.is_none() {
            let list = match begin {
                Begin::Fresh => MulticastList::default(),
                Begin::Reattach => MulticastList::lost(),
            };
            let rsp_prod = self.ctrl.as_ref().map_or(0, CtrlRing::rsp_prod);
            self.control.lock().begin(rsp_prod, list)?;
        }
        Ok(())
    }

    /// Maps the rings of a queue, and binds its channels.
    #[inline(never)]
    fn attach_rings<E>(
        &self,
        p: &P,
        (i, n): (usize, usize),
        keys: &QueueKeys,
        [tx_redo, rx_redo]: RedoPages,
        begin: Begin,
    ) -> Result<AttachedRings<P>, ConnectError<E>> {
        let of = self.of;
        let at = |name: &str| queue_prefix(i, n) + name;
        let map = |dir, refs: &[GrantRef]| {
            p.peer().map(of, refs, Access::ReadWrite).map_err(|error| {
                let k = error.index.filter(|&k| k < refs.len()).unwrap_or(0);
                let gref = refs.get(k).copied().unwrap_or(GrantRef::NONE);
                ConnectError::Map { key: ring_key(&at(dir), k, refs.len() > 1), of, gref, error }
            })
        };
        let bind = |key, port| {
            let chan = p.events().bind(of, port);
            chan.map_err(|error| ConnectError::Bind { key: at(key), of, port, error })
        };
        let tx_mem = RingPages::new(map("tx-", &keys.tx_ring)?);
        let rx_mem = RingPages::new(map("rx-", &keys.rx_ring)?);
        let (tx_chan, rx_chan) = match keys.channels {
            ChannelKeys::Single(port) => (bind("event-channel", port)?, None),
            ChannelKeys::Split { tx, rx } => {
                (bind("event-channel-tx", tx)?, Some(bind("event-channel-rx", rx)?))
            }
        };
        let (tx_ring, tx_notify) = BackRing::attach(tx_mem, tx_redo)?;
        let (rx_ring, rx_notify) = BackRing::attach(rx_mem, rx_redo)?;
        // A predecessor may have died between a batch of answers, at most a ring of them, and its
        // notification: a front that waits for one of these is still asleep.
        let live = begin == Begin::Reattach;
        if tx_notify.wanted() || live && tx_ring.unnotified(tx_ring.size()).wanted() {
            p.events().notify(&tx_chan);
        }
        if rx_notify.wanted() || live && rx_ring.unnotified(rx_ring.size()).wanted() {
            p.events().notify(rx_chan.as_ref().unwrap_or(&tx_chan));
        }
        Ok((tx_ring, rx_ring, (tx_chan, rx_chan)))
    }
}
