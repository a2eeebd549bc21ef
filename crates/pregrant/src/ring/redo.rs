//! The redo page: makes a batch of answers happen exactly once, even if the process dies in the
//! middle of it (docs/protocol 1.1, R3).
//!
//! ```text
//!   word 0 intent   rsp_prod after the batch   (stored last, release: the records below are whole)
//!   word 1 from     rsp_prod before the batch
//!   word 2 magic    "PGR1": the page was used before
//!   word 3          frames that came into the back's hands, all together
//!   word 4..8       rsp_prod after a batch, frames answered up to there; the same of the batch before or after it
//!   word 8          1: the back is asking its port for frames
//!   word 9          frames for the guest that its port had left
//!   word 10         frames that predecessors had in their hands when they ended
//!   word 11         version
//!   word 16..       the responses' words (two each on TX and RX), in ring order, at most REDO_RECORDS
//! ```
//!
//! The order of a batch is: copies done; `from` and the records; `intent`; the ring's responses;
//! the ring's `rsp_prod`. A successor that finds `from` equal to the ring's `rsp_prod` and `intent`
//! ahead of it writes these records to the ring again and publishes them.
//!
//! Invariant between batches: `from <= intent == rsp_prod`. So while the records of the next batch
//! are half written, `from` is already `intent`, and a successor replays nothing.
//! [`RedoPage::settle`] establishes this, whatever the page contained before.
//!
//! Words 3 to 10 are for R7 and are not replayed. They count frames in flight: from when the port
//! gave a frame, or is about to get it, until the `intent` of the batch with its answer is written.
//! Frames that a successor finds there may reach the port twice (TX), or are lost (RX). A batch
//! counts its frames in that pair of words 4 to 8 which the batch before did not use; the pair
//! whose index is the ring's is right, wherever the back died.
//!
//! The page is private to the back's domain, so no peer can write it. But a peer can write the
//! ring's indices, with which it is compared, and a predecessor may have died at any instruction.

use super::Notify;
use super::journal::{Journal, Resumed, asked};
use super::kind::{RingKind, RingMem, Word};
use super::redo_words::{REDO_BYTES, RedoMem, RedoWords};
use crate::error::PeerFault;
use crate::record_version::{RecordVersion, UnknownRecord};
use crate::shm::SharedBytes;
use core::sync::atomic::{Ordering, compiler_fence};

/// Largest number of responses in one batch: the number of slots of a one-page ring.
pub const REDO_RECORDS: usize = 256;

const INTENT: usize = 0;
const FROM: usize = 1;
const MAGIC: usize = 2;
const HANDS: usize = 3;
const PAIRS: usize = 4;
const ASKING: usize = 8;
const HELD: usize = 9;
const TOTAL: usize = 10;
const VERSION: usize = 11;
const RECORDS: usize = 16;
const KIND: RecordVersion = RecordVersion::new("redo page", *b"PGR1", 1);

/// Index of the first word of record `k`.
#[inline(always)]
fn record<K: RingKind>(k: usize) -> usize {
    const { assert!(RECORDS + REDO_RECORDS * size_of::<K::Record>() / 4 <= REDO_BYTES / 4) };
    RECORDS + size_of::<K::Record>() / 4 * k
}

/// Frames that were in flight in a back when it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFlight {
    /// Number of frames without an answer.
    pub frames: u32,
    /// The back ended while it asked its port for frames, so up to a burst of frames may be lost
    /// besides.
    pub asking: bool,
    /// Frames that this back and all its predecessors had in flight when they ended, since the
    /// guest connected.
    pub total: u32,
}

/// A redo page in memory that outlives the process.
#[derive(Debug)]
pub struct RedoPage<W = RedoWords> {
    words: W,
    /// The pair of words that counts the last batch: 0 or 1.
    pair: usize,
    /// Number of answered frames, according to that pair.
    answered: u32,
    inherited: InFlight,
    /// A predecessor wrote the page for the ring in its current state.
    is_of_ring: bool,
}

impl RedoPage {
    /// A redo page in the first [`REDO_BYTES`] of `memory`; None when it is shorter.
    pub fn new<S: SharedBytes + Send + 'static>(memory: S) -> Option<Self> {
        RedoWords::new(memory).map(Self::over)
    }
}

impl<W: RedoMem> RedoPage<W> {
    /// Makes a redo page of these words.
    pub fn over(words: W) -> Self {
        Self { words, pair: 0, answered: 0, inherited: InFlight::default(), is_of_ring: false }
    }

    /// Whether a predecessor used the page.
    ///
    /// # Errors
    ///
    /// A predecessor used the page, and this version cannot read it: the ring must not be resumed.
    pub fn check(&self) -> Result<bool, UnknownRecord> {
        KIND.check(self.words.load(MAGIC, Ordering::Acquire), self.words.load(VERSION, Ordering::Acquire))
    }

    /// Clears the page for a new connection: its ring starts again, and an old ring's batch must
    /// not be replayed.
    pub fn clear(&self) {
        self.words.store(MAGIC, 0, Ordering::Release);
    }

    /// Establishes the invariant at `rsp_prod`, in an order in which a crash never leaves anything
    /// to replay.
    fn settle(&mut self, rsp_prod: u32) {
        self.inherit(rsp_prod);
        self.words.store(INTENT, rsp_prod, Ordering::Release);
        self.words.store(FROM, rsp_prod, Ordering::Release);
        self.words.store(VERSION, KIND.version, Ordering::Release);
        self.words.store(MAGIC, KIND.magic, Ordering::Release);
    }

