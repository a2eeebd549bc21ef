//! Formats figures with their units as the page shows them: three digits, with the unit beside
//! them.

use pregrant_cli::table::figure;

/// Formats a number with a decimal prefix: `47.0 M`, `102 k`, `0.250`.
pub fn si(value: f64) -> String {
    match value.abs() {
        v if v >= 999.5e6 => format!("{} G", figure(value / 1e9)),
        v if v >= 999.5e3 => format!("{} M", figure(value / 1e6)),
        v if v >= 999.5 => format!("{} k", figure(value / 1e3)),
        0.0 => "0".into(),
        _ => figure(value),
    }
}

/// Formats the label of a tick on an axis: as [`si`] does, without insignificant digits.
pub fn tick(value: f64) -> String {
    let text = si(value);
    let (number, unit) = text.split_once(' ').map_or((&*text, ""), |(n, u)| (n, u));
    let short =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    if unit.is_empty() { short.into() } else { format!("{short} {unit}") }
}

/// Formats a time: `711 ns`, `22.1 µs`, `4.20 ms`, `1.25 s`.
pub fn duration(ns: f64) -> String {
    match ns.abs() {
        v if v >= 999.5e6 => format!("{} s", figure(ns / 1e9)),
        v if v >= 999.5e3 => format!("{} ms", figure(ns / 1e6)),
        v if v >= 999.5 => format!("{} µs", figure(ns / 1e3)),
        _ => format!("{ns:.0} ns"),
    }
}

/// Formats the label of a tick on an axis of times.
pub fn duration_tick(ns: f64) -> String {
    let text = duration(ns);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

pub fn gbit(bits_per_s: f64) -> String {
    format!("{} Gbit/s", figure(bits_per_s / 1e9))
}

/// Formats a count for each frame; exactly 0 is shown as `0`.
pub fn per_frame(count: u64, frames: u64) -> String {
    if count == 0 { "0".into() } else { small(count as f64 / frames.max(1) as f64) }
}

/// Formats a number that may be much below 1, without rounding it to 0.
pub fn small(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v.abs() < 0.0005 => "<0.001".into(),
        v => figure(v),
    }
}

/// Formats a number of things: `1 queue`, `2 queues`.
pub fn some(n: impl Into<u64>, what: &str) -> String {
    match n.into() {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// Returns each value once, in the order of first occurrence.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    values.into_iter().fold(Vec::new(), |mut all, value| {
        if !all.contains(&value) {
            all.push(value);
        }
        all
    })
}

/// Formats a count with separated thousands.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_follow_the_size() {
        let rates: Vec<_> = [0.0, 0.25, 102_400.0, 999_700.0, 47_040_000.0, 2.5e9].map(si).into();
        assert_eq!(rates, ["0", "0.250", "102 k", "1.00 M", "47.0 M", "2.50 G"]);
        let ticks: Vec<_> = [0.0, 20e6, 1.5e6, 500e3, 0.05].map(tick).into();
        assert_eq!(ticks, ["0", "20 M", "1.5 M", "500 k", "0.05"]);
        let times: Vec<_> = [711.0, 22_100.0, 4.2e6, 1.25e9].map(duration).into();
        assert_eq!(times, ["711 ns", "22.1 µs", "4.20 ms", "1.25 s"]);
        assert_eq!(duration_tick(10_000.0), "10 µs");
        assert_eq!((count(999), count(1_234_567)), ("999".into(), "1\u{202f}234\u{202f}567".into()));
    }

    #[test]
    fn little_is_not_nothing() {
        assert_eq!(
            (per_frame(0, 10), per_frame(1, 100_000), per_frame(16, 1)),
            ("0".into(), "<0.001".into(), "16.0".into())
        );
        assert_eq!(per_frame(3, 0), "3.00");
    }
}
