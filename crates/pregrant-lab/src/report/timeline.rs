//! A backend's death as a timeline: frames before the kill, the silence, the frames of its
//! successor.

use super::plot::drawing;
use super::quantity::{duration, si, some, tick};
use super::scale::{Percent, Scale};
use crate::record::Pause;
use maud::{Markup, html};

/// Largest number of bars; if there are more buckets, neighbours are drawn as one bar.
const BARS: usize = 300;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 230.0;
pub const HEIGHT: f64 = 268.0;

/// Draws the timeline with room for its axis; None if no frames were recorded over time.
pub fn draw(id: &str, title: &str, about: &str, pause: &Pause) -> Option<Markup> {
    plot(id, title, about, pause).map(|plot| html! { div.left { (plot) } })
}

/// Returns the part of the pause's frames from `before_ns` before the kill to `after_ns` after it.
pub fn near(pause: &Pause, before_ns: u64, after_ns: u64) -> Pause {
    let buckets = |ns: u64| (ns / pause.bucket_ns.max(1)) as usize;
    let begin = pause.kill_bucket.saturating_sub(buckets(before_ns)).min(pause.frames.len());
    let end = pause.kill_bucket.saturating_add(buckets(after_ns)).clamp(begin, pause.frames.len());
    Pause {
        kill_bucket: pause.kill_bucket - begin,
        frames: pause.frames[begin..end].to_vec(),
        ..pause.clone()
    }
}

/// Draws the timeline itself. The labels of its axis are to the left of it.
pub fn plot(id: &str, title: &str, about: &str, pause: &Pause) -> Option<Markup> {
    let width = pause.bucket_ns as f64;
    if pause.frames.is_empty() || width <= 0.0 {
        return None;
    }
    let killed = pause.kill_bucket as f64 * width;
    let ms = |ns: f64| (ns - killed) / 1e6;
    let x = Scale::Linear { low: ms(0.0), high: ms(pause.frames.len() as f64 * width) };
    let together = pause.frames.len().div_ceil(BARS);
    let groups: Vec<f64> = pause
        .frames
        .chunks(together)
        .map(|g| g.iter().sum::<u64>() as f64 / (g.len() as f64 * width) * 1e9)
        .collect();
    let y = Scale::from_zero(groups.iter().copied().fold(0.0, f64::max) * 1.05);
    let up = |rate: f64| (BOTTOM - TOP) * y.at(rate).0 / 100.0;
    let step = 100.0 * together as f64 / pause.frames.len() as f64;
    let [kill, attach, serves, again] =
        [0, pause.start_ns, pause.start_ns.saturating_add(pause.attach_ns), pause.silence_ns]
            .map(|ns| x.at(ns as f64 / 1e6));
    let inner = html! {
        rect.silence x=(kill) width=(Percent(again.0 - kill.0)) y=(TOP) height=(BOTTOM - TOP) {}
        rect.attach x=(attach) width=(Percent(serves.0 - attach.0)) y=(TOP) height=(BOTTOM - TOP) {}
        @for value in y.ticks() {
            @let at = format!("{:.1}", BOTTOM - up(value));
            line.grid x1="0" x2="100%" y1=(at) y2=(at) {}
            text.tick x="-6" y=(format!("{:.1}", BOTTOM - up(value) + 4.0)) text-anchor="end" { (tick(value)) }
        }
        @for (i, rate) in groups.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
            rect.moved x=(Percent(i as f64 * step)) width=(Percent(step.min(100.0 - i as f64 * step))) y=(format!("{:.1}", BOTTOM - up(*rate))) height=(format!("{:.1}", up(*rate))) {}
        }
        @for value in x.ticks() {
            @let at = x.at(value);
            line.axis x1=(at) x2=(at) y1=(BOTTOM) y2=(BOTTOM + 4.0) {}
            text.tick x=(at) y=(BOTTOM + 17.0) text-anchor=(at.anchor([3.0, 96.0])) { (tick(value)) }
        }
        line.axis x1="0" x2="100%" y1=(BOTTOM) y2=(BOTTOM) {}
        text.tick x="100%" y=(BOTTOM + 33.0) text-anchor="end" { "ms after the kill" }
        line.kill x1=(kill) x2=(kill) y1=(TOP - 14.0) y2=(BOTTOM) {}
        line.again x1=(again) x2=(again) y1=(TOP) y2=(BOTTOM) {}
        (labels(kill, pause))
    };
    Some(drawing(id, title, about, HEIGHT as u32, inner))
}

