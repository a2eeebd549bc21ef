//! Why a queue goes on without what its front asked for: each path says it in its own words.
//!
//! What a front may do: cause any of these, again and again. The owner of the vif limits what is
//! logged.

use super::data_ring::keys::HalfRefusal;
use super::foreign::keys::WholeRefusal;
use super::guest_copy::keys::LendRefusal;
use super::keys::KeyPlace;
use super::staging::keys::ListRefusal;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

/// What was refused, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A staging list.
    List(ListRefusal),
    /// A half of a data ring.
    Half(HalfRefusal),
    /// That the guest's memory is mapped as a whole.
    Whole(WholeRefusal),
    /// Pages that are lent.
    Lending(LendRefusal),
}

impl Refusal {
    /// A line for the log.
    pub fn line(&self, at: KeyPlace<'_>) -> String {
        match self {
            Self::List(why) => why.line(at),
            Self::Half(why) => why.line(at),
            Self::Whole(why) => why.line(at),
            Self::Lending(why) => why.line(at),
        }
    }

    /// The reason, as a table of vifs shows it.
    pub fn shown(&self) -> String {
        match self {
            Self::Half(why) => format!("data ring: {why}"),
            Self::Lending(why) => format!("guest copy: {why}"),
            why => why.to_string(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(why) => why.fmt(f),
            Self::Half(why) => why.fmt(f),
            Self::Whole(why) => why.fmt(f),
            Self::Lending(why) => why.fmt(f),
        }
    }
}
