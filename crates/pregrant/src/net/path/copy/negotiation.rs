//! How the two ends negotiate `copy` ([`Negotiation`]): settings, offer, requests, memory.

use super::front;
use crate::net::path::uninhabited::{NoClaims, NoMemory, NoRefusal};
use crate::net::path::{CopyPath, FrameCost, FrontNegotiation, Negotiation, PathName};
use crate::platform::Platform;

pub use crate::net::path::negotiation::{
    Nothing as Offer, Nothing as Request, Nothing as QueueRequest, Nothing as Config, Nothing as Wanted,
};

/// The path, to the list of all.
#[derive(Clone, Copy, Debug)]
pub struct Copy;

impl Negotiation for Copy {
    const NAME: PathName = PathName::Copy;
    const COST: FrameCost = FrameCost::GrantCopy;
    own_types! {}
    type Refusal = NoRefusal;
    type Claims = NoClaims;
    type Back<P: Platform> = CopyPath;
    type Front<P: Platform> = front::OrdinaryPages<P>;
    type Flagged<P: Platform> = NoMemory<P>;
}

impl FrontNegotiation for Copy {}
