//! Rows in which any two levels of any two factors meet: a test of all pairs where one of all
//! combinations is too long.
//!
//! Greedy: a row begins with a pair that is not in any yet, and each further factor gets the level
//! that adds most; the best of several such rows is kept (AETG, Cohen et al. 1997). The same seed
//! gives the same rows.

use pregrant_testkit::dice::Dice;

/// Dice for a seed; seeds that are near each other, and 0, roll other numbers each.
pub fn dice(seed: u64) -> Dice {
    Dice::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
}

/// A level of a factor.
type Level = (usize, usize);

/// Pairs that are in no row yet.
struct Missing {
    levels: Vec<usize>,
    pairs: Vec<bool>,
    left: usize,
}

impl Missing {
    fn new(levels: &[usize]) -> Self {
        let all: usize = levels.iter().sum();
        let mut missing = Self { levels: levels.into(), pairs: vec![false; all * all], left: 0 };
        for a in 0..levels.len() {
            for b in a + 1..levels.len() {
                for (x, y) in (0..levels[a]).flat_map(|x| (0..levels[b]).map(move |y| (x, y))) {
                    let at = missing.place((a, x), (b, y));
                    missing.pairs[at] = true;
                    missing.left += 1;
                }
            }
        }
        missing
    }

    fn place(&self, a: Level, b: Level) -> usize {
        let (a, b) = if a.0 < b.0 { (a, b) } else { (b, a) };
        let number = |(factor, level): Level| self.levels[..factor].iter().sum::<usize>() + level;
        number(a) * self.levels.iter().sum::<usize>() + number(b)
    }

    fn has(&self, a: Level, b: Level) -> bool {
        self.pairs[self.place(a, b)]
    }

    /// The pairs of `row` that are in no other.
    fn of(&self, row: &[usize]) -> Vec<usize> {
        let level = |factor| (factor, row[factor]);
        let pairs = (0..row.len()).flat_map(|a| (a + 1..row.len()).map(move |b| (a, b)));
        pairs.map(|(a, b)| self.place(level(a), level(b))).filter(|at| self.pairs[*at]).collect()
    }

    /// Any of them, as its two levels.
    fn any(&self, dice: &mut Dice) -> [Level; 2] {
        let nth = dice.below(self.left);
        let at = (0..self.pairs.len()).filter(|at| self.pairs[*at]).nth(nth).expect("as many are left");
        let all: usize = self.levels.iter().sum();
        [at / all, at % all].map(|mut number| {
            let past = |n: &&usize| {
                let past = number >= **n;
                number -= if past { **n } else { 0 };
                past
            };
            let factor = self.levels.iter().take_while(past).count();
            (factor, number)
        })
    }

    fn row(&self, dice: &mut Dice) -> Vec<usize> {
        let mut set = Vec::from(self.any(dice));
        let mut factors: Vec<usize> =
            (0..self.levels.len()).filter(|f| set.iter().all(|(of, _)| of != f)).collect();
        while !factors.is_empty() {
            let factor = factors.swap_remove(dice.below(factors.len()));
            let from = dice.below(self.levels[factor]);
            let adds = |level: &usize| set.iter().filter(|other| self.has((factor, *level), **other)).count();
            let levels = (0..self.levels[factor]).map(|k| (from + k) % self.levels[factor]);
            let level = levels.max_by_key(adds).expect("a factor has levels");
            set.push((factor, level));
        }
        set.sort_unstable();
        set.into_iter().map(|(_, level)| level).collect()
    }
}

/// Rows for factors with these numbers of levels.
pub fn rows(levels: &[usize], seed: u64) -> Vec<Vec<usize>> {
    const TRIES: usize = 30;
    let (mut missing, mut dice, mut rows) = (Missing::new(levels), dice(seed), Vec::new());
    while missing.left > 0 {
        let tries = (0..TRIES).map(|_| missing.row(&mut dice));
        let best = tries.max_by_key(|row| missing.of(row).len()).expect("a row");
        for at in missing.of(&best) {
            missing.pairs[at] = false;
            missing.left -= 1;
        }
        rows.push(best);
    }
    rows
}

pub fn any_two_levels_are_in_a_row() {
    for (levels, seed) in
        [(&[2, 2][..], 1), (&[3, 1, 2], 2), (&[2; 10], 3), (&[10, 7, 3, 4, 2, 5], 4), (&[4, 9, 9], 5)]
    {
        let got = rows(levels, seed);
        assert_eq!(got, rows(levels, seed), "{levels:?}: the same seed");
        assert!(got.iter().all(|row| row.len() == levels.len()));
        assert!(got.iter().all(|row| row.iter().zip(levels).all(|(level, of)| level < of)));
        for (a, b) in (0..levels.len()).flat_map(|a| (a + 1..levels.len()).map(move |b| (a, b))) {
            for (x, y) in (0..levels[a]).flat_map(|x| (0..levels[b]).map(move |y| (x, y))) {
                assert!(got.iter().any(|row| (row[a], row[b]) == (x, y)), "{levels:?}: {a}={x}, {b}={y}");
            }
        }
        // The two largest factors alone need as many; twice that is a poor row somewhere.
        let mut sorted = levels.to_vec();
        sorted.sort_unstable();
        let least: usize = sorted.iter().rev().take(2).product();
        assert!((least..least * 2 + levels.len()).contains(&got.len()), "{levels:?}: {} rows", got.len());
    }
}
