//! A request's answer: a header of 16 bytes, and the data that the operation requires behind it
//! (`linux/fuse.h`). It can be given once, from any thread. A request that is dropped without an
//! answer is answered with EIO.

use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Flags in the answer to `open`: no page cache, no `flush` on close, and concurrent writes.
const OPEN_FLAGS: u32 = 1 | 1 << 5 | 1 << 6;

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::blkfront) enum Kind {
    Directory,
    File,
}

impl Kind {
    fn mode(self) -> u32 {
        match self {
            Self::Directory => 0o040_000,
            Self::File => 0o100_000,
        }
    }
}

/// The result of `stat` for a file. Root owns the file, and all of its times are equal.
pub(in crate::blkfront) struct Attr {
    pub node: u64,
    pub kind: Kind,
    pub bytes: u64,
    pub permissions: u32,
    pub time: SystemTime,
}

/// A message of numbers in the machine's byte order.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn u64s(mut self, words: &[u64]) -> Self {
        words.iter().for_each(|word| self.0.extend(word.to_ne_bytes()));
        self
    }

    fn u32s(mut self, words: &[u32]) -> Self {
        words.iter().for_each(|word| self.0.extend(word.to_ne_bytes()));
        self
    }

    fn attr(self, attr: &Attr) -> Self {
        let since = attr.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let (s, ns) = (since.as_secs(), since.subsec_nanos());
        let links = if attr.kind == Kind::File { 1 } else { 2 };
        self.u64s(&[attr.node, attr.bytes, attr.bytes / 512, s, s, s])
            // Mode, links, owner, group, no device, the size of a block, no flags.
            .u32s(&[ns, ns, ns, attr.kind.mode() | attr.permissions, links, 0, 0, 0, 4096, 0])
    }
}

pub(in crate::blkfront) struct Reply {
    to: Option<Arc<OwnedFd>>,
    unique: u64,
}

impl Reply {
    pub(in crate::blkfront) fn new(to: Arc<OwnedFd>, unique: u64) -> Self {
        Self { to: Some(to), unique }
    }

    /// Returns the number of the request.
    pub(in crate::blkfront) fn unique(&self) -> u64 {
        self.unique
    }

    fn send(&mut self, error: i32, body: &[u8]) {
        let Some(to) = self.to.take() else { return };
        let header = Words::default().u32s(&[(16 + body.len()) as u32, error as u32]).u64s(&[self.unique]);
        match rustix::io::writev(to, &[IoSlice::new(&header.0), IoSlice::new(body)]) {
            // No one waits for it any more.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            // LOG: of the process' own mount.
            Err(e) => {
                log::warn!("cannot write the reply to FUSE request {number}: {e}", number = self.unique)
            }
        }
    }

    pub(in crate::blkfront) fn error(mut self, e: Errno) {
        self.send(-e.raw_os_error(), &[]);
    }

    pub(in crate::blkfront) fn ok(mut self) {
        self.send(0, &[]);
    }

    /// Answers a read with these bytes.
    pub(in crate::blkfront) fn data(mut self, bytes: &[u8]) {
        self.send(0, bytes);
    }

    /// Answers a write with the number of bytes.
    pub(in crate::blkfront) fn written(mut self, bytes: u32) {
        self.send(0, &Words::default().u32s(&[bytes, 0]).0);
    }

    /// Answers a lookup with the file's attributes, which the kernel must not cache.
    pub(in crate::blkfront) fn entry(mut self, attr: &Attr) {
        let entry = Words::default().u64s(&[attr.node, 0, 0, 0]).u32s(&[0, 0]);
        self.send(0, &entry.attr(attr).0);
    }

    /// Answers with the attributes of a file, which the kernel must not cache.
    pub(in crate::blkfront) fn attr(mut self, attr: &Attr) {
        self.send(0, &Words::default().u64s(&[0]).u32s(&[0, 0]).attr(attr).0);
    }

    /// Answers that a file is open and has no page cache, or that a directory is open.
    pub(in crate::blkfront) fn opened(mut self, kind: Kind) {
        let flags = if kind == Kind::File { OPEN_FLAGS } else { 0 };
        self.send(0, &Words::default().u64s(&[0]).u32s(&[flags, 0]).0);
    }

    /// Answers with this many blocks of 4096 bytes, none of them free.
    pub(in crate::blkfront) fn statfs(mut self, blocks: u64) {
        let counts = Words::default().u64s(&[blocks, 0, 0, 1, 0]);
        self.send(0, &counts.u32s(&[4096, 255, 4096, 0, 0, 0, 0, 0, 0, 0]).0);
    }

    /// Answers with a directory's names from number `from` on, as many as fit in `size` bytes.
    pub(in crate::blkfront) fn names(mut self, all: &[(u64, Kind, &str)], from: u64, size: u32) {
        let mut listed = Words::default();
        for (next, (node, kind, name)) in (1u64..).zip(all).skip(from as usize) {
            let mut one = Words::default().u64s(&[*node, next]).u32s(&[name.len() as u32, kind.mode() >> 12]);
            one.0.extend(name.as_bytes());
            one.0.resize(one.0.len().next_multiple_of(8), 0);
            if listed.0.len() + one.0.len() > size as usize {
                break;
            }
            listed.0.append(&mut one.0);
        }
        self.send(0, &listed.0);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-Errno::IO.raw_os_error(), &[]);
    }
}
