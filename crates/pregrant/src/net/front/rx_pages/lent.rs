//! The pages of RX slots, and which of them a consumer reads in place.
//!
//! ```text
//!   spare --post--> slot --answer--> lent, with a token --release--> spare        slot --answer, copied--> the same slot
//! ```
//! A frame that is [received by reference](crate::net::front::RxFront::recv_by_reference) has its
//! first [`RX_HEAD_BYTES`], or as many as the caller [says](Lent::with_head), in private memory,
//! and the rest in the pages that the back wrote to. Spare pages replace these in their slots.
//!
//! Invariants: a lent page is not posted, and its grant does not end, before its token comes back.
//! A token is good once: its number is used once in the life of a vif.
//!
//! What the back may do: write to a lent page, which it may have kept mapped. So lent bytes are
//! payload, and nothing here parses them: a second read may give other bytes. It cannot have a page
//! posted, released or lent twice.

use crate::error::PlatformError;
use crate::memory;
use crate::net::front::slot_memory::SlotMemory;
use crate::net::path::FrontPath;
use crate::net::path::copy::front::OrdinaryPages;
use crate::platform::Platform;
use crate::port::{Arena, BURST_FRAMES, Offload, Piece, Token};
use alloc::boxed::Box;
use core::fmt;

/// Number of bytes of a frame that are copied although it is passed by reference: all headers.
/// Frames that are no longer are copied whole.
pub const RX_HEAD_BYTES: usize = 256;

/// Smallest number of bytes that are copied: the Ethernet header.
pub const RX_HEAD_LEAST: usize = 14;

/// The slot has no page.
const NONE: u16 = u16::MAX;

/// A token that was given back before, or never given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownToken(pub Token);

impl fmt::Display for UnknownToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {:#x} names no frame that is lent", self.0.0)
    }
}

impl core::error::Error for UnknownToken {}

/// Says which frames of an arena are passed by reference.
#[derive(Clone, Debug)]
pub struct Lent {
    frames: u64,
    heads: [u16; BURST_FRAMES],
    tokens: [Token; BURST_FRAMES],
    /// Number of bytes to copy of the next frames.
    head: u16,
}

impl Default for Lent {
    fn default() -> Self {
        let head = RX_HEAD_BYTES as u16;
        Self { frames: 0, heads: [0; BURST_FRAMES], tokens: [Token(0); BURST_FRAMES], head }
    }
}

impl Lent {
    /// Copies only `bytes` bytes of each frame, [`RX_HEAD_LEAST`] to [`RX_HEAD_BYTES`]: for
    /// consumers that read more of a few frames only ([`read_more`](Self::read_more)). Of a frame
    /// with a blank checksum, or a large segment, all headers are copied.
    pub fn with_head(bytes: usize) -> Self {
        Self { head: bytes.clamp(RX_HEAD_LEAST, RX_HEAD_BYTES) as u16, ..Self::default() }
    }

    /// Number of bytes that are copied of a frame with this `offload`, if it is longer.
    #[inline(always)]
    pub(in crate::net::front) fn head_of(&self, offload: Offload) -> usize {
        let has_work = offload.csum_blank || offload.gso_type != 0;
        if has_work { RX_HEAD_BYTES } else { self.head.into() }
    }

