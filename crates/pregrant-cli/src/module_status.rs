//! The status of the kernel's module `pregrant_back`, in the form in which a backend's process has
//! its own: from sysfs, without a socket.
//!
//! ```text
//!   ModuleBack (sysfs) --> BackStatus with `module` --> top's table, JSON lines, Prometheus; doctor
//! ```
//! What the module does not count (faults, mapped pages of a vif, waits for `rate`) is 0 in the
//! status, and is not shown: `BackStatus::module` says so.

use crate::status_reader::Daemon;
use pregrant::net::path::PathName;
use pregrant::platform::Clock;
use pregrant_host::MonotonicClock;
use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{
    AnyDeviceStatus, DirStatus, FORMAT, ModuleStatus, ProcessStatus, QueueStatus, VifStatus,
};
use pregrant_host::linux::module_back::{Counters, NAME};
use pregrant_host::linux::{ModuleBack, ModuleVif};

/// Reads the module's status. None: it is not loaded, or has no vif.
pub fn read() -> Option<Daemon> {
    of(&ModuleBack::here(), MonotonicClock.now_ns())
}

fn of(module: &ModuleBack, at_ns: u64) -> Option<Daemon> {
    let vifs = module.vifs();
    // The module's own counters stand in each vif's file.
    let first = vifs.first()?;
    let domain = u16::try_from(count(&first.counters, "domain")).unwrap_or_default();
    let status = BackStatus {
        format: FORMAT,
        domain,
        daemon: NAME.into(),
        pid: 0,
        version: module.version().unwrap_or_default(),
        rev: String::new(),
        uptime_s: 0.0,
        at_ns,
        platform: "Linux".into(),
        process: ProcessStatus::default(),
        workers: Vec::new(),
        module: Some(ModuleStatus {
            parameters: module.parameters(),
            mapped_pages: count(&first.counters, "mapped_pages"),
            maps_lost: count(&first.counters, "maps_lost"),
        }),
        vifs: vifs.iter().map(status_of).collect(),
        devices: Vec::new(),
    };
    Some(Daemon { name: NAME, domain, status: Ok(status) })
}

fn count(counters: &Counters, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or_default()
}

/// Returns the status of one vif.
pub fn status_of(vif: &ModuleVif) -> VifStatus {
    let queue = |counters: &Counters| QueueStatus {
        tx: direction(counters, "tx", "refused"),
        rx: direction(counters, "rx", "unfit"),
        gref_table: None,
    };
    VifStatus {
        any: AnyDeviceStatus {
            front: vif.front,
            handle: vif.handle,
            state: vif.state.clone(),
            ..AnyDeviceStatus::default()
        },
        link: count(&vif.counters, "link") == 1,
        queues: vif.queues.iter().map(queue).collect(),
        ..VifStatus::default()
    }
}

/// Returns one direction of a queue. A frame that is not handed on is `dropped` for this reason.
fn direction(counters: &Counters, dir: &str, dropped: &str) -> DirStatus {
    let of = |name: &str| count(counters, &format!("{dir}_{name}"));
    let mut drops = vec![("error", of("errors")), (dropped, of("dropped"))];
    if dir == "rx" {
        drops.extend([("long", of("too_long")), ("expired", of("expired"))]);
    }
    let [staged, data_ring, gref_mapped, persistent] =
        ["by_staging", "by_data_ring", "by_gref_mapping", "by_persistent"].map(of);
    let by = [
        (PathName::Staging, staged),
        (PathName::DataRing, data_ring),
        (PathName::GrefMapping, gref_mapped),
        (PathName::Persistent, persistent),
    ];
    // The module has no key for a path that has had no frame. What no other path takes is copied.
    let chain: Vec<_> = by.iter().filter(|(_, frames)| *frames > 0).map(|(path, _)| *path).collect();
    let first = chain.first().copied().unwrap_or(PathName::Copy);
    let chain = chain.into_iter().chain([PathName::Copy]).map(|path| path.name().into());
    DirStatus {
        path: first.name().into(),
        chain: chain.collect(),
        staged,
        data_ring,
        gref_mapped,
        persistent,
        frames: of("frames"),
        bytes: of("bytes"),
        batches: of("batches"),
        notifications: of("events_sent"),
        grant_copies: of("grant_copies"),
        grant_maps: of("grant_maps"),
        drops: drops.into_iter().map(|(reason, n)| (reason.into(), n)).collect(),
        ..DirStatus::default()
    }
}

#[cfg(test)]
pub(crate) mod sample {
    use super::*;

    /// What the module's files had in scenario 88 of the rig, for a guest with a queue.
    const VIF: &str = include_str!("module_status/vif");
    const QUEUE: &str = include_str!("module_status/queue0");

    pub fn vif() -> ModuleVif {
        with_files(|module| module.vifs().remove(0))
    }

    pub fn daemon() -> Daemon {
        with_files(|module| of(module, 1_000_000_000_000).expect("a vif"))
    }

    fn with_files<T>(read: impl FnOnce(&ModuleBack) -> T) -> T {
        let dir = std::env::temp_dir().join(format!(
            "pregrant-module-status-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let vif = dir.join("bus/xen-backend/drivers/pregrant_back/vif-1-0");
        for (file, text) in [
            (dir.join("module/pregrant_back/version"), "0.1.0\n"),
            (dir.join("module/pregrant_back/parameters/queues"), "0\n"),
            (vif.join("state"), "Connected\n"),
            (vif.join("net/vif1.0/carrier"), "1\n"),
            (vif.join("pregrant/vif"), VIF),
            (vif.join("pregrant/queue0"), QUEUE),
        ] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let has_read = read(&ModuleBack::at(&dir));
        std::fs::remove_dir_all(&dir).unwrap();
        has_read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_vif_has_the_figures_that_top_shows() {
        let daemon = sample::daemon();
        let status = daemon.answer().unwrap();
        assert_eq!((daemon.domain, status.version.as_str()), (0, "0.1.0"));
        let vif = &status.vifs[0];
        assert_eq!((vif.front, vif.state.as_str(), vif.link, vif.queues.len()), (1, "Connected", true, 1));
        let (tx, rx) = (&vif.queues[0].tx, &vif.queues[0].rx);
        for dir in [tx, rx] {
            assert!(
                dir.frames > 0 && dir.bytes >= 42 * dir.frames && dir.grant_copies >= dir.frames,
                "{dir:?}"
            );
            assert!(dir.notifications > 0 && dir.batches > 0, "{dir:?}");
        }
        let reasons = |dir: &DirStatus| dir.drops.keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!([reasons(tx), reasons(rx)], ["error refused", "error expired long unfit"]);
        assert!(of(&ModuleBack::at("/nonexistent"), 0).is_none());
    }
}
