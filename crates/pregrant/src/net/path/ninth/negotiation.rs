//! How the two ends negotiate `ninth` ([`Negotiation`]): settings, offer, requests, memory.

use super::back::NinthPath;
use super::{FEATURE, acceptance, keys};
use crate::net::features::BackFeatures;
use crate::net::front::Granting;
use crate::net::path::acceptance::Accept;
use crate::net::path::keys::PathKeys;
use crate::net::path::negotiation::{Nothing, Requests};
use crate::net::path::request_keys::flag_request;
use crate::net::path::uninhabited::{NoClaims, NoRefusal};
use crate::net::path::{FrontNegotiation, Negotiation, PathName};
use crate::platform::Platform;
use crate::xenbus::key_source::{KeySource, Pairs, flag, put};
use alloc::boxed::Box;

/// The back keeps the pages of a front that does so too mapped.
pub type Offer = bool;
/// Each of the front's references names the same page for as long as it is connected.
pub type Request = bool;
/// What it asks for, of one queue.
pub type QueueRequest = Nothing;
/// How many pages of each queue and direction may stay mapped once they were seen;
/// 0 unless the operator says otherwise.
pub type Config = usize;
/// Pages are granted once and used again and again.
pub type Wanted = bool;

/// The path, to the list of all.
#[derive(Clone, Copy, Debug)]
pub struct Ninth;

impl Negotiation for Ninth {
    const NAME: PathName = PathName::Ninth;
    const KEYS: PathKeys = keys::KEYS;
    own_types! {}
    type Refusal = NoRefusal;
    type Claims = NoClaims;
    type Back<P: Platform> = NinthPath<P>;
    no_memory! {}

    fn put_offer(offer: &bool, pairs: &mut Pairs) {
        if *offer {
            put(pairs, FEATURE, 1);
        }
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<bool, S::Error> {
        flag(keys, FEATURE)
    }
    fn put_request(request: &bool, _queues: &[(&str, &Nothing)], pairs: &mut Pairs) {
        if *request {
            put(pairs, FEATURE, 1);
        }
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &bool,
        queues: &[&str],
    ) -> Requests<bool, Nothing, S::Error> {
        flag_request(keys, *offered, queues, FEATURE)
    }
    fn kept_pages(config: &usize) -> usize {
        *config
    }
    fn acceptor<P: Platform>(config: &Config, _fallback: PathName) -> Option<Box<dyn Accept<P>>> {
        Some(Box::new(acceptance::AcceptNinth { limit: *config }))
    }
}

impl FrontNegotiation for Ninth {
    fn asked(wanted: bool, back: &BackFeatures, _can_name: bool) -> bool {
        wanted && back.ninth
    }
    fn granting(asked: bool) -> Option<Granting> {
        asked.then_some(Granting::Standing)
    }
    fn keeps_seen(asked: bool) -> bool {
        asked
    }
    fn request_of(asked: bool) -> bool {
        asked
    }
}
