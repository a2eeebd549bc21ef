//! TX frames whose payload stays where it is: in pages that the caller grants for the frame, as
//! Linux's fragments of an skb are.
//!
//! ```text
//!   head   --copied--> page of an id ----.
//!   pieces, granted by the caller --------+--> a request each --> ring
//!   caller: ends the grant <--answered_piece-- answer
//! ```
//! Such a frame is an ordinary one of several slots, which every back with `feature-sg` takes. A
//! piece's id is known to be in flight until its request is answered; only then does the caller end
//! the grant, and use the page again once it has ended.
//!
//! Frames are not sent this way to a back that is not [trusted](super::trust); nor if the back
//! keeps pages mapped that it saw ([`Requested::persistent`]), because a reference names another
//! page the next time; nor if a frame fits a staging buffer, or its first slot is in one.
//!
//! [`Requested::persistent`]: super::requested::Requested::persistent
//!
//! What the back may do: read all of a granted page, not only the piece; keep it mapped after its
//! answer (the caller waits for the grant's end); answer an id twice (a fault: the device is
//! closed).

use super::granted_piece::{GrantedPiece, PIECES_MAX, Pieces};
use super::tx::TxFront;
use super::tx_slots::{InFlight, TxSlots, flags_of};
use crate::error::PlatformError;
use crate::net::path::{AnyFrontPath, FrontPath};
use crate::platform::Platform;
use crate::port::{MAX_FRAME, Source};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::netif::{Extra, MIN_FRAME, TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest};

/// The error for a frame that cannot be sent this way; it can be sent by copies.
const NOT_IN_PIECES: PlatformError =
    PlatformError { op: "send a frame in pieces that are no such", code: 22 };

impl<P: Platform> TxSlots<P> {
    /// Writes the requests; the caller checked that there is room. An error has the id to be freed;
    /// then nothing was written to the ring.
    fn send_pieces<F: FrontPath<P>>(
        &mut self,
        p: &P,
        path: &mut F,
        ahead: &mut [AnyFrontPath<P>],
        (frame, head): (&impl Source, usize),
        (pieces, ids): (&[GrantedPiece], &mut [u16]),
    ) -> Result<(), (PlatformError, u16)> {
        let (len, offload) = (frame.len(), *frame.offload());
        let id = self.free.take();
        let gref = path.place(p, id).map_err(|e| (e, id))?;
        let to = path.bytes().piece_mut(path.start(id), head);
        debug_assert!(to.is_some(), "a slot is in its region");
        if let Some(to) = to {
            frame.copy_to(0, to);
        }
        ahead.iter_mut().for_each(|other| other.head(id, frame));
        let gso = offload.gso_type != 0;
        let extra = if gso { TXF_EXTRA_INFO } else { 0 };
        let flags = F::TX_FLAGS | flags_of(&offload) | TXF_MORE_DATA | extra;
        self.note_sent(id);
        self.ring.push(&TxRequest { gref, offset: 0, flags, id, size: len as u16 });
        if gso {
            let extra = Extra::Gso { size: offload.gso_size, gso_type: offload.gso_type };
            self.ring.push(&TxRequest::from_words(extra.to_tx_words(false)));
            self.extras_in_flight += 1;
        }
        let n = pieces.len() as u32;
        for ((k, piece), of_piece) in (0..).zip(pieces).zip(ids) {
            let id = self.free.peek(k);
            *of_piece = id;
            self.note(id, InFlight::Piece);
            let GrantedPiece { gref, offset, len } = *piece;
            let flags = if k + 1 < n { TXF_MORE_DATA } else { 0 };
            self.ring.write(k, &TxRequest { gref: gref.0, offset, flags, id, size: len });
        }
        self.free.skip(n);
        self.ring.advance(n);
        self.stats.bytes += len as u64;
        self.stats.handed_on_by(F::NAME, 1);
        Ok(())
    }
}

impl<P: Platform> TxFront<P> {
    /// Allows frames whose payload is in pages of the caller, if the chain supports it. Called
    /// before the first frame, for a back that is [trusted](super::trust) and does not keep pages
    /// mapped that it saw.
    pub fn allow_pieces(&mut self) -> Result<(), PlatformError> {
        let paths = self.chain.paths();
        let in_pages = paths.last().is_some_and(|path| path.pages().is_some());
        if in_pages && !paths.iter().any(AnyFrontPath::takes_first) {
            self.pieces = Pieces::of_ids(self.ids())?;
        }
        Ok(())
    }

    /// True if frames with payload in pages of the caller are allowed.
    #[inline(always)]
    pub fn takes_pieces(&self) -> bool {
        self.pieces.are_taken() && self.slots.limits.sg
    }

    /// Writes a frame whose last bytes are in the given pages, and puts the ids of their requests
    /// into `ids`. The frame's first bytes are copied: at least an Ethernet header, at most a page.
    /// The next [`publish`](Self::publish) shows the frame to the back. Returns false if there is
    /// no room now.
    ///
    /// # Errors
    /// The frame cannot be sent from its pages, or no page for its head can be granted. Nothing was
    /// written to the ring, and the frame can be sent by [copying](Self::queue) it.
    pub fn queue_pieces(
        &mut self,
        p: &P,
        frame: &impl Source,
        pieces: &[GrantedPiece],
        ids: &mut [u16],
    ) -> Result<bool, PlatformError> {
        let (len, gso_type) = (frame.len(), frame.offload().gso_type);
        let (carried, are_in_pages) = pieces
            .iter()
            .fold((0, true), |(sum, are), piece| (sum + usize::from(piece.len), are & piece.is_in_a_page()));
        let head = len.checked_sub(carried).filter(|head| (MIN_FRAME..=PAGE_SIZE).contains(head));
        let fits = self.takes_pieces()
            && (1..=PIECES_MAX.min(ids.len())).contains(&pieces.len())
            && are_in_pages
            && len <= MAX_FRAME
            && self.slots.limits.allow(len, gso_type);
        let Some(head) = head.filter(|_| fits) else { return Err(NOT_IN_PIECES) };
        let slots = 1 + pieces.len() as u32;
        if self.slots.ring.free() < slots + u32::from(gso_type != 0) || self.slots.free.len() < slots {
            return Ok(false);
        }
        let last = self.chain.len().saturating_sub(1);
        let Some((ahead, path)) = self.chain.split(last) else { return Err(NOT_IN_PIECES) };
        let parts = (pieces, &mut *ids);
        let slots = &mut self.slots;
        let sent = match path {
            AnyFrontPath::Staging(path) => slots.send_pieces(p, path, ahead, (frame, head), parts),
            AnyFrontPath::DataRing(path) => slots.send_pieces(p, path, ahead, (frame, head), parts),
            #[cfg(feature = "research")]
            AnyFrontPath::Foreign(path) => slots.send_pieces(p, path, ahead, (frame, head), parts),
            AnyFrontPath::Copy(path) => slots.send_pieces(p, path, ahead, (frame, head), parts),
        };
        if let Err((e, id)) = sent {
            self.free_id(p, id);
            return Err(e);
        }
        self.pieces.sent(pieces.len() as u32);
        Ok(true)
    }

    /// Number of fragments whose requests have no answer, or an answer that the caller did not
    /// collect.
    pub fn pieces_out(&self) -> u32 {
        self.pieces.out()
    }

    /// The id of a fragment whose request was answered: its grant can be ended. To be called after
    /// each [`reclaim`](Self::reclaim), and before the next frame, which may reuse the id.
    #[inline(always)]
    pub fn answered_piece(&mut self) -> Option<u16> {
        self.pieces.answered()
    }
}
