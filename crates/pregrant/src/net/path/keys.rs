//! What the keys of paths have in common: their names, by what becomes of them; a front's key that
//! names one page of a queue, from which the back learns the rest; and where such keys stand.
//!
//! What a peer may do: write anything. What makes no sense means that the queue goes without.

use super::negotiation::{Nothing, Requests};
use crate::units::{DomId, GrantRef};
use crate::xenbus::KeyError;
use crate::xenbus::key_source::{KeySource, Pairs, decimal, flag, put, stated};
use crate::xenbus::ring_keys::queue_prefix;
use alloc::format;
use alloc::string::String;
use alloc::vec;

/// The names of a path's keys. Those of a queue stand where its rings' do.
#[derive(Clone, Copy, Debug)]
pub struct PathKeys {
    /// The back's, which offer the path. Linux's netback knows none of these: it neither writes
    /// over nor removes them.
    pub offers: &'static [&'static str],
    /// The back's, which say for one connection what it accepted.
    pub active: &'static [&'static str],
    /// Of these, that of each queue which says in which directions its frames go through memory
    /// that the front set up.
    pub directions: Option<&'static str>,
    /// How the names of the front's begin that hold for one connection: a successor that does not
    /// know them would not keep what they promise.
    pub front: &'static [&'static str],
}

impl PathKeys {
    /// Of a path that has none of its own.
    pub const NONE: Self = Self { offers: &[], active: &[], directions: None, front: &[] };
}

/// What a queue's front asks for by such a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum RingRequest {
    /// None.
    #[default]
    None,
    /// With this page.
    Index(GrantRef),
    /// With a key that is of no use: the front has to hear that it does not get it.
    Bad {
        /// Which key, below the front's directory.
        key: String,
        /// What stands there.
        value: String,
    },
}

impl From<Option<GrantRef>> for RingRequest {
    fn from(index: Option<GrantRef>) -> Self {
        index.map_or(Self::None, Self::Index)
    }
}

/// The queues' keys of this name, of a front that was offered it; `queues`: how the keys of each
/// begin.
pub(super) fn ring_requests<S: KeySource>(
    keys: &mut S,
    offered: bool,
    queues: &[&str],
    name: &str,
) -> Requests<Nothing, RingRequest, S::Error> {
    let read = |at: &&str| if offered { ring_request(keys, at, name) } else { Ok(RingRequest::None) };
    Ok((Nothing, queues.iter().map(read).collect::<Result<_, _>>()?))
}

fn ring_request<S: KeySource>(keys: &mut S, at: &str, name: &str) -> Result<RingRequest, S::Error> {
    let key = format!("{at}{name}");
    let Some(text) = stated(keys, &key)? else { return Ok(RingRequest::None) };
    Ok(match decimal(&text) {
        Some(gref) => RingRequest::Index(GrantRef(gref)),
        None => RingRequest::Bad { key, value: text },
    })
}

/// Writes them.
pub(super) fn put_ring_requests(pairs: &mut Pairs, queues: &[(&str, &RingRequest)], name: &str) {
    for (at, request) in queues {
        if let RingRequest::Index(gref) = request {
            put(pairs, format!("{at}{name}"), gref.0);
        }
    }
}

/// A front's key of this name, 0 or 1, which asks for something for all queues; of a front that was
/// offered it.
pub(super) fn flag_request<S: KeySource>(
    keys: &mut S,
    offered: bool,
    queues: &[&str],
    name: &str,
) -> Requests<bool, Nothing, S::Error> {
    Ok((offered && flag(keys, name)?, vec![Nothing; queues.len()]))
}

/// What is wrong with a key of domain `of` that says this.
pub(super) fn bad_page_key(key: &str, value: &str, of: DomId) -> KeyError {
    KeyError::new(key, Some(value.as_bytes()), "a grant reference, a decimal number", of)
}

/// Where a queue's keys stand, for a line of the log.
#[derive(Clone, Copy, Debug)]
pub struct KeyPlace<'a> {
    /// The front's directory.
    pub front: &'a str,
    /// Which queue.
    pub queue: usize,
    /// Of so many.
    pub nr_queues: usize,
    /// "tx" or "rx".
    pub dir: &'a str,
}

impl KeyPlace<'_> {
    /// The whole path of a queue's key of this name.
    pub fn key(&self, name: &str) -> String {
        format!("{}/{}{name}", self.front, queue_prefix(self.queue, self.nr_queues))
    }
}
