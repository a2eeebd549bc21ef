//! TX from pages of the guest's own memory: frames stay where the caller wrote them.
//!
//! ```text
//!   frame in a page --cache--> hit: its reference -----------------------> ring
//!                         '--> miss, or no single page: copied to a free id --> ring
//! ```
//! Invariants: a frame that hits is not read here. The caller does not change its page until its
//! request is answered ([`is_in_flight`](GrefCache::is_in_flight)); the page of a frame that was
//! copied is the caller's at once. Frames leave in the order in which they were given.
//!
//! What the back may do: read all of an announced page, not only the frame, for as long as it has
//! it mapped. The page is granted for reading alone.

use super::cache::GrefCache;
use super::own_tx::OwnTx;
use crate::error::PlatformError;
use crate::net::front::regions::Region;
use crate::net::front::tx::TxFront;
use crate::net::front::tx_slots::{TxSlots, flags_of};
use crate::net::path::{AnyFrontPath, FrontPath, PathName};
use crate::platform::{Events, Platform};
use crate::port::{Burst, FrameDesc, MAX_FRAME};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::netif::TxRequest;
use alloc::boxed::Box;

/// Bytes of the next slot that are asked for ahead, as for other frames.
const AHEAD_BYTES: usize = 1024;

impl<P: Platform> TxSlots<P> {
    /// Copies a frame that fits a slot of `path` from `memory`, and writes its request. There is
    /// room.
    #[inline(always)]
    fn copy_own<F: FrontPath<P>>(
        &mut self,
        p: &P,
        path: &mut F,
        memory: &Region<P>,
        desc: &FrameDesc,
    ) -> Result<(), PlatformError> {
        let len = desc.len as usize;
        let id = self.free.take();
        let gref = match path.grant(p, id) {
            Ok(gref) => gref,
            Err(e) => {
                self.free.give(id);
                return Err(e);
            }
        };
        if self.free.len() > 1 {
            let next = self.free.peek(1);
            path.bytes().prefetch_write(path.start(next) + path.offset(next, len), len.min(AHEAD_BYTES));
        }
        let offset = path.offset(id, len);
        let copied = memory
            .piece(desc.at as usize, len)
            .is_some_and(|frame| path.bytes().copy_piece_in(path.start(id) + offset, frame));
        debug_assert!(copied, "a frame is in the memory, and a slot in its region");
        let gref = if F::GRANTS { gref } else { 0 };
        let (offset, flags) = (offset as u16, flags_of(&desc.offload) | F::TX_FLAGS);
        self.push_own(&TxRequest { gref, offset, flags, id, size: len as u16 }, F::NAME);
        Ok(())
    }

    #[inline(always)]
    fn push_own(&mut self, request: &TxRequest, by: PathName) {
        self.note_sent(request.id);
        self.ring.push(request);
        self.stats.bytes += u64::from(request.size);
        self.stats.handed_on_by(by, 1);
    }
}

impl<P: Platform> TxFront<P> {
    /// Writes as many of these frames, which are in `memory`, to the ring as fit, from the first,
    /// and publishes them. Returns how many it took; those that are empty count as taken, and so do
    /// those that no back can take, which are dropped. An error of the platform stops it early.
    #[inline(always)]
    pub fn send_own(
        &mut self,
        p: &P,
        chan: &<P::Events as Events>::Chan,
        memory: &Region<P>,
        frames: &[FrameDesc],
    ) -> Result<usize, PlatformError> {
        let mut sent = 0;
        let mut failed = None;
        while let Some(desc) = frames.get(sent) {
            match self.queue_own(p, memory, desc) {
                Ok(true) => sent += 1,
                Ok(false) => break,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        self.publish(p, chan);
        match failed {
            Some(e) if sent == 0 => Err(e),
            _ => Ok(sent),
        }
    }

    /// One frame. False: no room now.
    #[inline(always)]
    fn queue_own(&mut self, p: &P, memory: &Region<P>, desc: &FrameDesc) -> Result<bool, PlatformError> {
        let (at, len) = (desc.at as usize, desc.len as usize);
        if len == 0 {
            return Ok(true);
        }
        let there = at <= memory.len() && len <= memory.len() - at;
        if !there || len > MAX_FRAME || !self.slots.limits.allow(len, desc.offload.gso_type) {
            self.slots.stats.dropped += 1;
            return Ok(true);
        }
        if self.slots.room() == 0 {
            return Ok(false);
        }
        let (page, offset) = (at / PAGE_SIZE, at % PAGE_SIZE);
        let in_page = offset + len <= PAGE_SIZE && desc.offload.gso_type == 0;
        if in_page
            && let Some(own) = &mut self.own
            && let Some((place, gref)) = own.cache.lookup(page)
        {
            let id = self.slots.free.take();
            own.places[usize::from(id)] = place;
            own.cache.sent(place);
            let (offset, size, flags) = (offset as u16, len as u16, flags_of(&desc.offload));
            self.slots.push_own(&TxRequest { gref: gref.0, offset, flags, id, size }, PathName::GrefMapping);
            return Ok(true);
        }
        let taken = self.send_copied(p, memory, desc, in_page)?;
        if taken && let Some(own) = &mut self.own {
            own.cache.copied();
        }
        Ok(taken)
    }

    #[inline(always)]
    fn send_copied(
        &mut self,
        p: &P,
        memory: &Region<P>,
        desc: &FrameDesc,
        in_page: bool,
    ) -> Result<bool, PlatformError> {
        let len = desc.len as usize;
        // Others go by a private copy: they may take several slots, an extra info, the data ring,
        // or a head that others want to see.
        if in_page
            && let Some((_, first)) = self.chain.split(0)
            && len <= AnyFrontPath::slot_bytes(first)
        {
            with_path!(first, path => self.slots.copy_own(p, path, memory, desc))?;
            return Ok(true);
        }
        self.send_scratch(p, memory, desc)
    }

    #[inline(never)]
    fn send_scratch(&mut self, p: &P, memory: &Region<P>, desc: &FrameDesc) -> Result<bool, PlatformError> {
        let Some(own) = &mut self.own else { return Ok(false) };
        let mut scratch = core::mem::take(&mut own.scratch);
        let frame = FrameDesc { at: 0, ..*desc };
        let copied = memory.copy_out(desc.at as usize, &mut scratch[..desc.len as usize]);
        debug_assert!(copied, "a frame is in the memory");
        let sent = self.send_some(p, &Burst { bytes: &scratch, frames: &[frame] });
        if let Some(own) = &mut self.own {
            own.scratch = scratch;
        }
        Ok(sent? > 0)
    }

    /// Has frames go from pages of the guest's own, where `cache` says that the back has them;
    /// before the first one.
    pub fn set_cache(&mut self, cache: GrefCache) {
        self.own = Some(Box::new(OwnTx::new(cache, self.slots.in_flight.len())));
    }

    /// Takes that away, when the queue is over.
    pub fn take_cache(&mut self) -> Option<GrefCache> {
        self.own.take().map(|own| own.cache)
    }

    /// Which pages of the guest's own the back has; None: frames go by copies alone.
    pub fn cache(&self) -> Option<&GrefCache> {
        self.own.as_ref().map(|own| &own.cache)
    }

    /// The same, to be changed.
    pub fn cache_mut(&mut self) -> Option<&mut GrefCache> {
        self.own.as_mut().map(|own| &mut own.cache)
    }
}
