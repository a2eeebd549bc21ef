//! RX of one queue, at the guest: the back's frames to private memory, or lent where they are.
//!
//! ```text
//!   post: every free slot gets a request (id = slot number, a page, or no page at all)
//!   recv: answers --> one copy into the caller's arena --> post again
//!   recv_by_reference: answers --> a copy of the head, the rest stays where it is --> release --> post again
//! ```
//!
//! Which memory a slot's bytes are in follows from the protocol, not from a flag: each path of the [chain](FrontChain) knows
//! which frames it [holds](FrontPath::holds), and the first that does has it. Only of a [data ring](RecvArea), and of [pages that the back
//! lends](BorrowedPages), a flag says it. Bytes
//! are copied to private memory before anybody parses them, also where a [hook](super::hook) decides. What the back may do: answer
//! with offsets, lengths or chains that make no sense (faults), or change the
//! memory while it is copied (the copy is what counts), or while it is lent ([`loans`](super::loans)).

use super::loans::{HEAD_BYTES, Lent, Loans, UnknownToken};
use super::regions::OwnRing;
use super::rx_answers::{Lends, LongFrame, Part, fault, is_plain_in_area, offload_of};
use super::rx_buffers::RxBuffers;
use crate::error::{PeerFault, PlatformError};
use crate::net::gso;
use crate::net::path::any_front::with_path;
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::data_ring::front::RecvArea;
use crate::net::path::guest_copy::flags_of;
use crate::net::path::guest_copy::front::{BorrowedPages, BorrowedPiece};
use crate::net::path::{AnyFrontPath, Counted, FrontChain, FrontPath};
use crate::net::stats::DirStats;
use crate::platform::{Events, Platform};
use crate::port::{Arena, BURST_FRAMES, Offload, Piece, Token};
use crate::ring::{FrontRing, NetRx};
use crate::shm::SharedBytes;
use crate::wire::netif::{RXF_DATA_RING, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest, RxResponse};
use alloc::boxed::Box;
use core::ops::Range;

/// Flags of a response in a lent page, whichever generation.
const BORROWED: u16 = flags_of(u8::MAX);
/// Longer frames are left to the hardware's own prefetcher.
const SHORT: i16 = 256;
/// The front's RX half of a queue.
pub struct RxFront<P: Platform> {
    pub(super) ring: FrontRing<NetRx, OwnRing<NetRx, P>>,
    pub(super) chain: FrontChain<P>,
    /// The half for RX of a data ring.
    pub(super) area: Option<RecvArea<P>>,
    /// Pages that the back lends.
    pub(super) borrowed: Option<BorrowedPages<P>>,
    pub(super) loans: Loans,
    pub(super) buffers: RxBuffers,
    /// Answers that are here and belong to a frame whose last one is not.
    pub(super) cut: u32,
    /// Scratch: a run of answers that were read.
    pub(super) run: Box<[RxResponse; BURST_FRAMES]>,
    pub(super) stats: DirStats,
}

impl<P: Platform> RxFront<P> {
    /// A queue over a ring that was just initialised. Pages beyond the ring's slots are spare, for those that are lent. `tag` is no
    /// other queue's of this vif.
    pub fn new(ring: FrontRing<NetRx, OwnRing<NetRx, P>>, chain: FrontChain<P>, tag: u16) -> Self {
        let loans = Loans::new(ring.size(), chain.pages().map_or(0, FrontPath::ids), tag);
        let buffers = RxBuffers::new(ring.size(), chain.staging().map_or(0, FrontPath::ids));
        Self {
            ring,
            chain,
            area: None,
            borrowed: None,
            loans,
            buffers,
            cut: 0,
            run: Box::new([RxResponse::default(); BURST_FRAMES]),
            stats: DirStats::default(),
        }
    }

