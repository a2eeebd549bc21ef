//! The Toeplitz hash: a number per flow, under a key that the guest chose.
//!
//! ```text
//!   key    |0|1|0|1|1|0|...          input bit i set: XOR in the 32 bits of the key that begin at bit i
//!           '-- 32 --'
//!            '-- 32 --'
//! ```
//! A table made from the key handles four input bits at once. Every input of up to [`INPUT_MAX`]
//! bytes and every key has a hash: nothing here can fail.

use crate::error::PlatformError;
use crate::memory;
use alloc::boxed::Box;

/// Bytes of the longest input: two IPv6 addresses and two ports.
pub const INPUT_MAX: usize = 36;
/// Bytes of the longest key, which the last input bit needs.
pub const KEY_MAX: usize = INPUT_MAX + 4;

/// A key with its precomputed table. By default it is the empty key, by which every hash is 0.
#[derive(Clone, Debug, Default)]
pub struct Toeplitz {
    /// The hash of each group of four input bits alone, by the group's position and by its value.
    /// None: there was no other key than the empty one.
    table: Option<Box<Table>>,
}

type Table = [[u32; 16]; INPUT_MAX * 2];

impl PartialEq for Toeplitz {
    fn eq(&self, other: &Self) -> bool {
        match (&self.table, &other.table) {
            (Some(table), Some(other)) => table == other,
            (Some(table), None) | (None, Some(table)) => table.as_flattened().iter().all(|value| *value == 0),
            (None, None) => true,
        }
    }
}

impl Eq for Toeplitz {}

impl Toeplitz {
    /// Precomputes a key.
    #[cfg(test)]
    fn new(key: &[u8; KEY_MAX]) -> Self {
        let mut made = Self::default();
        made.make_room().unwrap();
        made.set(key);
        made
    }

    /// Takes memory for a key, if it has none yet.
    pub fn make_room(&mut self) -> Result<(), PlatformError> {
        if self.table.is_none() {
            self.table = Some(memory::array([0; 16])?);
        }
        Ok(())
    }

    /// Precomputes another key, in the memory of the one before. Without [room](Self::make_room) it
    /// stays the empty one.
    pub fn set(&mut self, key: &[u8; KEY_MAX]) {
        let Some(table) = &mut self.table else { return };
        // The 32 bits of the key from the current bit on, and the byte that is shifted in.
        let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
        for (place, values) in table.iter_mut().enumerate() {
            let coming = key[4 + place / 2] << (4 * (place % 2));
            let mut windows = [0; 4];
            for (bit, w) in windows.iter_mut().enumerate() {
                *w = window;
                window = window << 1 | u32::from(coming >> (7 - bit) & 1);
            }
            // Each value is one with a bit less, combined with that bit.
            for value in 1..16usize {
                values[value] = values[value & (value - 1)] ^ windows[3 - value.trailing_zeros() as usize];
            }
        }
    }

    /// Becomes equal to `from`, in the memory that it has.
    pub fn copy_from(&mut self, from: &Self) {
        match (&mut self.table, &from.table) {
            (Some(table), Some(from)) => **table = **from,
            (Some(table), None) => table.fill([0; 16]),
            (None, _) => {}
        }
    }

    /// The hash of a slice.
    #[cfg(test)]
    fn hash(&self, input: &[u8]) -> u32 {
        self.hash_of(input.iter().copied())
    }

    /// The hash of `input`; bytes beyond [`INPUT_MAX`] are ignored.
    pub fn hash_of(&self, input: impl Iterator<Item = u8>) -> u32 {
        let Some(table) = &self.table else { return 0 };
        let (pairs, _) = table.as_chunks();
        pairs
            .iter()
            .zip(input)
            .fold(0, |h, ([high, low], byte)| h ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 15)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of Microsoft's published test vectors.
    const MICROSOFT: [u8; KEY_MAX] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Computes the hash bit by bit, as it is defined.
    fn slow(key: &[u8], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], i: usize| bytes.get(i / 8).is_some_and(|b| b & (0x80 >> (i % 8)) != 0);
        let window = |i: usize| (i..i + 32).fold(0u32, |w, k| w << 1 | u32::from(bit(key, k)));
        (0..input.len() * 8).filter(|&i| bit(input, i)).fold(0, |h, i| h ^ window(i))
    }

    #[test]
    fn is_the_sum_of_windows() {
        let mut input = [0u8; INPUT_MAX];
        for round in 0..if cfg!(miri) { 1 } else { 50u32 } {
            for (k, byte) in input.iter_mut().enumerate() {
                *byte = (round * 31 + k as u32 * 17).wrapping_mul(2_654_435_761).to_be_bytes()[0];
            }
            let mut key = MICROSOFT;
            key.rotate_left(round as usize % KEY_MAX);
            for len in [0, 1, 8, 12, 32, 36] {
                assert_eq!(Toeplitz::new(&key).hash(&input[..len]), slow(&key, &input[..len]));
            }
        }
        assert_eq!(Toeplitz::new(&[0; KEY_MAX]).hash(&[0xFF; INPUT_MAX]), 0);
        // 36 windows, all ones
        assert_eq!(Toeplitz::new(&[0xFF; KEY_MAX]).hash(&[1; INPUT_MAX + 9]), 0);
    }
}
