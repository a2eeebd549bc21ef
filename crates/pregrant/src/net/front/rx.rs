//! RX of one queue, at the guest: the back's frames are copied to private memory, or lent where
//! they are.
//!
//! ```text
//!   post: every free slot gets a request (id = number of its buffer or page, and the page)
//!   recv: answers --> one copy to the caller's sink --> post again
//!   recv_by_reference: answers --> a copy of the head, the rest stays where it is --> release --> post again
//! ```
//!
//! A frame is in the memory of the first path of the [chain](FrontChain) whose
//! [`holds`](FrontPath::holds) is true; its [head](AnyFrontPath::holds_heads) may be in that of an
//! earlier one. A response can also [name](AnyFlaggedPath) memory that no slot has,
//! by its flags.
//!
//! Invariant: bytes are copied to private memory before anything parses them, also for a
//! [hook](super::hook).
//!
//! What the back may do: answer with invalid offsets, lengths or chains (faults); change the memory
//! while it is copied (the copy is used) or while it is lent ([`rx_pages`](super::rx_pages)).

use super::receiver::{Copying, Handing, Lending, Receiver, check, memory};
use super::regions::{Granted, OwnRing};
use super::rx_answers::{LongFrame, Part, blank_newest, fault, is_plain, offload_of};
use super::rx_pages::lent::{Lent, LentPages, UnknownToken};
use super::slot_memory::SlotMemory;
use crate::array;
use crate::error::{PeerFault, PlatformError};
use crate::net::ahead::SHORT;
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::named_memory::{Answers, Received};
use crate::net::path::{AnyFlaggedPath, AnyFrontPath, FrontChain, FrontPath, PathName};
use crate::net::stats::DirStats;
use crate::platform::{Events, Platform};
use crate::port::{Arena, BURST_FRAMES, LentSink, Piece, Sink, Token};
use crate::ring::{FrontRing, NetRx};
use crate::units::GrantRef;
use crate::wire::netif::{RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest, RxResponse};
use alloc::boxed::Box;
use core::ops::Range;

/// The front's RX half of a queue.
pub struct RxFront<P: Platform> {
    pub(super) ring: FrontRing<NetRx, OwnRing<NetRx, P>>,
    pub(super) chain: FrontChain<P>,
    pub(super) pages: LentPages,
    pub(super) buffers: SlotMemory,
    /// Number of answers that arrived and belong to a frame whose last answer has not arrived.
    pub(super) cut: u32,
    /// Frames may stay in their pages, for a consumer that has its own references to pages.
    lends: bool,
    /// Scratch memory: a run of answers that were read.
    pub(super) run: Box<[RxResponse; BURST_FRAMES]>,
    /// Scratch memory: a frame of several answers.
    pub(super) long: Box<LongFrame>,
    pub(super) stats: DirStats,
}

/// The tables of a queue, made before its ring and its paths are given to it.
pub(super) struct RxTables {
    pages: LentPages,
    buffers: SlotMemory,
}

impl RxTables {
    /// Allocates the tables for a ring of `slots` slots and these paths.
    pub(super) fn new<P: Platform>(
        slots: u32,
        chain: &FrontChain<P>,
        tag: u16,
    ) -> Result<Self, PlatformError> {
        Ok(Self { pages: LentPages::new(slots, chain.pages(), tag)?, buffers: buffers_of(slots, chain)? })
    }
}

fn buffers_of<P: Platform>(slots: u32, chain: &FrontChain<P>) -> Result<SlotMemory, PlatformError> {
    SlotMemory::new(slots, chain.buffers(), chain.buffers_rest())
}

/// The result of reading the answers of a frame that is not plain, with the number of answers used.
enum Long {
    /// Not all answers of the frame have arrived.
    Cut,
    /// The sink has no room for the frame.
    NoRoom,
    /// The answers say that there is no frame.
    Error(u32),
    /// The frame was received.
    Frame(u32),
}

