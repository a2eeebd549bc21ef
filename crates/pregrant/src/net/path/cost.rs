//! The cost of frames by each path, and the order in which paths are asked: as each path states it.

use super::back::RequestClaims;
use super::negotiation::Negotiation;
use super::path_name::{FrameCost, PathName, UnknownPath};

macro_rules! costs {
    ({} $($(#[$doc:meta])* $path:ident = $module:ident, $name:literal;)*) => {
        impl PathName {
            /// What a frame costs that this path serves.
            pub const fn frame_cost(self) -> FrameCost {
                match self {
                    $(Self::$path => <super::$module::$path as Negotiation>::COST,)*
                }
            }

            /// Whether it knows its requests by a flag.
            pub const fn claims_requests(self) -> bool {
                match self {
                    $(Self::$path => <super::$module::$path as Negotiation>::Claims::CLAIM.is_some(),)*
                }
            }
        }
    };
}

paths!(costs {});

impl PathName {
    /// All of them, those that know their requests by a flag first.
    pub(super) const CLAIMS_FIRST: [Self; Self::COUNT] = {
        let mut all = Self::ALL;
        let (mut n, mut k) = (0, 0);
        while k < 2 * Self::COUNT {
            let path = Self::ALL[k % Self::COUNT];
            if path.claims_requests() == (k < Self::COUNT) {
                all[n] = path;
                n += 1;
            }
            k += 1;
        }
        all
    };
}

impl FrameCost {
    /// Of a path as it is [shown](super::ChainNames): its name, or `staging+copy` and its like.
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
            assert_eq!(FrameCost::of_shown(path.behind_heads()), Ok(FrameCost::NoGrantOperation));
        }
    }

    #[test]
    fn what_is_no_path_has_no_cost() {
        for other in ["", "Copy", "copy ", "gref_mapping", "zerocopy"] {
            assert_eq!(FrameCost::of_shown(other), Err(UnknownPath));
        }
    }
}
