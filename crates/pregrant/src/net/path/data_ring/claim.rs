//! Requests whose bytes are in the data ring: they say so by a flag, and name a place of the half
//! for TX.
//!
//! What a front may do: name any place. One that no frame can have is an error of that frame. Where
//! there is no data ring the flag means nothing, as any unknown one.

use super::PLACE_BYTES;
use crate::net::batch::Claim;
use crate::net::path::back::RequestClaims;
use crate::wire::netif::{TXF_DATA_RING, TxRequest};

/// These requests.
pub const CLAIM: Claim = Claim::new(0);

/// A queue's half for TX, as requests name it.
#[derive(Clone, Copy, Default, Debug)]
pub struct InArea {
    /// 0: there is none.
    half_bytes: u32,
}

impl InArea {
    /// Of a half with so many bytes.
    pub const fn new(half_bytes: u32) -> Self {
        Self { half_bytes }
    }
}

impl RequestClaims for InArea {
    const CLAIM: Option<Claim> = Some(CLAIM);

    #[inline(always)]
    fn any(self) -> bool {
        self.half_bytes > 0
    }

    #[inline(always)]
    fn claims(self, req: &TxRequest) -> bool {
        req.flags & TXF_DATA_RING != 0 && self.any()
    }

    /// Whether that is a place of the data ring, for a frame that has room in it.
    #[inline(always)]
    fn is_place(self, req: &TxRequest) -> Option<bool> {
        let is_whole = req.gref.is_multiple_of(PLACE_BYTES as u32) && req.offset == 0;
        Some(is_whole && req.gref < self.half_bytes && u32::from(req.size) <= self.half_bytes)
    }
}
