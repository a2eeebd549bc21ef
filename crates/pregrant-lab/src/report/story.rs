//! Tells the report in a few sentences and a few large figures, which contain nothing but measured
//! results.

use super::digest::{Digest, Row};
use super::quantity::{duration, gbit, si};
use crate::record::Record;
use crate::record::published::line_rate;
use pregrant_cli::table::figure;

/// A large figure, with a text that says what it means.
#[derive(Debug, PartialEq)]
pub struct Tile {
    /// The figure with its unit.
    pub figure: String,
    pub of: String,
}

/// Returns the direction in the page's words, such as `from the guest`.
pub fn direction(dir: &str) -> &str {
    match dir {
        "tx" => "from the guest",
        "rx" => "to the guest",
        other => other,
    }
}

/// Returns the row that the story is about: one with the shortest frames, from the guest if that
/// was measured; by staging if possible, and otherwise by another path than `copy`.
fn hero<'d, 'a>(d: &'d Digest<'a>) -> Option<&'d Row<'a>> {
    let rank = |row: &Row| {
        let r = row.first();
        let path = match &*r.path {
            "staging" => 0,
            "copy" => 2,
            _ => 1,
        };
        // Rows that stand beside `copy` tell more than ones that stand alone.
        (d.gain(row).is_none(), path, r.size_bytes, r.dir != "tx")
    };
    d.net.iter().min_by_key(|row| rank(row))
}

/// Returns the sentences about the run; empty if there is nothing to tell.
pub fn sentences(d: &Digest) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(row) = hero(d) {
        out.push(moved(d, row));
        out.extend(costs(d, row));
        out.extend(share_of_limit(d, row));
    }
    for record in &d.restarts {
        if let Some(p) = record.pause() {
            out.push(format!(
                "The backend was killed while frames moved; a new one took up its rings, and the guests noticed a pause of {}.",
                duration(p.silence_ns.max(p.longest_gap_ns) as f64)
            ));
        }
    }
    for record in &d.disk_restarts {
        if let (Some(most), 0) = (record.longest(), record.lost) {
            out.push(format!(
                "The backend of a disk was killed with {} requests in flight: none failed, and the longest took {}.",
                record.depth.unwrap_or(1),
                duration(most as f64)
            ));
        }
    }
    if d.net.is_empty() {
        out.extend(waiting(d));
        out.extend(ceiling(d));
    }
    out
}

fn moved(d: &Digest, row: &Row) -> String {
    let r = row.first();
    let mut text = format!(
        "Frames of {} B {}: {} moves {} a second",
        r.size_bytes,
        direction(&r.dir),
        row.name,
        si(row.rate.median)
    );
    match (d.baseline(row), d.gain(row)) {
        (Some(copy), Some(gain)) if copy.name != row.name => {
            text += &format!(", {} times copy ({})", figure(gain), si(copy.rate.median));
        }
        (Some(copy), None) if copy.name != row.name => {
            text += &format!(
                " (copy {}; the machine was loaded, so they are not compared)",
                si(copy.rate.median)
            );
        }
        _ => {}
    }
    text + &format!("; a 40 Gbit/s line carries {}.", si(line_rate(40.0, r.size_bytes)))
}

fn costs(d: &Digest, row: &Row) -> Option<String> {
    let copy = d.baseline(row).filter(|copy| copy.name != row.name)?;
    let ops = |row: &Row| row.shown_each(Record::grant_ops);
    let own = match row.grant_ops() {
        0 => "no grant operation at all".into(),
        _ => format!("{} grant operations a frame", ops(row)),
    };
    Some(format!("It needs {own}, where copy needs {} for each frame.", ops(copy)))
}

fn share_of_limit(d: &Digest, row: &Row) -> Option<String> {
    let lines = d.lines()?;
    let part = row.part_of(lines)?.middle(1.0);
    (row.first().size_bytes == 64).then(|| {
        format!(
            "The two cores can hand each other {} cache lines a second; {} reaches {} of that.",
            si(lines.rate.median),
            row.name,
            part
        )
    })
}

fn waiting(d: &Digest) -> Option<String> {
    let fastest = d.latency.iter().filter(|row| row.first().dir == "tx").min_by(|a, b| {
        let p50 = |row: &Row| row.middle(Record::p50).map_or(f64::INFINITY, |s| s.median);
        p50(a).total_cmp(&p50(b))
    })?;
    let p50 = fastest.middle(Record::p50)?.median;
    let Record { size_bytes, mode, .. } = fastest.first();
    Some(format!(
        "A request of {size_bytes} B reaches the backend\u{2019}s port in {} by {} ({mode} mode, median).",
        duration(p50),
        fastest.name
    ))
}

