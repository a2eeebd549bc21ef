//! Requests that name a received buffer by its number, by a flag: they are the ordinary ones of a
//! queue that has staging both ways (docs/protocol 3.5).
//!
//! What a front may do: name any number; the fetch checks whether there is such a buffer.

use crate::net::path::back::RequestClaims;

/// The flag; 0: they may not, and it means nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct ByNumber(pub u16);

impl RequestClaims for ByNumber {
    #[inline(always)]
    fn buffer_flag(self) -> u16 {
        self.0
    }
}
