//! The remote side of a queue: the net_device.
//!
//! ```text
//!   skb of the guest's frame <--copied-- the core's burst
//!   skb for the guest --short: copied--> the core's burst
//!                     --Loan: head copied, the rest is read where the skb has it--> the guest's pages
//! ```

use super::shim::{self, Frame, Port};
use crate::halves::{csum_of, offload_of};
use alloc::sync::Arc;
use pregrant::port::{Arena, Burst, FramePort, Lender, LentPiece, Loan, Offloads, Room};

/// Frames of at most this many bytes are copied to the burst, like the headers of longer ones.
const HEAD: usize = 256;

/// The port of a queue: C has it.
pub struct Skbs {
    port: Port,
    lender: Arc<dyn Lender>,
}
// SAFETY: one poll at a time calls it; C locks what senders share with it.
unsafe impl Send for Skbs {}

impl Skbs {
    pub fn new(port: Port) -> Self {
        Self { port, lender: Arc::new(LentSkbs(port)) }
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
            // SAFETY: the bytes are copied.
            unsafe {
                shim::pk_frame_from_guest(self.port, bytes, frame.len(), csum_of(of), gso_type, gso_size)
            };
        }
        frames.frames.len()
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let before = into.len();
        let mut lent = false;
        while into.has_room() {
            let mut frame = Frame::default();
            // SAFETY: the queue lives.
            let skb = unsafe { shim::pk_frame_next(self.port, &mut frame) };
            if skb.is_null() {
                break;
            }
            let offload = offload_of(frame.csum, frame.gso_type, frame.gso_size);
            let place = into.len();
            if frame.len as usize > HEAD
                && into.takes_lent()
                && let Some(to) = into.room(frame.len as usize, offload).map(<[u8]>::as_mut_ptr)
            {
                let at = into.desc(place).at;
                // SAFETY: of `pk_frame_next`; there is room for its head.
                let cut = unsafe { shim::pk_frame_lend(self.port, skb, at, to, HEAD) };
                if cut > 0 {
                    into.cut(place, cut as u16);
                }
                if cut >= 0 {
                    lent = true;
                    continue;
                }
                into.take_back();
            }
            let to = into.free_by_pages(frame.len as usize, offload).map(<[u8]>::as_mut_ptr);
            // SAFETY: of `pk_frame_next`, and freed here alone; there is room for its bytes, which
            // C has counted.
            unsafe { shim::pk_frame_done(self.port, skb, to.unwrap_or(core::ptr::null_mut())) };
        }
        if lent {
            into.lend(Loan::new(Arc::clone(&self.lender)));
        }
        into.len() - before
    }

    fn held(&self) -> usize {
        // SAFETY: the queue lives.
        unsafe { shim::pk_frames_waiting(self.port) as usize }
    }
}