    /// Posts a request in every free slot, as far as there are pages for them, and publishes them.
    pub fn post(&mut self, p: &P, chan: &<P::Events as Events>::Chan) -> Result<(), PlatformError> {
        let mut granted = Ok(());
        for _ in 0..self.ring.free() {
            let slot = self.slot_at(self.ring.next_index());
            let Some(page) = self.loans.page_to_post(slot) else { break };
            let Some(id) = self.buffers.to_post(slot) else { break };
            match self.chain.grant(p, page) {
                Ok(gref) => self.ring.push(&RxRequest { id, gref }),
                // What is on the ring is shown to the back all the same.
                Err(e) => {
                    granted = Err(e);
                    break;
                }
            }
        }
        if self.ring.publish().wanted() {
            self.stats.notifications += 1;
            p.events().notify(chan);
        }
        self.stats.batches += 1;
        granted
    }

    /// Copies the frames that are there into `out`, as many as fit, once at least `want` answers are. Returns how many
    /// frames were added. The slots are free afterwards: call [`post`](Self::post).
    pub fn recv(&mut self, out: &mut Arena, want: u32) -> Result<usize, PeerFault> {
        self.take(out, None, want)
    }

    /// As [`recv`](Self::recv), but of frames in pages that are longer than [`HEAD_BYTES`] no more than these are copied: the rest
    /// is read where it is ([`piece`](Self::piece)) until it is [released](Self::release). Frames in staging buffers are copied,
    /// since a buffer is its slot's for good; so are those whose first slot is in one.
    pub fn recv_by_reference(
        &mut self,
        out: &mut Arena,
        lent: &mut Lent,
        want: u32,
    ) -> Result<usize, PeerFault> {
        let before = out.len();
        let taken = self.take(out, Some(lent), want);
        if taken.is_err() {
            // Nobody is told of frames that came before the fault.
            for token in lent.forget_from(before) {
                let known = self.loans.release(token);
                debug_assert!(known.is_ok(), "it was lent in this call");
            }
        }
        taken
    }

