//! How the two ends negotiate `guest-copy` ([`Negotiation`]): settings, offer, requests, memory.

use super::{FEATURE, LIST_REF, acceptance, front, keys};
use crate::error::PlatformError;
use crate::net::features::BackFeatures;
use crate::net::front::queue_memory::QueueMemory;
use crate::net::path::acceptance::Accept;
use crate::net::path::active::ActiveLists;
use crate::net::path::keys::PathKeys;
use crate::net::path::negotiation::{Nothing, Requests};
use crate::net::path::request_keys::{RingRequest, put_ring_requests, ring_requests};
use crate::net::path::uninhabited::{NoClaims, NoMemory};
use crate::net::path::{FrameCost, FrontNegotiation, GuestCopyPath, Negotiation, PathName};
use crate::platform::Platform;
use crate::xenbus::key_source::{KeySource, Pairs, flag, put};
use alloc::boxed::Box;

/// The back lends pages of its own for RX.
pub type Offer = bool;
/// What a front asks for, of all queues.
pub type Request = Nothing;
/// The list page, if the front wants that.
pub type QueueRequest = RingRequest;
/// Whether pages of this domain are lent for RX to a guest that wants to copy itself
/// (docs/protocol 4.7); only where the platform says that a page is still mapped when it is to
/// be released.
pub type Config = bool;
/// Where the back lends pages of its own, received frames that fit no staging buffer are copied
/// from there by this domain (docs/protocol 4.7); those that were not when a back ends are
/// lost.
pub type Wanted = bool;

/// The path, to the list of all.
#[derive(Clone, Copy, Debug)]
pub struct GuestCopy;

impl Negotiation for GuestCopy {
    const NAME: PathName = PathName::GuestCopy;
    const COST: FrameCost = FrameCost::CopyByGuest;
    const KEYS: PathKeys = keys::KEYS;
    own_types! {}
    type Refusal = keys::LendRefusal;
    type Claims = NoClaims;
    type Back<P: Platform> = GuestCopyPath<P>;
    type Front<P: Platform> = NoMemory<P>;
    type Flagged<P: Platform> = front::BackPages<P>;

    fn allow(config: &bool, offer: &mut bool) {
        *offer = *config;
    }
    fn put_offer(offer: &bool, pairs: &mut Pairs) {
        put(pairs, FEATURE, u32::from(*offer));
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<bool, S::Error> {
        flag(keys, FEATURE)
    }
    fn put_request(_request: &Nothing, queues: &[(&str, &RingRequest)], pairs: &mut Pairs) {
        put_ring_requests(pairs, queues, LIST_REF);
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &bool,
        queues: &[&str],
    ) -> Requests<Nothing, RingRequest, S::Error> {
        ring_requests(keys, *offered, queues, LIST_REF)
    }
    fn acceptor<P: Platform>(config: &Self::Config, _fallback: PathName) -> Option<Box<dyn Accept<P>>> {
        Some(Box::new(acceptance::AcceptGuestCopy::new(*config)))
    }
}

impl FrontNegotiation for GuestCopy {
    fn asked(wanted: bool, back: &BackFeatures, _can_name: bool) -> bool {
        wanted && back.guest_copy
    }
    fn take_memory<P: Platform>(
        asked: bool,
        queue: &mut QueueMemory<'_, P>,
    ) -> Result<RingRequest, PlatformError> {
        if asked { front::take_list(queue) } else { Ok(RingRequest::None) }
    }
    fn taken<S: KeySource>(
        keys: &mut S,
        back: &BackFeatures,
        (i, n): (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        let lends = back.guest_copy && keys.text(&keys::active_key(i, n))?.as_deref() == Some("1");
        Ok(if lends { shared } else { ActiveLists::NONE })
    }
}
