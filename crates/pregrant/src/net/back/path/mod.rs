//! How the bytes of a batch travel: one strategy per file, behind one interface.
//!
//! ```text
//!   TxBatch --fetch--> arena bytes        what a path does not serve comes back in the Todo,
//!   burst --deliver--> RX slots           and `copy` serves it
//!           retire --> frames whose pages a path held longer than the call
//! ```
//!
//! A path is asked once per batch, with a bit per frame. It reads grefs, ids and lengths only from the batch's private
//! copies, and marks a frame that it cannot fetch as failed. It never touches the ring: answers are the queue's, in
//! request order.

mod copy;
mod map;
mod staging;

pub use copy::CopyPath;
pub use map::{MAP_HEADER_BYTES, MapPath};
pub use staging::{StagedBuffers, StagingPath};

use super::assemble::{Todo, TxBatch};
use super::rx_batch::RxBatch;
use crate::platform::Platform;
use crate::port::{Arena, Burst};
use crate::units::DomId;
use alloc::vec::Vec;

/// A strategy, for one direction of one queue. Both directions default to serving nothing.
pub trait BackPath<P: Platform> {
    /// Fetches the frames in `todo` from domain `of` into `out`; returns those that it does not serve.
    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        let _ = (p, of, batch, out);
        todo
    }
    /// Delivers the frames in `todo` to domain `of`, and fills their responses; returns those that it does not serve.
    fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        let _ = (p, of, batch, frames);
        todo
    }
    /// Lets go of pages that earlier calls still hold, and appends one entry for each frame that is free now (the
    /// frame's number in [`TxBatch::held`] order). Called after the port has seen the burst.
    fn retire(&mut self, p: &P, done: &mut Vec<u64>) {
        let _ = (p, done);
    }
}

/// The paths that a queue can run, matched once per batch.
pub enum AnyPath<P: Platform> {
    /// Batched grant copy.
    Copy(CopyPath),
    /// Header copy, map and unmap of the rest.
    Map(MapPath<P>),
    /// Buffers that were granted and mapped at connect.
    Staging(StagingPath<P>),
}

impl<P: Platform> AnyPath<P> {
    /// The path's name in keys, tables and records.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Copy(_) => "copy",
            Self::Map(_) => "map",
            Self::Staging(_) => "staging",
        }
    }
}

impl<P: Platform> BackPath<P> for AnyPath<P> {
    #[inline(always)]
    fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        match self {
            Self::Copy(path) => path.fetch(p, of, batch, todo, out),
            Self::Map(path) => path.fetch(p, of, batch, todo, out),
            Self::Staging(path) => path.fetch(p, of, batch, todo, out),
        }
    }
    #[inline(always)]
    fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        match self {
            Self::Copy(path) => path.deliver(p, of, batch, frames, todo),
            Self::Map(path) => path.deliver(p, of, batch, frames, todo),
            Self::Staging(path) => path.deliver(p, of, batch, frames, todo),
        }
    }
    fn retire(&mut self, p: &P, done: &mut Vec<u64>) {
        match self {
            Self::Map(path) => path.retire(p, done),
            Self::Copy(_) | Self::Staging(_) => {}
        }
    }
}
