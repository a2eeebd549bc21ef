//! The driver's side of a split virtqueue (virtio 1.2, 2.7): chains of buffers go to a device, and
//! come back used.
//!
//! ```text
//!   (d) driver writes, (v) device writes                       at      bytes
//!   descriptors | addr u64, len u32, flags u16, next u16 | (d)      0   16 each   a chain: NEXT, next
//!   avail       | flags, idx u16 | heads u16 ... | used_event u16 | (d)
//!   used        | flags, idx u16 | id u32, len u32 ...   | avail_event u16 | (v)
//!
//!   push, push ... --publish: idx, fence, avail_event?--> kick        arm: used_event, fence, idx? --> call
//!   pop  <-------- idx, id, len: each read once
//! ```
//! Both indices run freely, modulo 2^16. VERSION_1 (little-endian) and EVENT_IDX are negotiated: a
//! side that wants a notification at an index names it, and is notified once, when that index is
//! passed.
//!
//! Invariants: which descriptors are in use, and which chain they belong to, is kept in private
//! memory and never read back from the ring. A chain keeps its descriptors until its head comes
//! back, once. A full fence separates publishing an index from reading the other side's event
//! index, and publishing an event index from reading the other side's index.
//!
//! What the device may do: it is the kernel, which is trusted with our memory; still its indices
//! and heads are checked. An index ahead of what is in flight, or a head that is invalid or came
//! back before, is a [`Violation`], and ends the ring. It can keep a chain for ever, so callers
//! limit their waits.

use crate::mapping::Mapping;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

const NEXT: u64 = 1;
/// The flag of a buffer that the device only writes.
const WRITE: u64 = 2;

/// Largest number of descriptors per chain: as many as the kernel's iovecs (`UIO_MAXIOV`), and
/// never more than the ring has.
const CHAIN_MAX: usize = 1024;

/// Memory that a descriptor names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// The address of the buffer in this process.
    pub address: u64,
    pub len: u32,
    /// The device writes to the buffer, instead of reading.
    pub writable: bool,
}

/// A chain that the device returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// The head descriptor of the chain, as [`push`](Virtqueue::push) returned it.
    pub head: u16,
    /// Number of bytes that the device reports as written.
    pub len: u32,
}

/// The violation of the protocol that was found in the used ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The device returned more chains than are in flight.
    Index {
        /// The device's index, by which it reports the number of chains that it has returned.
        back: u16,
        out: u16,
    },
    /// No chain in flight has this head.
    Head(u32),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index { back, out } => {
                write!(f, "the used index counts {back} chains, and {out} are in flight")
            }
            Self::Head(id) => write!(f, "the used ring names descriptor {id}, which is not in flight"),
        }
    }
}

/// The addresses of the three parts, in this process.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub descriptors: u64,
    pub avail: u64,
    pub used: u64,
}

/// True if a side that named `event` must be notified when an index goes from `old` to `new`.
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The driver's side of a ring.
#[derive(Debug)]
pub struct Virtqueue {
    memory: Arc<Mapping>,
    /// The offset of the ring in `memory`.
    at: usize,
    size: u16,
    /// For a free descriptor, the index of the next free one; for a descriptor in use, the index of
    /// the next one of its chain.
    next: Box<[u16]>,
    first_free: u16,
    nr_free: u16,
    /// Number of descriptors of the chain with this head; 0: none begins there.
    chains: Box<[u16]>,
    /// For each descriptor, true if the device has the chain that begins with it.
    is_out: Box<[bool]>,
    /// Number of chains in flight, including those not published yet.
    out: u16,
    /// Number of chains that were pushed; `published` counts those that were also published.
    avail: u16,
    published: u16,
    /// Number of chains that the device returned and that were popped.
    seen: u16,
    /// The device's index as it was last read.
    back: u16,
}

impl Virtqueue {
    /// Returns the number of bytes that a ring of `size` descriptors needs.
    pub const fn bytes(size: u16) -> usize {
        used_at(size) + 6 + 8 * size as usize
    }

    /// Creates an empty ring of `size` descriptors, a power of two, at byte `at` of `memory`, a
    /// multiple of 64. It overwrites what was there.
    pub(super) fn new(memory: Arc<Mapping>, at: usize, size: u16) -> Self {
        assert!(size.is_power_of_two() && at.is_multiple_of(64), "a ring of {size} at {at}");
        for word in (at..at + Self::bytes(size)).step_by(2) {
            memory.u16(word).store(0, Ordering::Relaxed);
        }
        let n = usize::from(size);
        let next = (1..=size).map(|i| i % size).collect();
        Self {
            memory,
            at,
            size,
            next,
            first_free: 0,
            nr_free: size,
            chains: vec![0; n].into_boxed_slice(),
            is_out: vec![false; n].into_boxed_slice(),
            out: 0,
            avail: 0,
            published: 0,
            seen: 0,
            back: 0,
        }
    }

