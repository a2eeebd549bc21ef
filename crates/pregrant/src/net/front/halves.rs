//! The two halves of a queue: one sends, the other receives, and each may be in a thread of its
//! own.
//!
//! ```text
//!   FrontQueue --into_halves--> TxHalf: queue, publish, reclaim     under the sender's lock
//!              \               RxHalf: recv                         by its poller, without a lock
//!               <--of_halves--'
//! ```
//! Invariants: the halves share their [`Link`] and nothing else, so neither waits for the other. A
//! half moves no frame while its vif is not live. To send received buffers on by TX needs both
//! halves at once, under the sender's lock and by the poller ([`RxHalf::send_on`]).
//!
//! What the back may do: see [`tx`](super::tx), [`rx`](super::rx).

use super::granted_piece::GrantedPiece;
use super::hook::HookStats;
use super::link::Link;
use super::regions::{Granted, Granting, Grants};
use super::requested::Requested;
use super::rx::RxFront;
use super::rx_pages::lent::{Lent, UnknownToken};
use super::tx::TxFront;
use super::tx_slots::NO_ID;
use crate::error::{PeerFault, PlatformError};
use crate::net::headers::MacAddr;
use crate::net::path::FrontPath;
use crate::net::stats::DirStats;
use crate::platform::{Events, Platform};
use crate::port::{Arena, FrameDesc, Frames, LentSink, Offload, Piece, Sink, Source, Token};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// State that the two halves of a queue share.
pub type QueueLink<P> = Link<<<P as Platform>::Events as Events>::Chan>;

/// The sending half of a queue. It may run in another thread than the receiving half.
pub struct TxHalf<P: Platform> {
    pub(super) tx: TxFront<P>,
    pub(super) link: Arc<QueueLink<P>>,
}

impl<P: Platform> TxHalf<P> {
    /// Sends frames; see [`TxFront::send`].
    #[inline(always)]
    pub fn send(&mut self, p: &P, frames: &impl Frames) -> Result<usize, PlatformError> {
        if !self.link.is_live() {
            return Ok(0);
        }
        self.tx.send(p, self.link.tx_chan(), frames)
    }

    /// Writes frames to the ring, and shows the back none: [`publish`](Self::publish) does, before
    /// the sender waits for anything. See [`TxFront::queue`].
    #[inline(always)]
    pub fn queue(&mut self, p: &P, frames: &impl Frames) -> Result<usize, PlatformError> {
        if self.link.is_live() { self.tx.queue(p, frames) } else { Ok(0) }
    }

    /// Writes a frame whose payload is in pages of the caller; see [`TxFront::queue_pieces`].
    pub fn queue_pieces(
        &mut self,
        p: &P,
        frame: &impl Source,
        pieces: &[GrantedPiece],
        ids: &mut [u16],
    ) -> Result<bool, PlatformError> {
        if self.link.is_live() { self.tx.queue_pieces(p, frame, pieces, ids) } else { Ok(false) }
    }

    /// Returns the id of an answered fragment; see [`TxFront::answered_piece`].
    #[inline(always)]
    pub fn answered_piece(&mut self) -> Option<u16> {
        self.tx.answered_piece()
    }

    /// Publishes to the back what was [queued](Self::queue).
    #[inline(always)]
    pub fn publish(&mut self, p: &P) {
        if self.link.is_live() {
            self.tx.publish(p, self.link.tx_chan());
        }
    }

    /// Processes the back's answers; see [`TxFront::reclaim`].
    #[inline(always)]
    pub fn reclaim(&mut self, p: &P, want: u32) -> Result<u32, PeerFault> {
        if !self.link.is_live() {
            return Ok(0);
        }
        let n = self.tx.reclaim(p, want)?;
        if n > 0 {
            self.link.go_on();
            self.link.found_answers();
        }
        Ok(n)
    }

    /// Called before the sender waits for room, or for the end of what it sent: asks for an event
    /// at the `ahead`-th answer from here. Returns true if there is work, so that the sender must
    /// not wait. Until [`reclaim`](Self::reclaim) takes the answers, the poller of a queue with a
    /// single event channel knows that the sender waits ([`RxHalf::sender_waits`]).
    pub fn final_check(&mut self, p: &P, ahead: u32) -> Result<bool, PeerFault> {
        let is_live = self.link.is_live();
        let has_answers_to_come = is_live && self.tx.in_flight() > 0;
        if has_answers_to_come || is_live && self.tx.holds_ids_back() {
            self.link.wait();
        }
        let checked = if has_answers_to_come { self.tx.final_check(ahead) } else { Ok(false) };
        if checked != Ok(false) {
            self.link.go_on();
        }
        let work = checked?;
        if self.link.is_split() {
            // Asked first, so that it is forgotten in any case.
            match self.link.tx_was_spurious() && !work {
                true => p.events().unmask_spurious(self.link.tx_chan()),
                false => p.events().unmask(self.link.tx_chan()),
            }
        }
        Ok(work)
    }

