//! Frames in a guest's own buffers, a page each, which are sent from there: `bench working-set`.
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

/// Buffers that are tried for one frame.
const TRIES: usize = 64;

/// See the module.
pub struct OwnFrames {
    buffers: Buffers,
    seed: u64,
    /// By page: the burst that it was taken for last.
    taken: Box<[u32]>,
    burst: u32,
    descs: Vec<FrameDesc>,
    before: CacheStats,
}

/// Gives the guest's vif the memory, before it connects.
pub fn equip(guest: &mut Guest, buffers: Buffers) -> Result<()> {
    let (platform, vif) = guest.driver();
    let table = platform.grants().per_frame().ok_or("this platform cannot grant single pages")?;
    let memory = table.pages(buffers.pages)?;
    vif.use_memory(memory, buffers.pages).map_err(|_| "the vif has memory already".into())
}

impl OwnFrames {
    /// Over those of [`equip`].
    pub fn new(buffers: Buffers) -> Self {
        Self {
            buffers,
            seed: 1,
            taken: vec![0; buffers.pages].into_boxed_slice(),
            burst: 0,
            descs: Vec::with_capacity(BURST_FRAMES),
            before: CacheStats::default(),
        }
    }

    #[inline(always)]
    fn next(&mut self) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let below = |n: usize| (((self.seed >> 32) * n as u64) >> 32) as usize;
        let pages = self.buffers.pages;
        match self.buffers.reuse {
            Reuse::Skewed if self.seed as u32 % 10 < 9 => below(pages / 8),
            _ => below(pages),
        }
    }

    /// Sends as many of these frames as there are buffers and slots for; `bytes` of each are
    /// written. Returns how many.
    #[inline(always)]
    pub fn send(&mut self, guest: &mut Guest, i: usize, frames: &Burst<'_>, bytes: usize) -> Result<usize> {
        let (platform, vif) = guest.driver();
        let Some(memory) = vif.memory() else { return Err("the vif has no memory of the guest's".into()) };
        self.burst = self.burst.wrapping_add(1);
        self.descs.clear();
        let room = (vif.room(i) as usize).min(frames.frames.len());
        'frames: for k in 0..room {
            for _ in 0..TRIES {
                let page = self.next();
                if self.taken[page] != self.burst && !vif.is_held(page) {
                    self.taken[page] = self.burst;
                    let frame = frames.frame(k);
                    let at = page * PAGE_SIZE;
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

    /// From now on it is counted.
    pub fn begin(&mut self, guest: &Guest) {
        self.before = cache(guest).map(GrefCache::stats).unwrap_or_default();
    }

    /// The difference since.
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

/// Bytes of a frame of `size` that are written.
pub fn written(fill: Fill, size: usize) -> usize {
    match fill {
        Fill::Whole => size,
        Fill::Head => MIN_LEN,
    }
}

/// Which pages of the guest's own its first queue's back has.
fn cache(guest: &Guest) -> Option<&GrefCache> {
    guest.vif().queue(0)?.tx().cache()
}
