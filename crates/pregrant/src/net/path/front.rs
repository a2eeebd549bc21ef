//! What a path does at the front: it has memory for a queue's ids, and knows what the back has to be told of it.
//!
//! ```text
//!   TX: frame --place--> bytes of an id --grant--> the request's reference       answer --settle--> the id is free
//!   RX: grant --> the request's reference        answer --holds--> which path's memory the frame is in --start--> bytes
//! ```
//! A path is asked for runs of frames, so that what is called for a frame is known where it is compiled. It never touches
//! the ring: requests and answers are the queue's. The memory is shared: what a back wrote there counts as a copy only.

use crate::error::PlatformError;
use crate::net::front::regions::{Region, Regions};
use crate::net::stats::Counted;
use crate::platform::Platform;

/// A path's memory, for one direction of one queue.
pub trait FrontPath<P: Platform> {
    /// Where the frames that it carries are counted.
    const COUNTED: Counted;
    /// Requests carry a reference of its memory, or its frame; else 0.
    const GRANTS: bool = true;
    /// TX: flags of each of its requests.
    const TX_FLAGS: u16 = 0;
    /// RX: its memory is pages that any slot may have, so that one can be lent while its slot has another.
    const LENDS: bool = false;

    /// Ids that have memory.
    fn ids(&self) -> u32;
    /// Bytes that one id has.
    fn slot_bytes(&self) -> usize;
    /// Whether it carries frames of any length, over several slots where they are long; else those that fit one slot.
    fn carries_all(&self) -> bool;
    /// The shared memory.
    fn bytes(&self) -> &Region<P>;
    /// Where the bytes of `id` start in the memory. RX: of a page that is posted, `id` is the page.
    fn start(&self, id: u16) -> usize;
    /// Where a frame of `len` bytes is put: how far behind the start, which the request says.
    #[inline(always)]
    fn offset(&self, id: u16, len: usize) -> usize {
        let _ = (id, len);
        0
    }
    /// The reference that a request with `id` carries, granted now where grants are per frame.
    fn grant(&mut self, p: &P, id: u16) -> Result<u32, PlatformError>;
    /// The request of `id` is answered: ends its grant where grants are per frame. False: the peer still uses the memory, so
    /// the id is not free; try again later.
    #[inline(always)]
    #[must_use]
    fn settle(&mut self, p: &P, id: u16) -> bool {
        let _ = (p, id);
        true
    }
    /// Whether the first slot of a frame over several is in this memory, though another path carries the others.
    #[inline(always)]
    fn takes_first(&self) -> bool {
        false
    }
    /// TX: a longer frame, which another path carries, begins with `id`.
    #[inline(always)]
    fn head(&mut self, id: u16, frame: &[u8]) {
        let _ = (id, frame);
    }
    /// RX: whether a frame of so many bytes, with those left free ahead of them, and slots is in this memory.
    #[inline(always)]
    fn holds(&self, total: usize, nr_slots: usize) -> bool {
        self.carries_all() || nr_slots == 1 && total <= self.slot_bytes()
    }
    /// Gives the memory back.
    fn release(self, p: &P, regions: &mut Regions<P>);
}
