//! One queue of the front: its ring, its pages, and its requests in flight.
//!
//! ```text
//!   submit: a place, free pages, bytes in, segments (11, or a list in pages of its own), id --> ring
//!   take:   ring --> id --> the place's request --> Answer, bytes out --> pages are free again, in the order that keeps the next ones warm
//! ```
//! Requests for the guest's own memory are in [`own_pages`](super::own_pages).
//!
//! Invariants: an id is the index of a slot and a count of its uses, so an answer to an old request
//! is recognised even if the slot is in use again. Each answer is copied from the ring once and
//! checked against its request.
//!
//! What a back may do: answer ids that were never used, or twice, or with another operation (each
//! is a fault that closes the device); send any status (other than OKAY and EOPNOTSUPP it counts as
//! a failure); change the pages of a read at any time, also while they are copied; keep pages
//! mapped (they are never granted to another domain).

use super::free_pages::FreePages;
use super::own_pages::{OwnAsk, REFUSED, end_grants};
use crate::blk::disk::{IoError, SECTOR_BYTES};
use crate::error::{PeerFault, PlatformError};
use crate::grants::regions::{Granting, Region, Regions};
use crate::platform::{Access, Events, GrantPool, Platform};
use crate::ring::{AnyOrder, Blkif32, Blkif64, FrontRing, Notify, RingPages};
use crate::shm::SharedBytes;
use crate::units::{EvtchnPort, GrantRef, PAGE_SIZE};
use crate::wire::blkif::{
    Abi, DISCARD_SECURE, DiscardRequest, INDIRECT_PAGES_MAX, IndirectRequest, OP_DISCARD, OP_FLUSH_DISKCACHE,
    OP_INDIRECT, OP_READ, OP_WRITE, OP_WRITE_BARRIER, RSP_EOPNOTSUPP, RSP_OKAY, Request, Response, RwRequest,
    SEGMENTS_MAX, SEGMENTS_PER_INDIRECT_PAGE, Segment,
};
use alloc::boxed::Box;
use alloc::vec::Vec;

type Chan<P> = <<P as Platform>::Events as Events>::Chan;
type Ring<K, P> = FrontRing<K, RingPages<K, Region<P>>>;

/// A request to a disk, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask<'a> {
    /// Reads `sectors` sectors.
    Read {
        /// The first sector.
        sector: u64,
        /// Number of sectors.
        sectors: u32,
    },
    /// Writes `bytes`, which must be whole sectors.
    Write {
        /// The first sector.
        sector: u64,
        /// The data.
        bytes: &'a [u8],
    },
    /// Writes after all earlier requests and before all later ones, so that the data is durable
    /// when it is answered.
    Barrier {
        /// The first sector.
        sector: u64,
        /// The data to write. If it is empty, the request only orders earlier writes and makes them
        /// durable.
        bytes: &'a [u8],
    },
    /// Makes all answered writes durable.
    Flush,
    /// Discards sectors.
    Discard {
        /// The first sector.
        sector: u64,
        /// Number of sectors.
        sectors: u64,
        /// Whether the data must not be recoverable.
        secure: bool,
    },
}

impl Ask<'_> {
    fn op(&self) -> u8 {
        match self {
            Self::Read { .. } => OP_READ,
            Self::Write { .. } => OP_WRITE,
            Self::Barrier { .. } => OP_WRITE_BARRIER,
            Self::Flush => OP_FLUSH_DISKCACHE,
            Self::Discard { .. } => OP_DISCARD,
        }
    }

    /// Number of bytes to be transferred.
    fn len(&self) -> usize {
        match self {
            Self::Read { sectors, .. } => *sectors as usize * SECTOR_BYTES,
            Self::Write { bytes, .. } | Self::Barrier { bytes, .. } => bytes.len(),
            Self::Flush | Self::Discard { .. } => 0,
        }
    }
}

