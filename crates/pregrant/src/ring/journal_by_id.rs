//! The journal of a ring whose requests are answered in any order, such as a block device's
//! (docs/protocol 1.1, "The journal by id").
//!
//! ```text
//!   word 0 intent   rsp_prod after the batch    (stored last, release: the records below are whole)
//!   word 1 from     rsp_prod before the batch
//!   word 2 magic    "PGI1": the memory was used before
//!   word 3 taken    req_cons: requests before it are answered, or in an entry
//!   word 4 version
//!   word 16..       a record for each slot of the ring: entry, its index, 4 words of the answer
//!   then            an entry for each slot of the ring: 1 in use, its index, the request's words
//! ```
//! An answer is written over the slot of some other request, which may not be answered yet. So a
//! request is copied to the journal when it is taken: first its entry, then `taken`. A batch of
//! answers writes `from`, the records, `intent`, the ring's answers and its `rsp_prod`, and then
//! frees the entries.
//!
//! Invariants: `from <= intent`, and between batches `intent` is the ring's `rsp_prod`. Entries in
//! use with an index before `taken` are the unanswered requests, `taken - rsp_prod` of them. An
//! entry is freed only for the index that its record names, so a successor that frees it again
//! frees no later request.
//!
//! A successor executes again what its predecessor took ([`BackRing::pending`]): at least once on
//! the disk, exactly once on the ring. A back that needs writes to land once and in order first
//! waits for the end of the old process.
//!
//! The journal is private to the back's domain, like the redo page. What a front may do: move its
//! ring's indices, or overwrite answers; then journal and ring disagree, and the ring cannot be
//! resumed.

use super::journal::{Journal, Resumed, asked};
use super::redo_words::{RedoMem, RedoWords};
use super::{AnyOrder, BackRing, Notify, RingKind, RingMem, Word};
use crate::error::PeerFault;
use crate::record_version::{RecordVersion, UnknownRecord};
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, compiler_fence};

const INTENT: usize = 0;
const FROM: usize = 1;
const MAGIC: usize = 2;
const TAKEN: usize = 3;
const VERSION: usize = 4;
const RECORDS: usize = 16;
const KIND: RecordVersion = RecordVersion::new("journal", *b"PGI1", 1);
/// Words of a record: entry and index, then the answer.
const RECORD_WORDS: usize = 2 + 4;
/// Words before the request in an entry: "in use", and the index.
const ENTRY_HEAD: usize = 2;

/// Words of the journal of a ring with `size` slots of `slot_words` words.
pub const fn by_id_words(size: u32, slot_words: usize) -> usize {
    RECORDS + size as usize * (RECORD_WORDS + ENTRY_HEAD + slot_words)
}

/// A request that was taken. Its answer must come with this value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    entry: u32,
    index: u32,
}

/// A journal of a ring whose requests are answered in any order.
#[derive(Debug)]
pub struct ById<W = RedoWords> {
    words: W,
    size: u32,
    /// Free entries.
    free: Vec<u32>,
}

impl<W: RedoMem> ById<W> {
    /// A journal in these words, for a ring of `size` slots. There must be [`by_id_words`] of them.
    pub fn over(words: W, size: u32) -> Self {
        Self { words, size, free: Vec::new() }
    }

    /// Clears the journal, for a new connection.
    pub fn clear(&self) {
        self.put(MAGIC, 0);
    }

    /// Whether a back has used the journal since it was last cleared.
    pub fn is_started(&self) -> bool {
        Self::check(&self.words) == Ok(true)
    }

    /// Checks whether a back has used the journal in these words.
    ///
    /// # Errors
    ///
    /// A back has used the journal, and this version cannot read it: the ring must not be resumed.
    pub fn check(words: &W) -> Result<bool, UnknownRecord> {
        KIND.check(words.load(MAGIC, Ordering::Acquire), words.load(VERSION, Ordering::Acquire))
    }

    fn get(&self, i: usize) -> u32 {
        self.words.load(i, Ordering::Acquire)
    }

    fn put(&self, i: usize, value: u32) {
        self.words.store(i, value, Ordering::Release);
    }

    fn record(k: u32) -> usize {
        RECORDS + k as usize * RECORD_WORDS
    }

    fn entry<K: RingKind>(&self, entry: u32) -> usize {
        Self::record(self.size) + entry as usize * (ENTRY_HEAD + K::SLOT_WORDS)
    }

    /// Frees the entry of a record, unless it belongs to a later request by now.
    fn release<K: RingKind>(&mut self, taken: Taken) {
        let at = self.entry::<K>(taken.entry % self.size);
        if self.get(at) == 1 && self.get(at + 1) == taken.index {
            self.put(at, 0);
            self.free.push(taken.entry % self.size);
        }
    }

    fn records(&self, n: u32) -> impl Iterator<Item = (Taken, [u32; 4])> + '_ {
        (0..n).map(|k| {
            let at = Self::record(k);
            let taken = Taken { entry: self.get(at), index: self.get(at + 1) };
            (taken, core::array::from_fn(|i| self.get(at + 2 + i)))
        })
    }

    /// The state of a first connection: every entry is free, and no request is taken.
    fn restart<K: RingKind>(&mut self, rsp_prod: u32) {
        self.clear();
        (0..self.size).for_each(|entry| self.put(self.entry::<K>(entry), 0));
        [INTENT, FROM, TAKEN].into_iter().for_each(|i| self.put(i, rsp_prod));
        self.put(VERSION, KIND.version);
        self.put(MAGIC, KIND.magic);
    }

    /// Entries in use, oldest first.
    fn in_use<K: RingKind>(&self) -> Vec<Taken> {
        let rsp_prod = self.get(INTENT);
        let in_use = (0..self.size).filter(|entry| self.get(self.entry::<K>(*entry)) == 1);
        let mut all: Vec<Taken> =
            in_use.map(|entry| Taken { entry, index: self.get(self.entry::<K>(entry) + 1) }).collect();
        all.sort_by_key(|taken| taken.index.wrapping_sub(rsp_prod) as i32);
        all
    }
}

