//! Features that a front asked for and its back does not offer or refused: the vif works without
//! them, and its owner logs them.
//!
//! What a back may do: offer any lengths; invalid ones were ignored when its keys were read.

use super::config::FrontConfig;
use super::requested::Requested;
use crate::net::features::BackFeatures;
use crate::net::path::staging::keys::{Offer, SENT_ON_SINCE};
use crate::net::path::staging::list::DataLen;
use crate::net::path::staging::wanted::Buffers;
use crate::net::path::{DataRing, Negotiate, PathName};
use alloc::vec::Vec;
use core::fmt;

/// A feature that the front did not get.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotOffered {
    /// Staging buffers of the requested length.
    DataLen {
        /// The length that the front asked for.
        asked: DataLen,
        /// The lengths that the back offers.
        offered: Vec<DataLen>,
    },
    /// The path with this name.
    Path(PathName),
    /// A path that the back offers. The back refused the memory that the front shared for this
    /// path.
    Refused(PathName),
    /// The requested number of queues.
    Queues {
        /// The number that the front asked for.
        asked: u32,
        /// The number that the back offers.
        offered: u32,
    },
    /// The requested size of the TX or RX rings.
    RingPages {
        /// The requested number of pages.
        asked: u32,
        /// The number that the back offers.
        offered: u32,
    },
    /// Sending a received buffer on without a copy.
    SendingOn,
}

impl NotOffered {
    /// The features of `config` that a back with these features does not offer.
    pub(super) fn by(back: &BackFeatures, config: &FrontConfig, can_name: bool) -> Vec<Self> {
        let mut all = Vec::new();
        let asked = Requested::of(config, back, can_name);
        for path in PathName::ALL.into_iter().filter(|path| path.is_built()) {
            let (wanted, offered) = match path {
                PathName::Staging => {
                    all.extend(Self::of_staging(config.staging, &back.staging, asked.foreign));
                    continue;
                }
                PathName::DataRing => (
                    config.data_ring.is_some(),
                    DataRing::asked(config.data_ring, &back.data_ring, can_name).is_some(),
                ),
                PathName::Foreign => (config.foreign, asked.foreign),
                PathName::GuestCopy => (config.guest_copy, back.guest_copy),
                PathName::GrefMapping => (config.gref_mapping, back.ctrl_ring),
                PathName::Persistent => (config.persistent, back.persistent),
                PathName::Map | PathName::Copy => continue,
            };
            if wanted && !offered {
                all.push(Self::Path(path));
            }
        }
        let (asked, offered) = (config.queues, back.max_queues);
        if asked > offered {
            all.push(Self::Queues { asked, offered });
        }
        let order = back.max_tx_ring_order.min(back.max_rx_ring_order);
        if config.ring_order > order {
            all.push(Self::RingPages { asked: 1 << config.ring_order, offered: 1 << order });
        }
        all
    }

    /// What this back does not offer of the wanted staging buffers. If the back has mapped all
    /// memory, lengths do not matter.
    fn of_staging(wanted: Buffers, offer: &Offer, is_mapped: bool) -> Vec<Self> {
        let mut all = Vec::new();
        let lens = [wanted.tx, wanted.rx].into_iter().flatten();
        for asked in lens.filter(|len| !is_mapped && !offer.sizes.contains(len)) {
            let not_offered = Self::DataLen { asked, offered: offer.sizes.clone() };
            if !all.contains(&not_offered) {
                all.push(not_offered);
            }
        }
        if wanted.sent_on && offer.revision < SENT_ON_SINCE {
            all.push(Self::SendingOn);
        }
        all
    }
}

impl fmt::Display for NotOffered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataLen { asked, offered } if offered.is_empty() => {
                write!(f, "the back has no staging buffers ({} bytes were asked for)", asked.value())
            }
            Self::DataLen { asked, offered } => {
                write!(f, "the back has no staging buffers of {} bytes; it has ", asked.value())?;
                for (k, len) in offered.iter().enumerate() {
                    write!(f, "{}{}", if k > 0 { ", " } else { "" }, len.value())?;
                }
                Ok(())
            }
            Self::Path(path) => write!(f, "the back does not offer {path}"),
            Self::Refused(path) => {
                write!(
                    f,
                    "the back did not take the memory that this front shares for path {path}; see the back's log for the reason"
                )
            }
            Self::Queues { asked, offered } => {
                write!(f, "{asked} queues were asked for, and the back has {offered}")
            }
            Self::RingPages { asked, offered } => {
                write!(f, "rings of {asked} pages were asked for, and the back has {offered}")
            }
            Self::SendingOn => {
                f.write_str("the back does not support sending a received staging buffer on without a copy")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};

    fn said(back: &BackFeatures, config: &FrontConfig) -> Vec<String> {
        NotOffered::by(back, config, true).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_not_offered_is_named_once() {
        let whole = BackFeatures { foreign: true, guest_copy: true, ..BackFeatures::default() };
        let len = DataLen::new(2048);
        let all = FrontConfig {
            queues: 8,
            staging: Buffers { sent_on: true, ..Buffers::of(len, len) },
            ring_order: 4,
            data_ring: Some(5),
            persistent: true,
            gref_mapping: true,
            guest_copy: true,
            ..FrontConfig::default()
        };
        let foreign = FrontConfig { foreign: true, ..FrontConfig::default() };
        assert!(said(&whole, &all).is_empty() && said(&whole, &foreign).is_empty());
        let plain = BackFeatures {
            max_queues: 1,
            max_tx_ring_order: 0,
            max_rx_ring_order: 2,
            persistent: false,
            ctrl_ring: false,
            staging: Offer::NONE,
            data_ring: 0,
            ..BackFeatures::default()
        };
        assert_eq!(
            said(&plain, &all),
            [
                "the back has no staging buffers (2048 bytes were asked for)",
                "the back does not support sending a received staging buffer on without a copy",
                "the back does not offer data-ring",
                "the back does not offer guest-copy",
                "the back does not offer gref-mapping",
                "the back does not offer persistent",
                "8 queues were asked for, and the back has 1",
                "rings of 16 pages were asked for, and the back has 1",
            ]
        );
        assert_eq!(said(&plain, &foreign)[1], "the back does not offer foreign");
        let sizes = [64, 65535].into_iter().filter_map(DataLen::new).collect();
        let some = BackFeatures {
            staging: Offer { sizes, revision: 3, max_pages: 0, rx_heads: false },
            ..BackFeatures::default()
        };
        let asked = FrontConfig { staging: Buffers::of(len, None), ..FrontConfig::default() };
        assert_eq!(said(&some, &asked), ["the back has no staging buffers of 2048 bytes; it has 64, 65535"]);
    }
}
