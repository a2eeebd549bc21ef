//! The parts of a path that a front's owner wants and a back does not offer.
//! [`NotOffered`](crate::net::front::NotOffered) has these of all paths, and what is of no path.

use super::DataLen;
use super::path_name::PathName;
use alloc::vec::Vec;

/// One such part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathNotOffered {
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
