//! The keys by which the two ends negotiate in xenstore (docs/protocol 2.8, 3.1, 4.5.1 and 4.6.1).
//!
//! ```text
//!   back's directory:   feature-sg = "1" ... feature-staging-grants = "1", staging-grants-sizes = "64;128;..."
//!   front's directory:  tx-ring-ref, rx-ring-ref, event-channel[-tx,-rx], request-rx-copy, tx-data-ref0, tx-data-len ...
//!                       with two queues or more these move to queue-0/, queue-1/ ...
//!   back's directory:   staging-grants-active = "1"     (path/staging/keys.rs)
//! ```
//! The keys are written and read in [`feature_keys`](super::feature_keys).

pub use super::path::active_lists::ActiveLists;
use super::path::keys::PathKeys;
pub use super::path::request_keys::RingRequest;
use super::path::research::keys as research;
use super::path::staging::keys as staging;
use super::path::{PathName, data_ring, persistent};
use crate::units::{EvtchnPort, GrantRef};
use crate::wire::data_ring::ORDER_MAX;
use crate::xenbus::KeyName;
use crate::xenbus::bus::{DeviceBus, OwnKeys};
use crate::xenbus::key_source::{KeySource, decimal, flag, number};
pub use crate::xenbus::ring_keys::{MAX_RING_ORDER, queue_prefix};
use crate::xenbus::ring_keys::{NUM_QUEUES, nr_queues};
use alloc::vec::Vec;
use core::iter::once;

/// The features that a back offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackFeatures {
    /// `feature-sg`: the back accepts frames of several slots.
    pub sg: bool,
    /// `feature-gso-tcpv4`: the back accepts large TCP segments over IPv4.
    pub gso_tcpv4: bool,
    /// `feature-gso-tcpv6`: the back accepts large TCP segments over IPv6.
    pub gso_tcpv6: bool,
    /// `feature-ipv6-csum-offload`: the back accepts IPv6 frames with a blank checksum.
    pub ipv6_csum: bool,
    /// `feature-rx-copy`: the back copies to the front's pages. A front cannot work without it.
    pub rx_copy: bool,
    /// `feature-split-event-channels`: the back supports an event channel per ring.
    pub split_channels: bool,
    /// `feature-multicast-control`: the back filters multicast frames if the front asks for that.
    pub multicast_control: bool,
    /// `feature-dynamic-multicast-control`: the front may switch multicast control on and off at
    /// any time.
    pub dynamic_multicast_control: bool,
    /// `feature-xdp-headroom`: the back leaves headroom before the data in RX pages if the front
    /// asks for that.
    pub xdp_headroom: bool,
    /// `feature-ctrl-ring`: the back answers control requests.
    pub ctrl_ring: bool,
    /// `multi-queue-max-queues`: the largest number of queues of a vif.
    pub max_queues: u32,
    /// `max-tx-ring-page-order`: log2 of the most pages of a TX ring.
    pub max_tx_ring_order: u32,
    /// `max-rx-ring-page-order`: log2 of the most pages of an RX ring.
    pub max_rx_ring_order: u32,
    /// `mapped-pages-max`: number of a vif's ordinary pages that the back keeps mapped, over all
    /// queues and both directions; 0: the key is not written.
    pub mapped_pages: u32,
    /// The lengths of staging buffers that the back offers, and the staging rules that it knows.
    pub staging: staging::Offer,
    /// The largest order of a data ring that the back maps; 0: it maps none.
    pub data_ring: u32,
    /// The back maps all memory of a guest that asks for it.
    pub foreign: bool,
    /// The back grants pages of its own for RX.
    pub guest_copy: bool,
    /// The back keeps pages mapped of a front that reuses its grants.
    pub persistent: bool,
}

impl Default for BackFeatures {
    fn default() -> Self {
        Self {
            sg: true,
            gso_tcpv4: true,
            gso_tcpv6: true,
            ipv6_csum: true,
            rx_copy: true,
            split_channels: true,
            multicast_control: true,
            dynamic_multicast_control: true,
            xdp_headroom: true,
            ctrl_ring: true,
            max_queues: 8,
            max_tx_ring_order: MAX_RING_ORDER,
            max_rx_ring_order: MAX_RING_ORDER,
            mapped_pages: 0,
            staging: staging::Offer::all(),
            data_ring: ORDER_MAX,
            foreign: false,
            guest_copy: false,
            persistent: true,
        }
    }
}

