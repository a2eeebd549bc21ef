//! The control state in memory that outlives the process (docs/protocol 1.1, R4).
//!
//! ```text
//!   byte 0      one copy                byte 2048   the other
//!   word 0 magic "PGC2"   1 sequence   2 checksum of all other words
//!        3 index after the control ring's last answer   4..7 that answer
//!        7 the multicast list is whole   8 algorithm   9 flags   10..20 key   20 entries of the table   21..85 table
//!        85 multicast addresses   86..214 two words each
//!        214..278 by queue: which change of its table of gref mappings counts (`gref_mapping::page`)
//!        278 control requests taken and not answered   279..407 four words each, as on the ring
//!        511 version, which the checksum does not cover
//! ```
//! A change is written to the older copy, its checksum last. A process that dies in between leaves
//! the other copy, and a successor uses the newest copy whose checksum is right. Words are 4 bytes,
//! little-endian; a change of the layout changes the version.
//!
//! The page is private to the back's domain: no peer can write it. It is checked as if one could,
//! since a predecessor may be another version of this program.

use super::hash::{HashSettings, MAPPING_MAX};
use super::multicast::MulticastList;
use crate::array;
use crate::bounded::Bounded;
use crate::error::PlatformError;
use crate::memory;
use crate::net::headers::MacAddr;
use crate::net::path::{GREF_QUEUES_MAX as QUEUES_MAX, GREF_UNANSWERED_MAX as UNANSWERED_MAX};
use crate::net::toeplitz::KEY_MAX;
use crate::record_checksum;
use crate::record_version::{RecordVersion, UnknownRecord};
use crate::ring::crash::{self, Point};
use crate::ring::{NetCtrl, RingKind};
use crate::shm::SharedBytes;
use crate::wire::netif::MCAST_LIST_MAX;
use crate::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlStatus};
use alloc::boxed::Box;
use core::sync::atomic::{Ordering, compiler_fence};

/// Bytes of a control page's memory.
pub const CONTROL_BYTES: usize = 4096;
/// Bytes of one copy of the record, of which the page has two.
const COPY_BYTES: usize = CONTROL_BYTES / 2;

const KIND: RecordVersion = RecordVersion::new("control page", *b"PGC2", 1);
const SEQUENCE: usize = 1;
const CHECKSUM: usize = 2;
const LAST: usize = 3;
const WHOLE: usize = 7;
const ALGORITHM: usize = 8;
const FLAGS: usize = 9;
const KEY: usize = 10;
const SIZE: usize = KEY + KEY_MAX / 4;
const TABLE: usize = SIZE + 1;
const NR_MACS: usize = TABLE + MAPPING_MAX / 2;
const MACS: usize = NR_MACS + 1;
const VERSIONS: usize = MACS + MCAST_LIST_MAX * 2;
const NR_TAKEN: usize = VERSIONS + QUEUES_MAX;
const TAKEN: usize = NR_TAKEN + 1;
const WORDS: usize = TAKEN + UNANSWERED_MAX * 4;
const VERSION: usize = COPY_BYTES / 4 - 1;

const _: () = assert!(VERSIONS == 214 && WORDS == 407 && WORDS <= VERSION);

type Words = [u32; WORDS];

/// A control page in memory that outlives the process.
pub struct ControlPage {
    memory: Box<dyn SharedBytes + Send>,
    sequence: u32,
    /// The index of the copy that is written next: 0 or 1.
    next: usize,
    /// Scratch memory for a copy.
    words: Box<Words>,
}

/// The state of gref mappings that is kept besides the tables themselves.
#[derive(PartialEq, Eq, Debug)]
pub struct KeptGrefs {
    /// For each queue, the version of its table that is valid.
    pub versions: [u32; QUEUES_MAX],
    /// Requests that were taken and not answered. There is room for them once a connection
    /// [begins](KeptGrefs::make_room).
    pub taken: Bounded<CtrlRequest>,
}

impl KeptGrefs {
    /// Takes memory for requests, of which there are none then.
    pub fn make_room(&mut self) -> Result<(), PlatformError> {
        self.taken = Bounded::new(UNANSWERED_MAX)?;
        Ok(())
    }

    /// Replaces the list of requests.
    pub fn take<'a>(&mut self, taken: impl Iterator<Item = &'a CtrlRequest>) {
        self.taken.clear();
        taken.take(UNANSWERED_MAX).for_each(|request| self.taken.put(*request));
    }
}

impl Default for KeptGrefs {
    fn default() -> Self {
        Self { versions: [0; QUEUES_MAX], taken: Bounded::without_room() }
    }
}

