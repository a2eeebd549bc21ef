//! Two kinds of requests that several paths share: a key of each queue that names one page, from
//! which the back learns the rest; and a flag for all queues.
//!
//! What a peer may do: write anything. An invalid value means that the queue goes without that
//! path.

use super::keys::Requests;
use crate::memory;
use crate::units::{DomId, GrantRef};
use crate::xenbus::key_source::{KeySink, KeySource, decimal, flag, put, stated};
use crate::xenbus::{KeyError, KeyName};
use alloc::string::String;
use alloc::vec;

/// A front's request for one page, which it names by a key of its queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum RingRequest {
    /// The front does not ask.
    #[default]
    None,
    /// The front asks and names this page.
    Index(GrantRef),
    /// The key's value is invalid. The front must learn that its request was refused.
    Bad {
        /// Path of the key below the front's directory.
        key: String,
        /// The invalid value.
        value: String,
    },
}

impl From<Option<GrantRef>> for RingRequest {
    fn from(index: Option<GrantRef>) -> Self {
        index.map_or(Self::None, Self::Index)
    }
}

/// Reads the requests that the queues of a front make by the key of this name, if the back offered
/// the path. `queues`: the prefix of each queue's keys.
pub(super) fn ring_requests<S: KeySource>(
    keys: &mut S,
    offered: bool,
    queues: &[KeyName],
    name: &str,
) -> Requests<(), RingRequest, S::Error> {
    let mut requests = memory::room(queues.len()).map_err(|e| keys.refused(e))?;
    for at in queues {
        let request = if offered { ring_request(keys, at, name)? } else { RingRequest::None };
        memory::push(&mut requests, request).map_err(|e| keys.refused(e))?;
    }
    Ok(((), requests))
}

fn ring_request<S: KeySource>(keys: &mut S, at: &str, name: &str) -> Result<RingRequest, S::Error> {
    let key = KeyName::of(format_args!("{at}{name}"));
    let Some(text) = stated(keys, &key)? else { return Ok(RingRequest::None) };
    if let Some(gref) = decimal(&text) {
        return Ok(RingRequest::Index(GrantRef(gref)));
    }
    let key = memory::text(key).map_err(|e| keys.refused(e))?;
    Ok(RingRequest::Bad { key, value: text })
}

/// Writes the requests as keys.
pub(super) fn put_ring_requests(pairs: &mut dyn KeySink, queues: &[(&str, &RingRequest)], name: &str) {
    for (at, request) in queues {
        if let RingRequest::Index(gref) = request {
            put(pairs, format_args!("{at}{name}"), gref.0);
        }
    }
}

/// Reads a front's key with value 0 or 1, by which it asks for a path for all queues; only if that
/// was offered.
pub(super) fn flag_request<S: KeySource>(
    keys: &mut S,
    offered: bool,
    queues: &[KeyName],
    name: &str,
) -> Requests<bool, (), S::Error> {
    Ok((offered && flag(keys, name)?, vec![(); queues.len()]))
}

/// The error for key `key` of domain `of` with the invalid value `value`.
pub(super) fn bad_page_key(key: &str, value: &str, of: DomId) -> KeyError {
    KeyError::new(key, Some(value.as_bytes()), "a grant reference, a decimal number", of)
}