impl BackFeatures {
    /// The share of [`mapped_pages`](Self::mapped_pages) for one direction of a queue, in a vif
    /// with this many queues.
    pub fn mapped_pages_of(&self, queues: u32) -> u32 {
        (self.mapped_pages / 2).checked_div(queues).unwrap_or(0)
    }
}

/// Reads how many queues a back offers.
pub(super) fn max_queues<S: KeySource>(keys: &mut S) -> Result<u32, S::Error> {
    Ok(number(keys, "multi-queue-max-queues")?.unwrap_or(1).max(1))
}

/// Reads how many queues a front has, at most as many as the back's own keys offer.
pub fn connected_queues<B: DeviceBus>(bus: &mut B) -> Result<u32, B::Error> {
    let most = max_queues(&mut OwnKeys(bus))?;
    nr_queues(bus, most)
}

/// The kinds of frames that a front accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxAccepts {
    /// `feature-sg`: the front accepts frames of several slots.
    pub sg: bool,
    /// `feature-gso-tcpv4`: the front accepts large TCP segments over IPv4.
    pub gso_tcpv4: bool,
    /// `feature-gso-tcpv6`: the front accepts large TCP segments over IPv6.
    pub gso_tcpv6: bool,
    /// No `feature-no-csum-offload`: the front accepts IPv4 frames with a blank checksum.
    pub csum: bool,
    /// `feature-ipv6-csum-offload`: the front accepts IPv6 frames with a blank checksum.
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

/// One queue, as the front set it up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueKeys {
    /// `tx-ring-ref`, or `tx-ring-ref%u` for several pages, a power of two of them.
    pub tx_ring: Vec<GrantRef>,
    /// `rx-ring-ref`, or `rx-ring-ref%u` for several pages.
    pub rx_ring: Vec<GrantRef>,
    /// The event channels.
    pub channels: ChannelKeys,
    /// The staging lists of either direction, if the front wants them.
    pub staging: staging::Lists,
    /// The index page of a data ring, if the front wants one.
    pub data_ring: RingRequest,
    /// The front's list page for pages that the back grants, if it wants them.
    pub guest_copy: RingRequest,
}

impl QueueKeys {
    /// A queue that asks for no path and whose rings have one page each.
    pub fn new(tx_ring: GrantRef, rx_ring: GrantRef, channels: ChannelKeys) -> Self {
        Self::of_rings(Vec::from([tx_ring]), Vec::from([rx_ring]), channels)
    }

    /// A queue with these rings that asks for no path.
    pub(crate) fn of_rings(tx_ring: Vec<GrantRef>, rx_ring: Vec<GrantRef>, channels: ChannelKeys) -> Self {
        Self {
            tx_ring,
            rx_ring,
            channels,
            staging: staging::Lists::default(),
            data_ring: RingRequest::None,
            guest_copy: RingRequest::None,
        }
    }
}

/// The keys of a path; None: it has none of its own.
const fn keys_of(path: PathName) -> Option<PathKeys> {
    match path {
        PathName::Staging => Some(staging::KEYS),
        PathName::DataRing => Some(data_ring::keys::KEYS),
        PathName::Foreign => Some(research::FOREIGN),
        PathName::GuestCopy => Some(research::GUEST_COPY),
        PathName::Persistent => Some(persistent::keys::KEYS),
        PathName::GrefMapping | PathName::Map | PathName::Copy => None,
    }
}

/// The keys of all paths that have some.
fn path_keys() -> impl Iterator<Item = PathKeys> {
    PathName::ALL.into_iter().filter_map(keys_of)
}

/// Key of the back: the largest TX ring that it accepts.
pub(super) const MAX_TX_RING_ORDER: &str = "max-tx-ring-page-order";
pub(super) const MAX_RX_RING_ORDER: &str = "max-rx-ring-page-order";
/// The back's key for the number of a vif's ordinary pages that it keeps mapped.
pub const MAPPED_PAGES: &str = "mapped-pages-max";
pub(super) const RING_ORDERS: &str = "at most the back's max-tx-ring-page-order or max-rx-ring-page-order";

/// The control ring of a front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CtrlKeys {
    /// `ctrl-ring-ref`: the grant reference of the control ring's page.
    pub ring: GrantRef,
    /// `event-channel-ctrl`: the control ring's event channel.
    pub channel: EvtchnPort,
}