impl<P: Platform> RxFront<P> {
    /// A queue over a ring that was just initialised. Pages beyond the ring's slots are spare, so
    /// that frames can be passed by reference. `tag` is a number that no other queue of this vif
    /// has.
    ///
    /// # Errors
    /// There is no memory for its tables. The grants of the ring and of the paths are ended.
    pub fn new(
        p: &P,
        ring: FrontRing<NetRx, OwnRing<NetRx, P>>,
        chain: FrontChain<P>,
        tag: u16,
    ) -> Result<Self, PlatformError> {
        match RxTables::new(ring.size(), &chain, tag) {
            Ok(tables) => Ok(Self::with_tables(ring, chain, tables)),
            Err(e) => {
                chain.end_with(p, ring.into_mem());
                Err(e)
            }
        }
    }

    /// Like [`new`](Self::new), with tables that were made before.
    pub(super) fn with_tables(
        ring: FrontRing<NetRx, OwnRing<NetRx, P>>,
        chain: FrontChain<P>,
        tables: RxTables,
    ) -> Self {
        let RxTables { pages, buffers } = tables;
        Self {
            ring,
            chain,
            pages,
            buffers,
            cut: 0,
            lends: false,
            run: array::filled(RxResponse::default()),
            long: Box::default(),
            stats: DirStats::default(),
        }
    }

    /// Creates the slots' memory once the queue's paths are final, before the first slot is posted.
    pub(super) fn settle_buffers(&mut self) -> Result<(), PlatformError> {
        self.buffers = buffers_of(self.ring.size(), &self.chain)?;
        Ok(())
    }

    /// Posts a request in each free slot for which there is a page, and publishes the requests.
    pub fn post(&mut self, p: &P, chan: &<P::Events as Events>::Chan) -> Result<(), PlatformError> {
        let mut granted = Ok(());
        let Self { ring, pages, buffers, chain, .. } = self;
        let mut granting = chain.granting();
        for _ in 0..ring.free() {
            let slot = (ring.next_index() & (ring.size() - 1)) as u16;
            let Some(page) = pages.page_to_post(slot) else { break };
            let Some(id) = buffers.to_post(slot) else { break };
            let gref = match &mut granting {
                Some(last) => last.place(p, page),
                None => Ok(0),
            };
            match gref {
                Ok(gref) => ring.push(&RxRequest { id, gref }),
                // The back must see the requests that are on the ring nevertheless.
                Err(e) => {
                    granted = Err(e);
                    break;
                }
            }
        }
        self.pages.posted();
        if self.ring.publish().wanted() {
            self.stats.notifications += 1;
            p.events().notify(chan);
        }
        self.stats.batches += 1;
        granted
    }

    /// Copies the frames that arrived to `to`, as many as it has room for, once at least `want`
    /// answers are there. Returns how many frames were added. The slots are free afterwards: call
    /// [`post`](Self::post). Frames that are [fetched](Self::fetch) go to an arena.
    pub fn recv(&mut self, to: &mut impl Sink, want: u32) -> Result<usize, PeerFault> {
        debug_assert!(!self.chain.fetches() || to.arena().is_some());
        self.take(&mut Copying(to), want)
    }

    /// Like [`recv`](Self::recv), but of long frames in pages only the first `RX_HEAD_BYTES` bytes
    /// are copied; the rest is read in the page ([`piece`](Self::piece)) until the frame is
    /// [released](Self::release). Frames in staging buffers are always copied, since a buffer
    /// cannot be lent; so are frames whose head is in one.
    pub fn recv_by_reference(
        &mut self,
        out: &mut Arena,
        lent: &mut Lent,
        want: u32,
    ) -> Result<usize, PeerFault> {
        let before = out.len();
        let taken = self.take(&mut Lending { out, lent }, want);
        if taken.is_err() {
            // The caller does not get the frames before the fault, so they are released here.
            for token in lent.forget_from(before) {
                let known = self.pages.release(token);
                debug_assert!(known.is_ok(), "it was lent in this call");
            }
        }
        taken
    }

