//! A small table for a terminal: units in the header, figures to the right, columns as wide as they
//! must be.

use crate::record::stats::Summary;
pub use crate::record::stats::figure;
use std::fmt;

/// Which side a column's cells are pushed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// The table, filled row by row.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    least: Vec<usize>,
}

impl Table {
    /// A table with these column headings; the unit belongs into the heading.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns.iter().map(|(name, align)| (name.to_string(), *align)).collect(),
            rows: Vec::new(),
            least: Vec::new(),
        }
    }

    /// A table with a row for each of these, which is filled column by column.
    pub fn of<'a, T>(rows: impl IntoIterator<Item = &'a T>) -> Columns<'a, T> {
        let of: Vec<&T> = rows.into_iter().collect();
        let table = Self { rows: vec![Vec::new(); of.len()], ..Self::new(&[]) };
        Columns { of, table }
    }

    /// Headings, and to which side their columns are pushed.
    pub(crate) fn columns(&self) -> &[(String, Align)] {
        &self.columns
    }

    /// The rows' cells; a gap has none.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Sets least widths of columns, so that rows of several tables line up.
    pub fn at_least(mut self, widths: &[usize]) -> Self {
        self.least = widths.to_vec();
        self
    }

    /// Adds a row; cells that are missing are empty, ones too many are left out.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }

    /// Adds an empty line between groups of rows.
    pub fn gap(&mut self) {
        self.rows.push(Vec::new());
    }
}

/// A table that is built column by column, so that heading and cell are next to each other in the
/// code.
pub struct Columns<'a, T> {
    of: Vec<&'a T>,
    table: Table,
}

impl<'a, T> Columns<'a, T> {
    pub fn left<C: fmt::Display>(self, name: &str, cell: impl Fn(&'a T) -> C) -> Self {
        self.column(name, Align::Left, &|row| cell(row).to_string())
    }

    pub fn right<C: fmt::Display>(self, name: &str, cell: impl Fn(&'a T) -> C) -> Self {
        self.column(name, Align::Right, &|row| cell(row).to_string())
    }

    /// A column of figures, in units of `unit`; there may be none.
    pub fn median(self, name: &str, unit: f64, cell: impl Fn(&'a T) -> Option<Summary>) -> Self {
        self.column(name, Align::Right, &|row| or_dash(cell(row).map(|s| s.middle(unit))))
    }

    /// The same with another column for the ranges.
    pub fn ranged(self, name: &str, unit: f64, cell: impl Fn(&'a T) -> Option<Summary>) -> Self {
        let range = |row| or_dash(cell(row).map(|s| s.per(unit).range()));
        self.median(name, unit, &cell).column("(range)", Align::Right, &range)
    }

    /// The cells come from a trait object, so that this is compiled once for each `T` and not for
    /// each column.
    fn column(mut self, name: &str, align: Align, cell: &dyn Fn(&'a T) -> String) -> Self {
        self.table.columns.push((name.into(), align));
        for (row, cells) in self.of.iter().zip(&mut self.table.rows) {
            cells.push(cell(row));
        }
        self
    }

    /// The table, with an empty line wherever the next row is of another group.
    pub fn grouped<K: PartialEq>(mut self, group: impl Fn(&'a T) -> K) -> Table {
        let begins = |i: &usize| *i > 0 && group(self.of[*i]) != group(self.of[i - 1]);
        for i in (0..self.of.len()).filter(begins).collect::<Vec<_>>().into_iter().rev() {
            self.table.rows.insert(i, Vec::new());
        }
        self.table
    }

    pub fn all(self) -> Table {
        self.table
    }
}

/// An optional value, as a cell.
pub fn or_dash(of: Option<impl fmt::Display>) -> String {
    of.map_or("-".into(), |of| of.to_string())
}

/// Columns that `text` takes on a terminal: combining marks take none, East Asian wide characters
/// two.
pub fn width(text: &str) -> usize {
    text.chars()
        .map(|c| match u32::from(c) {
            0..=0x1F | 0x7F..=0x9F | 0x300..=0x36F | 0x200B..=0x200F | 0x20D0..=0x20FF | 0xFE00..=0xFE0F => 0,
            0x1100..=0x115F | 0x2E80..=0xA4CF | 0xAC00..=0xD7A3 | 0xF900..=0xFAFF | 0xFE30..=0xFE6F => 2,
            0xFF00..=0xFF60 | 0xFFE0..=0xFFE6 | 0x1F300..=0x1FAFF | 0x20000..=0x3FFFD => 2,
            _ => 1,
        })
        .sum()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (name, _))| {
                let cells = self.rows.iter().filter_map(|row| row.get(i)).map(|cell| width(cell));
                cells.chain([width(name)]).chain(self.least.get(i).copied()).max().unwrap_or(0)
            })
            .collect();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for ((cell, (_, align)), wide) in cells.zip(&self.columns).zip(&widths) {
                let pad = " ".repeat(wide - width(cell));
                match align {
                    Align::Left => text += &format!("{cell}{pad}  "),
                    Align::Right => text += &format!("{pad}{cell}  "),
                }
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(&mut self.columns.iter().map(|(name, _)| name.as_str()))?;
        let rules: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
        line(&mut rules.iter().map(String::as_str))?;
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_under_each_other() {
        let mut table = Table::new(&[("path", Align::Left), ("M/s", Align::Right)]);
        table.row(["staging", "62.1"]);
        table.gap();
        table.row(["µs", "5"]);
        table.row(["x"]);
        let text = table.to_string();
        assert_eq!(text, "path      M/s\n-------  ----\nstaging  62.1\n\nµs          5\nx\n");
    }

    #[test]
    fn rows_of_several_tables_stand_under_each_other() {
        let table = || Table::new(&[("path", Align::Left), ("M/s", Align::Right)]).at_least(&[8, 6]);
        let heading = table().to_string();
        let mut one = table();
        one.row(["copy", "4.56"]);
        assert_eq!(one.to_string(), heading + "copy        4.56\n");
    }

    #[test]
    fn a_column_says_its_heading_and_its_cells() {
        let summary =
            |n: &u64| (*n > 0).then_some(Summary { median: *n as f64, min: 1.0, max: 9.0, is_loaded: false });
        let table = Table::of(&[1, 2, 0]).left("n", |n| n).ranged("M/s", 0.5, summary).grouped(|n| *n > 1);
        let text = "n   M/s       (range)\n-  ----  ------------\n1  2.00  (2.00..18.0)\n\n\
                    2  4.00  (2.00..18.0)\n\n0     -             -\n";
        assert_eq!(table.to_string(), text);
    }

    #[test]
    fn width_is_what_a_terminal_shows() {
        assert_eq!(
            (width("abc"), width("µs"), width("e\u{301}"), width("漢字"), width("×4")),
            (3, 2, 1, 4, 2)
        );
    }
}