    /// Asks for multicast frames to an address, or no longer; see [`TxFront::multicast`].
    pub fn multicast(&mut self, p: &P, mac: MacAddr, wanted: bool) -> bool {
        self.link.is_live() && self.tx.multicast(p, self.link.tx_chan(), mac, wanted)
    }

    /// Number of free ring slots.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        if self.link.is_live() { self.tx.room() } else { 0 }
    }

    /// The TX ring and its memory.
    #[inline(always)]
    pub fn front(&self) -> &TxFront<P> {
        &self.tx
    }

    /// Counters of TX.
    pub fn stats(&self) -> DirStats {
        self.tx.stats()
    }
}

/// The receiving half of a queue. It may run in another thread than the sending half.
pub struct RxHalf<P: Platform> {
    pub(super) rx: RxFront<P>,
    pub(super) link: Arc<QueueLink<P>>,
    /// The arena of [`recv_by_arena`](Self::recv_by_arena), once that was called.
    pub(super) arena: Option<Box<Arena>>,
    pub(super) rest: Rest<P>,
}

/// State of a queue that belongs to neither half. It stays with one of them.
pub(super) struct Rest<P: Platform> {
    /// Grants of the TX ring and the RX ring.
    pub ring_grants: [Grants; 2],
    /// Pages that a key in xenstore names and that belong to no path.
    pub named: Vec<Granted<P>>,
    /// The paths that the queue asks for.
    pub asked: Requested,
    /// Whether TX pages stay granted, or are granted for each frame.
    pub granting: Granting,
    /// Number of RX pages beyond the slots.
    pub spare: u32,
    /// Number of RX pages that may be added.
    pub more: u32,
    /// Number of TX ids, and of RX slots.
    pub ids: [u32; 2],
    pub hooked: HookStats,
}

impl<P: Platform> RxHalf<P> {
    /// Receives frames until `to` is full, once at least `want` answers are there, and posts their
    /// slots again.
    #[inline(always)]
    pub fn recv(&mut self, p: &P, to: &mut impl Sink, want: u32) -> Result<usize, PeerFault> {
        let n = self.take(p, to, want)?;
        self.post_taken(p);
        Ok(n)
    }

    /// Receives frames without posting their slots: [`post_taken`](Self::post_taken) does that
    /// later. Until then the frames' buffers can be [sent on](Self::send_on).
    #[inline(always)]
    pub fn take(&mut self, p: &P, to: &mut impl Sink, want: u32) -> Result<usize, PeerFault> {
        if !self.link.is_live() {
            return Ok(0);
        }
        let n = if self.rx.chain().fetches() && to.arena().is_none() {
            self.recv_by_arena(p, to, want)?
        } else {
            let n = self.rx.recv(to, want)?;
            if let Some(out) = to.arena() {
                self.rx.fetch(p, out);
            }
            n
        };
        self.note_received(n);
        Ok(n)
    }

    /// True if frames are copied from the back's pages in batches. Then no frame can be read where
    /// it arrived.
    pub fn fetches(&self) -> bool {
        self.rx.chain().fetches()
    }

    /// Like [`take`](Self::take), for a sink that accepts references to pages; see
    /// [`RxFront::recv_lent`]. Not for a queue that [fetches](Self::fetches).
    #[inline(always)]
    pub fn take_lent(&mut self, to: &mut impl LentSink, want: u32) -> Result<usize, PeerFault> {
        if !self.link.is_live() || self.fetches() {
            return Ok(0);
        }
        let n = self.rx.recv_lent(to, want)?;
        self.note_received(n);
        Ok(n)
    }

    /// Posts the slots of the frames that [`take`](Self::take) received.
    #[inline(always)]
    pub fn post_taken(&mut self, p: &P) {
        if self.link.is_live() {
            self.post_free(p);
        }
    }

    /// Sends `len` bytes, from `offset` on, of the buffer of a slot without a copy, if this back
    /// [supports it](TxFront::sends_on). The slot's frame was [received](Self::take) before. When
    /// the slot is posted, it gets another buffer. Returns false if there is no room, or the buffer
    /// has no such bytes.
    #[must_use]
    pub fn send_on(
        &mut self,
        tx: &mut TxHalf<P>,
        slot: u16,
        (offset, len): (u16, u16),
        offload: Offload,
    ) -> bool {
        let end = usize::from(offset) + usize::from(len);
        let fits = self.rx.chain().staging().is_some_and(|area| end <= area.slot_bytes());
        let buffer = self.rx.buffers.of(slot);
        if !fits || buffer == NO_ID || !tx.link.is_live() {
            return false;
        }
        let sent = tx.tx.send_on(buffer, (offset, len), offload);
        if sent {
            self.rx.buffers.take(slot);
        }
        sent
    }

