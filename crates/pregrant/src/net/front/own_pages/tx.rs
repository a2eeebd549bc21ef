//! TX from pages of the guest's own memory: frames stay where the caller wrote them.
//!
//! ```text
//!   frame in a page --cache--> hit: its reference ---------> ring
//!                         '--> miss: copied to a free id --> ring
//!   over several pages, or to be cut: a slot for each page, by its reference or copied
//!   behind a head from elsewhere:     one more slot, for a copy of that
//! ```
//! Invariants: bytes of a page that the cache has are not read here. The caller does not change its
//! page until its request is answered ([`is_in_flight`](GrefCache::is_in_flight)); the page of a
//! frame that was copied is the caller's at once. Frames leave in the order in which they were
//! given.
//!
//! What the back may do: read all of an announced page, not only the frame, for as long as the back
//! has the page mapped. The page is granted for reading alone.

use super::announced_pages::{AnnouncedPages, NO_PLACE};
use super::cache::GrefCache;
use crate::error::PlatformError;
use crate::net::ahead::AHEAD_BYTES;
use crate::net::front::regions::Region;
use crate::net::front::tx::TxFront;
use crate::net::front::tx_slots::{TxSlots, flags_of};
use crate::net::path::{AnyFrontPath, FrontPath, PathName};
use crate::platform::{Events, Platform};
use crate::port::{Burst, FrameDesc, MAX_FRAME, Offload, Source};
use crate::shm::{PieceMut, SharedBytes};
use crate::units::PAGE_SIZE;
use crate::wire::netif::{TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest};
use alloc::boxed::Box;

/// Number of slots of the longest frame, which may begin anywhere in a page and has a head before
/// it.
const PARTS_MAX: usize = MAX_FRAME.div_ceil(PAGE_SIZE) + 2;

/// A frame whose headers are in private memory and whose payload is in the guest's own pages.
#[derive(Clone, Copy, Debug)]
pub struct HeadedFrame<'a> {
    /// The first bytes of the frame. They are copied, so that the caller can reuse them at once.
    pub head: &'a [u8],
    /// The frame's other bytes, in the guest's memory; the offload is the whole frame's.
    pub payload: FrameDesc,
}

/// The part of a frame that is in one page.
#[derive(Clone, Copy, Default)]
struct Part {
    at: usize,
    len: usize,
    /// The place of the page in the cache. [`NO_PLACE`]: the bytes are copied.
    place: u32,
    gref: u32,
    id: u16,
    offset: usize,
    flags: u16,
}

/// A frame in the guest's memory, except for its head.
struct InMemory<'a, P: Platform> {
    head: &'a [u8],
    memory: &'a Region<P>,
    desc: &'a FrameDesc,
}

impl<P: Platform> Clone for InMemory<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for InMemory<'_, P> {}

