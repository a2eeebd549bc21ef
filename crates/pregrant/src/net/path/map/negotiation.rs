//! How the two ends negotiate `map` ([`Negotiation`]): settings, offer, requests, memory.

use super::acceptance;
use crate::net::path::acceptance::Accept;
use crate::net::path::uninhabited::{NoClaims, NoRefusal};
use crate::net::path::{FrameCost, FrontNegotiation, MapPath, Negotiation, PathName};
use crate::platform::Platform;
use alloc::boxed::Box;

pub use crate::net::path::negotiation::{
    Nothing as Offer, Nothing as Request, Nothing as QueueRequest, Nothing as Config, Nothing as Wanted,
};

/// The path, to the list of all.
#[derive(Clone, Copy, Debug)]
pub struct Map;

impl Negotiation for Map {
    const NAME: PathName = PathName::Map;
    const COST: FrameCost = FrameCost::MapAndUnmap;
    own_types! {}
    type Refusal = NoRefusal;
    type Claims = NoClaims;
    type Back<P: Platform> = MapPath<P>;
    no_memory! {}

    fn acceptor<P: Platform>(_config: &Self::Config, fallback: PathName) -> Option<Box<dyn Accept<P>>> {
        Some(Box::new(acceptance::AcceptMap { wanted: fallback == PathName::Map }))
    }
}

impl FrontNegotiation for Map {}
