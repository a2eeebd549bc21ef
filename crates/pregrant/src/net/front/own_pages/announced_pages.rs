//! For one queue: the pages of the guest's own memory that the back has mapped, and the requests
//! that name them.

use super::cache::GrefCache;
use crate::error::PlatformError;
use crate::memory;
use crate::port::MAX_FRAME;
use alloc::boxed::Box;

pub(crate) const NO_PLACE: u32 = u32::MAX;

/// For a TX queue: which of the guest's own pages the back has mapped, and which of them requests
/// in flight use.
pub struct AnnouncedPages {
    pub(crate) cache: GrefCache,
    /// For each request id the index of the page that it uses, or [`NO_PLACE`].
    places: Box<[u32]>,
    /// Scratch memory for the copy of a frame over several pages, if the back has mapped none of
    /// them.
    pub(crate) scratch: Box<[u8]>,
}

impl AnnouncedPages {
    /// Creates the table of a queue with `ids` request ids.
    pub(crate) fn new(
        cache: impl FnOnce() -> Result<GrefCache, PlatformError>,
        ids: usize,
    ) -> Result<Self, PlatformError> {
        let (places, scratch) = (memory::list(NO_PLACE, ids)?, memory::list(0, MAX_FRAME)?);
        Ok(Self { cache: cache()?, places, scratch })
    }

    /// Notes that the request of `id` names the page at `place`.
    #[inline(always)]
    pub(crate) fn note(&mut self, id: u16, place: u32) {
        if let Some(of_id) = self.places.get_mut(usize::from(id)) {
            *of_id = place;
        }
    }

    /// Notes that the request of `id` was answered.
    #[inline(always)]
    pub(crate) fn answered(&mut self, id: u16) {
        let of_id = self.places.get_mut(usize::from(id));
        let place = of_id.map_or(NO_PLACE, |place| core::mem::replace(place, NO_PLACE));
        if place != NO_PLACE {
            self.cache.answered(place);
        }
    }
}
