//! RX of one queue, at the guest: the back's frames to private memory.
//!
//! ```text
//!   post: every free slot gets a request (id = slot number, that id's page or no page at all)
//!   recv: answers --> one copy into the caller's arena --> post again
//! ```
//!
//! Which memory a slot's bytes are in follows from the protocol, not from a flag: a frame of at most N bytes is in the
//! staging buffer of its slot's id, a longer one in the slots' pages, and where N is 65535 every slot is staged. Bytes
//! are copied to private memory before anybody parses them. What the back may do: answer with offsets, lengths or
//! chains that make no sense (faults), or change the memory while it is copied (the copy is what counts).

use super::buffers::Buffers;
use super::tx::OwnRing;
use crate::error::{PeerFault, PlatformError};
use crate::net::gso;
use crate::net::stats::DirStats;
use crate::platform::{Events, Platform};
use crate::port::{Arena, BURST_FRAMES, MAX_FRAME, Offload};
use crate::ring::{FrontRing, NetRx};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::netif::{
    Extra, RXF_CSUM_BLANK, RXF_DATA_VALIDATED, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest, RxResponse,
};
use alloc::boxed::Box;

/// Longer frames are left to the hardware's own prefetcher.
const SHORT: i16 = 256;
/// Answers that one frame can have: 65535 bytes in slots of one byte are nobody's honest frame.
const MAX_CHAIN: usize = 32;

/// The front's RX half of a queue.
pub struct RxFront<P: Platform> {
    ring: FrontRing<NetRx, OwnRing<NetRx, P>>,
    buffers: Buffers<P>,
    /// Answers that are here and belong to a frame whose last one is not.
    cut: u32,
    /// Scratch: a run of answers that were read.
    run: Box<[RxResponse; BURST_FRAMES]>,
    stats: DirStats,
}

/// One piece of a frame: which slot's memory, where in it, how much.
#[derive(Clone, Copy, Default)]
struct Piece {
    id: u32,
    offset: u16,
    len: u16,
}

impl<P: Platform> RxFront<P> {
    /// A queue over a ring that was just initialised. `pages` may be missing where staging serves every slot.
    pub fn new(ring: FrontRing<NetRx, OwnRing<NetRx, P>>, buffers: Buffers<P>) -> Self {
        Self {
            ring,
            buffers,
            cut: 0,
            run: Box::new([RxResponse::default(); BURST_FRAMES]),
            stats: DirStats::default(),
        }
    }

    /// Posts a request in every free slot and publishes them.
    #[inline(always)]
    pub fn post(&mut self, p: &P, chan: &<P::Events as Events>::Chan) -> Result<(), PlatformError> {
        let mask = self.ring.size() - 1;
        for _ in 0..self.ring.free() {
            let id = self.ring.next_index() & mask;
            let gref = match &mut self.buffers.pages {
                Some(pages) => pages.grant(p, id as usize)?.0,
                None => 0,
            };
            self.ring.push(&RxRequest { id: id as u16, gref });
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
            // The common case, one slot and no extras: a run of answers is read, their buffers' lines asked for, and then
            // the frames are copied.
            let most = ((n - taken) as usize).min(BURST_FRAMES - out.len());
            let (run, long) = self.plain_run(taken, most);
            for k in 0..run {
                if !out.has_room() {
                    break;
                }
                let rsp = self.run[k];
                let id = self.id_at(taken);
                let piece = Piece { id, offset: rsp.offset, len: rsp.status as u16 };
                self.copy_frame(out, &[piece], offload_of(rsp.flags))?;
                taken += 1;
            }
            let Some(rsp) = long else { continue };
            if !out.has_room() {
                break;
            }
            match self.recv_long(rsp, taken, n, out)? {
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
                && let Some(area) = &self.buffers.staging
            {
                let place = area.place(self.id_at(at + n as u32)) as usize;
                area.bytes().prefetch_read(place + rsp.offset as usize, rsp.status as usize);
            }
            self.run[n] = rsp;
            n += 1;
        }
        (n, None)
    }

    #[inline(always)]
    fn id_at(&self, ahead: u32) -> u32 {
        self.ring.rsp_cons().wrapping_add(ahead) & (self.ring.size() - 1)
    }

    /// A frame of several slots, with extras, or an error. Returns the answers used; 0: they are not all there.
    #[cold]
    #[inline(never)]
    fn recv_long(&mut self, first: RxResponse, at: u32, n: u32, out: &mut Arena) -> Result<u32, PeerFault> {
        let mut used = 1;
        let mut offload = offload_of(first.flags);
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
            if let Extra::Gso { size, gso_type } = info {
                offload.gso_size = size;
                offload.gso_type = gso_type;
            }
            used += 1;
            extra = more;
        }
        let mut pieces = [Piece::default(); MAX_CHAIN];
        let mut nr = 0;
        let mut error = false;
        let mut rsp = first;
        let mut id = self.id_at(at);
        let mut total = 0usize;
        loop {
            if rsp.status < 0 {
                error = true;
            } else {
                pieces[nr] = Piece { id, offset: rsp.offset, len: rsp.status as u16 };
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
            id = self.id_at(at + used);
            rsp = self.ring.read(at + used);
            used += 1;
        }
        if error {
            self.stats.errors += 1;
            return Ok(used);
        }
        if total > MAX_FRAME {
            return Err(PeerFault::BadResponse { offset: first.offset, status: first.status });
        }
        self.copy_frame(out, &pieces[..nr], offload)?;
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

    /// The one copy: from the slots' memory into the arena.
    #[inline(always)]
    fn copy_frame(&mut self, out: &mut Arena, pieces: &[Piece], offload: Offload) -> Result<(), PeerFault> {
        let total: usize = pieces.iter().map(|p| p.len as usize).sum();
        let staged = match &self.buffers.staging {
            Some(area) => total <= area.buffer_bytes() && pieces.len() == 1 || area.data_len().copy_only(),
            None => false,
        };
        let Some(mut to) = out.room(total, offload) else {
            return Ok(()); // cannot be: the caller saw room for the longest frame
        };
        for piece in pieces {
            let fault = PeerFault::BadResponse { offset: piece.offset, status: piece.len as i16 };
            let (len, offset) = (piece.len as usize, piece.offset as usize);
            let (dst, rest) = core::mem::take(&mut to).split_at_mut(len);
            to = rest;
            let copied = match (&self.buffers.staging, &self.buffers.pages) {
                (Some(area), _) if staged => {
                    offset + len <= area.buffer_bytes()
                        && area.bytes().copy_out(area.place(piece.id) as usize + offset, dst)
                }
                (_, Some(pages)) => {
                    offset + len <= PAGE_SIZE
                        && pages.bytes().copy_out(piece.id as usize * PAGE_SIZE + offset, dst)
                }
                _ => false,
            };
            if !copied {
                return Err(fault);
            }
        }
        self.stats.frames += 1;
        self.stats.bytes += total as u64;
        if staged {
            self.stats.staged += 1;
        } else {
            self.stats.granted += 1;
        }
        Ok(())
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
        self.ring.free() > 0
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
    pub fn buffers(&self) -> &Buffers<P> {
        &self.buffers
    }

    /// The memory of its frames, to be changed before the first one.
    pub fn buffers_mut(&mut self) -> &mut Buffers<P> {
        &mut self.buffers
    }

    /// Ends the queue: its memory, to be released once the back has closed.
    pub fn into_parts(self) -> (OwnRing<NetRx, P>, Buffers<P>) {
        (self.ring.into_mem(), self.buffers)
    }
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
