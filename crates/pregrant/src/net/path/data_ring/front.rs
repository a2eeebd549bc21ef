//! The front's area of one queue: granted once, from set-up to disconnect (docs/protocol 4.5).
//!
//! ```text
//!   SendArea   frame --take--> place in `out` --> bytes      answer of its id --settle--> the oldest places are free
//!   RecvArea   response's place in `in` --copy_out--> private bytes
//! ```
//! The index page stays with the queue, each half with its direction.
//!
//! What a back may do: answer ids in any order (a place is free when those before it are), never
//! answer (the area is full, and frames go by the next path), name any place (an invalid one is a
//! fault).

use super::places::{Places, Used};
use super::{PIECE_MAX, PLACE_BYTES, copy_out_around, index, rounded};
use crate::error::{PeerFault, PlatformError};
use crate::memory;
use crate::net::ahead::{AHEAD, AHEAD_BYTES, SHORT};
use crate::net::front::regions::{Granted, Granting, Region, Regions};
use crate::net::front::rx_answers::{Part, fault, is_plain, offload_of};
use crate::net::front::tx_slots::{TxSlots, flags_of};
use crate::net::path::front::{FrontPath, Sent};
use crate::net::path::named_memory::{Answers, Received};
use crate::net::path::path_name::PathName;
use crate::platform::{Access, Platform};
use crate::port::{BURST_FRAMES, Frames, MAX_FRAME, Offload, Piece, Sink, Source};
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::netif::{Extra, RXF_DATA_RING, RxResponse, TXF_DATA_RING, TXF_EXTRA_INFO, TxRequest};
use alloc::boxed::Box;

/// A new area and the pages that describe it.
pub struct DataArea<P: Platform> {
    /// The page that names the grants of the other pages.
    pub index: Granted<P>,
    /// TX: the half of the data ring from which frames are sent; None: the front does not want it.
    pub out: Option<SendArea<P>>,
    /// RX: the half of the data ring in which frames arrive; None: the front does not want it.
    pub within: Option<RecvArea<P>>,
}

impl<P: Platform> DataArea<P> {
    /// Allocates 2^`order` pages for the wanted directions (TX, RX), and the page that names them;
    /// all or nothing. `ids`: number of TX ids.
    pub fn new(
        p: &P,
        regions: &mut Regions<P>,
        order: u32,
        [tx, rx]: [bool; 2],
        ids: u32,
    ) -> Result<Self, PlatformError> {
        let each = 1usize << (order - 1);
        let tables = match tx {
            true => {
                Some((memory::list(Default::default(), ids as usize)?, memory::list(None, ids as usize)?))
            }
            false => None,
        };
        let index = regions.take(p, Access::ReadOnly, 1, Granting::Standing)?;
        let mut halves = [None, None];
        for (half, (wanted, acc)) in halves.iter_mut().zip([(rx, Access::ReadWrite), (tx, Access::ReadOnly)])
        {
            if !wanted {
                continue;
            }
            match regions.take(p, acc, each, Granting::Standing) {
                Ok(granted) => *half = Some(granted),
                Err(e) => {
                    halves.into_iter().flatten().chain([index]).for_each(|granted| regions.put(p, granted));
                    return Err(e);
                }
            }
        }
        // A region may be larger than what was asked for: half of an area is a power of two.
        let refs = |half: &Option<Granted<P>>| half.as_ref().map_or(&[][..], |g| &g.refs()[..each]).to_vec();
        let [within, out] = [&halves[0], &halves[1]].map(refs);
        let fits = index::write(index.bytes(), order, [&within, &out]);
        debug_assert!(fits, "an index page holds the references of each order");
        let size = (each * crate::PAGE_SIZE) as u32;
        let [within, out] = halves;
        Ok(Self {
            index,
            out: out.zip(tables).map(|(granted, (used, by_id))| {
                let (places, used) = (Places::new(size), Used::over(used));
                SendArea { granted, places, used, by_id }
            }),
            within: within.map(|granted| RecvArea { granted, size }),
        })
    }