    /// Piece `k` of what follows the head of the frame that was lent with `token`, in order. None: there are no more.
    #[inline(always)]
    pub fn piece(&self, token: Token, k: usize) -> Option<Piece<'_>> {
        lent_piece(&self.loans, &self.chain, token, k)
    }

    /// The frame of `token` is not read any more: its pages can be posted again ([`post`](Self::post)).
    #[inline(always)]
    pub fn release(&mut self, token: Token) -> Result<(), UnknownToken> {
        self.loans.release(token)
    }

    #[inline(always)]
    fn take(&mut self, out: &mut Arena, mut lent: Option<&mut Lent>, want: u32) -> Result<usize, PeerFault> {
        if let Some(borrowed) = &mut self.borrowed {
            borrowed.clear(); // of a call that ended by a fault: it was for another arena
        }
        let want = want.max(self.cut + 1);
        let mut n = self.ring.available(want)?;
        if n < want {
            return Ok(0);
        }
        self.cut = 0;
        let before = out.len();
        let mut taken = 0;
        self.ring.prefetch(n.min(BURST_FRAMES as u32));
        while taken < n && out.has_room() {
            // The common case, one slot and no extras: a run of answers is read, their memory's lines asked for, and then
            // the frames are copied.
            let most = ((n - taken) as usize).min(BURST_FRAMES - out.len());
            let (run, long) = self.plain_run(taken, most, false);
            let mut done = 0;
            while done < run && out.has_room() {
                done += self.take_some(taken + done as u32, done..run, out, lent.as_deref_mut())?;
            }
            taken += done as u32;
            let Some(rsp) = long else { continue };
            if !out.has_room() {
                break;
            }
            if self.is_plain_borrowed(rsp) {
                match self.recv_borrowed(rsp, taken, n, out)? {
                    0 => break,
                    used => taken += used,
                }
                continue;
            }
            if is_plain_in_area(rsp) {
                match self.recv_from_area(rsp, taken, n, out)? {
                    0 => break,
                    used => taken += used,
                }
                continue;
            }
            match self.recv_long(rsp, taken, n, out, lent.as_deref_mut())? {
                // The rest of the frame is not there yet: look again, then wait for more than there is.
                0 => match self.ring.available(n + 1)? {
                    more if more > n => n = more,
                    _ => {
                        self.cut = n - taken;
                        break;
                    }
                },
                used => taken += used,
            }
        }
        self.ring.consume(taken);
        Ok(out.len() - before)
    }

    /// Reads at most `most` answers from the `at`-th on into `self.run`, up to one that is not plain, which is given back
    /// too. What does not find room in the arena is read anew by a later call; nothing of it is kept till then. `heads`: of longer
    /// frames too the first bytes are asked for.
    #[inline(always)]
    pub(super) fn plain_run(&mut self, at: u32, most: usize, heads: bool) -> (usize, Option<RxResponse>) {
        let mut n = 0;
        while n < most {
            let rsp = self.ring.read(at + n as u32);
            if rsp.flags & (RXF_MORE_DATA | RXF_EXTRA_INFO | RXF_DATA_RING | BORROWED) != 0 || rsp.status < 0
            {
                return (n, Some(rsp));
            }
            if (heads || rsp.status <= SHORT)
                && let Some(path) = self.chain.paths().first()
            {
                let slot = self.slot_ahead(at + n as u32);
                let start = with_path!(path, path => memory((&self.loans, &self.buffers), path, slot));
                let bytes = with_path!(path, path => path.bytes());
                bytes.prefetch_read(start + rsp.offset as usize, rsp.status.min(SHORT) as usize);
            }
            self.run[n] = rsp;
            n += 1;
        }
        (n, None)
    }

    #[inline(always)]
    pub(super) fn slot_ahead(&self, ahead: u32) -> u16 {
        self.slot_at(self.ring.rsp_cons().wrapping_add(ahead))
    }

    #[inline(always)]
    pub(super) fn slot_at(&self, index: u32) -> u16 {
        (index & (self.ring.size() - 1)) as u16
    }

    /// Frames of one slot each, from the first of `run` on, that are in one path's memory. `at`: how far ahead that is.
    #[inline(always)]
    fn take_some(
        &mut self,
        at: u32,
        run: Range<usize>,
        out: &mut Arena,
        mut lent: Option<&mut Lent>,
    ) -> Result<usize, PeerFault> {
        let (first, mask) = (self.slot_ahead(at), (self.ring.size() - 1) as u16);
        let rsps = &self.run[run];
        let mut longer_than = -1;
        for path in self.chain.paths() {
            let n = with_path!(path, path => {
                let mut n = 0;
                for rsp in rsps {
                    let len = rsp.status as u16;
                    if i32::from(len) <= longer_than || !path.holds(usize::from(len), 1) || !out.has_room() {
                        break;
                    }
                    let slot = first.wrapping_add(n as u16) & mask;
                    let part = Part { slot, offset: rsp.offset, len, ..Part::default() };
                    let offload = offload_of(rsp.flags);
                    let places = (&mut self.loans, &self.buffers);
                    take_frame(path, places, out, (&[part], offload), lent.as_deref_mut())?;
                    self.stats.bytes += u64::from(len);
                    n += 1;
                }
                self.stats.handed_on_by(counted(path), n as u64);
                n
            });
            if n > 0 {
                return Ok(n);
            }
            longer_than = path.slot_bytes() as i32;
        }
        Err(rsps.first().map_or(PeerFault::TooManySlots, |rsp| fault(rsp.offset, rsp.status)))
    }

    /// Frames of one slot each in the data ring, from `rsp` on, which is the `at`-th of `n` answers. Returns how many.
    #[inline(never)]
    fn recv_from_area(
        &mut self,
        mut rsp: RxResponse,
        at: u32,
        n: u32,
        out: &mut Arena,
    ) -> Result<u32, PeerFault> {
        let Some(area) = &self.area else { return Err(fault(rsp.offset, rsp.status)) };
        let (mut used, mut bytes) = (0, 0);
        loop {
            // The next one's lines come while this one is copied.
            let next = (at + used + 1 < n).then(|| self.ring.read(at + used + 1));
            if let Some(next) = next {
                area.prefetch(next);
            }
            let (place, len) = area.piece(rsp.offset, rsp.status).ok_or(fault(rsp.offset, rsp.status))?;
            let Some(to) = out.room(len, offload_of(rsp.flags)) else { break };
            if !area.copy_out(place, to) {
                return Err(fault(rsp.offset, rsp.status));
            }
            (used, bytes) = (used + 1, bytes + len as u64);
            match next {
                Some(next) if out.has_room() && is_plain_in_area(next) => rsp = next,
                _ => break, // what is no such frame is read anew, nothing of it is kept
            }
        }
        self.stats.bytes += bytes;
        self.stats.handed_on_by(Counted::DataRing, used.into());
        Ok(used)
    }

    /// A frame of one slot, without extras, that is in a lent page.
    #[inline(always)]
    fn is_plain_borrowed(&self, rsp: RxResponse) -> bool {
        let plain = rsp.flags & (RXF_MORE_DATA | RXF_EXTRA_INFO | RXF_DATA_RING) == 0 && rsp.status >= 0;
        plain && rsp.flags & BORROWED != 0 && self.borrowed.is_some()
    }

    /// Frames of one slot each in lent pages, from `rsp` on, which is the `at`-th of `n` answers: noted, to be
    /// [fetched](Self::fetch_borrowed). Returns how many.
    #[inline(never)]
    fn recv_borrowed(
        &mut self,
        mut rsp: RxResponse,
        at: u32,
        n: u32,
        out: &mut Arena,
    ) -> Result<u32, PeerFault> {
        let mut used = 0;
        loop {
            let fault = fault(rsp.offset, rsp.status);
            let piece = BorrowedPiece::of(self.slot_ahead(at + used), &rsp).ok_or(fault)?;
            let (i, len) = (out.len(), usize::from(piece.len));
            if out.room(len, offload_of(rsp.flags)).is_none() {
                break;
            }
            let borrowed = self.borrowed.as_mut().ok_or(fault)?;
            borrowed.note(i, piece, out.desc(i).at);
            used += 1;
            if at + used == n || !out.has_room() {
                break;
            }
            rsp = self.ring.read(at + used);
            if !self.is_plain_borrowed(rsp) {
                break; // it is read anew, nothing of it is kept
            }
        }
        Ok(used)
    }

    /// Copies what the last call noted of frames in lent pages; those whose pages are gone are dropped. Before their slots are posted.
    #[inline(always)]
    pub fn fetch_borrowed(&mut self, p: &P, out: &mut Arena) {
        let Self { borrowed: Some(borrowed), stats, .. } = self else { return };
        borrowed.fetch(p, out, |out, i, good| {
            if !good {
                out.drop_frame(i);
                stats.errors += 1;
                return;
            }
            stats.bytes += u64::from(out.desc(i).len);
            stats.handed_on_by(Counted::GuestCopy, 1);
            blank(out, i, stats);
        });
    }

    /// A frame of several slots, with extras, or an error. Returns the answers used; 0: they are not all there.
    #[cold]
    #[inline(never)]
    fn recv_long(
        &mut self,
        first: RxResponse,
        at: u32,
        n: u32,
        out: &mut Arena,
        lent: Option<&mut Lent>,
    ) -> Result<u32, PeerFault> {
        let Some(frame) = self.read_long(first, at, n)? else { return Ok(0) };
        if frame.error {
            return Ok(frame.used);
        }
        let (parts, offload) = (frame.parts(), frame.offload);
        if let Some(borrowed) = self.borrowed.as_mut().filter(|_| frame.is_borrowed()) {
            let i = out.len();
            if out.room(frame.total, offload).is_none() {
                return Ok(0); // cannot be: the caller saw room for the longest frame
            }
            let mut at = out.desc(i).at;
            for part in parts {
                borrowed.note(i, part.borrowed(), at);
                at += u32::from(part.len);
            }
            return Ok(frame.used);
        }
        if let Some(area) = self.area.as_ref().filter(|_| frame.in_area()) {
            take_from_area(area, out, (parts, offload))?;
            self.stats.bytes += frame.total as u64;
            self.stats.handed_on_by(Counted::DataRing, 1);
            blank_newest(out, &mut self.stats);
            return Ok(frame.used);
        }
        // A checksum that is to be made blank is the whole frame's.
        let lent = lent.filter(|_| offload.gso_type == 0 || offload.csum_blank);
        let (split, path) = memories(&self.chain, &frame)?;
        match split {
            Some(first) => {
                take_split(first, path, (&self.loans, &self.buffers), out, (parts, offload))?;
            }
            None => {
                let places = (&mut self.loans, &self.buffers);
                with_path!(path, path => take_frame(path, places, out, (parts, offload), lent)?);
            }
        }
        self.stats.bytes += frame.total as u64;
        self.stats.handed_on_by(with_path!(path, path => counted(path)), 1);
        blank_newest(out, &mut self.stats);
        Ok(frame.used)
    }

    /// Reads the answers of such a frame, the `at`-th and those behind it, of `n` that are there. None: it is not all there.
    pub(super) fn read_long(
        &mut self,
        first: RxResponse,
        at: u32,
        n: u32,
    ) -> Result<Option<LongFrame>, PeerFault> {
        let lends = Lends { area: self.area.is_some(), pages: self.borrowed.is_some() };
        let frame = LongFrame::read(&self.ring, lends, first, (at, n))?;
        self.stats.errors += u64::from(frame.as_ref().is_some_and(|frame| frame.error));
        Ok(frame)
    }

    /// Before sleeping: asks for an event at the `ahead`-th answer from here. True: there is work.
    pub fn final_check(&mut self, ahead: u32) -> Result<bool, PeerFault> {
        self.ring.final_check(ahead.max(self.cut + 1))
    }

    /// Whether there is work, as [`final_check`](Self::final_check) says it, and nothing is armed.
    pub fn is_pending(&mut self) -> bool {
        let wanted = self.cut + 1;
        self.ring.available(wanted).is_ok_and(|n| n >= wanted)
    }

    /// Whether a slot is free to be posted.
    #[inline(always)]
    pub fn has_free(&self) -> bool {
        let slot = self.slot_at(self.ring.next_index());
        self.ring.free() > 0 && self.loans.can_post(slot) && self.buffers.can_post(slot)
    }

    /// Whether a slot waits for a buffer that is on TX.
    pub fn wants_buffer(&self) -> bool {
        self.ring.free() > 0 && !self.buffers.can_post(self.slot_at(self.ring.next_index()))
    }

    /// A received buffer that was sent on is free: the answer to its TX request was taken.
    #[inline(always)]
    pub fn give_back(&mut self, buffer: u16) {
        self.buffers.give_back(buffer);
    }

    /// Staging buffers: where they are.
    pub fn buffers(&self) -> &RxBuffers {
        &self.buffers
    }

    /// Frames that are lent.
    pub fn lent(&self) -> u32 {
        self.loans.out()
    }

    /// What happened so far.
    pub fn stats(&self) -> DirStats {
        self.stats
    }

    /// Slots of its ring.
    pub fn ring_size(&self) -> u32 {
        self.ring.size()
    }

    /// The memory of its frames.
    pub fn chain(&self) -> &FrontChain<P> {
        &self.chain
    }

    /// The memory of its frames, to be changed before the first one.
    pub fn chain_mut(&mut self) -> &mut FrontChain<P> {
        &mut self.chain
    }

    /// Has frames come through a data ring, too; before the first one.
    pub fn set_area(&mut self, area: Option<RecvArea<P>>) {
        self.area = area;
    }

    /// Takes the data ring away, before the first frame or when the queue is over.
    pub fn take_area(&mut self) -> Option<RecvArea<P>> {
        self.area.take()
    }

    /// Whether there is one.
    pub fn has_area(&self) -> bool {
        self.area.is_some()
    }

    /// Has frames come in pages that the back lends, too; before the first one.
    pub fn set_borrowed(&mut self, borrowed: Option<BorrowedPages<P>>) {
        self.borrowed = borrowed;
    }

    /// Takes these away, before the first frame or when the queue is over.
    pub fn take_borrowed(&mut self) -> Option<BorrowedPages<P>> {
        self.borrowed.take()
    }

    /// Whether there are any.
    pub fn has_borrowed(&self) -> bool {
        self.borrowed.is_some()
    }

    /// Pages for what its paths do not carry, before the first frame.
    pub fn append(&mut self, pages: OrdinaryPages<P>) {
        self.loans.add_pages(pages.ids());
        self.chain.append(pages);
    }

    /// Ends the queue: its memory, to be released once the back has closed.
    pub fn into_parts(self) -> (OwnRing<NetRx, P>, FrontChain<P>) {
        (self.ring.into_mem(), self.chain)
    }

    /// As [`into_parts`](Self::into_parts), and which of it is lent.
    pub fn end(self) -> (OwnRing<NetRx, P>, FrontChain<P>, Loans) {
        (self.ring.into_mem(), self.chain, self.loans)
    }
}

