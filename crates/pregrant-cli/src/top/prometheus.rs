//! The status of backends in Prometheus' text format, version 0.0.4.
//!
//! Each metric has its HELP and TYPE once, and its samples together. Names follow Prometheus' conventions: the unit in
//! full and in the plural, `_total` behind counters, `_info` for a gauge whose labels are what it tells. Counters begin
//! anew when a vif connects or another process takes over, which Prometheus' `rate` knows. Labels: `domain` (the back's),
//! `vif` (guest and handle, `5.0`), `queue`, `dir` (`tx`, `rx`), `path`, `op`, `reason`. Devices that are no vifs have their class and
//! `device` in place of `vif`, and what they count by its name (`count`).

use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{DirStatus, VifStatus};
use std::fmt::Write;

/// What HTTP calls this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Samples of one metric.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: String,
}

impl Metric {
    fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: "counter", help, samples: String::new() }
    }

    fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: "gauge", help, samples: String::new() }
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.samples, "{}{{{}}} {value}", self.name, labels.join(",")); // into a String
    }
}

/// A label's value: backslash, quote and line feed are what the format escapes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The text.
pub fn text(backs: &[BackStatus]) -> String {
    let mut metrics = of_backs(backs);
    metrics.extend(of_vifs(backs));
    metrics.extend(of_queues(backs));
    metrics.extend(of_devices(backs));
    let mut out = String::new();
    for m in metrics.iter().filter(|m| !m.samples.is_empty()) {
        let _ = write!(out, "# HELP {0} {1}\n# TYPE {0} {2}\n{3}", m.name, m.help, m.kind, m.samples);
    }
    out
}

fn of_backs(backs: &[BackStatus]) -> Vec<Metric> {
    let mut build = Metric::gauge(
        "pregrant_build_info",
        "1; the labels name the version and the commit of the backend's program.",
    );
    let mut uptime = Metric::gauge("pregrant_back_uptime_seconds", "Age of the backend's process.");
    let mut ops = Metric::counter(
        "pregrant_back_grant_operations_total",
        "Grant operations of the whole process, set-up of vifs included.",
    );
    let mut syscalls = Metric::counter(
        "pregrant_back_system_calls_total",
        "System calls of the whole process for copying, mapping, notifying and waiting.",
    );
    let mut events =
        Metric::counter("pregrant_back_notifications_total", "Events sent by the whole process.");
    let mut missed = Metric::counter(
        "pregrant_back_missed_wakeups_total",
        "Sleeps that ended by their bound with work that no event had told of.",
    );
    let mut carried =
        Metric::gauge("pregrant_back_worker_queues", "Queues that a worker thread of the backend carries.");
    for back in backs {
        let domain = back.domain.to_string();
        let labels = [("domain", domain.as_str())];
        for (worker, queues) in back.workers.iter().enumerate() {
            carried.sample(&[labels[0], ("worker", &worker.to_string())], queues);
        }
        build.sample(&[labels[0], ("version", &back.version), ("rev", &back.rev)], 1);
        uptime.sample(&labels, format_args!("{:.3}", back.uptime_s));
        let process = &back.process;
        let each =
            [("copy", process.grant_copies), ("map", process.grant_maps), ("unmap", process.grant_unmaps)];
        for (op, n) in each {
            ops.sample(&[labels[0], ("op", op)], n);
        }
        syscalls.sample(&labels, process.syscalls);
        events.sample(&labels, process.notifications);
        missed.sample(&labels, process.missed_wakeups);
    }
    vec![build, uptime, ops, syscalls, events, missed, carried]
}

/// Devices of other classes: disks.
fn of_devices(backs: &[BackStatus]) -> Vec<Metric> {
    let mut state = Metric::gauge("pregrant_device_state", "1 for the xenbus state in which the back is.");
    let mut faults = Metric::counter(
        "pregrant_device_faults_total",
        "How often the device was closed for something that its guest did, or for want of what stands behind it.",
    );
    let mut counts = Metric::counter(
        "pregrant_device_counts_total",
        "What the device's class counts, since it connected: requests, bytes, errors. kept_pages and queues are as of now.",
    );
    for (back, device) in backs.iter().flat_map(|back| back.devices.iter().map(move |d| (back, d))) {
        let (domain, name) = (back.domain.to_string(), format!("{}.{}", device.front, device.handle));
        let labels = [("domain", &*domain), ("class", &*device.class), ("device", &*name)];
        let more = |label| labels.into_iter().chain([label]).collect::<Vec<_>>();
        state.sample(&more(("state", &device.state)), 1);
        faults.sample(&labels, device.faults);
        device.counters.iter().for_each(|(count, n)| counts.sample(&more(("count", count)), n));
    }
    vec![state, faults, counts]
}