impl<P: Platform> Source for InMemory<'_, P> {
    fn len(&self) -> usize {
        self.head.len() + self.desc.len as usize
    }
    fn offload(&self) -> &Offload {
        &self.desc.offload
    }
    fn copy_to(&self, at: usize, to: PieceMut<'_>) {
        let (head, rest) = self.head.split_at(at.min(self.head.len()));
        to.copy_in(rest);
        let (_, mut to) = to.split_at(rest.len());
        let (mut from, mut some) = (self.desc.at as usize + at - head.len(), [0; 256]);
        while !to.is_empty() {
            let n = to.len().min(some.len());
            let bytes = some.get_mut(..n).unwrap_or_default();
            let copied = self.memory.copy_out(from, bytes);
            debug_assert!(copied, "a frame is in the memory");
            let (now, later) = to.split_at(n);
            now.copy_in(bytes);
            (from, to) = (from + n, later);
        }
    }
}

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
        let gref = match path.place(p, id) {
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
        let gref = if F::IN_PAGES { gref } else { 0 };
        let (offset, flags) = (offset as u16, flags_of(&desc.offload) | F::TX_FLAGS);
        self.push_own(&TxRequest { gref, offset, flags, id, size: len as u16 }, F::NAME);
        Ok(())
    }

    /// Gives each part an id, and copies those parts to slots of `path` whose pages the back has
    /// not mapped. The first part is `head`, if there is one. The caller checked that there is
    /// room. After an error the first `n` parts have ids, and the last of these failed.
    fn copy_parts<F: FrontPath<P>>(
        &mut self,
        p: &P,
        path: &mut F,
        (head, memory): (&[u8], &Region<P>),
        parts: &mut [Part],
    ) -> (PathName, Option<(PlatformError, usize)>) {
        for (k, part) in parts.iter_mut().enumerate() {
            part.id = self.free.take();
            part.offset = part.at % PAGE_SIZE;
            if part.place != NO_PLACE {
                continue;
            }
            match path.place(p, part.id) {
                Ok(gref) => part.gref = if F::IN_PAGES { gref } else { 0 },
                Err(e) => return (F::NAME, Some((e, k + 1))),
            }
            part.offset = 0;
            part.flags = F::TX_FLAGS;
            let to = path.start(part.id);
            let copied = match memory.piece(part.at, part.len) {
                _ if k == 0 && !head.is_empty() => path.bytes().copy_in(to, head),
                bytes => bytes.is_some_and(|bytes| path.bytes().copy_piece_in(to, bytes)),
            };
            debug_assert!(copied, "a frame is in the memory, and a slot in its region");
        }
        (F::NAME, None)
    }

    /// Writes the requests of a frame whose parts are in mapped pages.
    fn push_parts(&mut self, parts: &[Part], (len, desc): (usize, &FrameDesc), by: PathName) {
        let gso = desc.offload.gso_type != 0;
        for (k, part) in parts.iter().enumerate() {
            let more = if k + 1 < parts.len() { TXF_MORE_DATA } else { 0 };
            let mut request = TxRequest {
                gref: part.gref,
                offset: part.offset as u16,
                flags: part.flags | more,
                id: part.id,
                size: part.len as u16,
            };
            if k == 0 {
                request.size = len as u16;
                request.flags |= flags_of(&desc.offload) | if gso { TXF_EXTRA_INFO } else { 0 };
            }
            self.note_sent(request.id);
            self.ring.push(&request);
            if k == 0 && gso {
                self.push_gso(&desc.offload);
            }
        }
        self.stats.bytes += len as u64;
        self.stats.handed_on_by(by, 1);
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
    /// Writes as many of these frames, which are in `memory`, to the ring as fit, from the first
    /// on, and publishes them. Returns how many it accepted; empty frames count as accepted, and so
    /// do frames that no back accepts, which are dropped. An error of the platform ends the call
    /// early.
    #[inline(always)]
    pub fn send_own(
        &mut self,
        p: &P,
        chan: &<P::Events as Events>::Chan,
        memory: &Region<P>,
        frames: &[FrameDesc],
    ) -> Result<usize, PlatformError> {
        self.send_each(p, chan, memory, |k| frames.get(k).map(|desc| (&[][..], desc)))
    }

    /// Like [`send_own`](Self::send_own), for frames whose heads are in private memory. The head is
    /// copied to the static pool; payload in pages that the back has mapped is sent from there. One
    /// frame can need several slots.
    pub fn send_headed(
        &mut self,
        p: &P,
        chan: &<P::Events as Events>::Chan,
        memory: &Region<P>,
        frames: &[HeadedFrame<'_>],
    ) -> Result<usize, PlatformError> {
        self.send_each(p, chan, memory, |k| frames.get(k).map(|frame| (frame.head, &frame.payload)))
    }

    #[inline(always)]
    fn send_each<'a>(
        &mut self,
        p: &P,
        chan: &<P::Events as Events>::Chan,
        memory: &Region<P>,
        frame: impl Fn(usize) -> Option<(&'a [u8], &'a FrameDesc)>,
    ) -> Result<usize, PlatformError> {
        let mut sent = 0;
        let mut failed = None;
        while let Some((head, desc)) = frame(sent) {
            match self.queue_own(p, memory, head, desc) {
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

    /// Writes one frame. Returns false if there is no room now.
    #[inline(always)]
    fn queue_own(
        &mut self,
        p: &P,
        memory: &Region<P>,
        head: &[u8],
        desc: &FrameDesc,
    ) -> Result<bool, PlatformError> {
        let (at, in_memory) = (desc.at as usize, desc.len as usize);
        let len = head.len() + in_memory;
        if len == 0 {
            return Ok(true);
        }
        let there = at <= memory.len() && in_memory <= memory.len() - at;
        if !there || len > MAX_FRAME || !self.slots.limits.allow(len, desc.offload.gso_type) {
            self.slots.stats.dropped += 1;
            return Ok(true);
        }
        if self.slots.room() == 0 {
            return Ok(false);
        }
        let (page, offset) = (at / PAGE_SIZE, at % PAGE_SIZE);
        let in_page = head.is_empty() && offset + len <= PAGE_SIZE && desc.offload.gso_type == 0;
        let frame = InMemory { head, memory, desc };
        if !in_page && let Some(sent) = self.queue_parts(p, &frame)? {
            return Ok(sent);
        }
        if in_page
            && let Some(own) = &mut self.own
            && let Some((place, gref)) = own.cache.lookup(page)
        {
            let id = self.slots.free.take();
            own.cache.sent(place);
            own.note(id, place);
            self.show_head(id, &frame);
            let (offset, size, flags) = (offset as u16, len as u16, flags_of(&desc.offload));
            self.slots.push_own(&TxRequest { gref: gref.0, offset, flags, id, size }, PathName::GrefMapping);
            return Ok(true);
        }
        let taken = self.send_copied(p, &frame, in_page)?;
        if taken && let Some(own) = &mut self.own {
            own.cache.copied();
        }
        Ok(taken)
    }

    /// Writes a frame that is in several pages, or that the back must segment, if the back has
    /// mapped at least one of its pages. Returns None if it has mapped none of them, and
    /// `Some(false)` if there is no room now.
    #[inline(never)]
    fn queue_parts(&mut self, p: &P, frame: &InMemory<'_, P>) -> Result<Option<bool>, PlatformError> {
        let &InMemory { head, memory, desc } = frame;
        let (at, end) = (desc.at as usize, (desc.at + desc.len) as usize);
        let Some(own) = &mut self.own else { return Ok(None) };
        if desc.len == 0 || head.len() > PAGE_SIZE {
            return Ok(None);
        }
        let heads = usize::from(!head.is_empty());
        let n = heads + end.div_ceil(PAGE_SIZE) - at / PAGE_SIZE;
        let gso = desc.offload.gso_type != 0;
        if n > 1 && !self.slots.limits.sg {
            return Ok(None);
        }
        if self.slots.ring.free() < n as u32 + u32::from(gso) || self.slots.free.len() < n as u32 {
            return Ok(Some(false));
        }
        let mut parts = [Part::default(); PARTS_MAX];
        let mut hit = false;
        parts[0] = Part { len: head.len(), place: NO_PLACE, ..Part::default() };
        for (k, part) in parts.iter_mut().take(n).skip(heads).enumerate() {
            let page = at / PAGE_SIZE + k;
            part.at = at.max(page * PAGE_SIZE);
            part.len = end.min((page + 1) * PAGE_SIZE) - part.at;
            (part.place, part.gref) =
                own.cache.lookup_part(page).map_or((NO_PLACE, 0), |(place, gref)| (place, gref.0));
            if part.place != NO_PLACE {
                hit = true;
                own.cache.sent(part.place); // before the next page makes it leave
            }
        }
        own.cache.looked_up(hit);
        let parts = parts.get_mut(..n).unwrap_or_default();
        let Some((_, last)) = self.chain.split(self.chain.len().saturating_sub(1)).filter(|_| hit) else {
            return Ok(None);
        };
        // All grants first: nothing is on the ring until the whole frame can be.
        let slots = &mut self.slots;
        let (by, failed) = match last {
            AnyFrontPath::Staging(path) => slots.copy_parts(p, path, (head, memory), parts),
            AnyFrontPath::DataRing(path) => slots.copy_parts(p, path, (head, memory), parts),
            #[cfg(feature = "research")]
            AnyFrontPath::Foreign(path) => slots.copy_parts(p, path, (head, memory), parts),
            AnyFrontPath::Copy(path) => slots.copy_parts(p, path, (head, memory), parts),
        };
        let in_place = || parts.iter().filter(|part| part.place != NO_PLACE);
        if let Some((e, taken)) = failed {
            if let Some(own) = &mut self.own {
                in_place().for_each(|part| own.cache.answered(part.place));
            }
            parts.iter().take(taken).for_each(|part| self.free_id(p, part.id));
            return Err(e);
        }
        if let Some(own) = &mut self.own {
            in_place().for_each(|part| own.note(part.id, part.place));
        }
        if let Some(first) = parts.first() {
            self.show_head(first.id, frame);
        }
        let in_place = parts.iter().skip(heads).all(|part| part.place != NO_PLACE);
        self.slots.push_parts(parts, (frame.len(), desc), if in_place { PathName::GrefMapping } else { by });
        Ok(Some(true))
    }

    /// Passes the head of a longer frame, which begins with `id`, to all paths but the last, of
    /// which some keep a copy.
    #[inline(always)]
    fn show_head(&mut self, id: u16, frame: &InMemory<'_, P>) {
        let last = self.chain.len().saturating_sub(1);
        if last > 0
            && let Some((ahead, _)) = self.chain.split(last)
        {
            ahead
                .iter_mut()
                .filter(|path| frame.len() > path.slot_bytes())
                .for_each(|path| path.head(id, frame));
        }
    }

    #[inline(always)]
    fn send_copied(&mut self, p: &P, frame: &InMemory<'_, P>, in_page: bool) -> Result<bool, PlatformError> {
        let &InMemory { memory, desc, .. } = frame;
        let len = desc.len as usize;
        // All other frames are sent as a private copy: they may need several slots, an extra info
        // or the data ring, or other code reads their heads.
        if in_page
            && let Some((_, first)) = self.chain.split(0)
            && len <= AnyFrontPath::slot_bytes(first)
        {
            let slots = &mut self.slots;
            match first {
                AnyFrontPath::Staging(path) => slots.copy_own(p, path, memory, desc)?,
                AnyFrontPath::DataRing(path) => slots.copy_own(p, path, memory, desc)?,
                #[cfg(feature = "research")]
                AnyFrontPath::Foreign(path) => slots.copy_own(p, path, memory, desc)?,
                AnyFrontPath::Copy(path) => slots.copy_own(p, path, memory, desc)?,
            }
            return Ok(true);
        }
        self.send_scratch(p, frame)
    }

    #[inline(never)]
    fn send_scratch(&mut self, p: &P, frame: &InMemory<'_, P>) -> Result<bool, PlatformError> {
        let &InMemory { head, memory, desc } = frame;
        let Some(own) = &mut self.own else { return Ok(false) };
        let mut scratch = core::mem::take(&mut own.scratch);
        let whole = FrameDesc { at: 0, len: frame.len() as u32, ..*desc };
        if let Some((to_head, rest)) = scratch.split_at_mut_checked(head.len()) {
            to_head.copy_from_slice(head);
            let to = rest.get_mut(..desc.len as usize).unwrap_or_default();
            let copied = memory.copy_out(desc.at as usize, to);
            debug_assert!(copied, "a frame is in the memory");
        }
        let sent = self.send_some(p, &Burst::of(&scratch, &[whole]));
        if let Some(own) = &mut self.own {
            own.scratch = scratch;
        }
        Ok(sent? > 0)
    }

    /// Sends frames from now on in those of the guest's own pages that the back has mapped
    /// according to `cache`. Must be called before the first frame.
    pub fn set_cache(
        &mut self,
        cache: impl FnOnce() -> Result<GrefCache, PlatformError>,
    ) -> Result<(), PlatformError> {
        self.own = Some(Box::new(AnnouncedPages::new(cache, self.slots.in_flight.len())?));
        Ok(())
    }

    /// Removes the cache when the queue ends.
    pub fn take_cache(&mut self) -> Option<GrefCache> {
        self.own.take().map(|own| own.cache)
    }

    /// The cache of the guest's own pages that the back has mapped; None: frames are always copied.
    pub fn cache(&self) -> Option<&GrefCache> {
        self.own.as_ref().map(|own| &own.cache)
    }

    /// Like [`cache`](Self::cache), mutable.
    pub fn cache_mut(&mut self) -> Option<&mut GrefCache> {
        self.own.as_mut().map(|own| &mut own.cache)
    }
}
