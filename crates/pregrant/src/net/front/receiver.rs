//! How a received frame leaves its slots' memory: all of it is copied, or its head is.
//!
//! ```text
//!   parts of a frame --Copying--> a sink, whole
//!                    --Lending--> an arena: the first bytes; the pages of the rest are lent
//!                    --Handing--> a sink: the first bytes, and references to these pages, of frames that
//!                                 may stay there; others are copied
//! ```
//! Invariant: all parts of a frame are checked before any goes to a sink, so a sink never has half
//! a frame. An arena is read only after the call has returned without a fault; there, each part is
//! checked as it is copied.
//!
//! What the back may do: name offsets and lengths beyond a slot's memory. Each is a fault.

use super::rx_answers::{LongFrame, Part, fault};
use super::rx_pages::lent::{Lent, LentPages, RX_HEAD_BYTES};
use super::slot_memory::SlotMemory;
use super::staying::may_stay;
use crate::error::PeerFault;
use crate::net::path::{AnyFrontPath, FrontPath};
use crate::platform::Platform;
use crate::port::{Arena, LentSink, Offload, Piece, Sink, Token};
use crate::wire::netif::NR_SLOTS_MIN;

/// The tables of which page and which staging buffer each slot has.
pub type Places<'a> = (&'a LentPages, &'a SlotMemory);

/// Offset at which the memory of `slot` starts.
#[inline(always)]
pub fn memory<P: Platform, F: FrontPath<P>>((pages, buffers): Places<'_>, path: &F, slot: u16) -> usize {
    path.start(if F::IN_PAGES { pages.page(slot) } else { buffers.of(slot) })
}

/// The bytes of a part that was [checked](check) to be in its slot's memory. None: they are not in
/// the region, which happens only if a queue is used after a fault.
#[inline(always)]
pub fn piece_in<'a, P: Platform, F: FrontPath<P>>(
    path: &'a F,
    places: Places<'_>,
    Part { slot, offset, len, .. }: Part,
) -> Option<Piece<'a>> {
    path.receive(memory(places, path, slot) + usize::from(offset), len.into())
}

/// Like [`piece_in`], for any path.
fn piece_in_any<'a, P: Platform>(
    path: &'a AnyFrontPath<P>,
    places: Places<'_>,
    part: Part,
) -> Option<Piece<'a>> {
    match path {
        AnyFrontPath::Staging(path) => piece_in(path, places, part),
        AnyFrontPath::DataRing(path) => piece_in(path, places, part),
        #[cfg(feature = "research")]
        AnyFrontPath::Foreign(path) => piece_in(path, places, part),
        AnyFrontPath::Copy(path) => piece_in(path, places, part),
    }
}

/// Copies a part from byte `skip` on, as much as `dst` has room for; checks that all of the part is
/// in its slot's memory.
#[inline(always)]
pub fn copy_part<P: Platform, F: FrontPath<P>>(
    path: &F,
    places: Places<'_>,
    part: Part,
    skip: usize,
    dst: &mut [u8],
) -> Result<(), PeerFault> {
    let start = memory(places, path, part.slot) + usize::from(part.offset) + skip;
    check(path.slot_bytes(), part)?;
    if copy_out(path, start, dst) { Ok(()) } else { Err(bad_part(part)) }
}

/// Copies bytes of a path's memory, from byte `at` on. Returns false if not all of them exist.
#[inline(always)]
fn copy_out<P: Platform, F: FrontPath<P>>(path: &F, at: usize, to: &mut [u8]) -> bool {
    path.receive(at, to.len()).is_some_and(|piece| piece.copy_out(to) == to.len())
}

/// Checks that a part is within its slot's memory of `slot_bytes` bytes.
#[inline(always)]
pub fn check(slot_bytes: usize, part: Part) -> Result<(), PeerFault> {
    let is_inside = usize::from(part.offset) + usize::from(part.len) <= slot_bytes;
    if is_inside { Ok(()) } else { Err(bad_part(part)) }
}

