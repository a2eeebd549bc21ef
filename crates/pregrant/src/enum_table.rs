//! Enums that are a table: of names, or of numbers on the wire. Written once, value and name cannot
//! part.

/// An enum whose values have one name each.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* $of:ident { $($(#[$each:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$about])*
        pub enum $of { $($(#[$each])* $value,)* }

        impl $of {
            /// All of them.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// As it is written.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $name,)* }
            }
        }

        impl ::core::fmt::Display for $of {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// Reads such an enum's values by their names; `$error`: there is none.
#[doc(hidden)]
#[macro_export]
macro_rules! read_by_name {
    ($of:ident, $error:ident) => {
        impl ::core::str::FromStr for $of {
            type Err = $error;
            fn from_str(text: &str) -> Result<Self, $error> {
                Self::ALL.into_iter().find(|value| value.name() == text).ok_or($error)
            }
        }
    };
}

/// An enum whose values have one number each.
#[doc(hidden)]
#[macro_export]
macro_rules! numbered {
    ($(#[$about:meta])* $of:ident: $raw:ident { $($(#[$each:meta])* $value:ident = $number:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr($raw)]
        pub enum $of { $($(#[$each])* $value = $number,)* }

        impl $of {
            /// All of them, in this order.
            #[allow(dead_code)] // not each enum has a use for it
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$value),*];

            /// From the number on the wire; `None` for an unknown one.
            pub const fn from_raw(raw: $raw) -> Option<Self> {
                match raw { $($number => Some(Self::$value),)* _ => None }
            }

            /// The number on the wire.
            pub const fn raw(self) -> $raw {
                self as $raw
            }
        }
    };
}