pub(super) fn counted<P: Platform, F: FrontPath<P>>(_: &F) -> Counted {
    F::COUNTED
}

/// Which pages and buffers slots have.
type Places<'a> = (&'a Loans, &'a RxBuffers);

/// Where the memory of `slot` starts.
#[inline(always)]
fn memory<P: Platform, F: FrontPath<P>>((loans, buffers): Places<'_>, path: &F, slot: u16) -> usize {
    path.start(if F::LENDS { loans.page(slot) } else { buffers.of(slot) })
}

/// Whose memory a frame is in; before that, whose its first part is in, where that is another's.
pub(super) fn memories<'a, P: Platform>(
    chain: &'a FrontChain<P>,
    frame: &LongFrame,
) -> Result<(Option<&'a AnyFrontPath<P>>, &'a AnyFrontPath<P>), PeerFault> {
    let (bytes, nr) = (frame.headroom + frame.total, frame.parts().len());
    let holds = |path: &AnyFrontPath<P>| with_path!(path, path => path.holds(bytes, nr));
    let k = chain.paths().iter().position(holds).ok_or(frame.fault)?;
    let (ahead, rest) = chain.paths().split_at(k);
    let path = rest.first().ok_or(frame.fault)?;
    Ok((ahead.iter().find(|other| nr > 1 && other.takes_first()), path))
}

