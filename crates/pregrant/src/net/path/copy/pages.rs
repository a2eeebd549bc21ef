//! Ordinary pages of a queue, one per id: granted for each frame where the platform can grant its
//! own pages, else a standing pool (with Linux's gntalloc an allocation *is* the grant).
//!
//! ```text
//!   0 .. count     one region, for the life of the connection
//!   0; 1 .. room   RX, in a pool: the others each by itself, to come and go (net/front/rx_pages)
//! ```

use super::pages_of_ids::PagesOfIds;
use crate::error::PlatformError;
use crate::memory;
use crate::net::front::regions::{Granted, Granting, Regions};
use crate::platform::{Access, GrantPool, Platform};
use crate::units::GrantRef;
use alloc::boxed::Box;

/// One granted page for each id, or for each id that is in flight.
pub struct OrdinaryPages<P: Platform> {
    pub(super) granted: Granted<P>,
    /// Number of pages that ids use; there may be more.
    pub(super) count: u32,
    /// TX: which page each id uses, if there are more ids than pages.
    pub(super) of_ids: Option<PagesOfIds>,
    /// There are more pages than ids in flight, so that each page rests before it is written again.
    pub(super) rest: bool,
    /// For RX pages that come and go: the pages that were added, and room for more.
    pub(super) more: Box<[Option<Granted<P>>]>,
}

impl<P: Platform> OrdinaryPages<P> {
    /// Grants `n` pages.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        acc: Access,
        n: u32,
        granting: Granting,
    ) -> Result<Self, PlatformError> {
        let granted = regions.take(p, acc, n as usize, granting)?;
        Ok(Self { granted, count: n, of_ids: None, rest: false, more: Box::default() })
    }

    /// True if there are more pages than ids in flight, so that each page rests before it is
    /// written again.
    pub fn rest(&self) -> bool {
        self.rest
    }

    /// Lets these pages rest between two uses.
    pub fn resting(self) -> Self {
        Self { rest: true, ..self }
    }

    /// Grants `n` pages one by one, with room for `more` that are added later. One page is never
    /// given back. With `more` = 0 this is an ordinary set of pages.
    pub fn pool(
        p: &P,
        regions: &mut Regions<P>,
        acc: Access,
        n: u32,
        more: u32,
    ) -> Result<Self, PlatformError> {
        if more == 0 {
            return Self::new(p, regions, acc, n, Granting::Standing);
        }
        let first = n.saturating_sub(1);
        let room = memory::collected((0..(first + more) as usize).map(|_| None))?;
        let granted = regions.take_exactly(p, acc, 1)?;
        let mut pages = Self { granted, count: n, of_ids: None, rest: false, more: room };
        let mut failed = None;
        for place in pages.more.iter_mut().take(first as usize) {
            match regions.take_exactly(p, acc, 1) {
                Ok(granted) => *place = Some(granted),
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        let Some(e) = failed else { return Ok(pages) };
        pages.into_all().for_each(|granted| regions.put(p, granted));
        Err(e)
    }

    /// Number of pages.
    pub fn count(&self) -> usize {
        self.granted.count() + self.more.iter().flatten().count()
    }

    /// Range of page numbers for pages that are added and removed: first number and length. Length
    /// 0 unless this is a pool.
    pub fn room(&self) -> (u16, u32) {
        (self.granted.count() as u16, self.more.len() as u32)
    }

    /// A number in [that range](Self::room) that no page has. None: the pool is full.
    pub fn free_number(&self) -> Option<u16> {
        let at = self.more.iter().position(Option::is_none)?;
        Some((self.granted.count() + at) as u16)
    }

    /// The place of a page that can be added.
    fn added_mut(&mut self, page: u16) -> Option<&mut Option<Granted<P>>> {
        self.more.get_mut(usize::from(page).checked_sub(self.granted.count())?)
    }

    /// A page that was added.
    pub(super) fn added(&self, page: usize) -> Option<&Granted<P>> {
        self.more.get(page.checked_sub(self.granted.count())?)?.as_ref()
    }

    /// Adds a page under this number. Returns the page if the number is in use or out of range.
    pub fn add(&mut self, page: u16, granted: Granted<P>) -> Result<(), Granted<P>> {
        match self.added_mut(page) {
            Some(place @ None) => {
                *place = Some(granted);
                Ok(())
            }
            _ => Err(granted),
        }
    }

    /// Numbers and grants of the pages that were added.
    pub fn added_refs(&self) -> impl Iterator<Item = (u16, GrantRef)> {
        let numbers = self.room().0..;
        let refs = |granted: &Granted<P>| granted.refs().first().copied();
        numbers
            .zip(&self.more)
            .filter_map(move |(number, place)| Some((number, place.as_ref().and_then(refs)?)))
    }

    /// Removes a page that was added. None: there is no page of this number.
    pub fn take_added(&mut self, page: u16) -> Option<Granted<P>> {
        self.added_mut(page)?.take()
    }

    /// The grants of the pages that stay: one for each id, or a pool's only one.
    pub fn refs(&self) -> &[GrantRef] {
        let refs = self.granted.refs();
        refs.get(..refs.len().min(self.count as usize)).unwrap_or_default()
    }

    /// The frame number, in this domain's memory, of the first page.
    pub fn first_frame(&self, p: &P) -> Option<u32> {
        p.grants().first_frame(self.granted.bytes())
    }

    /// Takes this apart and returns the pages that stay, for [`Regions::put`].
    pub fn into_granted(self) -> Granted<P> {
        self.granted
    }

    /// Takes this apart and returns all pages, those that were added too.
    pub fn into_all(self) -> impl Iterator<Item = Granted<P>> {
        core::iter::once(self.granted).chain(self.more.into_iter().flatten())
    }
}
