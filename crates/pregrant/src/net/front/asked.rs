//! What a front asks of its back: what its owner would like, and the back offers.

use super::config::FrontConfig;
use crate::net::features::BackFeatures;
use crate::net::path::staging::keys::SENT_ON_SINCE;
use crate::net::path::staging::list::DataLen;
use crate::wire::data_ring::ORDER_MIN;

/// See the module. Nothing is asked at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Asked {
    /// To map all of this domain; then none of the others.
    pub foreign: bool,
    /// To keep the pages that it has seen, as this end does.
    pub persistent: bool,
    /// To keep pages mapped that it is told of.
    pub gref_mapping: bool,
    /// To lend pages.
    pub guest_copy: bool,
    /// To take received buffers that are sent on.
    pub sends_on: bool,
    /// Staging, TX and RX.
    pub lens: (Option<DataLen>, Option<DataLen>),
    /// A data ring of so many pages, as the exponent of 2.
    pub data_ring: Option<u32>,
}

impl Asked {
    /// `can_name`: the platform can name this domain's frames.
    pub fn of(config: &FrontConfig, back: &BackFeatures, can_name: bool) -> Self {
        let sends_on = config.zero_copy && back.staging_revision >= SENT_ON_SINCE;
        if config.foreign && back.foreign && can_name {
            return Self { foreign: true, sends_on, ..Self::default() };
        }
        let offered = |len: Option<DataLen>| len.filter(|len| back.staging_sizes.contains(len));
        let ring = config.data_ring.map(|order| order.min(back.max_data_ring_order));
        Self {
            foreign: false,
            persistent: config.persistent && back.persistent,
            gref_mapping: config.gref_mapping && back.ctrl_ring,
            guest_copy: config.guest_copy && back.guest_copy,
            sends_on,
            lens: (offered(config.tx_data_len), offered(config.rx_data_len)),
            data_ring: ring.filter(|order| *order >= ORDER_MIN),
        }
    }
}
