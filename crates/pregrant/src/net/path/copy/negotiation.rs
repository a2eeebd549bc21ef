//! What the two ends agree on about the path, and what each of them takes for it
//! ([`Negotiation`]).

use super::front;
use crate::net::path::negotiation::Nothing;
use crate::net::path::none::{NoClaims, NoMemory, NoRefusal};
use crate::net::path::{Asks, CopyPath, FrameCost, Negotiation, PathName};
use crate::platform::Platform;

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
pub struct Copy;

impl Negotiation for Copy {
    const NAME: PathName = PathName::Copy;
    const COST: FrameCost = FrameCost::GrantCopy;
    type Offer = Offer;
    type Request = Request;
    type QueueRequest = QueueRequest;
    type Config = Config;
    type Wanted = Wanted;
    type Refusal = NoRefusal;
    type Claims = NoClaims;
    type Back<P: Platform> = CopyPath;
    type Front<P: Platform> = front::OrdinaryPages<P>;
    type Named<P: Platform> = NoMemory<P>;
}

impl Asks for Copy {}
