//! Up to which length a frame's payload is copied, and from where on it stays in its pages.
//!
//! Settings of the operator: which length is right is a matter of the machine.

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// `map` leaves frames of no more bytes to a grant copy.
    pub copy_below: u32,
    /// A path whose pages stay mapped lends frames of more bytes, to a port that reads payload in
    /// place; shorter ones are copied.
    pub lend_from: u32,
}

impl Thresholds {
    /// Bytes of a head, which is copied in any case: no threshold is below.
    pub const LEAST: u32 = 128;

    /// Where no one says. Of a lent frame each piece costs a virtqueue's worker some 180
    /// instructions, as many as it takes to copy 1440 bytes (`cargo xtask rig 32 --profile`:
    /// `vhost_get_vq_desc`, `translate_desc`).
    pub const USUAL: Self = Self { copy_below: Self::LEAST, lend_from: 2048 };
}

impl Default for Thresholds {
    fn default() -> Self {
        Self::USUAL
    }
}