    /// Copies the bytes after the head of frame `i`, up to its byte `upto`, to the frame of `out`,
    /// which has room for them. [`piece`](crate::net::front::RxFront::piece) still returns them,
    /// too.
    pub fn read_more<'a>(
        &self,
        out: &mut Arena,
        i: usize,
        upto: usize,
        piece: impl Fn(Token, usize) -> Option<Piece<'a>>,
    ) {
        let Some(token) = self.token(i) else { return };
        let desc = out.desc(i);
        let mut at = desc.at as usize + usize::from(self.heads[i]);
        let end = desc.at as usize + upto.min(desc.len as usize);
        let mut k = 0;
        while at < end
            && let Some(piece) = piece(token, k)
        {
            at += piece.copy_out(&mut out.bytes_mut()[at..end]);
            k += 1;
        }
    }

    /// Forgets all frames, for an arena that was cleared.
    pub fn clear(&mut self) {
        self.frames = 0;
    }

    /// Forgets the frames from the `from`-th on; returns their tokens.
    pub(in crate::net::front) fn forget_from(&mut self, from: usize) -> impl Iterator<Item = Token> + use<> {
        let gone = if from < BURST_FRAMES { self.frames & u64::MAX << from } else { 0 };
        self.frames &= !gone;
        let tokens = self.tokens;
        (0..BURST_FRAMES).filter(move |i| gone >> i & 1 == 1).map(move |i| tokens[i])
    }

    /// A bit for each frame that is passed by reference.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// For each frame the number of its bytes in the arena, if it is passed by reference.
    pub fn heads(&self) -> &[u16; BURST_FRAMES] {
        &self.heads
    }

    /// The token that releases frame `i`; None: the frame is whole in the arena.
    #[inline(always)]
    pub fn token(&self, i: usize) -> Option<Token> {
        (self.frames >> i & 1 == 1).then(|| self.tokens[i])
    }

    /// The tokens of all frames that are passed by reference.
    pub fn tokens(&self) -> impl Iterator<Item = Token> {
        (0..BURST_FRAMES).filter_map(|i| self.token(i))
    }

    /// Copies the payload, as [`piece`](crate::net::front::RxFront::piece) returns it, to the
    /// frames of `out`, which have room for it. The frames are then whole, with the bytes that the
    /// back had there at this moment. Their tokens must still be released.
    pub fn copy<'a>(&self, out: &mut Arena, piece: impl Fn(Token, usize) -> Option<Piece<'a>>) {
        for i in 0..out.len() {
            let Some(token) = self.token(i) else { continue };
            let desc = out.desc(i);
            let mut at = desc.at as usize + usize::from(self.heads[i]);
            let end = (desc.at + desc.len) as usize;
            let mut k = 0;
            while let Some(piece) = piece(token, k) {
                at += piece.copy_out(&mut out.bytes_mut()[at..end]);
                k += 1;
            }
            if at != end {
                out.drop_frame(i);
            }
        }
    }

    #[inline(always)]
    pub(in crate::net::front) fn note(&mut self, i: usize, token: Token, head: usize) {
        self.frames |= 1 << i;
        self.heads[i] = head as u16;
        self.tokens[i] = token;
    }
}

/// The bytes of one page that the caller has by reference.
#[derive(Clone, Copy)]
struct LentPart {
    /// The frame's token in the page where it begins; [`REST`] in its other pages; 0 in unused
    /// pages.
    token: u64,
    /// The next page of the same frame.
    next: u16,
    offset: u16,
    len: u16,
}

/// Value for pages of a frame other than its first. No token has it, since the bit [`FRAME`] is not
/// set.
const REST: u64 = 1;
/// A bit that is set in each token.
const FRAME: u64 = 1 << 63;

const UNLENT: LentPart = LentPart { token: 0, next: NONE, offset: 0, len: 0 };

/// The table of which RX page each slot has, and which pages are passed to a consumer by reference.
pub struct LentPages {
    slots: SlotMemory,
    /// For each page what a consumer may read in it.
    parts: Box<[LentPart]>,
    /// Number of frames that the caller has by reference.
    out: u32,
    number: u64,
    /// Number of pages that were passed to consumers since slots were last posted.
    owed: u32,
    /// Number of frames that were copied because too few pages were spare.
    short: u64,
}

impl LentPages {
    /// Creates the table of `slots` slots; `tag` is a number that no other queue has.
    pub fn new<P: Platform>(
        slots: u32,
        pages: Option<&OrdinaryPages<P>>,
        tag: u16,
    ) -> Result<Self, PlatformError> {
        let (n, rest) = pages.map_or((0, false), |pages| (pages.ids(), pages.rest()));
        let (first, more) = pages.map_or((0, 0), OrdinaryPages::room);
        Self::of(slots, (n, rest), (u32::from(first) + more).max(n), tag)
    }

    /// Makes the table; the numbers of pages are below `numbers`.
    fn of(slots: u32, (pages, rest): (u32, bool), numbers: u32, tag: u16) -> Result<Self, PlatformError> {
        Ok(Self {
            slots: SlotMemory::with_room(slots, pages, rest, numbers - pages)?,
            parts: memory::list(UNLENT, numbers as usize)?,
            out: 0,
            number: u64::from(tag) << 48,
            owed: 0,
            short: 0,
        })
    }