fn ceiling(d: &Digest) -> Option<String> {
    let lines = d.lines()?;
    let mut text = format!(
        "Two cores of this machine can hand each other {} cache lines a second",
        si(lines.rate.median)
    );
    if let Some(remote) = d.remote() {
        text += &format!(", and a bare process_vm_readv reads {} pieces of 64 B", si(remote.rate.median));
    }
    Some(text + ".")
}

pub fn tiles(d: &Digest) -> Vec<Tile> {
    let mut out = Vec::new();
    let mut tile = |figure: String, of: String| out.push(Tile { figure, of });
    if let Some(row) = hero(d) {
        let r = row.first();
        let what = format!("{} B {}", r.size_bytes, direction(&r.dir));
        tile(format!("{}/s", si(row.rate.median)), format!("frames of {what} by {}", row.name));
        if let (Some(gain), true) = (d.gain(row), r.path != "copy") {
            tile(format!("{} ×", figure(gain)), format!("as many as copy, {what}"));
        }
    }
    if let Some(row) = d.net.iter().max_by(|a, b| a.bits().total_cmp(&b.bits())) {
        let r = row.first();
        tile(gbit(row.bits()), format!("by {}, {} B {}", row.name, r.size_bytes, direction(&r.dir)));
    }
    if let Some(p) = d.restarts.first().and_then(|r| r.pause()) {
        let gap = p.silence_ns.max(p.longest_gap_ns);
        tile(duration(gap as f64), "without frames at a guest when the backend was killed".into());
    }
    let requests = d.latency.iter().filter(|row| row.first().dir == "tx");
    let p50 = |row: &Row| row.middle(Record::p50).map(|s| s.median);
    if let Some(row) = requests
        .filter(|r| p50(r).is_some())
        .min_by(|a, b| p50(a).partial_cmp(&p50(b)).unwrap_or(std::cmp::Ordering::Equal))
    {
        tile(
            duration(p50(row).unwrap_or_default()),
            format!("median request by {}, {} mode", row.name, row.first().mode),
        );
    }
    if let (Some(row), true) = (d.lines(), d.net.is_empty()) {
        tile(format!("{}/s", si(row.rate.median)), "cache lines from core to core".into());
    }
    out.truncate(4);
    out
}

#[cfg(test)]
mod tests {
    use super::super::digest::LINES;
    use super::*;
    use crate::record::{Of, Took};

    fn net(path: &str, size: u64, rate: u64, copies: u64) -> Record {
        let mut r = Record { grant_copies: copies, ..Record::new("net", path, "tx", size) };
        r.count(rate, 1.0);
        r
    }

    #[test]
    fn the_story_is_made_of_the_figures() {
        let records = [
            net("copy", 1500, 2_000_000, 2_000_000),
            net("copy", 64, 2_500_000, 2_500_000),
            net("staging", 64, 50_000_000, 0),
        ];
        let text = sentences(&Digest::of(&records)).join(" ");
        for part in [
            "Frames of 64 B from the guest: staging moves 50.0 M a second, 20.0 times copy (2.50 M)",
            "carries 59.5 M",
            "no grant operation at all, where copy needs 1.00",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        let figures: Vec<_> = tiles(&Digest::of(&records)).into_iter().map(|t| t.figure).collect();
        assert_eq!(figures, ["50.0 M/s", "20.0 ×", "25.6 Gbit/s"]);
    }

    #[test]
    fn a_path_alone_is_compared_with_nothing() {
        let text = sentences(&Digest::of(&[net("copy", 64, 2_500_000, 0)])).join(" ");
        assert!(text.contains("copy moves 2.50 M") && !text.contains("times"), "{text}");
        assert_eq!(sentences(&Digest::of(&[])), [""; 0]);
        assert_eq!(tiles(&Digest::of(&[])), []);
    }

    #[test]
    fn latencies_and_ceilings_have_a_story_of_their_own() {
        let took = Some(Took { latency_p50_ns: 280, ..Took::default() });
        let latency = Record { took, ..Record::new("latency", "staging", "tx", 64) };
        let mut lines = Record { of: Of::Limit(LINES), ..Record::new("limit", "lines", "tx", 64) };
        lines.count(152_000_000, 1.0);
        let text = sentences(&Digest::of(&[latency, lines])).join(" ");
        assert!(
            text.contains("280 ns by staging (poll mode, median)") && text.contains("152 M cache lines"),
            "{text}"
        );
    }
}