    /// Reads what a predecessor had in flight, and continues its counts. If this process dies
    /// during this call, the frames may be counted twice.
    fn inherit(&mut self, rsp_prod: u32) {
        let get = |i: usize| self.words.load(i, Ordering::Relaxed);
        let used = self.check() == Ok(true);
        let known = [0, 1].into_iter().find(|pair| used && get(PAIRS + 2 * pair) == rsp_prod);
        self.is_of_ring = known.is_some();
        let (pair, answered, inherited) = match known {
            Some(pair) => {
                let answered = get(PAIRS + 2 * pair + 1);
                let frames = get(HANDS).wrapping_sub(answered).wrapping_add(get(HELD));
                let total = get(TOTAL).wrapping_add(frames);
                (pair, answered, InFlight { frames, asking: get(ASKING) != 0, total })
            }
            None => {
                self.clear();
                (0, 0, InFlight::default())
            }
        };
        let put = |i: usize, value| self.words.store(i, value, Ordering::Relaxed);
        put(TOTAL, inherited.total);
        put(HANDS, answered);
        put(HELD, 0);
        put(ASKING, 0);
        put(PAIRS + 2 * pair + 1, answered);
        put(PAIRS + 2 * pair, rsp_prod);
        (self.pair, self.answered, self.inherited) = (pair, answered, inherited);
    }

    /// Frames that the predecessor had in flight.
    pub(super) fn inherited(&self) -> InFlight {
        self.inherited
    }

    /// Records that this many frames are in flight, and that the port holds `held` more.
    #[inline(always)]
    pub(super) fn in_flight(&self, frames: u32, held: u32) {
        self.words.store(HELD, held, Ordering::Relaxed);
        self.words.store(HANDS, self.answered.wrapping_add(frames), Ordering::Release);
        self.words.store(ASKING, 0, Ordering::Release);
    }

    /// Records that the number in flight is unknown until [`in_flight`](Self::in_flight).
    #[inline(always)]
    pub(super) fn asking(&self) {
        self.words.store(ASKING, 1, Ordering::Release);
    }

    /// Writes the records of a batch whose first answer has the index `from`, then the intent.
    /// `frames` frames are no longer in flight then.
    #[inline(always)]
    pub(super) fn begin<K: RingKind>(&mut self, from: u32, rsps: &[K::Rsp], frames: u32) {
        debug_assert!(rsps.len() <= REDO_RECORDS);
        let intent = from.wrapping_add(rsps.len() as u32);
        self.words.store(FROM, from, Ordering::Relaxed);
        self.pair ^= 1;
        self.answered = self.answered.wrapping_add(frames);
        self.words.store(PAIRS + 2 * self.pair, intent, Ordering::Relaxed);
        self.words.store(PAIRS + 2 * self.pair + 1, self.answered, Ordering::Relaxed);
        for (k, rsp) in rsps.iter().take(REDO_RECORDS).enumerate() {
            for (i, word) in K::rsp_words(rsp).as_ref().iter().enumerate() {
                self.words.store(record::<K>(k) + i, *word, Ordering::Relaxed);
            }
        }
        self.words.store(INTENT, intent, Ordering::Release);
        // Release keeps earlier writes from moving after this; the fence keeps the writes to the
        // ring's slots from moving before it. For the crash of this very process only the
        // compiler's order matters, as with a signal.
        compiler_fence(Ordering::SeqCst);
    }

    /// Publishes what a predecessor intended, and returns the `rsp_prod` at which to resume.
    fn replay<M: RingMem>(&self, mem: &M) -> Result<(u32, Notify), PeerFault> {
        let rsp_prod = mem.load(Word::RspProd);
        if self.check() != Ok(true) {
            return Ok((rsp_prod, Notify::No));
        }
        let (intent, from) =
            (self.words.load(INTENT, Ordering::Acquire), self.words.load(FROM, Ordering::Relaxed));
        let n = intent.wrapping_sub(from);
        // The records are half written, because the predecessor died before its intent, or the
        // batch was published.
        if from != rsp_prod || n == 0 || n as usize > REDO_RECORDS {
            return Ok((rsp_prod, Notify::No));
        }
        let asked = asked(mem, rsp_prod)?;
        if n > asked {
            return Err(PeerFault::BadAttach { req_prod: rsp_prod.wrapping_add(asked), rsp_prod });
        }
        for k in 0..n {
            let mut words = <M::Kind as RingKind>::Record::default();
            for (i, word) in words.as_mut().iter_mut().enumerate() {
                *word = self.words.load(record::<M::Kind>(k as usize) + i, Ordering::Relaxed);
            }
            M::Kind::write_rsp(mem, from.wrapping_add(k), &M::Kind::rsp_from_words(words));
        }
        mem.store(Word::RspProd, intent);
        mem.full_fence();
        Ok((intent, Notify::test(from, intent, mem.load(Word::RspEvent))))
    }
}

impl<K: RingKind, W: RedoMem> Journal<K> for RedoPage<W> {
    fn resume<M: RingMem<Kind = K>>(&mut self, mem: &M) -> Result<Resumed, PeerFault> {
        let (rsp_prod, notify) = self.replay(mem)?;
        asked(mem, rsp_prod)?;
        self.settle(rsp_prod);
        Ok(Resumed { is_recorded: self.is_of_ring, ..Resumed::at(rsp_prod, notify) })
    }
}
