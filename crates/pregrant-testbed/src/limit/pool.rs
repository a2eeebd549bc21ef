//! Frames handed one way through a ring whose buffers are more than its slots: what the number of
//! buffers alone is worth.
//!
//! ```text
//!   giver (core a)             256 slots: ids        `buffers` buffers, first in, first out      taker (core b)
//!     copy a frame in  ---------------------------> | buffer | buffer | .. | buffer |  ------>   copy it out, check its number
//!     publish ids      -----> | id | id | .. | id |  --------------------------------------->   read ids
//!     take ids back    <----- | id | id | .. | id |  <---------------------------------------   give ids back
//! ```
//! 256 buffers of 2048 bytes stay in both cores' private caches, and a line that is touched comes
//! from the other's. Of a pool that these caches cannot hold it comes from the one that both share,
//! which is faster. Invariant: a buffer is the taker's from the store of `prod` behind its id until
//! the store of `cons`. The taker checks numbers; a frame out of order ends the run.
//!
//! A driver reads and checks a batch's requests before it copies: `work` dependent multiplications
//! a frame, at each end, stand for that.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use pregrant::shm::prefetchw;

use super::Measured;
use super::lines::{Index, LINE, MAX_BATCH, SLOTS, Slots, on_both};
use super::window::Window;
use crate::cpu_time;

/// Largest number of buffers of a pool.
pub const BUFFERS_MAX: u32 = 32768;
/// Largest number of multiplications for each frame.
pub const WORK_MAX: u32 = 4096;
/// The factor of the multiplications. It is odd, so that products never become 0.
const MIXES: u64 = 0x9E37_79B9_7F4A_7C15;
/// Number of private buffers of each end.
const PRIVATE: usize = 128;

/// Returns the distance of buffers in bytes, for frames of `size` bytes.
pub fn stride(size: usize) -> usize {
    if size <= 256 { 256 } else { 2048 }
}

struct Pool {
    prod: Index,
    cons: Index,
    stop: AtomicBool,
    ids: Box<[AtomicU32]>,
    buffers: Slots,
    size: usize,
    work: u32,
}

impl Pool {
    /// Returns the address of a buffer's bytes. Small frames begin at one of four lines, since with
    /// a constant stride all buffers would use the same sets of the caches.
    #[inline(always)]
    fn at(&self, id: u32) -> *mut u8 {
        let line = (id & 3) as usize * LINE;
        let from = if line + self.size <= self.buffers.stride { line } else { 0 };
        // In the buffer: `from + size` is no longer than the stride.
        self.buffers.slot(id).wrapping_add(from)
    }

    fn id(&self, index: u32) -> &AtomicU32 {
        &self.ids[(index & (SLOTS - 1)) as usize]
    }

    /// Does the work that an end does for a batch before it copies.
    #[inline(always)]
    fn work(&self, batch: u32) {
        let mut product = black_box(MIXES);
        for _ in 0..batch * self.work {
            // The compiler makes no one of two: a product of products it would.
            product = product.wrapping_mul(MIXES).rotate_left(29);
        }
        black_box(product);
    }

    /// Writes batches until it is asked to stop. It ends when all of them are published, and
    /// returns its CPU time.
    fn give(&self, batch: u32) -> u64 {
        let before = cpu_time::of_this_thread();
        let mut free: VecDeque<u32> = (0..self.buffers.count).collect();
        let mut private = vec![2u8; PRIVATE * self.size.next_multiple_of(LINE)];
        let (mut prod, mut seen, mut number) = (0u32, 0u32, 0u64);
        loop {
            while SLOTS - prod.wrapping_sub(seen) < batch || free.len() < batch as usize {
                let cons = self.cons.0.load(Ordering::Acquire);
                while seen != cons {
                    free.push_back(self.id(seen).load(Ordering::Relaxed));
                    seen = seen.wrapping_add(1);
                }
                if self.stop.load(Ordering::Relaxed) {
                    return cpu_time::of_this_thread() - before;
                }
            }
            self.work(batch);
            for &id in free.iter().take(batch as usize) {
                (0..self.size).step_by(LINE).for_each(|at| prefetchw(self.at(id).wrapping_add(at)));
            }
            for (index, id) in (0..batch).zip(free.drain(..batch as usize)) {
                let own = private_at(&mut private, number, self.size);
                own[..8].copy_from_slice(&number.to_ne_bytes());
                // SAFETY: `at` has `size` bytes in the mapping; the taker has given this id back
                // (read with Acquire), so no one else touches them until the Release store below.
                unsafe { self.at(id).copy_from_nonoverlapping(own.as_ptr(), self.size) };
                self.id(prod.wrapping_add(index)).store(id, Ordering::Relaxed);
                number += 1;
            }
            prod = prod.wrapping_add(batch);
            self.prod.0.store(prod, Ordering::Release);
        }
    }

