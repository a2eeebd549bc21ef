//! How the two ends agree on `persistent` ([`Negotiate`]): each end writes a key.

use super::FEATURE;
use super::back::PersistentPath;
use crate::net::features::FrontRequest;
use crate::net::path::Negotiate;
use crate::net::path::acceptance::{Accepted, Accepting, Lost, Said};
use crate::net::path::active_lists::ActiveLists;
use crate::net::path::any_back::AnyPath;
use crate::net::path::keys::Requests;
use crate::net::path::request_keys::flag_request;
use crate::platform::{Access, Platform};
use crate::xenbus::KeyName;
use crate::xenbus::key_source::{KeySink, KeySource, flag, put};

/// The path `persistent`, as the two ends negotiate it.
#[derive(Clone, Copy, Debug)]
pub struct Persistent;

impl Negotiate for Persistent {
    /// True if the back keeps pages mapped for a front that reuses its grants.
    type Offer = bool;
    type Wanted = bool;
    /// True if each grant reference of the front names the same page until the front disconnects.
    type Request = bool;
    type QueueRequest = ();
    /// Largest number of pages for each queue and direction; 0: the path is off.
    type Acceptor<P: Platform> = usize;

    fn put_offer(offer: &bool, pairs: &mut dyn KeySink) {
        put(pairs, FEATURE, u32::from(*offer));
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<bool, S::Error> {
        flag(keys, FEATURE)
    }
    fn asked(wanted: bool, offer: &bool, _can_name: bool) -> bool {
        wanted && *offer
    }
    fn put_request(request: &bool, _queues: &[(&str, &())], pairs: &mut dyn KeySink) {
        put(pairs, FEATURE, u32::from(*request));
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &bool,
        queues: &[KeyName],
    ) -> Requests<bool, (), S::Error> {
        flag_request(keys, *offered, queues, FEATURE)
    }
    fn active_key(_front: &FrontRequest, _queue: usize) -> Option<KeyName> {
        None
    }
    #[inline(never)] // a kernel's stack has no room for those of all paths at once
    fn accept<P: Platform>(
        limit: &mut usize,
        cx: &mut Accepting<'_, P>,
        _queue: usize,
        _said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        if !cx.front.persistent || *limit == 0 {
            return Ok(Accepted::NONE);
        }
        let path = |acc| PersistentPath::new(*limit, acc).map(|path| Some(AnyPath::Persistent(path)));
        Ok(Accepted { tx: path(Access::ReadOnly)?, rx: path(Access::ReadWrite)?, ..Accepted::NONE })
    }
    /// Returns no directions: the front shares no memory for this path.
    fn taken<S: KeySource>(
        _keys: &mut S,
        _offer: &bool,
        _queue: (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        Ok(shared)
    }
}
