//! RX through a [hook](super::hook): each frame is received, dropped, sent on, or given to another
//! vif.
//!
//! ```text
//!   answers --first 256 bytes--> HookFrame --action---> Pass, Redirect: head and rest to an arena
//!                                                       Tx: changes back into the buffers, their ids on the TX ring
//!                                                           or head and rest to Diverted::back, and by TxFront as any frame
//! ```
//! A frame's memory is found as in [`rx`](super::rx).
//!
//! Invariants: a buffer that is sent on leaves its slot before its request is on the TX ring, and
//! comes back only by the answer to that request ([`SlotMemory`](super::slot_memory)). Frames that
//! are sent leave in the order in which they came.
//!
//! What the back may do: as in `rx`. It can change bytes after the head was copied: with `Tx` they
//! return to that same back alone.

use super::hook::{Diverted, HookAction, HookFrame, HookStats};
use super::receiver::{bad_part, copy_part};
use super::rx::{RxFront, memories};
use super::rx_answers::{Part, blank_newest, fault, offload_of};
use super::rx_pages::lent::LentPages;
use super::slot_memory::SlotMemory;
use super::tx::{SentPart, TxFront};
use super::tx_slots::NO_ID;
use crate::error::{PeerFault, PlatformError};
use crate::net::path::{AnyFlaggedPath, AnyFrontPath, FrontPath};
use crate::net::stats::DirStats;
use crate::platform::Platform;
use crate::port::{Arena, BURST_FRAMES, MAX_FRAME, Offload};
use crate::shm::SharedBytes;
use crate::wire::netif::{MIN_FRAME, NR_SLOTS_MIN, RxResponse};
use core::ops::Range;

/// What a queue with a hook needs to receive.
pub struct Hooked<'a, P: Platform> {
    /// The platform of the queue.
    pub p: &'a P,
    /// The TX side of the same queue.
    pub tx: &'a mut TxFront<P>,
    /// The arena that gets the frames that pass.
    pub out: &'a mut Arena,
    /// The buffer that gets the frames for other vifs.
    pub diverted: &'a mut Diverted,
    /// Counters of the hook's verdicts.
    pub stats: &'a mut HookStats,
}

/// A received frame where the back put it.
trait Place<P: Platform> {
    /// Length of the frame in bytes.
    fn len(&self) -> usize;
    /// Copies bytes of the frame, from `skip` on, until `dst` is full. All parts were checked
    /// before. Returns false if the memory is gone.
    fn copy(&self, p: &P, slots: &Slots<'_>, skip: usize, dst: &mut [u8]) -> Result<bool, PeerFault>;
    /// Sends on the buffers that the frame is in, or drops the frame for want of room on TX. False:
    /// the frame has to be copied.
    fn send_on(&self, slots: &mut Slots<'_>, to: &mut Hooked<'_, P>, frame: &HookFrame) -> bool;
}

/// A frame in one slot, in the memory of a known path.
struct OneSlot<'a, F> {
    path: &'a F,
    part: Part,
}

/// A frame in several slots, or with extras.
struct Long<'a, P: Platform> {
    parts: &'a [Part],
    memory: Memory<'a, P>,
    fault: PeerFault,
}

/// The memory that a long frame is in.
enum Memory<'a, P: Platform> {
    /// The slots' memory: the path of the first part, and that of the others.
    Slots(&'a AnyFrontPath<P>, &'a AnyFrontPath<P>),
    /// The memory that the frame's responses name.
    Flagged(&'a AnyFlaggedPath<P>),
}

/// The memory of slots, while frames in it pass the hook.
struct Slots<'a> {
    pages: &'a LentPages,
    buffers: &'a mut SlotMemory,
    stats: &'a mut DirStats,
}

impl<P: Platform> RxFront<P> {
    /// Asks `hook` about the frames that arrived, at most `most`, once at least `want` answers are
    /// there, and does what the hook says. Requests that are written to the TX ring are not
    /// published here. Returns how many frames there were.
    pub fn recv_hooked(
        &mut self,
        to: &mut Hooked<'_, P>,
        want: u32,
        most: usize,
        hook: impl FnMut(&mut HookFrame) -> HookAction,
    ) -> Result<usize, PeerFault> {
        self.hook_answers(to, want, most, hook).map_err(|fault| self.ring.fail(fault))
    }

