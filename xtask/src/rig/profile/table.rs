//! A profile's tables, in Markdown: by group for each kind of back, and by function for each row.

use super::group::{self, Group};
use super::row::{GUESTS, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The kind of back that others are compared with.
const NETBACK: &str = "netback";
/// Number of functions that a table shows.
const TOP: usize = 25;

pub(super) struct Counted {
    pub(super) row: Row,
    pub(super) functions: BTreeMap<(Group, String), f64>,
}

impl Counted {
    fn of_group(&self, group: Group) -> f64 {
        self.functions.iter().filter(|((of, _), _)| *of == group).map(|(_, n)| n).sum()
    }

    /// Returns the factor by which this row's figures are multiplied to compare them with another
    /// row's.
    fn scale(&self, other: &Self) -> f64 {
        other.row.unit() / self.row.unit()
    }
}

/// Returns the kinds of back, in the order of the rows.
fn backs(rows: &[Counted]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    rows.iter().map(|c| c.row.by.as_str()).filter(|by| seen.insert(*by)).collect()
}

/// Formats for each kind of back a table of groups, and a table of groups that exceed netback's.
pub(super) fn of_groups(rows: &[Counted]) -> String {
    let mut text = String::new();
    for by in backs(rows) {
        let own: Vec<&Counted> = rows.iter().filter(|c| c.row.by == by).collect();
        let figures = |c: &Counted, group| c.of_group(group);
        table(&mut text, &format!("{by}, instructions a frame"), &own, figures, |c| c.row.accounted);
    }
    for (by, pairs) in beside_netback(rows) {
        let own: Vec<&Counted> = pairs.iter().map(|(own, _)| *own).collect();
        let than = |own: &Counted| pairs.iter().find(|(o, _)| o.row == own.row).map(|(_, than)| *than);
        let less = |own: &Counted, figure: &dyn Fn(&Counted) -> f64| {
            than(own).map_or(0.0, |than| figure(own) * own.scale(than) - figure(than))
        };
        table(
            &mut text,
            &format!("{by} less netback, instructions a frame (TCP: for the bytes of netback's)"),
            &own,
            |own, group| less(own, &|c| c.of_group(group)),
            |own| less(own, &|c| c.row.accounted),
        );
    }
    text
}

/// Returns the kind of back to compare a row with: netback, in dom0 or in the guest.
fn beside(by: &str) -> String {
    format!("{NETBACK}{}", if by.ends_with(GUESTS) { GUESTS } else { "" })
}

/// Returns the rows of each other back, each with netback's.
fn beside_netback(rows: &[Counted]) -> Vec<(&str, Vec<(&Counted, &Counted)>)> {
    let others = backs(rows).into_iter().filter(|by| *by != beside(by));
    let pairs = others.map(|by| {
        let own = rows.iter().filter(|c| c.row.by == by);
        let than = |own: &Counted| rows.iter().find(|c| c.row.by == beside(by) && c.row.what == own.row.what);
        (by, own.filter_map(|own| Some((own, than(own)?))).collect())
    });
    pairs.filter(|(_, pairs): &(&str, Vec<_>)| !pairs.is_empty()).collect()
}

/// Formats a line for each group, then the sum, and the time that Xen accounted.
fn table(
    text: &mut String,
    title: &str,
    rows: &[&Counted],
    figure: impl Fn(&Counted, Group) -> f64,
    accounted: impl Fn(&Counted) -> f64,
) {
    let whats: Vec<&str> = rows.iter().map(|c| c.row.what.as_str()).collect();
    let _ = writeln!(text, "### {title}\n\n| | {} |\n|---|{}", whats.join(" | "), "---|".repeat(whats.len()));
    let mut line = |name: &str, figures: &[f64]| {
        let figures: Vec<String> = figures.iter().map(|n| format!("{n:.0}")).collect();
        let _ = writeln!(text, "| {name} | {} |", figures.join(" | "));
    };
    let mut sums = vec![0.0; rows.len()];
    for group in group::all() {
        let figures: Vec<f64> = rows.iter().map(|c| figure(c, group)).collect();
        sums.iter_mut().zip(&figures).for_each(|(sum, n)| *sum += n);
        if figures.iter().any(|n| n.abs() >= 0.5) {
            line(group, &figures);
        }
    }
    line("all that was counted", &sums);
    line("Xen's account", &rows.iter().map(|c| accounted(c)).collect::<Vec<_>>());
    text.push('\n');
}

/// Formats for each row of the other backs the functions that differ most from netback's; if
/// netback was not measured, those with most instructions.
pub(super) fn of_functions(rows: &[Counted]) -> String {
    let mut text = String::new();
    let is_netback = |c: &Counted| c.row.by == beside(&c.row.by);
    for c in rows.iter().filter(|c| !is_netback(c) || rows.iter().all(is_netback)) {
        let Row { by, what, .. } = &c.row;
        let than = rows.iter().find(|c| c.row.by == beside(by) && c.row.what == *what && *by != beside(by));
        let is_beside = than.is_some();
        let scale = than.map_or(1.0, |than| c.scale(than));
        // Each of either: ours, netback's.
        let mut both = BTreeMap::<&(Group, String), [f64; 2]>::new();
        for (at, of, scale) in [(0, Some(c), scale), (1, than, 1.0)] {
            for (function, n) in of.iter().flat_map(|of| &of.functions) {
                both.entry(function).or_default()[at] += n * scale;
            }
        }
        let mut most: Vec<_> =
            both.into_iter().map(|(function, [own, than])| (function, own, than)).collect();
        most.sort_by(|a, b| (b.1 - b.2).abs().total_cmp(&(a.1 - a.2).abs()));
        let columns = if is_beside { format!("netback | {by} | more") } else { by.clone() };
        let dashes = "---|".repeat(columns.split('|').count());
        let _ = writeln!(text, "### {what}, {by}\n\n| function | group | {columns} |\n|---|---|{dashes}");
        for ((group, name), own, than) in most.into_iter().take(TOP) {
            let figures = match is_beside {
                true => format!("{than:.0} | {own:.0} | {:.0}", own - than),
                false => format!("{own:.0}"),
            };
            let _ = writeln!(text, "| `{name}` | {group} | {figures} |");
        }
        text.push('\n');
    }
    text
}

/// Formats every function of every row, with tabs between the columns.
pub(super) fn of_all(rows: &[Counted]) -> String {
    let mut text = String::from("what\tby\tgroup\tfunction\tinstructions a frame\n");
    for Counted { row, functions } in rows {
        for ((group, name), n) in functions.iter().filter(|(_, n)| n.abs() >= 0.05) {
            let _ = writeln!(text, "{}\t{}\t{group}\t{name}\t{n:.1}", row.what, row.by);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn what_is_more_than_netbacks_is_for_the_same_bytes() {
        let counted =
            |row: Row, n: f64| Counted { row, functions: [((group::OTHERS, "f".into()), n)].into() };
        let rows = [counted(row("TCP", "netback", 100.0), 50.0), counted(row("TCP", "burst", 50.0), 30.0)];
        assert!(of_groups(&rows).ends_with("| all that was counted | 10 |\n| Xen's account | 7 |\n\n"));
        assert!(of_functions(&rows).contains("| `f` | other processes | 50 | 60 | 10 |"));
        assert!(of_functions(&rows[..1]).contains("| `f` | other processes | 50 |"));
    }
}
