//! Rows of `bench net` that differ in one thing, and what that makes, in words.
//!
//! | rows | differ in |
//! |---|---|
//! | redo | the redo page, that lets rings survive their backend |
//! | heads | where the head of a frame comes from that is longer than its staging buffer |
//! | workers | one worker thread, or several |
//! | by reference | whether the guest copies what it receives |
//!
//! A factor is the median of the repeats' ratios: rows of one repeat had the same machine.

use super::net::{Redo, Row, ratio};
use crate::process::order::RxWay;
use crate::table::figure;

/// Rows that differ in the redo page alone: with it, without it.
fn redo_pairs(rows: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    let kind = |r: &Row| (r.name(), r.dir, r.size, r.rx, r.workers);
    let same = move |a: &Row, b: &Row| kind(a) == kind(b);
    rows.iter().filter(|r| r.redo == Redo::On).filter_map(move |on| {
        rows.iter().find(|off| off.redo == Redo::Off && same(on, off)).map(|off| (on, off))
    })
}

/// Rows that differ in what the guest does with frames alone: by reference, copied.
fn rx_pairs(rows: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    let kind = |r: &Row| (r.name(), r.dir, r.size, r.redo, r.workers);
    let same = move |a: &Row, b: &Row| kind(a) == kind(b);
    rows.iter().filter(|r| r.rx == RxWay::Reference).filter_map(move |lent| {
        rows.iter().find(|copied| copied.rx == RxWay::Copy && same(lent, copied)).map(|copied| (lent, copied))
    })
}

/// Rows that differ in the number of workers alone: several, one.
fn worker_pairs(rows: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    let kind = |r: &Row| (r.name(), r.dir, r.size, r.redo, r.rx);
    rows.iter().filter(|r| r.workers > 1).filter_map(move |several| {
        let one = rows.iter().find(|one| one.workers == 1 && kind(one) == kind(several));
        one.map(|one| (several, one))
    })
}

/// Rows that have heads from staging buffers, and those that go by the path of their rests alone.
fn head_pairs(rows: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    let kind = |r: &Row| (r.dir, r.size, r.redo, r.workers);
    rows.iter().filter(|row| row.has_heads()).filter_map(move |headed| {
        let rest = headed.rest?;
        let whole = rows.iter().find(|r| (r.path, r.rest) == (rest, None) && kind(r) == kind(headed))?;
        Some((headed, whole))
    })
}

/// All of them, a line each.
pub fn in_words(rows: &[Row]) -> String {
    let mut text = String::new();
    for (on, off) in redo_pairs(rows) {
        if let Some(cost) = ratio(on, off) {
            text += &format!(
                "With the redo page, {} {} {} B moves {} ({}..{}) times the frames that it moves without: the median of \
                 the repeats' ratios, not the ratio of the medians above.\n",
                on.name(),
                on.dir.name(),
                on.size,
                figure(cost.median),
                figure(cost.min),
                figure(cost.max)
            );
        }
    }
    for (headed, whole) in head_pairs(rows) {
        if let Some(gain) = ratio(headed, whole) {
            let [by_grant, all] =
                [headed, whole].map(|row| figure(row.per_frame(|r| r.grant_copy_bytes.unwrap_or(0))));
            text += &format!(
                "With heads from staging buffers, {} {} {} B moves {} ({}..{}) times the frames of {}, and {by_grant} bytes \
                 of each by grant copy where that has {all}: the median of the repeats' ratios.\n",
                headed.name(),
                headed.dir.name(),
                headed.size,
                figure(gain.median),
                figure(gain.min),
                figure(gain.max),
                whole.name()
            );
        }
    }
    for row in rows.iter().filter(|row| row.rest.is_some() && !row.has_heads()) {
        text += &format!(
            "{} {} {} B: no frame has a head, each is in its staging buffer as a whole.\n",
            row.name(),
            row.dir.name(),
            row.size
        );
    }
    for (several, one) in worker_pairs(rows) {
        if let Some(gain) = ratio(several, one) {
            text += &format!(
                "With {} workers, {} {} {} B moves {} ({}..{}) times the frames that it moves with one: the median of the \
                 repeats' ratios.\n",
                several.workers,
                several.name(),
                several.dir.name(),
                several.size,
                figure(gain.median),
                figure(gain.min),
                figure(gain.max)
            );
        }
    }
    for (lent, copied) in rx_pairs(rows) {
        if let Some(gain) = ratio(lent, copied) {
            text += &format!(
                "By reference, {} {} {} B moves {} ({}..{}) times the frames that it moves with a copy at the guest: the \
                 median of the repeats' ratios.\n",
                lent.name(),
                lent.dir.name(),
                lent.size,
                figure(gain.median),
                figure(gain.min),
                figure(gain.max)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::order::Dir;
    use crate::record::Record;
    use pregrant::net::path::PathName;

    fn row(rest: Option<PathName>, size: usize, rate: u64) -> Row {
        let path = if rest.is_some() { PathName::Staging } else { PathName::Copy };
        let mut record = Record::new("net", "", "tx", size as u64);
        record.count(rate, 1.0);
        record.grant_copy_bytes = Some(if rest.is_some() && size <= 256 { 0 } else { rate * 4 });
        Row { rest, records: vec![record], ..Row::new(path, Dir::Tx, size, 256) }
    }

    #[test]
    fn heads_gain_nothing_where_no_frame_has_one() {
        let rows = [(64, 17), (256, 9), (260, 2)]
            .map(|(size, times)| [row(Some(PathName::Copy), size, 1000 * times), row(None, size, 1000)]);
        let text = in_words(&rows.concat());
        let with_heads: Vec<&str> = text.lines().filter(|line| line.starts_with("With heads")).collect();
        assert_eq!(with_heads.len(), 1, "{text}");
        assert!(with_heads[0].contains("staging+copy tx 260 B moves 2.00 (2.00..2.00) times"), "{text}");
        for size in [64, 256] {
            let said = format!(
                "staging+copy tx {size} B: no frame has a head, each is in its staging buffer as a whole"
            );
            assert!(text.contains(&said), "{text}");
        }
    }
}
