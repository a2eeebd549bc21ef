//! A status for tests: two vifs, one of them with two queues of unlike paths, one that was closed; and another device.

use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{
    DeviceStatus, DirStatus, FORMAT, ProcessStatus, QueueStatus, VifStatus,
};
use std::collections::BTreeMap;

fn dir(path: &str, frames: u64, drops: [(&str, u64); 2]) -> DirStatus {
    DirStatus {
        path: path.into(),
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
    }
}

pub fn status() -> BackStatus {
    let drops = |reason: &str, n| BTreeMap::from([(reason.to_string(), n)]);
    BackStatus {
        format: FORMAT,
        domain: 0,
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
        vifs: vec![
            VifStatus {
                front: 5,
                handle: 0,
                state: "Connected".into(),
                reattached: true,
                connected_s: Some(30.0),
                faults: 0,
                throttled: 0,
                lines_left_out: 0,
                last_failure: None,
                link: true,
                stalls: 3,
                credit_waits: 17,
                refused_lists: Vec::new(),
                queues: vec![queue("staging", 20_000), queue("copy", 10_000)],
                port_drops: [("tx".into(), drops("bad_frame", 0)), ("rx".into(), drops("queue_full", 42))]
                    .into(),
            },
            VifStatus {
                front: 6,
                handle: 1,
                state: "Closed".into(),
                reattached: false,
                connected_s: None,
                faults: 2,
                throttled: 1,
                lines_left_out: 8,
                last_failure: Some("its \"ring\"\nlied \u{1b}[31m\\".into()),
                link: false,
                stalls: 0,
                credit_waits: 0,
                refused_lists: Vec::new(),
                queues: Vec::new(),
                port_drops: BTreeMap::new(),
            },
        ],
        devices: Vec::new(),
    }
}

/// A device that is no vif.
pub fn device() -> DeviceStatus {
    DeviceStatus {
        class: "vtoy".into(),
        front: 5,
        handle: 0,
        state: "Closed".into(),
        reattached: false,
        connected_s: None,
        faults: 1,
        throttled: 3,
        lines_left_out: 0,
        last_failure: Some("it \u{1b}[31mran ahead".into()),
        waits_for: None,
        is_tried: true,
        what: "a toy".into(),
        counters: [("answered".to_string(), 100)].into(),
    }
}
