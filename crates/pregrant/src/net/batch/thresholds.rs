//! The frame lengths up to which payload is copied, and from which it stays in its pages.
//!
//! These are settings of the operator, since the best lengths depend on the machine.

/// The lengths that select between copying and zero-copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// The path `map` leaves frames of at most this many bytes to a grant copy.
    pub copy_below: u32,
    /// A path whose pages stay mapped passes frames longer than this many bytes zero-copy to a port
    /// that supports it; shorter frames are copied.
    pub lend_from: u32,
}

impl Thresholds {
    /// Bytes of a head, which is always copied, so no threshold is lower.
    pub const LEAST: u32 = 128;

    /// The defaults. For a zero-copy frame each fragment costs a virtqueue's worker about 180
    /// instructions, as much as copying 1440 bytes (`cargo xtask rig 32 --profile`:
    /// `vhost_get_vq_desc`, `translate_desc`).
    pub const USUAL: Self = Self { copy_below: Self::LEAST, lend_from: 2048 };
}

impl Default for Thresholds {
    fn default() -> Self {
        Self::USUAL
    }
}
