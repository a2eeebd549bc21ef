//! What the two ends agree on about the path, and what each of them takes for it
//! ([`Negotiation`]).

use super::accept;
use crate::net::path::accept::Accept;
use crate::net::path::negotiation::Nothing;
use crate::net::path::none::{NoClaims, NoMemory, NoRefusal};
use crate::net::path::{Asks, FrameCost, MapPath, Negotiation, PathName};
use crate::platform::Platform;
use alloc::boxed::Box;

/// What a back says of it.
pub type Offer = Nothing;
/// What a front asks for, of all queues.
pub type Request = Nothing;
/// What it asks for, of one queue.
pub type QueueRequest = Nothing;
/// How a back's operator wants it served.
pub type Config = Nothing;
/// What a front's owner would like.
pub type Wanted = Nothing;

/// The path, to the list of all.
#[derive(Clone, Copy, Debug)]
pub struct Map;

impl Negotiation for Map {
    const NAME: PathName = PathName::Map;
    const COST: FrameCost = FrameCost::MapAndUnmap;
    type Offer = Offer;
    type Request = Request;
    type QueueRequest = QueueRequest;
    type Config = Config;
    type Wanted = Wanted;
    type Refusal = NoRefusal;
    type Claims = NoClaims;
    type Back<P: Platform> = MapPath<P>;
    type Front<P: Platform> = NoMemory<P>;
    type Named<P: Platform> = NoMemory<P>;

    fn acceptor<P: Platform>(_config: &Self::Config, fallback: PathName) -> Option<Box<dyn Accept<P>>> {
        Some(Box::new(accept::AcceptMap { wanted: fallback == PathName::Map }))
    }
}

impl Asks for Map {}
