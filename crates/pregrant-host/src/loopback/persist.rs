//! Memory that outlives the process: the broker keeps it by domain and name, so that a successor finds what its
//! predecessor left (the redo page of a ring).

use super::error::LoopbackError;
use super::memory::Mapping;
use super::protocol::{NAME_MAX, Op, Request};
use super::{Loopback, error::Step};
use pregrant::PAGE_SIZE;
use pregrant::shm::SharedBytes;
use rustix::io::Errno;
use std::ptr::NonNull;

/// A persistent region.
#[derive(Debug)]
pub struct Persistent {
    map: Mapping,
    fresh: bool,
}

impl Persistent {
    /// Whether it was made just now, and is zeroed.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }
}

// SAFETY: a mapping of a sealed memfd, which keeps the contract itself.
unsafe impl SharedBytes for Persistent {
    fn base(&self) -> NonNull<u8> {
        self.map.base()
    }
    fn len(&self) -> usize {
        self.map.len()
    }
}

impl Loopback {
    /// `bytes` octets (rounded up to pages) under this domain's `name` (64 octets at most), zeroed the first time. They
    /// last as long as the domain.
    ///
    /// # Errors
    /// The name exists with another size, is empty or too long, or the region is larger than 16 MiB.
    pub fn persist(&self, name: &str, bytes: usize) -> Result<Persistent, LoopbackError> {
        let mut request = Request::new(Op::Persist, 0, 0, bytes as u64);
        request.name = name.into();
        let asked = if name.len() > NAME_MAX { Err(Errno::NAMETOOLONG) } else { self.core.call(&request) };
        let reply = asked.map_err(|source| LoopbackError::Refused {
            what: format!("keep {bytes} octets as {name:?} for {}", self.core.user.domid),
            at: self.core.at.clone(),
            source,
        })?;
        let fresh = reply.words[0] == 1;
        let fd = reply
            .fds
            .into_iter()
            .next()
            .ok_or_else(|| LoopbackError::Version { at: self.core.at.clone() })?;
        let map = Mapping::new(fd, bytes.next_multiple_of(PAGE_SIZE)).step("map a persistent region")?;
        Ok(Persistent { map, fresh })
    }
}
