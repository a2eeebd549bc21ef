//! Shows requests to a disk: for each kind of request, bars by path and number of guests; then a
//! table with every repeat, and a table of what each request costs.

use super::bars::{Bar, Panel};
use super::costs;
use super::digest::{Digest, Row};
use super::plot::folded;
use super::quantity::{count, distinct, duration, si, some};
use super::words;
use crate::columns::{Columns, or_dash};
use crate::record::Record;
use crate::record::published::{self, PublishedDisks};
use crate::record::stats::Summary;
use maud::{Markup, html};
use pregrant_cli::table::{Table, figure};

/// What the rows of a panel have in common: direction, size, alignment and depth.
type Kind<'a> = (&'a str, u64, Option<u32>, Option<u32>);

fn align(r: &Record) -> Option<u32> {
    r.of.disk()?.align
}

fn guests(r: &Record) -> Option<u32> {
    r.of.disk().map(|disk| disk.guests)
}

fn before(r: &Record) -> Option<u64> {
    r.of.disk()?.before
}

fn own_pages(r: &Record) -> Option<bool> {
    r.of.disk()?.own_pages
}

fn kind<'a>(row: &Row<'a>) -> Kind<'a> {
    let r = row.first();
    (&r.dir, r.size_bytes, align(r), r.depth)
}

/// Returns the section's content; None if the run has no `bench blk`.
pub fn section(d: &Digest) -> Option<Markup> {
    // Another program's file is asked for at multiples of a request's length.
    let kinds = distinct(d.blk.iter().map(kind).filter(|kind| kind.2.is_some()));
    let wrong = d.blk.iter().map(|row| row.sum(wrong_in)).fold(0, u64::saturating_add);
    (!d.blk.is_empty()).then(|| {
        html! {
            p { (words::BLK_METHOD) }
            @if wrong > 0 {
                p.warning role="note" { strong { (wrong) " requests failed or read other bytes than were written" } ": these figures are not to be used." }
            }
            @for (i, kind) in kinds.iter().enumerate() {
                @if let Some(panel) = panel(d, i, *kind) {
                    figure { figcaption { strong { (in_words(*kind)) } ", requests/s over all guests" } (panel.draw()) }
                }
            }
            (folded(&figures(d), "requests a second and what each costs, with every repeat"))
            @if !sources(d).is_empty() { p { "Diamonds: " (sources(d).join("; ")) ". Real Xen, another machine, another year." } }
        }
    })
}

/// Returns the section on restarts of disks' backends; None if there are none.
pub fn restarts(d: &Digest) -> Option<Markup> {
    (!d.disk_restarts.is_empty()).then(|| {
        html! {
            @for record in &d.disk_restarts { p { (restart_in_words(record)) } }
            (folded(&restart_figures(d), "the disk's restart"))
        }
    })
}

pub fn restart_in_words(r: &Record) -> String {
    let killed =
        before(r).map_or(String::new(), |n| format!(" It was killed when {n} of them were answered."));
    let longest =
        r.longest().map_or(String::new(), |ns| format!(", the longest took {}", duration(ns as f64)));
    let wrong = match wrong_in(r) {
        0 => "no request failed, and each read had what was written last".into(),
        n => format!("{n} requests failed or read other bytes than were written"),
    };
    format!(
        "{} requests of {} B by {}, {} in flight, before and after the death of the backend: {wrong}{longest}.{killed}",
        r.frames,
        r.size_bytes,
        r.path,
        r.depth.unwrap_or(1)
    )
}

fn restart_figures(d: &Digest) -> Table {
    Columns::of(d.disk_restarts.iter().copied())
        .left("path", |r| &r.path)
        .right("requests", |r| r.frames)
        .right("before the kill", |r| or_dash(before(r)))
        .right("seconds", |r| figure(r.seconds))
        .right("median ns", |r| or_dash(r.p50()))
        .right("99 % ns", |r| or_dash(r.p99()))
        .right("longest ns", |r| or_dash(r.longest()))
        .right("failed or wrong", wrong_in)
        .all()
}

/// Returns the number of requests that failed, and of reads with a wrong byte.
fn wrong_in(r: &Record) -> u64 {
    r.lost.saturating_add(r.damaged.unwrap_or(0))
}