    /// Like [`recv`](Self::recv), for a sink that accepts references to pages. Of TCP frames in
    /// pages that the sink [wants](LentSink::wants) by reference only the head is copied; the rest
    /// stays in the page until its token is [released](Self::release). If too few pages are spare,
    /// frames are copied; so are all frames unless that was [allowed](Self::allow_lent).
    pub fn recv_lent(&mut self, to: &mut impl LentSink, want: u32) -> Result<usize, PeerFault> {
        self.take(&mut Handing { to, lends: self.lends }, want)
    }

    /// Allows frames to stay in their pages, because the back is [trusted](super::trust).
    pub fn allow_lent(&mut self) {
        self.lends = true;
    }

    /// Fragment `k` of the payload of the frame with this `token`, in order. None: there are no
    /// more.
    #[inline(always)]
    pub fn piece(&self, token: Token, k: usize) -> Option<Piece<'_>> {
        self.pieces(token).nth(k)
    }

    /// All fragments of the payload of the frame with this `token`.
    #[inline(always)]
    pub fn pieces(&self, token: Token) -> impl Iterator<Item = Piece<'_>> {
        self.pages.pieces_in(self.chain.pages(), token)
    }

    /// Called when the frame of `token` is not read any more: its pages can be posted again
    /// ([`post`](Self::post)).
    #[inline(always)]
    pub fn release(&mut self, token: Token) -> Result<(), UnknownToken> {
        self.pages.release(token)
    }

    #[inline(always)]
    fn take(&mut self, to: &mut impl Receiver<P>, want: u32) -> Result<usize, PeerFault> {
        self.take_answers(to, want).map_err(|fault| self.ring.fail(fault))
    }

    #[inline(always)]
    fn take_answers(&mut self, to: &mut impl Receiver<P>, want: u32) -> Result<usize, PeerFault> {
        self.chain.flagged_mut().iter_mut().for_each(AnyFlaggedPath::begin);
        let want = want.max(self.cut + 1);
        let mut n = self.ring.available(want)?;
        if n < want {
            return Ok(0);
        }
        self.cut = 0;
        let (mut taken, mut frames) = (0, 0);
        let heads = self.chain.paths().first().is_some_and(AnyFrontPath::holds_heads);
        self.ring.prefetch(n.min(BURST_FRAMES as u32));
        while taken < n && to.to().takes() > 0 {
            // The common case, one slot and no extras: a run of answers is read, their memory's
            // lines asked for, and then the frames are copied.
            let most = ((n - taken) as usize).min(to.to().takes()).min(BURST_FRAMES);
            let (run, long) = self.plain_run(taken, most, heads);
            let mut done = 0;
            while done < run {
                match self.take_some(taken + done as u32, done..run, to)? {
                    0 => break, // it has no room after all
                    some => done += some,
                }
            }
            (taken, frames) = (taken + done as u32, frames + done);
            if done < run {
                break;
            }
            let Some(rsp) = long else { continue };
            if to.to().takes() == 0 {
                break;
            }
            if is_plain(rsp) && self.chain.names(rsp.flags) != 0 {
                match self.recv_named(rsp, taken, n, to.to())? {
                    0 => break,
                    used => (taken, frames) = (taken + used, frames + used as usize),
                }
                continue;
            }
            match self.recv_long(rsp, taken, n, to)? {
                // The rest of the frame is not there yet: poll again, then wait for more.
                Long::Cut => match self.ring.available(n + 1)? {
                    more if more > n => n = more,
                    _ => {
                        self.cut = n - taken;
                        break;
                    }
                },
                Long::NoRoom => break,
                Long::Error(used) => taken += used,
                Long::Frame(used) => (taken, frames) = (taken + used, frames + 1),
            }
        }
        self.ring.consume(taken);
        Ok(frames)
    }

    /// Reads at most `most` answers, from the `at`-th on, into `self.run`, up to one that is not
    /// plain, which is returned too. Answers for which the arena has no room are read again by a
    /// later call; nothing is kept of them. `heads`: prefetches the first bytes of longer frames,
    /// too.
    #[inline(always)]
    pub(super) fn plain_run(&mut self, at: u32, most: usize, heads: bool) -> (usize, Option<RxResponse>) {
        let Self { ring, chain, pages, buffers, run, .. } = self;
        let Some(first) = chain.paths().first() else { return (0, (most > 0).then(|| ring.read(at))) };
        let answers = (&*ring, at, most);
        let asked = if heads { usize::MAX } else { first.asked_bytes() };
        let places = (&*pages, &*buffers);
        match first {
            AnyFrontPath::Staging(path) => read_run(path, answers, places, run, asked),
            AnyFrontPath::DataRing(path) => read_run(path, answers, places, run, asked),
            #[cfg(feature = "research")]
            AnyFrontPath::Foreign(path) => read_run(path, answers, places, run, asked),
            AnyFrontPath::Copy(path) => read_run(path, answers, places, run, asked),
        }
    }

    #[inline(always)]
    pub(super) fn slot_ahead(&self, ahead: u32) -> u16 {
        self.slot_at(self.ring.rsp_cons().wrapping_add(ahead))
    }

    #[inline(always)]
    pub(super) fn slot_at(&self, index: u32) -> u16 {
        (index & (self.ring.size() - 1)) as u16
    }

    /// Receives frames of one slot each, from the first of `run` on, that are in one path's memory.
    /// `at`: offset of the first answer from the consumer index. Returns how many; 0: there is no
    /// room for the first.
    #[inline(always)]
    fn take_some(
        &mut self,
        at: u32,
        run: Range<usize>,
        to: &mut impl Receiver<P>,
    ) -> Result<usize, PeerFault> {
        let (first, mask) = (self.slot_ahead(at), (self.ring.size() - 1) as u16);
        let rsps = self.run.get(run).unwrap_or_default();
        let mut longer_than = -1;
        for any in self.chain.paths() {
            let mut slots = (&mut self.pages, &mut self.buffers, &mut self.stats);
            let answers = (rsps, first, mask);
            let (n, full) = match any {
                AnyFrontPath::Staging(path) => take_run(path, answers, &mut slots, to, longer_than)?,
                AnyFrontPath::DataRing(path) => take_run(path, answers, &mut slots, to, longer_than)?,
                #[cfg(feature = "research")]
                AnyFrontPath::Foreign(path) => take_run(path, answers, &mut slots, to, longer_than)?,
                AnyFrontPath::Copy(path) => take_run(path, answers, &mut slots, to, longer_than)?,
            };
            if n > 0 || full {
                return Ok(n);
            }
            if any.holds_heads()
                && let Some(rest) = self.chain.paths().last()
            {
                let (memory, places) = ((any, rest), (&mut self.pages, &self.buffers));
                return take_split_run(memory, places, (first, mask), rsps, to, &mut self.stats);
            }
            longer_than = any.slot_bytes() as i32;
        }
        Err(rsps.first().map_or(PeerFault::TooManySlots, |rsp| fault(rsp.offset, rsp.status)))
    }

    /// Receives frames of one slot each whose memory the response names: `rsp`, the `at`-th of `n`
    /// answers, and those that follow. Returns how many.
    fn recv_named(&mut self, rsp: RxResponse, at: u32, n: u32, to: &mut impl Sink) -> Result<u32, PeerFault> {
        let Self { ring, chain, stats, .. } = self;
        let path = chain.flagged_by_mut(chain.names(rsp.flags)).ok_or(fault(rsp.offset, rsp.status))?;
        path.recv_run(Answers { ring, at, n, stats }, rsp, to)
    }

    /// Fetches the bytes of the frames that the last call received, if their path fetches them in
    /// batches. Must be called before their slots are posted.
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, out: &mut Arena) {
        let Self { chain, stats, .. } = self;
        chain.flagged_mut().iter_mut().for_each(|path| path.fetch(p, out, stats));
    }

    /// Receives a frame of several slots or with extras, or reads the answers that report an error
    /// instead of a frame.
    #[cold]
    #[inline(never)]
    fn recv_long(
        &mut self,
        first: RxResponse,
        at: u32,
        n: u32,
        to: &mut impl Receiver<P>,
    ) -> Result<Long, PeerFault> {
        if !self.read_long(first, at, n)? {
            return Ok(Long::Cut);
        }
        let Self { chain, pages, buffers, long: frame, stats, .. } = self;
        if frame.error {
            return Ok(Long::Error(frame.used));
        }
        if frame.name() != 0 {
            let (parts, offload) = (frame.parts(), frame.offload);
            let path = chain.flagged_by_mut(frame.name()).ok_or(frame.fault)?;
            let by = path.name();
            match path.recv_long((parts, offload), to.to())? {
                Received::Whole => took_long(stats, frame, by, to.to()),
                Received::Noted => {}
                Received::NoRoom => return Ok(Long::NoRoom),
            }
            return Ok(Long::Frame(frame.used));
        }
        let (heads, path) = memories(chain, frame)?;
        let by = path.name();
        let taken = match heads {
            Some(first) => to.take_split((first, path), (pages, buffers), frame.parts(), frame.offload)?,
            None => match path {
                AnyFrontPath::Staging(path) => to.take(path, (pages, buffers), frame)?,
                AnyFrontPath::DataRing(path) => to.take(path, (pages, buffers), frame)?,
                #[cfg(feature = "research")]
                AnyFrontPath::Foreign(path) => to.take(path, (pages, buffers), frame)?,
                AnyFrontPath::Copy(path) => to.take(path, (pages, buffers), frame)?,
            },
        };
        if !taken {
            return Ok(Long::NoRoom);
        }
        took_long(stats, frame, by, to.to());
        Ok(Long::Frame(frame.used))
    }

    /// Reads the answers of a long frame, from the `at`-th of `n` on, into `long`. Returns false if
    /// not all of them have arrived.
    pub(super) fn read_long(&mut self, first: RxResponse, at: u32, n: u32) -> Result<bool, PeerFault> {
        let Self { ring, chain, long: frame, stats, .. } = self;
        let names = |rsp: &RxResponse| match chain.names(rsp.flags) {
            0 => Ok(0),
            name if chain.flagged_by(name).is_none_or(|path| path.can_have(rsp)) => Ok(name),
            _ => Err(fault(rsp.offset, rsp.status)),
        };
        if !frame.read(ring, names, first, (at, n))? {
            return Ok(false);
        }
        if frame.error {
            stats.errors += 1;
        } else if frame.name() != 0 && chain.flagged_by(frame.name()).is_none() {
            return Err(frame.fault);
        }
        Ok(true)
    }

    /// Called before sleeping: asks for an event when `ahead` answers have arrived that were not
    /// taken yet. Returns true if they have already.
    pub fn final_check(&mut self, ahead: u32) -> Result<bool, PeerFault> {
        self.ring.final_check(ahead.max(self.cut + 1))
    }

    /// True if there is work, like [`final_check`](Self::final_check), without arming anything.
    pub fn is_pending(&mut self) -> bool {
        let wanted = self.cut + 1;
        self.ring.available(wanted).is_ok_and(|n| n >= wanted)
    }

    /// Whether a slot is free to be posted.
    #[inline(always)]
    pub fn has_free(&self) -> bool {
        let slot = self.slot_at(self.ring.next_index());
        self.ring.free() > 0 && self.pages.can_post(slot) && self.buffers.can_post(slot)
    }

    /// True if a slot waits for a buffer that TX is sending.
    pub fn wants_buffer(&self) -> bool {
        self.ring.free() > 0 && !self.buffers.can_post(self.slot_at(self.ring.next_index()))
    }

    /// Returns a received buffer that TX sent: TX consumed the answer to its request.
    #[inline(always)]
    pub fn give_back(&mut self, buffer: u16) {
        self.buffers.give_back(buffer);
    }

    /// The table of which staging buffer each slot has.
    pub fn buffers(&self) -> &SlotMemory {
        &self.buffers
    }

    /// Number of frames that the caller has by reference.
    pub fn lent(&self) -> u32 {
        self.pages.out()
    }

    /// The pages of slots, and those that are passed by reference.
    pub fn pages(&self) -> &LentPages {
        &self.pages
    }

    /// Adds a page under a number of its [room](OrdinaryPages::room). Returns the page if there is
    /// no such number, or it is in use.
    pub fn add_page(&mut self, page: u16, granted: Granted<P>) -> Result<(), Granted<P>> {
        let Some(pages) = self.chain.pages_mut() else { return Err(granted) };
        pages.add(page, granted)?;
        self.pages.add(page);
        Ok(())
    }

    /// Numbers and grants of the pages that were added.
    pub fn added_refs(&self) -> impl Iterator<Item = (u16, GrantRef)> {
        self.chain.pages().into_iter().flat_map(OrdinaryPages::added_refs)
    }

    /// Removes an added page that neither a slot nor a consumer has. None: there is no such page.
    pub fn take_page(&mut self) -> Option<(u16, Granted<P>)> {
        let pages = self.chain.pages_mut()?;
        let page = self.pages.take_out(pages.room().0)?;
        pages.take_added(page).map(|granted| (page, granted))
    }

    /// The counters, as a copy.
    pub fn stats(&self) -> DirStats {
        self.stats
    }

    /// Counts a received frame that is lost because memory was short.
    pub fn note_dropped(&mut self) {
        self.stats.dropped += 1;
    }

    /// Number of slots of the ring.
    pub fn ring_size(&self) -> u32 {
        self.ring.size()
    }

    /// The paths, with the memory of the frames.
    pub fn chain(&self) -> &FrontChain<P> {
        &self.chain
    }

    /// The paths, to be changed before the first frame.
    pub fn chain_mut(&mut self) -> &mut FrontChain<P> {
        &mut self.chain
    }

    /// Adds pages for frames that the paths do not carry. Before the first frame.
    pub fn append(&mut self, pages: OrdinaryPages<P>) -> Result<(), PlatformError> {
        self.chain.insert(AnyFrontPath::Copy(pages));
        if let Some(pages) = self.chain.pages() {
            self.pages = self.pages.with_pages(self.ring.size(), pages)?;
        }
        Ok(())
    }

    /// Ends the queue and returns its memory, which is released once the back has closed.
    pub fn into_parts(self) -> (OwnRing<NetRx, P>, FrontChain<P>) {
        (self.ring.into_mem(), self.chain)
    }

    /// Like [`into_parts`](Self::into_parts); also returns which pages the caller has by reference.
    pub fn end(self) -> (OwnRing<NetRx, P>, FrontChain<P>, LentPages) {
        (self.ring.into_mem(), self.chain, self.pages)
    }
}

