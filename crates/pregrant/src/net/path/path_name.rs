//! The paths by name: one table, from which keys, records and command lines are written and read.

use alloc::vec::Vec;
use core::fmt;

crate::named! {
    /// A path, in the order in which RX asks them.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    PathName {
        /// The guest granted buffers before any frame was sent.
        Staging = "staging",
        /// The guest granted a ring of bytes before any frame was sent.
        DataRing = "data-ring",
        /// The back copies from and to any page of a guest whose whole memory is mapped.
        Foreign = "foreign",
        /// The back grants its own pages, and the guest copies.
        GuestCopy = "guest-copy",
        /// The back uses pages that the guest asked it to map.
        GrefMapping = "gref-mapping",
        /// The back uses pages that stay mapped after it saw them.
        Persistent = "persistent",
        /// The back copies the headers, and maps and unmaps the pages of the rest.
        Map = "map",
        /// The back uses grant copy, one call for each batch.
        #[default]
        Copy = "copy",
    }
}

impl PathName {
    /// Number of paths.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether this build has the path. A build has the paths of [`research`](super::research) only
    /// with the feature of that name.
    pub const fn is_built(self) -> bool {
        match self {
            Self::Foreign | Self::GuestCopy => cfg!(feature = "research"),
            Self::Staging
            | Self::DataRing
            | Self::GrefMapping
            | Self::Persistent
            | Self::Map
            | Self::Copy => true,
        }
    }

    /// The displayed name of staging when the head of a frame longer than a buffer comes from its
    /// buffer and the rest by path `rest`.
    pub const fn staging_and(rest: Self) -> &'static str {
        match rest {
            Self::Map => "staging+map",
            _ => "staging+copy",
        }
    }
}

/// A chain's description for reports, from the time when its queue connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainNames {
    /// The paths in the order in which they are asked. `copy` comes last, if anything is left for
    /// it.
    pub paths: Vec<PathName>,
    /// Staging buffers; None: there are none.
    pub buffers: Option<BufferNames>,
}

/// A path's buffers, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferNames {
    /// Number of buffers.
    pub count: u32,
    /// Largest number of bytes of a frame that fits a buffer.
    pub data_len: u32,
    /// The heads of longer frames are in the buffers.
    pub heads: bool,
}

impl ChainNames {
    /// The paths as they are shown, the first one first: `staging+copy` where staging has the heads
    /// of longer frames. Gref mappings are among them where the guest has pages `mapped`.
    pub fn shown(&self, mapped: bool) -> impl Iterator<Item = &'static str> {
        let rest = if self.paths.contains(&PathName::Map) { PathName::Map } else { PathName::Copy };
        let in_use = self.paths.iter().filter(move |path| mapped || **path != PathName::GrefMapping);
        let name = move |path: &PathName| match path {
            PathName::Staging if self.buffers.is_some_and(|buffers| buffers.heads) => {
                PathName::staging_and(rest)
            }
            path => path.name(),
        };
        in_use.map(name)
    }
}

/// The cost of a frame at the back, apart from copying its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameCost {
    /// No grant operation: the frame's memory was shared at set-up.
    NoGrantOperation,
    /// One grant copy for each fragment.
    GrantCopy,
    /// One map and one unmap of the frame's pages.
    MapAndUnmap,
    /// No grant operation at the back; the guest makes a grant copy.
    CopyByGuest,
}

impl FrameCost {
    /// Whether the path costs the back grant operations for each frame.
    pub const fn is_by_grants(self) -> bool {
        matches!(self, Self::GrantCopy | Self::MapAndUnmap)
    }
}

/// The error for a path name that does not exist.
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
