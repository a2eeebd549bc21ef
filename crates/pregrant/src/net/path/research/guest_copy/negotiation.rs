//! How the two ends agree on `guest-copy` ([`Negotiate`]): the back lends pages of its domain to a
//! queue's guest.
//!
//! ```text
//!   guest-copy-ref --map, write, unmap--> list page        rings taken up --> pages lent, named in the list
//! ```
//! Invariants: every list of the vif has its next generation before the first page is lent, since a
//! page may get a reference by which a predecessor lent another one. Pages are lent after all steps
//! that may fail, so they belong to a queue of the vif, which can [take them back](super::lent).
//!
//! What a front may do: name any page as its list.

use super::back::{GuestCopyPath, begin, lent_pages};
use super::front::BackPages;
use super::keys::{self, FEATURE, LIST_REF, LendRefusal};
use crate::error::PlatformError;
use crate::net::features::FrontRequest;
use crate::net::front::queue_memory::{QueueMemory, RX};
use crate::net::front::regions::Granting;
use crate::net::path::acceptance::{Accepted, Accepting, Lost, Said};
use crate::net::path::active_lists::ActiveLists;
use crate::net::path::any_back::AnyPath;
use crate::net::path::keys::Requests;
use crate::net::path::refusal::Refusal;
use crate::net::path::request_keys::{RingRequest, bad_page_key, put_ring_requests, ring_requests};
use crate::net::path::{AnyFlaggedPath, Negotiate};
use crate::platform::{Access, PeerMem, Platform};
use crate::ring::{NetRx, RingKind};
use crate::units::PAGE_SIZE;
use crate::wire::ring::ring_size;
use crate::xenbus::KeyName;
use crate::xenbus::connect_error::TooManyPages;
use crate::xenbus::key_source::{KeySink, KeySource, flag, put};
use alloc::vec::Vec;

/// The path `guest-copy`, as the two ends negotiate it.
#[derive(Clone, Copy, Debug)]
pub struct GuestCopy;

impl Negotiate for GuestCopy {
    /// True if the back grants pages of its own for RX.
    type Offer = bool;
    type Wanted = bool;
    type Request = ();
    /// The list page, if the front asks for this path.
    type QueueRequest = RingRequest;
    type Acceptor<P: Platform> = GuestCopyAcceptor<P>;