/// Reads at most `most` answers, from the `at`-th on, into `run`, up to one that is not plain,
/// which is returned too. Prefetches those frames in this path's memory that are short enough.
#[inline(always)]
fn read_run<P: Platform, F: FrontPath<P>>(
    path: &F,
    (ring, at, most): (&FrontRing<NetRx, OwnRing<NetRx, P>>, u32, usize),
    (pages, buffers): (&LentPages, &SlotMemory),
    run: &mut [RxResponse; BURST_FRAMES],
    asked: usize,
) -> (usize, Option<RxResponse>) {
    let mut n = 0;
    while n < most {
        let rsp = ring.read(at + n as u32);
        if rsp.flags & (RXF_MORE_DATA | RXF_EXTRA_INFO | AnyFlaggedPath::<P>::FLAGS) != 0 || rsp.status < 0 {
            return (n, Some(rsp));
        }
        if rsp.status as usize <= asked {
            let slot = (ring.rsp_cons().wrapping_add(at + n as u32) & (ring.size() - 1)) as u16;
            let start = memory((pages, buffers), path, slot);
            path.prefetch(start + rsp.offset as usize, (rsp.status as usize).min(SHORT));
        }
        if let Some(place) = run.get_mut(n) {
            *place = rsp;
        }
        n += 1;
    }
    (n, None)
}

