//! Makes lists for the self-test in an order in which `sort_unstable` needs the most stack, as a
//! guest may make them: against the sort of the compiler that builds the core.
//!
//! ```text
//!   items 0 .. n --sort_unstable_by--> each comparison ranks an item if neither is ranked: so that the pivot,
//!                                      which is compared most often, is the largest of those that are left
//! ```
//! Each partition then has next to nothing on its right, and the sort calls itself for its left, as
//! often as it can. M. D. McIlroy, "A Killer Adversary for Quicksort" (1999).

use std::cell::Cell;
use std::path::Path;

/// Numbers of references in the largest index page of a data ring, and of entries in two staging
/// lists, the second of which is the longest that is accepted.
const LENGTHS: [usize; 3] = [512, 4096, 32_767];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let dir = std::env::var("OUT_DIR")?;
    for n in LENGTHS {
        let ranks = Ranks::against_sort(n);
        let bytes: Vec<u8> = ranks.iter().flat_map(|rank| (*rank as u16).to_le_bytes()).collect();
        std::fs::write(Path::new(&dir).join(format!("against_sort_{n}")), bytes)?;
    }
    Ok(())
}

/// The ranks of some items, highest first. Those without a rank yet are below all others.
struct Ranks {
    of: Vec<Cell<Option<usize>>>,
    left: Cell<usize>,
    /// The last item without a rank that was compared with one that has a rank.
    pivot: Cell<usize>,
}

impl Ranks {
    fn against_sort(n: usize) -> Vec<usize> {
        let ranks = Self { of: vec![Cell::new(None); n], left: Cell::new(n), pivot: Cell::new(0) };
        // Otherwise all items would be a descending run, which is reversed instead of sorted.
        ranks.rank(1);
        ranks.rank(0);
        let mut items: Vec<usize> = (0..n).collect();
        items.sort_unstable_by(|a, b| ranks.compare(*a, *b));
        (0..n).filter(|i| ranks.get(*i).is_none()).for_each(|i| ranks.rank(i));
        ranks.of.iter().filter_map(Cell::get).collect()
    }

    fn get(&self, item: usize) -> Option<usize> {
        self.of[item].get()
    }

    fn rank(&self, item: usize) {
        self.left.set(self.left.get() - 1);
        self.of[item].set(Some(self.left.get()));
    }

    fn compare(&self, a: usize, b: usize) -> std::cmp::Ordering {
        match (self.get(a), self.get(b)) {
            (None, None) if a == self.pivot.get() => self.rank(a),
            (None, None) => self.rank(b),
            _ => {}
        }
        match (self.get(a), self.get(b)) {
            (None, _) => self.pivot.set(a),
            (_, None) => self.pivot.set(b),
            _ => {}
        }
        self.get(a).cmp(&self.get(b))
    }
}