    /// Makes a new table for the same queue, with these pages. It must be called before the first
    /// slot is posted.
    pub fn with_pages<P: Platform>(
        &self,
        slots: u32,
        pages: &OrdinaryPages<P>,
    ) -> Result<Self, PlatformError> {
        Ok(Self { number: self.number, ..Self::new(slots, Some(pages), 0)? })
    }

    /// The page with which `slot` was posted.
    #[inline(always)]
    pub fn page(&self, slot: u16) -> u16 {
        self.slots.of(slot)
    }

    /// The page with which `slot` is posted next; None: there is no free page now.
    #[inline(always)]
    pub fn page_to_post(&mut self, slot: u16) -> Option<u16> {
        self.slots.to_post(slot)
    }

    /// Called when the answer to `slot` put nothing in its page: the slot keeps the page.
    #[inline(always)]
    pub fn keep(&mut self, slot: u16) {
        self.slots.keep(slot);
    }

    /// Whether `slot` could be posted.
    #[inline(always)]
    pub fn can_post(&self, slot: u16) -> bool {
        self.slots.can_post(slot)
    }

    /// Passes `len` bytes of the page of `slot` by reference, as the start of a frame. The slot
    /// loses the page.
    #[inline(always)]
    pub fn lend(&mut self, slot: u16, offset: u16, len: u16) -> Token {
        let page = self.slots.take(slot);
        // The number repeats only after 2^32 frames of a queue.
        self.number = (self.number & !0xffff_ffff_0000) | (self.number + 0x1_0000) & 0xffff_ffff_0000;
        let token = self.number | u64::from(page) | FRAME;
        self.set(page, LentPart { token, next: NONE, offset, len });
        self.out += 1;
        self.owed += 1;
        Token(token)
    }

    #[inline(always)]
    fn set(&mut self, page: u16, part: LentPart) {
        if let Some(place) = self.parts.get_mut(usize::from(page)) {
            *place = part;
        }
    }

    /// True if `pages` pages can be passed by reference, so that their slots get others when they
    /// are posted next. A frame for which there are too few is counted.
    pub fn can_lend(&mut self, pages: usize) -> bool {
        let can = self.owed as usize + pages <= self.slots.spare() as usize;
        self.short += u64::from(!can);
        can
    }

    /// Number of frames that were copied because too few pages were spare.
    pub fn short(&self) -> u64 {
        self.short
    }

    /// Called when slots got pages again, as far as there were spare pages.
    #[inline(always)]
    pub fn posted(&mut self) {
        self.owed = 0;
    }

    /// Adds a page, which is spare.
    pub fn add(&mut self, page: u16) {
        self.slots.add(page);
    }

    /// Removes a spare page whose number is at least `from`.
    pub fn take_out(&mut self, from: u16) -> Option<u16> {
        self.slots.take_out(from)
    }

    /// Upper bound of the numbers that pages can have.
    pub fn numbers(&self) -> usize {
        self.parts.len()
    }

    /// Number of pages that neither a slot nor a consumer has.
    pub fn spare(&self) -> u32 {
        self.slots.spare()
    }

    /// The tokens of all frames that the caller has by reference.
    pub fn tokens(&self) -> impl Iterator<Item = Token> {
        (0..self.numbers()).filter_map(|page| self.token_of(page))
    }

    /// The token of the frame that begins in this page, if the caller has it by reference.
    pub fn token_of(&self, page: usize) -> Option<Token> {
        self.parts.get(page).filter(|part| part.token & FRAME != 0).map(|part| Token(part.token))
    }

    /// Adds bytes to the frame that was passed last, which ends in page `last`. Returns their page.
    pub fn lend_more(&mut self, last: u16, slot: u16, offset: u16, len: u16) -> u16 {
        let page = self.slots.take(slot);
        self.set(page, LentPart { token: REST, next: NONE, offset, len });
        if let Some(last) = self.parts.get_mut(usize::from(last)) {
            last.next = page;
        }
        self.owed += 1;
        page
    }

    /// The page with which the frame of `token` begins.
    #[inline(always)]
    fn first(&self, token: Token) -> Option<u16> {
        let page = token.0 as u16;
        let loan = self.parts.get(usize::from(page))?;
        (token.0 & FRAME != 0 && loan.token == token.0).then_some(page)
    }

