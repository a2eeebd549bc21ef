//! Tests large segments as a back may send them. Segments with next to no payload become no skb,
//! however frames are received. Of other frames each segment counts if an XDP program must see it.

use super::skbs::softirq;
use super::*;
use crate::halves::Skbs;
use crate::in_place::InPlace;
use pregrant::net::gso::MIN_GSO_SIZE;
use pregrant::wire::netif::{GSO_TYPE_TCPV4, GSO_TYPE_TCPV6};

const LEN: usize = 60_000;
/// The budget of a NAPI poll.
const BUDGET: usize = 64;

/// The result of one call that receives frames.
#[derive(Default)]
struct Took {
    skbs: usize,
    dropped: usize,
    /// Number of frames charged to the budget.
    charged: usize,
}

/// Receives frames whose segments have a given length; the first call does it like the poll.
#[inline(never)]
fn take(path: PathName, offload: Offload, in_place: bool, decides: bool) -> Result<Took> {
    let trial = Trial { path, data_len: 2048, buffers: 0, len: LEN, share: 1, in_pieces: false, in_place };
    let mut ends = Ends::new(whole(), trial.config()?, LEN, false, arena());
    ends.port.offload = offload;
    ends.steps()?;
    ends.announce()?;
    if in_place {
        ends.grow()?;
        // Frames of TCP alone stay in their pages.
        ends.port.head = Some(tcp_header(LEN));
    }
    let mut halves = ends.halves()?;
    // SAFETY: it makes an empty list.
    let to = unsafe { shim::pk_test_received() };
    ends.poll_rx()?;
    let mut skbs = Skbs::new(to, BUDGET, decides, false);
    let (rx, guest) = (&mut halves.rx, &ends.guest);
    let received = match in_place {
        true => {
            let mut pages = InPlace::new(2049, rx, None).ok_or("no memory")?;
            softirq(|| pages.receive(guest, rx, &mut skbs))
        }
        false => softirq(|| rx.take(guest, &mut skbs, 1)),
    };
    received.map_err(|_| "a fault of the back")?;
    let mut took = Took { charged: BUDGET - skbs.left(), ..Took::default() };
    while ends.next(to).is_some() {
        took.skbs += 1;
    }
    // SAFETY: it reads a number of the list's.
    took.dropped = unsafe { shim::pk_test_dropped(to) } as usize;
    ends.whole(halves)?;
    ends.front.release_done(&ends.guest, |_| true);
    ends.front.close(&mut ends.front_bus, None).map_err(|_| "the front does not close")?;
    ends.steps()?;
    if ends.table.lock().left() == 0 { Ok(took) } else { Err("grants are left") }
}

/// Tests all cases.
#[inline(never)]
pub fn play() -> Result<()> {
    use PathName::{Copy, DataRing};
    for gso_type in [GSO_TYPE_TCPV4, GSO_TYPE_TCPV6] {
        for (path, in_place, decides) in [
            (Copy, false, false),
            (Copy, true, false),
            (Copy, false, true),
            (Copy, true, true),
            (DataRing, false, false),
            (DataRing, true, false),
            (DataRing, false, true),
        ] {
            let of = |gso_size| Offload { gso_type, gso_size, csum_blank: true, csum_ok: true };
            for size in [1, MIN_GSO_SIZE - 1] {
                let took = take(path, of(size), in_place, decides)?;
                if took.skbs > 0 || took.dropped == 0 || took.charged != took.dropped {
                    return Err("segments of next to nothing become skbs, or are not counted");
                }
            }
            let took = take(path, of(MIN_GSO_SIZE), in_place, decides)?;
            match decides {
                true if (took.skbs, took.dropped, took.charged) != (1, 0, BUDGET) => {
                    return Err("segments that a program is to see are not charged to the poll");
                }
                false if took.skbs < 2 || took.dropped > 0 || took.charged != took.skbs => {
                    return Err("large segments are lost, or charged to the poll for no program");
                }
                _ => {}
            }
        }
    }
    Ok(())
}
