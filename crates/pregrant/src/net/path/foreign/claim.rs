//! Requests that name frames of the guest, by a flag.
//!
//! What a front may do: name any frame; the fetch checks whether the guest has it.
//! Where this was not agreed on the flag means nothing.

use crate::net::batch::Claim;
use crate::net::path::back::RequestClaims;
use crate::wire::netif::{TXF_FOREIGN, TxRequest};

/// These requests.
pub const CLAIM: Claim = Claim::new(1);

/// Whether requests of a queue may name frames.
#[derive(Clone, Copy, Default, Debug)]
pub struct NamesFrames(bool);

impl NamesFrames {
    /// They may.
    pub const ALLOWED: Self = Self(true);
}

impl RequestClaims for NamesFrames {
    const CLAIM: Option<Claim> = Some(CLAIM);

    #[inline(always)]
    fn any(self) -> bool {
        self.0
    }

    #[inline(always)]
    fn claims(self, req: &TxRequest) -> bool {
        self.0 && req.flags & TXF_FOREIGN != 0
    }
}
