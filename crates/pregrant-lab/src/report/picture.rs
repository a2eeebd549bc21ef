//! Draws pictures for a README: some of the page's plots, each as an SVG of its own, in light and
//! dark colours.
//!
//! Each picture has its own background, so that it can be read on a page of any colour.

use super::digest::Digest;
use super::quantity::{duration, duration_tick};
use super::story::direction;
use super::{rates, style, timeline};
use crate::record::Pause;
use maud::{Markup, PreEscaped, html};

const WIDTH: f64 = 720.0;
const MARGIN: f64 = 20.0;
const HEADING: f64 = 24.0;
const GAP: f64 = 14.0;
/// The height of a line of small text.
const LINE: f64 = 18.0;
/// The space to the left of a timeline, for the figures of its axis.
const AXIS: f64 = 46.0;
/// The time that a picture shows before a backend's death; the next constant is the time after it.
/// If the silence is longer, the picture shows more.
const BEFORE_NS: u64 = 20_000_000;
const AFTER_NS: u64 = 40_000_000;

/// Draws the shortest frames and full Ethernet frames, if they were measured, in the direction from
/// the guest if possible; None if there are no rates.
pub fn rates(d: &Digest) -> Option<String> {
    let dir = if d.net.iter().any(|row| row.first().dir == "tx") { "tx" } else { "rx" };
    let sizes = d.net.iter().map(|row| row.first()).filter(|r| r.dir == dir).map(|r| r.size_bytes);
    let shortest = sizes.clone().min()?;
    let mut shown = vec![shortest];
    shown.extend(sizes.filter(|s| (1496..=1518).contains(s) && *s != shortest).max());
    let mut y = MARGIN;
    let mut placed: Vec<(f64, String, Markup)> = Vec::new();
    let mut published = false;
    for size in shown {
        let panel = rates::panel(d, dir, size)?;
        let title = format!("Frames of {size} bytes a second, {}", direction(dir));
        published |= panel.bars.iter().any(|bar| bar.published.is_some());
        placed.push((y, title, panel.draw()));
        y += HEADING + f64::from(panel.height()) + GAP;
    }
    let inner = html! {
        @for (y, title, panel) in placed {
            text.name x=(MARGIN) y=(y + 12.0) { (title) }
            svg x=(MARGIN) y=(y + HEADING) width=(WIDTH - 2.0 * MARGIN) { (panel) }
        }
        @if published {
            text.source x=(MARGIN) y=(y + 4.0) { "Bars: measured on the loopback. Diamonds: published, on real Xen and other machines." }
        }
    };
    Some(image(y + if published { LINE } else { 0.0 }, &inner))
}

/// Draws the restart with the median pause; None if no restart was recorded over time.
pub fn restart(d: &Digest) -> Option<String> {
    let mut pauses: Vec<&Pause> = d.restarts.iter().filter_map(|r| r.pause()).collect();
    pauses.sort_by_key(|p| p.silence_ns);
    let pause = pauses.get(pauses.len() / 2)?;
    let after_ns = AFTER_NS.max(pause.silence_ns.saturating_mul(2));
    let title = "A backend is killed in the middle of a TCP transfer between two guests";
    let plot = timeline::plot(
        "restart",
        title,
        &timeline::in_words(pause),
        &timeline::near(pause, BEFORE_NS, after_ns),
    )?;
    let top = MARGIN + HEADING + LINE;
    let below = top + timeline::HEIGHT + GAP;
    let [start, attach] = [pause.start_ns, pause.attach_ns].map(|ns| duration(ns as f64));
    let inner = html! {
        text.name x=(MARGIN) y=(MARGIN + 12.0) { (title) }
        text.source x=(MARGIN) y=(MARGIN + HEADING + 8.0) { "Frames a second that reach the guests, in steps of " (duration_tick(pause.bucket_ns as f64)) "; on the loopback" }
        svg x=(MARGIN + AXIS) y=(top) width=(WIDTH - 2.0 * MARGIN - AXIS) { (plot) }
        rect.silence x=(MARGIN) y=(below - 11.0) width="14" height="14" {}
        text.source x=(MARGIN + 22.0) y=(below) { "nothing reaches a guest; startup of the new process took " (start) }
        rect.attach x=(MARGIN) y=(below + LINE - 11.0) width="14" height="14" {}
        text.source x=(MARGIN + 22.0) y=(below + LINE) { "the new process attaches and takes up the live rings: " (attach) }
        text.source x=(MARGIN) y=(below + 2.0 * LINE + 4.0) { (outcome(pause)) }
    };
    Some(image(below + 2.0 * LINE + MARGIN, &inner))
}

fn outcome(pause: &Pause) -> String {
    let lost = match pause.lost {
        0 => "No frame was lost".into(),
        1 => "1 frame was lost, and TCP sent it again".to_string(),
        n => format!("{n} frames were lost, and TCP sent them again"),
    };
    format!("{lost}. The guests keep their rings and their TCP connection; all bytes arrive.")
}

fn image(height: f64, inner: &Markup) -> String {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(WIDTH) height=(height) {
            style { (PreEscaped(style::SHEET)) }
            rect.page width="100%" height="100%" rx="8" {}
            (inner)
        }
    }
    .into_string()
}
