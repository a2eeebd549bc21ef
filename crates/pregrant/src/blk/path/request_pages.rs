//! Limits the pages that are mapped for single requests, and handles requests that would exceed the
//! limit.
//!
//! ```text
//!   a request's pages --fit into what may be mapped?--> mapped, and unmapped when it is over
//!                                                  no--> all of its bytes go by grant copy, which maps nothing
//! ```
//! Invariant: no more pages than the limit are mapped, apart from those that were mapped before it
//! was lowered. So a disk needs only its ring pages to serve requests of any length, and its
//! guest's other devices may use the rest (docs/decisions/0039).
//!
//! What a front may do: ask for more than fits. Then its data is copied, in memory that the limit
//! of segments in flight bounds.

use super::back::{BackPath, Direction, Held, PageTransfer, Part};
use super::copy::back::CopyPath;
use crate::blk::disk::IoMemory;
use crate::platform::Platform;
use crate::units::DomId;

/// The pages of one queue that are mapped for single requests.
#[derive(Debug)]
pub(super) struct RequestPages {
    limit: usize,
    mapped: usize,
    copy: CopyPath,
    /// Number of requests whose data is copied.
    copied: usize,
}

impl Default for RequestPages {
    fn default() -> Self {
        Self { limit: usize::MAX, mapped: 0, copy: CopyPath::default(), copied: 0 }
    }
}

impl RequestPages {
    /// Sets the limit.
    pub(super) fn limit_pages(&mut self, pages: usize) {
        self.limit = pages;
    }

    /// Whether this many pages may be mapped for a request now. If so, they count until the request
    /// has [ended](Self::end).
    pub(super) fn takes<P: Platform>(&mut self, pages: usize, held: &mut Held<P>) -> bool {
        let fits = self.mapped.checked_add(pages).is_some_and(|all| all <= self.limit);
        if fits {
            self.mapped += pages;
            held.alone = pages;
        }
        fits
    }

    /// Prepares memory for a request whose data is copied.
    pub(super) fn begin_copy<P: Platform>(
        &mut self,
        p: &P,
        of: DomId,
        way: Direction,
        parts: &[Part],
        held: &mut Held<P>,
    ) -> Option<IoMemory> {
        held.copied = true;
        self.copied += 1;
        self.copy.begin(p, of, way, parts, held)
    }

    /// [`BackPath::fetch`], for copied requests.
    pub(super) fn fetch<'a, P: Platform>(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut [PageTransfer],
        parts: impl Fn(u32) -> &'a [Part],
    ) {
        if self.copied > 0 {
            self.copy.fetch(p, of, batch, parts);
        }
    }

    /// [`BackPath::deliver`], for copied requests.
    pub(super) fn deliver<'a, P: Platform>(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut [PageTransfer],
        parts: impl Fn(u32) -> &'a [Part],
    ) {
        if self.copied > 0 {
            self.copy.deliver(p, of, batch, parts);
        }
    }

    /// A request has ended, or did not begin: what was mapped for it is unmapped with its batch.
    /// Returns its memory, unless that was a buffer for a copy.
    pub(super) fn end<P: Platform>(&mut self, memory: IoMemory, held: &mut Held<P>) -> IoMemory {
        self.mapped -= core::mem::take(&mut held.alone);
        if core::mem::take(&mut held.copied) {
            self.copied -= 1;
            BackPath::<P>::end(&mut self.copy, memory, held);
            return IoMemory::default();
        }
        memory
    }
}