fn of_vifs(backs: &[BackStatus]) -> Vec<Metric> {
    let mut state = Metric::gauge("pregrant_vif_state", "1 for the xenbus state in which the back is.");
    let mut faults = Metric::counter(
        "pregrant_vif_faults_total",
        "How often the vif was closed for something that its guest did.",
    );
    let mut throttled = Metric::counter(
        "pregrant_vif_throttles_total",
        "How often the vif's front was not listened to for a while, since it asked for too many steps, or its control ring was paused.",
    );
    let mut left_out = Metric::counter(
        "pregrant_vif_unwritten_log_lines_total",
        "Lines that the log does not have of the vif, since it caused too many.",
    );
    let mut drops = Metric::counter(
        "pregrant_vif_port_dropped_frames_total",
        "Frames that the frame port dropped, all queues together.",
    );
    let mut link = Metric::gauge("pregrant_vif_link", "1 while the guest takes frames.");
    let mut stalls = Metric::counter(
        "pregrant_vif_stalls_total",
        "How often the guest took no frames for so long that its link went down.",
    );
    let mut waits = Metric::counter(
        "pregrant_vif_credit_waits_total",
        "How often frames of the guest had to wait for the vif's rate, since it connected.",
    );
    for_vifs(backs, |domain, vif, name| {
        let labels = [("domain", domain), ("vif", name)];
        link.sample(&labels, u64::from(vif.link));
        stalls.sample(&labels, vif.stalls);
        waits.sample(&labels, vif.credit_waits);
        state.sample(&[labels[0], labels[1], ("state", &vif.state)], 1);
        faults.sample(&labels, vif.faults);
        throttled.sample(&labels, vif.throttled);
        left_out.sample(&labels, vif.lines_left_out);
        for (dir, reasons) in &vif.port_drops {
            for (reason, n) in reasons {
                drops.sample(&[labels[0], labels[1], ("dir", dir), ("reason", reason)], n);
            }
        }
    });
    vec![state, faults, throttled, left_out, link, stalls, waits, drops]
}

fn of_queues(backs: &[BackStatus]) -> Vec<Metric> {
    type Figure = fn(&DirStatus) -> u64;
    let mut plain: Vec<(Metric, Figure)> = vec![
        (Metric::counter("pregrant_queue_frames_total", "Frames handed on."), |d| d.frames),
        (Metric::counter("pregrant_queue_bytes_total", "Bytes of the frames handed on."), |d| d.bytes),
        (
            Metric::counter("pregrant_queue_staged_frames_total", "Frames through staging buffers alone."),
            |d| d.staged,
        ),
        (
            Metric::counter(
                "pregrant_queue_persistent_frames_total",
                "Frames whose pages were mapped before they came.",
            ),
            |d| d.persistent,
        ),
        (
            Metric::counter(
                "pregrant_queue_gref_mapped_frames_total",
                "Frames in pages that their guest had asked to keep mapped.",
            ),
            |d| d.gref_mapped,
        ),
        (Metric::counter("pregrant_queue_data_ring_frames_total", "Frames through the data ring."), |d| {
            d.data_ring
        }),
        (
            Metric::counter(
                "pregrant_queue_data_ring_full_frames_total",
                "Frames to the guest that found the data ring full, and went another way.",
            ),
            |d| d.data_ring_full,
        ),
        (
            Metric::gauge(
                "pregrant_queue_data_ring_most_bytes",
                "The most bytes of the data ring that frames to the guest had in use at a time.",
            ),
            |d| d.data_ring_most,
        ),
        (
            Metric::counter(
                "pregrant_queue_foreign_frames_total",
                "Frames in pages that their guest named by their frames, all of its memory being mapped.",
            ),
            |d| d.foreign,
        ),
        (
            Metric::counter(
                "pregrant_queue_guest_copy_frames_total",
                "Frames to the guest in pages that the backend lent, for the guest to copy.",
            ),
            |d| d.guest_copy,
        ),
        (Metric::counter("pregrant_queue_batches_total", "Batches published on the ring."), |d| d.batches),
        (
            Metric::counter(
                "pregrant_queue_repeated_frames_total",
                "Frames that may have come to the port twice, because a backend ended while it had them.",
            ),
            |d| d.repeated,
        ),
        (
            Metric::counter(
                "pregrant_queue_gso_checksum_fixups_total",
                "Large segments whose checksum was not blank, and was made so.",
            ),
            |d| d.gso_checksum_fixups,
        ),
        (Metric::counter("pregrant_queue_notifications_total", "Events sent to the guest."), |d| {
            d.notifications
        }),
    ];
    let mut ops =
        Metric::counter("pregrant_queue_grant_operations_total", "Grant operations for the queue's frames.");
    let mut drops = Metric::counter(
        "pregrant_queue_dropped_frames_total",
        "Frames answered with an error, refused by the port, unfit for the guest, or lost with a backend that ended.",
    );
    for_vifs(backs, |domain, vif, name| {
        for (queue, status) in vif.queues.iter().enumerate() {
            let queue = queue.to_string();
            for (dir, status) in [("tx", &status.tx), ("rx", &status.rx)] {
                let labels = [
                    ("domain", domain),
                    ("vif", name),
                    ("queue", &queue),
                    ("dir", dir),
                    ("path", &status.path),
                ];
                let with = |last| [&labels[..], &[last]].concat();
                for (metric, figure) in &mut plain {
                    metric.sample(&labels, figure(status));
                }
                ops.sample(&with(("op", "copy")), status.grant_copies);
                ops.sample(&with(("op", "map")), status.grant_maps);
                ops.sample(&with(("op", "unmap")), status.grant_unmaps);
                for (reason, n) in &status.drops {
                    drops.sample(&with(("reason", reason)), n);
                }
            }
        }
    });
    plain.into_iter().map(|(metric, _)| metric).chain([ops, drops]).collect()
}

