//! `map`: grant copy of the first 128 octets, map and unmap of the rest, as Linux's netback does for TX.
//!
//! Pages stay mapped until the port has seen the burst; then [`retire`](BackPath::retire) unmaps them together, and only
//! then may the frames be answered: the path that completes late. RX it does not serve (Linux copies there too).

use super::BackPath;
use crate::net::back::assemble::{BATCH_SLOTS, Todo, TxBatch, bits};
use crate::platform::{Access, CopyOp, LocalBytes, PeerMem, Platform};
use crate::port::Arena;
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef};
use crate::wire::grant::GrantStatus;
use alloc::vec::Vec;

/// Octets of each frame that are copied, never mapped: the headers (Linux's `XEN_NETBACK_TX_COPY_LEN`).
pub const MAP_HEADER_BYTES: u16 = 128;

/// Pages that are mapped, with the frames that wait for them.
pub struct MapPath<P: Platform> {
    headers: Vec<CopyOp>,
    header_of: Vec<u8>,
    mapped: Vec<<P::Peer as PeerMem>::Map>,
    /// Numbers of the held frames, oldest first.
    waiting: Vec<u64>,
    next: u64,
}

impl<P: Platform> Default for MapPath<P> {
    fn default() -> Self {
        Self {
            headers: Vec::with_capacity(64),
            header_of: Vec::with_capacity(64),
            mapped: Vec::with_capacity(BATCH_SLOTS),
            waiting: Vec::with_capacity(BATCH_SLOTS),
            next: 0,
        }
    }
}

impl<P: Platform> BackPath<P> for MapPath<P> {
    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let mut rest: Todo = 0;
        self.headers.clear();
        self.header_of.clear();
        for i in bits(todo) {
            let desc = out.desc(i);
            let slots = batch.frames[i].nr_slots as usize;
            if desc.len <= MAP_HEADER_BYTES as u32 {
                rest |= 1 << i;
                continue;
            }
            let mut at = desc.at;
            for k in 0..slots {
                let slot = batch.slots_of(i)[k];
                let copied = if k == 0 { slot.len.min(MAP_HEADER_BYTES) } else { 0 };
                if slot.gref == GrantRef::NONE.0 && slot.len > 0 {
                    batch.fail_slot(i, k, out);
                    break;
                }
                if copied > 0 {
                    let (gref, offset) = (GrantRef(slot.gref), slot.offset);
                    self.headers.push(CopyOp { gref, offset, len: copied, at, status: GrantStatus::OKAY });
                    self.header_of.push(i as u8);
                }
                if slot.len > copied {
                    let Ok(map) = p.peer().map(of, &[GrantRef(slot.gref)], Access::ReadOnly) else {
                        batch.fail_slot(i, k, out);
                        break;
                    };
                    let to = (at + copied as u32) as usize..(at + slot.len as u32) as usize;
                    let from = slot.offset as usize + copied as usize;
                    let fits = map.copy_out(from, &mut out.bytes_mut()[to]);
                    debug_assert!(fits, "offset + len <= 4096 was checked when the frame was assembled");
                    self.mapped.push(map);
                }
                at += slot.len as u32;
            }
            // Held even when it failed: its pages are mapped until they are retired.
            batch.held |= 1 << i;
            self.waiting.push(self.next);
            self.next += 1;
        }
        if !self.headers.is_empty() {
            let tried = p.peer().copy(of, LocalBytes::FromPeer(out.bytes_mut()), &mut self.headers).is_ok();
            for (op, &i) in self.headers.iter().zip(&self.header_of) {
                if !tried || op.status != GrantStatus::OKAY {
                    batch.fail_slot(i as usize, 0, out);
                }
            }
        }
        rest
    }

    fn retire(&mut self, p: &P, done: &mut Vec<u64>) {
        p.peer().unmap(&mut self.mapped);
        done.append(&mut self.waiting);
    }
}