fn in_words((dir, size, align, depth): Kind) -> String {
    let ways = match dir {
        "read" => "Reads",
        "write" => "Writes",
        _ => "Reads and writes",
    };
    let mut text = format!("{ways} of {size} B");
    if let Some(depth) = depth {
        text += &format!(", {depth} in flight for each guest");
    }
    if align.is_some_and(|align| align != 4096) {
        text += &format!(", at multiples of {} B", align.unwrap_or(0));
    }
    text
}

/// Returns the index of a row's colour, which depends on its path and not on the number of guests.
fn series(row: &Row) -> usize {
    let paths = ["copy", "map", "persistent"];
    paths.iter().position(|path| *path == row.first().path).unwrap_or(paths.len())
}

/// Returns the text that identifies a row among those of its kind.
fn name(row: &Row) -> String {
    let r = row.first();
    let parts = [
        Some(r.path.clone()),
        own_pages(r).map(|_| "own pages".into()),
        guests(r).map(|n| some(n, "guest")),
        r.workers.map(|n| some(n, "worker")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns the ratio of the rate to that of another path for the same guests.
fn gain(d: &Digest, row: &Row, path: &str) -> Option<Summary> {
    let same = |r: &Record| (guests(r), r.workers, r.queues);
    let base =
        d.blk.iter().filter(|b| own_pages(b.first()).is_none()).find(|b| {
            b.first().path == path && kind(b) == kind(row) && same(b.first()) == same(row.first())
        })?;
    row.ratio(base)
}

fn panel(d: &Digest, number: usize, of: Kind) -> Option<Panel> {
    let (dir, size, _, depth) = of;
    let anchor = |row: &Row| (align(row.first()), kind(row)) == (None, (dir, size, None, depth));
    let mut rows: Vec<&Row> = d.blk.iter().filter(|row| kind(row) == of || anchor(row)).collect();
    rows.sort_by_key(|row| {
        (guests(row.first()), row.first().workers.is_none(), row.first().workers, series(row))
    });
    let bar = |row: &&Row| {
        let mut figure_of = format!("{}/s", si(row.rate.median));
        if let Some(gain) = gain(d, row, "map").filter(|_| row.first().path == "persistent") {
            figure_of += &format!(" · {}× map", gain.middle(1.0));
        }
        let published = known(row)
            .map(|p| (p.requests_per_s, format!("published {}/s: {}", si(p.requests_per_s), p.source)));
        Bar { name: name(row), figure: figure_of, value: row.rate, series: series(row), published }
    };
    let about = |row: &&Row| format!("{}: {} requests a second", name(row), si(row.rate.median));
    (!rows.is_empty()).then(|| Panel {
        id: format!("disks-{number}"),
        title: format!("{}, a second", in_words(of)),
        about: rows.iter().map(about).collect::<Vec<_>>().join("; "),
        bars: rows.iter().map(bar).collect(),
        lines: Vec::new(),
    })
}

fn known(row: &Row) -> Option<&'static PublishedDisks> {
    let r = row.first();
    published::find_disks(&r.path, r.size_bytes, guests(r)?).filter(|p| Some(p.requests_per_s) == r.published)
}

fn sources(d: &Digest) -> Vec<&'static str> {
    let mut all: Vec<&str> =
        d.blk.iter().filter_map(known).filter_map(|p| published::in_full(p.source)).collect();
    all.dedup();
    all
}

fn figures(d: &Digest) -> Table {
    let latency =
        |row: &Row, of: fn(&Record) -> Option<u64>| or_dash(row.middle(of).map(|s| duration(s.median)));
    let k = |v: f64| figure(v / 1e3);
    let first = Columns::of(&d.blk)
        .left("dir", |row| &row.first().dir)
        .right("size B", |row| row.first().size_bytes)
        .right("align B", |row| or_dash(align(row.first())))
        .right("depth", |row| or_dash(row.first().depth))
        .left("path", name)
        .left("mode", |row| &row.first().mode)
        .right("k requests/s", |row| k(row.rate.median))
        .right("least", |row| k(row.rate.min))
        .right("most", |row| k(row.rate.max))
        .median("times copy", 1.0, |row| gain(d, row, "copy"))
        .median("times map", 1.0, |row| gain(d, row, "map"))
        .right("latency", |row| latency(row, Record::p50))
        .right("99 %", |row| latency(row, Record::p99));
    costs::each(first)
        .right("requests counted", |row| count(row.sum(|r| r.frames)))
        .right("failed or wrong", |row| row.sum(wrong_in))
        .right("published k/s", |row| or_dash(row.first().published.map(k)))
        .left("repeats, k requests/s", |row| row.each_rate(1e3))
        .all()
}