fn for_vifs(backs: &[BackStatus], mut each: impl FnMut(&str, &VifStatus, &str)) {
    for back in backs {
        for vif in &back.vifs {
            each(&back.domain.to_string(), vif, &format!("{}.{}", vif.front, vif.handle));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_whole_text() {
        let mut status = sample::status();
        status.vifs[0].queues.truncate(1);
        assert_eq!(text(&[status]), include_str!("prometheus.golden"));
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn labels_are_escaped() {
        let mut status = sample::status();
        status.vifs[1].state = "a\"b\\c\nd".into();
        assert!(text(&[status]).contains(r#"state="a\"b\\c\nd"} 1"#));
    }

    /// The format's own rules: every sample is below the TYPE of its metric, every metric stands once.
    #[test]
    fn samples_stand_with_their_type() {
        let mut other = sample::status();
        other.domain = 3;
        let text = text(&[sample::status(), other]);
        let (mut seen, mut current, mut kind) = (std::collections::BTreeSet::new(), "", "");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                (current, kind) = rest.split_once(' ').unwrap();
                assert!(seen.insert(current), "{current} twice");
            } else if !line.starts_with('#') {
                let (name, rest) = line.split_once('{').unwrap();
                assert_eq!(name, current, "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                assert!(rest.rsplit_once("} ").unwrap().1.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert_eq!(seen.len(), text.matches("# HELP ").count());
        assert!(seen.len() > 20, "{seen:?}");
    }

    /// Prometheus' conventions for names: what stands in the text, whatever is added to it.
    #[test]
    fn names_follow_the_conventions() {
        let text = text(&[sample::status()]);
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let mut units = std::collections::BTreeSet::new();
        for (name, kind) in types {
            let words: Vec<_> = name.split('_').collect();
            assert_eq!(words[0], "pregrant", "{name}");
            let plain = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase());
            assert!(words.iter().all(plain), "{name}");
            // Base units, no others, and not shortened.
            for odd in ["octets", "bits", "kb", "mb", "ms", "us", "ns", "sec", "msec", "count", "pct"] {
                assert!(!words.contains(&odd), "{name}");
            }
            let what = match kind {
                "counter" => *words[..words.len() - 1].last().unwrap(),
                _ => *words.last().unwrap(),
            };
            assert_eq!(words.last() == Some(&"total"), kind == "counter", "{name}");
            assert_eq!(words.last() == Some(&"info"), what == "info", "{name}");
            if kind == "counter" {
                assert!(what.ends_with('s'), "{name}: what is counted stands in the plural");
            }
            units.insert(what);
        }
        assert!(units.is_superset(&["bytes", "frames", "seconds", "info"].into()), "{units:?}");
        let info = "pregrant_build_info{domain=\"0\",version=\"1.2.3\",rev=\"0123456789ab\"} 1\n";
        assert!(text.contains(info), "{text}");
    }
}
