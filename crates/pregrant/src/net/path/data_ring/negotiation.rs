//! How the two ends agree on `data-ring` ([`Negotiate`]): the index page's key, and each half whole
//! or not at all.
//!
//! ```text
//!   data-ring-ref --map, read, unmap--> index page --validate--> in: mapped read-write     out: mapped read-only
//! ```
//! What a front may do: give any page. A fault of the page, or of one half, is reported with the
//! key; the other half is served.

use super::SMALLER;
use super::back::DataRingPath;
use super::front::DataArea;
use super::index::IndexFault;
use super::index::IndexPage;
use super::keys::{self, HalfRefusal};
use crate::error::PlatformError;
use crate::net::features::FrontRequest;
use crate::net::front::queue_memory::{QueueMemory, RX, TX};
use crate::net::path::acceptance::{Accepted, Accepting, Lost, Said};
use crate::net::path::active_lists::ActiveLists;
use crate::net::path::any_back::AnyPath;
use crate::net::path::keys::Requests;
use crate::net::path::refusal::Refusal;
use crate::net::path::request_keys::{RingRequest, bad_page_key, put_ring_requests, ring_requests};
use crate::net::path::{AnyFlaggedPath, AnyFrontPath, Negotiate};
use crate::platform::{Access, PeerMem, Platform};
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::wire::data_ring::ORDER_MIN;
use crate::xenbus::KeyName;
use crate::xenbus::connect_error::TooManyPages;
use crate::xenbus::key_source::{KeySink, KeySource};
use alloc::boxed::Box;

use core::fmt::Display;

/// The path `data-ring`, as the two ends negotiate it.
#[derive(Clone, Copy, Debug)]
pub struct DataRing;

impl Negotiate for DataRing {
    /// Value of [`keys::MAX_ORDER`], at most [`ORDER_MAX`](crate::wire::data_ring::ORDER_MAX); 0 if
    /// the back does not offer [`keys::FEATURE`].
    type Offer = u32;
    /// A data ring of 2^order pages for each queue.
    type Wanted = Option<u32>;
    type Request = ();
    /// The index page, if the front wants a data ring.
    type QueueRequest = RingRequest;
    type Acceptor<P: Platform> = ();

