//! Shows what a frame costs besides time: grant operations and notifications, as a table of paths
//! by sizes with a small bar in each cell, and behind it a table of all counts.

use super::digest::{Digest, Row};
use super::plot::{colour, folded};
use super::quantity::{count, small};
use super::scale::Scale;
use super::story::direction;
use crate::columns::Columns;
use crate::record::Record;
use maud::{Markup, html};
use pregrant_cli::table::Table;
use std::collections::BTreeSet;

/// Formats a table of one count for each frame, in one direction.
fn matrix(d: &Digest, dir: &str, what: &str, count: fn(&Record) -> u64) -> Option<Markup> {
    let rows: Vec<&Row> = d.net.iter().filter(|row| row.first().dir == dir).collect();
    let sizes: BTreeSet<u64> = rows.iter().map(|row| row.first().size_bytes).collect();
    let names: Vec<&String> =
        d.series.iter().filter(|name| rows.iter().any(|row| row.name == **name)).collect();
    let scale = Scale::from_zero(rows.iter().map(|row| row.each(count)).fold(0.0, f64::max));
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
                                            (row.shown_each(count))
                                            svg.cell width="100%" height="5" aria-hidden="true" {
                                                rect.track width="100%" height="5" {}
                                                rect class={ "bar " (colour(d.series_of(name))) } width=(scale.at(row.each(count))) height="5" {}
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

/// Returns the section's content; None if the run has no `bench net`.
pub fn section(d: &Digest) -> Option<Markup> {
    let silent = d.net.iter().all(|row| row.sum(|r| r.notifications) == 0);
    let grants = ["tx", "rx"].map(|dir| matrix(d, dir, "grant operations", Record::grant_ops));
    let events = ["tx", "rx"].map(|dir| matrix(d, dir, "notifications", |r| r.notifications));
    (!d.net.is_empty()).then(|| {
        html! {
            p { "A grant operation is a copy, a map or an unmap that the hypervisor does; on Xen each costs much more than the memcpy it replaces. A notification wakes the other end. Both ends are counted, and all repeats." }
            div.columns { @for table in grants.into_iter().flatten() { (table) } }
            @if silent { p { "No row sent a notification while it was counted." } }
            @else { div.columns { @for table in events.into_iter().flatten() { (table) } } }
            (folded(&all_counts(d), "operations, system calls and CPU time for each frame"))
        }
    })
}

/// Adds columns with the cost of each frame or request.
pub fn each<'a, 'r>(columns: Columns<'a, Row<'r>>) -> Columns<'a, Row<'r>> {
    columns
        .right("grant copies", |row| row.shown_each(|r| r.grant_copies))
        .right("maps", |row| row.shown_each(|r| r.grant_maps))
        .right("unmaps", |row| row.shown_each(|r| r.grant_unmaps))
        .right("system calls", |row| row.shown_each(|r| r.syscalls))
        .right("notifications", |row| row.shown_each(|r| r.notifications))
        .right("guest CPU ns", |row| small(row.each(|r| r.frontend_cpu_ns)))
        .right("backend CPU ns", |row| small(row.each(|r| r.backend_cpu_ns)))
}

fn all_counts(d: &Digest) -> Table {
    let first = Columns::of(&d.net)
        .left("dir", |row| &row.first().dir)
        .right("size B", |row| row.first().size_bytes)
        .left("path", |row| &row.name);
    each(first)
        .right("frames counted", |row| count(row.sum(|r| r.frames)))
        .right("lost", |row| row.sum(|r| r.lost))
        .all()
}