    #[inline(always)]
    fn hook_answers(
        &mut self,
        to: &mut Hooked<'_, P>,
        want: u32,
        most: usize,
        mut hook: impl FnMut(&mut HookFrame) -> HookAction,
    ) -> Result<usize, PeerFault> {
        let want = want.max(self.cut + 1);
        let mut n = self.ring.available(want)?;
        if n < want {
            return Ok(0);
        }
        self.cut = 0;
        let most = most.min(BURST_FRAMES);
        let (mut taken, mut seen) = (0, 0);
        let mut frame = HookFrame::new();
        self.ring.prefetch(n.min(BURST_FRAMES as u32));
        while taken < n && seen < most && to.has_room() {
            let (run, long) = self.plain_run(taken, ((n - taken) as usize).min(most - seen), true);
            let mut done = 0;
            while done < run && to.has_room() {
                done += self.hook_run(to, &mut frame, &mut hook, taken + done as u32, done..run)?;
            }
            (taken, seen) = (taken + done as u32, seen + done);
            let Some(rsp) = long.filter(|_| done == run && seen < most && to.has_room()) else { continue };
            match self.read_long(rsp, taken, n)? {
                false => match self.ring.available(n + 1)? {
                    more if more > n => n = more,
                    _ => {
                        self.cut = n - taken;
                        break;
                    }
                },
                true => {
                    let Self { chain, pages, buffers, long, stats, .. } = self;
                    if !long.error {
                        let memory = match long.name() {
                            0 => {
                                let (split, rest) = memories(chain, long)?;
                                Memory::Slots(split.unwrap_or(rest), rest)
                            }
                            name => Memory::Flagged(chain.flagged_by(name).ok_or(long.fault)?),
                        };
                        let (parts, offload, fault) = (long.parts(), long.offload, long.fault);
                        let there = Long { parts, memory, fault };
                        Slots { pages, buffers, stats }
                            .hook_long(to, &mut frame, &mut hook, &there, offload)?;
                        seen += 1;
                    }
                    taken += long.used;
                }
            }
        }
        to.send_copies();
        self.ring.consume(taken);
        Ok(seen)
    }

    /// Handles frames of one slot each, from the first of `run` on, that are in one path's memory.
    /// `at`: offset of the first answer from the consumer index.
    #[inline(always)]
    fn hook_run(
        &mut self,
        to: &mut Hooked<'_, P>,
        frame: &mut HookFrame,
        hook: &mut impl FnMut(&mut HookFrame) -> HookAction,
        at: u32,
        run: Range<usize>,
    ) -> Result<usize, PeerFault> {
        let (first, mask) = (self.slot_ahead(at), (self.ring.size() - 1) as u16);
        let Self { chain, pages, buffers, stats, run: answers, .. } = self;
        let rsps = &answers[run];
        let mut longer_than = -1;
        for any in chain.paths() {
            let mut slots = Slots { pages, buffers, stats };
            let answers = (rsps, first, mask);
            let n = match any {
                AnyFrontPath::Staging(path) => {
                    slots.hook_some(path, answers, (to, frame), hook, longer_than)?
                }
                AnyFrontPath::DataRing(path) => {
                    slots.hook_some(path, answers, (to, frame), hook, longer_than)?
                }
                #[cfg(feature = "research")]
                AnyFrontPath::Foreign(path) => {
                    slots.hook_some(path, answers, (to, frame), hook, longer_than)?
                }
                AnyFrontPath::Copy(path) => slots.hook_some(path, answers, (to, frame), hook, longer_than)?,
            };
            if n > 0 {
                return Ok(n);
            }
            if any.holds_heads()
                && let (Some(rest), Some(rsp)) = (chain.paths().last(), rsps.first())
            {
                let part =
                    Part { slot: first, offset: rsp.offset, len: rsp.status as u16, ..Part::default() };
                let (fault, offload) = (fault(rsp.offset, rsp.status), offload_of(rsp.flags));
                let mut slots = Slots { pages, buffers, stats };
                let (parts, ahead) = match part.split(any.slot_bytes()) {
                    Some((head, behind)) => ([head, behind], any),
                    None => ([Part { len: 0, ..part }, part], rest),
                };
                let there = Long { parts: &parts, memory: Memory::Slots(ahead, rest), fault };
                slots.hook_long(to, frame, hook, &there, offload)?;
                return Ok(1);
            }
            longer_than = any.slot_bytes() as i32;
        }
        Err(rsps.first().map_or(PeerFault::TooManySlots, |rsp| fault(rsp.offset, rsp.status)))
    }
}

