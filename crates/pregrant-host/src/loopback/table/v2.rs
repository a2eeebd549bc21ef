//! Version 2: what is granted and whether it is in use are words apart, so ending a grant exchanges
//! nothing.
//!
//! ```text
//!   granting domain, end           Xen, a use
//!   flags := invalid               status: claimed by one exchange (SeqCst)
//!   full fence                     flags read once more (SeqCst): invalid? the claim is taken back
//!   status read: free? ended       the bytes
//!   in use? flags stand again      status := what it was, with release order
//! ```
//! Each side writes its word before it reads the other's. With the fence on one side and two SeqCst
//! accesses on the other, not both can miss: either the use sees that the grant has ended, or the
//! end sees the use. The end reads the status with acquire order: the last use's bytes come before
//! what the owner does with the page next. Loom runs this file
//! (`crates/pregrant/tests/mailbox_loom.rs`).
//!
//! Where nothing uses the page this costs the owner a store and a fence, for many grants one fence
//! in all; a use costs one exchange, which also keeps a second one out. Version 1 has three.
//!
//! What a peer may do: claim again and again, so that an end comes late: it is refused while flags
//! are invalid, and who has no grant is refused before it claims.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence, ordered_as_seq_cst};
use pregrant::wire::grant::GTF_PERMIT_ACCESS;

const PERMIT: u32 = GTF_PERMIT_ACCESS as u32;

/// From now on, and the next fence, no use of the page begins.
pub fn disable(head: &AtomicU32) {
    head.store(head.load(Ordering::Relaxed) & !PERMIT, Ordering::Relaxed);
}

/// The grant stands again, as it was.
pub fn stand(head: &AtomicU32) {
    head.store(head.load(Ordering::Relaxed) | PERMIT, Ordering::Release);
}

/// Between the end of grants and the look at their statuses.
pub fn before_statuses() {
    fence(Ordering::SeqCst);
}

/// Whether nothing uses the page.
pub fn is_free(status: &AtomicU64) -> bool {
    status.load(Ordering::Acquire) == 0
}

/// Ends a grant. False: it is in use, and stands.
pub fn end(head: &AtomicU32, status: &AtomicU64) -> bool {
    if !is_free(status) {
        return false;
    }
    disable(head);
    before_statuses();
    let ended = is_free(status);
    if !ended {
        stand(head);
    }
    ended
}

/// The entry's state once its status is claimed by a SeqCst exchange.
#[inline(always)]
pub fn claimed(head: &AtomicU32) -> u32 {
    ordered_as_seq_cst();
    head.load(Ordering::SeqCst)
}
