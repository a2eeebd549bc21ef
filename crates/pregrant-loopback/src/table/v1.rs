//! Version 1: one word holds what is granted, to whom, and whether it is in use.
//!
//! ```text
//!   end:       (flags, domid) -> 0 by one exchange, only while neither reading nor writing is set
//!   begin_use: flags |= reading[, writing] by one exchange, tried four times, as in Xen
//! ```
//! Both sides exchange the same word, so one exchange comes first and the other side sees it.

use super::head::Head;
use pregrant::DomId;
use pregrant::wire::grant::{GTF_READING, GTF_WRITING, GrantStatus};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Returns true if the flags mark the page as in use.
pub(super) fn in_use(flags: u16) -> bool {
    flags & (GTF_READING | GTF_WRITING) != 0
}

/// Ends a grant. Returns false if it is in use.
pub(super) fn end(word: &AtomicU32) -> bool {
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        if in_use(Head::of(seen).flags) {
            return false;
        }
        match word.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => seen = now,
        }
    }
    // The owner's next use of the page must come after the end of the grant.
    fence(Ordering::SeqCst);
    true
}

/// Checks the entry and sets its reading and writing flags. The lock must be held.
#[inline(always)]
pub(super) fn begin_use(word: &AtomicU32, user: DomId, write: bool) -> Result<(), GrantStatus> {
    let wanted = if write { GTF_READING | GTF_WRITING } else { GTF_READING };
    let mut seen = word.load(Ordering::Relaxed);
    let mut tries = 0;
    loop {
        Head::of(seen).allows(user, write)?;
        let next = seen | u32::from(wanted);
        if next == seen {
            return Ok(());
        }
        match word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(_) if tries == 3 => return Err(GrantStatus::GENERAL_ERROR),
            Err(now) => seen = now,
        }
        tries += 1;
    }
}

/// Ends a use: keeps the flags that the remaining users need, and clears the others.
#[inline(always)]
pub(super) fn end_use(word: &AtomicU32, used: bool, written: bool) {
    let stale = match (used, written) {
        (false, _) => GTF_READING | GTF_WRITING,
        (true, false) => GTF_WRITING,
        (true, true) => 0,
    };
    if word.load(Ordering::Relaxed) & u32::from(stale) != 0 {
        word.fetch_and(!u32::from(stale), Ordering::SeqCst);
    }
}
