//! What of a path a front's owner wants and a back does not offer.

use super::DataLen;
use super::name::PathName;
use alloc::vec::Vec;

/// One such thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Missing {
    /// Buffers of this length.
    DataLen {
        /// What the front requested.
        asked: DataLen,
        /// The lengths that the back has.
        offered: Vec<DataLen>,
    },
    /// Received buffers that are sent on as they are.
    SendingOn,
    /// All of this path.
    Path(PathName),
}
