//! How a vif's front is connected: rings mapped, channels bound, lists judged, and the front told which were taken.
//!
//! What a front may do: name any grant and any channel; what cannot be mapped or bound is said with its key. Rings come
//! first: what passes the bound of its guest's pages (XSA-300) connects nothing.

use super::Vif;
use crate::net::back::control_page::KeptGrefs;
use crate::net::back::ctrl::CtrlRing;
use crate::net::back::gref_page::{GREF_PAGE_BYTES, GrefPage};
use crate::net::back::gref_requests::{GrefRequests, QUEUES_MAX};
use crate::net::back::multicast::MulticastList;
use crate::net::back::tx::PeerRing;
use crate::net::back::{BackQueue, RxQueue, TxQueue};
use crate::net::features::{
    ActiveLists, BackFeatures, ChannelKeys, CtrlKeys, FrontRequest, QueueKeys, RingRequest, RxAccepts,
    active_key, connected_queues, data_ring_active_key, guest_copy_active_key, of_back_connection,
    queue_prefix,
};
use crate::net::path::gref_mapping::exchange::GrefExchange;
use crate::net::path::gref_mapping::table::GrefTable;
use crate::net::path::staging::keys::{APART_SINCE, FIRST_SLOTS_SINCE, SENT_ON_SINCE};
use crate::net::path::{Chain, PathName};
use crate::net::path::{foreign, gref_mapping};
use crate::platform::{Access, Clock, Events, PeerMem, Platform};
use crate::port::Offloads;
use crate::ring::{BackRing, NetRx, NetTx, REDO_BYTES, RedoPage, RingPages};
use crate::units::GrantRef;
use crate::xenbus::back::{BackDevice, Begin, Connect, KeptMemory};
use crate::xenbus::bus::{DeviceBus, OwnKeys};
use crate::xenbus::key_source::Pairs;
use crate::xenbus::refusal::{ConnectError, TooManyPages};
use crate::xenbus::ring_keys::ring_key;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

type Chan<P> = <<P as Platform>::Events as Events>::Chan;

/// The rings of a queue, TX and RX, and its channels.
type AttachedRings<P> =
    (BackRing<NetTx, PeerRing<NetTx, P>>, BackRing<NetRx, PeerRing<NetRx, P>>, (Chan<P>, Option<Chan<P>>));

impl<P: Platform> Vif<P> {
    /// What the ports of a connection that a predecessor left depend on: how many queues it has, and what its front takes
    /// unfinished. By the keys alone, before anything is mapped.
    pub fn left_by_predecessor<B: DeviceBus>(bus: &mut B) -> Result<(usize, Offloads), B::Error> {
        Ok((connected_queues(bus)? as usize, RxAccepts::read(bus)?.offloads()))
    }

