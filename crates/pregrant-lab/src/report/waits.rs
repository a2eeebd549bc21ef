//! Latencies: requests and responses, by how both ends wait.

use super::digest::{Digest, Row};
use super::histogram::{self, Strip};
use super::plot::Numbers;
use super::quantity::{count, duration, per_frame};
use super::words;
use crate::table::Align;
use maud::{Markup, html};

/// The section's content; None without latencies.
pub fn section(d: &Digest) -> Option<Markup> {
    let mut modes: Vec<&str> = Vec::new();
    for row in &d.latency {
        if !modes.contains(&&*row.first().mode) {
            modes.push(&row.first().mode);
        }
    }
    let drawn: Vec<(&str, Vec<Markup>)> = modes
        .into_iter()
        .map(|mode| {
            (
                mode,
                [("tx", "Request"), ("rx", "Response")]
                    .into_iter()
                    .filter_map(|(dir, name)| plot(d, mode, dir, name))
                    .collect(),
            )
        })
        .filter(|(_, plots): &(_, Vec<Markup>)| !plots.is_empty())
        .collect();
    let histograms = d.latency.iter().any(|row| row.records.iter().any(|r| r.latency_histogram.is_some()));
    (!drawn.is_empty()).then(|| {
        html! {
            p {
                "One frame in flight. A request goes from the guest to the backend\u{2019}s port, a response back. The axis is logarithmic. "
                @if histograms { "Each strip is as high as its fullest part; the solid line is the median, the dashed one the 99th percentile; frames slower than the axis are counted at its end." }
                @else { "Each line goes from the median to the 99th percentile." }
            }
            @for (mode, plots) in drawn {
                h3 { (upper(mode)) " mode" @if !words::mode(mode).is_empty() { ": " (words::mode(mode)) } }
                div.columns { @for plot in plots { (plot) } }
            }
            (numbers(d).folded("latencies"))
        }
    })
}

fn upper(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

fn plot(d: &Digest, mode: &str, dir: &str, name: &str) -> Option<Markup> {
    let mut rows: Vec<&Row> =
        d.latency.iter().filter(|row| (&*row.first().mode, &*row.first().dir) == (mode, dir)).collect();
    rows.sort_by_key(|row| d.series_of(&row.name));
    let strips: Vec<Strip> = rows
        .iter()
        .filter_map(|row| {
            Some(Strip {
                name: row.name.clone(),
                series: d.series_of(&row.name),
                p50: row.middle(|r| r.latency_p50_ns)?,
                p99: row.middle(|r| r.latency_p99_ns)?,
                buckets: buckets(row),
            })
        })
        .collect();
    let words =
        strips.iter().map(|s| format!("{}: median {}, 99 % {}", s.name, duration(s.p50), duration(s.p99)));
    let about = words.collect::<Vec<_>>().join("; ");
    let drawn = histogram::draw(
        &format!("latency-{mode}-{dir}"),
        &format!("{name} latency, {mode} mode"),
        &about,
        &strips,
    )?;
    Some(html! { figure { figcaption { strong { (name) } } (drawn) } })
}

/// The repeats' histograms as one.
fn buckets(row: &Row) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> =
        row.records.iter().filter_map(|r| r.latency_histogram.as_ref()).flatten().copied().collect();
    all.sort_unstable_by_key(|b| b.0);
    all
}

fn numbers(d: &Digest) -> Numbers {
    let mut numbers = Numbers::new(&[
        ("path", Align::Left),
        ("mode", Align::Left),
        ("way", Align::Left),
        ("median ns", Align::Right),
        ("99 % ns", Align::Right),
        ("slowest ns", Align::Right),
        ("frames", Align::Right),
        ("notifications/round trip", Align::Right),
        ("grant operations/round trip", Align::Right),
        ("lost", Align::Right),
    ]);
    let whole = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.0}"));
    for row in &d.latency {
        let (r, frames) = (row.first(), row.sum(|r| r.frames));
        let slowest = buckets(row).iter().rev().find(|b| b.1 > 0).map(|b| b.0 as f64);
        numbers.row(vec![
            row.name.clone(),
            r.mode.clone(),
            if r.dir == "tx" { "request".into() } else { "response".into() },
            whole(row.middle(|r| r.latency_p50_ns)),
            whole(row.middle(|r| r.latency_p99_ns)),
            whole(slowest),
            count(frames),
            per_frame(row.sum(|r| r.notifications), frames),
            per_frame(row.grant_ops(), frames),
            row.sum(|r| r.lost).to_string(),
        ]);
    }
    numbers
}
