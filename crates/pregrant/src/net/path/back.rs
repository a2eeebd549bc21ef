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

use crate::net::batch::{RxBatch, Todo, TxBatch};
use crate::net::path::path_name::BufferNames;
use crate::platform::Platform;
use crate::port::{Arena, Burst, Token};
use crate::units::DomId;
use alloc::vec::Vec;

/// Has a queue apply a new configuration before its next batch.
pub trait ConfigGeneration: Send + Sync {
    /// Once the current batch is over.
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
    fn retire(&mut self, p: &P, done: &mut Vec<Token>);
}

/// What a path has that others have not, as its [chain](super::Chain) looks at it: handed over
/// once, when the queue connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackParts {
    /// Buffers that stay with their ids.
    pub buffers: Option<BufferNames>,
    /// It leaves no frame to another path.
    pub serves_all: bool,
    /// It keeps pages mapped that it saw, as many as the chain allows it.
    pub kept_pages: bool,
    /// It fills bytes of its own until nothing fits.
    pub may_be_full: bool,
    /// It has pages that the vif's owner gives and takes back; the queue's two directions share
    /// them.
    pub given_pages: bool,
    /// It delivers into pages of this domain that the guest may read.
    #[cfg(feature = "research")]
    pub lent_pages: bool,
    /// It can leave payload where the guest put it, for a port that takes it there, and hold such
    /// frames longer than the call.
    pub holds_frames: bool,
}
