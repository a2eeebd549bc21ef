//! Rows of `bench net` that differ in one thing, and what that makes, in words.
//!
//! | rows | differ in |
//! |---|---|
//! | redo | the redo page, that lets rings survive their backend |
//! | heads | where the head of a frame comes from that is longer than its staging buffer |
//! | workers | one worker thread, or several |
//! | buffers | one for each slot, or more, which rest before they are written again |
//! | by reference | whether the guest copies what it receives |
//! | own pages | whether it copies what it sends |
//!
//! A factor is the median of the repeats' ratios: rows of one repeat had the same machine.

use super::net::Row;
use pregrant_cli::table::figure;
use pregrant_testbed::process::process_command::{Case, Dir, RING_SLOTS, RxWay, TxWay};

/// The settings that identify a row.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    name: &'static str,
    dir: Dir,
    size: usize,
    redo: bool,
    rx: RxWay,
    tx: TxWay,
    workers: usize,
    burst: usize,
    buffers: u32,
}

impl Kind {
    fn of(row: &Row) -> Self {
        let Case { dir, size, redo, rx, burst, staging_buffers: buffers, .. } = row.case;
        let (tx, workers) = (row.tx_way(), row.workers);
        Self { name: row.name(), dir, size, redo, rx, tx, workers, burst, buffers }
    }
}

/// Returns each row with the row that it is compared with, if there is one.
fn paired(
    rows: &[Row],
    counterpart: impl Fn(&Row, Kind) -> Option<Kind>,
) -> impl Iterator<Item = (&Row, &Row)> {
    rows.iter().filter_map(move |row| {
        let wanted = counterpart(row, Kind::of(row))?;
        rows.iter().find(|other| Kind::of(other) == wanted).map(|other| (row, other))
    })
}

/// Formats all rows as text, with one line each.
pub fn in_words(rows: &[Row]) -> String {
    let mut text = String::new();
    let differ = rows.iter().any(|row| row.burst != rows[0].burst);
    let bursts = |row: &Row| if differ { format!(" in bursts of {}", row.burst) } else { String::new() };
    let line = |row: &Row, other: &Row, with: &str, than: &str| {
        let factor = row.records.ratio(&other.records);
        factor.map_or(String::new(), |factor| {
            format!(
                "{with}, {} {} {} B{} moves {factor} times the frames {than}.\n",
                row.name(),
                row.dir,
                row.size,
                bursts(row)
            )
        })
    };
    let redo = |_: &Row, kind: Kind| kind.redo.then_some(Kind { redo: false, ..kind });
    for (on, off) in paired(rows, redo) {
        let than =
            "that it moves without: the median of the repeats' ratios, not the ratio of the medians above";
        text += &line(on, off, "With the redo page", than);
    }
    let heads = |row: &Row, kind: Kind| {
        row.rest().filter(|_| row.has_heads()).map(|rest| Kind { name: rest.name(), buffers: 0, ..kind })
    };
    for (headed, whole) in paired(rows, heads) {
        let bytes = |row: &Row| figure(row.records.each(|r| r.grant_copy_bytes()));
        let than = format!(
            "of {}, and {} bytes of each by grant copy where that has {}: the median of the repeats' ratios",
            whole.name(),
            bytes(headed),
            bytes(whole)
        );
        text += &line(headed, whole, "With heads from staging buffers", &than);
    }
    for row in rows.iter().filter(|row| row.heads && !row.has_heads()) {
        let (name, dir, size) = (row.name(), row.dir, row.size);
        text += &format!(
            "{name} {dir} {size} B: no frame has a head, each is in its staging buffer as a whole.\n"
        );
    }
    let workers = |_: &Row, kind: Kind| (kind.workers > 1).then_some(Kind { workers: 1, ..kind });
    for (several, one) in paired(rows, workers) {
        let than = "that it moves with one: the median of the repeats' ratios";
        text += &line(several, one, &format!("With {} workers", several.workers), than);
    }
    let more =
        |_: &Row, kind: Kind| (kind.buffers > RING_SLOTS).then_some(Kind { buffers: RING_SLOTS, ..kind });
    for (many, few) in paired(rows, more) {
        let than = "that it moves with one for each slot: the median of the repeats' ratios";
        text += &line(many, few, &format!("With {} buffers", many.case.staging_buffers), than);
    }
    let rx = |_: &Row, kind: Kind| (kind.rx == RxWay::Reference).then_some(Kind { rx: RxWay::Copy, ..kind });
    for (lent, copied) in paired(rows, rx) {
        let than = "that it moves with a copy at the guest: the median of the repeats' ratios";
        text += &line(lent, copied, "By reference", than);
    }
    let own = |_: &Row, kind: Kind| (kind.tx == TxWay::Own).then_some(Kind { tx: TxWay::Copy, ..kind });
    for (own, copied) in paired(rows, own) {
        let than = "that it moves by the static pool: the median of the repeats' ratios";
        text += &line(own, copied, "From its own pages", than);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::repeats::Repeats;
    use crate::record::{Net, Of, Record};
    use pregrant::net::path::PathName;

    fn row(rest: Option<PathName>, size: usize, rate: u64) -> Row {
        let path = if rest.is_some() { PathName::Staging } else { PathName::Copy };
        let mut record = Record::new("net", "", "tx", size as u64);
        record.count(rate, 1.0);
        let grant_copy_bytes = if rest.is_some() && size <= 256 { 0 } else { rate * 4 };
        record.of = Of::Net(Net { grant_copy_bytes, ..Net::default() });
        let row = Row { records: Repeats(vec![record]), ..Row::new(path, Dir::Tx, size, 256) };
        let (rest, heads) = (rest.unwrap_or(path), rest.is_some());
        Row { case: Case { rest, heads, ..row.case.clone() }, ..row }
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
