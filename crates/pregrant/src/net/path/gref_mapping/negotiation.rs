//! How the two ends negotiate `gref-mapping` ([`Negotiation`]): settings, offer, requests, memory.

use super::{DEFAULT_LIMIT, acceptance};
use crate::net::features::BackFeatures;
use crate::net::front::Granting;
use crate::net::path::acceptance::Accept;
use crate::net::path::negotiation::Nothing;
use crate::net::path::uninhabited::{NoClaims, NoRefusal};
use crate::net::path::{FrontNegotiation, GrefMappingPath, Negotiation, PathName};
use crate::platform::Platform;
use alloc::boxed::Box;

/// What a back says of it.
pub type Offer = Nothing;
/// What a front asks for, of all queues.
pub type Request = Nothing;
/// What it asks for, of one queue.
pub type QueueRequest = Nothing;
/// How many pages of each queue the front may have mapped by request; 0: such requests are not
/// supported.
pub type Config = usize;
/// Pages are granted once, and the back is asked to keep them mapped. With a control ring then.
pub type Wanted = bool;

/// The path, to the list of all.
#[derive(Clone, Copy, Debug)]
pub struct GrefMapping;

impl Negotiation for GrefMapping {
    const NAME: PathName = PathName::GrefMapping;
    own_types! {}
    type Refusal = NoRefusal;
    type Claims = NoClaims;
    type Back<P: Platform> = GrefMappingPath<P>;
    no_memory! {}

    fn config() -> usize {
        DEFAULT_LIMIT
    }
    fn mapped_pages(config: &usize) -> Option<usize> {
        Some(*config).filter(|pages| *pages > 0)
    }
    fn acceptor<P: Platform>(config: &Self::Config, _fallback: PathName) -> Option<Box<dyn Accept<P>>> {
        Some(Box::new(acceptance::AcceptGrefMapping { limit: *config }))
    }
}

impl FrontNegotiation for GrefMapping {
    fn asked(wanted: bool, back: &BackFeatures, _can_name: bool) -> bool {
        wanted && back.ctrl_ring
    }
    fn granting(asked: bool) -> Option<Granting> {
        asked.then_some(Granting::Standing)
    }
    fn pages(asked: bool, back: &BackFeatures, queues: u32) -> u32 {
        if asked { back.mapped_pages_of(queues) } else { 0 }
    }
    fn needs_ctrl(asked: bool) -> bool {
        asked
    }
}
