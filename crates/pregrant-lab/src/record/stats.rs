//! Computes the median, the smallest and the largest of a few repeats' figures.

use pregrant_cli::table::figure;
use std::fmt;

/// The median, the smallest and the largest of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The figure in the middle, or the mean of the two in the middle if the number of figures is
    /// even.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// True if other programs used too much of the machine while the compared figures were
    /// measured. The comparison is then not shown.
    pub is_loaded: bool,
}

/// The text that is shown in place of a figure that must not be used.
pub const LOADED: &str = "loaded";

impl Summary {
    /// Summarizes `figures`, which may be in any order. None: there are none, or one of them is not
    /// a number.
    pub fn of(figures: &[f64]) -> Option<Self> {
        if figures.is_empty() || figures.iter().any(|f| f.is_nan()) {
            return None;
        }
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = if n % 2 == 1 { sorted[n / 2] } else { f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]) };
        Some(Self { median, min: sorted[0], max: sorted[n - 1], is_loaded: false })
    }

    pub fn per(self, unit: f64) -> Self {
        Self { median: self.median / unit, min: self.min / unit, max: self.max / unit, ..self }
    }

    /// Formats the median in units of `unit`, or a text that says that it is unknown.
    pub fn middle(&self, unit: f64) -> String {
        if self.is_loaded { LOADED.into() } else { figure(self.median / unit) }
    }

    pub fn range(&self) -> String {
        if self.is_loaded {
            return "-".into();
        }
        format!("({}..{})", figure(self.min), figure(self.max))
    }

    /// Summarizes the ratios of pairs: interleaved repeats are compared with their neighbours in
    /// time. Pairs with 0 as the divisor are ignored.
    pub fn of_ratios(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        Self::of(&pairs.filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b).collect::<Vec<_>>())
    }
}

/// Formats the summary, for example as `2.25 (1.58..2.60)`.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_loaded {
            return f.write_str("(not shown: the machine was loaded)");
        }
        write!(f, "{} {}", figure(self.median), self.range())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(median: f64, min: f64, max: f64) -> Summary {
        Summary { median, min, max, is_loaded: false }
    }

    #[test]
    fn what_cannot_be_read_is_not_printed() {
        let read = summary(11.0, 0.5, 20.0);
        assert_eq!((read.middle(1.0), read.to_string()), ("11.0".into(), "11.0 (0.500..20.0)".into()));
        let loaded = Summary { is_loaded: true, ..read }.per(2.0);
        let shown = [loaded.middle(1.0), loaded.range(), loaded.to_string()];
        assert!(shown.iter().all(|text| !text.contains(|c: char| c.is_ascii_digit())), "{shown:?}");
    }

    #[test]
    fn the_middle_is_the_middle() {
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]), Some(summary(2.0, 1.0, 3.0)));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 100.0]).unwrap().median, 3.0);
        assert_eq!(Summary::of(&[7.0]), Some(summary(7.0, 7.0, 7.0)));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn ratios_are_of_neighbours() {
        let ratios = Summary::of_ratios([(40.0, 2.0), (60.0, 4.0), (1.0, 0.0)].into_iter()).unwrap();
        assert_eq!((ratios.median, ratios.min, ratios.max), (17.5, 15.0, 20.0));
        assert_eq!(Summary::of_ratios([(1.0, 0.0)].into_iter()), None);
    }
}
