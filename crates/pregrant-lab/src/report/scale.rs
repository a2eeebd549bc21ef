//! Axes: where a value falls, in percent of the axis, and which values get a tick.
//!
//! Positions are percentages because a plot has no width of its own: it is as wide as the window
//! lets it be, and its text stays as large as it is.

use std::fmt;

/// A position along an axis, in the percentages that SVG accepts.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(pub f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}%", self.0)
    }
}

impl Percent {
    /// Returns the alignment of a text at a position. Near the `ends` of an axis the text then
    /// stays within the drawing.
    pub fn anchor(self, ends: [f64; 2]) -> &'static str {
        match self.0 {
            x if x < ends[0] => "start",
            x if x > ends[1] => "end",
            _ => "middle",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    Linear {
        low: f64,
        high: f64,
    },
    /// The axis is logarithmic: from `low` (above 0) to `high`, with decades of equal length.
    Log {
        low: f64,
        high: f64,
    },
}

impl Scale {
    /// Creates an axis from 0 to `high`, or to 1 if there is nothing to show.
    pub fn from_zero(high: f64) -> Self {
        Self::Linear { low: 0.0, high: if high > 0.0 { high } else { 1.0 } }
    }

    /// Creates a logarithmic scale over all `values` above 0, with `margin` (a factor above 1) at
    /// both ends. None if there are no such values.
    pub fn log_over(values: impl IntoIterator<Item = f64>, margin: f64) -> Option<Self> {
        let positive = values.into_iter().filter(|v| *v > 0.0 && v.is_finite());
        let (low, high) = positive.fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        (high > 0.0).then_some(Self::Log { low: low / margin, high: high * margin })
    }

    /// Returns the position of `value` on the axis. Values outside are placed at the nearer end.
    pub fn at(&self, value: f64) -> Percent {
        let share = match *self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } => (value.max(low) / low).ln() / (high / low).ln(),
        };
        Percent(if share.is_nan() { 0.0 } else { 100.0 * share.clamp(0.0, 1.0) })
    }

    /// Returns true if `value` is not above the end of the axis.
    pub fn holds(&self, value: f64) -> bool {
        let (Self::Linear { high, .. } | Self::Log { high, .. }) = *self;
        value <= high
    }

    /// Returns about three to six round values within the axis.
    pub fn ticks(&self) -> Vec<f64> {
        match *self {
            Self::Linear { low, high } => {
                let rough = (high - low) / 4.0;
                let decade = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|s| s * decade).into_iter().find(|s| *s >= rough);
                let Some(step) = step else { return Vec::new() };
                let (first, last) = ((low / step).ceil() as i64, (high / step * (1.0 + 1e-9)).floor() as i64);
                (first..=last).map(|i| i as f64 * step).collect()
            }
            Self::Log { low, high } => {
                let decades = (high / low).log10();
                let steps: &[f64] = match decades {
                    d if d > 2.5 => &[1.0],
                    d if d > 1.3 => &[1.0, 3.0],
                    _ => &[1.0, 2.0, 5.0],
                };
                let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
                let all = exponents.flat_map(|e| steps.iter().map(move |s| s * 10f64.powi(e)));
                all.filter(|v| (low..=high).contains(v)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_where_they_belong() {
        let linear = Scale::from_zero(80.0);
        assert_eq!(
            (linear.at(20.0), linear.at(200.0), linear.at(-1.0)),
            (Percent(25.0), Percent(100.0), Percent(0.0))
        );
        let log = Scale::log_over([1.0, 0.0, 10_000.0], 1.0).unwrap();
        assert!((log.at(100.0).0 - 50.0).abs() < 1e-9 && log.at(0.0) == Percent(0.0));
        assert_eq!(Scale::log_over([0.0, f64::NAN], 2.0), None);
        assert_eq!(Scale::from_zero(0.0).at(0.5), Percent(50.0));
        assert_eq!(Percent(12.345).to_string(), "12.35%");
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(Scale::from_zero(59.5).ticks(), [0.0, 20.0, 40.0]);
        assert_eq!(Scale::from_zero(0.19).ticks().len(), 4);
        assert_eq!(Scale::Linear { low: -10.0, high: 30.0 }.ticks(), [-10.0, 0.0, 10.0, 20.0, 30.0]);
        assert_eq!(Scale::Log { low: 50.0, high: 20_000.0 }.ticks(), [100.0, 1000.0, 10_000.0]);
        assert_eq!(Scale::Log { low: 90.0, high: 600.0 }.ticks(), [100.0, 200.0, 500.0]);
        for high in [1e-9, 0.3, 1.0, 7.0, 123_456_789.0] {
            assert!((3..=6).contains(&Scale::from_zero(high).ticks().len()), "{high}");
        }
    }
}
