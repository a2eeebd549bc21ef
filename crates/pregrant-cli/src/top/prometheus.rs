//! The status of backends in Prometheus' text format, version 0.0.4.
//!
//! Each metric has its HELP and TYPE once, and its samples together. Names follow Prometheus'
//! conventions: the unit in full and in the plural, `_total` behind counters, `_info` for a gauge
//! whose labels are its content. Counters restart when a vif connects or another process takes
//! over, which Prometheus' `rate` knows. Labels: `domain` (the back's), `daemon` (`back` or
//! `blkback`: one domain has both, and no series is both's), `vif` (guest and handle, `5.0`),
//! `queue`, `dir` (`tx`, `rx`), `path`, `op`, `reason`. Devices that are no vifs have their class
//! and `device` in place of `vif`; a figure that
//! only a device's class knows is a sample of `pregrant_device_counts_total` or
//! `pregrant_device_values`, whose label `count` or `value` has its name.
//!
//! | | `pregrant_up` | `pregrant_running` | other series |
//! |---|---|---|---|
//! | a backend that answers | 1 | 1 | its own |
//! | one that runs and does not answer: stopped, or hung | 0 | 1 | none |
//! | one that was killed, and has no successor yet | 0 | 0 | none |
//! | one that ended in good order | none | none | none |
//!
//! The kernel's module is a daemon `pregrant_back`; of what it does not count there are no samples.

use crate::status_reader::{Daemon, NoStatus};
use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{DirStatus, OLDEST_NS, OperationStatus, StoreStatus, VifStatus};
use std::fmt::Write;

/// The content type that HTTP has for this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

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

    fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: "histogram", help, samples: String::new() }
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.sample_of("", labels, value);
    }

    /// Adds one sample of a histogram; `part` is the suffix of its name.
    fn sample_of(&mut self, part: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.samples, "{}{part}{{{}}} {value}", self.name, labels.join(",")); // into a String
    }

    /// Adds the samples of a histogram of latencies.
    fn times(&mut self, labels: &[(&str, &str)], operation: &OperationStatus) {
        let mut all = 0;
        for bucket in &operation.latency {
            all += bucket.requests;
            let most = bucket.most_ns.map_or("+Inf".into(), |ns| (ns as f64 / 1e9).to_string());
            self.sample_of("_bucket", &[labels, &[("le", most.as_str())]].concat(), all);
        }
        self.sample_of("_sum", labels, operation.latency_sum_ns as f64 / 1e9);
        self.sample_of("_count", labels, all);
    }
}

/// Escapes a label's value: the format escapes backslash, quote and line feed.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

pub fn text(daemons: &[Daemon]) -> String {
    let backs: Vec<&BackStatus> = daemons.iter().filter_map(Daemon::answer).collect();
    let backs = &backs[..];
    let mut metrics = of_daemons(daemons);
    metrics.extend(of_backs(backs));
    metrics.extend(of_vifs(backs));
    metrics.extend(of_queues(backs));
    metrics.extend(of_devices(backs));
    let mut out = String::new();
    for m in metrics.iter().filter(|m| !m.samples.is_empty()) {
        let _ = write!(out, "# HELP {0} {1}\n# TYPE {0} {2}\n{3}", m.name, m.help, m.kind, m.samples);
    }
    out
}

fn of_daemons(daemons: &[Daemon]) -> Vec<Metric> {
    let mut up = Metric::gauge("pregrant_up", "1 while the backend answers.");
    let mut running = Metric::gauge(
        "pregrant_running",
        "1 while the backend's process is there; without pregrant_up it is stopped, or its control thread hangs.",
    );
    for daemon in daemons {
        let domain = daemon.domain.to_string();
        let labels = [("domain", domain.as_str()), ("daemon", daemon.name)];
        up.sample(&labels, u8::from(daemon.answer().is_some()));
        running.sample(&labels, u8::from(!matches!(daemon.status, Err(NoStatus::Absent))));
    }
    vec![up, running]
}

