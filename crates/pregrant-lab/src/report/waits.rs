//! Shows latencies of requests and responses, by the waiting mode of both ends.

use super::digest::{Digest, Row};
use super::histogram::{self, Strip};
use super::plot::folded;
use super::quantity::{count, distinct, duration};
use super::words;
use crate::columns::{Columns, or_dash};
use crate::record::Record;
use maud::{Markup, html};
use pregrant_cli::table::Table;

/// Returns the section's content; None if there are no latencies.
pub fn section(d: &Digest) -> Option<Markup> {
    let modes = distinct(d.latency.iter().map(|row| &*row.first().mode));
    let drawn: Vec<(&str, Vec<Markup>)> = modes
        .into_iter()
        .map(|mode| {
            let ways = [("tx", "Request"), ("rx", "Response")].into_iter();
            (mode, ways.filter_map(|(dir, name)| plot(d, mode, dir, name)).collect())
        })
        .filter(|(_, plots): &(_, Vec<Markup>)| !plots.is_empty())
        .collect();
    let histograms = d.latency.iter().any(|row| row.iter().any(|r| histogram_of(r).is_some()));
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
            (folded(&figures(d), "latencies"))
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
                p50: row.middle(Record::p50)?.median,
                p99: row.middle(Record::p99)?.median,
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

fn histogram_of(r: &Record) -> Option<&Vec<(u64, u64)>> {
    r.took.as_ref()?.latency_histogram.as_ref()
}

/// Adds up the histograms of the repeats.
fn buckets(row: &Row) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = row.iter().filter_map(histogram_of).flatten().copied().collect();
    all.sort_unstable_by_key(|b| b.0);
    all
}

/// Returns `request` or `response`, the name of the row's direction.
pub fn way(row: &Row) -> &'static str {
    if row.first().dir == "tx" { "request" } else { "response" }
}

fn figures(d: &Digest) -> Table {
    let whole = |v: Option<f64>| or_dash(v.map(|v| format!("{v:.0}")));
    let middle = |row: &Row, of: fn(&Record) -> Option<u64>| whole(row.middle(of).map(|s| s.median));
    Columns::of(&d.latency)
        .left("path", |row| &row.name)
        .left("mode", |row| &row.first().mode)
        .left("way", way)
        .right("median ns", |row| middle(row, Record::p50))
        .right("99 % ns", |row| middle(row, Record::p99))
        .right("slowest ns", |row| whole(buckets(row).iter().rev().find(|b| b.1 > 0).map(|b| b.0 as f64)))
        .right("frames", |row| count(row.sum(|r| r.frames)))
        .right("notifications/round trip", |row| row.shown_each(|r| r.notifications))
        .right("grant operations/round trip", |row| row.shown_each(Record::grant_ops))
        .right("lost", |row| row.sum(|r| r.lost))
        .all()
}
