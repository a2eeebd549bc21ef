//! The guest's settings for the frames to it, as one RX queue knows them.
//!
//! ```text
//!   SharedControl --changed--> GuestSettings, the queue's own copy --> which multicast frames, which hash, which queue
//! ```
//! They are a copy, so that no queue locks anything per batch; it is updated when the number of
//! changes differs.
//!
//! Invariant: the copy is made in memory that the queue has from its beginning, since a queue may
//! be polled where memory cannot be waited for.
//!
//! What a guest may do: change its settings at any rate. Each change costs its own queues a copy,
//! of the multicast addresses always, of the five kilobytes of hash settings if these changed.

use super::hash::HashSettings;
use super::multicast::MulticastList;
use crate::error::PlatformError;
use crate::memory;
use crate::net::batch::FrameHash;
use crate::net::headers::addresses;
use crate::port::{Arena, BURST_FRAMES, Steering};
use alloc::boxed::Box;
use alloc::sync::Arc;

/// The hashes of a burst's frames, by frame.
pub type Hashes = [Option<FrameHash>; BURST_FRAMES];

/// An RX queue's copy of the settings.
#[derive(Debug, Default)]
pub struct GuestSettings {
    pub(super) multicast: MulticastList,
    pub(super) hash: HashSettings,
    /// Counts changes of the settings that ports must know.
    pub(super) steered: u32,
    /// How ports must distribute frames over the vif's queues. None: as they like.
    pub(super) steering: Option<Arc<dyn Steering>>,
}

impl GuestSettings {
    /// Settings with memory for all that a guest may set.
    pub fn new() -> Result<Box<Self>, PlatformError> {
        let mut settings = memory::boxed(Self::default())?;
        settings.hash.make_room()?;
        Ok(settings)
    }

    /// The multicast frames that the guest wants.
    pub fn multicast(&self) -> &MulticastList {
        &self.multicast
    }

    /// Whether frames for the guest must be parsed.
    #[inline(always)]
    pub fn touches_rx(&self) -> bool {
        self.hash.is_on() || self.multicast.filters()
    }

    /// Drops the frames in `arena` that the guest does not want, and computes the hashes of the
    /// others. Returns how many it dropped.
    pub fn prepare(&self, arena: &mut Arena, hashes: &mut Hashes) -> u64 {
        let mut dropped = 0;
        for (i, hash) in hashes.iter_mut().enumerate().take(arena.len()) {
            let burst = arena.burst();
            let frame = burst.frame(i);
            let wanted = addresses(frame).is_none_or(|(dst, _)| self.multicast.wants(dst));
            *hash = if wanted && self.hash.is_on() { self.hash.hash(frame) } else { None };
            if !wanted {
                arena.drop_frame(i);
                dropped += 1;
            }
        }
        dropped
    }
}