    /// Reads frames for `run_for`, after a warm-up of a tenth of that. `Err`: the wrong number of a
    /// frame.
    fn take(&self, run_for: Duration) -> Result<Measured, u64> {
        let mut private = vec![0u8; PRIVATE * self.size.next_multiple_of(LINE)];
        let (mut cons, mut number, mut wrong, mut turns) = (0u32, 0u64, 0u64, 0u32);
        let mut window = Window::new(run_for);
        loop {
            let prod = self.prod.0.load(Ordering::Acquire);
            if prod == cons {
                std::hint::spin_loop();
                continue;
            }
            let batch = prod.wrapping_sub(cons).min(MAX_BATCH);
            self.work(batch);
            for index in (0..batch).map(|i| cons.wrapping_add(i)) {
                let id = self.id(index).load(Ordering::Relaxed);
                let own = private_at(&mut private, number, self.size);
                // SAFETY: as above: the giver has published this id (`prod`, read with Acquire) and
                // does not touch its bytes before the Release store below.
                unsafe { own.as_mut_ptr().copy_from_nonoverlapping(self.at(id), self.size) };
                wrong |= number ^ own[..8].try_into().map_or(u64::MAX, u64::from_ne_bytes);
                number += 1;
            }
            cons = cons.wrapping_add(batch);
            self.cons.0.store(cons, Ordering::Release);
            turns += 1;
            if turns.is_multiple_of(64)
                && let Some(measured) = window.turn(number)
            {
                self.stop.store(true, Ordering::Relaxed);
                return if wrong == 0 { Ok(measured) } else { Err(wrong) };
            }
        }
    }
}

/// Returns the private buffer for a frame.
#[inline(always)]
fn private_at(all: &mut [u8], number: u64, size: usize) -> &mut [u8] {
    let at = number as usize % PRIVATE * size.next_multiple_of(LINE);
    &mut all[at..at + size]
}

/// Passes frames of `size` bytes from `cores[0]` to `cores[1]`, through this many buffers (a power
/// of two), `batch` at a time. Each end does `work` per frame besides.
pub fn frames(
    cores: [usize; 2],
    size: usize,
    buffers: u32,
    work: u32,
    batch: u32,
    run_for: Duration,
) -> io::Result<Measured> {
    let fits = (8..=2048).contains(&size) && (1..=MAX_BATCH).contains(&batch) && work <= WORK_MAX;
    if !fits || !(SLOTS..=BUFFERS_MAX).contains(&buffers) || !buffers.is_power_of_two() {
        let what = format!("frames of {size} bytes by {buffers} buffers, work of {work}, batches of {batch}");
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{what}: use 8 to 2048, a power of two from {SLOTS} to {BUFFERS_MAX}, at most {WORK_MAX}, and 1 to {MAX_BATCH}"
            ),
        ));
    }
    let pool = Pool {
        prod: Index::default(),
        cons: Index::default(),
        stop: AtomicBool::new(false),
        ids: (0..SLOTS).map(AtomicU32::new).collect(),
        buffers: Slots::new(stride(size), buffers)?,
        size,
        work,
    };
    on_both(cores, || pool.give(batch), || pool.take(run_for))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::cores;

    #[test]
    fn frames_arrive_in_order_by_any_number_of_buffers() {
        let cores = cores().unwrap();
        // One core serves both threads by turns, slowly: the rules are the same.
        let pair = [cores[0], *cores.get(1).unwrap_or(&cores[0])];
        for size in [8, 64, 256, 1500, 2048] {
            for (buffers, work) in [(SLOTS, 0), (2048, 32)] {
                let m = frames(pair, size, buffers, work, 32, Duration::from_millis(10)).unwrap();
                assert!(m.frames > 0 && m.seconds >= 0.01, "{m:?}");
            }
        }
    }

    #[test]
    fn impossible_arguments_are_refused() {
        let core = cores().unwrap()[0];
        let bad = [
            (7, 256, 0, 1),
            (2049, 256, 0, 1),
            (64, 128, 0, 1),
            (64, 300, 0, 1),
            (64, 256, 4097, 1),
            (64, 256, 0, 65),
        ];
        for (size, buffers, work, batch) in bad {
            let error = frames([core, core], size, buffers, work, batch, Duration::ZERO).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
