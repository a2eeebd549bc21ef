//! Why a queue goes on without what its front asked for: each path says it in its own words.
//!
//! What a front may do: cause any of these, again and again. The owner of the vif limits what is
//! logged.

use super::keys::KeyPlace;
use super::negotiation::Negotiation;
use super::refused::Refused;
use alloc::string::String;
use core::fmt;

macro_rules! refusals {
    ({} $($(#[$doc:meta])* $path:ident = $module:ident, $name:literal;)*) => {
        /// What was refused, and why.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Refusal {
            $($(#[$doc])* $path(<super::$module::$path as Negotiation>::Refusal),)*
        }

        impl Refusal {
            /// [`Refused::line`].
            pub fn line(&self, at: KeyPlace<'_>) -> String {
                match self {
                    $(Self::$path(why) => why.line(at),)*
                }
            }

            /// [`Refused::shown`].
            pub fn shown(&self) -> String {
                match self {
                    $(Self::$path(why) => why.shown(),)*
                }
            }
        }

        impl fmt::Display for Refusal {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$path(why) => why.fmt(f),)*
                }
            }
        }
    };
}

paths!(refusals {});