/// The fault of a back that names memory which a slot does not have.
#[cold]
pub fn bad_part(part: Part) -> PeerFault {
    fault(part.offset, part.len as i16)
}

/// Where one call puts the frames that it receives, and how.
pub trait Receiver<P: Platform> {
    /// Type of the sink that gets the frames.
    type To: Sink;
    /// The sink that gets the frames.
    fn to(&mut self) -> &mut Self::To;
    /// Receives a frame of one part. Returns false if there is no room for it.
    fn take_one<F: FrontPath<P>>(
        &mut self,
        path: &F,
        places: (&mut LentPages, &SlotMemory),
        part: Part,
        offload: Offload,
    ) -> Result<bool, PeerFault>;
    /// Receives a frame of several parts that are all in one path's memory.
    fn take<F: FrontPath<P>>(
        &mut self,
        path: &F,
        places: (&mut LentPages, &SlotMemory),
        frame: &LongFrame,
    ) -> Result<bool, PeerFault>;
    /// Receives a frame whose first part is in the memory of the first path and whose other parts
    /// are in that of the second.
    fn take_split(
        &mut self,
        memories: (&AnyFrontPath<P>, &AnyFrontPath<P>),
        (pages, buffers): (&mut LentPages, &SlotMemory),
        parts: &[Part],
        offload: Offload,
    ) -> Result<bool, PeerFault> {
        take_split(memories, (pages, buffers), self.to(), parts, offload)
    }
}

/// Receives a frame whose first part is in the memory of `first` and whose other parts are in that
/// of `rest`.
pub fn take_split<P: Platform>(
    (first, rest): (&AnyFrontPath<P>, &AnyFrontPath<P>),
    places: Places<'_>,
    to: &mut impl Sink,
    parts: &[Part],
    offload: Offload,
) -> Result<bool, PeerFault> {
    let total = parts.iter().map(|part| usize::from(part.len)).sum();
    let parts = || parts.iter().enumerate().map(|(k, part)| (if k == 0 { first } else { rest }, *part));
    parts().try_for_each(|(path, part)| check(path.slot_bytes(), part))?;
    let mut missing = None;
    let taken = to.take(
        total,
        offload,
        there(parts(), |(path, part)| piece_in_any(path, places, part), &mut missing),
    );
    missing.map_or(Ok(taken), |(_, part)| Err(bad_part(part)))
}

/// Maps parts to the bytes that they name; `missing` is set if a part's bytes do not exist.
#[inline(always)]
fn there<'a, T: Copy>(
    parts: impl Iterator<Item = T>,
    piece: impl Fn(T) -> Option<Piece<'a>>,
    missing: &mut Option<T>,
) -> impl Iterator<Item = Piece<'a>> {
    parts.filter_map(move |part| {
        let piece = piece(part);
        if piece.is_none() {
            *missing = Some(part);
        }
        piece
    })
}

/// A receiver that copies frames.
pub struct Copying<'a, S>(pub &'a mut S);

impl<P: Platform, S: Sink> Receiver<P> for Copying<'_, S> {
    type To = S;

    #[inline(always)]
    fn to(&mut self) -> &mut S {
        self.0
    }

    #[inline(always)]
    fn take_one<F: FrontPath<P>>(
        &mut self,
        path: &F,
        (pages, buffers): (&mut LentPages, &SlotMemory),
        part: Part,
        offload: Offload,
    ) -> Result<bool, PeerFault> {
        check(path.slot_bytes(), part)?;
        let Some(piece) = piece_in(path, (pages, buffers), part) else { return Err(bad_part(part)) };
        let taken = self.0.take(usize::from(part.len), offload, core::iter::once(piece));
        if taken && F::IN_BUFFERS {
            self.0.in_buffer(part.slot, part.offset, path.slot_bytes());
        }
        Ok(taken)
    }

    #[inline(always)]
    fn take<F: FrontPath<P>>(
        &mut self,
        path: &F,
        (pages, buffers): (&mut LentPages, &SlotMemory),
        frame: &LongFrame,
    ) -> Result<bool, PeerFault> {
        let places = (&*pages, buffers);
        if let Some(out) = self.0.arena() {
            return copy_parts(path, places, frame, out);
        }
        let slot_bytes = path.slot_bytes();
        frame.parts().iter().try_for_each(|part| check(slot_bytes, *part))?;
        let mut missing = None;
        let pieces = there(frame.parts().iter(), |part| piece_in(path, places, *part), &mut missing);
        let taken = self.0.take(frame.total, frame.offload, pieces);
        missing.map_or(Ok(taken), |_| Err(frame.fault))
    }
}

