//! The keys by which the two ends negotiate in xenstore, written and read in one place
//! (docs/protocol 2.8, 3.1, 4.5.1 and 4.6.1).
//!
//! ```text
//!   back's directory:   feature-sg = "1" ... feature-staging-grants = "1", staging-grants-sizes = "64;128;..."
//!   front's directory:  tx-ring-ref, rx-ring-ref, event-channel[-tx,-rx], request-rx-copy, tx-data-ref0, tx-data-len ...
//!                       with two queues or more these move to queue-0/, queue-1/ ...
//!   back's directory:   staging-grants-active = "1"     (path/staging/keys.rs)
//! ```
//! What a peer may do: write anything. An invalid number in a required key is an error that names
//! the key and the expected value; an unknown key is ignored; an invalid staging key disables
//! staging, not the vif.

pub use super::path::active::ActiveLists;
pub use super::path::request_keys::RingRequest;
use super::path::{self, Negotiation, OfPath};
use crate::units::{EvtchnPort, GrantRef};
use crate::xenbus::bus::{DeviceBus, OwnKeys};
use crate::xenbus::key_source::{KeySource, Pairs, decimal, flag, needed, number, put};
pub use crate::xenbus::ring_keys::{MAX_RING_ORDER, queue_prefix};
use crate::xenbus::ring_keys::{NUM_QUEUES, nr_queues, put_order, put_ring, ring_order, vif_ring};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::iter::once;

paths!(with_paths {
    /// The features that a back offers.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct BackFeatures(Offer, offer) {
        /// `feature-sg`: it takes frames of several slots.
        pub sg: bool = true,
        /// `feature-gso-tcpv4`: it takes large TCP segments over IPv4.
        pub gso_tcpv4: bool = true,
        /// `feature-gso-tcpv6`: it takes large TCP segments over IPv6.
        pub gso_tcpv6: bool = true,
        /// `feature-ipv6-csum-offload`: it takes IPv6 frames with a blank checksum.
        pub ipv6_csum: bool = true,
        /// `feature-rx-copy`: it copies to the front's pages. A front cannot work without it.
        pub rx_copy: bool = true,
        /// `feature-split-event-channels`: it supports an event channel per ring.
        pub split_channels: bool = true,
        /// `feature-multicast-control`: it filters multicast frames if the front asks for that.
        pub multicast_control: bool = true,
        /// `feature-dynamic-multicast-control`: the front may switch that on and off at any time.
        pub dynamic_multicast_control: bool = true,
        /// `feature-xdp-headroom`: it leaves headroom before the data in RX pages if the front asks
        /// for that.
        pub xdp_headroom: bool = true,
        /// `feature-ctrl-ring`: it answers control requests.
        pub ctrl_ring: bool = true,
        /// `multi-queue-max-queues`: most queues of a vif.
        pub max_queues: u32 = 8,
        /// `max-tx-ring-page-order`: log2 of the most pages of a TX ring.
        pub max_tx_ring_order: u32 = MAX_RING_ORDER,
        /// `max-rx-ring-page-order`: log2 of the most pages of an RX ring.
        pub max_rx_ring_order: u32 = MAX_RING_ORDER,
        /// `mapped-pages-max`: number of a vif's ordinary pages that it keeps mapped, over all
        /// queues and both directions; 0: the key is not written.
        pub mapped_pages: u32 = 0,
    }
});

impl Default for BackFeatures {
    fn default() -> Self {
        Self::start()
    }
}

impl BackFeatures {
    /// The keys for the back's directory.
    pub fn pairs(&self) -> Pairs {
        let mut p = Pairs::new();
        put(&mut p, "feature-sg", self.sg as u32);
        put(&mut p, "feature-gso-tcpv4", self.gso_tcpv4 as u32);
        put(&mut p, "feature-gso-tcpv6", self.gso_tcpv6 as u32);
        put(&mut p, "feature-ipv6-csum-offload", self.ipv6_csum as u32);
        put(&mut p, "feature-rx-copy", self.rx_copy as u32);
        put(&mut p, "feature-rx-flip", 0);
        put(&mut p, "feature-split-event-channels", self.split_channels as u32);
        put(&mut p, "feature-multicast-control", self.multicast_control as u32);
        put(&mut p, "feature-dynamic-multicast-control", self.dynamic_multicast_control as u32);
        put(&mut p, "feature-xdp-headroom", self.xdp_headroom as u32);
        put(&mut p, "feature-ctrl-ring", self.ctrl_ring as u32);
        put(&mut p, "multi-queue-max-queues", self.max_queues);
        put(&mut p, MAX_TX_RING_ORDER, self.max_tx_ring_order);
        put(&mut p, MAX_RX_RING_ORDER, self.max_rx_ring_order);
        if self.mapped_pages > 0 {
            put(&mut p, MAPPED_PAGES, self.mapped_pages);
        }
        each_path!(Path => Path::put_offer(OfPath::<Path>::path(self), &mut p));
        p
    }

