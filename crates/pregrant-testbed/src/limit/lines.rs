//! Measures how fast cache lines are handed one way through a ring of 256 slots. A path with as
//! many buffers as slots cannot be faster. One with more buffers can: see [`pool`](super::pool).
//!
//! ```text
//!   giver (core a)                  ring of 256 slots, `stride` bytes apart        taker (core b)
//!     prefetchw a batch's slots                                                       read prod
//!     write one line of each  ----->  | line | .. | line | .. | line | ..  ----->     read each line, check its number
//!     publish prod                                                                    publish cons
//! ```
//!
//! Flow controlled: the giver never overtakes the taker's published progress. Every line carries
//! its number, and the taker checks it, so that the figure is of lines that really arrived. With
//! `Copies::Both` the lines come from and go to dense private buffers, as a driver's frames do;
//! without, they live in registers.

use std::io;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use pregrant::shm::prefetchw;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::window::Window;
use super::{Measured, joined, pin};
use crate::cpu_time;

/// Number of slots of the ring.
pub const SLOTS: u32 = 256;
/// Length of a line in bytes.
pub const LINE: usize = 64;
/// Largest number of lines in a batch.
pub const MAX_BATCH: u32 = 64;

type Line = [u64; LINE / 8];

/// Chooses whether the lines are copied from and to private memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copies {
    /// Lines are not copied: they are written from registers and read into registers.
    None,
    /// The sender copies lines into the ring, and the receiver copies them out.
    Both,
}

/// A ring's index. It is alone in its pair of cache lines, since the prefetcher fetches pairs.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Index(pub(super) AtomicU32);

/// The slots of the ring, in page-aligned memory of their own.
pub(super) struct Slots {
    base: NonNull<u8>,
    bytes: usize,
    pub(super) stride: usize,
    /// Number of slots, a power of two.
    pub(super) count: u32,
}

// SAFETY: the mapping is owned and stays where it is until the drop; who may touch which slot when
// is said by `line`.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    pub(super) fn new(stride: usize, count: u32) -> io::Result<Self> {
        assert!(count.is_power_of_two() && stride.is_multiple_of(LINE));
        let bytes = stride * count as usize;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory
        // that exists.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes, stride, count })
    }

    /// Returns the line of slot `index`. The sender may write the line once the receiver has
    /// published that it is done with it. The receiver may read the line once the sender has
    /// published it.
    #[inline(always)]
    fn line(&self, index: u32) -> *mut Line {
        self.slot(index).cast()
    }

    /// Returns the address of the slot's first byte, which is aligned as a line is.
    #[inline(always)]
    pub(super) fn slot(&self, index: u32) -> *mut u8 {
        let at = (index & (self.count - 1)) as usize * self.stride;
        // SAFETY: the masked index is below `count`, so `at + stride <= count * stride`, the length
        // of the mapping; `stride` is a multiple of LINE, so the line is aligned.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, whole, and no one borrows it any more. A failure would
        // leave it mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

struct Ring {
    prod: Index,
    cons: Index,
    stop: AtomicBool,
    slots: Slots,
}

impl Ring {
    /// Writes batches until it is asked to stop. It ends when all of them are published, and
    /// returns its CPU time.
    fn give(&self, batch: u32, copies: Copies) -> u64 {
        let before = cpu_time::of_this_thread();
        let mut private = vec![[0u64; LINE / 8]; MAX_BATCH as usize];
        let (mut prod, mut cons) = (0u32, 0u32);
        loop {
            while SLOTS - prod.wrapping_sub(cons) < batch {
                cons = self.cons.0.load(Ordering::Acquire);
                if self.stop.load(Ordering::Relaxed) {
                    return cpu_time::of_this_thread() - before;
                }
            }
            for i in 0..batch {
                prefetchw(self.slots.line(prod.wrapping_add(i)).cast());
            }
            if copies == Copies::Both {
                // All numbers first: a copy that follows its own store at once would wait for it.
                for (i, own) in (0..batch).zip(&mut private) {
                    own[0] = u64::from(prod.wrapping_add(i));
                }
                std::hint::black_box(&mut private);
            }
            for (i, own) in (0..batch).zip(&private) {
                let index = prod.wrapping_add(i);
                let line = self.slots.line(index);
                let value = match copies {
                    Copies::None => [u64::from(index); LINE / 8],
                    Copies::Both => *own,
                };
                // SAFETY: the taker has published that it is done with this slot
                // (`index - cons < SLOTS`, read with Acquire), so no one else touches it until the
                // Release store below.
                unsafe { line.write(value) };
            }
            prod = prod.wrapping_add(batch);
            self.prod.0.store(prod, Ordering::Release);
        }
    }

    /// Reads batches for `run_for`, after a warm-up of a tenth of that. A line with a wrong number
    /// ends the run.
    fn take(&self, batch: u32, copies: Copies, run_for: Duration) -> Result<Measured, u64> {
        let mut private = vec![[0u64; LINE / 8]; MAX_BATCH as usize];
        let (mut prod, mut cons) = (0u32, 0u32);
        let mut wrong = 0u64;
        let (mut frames, mut turns) = (0u64, 0u32);
        let mut window = Window::new(run_for);
        loop {
            while prod.wrapping_sub(cons) < batch {
                prod = self.prod.0.load(Ordering::Acquire);
            }
            for (i, own) in (0..batch).zip(&mut private) {
                let index = cons.wrapping_add(i);
                // SAFETY: the giver has published this slot (`prod - cons >= batch`, read with
                // Acquire) and does not touch it before the Release store below.
                let value = unsafe { self.slots.line(index).read() };
                wrong |= match copies {
                    // All of the line is used, or the compiler would read a word of it only.
                    Copies::None => value.iter().fold(0, |acc, w| acc | (w ^ u64::from(index))),
                    Copies::Both => {
                        *own = value;
                        std::hint::black_box(own)[0] ^ u64::from(index)
                    }
                };
            }
            cons = cons.wrapping_add(batch);
            self.cons.0.store(cons, Ordering::Release);
            frames += u64::from(batch);
            turns += 1;
            if turns.is_multiple_of(256)
                && let Some(measured) = window.turn(frames)
            {
                self.stop.store(true, Ordering::Relaxed);
                return if wrong == 0 { Ok(measured) } else { Err(wrong) };
            }
        }
    }
}

/// Hands lines over from `cores[0]` to `cores[1]`, slots `stride` bytes apart (a multiple of 64),
/// `batch` at a time.
pub fn hand_over(
    cores: [usize; 2],
    stride: usize,
    batch: u32,
    copies: Copies,
    run_for: Duration,
) -> io::Result<Measured> {
    if stride == 0 || !stride.is_multiple_of(LINE) || !(1..=MAX_BATCH).contains(&batch) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "a stride of {stride} bytes and batches of {batch}: use a multiple of 64, and 1 to {MAX_BATCH}"
            ),
        ));
    }
    let ring = Ring {
        prod: Index::default(),
        cons: Index::default(),
        stop: AtomicBool::new(false),
        slots: Slots::new(stride, SLOTS)?,
    };
    on_both(cores, || ring.give(batch, copies), || ring.take(batch, copies, run_for))
}

