//! What a frame costs beside time: grant operations and notifications, as a table of paths by sizes with a small bar in
//! each cell, and all counts behind it.

use super::digest::{Digest, Row};
use super::plot::{Numbers, colour};
use super::quantity::{count, per_frame, small};
use super::scale::Scale;
use super::story::direction;
use crate::record::Record;
use crate::table::Align;
use maud::{Markup, html};

/// A table of one count for each frame, in one direction.
fn matrix(d: &Digest, dir: &str, what: &str, count: impl Fn(&Row) -> u64) -> Option<Markup> {
    let rows: Vec<&Row> = d.net.iter().filter(|row| row.first().dir == dir).collect();
    let mut sizes: Vec<u64> = rows.iter().map(|row| row.first().size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let names: Vec<&String> =
        d.series.iter().filter(|name| rows.iter().any(|row| row.name == **name)).collect();
    let scale = Scale::from_zero(rows.iter().map(|row| row.per_frame(count(row))).fold(0.0, f64::max));
    let cell =
        |name: &str, size: u64| rows.iter().find(|row| row.name == name && row.first().size_bytes == size);
    let caption = format!("{}, {}: {what} for each frame", dir.to_uppercase(), direction(dir));
    (!rows.is_empty()).then(|| {
        html! {
            div.wide tabindex="0" role="region" aria-label=(caption) {
                table.matrix {
                    caption { (caption) }
                    thead { tr { th scope="col" { "path" } @for size in &sizes { th.n scope="col" { (size) " B" } } } }
                    tbody {
                        @for name in names {
                            tr {
                                th scope="row" { (name) }
                                @for size in &sizes {
                                    td.n {
                                        @if let Some(row) = cell(name, *size) {
                                            @let n = count(row);
                                            (per_frame(n, row.sum(|r| r.frames)))
                                            svg.cell width="100%" height="5" aria-hidden="true" {
                                                rect.track width="100%" height="5" {}
                                                rect class={ "bar " (colour(d.series_of(name))) } width=(scale.at(row.per_frame(n))) height="5" {}
                                            }
                                        } @else { "-" }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    })
}

/// The section's content; None without `bench net`.
pub fn section(d: &Digest) -> Option<Markup> {
    let silent = d.net.iter().all(|row| row.sum(|r| r.notifications) == 0);
    let grants = ["tx", "rx"].map(|dir| matrix(d, dir, "grant operations", |row| row.grant_ops()));
    let events = ["tx", "rx"].map(|dir| matrix(d, dir, "notifications", |row| row.sum(|r| r.notifications)));
    (!d.net.is_empty()).then(|| {
        html! {
            p { "A grant operation is a copy, a map or an unmap that the hypervisor does; on Xen each costs far more than the memcpy it replaces. A notification wakes the other end. Both ends are counted, and all repeats." }
            div.columns { @for table in grants.into_iter().flatten() { (table) } }
            @if silent { p { "No row sent a notification while it was counted." } }
            @else { div.columns { @for table in events.into_iter().flatten() { (table) } } }
            (numbers(d).folded("operations, system calls and CPU time for each frame"))
        }
    })
}

/// Headings of what each frame, or request, costs.
pub const EACH: [(&str, Align); 7] = [
    ("grant copies", Align::Right),
    ("maps", Align::Right),
    ("unmaps", Align::Right),
    ("system calls", Align::Right),
    ("notifications", Align::Right),
    ("guest CPU ns", Align::Right),
    ("backend CPU ns", Align::Right),
];

/// The cells below [`EACH`].
pub fn each(row: &Row) -> [String; 7] {
    let frames = row.sum(|r| r.frames);
    let each = |count: fn(&Record) -> u64| per_frame(row.sum(count), frames);
    [
        each(|r| r.grant_copies),
        each(|r| r.grant_maps),
        each(|r| r.grant_unmaps),
        each(|r| r.syscalls),
        each(|r| r.notifications),
        small(row.per_frame(row.sum(|r| r.frontend_cpu_ns))),
        small(row.per_frame(row.sum(|r| r.backend_cpu_ns))),
    ]
}

fn numbers(d: &Digest) -> Numbers {
    let first = [("dir", Align::Left), ("size B", Align::Right), ("path", Align::Left)];
    let last = [("frames counted", Align::Right), ("lost", Align::Right)];
    let mut numbers = Numbers::new(&[&first[..], &EACH, &last].concat());
    for row in &d.net {
        let r = row.first();
        let mut cells = vec![r.dir.clone(), r.size_bytes.to_string(), row.name.clone()];
        cells.extend(each(row));
        cells.extend([count(row.sum(|r| r.frames)), row.sum(|r| r.lost).to_string()]);
        numbers.row(cells);
    }
    numbers
}