    /// Reads the keys of a back's directory.
    pub fn read<S: KeySource>(keys: &mut S) -> Result<Self, S::Error> {
        let mut back = Self {
            sg: flag(keys, "feature-sg")?,
            gso_tcpv4: flag(keys, "feature-gso-tcpv4")?,
            gso_tcpv6: flag(keys, "feature-gso-tcpv6")?,
            ipv6_csum: flag(keys, "feature-ipv6-csum-offload")?,
            rx_copy: flag(keys, "feature-rx-copy")?,
            split_channels: flag(keys, "feature-split-event-channels")?,
            multicast_control: flag(keys, "feature-multicast-control")?,
            dynamic_multicast_control: flag(keys, "feature-dynamic-multicast-control")?,
            xdp_headroom: flag(keys, "feature-xdp-headroom")?,
            ctrl_ring: flag(keys, "feature-ctrl-ring")?,
            max_queues: max_queues(keys)?,
            max_tx_ring_order: ring_order(keys, MAX_TX_RING_ORDER)?,
            max_rx_ring_order: ring_order(keys, MAX_RX_RING_ORDER)?,
            mapped_pages: number(keys, MAPPED_PAGES)?.unwrap_or(0),
            ..Self::start()
        };
        each_path!(Path => *OfPath::<Path>::path_mut(&mut back) = Path::read_offer(keys)?);
        Ok(back)
    }

    /// The share of [`mapped_pages`](Self::mapped_pages) for one direction of a queue, in a vif
    /// with this many queues.
    pub fn mapped_pages_of(&self, queues: u32) -> u32 {
        (self.mapped_pages / 2).checked_div(queues).unwrap_or(0)
    }
}

/// Reads how many queues a back offers.
fn max_queues<S: KeySource>(keys: &mut S) -> Result<u32, S::Error> {
    Ok(number(keys, "multi-queue-max-queues")?.unwrap_or(1).max(1))
}

/// Reads how many queues a front has, at most as many as the back's own keys offer.
pub fn connected_queues<B: DeviceBus>(bus: &mut B) -> Result<u32, B::Error> {
    let most = max_queues(&mut OwnKeys(bus))?;
    nr_queues(bus, most)
}

/// The kinds of frames that a front takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxAccepts {
    /// `feature-sg`: it takes frames of several slots.
    pub sg: bool,
    /// `feature-gso-tcpv4`: it takes large TCP segments over IPv4.
    pub gso_tcpv4: bool,
    /// `feature-gso-tcpv6`: it takes large TCP segments over IPv6.
    pub gso_tcpv6: bool,
    /// No `feature-no-csum-offload`: it takes IPv4 frames with a blank checksum.
    pub csum: bool,
    /// `feature-ipv6-csum-offload`: it takes IPv6 frames with a blank checksum.
    pub ipv6_csum: bool,
}

impl RxAccepts {
    /// Reads the keys of a front's directory.
    pub fn read<S: KeySource>(keys: &mut S) -> Result<Self, S::Error> {
        Ok(Self {
            sg: flag(keys, "feature-sg")?,
            gso_tcpv4: flag(keys, "feature-gso-tcpv4")?,
            gso_tcpv6: flag(keys, "feature-gso-tcpv6")?,
            csum: !flag(keys, "feature-no-csum-offload")?,
            ipv6_csum: flag(keys, "feature-ipv6-csum-offload")?,
        })
    }
}