/// Makes the checksum of the newest frame blank, where it is a large segment whose is not; one that is none is dropped.
pub(super) fn blank_newest(out: &mut Arena, stats: &mut DirStats) {
    if let Some(newest) = out.len().checked_sub(1) {
        blank(out, newest, stats);
    }
}

/// The same of frame `i`.
fn blank(out: &mut Arena, i: usize, stats: &mut DirStats) {
    let offload = out.desc(i).offload;
    if offload.gso_type != 0 && !offload.csum_blank {
        stats.gso_checksum_fixups += 1;
        if gso::blank_checksum(out, i).is_err() {
            out.drop_frame(i);
            stats.dropped += 1;
        }
    }
}

/// The one copy: from the slots' memory into the arena; no more than the head, where it is lent.
#[inline(always)]
fn take_frame<P: Platform, F: FrontPath<P>>(
    path: &F,
    (loans, buffers): (&mut Loans, &RxBuffers),
    out: &mut Arena,
    (parts, offload): (&[Part], Offload),
    lent: Option<&mut Lent>,
) -> Result<(), PeerFault> {
    let total: usize = parts.iter().map(|part| usize::from(part.len)).sum();
    let lent = lent.filter(|_| F::LENDS && total > HEAD_BYTES);
    let mut wanted = if lent.is_some() { HEAD_BYTES } else { total };
    let i = out.len();
    let Some(mut to) = out.room(total, offload) else {
        return Ok(()); // cannot be: the caller saw room for the longest frame
    };
    for &part in parts {
        let copied = usize::from(part.len).min(wanted);
        let (dst, rest) = core::mem::take(&mut to).split_at_mut(copied);
        to = rest;
        copy_part(path, (loans, buffers), part, 0, dst)?;
        wanted -= copied;
    }
    if let Some(lent) = lent {
        lend(loans, parts, i, lent);
    }
    Ok(())
}