/// Copies a frame's parts into an arena. False: there is no room for it.
#[inline(always)]
fn copy_parts<P: Platform, F: FrontPath<P>>(
    path: &F,
    places: Places<'_>,
    frame: &LongFrame,
    out: &mut Arena,
) -> Result<bool, PeerFault> {
    let Some(mut to) = out.room(frame.total, frame.offload) else { return Ok(false) };
    for part in frame.parts() {
        // Together they are as long as the frame.
        let Some((now, later)) = to.split_at_mut_checked(part.len.into()) else { return Err(frame.fault) };
        copy_part(path, places, *part, 0, now)?;
        to = later;
    }
    Ok(true)
}

/// A receiver that copies the head of a frame and passes the rest by reference.
pub struct Lending<'a> {
    /// The arena that gets whole frames, or their heads.
    pub out: &'a mut Arena,
    /// Notes which frames the caller gets by reference.
    pub lent: &'a mut Lent,
}

impl<P: Platform> Receiver<P> for Lending<'_> {
    type To = Arena;

    #[inline(always)]
    fn to(&mut self) -> &mut Arena {
        self.out
    }

    #[inline(always)]
    fn take_one<F: FrontPath<P>>(
        &mut self,
        path: &F,
        (pages, buffers): (&mut LentPages, &SlotMemory),
        part: Part,
        offload: Offload,
    ) -> Result<bool, PeerFault> {
        let Part { slot, offset, len, .. } = part;
        let head = self.lent.head_of(offload);
        if !F::IN_PAGES || usize::from(len) <= head {
            return Copying(&mut *self.out).take_one(path, (pages, buffers), part, offload);
        }
        // The frame has one slot, so it is no large segment, whose checksum would have to be made
        // blank.
        let from = usize::from(offset);
        if from + usize::from(len) > path.slot_bytes() {
            return Err(bad_part(part));
        }
        let i = self.out.len();
        let start = memory((pages, buffers), path, slot) + from;
        let Some(to) = self.out.room(len.into(), offload) else { return Ok(false) };
        // A length that is known is copied in fewer steps.
        let copied = match head {
            RX_HEAD_BYTES => {
                to.first_chunk_mut::<RX_HEAD_BYTES>().is_some_and(|to| copy_out(path, start, to))
            }
            _ => to.get_mut(..head).is_some_and(|to| copy_out(path, start, to)),
        };
        if !copied {
            return Err(bad_part(part));
        }
        let copied = head as u16;
        self.lent.note(i, pages.lend(slot, offset + copied, len - copied), head);
        Ok(true)
    }

    #[inline(always)]
    fn take<F: FrontPath<P>>(
        &mut self,
        path: &F,
        (pages, buffers): (&mut LentPages, &SlotMemory),
        frame: &LongFrame,
    ) -> Result<bool, PeerFault> {
        let (parts, total, offload) = (frame.parts(), frame.total, frame.offload);
        // A checksum that must be made blank covers the whole frame.
        let is_blank = offload.gso_type == 0 || offload.csum_blank;
        let head_bytes = self.lent.head_of(offload);
        if !F::IN_PAGES || total <= head_bytes || !is_blank {
            return Copying(&mut *self.out).take(path, (pages, buffers), frame);
        }
        let slot_bytes = path.slot_bytes();
        parts.iter().try_for_each(|part| check(slot_bytes, *part))?;
        let i = self.out.len();
        let Some(to) = self.out.room(total, offload) else { return Ok(false) };
        let mut head = &mut to[..head_bytes];
        for part in parts {
            let Some(piece) = piece_in(path, (pages, buffers), *part).filter(|_| !head.is_empty()) else {
                break;
            };
            let copied = piece.copy_out(head);
            head = &mut head[copied..];
        }
        if let Some(token) = lend(pages, parts, head_bytes) {
            self.lent.note(i, token, head_bytes);
        }
        Ok(true)
    }
}

