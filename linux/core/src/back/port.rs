//! The remote side of a queue: the net_device.

use super::shim::{self, Frame, Port};
use crate::shim::pk_skb_read;
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads, Room};

/// `PREGRANT_CSUM_BLANK`, `PREGRANT_CSUM_OK`.
const BLANK: u32 = 1;
const OK: u32 = 2;

/// The port of a queue: C has it.
pub struct Skbs(pub Port);
// SAFETY: one thread at a time calls it; C locks what senders share with it.
unsafe impl Send for Skbs {}

/// The bits of C for the checksum of a frame.
fn csum(offload: &Offload) -> u32 {
    u32::from(offload.csum_blank) * BLANK + u32::from(offload.csum_ok) * OK
}

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
            unsafe { shim::pk_frame_from_guest(self.0, bytes, frame.len(), csum(of), gso_type, gso_size) };
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
            let offload = Offload {
                csum_blank: frame.csum & BLANK != 0,
                csum_ok: frame.csum & OK != 0,
                gso_type: frame.gso_type as u8,
                gso_size: frame.gso_size as u16,
            };
            let to = into.free_by_pages(frame.len as usize, offload);
            let sent = to.is_some();
            if let Some(to) = to {
                // SAFETY: C has counted the skb's bytes; they fit.
                unsafe { pk_skb_read(skb, 0, to.as_mut_ptr(), to.len()) };
            }
            // SAFETY: of `pk_frame_next`, and freed here alone.
            unsafe { shim::pk_frame_done(self.0, skb, sent) };
        }
        into.len() - before
    }

    fn held(&self) -> usize {
        // SAFETY: the queue lives.
        unsafe { shim::pk_frames_waiting(self.0) as usize }
    }
}
