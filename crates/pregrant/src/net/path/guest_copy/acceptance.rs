//! Accepts guest copy for a queue: lends pages of this domain to its guest.
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
use super::keys::{LendRefusal, active_key};
use crate::net::features::FrontRequest;
use crate::net::path::acceptance::{Accept, Accepted, Accepting, Lost, Said};
use crate::net::path::any_back::AnyPath;
use crate::net::path::any_refusal::Refusal;
use crate::net::path::request_keys::{RingRequest, bad_page_key};
use crate::platform::{Access, PeerMem, Platform};
use crate::ring::{NetRx, RingKind};
use crate::units::PAGE_SIZE;
use crate::wire::ring::ring_size;
use crate::xenbus::connect_error::TooManyPages;
use alloc::string::String;
use alloc::vec::Vec;

/// A list page, mapped no longer than it is written, and the generation that was started there.
type PageList<P> = (<<P as Platform>::Peer as PeerMem>::Map, u8);

/// See the module.
pub struct AcceptGuestCopy<P: Platform> {
    allowed: bool,
    /// By queue.
    lists: Vec<Option<PageList<P>>>,
}

impl<P: Platform> AcceptGuestCopy<P> {
    /// The operator `allowed` it, or not.
    pub fn new(allowed: bool) -> Self {
        Self { allowed, lists: Vec::new() }
    }

    /// Ends what a predecessor lent to a queue, whether anything is lent now or not, and begins the
    /// next generation in its list.
    fn begin_list(cx: &mut Accepting<'_, P>, queue: usize) -> Option<PageList<P>> {
        match &cx.queue(queue).guest_copy {
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

    /// Lends pages to a queue, named in `list`. None: its frames go another way.
    fn lend_by(
        &self,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        (list, generation): PageList<P>,
    ) -> Option<(GuestCopyPath<P>, usize)> {
        if !self.allowed {
            return None;
        }
        let slots = ring_size(cx.queue(queue).rx_ring.len() * PAGE_SIZE, NetRx::SLOT_WORDS * 4);
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
}

impl<P: Platform> Accept<P> for AcceptGuestCopy<P> {
    fn active_key(&self, front: &FrontRequest, queue: usize) -> Option<String> {
        Some(active_key(queue, front.queues.len()))
    }

    fn accept(
        &mut self,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        // A front that knows of no list reads none.
        let asks = cx.queue(queue).guest_copy != RingRequest::None;
        let wanted = said.whole(asks) && (self.allowed || said.is_reattach());
        self.lists.push(if wanted { Self::begin_list(cx, queue) } else { None });
        Ok(Accepted::NONE)
    }

    fn lend(&mut self, cx: &mut Accepting<'_, P>, queue: usize) -> Accepted<P> {
        let list = self.lists.get_mut(queue).and_then(Option::take);
        let lent = list.and_then(|list| self.lend_by(cx, queue, list));
        let asks = cx.queue(queue).guest_copy != RingRequest::None;
        let active = asks.then_some(if lent.is_some() { "1" } else { "0" });
        let (rx, pages) = lent.map_or((None, 0), |(path, pages)| (Some(AnyPath::GuestCopy(path)), pages));
        Accepted { tx: None, rx, pages, active }
    }
}