/// Why a request was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotAsked {
    /// No slot or no page is free: take answers first, and try again with at most
    /// [`most_bytes`](FrontQueue::most_bytes).
    Full,
    /// The request is longer than allowed, empty, or not a whole number of sectors.
    Length,
    /// The queue has ended, or the disk is not connected.
    Closed,
    /// A page could not be granted.
    Platform(PlatformError),
}

impl From<PlatformError> for NotAsked {
    fn from(e: PlatformError) -> Self {
        Self::Platform(e)
    }
}

/// An answer to a request.
pub struct Answer<'a, P: Platform> {
    /// The tag of the request.
    pub tag: u64,
    /// The result.
    pub outcome: Result<(), IoError>,
    pages: &'a [u32],
    free_pages: &'a FreePages<P>,
    len: usize,
}

impl<P: Platform> Answer<'_, P> {
    /// Number of bytes read. Data for the guest's own memory is there already.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes were read.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes read to `to`, as many as fit; the rest of `to` is unchanged. Returns how
    /// many.
    pub fn copy_out(&self, to: &mut [u8]) -> usize {
        let n = self.len.min(to.len()).min(self.pages.len() * PAGE_SIZE);
        for (page, chunk) in self.pages.iter().zip(to[..n].chunks_mut(PAGE_SIZE)) {
            let copied = self.free_pages.copy_out(*page, chunk);
            debug_assert!(copied, "a page of our own");
        }
        n
    }
}

/// A slot for a request in flight.
#[derive(Default)]
struct Place {
    /// Number of times the slot was used.
    turn: u32,
    in_flight: bool,
    op: u8,
    tag: u64,
    /// Number of bytes to be read.
    len: usize,
    /// The pages of the data, in order, unless it is in the guest's own memory; then the pages of
    /// the segment list.
    pages: Vec<u32>,
    nr_lists: usize,
    /// Grants of the guest's own pages.
    own: Vec<GrantRef>,
    /// The result of the request, while the back still uses some of the guest's own pages.
    outcome: Option<Result<(), IoError>>,
}

/// The data of a request.
#[derive(Clone, Copy)]
struct Extent {
    sector: u64,
    /// Offset of the data's first byte in its first page.
    offset: usize,
    /// Number of bytes.
    len: usize,
    nr_pages: usize,
    nr_lists: usize,
}

impl Extent {
    fn new(sector: u64, offset: usize, len: usize) -> Self {
        let nr_pages = (offset + len).div_ceil(PAGE_SIZE);
        let is_indirect = nr_pages > SEGMENTS_MAX;
        let nr_lists = if is_indirect { nr_pages.div_ceil(SEGMENTS_PER_INDIRECT_PAGE) } else { 0 };
        Self { sector, offset, len, nr_pages, nr_lists }
    }

    /// The segment for the data's page number `k`.
    fn segment(&self, k: usize, gref: GrantRef) -> Segment {
        let from = if k == 0 { self.offset } else { 0 };
        let to = (self.offset + self.len - k * PAGE_SIZE).min(PAGE_SIZE);
        Segment {
            gref: gref.0,
            first_sect: (from / SECTOR_BYTES) as u8,
            last_sect: (to / SECTOR_BYTES - 1) as u8,
        }
    }
}

impl Place {
    /// Assigns a request to the slot; returns the request's id.
    #[inline(always)]
    fn begin(&mut self, at: u32, (op, tag): (u8, u64), extent: &Extent) -> u64 {
        self.turn = self.turn.wrapping_add(1);
        self.in_flight = true;
        (self.op, self.tag, self.nr_lists) = (op, tag, extent.nr_lists);
        self.len = if op == OP_READ { extent.len } else { 0 };
        u64::from(self.turn) << 32 | u64::from(at)
    }

