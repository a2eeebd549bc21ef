//! Lines in the log that come again and again: the first few are written, and of the others how many there were.
//!
//! For what a kernel or a library refuses where no vif is at hand to be charged; what belongs to a vif goes through the
//! backend's log of that vif. What a guest may do: cause as many as it likes; [`LINES`] of a kind are written, and one
//! more each time that their number doubles.

use log::{Level, log};
use std::fmt::Arguments;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lines of a kind that are written one by one.
pub const LINES: u64 = 16;

/// Lines of one kind, of the whole process.
#[derive(Debug, Default)]
pub struct LineBudget(AtomicU64);

impl LineBudget {
    /// None was written.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// A line, if it is not one too many.
    pub fn say(&self, level: Level, text: Arguments<'_>) {
        match self.0.fetch_add(1, Ordering::Relaxed) + 1 {
            n if n < LINES => log!(level, "{text}"),
            n if n.is_power_of_two() => {
                log!(level, "{text} (line {n} of its kind; the next is line {})", 2 * n)
            }
            _ => {}
        }
    }

    /// A warning.
    pub fn warn(&self, text: Arguments<'_>) {
        self.say(Level::Warn, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::{LevelFilter, Log, Metadata, Record};
    use std::sync::Mutex;

    static WRITTEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

    struct Kept;

    impl Log for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &Record<'_>) {
            if record.args().to_string().contains("refused: number") {
                WRITTEN.lock().unwrap().push(record.args().to_string());
            }
        }
        fn flush(&self) {}
    }

    #[test]
    fn a_million_lines_are_a_few_and_a_count() {
        // Other tests of this program may log meanwhile.
        log::set_logger(&Kept).unwrap();
        log::set_max_level(LevelFilter::Info);
        let budget = LineBudget::new();
        for n in 1..=1_000_000 {
            budget.warn(format_args!("refused: number {n}"));
        }
        let written = WRITTEN.lock().unwrap();
        assert_eq!(written.len(), 31, "15, and one for each power of two from 16 to 524288");
        assert_eq!(written[14], "refused: number 15");
        assert_eq!(written[15], "refused: number 16 (line 16 of its kind; the next is line 32)");
    }
}