impl Slots<'_> {
    /// Handles frames of one slot each, from the first of `rsps` on, that are in this path's memory
    /// and too long for the paths before it. Returns how many.
    #[inline(always)]
    fn hook_some<P: Platform, F: FrontPath<P>>(
        &mut self,
        path: &F,
        (rsps, first, mask): (&[RxResponse], u16, u16),
        (to, frame): (&mut Hooked<'_, P>, &mut HookFrame),
        hook: &mut impl FnMut(&mut HookFrame) -> HookAction,
        longer_than: i32,
    ) -> Result<usize, PeerFault> {
        let (mut n, mut bytes, mut dropped) = (0, 0, 0);
        for rsp in rsps {
            let len = rsp.status as u16;
            if i32::from(len) <= longer_than || !path.holds(usize::from(len), 1) {
                break;
            }
            let slot = first.wrapping_add(n as u16) & mask;
            let part = Part { slot, offset: rsp.offset, len, ..Part::default() };
            let head = frame.begin(len.into(), offload_of(rsp.flags));
            copy_part(path, (self.pages, &*self.buffers), part, 0, head)?;
            (n, bytes) = (n + 1, bytes + u64::from(len));
            match hook(frame) {
                // This comes first because dropping must cost nothing.
                HookAction::Drop => dropped += 1,
                action => {
                    self.act(to, frame, &OneSlot { path, part }, action)?;
                    if !to.has_room() {
                        break;
                    }
                }
            }
        }
        self.stats.bytes += bytes;
        self.stats.handed_on_by(F::NAME, n as u64);
        to.stats.dropped += dropped;
        Ok(n)
    }

    /// Handles one frame of several slots, or with extras.
    #[cold]
    #[inline(never)]
    fn hook_long<P: Platform>(
        &mut self,
        to: &mut Hooked<'_, P>,
        frame: &mut HookFrame,
        hook: &mut impl FnMut(&mut HookFrame) -> HookAction,
        there: &Long<'_, P>,
        offload: Offload,
    ) -> Result<(), PeerFault> {
        let len = there.len();
        let by = match there.memory {
            Memory::Slots(_, rest) => rest.name(),
            Memory::Flagged(path) => path.name(),
        };
        let head = frame.begin(len, offload);
        if !there.copy(to.p, self, 0, head)? {
            self.stats.errors += 1;
            return Ok(());
        }
        self.stats.bytes += len as u64;
        self.stats.handed_on_by(by, 1);
        let action = hook(frame);
        self.act(to, frame, there, action)
    }

    /// Carries out the action that the hook has returned for a frame.
    #[inline(always)]
    fn act<P: Platform>(
        &mut self,
        to: &mut Hooked<'_, P>,
        frame: &HookFrame,
        there: &impl Place<P>,
        action: HookAction,
    ) -> Result<(), PeerFault> {
        let (arena, there_is, there_is_not) = match action {
            HookAction::Drop => {
                to.stats.dropped += 1;
                return Ok(());
            }
            HookAction::Tx if there.send_on(self, to, frame) => return Ok(()),
            HookAction::Tx => (&mut to.diverted.back, None, &mut to.stats.unsent),
            HookAction::Pass => (&mut *to.out, Some(&mut to.stats.passed), &mut to.stats.dropped),
            HookAction::Redirect(vif) => {
                (to.diverted.to(vif), Some(&mut to.stats.redirected), &mut to.stats.dropped)
            }
        };
        let is_put = self.put(to.p, arena, frame, there)?;
        match there_is {
            Some(count) if is_put => *count += 1,
            // Counted once it is sent, which a blank one is not.
            None if is_put && arena.len().checked_sub(1).is_some_and(|newest| arena.desc(newest).len > 0) => {
            }
            _ => *there_is_not += 1,
        }
        Ok(())
    }

    /// Copies the frame as the hook left it into `arena`. Returns false if it has become too long.
    #[inline(always)]
    fn put<P: Platform>(
        &mut self,
        p: &P,
        arena: &mut Arena,
        frame: &HookFrame,
        there: &impl Place<P>,
    ) -> Result<bool, PeerFault> {
        let (len, rest) = (frame.len(), frame.rest());
        if len > MAX_FRAME {
            return Ok(false);
        }
        let Some(room) = arena.room(len, frame.offload) else { return Ok(false) };
        let (head, behind) = room.split_at_mut(len - rest);
        head.copy_from_slice(frame.head());
        if rest > 0 && !there.copy(p, self, there.len() - rest, behind)? {
            if let Some(newest) = arena.len().checked_sub(1) {
                arena.drop_frame(newest);
            }
            self.stats.errors += 1;
            return Ok(false);
        }
        blank_newest(arena, self.stats);
        Ok(true)
    }

    /// Sends the buffer on that a plain frame of one part is in.
    #[inline(always)]
    fn send_on<P: Platform, F: FrontPath<P>>(
        &mut self,
        to: &mut Hooked<'_, P>,
        frame: &HookFrame,
        path: &F,
        part: Part,
    ) -> bool {
        let len = frame.len();
        let Some(offset) = usize::from(part.offset).checked_add_signed(-frame.grown()) else { return false };
        if !F::IN_BUFFERS
            || !to.tx.sends_on()
            || frame.offload.gso_type != 0
            || len < MIN_FRAME
            || offset + len > path.slot_bytes()
        {
            return false;
        }
        // Frames that were copied before must be sent first.
        to.send_copies();
        if to.tx.room() == 0 {
            to.stats.unsent += 1;
            return true;
        }
        let buffer = self.buffers.of(part.slot);
        if frame.is_changed() {
            let fits = path.bytes().copy_in(path.start(buffer) + offset, frame.head());
            debug_assert!(fits, "a buffer is in its region");
        }
        let sent = to.tx.send_on(buffer, (offset as u16, len as u16), frame.offload);
        if sent {
            self.buffers.take(part.slot);
            to.stats.sent_on += 1;
        }
        sent
    }
}

