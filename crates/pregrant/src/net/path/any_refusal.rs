//! The reason for which a queue goes on without a path that its front requested, for any path. Each
//! path words its own ([`PathRefusal`]).
//!
//! What a front may do: cause any of these, again and again. The owner of the vif limits what is
//! logged.

use super::keys::KeyPlace;
use super::negotiation::Negotiation;
use super::path_refusal::PathRefusal;
use alloc::string::String;
use core::fmt;

macro_rules! refusals {
    ({} $($(#[$doc:meta])* $path:ident = $module:ident, $name:literal;)*) => {
        /// The path that was refused, and why.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Refusal {
            $($(#[$doc])* $path(<super::$module::$path as Negotiation>::Refusal),)*
        }

        impl Refusal {
            /// [`PathRefusal::line`].
            pub fn line(&self, at: KeyPlace<'_>) -> String {
                match self {
                    $(Self::$path(why) => why.line(at),)*
                }
            }

            /// [`PathRefusal::shown`].
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
