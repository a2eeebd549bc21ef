//! All paths as one type: this is the only file at the back that knows all of them.

use super::back::{BackPath, Direction, Held, PageTransfer, Part};
use super::copy::back::CopyPath;
use super::map::back::MapPath;
use super::path_name::PathName;
use super::persistent::back::PersistentPath;
use crate::blk::disk::IoMemory;
use crate::error::PlatformError;
use crate::platform::Platform;
use crate::units::DomId;

/// The path of a queue, which is matched once per batch, or once per request of a batch.
pub enum AnyPath<P: Platform> {
    /// The back copies data by batched grant copies.
    Copy(CopyPath),
    /// The back maps a request's pages, and unmaps them with its batch.
    Map(MapPath<P>),
    /// The back keeps pages mapped once it has seen them.
    Persistent(PersistentPath<P>),
}

/// Evaluates `$call` with `$path` bound to the path of any variant.
macro_rules! with_path {
    ($any:expr, $path:ident => $call:expr) => {
        match $any {
            Self::Copy($path) => $call,
            Self::Map($path) => $call,
            Self::Persistent($path) => $call,
        }
    };
}

fn name<P: Platform, B: BackPath<P>>(_: &B) -> PathName {
    B::NAME
}

impl<P: Platform> AnyPath<P> {
    /// Creates the path `name`. `limit` is the most pages that it keeps mapped, if it keeps any.
    pub fn new(name: PathName, limit: usize) -> Result<Self, PlatformError> {
        Ok(match name {
            PathName::Copy => Self::Copy(CopyPath::default()),
            PathName::Map => Self::Map(MapPath::default()),
            PathName::Persistent => Self::Persistent(PersistentPath::new(limit)?),
        })
    }

    /// See [`BackPath::NAME`].
    pub fn name(&self) -> PathName {
        with_path!(self, path => name::<P, _>(path))
    }

    /// See [`BackPath::read_list`].
    pub fn read_list(&mut self, p: &P, of: DomId, refs: &[u32], out: &mut [u8]) -> bool {
        with_path!(self, path => path.read_list(p, of, refs, out))
    }

    /// See [`BackPath::begin`].
    pub fn begin(
        &mut self,
        p: &P,
        of: DomId,
        way: Direction,
        parts: &[Part],
        held: &mut Held<P>,
    ) -> Option<IoMemory> {
        with_path!(self, path => path.begin(p, of, way, parts, held))
    }

    /// See [`BackPath::fetch`].
    pub fn fetch<'a>(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut [PageTransfer],
        parts: impl Fn(u32) -> &'a [Part],
    ) {
        with_path!(self, path => path.fetch(p, of, batch, parts))
    }

    /// See [`BackPath::deliver`].
    pub fn deliver<'a>(
        &mut self,
        p: &P,
        of: DomId,
        batch: &mut [PageTransfer],
        parts: impl Fn(u32) -> &'a [Part],
    ) {
        with_path!(self, path => path.deliver(p, of, batch, parts))
    }

    /// See [`BackPath::end`].
    pub fn end(&mut self, memory: IoMemory, held: &mut Held<P>) {
        with_path!(self, path => path.end(memory, held))
    }

    /// See [`BackPath::settle`].
    pub fn settle(&mut self, p: &P) {
        with_path!(self, path => path.settle(p))
    }

    /// See [`BackPath::pages`].
    pub fn pages(&self) -> Option<usize> {
        with_path!(self, path => BackPath::<P>::pages(path))
    }

    /// See [`BackPath::limit_pages`].
    pub fn limit_pages(&mut self, p: &P, pages: usize, alone: usize) {
        with_path!(self, path => path.limit_pages(p, pages, alone))
    }

    /// See [`BackPath::overflows`].
    pub fn overflows(&self) -> u64 {
        with_path!(self, path => BackPath::<P>::overflows(path))
    }
}