    fn put_offer(offer: &bool, pairs: &mut dyn KeySink) {
        put(pairs, FEATURE, u32::from(*offer));
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<bool, S::Error> {
        flag(keys, FEATURE)
    }
    fn asked(wanted: bool, offer: &bool, _can_name: bool) -> bool {
        wanted && *offer
    }
    fn put_request(_request: &(), queues: &[(&str, &RingRequest)], pairs: &mut dyn KeySink) {
        put_ring_requests(pairs, queues, LIST_REF);
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &bool,
        queues: &[KeyName],
    ) -> Requests<(), RingRequest, S::Error> {
        ring_requests(keys, *offered, queues, LIST_REF)
    }
    fn active_key(front: &FrontRequest, queue: usize) -> Option<KeyName> {
        Some(keys::active_key(queue, front.queues.len()))
    }
    #[inline(never)] // a kernel's stack has no room for those of all paths at once
    fn accept<P: Platform>(
        acceptor: &mut GuestCopyAcceptor<P>,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        // A front that knows of no list reads none.
        let asks = cx.queue(queue).is_some_and(|keys| keys.guest_copy != RingRequest::None);
        let wanted = said.whole(asks) && (acceptor.allowed || said.is_reattach());
        acceptor.lists.push(if wanted { GuestCopyAcceptor::begin_list(cx, queue) } else { None });
        Ok(Accepted::NONE)
    }

    fn taken<S: KeySource>(
        keys: &mut S,
        offer: &bool,
        (i, n): (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        let lends = *offer && keys.text(&keys::active_key(i, n))?.as_deref() == Some("1");
        Ok(if lends { shared } else { ActiveLists::NONE })
    }
}

/// Allocates the list page of a queue, if no other path carries every RX frame, and the keys that
/// describe it.
pub fn take_memory<P: Platform>(queue: &mut QueueMemory<'_, P>) -> Result<RingRequest, PlatformError> {
    if queue.chains[RX].is_whole() {
        return Ok(RingRequest::None);
    }
    let list = queue.regions.take(queue.p, Access::ReadWrite, 1, Granting::Standing)?;
    let pages = BackPages::new(list, queue.regions.to());
    let request = RingRequest::Index(pages.list_ref());
    queue.chains[RX].insert_flagged(AnyFlaggedPath::GuestCopy(pages));
    Ok(request)
}

/// A list page, which is mapped only while it is written, and the generation that was started
/// there.
type PageList<P> = (<<P as Platform>::Peer as PeerMem>::Map, u8);

/// State of a back while it accepts the queues of one front.
pub struct GuestCopyAcceptor<P: Platform> {
    allowed: bool,
    /// The list page of each queue.
    lists: Vec<Option<PageList<P>>>,
}

impl<P: Platform> GuestCopyAcceptor<P> {
    /// Makes the acceptor; `allowed`: the operator allows this path.
    pub fn new(allowed: bool) -> Self {
        Self { allowed, lists: Vec::new() }
    }

    /// Ends the generation of a predecessor in a queue's list, even if no pages are granted now,
    /// and begins the next one.
    fn begin_list(cx: &mut Accepting<'_, P>, queue: usize) -> Option<PageList<P>> {
        match &cx.queue(queue)?.guest_copy {
            RingRequest::None => None,
            RingRequest::Bad { key, value } => {
                let why = LendRefusal::Key(bad_page_key(key, value, cx.of));
                cx.refuse(queue, "rx", Refusal::GuestCopy(why));
                None
            }
            RingRequest::Index(list) => match cx.p.peer().map(cx.of, &[*list], Access::ReadWrite) {
                Ok(list) => {
                    let generation = begin(&list);
                    Some((list, generation))
                }
                Err(e) => {
                    cx.refuse(queue, "rx", Refusal::GuestCopy(LendRefusal::List(e)));
                    None
                }
            },
        }
    }

    /// Grants pages to a queue, and names them in `list`. None: the queue's frames go by another
    /// path.
    fn lend_by(
        &self,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        (list, generation): PageList<P>,
    ) -> Option<(GuestCopyPath<P>, usize)> {
        if !self.allowed {
            return None;
        }
        let slots = ring_size(cx.queue(queue)?.rx_ring.len() * PAGE_SIZE, NetRx::SLOT_WORDS * 4);
        let (pages, left) = (lent_pages(slots) as usize, cx.left);
        let lent = if cx.held > 0 {
            Err(LendRefusal::Held(cx.held))
        } else if pages > left {
            Err(LendRefusal::TooManyPages(TooManyPages { asked: pages, left }))
        } else {
            GuestCopyPath::lend(cx.p, cx.of, (&list, generation), slots).map_err(LendRefusal::Grant)
        };
        match lent {
            Ok(path) => Some((path, pages)),
            Err(why) => {
                cx.refuse(queue, "rx", Refusal::GuestCopy(why));
                None
            }
        }
    }

    /// Grants pages to the guest of a queue. Called once the back has mapped the queue's rings.
    pub fn lend(&mut self, cx: &mut Accepting<'_, P>, queue: usize) -> Accepted<P> {
        let list = self.lists.get_mut(queue).and_then(Option::take);
        let lent = list.and_then(|list| self.lend_by(cx, queue, list));
        let asks = cx.queue(queue).is_some_and(|keys| keys.guest_copy != RingRequest::None);
        let active = asks.then_some(if lent.is_some() { "1" } else { "0" });
        let (rx, pages) = lent.map_or((None, 0), |(path, pages)| (Some(AnyPath::GuestCopy(path)), pages));
        Accepted { tx: None, rx, pages, active }
    }
}
