//! The back of `copy`: buffers, and the copies.
//!
//! ```text
//!   begin: a buffer --.                                             .--deliver: those of all reads that the disk did together
//!   begin: a buffer --+--fetch: the bytes of all writes of a batch--+--> disk
//! ```
//! Invariants: a buffer belongs to one request at a time; unused buffers have at most
//! `SPARE_BYTES`. A guest sees only bytes that its own request read: what an earlier request left
//! in a buffer is never copied to a guest.

use crate::blk::disk::{Buffer, IoMemory};
use crate::blk::path::back::{BackPath, Direction, Held, PageTransfer, Part};
use crate::blk::path::path_name::PathName;
use crate::platform::{CopyBatch, CopyOp, LocalBytes, PeerMem, Platform};
use crate::units::{DomId, PAGE_SIZE};
use crate::wire::blkif::{INDIRECT_PAGES_MAX, SEGMENTS_PER_INDIRECT_PAGE};
use crate::wire::grant::GrantStatus;
use alloc::vec::Vec;
use core::array::from_fn;

/// Largest number of bytes of unused buffers.
const SPARE_BYTES: usize = 4 << 20;
/// Largest number of requests whose data is copied in one call.
const TOGETHER: usize = 16;

/// Number of buffer sizes: one page, two, four, ... up to the longest request.
const SIZES: usize = 1 + (INDIRECT_PAGES_MAX * SEGMENTS_PER_INDIRECT_PAGE).ilog2() as usize;

/// The buffers of one queue.
#[derive(Debug, Default)]
pub struct CopyPath {
    /// Unused buffers, by size.
    spare: [Vec<Buffer>; SIZES],
    spare_bytes: usize,
    ops: Vec<CopyOp>,
}

/// The size of the buffer for `len` bytes, and its index.
fn size_of(len: usize) -> (usize, usize) {
    let pages = len.div_ceil(PAGE_SIZE).next_power_of_two();
    (pages * PAGE_SIZE, (pages.ilog2() as usize).min(SIZES - 1))
}

impl CopyPath {
    fn buffer(&mut self, len: usize) -> Buffer {
        let (size, number) = size_of(len);
        let mut buffer = match self.spare[number].pop() {
            Some(buffer) => {
                self.spare_bytes -= buffer.capacity();
                buffer
            }
            None => Buffer::new(size),
        };
        buffer.set_len(len);
        buffer
    }

    fn put_by(&mut self, buffer: Buffer) {
        if self.spare_bytes + buffer.capacity() <= SPARE_BYTES {
            self.spare_bytes += buffer.capacity();
            self.spare[size_of(buffer.capacity()).1].push(buffer);
        }
    }

    /// Copies between the guest's pages and the buffers of those requests of `batch` that have this
    /// direction: several requests per call.
    fn copy<'a, P: Platform>(
        &mut self,
        p: &P,
        of: DomId,
        way: Direction,
        batch: &mut [PageTransfer],
        parts: impl Fn(u32) -> &'a [Part],
    ) {
        self.ops.clear();
        let goes = |transfer: &PageTransfer| {
            transfer.good && transfer.way == way && matches!(transfer.memory, IoMemory::Private(_))
        };
        for transfer in batch.iter().filter(|transfer| goes(transfer)) {
            let mut at = 0;
            self.ops.extend(parts(transfer.place).iter().map(|part| {
                let Part { gref, at: offset, len } = *part;
                // An operation that a platform does not reach has failed.
                let op = CopyOp { gref, offset, len, at, status: GrantStatus::GENERAL_ERROR };
                at += u32::from(len);
                op
            }));
        }
        let mut left = &mut self.ops[..];
        let mut going = batch.iter_mut().filter(|transfer| goes(transfer));
        loop {
            let mut there = 0;
            let mut calls: [CopyBatch<'_>; TOGETHER] = from_fn(|_| {
                let Some(PageTransfer { place, memory: IoMemory::Private(buffer), .. }) = going.next() else {
                    return CopyBatch { local: LocalBytes::ToPeer(&[]), ops: &mut [] };
                };
                there += 1;
                let (ops, rest) = core::mem::take(&mut left).split_at_mut(parts(*place).len());
                left = rest;
                let local = match way {
                    Direction::Write => LocalBytes::FromPeer(buffer.bytes_mut()),
                    Direction::Read => LocalBytes::ToPeer(buffer.bytes()),
                };
                CopyBatch { local, ops }
            });
            // An operation that could not be tried keeps its status.
            let _ = p.peer().copy_each(of, &mut calls[..there]);
            if there < TOGETHER {
                break;
            }
        }
        let mut ops = &self.ops[..];
        for transfer in batch.iter_mut().filter(|transfer| goes(transfer)) {
            let (own, rest) = ops.split_at(parts(transfer.place).len());
            transfer.good = own.iter().all(|op| op.status.is_okay());
            ops = rest;
        }
    }
}

impl<P: Platform> BackPath<P> for CopyPath {
    const NAME: PathName = PathName::Copy;

    fn begin(&mut self, _: &P, _: DomId, _: Direction, parts: &[Part], _: &mut Held<P>) -> Option<IoMemory> {
        let buffer = self.buffer(parts.iter().map(|part| usize::from(part.len)).sum());
        Some(IoMemory::Private(buffer))
    }

    fn fetch<'a>(&mut self, p: &P, of: DomId, batch: &mut [PageTransfer], parts: impl Fn(u32) -> &'a [Part]) {
        self.copy(p, of, Direction::Write, batch, parts);
    }

    fn deliver<'a>(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut [PageTransfer],
        parts: impl Fn(u32) -> &'a [Part],
    ) {
        self.copy(p, of, Direction::Read, batch, parts);
    }

    fn end(&mut self, memory: IoMemory, _: &mut Held<P>) {
        if let IoMemory::Private(buffer) = memory {
            self.put_by(buffer);
        }
    }
}
