//! How the two ends agree on `foreign` ([`Negotiate`]): a connecting back maps all of a guest for
//! each queue, or nothing.
//!
//! ```text
//!   offered, because the operator said so --> request-foreign --> mapped --> foreign-active = 1
//! ```
//! What a front may do: request it. It gets no access that it does not have; the vif's log says
//! that it is not isolated from this back.

use super::back::ForeignPath;
use super::front::ForeignPages;
use super::keys::{ACTIVE, FEATURE, REQUEST, WholeRefusal};
use crate::error::PlatformError;
use crate::net::features::FrontRequest;
use crate::net::front::queue_memory::{QueueMemory, RX, TX};
use crate::net::path::acceptance::{Accepted, Accepting, Lost, Said};
use crate::net::path::active_lists::ActiveLists;
use crate::net::path::any_back::AnyPath;
use crate::net::path::keys::Requests;
use crate::net::path::refusal::Refusal;
use crate::net::path::request_keys::flag_request;
use crate::net::path::{AnyFrontPath, FrontChain, Negotiate};
use crate::platform::Platform;
use crate::wire::netif::RX_FOREIGN;
use crate::xenbus::KeyName;
use crate::xenbus::key_source::{KeySink, KeySource, flag, put};
use alloc::format;
use alloc::vec::{IntoIter, Vec};
use core::fmt;

/// The path `foreign`, as the two ends negotiate it.
#[derive(Clone, Copy, Debug)]
pub struct Foreign;

impl Negotiate for Foreign {
    /// True if the back maps the whole memory of a guest that asks for it.
    type Offer = bool;
    type Wanted = bool;
    /// True if the back may map this guest's whole memory.
    type Request = bool;
    type QueueRequest = ();
    type Acceptor<P: Platform> = ForeignAcceptor<P>;

    fn put_offer(offer: &bool, pairs: &mut dyn KeySink) {
        put(pairs, FEATURE, u32::from(*offer));
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<bool, S::Error> {
        flag(keys, FEATURE)
    }
    fn asked(wanted: bool, offer: &bool, can_name: bool) -> bool {
        wanted && *offer && can_name
    }
    fn put_request(request: &bool, _queues: &[(&str, &())], pairs: &mut dyn KeySink) {
        if *request {
            put(pairs, REQUEST, 1);
        }
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &bool,
        queues: &[KeyName],
    ) -> Requests<bool, (), S::Error> {
        flag_request(keys, *offered, queues, REQUEST)
    }
    fn active_key(_front: &FrontRequest, queue: usize) -> Option<KeyName> {
        (queue == 0).then(|| KeyName::of(ACTIVE))
    }
    #[inline(never)] // a kernel's stack has no room for those of all paths at once
    fn accept<P: Platform>(
        acceptor: &mut ForeignAcceptor<P>,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        if queue == 0 {
            acceptor.paths = acceptor.all(cx, said)?.into_iter();
        }
        let active = if acceptor.paths.len() > 0 { "1" } else { "0" };
        let active = (queue == 0 && cx.front.foreign).then_some(active);
        let Some([tx, rx]) = acceptor.paths.next() else { return Ok(Accepted { active, ..Accepted::NONE }) };
        let (tx, rx) = (Some(AnyPath::Foreign(tx)), Some(AnyPath::Foreign(rx)));
        Ok(Accepted { tx, rx, pages: 0, active })
    }

    fn taken<S: KeySource>(
        keys: &mut S,
        offer: &bool,
        _queue: (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        let is_mapped = *offer && keys.text(ACTIVE)?.as_deref() == Some("1");
        Ok(if is_mapped { shared } else { ActiveLists::NONE })
    }
}

/// Allocates pages for both directions of a queue, which requests name by frame number if possible.
/// Nothing is granted before a page is posted.
pub fn take_memory<P: Platform>(queue: &mut QueueMemory<'_, P>) -> Result<(), PlatformError> {
    for (dir, mark) in [(TX, 0), (RX, RX_FOREIGN)] {
        let pages = queue.pages(dir)?;
        queue.chains[dir].insert(AnyFrontPath::Copy(pages));
        queue.chains[dir].name_frames(queue.p, mark);
    }
    Ok(())
}

impl<P: Platform> FrontChain<P> {
    /// Lets requests name the pages by their frame numbers, with bit `mark`. Pages without frame
    /// numbers stay ordinary ones.
    pub fn name_frames(&mut self, p: &P, mark: u32) {
        let Some(pages) = self.take_pages() else { return };
        self.insert(match ForeignPages::over(p, pages, mark) {
            Ok(frames) => AnyFrontPath::Foreign(frames),
            Err(pages) => AnyFrontPath::Copy(pages),
        });
    }
}

/// State of a back while it accepts the queues of one front.
pub struct ForeignAcceptor<P: Platform> {
    allowed: bool,
    /// Paths (TX, RX) of the queues that were not accepted yet. They are made for all queues when
    /// the first one asks.
    paths: IntoIter<[ForeignPath<P>; 2]>,
}

impl<P: Platform> ForeignAcceptor<P> {
    /// Makes the acceptor; `allowed`: the operator allows this path.
    pub fn new(allowed: bool) -> Self {
        Self { allowed, paths: Vec::new().into_iter() }
    }

    /// Makes the paths of all queues of a guest; none if the guest does not ask, or if its memory
    /// cannot be mapped. If a predecessor had accepted this path, the front goes on using it: then
    /// a failure is an error.
    fn all(&self, cx: &mut Accepting<'_, P>, said: Said<'_>) -> Result<Vec<[ForeignPath<P>; 2]>, Lost> {
        let asks = cx.front.foreign;
        if !said.whole(asks && self.allowed) {
            return Ok(Vec::new());
        }
        let names_frames = said.is_reattach();
        let lost = |why: &dyn fmt::Display| {
            Lost(format!(
                "its guest sends frames by address, out of memory that an earlier backend had mapped whole, and {why}"
            ))
        };
        if !self.allowed {
            return Err(lost(&"this back does not run with --path foreign"));
        }
        if !asks {
            return Err(lost(&format_args!("does not ask for it any more ({REQUEST})")));
        }
        let paths: Result<_, _> = cx.front.queues.iter().map(|_| ForeignPath::pair(cx.p, cx.of)).collect();
        match paths {
            Err(e) if names_frames => Err(lost(&e)),
            Err(e) => {
                cx.refuse(0, "tx", Refusal::Foreign(WholeRefusal(e)));
                Ok(Vec::new())
            }
            Ok(paths) => Ok(paths),
        }
    }
}
