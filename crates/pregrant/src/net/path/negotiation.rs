//! How the two ends agree on a path, by keys in xenstore.
//!
//! ```text
//!   back                                            front
//!     Offer --put_offer--> keys --read_offer--> Offer
//!                                               Wanted --asked--> the part that this back offers
//!     Request  <--read_request-- keys  <--put_request--  Request of the vif, QueueRequest of each queue
//!     accept --> paths of a chain, active_key ------>  taken: in which directions the back has it
//! ```
//! The paths with keys of their own implement this. Of the others `copy` works with every front,
//! `map` is the back's own choice, and `gref-mapping` needs no more than a control ring: what there
//! is to agree on stands in the `match` of [`Acceptors`](super::acceptors::Acceptors).
//!
//! Structs of all paths ([`BackFeatures`](crate::net::features::BackFeatures) and others) have a
//! field for each path, named like its folder.

use super::acceptance::{Accepted, Accepting, Lost, Said};
use super::active_lists::ActiveLists;
use super::keys::Requests;
use crate::net::features::FrontRequest;
use crate::platform::Platform;
use crate::xenbus::key_source::{KeySource, Pairs};
use alloc::string::String;

/// See the module.
pub trait Negotiate {
    /// What a back says of it.
    type Offer;
    /// What a front's owner would like; what of it is asked of a back is of the same type.
    type Wanted;
    /// What a front asks for, of all queues.
    type Request;
    /// What it asks for, of one queue.
    type QueueRequest;
    /// What a back keeps while it accepts the requests of one front, queue by queue.
    type Acceptor<P: Platform>;

    /// Writes what a back offers.
    fn put_offer(offer: &Self::Offer, pairs: &mut Pairs);
    /// Reads it.
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<Self::Offer, S::Error>;
    /// What a front requests of a back that offers this. `can_name`: the front's platform can name
    /// this domain's frames.
    fn asked(wanted: Self::Wanted, offer: &Self::Offer, can_name: bool) -> Self::Wanted;
    /// Writes what a front asks for: of all queues, and of each, whose keys begin so.
    fn put_request(request: &Self::Request, queues: &[(&str, &Self::QueueRequest)], pairs: &mut Pairs);
    /// Reads it, of a front that was offered this. `queues`: how the keys of each begin.
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &Self::Offer,
        queues: &[&str],
    ) -> Requests<Self::Request, Self::QueueRequest, S::Error>;
    /// The key, in the back's directory, that says what is accepted of a queue; None: there is
    /// none, or the front does not ask.
    fn active_key(front: &FrontRequest, queue: usize) -> Option<String>;
    /// Accepts a queue's request, as far as it is valid and can be mapped.
    fn accept<P: Platform>(
        acceptor: &mut Self::Acceptor<P>,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost>;
    /// In which directions the back has taken what a queue (which, of how many) shared with it, by
    /// its keys. The back may be a successor that never saw the request: it has to offer the path,
    /// too.
    fn taken<S: KeySource>(
        keys: &mut S,
        offer: &Self::Offer,
        queue: (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error>;
}
