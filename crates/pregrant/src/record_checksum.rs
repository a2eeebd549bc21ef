//! The checksum of the records that a back keeps in memory that outlives its process: it shows
//! whether a record is complete.
//!
//! It detects a crash in the middle of a record, not an attack: that memory is private to the
//! back's domain.

/// The checksum of these words, in order.
pub(crate) fn of(words: impl Iterator<Item = u32>) -> u32 {
    let sum =
        words.fold(0x1505_u64, |h, w| (h ^ u64::from(w)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
    (sum ^ sum >> 32) as u32
}
