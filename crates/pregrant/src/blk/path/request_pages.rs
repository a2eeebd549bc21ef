//! Pages that are mapped for one request alone: how many at a time, and what becomes of a request
//! that would pass that.
//!
//! ```text
//!   a request's pages --fit into what may be mapped?--> mapped, and unmapped when it is over
//!                                                  no--> all of its bytes go by grant copy, which maps nothing
//! ```
//! Invariant: no more than the limit are mapped, beside those that were when it fell. So a disk
//! needs no page but its rings to serve the longest of requests, and its guest's other devices may
//! have the rest (docs/decisions/0039).
//!
//! What a front may do: ask for more than fits. It is served by copies then, whose memory the bound
//! of parts in flight holds.

use super::back::{BackPath, Direction, Held, PageTransfer, Part};
use super::copy::back::CopyPath;
use crate::blk::disk::IoMemory;
use crate::platform::Platform;
use crate::units::DomId;

/// See the module.
#[derive(Debug)]
pub(super) struct RequestPages {
    limit: usize,
    mapped: usize,
    copy: CopyPath,
    /// Requests whose bytes are copied.
    copied: usize,
}

impl Default for RequestPages {
    fn default() -> Self {
        Self { limit: usize::MAX, mapped: 0, copy: CopyPath::default(), copied: 0 }
    }
}

impl RequestPages {
    /// So many pages from now on.
    pub(super) fn limit_pages(&mut self, pages: usize) {
        self.limit = pages;
    }

    /// Whether so many may be mapped for a request now: then they count until that is
    /// [over](Self::end).
    pub(super) fn takes<P: Platform>(&mut self, pages: usize, held: &mut Held<P>) -> bool {
        let fits = self.mapped.checked_add(pages).is_some_and(|all| all <= self.limit);
        if fits {
            self.mapped += pages;
            held.alone = pages;
        }
        fits
    }

    /// Memory for a request whose bytes are copied.
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

    /// [`BackPath::fetch`] of those.
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

    /// [`BackPath::deliver`] of those.
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

    /// A request is over, or did not begin: what was mapped for it is let go of with its batch. Its
    /// memory comes back, unless that was a copy's.
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