/// The event channels of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelKeys {
    /// `event-channel`: one channel for both rings.
    Single(EvtchnPort),
    /// `event-channel-tx`, `event-channel-rx`: a channel per ring.
    Split {
        /// The channel of the TX ring.
        tx: EvtchnPort,
        /// The channel of the RX ring.
        rx: EvtchnPort,
    },
}

paths!(with_paths {
    /// One queue, as the front set it up.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct QueueKeys(QueueRequest, default) {
        /// `tx-ring-ref`, or `tx-ring-ref%u` for several pages, a power of two of them.
        pub tx_ring: Vec<GrantRef> = Vec::new(),
        /// `rx-ring-ref`, or `rx-ring-ref%u` for several pages.
        pub rx_ring: Vec<GrantRef> = Vec::new(),
        /// The event channels.
        pub channels: ChannelKeys = ChannelKeys::Single(EvtchnPort(0)),
    }
});

impl QueueKeys {
    /// A queue whose rings have one page each, without memory of paths.
    pub fn new(tx_ring: GrantRef, rx_ring: GrantRef, channels: ChannelKeys) -> Self {
        let (tx_ring, rx_ring) = (Vec::from([tx_ring]), Vec::from([rx_ring]));
        Self { tx_ring, rx_ring, channels, ..Self::start() }
    }
}

/// The back's keys for the largest rings that it takes.
const MAX_TX_RING_ORDER: &str = "max-tx-ring-page-order";
const MAX_RX_RING_ORDER: &str = "max-rx-ring-page-order";
/// The back's key for the number of a vif's ordinary pages that it keeps mapped.
pub const MAPPED_PAGES: &str = "mapped-pages-max";
const RING_ORDERS: &str = "at most the back's max-tx-ring-page-order or max-rx-ring-page-order";

/// The control ring of a front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CtrlKeys {
    /// `ctrl-ring-ref`: the grant reference of its page.
    pub ring: GrantRef,
    /// `event-channel-ctrl`: its event channel.
    pub channel: EvtchnPort,
}

paths!(with_paths {
    /// The connection that a front requests.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct FrontRequest(Request, default) {
        /// `request-rx-copy`, which is mandatory.
        pub rx_copy: bool = true,
        /// `feature-rx-notify`: the front notifies when it posts RX slots.
        pub rx_notify: bool = true,
        /// `feature-sg`: it takes frames of several slots.
        pub sg: bool = true,
        /// `feature-gso-tcpv4`: it takes large TCP segments over IPv4.
        pub gso_tcpv4: bool = true,
        /// `feature-gso-tcpv6`: it takes large TCP segments over IPv6.
        pub gso_tcpv6: bool = true,
        /// No `feature-no-csum-offload`: it takes IPv4 frames with a blank checksum.
        pub csum: bool = true,
        /// `feature-ipv6-csum-offload`: it takes IPv6 frames with a blank checksum.
        pub ipv6_csum: bool = true,
        /// [`REQUEST_MULTICAST`]: it only wants multicast frames for addresses that it added.
        pub multicast_control: bool = false,
        /// [`XDP_HEADROOM`] at the connect; 0: the key is not written.
        pub headroom: u16 = 0,
        /// Its control ring, if it has one.
        pub ctrl: Option<CtrlKeys> = None,
        /// The queues, at least one.
        pub queues: Vec<QueueKeys> = Vec::new(),
    }
});

/// The front's key that asks for multicast control. With `feature-dynamic-multicast-control` it may
/// change at any time.
pub const REQUEST_MULTICAST: &str = "request-multicast-control";

/// Reads whether a front asks for multicast control now.
pub fn requests_multicast<S: KeySource>(keys: &mut S) -> Result<bool, S::Error> {
    flag(keys, REQUEST_MULTICAST)
}

/// The front's key for the number of bytes before the data in its RX pages. The front writes it and
/// then enters state 7.
pub const XDP_HEADROOM: &str = "xdp-headroom";

/// Largest headroom, which leaves as much for data. A larger request gets this; the extra info has
/// the actual value.
pub const MAX_HEADROOM: u16 = 2048;

/// Reads the headroom that a front asks for. An invalid value means none.
pub fn xdp_headroom<S: KeySource>(keys: &mut S) -> Result<u16, S::Error> {
    let asked = keys.text(XDP_HEADROOM)?.as_deref().and_then(decimal).unwrap_or(0);
    Ok(asked.min(u32::from(MAX_HEADROOM)) as u16)
}