/// The connection that a front requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrontRequest {
    /// `request-rx-copy`, which is mandatory.
    pub rx_copy: bool,
    /// `feature-rx-notify`: the front notifies when it posts RX slots.
    pub rx_notify: bool,
    /// `feature-sg`: the front accepts frames of several slots.
    pub sg: bool,
    /// `feature-gso-tcpv4`: the front accepts large TCP segments over IPv4.
    pub gso_tcpv4: bool,
    /// `feature-gso-tcpv6`: the front accepts large TCP segments over IPv6.
    pub gso_tcpv6: bool,
    /// No `feature-no-csum-offload`: the front accepts IPv4 frames with a blank checksum.
    pub csum: bool,
    /// `feature-ipv6-csum-offload`: the front accepts IPv6 frames with a blank checksum.
    pub ipv6_csum: bool,
    /// [`REQUEST_MULTICAST`]: the front only wants multicast frames for addresses that it added.
    pub multicast_control: bool,
    /// [`XDP_HEADROOM`] at the connect; 0: the key is not written.
    pub headroom: u16,
    /// The front's control ring, if it has one.
    pub ctrl: Option<CtrlKeys>,
    /// The queues, at least one.
    pub queues: Vec<QueueKeys>,
    /// The staging rules that the front knows.
    pub staging: staging::Request,
    /// The back may map all memory of this guest.
    pub foreign: bool,
    /// Each of the front's references names the same page until the front disconnects.
    pub persistent: bool,
}

/// The front's key that asks for multicast control. With `feature-dynamic-multicast-control` the
/// key may change at any time.
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
    let names = || path_keys().filter_map(|keys| keys.directions);
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
    path_keys().any(|keys| keys.active.contains(&name)) || name.starts_with("queue-")
}

/// Whether Linux's netback does not know a name in the back's directory. It would neither overwrite
/// nor remove it, so the key must be removed before netback gets the vif, or its fronts would rely
/// on it.
pub fn unknown_to_netback(name: &str) -> bool {
    of_back_connection(name)
        || [MAX_TX_RING_ORDER, MAX_RX_RING_ORDER].contains(&name)
        || path_keys().any(|keys| keys.offers.contains(&name))
}

/// True if a key in the front's directory belongs to one connection. A predecessor with other
/// queues, channels or lists may have left it, and it would be mistaken for ours; or it is a
/// promise of this front only, which a successor that does not know the key would not keep.
pub fn of_front_connection(name: &str) -> bool {
    let starts = ["tx-", "rx-", "ctrl-", "event-channel", "queue-", NUM_QUEUES, XDP_HEADROOM];
    let of_paths = path_keys().flat_map(|keys| keys.front);
    starts.iter().chain(of_paths).any(|start| name.starts_with(start))
}

/// Reads a queue's event channels: two if both are named, as Linux's netback does. If only one of
/// the two keys exists, it is left from an earlier front that had two channels.
pub(super) fn channels<S: KeySource>(keys: &mut S, at: &str) -> Result<ChannelKeys, S::Error> {
    let name = |of: &str| KeyName::of(format_args!("{at}event-channel{of}"));
    let (tx_key, rx_key) = (name("-tx"), name("-rx"));
    let (tx, rx) = (number(keys, &tx_key)?, number(keys, &rx_key)?);
    if let (Some(tx), Some(rx)) = (tx, rx) {
        return Ok(ChannelKeys::Split { tx: EvtchnPort(tx), rx: EvtchnPort(rx) });
    }
    let (both_key, missing) = (name(""), "a decimal number (the key is missing)");
    match (number(keys, &both_key)?, tx, rx) {
        (Some(both), ..) => Ok(ChannelKeys::Single(EvtchnPort(both))),
        (None, Some(_), None) => Err(keys.bad(&rx_key, "", missing)),
        (None, None, Some(_)) => Err(keys.bad(&tx_key, "", missing)),
        _ => Err(keys.bad(&both_key, "", missing)),
    }
}

impl FrontRequest {
    /// A front that accepts every kind of frame and asks for no extension.
    pub fn new(queues: Vec<QueueKeys>) -> Self {
        Self {
            rx_copy: true,
            rx_notify: true,
            sg: true,
            gso_tcpv4: true,
            gso_tcpv6: true,
            csum: true,
            ipv6_csum: true,
            multicast_control: false,
            headroom: 0,
            ctrl: None,
            staging: staging::Request::default(),
            foreign: false,
            persistent: false,
            queues,
        }
    }
}
