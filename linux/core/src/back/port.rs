//! The remote side of a queue: the net_device.

use super::shim::{self, Frame, Port};
use crate::halves::{csum_of, offload_of};
use pregrant::port::{Arena, Burst, FramePort, Offloads, Room};

/// The port of a queue: C has it.
pub struct Skbs(pub Port);
// SAFETY: one thread at a time calls it; C locks what senders share with it.
unsafe impl Send for Skbs {}

impl FramePort for Skbs {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }

    fn room(&mut self) -> Room {
        // SAFETY: the queue lives as long as its device, which outlives this.
        if unsafe { shim::pk_port_is_up(self.0) } { Room::Now } else { Room::UNKNOWN }
    }

    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        for (frame, offload) in frames.iter() {
            let (of, bytes) = (&offload, frame.as_ptr());
            let (gso_type, gso_size) = (of.gso_type.into(), of.gso_size.into());
            // SAFETY: the bytes are copied.
            unsafe { shim::pk_frame_from_guest(self.0, bytes, frame.len(), csum_of(of), gso_type, gso_size) };
        }
        frames.frames.len()
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let before = into.len();
        while into.has_room() {
            let mut frame = Frame::default();
            // SAFETY: the queue lives.
            let skb = unsafe { shim::pk_frame_next(self.0, &mut frame) };
            if skb.is_null() {
                break;
            }
            let offload = offload_of(frame.csum, frame.gso_type, frame.gso_size);
            let to = into.free_by_pages(frame.len as usize, offload).map(<[u8]>::as_mut_ptr);
            // SAFETY: of `pk_frame_next`, and freed here alone; there is room for its bytes, which
            // C has counted.
            unsafe { shim::pk_frame_done(self.0, skb, to.unwrap_or(core::ptr::null_mut())) };
        }
        into.len() - before
    }

    fn held(&self) -> usize {
        // SAFETY: the queue lives.
        unsafe { shim::pk_frames_waiting(self.0) as usize }
    }
}
