//! The rates of one direction of one vif, from two readings of its backend's status.
//!
//! If a counter fell, or another process is behind the same socket, counting has restarted. Then
//! there is no rate until the next reading.

use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{DirStatus, StoreStatus, VifStatus};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The figures that a line of `--json`, and of the table, has.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Flow {
    pub class: &'static str,
    pub domain: u16,
    pub daemon: String,
    /// 0: the kernel's module.
    pub pid: u32,
    /// True if the kernel's module has the vif: what it does not count is 0.
    #[serde(skip_serializing_if = "is_false")]
    pub is_module: bool,
    pub front: u16,
    /// The number that the guest's device has.
    pub handle: u32,
    pub state: String,
    pub queues: usize,
    /// `tx`: frames from the guest; `rx`: frames to the guest.
    pub dir: &'static str,
    /// The paths that move the bytes. If queues differ, there are several, with `/` between them.
    pub path: String,
    /// All paths that are asked to move a frame, in order. If queues differ, there is one list for
    /// each of them.
    pub chains: Vec<Vec<String>>,
    /// Number of bytes of a frame that fit a staging buffer; several numbers if queues differ.
    pub data_lens: Vec<u32>,
    /// Number of staging buffers of each queue.
    pub buffers: Vec<u32>,
    /// Counts of the pages that stay mapped after they were seen, for all queues together; null if
    /// there are none.
    pub store: Option<StoreStatus>,
    /// Counts of the pages that the guest asked to map, for all queues and both directions
    /// together; null if there are none.
    pub gref_table: Option<StoreStatus>,
    /// Number of the guest's pages that the vif has mapped.
    pub mapped_pages: u64,
    /// Number of the guest's pages that the vif has mapped or may map at any moment, apart from
    /// pages that are kept.
    pub pages_needed: u64,
    /// Number of pages that the vif may keep mapped.
    pub pages_allowed: u64,
    /// Number of pages that are kept mapped.
    pub kept_pages: u64,
    /// Number of times a page was not kept, because there was no room.
    pub overflows: u64,
    /// Counts of all queues together, since the vif connected.
    #[serde(flatten)]
    pub total: Counts,
    /// True if the guest receives frames.
    pub link: bool,
    /// Number of times the guest received no frames for so long that its link went down.
    pub stalls: u64,
    /// Number of times the vif's frames had to wait because of its rate limit.
    pub credit_waits: u64,
    /// Number of times the vif was closed because of something that its guest did.
    pub faults: u64,
    pub last_failure: Option<String>,
    #[serde(flatten)]
    pub rate: Rate,
}

fn is_false(is_so: &bool) -> bool {
    !is_so
}

/// Declares the counters in one list, each with its place in a queue's status.
macro_rules! counts {
    (|$queue:ident| $($(#[$doc:meta])* $name:ident: $of:expr,)*) => {
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
            /// Frames dropped, by reason.
            pub drops: BTreeMap<String, u64>,
        }

        impl Counts {
            fn add(&mut self, $queue: &DirStatus) {
                $(self.$name += $of;)*
                self.drop(&$queue.drops);
            }

            fn since(&self, before: &Self) -> Option<Self> {
                let mut drops = BTreeMap::new();
                for (reason, now) in &self.drops {
                    let grown = now.checked_sub(before.drops.get(reason).copied().unwrap_or(0))?;
                    drops.insert(reason.clone(), grown);
                }
                Some(Self { $($name: self.$name.checked_sub(before.$name)?,)* drops })
            }
        }
    };
}

counts! { |queue|
    /// Number of frames that were passed on.
    frames: queue.frames,
    bytes: queue.bytes,
    /// Number of frames that were moved by staging buffers alone.
    staged: queue.staged,
    /// Number of frames whose pages were mapped before the frames arrived.
    persistent: queue.persistent,
    /// Number of frames that were in pages that the guest asked to map.
    gref_mapped: queue.gref_mapped,
    /// Number of frames that were moved by the data ring.
    data_ring: queue.data_ring,
    /// Frames that found no room in the data ring.
    data_ring_full: queue.data_ring_full,
    /// Frames in pages that the guest named by frame number.
    foreign: queue.foreign,
    /// Number of frames that were in pages that the backend granted.
    guest_copy: queue.guest_copy,
    grant_ops: queue.grant_ops(),
    /// Number of events that were sent to the guest.
    notifications: queue.notifications,
    /// Frames that may have reached the port twice, because backends ended while they were in
    /// flight.
    repeated: queue.repeated,
}

/// The change between two readings; null if there is no earlier reading.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Rate {
    pub seconds: Option<f64>,
    pub frames_per_s: Option<f64>,
    /// Bits per second of the frames, without the preamble and the FCS.
    pub bits_per_s: Option<f64>,
    pub grant_ops_per_frame: Option<f64>,
    pub notifications_per_frame: Option<f64>,
    /// Number of frames dropped in this time by reason, without reasons that did not occur.
    pub dropped: BTreeMap<String, u64>,
}

impl Counts {
    fn drop(&mut self, drops: &BTreeMap<String, u64>) {
        for (reason, frames) in drops {
            *self.drops.entry(reason.clone()).or_default() += frames;
        }
    }
}

