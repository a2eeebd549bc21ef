//! The cost of a frame by each path.

use super::path_name::{FrameCost, PathName, UnknownPath};

impl PathName {
    /// What it costs the back to serve a frame by this path.
    pub const fn frame_cost(self) -> FrameCost {
        match self {
            Self::Staging | Self::DataRing | Self::Foreign | Self::GrefMapping | Self::Persistent => {
                FrameCost::NoGrantOperation
            }
            Self::GuestCopy => FrameCost::CopyByGuest,
            Self::Map => FrameCost::MapAndUnmap,
            Self::Copy => FrameCost::GrantCopy,
        }
    }
}

impl FrameCost {
    /// The cost of a path by its [displayed name](super::ChainNames), such as `copy` or
    /// `staging+copy`.
    ///
    /// # Errors
    /// There is no such path.
    pub fn of_shown(text: &str) -> Result<Self, UnknownPath> {
        let first = text.split('+').next().unwrap_or(text);
        Ok(first.parse::<PathName>()?.frame_cost())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn what_is_shown_has_the_cost_of_its_first_path() {
        for path in PathName::ALL {
            assert_eq!(FrameCost::of_shown(path.name()), Ok(path.frame_cost()));
            assert_eq!(FrameCost::of_shown(PathName::staging_and(path)), Ok(FrameCost::NoGrantOperation));
        }
    }

    #[test]
    fn what_is_no_path_has_no_cost() {
        for other in ["", "Copy", "copy ", "gref_mapping", "zerocopy"] {
            assert_eq!(FrameCost::of_shown(other), Err(UnknownPath));
        }
    }
}
