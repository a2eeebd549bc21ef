//! Batched grant copy: `process_vm_readv` and `process_vm_writev`, one call for a batch.
//!
//! ```text
//!   ops -> check, hold the grants (adjacent ops share) -> one system call -> statuses -> let the grants go
//! ```
//! Several batches, each with local bytes of its own, share a call if they have the same direction.
//!
//! Few operations (below [`FEW`]) are cheaper by pread and pwrite on the peer's memfd. These are
//! also used if the kernel forbids `process_vm_*` (another user, a user namespace), if the peer has
//! no process at the moment, and if the call stopped half way because the peer's process unmapped a
//! page: on Xen a domain cannot take its pages away from a copy. It is never a plain memcpy. WHY
//! unsafe: rustix has no `process_vm_*`, libc has.
//!
//! What a peer may do: name any grant, and write the bytes while they are copied. It cannot make a
//! copy leave its memory: frame numbers are checked against it, and operations against their page
//! and the local bytes.
#![expect(unsafe_code, reason = "process_vm_readv and process_vm_writev")]

use crate::peer::Peer;
use crate::pins::{Held, PinError, User};
use crate::span::Span;
use pregrant::PAGE_SIZE;
use pregrant::platform::{CopyBatch, CopyOp, LocalBytes};
use pregrant::wire::grant::GrantStatus;
use std::cell::{Cell, RefCell};

/// For fewer operations than this, one pread each is faster than one `process_vm_readv`
/// (docs/decisions/0003).
const FEW: usize = 8;
/// Largest number of operations in one call: the kernel's IOV_MAX.
const IOV_MAX: usize = 1024;
/// Number of times an operation retries a grant that another worker is using: about a second, with
/// [`relax`].
pub(super) const BUSY_TRIES: u32 = 10_000;

/// The known answer of the kernel to reading other processes' memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Access {
    /// The kernel has not refused `process_vm_*` so far.
    #[default]
    Vm,
    /// The kernel refused `process_vm_*`.
    Forbidden,
}

/// Buffers for one call, allocated once.
#[derive(Debug)]
struct Scratch {
    /// Local ranges of the call; adjacent ones are merged.
    local: Vec<Span>,
    /// For each operation: its local and remote range, its batch, and its index in that batch.
    near: Vec<Span>,
    remote: Vec<Span>,
    op: Vec<(u32, u32)>,
    held: Vec<Held>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            local: Vec::with_capacity(IOV_MAX),
            near: Vec::with_capacity(IOV_MAX),
            remote: Vec::with_capacity(IOV_MAX),
            op: Vec::with_capacity(IOV_MAX),
            held: Vec::with_capacity(IOV_MAX),
        }
    }
}

/// The local bytes of a batch as an address, valid while they are borrowed.
struct Local {
    base: *mut u8,
    len: usize,
}

impl Local {
    fn of(local: &mut LocalBytes<'_>) -> Self {
        match local {
            LocalBytes::FromPeer(bytes) => Self { base: bytes.as_mut_ptr(), len: bytes.len() },
            LocalBytes::ToPeer(bytes) => Self { base: bytes.as_ptr().cast_mut(), len: bytes.len() },
        }
    }
}

/// Executes the copies of one handle, on that handle's thread only.
#[derive(Debug, Default)]
pub(super) struct Copier {
    scratch: RefCell<Scratch>,
    access: Cell<Access>,
}

impl Copier {
    /// Copies from or to a peer's granted pages, and sets the status of each operation.
    pub(super) fn copy(&self, peer: &Peer, local: LocalBytes<'_>, ops: &mut [CopyOp]) {
        self.copy_each(peer, &mut [CopyBatch { local, ops }]);
    }