    /// Reports the result of the request; its pages are free then.
    #[inline(always)]
    fn finish<P: Platform>(
        &mut self,
        p: &P,
        free_pages: &mut FreePages<P>,
        outcome: Result<(), IoError>,
        each: &mut impl FnMut(Answer<'_, P>),
    ) {
        let len = if outcome.is_ok() { self.len } else { 0 };
        let pages = &self.pages[..self.pages.len() - self.nr_lists];
        each(Answer { tag: self.tag, outcome, pages, free_pages, len });
        self.pages.drain(..).rev().for_each(|page| free_pages.give_back(p, page));
    }
}

enum AnyRing<P: Platform> {
    X64(Ring<Blkif64, P>),
    X32(Ring<Blkif32, P>),
}

macro_rules! with_ring {
    ($any:expr, $ring:ident => $call:expr) => {
        match $any {
            AnyRing::X64($ring) => $call,
            AnyRing::X32($ring) => $call,
        }
    };
}

/// The parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// The layout of slots.
    pub abi: Abi,
    /// log2 of the number of pages of the ring.
    pub ring_order: u32,
    /// Largest number of pages for data and segment lists.
    pub pages: usize,
    /// How the pages are granted.
    pub granting: Granting,
    /// Largest number of segments of an indirect request that the back takes; 0: there are no
    /// indirect requests.
    pub max_indirect: u32,
}

/// One queue of a disk's front.
pub struct FrontQueue<P: Platform> {
    ring: AnyRing<P>,
    ring_grants: crate::grants::regions::Grants,
    chan: Chan<P>,
    free_pages: FreePages<P>,
    places: Box<[Place]>,
    free: Vec<u32>,
    /// Grants of the current request: of its data, then of its segment list.
    refs: Vec<GrantRef>,
    /// Slots whose answers wait until the back stops using the guest's own pages.
    waiting: Vec<u32>,
    /// Grants of the guest's own pages that belong to no slot.
    left: Vec<GrantRef>,
    max_indirect: usize,
}

