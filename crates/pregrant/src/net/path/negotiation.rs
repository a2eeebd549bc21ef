//! A path as the two ends negotiate it: the types and functions by which one loop over the list of
//! paths offers, requests and accepts each.
//!
//! ```text
//!   back                                            front
//!     Config --allow--> Offer --put_offer--> keys --read_offer--> Offer
//!     Request  <--read_request-- keys  <--put_request--  Request of the vif, QueueRequest of each queue
//!     acceptor --> paths of a chain (Back)          Wanted --asked--> the part that this back offers
//!                                                   --take_memory--> memory of a chain (Front, Flagged)
//!     active key ------------------------------>    taken: in which directions the back has it
//! ```
//! Structs of all paths ([`BackFeatures`](crate::net::features::BackFeatures) and others) have a
//! field for each path, named like its folder. A method that a path does not implement means that
//! the path has no such part.

use super::acceptance::Accept;
use super::back::{BackPath, RequestClaims};
use super::flagged_rx::FlaggedPath;
use super::front::FrontPath;
use super::keys::PathKeys;
use super::path_name::{FrameCost, PathName};
use super::path_refusal::PathRefusal;
use crate::platform::Platform;
use crate::xenbus::key_source::{KeySource, Pairs};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::Debug;

/// What a path has none of: an offer, a request, a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Nothing;

/// A path's request to all queues, and to each; or the keys' error.
pub type Requests<A, Q, E> = Result<(A, Vec<Q>), E>;

/// See the module.
pub trait Negotiation {
    /// Which path.
    const NAME: PathName;
    /// What a frame costs that it serves.
    const COST: FrameCost = FrameCost::NoGrantOperation;
    /// Its keys.
    const KEYS: PathKeys = PathKeys::NONE;

    /// What a back says of it.
    type Offer: Clone + PartialEq + Eq + Debug + Default;
    /// What a front asks for, of all queues.
    type Request: Clone + PartialEq + Eq + Debug + Default;
    /// What it asks for, of one queue.
    type QueueRequest: Clone + PartialEq + Eq + Debug + Default;
    /// How a back's operator wants it served.
    type Config: Copy + PartialEq + Eq + Debug + Default;
    /// What a front's owner would like; what of it is asked of a back is of the same type, and its
    /// default is nothing.
    type Wanted: Copy + PartialEq + Eq + Debug + Default;
    /// Why a queue goes on without it.
    type Refusal: PathRefusal;
    /// Which requests are its own.
    type Claims: RequestClaims;
    /// At the back.
    type Back<P: Platform>: BackPath<P>;
    /// Memory at the front whose frames are in their ids' places.
    type Front<P: Platform>: FrontPath<P>;
    /// Memory at the front that responses name.
    type Flagged<P: Platform>: FlaggedPath<P>;

    /// A back's offer unless it is configured.
    fn offer() -> Self::Offer {
        Self::Offer::default()
    }
    /// A front's preference unless it is configured.
    fn wanted() -> Self::Wanted {
        Self::Wanted::default()
    }
    /// How it is served unless it is configured.
    fn config() -> Self::Config {
        Self::Config::default()
    }

    /// Offers it where the operator allows it, and only there; of paths that need that.
    fn allow(config: &Self::Config, offer: &mut Self::Offer) {
        let _ = (config, offer);
    }
    /// Writes what a back offers.
    fn put_offer(offer: &Self::Offer, pairs: &mut Pairs) {
        let _ = (offer, pairs);
    }
    /// Reads it.
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<Self::Offer, S::Error> {
        let _ = keys;
        Ok(Self::Offer::default())
    }
    /// Writes what a front asks for: of all queues, and of each, whose keys begin so.
    fn put_request(request: &Self::Request, queues: &[(&str, &Self::QueueRequest)], pairs: &mut Pairs) {
        let _ = (request, queues, pairs);
    }
    /// Reads it, of a front that was offered this. `queues`: how the keys of each begin.
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &Self::Offer,
        queues: &[&str],
    ) -> Requests<Self::Request, Self::QueueRequest, S::Error> {
        let _ = (keys, offered, queues);
        Ok((Self::Request::default(), queues.iter().map(|_| Self::QueueRequest::default()).collect()))
    }

    /// Ordinary pages of a vif, of both directions, that it has room for; None: it keeps none.
    fn mapped_pages(config: &Self::Config) -> Option<usize> {
        let _ = config;
        None
    }
    /// Pages of each queue and direction that may stay mapped once they were seen.
    fn kept_pages(config: &Self::Config) -> usize {
        let _ = config;
        0
    }
    /// What takes it for a front that connects; None: it needs no agreement. `fallback`: the path
    /// that the operator wants for frames that no memory was shared for.
    fn acceptor<P: Platform>(config: &Self::Config, fallback: PathName) -> Option<Box<dyn Accept<P>>> {
        let _ = (config, fallback);
        None
    }
    /// Which requests are its own, of a queue that has it so.
    fn claims<P: Platform>(path: &Self::Back<P>) -> Self::Claims {
        let _ = path;
        Self::Claims::default()
    }
}

/// A struct that has a field for path `N`.
pub trait OfPath<N: Negotiation> {
    /// The field's meaning.
    type Field;
    /// The field.
    fn path(&self) -> &Self::Field;
    /// The same, to be written.
    fn path_mut(&mut self) -> &mut Self::Field;
}
