//! What a path does at the back.
//!
//! ```text
//!   TxBatch --fetch--> arena bytes        what a path does not serve comes back in the Todo,
//!   burst --deliver--> RX slots           and the next of its [chain](super::Chain) is asked
//!           retire --> frames whose pages a path held longer than the call
//! ```
//!
//! A path is asked once per batch, with a bit per frame. It reads grefs, ids and lengths only from the batch's private
//! copies, and marks a frame that it cannot fetch as failed. It never touches the ring: answers are the queue's, in
//! request order.

use super::{CopyPath, MapPath, PersistentPath, StagingPath};
use crate::net::back::assemble::{Todo, TxBatch};
use crate::net::back::rx_batch::RxBatch;
use crate::platform::Platform;
use crate::port::{Arena, Burst};
use crate::units::DomId;
use alloc::vec::Vec;

/// Which counter of [`DirStats`](crate::net::stats::DirStats) a frame belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// It took grant operations.
    Granted,
    /// Its pages were mapped before.
    Persistent,
    /// It went through buffers that were mapped at connect.
    Staged,
}

/// A path, for one direction of one queue. Both directions default to serving nothing.
pub trait BackPath<P: Platform> {
    /// Its name in keys, tables and records.
    const NAME: &'static str;
    /// Where the frames that it serves are counted.
    const COUNTED: Counted = Counted::Granted;
    /// It chooses where in a slot's memory a frame begins, so that nobody else can leave room there.
    const PLACES: bool = false;

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
    /// Pages that it mapped since the connect and keeps; None: it never does.
    fn pages(&self) -> Option<usize> {
        None
    }
    /// How many that may be from now on; those that are too many are unmapped.
    fn limit_pages(&mut self, p: &P, pages: usize) {
        let _ = (p, pages);
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
    /// Pages that are mapped when they are first seen.
    Persistent(PersistentPath<P>),
    /// Buffers that were granted and mapped at connect.
    Staging(StagingPath<P>),
}

impl<P: Platform> AnyPath<P> {
    /// The path's name in keys, tables and records.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Copy(_) => <CopyPath as BackPath<P>>::NAME,
            Self::Map(_) => MapPath::<P>::NAME,
            Self::Persistent(_) => PersistentPath::<P>::NAME,
            Self::Staging(_) => StagingPath::<P>::NAME,
        }
    }

    /// [`BackPath::COUNTED`].
    #[inline(always)]
    pub fn counted(&self) -> Counted {
        match self {
            Self::Copy(_) => <CopyPath as BackPath<P>>::COUNTED,
            Self::Map(_) => MapPath::<P>::COUNTED,
            Self::Persistent(_) => PersistentPath::<P>::COUNTED,
            Self::Staging(_) => StagingPath::<P>::COUNTED,
        }
    }

    /// [`BackPath::PLACES`].
    pub fn places(&self) -> bool {
        match self {
            Self::Copy(_) => <CopyPath as BackPath<P>>::PLACES,
            Self::Map(_) => MapPath::<P>::PLACES,
            Self::Persistent(_) => PersistentPath::<P>::PLACES,
            Self::Staging(_) => StagingPath::<P>::PLACES,
        }
    }

    /// [`BackPath::fetch`].
    #[inline(always)]
    pub fn fetch(&mut self, p: &P, of: DomId, batch: &mut TxBatch, todo: Todo, out: &mut Arena) -> Todo {
        match self {
            Self::Copy(path) => path.fetch(p, of, batch, todo, out),
            Self::Map(path) => path.fetch(p, of, batch, todo, out),
            Self::Persistent(path) => path.fetch(p, of, batch, todo, out),
            Self::Staging(path) => path.fetch(p, of, batch, todo, out),
        }
    }

    /// [`BackPath::deliver`].
    #[inline(always)]
    pub fn deliver(&mut self, p: &P, of: DomId, batch: &mut RxBatch, frames: &Burst<'_>, todo: Todo) -> Todo {
        match self {
            Self::Copy(path) => path.deliver(p, of, batch, frames, todo),
            Self::Map(path) => path.deliver(p, of, batch, frames, todo),
            Self::Persistent(path) => path.deliver(p, of, batch, frames, todo),
            Self::Staging(path) => path.deliver(p, of, batch, frames, todo),
        }
    }

    /// [`BackPath::retire`].
    pub fn retire(&mut self, p: &P, done: &mut Vec<u64>) {
        match self {
            Self::Copy(path) => path.retire(p, done),
            Self::Map(path) => path.retire(p, done),
            Self::Persistent(path) => path.retire(p, done),
            Self::Staging(path) => path.retire(p, done),
        }
    }

    /// [`BackPath::pages`].
    pub fn pages(&self) -> Option<usize> {
        match self {
            Self::Copy(path) => BackPath::<P>::pages(path),
            Self::Map(path) => path.pages(),
            Self::Persistent(path) => path.pages(),
            Self::Staging(path) => path.pages(),
        }
    }

    /// [`BackPath::limit_pages`].
    pub fn limit_pages(&mut self, p: &P, pages: usize) {
        match self {
            Self::Copy(path) => path.limit_pages(p, pages),
            Self::Map(path) => path.limit_pages(p, pages),
            Self::Persistent(path) => path.limit_pages(p, pages),
            Self::Staging(path) => path.limit_pages(p, pages),
        }
    }
}
