//! The shared ring: requests in one direction and responses in the other, in the same slots
//! (docs/protocol 1).
//!
//! ```text
//!   page:  | req_prod | req_event | rsp_prod | rsp_event | pad to 64 | slot 0 | slot 1 | ... | slot N-1 |
//!             front      back        back       front                  a response overlays its request
//!
//!   FrontRing:  free -> push.. -> publish => Notify        available -> read.. -> consume   (sleep?) final_check
//!   BackRing:   available -> read.. -> consume             answer => Notify                 (sleep?) final_check
//! ```
//!
//! Invariants: each side's own indices are private and only stored to the page. The peer's index is
//! cached, read again when fewer requests than wanted are cached, and checked in release builds
//! too. Each slot is copied once, and the copy is validated. The number of slots is private too. A
//! full fence separates publishing an index from reading the peer's event index, and setting one's
//! own event index from reading the peer's index again: acquire and release are not enough.
//!
//! What a peer may do: write any index or slot at any time. The worst results are an index that is
//! refused ([`PeerFault`](crate::PeerFault)), a slot whose content is refused, or never being
//! woken.

mod back;
pub(crate) mod crash;
mod front;
mod journal;
mod journal_by_id;
mod kind;
mod memory;
mod redo;
mod redo_words;

pub use back::BackRing;
pub use front::FrontRing;
pub use journal::{Journal, Resumed};
pub use journal_by_id::{ById, Taken, by_id_words};
pub use kind::{AnyOrder, Blkif32, Blkif64, NetCtrl, NetRx, NetTx, RingKind, RingMem, Word};
pub use memory::RingPages;
pub use redo::{InFlight, REDO_RECORDS, RedoPage};
pub use redo_words::{REDO_BYTES, RedoMem, RedoWords};

/// Whether the peer asked to be notified of what was just published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a peer that sleeps is only woken by a notification"]
pub enum Notify {
    /// The peer's event index is among the published indices: send an event.
    Yes,
    /// The peer polls, or was notified earlier.
    No,
}

impl Notify {
    /// The test of docs/protocol 1: whether `event` is in `(old, new]`, in wrapping arithmetic.
    #[inline(always)]
    pub fn test(old: u32, new: u32, event: u32) -> Notify {
        if new.wrapping_sub(event) < new.wrapping_sub(old) { Notify::Yes } else { Notify::No }
    }

    /// Whether an event must be sent.
    #[inline(always)]
    pub fn wanted(self) -> bool {
        self == Notify::Yes
    }
}