fn of_backs(backs: &[&BackStatus]) -> Vec<Metric> {
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
        "Sleeps that ended by their bound with work pending and no event for it.",
    );
    let mut carried =
        Metric::gauge("pregrant_back_worker_queues", "Queues that a worker thread of the backend carries.");
    let mut mapped =
        Metric::gauge("pregrant_module_mapped_pages", "Guests' pages that the kernel's module has mapped.");
    let mut lost = Metric::counter(
        "pregrant_module_lost_pages_total",
        "Guests' pages that the kernel's module could not unmap, and never uses again.",
    );
    for back in backs {
        let domain = back.domain.to_string();
        let labels = [("domain", domain.as_str()), ("daemon", &*back.daemon)];
        build.sample(&[&labels[..], &[("version", &back.version), ("rev", &back.rev)]].concat(), 1);
        if let Some(module) = &back.module {
            mapped.sample(&labels, module.mapped_pages);
            lost.sample(&labels, module.maps_lost);
            continue;
        }
        for (worker, queues) in back.workers.iter().enumerate() {
            carried.sample(&[&labels[..], &[("worker", &worker.to_string())]].concat(), queues);
        }
        uptime.sample(&labels, format_args!("{:.3}", back.uptime_s));
        let process = &back.process;
        let each =
            [("copy", process.grant_copies), ("map", process.grant_maps), ("unmap", process.grant_unmaps)];
        for (op, n) in each {
            ops.sample(&[labels[0], labels[1], ("op", op)], n);
        }
        syscalls.sample(&labels, process.syscalls);
        events.sample(&labels, process.notifications);
        missed.sample(&labels, process.missed_wakeups);
    }
    vec![build, uptime, ops, syscalls, events, missed, carried, mapped, lost]
}

/// Returns the metrics of devices that are not vifs, such as disks.
fn of_devices(backs: &[&BackStatus]) -> Vec<Metric> {
    let mut state = Metric::gauge("pregrant_device_state", "1 for the xenbus state in which the back is.");
    let mut faults = Metric::counter(
        "pregrant_device_faults_total",
        "How often the device was closed for something that its guest did, or for want of what stands behind it.",
    );
    let mut requests = Metric::counter(
        "pregrant_device_requests_total",
        "Requests that were done, by what they ask for, since the device connected.",
    );
    let mut bytes = Metric::counter("pregrant_device_bytes_total", "Bytes that these requests moved.");
    let mut times = Metric::histogram(
        "pregrant_device_request_duration_seconds",
        "From when a request was taken to its answer, those that failed among them.",
    );
    let mut in_flight = Metric::gauge(
        "pregrant_device_in_flight_requests",
        "Requests that are taken and not answered, as of the queues' last polls.",
    );
    let mut oldest = Metric::gauge(
        "pregrant_device_oldest_request_age_seconds",
        "How long the oldest request has been taken and not answered; 0: there is none.",
    );
    let mut needed = Metric::gauge(
        "pregrant_device_needed_pages",
        "Pages of its guest that it has mapped, or may have at any moment, whatever it keeps.",
    );
    let mut allowed =
        Metric::gauge("pregrant_device_allowed_pages", "Pages of its guest that it may keep mapped.");
    let mut kept = Metric::gauge("pregrant_device_kept_pages", "Pages of its guest that it keeps mapped.");
    let mut overflows = Metric::counter(
        "pregrant_device_page_overflows_total",
        "How often a page found no place among those that it keeps, and was mapped for one request.",
    );
    let mut counts = Metric::counter(
        "pregrant_device_counts_total",
        "What else the device's class counts, since it connected.",
    );
    let mut values =
        Metric::gauge("pregrant_device_values", "What else the device's class has of it, as of now.");
    for (back, device) in backs.iter().flat_map(|back| back.devices.iter().map(move |d| (back, d))) {
        let (domain, name) = (back.domain.to_string(), format!("{}.{}", device.front, device.handle));
        let labels =
            [("domain", &*domain), ("daemon", &*back.daemon), ("class", &*device.class), ("device", &*name)];
        let more = |label| [&labels[..], &[label]].concat();
        state.sample(&more(("state", &device.state)), 1);
        faults.sample(&labels, device.faults);
        needed.sample(&labels, device.pages_needed);
        allowed.sample(&labels, device.pages_allowed);
        for (op, operation) in &device.operations {
            let labels = more(("op", op));
            requests.sample(&labels, operation.requests);
            bytes.sample(&labels, operation.bytes);
            times.times(&labels, operation);
        }
        for (name, n) in &device.gauges {
            match name.as_str() {
                "in_flight" => in_flight.sample(&labels, n),
                OLDEST_NS => oldest.sample(&labels, *n as f64 / 1e9),
                "kept_pages" => kept.sample(&labels, n),
                _ => values.sample(&more(("value", name)), n),
            }
        }
        for (name, n) in &device.counters {
            match name.as_str() {
                "overflows" => overflows.sample(&labels, n),
                _ => counts.sample(&more(("count", name)), n),
            }
        }
    }
    vec![
        state, faults, requests, bytes, times, in_flight, oldest, needed, allowed, kept, overflows, counts,
        values,
    ]
}

