//! Any path's memory at the front, as one type: the one file at the front that knows them all.

use super::copy::front::OrdinaryPages;
use super::foreign::front::ForeignPages;
use super::front::FrontPath;
use super::staging::front::StagingArea;
use crate::net::front::regions::Regions;
use crate::platform::Platform;

/// The memory that a queue's frames can travel in, matched once for a run of frames.
pub enum AnyFrontPath<P: Platform> {
    /// Buffers that are granted at connect.
    Staging(StagingArea<P>),
    /// Pages with grants of their own: for each frame, or once, and then the back may keep them mapped.
    Pages(OrdinaryPages<P>),
    /// The same, named by their frames to a back that has mapped all of the guest.
    Foreign(ForeignPages<P>),
}

/// Does the same with whichever it is; compiled for each.
macro_rules! with_path {
    ($any:expr, $path:ident => $what:expr) => {
        match $any {
            $crate::net::path::AnyFrontPath::Staging($path) => $what,
            $crate::net::path::AnyFrontPath::Pages($path) => $what,
            $crate::net::path::AnyFrontPath::Foreign($path) => $what,
        }
    };
}
pub(crate) use with_path;

impl<P: Platform> AnyFrontPath<P> {
    /// [`FrontPath::ids`].
    pub fn ids(&self) -> u32 {
        with_path!(self, path => path.ids())
    }

    /// [`FrontPath::slot_bytes`].
    #[inline(always)]
    pub fn slot_bytes(&self) -> usize {
        with_path!(self, path => path.slot_bytes())
    }

    /// [`FrontPath::carries_all`].
    #[inline(always)]
    pub fn carries_all(&self) -> bool {
        with_path!(self, path => path.carries_all())
    }

    /// [`FrontPath::takes_first`].
    #[inline(always)]
    pub fn takes_first(&self) -> bool {
        with_path!(self, path => path.takes_first())
    }

    /// [`FrontPath::head`].
    #[inline(always)]
    pub fn head(&mut self, id: u16, frame: &[u8]) {
        with_path!(self, path => path.head(id, frame));
    }

    /// [`FrontPath::release`].
    pub fn release(self, p: &P, regions: &mut Regions<P>) {
        with_path!(self, path => path.release(p, regions));
    }
}
