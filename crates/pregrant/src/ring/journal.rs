//! A back's record of its ring in memory that outlives the back, from which a successor resumes the
//! live ring (docs/protocol 1.1).
//!
//! ```text
//!   RedoPage   answers in request order: what was not answered is on the ring still         net
//!   ById       answers in any order, over requests that wait: what was taken is kept here   block
//! ```

use super::{Notify, RingKind, RingMem, Word};
use crate::error::PeerFault;

/// The state at which a back resumes a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// Index after the last published answer.
    pub rsp_prod: u32,
    /// Index after the last request that was taken.
    pub req_cons: u32,
    /// Whether the front asked to be notified of what was published by the resume.
    pub notify: Notify,
    /// Whether there was a record of this ring in its current state. Without one it is unknown
    /// whether a predecessor died while it wrote answers.
    pub is_recorded: bool,
}

impl Resumed {
    /// Resumes at an index where every request taken was answered.
    pub fn at(rsp_prod: u32, notify: Notify) -> Self {
        Self { rsp_prod, req_cons: rsp_prod, notify, is_recorded: false }
    }
}

/// A journal for rings of kind `K`. How a back writes it depends on the order of its answers; a
/// successor reads each the same way.
pub trait Journal<K: RingKind> {
    /// Completes on the ring what a predecessor began, and returns where to resume. Call it before
    /// anything else reads the memory.
    fn resume<M: RingMem<Kind = K>>(&mut self, mem: &M) -> Result<Resumed, PeerFault>;
}

/// Number of requests from `rsp_prod` on. It is a fault if the ring cannot hold that many.
pub(super) fn asked<M: RingMem>(mem: &M, rsp_prod: u32) -> Result<u32, PeerFault> {
    let req_prod = mem.load(Word::ReqProd);
    let asked = req_prod.wrapping_sub(rsp_prod);
    if asked > mem.size() { Err(PeerFault::BadAttach { req_prod, rsp_prod }) } else { Ok(asked) }
}