fn of_vifs(backs: &[&BackStatus]) -> Vec<Metric> {
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
    let mut pages = [
        Metric::gauge("pregrant_vif_mapped_pages", "Pages of its guest that the vif has mapped."),
        Metric::gauge("pregrant_vif_needed_pages", "Of these, pages that are mapped whatever it keeps."),
        Metric::gauge(
            "pregrant_vif_allowed_pages",
            "Pages that it may keep since it saw them, or that its guest may still have mapped.",
        ),
        Metric::gauge("pregrant_vif_kept_pages", "Pages that it keeps since it saw them."),
    ];
    let mut overflows = Metric::counter(
        "pregrant_vif_page_overflows_total",
        "How often a page found no place among those that are kept, or in the guest's table.",
    );
    for_vifs(backs, |labels, vif, is_module| {
        link.sample(labels, u64::from(vif.link));
        state.sample(&[labels, &[("state", &vif.state)]].concat(), 1);
        if is_module {
            return;
        }
        let kinds = [vif.mapped_pages, vif.pages_needed, vif.pages_allowed, vif.kept_pages];
        pages.iter_mut().zip(kinds).for_each(|(metric, n)| metric.sample(labels, n));
        overflows.sample(labels, vif.overflows);
        stalls.sample(labels, vif.stalls);
        waits.sample(labels, vif.credit_waits);
        faults.sample(labels, vif.faults);
        throttled.sample(labels, vif.throttled);
        left_out.sample(labels, vif.lines_left_out);
        for (dir, reasons) in &vif.port_drops {
            for (reason, n) in reasons {
                drops.sample(&[labels, &[("dir", dir), ("reason", reason)]].concat(), n);
            }
        }
    });
    let each = [state, faults, throttled, left_out, link, stalls, waits, drops, overflows];
    each.into_iter().chain(pages).collect()
}

