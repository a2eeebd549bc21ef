//! A path at the back.
//!
//! ```text
//!   TxBatch --fetch--> arena bytes        frames that a path does not serve come back in the Todo,
//!   burst --deliver--> RX slots           and the next of its [chain](super::Chain) is asked
//!           retire --> frames whose pages a path held longer than the call
//! ```
//!
//! A path is called once for a batch, with a bit for each frame. It reads grefs, ids and lengths
//! only from the batch's private copies, and marks a frame that it cannot fetch as failed. It never
//! touches the ring: the queue answers, in the order of requests.
//!
//! What only some paths have, a path hands over when its queue connects ([`BackParts`]).

use crate::bounded::Bounded;
use crate::net::batch::{RxBatch, Todo, TxBatch};
use crate::net::path::path_name::BufferNames;
use crate::platform::Platform;
use crate::port::{Arena, Burst, Token};
use crate::units::DomId;

/// Tells a queue to apply a new configuration before its next batch.
pub trait ConfigGeneration: Send + Sync {
    /// Announces a new configuration; it is applied after the current batch.
    fn advance(&self);
}

/// A path, for one direction of one queue.
pub trait BackPath<P: Platform> {
    /// Fetches the frames in `todo` from domain `of` into `out`; returns those that it does not
    /// serve.
    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo;
    /// Delivers the frames in `todo` to domain `of`, and fills their responses; returns those that
    /// it does not serve.
    fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo;
    /// Lets go of pages that earlier calls still hold, and appends each [held](TxBatch::held) frame
    /// that is free now. Called after the port has seen the burst.
    fn retire(&mut self, p: &P, done: &mut Bounded<Token>);
}

/// The optional parts of a path. The [chain](super::Chain) asks for them once, when the queue
/// connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackParts {
    /// Staging buffers, which stay with their ids.
    pub buffers: Option<BufferNames>,
    /// The path serves every frame, so that the paths after it in the chain get none.
    pub serves_all: bool,
    /// The path keeps the guest's pages mapped after it saw them, up to the number that the chain
    /// allows.
    pub kept_pages: bool,
    /// The path has an area of bytes that can be full.
    pub may_be_full: bool,
    /// The path uses pages that the vif's owner maps and unmaps on the guest's request; the two
    /// directions of a queue share them.
    pub given_pages: bool,
    /// The path delivers RX frames into pages of this domain that the guest may read.
    #[cfg(feature = "research")]
    pub lent_pages: bool,
    /// The path can leave payload in the guest's pages, for a port that reads it there, and can
    /// hold such frames after the call returns.
    pub holds_frames: bool,
    /// RX: the path leaves frames of several slots to `copy`, so that their first slot may be
    /// [cut](Arena::cut).
    pub leaves_long: bool,
}
