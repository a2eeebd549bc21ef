//! What a vif's front and its back agreed on at the last set-up. It can be read after the
//! connection has gone, too.
//!
//! What a back may do: offer whatever it likes, and change its offer when it reconnects: the offer
//! is read again then.

use super::not_offered::NotOffered;
use super::requested::Requested;
use super::trust::Trust;
use crate::error::PlatformError;
use crate::net::path::PathName;
use crate::port::Offloads;
use alloc::vec::Vec;

/// The result of a set-up.
pub(super) struct Agreed {
    /// The paths that the front requested of the back.
    pub asked: Requested,
    /// Whether the front grants the back pages that hold other data of the guest, too.
    pub trust: Trust,
    /// Offload work (checksums, segmentation) that the back accepts to do itself.
    pub takes: Offloads,
    /// The back accepts frames over several slots.
    pub takes_sg: bool,
    /// The back filters multicast, on request.
    pub takes_multicast: bool,
    /// Requested features that the back does not offer or refused.
    pub not_offered: Vec<NotOffered>,
    /// Why the queues are fewer or smaller than configured.
    pub shortage: Option<PlatformError>,
}

impl Default for Agreed {
    fn default() -> Self {
        Self {
            asked: Requested::default(),
            trust: Trust::default(),
            takes: Offloads::default(),
            takes_sg: true,
            takes_multicast: false,
            not_offered: Vec::new(),
            shortage: None,
        }
    }
}

impl Agreed {
    /// Notes that the back refused what a queue shared with it for this path.
    pub fn note_refused(&mut self, path: PathName) {
        let refused = NotOffered::Refused(path);
        if !self.not_offered.contains(&refused) {
            self.not_offered.push(refused);
        }
    }
}
