//! The paths by name: one table, from which keys, records and command lines are written and read.

use alloc::vec::Vec;
use core::fmt;

crate::named! {
    /// A path, in the order in which RX asks them.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    PathName {
        /// Buffers granted before the data comes.
        Staging = "staging",
        /// A circular area granted before the data comes.
        DataRing = "data-ring",
        /// Any frame of a guest that trusts its back; with the feature `research`.
        Foreign = "foreign",
        /// Pages that the back lends: the guest copies; with the feature `research`.
        GuestCopy = "guest-copy",
        /// Pages that the guest asked to keep mapped.
        GrefMapping = "gref-mapping",
        /// Pages that stay mapped once they were seen.
        Persistent = "persistent",
        /// Copy of the headers, map and unmap of the rest.
        Map = "map",
        /// Batched grant copy.
        #[default]
        Copy = "copy",
    }
}

impl PathName {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether this build has it: all but those of [`research`](super::research), or all.
    pub const fn is_built(self) -> bool {
        cfg!(feature = "research") || !matches!(self, Self::Foreign | Self::GuestCopy)
    }

    /// How staging is written where the heads of frames longer than a buffer come from their
    /// buffers, and the rest of them by `rest`.
    pub const fn staging_and(rest: Self) -> &'static str {
        match rest {
            Self::Map => "staging+map",
            _ => "staging+copy",
        }
    }
}

/// A chain's description, for reports: as of when its queue connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainNames {
    /// Its paths, in the order in which they are asked. `copy` is the last, where anything is left
    /// for it.
    pub paths: Vec<PathName>,
    /// Staging buffers; None: there are none.
    pub buffers: Option<BufferNames>,
}

/// Buffers of a path, as they are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferNames {
    /// How many.
    pub count: u32,
    /// Bytes of a frame that fit one.
    pub data_len: u32,
    /// The heads of longer frames come from there.
    pub heads: bool,
}

impl ChainNames {
    /// The paths as they are shown, the first one first: `staging+copy` where staging has the heads
    /// of longer frames. Gref mappings are among them where the guest has pages `mapped`.
    pub fn shown(&self, mapped: bool) -> Vec<&'static str> {
        let rest = if self.paths.contains(&PathName::Map) { PathName::Map } else { PathName::Copy };
        let in_use = self.paths.iter().filter(|path| mapped || **path != PathName::GrefMapping);
        let name = |path: &PathName| match path {
            PathName::Staging if self.buffers.is_some_and(|buffers| buffers.heads) => {
                PathName::staging_and(rest)
            }
            path => path.name(),
        };
        in_use.map(name).collect()
    }
}

/// What a frame costs at the back beside the copying of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameCost {
    /// Nothing: its memory was shared before it came.
    NoGrantOperation,
    /// A grant copy for each piece of it.
    GrantCopy,
    /// A map and an unmap of its pages.
    MapAndUnmap,
    /// Nothing at the back; a grant copy at the guest.
    CopyByGuest,
}

impl FrameCost {
    /// Whether the back's grant operations are the price.
    pub const fn is_by_grants(self) -> bool {
        matches!(self, Self::GrantCopy | Self::MapAndUnmap)
    }
}

/// There is no such path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownPath;

impl fmt::Display for UnknownPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [others @ .., last] = PathName::ALL;
        f.write_str("paths are ")?;
        for (k, path) in others.iter().enumerate() {
            write!(f, "{}{path}", if k > 0 { ", " } else { "" })?;
        }
        write!(f, " and {last}")
    }
}

impl core::error::Error for UnknownPath {}

crate::read_by_name!(PathName, UnknownPath);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn what_is_written_is_read() {
        for path in PathName::ALL {
            assert_eq!(path.to_string().parse(), Ok(path));
            assert!(UnknownPath.to_string().contains(path.name()));
        }
        for other in ["", "Copy", "copy ", "gref_mapping", "zerocopy"] {
            assert_eq!(other.parse::<PathName>(), Err(UnknownPath));
        }
    }
}
