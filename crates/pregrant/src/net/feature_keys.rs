//! Writes and reads, in one place, the keys by which the two ends negotiate (docs/protocol 2.8,
//! 3.1, 4.5.1 and 4.6.1). Each path's keys are in its folder.
//!
//! What a peer may do: write anything. An invalid number in a required key is an error that names
//! the key and the expected value; an unknown key is ignored; an invalid staging key disables
//! staging, not the vif.

use super::features::{
    BackFeatures, ChannelKeys, CtrlKeys, FrontRequest, MAPPED_PAGES, MAX_RX_RING_ORDER, MAX_TX_RING_ORDER,
    QueueKeys, REQUEST_MULTICAST, RING_ORDERS, RxAccepts, XDP_HEADROOM, channels, max_queues,
    requests_multicast, xdp_headroom,
};
#[cfg(not(feature = "research"))]
use super::path::research::absent;
use super::path::{DataRing, Negotiate, PathName, Persistent, Staging};
#[cfg(feature = "research")]
use super::path::{Foreign, GuestCopy};
use crate::error::PlatformError;
use crate::memory;
use crate::units::{EvtchnPort, GrantRef};
use crate::xenbus::KeyName;
use crate::xenbus::key_source::{KeySink, KeySource, Pairs, PairsInMemory, flag, needed, number, put};
use crate::xenbus::ring_keys::{
    NUM_QUEUES, nr_queues, put_order, put_ring, queue_prefix, ring_order, vif_ring,
};
use alloc::boxed::Box;

impl BackFeatures {
    /// The keys for the back's directory.
    pub fn pairs(&self) -> Pairs {
        let mut p = Pairs::new();
        self.put_all(&mut p);
        p
    }

    /// The keys for the back's directory, or an error if there is no memory for the list of them.
    pub(crate) fn pairs_in_memory(&self) -> Result<Pairs, PlatformError> {
        let mut p = PairsInMemory::new();
        self.put_all(&mut p);
        p.whole()
    }

    fn put_all(&self, p: &mut dyn KeySink) {
        put(p, "feature-sg", self.sg as u32);
        put(p, "feature-gso-tcpv4", self.gso_tcpv4 as u32);
        put(p, "feature-gso-tcpv6", self.gso_tcpv6 as u32);
        put(p, "feature-ipv6-csum-offload", self.ipv6_csum as u32);
        put(p, "feature-rx-copy", self.rx_copy as u32);
        put(p, "feature-rx-flip", 0);
        put(p, "feature-split-event-channels", self.split_channels as u32);
        put(p, "feature-multicast-control", self.multicast_control as u32);
        put(p, "feature-dynamic-multicast-control", self.dynamic_multicast_control as u32);
        put(p, "feature-xdp-headroom", self.xdp_headroom as u32);
        put(p, "feature-ctrl-ring", self.ctrl_ring as u32);
        put(p, "multi-queue-max-queues", self.max_queues);
        put(p, MAX_TX_RING_ORDER, self.max_tx_ring_order);
        put(p, MAX_RX_RING_ORDER, self.max_rx_ring_order);
        if self.mapped_pages > 0 {
            put(p, MAPPED_PAGES, self.mapped_pages);
        }
        for path in PathName::ALL {
            match path {
                PathName::Staging => Staging::put_offer(&self.staging, p),
                PathName::DataRing => DataRing::put_offer(&self.data_ring, p),
                #[cfg(feature = "research")]
                PathName::Foreign => Foreign::put_offer(&self.foreign, p),
                #[cfg(feature = "research")]
                PathName::GuestCopy => GuestCopy::put_offer(&self.guest_copy, p),
                #[cfg(not(feature = "research"))]
                PathName::Foreign | PathName::GuestCopy => absent::put_no_offer(path, p),
                PathName::Persistent => Persistent::put_offer(&self.persistent, p),
                // By `feature-ctrl-ring`, or by no key.
                PathName::GrefMapping | PathName::Map | PathName::Copy => {}
            }
        }
    }

    /// Reads the keys of a back's directory.
    pub fn read<S: KeySource>(keys: &mut S) -> Result<Self, S::Error> {
        Ok(Self {
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
            staging: Staging::read_offer(keys)?,
            data_ring: DataRing::read_offer(keys)?,
            #[cfg(feature = "research")]
            foreign: Foreign::read_offer(keys)?,
            #[cfg(feature = "research")]
            guest_copy: GuestCopy::read_offer(keys)?,
            #[cfg(not(feature = "research"))]
            foreign: false,
            #[cfg(not(feature = "research"))]
            guest_copy: false,
            persistent: Persistent::read_offer(keys)?,
        })
    }
}

impl FrontRequest {
    /// The keys for the front's directory.
    pub fn pairs(&self) -> Pairs {
        let mut p = Pairs::new();
        let whole = self.put_all(&mut p);
        debug_assert_eq!(whole, Ok(()));
        p
    }

    /// The keys for the front's directory, or an error if there is no memory for the list of them.
    pub(crate) fn pairs_in_memory(&self) -> Result<Pairs, PlatformError> {
        let mut p = PairsInMemory::new();
        self.put_all(&mut p)?;
        p.whole()
    }

