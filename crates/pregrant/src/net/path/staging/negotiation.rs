//! How the two ends negotiate `staging` ([`Negotiation`]): settings, offer, requests, memory.

use super::wanted::Buffers;
use super::{acceptance, claim, front, keys, list};
use crate::error::PlatformError;
use crate::net::features::BackFeatures;
use crate::net::front::queue_memory::QueueMemory;
use crate::net::path::acceptance::Accept;
use crate::net::path::active::ActiveLists;
use crate::net::path::keys::PathKeys;
use crate::net::path::uninhabited::NoMemory;
use crate::net::path::{FrontNegotiation, Negotiation, PathName, PathNotOffered, StagingPath};
use crate::platform::Platform;
use crate::xenbus::key_source::{KeySource, Pairs};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What a back says of it.
pub type Offer = keys::Offer;
/// What a front asks for, of all queues.
pub type Request = keys::Request;
/// What it asks for, of one queue.
pub type QueueRequest = keys::Lists;
/// How a back's operator wants it served.
pub type Config = acceptance::Heads;
/// What a front's owner would like.
pub type Wanted = Buffers;

/// The path, to the list of all.
#[derive(Clone, Copy, Debug)]
pub struct Staging;

impl Negotiation for Staging {
    const NAME: PathName = PathName::Staging;
    const KEYS: PathKeys = keys::KEYS;
    own_types! {}
    type Refusal = keys::ListRefusal;
    type Claims = claim::ByNumber;
    type Back<P: Platform> = StagingPath<P>;
    type Front<P: Platform> = front::StagingArea<P>;
    type Flagged<P: Platform> = NoMemory<P>;

    fn offer() -> keys::Offer {
        keys::Offer::all()
    }
    fn allow(config: &Self::Config, offer: &mut keys::Offer) {
        offer.rx_heads = config.heads;
    }
    fn put_offer(offer: &keys::Offer, pairs: &mut Pairs) {
        keys::put_offer(pairs, offer);
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<keys::Offer, S::Error> {
        keys::read_offer(keys)
    }
    fn put_request(request: &keys::Request, queues: &[(&str, &keys::Lists)], pairs: &mut Pairs) {
        keys::put_requests(pairs, *request, queues);
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &keys::Offer,
        queues: &[&str],
    ) -> Result<(keys::Request, Vec<keys::Lists>), S::Error> {
        keys::read_requests(keys, offered, queues)
    }
    fn acceptor<P: Platform>(config: &Self::Config, _fallback: PathName) -> Option<Box<dyn Accept<P>>> {
        Some(Box::new(acceptance::AcceptStaging { heads: config.heads }))
    }
    fn claims<P: Platform>(path: &StagingPath<P>) -> claim::ByNumber {
        claim::ByNumber(path.buffer_flag())
    }

    fn wanted() -> Buffers {
        Buffers::of(list::DataLen::new(256), list::DataLen::new(256))
    }
}

impl FrontNegotiation for Staging {
    const KEPT: bool = true;
    fn is_extra(asked: Buffers) -> bool {
        asked.buffers > 0
    }
    fn asked(wanted: Buffers, back: &BackFeatures, _can_name: bool) -> Buffers {
        wanted.offered_by(&back.staging)
    }
    fn not_offered(
        wanted: Buffers,
        _asked: Buffers,
        back: &BackFeatures,
        alone: bool,
    ) -> Vec<PathNotOffered> {
        wanted.not_offered(&back.staging, alone)
    }
    fn smaller(asked: Buffers, back: &BackFeatures) -> Vec<Buffers> {
        asked.smaller(&back.staging.sizes)
    }
    fn request_of(asked: Buffers) -> keys::Request {
        keys::Request { rx_heads: asked.rx_heads, ..keys::Request::default() }
    }
    fn take_memory<P: Platform>(
        asked: Buffers,
        queue: &mut QueueMemory<'_, P>,
    ) -> Result<keys::Lists, PlatformError> {
        front::take_buffers(asked, queue)
    }
    fn taken<S: KeySource>(
        keys: &mut S,
        _back: &BackFeatures,
        (i, n): (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        let text = keys.text(&keys::active_key(i, n))?;
        Ok(ActiveLists::parse(text.as_deref(), shared))
    }
}