    /// Maps rings, binds channels, judges staging lists and data rings; says which were accepted.
    pub(super) fn connect_queues<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        Connect { begin, page_limit, lasting, kept }: Connect<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        // What a predecessor offered holds for its connection, and for no other: the next one is offered what this back can.
        self.told = match begin {
            Begin::Reattach => BackFeatures::read(&mut OwnKeys(bus)).map_err(ConnectError::Keys)?,
            Begin::Fresh => self.config.features.clone(),
        };
        let front = FrontRequest::read(bus, &self.told).map_err(ConnectError::Keys)?;
        let accepts = RxAccepts {
            sg: front.sg,
            gso_tcpv4: front.gso_tcpv4,
            gso_tcpv6: front.gso_tcpv6,
            csum: front.csum,
            ipv6_csum: front.ipv6_csum,
        };
        self.accepts = accepts;
        let mut active = Pairs::new();
        let pages_of = |keys: &QueueKeys| keys.tx_ring.len() + keys.rx_ring.len();
        let rings = front.queues.iter().map(pages_of).sum::<usize>() + usize::from(front.ctrl.is_some());
        // What it keeps of a former connection counts too.
        self.holds_nothing(p);
        let rings = rings + self.held_pages();
        let Some(mut left) = page_limit.checked_sub(rings) else {
            return Err(ConnectError::TooManyPages(TooManyPages { asked: rings, left: page_limit }));
        };
        // What is only kept gives way to other devices; what is named here does not.
        let lasting = if begin == Begin::Fresh { lasting.saturating_sub(rings) } else { left };
        let only_kept = left - left.min(lasting);
        left -= only_kept;
        self.refused.clear();
        let mut staged = Vec::with_capacity(front.queues.len());
        let revision = front.staging_revision.min(self.told.staging_revision);
        for (i, keys) in front.queues.iter().enumerate() {
            let refused = self.refused.len();
            let asked = ActiveLists::asked(&keys.tx_data, &keys.rx_data);
            let active_key = active_key(i, front.queues.len());
            // A front goes on filling the buffers of lists that it was told are taken, and no others: that they can be mapped now does
            // not change that.
            let told = match begin {
                Begin::Fresh => asked,
                Begin::Reattach => {
                    let text = bus.own_text(&active_key).map_err(ConnectError::Keys)?;
                    ActiveLists::parse(text.as_deref(), asked)
                }
            };
            let lists = self.queue_lists(p, (i, keys), told, revision >= APART_SINCE, left);
            if begin == Begin::Reattach
                && let Some((queue, dir, why)) = self.refused.get(refused)
            {
                return Err(ConnectError::Lost(format!(
                    "the {dir} staging list of queue {queue}, which a predecessor accepted, cannot be taken again: {why}"
                )));
            }
            left -= lists.pages;
            if asked.any() {
                active.push((active_key, String::from(lists.active().text(asked))));
            }
            let refused = self.refused.len();
            let active_key = data_ring_active_key(i, front.queues.len());
            let told = match (begin, &keys.data_ring) {
                (_, RingRequest::None) => ActiveLists::NONE,
                (Begin::Fresh, _) => ActiveLists::BOTH,
                (Begin::Reattach, _) => {
                    let text = bus.own_text(&active_key).map_err(ConnectError::Keys)?;
                    ActiveLists::parse(text.as_deref(), ActiveLists::BOTH)
                }
            };
            let area = self.queue_area(p, (i, &keys.data_ring), told, left);
            if begin == Begin::Reattach && area.active() != told {
                let why = self.refused.get(refused).map(|(_, _, why)| why.to_string());
                let why = why.unwrap_or_else(|| "its index page names it no longer".into());
                return Err(ConnectError::Lost(format!(
                    "the data ring of queue {i}, which a predecessor accepted, cannot be taken again: {why}"
                )));
            }
            left -= area.pages;
            if keys.data_ring != RingRequest::None {
                active.push((active_key, String::from(area.active().text(ActiveLists::BOTH))));
            }
            staged.push((lists, area));
        }
        let whole = self.whole_guest(p, bus, front.foreign, front.queues.len(), begin)?;
        if front.foreign {
            active.push((foreign::ACTIVE.into(), u32::from(!whole.is_empty()).to_string()));
        }
        let mut whole = whole.into_iter();
        let mut lent_before = Vec::new();
        if begin == Begin::Reattach {
            for i in 0..front.queues.len() {
                let key = guest_copy_active_key(i, front.queues.len());
                let said = bus.own_text(&key).map_err(ConnectError::Keys)?;
                lent_before.push(said.as_deref() == Some("1"));
            }
        }
        let told = |i: usize, keys: &QueueKeys| match begin {
            Begin::Fresh => keys.guest_copy != RingRequest::None,
            Begin::Reattach => lent_before.get(i).copied().unwrap_or(false),
        };
        let told: Vec<_> = front.queues.iter().enumerate().map(|(i, keys)| told(i, keys)).collect();
        let page_lists = self.begin_page_lists(p, &front.queues, &told, begin);
        let limit = if front.persistent { self.config.persistent_pages } else { 0 };
        let mut exchanges = Vec::new();
        let gref_limit = self.config.gref_pages.min(gref_mapping::LIMIT_MAX);
        for (((i, keys), (lists, area)), page_list) in
            front.queues.iter().enumerate().zip(staged).zip(page_lists)
        {
            let (tx_ring, rx_ring, chans) =
                self.attach_rings(p, (i, front.queues.len()), keys, kept, begin)?;
            // Behind what may fail: once lent, pages are in a queue of this vif, from which they can be taken back.
            let lent = page_list.and_then(|list| self.lend_pages(p, (i, keys), left, list));
            left -= lent.as_ref().map_or(0, |(_, pages)| *pages);
            if keys.guest_copy != RingRequest::None {
                let said = u32::from(lent.is_some()).to_string();
                active.push((guest_copy_active_key(i, front.queues.len()), said));
            }
            let received = lists.rx.as_ref().filter(|_| revision >= SENT_ON_SINCE);
            let tx_staging = lists.tx.map(|path| path.with_heads(self.config.staged_heads));
            let tx_staging = tx_staging.map(|path| match received {
                Some(rx) => path.with_received(rx),
                None => path,
            });
            let mut tx_chain = Chain::of(tx_staging, (limit, Access::ReadOnly), self.config.fallback);
            let rx_staging = lists.rx.map(|path| path.with_first_slots(revision >= FIRST_SLOTS_SINCE));
            let mut rx_chain = Chain::of(rx_staging, (limit, Access::ReadWrite), PathName::Copy);
            let lent_pages = lent.as_ref().map_or(0, |(_, pages)| *pages);
            let pages = lists.pages + area.pages + lent_pages;
            tx_chain = tx_chain.with_data_ring(area.tx, Access::ReadOnly);
            rx_chain = rx_chain.with_data_ring(area.rx, Access::ReadWrite);
            if front.ctrl.is_some() && gref_limit > 0 && i < QUEUES_MAX {
                tx_chain = tx_chain.with_grefs(Some(Box::new(GrefTable::new(gref_limit))));
                rx_chain = rx_chain.with_grefs(None);
                exchanges.push(Arc::new(GrefExchange::default()));
            }
            rx_chain = rx_chain.with_guest_copy(lent.map(|(path, _)| path));
            if let Some([tx, rx]) = whole.next() {
                tx_chain = tx_chain.with_foreign(Some(tx), Access::ReadOnly);
                rx_chain = rx_chain.with_foreign(Some(rx), Access::ReadWrite);
            }
            let pages = keys.tx_ring.len() + keys.rx_ring.len() + pages;
            let tx = TxQueue::new(tx_ring, tx_chain);
            let rx = RxQueue::in_room_of(p, rx_ring, rx_chain, accepts);
            let control = Arc::clone(&self.control);
            self.queues.push(BackQueue::new(self.of, tx, rx, chans, control, pages));
        }
        for (q, exchange) in self.queues.iter_mut().zip(&exchanges) {
            q.hear_of_grefs(Arc::clone(exchange));
        }
        let shares: Vec<_> = self.queues.iter().map(|q| Arc::clone(q.share())).collect();
        let mut grefs = (!exchanges.is_empty()).then(|| GrefRequests::new(exchanges, gref_limit, left));
        if let Some(grefs) = &mut grefs {
            for (i, share) in shares.iter().enumerate().take(QUEUES_MAX) {
                grefs.set_share(i, share);
                if let Some(page) = kept(&format!("{i}/grefs"), GREF_PAGE_BYTES).and_then(GrefPage::new) {
                    grefs.keep(i, page);
                }
            }
        }
        self.grefs = grefs;
        self.connect_ctrl(p, front.ctrl, begin)?;
        left -= self.single_pages();
        self.control.lock().multicast.request(front.multicast_control);
        if begin == Begin::Fresh {
            bus.publish(&active, of_back_connection).map_err(ConnectError::Keys)?;
        }
        let now_ns = p.clock().now_ns();
        let n = self.queues.len();
        for q in &mut self.queues {
            q.rx.watch(self.config.patience, front.rx_notify, begin == Begin::Reattach, now_ns);
            q.rx.set_queues(n);
        }
        self.shares = shares;
        self.allow_pages(p, left + only_kept);
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
        control.offer_multicast(self.told.multicast_control);
        let kept = if begin == Begin::Reattach { control.resume() } else { None };
        let KeptGrefs { versions, taken } = control.grefs.clone();
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
                    grefs.resume(p, self.of, &versions);
                    grefs.take_again(p, self.of, taken);
                }
                None => ctrl.refuse(p, self.of, &mut control, taken),
            }
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

    /// Maps the rings of a queue, and binds its channels.
    fn attach_rings<E>(
        &self,
        p: &P,
        (i, n): (usize, usize),
        keys: &QueueKeys,
        kept: KeptMemory<'_>,
        begin: Begin,
    ) -> Result<AttachedRings<P>, ConnectError<E>> {
        let of = self.of;
        let at = |name: &str| queue_prefix(i, n) + name;
        let map = |dir, refs: &[GrantRef]| {
            p.peer().map(of, refs, Access::ReadWrite).map_err(|error| {
                let k = error.index.filter(|&k| k < refs.len()).unwrap_or(0);
                let key = at(&ring_key(&format!("{dir}-"), k, refs.len() > 1));
                ConnectError::Map { key, of, gref: refs[k], error }
            })
        };
        let bind = |key, port| {
            let chan = p.events().bind(of, port);
            chan.map_err(|error| ConnectError::Bind { key: at(key), of, port, error })
        };
        let tx_mem = RingPages::new(map("tx", &keys.tx_ring)?);
        let rx_mem = RingPages::new(map("rx", &keys.rx_ring)?);
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
        // A predecessor may have died between a batch of answers, which is a ring of them at most, and its notification: a front that
        // waits for one of these has not looked since.
        let live = begin == Begin::Reattach;
        if tx_told.wanted() || live && tx_ring.untold(tx_ring.size()).wanted() {
            p.events().notify(&tx_chan);
        }
        if rx_told.wanted() || live && rx_ring.untold(rx_ring.size()).wanted() {
            p.events().notify(rx_chan.as_ref().unwrap_or(&tx_chan));
        }
        Ok((tx_ring, rx_ring, (tx_chan, rx_chan)))
    }
}