fn of_queues(backs: &[&BackStatus]) -> Vec<Metric> {
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
        (
            Metric::counter(
                "pregrant_queue_lent_frames_total",
                "Frames of bursts that were copied once, out of another guest's pages.",
            ),
            |d| d.lent,
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
    let mut chain = Metric::gauge(
        "pregrant_queue_chain_info",
        "1; the label chain names all paths that are asked for a frame, one after another.",
    );
    let mut data_len = Metric::gauge(
        "pregrant_queue_data_len_bytes",
        "Bytes of a frame that fit a staging buffer; there is no sample where there are no buffers.",
    );
    let mut buffers = Metric::gauge(
        "pregrant_queue_staging_buffers",
        "Staging buffers of a queue; there is no sample where there are none.",
    );
    let mut stores = Stores::default();
    for_vifs(backs, |vif_labels, vif, _| {
        for (queue, status) in vif.queues.iter().enumerate() {
            let queue = queue.to_string();
            let queue_labels = [vif_labels, &[("queue", queue.as_str())]].concat();
            if let Some(table) = &status.gref_table {
                stores.sample(
                    &[&queue_labels[..], &[("dir", "both"), ("store", "gref-mapping")]].concat(),
                    table,
                );
            }
            for (dir, status) in [("tx", &status.tx), ("rx", &status.rx)] {
                let dir_labels = [&queue_labels[..], &[("dir", dir)]].concat();
                let labels = [&dir_labels[..], &[("path", status.path.as_str())]].concat();
                let with = |last| [&labels[..], &[last]].concat();
                chain.sample(&[&dir_labels[..], &[("chain", &status.chain.join(","))]].concat(), 1);
                if let Some(len) = status.data_len {
                    data_len.sample(&dir_labels, len);
                }
                if let Some(n) = status.buffers {
                    buffers.sample(&dir_labels, n);
                }
                if let Some(store) = &status.store {
                    stores.sample(&[&dir_labels[..], &[("store", "persistent")]].concat(), store);
                }
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
    let counted = plain.into_iter().map(|(metric, _)| metric).chain([ops, drops]);
    counted.chain([chain, data_len, buffers]).chain(stores.0).collect()
}

/// Metrics of pages that stay mapped, by store: number, largest number, limit, and pages that found
/// no room.
struct Stores([Metric; 4]);

impl Default for Stores {
    fn default() -> Self {
        Self([
            Metric::gauge("pregrant_queue_store_pages", "Pages that stay mapped, in this store."),
            Metric::gauge("pregrant_queue_store_most_pages", "The most that there were at a time."),
            Metric::gauge("pregrant_queue_store_limit_pages", "Pages that the store takes."),
            Metric::counter(
                "pregrant_queue_store_overflows_total",
                "How often a page found no place in the store.",
            ),
        ])
    }
}

impl Stores {
    fn sample(&mut self, labels: &[(&str, &str)], store: &StoreStatus) {
        let figures = [store.pages, store.most, store.limit, store.overflows];
        self.0.iter_mut().zip(figures).for_each(|(metric, n)| metric.sample(labels, n));
    }
}

/// Calls `each` with every vif and its labels, and whether it is the kernel's module's.
fn for_vifs(backs: &[&BackStatus], mut each: impl FnMut(&[(&str, &str)], &VifStatus, bool)) {
    for back in backs {
        let domain = back.domain.to_string();
        for vif in &back.vifs {
            let name = format!("{}.{}", vif.front, vif.handle);
            each(
                &[("domain", &domain), ("daemon", &back.daemon), ("vif", &name)],
                vif,
                back.module.is_some(),
            );
        }
    }
}

#[cfg(test)]
mod exposition;

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::module_status;
    use std::collections::BTreeSet;

    /// Returns statuses in which every kind of metric occurs: two queues with different paths,
    /// stores, a table, disks, a second domain, and a backend that hangs.
    fn everything() -> Vec<Daemon> {
        let mut all = sample::daemons();
        let back = all[0].status.as_mut().unwrap();
        let store = StoreStatus { pages: 300, most: 400, limit: 768, overflows: 1 };
        let queue = &mut back.vifs[0].queues[0];
        (queue.gref_table, queue.rx.store) = (Some(store), Some(store));
        let other =
            BackStatus { domain: 5, devices: vec![sample::device(), sample::disk()], ..sample::status() };
        all.push(Daemon { name: "back", domain: 5, status: Ok(other) });
        all.push(module_status::sample::daemon());
        all
    }

    #[test]
    fn the_whole_text() {
        let mut daemons = sample::daemons();
        daemons[0].status.as_mut().unwrap().vifs[0].queues.truncate(1);
        assert_eq!(text(&daemons), include_str!("prometheus.golden"));
        assert_eq!(text(&[]), "");
    }

    /// Returns the names of the metrics in a text, without the suffixes of a histogram's series.
    fn named(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        words.filter(|word| word.starts_with("pregrant_")).collect()
    }

    #[test]
    fn the_page_and_the_alerts_name_the_metrics_that_there_are() {
        let text = text(&everything());
        let families = exposition::check(&text).expect("Prometheus' format");
        let there: BTreeSet<&str> = families.keys().map(String::as_str).collect();
        let page = include_str!("../../../../docs/monitoring.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("|`pregrant_")?.split_once('`'));
        let rows: BTreeSet<String> = rows.map(|(name, _)| format!("pregrant_{name}")).collect();
        assert_eq!(rows.iter().map(String::as_str).collect::<BTreeSet<_>>(), there, "docs/monitoring.md");
        let alerts = named(include_str!("../../../../dist/pregrant-alerts.yml"));
        assert!(alerts.len() > 5 && alerts.is_subset(&there), "{:?}", alerts.difference(&there));
    }

    #[test]
    fn labels_are_escaped() {
        let mut daemons = sample::daemons();
        daemons[0].status.as_mut().unwrap().vifs[1].any.state = "a\"b\\c\nd".into();
        let text = text(&daemons);
        assert!(text.contains(r#"state="a\"b\\c\nd"} 1"#));
        exposition::check(&text).unwrap();
    }

    /// A strict parser of the format accepts the output for two backends of one domain: no series
    /// is there twice.
    #[test]
    fn a_strict_reader_takes_it() {
        let text = text(&everything());
        let families = exposition::check(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert!(families.len() > 40, "{families:?}");
        let kinds: BTreeSet<_> = families.values().map(String::as_str).collect();
        assert_eq!(kinds, ["counter", "gauge", "histogram"].into());
        // A value that may fall is no counter.
        for gauge in ["device_kept_pages", "device_in_flight_requests", "device_values", "vif_kept_pages"] {
            assert_eq!(
                families.get(&format!("pregrant_{gauge}")).map(String::as_str),
                Some("gauge"),
                "{gauge}"
            );
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.contains("{domain=\"") && line.contains(",daemon=\""), "{line}");
        }
    }

    #[test]
    fn who_runs_and_does_not_answer_is_distinguished_from_who_does_not_run() {
        let text = text(&sample::daemons());
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "no {line}");
        for (domain, daemon, up, running) in
            [(0, "back", 1, 1), (0, "blkback", 1, 1), (3, "back", 0, 1), (3, "blkback", 0, 0)]
        {
            has(&format!("pregrant_up{{domain=\"{domain}\",daemon=\"{daemon}\"}} {up}"));
            has(&format!("pregrant_running{{domain=\"{domain}\",daemon=\"{daemon}\"}} {running}"));
        }
    }

    /// The columns that the module has figures for, and no others.
    #[test]
    fn a_vif_of_the_kernels_module_has_what_the_module_counts() {
        let text = text(&[module_status::sample::daemon()]);
        exposition::check(&text).unwrap();
        let labels = "domain=\"0\",daemon=\"pregrant_back\"";
        let has = |line: String| assert!(text.contains(&line), "no {line}\n{text}");
        has(format!("pregrant_build_info{{{labels},version=\"0.1.0\",rev=\"\"}} 1\n"));
        has(format!("pregrant_module_lost_pages_total{{{labels}}} 0\n"));
        has(format!("pregrant_vif_state{{{labels},vif=\"1.0\",state=\"Connected\"}} 1\n"));
        for dir in ["tx", "rx"] {
            let queue = format!("{labels},vif=\"1.0\",queue=\"0\",dir=\"{dir}\",path=\"copy\"");
            has(format!("pregrant_queue_frames_total{{{queue}}} "));
            has(format!("pregrant_queue_grant_operations_total{{{queue},op=\"copy\"}} "));
            has(format!("pregrant_queue_dropped_frames_total{{{queue},reason=\"error\"}} 0\n"));
        }
        for process in ["uptime", "vif_faults", "vif_mapped_pages", "vif_credit_waits", "system_calls"] {
            assert!(!text.contains(process), "{process}\n{text}");
        }
    }

    #[test]
    fn a_disk_has_requests_bytes_times_and_depth() {
        let text = text(&sample::daemons());
        let labels = "domain=\"0\",daemon=\"blkback\",class=\"vbd\",device=\"5.51712\"";
        let has = |name: &str, more: &str, value: &str| {
            let line = format!("pregrant_device_{name}{{{labels}{more}}} {value}");
            assert!(text.lines().any(|l| l == line), "no {line}\n{text}");
        };
        has("requests_total", ",op=\"read\"", "4000");
        has("bytes_total", ",op=\"write\"", "2048000");
        has("request_duration_seconds_bucket", ",op=\"read\",le=\"0.000032767\"", "0");
        has("request_duration_seconds_bucket", ",op=\"read\",le=\"0.000131071\"", "4000");
        has("request_duration_seconds_bucket", ",op=\"read\",le=\"+Inf\"", "4000");
        has("request_duration_seconds_sum", ",op=\"read\"", "0.4");
        has("request_duration_seconds_count", ",op=\"read\"", "4000");
        has("in_flight_requests", "", "3");
        has("oldest_request_age_seconds", "", "2.5");
        has("kept_pages", "", "130");
        has("counts_total", ",count=\"refused\"", "2");
    }

    /// The text follows Prometheus' naming conventions, whatever metrics are added to it.
    #[test]
    fn names_follow_the_conventions() {
        let text = text(&everything());
        let mut units = BTreeSet::new();
        for (name, kind) in &exposition::check(&text).unwrap() {
            let words: Vec<_> = name.split('_').collect();
            assert_eq!(words[0], "pregrant", "{name}");
            let plain = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase());
            assert!(words.iter().all(plain), "{name}");
            // Base units, no others, and not shortened.
            for odd in ["octets", "bits", "kb", "mb", "ms", "us", "ns", "sec", "msec", "count", "pct"] {
                assert!(!words.contains(&odd), "{name}");
            }
            let what = match kind.as_str() {
                "counter" => *words[..words.len() - 1].last().unwrap(),
                _ => *words.last().unwrap(),
            };
            assert_eq!(words.last() == Some(&"total"), kind == "counter", "{name}");
            assert_eq!(words.last() == Some(&"info"), what == "info", "{name}");
            if kind == "counter" {
                assert!(what.ends_with('s'), "{name}: what is counted stands in the plural");
            }
            units.insert(what.to_string());
        }
        assert!(
            ["bytes", "frames", "seconds", "info", "pages"].iter().all(|unit| units.contains(*unit)),
            "{units:?}"
        );
        let info =
            "pregrant_build_info{domain=\"0\",daemon=\"back\",version=\"1.2.3\",rev=\"0123456789ab\"} 1\n";
        assert!(text.contains(info), "{text}");
    }
}
