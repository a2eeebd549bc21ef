//! The records of one row in the order of its repeats, with the rates and ratios that follow from
//! them.

use super::Record;
use super::stats::Summary;
use crate::load::{self, COMPARED_MOST};
use std::borrow::Borrow;

#[derive(Clone, Debug, Default)]
pub struct Repeats<R = Record>(pub Vec<R>);

impl Repeats {
    /// Adds a record that was measured just now, and numbers it.
    pub fn push(&mut self, record: Record) -> &Record {
        self.0.push(Record { repeat: self.0.len() as u32, others: load::since_last(), ..record });
        &self.0[self.0.len() - 1]
    }
}

impl<R: Borrow<Record>> Repeats<R> {
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.0.iter().map(Borrow::borrow)
    }

    /// Returns the first record, for fields that all repeats share. There is always one.
    pub fn first(&self) -> &Record {
        self.0[0].borrow()
    }

    pub fn sum(&self, count: impl Fn(&Record) -> u64) -> u64 {
        self.iter().map(count).fold(0, u64::saturating_add)
    }

    /// Returns a count divided by the number of frames or requests, over all repeats.
    pub fn each(&self, count: impl Fn(&Record) -> u64) -> f64 {
        self.sum(count) as f64 / self.sum(|r| r.frames).max(1) as f64
    }

    pub fn summary(&self, of: impl Fn(&Record) -> f64) -> Option<Summary> {
        Summary::of(&self.iter().map(of).collect::<Vec<_>>())
    }

    /// Returns the median of a figure that not every record has.
    pub fn middle(&self, of: impl Fn(&Record) -> Option<u64>) -> Option<Summary> {
        Summary::of(&self.iter().filter_map(of).map(|n| n as f64).collect::<Vec<_>>())
    }

    /// Returns the median and the range of the frames per second.
    pub fn rate(&self) -> Option<Summary> {
        self.summary(|r| r.frames_per_s)
    }

    /// Returns the ratio of a figure to that of the same repeat of another row, since the two ran
    /// on the machine in the same state. It is marked as unusable if other programs used too much
    /// of the machine.
    pub fn ratio_of(&self, base: &Self, of: impl Fn(&Record) -> f64) -> Option<Summary> {
        let ratios = Summary::of_ratios(self.iter().zip(base.iter()).map(|(a, b)| (of(a), of(b))))?;
        Some(Summary { is_loaded: self.is_loaded_with(base), ..ratios })
    }

    /// Returns the rate divided by the median rate of `bound`, which is its upper bound.
    pub fn part_of(&self, bound: &Self) -> Option<Summary> {
        let part = self.rate()?.per(bound.rate()?.median);
        Some(Summary { is_loaded: self.is_loaded_with(bound), ..part })
    }

    /// True if other programs used too much of the machine to compare the two rows, while either
    /// was measured.
    pub fn is_loaded_with(&self, other: &Self) -> bool {
        let (mut all, mut others) = (0.0, 0.0);
        for record in self.iter().chain(other.iter()) {
            // A record that counts no time has as much as any.
            let seconds = if record.seconds > 0.0 { record.seconds } else { 1.0 };
            if let Some(share) = record.others {
                all += seconds;
                others += seconds * share;
            }
        }
        others > all * COMPARED_MOST
    }

    /// Returns the ratio of the rate to another row's rate.
    pub fn ratio(&self, base: &Self) -> Option<Summary> {
        self.ratio_of(base, |r| r.frames_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rate: u64, others: [Option<f64>; 3]) -> Repeats {
        let record = |others| {
            let mut record = Record { others, ..Record::new("net", "copy", "tx", 64) };
            record.count(rate, 1.0);
            record
        };
        Repeats(others.map(record).into())
    }

    #[test]
    fn figures_of_a_loaded_machine_are_not_compared() {
        let idle = row(1000, [Some(0.01), Some(0.02), Some(0.3)]);
        let old = row(2000, [None; 3]);
        let loaded = row(4000, [Some(0.0), Some(0.9), Some(0.0)]);
        let read = |of: &Repeats, base: &Repeats| of.ratio(base).map(|ratio| (ratio.median, ratio.is_loaded));
        assert_eq!(read(&old, &old), Some((1.0, false)), "records of before say nothing of it");
        assert_eq!(
            read(&idle, &row(500, [Some(0.0); 3])),
            Some((2.0, false)),
            "a third of it, once of six times"
        );
        assert_eq!(read(&loaded, &idle), Some((4.0, true)));
        assert_eq!(loaded.part_of(&idle).map(|part| part.is_loaded), Some(true));
        assert_eq!(loaded.rate().map(|rate| rate.is_loaded), Some(false), "itself it is a figure");
    }
}