/// The content of a control page.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// The multicast frames that the guest wants.
    pub multicast: MulticastList,
    /// How the guest wants frames hashed and distributed.
    pub hash: HashSettings,
    /// The control ring's index after its last answer, and that answer.
    pub last: (u32, CtrlResponse),
    /// The state of gref mappings.
    pub grefs: KeptGrefs,
}

impl ControlPage {
    /// Uses the first [`CONTROL_BYTES`] of `memory`. None: it is shorter.
    pub fn new<S: SharedBytes + Send + 'static>(memory: S) -> Option<Self> {
        let long = memory.len() >= CONTROL_BYTES;
        long.then(|| Self { memory: Box::new(memory), sequence: 0, next: 0, words: array::filled(0) })
    }

    /// Checks that each copy that was written can be read.
    ///
    /// # Errors
    ///
    /// One of the copies cannot be read, and may be the valid one.
    pub fn check(&self) -> Result<(), UnknownRecord> {
        [0, 1].into_iter().try_for_each(|copy| self.check_copy(copy).map(drop))
    }

    fn check_copy(&self, copy: usize) -> Result<bool, UnknownRecord> {
        let word = |i: usize| self.memory.load_u32(copy * COPY_BYTES + i * 4).unwrap_or(0);
        KIND.check(word(0), word(VERSION))
    }

    /// Clears both copies.
    pub fn clear(&mut self) {
        for copy in [0, 1] {
            let fits = self.memory.store_u32(copy * COPY_BYTES, 0);
            debug_assert!(fits, "a copy is inside the page");
        }
        (self.sequence, self.next) = (0, 0);
        compiler_fence(Ordering::SeqCst);
    }

    /// The newest complete state. None: there is none that can be read.
    pub fn load(&mut self) -> Option<Box<Kept>> {
        let sequences = [0, 1].map(|copy| self.read(copy).then(|| self.words[SEQUENCE]));
        let copy = match sequences {
            [Some(first), Some(second)] if (second.wrapping_sub(first) as i32) > 0 => 1,
            [Some(_), _] => 0,
            [None, Some(_)] => 1,
            [None, None] => return None,
        };
        if !self.read(copy) {
            return None;
        }
        self.sequence = self.words[SEQUENCE];
        self.next = 1 - copy;
        decode(&self.words)
    }

    /// Reads copy 0 or 1 of the record into `words`. Returns true if the copy is complete.
    fn read(&mut self, copy: usize) -> bool {
        for (i, word) in self.words.iter_mut().enumerate() {
            *word = self.memory.load_u32(copy * COPY_BYTES + i * 4).unwrap_or(0);
        }
        self.check_copy(copy) == Ok(true) && self.words[CHECKSUM] == checksum(&self.words)
    }

    /// Writes a state. It is valid when this returns, and never before it is complete.
    pub fn store(
        &mut self,
        multicast: &MulticastList,
        hash: &HashSettings,
        last: (u32, CtrlResponse),
        grefs: &KeptGrefs,
    ) {
        self.sequence = self.sequence.wrapping_add(1);
        encode(&mut self.words, self.sequence, (multicast, hash), last, grefs);
        let put = |i: usize| {
            let fits = self.memory.store_u32(self.next * COPY_BYTES + i * 4, self.words[i]);
            debug_assert!(fits, "a copy is inside the page");
        };
        let fits = self.memory.store_u32(self.next * COPY_BYTES + VERSION * 4, KIND.version);
        debug_assert!(fits, "a copy is inside the page");
        for i in (0..WORDS).filter(|i| *i != CHECKSUM) {
            put(i);
            if i == WORDS / 2 {
                crash::here(Point::InRecord);
            }
        }
        // For the crash of this very process only the compiler's order matters, as with a signal.
        compiler_fence(Ordering::SeqCst);
        put(CHECKSUM);
        compiler_fence(Ordering::SeqCst);
        self.next = 1 - self.next;
    }
}

/// The checksum of all words except the one that holds it.
fn checksum(words: &Words) -> u32 {
    record_checksum::of(words.iter().enumerate().filter(|(i, _)| *i != CHECKSUM).map(|(_, word)| *word))
}