/// Runs both ends, each in a thread on its core. The sender returns its CPU time; the receiver
/// returns how a wrong number differs from the right one.
pub(super) fn on_both(
    cores: [usize; 2],
    give: impl Fn() -> u64 + Send + Sync,
    take: impl Fn() -> Result<Measured, u64> + Send + Sync,
) -> io::Result<Measured> {
    // Both threads are pinned before either starts, so that an unavailable core ends the run, and
    // no thread waits for a peer that never comes.
    let pinned = Barrier::new(2);
    let both = AtomicBool::new(true);
    let ready = |core| {
        let result = pin(core);
        if result.is_err() {
            both.store(false, Ordering::Relaxed);
        }
        pinned.wait();
        result.map(|()| both.load(Ordering::Relaxed))
    };
    let give = || ready(cores[0]).map(|go| if go { give() } else { 0 });
    let take = || ready(cores[1]).map(|go| if go { take() } else { Ok(Measured::default()) });
    let (cpu, taken) = std::thread::scope(|scope| {
        let (giver, taker) = (scope.spawn(give), scope.spawn(take));
        (joined(giver.join()), joined(taker.join()))
    });
    let measured = taken?.map_err(|wrong| {
        io::Error::other(format!(
            "a line arrived with a wrong number (difference {wrong:#x}): memory is not coherent"
        ))
    })?;
    Ok(Measured { giver_cpu_ns: cpu?, ..measured })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::cores;

    #[test]
    fn lines_arrive_in_order_at_any_stride() {
        let cores = cores().unwrap();
        // One core serves both threads by turns, slowly: the rules are the same.
        let pair = [cores[0], *cores.get(1).unwrap_or(&cores[0])];
        for stride in [64, 256, 2048] {
            for copies in [Copies::None, Copies::Both] {
                let m = hand_over(pair, stride, 32, copies, Duration::from_millis(20)).unwrap();
                assert!(m.frames > 0 && m.frames.is_multiple_of(32), "{m:?}");
                assert!(m.seconds >= 0.02);
            }
        }
    }

    #[test]
    fn impossible_arguments_are_refused() {
        let core = cores().unwrap()[0];
        for (stride, batch) in [(0, 32), (100, 32), (64, 0), (64, 65)] {
            let error = hand_over([core, core], stride, batch, Copies::None, Duration::ZERO).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert!(hand_over([core, 1023], 64, 1, Copies::None, Duration::ZERO).is_err(), "no such core");
    }
}
