//! Reads libFuzzer's output: whether a run was one at all, and its counts.
//!
//! ```text
//!   #614     INITED cov: 2105 ft: 9330 corp: 402/31Kb      the kept inputs are played: 614 executions
//!   #26891   NEW    cov: ...                               what counts begins after that
//!   stat::number_of_executed_units: 26891                  at its end
//! ```
//! A target whose kept inputs take longer than its time would fuzz nothing and pass. So its time
//! begins at `INITED`, and executions beyond that are counted and have a floor.

/// Executions beyond the kept inputs in [`FLOOR_SECONDS`] below which a target did not fuzz: a
/// twentieth or less of what each did at the lowest priority on two cores with a load of six.
const FLOORS: [(&str, u64); 15] = [
    ("back_rx", 100),
    ("back_tx", 100),
    ("blk_back", 100),
    ("blk_front", 100),
    ("ctrl_ring", 100),
    ("data_ring", 300),
    ("foreign", 100),
    ("front_rx", 25),
    ("gref_requests", 300),
    ("offload", 5000),
    ("one_copy", 15),
    ("staging_list", 500),
    ("xenbus_keys", 10),
    ("xs_codec", 1000),
    ("xs_server", 100),
];
/// The limit for a target that is not in the list yet.
const FLOOR: u64 = 10;

/// The time that the floors are for.
pub(super) const FLOOR_SECONDS: u64 = 24;

/// The log of one run.
pub(super) struct Log(String);

impl Log {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Number of executions of kept inputs, once all of them were played.
    pub(super) fn kept(&self) -> Option<u64> {
        let line = self.0.lines().find(|l| l.split_whitespace().nth(1) == Some("INITED"))?;
        line.split_whitespace().next()?.strip_prefix('#')?.parse().ok()
    }

    fn executed(&self) -> Option<u64> {
        self.stat("stat::number_of_executed_units:")?.parse().ok()
    }

    /// Executions beyond the kept inputs.
    pub(super) fn beyond(&self) -> Option<u64> {
        Some(self.executed()?.saturating_sub(self.kept()?))
    }

    fn stat(&self, key: &str) -> Option<&str> {
        self.0.lines().rev().find_map(|l| l.strip_prefix(key)).map(str::trim)
    }

    /// The last figure of this name in the lines of progress.
    fn progress(&self, key: &str) -> &str {
        let line = self.0.lines().rev().find(|l| l.starts_with('#') && l.contains(key)).unwrap_or("");
        let mut words = line.split_whitespace().skip_while(|w| *w != key);
        words.nth(1).unwrap_or("?")
    }

    /// Formats a row of the table.
    pub(super) fn row(&self, name: &str) -> String {
        let figure = |n: Option<u64>| n.map_or("?".to_string(), |n| n.to_string());
        format!(
            "{name:14} {:>7} {:>10} {:>8} {:>6} {:>8} {:>7}",
            figure(self.kept()),
            figure(self.beyond()),
            self.stat("stat::average_exec_per_sec:").unwrap_or("?"),
            self.progress("cov:"),
            self.progress("ft:"),
            self.progress("corp:").split('/').next().unwrap_or("?"),
        )
    }

    /// Checks whether a target fuzzed in `seconds`; the error says what it did instead. If
    /// `seconds` is less than the time of the floors, one new execution is enough.
    pub(super) fn check(&self, name: &str, seconds: u64) -> Result<(), String> {
        let floor = FLOORS.iter().find(|(n, _)| *n == name).map_or(FLOOR, |(_, floor)| *floor);
        let floor = if seconds < FLOOR_SECONDS { 1 } else { floor };
        match self.beyond() {
            Some(n) if n >= floor => Ok(()),
            Some(n) => Err(format!(
                "{name}: {n} executions beyond its kept inputs in {seconds} s, and {floor} are the least that count as fuzzing"
            )),
            None => Err(format!("{name}: its log names no executions")),
        }
    }
}

/// Formats the heads of the columns.
pub(super) fn heads() -> String {
    format!(
        "{:14} {:>7} {:>10} {:>8} {:>6} {:>8} {:>7}",
        "target", "kept", "beyond", "a second", "edges", "features", "corpus"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: &str = "#2\tREAD units: 510\n#512\tINITED cov: 1 ft: 2 corp: 1/1b\n\
                        #26891\tNEW    cov: 1907 ft: 7661 corp: 511/7274b lim: 33 exec/s: 655 rss: 287Mb\n\
                        ==7== INFO: libFuzzer: exiting as requested\n\
                        stat::number_of_executed_units: 26895\nstat::average_exec_per_sec:     655\n";

    #[test]
    fn a_run_s_figures_are_found_in_its_log() {
        let log = Log::new(DONE);
        let row = log.row("back_tx");
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!(words, ["back_tx", "512", "26383", "655", "1907", "7661", "511"]);
        assert_eq!(log.check("back_tx", 30), Ok(()));
    }

    #[test]
    fn a_run_that_only_played_what_was_kept_is_none() {
        // All of its time went to the kept inputs; by time alone it passed.
        let corpus_only = DONE.replace("units: 26895", "units: 512");
        let why = Log::new(corpus_only.as_str()).check("back_tx", 30).unwrap_err();
        assert!(why.contains("back_tx: 0 executions beyond"), "{why}");
        assert!(Log::new(corpus_only).check("back_tx", 1).is_err());
        let few = Log::new(DONE.replace("units: 26895", "units: 515"));
        assert!(few.check("back_tx", 30).is_err());
        assert_eq!(few.check("back_tx", 1), Ok(()));
        for unfinished in ["", "#512\tINITED cov: 1", "stat::number_of_executed_units: 26895\n"] {
            assert!(Log::new(unfinished).check("back_tx", 30).is_err(), "{unfinished:?}");
        }
    }

    #[test]
    fn floors_are_of_targets_that_there_are() {
        let root = crate::workspace::Workspace::find().root().to_path_buf();
        let targets = crate::fuzz::targets(&root.join("fuzz")).unwrap();
        let floors: Vec<&str> = FLOORS.iter().map(|(name, _)| *name).collect();
        assert_eq!(floors, targets);
    }

    #[test]
    fn the_time_begins_when_what_was_kept_is_played() {
        assert_eq!(Log::new("#2\tREAD units: 510\n#256\tpulse  cov: 1\n").kept(), None);
        assert_eq!(Log::new(DONE).kept(), Some(512));
    }
}