    /// Returns buffers to RX that TX had sent and whose requests were [answered](TxHalf::reclaim).
    pub fn take_returned(&mut self, tx: &mut TxHalf<P>) {
        while let Some(buffer) = tx.tx.returned() {
            self.rx.give_back(buffer);
        }
    }

    /// Notes that `n` frames arrived, so that the last event was not spurious.
    #[inline(always)]
    fn note_received(&self, n: usize) {
        if n > 0 {
            self.link.found_frames();
        }
    }

    /// Receives into an arena first, because the frames are copied from the back's pages in
    /// batches. The first call allocates the arena.
    #[cold]
    fn recv_by_arena(&mut self, p: &P, to: &mut impl Sink, want: u32) -> Result<usize, PeerFault> {
        let mut arena = self.arena.take().unwrap_or_default();
        arena.clear();
        let mut most = AtMost { arena: &mut arena, most: to.takes() };
        let n = self.rx.recv(&mut most, want);
        self.rx.fetch(p, &mut arena);
        for i in 0..arena.len() {
            let FrameDesc { at, len, offload } = arena.desc(i);
            let (at, len) = (at as usize, len as usize);
            let bytes = arena.bytes_mut().get_mut(at..at + len).filter(|bytes| !bytes.is_empty());
            let Some(bytes) = bytes else { continue };
            if !to.take(len, offload, core::iter::once(Piece::from(bytes))) {
                self.rx.note_dropped();
            }
        }
        self.arena = Some(arena);
        n
    }

    /// Receives frames by reference; see
    /// [`FrontQueue::recv_by_reference`](super::FrontQueue::recv_by_reference).
    #[inline(always)]
    pub fn recv_by_reference(
        &mut self,
        p: &P,
        out: &mut Arena,
        lent: &mut Lent,
        want: u32,
    ) -> Result<usize, PeerFault> {
        lent.clear();
        if !self.link.is_live() {
            return Ok(0);
        }
        let n = self.rx.recv_by_reference(out, lent, want)?;
        self.rx.fetch(p, out);
        self.note_received(n);
        self.post_free(p);
        Ok(n)
    }

    /// Releases a frame; see [`RxFront::release`]. Slots that waited for a page are posted by
    /// [`post_free`](Self::post_free).
    #[inline(always)]
    pub fn release(&mut self, token: Token) -> Result<(), UnknownToken> {
        self.rx.release(token)
    }

    pub(super) fn post(&mut self, p: &P) -> Result<(), PlatformError> {
        self.rx.post(p, self.link.rx_chan())
    }

    /// Posts the free slots for which there is memory.
    #[inline(always)]
    pub fn post_free(&mut self, p: &P) {
        // Not only after frames: a ringful of error answers frees slots too.
        if self.rx.has_free() {
            // Standing grants: posting cannot fail.
            let _ = self.post(p);
        }
    }

    /// Called before sleeping: arms the ring and its event channel. Returns true if there is work.
    pub fn final_check(&mut self, p: &P) -> Result<bool, PeerFault> {
        let work = self.link.is_live() && self.rx.final_check(1)?;
        // This comes last: an event that arrived since the ring was armed must be kept until here.
        match self.link.rx_was_spurious() && !work {
            true => p.events().unmask_spurious(self.link.rx_chan()),
            false => p.events().unmask(self.link.rx_chan()),
        }
        Ok(work)
    }

    /// True if the sender waits for answers, whose event wakes this half, too. The caller then
    /// processes the answers, under the sender's lock.
    #[inline(always)]
    pub fn sender_waits(&self) -> bool {
        !self.link.is_split() && self.link.sender_waits()
    }

    /// The RX ring and its memory.
    #[inline(always)]
    pub fn front(&self) -> &RxFront<P> {
        &self.rx
    }

    /// Counters of RX.
    pub fn stats(&self) -> DirStats {
        self.rx.stats()
    }
}

/// A sink that accepts a limited number of frames into an arena.
struct AtMost<'a> {
    arena: &'a mut Arena,
    most: usize,
}

impl Sink for AtMost<'_> {
    fn takes(&self) -> usize {
        self.arena.takes().min(self.most.saturating_sub(self.arena.len()))
    }
    fn take<'a>(&mut self, len: usize, offload: Offload, pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        self.arena.take(len, offload, pieces)
    }
    fn arena(&mut self) -> Option<&mut Arena> {
        Some(self.arena)
    }
}
