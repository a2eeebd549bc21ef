//! A ring whose back is the tape.

use crate::tape::Tape;
use pregrant::platform::local::LocalMap;
use pregrant::ring::{RingKind, RingMem, RingPages, Word};

/// The back's end of a ring in the hands of the tape.
pub struct RawRing<K> {
    pub mem: RingPages<K, LocalMap>,
    /// Number of the front's answers that were taken.
    pub cons: u32,
    pub rsp_prod: u32,
    /// The index shown is not the back's own, or was not: from now on only that nothing breaks is
    /// checked.
    pub lied: bool,
}

impl<K: RingKind> RawRing<K> {
    pub fn new(mem: RingPages<K, LocalMap>, start: u32) -> Self {
        Self { mem, cons: start, rsp_prod: start, lied: false }
    }
    pub fn show(&self) {
        self.mem.store(Word::RspProd, self.rsp_prod);
    }
    pub fn show_wrong_index(&mut self, tape: &mut Tape<'_>) {
        let by = tape.one_of(&[1u32, 256, 257, 0x8000_0000, u32::MAX]) ^ u32::from(tape.u8());
        self.mem.store(Word::RspProd, self.rsp_prod.wrapping_add(by));
        self.lied = true;
    }
    /// Number of requests without an answer.
    pub fn asked(&self) -> u32 {
        self.mem.load(Word::ReqProd).wrapping_sub(self.rsp_prod)
    }
}
