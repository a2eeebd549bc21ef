//! The paths by name: one table, from which keys, records and command lines are written and read.

use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// A path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PathName {
    /// Batched grant copy.
    #[default]
    Copy,
    /// Copy of the headers, map and unmap of the rest.
    Map,
    /// Pages that stay mapped once they were seen.
    Persistent,
    /// Buffers granted before the data comes.
    Staging,
    /// Pages that the guest asked to keep mapped.
    GrefMapping,
    /// A circular area granted before the data comes.
    DataRing,
    /// Any frame of a guest that trusts its back.
    Foreign,
    /// Pages that the back lends: the guest copies.
    GuestCopy,
}

impl PathName {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Copy,
        Self::Map,
        Self::Persistent,
        Self::Staging,
        Self::GrefMapping,
        Self::DataRing,
        Self::Foreign,
        Self::GuestCopy,
    ];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Map => "map",
            Self::Persistent => "persistent",
            Self::Staging => "staging",
            Self::GrefMapping => "gref-mapping",
            Self::DataRing => "data-ring",
            Self::Foreign => "foreign",
            Self::GuestCopy => "guest-copy",
        }
    }

    /// How staging is written where the heads of frames longer than a buffer come from their buffers, and the rest of them by
    /// this path.
    pub const fn behind_heads(self) -> &'static str {
        match self {
            Self::Map => "staging+map",
            _ => "staging+copy",
        }
    }

    /// What a frame costs that this path serves.
    pub const fn frame_cost(self) -> FrameCost {
        match self {
            Self::Copy => FrameCost::GrantCopy,
            Self::Map => FrameCost::MapAndUnmap,
            Self::GuestCopy => FrameCost::CopyByGuest,
            Self::Persistent | Self::Staging | Self::GrefMapping | Self::DataRing | Self::Foreign => {
                FrameCost::NoGrantOperation
            }
        }
    }
}

/// What a chain is, for who looks from elsewhere: as of when its queue connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainNames {
    /// Its paths, in the order in which they are asked. `copy` is the last, where anything is left for it.
    pub paths: Vec<PathName>,
    /// Bytes of a frame that fit a staging buffer; None: there are none.
    pub data_len: Option<u32>,
    /// The heads of longer frames come from their buffers.
    pub heads: bool,
}

impl ChainNames {
    /// The paths as they are shown, the first one first: `staging+copy` where staging has the heads of longer frames. Gref mappings are among
    /// them where the guest has pages `mapped`.
    pub fn shown(&self, mapped: bool) -> Vec<&'static str> {
        let rest = if self.paths.contains(&PathName::Map) { PathName::Map } else { PathName::Copy };
        let in_use = self.paths.iter().filter(|path| mapped || **path != PathName::GrefMapping);
        let name = |path: &PathName| match path {
            PathName::Staging if self.heads => rest.behind_heads(),
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
    /// Of a path as it is [shown](ChainNames): its name, or `staging+copy` and its like.
    ///
    /// # Errors
    /// There is no such path.
    pub fn of_shown(text: &str) -> Result<Self, UnknownPath> {
        let first = text.split('+').next().unwrap_or(text);
        Ok(first.parse::<PathName>()?.frame_cost())
    }
}

impl fmt::Display for PathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownPath;

impl fmt::Display for UnknownPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "paths are copy, map, persistent, staging, gref-mapping, data-ring, foreign and guest-copy",
        )
    }
}

impl core::error::Error for UnknownPath {}

impl FromStr for PathName {
    type Err = UnknownPath;
    fn from_str(text: &str) -> Result<Self, UnknownPath> {
        Self::ALL.into_iter().find(|path| path.name() == text).ok_or(UnknownPath)
    }
}

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
            assert_eq!(FrameCost::of_shown(other), Err(UnknownPath));
        }
    }

    #[test]
    fn what_is_shown_has_the_cost_of_its_first_path() {
        for path in PathName::ALL {
            assert_eq!(FrameCost::of_shown(path.name()), Ok(path.frame_cost()));
            assert_eq!(FrameCost::of_shown(path.behind_heads()), Ok(FrameCost::NoGrantOperation));
        }
    }
}
