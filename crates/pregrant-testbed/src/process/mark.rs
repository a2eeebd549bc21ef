//! Facts that both ends of a case share: how many frames are checked whole, and the mark between
//! frames that are counted and those that are not.

use pregrant::port::Burst;

/// The Ethertype of a mark: the second of the two Ethertypes for local experiments.
const MARK_ETHERTYPE: [u8; 2] = [0x88, 0xb6];

/// Returns a frame that marks the start or the end of the measured time.
pub fn mark() -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6] = 2;
    frame[12..14].copy_from_slice(&MARK_ETHERTYPE);
    frame
}

/// Returns true if a burst is a mark.
#[inline(always)]
pub fn is_mark(burst: &Burst<'_>) -> bool {
    burst.frames.len() == 1 && burst.frame(0).get(12..14) == Some(&MARK_ETHERTYPE)
}

/// Returns the number of frames of the untimed burst on each queue: enough to use each buffer and
/// each slot if frames are short, and 4 MiB if they are long.
pub fn whole_frames(size: usize) -> u64 {
    ((4 << 20) / size.max(1) as u64).clamp(64, 512)
}
