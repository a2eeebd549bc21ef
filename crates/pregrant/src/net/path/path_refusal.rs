//! The reason for which a queue goes on without a path, as that path words it.

use super::keys::KeyPlace;
use alloc::string::{String, ToString};
use core::fmt;

/// Why a request for a path is refused. [`Refusal`](super::any_refusal::Refusal) is that of any
/// path.
pub trait PathRefusal: Clone + PartialEq + Eq + fmt::Debug + fmt::Display {
    /// A line for the log.
    fn line(&self, at: KeyPlace<'_>) -> String;
    /// The reason, as a table of vifs shows it.
    fn shown(&self) -> String {
        self.to_string()
    }
}
