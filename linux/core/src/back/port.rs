//! The remote side of a queue: the net_device.
//!
//! ```text
//!   skb of the guest's frame <--copied-- the core's burst    a long one stays there: the next burst is elsewhere
//!   skb for the guest --short: copied--> the core's burst
//!                     --Loan: head copied, the rest is read where the skb has it--> the guest's pages
//! ```

use super::shim::{self, Port};
use crate::halves::{csum_of, offload_of};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr::NonNull;
use pregrant::burst_buffer::BurstBuffer;
use pregrant::port::{
    ARENA_BYTES, Arena, BURST_FRAMES, Burst, FramePort, Lender, LentPiece, Loan, Offloads, Room,
};

/// Frames of at most this many bytes are copied to the burst, each within a page: one grant copy.
/// Where the skb has them they may cross one, and to lend them costs more than the copy.
const COPIED: usize = 2048;
/// Bytes of a longer one that are copied too: all headers.
const HEAD: usize = 256;

/// The port of a queue: C has it.
pub struct Skbs {
    port: Port,
    lender: Arc<dyn Lender>,
    /// The last burst had a long frame.
    pub had_long: bool,
}
// SAFETY: one poll at a time calls it; C locks what senders share with it.
unsafe impl Send for Skbs {}

impl Skbs {
    #[inline(never)]
    pub fn new(port: Port) -> Self {
        Self { port, lender: Arc::new(LentSkbs(port)), had_long: false }
    }

    /// Memory for the next burst, of which no skb has a part. None: there is only the core's own.
    pub fn next_burst(&self) -> Option<BurstBuffer> {
        // SAFETY: the queue lives.
        let at = NonNull::new(unsafe { shim::pk_burst_next(self.port, ARENA_BYTES) })?;
        // SAFETY: so many initialised bytes, which live as long as the queue. Skbs only read those
        // that the next call does not return.
        Some(unsafe { BurstBuffer::over(at, ARENA_BYTES, Box::new(())) })
    }
}

/// The skbs whose frames are in the core's burst.
struct LentSkbs(Port);
// SAFETY: the owner of the burst calls it, whose port this is.
unsafe impl Send for LentSkbs {}
// SAFETY: as above.
unsafe impl Sync for LentSkbs {}

impl Lender for LentSkbs {
    fn read(&self, read: &mut dyn FnMut(&[LentPiece<'_>])) {
        let mut n = 0;
        // SAFETY: the queue lives; its list has so many pieces, of skbs that stay until `release`.
        read(unsafe { core::slice::from_raw_parts(shim::pk_lent(self.0, &mut n), n) });
    }

    fn release(&self) {
        // SAFETY: the queue lives, and the pieces are read no more.
        unsafe { shim::pk_lent_end(self.0) };
    }

    fn may_wait(&self) -> bool {
        true
    }
}

impl FramePort for Skbs {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }

    fn room(&mut self) -> Room {
        // SAFETY: the queue lives as long as its device, which outlives this.
        if unsafe { shim::pk_port_is_up(self.port) } { Room::Now } else { Room::UNKNOWN }
    }

    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        for (frame, offload) in frames.iter() {
            let (of, bytes) = (&offload, frame.as_ptr());
            let (gso_type, gso_size) = (of.gso_type.into(), of.gso_size.into());
            // SAFETY: the bytes are copied, or stay as they are while the skb lives: `had_long`.
            self.had_long |= unsafe {
                shim::pk_frame_from_guest(self.port, bytes, frame.len(), csum_of(of), gso_type, gso_size)
            };
        }
        frames.frames.len()
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let (before, mut n) = (into.len(), 0);
        let room = ARENA_BYTES.saturating_sub(into.used_bytes());
        // SAFETY: the queue lives.
        let places = unsafe { shim::pk_frames_take(self.port, BURST_FRAMES - before, room, &mut n) };
        if n == 0 {
            return 0;
        }
        // SAFETY: of C, which has filled in so many, and leaves them to this until the next call.
        let frames = unsafe { core::slice::from_raw_parts_mut(places, n) };
        let takes_lent = into.takes_lent();
        for frame in &mut *frames {
            let offload = offload_of(frame.csum.into(), frame.gso_type.into(), frame.gso_size.into());
            let len = frame.len as usize;
            frame.lends = len > COPIED && takes_lent;
            let place =
                if frame.lends { into.room(len, offload) } else { into.free_for_grants(len, offload) };
            match place {
                Some(_) => frame.at = into.desc(into.len() - 1).at,
                // Not reached: C took what fits.
                None => frame.len = 0,
            }
        }
        let burst = into.bytes_mut().as_mut_ptr();
        // SAFETY: these frames have their places in the burst, and C frees their skbs.
        let lent = unsafe { shim::pk_frames_fill(self.port, places, n, burst, HEAD) };
        if lent > 0 {
            let cuts = frames.iter().filter(|frame| frame.len > 0).map(|frame| frame.cut);
            (before..).zip(cuts).filter(|(_, cut)| *cut > 0).for_each(|(i, cut)| into.cut(i, cut));
            into.lend(Loan::new(Arc::clone(&self.lender)));
        }
        into.len() - before
    }

    fn held(&self) -> usize {
        // SAFETY: the queue lives.
        unsafe { shim::pk_frames_waiting(self.port) as usize }
    }
}
