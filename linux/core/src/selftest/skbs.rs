//! Moves frames as the driver does: by a queue in two halves, and in skbs of this kernel that
//! `frame.c` makes.
//!
//! ```text
//!   bytes --skb, in pieces--> TxHalf: queue, publish, reclaim, final_check --> back: Counterpart compares
//!   bytes, compared <--skb-- RxHalf: recv, or in place; final_check        <-- Counterpart
//! ```
//! In pieces: the pages of an skb are granted, and their grants end when the pieces are answered.
//! Halves and the back are called as in the kernel, where nothing may sleep: memory that one asks
//! for is counted.

use super::{Ends, HOST, Result, TCP_HEADER, fill, is_frame, tcp_header};
use crate::halves::{Frame, Skbs};
use crate::in_place::InPlace;
use crate::selftest::domains::Domain;
use crate::shim;
use alloc::boxed::Box;

use alloc::vec::{IntoIter, Vec};
use pregrant::GrantRef;
use pregrant::net::back::Polled;
use pregrant::net::front::{FrontQueue, GrantedPiece, PIECES_MAX, RxHalf, TxHalf};
use pregrant::platform::GrantTable;
use pregrant::port::Offload;

/// Largest number of frames that are published to the back, or received, at once.
pub(super) const AT_ONCE: u64 = 64;
/// Requests of the longest frame.
const FRAME_SLOTS: u32 = PIECES_MAX as u32 + 2;
/// Number of ids for fragments in flight.
const IDS: usize = 256;

const FAULT: &str = "a fault of the back";

/// The queues of a vif, of which the first one is split into halves.
pub struct Halves {
    tx: Box<TxHalf<Domain>>,
    pub(super) rx: Box<RxHalf<Domain>>,
    rest: IntoIter<FrontQueue<Domain>>,
}

/// An skb that is sent.
struct Skb(shim::Skb);

impl Drop for Skb {
    fn drop(&mut self) {
        // SAFETY: it is ours, and was copied.
        unsafe { shim::pk_test_free(self.0) }
    }
}

/// Skbs whose fragments the back uses by grants.
struct LentSkbs {
    skbs: Vec<Skb>,
    /// The grant of each fragment, by the id of its request.
    grefs: Vec<Option<GrantRef>>,
}

impl LentSkbs {
    fn new() -> Self {
        Self { skbs: Vec::new(), grefs: core::iter::repeat_n(None, IDS).collect() }
    }

    /// Sends a frame as fragments of `skb`, which it grants to the back. Returns false if there is
    /// no room.
    fn send(&mut self, guest: &Domain, tx: &mut TxHalf<Domain>, frame: &Frame, skb: Skb) -> Result<bool> {
        let (mut pages, mut offsets, mut lens) =
            ([core::ptr::null_mut(); PIECES_MAX], [0; PIECES_MAX], [0; PIECES_MAX]);
        // SAFETY: room for as many as there can be.
        let n = unsafe {
            shim::pk_test_pieces(skb.0, pages.as_mut_ptr(), offsets.as_mut_ptr(), lens.as_mut_ptr())
        };
        let mut pieces = [GrantedPiece { gref: GrantRef::NONE, offset: 0, len: 0 }; PIECES_MAX];
        for (piece, ((page, offset), len)) in pieces.iter_mut().zip(pages.into_iter().zip(offsets).zip(lens))
        {
            *piece = GrantedPiece { gref: GrantRef::NONE, offset, len };
            if !page.is_null() {
                piece.gref = guest.lend(HOST, page as usize);
            }
        }
        let pieces = pieces.get(..n as usize).ok_or("too many pieces")?;
        let mut ids = [0; PIECES_MAX];
        match softirq(|| tx.queue_pieces(guest, frame, pieces, &mut ids)) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(_) => return Err("a frame in pieces is refused"),
        }
        for (id, piece) in ids.into_iter().zip(pieces) {
            let place = self.grefs.get_mut(usize::from(id)).ok_or("an id that is none")?;
            if place.replace(piece.gref).is_some() {
                return Err("an id is out twice");
            }
        }
        self.skbs.push(skb);
        Ok(true)
    }

    /// Called when the back has answered all requests: ends the grants of all fragments.
    fn end(&mut self, guest: &Domain, tx: &mut TxHalf<Domain>) -> Result<()> {
        while let Some(id) = tx.answered_piece() {
            let gref = self.grefs.get_mut(usize::from(id)).and_then(Option::take);
            if guest.revoke(gref.ok_or("an answer to no piece")?).is_err() {
                return Err("the back keeps a piece");
            }
        }
        self.skbs.clear();
        if self.grefs.iter().any(Option::is_some) { Err("a piece has no answer") } else { Ok(()) }
    }
}