    fn put_all(&self, p: &mut dyn KeySink) -> Result<(), PlatformError> {
        put(p, "request-rx-copy", self.rx_copy as u32);
        put(p, "feature-rx-notify", self.rx_notify as u32);
        put(p, "feature-sg", self.sg as u32);
        put(p, "feature-gso-tcpv4", self.gso_tcpv4 as u32);
        put(p, "feature-gso-tcpv6", self.gso_tcpv6 as u32);
        put(p, "feature-no-csum-offload", !self.csum as u32);
        put(p, "feature-ipv6-csum-offload", self.ipv6_csum as u32);
        put(p, REQUEST_MULTICAST, self.multicast_control as u32);
        if self.headroom > 0 {
            put(p, XDP_HEADROOM, self.headroom);
        }
        if let Some(ctrl) = self.ctrl {
            put(p, "ctrl-ring-ref", ctrl.ring.0);
            put(p, "event-channel-ctrl", ctrl.channel.0);
        }
        let n = self.queues.len();
        if n >= 2 {
            put(p, NUM_QUEUES, n);
        }
        for (i, q) in self.queues.iter().enumerate() {
            let at = queue_prefix(i, n);
            for (dir, ring) in [("tx", &q.tx_ring), ("rx", &q.rx_ring)] {
                let at = at + dir + "-";
                put_order(p, &at, ring.len());
                put_ring(p, &at, ring);
            }
            match q.channels {
                ChannelKeys::Single(port) => put(p, at + "event-channel", port.0),
                ChannelKeys::Split { tx, rx } => {
                    put(p, at + "event-channel-tx", tx.0);
                    put(p, at + "event-channel-rx", rx.0);
                }
            }
        }
        let at = memory::collected((0..n).map(|i| queue_prefix(i, n)))?;
        for path in PathName::ALL {
            match path {
                PathName::Staging => {
                    Staging::put_request(&self.staging, &self.of_queues(&at, |q| &q.staging)?, p)
                }
                PathName::DataRing => DataRing::put_request(&(), &self.of_queues(&at, |q| &q.data_ring)?, p),
                #[cfg(feature = "research")]
                PathName::Foreign => Foreign::put_request(&self.foreign, &[], p),
                #[cfg(feature = "research")]
                PathName::GuestCopy => {
                    GuestCopy::put_request(&(), &self.of_queues(&at, |q| &q.guest_copy)?, p)
                }
                #[cfg(not(feature = "research"))]
                PathName::Foreign | PathName::GuestCopy => {}
                PathName::Persistent => Persistent::put_request(&self.persistent, &[], p),
                PathName::GrefMapping | PathName::Map | PathName::Copy => {}
            }
        }
        Ok(())
    }

    /// The requests for one path of all queues, each with the prefix of its queue's keys.
    fn of_queues<'a, T>(
        &'a self,
        at: &'a [KeyName],
        of: impl Fn(&'a QueueKeys) -> &'a T,
    ) -> Result<Box<[(&'a str, &'a T)]>, PlatformError> {
        memory::collected(at.iter().map(|at| &**at).zip(self.queues.iter().map(of)))
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
        let at = memory::collected((0..n as usize).map(|i| queue_prefix(i, n as usize)));
        let at = at.map_err(|e| keys.refused(e))?;
        let mut queues = memory::room(n as usize).map_err(|e| keys.refused(e))?;
        for at in &at {
            let of_queue = QueueKeys::of_rings(
                vif_ring(keys, &(*at + "tx-"), (offered.max_tx_ring_order, RING_ORDERS))?,
                vif_ring(keys, &(*at + "rx-"), (offered.max_rx_ring_order, RING_ORDERS))?,
                channels(keys, at)?,
            );
            memory::push(&mut queues, of_queue).map_err(|e| keys.refused(e))?;
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
            ..Self::new(queues)
        };
        for path in PathName::ALL {
            match path {
                PathName::Staging => {
                    let (of_vif, of_queues) = Staging::read_request(keys, &offered.staging, &at)?;
                    front.staging = of_vif;
                    front.queues.iter_mut().zip(of_queues).for_each(|(queue, lists)| queue.staging = lists);
                }
                PathName::DataRing => {
                    let ((), of_queues) = DataRing::read_request(keys, &offered.data_ring, &at)?;
                    front.queues.iter_mut().zip(of_queues).for_each(|(queue, ring)| queue.data_ring = ring);
                }
                #[cfg(feature = "research")]
                PathName::Foreign => (front.foreign, _) = Foreign::read_request(keys, &offered.foreign, &at)?,
                #[cfg(feature = "research")]
                PathName::GuestCopy => {
                    let ((), of_queues) = GuestCopy::read_request(keys, &offered.guest_copy, &at)?;
                    front.queues.iter_mut().zip(of_queues).for_each(|(queue, list)| queue.guest_copy = list);
                }
                #[cfg(not(feature = "research"))]
                PathName::Foreign | PathName::GuestCopy => {}
                PathName::Persistent => {
                    (front.persistent, _) = Persistent::read_request(keys, &offered.persistent, &at)?;
                }
                PathName::GrefMapping | PathName::Map | PathName::Copy => {}
            }
        }
        Ok(front)
    }
}

#[cfg(test)]
mod tests {
    use super::super::features::*;
    use super::*;
    use crate::net::path::research::{foreign, guest_copy};
    use crate::net::path::staging::keys::{
        self as staging, DataKeys, DataRequest, Lists, REVISION_KEY, STAGING_REVISION, active_key,
    };
    use crate::net::path::{DataLen, persistent};
    use alloc::borrow::ToOwned;
    use alloc::format;
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;
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
        fn refused(&self, why: PlatformError) -> String {
            why.to_string()
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
            assert_eq!((&*named, seen.as_deref()), (key, Some(value)));
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
            assert!(matches!(q.staging.rx, DataRequest::Bad { key, value: None, .. } if &*key == gone));
        }
    }

    #[test]
    fn a_back_with_one_list_is_active() {
        for (text, seen) in [("1", true), ("tx", true), ("rx", true), ("0", false), ("yes", false)] {
            for key in [active_key(0, 1), active_key(1, 2)] {
                let mut own = dir(Vec::from([(key.to_string(), text.into())]));
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
