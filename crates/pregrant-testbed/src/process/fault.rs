//! Faults on purpose, so that a test sees that a measurement notices them.
//!
//! `PREGRANT_FAULT=damage` changes the last byte of one frame of a row's untimed burst. `lose` does
//! not send back one frame of an echo, `repeat` sends one back twice. Several faults are separated
//! by commas.

use pregrant::port::Arena;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, Default)]
pub struct Fault {
    damage: bool,
    lose: bool,
    repeat: bool,
}

/// One in this number of frames is damaged.
const DAMAGED: u64 = 3;
const LOST: u64 = 60;
const REPEATED: u64 = 40;

impl Fault {
    /// The fault that the environment asks for; usually none.
    pub fn wanted() -> Self {
        static WANTED: OnceLock<Fault> = OnceLock::new();
        *WANTED.get_or_init(|| {
            let text = std::env::var("PREGRANT_FAULT").unwrap_or_default();
            let has = |fault| text.split(',').any(|word| word == fault);
            Self { damage: has("damage"), lose: has("lose"), repeat: has("repeat") }
        })
    }

    /// Damages a frame of a burst that begins with frame `first`.
    pub fn damage(self, burst: &mut Arena, first: u64) {
        if !self.damage || !(first..first + burst.len() as u64).contains(&DAMAGED) {
            return;
        }
        let frame = burst.desc((DAMAGED - first) as usize);
        burst.bytes_mut()[(frame.at + frame.len) as usize - 1] ^= 0x10;
    }

    /// Returns how often frame number `n` is sent back.
    pub fn echoes(self, n: u64) -> usize {
        match n {
            LOST if self.lose => 0,
            REPEATED if self.repeat => 2,
            _ => 1,
        }
    }
}