impl Slots<'_> {
    /// Sends the buffers on that a frame of several parts, or a large segment, is in.
    fn send_parts_on<P: Platform, F: FrontPath<P>>(
        &mut self,
        to: &mut Hooked<'_, P>,
        frame: &HookFrame,
        path: &F,
        parts: &[Part],
    ) -> bool {
        let (len, offload) = (frame.len(), frame.offload);
        let gso = offload.gso_type != 0;
        // A checksum that must be made blank covers the whole frame.
        if !F::IN_BUFFERS || !to.tx.sends_on() || gso && !offload.csum_blank {
            return false;
        }
        let (mut room, mut nr) = ([SentPart::default(); NR_SLOTS_MIN], 0);
        // The first one has what the hook put ahead of the frame, and all of an Ethernet header.
        let (mut grown, mut least) = (frame.grown(), MIN_FRAME);
        for part in parts.iter().filter(|part| part.len > 0) {
            let offset = usize::from(part.offset).checked_add_signed(-grown);
            let len = usize::from(part.len).checked_add_signed(grown).filter(|len| *len >= least);
            let (Some(offset), Some(len), Some(place)) = (offset, len, room.get_mut(nr)) else {
                return false;
            };
            let buffer = self.buffers.of(part.slot);
            if buffer == NO_ID || offset + len > path.slot_bytes() {
                return false;
            }
            *place = SentPart { slot: part.slot, buffer, offset: offset as u16, len: len as u16 };
            (grown, least, nr) = (0, 1, nr + 1);
        }
        let parts = room.get(..nr).unwrap_or_default();
        if !to.tx.takes(len, nr, offload.gso_type) {
            return false;
        }
        // Frames that were copied before must be sent first.
        to.send_copies();
        if !to.tx.has_room_for(nr, gso.into()) {
            to.stats.unsent += 1;
            return true;
        }
        if frame.is_changed() {
            let mut head = frame.head();
            for part in parts {
                let (now, later) = head.split_at(head.len().min(part.len.into()));
                let fits = path.bytes().copy_in(path.start(part.buffer) + usize::from(part.offset), now);
                debug_assert!(fits, "a buffer is in its region");
                head = later;
            }
        }
        let sent = to.tx.send_parts_on(parts, offload);
        if sent {
            parts.iter().for_each(|part| {
                self.buffers.take(part.slot);
            });
            to.stats.sent_on += 1;
        }
        sent
    }
}