    /// The grant of the index page, for its key.
    pub fn index_ref(&self) -> GrantRef {
        self.index.refs().first().copied().unwrap_or(GrantRef::NONE)
    }
}

/// The front's side of a data ring's half for TX.
pub struct SendArea<P: Platform> {
    granted: Granted<P>,
    places: Places,
    /// Places in the order in which they were handed out, and whether their requests were answered.
    used: Used<Answered>,
    /// For each id the number of its place in `used`, while its frame is in the area and not
    /// answered.
    by_id: Box<[Option<u32>]>,
}

/// Whether a place's request is answered.
#[derive(Clone, Copy, Default, Debug)]
struct Answered(bool);

impl<P: Platform> SendArea<P> {
    /// True if a frame of `bytes` bytes fits now.
    #[inline(always)]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.places.has_room(bytes) && self.used.has_room(1)
    }

    /// Copies the frame of `id` to the next place, and returns the place for the request. None:
    /// there is no room.
    #[inline(always)]
    pub fn put(&mut self, id: u16, frame: &impl Source) -> Option<u32> {
        if !self.used.has_room(1) {
            return None;
        }
        let len = frame.len();
        let place = self.places.take(len)?;
        let to_end = len.min(self.places.size() as usize - place as usize);
        let there = self.granted.bytes().piece_mut(place as usize, to_end);
        debug_assert!(there.is_some(), "a place is in its half");
        if let Some(to) = there {
            frame.copy_to(0, to);
        }
        if to_end < len
            && let Some(to) = self.granted.bytes().piece_mut(0, len - to_end)
        {
            frame.copy_to(to_end, to);
        }
        let number = self.used.note(Answered(false), self.places.head());
        if let Some(of_id) = self.by_id.get_mut(usize::from(id)) {
            *of_id = Some(number);
        }
        Some(place)
    }

    /// Prefetches the first cache lines of a frame that will start `ahead` bytes after the next
    /// place.
    #[inline(always)]
    pub fn prefetch(&self, ahead: usize, bytes: usize) {
        let place = (self.places.next() as usize + ahead) & (self.places.size() as usize - 1);
        self.granted.bytes().prefetch_write(place, bytes);
    }

    /// Notes that the request of `id` was answered: frees the id's place and the places before it,
    /// if all of their requests were answered.
    pub fn free(&mut self, id: u16) {
        self.note_answer(id);
        self.free_places();
    }

    /// Notes that the request of `id` was answered, if its frame is in this half.
    #[inline(always)]
    pub fn note_answer(&mut self, id: u16) {
        if let Some(number) = self.by_id.get_mut(usize::from(id)).and_then(Option::take) {
            self.used.set(number, Answered(true));
        }
    }

    /// Frees the oldest places whose requests were answered.
    #[inline(always)]
    pub fn free_places(&mut self) {
        if let Some(head) = self.used.forget(|answered| answered.0) {
            self.places.free_to(head);
        }
    }

    /// The shared memory of this half.
    pub fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }

    /// Takes this apart and returns the memory, for [`Regions::put`].
    pub fn into_granted(self) -> Granted<P> {
        self.granted
    }
}

/// Sends frames by a data ring, whose bytes are not bound to ids: a frame of any length goes to the
/// next place, while the half has room.
impl<P: Platform> SendArea<P> {
    /// Number of ids that have memory: all of them.
    pub fn ids(&self) -> u32 {
        self.by_id.len() as u32
    }

