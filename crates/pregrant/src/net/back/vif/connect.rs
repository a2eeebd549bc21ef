//! How a vif's front is connected: rings mapped, channels bound, lists judged, and the front told which were taken.
//!
//! What a front may do: name any grant and any channel; what cannot be mapped or bound is said with its key. Rings come
//! first: what passes the bound of its guest's pages (XSA-300) connects nothing.

use super::Vif;
use crate::net::back::ctrl::CtrlRing;
use crate::net::back::multicast::MulticastList;
use crate::net::back::rx_batch::RxAccepts;
use crate::net::back::{BackQueue, RxQueue, TxQueue};
use crate::net::features::{
    BackFeatures, ChannelKeys, CtrlKeys, DataRequest, FrontRequest, QueueKeys, active_key,
    of_back_connection, queue_prefix,
};
use crate::net::path::{Chain, PathName};
use crate::platform::{Access, Clock, Events, PeerMem, Platform};
use crate::ring::{BackRing, REDO_BYTES, RedoPage, RingPages};
use crate::xenbus::back::{BackDevice, Begin, Connect, KeptMemory};
use crate::xenbus::bus::{DeviceBus, OwnKeys};
use crate::xenbus::key_source::Pairs;
use crate::xenbus::refusal::{ConnectError, TooManyPages};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Rings of a queue, a page each.
const RING_PAGES: usize = 2;

impl<P: Platform> Vif<P> {
    /// Maps rings, binds channels, judges staging lists; says which lists were accepted.
    pub(super) fn connect_queues<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        Connect { begin, page_limit, kept }: Connect<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        if begin == Begin::Reattach {
            self.config.features = BackFeatures::read(&mut OwnKeys(bus)).map_err(ConnectError::Keys)?;
        }
        let front = FrontRequest::read(bus, &self.config.features).map_err(ConnectError::Keys)?;
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
        let Some(mut left) = page_limit.checked_sub(rings) else {
            return Err(ConnectError::TooManyPages(TooManyPages { asked: rings, left: page_limit }));
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
                return Err(ConnectError::Lost(format!(
                    "the {dir} staging list of queue {queue}, which a predecessor accepted, cannot be taken again: {why}"
                )));
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
        let limit = if front.persistent { self.config.persistent_pages } else { 0 };
        for ((i, keys), (tx_staging, rx_staging, pages)) in front.queues.iter().enumerate().zip(staged) {
            let tx_staging = tx_staging.map(|path| path.with_heads(self.config.staged_heads));
            let tx_chain = Chain::of(tx_staging, (limit, Access::ReadOnly), self.config.fallback);
            let rx_chain = Chain::of(rx_staging, (limit, Access::ReadWrite), PathName::Copy);
            queues.push(self.connect_queue(
                p,
                (i, front.queues.len()),
                keys,
                (tx_chain, rx_chain, pages),
                accepts,
                &mut *kept,
                begin,
            )?);
        }
        self.connect_ctrl(p, front.ctrl, begin)?;
        self.control.lock().multicast.request(front.multicast_control);
        if begin == Begin::Fresh {
            bus.publish(&active, of_back_connection).map_err(ConnectError::Keys)?;
        }
        let now_ns = p.clock().now_ns();
        let n = queues.len();
        for q in &mut queues {
            q.rx.watch(self.config.patience, front.rx_notify, begin == Begin::Reattach, now_ns);
            q.rx.set_queues(n);
        }
        self.shares = queues.iter().map(|q| Arc::clone(q.share())).collect();
        self.queues = queues;
        self.allow_pages(p, left);
        self.reload_headroom(p, bus).map_err(ConnectError::Keys)?;
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
        let mut control = self.control.lock();
        control.offer_multicast(self.config.features.multicast_control);
        let kept = if begin == Begin::Reattach { control.resume() } else { None };
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
            control.begin(self.ctrl.as_ref().map_or(0, CtrlRing::rsp_prod), list);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // one call, from `connect`
    fn connect_queue<E>(
        &self,
        p: &P,
        (i, n): (usize, usize),
        keys: &QueueKeys,
        (tx_chain, rx_chain, kept_pages): (Chain<P>, Chain<P>, usize),
        accepts: RxAccepts,
        kept: KeptMemory<'_>,
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
        let mut page = |dir: &str| {
            let page = kept(&format!("{i}/{dir}"), REDO_BYTES).and_then(RedoPage::new);
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
        let control = Arc::clone(&self.control);
        Ok(BackQueue::new(of, tx, rx, (tx_chan, rx_chan), control, RING_PAGES + kept_pages))
    }
}