impl<P: Platform, F: FrontPath<P>> Place<P> for OneSlot<'_, F> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.part.len.into()
    }

    #[inline(always)]
    fn copy(&self, _: &P, slots: &Slots<'_>, skip: usize, dst: &mut [u8]) -> Result<bool, PeerFault> {
        if skip + dst.len() > self.part.len.into() {
            return Err(bad_part(self.part));
        }
        copy_part(self.path, (slots.pages, &*slots.buffers), self.part, skip, dst)?;
        Ok(true)
    }

    #[inline(always)]
    fn send_on(&self, slots: &mut Slots<'_>, to: &mut Hooked<'_, P>, frame: &HookFrame) -> bool {
        slots.send_on(to, frame, self.path, self.part)
    }
}

impl<P: Platform> Place<P> for Long<'_, P> {
    fn len(&self) -> usize {
        self.parts.iter().map(|part| usize::from(part.len)).sum()
    }

    fn copy(&self, p: &P, slots: &Slots<'_>, mut skip: usize, mut dst: &mut [u8]) -> Result<bool, PeerFault> {
        let (mut memory, mut all) = (self.memory, true);
        for part in self.parts {
            let from = skip.min(part.len.into());
            let n = dst.len().min(usize::from(part.len) - from);
            let (now, later) = core::mem::take(&mut dst).split_at_mut(n);
            (skip, dst) = (skip - from, later);
            memory = match memory {
                Memory::Slots(first, rest) => {
                    let places = (slots.pages, &*slots.buffers);
                    match first {
                        AnyFrontPath::Staging(path) => copy_part(path, places, *part, from, now)?,
                        AnyFrontPath::DataRing(path) => copy_part(path, places, *part, from, now)?,
                        #[cfg(feature = "research")]
                        AnyFrontPath::Foreign(path) => copy_part(path, places, *part, from, now)?,
                        AnyFrontPath::Copy(path) => copy_part(path, places, *part, from, now)?,
                    }
                    Memory::Slots(rest, rest)
                }
                Memory::Flagged(path) => {
                    all &= path.copy(p, part, from, now)?;
                    memory
                }
            };
        }
        if dst.is_empty() { Ok(all) } else { Err(self.fault) }
    }

    fn send_on(&self, slots: &mut Slots<'_>, to: &mut Hooked<'_, P>, frame: &HookFrame) -> bool {
        let Memory::Slots(first, rest) = self.memory else { return false };
        if self.parts.len() > 1 && !core::ptr::eq(first, rest) {
            return false; // its head alone is in a buffer
        }
        match first {
            AnyFrontPath::Staging(path) => slots.send_parts_on(to, frame, path, self.parts),
            AnyFrontPath::DataRing(path) => slots.send_parts_on(to, frame, path, self.parts),
            #[cfg(feature = "research")]
            AnyFrontPath::Foreign(path) => slots.send_parts_on(to, frame, path, self.parts),
            AnyFrontPath::Copy(path) => slots.send_parts_on(to, frame, path, self.parts),
        }
    }
}

impl<P: Platform> Clone for Memory<'_, P> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Memory<'_, P> {}

impl<P: Platform> Hooked<'_, P> {
    #[inline(always)]
    fn has_room(&self) -> bool {
        self.out.has_room() && self.diverted.has_room()
    }

    /// Writes the frames that go back by a copy to the TX ring.
    #[inline(always)]
    pub fn send_copies(&mut self) {
        if !self.diverted.back.is_empty() {
            self.send_some_copies();
        }
    }

    #[inline(never)]
    fn send_some_copies(&mut self) {
        let Self { p, tx, diverted, stats, .. } = self;
        let burst = diverted.back.burst();
        // Frames that were dropped here are counted already.
        let given = burst.frames.iter().filter(|frame| frame.len > 0).count() as u64;
        // Frames that the back does not accept are counted by `tx` as dropped, and it counts them
        // as accepted.
        let before = tx.stats().frames;
        let taken: Result<usize, PlatformError> = tx.queue(p, &burst);
        let sent = taken.map_or(0, |_| tx.stats().frames - before);
        stats.sent_copied += sent;
        stats.unsent += given - sent;
        diverted.back.clear();
    }
}
