//! Frames in a guest's own buffers, of as many pages as a frame takes, which are sent from there:
//! `bench working-set`, `bench net --tx own`.
//!
//! ```text
//!   generator --> arena --head of each--> a buffer that is not on its way --send_own--> by reference, or copied by the front
//! ```
//! The whole of a frame is written there, or its head alone, which is all that differs between two
//! frames ([`Fill`]).

use super::Result;
use super::guest::Guest;
use super::process_command::{Buffers, Fill, Reuse};
use super::report::CachePlayed;
use pregrant::PAGE_SIZE;
use pregrant::net::front::{CacheMode, CacheStats, GrefCache};
use pregrant::platform::{GrantPool, Platform};
use pregrant::port::{BURST_FRAMES, Burst, FrameDesc};
use pregrant::shm::SharedBytes;
use pregrant_host::ports::sequence::MIN_LEN;

/// Number of buffers that are tried for each frame.
const TRIES: usize = 64;

pub struct OwnFrames {
    reuse: Reuse,
    /// Number of pages of a buffer.
    pages: usize,
    seed: u64,
    /// The index of the next buffer, if buffers are used one after another.
    next: usize,
    /// For each buffer, the number of the burst that used it last.
    taken: Box<[u32]>,
    burst: u32,
    descs: Vec<FrameDesc>,
    before: CacheStats,
}

/// Gives the memory to the guest's vif, before that connects.
pub fn equip(guest: &mut Guest, buffers: Buffers) -> Result<()> {
    let (platform, vif) = guest.driver();
    let table = platform.grants().per_frame().ok_or("this platform cannot grant single pages")?;
    let memory = table.pages(buffers.pages)?;
    vif.use_memory(memory, buffers.pages).map_err(|_| "the vif has memory already".into())
}

impl OwnFrames {
    /// Uses the buffers from [`equip`] for frames of `size` bytes.
    pub fn new(buffers: Buffers, size: usize) -> Self {
        let pages = size.div_ceil(PAGE_SIZE).max(1);
        Self {
            reuse: buffers.reuse,
            pages,
            seed: 1,
            next: 0,
            taken: vec![0; buffers.pages / pages].into_boxed_slice(),
            burst: 0,
            descs: Vec::with_capacity(BURST_FRAMES),
            before: CacheStats::default(),
        }
    }

    #[inline(always)]
    fn next(&mut self) -> usize {
        let all = self.taken.len();
        if self.reuse == Reuse::Circular {
            self.next = (self.next + 1) % all.max(1);
            return self.next;
        }
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let below = |n: usize| (((self.seed >> 32) * n as u64) >> 32) as usize;
        match self.reuse {
            Reuse::Skewed if self.seed as u32 % 10 < 9 => below(all / 8),
            _ => below(all),
        }
    }

    /// Sends as many of these frames as there are buffers and slots for, and writes `bytes` bytes
    /// of each. Returns how many.
    #[inline(always)]
    pub fn send(&mut self, guest: &mut Guest, i: usize, frames: &Burst<'_>, bytes: usize) -> Result<usize> {
        let (platform, vif) = guest.driver();
        let Some(memory) = vif.memory() else { return Err("the vif has no memory of the guest's".into()) };
        self.burst = self.burst.wrapping_add(1);
        self.descs.clear();
        let room = (vif.room(i) as usize / self.pages).min(frames.frames.len());
        'frames: for k in 0..room {
            for _ in 0..TRIES {
                let buffer = self.next();
                let mut pages = buffer * self.pages..(buffer + 1) * self.pages;
                let at = pages.start * PAGE_SIZE;
                if self.taken[buffer] != self.burst && !pages.any(|page| vif.is_held(page)) {
                    self.taken[buffer] = self.burst;
                    let frame = frames.frame(k);
                    if !memory.copy_in(at, &frame[..bytes.min(frame.len())]) {
                        return Err("a buffer beyond the memory".into());
                    }
                    self.descs.push(FrameDesc { at: at as u32, ..frames.frames[k] });
                    continue 'frames;
                }
            }
            break;
        }
        Ok(vif.send_own(platform, i, &self.descs)?)
    }

    /// Notes the current counts, from which the counts of the measured time start.
    pub fn begin(&mut self, guest: &Guest) {
        self.before = cache(guest).map(GrefCache::stats).unwrap_or_default();
    }

    pub fn played(&self, guest: &Guest) -> CachePlayed {
        let cache = cache(guest);
        let (now, before) = (cache.map(GrefCache::stats).unwrap_or_default(), self.before);
        CachePlayed {
            hits: now.hits - before.hits,
            copied: now.copied_to_pool - before.copied_to_pool,
            evictions: now.evictions - before.evictions,
            copying: cache.is_none_or(|cache| cache.mode() == CacheMode::Copying),
            capacity: cache.map_or(0, GrefCache::capacity),
        }
    }
}

/// Returns how many bytes of a frame of `size` are written.
pub fn written(fill: Fill, size: usize) -> usize {
    match fill {
        Fill::Whole => size,
        Fill::Head => MIN_LEN,
    }
}

/// Returns the front's record of which of the guest's own pages the back has mapped, for the first
/// queue.
fn cache(guest: &Guest) -> Option<&GrefCache> {
    guest.vif().queue(0)?.tx().cache()
}
