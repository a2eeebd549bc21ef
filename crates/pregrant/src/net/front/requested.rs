//! The requests of a front to its back: features that its owner wants and the back offers.

use super::config::FrontConfig;
use super::queue_memory::IDS_MAX;
use super::regions::Granting;
use crate::error::PlatformError;
use crate::memory;
use crate::net::features::{BackFeatures, FrontRequest, QueueKeys};
use crate::net::path::data_ring::negotiation::smaller as smaller_data_rings;
use crate::net::path::staging::wanted::Buffers;
use crate::net::path::{DataRing, Negotiate, Persistent, Staging};
#[cfg(feature = "research")]
use crate::net::path::{Foreign, GuestCopy};
use alloc::vec::Vec;

/// The features that a front requests of its back. By default the front requests nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Requested {
    /// Staging buffers that the front wants.
    pub staging: Buffers,
    /// A data ring of 2^order pages.
    pub data_ring: Option<u32>,
    /// The back may map this whole domain.
    pub foreign: bool,
    /// The back grants pages of its own for RX.
    pub guest_copy: bool,
    /// The back is asked to keep pages mapped.
    pub gref_mapping: bool,
    /// The back keeps pages mapped that it has seen.
    pub persistent: bool,
}

impl Requested {
    /// What a front requests of this back. `can_name`: the platform can name this domain's memory
    /// by frame numbers.
    pub fn of(config: &FrontConfig, back: &BackFeatures, can_name: bool) -> Self {
        let asked = Self {
            staging: Staging::asked(config.staging, &back.staging, can_name),
            data_ring: DataRing::asked(config.data_ring, &back.data_ring, can_name),
            #[cfg(feature = "research")]
            foreign: Foreign::asked(config.foreign, &back.foreign, can_name),
            #[cfg(feature = "research")]
            guest_copy: GuestCopy::asked(config.guest_copy, &back.guest_copy, can_name),
            #[cfg(not(feature = "research"))]
            foreign: false,
            #[cfg(not(feature = "research"))]
            guest_copy: false,
            // The path has no key of its own: each request goes over the control ring.
            gref_mapping: config.gref_mapping && back.ctrl_ring,
            persistent: Persistent::asked(config.persistent, &back.persistent, can_name),
        };
        // A back that has all memory mapped needs no other path.
        if asked.foreign { Self { foreign: true, ..Self::default() } } else { asked }
    }

    /// This request, then ones that need less memory, best first. Staging buffers are given up
    /// before the data ring.
    pub fn smaller(self, back: &BackFeatures) -> Result<Vec<Self>, PlatformError> {
        let mut all = Vec::new();
        for data_ring in smaller_data_rings(self.data_ring) {
            for staging in self.staging.smaller(&back.staging.sizes)? {
                memory::push(&mut all, Self { staging, data_ring, ..self })?;
            }
        }
        Ok(all)
    }

    /// True if the front requests staging buffers. When memory is short at the front, other paths
    /// are reduced before staging buffers are given up.
    pub fn has_staging(&self) -> bool {
        self.staging != Buffers::NONE
    }

    /// True if the front requests more staging buffers than slots. Those beyond the slots are given
    /// up first when memory is short.
    pub fn is_extra(&self) -> bool {
        self.staging.buffers > 0
    }

    /// The same request with no more staging buffers than slots, for this back.
    pub fn without_extra(self, back: &BackFeatures) -> Self {
        self.smaller(back).into_iter().flatten().find(|asked| !asked.is_extra()).unwrap_or(self)
    }

    /// The connection that a front with these queues requests: what the paths ask for all queues
    /// together. A data ring and `guest-copy` are asked for by keys of each queue, and
    /// `gref-mapping` over the control ring.
    pub(super) fn request(&self, queues: Vec<QueueKeys>) -> FrontRequest {
        let Self { staging, data_ring: _, foreign, guest_copy: _, gref_mapping: _, persistent } = *self;
        let mut request = FrontRequest { foreign, persistent, ..FrontRequest::new(queues) };
        request.staging.rx_heads = staging.rx_heads;
        request
    }

    /// Whether the requested paths need the front's ordinary pages granted once or for each frame;
    /// None: they work with either.
    pub fn granting(&self) -> Option<Granting> {
        let Self { staging: _, data_ring: _, foreign, guest_copy: _, gref_mapping, persistent } = *self;
        if gref_mapping || persistent {
            Some(Granting::Standing)
        } else {
            foreign.then_some(Granting::PerFrame)
        }
    }

    /// Number of ordinary pages of a direction, for a vif with `queues` queues: `wanted`, if one of
    /// these paths moves frames in ordinary pages without a grant operation; otherwise 0, which
    /// means as many as there are slots.
    pub fn pages(&self, wanted: u32, back: &BackFeatures, queues: u32) -> u32 {
        let Self { staging: _, data_ring: _, foreign, guest_copy: _, gref_mapping, persistent } = *self;
        let pages = if foreign {
            IDS_MAX // the back has all memory mapped
        } else if gref_mapping || persistent {
            back.mapped_pages_of(queues)
        } else {
            0
        };
        pages.min(wanted)
    }
}
