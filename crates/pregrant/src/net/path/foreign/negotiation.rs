//! How the two ends negotiate `foreign` ([`Negotiation`]): settings, offer, requests, memory.

use super::{ACTIVE, FEATURE, REQUEST, acceptance, claim, front, keys};
use crate::error::PlatformError;
use crate::net::features::BackFeatures;
use crate::net::front::Granting;
use crate::net::front::queue_memory::{IDS_MAX, QueueMemory};
use crate::net::path::acceptance::Accept;
use crate::net::path::active::ActiveLists;
use crate::net::path::keys::PathKeys;
use crate::net::path::negotiation::{Nothing, Requests};
use crate::net::path::request_keys::flag_request;
use crate::net::path::uninhabited::NoMemory;
use crate::net::path::{ForeignPath, FrontNegotiation, Negotiation, PathName};
use crate::platform::Platform;
use crate::xenbus::key_source::{KeySource, Pairs, flag, put};
use alloc::boxed::Box;

/// The back maps all of a guest that asks for it.
pub type Offer = bool;
/// The back may map all of this guest.
pub type Request = bool;
/// What it asks for, of one queue.
pub type QueueRequest = Nothing;
/// Whether all memory of a guest that asks for it may be mapped, which leaves nothing between
/// it and this back (docs/protocol 4.6); only where the platform can.
pub type Config = bool;
/// Where the back may map all of this domain, frames are in pages that are named and not
/// granted (docs/protocol 4.6); it can read and write everything then. Other paths are not
/// asked for beside it.
pub type Wanted = bool;

/// The path, to the list of all.
#[derive(Clone, Copy, Debug)]
pub struct Foreign;

impl Negotiation for Foreign {
    const NAME: PathName = PathName::Foreign;
    const KEYS: PathKeys = keys::KEYS;
    own_types! {}
    type Refusal = keys::WholeRefusal;
    type Claims = claim::NamesFrames;
    type Back<P: Platform> = ForeignPath<P>;
    type Front<P: Platform> = front::ForeignPages<P>;
    type Flagged<P: Platform> = NoMemory<P>;

    fn allow(config: &bool, offer: &mut bool) {
        *offer = *config;
    }
    fn put_offer(offer: &bool, pairs: &mut Pairs) {
        put(pairs, FEATURE, u32::from(*offer));
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<bool, S::Error> {
        flag(keys, FEATURE)
    }
    fn put_request(request: &bool, _queues: &[(&str, &Nothing)], pairs: &mut Pairs) {
        if *request {
            put(pairs, REQUEST, 1);
        }
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &bool,
        queues: &[&str],
    ) -> Requests<bool, Nothing, S::Error> {
        flag_request(keys, *offered, queues, REQUEST)
    }
    fn acceptor<P: Platform>(config: &Self::Config, _fallback: PathName) -> Option<Box<dyn Accept<P>>> {
        Some(Box::new(acceptance::AcceptForeign::new(*config)))
    }
    fn claims<P: Platform>(_path: &ForeignPath<P>) -> claim::NamesFrames {
        claim::NamesFrames::ALLOWED
    }
}

impl FrontNegotiation for Foreign {
    fn asked(wanted: bool, back: &BackFeatures, can_name: bool) -> bool {
        wanted && back.foreign && can_name
    }
    fn is_alone(asked: bool) -> bool {
        asked
    }
    fn granting(asked: bool) -> Option<Granting> {
        asked.then_some(Granting::PerFrame)
    }
    /// The back has all memory mapped.
    fn pages(asked: bool, _back: &BackFeatures, _queues: u32) -> u32 {
        if asked { IDS_MAX } else { 0 }
    }
    fn request_of(asked: bool) -> bool {
        asked
    }
    fn take_memory<P: Platform>(
        asked: bool,
        queue: &mut QueueMemory<'_, P>,
    ) -> Result<Nothing, PlatformError> {
        if asked {
            front::take_pages(queue)?;
        }
        Ok(Nothing)
    }
    fn taken<S: KeySource>(
        keys: &mut S,
        back: &BackFeatures,
        _queue: (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        let is_mapped = back.foreign && keys.text(ACTIVE)?.as_deref() == Some("1");
        Ok(if is_mapped { shared } else { ActiveLists::NONE })
    }
}
