//! RX of one queue, at the guest: the back's frames to private memory, or lent where they are.
//!
//! ```text
//!   post: every free slot gets a request (id = slot number, a page, or no page at all)
//!   recv: answers --> one copy into the caller's arena --> post again
//!   recv_by_reference: answers --> a copy of the head, the rest stays where it is --> release --> post again
//! ```
//!
//! Which memory a slot's bytes are in follows from the protocol, not from a flag: each path of the [chain](FrontChain) knows
//! which frames it [holds](FrontPath::holds), and the first that does has it. Bytes are copied to private memory before
//! anybody parses them. What the back may do: answer with offsets, lengths or chains that make no sense (faults), or change the
//! memory while it is copied (the copy is what counts), or while it is lent ([`loans`](super::loans)).

use super::loans::{HEAD_BYTES, Lent, Loans, UnknownToken};
use super::regions::OwnRing;
use crate::error::{PeerFault, PlatformError};
use crate::net::gso;
use crate::net::path::any_front::with_path;
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::{AnyFrontPath, Counted, FrontChain, FrontPath};
use crate::net::stats::DirStats;
use crate::platform::{Events, Platform};
use crate::port::{Arena, BURST_FRAMES, MAX_FRAME, Offload, Piece, Token};
use crate::ring::{FrontRing, NetRx};
use crate::shm::SharedBytes;
use crate::wire::netif::{
    Extra, RXF_CSUM_BLANK, RXF_DATA_VALIDATED, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest, RxResponse,
};
use alloc::boxed::Box;
use core::ops::Range;

/// Longer frames are left to the hardware's own prefetcher.
const SHORT: i16 = 256;
/// Answers that one frame can have: 65535 bytes in slots of one byte are nobody's honest frame.
const MAX_CHAIN: usize = 32;

/// The front's RX half of a queue.
pub struct RxFront<P: Platform> {
    ring: FrontRing<NetRx, OwnRing<NetRx, P>>,
    chain: FrontChain<P>,
    loans: Loans,
    /// Answers that are here and belong to a frame whose last one is not.
    cut: u32,
    /// Scratch: a run of answers that were read.
    run: Box<[RxResponse; BURST_FRAMES]>,
    stats: DirStats,
}

/// A slot's part of a frame: where in its memory, how much.
#[derive(Clone, Copy, Default)]
struct Part {
    slot: u16,
    offset: u16,
    len: u16,
}

impl<P: Platform> RxFront<P> {
    /// A queue over a ring that was just initialised. Pages beyond the ring's slots are spare, for those that are lent. `tag` is no
    /// other queue's of this vif.
    pub fn new(ring: FrontRing<NetRx, OwnRing<NetRx, P>>, chain: FrontChain<P>, tag: u16) -> Self {
        let loans = Loans::new(ring.size(), chain.pages().map_or(0, FrontPath::ids), tag);
        Self {
            ring,
            chain,
            loans,
            cut: 0,
            run: Box::new([RxResponse::default(); BURST_FRAMES]),
            stats: DirStats::default(),
        }
    }

    /// Posts a request in every free slot, as far as there are pages for them, and publishes them.
    #[inline(always)]
    pub fn post(&mut self, p: &P, chan: &<P::Events as Events>::Chan) -> Result<(), PlatformError> {
        for _ in 0..self.ring.free() {
            let slot = self.slot_at(self.ring.next_index());
            let Some(page) = self.loans.page_to_post(slot) else { break };
            let gref = self.chain.grant(p, page)?;
            self.ring.push(&RxRequest { id: slot, gref });
        }
        if self.ring.publish().wanted() {
            self.stats.notifications += 1;
            p.events().notify(chan);
        }
        self.stats.batches += 1;
        Ok(())
    }

    /// Copies the frames that are there into `out`, as many as fit, once at least `want` answers are. Returns how many
    /// frames were added. The slots are free afterwards: call [`post`](Self::post).
    #[inline(always)]
    pub fn recv(&mut self, out: &mut Arena, want: u32) -> Result<usize, PeerFault> {
        self.take(out, None, want)
    }