/// Receives frames of one slot each, from the first of `rsps` on, that are in this path's memory
/// and too long for the paths before it. Returns how many, and whether there was no room for the
/// next.
#[inline(always)]
fn take_run<P: Platform, F: FrontPath<P>>(
    path: &F,
    (rsps, first, mask): (&[RxResponse], u16, u16),
    (pages, buffers, stats): &mut (&mut LentPages, &mut SlotMemory, &mut DirStats),
    to: &mut impl Receiver<P>,
    longer_than: i32,
) -> Result<(usize, bool), PeerFault> {
    let (mut n, mut full) = (0, false);
    for rsp in rsps {
        let len = rsp.status as u16;
        if i32::from(len) <= longer_than || !path.holds(usize::from(len), 1) {
            break;
        }
        let slot = first.wrapping_add(n as u16) & mask;
        let part = Part { slot, offset: rsp.offset, len, ..Part::default() };
        if !to.take_one(path, (pages, buffers), part, offload_of(rsp.flags))? {
            full = true;
            break;
        }
        // The slot's memory of the other kind was not used, so it stays with the slot.
        match F::IN_PAGES {
            true => buffers.keep(slot),
            false => pages.keep(slot),
        }
        stats.bytes += u64::from(len);
        n += 1;
    }
    stats.handed_on_by(F::NAME, n as u64);
    Ok((n, full))
}