impl<K: AnyOrder, W: RedoMem> Journal<K> for ById<W> {
    fn resume<M: RingMem<Kind = K>>(&mut self, mem: &M) -> Result<Resumed, PeerFault> {
        let rsp_prod = mem.load(Word::RspProd);
        asked(mem, rsp_prod)?;
        if !self.is_started() {
            self.restart::<K>(rsp_prod);
            self.free = (0..self.size).collect();
            return Ok(Resumed::at(rsp_prod, Notify::No));
        }
        self.put(VERSION, KIND.version);
        let (intent, from, req_cons) = (self.get(INTENT), self.get(FROM), self.get(TAKEN));
        let n = intent.wrapping_sub(from);
        let disagree = PeerFault::BadAttach { req_prod: req_cons, rsp_prod };
        if n > self.size || ![from, intent].contains(&rsp_prod) {
            return Err(disagree);
        }
        let mut notify = Notify::No;
        if from == rsp_prod && n > 0 {
            for (k, (_, words)) in (0..n).zip(self.records(n)) {
                K::write_rsp(mem, from.wrapping_add(k), &K::rsp_from_words(words));
            }
            mem.store(Word::RspProd, intent);
            mem.full_fence();
            notify = Notify::test(from, intent, mem.load(Word::RspEvent));
        }
        let answered: Vec<Taken> = self.records(n).map(|(taken, _)| taken).collect();
        answered.into_iter().for_each(|taken| self.release::<K>(taken));
        // Entries that were written and not counted in `taken`: their requests are still on the
        // ring.
        for taken in self.in_use::<K>() {
            if (taken.index.wrapping_sub(req_cons) as i32) >= 0 {
                self.put(self.entry::<K>(taken.entry), 0);
            }
        }
        self.free = (0..self.size).filter(|entry| self.get(self.entry::<K>(*entry)) == 0).collect();
        let left = self.size - self.free.len() as u32;
        if left != req_cons.wrapping_sub(intent) || asked(mem, intent)? < left {
            return Err(disagree);
        }
        Ok(Resumed { rsp_prod: intent, req_cons, notify, is_recorded: true })
    }
}

impl<K: AnyOrder, M: RingMem<Kind = K>, W: RedoMem> BackRing<K, M, ById<W>> {
    /// Requests that predecessors took and did not answer, oldest first. They must be executed
    /// before others are taken.
    pub fn pending(&self) -> Vec<(Taken, K::Req)> {
        let Some(journal) = self.journal() else { return Vec::new() };
        let req = |taken: Taken| {
            let at = journal.entry::<K>(taken.entry) + ENTRY_HEAD;
            let mut slot = K::ZERO;
            slot.as_mut().iter_mut().enumerate().for_each(|(i, word)| *word = journal.get(at + i));
            (taken, K::req_from_slot(&slot))
        };
        journal.in_use::<K>().into_iter().map(req).collect()
    }

    /// [Clears](ById::clear) the journal of a ring that is not served after all, so that no
    /// successor uses it.
    pub fn forget(&self) {
        if let Some(journal) = self.journal() {
            journal.clear();
        }
    }

    /// Takes the next request; [`available`](Self::available) must have returned at least 1. None:
    /// the front has more requests in flight than the ring has slots.
    pub fn take(&mut self) -> Option<(Taken, K::Req)> {
        let index = self.req_cons();
        let slot = K::read_slot(self.mem(), index);
        let req = K::req_from_slot(&slot);
        let Some(journal) = self.journal_mut() else {
            self.consume(1);
            return Some((Taken { entry: 0, index }, req));
        };
        let entry = journal.free.pop()?;
        let at = journal.entry::<K>(entry);
        slot.as_ref().iter().enumerate().for_each(|(i, word)| journal.put(at + ENTRY_HEAD + i, *word));
        journal.put(at + 1, index);
        journal.put(at, 1);
        journal.put(TAKEN, index.wrapping_add(1));
        self.consume(1);
        Some((Taken { entry, index }, req))
    }

    /// Answers these requests, in any order.
    pub fn answer_taken(&mut self, rsps: &[(Taken, K::Rsp)]) -> Notify {
        let n = rsps.len() as u32;
        debug_assert!(n <= self.unanswered());
        if rsps.is_empty() {
            return Notify::No;
        }
        let from = self.rsp_prod();
        if let Some(journal) = self.journal_mut() {
            journal.put(FROM, from);
            for (k, (taken, rsp)) in (0..n).zip(rsps) {
                let at = ById::<W>::record(k);
                journal.put(at, taken.entry);
                journal.put(at + 1, taken.index);
                K::rsp_words(rsp).iter().enumerate().for_each(|(i, word)| journal.put(at + 2 + i, *word));
            }
            journal.put(INTENT, from.wrapping_add(n));
            // As in the redo page, the writes to the ring's slots must not be moved before this.
            compiler_fence(Ordering::SeqCst);
        }
        let notify = self.publish(rsps.iter().map(|(_, rsp)| rsp));
        if let Some(journal) = self.journal_mut() {
            rsps.iter().for_each(|(taken, _)| journal.release::<K>(*taken));
        }
        notify
    }
}
