//! The messages between a process and the broker: one SEQPACKET message in each direction, with
//! descriptors.
//!
//! ```text
//!   request  | op u32 | a u32 | b u32 | name length u32 | c u64 | name ... |
//!   reply    | errno u32 (0: done), pad | eight words u64 ... |  + up to 4 descriptors
//! ```
//!
//! They serve only set-up and tear-down, never data. What a process may do: send anything. A
//! message of the wrong shape is answered with EINVAL or ends that connection; the broker never
//! panics and never waits for one process.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::mem::MaybeUninit;

/// The version of the protocol, which both ends must share. The ledger's layout is part of it.
pub(super) const VERSION: u32 = 3;
/// Longest name of a persistent region.
pub(super) const NAME_MAX: usize = 64;
const REQUEST_MAX: usize = 24 + NAME_MAX;
const WORDS: usize = NAME_MAX / 8;
const REPLY_LEN: usize = 8 + WORDS * 8;
const FDS_MAX: usize = 4;

pregrant::numbered! {
    /// The requests to the broker. `a`, `b` and `c` are the fields of [`Request`].
    Op: u32 {
        /// Attaches the caller to a domain. a: version, b: domid, c: pid. Reply: slot, pages,
        /// grants, version of the grant table; fds: memory, ledger, upcall[, store].
        Attach = 1,
        /// Ends the attachment's set-up. c: the address at which the caller has mapped the domain's
        /// memory.
        Mapped = 2,
        /// Asks for another domain's memory. b: domid. Reply: pid, address, pages, grants, version
        /// of the grant table; fds: memory, ledger.
        Peer = 3,
        /// Asks for the eventfd that wakes a slot. b: domid, a: slot. fds: the slot's eventfd.
        Upcall = 4,
        /// Opens a port that another domain may bind. b: that domain. Reply: port.
        Offer = 5,
        /// Binds a new port to a port that another domain offers. b: that domain, a: its port.
        /// Reply: the new port.
        Bind = 6,
        /// Closes a port. a: port.
        Close = 7,
        /// Creates or opens a persistent region. c: bytes; name. Reply: 1 if the region is new;
        /// fds: memory.
        Persist = 8,
        /// Makes the caller the only owner of a name, until it disowns the name or dies. EBUSY:
        /// another process owns it.
        Own = 9,
        Disown = 10,
        /// Drops the persistent region of a name. Parts that are mapped stay until they are
        /// unmapped.
        Forget = 11,
        /// Checks again for pages and grants of dead processes that peers have let go of.
        Reclaim = 12,
        /// Creates a domain. b: domid, a: grant frames, c: pages (the high bit is [`DURABLE`]).
        Create = 13,
        /// Destroys a domain. b: domid.
        Destroy = 14,
        /// Counts the broker's objects. Reply: the fields of [`crate::Audit`], in their order.
        Audit = 15,
        /// Asks for the name of a persistent region. a: index. Reply: the name as bytes; ENOENT if
        /// there are fewer regions.
        Persisted = 16,
        /// Opens one more connection to the broker, for another thread of the caller's process.
        /// fds: the connection.
        Another = 17,
        /// Asks for a summary of a domain's grants. b: domid, a: index. Reply: the fields of that
        /// [`crate::GrantSummary`], in their order. If the domain has fewer, the reply is the first
        /// summary of the next domain; ENOENT: no domain is left.
        Grants = 18,
        /// Asks for the version of the grant tables. Reply: the version.
        GrantTables = 19,
    }
}

/// This high bit of [`Op::Create`]'s page count makes the domain survive its processes.
pub(super) const DURABLE: u64 = 1 << 63;

/// A request to the broker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) op: Op,
    pub(super) a: u32,
    pub(super) b: u32,
    pub(super) c: u64,
    pub(super) name: String,
}

impl Request {
    pub(super) fn new(op: Op, a: u32, b: u32, c: u64) -> Self {
        Self { op, a, b, c, name: String::new() }
    }