/// The path whose memory the frame is in, and the path whose memory the first part is in, if that
/// is another one: then the parts are split between the two.
pub(super) fn memories<'a, P: Platform>(
    chain: &'a FrontChain<P>,
    frame: &mut LongFrame,
) -> Result<(Option<&'a AnyFrontPath<P>>, &'a AnyFrontPath<P>), PeerFault> {
    let (bytes, nr) = (frame.headroom + frame.total, frame.parts().len());
    let holds = |path: &AnyFrontPath<P>| path.holds(bytes, nr);
    let k = chain.paths().iter().position(holds).ok_or(frame.fault)?;
    let (ahead, rest) = chain.paths().split_at(k);
    let path = rest.first().ok_or(frame.fault)?;
    let Some(heads) = ahead.iter().find(|other| other.holds_heads()) else { return Ok((None, path)) };
    frame.parts().first().map_or(Ok(()), |part| check(path.slot_bytes(), *part))?;
    Ok((Some(if frame.split_head(heads.slot_bytes()) { heads } else { path }), path))
}

/// Counts a long frame that was received.
fn took_long(stats: &mut DirStats, frame: &LongFrame, by: PathName, to: &mut impl Sink) {
    stats.bytes += frame.total as u64;
    stats.handed_on_by(by, 1);
    if let Some(out) = to.arena() {
        blank_newest(out, stats);
    }
}

