//! In whose time frames of one guest go into another guest's ring, where both queues are at one
//! worker.
//!
//! | context | frames for a guest | as |
//! |---|---|---|
//! | `worker` | wait in its queue for its turn | netback's RX thread |
//! | `same` | go into its ring behind the batch that brought them, in the sender's turn | netback's transmit since 2015's patches |
//!
//! A queue of another worker has its turn there in either case: its ring has one owner.

use std::fmt;
use std::str::FromStr;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RxContext {
    /// The sender's turn.
    Same,
    /// The receiver's turn.
    #[default]
    Worker,
}

impl RxContext {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Same, Self::Worker];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Worker => "worker",
        }
    }
}

impl fmt::Display for RxContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RxContext {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|context| context.name() == text);
        found.ok_or_else(|| format!("{text:?} is no context; use one of same, worker"))
    }
}
