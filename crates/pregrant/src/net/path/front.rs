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

/// What became of the first frames of a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// So many are on the ring. 0: the first is none for this path, or there is no room on the
    /// ring.
    Frames(usize),
    /// The path's own memory has no room for the first, which would go by it.
    Full,
}

/// A path's memory, for one direction of one queue.
pub trait FrontPath<P: Platform> {
    /// Which path.
    const NAME: PathName;
    /// TX: flags of each of its requests.
    const TX_FLAGS: u16 = 0;
    /// Its memory is pages, of which requests carry a reference, or the frame. RX: any slot may
    /// have any of them, so that one can be lent while its slot has another.
    const IN_PAGES: bool = false;
    /// RX: its memory is buffers that stay with their slots.
    const IN_BUFFERS: bool = false;

    /// Bytes that one id has; 0: it has none of its own.
    fn slot_bytes(&self) -> usize;
    /// The shared memory.
    fn bytes(&self) -> &Region<P>;
    /// RX: so many received bytes of a slot's memory, from the `at`-th on.
    #[inline(always)]
    fn receive(&self, at: usize, len: usize) -> Option<Piece<'_>> {
        self.bytes().piece(at, len)
    }
    /// RX: asks for these lines.
    #[inline(always)]
    fn prefetch(&self, at: usize, len: usize) {
        self.bytes().prefetch_read(at, len);
    }
    /// Where the bytes of `id` start in the memory. RX: of a page that is posted, `id` is the page.
    fn start(&self, id: u16) -> usize;
    /// The offset from the start at which a frame of `len` bytes is put, as the request says.
    #[inline(always)]
    fn offset(&self, id: u16, len: usize) -> usize {
        let _ = (id, len);
        0
    }
    /// The reference that a request with `id` carries: the id's memory is granted now where grants
    /// are per frame. RX: of a page that is posted, `id` is the page.
    fn place(&mut self, p: &P, id: u16) -> Result<u32, PlatformError>;
    /// The request of `id` is answered: ends its grant where grants are per frame. False: the peer
    /// still uses the memory, so the id is not free; try again later.
    #[inline(always)]
    #[must_use]
    fn settle(&mut self, p: &P, id: u16) -> bool {
        let _ = (p, id);
        true
    }
    /// Whether a frame of so many bytes, with those left free ahead of them, and slots is in this
    /// memory.
    fn holds(&self, total: usize, nr_slots: usize) -> bool;
}

impl<P: Platform> TxSlots<P> {
    /// Frames from the first that fit a slot of `path`, but none of at most `shorter` bytes, and
    /// none that needs an extra info. An error of the platform (no grant to be had) ends the run,
    /// and is returned if it is the first frame's.
    ///
    /// Compiled for each path apart, and called once a run.
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
