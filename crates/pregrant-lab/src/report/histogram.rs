//! Draws latencies: one strip for each path, all on one logarithmic axis of time. A strip is a
//! histogram if the records have one, and otherwise the span from the median to the 99th
//! percentile.

use super::plot::{colour, drawing};
use super::quantity::{duration, duration_tick};
use super::scale::{Percent, Scale};
use maud::{Markup, html};

/// The latencies of one path, as a strip of the drawing.
pub struct Strip {
    pub name: String,
    pub series: usize,
    /// The median in ns.
    pub p50: f64,
    /// The 99th percentile in ns.
    pub p99: f64,
    /// For each bucket of the histogram, its upper bound in ns and its number of frames, by rising
    /// bounds. The list is empty if no histogram was recorded.
    pub buckets: Vec<(u64, u64)>,
}

impl Strip {
    /// Returns the number of frames of the histogram.
    fn frames(&self) -> u64 {
        self.buckets.iter().map(|b| b.1).fold(0, u64::saturating_add)
    }

    /// Returns the latency below which this share of the frames is.
    fn below(&self, share: f64) -> Option<f64> {
        let wanted = share * self.frames() as f64;
        let mut seen = 0.0;
        let found = self.buckets.iter().find(|(_, n)| {
            seen += *n as f64;
            *n > 0 && seen >= wanted
        });
        found.map(|(bound, _)| *bound as f64)
    }

    /// Returns the range of latencies from the first thousandth to the last one. Latencies outside
    /// of it are given in words, since they would squeeze the others.
    fn span(&self) -> [f64; 2] {
        let (low, high) = (self.below(0.001), self.below(0.999));
        [low.unwrap_or(self.p50).min(self.p50), high.unwrap_or(self.p99).max(self.p99)]
    }

    /// Returns the number of frames in each of [`BINS`] equal parts of the axis, and beyond it. The
    /// frames of a bucket are spread over its width, but at most over [`WIDEST`] of its bound, so
    /// that coarse steps of a clock are not drawn as gaps.
    fn bins(&self, scale: &Scale) -> ([f64; BINS], u64) {
        let mut bins = [0.0; BINS];
        let mut beyond = 0;
        let mut last = 0.0;
        for (bound, n) in self.buckets.iter().map(|(bound, n)| (*bound as f64, *n)) {
            if !scale.holds(bound) {
                beyond += n;
                continue;
            }
            let place = |v: f64| scale.at(v).0 / 100.0 * BINS as f64;
            let (from, to) = (place(f64::max(last, bound * (1.0 - WIDEST))), place(bound));
            last = bound;
            let first = (from as usize).min(BINS - 1);
            for (i, bin) in
                bins.iter_mut().enumerate().skip(first).take_while(|(i, _)| *i == first || (*i as f64) < to)
            {
                let part = to.min(i as f64 + 1.0) - from.max(i as f64);
                *bin += n as f64 * if to > from { part / (to - from) } else { 1.0 };
            }
        }
        (bins, beyond)
    }
}

const BINS: usize = 90;
const WIDEST: f64 = 0.05;
const NAME: f64 = 18.0;
const STRIP: f64 = 46.0;
const GAP: f64 = 14.0;
const AXIS: f64 = 22.0;

/// Draws the latencies of some paths in one direction and mode.
pub fn draw(id: &str, title: &str, about: &str, strips: &[Strip]) -> Option<Markup> {
    let scale = Scale::log_over(strips.iter().flat_map(Strip::span), 1.15)?;
    let bottom = strips.len() as f64 * (NAME + STRIP + GAP);
    let inner = html! {
        @for value in scale.ticks() {
            @let x = scale.at(value);
            line.grid x1=(x) x2=(x) y1="0" y2=(bottom) {}
            text.tick x=(x) y=(bottom + 16.0) text-anchor=(x.anchor([5.0, 93.0])) { (duration_tick(value)) }
        }
        @for (i, strip) in strips.iter().enumerate() {
            (draw_strip(strip, i as f64 * (NAME + STRIP + GAP), &scale))
        }
    };
    Some(drawing(id, title, about, (bottom + AXIS) as u32, inner))
}

fn draw_strip(strip: &Strip, top: f64, scale: &Scale) -> Markup {
    let base = top + NAME + STRIP;
    let (bins, beyond) = strip.bins(scale);
    let most = bins.iter().copied().fold(1.0, f64::max);
    let [p50, p99] = [strip.p50, strip.p99].map(|v| scale.at(v));
    let figures = format!("median {}, 99 % {}", duration(strip.p50), duration(strip.p99));
    html! {
        @if strip.buckets.is_empty() {
            line class={ "span " (colour(strip.series)) } x1=(p50) x2=(p99) y1=(base - STRIP / 2.0) y2=(base - STRIP / 2.0) {}
        } @else {
            @for (i, n) in bins.iter().enumerate().filter(|(_, n)| **n > 0.0) {
                @let height = (n / most * (STRIP - 4.0)).max(1.0);
                rect class={ "bin " (colour(strip.series)) } x=(Percent(i as f64 * 100.0 / BINS as f64)) width=(Percent(100.0 / BINS as f64)) y=(format!("{:.1}", base - height)) height=(format!("{height:.1}")) {}
            }
            @if beyond > 0 { text.tick x="100%" y=(base - 6.0) text-anchor="end" { (beyond) " slower" } }
        }
        line.axis x1="0" x2="100%" y1=(base) y2=(base) {}
        line.median x1=(p50) x2=(p50) y1=(base - STRIP) y2=(base) {}
        line.last x1=(p99) x2=(p99) y1=(base - STRIP) y2=(base) {}
        text.name x="0" y=(top + 12.0) { (strip.name) }
        text.figure x="100%" y=(top + 12.0) text-anchor="end" { (figures) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(buckets: Vec<(u64, u64)>) -> Strip {
        Strip { name: "copy".into(), series: 0, p50: 200.0, p99: 900.0, buckets }
    }

    #[test]
    fn every_frame_is_in_a_bin_or_named() {
        let s = strip(vec![(100, 1), (200, 5000), (900, 4000), (1_000_000, 2)]);
        assert_eq!((s.frames(), s.below(0.5), s.below(0.999)), (9003, Some(200.0), Some(900.0)));
        let scale = Scale::log_over(s.span(), 1.15).unwrap();
        let (bins, beyond) = s.bins(&scale);
        let shown: f64 = bins.iter().sum();
        assert_eq!((shown.round(), beyond), (9001.0, 2));
        assert!(draw("h", "", "", &[s]).unwrap().into_string().contains("2 slower"));
    }

    #[test]
    fn without_a_histogram_the_percentiles_are_drawn() {
        let drawn = draw("h", "", "", &[strip(vec![])]).unwrap().into_string();
        assert!(drawn.contains("class=\"span s0\"") && !drawn.contains("class=\"bin"), "{drawn}");
        assert!(drawn.contains("median 200 ns, 99 % 900 ns"));
        assert!(draw("h", "", "", &[]).is_none());
    }
}
