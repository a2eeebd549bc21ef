//! Of one queue: the pages of the guest's own memory that the back has, and the requests that name
//! them.

use super::cache::GrefCache;
use crate::error::PlatformError;
use crate::memory;
use crate::port::MAX_FRAME;
use alloc::boxed::Box;

pub(crate) const NO_PLACE: u32 = u32::MAX;

/// See the module.
pub struct AnnouncedPages {
    pub(crate) cache: GrefCache,
    /// By id of the request: the page's place, or [`NO_PLACE`].
    places: Box<[u32]>,
    /// For frames over several pages, none of which the back has.
    pub(crate) scratch: Box<[u8]>,
}

impl AnnouncedPages {
    /// Of a queue with so many ids. The cache is asked for last, so that it is not lost.
    pub(crate) fn new(
        cache: impl FnOnce() -> Result<GrefCache, PlatformError>,
        ids: usize,
    ) -> Result<Self, PlatformError> {
        let (places, scratch) = (memory::list(NO_PLACE, ids)?, memory::list(0, MAX_FRAME)?);
        Ok(Self { cache: cache()?, places, scratch })
    }

    /// The request of `id` is about the page at `place`.
    #[inline(always)]
    pub(crate) fn note(&mut self, id: u16, place: u32) {
        if let Some(of_id) = self.places.get_mut(usize::from(id)) {
            *of_id = place;
        }
    }

    /// The request of `id` was answered.
    #[inline(always)]
    pub(crate) fn answered(&mut self, id: u16) {
        let of_id = self.places.get_mut(usize::from(id));
        let place = of_id.map_or(NO_PLACE, |place| core::mem::replace(place, NO_PLACE));
        if place != NO_PLACE {
            self.cache.answered(place);
        }
    }
}
