//! The calls by which a vif's owner sets, and reads, whether the vif trusts its back.
//!
//! What a back may do: see [`trust`](super::trust).

use super::trust::Trust;
use super::vif::FrontVif;
use crate::platform::Platform;

impl<P: Platform> FrontVif<P> {
    /// Sets whether the owner trusts the back, from the next connection on, like `trusted` of the
    /// [configuration](super::FrontConfig::trusted).
    pub fn set_trusted(&mut self, trusted: bool) {
        self.config.trusted = trusted;
    }

    /// Whether the back of this connection may get pages that hold other data of the guest, too.
    pub fn trust(&self) -> Trust {
        self.agreed.trust
    }
}
