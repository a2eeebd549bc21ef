//! How the two ends negotiate `data-ring` ([`Negotiation`]): settings, offer, requests, memory.

use super::{SMALLER, acceptance, claim, front, keys};
use crate::error::PlatformError;
use crate::net::features::BackFeatures;
use crate::net::front::queue_memory::QueueMemory;
use crate::net::path::acceptance::Accept;
use crate::net::path::active::ActiveLists;
use crate::net::path::keys::PathKeys;
use crate::net::path::negotiation::{Nothing, Requests};
use crate::net::path::request_keys::{RingRequest, put_ring_requests, ring_requests};
use crate::net::path::{DataRingPath, FrontNegotiation, Negotiation, PathName};
use crate::platform::Platform;
use crate::wire::data_ring::{ORDER_MAX, ORDER_MIN};
use crate::xenbus::key_source::{KeySource, Pairs};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// [`keys::MAX_ORDER`], at most [`ORDER_MAX`]; 0: [`keys::FEATURE`] is not offered.
pub type Offer = u32;
/// What a front asks for, of all queues.
pub type Request = Nothing;
/// The index page, if the front wants a data ring.
pub type QueueRequest = RingRequest;
/// How a back's operator wants it served.
pub type Config = Nothing;
/// A data ring of 2^order pages for each queue, where the back maps one and staging does not
/// carry every frame.
pub type Wanted = Option<u32>;

/// The path, to the list of all.
#[derive(Clone, Copy, Debug)]
pub struct DataRing;

impl Negotiation for DataRing {
    const NAME: PathName = PathName::DataRing;
    const KEYS: PathKeys = keys::KEYS;
    own_types! {}
    type Refusal = keys::HalfRefusal;
    type Claims = claim::InArea;
    type Back<P: Platform> = DataRingPath<P>;
    type Front<P: Platform> = front::SendArea<P>;
    type Flagged<P: Platform> = front::RecvArea<P>;

    fn offer() -> u32 {
        ORDER_MAX
    }
    fn put_offer(max_order: &u32, pairs: &mut Pairs) {
        keys::put_offer(pairs, *max_order);
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<u32, S::Error> {
        keys::read_offer(keys)
    }
    fn put_request(_request: &Nothing, queues: &[(&str, &RingRequest)], pairs: &mut Pairs) {
        put_ring_requests(pairs, queues, keys::INDEX_REF);
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        max_order: &u32,
        queues: &[&str],
    ) -> Requests<Nothing, RingRequest, S::Error> {
        ring_requests(keys, *max_order >= ORDER_MIN, queues, keys::INDEX_REF)
    }
    fn acceptor<P: Platform>(_config: &Self::Config, _fallback: PathName) -> Option<Box<dyn Accept<P>>> {
        Some(Box::new(acceptance::AcceptDataRing))
    }
    fn claims<P: Platform>(path: &DataRingPath<P>) -> claim::InArea {
        claim::InArea::new(path.half_bytes())
    }
}

impl FrontNegotiation for DataRing {
    fn asked(wanted: Option<u32>, back: &BackFeatures, _can_name: bool) -> Option<u32> {
        wanted.map(|order| order.min(back.data_ring)).filter(|order| *order >= ORDER_MIN)
    }
    fn smaller(asked: Option<u32>, _back: &BackFeatures) -> Vec<Option<u32>> {
        let smaller = |order: u32| SMALLER.into_iter().filter_map(move |less| order.checked_sub(less));
        let rings = asked.into_iter().flat_map(smaller).filter(|order| *order >= ORDER_MIN);
        rings.map(Some).chain([None]).collect()
    }
    fn take_memory<P: Platform>(
        asked: Option<u32>,
        queue: &mut QueueMemory<'_, P>,
    ) -> Result<RingRequest, PlatformError> {
        asked.map_or(Ok(RingRequest::None), |order| front::take_area(order, queue))
    }
    fn taken<S: KeySource>(
        keys: &mut S,
        back: &BackFeatures,
        (i, n): (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        if back.data_ring < ORDER_MIN {
            return Ok(ActiveLists::NONE);
        }
        let text = keys.text(&keys::active_key(i, n))?;
        Ok(ActiveLists::parse(text.as_deref(), ActiveLists::BOTH).and(shared))
    }
}
