//! Any path's memory at the front, as one type: the one file at the front that knows them all.

use super::PathName;
use super::copy::front::OrdinaryPages;
use super::data_ring::front::{RecvArea, SendArea};
use super::foreign::front::ForeignPages;
use super::front::FrontPath;
use super::guest_copy::front::BackPages;
use super::named::NamedPath;
use super::staging::front::StagingArea;
use crate::net::front::regions::Granted;
use crate::platform::Platform;
use crate::port::Source;
use crate::wire::netif::RxResponse;
use alloc::vec::Vec;

/// The memory that a queue's frames can travel in, matched once for a run of frames. In the order
/// in which paths are asked.
#[repr(u8)] // a tag that is a byte: it is matched for each answer of TX
pub enum AnyFrontPath<P: Platform> {
    /// Buffers that are granted at connect.
    Staging(StagingArea<P>),
    /// TX: a circular area that is granted at connect.
    DataRing(SendArea<P>),
    /// Pages with grants of their own: for each frame, or once, and then the back may keep them
    /// mapped.
    Pages(OrdinaryPages<P>),
    /// The same, named by their frames to a back that has mapped all of the guest.
    Foreign(ForeignPages<P>),
}

/// RX memory that responses name by their flags.
pub enum AnyNamedPath<P: Platform> {
    /// A circular area that is granted at connect.
    DataRing(RecvArea<P>),
    /// Pages of the back's.
    GuestCopy(BackPages<P>),
}

/// Does the same with whichever it is; compiled for each.
macro_rules! with_path {
    ($any:expr, $path:ident => $what:expr) => {
        match $any {
            $crate::net::path::AnyFrontPath::Staging($path) => $what,
            $crate::net::path::AnyFrontPath::DataRing($path) => $what,
            $crate::net::path::AnyFrontPath::Pages($path) => $what,
            $crate::net::path::AnyFrontPath::Foreign($path) => $what,
        }
    };
}
pub(crate) use with_path;

/// The same of memory that responses name.
macro_rules! with_named {
    ($any:expr, $path:ident => $what:expr) => {
        match $any {
            $crate::net::path::AnyNamedPath::DataRing($path) => $what,
            $crate::net::path::AnyNamedPath::GuestCopy($path) => $what,
        }
    };
}
pub(crate) use with_named;

fn name_of<P: Platform, F: FrontPath<P>>(_: &F) -> PathName {
    F::NAME
}

impl<P: Platform> AnyFrontPath<P> {
    /// [`FrontPath::NAME`].
    pub fn name(&self) -> PathName {
        with_path!(self, path => name_of(path))
    }

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
    pub fn head(&mut self, id: u16, frame: &impl Source) {
        with_path!(self, path => path.head(id, frame));
    }

    /// [`FrontPath::most`].
    pub fn most(&self) -> u64 {
        with_path!(self, path => path.most())
    }

    /// [`FrontPath::into_memory`].
    pub fn into_memory(self) -> Vec<Granted<P>> {
        with_path!(self, path => path.into_memory())
    }
}

fn of_named<P: Platform, F: NamedPath<P>>(_: &F) -> (PathName, u16) {
    (F::NAME, F::FLAGS)
}

#[inline(always)]
fn fetches<P: Platform, F: NamedPath<P>>(_: &F) -> bool {
    F::FETCHES
}

impl<P: Platform> AnyNamedPath<P> {
    /// Flags by which a response may name memory, whether a queue has it or not.
    pub const FLAGS: u16 = <RecvArea<P> as NamedPath<P>>::FLAGS | <BackPages<P> as NamedPath<P>>::FLAGS;

    /// [`NamedPath::NAME`].
    pub fn name(&self) -> PathName {
        with_named!(self, path => of_named(path).0)
    }

    /// [`NamedPath::FLAGS`].
    #[inline(always)]
    pub fn flags(&self) -> u16 {
        with_named!(self, path => of_named(path).1)
    }

    /// [`NamedPath::FETCHES`].
    #[inline(always)]
    pub fn fetches(&self) -> bool {
        with_named!(self, path => fetches(path))
    }

    /// [`NamedPath::can_have`].
    pub fn can_have(&self, rsp: &RxResponse) -> bool {
        with_named!(self, path => path.can_have(rsp))
    }

    /// [`NamedPath::into_memory`].
    pub fn into_memory(self) -> Vec<Granted<P>> {
        with_named!(self, path => path.into_memory())
    }
}
