//! Ordinary pages as a path at the front: they carry the frames that no other path does.

pub use super::pages::OrdinaryPages;

use super::pages_of_ids::PagesOfIds;
use crate::error::PlatformError;
use crate::net::front::regions::Region;
use crate::net::path::front::FrontPath;
use crate::net::path::path_name::PathName;
use crate::platform::Platform;
use crate::port::Piece;
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;

#[cold]
fn prefetch_added<P: Platform>(pages: &OrdinaryPages<P>, at: usize, len: usize) {
    if let Some(page) = pages.added(at / PAGE_SIZE) {
        page.bytes().prefetch_read(at % PAGE_SIZE, len);
    }
}

/// The grant of an id whose page is not in the region: either the page is to be returned, or it was
/// added later.
#[cold]
fn grant_of_added<P: Platform>(pages: &mut OrdinaryPages<P>, id: u16) -> Option<u32> {
    pages.of_ids.iter_mut().for_each(|of_ids| of_ids.give_back(id));
    pages.added(id.into())?.refs().first().map(|gref| gref.0)
}

#[cold]
fn piece_of_added<P: Platform>(pages: &OrdinaryPages<P>, at: usize, len: usize) -> Option<Piece<'_>> {
    pages.added(at / PAGE_SIZE)?.bytes().piece(at % PAGE_SIZE, len)
}

impl<P: Platform> OrdinaryPages<P> {
    /// Number of ids that have a page.
    pub fn ids(&self) -> u32 {
        self.count
    }

    /// TX: shares the pages among `n` ids; as many are in flight at a time as there are pages.
    pub fn serve_ids(&mut self, n: u32) -> Result<(), PlatformError> {
        let of_ids = if n > self.count { Some(PagesOfIds::new(n, self.count)?) } else { None };
        self.of_ids = of_ids;
        Ok(())
    }
}

impl<P: Platform> FrontPath<P> for OrdinaryPages<P> {
    const NAME: PathName = PathName::Copy;
    const IN_PAGES: bool = true;

    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        PAGE_SIZE
    }
    #[inline(always)]
    fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }
    #[inline(always)]
    fn start(&self, id: u16) -> usize {
        let page = self.of_ids.as_ref().map_or(id, |pages| pages.of(id));
        usize::from(page) * PAGE_SIZE
    }
    #[inline(always)]
    fn receive(&self, at: usize, len: usize) -> Option<Piece<'_>> {
        self.granted.bytes().piece(at, len).or_else(|| piece_of_added(self, at, len))
    }
    #[inline(always)]
    fn prefetch(&self, at: usize, len: usize) {
        match self.more.is_empty() {
            true => self.granted.bytes().prefetch_read(at, len),
            false => prefetch_added(self, at, len),
        }
    }
    #[inline(always)]
    fn place(&mut self, p: &P, id: u16) -> Result<u32, PlatformError> {
        let page = self.of_ids.as_mut().map_or(id, |pages| pages.take(id));
        match self.granted.grant(p, usize::from(page)) {
            Ok(gref) => Ok(gref.0),
            Err(e) => grant_of_added(self, id).ok_or(e),
        }
    }
    #[inline(always)]
    fn settle(&mut self, p: &P, id: u16) -> bool {
        let Some(pages) = &mut self.of_ids else { return self.granted.settle(p, usize::from(id)) };
        let settled = self.granted.settle(p, usize::from(pages.of(id)));
        if settled {
            pages.give_back(id);
        }
        settled
    }
    #[inline(always)]
    fn holds(&self, _total: usize, _nr_slots: usize) -> bool {
        true
    }
}