    /// Writes requests for frames, from the first on, until one finds no room; large segments too.
    /// Stops at a frame of at most `shorter` bytes, which an earlier path of the chain carries.
    #[inline(never)]
    pub(crate) fn send_run(&mut self, slots: &mut TxSlots<P>, frames: &impl Frames, shorter: usize) -> Sent {
        let (mut sent, mut used, mut bytes) = (0, 0, 0);
        let mut ended = Sent::Frames(0);
        let (room, ids, limits) = (slots.ring.free(), slots.free.len(), slots.limits);
        // Prefetches all bytes of short frames, and the next two long frames, as for frames in
        // pages.
        let (mut ahead, mut all_asked) = (0, true);
        for (k, frame) in frames.first(BURST_FRAMES).enumerate() {
            let len = frame.len();
            if k >= AHEAD && len > SHORT {
                all_asked = false;
                break;
            }
            self.prefetch(ahead, len.min(AHEAD_BYTES));
            ahead += rounded(len);
        }
        for (k, frame) in frames.first(BURST_FRAMES).enumerate() {
            let (len, offload) = (frame.len(), frame.offload());
            let gso = offload.gso_type != 0;
            let long = gso || len > PAGE_SIZE;
            if len == 0
                || len <= shorter && !gso
                || len > MAX_FRAME
                || long && !limits.allow(len, offload.gso_type)
            {
                break;
            }
            if room < used + 1 + u32::from(gso) || ids == sent {
                break;
            }
            let id = slots.free.peek(0);
            let Some(place) = self.put(id, &frame) else {
                ended = Sent::Full;
                break;
            };
            if !all_asked
                && let Some(later) = frames.get(k + 2)
                && later.len() > SHORT
                && let Some(next) = frames.get(k + 1)
            {
                self.prefetch(rounded(next.len()), later.len().min(AHEAD_BYTES));
            }
            slots.free.take();
            slots.note_sent(id);
            let flags = TXF_DATA_RING | flags_of(offload) | if gso { TXF_EXTRA_INFO } else { 0 };
            slots.ring.write(used, &TxRequest { gref: place, offset: 0, flags, id, size: len as u16 });
            used += 1;
            if gso {
                let Offload { gso_size: size, gso_type, .. } = *offload;
                let extra = Extra::Gso { size, gso_type };
                slots.ring.write(used, &TxRequest::from_words(extra.to_tx_words(false)));
                used += 1;
                slots.extras_in_flight += 1;
            }
            bytes += len as u64;
            sent += 1;
        }
        if sent == 0 {
            return ended;
        }
        slots.ring.advance(used);
        slots.stats.bytes += bytes;
        slots.stats.handed_on_by(PathName::DataRing, sent.into());
        Sent::Frames(sent as usize)
    }

    /// The largest number of bytes that were in use at the same time.
    pub fn most(&self) -> u64 {
        self.places.most().into()
    }
}

impl<P: Platform> FrontPath<P> for SendArea<P> {
    const NAME: PathName = PathName::DataRing;
    const TX_FLAGS: u16 = TXF_DATA_RING;

    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        0
    }
    #[inline(always)]
    fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }
    #[inline(always)]
    fn start(&self, _id: u16) -> usize {
        0
    }
    #[inline(always)]
    fn place(&mut self, _p: &P, _id: u16) -> Result<u32, PlatformError> {
        Ok(0)
    }
    #[inline(always)]
    fn holds(&self, _total: usize, _nr_slots: usize) -> bool {
        false
    }
}

/// The front's side of a data ring's half for RX.
pub struct RecvArea<P: Platform> {
    granted: Granted<P>,
    size: u32,
}

impl<P: Platform> RecvArea<P> {
    /// Place and length of the bytes that a response names. None: the back named bytes outside of
    /// the half.
    #[inline(always)]
    pub fn piece(&self, offset: u16, status: i16) -> Option<(usize, usize)> {
        let (place, len) = (usize::from(offset) * PLACE_BYTES, usize::try_from(status).ok()?);
        let size = self.size as usize;
        (place < size && len <= size.min(PIECE_MAX)).then_some((place, len))
    }

    /// The shared memory of this half.
    pub fn bytes(&self) -> &Region<P> {
        self.granted.bytes()
    }

    /// Copies bytes out from `place`, across the end of the half, until `dst` is full. Returns
    /// false if `place` is outside of the half.
    #[inline(always)]
    #[must_use]
    pub fn copy_out(&self, place: usize, dst: &mut [u8]) -> bool {
        copy_out_around(self.granted.bytes(), self.size as usize, place & (self.size as usize - 1), dst)
    }

