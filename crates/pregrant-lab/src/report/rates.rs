//! Shows frames per second: all sizes in one picture, then each size as bars, then a table with
//! every repeat.

use super::bars::{Bar, Panel};
use super::curve::{self, Curve};
use super::digest::{Digest, Row};
use super::plot::{folded, legend};
use super::quantity::{gbit, si};
use super::story::direction;
use crate::columns::Columns;
use crate::record::published::{self, line_rate};
use maud::{Markup, html};
use pregrant_cli::table::{Table, figure};
use std::collections::BTreeSet;

/// Returns the section's content; None if the run has no `bench net`.
pub fn section(d: &Digest) -> Option<Markup> {
    if d.net.is_empty() {
        return None;
    }
    let overview = ["tx", "rx"].map(|dir| overview(d, dir));
    let any_overview = overview.iter().any(Option::is_some);
    let names: Vec<(usize, &str)> = d
        .series
        .iter()
        .enumerate()
        .filter(|(_, name)| d.net.iter().any(|row| row.name == **name))
        .map(|(i, name)| (i, name.as_str()))
        .collect();
    let sizes: BTreeSet<u64> = d.net.iter().map(|row| row.first().size_bytes).collect();
    Some(html! {
        @if any_overview {
            h3 { "All sizes" }
            p { "Both axes are logarithmic. Dashed lines: frames that fill an Ethernet line of 10, 40 and 100 Gbit/s." @if has_published(d) { " Hollow diamonds: figures that others published for the same path and size, on real Xen and other machines; those of RX went through a Linux guest\u{2019}s stack; ours has no such stack." } }
            (legend(&names))
            div.columns { @for plot in overview.into_iter().flatten() { (plot) } }
        }
        h3 { "Size by size" }
        p { "Bars are medians on a linear axis from 0, whiskers the range of the repeats. Dashed lines are line rates, where they fit the axis." }
        @for size in sizes {
            h4 { (size) " B" }
            p.lines { (line_rates(size)) }
            div.columns {
                @for dir in ["tx", "rx"] {
                    @if let Some(panel) = panel(d, dir, size) { (figure_of(dir, panel.draw())) }
                }
            }
        }
        (folded(&figures(d), "frames a second, with every repeat"))
        @if d.net.iter().map(Row::first).any(published::is_through_stack) { p { (published::THROUGH_STACK) } }
        @if has_published(d) { (folded(&sources(d), "published figures shown here")) }
    })
}

fn figure_of(dir: &str, drawn: Markup) -> Markup {
    html! { figure { figcaption { strong { (dir.to_uppercase()) } ", " (direction(dir)) ", frames/s" } (drawn) } }
}

fn line_rates(size: u64) -> String {
    let rate = |gbit: f64| format!("{gbit:.0} Gbit/s = {}", si(line_rate(gbit, size))).replace(' ', "\u{a0}");
    format!("Line rates, frames/s: {}", [10.0, 40.0, 100.0].map(rate).join(" · "))
}

/// Returns the figure that others published for the same work, and its source.
fn published_for(row: &Row) -> Option<(f64, String)> {
    let r = row.first();
    let value = r.published?;
    let known = published::find(&r.path, &r.dir, r.size_bytes, r.queues).filter(|p| p.frames_per_s == value);
    let source = known.map_or("source not recorded", |p| p.source);
    Some((value, source.into()))
}

/// Returns the label of a published figure, and the value at which it is drawn.
fn published_in_words(row: &Row) -> Option<(f64, String)> {
    let (value, source) = published_for(row)?;
    let stack =
        if published::is_through_stack(row.first()) { ", through a guest\u{2019}s stack" } else { "" };
    Some((value, format!("published {}/s: {source}{stack}", si(value))))
}

fn has_published(d: &Digest) -> bool {
    d.net.iter().any(|row| row.first().published.is_some())
}