/// Puts the label beside the line of the kill, on the side that has room.
fn labels(kill: Percent, pause: &Pause) -> Markup {
    let (anchor, shift) = if kill.0 > 55.0 { ("end", "-6") } else { ("start", "6") };
    html! {
        text.name x=(kill) dx=(shift) y="12" text-anchor=(anchor) { "killed with SIGKILL" }
        text.figure x=(kill) dx=(shift) y="30" text-anchor=(anchor) {
            "no frame for " (duration(pause.silence_ns as f64))
            @if pause.longest_gap_ns > pause.silence_ns { "; at one guest for " (duration(pause.longest_gap_ns as f64)) }
        }
    }
}

pub fn in_words(pause: &Pause) -> String {
    let [silence, start, attach] =
        [pause.silence_ns, pause.start_ns, pause.attach_ns].map(|ns| duration(ns as f64));
    let mut text = format!(
        "The first frame came to a guest {silence} after the kill. Of this, {start} passed until the new process began to \
         attach; {attach} later the first frame was at its ports."
    );
    if pause.longest_gap_ns > 0 {
        text += &format!(
            " The longest time without a frame at one guest: {}.",
            duration(pause.longest_gap_ns as f64)
        );
    }
    if pause.bytes_before > 0 {
        text += &format!(" The kill fell after {} bytes of the transfer.", si(pause.bytes_before as f64));
    }
    let (twice, lost) = (frames(pause.duplicated), frames(pause.lost));
    text + &format!(
        " Reached the port twice: {twice} (at most 64 may, for each kill). Lost with the old process: {lost}."
    )
}

fn frames(n: u64) -> String {
    if n == 0 { "no frame".into() } else { some(n, "frame") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silence_is_where_it_was() {
        let frames = vec![100, 100, 50, 0, 0, 0, 0, 80, 100, 100];
        let pause = Pause {
            start_ns: 3_000_000,
            attach_ns: 1_000_000,
            silence_ns: 5_000_000,
            longest_gap_ns: 6_000_000,
            bucket_ns: 1_000_000,
            kill_bucket: 2,
            frames,
            ..Pause::default()
        };
        let drawn = draw("t", "", "", &pause).unwrap().into_string();
        // Killed at 2 of 10 ms, attaching from 5 to 6, silent until 7.
        assert!(drawn.contains("class=\"silence\" x=\"20.00%\" width=\"50.00%\""), "{drawn}");
        assert!(drawn.contains("class=\"attach\" x=\"50.00%\" width=\"10.00%\""), "{drawn}");
        assert_eq!(drawn.matches("class=\"moved\"").count(), 6);
        let words = in_words(&pause);
        for part in [
            "to a guest 5.00 ms after",
            "at one guest: 6.00 ms",
            "3.00 ms passed",
            "1.00 ms later",
            "twice: no frame",
        ] {
            assert!(words.contains(part), "{part} is missing in {words}");
        }
    }

    #[test]
    fn what_is_near_the_kill_keeps_its_place() {
        let pause = Pause {
            bucket_ns: 1_000_000,
            kill_bucket: 3,
            frames: vec![1, 2, 3, 0, 0, 4, 5],
            ..Pause::default()
        };
        let shown = |before: u64, after: u64| {
            let near = near(&pause, before * 1_000_000, after * 1_000_000);
            (near.frames, near.kill_bucket)
        };
        assert_eq!(shown(1, 3), (vec![3, 0, 0, 4], 1));
        assert_eq!(shown(90, 90), (pause.frames.clone(), 3));
        let odd = Pause { kill_bucket: usize::MAX, bucket_ns: 0, ..pause.clone() };
        assert_eq!(near(&odd, 1, u64::MAX).frames, [0; 0]);
    }

    #[test]
    fn a_long_recording_has_no_more_bars_than_can_be_seen() {
        let pause = Pause { bucket_ns: 1, frames: vec![1; 100_001], ..Pause::default() };
        let drawn = draw("t", "", "", &pause).unwrap().into_string();
        assert!(drawn.matches("class=\"moved\"").count() <= BARS);
        assert!(draw("t", "", "", &Pause::default()).is_none());
    }
}