/// Identifies a direction of a vif in any backend: the domains of back and front, the vif's number,
/// and `tx` or `rx`.
type Key = (u16, u16, u32, &'static str);

impl Flow {
    fn new(back: &BackStatus, vif: &VifStatus, dir: &'static str) -> Self {
        let queues = vif.queues.iter().map(|q| if dir == "tx" { &q.tx } else { &q.rx });
        let mut total = Counts::default();
        let (mut paths, mut chains) = (BTreeSet::new(), BTreeSet::new());
        let (mut data_lens, mut buffers) = (BTreeSet::new(), BTreeSet::new());
        for queue in queues.clone() {
            total.add(queue);
            paths.insert(queue.path.as_str());
            chains.insert(queue.chain.clone());
            data_lens.extend(queue.data_len);
            buffers.extend(queue.buffers);
        }
        if let Some(drops) = vif.port_drops.get(dir) {
            total.drop(drops);
        }
        Self {
            class: "vif",
            domain: back.domain,
            daemon: back.daemon.clone(),
            pid: back.pid,
            is_module: back.module.is_some(),
            front: vif.front,
            handle: vif.handle,
            state: vif.state.clone(),
            queues: vif.queues.len(),
            dir,
            path: paths.into_iter().collect::<Vec<_>>().join("/"),
            chains: chains.into_iter().collect(),
            data_lens: data_lens.into_iter().collect(),
            buffers: buffers.into_iter().collect(),
            store: all_stores(queues.map(|q| q.store)),
            gref_table: all_stores(vif.queues.iter().map(|q| q.gref_table)),
            mapped_pages: vif.mapped_pages,
            pages_needed: vif.pages_needed,
            pages_allowed: vif.pages_allowed,
            kept_pages: vif.kept_pages,
            overflows: vif.overflows,
            total,
            link: vif.link,
            stalls: vif.stalls,
            credit_waits: vif.credit_waits,
            faults: vif.faults,
            last_failure: vif.last_failure.clone(),
            rate: Rate::default(),
        }
    }

    fn key(&self) -> Key {
        (self.domain, self.front, self.handle, self.dir)
    }

    fn compare(&mut self, before: &Self, seconds: f64) {
        if before.pid != self.pid || seconds <= 0.0 {
            return;
        }
        let Some(grown) = self.total.since(&before.total) else { return };
        let per_frame = |n: u64| (grown.frames > 0).then(|| n as f64 / grown.frames as f64);
        self.rate = Rate {
            seconds: Some(seconds),
            frames_per_s: Some(grown.frames as f64 / seconds),
            bits_per_s: Some(grown.bytes as f64 * 8.0 / seconds),
            grant_ops_per_frame: per_frame(grown.grant_ops),
            notifications_per_frame: per_frame(grown.notifications),
            dropped: grown.drops.into_iter().filter(|(_, n)| *n > 0).collect(),
        };
    }
}

/// Returns the sum of several queues' stores.
fn all_stores(stores: impl Iterator<Item = Option<StoreStatus>>) -> Option<StoreStatus> {
    stores.flatten().reduce(|a, b| StoreStatus {
        pages: a.pages + b.pages,
        most: a.most + b.most,
        limit: a.limit + b.limit,
        overflows: a.overflows + b.overflows,
    })
}

/// Returns all flows of a reading, with rates since the reading before.
pub fn flows(before: &[BackStatus], now: &[BackStatus]) -> Vec<Flow> {
    let of = |backs: &[BackStatus]| -> Vec<(u64, Flow)> {
        let of_vif = |back: &BackStatus, vif| ["tx", "rx"].map(|dir| (back.at_ns, Flow::new(back, vif, dir)));
        backs.iter().flat_map(|back| back.vifs.iter().flat_map(move |vif| of_vif(back, vif))).collect()
    };
    let before: BTreeMap<Key, (u64, Flow)> =
        of(before).into_iter().map(|(at, flow)| (flow.key(), (at, flow))).collect();
    let mut flows = Vec::new();
    for (at_ns, mut flow) in of(now) {
        if let Some((before_ns, old)) = before.get(&flow.key()) {
            flow.compare(old, at_ns.saturating_sub(*before_ns) as f64 / 1e9);
        }
        flows.push(flow);
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn rates_are_between_two_readings_of_one_process() {
        let before = sample::status();
        let mut now = before.clone();
        now.at_ns += 2_000_000_000;
        let tx = &mut now.vifs[0].queues[0].tx;
        (tx.frames, tx.bytes, tx.grant_copies) = (tx.frames + 1000, tx.bytes + 64_000, tx.grant_copies + 250);
        *tx.drops.get_mut("refused").unwrap() += 3;
        now.vifs[0].port_drops.get_mut("rx").unwrap().insert("queue_full".into(), 45);
        let one = std::slice::from_ref;
        let flows = flows(one(&before), one(&now));
        let (tx, rx) = (&flows[0], &flows[1]);
        assert_eq!((tx.dir, tx.path.as_str(), tx.total.frames), ("tx", "copy/staging", 31_000));
        assert_eq!((tx.rate.frames_per_s, tx.rate.bits_per_s), (Some(500.0), Some(256_000.0)));
        assert_eq!((tx.rate.grant_ops_per_frame, tx.rate.notifications_per_frame), (Some(0.25), Some(0.0)));
        assert_eq!(tx.rate.dropped, BTreeMap::from([("refused".to_string(), 3)]));
        assert_eq!((rx.rate.frames_per_s, rx.rate.grant_ops_per_frame), (Some(0.0), None), "no frame");
        assert_eq!(rx.rate.dropped, BTreeMap::from([("queue_full".to_string(), 3)]));

        let none = Rate::default();
        let rate =
            |before: &BackStatus, now: &BackStatus| super::flows(one(before), one(now))[0].rate.clone();
        assert_eq!(super::flows(&[], one(&now))[0].rate, none, "nothing to compare with");
        assert_eq!(rate(&now, &before), none, "a counter fell");
        now.pid += 1;
        assert_eq!(rate(&before, &now), none, "another process");
    }
}
