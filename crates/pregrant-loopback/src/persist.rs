//! Memory that outlives the process: the broker keeps it by domain and name, so that a successor
//! finds what its predecessor left (the redo page of a ring). The broker also keeps names that only
//! one process at a time may own, so that there is only one successor. It frees a name, and the
//! event channels, when the owner dies.
#![expect(unsafe_code, reason = "the trait of shared memory")]

use crate::attachment::Core;
use crate::error::{LoopbackError, Step};
use crate::loopback::Loopback;
use crate::protocol::{NAME_MAX, NO_DESCRIPTOR, Op, Request};
use pregrant::PAGE_SIZE;
use pregrant::shm::SharedBytes;
use pregrant_host::backing::Backing;
use pregrant_host::line_budget::LineBudget;
use pregrant_host::mapping::Mapping;
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::Arc;

/// A persistent region of memory.
#[derive(Debug)]
pub struct Persistent {
    map: Mapping,
    fresh: bool,
}

impl Persistent {
    /// Returns true if this call created the memory, so that it is zeroed.
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

/// A name that no other process in the domain can own until this value is dropped.
#[derive(Debug)]
pub struct Owned {
    core: Arc<Core>,
    name: String,
}

impl Drop for Owned {
    fn drop(&mut self) {
        match self.core.call(&named(Op::Disown, &self.name)) {
            // The broker ended first, or the domain did, as for a detached one: nothing is owned
            // any more.
            Ok(_) | Err(Errno::PIPE | Errno::PERM | Errno::NOENT) => {}
            Err(e) => {
                static LINES: LineBudget = LineBudget::new();
                LINES.warn(format_args!(
                    "loopback: the broker did not release {name:?}: {e}",
                    name = self.name
                ));
            }
        }
    }
}

fn named(op: Op, name: &str) -> Request {
    Request { name: name.into(), ..Request::new(op, 0, 0, 0) }
}

impl Loopback {
    /// Returns the persistent region `name` (64 bytes at most) of this domain, with `bytes` bytes
    /// (rounded up to pages). It is zeroed the first time, and lasts as long as the domain.
    ///
    /// # Errors
    /// The name exists with another size, is empty or too long, or the region is larger than 16
    /// MiB.
    pub fn persist(&self, name: &str, bytes: usize) -> Result<Persistent, LoopbackError> {
        let mut request = Request::new(Op::Persist, 0, 0, bytes as u64);
        request.name = name.into();
        let asked = if name.len() > NAME_MAX { Err(Errno::NAMETOOLONG) } else { self.core.call(&request) };
        let at = || self.core.at.clone();
        let reply = asked.map_err(|source| match source {
            NO_DESCRIPTOR => LoopbackError::NoDescriptor { at: at() },
            source => LoopbackError::Refused {
                what: format!("keep {bytes} bytes as {name:?} for {}", self.core.user.domid),
                at: at(),
                source,
            },
        })?;
        let fresh = reply.words[0] == 1;
        let fd = reply
            .fds
            .into_iter()
            .next()
            .ok_or_else(|| LoopbackError::Version { at: self.core.at.clone() })?;
        let map = Backing::received(fd)
            .and_then(|memory| Mapping::new(&memory, bytes.next_multiple_of(PAGE_SIZE)))
            .step("map a persistent region")?;
        Ok(Persistent { map, fresh })
    }

    /// Becomes the only owner of `name` (64 bytes at most) in this domain, until the value is
    /// dropped or the process dies.
    ///
    /// # Errors
    /// [`LoopbackError::Held`] while another process or thread owns it; the name is empty or too
    /// long.
    pub fn own(&self, name: &str) -> Result<Owned, LoopbackError> {
        let long = name.len() > NAME_MAX;
        let asked = if long { Err(Errno::NAMETOOLONG) } else { self.core.call(&named(Op::Own, name)) };
        match asked {
            Ok(_) => Ok(Owned { core: Arc::clone(&self.core), name: name.into() }),
            Err(Errno::BUSY) => Err(LoopbackError::Held {
                name: name.into(),
                domid: self.core.user.domid,
                at: self.core.at.clone(),
            }),
            Err(source) => Err(LoopbackError::Refused {
                what: format!("make this process the owner of {name:?} in {}", self.core.user.domid),
                at: self.core.at.clone(),
                source,
            }),
        }
    }

    /// Returns the names of this domain's persistent regions. A region that is created or removed
    /// meanwhile may be missing or hide another.
    pub fn persisted(&self) -> Vec<String> {
        let name = |at| self.core.call(&Request::new(Op::Persisted, at, 0, 0)).map(|reply| reply.to_name());
        (0..).map_while(|at| name(at).ok()).collect()
    }

    /// Removes a persistent region. Returns false if there is none of this name.
    pub fn forget(&self, name: &str) -> bool {
        name.len() <= NAME_MAX && self.core.call(&named(Op::Forget, name)).is_ok()
    }
}