/// Makes a call that must not sleep, in softirq context.
pub(super) fn softirq<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: it ends below.
    unsafe { shim::pk_test_softirq(true) };
    let came = call();
    // SAFETY: as it was.
    unsafe { shim::pk_test_softirq(false) };
    came
}

impl Ends {
    /// Takes the queues from the front, and splits the first one into halves.
    #[inline(never)]
    pub(super) fn halves(&mut self) -> Result<Halves> {
        let mut rest = self.front.hand_out_queues().into_iter();
        let (tx, rx) = rest.next().ok_or("the vif is not live")?.into_halves();
        Ok(Halves { tx, rx, rest })
    }

    pub(super) fn whole(&mut self, halves: Halves) -> Result<()> {
        let Halves { tx, rx, rest } = halves;
        let first = FrontQueue::of_halves(tx, rx).map_err(|_| "the halves are of two queues")?;
        self.front.take_back(core::iter::once(first).chain(rest).collect());
        Ok(())
    }

    /// Sends `n` frames to the back. Returns how many were wrong or lost.
    #[inline(never)]
    pub fn tx(&mut self, n: u64, in_pieces: bool) -> Result<u64> {
        let (mut halves, mut lent) = (self.halves()?, LentSkbs::new());
        for k in 0..n {
            fill(&mut self.bytes, k);
            // SAFETY: bytes of that length.
            let skb = Skb(unsafe { shim::pk_test_skb(self.bytes.as_ptr(), self.bytes.len()) });
            if skb.0.is_null() {
                return Err("no skb");
            }
            let frame =
                Frame { from: skb.0, is_linear: false, len: self.bytes.len(), offload: Offload::default() };
            if halves.tx.room() < FRAME_SLOTS {
                self.serve(&mut halves.tx)?;
                lent.end(&self.guest, &mut halves.tx)?;
            }
            if in_pieces {
                if !lent.send(&self.guest, &mut halves.tx, &frame, skb)? {
                    return Err("there is no room for a frame in pieces");
                }
            } else {
                match softirq(|| halves.tx.queue(&self.guest, &frame)) {
                    Ok(1) => {}
                    Ok(_) => return Err("there is no room for a frame"),
                    Err(_) => return Err("a frame is refused"),
                }
            }
            if (k + 1).is_multiple_of(self.at_once) || k + 1 == n {
                self.serve(&mut halves.tx)?;
                lent.end(&self.guest, &mut halves.tx)?;
                // SAFETY: a process's context, without a lock.
                unsafe { shim::pk_test_resched() };
            }
        }
        self.whole(halves)?;
        Ok(self.port.wrong + n - self.port.came)
    }

    /// Publishes to the back what was queued, and processes its answers.
    fn serve(&mut self, tx: &mut TxHalf<Domain>) -> Result<()> {
        softirq(|| tx.publish(&self.guest));
        while self.poll_tx()? == Polled::More {}
        let guest = &self.guest;
        softirq(|| {
            tx.reclaim(guest, 1).map_err(|_| FAULT)?;
            loop {
                let ahead = tx.front().in_flight() / 2 + 1;
                if !tx.final_check(guest, ahead).map_err(|_| FAULT)? {
                    return Ok(());
                }
                tx.reclaim(guest, 1).map_err(|_| FAULT)?;
            }
        })
    }