    /// The bytes at a place: one range, or two if they wrap around the end. None: the place is
    /// outside of the half.
    #[inline(always)]
    fn around(&self, place: usize, len: usize) -> Option<(Piece<'_>, Option<Piece<'_>>)> {
        let (bytes, size) = (self.granted.bytes(), self.size as usize);
        let to_end = len.min(size.checked_sub(place)?);
        let first = bytes.piece(place, to_end)?;
        if to_end == len { Some((first, None)) } else { Some((first, Some(bytes.piece(0, len - to_end)?))) }
    }

    /// Prefetches the first cache lines that a response names. Safe for any value, since nothing is
    /// read.
    #[inline(always)]
    pub fn prefetch(&self, rsp: RxResponse) {
        let len = usize::try_from(rsp.status).unwrap_or(0).min(AHEAD_BYTES);
        self.granted.bytes().prefetch_read(usize::from(rsp.offset) * PLACE_BYTES, len);
    }

    /// Takes this apart and returns the memory, for [`Regions::put`].
    pub fn into_granted(self) -> Granted<P> {
        self.granted
    }
}

impl<P: Platform> RecvArea<P> {
    /// Flag by which a response says that its bytes are in this half.
    pub const FLAGS: u16 = RXF_DATA_RING;
    /// The flag is checked even on queues without a data ring.
    pub const ALWAYS: u16 = RXF_DATA_RING;

    /// Implements [`AnyFlaggedPath::recv_run`](crate::net::path::AnyFlaggedPath::recv_run).
    #[inline(never)]
    pub fn recv_run(
        &mut self,
        answers: Answers<'_, P>,
        mut rsp: RxResponse,
        to: &mut impl Sink,
    ) -> Result<u32, PeerFault> {
        let (mut used, mut bytes) = (0, 0);
        let most = u32::try_from(to.takes()).unwrap_or(u32::MAX);
        loop {
            // The next one's lines come while this one is copied.
            let next = answers.read(used + 1);
            if let Some(next) = next {
                self.prefetch(next);
            }
            let there = self.piece(rsp.offset, rsp.status);
            let there = there.and_then(|(place, len)| Some((len, self.around(place, len)?)));
            let (len, (piece, rest)) = there.ok_or(fault(rsp.offset, rsp.status))?;
            let offload = offload_of(rsp.flags);
            let taken = match rest {
                None => to.take(len, offload, core::iter::once(piece)),
                Some(rest) => to.take(len, offload, [piece, rest].into_iter()),
            };
            if !taken {
                break;
            }
            (used, bytes) = (used + 1, bytes + len as u64);
            match next {
                Some(next) if used < most && is_plain(next) && next.flags & RXF_DATA_RING != 0 => rsp = next,
                _ => break, // any other frame is read again, nothing of it is kept
            }
        }
        answers.stats.bytes += bytes;
        answers.stats.handed_on_by(PathName::DataRing, used.into());
        Ok(used)
    }

    /// Receives one frame that is made of these parts.
    pub fn recv_long(
        &mut self,
        (parts, offload): (&[Part], Offload),
        to: &mut impl Sink,
    ) -> Result<Received, PeerFault> {
        let around = |part: &Part| {
            let (place, len) = self.piece(part.offset, part.len as i16)?;
            self.around(place, len)
        };
        let mut total = 0;
        for part in parts {
            around(part).ok_or(fault(part.offset, part.len as i16))?;
            total += usize::from(part.len);
        }
        let pieces = parts.iter().filter_map(around);
        let pieces = pieces.flat_map(|(piece, rest)| core::iter::once(piece).chain(rest));
        Ok(if to.take(total, offload, pieces) { Received::Whole } else { Received::NoRoom })
    }

    /// Copies a part from byte `skip` on, as much as `dst` has room for; checks that all of the
    /// part is in the ring.
    pub fn copy_piece(&self, part: &Part, skip: usize, dst: &mut [u8]) -> Result<(), PeerFault> {
        match self.piece(part.offset, part.len as i16) {
            Some((place, _)) if self.copy_out(place + skip, dst) => Ok(()),
            _ => Err(fault(part.offset, part.len as i16)),
        }
    }
}