/// Of a part, from byte `skip` on as much as `dst` has room for; all of the part lies in its slot's memory.
#[inline(always)]
pub(super) fn copy_part<P: Platform, F: FrontPath<P>>(
    path: &F,
    places: Places<'_>,
    Part { slot, offset, len, .. }: Part,
    skip: usize,
    dst: &mut [u8],
) -> Result<(), PeerFault> {
    let from = usize::from(offset);
    let start = memory(places, path, slot) + from + skip;
    if from + usize::from(len) > path.slot_bytes() || !path.bytes().copy_out(start, dst) {
        return Err(fault(offset, len as i16));
    }
    Ok(())
}

/// Copies a frame whose first slot is in the memory of `first`, the others in that of `rest`.
fn take_split<P: Platform>(
    first: &AnyFrontPath<P>,
    rest: &AnyFrontPath<P>,
    places: Places<'_>,
    out: &mut Arena,
    (parts, offload): (&[Part], Offload),
) -> Result<(), PeerFault> {
    let total = parts.iter().map(|part| usize::from(part.len)).sum();
    let Some(mut to) = out.room(total, offload) else {
        return Ok(()); // cannot be: the caller saw room for the longest frame
    };
    let mut path = first;
    for &part in parts {
        let (dst, behind) = core::mem::take(&mut to).split_at_mut(usize::from(part.len));
        to = behind;
        with_path!(path, path => copy_part(path, places, part, 0, dst)?);
        path = rest;
    }
    Ok(())
}