    /// As [`recv`](Self::recv), but of frames in pages that are longer than [`HEAD_BYTES`] no more than these are copied: the rest
    /// is read where it is ([`piece`](Self::piece)) until it is [released](Self::release). Frames in staging buffers are copied,
    /// since a buffer is its slot's for good; so are those whose first slot is in one.
    #[inline(always)]
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
            let (run, long) = self.plain_run(taken, most);
            let mut done = 0;
            while done < run && out.has_room() {
                done += self.take_some(taken + done as u32, done..run, out, lent.as_deref_mut())?;
            }
            taken += done as u32;
            let Some(rsp) = long else { continue };
            if !out.has_room() {
                break;
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
    /// too. What does not find room in the arena is read anew by a later call; nothing of it is kept till then.
    #[inline(always)]
    fn plain_run(&mut self, at: u32, most: usize) -> (usize, Option<RxResponse>) {
        let mut n = 0;
        while n < most {
            let rsp = self.ring.read(at + n as u32);
            if rsp.flags & (RXF_MORE_DATA | RXF_EXTRA_INFO) != 0 || rsp.status < 0 {
                return (n, Some(rsp));
            }
            if rsp.status <= SHORT
                && let Some(path) = self.chain.paths().first()
            {
                let slot = self.slot_ahead(at + n as u32);
                let start = with_path!(path, path => memory(&self.loans, path, slot));
                let bytes = with_path!(path, path => path.bytes());
                bytes.prefetch_read(start + rsp.offset as usize, rsp.status as usize);
            }
            self.run[n] = rsp;
            n += 1;
        }
        (n, None)
    }

    #[inline(always)]
    fn slot_ahead(&self, ahead: u32) -> u16 {
        self.slot_at(self.ring.rsp_cons().wrapping_add(ahead))
    }

    #[inline(always)]
    fn slot_at(&self, index: u32) -> u16 {
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
                    let part = Part { slot, offset: rsp.offset, len };
                    let offload = offload_of(rsp.flags);
                    take_frame(path, &mut self.loans, out, (&[part], offload), lent.as_deref_mut())?;
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
        let mut used = 1;
        let mut offload = offload_of(first.flags);
        let mut headroom = 0;
        let mut extra = first.flags & RXF_EXTRA_INFO != 0;
        while extra {
            if at + used == n {
                return Ok(0);
            }
            if used as usize == MAX_CHAIN {
                return Err(PeerFault::TooManySlots);
            }
            let words = self.ring.read(at + used).to_words();
            let (info, more) = Extra::parse(words).map_err(PeerFault::from_extra)?;
            match info {
                Extra::Gso { size, gso_type } => (offload.gso_size, offload.gso_type) = (size, gso_type),
                Extra::Xdp { headroom: bytes } => headroom = usize::from(bytes),
                _ => {}
            }
            used += 1;
            extra = more;
        }
        let mut parts = [Part::default(); MAX_CHAIN];
        let mut nr = 0;
        let mut error = false;
        let mut rsp = first;
        let mut slot = self.slot_ahead(at);
        let mut total = 0usize;
        loop {
            if rsp.status < 0 {
                error = true;
            } else {
                parts[nr] = Part { slot, offset: rsp.offset, len: rsp.status as u16 };
                total += rsp.status as usize;
            }
            nr += 1;
            if rsp.flags & RXF_MORE_DATA == 0 {
                break;
            }
            if at + used == n {
                return Ok(0);
            }
            if nr == MAX_CHAIN {
                return Err(PeerFault::TooManySlots);
            }
            slot = self.slot_ahead(at + used);
            rsp = self.ring.read(at + used);
            used += 1;
        }
        if error {
            self.stats.errors += 1;
            return Ok(used);
        }
        let fault = fault(first.offset, first.status);
        if total > MAX_FRAME {
            return Err(fault);
        }
        // A checksum that is to be made blank is the whole frame's.
        let lent = lent.filter(|_| offload.gso_type == 0 || offload.csum_blank);
        let parts = &parts[..nr];
        let holds = |path: &AnyFrontPath<P>| with_path!(path, path => path.holds(headroom + total, nr));
        let k = self.chain.paths().iter().position(holds).ok_or(fault)?;
        let (ahead, rest) = self.chain.paths().split_at(k);
        let path = rest.first().ok_or(fault)?;
        match ahead.iter().find(|other| nr > 1 && other.takes_first()) {
            Some(other) => take_split(other, path, &self.loans, out, (parts, offload))?,
            None => with_path!(path, path => take_frame(path, &mut self.loans, out, (parts, offload), lent)?),
        }
        self.stats.bytes += total as u64;
        self.stats.handed_on_by(with_path!(path, path => counted(path)), 1);
        if offload.gso_type != 0 && !offload.csum_blank {
            self.stats.gso_checksum_fixups += 1;
            let newest = out.len() - 1;
            if gso::blank_checksum(out, newest).is_err() {
                out.drop_frame(newest);
                self.stats.dropped += 1;
            }
        }
        Ok(used)
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
        self.ring.free() > 0 && self.loans.can_post(self.slot_at(self.ring.next_index()))
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

fn fault(offset: u16, status: i16) -> PeerFault {
    PeerFault::BadResponse { offset, status }
}

fn counted<P: Platform, F: FrontPath<P>>(_: &F) -> Counted {
    F::COUNTED
}

/// Where the memory of `slot` starts.
#[inline(always)]
fn memory<P: Platform, F: FrontPath<P>>(loans: &Loans, path: &F, slot: u16) -> usize {
    path.start(if F::LENDS { loans.page(slot) } else { slot })
}

/// The one copy: from the slots' memory into the arena; no more than the head, where it is lent.
#[inline(always)]
fn take_frame<P: Platform, F: FrontPath<P>>(
    path: &F,
    loans: &mut Loans,
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
        copy_part(path, loans, part, dst)?;
        wanted -= copied;
    }
    if let Some(lent) = lent {
        lend(loans, parts, i, lent);
    }
    Ok(())
}

/// The beginning of a part, as much as `dst` has room for; all of the part lies in its slot's memory.
#[inline(always)]
fn copy_part<P: Platform, F: FrontPath<P>>(
    path: &F,
    loans: &Loans,
    Part { slot, offset, len }: Part,
    dst: &mut [u8],
) -> Result<(), PeerFault> {
    let from = usize::from(offset);
    let start = memory(loans, path, slot) + from;
    if from + usize::from(len) > path.slot_bytes() || !path.bytes().copy_out(start, dst) {
        return Err(fault(offset, len as i16));
    }
    Ok(())
}

/// Copies a frame whose first slot is in the memory of `first`, the others in that of `rest`.
fn take_split<P: Platform>(
    first: &AnyFrontPath<P>,
    rest: &AnyFrontPath<P>,
    loans: &Loans,
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
        with_path!(path, path => copy_part(path, loans, part, dst)?);
        path = rest;
    }
    Ok(())
}

/// Lends what is behind the head. All parts were looked at: a frame is lent whole or not at all.
#[inline(always)]
fn lend(loans: &mut Loans, parts: &[Part], i: usize, lent: &mut Lent) {
    let mut head = HEAD_BYTES as u16;
    let mut last = None;
    for &Part { slot, offset, len } in parts {
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

#[inline(always)]
fn offload_of(flags: u16) -> Offload {
    Offload {
        csum_blank: flags & RXF_CSUM_BLANK != 0,
        csum_ok: flags & (RXF_DATA_VALIDATED | RXF_CSUM_BLANK) != 0,
        gso_type: 0,
        gso_size: 0,
    }
}