fn encode(
    words: &mut Words,
    sequence: u32,
    (multicast, hash): (&MulticastList, &HashSettings),
    (index, answer): (u32, CtrlResponse),
    grefs: &KeptGrefs,
) {
    words.fill(0);
    words[0] = KIND.magic;
    words[SEQUENCE] = sequence;
    words[LAST] = index;
    words[LAST + 1..WHOLE].copy_from_slice(&NetCtrl::rsp_words(&answer));
    words[WHOLE] = multicast.is_whole() as u32;
    words[ALGORITHM] = hash.algorithm();
    words[FLAGS] = hash.flags();
    for (to, bytes) in words[KEY..SIZE].iter_mut().zip(hash.key().chunks_exact(4)) {
        *to = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words[SIZE] = hash.mapping().len() as u32;
    for (to, queues) in words[TABLE..].iter_mut().zip(hash.mapping().chunks(2)) {
        *to = queues.iter().rev().fold(0, |word, queue| word << 16 | u32::from(*queue));
    }
    words[NR_MACS] = multicast.addresses().len() as u32;
    for (to, MacAddr([a, b, c, d, e, f])) in words[MACS..].chunks_exact_mut(2).zip(multicast.addresses()) {
        to[0] = u32::from_le_bytes([*a, *b, *c, *d]);
        to[1] = u32::from_le_bytes([*e, *f, 0, 0]);
    }
    words[VERSIONS..NR_TAKEN].copy_from_slice(&grefs.versions[..]);
    let taken = grefs.taken.iter().take(UNANSWERED_MAX);
    words[NR_TAKEN] = taken.len() as u32;
    for (to, request) in words[TAKEN..].chunks_exact_mut(4).zip(taken) {
        to.copy_from_slice(&request.to_words());
    }
    words[CHECKSUM] = checksum(words);
}

/// Decodes a state. None: it contains a value that this version does not know.
#[inline(never)]
fn decode(words: &Words) -> Option<Box<Kept>> {
    let mut kept = memory::boxed(Kept::default()).ok()?;
    let Kept { multicast, hash, last, grefs } = &mut *kept;
    let ok = |status| (status == CtrlStatus::Success).then_some(());
    // Flags can only be set while there is an algorithm, and stay when there is none.
    ok(hash.set_algorithm(crate::wire::netif_ctrl::HASH_ALGORITHM_TOEPLITZ))?;
    ok(hash.set_flags(words[FLAGS]))?;
    ok(hash.set_algorithm(words[ALGORITHM]))?;
    let mut key = [0; KEY_MAX];
    for (to, word) in key.chunks_exact_mut(4).zip(&words[KEY..]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    ok(hash.set_key(&key))?;
    ok(hash.set_mapping_size(words[SIZE]))?;
    let entry = |i: usize| words[TABLE + i / 2] >> (16 * (i % 2)) & 0xFFFF;
    let table: [u32; MAPPING_MAX] = core::array::from_fn(entry);
    let any_queue = usize::from(u16::MAX) + 1;
    ok(hash.set_mapping(&table[..words[SIZE] as usize], 0, any_queue))?;
    let nr = words[NR_MACS] as usize;
    let nr_taken = words[NR_TAKEN] as usize;
    if nr > MCAST_LIST_MAX || nr_taken > UNANSWERED_MAX {
        return None;
    }
    let taken = words[TAKEN..].as_chunks().0.iter().take(nr_taken);
    grefs.make_room().ok()?;
    taken.for_each(|words| grefs.taken.put(CtrlRequest::from_words(*words)));
    grefs.versions.copy_from_slice(&words[VERSIONS..NR_TAKEN]);
    let macs = words[MACS..].as_chunks().0.iter().take(nr).map(|[first, second]| {
        let ([a, b, c, d], [e, f, ..]) = (first.to_le_bytes(), second.to_le_bytes());
        MacAddr([a, b, c, d, e, f])
    });
    multicast.fill(macs, words[WHOLE] != 0);
    let answer = NetCtrl::rsp_from_words([words[LAST + 1], words[LAST + 2], words[LAST + 3]]);
    *last = (words[LAST], answer);
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::batch::tx::MulticastAsk;
    use crate::platform::local::Pages;

    /// The test checks after each multiple of this many stores: under Miri a check takes a second.
    const EVERY: usize = if cfg!(miri) { 70 } else { 1 };

    /// Two states that differ in every part; `n` of the first is 0.
    fn state(n: u32) -> Kept {
        let mut hash = HashSettings::default();
        let mut multicast = MulticastList::default();
        if n > 0 {
            let _ = hash.set_algorithm(1);
            let _ = hash.set_flags(n & 0xF);
            let _ = hash.set_key(&[n as u8; KEY_MAX]);
            let _ = hash.set_mapping_size(n % 128);
            let table: [u32; MAPPING_MAX] = core::array::from_fn(|i| i as u32 + n);
            let _ = hash.set_mapping(&table[..(n % 128) as usize], 0, 65536);
            for k in 0..n % 65 {
                let _ = multicast.apply(MulticastAsk::Add(MacAddr([1, n as u8, 3, 4, k as u8, 6])));
            }
        }
        let answer = CtrlResponse { id: n as u16, msg_type: 4, status: 2, data: n };
        let request = |k| CtrlRequest { id: k as u16, msg_type: 10, data: [k, n, k * n] };
        let grefs = KeptGrefs {
            versions: core::array::from_fn(|q| n.wrapping_mul(q as u32 + 3)),
            taken: Bounded::of((0..n as usize % 33).map(|k| request(k as u32))).expect("memory"),
        };
        Kept { multicast, hash, last: (n, answer), grefs }
    }

    fn store(page: &mut ControlPage, s: &Kept) {
        page.store(&s.multicast, &s.hash, s.last, &s.grefs);
    }

    #[test]
    fn what_was_stored_last_is_loaded() {
        let memory = Pages::new(1);
        let page = || ControlPage::new(memory.clone()).expect("a page");
        assert_eq!(page().load(), None, "nothing was stored");
        let mut writer = page();
        for n in [0, 1, 127, 64, 300, 2].into_iter().take(if cfg!(miri) { 2 } else { 6 }) {
            store(&mut writer, &state(n));
            assert_eq!(page().load().as_deref(), Some(&state(n)), "{n}");
            // A successor continues from there.
            writer = page();
            assert!(writer.load().is_some());
        }
        let none = Kept { multicast: MulticastList::lost(), ..state(5) };
        store(&mut writer, &none);
        assert_eq!(page().load().as_deref(), Some(&none));
    }

    /// A crash after each single store of a change leaves the old state or the new one, and the new
    /// one only at the end.
    #[test]
    fn a_change_that_is_cut_short_did_not_happen() {
        let cases = [(u32::MAX - 1, 20, 7), (0, 7, 90), (1 << 31, 0, 1)];
        for (first_sequence, old, new) in cases.into_iter().take(if cfg!(miri) { 1 } else { 3 }) {
            let memory = Pages::new(1);
            let page = || ControlPage::new(memory.clone()).expect("a page");
            let mut writer = ControlPage { sequence: first_sequence, ..page() };
            store(&mut writer, &state(3));
            store(&mut writer, &state(old));
            let s = state(new);
            let mut words = [0; WORDS];
            encode(&mut words, writer.sequence.wrapping_add(1), (&s.multicast, &s.hash), s.last, &s.grefs);
            let order = (0..WORDS).filter(|i| *i != CHECKSUM).chain([CHECKSUM]);
            for (done, i) in order.enumerate() {
                if done.is_multiple_of(EVERY) {
                    assert_eq!(page().load().as_deref(), Some(&state(old)), "{done} words were written");
                }
                assert!(memory.store_u32(writer.next * COPY_BYTES + i * 4, words[i]));
            }
            assert_eq!(page().load().as_deref(), Some(&state(new)));
            // The order above is that of `store`.
            let by_hand = Pages::new(1);
            let mut other = ControlPage {
                sequence: first_sequence,
                ..ControlPage::new(by_hand.clone()).expect("a page")
            };
            for s in [state(3), state(old), state(new)] {
                store(&mut other, &s);
            }
            let bytes = |p: &Pages| {
                let mut b = [0; CONTROL_BYTES];
                assert!(p.copy_out(0, &mut b));
                b
            };
            assert!(bytes(&memory) == bytes(&by_hand));
        }
    }

    #[test]
    fn damage_and_other_versions_are_not_believed() {
        let memory = Pages::new(1);
        let page = || ControlPage::new(memory.clone()).expect("a page");
        let mut writer = page();
        store(&mut writer, &state(90));
        for i in (0..WORDS).step_by(EVERY) {
            let right = memory.load_u32(i * 4).expect("a word");
            for wrong in [right ^ 1, right ^ 0x8000_0000, !right] {
                assert!(memory.store_u32(i * 4, wrong));
                assert_eq!(page().load(), None, "word {i}");
            }
            assert!(memory.store_u32(i * 4, right));
        }
        // A valid checksum over an impossible state.
        let s = state(90);
        let mut good = [0; WORDS];
        encode(&mut good, 1, (&s.multicast, &s.hash), s.last, &s.grefs);
        for (i, value) in [(FLAGS, 16), (ALGORITHM, 2), (SIZE, 129), (NR_MACS, 65), (NR_TAKEN, 33)] {
            let mut words = good;
            words[i] = value;
            words[CHECKSUM] = checksum(&words);
            for (k, word) in words.iter().enumerate() {
                assert!(memory.store_u32(k * 4, *word));
            }
            assert_eq!(page().load(), None, "word {i} is {value}");
        }
    }
}
