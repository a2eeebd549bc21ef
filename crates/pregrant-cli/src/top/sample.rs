//! A status for tests: two vifs, one of them with two queues of unlike paths, one that was closed;
//! and another device.

use crate::status_reader::{Daemon, NoStatus};
use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{
    AnyDeviceStatus, DeviceStatus, DirStatus, FORMAT, LatencyBucket, OperationStatus, ProcessStatus,
    QueueStatus, StoreStatus, VifStatus,
};
use std::collections::BTreeMap;

fn dir(path: &str, frames: u64, drops: [(&str, u64); 2]) -> DirStatus {
    DirStatus {
        path: path.into(),
        chain: if path == "copy" { vec!["copy".into()] } else { vec![path.into(), "copy".into()] },
        data_len: (path == "staging").then_some(256),
        buffers: (path == "staging").then_some(1024),
        store: (path == "persistent").then_some(StoreStatus {
            pages: 200,
            most: 256,
            limit: 256,
            overflows: 9,
        }),
        frames,
        bytes: frames * 100,
        staged: if path == "staging" { frames } else { 0 },
        persistent: 0,
        gref_mapped: 0,
        data_ring: 0,
        data_ring_full: 0,
        data_ring_most: 0,
        foreign: 0,
        guest_copy: 0,
        lent: 0,
        batches: frames / 10,
        notifications: frames / 20,
        grant_copies: if path == "staging" { 0 } else { frames },
        grant_maps: 0,
        grant_unmaps: 0,
        repeated: 0,
        gso_checksum_fixups: 0,
        drops: drops.map(|(reason, n)| (reason.into(), n)).into(),
    }
}

fn queue(path: &str, frames: u64) -> QueueStatus {
    QueueStatus {
        tx: dir(path, frames, [("error", 1), ("refused", 0)]),
        rx: dir(path, frames / 2, [("error", 0), ("unfit", 2)]),
        gref_table: None,
    }
}

pub fn status() -> BackStatus {
    let drops = |reason: &str, n| BTreeMap::from([(reason.to_string(), n)]);
    BackStatus {
        format: FORMAT,
        domain: 0,
        daemon: "back".into(),
        pid: 4711,
        version: "1.2.3".into(),
        rev: "0123456789ab".into(),
        uptime_s: 35.5,
        at_ns: 1_000_000_000_000,
        platform: "loopback".into(),
        process: ProcessStatus {
            grant_copies: 10_100,
            grant_maps: 40,
            grant_unmaps: 8,
            syscalls: 999,
            notifications: 1500,
            missed_wakeups: 2,
        },
        workers: vec![2, 0],
        module: None,
        vifs: vec![
            VifStatus {
                any: AnyDeviceStatus {
                    front: 5,
                    handle: 0,
                    state: "Connected".into(),
                    reattached: true,
                    connected_s: Some(30.0),
                    faults: 0,
                    throttled: 0,
                    lines_left_out: 0,
                    last_failure: None,
                    pages_needed: 900,
                    pages_allowed: 512,
                },
                link: true,
                stalls: 3,
                rate: Some("10000 bytes in 2000 microseconds".into()),
                credit_waits: 17,
                mapped_pages: 1000,
                kept_pages: 100,
                overflows: 5,
                refused_lists: Vec::new(),
                queues: vec![queue("staging", 20_000), queue("copy", 10_000)],
                port_drops: [("tx".into(), drops("bad_frame", 0)), ("rx".into(), drops("queue_full", 42))]
                    .into(),
            },
            VifStatus {
                any: AnyDeviceStatus {
                    front: 6,
                    handle: 1,
                    state: "Closed".into(),
                    reattached: false,
                    connected_s: None,
                    faults: 2,
                    throttled: 1,
                    lines_left_out: 8,
                    last_failure: Some("its \"ring\"\nlied \u{1b}[31m\\".into()),
                    pages_needed: 0,
                    pages_allowed: 0,
                },
                ..VifStatus::default()
            },
        ],
        devices: Vec::new(),
    }
}

/// Returns a device that is not a vif.
pub fn device() -> DeviceStatus {
    DeviceStatus {
        class: "vtoy".into(),
        any: AnyDeviceStatus {
            front: 5,
            handle: 0,
            state: "Closed".into(),
            reattached: false,
            connected_s: None,
            faults: 1,
            throttled: 3,
            lines_left_out: 0,
            last_failure: Some("it \u{1b}[31mran ahead".into()),
            pages_needed: 0,
            pages_allowed: 0,
        },
        waits_for: None,
        is_tried: true,
        what: "a toy".into(),
        counters: [("answered".to_string(), 100)].into(),
        gauges: BTreeMap::new(),
        operations: BTreeMap::new(),
    }
}

fn operation(requests: u64, bytes: u64) -> OperationStatus {
    let bounds = (0..11).map(|i| Some((1 << (13 + 2 * i)) - 1)).chain([None]);
    let bucket = |(i, most_ns)| LatencyBucket { most_ns, requests: if i == 2 { requests } else { 0 } };
    let latency = bounds.enumerate().map(bucket).collect();
    OperationStatus { requests, bytes, latency_sum_ns: requests * 100_000, latency }
}

pub fn disk() -> DeviceStatus {
    let named = |all: &[(&str, u64)]| all.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    DeviceStatus {
        class: "vbd".into(),
        any: AnyDeviceStatus {
            handle: 51712,
            state: "Connected".into(),
            connected_s: Some(20.0),
            faults: 0,
            throttled: 0,
            last_failure: None,
            pages_needed: 1025,
            pages_allowed: 1056,
            ..device().any
        },
        what: "persistent, /disk.img, 64 MiB".into(),
        counters: named(&[("failed", 1), ("overflows", 7), ("redone", 0), ("refused", 2)]),
        gauges: named(&[("in_flight", 3), ("kept_pages", 130), ("oldest_ns", 2_500_000_000), ("queues", 1)]),
        operations: [
            ("read".to_string(), operation(4000, 16_384_000)),
            ("write".to_string(), operation(500, 2_048_000)),
        ]
        .into(),
        ..device()
    }
}

/// Returns the backends of a domain: one with vifs and one with disks.
pub fn daemons() -> Vec<Daemon> {
    let of = |name, domain, status| Daemon { name, domain, status };
    let disks = BackStatus {
        daemon: "blkback".into(),
        pid: 4712,
        vifs: Vec::new(),
        devices: vec![disk()],
        ..status()
    };
    vec![
        of("back", 0, Ok(status())),
        of("blkback", 0, Ok(disks)),
        of("back", 3, Err(NoStatus::Silent { pid: Some(99) })),
        of("blkback", 3, Err(NoStatus::Absent)),
    ]
}