/// Passes the payload after the first `head_bytes` bytes by reference. All parts were checked
/// before, so a frame is passed as a whole or not at all.
#[inline(always)]
fn lend(pages: &mut LentPages, parts: &[Part], head_bytes: usize) -> Option<Token> {
    let mut head = head_bytes as u16;
    let mut last = None;
    let mut token = None;
    for &Part { slot, offset, len, .. } in parts {
        let copied = head.min(len);
        head -= copied;
        if copied == len {
            continue; // all of it was copied: the page stays with its slot
        }
        let (offset, len) = (offset + copied, len - copied);
        last = Some(match last {
            Some(page) => pages.lend_more(page, slot, offset, len),
            None => {
                let page = pages.page(slot);
                token = Some(pages.lend(slot, offset, len));
                page
            }
        });
    }
    token
}

/// A receiver that copies heads, and hands the rest to a sink that has references to pages.
pub struct Handing<'a, S> {
    /// The sink that gets the frames.
    pub to: &'a mut S,
    /// The back is trusted; otherwise all frames are copied.
    pub lends: bool,
}

impl<S: LentSink> Handing<'_, S> {
    /// True if a frame of `len` bytes that starts with `head` may stay in its pages. The head is
    /// copied to `copy`, from which the sink reads it.
    #[inline(always)]
    fn may_stay(head: Piece<'_>, copy: &mut [u8; RX_HEAD_BYTES], len: usize) -> bool {
        head.copy_out(copy) == copy.len() && may_stay(copy, len)
    }

    /// Passes on a frame that consists of `head`, a private copy of a head that [may
    /// stay](Self::may_stay), and `rest`, checked parts in the memory of `path`.
    fn hand<P: Platform, F: FrontPath<P>>(
        &mut self,
        path: &F,
        (pages, buffers): (&mut LentPages, &SlotMemory),
        (head, rest): ([Piece<'_>; 2], &[Part]),
        offload: Offload,
    ) -> Result<(), PeerFault> {
        let mut missing = None;
        let places = (&*pages, buffers);
        let parts = rest.iter().filter(|part| part.len > 0);
        let pieces = there(parts, |part| piece_in(path, places, *part), &mut missing);
        let head_bytes: usize = head.iter().map(Piece::len).sum();
        let len = head_bytes + rest.iter().map(|part| usize::from(part.len)).sum::<usize>();
        let has_references = self.to.take_lent(len, offload, head, pieces);
        if has_references && let Some(token) = lend(pages, rest, 0) {
            self.to.lent(token);
        }
        missing.map_or(Ok(()), |part| Err(bad_part(*part)))
    }

    /// Passes on a frame whose head is in the first of its parts. Returns false if the frame cannot
    /// be passed on by reference.
    #[inline(always)]
    fn hand_parts<P: Platform, F: FrontPath<P>>(
        &mut self,
        path: &F,
        (pages, buffers): (&mut LentPages, &SlotMemory),
        (parts, total): (&[Part], usize),
        offload: Offload,
    ) -> Result<bool, PeerFault> {
        let [first, ..] = parts else { return Ok(false) };
        let has_head = usize::from(first.len) >= RX_HEAD_BYTES;
        if !F::IN_PAGES || !self.lends || !has_head || !self.to.wants(total, parts.len()) {
            return Ok(false);
        }
        parts.iter().try_for_each(|part| check(path.slot_bytes(), *part))?;
        let head = Part { len: RX_HEAD_BYTES as u16, ..*first };
        let piece = piece_in(path, (&*pages, buffers), head).ok_or(bad_part(head))?;
        let mut copy = [0; RX_HEAD_BYTES];
        if !Self::may_stay(piece, &mut copy, total) || !pages.can_lend(parts.len()) {
            return Ok(false);
        }
        let mut room = [Part::default(); PARTS_MAX];
        let Some(rest) = room.get_mut(..parts.len()) else { return Ok(false) };
        rest.copy_from_slice(parts);
        if let Some(first) = rest.first_mut() {
            first.offset += head.len;
            first.len -= head.len;
        }
        let head = [Piece::from(&mut copy[..]), Piece::from(&mut [][..])];
        self.hand(path, (pages, buffers), (head, rest), offload)?;
        Ok(true)
    }
}

/// Largest number of parts of a frame that is passed on by reference.
const PARTS_MAX: usize = NR_SLOTS_MIN;

impl<P: Platform, S: LentSink> Receiver<P> for Handing<'_, S> {
    type To = S;

    #[inline(always)]
    fn to(&mut self) -> &mut S {
        self.to
    }

    #[inline(always)]
    fn take_one<F: FrontPath<P>>(
        &mut self,
        path: &F,
        places: (&mut LentPages, &SlotMemory),
        part: Part,
        offload: Offload,
    ) -> Result<bool, PeerFault> {
        let (pages, buffers) = places;
        if self.hand_parts(path, (&mut *pages, buffers), (&[part], part.len.into()), offload)? {
            return Ok(true);
        }
        Copying(&mut *self.to).take_one(path, (pages, buffers), part, offload)
    }

    #[inline(always)]
    fn take<F: FrontPath<P>>(
        &mut self,
        path: &F,
        (pages, buffers): (&mut LentPages, &SlotMemory),
        frame: &LongFrame,
    ) -> Result<bool, PeerFault> {
        let parts = (frame.parts(), frame.total);
        if self.hand_parts(path, (&mut *pages, buffers), parts, frame.offload)? {
            return Ok(true);
        }
        Copying(&mut *self.to).take(path, (pages, buffers), frame)
    }

    fn take_split(
        &mut self,
        (first, rest): (&AnyFrontPath<P>, &AnyFrontPath<P>),
        (pages, buffers): (&mut LentPages, &SlotMemory),
        parts: &[Part],
        offload: Offload,
    ) -> Result<bool, PeerFault> {
        let total = parts.iter().map(|part| usize::from(part.len)).sum();
        // Headers are parsed in the copy, and in no page.
        if let [head, behind @ ..] = parts
            && usize::from(head.len) >= RX_HEAD_BYTES
            && self.lends
            && rest.pages().is_some()
            && !behind.is_empty()
            && self.to.wants(total, behind.len() + 1)
        {
            let bad = bad_part(*head);
            check(first.slot_bytes(), *head)?;
            behind.iter().try_for_each(|part| check(rest.slot_bytes(), *part))?;
            let piece = || piece_in_any(first, (&*pages, buffers), *head).ok_or(bad);
            let mut copy = [0; RX_HEAD_BYTES];
            let may_stay = Self::may_stay(piece()?, &mut copy, total);
            let behind_it = piece()?.part(RX_HEAD_BYTES, usize::MAX);
            if may_stay && pages.can_lend(behind.len()) {
                let head = [Piece::from(&mut copy[..]), behind_it];
                match rest {
                    #[cfg(feature = "research")]
                    AnyFrontPath::Foreign(path) => {
                        self.hand(path, (pages, buffers), (head, behind), offload)?
                    }
                    AnyFrontPath::Copy(path) => self.hand(path, (pages, buffers), (head, behind), offload)?,
                    // These paths have no pages that can be passed by reference; that was checked
                    // above.
                    AnyFrontPath::Staging(_) | AnyFrontPath::DataRing(_) => return Err(bad),
                }
                return Ok(true);
            }
        }
        take_split((first, rest), (pages, buffers), &mut *self.to, parts, offload)
    }
}
