//! A path at the front: memory for a queue's ids, and what the requests announce of it to the back.
//!
//! ```text
//!   TX: frames --send_run--> bytes of ids --place--> the requests' references       answer --settle--> the id is free
//!   RX: place --> the request's reference        answer --holds--> which path's memory the frame is in --receive--> bytes
//! ```
//! A path is called once for a run of frames, so that the work for each frame is compiled inline.
//! It writes requests to the ring and does not publish them. The back can write to the memory: only
//! a copy of it is parsed. RX memory that no slot has, and that a response names by its flags, is a
//! [`AnyFlaggedPath`](super::AnyFlaggedPath).

use crate::error::PlatformError;
use crate::net::ahead::SHORT;
use crate::net::front::regions::Region;
use crate::net::front::tx_slots::{Place, TxSlots, fill, flags_of};
use crate::net::path::path_name::PathName;
use crate::platform::Platform;
use crate::port::{BURST_FRAMES, Frames, Piece, Source};
use crate::shm::SharedBytes;
use crate::wire::netif::TxRequest;

/// How far a path came with a burst of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// Number of frames that are on the ring now, from the burst's first on. 0: the first one is
    /// not for this path, or the ring is full.
    Frames(usize),
    /// The path's own memory has no room for the first frame, which the path would carry.
    Full,
}

/// The front's memory of a path, for one direction of one queue.
pub trait FrontPath<P: Platform> {
    /// The path's name.
    const NAME: PathName;
    /// TX: flags that each request of this path has.
    const TX_FLAGS: u16 = 0;
    /// True if the memory consists of pages that requests name by reference or frame number. RX:
    /// any slot can then use any page, so that a consumer can keep one page while the slot gets
    /// another.
    const IN_PAGES: bool = false;
    /// RX: the memory consists of buffers that stay with their slots.
    const IN_BUFFERS: bool = false;

    /// Bytes of memory that each id has; 0: ids have no memory of their own.
    fn slot_bytes(&self) -> usize;
    /// The shared memory of all ids.
    fn bytes(&self) -> &Region<P>;
    /// RX: `len` received bytes of a slot's memory, from byte `at` on.
    #[inline(always)]
    fn receive(&self, at: usize, len: usize) -> Option<Piece<'_>> {
        self.bytes().piece(at, len)
    }
    /// RX: prefetches `len` bytes of the shared memory, from byte `at` on.
    #[inline(always)]
    fn prefetch(&self, at: usize, len: usize) {
        self.bytes().prefetch_read(at, len);
    }
    /// Offset in the shared memory at which the bytes of `id` start. RX with pages: `id` is the
    /// page's number.
    fn start(&self, id: u16) -> usize;
    /// Offset from [`start`](Self::start) at which a frame of `len` bytes is put; the request
    /// carries this offset.
    #[inline(always)]
    fn offset(&self, id: u16, len: usize) -> usize {
        let _ = (id, len);
        0
    }
    /// The reference that a request with `id` carries. If grants are per frame, the id's memory is
    /// granted now. On RX with pages `id` is the number of the page that is posted.
    fn place(&mut self, p: &P, id: u16) -> Result<u32, PlatformError>;
    /// Called when the request of `id` is answered: ends the grant of its memory if grants are per
    /// frame. False: the peer still uses the memory, so the id is not free; try again later.
    #[inline(always)]
    #[must_use]
    fn settle(&mut self, p: &P, id: u16) -> bool {
        let _ = (p, id);
        true
    }
    /// True if this memory can hold a frame of `total` bytes (with the headroom) in `nr_slots`
    /// slots.
    fn holds(&self, total: usize, nr_slots: usize) -> bool;
}

impl<P: Platform> TxSlots<P> {
    /// Sends frames from the first on by `path`, as long as they fit in one slot, have more than
    /// `shorter` bytes and need no extra info. An error of the platform (no grant is free) ends the
    /// run; it is returned if no frame was sent before.
    ///
    /// It is compiled for each path separately, and called once for each run.
    #[inline(never)]
    pub(crate) fn send_run<F: FrontPath<P>>(
        &mut self,
        p: &P,
        path: &mut F,
        frames: &impl Frames,
        shorter: usize,
    ) -> Result<Sent, PlatformError> {
        let limit = path.slot_bytes();
        let room = (self.room() as usize).min(frames.count()).min(BURST_FRAMES);
        let mut n = 0;
        let mut bytes = 0;
        // First pass: ids, places and requests, and the slots' cache lines asked for in the
        // exclusive state.
        for frame in frames.first(room) {
            let (len, offload) = (frame.len(), frame.offload());
            if len <= shorter || len > limit || offload.gso_type != 0 {
                break;
            }
            let id = self.free.take();
            let gref = match path.place(p, id) {
                Ok(gref) => gref,
                Err(e) => {
                    self.free.give(id);
                    if n == 0 {
                        return Err(e);
                    }
                    break;
                }
            };
            let offset = path.offset(id, len);
            let at = path.start(id) + offset;
            if len <= SHORT {
                path.bytes().prefetch_write(at, len);
            }
            let flags = flags_of(offload) | F::TX_FLAGS;
            let req = TxRequest { gref, offset: offset as u16, flags, id, size: len as u16 };
            self.places[n] = Place { at: at as u32, request: req.to_words() };
            self.note_sent(id);
            bytes += len as u64;
            n += 1;
        }
        fill(&self.ring, path.bytes(), frames, &self.places[..n]);
        self.ring.advance(n as u32);
        self.stats.bytes += bytes;
        self.stats.handed_on_by(F::NAME, n as u64);
        // The next burst's lines, as many as this one had, begin to come while this one's stores
        // drain into the fence of `publish`.
        if let Some(last) = n.checked_sub(1).and_then(|last| frames.get(last))
            && last.len() <= SHORT
        {
            for k in 0..self.free.known().min(n as u32) {
                let (id, len) = (self.free.peek(k), last.len());
                path.bytes().prefetch_write(path.start(id) + path.offset(id, len), len);
            }
        }
        Ok(Sent::Frames(n))
    }
}