/// Of a part in the data ring, from byte `skip` on as much as `dst` has room for; all of the part lies in the ring.
#[inline(always)]
pub(super) fn copy_from_area<P: Platform>(
    area: &RecvArea<P>,
    part: &Part,
    skip: usize,
    dst: &mut [u8],
) -> Result<(), PeerFault> {
    match area.piece(part.offset, part.len as i16) {
        Some((place, _)) if area.copy_out(place + skip, dst) => Ok(()),
        _ => Err(fault(part.offset, part.len as i16)),
    }
}

/// Copies a frame whose slots are all in the data ring.
fn take_from_area<P: Platform>(
    area: &RecvArea<P>,
    out: &mut Arena,
    (parts, offload): (&[Part], Offload),
) -> Result<(), PeerFault> {
    let total = parts.iter().map(|part| usize::from(part.len)).sum();
    let Some(mut to) = out.room(total, offload) else {
        return Ok(()); // cannot be: the caller saw room for the longest frame
    };
    for part in parts {
        let (dst, behind) = core::mem::take(&mut to).split_at_mut(usize::from(part.len));
        to = behind;
        copy_from_area(area, part, 0, dst)?;
    }
    Ok(())
}

/// Lends what is behind the head. All parts were looked at: a frame is lent whole or not at all.
#[inline(always)]
fn lend(loans: &mut Loans, parts: &[Part], i: usize, lent: &mut Lent) {
    let mut head = HEAD_BYTES as u16;
    let mut last = None;
    for &Part { slot, offset, len, .. } in parts {
        let copied = head.min(len);
        head -= copied;
        if copied == len {
            continue; // all of it was copied: the page stays with its slot
        }
        let (offset, len) = (offset + copied, len - copied);
        last = Some(match last {
            Some(page) => loans.lend_more(page, slot, offset, len),
            None => {
                let page = loans.page(slot);
                lent.note(i, loans.lend(slot, offset, len));
                page
            }
        });
    }
}

/// See [`RxFront::piece`].
#[inline(always)]
pub fn lent_piece<'a, P: Platform>(
    loans: &Loans,
    chain: &'a FrontChain<P>,
    token: Token,
    k: usize,
) -> Option<Piece<'a>> {
    let (page, offset, len) = loans.piece(token, k)?;
    let pages = chain.pages()?;
    pages.bytes().piece(pages.start(page) + usize::from(offset), usize::from(len))
}
