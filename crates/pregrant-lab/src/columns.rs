//! A table that is filled column by column, with each heading beside the function that makes its
//! cells.

use crate::record::stats::Summary;
use pregrant_cli::table::{Align, Table};
use std::fmt;

/// Builds a table that has a row for each of some values.
pub struct Columns<'a, T> {
    of: Vec<&'a T>,
    headings: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl<'a, T> Columns<'a, T> {
    /// Creates a table with a row for each of these values, and no columns yet.
    pub fn of(rows: impl IntoIterator<Item = &'a T>) -> Self {
        let of: Vec<&T> = rows.into_iter().collect();
        let rows = vec![Vec::new(); of.len()];
        Self { of, headings: Vec::new(), rows }
    }

    /// Adds a column of texts, aligned to the left.
    pub fn left<C: fmt::Display>(self, name: &str, cell: impl Fn(&'a T) -> C) -> Self {
        self.column(name, Align::Left, &|row| cell(row).to_string())
    }

    /// Adds a column of figures, aligned to the right.
    pub fn right<C: fmt::Display>(self, name: &str, cell: impl Fn(&'a T) -> C) -> Self {
        self.column(name, Align::Right, &|row| cell(row).to_string())
    }

    /// Adds a column of figures in units of `unit`; a row may have none.
    pub fn median(self, name: &str, unit: f64, cell: impl Fn(&'a T) -> Option<Summary>) -> Self {
        self.column(name, Align::Right, &|row| or_dash(cell(row).map(|s| s.middle(unit))))
    }

    /// Adds a column as [`right`](Self::right) does, and another column for the ranges of the
    /// figures.
    pub fn ranged(self, name: &str, unit: f64, cell: impl Fn(&'a T) -> Option<Summary>) -> Self {
        let range = |row: &'a T| or_dash(cell(row).map(|s| s.per(unit).range()));
        self.median(name, unit, &cell).column("(range)", Align::Right, &range)
    }

    /// The cells come from a trait object, so that this is compiled once for each `T`, not for each
    /// column.
    fn column(mut self, name: &str, align: Align, cell: &dyn Fn(&'a T) -> String) -> Self {
        self.headings.push((name.into(), align));
        for (row, cells) in self.of.iter().zip(&mut self.rows) {
            cells.push(cell(row));
        }
        self
    }

    /// Returns the table, with an empty line between groups of rows.
    pub fn grouped<K: PartialEq>(self, group: impl Fn(&'a T) -> K) -> Table {
        let Self { of, headings, rows } = self;
        let headings: Vec<(&str, Align)> =
            headings.iter().map(|(name, align)| (name.as_str(), *align)).collect();
        let mut table = Table::new(&headings);
        for (i, row) in rows.into_iter().enumerate() {
            if i > 0 && group(of[i]) != group(of[i - 1]) {
                table.gap();
            }
            table.row(row);
        }
        table
    }

    /// Returns the finished table.
    pub fn all(self) -> Table {
        self.grouped(|_| ())
    }
}

/// Formats an optional value as a cell, or as a dash if there is none.
pub fn or_dash(of: Option<impl fmt::Display>) -> String {
    of.map_or("-".into(), |of| of.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_says_its_heading_and_its_cells() {
        let summary =
            |n: &u64| (*n > 0).then_some(Summary { median: *n as f64, min: 1.0, max: 9.0, is_loaded: false });
        let table = Columns::of(&[1, 2, 0]).left("n", |n| n).ranged("M/s", 0.5, summary).grouped(|n| *n > 1);
        let text = "n   M/s       (range)\n-  ----  ------------\n1  2.00  (2.00..18.0)\n\n\
                    2  4.00  (2.00..18.0)\n\n0     -             -\n";
        assert_eq!(table.to_string(), text);
    }
}