    fn put_offer(max_order: &u32, pairs: &mut dyn KeySink) {
        keys::put_offer(pairs, *max_order);
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<u32, S::Error> {
        keys::read_offer(keys)
    }
    fn asked(wanted: Option<u32>, max_order: &u32, _can_name: bool) -> Option<u32> {
        wanted.map(|order| order.min(*max_order)).filter(|order| *order >= ORDER_MIN)
    }
    fn put_request(_request: &(), queues: &[(&str, &RingRequest)], pairs: &mut dyn KeySink) {
        put_ring_requests(pairs, queues, keys::INDEX_REF);
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        max_order: &u32,
        queues: &[KeyName],
    ) -> Requests<(), RingRequest, S::Error> {
        ring_requests(keys, *max_order >= ORDER_MIN, queues, keys::INDEX_REF)
    }
    fn active_key(front: &FrontRequest, queue: usize) -> Option<KeyName> {
        let asks = front.queues.get(queue)?.data_ring != RingRequest::None;
        asks.then(|| keys::active_key(queue, front.queues.len()))
    }
    #[inline(never)] // a kernel's stack has no room for those of all paths at once
    fn accept<P: Platform>(
        _acceptor: &mut (),
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        let Some(keys) = cx.queue(queue).filter(|keys| keys.data_ring != RingRequest::None) else {
            return Ok(Accepted::NONE);
        };
        let refused = cx.refused.len();
        let may = said.lists(ActiveLists::BOTH);
        let Area { tx, rx, pages } = area(cx, (queue, &keys.data_ring), may);
        let active = ActiveLists { tx: tx.is_some(), rx: rx.is_some() };
        if said.is_reattach() && active != may {
            let why: &dyn Display = match cx.refused.get(refused) {
                Some((_, _, why)) => why,
                None => &"its index page names it no longer",
            };
            return Err(Lost::again(format_args!("data ring of queue {queue}"), why));
        }
        let active = Some(active.text(ActiveLists::BOTH));
        Ok(Accepted { tx: tx.map(AnyPath::DataRing), rx: rx.map(AnyPath::DataRing), pages, active })
    }

    fn taken<S: KeySource>(
        keys: &mut S,
        max_order: &u32,
        (i, n): (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        if *max_order < ORDER_MIN {
            return Ok(ActiveLists::NONE);
        }
        let text = keys.text(&keys::active_key(i, n))?;
        Ok(ActiveLists::parse(text.as_deref(), ActiveLists::BOTH).and(shared))
    }
}

/// Requests to try in turn when memory is short: this ring, then smaller ones, then none.
pub fn smaller(asked: Option<u32>) -> impl Iterator<Item = Option<u32>> {
    let smaller = |order: u32| SMALLER.into_iter().filter_map(move |less| order.checked_sub(less));
    let rings = asked.into_iter().flat_map(smaller).filter(|order| *order >= ORDER_MIN);
    rings.map(Some).chain([None])
}

/// Allocates a queue's data ring, for the directions in which no other path carries every frame,
/// and the keys that describe it.
#[inline(never)] // as of each path: a kernel's stack is small
pub fn take_memory<P: Platform>(
    order: u32,
    queue: &mut QueueMemory<'_, P>,
) -> Result<RingRequest, PlatformError> {
    let wanted = [&queue.chains[TX], &queue.chains[RX]].map(|chain| !chain.is_whole());
    if wanted == [false; 2] {
        return Ok(RingRequest::None);
    }
    let area = DataArea::new(queue.p, queue.regions, order, wanted, queue.ids(TX))?;
    let request = RingRequest::Index(area.index_ref());
    queue.named.push(area.index);
    area.out.into_iter().for_each(|out| queue.chains[TX].insert(AnyFrontPath::DataRing(out)));
    let within = area.within.into_iter();
    within.for_each(|within| queue.chains[RX].insert_flagged(AnyFlaggedPath::DataRing(within)));
    Ok(request)
}

/// The accepted halves of a queue's data ring.
struct Area<P: Platform> {
    tx: Option<DataRingPath<P>>,
    rx: Option<DataRingPath<P>>,
    /// Number of pages that the area maps.
    pages: usize,
}

impl<P: Platform> Area<P> {
    const NONE: Self = Self { tx: None, rx: None, pages: 0 };
}

/// Maps those halves of a queue's data ring that are valid and that `may` allows.
fn area<P: Platform>(
    cx: &mut Accepting<'_, P>,
    (queue, request): (usize, &RingRequest),
    may: ActiveLists,
) -> Area<P> {
    let mut area = Area::NONE;
    if !may.any() {
        return area;
    }
    let (p, of, mut left) = (cx.p, cx.of, cx.left);
    let most = cx.offered.data_ring;
    let mut refuse = |dir, why: HalfRefusal| cx.refuse(queue, dir, Refusal::DataRing(why));
    let mut refuse_both = |why: &dyn Fn() -> HalfRefusal| ["tx", "rx"].map(|dir| refuse(dir, why()));
    let index = match request {
        RingRequest::None => return area,
        RingRequest::Bad { key, value } => {
            refuse_both(&|| HalfRefusal::Key(bad_page_key(key, value, of)));
            return area;
        }
        RingRequest::Index(gref) => *gref,
    };
    // Mapped no longer than it is read: not counted with what the guest has mapped.
    let page = match p.peer().map(of, &[index], Access::ReadOnly) {
        Ok(page) => IndexPage::read(&page, most),
        Err(why) => {
            refuse_both(&|| HalfRefusal::Index(why));
            return area;
        }
    };
    let page = match page {
        Ok(page) => page,
        Err(why) => {
            refuse_both(&|| HalfRefusal::Fault(why));
            return area;
        }
    };
    let size = page.half_bytes();
    let [within, out] = page.validate();
    let mut take = |half: Result<Option<Box<[GrantRef]>>, _>, acc| {
        let Some(refs) = half.map_err(HalfRefusal::Fault)? else { return Ok(None) };
        if refs.len() > left {
            return Err(HalfRefusal::TooManyPages(TooManyPages { asked: refs.len(), left }));
        }
        let map = p.peer().map(of, &refs, acc).map_err(HalfRefusal::Map)?;
        left -= refs.len();
        debug_assert_eq!(map.len(), refs.len() * PAGE_SIZE);
        Ok(Some(map))
    };
    let (out, within) = (
        if may.tx { take(out, Access::ReadOnly) } else { Ok(None) },
        if may.rx { take(within, Access::ReadWrite) } else { Ok(None) },
    );
    let pages = size as usize / PAGE_SIZE;
    match out {
        Ok(map) => area.tx = map.map(|map| DataRingPath::tx(map, size)),
        Err(why) => refuse("tx", why),
    }
    match within {
        Ok(map) => match map.map(|map| DataRingPath::rx(map, size)).transpose() {
            Ok(rx) => area.rx = rx,
            Err(_) => refuse("rx", HalfRefusal::Fault(IndexFault::NoMemory)),
        },
        Err(why) => refuse("rx", why),
    }
    area.pages = pages * (usize::from(area.tx.is_some()) + usize::from(area.rx.is_some()));
    area
}