    fn encode(&self) -> Vec<u8> {
        let mut v = Vec::with_capacity(REQUEST_MAX);
        for word in [self.op.raw(), self.a, self.b, self.name.len() as u32] {
            v.extend_from_slice(&word.to_le_bytes());
        }
        v.extend_from_slice(&self.c.to_le_bytes());
        v.extend_from_slice(self.name.as_bytes());
        v
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let name = bytes.get(24..)?;
        if name.len() > NAME_MAX || word(12)? as usize != name.len() {
            return None;
        }
        Some(Self {
            op: Op::from_raw(word(0)?)?,
            a: word(4)?,
            b: word(8)?,
            c: u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?),
            name: std::str::from_utf8(name).ok()?.to_owned(),
        })
    }

    pub(super) fn send(&self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        send(to, &self.encode(), &[])
    }

    /// Receives a request. `Ok(None)`: the connection has ended. `Err(INVAL)`: the message is not a
    /// valid request.
    pub(super) fn receive(from: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        let mut bytes = [0; REQUEST_MAX + 1];
        let (len, _) = receive(from, &mut bytes)?;
        match len {
            0 => Ok(None),
            len => Self::decode(&bytes[..len]).map(Some).ok_or(Errno::INVAL),
        }
    }
}

/// The errno for "this process has no descriptor left for one that was sent", distinct from the
/// broker's EMFILE.
pub(super) const NO_DESCRIPTOR: Errno = Errno::BADFD;

#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) words: [u64; WORDS],
    pub(super) fds: Vec<OwnedFd>,
}

impl Reply {
    /// Encodes a name of at most [`NAME_MAX`] bytes.
    pub(super) fn name(name: &str) -> Self {
        let mut bytes = [0; NAME_MAX];
        let n = name.len().min(NAME_MAX);
        bytes[..n].copy_from_slice(&name.as_bytes()[..n]);
        let (words, _) = bytes.as_chunks::<8>();
        Self { words: std::array::from_fn(|i| u64::from_le_bytes(words[i])), fds: Vec::new() }
    }

    /// Decodes the name that [`Reply::name`] encoded.
    pub(super) fn to_name(&self) -> String {
        let bytes = self.words.map(u64::to_le_bytes);
        let bytes = bytes.as_flattened();
        let n = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    /// Creates a reply of some words (the others are 0) and descriptors.
    pub(super) fn new<const N: usize>(words: [u64; N], fds: Vec<OwnedFd>) -> Self {
        const { assert!(N <= WORDS) };
        Self { words: std::array::from_fn(|i| words.get(i).copied().unwrap_or(0)), fds }
    }

    /// Sends a reply, or the errno of a refusal.
    pub(super) fn send(to: BorrowedFd<'_>, reply: &Result<Self, Errno>) -> Result<(), Errno> {
        let mut bytes = [0; REPLY_LEN];
        let fds = match reply {
            Ok(r) => {
                for (i, w) in r.words.iter().enumerate() {
                    bytes[8 + i * 8..16 + i * 8].copy_from_slice(&w.to_le_bytes());
                }
                r.fds.as_slice()
            }
            Err(e) => {
                bytes[..4].copy_from_slice(&e.raw_os_error().to_le_bytes());
                &[]
            }
        };
        send(to, &bytes, fds)
    }

    /// Receives a reply. `Err(PIPE)`: the broker is gone.
    pub(super) fn receive(from: BorrowedFd<'_>) -> Result<Result<Self, Errno>, Errno> {
        let mut bytes = [0; REPLY_LEN];
        let (len, fds) = receive(from, &mut bytes)?;
        if len != REPLY_LEN {
            return Err(Errno::PIPE);
        }
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        match u64_at(0) as i32 {
            0 => Ok(Ok(Self { words: std::array::from_fn(|i| u64_at(8 + i * 8)), fds })),
            errno => Ok(Err(Errno::from_raw_os_error(errno))),
        }
    }
}

fn send(to: BorrowedFd<'_>, bytes: &[u8], fds: &[OwnedFd]) -> Result<(), Errno> {
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(rustix::fd::AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Errno::TOOBIG);
    }
    // MSG_DONTWAIT protects the broker: a process that does not read its replies is disconnected,
    // and no one waits for it.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

fn receive(from: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    // The kernel drops a descriptor if the process has no number left for it.
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(NO_DESCRIPTOR);
    }
    Ok((got.bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_wire() {
        let mut r = Request::new(Op::Persist, 1, 2, DURABLE | 5);
        r.name = "vif1.0/tx0".into();
        assert_eq!(Request::decode(&r.encode()), Some(r));
    }

    #[test]
    fn what_is_no_request_is_none() {
        let whole = Request::new(Op::Bind, 1, 2, 3).encode();
        for cut in 0..whole.len() {
            assert_eq!(Request::decode(&whole[..cut]), None, "cut at {cut}");
        }
        let mut unknown = whole.clone();
        unknown[0] = 99;
        assert_eq!(Request::decode(&unknown), None);
        let mut long = whole;
        long[12] = 1;
        assert_eq!(Request::decode(&long), None, "a name that is not there");
    }
}