    /// Returns the addresses that the device must get.
    pub fn addresses(&self) -> Addresses {
        let base = self.memory.address() + self.at as u64;
        let (avail, used) = (avail_at(self.size) as u64, used_at(self.size) as u64);
        Addresses { descriptors: base, avail: base + avail, used: base + used }
    }

    /// The memory and the offset, for a model of the device.
    #[cfg(test)]
    pub(super) fn place(&self) -> (Arc<Mapping>, usize) {
        (Arc::clone(&self.memory), self.at)
    }

    /// Returns the number of free descriptors.
    pub fn nr_free(&self) -> usize {
        self.nr_free.into()
    }

    /// Returns the number of chains in flight.
    pub fn out(&self) -> usize {
        self.out.into()
    }

    /// Appends a chain of these buffers, those that the device writes last, to what the next
    /// [`publish`](Self::publish) shows. None: it is empty, too long, or there is no room.
    ///
    /// # Safety
    /// Until the chain is returned, or the device was stopped, the memory stays mapped; where the
    /// device writes, no one else has it, and where it reads private memory, no one changes it.
    #[must_use]
    pub unsafe fn push(&mut self, buffers: impl Iterator<Item = Buffer>) -> Option<u16> {
        let head = self.first_free;
        let (mut last, mut n) = (head, 0u16);
        let mut buffers = buffers.peekable();
        buffers.peek()?;
        let mut at = head;
        while let Some(buffer) = buffers.next() {
            if n == self.nr_free || usize::from(n) == CHAIN_MAX {
                return None;
            }
            let follows = if buffers.peek().is_some() { NEXT } else { 0 };
            let (flags, next) =
                (follows | if buffer.writable { WRITE } else { 0 }, self.next[usize::from(at)]);
            self.describe(at, buffer, flags, next);
            (last, at) = (at, next);
            n += 1;
        }
        self.first_free = self.next[usize::from(last)];
        self.nr_free -= n;
        self.chains[usize::from(head)] = n;
        self.offer(head);
        Some(head)
    }

    /// Adds a chain of this one buffer, as [`push`](Self::push) does.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    #[must_use]
    #[inline(always)]
    pub unsafe fn push_one(&mut self, buffer: Buffer) -> Option<u16> {
        let head = self.first_free;
        self.nr_free = self.nr_free.checked_sub(1)?;
        self.first_free = self.next[usize::from(head)];
        self.chains[usize::from(head)] = 1;
        self.describe(head, buffer, if buffer.writable { WRITE } else { 0 }, 0);
        self.offer(head);
        Some(head)
    }

    #[inline(always)]
    fn describe(&self, at: u16, buffer: Buffer, flags: u64, next: u16) {
        let [address, rest] = self.memory.two_u64(self.at + 16 * usize::from(at));
        let word = u64::from(buffer.len) | flags << 32 | u64::from(next) << 48;
        address.store(buffer.address.to_le(), Ordering::Relaxed);
        rest.store(word.to_le(), Ordering::Relaxed);
    }

    /// Appends the chain at `head`, which [`pop`](Self::pop) just gave, as it was.
    ///
    /// # Safety
    /// As for [`push`](Self::push), of its buffers.
    #[inline(always)]
    pub unsafe fn push_again(&mut self, head: u16) {
        assert!(self.chains[usize::from(head)] != 0, "{head} is no chain's");
        assert!(!self.is_out[usize::from(head)], "{head} is the device's");
        self.offer(head);
    }

    #[inline(always)]
    fn offer(&mut self, head: u16) {
        let place = self.at + avail_at(self.size) + 4 + 2 * usize::from(self.avail % self.size);
        self.memory.u16(place).store(head.to_le(), Ordering::Relaxed);
        self.avail = self.avail.wrapping_add(1);
        self.is_out[usize::from(head)] = true;
        self.out += 1;
    }

    /// Returns true if the device would request a notification when `n` more chains are published.
    pub fn would_kick(&self, n: u16) -> bool {
        passes(self.avail_event(), self.published.wrapping_add(n), self.published)
    }

    fn avail_event(&self) -> u16 {
        let place = self.at + used_at(self.size) + 4 + 8 * usize::from(self.size);
        u16::from_le(self.memory.u16(place).load(Ordering::Relaxed))
    }

