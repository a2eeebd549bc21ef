//! Random numbers that are the same in each run, so that a failure can be reproduced.

/// A generator of pseudo-random numbers, xorshift64*.
pub struct Dice(u64);

impl Dice {
    /// A generator whose numbers follow from `seed`, which is not 0.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, of 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() >> 33) as usize % n
    }

    /// One of `all`.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}
