//! Formats a small table for a terminal: units are in the header, figures are aligned to the right,
//! and columns are as wide as necessary.

use std::fmt;

/// The side to which a column's cells are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// A table that is filled row by row.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    least: Vec<usize>,
}

impl Table {
    /// Creates a table with these column headings, which include the units.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns.iter().map(|(name, align)| (name.to_string(), *align)).collect(),
            rows: Vec::new(),
            least: Vec::new(),
        }
    }

    /// Returns the headings, and the side to which each column is aligned.
    pub fn columns(&self) -> &[(String, Align)] {
        &self.columns
    }

    /// Returns the cells of the rows. A gap is a row without cells.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Sets the smallest widths of columns, so that the rows of several tables line up.
    pub fn at_least(mut self, widths: &[usize]) -> Self {
        self.least = widths.to_vec();
        self
    }

    /// Adds a row. If there are fewer cells than columns, the others are empty; further cells are
    /// left out.
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

/// Formats a figure with three significant digits and at most three decimals: `0.123`, `4.56`,
/// `78.9`, `1234`.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Returns the number of columns that `text` has on a terminal: combining marks have none, East
/// Asian wide characters two.
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
    fn figures_have_three_digits() {
        let shown: Vec<_> = [0.0, 0.1234, 0.9996, 4.567, 9.996, 78.94, 99.96, 1234.5].map(figure).into();
        assert_eq!(shown, ["0.000", "0.123", "1.00", "4.57", "10.0", "78.9", "100", "1234"]);
    }

    #[test]
    fn width_is_what_a_terminal_shows() {
        assert_eq!(
            (width("abc"), width("µs"), width("e\u{301}"), width("漢字"), width("×4")),
            (3, 2, 1, 4, 2)
        );
    }
}
