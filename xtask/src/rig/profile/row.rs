//! The console's lines for a profile: the scenario's rows, and the names of addresses.
//!
//! ```text
//!   RIG note WHAT | BY | FRAMES | ...     a row, after its readings
//!   RIG names BASE64                      names of dom0's kernel, a piece
//!   RIG guest_names BY BASE64             of a guest's modules, a piece: its kernel is dom0's
//!   RIG module_names BY BASE64            of dom0's modules, once the one of a back is loaded
//!   RIG placed BY BEGIN-END r-xp OFFSET ... where our program's code is with this kind of back, as /proc/PID/maps has it
//! ```

use super::names::Code;
use std::collections::BTreeMap;

/// The suffix that is appended to the kind of back in a row for what the guest executed.
pub(super) const GUESTS: &str = ", the guest";

/// A row of the scenario's results.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) what: String,
    pub(super) by: String,
    pub(super) frames: f64,
    pub(super) bytes_a_frame: f64,
    /// Dom0's CPU time per frame, as Xen accounts it.
    pub(super) accounted: f64,
    /// The guest's CPU time per frame; 0: its sender polled, so it was not counted.
    pub(super) accounted_guest: f64,
}

impl Row {
    fn parse(note: &str) -> Option<Self> {
        let fields: Vec<&str> = note.split(" | ").collect();
        let number = |at: usize| fields.get(at)?.trim().parse().ok();
        let (what, by) = (fields.first()?.to_string(), fields.get(1)?.to_string());
        Some(Self {
            what,
            by,
            frames: number(2)?,
            bytes_a_frame: number(3)?,
            accounted: number(4).filter(|_| fields.len() > 10)?,
            accounted_guest: number(6)?,
        })
    }

    /// The guest's part of the row.
    pub(super) fn of_guest(&self) -> Self {
        Self { by: format!("{}{GUESTS}", self.by), accounted: self.accounted_guest, ..self.clone() }
    }

    /// Returns the unit by which the row's cost is compared. Lengths of TCP frames differ between
    /// the kinds of back, so TCP is counted by bytes.
    pub(super) fn unit(&self) -> f64 {
        if self.what.starts_with("TCP") { self.bytes_a_frame } else { 1.0 }
    }
}

/// The data in the log of a boot.
#[derive(Default)]
pub(super) struct Said {
    pub(super) rows: Vec<Row>,
    /// The names of the functions of dom0's kernel, gzipped, in base64.
    pub(super) names: String,
    /// The names of the functions in the guests' kernel modules, by the kind of back.
    pub(super) guest_names: BTreeMap<String, String>,
    /// Those in dom0's modules, for the kinds of back that load one.
    pub(super) module_names: BTreeMap<String, String>,
    /// A line of /proc/PID/maps for each kind of back.
    code_maps: Vec<(String, String)>,
}

impl Said {
    pub(super) fn of(log: &str) -> Self {
        let mut said = Self::default();
        for line in log.lines().filter_map(|line| Some(line.split_once("RIG ")?.1)) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "note" => said.rows.extend(Row::parse(rest)),
                "names" => said.names.push_str(rest),
                "guest_names" | "module_names" => {
                    let names =
                        if word == "guest_names" { &mut said.guest_names } else { &mut said.module_names };
                    let (by, piece) = rest.split_once(' ').unwrap_or((rest, ""));
                    names.entry(by.into()).or_default().push_str(piece.trim_end());
                }
                "placed" => {
                    said.code_maps.extend(rest.split_once(' ').map(|(by, map)| (by.into(), map.into())));
                }
                _ => {}
            }
        }
        said
    }

    /// Returns the start and the end of our program's code in memory, for each kind of back.
    pub(super) fn places(&self, code: &Code) -> Result<BTreeMap<String, (u64, u64)>, String> {
        let place = |(by, map): &(String, String)| {
            // The line has: begin-end r-xp offset ...
            let mut words = map.split_whitespace();
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            let begin = number(words.next()?.split('-').next()?)?;
            let offset = number(words.nth(1)?)?;
            let base = (begin + code.offset).checked_sub(code.at + offset)?;
            Some((by.clone(), (base, code.at + code.len)))
        };
        let found = self.code_maps.iter().map(|map| place(map).ok_or_else(|| format!("no map: {map:?}")));
        found.collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn row(what: &str, by: &str, bytes_a_frame: f64) -> Row {
        Row {
            what: what.into(),
            by: by.into(),
            frames: 10.0,
            bytes_a_frame,
            accounted: 7.0,
            accounted_guest: 3.0,
        }
    }

    #[test]
    fn the_log_has_rows_and_where_our_process_is() {
        let log = "1.00 RIG note what | by | frames | bytes a frame | dom0's | a | b | c | d | e | f | g\n\
             2.00 (XEN) x RIG note TCP to the guest | burst | 10 | 54000 | 90000 | 1.6 | 5 | 1 | 1 | 1 | 1 | 0\n\
             3.00 RIG placed burst 7f0000050000-7f0000090000 r-xp 00040000 00:02 7 /usr/bin/pregrant\n\
             4.00 RIG note remark\n5.00 [two] RIG guest_names burst QUJD\n5.00 [two] RIG guest_names burst REVG\n\
             6.00 RIG module_names kernel R0hJ\n";
        let said = Said::of(log);
        let tcp = Row {
            bytes_a_frame: 54000.0,
            accounted: 90000.0,
            accounted_guest: 5.0,
            ..row("TCP to the guest", "burst", 0.0)
        };
        assert_eq!((tcp.of_guest().by.as_str(), tcp.of_guest().accounted), ("burst, the guest", 5.0));
        assert_eq!(said.rows, [tcp]);
        assert_eq!((&said.guest_names["burst"][..], &said.module_names["kernel"][..]), ("QUJDREVG", "R0hJ"));
        let places = said.places(&Code { offset: 0x40000, at: 0x41000, len: 0x800 }).unwrap();
        assert_eq!(places["burst"], (0x7f000000f000, 0x41800));
    }
}
