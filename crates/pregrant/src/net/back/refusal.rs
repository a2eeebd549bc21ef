//! Why a staging list of a vif, or a half of its data ring, is not taken, or no page is lent: in words that name the front's key.
//!
//! What a front may do: cause any of these, again and again. The owner of the vif limits what is logged.

use crate::error::PlatformError;
use crate::net::path::data_ring::index::IndexFault;
use crate::net::path::staging::list::ListFault;
use crate::platform::MapError;
use crate::xenbus::KeyError;
use crate::xenbus::refusal::TooManyPages;
use core::fmt;

/// Why a staging list was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListRefusal {
    /// Its keys are of no use.
    Key(KeyError),
    /// Its entries are wrong.
    Fault(ListFault),
    /// A page of it, or a buffer, could not be mapped.
    Map(MapError),
    /// Its buffers pass what this back maps of one guest.
    TooManyPages(TooManyPages),
    /// It is no list: a half of the data ring was not taken.
    Half(HalfRefusal),
    /// It is no list: the guest's memory could not be mapped as a whole.
    Whole(PlatformError),
    /// It is no list: no pages are lent.
    Lending(LendRefusal),
}

impl ListRefusal {
    /// Whether it is of the data ring.
    pub fn is_of_data_ring(&self) -> bool {
        matches!(self, Self::Half(_))
    }
}

/// Why no pages are lent to a queue that asks for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LendRefusal {
    /// The key of the list page is of no use.
    Key(KeyError),
    /// The list page could not be mapped.
    List(MapError),
    /// They pass what one guest may have.
    TooManyPages(TooManyPages),
    /// The guest still has so many mapped that it was lent before.
    Held(usize),
    /// There are none to be granted.
    Grant(PlatformError),
}

impl fmt::Display for LendRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(e) => e.fmt(f),
            Self::List(e) => write!(f, "the list page: {}", e.status),
            Self::TooManyPages(e) => e.fmt(f),
            Self::Held(pages) => {
                write!(f, "the guest keeps some of {pages} pages mapped that it was lent before")
            }
            Self::Grant(e) => e.fmt(f),
        }
    }
}

/// Why a half of a data ring was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HalfRefusal {
    /// The key of the index page is of no use.
    Key(KeyError),
    /// The index page could not be mapped.
    Index(MapError),
    /// What the index page says is wrong.
    Fault(IndexFault),
    /// A page of it could not be mapped.
    Map(MapError),
    /// Its pages pass what this back maps of one guest.
    TooManyPages(TooManyPages),
}

impl fmt::Display for HalfRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(e) => e.fmt(f),
            Self::Index(e) => write!(f, "the index page: {}", e.status),
            Self::Fault(e) => e.fmt(f),
            Self::Map(MapError { index: Some(i), status }) => write!(f, "page {i} of this half: {status}"),
            Self::Map(MapError { index: None, status }) => write!(f, "a page of this half: {status}"),
            Self::TooManyPages(e) => e.fmt(f),
        }
    }
}

impl fmt::Display for ListRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(e) => e.fmt(f),
            Self::Fault(e) => e.fmt(f),
            Self::Map(MapError { index: Some(i), status }) => write!(f, "grant number {i} of it: {status}"),
            Self::Map(MapError { index: None, status }) => write!(f, "a grant of it: {status}"),
            Self::TooManyPages(e) => e.fmt(f),
            Self::Half(e) => e.fmt(f),
            Self::Whole(e) => e.fmt(f),
            Self::Lending(e) => e.fmt(f),
        }
    }
}
