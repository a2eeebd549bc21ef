//! The names of the paths: one table for keys, records and command lines.

use core::fmt;

crate::named! {
    /// The name of a path.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    PathName {
        /// The back copies data by batched grant copies.
        #[default]
        Copy = "copy",
        /// The back maps a request's pages, and unmaps them with its batch.
        Map = "map",
        /// The back keeps pages mapped once it has seen them.
        Persistent = "persistent",
    }
}

/// A text that names no path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownPath;

impl fmt::Display for UnknownPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("paths of a disk are copy, map and persistent")
    }
}

impl core::error::Error for UnknownPath {}

crate::read_by_name!(PathName, UnknownPath);

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn each_name_is_read_as_it_is_written() {
        for path in PathName::ALL {
            assert_eq!(path.to_string().parse(), Ok(path));
        }
        assert_eq!("staging".parse::<PathName>(), Err(UnknownPath));
    }
}
