//! The back: buffers, and the copies.
//!
//! Invariants: a buffer is in one request at a time; those that wait for the next have `SPARE_BYTES` at most. A guest sees only
//! bytes that its own request read: what an earlier one left in a buffer is not copied to anybody.

use crate::blk::disk::{Buffer, IoMemory};
use crate::blk::path::back::{BackPath, Held, Part, Way, copy_all};
use crate::blk::path::name::PathName;
use crate::platform::{CopyOp, LocalBytes, Platform};
use crate::units::{DomId, PAGE_SIZE};
use crate::wire::grant::GrantStatus;
use alloc::vec::Vec;

/// Bytes of buffers that wait for requests.
const SPARE_BYTES: usize = 4 << 20;

/// The buffers of one queue.
#[derive(Debug, Default)]
pub struct CopyPath {
    spare: Vec<Buffer>,
    spare_bytes: usize,
    ops: Vec<CopyOp>,
}

impl CopyPath {
    fn buffer(&mut self, len: usize) -> Buffer {
        let fitting = self.spare.iter().rposition(|buffer| buffer.capacity() >= len);
        let mut buffer = match fitting {
            Some(at) => {
                let buffer = self.spare.swap_remove(at);
                self.spare_bytes -= buffer.capacity();
                buffer
            }
            None => Buffer::new(len.next_multiple_of(PAGE_SIZE)),
        };
        buffer.set_len(len);
        buffer
    }

    fn put_by(&mut self, buffer: Buffer) {
        if self.spare_bytes + buffer.capacity() <= SPARE_BYTES {
            self.spare_bytes += buffer.capacity();
            self.spare.push(buffer);
        }
    }

    fn lay_out(&mut self, parts: &[Part]) {
        let mut at = 0;
        self.ops.clear();
        self.ops.extend(parts.iter().map(|part| {
            let Part { gref, at: offset, len } = *part;
            let op = CopyOp { gref, offset, len, at, status: GrantStatus::GENERAL_ERROR };
            at += u32::from(len);
            op
        }));
    }
}

impl<P: Platform> BackPath<P> for CopyPath {
    const NAME: PathName = PathName::Copy;

    fn begin(&mut self, p: &P, of: DomId, way: Way, parts: &[Part], _: &mut Held<P>) -> Option<IoMemory> {
        let mut buffer = self.buffer(parts.iter().map(|part| usize::from(part.len)).sum());
        if way == Way::Write {
            self.lay_out(parts);
            if !copy_all(p, of, LocalBytes::FromPeer(buffer.bytes_mut()), &mut self.ops) {
                self.put_by(buffer);
                return None;
            }
        }
        Some(IoMemory::Private(buffer))
    }

    fn end(
        &mut self,
        p: &P,
        of: DomId,
        (way, parts): (Way, &[Part]),
        memory: IoMemory,
        _: &mut Held<P>,
        good: bool,
    ) -> bool {
        let IoMemory::Private(buffer) = memory else { return false };
        let arrived = good && way == Way::Read && {
            self.lay_out(parts);
            copy_all(p, of, LocalBytes::ToPeer(buffer.bytes()), &mut self.ops)
        };
        self.put_by(buffer);
        arrived || good && way == Way::Write
    }
}
