//! `map`: grant copy of the first 128 bytes, map and unmap of the rest, as Linux's netback does for TX.
//!
//! One call maps the pages of a batch. They stay mapped until the port has seen the burst; then [`retire`](BackPath::retire)
//! unmaps them together, and only then may the frames be answered: the path that completes late. RX it does not serve
//! (Linux copies there too).

use crate::net::back::assemble::{BATCH_SLOTS, Todo, TxBatch, bits};
use crate::net::path::BackPath;
use crate::platform::{Access, CopyOp, LocalBytes, PeerMem, Platform};
use crate::port::Arena;
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use crate::wire::grant::GrantStatus;
use alloc::vec::Vec;

/// Bytes of each frame that are copied, never mapped: the headers (Linux's `XEN_NETBACK_TX_COPY_LEN`).
pub const MAP_HEADER_BYTES: u16 = 128;

/// A page of the batch under way, and what of it is wanted.
#[derive(Clone, Copy, Debug)]
struct Piece {
    frame: u8,
    slot: u8,
    /// In the page.
    from: u16,
    len: u16,
    /// In the arena.
    at: u32,
}

/// Pages that are mapped, with the frames that wait for them.
pub struct MapPath<P: Platform> {
    headers: Vec<CopyOp>,
    header_of: Vec<u8>,
    /// The pages of the batch under way: one call maps them all.
    refs: Vec<GrantRef>,
    pieces: Vec<Piece>,
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
            refs: Vec::with_capacity(BATCH_SLOTS),
            pieces: Vec::with_capacity(BATCH_SLOTS),
            mapped: Vec::with_capacity(BATCH_SLOTS),
            waiting: Vec::with_capacity(BATCH_SLOTS),
            next: 0,
        }
    }
}

impl<P: Platform> MapPath<P> {
    /// Maps the batch's pages in one call, and copies what is wanted of them. Where the list is refused, for one bad reference
    /// or because the platform cannot map these pages as one range, page by page: only those frames fail whose pages do.
    fn fetch_pages(&mut self, p: &P, of: DomId, batch: &mut TxBatch, out: &mut Arena) {
        if self.refs.is_empty() {
            return;
        }
        let whole = p.peer().map(of, &self.refs, Access::ReadOnly).ok();
        for (k, piece) in self.pieces.iter().enumerate() {
            let to = &mut out.bytes_mut()[piece.at as usize..][..piece.len as usize];
            let copied = match &whole {
                Some(map) => map.copy_out(k * PAGE_SIZE + piece.from as usize, to),
                None => match p.peer().map(of, &self.refs[k..=k], Access::ReadOnly) {
                    Ok(map) => {
                        let copied = map.copy_out(piece.from as usize, to);
                        self.mapped.push(map);
                        copied
                    }
                    Err(_) => false,
                },
            };
            if !copied {
                batch.fail_slot(piece.frame as usize, piece.slot as usize, out);
            }
        }
        self.mapped.extend(whole);
    }
}

impl<P: Platform> BackPath<P> for MapPath<P> {
    const NAME: &'static str = "map";

    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let mut rest: Todo = 0;
        self.headers.clear();
        self.header_of.clear();
        self.refs.clear();
        self.pieces.clear();
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
                if slot.fetched {
                    at += slot.len as u32;
                    continue;
                }
                let copied = if k == 0 { slot.len.min(MAP_HEADER_BYTES) } else { 0 };
                if slot.gref == GrantRef::NONE.0 && slot.len > 0 {
                    batch.fail_slot(i, k, out);
                    break;
                }
                let gref = GrantRef(slot.gref);
                if copied > 0 {
                    let offset = slot.offset;
                    self.headers.push(CopyOp { gref, offset, len: copied, at, status: GrantStatus::OKAY });
                    self.header_of.push(i as u8);
                }
                if slot.len > copied {
                    self.refs.push(gref);
                    self.pieces.push(Piece {
                        frame: i as u8,
                        slot: k as u8,
                        from: slot.offset + copied,
                        len: slot.len - copied,
                        at: at + copied as u32,
                    });
                }
                at += slot.len as u32;
            }
            // Held even when it failed: its pages are mapped until they are retired.
            batch.held |= 1 << i;
            self.waiting.push(self.next);
            self.next += 1;
        }
        self.fetch_pages(p, of, batch, out);
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