    /// The fragments of the frame with this `token`, in order: page, offset in it, and length.
    #[inline(always)]
    fn pieces(&self, token: Token) -> impl Iterator<Item = (u16, u16, u16)> {
        let mut next = self.first(token).unwrap_or(NONE);
        core::iter::from_fn(move || {
            let part = self.parts.get(usize::from(next))?;
            let piece = (next, part.offset, part.len);
            next = part.next;
            Some(piece)
        })
    }

    /// The bytes of these fragments in the given pages: the frame's payload after its head.
    #[inline(always)]
    pub fn pieces_in<'a, P: Platform>(
        &'a self,
        pages: Option<&'a OrdinaryPages<P>>,
        token: Token,
    ) -> impl Iterator<Item = Piece<'a>> {
        self.pieces(token).filter_map(move |(page, offset, len)| {
            let pages = pages?;
            FrontPath::receive(pages, pages.start(page) + usize::from(offset), usize::from(len))
        })
    }

    /// True if the caller has bytes of this page by reference.
    pub fn is_lent(&self, page: u16) -> bool {
        self.parts.get(usize::from(page)).is_some_and(|part| part.token != 0)
    }

    /// Called when the frame is not read any more: its pages become spare.
    #[inline(always)]
    pub fn release(&mut self, token: Token) -> Result<(), UnknownToken> {
        let mut page = self.first(token).ok_or(UnknownToken(token))?;
        while let Some(part) = self.parts.get_mut(usize::from(page)) {
            let next = core::mem::replace(&mut part.next, NONE);
            part.token = 0;
            self.slots.give_back(page);
            page = next;
        }
        self.out -= 1;
        Ok(())
    }

    /// Number of frames that the caller has by reference.
    pub fn out(&self) -> u32 {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_lent_once_and_comes_back_once() {
        let mut pages = LentPages::of(4, (5, false), 5, 7).expect("memory");
        let first = pages.lend(2, 256, 1000);
        assert_eq!(pages.pieces(first).next(), Some((2, 256, 1000)));
        assert_eq!((pages.pieces(first).nth(1), pages.out()), (None, 1));
        // The spare page, then none.
        assert_eq!(pages.page_to_post(2), Some(4));
        let long = pages.lend(2, 256, 3840);
        assert_eq!(pages.lend_more(4, 3, 0, 17), 3);
        assert_eq!((pages.pieces(long).nth(1), pages.pieces(long).nth(2)), (Some((3, 0, 17)), None));
        assert!((0..5).all(|page| pages.is_lent(page) == [2, 3, 4].contains(&page)));
        assert!(!pages.can_post(2) && !pages.can_post(3) && pages.can_post(0));
        assert_eq!(pages.release(first), Ok(()));
        assert_eq!(pages.release(first), Err(UnknownToken(first)));
        assert_eq!(pages.page_to_post(3), Some(2));
        assert_eq!(pages.page_to_post(2), None);
        assert_eq!(pages.release(long), Ok(()));
        assert_eq!((pages.page_to_post(2), pages.out()), (Some(3), 0));
        assert_eq!(pages.page_to_post(2), Some(3), "it has one");
    }

    #[test]
    fn a_token_names_its_frame_alone() {
        let [mut one, mut other] = [1, 2].map(|tag| LentPages::of(2, (2, false), 2, tag).expect("memory"));
        let (token, same_place) = (one.lend(0, 0, 1), other.lend(0, 0, 1));
        assert_ne!(token, same_place);
        for forged in
            [Token(0), Token(1), Token(u64::MAX), same_place, Token(token.0 ^ 1), Token(token.0 + 0x1_0000)]
        {
            assert_eq!(one.release(forged), Err(UnknownToken(forged)), "{forged:?}");
            assert_eq!(one.pieces(forged).next(), None);
        }
        assert_eq!(one.release(token), Ok(()));
        assert_eq!(one.page_to_post(0), Some(0));
        let again = one.lend(0, 0, 1);
        assert!(again != token && one.release(token).is_err(), "the same page with another frame");
        // A frame's second page is no frame.
        one.lend_more(0, 1, 0, 1);
        assert_eq!(one.release(Token(1)), Err(UnknownToken(Token(1))));
    }
}