    /// Publishes the chains that were pushed. True: the device wants a notification.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        let old = std::mem::replace(&mut self.published, self.avail);
        if old == self.avail {
            return false;
        }
        let idx = self.memory.u16(self.at + avail_at(self.size) + 2);
        idx.store(self.avail.to_le(), Ordering::Release);
        // Either the device sees the index before it sleeps, or we see that it wants a
        // notification.
        fence(Ordering::SeqCst);
        passes(self.avail_event(), self.avail, old)
    }

    /// The number of chains that the device returned and that were not popped.
    ///
    /// # Errors
    ///
    /// The index is impossible.
    #[inline(always)]
    pub fn came(&mut self) -> Result<usize, Violation> {
        if self.back == self.seen {
            let idx = self.memory.u16(self.at + used_at(self.size) + 2);
            let back = u16::from_le(idx.load(Ordering::Acquire));
            // The device knows nothing of chains that are not published.
            let out = self.out - self.avail.wrapping_sub(self.published);
            let came = back.wrapping_sub(self.seen);
            if came > out {
                return Err(Violation::Index { back: came, out });
            }
            self.back = back;
        }
        Ok(self.back.wrapping_sub(self.seen).into())
    }

    /// Returns what [`came`](Self::came) returns, but without its checks: the number is only for
    /// statistics.
    pub fn waiting(&self) -> usize {
        let idx = self.memory.u16(self.at + used_at(self.size) + 2);
        u16::from_le(idx.load(Ordering::Relaxed)).wrapping_sub(self.seen).min(self.out).into()
    }

    /// Pops the oldest chain that the device returned. It keeps its descriptors until it is
    /// [freed](Self::free) or [pushed again](Self::push_again).
    ///
    /// # Errors
    ///
    /// The device violated the protocol.
    #[inline(always)]
    pub fn pop(&mut self) -> Result<Option<Used>, Violation> {
        if self.came()? == 0 {
            return Ok(None);
        }
        let place = self.at + used_at(self.size) + 4 + 8 * usize::from(self.seen % self.size);
        let [id, len] = self.memory.two_u32(place);
        let (id, len) = (id.load(Ordering::Relaxed), len.load(Ordering::Relaxed));
        let (id, len) = (u32::from_le(id), u32::from_le(len));
        let head = u16::try_from(id).map_err(|_| Violation::Head(id))?;
        let is_out = self.is_out.get_mut(usize::from(head)).ok_or(Violation::Head(id))?;
        if !std::mem::take(is_out) {
            return Err(Violation::Head(id));
        }
        self.seen = self.seen.wrapping_add(1);
        self.out -= 1;
        Ok(Some(Used { head, len }))
    }

    /// Frees the descriptors of a chain that was popped.
    #[inline(always)]
    pub fn free(&mut self, head: u16) {
        let n = std::mem::take(&mut self.chains[usize::from(head)]);
        assert!(n != 0 && !self.is_out[usize::from(head)], "{head} is no chain's, or the device's");
        let mut last = head;
        for _ in 1..n {
            last = self.next[usize::from(last)];
        }
        self.next[usize::from(last)] = self.first_free;
        self.first_free = head;
        self.nr_free += n;
    }

    /// Asks for a notification after `more` further chains have come back. True: they have already,
    /// and there may be no notification.
    ///
    /// # Errors
    ///
    /// The index is impossible.
    pub fn arm(&mut self, more: u16) -> Result<bool, Violation> {
        let wanted = self.seen.wrapping_add(more.max(1));
        let event = self.memory.u16(self.at + avail_at(self.size) + 4 + 2 * usize::from(self.size));
        event.store(wanted.wrapping_sub(1).to_le(), Ordering::Relaxed);
        // Either the device sees the event index before it checks, or we see its index.
        fence(Ordering::SeqCst);
        self.back = self.seen;
        Ok(self.came()? >= usize::from(more.max(1)))
    }

    /// Asks for no notification, until 2^15 more chains have come back.
    pub fn disarm(&mut self) {
        let event = self.memory.u16(self.at + avail_at(self.size) + 4 + 2 * usize::from(self.size));
        event.store(self.seen.wrapping_add(1 << 15).to_le(), Ordering::Relaxed);
    }
}

/// Offsets of the parts. The used ring has a cache line of its own.
const fn avail_at(size: u16) -> usize {
    16 * size as usize
}
const fn used_at(size: u16) -> usize {
    (avail_at(size) + 6 + 2 * size as usize).next_multiple_of(64)
}

#[cfg(test)]
pub(super) mod tests;
