//! Any of the paths, as one type: the one file at the back that knows them all.
//!
//! ```text
//!   Chain --> AnyPath --match, once a batch--> CopyPath, MapPath, PersistentPath, StagingPath
//! ```

use super::back::{BackPath, Lends};
use super::copy::back::CopyPath;
use super::map::back::MapPath;
use super::persistent::back::PersistentPath;
use super::staging::back::StagingPath;
use crate::net::back::assemble::{Todo, TxBatch};
use crate::net::back::rx_batch::RxBatch;
use crate::net::stats::Counted;
use crate::platform::Platform;
use crate::port::{Arena, Burst};
use crate::units::DomId;
use alloc::vec::Vec;

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

    /// [`BackPath::lends`].
    pub fn lends(&mut self) -> Option<&mut dyn Lends<P>> {
        match self {
            Self::Copy(path) => path.lends(),
            Self::Map(path) => path.lends(),
            Self::Persistent(path) => path.lends(),
            Self::Staging(path) => path.lends(),
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