/// Receives frames of one slot each that are too long for `first`, which has their first bytes.
/// Returns how many; 0: there is no room for the first.
#[inline(never)]
fn take_split_run<P: Platform>(
    (first, rest): (&AnyFrontPath<P>, &AnyFrontPath<P>),
    (pages, buffers): (&mut LentPages, &SlotMemory),
    (slot, mask): (u16, u16),
    rsps: &[RxResponse],
    to: &mut impl Receiver<P>,
    stats: &mut DirStats,
) -> Result<usize, PeerFault> {
    let (end, slot_bytes, mut n) = (first.slot_bytes(), rest.slot_bytes(), 0);
    for rsp in rsps {
        let (len, offload) = (rsp.status as u16, offload_of(rsp.flags));
        if usize::from(len) <= end {
            break;
        }
        let slot = slot.wrapping_add(n as u16) & mask;
        let part = Part { slot, offset: rsp.offset, len, ..Part::default() };
        check(slot_bytes, part)?;
        let (ahead, parts, nr) = match part.split(end) {
            Some((head, behind)) => (first, [head, behind], 2),
            None => (rest, [part; 2], 1),
        };
        let parts = parts.get(..nr).unwrap_or_default();
        if !to.take_split((ahead, rest), (&mut *pages, buffers), parts, offload)? {
            break;
        }
        stats.bytes += u64::from(len);
        n += 1;
    }
    stats.handed_on_by(rest.name(), n as u64);
    Ok(n)
}
