//! Bars from zero, one below the other: the path's name and its figure above each bar, the range of
//! the repeats as a whisker on it, a published figure as a diamond, line rates as dashed lines
//! through all of them.
//!
//! ```text
//!                    10 G                     40 G
//! copy                ¦        2.45 M/s · 1.25 Gbit/s
//! ██┤                 ¦                         ¦
//! ◇ published 1.51 M/s: staging grants RFC, 2016
//! staging 256         ¦        47.0 M/s · 24.1 Gbit/s
//! ████████████████████████████████████████├┤    ¦
//! 0        10 M      20 M      30 M      40 M
//! ```
//!
//! The axis is linear, so that a bar twice as long is twice as much.

use super::plot::{colour, drawing};
use super::quantity::tick;
use super::scale::Scale;
use crate::record::stats::Summary;
use maud::{Markup, html};

pub struct Bar {
    pub name: String,
    pub figure: String,
    /// The length of the bar, and the range of the repeats.
    pub value: Summary,
    pub series: usize,
    /// A published figure that is drawn beside the bar, and its source.
    pub published: Option<(f64, String)>,
}

impl Bar {
    /// Returns the height of the bar with its texts and the gap to the next bar.
    fn height(&self) -> f64 {
        NAME + BAR + GAP + if self.published.is_some() { PUBLISHED } else { 0.0 }
    }
}

pub struct Panel {
    pub id: String,
    /// The title of the drawing, for screen readers.
    pub title: String,
    /// The figures in words, for screen readers.
    pub about: String,
    pub bars: Vec<Bar>,
    /// Values with a name that are drawn as lines through all bars, if they fit the axis.
    pub lines: Vec<(f64, &'static str)>,
}

/// The largest factor by which a line may stretch the axis and still be shown.
const STRETCH: f64 = 2.0;

const LINE_NAMES: f64 = 22.0;
const NAME: f64 = 19.0;
const BAR: f64 = 14.0;
const PUBLISHED: f64 = 18.0;
const GAP: f64 = 9.0;
const AXIS: f64 = 22.0;
/// The two positions beyond which a text is aligned so that it stays within the drawing.
const ENDS: [f64; 2] = [4.0, 92.0];

impl Panel {
    /// Returns the greatest value that must be on the axis.
    fn longest(&self) -> f64 {
        let values = self.bars.iter().flat_map(|b| [Some(b.value.max), b.published.as_ref().map(|p| p.0)]);
        values.flatten().fold(0.0, f64::max)
    }

    fn shown_lines(&self) -> impl Iterator<Item = &(f64, &'static str)> {
        let limit = self.longest() * STRETCH;
        self.lines.iter().filter(move |(at, _)| *at <= limit)
    }

    pub fn height(&self) -> u32 {
        (LINE_NAMES + self.bars.iter().map(Bar::height).sum::<f64>() + AXIS) as u32
    }

    pub fn draw(&self) -> Markup {
        let end = self.shown_lines().map(|l| l.0).fold(self.longest() * 1.01, f64::max);
        let scale = Scale::from_zero(end);
        let mut y = LINE_NAMES;
        let placed: Vec<(f64, &Bar)> = self
            .bars
            .iter()
            .map(|bar| {
                let top = y;
                y += bar.height();
                (top, bar)
            })
            .collect();
        let bottom = y;
        let inner = html! {
            @for value in scale.ticks() {
                @let x = scale.at(value);
                line.grid x1=(x) x2=(x) y1=(LINE_NAMES) y2=(bottom) {}
                text.tick x=(x) y=(bottom + 15.0) text-anchor=(x.anchor(ENDS)) { (tick(value)) }
            }
            @for (at, name) in self.shown_lines() {
                @let x = scale.at(*at);
                line.rate x1=(x) x2=(x) y1=(LINE_NAMES - 6.0) y2=(bottom) {}
                text.rate x=(x) y="11" text-anchor=(x.anchor(ENDS)) { (name) }
            }
            @for (top, bar) in &placed { (draw_bar(bar, *top, &scale)) }
        };
        drawing(&self.id, &self.title, &self.about, self.height(), inner)
    }
}

fn draw_bar(bar: &Bar, top: f64, scale: &Scale) -> Markup {
    let at = top + NAME;
    let middle = at + BAR / 2.0;
    let [low, high] = [bar.value.min, bar.value.max].map(|v| scale.at(v));
    html! {
        rect class={ "bar " (colour(bar.series)) } x="0" y=(at) width=(scale.at(bar.value.median)) height=(BAR) {}
        line.axis x1="0" x2="0" y1=(at - 3.0) y2=(at + BAR + 3.0) {}
        @if high.0 - low.0 > 0.0 {
            line.halo x1=(low) x2=(high) y1=(middle) y2=(middle) {}
            line.whisker x1=(low) x2=(high) y1=(middle) y2=(middle) {}
            @for x in [low, high] { line.whisker x1=(x) x2=(x) y1=(middle - 4.0) y2=(middle + 4.0) {} }
        }
        text.name x="0" y=(top + 12.0) { (bar.name) }
        text.figure x="100%" dx="-5" y=(top + 12.0) text-anchor="end" { (bar.figure) }
        @if let Some((value, source)) = &bar.published {
            @let below = at + BAR + 14.0;
            svg.published x=(scale.at(*value)) y=(middle) { path d="M0-7L7 0L0 7L-7 0z" {} }
            svg.published x="7" y=(below - 4.0) { path d="M0-5L5 0L0 5L-5 0z" {} }
            text.source x="17" y=(below) { (source) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(value: f64, lines: Vec<(f64, &'static str)>) -> String {
        let value = Summary { median: value, min: value, max: value, is_loaded: false };
        let bar = Bar { name: "a<b".into(), figure: "1".into(), value, series: 0, published: None };
        let panel = Panel { id: "p".into(), title: "t".into(), about: "d".into(), bars: vec![bar], lines };
        panel.draw().into_string()
    }

    #[test]
    fn lines_are_drawn_while_they_leave_the_bars_readable() {
        let text = panel(10.0, vec![(5.0, "near"), (20.0, "still"), (20.5, "far")]);
        assert!(text.contains("near") && text.contains("still") && !text.contains("far"), "{text}");
        // The axis ends at the last line: the bar takes half of it.
        assert!(text.contains("width=\"50.00%\"") && text.contains("a&lt;b"), "{text}");
    }

    #[test]
    fn nothing_measured_is_no_length() {
        assert!(panel(0.0, vec![(5.0, "line")]).contains("width=\"0.00%\""));
    }
}
