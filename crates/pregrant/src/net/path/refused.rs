//! What each path says of why a queue goes on without it.

use super::keys::KeyPlace;
use alloc::string::{String, ToString};
use core::fmt;

/// Why a path is refused, in its words.
pub trait Refused: Clone + PartialEq + Eq + fmt::Debug + fmt::Display {
    /// A line for the log.
    fn line(&self, at: KeyPlace<'_>) -> String;
    /// The reason, as a table of vifs shows it.
    fn shown(&self) -> String {
        self.to_string()
    }
}