/// Whether a back with `max_queues` queues has accepted any frame memory of its front, by the keys
/// in its own directory.
pub fn memory_is_active<S: KeySource>(back: &mut S, max_queues: u32) -> Result<bool, S::Error> {
    // Only the front's keys have the number of queues, so check all possible places.
    let queues = once((0, 1)).chain((0..max_queues as usize).map(|i| (i, 2)));
    let names = || path::KEYS.iter().filter_map(|keys| keys.directions);
    for key in queues.flat_map(|(i, n)| names().map(move |name| queue_prefix(i, n) + name)) {
        let text = back.text(&key)?;
        if ActiveLists::parse(text.as_deref(), ActiveLists::BOTH).any() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a name in the back's directory belongs to one connection.
pub fn of_back_connection(name: &str) -> bool {
    path::KEYS.iter().any(|keys| keys.active.contains(&name)) || name.starts_with("queue-")
}

/// Whether Linux's netback does not know a name in the back's directory. It would neither overwrite
/// nor remove it, so the key must be removed before netback gets the vif, or its fronts would rely
/// on it.
pub fn unknown_to_netback(name: &str) -> bool {
    of_back_connection(name)
        || [MAX_TX_RING_ORDER, MAX_RX_RING_ORDER].contains(&name)
        || path::KEYS.iter().any(|keys| keys.offers.contains(&name))
}

/// Whether a name in the front's directory belongs to one connection. A predecessor with other
/// queues, channels or lists may have left it, and it would be taken for ours; or it is a promise
/// of this front only, which a successor that does not know the key would not keep.
pub fn of_front_connection(name: &str) -> bool {
    let starts = ["tx-", "rx-", "ctrl-", "event-channel", "queue-", NUM_QUEUES, XDP_HEADROOM];
    let of_paths = path::KEYS.iter().flat_map(|keys| keys.front);
    starts.iter().chain(of_paths).any(|start| name.starts_with(start))
}

/// Reads a queue's channels: two if both keys exist, as in Linux's netback. Half of a pair was left
/// by a front that had two.
fn channels<S: KeySource>(keys: &mut S, at: &str) -> Result<ChannelKeys, S::Error> {
    let (tx_key, rx_key) = (format!("{at}event-channel-tx"), format!("{at}event-channel-rx"));
    let (tx, rx) = (number(keys, &tx_key)?, number(keys, &rx_key)?);
    if let (Some(tx), Some(rx)) = (tx, rx) {
        return Ok(ChannelKeys::Split { tx: EvtchnPort(tx), rx: EvtchnPort(rx) });
    }
    let (both_key, missing) = (format!("{at}event-channel"), "a decimal number (the key is missing)");
    match (number(keys, &both_key)?, tx, rx) {
        (Some(both), ..) => Ok(ChannelKeys::Single(EvtchnPort(both))),
        (None, Some(_), None) => Err(keys.bad(&rx_key, "", missing)),
        (None, None, Some(_)) => Err(keys.bad(&tx_key, "", missing)),
        _ => Err(keys.bad(&both_key, "", missing)),
    }
}

impl FrontRequest {
    /// A front that takes every kind of frame and asks for no extension.
    pub fn new(queues: Vec<QueueKeys>) -> Self {
        Self { queues, ..Self::start() }
    }

    /// The keys for the front's directory.
    pub fn pairs(&self) -> Pairs {
        let mut p = Pairs::new();
        put(&mut p, "request-rx-copy", self.rx_copy as u32);
        put(&mut p, "feature-rx-notify", self.rx_notify as u32);
        put(&mut p, "feature-sg", self.sg as u32);
        put(&mut p, "feature-gso-tcpv4", self.gso_tcpv4 as u32);
        put(&mut p, "feature-gso-tcpv6", self.gso_tcpv6 as u32);
        put(&mut p, "feature-no-csum-offload", !self.csum as u32);
        put(&mut p, "feature-ipv6-csum-offload", self.ipv6_csum as u32);
        put(&mut p, REQUEST_MULTICAST, self.multicast_control as u32);
        if self.headroom > 0 {
            put(&mut p, XDP_HEADROOM, self.headroom);
        }
        if let Some(ctrl) = self.ctrl {
            put(&mut p, "ctrl-ring-ref", ctrl.ring.0);
            put(&mut p, "event-channel-ctrl", ctrl.channel.0);
        }
        let n = self.queues.len();
        if n >= 2 {
            put(&mut p, NUM_QUEUES, n);
        }
        for (i, q) in self.queues.iter().enumerate() {
            let at = queue_prefix(i, n);
            for (dir, ring) in [("tx", &q.tx_ring), ("rx", &q.rx_ring)] {
                let at = format!("{at}{dir}-");
                put_order(&mut p, &at, ring.len());
                put_ring(&mut p, &at, ring);
            }
            match q.channels {
                ChannelKeys::Single(port) => put(&mut p, format!("{at}event-channel"), port.0),
                ChannelKeys::Split { tx, rx } => {
                    put(&mut p, format!("{at}event-channel-tx"), tx.0);
                    put(&mut p, format!("{at}event-channel-rx"), rx.0);
                }
            }
        }
        let at: Vec<_> = (0..n).map(|i| queue_prefix(i, n)).collect();
        let queues = || at.iter().map(String::as_str).zip(&self.queues);
        each_path!(Path => {
            let queues: Vec<_> = queues().map(|(at, q)| (at, OfPath::<Path>::path(q))).collect();
            Path::put_request(OfPath::<Path>::path(self), &queues, &mut p);
        });
        p
    }

    /// Reads the keys of a front's directory. `offered` is what this back advertised.
    pub fn read<S: KeySource>(keys: &mut S, offered: &BackFeatures) -> Result<Self, S::Error> {
        let rx_copy = flag(keys, "request-rx-copy")?;
        if !rx_copy {
            let text = keys.text("request-rx-copy")?.unwrap_or_default();
            return Err(keys.bad(
                "request-rx-copy",
                &text,
                "1: this back copies into the front's pages, no other way",
            ));
        }
        let n = nr_queues(keys, offered.max_queues)?;
        let ctrl_ring = if offered.ctrl_ring { number(keys, "ctrl-ring-ref")? } else { None };
        let ctrl = match ctrl_ring {
            Some(r) => {
                let channel = needed(keys, "event-channel-ctrl")?;
                Some(CtrlKeys { ring: GrantRef(r), channel: EvtchnPort(channel) })
            }
            None => None,
        };
        let at: Vec<_> = (0..n as usize).map(|i| queue_prefix(i, n as usize)).collect();
        let mut queues = Vec::with_capacity(n as usize);
        for at in &at {
            queues.push(QueueKeys {
                tx_ring: vif_ring(keys, &format!("{at}tx-"), (offered.max_tx_ring_order, RING_ORDERS))?,
                rx_ring: vif_ring(keys, &format!("{at}rx-"), (offered.max_rx_ring_order, RING_ORDERS))?,
                channels: channels(keys, at)?,
                ..QueueKeys::start()
            });
        }
        let RxAccepts { sg, gso_tcpv4, gso_tcpv6, csum, ipv6_csum } = RxAccepts::read(keys)?;
        let mut front = Self {
            rx_copy,
            rx_notify: flag(keys, "feature-rx-notify")?,
            sg,
            gso_tcpv4,
            gso_tcpv6,
            csum,
            ipv6_csum,
            multicast_control: offered.multicast_control && requests_multicast(keys)?,
            headroom: if offered.xdp_headroom { xdp_headroom(keys)? } else { 0 },
            ctrl,
            queues,
            ..Self::start()
        };
        let at: Vec<_> = at.iter().map(String::as_str).collect();
        each_path!(Path => {
            let (request, of_queues) = Path::read_request(keys, OfPath::<Path>::path(offered), &at)?;
            *OfPath::<Path>::path_mut(&mut front) = request;
            for (queue, request) in front.queues.iter_mut().zip(of_queues) {
                *OfPath::<Path>::path_mut(queue) = request;
            }
        });
        Ok(front)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::path::staging::keys::{
        self as staging, DataKeys, DataRequest, Lists, REVISION_KEY, STAGING_REVISION, active_key,
    };
    use crate::net::path::{DataLen, foreign, guest_copy, persistent};
    use alloc::borrow::ToOwned;
    use std::collections::BTreeMap;

    struct Dir(BTreeMap<String, String>);
    impl KeySource for Dir {
        type Error = String;
        fn text(&mut self, key: &str) -> Result<Option<String>, String> {
            Ok(self.0.get(key).cloned())
        }
        fn bad(&self, key: &str, value: &str, expected: &'static str) -> String {
            format!("{key}={value}: {expected}")
        }
    }
    fn dir(pairs: Pairs) -> Dir {
        Dir(pairs.into_iter().collect())
    }
    fn data(r: u32, len: u32) -> DataRequest {
        let len = DataLen::new(len).unwrap();
        DataRequest::Keys(DataKeys { list_refs: Vec::from([GrantRef(r)]), len })
    }
    fn request(n: u32) -> FrontRequest {
        let queue = |i| QueueKeys {
            tx_ring: (0..1u32 << i).map(|k| GrantRef(8 + i + 200 * k)).collect(),
            rx_ring: (0..if i == 1 { 16 } else { 1 }).map(|k| GrantRef(100 + i + 200 * k)).collect(),
            channels: if i % 2 == 0 {
                ChannelKeys::Split { tx: EvtchnPort(1 + i), rx: EvtchnPort(20 + i) }
            } else {
                ChannelKeys::Single(EvtchnPort(7))
            },
            staging: Lists {
                tx: data(40 + i, 256),
                rx: if i == 0 { data(50, 65535) } else { DataRequest::None },
            },
            data_ring: (i != 1).then_some(GrantRef(60 + i)).into(),
            guest_copy: (i == 1).then_some(GrantRef(70)).into(),
            ..QueueKeys::start()
        };
        FrontRequest {
            rx_copy: true,
            rx_notify: true,
            sg: true,
            gso_tcpv4: true,
            gso_tcpv6: false,
            csum: true,
            ipv6_csum: false,
            persistent: true,
            foreign: n == 3,
            staging: staging::Request { revision: n.min(STAGING_REVISION), rx_heads: n & 1 == 1 },
            headroom: 256 * (n % 2) as u16,
            multicast_control: n == 2,
            ctrl: (n < 4).then_some(CtrlKeys { ring: GrantRef(90 + n), channel: EvtchnPort(91) }),
            queues: (0..n).map(queue).collect(),
            ..FrontRequest::start()
        }
    }

    #[test]
    fn what_one_end_writes_the_other_reads() {
        let back = BackFeatures { foreign: true, guest_copy: true, ..BackFeatures::default() };
        assert_eq!(BackFeatures::read(&mut dir(back.pairs())).unwrap(), back);
        let plain = BackFeatures {
            staging: staging::Offer::NONE,
            sg: false,
            max_queues: 1,
            multicast_control: false,
            xdp_headroom: false,
            ctrl_ring: false,
            data_ring: 0,
            foreign: false,
            guest_copy: false,
            ..back.clone()
        };
        assert_eq!(BackFeatures::read(&mut dir(plain.pairs())).unwrap(), plain);
        for n in 1..=4 {
            let front = request(n);
            assert_eq!(FrontRequest::read(&mut dir(front.pairs()), &back).unwrap(), front, "{n} queues");
        }
    }

    #[test]
    fn one_queue_is_flat_and_two_are_not() {
        let keys = |n| request(n).pairs().into_iter().map(|p| p.0).collect::<Vec<_>>();
        assert!(
            keys(1).contains(&"tx-ring-ref".to_owned()) && keys(1).iter().all(|k| !k.starts_with("queue-"))
        );
        assert!(
            keys(2).contains(&"queue-1/tx-data-ref0".to_owned())
                && !keys(2).contains(&"tx-ring-ref".to_owned())
        );
        let of_ring = |n: u32, at: &str| -> Vec<(String, String)> {
            request(n).pairs().into_iter().filter(|(key, _)| key.starts_with(at)).collect()
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(of_ring(1, "tx-ring"), [pair("tx-ring-ref", "8")]);
        let two = [("page-order", "1"), ("ref0", "9"), ("ref1", "209")];
        let two = two.map(|(key, value)| pair(&format!("queue-1/tx-ring-{key}"), value));
        assert_eq!(of_ring(2, "queue-1/tx-ring"), two);
        assert_eq!(of_ring(2, "queue-1/rx-ring").len(), 17);
        let back = BackFeatures::default().pairs();
        assert!(
            ["max-tx-ring-page-order", "max-rx-ring-page-order"]
                .iter()
                .all(|key| back.contains(&pair(key, "4")))
        );
    }

    #[test]
    fn what_belongs_to_a_connection_goes_with_it() {
        for n in [1, 3] {
            for (key, _) in request(n).pairs() {
                let name = key.split('/').next().unwrap();
                let stays = name.starts_with("request-") || name.starts_with("feature-");
                let ours = ["feature-staging-grants", persistent::FEATURE, foreign::REQUEST].contains(&name);
                assert_eq!(of_front_connection(name), !stays || ours, "{name}");
            }
            assert!(of_back_connection(foreign::ACTIVE) && of_back_connection(guest_copy::ACTIVE));
            assert!(of_back_connection(active_key(0, n as usize).split('/').next().unwrap()));
        }
        for name in ["state", "backend", "backend-id", "handle", "mac", "mtu", "trusted"] {
            assert!(!of_front_connection(name), "{name} is the toolstack's");
        }
        let toolstacks = ["state", "frontend", "online", "bridge", "script"].map(String::from);
        for name in toolstacks.into_iter().chain(BackFeatures::default().pairs().into_iter().map(|p| p.0)) {
            assert!(!of_back_connection(&name), "{name} outlives a connection");
        }
    }

    #[test]
    fn an_old_front_without_any_extension_is_understood() {
        let keys =
            [("tx-ring-ref", "8"), ("rx-ring-ref", "9"), ("event-channel", "3"), ("request-rx-copy", "1")];
        let mut d = dir(keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        let front = FrontRequest::read(&mut d, &BackFeatures::default()).unwrap();
        assert_eq!(front.queues.len(), 1);
        assert_eq!(front.queues[0].channels, ChannelKeys::Single(EvtchnPort(3)));
        assert!(!front.sg && front.csum && front.queues[0].staging.tx == DataRequest::None);
    }

    #[test]
    fn garbled_keys_are_named_and_garbled_staging_keys_cost_no_vif() {
        let back = BackFeatures::default();
        let with = |key: &str, value: &str| {
            let mut d = dir(request(1).pairs());
            d.0.insert(key.to_owned(), value.to_owned());
            FrontRequest::read(&mut d, &back)
        };
        for (key, value) in [
            ("tx-ring-ref", "x"),
            ("tx-ring-ref", ""),
            ("rx-ring-ref", "-1"),
            ("event-channel-tx", "4294967296"),
            ("ctrl-ring-ref", "x"),
            ("event-channel-ctrl", "-1"),
            ("multi-queue-num-queues", "0"),
            ("multi-queue-num-queues", "9"),
            ("request-rx-copy", "0"),
            ("request-rx-copy", "yes"),
        ] {
            let e = with(key, value).unwrap_err();
            assert!(e.starts_with(key), "{e}");
        }
        for (key, value) in
            [("tx-data-len", "300"), ("tx-data-len", "x"), ("tx-data-ref0", "x"), ("tx-data-len", "0")]
        {
            let q = with(key, value).unwrap().queues.remove(0);
            let DataRequest::Bad { key: named, value: seen, .. } = q.staging.tx else {
                panic!("{key}={value}")
            };
            assert_eq!((named.as_str(), seen.as_deref()), (key, Some(value)));
            assert_eq!(q.staging.rx, data(50, 65535));
        }
        // An order promises pages: a missing page, or a back that offers no orders, is an error.
        for (key, value, named) in [
            ("rx-ring-ref15", None, "rx-ring-ref15"),
            ("rx-ring-ref3", Some("x"), "rx-ring-ref3"),
            ("rx-ring-page-order", None, "rx-ring-ref="),
            ("rx-ring-page-order", Some("0"), "rx-ring-ref="),
            ("rx-ring-page-order", Some("5"), "rx-ring-page-order=5"),
            ("tx-ring-page-order", Some("4294967295"), "tx-ring-page-order"),
            ("tx-ring-page-order", Some("x"), "tx-ring-page-order"),
        ] {
            let mut d = dir(request(2).pairs());
            let key = format!("queue-1/{key}");
            match value {
                Some(value) => drop(d.0.insert(key, value.into())),
                None => drop(d.0.remove(&key)),
            }
            let e = FrontRequest::read(&mut d, &back).unwrap_err();
            assert!(e.starts_with(&format!("queue-1/{named}")), "{e}");
        }
        // Keys of a front that was killed, and the kernel's front, which does not know them.
        let front = with("rx-ring-page-order", "1").unwrap();
        assert_eq!(front.queues[0].rx_ring, [GrantRef(100)]);
        let old = BackFeatures { max_tx_ring_order: 0, ..back.clone() };
        let e = FrontRequest::read(&mut dir(request(2).pairs()), &old).unwrap_err();
        assert!(e.starts_with("queue-1/tx-ring-page-order"), "{e}");
        // Half a control ring counts as none, and a back without control rings ignores it.
        let mut d = dir(request(1).pairs());
        d.0.remove("event-channel-ctrl");
        let e = FrontRequest::read(&mut d, &back).unwrap_err();
        assert!(e.starts_with("event-channel-ctrl"), "{e}");
        let old = BackFeatures { ctrl_ring: false, multicast_control: false, ..back.clone() };
        let front = FrontRequest::read(&mut dir(request(2).pairs()), &old).unwrap();
        assert_eq!((front.ctrl, front.multicast_control), (None, false));
        for gone in ["rx-data-len", "rx-data-ref0"] {
            let mut d = dir(request(1).pairs());
            d.0.remove(gone);
            let q = FrontRequest::read(&mut d, &back).unwrap().queues.remove(0);
            assert!(matches!(q.staging.rx, DataRequest::Bad { key, value: None, .. } if key == gone));
        }
    }

    #[test]
    fn a_back_with_one_list_is_active() {
        for (text, seen) in [("1", true), ("tx", true), ("rx", true), ("0", false), ("yes", false)] {
            for key in [active_key(0, 1), active_key(1, 2)] {
                let mut own = dir(Vec::from([(key, text.into())]));
                assert_eq!(memory_is_active(&mut own, 2), Ok(seen), "{text}");
            }
        }
    }

    #[test]
    fn a_revision_is_the_lower_one_and_garbage_is_the_first() {
        let back = BackFeatures::default();
        for (text, knows) in
            [("1", 1), ("2", 2), ("3", 3), ("4", 3), ("4294967295", 3), ("0", 1), ("x", 1), ("", 1)]
        {
            let with = |pairs: Pairs| {
                let mut d = dir(pairs);
                d.0.insert(REVISION_KEY.to_owned(), text.to_owned());
                d
            };
            assert_eq!(BackFeatures::read(&mut with(back.pairs())).unwrap().staging.revision, knows);
            let front = FrontRequest::read(&mut with(request(2).pairs()), &back).unwrap();
            assert_eq!(front.staging.revision, knows, "{text}");
        }
        let mut old = dir(request(2).pairs());
        old.0.remove(REVISION_KEY);
        assert_eq!(FrontRequest::read(&mut old, &back).unwrap().staging.revision, 1);
    }

    #[test]
    fn the_rfc_s_place_for_one_queue_is_read_too() {
        let mut d = dir(request(1).pairs());
        for key in ["tx-data-ref0", "tx-data-len"] {
            let v = d.0.remove(key).unwrap();
            d.0.insert(format!("queue-0/{key}"), v);
        }
        let q = FrontRequest::read(&mut d, &BackFeatures::default()).unwrap().queues.remove(0);
        assert_eq!(q.staging.tx, data(40, 256));
    }

    #[test]
    fn headroom_is_bounded_and_garbage_is_none() {
        let asked =
            |text: &str| xdp_headroom(&mut dir(Vec::from([(XDP_HEADROOM.into(), text.into())]))).unwrap();
        for (text, given) in [("256", 256), ("0", 0), ("2048\0", 2048), ("2049", 2048), ("4294967295", 2048)]
        {
            assert_eq!(asked(text), given, "{text}");
        }
        for text in ["", "x", "-1", "256,1", "4294967296"] {
            assert_eq!(asked(text), 0, "{text}");
        }
        assert_eq!(xdp_headroom(&mut dir(Pairs::new())), Ok(0));
    }
}
