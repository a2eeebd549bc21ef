//! A picture for a README: some of the page's bars as one SVG that stands alone, in light and dark.

use super::digest::Digest;
use super::rates;
use super::style;
use maud::{Markup, PreEscaped, html};

const WIDTH: f64 = 720.0;
const MARGIN: f64 = 20.0;
const HEADING: f64 = 24.0;
const GAP: f64 = 14.0;

/// The shortest frames and full Ethernet frames where they were measured, from the guest if that was; None without rates.
pub fn picture(d: &Digest) -> Option<String> {
    let dir = if d.net.iter().any(|row| row.first().dir == "tx") { "tx" } else { "rx" };
    let sizes = d.net.iter().map(|row| row.first()).filter(|r| r.dir == dir).map(|r| r.size_bytes);
    let shortest = sizes.clone().min()?;
    let mut shown = vec![shortest];
    shown.extend(sizes.filter(|s| (1496..=1518).contains(s) && *s != shortest).max());
    let mut y = MARGIN;
    let mut placed: Vec<(f64, String, Markup)> = Vec::new();
    for size in shown {
        let panel = rates::panel(d, dir, size)?;
        placed.push((y, panel.title.clone(), panel.draw()));
        y += HEADING + f64::from(panel.height()) + GAP;
    }
    let image = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(WIDTH) height=(y) {
            style { (PreEscaped(style::SHEET)) }
            rect.page width="100%" height="100%" rx="8" {}
            @for (y, title, panel) in placed {
                text.name x=(MARGIN) y=(y + 12.0) { (title) }
                svg x=(MARGIN) y=(y + HEADING) width=(WIDTH - 2.0 * MARGIN) { (panel) }
            }
        }
    };
    Some(image.into_string())
}
