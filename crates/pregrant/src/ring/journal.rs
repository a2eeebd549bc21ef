//! A back's record of its ring in memory that outlives it, by which a successor takes up the live
//! ring (docs/protocol 1.1).
//!
//! ```text
//!   RedoPage   answers in request order: what was not answered is on the ring still         net
//!   ById       answers in any order, over requests that wait: what was taken is kept here   block
//! ```

use super::{Notify, RingKind, RingMem, Word};
use crate::error::PeerFault;

/// Where a back goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// Answers that are published.
    pub rsp_prod: u32,
    /// Requests that were taken.
    pub req_cons: u32,
    /// Whether the front asked to be notified of what was published now.
    pub notify: Notify,
    /// By a record of this ring, as it is now. Without one no one knows whether a predecessor died
    /// while it wrote answers.
    pub is_recorded: bool,
}

impl Resumed {
    /// Nothing was taken that is not answered.
    pub fn at(rsp_prod: u32, notify: Notify) -> Self {
        Self { rsp_prod, req_cons: rsp_prod, notify, is_recorded: false }
    }
}

/// A journal for rings of kind `K`. How a back writes it depends on the order of its answers; a
/// successor reads each in the same way.
pub trait Journal<K: RingKind> {
    /// Finishes on the ring what a predecessor began, and says where to go on. Nothing else reads
    /// the memory before.
    fn resume<M: RingMem<Kind = K>>(&mut self, mem: &M) -> Result<Resumed, PeerFault>;
}

/// Requests that are asked from `rsp_prod` on; a fault where the ring cannot hold so many.
pub(super) fn asked<M: RingMem>(mem: &M, rsp_prod: u32) -> Result<u32, PeerFault> {
    let req_prod = mem.load(Word::ReqProd);
    let asked = req_prod.wrapping_sub(rsp_prod);
    if asked > mem.size() { Err(PeerFault::BadAttach { req_prod, rsp_prod }) } else { Ok(asked) }
}