    /// Adds RX pages for three frames of 60000 bytes. While these are in use, other frames are
    /// copied.
    #[inline(never)]
    pub(super) fn grow(&mut self) -> Result<()> {
        self.front.grow_rx(&self.guest, 0, 45).map_err(|_| "no pages for the pool")?;
        self.announce()
    }

    /// Receives at least `n` frames from the back. Returns how many were wrong.
    #[inline(never)]
    pub fn rx(&mut self, n: u64, in_place: bool) -> Result<u64> {
        if !in_place {
            return Ok(self.receive(n, false)?.0);
        }
        match self.rx_in_place(n)? {
            (_, 0) => Err("no frame stays in its pages"),
            (wrong, _) => Ok(wrong),
        }
    }

    /// Like [`rx`](Self::rx), if frames may stay in their pages: returns how many were wrong, and
    /// how many stayed.
    #[inline(never)]
    pub fn rx_in_place(&mut self, n: u64) -> Result<(u64, u64)> {
        self.grow()?;
        self.port.head = Some(tcp_header(self.port.len));
        let came = self.receive(n, true)?;
        self.front.release_done(&self.guest, |_| true);
        // One page stays with its slot, and one may be spare.
        let gone = self.front.shrink_rx(&self.guest, usize::MAX);
        if !(44..=45).contains(&gone) {
            return Err("frames in place take no pages, or do not give them back");
        }
        self.announce()?;
        Ok(came)
    }

    fn receive(&mut self, n: u64, in_place: bool) -> Result<(u64, u64)> {
        let mut halves = self.halves()?;
        let mut in_place = if in_place { InPlace::new(2049, &halves.rx, None) } else { None };
        let mut lent = 0;
        let (mut came, mut wrong, len) = (0, 0, self.port.len);
        // SAFETY: it makes an empty list.
        let to = unsafe { shim::pk_test_received() };
        while came < n {
            // SAFETY: as above.
            unsafe { shim::pk_test_resched() };
            self.poll_rx()?;
            loop {
                let (rx, guest) = (&mut halves.rx, &self.guest);
                let mut skbs = Skbs::new(to, AT_ONCE as usize, false, false);
                let got = softirq(|| {
                    let Some(in_place) = &mut in_place else { return rx.recv(guest, &mut skbs, 1) };
                    let got = in_place.receive(guest, rx, &mut skbs);
                    rx.post_taken(guest);
                    lent += u64::from(in_place.news(rx).0);
                    got
                });
                let got = got.map_err(|_| FAULT)?;
                let head = self.port.head;
                while let Some(frame) = self.next(to) {
                    let is_right = frame.starts_with(head.as_ref().map_or(&[], |head| head));
                    if head.is_some() {
                        fill(frame.get_mut(..TCP_HEADER).unwrap_or_default(), came);
                    }
                    wrong += u64::from(!is_right || !is_frame(frame, len, came));
                    came += 1;
                }
                let (rx, guest) = (&mut halves.rx, &self.guest);
                if got == 0 && !softirq(|| rx.final_check(guest)).map_err(|_| FAULT)? {
                    break;
                }
            }
        }
        self.whole(halves)?;
        Ok((wrong, lent))
    }

    /// The bytes of the next skb of a list. None: it is empty.
    pub(super) fn next(&mut self, list: *mut core::ffi::c_void) -> Option<&mut [u8]> {
        // SAFETY: a list of `pk_test_received`, and bytes of that length.
        let len = unsafe { shim::pk_test_next(list, self.bytes.as_mut_ptr(), self.bytes.len()) };
        self.bytes.get_mut(..usize::try_from(len).ok()?)
    }
}
