//! Measures memcpy within the caches: the frames of a burst are copied from one private area to
//! another.

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use pregrant::port::{ARENA_BYTES, BURST_FRAMES};

use super::{Measured, joined, pin};
use crate::cpu_time;

/// Copies frames of `size` bytes on `core`, as many as an arena holds, over and over.
pub fn copy(core: usize, size: usize, run_for: Duration) -> io::Result<Measured> {
    let run = move || {
        pin(core)?;
        let stride = size.max(1).next_multiple_of(64);
        let count = (ARENA_BYTES / stride).clamp(1, BURST_FRAMES);
        let from = vec![1u8; stride * count];
        let mut to = vec![0u8; stride * count];
        let (start, cpu) = (Instant::now(), cpu_time::of_this_thread());
        let mut frames = 0;
        loop {
            for _ in 0..64 {
                for i in 0..count {
                    // The length is known at run time only, as a frame's is.
                    let len = black_box(size);
                    let at = i * stride;
                    to[at..at + len].copy_from_slice(&from[at..at + len]);
                }
                black_box(&mut to);
                frames += count as u64;
            }
            let elapsed = start.elapsed();
            if elapsed >= run_for {
                let giver_cpu_ns = cpu_time::of_this_thread() - cpu;
                return Ok(Measured {
                    frames,
                    seconds: elapsed.as_secs_f64(),
                    giver_cpu_ns,
                    ..Measured::default()
                });
            }
        }
    };
    joined(std::thread::spawn(run).join())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_size_is_copied() {
        let core = crate::limit::cores().unwrap()[0];
        for size in [1, 64, 1500, 65535, ARENA_BYTES + 1] {
            let m = copy(core, size, Duration::from_millis(1)).unwrap();
            assert!(m.frames > 0 && m.seconds >= 0.001);
        }
    }
}
