//! Features that a front asked for and did not get, because its back offers less, or there is no
//! memory for more queues. The disk continues with less, and its owner logs it.

use crate::blk::features::BackFeatures;
use crate::wire::blkif::SEGMENTS_MAX;
use alloc::vec::Vec;
use core::fmt;

/// A feature that the front did not get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotOffered {
    /// The front asked for more queues than it got.
    Queues {
        /// The number that the front asked for.
        asked: u32,
        /// The number that the front got.
        got: u32,
    },
    /// The front asked for larger rings than the back offers.
    RingPages {
        /// Pages per ring that the front asked for.
        asked: u32,
        /// Pages per ring that the back offers.
        offered: u32,
    },
    /// The front asked for longer requests than the back offers.
    Segments {
        /// Segments per request that the front asked for.
        asked: u32,
        /// Segments per request that the back offers.
        offered: u32,
    },
}

/// What a front asks of a back.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub queues: u32,
    pub ring_order: u32,
    pub max_segments: u32,
}

impl NotOffered {
    /// Compares the request with the back's features; `queues` is the number of queues that were
    /// made.
    pub(super) fn by(back: &BackFeatures, asked: Asked, queues: u32) -> Vec<Self> {
        let mut all = Vec::new();
        if asked.queues > queues {
            all.push(Self::Queues { asked: asked.queues, got: queues });
        }
        if asked.ring_order > back.max_ring_order {
            all.push(Self::RingPages { asked: 1 << asked.ring_order, offered: 1 << back.max_ring_order });
        }
        let most = back.max_indirect_segments.max(SEGMENTS_MAX as u32);
        if asked.max_segments > most {
            all.push(Self::Segments { asked: asked.max_segments, offered: most });
        }
        all
    }
}

impl fmt::Display for NotOffered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queues { asked, got } => {
                write!(
                    f,
                    "{asked} queues were asked for; the back and the memory that can be granted allow {got}"
                )
            }
            Self::RingPages { asked, offered } => {
                write!(f, "rings of {asked} pages were asked for; the back accepts {offered}")
            }
            Self::Segments { asked, offered } => {
                write!(f, "block requests of {asked} pages were asked for; the back accepts {offered}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_back_takes_less_of_is_named() {
        let asked = Asked { queues: 4, ring_order: 2, max_segments: 64 };
        let back = BackFeatures::default();
        assert_eq!(NotOffered::by(&back, asked, 4), []);
        let plain = BackFeatures { max_ring_order: 0, max_indirect_segments: 0, ..back };
        let all = [
            NotOffered::Queues { asked: 4, got: 1 },
            NotOffered::RingPages { asked: 4, offered: 1 },
            NotOffered::Segments { asked: 64, offered: 11 },
        ];
        assert_eq!(NotOffered::by(&plain, asked, 1), all);
        assert_eq!(NotOffered::by(&plain, Asked { max_segments: 11, ..asked }, 4), all[1..2]);
    }
}