impl<P: Platform> FrontQueue<P> {
    /// Creates a queue. Returns it with the grants of its ring, and its channel's number.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        config: QueueConfig,
    ) -> Result<(Self, Vec<GrantRef>, EvtchnPort), PlatformError> {
        let pages = 1usize << config.ring_order;
        let ring = regions.take_exactly(p, Access::ReadWrite, pages)?;
        let free_pages = match FreePages::new(p, regions, config.pages, config.granting) {
            Ok(free_pages) => free_pages,
            Err(e) => {
                regions.put(p, ring);
                return Err(e);
            }
        };
        let max_indirect = config.max_indirect as usize;
        let (chan, port) = match p.events().offer(regions.to()) {
            Ok(offered) => offered,
            Err(e) => {
                regions.put(p, ring);
                free_pages.end(p, regions);
                return Err(e);
            }
        };
        let refs = ring.refs()[..pages].to_vec();
        let (region, ring_grants) = ring.into_parts();
        fn fresh<K: AnyOrder, P: Platform>(region: Region<P>) -> Ring<K, P> {
            let mem = RingPages::<K, _>::new(region);
            mem.init();
            FrontRing::new(mem)
        }
        let ring = match config.abi {
            Abi::X86_64 => AnyRing::X64(fresh::<Blkif64, P>(region)),
            Abi::X86_32 => AnyRing::X32(fresh::<Blkif32, P>(region)),
        };
        let size = with_ring!(&ring, ring => ring.size());
        let places = (0..size).map(|_| Place::default()).collect();
        let free = (0..size).rev().collect();
        Ok((
            Self {
                ring,
                ring_grants,
                chan,
                free_pages,
                places,
                free,
                refs: Vec::new(),
                waiting: Vec::new(),
                left: Vec::new(),
                max_indirect,
            },
            refs,
            port,
        ))
    }

    /// Largest number of bytes of a request. It shrinks when the platform refuses more pages.
    pub fn most_bytes(&self) -> usize {
        // No longer than all of its pages together, since a longer request would never fit.
        self.max_indirect.min(self.free_pages.segments_most()).max(SEGMENTS_MAX) * PAGE_SIZE
    }

    /// Number of requests that can be sent now, if there are pages for them.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Number of requests without an answer.
    pub fn in_flight(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Number of answers that wait until the back stops using the guest's own pages: call
    /// [`take`](Self::take) again after a while.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of grants of the guest's own pages.
    pub fn own_grants(&self) -> usize {
        self.left.len() + self.places.iter().map(|place| place.own.len()).sum::<usize>()
    }

    /// Number of pages allocated for data and segment lists.
    pub fn pages(&self) -> usize {
        self.free_pages.count()
    }

    /// Number of pages that were returned while the back still used them.
    pub fn busy_pages(&self) -> usize {
        self.free_pages.busy()
    }

    /// Writes a request, which the next [`publish`](Self::publish) makes visible to the back. `tag`
    /// comes back with the answer. If there are too few pages, more are taken from `regions`.
    pub fn submit(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        ask: &Ask<'_>,
        tag: u64,
    ) -> Result<(), NotAsked> {
        let len = ask.len();
        let takes_none = matches!(ask, Ask::Flush | Ask::Discard { .. })
            || matches!(ask, Ask::Barrier { bytes, .. } if bytes.is_empty());
        let sector = match *ask {
            Ask::Read { sector, .. } | Ask::Write { sector, .. } | Ask::Barrier { sector, .. } => sector,
            Ask::Flush | Ask::Discard { .. } => 0,
        };
        if (len == 0) != takes_none || !len.is_multiple_of(SECTOR_BYTES) || len > self.most_bytes() {
            return Err(NotAsked::Length);
        }
        let extent = Extent::new(sector, 0, len);
        if extent.nr_lists > 0 && ask.op() == OP_WRITE_BARRIER {
            return Err(NotAsked::Length);
        }
        self.refs.clear();
        let at = self.take_pages(p, regions, extent.nr_pages + extent.nr_lists)?;
        let place = &mut self.places[at as usize];
        let bytes = match ask {
            Ask::Write { bytes, .. } | Ask::Barrier { bytes, .. } => bytes,
            Ask::Read { .. } | Ask::Flush | Ask::Discard { .. } => &[][..],
        };
        for (page, chunk) in place.pages.iter().zip(bytes.chunks(PAGE_SIZE)) {
            let copied = self.free_pages.copy_in(*page, chunk);
            debug_assert!(copied, "a page of our own");
        }
        if !bytes.is_empty() {
            self.free_pages.prefetch_next(); // for the next write
        }
        let id = place.begin(at, (ask.op(), tag), &extent);
        let req = match *ask {
            Ask::Discard { sector, sectors, secure } => Request::Discard(DiscardRequest {
                flag: if secure { DISCARD_SECURE } else { 0 },
                handle: 0,
                id,
                sector,
                nr_sectors: sectors,
            }),
            _ => self.request(at, id, &extent),
        };
        self.free.pop();
        with_ring!(&mut self.ring, ring => ring.push(&req));
        Ok(())
    }

    /// Like [`submit`](Self::submit), for data in `memory`, which is the guest's own.
    pub fn submit_own(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        memory: &Region<P>,
        ask: &OwnAsk,
        tag: u64,
    ) -> Result<(), NotAsked> {
        let table = p.grants().per_frame().ok_or(REFUSED)?;
        let pages = ask.pages(memory.len()).ok_or(NotAsked::Length)?;
        let extent = Extent::new(ask.sector, ask.at % PAGE_SIZE, ask.len());
        if extent.nr_pages > self.max_indirect.max(SEGMENTS_MAX) {
            return Err(NotAsked::Length);
        }
        end_grants(p, &mut self.left);
        self.refs.clear();
        self.refs.resize(extent.nr_pages, GrantRef::NONE);
        let at = self.take_pages(p, regions, extent.nr_lists)?;
        let place = &mut self.places[at as usize];
        for (gref, page) in self.refs.iter_mut().zip(pages) {
            match table.grant(regions.to(), memory, page, ask.access()) {
                Ok(of) => *gref = of,
                Err(e) => {
                    // The back can guess references, so one may be in use.
                    end_grants(p, &mut place.own);
                    self.left.append(&mut place.own);
                    place.pages.drain(..).rev().for_each(|page| self.free_pages.give_back(p, page));
                    return Err(e.into());
                }
            }
            place.own.push(*gref);
        }
        let op = if ask.reads { OP_READ } else { OP_WRITE };
        let id = place.begin(at, (op, tag), &extent);
        let req = self.request(at, id, &extent);
        self.free.pop();
        with_ring!(&mut self.ring, ring => ring.push(&req));
        Ok(())
    }

    /// The next free slot, with `n` free pages, whose grants are put to `refs`. The slot stays
    /// free.
    #[inline(always)]
    fn take_pages(&mut self, p: &P, regions: &mut Regions<P>, n: usize) -> Result<u32, NotAsked> {
        if self.free_pages.busy() > 0 {
            self.free_pages.recheck(p);
        }
        let Some(&at) = self.free.last() else { return Err(NotAsked::Full) };
        if self.free_pages.free() < n {
            self.free_pages.grow(p, regions, n);
            if self.free_pages.free() < n {
                return Err(NotAsked::Full);
            }
        }
        let place = &mut self.places[at as usize];
        place.pages.clear();
        for _ in 0..n {
            match self.free_pages.take(p) {
                Ok(Some((page, of))) => {
                    place.pages.push(page);
                    self.refs.push(of);
                }
                failed => {
                    place.pages.drain(..).rev().for_each(|page| self.free_pages.give_back(p, page));
                    return Err(failed.map_or_else(NotAsked::Platform, |_| NotAsked::Full));
                }
            }
        }
        Ok(at)
    }

    /// Builds the request of a slot [in use](Place::begin), and writes its segment list.
    #[inline(always)]
    fn request(&self, at: u32, id: u64, extent: &Extent) -> Request {
        let (place, refs) = (&self.places[at as usize], &self.refs[..]);
        let Extent { sector, nr_pages, nr_lists, .. } = *extent;
        let segment = |k: usize| extent.segment(k, refs[k]);
        if nr_lists == 0 {
            let mut seg = [Segment::default(); SEGMENTS_MAX];
            (0..nr_pages).for_each(|k| seg[k] = segment(k));
            let (op, nr_segments) = (place.op, nr_pages as u8);
            return Request::ReadWrite(RwRequest { op, nr_segments, handle: 0, id, sector, seg });
        }
        let lists = &place.pages[place.pages.len() - nr_lists..];
        for (list, first) in lists.iter().zip((0..nr_pages).step_by(SEGMENTS_PER_INDIRECT_PAGE)) {
            let last = nr_pages.min(first + SEGMENTS_PER_INDIRECT_PAGE);
            let mut entries = [0; PAGE_SIZE];
            let (all, _) = entries.as_chunks_mut::<{ Segment::SIZE }>();
            (first..last).zip(&mut *all).for_each(|(k, entry)| *entry = segment(k).to_bytes());
            let copied = self.free_pages.copy_in(*list, &entries[..(last - first) * Segment::SIZE]);
            debug_assert!(copied, "a page of our own");
        }
        let mut grefs = [0; INDIRECT_PAGES_MAX];
        grefs.iter_mut().zip(&refs[nr_pages..]).for_each(|(to, gref)| *to = gref.0);
        let (op, nr_segments) = (place.op, nr_pages as u16);
        Request::Indirect(IndirectRequest { op, nr_segments, handle: 0, id, sector, grefs })
    }

    /// Publishes all submitted requests to the back.
    pub fn publish(&mut self, p: &P) {
        if with_ring!(&mut self.ring, ring => ring.publish()) == Notify::Yes {
            p.events().notify(&self.chan);
        }
    }

    /// Takes the answers and calls `each` for each of them. Returns how many. After a fault the
    /// disk must be closed.
    pub fn take(&mut self, p: &P, mut each: impl FnMut(Answer<'_, P>)) -> Result<usize, PeerFault> {
        let mut answered = if self.waiting.is_empty() { 0 } else { self.take_waiting(p, &mut each) };
        let n = with_ring!(&mut self.ring, ring => ring.available(1))?;
        with_ring!(&self.ring, ring => ring.prefetch(n));
        let mut next = self.next_answer(n);
        for left in (0..n).rev() {
            let Some(rsp) = next else { break };
            // While this one's data is copied, prefetch that of the next one.
            next = self.next_answer(left);
            let Self { places, free_pages, free, .. } = self;
            if let Some(place) = next.and_then(|next| places.get(next.id as u32 as usize))
                && let Some(&page) = place.pages.first().filter(|_| place.len > 0)
            {
                free_pages.prefetch(page);
            }
            let (turn, at) = ((rsp.id >> 32) as u32, rsp.id as u32);
            let place = places.get_mut(at as usize).filter(|place| place.in_flight && place.turn == turn);
            let Some(place) = place else { return Err(PeerFault::UnknownRequest(rsp.id)) };
            // Backends answer an indirect request with either operation.
            if rsp.op != place.op && !(rsp.op == OP_INDIRECT && place.nr_lists > 0) {
                return Err(PeerFault::WrongOperation { asked: place.op, answered: rsp.op });
            }
            let outcome = match rsp.status {
                RSP_OKAY => Ok(()),
                RSP_EOPNOTSUPP => Err(IoError::NotSupported),
                _ => Err(IoError::Failed),
            };
            place.in_flight = false;
            if !place.own.is_empty() {
                end_grants(p, &mut place.own);
                if !place.own.is_empty() {
                    place.outcome = Some(outcome);
                    self.waiting.push(at);
                    continue;
                }
            }
            place.finish(p, free_pages, outcome, &mut each);
            free.push(at);
            answered += 1;
        }
        Ok(answered)
    }

    /// Handles answers that waited for the back, and need not wait any more.
    #[cold]
    fn take_waiting(&mut self, p: &P, each: &mut impl FnMut(Answer<'_, P>)) -> usize {
        let Self { waiting, places, free_pages, free, .. } = self;
        let before = waiting.len();
        waiting.retain(|&at| {
            let place = &mut places[at as usize];
            end_grants(p, &mut place.own);
            if !place.own.is_empty() {
                return true;
            }
            if let Some(outcome) = place.outcome.take() {
                place.finish(p, free_pages, outcome, each);
            }
            free.push(at);
            false
        });
        before - waiting.len()
    }

    /// Copies the next answer from the ring. None: there is none of the `left` remaining ones.
    #[inline(always)]
    fn next_answer(&mut self, left: u32) -> Option<Response> {
        (left > 0).then(|| {
            with_ring!(&mut self.ring, ring => {
                let rsp = ring.read(0);
                ring.consume(1);
                rsp
            })
        })
    }

    /// Call before sleeping: asks for an event for the next answer. True: there is one already.
    pub fn arm(&mut self, p: &P) -> Result<bool, PeerFault> {
        let work = with_ring!(&mut self.ring, ring => ring.final_check(1))?;
        p.events().unmask(&self.chan);
        Ok(work)
    }

    /// Whether there is an answer. It does not ask for an event.
    pub fn is_pending(&mut self) -> bool {
        with_ring!(&mut self.ring, ring => ring.available(1)) != Ok(0)
    }

    /// The queue's event channel.
    pub fn channel(&self) -> &Chan<P> {
        &self.chan
    }

    /// Tags of requests without an answer, by slot.
    pub fn unanswered(&self) -> impl Iterator<Item = u64> {
        self.places.iter().filter(|place| place.in_flight || place.outcome.is_some()).map(|place| place.tag)
    }

    /// Ends the queue and returns its pages to `regions`. Requests in flight get no answer. Returns
    /// the grants of the guest's own pages that the back still uses.
    pub fn end(self, p: &P, regions: &mut Regions<P>) -> Vec<GrantRef> {
        let mut left = self.left;
        left.extend(self.places.iter().flat_map(|place| &place.own));
        end_grants(p, &mut left);
        let region = with_ring!(self.ring, ring => ring.into_mem().into_pages());
        regions.put(p, crate::grants::regions::Granted::from_parts(region, self.ring_grants));
        self.free_pages.end(p, regions);
        left
    }
}
