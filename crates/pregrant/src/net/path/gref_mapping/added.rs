//! The entries of a queue's table as the control thread knows them, by reference.
//!
//! ```text
//!   ADD: room for its entries, then each in its place          DEL: its entries leave; those that are gone are removed
//! ```
//! A list in the order of references, which is searched by halves. Memory for it is asked for by
//! calls that can fail, and nothing here panics.
//!
//! What a guest may do: choose the references, and as many as the table has entries.

use crate::error::PlatformError;
use crate::memory;
use crate::sort::sorted;
use alloc::vec::Vec;

/// What becomes of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Its ADD is not finished.
    Comes,
    /// Its page is in the table.
    Stays,
    /// Its page is about to be unmapped.
    Leaves,
}

/// An entry of a table.
#[derive(Clone, Copy, Debug)]
struct Entry {
    gref: u32,
    flags: u16,
    stage: Stage,
}

/// The entries of a table, in the order of their references.
#[derive(Debug, Default)]
pub(super) struct Added(Vec<Entry>);

impl Added {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is an entry with this reference.
    pub(super) fn has(&self, gref: u32) -> bool {
        self.place_of(gref).is_ok()
    }

    fn place_of(&self, gref: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&gref, |entry| entry.gref)
    }

    /// Adds entries, none of which is there yet, and each once: references with their flags. An
    /// error: none was added.
    pub(super) fn add(
        &mut self,
        entries: impl ExactSizeIterator<Item = (u32, u16)>,
        stage: Stage,
    ) -> Result<(), PlatformError> {
        memory::grow(&mut self.0, entries.len())?;
        let mut more = sorted(entries)?;
        let mut before = self.0.len();
        for &(gref, flags) in &more {
            memory::push(&mut self.0, Entry { gref, flags, stage })?; // there is room
        }
        // Both lists are in order: from the end, the larger one of their last ones is the next.
        let mut next = more.pop();
        for at in (0..self.0.len()).rev() {
            let Some((gref, flags)) = next else { break };
            let last = before.checked_sub(1).and_then(|last| self.0.get(last)).copied();
            let put = match last.filter(|last| last.gref > gref) {
                Some(last) => {
                    before -= 1;
                    last
                }
                None => {
                    next = more.pop();
                    Entry { gref, flags, stage }
                }
            };
            if let Some(place) = self.0.get_mut(at) {
                *place = put;
            }
        }
        Ok(())
    }

    /// Moves an entry to the stage `to` if it is in the stage `from`; returns whether it was.
    pub(super) fn advance(&mut self, gref: u32, from: Stage, to: Stage) -> bool {
        let place = self.place_of(gref).ok();
        let entry = place.and_then(|place| self.0.get_mut(place)).filter(|entry| entry.stage == from);
        entry.map(|entry| entry.stage = to).is_some()
    }

    /// Moves all entries in the stage `from` to the stage `to`.
    pub(super) fn advance_all(&mut self, from: Stage, to: Stage) {
        self.0.iter_mut().filter(|entry| entry.stage == from).for_each(|entry| entry.stage = to);
    }

    /// Removes all entries in this stage.
    pub(super) fn remove(&mut self, stage: Stage) {
        self.0.retain(|entry| entry.stage != stage);
    }

    /// References and flags of the entries that a successor may use: those that do not leave.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u32, u16)> + Clone {
        self.0.iter().filter(|entry| entry.stage != Stage::Leaves).map(|entry| (entry.gref, entry.flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_a_map_does(acts in prop::collection::vec((0u8..4, 1u32..30, 0u16..2), 0..80)) {
            let (mut added, mut model) = (Added::default(), BTreeMap::new());
            for (act, gref, flags) in acts {
                match act {
                    0 => {
                        let more = [gref + 7, gref, gref + 3].map(|gref| (gref, flags));
                        let more: Vec<_> = more.into_iter().filter(|(gref, _)| !added.has(*gref)).collect();
                        prop_assert_eq!(added.add(more.iter().copied(), Stage::Stays), Ok(()));
                        model.extend(more.into_iter().map(|(gref, flags)| (gref, (flags, Stage::Stays))));
                    }
                    1 => {
                        let is_there = model.get(&gref).is_some_and(|(_, stage)| *stage == Stage::Stays);
                        prop_assert_eq!(added.advance(gref, Stage::Stays, Stage::Leaves), is_there);
                        if is_there && let Some((_, stage)) = model.get_mut(&gref) {
                            *stage = Stage::Leaves;
                        }
                    }
                    2 => {
                        added.advance_all(Stage::Leaves, Stage::Stays);
                        model.values_mut().for_each(|(_, stage)| *stage = Stage::Stays);
                    }
                    _ => {
                        added.remove(Stage::Leaves);
                        model.retain(|_, (_, stage)| *stage != Stage::Leaves);
                    }
                }
                prop_assert_eq!(added.len(), model.len());
                prop_assert!((1..40).all(|gref| added.has(gref) == model.contains_key(&gref)));
                let kept = model.iter().filter(|(_, (_, stage))| *stage != Stage::Leaves);
                let kept: Vec<_> = kept.map(|(gref, (flags, _))| (*gref, *flags)).collect();
                prop_assert_eq!(added.kept().collect::<Vec<_>>(), kept);
            }
        }
    }
}
