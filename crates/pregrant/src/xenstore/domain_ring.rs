//! A guest kernel's connection to xenstore: a page shared with xenstored, and an event channel
//! (docs/protocol 8.4).
//!
//! ```text
//!   req[1024]@0   rsp[1024]@1024   req_cons@2048  req_prod@2052  rsp_cons@2056  rsp_prod@2060
//!   Client --send--> req --event--> xenstored --> rsp --event--> recv --> Client
//! ```
//! The page has two streams of bytes. Invariant: `req_prod` and `rsp_cons` belong to this end, and
//! are never read back.
//!
//! What the other end may do: write any index. A distance above 1024 ends the use of the
//! connection; no byte outside of the page is accessed.

use super::Transport;
use crate::shm::SharedBytes;
use core::fmt;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

/// Size in bytes of the ring of each direction.
const RING: u32 = 1024;
const REQ: usize = 0;
const RSP: usize = 1024;
const REQ_CONS: usize = 2048;
const REQ_PROD: usize = 2052;
const RSP_CONS: usize = 2056;
const RSP_PROD: usize = 2060;

/// The event channel of the page.
pub trait StoreChannel {
    /// Sends an event to xenstored.
    fn notify(&mut self);
    /// Sleeps until an event of the channel, at most for `max` (None: no timeout). It may return
    /// early. Returns the time that is left (None if `max` was None).
    fn wait(&mut self, max: Option<Duration>) -> Option<Duration>;
}

/// A connection by a shared page.
pub struct DomainRing<S, B> {
    page: S,
    channel: B,
    req_prod: u32,
    rsp_cons: u32,
}

/// Why xenstored, or the page, cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DomainRingError {
    /// The memory is shorter than a page.
    Short,
    /// The indices are more than 1024 bytes apart.
    Indices {
        /// The producer's index.
        prod: u32,
        /// The consumer's index.
        cons: u32,
    },
}

impl fmt::Display for DomainRingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("the memory that is shared with xenstored is shorter than a page"),
            Self::Indices { prod, cons } => write!(
                f,
                "xenstore's ring is broken: {prod} bytes were written and {cons} read, and it has room for {RING}"
            ),
        }
    }
}

impl core::error::Error for DomainRingError {}

impl<S: SharedBytes, B: StoreChannel> DomainRing<S, B> {
    /// Uses the page that the start info or `HVM_PARAM_STORE_PFN` names. If a boot loader has used
    /// it before, this continues from there.
    pub fn new(page: S, channel: B) -> Result<Self, DomainRingError> {
        let index = |at| page.load_u32(at).ok_or(DomainRingError::Short);
        let (req_prod, rsp_cons) = (index(REQ_PROD)?, index(RSP_CONS)?);
        Ok(Self { page, channel, req_prod, rsp_cons })
    }

    /// The channel, to wait for it together with others.
    pub fn channel(&mut self) -> &mut B {
        &mut self.channel
    }

    /// The other end's current index.
    fn index(&self, at: usize) -> Result<u32, DomainRingError> {
        let index = self.page.load_u32(at).ok_or(DomainRingError::Short)?;
        // Bytes before that index are accessed only after it was read.
        fence(Ordering::SeqCst);
        Ok(index)
    }

    /// Publishes an index of this end, after the accesses before it.
    fn publish(&mut self, at: usize, index: u32) -> Result<(), DomainRingError> {
        fence(Ordering::SeqCst);
        if !self.page.store_u32(at, index) {
            return Err(DomainRingError::Short);
        }
        self.channel.notify();
        Ok(())
    }
}

/// Number of bytes between two indices.
fn distance(prod: u32, cons: u32) -> Result<u32, DomainRingError> {
    let used = prod.wrapping_sub(cons);
    if used <= RING { Ok(used) } else { Err(DomainRingError::Indices { prod, cons }) }
}

/// Offset in the ring of byte `index`, and how many of `most` bytes are contiguous there.
fn run(index: u32, most: usize) -> (usize, usize) {
    let at = (index % RING) as usize;
    (at, most.min(RING as usize - at))
}

impl<S: SharedBytes, B: StoreChannel> Transport for DomainRing<S, B> {
    type Error = DomainRingError;

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), DomainRingError> {
        while !bytes.is_empty() {
            let used = distance(self.req_prod, self.index(REQ_CONS)?)?;
            let (at, n) = run(self.req_prod, bytes.len().min((RING - used) as usize));
            if n == 0 {
                self.channel.wait(None);
                continue;
            }
            if !self.page.copy_in(REQ + at, &bytes[..n]) {
                return Err(DomainRingError::Short);
            }
            self.req_prod = self.req_prod.wrapping_add(n as u32);
            self.publish(REQ_PROD, self.req_prod)?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8], wait: Option<Duration>) -> Result<usize, DomainRingError> {
        let mut left = wait;
        loop {
            let came = distance(self.index(RSP_PROD)?, self.rsp_cons)?;
            let (at, n) = run(self.rsp_cons, buf.len().min(came as usize));
            if n > 0 {
                if !self.page.copy_out(RSP + at, &mut buf[..n]) {
                    return Err(DomainRingError::Short);
                }
                self.rsp_cons = self.rsp_cons.wrapping_add(n as u32);
                self.publish(RSP_CONS, self.rsp_cons)?;
                return Ok(n);
            }
            if buf.is_empty() || left == Some(Duration::ZERO) {
                return Ok(0);
            }
            // Events without bytes do not extend the wait.
            left = self.channel.wait(left);
        }
    }
}
