//! The front's pages, named by their frame numbers: ordinary pages, without grants.
//!
//! What a back may do: anything, to these pages and to all others of the guest. Its answers are
//! validated as for any path.

use crate::error::PlatformError;
use crate::net::front::queue_memory::{QueueMemory, RX, TX};
use crate::net::front::regions::{Granted, Region};
use crate::net::front::{FrontQueue, FrontVif};
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::{AnyFrontPath, FrontChain, FrontPath, PathName};
use crate::platform::Platform;
use crate::wire::netif::{RX_FOREIGN, TXF_FOREIGN};
use alloc::vec::Vec;

/// One page for each id.
pub struct ForeignPages<P: Platform> {
    pages: OrdinaryPages<P>,
    first: u32,
    mark: u32,
}

impl<P: Platform> ForeignPages<P> {
    /// These, with `mark` beside each frame; they come back where they have no frames that can be
    /// named.
    pub fn over(p: &P, pages: OrdinaryPages<P>, mark: u32) -> Result<Self, OrdinaryPages<P>> {
        let count = FrontPath::<P>::ids(&pages);
        // Pages that come and go have no numbers in a row.
        match pages.first_frame(p).filter(|_| pages.room().1 == 0) {
            Some(first) if first.checked_add(count).is_some_and(|end| end <= RX_FOREIGN) => {
                Ok(Self { pages, first, mark })
            }
            _ => Err(pages),
        }
    }
}

/// Pages for both directions of a queue, named where they can be; nothing is granted before they
/// are posted.
pub(super) fn take_pages<P: Platform>(queue: &mut QueueMemory<'_, P>) -> Result<(), PlatformError> {
    for (dir, mark) in [(TX, 0), (RX, RX_FOREIGN)] {
        let pages = queue.pages(dir)?;
        queue.chains[dir].insert(AnyFrontPath::Copy(pages));
        queue.chains[dir].name_frames(queue.p, mark);
    }
    Ok(())
}

impl<P: Platform> FrontChain<P> {
    /// Pages are named by their frames from now on, with `mark` beside. Ordinary pages they stay
    /// where they have no numbers.
    pub fn name_frames(&mut self, p: &P, mark: u32) {
        let Some(pages) = self.take_pages() else { return };
        self.insert(match ForeignPages::over(p, pages, mark) {
            Ok(frames) => AnyFrontPath::Foreign(frames),
            Err(pages) => AnyFrontPath::Copy(pages),
        });
    }
}

impl<P: Platform> FrontQueue<P> {
    /// Whether pages are named by their frames.
    pub fn names_frames(&self) -> bool {
        self.tx().chain().has(PathName::Foreign)
    }
}

impl<P: Platform> FrontVif<P> {
    /// Whether the back has mapped all of this domain, and pages are named by their frames.
    pub fn names_frames(&self) -> bool {
        self.queue(0).is_some_and(FrontQueue::names_frames)
    }
}

impl<P: Platform> FrontPath<P> for ForeignPages<P> {
    const NAME: PathName = PathName::Foreign;
    const TX_FLAGS: u16 = TXF_FOREIGN;
    const LENDS: bool = true;

    fn ids(&self) -> u32 {
        self.pages.ids()
    }
    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        self.pages.slot_bytes()
    }
    #[inline(always)]
    fn carries_all(&self) -> bool {
        true
    }
    #[inline(always)]
    fn bytes(&self) -> &Region<P> {
        self.pages.bytes()
    }
    #[inline(always)]
    fn start(&self, id: u16) -> usize {
        self.pages.start(id)
    }
    #[inline(always)]
    fn grant(&mut self, _p: &P, id: u16) -> Result<u32, PlatformError> {
        Ok((self.first + u32::from(id)) | self.mark)
    }
    #[inline(always)]
    fn pages(&self) -> Option<&OrdinaryPages<P>> {
        Some(&self.pages)
    }
    fn into_pages(self) -> Result<OrdinaryPages<P>, Self> {
        Ok(self.pages)
    }
    fn into_memory(self) -> Vec<Granted<P>> {
        self.pages.into_memory()
    }
}