    /// Copies several batches with as few system calls as possible.
    pub(super) fn copy_each(&self, peer: &Peer, batches: &mut [CopyBatch<'_>]) {
        let mut rest = batches;
        // Those of one direction.
        while let Some(first) = rest.first() {
            let goes = |batch: &CopyBatch<'_>| matches!(batch.local, LocalBytes::ToPeer(_));
            let to_peer = goes(first);
            let n = rest.iter().take_while(|batch| goes(batch) == to_peer).count();
            let (run, others) = rest.split_at_mut(n);
            run.iter().for_each(|batch| peer.core.tally.copies(batch.ops));
            Run { peer, access: &self.access, to_peer }.run(&mut self.scratch.borrow_mut(), run);
            rest = others;
        }
    }

    pub(super) fn describe(&self) -> &'static str {
        match self.access.get() {
            Access::Vm => "process_vm_readv/writev, one call a batch (pread/pwrite below 8 pieces)",
            Access::Forbidden => {
                "pread/pwrite on the memfd, one call a piece (process_vm_* is forbidden here)"
            }
        }
    }
}

/// Batches of the same direction that share one system call.
struct Run<'a> {
    peer: &'a Peer,
    access: &'a Cell<Access>,
    to_peer: bool,
}

impl Run<'_> {
    fn run(&self, s: &mut Scratch, batches: &mut [CopyBatch<'_>]) {
        for k in 0..batches.len() {
            self.collect(s, batches, k);
        }
        self.flush(s, batches);
    }

    /// Checks the operations of batch `k` and locks their grants.
    fn collect(&self, s: &mut Scratch, batches: &mut [CopyBatch<'_>], k: usize) {
        let granter = self.peer.granter();
        let User { domid, slot } = self.peer.core.user;
        let user = User { domid, slot };
        let memory = self.peer.address();
        let Local { base, len: local_len } = Local::of(&mut batches[k].local);
        // Adjacent operations with the same grant reference share the first one's result.
        let mut last: Option<(u32, Result<u32, GrantStatus>)> = None;
        let mut busy = 0;
        let mut i = 0;
        while let Some(op) = batches[k].ops.get_mut(i) {
            let (offset, len, at) = (usize::from(op.offset), usize::from(op.len), op.at as usize);
            if offset + len > PAGE_SIZE || at > local_len || len > local_len - at {
                op.status = GrantStatus::BAD_COPY_ARG;
                i += 1;
                continue;
            }
            if len == 0 {
                // Xen does not check the grant of a zero-length copy either (XSA-448).
                op.status = GrantStatus::OKAY;
                i += 1;
                continue;
            }
            let gref = op.gref.0;
            let frame = match last {
                Some((held, frame)) if held == gref => frame,
                _ => match granter.hold(gref, user, self.to_peer) {
                    Ok((frame, held)) => {
                        s.held.push(held);
                        Ok(frame)
                    }
                    Err(PinError::Status(status)) => Err(status),
                    Err(PinError::Busy) => {
                        // The grant is locked by an earlier operation here or by another worker:
                        // first release the locks that we hold.
                        self.flush(s, batches);
                        last = None;
                        busy += 1;
                        if busy < BUSY_TRIES {
                            relax(busy);
                            continue;
                        }
                        Err(GrantStatus::EAGAIN)
                    }
                },
            };
            busy = 0;
            last = Some((gref, frame));
            let op = &mut batches[k].ops[i];
            i += 1;
            let frame = match frame {
                Ok(frame) => frame,
                Err(status) => {
                    op.status = status;
                    continue;
                }
            };
            op.status = GrantStatus::OKAY;
            let near = base.wrapping_add(at);
            match s.local.last_mut() {
                // Adjacent local ranges need only one entry.
                Some(l) if l.end() == near as usize => l.grow(len),
                _ => s.local.push(Span::new(near.cast(), len)),
            }
            s.near.push(Span::new(near.cast(), len));
            let theirs = memory + u64::from(frame) * PAGE_SIZE as u64 + offset as u64;
            s.remote.push(Span::new(theirs as *mut _, len));
            s.op.push((k as u32, i as u32 - 1));
            if s.remote.len() == IOV_MAX {
                self.flush(s, batches);
                last = None;
            }
        }
    }

    /// Copies what was collected, then unlocks the grants.
    fn flush(&self, s: &mut Scratch, batches: &mut [CopyBatch<'_>]) {
        let total = s.remote.len();
        let mut vm = self.peer.address() != 0;
        let mut done = 0;
        while done < total {
            vm &= self.access.get() == Access::Vm && total - done >= FEW;
            if vm {
                if done > 0 {
                    // After a call that stopped half way.
                    s.local.clear();
                    s.local.extend_from_slice(&s.near[done..]);
                }
                let moved = self.move_vm(s, done);
                done += moved;
                // Nothing was copied: the process is gone, or its memory is mapped elsewhere.
                vm = moved > 0;
            }
            // There were few operations, or the call stopped at this one.
            if done < total {
                if !self.move_one(s, done) {
                    let (batch, op) = s.op[done];
                    batches[batch as usize].ops[op as usize].status = GrantStatus::BAD_PAGE;
                }
                done += 1;
            }
        }
        let granter = self.peer.granter();
        s.held.drain(..).for_each(|held| granter.copied(held));
        s.local.clear();
        s.near.clear();
        s.remote.clear();
        s.op.clear();
    }

    /// Makes one call for the operations from `done` on. Returns how many were copied completely.
    fn move_vm(&self, s: &Scratch, done: usize) -> usize {
        self.peer.core.tally.syscalls.add(1);
        let (near, theirs, pid) = (&s.local, &s.remote[done..], self.peer.pid());
        let (near_len, their_len) = (near.len() as libc::c_ulong, theirs.len() as libc::c_ulong);
        // SAFETY: each local range is in the bytes that its batch borrows (checked in `collect`),
        // exclusively when they are written. The remote ranges are another domain's memory, or,
        // with threads as domains, this process' own mapping of it, which is shared memory that
        // nothing refers to; the kernel checks them.
        let moved = unsafe {
            if self.to_peer {
                libc::process_vm_writev(pid, Span::list(near), near_len, Span::list(theirs), their_len, 0)
            } else {
                libc::process_vm_readv(pid, Span::list(near), near_len, Span::list(theirs), their_len, 0)
            }
        };
        if moved < 0 {
            let e = std::io::Error::last_os_error();
            if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
                // LOG: once per handle; from then on it copies by pread and pwrite.
                log::warn!(
                    "loopback: process_vm_readv is not permitted ({e}); grant copies use pread and pwrite, at another cost"
                );
                self.access.set(Access::Forbidden);
            }
            return 0;
        }
        let mut left = moved as usize;
        let whole = theirs.iter().take_while(|piece| {
            let all = left >= piece.len();
            left = left.saturating_sub(piece.len());
            all
        });
        whole.count()
    }

    /// Copies one operation through the peer's memfd. Returns false if the peer's page cannot be
    /// accessed.
    fn move_one(&self, s: &Scratch, piece: usize) -> bool {
        self.peer.core.tally.syscalls.add(1);
        let (near, len) = (s.near[piece].start() as *mut u8, s.near[piece].len());
        let at = s.remote[piece].start() as u64 - self.peer.address();
        // SAFETY: the piece is in the local bytes that its batch borrows (checked in `collect`),
        // exclusively when they are written.
        let moved = unsafe {
            if self.to_peer {
                rustix::io::pwrite(&self.peer.memory, std::slice::from_raw_parts(near, len), at)
            } else {
                rustix::io::pread(&self.peer.memory, std::slice::from_raw_parts_mut(near, len), at)
            }
        };
        moved == Ok(len)
    }
}

/// Waits a moment for another worker to finish its batch, longer when it was preempted in it.
pub(super) fn relax(tries: u32) {
    match tries {
        0..100 => std::hint::spin_loop(),
        100..1000 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}
