//! Version 2: separate words say what is granted and whether it is in use, so ending a grant needs
//! no exchange.
//!
//! ```text
//!   granting domain, end           Xen, a use
//!   flags := invalid               status: claimed by one exchange (SeqCst)
//!   full fence                     flags read once more (SeqCst): invalid? the claim is taken back
//!   status read: free? ended       the bytes
//!   in use? flags stand again      status := what it was, with release order
//! ```
//! Each side writes its own word before it reads the other's. With a fence on one side and two
//! SeqCst accesses on the other, they cannot both miss: either the use sees that the grant has
//! ended, or the end sees the use. The end reads the status with acquire order, so the last user's
//! accesses come before the owner's next use of the page. Loom runs this file
//! (`crates/pregrant/tests/mailbox_loom.rs`).
//!
//! Ending a grant that is not in use costs the owner a store and a fence; many grants share one
//! fence. A use costs one exchange, which also excludes a second user. Version 1 needs three.
//!
//! What a peer may do: claim again and again to delay an end. It is refused while the flags are
//! invalid, and a user without a grant is refused before it claims.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence, ordered_as_seq_cst};
use pregrant::wire::grant::GTF_PERMIT_ACCESS;

const PERMIT: u32 = GTF_PERMIT_ACCESS as u32;

/// Disables a grant: after this and the next fence no use of its page can begin.
pub fn disable(head: &AtomicU32) {
    head.store(head.load(Ordering::Relaxed) & !PERMIT, Ordering::Relaxed);
}

/// Restores a grant that [`disable`] has disabled.
pub fn stand(head: &AtomicU32) {
    head.store(head.load(Ordering::Relaxed) | PERMIT, Ordering::Release);
}

/// Orders the end of grants before the read of their statuses.
pub fn before_statuses() {
    fence(Ordering::SeqCst);
}

/// Returns true if the page is not in use.
pub fn is_free(status: &AtomicU64) -> bool {
    status.load(Ordering::Acquire) == 0
}

/// Ends a grant. Returns false if it is in use, and remains.
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

/// Returns the entry's flags after its status was claimed by a SeqCst exchange.
#[inline(always)]
pub fn claimed(head: &AtomicU32) -> u32 {
    ordered_as_seq_cst();
    head.load(Ordering::SeqCst)
}
