//! Zero-copy RX: received frames stay in the granted pages in which they came. The skb has a
//! reference to each page, and the page is posted again once no skb has one.
//!
//! ```text
//!   ring --> SkbsInPages: head copied, the pages are fragments --> the stack --> spare pages --> ring
//! ```
//! What the back may do: change these bytes at any time, after they were checked too, as long as it
//! has the pages mapped; and read what the stack writes there. So only TCP frames stay in their
//! pages, and only with a back that is trusted; the head, with the headers, is a copy.

use crate::halves::Skbs;
use crate::shim;
use alloc::collections::VecDeque;
use pregrant::PeerFault;
use pregrant::net::front::RxHalf;
use pregrant::platform::Platform;
use pregrant::port::{LentSink, Offload, Piece, Sink, Token};
use pregrant::shm::copy_from_shared;

/// A search for frames that the stack has released ends after this many frames in a row that the
/// stack still uses.
const HELD: usize = 8;

/// Received frames of one queue whose pages the stack may still use.
pub struct InPlace {
    /// Length in bytes below which frames are copied.
    from: usize,
    /// Tokens in the order in which their frames arrived.
    out: VecDeque<Token>,
    /// Frames that stayed in their pages since the owner last asked.
    frames: u32,
    /// Value of the queue's counter of frames for which there were no pages, when the owner last
    /// asked.
    short: u64,
}

impl InPlace {
    /// Creates the list for a queue. If the queue was served before, `kept` is its former list,
    /// whose memory is used again, so stopping and starting a queue needs no memory. A longer list
    /// is allocated here. None: there is no memory for it. Frames are copied then, and the pages
    /// that the stack still has are taken back when the queues are stopped.
    pub fn new<P: Platform>(from: usize, half: &RxHalf<P>, kept: Option<Self>) -> Option<Self> {
        let pages = half.front().pages();
        let mut out = kept.map_or_else(VecDeque::new, |kept| kept.out);
        out.clear();
        out.try_reserve_exact(pages.numbers()).ok()?;
        let mut new = Self { from, out, frames: 0, short: pages.short() };
        pages.tokens().for_each(|token| new.note(token));
        Some(new)
    }

    /// Receives the frames that are there. Those that an XDP program sees are copied.
    #[inline(never)]
    pub fn receive<P: Platform>(
        &mut self,
        p: &P,
        half: &mut RxHalf<P>,
        skbs: &mut Skbs,
    ) -> Result<usize, PeerFault> {
        self.reclaim_pages(half);
        if skbs.decides() || half.fetches() {
            return half.take(p, skbs, 1);
        }
        half.take_lent(&mut SkbsInPages { skbs, of: self }, 1)
    }

    /// Notes a frame. There is room, since a page has at most one token.
    fn note(&mut self, token: Token) {
        if self.out.len() < self.out.capacity() {
            self.out.push_back(token);
        }
    }

    /// Releases frames whose pages no skb refers to any more, so that the pages can be posted
    /// again.
    fn reclaim_pages<P: Platform>(&mut self, half: &mut RxHalf<P>) {
        let mut held = 0;
        for _ in 0..self.out.len() {
            let Some(token) = self.out.pop_front() else { return };
            if has_done(&mut half.front().pieces(token)) {
                let _ = half.release(token); // it is this queue's
                held = 0;
                continue;
            }
            self.note(token);
            held += 1;
            if held == HELD {
                return;
            }
        }
    }

    /// Returns the number of frames that stayed in their pages since the last call, and whether
    /// others were copied because no page was spare.
    pub fn news<P: Platform>(&mut self, half: &RxHalf<P>) -> (u32, bool) {
        let short = half.front().pages().short();
        let is_short = core::mem::replace(&mut self.short, short) != short;
        (core::mem::take(&mut self.frames), is_short)
    }
}

/// True if no skb refers to any of these pages.
pub fn has_done(mut pieces: &mut dyn Iterator<Item = Piece<'_>>) -> bool {
    // SAFETY: bytes of the kernel's pages that are granted, and are not freed meanwhile.
    Iterator::all(&mut pieces, |piece| unsafe { shim::pk_page_is_back(piece.as_raw().0) })
}

/// Receives frames as skbs, long ones in their pages.
struct SkbsInPages<'a> {
    skbs: &'a mut Skbs,
    of: &'a mut InPlace,
}

impl Sink for SkbsInPages<'_> {
    #[inline(always)]
    fn takes(&self) -> usize {
        self.skbs.takes()
    }
    #[inline(always)]
    fn take<'a>(&mut self, len: usize, offload: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        self.skbs.take(len, offload, pieces)
    }
    #[inline(always)]
    fn in_buffer(&mut self, slot: u16, offset: u16, bytes: usize) {
        self.skbs.in_buffer(slot, offset, bytes);
    }
}

/// Largest number of fragments of an skb: MAX_SKB_FRAGS.
const FRAGMENTS: usize = 17;

impl LentSink for SkbsInPages<'_> {
    fn wants(&self, len: usize, pages: usize) -> bool {
        len >= self.of.from && pages <= FRAGMENTS
    }
    fn take_lent<'a>(
        &mut self,
        len: usize,
        offload: Offload,
        head: [Piece<'a>; 2],
        rest: impl Iterator<Item = Piece<'a>>,
    ) -> bool {
        let Some((csum, kind, size)) = self.skbs.admit(len, offload) else {
            self.skbs.refuse();
            return false;
        };
        let [(from, n), (behind, more)] = head.map(|piece| piece.as_raw());
        let mut linear = core::ptr::null_mut();
        // SAFETY: `to` is what C's caller gave; `linear` is then memory for the head, which no one
        // has written before, and the others are in pages that C can have references to.
        unsafe {
            let skb = shim::pk_skb_new_frags(self.skbs.to, len, n + more, csum, kind, size, &mut linear);
            if skb.is_null() || linear.is_null() {
                return false;
            }
            copy_from_shared(from, linear, n);
            copy_from_shared(behind, linear.add(n), more);
            rest.map(|piece| piece.as_raw()).for_each(|(at, len)| shim::pk_skb_add_page(skb, at, len));
        }
        true
    }
    fn lent(&mut self, token: Token) {
        self.of.note(token);
        self.of.frames += 1;
    }
}
