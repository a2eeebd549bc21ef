//! Why a queue goes on without a path that its front requested. The text of each path's reasons is
//! beside its keys.
//!
//! What a front may do: cause any of these, again and again. The owner of the vif limits what is
//! logged.

use super::data_ring::keys::HalfRefusal;
use super::keys::KeyPlace;
#[cfg(feature = "research")]
use super::research::foreign::keys::WholeRefusal;
#[cfg(feature = "research")]
use super::research::guest_copy::keys::LendRefusal;
use super::staging::keys::ListRefusal;
use alloc::string::{String, ToString};
use core::fmt;

/// The path that was refused, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The back refused a staging list.
    Staging(ListRefusal),
    /// The back refused a half of a data ring.
    DataRing(HalfRefusal),
    /// The back refused to map the whole guest.
    #[cfg(feature = "research")]
    Foreign(WholeRefusal),
    /// The back could not grant its pages to the guest.
    #[cfg(feature = "research")]
    GuestCopy(LendRefusal),
}

impl Refusal {
    /// The line for the log.
    pub fn line(&self, at: KeyPlace<'_>) -> String {
        match self {
            Self::Staging(why) => why.line(at),
            Self::DataRing(why) => why.line(at),
            #[cfg(feature = "research")]
            Self::Foreign(why) => why.line(at),
            #[cfg(feature = "research")]
            Self::GuestCopy(why) => why.line(at),
        }
    }

    /// The reason, as a table of vifs shows it.
    pub fn shown(&self) -> String {
        match self {
            Self::DataRing(why) => why.shown(),
            #[cfg(feature = "research")]
            Self::GuestCopy(why) => why.shown(),
            #[cfg(feature = "research")]
            Self::Foreign(_) => self.to_string(),
            Self::Staging(_) => self.to_string(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Staging(why) => why.fmt(f),
            Self::DataRing(why) => why.fmt(f),
            #[cfg(feature = "research")]
            Self::Foreign(why) => why.fmt(f),
            #[cfg(feature = "research")]
            Self::GuestCopy(why) => why.fmt(f),
        }
    }
}
