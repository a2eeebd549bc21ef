//! The records of one row, in the order of its repeats, and what they come to.

use super::Record;
use super::stats::Summary;
use std::borrow::Borrow;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Repeats<R = Record>(pub Vec<R>);

impl Repeats {
    /// Takes the next one; its number is its place.
    pub fn push(&mut self, record: Record) -> &Record {
        self.0.push(Record { repeat: self.0.len() as u32, ..record });
        &self.0[self.0.len() - 1]
    }
}

impl<R: Borrow<Record>> Repeats<R> {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.0.iter().map(Borrow::borrow)
    }

    /// The first: what all of them share stands in it. There is one.
    pub fn first(&self) -> &Record {
        self.0[0].borrow()
    }

    /// Some count, in sum.
    pub fn sum(&self, count: impl Fn(&Record) -> u64) -> u64 {
        self.iter().map(count).fold(0, u64::saturating_add)
    }

    /// Some count for each frame, or request, of all.
    pub fn each(&self, count: impl Fn(&Record) -> u64) -> f64 {
        self.sum(count) as f64 / self.sum(|r| r.frames).max(1) as f64
    }

    /// Some figure.
    pub fn summary(&self, of: impl Fn(&Record) -> f64) -> Option<Summary> {
        Summary::of(&self.iter().map(of).collect::<Vec<_>>())
    }

    /// Some figure that not every record has.
    pub fn middle(&self, of: impl Fn(&Record) -> Option<u64>) -> Option<Summary> {
        Summary::of(&self.iter().filter_map(of).map(|n| n as f64).collect::<Vec<_>>())
    }

    /// Frames a second.
    pub fn rate(&self) -> Option<Summary> {
        self.summary(|r| r.frames_per_s)
    }

    /// Some figure, to that of the same repeat of another row: these had the same machine.
    pub fn ratio_of(&self, base: &Self, of: impl Fn(&Record) -> f64) -> Option<Summary> {
        Summary::of_ratios(self.iter().zip(base.iter()).map(|(a, b)| (of(a), of(b))))
    }

    /// Frames a second, to another row's.
    pub fn ratio(&self, base: &Self) -> Option<Summary> {
        self.ratio_of(base, |r| r.frames_per_s)
    }
}