fn overview(d: &Digest, dir: &str) -> Option<Markup> {
    let rows = || d.net.iter().filter(|row| row.first().dir == dir);
    let mut curves = Vec::new();
    for (series, name) in d.series.iter().enumerate() {
        let of = || rows().filter(|row| row.name == *name);
        let sorted = |mut points: Vec<(u64, f64)>| {
            points.sort_unstable_by_key(|p| p.0);
            points
        };
        let points = sorted(of().map(|row| (row.first().size_bytes, row.rate.median)).collect());
        let published =
            of().filter_map(|row| Some((row.first().size_bytes, row.first().published?))).collect();
        if !points.is_empty() {
            curves.push(Curve { series, points, published });
        }
    }
    let title = format!("Frames a second by size of the frame, {}", direction(dir));
    let about: Vec<String> = rows().map(in_words).collect();
    let drawn = curve::draw(&format!("all-{dir}"), &title, &about.join("; "), &curves)?;
    Some(figure_of(dir, drawn))
}

fn in_words(row: &Row) -> String {
    let r = row.first();
    format!("{} B by {}: {} frames a second", r.size_bytes, row.name, si(row.rate.median))
}

/// Draws the bars of one size and direction; None if nothing was measured.
pub fn panel(d: &Digest, dir: &str, size: u64) -> Option<Panel> {
    let mut rows: Vec<&Row> =
        d.net.iter().filter(|row| row.first().dir == dir && row.first().size_bytes == size).collect();
    rows.sort_by_key(|row| d.series_of(&row.name));
    if rows.is_empty() {
        return None;
    }
    let bar = |row: &&Row| Bar {
        name: row.name.clone(),
        figure: beside_bar(d, row),
        value: row.rate,
        series: d.series_of(&row.name),
        published: published_in_words(row),
    };
    Some(Panel {
        id: format!("bars-{dir}-{size}"),
        title: format!("Frames of {size} B a second, {}", direction(dir)),
        about: rows.iter().map(|row| in_words(row)).collect::<Vec<_>>().join("; "),
        bars: rows.iter().map(bar).collect(),
        lines: vec![
            (line_rate(10.0, size), "10 Gbit/s"),
            (line_rate(40.0, size), "40 Gbit/s"),
            (line_rate(100.0, size), "100 Gbit/s"),
        ],
    })
}

fn beside_bar(d: &Digest, row: &Row) -> String {
    let mut text = format!("{}/s · {}", si(row.rate.median), gbit(row.bits()));
    if let (Some(gain), true) = (d.gain(row), row.first().path != "copy") {
        text += &format!(" · {}×", figure(gain));
    }
    text
}

fn figures(d: &Digest) -> Table {
    let m = |v: f64| figure(v / 1e6);
    Columns::of(&d.net)
        .left("dir", |row| &row.first().dir)
        .right("size B", |row| row.first().size_bytes)
        .left("path", |row| &row.name)
        .right("M frames/s", |row| m(row.rate.median))
        .right("least", |row| m(row.rate.min))
        .right("most", |row| m(row.rate.max))
        .right("Gbit/s", |row| figure(row.bits() / 1e9))
        .median("times copy", 1.0, |row| d.gains(row))
        .right("of 40 Gbit/s line", |row| figure(row.rate.median / line_rate(40.0, row.first().size_bytes)))
        .right("published M/s", |row| published::cell(row.first()))
        .right("lost", |row| row.sum(|r| r.lost))
        .left("repeats, M frames/s", |row| row.each_rate(1e6))
        .all()
}

fn sources(d: &Digest) -> Table {
    let known: Vec<(&Row, (f64, String))> =
        d.net.iter().filter_map(|row| Some((row, published_for(row)?))).collect();
    Columns::of(&known)
        .left("dir", |(row, _)| &row.first().dir)
        .right("size B", |(row, _)| row.first().size_bytes)
        .left("path", |(row, _)| &row.name)
        .right("M frames/s", |(_, (value, _))| figure(value / 1e6))
        .left("source", |(_, (_, source))| published::in_full(source).unwrap_or(source))
        .all()
}
