//! Draws frames per second over the size of a frame on two logarithmic axes: all paths and the line
//! rates in one picture.

use super::plot::{colour, drawing, mark};
use super::quantity::tick;
use super::scale::Scale;
use crate::record::published::line_rate;
use maud::{Markup, html};
use std::collections::BTreeSet;

/// The points of a series: size in bytes and frames per second, by rising sizes.
pub struct Curve {
    pub series: usize,
    pub points: Vec<(u64, f64)>,
    pub published: Vec<(u64, f64)>,
}

/// The rates of Ethernet lines in Gbit/s, with their names.
pub const LINES: [(f64, &str); 3] =
    [(10.0, "10 Gbit/s line"), (40.0, "40 Gbit/s line"), (100.0, "100 Gbit/s line")];

const HEIGHT: f64 = 300.0;
const BOTTOM: f64 = HEIGHT - 36.0;
/// The smallest distance of two ticks in percent; nearer ones would overlap.
const APART: f64 = 9.0;

/// Draws the curves; None if all frames have one size.
pub fn draw(id: &str, title: &str, about: &str, curves: &[Curve]) -> Option<Markup> {
    let all = || curves.iter().flat_map(|c| c.points.iter().chain(&c.published).copied());
    let points = curves.iter().flat_map(|c| &c.points);
    let sizes: BTreeSet<u64> = points.map(|p| p.0).filter(|s| *s > 0).collect();
    let sizes: Vec<u64> = sizes.into_iter().collect();
    let (&first, &last) = (sizes.first()?, sizes.last()?);
    let x = Scale::log_over([first as f64, last as f64], 1.12)?;
    let rates = all().map(|p| p.1).chain(LINES.map(|(gbit, _)| line_rate(gbit, first)));
    let y = Scale::log_over(rates.chain(LINES.map(|(gbit, _)| line_rate(gbit, last))), 1.4)?;
    let down = |rate: f64| BOTTOM - (BOTTOM - 8.0) * y.at(rate).0 / 100.0;
    // Where nothing was measured there is room for the lines' names: the widest gap between two
    // sizes.
    let gap = sizes.windows(2).max_by(|a, b| {
        let width = |w: &[u64]| w[1] as f64 / w[0] as f64;
        width(a).total_cmp(&width(b))
    })?;
    let beside = (gap[0] as f64 * gap[1] as f64).sqrt();
    let steps: Vec<f64> =
        (0..=12).map(|i| first as f64 * (last as f64 / first as f64).powf(f64::from(i) / 12.0)).collect();
    let mut shown = f64::NEG_INFINITY;
    let ticks: Vec<(u64, bool)> = sizes
        .iter()
        .map(|&size| {
            let at = x.at(size as f64).0;
            let named = at - shown >= APART;
            if named {
                shown = at;
            }
            (size, named)
        })
        .collect();
    let inner = html! {
        @for value in y.ticks() {
            line.grid x1="0" x2="100%" y1=(px(down(value))) y2=(px(down(value))) {}
            text.tick x="-6" y=(px(down(value) + 4.0)) text-anchor="end" { (tick(value)) }
        }
        @for (size, named) in &ticks {
            @let at = x.at(*size as f64);
            @if *named {
                line.grid x1=(at) x2=(at) y1="8" y2=(BOTTOM) {}
                text.tick x=(at) y=(BOTTOM + 16.0) text-anchor="middle" { (size) } }
        }
        line.axis x1="0" x2="100%" y1=(BOTTOM) y2=(BOTTOM) {}
        text.tick x="100%" y=(BOTTOM + 32.0) text-anchor="end" { "bytes of a frame" }
        @for (gbit, _) in LINES {
            @for pair in steps.windows(2) {
                line.rate x1=(x.at(pair[0])) x2=(x.at(pair[1])) y1=(px(down(line_at(gbit, pair[0])))) y2=(px(down(line_at(gbit, pair[1])))) {}
            }
        }
        @for curve in curves {
            @for pair in curve.points.windows(2) {
                line class={ "series " (colour(curve.series)) } x1=(x.at(pair[0].0 as f64)) x2=(x.at(pair[1].0 as f64)) y1=(px(down(pair[0].1))) y2=(px(down(pair[1].1))) {}
            }
        }
        @for (gbit, name) in LINES {
            text.rate x=(x.at(beside)) y=(px(down(line_at(gbit, beside)) + 4.0)) text-anchor="middle" { (name) }
        }
        @for curve in curves {
            @for (size, rate) in &curve.published {
                svg class={ "published " (colour(curve.series)) } x=(x.at(*size as f64)) y=(px(down(*rate))) { path d="M0-7L7 0L0 7L-7 0z" {} }
            }
        }
        @for curve in curves {
            @for (size, rate) in &curve.points { (mark(curve.series, x.at(*size as f64), down(*rate))) }
        }
    };
    Some(html! { div.left { (drawing(id, title, about, HEIGHT as u32, inner)) } })
}

fn line_at(gbit: f64, size: f64) -> f64 {
    line_rate(gbit, size as u64)
}

fn px(y: f64) -> String {
    format!("{y:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_size_is_no_curve() {
        let curve = |points| [Curve { series: 0, points, published: vec![] }];
        assert!(draw("a", "", "", &curve(vec![(64, 1e6)])).is_none());
        assert!(draw("a", "", "", &[]).is_none());
        let drawn = draw("a", "", "", &curve(vec![(64, 1e6), (1500, 2e5)])).unwrap().into_string();
        assert_eq!(drawn.matches("class=\"mark").count(), 2);
        assert!(LINES.iter().all(|(_, name)| drawn.contains(name)));
    }

    #[test]
    fn names_of_near_sizes_do_not_overlap() {
        let points = vec![(64, 4e6), (256, 3e6), (260, 2e6), (65535, 1e5)];
        let drawn =
            draw("a", "", "", &[Curve { series: 0, points, published: vec![] }]).unwrap().into_string();
        assert!(drawn.contains(">256<") && !drawn.contains(">260<") && drawn.contains(">65535<"));
    }
}
