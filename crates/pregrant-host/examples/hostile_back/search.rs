//! A back that reads everything that its guest has granted to it, whether a ring names it or not
//! (XSA-403).
//!
//! ```text
//!   frames in several slots, without an answer --> each reference there may be --grant copy--> a page: is MARKER in it?
//! ```
//! The guest sends frames whose payload is in pages that have the marker, too, in bytes that are
//! not sent (`rig/beside.c`). A front that copies shows none of it; one that lends its pages does.

use super::{Result, Vif};
use pregrant::platform::{CopyOp, LocalBytes, PeerMem, Platform};
use pregrant::ring::{RingMem, Word};
use pregrant::wire::grant::GrantStatus;
use pregrant::wire::netif::{RSP_OKAY, TxRequest};
use pregrant::xenbus::XenbusState;
use pregrant::xenstore::Transport;
use pregrant::{GrantRef, PAGE_SIZE};
use std::time::Duration;

const MARKER: &[u8; 16] = b"pregrant-beside-";
/// References that a guest can have, as Xen has it by default.
const REFS: u32 = 32768;
/// Number of pages that are mapped at once.
const AT_ONCE: usize = 64;
/// How long frames are collected before their pages are read.
const FRAMES: Duration = Duration::from_secs(5);

/// Pages that a search found.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    /// Pages that could be read.
    pub pages: usize,
    pub marked: usize,
}

impl<P: Platform, T: Transport> Vif<'_, P, T> {
    /// Reads all that is granted, while frames have no answer; answers them then.
    pub fn search(&mut self) -> Result<()> {
        let mut frames = self.pieces()?;
        let first = frames[0].gref;
        let until = self.now() + FRAMES.as_nanos() as u64;
        while self.now() < until {
            self.take_what_is_there(&mut frames)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut seen = Seen::default();
        let mut has_first = first == 0;
        let mut bytes = vec![0; AT_ONCE * PAGE_SIZE];
        for refs in (1..REFS).collect::<Vec<_>>().chunks(AT_ONCE) {
            let op = |(k, gref): (usize, &u32)| CopyOp {
                gref: GrantRef(*gref),
                offset: 0,
                len: PAGE_SIZE as u16,
                at: (k * PAGE_SIZE) as u32,
                status: GrantStatus(i16::MIN),
            };
            let mut ops: Vec<CopyOp> = refs.iter().enumerate().map(op).collect();
            self.p.peer().copy(self.device.id().front, LocalBytes::FromPeer(&mut bytes), &mut ops)?;
            for (op, page) in ops.iter().zip(bytes.chunks(PAGE_SIZE)) {
                if op.status == GrantStatus::OKAY {
                    seen.pages += 1;
                    seen.marked += usize::from(page.windows(MARKER.len()).any(|bytes| bytes == MARKER));
                    has_first |= op.gref.0 == first;
                }
            }
        }
        if !has_first {
            return Err(format!("of {} pages none is the first of a frame, grant {first}", seen.pages).into());
        }
        self.searched = Some(seen);
        frames.iter().for_each(|req| self.answer_tx(req.id, RSP_OKAY));
        Ok(())
    }

    /// Requests of frames that the front has sent.
    fn take_what_is_there(&mut self, to: &mut Vec<TxRequest>) -> Result<()> {
        while self.tx.load(Word::ReqProd) != self.tx_cons {
            to.push(self.take_tx()?);
        }
        if self.state()? != XenbusState::Connected {
            return Err("the front closes".into());
        }
        self.tx.store(Word::ReqEvent, self.tx_cons.wrapping_add(1));
        Ok(())
    }
}
