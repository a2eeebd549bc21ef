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
use crate::xenbus::KeyName;
use crate::xenbus::key_source::{KeySink, KeySource};

/// How the two ends of a vif agree to use a path, by keys in xenstore.
pub trait Negotiate {
    /// What a back offers, by its keys.
    type Offer;
    /// What a front's owner wants. The part of it that is asked of a back has the same type.
    type Wanted;
    /// What a front asks for, for all its queues together.
    type Request;
    /// What a front asks for, for one queue.
    type QueueRequest;
    /// State of a back while it accepts the queues of one front.
    type Acceptor<P: Platform>;

    /// Writes what a back offers.
    fn put_offer(offer: &Self::Offer, pairs: &mut dyn KeySink);
    /// Reads a back's offer from its keys.
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<Self::Offer, S::Error>;
    /// What a front requests of a back with this offer. `can_name`: the front's platform can name
    /// its memory by frame numbers.
    fn asked(wanted: Self::Wanted, offer: &Self::Offer, can_name: bool) -> Self::Wanted;
    /// Writes the request of a front as keys: for all queues together, and for each queue, whose
    /// keys begin with the given prefix.
    fn put_request(request: &Self::Request, queues: &[(&str, &Self::QueueRequest)], pairs: &mut dyn KeySink);
    /// Reads the request of a front that got this offer. `queues`: the prefix of each queue's keys.
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &Self::Offer,
        queues: &[KeyName],
    ) -> Requests<Self::Request, Self::QueueRequest, S::Error>;
    /// The key in the back's directory that says what the back accepted for a queue; None: there is
    /// no key, or the front does not ask.
    fn active_key(front: &FrontRequest, queue: usize) -> Option<KeyName>;
    /// Accepts a queue's request, as far as it is valid and can be mapped.
    fn accept<P: Platform>(
        acceptor: &mut Self::Acceptor<P>,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost>;
    /// The directions in which the back accepted what a queue shared with it, by the back's keys.
    /// The back can be a successor that never saw the request, so it must offer the path, too.
    fn taken<S: KeySource>(
        keys: &mut S,
        offer: &Self::Offer,
        queue: (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error>;
}
